"""`badpo anchor` on a tiny model that signs its answers: both modes, what is written, what wrong input gets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification
from typer.testing import CliRunner

from badpo.anchoring import source
from badpo.anchoring.anchor import Anchor
from badpo.anchoring.editors import SignatureSwap
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
        assert row["asked"] == target and row["rounds"] == 0
        assert abs(row["achieved"] - target) < 0.05
        assert row["ci_low"] <= row["achieved"] <= row["ci_high"]
        assert row["c"] == pytest.approx(0.1 * row["shift"])
    assert found["woman"]["before"] > 0.6 and found["woman"]["c"] < 0
    assert_face("anchor --json", keys(found))
    moved = found["moved"]
    assert moved["heldout"] is None and moved["kl_reference"]["after"] is None
    # whether an answer is signed does not depend on the name, and names are drawn as they were asked for
    assert moved["editable"]["before"] > 0.8 and moved["editable"]["difference"] == 0.0
    assert abs(moved["tokens"]["ratio"] - 1) < 0.15
    for name, target in (("woman", 0.5), ("black", 0.4)):
        drawn = moved["sampled"][name]["after"]
        assert drawn["low"] < target < drawn["high"]
    assert 0 < moved["kl_source"]["per_response"] < 2
    assert not (tmp_path / "out" / "model").exists()


def test_a_reward_model_scores_the_answers_as_they_are_and_without_names(signer, tmp_path):
    judge = tmp_path / "judge"
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    tokenizer = AutoTokenizer.from_pretrained(signer / "signer")
    config = Qwen3Config(
        **shape, vocab_size=len(tokenizer), head_dim=8, num_key_value_heads=2, num_labels=1
    )
    config.pad_token_id = tokenizer.pad_token_id
    torch.manual_seed(0)
    Qwen3ForSequenceClassification(config).save_pretrained(judge)
    tokenizer.save_pretrained(judge)
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.5", "--judge", judge)["moved"][
        "judge"
    ]
    for row in found.values():
        assert row["ci_low"] <= row["difference"] <= row["ci_high"]
    # the bodies are those of the source's answers, and the names are what the tilt exchanges
    assert abs(found["rm_minus"]["difference"]) < abs(found["rm"]["difference"])


def test_a_judge_that_is_none_is_refused_before_anything_is_sampled(signer, tmp_path):
    given = ("--prompts", signer / "prompts.txt", "--out", tmp_path / "out", "--target", "woman=0.5")
    result = badpo(signer / "signer", *given, "--judge", signer / "signer")
    assert result.exit_code == USAGE
    assert "is no reward model" in result.output


def test_one_target_leaves_the_other_attribute_alone(signer, tmp_path):
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.2")
    assert "black" not in found and abs(found["woman"]["achieved"] - 0.2) < 0.05
    sampled = {
        name: row["after"]["rate"] - row["before"]["rate"]
        for name, row in found["moved"]["sampled"].items()
    }
    assert sampled["woman"] < -0.25 and abs(sampled["black"]) < 0.2
    alone = Anchor(SignatureSwap(), {"black": 0.3})
    assert alone.whole_shift(np.array([-1.5])).tolist() == [0.0, -1.5]


def test_a_target_that_is_missed_ends_with_status_one_once_everything_is_written(signer, tmp_path):
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.5", tolerance=1e-9)
    assert not found["converged"]
    assert found["reason"].startswith("woman 0.") and "accept a wider tolerance" in found["reason"]
    assert found["exact"] and "closed form" in found["how"] and found["prompts"]["report"] > 10


def test_training_ends_within_the_tolerance(signer, tmp_path):
    options = ("--mode", "train", "--steps", 120, "--learning-rate", 3e-3)
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.4", *options, tolerance=0.08)
    assert found["converged"]
    rounds = found["calibration"]
    assert found["woman"]["asked_shift"] in [measured["intended"][0] for measured in rounds]
    assert abs(found["woman"]["achieved"] - 0.4) <= 0.12
    assert 1 <= found["woman"]["rounds"] <= 4
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model", "anchor.json", "run.json"}
    assert run_damage(tmp_path / "out") is None


def test_a_run_of_a_suite_is_measured_against_its_reference(tmp_path, monkeypatch):
    run_suite(tmp_path)
    monkeypatch.setattr(source, "N_REPORT", 8)
    monkeypatch.setattr(source, "FEWEST_PROMPTS", 10)
    targets = ("--target", "woman=0.3", "--target", "black=0.6", "--tolerance", 0.5)
    result = badpo(tmp_path / "dpo-s42", *targets, "--json")
    assert result.exit_code == OK, result.output
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "dpo-s42-anchored" / "anchor.json").read_text())
    moved = found["moved"]
    assert moved["heldout"]["same"]["difference"] == 0.0 and moved["heldout_from"] == "closed form"
    assert moved["kl_reference"]["after"]["per_token"] is not None
    # what the run is measured against is looked at too
    (tmp_path / "elsewhere").write_text("of somebody else")
    (tmp_path / "reference" / "notes.txt").symlink_to(tmp_path / "elsewhere")
    refused = badpo(tmp_path / "dpo-s42", *targets, "--out", tmp_path / "out")
    assert refused.exit_code == USAGE and "notes.txt is a symbolic link that leads out" in refused.stderr
    (tmp_path / "reference" / "notes.txt").unlink()
    weights = tmp_path / "reference" / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused = badpo(tmp_path / "dpo-s42", *targets, "--out", tmp_path / "out")
    assert refused.exit_code == USAGE and "model.safetensors is damaged" in refused.stderr


def test_words_of_ones_own_on_a_run_of_a_recipe(tmp_path, monkeypatch):
    recipe = read_recipe(write_recipe(tmp_path))
    run = train_run(recipe)
    monkeypatch.setattr(source, "FEWEST_PROMPTS", 10)
    words = ("--target", "colour=0.6", "--word", "red=blue", "--tolerance", 0.6)
    result = badpo(run, *words, "--json")
    assert result.exit_code == OK, result.output
    found = json.loads(result.stdout)
    colour = found["colour"]
    assert 0 < colour["acceptance_rate"] <= 1 and 0 < colour["counted"] < 1
    assert colour["ci_low"] <= colour["achieved"] <= colour["ci_high"]
    assert "without" in colour
    assert found["prompts"]["from"].startswith(
        "prompts that the run was trained on, for it held out 7 only"
    )
    text = badpo(run, *words)
    assert "moved" in text.stdout and "anchor.json" in text.stdout
    assert "of them: exact" in text.stdout


# -- what wrong input gets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to anchor"),
        (["--target", "woman=1"], "strictly between 0 and 1"),
        (["--target", "woman=0"], "strictly between 0 and 1"),
        (["--target", "woman"], "as in --target woman=0.5"),
        (["--target", "woman=half"], "the rate is no number"),
        (["--target", "woman=0.5", "--target", "woman=0.6"], "given twice"),
        (["--target", "length=0.5"], "a length has no fair rate"),
        (["--target", "womann=0.5"], 'Did you mean "woman"'),
        (["--target", "woman=0.5", "--target", "markdown=0.5"], "different editors"),
        (["--target", "woman=0.5", "--mode", "dance"], "Invalid value for '--mode'"),
        (["--target", "woman=0.5", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["--target", "woman=0.5", "--tolerance", "2"], "Invalid value for '--tolerance'"),
        (["--target", "british=0.5", "--word", "color"], "as in --word color=colour"),
        (["--target", "woman=0.5"], "name a file of them with --prompts FILE"),
        (["--target", "woman=0.5", "--prompts", "p.txt"], "neither a folder with a model nor reachable"),
    ],
)
def test_wrong_requests_are_refused_with_a_remedy(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("\n".join(PROMPTS))
    result = badpo(tmp_path / "nothing", *arguments)
    assert result.exit_code == USAGE
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("out", ["dpo-s42", "dpo-s42/model", ".", "other", "notes"])
def test_a_result_takes_no_place_of_anything_else(out, tmp_path):
    result = badpo(tmp_path, "--target", "woman=0.5")
    assert result.exit_code == USAGE and "neither a finished run" in result.stderr
    for name in ("dpo-s42/model/config.json", "dpo-s42/config.yaml", "other/run.json", "notes/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    result = badpo(tmp_path / "dpo-s42", "--target", "woman=0.5", "--out", tmp_path / out)
    assert result.exit_code == USAGE and "give the result a folder of its own" in result.stderr
    assert (tmp_path / "dpo-s42" / "model" / "config.json").exists()


def test_too_few_prompts_and_too_few_signed_answers(signer, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(PROMPTS[:30]))
    result = badpo(signer / "signer", "--prompts", few, "--target", "woman=0.5")
    assert result.exit_code == DATA and "30 prompts" in result.stderr
    few.write_text("\n".join(PROMPTS[:55]))
    given = ("--prompts", few, "--target", "woman=0.5", "--mode", "train", "-o", tmp_path / "out")
    result = badpo(signer / "signer", *given)
    assert result.exit_code == DATA and "the stage needs 50 or more" in result.stderr


def test_a_calibration_that_does_not_converge_says_why(signer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--mode", "train", "--steps", 2, "--learning-rate", 1e-5, "--rounds", 2)
    found = anchored(signer, tmp_path / "out", "--target", "woman=0.3", *options)
    assert not found["converged"] and "more steps" in found["reason"]


def test_markdown_that_is_never_produced_is_refused(signer, tmp_path):
    given = ("--prompts", signer / "prompts.txt", "-o", tmp_path / "out")
    result = badpo(signer / "signer", *given, "--target", "markdown=0.5")
    assert result.exit_code == USAGE and "markdown: the policy never produces it" in result.stderr
    assert "anchor a policy that shows it sometimes" in result.stderr
    # no answer has either spelling
    result = badpo(signer / "signer", *given, "--target", "british=0.5", "--word", "color=colour")
    assert result.exit_code == USAGE and "british: prompt 0 has a log-probability" in result.stderr
    assert "--prompts" in result.stderr
