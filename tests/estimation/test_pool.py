from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit, logit, stdtrit

from badpo.estimation.pool import (
    carrier_sides,
    cluster_errors,
    co_occurrence,
    dependent_columns,
    joint_log_odds,
    offline_log_odds,
    swap_log_odds,
)


def test_sides_are_signs_of_cross_group_differences():
    delta = np.array([[1.0, 2.5], [-1.0, -0.2], [0.0, 0.2]])
    assert carrier_sides(delta, np.abs(delta) > 0.3).tolist() == [[1, 1], [-1, 0], [0, 0]]


def test_co_occurrence_by_hand():
    side = np.array([[1, 1], [1, 0], [-1, 1], [-1, -1], [0, -1]])
    assert co_occurrence(side).tolist() == [[1.0, 0.5], [0.5, 1.0]]
    assert np.isnan(co_occurrence(np.array([[0, 1]]))[0]).all()


def test_exact_dependences_are_named_and_do_not_reach_the_others():
    rng = np.random.default_rng(0)
    first, second, other = rng.integers(-1, 2, (3, 300)).astype(float)
    found = dependent_columns(np.column_stack([first, second, first - second, other, np.zeros(300), -other]))
    assert found[:3, :3].tolist() == [[False, True, True], [True, False, True], [True, True, False]]
    assert np.flatnonzero(found[3]).tolist() == [5]
    assert not found[4].any()
    near = np.column_stack([first, first + 1e-3 * second, other])
    assert not dependent_columns(near).any()


def test_alone_it_is_the_offline_estimate():
    rng = np.random.default_rng(3)
    side, prompt = rng.integers(-1, 2, (400, 1)), rng.integers(0, 15, 400)
    sign = np.where(rng.random(400) < expit(0.8 * side[:, 0]), 1, -1)
    (joint,) = joint_log_odds(side, sign, prompt)
    (alone,) = offline_log_odds(sign, side, side != 0, prompt)
    assert (joint.estimate, joint.low, joint.high) == pytest.approx(
        (alone.log_odds, alone.ci_low, alone.ci_high), rel=1e-6
    )


def test_planted_leans_are_told_apart_and_covered():
    rng = np.random.default_rng(4)
    covered = []
    for _ in range(60):
        first = rng.integers(-1, 2, 1200)
        second = np.where(rng.random(1200) < 0.6, first, rng.integers(-1, 2, 1200))
        prompt = rng.integers(0, 20, 1200)
        lean = 0.8 * first - 0.4 * second
        sign = np.where(rng.random(1200) < expit(lean), 1, -1)
        found = joint_log_odds(np.column_stack([first, second]), sign, prompt)
        covered.append([one.low < truth < one.high for one, truth in zip(found, (0.8, -0.4), strict=True)])
    assert (np.mean(covered, axis=0) > 0.86).all()
    assert np.mean(covered) < 1


def test_what_cannot_be_told_is_none_and_the_rest_stays():
    rng = np.random.default_rng(5)
    x = rng.integers(-1, 2, (300, 2)).astype(float)
    sign = np.where(rng.random(300) < expit(x[:, 0]), 1, -1)
    prompt = rng.integers(0, 30, 300)
    one_way = np.where(np.arange(300) < 20, sign, 0)
    columns = np.column_stack([x[:, 0], x[:, 1], x[:, 1], np.zeros(300), one_way])
    found = joint_log_odds(columns, sign, prompt)
    assert [one is None for one in found] == [False, True, True, True, True]
    alone = joint_log_odds(x, sign, prompt)[0]
    assert found[0].estimate == pytest.approx(alone.estimate)
    assert joint_log_odds([[1, 0], [0, -1], [2, 1], [-1, -2]], [1, 1, 1, 1], range(4)) == (None, None)
    assert joint_log_odds(np.zeros((0, 2)), [], []) == (None, None)


