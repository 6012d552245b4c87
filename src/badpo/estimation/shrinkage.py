r"""Empirical Bayes: every annotator's deviation, pulled toward the pool by as much as its votes leave open.

The estimates are read as :math:`\hat d_k \sim N(d_k, s_k^2)` with the true deviations drawn from a prior that the
estimates themselves reveal: a normal one, or any distribution at all. An annotator with few votes is pulled far, one
with many hardly. Where there is no estimate the posterior is the prior, and ``basis`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse.linalg import cg
from scipy.special import chdtri, log_expit, ndtr, ndtri, softmax

from badpo.estimation.conditional_likelihood import KnownWins, sorted_blocks
from badpo.estimation.newton import Curvature
from badpo.theory.identifiability import annotator_components, informative_judgments

BISECTIONS = 30


@dataclass(frozen=True)
class Mixture:
    """Row k is the distribution sum over j of weights[k, j] * N(means[k, j], sds[k, j]^2).

    Attributes
    ----------
    means : array of shape (m, n_parts)
        Centers, log-odds.
    sds : array of shape (m, n_parts)
        Standard deviations; 0 for a point mass.
    weights : array of shape (m, n_parts)
        Non-negative, each row summing to 1. All three may be broadcast views.
    """

    means: NDArray[np.float64]
    sds: NDArray[np.float64]
    weights: NDArray[np.float64]


def mixture_mean(mixture: Mixture) -> NDArray[np.float64]:
    """Mean of every row of a mixture.

    Parameters
    ----------
    mixture : Mixture

    Returns
    -------
    array of shape (m,)

    Examples
    --------
    >>> mixture_mean(Mixture(np.array([[0.0, 4.0]]), np.ones((1, 2)), np.array([[0.75, 0.25]])))
    array([1.])
    """
    return (mixture.weights * mixture.means).sum(axis=1)


def mixture_sd(mixture: Mixture) -> NDArray[np.float64]:
    """Standard deviation of every row of a mixture: the spread within its parts and between them.

    Parameters
    ----------
    mixture : Mixture

    Returns
    -------
    array of shape (m,)

    Examples
    --------
    >>> mixture_sd(Mixture(np.array([[-1.0, 1.0]]), np.zeros((1, 2)), np.array([[0.5, 0.5]])))
    array([1.])
    """
    centered = mixture.means - mixture_mean(mixture)[:, None]
    return np.sqrt((mixture.weights * (mixture.sds**2 + centered**2)).sum(axis=1))


def mixture_cdf(mixture: Mixture, value: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Probability of at most ``value`` under every row of a mixture.

    Parameters
    ----------
    mixture : Mixture
    value : float or array of shape (m,)

    Returns
    -------
    array of shape (m,)

    Examples
    --------
    >>> mixture_cdf(Mixture(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])), 0.0)
    array([0.25])
    """
    gap = np.broadcast_to(value, len(mixture.means))[:, None] - mixture.means
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(mixture.sds == 0, np.where(gap >= 0, np.inf, -np.inf), gap / mixture.sds)
    return (mixture.weights * ndtr(z)).sum(axis=1)


def mixture_quantile(mixture: Mixture, probability: float) -> NDArray[np.float64]:
    """The value below which every row of a mixture has the given probability, by bisection.

    Exact to a billionth of the spread of the row's parts.

    Parameters
    ----------
    mixture : Mixture
    probability : float
        Strictly between 0 and 1.

    Returns
    -------
    array of shape (m,)

    Examples
    --------
    >>> one = Mixture(np.array([[2.0]]), np.array([[1.0]]), np.array([[1.0]]))
    >>> mixture_quantile(one, 0.975).round(3)
    array([3.96])
    """
    z = ndtri(probability)
    parts = mixture.means + z * mixture.sds
    low, high = parts.min(axis=1), parts.max(axis=1)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        below = mixture_cdf(mixture, middle) < probability
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return high


DROP = float(chdtri(1, 0.05)) / 2
SPREAD_NODES = 31
NEGLIGIBLE = 12.0


