"""The annotators' leans beside a policy's margins: what an anchor must not change about the audit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from badpo.data.judgments import Judgments

STEPS, LARGEST = 50, 20.0


def leans_beside(margins: ArrayLike, judgments: Judgments) -> NDArray[np.float64]:
    r"""Maximum-likelihood lean of every annotator with the quality given by a policy's margins at scale 1.

    .. math:: P(s_j = +1) = \sigma\bigl(u_{c_j} + \theta_{k_j}^\top d_j\bigr)
    """
    votes = judgments.votes
    quality = np.asarray(margins, dtype=np.float64)[votes["comparison"].to_numpy()]
    sign, who = votes["sign"].to_numpy(dtype=np.float64), votes["annotator"].to_numpy()
    leans = np.full((judgments.n_annotators, judgments.n_attributes), np.nan)
    for k in np.unique(who[who >= 0]):
        rows = who == k
        leans[k] = _maximum(quality[rows], judgments.delta[rows], sign[rows])
    return leans


def deviation_change(before: ArrayLike, after: ArrayLike) -> NDArray[np.float64]:
    """Largest change of an annotator's deviation from the pool mean, by attribute."""
    one, other = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    known = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    if not known.any():
        return np.full(one.shape[1], np.nan)
    centred = [side[known] - side[known].mean(axis=0) for side in (one, other)]
    return np.abs(centred[1] - centred[0]).max(axis=0)


def _maximum(quality: NDArray, delta: NDArray, sign: NDArray) -> NDArray[np.float64]:
    """Newton's method with halving steps on a concave likelihood."""
    theta = np.zeros(delta.shape[1])
    nothing = np.full(delta.shape[1], np.nan)

    def likelihood(at: NDArray) -> float:
        return float(-np.logaddexp(0.0, -sign * (quality + delta @ at)).sum())

    for _ in range(STEPS):
        chance = expit(quality + delta @ theta)
        gradient = delta.T @ ((sign > 0) - chance)
        information = delta.T @ (delta * (chance * (1 - chance))[:, None])
        if np.linalg.matrix_rank(information) < len(theta):
            return nothing
        step, here = np.linalg.solve(information, gradient), likelihood(theta)
        while likelihood(theta + step) < here - 1e-12 and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta + step
        if np.abs(theta).max() > LARGEST:
            return nothing
        if np.abs(step).max() < 1e-11:
            break
    return theta
