"""Measure the coverage of the audit's intervals and the errors of its flags: `python -m bench.audit_statistics`.

The module simulates votes of pools whose biases are known and writes ``docs/results/audit_statistics.md``. The sums
over the pools are in ``docs/results/audit_statistics.json``, so that a run continues earlier runs.
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
from bench.audit_streams import STREAMS, measure_stream
from bench.audited_pools import (
    ALPHA,
    CELLS,
    GOALS,
    Cell,
    explain_misses,
    find_misses,
    list_goals,
    measure_audit,
    residuals_from_line,
)
from bench.dependence_pools import dependence_cases
from bench.simulated_pools import DrawnVotes, Pool, draw_votes

Measured = dict[str, float]
Row = dict[str, Any]
Sums = dict[str, Any]
Measure = Callable[[Pool, np.random.Generator], Measured]

PAGE = Path(__file__).parents[1] / "docs" / "results" / "audit_statistics.md"
# Sums over the pools, from which a run continues.
FIGURES = PAGE.with_suffix(".json")
CODE = re.compile(r"[WN]\d{3}")
# Number of pools that one process draws before it saves their sums.
CHUNK = 25


class Case(NamedTuple):
    """A row of a table: labels, the seed of its pools, the pool, the function that measures one pool, and the goals."""

    label: dict[str, str]
    seed: int
    pool: Any
    measure: Measure
    cell: Cell


def make_case(name: str, pool: Any, measure: Measure, cell: Cell | None = None, **labels: str) -> Case:
    """Make a row. Its pools depend on its name alone, so that a new row does not change other rows."""
    return Case({"pool": name, **labels}, crc32(name.encode()), pool, measure, cell or Cell(pool))


def measure_pools(case: Case, replicates: Iterable[int]) -> list[Measured]:
    """Measure some of a row's pools. Their draws depend on the row's seed and on the number of the replicate alone."""
    draws = (np.random.default_rng([case.seed, replicate]) for replicate in replicates)
    return [
        {name: float(value) for name, value in case.measure(case.pool, draw).items()} for draw in draws
    ]


def add_up(pools: Sequence[Measured]) -> Sums:
    """Compute number, sum and sum of squares of every figure over the pools that have the figure."""
    figures = pd.DataFrame(pools).replace([np.inf, -np.inf], np.nan)
    parts = pd.DataFrame({"n": figures.count(), "sum": figures.sum(), "squares": (figures**2).sum()})
    return {
        "pools": len(pools),
        "figures": {name: [*map(float, row)] for name, *row in parts.itertuples()},
    }


def join_sums(one: Sums, other: Sums) -> Sums:
    """Add the sums over two sets of pools."""
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


def summarize(label: Mapping[str, str], sums: Sums) -> Row:
    """Mean of every figure over the pools, with Student's 95 % confidence interval."""
    row: Row = {**label, "pools": sums["pools"]}
    for name, (n, total, squares) in sums["figures"].items():
        # the figure of a code is missing, instead of 0, for a page without the code
        n = sums["pools"] if CODE.fullmatch(name) else n
        if not n:
            continue
        mean, half = total / n, math.nan
        if n > 1:
            variance = max(squares - n * mean**2, 0.0) / (n - 1)
            half = float(student_t.ppf(0.975, n - 1)) * math.sqrt(variance / n)
        row[name] = {"mean": mean, "low": mean - half, "high": mean + half}
    return row


# -- bias and reliability -------------------------------------------------------------------------------------------

Estimator = Callable[[DrawnVotes], tuple[BiasEstimates, float]]


def fit_without_reliability(votes: DrawnVotes) -> tuple[BiasEstimates, float]:
    """Estimate biases by the conditional likelihood, and test whether they are equal."""
    biases = fit_conditional(votes.arrays)
    return biases, equal_bias_p_value(votes.arrays, biases)[0]


