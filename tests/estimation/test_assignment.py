"""Whether it was left to chance who judged what."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from badpo.estimation.significance import assignment_test


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


def test_the_statistic_by_counting_with_unequal_comparisons():
    random = np.random.default_rng(7)
    comparison = random.permutation(np.repeat(np.arange(60), random.integers(1, 6, 60)))
    votes = pd.DataFrame({"comparison": comparison, "annotator": random.integers(0, 6, len(comparison))})
    votes = votes.assign(
        sign=random.choice([-1, 1], len(votes)), delta=random.choice([-1.0, 0.0, 1.0], len(votes))
    )
    votes = votes.drop_duplicates(["comparison", "annotator"])
    of_comparison = votes.groupby("comparison")["delta"]
    kind = [of_comparison.transform("size"), of_comparison.transform(lambda each: (each != 0).sum())]
    cast = (votes["delta"] != 0) & (kind[1] > 1)
    vote = (votes["sign"] * votes["delta"] > 0)[cast].astype(float)
    vote -= vote.groupby([each[cast] for each in kind]).transform("mean")
    beside = vote.groupby(votes["comparison"][cast])
    rate = (beside.transform("sum") - vote) / (beside.transform("size") - 1)
    person = rate.groupby(votes["annotator"][cast])
    between = (person.size() * (person.mean() - rate.mean()) ** 2).sum()
    found = assignment_test(
        *(votes[each] for each in ("comparison", "sign", "annotator")), votes[["delta"]], 5
    )
    assert found.statistic == pytest.approx(between / rate.var(ddof=0))
