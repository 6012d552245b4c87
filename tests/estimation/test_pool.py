from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

from badpo.estimation.pool import (
    carrier_sides,
    co_occurrence,
    collinearity,
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
    found = collinearity(np.column_stack([first, second, first - second, other, np.zeros(300), -other]))
    assert found.dependent[:3, :3].tolist() == [[False, True, True], [True, False, True], [True, True, False]]
    assert np.flatnonzero(found.dependent[3]).tolist() == [5]
    assert found.estimable.tolist() == [False] * 6
    assert np.isnan(found.variance_inflation[4])


def test_variance_inflation_is_that_of_the_regression_on_the_others():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 3))
    x[:, 2] += 2 * x[:, 0]
    found = collinearity(x)
    for j in range(3):
        others = np.delete(x, j, axis=1)
        left = x[:, j] - others @ np.linalg.lstsq(others, x[:, j])[0]
        assert found.variance_inflation[j] == pytest.approx((x[:, j] @ x[:, j]) / (left @ left))
    assert found.estimable.all()
    assert not found.dependent.any()


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
