"""Do the audit's estimates, intervals and flags keep their promises? `python -m bench.audit_statistics`.

Draws votes from pools whose biases are known and writes ``docs/results/audit_statistics.md``. The sums over the pools
are in ``docs/results/audit_statistics.json``, so that a run continues the pools of earlier runs.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.stats import t as student_t

from badpo.estimation.alternative_estimators import fit_marginal
from badpo.estimation.fit import BiasEstimates, fit_conditional
from badpo.estimation.reliability import adjust_for_reliability, fit_reliability
from badpo.estimation.significance import equal_bias_p_value
from bench import onevote_pools
from bench.audit_streams import STREAMS, flags_on_the_way
from bench.audited_pools import ALPHA, CELLS, GOALS, Cell, audited, from_line, goals_of, misses, told
from bench.dependence_pools import dependence_cases
from bench.simulated_pools import DrawnVotes, Pool, draw_votes

Measured = dict[str, float]
Row = dict[str, Any]
Sums = dict[str, Any]
Measure = Callable[[Pool, np.random.Generator], Measured]

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit_statistics.md"
FIGURES = PAGE.with_suffix(".json")  # sums over the pools, from which a run goes on
CODE = re.compile(r"[WN]\d{3}")
CHUNK = 25  # pools that one process draws in turn


class Case(NamedTuple):
    """A row of a table: labels, the seed of its pools, the pool, what measures one pool, and what is asked of it."""

    label: dict[str, str]
    seed: int
    pool: Any
    measure: Measure
    cell: Cell


def case_of(name: str, pool: Any, measure: Measure, cell: Cell | None = None, **labels: str) -> Case:
    """A row whose pools depend on its name alone, so that a new row moves no other."""
    return Case({"pool": name, **labels}, crc32(name.encode()), pool, measure, cell or Cell(pool))


def measured(case: Case, replicates: Iterable[int]) -> list[Measured]:
    """The figures of some of a row's pools, whose draws depend on the row's seed and on the replicate alone."""
    draws = (np.random.default_rng([case.seed, replicate]) for replicate in replicates)
    return [
        {name: float(value) for name, value in case.measure(case.pool, draw).items()} for draw in draws
    ]


def add_up(pools: Sequence[Measured]) -> Sums:
    """Number, sum and sum of squares of every figure over pools; pools without a figure are left out of its number."""
    figures = pd.DataFrame(pools).replace([np.inf, -np.inf], np.nan)
    parts = pd.DataFrame({"n": figures.count(), "sum": figures.sum(), "squares": (figures**2).sum()})
    return {
        "pools": len(pools),
        "figures": {name: [*map(float, row)] for name, *row in parts.itertuples()},
    }


def join_sums(one: Sums, other: Sums) -> Sums:
    """The sums over the pools of both."""
    figures = {
        name: [
            a + b
            for a, b in zip(
                *(each["figures"].get(name, (0, 0, 0)) for each in (one, other)), strict=True
            )
        ]
        for name in one["figures"] | other["figures"]
    }
    return {"pools": one["pools"] + other["pools"], "figures": figures}


def summarized(label: Mapping[str, str], sums: Sums) -> Row:
    """Mean of every figure over the pools, with Student's 95 % confidence interval."""
    row: Row = {**label, "pools": sums["pools"]}
    for name, (n, total, squares) in sums["figures"].items():
        # a code that is not on a page has no figure there
        n = sums["pools"] if CODE.fullmatch(name) else n
        if not n:
            continue
        mean, half = total / n, math.nan
        if n > 1:
            variance = max(squares - n * mean**2, 0.0) / (n - 1)
            half = float(student_t.ppf(0.975, n - 1)) * math.sqrt(variance / n)
        row[name] = {"mean": mean, "low": mean - half, "high": mean + half}
    return row


# -- lean beside care -------------------------------------------------------------------------------------------

Estimator = Callable[[DrawnVotes], tuple[BiasEstimates, float]]


def without_care(votes: DrawnVotes) -> tuple[BiasEstimates, float]:
    """The conditional likelihood, and the p-value of the test that all leans are equal."""
    leans = fit_conditional(votes.arrays)
    return leans, equal_bias_p_value(votes.arrays, leans)[0]


def about_a_line(votes: DrawnVotes) -> tuple[BiasEstimates, float]:
    """The audit's way: care where the sides do not differ, then conditional leans from the line in care."""
    leans, _, p_value = adjust_for_reliability(
        fit_conditional(votes.arrays), fit_reliability(votes.arrays)
    )
    return leans, p_value[0]


