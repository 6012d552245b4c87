"""Draw estimates with intervals as inline SVG charts.

Each function takes plain values and returns one ``<svg>`` element that needs no script, font file or network. A chart
contains only SVG ``text`` and ``path`` elements. The page's style sheet sets the colors by class (``s0``, ``s1``, ...),
so that charts adapt to light and dark pages. Every style also has its own shape and dash pattern, so that no
information depends on color. Texts are escaped. A value beyond the axis is drawn at the end of the axis, so that an
infinite interval does not squeeze all other marks together.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from badpo.results.formatting import decimal, interval_text, page_templates

WIDTH = 360
_RIGHT = 52  # minimum space for the values at the right edge of a chart
_VALUE_GAP = 8  # space between the axis and a long text
_MARGIN, _VIEW = 14, re.compile(r'viewBox="0 0 (\d+) (\d+)"')
_PAPER = "svg.chart { width: auto; background: var(--page); font-family: system-ui, sans-serif; }\n"
Limits = tuple[float, float]


@dataclass(frozen=True)
class TextTable:
    """A table with column names and rows of text; the first cell of each row is the name of the row."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """A figure with subtitled panels, a table of all plotted numbers, and an optional legend.

    ``caption`` is appended to the caption that `figures.jinja` has for ``title``.
    """

    title: str
    panels: Sequence[tuple[str, Markup]]
    caption: str
    table: TextTable
    legend: str = ""


@dataclass(frozen=True)
class Mark:
    """An estimate in a dot plot; ``n`` is the sample size, and ``repeats`` are the values by seed, drawn as ticks."""

    value: float
    name: str
    style: int
    low: float | None = None
    high: float | None = None
    repeats: tuple[float, ...] = ()
    n: str = ""


@dataclass(frozen=True)
class DotRow:
    """A labeled row of a dot plot. Each mark has its own lane, and the row ends with a note."""

    label: str
    marks: tuple[Mark, ...]
    note: str = ""


@dataclass(frozen=True)
class Level:
    """A reference value, drawn as a dashed line with a name."""

    value: float
    name: str


@dataclass(frozen=True)
class DotPanel:
    """A chart with labeled rows of estimates and intervals; ``label`` describes the chart to screen readers.

    ``notes`` is the heading above the notes of the rows. If ``notes`` is given, the rows are dense and end with their
    notes. Without ``notes``, the right edge of the chart shows the value of each mark, formatted by ``number``.
    """

    title: str
    rows: Sequence[DotRow]
    label: str
    axis: str
    level: Level | None = None
    limits: Limits | None = None
    number: Callable[[float], str] = decimal
    notes: str = ""

    @property
    def marks(self) -> list[Mark]:
        """All marks of the panel."""
        return [mark for row in self.rows for mark in row.marks]

    def extent(self) -> list[float]:
        """Return all finite values that the marks of a panel show."""
        drawn = [value for m in self.marks for value in (m.value, m.low, m.high, *m.repeats)]
        return [value for value in drawn if value is not None and math.isfinite(value)]


_LABEL = 13.0  # height of a label
# height of a lane, gap between rows, and width of one letter in a label
_ROOMY, _DENSE = (20, 10, 7.6), (5.6, 2.8, 7.6)


def dot_plot(panel: DotPanel) -> Markup:
    """Draw the chart of a panel."""
    level, (lane, gap, letter) = panel.level, _DENSE if panel.notes else _ROOMY
    left = max(56.0, round(letter * max(len(row.label) for row in panel.rows)) + 14.0)
    # long labels are drawn above the marks
    heading = 20 if left > 170 else 0
    left = 12.0 if heading else left
    values = panel.extent() + ([level.value] if level else [])
    written = [panel.number(mark.value) for mark in panel.marks if not panel.notes]
    longest = max(len(text) for text in (*written, *(row.note for row in panel.rows)))
    across = axis_of(values, panel.limits, left, WIDTH - max(_RIGHT, letter * longest + _VALUE_GAP))
    y = 22.0 if level else 8.0
    top = y + heading
    parts, lanes = [_text(WIDTH, top - 9, panel.notes, "end", "level")], [(top - 4, top)]
    for row in panel.rows:
        lane_height = max(lane, _LABEL / len(row.marks))
        height = lane_height * len(row.marks) + gap + heading
        base = y + height / 2 + 4
        # the name of the reference line is between the label and the first mark of the first row
        above = y + heading - (6 if lanes[1:] or not level else 27)
        x, below, anchor = (0.0, above, "start") if heading else (left - 10, base, "end")
        parts.append(_text(x, below, row.label, anchor, "label"))
        parts.append(_text(WIDTH, base, row.note, "end", "label"))
        for i, mark in enumerate(row.marks):
            middle = round(y + heading + gap / 2 + lane_height * (i + 0.5), 1)
            parts.append(_lane(mark, middle, across, panel))
            if not panel.notes:
                parts.append(_text(WIDTH - 2, middle + 4, panel.number(mark.value), "end", "value"))
        lanes += (
            [(y + heading, y + height)] if heading else []
        )  # vertical ranges in which lines cross no label
        y += height
    lanes = lanes if heading else [(top - 4, y)]
    frame = _upright(across, top, y, panel.axis, level, lanes)
    return _svg(y + 42, panel.label, [*frame, *parts], "chart dense" if panel.notes else "chart")


@dataclass(frozen=True)
class Picture:
    """A chart as SVG text, which notebooks display."""

    svg: str = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg


def picture(chart: Markup) -> Picture:
    """Return a chart with a margin, inline styles and literal colors for programs that do not support CSS variables."""
    page, rules = (page_templates().get_template(f"{name}.css").render() for name in ("page", "chart"))
    blocks = re.findall(r":root \{(.*?)\}", page, re.S)
    light, dark = (_colored(_PAPER + rules, block) for block in blocks)
    style = f"<style>{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n</style>"
    return Picture(_VIEW.sub(_with_margin, str(chart), 1).replace(">", f">{style}", 1))


def _with_margin(view: re.Match[str]) -> str:
    width, height = (int(side) + 2 * _MARGIN for side in view.groups())
    sizes = f'width="{1.5 * width:.0f}" height="{1.5 * height:.0f}"'
    return f'viewBox="{-_MARGIN} {-_MARGIN} {width} {height}" {sizes}'


def _colored(rules: str, variables: str) -> str:
    colors = dict(re.findall(r"(--\w+): (#\w+)", variables))
    return re.sub(r"var\((.+?)\)", lambda name: colors[name[1]], rules)


def dot_figure(
    title: str, panels: Sequence[DotPanel], caption: str = "", marks: str = ""
) -> Figure | None:
    """Return a figure with a dot plot for each panel and a table of all marks; None if no panel has rows."""
    panels = [panel for panel in panels if panel.rows]
    if not panels:
        return None
    rows: list[tuple[str, ...]] = [("Shown", "Value", "95 % CI", "n", "Each seed")]
    for panel in panels:
        number = panel.number
        for mark in panel.marks:
            name = ", ".join(filter(None, (panel.title, mark.name)))
            repeats = ", ".join(map(number, mark.repeats))
            ends = interval_text(mark.low, mark.high, number)
            rows.append((name, number(mark.value), ends, mark.n, repeats))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    header, *cells = zip(*columns, strict=True)
    charts = [(panel.title, dot_plot(panel)) for panel in panels]
    return Figure(title, charts, caption, TextTable(header, cells), marks)


def legend(entries: Iterable[tuple[str, int]]) -> Markup:
    """Return the legend of a chart: an HTML list of names with their shapes."""
    items = Markup("")
    for name, style in entries:
        drawn = _path(f"mark s{style}", _shape(13, 7, style, 4.4))
        item = Markup('<li><svg width="26" height="14" aria-hidden="true">{}</svg>{}</li>')
        items += item.format(drawn, name)
    return Markup('<ul class="legend">{}</ul>').format(items)


# -- axes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """A linear axis that maps values between ``low`` and ``high`` to positions between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the position of a value; a value beyond the axis is placed at the nearest end."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def labels(self) -> list[str]:
        """Return the labels of the ticks, with as many decimal places as the step between ticks needs."""
        step = self.ticks[1] - self.ticks[0]
        places = next(places for places in range(9) if abs(step - round(step, places)) < 1e-3 * step)
        return [decimal(tick, places) for tick in self.ticks]


