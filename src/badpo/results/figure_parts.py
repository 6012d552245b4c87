"""What every figure of a page is made of: its dataclass, the rows of its chart and of its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from markupsafe import Markup

from badpo.results.chart_parts import STYLES
from badpo.results.charts import DotRow, Mark
from badpo.results.labels import DPO, REFERENCE, arm_label, decimal
from badpo.results.readings import Estimate, Read, estimate
from badpo.results.run_files import MeasuredRuns

READING_HEADER = ("Reading, arm", "Value", "95 % interval", "Each seed")
FIRST_CLASS_STYLE = 4
Point = TypeVar("Point")
_ARM_STYLES = {REFERENCE: 0, DPO: 1, "pooled": 2, "shared_mean": 3}


@dataclass(frozen=True)
class TextTable:
    """Column names and rows of texts; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """One figure: panels with their subtitles, a caption, its numbers as a table, and a legend where it needs one."""

    title: str
    panels: Sequence[tuple[str, Markup]]
    caption: str
    table: TextTable
    legend: Markup = Markup("")


def style_of(suite: MeasuredRuns, arm: str) -> int:
    """The chart style of an arm, the same in every figure."""
    if arm in _ARM_STYLES:
        return _ARM_STYLES[arm]
    others = [name for name in suite.arms if name not in _ARM_STYLES]
    return class_style(others.index(arm))


def class_style(i: int) -> int:
    """The chart style of the i-th of things that are no arm with a style of its own."""
    return FIRST_CLASS_STYLE + i % (STYLES - FIRST_CLASS_STYLE)


def arm_rows(suite: MeasuredRuns, read: Read) -> list[DotRow]:
    """One row with one mark for every arm that was measured."""
    return [
        DotRow(arm_label(arm), (estimate_mark(reading, arm_label(arm), style_of(suite, arm)),))
        for arm in suite.arms
        if (reading := estimate(suite, arm, read))
    ]


def estimate_mark(found: Estimate, name: str, style: int) -> Mark:
    """An estimate with its interval and, over several seeds, a tick for each."""
    repeats = found.values if len(found.values) > 1 else ()
    return Mark(found.value, name, style, found.interval.low, found.interval.high, repeats)


def common_limits(charts: Sequence[Sequence[DotRow]]) -> tuple[float, float]:
    """One axis for charts that stand side by side."""
    values = [value for rows in charts for row in rows for mark in row.marks for value in mark.extent()]
    return min(values), max(values)


def reading_rows(
    suite: MeasuredRuns, name: str, read: Read, number: Callable[[float], str]
) -> list[tuple[str, ...]]:
    """The rows of a table under `READING_HEADER`: one for every arm that was measured."""
    return [
        (f"{name}, {arm_label(arm)}", number(found.value), ends(found, number), per_seed(found, number))
        for arm in suite.arms
        if (found := estimate(suite, arm, read))
    ]


def ends(found: Estimate | None, number: Callable[[float], str]) -> str:
    """The interval of an estimate as text; a dash where it is not known."""
    if found is None or not np.isfinite(found.interval.low):
        return decimal(None)
    return f"{number(found.interval.low)} to {number(found.interval.high)}"


def per_seed(found: Estimate | None, number: Callable[[float], str] = decimal) -> str:
    """The value of every seed as text."""
    if found is None:
        return ""
    of_seeds = zip(found.seeds, found.values, strict=True)
    return ", ".join(f"{number(value)} (seed {seed})" for seed, value in of_seeds)


def interval_note(suite: MeasuredRuns) -> str:
    """What the intervals of a figure cover."""
    if len(suite.seeds) > 1:
        return (
            f"Mark: mean over {len(suite.seeds)} seeds; line: 95 % interval (Student\u2019s t over seeds; the "
            "reference, a single run, over prompts); ticks: each seed."
        )
    return "Line: 95 % interval over the prompts measured."


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` of the points, evenly spaced, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int))
    return [points[i] for i in chosen]
