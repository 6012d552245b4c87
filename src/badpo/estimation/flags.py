r"""Which deviations to point at: those that are probably large, with the share of mistakes held down.

In a real pool everybody differs a little, so a test of "exactly equal" flags everyone once there are enough votes.
The default therefore asks for the posterior probability that a deviation exceeds a size that matters; testing
equality stays available for pools in which all others may truly be alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from badpo.estimation.mixtures import Mixture, mixture_cdf
from badpo.estimation.shrinkage import Shrunk


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
