import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logsumexp
from scipy.stats import false_discovery_control

from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.shrinkage import (
    DROP,
    FAR_RATIOS,
    FAR_SHARES,
    Mixture,
    TauLikelihood,
    bayesian_fdr,
    benjamini_hochberg,
    probability_exceeds,
    shrink_normal,
    shrink_votes,
)
from bench.simulated_pools import Pool, draw_votes
from tests.estimation.test_conditional import pool


def test_posterior_against_integration_over_tau_mu_and_the_prior():
    """Every number of the posterior again, by summing over a fine grid of tau and mu for each prior."""
    value, se = np.array([0.9, -0.4, 0.1, -0.6, 0.2]), np.array([0.3, 0.2, 0.5, 0.4, 0.2])
    found = shrink_normal(value, se)
    tau = np.linspace(1e-3, 20, 300)[:, None]
    mu = np.linspace(-8, 8, 161)
    shapes = [[(1.0, 0.0, 1.0)]]
    for far, ratio in itertools.product(FAR_SHARES, FAR_RATIOS):
        wide = [(1 - far, 0.0, 1.0), (far, 0.0, ratio)]
        camps = [(1 - far, 0.0, 1.0), (far / 2, -ratio, 1.0), (far / 2, ratio, 1.0)]
        shapes += [wide, camps]
    sums = np.zeros(3)
    for parts in shapes:
        t = tau / np.sqrt(sum(share * (offset**2 + sd**2) for share, offset, sd in parts))
        density, moments = tau * np.ones((len(tau), len(mu))), []
        for x, s in zip(value, se, strict=True):
            seen, first, second = np.zeros((3, len(tau), len(mu)))
            for share, offset, sd in parts:
                mass = share * stats.norm.pdf(x, mu + offset * t, np.hypot(sd * t, s))
                kept = (sd * t) ** 2 / ((sd * t) ** 2 + s**2)
                mean = kept * x + (1 - kept) * (mu + offset * t)
                seen, first = seen + mass, first + mass * mean
                second = second + mass * (kept * s**2 + mean**2)
            density = density * seen
            moments.append((first / np.maximum(seen, 1e-300), second / np.maximum(seen, 1e-300)))
        first, second = moments[0]
        sums += [density.sum(), (density * first).sum(), (density * second).sum()]
    mean = sums[1] / sums[0]
    assert found.posterior.mean[0] == pytest.approx(mean, abs=0.02)
    assert found.posterior.sd[0] == pytest.approx(np.sqrt(sums[2] / sums[0] - mean**2), rel=0.03)


