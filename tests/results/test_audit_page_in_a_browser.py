"""The audit's page in a real browser: no request, no complaint, nothing that runs over the side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from badpo.attributes import Length, Markdown
from badpo.auditing.audit import audit
from tests.auditing.planted import votes
from tests.browser import Browser, browser_program

pytestmark = pytest.mark.slow
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"
# what sticks out of the window although it does not scroll in a box of its own
STICKING_OUT = """[...document.querySelectorAll("main *:not(svg *)")].filter(
    e => !e.closest(".scroll") && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + e.className)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    table = votes(400, 12)[0]
    marked = table["comparison_id"].str.endswith(("1", "5"))
    table["response_a"] = table["response_a"].mask(marked, "- " + table["response_a"])
    found = audit(
        table, [Length(), Markdown()], source=f"{'a_very_long_name_' * 20}<script>alert(1)</script>.csv"
    )
    page = found.write(tmp_path_factory.mktemp("audit"))
    found.people_to_html(page.with_name("people.html"))
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(browser_program()) as opened:
        yield opened


@pytest.mark.parametrize(("scheme", "color"), [("light", LIGHT), ("dark", DARK)])
@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize(("name", "n_charts"), [("report.html", 2), ("people.html", 4)])
def test_the_page_in_a_window(browser, page, name, n_charts, width, scheme, color):
    page = page.with_name(name)
    browser.open(page, width, scheme)
    assert [r["request"]["url"] for r in browser.reported("Network.requestWillBeSent")] == [
        page.as_uri()
    ]
    for complaint in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
        assert not browser.reported(complaint)
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") == width
    assert browser.value(STICKING_OUT) == []
    assert browser.value("getComputedStyle(document.body).backgroundColor") == color
    assert browser.value("document.querySelectorAll('svg.chart').length") >= n_charts
