"""The arms as data; what an arm's row becomes: judgments, a bias term, an objective; votes predicted with its theta."""

import dataclasses
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_array

from badpo.attributes import Length
from badpo.data.attributes import LengthWords
from badpo.data.judgments import Judgments
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.objectives import make_objective
from badpo.readouts.heldout import vote_accuracy
from badpo.runs.evaluate import theta_rows, with_own_attributes
from badpo.runs.start import majority_responses
from badpo_paper import arm_setup
from badpo_paper.arm_setup import (
    PAPER_TOKENS,
    adjusted_arm,
    agreements,
    arm_bias,
    labelled,
    method_facts,
    spectral_labels,
    vote_table,
)
from badpo_paper.arms import ARMS, Arm
from badpo_paper.corpora import bundled, signed
from badpo_paper.settings import SCALES
from tests import tiny
from tests.paper.suite_scale import SMALL, STYLE, dataset

arm_judgments = partial(arm_setup.arm_judgments, max_length=192, max_prompt_length=96)


@cache
def corpus() -> Judgments:
    return signed.build(bundled.scored_pairs(120), seed=0).judgments


def short() -> Judgments:
    return Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5)])


def test_every_arm_is_told_from_the_others_and_its_objective_can_be_made():
    of_recipe = [(arm.bias, arm.warm_start, arm.objective, arm.settings) for arm in ARMS.values()]
    facts = {repr((*one, method_facts(arm))) for one, arm in zip(of_recipe, ARMS.values(), strict=True)}
    assert len(facts) == len(ARMS)
    # the types of EM-DPO are named by no recipe
    assert method_facts(ARMS["em_dpo"])["objective"] == "types"
    told = {name for arm in ARMS.values() if arm.objective != "types" for name in method_facts(arm)}
    in_recipe = {"bias", "warm_start", "gold", "objective", "settings"}
    assert told == {field.name for field in dataclasses.fields(Arm)} - in_recipe
    for arm in ARMS.values():
        if arm.objective != "types":
            make_objective({"name": arm.objective, **arm.settings}, short(), 7, 0.25)


def test_shuffled_identities_and_a_declared_subset():
    train = corpus()
    first = arm_judgments(ARMS["declared_subset"], train, 1, None)
    assert first.attribute_names == ("woman",)
    np.testing.assert_array_equal(first.delta[:, 0], train.delta[:, 0])
    of_seeds = (arm_judgments(ARMS["shuffled_ids"], train, seed, None) for seed in (1, 1, 2))
    shuffled, again, other = (found.votes for found in of_seeds)
    annotator = shuffled["annotator"].to_numpy()
    assert (annotator != train.votes["annotator"].to_numpy()).mean() > 0.9
    assert set(annotator) <= set(range(train.n_annotators))
    assert shuffled.drop(columns="annotator").equals(train.votes.drop(columns="annotator"))
    np.testing.assert_array_equal(annotator, again["annotator"])
    assert (annotator != other["annotator"].to_numpy()).mean() > 0.9


TEXTS = {"response_a": "So it is.", "response_b": "No."}


def judged(cast) -> Judgments:
    """Votes as (prompt, annotator, side) on the same two answers to every prompt."""
    rows = [{"prompt": p, "annotator": who, "winner": side, **TEXTS} for p, who, side in cast]
    return Judgments.read(rows)


def lengths(judgments: Judgments) -> np.ndarray:
    """Tokens of a minus tokens of b: one a word, and the end-of-text token on both sides."""
    frame = judgments.comparisons.iloc[judgments.votes["comparison"]]
    words = frame[["response_a", "response_b"]].map(lambda text: len(text.split())).to_numpy()
    return words[:, 0] - words[:, 1]


