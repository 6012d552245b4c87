"""The arms are data, and each can be trained."""

from __future__ import annotations

import dataclasses

import pytest

from badpo.objective.bias import VARIANTS
from badpo_paper.arms import ARMS, Arm


def test_the_arms_are_these():
    assert set(ARMS) == {
        "reference",
        "dpo",
        "pooled",
        "per_annotator",
        "shared_mean",
        "class",
        "shuffled_ids",
        "pooled_warm",
        "shared_mean_warm",
        "declared_subset",
        "rdpo",
        "rdpo_strong",
        "rdpo_words",
        "length_pooled",
        "sampo",
        "ld_dpo",
        "group_dro",
        "group_dro_annotators",
        "group_dro_parts",
        "reliability",
        "spectral",
        "em_dpo",
        "ipo",
        "ipo_pooled",
    }


def test_no_two_arms_are_the_same():
    arms = list(ARMS.values())
    assert not any(arm == other for i, arm in enumerate(arms) for other in arms[:i])


@pytest.mark.parametrize("name", sorted(set(ARMS) - {"reference"}))
def test_an_arms_bias_is_a_variant(name):
    assert ARMS[name].bias in VARIANTS
    assert not (ARMS[name].bias == "none" and ARMS[name].warm_start == "offline")


def test_the_reference_is_not_trained():
    assert ARMS["reference"] == Arm(bias=None)


def test_an_arm_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ARMS["dpo"].bias = "pooled"
