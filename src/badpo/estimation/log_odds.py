"""Estimate the pooled log-odds that the side with more of an attribute wins, with clustered standard errors.

Votes are arrays of equal length: ``sign`` is +1 for a vote for a and -1 for a vote for b; ``delta`` is g(a) - g(b),
with the shape (n_votes, n_attributes); ``clusters`` is the prompt of each vote.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh
from scipy.optimize import root
from scipy.special import expit, logit, stdtr, stdtrit

from badpo.theory import Array, Bools, Floats, Ints
from badpo.theory.summaries import Interval

# Significance level of tests.
LEVEL = 0.05
# An estimate is reported only if the half-width of its 95 % confidence interval is at most this value, in log-odds.
# Log-odds of 3 correspond to odds of 20 to 1.
WIDEST_HALF = 3.0
# A clustered error counts as zero if it is below this share of the error for independent votes.
NO_SPREAD = 1e-9
# Attributes count as linearly dependent if an eigenvalue of their cosine matrix is below this value.
_SAME = 1e-10
# A coefficient counts as infinite if its information, relative to the information at even odds, is below this value.
# If one vote in ten million contradicts the sign of a coefficient, the relative information is 4e-7.
_NO_INFORMATION = 1e-8
# The second-order series of (1 - K)^(-1/2) is exact to 1e-9 if the leverage (trace) of a cluster is below this value.
_SMALL_LEVERAGE = 1e-3
# If the leverage of a cluster exceeds this value, the cluster alone determines a direction.
# The variance of a direction that a single cluster determines cannot be estimated.
_WHOLE = 1 - 1e-9


# -- offline: one attribute ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LogOdds:
    """Log-odds that the side with an attribute wins, with standard errors.

    Attributes
    ----------
    n_cross : int
        Number of cross-group judgments (judgments whose sides differ in the attribute).
    win_rate : float or None
        Share of the cross-group judgments in which the side with more of the attribute won; None without such
        judgments.
    log_odds : float or None
        log(win_rate / (1 - win_rate)): the offline theta with the quality of the responses set to zero. None without
        votes, or if all votes are for one side.
    n_clusters : int
        Number of clusters (prompts) with a cross-group judgment.
    se_naive, se_clustered : float or None
        Standard errors of the log-odds for independent judgments, and for judgments that may be dependent within a
        cluster (`cluster_errors`, which is accurate with few clusters). ``se_clustered`` is None with fewer than two
        clusters. It is also None if all clusters have exactly the same share, because an error of zero would claim
        certainty.
    df : float or None
        Degrees of freedom of the clustered interval.
    """

    n_cross: int
    win_rate: float | None
    log_odds: float | None
    n_clusters: int = 0
    se_naive: float | None = None
    se_clustered: float | None = None
    df: float | None = None

    @property
    def odds(self) -> float | None:
        """exp(log_odds), such as 2.7 for "2.7 to 1"; None if the log-odds are None."""
        return None if self.log_odds is None else math.exp(self.log_odds)

    def interval(self, level: float = 0.95, naive: bool = False) -> tuple[float | None, float | None]:
        """Limits of Student's t confidence interval, clustered by prompt, or of a normal interval if ``naive`` is true.

        If all votes are for one side, the limit on that side is None, and the other limit is an exact one-sided bound.
        The one-sided bound counts clusters as trials, or individual judgments if ``naive`` is true.
        """
        if self.log_odds is None:
            n_trials = self.n_cross if naive else self.n_clusters
            if n_trials < 2 - naive:
                return None, None
            # at the lower limit of the interval, n wins in n trials have the probability p^n = 1 - level
            bound = float(logit((1 - level) ** (1 / n_trials)))
            return (bound, None) if self.win_rate else (None, -bound)
        se, df = self.se_clustered, self.df
        if naive:
            se, df = self.se_naive, math.inf
        if se is None:
            return None, None
        half = se * float(stdtrit(df, 0.5 + level / 2))
        return self.log_odds - half, self.log_odds + half

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of the hypothesis of even odds, clustered by prompt; None with fewer than two clusters.

        If all votes are for one side, each cluster counts as one trial.
        """
        if self.log_odds is None:
            return 2 * 0.5**self.n_clusters if self.n_clusters > 1 else None
        if self.se_clustered is None:
            return None
        return float(2 * stdtr(self.df, -abs(self.log_odds) / self.se_clustered))


