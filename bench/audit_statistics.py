"""Do the audit's estimates, intervals and flags keep their promises? `python -m bench.audit_statistics [--json]`.

Draws votes from pools whose leans are known and writes what was found to ``docs/results/audit_statistics.md``.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import chdtrc

from badpo.estimation.alternative_estimators import fit_fixed, fit_random
from badpo.estimation.care import beside_care, fit_care
from badpo.estimation.fit import Leans, fit_conditional
from badpo.estimation.significance import equal_leans_test
from badpo.theory.summaries import t_interval
from bench.audit_streams import STREAMS, flags_on_the_way
from bench.audited_pools import ALPHA, CELLS, GOALS, audited, from_line, misses, share_with, told
from bench.simulated_pools import DrawnVotes, Pool, draw_votes

Measured = dict[str, float]
Measure = Callable[[Pool, np.random.Generator], Measured]

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit_statistics.md"
SELDOM = 0.05
CODE = re.compile(r"[WN]\d{3}")


class Case(NamedTuple):
    """A row of a table: what it is called, the seed of its pools, the pool, and what is measured of each."""

    label: dict[str, Any]
    seed: int
    pool: Pool
    measure: Measure


def measured(case: Case, replicates: int) -> dict[str, Any]:
    """Mean of every figure over the replicates, with its 95 % interval; replicates without a figure are left out."""
    draws = (np.random.default_rng([case.seed, r]) for r in range(replicates))
    figures = pd.DataFrame([case.measure(case.pool, draw) for draw in draws])
    # a code that does not stand on a page was not told there
    figures = figures.fillna(dict.fromkeys(filter(CODE.fullmatch, figures), 0.0))
    row: dict[str, Any] = {**case.label, "replicates": replicates}
    for name, values in figures.replace([np.inf, -np.inf], np.nan).items():
        if values.notna().any():
            interval = t_interval(values.dropna().to_numpy())
            row[name] = {"mean": interval.estimate, "low": interval.low, "high": interval.high}
    return row


# -- lean beside care -------------------------------------------------------------------------------------------

Estimator = Callable[[DrawnVotes], tuple[Leans, float]]


def without_care(votes: DrawnVotes) -> tuple[Leans, float]:
    """The conditional likelihood, and the p-value of the test that all leans are equal."""
    leans = fit_conditional(*votes.arrays)
    return leans, equal_leans_test(*votes.arrays[:4], leans)[0]


def quality_at_random(votes: DrawnVotes) -> tuple[Leans, float]:
    """Quality from one normal distribution, and Wald's test."""
    leans = fit_random(*votes.arrays)
    known = np.isfinite(leans.deviation[:, 0])
    deviation, covariance = leans.deviation[known, 0], leans.covariance[np.ix_(known, known)]
    squares = deviation @ np.linalg.pinv(covariance, hermitian=True) @ deviation
    return leans, float(chdtrc(known.sum() - 1, squares))


def about_a_line(votes: DrawnVotes) -> tuple[Leans, float]:
    """The audit's way: care where the sides do not differ, then conditional leans from the line in care."""
    leans, _, p_value = beside_care(fit_conditional(*votes.arrays), fit_care(*votes.arrays))
    return leans, p_value[0]


ESTIMATORS: dict[str, Estimator] = {
    "conditional": without_care,
    "random": quality_at_random,
    "fixed, quality known": lambda votes: (fit_fixed(*votes.arrays, votes.quality), np.nan),
    "fixed, no quality": lambda votes: (fit_fixed(*votes.arrays, np.zeros_like(votes.quality)), np.nan),
    "conditional, from a line in care": about_a_line,
}
CARE_POOL = Pool(400, 30, better=0.7)
SCENES = {
    "equal care": CARE_POOL,
    "two kinds of comparison": replace(CARE_POOL, bimodal=True, quality_sd=1.5),
    "6 of 30 click": replace(CARE_POOL, n_clickers=6),
    "care of sd 0.4": replace(CARE_POOL, care_sd=0.4),
    "specialists": replace(CARE_POOL, specialists=True),
    "specialists, 2,000 comparisons": replace(CARE_POOL, specialists=True, n_comparisons=2000),
    "specialists, 6 of 30 click": replace(CARE_POOL, specialists=True, n_clickers=6),
}


