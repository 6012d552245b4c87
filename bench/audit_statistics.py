"""Do the audit's estimates, intervals and flags keep their promises? `python -m bench.audit_statistics [--json]`.

Draws votes from pools whose leans are known and writes what was found to ``docs/results/audit_statistics.md``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.alternative_estimators import fit_fixed, fit_random
from badpo.estimation.fit import Leans, fit_conditional
from badpo.estimation.sequential import GRID, e_bh, log_e_values, log_tilt_ratios
from badpo.estimation.shrinkage import (
    Shrunk,
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    shrink_normal,
    shrink_votes,
)
from badpo.theory.summaries import t_interval
from bench.simulated_pools import DrawnVotes, Pool, draw_votes, sized

Row = dict[str, Any]
Measured = Mapping[str, float]

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit_statistics.md"
ENOUGH = 10
RHO, FDR = 0.5, 0.10
ALPHA, Z = 0.05, 1.96

ESTIMATORS: dict[str, Callable[[DrawnVotes], Leans]] = {
    "conditional": lambda votes: fit_conditional(*votes.arrays),
    "random": lambda votes: fit_random(*votes.arrays),
    "fixed, quality known": lambda votes: fit_fixed(*votes.arrays, votes.quality),
    "fixed, no quality": lambda votes: fit_fixed(*votes.arrays, np.zeros_like(votes.quality)),
}


def summarized(measured: Iterable[Measured]) -> Row:
    """Mean of every figure over the replicates, with its 95 % interval; replicates without a figure are left out."""
    rows = list(measured)
    found: Row = {"replicates": len(rows)}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        values = values[np.isfinite(values)]
        if len(values):
            interval = t_interval(values)
            found[name] = {"mean": interval.estimate, "low": interval.low, "high": interval.high}
    return found


def replicated(
    label: Row, seed: int, replicates: int, measure: Callable[[np.random.Generator], Measured]
) -> Row:
    """One row of a table: what was drawn, and the summary of what was measured."""
    return label | summarized(measure(np.random.default_rng([seed, r])) for r in range(replicates))


def shrunk_of(leans: Leans) -> Shrunk:
    """Posterior of the first attribute from estimates."""
    return shrink_normal(leans.finite_deviation[:, 0], leans.finite_se[:, 0])


def against_truth(leans: Leans, truth: NDArray[np.float64]) -> Measured:
    """Slope and coverage of the estimates; intervals of annotators with ten informative votes or more."""
    deviation = leans.deviation[:, 0]
    finite = np.isfinite(deviation)
    known = deviation[finite], truth[finite]
    sure = finite & (leans.n_informative[:, 0] >= ENOUGH)
    inside = (leans.ci_low[:, 0] <= truth) & (truth <= leans.ci_high[:, 0])
    return {
        "informative": float(leans.n_informative[:, 0].mean()),
        "least": float(leans.n_informative[:, 0].min()),
        "slope": float(known[0] @ known[1] / (known[1] @ known[1])),
        "coverage": float(inside[sure].mean()) if sure.any() else np.nan,
        "infinite": float(np.isinf(deviation).mean()),
    }


def posterior_against_truth(shrunk: Shrunk, truth: NDArray[np.float64], spread: float) -> Measured:
    """Coverage of the posterior intervals of everyone, and of tau's interval."""
    inside = (shrunk.post_low <= truth) & (truth <= shrunk.post_high)
    return {
        "posterior_coverage": float(inside.mean()),
        "tau": shrunk.tau,
        "tau_coverage": float(shrunk.tau_low <= spread <= shrunk.tau_high),
    }


# -- tables --------------------------------------------------------------------------------------------------


def measure_conditional(pool: Pool, random: np.random.Generator) -> Measured:
    """The default estimator and its shrinkage on one pool."""
    votes = draw_votes(pool, random)
    leans = fit_conditional(*votes.arrays)
    (shrunk,) = shrink_votes(*votes.arrays)
    found = against_truth(leans, votes.deviation)
    return {**found, **posterior_against_truth(shrunk, votes.deviation, pool.spread)}


