"""What an arm's row becomes: judgments, a bias term, an objective."""

from __future__ import annotations

import dataclasses
from functools import cache, partial

import numpy as np
import pytest
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.theory.likelihood import judgment_loss
from badpo_paper import methods
from badpo_paper.arms import ARMS, Arm
from badpo_paper.corpora import bundled, signed
from badpo_paper.methods import arm_bias, arm_objective, labelled, method_facts
from badpo_paper.suites import Condition
from tests import tiny

arm_judgments = partial(methods.arm_judgments, max_length=192, max_prompt_length=96)


@cache
def corpus() -> Judgments:
    return signed.build(bundled.scored_pairs(120), seed=0).judgments


def small() -> Judgments:
    return Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5)])


def test_an_arm_without_a_change_sees_the_judgments_themselves():
    assert arm_judgments(ARMS["pooled"], corpus(), 1, None) is corpus()


def test_shuffled_identities_and_a_declared_subset():
    train = corpus()
    first = arm_judgments(ARMS["declared_subset"], train, 1, None)
    assert first.attribute_names == ("woman",)
    np.testing.assert_array_equal(first.delta[:, 0], train.delta[:, 0])
    shuffled = arm_judgments(ARMS["shuffled_ids"], train, 1, None)
    annotator = shuffled.votes["annotator"].to_numpy()
    assert (annotator != train.votes["annotator"].to_numpy()).mean() > 0.9
    assert set(annotator) <= set(range(train.n_annotators))
    assert shuffled.votes.drop(columns="annotator").equals(train.votes.drop(columns="annotator"))
    again, other = (arm_judgments(ARMS["shuffled_ids"], train, seed, None) for seed in (1, 2))
    np.testing.assert_array_equal(annotator, again.votes["annotator"])
    assert (annotator != other.votes["annotator"].to_numpy()).mean() > 0.9


# -- R-DPO: a fixed theta on the length -------------------------------------------------------------------------


def lengths(judgments: Judgments) -> np.ndarray:
    """Tokens of a minus tokens of b: one a word, and the end-of-text token on both sides."""
    frame = judgments.comparisons.iloc[judgments.votes["comparison"]]
    return np.array(
        [
            len(a.split()) - len(b.split())
            for a, b in zip(frame["response_a"], frame["response_b"], strict=True)
        ]
    )


@pytest.mark.parametrize("name", ["rdpo", "rdpo_words"])
def test_rdpo_adds_alpha_times_the_winners_extra_length(name):
    judgments = arm_judgments(ARMS[name], small(), 1, tiny.tokenizer())
    np.testing.assert_array_equal(judgments.delta[:, 0], lengths(judgments))
    sign, annotator = (torch.tensor(judgments.votes[c].to_numpy()) for c in ("sign", "annotator"))
    bias = arm_bias(ARMS[name], judgments)
    winner_minus_loser = sign * bias(annotator, torch.tensor(judgments.delta))
    torch.testing.assert_close(
        winner_minus_loser,
        0.005 * sign * torch.tensor(lengths(judgments)),
        check_dtype=False,
        rtol=1e-6,
        atol=1e-8,
    )
    assert list(bias.parameters()) == []


def test_rdpo_turns_against_long_winners():
    """The plus sign inside the sigmoid: a winner that is longer teaches less than one that is shorter."""
    judgments = arm_judgments(ARMS["rdpo_strong"], small(), 1, tiny.tokenizer())
    bias = arm_bias(ARMS["rdpo_strong"], judgments)
    pulls = []
    for extra in (5.0, -5.0):
        u = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        b = bias(torch.zeros(1, dtype=torch.long), torch.tensor([[extra]]))
        judgment_loss(u, b, torch.ones(1)).sum().backward()
        pulls.append(-u.grad.item())
    assert pulls[0] < 0.5 < pulls[1]


def test_tokens_are_counted_after_the_cut():
    whole = arm_judgments(ARMS["rdpo"], small(), 1, tiny.tokenizer())
    cut = methods.arm_judgments(
        ARMS["rdpo"], small(), 1, tiny.tokenizer(), max_length=14, max_prompt_length=8
    )
    assert np.abs(cut.delta).max() < np.abs(whole.delta).max()


def test_a_learned_lean_toward_length_is_per_unit():
    judgments = arm_judgments(ARMS["length_pooled"], small(), 1, tiny.tokenizer())
    np.testing.assert_allclose(judgments.delta[:, 0], lengths(judgments) / 100)
    assert arm_bias(ARMS["length_pooled"], judgments) is None
    assert judgments.attributes[0].continuous


