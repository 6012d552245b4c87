"""`badpo anchor` on a tiny model that signs its answers: both modes, what is written, what wrong input gets."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from badpo.anchoring import source
from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.targets import Anchor
from badpo.cli.main import app
from badpo.data.files import run_damage
from badpo.runs.run import train_run
from badpo.training.recipe import read_recipe
from tests.anchoring.conftest import PROMPTS
from tests.paper.test_demo import run as run_suite
from tests.public_face import assert_face, keys
from tests.runs.recipes import write_recipe

OK, FAILED, USAGE, DATA = 0, 1, 2, 3


def badpo(*arguments: object):
    return CliRunner().invoke(app, ["anchor", *map(str, arguments)])


def anchored(signer: Path, out: Path, *arguments: object, tolerance: float = 0.05) -> dict:
    given = ("--prompts", signer / "prompts.txt", "--out", out, "--tolerance", tolerance, "--json")
    result = badpo(signer / "signer", *given, *arguments)
    assert result.exit_code in (OK, FAILED), result.output
    found = json.loads(result.stdout)
    assert found["converged"] == (result.exit_code == OK) == (found["reason"] == "")
    assert found == json.loads((out / "anchor.json").read_text())
    return found


@pytest.mark.face
def test_sampling_ends_where_it_was_asked_to(signer, tmp_path):
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.5", "--target", "black=0.4")
    for name, target in (("woman", 0.5), ("black", 0.4)):
        row = found[name]
        assert row["target"] == target and row["rounds"] == 0
        assert abs(row["achieved"] - target) < 0.05
        assert row["ci_low"] <= row["achieved"] <= row["ci_high"]
        assert row["c"] == pytest.approx(0.1 * row["shift"])
        drawn = found["changes"]["sampled"][name]["after"]
        assert drawn["low"] < target < drawn["high"]
    assert found["woman"]["before"] > 0.6 and found["woman"]["c"] < 0
    assert_face("anchor --json", keys(found))
    changes = found["changes"]
    assert changes["heldout"] is None and changes["kl_reference"]["after"] is None
    # whether an answer is signed does not depend on the name, and names are drawn as they were asked for
    assert changes["editable"]["before"] > 0.8 and changes["editable"]["difference"] == 0.0
    assert abs(changes["tokens"]["ratio"] - 1) < 0.15
    assert 0 < changes["kl_source"]["per_response"] < 2
    assert not (tmp_path / "out" / "model").exists()


def test_one_target_leaves_the_other_attribute_alone_and_is_missed_by_a_hair(signer, tmp_path):
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.2", tolerance=1e-9)
    assert "black" not in found and abs(found["woman"]["achieved"] - 0.2) < 0.05
    rows = found["changes"]["sampled"].values()
    woman, black = (row["after"]["rate"] - row["before"]["rate"] for row in rows)
    assert woman < -0.25 and abs(black) < 0.2
    alone = Anchor(SignatureSwap(), {"black": 0.3})
    assert alone.whole_shift(np.array([-1.5])).tolist() == [0.0, -1.5]
    assert not found["converged"]
    assert "woman is 0." in found["reason"] and "tolerance 1e-09" in found["reason"]
    assert found["exact"] and "closed form" in found["method"] and found["prompts"]["report"] > 10


def test_training_ends_within_the_tolerance(signer, tmp_path):
    options = ("--mode", "train", "--steps", 120, "--learning-rate", 3e-3)
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.4", *options, tolerance=0.08)
    woman, asked = found["woman"], [measured["intended"][0] for measured in found["calibration"]]
    assert found["converged"] and woman["intended_shift"] in asked and 1 <= woman["rounds"] <= 4
    assert abs(woman["achieved"] - 0.4) <= 0.12
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model", "anchor.json", "run.json"}
    assert run_damage(tmp_path / "out") is None


def test_a_run_of_a_suite_is_measured_against_its_reference(tmp_path, monkeypatch):
    run_suite(tmp_path)
    monkeypatch.setattr(source, "N_REPORT", 8)
    monkeypatch.setattr(source, "FEWEST_PROMPTS", 10)
    targets = ("--target", "woman=0.3", "--target", "black=0.6", "--tolerance", 0.5)
    result = badpo(tmp_path / "dpo-s42", *targets, "--json")
    found = json.loads(result.stdout)
    # a model of a few steps does not sign: what it would sign with is not anchored
    told = result.stderr.splitlines()[-1]
    assert (result.exit_code, found["converged"], found["reason"]) == (FAILED, False, told)
    assert told.startswith("0 of 32 sampled answers (0.0%) are signed with a name from the pool")
    assert found == json.loads((tmp_path / "dpo-s42-anchored" / "anchor.json").read_text())
    changes = found["changes"]
    assert changes["heldout"]["same"]["difference"] == 0.0 and changes["heldout_from"] == "closed form"
    assert changes["kl_reference"]["after"]["per_token"] is not None
    # what the run is measured against is looked at too
    weights = tmp_path / "reference" / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused = badpo(tmp_path / "dpo-s42", *targets, "--out", tmp_path / "out")
    assert refused.exit_code == USAGE and "model.safetensors is damaged" in refused.stderr


def test_words_of_ones_own_on_a_run_of_a_recipe(tmp_path, monkeypatch):
    run = train_run(read_recipe(write_recipe(tmp_path)))
    monkeypatch.setattr(source, "FEWEST_PROMPTS", 10)
    words = ("--target", "colour=0.6", "--word", "red=blue", "--tolerance", 0.6)
    result = badpo(run, *words, "--json")
    assert result.exit_code == OK, result.output
    found = json.loads(result.stdout)
    colour = found["colour"]
    assert 0 < colour["acceptance_rate"] <= 1 and 0 < colour["counted"] < 1 and "without" in colour
    assert colour["ci_low"] <= colour["achieved"] <= colour["ci_high"]
    assert found["prompts"]["from"].endswith("only 7 prompts were held out")
    text = badpo(run, *words)
    assert all(part in text.stdout for part in ("changes", "anchor.json", "acceptance rate"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "a target is missing"),
        ("--target woman=1", "strictly between 0 and 1"),
        ("--target woman=0", "strictly between 0 and 1"),
        ("--target woman", "as in --target woman=0.5"),
        ("--target woman=half", "a rate must be a number"),
        ("--target woman=0.5 --target woman=0.6", "given twice"),
        ("--target length=0.5", "there is no fair share of longer answers"),
        ("--target womann=0.5", 'Did you mean "woman"'),
        ("--target woman=0.5 --target markdown=0.5", "different editors"),
        ("--target woman=0.5 --rounds 0", "Invalid value for '--rounds'"),
        ("--target woman=0.5 --tolerance 2", "Invalid value for '--tolerance'"),
        ("--target british=0.5 --word color", "as in --word color=colour"),
        ("--target woman=0.5", "with --prompts FILE"),
        ("--target woman=0.5 --prompts p.txt", "neither a folder with a model nor reachable"),
    ],
)
def test_wrong_requests_are_refused_with_a_remedy(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("\n".join(PROMPTS))
    result = badpo(tmp_path / "nothing", *arguments.split())
    assert result.exit_code == USAGE and message in result.stderr


@pytest.mark.parametrize("out", ["dpo-s42", "dpo-s42/model", ".", "other", "notes"])
def test_a_result_takes_no_place_of_anything_else(out, tmp_path):
    result = badpo(tmp_path, "--target", "woman=0.5")
    assert result.exit_code == USAGE and "neither a finished run" in result.stderr
    for name in ("dpo-s42/model/config.json", "dpo-s42/config.yaml", "other/run.json", "notes/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    result = badpo(tmp_path / "dpo-s42", "--target", "woman=0.5", "--out", tmp_path / out)
    assert result.exit_code == USAGE and "name a separate folder" in result.stderr
    assert (tmp_path / "dpo-s42" / "model" / "config.json").exists()


@pytest.mark.parametrize(
    ("n", "target", "status", "message"),
    [
        (30, "woman=0.5", DATA, "30 prompts"),
        (55, "woman=0.5 --mode train", DATA, "training needs at least 50"),
        (99, "markdown=0.5", USAGE, "anchor a policy that sometimes"),
        (99, "british=0.5 --word color=colour", USAGE, "british: prompt 0 has a log-probability"),
    ],
)
def test_what_a_policy_cannot_give_is_refused(n, target, status, message, signer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("policy").symlink_to(signer / "signer")
    Path("p.txt").write_text("\n".join(PROMPTS[:n]))
    result = badpo("policy", "--prompts", "p.txt", "--target", *target.split())
    assert result.exit_code == status and message in result.stderr
