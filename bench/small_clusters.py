"""Coverage of 95 % intervals for a pool's log-odds with few prompts: `python -m bench.small_clusters`.

Writes ``docs/small_clusters.md`` in about a minute and a half.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, stdtrit

from badpo.estimation.clusters import cluster_errors

PAGE = Path("docs/small_clusters.md")
HEAD = """# Intervals with few prompts

Written by `python -m bench.small_clusters --repeats {repeats} --seed {seed}`. How often do 95 % intervals for the
log-odds that a side wins hold the truth, when the votes stand on 6, 10 or 32 prompts? Each cell draws prompts whose own
log-odds vary (or not) and whose numbers of votes are equal or very unequal. The truth is the log-odds over the
population of prompts.

- *usual*: the sandwich error clustered by prompt, Student's t with one degree of freedom less than prompts.
- *CR2*: `badpo.estimation.clusters`, each prompt's score corrected for its leverage, with Satterthwaite's degrees of
  freedom. This is what badpo prints.
- *jackknife*: one prompt left out at a time, the same t as the usual one.
- *wild*: wild cluster bootstrap-t with the null imposed (all sign patterns up to 10 prompts, 199 draws above).

Behind the coverage stands the median length of the interval, where there is one.
"""
METHODS = ("usual", "CR2", "jackknife", "wild")
PROMPTS, RATES, SPREADS = (6, 10, 32), (0.5, 0.75, 0.9), (0.0, 0.3, 0.8)
# standard deviation of the log size, mean votes of a prompt
SIZES = ((0.0, 20), (0.6, 20), (1.0, 20), (1.0, 200))


def intervals(size: NDArray, won: NDArray) -> dict[str, tuple[float, float]]:
    """Estimate's interval by every form but the bootstrap, which tests a value instead."""
    n, n_votes = len(size), size.sum()
    share = won.sum() / n_votes
    information, estimate = share * (1 - share), logit(share)
    error = (won - size * share) / n_votes
    t = stdtrit(n - 1, 0.975)
    usual = t * math.sqrt(n / (n - 1) * (error**2).sum()) / information
    errors = cluster_errors(error[:, None] * n_votes, (size * information)[:, None, None])
    left, left_won = n_votes - size, won.sum() - won
    without = logit(np.clip(left_won, 0.5, left - 0.5) / left)
    jackknife = t * math.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
    halves = {"usual": usual, "CR2": float(errors.half_width()[0]), "jackknife": jackknife}
    return {name: (estimate - half, estimate + half) for name, half in halves.items()}


def wild_accepts(size: NDArray, won: NDArray, truth: float, rng: np.random.Generator) -> bool:
    """Whether the bootstrap-t keeps the true value at 5 %."""
    n = len(size)
    score = won - size * expit(truth)
    every = np.array(list(itertools.product((-1, 1), repeat=n))) if n <= 10 else None
    signs = rng.choice([-1, 1], (199, n)) if every is None else every

    def statistic(scores: NDArray) -> NDArray:
        total = scores.sum(axis=1, keepdims=True)
        left = scores - total * size / size.sum()
        return np.abs(total[:, 0]) / np.sqrt((left**2).sum(axis=1))

    return bool((statistic(signs * score) >= statistic(score[None]) - 1e-12).mean() > 0.05)


def cell(
    n_prompts: int, rate: float, spread: float, size: tuple[float, int], repeats: int, seed: Sequence[int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Coverage of each form, and the median length of its interval."""
    rng = np.random.default_rng(seed)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    level, (size_spread, mean) = logit(rate), size
    truth = logit((weights * expit(level + spread * nodes)).sum() / weights.sum())
    covered: dict[str, list[bool]] = {name: [] for name in METHODS}
    lengths: dict[str, list[float]] = {name: [] for name in METHODS[:-1]}
    for _ in range(repeats):
        votes = mean * np.exp(size_spread * rng.normal(size=n_prompts) - size_spread**2 / 2)
        votes = np.maximum(1, rng.poisson(votes))
        won = rng.binomial(votes, expit(level + spread * rng.normal(size=n_prompts)))
        if won.sum() in (0, votes.sum()):
            continue
        for name, (low, high) in intervals(votes, won).items():
            covered[name].append(low < truth < high)
            lengths[name].append(high - low)
        covered["wild"].append(wild_accepts(votes, won, truth, rng))
    return (
        {name: float(np.mean(values)) for name, values in covered.items()},
        {name: float(np.median(values)) for name, values in lengths.items()},
    )


def page(repeats: int, seed: int) -> str:
    """The table of all cells and what each form comes to."""
    lines = [
        "| prompts | rate | sd between | sd of log size | votes | " + " | ".join(METHODS) + " |",
        "|--" * 9 + "|",
    ]
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for number, case in enumerate(itertools.product(PROMPTS, RATES, SPREADS, SIZES)):
        coverage, lengths = cell(*case, repeats, (seed, number))
        cells = [
            f"{coverage[name]:.3f}" + (f" ({lengths[name]:.2f})" if name in lengths else "")
            for name in METHODS
        ]
        lines.append("| " + " | ".join(map(str, (*case[:3], *case[3], *cells))) + " |")
        for name in METHODS:
            found[name].append(coverage[name])
    summary = ["| form | least | most | share of the cells within 93 to 97 % |", "|--|--|--|--|"]
    for name, values in found.items():
        inside = np.mean([0.93 <= value <= 0.97 for value in values])
        summary.append(f"| {name} | {min(values):.3f} | {max(values):.3f} | {inside:.0%} |")
    return "\n".join([HEAD.format(repeats=repeats, seed=seed), *summary, "", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    PAGE.write_text(page(arguments.repeats, arguments.seed))
    print(PAGE)


if __name__ == "__main__":
    main()