def test_a_pool_in_another_unit_or_turned_around_is_the_same_pool():
    random = np.random.default_rng(1)
    se = 0.3 * np.exp(0.4 * random.normal(size=30))
    value = 0.5 * random.normal(size=30) + se * random.normal(size=30)
    found, larger, turned = (shrink_normal(by * value, abs(by) * se) for by in (1, 10, -1))
    assert larger.tau == pytest.approx(10 * found.tau, rel=1e-3)
    mean = found.posterior.mean
    np.testing.assert_allclose(larger.posterior.mean, 10 * mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(turned.posterior.mean, -mean, atol=1e-6)


def test_equal_annotators_have_no_spread_and_who_has_no_finite_estimate_rests_on_the_prior():
    found = shrink_normal(np.full(30, 0.01), np.full(30, 0.5))
    assert (found.tau, found.tau_low, found.reliability) == (0.0, 0.0, 0.0)
    assert found.posterior.mean == pytest.approx(0.01)
    value, se = np.random.default_rng(1).normal(0, 0.7, 40), np.full(40, 0.2)
    found = shrink_normal(np.append(value, [np.inf, np.nan]), np.append(se, [np.nan] * 2))
    assert found.basis.tolist() == ["estimate"] * 40 + ["prior"] * 2
    without = shrink_normal(value, se)
    mean, sd = found.posterior.mean, found.posterior.sd
    assert mean[40] == mean[41] == pytest.approx(without.posterior.mean.mean(), abs=0.1)
    assert sd[41] > sd[:40].max()


def test_one_annotator_says_nothing_of_a_spread_and_nobody_nothing_at_all():
    alone = shrink_normal([0.7, np.nan], [0.2, np.nan])
    assert (alone.posterior.mean[0], alone.posterior.sd[0]) == pytest.approx((0.7, 0.2))
    nobody, (unasked,) = (
        shrink_normal([np.nan, np.inf], [np.nan, np.nan]),
        shrink_votes(Votes(np.arange(5), np.ones(5), np.arange(5), np.ones((5, 1)), 5)),
    )
    for found in (alone, nobody, unasked):
        assert np.isnan([found.tau, found.reliability]).all()
        assert (found.tau_low, found.tau_high) == (0.0, np.inf)
        if found is alone:
            continue
        assert np.isnan(found.posterior.mean).all() and set(found.basis) == {"prior"}
        exceeds = probability_exceeds(found, 0.5)
        assert np.isnan(exceeds).all() and not bayesian_fdr(exceeds, 1.0).any()
    assert len(shrink_normal([], []).posterior.mean) == len(bayesian_fdr([], 0.1)) == 0


@pytest.mark.parametrize("sides", [[-1.0, 1.0], [1.0, 1.0]])
def test_where_a_few_lean_far_the_crowd_is_drawn_together(sides):
    """Beside people of sd 0.3, 12 of 40 bias 2.5: a normal prior keeps more of a crowd member's error."""
    estimate = np.hypot(0.3, 0.5) * np.random.default_rng(0).normal(size=40)
    estimate[:12] += 2.5 * np.resize(sides, 12)
    center, crowd = estimate.mean(), estimate[12:].mean()
    estimate[39] = crowd + 1.1
    found = shrink_normal(estimate, np.full(40, 0.5))
    by_normal = center + (estimate[39] - center) * found.tau**2 / (found.tau**2 + 0.25)
    assert abs(found.posterior.mean[39] - crowd) < 0.75 * abs(by_normal - crowd)


def test_an_estimate_beyond_all_measure_has_a_posterior_and_one_without_an_error_counts_as_none():
    """Such as a fit that ran away leaves behind."""
    value, se = np.append(np.linspace(-9, 9, 60), 1.3e6), np.append(np.full(60, 2.0), 4900.0)
    found = shrink_normal(value, se)
    assert found.tau_high > 1e6 and np.isfinite(found.posterior.mean).all()
    found = shrink_normal([0.1, 0.2, -0.1], [0.3, 0.0, 0.2])
    assert found.basis.tolist() == ["estimate", "prior", "estimate"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1))
def test_selection_is_the_longest_allowed_list(chances, fdr):
    chance = np.array(chances)
    flagged = bayesian_fdr(chance, fdr)
    if flagged.any():
        assert np.mean(1 - chance[flagged]) <= fdr + 1e-12
        assert chance[flagged].min() > chance[~flagged].max(initial=-1)
        assert chance[flagged].min() >= 0.5
    others = np.unique(chance[~flagged & (chance >= 0.5)])
    if len(others):
        longer = chance >= others.max()
        assert np.mean(1 - chance[longer]) > fdr - 1e-12


def test_restricted_likelihood_is_that_of_the_contrasts_and_gives_the_interval_of_tau():
    rng = np.random.default_rng(0)
    value, se = rng.normal(size=8), rng.uniform(0.2, 0.5, 8)
    contrast = np.eye(8)[1:] - np.eye(8)[:-1]

    def exact(tau):
        covariance = contrast @ np.diag(se**2 + tau**2) @ contrast.T
        return stats.multivariate_normal(np.zeros(7), covariance).logpdf(contrast @ value)

    ours, found = TauLikelihood(value, se).log_likelihood, shrink_normal(value, se)
    assert ours(0.7) - ours(0.1) == pytest.approx(exact(0.7) - exact(0.1))
    assert exact(found.tau) >= max(exact(found.tau + step) for step in (-0.01, 0.01))
    for end in (found.tau_low, found.tau_high):
        assert exact(found.tau) - exact(end) == pytest.approx(DROP, abs=0.1)


