"""Equal leans and equal classes: the level is kept, differences are found, and the figures are in log-odds."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.fit import fit_conditional
from badpo.estimation.significance import class_offsets, equal_leans_test
from tests.estimation.test_conditional import pool


def test_equal_leans_are_seldom_told_apart_and_unequal_ones_are():
    p_of = {}
    for spread in (0.0, 0.5):
        p_of[spread] = []
        for seed in range(40):
            votes, _ = pool(n=500, m=25, spread=spread, seed=seed)
            p_of[spread].append(equal_leans_test(*votes[:4], fit_conditional(*votes))[0])
    assert np.mean(np.array(p_of[0.0]) < 0.05) <= 0.15
    assert np.mean(p_of[0.0]) == pytest.approx(0.5, abs=0.17)
    assert np.mean(np.array(p_of[0.5]) < 0.05) >= 0.8


def test_one_attribute_is_tested_beside_another_on_which_annotators_differ():
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(12):
        votes, theta = pool(n=1200, m=20, q=2, spread=0.0, seed=seed)
        comparison, _, annotator, delta, m = votes
        theta[:, 1] += rng.normal(size=m)
        logit = rng.normal(size=1200)[comparison] + (theta[annotator] * delta).sum(axis=1)
        sign = np.where(rng.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
        leans = fit_conditional(comparison, sign, annotator, delta, m)
        p_values.append(equal_leans_test(comparison, sign, annotator, delta, leans))
    equal, unequal = np.array(p_values).T
    assert (unequal < 1e-3).all()
    assert np.mean(equal < 0.05) <= 0.25


def test_nothing_to_test_is_nan():
    leans = fit_conditional([0, 0], [1, 1], [0, 1], [[1.0], [1.0]], 2)
    [test] = equal_leans_test([0, 0], [1, 1], [0, 1], [[1.0], [1.0]], leans)
    assert np.isnan(test)


def test_class_offsets_are_recovered_with_intervals_that_hold():
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        votes, theta = pool(n=1500, m=45, spread=0.3, seed=seed)
        comparison, _, annotator, delta, m = votes
        of = np.arange(m) % 3
        theta[:, 0] += np.array([0.6, 0.0, -0.6])[of]
        logit = rng.normal(size=1500)[comparison] + (theta[annotator] * delta).sum(axis=1)
        sign = np.where(rng.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
        found = class_offsets(comparison, sign, annotator, delta, of)
        assert found.n.ravel().tolist() == [15, 15, 15]
        assert found.p_value[0] < 0.01
        inside.append((found.ci_low.ravel() < [0.6, 0, -0.6]) & (found.ci_high.ravel() > [0.6, 0, -0.6]))
        assert (found.offset * found.n).sum() == pytest.approx(0.0, abs=1e-9)
    assert np.mean(inside) >= 0.85


def test_annotators_without_a_class_are_left_out():
    votes, _ = pool(n=600, m=12, seed=1)
    comparison, sign, annotator, delta, m = votes
    of = np.where(np.arange(m) < 8, np.arange(m) % 2, -1)
    kept = annotator < 8
    found = class_offsets(comparison, sign, annotator, delta, of)
    alone = class_offsets(comparison[kept], sign[kept], annotator[kept], delta[kept], of[:8])
    np.testing.assert_allclose(found.offset, alone.offset)


def test_one_annotator_beyond_the_classes_is_enough_for_a_test():
    votes, _ = pool(n=200, m=3, votes=2, seed=1)
    assert 0 < class_offsets(*votes[:4], [0, 0, 1]).p_value[0] < 1


def test_one_class_has_nothing_to_differ_from():
    votes, _ = pool(n=100, m=6, seed=1)
    found = class_offsets(*votes[:4], np.zeros(6, dtype=int))
    assert np.isnan(found.p_value[0])


def test_scores_that_cancel_leave_the_error_unknown():
    """The single annotator of a class votes once for each side: no spread between clusters is left to see."""
    comparison = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1])
    annotator = np.array([2, 2, 1, 2, 1, 1, 2, 0, 2, 0, 2])
    sign = np.array([-1, -1, -1, -1, 1, -1, 1, 1, 1, -1, 1])
    found = class_offsets(comparison, sign, annotator, np.ones((11, 1)), [1, 0, 0])
    assert np.isfinite(found.offset).all()
    assert np.isnan(found.se).all() and np.isnan(found.ci_low).all() and np.isnan(found.ci_high).all()
    assert np.isnan(found.p_value[0])


def test_offsets_are_from_the_mean_over_annotators_and_not_over_classes():
    votes, _ = pool(n=800, m=30, seed=1)
    found = class_offsets(*votes[:4], np.where(np.arange(30) < 4, 0, 1))
    assert found.n.ravel().tolist() == [4, 26]
    assert found.n.ravel() @ found.offset.ravel() == pytest.approx(0.0, abs=1e-8)
