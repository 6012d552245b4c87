"""Charts as inline SVG: estimates with intervals, lines over steps, points against points, many annotators.

Each function takes plain values and returns one ``<svg>`` element that needs no script, no font file and no
network. Colors come from the page's style sheet by class (``s0``, ``s1``, ...), so that a chart follows a light or
a dark page; every style has its own shape and dash as well, so that no reading depends on color. Texts are escaped.
What lies beyond an axis stands at its end, so that one infinite interval does not press everything else together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from badpo.results.words import decimal, interval_text

WIDTH = 360
_RIGHT = 52  # room for the values at the end of a lane
_VOTES = 40  # and for the votes at the end of an annotator's
_LINE_HEIGHT, _CLOUD_HEIGHT = 236, 300
Points = Sequence[Sequence[float]]


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


@dataclass(frozen=True)
class Mark:
    """One estimate in a row of a dot plot; ``repeats`` are the values behind it, one per seed, drawn as ticks."""

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
    """Named points (x, y) in one style: a line, in the order of x, or a kind of points."""

    name: str
    style: int
    points: Points


@dataclass(frozen=True)
class DotPanel:
    """A dot plot with its subtitle: rows, what is shown for who cannot see it, the axis, how numbers are written."""

    title: str
    rows: Sequence[DotRow]
    label: str
    axis: str
    level: Level | None = None
    limits: tuple[float, float] | None = None
    number: Callable[[float], str] = decimal


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
    number: Callable[[float], str] = decimal,
) -> Markup:
    """Estimates with intervals, one labelled row under another; ``label`` says what is shown to who cannot see it."""
    values = [value for row in rows for mark in row.marks for value in mark.extent()]
    left = max(56.0, round(7.2 * max(len(row.label) for row in rows)) + 14.0)
    # labels that would leave the marks too little room stand above them
    heading = 16 if left > 170 else 0
    left = 12.0 if heading else left
    across = axis_of([*values, *([level.value] if level else [])], limits, left, WIDTH - _RIGHT)
    top = y = 22 if level else 8
    parts = []
    for row in rows:
        height = 20 * len(row.marks) + 10 + heading
        x, base, anchor = (0.0, y + heading, "start") if heading else (left - 10, y + height / 2 + 4, "end")
        parts.append(_text(x, base, row.label, anchor, "label"))
        for lane, mark in enumerate(row.marks):
            parts.append(_lane(mark, y + heading + 5 + 20 * (lane + 0.5), across, number))
        y += height
    return _svg(y + 42, label, [*_upright(across, top, y, axis, level), *parts])


def dot_figure(
    title: str, panels: Sequence[DotPanel], caption: str, marks: Markup | None = None
) -> Figure | None:
    """Dot plots side by side, and every mark as a row of the figure's table; None without a panel."""
    rows: list[tuple[str, ...]] = []
    for panel in panels:
        for mark in (mark for row in panel.rows for mark in row.marks):
            number, name = panel.number, f"{panel.title}, {mark.name}"
            ends = interval_text(mark.low, mark.high, number)
            rows.append((name, number(mark.value), ends, ", ".join(map(number, mark.repeats))))
    header: tuple[str, ...] = ("Shown", "Value", "95 % interval", "Each seed")
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    charts = [
        (panel.title, dot_plot(panel.rows, panel.label, panel.axis, panel.level, panel.limits, panel.number))
        for panel in panels
    ]
    return Figure(title, charts, caption, TextTable(header, rows), marks or Markup("")) if panels else None


def line_chart(
    series: Sequence[Series], label: str, axis_x: str, axis_y: str, level: Level | None = None
) -> Markup:
    """Lines over a common horizontal axis, each with its last value written at its end."""
    left, right, top, bottom = 44, WIDTH - _RIGHT, 28, _LINE_HEIGHT - 44
    across = axis_of([x for line in series for x, _ in line.points], None, left, right)
    values = [y for line in series for _, y in line.points] + ([level.value] if level else [])
    up = axis_of([0.0, *values], None, bottom, top)
    parts = [*_upright(across, top, bottom, axis_x), *_level_grid(up, left, right, axis_y)]
    if level:
        y = up.at(level.value)
        parts.append(_line("level", left, y, right, y))
        parts.append(_text(left + 6, y + (14 if y < top + 16 else -5), level.name, "start", "level"))
    ends = _moved_apart([up.at(line.points[-1][1]) for line in series], 14)
    for line, end in zip(series, ends, strict=True):
        (x, y), path = line.points[-1], _path(line.points, across, up)
        drawn = Markup('<polyline class="series s{0} d{0}" points="{1}"/>').format(line.style, path)
        tip = f"{line.name}: {decimal(y)} at {decimal(x, 0)}"
        parts.append(drawn + _marker(across.at(x), up.at(y), line.style, tip))
        parts.append(_text(right + 10, end + 4, decimal(y), "start", f"end s{line.style}"))
    return _svg(_LINE_HEIGHT, label, parts)


