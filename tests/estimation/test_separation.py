from __future__ import annotations

import numpy as np
import pytest

from badpo.estimation.conditional_likelihood import sorted_blocks
from badpo.estimation.fit import explained_by_receding, overlapping_annotators
from badpo.theory.identifiability import jointly_separated


def votes(seed: int, continuous: bool):
    """Some 12 votes each of 20 annotators on up to three attributes, as (annotator, sign, delta)."""
    rng = np.random.default_rng(seed)
    q, n = int(rng.integers(1, 4)), 240
    annotator = rng.integers(20, size=n)
    delta = rng.normal(size=(n, q)) if continuous else rng.choice([-1.0, 0.0, 1.0], size=(n, q))
    lean = rng.normal(size=(20, q))
    chance = 1 / (1 + np.exp(-(lean[annotator] * delta).sum(axis=1)))
    return annotator, np.where(rng.random(n) < chance, 1, -1), delta


@pytest.mark.parametrize("continuous", [False, True])
def test_no_separated_annotator_is_said_to_overlap_and_nearly_all_others_are(continuous):
    n_overlapping, n_missed = 0, 0
    for seed in range(30):
        annotator, sign, delta = votes(seed, continuous)
        differed = np.stack([np.bincount(annotator, x != 0, 20) > 0 for x in delta.T], axis=1)
        found = overlapping_annotators(annotator, sign[:, None] * delta, differed)
        separated = jointly_separated(annotator, sign, delta, 20)
        assert not (found & separated).any()
        n_overlapping += int((~separated).sum())
        n_missed += int((~separated & ~found).sum())
    assert n_missed < 0.02 * n_overlapping


def test_a_direction_along_which_a_loser_gains_is_none_of_recession():
    _, blocks = sorted_blocks([0, 0, 1, 1])
    won = np.array([True, False, True, False])
    assert explained_by_receding(np.array([1.0, 0, 0, 0]), won, blocks).tolist() == [True, True, False, False]
    assert not explained_by_receding(np.array([1.0, 0, 0, 1.0]), won, blocks).any()
    assert not explained_by_receding(np.zeros(4), won, blocks).any()


def test_votes_that_tie_at_the_border_remain():
    _, blocks = sorted_blocks([0] * 4)
    won = np.array([True, True, False, False])
    change = np.array([2.0, 1.0, 1.0, 0.0])
    assert explained_by_receding(change, won, blocks).tolist() == [True, False, False, True]
