r"""Empirical Bayes: every annotator's deviation, pulled toward the pool by as much as its votes leave open.

The estimates are read as :math:`\hat d_k \sim N(d_k, s_k^2)` with the true deviations drawn from a prior that the
estimates themselves reveal: a normal one, or any distribution at all. An annotator with few votes is pulled far, one
with many hardly. Where there is no estimate the posterior is the prior, and ``basis`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_expit, softmax

from badpo.estimation.mixtures import Mixture, mixture_mean, mixture_quantile, mixture_sd
from badpo.estimation.spread import fit_spread, spread_interval, spread_posterior, typical_se

GRID_POINTS = 200
NPMLE_STEPS = 3000
NPMLE_GAP = 1e-3
LARGEST_SAMPLE = 2000


@dataclass(frozen=True)
class Shrunk:
    """What is believed of every annotator after seeing the whole pool. All in log-odds.

    Attributes
    ----------
    shrunk, post_sd : array of shape (m,)
        Posterior mean and standard deviation of the deviation; NaN only when no annotator has an estimate.
    post_low, post_high : array of shape (m,)
        Central posterior interval.
    basis : object array of shape (m,)
        What the posterior rests on besides the pool: ``estimate``, ``votes`` or ``prior`` (nothing).
    tau, tau_low, tau_high : float
        Standard deviation of the true leans over annotators and its 95 % interval. With fewer than two estimates
        tau is NaN and the interval is (0, inf): one annotator says nothing about a spread.
    reliability : float
        Mean over the annotators with an estimate of tau^2 / (tau^2 + se^2): the share of the estimates'
        spread that is real, 0 to 1; NaN where tau is.
    posterior : Mixture
        The posterior itself.
    other : Mixture or None
        The posterior under the other kind of prior, normal or free, so that a flag can be asked to hold under both;
        None where there is none.
    """

    shrunk: NDArray[np.float64]
    post_sd: NDArray[np.float64]
    post_low: NDArray[np.float64]
    post_high: NDArray[np.float64]
    basis: NDArray[np.object_]
    tau: float
    tau_low: float
    tau_high: float
    reliability: float
    posterior: Mixture
    other: Mixture | None


@dataclass(frozen=True)
class _Estimates:
    """Estimates as normal observations; ``usable`` marks those that say anything."""

    value: NDArray[np.float64]
    se: NDArray[np.float64]
    usable: NDArray[np.bool_]

    @property
    def known(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.value[self.usable], self.se[self.usable]


def finite_estimates(
    deviation: ArrayLike, se: ArrayLike, n_informative: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Estimates and standard errors, infinite leans replaced by what so many votes that all went one way amount to.

    Such votes are taken as logistic ones against even odds in the middle of the pool. They stand as the normal
    observation that moves the prior :math:`N(\mu, \tau^2)` of the finite estimates to the same mean and variance.

    Parameters
    ----------
    deviation, se, n_informative : array of shape (m,)
        Of one attribute, as in `badpo.estimation.leans.Leans`.

    Returns
    -------
    (deviation, se) : arrays of shape (m,)
        As they were with fewer than two finite estimates, which leave the prior open.

    Examples
    --------
    >>> value, se = finite_estimates([-0.6, 0.6, np.inf, -np.inf], [0.2, 0.2, np.nan, np.nan], [30, 30, 4, 40])
    >>> value.round(1).tolist(), se.round(1).tolist()
    ([-0.6, 0.6, 2.5, -3.6], [0.2, 0.2, 1.1, 0.6])
    """
    value, error, n = (np.array(each, dtype=np.float64) for each in (deviation, se, n_informative))
    finite, one_way = np.isfinite(value), np.isinf(value)
    if not one_way.any() or finite.sum() < 2:
        return value, error
    tau, mu = fit_spread(value[finite], error[finite])
    tau = max(tau, 0.1 * typical_se(error[finite]))
    side = np.sign(value[one_way])
    lean = side[:, None] * mu + tau * np.linspace(-8, 8, 401)
    log_prior = -(np.linspace(-8, 8, 401) ** 2) / 2
    mass = softmax(log_prior + n[one_way, None] * log_expit(lean), axis=1)
    mean = (mass * lean).sum(axis=1)
    variance = (mass * (lean - mean[:, None]) ** 2).sum(axis=1)
    precision = np.maximum(1 / variance - 1 / tau**2, 1e-6 / tau**2)
    value[one_way] = side * (mean / variance - side * mu / tau**2) / precision
    error[one_way] = 1 / np.sqrt(precision)
    return value, error


