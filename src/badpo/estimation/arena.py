"""Coefficients as the arenas' style control has them, to stand beside our own."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from badpo.estimation.logit import fit_logit
from badpo.estimation.pool import collinearity, independent_columns
from badpo.theory.summaries import Interval


def normalized_difference(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """(a - b) / (|a| + |b|), between -1 and 1; 0 where both are zero.

    Examples
    --------
    >>> normalized_difference([30, 5, 0], [10, 5, 0])
    array([0.5, 0. , 0. ])
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    total = np.abs(a) + np.abs(b)
    return np.divide(a - b, total, out=np.zeros(total.shape), where=total > 0)


def arena_coefficients(
    feature: ArrayLike,
    sign: ArrayLike,
    clusters: ArrayLike,
    models: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[Interval | None, ...]:
    r"""Style coefficients of a Bradley-Terry regression, all features together.

    .. math:: \operatorname{logit} P(a \text{ wins}) = r_{m(a)} - r_{m(b)} + \sum_i \gamma_i z_i

    with z the features divided by their root mean square. The arenas also subtract the mean, which depends on
    which response stands as a; it is taken as zero here. The ratings r are there only where the models are known;
    without them the coefficients also carry what the models that write so are worth.

    Parameters
    ----------
    feature : array of shape (n_votes, n_features)
        Normalized differences a minus b.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    clusters : array of shape (n_votes,)
        The prompt of each vote.
    models : pair of arrays of shape (n_votes,), or None
        Who wrote a, who wrote b.

    Returns
    -------
    tuple of Interval or None
        Log-odds per standard deviation of the feature: how often the feature differs is in it, so it compares with
        published arena coefficients and not with our log-odds. None for a feature that never differs, that others
        determine, or that tells every vote.

    Examples
    --------
    >>> wins, sides = [1, 1, 1, -1, -1, 1], [[0.5], [0.2], [-0.1], [0.3], [-0.4], [0.0]]
    >>> coefficient, = arena_coefficients(sides, wins, range(6))
    >>> round(coefficient.estimate, 2)
    0.86
    """
    x = np.asarray(feature, dtype=np.float64)
    shown = collinearity(x).estimable
    found: list[Interval | None] = [None] * x.shape[1]
    usable = independent_columns(x)
    if not len(usable):
        return tuple(found)
    deviation = np.sqrt((x[:, usable] ** 2).mean(axis=0))
    nuisance = None if models is None else _model_columns(*models)
    fit = fit_logit(x[:, usable] / deviation, sign, clusters, nuisance)
    for place, column in enumerate(usable):
        found[column] = fit.interval(place) if shown[column] else None
    return tuple(found)


def _model_columns(first: ArrayLike, second: ArrayLike) -> sparse.csr_array:
    """+1 in the column of the model that wrote a, -1 in that of b."""
    a, b = np.asarray(first, dtype=object).astype(str), np.asarray(second, dtype=object).astype(str)
    n = len(a)
    names, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
    rows = np.tile(np.arange(n), 2)
    values = np.repeat([1.0, -1.0], n)
    return sparse.csr_array((values, (rows, codes.reshape(-1))), shape=(n, len(names)))
