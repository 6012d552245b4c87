"""Agreement of annotators; whether leans and classes are equal; whether it was left to chance who judged what."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from badpo.estimation.conditional_likelihood import winners
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import (
    annotator_agreement,
    assignment_test,
    class_offsets,
    equal_leans_test,
    first_votes,
    pool_agreement,
    recommend,
    self_contradictions,
)
from badpo.theory.summaries import wilson_interval
from tests.estimation.test_conditional import pool


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
    comparison, annotator = [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 0, 1, 1, 1]
    found = self_contradictions(comparison, [1, -1, 1, 1, 1, 1, 1, -1], annotator)
    assert found.values.tolist() == [[0, 0, True], [0, 1, False], [1, 2, True]]
    assert self_contradictions([0], [1], [0]).empty


# -- equal leans and classes ---------------------------------------------------------------------------------


def moments(votes, logits):
    """Scores of the votes given how many won on each comparison, and their covariance, one comparison at a time."""
    comparison, won = votes[0], votes[1] > 0
    score, covariance = np.zeros(len(won)), np.zeros((len(won), len(won)))
    for c in np.unique(comparison):
        rows = np.flatnonzero(comparison == c)
        if 0 < won[rows].sum() < len(rows):
            found = winners(logits[None, rows], int(won[rows].sum()))
            score[rows] = won[rows] - found.chance[0]
            covariance[np.ix_(rows, rows)] = found.together[0] - np.outer(
                found.chance[0], found.chance[0]
            )
    return score, covariance


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
    reach = stats.t.ppf(0.975, 12) * np.sqrt(np.diag(bread @ meat @ bread))
    np.testing.assert_allclose((found.ci_high - found.offset).ravel(), reach)
    np.testing.assert_allclose((found.offset - found.ci_low).ravel(), reach)
    statistic = (
        found.offset[:, 0] @ np.linalg.pinv(bread @ meat @ bread, rcond=1e-10) @ found.offset[:, 0]
    )
    assert found.p_value[0] == pytest.approx(stats.f.sf(statistic / 2, 2, 12))


def test_nothing_to_test_is_nan():
    votes = [0, 0], [1, 1], [0, 1], [[1.0], [1.0]]
    assert np.isnan(equal_leans_test(*votes, fit_conditional(*votes, 2))).all()


def test_annotators_without_a_class_are_left_out():
    votes, _ = pool(n=600, m=12, seed=1)
    comparison, sign, annotator, delta, m = votes
    of = np.where(np.arange(m) < 8, np.arange(m) % 2, -1)
    kept = annotator < 8
    found = class_offsets(comparison, sign, annotator, delta, of)
    alone = class_offsets(comparison[kept], sign[kept], annotator[kept], delta[kept], of[:8])
    np.testing.assert_allclose(found.offset, alone.offset)


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


def test_offsets_are_from_the_mean_over_annotators_and_not_over_classes():
    votes, _ = pool(n=800, m=30, seed=1)
    found = class_offsets(*votes[:4], np.where(np.arange(30) < 4, 0, 1))
    assert found.n.ravel().tolist() == [4, 26]
    assert found.n.ravel() @ found.offset.ravel() == pytest.approx(0.0, abs=1e-8)


# -- who judged what -----------------------------------------------------------------------------------------


def drawn(random, lean, n=300, votes_each=3, domains=0.0):
    """Votes of people drawn at random; ``domains``: how much better the attribute is in one half than in the other.

    With it, nine in ten votes on a comparison are by specialists of its half.
    """
    m = len(lean)
    quality, delta = random.normal(0, 1, n), random.choice([-1.0, 0.0, 1.0], n)
    half = random.integers(0, 2, n)
    weights = (
        np.where((np.arange(m) % 2)[None] == half[:, None], 0.9, 0.1) if domains else np.ones((n, m))
    )
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


def test_people_who_differ_are_not_taken_for_an_assignment():
    """Eight people who lean very differently: without their leans the exchange would reject most of the time."""
    random = np.random.default_rng(0)
    pools = (drawn(random, 0.8 + random.normal(size=8)) for _ in range(100))
    rejected = np.mean([assignment_test(*votes, n_permutations=39).p_value <= 0.05 for votes in pools])
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_specialists_of_what_leans_otherwise_are_found():
    random = np.random.default_rng(3)
    comparison, sign, annotator, delta = drawn(random, np.zeros(20), n=600, domains=2.0)
    other = np.repeat(random.choice([-1.0, 0.0, 1.0], 600), 3)[:, None]
    for sides, is_found in ((delta, True), (other, False), (np.hstack([delta, other]), True)):
        found = assignment_test(comparison, sign, annotator, sides, n_permutations=99)
        assert (found.p_value <= 0.05) == is_found
        assert found == assignment_test(comparison, sign, annotator, sides, n_permutations=99)


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


def test_a_repeated_vote_changes_nothing():
    comparison, sign, annotator, delta = drawn(np.random.default_rng(5), np.zeros(10))
    again = [np.concatenate([each, each[:30]]) for each in (comparison, -sign, annotator, delta)]
    again[1][: len(sign)] = sign
    assert assignment_test(*again) == assignment_test(comparison, sign, annotator, delta)


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
