"""Care beside lean: who clicks at random is careless and does not lean."""

import numpy as np
import pytest

from badpo.estimation.care import equal_care_test, fit_care
from badpo.estimation.fit import fit_conditional
from badpo.estimation.significance import equal_leans_test

M = 16


def drawn(care, lean, n=600, better=1.0, quality_sd=1.5, seed=0):
    """Votes of 16 annotators, 4 on each comparison; half of the comparisons differ in the attribute."""
    random = np.random.default_rng(seed)
    difference = random.choice([-1.0, 0.0, 1.0], n, p=[0.25, 0.5, 0.25])
    quality = quality_sd * random.standard_normal(n) + better * difference
    who = np.argsort(random.random((n, M)), axis=1)[:, :4]
    logit = np.asarray(care)[who] * quality[:, None] + np.asarray(lean)[who] * difference[:, None]
    sign = np.where(random.logistic(size=who.shape) < logit, 1, -1)
    comparison = np.repeat(np.arange(n), 4)
    return comparison, sign.ravel(), who.ravel(), np.repeat(difference, 4)[:, None], M


CARELESS = np.repeat([0.0, 1.0], [4, M - 4])
NOBODY = np.zeros(M)


def test_clickers_are_careless_and_do_not_lean():
    votes = drawn(CARELESS, NOBODY)
    fitted = fit_care(*votes)
    assert equal_leans_test(*votes[:4], fit_conditional(*votes))[0] < 0.05
    assert fitted.equal_leans_p[0] > 0.05
    assert (np.abs(fitted.deviation) < 1.96 * fitted.se).mean() > 0.85
    assert fitted.care[:4].max() < fitted.care[4:].min() + 0.3
    truth = CARELESS / CARELESS.mean()
    assert (np.abs(fitted.care - truth) < 1.96 * fitted.care_se).mean() > 0.8


def test_a_leaner_is_found_beside_clickers():
    fitted = fit_care(*drawn(CARELESS, 2.5 * (np.arange(M) == 10)))
    far = fitted.deviation[:, 0] / fitted.se[:, 0]
    assert np.argmax(far) == 10
    assert far[10] > 3
    assert np.delete(np.abs(far), 10).max() < 2.5


@pytest.mark.parametrize(("care", "unequal"), [(np.ones(M), False), (CARELESS, True)])
def test_of_equal_care_looks_past_leans(care, unequal):
    p = [equal_care_test(*drawn(care, np.linspace(-2, 2, M), seed=seed)) for seed in range(12)]
    assert (np.median(p) < 0.05) == unequal


def test_exchanging_the_sides_changes_nothing():
    comparison, sign, annotator, delta, m = votes = drawn(CARELESS, np.linspace(-1, 1, M), n=200)
    there, back = fit_care(*votes), fit_care(comparison, -sign, annotator, -delta, m)
    np.testing.assert_allclose(there.deviation, back.deviation, atol=1e-6)
    assert equal_care_test(*votes) == pytest.approx(
        equal_care_test(comparison, -sign, annotator, -delta, m)
    )


def test_without_any_lean_to_know_nothing_is_said():
    all_careless = drawn(NOBODY, NOBODY)
    comparison, sign, annotator, delta, m = all_careless
    unanimous = comparison, np.where(comparison % 2, 1, -1), annotator, delta, m
    for votes in (all_careless, unanimous):
        assert np.isnan(fit_care(*votes).care).all()


def test_equal_care_is_not_spread_out():
    assert fit_care(*drawn(np.ones(M), NOBODY)).spread < 0.4
