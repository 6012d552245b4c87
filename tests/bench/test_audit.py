from __future__ import annotations

import sys

import numpy as np
import pytest

from bench import audit


def test_annotators_on_a_comparison_are_distinct():
    votes = audit.draw(audit.SIZES["tiny"], seed=3)
    people = np.sort(votes.annotator.reshape(-1, 4), axis=1)
    assert (np.diff(people, axis=1) > 0).all()


@pytest.mark.parametrize("tool", list(audit.FITS))
def test_every_tool_is_measured(tool, tmp_path):
    np.savez(tmp_path / "votes.npz", **audit.draw(audit.SIZES["tiny"])._asdict())
    rows = audit.measure(tool, tmp_path / "votes.npz")
    assert len(rows) == (3 if tool == "badpo" else 1)
    for row, before in zip(rows, [{"cpu_seconds": 0.0}, *rows], strict=False):
        assert row.get("gradient", 0.0) < 0.1
        assert 0.6 < row["slope"] < 2
        assert row["peak_mb"] > 10
        assert row["cpu_seconds"] > before["cpu_seconds"]


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        ("--case S --tool badpo --tool statsmodels", "S | statsmodels"),
        ("--case judges --case jury", "jury | audit"),
    ],
)
def test_the_table_has_the_ratios_of_processor_time(arguments, row, monkeypatch, capsys):
    found = {"cpu_seconds": 0.1, "slope": 1.0}
    answers = iter([[found], [found | {"cpu_seconds": 30.0}]])
    monkeypatch.setattr(audit.timing, "apart", lambda work, *arguments: next(answers))
    monkeypatch.setattr(audit, "draw", lambda size: audit.Votes(*np.zeros((5, 1))))
    monkeypatch.setattr(sys, "argv", ["audit", *arguments.split()])
    audit.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert f"| {row} | 30.00 | 1.00 | 300.00 |" in shown