# -- groups -----------------------------------------------------------------------------------------------------


def test_groups_by_class_need_the_class_of_everyone():
    table = tiny.votes()
    judgments = Judgments.read(table.drop(columns="annotator_class"), attributes=[Length(ratio=1.5)])
    with pytest.raises(ConfigError, match="5 of 5 annotators have no class"):
        arm_objective(ARMS["group_dro"], judgments, 1, 0.1)
    assert arm_objective(ARMS["reliability"], judgments, 1, 0.1).n_groups == 5


@pytest.mark.parametrize("name", sorted(n for n, a in ARMS.items() if a.objective != "types"))
def test_every_arms_objective_can_be_made(name):
    objective = arm_objective(ARMS[name], small(), 7, 0.25)
    assert getattr(objective, "seed", 7) == 7
    assert getattr(objective, "beta", 0.25) == 0.25


# -- labels of the spectral meta-learner --------------------------------------------------------------------------


def test_the_spectral_arm_has_one_label_for_each_comparison():
    train = corpus()
    found = labelled(train)
    assert found.n_votes == found.n_comparisons == train.n_comparisons
    assert not found.has_identities and (found.votes["weight"] == 1).all()
    assert list(found.comparisons["comparison_id"]) == list(train.comparisons["comparison_id"])
    assert (found.votes["sign"].to_numpy() == train.majority()).mean() > 0.7


def test_labels_stand_with_their_comparison_whatever_the_order_of_the_votes():
    table = tiny.votes(n_comparisons=20, per_comparison=3)
    one = labelled(Judgments.read(table, attributes=[Length(ratio=1.5)]))
    other = labelled(Judgments.read(table.iloc[::-1].reset_index(drop=True), attributes=[Length(ratio=1.5)]))

    def labels(judgments):
        ids = judgments.comparisons["comparison_id"].to_numpy()[judgments.votes["comparison"]]
        return dict(zip(ids, judgments.votes["sign"] * np.sign(judgments.delta[:, 0] + 0.5), strict=True))

    assert labels(one).keys() == labels(other).keys()
    assert np.mean([labels(one)[c] == labels(other)[c] for c in labels(one)]) > 0.9


def test_few_common_comparisons_are_told(caplog):
    table = tiny.votes(n_comparisons=10, n_annotators=10, per_comparison=1)
    with caplog.at_level("WARNING"):
        found = labelled(Judgments.read(table, attributes=[Length(ratio=1.5)]))
    assert "0 % of the pairs of annotators share a comparison" in caplog.text
    assert found.n_votes == 10


# -- keys of runs -------------------------------------------------------------------------------------------------


def test_every_arm_is_told_from_the_others():
    """By its recipe, which has the bias term, and by what decides it besides."""
    usual = Condition("usual", "dpo")
    of_recipe = [(arm.bias, arm.warm_start, arm.objective, arm.settings) for arm in ARMS.values()]
    facts = [
        repr((*one, method_facts(usual, arm))) for one, arm in zip(of_recipe, ARMS.values(), strict=True)
    ]
    assert len(set(facts)) == len(ARMS)
    in_recipe = {"bias", "warm_start", "gold", "objective", "settings"}
    # the types of EM-DPO are named by no recipe
    assert method_facts(usual, ARMS["em_dpo"])["objective"] == "types"
    for field in dataclasses.fields(Arm):
        told = any(
            field.name in method_facts(usual, arm) for arm in ARMS.values() if arm.objective != "types"
        )
        assert told != (field.name in in_recipe)


@pytest.mark.parametrize(("chosen", "other"), ["ab", "ba"])
def test_a_comparison_that_the_spectral_labels_leave_open_goes_to_the_majority(chosen, other):
    """Four who agree but on three comparisons, on which each sides once with each other one."""
    texts = {"response_a": "So it is.", "response_b": "No."}
    votes = [(f"agreed {i}", person, "a") for i in range(4) for person in "wxyz"]
    votes += [
        (f"open {one}", person, chosen if person in ("w", one) else other)
        for one in "xyz"
        for person in "wxyz"
    ]
    judgments = Judgments.read([{"prompt": p, "annotator": who, "winner": w, **texts} for p, who, w in votes])
    found = labelled(judgments).votes.set_index("comparison")["sign"]
    # of as many votes on either side the earliest decides
    assert found.tolist() == judgments.majority().tolist() == [1] * 4 + [1 if chosen == "a" else -1] * 3
