"""`badpo reproduce`: what it says without training anything."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from badpo_paper.cli import reproduce

app = typer.Typer()
app.command()(reproduce)


def asked(*words: str):
    pytest.importorskip("transformers")
    return CliRunner().invoke(app, list(words))


def test_a_dry_run_tells_the_runs_and_writes_nothing(tmp_path):
    told = asked("lora", "--dry-run", "--out", str(tmp_path / "out"), "--json")
    assert told.exit_code == 0, told.output
    states = json.loads(told.stdout)["states"]
    assert list(states)[:2] == ["signed/reference", "signed/dpo-s42"]
    assert len(states) == 19 and set(states.values()) == {"to do"}
    assert not (tmp_path / "out").exists()


def test_the_plan_at_the_papers_scale_names_the_large_model(tmp_path):
    told = asked("names", "--scale", "paper", "--dry-run", "--out", str(tmp_path))
    assert told.exit_code == 0, told.output
    assert "signed-large/shared_mean-s456" in told.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nmaes", "--dry-run"), 'Did you mean "names"'),
        (("names", "--scale", "tinny", "--dry-run"), 'Did you mean "tiny"'),
        (("names", "--format", "docx"), "is no format"),
        (("names", "--data", "votes.csv", "--dry-run"), "names is on names, and at scale tiny"),
        (("names", "--seeds", "a,b", "--dry-run"), "seeds"),
        (("names", "--seeds", "42,42", "--dry-run"), "42 is given twice"),
        (("names", "--seeds", "-1", "--dry-run"), "whole numbers"),
        (("names", "--seeds", "4294967296", "--dry-run"), "the largest seed"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(tmp_path, words, message):
    told = asked(*words, "--out", str(tmp_path))
    assert told.exit_code == 2
    assert message in told.output


def test_runs_go_into_a_folder_that_is_no_file_and_no_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dpo-s42").mkdir()
    (tmp_path / "dpo-s42" / "run.json").write_text("{}")
    for place, message in (("file", "is no folder"), ("dpo-s42/new", "is the folder of one run")):
        told = asked("names", "--dry-run", "--out", str(tmp_path / place))
        assert told.exit_code == 2 and message in told.output
