"""The offline estimate: how often the side with more of an attribute wins, before anything is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from badpo.theory.summaries import cluster_mean


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
    se_naive, se_clustered : float or None
        Standard errors of the log-odds, taking every judgment as independent, and taking the judgments of a cluster
        (a prompt) as dependent. The second is None with fewer than two clusters.
    naive_ci_low, naive_ci_high, ci_low, ci_high : float or None
        95 % intervals, normal for the naive one and Student's t over the clusters for the other.
    """

    n_cross: int
    carrier_wins: float | None
    log_odds: float | None
    se_naive: float | None = None
    se_clustered: float | None = None
    naive_ci_low: float | None = None
    naive_ci_high: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def odds(self) -> float | None:
        """exp(log_odds): 2.7 reads "2.7 to 1"; None where the log-odds are."""
        return None if self.log_odds is None else math.exp(self.log_odds)


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
    BA-DPO, appendix `app:multipref`, "offline estimate". The clustered standard error is that of the mean divided by
    p (1 - p).

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
    share = float(wins.mean()) if n else None
    if share is None or share in (0.0, 1.0):
        return LogOdds(n, share, None)
    log_odds = math.log(share / (1 - share))
    information = share * (1 - share)
    naive = 1 / math.sqrt(n * information)
    reach = float(ndtri(0.975)) * naive
    mean = cluster_mean(wins, clusters)
    clustered, half = mean.se / information, mean.half_width / information
    known = math.isfinite(clustered)
    return LogOdds(
        n,
        share,
        log_odds,
        naive,
        clustered if known else None,
        log_odds - reach,
        log_odds + reach,
        log_odds - half if known else None,
        log_odds + half if known else None,
    )
