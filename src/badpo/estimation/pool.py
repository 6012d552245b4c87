"""Several attributes at once: which of them say the same, what each is worth beside the others, and swap pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from badpo.estimation.clusters import cluster_errors
from badpo.estimation.logit import fit_logit
from badpo.theory.summaries import Interval

# Eigenvalue of the matrix of cosines below which a mix of attributes is the same everywhere.
_SAME = 1e-10


def carrier_sides(delta: ArrayLike, cross: ArrayLike) -> NDArray[np.float64]:
    """Which side of each judgment carries more of each attribute.

    Parameters
    ----------
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    cross : bool array of shape (n_votes, n_attributes)
        Cross-group judgments.

    Returns
    -------
    array of shape (n_votes, n_attributes)
        +1: a, -1: b, 0: same-group. A continuous attribute counts by its sign, so that every log-odds of the pool
        level is that of its side winning.

    Examples
    --------
    >>> carrier_sides([[0.7], [-3.0], [0.1]], [[True], [True], [False]]).ravel()
    array([ 1., -1.,  0.])
    """
    return np.sign(np.asarray(delta, dtype=np.float64)) * np.asarray(cross, dtype=bool)


def co_occurrence(side: ArrayLike) -> NDArray[np.float64]:
    """How often the side that carries one attribute carries another too.

    Parameters
    ----------
    side : array of shape (n_votes, n_attributes)
        As `carrier_sides` gives them.

    Returns
    -------
    array of shape (n_attributes, n_attributes)
        Entry (i, j): share of attribute i's cross-group judgments in which the same side has more of attribute j.
        NaN where i has none.

    Examples
    --------
    Every longer text has Markdown; every other Markdown text is longer:

    >>> co_occurrence([[1, 1], [0, 1], [-1, -1], [0, -1]]).tolist()
    [[1.0, 1.0], [0.5, 1.0]]
    """
    side = np.asarray(side, dtype=np.float64)
    a, b = (side > 0).astype(np.float64), (side < 0).astype(np.float64)
    together, alone = a.T @ a + b.T @ b, np.abs(side).sum(axis=0)[:, None]
    return np.divide(together, alone, out=np.full(together.shape, np.nan), where=alone > 0)


@dataclass(frozen=True)
class Collinearity:
    """Which columns say the same.

    Attributes
    ----------
    dependent : bool array of shape (n_columns, n_columns)
        Entry (i, j), i other than j: columns i and j stand together in an exact linear dependence.
    variance_inflation : array of shape (n_columns,)
        Factor by which the other columns widen the variance of a column's coefficient: 1 / (1 - R^2), about zero
        since there is no intercept. Infinite in an exact dependence, NaN for a column of zeros.
    """

    dependent: NDArray[np.bool_]
    variance_inflation: NDArray[np.float64]

    @property
    def estimable(self) -> NDArray[np.bool_]:
        """Columns whose coefficient is one number: not all zero and in no exact dependence."""
        return np.isfinite(self.variance_inflation)


def collinearity(columns: ArrayLike) -> Collinearity:
    """Exact dependences between columns, and how much the others widen each one's error.

    Parameters
    ----------
    columns : array of shape (n_votes, n_columns)

    Returns
    -------
    Collinearity

    Examples
    --------
    >>> found = collinearity([[1, 1, 0], [1, 1, 1], [-1, -1, 0], [0, 0, 1]])
    >>> found.dependent[0].tolist(), found.variance_inflation.round(2).tolist()
    ([False, True, False], [inf, inf, 1.2])
    """
    x = np.asarray(columns, dtype=np.float64)
    q = x.shape[1]
    size = np.sqrt((x**2).sum(axis=0))
    there = size > 0
    inflation = np.full(q, np.nan)
    dependent = np.zeros((q, q), dtype=bool)
    if there.any():
        unit = x[:, there] / size[there]
        values, vectors = np.linalg.eigh(unit.T @ unit)
        null = vectors[:, values < _SAME]
        together = np.abs(null @ null.T) > 1e-8
        kept = values >= _SAME
        factors = (vectors[:, kept] ** 2 / values[kept]).sum(axis=1)
        inflation[there] = np.where(np.diag(together), np.inf, factors)
        dependent[np.ix_(there, there)] = together & ~np.eye(len(together), dtype=bool)
    return Collinearity(dependent, inflation)


def independent_columns(columns: ArrayLike) -> NDArray[np.intp]:
    """Indices of columns, the first ones where there is a choice, that span what all of them span.

    Examples
    --------
    >>> independent_columns([[1, 1, 0], [1, 1, 1], [0, 0, 1]])
    array([0, 2])
    """
    x = np.asarray(columns, dtype=np.float64)
    chosen: list[int] = []
    for j in range(x.shape[1]):
        if collinearity(x[:, [*chosen, j]]).estimable.all():
            chosen.append(j)
    return np.array(chosen, dtype=np.intp)


def joint_log_odds(
    columns: ArrayLike, sign: ArrayLike, clusters: ArrayLike, level: float = 0.95
) -> tuple[Interval | None, ...]:
    r"""Coefficient of each column beside the others, in one logistic regression without an intercept.

    .. math:: \operatorname{logit} P(a \text{ wins}) = \sum_i \theta_i x_i

    Parameters
    ----------
    columns : array of shape (n_votes, n_columns)
        Sides from `carrier_sides`, or differences a minus b of any kind.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    clusters : array of shape (n_votes,)
        The prompt of each vote.
    level : float
        Coverage.

    Returns
    -------
    tuple of Interval or None
        Clustered. None for a column that is zero throughout, that others determine exactly, whose votes all
        go one way, and for all columns where some mix of them tells every vote. The ends are NaN where a single
        cluster determines the coefficient. A column that is left out for its one-way votes leaves its votes in.

    Examples
    --------
    >>> first, second = joint_log_odds([[1, 0], [1, 1], [1, 0], [0, 1], [0, 1]], [1, 1, -1, 1, -1], range(5))
    >>> round(first.estimate, 2), round(second.estimate, 2)
    (0.53, 0.53)
    """
    x, s = np.asarray(columns, dtype=np.float64), np.asarray(sign, dtype=np.float64)
    toward = x * s[:, None]
    one_way = ~((toward > 0).any(axis=0) & (toward < 0).any(axis=0))
    shown = collinearity(x).estimable
    usable = np.flatnonzero(~one_way)
    usable = usable[independent_columns(x[:, usable])]
    found: list[Interval | None] = [None] * x.shape[1]
    if len(usable):
        fit = fit_logit(x[:, usable], s, clusters)
        for place, column in enumerate(usable):
            found[column] = fit.interval(place, level) if shown[column] else None
    return tuple(found)


def swap_log_odds(
    side: ArrayLike, sign: ArrayLike, stratum: ArrayLike, clusters: ArrayLike
) -> Interval | None:
    r"""Log-odds that a side wins for carrying the attribute, from votes on the same two bodies both ways round.

    .. math:: \hat\theta = \frac12 \log \frac{\sum_s A_s D_s / n_s}{\sum_s B_s C_s / n_s}

    Half the Mantel-Haenszel log odds ratio. In stratum s (two bodies of text), A and B count the votes for the first
    and the second body while the first carries the attribute, C and D while the second does. The quality of the
    bodies cancels, whatever it is. Strata with the attribute on one body only say nothing.

    Parameters
    ----------
    side : array of shape (n_votes,)
        +1 the first body carries the attribute, -1 the second does, 0 neither or both.
    sign : array of shape (n_votes,)
        +1 chose the first body, -1 the second.
    stratum : array of int of shape (n_votes,)
    clusters : array of shape (n_votes,)
        The prompt of each vote.

    Returns
    -------
    Interval or None
        95 %, clustered; ends are NaN with a single cluster. None without a stratum that is seen both ways, and where
        its votes all go one way.

    Examples
    --------
    The first body wins three of four votes with the attribute and one of four without:

    >>> sides, signs = [1, 1, 1, 1, -1, -1, -1, -1], [1, 1, 1, -1, 1, -1, -1, -1]
    >>> round(swap_log_odds(sides, signs, [0] * 8, [0] * 8).estimate, 3)
    1.099
    """
    side, sign = np.asarray(side), np.asarray(sign)
    carried = side != 0
    side, sign = side[carried], sign[carried]
    codes = np.unique(np.asarray(stratum)[carried], return_inverse=True)[1].reshape(-1)
    prompts = np.unique(np.asarray(clusters)[carried], return_inverse=True)[1].reshape(-1)
    n_strata = codes.max(initial=-1) + 1

    def votes(carrier: int, chosen: int) -> NDArray[np.float64]:
        rows = (side == carrier) & (sign == chosen)
        return np.bincount(codes[rows], minlength=n_strata).astype(np.float64)

    size = np.bincount(codes)
    won = votes(1, 1) * votes(-1, -1) / size
    lost = votes(1, -1) * votes(-1, 1) / size
    if not (won.sum() > 0 and lost.sum() > 0):
        return None
    prompt = np.zeros(n_strata, dtype=np.intp)
    prompt[codes] = prompts
    return _half_log_ratio(np.bincount(prompt, weights=won), np.bincount(prompt, weights=lost))


def _half_log_ratio(won: NDArray, lost: NDArray) -> Interval:
    """Half log(sum won / sum lost): the log-odds of a share, with each cluster's error as of so many votes."""
    size = won + lost
    share = won.sum() / size.sum()
    information = share * (1 - share)
    errors = cluster_errors((won - size * share)[:, None], (size * information)[:, None, None])
    estimate, se = math.log(won.sum() / lost.sum()) / 2, float(errors.se[0]) / 2
    half = se * float(stdtrit(errors.df[0], 0.975))
    return Interval(estimate, se, estimate - half, estimate + half, errors.n_clusters)