def typical_se(se: NDArray[np.float64]) -> float:
    """Root of the harmonic mean of squared standard errors: the scale on which tau is searched.

    Examples
    --------
    >>> round(typical_se(np.array([1.0, 2.0])), 3)
    1.265
    """
    return float(1 / np.sqrt(np.mean(1 / se**2)))


def restricted_likelihood(value: NDArray[np.float64], se: NDArray[np.float64]) -> Callable[[float], float]:
    """The log restricted likelihood as a function of tau, up to a constant.

    Parameters
    ----------
    value, se : array of shape (n_estimates,)
        Estimates and their standard errors, log-odds; all finite, ``se`` positive.

    Returns
    -------
    callable
        From tau >= 0 to the log-likelihood.

    Examples
    --------
    Estimates that differ by more than their errors speak for a spread:

    >>> found = restricted_likelihood(np.array([-1.0, 0.0, 1.0]), np.full(3, 0.1))
    >>> found(1.0) > found(0.0)
    True
    """

    def log_likelihood(tau: float) -> float:
        weight = 1 / (tau**2 + se**2)
        total = weight.sum()
        center = (weight * value).sum() / total
        return float((np.log(weight).sum() - np.log(total) - (weight * (value - center) ** 2).sum()) / 2)

    return log_likelihood


def fit_spread(value: NDArray[np.float64], se: NDArray[np.float64]) -> tuple[float, float]:
    """Tau at the top of the restricted likelihood, and the center mu there.

    Parameters
    ----------
    value, se : array of shape (n_estimates,)
        At least two.

    Returns
    -------
    (tau, mu) : tuple of float
        tau is 0 where the estimates differ by no more than their errors.

    Examples
    --------
    With equal errors tau^2 is the sample variance less the squared error:

    >>> tau, mu = fit_spread(np.array([-1.0, 0.0, 1.0]), np.full(3, 0.6))
    >>> round(tau, 4), abs(mu) < 1e-12
    (0.8, True)
    """
    tau = _highest(restricted_likelihood(value, se), typical_se(se))
    weight = 1 / (tau**2 + se**2)
    return tau, float((weight * value).sum() / weight.sum())


def _highest(log_likelihood: Callable[[float], float], scale: float) -> float:
    """Tau where the likelihood is highest, searched on tau / (scale + tau), which is 0 to 1."""
    shares = np.linspace(0.0, 1.0, 101)[:-1]
    best = int(np.argmax([log_likelihood(_tau_at(share, scale)) for share in shares]))
    low, high = shares[max(best - 1, 0)], min(shares[best] + 0.01, 1 - 1e-6)
    found = minimize_scalar(
        lambda share: -log_likelihood(_tau_at(share, scale)),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-8},
    )
    tau = _tau_at(float(found.x), scale)
    return tau if log_likelihood(tau) > log_likelihood(0.0) else 0.0


def _tau_at(share: float, scale: float) -> float:
    return scale * share / (1 - share)


def _ends(
    log_likelihood: Callable[[float], float], top: float, scale: float, drop: float
) -> tuple[float, float]:
    """The two taus around the highest where the likelihood has fallen by ``drop``; 0 where it never does below."""
    target = log_likelihood(top) - drop
    low = 0.0
    if log_likelihood(0.0) < target:
        low = float(brentq(lambda tau: log_likelihood(tau) - target, 0.0, top))
    high = top + scale
    while log_likelihood(high) > target:
        high *= 2
    return low, float(brentq(lambda tau: log_likelihood(tau) - target, top, high))


def spread_interval(value: NDArray[np.float64], se: NDArray[np.float64]) -> tuple[float, float, float]:
    """Tau with its 95 % interval: where the restricted likelihood is within 1.92 of its top.

    Parameters
    ----------
    value, se : array of shape (n_estimates,)

    Returns
    -------
    (tau, low, high) : tuple of float
        (NaN, 0, inf) with fewer than two estimates.

    Examples
    --------
    >>> [round(end, 2) for end in spread_interval(np.array([-1.0, 0.0, 1.0]), np.full(3, 0.6))]
    [0.8, 0.0, 4.14]
    """
    if len(value) < 2:
        return np.nan, 0.0, np.inf
    log_likelihood, scale = restricted_likelihood(value, se), typical_se(se)
    tau = _highest(log_likelihood, scale)
    return (tau, *_ends(log_likelihood, tau, scale, DROP))