def beside_truth(pool: Pool, random: np.random.Generator, estimator: str) -> Measured:
    """Coverage and error of deviations from the true line in care, and whether equality is rejected where it holds."""
    votes = draw_votes(pool, random)
    leans, _ = ESTIMATORS[estimator](votes)
    _, p_value = ESTIMATORS[estimator](draw_votes(replace(pool, mean=0.0, spread=0.0), random))
    truth, finite = from_line(votes), np.isfinite(leans.deviation[:, 0])
    inside = (leans.ci_low[:, 0] <= truth) & (truth <= leans.ci_high[:, 0])
    error = (leans.deviation[:, 0] - truth)[finite]
    figures = {"coverage": inside[finite].mean(), "rmse": np.sqrt((error**2).mean())}
    return {**figures, "equal": float(p_value < ALPHA) if np.isfinite(p_value) else np.nan}


def care_cases() -> Iterator[Case]:
    """Estimators with and without care."""
    for number, (scene, pool) in enumerate(SCENES.items()):
        for name in ESTIMATORS:
            label = {"pool": scene, "estimator": name}
            yield Case(label, 6000 + number, pool, partial(beside_truth, estimator=name))


# -- while labels arrive -------------------------------------------------------------------------------------


def stream_cases() -> Iterator[Case]:
    """Flags on the way through pools, right and wrong."""
    for number, (label, pool) in enumerate(STREAMS.items()):
        yield Case({"pool": label}, 4000 + number, pool, flags_on_the_way)


# -- the whole audit -----------------------------------------------------------------------------------------


def pool_cases() -> Iterator[Case]:
    """The public audit on every kind of pool."""
    for number, (label, cell) in enumerate(CELLS.items()):
        yield Case({"pool": label}, 5000 + number, cell.pool, partial(audited, change=cell.change))


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with marks on figures that miss their goals, the code that tells why, and all codes."""
    shown, control = [], next((row for row in rows if row["pool"] == "control"), None)
    for row in rows:
        missed = misses(row)
        cells = _cells(row)
        if power := CELLS[row["pool"]].power:
            cells["found"] += f" ({100 * power:g} asked)"
        marks = {key: "**" if surely else "*" for key, surely in missed.items()}
        cells |= {key: f"{mark}{cells[key]}{mark}" for key, mark in marks.items()}
        codes = {key: share_with(row, key) for key in filter(CODE.fullmatch, row)}
        often = [f"{key} {share:.0%}" for key, share in codes.items() if share >= SELDOM]
        why = told(row, control) if any(missed.values()) else ""
        shown.append(cells | {"told": why, "codes": ", ".join(sorted(often))})
    return shown


# -- the page ------------------------------------------------------------------------------------------------

# what a table is called, how it is read, and its rows
TABLES: dict[str, tuple[str, str, Callable[[], Iterator[Case]]]] = {
    "care": (
        "Lean beside care",
        "30 annotators, 400 comparisons, the side with the attribute better by 0.7; clickers neither lean nor follow "
        "quality; specialists cast nine tenths of the votes in their domain, and in the other one the side is worse. "
        "Deviations count from the line of the true leans in the true care. That leans are equal is tested at 5 % in "
        "pools in which nobody leans. The audit takes the last, which alone tells careless people from leaners and "
        "holds everywhere here. Tried before, and left out: lean and care in one likelihood with random quality, "
        "which is more precise but rejects equal leans among specialists as often as `random`; the same with a "
        "quality of any shape, no better in twice the time; the probability of the votes given the wins under random "
        "quality, which takes care for known and rejects equal leans among clickers; the logarithm of care, in which "
        "clickers are infinitely far away, so that fewer intervals of care hold.",
        care_cases,
    ),
    "sequential": (
        "While labels still arrive",
        "4,000 comparisons arrive one after the other, and `badpo watch` looks two hundred times, at 5 %; what it ever "
        "said is counted. A flag is wrong when it is about somebody like all others; none is counted where these "
        "differ too. Whoever is half as careful leans half as much, so that only their care differs. In the last pool "
        "four people judge 1,000 comparisons.",
        stream_cases,
    ),
    "pools": (
        "The whole audit, also where it assumes what does not hold",
        "30 annotators cast four votes on each of 600 comparisons, unless the name says otherwise. Goals stand in the "
        "heads. A figure that misses its goal is bold, and beside it stands the code on the audit's page that tells "
        "why, bold too where fewer than 80 % of the row's pools have it or more than 5 % of the control's; one that "
        "misses by no more than its Monte Carlo error is in italics. One of 24 has 100 informative votes. Deviations "
        "count from the line in care where care is unequal, from the group's mean where there are several groups. A "
        "flag is wrong when the true deviation is at most 0.5. Found are the planted, of which a row may ask for a "
        "share, or else all large deviations. The class test is done in ten more pools for each that is audited.",
        pool_cases,
    ),
}
# figure -> its head, and the factor and digits with which it is shown; counts stand without an interval
HEADS = {
    "slope": ("slope of estimate on truth", (1, 3)),
    "coverage": ("95 % intervals hold the truth, %", (100, 1)),
    "rmse": ("root mean squared error", (1, 2)),
    "posterior_coverage": ("posterior intervals hold the truth, %", (100, 1)),
    "tau": ("tau", (1, 3)),
    "tau_coverage": ("tau's interval holds it, %", (100, 1)),
    "wrong_flag": ("pools with a wrong flag, %", (100, 1)),
    "wrong_lean": ("a wrong lean, %", (100, 1)),
    "flagged": ("the one is flagged, %", (100, 1)),
    "as_lean": ("as leaning, %", (100, 1)),
    "as_careless": ("called careless, %", (100, 1)),
    "votes_to_flag": ("informative votes until then", None),
    "equal": ("equal leans rejected, %", (100, 0)),
    "flags": ("flags", (1, 1)),
    "false": ("wrong, % of flags", (100, 1)),
    "found": ("found, %", (100, 1)),
    "care_coverage": ("intervals of care, %", (100, 1)),
    "care_false": ("flags of care, wrong, %", (100, 1)),
    "care_found": ("found, % of those with less than half", (100, 0)),
    "class_rejects": ("class test rejects, %", (100, 1)),
    "class_power": ("and a class that leans 1.0 more, %", (100, 0)),
    "level": ("level holds the truth or is unknown, %", (100, 0)),
    "same": ("same flags as without, %", (100, 0)),
    "told": ("told by", None),
    "codes": ("codes, % of pools", None),
}
INTRODUCTION = """\
# What the audit's figures are worth

