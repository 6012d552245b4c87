"""Charts put values where they belong, tell styles apart without color, and escape what they are given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib import resources
from itertools import pairwise

import pytest

from badpo.results.charts import (
    STYLES,
    DotRow,
    Level,
    Mark,
    Series,
    dot_plot,
    legend,
    line_chart,
    scatter,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def elements(svg: str, tag: str, css: str) -> list[ET.Element]:
    return [e for e in parsed(svg).iter(f"{SVG}{tag}") if css in e.get("class", "").split()]


def position(mark: ET.Element) -> tuple[float, float]:
    x, y = re.fullmatch(r"translate\((\S+) (\S+)\)", mark.get("transform")).groups()
    return float(x), float(y)


def ticks(svg: str) -> dict[str, float]:
    """Labels of the horizontal axis and where they stand."""
    found = elements(svg, "text", "tick")
    lowest = max(float(e.get("y")) for e in found)
    return {e.text: float(e.get("x")) for e in found if float(e.get("y")) == lowest}


def test_a_dot_stands_at_its_value_between_the_ends_of_its_interval():
    svg = dot_plot([DotRow("DPO", (Mark(0.6, "DPO", 1, 0.4, 0.8),))], "rates", "rate", limits=(0, 1))
    at = ticks(svg)
    (mark,), (line,) = elements(svg, "path", "mark"), elements(svg, "line", "interval")
    assert position(mark)[0] == pytest.approx(at["0.6"], abs=0.1)
    assert float(line.get("x1")) == pytest.approx(at["0.4"], abs=0.1)
    assert float(line.get("x2")) == pytest.approx(at["0.8"], abs=0.1)
    assert mark.find(f"{SVG}title").text == "DPO: 0.60 (95 % interval 0.40 to 0.80)"


def test_an_interval_beyond_the_axis_ends_at_the_axis():
    svg = dot_plot([DotRow("DPO", (Mark(0.95, "DPO", 1, 0.8, 1.1),))], "rates", "rate", limits=(0, 1))
    (line,) = elements(svg, "line", "interval")
    assert float(line.get("x2")) == pytest.approx(ticks(svg)["1.0"], abs=0.1)


def test_an_unknown_interval_draws_none():
    svg = dot_plot(
        [DotRow("DPO", (Mark(0.5, "DPO", 1, float("nan"), None),))], "rates", "rate", limits=(0, 1)
    )
    assert not elements(svg, "line", "interval")
    assert "nan" not in svg


def test_each_mark_of_a_row_has_its_own_lane_and_each_seed_its_tick():
    marks = (Mark(0.5, "pooled", 2, repeats=(0.4, 0.5, 0.6)), Mark(0.7, "shared mean", 3))
    svg = dot_plot([DotRow("class A", marks)], "votes", "accuracy", Level(0.5, "coin"), (0, 1))
    heights = [position(mark)[1] for mark in elements(svg, "path", "mark")]
    assert heights[1] - heights[0] >= 12
    assert len(elements(svg, "line", "repeat")) == 3
    (level,) = elements(svg, "line", "level")
    assert float(level.get("x1")) == pytest.approx(position(elements(svg, "path", "mark")[0])[0])


@pytest.mark.parametrize("limits", [(0.0, 1.0), (0.012, 0.031), (-4.0, 3.0), (50.0, 380.0), (0.5, 0.5)])
def test_tick_labels_say_where_the_tick_stands(limits):
    svg = dot_plot([DotRow("a", (Mark(limits[0], "a", 0),))], "chart", "axis", limits=limits)
    numbers = [(float(text.replace("\u2212", "-").replace(",", "")), x) for text, x in ticks(svg).items()]
    steps = {round(b[0] - a[0], 9) for a, b in zip(numbers, numbers[1:], strict=False)}
    assert 3 <= len(numbers) <= 8
    assert len(steps) == 1, f"labels are not evenly spaced: {numbers}"
    assert numbers[0][0] <= limits[0] and numbers[-1][0] >= limits[1]


def test_lines_end_with_their_values_apart_from_each_other():
    lines = [Series("pooled", 2, ((0, 0.0), (10, 1.0))), Series("shared mean", 3, ((0, 0.0), (10, 1.001)))]
    svg = line_chart(lines, "theta", "step", "log-odds", Level(1.2, "planted mean"))
    heights = [float(e.get("y")) for e in elements(svg, "text", "end")]
    assert abs(heights[0] - heights[1]) >= 13
    assert [e.text for e in elements(svg, "text", "level")] == ["planted mean"]
    dashes = {e.get("class") for e in elements(svg, "polyline", "series")}
    assert dashes == {"series s2 d2", "series s3 d3"}


def test_a_scatter_has_equal_axes_so_that_equality_is_the_diagonal():
    svg = scatter(
        [Series("A", 4, ((-1.5, -1.5), (0.0, 0.0), (3.2, 3.2)))], "theta", "planted", "learned", "r = 1"
    )
    (diagonal,) = elements(svg, "line", "level")
    x1, y1, x2, y2 = (float(diagonal.get(name)) for name in ("x1", "y1", "x2", "y2"))
    assert x2 - x1 == pytest.approx(y1 - y2)
    for mark in elements(svg, "path", "point"):
        x, y = position(mark)
        assert x - x1 == pytest.approx(y1 - y, abs=0.2)


def test_arms_differ_in_shape_and_not_only_in_color():
    def outline(style: int) -> str:
        svg = dot_plot([DotRow("a", (Mark(0.5, "a", style),))], "chart", "axis", limits=(0, 1))
        return elements(svg, "path", "mark")[0].get("d")

    assert len({outline(style) for style in range(4)}) == 4
    assert len({outline(style) for style in range(4, STYLES)}) == STYLES - 4


def test_texts_are_escaped():
    bad = "</text><script>alert(1)</script>\"'&"
    svgs = [
        dot_plot([DotRow(bad, (Mark(0.5, bad, 1),))], bad, bad, Level(0.2, bad), (0, 1)),
        line_chart([Series(bad, 2, ((0, 0), (1, 1)))], bad, bad, bad, Level(0.5, bad)),
        scatter([Series(bad, 4, ((0, 0), (1, 1)))], bad, bad, bad, bad),
        legend([(bad, 1)]),
    ]
    for svg in svgs:
        assert "<script" not in svg
        assert parsed(svg) is not None


@pytest.mark.parametrize("dark", [False, True])
def test_colors_stand_out_from_the_page(dark):
    """Text needs a contrast of 4.5, marks of 3 (WCAG 2.2)."""
    css = (resources.files("badpo.results") / "templates" / "page.css").read_text()
    light, in_dark = re.findall(r":root \{(.*?)\}", css, re.S)
    colors = dict(re.findall(r"--([\w]+): (#[0-9a-f]{6})", in_dark if dark else light))
    for name in ("ink", "quiet"):
        assert contrast(colors[name], colors["page"]) >= 4.5, name
    for style in range(STYLES):
        assert contrast(colors[f"c{style}"], colors["page"]) >= 4.5, f"c{style} also colors numbers"


def contrast(one: str, other: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_long_labels_stand_above_their_marks_and_leave_them_the_width():
    rows = [
        DotRow("Shared mean from the swap pairs' level", (Mark(0.2, "here", 1),)),
        DotRow("DPO", (Mark(0.9, "here", 1),)),
    ]
    places = set(re.findall(r'<text class="label" x="([^"]+)"', dot_plot(rows, "rates", "rate")))
    assert places == {"0.0"}
    short = dot_plot([replace(row, label="DPO") for row in rows], "rates", "rate")
    assert "0.0" not in re.findall(r'<text class="label" x="([^"]+)"', short)


def test_numbers_of_ticks_do_not_touch():
    svg = dot_plot([DotRow("DPO", (Mark(-0.0098, "a", 1), Mark(0.0024, "b", 1)))], "body", "difference")
    ticks = re.findall(r'<text class="tick" x="([^"]+)" y="[^"]+" text-anchor="middle">([^<]+)<', svg)
    places = [float(x) for x, _ in ticks]
    assert min(b - a for a, b in pairwise(places)) > 6 * max(len(text) for _, text in ticks)


def test_a_line_that_grows_goes_up_beside_labels_that_do():
    svg = line_chart([Series("pooled", 2, ((0, 0.0), (100, 0.8)))], "theta", "step", "theta")
    (line,) = elements(svg, "polyline", "series")
    first, last = (float(point.split(",")[1]) for point in line.get("points").split())
    beside = [e for e in elements(svg, "text", "tick") if e.get("text-anchor") == "end"]
    at = {float(e.text): float(e.get("y")) for e in beside}
    assert (first, last) == pytest.approx((at[0.0] - 4, at[0.8] - 4))
    assert first > last
