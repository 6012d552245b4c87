"""The random plan gives the paper's published figures exactly."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from badpo.readouts import names
from badpo_paper.corpora.signed import draw_plan


@pytest.fixture(scope="module")
def plan():
    return draw_plan(7177, seed=0)


def carrier_log_odds(plan, attribute, rows, annotator_class=None):
    """Log-odds that the side with the attribute wins, when quality says nothing."""
    prefers_first = plan.labels(np.zeros(plan.n_pairs))[rows]
    wins = prefers_first == (plan.delta[rows, attribute] > 0)[:, None]
    if annotator_class is not None:
        wins = wins[plan.annotator_class[plan.annotators[rows]] == annotator_class]
    return np.log(wins.mean() / (1 - wins.mean()))


def test_pair_counts(plan):
    assert {kind: int((plan.kinds == kind).sum()) for kind in ("quality", "swap", "mixed")} == {
        "quality": 2887,
        "swap": 1462,
        "mixed": 2828,
    }


def test_realised_class_means(plan):
    means = {c: plan.theta[plan.annotator_class == c].mean(axis=0).round(2).tolist() for c in "ABC"}
    assert means == {"A": [0.98, 2.62], "B": [1.12, -0.34], "C": [0.89, 1.11]}
    assert plan.theta.mean(axis=0).round(2).tolist() == [1.0, 1.13]


def test_cross_group_shares(plan):
    differs = plan.delta != 0
    assert (100 * differs.mean(axis=0)).round(1).tolist() == [36.4, 36.4]
    assert round(100 * differs.any(axis=1).mean(), 1) == 59.8


@pytest.mark.parametrize(
    ("attribute", "pooled", "by_class"), [(0, 0.95, [1.01, 0.97, 0.86]), (1, 0.70, [2.30, -0.37, 0.88])]
)
def test_swap_log_odds(plan, attribute, pooled, by_class):
    swap = (plan.kinds == "swap") & (plan.delta[:, attribute] != 0)
    assert round(carrier_log_odds(plan, attribute, swap), 2) == pooled
    assert [round(carrier_log_odds(plan, attribute, swap, c), 2) for c in "ABC"] == by_class


def test_judgments_per_annotator(plan):
    counts = np.bincount(plan.annotators.ravel(), minlength=60)
    assert (counts.min(), counts.max(), counts.sum()) == (429, 548, 28708)


def test_delta_is_that_of_the_names(plan):
    def vector(first):
        return (names.name_of(first).woman, names.name_of(first).black) if first else (0, 0)

    expected = [
        np.subtract(vector(a), vector(b)) for a, b in zip(plan.names_first, plan.names_second, strict=True)
    ]
    np.testing.assert_array_equal(plan.delta, expected)


def test_what_each_kind_of_pair_varies(plan):
    n_differing = np.abs(plan.delta).sum(axis=1)
    assert (n_differing[plan.kinds == "quality"] == 0).all()
    assert (n_differing[plan.kinds == "swap"] == 1).all()
    assert (n_differing[plan.kinds == "mixed"] >= 1).all()
    assert (plan.names_first == plan.names_second)[plan.kinds == "quality"].all()
    assert abs((plan.names_first == "")[plan.kinds == "quality"].mean() - 0.5) < 0.03
    assert ((plan.swap_source != "") == (plan.kinds == "swap")).all()
    assert ((plan.surnames == "") == (plan.names_first == "")).all()


def test_the_plan_is_a_function_of_its_arguments():
    first, again, other = draw_plan(50, seed=3), draw_plan(50, seed=3), draw_plan(50, seed=4)
    for part in fields(first):
        np.testing.assert_array_equal(getattr(first, part.name), getattr(again, part.name))
    assert not np.array_equal(first.uniforms, other.uniforms)


def test_a_longer_plan_begins_with_the_shorter_one():
    short, long = draw_plan(40, seed=0), draw_plan(90, seed=0)
    np.testing.assert_array_equal(short.uniforms, long.uniforms[:40])
    np.testing.assert_array_equal(short.names_first, long.names_first[:40])


def test_labels_follow_the_likelihood_on_one_pair():
    plan = draw_plan(30, seed=0)
    quality = np.linspace(-2, 2, 30)
    pair = int(np.flatnonzero(plan.kinds == "mixed")[0])
    lean = plan.theta[plan.annotators[pair]] @ plan.delta[pair]
    expected = plan.uniforms[pair] < 1 / (1 + np.exp(-(quality[pair] + lean)))
    np.testing.assert_array_equal(plan.labels(quality)[pair], expected)


def test_quality_says_nothing_on_swap_pairs(plan):
    swap = plan.kinds == "swap"
    high = plan.labels(np.full(plan.n_pairs, 50.0))
    np.testing.assert_array_equal(high[swap], plan.labels(np.zeros(plan.n_pairs))[swap])
    assert high[~swap].all()


def test_labels_refuse_another_number_of_pairs():
    with pytest.raises(ValueError, match="the plan covers 5 pairs"):
        draw_plan(5).labels(np.zeros(4))
