"""Wrong tables, recipes, models and disks: one clear message each, and nothing half-written."""

from __future__ import annotations

import errno
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.objective.bias import BiasTerm
from badpo.training import checkpoints
from tests import tiny
from tests.runs.recipes import as_chat, log_lines, save_model, write_recipe, written

OK, FAILED, USAGE, DATA = 0, 1, 2, 3
RUN = Path("runs") / "shared_mean-s42"
NEVER = {"type": "regex", "name": "starts", "pattern": "^w0"}
SURE = {"type": "length", "ratio": 100.0}


def badpo(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def train(folder: Path, table: pd.DataFrame | None = None, *flags: str, **changes):
    """``badpo train`` on a recipe in a folder."""
    return badpo("train", "--config", write_recipe(folder, table, **changes), *flags)


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


def with_values(column: str, value, *rows: int):
    def change(votes: pd.DataFrame) -> pd.DataFrame:
        votes.loc[list(rows), column] = value
        return votes

    return change


def without(*columns: str):
    return lambda votes: votes.drop(columns=list(columns))


# -- the table (what is wrong with tables is tested in tests/data) and the recipe --------------------------------

CANNOT_BE_TRAINED_ON = [
    (without("winner"), {}, ["E101", "columns missing: winner", "votes.jsonl, found: comparison_id, "]),
    (
        None,
        {"columns": {"annotator": "anotator"}},
        ["E103", 'column "anotator" (for annotator)', 'Did you mean "annotator"?'],
    ),
    (None, {"columns": {"worker": "who"}}, ['no entry "worker"']),
    (with_values("prompt", " ", 4), {}, ["E134", 'votes.jsonl, column "prompt", row 5', "fill it in"]),
    (with_values("annotator", None, 7, 9), {}, ["E112", 'column "annotator", rows 8', "fill it in"]),
    (
        None,
        {"attributes": [NEVER, SURE]},
        [
            'E120 error: attribute "starts" is 0 for every response of 96 judgments',
            'attribute "length"',
            "judge pairs that differ, lower the threshold, or do not declare the attribute",
        ],
    ),
    (None, {"max_length": 2}, ["E140", "no comparison fits", "raise max_length"]),
    (None, {"dataset_name": "gone.csv"}, ["there is no such file", "gone.csv"]),
]
WRONG_VALUES = [
    ({"betta": 0.1}, 'E201 run.yaml:3: unknown key "betta". Did you mean "beta"?'),
    ({"beta": 0}, "beta is 0"),
    ({"repeated": "keep"}, "repeated must be all or last"),
    ({"encoding": "ours"}, "choose one of trl, paper"),
    ({"model_name_or_path": "./modle"}, "give a local folder"),
]


@pytest.mark.parametrize(("change", "options", "parts"), CANNOT_BE_TRAINED_ON)
def test_a_table_that_cannot_be_trained_on(tmp_path, votes, change, options, parts):
    table = votes if change is None else change(votes)
    refused(train(tmp_path, table, **options), DATA, tmp_path, *parts)


@pytest.mark.parametrize(("changes", "message"), WRONG_VALUES)
def test_a_wrong_value_of_the_recipe(tmp_path, changes, message):
    refused(train(tmp_path, **changes), USAGE, tmp_path, message)


def test_a_recipe_that_is_not_there_or_no_yaml(tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [1\nb: 2")
    for name in ("no.yaml", "bad.yaml"):
        refused(badpo("train", "--config", tmp_path / name), USAGE, tmp_path, name)


def with_a_long_prompt(votes: pd.DataFrame) -> pd.DataFrame:
    is_third = votes["comparison_id"] == "c3"
    return votes.assign(prompt=votes["prompt"].mask(is_third, "red " * 60))


LEFT_OUT = [
    (
        with_values("annotator", None, 7, 9),
        {"annotators_missing": "drop"},
        ["N112", "2 of 120 rows left out: no annotator (1.7%)"],
    ),
    (with_values("winner", "tie", 3, 5), {}, ["N130", "2 of 120 rows left out: tie (1.7%)"]),
    (
        lambda votes: pd.concat([votes, votes[:2]], ignore_index=True),
        {"repeated": "last"},
        ["only the last is kept", "2 of 122 rows left out: repeated vote"],
    ),
    # DPO learns no bias that it could miss
    (lambda votes: votes, {"attributes": [NEVER], "bias": "none"}, ["E120"]),
    (
        with_a_long_prompt,
        {"max_length": 40},
        ["W140", "1 comparisons (3 judgments) are left out", "comparison c3", "raise max_length"],
    ),
]


@pytest.mark.parametrize(("change", "options", "parts"), LEFT_OUT)
def test_what_is_left_out_is_told_and_the_rest_trained_on(tmp_path, votes, told, change, options, parts):
    told(train(tmp_path, change(votes), max_steps=1, held_out=0, **options), *parts)


def test_one_annotator(tmp_path, votes, told):
    votes["annotator"] = "only me"
    result = train(tmp_path, votes.drop(columns="annotator_class"), max_steps=1)
    told(result, "W111", "1 annotator: shared_mean and per_annotator are the same as pooled")
    assert BiasTerm.load(tmp_path / RUN).parts == ("mean",)
    assert "only me" not in result.output


def test_no_annotator_column(tmp_path, votes, told, caplog):
    votes = votes.drop(columns=["annotator", "annotator_class"])
    result = train(tmp_path, votes.assign(worker_id="w"), reference={"sft": True})
    refused(result, USAGE, tmp_path, "bias: shared_mean needs an annotator column", "use bias: pooled")
    assert 'columns={"annotator": "worker_id"}' in caplog.text
    told(
        train(tmp_path, votes, max_steps=1),
        "N110",
        "N161",
        'all votes count as one annotator, "everyone"',
    )
    assert (tmp_path / "runs" / "pooled-s42" / "run.json").exists()


def test_no_message_shows_an_annotators_own_id(tmp_path, votes):
    votes["annotator"] = votes["annotator"].str.replace("person", "clara")
    votes.loc[1, "annotator"], votes.loc[2, "winner"] = None, "left"
    result = train(tmp_path, votes)
    assert "[ann_" in result.stderr and "clara" not in result.output


# -- tokenizers and models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sft", [False, True])
def test_a_tokenizer_that_does_not_fit_the_model(tmp_path, votes, sft):
    save_model(tmp_path / "model", n_tokens=12)
    remedy = "use the model's own tokenizer, or model.resize_token_embeddings"
    result = train(tmp_path, votes, reference={"sft": sft})
    refused(result, DATA, tmp_path, "E151", "is outside the model's 12 embeddings", remedy)


@pytest.mark.parametrize("changes", [{"encoding": "paper"}, {}], ids=["encoding", "messages"])
def test_a_missing_chat_template(tmp_path, votes, changes):
    save_model(tmp_path / "model", chat_template=None)
    result = train(tmp_path, votes if changes else as_chat(votes), **changes)
    refused(result, USAGE, tmp_path, "the tokenizer has no chat template", "Use an instruct model")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", lambda whole: b"hello"),
        ("model.safetensors", lambda whole: whole[:-1000]),
        ("model.safetensors", None),
        ("config.json", lambda whole: b"{"),
        ("config.json", lambda whole: b'{"model_type": "nothing"}'),
        ("tokenizer.json", lambda whole: b"{"),
    ],
    ids=["no-safetensors", "cut-off", "no-weights", "config", "model-type", "tokenizer"],
)
def test_a_damaged_model(tmp_path, name, content):
    path = save_model(tmp_path / "model") / name
    path.write_bytes(content(path.read_bytes())) if content else path.unlink()
    what = "is missing, damaged or not that of a causal language model"
    told = (f'cannot load "{tmp_path / "model"}"', what, "Copy or download the model again")
    refused(train(tmp_path), USAGE, tmp_path, *told)


# -- the disk ------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_a_checkpoint(tmp_path, monkeypatch, told):
    """The checkpoint that was being written is removed; the one before it is resumed from."""
    write_seal, folder = checkpoints.write_seal, tmp_path / RUN / "checkpoints"

    def fail(path, content, names):
        if path.name == checkpoints.MARKER and "checkpoint-4" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_seal(path, content, names)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_seal", fail)
        result = train(tmp_path)
    assert result.exit_code == FAILED and not (tmp_path / RUN / "model").exists()
    assert f"No space left on device: {folder / 'checkpoint-4'}" in result.stderr
    assert "free some space and try again; train continues with --resume" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]
    told(train(tmp_path, None, "--resume"))
    assert [line["step"] for line in log_lines(tmp_path / RUN)] == [1, 2, 3, 4]


# -- pairs of one's own ----------------------------------------------------------------------------------------


def test_pairs_of_ones_own_that_cannot_be_used(tmp_path):
    path = tmp_path / "pairs.csv"
    pairs = pd.DataFrame({"prompt": ["a"] * 30, "chosen": "b c d e f", "rejcted": "b c d e g"})
    scored = pairs.rename(columns={"rejcted": "rejected"}).assign(score_chosen="2", score_rejected="1")
    scored.loc[4, "score_chosen"], scored.loc[[6, 7], "chosen"] = "good", None
    lacking = "lacks the columns rejected, score_chosen, score_rejected"
    found = f"{path}, found: prompt, chosen, rejcted"
    unfit = "pairs.csv, column chosen, row 7 and 1 more", "pairs.csv, column score_chosen, row 5"
    for table, parts in ((pairs, ("E101", lacking, found)), (scored, unfit)):
        table.to_csv(path, index=False)
        result = badpo("corpus", "signed", path, "--out", tmp_path / "runs")
        refused(result, DATA, tmp_path, *parts)
