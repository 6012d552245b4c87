from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from badpo.estimation.pool import arena_coefficients, normalized_difference


def battles(n=6000, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, n))
    worth = np.linspace(-1.5, 1.5, 5)
    words_a, words_b = rng.gamma(3, 50 * np.exp(worth[a] / 3)), rng.gamma(3, 50 * np.exp(worth[b] / 3))
    length = normalized_difference(words_a, words_b)
    lists = rng.integers(-1, 2, n).astype(float)
    logit = worth[a] - worth[b] + 0.5 * length / length.std() - 0.2 * lists / lists.std()
    sign = np.where(rng.random(n) < expit(logit), 1, -1)
    names = np.array([f"model {i}" for i in range(5)], dtype=object)
    return np.column_stack([length, lists]), sign, rng.integers(0, 80, n), (names[a], names[b])


def test_planted_coefficients_come_back_beside_the_models_ratings():
    feature, sign, prompt, models = battles()
    length, lists = arena_coefficients(feature, sign, prompt, models)
    assert length.low < 0.5 < length.high
    assert lists.low < -0.2 < lists.high
    assert length.high - length.low < 0.3
    without, _ = arena_coefficients(feature, sign, prompt)
    assert without.estimate > 0.6  # longer texts are by better models here


def test_the_unit_of_a_feature_and_the_sides_do_not_matter():
    feature, sign, prompt, models = battles(800)
    once = arena_coefficients(feature, sign, prompt, models)
    again = arena_coefficients(-7 * feature, -sign, prompt, models[::-1])
    assert [one.estimate for one in again] == pytest.approx([one.estimate for one in once], rel=1e-5)


def test_a_model_that_always_wins_and_models_that_never_meet():
    feature, sign, prompt, _ = battles(400)
    first = np.where(np.arange(400) < 200, "strong", "other")
    second = np.where(np.arange(400) < 200, "weak", "another")
    sign[:200] = 1
    length, _ = arena_coefficients(feature, sign, prompt, (first, second))
    assert np.isfinite([length.estimate, length.low, length.high]).all()


def test_features_that_cannot_be_told_are_none():
    feature, sign, prompt, _ = battles(300)
    columns = np.column_stack([feature[:, 0], feature[:, 1], feature[:, 1], np.zeros(300)])
    found = arena_coefficients(columns, sign, prompt)
    assert [one is None for one in found] == [False, True, True, True]
    assert arena_coefficients(np.zeros((3, 1)), [1, 1, -1], range(3)) == (None,)
    assert arena_coefficients([[0.5], [0.2]], [1, 1], range(2)) == (None,)
