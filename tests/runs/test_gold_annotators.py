"""Gold annotators, from the recipe on: their votes fix the level."""

from __future__ import annotations

import pytest
import yaml

from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.results.run_files import read_run
from badpo.runs.run import train_run
from tests import tiny
from tests.runs.recipes import recipe

GOLD = ["person 0", "person 4"]
GOLD_BIAS = {"variant": "shared_mean", "gold_annotators": GOLD}


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
