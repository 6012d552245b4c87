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
