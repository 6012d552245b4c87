"""What every figure of a run page is made of: its dataclass, the rows of its chart and of its table."""

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
from badpo.results.run_files import Suite

READING_HEADER = ("Reading, arm", "Value", "95 % interval", "Each seed")
FIRST_CLASS_STYLE = 4
Point = TypeVar("Point")
_ARM_STYLES = {REFERENCE: 0, DPO: 1, "pooled": 2, "shared_mean": 3}


@dataclass(frozen=True)
class Table:
    """Column names and rows of texts; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """One figure: panels with their subtitles, a legend, a caption, and its numbers as a table."""

    title: str
    panels: tuple[tuple[str, Markup], ...]
    legend: Markup
    caption: str
    table: Table


def style_of(suite: Suite, arm: str) -> int:
    """The chart style of an arm, the same in every figure."""
    if arm in _ARM_STYLES:
        return _ARM_STYLES[arm]
    others = [name for name in suite.arms if name not in _ARM_STYLES]
    return FIRST_CLASS_STYLE + others.index(arm) % (STYLES - FIRST_CLASS_STYLE)


def arm_rows(suite: Suite, arms: Sequence[str], read: Read) -> list[DotRow]:
    """One row with one mark for every arm that was measured."""
    found = {arm: reading for arm in arms if (reading := estimate(suite, arm, read))}
    marks = {
        arm: estimate_mark(reading, arm_label(arm), style_of(suite, arm)) for arm, reading in found.items()
    }
    return [DotRow(arm_label(arm), (mark,)) for arm, mark in marks.items()]


def estimate_mark(found: Estimate, name: str, style: int) -> Mark:
    """An estimate with its interval and, over several seeds, a tick for each."""
    repeats = found.values if len(found.values) > 1 else ()
    return Mark(found.value, name, style, found.interval.low, found.interval.high, repeats)


def common_limits(charts: Sequence[Sequence[DotRow]]) -> tuple[float, float] | None:
    """One axis for charts that stand side by side."""
    marks = [mark for rows in charts for row in rows for mark in row.marks]
    values = [value for mark in marks for value in mark.extent()]
    return (min(values), max(values)) if values else None


def reading_rows(
    suite: Suite, arms: Sequence[str], name: str, read: Read, number: Callable[[float], str]
) -> list[tuple[str, ...]]:
    """The rows of a table under `READING_HEADER`: one for every arm that was measured."""
    found = [(arm, estimate(suite, arm, read)) for arm in arms]
    return [
        (
            f"{name}, {arm_label(arm)}",
            number(reading.value),
            ends(reading, number),
            per_seed(reading, number),
        )
        for arm, reading in found
        if reading
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
    return ", ".join(
        f"{number(value)} (seed {seed})" for seed, value in zip(found.seeds, found.values, strict=True)
    )


def interval_note(suite: Suite) -> str:
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