def offline_log_odds(
    sign: ArrayLike,
    delta: ArrayLike,
    cross: ArrayLike,
    clusters: ArrayLike | None = None,
) -> tuple[LogOdds, ...]:
    r"""Log-odds that the side with more of an attribute wins a cross-group judgment, for each attribute separately.

    .. math:: \hat\theta = \log\frac{\hat p}{1 - \hat p}, \qquad
        \hat p = \text{mean of } [s_j d_j > 0] \text{ over judgments with } |d_j| > \text{threshold}

    Returns
    -------
    tuple of LogOdds, one for each attribute

    References
    ----------
    BA-DPO, appendix `app:multipref`, "offline estimate".

    Examples
    --------
    Three of four cross-group votes are for the longer side:

    >>> pooled, = offline_log_odds([1, 1, 1, -1, 1], [[1], [1], [1], [1], [0]], [[1], [1], [1], [1], [0]])
    >>> pooled.n_cross, pooled.win_rate, round(pooled.log_odds, 3), round(pooled.odds, 3)
    (4, 0.75, 1.099, 3.0)
    """
    wins = np.asarray(sign, float)[:, None] * np.asarray(delta, float) > 0
    prompt = np.arange(len(wins)) if clusters is None else np.asarray(clusters)
    columns = zip(wins.T, np.asarray(cross, bool).T, strict=True)
    return tuple(_log_odds_of_wins(won[rows], prompt[rows]) for won, rows in columns)


def _log_odds_of_wins(wins: Bools, clusters: Array) -> LogOdds:
    """Compute the log-odds of one attribute from its cross-group judgments."""
    n = len(wins)
    if not n:
        return LogOdds(0, None, None)
    codes = np.unique(clusters, return_inverse=True)[1]
    size, won = np.bincount(codes), np.bincount(codes, wins)
    share = float(wins.mean())
    if share in (0.0, 1.0):
        return LogOdds(n, share, None, len(size))
    naive = 1 / math.sqrt(n * share * (1 - share))
    log_odds = math.log(share / (1 - share))
    errors = _share_errors(won, size)
    se, df = float(errors.se[0]), float(errors.df[0])
    clustered = (se, df) if se > NO_SPREAD * naive else (None, None)
    return LogOdds(n, share, log_odds, len(size), naive, *clustered)


def _share_errors(won: Array, size: Array) -> ClusterErrors:
    """Compute the clustered standard error of log-odds from the numbers of wins and votes in each cluster."""
    share = won.sum() / size.sum()
    information = size * share * (1 - share)
    return cluster_errors((won - size * share)[:, None], information[:, None, None])


def population_interval(
    won: ArrayLike, prompt: ArrayLike, annotator: ArrayLike
) -> tuple[float | None, float | None]:
    r"""95 % confidence interval of the log-odds of a share of votes, for populations of prompts and of annotators.

    Both the prompts and the annotators are treated as samples. The variance V combines the variances clustered by
    prompt (P), by annotator (A) and by both (PA), from `cluster_errors`:

    .. math:: V = \max(V_P + V_A - V_{PA}, V_P, V_A), \qquad
        \nu = V^2 \Big/ \Bigl(\frac{V_P^2}{\nu_P} + \frac{V_A^2}{\nu_A}\Bigr)

    The interval uses Student's t with nu degrees of freedom. ``won`` is true for votes for the side with the attribute;
    all three arrays have the shape (n_votes,). Both limits are None with fewer than two prompts or annotators, or if
    all votes are for one side.

    References
    ----------
    Cameron, Gelbach and Miller (2011), "Robust inference with multiway clustering".

    Examples
    --------
    Two annotators who disagree give little information about other annotators:

    >>> low, high = population_interval([1, 1, 1, 0, 0, 1] * 10, np.arange(60) // 2, [0, 0, 0, 1, 1, 1] * 10)
    >>> low < -2 and high > 2
    True
    """
    wins = np.asarray(won, float)
    share = wins.mean() if len(wins) else np.nan
    factors = [np.unique(each, return_inverse=True)[1] for each in (prompt, annotator)]
    if not 0 < share < 1 or min(factor.max() for factor in factors) < 1:
        return None, None
    cells = factors[0] * (factors[1].max() + 1) + factors[1]
    errors = [
        _share_errors(np.bincount(codes, wins), np.bincount(codes))
        for codes in (*factors, np.unique(cells, return_inverse=True)[1])
    ]
    prompts, annotators, both = (float(each.se[0]) ** 2 for each in errors)
    variance = max(prompts + annotators - both, prompts, annotators)
    if not variance > 0 or math.isnan(prompts + annotators):
        return None, None
    shares = (prompts**2 / errors[0].df[0], annotators**2 / errors[1].df[0])
    half = float(np.sqrt(variance) * stdtrit(variance**2 / sum(shares), 0.975))
    middle = float(logit(share))
    return middle - half, middle + half


