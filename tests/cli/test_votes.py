"""`audit`, `watch`, `import` and `forget` from the command line: what is printed and written, what wrong input gets."""

import csv
import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from badpo.data.privacy import pseudonyms
from badpo.importers.convert import FORMATS
from tests.auditing.planted import votes
from tests.public_face import invoke as run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "votes.csv"
EXPORT = ROOT / "examples" / "label_studio.json"
OK, USAGE, DATA, NOT_MET = 0, 2, 3, 4
FILES = {".gitignore", "audit.json", "annotators.parquet", "annotators.csv", "report.html"}
HOSTILE = (
    *("w\0", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "=cmd|' /C calc'!A0"),
    *("abc\u202edef", "x" * 100_000),
)


def audited(table: pd.DataFrame, folder: Path, *arguments: object):
    """``badpo audit`` on a table; the result, and the folder it wrote to."""
    table.to_parquet(path := folder / "votes.parquet")
    return run("audit", path, "--out", folder / "audit", *arguments), folder / "audit"


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "audit.json").read_text())


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return votes(200, 6)[0]


def test_people_have_a_page_where_it_is_asked_for_and_only_there(table, tmp_path):
    result, folder = audited(table, tmp_path, "--attribute", "length", "--people", "--rho", "0")
    assert result.exit_code == OK, result.output
    names = set(pd.read_parquet(folder / "annotators.parquet")["annotator"])
    assert all(name in (folder / "people.html").read_text() for name in names)
    assert not any(name in (folder / "report.html").read_text() for name in names)
    assert f"comparisons of flagged annotators to reread: {folder / 'reread.csv'}" in result.stdout
    assert (folder / "reread.csv").stat().st_mode & 0o777 == 0o600
    people = pd.read_csv(folder / "people.csv")
    assert set(people["annotator"]) == names and "name" in people
    assert (folder / "people.csv").stat().st_mode & 0o777 == 0o600
    texts = pd.read_csv(folder / "reread.csv")["response_a"]
    assert set(texts) <= set(table["response_a"]) and len(texts)
    nobody = table.drop(columns=["annotator", "annotator_class"])
    again = audited(nobody, tmp_path, "--attribute", "length")[0]
    assert pd.read_parquet(folder / "annotators.parquet").empty
    assert again.stdout.startswith(f"reading {tmp_path / 'votes.parquet'}\n")
    assert "replaces the audit of" not in again.stderr
    other = run("audit", EXAMPLE, "--attribute", "length", "--out", folder)
    assert f"the audit of votes.csv replaces the audit of votes.parquet in {folder}" in other.stderr
    assert f"report: {folder / 'report.html'}" in again.stdout
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_bound_that_is_passed_exits_with_four_and_a_wrong_one_with_two(table, tmp_path):
    options = "--attribute length --fail-on length.log_odds>0.1 --fail-on length.n_cross<1"
    result, folder = audited(table, tmp_path, *options.split())
    assert result.exit_code == 4 and {path.name for path in folder.iterdir()} == FILES
    row = summary_of(folder)["attributes"][0]
    interval = " to ".join(f"{row[end]:.2f}" for end in ("ci_low", "ci_high"))
    told = f"--fail-on length.log_odds>0.1: log_odds is {row['log_odds']:.2f}, 95 % confidence interval {interval}"
    assert result.stderr == f"{told}\n"
    for bound, message in (
        ("length.shared_bias>1", "has no shared_bias; it has n"),
        ("length>1", "in quotes"),
    ):
        (tmp_path / bound).mkdir()
        result, folder = audited(table, tmp_path / bound, "--fail-on", bound, "--json")
        assert result.exit_code == 2 and message in json.loads(result.stdout)["error"]
        # what cannot be read is told before the audit
        assert (folder / "audit.json").exists() == (bound == "length.shared_bias>1")
    refused = run("audit", tmp_path / "unread", "--out", tmp_path / "votes.parquet")
    assert refused.exit_code == 2 and f"such as {tmp_path / 'audit'}" in refused.stderr
    refused = run("report", tmp_path / "unread", "--out", tmp_path)
    assert refused.stderr.endswith(f"--out must be a file: --out {tmp_path / 'report.html'}\n")


def test_options_reach_the_audit(table, tmp_path):
    theirs = table.rename(columns={"annotator": "worker"})
    theirs["winner"] = theirs["winner"].map({"a": "left", "b": "right"})
    options = "--attribute length --rho 0.3 --fdr 0.05 --quality marginal"
    options += " --column annotator=worker --winner left=a --winner right=b"
    result, folder = audited(theirs, tmp_path, *options.split(), "--anchor", "w0", "--anchor", "w1")
    assert result.exit_code == OK, result.output
    asked = {"rho": 0.3, "fdr": 0.05, "quality": "marginal"}
    assert asked.items() <= summary_of(folder)["settings"].items()
    assert summary_of(folder)["checks"]["anchors"]["n"] == 2
    assert "w0" not in (folder / "audit.json").read_text()
    audited(table, tmp_path, "--attribute", "length", "--anchor-class", "staff")
    assert summary_of(folder)["checks"]["anchors"]["class"] == "staff"


