"""The arms: judgments, bias term, objective and facts of each arm."""

import dataclasses
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.objective.registry import make_objective
from badpo.runs.evaluate import align_theta
from badpo.runs.start import choose_majority_responses
from badpo.theory.likelihood import judgment_loss
from badpo_paper import corpus_stage
from badpo_paper.corpora import bundled, signed
from badpo_paper.corpus_stage import (
    PAPER_TOKENS,
    adjust_arm,
    collect_method_facts,
    make_arm_bias,
)
from badpo_paper.settings import SCALES
from badpo_paper.suites import ARMS, Arm, Condition
from tests import tiny
from tests.paper.suite_scale import SIGNED, SMALL, STYLE, dataset

select_arm_judgments = partial(corpus_stage.select_arm_judgments, max_length=192, max_prompt_length=96)


@cache
def corpus() -> Judgments:
    return signed.build(bundled.scored_pairs(120), seed=0).judgments


def short() -> Judgments:
    return Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5)])


def test_the_facts_of_every_arm_are_unique_and_its_objective_can_be_made():
    recipe_settings = [(arm.bias, arm.warm_start, arm.objective, arm.settings) for arm in ARMS.values()]
    facts = {
        repr((*settings, collect_method_facts(arm)))
        for settings, arm in zip(recipe_settings, ARMS.values(), strict=True)
    }
    assert len(facts) == len(ARMS)
    # a recipe cannot have the objective of EM-DPO
    assert collect_method_facts(ARMS["em_dpo"])["objective"] == "types"
    fact_names = {
        name for arm in ARMS.values() if arm.objective != "types" for name in collect_method_facts(arm)
    }
    in_recipe = {"bias", "warm_start", "objective", "settings"}
    assert fact_names == {field.name for field in dataclasses.fields(Arm)} - in_recipe
    for arm in ARMS.values():
        if arm.objective != "types":
            make_objective({"name": arm.objective, **arm.settings}, short(), 7, 0.25)


def test_shuffled_identities_and_a_declared_subset():
    train = corpus()
    first = select_arm_judgments(ARMS["declared_subset"], train, 1, None)
    assert first.attribute_names == ("woman",)
    np.testing.assert_array_equal(first.delta[:, 0], train.delta[:, 0])
    shuffles = (select_arm_judgments(ARMS["shuffled_ids"], train, seed, None) for seed in (1, 1, 2))
    shuffled, again, other = (judgments.votes for judgments in shuffles)
    annotator = shuffled["annotator"].to_numpy()
    assert (annotator != train.votes["annotator"].to_numpy()).mean() > 0.9
    assert set(annotator) <= set(range(train.n_annotators))
    assert shuffled.drop(columns="annotator").equals(train.votes.drop(columns="annotator"))
    np.testing.assert_array_equal(annotator, again["annotator"])
    assert (annotator != other["annotator"].to_numpy()).mean() > 0.9


TEXTS = {"response_a": "So it is.", "response_b": "No."}


def make_judgments(votes) -> Judgments:
    """Make judgments of votes (prompt, annotator, side) on the same two answers to every prompt."""
    rows = [{"prompt": p, "annotator": name, "winner": side, **TEXTS} for p, name, side in votes]
    return Judgments.read(rows)


def lengths(judgments: Judgments) -> np.ndarray:
    """Difference of the numbers of tokens of a and b, with one token for each word."""
    frame = judgments.comparisons.iloc[judgments.votes["comparison"]]
    words = frame[["response_a", "response_b"]].map(lambda text: len(text.split())).to_numpy()
    return words[:, 0] - words[:, 1]


def test_rdpo_adds_alpha_times_the_difference_in_length():
    name = "rdpo"
    judgments = select_arm_judgments(ARMS[name], short(), 1, tiny.tokenizer())
    np.testing.assert_array_equal(judgments.delta[:, 0], lengths(judgments))
    sign, annotator = (torch.tensor(judgments.votes[c].to_numpy()) for c in ("sign", "annotator"))
    bias = make_arm_bias(ARMS[name], judgments)
    winner_minus_loser = (sign * bias(annotator, torch.tensor(judgments.delta))).double()
    expected = 0.005 * sign * torch.tensor(lengths(judgments))
    torch.testing.assert_close(winner_minus_loser, expected.double(), rtol=1e-6, atol=1e-8)
    assert list(bias.parameters()) == []
    # an arm can have a fixed part and a learned part
    learned = make_arm_bias(replace(ARMS[name], bias="pooled"), judgments)
    assert learned.parts == VARIANTS["pooled"] and learned.fixed.allclose(bias.fixed)


