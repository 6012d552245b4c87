"""Agreement of annotators; whether leans and classes are equal; whether it was left to chance who judged what."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from badpo.estimation.conditional_likelihood import KnownWins, sorted_blocks
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import (
    annotator_agreement,
    assignment_test,
    class_offsets,
    equal_leans_test,
    pool_agreement,
    recommend,
    self_contradictions,
)
from badpo.theory.summaries import cluster_mean, wilson_ends
from bench.simulated_pools import Pool, draw_votes
from tests.estimation.test_conditional import pool


def test_agreement_by_counting_pairs_of_two_people():
    random = np.random.default_rng(0)
    comparison = np.repeat(np.arange(60), random.integers(1, 6, 60))
    sign, annotator = random.choice([-1, 1], len(comparison)), random.integers(0, 7, len(comparison))
    cast = list(zip(comparison, annotator, strict=True))
    votes = [i for i, vote in enumerate(cast) if vote not in cast[:i]]
    beside = {i: [j for j in votes if comparison[j] == comparison[i] and j != i] for i in votes}
    share = pd.Series({i: np.mean(sign[others] == sign[i]) for i, others in beside.items() if others})
    rows = share.index.to_numpy()
    clusters = comparison // 3
    found, expected = (
        pool_agreement(comparison, sign, annotator, clusters),
        cluster_mean(share, clusters[rows]),
    )
    ends = found.percent, found.low, found.high
    assert ends == pytest.approx((expected.estimate, expected.low, expected.high))
    assert (found.n_votes, found.n_comparisons) == (len(rows), len(set(comparison[rows])))
    both_ways = permutations(np.r_[sign[rows], -sign[rows]], 2)
    assert found.alpha == pytest.approx(
        1 - (1 - found.percent) / np.mean([one != other for one, other in both_ways])
    )
    each = annotator_agreement(comparison, sign, annotator, 8)
    n, mean = np.bincount(annotator[rows], minlength=8), share.groupby(annotator[rows]).mean()
    low, high = wilson_ends(mean.to_numpy(), n[:7])
    np.testing.assert_allclose(each, [np.append(x, np.nan) for x in (mean, low, high)])


def test_agreement_that_is_not_known_and_that_is_whole():
    alone = pool_agreement([0, 0, 0], [1, 1, 1], [4, 4, 4])
    assert alone.n_votes == 0 and np.isnan(alone.percent)
    always = pool_agreement([0, 0, 1, 1], [1, 1, -1, -1], [0, 1, 0, 1])
    assert (always.low, always.high) == wilson_ends(np.array(1.0), np.array(2))


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


def test_contradictions_are_those_of_the_same_person_on_the_same_comparison():
    comparison, annotator = [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 0, 1, 1, 1]
    found = self_contradictions(comparison, [1, -1, 1, 1, 1, 1, 1, -1], annotator)
    assert found.values.tolist() == [[0, 0, True], [0, 1, False], [1, 2, True]]
    assert self_contradictions([0], [1], [0]).empty


# -- equal leans and classes ---------------------------------------------------------------------------------


def moments(votes, logits):
    """Scores of the votes given how many won on each comparison, and their covariance."""
    order, blocks = sorted_blocks(votes[0])
    at = KnownWins(blocks, votes[1][order].astype(float)).curvature(logits[order])
    back = np.argsort(order)
    return at.score[back], at.information.toarray()[np.ix_(back, back)]


@pytest.mark.parametrize("varies", [False, True])
def test_equal_leans_are_tested_by_the_squared_scores_of_annotators_beside_the_other_attribute(varies):
    votes, _ = pool(n=150, m=8, q=2, seed=1)
    _, _, annotator, delta, m = votes
    if varies:
        delta[:, 0] = np.random.default_rng(0).choice([-1.0, 1.0], len(delta))
    leans = fit_conditional(*votes)
    level = np.where(leans.absolute, leans.level, 0.0)
    assert level.any() == varies
    p_value = equal_leans_test(*votes[:4], leans)
    for j in range(2):
        logits = leans.deviation[annotator, 1 - j] * delta[:, 1 - j] + level[j] * delta[:, j]
        score, covariance = moments(votes, logits)
        mine = np.eye(m)[annotator] * delta[:, [j]]
        variance = mine.T @ covariance @ mine
        mean, spread = np.trace(variance), (variance**2).sum()
        statistic = ((mine.T @ score) ** 2).sum()
        assert p_value[j] == pytest.approx(stats.chi2.sf(statistic * mean / spread, mean**2 / spread))


def test_classes_have_the_leans_of_one_annotator_each_with_errors_by_annotator_and_comparison():
    votes, _ = pool(n=300, m=15, spread=0.8, seed=2)
    of = np.repeat([0, 1, 2, -1], [3, 4, 6, 2])
    found = class_offsets(*votes[:4], of)
    kept = of[votes[2]] >= 0
    comparison, sign, annotator, delta = votes = [each[kept] for each in votes[:4]]
    leans = fit_conditional(comparison, sign, of[annotator], delta, 3)
    score, covariance = moments(votes, leans.deviation[of[annotator], 0] * delta[:, 0])
    design = np.eye(3)[of[annotator]] * delta
    # from the mean over annotators, not over classes
    contrast = np.eye(3) - np.array([3, 4, 6]) / 13
    bread = contrast @ np.linalg.pinv(design.T @ covariance @ design, rcond=1e-10)
    each = score[:, None] * design
    by_annotator, by_comparison = (np.eye(x.max() + 1)[x].T @ each for x in (annotator, comparison))
    meat = by_annotator.T @ by_annotator + by_comparison.T @ by_comparison - each.T @ each
    spread, offset = bread @ meat @ bread.T, contrast @ leans.deviation
    assert found.n.ravel().tolist() == [3, 4, 6]
    np.testing.assert_allclose(found.offset, offset)
    reach = stats.t.ppf(0.975, 10) * np.sqrt(np.diag(spread))[:, None]
    np.testing.assert_allclose([found.ci_low, found.ci_high], [offset - reach, offset + reach])
    statistic = offset[:, 0] @ np.linalg.pinv(spread, rcond=1e-10) @ offset[:, 0]
    assert found.p_value[0] == pytest.approx(stats.f.sf(statistic / 2, 2, 10))


def test_nothing_to_test_is_nan():
    votes = [0, 0], [1, 1], [0, 1], [[1.0], [1.0]]
    assert np.isnan(equal_leans_test(*votes, fit_conditional(*votes, 2))).all()


@pytest.mark.parametrize(
    ("of", "is_tested"), [([0, 0, 1], True), ([0, 1, 2], False), ([0, 0, 0], False)]
)
def test_classes_are_tested_with_one_annotator_beyond_them(of, is_tested):
    votes, _ = pool(n=200, m=3, votes=2, seed=1)
    [p_value] = class_offsets(*votes[:4], of).p_value
    assert 0 < p_value < 1 if is_tested else np.isnan(p_value)


def test_scores_that_cancel_leave_the_error_unknown():
    """The single annotator of a class votes once for each side: no spread between clusters is left to see."""
    comparison = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1])
    annotator = np.array([2, 2, 1, 2, 1, 1, 2, 0, 2, 0, 2])
    sign = np.array([-1, -1, -1, -1, 1, -1, 1, 1, 1, -1, 1])
    found = class_offsets(comparison, sign, annotator, np.ones((11, 1)), [1, 0, 0])
    assert np.isfinite(found.offset).all()
    assert np.isnan([*found.ci_low, *found.ci_high, found.p_value]).all()


# -- who judged what -----------------------------------------------------------------------------------------


def test_people_who_differ_are_not_taken_for_an_assignment():
    """Eight people who lean very differently: without their leans the exchange would reject most of the time."""
    random, people = np.random.default_rng(0), Pool(300, n_annotators=8, votes_each=3, spread=1.0)
    pools = (draw_votes(people, random).arrays[:4] for _ in range(100))
    rejected = np.mean([assignment_test(*votes, n_permutations=39).p_value <= 0.05 for votes in pools])
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_specialists_of_what_leans_otherwise_are_found_also_with_a_repeated_vote():
    random, of = np.random.default_rng(3), Pool(600, 20, 3, spread=0.0, better=1.0, specialists=True)
    votes = draw_votes(of, random).arrays[:4]
    other = np.repeat(random.choice([-1.0, 0.0, 1.0], 600), 3)[:, None]
    for sides, is_found in ((votes[3], True), (other, False), (np.hstack([votes[3], other]), True)):
        found = assignment_test(*votes[:3], sides, n_permutations=99)
        assert (found.p_value <= 0.05) == is_found
        comparison, sign, annotator, delta = (
            np.concatenate([each, each[:30]]) for each in (*votes[:3], sides)
        )
        sign[-30:] *= -1
        assert found == assignment_test(comparison, sign, annotator, delta, n_permutations=99)


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
    assert np.isnan(found).all()


def test_exchanges_that_change_nothing_count_as_large():
    found = assignment_test(
        [0, 0, 1, 1], [1, 1, 1, -1], [0, 1, 2, 3], np.ones((4, 1)), n_permutations=19
    )
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
