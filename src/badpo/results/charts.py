"""Charts as inline SVG: estimates with intervals, lines over steps, points against points.

Each function takes plain values and returns one ``<svg>`` element that needs no script, no font file and no
network. Colors come from the page's style sheet by class (``s0``, ``s1``, ...), so that a chart follows a light or
a dark page; every style has its own shape and dash as well, so that no reading depends on color. Texts are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from badpo.results.chart_parts import (
    WIDTH,
    Scale,
    anchor_of,
    chart_svg,
    dashed_line,
    horizontal_grid,
    marker,
    scale_of,
    text_at,
    vertical_grid,
)
from badpo.results.labels import decimal

_RIGHT = 52
_LETTER = 7.2
_LANE, _ROW_GAP = 20, 10
_HEADING, _LONGEST_LABEL = 16, 170.0
_LINE_HEIGHT = 236

Number = Callable[[float], str]


@dataclass(frozen=True)
class Mark:
    """One estimate in a row of a dot plot."""

    value: float
    name: str
    style: int
    low: float | None = None
    high: float | None = None
    repeats: tuple[float, ...] = ()

    def extent(self) -> list[float]:
        """Every known value that the mark draws."""
        drawn = (self.value, self.low, self.high, *self.repeats)
        return [value for value in drawn if value is not None and math.isfinite(value)]


@dataclass(frozen=True)
class DotRow:
    """A labelled row of a dot plot with one mark or several, each in its own lane."""

    label: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Series:
    """A named line: points (x, y) in the order of x."""

    name: str
    style: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class PointGroup:
    """Points of one kind in a scatter plot: (x, y) each."""

    name: str
    style: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Level:
    """A value that a chart is read against, drawn as a dashed line with its name."""

    value: float
    name: str


def dot_plot(
    rows: Sequence[DotRow],
    label: str,
    axis: str,
    level: Level | None = None,
    limits: tuple[float, float] | None = None,
    number: Number = decimal,
) -> Markup:
    """Estimates with intervals, one labelled row under another."""
    values = [value for row in rows for mark in row.marks for value in mark.extent()]
    left = max(56.0, round(_LETTER * max(len(row.label) for row in rows)) + 14.0)
    # labels that would leave the marks too little room stand above them
    heading = _HEADING if left > _LONGEST_LABEL else 0
    if heading:
        left = 12.0
    across = scale_of([*values, *([level.value] if level else [])], limits, left, WIDTH - _RIGHT)
    top = 22 if level else 8
    parts, y = [], top
    for row in rows:
        height = _LANE * len(row.marks) + _ROW_GAP + heading
        x, base, anchor = (0.0, y + heading, "start") if heading else (left - 10, y + height / 2 + 4, "end")
        parts.append(text_at(x, base, row.label, anchor, "label"))
        for lane, mark in enumerate(row.marks):
            parts.append(_lane(mark, y + heading + _ROW_GAP / 2 + _LANE * (lane + 0.5), across, number))
        y += height
    frame = [
        *vertical_grid(across, top, y),
        text_at((left + WIDTH - _RIGHT) / 2, y + 34, axis, "middle", "axis"),
    ]
    if level:
        frame.append(dashed_line(across.at(level.value), top - 4, across.at(level.value), y))
        frame.append(
            text_at(across.at(level.value), top - 9, level.name, anchor_of(across, level.value), "level")
        )
    return chart_svg(y + 42, label, [*frame, *parts])


def line_chart(
    series: Sequence[Series], label: str, axis_x: str, axis_y: str, level: Level | None = None
) -> Markup:
    """Lines over a common horizontal axis, each with its last value written at its end."""
    points = [point for line in series for point in line.points]
    left, right, top, bottom = 44, WIDTH - _RIGHT, 28, _LINE_HEIGHT - 44
    across = scale_of([x for x, _ in points], None, left, right)
    up = scale_of([0.0, *(y for _, y in points), *([level.value] if level else [])], None, bottom, top)
    parts = [*vertical_grid(across, top, bottom), *horizontal_grid(up, left, right)]
    parts.append(text_at(0, 14, axis_y, "start", "axis"))
    parts.append(text_at((left + right) / 2, bottom + 34, axis_x, "middle", "axis"))
    if level:
        parts.append(dashed_line(left, up.at(level.value), right, up.at(level.value)))
        below = up.at(level.value) < top + 16
        parts.append(
            text_at(left + 6, up.at(level.value) + (14 if below else -5), level.name, "start", "level")
        )
    ends = _spread([up.at(line.points[-1][1]) for line in series], 14)
    for line, end in zip(series, ends, strict=True):
        parts.append(_line(line, across, up))
        parts.append(text_at(right + 10, end + 4, decimal(line.points[-1][1]), "start", f"end s{line.style}"))
    return chart_svg(_LINE_HEIGHT, label, parts)


def scatter(groups: Sequence[PointGroup], label: str, axis_x: str, axis_y: str, note: str = "") -> Markup:
    """Points against points on equal axes, with the line on which both are equal."""
    values = [value for group in groups for point in group.points for value in point]
    left, right, top = 40, WIDTH - 12, 28
    bottom = top + right - left
    across = scale_of(values, None, left, right)
    up = replace(across, start=bottom, end=top)
    parts = [*vertical_grid(across, top, bottom), *horizontal_grid(up, left, right)]
    parts.append(dashed_line(left, bottom, right, top))
    parts.append(text_at(0, 14, axis_y, "start", "axis"))
    parts.append(text_at((left + right) / 2, bottom + 34, axis_x, "middle", "axis"))
    for group in groups:
        for x, y in group.points:
            title = f"{group.name}: {decimal(x)}, {decimal(y)}"
            parts.append(marker(across.at(x), up.at(y), group.style, title, size=3.6, css="point"))
    if note:
        parts.append(text_at(left + 10, top + 18, note, "start", "note"))
    return chart_svg(bottom + 44, label, parts)


def legend(entries: Sequence[tuple[str, int]], lines: bool = False) -> Markup:
    """Names beside their shapes, as an HTML list; with ``lines`` the shape sits on its line's dash."""
    items = []
    for name, style in entries:
        stroke = Markup('<line class="series s{0} d{0}" x1="0" y1="7" x2="26" y2="7"/>').format(style)
        shape = marker(13, 7, style, "", size=4.4)
        items.append(
            Markup('<li><svg width="26" height="14" aria-hidden="true">{}{}</svg>{}</li>').format(
                stroke if lines else "", shape, name
            )
        )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


