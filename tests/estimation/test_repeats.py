"""Repeated votes of one annotator."""

from __future__ import annotations

import numpy as np

from badpo.estimation.significance import first_votes, self_contradictions


def test_first_votes_do_not_depend_on_labels():
    comparison = np.array([900, 3, 900, 900, 3])
    annotator = np.array([7, 7, 7, 2, 7])
    assert first_votes(comparison, annotator).tolist() == [True, True, False, True, False]
    assert first_votes([], []).shape == (0,)


def test_contradictions_are_counted_by_annotator():
    found = self_contradictions(
        comparison=[0, 0, 0, 1, 1, 2, 2, 2],
        sign=[1, -1, 1, 1, 1, 1, 1, -1],
        annotator=[0, 0, 1, 0, 0, 1, 1, 1],
        n_annotators=3,
    )
    assert found.n_repeated.tolist() == [2, 1, 0]
    assert found.n_contradicted.tolist() == [1, 1, 0]
    assert found.share == 2 / 3
    assert np.isnan(self_contradictions([0], [1], [0], 1).share)