def fit_with_reliability(votes: DrawnVotes) -> tuple[BiasEstimates, float]:
    """Estimate reliability and then biases as deviations from a line in reliability, as the audit does."""
    biases, _, p_value = adjust_for_reliability(
        fit_conditional(votes.arrays), fit_reliability(votes.arrays)
    )
    return biases, p_value[0]


ESTIMATORS: dict[str, Estimator] = {
    "conditional": fit_without_reliability,
    "marginal, quality known": lambda votes: (
        fit_marginal(votes.arrays, votes.quality, absolute=False),
        np.nan,
    ),
    "conditional, from a line in care": fit_with_reliability,
}
RELIABILITY_POOL = Pool(400, 30, better=0.7)
SCENES = {
    "equal care": RELIABILITY_POOL,
    "two kinds of comparison": replace(RELIABILITY_POOL, bimodal=True, quality_sd=1.5),
    "6 of 30 click": replace(RELIABILITY_POOL, n_clickers=6),
    "care of sd 0.4": replace(RELIABILITY_POOL, care_sd=0.4),
    "specialists": replace(RELIABILITY_POOL, specialists=True),
    "specialists, 2,000 comparisons": replace(RELIABILITY_POOL, specialists=True, n_comparisons=2000),
    "specialists, 6 of 30 click": replace(RELIABILITY_POOL, specialists=True, n_clickers=6),
}


def compare_with_truth(pool: Pool, random: np.random.Generator, estimator: str) -> Measured:
    """Measure coverage and error of deviations from the true line, and whether the test rejects equal biases."""
    votes = draw_votes(pool, random)
    biases, _ = ESTIMATORS[estimator](votes)
    _, p_value = ESTIMATORS[estimator](draw_votes(replace(pool, mean=0.0, spread=0.0), random))
    truth, finite = residuals_from_line(votes), np.isfinite(biases.deviation[:, 0])
    inside = (biases.ci_low[:, 0] <= truth) & (truth <= biases.ci_high[:, 0])
    error = (biases.deviation[:, 0] - truth)[finite]
    figures = {"coverage": inside[finite].mean(), "rmse": np.sqrt((error**2).mean())}
    return {**figures, "equal": float(p_value < ALPHA) if np.isfinite(p_value) else np.nan}


# -- the page ------------------------------------------------------------------------------------------------

