"""The simulated pools of the audit: a few figures with wide margins, the cells, and the marks of missed goals."""

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
    compare_with_truth,
    draw_rows,
    mark_misses,
    measure_pools,
    summarize,
)
from bench.audit_streams import measure_stream
from bench.audited_pools import CELLS, Cell, measure_audit
from bench.simulated_pools import sized


def figures(name: str) -> dict[str, float]:
    cell = CELLS[name]
    return measure_audit(cell.pool, np.random.default_rng([7, 0]), cell.change)


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


def test_biases_toward_an_attribute_are_not_attributed_to_a_correlated_feature():
    real = replace(CELLS["6 of 40 at 2.5 more or less, sd 0.3"].pool, hidden=1e-9)
    found = measure_audit(real, np.random.default_rng([7, 0]))
    assert found["found"] > 0.5 and "W416" not in found


def row(pool: str, **shares: float) -> dict:
    return {"pool": pool} | {
        key: {"mean": share, "low": share - 0.02, "high": share + 0.02} for key, share in shares.items()
    }


def test_a_missed_goal_is_bold_with_the_code_that_explains_it():
    control = row("control", coverage=0.925, posterior_coverage=0.954, false=0.115, W416=0.02)
    hidden = row("leans of sd 0.9 toward what goes with it", coverage=0.8, false=0.9, W416=0.9)
    planted = row("one of 24 votes against the attribute", found=0.8, W405=0.5)
    rows = mark_misses("pools", [control, hidden, planted])
    # misses within two Monte Carlo errors are not marked
    cells = {"coverage": "92", "posterior_coverage": "95", "false": "12 ± 2"}
    assert rows[0] == {"pool": "control"} | cells
    assert rows[1]["coverage"] == "**80.0 ± 2.0**" and rows[1]["told"] == "W416 90%, control 2%"
    assert rows[2]["found"] == "**80.0 ± 2.0 (goal 85)**"
    assert rows[2]["told"] == "**W405 50%, control 0%**"


COVERED = {"slope": (0.9, 1.15), "coverage": (0.91, 0.985), "posterior_coverage": (0.90, 0.99)}
FLAGGED = {"false": (0, 0.25), "found": (0.3, 1), "coverage": (0.91, 0.985)}
BIASED = Pool(2000, n_annotators=12, quality_sd=2.0, spread=0.0, n_planted=1)
RANDOM_RESPONDERS, (WITHOUT, *_, WITH) = SCENES["6 of 30 click"], ESTIMATORS
RANDOM_RESPONDER = replace(BIASED, better=0.7, n_planted=0, n_clickers=1)
WITHOUT_RELIABILITY, WITH_RELIABILITY = (
    partial(compare_with_truth, estimator=each) for each in (WITHOUT, WITH)
)
MEASURED = {
    **{
        f"{n} votes": (measure_audit, Pool(sized(75, n, 1.0), votes_each=n), 5, COVERED)
        for n in (2, 4, 8)
    },
    "the audit": (measure_audit, Pool(4000, n_annotators=40), 3, FLAGGED),
    "without reliability": (WITHOUT_RELIABILITY, RANDOM_RESPONDERS, 6, {"coverage": (0.7, 0.89)}),
    "with reliability": (
        WITH_RELIABILITY,
        RANDOM_RESPONDERS,
        6,
        {"coverage": (0.9, 1), "equal": (0, 0.4)},
    ),
    "a biased annotator": (measure_stream, BIASED, 5, {"wrong_flag": (0, 0.4), "as_lean": (0.8, 1)}),
    "a random responder": (
        measure_stream,
        RANDOM_RESPONDER,
        5,
        {"as_lean": (0, 0.2), "as_careless": (0.8, 1)},
    ),
}


@pytest.mark.parametrize("of", MEASURED)
def test_figures_are_within_their_margins(of):
    measure, pool, replicates, margins = MEASURED[of]
    row = summarize({}, add_up(measure_pools(Case({}, 9, pool, measure, Cell(pool)), range(replicates))))
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
    pools = pd.DataFrame(measure_pools(cases[0][1], range(75)))
    shown = summarize({}, row)
    assert shown["pools"] == 75 and shown["figure"]["mean"] == pytest.approx(pools["figure"].mean())
    assert shown["figure"]["low"] == pytest.approx(t_interval(pools["figure"]).low)
    changed = [("pools", cases[0][1]._replace(seed=2))]
    draw_rows(changed, 25, 1, figures)
    (row,) = json.loads(figures.read_text()).values()
    assert row["pools"] == 25
