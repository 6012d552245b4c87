r"""The spectral meta-learner: reliabilities of annotators, and labels of comparisons, from agreement alone.

With votes that are independent given a true side, two annotators' mean product of votes is the product of what each is
worth, :math:`E[s_i s_j] = v_i v_j` with :math:`v = 2 \cdot \text{accuracy} - 1`: off its diagonal the matrix of
agreements has rank one. Which response is called a is an accident of the export; every comparison counts in both
orientations, so that the votes' means are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.estimation.repeats import first_votes

ROUNDS = 500
TOLERANCE = 1e-10


@dataclass(frozen=True)
class SpectralLabels:
    """What the spectral meta-learner finds.

    Attributes
    ----------
    reliability : array of shape (n_annotators,)
        v of each annotator, -1 to 1: 2 x accuracy - 1 against the side that the labels take for the true one. NaN for
        an annotator who shares no comparison with another.
    label : int array of shape (n_comparisons,)
        +1 (a) or -1 (b): the sign of the votes summed with these weights. 0 where they cancel, or where there is no
        vote.
    cells : float
        Share of the pairs of annotators who judged a common comparison; the matrix is known at these only.
    """

    reliability: NDArray[np.float64]
    label: NDArray[np.int64]
    cells: float


def spectral_labels(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_comparisons: int, n_annotators: int
) -> SpectralLabels:
    r"""Reliabilities from the rank-one form of the agreements, and the labels that they give.

    .. math:: \min_v \sum_{i \neq j} n_{ij} (Q_{ij} - v_i v_j)^2, \qquad
        y_c = \operatorname{sign} \sum_{j \in c} v_{k_j} s_j

    with Q the mean product of two annotators' votes on their n common comparisons. Pairs without one have no weight,
    where the original assumes that everyone judged everything. The sign of v is open: most of the votes' weight is
    taken to be better than chance. An annotator whose v is not known votes with the mean v of the others. Of repeated
    votes on one comparison the first counts.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
    n_comparisons, n_annotators : int

    Returns
    -------
    SpectralLabels
        With no common comparison at all every reliability is NaN, and the labels are those of the majority.

    References
    ----------
    Parisi et al. (2014), Ranking and combining multiple predictors without labeled data, as used by Chhan et al.
    (2024), Crowd-PrefRL.

    Examples
    --------
    Two who always agree outweigh a third who mostly contradicts them:

    >>> comparison, annotator = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
    >>> sign = [1, 1, -1, 1, 1, -1, -1, -1, 1, 1, 1, 1]
    >>> found = spectral_labels(comparison, sign, annotator, 4, 3)
    >>> found.label, found.reliability.round(2), found.cells
    (array([ 1,  1, -1,  1]), array([ 1. ,  1. , -0.5]), 1.0)
    """
    comparison, annotator = np.asarray(comparison), np.asarray(annotator)
    kept = first_votes(comparison, annotator)
    votes = np.asarray(sign, dtype=np.float64)[kept]
    comparison, annotator = comparison[kept], annotator[kept]
    products, counts = agreements(comparison, votes, annotator, n_annotators)
    known = counts.sum(axis=1) > 0
    reliability = np.full(n_annotators, np.nan)
    if known.any():
        reliability[known] = _rank_one(products[np.ix_(known, known)], counts[np.ix_(known, known)])
        if (reliability[annotator][known[annotator]]).sum() < 0:
            reliability = -reliability
    weights = np.where(known, reliability, np.mean(reliability[known]) if known.any() else 1.0)
    total = np.bincount(comparison, weights=weights[annotator] * votes, minlength=n_comparisons)
    n_pairs = n_annotators * (n_annotators - 1)
    cells = float((counts > 0).sum() / n_pairs) if n_pairs else 0.0
    # reliabilities are known to TOLERANCE: a sum below their errors leaves the label open
    return SpectralLabels(reliability, np.sign(total.round(8)).astype(np.int64), cells)


def agreements(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of products of two annotators' votes over their common comparisons, and how many there are.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
        No annotator twice on one comparison.
    n_annotators : int

    Returns
    -------
    products, counts : arrays of shape (n_annotators, n_annotators)
        Symmetric, with a diagonal of zeros.

    Examples
    --------
    >>> products, counts = agreements([0, 0, 1, 1], [1, 1, 1, -1], [0, 1, 0, 1], 2)
    >>> counts
    array([[0., 2.],
           [2., 0.]])
    """
    order = np.argsort(np.asarray(comparison), kind="stable")
    place, votes = np.asarray(comparison)[order], np.asarray(sign, dtype=np.float64)[order]
    people = np.asarray(annotator)[order]
    products, counts = np.zeros((2, n_annotators, n_annotators))
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(place) else np.zeros(0, dtype=int)
    for first, stop in zip(starts, np.r_[starts[1:], len(place)], strict=True):
        inside = np.ix_(people[first:stop], people[first:stop])
        products[inside] += np.outer(votes[first:stop], votes[first:stop])
        counts[inside] += 1.0
    np.fill_diagonal(products, 0.0)
    np.fill_diagonal(counts, 0.0)
    return products, counts


def _rank_one(products: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The v of the weighted rank-one fit, one coordinate at a time from the leading eigenvector."""
    means = np.divide(products, counts, out=np.zeros_like(products), where=counts > 0)
    values, vectors = np.linalg.eigh(means)
    v = vectors[:, -1] * np.sqrt(max(values[-1], TOLERANCE))
    for _ in range(ROUNDS):
        before = v.copy()
        for i in range(len(v)):
            information = counts[i] @ v**2
            v[i] = np.clip(products[i] @ v / information, -1.0, 1.0) if information > TOLERANCE else 0.0
        if np.abs(v - before).max() < TOLERANCE:
            break
    return v