# title, introduction and rows of each table
TABLES: dict[str, tuple[str, str, Callable[[], list[Case]]]] = {
    "care": (
        "Bias and reliability",
        "Each pool has 30 annotators and 400 comparisons, and the response with the attribute is better by 0.7 "
        "log-odds. Random responders have neither bias nor reliability. Specialists cast nine tenths of their votes in "
        "their own domain, and in the second domain the response with the attribute is worse. A cell contains the "
        "coverage of the 95 % confidence intervals of deviations from the line in reliability, the root mean squared "
        "error, and how often the test of equal biases rejects at 5 % in pools without bias. The audit uses the "
        "estimator of the last column, which is the only one that is valid in all pools. We rejected four other "
        "estimators. A normal distribution of quality, with or without reliability, is more precise, but rejects equal "
        "biases among specialists. A distribution of quality of any shape has the same error and takes twice the time. "
        "The probability of the votes given the wins treats estimated reliability as known, and rejects equal biases "
        "among random responders. The logarithm of reliability is infinite for random responders.",
        lambda: [
            make_case(scene, pool, partial(compare_with_truth, estimator=name), estimator=name)
            for scene, pool in SCENES.items()
            for name in ESTIMATORS
        ],
    ),
    "sequential": (
        "While labels still arrive",
        "`badpo watch` examines the votes two hundred times, at 5 %, while 4,000 comparisons arrive, or 12,000 in some "
        "pools. A flag counts if it was raised at any time. A flag is wrong if the annotator does not differ from the "
        "others; pools in which the others differ from each other too have no wrong flags. An annotator with half the "
        "reliability also has half the bias. In the last pool four annotators judge 1,000 comparisons.",
        lambda: [make_case(label, pool, measure_stream) for label, pool in STREAMS.items()],
    ),
    "one_vote": (
        "One vote per comparison",
        "Each of 40 annotators judges 100 comparisons that nobody else judges. Quality has a standard deviation of 1.5 "
        "log-odds, and the response with the attribute is better by 0.7, unless the pool's name says otherwise. "
        "The audit reports the sum of bias and of reliability times merit, for each annotator and for the pool. It "
        "does not report differences between annotators if the table contradicts, or cannot test, random assignment of "
        "comparisons; the figures about differences are from the pools in which the audit reports them. A flag is "
        "wrong if the bias deviates by at most 0.5. The audit never separates bias from merit, and never reports the "
        "impact on majority labels.",
        lambda: [
            make_case(label, pool, onevote_pools.measure_audit)
            for label, pool in onevote_pools.CELLS.items()
        ],
    ),
    "dependence": (
        "Dependent votes",
        "30 annotators cast four votes on each of 600 comparisons, unless the pool's name says otherwise. In pools "
        "with repeated votes or adjudication no annotator deviates from the pool mean. The column on the cause counts "
        "the pages with the message that names the cause. The population consists of annotators like these.",
        lambda: [make_case(label, *rest) for label, *rest in dependence_cases()],
    ),
    "pools": (
        "The whole audit, including pools that violate its assumptions",
        "30 annotators cast four votes on each of 600 comparisons, unless the pool's name says otherwise. In pools "
        "with 24 annotators each has 100 informative votes. Deviations are measured from the line in reliability if "
        "reliability differs, and from the group mean if there are groups. A flag is wrong if the true deviation is at "
        "most 0.5. The column of detected annotators counts the annotators with a planted bias, or otherwise all "
        "annotators with a large deviation; some rows require a minimum share. The class test is repeated in ten "
        "further pools for each audited pool. In pools with gold annotators the audit knows the gold annotators, "
        "deviations are the biases themselves, and the shared bias is the mean bias of the others.",
        lambda: [
            make_case(label, cell.pool, partial(measure_audit, change=cell.change), cell)
            for label, cell in CELLS.items()
        ],
    ),
}
# column heading of each figure
HEADS = {
    "pool": "pool",
    "pools": "pools",
    "wrong_flag": "pools with a wrong flag",
    "wrong_lean": "pools with a wrong bias flag",
    "flagged": "biased annotator flagged",
    "as_lean": "flagged for bias",
    "as_careless": "flagged for low reliability",
    "coverage": "coverage of confidence intervals",
    "posterior_coverage": "coverage of credible intervals",
    "tau_coverage": "coverage of tau",
    "equal": "equal biases rejected",
    "false": "wrong flags",
    "found": "detected annotators",
    "care_coverage": "coverage of reliability",
    "care_false": "wrong reliability flags",
    "care_found": "detected annotators with less than half the mean reliability",
    "called_unreliable": "pools in which an equally reliable annotator is flagged for low reliability",
    "taste_said": "and the page names a different taste as a possible reason",
    "class_rejects": "class test rejects",
    "class_if_equal": "class test rejects if it assumes equal reliability",
    "class_named": "and the page names reliability as a possible reason",
    "class_power": "class test detects a difference of 1.0",
    "level": "shared bias covered or not reported",
    "same": "flags equal those of the unchanged table",
    "impact": "coverage of the impact on labels",
    "population": "coverage of the population interval",
    "named": "cause named",
    "told": "message",
    "unsplit": "shared bias and impact not reported",
    "sum_coverage": "coverage of the annotators' sums",
    "pooled_coverage": "coverage of the pooled sum",
    "refused": "differences not reported",
    "caveat": "page says that bias or reliability may differ",
    "size": "slope of estimated on true deviations",
}
# Names of pools and estimators are seeds and keys of the stored figures; these replacements apply on the page only.
DISPLAYED = {
    r"\bthe others click\b": "the others respond at random",
    r"\bclick\b": "respond at random",
    r"\bnobody leans\b": "no bias",
    r"\bcare and leans of sd\b": "reliability and biases of sd",
    r"\bleans of\b": "biases of",
    r"\bleans\b": "biases",
    r"\bequal care\b": "equal reliability",
    r"\bcare of sd\b": "reliability of sd",
    r"\bhalf as careful\b": "half as reliable",
    r"\bcareless\b": "unreliable",
    r"\bcare\b": "reliability",
    r"\bwhat goes with it\b": "a correlated feature",
    r"\bsomething goes with it\b": "with a correlated feature",
    r"\btold\b": "known",
}
# Tables whose figures have goals, and the rows in which no message is needed.
JUDGED, CONTROLS = (
    ("one_vote", "dependence", "pools"),
    {"pools": "control", "dependence": "independent votes"},
)
# figures that are printed with their half-width, and the number of digits
WITH_ERROR = {"false": 0, "care_false": 0, "class_rejects": 1}
INTRODUCTION = """\
# How reliable the audit's figures are

We simulated votes of pools whose biases are known and compared the results of the audit with the true values. This
command writes the page:

    OMP_NUM_THREADS=1 python -m bench.audit_statistics --replicates 400

The command continues from the pools in `docs/results/audit_statistics.json`. The second column has the number of
simulated pools. Figures are percentages; the last row has the largest half-width of their 95 % Monte Carlo intervals.
Unless a table says otherwise, biases have a mean of 0.8 and a standard deviation (sd) of 0.5 log-odds, four annotators
vote on a comparison, the quality of comparisons has an sd of 1, and the responses differ in the attribute in half of
the comparisons. A vote is informative if the responses differ and the votes on the comparison are not unanimous.

Three tables have goals in their headings. The test of equal biases has the goal 0 to 6 in pools in which no annotator
deviates from the pool mean. A figure is bold if it misses its goal by more than two Monte Carlo errors. The last column
of its row then has the code of the message on the audit's page that names the cause, the share of the row's pools with
this message, and the share of the control pools with this message. The message is bold too if the first share is below
80 % or the second share is above 5 %.
"""