@pytest.mark.parametrize("name", ["rdpo", "rdpo_words"])
def test_rdpo_adds_alpha_times_the_winners_extra_length(name):
    judgments = arm_judgments(ARMS[name], short(), 1, tiny.tokenizer())
    np.testing.assert_array_equal(judgments.delta[:, 0], lengths(judgments))
    sign, annotator = (torch.tensor(judgments.votes[c].to_numpy()) for c in ("sign", "annotator"))
    bias = arm_bias(ARMS[name], judgments)
    winner_minus_loser = (sign * bias(annotator, torch.tensor(judgments.delta))).double()
    expected = 0.005 * sign * torch.tensor(lengths(judgments))
    torch.testing.assert_close(winner_minus_loser, expected.double(), rtol=1e-6, atol=1e-8)
    assert list(bias.parameters()) == []
    # beside what is fixed, an arm may learn a variant
    learned = arm_bias(replace(ARMS[name], bias="pooled"), judgments)
    assert learned.parts == VARIANTS["pooled"] and learned.fixed.allclose(bias.fixed)


def test_tokens_are_counted_after_the_cut_and_a_learned_lean_is_per_unit():
    whole = arm_judgments(ARMS["rdpo"], short(), 1, tiny.tokenizer())
    cut = arm_setup.arm_judgments(ARMS["rdpo"], short(), 1, tiny.tokenizer(), 14, 8)
    assert np.abs(cut.delta).max() < np.abs(whole.delta).max()
    judgments = arm_judgments(ARMS["length_pooled"], short(), 1, tiny.tokenizer())
    np.testing.assert_allclose(judgments.delta[:, 0], lengths(judgments) / 100)
    assert arm_bias(ARMS["length_pooled"], judgments) is None and judgments.attributes[0].continuous


def test_a_length_counts_as_much_on_shorter_answers():
    args = SimpleNamespace(max_length=192, max_prompt_length=96)
    short_answers, long_answers = (
        SimpleNamespace(scale=scale, train=short(), args=args, tokenizer=tiny.tokenizer())
        for scale in (SMALL, SCALES["paper"])
    )
    sides = majority_responses(short())
    factor = round(PAPER_TOKENS / np.mean([len(text.split()) + 1 for text in sides]), 2)
    expected = {
        "rdpo": (0.005 * factor, 1),
        "rdpo_strong": (0.02 * factor, 1),
        "rdpo_words": (0.005 * factor, 1),
        "length_pooled": (0, 100 / factor),
    }
    for name, arm in ARMS.items():
        changed = adjusted_arm(arm, short_answers)
        assert (changed.fixed, changed.length_unit) == pytest.approx(expected.get(name, (0, 1)))
        assert adjusted_arm(arm, long_answers) is arm
    # what is cut is not penalised
    args.max_length = 12
    assert adjusted_arm(ARMS["rdpo"], short_answers).fixed > 0.005 * factor


def votes(accuracy, n_comparisons: int, per_comparison: int, seed: int):
    """Hidden true sides, and independent votes on them by annotators drawn at random."""
    rng = np.random.default_rng(seed)
    truth = rng.choice([-1, 1], n_comparisons)
    comparison = np.repeat(range(n_comparisons), per_comparison)
    annotator = np.concatenate([rng.choice(len(accuracy), per_comparison, replace=False) for _ in truth])
    right = rng.random(len(annotator)) < np.asarray(accuracy)[annotator]
    sign = np.where(right, truth[comparison], -truth[comparison]).astype(float)
    return truth, csr_array((sign, (comparison, annotator)), shape=(n_comparisons, len(accuracy)))


def test_labels_of_recovered_reliabilities_beat_the_majority_and_turn_with_the_comparisons():
    accuracy = np.linspace(0.45, 0.95, 12)
    truth, table = votes(accuracy, 3000, 5, seed=0)
    found = spectral_labels(table)
    np.testing.assert_allclose(found.reliability, 2 * accuracy - 1, atol=0.12)
    assert found.cells == 1.0
    majority = np.sign(table.sum(axis=1))
    assert (found.label == truth).mean() > (majority == truth).mean() + 0.05
    flip = np.random.default_rng(0).choice([-1, 1], 3000)
    other = spectral_labels(csr_array(table * flip[:, None]))
    np.testing.assert_allclose(found.reliability, other.reliability, atol=1e-8)
    np.testing.assert_array_equal(found.label * flip, other.label)


