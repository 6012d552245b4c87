"""`badpo import` and `badpo forget`: what they print, their exit codes, and that the documentation shows just that."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.data.privacy import pseudonyms
from badpo.importers.formats import FORMATS

ROOT = Path(__file__).parents[1]
EXPORT = ROOT / "examples" / "label_studio.json"
DOCUMENTED_KEY = "only for this example"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", DOCUMENTED_KEY)


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_import_says_what_came_along_and_what_did_not(tmp_path):
    result = run("import", EXPORT, "-o", tmp_path / "j.parquet")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"reading {EXPORT}\n")
    assert re.search(r"personal +annotations\.completed_by\.email", result.output)
    assert re.search(r"not submitted +1\n", result.output)
    assert result.output.endswith(f"\n{tmp_path / 'j.parquet'}\n")


def test_import_as_json(tmp_path):
    told = json.loads(run("import", EXPORT, "-o", tmp_path / "j.parquet", "--json").stdout)
    assert (told["format"], told["judgments"], told["makes"]) == ("label-studio", 6, "judgments")
    assert {problem["code"] for problem in told["problems"]} == {"N119", "N130"}


def test_import_takes_names_labels_and_columns(tmp_path):
    frame = pd.DataFrame(
        {
            "q": ["Why?"],
            "x": ["So."],
            "y": ["No."],
            "vote": ["left"],
            "who": ["007"],
            "topic": ["t"],
            "mail": ["a@b.c"],
        }
    )
    frame.to_csv(tmp_path / "votes.csv", index=False)
    names = ("prompt=q", "response_a=x", "response_b=y", "winner=vote", "annotator=who")
    columns = [part for name in names for part in ("--column", name)]
    out = ("-o", tmp_path / "j.parquet", "--winner", "left=a", "--format", "table")
    assert run("import", tmp_path / "votes.csv", *columns, *out, "--keep", "topic").exit_code == 0
    table = pd.read_parquet(tmp_path / "j.parquet")
    assert (table["topic"][0], table["annotator"][0]) == ("t", pseudonyms(["007"])[0])
    assert "mail" not in table
    refused = run("import", tmp_path / "votes.csv", *columns, *out, "--keep", "mail")
    assert (refused.exit_code, "stays behind" in refused.stderr) == (2, True)


def test_import_names_the_mapping_it_wrote(tmp_path):
    result = run("import", EXPORT, "-o", tmp_path / "j.parquet", "--write-mapping", tmp_path / "who.json")
    assert f"{tmp_path / 'who.json'}: whose pseudonym is whose" in result.output
    assert len(json.loads((tmp_path / "who.json").read_text())) == 3


def test_import_of_an_unknown_table_leaves_with_3(tmp_path):
    pd.DataFrame({"x": [1]}).to_csv(tmp_path / "x.csv", index=False)
    result = run("import", tmp_path / "x.csv", "-o", tmp_path / "j.parquet")
    assert result.exit_code == 3
    assert "E145" in result.stderr
    assert "E101" in result.stderr


def test_the_help_names_every_format():
    text = " ".join(run("import", "--help").output.replace("│", " ").split())
    assert all(name in text for name in FORMATS)


@pytest.fixture
def table(tmp_path) -> Path:
    assert run("import", EXPORT, "-o", tmp_path / "j.parquet").exit_code == 0
    return tmp_path / "j.parquet"


def test_forget_takes_a_raw_id_and_says_when_nobody_is_there(table):
    planned = run("forget", "7", "--data", table, "--dry-run")
    assert f"would be taken out: {table}: 2 judgments" in planned.output
    assert len(pd.read_parquet(table)) == 6
    done = run("forget", "7", "--data", table)
    assert done.exit_code == 0, done.output
    assert f"taken out: {table}: 2 judgments" in done.output
    assert "7" not in re.findall(r"\b\d+\b", done.output.replace(str(table), ""))
    assert len(pd.read_parquet(table)) == 4
    again = run("forget", "7", "--data", table)
    assert (again.exit_code, "another spelling of the id" in again.output) == (3, True)


def test_forget_as_json(table):
    told = json.loads(run("forget", "7", "--data", table, "--json").stdout)
    assert told["annotators"] == pseudonyms(["7"])
    assert [(trace["path"], trace["erased"]) for trace in told["traces"]] == [(str(table), True)]


def test_forget_needs_a_place_and_a_key(table, monkeypatch, tmp_path):
    assert run("forget", "7").exit_code == 2
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    lost = run("forget", "7", "--data", table)
    assert (lost.exit_code, "bring the key back" in lost.stderr) == (2, True)
    assert not (tmp_path / "empty").exists()


def test_the_two_commands_load_no_torch(tmp_path):
    program = (
        "import sys; from typer.testing import CliRunner; from badpo.cli.main import app\n"
        f"out = {str(tmp_path / 'j.parquet')!r}\n"
        f"assert CliRunner().invoke(app, ['import', {str(EXPORT)!r}, '-o', out]).exit_code == 0\n"
        "assert CliRunner().invoke(app, ['forget', '7', '--data', out]).exit_code == 0\n"
        "print(*[name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (finished.returncode, finished.stdout.split()) == (0, []), finished.stderr


def documented() -> list[tuple[str, str]]:
    """Commands of docs/cli.md with the output that stands under them."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.S)
    shown = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in shown]


def test_the_documentation_shows_what_is_printed(monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = [command for command in documented() if shlex.split(command[0])[1] in ("import", "forget")]
    assert len(commands) >= 3
    for command, output in commands:
        assert run(*shlex.split(command)[1:]).output == output
