"""DPO's shift in units of its spread over seeds."""

from __future__ import annotations

import math

import pytest

from badpo_paper.tables import amplification


def test_against_a_plain_computation():
    seeds = [0.55, 0.58, 0.61]
    found = amplification(seeds, 0.5)
    sd = math.sqrt(sum((x - 0.58) ** 2 for x in seeds) / 2)
    assert found.seed_sd == pytest.approx(sd) and found.in_seed_sds == pytest.approx(0.08 / sd)
    half = 4.302653 * sd / math.sqrt(3)
    assert (found.shift.low, found.shift.high) == pytest.approx((0.08 - half, 0.08 + half))


def test_one_seed_has_a_shift_and_no_unit():
    assert amplification([0.6], 0.5).to_json() == {
        "shift": pytest.approx(0.1),
        "low": None,
        "high": None,
        "seed_sd": None,
        "in_seed_sds": None,
        "n": 1,
    }


def test_seeds_that_agree_exactly_are_infinitely_far():
    assert amplification([0.5, 0.5], 0.25).in_seed_sds == math.inf
    assert math.isnan(amplification([0.5, 0.5], 0.5).in_seed_sds)
