"""A few pools of every table of `bench.audit_statistics`, with margins wide enough for their number."""

from __future__ import annotations

import json
import sys

import pytest

from bench import audit_statistics
from bench.audit_statistics import (
    Case,
    Pool,
    alarms,
    estimates,
    flag_cases,
    measured,
)
from bench.simulated_pools import sized


def mean_of(measure, replicates, **pool):
    row = measured(Case({}, 9, Pool(**pool), measure), replicates)
    return {name: value["mean"] for name, value in row.items() if name != "replicates"}


@pytest.mark.parametrize("votes_each", [2, 4, 8])
def test_slope_and_coverage(votes_each):
    found = mean_of(estimates, 5, n_comparisons=sized(75, votes_each, 1.0), votes_each=votes_each)
    assert 0.9 < found["slope"] < 1.15
    assert 0.91 < found["coverage"] < 0.985
    assert 0.90 < found["posterior_coverage"] < 0.99
    assert 70 < found["informative"] < 85


def test_flags_are_mostly_right(monkeypatch):
    monkeypatch.setattr(audit_statistics, "FLAG_POOLS", {"one": Pool(4000, n_annotators=40)})
    default, point_null = (measured(case, 8) for case in flag_cases())
    assert default["false"]["mean"] < 0.25 and default["found"]["mean"] > 0.3
    assert point_null["false"]["mean"] > 0.2


def test_false_alarms_on_the_way():
    found = mean_of(alarms, 4, n_comparisons=1500, spread=0.0, n_planted=1)
    assert found["e_process"] <= 0.06 and found["e_bh"] <= 0.5
    assert found["peeking"] > 0.12


def test_the_command_prints_its_figures(monkeypatch, capsys):
    monkeypatch.setattr(
        audit_statistics, "STREAMS", {"all alike": Pool(200, n_annotators=10, spread=0.0)}
    )
    arguments = ["audit_statistics", "--replicates", "2", "--table", "sequential"]
    monkeypatch.setattr(sys, "argv", arguments)
    audit_statistics.main()
    page = capsys.readouterr().out
    assert "--replicates 2" in page and "| all alike " in page
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    audit_statistics.main()
    found = json.loads(capsys.readouterr().out)
    assert found["tables"]["sequential"][0]["e_process"]["mean"] <= 1
