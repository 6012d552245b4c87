"""The conditional likelihood against enumeration, against statsmodels, and on planted biases."""

import math
import warnings
from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from scipy.special import expit

from badpo.estimation.conditional_likelihood import log_total, winners
from badpo.estimation.fit import Votes, fit_conditional


def pool(n=400, m=12, q=1, votes=4, spread=0.5, quality=1.0, seed=0):
    """Votes with planted biases: ((comparison, sign, annotator, delta, m), theta)."""
    rng = np.random.default_rng(seed)
    theta = 0.8 + spread * rng.normal(size=(m, q))
    of = rng.choice([-1.0, 0.0, 1.0], p=[0.25, 0.5, 0.25], size=(n, q))
    annotator = np.argsort(rng.random((n, m)), axis=1)[:, :votes].ravel()
    comparison = np.repeat(np.arange(n), votes)
    delta = of[comparison]
    logit = (quality * rng.normal(size=n))[comparison] + (theta[annotator] * delta).sum(axis=1)
    sign = np.where(rng.random(n * votes) < 1 / (1 + np.exp(-logit)), 1, -1)
    return (comparison, sign, annotator, delta, m), theta


def sums_over_sets(odds: list[Decimal], n_wins: int) -> Decimal:
    """The definition, one vote at a time in 50 digits: the products of the odds of all sets of winners, summed."""
    sums = [Decimal(1)] + [Decimal(0)] * n_wins
    for one in odds:
        sums = [sums[0], *(sums[i] + one * sums[i - 1] for i in range(1, n_wins + 1))]
    return sums[n_wins]