# -- several attributes --------------------------------------------------------------------------------------


def attribute_sides(delta: ArrayLike, cross: ArrayLike) -> Floats:
    """Side with more of each attribute in each judgment: +1 for a, -1 for b, and 0 if the sides do not differ."""
    return np.asarray(np.sign(np.asarray(delta, float)) * np.asarray(cross, dtype=bool))


def dependent_columns(columns: ArrayLike) -> Bools:
    """Return a matrix in which entry (i, j) says whether columns i and j are part of the same exact linear dependence.

    Examples
    --------
    >>> dependent_columns([[1, 1, 0], [1, 1, 1], [-1, -1, 0], [0, 0, 1]])[0].tolist()
    [False, True, False]
    """
    x = np.asarray(columns, float)
    size = np.sqrt((x**2).sum(axis=0))
    unit = x / np.where(size > 0, size, 1.0)
    # a column of zeros counts as independent
    values, vectors = np.linalg.eigh(unit.T @ unit + np.diag(size == 0))
    null = vectors[:, values < _SAME]
    dependent = np.abs(null @ null.T) > 1e-8
    np.fill_diagonal(dependent, False)
    return np.asarray(dependent)


def joint_log_odds(
    columns: ArrayLike,
    sign: ArrayLike,
    clusters: ArrayLike,
    level: float = 0.95,
) -> tuple[Interval | None, ...]:
    r"""Estimate the coefficients of all columns in one joint logistic regression.

    .. math:: \operatorname{logit} P(a \text{ wins}) = \sum_i \theta_i x_i

    The regression has no intercept, because the result must not change if responses a and b are exchanged.

    Intervals are clustered (`cluster_errors`). The result for a column is None if the column is zero, if other columns
    determine the column exactly, or if all its votes are for one side. In the last case, the votes remain in the
    regression without the column. All results are None if a combination of columns predicts every vote. Both limits of
    an interval are NaN if a single cluster determines the coefficient.

    Examples
    --------
    >>> first, second = joint_log_odds([[1, 0], [1, 1], [1, 0], [0, 1], [0, 1]], [1, 1, -1, 1, -1], range(5))
    >>> round(first.estimate, 2), round(second.estimate, 2)
    (0.53, 0.53)
    """
    x, s = np.asarray(columns, float), np.asarray(sign, float)
    toward = x * s[:, None]
    used: list[int] = []
    both = (toward > 0).any(axis=0) & (toward < 0).any(axis=0)
    for j in np.flatnonzero(both).tolist():
        if not dependent_columns(x[:, [*used, j]]).any():
            used.append(j)
    intervals: list[Interval | None] = [None] * x.shape[1]
    fit = _logistic_regression(x[:, used], s, clusters) if used else None
    if fit is not None:
        coefficients, errors = fit
        numbers = coefficients, errors.se, errors.half_width(level)
        determined = dependent_columns(x).sum(axis=1)
        for j, *each in zip(used, *numbers, strict=True):
            mean, se, half = map(float, each)
            if not determined[j]:
                intervals[j] = Interval(mean, se, mean - half, mean + half, errors.n_clusters)
    return tuple(intervals)


def _logistic_regression(
    x: Floats, sign: Floats, clusters: ArrayLike
) -> tuple[Floats, ClusterErrors] | None:
    """Coefficients of independent columns, with standard errors; None if the columns together predict every vote."""
    labels, codes = np.unique(clusters, return_inverse=True)
    scale, n = np.sqrt((x**2).mean(axis=0)), len(labels)
    x = x / scale

    def scores(beta: Floats) -> Floats:
        return np.asarray(x * ((sign > 0) - expit(x @ beta))[:, None])

    def weighted(beta: Floats) -> Floats:
        chance = expit(x @ beta)
        return np.asarray(x * (chance * (1 - chance))[:, None])

    beta = root(
        lambda beta: scores(beta).sum(axis=0),
        np.zeros(x.shape[1]),
        jac=lambda beta: -x.T @ weighted(beta),
        tol=1e-12,
    ).x
    bend = weighted(beta)
    least, *_ = eigh(x.T @ bend, x.T @ x / 4, eigvals_only=True)
    if least < _NO_INFORMATION:
        return None
    information = summed_products(codes, bend, x, n)
    errors = cluster_errors(summed(codes, scores(beta), n), information)
    return beta / scale, replace(errors, se=errors.se / scale)