def axis_of(values: Sequence[float], limits: Limits | None, start: float, end: float) -> Axis:
    """Return an axis that ends at round numbers and has three to seven ticks."""
    low, high = limits or (min(values), max(values))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def _upright(
    across: Axis,
    top: float,
    bottom: float,
    name: str,
    level: Level | None,
    lanes: Sequence[tuple[float, float]],
) -> list[Markup]:
    """Draw a horizontal axis with its name, tick lines, and as many tick numbers as fit without overlap.

    The function draws tick lines and the reference line only inside the ``lanes``.
    """
    places, labels = list(map(across.at, across.ticks)), across.labels()
    each = math.ceil(7.4 * (max(map(len, labels)) + 1) / (places[1] - places[0]))
    lines = {
        x: "".join(f"M{x} {max(top, first)}V{last}" for first, last in lanes if last > top)
        for x in places
    }
    drawn = [_path("grid", "".join(lines.values()))]
    numbers = zip(places[::each], labels[::each], strict=True)
    drawn += [_text(x, bottom + 16, label, "middle", "tick") for x, label in numbers]
    middle = min((across.start + across.end) / 2, WIDTH - 3.5 * len(name))
    drawn.append(_text(middle, bottom + 34, name, "middle", "axis"))
    if level:
        x = across.at(level.value)
        share = (x - across.start) / (across.end - across.start)
        anchor = "start" if share < 0.12 else "end" if share > 0.88 else "middle"
        drawn.append(_path("level", "".join(f"M{x} {first}V{last}" for first, last in lanes)))
        drawn.append(_text(x, top - 9, level.name, anchor, "level"))
    return drawn


