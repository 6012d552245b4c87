"""Whether it was left to chance who judged what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from badpo.estimation.significance import assignment_test

UKP = Path(__file__).parents[3] / "shared" / "data" / "ukpconvarg1_human.parquet"


def pool(random, lean, n=300, votes_each=3, domains=0.0):
    """Votes of people drawn at random; ``domains``: how much better the attribute is in one half than in the other.

    With it, nine in ten votes on a comparison are by specialists of its half.
    """
    m = len(lean)
    quality, delta = random.normal(0, 1, n), random.choice([-1.0, 0.0, 1.0], n)
    half = random.integers(0, 2, n)
    weights = np.where((np.arange(m) % 2)[None] == half[:, None], 0.9, 0.1) if domains else np.ones((n, m))
    # the largest of exponential races: a draw without replacement by weight
    people = np.argsort(random.exponential(size=(n, m)) / weights, axis=1)[:, :votes_each]
    logit = quality[:, None] + (lean[people] + domains * (half - 0.5)[:, None]) * delta[:, None]
    sign = np.where(random.random(people.shape) < 1 / (1 + np.exp(-logit)), 1, -1)
    return (
        np.repeat(np.arange(n), votes_each),
        sign.ravel(),
        people.ravel(),
        np.repeat(delta, votes_each)[:, None],
    )


def rejections(n_pools, seed, m=8, spread=1.0, **kinds):
    random = np.random.default_rng(seed)
    p_values = [
        assignment_test(
            *pool(random, 0.8 + spread * random.normal(size=m), **kinds), n_permutations=39
        ).p_value
        for _ in range(n_pools)
    ]
    return np.mean(np.array(p_values) <= 0.05)


def test_people_who_differ_are_not_taken_for_an_assignment():
    """Eight people who lean very differently: without their leans the exchange would reject most of the time."""
    assert rejections(100, seed=0) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_the_statistic_by_counting_with_unequal_comparisons():
    random = np.random.default_rng(7)
    comparison = random.permutation(np.repeat(np.arange(60), random.integers(1, 6, 60)))
    annotator, sign = random.integers(0, 6, len(comparison)), random.choice([-1, 1], len(comparison))
    kept = np.sort(np.unique(comparison * 6 + annotator, return_index=True)[1])
    comparison, annotator, sign = comparison[kept], annotator[kept], sign[kept]
    delta = random.choice([-1.0, 0.0, 1.0], (len(kept), 1))
    cross = delta[:, 0] != 0
    vote = np.where(cross, sign * delta[:, 0] > 0, 0.0).astype(float)
    size = np.bincount(comparison)[comparison]
    n_cross = np.bincount(comparison, weights=cross)[comparison].astype(int)
    cast = cross & (n_cross > 1)
    for kind in {*zip(size[cast], n_cross[cast], strict=True)}:
        alike = cast & (size == kind[0]) & (n_cross == kind[1])
        vote[alike] -= vote[alike].mean()
    rate = np.array(
        [
            np.mean([vote[j] for j in np.flatnonzero(cast & (comparison == comparison[i])) if j != i])
            for i in np.flatnonzero(cast)
        ]
    )
    between = sum(
        (annotator[cast] == k).sum() * (rate[annotator[cast] == k].mean() - rate.mean()) ** 2
        for k in range(6)
    )
    found = assignment_test(comparison, sign, annotator, delta, n_permutations=5)
    assert found.statistic == pytest.approx(between / rate.var())


def test_specialists_are_found():
    assert rejections(15, seed=2, m=20, n=600, domains=1.4) >= 0.9


def test_every_attribute_has_its_p_value():
    random = np.random.default_rng(3)
    comparison, sign, annotator, delta = pool(random, np.zeros(20), n=600, domains=2.0)
    other = np.repeat(random.choice([-1.0, 0.0, 1.0], 600), 3)[:, None]
    found = assignment_test(comparison, sign, annotator, np.hstack([delta, other]), n_permutations=99)
    assert found.by_attribute[0] == 0.01
    assert found.by_attribute[1] > 0.05
    assert found.p_value <= 0.05
    assert found.n_permutations == 99
    assert found == assignment_test(comparison, sign, annotator, np.hstack([delta, other]), n_permutations=99)


@pytest.mark.parametrize(
    ("comparison", "annotator", "delta"),
    [
        ([0, 1, 2], [0, 1, 2], [1, 1, 1]),
        ([0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 0]),
        ([0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1]),
        ([0, 0, 1, 1, 1], [0, 1, 2, 3, 4], [1, 1, 1, 1, 1]),
        ([], [], []),
    ],
    ids=["one vote each", "no difference", "everyone judged everything", "no two alike", "no votes"],
)
def test_nothing_to_exchange(comparison, annotator, delta):
    delta = np.array(delta, dtype=float).reshape(-1, 1)
    found = assignment_test(comparison, np.ones(len(comparison)), annotator, delta)
    assert np.isnan([found.p_value, found.statistic, *found.by_attribute]).all()


def test_a_repeated_vote_changes_nothing():
    comparison, sign, annotator, delta = pool(np.random.default_rng(5), np.zeros(10))
    again = [np.concatenate([each, each[:30]]) for each in (comparison, -sign, annotator, delta)]
    again[1][: len(sign)] = sign
    assert assignment_test(*again) == assignment_test(comparison, sign, annotator, delta)


def test_exchanges_that_change_nothing_count_as_large():
    found = assignment_test([0, 0, 1, 1], [1, 1, 1, -1], [0, 1, 2, 3], np.ones((4, 1)), n_permutations=19)
    assert found.p_value == 1.0 and found.statistic == pytest.approx(4.0)
