"""What every chart is made of: an axis, its grid, texts, marks and the ``<svg>`` element around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from badpo.results.labels import decimal

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