# -- pieces ------------------------------------------------------------------------------------------------------


def _spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions of labels moved apart to at least ``gap``, in their order, around where they want to be."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved = list(positions)
    for before, after in zip(order, order[1:], strict=False):
        moved[after] = max(moved[after], moved[before] + gap)
    shift = sum(moved) / len(moved) - sum(positions) / len(positions) if moved else 0.0
    return [round(position - shift, 1) for position in moved]


def _lane(mark: Mark, y: float, across: Scale, number: Number) -> Markup:
    interval, tip = Markup(""), f"{mark.name}: {number(mark.value)}"
    if mark.low is not None and mark.high is not None and math.isfinite(mark.low + mark.high):
        interval = Markup('<line class="interval s{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            mark.style, across.at(mark.low), y, across.at(mark.high), y
        )
        tip += f" (95 % interval {number(mark.low)} to {number(mark.high)})"
    ticks = [
        Markup('<line class="repeat s{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
            mark.style, across.at(value), y - 6, across.at(value), y + 6
        )
        for value in mark.repeats
    ]
    dot = marker(across.at(mark.value), y, mark.style, tip)
    written = text_at(WIDTH - 2, y + 4, number(mark.value), "end", "value")
    return Markup("").join([interval, *ticks, dot, written])


def _line(line: Series, across: Scale, up: Scale) -> Markup:
    path = " ".join(f"{across.at(x)},{up.at(y)}" for x, y in line.points)
    drawn = Markup('<polyline class="series s{0} d{0}" points="{1}"/>').format(line.style, path)
    x, y = line.points[-1]
    tip = f"{line.name}: {decimal(y)} at {decimal(x, 0)}"
    return drawn + marker(across.at(x), up.at(y), line.style, tip)
