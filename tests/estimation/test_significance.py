"""Agreement of annotators; whether biases and classes are equal; whether it was left to chance who judged what."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from badpo.estimation.conditional_likelihood import KnownWins, sort_into_blocks
from badpo.estimation.fit import Votes, fit_conditional
from badpo.estimation.reliability import estimate_class_merit
from badpo.estimation.shrinkage import shrink_normal
from badpo.estimation.significance import (
    annotator_agreement,
    class_offsets,
    equal_bias_p_value,
    other_feature_p,
    pool_agreement,
    recommend,
)
from badpo.theory.summaries import cluster_mean, wilson_ends
from bench.simulated_pools import Pool, draw_votes
from tests.estimation.test_conditional import pool
from tests.estimation.test_fit import tastes_by_prompt


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
    found = pool_agreement(comparison, sign, annotator, clusters)
    expected = cluster_mean(share, clusters[rows])
    ends = found.percent, found.low, found.high
    assert ends == pytest.approx((expected.estimate, expected.low, expected.high))
    assert (found.n_votes, found.n_comparisons) == (len(rows), len(set(comparison[rows])))
    both_ways = permutations(np.r_[sign[rows], -sign[rows]], 2)
    by_chance = np.mean([one != other for one, other in both_ways])
    assert found.alpha == pytest.approx(1 - (1 - found.percent) / by_chance)
    each = annotator_agreement(comparison, sign, annotator, 8)
    n, mean = np.bincount(annotator[rows], minlength=8), share.groupby(annotator[rows]).mean()
    low, high = wilson_ends(mean.to_numpy(), n[:7])
    np.testing.assert_allclose(each, [np.append(x, np.nan) for x in (mean, low, high)])


def test_agreement_that_is_not_known_or_complete():
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


def moments(votes, logits):
    """Scores of the votes given how many won on each comparison, and their covariance."""
    order, blocks = sort_into_blocks(votes[0])
    at = KnownWins(blocks, votes[1][order].astype(float)).curvature(logits[order])
    back = np.argsort(order)
    return at.score[back], at.information.toarray()[np.ix_(back, back)]


@pytest.mark.parametrize("varies", [False, True])
def test_equal_leans_are_tested_by_the_squared_scores_of_annotators_beside_the_other_attribute(varies):
    votes, _ = pool(n=150, m=8, q=2, seed=1)
    _, _, annotator, delta, m = votes
    if varies:
        delta[:, 0] = np.random.default_rng(0).choice([-1.0, 1.0], len(delta))
    biases = fit_conditional(Votes(*votes))
    level = np.where(biases.absolute, biases.shared_bias, 0.0)
    assert level.any() == varies
    p_value = equal_bias_p_value(Votes(*votes), biases)
    for j in range(2):
        logits = biases.deviation[annotator, 1 - j] * delta[:, 1 - j] + level[j] * delta[:, j]
        score, covariance = moments(votes, logits)
        mine = np.eye(m)[annotator] * delta[:, [j]]
        variance = mine.T @ covariance @ mine
        mean, spread = np.trace(variance), (variance**2).sum()
        statistic = ((mine.T @ score) ** 2).sum()
        assert p_value[j] == pytest.approx(stats.chi2.sf(statistic * mean / spread, mean**2 / spread))


def test_classes_are_compared_by_the_analysis_of_variance_of_their_annotators():
    """Equal errors that are small beside the spread: the ordinary F test and the plain means of the classes."""
    random, of = np.random.default_rng(0), np.repeat([0, 1, 2, -1], [3, 4, 6, 2])
    votes, _ = pool(n=40, m=15, seed=2)
    biases = fit_conditional(Votes(*votes))
    value = random.standard_normal((15, 1))
    size = {"finite_se": np.full((15, 1), 0.01), "n_informative": np.full((15, 1), 9)}
    alike = replace(biases, finite_deviation=value, covariance=None, **size)
    found = class_offsets(alike, of)
    groups = [value[of == label, 0] for label in range(3)]
    means, kept = np.array([group.mean() for group in groups]), value[of >= 0, 0]
    assert found.n.ravel().tolist() == [3, 4, 6]
    np.testing.assert_allclose(found.offset[:, 0], means - kept.mean())
    assert found.p_value[0] == pytest.approx(stats.f_oneway(*groups).pvalue, rel=1e-3)
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / 10
    contrast = np.eye(3) - np.array([3, 4, 6]) / 13
    variance = np.diag(contrast @ np.diag(within / np.array([3, 4, 6])) @ contrast.T)
    reach = stats.t.ppf(0.975, 10) * np.sqrt(variance)
    np.testing.assert_allclose((found.ci_high - found.ci_low)[:, 0] / 2, reach, rtol=1e-3)


@pytest.mark.parametrize("sizes", [[4] * 10, [8] * 6, [2, 38]])
def test_classes_that_do_not_differ_are_seldom_said_to_and_one_that_does_is_found(sizes):
    random, of, rejected = np.random.default_rng(1), np.repeat(np.arange(len(sizes)), sizes), []
    votes, _ = pool(n=200, m=len(of), seed=2)
    biases = fit_conditional(Votes(*votes))
    for shift in np.repeat([0.0, 1.5], 200):
        se = random.uniform(0.15, 0.45, len(of))
        value = random.normal(shift * (of == 0), np.hypot(0.5, se))
        drawn = replace(biases, finite_deviation=value[:, None], finite_se=se[:, None], covariance=None)
        rejected.append(class_offsets(drawn, of).p_value[0] < 0.05)
    assert np.mean(rejected[:200]) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean(rejected[200:]) > 0.75


LONG_TAIL = Pool(900, 60, classes=(20, 20, 20), zipf=2.0)
MOST_BY_ONE = Pool(1500, 40, classes=(4,) * 10, busiest=0.6, cross_share=1.0)


@pytest.mark.parametrize("of_pool", [LONG_TAIL, MOST_BY_ONE])
def test_few_annotators_who_cast_most_votes_count_as_few(of_pool):
    of, rejected = np.repeat(np.arange(len(of_pool.classes)), of_pool.classes), []
    for seed in range(60):
        biases = fit_conditional(draw_votes(of_pool, np.random.default_rng([3, seed])).arrays)
        rejected.append(class_offsets(biases, of).p_value[0] < 0.05)
    assert np.mean(rejected) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 60)


def test_classes_that_differ_in_reliability_are_not_said_to_be_biased_but_one_that_is_biased_is_found():
    of, alike = np.repeat([0, 1], 15), Pool(900, 30, mean=0.0, spread=0.3, better=0.7, classes=(15, 15))
    shares = []
    for change in ({"class_care": 0.3}, {"class_gap": 1.0}):
        rejected = []
        for seed in range(16):
            votes = draw_votes(replace(alike, **change), np.random.default_rng([4, seed])).arrays
            merit = estimate_class_merit(votes._replace(annotator=of[votes.annotator], n_annotators=2))
            biases = fit_conditional(Votes(*votes))
            p_values = class_offsets(biases, of).p_value[0], class_offsets(biases, of, merit).p_value[0]
            rejected.append([p < 0.05 for p in p_values])
        shares.append(np.mean(rejected, axis=0))
    (if_equal, found), (_, power) = shares
    assert if_equal > 0.4 and found <= 0.13 and power > 0.6


def test_classes_that_judged_together_share_an_error():
    """Two classes that hardly meet: the error of the difference is that of the few votes between them."""
    random, of = np.random.default_rng(0), np.repeat([0, 1], 6)
    comparison = np.repeat(np.arange(400), 4)
    side = np.where(np.arange(400) < 30, -1, np.arange(400) % 2)[comparison]
    first = np.where(side < 0, 4 * (np.arange(1600) % 4 // 2), 6 * side)
    annotator = np.minimum(first + random.integers(6, size=1600), 11)
    votes = comparison, random.choice([-1, 1], 1600), annotator, np.ones((1600, 1)), 12
    biases = fit_conditional(Votes(*votes))
    apart = class_offsets(biases, of)
    as_if = class_offsets(replace(biases, covariance=None), of)
    assert np.ptp([apart.ci_low, apart.ci_high]) > 1.5 * np.ptp([as_if.ci_low, as_if.ci_high])


def test_tastes_by_prompt_are_no_difference_between_annotators():
    rejected = []
    for seed in range(60):
        *votes, prompt = tastes_by_prompt(seed)
        biases = fit_conditional(Votes(*votes), clusters=prompt)
        rejected.append(
            [equal_bias_p_value(Votes(*votes), biases, each)[0] < 0.05 for each in (prompt, None)]
        )
    clustered, plain = np.mean(rejected, axis=0)
    assert clustered <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60) and plain > 0.25


def test_classes_are_tested_with_one_annotator_beyond_them():
    biases = fit_conditional(Votes(*pool(n=200, m=3, votes=2, seed=1)[0]))
    found = [class_offsets(biases, of).p_value[0] for of in ([0, 0, 1], [0, 1, 2], [0, 0, 0])]
    assert 0 < found[0] < 1 and np.isnan(found[1:]).all()


def test_classes_in_groups_that_no_votes_compare_and_nothing_to_test_are_nan():
    comparison, annotator = np.repeat(np.arange(60), 2), np.tile(np.arange(4), 30)
    sign = np.where(np.arange(120) % 3, 1, -1) * np.tile([1, -1], 60)
    biases = fit_conditional(Votes(comparison, sign, annotator, np.ones((120, 1)), 4))
    apart, within = class_offsets(biases, [0, 0, 1, 1]), class_offsets(biases, [0, 1, 1, 0])
    assert np.isnan([apart.offset, apart.ci_low]).all() and np.isnan(apart.p_value).all()
    assert np.isfinite(within.offset).all() and 0 < within.p_value[0] <= 1
    votes = Votes(np.zeros(2, int), np.ones(2, int), np.arange(2), np.ones((2, 1)), 2)
    assert np.isnan(equal_bias_p_value(votes, fit_conditional(Votes(*votes)))).all()


@pytest.mark.parametrize("n", [400, 900])
@pytest.mark.parametrize("is_known", [True, False])
def test_biases_are_about_what_annotators_prefer_where_only_one_of_two_things_differs(n, is_known):
    """Twelve annotators, of whom four judge each comparison, and a feature that goes with the attribute."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        attribute, anywhere = rng.choice([-1.0, 0.0, 1.0], (2, n))
        feature = np.where(rng.random(n) < 0.7, attribute, anywhere)
        who = np.argsort(rng.random((n, 12)), axis=1)[:, :4]
        bias = np.where(is_known, attribute, feature)[:, None] * rng.normal(0, 0.9, 12)[who]
        sign = np.where(rng.logistic(size=(n, 4)) < bias + rng.normal(size=(n, 1)), 1, -1)
        delta, other = (np.repeat(side, 4) for side in (attribute, feature))
        votes = Votes(np.repeat(np.arange(n), 4), sign.ravel(), who.ravel(), delta[:, None], 12)
        found.append(other_feature_p(votes, other))
    assert (
        np.median(found) > 0.2 and min(found) > 0.005
        if is_known
        else np.mean(np.array(found) < 0.02) > 0.7
    )
    assert np.isnan(other_feature_p(Votes([0, 0], [1, 1], [0, 1], np.ones((2, 1)), 2), [1, 1]))