def drawn(of, seed):
    return draw_votes(of, np.random.default_rng(seed))


def test_against_brute_force_integration(monkeypatch):
    """Five annotators, a normal prior alone: likelihood of tau and posterior means from 15,000 draws of the prior."""
    monkeypatch.setattr("badpo.estimation.shrinkage.FAR_SHARES", ())
    n, m = 100, 5
    votes = drawn(Pool(n, n_annotators=m, votes_each=3, spread=0.7), 3)
    (found,) = shrink_votes(Votes(*votes.arrays))
    rng = np.random.default_rng(1)
    standard = rng.standard_normal((15_000, m))
    standard -= standard.mean(axis=1, keepdims=True)
    wins, side = (votes.sign > 0).reshape(n, 3), votes.delta[::3, 0]
    who = votes.annotator.reshape(n, 3)

    def log_likelihood(theta):
        total = np.zeros(len(theta))
        for c in np.flatnonzero((wins.sum(axis=1) % 3 != 0) & (side != 0)):
            alone = 1 if wins[c].sum() == 1 else 0
            logits = (2 * alone - 1) * side[c] * theta[:, who[c]]
            total += logits[:, wins[c] == alone][:, 0] - logsumexp(logits, axis=1)
        return total

    def marginal(tau):
        value = log_likelihood(tau * standard)
        weight = np.exp(value - value.max())
        return np.log(weight.mean()) + value.max(), weight @ (tau * standard) / weight.sum()

    assert pytest.approx(1.9207, abs=1e-4) == DROP
    top, _ = marginal(found.tau)
    for end in (found.tau_low, found.tau_high):
        assert top - marginal(end)[0] == pytest.approx(DROP, abs=0.15)
    taus = np.linspace(0.05, 4 * found.tau_high, 16)
    log_marginal, means = zip(*(marginal(tau) for tau in taus), strict=True)
    weight = taus * np.exp(np.array(log_marginal) - max(log_marginal))
    np.testing.assert_allclose(found.posterior.mean, weight @ np.array(means) / weight.sum(), atol=0.05)


def test_infinite_estimates_are_drawn_in_and_strangers_rest_on_the_prior():
    votes = drawn(Pool(600, n_annotators=20), 6)
    toward = np.sign(votes.delta[:, 0])
    sign = np.where((votes.annotator == 0) & (toward != 0), toward, votes.sign)
    (found,) = shrink_votes(Votes(votes.comparison, sign, votes.annotator, votes.delta, 21))
    assert found.basis.tolist() == ["votes"] * 20 + ["prior"]
    assert 0.3 < found.posterior.mean[0] < 6 and found.posterior.mean[0] == found.posterior.mean.max()
    assert abs(found.posterior.mean[20]) < 0.1 and found.posterior.sd[20] > found.tau * 0.9


@pytest.mark.parametrize("is_known", [True, False])
def test_comparisons_exported_four_times_say_no_more_than_once(is_known, monkeypatch):
    """With the dispersion of 4 all is as with one copy; what the scores of 300 clusters say of it is near."""
    comparison, sign, annotator, delta, m = drawn(Pool(300, n_annotators=60), 4).arrays
    (once,) = shrink_votes(Votes(comparison, sign, annotator, delta, m))
    apart = np.arange(4).repeat(len(sign)) * 300 + np.tile(comparison, 4)
    copies = apart, np.tile(sign, 4), np.tile(annotator, 4), np.tile(delta, (4, 1)), m
    if is_known:
        monkeypatch.setattr("badpo.estimation.shrinkage._estimate_dispersion", lambda *_: 4.0)
    (sure,), (found,) = (
        shrink_votes(Votes(*copies)),
        shrink_votes(Votes(*copies), np.tile(comparison, 4)),
    )
    near = 0.04 if is_known else 0.07
    np.testing.assert_allclose(found.posterior.mean, once.posterior.mean, atol=1.5 * near)
    np.testing.assert_allclose(found.posterior.sd, once.posterior.sd, rtol=near)
    assert sure.tau > 1.3 * found.tau
    assert found.tau == pytest.approx(once.tau, rel=2 * near)


