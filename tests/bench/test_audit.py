from __future__ import annotations

import numpy as np
import pytest

from bench.audit import FITS, as_text, measure, ratios
from bench.audit_votes import SIZES, draw, load, save


def test_annotators_on_a_comparison_are_distinct_and_the_votes_come_back_from_a_file(tmp_path):
    votes = draw(SIZES["tiny"], seed=3)
    people = np.sort(votes.annotator.reshape(-1, 4), axis=1)
    assert (np.diff(people, axis=1) > 0).all()
    save(votes, tmp_path / "votes.npz")
    for name, values in vars(load(tmp_path / "votes.npz")).items():
        np.testing.assert_array_equal(values, getattr(votes, name))


@pytest.mark.parametrize("tool", list(FITS))
def test_every_tool_is_measured(tool, tmp_path):
    save(draw(SIZES["tiny"]), tmp_path / "votes.npz")
    found = measure(tool, tmp_path / "votes.npz")
    assert found["gradient"] is None or found["gradient"] < 0.1
    assert 0.6 < found["slope"] < 2
    assert found["peak_mb"] > 10


def test_the_table_names_peers_and_their_ratios():
    row = {"size": "S", "seconds": 1.0, "peak_mb": 1.0, "gradient": 1e-9, "slope": 1.0, "covered": None}
    rows = [
        row | {"tool": "conditional", "cpu_seconds": 0.1},
        row | {"tool": "statsmodels", "cpu_seconds": 30.0},
    ]
    found = {"fits": rows, "ratios": ratios(rows), "cold_start": None, "machine": {"cores": "2"}}
    assert "S, statsmodels ConditionalLogit: 300.0 times" in as_text(found)
