"""Agreement of annotators."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import (
    annotator_agreement,
    first_votes,
    pool_agreement,
    recommend,
    self_contradictions,
)
from badpo.theory.summaries import wilson_interval


def some_votes(n=60, seed=0):
    random = np.random.default_rng(seed)
    comparison = np.repeat(np.arange(n), random.integers(1, 6, n))
    first = np.searchsorted(comparison, comparison)
    annotator = (np.arange(len(comparison)) - first + random.integers(0, 7, n)[comparison]) % 7
    chance = random.uniform(0.1, 0.9, n)[comparison]
    return comparison, np.where(random.random(len(comparison)) < chance, 1, -1), annotator


def test_percent_agreement_by_counting_pairs():
    comparison, sign, annotator = some_votes()
    shares = []
    of_annotator: dict[int, list[float]] = {k: [] for k in range(7)}
    for c in np.unique(comparison):
        votes = np.flatnonzero(comparison == c)
        for i in votes:
            if len(votes) > 1:
                shares.append(np.mean([sign[i] == sign[j] for j in votes if j != i]))
                of_annotator[annotator[i]].append(shares[-1])
    found = pool_agreement(comparison, sign, annotator)
    assert found.percent == pytest.approx(np.mean(shares))
    assert (found.n_votes, found.n_comparisons) == (len(shares), (np.bincount(comparison) > 1).sum())
    assert found.low < found.percent < found.high
    each = annotator_agreement(comparison, sign, annotator, 8)
    np.testing.assert_allclose(each.agreement[:7], [np.mean(of_annotator[k]) for k in range(7)])
    assert each.n_shared[7] == 0
    assert np.isnan([each.agreement[7], each.low[7], each.high[7]]).all()


def test_pool_figures_are_those_of_both_orientations():
    sklearn = pytest.importorskip("sklearn.metrics")
    comparison, sign, annotator = some_votes()
    found = pool_agreement(comparison, sign, annotator)
    chosen = sign[np.bincount(comparison)[comparison] > 1]
    by_chance = np.mean([one != other for one, other in permutations(np.r_[chosen, -chosen], 2)])
    assert found.alpha == pytest.approx(1 - (1 - found.percent) / by_chance)
    assert pool_agreement(comparison, -sign, annotator) == found
    comparison, annotator = np.repeat(np.arange(40), 2), np.tile([0, 1], 40)
    sign = np.where(np.random.default_rng(1).random(80) < 0.8, 1, -1)
    one, other = sign[::2], sign[1::2]
    kappa = sklearn.cohen_kappa_score(np.r_[one, -one], np.r_[other, -other])
    assert pool_agreement(comparison, sign, annotator).kappa == pytest.approx(kappa)


def test_votes_of_oneself_are_no_agreement():
    alone = pool_agreement([0, 0, 0], [1, 1, 1], [4, 4, 4])
    assert alone.n_votes == 0
    assert np.isnan(alone.percent)
    with_another = annotator_agreement([0, 0, 0], [1, 1, -1], [0, 0, 1], 2)
    assert with_another.agreement.tolist() == [0.0, 0.0]


def test_clusters_widen_the_interval():
    random = np.random.default_rng(2)
    agrees = np.repeat(random.random(10) < 0.5, 20)
    comparison, annotator = np.repeat(np.arange(200), 2), np.tile([0, 1], 200)
    sign = np.stack([np.ones(200), np.where(agrees, 1, -1)], axis=1).ravel()
    apart = pool_agreement(comparison, sign, annotator)
    together = pool_agreement(comparison, sign, annotator, comparison // 20)
    assert together.high - together.low > 2 * (apart.high - apart.low)


def test_intervals_are_wilson_of_comparisons():
    comparison, annotator = np.repeat(np.arange(30), 2), np.tile([0, 1], 30)
    sign = np.stack([np.ones(30), np.where(np.arange(30) < 21, 1, -1)], axis=1).ravel()
    found = annotator_agreement(comparison, sign, annotator, 2)
    expected = wilson_interval(21, 30)
    assert (found.low[0], found.high[0]) == pytest.approx((expected.low, expected.high))
    always = annotator_agreement([0, 0], [1, 1], [0, 1], 2)
    assert always.high.tolist() == [1.0, 1.0]
    assert (always.low < 1).all()


SPREAD = shrink_normal([0.8, -0.7, 0.1, -0.2], [0.1] * 4)
ALIKE = shrink_normal([0.01, -0.02, 0.01, 0.0], [0.3] * 4)
ALONE = shrink_normal([0.8], [0.1])


@pytest.mark.parametrize(
    ("shrunk", "equal_p", "class_p", "variant"),
    [
        (SPREAD, 1e-9, 1e-9, "class"),
        (SPREAD, 1e-9, 0.4, "shared_mean"),
        (SPREAD, 1e-9, np.nan, "shared_mean"),
        (SPREAD, 1e-9, None, "shared_mean"),
        (SPREAD, np.nan, None, "shared_mean"),
        (ALIKE, 0.8, None, "pooled"),
        (ALIKE, np.nan, np.nan, "pooled"),
        (ALIKE, 0.8, 0.01, "class"),
        (ALONE, np.nan, None, "pooled"),
    ],
)
def test_the_variant_follows_the_evidence(shrunk, equal_p, class_p, variant):
    assert recommend(shrunk, equal_p, class_p).variant == variant


def test_first_votes_do_not_depend_on_labels():
    comparison = np.array([900, 3, 900, 900, 3])
    annotator = np.array([7, 7, 7, 2, 7])
    assert first_votes(comparison, annotator).tolist() == [True, True, False, True, False]
    assert first_votes([], []).shape == (0,)


def test_contradictions_are_those_of_the_same_person_on_the_same_comparison():
    found = self_contradictions(
        comparison=[0, 0, 0, 1, 1, 2, 2, 2],
        sign=[1, -1, 1, 1, 1, 1, 1, -1],
        annotator=[0, 0, 1, 0, 0, 1, 1, 1],
    )
    assert found["annotator"].tolist() == [0, 0, 1]
    assert found["comparison"].tolist() == [0, 1, 2]
    assert found["contradicted"].tolist() == [True, False, True]
    assert self_contradictions([0], [1], [0]).empty
