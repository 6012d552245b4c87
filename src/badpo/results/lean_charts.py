"""Charts of many annotators: caterpillar, points with limits around them.

As in `badpo.results.charts` every function returns one ``<svg>`` element. What lies beyond an axis is drawn at its end
with an arrow, so that one infinite interval does not press everyone else together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

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
from badpo.results.charts import Level
from badpo.results.labels import decimal

_LANE = 14
_VOTES = 40
_LETTER = 6.5
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
    left = max(60.0, round(_LETTER * max(len(row.name) for row in rows)) + 10.0)
    across = scale_of([], limits, left, WIDTH - _VOTES)
    top = 34.0
    bottom = top + _LANE * len(rows)
    parts = [*vertical_grid(across, top, bottom)]
    parts.append(text_at((left + WIDTH - _VOTES) / 2, bottom + 34, axis, "middle", "axis"))
    parts.append(dashed_line(across.at(level.value), top - 4, across.at(level.value), bottom))
    parts.append(
        text_at(across.at(level.value), top - 10, level.name, anchor_of(across, level.value), "level")
    )
    parts.append(text_at(WIDTH, top - 10, "votes", "end", "level"))
    for i, row in enumerate(rows):
        parts.append(_lean(row, top + _LANE * (i + 0.5), left, across))
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
