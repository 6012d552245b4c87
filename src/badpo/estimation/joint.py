"""Leans by the paper's estimator: one free quality per comparison, estimated along. Kept for comparison only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.lean_fit import fit_leans
from badpo.estimation.leans import Leans
from badpo.estimation.maximizing import Curvature
from badpo.theory.identifiability import informative_judgments

PROFILE_STEPS = 100


class FreeQuality:
    """Votes with a quality of its own for every comparison, at its most likely value.

    A unanimous comparison is explained fully by an infinite quality: it has log-likelihood 0 whatever the leans.

    Parameters
    ----------
    blocks : ComparisonBlocks
    sign : array of shape (n_votes,)
    """

    def __init__(self, blocks: ComparisonBlocks, sign: NDArray[np.float64]) -> None:
        self._blocks, self._sign, self._won = blocks, sign, (sign > 0).astype(np.float64)
        self._wins = blocks.sums(self._won)
        self._contested = (self._wins > 0) & (self._wins < blocks.sizes)
        self.start = np.zeros(0)

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Nothing to place."""

    def _quality(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """The quality at which a comparison's expected wins equal its wins; Newton between two bounds."""
        blocks = self._blocks
        if not len(blocks.starts):
            return np.zeros(0)
        share = np.where(self._contested, self._wins / blocks.sizes, 0.5)
        low = logit(share) - np.maximum.reduceat(logits, blocks.starts)
        high = logit(share) - np.minimum.reduceat(logits, blocks.starts)
        quality = (low + high) / 2
        wanted = np.where(self._contested, self._wins, np.nan)
        for _ in range(PROFILE_STEPS):
            chance = expit(quality[blocks.comparison] + logits)
            missing = wanted - blocks.sums(chance)
            low, high = np.where(missing > 0, quality, low), np.where(missing < 0, quality, high)
            step = missing / np.maximum(blocks.sums(chance * (1 - chance)), 1e-300)
            moved = quality + step
            moved = np.where((moved >= low) & (moved <= high), moved, (low + high) / 2)
            if np.nanmax(np.abs(moved - quality), initial=0.0) < 1e-13:
                break
            quality = moved
        return np.where(self._contested, quality, 0.0)

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        full = self._quality(logits)[self._blocks.comparison] + logits
        found = self._blocks.sums(-np.logaddexp(0.0, -self._sign * full))
        return np.where(self._contested, found, 0.0)

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of the values; the quality follows the logits (a Schur complement per comparison)."""
        contested = self._contested[self._blocks.comparison]
        chance = expit(self._quality(logits)[self._blocks.comparison] + logits)
        weight = np.where(contested, chance * (1 - chance), 0.0)
        total = np.maximum(self._blocks.sums(weight), 1e-300)
        entries = np.empty(self._blocks.n_pairs)
        for votes, block in zip(self._blocks.stacks, self._blocks.squares(entries), strict=True):
            w = weight[votes]
            block[:] = (
                -w[:, :, None] * w[:, None, :] / total[self._blocks.comparison[votes[:, 0]], None, None]
            )
            diagonal = np.arange(votes.shape[1])
            block[:, diagonal, diagonal] += w
        return Curvature(
            np.where(contested, self._won - chance, 0.0),
            self._blocks.matrix(entries),
            np.zeros(0),
            np.zeros((len(logits), 0)),
            np.zeros((0, 0)),
        )


def fit_joint(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
) -> Leans:
    r"""Leans by joint maximum likelihood with a free quality per comparison: **deviations come out too large**.

    .. math:: \max_{\theta, u} \sum_j \log \sigma\big(s_j (u_{c_j} + \theta_{k_j} \cdot d_j)\big)

    With T votes on a comparison its quality is fitted to these very votes, and deviations are inflated by about
    T / (T - 1): twofold at two votes, 1.33 at four, 1.14 at eight, a few percent more where the votes per annotator
    are few. More comparisons do not help, the intervals do not know of it, and more is found than is there. The
    estimator is here because it is the one the paper's theorem speaks of. The
    conditional likelihood (`badpo.estimation.conditional.fit_conditional`) is the cure.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    anchored : bool array of shape (n_annotators,), or None
        Annotators whose lean is zero by declaration.
    min_informative : int
        With fewer informative votes the status is "insufficient".

    Returns
    -------
    Leans

    References
    ----------
    BA-DPO, Theorem `thm:identif`; Neyman and Scott (1948) for the inflation.

    Examples
    --------
    Two annotators and two votes on each comparison: twice the conditional estimate log(3), in the difference.

    >>> votes = dict(comparison=np.repeat(np.arange(4), 2), annotator=np.tile([0, 1], 4), n_annotators=2)
    >>> sign = [1, -1, 1, -1, 1, -1, -1, 1]
    >>> leans = fit_joint(**votes, sign=sign, delta=np.ones((8, 1)))
    >>> round(float((leans.deviation[0, 0] - leans.deviation[1, 0]) / np.log(3)), 6)
    2.0
    """

    def model(blocks: ComparisonBlocks, votes: NDArray[np.intp]) -> FreeQuality:
        return FreeQuality(blocks, np.asarray(sign, dtype=np.float64)[votes])

    return fit_leans(
        "joint",
        model,
        informative_judgments,
        (comparison, sign, annotator, delta, n_annotators),
        anchored=anchored,
        min_informative=min_informative,
    )
