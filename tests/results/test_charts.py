"""Charts put values where they belong and tell styles apart without color."""

import re
import xml.etree.ElementTree as ET
from importlib import resources
from itertools import pairwise

import pytest

from badpo.results.charts import STYLES, DotPanel, DotRow, Level, Mark, dot_plot

SVG = "{http://www.w3.org/2000/svg}"


def elements(svg: str, tag: str, css: str) -> list[ET.Element]:
    return [e for e in ET.fromstring(svg).iter(f"{SVG}{tag}") if css in e.get("class", "").split()]


def places(element: ET.Element) -> list[tuple[float, float]]:
    """The places that a path names one by one: of shapes, or of the corners of a line."""
    found = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", element.get("d"))
    return [(float(x), float(y)) for x, y in found]


def ends(interval: ET.Element) -> tuple[float, float]:
    """Where a horizontal line begins and ends."""
    low, high = re.match(r"M([\d.]+) [\d.]+H([\d.]+)", interval.get("d")).groups()
    return float(low), float(high)


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace(",", ""))


def ticks(svg: str) -> dict[float, float]:
    """The numbers of the axis, and where they stand."""
    return {number(e.text): float(e.get("x")) for e in elements(svg, "text", "tick")}


def level_place(svg: str) -> float:
    """Where the dashed line stands."""
    (line,) = elements(svg, "path", "level")
    return places(line)[0][0]


def plot(*marks: Mark, label: str = "DPO", limits=(0, 1), **how) -> str:
    return dot_plot(DotPanel("", [DotRow(label, marks)], "rates", "rate", limits=limits, **how))


def test_a_dot_stands_at_its_value_in_a_lane_of_its_own():
    svg = plot(Mark(0.6, "DPO", 1, 0.4, 0.8))
    at = ticks(svg)
    (mark,), (line,) = elements(svg, "path", "mark"), elements(svg, "path", "interval")
    assert places(mark)[0][0] == pytest.approx(at[0.6], abs=0.1)
    assert ends(line) == pytest.approx((at[0.4], at[0.8]), abs=0.1)
    assert "<title>DPO: 0.60 (95 % CI 0.40 to 0.80)</title>" in svg
    (axis,), number = elements(svg, "text", "axis"), elements(svg, "text", "tick")[0]
    assert axis.text == "rate" and float(axis.get("y")) > float(number.get("y"))
    unknown = Mark(float("nan"), "DPO", 1, 0.1, 0.2)
    marks = Mark(0.5, "pooled", 2, float("nan"), repeats=(0.4, 0.5, 0.6)), Mark(0.7, "shared mean", 3)
    svg = plot(*marks, unknown, level=Level(0.5, "coin"))
    (x, above), (_, below) = (places(mark)[0] for mark in elements(svg, "path", "mark"))
    assert below - above >= 12
    assert len(places(elements(svg, "path", "repeat")[0])) == 3
    # what is not known is not drawn
    assert len(elements(svg, "path", "interval")) == 1 and "nan" not in svg
    assert level_place(svg) == pytest.approx(x)
    assert [e.text for e in elements(svg, "text", "level")] == ["coin"]
    assert not elements(plot(*marks), "text", "level")


def test_labels_keep_clear_of_lines_and_of_one_another():
    mark = Mark(12_345.6, "DPO", 1, 12_000.0, 12_400.0)
    rows = [DotRow("a label that stands above its lane", (mark,))] * 2
    level, number = Level(12_200.0, "reference"), "{:,.6f}".format
    svg = dot_plot(DotPanel("", rows, "", "n" * 50, level, number=number))
    (value, _), (name,) = (elements(svg, "text", css) for css in ("value", "axis"))
    spans = re.findall(r" ([-\d.]+)V([-\d.]+)", elements(svg, "path", "level")[0].get("d"))
    spans += re.findall(r" ([-\d.]+)V([-\d.]+)", elements(svg, "path", "grid")[0].get("d"))
    tops = [float(text.get("y")) for text in elements(svg, "text", "label")]
    assert float(elements(svg, "text", "level")[0].get("y")) > tops[0] + 13
    # a letter goes five below its line
    assert not any(float(a) < y + 5 and y - 10 < float(b) for a, b in spans for y in tops)
    end = max(ends(drawn)[1] for drawn in elements(svg, "path", "interval"))
    assert end < 358 - 7 * len(value.text) and float(name.get("x")) + 7 * 25 <= 360


@pytest.mark.parametrize(
    ("low", "high", "arrow", "place"),
    [(0.8, 1.1, "l3 2-3 2", 1.0), (-0.2, 0.99, "l-3 2 3 2", 0.0), (0.2, float("inf"), "l3 2-3 2", 1.0)],
)
def test_an_interval_beyond_the_axis_ends_at_the_axis_with_an_arrow(low, high, arrow, place):
    svg = plot(Mark(0.95, "DPO", 1, low, high))
    (line,) = elements(svg, "path", "interval")
    assert ends(line)[low > 0] == pytest.approx(ticks(svg)[place], abs=0.1)
    assert line.get("d").count("l") == 1 and line.get("d").endswith(arrow)


@pytest.mark.parametrize("limits", [(0, 1), (-0.0098, 0.0024), (-4, 3), (50, 380), (0.5, 0.5)])
def test_tick_labels_say_where_the_tick_stands_and_do_not_touch(limits):
    svg = plot(Mark(limits[0], "a", 0), limits=limits)
    labels, numbers = elements(svg, "text", "tick"), list(ticks(svg))
    gaps = [float(b.get("x")) - float(a.get("x")) for a, b in pairwise(labels)]
    assert min(gaps) > 7.4 * max(len(e.text) for e in labels)
    assert 3 <= len(numbers) <= 8
    assert len({round(b - a, 9) for a, b in pairwise(numbers)}) == 1, f"not evenly spaced: {numbers}"
    step = numbers[1] - numbers[0]  # the last line of the grid may have no number
    assert numbers[0] <= limits[0] and numbers[-1] + step > limits[1]


def test_arms_differ_in_shape_and_not_only_in_color():
    drawn = elements(plot(*(Mark(0.5, "a", style) for style in range(STYLES))), "path", "mark")
    outlines = [mark.get("d").partition("m")[2] for mark in drawn]
    assert len({*outlines[:4]}) == 4 and len({*outlines[4:]}) == STYLES - 4


@pytest.mark.parametrize("dark", [False, True])
def test_colors_stand_out_from_the_page(dark):
    """Text needs a contrast of 4.5 (WCAG 2.2); styles also color numbers."""
    css = (resources.files("badpo.results") / "templates" / "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.S)[dark]
    colors = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", block))
    page = luminance(colors["page"])
    for name in ("ink", "quiet", *(f"c{style}" for style in range(STYLES))):
        low, high = sorted((luminance(colors[name]), page))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