def test_annotators_without_common_comparisons_and_repeated_votes():
    found = spectral_labels(csr_array([[1.0, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, 0]]))
    assert np.isnan(found.reliability).all() and found.cells == 0.0
    assert found.label.tolist() == [1, -1, 1, 0]
    # among others, one votes like their mean
    found = spectral_labels(block_diag([votes([0.9] * 3, 300, 3, seed=3)[1], [[-1.0]]], format="csr"))
    assert np.isnan(found.reliability[3]) and np.isfinite(found.reliability[:3]).all()
    assert found.label[300] == -1
    cast = [("p", "x", "a"), ("p", "x", "b"), ("p", "y", "a"), ("q", "x", "a"), ("q", "y", "a")]
    products, counts, _ = agreements(vote_table(judged(cast)))
    assert counts.tolist() == products.tolist() == [[0, 2], [2, 0]]


def test_the_spectral_arm_has_one_label_for_each_comparison(caplog):
    train = corpus()
    found = labelled(train)
    assert found.n_votes == found.n_comparisons == train.n_comparisons
    assert not found.has_identities and (found.votes["weight"] == 1).all()
    assert list(found.comparisons["comparison_id"]) == list(train.comparisons["comparison_id"])
    assert (found.votes["sign"].to_numpy() == train.majority()).mean() > 0.7
    few = Judgments.read(tiny.votes(n_comparisons=10, n_annotators=10, per_comparison=1))
    with caplog.at_level("WARNING"):
        assert labelled(few).n_votes == 10
    assert "0 % of the pairs of annotators share a comparison" in caplog.text


@pytest.mark.parametrize(("chosen", "other"), ["ab", "ba"])
def test_a_comparison_that_the_spectral_labels_leave_open_goes_to_the_majority(chosen, other):
    """Four who agree but on three comparisons, on which each sides once with each other one."""
    cast = [(f"agreed {i}", person, "a") for i in range(4) for person in "wxyz"]
    pairs = [(one, person) for one in "xyz" for person in "wxyz"]
    cast += [(f"open {x}", who, chosen if who in ("w", x) else other) for x, who in pairs]
    judgments = judged(cast)
    found = labelled(judgments).votes.set_index("comparison")["sign"]
    # of as many votes on either side the earliest decides
    assert found.tolist() == judgments.majority().tolist() == [1] * 4 + [1 if chosen == "a" else -1] * 3


def bias_on_words(held_out, parts, level: float = 0.0) -> BiasTerm:
    """A bias term with the length in words as its attribute, as a run folder gives it back."""
    bias = BiasTerm(["length_words"], held_out.annotators["pseudonym"].tolist(), parts)
    bias.extra = {"attributes": [dict(LengthWords(threshold=0.0, unit=10.0).config)]}
    if parts:
        bias.mean.data.fill_(level)
    return bias


def test_votes_are_predicted_with_theta_in_the_column_of_its_attribute():
    _, held_out = dataset(STYLE).split()
    bias = bias_on_words(held_out, VARIANTS["pooled"], level=0.7)
    judged = with_own_attributes(held_out, bias)
    assert judged.attribute_names == (*held_out.attribute_names, "length_words")
    np.testing.assert_array_equal(judged.delta[:, :-1], held_out.delta)
    logits = held_out.votes["sign"] * 0.07 * lengths(held_out)
    found = vote_accuracy(np.zeros(held_out.n_comparisons), theta_rows(bias, judged), judged)
    cross = held_out.cross_group()[:, 0]
    assert found["length"]["all"]["accuracy"] == pytest.approx(np.mean(logits[cross] > 0))
    assert 0.5 < np.mean(logits[cross] > 0) < 1
    # a penalty says nothing of annotators
    assert with_own_attributes(held_out, bias_on_words(held_out, VARIANTS["none"])) is held_out
    names = held_out.attribute_names[::-1]
    bias = BiasTerm(names, held_out.annotators["pseudonym"].tolist(), VARIANTS["pooled"])
    bias.mean.data.copy_(torch.arange(1.0, len(names) + 1))
    assert len(names) > 1 and (theta_rows(bias, held_out) == np.arange(len(names), 0, -1)).all()