def scatter(groups: Sequence[Series], label: str, axis_x: str, axis_y: str, note: str = "") -> Markup:
    """Points against points on equal axes, with the line on which both are equal, and a note such as a correlation."""
    values = [value for group in groups for point in group.points for value in point]
    left, right, top = 40, WIDTH - 12, 28
    bottom = top + right - left
    across = axis_of(values, None, left, right)
    up = replace(across, start=bottom, end=top)
    parts = [*_upright(across, top, bottom, axis_x), *_level_grid(up, left, right, axis_y)]
    parts.append(_line("level", left, bottom, right, top))
    for group in groups:
        for x, y in group.points:
            tip = f"{group.name}: {decimal(x)}, {decimal(y)}"
            parts.append(_marker(across.at(x), up.at(y), group.style, tip, size=3.6, css="point"))
    if note:
        parts.append(_text(left + 10, top + 18, note, "start", "note"))
    return _svg(bottom + 44, label, parts)


def caterpillar(
    rows: Sequence[Mapping[str, Any]], label: str, axis: str, limits: tuple[float, float], level: Level
) -> Markup:
    """Annotators one under another: own estimate and interval, and the shrunken ones below it.

    ``rows`` are those of ``annotators.parquet``, with a ``style``: 0, 1 or 2.
    """
    left = max(60.0, round(6.5 * max(len(row["annotator"]) for row in rows)) + 10.0)
    across = axis_of([], limits, left, WIDTH - _VOTES)
    top, bottom = 34.0, 34.0 + 14 * len(rows)
    parts = _upright(across, top, bottom, axis, level)
    parts.append(_text(WIDTH, top - 10, "votes", "end", "level"))
    parts += [_lean(row, top + 14 * (i + 0.5), across) for i, row in enumerate(rows)]
    return _svg(bottom + 42, label, parts)


def point_cloud(
    clouds: Sequence[Series],
    label: str,
    axis_x: str,
    axis_y: str,
    limits_x: tuple[float, float],
    limits_y: tuple[float, float],
    curves: Sequence[Series] = (),
    level: Level | None = None,
) -> Markup:
    """Many points between fixed axes, with curves behind them; the first of ``limits_y`` stands at the bottom.

    Points have style 0, 1 or 2.
    """
    left, right, top, bottom = 40.0, WIDTH - 12.0, 44.0, _CLOUD_HEIGHT - 44.0
    across = axis_of([], limits_x, left, right)
    upward = limits_y[0] < limits_y[1]
    up = axis_of([], tuple(sorted(limits_y)), *((bottom, top) if upward else (top, bottom)))
    parts = [*_upright(across, top, bottom, axis_x, level), *_level_grid(up, left, right, axis_y)]
    for curve in curves:
        # only where it runs between the ends of the axis: along an edge it would look like a limit
        path = _path([point for point in curve.points if across.low <= point[0] <= across.high], across, up)
        parts.append(
            Markup('<polyline class="bound d{}" points="{}"><title>{}</title></polyline>').format(
                curve.style, path, curve.name
            )
        )
    for cloud in clouds:
        if cloud.points:
            shape = _POINT_SHAPES[cloud.style]
            path = "".join(f"M{across.at(x):g} {up.at(y):g}{shape}" for x, y in cloud.points)
            drawn = Markup('<path class="cloud s{}" d="{}"><title>{}: {:,}</title></path>')
            parts.append(drawn.format(cloud.style, path, cloud.name, len(cloud.points)))
    return _svg(_CLOUD_HEIGHT, label, parts)