def slope_table(replicates: int) -> list[Row]:
    """Votes per comparison against spread of quality; nearly everyone has 50 informative votes or more."""
    rows = []
    for votes_each in (2, 3, 4, 6, 8):
        for quality_sd in (0.5, 1.0, 2.0):
            pool = Pool(sized(75, votes_each, quality_sd), votes_each=votes_each, quality_sd=quality_sd)
            label = {"votes each": votes_each, "quality sd": quality_sd}
            seed = 100 * votes_each + round(10 * quality_sd)
            rows.append(replicated(label, seed, replicates, partial(measure_conditional, pool)))
    return rows


def few_votes_table(replicates: int) -> list[Row]:
    """Four votes per comparison, ever fewer comparisons."""

    rows = []
    for informative, m in ((4, 300), (8, 60), (12, 60), (20, 60), (20, 12), (40, 12), (40, 60)):
        pool = Pool(sized(informative, 4, 1.0), n_annotators=m)
        pool = replace(pool, n_comparisons=round(pool.n_comparisons * m / 60))
        label = {"annotators": m}
        seed = 1000 + m + informative
        rows.append(replicated(label, seed, replicates, partial(measure_conditional, pool)))
    return rows


SCENES = {
    "random assignment": Pool(4000),
    "longer is better": Pool(4000, better=0.7),
    "two kinds of comparison": Pool(4000, bimodal=True, quality_sd=1.5),
    "specialists": Pool(4000, better=0.7, specialists=True),
}


def assumption_table(replicates: int) -> list[Row]:
    """Every estimator where its assumptions hold and where they do not."""

    def measure(pool: Pool, name: str, random: np.random.Generator) -> Measured:
        votes = draw_votes(pool, random)
        leans = ESTIMATORS[name](votes)
        shrunk = shrink_votes(*votes.arrays)[0] if name == "conditional" else shrunk_of(leans)
        found = against_truth(leans, votes.deviation)
        return {**found, **posterior_against_truth(shrunk, votes.deviation, pool.spread)}

    rows = []
    for number, (scene, pool) in enumerate(SCENES.items()):
        contrasted = scene in ("random assignment", "specialists")
        for name in ESTIMATORS if contrasted else ("conditional",):
            label = {"pool": scene, "estimator": name}
            rows.append(replicated(label, 2000 + number, replicates, partial(measure, pool, name)))
    return rows


RULES: dict[str, Callable[[Leans, Shrunk], NDArray[np.bool_]]] = {
    "posterior, whichever prior (the default)": lambda leans, shrunk: bayesian_fdr(
        probability_exceeds(shrunk, RHO), FDR
    ),
    "posterior, normal prior alone": lambda leans, shrunk: bayesian_fdr(
        probability_exceeds(replace(shrunk, other=None), RHO), FDR
    ),
    "Benjamini-Hochberg, of no deviation": lambda leans, shrunk: (
        benjamini_hochberg(leans.deviation[:, 0], leans.se[:, 0]) <= FDR
    ),
}

FLAG_POOLS = {
    "sd 0.5": Pool(4000, n_annotators=100),
    "sd 0.5, five times the votes": Pool(20_000, n_annotators=100),
    "sd 0.3 and 10 planted": Pool(4000, n_annotators=100, spread=0.3, n_planted=10),
    "sd 0.3 and 10 planted, five times the votes": Pool(20_000, n_annotators=100, spread=0.3, n_planted=10),
}


