"""Annotators known to lean nowhere: who they are, that training leaves their theta at zero, and what is recorded."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from badpo.attributes import Length, Markdown
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import VARIANTS, BiasTerm
from badpo.training.config import BADPOConfig
from badpo.training.inputs import (
    build_bias,
    gold_annotators,
    gold_cross_votes,
    leans_above_gold,
    require_matching_bias,
)
from tests import tiny
from tests.training.test_trainer import trainer

GOLD = ["person 1", "person 3"]


def judgments(**options) -> Judgments:
    return Judgments.read(tiny.votes(**options), attributes=[Length(ratio=1.5)])


def people(data: Judgments) -> list[str]:
    return data.annotators["pseudonym"].tolist()


# -- who is gold -------------------------------------------------------------------------------------------------


def test_ids_and_pseudonyms_name_the_same_people():
    data = judgments()
    expected = np.isin(people(data), pseudonyms(GOLD))
    assert expected.sum() == 2
    np.testing.assert_array_equal(gold_annotators(data, GOLD), expected)
    np.testing.assert_array_equal(gold_annotators(data, pseudonyms(GOLD)), expected)
    assert not gold_annotators(data, []).any()


def test_a_name_that_is_not_in_the_table_is_told_by_its_pseudonym():
    with pytest.raises(ConfigError, match="gold_annotators: ann_.* cast no vote in this table") as raised:
        gold_annotators(judgments(), ["person 1", "a stranger"])
    assert "stranger" not in str(raised.value)
    assert pseudonyms(["person 1"])[0] not in str(raised.value)


def test_not_everyone_can_be_gold():
    with pytest.raises(ConfigError, match="all 5 annotators are named.*bias: none"):
        gold_annotators(judgments(), [f"person {k}" for k in range(5)])


def test_gold_annotators_must_have_seen_every_attribute_differ():
    data = Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5), Markdown()])
    with pytest.raises(ConfigError, match="2 annotators named cast no vote .* differ on markdown"):
        gold_annotators(data, GOLD)


def test_the_votes_that_the_level_rests_on_are_counted():
    frame = tiny.votes()
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    words = frame[["response_a", "response_b"]].map(lambda text: len(text.split()))
    differs = words.max(axis=1) >= 1.5 * words.min(axis=1)
    n = int((differs & frame["annotator"].isin(GOLD)).sum())
    assert gold_cross_votes(data, gold_annotators(data, GOLD)) == {"length": n}


# -- where theta starts ------------------------------------------------------------------------------------------


def test_a_warm_start_is_how_much_the_others_lean_when_the_gold_annotators_do_not():
    """Everyone likes long answers by 0.8, the others by 1.2 more: only the 1.2 is a lean."""
    rng = np.random.default_rng(0)
    n = 1500
    frame = tiny.votes(n_comparisons=n, n_annotators=8, per_comparison=4)
    difference = np.sign(
        frame["response_a"].str.split().str.len() - frame["response_b"].str.split().str.len()
    )
    quality = np.repeat(rng.normal(0, 1, n), 4)
    log_odds = quality + (0.8 + 1.2 * ~frame["annotator"].isin(GOLD)) * difference
    frame["winner"] = np.where(rng.random(len(frame)) < 1 / (1 + np.exp(-log_odds)), "a", "b")
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    gold = gold_annotators(data, GOLD)
    leans = leans_above_gold(data, gold)
    assert leans[~gold].mean() == pytest.approx(1.2, abs=0.2)
    assert not leans[gold].any()
    assert build_bias(data, "shared_mean", "offline", GOLD).theta().detach().numpy() == pytest.approx(
        leans, abs=1e-6
    )
    pooled = build_bias(data, "pooled", "offline", GOLD).theta().detach().numpy()
    assert pooled[~gold] == pytest.approx(leans[~gold].mean(), abs=1e-6)
    assert not pooled[gold].any()


def test_a_warm_start_needs_comparisons_that_tie_them_to_the_others():
    frame = tiny.votes(n_comparisons=40, n_annotators=4, per_comparison=2).drop(columns="annotator_class")
    rng = np.random.default_rng(1)
    frame["annotator"] = [f"person {2 * (c % 2) + j}" for c in range(40) for j in range(2)]
    frame["winner"] = np.where(rng.random(len(frame)) < 0.5, "a", "b")
    data = Judgments.read(frame, attributes=[Length(ratio=1.5)])
    with pytest.raises(ConfigError, match="no comparison ties them to the others.*warm_start: zero"):
        build_bias(data, "pooled", "offline", ["person 0", "person 1"])


# -- in training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["pooled", "per_annotator", "shared_mean", "class"])
def test_their_theta_stays_at_zero_and_the_others_move(tmp_path, variant):
    run = trainer(tmp_path, bias=variant, gold_annotators=GOLD)
    run.train()
    gold = torch.tensor([name in pseudonyms(GOLD) for name in run.bias.annotators])
    assert gold.sum() == 2
    assert not run.bias.theta()[gold].any()
    assert run.bias.theta()[~gold].all()


def test_they_are_recorded_beside_theta_and_not_in_the_model(tmp_path):
    run = trainer(tmp_path, gold_annotators=GOLD)
    run.train()
    run.save_model()
    description = json.loads((tmp_path / "bias.json").read_text())
    assert set(description["gold_annotators"]) == set(pseudonyms(GOLD))
    assert description["extra"]["gold_votes"] == gold_cross_votes(
        run.judgments, gold_annotators(run.judgments, GOLD)
    )
    assert description["extra"]["first_margin"]["mean"] == pytest.approx(0.0, abs=1e-6)
    assert (
        description["extra"]["first_margin"]["difference"] < description["extra"]["first_margin"]["tolerance"]
    )
    assert set(BiasTerm.load(tmp_path).gold_annotators) == set(pseudonyms(GOLD))
    published = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert not re.search(rb"gold|ann_", published)


def test_a_resumed_run_must_have_the_same_ones_and_keeps_its_first_margin(tmp_path):
    options = dict(save_strategy="steps", save_steps=3)
    first = trainer(tmp_path, gold_annotators=GOLD, max_steps=3, **options)
    first.train()
    changed = trainer(tmp_path, gold_annotators=GOLD[:1], max_steps=3, **options)
    with pytest.raises(ConfigError, match=r"gold_annotators was ann_\w+, ann_\w+, is now ann_\w+\."):
        changed.train(resume_from_checkpoint=True)
    without = trainer(tmp_path, max_steps=3, **options)
    with pytest.raises(ConfigError, match=r"gold_annotators was ann_\w+, ann_\w+, is now none"):
        without.train(resume_from_checkpoint=True)
    again = trainer(tmp_path, gold_annotators=pseudonyms(GOLD), max_steps=3, **options)
    again.train(resume_from_checkpoint=True)
    assert again.first_margin == first.first_margin is not None
    assert set(again.bias.gold_annotators) == set(pseudonyms(GOLD))


def test_a_bias_term_of_ones_own_must_hold_the_same_ones(tmp_path):
    data = judgments()
    bias = BiasTerm(data.attribute_names, people(data), VARIANTS["pooled"])
    with pytest.raises(ConfigError, match="names 2 annotators, and the bias term given holds 0 at zero"):
        require_matching_bias(bias, data, pseudonyms(GOLD))


# -- in the configuration ----------------------------------------------------------------------------------------


def test_the_configuration_keeps_pseudonyms():
    args = BADPOConfig("runs/test", use_cpu=True, gold_annotators=["person 1", 7, "person 1"])
    assert args.gold_annotators == pseudonyms(["person 1", "7"])
    assert "person 1" not in json.dumps(args.to_dict())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (dict(gold_annotators="person 1"), r"is a list of annotators; write \[id\]"),
        (dict(gold_annotators=["person 1"], bias="none"), "there is nothing to learn"),
    ],
)
def test_the_configuration_refuses_what_means_nothing(options, told):
    with pytest.raises(ConfigError, match=told):
        BADPOConfig("runs/test", use_cpu=True, **options)
