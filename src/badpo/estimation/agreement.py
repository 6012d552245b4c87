r"""How far annotators agree with each other: reliability, which is another thing than a lean.

Which response is called a is an accident of the export, so the pool's figures do not depend on it: every comparison
counts in both orientations. Chance then gives each side half of the votes. Of an annotator's repeated votes on one
comparison the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.estimation.repeats import first_votes
from badpo.theory.summaries import cluster_mean, wilson_ends

# A standard error of a share below this is rounding of no spread at all.
_NO_SPREAD = 1e-9


@dataclass(frozen=True)
class PoolAgreement:
    """Agreement of a pool.

    Attributes
    ----------
    n_comparisons : int
        Comparisons with two annotators or more.
    n_votes : int
        Votes on them.
    percent : float
        Mean over these votes of the share of co-voters who chose the same side, 0 to 1.
    low, high : float
        Its 95 % interval, clustered. Where all clusters have the very same share there is no spread to take it from;
        then it is Wilson's with clusters as trials.
    kappa : float
        Cohen-type: ``(percent - 1/2) / (1 - 1/2)``, since without an orientation every annotator gives each side half
        of the votes. 0 is chance, 1 is full agreement.
    alpha : float
        Krippendorff's, which also corrects for the finite number of votes.
    """

    n_comparisons: int
    n_votes: int
    percent: float
    low: float
    high: float
    kappa: float
    alpha: float


@dataclass(frozen=True)
class AnnotatorAgreement:
    """Agreement of each annotator with those who judged the same comparisons.

    Attributes
    ----------
    n_shared : int array of shape (n_annotators,)
        Comparisons that someone else judged too.
    agreement : float array of shape (n_annotators,)
        Mean over these of the share of co-voters who chose the same side; NaN without any.
    low, high : float array of shape (n_annotators,)
        Wilson's 95 % interval with comparisons as trials. A share of several co-voters varies less than a trial, so
        it is wide rather than narrow.
    """

    n_shared: NDArray[np.int64]
    agreement: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def pool_agreement(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, clusters: ArrayLike | None = None
) -> PoolAgreement:
    r"""Percent agreement and its chance-corrected forms.

    .. math:: A = \text{mean over votes of } \frac{\#\{\text{co-voters on the same side}\}}{n_c - 1}, \qquad
        \kappa = 2A - 1, \qquad \alpha = 1 - \frac{1 - A}{N / (2N - 1)}

    with N votes on comparisons that two or more annotators judged.

    Parameters
    ----------
    comparison, sign, annotator : array of shape (n_votes,)
    clusters : array of shape (n_votes,), or None
        What the interval is clustered by, such as prompts; None: comparisons.

    Returns
    -------
    PoolAgreement
        NaN where no comparison has two annotators.

    Examples
    --------
    Two of three agree on the first comparison, both on the second:

    >>> found = pool_agreement([0, 0, 0, 1, 1], [1, 1, -1, 1, 1], [0, 1, 2, 0, 1])
    >>> found.n_votes, round(found.percent, 3), round(found.kappa, 3), round(found.alpha, 3)
    (5, 0.6, 0.2, 0.28)
    """
    votes, share = _shares(comparison, sign, annotator)
    labels = np.asarray(comparison if clusters is None else clusters)[votes]
    n = len(votes)
    if not n:
        return PoolAgreement(0, 0, *[np.nan] * 5)
    interval = cluster_mean(share, labels)
    percent = float(share.mean())
    low, high = (
        wilson_ends(np.array(percent), np.array(interval.n))
        if interval.se < _NO_SPREAD
        else (max(interval.low, 0.0), min(interval.high, 1.0))
    )
    return PoolAgreement(
        n_comparisons=len(np.unique(np.asarray(comparison)[votes])),
        n_votes=n,
        percent=percent,
        low=float(low),
        high=float(high),
        kappa=2 * percent - 1,
        alpha=1 - (1 - percent) * (2 * n - 1) / n,
    )


def annotator_agreement(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> AnnotatorAgreement:
    """How often each annotator sides with their co-voters.

    A lean lowers it a little on comparisons whose sides differ. To keep the two wholly apart give only the votes
    without such a difference.

    Parameters
    ----------
    comparison, sign : array of shape (n_votes,)
    annotator : int array of shape (n_votes,)
        Below ``n_annotators``.
    n_annotators : int

    Examples
    --------
    >>> found = annotator_agreement([0, 0, 0, 1], [1, 1, -1, 1], [0, 1, 2, 0], 3)
    >>> found.agreement, found.n_shared
    (array([0.5, 0.5, 0. ]), array([1, 1, 1]))
    """
    votes, share = _shares(comparison, sign, annotator)
    people = np.asarray(annotator)[votes]
    n = np.bincount(people, minlength=n_annotators).astype(np.int64)
    total = np.bincount(people, weights=share, minlength=n_annotators)
    with np.errstate(invalid="ignore"):
        return AnnotatorAgreement(n, total / n, *wilson_ends(total / n, n))


def _shares(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Votes that have a co-voter, and the share of the co-voters who chose the same side."""
    comparisons, signs = np.asarray(comparison), np.asarray(sign)
    votes = np.flatnonzero(first_votes(comparisons, annotator))
    codes = np.unique(comparisons[votes], return_inverse=True)[1].reshape(-1)
    chose_a = signs[votes] > 0
    size, n_a = np.bincount(codes)[codes], np.bincount(codes, weights=chose_a)[codes]
    shared = size > 1
    same = np.where(chose_a, n_a, size - n_a)[shared]
    return votes[shared], (same - 1) / (size[shared] - 1)