Votes are drawn from pools whose leans are known, and what the audit finds is compared with them. Written by

    OMP_NUM_THREADS=1 python -m bench.audit_statistics{asked}

in {seconds:,.0f} seconds of {processes} cores ({replicates} pools a row). A figure stands with the half-width of its
95 % Monte Carlo interval. Unless a table says otherwise leans have mean 0.8 and sd 0.5 log-odds, four annotators vote
on a comparison, its quality has sd 1, and its sides differ in the attribute every other time. A vote is informative
when the sides differ and the votes on the comparison are not unanimous.
"""


def statistics_page(tables: Mapping[str, list[dict[str, Any]]], replicates: int, **run: float) -> str:
    """Markdown with one section per table."""
    asked = "" if replicates == 100 else f" --replicates {replicates}"
    parts = [INTRODUCTION.format(asked=asked, replicates=replicates, **run)]
    for name, rows in tables.items():
        title, reading, _ = TABLES[name]
        goals = {key: f" ({100 * low:g} to {100 * high:g})" for key, (low, high) in GOALS.items()}
        cells, goals = (judged(rows), goals) if name == "pools" else ([*map(_cells, rows)], {})
        columns = [key for key in (*rows[0], *HEADS) if any(key in row for row in cells)]
        table = pd.DataFrame(cells, columns=[*dict.fromkeys(columns)]).drop(columns="replicates")
        shown = table.rename(
            columns={key: head + goals.get(key, "") for key, (head, _) in HEADS.items()}
        )
        parts.append(f"## {title}\n\n{reading}\n\n{shown.fillna('').to_markdown(index=False)}\n")
    return "\n".join(parts)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {key: _cell(key, value) for key, value in row.items() if not CODE.fullmatch(key)}


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if (form := HEADS[name][1]) is None:
        return f"{value['mean']:.0f}"
    scale, digits = form
    half = (value["high"] - value["low"]) / 2
    return f"{scale * value['mean']:.{digits}f} ± {scale * half:.{digits}f}"


def main() -> None:
    """Draw, estimate, compare; write the page or print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100, help="pools for each row of a table")
    parser.add_argument(
        "--table", choices=list(TABLES), action="append", help="these alone, and no page"
    )
    parser.add_argument("--pool", help="only rows whose name has this in it, and no page")
    parser.add_argument("--processes", type=int, default=2, help="rows that are drawn at once")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args()
    start = time.perf_counter()
    with ProcessPoolExecutor(asked.processes) as pool:
        tables = {}
        for name in asked.table or TABLES:
            cases = [
                case for case in TABLES[name][2]() if (asked.pool or "") in str(case.label.get("pool"))
            ]
            tables[name] = list(pool.map(measured, cases, repeat(asked.replicates)))
    run = {"processes": asked.processes, "seconds": time.perf_counter() - start}
    if asked.json:
        print(json.dumps({"replicates": asked.replicates, **run, "tables": tables}))
        return
    page = statistics_page(tables, asked.replicates, **run)
    if asked.table is None and asked.pool is None:
        PAGE.write_text(page)
    print(page)


if __name__ == "__main__":
    main()
