"""Wrong recipes, votes and models, and a full disk: one clear message each, and nothing half-written."""

import errno
import pkgutil
import re
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
from huggingface_hub import constants

from badpo.training.recipe import _RecipeKeys as RecipeKeys
from tests import tiny
from tests.public_face import invoke
from tests.runs.recipes import log_lines, save_model, write_recipe, written

OK, FAILED, USAGE, DATA = 0, 1, 2, 3
NEVER = {"type": "regex", "name": "starts", "pattern": "^w0"}
SURE = {"type": "length", "ratio": 100.0}


def train(folder: Path, table: pd.DataFrame | None = None, *flags: str, **changes):
    """``badpo train`` on a recipe in a folder."""
    return invoke("train", "--config", write_recipe(folder, table, **changes), *flags)


def refused(result, code: int, folder: Path, *parts: str) -> None:
    """The command left with this code, its message has every part, and no file of a run was written."""
    assert result.exit_code == code, result.output
    for part in parts:
        assert part in result.stderr, result.stderr
    assert "Traceback" not in result.stderr
    assert written(folder / "runs") == set()


@pytest.fixture
def told(caplog):
    """A check that the command succeeded and said every part on the way."""

    def check(result, *parts: str) -> None:
        assert result.exit_code == OK, result.stderr
        for part in parts:
            assert part in caplog.text, caplog.text

    return check


@pytest.fixture
def votes() -> pd.DataFrame:
    return tiny.votes(40, 6)


@pytest.mark.parametrize(
    ("changes", "code", "parts"),
    [
        ({"attributes": [NEVER, SURE]}, DATA, ("E120 error", 'attribute "starts"', '"length"')),
        ({"dataset_name": "gone.csv"}, DATA, ("there is no such file", "gone.csv")),
        ({"beta": 0}, USAGE, ("beta is 0",)),
        ({"model_name_or_path": "./modle"}, USAGE, ("give a local folder",)),
        ({"bias": {"gold_annotators": ["nobody"]}}, USAGE, ("cast no vote in this table",)),
    ],
    ids=["votes", "table", "value", "model", "gold"],
)
def test_what_cannot_be_trained_is_refused_before_a_reference_is_trained(tmp_path, changes, code, parts):
    refused(train(tmp_path, reference={"sft": True}, **changes), code, tmp_path, *parts)


def test_a_short_name_of_an_option_is_answered_with_the_key(tmp_path):
    """The suggestion replaces the report that the key is missing."""
    result = invoke("train", "--model", "m", "--data", "v.csv", "--epochs", "1", "--attribute", "length")
    assert result.exit_code == USAGE
    first, *others = result.stderr.strip().splitlines()
    assert "--model_name_or_path" in first and len(others) == 2
    assert "--dataset_name" in others[0] and "--num_train_epochs" in others[1]
    assert all(line.startswith("E201 --") for line in (first, *others))
    missing = invoke("train", "--attribute", "length").stderr.strip().splitlines()
    keys = "model_name_or_path", "dataset_name"
    assert [line.split(" is missing")[0].split()[-1] for line in missing] == [f"--{k}" for k in keys]
    config = write_recipe(tmp_path, model="m")
    assert "E201 run.yaml:" in invoke("train", "--config", config).stderr


def test_the_help_of_train_names_keys_of_a_recipe():
    text = invoke("train", "--help").stdout
    named = set(re.findall(r"^ +--([a-z_]+_[a-z_]+)", text, re.MULTILINE))
    assert {"model_name_or_path", "dataset_name", "learning_rate", "max_steps", "held_out"} <= named
    assert named <= set(RecipeKeys.model_fields)