def test_tokens_are_counted_after_truncation():
    whole = select_arm_judgments(ARMS["rdpo"], short(), 1, tiny.tokenizer())
    cut = corpus_stage.select_arm_judgments(ARMS["rdpo"], short(), 1, tiny.tokenizer(), 14, 8)
    assert np.abs(cut.delta).max() < np.abs(whole.delta).max()


def test_the_length_penalty_is_multiplied_for_shorter_answers():
    args = SimpleNamespace(max_length=192, max_prompt_length=96)
    short_answers, long_answers = (
        SimpleNamespace(
            scale=scale, train=short(), args=args, tokenizer=tiny.tokenizer(), dataset=dataset(STYLE)
        )
        for scale in (SMALL, SCALES["paper"])
    )
    sides = choose_majority_responses(short())
    factor = round(PAPER_TOKENS / np.mean([len(text.split()) + 1 for text in sides]), 2)
    expected = {"rdpo": 0.005 * factor, "rdpo_strong": 0.02 * factor}
    for name, arm in ARMS.items():
        assert adjust_arm(arm, short_answers).fixed == pytest.approx(expected.get(name, 0))
        assert adjust_arm(arm, long_answers) is arm
    # truncated tokens are not penalized
    args.max_length = 12
    assert adjust_arm(ARMS["rdpo"], short_answers).fixed > 0.005 * factor


def test_the_placebo_uses_unbiased_votes_or_weighted_votes_of_people():
    planted, placebo = dataset(SIGNED), ARMS["dpo_placebo"]
    recipe = SimpleNamespace(
        arguments=lambda: SimpleNamespace(max_length=192, max_prompt_length=96, seed=1)
    )
    stage = SimpleNamespace(scale=SMALL, dataset=planted, train=planted.split()[0], tokenizer=None)
    arm = adjust_arm(placebo, stage)
    judgments = corpus_stage.prepare_run(Condition("dpo_placebo"), arm, recipe, stage).judgments
    expected = planted.placebo.split(planted.held_out, seed=0)[0]
    assert judgments.fingerprint() == expected.fingerprint() != stage.train.fingerprint()
    assert judgments.comparisons.equals(stage.train.comparisons)
    stage.dataset = replace(planted, placebo=None)
    arm = adjust_arm(placebo, stage)
    assert (arm.objective, arm.bias) == ("placebo", "none")
    judgments = corpus_stage.prepare_run(Condition("dpo_placebo"), arm, recipe, stage).judgments
    assert judgments.fingerprint() == stage.train.fingerprint()


def test_theta_is_in_the_column_of_its_attribute():
    _, held_out = dataset(STYLE).split()
    names = held_out.attribute_names[::-1]
    bias = BiasTerm(names, held_out.annotators["pseudonym"].tolist(), VARIANTS["pooled"])
    bias.mean.data.copy_(torch.arange(1.0, len(names) + 1))
    assert len(names) > 1 and (align_theta(bias, held_out) == np.arange(len(names), 0, -1)).all()


def test_a_step_moves_the_shared_mean_m_times_further_than_the_mean_of_separate_thetas():
    """Proposition `rate` of the paper, for gradient descent and annotators with equally many votes."""
    m, generator = 20, torch.Generator().manual_seed(0)
    annotator = torch.arange(m).repeat(30)
    delta = torch.randint(-1, 2, (len(annotator), 1), generator=generator).float()
    sign = torch.where(torch.rand(len(annotator), generator=generator) < 0.6, 1.0, -1.0)
    margins = torch.randn(len(annotator), generator=generator)
    stepped = {}
    for variant in ("per_annotator", "shared_mean"):
        term = BiasTerm(("a",), [f"p{k}" for k in range(m)], VARIANTS[variant]).double()
        judgment_loss(margins.double(), term(annotator, delta.double()), sign.double()).mean().backward()
        torch.optim.SGD(term.parameters(), lr=0.1).step()
        stepped[variant] = term
    free = stepped["per_annotator"].theta().detach()
    ratio = stepped["shared_mean"].mean.item() / free.mean().item()
    assert ratio == pytest.approx(m, rel=1e-9)
    shared = stepped["shared_mean"].theta().detach()
    assert torch.allclose(shared - shared.mean(), free - free.mean(), atol=1e-12)