def legend(entries: Iterable[tuple[str, int]], lines: bool = False) -> Markup:
    """Names beside their shapes, as an HTML list; with ``lines`` the shape sits on its line's dash."""
    items = Markup("")
    for name, style in entries:
        stroke = Markup('<line class="series s{0} d{0}" x1="0" y1="7" x2="26" y2="7"/>').format(style)
        shape = (stroke if lines else Markup("")) + _marker(13, 7, style, "", size=4.4)
        items += Markup('<li><svg width="26" height="14" aria-hidden="true">{}</svg>{}</li>').format(
            shape, name
        )
    return Markup('<ul class="legend">{}</ul>').format(items)


# -- axes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` stand at places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value stands; one beyond the axis, such as the end of an interval past 1, stands at its end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def labels(self) -> list[str]:
        """The number at each tick, with as many places as the ticks need."""
        step = self.ticks[1] - self.ticks[0]
        places = next(places for places in range(9) if abs(step - round(step, places)) < 1e-3 * step)
        return [decimal(tick, places) for tick in self.ticks]


def axis_of(values: Sequence[float], limits: tuple[float, ...] | None, start: float, end: float) -> Axis:
    """An axis from a round number to a round number, with three to seven ticks."""
    low, high = limits or (min(values), max(values))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def _upright(across: Axis, top: float, bottom: float, name: str, level: Level | None = None) -> list[Markup]:
    """A horizontal axis with its name, the lines of its ticks and as many of their numbers as do not touch."""
    places, labels = [across.at(tick) for tick in across.ticks], across.labels()
    each = math.ceil(6.2 * (max(map(len, labels)) + 1) / (places[1] - places[0]))
    drawn = [_line("grid", x, top, x, bottom) for x in places]
    numbers = zip(places[::each], labels[::each], strict=True)
    drawn += [_text(x, bottom + 16, label, "middle", "tick") for x, label in numbers]
    drawn.append(_text((across.start + across.end) / 2, bottom + 34, name, "middle", "axis"))
    if level:
        x = across.at(level.value)
        share = (x - across.start) / (across.end - across.start)
        anchor = "start" if share < 0.12 else "end" if share > 0.88 else "middle"
        drawn += [_line("level", x, top - 4, x, bottom), _text(x, top - 9, level.name, anchor, "level")]
    return drawn


def _level_grid(up: Axis, left: float, right: float, name: str) -> list[Markup]:
    """A vertical axis with its name, the lines of its ticks and their numbers."""
    drawn = [_text(0, 14, name, "start", "axis")]
    for tick, label in zip(up.ticks, up.labels(), strict=True):
        y = up.at(tick)
        drawn += [_line("grid", left, y, right, y), _text(left - 8, y + 4, label, "end", "tick")]
    return drawn


def _moved_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Positions of labels moved apart to at least ``gap``, in their order, around where they want to be."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved = list(positions)
    for before, after in zip(order, order[1:], strict=False):
        moved[after] = max(moved[after], moved[before] + gap)
    shift = (sum(moved) - sum(positions)) / len(moved)
    return [round(position - shift, 1) for position in moved]


# -- elements ----------------------------------------------------------------------------------------------------


def _svg(height: float, label: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">{}</svg>'
    ).format(WIDTH, round(height), label, Markup("").join(parts))


def _text(x: float, y: float, text: str, anchor: str, css: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        css, round(x, 1), round(y, 1), anchor, text
    )


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(css, x1, y1, x2, y2)


def _path(points: Points, across: Axis, up: Axis) -> str:
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in points)


def _marker(x: float, y: float, style: int, tip: str, size: float = 5.0, css: str = "mark") -> Markup:
    """A mark in its style's color and shape; ``tip`` is shown when it is pointed at."""
    shape = _OUTLINES[style % STYLES](size)
    title = Markup("<title>{}</title>").format(tip) if tip else ""
    return Markup('<path class="{} s{}" transform="translate({} {})" d="{}">{}</path>').format(
        css, style % STYLES, x, y, shape, title
    )


def _lane(mark: Mark, y: float, across: Axis, number: Callable[[float], str]) -> Markup:
    drawn, tip = Markup(""), f"{mark.name}: {number(mark.value)}"
    if mark.low is not None and mark.high is not None and math.isfinite(mark.low + mark.high):
        drawn = _line(f"interval s{mark.style}", across.at(mark.low), y, across.at(mark.high), y)
        tip += f" (95 % interval {interval_text(mark.low, mark.high, number)})"
    for x in map(across.at, mark.repeats):
        drawn += _line(f"repeat s{mark.style}", x, y - 6, x, y + 6)
    drawn += _marker(across.at(mark.value), y, mark.style, tip)
    return drawn + _text(WIDTH - 2, y + 4, number(mark.value), "end", "value")


