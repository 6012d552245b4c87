"""What fixes the level, from the recipe on: gold annotators named in it, a reference that is balanced."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import yaml

from badpo.data.attributes import attribute_from_config
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.results.run_files import read_run
from badpo.runs.run import plan_run, train_run
from badpo.runs.start import majority_responses, majority_rows
from tests import tiny
from tests.runs.recipes import recipe, write_recipe

GOLD = ["person 0", "person 4"]
GOLD_BIAS = {"variant": "shared_mean", "gold_annotators": GOLD}


# -- gold annotators ---------------------------------------------------------------------------------------------


def test_a_run_with_gold_annotators_keeps_pseudonyms_only(tmp_path):
    folder = train_run(recipe(tmp_path, bias=GOLD_BIAS))
    bias = BiasTerm.load(folder)
    assert set(bias.gold_annotators) == set(pseudonyms(GOLD))
    theta = dict(zip(bias.annotators, bias.theta().flatten().tolist(), strict=True))
    assert {name for name, value in theta.items() if value == 0} == set(pseudonyms(GOLD))
    kept = yaml.safe_load((folder / "config.yaml").read_text())
    assert kept["bias"]["gold_annotators"] == pseudonyms(GOLD)
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"person 0" not in path.read_bytes(), path
    assert read_run(folder).bias.extra.gold_votes["length"] > 0


def test_the_plan_says_what_the_level_rests_on(tmp_path):
    plan = plan_run(recipe(tmp_path, bias=GOLD_BIAS))
    assert plan.anchor.startswith(
        "2 gold annotators, whose theta is held at 0: the level of the others' theta rests on"
    )
    assert " on length)" in plan.anchor
    assert f"anchor      {plan.anchor}" in plan.lines()
    assert "the policy keeps the reference's rate" in plan_run(recipe(tmp_path)).anchor
    assert plan_run(recipe(tmp_path, bias="none")).anchor.startswith("none")


@pytest.mark.parametrize(
    ("bias", "told"),
    [
        ({"gold_annotators": ["person 99"]}, "cast no vote in this table"),
        ({"gold_annotators": [f"person {k}" for k in range(6)]}, "no bias is left to learn"),
        ({"gold_annotators": GOLD, "variant": "none"}, "there is nothing to learn"),
    ],
)
def test_gold_annotators_that_cannot_be_are_refused_before_anything_is_trained(tmp_path, bias, told):
    with pytest.raises(ConfigError, match=told):
        train_run(recipe(tmp_path, bias=bias, reference={"sft": True}))
    assert not (tmp_path / "runs" / "reference" / "model").exists()


def test_gold_annotators_without_cross_group_votes_are_refused(tmp_path):
    frame = tiny.votes(n_comparisons=40, n_annotators=6)
    theirs = frame["annotator"].isin(GOLD)
    same = frame["response_a"].str.split().str.len() == frame["response_b"].str.split().str.len()
    with pytest.raises(
        ConfigError, match="2 annotators named cast no vote on responses that differ on length"
    ):
        train_run(recipe(tmp_path, frame[~theirs | same], bias=GOLD_BIAS))


@pytest.mark.parametrize("named", ["person 0", {"person": 0}])
def test_gold_annotators_are_a_list(tmp_path, named):
    with pytest.raises(ConfigError, match=r"run.yaml:\d+: bias.gold_annotators is .*valid list"):
        recipe(tmp_path, bias={"gold_annotators": named})


# -- a balanced reference ----------------------------------------------------------------------------------------

BALANCED = {"sft": True, "balance": ["signed"]}
SIGNED = {"type": "regex", "name": "signed", "pattern": "home"}


def signed_votes():
    """Four of five comparisons are won by a side that says home, one by a side that does not."""
    frame = tiny.votes(n_comparisons=60, n_annotators=6)
    number = frame["comparison_id"].str[1:].astype(int)
    for side in ("response_a", "response_b"):
        frame[side] = frame[side].str.replace("home", "red")
    frame["response_a"] += np.where(number % 5 > 0, " home", "")
    return frame.assign(winner="a")


def test_the_majority_responses_are_balanced_and_none_other_come_in():
    data = Judgments.read(signed_votes(), attributes=[attribute_from_config(SIGNED)])
    texts = majority_responses(data)
    rows = majority_rows(data, data.attributes)
    carries = np.array(["home" in text for text in texts])
    assert carries.mean() == 0.8
    assert len(rows) == 60 and carries[rows].mean() == 0.5


def test_names_in_signatures_are_balanced_among_signed_responses():
    frame = signed_votes()
    number = frame["comparison_id"].str[1:].astype(int)
    endings = np.select([number < 20, number < 50], ["", "\n\n— Emily Miller"], "\n\n— Greg Miller")
    data = Judgments.read(
        frame.assign(response_a=frame["response_a"] + endings),
        attributes=[attribute_from_config({"type": "signature_name", "name": "woman", "names": ["Emily"]})],
    )
    texts = [majority_responses(data)[row] for row in majority_rows(data, data.attributes)]
    assert [sum(name in text for text in texts) for name in ("Emily", "Greg")] == [20, 20]
    assert len(texts) == 60


def test_a_balanced_reference_is_another_one_and_says_so(tmp_path, caplog):
    frame, changes = signed_votes(), {"attributes": [SIGNED]}
    plain = train_run(recipe(tmp_path, frame, reference={"sft": True}, **changes))
    before = json.loads((plain.parent / "reference" / "run.json").read_text())["facts"]
    assert before["reference.balance"] == []
    with pytest.raises(ConfigError, match="reference.balance was"):
        train_run(recipe(tmp_path, frame, reference=BALANCED, seed=3, **changes))
    asked = recipe(tmp_path, frame, reference=BALANCED, output_dir=str(tmp_path / "balanced"), **changes)
    assert plan_run(asked).reference.endswith("with signed equally frequent as not")
    with caplog.at_level(logging.INFO, logger="badpo"):
        folder = train_run(asked)
    assert "responses balanced (signed 79.2% before, one half each now)" in caplog.text
    facts = json.loads((folder.parent / "reference" / "run.json").read_text())["facts"]
    assert facts["reference.balance"][0]["name"] == "signed"
    weights = [
        (path.parent / "reference" / "model" / "model.safetensors").read_bytes() for path in (plain, folder)
    ]
    assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("balance", "attributes", "told"),
    [
        (["sinned"], [SIGNED], '"sinned" is not declared. Did you mean "signed"'),
        (["length"], ["length"], '"length" is no 0 or 1 of a single response'),
        (
            ["never"],
            [{"type": "regex", "name": "never", "pattern": "zebra"}],
            r"no row has the values \(1,\) of never",
        ),
    ],
)
def test_what_cannot_be_balanced_is_told(tmp_path, balance, attributes, told):
    changes = {"bias": "none"} if balance == ["never"] else {}
    asked = recipe(
        tmp_path,
        signed_votes(),
        reference={"sft": True, "balance": balance},
        attributes=attributes,
        **changes,
    )
    with pytest.raises(ConfigError, match=told):
        train_run(asked)


def test_balance_needs_the_supervised_stage(tmp_path):
    with pytest.raises(ConfigError, match="balance is about the supervised stage, and there is none"):
        recipe(tmp_path, reference={"balance": ["length"]})
    assert write_recipe(tmp_path).exists()