def spaced(size: int, apart: float) -> np.ndarray:
    """Logits of which every second nearly equals the one before, the middle ones farther apart."""
    return np.repeat(np.linspace(-2, 2, (size + 1) // 2), 2)[:size] + apart * (np.arange(size) % 2)


@pytest.mark.parametrize(
    "logits",
    [
        *(np.random.default_rng(size).normal(size=size) * 2 for size in (2, 4, 5, 11, 13)),
        np.zeros(3),
        np.zeros(16),
        *(spaced(15, apart) for apart in (1e-12, 1e-9, 1e-6, 1e-3)),
        np.linspace(-30, 30, 5),
        np.linspace(-30, 30, 14),
        np.r_[np.full(7, -30.0), np.full(9, 30.0)],
        np.r_[np.zeros(13), 30.0],
        np.r_[np.zeros(13), -30.0],
        spaced(48, 1e-7),
    ],
)
def test_moments_of_the_winners_are_those_of_their_definition(logits):
    size, pairs = len(logits), [(0, 1), (0, len(logits) - 1), (len(logits) // 2, len(logits) - 1)]
    odds = [Decimal(float(x)).exp() for x in logits]
    for n_wins in {1, size // 3, size // 2, size - 1} - {0}:
        found = winners(logits[None], n_wins)
        together = found.covariance[0] + np.outer(found.chance, found.chance)
        with localcontext(Context(prec=50)):
            total = sums_over_sets(odds, n_wins)
            expected = pytest.approx(float(total.ln()), rel=1e-12, abs=1e-12)
            assert log_total(logits[None], n_wins)[0] == expected
            for i in range(0, size, 2):
                rest = odds[:i] + odds[i + 1 :]
                chance = float(odds[i] * sums_over_sets(rest, n_wins - 1) / total)
                assert found.chance[0, i] == pytest.approx(chance, abs=1e-13)
                assert together[i, i] == pytest.approx(chance, abs=1e-13)
            for i, j in pairs:
                rest = [z for place, z in enumerate(odds) if place not in (i, j)]
                both = 0
                if n_wins > 1:
                    both = odds[i] * odds[j] * sums_over_sets(rest, n_wins - 2) / total
                assert i == j or together[i, j] == pytest.approx(float(both), abs=1e-13)


@pytest.mark.parametrize(("size", "n_wins"), [(600, 20), (300, 150), (1000, 3)])
def test_equal_votes_win_equally(size, n_wins):
    found, share = winners(np.full((1, size), 5.0), n_wins), n_wins / size
    total = math.log(math.comb(size, n_wins)) + 5.0 * n_wins
    assert log_total(np.full((1, size), 5.0), n_wins)[0] == pytest.approx(total, rel=1e-13)
    np.testing.assert_allclose(found.chance, share, atol=1e-13)
    both = share * (n_wins - 1) / (size - 1)
    covariance = np.where(np.eye(size), share * (1 - share), both - share**2)
    np.testing.assert_allclose(found.covariance[0], covariance, atol=1e-13)


def test_large_comparisons_differ_in_how_many_won_and_hold_at_logits_that_would_overflow():
    logits = np.random.default_rng(0).normal(size=(3, 40))
    n_wins = np.array([1, 17, 39])
    together = winners(logits, n_wins)
    for i, n in enumerate(n_wins):
        alone = winners(logits[[i]], int(n))
        np.testing.assert_allclose(together.chance[i], alone.chance[0], atol=1e-13)
        np.testing.assert_allclose(together.covariance[i], alone.covariance[0], atol=1e-13)
        assert log_total(logits, n_wins)[i] == pytest.approx(log_total(logits[[i]], int(n))[0])
    for zeros in (1, 20):
        long = np.array([[800.0, *np.zeros(zeros), -800.0]])
        np.testing.assert_allclose(winners(long, 1).chance, long == 800.0, atol=1e-12)
    long = np.zeros((1, 20))
    long[0, 3] = 900.0
    assert winners(long, 10).chance[0, 3] == pytest.approx(1.0)
    assert winners(long, 10).chance[0, 0] == pytest.approx(9 / 19)


@pytest.mark.parametrize(("q", "varies"), [(1, False), (2, False), (1, True)])
def test_estimate_and_covariance_are_those_of_statsmodels(q, varies):
    from statsmodels.discrete.conditional_models import ConditionalLogit

    (comparison, sign, annotator, delta, m), _ = pool(n=500, m=12, q=q, seed=3)
    if varies:
        delta = np.random.default_rng(0).choice([-1.0, 1.0], delta.shape)
    design = np.zeros((len(sign), m, q))
    design[np.arange(len(sign)), annotator] = delta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that unanimous comparisons say nothing
        peer = ConditionalLogit((sign > 0).astype(int), design.reshape(-1, m * q), groups=comparison)
    biases = fit_conditional(Votes(comparison, sign, annotator, delta, m))
    assert np.abs(peer.score(biases.deviation.ravel())).max() < 1e-6
    expected = np.linalg.pinv(-peer.hessian(biases.deviation.ravel()), rcond=1e-5)
    np.testing.assert_allclose(biases.covariance, expected, atol=1e-5)
    assert biases.absolute.all() == varies


@pytest.mark.parametrize(("per_comparison", "between"), [(2.5, 0.0), (0.0, 0.8)])
def test_the_errors_of_a_level_are_those_of_repeated_drawing(per_comparison, between):
    """Biases that vary over comparisons, for everyone alike; biases that vary over annotators."""
    n, m = 80, 8
    comparison, annotator = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        position = rng.choice([-1.0, 1.0], size=n * m)
        bias = 1 + between * rng.normal(size=m)[annotator]
        bias += per_comparison * rng.normal(size=n)[comparison]
        chance = expit(rng.normal(size=n)[comparison] + bias * position)
        sign = np.where(rng.random(n * m) < chance, 1, -1)
        found.append(fit_conditional(Votes(comparison, sign, annotator, position[:, None], m)))
    drawn = np.std([biases.shared_bias[0] for biases in found], ddof=1)
    error = np.mean(
        [
            biases.shared_bias_se_population[0] if between else biases.shared_bias_se[0]
            for biases in found
        ]
    )
    assert error == pytest.approx(drawn, rel=0.25)
