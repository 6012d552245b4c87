from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.data.attributes import Length
from badpo.data.judgments import Judgments
from badpo.readouts.heldout import heldout_accuracy
from tests import tiny
from tests.readouts.policies import judgments


def test_accuracies_and_gap_by_hand():
    """Comparison 0 differs on woman only, 1 on black only, 2 on nothing; three votes on the first."""
    votes = judgments(
        sign=[1, 1, -1, 1, -1, 1],
        comparison=[0, 0, 0, 1, 2, 2],
        annotator=[0, 1, 0, 0, 1, 0],
        delta=[[1, 0], [1, 0], [1, 0], [0, -1], [0, 0], [0, 0]],
        attributes=("woman", "black"),
    )
    found = heldout_accuracy([0.3, -0.2, 0.1], votes)
    # correct: 1 1 0 | 0 | 0 1
    woman, black = found["woman"], found["black"]
    assert (woman["cross"], woman["same"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert woman["gap"] == pytest.approx(1 / 3)
    assert (woman["n_cross"], woman["n_same"], black["n_cross"], black["n_same"]) == (3, 3, 1, 5)
    assert black["cross"] == 0.0 and found["any"]["cross"] == pytest.approx(2 / 4)
    assert found["any"]["gap"] == pytest.approx(0.0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found and set(found) == {"woman", "black", "any"}
    assert set(found["any"]) == {"same", "cross", "gap", "n_same", "n_cross", "gap_low", "gap_high"}


def test_a_tie_predicts_nobody():
    votes = judgments(sign=[1, -1], comparison=[0, 1], annotator=[0, 0], delta=[0, 0])
    assert heldout_accuracy([0.0, 0.0], votes)["any"]["same"] == 0.0


def test_turning_comparisons_around_changes_nothing():
    rng = np.random.default_rng(0)
    sign, comparison = rng.choice([-1, 1], 60), np.repeat(np.arange(20), 3)
    delta, u = rng.integers(-1, 2, 20)[comparison], rng.normal(size=20)
    one = heldout_accuracy(u, judgments(sign, comparison, [0] * 60, delta))
    turned = heldout_accuracy(-u, judgments(-sign, comparison, [0] * 60, -delta))
    assert one == turned


def test_gap_interval_counts_prompts_not_votes():
    """Every vote four times over in the same prompt is no new evidence; in new prompts it is."""
    rng = np.random.default_rng(1)
    sign, delta, u = rng.choice([-1, 1], 40), rng.integers(0, 2, 40), rng.normal(size=40)

    def width(copies, prompts):
        votes = judgments(
            np.tile(sign, copies),
            np.arange(40 * copies),
            [0] * 40 * copies,
            np.tile(delta, copies),
            prompts=prompts,
        )
        found = heldout_accuracy(np.tile(u, copies), votes)["woman"]
        return (found["gap_high"] - found["gap_low"]) / 2

    single = width(1, [f"p{i}" for i in range(40)])
    assert width(4, [f"p{i}" for i in range(40)] * 4) == pytest.approx(single)
    assert width(4, [f"p{i}" for i in range(160)]) < 0.55 * single


def test_a_continuous_attribute_differs_beyond_its_threshold():
    votes = judgments(sign=[1, 1], comparison=[0, 1], annotator=[0, 0], delta=[0.2, -0.3], threshold=0.25)
    found = heldout_accuracy([-1.0, 1.0], votes)["woman"]
    assert (found["n_same"], found["n_cross"], found["same"], found["cross"]) == (1, 1, 0.0, 1.0)


def test_votes_read_from_a_table():
    """u in the direction of the longer text predicts votes that lean to it, and nothing else."""
    votes = Judgments.read(tiny.votes(400), attributes=[Length(ratio=1.5)])
    texts = votes.comparisons
    words = texts["response_a"].str.split().str.len() - texts["response_b"].str.split().str.len()
    found = heldout_accuracy(words.to_numpy(dtype=float), votes)["length"]
    assert found["n_same"] + found["n_cross"] == votes.n_votes
    assert found["gap_low"] > 0.5
    assert found["same"] == 0.0, "equal lengths give a margin of 0, which predicts nobody"


def test_attribute_that_never_differs_has_no_gap():
    votes = judgments(sign=[1, -1], comparison=[0, 1], annotator=[0, 0], delta=[0, 0])
    written = heldout_accuracy([1.0, 1.0], votes)["woman"]
    assert (written["same"], written["cross"], written["gap"], written["gap_low"]) == (0.5, None, None, None)


def test_margins_must_fit_the_comparisons():
    votes = judgments(sign=[1, -1], comparison=[0, 1], annotator=[0, 0], delta=[0, 0])
    with pytest.raises(ValueError, match="one margin per comparison"):
        heldout_accuracy([1.0], votes)
    with pytest.raises(ValueError, match="comparison c1"):
        heldout_accuracy([1.0, np.nan], votes)
