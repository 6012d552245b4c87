from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.readouts.heldout import heldout_accuracy, theta_rows_for, vote_accuracy, vote_difference
from tests.readouts.policies import judgments


def simulated(n=4000, seed=0, classes=("A", "A", "B", "B")):
    """Votes on distinct comparisons by twelve annotators of two classes that lean in opposite ways."""
    rng = np.random.default_rng(seed)
    planted = np.tile([[1.5, 0.5], [2.5, 0.0], [-1.5, 1.0], [-2.5, -0.5]], (3, 1))
    classes = classes * 3
    u, delta, annotator = rng.normal(0, 0.7, n), rng.integers(-1, 2, (n, 2)), rng.integers(0, 12, n)
    logits = u + (planted[annotator] * delta).sum(1)
    sign = np.where(rng.random(n) < 1 / (1 + np.exp(-logits)), 1, -1)
    votes = judgments(sign, np.arange(n), annotator, delta, classes=classes, attributes=("woman", "black"))
    return u, planted, votes


def test_prediction_by_hand():
    votes = judgments(
        sign=[1, 1, -1, 1],
        comparison=[0, 0, 0, 1],
        annotator=[0, 1, -1, 0],
        delta=[1, 1, 1, 0],
        classes=("A", "B"),
    )
    found = vote_accuracy([-1.0, 5.0], [[2.0], [-4.0]], votes)["woman"]
    # logits: +(-1+2) = 1; +(-1-4) = -5; -(-1 + mean -1) = 2; the last does not differ
    assert (found["all"]["accuracy"], found["all"]["n"]) == (pytest.approx(2 / 3), 3)
    assert found["all"]["nll"] == pytest.approx(np.log1p(np.exp([-1.0, 5.0, -2.0])).mean())
    assert set(found) == {"all"}  # a class of one person is that person


def test_classes_by_hand():
    n = 10
    votes = judgments(
        sign=[1] * n, comparison=range(n), annotator=range(n), delta=[1] * 9 + [0], classes=("A", "B") * 5
    )
    theta = np.where(np.arange(n) % 2, -4.0, 2.0)[:, None]
    assert set(vote_accuracy([-1.0] * n, theta, votes)["woman"]) == {"all"}  # four of B differ
    votes = judgments(
        sign=[1] * n, comparison=range(n), annotator=range(n), delta=[1] * n, classes=("A", "B") * 5
    )
    found = vote_accuracy([-1.0] * n, theta, votes)["woman"]
    assert (found["A"]["n"], found["B"]["n"]) == (5, 5)
    assert (found["A"]["accuracy"], found["B"]["accuracy"]) == (1.0, 0.0)


def test_without_a_bias_term_it_is_the_cross_group_accuracy():
    u, _, votes = simulated(500)
    plain = vote_accuracy(u, None, votes)
    assert plain["black"]["all"]["accuracy"] == heldout_accuracy(u, votes)["black"]["cross"]
    assert vote_accuracy(u, np.zeros((12, 2)), votes) == plain


def test_planted_theta_is_the_ceiling_and_pooled_is_chance_where_classes_oppose():
    u, planted, votes = simulated()
    ceiling, pooled = (
        vote_accuracy(u, planted, votes),
        vote_accuracy(u, np.tile(planted.mean(0), (12, 1)), votes),
    )
    assert ceiling["woman"]["all"]["accuracy"] > 0.8
    assert ceiling["woman"]["all"]["accuracy"] > pooled["woman"]["all"]["accuracy"] + 0.15
    assert ceiling["woman"]["all"]["nll"] < pooled["woman"]["all"]["nll"] - 0.2
    assert set(ceiling["woman"]) == {"all", "A", "B"}


def test_paired_difference_is_the_difference_and_narrower_than_the_parts():
    u, planted, votes = simulated()
    learned = planted + np.random.default_rng(1).normal(0, 0.3, planted.shape)
    arm, ceiling = vote_accuracy(u, learned, votes), vote_accuracy(u, planted, votes)
    difference = vote_difference(u, learned, planted, votes)
    for attribute in ("woman", "black"):
        for name in ("all", "A", "B"):
            cell = difference[attribute][name]
            one, other = arm[attribute][name], ceiling[attribute][name]
            assert cell["difference"] == pytest.approx(one["accuracy"] - other["accuracy"])
            assert cell["nll_difference"] == pytest.approx(one["nll"] - other["nll"])
            assert cell["se"] < 0.7 * other["se"] and cell["n"] == one["n"]
            assert cell["low"] < cell["difference"] < cell["high"]
    assert set(difference["woman"]["all"]) == {"difference", "se", "low", "high", "n", "nll_difference"}
    assert vote_difference(u, planted, planted, votes)["woman"]["all"]["se"] == 0


def test_tilting_the_margins_against_theta_changes_no_prediction():
    u, planted, votes = simulated(300)
    c = np.array([0.7, -1.2])
    moved = vote_accuracy(u + votes.delta @ c, planted - c, votes)
    still = vote_accuracy(u, planted, votes)
    assert moved["woman"]["all"]["nll"] == pytest.approx(still["woman"]["all"]["nll"])


def test_json_shape_and_annotators_without_a_class():
    u, planted, votes = simulated(200, classes=("A", None, "A", None))
    written = json.loads(json.dumps(vote_accuracy(u, planted, votes), allow_nan=False))
    assert set(written["woman"]) == {"all", "A"}
    assert set(written["woman"]["A"]) == {"accuracy", "n", "se", "nll"}
    assert written["woman"]["A"]["n"] < written["woman"]["all"]["n"]
    nobody = judgments(sign=[1], comparison=[0], annotator=[0], delta=[0])
    assert vote_accuracy([1.0], None, nobody)["woman"]["all"]["accuracy"] is None


def test_theta_rows_follow_the_pseudonyms_and_strangers_get_the_pool_mean():
    votes = judgments(sign=[1], comparison=[0], annotator=[0], delta=[1], classes=("A", "A", "B"))
    rows = theta_rows_for(votes, ["ann_2", "ann_0"], [[4.0], [2.0]])
    assert rows.tolist() == [[2.0], [3.0], [4.0]]
    with pytest.raises(ValueError, match="one row of theta per pseudonym"):
        theta_rows_for(votes, ["ann_2"], [[4.0], [2.0]])


def test_theta_must_fit_the_annotators():
    u, planted, votes = simulated(50)
    with pytest.raises(ValueError, match="one row per annotator"):
        vote_accuracy(u, planted[:3], votes)
    with pytest.raises(ValueError, match="not finite"):
        vote_accuracy(u, np.full((12, 2), np.nan), votes)


def test_votes_on_one_prompt_are_one_piece_of_evidence():
    rng = np.random.default_rng(0)
    sign, delta = rng.choice([-1, 1], 40), np.ones(40)
    once = judgments(sign, np.arange(40), np.zeros(40, dtype=int), delta)
    often = judgments(*(np.repeat(x, 5) for x in (sign, np.arange(40), np.zeros(40, dtype=int), delta)))
    widths = [vote_accuracy(np.ones(40), None, votes)["woman"]["all"] for votes in (once, often)]
    assert widths[1]["n"] == 5 * widths[0]["n"]
    assert widths[1]["se"] == pytest.approx(widths[0]["se"])