def display_name(name: str) -> str:
    """Write the name of a pool or an estimator in the terms of the documentation."""
    for old, new in DISPLAYED.items():
        name = re.sub(old, new, name)
    return name


def statistics_page(tables: Mapping[str, list[Row]]) -> str:
    """Write the page in Markdown, with one section for each table."""
    parts = [INTRODUCTION]
    for name, rows in tables.items():
        title, introduction, _ = TABLES[name]
        heads = dict(HEADS)
        if name == "care":
            cells = compare_estimators(rows)
        else:
            cells = mark_misses(name, rows) if name in JUDGED else [*map(format_percentages, rows)]
            cells.append(format_percentages(widest_errors(rows)))
        if name in JUDGED:
            heads |= {
                key: f"{HEADS[key]} ({100 * low:g} to {100 * high:g})"
                for key, (low, high) in GOALS.items()
            }
        columns = [key for key in dict.fromkeys([*HEADS, *cells[0]]) if any(key in row for row in cells)]
        table = pd.DataFrame(cells, columns=columns).rename(columns=heads).fillna("")
        parts.append(
            f"## {title}\n\n{introduction}\n\n{table.to_markdown(index=False, disable_numparse=True)}\n"
        )
    return "\n".join(parts)


def format_percentages(row: Row) -> dict[str, str]:
    """Format the figures of a row without their errors."""
    figures = {key: row[key]["mean"] for key in HEADS if isinstance(row.get(key), dict)}
    counted = {"pools": str(row["pools"])} if "pools" in row else {}
    return {"pool": display_name(row["pool"]), **counted} | {
        key: f"{100 * mean:.0f}" for key, mean in figures.items()
    }


def widest_errors(rows: list[Row]) -> Row:
    """Compute the largest half-width of each figure that is printed without its half-width, rounded up."""
    figures = [{k: v for k, v in row.items() if isinstance(v, dict)} for row in rows]
    halves = pd.DataFrame([{k: v["high"] - v["mean"] for k, v in row.items()} for row in figures]).max()
    shown = halves.drop(WITH_ERROR, errors="ignore").dropna()
    return {"pool": "± at most"} | {
        k: {"mean": math.ceil(100 * v - 1e-9) / 100} for k, v in shown.items()
    }