def test_hostile_texts_do_nothing_in_the_page_and_in_the_spreadsheet(table, tmp_path):
    hostile = table.copy()
    for name, text in zip(sorted(set(table["annotator"])), HOSTILE, strict=True):
        hostile.loc[table["annotator"] == name, ["annotator", "annotator_class"]] = text, f"{text}s"
    for column in ("prompt", "response_a"):
        hostile[column] += " ".join(text[:100] for text in HOSTILE)
    result, folder = audited(hostile, tmp_path, "--attribute", "length")
    assert result.exit_code == OK, result.output[-500:]
    page = (folder / "report.html").read_text().lower()
    assert not any(text in page for text in ("<script", "<img", "\u202e", "\0"))
    assert len(page) < 100_000, len(page)
    cells = (folder / "annotators.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(cells.splitlines()))
    assert {len(row) for row in rows} == {len(rows[0])} and "cmd|" in cells
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)
    assert not {"\u202e", "\0"} & set(cells)


def test_a_table_alone_is_audited_and_what_never_differs_is_left_out(table, tmp_path):
    for arguments, code, message in (("emoji", DATA, "E120"), ("length --fdr 2", USAGE, "fdr")):
        result, folder = audited(table, tmp_path, "--attribute", *arguments.split())
        assert result.exit_code == code and message in result.stderr and not folder.exists()
    result, folder = audited(table.assign(shown_first="a"), tmp_path)
    assert result.exit_code == OK, result.output
    found = summary_of(folder)
    assert [row["name"] for row in found["attributes"]] == ["length", "position"]
    (left_out,) = [row for row in found["warnings"] if row["code"] == "W120"]
    assert "markdown" in left_out["where"] and {"fix", "shown"}.isdisjoint(left_out)
    assert str(tmp_path) not in json.dumps(found)
    assert run("import", tmp_path / "votes.parquet", "-o", tmp_path / "j.parquet").exit_code == OK
    assert not [*tmp_path.rglob("*.lock")]


