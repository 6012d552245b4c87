"""Held-out votes predicted by the margin, and by the margin with theta."""

from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.readouts.heldout import heldout_accuracy, theta_rows_for, vote_accuracy, vote_difference
from tests.readouts.policies import judgments

PAIR = {"sign": [1, -1], "comparison": [0, 1], "annotator": [0, 0], "delta": [0, 0]}


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
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {"woman", "black", "any"}


def test_a_tie_predicts_nobody_and_what_never_differs_has_no_gap():
    assert heldout_accuracy([0.0, 0.0], judgments(**PAIR))["any"]["same"] == 0.0
    found = heldout_accuracy([1.0, 1.0], judgments(**PAIR))["woman"]
    assert (found["same"], found["cross"], found["gap"], found["gap_low"]) == (0.5, None, None, None)


def test_turning_comparisons_around_changes_nothing():
    rng = np.random.default_rng(0)
    sign, comparison = rng.choice([-1, 1], 60), np.repeat(np.arange(20), 3)
    delta, u = rng.integers(-1, 2, 20)[comparison], rng.normal(size=20)
    one = heldout_accuracy(u, judgments(sign, comparison, [0] * 60, delta))
    assert one == heldout_accuracy(-u, judgments(-sign, comparison, [0] * 60, -delta))


def test_gap_interval_counts_prompts_not_votes():
    """Every vote four times over in the same prompt is no new evidence; in new prompts it is."""
    rng = np.random.default_rng(1)
    sign, delta, u = rng.choice([-1, 1], 40), rng.integers(0, 2, 40), rng.normal(size=40)

    def width(n, prompts):
        given = np.tile(sign, n), np.arange(40 * n), [0] * 40 * n, np.tile(delta, n)
        found = heldout_accuracy(np.tile(u, n), judgments(*given, prompts=prompts))["woman"]
        return (found["gap_high"] - found["gap_low"]) / 2

    single = width(1, [f"p{i}" for i in range(40)])
    assert width(4, [f"p{i}" for i in range(40)] * 4) == pytest.approx(single)
    assert width(4, [f"p{i}" for i in range(160)]) < 0.55 * single


def test_a_continuous_attribute_differs_beyond_its_threshold():
    votes = judgments([1, 1], [0, 1], [0, 0], [0.2, -0.3], threshold=0.25)
    found = heldout_accuracy([-1.0, 1.0], votes)["woman"]
    assert (found["n_same"], found["n_cross"], found["same"], found["cross"]) == (1, 1, 0.0, 1.0)


def test_margins_must_fit_the_comparisons():
    with pytest.raises(ValueError, match="one margin per comparison"):
        heldout_accuracy([1.0], judgments(**PAIR))
    with pytest.raises(ValueError, match="comparison c1"):
        heldout_accuracy([1.0, np.nan], judgments(**PAIR))


# -- with theta --------------------------------------------------------------------------------------------------


def simulated(n=4000, classes=("A", "A", "B", "B")):
    """Votes on distinct comparisons by twelve annotators of two classes that lean in opposite ways."""
    rng = np.random.default_rng(0)
    planted = np.tile([[1.5, 0.5], [2.5, 0.0], [-1.5, 1.0], [-2.5, -0.5]], (3, 1))
    u, delta, annotator = rng.normal(0, 0.7, n), rng.integers(-1, 2, (n, 2)), rng.integers(0, 12, n)
    logits = u + (planted[annotator] * delta).sum(1)
    sign = np.where(rng.random(n) < 1 / (1 + np.exp(-logits)), 1, -1)
    names = ("woman", "black")
    votes = judgments(sign, np.arange(n), annotator, delta, classes=classes * 3, attributes=names)
    return u, planted, votes