def shrink_normal(deviation: ArrayLike, se: ArrayLike, level: float = 0.95) -> Shrunk:
    r"""Shrink deviations under a normal prior whose spread tau is fitted and whose uncertainty is carried along.

    .. math:: \hat d_k \sim N(d_k, s_k^2), \qquad d_k \sim N(\mu, \tau^2)

    The estimate of tau maximises the restricted likelihood (mu integrated out under a flat prior), and its interval
    is where that likelihood falls by less than 1.92 from the top. The posterior of d_k does not plug that estimate
    in: it is averaged over tau as `badpo.estimation.spread.spread_posterior` weighs it. With few votes or annotators
    the posterior intervals are therefore wider than plain empirical Bayes.

    Parameters
    ----------
    deviation : array of shape (m,)
        Estimates; one that is not finite counts as none (see `finite_estimates`).
    se : array of shape (m,)
        Standard errors; read only where the estimate is finite.
    level : float
        Posterior probability of the interval.

    Returns
    -------
    Shrunk

    Examples
    --------
    A well-measured annotator keeps most of their deviation, a badly measured one of the same size little:

    >>> found = shrink_normal([1.0, 1.0, -0.9, -0.6, 0.5, -1.0], [0.1, 2.0, 0.1, 0.1, 0.1, 0.1])
    >>> [bool(found.shrunk[k] > 0.5) for k in (0, 1)]
    [True, False]
    """
    estimates, basis = _observed(deviation, se)
    value, error = estimates.known
    tau, low, high = spread_interval(value, error)
    posterior = _normal_posterior(estimates)
    other = _free_posterior(estimates)[0] if len(value) > 1 else None
    return summarize_posterior(posterior, other, basis, (tau, low, high), error, level)


def summarize_posterior(
    posterior: Mixture,
    other: Mixture | None,
    basis: NDArray[np.object_],
    tau: tuple[float, float, float],
    se: NDArray[np.float64],
    level: float,
) -> Shrunk:
    """The figures of a posterior.

    Parameters
    ----------
    posterior, other : Mixture
        Rows are annotators; ``other`` under the other kind of prior, or None.
    basis : object array of shape (m,)
    tau : (tau, low, high)
    se : array of shape (n_estimates,)
        Errors of the estimates behind it, for the reliability.
    level : float

    Returns
    -------
    Shrunk

    Examples
    --------
    >>> posterior = Mixture(np.array([[0.5]]), np.array([[0.1]]), np.ones((1, 1)))
    >>> found = summarize_posterior(posterior, None, np.array(["estimate"]), (0.3, 0.1, 0.9), np.array([0.4]), 0.95)
    >>> found.post_low.round(3), round(found.reliability, 2)
    (array([0.304]), 0.36)
    """
    reliability = float(np.mean(tau[0] ** 2 / (tau[0] ** 2 + se**2))) if len(se) else np.nan
    return Shrunk(
        shrunk=mixture_mean(posterior),
        post_sd=mixture_sd(posterior),
        post_low=mixture_quantile(posterior, 0.5 - level / 2),
        post_high=mixture_quantile(posterior, 0.5 + level / 2),
        basis=basis,
        tau=tau[0],
        tau_low=tau[1],
        tau_high=tau[2],
        reliability=reliability,
        posterior=posterior,
        other=other,
    )


def _observed(deviation: ArrayLike, se: ArrayLike) -> tuple[_Estimates, NDArray[np.object_]]:
    value, error = np.asarray(deviation, dtype=np.float64), np.asarray(se, dtype=np.float64)
    if value.ndim != 1 or value.shape != error.shape:
        raise ValueError(
            f"one estimate and standard error per annotator are needed; got shapes {value.shape} and {error.shape}"
        )
    finite = np.isfinite(value)
    if not np.all(error[finite] > 0):
        worst = int(np.flatnonzero(finite & ~(error > 0))[0])
        raise ValueError(
            f"the estimate of annotator {worst} has standard error {error[worst]}; a finite estimate needs a "
            "positive one, and an annotator without information an estimate of NaN"
        )
    return _Estimates(value, error, finite), np.where(finite, "estimate", "prior").astype(object)


def _normal_posterior(estimates: _Estimates) -> Mixture:
    r"""Given tau, d_k is normal with mean :math:`B_k \hat d_k + (1 - B_k) \hat\mu`; averaged over tau."""
    value, se = estimates.known
    m = len(estimates.value)
    if not len(value):
        nothing = np.full((m, 1), np.nan)
        return Mixture(nothing, nothing, np.ones((m, 1)))
    taus, masses = spread_posterior(value, se)
    weight = 1 / (taus[None, :] ** 2 + se[:, None] ** 2)
    total = weight.sum(axis=0)
    center = (weight * value[:, None]).sum(axis=0) / total
    means, variances = np.tile(center, (m, 1)), np.tile(taus**2 + 1 / total, (m, 1))
    kept = taus**2 * weight
    means[estimates.usable] = kept * value[:, None] + (1 - kept) * center
    variances[estimates.usable] = kept * se[:, None] ** 2 + (1 - kept) ** 2 / total
    return Mixture(means, np.sqrt(variances), np.broadcast_to(masses, (m, len(taus))))