def swap_votes(lean, n_pairs=200, n_votes=8, spread=2.0, seed=0):
    """Votes on pairs of bodies of very different quality; the attribute stands on either one."""
    rng = np.random.default_rng(seed)
    stratum = np.repeat(np.arange(n_pairs), n_votes)
    quality = spread * rng.normal(size=n_pairs)
    side = rng.choice([-1, 1], n_pairs * n_votes)
    sign = np.where(rng.random(len(side)) < expit(quality[stratum] + lean * side), 1, -1)
    return side, sign, stratum, stratum // 5


def test_swapped_votes_give_the_lean_whatever_the_quality():
    estimates, covered = [], []
    for seed in range(40):
        found = swap_log_odds(*swap_votes(0.9, seed=seed))
        estimates.append(found.estimate)
        covered.append(found.low < 0.9 < found.high)
    assert np.mean(estimates) == pytest.approx(0.9, abs=0.04)
    assert np.mean(covered) > 0.85
    side, sign, _, prompt = swap_votes(0.9)
    (pooled,) = offline_log_odds(sign, side[:, None], side[:, None] != 0, prompt)
    assert pooled.log_odds < 0.7  # quality attenuates the pool's own log-odds


def test_swapped_votes_without_information():
    assert swap_log_odds([1, 1], [1, -1], [0, 0], [0, 0]) is None
    assert swap_log_odds([1, -1], [1, -1], [0, 0], [0, 0]) is None
    assert swap_log_odds([0, 0], [1, -1], [0, 0], [0, 0]) is None
    assert swap_log_odds([], [], [], []) is None


def one(wins, clusters=None):
    """The estimate of 0/1 wins of a side that always stands as a."""
    sign = np.where(np.asarray(wins) > 0, 1, -1)
    (found,) = offline_log_odds(sign, np.ones((len(sign), 1)), np.ones((len(sign), 1)), clusters)
    return found


def test_hand_arithmetic():
    found = one([1] * 73 + [0] * 27)
    assert found.n_cross == 100
    assert found.carrier_wins == 0.73
    assert found.log_odds == pytest.approx(math.log(73 / 27))
    assert found.odds == pytest.approx(73 / 27)
    se = math.sqrt(1 / 73 + 1 / 27)
    assert found.se_naive == pytest.approx(se)
    assert found.interval(naive=True) == pytest.approx(
        (found.log_odds - 1.959964 * se, found.log_odds + 1.959964 * se), abs=1e-6
    )


def test_exchanging_the_sides_changes_nothing():
    rng = np.random.default_rng(0)
    sign = rng.choice([-1, 1], 200)
    delta = rng.choice([-1.0, 0.0, 1.0], (200, 3))
    assert offline_log_odds(sign, delta, delta != 0) == offline_log_odds(-sign, -delta, delta != 0)


def test_copied_judgments_widen_only_the_clustered_interval():
    wins, clusters = [1, 1, 0, 1, 0, 1, 1], list("abcdefg")
    once, many = one(wins, clusters), one(wins * 10, clusters * 10)
    assert many.se_clustered == pytest.approx(once.se_clustered)
    assert many.se_naive == pytest.approx(once.se_naive / math.sqrt(10))
    assert many.ci_high - many.ci_low == pytest.approx(once.ci_high - once.ci_low)
    assert (once.df, many.df) == pytest.approx((6.0, 6.0))
    assert once.ci_high - once.log_odds == pytest.approx(once.se_clustered * stdtrit(6.0, 0.975))
    n, p = 7, 5 / 7
    assert once.se_clustered == pytest.approx(math.sqrt(1 / (n * p * (1 - p))) * math.sqrt(n / (n - 1)))


def test_one_cluster_has_no_clustered_interval():
    found = one([1, 0, 1], ["p", "p", "p"])
    assert found.log_odds == pytest.approx(math.log(2))
    assert (found.se_clustered, found.ci_low, found.ci_high) == (None, None, None)
    assert None not in found.interval(naive=True)


