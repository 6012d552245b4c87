"""The offline estimate: how often the side with more of an attribute wins, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit, ndtri, stdtr, stdtrit

from badpo.estimation.clusters import cluster_errors

# Below this share of the error of independent votes, a clustered one is rounding of no spread at all.
_NO_SPREAD = 1e-9


@dataclass(frozen=True)
class LogOdds:
    """How one attribute fares in the votes.

    Attributes
    ----------
    n_cross : int
        Cross-group judgments: those whose sides differ on the attribute.
    carrier_wins : float or None
        Share of them in which the side with more of the attribute won; None without any.
    log_odds : float or None
        log(share / (1 - share)): the offline theta with the quality of the responses set to zero. None when every
        vote went one way or there is none.
    n_clusters : int
        Clusters (prompts) with a cross-group judgment.
    se_naive, se_clustered : float or None
        Standard errors of the log-odds, taking every judgment as independent, and taking the judgments of a cluster
        as dependent (`badpo.estimation.clusters.cluster_errors`, which holds with few clusters). The second is None
        with fewer than two clusters, and where all clusters have the very same share: nothing then tells how much
        clusters differ, and an error of zero would claim certainty.
    df : float or None
        Degrees of freedom of the clustered interval.
    naive_ci_low, naive_ci_high, ci_low, ci_high : float or None
        95 % intervals, normal for the naive one and Student's t for the other. Where every vote went one way, the
        end on that side is None and the other is the exact one-sided 95 % bound, which counts judgments as trials
        in the naive interval and clusters as trials in the other.
    """

    n_cross: int
    carrier_wins: float | None
    log_odds: float | None
    n_clusters: int = 0
    se_naive: float | None = None
    se_clustered: float | None = None
    df: float | None = None
    naive_ci_low: float | None = None
    naive_ci_high: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def odds(self) -> float | None:
        """exp(log_odds): 2.7 reads "2.7 to 1"; None where the log-odds are."""
        return None if self.log_odds is None else math.exp(self.log_odds)

    def interval(self, level: float) -> tuple[float | None, float | None]:
        """Ends of the clustered interval at another coverage than 95 %; None as for ``ci_low`` and ``ci_high``."""
        if self.df is not None and self.log_odds is not None and self.se_clustered is not None:
            half = self.se_clustered * float(stdtrit(self.df, 0.5 + level / 2))
            return self.log_odds - half, self.log_odds + half
        if self.n_clusters < 2 or self.log_odds is not None:
            return None, None
        bound = _one_way_bound(self.n_clusters, 1 - level)
        return (bound, None) if self.carrier_wins == 1.0 else (None, -bound)

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of even odds, clustered; None with fewer than two clusters.

        Votes that all go one way count as one trial for each cluster.
        """
        if self.df is not None and self.log_odds is not None and self.se_clustered is not None:
            return float(2 * stdtr(self.df, -abs(self.log_odds) / self.se_clustered))
        return 2 * 0.5**self.n_clusters if self.log_odds is None and self.n_clusters > 1 else None


def offline_log_odds(
    sign: ArrayLike, delta: ArrayLike, cross: ArrayLike, clusters: ArrayLike | None = None
) -> tuple[LogOdds, ...]:
    r"""Log-odds that the carrying side wins a cross-group judgment, one attribute at a time.

    .. math:: \hat\theta = \log\frac{\hat p}{1 - \hat p}, \qquad
        \hat p = \text{mean of } [s_j d_j > 0] \text{ over judgments with } |d_j| > \text{threshold}

    Parameters
    ----------
    sign : array of shape (n_judgments,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_judgments, n_attributes)
        g(a) - g(b).
    cross : bool array of shape (n_judgments, n_attributes)
        Cross-group judgments.
    clusters : array of shape (n_judgments,), or None
        The prompt of each judgment. None: every judgment is its own cluster.

    Returns
    -------
    tuple of LogOdds, one for each attribute

    References
    ----------
    BA-DPO, appendix `app:multipref`, "offline estimate".

    Examples
    --------
    Three of four cross-group votes go to the longer side:

    >>> found, = offline_log_odds([1, 1, 1, -1, 1], [[1], [1], [1], [1], [0]], [[1], [1], [1], [1], [0]])
    >>> found.n_cross, found.carrier_wins, round(found.log_odds, 3), round(found.odds, 3)
    (4, 0.75, 1.099, 3.0)
    """
    sign, delta = np.asarray(sign, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    cross = np.asarray(cross, dtype=bool)
    clusters = np.arange(len(sign)) if clusters is None else np.asarray(clusters)
    return tuple(
        _of_wins(sign[rows] * difference[rows] > 0, clusters[rows])
        for difference, rows in zip(delta.T, cross.T, strict=True)
    )


def _of_wins(wins: NDArray[np.bool_], clusters: NDArray) -> LogOdds:
    n = len(wins)
    if not n:
        return LogOdds(0, None, None)
    codes = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    size, won = np.bincount(codes), np.bincount(codes, weights=wins)
    share = float(wins.mean())
    if share in (0.0, 1.0):
        return _one_way(n, len(size), share)
    log_odds = math.log(share / (1 - share))
    information = share * (1 - share)
    naive = 1 / math.sqrt(n * information)
    reach = float(ndtri(0.975)) * naive
    errors = cluster_errors((won - size * share)[:, None], (size * information)[:, None, None])
    se, df, half = float(errors.se[0]), float(errors.df[0]), float(errors.half_width()[0])
    found = LogOdds(n, share, log_odds, len(size), naive, None, None, log_odds - reach, log_odds + reach)
    if not se > _NO_SPREAD * naive or not math.isfinite(se):
        return found
    return replace(found, se_clustered=se, df=df, ci_low=log_odds - half, ci_high=log_odds + half)


def _one_way(n: int, n_clusters: int, share: float) -> LogOdds:
    naive, clustered = _one_way_bound(n, 0.05), _one_way_bound(n_clusters, 0.05) if n_clusters > 1 else None
    if share == 1.0:
        return LogOdds(n, share, None, n_clusters, naive_ci_low=naive, ci_low=clustered)
    upper = None if clustered is None else -clustered
    return LogOdds(n, share, None, n_clusters, naive_ci_high=-naive, ci_high=upper)


def _one_way_bound(n_trials: int, error: float) -> float:
    """The least log-odds that so many trials without an exception are compatible with: p^n is the error."""
    return float(logit(error ** (1 / n_trials)))
