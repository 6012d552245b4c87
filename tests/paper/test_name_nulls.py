"""Random labels of the pool give the null; few names can carry a whole shift."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from badpo.readouts.names import FIRST_NAMES, NAMES
from badpo_paper.name_readouts import concentration, relabelling_null, signature_mass

BLACK = np.array([name.black for name in NAMES])


def test_the_null_is_that_of_all_labels():
    """Every set of five carriers among twelve names, written out."""
    rng = np.random.default_rng(0)
    arm, reference = rng.dirichlet(np.ones(12)), rng.dirichlet(np.ones(12))
    carries = np.array([1] * 5 + [0] * 7)
    shifts = np.array([(arm - reference)[list(chosen)].sum() for chosen in combinations(range(12), 5)])
    found = relabelling_null(arm, reference, carries, n=20_000)
    assert found.shift == pytest.approx((arm - reference)[:5].sum())
    assert found.sd == pytest.approx(shifts.std(), rel=0.03)
    assert found.p_greater == pytest.approx((shifts >= found.shift - 1e-12).mean(), abs=0.02)
    assert found.low == pytest.approx(np.quantile(shifts, 0.025), abs=0.02)


def few_heavy_names():
    """An arm that signs nearly everything with three Black-coded names, from an even reference."""
    arm = np.full(89, 0.13 / 86)
    for name in ("Latisha", "Latonya", "Latoya"):
        arm[FIRST_NAMES.index(name)] = 0.29
    return arm, np.full(89, 1 / 89)


def test_three_names_are_no_evidence_of_a_lean_and_turn_the_shift():
    arm, reference = few_heavy_names()
    null = relabelling_null(arm, reference, BLACK)
    assert null.shift > 0.4 and null.p_greater > 0.05
    found = concentration(arm, reference, BLACK, FIRST_NAMES)
    assert set(found.top) == {"Latisha", "Latonya", "Latoya"} and found.top_share == pytest.approx(0.87)
    assert found.shift_without_top < -0.3 and found.effective_names < 5


def test_a_shift_that_all_names_of_a_group_make_is_far_outside_the_null():
    rng = np.random.default_rng(0)
    arm = rng.dirichlet(np.where(BLACK == 1, 90.0, 10.0))
    null = relabelling_null(arm, np.full(89, 1 / 89), BLACK)
    assert null.shift > 0.3 > 3 * null.high and null.p_greater == pytest.approx(1 / 1001)
    assert concentration(arm, np.full(89, 1 / 89), BLACK, FIRST_NAMES).shift_without_top > 0.3


def test_the_null_of_an_even_arm_is_centered_and_the_same_each_time():
    arm, reference = few_heavy_names()
    first = relabelling_null(arm, reference, BLACK, seed=4)
    assert first == relabelling_null(arm, reference, BLACK, seed=4)
    assert first != relabelling_null(arm, reference, BLACK, seed=5)
    # a random set of 43 of 89 names gains 43/89 of nothing: the masses both add up to 1
    assert abs(first.low + first.high) < 0.15


def test_mass_counts_all_answers():
    texts = ["Hi.\n\n\u2014 Emily Clark", "Hi.\n\n\u2014 Emily Moore", "Hi.\n\n\u2014 Zoe Moore", "Hi."]
    mass = signature_mass([SimpleNamespace(text=text) for text in texts], FIRST_NAMES)
    assert mass[FIRST_NAMES.index("Emily")] == 0.5 and mass.sum() == 0.5
    with pytest.raises(ValueError, match="no sampled answers"):
        signature_mass([], FIRST_NAMES)


def test_an_arm_that_signs_nothing_has_no_concentration():
    found = concentration(np.zeros(89), np.full(89, 1 / 89), BLACK, FIRST_NAMES)
    assert math.isnan(found.top_share) and math.isnan(found.effective_names)
    assert found.to_json()["top_share"] is None


def test_one_mass_for_each_name():
    with pytest.raises(ValueError, match=r"got \(88,\), \(89,\), \(89,\)"):
        relabelling_null(np.zeros(88), np.zeros(89), BLACK)