def _lean(row: Mapping[str, Any], y: float, across: Axis) -> Markup:
    """An annotator's row; what is not known is NaN, and an infinite estimate has no place."""
    own, low, high = row["deviation"], row["ci_low"], row["ci_high"]
    pulled, post_low, post_high = row["shrunk"], row["post_low"], row["post_high"]
    upper, lower = y - 2.8, y + 2.8
    of_own = _interval(low, high, upper, across)
    if math.isfinite(own):
        of_own += f"M{across.at(own)} {round(upper - 2, 1)}v4"
    drawn = Markup('<path class="own" d="{}"/><path class="pulled s{}" d="{}"/>').format(
        of_own, row["style"], _interval(post_low, post_high, lower, across)
    )
    if not math.isnan(pulled):
        drawn += _marker(across.at(pulled), lower, row["style"], "", size=3.0)
    name, votes = row["annotator"], f"{row['n_informative']:,}"
    tip = (
        f"{name}: own estimate {decimal(own)} ({interval_text(low, high)}); shrunken {decimal(pulled)} "
        f"({interval_text(post_low, post_high)}); {votes} informative votes"
    )
    texts = (
        _text(across.start - 8, y + 3.5, name, "end", "person"),
        _text(WIDTH, y + 3.5, votes, "end", "person"),
    )
    return Markup("<g><title>{}</title>{}{}{}</g>").format(tip, texts[0], drawn, texts[1])


def _interval(low: float, high: float, y: float, across: Axis) -> str:
    """The path of a line from ``low`` to ``high``, with an arrow at each end that lies beyond the axis."""
    if math.isnan(low) or math.isnan(high):
        return ""
    y = round(y, 1)
    path = f"M{across.at(low)} {y}H{across.at(high)}"
    if low < across.low:
        path += f"M{across.start + 3} {y - 2}l-3 2 3 2"
    if high > across.high:
        path += f"M{across.end - 3} {y - 2}l3 2-3 2"
    return path


def _circle(r: float) -> str:
    return f"M{-r} 0A{r} {r} 0 1 1 {r} 0A{r} {r} 0 1 1 {-r} 0Z"


def _polygon(corners: str) -> Callable[[float], str]:
    """The outline of a shape whose corners are given for a radius of one."""
    points = [tuple(map(float, corner.split(","))) for corner in corners.split()]
    return lambda r: "M" + "L".join(f"{round(x * r, 2)} {round(y * r, 2)}" for x, y in points) + "Z"


_SQUARE = _polygon("-.9,-.9 .9,-.9 .9,.9 -.9,.9")
_DIAMOND = _polygon("0,-1.3 1.3,0 0,1.3 -1.3,0")
_UP = _polygon("0,-1.2 1.15,.9 -1.15,.9")
_DOWN = _polygon("0,1.2 1.15,-.9 -1.15,-.9")
_PLUS = _polygon(
    "-.4,-1.2 .4,-1.2 .4,-.4 1.2,-.4 1.2,.4 .4,.4 .4,1.2 -.4,1.2 -.4,.4 -1.2,.4 -1.2,-.4 -.4,-.4"
)
_CROSS = _polygon("-1.1,-.6 -.6,-1.1 0,-.5 .6,-1.1 1.1,-.6 .5,0 1.1,.6 .6,1.1 0,.5 -.6,1.1 -1.1,.6 -.5,0")
_OUTLINES = (_DIAMOND, _SQUARE, _circle, _UP, _circle, _SQUARE, _UP, _DOWN, _PLUS, _CROSS)
STYLES = len(_OUTLINES)
FIRST_CLASS_STYLE = 4
# Drawn from the place of a point, relative to it, and short: there may be thousands. One shape per style.
_POINT_SHAPES = ("m-2.6 0l2.6-2.6 2.6 2.6-2.6 2.6z", "m-2.5-2.5h5v5h-5z", "h0")


def class_style(i: int) -> int:
    """The style of the i-th of things that have none of their own, such as classes of annotators."""
    return FIRST_CLASS_STYLE + i % (STYLES - FIRST_CLASS_STYLE)
