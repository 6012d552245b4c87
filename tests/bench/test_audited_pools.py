"""The audit's statistics: a few of their pools with wide margins, what a cell is, how a missed goal is shown."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from badpo.theory.summaries import t_interval
from bench.audit_statistics import (
    ESTIMATORS,
    SCENES,
    Case,
    Pool,
    add_up,
    beside_truth,
    draw_rows,
    judged,
    measured,
    summarized,
)
from bench.audit_streams import flags_on_the_way
from bench.audited_pools import CELLS, Cell, audited
from bench.simulated_pools import sized


def figures(name: str) -> dict[str, float]:
    cell = CELLS[name]
    return audited(cell.pool, np.random.default_rng([7, 0]), cell.change)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("teams at +1 and -1, joined by one comparison", {"W406": 1.0}),
        ("first side by 1.0, two of six log the order", {"W127": 1.0, "level": 1.0}),
        ("exported twice, ids: own", {"N132": 1.0, "same": 1.0}),
        ("continuous, times 100", {"same": 1.0}),
        ("one of 24 votes against the attribute", {"W405": 1.0}),
        ("50 informative votes of one of 24 against it, blind to quality", {"found": 1.0}),
        ("6 of 30 of another taste, 2,000 comparisons", {"W419": 1.0, "called_unreliable": 0.0}),
        ("two camps of 15", {"W419": 1.0, "called_unreliable": 0.0}),
        ("three families of 4 judges, all on 400 comparisons", {"W419": 1.0}),
        ("leans of sd 0.9 toward what goes with it", {"W416": 1.0}),
    ],
)
def test_a_pool_is_what_its_name_says(name, expected):
    found = figures(name)
    assert {key: found.get(key) for key in expected} == expected


def test_leans_beside_a_feature_that_goes_with_what_is_declared_are_not_said_to_be_about_it():
    real = replace(CELLS["6 of 40 at 2.5 more or less, sd 0.3"].pool, hidden=1e-9)
    found = audited(real, np.random.default_rng([7, 0]))
    assert found["found"] > 0.5 and "W416" not in found


def row(pool: str, **shares: float) -> dict:
    return {"pool": pool} | {
        key: {"mean": share, "low": share - 0.02, "high": share + 0.02} for key, share in shares.items()
    }


def test_a_missed_goal_is_bold_with_the_code_that_tells_why():
    control = row("control", coverage=0.925, posterior_coverage=0.954, false=0.115, W416=0.02)
    hidden = row("leans of sd 0.9 toward what goes with it", coverage=0.8, false=0.9, W416=0.9)
    planted = row("one of 24 votes against the attribute", found=0.8, W405=0.5)
    shown = judged("pools", [control, hidden, planted])
    # misses within two Monte Carlo errors bear no mark
    cells = {"coverage": "92", "posterior_coverage": "95", "false": "12 ± 2"}
    assert shown[0] == {"pool": "control"} | cells
    assert shown[1]["coverage"] == "**80.0 ± 2.0**" and shown[1]["told"] == "W416 90%, control 2%"
    assert shown[2]["found"] == "**80.0 ± 2.0 (85 asked)**"
    assert shown[2]["told"] == "**W405 50%, control 0%**"


COVERED = {"slope": (0.9, 1.15), "coverage": (0.91, 0.985), "posterior_coverage": (0.90, 0.99)}
FLAGGED = {"false": (0, 0.25), "found": (0.3, 1), "coverage": (0.91, 0.985)}
LEANER = Pool(2000, n_annotators=12, quality_sd=2.0, spread=0.0, n_planted=1)
CLICKERS, (ALONE, *_, BESIDE) = SCENES["6 of 30 click"], ESTIMATORS
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
    row = summarized({}, add_up(measured(Case({}, 9, pool, measure, Cell(pool)), range(replicates))))
    for name, (low, high) in margins.items():
        assert low <= row[name]["mean"] <= high, name


def count_draw(pool: Path, random: np.random.Generator) -> dict[str, float]:
    with pool.open("a") as file:
        file.write("x")
    return {"figure": random.random()}


def test_pools_that_were_drawn_are_drawn_again_only_if_estimates_change(tmp_path):
    counts, figures = tmp_path / "counts", tmp_path / "figures.json"
    cases = [("pools", Case({"pool": "one"}, 1, counts, count_draw, Cell(counts)))]
    draw_rows(cases, 50, 1, figures)
    draw_rows(cases, 75, 1, figures)
    # each run draws the first pool again
    assert len(counts.read_text()) == 75 + 2
    (row,) = json.loads(figures.read_text()).values()
    pools = pd.DataFrame(measured(cases[0][1], range(75)))
    shown = summarized({}, row)
    assert shown["pools"] == 75 and shown["figure"]["mean"] == pytest.approx(pools["figure"].mean())
    assert shown["figure"]["low"] == pytest.approx(t_interval(pools["figure"]).low)
    changed = [("pools", cases[0][1]._replace(seed=2))]
    draw_rows(changed, 25, 1, figures)
    (row,) = json.loads(figures.read_text()).values()
    assert row["pools"] == 25
