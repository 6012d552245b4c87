"""An annotator's repeated votes on one comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class SelfContradictions:
    """How often people who judged a comparison again disagreed with themselves.

    Attributes
    ----------
    n_repeated : int array of shape (n_annotators,)
        Comparisons that the annotator judged more than once.
    n_contradicted : int array of shape (n_annotators,)
        Those on which they voted for both sides.
    """

    n_repeated: NDArray[np.int64]
    n_contradicted: NDArray[np.int64]

    @property
    def share(self) -> float:
        """Contradicted of all repeated pairs of annotator and comparison; NaN when nobody judged anything again."""
        repeated = int(self.n_repeated.sum())
        return int(self.n_contradicted.sum()) / repeated if repeated else float("nan")


def first_votes(comparison: ArrayLike, annotator: ArrayLike) -> NDArray[np.bool_]:
    """The earliest vote of each annotator on each comparison.

    Two votes of one person are not two people, so whatever compares a vote with those of others uses one of them.

    Parameters
    ----------
    comparison, annotator : array of shape (n_votes,)
        Labels, in the order of the votes.

    Returns
    -------
    bool array of shape (n_votes,)

    Examples
    --------
    >>> first_votes([0, 0, 0, 1], [5, 6, 5, 5])
    array([ True,  True, False,  True])
    """
    pairs = _pairs(comparison, annotator)
    mask = np.zeros(len(pairs), dtype=bool)
    mask[np.unique(pairs, return_index=True)[1]] = True
    return mask


def self_contradictions(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> SelfContradictions:
    """Annotators who judged a comparison more than once, and whether they chose the same side again.

    Parameters
    ----------
    comparison, sign : array of shape (n_votes,)
    annotator : int array of shape (n_votes,)
        Below ``n_annotators``.
    n_annotators : int

    Examples
    --------
    Annotator 0 judged comparison 0 twice and changed sides:

    >>> found = self_contradictions([0, 0, 0, 1], [1, -1, 1, 1], [0, 0, 1, 1], 2)
    >>> found.n_repeated.tolist(), found.n_contradicted.tolist(), found.share
    ([1, 0], [1, 0], 1.0)
    """
    people, signs = np.asarray(annotator), np.asarray(sign)
    _, first, pair, size = np.unique(
        _pairs(comparison, people), return_index=True, return_inverse=True, return_counts=True
    )
    n_for_a = np.bincount(pair, weights=signs > 0, minlength=len(size))
    both = (n_for_a > 0) & (n_for_a < size)
    repeated, contradicted = (
        np.bincount(people[first[pairs]], minlength=n_annotators).astype(np.int64)
        for pairs in (size > 1, both)
    )
    return SelfContradictions(repeated, contradicted)


def _pairs(comparison: ArrayLike, annotator: ArrayLike) -> NDArray[np.int64]:
    """One number for each pair of comparison and annotator."""
    comparisons = np.unique(np.asarray(comparison), return_inverse=True)[1].reshape(-1)
    distinct, people = np.unique(np.asarray(annotator), return_inverse=True)
    return comparisons.astype(np.int64) * max(len(distinct), 1) + people.reshape(-1)
