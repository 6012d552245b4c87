"""A few pools of the tables of `bench.audit_statistics`, with margins wide enough for their number."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from badpo.auditing.watch import AuditMonitor
from badpo.estimation.sequential import e_bh
from bench import audit_statistics
from bench.audit_statistics import SCENES, Case, Pool, beside_truth, measured
from bench.audit_streams import evidence_over_time, flags_on_the_way
from bench.audited_pools import audited
from bench.simulated_pools import draw_votes, sized

COVERED = {"slope": (0.9, 1.15), "coverage": (0.91, 0.985), "posterior_coverage": (0.90, 0.99)}
FLAGGED = {"false": (0, 0.25), "found": (0.3, 1), "coverage": (0.91, 0.985)}
LEANER = Pool(2000, n_annotators=12, quality_sd=2.0, spread=0.0, n_planted=1)
CLICKERS, (ALONE, *_, BESIDE) = SCENES["6 of 30 click"], audit_statistics.ESTIMATORS
CLICKER = replace(LEANER, better=0.7, n_planted=0, n_clickers=1)


NO_CARE, CARE = (partial(beside_truth, estimator=each) for each in (ALONE, BESIDE))
MEASURED = {
    **{f"{n} votes": (audited, Pool(sized(75, n, 1.0), votes_each=n), 5, COVERED) for n in (2, 4, 8)},
    "the audit": (audited, Pool(4000, n_annotators=40), 3, FLAGGED),
    "no care": (NO_CARE, CLICKERS, 6, {"coverage": (0.7, 0.89)}),
    "care": (CARE, CLICKERS, 6, {"coverage": (0.9, 1), "equal": (0, 0.4)}),
    "a leaner": (flags_on_the_way, LEANER, 5, {"wrong_flag": (0, 0.4), "as_lean": (0.8, 1)}),
    "a clicker": (flags_on_the_way, CLICKER, 5, {"as_lean": (0, 0.2), "as_careless": (0.8, 1)}),
}


@pytest.mark.parametrize("of", MEASURED)
def test_figures_are_within_their_margins(of):
    measure, pool, replicates, margins = MEASURED[of]
    row = measured(Case({}, 9, pool, measure), replicates)
    for name, (low, high) in margins.items():
        assert low <= row[name]["mean"] <= high, name


def test_what_is_found_on_the_way_is_what_the_monitor_says():
    pool = replace(CLICKER, n_comparisons=600, n_planted=1)
    votes, monitor, flags = draw_votes(pool, np.random.default_rng(2)), AuditMonitor(["x"]), np.zeros(3)
    *evidence, informative = evidence_over_time(votes)
    for c in range(600):
        here = votes.comparison == c
        names = [f"{k:02}" for k in votes.annotator[here]]
        monitor.update(str(c), names, votes.sign[here], votes.delta[here])
        if c % 15 == 14 and c > 90:
            table, look = monitor.table(), c // 3
            log_e, _, log_care = (each[look] for each in evidence)
            expected = np.column_stack([np.exp(log_e), np.exp(log_care), informative[look]])
            np.testing.assert_allclose(table[["e_value", "e_careless", "n_informative"]], expected)
            said = table["flag"], table["reading"] == "lean", table["careless"]
            for each, values in zip(said, evidence, strict=True):
                assert each.tolist() == e_bh(values[look], 0.05).tolist()
            flags += np.sum(said, axis=1)
    assert (flags > 0).all()


def test_the_command_prints_its_figures(monkeypatch, capsys):
    alike = Pool(200, n_annotators=10, spread=0.0)
    monkeypatch.setattr(audit_statistics, "STREAMS", {"all alike": alike})
    arguments = ["audit_statistics", "--replicates", "2", "--table", "sequential"]
    monkeypatch.setattr(sys, "argv", arguments)
    audit_statistics.main()
    page = capsys.readouterr().out
    assert "--replicates 2" in page and "| all alike " in page and "| ± at most " in page
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    audit_statistics.main()
    found = json.loads(capsys.readouterr().out)
    assert found["tables"]["sequential"][0]["wrong_flag"]["mean"] <= 1
