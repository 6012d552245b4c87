"""The random plan gives the paper's published figures; the corpus is what its plan says, in memory and on disk."""

import doctest
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from badpo.data.problems import DataError
from badpo.readouts.names import strip_signature
from badpo_paper.corpora import bundled, public, signed
from badpo_paper.corpora.public import compare_statistics
from badpo_paper.corpora.signed import draw_plan


@pytest.fixture(scope="module")
def plan():
    return draw_plan(7177, seed=0)


@pytest.fixture(scope="module")
def pairs():
    return bundled.scored_pairs(600)


@pytest.fixture(scope="module")
def corpus(pairs):
    return signed.build(pairs, seed=0)


def test_the_examples_of_the_documentation_run():
    page = Path(__file__).parents[3] / "docs" / "corpora.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 15 and result.failed == 0


@pytest.mark.parametrize(
    "make", [lambda: signed.build(bundled.scored_pairs(600)), lambda: bundled.style_votes(600)]
)
def test_the_placebo_has_the_same_numbers_and_no_bias(make):
    corpus = make()
    with_bias, without = corpus.judgments, corpus.placebo
    same = ["comparison", "annotator", "weight", "row"]
    assert with_bias.votes[same].equals(without.votes[same])
    biased, unbiased = (judgments.votes["sign"].to_numpy() for judgments in (with_bias, without))
    bias = (corpus.planted_theta[with_bias.votes["annotator"]] * with_bias.delta).sum(axis=1)
    # the same number decides both votes, so that a bias moves a vote only toward the favoured response
    assert (biased[bias == 0] == unbiased[bias == 0]).all() and (biased != unbiased).mean() > 0.05
    assert ((biased - unbiased) * bias >= 0).all()


def test_the_plan_determines_the_published_statistics_that_do_not_depend_on_texts(plan):
    """7,177 pairs of other texts have the counts, class means, cross-group shares and swap log-odds of the paper."""
    statistics = public.measure_ultrafeedback(signed.build(bundled.scored_pairs(7177), seed=0))
    rows = compare_statistics(statistics, public.PUBLISHED_PLAN)
    assert len(rows) == 22 and [row.name for row in rows if not row.agrees] == []
    # quality adds noise to the cross-group pairs whose texts differ, so the log-odds of all pairs are smaller
    assert 0.4 < statistics["all_log_odds"]["woman"]["all"] < statistics["swap_log_odds"]["woman"]["all"]
    assert statistics["n_judgments"] == plan.annotators.size == 28708
    assert statistics["judgments_per_annotator"] == {"least": 429, "most": 548}
    other = public.measure_ultrafeedback(signed.build(bundled.scored_pairs(500), seed=1))
    assert sum(row.agrees for row in compare_statistics(other, public.PUBLISHED_PLAN)) < 8
    few = signed.measure_corpus(signed.build(bundled.scored_pairs(3), seed=1))["all_log_odds"]
    assert any(value is None for row in few.values() for value in row.values())


def test_a_longer_plan_begins_with_a_shorter_plan_and_votes_follow_the_likelihood(plan):
    first, again, other, long = draw_plan(50, 3), draw_plan(50, 3), draw_plan(50, 4), draw_plan(90, 3)
    for part in fields(first):
        np.testing.assert_array_equal(getattr(first, part.name), getattr(again, part.name))
    assert not np.array_equal(first.uniforms, other.uniforms)
    np.testing.assert_array_equal(first.uniforms, long.uniforms[:50])
    np.testing.assert_array_equal(first.names_first, long.names_first[:50])
    quality = np.linspace(-2, 2, plan.n_pairs)
    bias = np.einsum("ijq,iq->ij", plan.theta[plan.annotators], plan.delta)
    logits = np.where(plan.kinds == "swap", 0.0, quality)[:, None] + bias
    np.testing.assert_array_equal(plan.decide_votes(quality), plan.uniforms < 1 / (1 + np.exp(-logits)))


def test_votes_biases_texts_and_quality_follow_the_plan(corpus, pairs):
    votes, plan = corpus.judgments.votes, corpus.plan
    np.testing.assert_array_equal(corpus.judgments.delta, plan.delta[votes["comparison"]])
    assert ((plan.surnames == "") == (plan.names_first == "")).all()
    expected = np.where(plan.decide_votes(corpus.quality).ravel(), 1, -1)
    np.testing.assert_array_equal(votes["sign"].to_numpy(), expected)
    np.testing.assert_array_equal(votes["comparison"].to_numpy(), np.repeat(np.arange(600), 4))
    drawn = plan.annotators.ravel()
    np.testing.assert_array_equal(corpus.planted_theta[votes["annotator"]], plan.theta[drawn])
    classes = corpus.judgments.annotators["annotator_class"].to_numpy()
    np.testing.assert_array_equal(classes[votes["annotator"]], plan.annotator_class[drawn])
    comparisons, swap = corpus.judgments.comparisons, corpus.plan.kinds == "swap"
    doubled = pairs["chosen"].where(corpus.plan.swap_source == "chosen", pairs["rejected"])
    for side, text in (("response_a", "chosen"), ("response_b", "rejected")):
        bodies = comparisons[side].map(strip_signature).tolist()
        assert bodies == pairs[text].where(~swap, doubled).tolist()
    assert (comparisons["response_a"] != comparisons["response_b"])[swap].all()
    expected = 0.5 * (pairs["score_chosen"] - pairs["score_rejected"])
    np.testing.assert_allclose(corpus.quality, np.where(swap, 0, expected))


def test_short_responses_are_excluded_and_pairs_with_the_same_prompt_remain_separate(pairs):
    with_short = pairs.copy()
    with_short.loc[[3, 8], "rejected"] = "No idea at all"
    short = signed.build(with_short, seed=0)
    assert short.left_out == {"a response has fewer than 5 words": 2}
    assert short.judgments.n_comparisons == short.plan.n_pairs == 598
    shared = pairs.assign(prompt="How do I cook?", prompt_id="p")
    assert signed.build(shared, seed=0).judgments.n_comparisons == 600
    with pytest.raises(DataError, match="E137.*no usable pair"):
        signed.build(pairs.assign(chosen="No."))


def test_all_problems_of_a_table_of_pairs_are_reported_together(pairs):
    with pytest.raises(DataError, match="E101.*score_chosen, score_rejected"):
        signed.build(pairs.drop(columns=["score_chosen", "score_rejected"]))
    broken = pairs.copy()
    broken.loc[2, "prompt"] = " "
    broken.loc[[5, 9], "rejected"] = None
    broken.loc[7, "score_chosen"] = np.nan
    with pytest.raises(DataError) as caught:
        signed.build(broken)
    problems = [f"{problem.code} {problem.where}" for problem in caught.value.problems]
    column = "{} scored pairs, column {}".format
    expected = [column("E134", "prompt, row 3"), column("E134", "rejected, row 6 and 1 more")]
    assert problems == [*expected, column("E136", "score_chosen, row 8")]
