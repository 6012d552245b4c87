import math

import numpy as np
import pytest
from scipy.special import expit, logit, stdtrit

from badpo.estimation import log_odds as pool


def test_sides_and_exact_dependences():
    rng = np.random.default_rng(0)
    first, second, other = rng.integers(-1, 2, (3, 300)).astype(float)
    columns = first, second, first - second, other, np.zeros(300), -other
    found = pool.dependent_columns(np.column_stack(columns))
    assert found[:3, :3].tolist() == [[False, True, True], [True, False, True], [True, True, False]]
    assert np.flatnonzero(found[3]).tolist() == [5]
    assert not found[4].any()
    near = np.column_stack([first, first + 1e-3 * second, other])
    assert not pool.dependent_columns(near).any()
    delta = np.array([[1.0, 2.5], [1.0, -0.2], [-1.0, 0.4], [-1.0, -0.5], [0.0, -0.9]])
    side = pool.attribute_sides(delta, np.abs(delta) > 0.3)
    assert side.tolist() == [[1, 1], [1, 0], [-1, 1], [-1, -1], [0, -1]]


def one(wins, clusters=None):
    """The estimate of 0/1 wins of a side that always stands as a."""
    sign = np.where(np.asarray(wins) > 0, 1, -1)
    (found,) = pool.offline_log_odds(sign, np.ones((len(sign), 1)), np.ones((len(sign), 1)), clusters)
    return found


def test_one_cluster_has_the_naive_interval_and_copies_leave_the_clustered_one():
    found = one([1] * 73 + [0] * 27, ["p"] * 100)
    assert (found.n_cross, found.win_rate) == (100, 0.73)
    assert (found.log_odds, found.odds) == pytest.approx((math.log(73 / 27), 73 / 27))
    half = 1.959964 * math.sqrt(1 / 73 + 1 / 27)
    naive = found.interval(naive=True)
    assert naive == pytest.approx((found.log_odds - half, found.log_odds + half), abs=1e-6)
    assert (found.se_clustered, *found.interval()) == (None, None, None)
    wins, clusters = [1, 1, 0, 1, 0, 1, 1], list("abcdefg")
    once, many = one(wins, clusters), one(wins * 10, clusters * 10)
    assert many.se_clustered == pytest.approx(once.se_clustered)
    assert many.se_naive == pytest.approx(once.se_naive / math.sqrt(10))
    assert np.diff(many.interval()) == pytest.approx(np.diff(once.interval()))
    assert (once.df, many.df) == pytest.approx((6.0, 6.0))
    assert once.interval()[1] - once.log_odds == pytest.approx(once.se_clustered * stdtrit(6.0, 0.975))
    n, p = 7, 5 / 7
    assert once.se_clustered == pytest.approx(math.sqrt(1 / (n * p * (1 - p))) * math.sqrt(n / (n - 1)))


@pytest.mark.parametrize(("wins", "toward"), [([1] * 6, 1), ([0] * 6, -1)])
def test_votes_that_all_go_one_way_have_a_bound_and_no_estimate(wins, toward):
    found = one(wins, list("aabbcc"))
    assert found.win_rate == wins[0]
    assert (found.log_odds, found.odds, found.se_naive) == (None, None, None)
    for interval, n_trials in ((found.interval(naive=True), 6), (found.interval(), 3)):
        bound = toward * logit(0.05 ** (1 / n_trials))
        assert interval[::toward] == (pytest.approx(bound), None)
    assert one(wins, ["p"] * 6).interval() == (None, None)