def flag_table(replicates: int) -> list[Row]:
    """Share of flags that are wrong, and of large deviations that are found, in pools where everyone differs."""

    def measure(pool: Pool, random: np.random.Generator) -> Measured:
        votes = draw_votes(pool, random)
        leans = fit_conditional(*votes.arrays)
        (shrunk,) = shrink_votes(*votes.arrays)
        large = np.abs(votes.deviation) > RHO
        found = {}
        for name, rule in RULES.items():
            flagged = rule(leans, shrunk) & (leans.n_informative[:, 0] >= ENOUGH)
            found[f"{name}: false"] = float((flagged & ~large).sum() / max(flagged.sum(), 1))
            found[f"{name}: found"] = float((flagged & large).sum() / max(large.sum(), 1))
        return found

    rows = []
    for number, (label, pool) in enumerate(FLAG_POOLS.items()):
        row = replicated({"pool": label}, 3000 + number, replicates, partial(measure, pool))
        shared = {name: row[name] for name in ("pool", "replicates")}
        rows += [
            shared | {"rule": rule, "false": row[f"{rule}: false"], "found": row[f"{rule}: found"]}
            for rule in RULES
        ]
    return rows


# -- while labels arrive -------------------------------------------------------------------------------------

STREAMS = {
    "all alike": Pool(4000, spread=0.0),
    "all alike, specialists": Pool(4000, spread=0.0, better=0.7, specialists=True),
    "one of 60 leans 1 more or less": Pool(4000, spread=0.0, n_planted=1),
}


def evidence_over_time(
    votes: DrawnVotes,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.intp]]:
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


def measure_stream(pool: Pool, random: np.random.Generator) -> Measured:
    """Who is pointed at, ever, on the way through a pool's comparisons."""
    log_e, z, so_far = evidence_over_time(draw_votes(pool, random))
    needed = -np.log(ALPHA)
    ever = log_e.max(axis=0) >= needed
    peeked = np.where(so_far >= ENOUGH, np.abs(z), 0.0).max(axis=0) > Z
    others = np.arange(pool.n_planted, pool.n_annotators)
    flagged = np.max([e_bh(now, ALPHA) for now in log_e[::20]], axis=0)
    found = {
        "e_process": float(ever[others].mean()),
        "peeking": float(peeked[others].mean()),
        "e_bh": float(flagged[others].any()),
    }
    if pool.n_planted:
        first = int((log_e[:, 0] >= needed).argmax())
        found |= {"power": float(ever[0]), "votes_to_flag": float(so_far[first, 0]) if ever[0] else np.nan}
    return found


def sequential_table(replicates: int) -> list[Row]:
    """False alarms of the e-process, and of a test that is repeated whenever someone looks."""
    return [
        replicated({"pool": label}, 4000 + number, replicates, partial(measure_stream, pool))
        for number, (label, pool) in enumerate(STREAMS.items())
    ]


# -- the page ------------------------------------------------------------------------------------------------

# what a table is called, and how it is read
SECTIONS = {
    "slope": (
        "Slope and coverage by votes per comparison",
        "Conditional likelihood, and shrinkage from the votes. A slope of 1 is an unbiased estimate, above 1 an "
        "inflated one. The goals: a slope that meets [0.95, 1.05], intervals that hold the truth in 93.5 to 96.5 % "
        "of cases, posterior intervals in at least 93 %.",
    ),
    "few votes": (
        "Few votes",
        "Ever fewer votes per annotator. The 95 % intervals are those of annotators with ten informative votes or "
        "more, the posterior intervals everyone's; true tau is 0.5. Slopes leave infinite estimates out and are then "
        "not meaningful.",
    ),
    "assumptions": (
        "Where assumptions fail",
        "4,000 comparisons. In the second and the last pool the side with more of the attribute is better by 0.7 "
        "log-odds; in the last one it is worse by as much in a second domain, and specialists cast nine tenths of "
        "the votes in theirs.",
    ),
    "flags": (
        "Flags",
        "100 annotators who all differ. A flag is wrong when the true deviation is at most 0.5; the target is 10 % "
        "of the flags. Testing that a deviation is exactly zero answers another question, and its flags are counted "
        "by the same rule to show that.",
    ),
    "sequential": (
        "While labels still arrive",
        "4,000 comparisons arrive one after the other, and every annotator's e-value is looked at after each of them "
        "(e-BH after every twentieth); the level is 5 %. The repeated test looks whenever an annotator has ten "
        "informative votes or more. An alarm is about one annotator alone; `badpo watch` prints the flags of e-BH, "
        "which hold for everyone together and take more votes.",
    ),
}
HEADS = {
    "informative": "informative votes, mean",
    "least": "least",
    "slope": "slope of estimate on truth",
    "coverage": "95 % intervals hold the truth, %",
    "infinite": "infinite estimates, %",
    "posterior_coverage": "posterior intervals hold the truth, %",
    "tau": "tau",
    "tau_coverage": "tau's interval holds it, %",
    "false": "wrong, % of flags",
    "found": "found, % of large deviations",
    "e_process": "alarms about the others, % of annotators",
    "peeking": "the same of a test repeated at every look",
    "e_bh": "pools with a wrong flag by e-BH, %",
    "power": "alarm about the planted, %",
    "votes_to_flag": "informative votes until then",
}
COUNTS = {"informative", "least", "votes_to_flag"}
PLAIN = {"slope", "tau"}


