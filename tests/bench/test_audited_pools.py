"""Cells of the audit's statistics: what is counted as right, and how a missed goal is shown."""

from __future__ import annotations

import numpy as np
import pytest

from bench.audit_statistics import judged
from bench.audited_pools import CELLS, audited


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
        ("leans of sd 0.9 toward what goes with it", {"W416": 1.0}),
    ],
)
def test_a_pool_is_what_its_name_says(name, expected):
    found = figures(name)
    assert {key: found.get(key) for key in expected} == expected


def row(pool: str, **shares: float) -> dict:
    return {"pool": pool} | {
        key: {"mean": share, "low": share - 0.02, "high": share + 0.02} for key, share in shares.items()
    }


def test_a_missed_goal_is_bold_with_the_code_that_tells_why():
    control = row("control", coverage=0.925, posterior_coverage=0.954, false=0.115, W416=0.02)
    hidden = row("leans of sd 0.9 toward what goes with it", coverage=0.8, false=0.9, W416=0.9)
    planted = row("one of 24 votes against the attribute", found=0.8, W405=0.5)
    shown = judged([control, hidden, planted])
    cells = {"coverage": "*92.5 ± 2.0*", "posterior_coverage": "95", "false": "12 ± 2"}
    assert shown[0] == {"pool": "control"} | cells
    assert shown[1]["coverage"] == "**80.0 ± 2.0**" and shown[1]["told"] == "W416 90%, control 2%"
    assert shown[2]["found"] == "**80.0 ± 2.0 (85 asked)**"
    assert shown[2]["told"] == "**W405 50%, control 0%**"
