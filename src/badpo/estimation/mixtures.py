"""Mixtures of normals, one per annotator: the form in which every posterior of a lean is held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

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
