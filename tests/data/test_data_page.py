"""The page about data says what is there."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from badpo.data.tables import KNOWN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data.md"


def test_the_example_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 3
    assert result.failed == 0


def test_every_column_is_on_the_page():
    text = PAGE.read_text()
    assert [name for name in KNOWN if f"`{name}`" not in text] == []


def test_every_code_falls_into_a_range_of_the_page():
    listed = re.findall(r"[EWN](\d{3})(?: to [EWN](\d{3}))?", PAGE.read_text())
    known = {n for low, high in listed for n in range(int(low), int(high or low) + 1)}
    source = "".join(path.read_text() for path in (ROOT / "src/badpo/data").glob("*.py"))
    source += "".join(path.read_text() for path in (ROOT / "src/badpo/importers").glob("*.py"))
    used = {int(code) for code in re.findall(r'"[EWN](\d{3})"', source)}
    assert used - known == set()