# -- elements ----------------------------------------------------------------------------------------------------


def _svg(height: float, label: str, parts: Sequence[Markup], css: str = "chart") -> Markup:
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">{}</svg>'
    ).format(css, WIDTH, round(height), label, Markup("").join(parts))


def _text(x: float, y: float, text: str, anchor: str, css: str) -> Markup:
    element = Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>')
    return element.format(css, round(x, 1), round(y, 1), anchor, text) if text else Markup("")


def _path(css: str, outline: str) -> Markup:
    return Markup('<path class="{}" d="{}"></path>').format(css, outline)


def _lane(mark: Mark, y: float, across: Axis, panel: DotPanel) -> Markup:
    """Draw the interval, the repeats and the mark of an estimate; omit an unknown interval and an infinite value."""
    style, number, drawn = f"s{mark.style}", panel.number, Markup("")
    radius, tick = (3.0, 2.0) if panel.notes else (5.0, 6.0)
    tip, low, high = f"{mark.name}: {number(mark.value)}", mark.low, mark.high
    if low is not None and high is not None and not (math.isnan(low) or math.isnan(high)):
        path = f"M{across.at(low)} {y}H{across.at(high)}"
        # if an end of the interval lies beyond the axis, an arrow marks it
        path += f"M{across.start + 3} {y - 2}l-3 2 3 2" if low < across.low else ""
        path += f"M{across.end - 3} {y - 2}l3 2-3 2" if high > across.high else ""
        drawn += _path(f"interval {style}", path)
        tip += f" (95 % CI {interval_text(low, high, number)})"
    ticks = (f"M{across.at(value)} {y - tick}v{2 * tick}" for value in mark.repeats)
    drawn += _path(f"repeat {style}", "".join(ticks)) if mark.repeats else ""
    if math.isfinite(mark.value):
        shape = _shape(across.at(mark.value), y, mark.style, radius)
        drawn += _path(f"mark {style}", shape)
    return Markup("<g><title>{}</title>{}</g>").format(tip, drawn)


# Corners of the mark of each chart style, at radius one; None stands for a circle.
_SQUARE, _UP = "-.9,-.9 .9,-.9 .9,.9 -.9,.9", "0,-1.2 1.15,.9 -1.15,.9"
_PLUS = "-.4,-1.2 .4,-1.2 .4,-.4 1.2,-.4 1.2,.4 .4,.4 .4,1.2 -.4,1.2 -.4,.4 -1.2,.4 -1.2,-.4 -.4,-.4"
_CROSS = "-1.1,-.6 -.6,-1.1 0,-.5 .6,-1.1 1.1,-.6 .5,0 1.1,.6 .6,1.1 0,.5 -.6,1.1 -1.1,.6 -.5,0"
_SHAPES = (
    "0,-1.3 1.3,0 0,1.3 -1.3,0",
    _SQUARE,
    None,
    _UP,
    None,
    _SQUARE,
    _UP,
    "0,1.2 1.15,-.9 -1.15,-.9",
    _PLUS,
    _CROSS,
    "0,-.7 0,.7",
)
OWN = STYLES = len(_SHAPES) - 1  # the last shape is a stroke, which marks the individual estimates
FIRST_CLASS_STYLE = 4


def _shape(x: float, y: float, style: int, r: float) -> str:
    """Return the SVG path for the mark of a chart style, centered at a point."""
    corners = _SHAPES[style]
    if corners is None:
        return f"M{x} {y}m{-r} 0a{r} {r} 0 1 1 {2 * r} 0a{r} {r} 0 1 1 {-2 * r} 0z"
    places = np.array(corners.replace(",", " ").split(), float).reshape(-1, 2)
    steps = r * np.diff(places, axis=0, prepend=0)
    lines = "l".join(f"{dx:g} {dy:g}" for dx, dy in steps.round(2))
    return f"M{x} {y}m{lines}z"


def class_style(i: int) -> int:
    """Return a chart style for item i of a group without fixed styles, such as annotator classes."""
    return FIRST_CLASS_STYLE + i % (STYLES - FIRST_CLASS_STYLE)