def test_the_textbook_matrices_give_the_same_errors_and_degrees_of_freedom():
    """Of a regression on two columns, in clusters of unequal size."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(7), rng.integers(3, 20, 7))
    x = np.column_stack([rng.normal(size=len(group)) + rng.normal(size=7)[group], group % 3 - 1.0])
    y = rng.normal(size=len(group)) + rng.normal(size=7)[group]
    residual = y - x @ np.linalg.solve(x.T @ x, x.T @ y)
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
    found = pool.cluster_errors(score, information)
    assert found.se == pytest.approx(np.sqrt(np.diag(bread @ meat @ bread)), rel=1e-9)
    assert found.df == pytest.approx(df, rel=1e-9)
    assert found.n_clusters == 7


def test_many_small_clusters_have_the_same_errors_and_one_alone_has_none():
    rng = np.random.default_rng(1)
    information = np.ones((3000, 1, 1))
    score = rng.normal(size=(3000, 1))
    score -= score.mean()
    found = pool.cluster_errors(score, information)
    assert found.se[0] == pytest.approx(score.std(ddof=1) / np.sqrt(3000), rel=1e-9)
    assert found.df[0] == pytest.approx(2999, rel=1e-3)
    one = pool.cluster_errors([[0.0]], [[[2.0]]])
    assert np.isnan([one.se, one.half_width()]).all()
    information = np.array([np.diag([1.0, 0.0]), np.diag([1.0, 0.0]), np.diag([1.0, 4.0])])
    mixed = pool.cluster_errors([[0.5, 0.0], [-0.8, 0.0], [0.3, 0.0]], information)
    assert mixed.se[0] == pytest.approx(np.std([0.5, -0.8, 0.3], ddof=1) / np.sqrt(3))
    assert np.isnan([mixed.se[1], mixed.df[1]]).all()
    assert np.isnan(pool.cluster_errors(np.zeros((2, 1)), np.zeros((2, 1, 1))).se).all()


def test_joint_log_odds_are_the_logistic_regression_also_of_one_exception_among_many():
    from statsmodels.discrete.discrete_model import Logit

    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(-1, 2, (900, 2)), 30 * rng.normal(size=900)])
    won, prompt = rng.random(900) < expit(x @ [1.0, -0.5, 0.02]), rng.integers(0, 40, 900)
    sign = np.where(won, 1, -1)
    peer = Logit(won.astype(float), x).fit(disp=0)
    chance = peer.predict()
    rows = [prompt == each for each in range(40)]
    score = [x[mine].T @ (won - chance)[mine] for mine in rows]
    information = [(x[mine].T * (chance * (1 - chance))[mine]) @ x[mine] for mine in rows]
    half = pool.cluster_errors(score, information).half_width()
    turned = np.where(np.arange(900) % 2, 1, -1)
    for way in (1, turned):
        found = pool.joint_log_odds((x.T * way).T, sign * way, prompt)
        np.testing.assert_allclose([one.estimate for one in found], peer.params, rtol=1e-5)
        np.testing.assert_allclose([one.high - one.estimate for one in found], half, rtol=1e-4)
    (alone,) = pool.joint_log_odds(x[:, :1], sign, prompt)
    (offline,) = pool.offline_log_odds(sign, x[:, :1], x[:, :1] != 0, prompt)
    expected = offline.log_odds, offline.interval()[0]
    assert (alone.estimate, alone.low) == pytest.approx(expected, rel=1e-6)
    n = 100_000
    (found,) = pool.joint_log_odds(np.ones((n, 1)), np.r_[-1, np.ones(n - 1)], np.arange(n))
    assert found.estimate == pytest.approx(np.log(n - 1), rel=1e-6)


@pytest.mark.parametrize(
    ("columns", "signs", "known"),
    [
        ([[1.0], [1.0], [-2.0]], [1, 1, -1], [False]),
        ([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [1, 1, 1, -1], [False, True]),
        ([[1.0, 0.0], [0.0, -1.0], [2.0, 1.0], [-1.0, -2.0]], [1, 1, 1, 1], [False, False]),
        (
            [[1, 1, 0, 1], [-1, 1, 0, 1], [0, -1, 0, -1], [1] + 3 * [0]],
            [1] + 3 * [-1],
            [True] + 3 * [False],
        ),
        (np.zeros((0, 2)), [], [False, False]),
    ],
    ids=["alone", "one of two", "only their mix", "twice the same and none", "no votes"],
)
def test_what_the_votes_do_not_tell_has_no_coefficient(columns, signs, known):
    thrice = np.repeat(columns, 3, axis=0), np.repeat(signs, 3)
    found = pool.joint_log_odds(*thrice, np.arange(3 * len(signs)))
    assert [one is not None for one in found] == known