def summed(group: Ints, values: Array, n_groups: int) -> Floats:
    """Sum each column over each group of votes; the result has the shape (n_groups, n_columns)."""
    sums = [np.bincount(group, column, n_groups) for column in values.T]
    return np.reshape(sums, (values.shape[1], n_groups)).T.astype(float)


def summed_products(group: Ints, left: Floats, right: Floats, n_groups: int) -> Floats:
    """Sum the outer products of corresponding rows of two arrays over each group of votes.

    The result has the shape (n_groups, n_columns, n_columns).
    """
    q = left.shape[1]
    sums = [np.bincount(group, one * other, n_groups) for one in left.T for other in right.T]
    return np.reshape(sums, (q * q, n_groups)).T.reshape(n_groups, q, q)


# -- clustered errors ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClusterErrors:
    """Standard errors and degrees of freedom of coefficients; NaN if a single cluster determines a coefficient.

    ``n_clusters`` is the number of clusters that contain information.
    """

    se: Floats
    df: Floats
    n_clusters: int

    def half_width(self, level: float = 0.95) -> Floats:
        """Half-width of the confidence interval with coverage ``level``; NaN without a standard error."""
        return np.asarray(self.se * stdtrit(self.df, 0.5 + level / 2))


def cluster_errors(score: ArrayLike, information: ArrayLike) -> ClusterErrors:
    r"""CR2 standard errors and Satterthwaite degrees of freedom of a maximum-likelihood estimate.

    .. math:: V = H^{-1/2} \Bigl(\sum_g A_g t_g t_g^\top A_g\Bigr) H^{-1/2}, \qquad
        t_g = H^{-1/2} s_g, \quad K_g = H^{-1/2} H_g H^{-1/2}, \quad A_g = (I - K_g)^{-1/2}

    Here s_g is the score of cluster g at the estimate, H_g is its information matrix, and H is the sum of all H_g. The
    degrees of freedom are (tr P)^2 / tr(P^2), where P is the matrix of the quadratic form for votes that are
    independent given the model (Bell and McCaffrey).

    Examples
    --------
    With one value per cluster, the mean of 0, 0, 1, 1 has the ordinary standard error with three degrees of freedom:

    >>> errors = cluster_errors([[-0.5], [-0.5], [0.5], [0.5]], np.ones((4, 1, 1)))
    >>> errors.se.round(4), errors.df.round(1)
    (array([0.2887]), array([3.]))
    """
    s, h = np.asarray(score, float), np.asarray(information, float)
    informed = np.trace(h, axis1=1, axis2=2) > 0
    s, h, q = s[informed], h[informed], s.shape[1]
    if not len(s):
        return ClusterErrors(np.full(q, np.nan), np.full(q, np.nan), 0)
    values, vectors = np.linalg.eigh(h.sum(axis=0))
    root = (vectors / np.sqrt(values)) @ vectors.T
    leverage = root @ h @ root
    adjustment, alone = _inverse_root_of_rest(leverage)
    m = adjustment @ root
    u = leverage @ m
    moved = np.einsum("gic,gi->gc", m, s @ root)
    p, u_squared = (m * u).sum(axis=1), (u * u).sum(axis=1)
    gram = np.einsum("gic,gjc->cij", u, u)
    trace = (p - u_squared).sum(axis=0)
    square = (p**2 - 2 * p * u_squared).sum(axis=0) + (gram**2).sum(axis=(1, 2))
    far = np.abs(alone @ root) > 1e-7 * np.abs(root).max()
    known = np.where(far.any(axis=0) | (square <= 0), np.nan, 1.0)
    se = known * np.sqrt((moved**2).sum(axis=0))
    return ClusterErrors(se, trace**2 / np.where(known > 0, square, np.nan), len(s))


def _inverse_root_of_rest(leverage: Floats) -> tuple[Floats, Floats]:
    """Matrix (I - K_g)^(-1/2) of every cluster, and directions (rows) that a single cluster determines."""
    q = leverage.shape[1]
    adjustment = np.eye(q) + leverage / 2 + 0.375 * (leverage @ leverage)
    large = np.trace(leverage, axis1=1, axis2=2) > _SMALL_LEVERAGE
    values, vectors = np.linalg.eigh(leverage[large])
    rows, is_whole = vectors.transpose(0, 2, 1), values > _WHOLE
    scale = 1 / np.sqrt(np.where(is_whole, 1.0, 1 - values))
    adjustment[large] = (vectors * scale[:, None, :]) @ rows
    return adjustment, rows[is_whole]
