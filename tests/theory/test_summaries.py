from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from badpo.theory.summaries import (
    Interval,
    cluster_difference,
    cluster_mean,
    length_matched_mean,
    log_odds_distance,
    ratio_of_sums,
    share_removed,
    shift,
    t_interval,
    wilson_interval,
)


def test_three_seeds_use_the_papers_factor():
    values = [0.962, 0.984, 0.931]
    interval = t_interval(values)
    assert interval.half_width == pytest.approx(4.303 * np.std(values, ddof=1) / math.sqrt(3), rel=1e-4)
    assert interval.estimate == pytest.approx(np.mean(values))
    assert interval.n == 3


def test_one_run_has_a_mean_and_no_interval():
    interval = t_interval([0.5])
    assert interval.estimate == 0.5
    assert math.isnan(interval.low) and math.isnan(interval.se)
    assert not interval.excludes(0.0)
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


def test_share_removed_is_taken_per_seed():
    dpo, arm = np.array([0.96, 0.90]), np.array([0.50, 0.60])
    per_seed = share_removed(dpo, arm, 0.50)
    assert per_seed.tolist() == pytest.approx([1.0, 0.75])
    # the share of the means is another number
    assert per_seed.mean() != pytest.approx((dpo.mean() - arm.mean()) / (dpo.mean() - 0.50))


def test_a_shift_within_seed_noise_is_not_a_shift():
    """The paper's markdown rate: plus 0.035 against an interval of 0.053."""
    assert not shift([0.581, 0.595, 0.619], reference=0.563).excludes(0.0)
    assert shift([0.96, 0.95, 0.97], reference=0.5).excludes(0.0)


@pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 7), (7, 7), (520, 1000)])
def test_wilson_agrees_with_scipy(k, n):
    expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    interval = wilson_interval(k, n)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("rates", [(1.2, 0.5), (0.5, -0.1)])
def test_log_odds_are_of_rates(rates):
    assert log_odds_distance([0.5, 0.9], 0.5) == pytest.approx([0.0, math.log(9)])
    with pytest.raises(ValueError, match="between 0 and 1"):
        log_odds_distance(*rates)


def test_rows_that_are_copies_add_no_evidence():
    x = np.random.default_rng(0).integers(0, 2, 30)
    once = cluster_mean(x)
    copied = cluster_mean(np.repeat(x, 6), np.repeat(np.arange(30), 6))
    assert copied.se == pytest.approx(once.se)
    assert copied.n == once.n == 30
    assert cluster_mean(np.repeat(x, 6)).se < 0.5 * once.se


def test_without_clusters_the_mean_is_students():
    x = np.random.default_rng(1).normal(size=25)
    interval, expected = cluster_mean(x), t_interval(x)
    assert (interval.se, interval.low, interval.high) == pytest.approx(
        (expected.se, expected.low, expected.high)
    )


def test_the_gaps_interval_knows_that_prompts_are_shared():
    rng = np.random.default_rng(2)
    prompt = np.repeat(np.arange(40), 10)
    cross = np.tile([True, False], 200)
    difficulty = np.repeat(rng.normal(size=40), 10)
    correct = (difficulty + rng.normal(size=400) > 0).astype(float)
    gap = cluster_difference(correct, cross, prompt)
    assert gap.estimate == pytest.approx(correct[cross].mean() - correct[~cross].mean())
    # both sides of the gap share their prompts, so the prompts' spread cancels out of it
    assert gap.se < 0.8 * math.hypot(
        cluster_mean(correct[cross], prompt[cross]).se, cluster_mean(correct[~cross], prompt[~cross]).se
    )


def test_an_empty_side_has_no_gap():
    gap = cluster_difference([1, 0, 1], [True, True, True])
    assert math.isnan(gap.estimate) and not gap.excludes(0.0)


def test_a_ratio_of_sums_weighs_by_size_and_its_interval_covers():
    assert ratio_of_sums([2.0, 9.0], [1.0, 3.0]).estimate == pytest.approx(11 / 4)
    assert math.isnan(ratio_of_sums([], []).estimate)
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        tokens = rng.integers(20, 200, 60)
        nats = 0.03 * tokens + rng.normal(size=60) * np.sqrt(tokens)
        covered += not ratio_of_sums(nats, tokens).excludes(0.03)
    assert 0.92 <= covered / 400 <= 0.98


def test_a_policy_that_only_shortens_keeps_its_length_matched_mean():
    rng = np.random.default_rng(5)

    def chance(tokens):
        return 0.1 + 0.8 * (tokens > 100)

    reference = rng.integers(1, 200, 4000)
    shorter = rng.choice(reference, 4000, p=(200 - reference) / (200 - reference).sum())
    marked = rng.random(4000) < chance(shorter)
    matched = length_matched_mean(marked, shorter, reference, n_bins=10)
    assert marked.mean() < chance(reference).mean() - 0.1
    assert not matched.excludes(chance(reference).mean())
    assert 0.003 < matched.se < 0.02


def test_length_matched_mean_by_hand():
    reference = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert length_matched_mean([1, 0, 1], [1, 1, 1], reference).estimate == pytest.approx(2 / 3)
    # bins of the reference: 1-2, 3-4, 5-6, 7-8, 9-10; the policy fills the first and the last
    found = length_matched_mean([1, 0, 0], [2, 2, 30], reference)
    assert found.estimate == pytest.approx(0.2 * 0.5 + 0.2 * 0 + 0.6 * (1 / 3))
    assert length_matched_mean(reference, reference, reference).estimate == pytest.approx(5.5)
    with pytest.raises(ValueError, match="one length per answer"):
        length_matched_mean([1.0], [1, 2], reference)
    with pytest.raises(ValueError, match="no answers"):
        length_matched_mean([1.0], [1], [])


def test_labels_of_another_length_are_refused():
    with pytest.raises(ValueError, match="3 rows"):
        cluster_mean([1, 2, 3], clusters=[0, 1])


@pytest.mark.parametrize(
    ("low", "high", "excluded"), [(0.0, 1.0, False), (-1.0, 0.0, False), (0.1, 1.0, True)]
)
def test_an_interval_that_touches_a_value_does_not_exclude_it(low, high, excluded):
    assert Interval((low + high) / 2, 0.1, low, high, 3).excludes(0.0) == excluded


def test_a_bin_without_an_answer_adds_to_the_error_what_leaving_one_out_shows():
    rng = np.random.default_rng(0)
    values, lengths = rng.normal(size=300), rng.uniform(0, 50, 300)
    reference = rng.uniform(0, 100, 500)  # answers are short: the bins of long references are empty
    found = length_matched_mean(values, lengths, reference)
    left = np.array(
        [
            length_matched_mean(np.delete(values, i), np.delete(lengths, i), reference).estimate
            for i in range(300)
        ]
    )
    assert found.se == pytest.approx(np.sqrt(299 / 300 * ((left - left.mean()) ** 2).sum()), rel=0.02)