def shrink_npmle(deviation: ArrayLike, se: ArrayLike, level: float = 0.95) -> Shrunk:
    r"""Shrink deviations under the prior, of whatever shape, that makes the estimates most likely.

    .. math:: \hat G = \arg\max_G \sum_k \log \int \varphi(\hat d_k;\, t,\, s_k^2 + h^2)\, dG(t),
        \qquad h = \hat\tau\, m^{-1/5}

    over masses on a grid, by the EM iteration of Kiefer and Wolfowitz's estimator, until no point of the grid could
    gain more than a thousandth. Two camps, or a few annotators far from a tight crowd, are kept apart where a normal
    prior would blur them. The plain estimator (h = 0) is a handful of point masses, whose posterior intervals covered
    half to three quarters of the truth in pools of 12 and 60; the masses are therefore spread by a kernel that narrows
    as the pool grows. What remains uncertain about the prior is not carried along: **with fewer than about a hundred
    annotators, or errors larger than tau, take intervals from** :func:`shrink_normal`.

    Parameters
    ----------
    deviation, se, level
        As in :func:`shrink_normal`.

    Returns
    -------
    Shrunk
        ``tau`` is the standard deviation of the fitted prior, the kernel included; its interval is the one of the
        normal fit. With fewer than two estimates the normal fit itself.

    References
    ----------
    Kiefer and Wolfowitz (1956); Laird (1978).

    Examples
    --------
    Two camps stay two camps, and somebody in between is drawn to the nearer one:

    >>> camps = np.repeat([-1.0, 1.0], 20)
    >>> found = shrink_npmle(np.append(camps, 0.4), np.full(41, 0.3))
    >>> bool(found.shrunk[40] > shrink_normal(np.append(camps, 0.4), np.full(41, 0.3)).shrunk[40])
    True
    """
    estimates, basis = _observed(deviation, se)
    value, error = estimates.known
    if len(value) < 2:
        return shrink_normal(deviation, se, level)
    posterior, tau = _free_posterior(estimates)
    spread = tau, *spread_interval(value, error)[1:]
    return summarize_posterior(posterior, _normal_posterior(estimates), basis, spread, error, level)


def free_posterior(value: NDArray[np.float64], se: NDArray[np.float64], known: NDArray[np.bool_]) -> Mixture:
    """Posterior of every annotator under a free prior, for estimates that were made elsewhere.

    Parameters
    ----------
    value, se : array of shape (m,)
        Estimates and their errors; read where ``known``.
    known : bool array of shape (m,)
        At least two.

    Returns
    -------
    Mixture
        As in `shrink_npmle`.

    Examples
    --------
    >>> found = free_posterior(np.array([-1.0, 1.0, 0.0]), np.full(3, 0.1), np.array([True, True, False]))
    >>> mixture_mean(found).round(1) + 0.0
    array([-1.,  1.,  0.])
    """
    return _free_posterior(_Estimates(value, se, known))[0]


def _free_posterior(estimates: _Estimates) -> tuple[Mixture, float]:
    """The posterior and the standard deviation of the prior."""
    value, error = estimates.known
    kernel = fit_spread(value, error)[0] * len(value) ** -0.2
    grid = _support(value, error)
    spread = error[:, None] ** 2 + kernel**2
    log_likelihood = -((value[:, None] - grid) ** 2) / (2 * spread)
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    # more annotators than this would not change the masses, only take longer
    weights = _masses(likelihood[:: -(-len(value) // LARGEST_SAMPLE)])
    tau = float(np.sqrt(weights @ (grid - weights @ grid) ** 2 + kernel**2))
    m = len(estimates.value)
    means, sds, masses = np.tile(grid, (m, 1)), np.full((m, len(grid)), kernel), np.tile(weights, (m, 1))
    kept = kernel**2 / spread
    means[estimates.usable] = kept * value[:, None] + (1 - kept) * grid
    sds[estimates.usable] = np.sqrt(kept) * error[:, None]
    joint = likelihood * weights
    masses[estimates.usable] = joint / joint.sum(axis=1, keepdims=True)
    return Mixture(means, sds, masses), tau


def _support(value: NDArray[np.float64], se: NDArray[np.float64]) -> NDArray[np.float64]:
    """A grid over the estimates. Those with a far larger error than most would only make it coarse."""
    trusted = value[se <= 3 * np.median(se)]
    center, reach = np.median(trusted), np.ptp(trusted)
    return np.linspace(
        max(value.min(), center - reach) - 1e-9, min(value.max(), center + reach) + 1e-9, GRID_POINTS
    )


def _masses(likelihood: NDArray[np.float64]) -> NDArray[np.float64]:
    """EM for the masses of a mixture with known components."""
    weights = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(NPMLE_STEPS):
        gain = (1 / (likelihood @ weights)) @ likelihood / len(likelihood)
        if gain.max() <= 1 + NPMLE_GAP:
            break
        weights = weights * gain
    return weights / weights.sum()
