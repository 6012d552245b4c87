r"""The spread tau of true leans over annotators, from estimates with known errors: the restricted likelihood.

.. math:: \hat d_k \sim N(\mu, \tau^2 + s_k^2), \qquad \mu \text{ integrated out under a flat prior}
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import chdtri

DROP = float(chdtri(1, 0.05)) / 2
NODES = 31
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
    shares = low + (high - low) * (np.arange(NODES) + 0.5) / NODES
    taus = scale * shares / (1 - shares)
    log_mass = np.array([log_likelihood(tau) for tau in taus])
    # evenly spaced in share = tau / (scale + tau), in which a flat density of tau^2 is share / (1 - share)^3
    mass = np.exp(log_mass - log_mass.max()) * shares / (1 - shares) ** 3
    return taus, mass / mass.sum()