def compare_estimators(rows: list[Row]) -> list[dict[str, str]]:
    """Arrange the figures with a column for each estimator."""
    by_estimator = {name: [row for row in rows if row["estimator"] == name] for name in ESTIMATORS}
    rows = rows + [
        {"estimator": name, **widest_errors(own)} for name, own in by_estimator.items() if own
    ]
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        texts = format_percentages(row)
        error = f"{row['rmse']['mean']:.2f}".removeprefix("0")
        figures = [texts["coverage"], error, *([texts["equal"]] if "equal" in texts else [])]
        cells.setdefault(row["pool"], {key: texts[key] for key in ("pool", "pools") if key in texts})[
            display_name(row["estimator"])
        ] = ", ".join(figures)
    return [*cells.values()]


def mark_misses(table: str, rows: list[Row]) -> list[dict[str, str]]:
    """Format rows, mark the figures that miss their goals, and add the code of the message that names the cause."""
    cases = {case.label["pool"]: case for case in TABLES[table][2]()}
    marked, control = [], next((row for row in rows if row["pool"] == CONTROLS.get(table)), None)
    for row in rows:
        cell, cells = cases[row["pool"]].cell, format_percentages(row)
        missed = find_misses(row, list_goals(cell))
        for key in [key for key in cells if key in missed or key in WITH_ERROR]:
            digits = 1 if key in missed else WITH_ERROR[key]
            mean, high = 100 * row[key]["mean"], 100 * row[key]["high"]
            cells[key] = f"{mean:.{digits}f} ± {high - mean:.{digits}f}"
        if cell.power:
            cells["found"] += f" (goal {100 * cell.power:g})"
        for key in missed:
            cells[key] = f"**{cells[key]}**"
        marked.append(cells | ({"told": explain_misses(row, control, cell.reasons)} if missed else {}))
    return marked


# -- all pools -----------------------------------------------------------------------------------------------


def draw_rows(cases: Sequence[tuple[str, Case]], replicates: int, processes: int, file: Path) -> None:
    """Draw the pools that rows still lack, and add their sums to a file.

    The file has, for each row, the sums over its pools, the chunks of pools that were drawn, and the figures of the
    first pool. An interrupted run continues. A row starts again if the figures of its first pool have changed, because
    the estimates have then changed.
    """
    rows: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    with ProcessPoolExecutor(processes) as executor:
        firsts = executor.map(measure_pools, [case for _, case in cases], repeat([0]))
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
            executor.submit(measure_pools, case, range(first, first + CHUNK)): (
                row_key(table, case),
                first,
            )
            for first, table, case in chunks
        }
        for done in as_completed(drawn):
            key, first = drawn[done]
            rows[key] |= join_sums(rows[key], add_up(done.result()))
            rows[key]["chunks"] = sorted([*rows[key]["chunks"], first])
            lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows)]
            replace_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def row_key(table: str, case: Case) -> str:
    """Return the key of a row in the file."""
    return " / ".join((table, *case.label.values()))


def same_figures(one: Measured | None, other: Measured) -> bool:
    """Whether two pools have the same figures."""
    if one is None or one.keys() != other.keys():
        return False
    return all(math.isclose(one[name], other[name], abs_tol=1e-6) for name in one)


def replace_text(file: Path, text: str) -> None:
    """Replace a file atomically."""
    unfinished = file.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(file)


def main() -> None:
    """Simulate pools, compare estimates with the truth, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100, help="pools for each row of a table")
    parser.add_argument(
        "--table",
        choices=[*TABLES],
        action="append",
        help="simulate pools of this table only; repeatable",
    )
    parser.add_argument(
        "--pool", default="", help="simulate pools of rows whose name contains this text only"
    )
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
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
            tables.setdefault(name, []).append(summarize(case.label, rows[key]))
    PAGE.write_text(statistics_page(tables))


if __name__ == "__main__":
    main()
