from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from badpo.estimation.shrinkage import Spread, shrink_normal, shrink_npmle

BOTH = pytest.mark.parametrize("shrink", [shrink_normal, shrink_npmle])


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


@BOTH
def test_the_interval_holds_its_share_and_scales(shrink):
    rng = np.random.default_rng(1)
    _, value, se = drawn_pool(rng, 30, 0.5, 0.3)
    found = shrink(value, se)
    np.testing.assert_allclose(found.posterior.cdf(found.post_low), 0.025, atol=1e-6)
    np.testing.assert_allclose(found.posterior.cdf(found.post_high), 0.975, atol=1e-6)
    larger = shrink(10 * value, 10 * se)
    np.testing.assert_allclose(larger.shrunk, 10 * found.shrunk, rtol=1e-3, atol=1e-3)
    assert larger.tau == pytest.approx(10 * found.tau, rel=1e-3)
    turned = shrink(-value, se)
    np.testing.assert_allclose(turned.shrunk, -found.shrunk, atol=1e-6)


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


@BOTH
def test_who_has_no_finite_estimate_rests_on_the_prior(shrink):
    _, value, se = drawn_pool(np.random.default_rng(1), 40, 0.7, 0.2)
    found = shrink(np.append(value, [np.inf, np.nan]), np.append(se, [np.nan] * 2))
    assert found.basis.tolist() == ["estimate"] * 40 + ["prior"] * 2
    assert found.shrunk[40] == found.shrunk[41] == pytest.approx(shrink(value, se).shrunk.mean(), abs=0.1)
    assert found.post_sd[41] > found.post_sd[:40].max()


def test_too_few_to_shrink():
    alone = shrink_normal([0.7, np.nan], [0.2, np.nan])
    assert alone.shrunk[0] == pytest.approx(0.7)
    assert alone.post_sd[0] == pytest.approx(0.2)
    assert np.isnan(alone.tau) and (alone.tau_low, alone.tau_high) == (0.0, np.inf)
    assert np.isnan(alone.reliability)
    nobody = shrink_npmle([np.nan, np.inf], [np.nan, np.nan])
    assert np.isnan(nobody.shrunk).all() and nobody.basis.tolist() == ["prior", "prior"]
    assert len(shrink_normal([], []).shrunk) == 0


def test_the_free_prior_keeps_planted_outliers_where_the_normal_pulls_them_in():
    rng = np.random.default_rng(6)
    value = np.append(0.05 * rng.normal(size=95), np.full(5, 2.0))
    se = np.full(100, 0.3)
    value = value + se * rng.normal(size=100)
    free, normal = shrink_npmle(value, se), shrink_normal(value, se)
    truth = np.append(np.zeros(95), np.full(5, 2.0))
    assert np.mean((free.shrunk - truth) ** 2) < 0.7 * np.mean((normal.shrunk - truth) ** 2)
    assert free.other is not None and normal.other is not None
    np.testing.assert_array_equal(free.other.means, normal.posterior.means)
    np.testing.assert_array_equal(normal.other.means, free.posterior.means)


def test_an_estimate_far_off_the_grid_still_has_a_posterior():
    value = np.append(np.linspace(-0.5, 0.5, 30), 500.0)
    found = shrink_npmle(value, np.append(np.full(30, 0.1), 1.0))
    assert np.isfinite(found.shrunk).all()


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="annotator 1 has standard error 0.0"):
        shrink_normal([0.1, 0.2], [0.3, 0.0])
    with pytest.raises(ValueError, match="shapes"):
        shrink_normal([0.1, 0.2], [0.3])
