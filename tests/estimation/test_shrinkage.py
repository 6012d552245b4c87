from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import false_discovery_control

from badpo.estimation.shrinkage import (
    Mixture,
    Spread,
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    q_values,
    shrink_normal,
)


def drawn_pool(rng, m, tau, error):
    truth = tau * rng.normal(size=m)
    se = error * np.exp(0.4 * rng.normal(size=m))
    return truth, truth + se * rng.normal(size=m), se


def test_restricted_likelihood_is_that_of_the_contrasts():
    rng = np.random.default_rng(0)
    value, se = rng.normal(size=5), rng.uniform(0.2, 1.0, 5)
    contrast = np.eye(5)[1:] - np.eye(5)[:-1]
    ours = Spread(value, se).log_likelihood

    def exact(tau):
        covariance = contrast @ np.diag(se**2 + tau**2) @ contrast.T
        return stats.multivariate_normal(np.zeros(4), covariance).logpdf(contrast @ value)

    assert ours(0.7) - ours(0.1) == pytest.approx(exact(0.7) - exact(0.1))


def test_posterior_against_integration_over_tau_and_mu():
    """Every number of the posterior again, by summing over a fine grid of tau and mu."""
    value, se = np.array([0.9, -0.4, 0.1, -0.6, 0.2]), np.array([0.3, 0.2, 0.5, 0.4, 0.2])
    found = shrink_normal(value, se)
    tau = np.linspace(1e-3, 40, 2000)
    mu = np.linspace(-40, 40, 1001)
    density = np.ones((len(tau), len(mu)))
    for x, s in zip(value, se, strict=True):
        density *= stats.norm.pdf(x, mu[None, :], np.sqrt(tau[:, None] ** 2 + s**2))
    mass = density * tau[:, None]
    mass /= mass.sum()
    kept = (tau**2 / (tau**2 + se[0] ** 2))[:, None]
    means = kept * value[0] + (1 - kept) * mu[None, :]
    mean = (mass * means).sum()
    variance = (mass * (kept * se[0] ** 2 + (means - mean) ** 2)).sum()
    assert found.shrunk[0] == pytest.approx(mean, abs=5e-3)
    assert found.post_sd[0] == pytest.approx(np.sqrt(variance), rel=2e-2)


