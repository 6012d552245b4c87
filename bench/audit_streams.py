"""Flags of `badpo watch` while the votes of pools with known biases arrive, and the readings of the flags."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.significance import (
    GRID,
    RELIABILITY_GRID,
    bias_e_values,
    e_bh,
    log_e_values,
    log_random_ratios,
    log_reliability_ratios,
    log_tilt_ratios,
)
from bench.simulated_pools import DrawnVotes, Pool, draw_votes

ALPHA, LOOKS = 0.05, 200

ALIKE = Pool(4000, spread=0.0)
BETTER = replace(ALIKE, better=0.7)
STREAMS = {
    "all alike": ALIKE,
    "all alike, specialists": replace(BETTER, specialists=True),
    "one leans 1 more or less": replace(ALIKE, n_planted=1),
    "one clicks at random, longer is better": replace(BETTER, n_clickers=1),
    "six click at random, longer is better": replace(BETTER, n_clickers=6),
    "one is half as careful, longer is better": replace(BETTER, n_clickers=1, clicker_care=0.5),
    "one is at the mean, the others have sd 0.5": replace(ALIKE, spread=0.5, n_planted=1, planted=0.0),
}
STREAMS |= {
    f"{name}; three times the comparisons": replace(pool, n_comparisons=12_000)
    for name, pool in STREAMS.items()
    if name.startswith(("one", "six"))
}
STREAMS["one is at the mean, always with the same three of sd 0.5"] = Pool(
    1000, n_annotators=4, n_planted=1, planted=0.0
)


def evidence_over_time(votes: DrawnVotes) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Compute log e-values of a flag, of bias and of low reliability, and informative votes, by look and annotator.

    All four arrays are of shape (n_looks, n_annotators).
    """
    m, size, who = votes.n_annotators, np.bincount(votes.comparison), votes.comparison
    wins, chose_a, delta = np.bincount(who, votes.sign > 0)[who], votes.sign > 0, votes.delta[:, 0]
    share, same = wins / size[who], (delta == 0)[:, None]
    ratios = log_tilt_ratios(chose_a, share, delta)
    chance = log_random_ratios(chose_a, wins, size[who], delta)
    added = [ratios, chance, same * log_reliability_ratios(chose_a, share), ratios.any(axis=1)[:, None]]
    so_far = np.zeros((LOOKS, m, 2 * len(GRID) + len(RELIABILITY_GRID) + 1))
    np.add.at(so_far, (who * LOOKS // len(size), votes.annotator), np.concatenate(added, axis=1))
    ends = np.cumsum([len(GRID), len(GRID), len(RELIABILITY_GRID)])
    *kinds, informative = np.split(np.cumsum(so_far, axis=0), ends, axis=2)
    log_e, log_chance, log_reliability = (log_e_values(each) for each in kinds)
    return (
        log_e,
        bias_e_values(log_e, log_chance, log_reliability),
        log_reliability,
        informative[:, :, 0],
    )


def measure_stream(pool: Pool, random: np.random.Generator) -> dict[str, float]:
    """Measure which annotators are ever flagged, and with which readings."""
    *evidence, _ = evidence_over_time(draw_votes(pool, random))
    flag, is_biased, is_unreliable = (np.array([e_bh(now, ALPHA) for now in each]) for each in evidence)
    planted = np.arange(pool.n_annotators) < pool.n_planted
    planted |= np.arange(pool.n_annotators) >= pool.n_annotators - pool.n_clickers
    figures = {}
    if not pool.spread:
        figures["wrong_flag"] = (flag | is_unreliable)[:, ~planted].any()
        figures["wrong_lean"] = is_biased[:, ~planted].any()
    if planted.any():
        flagged, biased, unreliable = (
            each[:, planted][:, 0] for each in (flag, is_biased, is_unreliable)
        )
        figures |= {"flagged": flagged.any(), "as_lean": biased.any(), "as_careless": unreliable.any()}
    return {name: float(value) for name, value in figures.items()}
