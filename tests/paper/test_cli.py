"""The commands of the paper: `corpus` and `reproduce`, without training anything."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from tests.paper.corpora import public_rows


def run(*arguments: object):
    if arguments[0] == "reproduce":
        pytest.importorskip("transformers")
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_corpus_signed_writes_a_table_that_check_reads(tmp_path):
    result = run("corpus", "signed", "--out", tmp_path / "signed", "--n", "60", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_judgments"] == 240
    counts = json.loads(run("check", tmp_path / "signed" / "judgments.parquet", "--json").stdout)
    assert (counts["judgments"], counts["comparisons"]) == (240, 60)
    planted = pd.read_parquet(tmp_path / "signed" / "planted.parquet")
    assert planted[["woman", "black"]].notna().all(axis=None)


def test_multipref(tmp_path):
    words = ("corpus", "multipref", tmp_path / "rows.parquet", "-o", tmp_path / "out")
    public_rows.multipref(120).to_parquet(tmp_path / "rows.parquet")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "comparisons                            120     10,461  differs" in result.output
    assert "of 21 agree with the published statistics" in result.output
    expected = {"name": "comparisons", "found": 120.0, "published": 10461, "agrees": False}
    assert json.loads(run(*words, "--json").output)["gate"][0] == expected


def test_ultrafeedback_with_a_file_that_is_too_small(tmp_path):
    rows = tmp_path / "rows.parquet"
    public_rows.ultrafeedback(30).to_parquet(rows)
    result = run("corpus", "ultrafeedback", rows, rows, "-o", tmp_path / "out")
    assert result.exit_code == 3 and result.output.count("E154") == 1
    assert "it has 30 rows, and 8,000 from position 0 on are asked for" in result.output


def test_style(tmp_path):
    result = run("corpus", "style", "-o", tmp_path, "--n", 200)
    assert result.exit_code == 0 and "planted_mean" in result.output
    assert (tmp_path / "planted.parquet").is_file()


def test_a_dry_run_tells_the_runs_and_writes_nothing(tmp_path):
    told = run("reproduce", "lora", "--dry-run", "--out", tmp_path / "out", "--json")
    assert told.exit_code == 0, told.output
    states = json.loads(told.stdout)["states"]
    assert list(states)[:2] == ["signed/reference", "signed/dpo-s42"]
    assert len(states) == 19 and set(states.values()) == {"to do"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nmaes", "--dry-run"), 'Did you mean "names"'),
        (("names", "--scale", "tinny", "--dry-run"), 'Did you mean "tiny"? Known: tiny, demo, paper'),
        (("names", "--format", "docx"), 'no format "docx"'),
        (("names", "--data", "votes.csv", "--dry-run"), "which scale tiny does not read"),
        (("names", "--seeds", "a,b", "--dry-run"), "seeds"),
        (("names", "--seeds", "42,42", "--dry-run"), "42 is given twice"),
        (("names", "--seeds", "-1", "--dry-run"), "whole numbers"),
        (("names", "--seeds", "4294967296", "--dry-run"), "the largest seed"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(tmp_path, words, message):
    told = run("reproduce", *words, "--out", tmp_path)
    assert told.exit_code == 2 and message in told.output