@pytest.mark.parametrize(("wins", "toward"), [([1] * 6, 1), ([0] * 6, -1)])
def test_votes_that_all_go_one_way_have_a_bound_and_no_estimate(wins, toward):
    found = one(wins, list("aabbcc"))
    assert found.carrier_wins == wins[0]
    assert (found.log_odds, found.odds, found.se_naive) == (None, None, None)
    known, unknown = (0, 1) if toward > 0 else (1, 0)
    naive = found.interval(naive=True)
    assert found.interval()[unknown] is naive[unknown] is None
    share = 1 / (1 + math.exp(-toward * naive[known]))
    assert share**6 == pytest.approx(0.05)
    clustered = 1 / (1 + math.exp(-toward * found.interval()[known]))
    assert clustered**3 == pytest.approx(0.05)
    assert one(wins, ["p"] * 6).interval()[known] is None


def test_no_cross_group_judgment_and_no_judgment_at_all():
    found, _ = offline_log_odds([1, 1], np.zeros((2, 2)), np.zeros((2, 2)))
    assert (found.n_cross, found.carrier_wins, found.log_odds) == (0, None, None)
    (found,) = offline_log_odds([], np.zeros((0, 1)), np.zeros((0, 1)))
    assert found.n_cross == 0
    assert offline_log_odds([1], np.zeros((1, 0)), np.zeros((1, 0))) == ()


# -- logistic regression and clustered errors ---------------------------------------------------------------------


def votes(n=4000, n_prompts=40, truth=(1.0, -0.5, 0.02), seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.integers(-1, 2, (n, 2)), 30 * rng.normal(size=n)]).astype(float)
    sign = np.where(rng.random(n) < expit(x @ np.array(truth)), 1, -1)
    return x, sign, rng.integers(0, n_prompts, n)


def test_exchanging_the_sides_and_changing_units_change_nothing_else():
    x, sign, prompt = votes(500)
    turned, unit = np.where(np.arange(500) % 2, 1, -1), np.array([1, 1, 100])
    once = joint_log_odds(x, sign, prompt)
    again = joint_log_odds(x * turned[:, None] * unit, sign * turned, prompt)
    for first, second, scale in zip(once, again, unit, strict=True):
        for name in ("estimate", "se", "low", "high"):
            assert scale * getattr(second, name) == pytest.approx(getattr(first, name), rel=1e-6)


@pytest.mark.parametrize(
    ("columns", "signs", "known"),
    [
        ([[1.0], [1.0], [-2.0]], [1, 1, -1], [False]),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [1, 1, 1, -1], [False, True]),
        ([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0], [-1.0, -2.0]], [1, 1, 1, 1], [False, False]),
    ],
    ids=["alone", "one of two", "only their mix"],
)
def test_separated_votes_have_no_coefficients(columns, signs, known):
    found = joint_log_odds(columns * 3, signs * 3, list(range(len(signs))) * 3)
    assert [one is not None for one in found] == known


def test_one_exception_among_many_is_no_separation():
    n = 100_000
    (found,) = joint_log_odds(np.ones((n, 1)), np.r_[-1, np.ones(n - 1)], np.arange(n))
    assert found.estimate == pytest.approx(np.log(n - 1), rel=1e-6)


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
    """Share of intervals that hold the true log-odds."""
    rng = np.random.default_rng(seed)
    level = logit(0.75)
    truth = logit((WEIGHTS * expit(level + between * NODES)).sum() / WEIGHTS.sum())
    held = []
    for _ in range(repeats):
        size = rng.poisson(mean_size * np.exp(rng.normal(-(size_spread**2) / 2, size_spread, n_clusters)))
        group = np.repeat(np.arange(n_clusters), np.maximum(size, 1))
        wins = rng.random(len(group)) < expit(level + between * rng.normal(size=n_clusters))[group]
        sides = np.ones((len(group), 1))
        (found,) = offline_log_odds(np.where(wins, 1, -1), sides, sides, group)
        if found.log_odds is None:
            continue
        held.append(found.ci_low < truth < found.ci_high)
    return np.mean(held)


@pytest.mark.parametrize("between", [0.0, 0.8], ids=["independent", "correlated"])
@pytest.mark.parametrize("size_spread", [0.0, 1.0], ids=["equal", "unequal"])
@pytest.mark.parametrize("n_clusters", [6, 10, 32])
def test_intervals_cover_with_few_prompts(n_clusters, size_spread, between):
    assert 0.92 <= coverage(n_clusters, size_spread, 20, between) <= 0.99
