from __future__ import annotations

from bench.timing import as_markdown


def test_a_column_that_nothing_fills_is_left_out():
    rows = [
        {"case": "signed", "ratio": None, "peak": 0.5},
        {"case": "mtbench", "ratio": None, "peak": None},
    ]
    table = as_markdown("Memory", rows, {"threads": "1"}).splitlines()
    assert table[2].split() == ["|", "case", "|", "peak", "|"]
    assert [row.split() for row in table[4:6]] == [
        ["|", "signed", "|", "0.50", "|"],
        ["|", "mtbench", "|", "|"],
    ]
