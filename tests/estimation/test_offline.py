from __future__ import annotations

import math

import numpy as np
import pytest

from badpo.estimation.pool import offline_log_odds


def one(wins, clusters=None):
    """The estimate of 0/1 wins of a side that always stands as a."""
    sign = np.where(np.asarray(wins) > 0, 1, -1)
    (found,) = offline_log_odds(sign, np.ones((len(sign), 1)), np.ones((len(sign), 1)), clusters)
    return found


def test_hand_arithmetic():
    found = one([1] * 73 + [0] * 27)
    assert found.n_cross == 100
    assert found.carrier_wins == 0.73
    assert found.log_odds == pytest.approx(math.log(73 / 27))
    assert found.odds == pytest.approx(73 / 27)
    se = math.sqrt(1 / 73 + 1 / 27)
    assert found.se_naive == pytest.approx(se)
    assert found.interval(naive=True) == pytest.approx(
        (found.log_odds - 1.959964 * se, found.log_odds + 1.959964 * se), abs=1e-6
    )


def test_exchanging_the_sides_changes_nothing():
    rng = np.random.default_rng(0)
    sign = rng.choice([-1, 1], 200)
    delta = rng.choice([-1.0, 0.0, 1.0], (200, 3))
    assert offline_log_odds(sign, delta, delta != 0) == offline_log_odds(-sign, -delta, delta != 0)


def test_copied_judgments_widen_only_the_clustered_interval():
    wins, clusters = [1, 1, 0, 1, 0, 1, 1], list("abcdefg")
    once, many = one(wins, clusters), one(wins * 10, clusters * 10)
    assert many.se_clustered == pytest.approx(once.se_clustered)
    assert many.se_naive == pytest.approx(once.se_naive / math.sqrt(10))
    assert many.ci_high - many.ci_low == pytest.approx(once.ci_high - once.ci_low)
    n, p = 7, 5 / 7
    assert once.se_clustered == pytest.approx(math.sqrt(1 / (n * p * (1 - p))) * math.sqrt(n / (n - 1)))


def test_one_cluster_has_no_clustered_interval():
    found = one([1, 0, 1], ["p", "p", "p"])
    assert found.log_odds == pytest.approx(math.log(2))
    assert (found.se_clustered, found.ci_low, found.ci_high) == (None, None, None)
    assert None not in found.interval(naive=True)


@pytest.mark.parametrize(("wins", "toward"), [([1] * 6, 1), ([0] * 6, -1)])
def test_votes_that_all_go_one_way_have_a_bound_and_no_estimate(wins, toward):
    found = one(wins, list("aabbcc"))
    assert found.carrier_wins == wins[0]
    assert (found.log_odds, found.odds, found.se_naive) == (None, None, None)
    known, unknown = (0, 1) if toward > 0 else (1, 0)
    naive = found.interval(naive=True)
    assert found.interval()[unknown] is naive[unknown] is None
    share = 1 / (1 + math.exp(-toward * naive[known]))
    assert share**6 == pytest.approx(0.05)
    clustered = 1 / (1 + math.exp(-toward * found.interval()[known]))
    assert clustered**3 == pytest.approx(0.05)
    assert one(wins, ["p"] * 6).interval()[known] is None


def test_no_cross_group_judgment_and_no_judgment_at_all():
    found, _ = offline_log_odds([1, 1], np.zeros((2, 2)), np.zeros((2, 2)))
    assert (found.n_cross, found.carrier_wins, found.log_odds) == (0, None, None)
    (found,) = offline_log_odds([], np.zeros((0, 1)), np.zeros((0, 1)))
    assert found.n_cross == 0
    assert offline_log_odds([1], np.zeros((1, 0)), np.zeros((1, 0))) == ()