def test_the_interval_holds_its_share_and_scales():
    rng = np.random.default_rng(1)
    _, value, se = drawn_pool(rng, 30, 0.5, 0.3)
    found = shrink_normal(value, se)
    np.testing.assert_allclose(found.posterior.cdf(found.post_low), 0.025, atol=1e-6)
    np.testing.assert_allclose(found.posterior.cdf(found.post_high), 0.975, atol=1e-6)
    larger, turned = shrink_normal(10 * value, 10 * se), shrink_normal(-value, se)
    assert larger.tau == pytest.approx(10 * found.tau, rel=1e-3)
    for name in ("posterior", "other"):
        mean = getattr(found, name).mean
        np.testing.assert_allclose(getattr(larger, name).mean, 10 * mean, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(getattr(turned, name).mean, -mean, atol=1e-6)


def test_tau_is_covered_and_its_uncertainty_is_in_the_intervals():
    """Six annotators whose errors are as large as the spread: plugging tau in covers too little, averaging does not."""
    rng = np.random.default_rng(3)
    tau_covered, covered, plugged = [], [], []
    for _ in range(150):
        truth, value, se = drawn_pool(rng, 6, 0.5, 0.5)
        found = shrink_normal(value, se)
        tau_covered.append(found.tau_low <= 0.5 <= found.tau_high)
        covered.append((found.post_low <= truth) & (truth <= found.post_high))
        kept = found.tau**2 / (found.tau**2 + se**2)
        center = np.average(value, weights=1 / (found.tau**2 + se**2))
        plugged.append(np.abs(kept * value + (1 - kept) * center - truth) <= 1.96 * np.sqrt(kept) * se)
    assert np.mean(tau_covered) > 0.92
    assert 0.93 < np.mean(covered) < 0.99
    assert np.mean(plugged) < 0.80


def test_equal_annotators_have_no_spread_and_one_common_value():
    found = shrink_normal(np.full(30, 0.01), np.full(30, 0.5))
    assert (found.tau, found.tau_low, found.reliability) == (0.0, 0.0, 0.0)
    assert np.all(found.shrunk == pytest.approx(0.01))


def test_who_has_no_finite_estimate_rests_on_the_prior():
    _, value, se = drawn_pool(np.random.default_rng(1), 40, 0.7, 0.2)
    found = shrink_normal(np.append(value, [np.inf, np.nan]), np.append(se, [np.nan] * 2))
    assert found.basis.tolist() == ["estimate"] * 40 + ["prior"] * 2
    without = shrink_normal(value, se)
    for name in ("posterior", "other"):
        mean, sd = getattr(found, name).mean, getattr(found, name).sd
        assert mean[40] == mean[41] == pytest.approx(getattr(without, name).mean.mean(), abs=0.1)
        assert sd[41] > sd[:40].max()


def test_too_few_to_shrink():
    alone = shrink_normal([0.7, np.nan], [0.2, np.nan])
    assert alone.shrunk[0] == pytest.approx(0.7)
    assert alone.post_sd[0] == pytest.approx(0.2)
    assert np.isnan(alone.tau) and (alone.tau_low, alone.tau_high) == (0.0, np.inf)
    assert np.isnan(alone.reliability)
    nobody = shrink_normal([np.nan, np.inf], [np.nan, np.nan])
    assert np.isnan(nobody.shrunk).all() and nobody.basis.tolist() == ["prior", "prior"]
    assert len(shrink_normal([], []).shrunk) == 0


def test_the_free_prior_keeps_planted_outliers_where_the_normal_pulls_them_in():
    rng = np.random.default_rng(6)
    value = np.append(0.05 * rng.normal(size=95), np.full(5, 2.0))
    se = np.full(100, 0.3)
    value = value + se * rng.normal(size=100)
    found = shrink_normal(value, se)
    truth = np.append(np.zeros(95), np.full(5, 2.0))
    free, normal = (np.mean((one.mean - truth) ** 2) for one in (found.other, found.posterior))
    assert free < 0.7 * normal


def test_two_camps_stay_two_camps_and_somebody_in_between_is_drawn_to_the_nearer_one():
    found = shrink_normal(np.append(np.repeat([-1.0, 1.0], 20), 0.4), np.full(41, 0.3))
    assert found.other.mean[40] > found.shrunk[40]


def test_an_estimate_far_off_the_grid_still_has_a_posterior():
    value = np.append(np.linspace(-0.5, 0.5, 30), 500.0)
    found = shrink_normal(value, np.append(np.full(30, 0.1), 1.0))
    assert np.isfinite(found.other.mean).all()


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="annotator 1 has standard error 0.0"):
        shrink_normal([0.1, 0.2], [0.3, 0.0])
    with pytest.raises(ValueError, match="shapes"):
        shrink_normal([0.1, 0.2], [0.3])


def test_against_draws():
    rng = np.random.default_rng(0)
    mixture = Mixture(np.array([[-1.0, 2.0, 0.5]]), np.array([[0.5, 1.0, 0.0]]), np.array([[0.3, 0.5, 0.2]]))
    part = rng.choice(3, 200_000, p=mixture.weights[0])
    draws = mixture.means[0, part] + mixture.sds[0, part] * rng.normal(size=200_000)
    assert mixture.mean[0] == pytest.approx(draws.mean(), abs=0.01)
    assert mixture.sd[0] == pytest.approx(draws.std(), abs=0.01)
    assert mixture.cdf(0.7)[0] == pytest.approx(np.mean(draws <= 0.7), abs=0.005)
    assert mixture.quantile(0.9)[0] == pytest.approx(np.quantile(draws, 0.9), abs=0.02)


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


def test_q_values_never_fall_while_p_values_rise():
    found = q_values(np.array([0.01, 0.04, np.nan, 0.041]))
    np.testing.assert_allclose(found, [0.03, 0.041, np.nan, 0.041])
