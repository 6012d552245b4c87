"""The corpus commands print every statistic beside the published one, and fail in one message."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from badpo_paper.cli import corpus_multipref, corpus_style, corpus_ultrafeedback
from tests.data.corpora import public_rows


@pytest.fixture
def run():
    app = typer.Typer()
    for name, command in (
        ("multipref", corpus_multipref),
        ("ultrafeedback", corpus_ultrafeedback),
        ("style", corpus_style),
    ):
        app.command(name)(command)
    return lambda *arguments: CliRunner().invoke(app, list(map(str, arguments)))


def test_multipref(run, tmp_path):
    public_rows.multipref(120).to_parquet(tmp_path / "rows.parquet")
    result = run("multipref", tmp_path / "rows.parquet", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "comparisons                            120     10,461  differs" in result.output
    assert "of 21 agree with the published statistics" in result.output
    as_json = run("multipref", tmp_path / "rows.parquet", "-o", tmp_path / "out", "--json")
    assert json.loads(as_json.output)["gate"][0] == {
        "name": "comparisons",
        "found": 120.0,
        "published": 10461,
        "agrees": False,
    }


def test_ultrafeedback_with_a_file_that_is_too_small(run, tmp_path):
    public_rows.ultrafeedback(30).to_parquet(tmp_path / "rows.parquet")
    result = run(
        "ultrafeedback", tmp_path / "rows.parquet", tmp_path / "rows.parquet", "-o", tmp_path / "out"
    )
    assert result.exit_code == 3 and result.output.count("E154") == 1
    assert "it has 30 rows, and 8,000 from position 0 on are asked for" in result.output


def test_style(run, tmp_path):
    result = run("style", "-o", tmp_path, "--n", 200)
    assert result.exit_code == 0 and "planted_mean" in result.output
    assert (tmp_path / "planted.parquet").is_file()
