"""Biases that count from gold annotators take everybody's reliability into account."""

import numpy as np
import pytest
from scipy import stats

from badpo.estimation.gold_annotators import PROBIT, _gold_line
from badpo.estimation.reliability import STEEPEST, Reliability
from badpo.theory.summaries import Interval
from bench.audited_pools import CELLS, measure_audit


def test_merit_and_reliability_of_gold_annotators_are_averaged_over_together():
    """Moments of what reliability adds, beside those on a fine grid of merit and reliability."""
    one = np.ones((1, 1))
    care = Reliability(one, one, one, 0.3, "", np.ones(1, int), 1.2)
    line = _gold_line(Interval(0.4, 0.2, 0.0, 0.8, 9), care, 0.6, 0.3**2)
    a, m = (each.ravel() for each in np.meshgrid(np.linspace(-0.6, 1.8, 601), np.linspace(-9, 9, 901)))
    factor = np.sqrt(1 + PROBIT * (1.2 * 0.6) ** 2)
    held = np.maximum(a, 0.0)
    density = stats.norm.pdf(a, 0.6, 0.3) * stats.norm.pdf(m, 0, STEEPEST)
    density *= stats.norm.pdf(held * m, factor * 0.4, factor * 0.2)
    density /= density.sum()
    for reliability in (0.0, 0.7, 1.5):
        added = (reliability - held) * m
        mean = density @ added
        assert line.slope * reliability - line.center == pytest.approx(mean, abs=0.01)
        assert line.variance(reliability) == pytest.approx(density @ (added - mean) ** 2, rel=0.02)


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("gold annotators 6 of 12, the others click", False),
        ("gold annotators 3 of 30, reliability 0.3", False),
        ("gold annotators 3 of 30, all sides differ", True),
    ],
)
def test_random_responders_and_unreliable_gold_annotators_bias_nobody(name, is_told):
    found = [measure_audit(CELLS[name].pool, np.random.default_rng([6, seed])) for seed in range(4)]
    for figure, least in {"coverage": 0.9, "posterior_coverage": 0.9, "level": 0.75}.items():
        assert np.mean([each[figure] for each in found]) >= least, figure
    assert np.mean([each["false"] for each in found]) <= 0.25
    assert all("W410" in each for each in found) or not is_told


def test_gold_annotators_as_reliable_as_the_others_leave_biases_known():
    found = [
        measure_audit(CELLS["gold annotators 6 of 12"].pool, np.random.default_rng([6, seed]))
        for seed in range(4)
    ]
    assert np.mean([each["found"] for each in found]) > 0.3 and not any("W418" in each for each in found)