def test_a_remedy_is_a_command_that_works(table, tmp_path):
    theirs = table.rename(columns={"winner": "who won"})
    theirs["who won"] = theirs["who won"].map({"a": "0", "b": "1"})
    result, folder = audited(theirs, tmp_path, "--attribute", "length", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == told["exit_code"] == DATA and not folder.exists()
    assert {"code", "where", "remedy", "flags"} <= {*told["problems"][0]}
    shares = []
    for command in told["commands"]:
        again = run(*shlex.split(command)[1:])
        assert again.exit_code == OK, again.output
        shares.append(summary_of(folder)["attributes"][0]["win_rate"])
    assert sum(shares) == pytest.approx(1) and told["as_read"]


def test_what_another_program_wrote_is_converted_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("audit", EXPORT, "--attribute", "length", "--json")
    (command,) = json.loads(said.stdout)["commands"]
    convert, audit = (shlex.split(words)[1:] for words in command.split(" && "))
    assert run(*convert).exit_code == OK and convert[:2] == ["import", str(EXPORT)]
    assert run(*audit).exit_code == OK and audit[1] == convert[-1]


def test_watch_counts_what_is_new(table, tmp_path):
    path, state = tmp_path / "votes.parquet", tmp_path / "state.json"
    for n, new in ((400, 100), (800, 100)):
        table.head(n).to_parquet(path)
        result = run("watch", path, "--state", state, "--attribute", "length", "--json")
        assert result.exit_code == OK, result.output
        assert json.loads(result.stdout)["n_new"] == new
    text = run("watch", path, "--state", state, "--attribute", "length")
    assert "The guarantee fails" in re.sub(r"\s+", " ", text.stdout)


def test_import_takes_names_labels_and_columns_and_names_the_mapping(tmp_path):
    row = {"q": "Why?", "x": "So.", "y": "No.", "vote": "left", "who": "007"}
    row |= {"topic": "t", "mail": "a@b.c"}
    pd.DataFrame([row]).to_csv(tmp_path / "votes.csv", index=False)
    names = ("prompt=q", "response_a=x", "response_b=y", "winner=vote", "annotator=who")
    columns = [part for name in names for part in ("--column", name)]
    asked = ("import", tmp_path / "votes.csv", *columns, "--winner", "left=a", "--format", "table")
    asked += ("-o", tmp_path / "j.parquet", "--keep")
    wrong = run(*asked, "topic", "--write-mapping", tmp_path / "who.csv")
    assert wrong.exit_code == USAGE and str(tmp_path / "who.json") in wrong.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["votes.csv"]
    told = run(*asked, "topic", "--write-mapping", tmp_path / "who.json").output
    assert f"{tmp_path / 'who.json'} contains the id behind each pseudonym" in told
    assert "007" in (tmp_path / "who.json").read_text()
    table = pd.read_parquet(tmp_path / "j.parquet")
    assert (table["topic"][0], table["annotator"][0]) == ("t", pseudonyms(["007"])[0])
    assert "mail" not in table
    refused = run(*asked, "mail")
    assert (refused.exit_code, "mail" in refused.stderr) == (USAGE, True)
    unknown = run("import", EXPORT, "--format", "unheard of", "-o", tmp_path / "j.parquet")
    assert unknown.exit_code == USAGE and all(name in unknown.stderr for name in FORMATS)


def test_forget_needs_a_place_and_a_key(monkeypatch, tmp_path):
    assert run("import", EXPORT, "-o", tmp_path / "j.parquet").exit_code == OK
    assert run("forget", "7").exit_code == USAGE
    whole = ["forget", "7", *["--data", f"{tmp_path / 'j.parquet'}"] * 2]
    offered = run(*whole[:-1], tmp_path / "i.parquet").stderr
    assert offered.endswith(f"badpo {shlex.join(whole)}\n")
    monkeypatch.delenv("BADPO_PSEUDONYM_KEY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    lost = run("forget", "7", "--data", tmp_path / "j.parquet")
    assert (lost.exit_code, "BADPO_PSEUDONYM_KEY" in lost.stderr) == (USAGE, True)
    assert not (tmp_path / "empty").exists()


def test_a_page_after_somebody_was_removed_is_told_to_be_passed_on_alone(table, tmp_path):
    first, folder = audited(table, tmp_path, "--attribute", "length")
    warning = "share only one of the two pages"
    assert warning not in first.stderr
    without = table[table["annotator"] != "w3"]
    assert warning in audited(without, tmp_path, "--attribute", "length")[0].stderr
    audited(table, tmp_path, "--attribute", "length")
    told = run("forget", "w3", "--data", tmp_path / "votes.parquet", "--audit", folder)
    assert "pages together reveal how the forgotten annotators voted" in told.stdout
    for place in (folder, tmp_path / "elsewhere"):
        again = run("audit", tmp_path / "votes.parquet", "--attribute", "length", "--out", place)
        assert warning in again.stderr


def test_what_forget_must_leave_is_told_by_the_code(tmp_path):
    annotator = pd.read_csv(EXAMPLE)["annotator"][0]
    folder = tmp_path / "audit"
    run("audit", EXAMPLE, "--attribute", "length", "--out", folder)
    (folder / "note.txt").write_text(f"ask {annotator}\n")
    told = run("forget", annotator, "--audit", folder, "--json")
    assert told.exit_code == NOT_MET
    assert any(not trace["erased"] for trace in json.loads(told.stdout)["traces"])


def documented() -> list[tuple[str, str]]:
    """Commands of docs/cli.md with the output that stands under them."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.S)
    shown = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in shown]


def test_the_documentation_shows_what_is_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "only for this example")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    of_votes = ("import", "forget")
    commands = [command for command in documented() if shlex.split(command[0])[1] in of_votes]
    assert len(commands) >= 3
    for command, output in commands:
        assert run(*shlex.split(command)[1:]).output == output
    again = run("forget", "7", "--data", "judgments.parquet")
    assert (again.exit_code, "different key or spelling of the id" in again.output) == (DATA, True)


def test_an_import_knows_who_voted_or_asks(table, tmp_path):
    (nobody := table.drop(columns=["annotator", "annotator_class"])).to_csv(tmp_path / "votes.csv")
    asked = ("import", tmp_path / "votes.csv", "--out", tmp_path / "j.parquet")
    refused = run(*asked)
    assert refused.exit_code == DATA and "E110" in refused.stderr
    (command,) = [line for line in refused.stderr.splitlines() if line.strip().startswith("badpo ")]
    assert run(*shlex.split(command)[1:]).exit_code == OK and "--column annotator=" in command
    none = run(*asked, "--column", "annotator=")
    assert none.exit_code == OK and re.search(r"annotators +0\n", none.stdout)
    nobody.assign(worker_id=table["annotator"]).to_csv(tmp_path / "votes.csv")
    out = run("import", tmp_path / "votes.csv", "--out", tmp_path / "k.parquet", "--json")
    assert json.loads(out.stdout)["annotators"] == 6
