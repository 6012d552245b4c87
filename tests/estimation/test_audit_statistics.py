"""A few pools of the tables of `bench.audit_statistics`, with margins wide enough for their number."""

from __future__ import annotations

import json
import sys

import pytest

from bench import audit_statistics
from bench.audit_statistics import Case, Pool, estimates, measured
from bench.audit_streams import alarms
from bench.audited_pools import audited
from bench.simulated_pools import sized

COVERED = {"slope": (0.9, 1.15), "coverage": (0.91, 0.985), "posterior_coverage": (0.90, 0.99)}
COVERED["informative"] = (70, 85)
FLAGGED = {"false": (0, 0.25), "found": (0.3, 1), "coverage": (0.91, 0.985), "W410": (0.6, 1)}
ALIKE = Pool(1500, spread=0.0, n_planted=1)


@pytest.mark.parametrize(
    ("measure", "pool", "replicates", "margins"),
    [
        *((estimates, Pool(sized(75, n, 1.0), votes_each=n), 5, COVERED) for n in (2, 4, 8)),
        (audited, Pool(4000, n_annotators=40), 3, FLAGGED),
        (alarms, ALIKE, 4, {"e_process": (0, 0.06), "e_bh": (0, 0.5), "peeking": (0.12, 1)}),
    ],
    ids=["two votes", "four votes", "eight votes", "the audit", "on the way"],
)
def test_figures_are_within_their_margins(measure, pool, replicates, margins):
    row = measured(Case({}, 9, pool, measure), replicates)
    for name, (low, high) in margins.items():
        assert low <= row[name]["mean"] <= high, name


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
