from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import false_discovery_control

from badpo.estimation.shrinkage import (
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    shrink_normal,
)

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def test_probability_is_that_of_the_posterior():
    rng = np.random.default_rng(0)
    value = rng.normal(size=400)
    found = shrink_normal(value, np.full(400, 0.01))
    sharp = (np.abs(value) > 0.5).astype(float)
    assert np.mean(np.abs(probability_exceeds(found, 0.5) - sharp)) < 0.01
    chance = probability_exceeds(shrink_normal(value, np.full(400, 1.0)), 0.0)
    np.testing.assert_allclose(chance, 1.0)


def test_probability_is_calibrated():
    rng = np.random.default_rng(1)
    truth = 0.5 * rng.normal(size=4000)
    found = shrink_normal(truth + 0.4 * rng.normal(size=4000), np.full(4000, 0.4))
    chance = probability_exceeds(found, 0.5)
    for low, high in [(0.0, 0.3), (0.3, 0.7), (0.7, 1.0)]:
        rows = (chance >= low) & (chance < high)
        assert np.mean(np.abs(truth[rows]) > 0.5) == pytest.approx(chance[rows].mean(), abs=0.05)


def test_a_flag_holds_under_both_priors():
    """A tight crowd and a few far from it: the normal prior alone takes the crowd's edge for large deviations."""
    rng = np.random.default_rng(3)
    truth = np.append(0.3 * rng.normal(size=180), np.full(20, 1.2))
    found = shrink_normal(truth + 0.2 * rng.normal(size=200), np.full(200, 0.2))
    alone = probability_exceeds(replace(found, other=None), 0.5)
    both = probability_exceeds(found, 0.5)
    assert (both <= alone).all()
    edge = (np.abs(truth) > 0.3) & (np.abs(truth) < 0.5)
    assert both[edge].mean() < alone[edge].mean() - 0.03


def test_nobody_known_is_nobody_flagged():
    nobody = shrink_normal([np.nan], [np.nan])
    assert np.isnan(probability_exceeds(nobody, 0.5)).all()
    assert not bayesian_fdr(probability_exceeds(nobody, 0.5), 1.0).any()
    assert bayesian_fdr([], 0.1).shape == (0,)


@given(PROBABILITIES, st.floats(0, 1))
def test_selection_is_the_longest_allowed_list(chances, fdr):
    chance = np.array(chances)
    flagged = bayesian_fdr(chance, fdr)
    if flagged.any():
        assert np.mean(1 - chance[flagged]) <= fdr + 1e-12
        assert chance[flagged].min() > chance[~flagged].max(initial=-1)
    others = np.unique(chance[~flagged])
    if len(others):
        longer = chance >= others.max()
        assert np.mean(1 - chance[longer]) > fdr - 1e-12


def test_benjamini_hochberg_equals_scipy():
    rng = np.random.default_rng(2)
    value, se = rng.normal(size=50), rng.uniform(0.1, 2, 50)
    p_value = 2 * stats.norm.sf(np.abs(value / se))
    np.testing.assert_allclose(benjamini_hochberg(value, se), false_discovery_control(p_value))
    with_gaps = benjamini_hochberg(np.append(value, [np.nan, np.inf]), np.append(se, [np.nan, np.nan]))
    np.testing.assert_allclose(with_gaps[:50], false_discovery_control(p_value))
    assert np.isnan(with_gaps[50:]).all()
    assert len(benjamini_hochberg([], [])) == 0


@pytest.mark.parametrize("rho", [-0.1, np.nan, np.inf])
def test_wrong_rho(rho):
    with pytest.raises(ValueError, match="rho"):
        probability_exceeds(shrink_normal([0.1, 0.2], [0.1, 0.1]), rho)


def test_wrong_rate():
    with pytest.raises(ValueError, match="between 0 and 1"):
        bayesian_fdr([0.5], 10)
