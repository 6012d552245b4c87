"""Who `badpo watch` points at while the votes of pools whose leans are known arrive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.sequential import GRID, e_bh, log_e_values, log_tilt_ratios
from bench.simulated_pools import DrawnVotes, Pool, draw_votes

ENOUGH, ALPHA, Z = 10, 0.05, 1.96

STREAMS = {
    "all alike": Pool(4000, spread=0.0),
    "all alike, specialists": Pool(4000, spread=0.0, better=0.7, specialists=True),
    "one of 60 leans 1 more or less": Pool(4000, spread=0.0, n_planted=1),
}


def evidence_over_time(votes: DrawnVotes) -> tuple[NDArray, NDArray, NDArray]:
    """Log e-values, z of the score test, and informative votes so far, of shape (n_comparisons, n_annotators)."""
    n, m = len(votes.quality), votes.n_annotators
    chose_a, delta = votes.sign > 0, votes.delta[:, 0]
    share = (np.bincount(votes.comparison, chose_a) / np.bincount(votes.comparison))[votes.comparison]
    at = votes.comparison, votes.annotator
    ratios = np.zeros((n, m, len(GRID)))
    ratios[at] = log_tilt_ratios(chose_a, share, delta)
    score, information = np.zeros((2, n, m))
    score[at] = (chose_a - share) * delta
    information[at] = share * (1 - share) * delta**2
    with np.errstate(invalid="ignore"):
        z = np.cumsum(score, axis=0) / np.sqrt(np.cumsum(information, axis=0))
    return log_e_values(np.cumsum(ratios, axis=0)), z, np.cumsum(information > 0, axis=0)


def alarms(pool: Pool, random: np.random.Generator) -> dict[str, float]:
    """Who is pointed at, ever, on the way through a pool's comparisons."""
    log_e, z, so_far = evidence_over_time(draw_votes(pool, random))
    needed = -np.log(ALPHA)
    ever = log_e.max(axis=0) >= needed
    peeked = np.where(so_far >= ENOUGH, np.abs(z), 0.0).max(axis=0) > Z
    others = np.arange(pool.n_planted, pool.n_annotators)
    flagged = np.max([e_bh(now, ALPHA) for now in log_e[::20]], axis=0)
    found = {
        "e_process": ever[others].mean(),
        "peeking": peeked[others].mean(),
        "e_bh": flagged[others].any(),
    }
    if pool.n_planted:
        first = (log_e[:, 0] >= needed).argmax()
        found |= {"power": ever[0], "votes_to_flag": so_far[first, 0] if ever[0] else np.nan}
    return {name: float(value) for name, value in found.items()}