def test_prediction_by_hand():
    votes = judgments([1, 1, -1, 1], [0, 0, 0, 1], [0, 1, 2, 0], [1, 1, 1, 0], classes="ABC")
    theta = np.array([[2.0], [-4.0], [-1.0]])
    found = vote_accuracy([-1.0, 5.0], theta, votes)["woman"]
    # logits: +(-1+2) = 1; +(-1-4) = -5; -(-1-1) = 2; the last does not differ
    assert (found["all"]["accuracy"], found["all"]["n"]) == (pytest.approx(2 / 3), 3)
    assert found["all"]["nll"] == pytest.approx(np.log1p(np.exp([-1.0, 5.0, -2.0])).mean())
    assert set(found) == {"all"}  # a class of one person is that person
    with pytest.raises(ValueError, match="not finite"):
        vote_accuracy([-1.0, 5.0], theta * np.nan, votes)


def test_classes_by_hand():
    classes, theta = ("A", "B") * 5, np.where(np.arange(10) % 2, -4.0, 2.0)[:, None]
    for last, told in ((0, {"all"}), (1, {"all", "A", "B"})):
        votes = judgments([1] * 10, range(10), range(10), [1] * 9 + [last], classes=classes)
        found = vote_accuracy([-1.0] * 10, theta, votes)["woman"]
        # a class of four is withheld, and the other with it
        assert set(found) == told
    assert [(found[c]["n"], found[c]["accuracy"]) for c in "AB"] == [(5, 1.0), (5, 0.0)]


def test_planted_theta_is_the_ceiling_and_pooled_is_chance_where_classes_oppose():
    u, planted, votes = simulated()
    pooled = vote_accuracy(u, np.tile(planted.mean(0), (12, 1)), votes)["woman"]["all"]
    ceiling = vote_accuracy(u, planted, votes)["woman"]
    assert ceiling["all"]["accuracy"] > max(0.8, pooled["accuracy"] + 0.15)
    assert ceiling["all"]["nll"] < pooled["nll"] - 0.2 and set(ceiling) == {"all", "A", "B"}


def test_paired_difference_is_the_difference_and_narrower_than_the_parts():
    u, planted, votes = simulated()
    learned = planted + np.random.default_rng(1).normal(0, 0.3, planted.shape)
    arm, ceiling = vote_accuracy(u, learned, votes), vote_accuracy(u, planted, votes)
    difference = vote_difference(u, learned, planted, votes)
    for attribute in ("woman", "black"):
        for name in ("all", "A", "B"):
            cell, one, other = (each[attribute][name] for each in (difference, arm, ceiling))
            assert cell["difference"] == pytest.approx(one["accuracy"] - other["accuracy"])
            assert cell["nll_difference"] == pytest.approx(one["nll"] - other["nll"])
            assert cell["se"] < 0.7 * other["se"] and cell["n"] == one["n"]
            assert cell["low"] < cell["difference"] < cell["high"]
    assert vote_difference(u, planted, planted, votes)["woman"]["all"]["se"] == 0


def test_annotators_without_a_class_count_among_all_alone():
    u, planted, votes = simulated(200, classes=("A", None, "A", None))
    found = vote_accuracy(u, planted, votes)["woman"]
    assert set(found) == {"all", "A"} and found["A"]["n"] < found["all"]["n"]
    nothing = vote_accuracy([1.0, 1.0], np.zeros((2, 1)), judgments(**PAIR))["woman"]
    assert nothing["all"]["accuracy"] is None


def test_theta_rows_follow_the_pseudonyms_and_strangers_get_the_pool_mean():
    votes = judgments(sign=[1], comparison=[0], annotator=[0], delta=[1], classes=("A", "A", "B"))
    theta = np.array([[4.0, np.nan], [2.0, 1.0]])
    rows = theta_rows_for(votes, ["ann_2", "ann_0"], theta)
    assert np.array_equal(rows, [[2, 1], [3, np.nan], [4, np.nan]], equal_nan=True)


def test_votes_on_one_prompt_are_one_piece_of_evidence():
    rng = np.random.default_rng(0)
    given = rng.choice([-1, 1], 40), np.arange(40), np.zeros(40, dtype=int), np.ones(40)
    once, often = (judgments(*(np.repeat(x, n) for x in given)) for n in (1, 5))
    u, none = np.ones(40), np.zeros((2, 1))
    one, five = (vote_accuracy(u, none, votes)["woman"]["all"] for votes in (once, often))
    assert five["n"] == 5 * one["n"] and five["se"] == pytest.approx(one["se"])
