from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logsumexp

from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import DROP, shrink_normal, shrink_votes
from bench.simulated_pools import Pool, draw_votes


def drawn(pool, seed):
    return draw_votes(pool, np.random.default_rng(seed))


def test_against_brute_force_integration():
    """Five annotators: the marginal likelihood of tau and the posterior means from 15,000 draws of the prior."""
    n, m = 150, 5
    votes = drawn(Pool(n, n_annotators=m, votes_each=3, spread=0.7), 3)
    (found,) = shrink_votes(*votes.arrays)
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

    top, _ = marginal(found.tau)
    for end in (found.tau_low, found.tau_high):
        assert top - marginal(end)[0] == pytest.approx(DROP, abs=0.15)
    taus = np.linspace(0.05, 4 * found.tau_high, 16)
    log_marginal, means = zip(*(marginal(tau) for tau in taus), strict=True)
    weight = taus * np.exp(np.array(log_marginal) - max(log_marginal))
    np.testing.assert_allclose(found.shrunk, weight @ np.array(means) / weight.sum(), atol=0.05)


def test_large_pools_are_close_to_the_exact_inverse(monkeypatch):
    votes = drawn(Pool(2000, n_annotators=150), 2)
    (exact,) = shrink_votes(*votes.arrays)
    monkeypatch.setattr("badpo.estimation.shrinkage.LARGEST_DENSE", 10)
    (close,) = shrink_votes(*votes.arrays)
    np.testing.assert_allclose(close.shrunk, exact.shrunk, atol=0.02)
    np.testing.assert_allclose(close.post_sd, exact.post_sd, rtol=0.03)
    assert close.tau == pytest.approx(exact.tau, rel=0.03)


def test_a_group_of_few_in_a_large_pool_is_taken_whole(monkeypatch):
    """Two annotators alone fix their difference and nothing else: their level may not leak into a deviation."""
    votes = drawn(Pool(2000, n_annotators=150), 2)
    rng = np.random.default_rng(3)
    of_two = np.unique(votes.comparison[votes.annotator < 2])
    second = np.where(
        np.isin(votes.comparison, of_two) & (votes.annotator < 2),
        rng.choice([-1.0, 1.0], 2000)[votes.comparison],
        0,
    )
    extra = 4000 + np.repeat(np.arange(60), 2)
    comparison = np.append(votes.comparison, extra)
    annotator = np.append(votes.annotator, np.tile([0, 1], 60))
    sign = np.append(votes.sign, rng.choice([-1.0, 1.0], 120))
    delta = np.column_stack(
        [
            np.append(votes.delta[:, 0], np.zeros(120)),
            np.append(second, np.repeat(rng.choice([-1.0, 1.0], 60), 2)),
        ]
    )
    exact = shrink_votes(comparison, sign, annotator, delta, 150)
    monkeypatch.setattr("badpo.estimation.shrinkage.LARGEST_DENSE", 10)
    close = shrink_votes(comparison, sign, annotator, delta, 150)
    for one, other in zip(close, exact, strict=True):
        np.testing.assert_allclose(one.shrunk, other.shrunk, atol=0.03)
        np.testing.assert_allclose(one.post_sd, other.post_sd, rtol=0.05)


def test_two_attributes_have_two_spreads():
    rng = np.random.default_rng(5)
    m, n = 30, 2500
    lean = rng.normal(size=(m, 2)) * [0.9, 0.2]
    who = np.array([rng.permutation(m)[:4] for _ in range(n)]).ravel()
    comparison = np.repeat(np.arange(n), 4)
    delta = rng.choice([-1.0, 0.0, 1.0], (n, 2))[comparison]
    sign = np.where(rng.random(4 * n) < expit((lean[who] * delta).sum(axis=1)), 1, -1)
    wide, narrow = shrink_votes(comparison, sign, who, delta, m)
    assert wide.tau_low < lean[:, 0].std() < wide.tau_high
    assert narrow.tau_low < lean[:, 1].std() < narrow.tau_high
    assert np.corrcoef(wide.shrunk, lean[:, 0])[0, 1] > 0.95


def test_infinite_estimates_are_drawn_in_and_strangers_rest_on_the_prior():
    votes = drawn(Pool(600, n_annotators=20), 6)
    sign = np.where((votes.annotator == 0) & (votes.delta[:, 0] != 0), np.sign(votes.delta[:, 0]), votes.sign)
    (found,) = shrink_votes(votes.comparison, sign, votes.annotator, votes.delta, 21)
    assert found.basis.tolist() == ["votes"] * 20 + ["prior"]
    assert 0.3 < found.shrunk[0] < 6 and found.shrunk[0] == found.shrunk.max()
    assert found.shrunk[20] == 0.0 and found.post_sd[20] > found.tau * 0.9


def test_nothing_to_go_by():
    (found,) = shrink_votes(np.arange(5), np.ones(5), np.arange(5), np.ones((5, 1)), 5)
    assert np.isnan(found.tau) and np.isnan(found.shrunk).all()
    assert (found.tau_low, found.tau_high) == (0.0, np.inf)
    assert pytest.approx(1.9207, abs=1e-4) == DROP


def test_a_spread_beside_an_attribute_whose_level_the_votes_fix_is_that_of_the_estimates():
    random = np.random.default_rng(0)
    n, m = 1200, 10
    comparison, annotator = (
        np.repeat(np.arange(n), 3),
        np.argsort(random.random((n, m)), axis=1)[:, :3].ravel(),
    )
    of_sides, position = random.choice([-1.0, 1.0], n)[comparison], random.choice([-1.0, 1.0], 3 * n)
    lean = 0.5 * random.standard_normal(m)
    logit = random.standard_normal(n)[comparison] + lean[annotator] * of_sides + 0.8 * position
    sign = np.where(random.random(3 * n) < 1 / (1 + np.exp(-logit)), 1, -1)
    votes = comparison, sign, annotator, np.column_stack([position, of_sides]), m
    leans = fit_conditional(*votes)
    expected, found = shrink_normal(leans.deviation[:, 1], leans.se[:, 1]), shrink_votes(*votes)[1]
    assert found.tau == pytest.approx(expected.tau, rel=0.05)
    np.testing.assert_allclose(found.shrunk, expected.shrunk, atol=0.05)
