from __future__ import annotations

import sys

import pytest

from bench import tables
from bench.timing import as_markdown


@pytest.fixture
def parts(tmp_path):
    (tmp_path / "audit.md").write_text("### Speed of the audit\n\n| tool |\n| --- |\n")
    (tmp_path / "memory.md").write_text("### Peak memory\n\nHalf of TRL's.\n")
    return tmp_path


def page_of(parts, monkeypatch):
    page = parts / "page.md"
    monkeypatch.setattr(sys, "argv", ["bench.tables", "--parts", str(parts), "--out", str(page)])
    tables.main()
    return page.read_text()


def test_parts_stand_in_a_fixed_order_below_one_title(parts, monkeypatch):
    headings = [line for line in page_of(parts, monkeypatch).splitlines() if line.startswith("#")]
    assert headings == [
        "# Speed and memory in figures",
        "## Peak memory",
        "## Speed of the audit",
    ]


def test_what_was_not_measured_is_said(parts, monkeypatch, capsys):
    page = page_of(parts, monkeypatch)
    assert "Not measured for this page: `bench.training`, `bench.reference`" in page
    assert "python -m bench.memory" in page and "python -m bench.training" not in page
    assert "not there: training, reference" in capsys.readouterr().out


def test_without_any_part_there_is_no_page(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="write them with make bench"):
        page_of(tmp_path, monkeypatch)
    assert not (tmp_path / "page.md").exists()


def test_a_column_that_nothing_fills_is_left_out():
    rows = [{"case": "signed", "ratio": None, "peak": 0.5}, {"case": "mtbench", "ratio": None, "peak": None}]
    table = as_markdown("Memory", rows, {"threads": "1"}).splitlines()
    assert table[2] == "| case | peak |"
    assert table[4:6] == ["| signed | 0.50 |", "| mtbench |  |"]
