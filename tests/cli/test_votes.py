"""`audit`, `watch`, `import` and `forget` from the command line: what is printed and written, what wrong input gets."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.data.privacy import pseudonyms
from badpo.importers.convert import FORMATS
from tests.auditing.planted import votes

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "votes.csv"
EXPORT = ROOT / "examples" / "label_studio.json"
DOCUMENTED_KEY = "only for this example"
OK, USAGE, DATA = 0, 2, 3
FILES = {"audit.json", "annotators.parquet", "annotators.csv", "report.html"}
HOSTILE = {
    "nul": "w\0",
    "script": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "formula": "=cmd|' /C calc'!A0",
    "turned": "abc\u202edef",
    "long": "x" * 1_000_000,
}


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def audited(table: pd.DataFrame, folder: Path, *arguments: object):
    """``badpo audit`` on a table; the result, and the folder it wrote to."""
    table.to_parquet(path := folder / "votes.parquet")
    asked = (path, "--attribute", "length", "--out", folder / "audit")
    return run("audit", *asked, *arguments), folder / "audit"


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "audit.json").read_text())


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return votes(200, 6)[0]


# -- what it does --------------------------------------------------------------------------------------------


def test_people_have_a_page_where_it_is_asked_for_and_only_there(table, tmp_path):
    result, folder = audited(table, tmp_path, "--people")
    assert result.exit_code == OK, result.output
    names = set(pd.read_parquet(folder / "annotators.parquet")["annotator"])
    assert all(name in (folder / "people.html").read_text() for name in names)
    assert not any(name in (folder / "report.html").read_text() for name in names)
    again = audited(table, tmp_path)[0]
    assert again.stdout.startswith(f"reading {tmp_path / 'votes.parquet'}\n")
    assert f"report: {folder / 'report.html'}" in again.stdout
    assert {path.name for path in folder.iterdir()} == FILES


def test_options_reach_the_audit(table, tmp_path):
    options = ("--rho", 0.3, "--fdr", 0.05, "--min-informative", 5, "--quality", "random")
    result, folder = audited(table, tmp_path, *options)
    assert result.exit_code == OK, result.output
    asked = {"rho": 0.3, "fdr": 0.05, "min_informative": 5, "quality": "random"}
    assert asked.items() <= summary_of(folder)["settings"].items()


def test_columns_winners_and_anchors(table, tmp_path):
    theirs = table.rename(columns={"annotator": "worker"}).replace(
        {"winner": {"a": "left", "b": "right"}}
    )
    mapping = ("--column", "annotator=worker", "--winner", "left=a", "--winner", "right=b")
    result, folder = audited(theirs, tmp_path, *mapping, "--anchor", "w0", "--anchor", "w1")
    assert result.exit_code == OK, result.output
    assert summary_of(folder)["checks"]["anchors"]["n"] == 2
    assert "w0" not in (folder / "audit.json").read_text()
    audited(table, tmp_path, "--anchor-class", "staff")
    assert summary_of(folder)["checks"]["anchors"]["class"] == "staff"


# -- privacy and hostile text --------------------------------------------------------------------------------


def test_e_mail_addresses_never_leave_the_table(table, tmp_path):
    mails = table.assign(annotator=table["annotator"] + "@example.org")
    result, folder = audited(mails, tmp_path)
    assert result.exit_code == OK
    assert "W301" in {row["code"] for row in summary_of(folder)["warnings"]}
    for path in folder.iterdir():
        assert b"@example.org" not in path.read_bytes(), path.name
    assert "@example.org" not in result.output


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_does_nothing_in_the_page_and_in_the_spreadsheet(table, tmp_path, text):
    hostile = table.copy()
    of_one = hostile.index[hostile["annotator"] == "w1"][:8]
    hostile.loc[of_one, ["annotator", "annotator_class"]] = text
    hostile["prompt"] += text[:100]
    hostile["response_a"] += f" {text[:100]}"
    result, folder = audited(hostile, tmp_path)
    assert result.exit_code == OK, result.output[-500:]
    page = (folder / "report.html").read_text().lower()
    assert (
        not any(text in page for text in ("<script", "<img", "\u202e", "\0")) and len(page) < 1_000_000
    )
    cells = (folder / "annotators.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(cells.splitlines()))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    assert not {"\u202e", "\0"} & set(cells)


# -- little, odd and wrong data ------------------------------------------------------------------------------


def test_without_an_annotator_column(table, tmp_path):
    result, folder = audited(table.drop(columns=["annotator", "annotator_class"]), tmp_path)
    assert result.exit_code == OK, result.output
    assert "annotator" in result.stdout and pd.read_parquet(folder / "annotators.parquet").empty


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--attribute", "emoji"), DATA, "E120"),
        (("--attribute", "lenght"), USAGE, 'Did you mean "length"?'),
        (("--quality", "fixed:score"), USAGE, "score_a and score_b"),
        (("--anchor", "nobody"), USAGE, "cast no vote"),
        (("--fdr", 2), USAGE, "fdr"),
        (("--column", "annotator=worker"), DATA, 'column "worker" (for annotator)'),
    ],
)
def test_what_is_refused(table, tmp_path, arguments, code, message):
    result, folder = audited(table, tmp_path, *arguments)
    assert result.exit_code == code, result.output
    assert message in result.stderr and "Traceback" not in result.stderr
    assert not folder.exists()


def test_no_attribute_and_no_file(table, tmp_path):
    table.to_parquet(tmp_path / "votes.parquet")
    result = run("audit", tmp_path / "votes.parquet")
    assert result.exit_code == USAGE
    assert "--attribute length" in result.stderr
    assert run("audit", tmp_path / "vote.parquet", "--attribute", "length").exit_code == DATA


# -- watch ---------------------------------------------------------------------------------------------------


def test_watch_counts_what_is_new(table, tmp_path):
    path, state = tmp_path / "votes.parquet", tmp_path / "state.json"
    for n, new in ((400, 100), (800, 100)):
        table.head(n).to_parquet(path)
        result = run("watch", path, "--state", state, "--attribute", "length", "--json")
        assert result.exit_code == OK, result.output
        assert json.loads(result.stdout)["n_new"] == new
    text = run("watch", path, "--state", state, "--attribute", "length")
    assert "breaks the guarantee" in re.sub(r"\s+", " ", text.stdout)


# -- import and forget ----------------------------------------------------------------------------------------


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", DOCUMENTED_KEY)


def test_import_says_what_came_along_and_names_the_mapping(tmp_path):
    mapping = ("--write-mapping", tmp_path / "who.json")
    result = run("import", EXPORT, "-o", tmp_path / "j.parquet", *mapping)
    assert result.exit_code == 0 and result.output.startswith(f"reading {EXPORT}\n")
    assert re.search(r"personal +annotations\.completed_by\.email", result.output)
    assert "not submitted=1, " in result.output and str(tmp_path / "j.parquet") in result.output
    assert f"{tmp_path / 'who.json'}: whose pseudonym is whose" in result.output
    assert len(json.loads((tmp_path / "who.json").read_text())) == 3


def test_import_takes_names_labels_and_columns(tmp_path):
    row = {"q": "Why?", "x": "So.", "y": "No.", "vote": "left", "who": "007"}
    row |= {"topic": "t", "mail": "a@b.c"}
    pd.DataFrame([row]).to_csv(tmp_path / "votes.csv", index=False)
    names = ("prompt=q", "response_a=x", "response_b=y", "winner=vote", "annotator=who")
    columns = [part for name in names for part in ("--column", name)]
    out = ("-o", tmp_path / "j.parquet", "--winner", "left=a", "--format", "table")
    assert run("import", tmp_path / "votes.csv", *columns, *out, "--keep", "topic").exit_code == 0
    table = pd.read_parquet(tmp_path / "j.parquet")
    assert (table["topic"][0], table["annotator"][0]) == ("t", pseudonyms(["007"])[0])
    assert "mail" not in table
    refused = run("import", tmp_path / "votes.csv", *columns, *out, "--keep", "mail")
    assert (refused.exit_code, "stays behind" in refused.stderr) == (2, True)


def test_a_wrong_format_lists_those_that_are_known(tmp_path):
    result = run("import", EXPORT, "--format", "unheard of", "-o", tmp_path / "j.parquet")
    assert result.exit_code == 2 and all(name in result.stderr for name in FORMATS)


@pytest.fixture
def imported(tmp_path) -> Path:
    assert run("import", EXPORT, "-o", tmp_path / "j.parquet").exit_code == 0
    return tmp_path / "j.parquet"


def test_forget_takes_a_raw_id_and_says_when_nobody_is_there(imported):
    planned = run("forget", "7", "--data", imported, "--dry-run")
    assert f"would be taken out: {imported}: 2 judgments" in planned.output
    assert len(pd.read_parquet(imported)) == 6
    done = run("forget", "7", "--data", imported)
    assert done.exit_code == 0, done.output
    assert f"taken out: {imported}: 2 judgments" in done.output
    assert "7" not in re.findall(r"\b\d+\b", done.output.replace(str(imported), ""))
    assert len(pd.read_parquet(imported)) == 4
    again = run("forget", "7", "--data", imported)
    assert (again.exit_code, "another spelling of the id" in again.output) == (3, True)


def test_forget_needs_a_place_and_a_key(imported, monkeypatch, tmp_path):
    assert run("forget", "7").exit_code == 2
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    lost = run("forget", "7", "--data", imported)
    assert (lost.exit_code, "bring the key back" in lost.stderr) == (2, True)
    assert not (tmp_path / "empty").exists()


def documented() -> list[tuple[str, str]]:
    """Commands of docs/cli.md with the output that stands under them."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.S)
    shown = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in shown]


@pytest.mark.usefixtures("key")
def test_the_documentation_shows_what_is_printed(monkeypatch, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    of_votes = ("import", "forget")
    commands = [command for command in documented() if shlex.split(command[0])[1] in of_votes]
    assert len(commands) >= 3
    for command, output in commands:
        assert run(*shlex.split(command)[1:]).output == output
