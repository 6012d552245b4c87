from __future__ import annotations

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
