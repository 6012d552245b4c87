"""The picture of the anchoring page: asked against achieved, and every readout before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

COLORS = {"sample": "#1f77b4", "train": "#d95f02"}
SIDE, LEFT, TOP = 300, 60, 40
RIGHT, WIDTH = 430, 330


def picture(results: Mapping[tuple[str, float], Sequence[dict]], attributes: Sequence[str]) -> str:
    """An SVG: points around the identity line on the left, before and after at the target 0.5 on the right."""
    parts = [*_axes(), *_points(results, attributes), *_before_after(results)]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 420" font-family="sans-serif" font-size="12">'
        '<rect width="800" height="420" fill="#fff"/>'
        "<title>Rates asked for and achieved, and what else moved</title>" + "".join(parts) + "</svg>\n"
    )


def _x(rate: float) -> float:
    return LEFT + SIDE * rate


def _y(rate: float) -> float:
    return TOP + SIDE * (1 - rate)


def _axes() -> list[str]:
    lines = [
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>',
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="#999" stroke-dasharray="4 4"/>',
        _text(LEFT + SIDE / 2, TOP + SIDE + 36, "asked", "middle"),
        _text(LEFT, TOP - 12, "achieved, on prompts that were not searched on"),
    ]
    for rate in (0, 0.25, 0.5, 0.75, 1):
        lines.append(_text(_x(rate), TOP + SIDE + 16, f"{rate:g}", "middle"))
        lines.append(_text(LEFT - 6, _y(rate) + 4, f"{rate:g}", "end"))
    return lines


def _points(results: Mapping[tuple[str, float], Sequence[dict]], attributes: Sequence[str]) -> list[str]:
    found = []
    for (mode, target), anchors in results.items():
        for i, name in enumerate(attributes):
            # a little side by side, so that modes and attributes do not cover each other whole
            x = _x(target) + 4 * (i - 0.5) + (1 if mode == "train" else -1)
            shape = _circle if i == 0 else _square
            found += [shape(x, _y(anchor[name]["achieved"]), COLORS[mode]) for anchor in anchors]
    y = TOP + SIDE + 58
    for column, (mode, color) in enumerate(COLORS.items()):
        for i, name in enumerate(attributes):
            x = LEFT + 220 * column + 110 * i
            found += [(_circle if i == 0 else _square)(x, y, color), _text(x + 8, y + 4, f"{mode} {name}")]
    return found


def _before_after(results: Mapping[tuple[str, float], Sequence[dict]]) -> list[str]:
    modes = [mode for mode in COLORS if (mode, 0.5) in results]
    parts = [_text(RIGHT, TOP - 12, "before (gray) and after, target 0.5, mean over seeds")]
    rows = {
        "sampled woman": lambda m, side: m["sampled"]["woman"][side]["rate"],
        "sampled black": lambda m, side: m["sampled"]["black"][side]["rate"],
        "signed": lambda m, side: m["editable"][side],
        "ended": lambda m, side: m["ended"][side],
        "tokens / 128": lambda m, side: m["tokens"][side] / 128,
        "same-group accuracy": lambda m, side: m["heldout"]["same"][side],
        "held-out gap": lambda m, side: m["heldout"]["gap"][side],
        "KL to the reference": lambda m, side: m["kl_reference"][side]["per_token"],
    }
    start, scale = RIGHT + 130, WIDTH - 150
    for i, (name, read) in enumerate(rows.items()):
        y = TOP + 8 + 38 * i
        parts.append(_text(RIGHT + 120, y + 12, name, "end"))
        bars = [("#bbb", "before", modes[0])] if modes else []
        bars += [(COLORS[mode], "after", mode) for mode in modes]
        for row, (color, side, mode) in enumerate(bars):
            value = float(np.mean([read(r["moved"], side) for r in results[mode, 0.5]]))
            left, width = start + min(value, 0) * scale, abs(value) * scale
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 9 * row:.1f}" width="{width:.1f}" height="8" fill="{color}"/>'
            )
            parts.append(_text(start + max(value, 0) * scale + 4, y + 9 * row + 8, f"{value:.3f}", size=9))
    parts.append(
        f'<line x1="{start}" y1="{TOP}" x2="{start}" y2="{TOP + 8 + 38 * len(rows)}" stroke="#999"/>'
    )
    return parts


def _circle(x: float, y: float, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{color}" stroke-width="1.6"/>'


def _square(x: float, y: float, color: str) -> str:
    return (
        f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="none" stroke="{color}" '
        'stroke-width="1.6"/>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'