def test_what_is_left_out_is_told_and_the_rest_trained_on(tmp_path, votes, told):
    votes.loc[[7, 9], "annotator"] = None
    votes.loc[[3, 5], "winner"] = "tie"
    votes.loc[votes["comparison_id"] == "c30", "prompt"] = "red " * 60
    # DPO learns no bias that it could miss
    asked = {"attributes": [NEVER], "bias": "none", "annotators_missing": "drop", "max_length": 40}
    left_out = ("no annotator (1.7%)", "tie (1.7%)", "1 comparisons (3 judgments) are left out")
    told(train(tmp_path, votes, max_steps=1, held_out=0, **asked), "E120", *left_out)


def test_no_annotator_column(tmp_path, votes, told, caplog):
    votes = votes.drop(columns=["annotator", "annotator_class"])
    result = train(tmp_path, votes.assign(the_user="w"), reference={"sft": True})
    refused(result, USAGE, tmp_path, "bias: shared_mean needs an annotator column", "use bias: pooled")
    assert '"the_user" looks like it' in caplog.text
    alone = 'all votes count as one annotator, "everyone"'
    told(train(tmp_path, votes, max_steps=1), "N110", "N161", alone)
    assert (tmp_path / "runs" / "pooled-s42" / "run.json").exists()


@pytest.mark.parametrize("sft", [False, True])
def test_a_tokenizer_that_does_not_fit_the_model(tmp_path, sft):
    save_model(tmp_path / "model", n_tokens=12)
    remedy = "use the model's own tokenizer, or model.resize_token_embeddings"
    result = train(tmp_path, reference={"sft": sft})
    refused(result, DATA, tmp_path, "E151", "is outside the model's 12 embeddings", remedy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", "hello"),
        ("model.safetensors", None),
        ("config.json", "{"),
        ("config.json", '{"model_type": "nothing"}'),
        ("tokenizer.json", "{"),
    ],
)
def test_a_damaged_model(tmp_path, name, content):
    path = save_model(tmp_path / "model") / name
    path.write_text(content) if content else path.unlink()
    told = (f'cannot load "{tmp_path / "model"}"', "is missing", "opy or download the model again")
    refused(train(tmp_path), USAGE, tmp_path, *told)


@pytest.mark.parametrize(
    ("name", "answer", "is_offline"),
    [("an/model", OSError(), True), ("an/model", None, False), ("model", OSError(), False)],
)
def test_a_hub_that_does_not_answer_is_asked_once(tmp_path, monkeypatch, name, answer, is_offline):
    """The client would ask six times for each file; what is a folder is asked of nobody."""
    seen, asked = [], mock.Mock(side_effect=answer)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", asked)

    def load(name, **options):
        seen.append(constants.HF_HUB_OFFLINE)
        raise OSError("there is none")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", load)
    monkeypatch.setattr("huggingface_hub.snapshot_download", load)
    refused(train(tmp_path, None, model_name_or_path=name), USAGE, tmp_path, f'cannot load "{name}"')
    assert (seen, asked.call_count) == ([is_offline], "/" in name) and not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("writer", ["shutil.copy", "torch.save"])
def test_a_disk_that_is_full_at_a_checkpoint(tmp_path, monkeypatch, told, writer):
    """The checkpoint that was being written is removed; the one before it is resumed from."""
    write, run = pkgutil.resolve_name(writer), tmp_path / "runs" / "shared_mean-s42"
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(content, path):
        if "checkpoint-4" in str(path):
            # torch says nothing of the disk
            raise full if writer == "shutil.copy" else RuntimeError("unexpected pos 64 vs 0")
        write(content, path)

    with monkeypatch.context() as patch:
        patch.setattr(writer, fail)
        patch.setattr("tempfile.TemporaryFile", mock.Mock(side_effect=full))
        result = train(tmp_path)
    assert result.exit_code == FAILED and not (run / "model").exists()
    assert f"No space left on device: {run / 'checkpoints'}" in result.stderr
    assert "with --resume if there is a checkpoint" in result.stderr
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["checkpoint-2"]
    told(train(tmp_path, None, "--resume"))
    assert [line["step"] for line in log_lines(run)] == [1, 2, 3, 4]
