"""Charts as inline SVG: estimates with intervals, lines over steps, points against points.

Each function takes plain values and returns one ``<svg>`` element that needs no script, no font file and no
network. Colors come from the page's style sheet by class (``s0``, ``s1``, ...), so that a chart follows a light or
a dark page; every style has its own shape and dash as well, so that no reading depends on color. Texts are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from badpo.results.words import decimal

WIDTH = 360
_DIGIT = 6.2  # of a tick's number


@dataclass(frozen=True)
class Scale:
    """An axis: values from ``low`` to ``high`` stand at places from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value stands; one beyond the axis, such as the end of an interval past 1, stands at its end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def tick_label(self, tick: float) -> str:
        """The number at a tick, with as many places as the ticks need."""
        step = self.ticks[1] - self.ticks[0]
        places = next(places for places in range(9) if abs(step - round(step, places)) < 1e-3 * step)
        return decimal(tick, places)


def scale_of(values: Sequence[float], limits, start: float, end: float) -> Scale:
    """An axis from a round number to a round number, with three to seven ticks."""
    low, high = limits if limits else (min(values), max(values))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def chart_svg(height: float, label: str, parts: Sequence[str]) -> Markup:
    """One chart, `WIDTH` units wide, with what it shows for people who cannot see it."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">{}</svg>'
    ).format(WIDTH, round(height), label, Markup("").join(parts))


def text_at(x: float, y: float, text: str, anchor: str, css: str) -> Markup:
    """A line of text; ``css`` names its classes."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        css, round(x, 1), round(y, 1), anchor, text
    )


