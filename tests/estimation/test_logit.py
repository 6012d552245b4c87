from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit

from badpo.estimation.pool import fit_logit


def votes(n=4000, n_prompts=40, truth=(1.0, -0.5, 0.02), seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(-1, 2, (n, 2)), 30 * rng.normal(size=n)]).astype(float)
    sign = np.where(rng.random(n) < expit(x @ np.array(truth)), 1, -1)
    return x, sign, rng.integers(0, n_prompts, n)


def test_the_score_is_zero_and_the_truth_is_found():
    x, sign, prompt = votes()
    fit = fit_logit(x, sign, prompt)
    assert np.abs(x.T @ ((sign > 0) - expit(x @ fit.coefficients))).max() < 1e-4
    assert np.abs(fit.coefficients - [1.0, -0.5, 0.02]) == pytest.approx(0, abs=4 * fit.errors.se.max())
    assert np.abs((fit.coefficients - [1.0, -0.5, 0.02]) / fit.errors.se).max() < 3


def test_exchanging_the_sides_and_changing_units_change_nothing_else():
    x, sign, prompt = votes(500)
    fit = fit_logit(x, sign, prompt)
    turned = np.where(np.arange(500) % 2, 1, -1)
    again = fit_logit(x * turned[:, None] * [1, 1, 100], sign * turned, prompt)
    assert again.coefficients * [1, 1, 100] == pytest.approx(fit.coefficients, rel=1e-6)
    assert again.errors.se * [1, 1, 100] == pytest.approx(fit.errors.se, rel=1e-6)
    assert again.errors.df == pytest.approx(fit.errors.df, rel=1e-6)


@pytest.mark.parametrize(
    ("columns", "signs"),
    [
        ([[1.0], [1.0], [-2.0]], [1, 1, -1]),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [1, 1, 1, -1]),
        ([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0], [-1.0, -2.0]], [1, 1, 1, 1]),
    ],
    ids=["alone", "one of two", "only their mix"],
)
def test_separated_votes_have_no_coefficients(columns, signs):
    fit = fit_logit(columns * 3, signs * 3, list(range(len(signs))) * 3)
    assert np.isnan(fit.coefficients).all()
    assert fit.interval(0) is None


def test_one_exception_among_many_is_no_separation():
    n = 100_000
    fit = fit_logit(np.ones((n, 1)), np.r_[-1, np.ones(n - 1)], np.arange(n))
    assert fit.coefficients[0] == pytest.approx(np.log(n - 1), rel=1e-6)


def test_ratings_take_out_what_the_models_are_worth():
    rng = np.random.default_rng(3)
    n, models = 8000, 6
    a, b = rng.integers(0, models, (2, n))
    worth = np.linspace(-2, 2, models)
    feature = (worth[a] - worth[b]) / 2 + 0.6 * rng.normal(size=n)
    sign = np.where(rng.random(n) < expit(worth[a] - worth[b] + 0.5 * feature), 1, -1)
    prompt = rng.integers(0, 60, n)
    columns = sparse.csr_array(np.eye(models)[a] - np.eye(models)[b])
    alone, beside = (
        fit_logit(feature[:, None], sign, prompt),
        fit_logit(feature[:, None], sign, prompt, columns),
    )
    assert alone.coefficients[0] > 0.7
    assert abs(beside.coefficients[0] - 0.5) < 3 * beside.errors.se[0]
    dense = fit_logit(np.column_stack([feature, columns.toarray()[:, 1:]]), sign, prompt)
    assert beside.coefficients[0] == pytest.approx(dense.coefficients[0], abs=2e-3)
    assert beside.errors.se[0] == pytest.approx(dense.errors.se[0], rel=0.02)
