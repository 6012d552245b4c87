from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit, logit

from badpo.estimation.pool import cluster_errors, fit_logit, offline_log_odds
from badpo.theory.summaries import cluster_mean


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


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)


def least_squares(n_clusters=7, seed=0):
    """Rows of a regression on two columns in clusters of unequal size, with the residuals at the estimate."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_clusters), rng.integers(3, 20, n_clusters))
    x = np.column_stack([rng.normal(size=len(group)) + rng.normal(size=n_clusters)[group], group % 3 - 1.0])
    y = rng.normal(size=len(group)) + rng.normal(size=n_clusters)[group]
    return group, x, y - x @ np.linalg.solve(x.T @ x, x.T @ y)


def test_the_textbook_matrices_give_the_same_errors_and_degrees_of_freedom():
    group, x, residual = least_squares()
    bread = np.linalg.inv(x.T @ x)
    annihilator = np.eye(len(x)) - x @ bread @ x.T
    meat, rows = np.zeros((2, 2)), []
    for g in range(7):
        i = group == g
        values, vectors = np.linalg.eigh(annihilator[np.ix_(i, i)])
        adjusted = vectors / np.sqrt(values) @ vectors.T
        score = x[i].T @ adjusted @ residual[i]
        meat += np.outer(score, score)
        rows.append(annihilator[:, i] @ adjusted @ x[i] @ bread)
    products = [np.array([row[:, c] for row in rows]) for c in range(2)]
    df = [np.trace(p @ p.T) ** 2 / np.sum((p @ p.T) ** 2) for p in products]
    score = np.array([x[group == g].T @ residual[group == g] for g in range(7)])
    information = np.array([x[group == g].T @ x[group == g] for g in range(7)])
    found = cluster_errors(score, information)
    assert found.se == pytest.approx(np.sqrt(np.diag(bread @ meat @ bread)), rel=1e-9)
    assert found.df == pytest.approx(df, rel=1e-9)
    assert found.n_clusters == 7


def test_many_small_clusters_go_the_short_way_to_the_same_errors():
    rng = np.random.default_rng(1)
    information = np.ones((3000, 1, 1))
    score = rng.normal(size=(3000, 1))
    score -= score.mean()
    found = cluster_errors(score, information)
    assert found.se[0] == pytest.approx(score.std(ddof=1) / np.sqrt(3000), rel=1e-9)
    assert found.df[0] == pytest.approx(2999, rel=1e-3)


def test_what_one_cluster_determines_alone_has_no_error():
    one = cluster_errors([[0.0]], [[[2.0]]])
    assert np.isnan(one.se).all()
    assert np.isnan(one.half_width()).all()
    information = np.array([np.diag([1.0, 0.0]), np.diag([1.0, 0.0]), np.diag([1.0, 4.0])])
    mixed = cluster_errors([[0.5, 0.0], [-0.8, 0.0], [0.3, 0.0]], information)
    assert mixed.se[0] == pytest.approx(np.std([0.5, -0.8, 0.3], ddof=1) / np.sqrt(3))
    assert np.isnan(mixed.se[1])
    assert np.isnan(mixed.df[1])
    assert np.isnan(cluster_errors(np.zeros((2, 1)), np.zeros((2, 1, 1))).se).all()


def coverage(n_clusters, size_spread, mean_size, between, repeats=400, seed=0):
    """Share of intervals that hold the true log-odds: ours, and the usual sandwich error with t(G - 1)."""
    rng = np.random.default_rng(seed)
    level = logit(0.75)
    truth = logit((WEIGHTS * expit(level + between * NODES)).sum() / WEIGHTS.sum())
    ours, usual = [], []
    for _ in range(repeats):
        size = rng.poisson(mean_size * np.exp(rng.normal(-(size_spread**2) / 2, size_spread, n_clusters)))
        group = np.repeat(np.arange(n_clusters), np.maximum(size, 1))
        wins = rng.random(len(group)) < expit(level + between * rng.normal(size=n_clusters))[group]
        sides = np.ones((len(group), 1))
        (found,) = offline_log_odds(np.where(wins, 1, -1), sides, sides, group)
        if found.log_odds is None:
            continue
        ours.append(found.ci_low < truth < found.ci_high)
        half = cluster_mean(wins, group).half_width / (wins.mean() * (1 - wins.mean()))
        usual.append(abs(found.log_odds - truth) < half)
    return np.mean(ours), np.mean(usual)


@pytest.mark.parametrize("between", [0.0, 0.8], ids=["independent", "correlated"])
@pytest.mark.parametrize("size_spread", [0.0, 1.0], ids=["equal", "unequal"])
@pytest.mark.parametrize("n_clusters", [6, 10, 32])
def test_intervals_cover_with_few_prompts(n_clusters, size_spread, between):
    ours, _ = coverage(n_clusters, size_spread, 20, between)
    assert 0.92 <= ours <= 0.99


def test_the_usual_error_does_not_cover_with_few_unequal_prompts():
    ours, usual = coverage(6, 1.0, 200, 0.8)
    assert usual < 0.91 < ours
