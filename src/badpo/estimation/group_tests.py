"""Do annotators differ at all, and do their classes: tests under the conditional likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import chdtrc, fdtrc, stdtrit

from badpo.estimation.comparison_blocks import sorted_blocks
from badpo.estimation.conditional import fit_conditional
from badpo.estimation.known_wins import KnownWins
from badpo.estimation.leans import Leans

# Below it a variance is zero but for rounding.
LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class LeanTest:
    """A test of one attribute.

    Attributes
    ----------
    statistic, df : float
        Expected to be about ``df`` where nothing differs. NaN where there is nothing to test.
    p_value : float
    """

    statistic: float
    df: float
    p_value: float


@dataclass(frozen=True)
class ClassOffsets:
    r"""Mean leans of the classes of annotators, relative to all annotators with a class.

    Attributes
    ----------
    offset, se, ci_low, ci_high : array of shape (n_classes, n_attributes)
        Lean of the class minus the mean over annotators; NaN for a class whose votes say nothing, and the last three
        where the annotators cannot tell how far it may be off.
    n : int array of shape (n_classes, n_attributes)
        Annotators of the class with an informative vote.
    tests : tuple of LeanTest
        For each attribute, that classes do not differ.
    """

    offset: NDArray[np.float64]
    se: NDArray[np.float64]
    ci_low: NDArray[np.float64]
    ci_high: NDArray[np.float64]
    n: NDArray[np.intp]
    tests: tuple[LeanTest, ...]


def equal_leans_test(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, delta: ArrayLike, leans: Leans
) -> tuple[LeanTest, ...]:
    r"""For each attribute, the test that one lean shared by all annotators suffices.

    Under a shared lean the conditional likelihood does not depend on it (for an attribute of the responses), and the
    score of annotator k, :math:`S_k = \sum_j d_j (y_j - p_j)`, has mean 0 and covariance V. What is tested is
    :math:`\sum_k S_k^2`, the score in the variance of leans, against :math:`c \chi^2_\nu` with its mean tr V and its
    variance 2 tr V^2. It keeps its level with few votes per annotator, where a likelihood ratio with one parameter
    each does not.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    leans : Leans
        By the conditional likelihood; while one attribute is tested, the leans toward the others are taken from here.
        An attribute that varies between the votes on one comparison is tested at its estimated level.

    Returns
    -------
    tuple of LeanTest

    Examples
    --------
    Annotator 0 always votes against annotator 1 on the side with more:

    >>> from badpo.estimation.conditional import fit_conditional
    >>> votes = (np.repeat(np.arange(40), 2), np.tile([1, -1], 40), np.tile([0, 1], 40), np.ones((80, 1)))
    >>> [test] = equal_leans_test(*votes, fit_conditional(*votes, 2))
    >>> test.p_value < 1e-6
    True
    """
    c, k = np.asarray(comparison), np.asarray(annotator)
    s, d = np.asarray(sign, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    order, blocks = sorted_blocks(c)
    s, k, d = s[order], k[order], d[order]
    model = KnownWins(blocks, s)
    theta = np.where(np.isfinite(leans.deviation), leans.deviation, 0.0)
    tests = []
    for j in range(d.shape[1]):
        shared = theta.copy()
        shared[:, j] = leans.level[j] if leans.absolute[j] else 0.0
        at = model.curvature((shared[k] * d).sum(axis=1), model.start)
        mine = sparse.csr_array((d[:, j], (np.arange(len(k)), k)), shape=(len(k), len(theta)))
        scores, variance = mine.T @ at.score, sparse.csr_array(mine.T @ (at.information @ mine))
        mean, spread = float(variance.diagonal().sum()), float((variance.data**2).sum())
        if mean <= 0:
            tests.append(LeanTest(np.nan, np.nan, np.nan))
            continue
        statistic, df = float((scores**2).sum()) * mean / spread, mean**2 / spread
        tests.append(LeanTest(statistic, df, float(chdtrc(df, statistic))))
    return tuple(tests)


def class_offsets(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    annotator_class: ArrayLike,
) -> ClassOffsets:
    r"""Mean lean of every class of annotators by the conditional likelihood, one lean per class and attribute.

    Annotators of a class differ, and vote more than once; the covariance is therefore clustered by annotator and by
    comparison (both sums of score products, less that of single votes), with as many degrees of freedom as there are
    annotators beyond the classes. All votes count, also those of annotators who
    have too few for an estimate of their own.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    annotator_class : int array of shape (n_annotators,)
        Class of each annotator from 0, or -1 for none; votes of those without a class are left out.

    Returns
    -------
    ClassOffsets

    Examples
    --------
    >>> votes = (np.repeat(np.arange(30), 2), np.tile([1, -1, -1, 1, 1, -1], 10), np.tile([0, 1], 30), np.ones((60, 1)))
    >>> found = class_offsets(*votes, [0, 1])
    >>> found.offset.ravel().round(3)
    array([ 0.347, -0.347])
    """
    k, of = np.asarray(annotator), np.asarray(annotator_class, dtype=np.intp)
    kept = np.flatnonzero(of[k] >= 0) if len(of) else np.zeros(0, dtype=np.intp)
    c, s = np.asarray(comparison)[kept], np.asarray(sign, dtype=np.float64)[kept]
    d, k = np.asarray(delta, dtype=np.float64)[kept], k[kept]
    n_classes, q = int(of.max(initial=-1)) + 1, d.shape[1]
    leans = fit_conditional(c, s, of[k], d, n_classes, min_informative=1)
    n = _informed(c, s, k, d, of, n_classes)
    usable = np.isin(leans.status, ("ok", "insufficient"))
    weight = np.where(usable, n, 0).astype(np.float64)
    center = np.zeros((q, n_classes, n_classes))
    for j in range(q):
        center[j] = np.eye(n_classes) - weight[:, j] / max(weight[:, j].sum(), 1.0)
    covariance = _clustered(c, s, k, d, of, leans, usable)
    offset, se = np.full((n_classes, q), np.nan), np.full((n_classes, q), np.nan)
    reach = np.full(q, np.nan)
    tests = []
    for j in range(q):
        rows = np.flatnonzero(usable[:, j])
        contrast = center[j][np.ix_(rows, rows)]
        block = covariance[np.ix_(rows * q + j, rows * q + j)]
        offset[rows, j] = contrast @ leans.deviation[rows, j]
        among = contrast @ block @ contrast.T
        variance = np.diag(among)
        # clusters whose scores cancel leave nothing to tell the error from
        se[rows, j] = np.sqrt(np.where(variance > LEAST_VARIANCE, variance, np.nan))
        residual = int(n[rows, j].sum()) - len(rows)
        reach[j] = stdtrit(residual, 0.975) if residual > 0 else np.nan
        is_known = residual > 0 and bool(np.isfinite(se[rows, j]).all())
        tests.append(_no_difference(offset[rows, j], among, residual if is_known else 0))
    return ClassOffsets(offset, se, offset - reach * se, offset + reach * se, n, tuple(tests))


def _informed(c, s, k, d, of, n_classes: int) -> NDArray[np.intp]:
    """Annotators of every class with a vote on a contested comparison where the attribute differs."""
    _, group = np.unique(c, return_inverse=True)
    share = np.bincount(group, s > 0) / np.maximum(np.bincount(group), 1) if len(c) else np.zeros(0)
    contested = (share[group] > 0) & (share[group] < 1)
    counts = np.zeros((n_classes, d.shape[1]), dtype=np.intp)
    for j in range(d.shape[1]):
        people = np.unique(k[contested & (d[:, j] != 0)])
        counts[:, j] = np.bincount(of[people], minlength=n_classes)
    return counts


def _clustered(c, s, k, d, of, leans: Leans, usable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Covariance of the class leans from vote scores, clustered by annotator and by comparison."""
    n_classes, q = usable.shape
    order, blocks = sorted_blocks(c)
    s, k, d = s[order], k[order], d[order] * usable[of[k[order]]]
    theta = np.where(usable, leans.deviation, 0.0)
    model = KnownWins(blocks, s)
    at = model.curvature((theta[of[k]] * d).sum(axis=1), model.start)
    columns = of[k][:, None] * q + np.arange(q)
    rows = np.repeat(np.arange(len(k)), q)
    design = sparse.csr_array((d.ravel(), (rows, columns.ravel())), shape=(len(k), n_classes * q))
    scores = sparse.csr_array(sparse.diags_array(at.score) @ design)
    meat = -(scores.T @ scores).toarray()
    for cluster in (k, blocks.comparison):
        sums = sparse.csr_array((np.ones(len(k)), (cluster, np.arange(len(k))))) @ scores
        meat += (sums.T @ sums).toarray()
    bread = np.linalg.pinv((design.T @ (at.information @ design)).toarray(), rcond=1e-10, hermitian=True)
    return bread @ meat @ bread


def _no_difference(offset: NDArray[np.float64], covariance: NDArray[np.float64], residual: int) -> LeanTest:
    """Wald's test with an F distribution: there are only so many annotators to learn the covariance from."""
    df = len(offset) - 1
    if df < 1 or residual < 1:
        return LeanTest(np.nan, np.nan, np.nan)
    statistic = float(offset @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ offset)
    return LeanTest(statistic, df, float(fdtrc(df, residual, statistic / df)))
