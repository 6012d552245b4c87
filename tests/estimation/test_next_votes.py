"""What to collect next."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.fit import fit_conditional
from badpo.estimation.next_votes import joining_comparisons, votes_needed
from badpo.theory.identifiability import annotator_components, informative_judgments


def vote(random, logit):
    return np.where(random.random(np.shape(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)


def islands(seed=0):
    """Three groups of 12, 5 and 3 people who share no comparison, and one person who judged alone."""
    random = np.random.default_rng(seed)
    comparison, annotator, start = [], [], 0
    for people, n in (
        (np.arange(12), 80),
        (np.arange(12, 17), 30),
        (np.arange(17, 20), 20),
        (np.array([20]), 5),
    ):
        for c in range(start, start + n):
            chosen = random.choice(people, min(3, len(people)), replace=False)
            comparison += [c] * len(chosen)
            annotator += chosen.tolist()
        start += n
    comparison, annotator = np.array(comparison), np.array(annotator)
    delta = random.choice([-1.0, 1.0], start)[comparison, None]
    quality = random.normal(0, 1, start)
    return comparison, vote(random, quality[comparison]), annotator, delta, quality


def components(comparison, sign, annotator, delta, m):
    informative = informative_judgments(comparison, annotator, sign, delta)
    return annotator_components(comparison, annotator, delta * informative, m)[:, 0]


def test_following_the_requests_joins_the_groups():
    comparison, sign, annotator, delta, quality = islands()
    before = components(comparison, sign, annotator, delta, 21)
    assert sorted(np.bincount(before[before >= 0])) == [3, 5, 12]
    requests = joining_comparisons(comparison, sign, annotator, delta, 21)
    random = np.random.default_rng(1)
    asked = requests["comparison"].to_numpy()
    of_first = np.array([np.flatnonzero(comparison == c)[0] for c in asked])
    after = components(
        np.r_[comparison, requests["round"] + 10_000],
        np.r_[sign, vote(random, quality[asked])],
        np.r_[annotator, requests["annotator"]],
        np.r_[delta, delta[of_first]],
        21,
    )
    assert (after == 0).all()
    informative = informative_judgments(
        requests["round"].to_numpy(),
        requests["annotator"].to_numpy(),
        vote(random, quality[asked]),
        delta[of_first],
    )
    assert informative.mean() > 0.5


def test_nobody_is_asked_what_they_judged_and_no_comparison_twice():
    comparison, sign, annotator, delta, _ = islands()
    requests = joining_comparisons(comparison, sign, annotator, delta, 21, min_informative=30)
    judged = set(zip(comparison.tolist(), annotator.tolist(), strict=True))
    assert not judged & set(zip(requests["comparison"], requests["annotator"], strict=True))
    rounds = requests.groupby("round")
    assert (rounds["comparison"].nunique() == 1).all()
    assert (rounds["annotator"].nunique() == rounds.size()).all()
    assert rounds.size().between(2, 4).all()
    assert requests.drop_duplicates("round")["comparison"].is_unique


def test_requests_are_bounded_and_shared_between_attributes():
    comparison, sign, annotator, delta, _ = islands()
    two = np.hstack([delta, np.roll(delta, 7)])
    requests = joining_comparisons(comparison, sign, annotator, two, 21, min_informative=50, max_requests=40)
    assert len(requests) <= 40
    assert set(requests["attribute"]) == {0, 1}
    again = joining_comparisons(comparison, sign, annotator, two, 21, min_informative=50, max_requests=40)
    assert requests.equals(again)


def test_groups_come_before_those_with_few_votes_and_the_larger_before_the_smaller():
    requests = joining_comparisons(*islands()[:4], 21, min_informative=40)
    reasons = requests["reason"].drop_duplicates().tolist()
    assert reasons[0] == "joins a group of 5 to the largest"
    order = [
        "joins a group of 5 to the largest",
        "joins a group of 3 to the largest",
        "is compared with nobody yet",
    ]
    assert [reason for reason in reasons if reason in order] == order
    assert "informative votes" in reasons[-1] or reasons[-1] == "completes the round"


def test_split_comparisons_are_asked_first():
    """Of three with four votes the one that was split evenly; 4 and 5 disagreed with 0, and 6 has met nobody."""
    comparison = [0] * 4 + [1] * 4 + [2] * 4 + [3, 3, 4, 4, 5]
    annotator = [0, 1, 2, 3] * 3 + [0, 4, 0, 5, 6]
    sign = [1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, -1, 1, -1, 1, -1, 1]
    requests = joining_comparisons(comparison, sign, annotator, np.ones((17, 1)), 7, min_informative=1)
    assert requests["comparison"].drop_duplicates().tolist()[0] == 1
    rounds = requests[requests["round"] == 0]
    assert rounds["annotator"].tolist() == [6, 4, 5]


def test_nobody_is_asked_for_more_rounds_than_informative_votes_are_lacking():
    """Of five people who all met, the last has one informative vote and should have three."""
    comparison = np.append(np.repeat(np.arange(20), 2), [20, 20])
    annotator = np.append(np.tile([0, 1, 1, 2, 2, 3, 3, 0], 5), [0, 4])
    sign = np.tile([1, -1], 21)
    requests = joining_comparisons(comparison, sign, annotator, np.ones((42, 1)), 5, min_informative=3)
    assert requests["annotator"].tolist().count(4) == 2
    assert requests["round"].nunique() == 2


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_nothing_to_ask(delta):
    """No difference anywhere; or everyone judged everything."""
    comparison, annotator = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    sign = vote(np.random.default_rng(0), np.zeros(18))
    requests = joining_comparisons(comparison, sign, annotator, np.full((18, 1), delta), 3)
    assert requests.empty
    assert requests.columns.tolist() == ["round", "comparison", "annotator", "attribute", "reason"]


def test_votes_needed_is_right_about_a_larger_sample():
    random = np.random.default_rng(1)

    def fit(n):
        comparison, annotator = (
            np.repeat(np.arange(n), 4),
            np.argsort(random.random((n, 20)), axis=1)[:, :4].ravel(),
        )
        delta = random.choice([-1.0, 1.0], n)[comparison, None]
        return fit_conditional(
            comparison, vote(random, random.normal(0, 1, n)[comparison]), annotator, delta, 20
        )

    small = fit(600)
    needed = votes_needed(small.se, small.n_informative, half_width=0.25)
    large = fit(int(600 * needed[0] / np.median(small.n_informative)))
    assert 1.96 * np.median(large.se) == pytest.approx(0.25, rel=0.1)


def test_votes_needed_where_there_is_no_estimate():
    found = votes_needed([[0.5, np.nan], [np.nan, np.inf]], [[16, 0], [3, 5]], 0.98)
    np.testing.assert_array_equal(found, [16, np.nan])
    assert votes_needed([[0.5]], [[1]], 0.98) == [1]