INTRODUCTION = """\
# What the audit's figures are worth

Votes are drawn from pools whose leans are known, and what the audit finds is compared with them. Written by

    OMP_NUM_THREADS=1 python -m bench.audit_statistics{asked}

in {seconds:,.0f} seconds on one core ({replicates} pools a row). A figure stands with the half-width of its 95 % Monte
Carlo interval. Unless a table says otherwise a pool has 60 annotators whose leans have mean 0.8 and sd 0.5 log-odds,
four of them vote on a comparison, its quality has sd 1, and its sides differ in the attribute every other time. A vote
is informative when the sides differ and the votes on the comparison are not unanimous.
"""


def statistics_page(tables: Mapping[str, list[Row]], replicates: int, seconds: float) -> str:
    """Markdown with one section per table."""
    asked = "" if replicates == 100 else f" --replicates {replicates}"
    parts = [INTRODUCTION.format(asked=asked, seconds=seconds, replicates=replicates)]
    for name, rows in tables.items():
        title, reading = SECTIONS[name]
        columns = [one for one in dict.fromkeys(key for row in rows for key in row) if one != "replicates"]
        lines = [[HEADS.get(one, one) for one in columns], ["---"] * len(columns)]
        lines += [[_cell(one, row.get(one)) for one in columns] for row in rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {title}\n\n{reading}\n\n{table}\n")
    return "\n".join(parts)


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        return "" if value is None else str(value)
    if name in COUNTS:
        return f"{value['mean']:.0f}"
    scale, digits = (1, 3) if name in PLAIN else (100, 1)
    half = (value["high"] - value["low"]) / 2
    return f"{scale * value['mean']:.{digits}f} ± {scale * half:.{digits}f}"


TABLES: dict[str, Callable[[int], list[Row]]] = {
    "slope": slope_table,
    "few votes": few_votes_table,
    "assumptions": assumption_table,
    "flags": flag_table,
    "sequential": sequential_table,
}


def main() -> None:
    """Draw, estimate, compare; write the page or print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100, help="pools drawn for each row of a table")
    parser.add_argument(
        "--table", choices=list(TABLES), action="append", help="only these; the page is not written"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    start = time.perf_counter()
    tables = {name: TABLES[name](asked.replicates) for name in asked.table or TABLES}
    seconds = time.perf_counter() - start
    if asked.json:
        print(json.dumps({"replicates": asked.replicates, "seconds": round(seconds, 1), "tables": tables}))
    page = statistics_page(tables, asked.replicates, seconds)
    if asked.table is None and not asked.json:
        PAGE.write_text(page)
    if not asked.json:
        print(page)


if __name__ == "__main__":
    main()
