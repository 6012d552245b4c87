"""Annotators who part as groups: nobody's votes all go one way, and still no finite estimate joins the groups."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.alternative_estimators import fit_joint
from badpo.estimation.fit import fit_conditional


def two_groups() -> tuple[np.ndarray, ...]:
    """Annotators 0, 1 disagree both ways, so do 2, 3; whenever the groups meet, 0 or 1 wins. All sides differ."""
    meetings = [(0, 1)] * 3 + [(1, 0)] * 2 + [(2, 3)] * 4 + [(3, 2)] * 2 + [(0, 2), (1, 3), (0, 3), (1, 2)]
    comparison = np.repeat(np.arange(len(meetings)), 2)
    return comparison, np.tile([1, -1], len(meetings)), np.ravel(meetings), np.ones((len(comparison), 1))


@pytest.mark.parametrize("fit", [fit_conditional, fit_joint])
def test_groups_that_part_are_components_with_finite_leans(fit):
    leans = fit(*two_groups(), 4, min_informative=1)
    assert leans.status.ravel().tolist() == ["ok"] * 4
    component = leans.component.ravel()
    assert component[0] == component[1] != component[2] == component[3]
    assert (np.abs(leans.deviation) < 1).all()
    assert (leans.se < 2).all()


def test_the_pairs_within_a_group_decide_its_estimate():
    comparison, sign, annotator, delta = two_groups()
    leans = fit_conditional(comparison, sign, annotator, delta, 4, min_informative=1)
    expected = np.array([np.log(3 / 2), -np.log(3 / 2), np.log(2), -np.log(2)]) / 2
    np.testing.assert_allclose(leans.deviation.ravel(), expected, atol=1e-6)


def test_an_annotator_between_two_groups_is_not_estimated():
    """1 loses to 0 and wins against 2, always; 0 and 2 meet others of their own kind."""
    meetings = [(0, 3), (3, 0), (2, 4), (4, 2), (0, 1), (1, 2), (3, 1), (1, 4)]
    comparison = np.repeat(np.arange(len(meetings)), 2)
    votes = comparison, np.tile([1, -1], len(meetings)), np.ravel(meetings), np.ones((len(comparison), 1))
    leans = fit_conditional(*votes, 5, min_informative=1)
    assert leans.status[1, 0] == "no_information"
    assert np.isfinite(leans.deviation[[0, 2, 3, 4], 0]).all()