ESTIMATORS: dict[str, Estimator] = {
    "conditional": without_care,
    "marginal, quality known": lambda votes: (
        fit_marginal(votes.arrays, votes.quality, absolute=False),
        np.nan,
    ),
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


# -- the page ------------------------------------------------------------------------------------------------

# what a table is called, how it is read, and its rows
TABLES: dict[str, tuple[str, str, Callable[[], list[Case]]]] = {
    "care": (
        "Lean beside care",
        "30 annotators, 400 comparisons, the side with the attribute better by 0.7; clickers neither lean nor follow "
        "quality; specialists cast nine tenths of the votes in their domain, and in the other one the side is worse. "
        "A cell has the share of 95 % intervals of deviations from the line in care that hold the truth, the root mean "
        "squared error, and how often equal leans are rejected at 5 % where nobody leans. The audit takes the last "
        "column, which alone holds everywhere here. Tried before, and left out: quality from one normal distribution, "
        "with care or without, more precise but rejecting equal leans among specialists; the same with "
        "a quality of any shape, no better in twice the time; the probability of the votes given the wins, which takes "
        "care for known and rejects equal leans among clickers; the logarithm of care, infinite for clickers.",
        lambda: [
            case_of(scene, pool, partial(beside_truth, estimator=name), estimator=name)
            for scene, pool in SCENES.items()
            for name in ESTIMATORS
        ],
    ),
    "sequential": (
        "While labels still arrive",
        "`badpo watch` looks two hundred times, at 5 %, while 4,000 comparisons arrive, or three times as many; what "
        "it ever said is counted. A flag is wrong when it is about somebody like all others; none is where these "
        "differ too. Whoever is half as careful leans half as much. In the last pool four people judge 1,000 "
        "comparisons.",
        lambda: [case_of(label, pool, flags_on_the_way) for label, pool in STREAMS.items()],
    ),
    "one_vote": (
        "One vote per comparison",
        "40 annotators judge 100 comparisons of their own; quality has sd 1.5, and the side with the attribute is "
        "better by 0.7, unless the name says otherwise. What is reported of an annotator and of the pool is the sum "
        "of bias and of reliability times merit. Differences between annotators are refused if the table "
        "contradicts, or cannot test, that comparisons were given at random; figures of differences are about the "
        "pools in which they are reported. A flag is wrong if the bias deviates by at most 0.5. The split of bias "
        "and merit, and the impact on majorities, are refused in every pool.",
        lambda: [
            case_of(label, pool, onevote_pools.audited) for label, pool in onevote_pools.CELLS.items()
        ],
    ),
    "dependence": (
        "Votes that depend on one another",
        "30 annotators cast four votes on each of 600 comparisons, unless the name says otherwise; nobody deviates in "
        "pools of repeated or deciding votes. Named is how often a message on the page names the cause. The population "
        "is that of annotators like these.",
        lambda: [case_of(label, *rest) for label, *rest in dependence_cases()],
    ),
    "pools": (
        "The whole audit, also where it assumes what does not hold",
        "30 annotators cast four votes on each of 600 comparisons, unless the name says otherwise. One of 24 has 100 "
        "informative votes. Deviations count from the line in care where care is unequal, from group means where there "
        "are groups. A flag is wrong when the true deviation is at most 0.5. Found are the planted, "
        "of whom a row may ask for a share, or else all large deviations. The class test is done in ten pools for each "
        "that is audited. In rows about gold annotators the audit is told who they are, deviations are biases "
        "themselves, and the level is the mean bias of the others.",
        lambda: [
            case_of(label, cell.pool, partial(audited, change=cell.change), cell)
            for label, cell in CELLS.items()
        ],
    ),
}
# figure -> the head of its column
HEADS = {
    "pool": "pool",
    "pools": "pools",
    "wrong_flag": "pools with a wrong flag",
    "wrong_lean": "a wrong lean",
    "flagged": "the one is flagged",
    "as_lean": "as leaning",
    "as_careless": "called careless",
    "coverage": "own intervals hold",
    "posterior_coverage": "posterior intervals hold",
    "tau_coverage": "tau's interval holds",
    "equal": "equal leans rejected",
    "false": "wrong among flags",
    "found": "found",
    "care_coverage": "intervals of care hold",
    "care_false": "wrong among flags of care",
    "care_found": "found of those with less than half",
    "called_unreliable": "somebody of equal reliability flagged",
    "taste_said": "and the page says that it may be another taste",
    "class_rejects": "class test rejects",
    "class_if_equal": "and if it took classes as equally reliable",
    "class_named": "reliability is named where that one rejects",
    "class_power": "and a class that leans 1.0 more",
    "level": "level holds or is unknown",
    "same": "same flags as without",
    "impact": "impact's interval holds",
    "population": "interval for the population holds",
    "named": "cause named",
    "told": "told by",
    "unsplit": "split and impact refused",
    "sum_coverage": "intervals of sums hold",
    "pooled_coverage": "the pooled one holds",
    "refused": "differences refused",
    "caveat": "less bias or less reliable is said",
    "size": "deviations beside true ones",
}
# Tables whose figures have goals, and the rows in which no message is needed.
JUDGED, CONTROLS = (
    ("one_vote", "dependence", "pools"),
    {"pools": "control", "dependence": "independent votes"},
)
# figures that stand with their half-width, and the digits of both
WITH_ERROR = {"false": 0, "care_false": 0, "class_rejects": 1}
INTRODUCTION = """\
# What the audit's figures are worth

Votes are drawn from pools whose leans are known, and what the audit finds is compared with them. Written by

    OMP_NUM_THREADS=1 python -m bench.audit_statistics --replicates 400

which continues from the pools in `docs/results/audit_statistics.json`. The second column has the number of pools.
Figures are percentages; the last row has the largest half-width of their 95 % Monte Carlo intervals. Unless a table
says otherwise leans have mean 0.8 and sd 0.5 log-odds, four annotators vote on a comparison, its quality has sd 1, and
its sides differ in the attribute every other time. A vote is informative when the sides differ and the votes on the
comparison are not unanimous.

Three tables have goals in their heads. Tests of equal biases have the goal 0 to 6 in pools in which nobody deviates. A
figure that misses its goal by more than two Monte Carlo errors is bold. The last column of its row then has the code of
the message on the audit's page that names the cause, with the share of the row's pools and of the control's pools in
which it stands. This is bold too if the share is below 80 % of the row's or above 5 % of the control's.
"""


def statistics_page(tables: Mapping[str, list[Row]]) -> str:
    """Markdown with one section per table."""
    parts = [INTRODUCTION]
    for name, rows in tables.items():
        title, reading, _ = TABLES[name]
        heads = dict(HEADS)
        if name == "care":
            cells = beside_each_other(rows)
        else:
            cells = judged(name, rows) if name in JUDGED else [*map(percentages, rows)]
            cells.append(percentages(widest(rows)))
        if name in JUDGED:
            heads |= {
                key: f"{HEADS[key]} ({100 * low:g} to {100 * high:g})"
                for key, (low, high) in GOALS.items()
            }
        columns = [key for key in dict.fromkeys([*HEADS, *cells[0]]) if any(key in row for row in cells)]
        table = pd.DataFrame(cells, columns=columns).rename(columns=heads).fillna("")
        parts.append(
            f"## {title}\n\n{reading}\n\n{table.to_markdown(index=False, disable_numparse=True)}\n"
        )
    return "\n".join(parts)


def percentages(row: Row) -> dict[str, str]:
    """The cells of a row without their errors."""
    figures = {key: row[key]["mean"] for key in HEADS if isinstance(row.get(key), dict)}
    counted = {"pools": str(row["pools"])} if "pools" in row else {}
    return {"pool": row["pool"], **counted} | {key: f"{100 * mean:.0f}" for key, mean in figures.items()}


def widest(rows: list[Row]) -> Row:
    """The largest half-width of each figure, rounded up, of those that stand without."""
    figures = [{k: v for k, v in row.items() if isinstance(v, dict)} for row in rows]
    halves = pd.DataFrame([{k: v["high"] - v["mean"] for k, v in row.items()} for row in figures]).max()
    shown = halves.drop(WITH_ERROR, errors="ignore").dropna()
    return {"pool": "± at most"} | {
        k: {"mean": math.ceil(100 * v - 1e-9) / 100} for k, v in shown.items()
    }


def beside_each_other(rows: list[Row]) -> list[dict[str, str]]:
    """A column for each estimator, in the cells its figures."""
    of = {name: [row for row in rows if row["estimator"] == name] for name in ESTIMATORS}
    rows = rows + [{"estimator": name, **widest(own)} for name, own in of.items() if own]
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        shown = percentages(row)
        error = f"{row['rmse']['mean']:.2f}".removeprefix("0")
        figures = [shown["coverage"], error, *([shown["equal"]] if "equal" in shown else [])]
        cells.setdefault(row["pool"], {key: shown[key] for key in ("pool", "pools") if key in shown})[
            row["estimator"]
        ] = ", ".join(figures)
    return [*cells.values()]


def judged(table: str, rows: list[Row]) -> list[dict[str, str]]:
    """The cells with marks on figures that miss their goals, and the code that tells why."""
    cases = {case.label["pool"]: case for case in TABLES[table][2]()}
    shown, control = [], next((row for row in rows if row["pool"] == CONTROLS.get(table)), None)
    for row in rows:
        cell, cells = cases[row["pool"]].cell, percentages(row)
        missed = misses(row, goals_of(cell))
        for key in [key for key in cells if key in missed or key in WITH_ERROR]:
            digits = 1 if key in missed else WITH_ERROR[key]
            mean, high = 100 * row[key]["mean"], 100 * row[key]["high"]
            cells[key] = f"{mean:.{digits}f} ± {high - mean:.{digits}f}"
        if cell.power:
            cells["found"] += f" ({100 * cell.power:g} asked)"
        for key in missed:
            cells[key] = f"**{cells[key]}**"
        shown.append(cells | ({"told": told(row, control, cell.reasons)} if missed else {}))
    return shown


# -- all pools -----------------------------------------------------------------------------------------------


def draw_rows(cases: Sequence[tuple[str, Case]], replicates: int, processes: int, file: Path) -> None:
    """Draw the pools that rows still lack and add their sums to a file.

    The file has, for each row, the sums over its pools, the chunks of pools that were drawn, and the figures of the
    first pool. An interrupted run goes on. A row whose first pool has other figures now starts anew, because the
    estimates have changed since.
    """
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    with ProcessPoolExecutor(processes) as executor:
        firsts = executor.map(measured, [case for _, case in cases], repeat([0]))
        for (table, case), (figures,) in zip(cases, firsts, strict=True):
            first = {name: value for name, value in figures.items() if math.isfinite(value)}
            if not same_figures(rows.get(key := row_key(table, case), {}).get("first"), first):
                rows[key] = {"first": first, "chunks": [], **add_up([])}
        chunks = [
            (first, table, case)
            for first in range(0, replicates, CHUNK)
            for table, case in cases
            if first not in rows[row_key(table, case)]["chunks"]
        ]
        drawn = {
            executor.submit(measured, case, range(first, first + CHUNK)): (row_key(table, case), first)
            for first, table, case in chunks
        }
        for done in as_completed(drawn):
            key, first = drawn[done]
            rows[key] |= join_sums(rows[key], add_up(done.result()))
            rows[key]["chunks"] = sorted([*rows[key]["chunks"], first])
            lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)]
            replace_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def row_key(table: str, case: Case) -> str:
    return " / ".join((table, *case.label.values()))