def test_a_mixture_and_benjamini_hochberg_are_those_of_scipy():
    means, sds, weights = [-1.0, 2.0, 0.5], [0.5, 1.0, 0.05], [0.3, 0.5, 0.2]
    parts = [stats.Normal(mu=mu, sigma=sd) for mu, sd in zip(means, sds, strict=True)]
    peer = stats.Mixture(parts, weights=weights)
    ours = Mixture(*(np.array([each]) for each in (means, sds, weights)))
    assert (ours.mean[0], ours.sd[0]) == pytest.approx((peer.mean(), peer.standard_deviation()))
    drawn = ours.draws(2000, np.random.default_rng(0))
    assert (drawn.mean(), drawn.std()) == pytest.approx((ours.mean[0], ours.sd[0]), abs=0.05)
    for probability in (0.1, 0.9):
        value = float(peer.icdf(probability))
        assert ours.cdf(value)[0] == pytest.approx(probability)
        assert ours.quantile(probability)[0] == pytest.approx(value)
    rng = np.random.default_rng(2)
    value, se = rng.normal(size=50), rng.uniform(0.1, 2, 50)
    p_value = 2 * stats.norm.sf(np.abs(value / se))
    with_gaps = benjamini_hochberg(np.append(value, [np.nan, np.inf]), np.append(se, [np.nan, np.nan]))
    np.testing.assert_allclose(with_gaps[:50], false_discovery_control(p_value))
    assert np.isnan(with_gaps[50:]).all()
    assert len(benjamini_hochberg([], [])) == 0


@pytest.mark.parametrize("n_alone", [0, 120])
def test_large_pools_are_close_to_the_exact_inverse(monkeypatch, n_alone):
    """Two annotators alone fix their difference and nothing else: their level may not leak into a deviation."""
    votes = drawn(Pool(2000, n_annotators=150), 2)
    comparison = np.append(votes.comparison, 4000 + np.arange(n_alone) // 2)
    annotator = np.append(votes.annotator, 150 + np.arange(n_alone) % 2)
    sign = np.append(votes.sign, np.random.default_rng(3).choice([-1.0, 1.0], n_alone))
    delta = np.append(votes.delta, np.ones((n_alone, 1)), axis=0)
    arrays = comparison, sign, annotator, delta, annotator.max() + 1
    (exact,) = shrink_votes(Votes(*arrays))
    monkeypatch.setattr("badpo.estimation.shrinkage.LARGEST_DENSE", 10)
    (close,) = shrink_votes(Votes(*arrays))
    near, narrow = (0.03, 0.05) if n_alone else (0.02, 0.03)
    np.testing.assert_allclose(close.posterior.mean, exact.posterior.mean, atol=near)
    np.testing.assert_allclose(close.posterior.sd, exact.posterior.sd, rtol=narrow)
    assert close.tau == pytest.approx(exact.tau, rel=0.03)


def test_a_spread_beside_an_attribute_whose_level_the_votes_fix_is_that_of_the_estimates():
    (comparison, _, annotator, sides, m), bias = pool(n=1200, m=10, votes=3)
    position = np.random.default_rng(0).choice([-1.0, 1.0], sides.shape)
    logit = np.random.default_rng(1).normal(size=1200)[comparison] + bias[annotator, 0] * sides[:, 0]
    chance = expit(logit + 0.8 * position[:, 0])
    sign = np.where(np.random.default_rng(2).random(len(sides)) < chance, 1, -1)
    votes = comparison, sign, annotator, np.hstack([position, sides]), m
    biases = fit_conditional(Votes(*votes))
    expected, found = (
        shrink_normal(biases.deviation[:, 1], biases.se[:, 1]),
        shrink_votes(Votes(*votes))[1],
    )
    assert found.tau == pytest.approx(expected.tau, rel=0.05)
    np.testing.assert_allclose(found.posterior.mean, expected.posterior.mean, atol=0.05)
