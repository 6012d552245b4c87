import math

import numpy as np
import pytest
from scipy import stats

from badpo.theory import summaries


def test_three_seeds_use_the_papers_factor_and_one_run_has_no_interval():
    values = [0.962, 0.984, 0.931]
    interval, alone = summaries.t_interval(values), summaries.t_interval([0.5])
    assert interval.half_width == pytest.approx(4.303 * np.std(values, ddof=1) / math.sqrt(3), rel=1e-4)
    assert (interval.estimate, interval.n) == (pytest.approx(np.mean(values)), 3)
    assert alone.estimate == 0.5 and np.isnan([alone.low, alone.se]).all()


@pytest.mark.parametrize(
    ("low", "high", "excluded"),
    [(0.0, 1.0, False), (-1.0, 0.0, False), (0.1, 1.0, True), (np.nan, np.nan, False)],
)
def test_an_interval_holds_its_ends(low, high, excluded):
    assert summaries.Interval((low + high) / 2, 0.1, low, high, 3).excludes(0.0) == excluded


@pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 7), (7, 7), (520, 1000)])
def test_wilson_agrees_with_scipy(k, n):
    expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    interval = summaries.wilson_interval(k, n)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_log_odds_are_of_rates_and_a_share_of_nothing_is_not_known():
    assert summaries.log_odds_distance([0.5, 0.9], 0.5) == pytest.approx([0.0, math.log(9)])
    for rates in ((1.2, 0.5), (0.5, -0.1)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            summaries.log_odds_distance(*rates)
    np.testing.assert_array_equal(summaries.share_removed([0.5, 0.9], [0.6, 0.5], 0.5), [np.nan, 1.0])


REFERENCE = np.random.default_rng(1).uniform(0, 100, 500)


@pytest.mark.parametrize(
    "figure",
    [
        lambda x, length, prompt: summaries.cluster_mean(x, prompt),
        lambda x, length, prompt: summaries.cluster_difference(x, length > 20, prompt),
        lambda x, length, prompt: summaries.ratio_of_sums(x, length),
        # answers are short: the bins of long references are empty
        lambda x, length, prompt: summaries.length_matched_mean(x, length, REFERENCE),
    ],
    ids=["mean", "difference", "ratio", "length-matched"],
)
def test_errors_are_what_leaving_out_each_prompt_shows(figure):
    rng = np.random.default_rng(0)
    length, prompt = rng.uniform(5, 50, 600), np.repeat(np.arange(300), 2)
    x = rng.normal(size=600) + rng.normal(size=300)[prompt]
    if figure(x, length, prompt).n == 600:
        prompt = np.arange(600)
    n = prompt.max() + 1
    left = [figure(*(each[prompt != p] for each in (x, length, prompt))).estimate for p in range(n)]
    expected = np.sqrt((n - 1) / n * np.sum((np.array(left) - np.mean(left)) ** 2))
    assert figure(x, length, prompt).se == pytest.approx(expected, rel=0.02)


def test_estimates_by_hand_and_matched_to_lengths():
    assert summaries.ratio_of_sums([2.0, 9.0], [1.0, 3.0]).estimate == pytest.approx(11 / 4)
    assert math.isnan(summaries.ratio_of_sums([], []).estimate)
    gap = summaries.cluster_difference([1, 0, 1], [True, True, True])
    assert math.isnan(gap.estimate)
    gap = summaries.cluster_difference([1, 0, 1, 1], [True, True, False, False])
    assert gap.estimate == pytest.approx(-0.5)
    reference = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    found = summaries.length_matched_mean([1, 0, 1], [1, 1, 1], reference)
    assert found.estimate == pytest.approx(2 / 3)
    # bins of the reference: 1-2, 3-4, 5-6, 7-8, 9-10; the policy fills the first and the last
    found = summaries.length_matched_mean([1, 0, 0], [2, 2, 30], reference)
    assert found.estimate == pytest.approx(0.2 * 0.5 + 0.2 * 0 + 0.6 * (1 / 3))
    assert summaries.length_matched_mean(reference, reference, reference).estimate == pytest.approx(5.5)