def same_figures(one: Measured | None, other: Measured) -> bool:
    if one is None or one.keys() != other.keys():
        return False
    return all(math.isclose(one[name], other[name], abs_tol=1e-6) for name in one)


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    written = file.with_suffix(".new")
    written.write_text(text)
    written.replace(file)


def main() -> None:
    """Draw, estimate, compare and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100, help="pools for each row of a table")
    parser.add_argument(
        "--table", choices=[*TABLES], action="append", help="draw pools of these tables only"
    )
    parser.add_argument(
        "--pool", default="", help="draw pools of rows whose name contains this text only"
    )
    parser.add_argument(
        "--processes", type=int, default=2, help=f"chunks of {CHUNK} pools drawn at once"
    )
    options = parser.parse_args()
    cases = [(name, case) for name, (_, _, rows) in TABLES.items() for case in rows()]
    wanted = [
        (name, case)
        for name, case in cases
        if name in (options.table or TABLES) and options.pool in case.label["pool"]
    ]
    draw_rows(wanted, options.replicates, options.processes, FIGURES)
    rows = json.loads(FIGURES.read_text())
    tables: dict[str, list[Row]] = {}
    for name, case in cases:
        if (key := row_key(name, case)) in rows:
            tables.setdefault(name, []).append(summarized(case.label, rows[key]))
    PAGE.write_text(statistics_page(tables))


if __name__ == "__main__":
    main()