def dashed_line(x1: float, y1: float, x2: float, y2: float) -> Markup:
    """A line that values are read against."""
    return Markup('<line class="level" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(x1, y1, x2, y2)


def anchor_of(scale: Scale, value: float) -> str:
    """Where a text over ``value`` is anchored so that it stays inside the chart."""
    share = (value - scale.low) / (scale.high - scale.low)
    return "start" if share < 0.12 else "end" if share > 0.88 else "middle"


def vertical_grid(across: Scale, top: float, bottom: float) -> list[Markup]:
    """The ticks of a horizontal axis with their lines, and as many of their numbers as do not touch."""
    line = Markup('<line class="grid" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>')
    drawn = [line.format(across.at(tick), top, bottom) for tick in across.ticks]
    widest = _DIGIT * (max(len(across.tick_label(t)) for t in across.ticks) + 1)
    apart = abs(across.at(across.ticks[1]) - across.at(across.ticks[0])) if len(across.ticks) > 1 else widest
    labels = [
        text_at(across.at(t), bottom + 16, across.tick_label(t), "middle", "tick")
        for t in across.ticks[:: max(1, math.ceil(widest / apart))]
    ]
    return drawn + labels


def horizontal_grid(up: Scale, left: float, right: float) -> list[Markup]:
    """The ticks of a vertical axis with their lines and numbers."""
    line = Markup('<line class="grid" x1="{1}" y1="{0}" x2="{2}" y2="{0}"/>')
    drawn = [line.format(up.at(tick), left, right) for tick in up.ticks]
    labels = [text_at(left - 8, up.at(t) + 4, up.tick_label(t), "end", "tick") for t in up.ticks]
    return drawn + labels


def marker(x: float, y: float, style: int, tip: str, size: float = 5.0, css: str = "mark") -> Markup:
    """A mark in its style's color and shape; ``tip`` is shown when it is pointed at."""
    shape = _OUTLINES[style % len(_OUTLINES)](size)
    title = Markup("<title>{}</title>").format(tip) if tip else ""
    return Markup('<path class="{} s{}" transform="translate({} {})" d="{}">{}</path>').format(
        css, style % STYLES, x, y, shape, title
    )


def _circle(r: float) -> str:
    return f"M{-r} 0A{r} {r} 0 1 1 {r} 0A{r} {r} 0 1 1 {-r} 0Z"


def _polygon(*corners: tuple[float, float]) -> Callable[[float], str]:
    return lambda r: "M" + "L".join(f"{round(x * r, 2)} {round(y * r, 2)}" for x, y in corners) + "Z"


_SQUARE = _polygon((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9))
_DIAMOND = _polygon((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0))
_UP = _polygon((0, -1.2), (1.15, 0.9), (-1.15, 0.9))
_DOWN = _polygon((0, 1.2), (1.15, -0.9), (-1.15, -0.9))
_PLUS = _polygon(
    (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
    (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
)  # fmt: skip
_CROSS = _polygon(
    (-1.1, -0.6), (-0.6, -1.1), (0, -0.5), (0.6, -1.1), (1.1, -0.6), (0.5, 0),
    (1.1, 0.6), (0.6, 1.1), (0, 0.5), (-0.6, 1.1), (-1.1, 0.6), (-0.5, 0),
)  # fmt: skip
_OUTLINES = (_DIAMOND, _SQUARE, _circle, _UP, _circle, _SQUARE, _UP, _DOWN, _PLUS, _CROSS)
STYLES = len(_OUTLINES)


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


_LEAN_CHARTS_LANE = 14
_VOTES = 40
_LEAN_CHARTS_LETTER = 6.5
_CLOUD_HEIGHT = 300
# Drawn from the place of a point, relative to it, and short: there may be thousands. One shape per style.
_POINT_SHAPES = ("m-2.6 0l2.6-2.6 2.6 2.6-2.6 2.6z", "m-2.5-2.5h5v5h-5z", "h0")


@dataclass(frozen=True)
class LeanRow:
    """One annotator in a caterpillar plot; None or NaN for what is not known, an infinite value for no bound."""

    name: str
    votes: int
    raw: float | None
    raw_low: float | None
    raw_high: float | None
    value: float | None
    low: float | None
    high: float | None
    style: int


@dataclass(frozen=True)
class Cloud:
    """Points of one kind: places (x, y), and style 0, 1 or 2 for color and shape."""

    name: str
    style: int
    x: ArrayLike
    y: ArrayLike


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y), drawn behind the points; ``dash`` is one of the page's dashes."""

    name: str
    points: Sequence[tuple[float, float]]
    dash: int


def caterpillar(
    rows: Sequence[LeanRow], label: str, axis: str, limits: tuple[float, float], level: Level
) -> Markup:
    """Annotators one under another in the order given: own estimate and interval, and the shrunken ones below it."""
    left = max(60.0, round(_LEAN_CHARTS_LETTER * max(len(row.name) for row in rows)) + 10.0)
    across = scale_of([], limits, left, WIDTH - _VOTES)
    top = 34.0
    bottom = top + _LEAN_CHARTS_LANE * len(rows)
    parts = [*vertical_grid(across, top, bottom)]
    parts.append(text_at((left + WIDTH - _VOTES) / 2, bottom + 34, axis, "middle", "axis"))
    parts.append(dashed_line(across.at(level.value), top - 4, across.at(level.value), bottom))
    parts.append(
        text_at(across.at(level.value), top - 10, level.name, anchor_of(across, level.value), "level")
    )
    parts.append(text_at(WIDTH, top - 10, "votes", "end", "level"))
    for i, row in enumerate(rows):
        parts.append(_lean(row, top + _LEAN_CHARTS_LANE * (i + 0.5), left, across))
    return chart_svg(bottom + 42, label, parts)


def point_cloud(
    clouds: Sequence[Cloud],
    label: str,
    axis_x: str,
    axis_y: str,
    limits_x: tuple[float, float],
    limits_y: tuple[float, float],
    curves: Sequence[Curve] = (),
    level: Level | None = None,
) -> Markup:
    """Many points between fixed axes, with curves behind them; a point beyond an axis stands at its end."""
    left, right, top, bottom = 40.0, WIDTH - 12.0, 44.0, _CLOUD_HEIGHT - 44.0
    across = scale_of([], limits_x, left, right)
    low, high = sorted(limits_y)
    up = scale_of([], (low, high), *((bottom, top) if limits_y[0] == low else (top, bottom)))
    parts = [*vertical_grid(across, top, bottom), *horizontal_grid(up, left, right)]
    parts.append(text_at(0, 14, axis_y, "start", "axis"))
    parts.append(text_at((left + right) / 2, bottom + 34, axis_x, "middle", "axis"))
    if level:
        at = across.at(level.value)
        parts.append(dashed_line(at, top - 4, at, bottom))
        parts.append(text_at(at, top - 9, level.name, anchor_of(across, level.value), "level"))
    parts += [_curve(curve, across, up) for curve in curves]
    parts += [_points(cloud, across, up) for cloud in clouds if np.size(cloud.x)]
    return chart_svg(_CLOUD_HEIGHT, label, parts)


# -- pieces ------------------------------------------------------------------------------------------------------


def _lean(row: LeanRow, y: float, left: float, across: Scale) -> Markup:
    name = text_at(left - 8, y + 3.5, row.name, "end", "person")
    votes = text_at(WIDTH, y + 3.5, f"{row.votes:,}", "end", "person")
    own = _interval(row.raw_low, row.raw_high, y - 2.8, across)
    own += _dot(row.raw, y - 2.8, across)
    pulled = _interval(row.low, row.high, y + 2.8, across)
    drawn = Markup('<path class="own" d="{}"/><path class="pulled s{}" d="{}"/>').format(
        own, row.style, pulled
    )
    if row.value is not None and not math.isnan(row.value):
        drawn += marker(across.at(row.value), y + 2.8, row.style, "", size=3.0)
    return Markup("<g><title>{}</title>{}</g>").format(_tip(row), name + drawn + votes)


def _tip(row: LeanRow) -> str:
    def told(name: str, value: float | None, low: float | None, high: float | None) -> str:
        return f"{name} {decimal(value)} ({decimal(low)} to {decimal(high)})"

    own = told("own estimate", row.raw, row.raw_low, row.raw_high)
    pulled = told("shrunken", row.value, row.low, row.high)
    return f"{row.name}: {own}; {pulled}; {row.votes:,} informative votes"


def _interval(low: float | None, high: float | None, y: float, across: Scale) -> str:
    """The path of a line from ``low`` to ``high``, with an arrow at each end that lies beyond the axis."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    y = round(y, 1)
    path = f"M{across.at(low)} {y}H{across.at(high)}"
    if low < across.low:
        path += f"M{across.start + 3} {y - 2}l-3 2 3 2"
    if high > across.high:
        path += f"M{across.end - 3} {y - 2}l3 2-3 2"
    return path


def _dot(value: float | None, y: float, across: Scale) -> str:
    """A short upright stroke; none for an infinite estimate, which has no place."""
    if value is None or not math.isfinite(value):
        return ""
    return f"M{across.at(value)} {round(y - 2, 1)}v4"


def _points(cloud: Cloud, across: Scale, up: Scale) -> Markup:
    x, y = np.asarray(cloud.x, dtype=float).tolist(), np.asarray(cloud.y, dtype=float).tolist()
    shape = _POINT_SHAPES[cloud.style]
    path = "".join(f"M{across.at(a):g} {up.at(b):g}{shape}" for a, b in zip(x, y, strict=True))
    return Markup('<path class="cloud s{}" d="{}"><title>{}</title></path>').format(
        cloud.style, path, f"{cloud.name}: {len(x):,}"
    )


def _curve(curve: Curve, across: Scale, up: Scale) -> Markup:
    """Only where it runs between the ends of the axis: along an edge it would look like a limit."""
    inside = [(x, y) for x, y in curve.points if across.low <= x <= across.high]
    path = " ".join(f"{across.at(x)},{up.at(y)}" for x, y in inside)
    return Markup('<polyline class="bound d{}" points="{}"><title>{}</title></polyline>').format(
        curve.dash, path, curve.name
    )
