"""Equal leans and equal classes: the level is kept, differences are found, and the figures are in log-odds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from badpo.estimation.conditional_likelihood import winners
from badpo.estimation.fit import fit_conditional
from badpo.estimation.significance import class_offsets, equal_leans_test
from tests.estimation.test_conditional import pool


def moments(votes, logits):
    """Scores of the votes given how many won on each comparison, and their covariance, one comparison at a time."""
    comparison, won = votes[0], votes[1] > 0
    score, covariance = np.zeros(len(won)), np.zeros((len(won), len(won)))
    for c in np.unique(comparison):
        rows = np.flatnonzero(comparison == c)
        if 0 < won[rows].sum() < len(rows):
            found = winners(logits[None, rows], int(won[rows].sum()))
            score[rows] = won[rows] - found.chance[0]
            covariance[np.ix_(rows, rows)] = found.together[0] - np.outer(found.chance[0], found.chance[0])
    return score, covariance


def test_equal_leans_are_tested_by_the_squared_scores_of_annotators_beside_the_other_attribute():
    votes, _ = pool(n=150, m=8, q=2, seed=1)
    leans = fit_conditional(*votes)
    _, _, annotator, delta, m = votes
    p_value = equal_leans_test(*votes[:4], leans)
    for j in range(2):
        score, covariance = moments(votes, leans.deviation[annotator, 1 - j] * delta[:, 1 - j])
        mine = np.eye(m)[annotator] * delta[:, [j]]
        variance = mine.T @ covariance @ mine
        mean, spread = np.trace(variance), (variance**2).sum()
        statistic = ((mine.T @ score) ** 2).sum()
        assert p_value[j] == pytest.approx(stats.chi2.sf(statistic * mean / spread, mean**2 / spread))


def test_classes_have_the_leans_of_one_annotator_each_with_errors_by_annotator_and_comparison():
    votes, _ = pool(n=300, m=15, spread=0.8, seed=2)
    comparison, sign, annotator, delta, m = votes
    of = np.arange(m) % 3
    leans = fit_conditional(comparison, sign, of[annotator], delta, 3)
    score, covariance = moments(votes, leans.deviation[of[annotator], 0] * delta[:, 0])
    design = np.eye(3)[of[annotator]] * delta
    bread = np.linalg.pinv(design.T @ covariance @ design, rcond=1e-10)
    each = score[:, None] * design
    by_annotator, by_comparison = (np.eye(x.max() + 1)[x].T @ each for x in (annotator, comparison))
    meat = by_annotator.T @ by_annotator + by_comparison.T @ by_comparison - each.T @ each
    found = class_offsets(*votes[:4], of)
    assert found.n.ravel().tolist() == [5, 5, 5]
    np.testing.assert_allclose(found.offset, leans.deviation - leans.deviation.mean())
    np.testing.assert_allclose(found.se.ravel(), np.sqrt(np.diag(bread @ meat @ bread)))
    np.testing.assert_allclose(found.ci_high - found.offset, stats.t.ppf(0.975, 12) * found.se)
    statistic = found.offset[:, 0] @ np.linalg.pinv(bread @ meat @ bread, rcond=1e-10) @ found.offset[:, 0]
    assert found.p_value[0] == pytest.approx(stats.f.sf(statistic / 2, 2, 12))


def test_nothing_to_test_is_nan():
    leans = fit_conditional([0, 0], [1, 1], [0, 1], [[1.0], [1.0]], 2)
    [test] = equal_leans_test([0, 0], [1, 1], [0, 1], [[1.0], [1.0]], leans)
    assert np.isnan(test)


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
