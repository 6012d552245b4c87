"""Learned theta beside the planted one."""

from __future__ import annotations

import numpy as np
import pytest

from badpo_paper.corpora.signed import draw_plan
from badpo_paper.measure import centered_offsets, theta_agreement

PLAN = draw_plan(7177, seed=0)
ATTRIBUTES = ("woman", "black")


def test_the_truth_beside_itself_has_the_published_class_means_and_offsets():
    found = theta_agreement(PLAN.theta, PLAN.theta, ATTRIBUTES, PLAN.annotator_class.tolist())["black"]
    assert found.correlation == pytest.approx(1.0)
    assert [round(found.classes[name].mean, 2) for name in "ABC"] == [2.62, -0.34, 1.11]
    assert [round(found.classes[name].offset, 2) for name in "ABC"] == [1.49, -1.47, -0.02]


def test_a_shift_changes_the_level_and_nothing_else():
    classes = PLAN.annotator_class.tolist()
    before, after = (
        theta_agreement(theta, PLAN.theta, ATTRIBUTES, classes)["black"]
        for theta in (0.6 * PLAN.theta, 0.6 * PLAN.theta - 3.0)
    )
    assert after.level == pytest.approx(before.level - 3.0)
    assert after.correlation == pytest.approx(before.correlation) == pytest.approx(1.0)
    assert after.classes["B"].offset == pytest.approx(before.classes["B"].offset)
    assert before.classes["B"].offset == pytest.approx(0.6 * before.classes["B"].planted_offset)


def test_one_pooled_value_has_no_correlation():
    pooled = np.full((60, 2), 0.7) + 1e-17
    found = theta_agreement(pooled, PLAN.theta, ATTRIBUTES, [None] * 60)["woman"]
    assert found.to_json()["correlation"] is None and found.classes == {}


def test_offsets_weigh_classes_by_their_annotators():
    found = centered_offsets({"A": 3.0, "B": 0.0}, {"A": 1, "B": 2})
    assert found == {"A": 2.0, "B": -1.0}


@pytest.mark.parametrize(
    ("theta", "match"), [(np.zeros((59, 2)), "got \\(59, 2\\)"), (np.full((60, 2), np.nan), "not finite")]
)
def test_what_does_not_fit_is_an_error(theta, match):
    with pytest.raises(ValueError, match=match):
        theta_agreement(theta, PLAN.theta, ATTRIBUTES, [None] * 60)
