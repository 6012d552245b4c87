"""The signed corpus is what its plan says, on any scored pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.data.problems import DataError
from badpo.readouts.names import strip_signature
from badpo_paper.corpora import bundled, signed


@pytest.fixture(scope="module")
def pairs():
    return bundled.scored_pairs(600)


@pytest.fixture(scope="module")
def corpus(pairs):
    return signed.build(pairs, seed=0)


def test_delta_read_from_the_texts_is_the_planned_one(corpus):
    votes = corpus.judgments.votes
    np.testing.assert_array_equal(corpus.judgments.delta, corpus.plan.delta[votes["comparison"]])


def test_votes_are_the_planned_ones(corpus):
    votes = corpus.judgments.votes
    prefers_first = corpus.plan.labels(corpus.quality).ravel()
    np.testing.assert_array_equal(votes["sign"].to_numpy(), np.where(prefers_first, 1, -1))
    np.testing.assert_array_equal(votes["comparison"].to_numpy(), np.repeat(np.arange(600), 4))


def test_planted_values_belong_to_their_annotators(corpus):
    plan, votes = corpus.plan, corpus.judgments.votes
    np.testing.assert_array_equal(
        corpus.planted_theta[votes["annotator"]], plan.theta[plan.annotators.ravel()]
    )
    classes = corpus.judgments.annotators["annotator_class"].to_numpy()
    np.testing.assert_array_equal(classes[votes["annotator"]], plan.annotator_class[plan.annotators.ravel()])


def test_texts_of_each_kind(pairs, corpus):
    comparisons = corpus.judgments.comparisons
    first = comparisons["response_a"].map(strip_signature).to_numpy()
    second = comparisons["response_b"].map(strip_signature).to_numpy()
    swap = corpus.kinds == "swap"
    np.testing.assert_array_equal(first[~swap], pairs["chosen"].to_numpy()[~swap])
    np.testing.assert_array_equal(second[~swap], pairs["rejected"].to_numpy()[~swap])
    doubled = np.where(corpus.plan.swap_source == "chosen", pairs["chosen"], pairs["rejected"])
    np.testing.assert_array_equal(first[swap], doubled[swap])
    np.testing.assert_array_equal(second[swap], doubled[swap])
    assert (comparisons["response_a"] != comparisons["response_b"])[swap].all()


def test_quality_is_half_the_score_difference_but_zero_on_swap_pairs(pairs, corpus):
    expected = 0.5 * (pairs["score_chosen"] - pairs["score_rejected"])
    swap = corpus.kinds == "swap"
    np.testing.assert_allclose(corpus.quality[~swap], expected[~swap])
    assert (corpus.quality[swap] == 0).all()


def test_short_responses_are_left_out_and_counted(pairs):
    with_short = pairs.copy()
    with_short.loc[[3, 8], "rejected"] = "No idea at all"
    corpus = signed.build(with_short, seed=0)
    assert corpus.dropped.to_dict("records") == [{"reason": "a response has fewer than 5 words", "n": 2}]
    assert corpus.judgments.n_comparisons == corpus.plan.n_pairs == 598


def test_pairs_that_share_a_prompt_stay_apart(pairs):
    shared = pairs.assign(prompt="How do I cook?", prompt_id="p")
    assert signed.build(shared, seed=0).judgments.n_comparisons == 600


def test_a_plan_for_another_number_of_pairs_is_refused(pairs):
    with pytest.raises(DataError, match="600 usable pairs, but the plan covers 599"):
        signed.build(pairs, signed.draw_plan(599))


def test_missing_columns_are_named(pairs):
    with pytest.raises(DataError, match="score_chosen, score_rejected"):
        signed.build(pairs.drop(columns=["score_chosen", "score_rejected"]))


def test_every_bad_column_is_named_in_one_pass(pairs):
    broken = pairs.copy()
    broken.loc[2, "prompt"] = " "
    broken.loc[5, "rejected"] = None
    broken.loc[7, "score_chosen"] = np.nan
    with pytest.raises(DataError) as caught:
        signed.build(broken)
    text = str(caught.value)
    assert all(f"column {column}" in text for column in ("prompt", "rejected", "score_chosen"))


def test_gate_on_the_full_bundled_corpus():
    gate = signed.gate(signed.build(bundled.scored_pairs(), seed=0))
    json.dumps(gate)
    assert gate["pairs"] == {"quality": 2887, "swap": 1462, "mixed": 2828}
    assert gate["n_judgments"] == 28708
    rounded = {name: round(100 * share, 1) for name, share in gate["cross_group"].items()}
    assert rounded == {"woman": 36.4, "black": 36.4, "any": 59.8}
    swap = {
        attribute: [round(value, 2) for value in row.values()]
        for attribute, row in gate["swap_log_odds"].items()
    }
    assert swap == {"woman": [0.95, 1.01, 0.97, 0.86], "black": [0.70, 2.30, -0.37, 0.88]}
    # quality adds noise to the cross-group pairs whose texts differ, so the lean looks smaller on all of them
    assert 0.4 < gate["all_log_odds"]["woman"]["all"] < gate["swap_log_odds"]["woman"]["all"]


def test_a_one_sided_log_odds_is_none():
    few = signed.build(bundled.scored_pairs(3), seed=1)
    table = signed.gate(few)["all_log_odds"]
    assert any(value is None for row in table.values() for value in row.values())