def spread_posterior(
    value: NDArray[np.float64], se: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Taus and their posterior masses under a flat prior of :math:`\tau^2`.

    It has no unit of its own, and of the flat priors it is the one whose posterior intervals of the leans hold the
    truth as often as they say (Morris and Tang, 2011). Up to three annotators do not outvote it: tau may then be
    large, and next to nothing is shrunk.

    Parameters
    ----------
    value, se : array of shape (n_estimates,)
        At least one; a single one leaves the prior.

    Returns
    -------
    (taus, masses) : tuple of arrays

    References
    ----------
    Morris and Tang (2011), "Estimating random effects via adjustment for density maximization".

    Examples
    --------
    >>> taus, masses = spread_posterior(np.linspace(-1, 1, 50), np.full(50, 0.1))
    >>> round(float(taus @ masses), 1), round(float(masses.sum()), 6)
    (0.6, 1.0)
    """
    log_likelihood, scale = restricted_likelihood(value, se), typical_se(se)
    low, high = 0.0, 1.0
    if len(value) > 1:
        low, high = _ends(log_likelihood, _highest(log_likelihood, scale), scale, NEGLIGIBLE)
        low, high = low / (scale + low), high / (scale + high)
    shares = low + (high - low) * (np.arange(SPREAD_NODES) + 0.5) / SPREAD_NODES
    taus = scale * shares / (1 - shares)
    log_mass = np.array([log_likelihood(tau) for tau in taus])
    # evenly spaced in share = tau / (scale + tau), in which a flat density of tau^2 is share / (1 - share)^3
    mass = np.exp(log_mass - log_mass.max()) * shares / (1 - shares) ** 3
    return taus, mass / mass.sum()


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
        Of one attribute, as in `badpo.estimation.conditional_likelihood.Leans`.

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
    in: it is averaged over tau as `badpo.estimation.shrinkage.spread_posterior` weighs it. With few votes or annotators
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


def probability_exceeds(shrunk: Shrunk, rho: float) -> NDArray[np.float64]:
    r"""Posterior probability that an annotator's deviation is larger than rho, either way.

    .. math:: p_k = P(|d_k| > \rho \mid \text{all votes})

    under a normal prior or under a free one, whichever is smaller. Just beyond rho the two differ most: where a few
    annotators stand far from a tight crowd a normal prior takes the crowd for wider than it is, and one flag in eight
    was wrong at a target of one in ten (`docs/results/audit_statistics.md`).

    Parameters
    ----------
    shrunk : Shrunk
    rho : float
        Smallest deviation that matters, log-odds, not negative. 0.5 is an odds ratio of 1.65.

    Returns
    -------
    array of shape (m,)
        NaN where there is no posterior.

    Raises
    ------
    ValueError
        If rho is negative or not finite.

    Examples
    --------
    >>> from badpo.estimation.shrinkage import shrink_normal
    >>> found = shrink_normal([1.5, 0.1, -0.1, -0.2, -1.3], [0.1] * 5)
    >>> probability_exceeds(found, 0.5).round(2)
    array([1., 0., 0., 0., 1.])
    """
    if not (np.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho is the smallest deviation that matters, in log-odds, 0 or more; got {rho}")
    chance = _beyond(shrunk.posterior, rho)
    return chance if shrunk.other is None else np.minimum(chance, _beyond(shrunk.other, rho))


def _beyond(posterior: Mixture, rho: float) -> NDArray[np.float64]:
    below = mixture_cdf(posterior, np.nextafter(-rho, -np.inf))
    return np.clip(below + 1 - mixture_cdf(posterior, rho), 0.0, 1.0)


def bayesian_fdr(prob_exceeds: ArrayLike, fdr: float) -> NDArray[np.bool_]:
    r"""The longest list of annotators whose expected share of mistakes is at most ``fdr``.

    Annotators enter in order of decreasing probability while the mean of :math:`1 - p_k` over the list stays within
    ``fdr``. Annotators with the same probability enter together or not at all.

    Parameters
    ----------
    prob_exceeds : array of shape (m,)
        From :func:`probability_exceeds`; NaN never enters.
    fdr : float
        Allowed share of flagged annotators whose deviation is in truth not larger than rho, 0 to 1.

    Returns
    -------
    bool array of shape (m,)

    Examples
    --------
    The first two are wrong with probability 0.01 and 0.15, 0.08 on average; the third would make it 0.19:

    >>> bayesian_fdr([0.99, 0.85, 0.6, np.nan], 0.10)
    array([ True,  True, False, False])
    """
    chance = np.asarray(prob_exceeds, dtype=np.float64)
    if not 0 <= fdr <= 1:
        raise ValueError(f"the false discovery rate is a share between 0 and 1; got {fdr}")
    known = np.flatnonzero(~np.isnan(chance))
    order = known[np.argsort(-chance[known], kind="stable")]
    ranked = chance[order]
    mistakes = np.cumsum(1 - ranked) / np.arange(1, len(ranked) + 1)
    last_of_tie = np.append(ranked[1:] < ranked[:-1], True)[: len(ranked)]
    allowed = np.flatnonzero((mistakes <= fdr) & last_of_tie)
    flagged = np.zeros(len(chance), dtype=bool)
    if len(allowed):
        flagged[order[: allowed[-1] + 1]] = True
    return flagged


def benjamini_hochberg(deviation: ArrayLike, se: ArrayLike) -> NDArray[np.float64]:
    r"""Q-values of the hypotheses that an annotator leans exactly as the pool does.

    Two-sided normal p-values of :math:`\hat d_k / s_k`, adjusted by the step-up rule of Benjamini and Hochberg:
    flagging all with q at most 0.1 keeps the expected share of false flags at 10 % **if the others are all alike**.

    Parameters
    ----------
    deviation, se : array of shape (m,)

    Returns
    -------
    array of shape (m,)
        NaN where the estimate is not finite: an infinite estimate has no standard error, so look at its bound.

    Examples
    --------
    >>> benjamini_hochberg([3.0, 0.0, 2.0, np.nan], [1.0, 1.0, 1.0, 1.0]).round(4)
    array([0.0081, 1.    , 0.0683,    nan])
    """
    value, error = np.asarray(deviation, dtype=np.float64), np.asarray(se, dtype=np.float64)
    known = np.flatnonzero(np.isfinite(value) & (error > 0))
    p_value = 2 * ndtr(-np.abs(value[known] / error[known]))
    order = np.argsort(p_value)
    scaled = p_value[order] * len(known) / np.arange(1, len(known) + 1)
    q_value = np.full(len(value), np.nan)
    q_value[known[order]] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return q_value


LARGEST_DENSE = 600
FEW = 40
MOST_EXPLAINED = 0.9
NEWTON_STEPS = 50
NODES = 11
NARROWEST, WIDEST = 0.01, 0.99
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_NONE = np.zeros(0)


@dataclass(frozen=True)
class _Pool:
    """The informative votes, and the leans they inform: annotator, attribute and group of each.

    A group is what one attribute compares with one another; ``companions`` is its size, infinite where the attribute
    varies between the votes on one comparison, so that these fix its level. ``turned`` is the transposed design,
    ``squares`` has its entries squared.
    """

    model: KnownWins
    design: sparse.csr_array
    turned: sparse.csr_array
    squares: sparse.csr_array
    annotator: NDArray[np.intp]
    attribute: NDArray[np.intp]
    group: NDArray[np.intp]
    companions: NDArray[np.float64]
    won: NDArray[np.float64]


@dataclass(frozen=True)
class _Posterior:
    """Leans given the spreads: mode, mean and sd of each, and the log marginal likelihood of the spreads."""

    mode: NDArray[np.float64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    log_marginal: float


def shrink_votes(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    level: float = 0.95,
) -> tuple[Shrunk, ...]:
    r"""Posterior deviations and tau from the conditional likelihood of the votes, the leans integrated out.

    .. math:: L(\tau) = \int \prod_c P(W_c \mid |W_c|, \theta) \prod_k N(\theta_k; \mu, \tau^2) \, d\theta

    by Laplace's approximation around the penalised fit, times for every lean the ratio of its own integral to
    Laplace's, of a logistic likelihood with the same first four derivatives there. The posterior is averaged over tau
    under the density of `badpo.estimation.shrinkage.spread_posterior`. By simulation
    (`docs/results/audit_statistics.md`) the intervals keep their promise from about ten informative votes each,
    where estimates with normal errors do not.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    level : float
        Posterior probability of the interval.

    Returns
    -------
    tuple of Shrunk
        One for each attribute. Deviations are from the mean of the annotators that the votes compare; ``basis`` is
        "votes", or "prior" for an annotator without an informative vote. Of several attributes each is averaged over
        its own tau, the others' held where they are most likely. Anchors are not taken, and an attribute whose level
        the votes fix is pulled toward zero instead of its mean: use `shrink_normal` there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> lean = np.repeat([-1.0, 1.0], 10)
    >>> who = np.array([rng.permutation(20)[:4] for _ in range(300)]).ravel()
    >>> sign = np.where(rng.random(1200) < 1 / (1 + np.exp(-lean[who])), 1, -1)
    >>> found, = shrink_votes(np.repeat(np.arange(300), 4), sign, who, np.ones((1200, 1)), 20)
    >>> bool(found.shrunk[:10].max() < 0 < found.shrunk[10:].min()), bool(found.tau_low < 1 < found.tau_high)
    (True, True)
    """
    votes = np.asarray(comparison), np.asarray(annotator), np.asarray(sign, dtype=np.float64)
    differences = np.asarray(delta, dtype=np.float64)
    q = differences.shape[1]
    pool = _informative_pool(*votes, differences, n_annotators)
    scale = _scales(pool, q)
    spread = scale.copy()
    mode = np.zeros(pool.design.shape[1])
    known = np.flatnonzero(np.bincount(pool.attribute, minlength=q) > 1).tolist()
    for _ in range(1 if len(known) < 2 else 2):
        for j in known:
            spread[j], mode = _most_likely(pool, spread, mode, j, scale[j])
    return tuple(
        _shrunk_attribute(pool, spread, mode, j, scale[j], n_annotators, level)
        if j in known
        else _unknown(n_annotators)
        for j in range(q)
    )


def _informative_pool(
    comparison: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray, n_annotators: int
) -> _Pool:
    told = informative_judgments(comparison, annotator, sign, delta)
    rows = np.flatnonzero(told.any(axis=1))
    order, blocks = sorted_blocks(comparison[rows])
    rows = rows[order]
    component = annotator_components(comparison, annotator, delta * told, n_annotators)
    q = delta.shape[1]
    informed = np.flatnonzero(component.ravel() >= 0)
    number = np.full(component.size, -1)
    number[informed] = np.arange(len(informed))
    vote, attribute = np.nonzero(delta[rows] * told[rows])
    entries = delta[rows[vote], attribute], (vote, number[annotator[rows[vote]] * q + attribute])
    of = informed % q
    _, group, size = np.unique(
        np.stack([of, component.ravel()[informed]]), axis=1, return_inverse=True, return_counts=True
    )
    design = sparse.csr_array(sparse.coo_array(entries, shape=(len(rows), len(informed))))
    seen = delta[rows]
    on_one = comparison[rows][1:] == comparison[rows][:-1]
    varies = ((seen[1:] != seen[:-1]) & on_one[:, None]).any(axis=0)
    return _Pool(
        KnownWins(blocks, sign[rows]),
        design,
        sparse.csr_array(design.T),
        design.power(2),
        informed // q,
        of,
        group.ravel(),
        np.where(varies[of], np.inf, size[group.ravel()]),
        (sign[rows] > 0).astype(np.float64),
    )


def _scales(pool: _Pool, q: int) -> NDArray[np.float64]:
    """For each attribute the typical error of a lean when all lean alike."""
    at = pool.model.curvature(np.zeros(pool.design.shape[0]), _NONE)
    diagonal = (pool.turned @ (at.information @ pool.design)).diagonal()
    total, count = np.bincount(pool.attribute, diagonal, q), np.bincount(pool.attribute, minlength=q)
    return np.sqrt(np.maximum(count, 1) / np.where(total > 0, total, 1.0))


# -- given the spreads ---------------------------------------------------------------------------------------


def _given_spreads(pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64]) -> _Posterior:
    precision = 1 / spread[pool.attribute] ** 2
    mode = start
    value = _penalized(pool, mode, precision)
    for _ in range(NEWTON_STEPS):
        at = pool.model.curvature(pool.design @ mode, _NONE)
        curvature = pool.turned @ (at.information @ pool.design) + sparse.diags_array(precision)
        step = _solved(curvature, pool.turned @ at.score - precision * mode)
        moved = _penalized(pool, mode + step, precision)
        while moved < value - 1e-9 * abs(value) and np.abs(step).max() > 1e-9:
            step = step / 2
            moved = _penalized(pool, mode + step, precision)
        mode, value = mode + step, moved
        if np.abs(step).max(initial=0.0) < 1e-4 * spread.max():
            break
    variance, log_determinant = _deviation_variances(pool, curvature, precision)
    mean, sd, gained = _one_by_one(pool, mode, np.maximum(variance, 1e-12), precision, at)
    log_marginal = value + np.log(precision).sum() / 2 - log_determinant / 2 + gained
    return _Posterior(mode, mean, sd, float(log_marginal))


def _penalized(pool: _Pool, leans: NDArray[np.float64], precision: NDArray[np.float64]) -> float:
    return float(pool.model.values(pool.design @ leans, _NONE).sum() - (precision * leans**2).sum() / 2)


def _solved(curvature: sparse.csr_array, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(gradient) <= LARGEST_DENSE:
        return np.asarray(cho_solve(cho_factor(curvature.toarray()), gradient))
    return np.asarray(cg(curvature, gradient, rtol=1e-8, M=sparse.diags_array(1 / curvature.diagonal()))[0])


def _deviation_variances(
    pool: _Pool, curvature: sparse.csr_array, precision: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Variance of every lean beside the level of its group, which the votes do not fix, and the log-determinant.

    In a large pool two annotators share few comparisons. There a lean is taken with its neighbours, and they as if
    they had no others; groups of few are taken whole.
    """
    level = 1 / (precision * pool.companions)
    if curvature.shape[0] <= LARGEST_DENSE:
        variance, log_determinant = _inverse(curvature.toarray())
        return variance - level, log_determinant
    diagonal = curvature.diagonal()
    scaling = sparse.diags_array(1 / np.sqrt(diagonal))
    neighbours = np.asarray((scaling @ curvature @ scaling).power(2).sum(axis=1)).ravel() - 1
    left = 1 - np.minimum(neighbours, MOST_EXPLAINED)
    variance = 1 / (diagonal * left)
    log_determinants = np.log(diagonal) + np.log(left) / 2
    for group in np.unique(pool.group[pool.companions <= FEW]):
        members = np.flatnonzero(pool.group == group)
        block, log_determinant = _inverse(curvature[members][:, members].toarray())
        variance[members] = block - level[members]
        log_determinants[members] = log_determinant / len(members)
    return variance, float(log_determinants.sum())


def _inverse(positive: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Diagonal of the inverse of a positive definite matrix, and the matrix's log-determinant."""
    lower, _ = cho_factor(positive, lower=True)
    inverse = cho_solve((lower, True), np.eye(len(positive)))
    return np.diag(inverse).copy(), 2 * float(np.log(np.diag(lower)).sum())


def _one_by_one(
    pool: _Pool,
    mode: NDArray[np.float64],
    variance: NDArray[np.float64],
    precision: NDArray[np.float64],
    at: Curvature,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Mean and sd of every lean beyond the normal approximation, and what the marginal likelihood gains by it.

    A lean's likelihood is taken as that of logistic votes in some unit and at some odds, which has the slope and the
    curvature found at the mode, and the third and fourth derivative, those shared with co-voters included.
    """
    information = np.maximum(1 / variance - precision, 1e-9)
    third, fourth = _higher_derivatives(pool, variance, at)
    third, fourth = third / information, np.maximum(fourth / information, 0.0)
    unit = np.sqrt(np.maximum(2 * fourth + 3 * third**2, 1e-6))
    chance = (1 + third / unit) / 2
    n_votes = information / (unit**2 * chance * (1 - chance))
    odds = np.log(chance / (1 - chance))
    wins = n_votes * chance + precision * mode / unit

    def log_posterior(lean: NDArray[np.float64]) -> NDArray[np.float64]:
        x = odds[:, None] + unit[:, None] * (lean - mode[:, None])
        return wins[:, None] * x - n_votes[:, None] * np.logaddexp(0, x) - precision[:, None] * lean**2 / 2

    lean = mode[:, None] + np.sqrt(variance)[:, None] * _POINTS
    log_ratio = log_posterior(lean) - log_posterior(mode[:, None]) + _POINTS**2 / 2
    mass = np.exp(log_ratio) * _WEIGHTS / np.sqrt(2 * np.pi)
    total = mass.sum(axis=1)
    mass /= total[:, None]
    mean = (mass * lean).sum(axis=1)
    sd = np.sqrt((mass * (lean - mean[:, None]) ** 2).sum(axis=1))
    return mean, sd, float(np.log(total).sum())


def _higher_derivatives(
    pool: _Pool, variance: NDArray[np.float64], at: Curvature
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Third and fourth derivative of the log-likelihood in each lean, averaged over what its co-voters leave open.

    A vote is won or not, so its cumulants with another of the same comparison follow from the chances p and the
    covariance c: :math:`\kappa_{iik} = (1 - 2 p_i) c_{ik}` and
    :math:`\kappa_{iikk} = (1 - 2 p_i)(1 - 2 p_k) c_{ik} - 2 c_{ik}^2`.
    """
    skew = 1 - 2 * (pool.won - at.score)
    spread = pool.squares @ variance
    together = at.information
    third = -(pool.turned @ (together @ (skew * spread)))
    pairs = skew * (together @ (skew * spread)) - 2 * (together.multiply(together) @ spread)
    return third / variance, -(pool.squares.T @ pairs) / variance


# -- over the spreads ----------------------------------------------------------------------------------------


def _profile(
    pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64], j: int, scale: float
) -> Callable[[float], _Posterior]:
    """The posterior as a function of one attribute's tau / (scale + tau), which is 0 to 1."""
    mode = start

    def at(share: float) -> _Posterior:
        nonlocal mode
        spreads = spread.copy()
        spreads[j] = scale * share / (1 - share)
        found = _given_spreads(pool, spreads, mode)
        mode = found.mode
        return found

    return at


def _most_likely(
    pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64], j: int, scale: float
) -> tuple[float, NDArray[np.float64]]:
    at = _profile(pool, spread, start, j, scale)
    best = minimize_scalar(
        lambda share: -at(share).log_marginal,
        bounds=(NARROWEST, WIDEST),
        method="bounded",
        options={"xatol": 1e-2},
    )
    share = float(best.x)
    return scale * share / (1 - share), at(share).mode


def _shrunk_attribute(
    pool: _Pool,
    spread: NDArray[np.float64],
    start: NDArray[np.float64],
    j: int,
    scale: float,
    n_annotators: int,
    level: float,
) -> Shrunk:
    at = _profile(pool, spread, start, j, scale)
    top = spread[j] / (scale + spread[j])
    shares, found = _nodes(at, top)
    log_mass = np.array([one.log_marginal for one in found])
    masses = np.exp(log_mass - log_mass.max()) * np.gradient(shares) * shares / (1 - shares) ** 3
    masses /= masses.sum()
    mine = pool.attribute == j
    taus = scale * shares / (1 - shares)
    means = np.zeros((n_annotators, len(shares)))
    sds = np.tile(taus, (n_annotators, 1))
    means[pool.annotator[mine]] = np.stack([one.mean[mine] for one in found], axis=1)
    sds[pool.annotator[mine]] = np.stack([one.sd[mine] for one in found], axis=1)
    basis = np.full(n_annotators, "prior", dtype=object)
    basis[pool.annotator[mine]] = "votes"
    tau, low, high = _tau_with_interval(shares, log_mass, scale)
    value, error = np.zeros(n_annotators), np.ones(n_annotators)
    told = basis == "votes"
    value[pool.annotator[mine]], error[pool.annotator[mine]] = _as_estimates(
        found[int(log_mass.argmax())], taus[int(log_mass.argmax())], mine
    )
    posterior = Mixture(means, sds, np.broadcast_to(masses, means.shape))
    other = free_posterior(value, error, told)
    return summarize_posterior(posterior, other, basis, (tau, low, high), error[told], level)


def _as_estimates(
    found: _Posterior, tau: float, mine: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The normal observations that would have moved N(0, tau^2) to these posteriors."""
    precision = np.maximum(1 / found.sd[mine] ** 2 - 1 / tau**2, 1e-6 / tau**2)
    return found.mean[mine] / found.sd[mine] ** 2 / precision, 1 / np.sqrt(precision)


def _nodes(at: Callable[[float], _Posterior], top: float) -> tuple[NDArray[np.float64], list[_Posterior]]:
    """Shares around the most likely one, out to where little of the posterior is left or the range ends."""
    highest = at(top).log_marginal
    ends: list[float] = []
    for limit in (NARROWEST, WIDEST):
        reach = 0.05 * abs(limit - top)
        while (
            reach < abs(limit - top) and at(top + np.sign(limit - top) * reach).log_marginal > highest - 4.5
        ):
            reach *= 1.7
        ends.append(float(top + np.sign(limit - top) * min(reach, abs(limit - top))))
    shares = np.unique(np.append(np.linspace(ends[0], ends[1], NODES), top))
    return shares, [at(share) for share in shares]


def _tau_with_interval(
    shares: NDArray[np.float64], log_marginal: NDArray[np.float64], scale: float
) -> tuple[float, float, float]:
    """Tau where the curve through the nodes is highest, and the ends of where it is within 1.92 of that."""
    fine = np.linspace(shares[0], shares[-1], 2001)
    curve = np.interp(fine, shares, log_marginal)
    if len(shares) > 3:
        from scipy.interpolate import PchipInterpolator  # slow to import, seldom needed

        curve = PchipInterpolator(shares, log_marginal)(fine)
    taus = scale * fine / (1 - fine)
    inside = np.flatnonzero(curve >= curve.max() - DROP)
    tau = float(taus[curve.argmax()])
    low = 0.0 if fine[inside[0]] <= NARROWEST + 1e-6 else float(taus[inside[0]])
    high = np.inf if fine[inside[-1]] >= WIDEST - 1e-6 else float(taus[inside[-1]])
    return tau, low, high


def _unknown(n_annotators: int) -> Shrunk:
    """Nothing is known where fewer than two annotators have an informative vote."""
    nothing = np.full((n_annotators, 1), np.nan)
    basis = np.full(n_annotators, "prior", dtype=object)
    posterior = Mixture(nothing, nothing, np.ones((n_annotators, 1)))
    return summarize_posterior(posterior, None, basis, (np.nan, 0.0, np.inf), np.zeros(0), 0.95)
