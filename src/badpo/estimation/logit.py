"""Logistic regression without an intercept, with errors clustered by prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import eigh
from scipy.special import expit

from badpo.estimation.clusters import ClusterErrors, cluster_errors
from badpo.theory.summaries import Interval

_STEPS = 60
# Largest gradient per vote at the end, in columns scaled to unit size.
_TOLERANCE = 1e-10
# Information relative to that of even odds, below which a direction is separated: its coefficient has no end. One
# vote among ten million that goes the other way still gives 4e-7.
_NO_INFORMATION = 1e-8


@dataclass(frozen=True)
class LogitFit:
    """Coefficients with their cluster-robust errors.

    Attributes
    ----------
    coefficients : array of shape (n_columns,)
        NaN throughout where some mix of the columns tells every vote (separation), or there is no vote.
    errors : ClusterErrors
    """

    coefficients: NDArray[np.float64]
    errors: ClusterErrors

    def interval(self, column: int, level: float = 0.95) -> Interval | None:
        """Coefficient of a column with its interval; None where it is not known, NaN ends where its error is not."""
        estimate = float(self.coefficients[column])
        if not math.isfinite(estimate):
            return None
        half = float(self.errors.half_width(level)[column])
        se = float(self.errors.se[column])
        return Interval(estimate, se, estimate - half, estimate + half, self.errors.n_clusters)


def fit_logit(
    design: ArrayLike,
    sign: ArrayLike,
    clusters: ArrayLike,
    nuisance: sparse.sparray | None = None,
    nuisance_precision: float = 0.01,
) -> LogitFit:
    r"""Maximum likelihood of ``logit P(sign = +1) = design . coefficients (+ nuisance . ratings)``.

    There is no intercept: which response stands as a is arbitrary, and exchanging a and b must change nothing.

    Parameters
    ----------
    design : array of shape (n_votes, n_columns)
        Linearly independent columns, a minus b.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    clusters : array of shape (n_votes,)
        The prompt of each vote.
    nuisance : sparse array of shape (n_votes, n_ratings), or None
        Columns whose coefficients are estimated too and not reported, such as which model wrote each side.
    nuisance_precision : float
        Precision of the normal prior on a rating, on the sum of the log-likelihood (not on its mean): 0.01 is a
        standard deviation of 10 log-odds. It settles the level, which votes leave open, and models that always win.

    Returns
    -------
    LogitFit
        Errors are `badpo.estimation.clusters.cluster_errors` of the columns after the ratings are taken out.

    Examples
    --------
    One attribute alone gives the log-odds that its side wins, here log(3):

    >>> fit = fit_logit([[1], [1], [-1], [1]], [1, 1, -1, -1], [0, 1, 2, 3])
    >>> fit.coefficients.round(3)
    array([1.099])
    """
    x, s = np.asarray(design, dtype=np.float64), np.asarray(sign, dtype=np.float64)
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)
    n, q = x.shape
    if n == 0:
        return _unknown(q)
    scale = np.sqrt((x**2).mean(axis=0))
    x = x / np.where(scale > 0, scale, 1.0)
    everything = x if nuisance is None else sparse.csr_array(sparse.hstack([sparse.csr_array(x), nuisance]))
    precision = np.repeat([0.0, nuisance_precision], [q, everything.shape[1] - q])
    weight, residual, coefficients = _maximize(everything, s, precision)
    if nuisance is not None:
        x = _without(x, sparse.csr_array(nuisance), weight, nuisance_precision)
    information = (x * weight[:, None]).T @ x
    even_odds = x.T @ x / 4
    if eigh(information, even_odds, eigvals_only=True)[0] < _NO_INFORMATION:
        return _unknown(q)
    score = _cluster_sums(x * residual[:, None], codes)
    errors = cluster_errors(score, _cluster_information(x, weight, codes))
    return LogitFit(coefficients[:q] / scale, ClusterErrors(errors.se / scale, errors.df, errors.n_clusters))


def _unknown(q: int) -> LogitFit:
    nothing = np.full(q, np.nan)
    return LogitFit(nothing, ClusterErrors(nothing, nothing, 0))


def _maximize(
    x: NDArray | sparse.csr_array, sign: NDArray, precision: NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Newton's method; information weights and residuals (of a's win) of the votes, and all coefficients."""
    beta = np.zeros(x.shape[1])
    logits, value = np.zeros(len(sign)), -np.inf
    won = (sign > 0).astype(np.float64)
    for _ in range(_STEPS):
        chance = expit(logits)
        weight, residual = chance * (1 - chance), won - chance
        gradient = x.T @ residual - precision * beta
        if np.abs(gradient).max() <= _TOLERANCE * len(sign):
            break
        step = np.linalg.lstsq(_weighted_gram(x, weight) + np.diag(precision), gradient, rcond=1e-12)[0]
        for _ in range(30):
            moved = beta + step
            logits = x @ moved
            new = -np.logaddexp(0.0, -sign * logits).sum() - (precision * moved**2).sum() / 2
            if new >= value - 1e-9 * abs(new):
                break
            step = step / 2
        beta, value = moved, new
    return weight, residual, beta


def _weighted_gram(x: NDArray | sparse.csr_array, weight: NDArray) -> NDArray[np.float64]:
    gram = x.T @ (x * weight[:, None])
    return gram.toarray() if sparse.issparse(gram) else gram


def _without(x: NDArray, ratings: sparse.csr_array, weight: NDArray, precision: float) -> NDArray[np.float64]:
    """The columns less what the ratings explain of them, in the metric of the information."""
    among = _weighted_gram(ratings, weight) + precision * np.eye(ratings.shape[1])
    return x - ratings @ np.linalg.solve(among, ratings.T @ (x * weight[:, None]))


def _cluster_sums(values: NDArray[np.float64], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.stack([np.bincount(codes, weights=column) for column in values.T], axis=1)


def _cluster_information(
    x: NDArray[np.float64], weight: NDArray[np.float64], codes: NDArray[np.intp]
) -> NDArray[np.float64]:
    q = x.shape[1]
    information = np.empty((int(codes.max()) + 1, q, q))
    for i in range(q):
        for j in range(i + 1):
            information[:, i, j] = np.bincount(codes, weights=x[:, i] * x[:, j] * weight)
            information[:, j, i] = information[:, i, j]
    return information
