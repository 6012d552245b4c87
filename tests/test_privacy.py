"""Raw ids go into every command in every format, and come out of none: not in a file, not in a line, not in an error.

The ids that are planted here look like nothing else, so that a single one of them, in whatever file, is found.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from badpo.data.privacy import pseudonym, pseudonym_key
from tests.auditing.planted import votes
from tests.importers.test_exports import ALL, EXPORTS, records_of
from tests.public_face import invoke as badpo

# the ids, and not the word in a sentence of ours
PLANTED = re.compile(rb"planted(?:[-.]\S| ?\d)", re.IGNORECASE)
# where each export keeps who voted, and what it says about them besides
PERSONAL = {
    *("annotator", "evaluator", "completed_by", "updated_by", "email", "first_name", "last_name"),
    *("user_id", "preference.responses.users", "_session_id", "_annotator_id", "judge"),
    *("reviewer_email", "overall_own_reason", "user_location"),
}
VARIANTS = {
    **ALL,
    "argilla nested": EXPORTS / "argilla_nested.json",
}


def said(result) -> bytes:
    """All that a command printed, and its error where it left with one of Python's."""
    return f"{result.stdout}\n{result.stderr}\n{result.exception!r}".encode()


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def leaks(folder: Path) -> Iterator[Path]:
    """Files under a folder that hold a planted id; columnar ones are compressed, so their cells are looked at."""
    for path in files(folder):
        content = path.read_bytes() + str(path).encode()
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            content += repr(table.schema.metadata).encode() + table.to_pandas().to_csv().encode()
        if PLANTED.search(content):
            yield path


def planted(value: Any, inside: bool = False) -> Any:
    """A record with every text that says who somebody is replaced by one that is recognised anywhere."""
    if isinstance(value, dict):
        return {key: planted(cell, inside or key in PERSONAL) for key, cell in value.items()}
    if isinstance(value, list):
        return [planted(cell, inside) for cell in value]
    if inside and isinstance(value, str):
        return f"Planted-{value}@example.org" if "@" not in value else f"planted.{value}"
    return value


def table() -> pd.DataFrame:
    """Votes of four people with planted ids, one of whom has an e-mail address for a name."""
    people = ["planted-1", "planted.2@example.org", "PLANTED03", "planted 4"]
    made = votes(60, 4)[0]
    made["annotator"] = made["annotator"].map({f"w{k}": name for k, name in enumerate(people)})
    made["comparison_id"] += " " + people[0]
    made["model_a"] = made["model_b"] = people[2]
    return made.assign(shown_first=["b" if row % 5 else "a" for row in range(len(made))])


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where the source stands, and where everything that a command writes has to be."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "sixteen letters and more")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR"):
        (out / name).mkdir(parents=True)
        monkeypatch.setenv(name, str(out / name))
    monkeypatch.chdir(out)
    return source, out


@pytest.mark.parametrize("name", VARIANTS)
def test_no_importer_lets_an_id_through(name, places):
    (source, out), path = places, VARIANTS[name]
    records, export = planted(records_of(path)), source / f"export{path.suffix}"
    lines = "\n".join(map(json.dumps, records))
    export.write_text(json.dumps(records) if path.suffix == ".json" else lines)
    assert PLANTED.search(export.read_bytes())
    for extra in ((), ("--json",)):
        asked = ("--column", "winner=choice") if name == "argilla nested" else ()
        result = badpo("import", export, "-o", out / "judgments.parquet", *asked, *extra)
        assert result.exit_code == 0, result.output
        assert not PLANTED.search(said(result))
    assert [*leaks(out)] == []
    assert pq.read_table(out / "judgments.parquet")["annotator"].to_pylist()[0].startswith("ann_")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_no_command_that_reads_a_table_lets_an_id_through(ending, places):
    source, out = places
    path = source / f"votes.{ending}"
    table().to_parquet(path) if ending == "parquet" else table().to_csv(path, index=False)
    length = ("--attribute", "length")
    commands = [
        ("check", path, *length),
        ("check", path, *length, "--json"),
        ("attributes", "test", path, *length),
        ("audit", path, *length, "-o", out / "audit"),
        ("audit", path, *length, "-o", out / "audit", "--anchor", "planted-1", "--json"),
        ("watch", path, *length, "--state", out / "state.json", "--votes-per-comparison", "4"),
        ("import", path, "-o", out / "votes.parquet"),
    ]
    for command in commands:
        result = badpo(*command)
        assert result.exit_code == 0, result.output
        assert not PLANTED.search(said(result)), command
    assert [*leaks(out)] == []
    written = {str(path.relative_to(out)) for path in files(out)}
    assert {"audit/report.html", "audit/annotators.csv", "state.json"} <= written


def test_a_table_that_is_wrong_is_told_without_ids(places):
    source, out = places
    wrong = table().assign(weight=-1)
    for row, name in enumerate(("winner", "response_a", "annotator"), start=3):
        wrong.loc[row, name] = None
    wrong.loc[6, "annotator_class"], wrong.loc[7, "shown_first"] = "other", "left"
    wrong.to_csv(source / "votes.csv", index=False)
    for command in ("check", "audit"):
        for extra in ((), ("--json",), ("--debug",)):
            result = badpo(command, source / "votes.csv", "--attribute", "length", *extra)
            assert result.exit_code == 3
            assert not PLANTED.search(said(result)), (command, extra)
            assert pseudonym("planted-1", pseudonym_key()).encode() in said(result)
    assert [*leaks(out)] == []


def sliders(table: pd.DataFrame) -> pd.DataFrame:
    """The same table with another number in each cell of a vote."""
    return table.assign(**{name: np.arange(len(table)) - 9 for name in table.columns[3:]})


def wide() -> pd.DataFrame:
    """Votes of the same people, each in a column of their own."""
    texts = ["prompt", "response_a", "response_b"]
    return table().pivot_table("winner", texts, "annotator", "first").reset_index()


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        (lambda votes: votes.assign(winner=votes["annotator"]), (), "E107"),
        (lambda votes: votes[:2].assign(winner=votes["annotator"]), (), "E107"),
        (lambda votes: votes.assign(winner="it is " + votes["annotator"]), ("--winner", "it=a"), "E107"),
        (lambda votes: votes.assign(shown_first="said " + votes["annotator"]), (), "E109"),
        (lambda _: wide(), ("--column", "annotator=annotators"), "E103"),
        (lambda _: wide(), ("--column", "annotator=PLANTED3"), "E103"),
        (lambda _: wide().iloc[:, :4], ("--column", "annotator=who"), "E103"),
        (lambda _: wide().iloc[:, :5], ("--column", "annotator=who"), "E103"),
        (lambda _: sliders(wide()), ("--column", "annotator=who"), "E103"),
        (lambda _: sliders(wide()), (), "E101"),
    ],
)
def test_ids_in_other_columns_or_as_their_names_are_in_no_message(change, options, code, places):
    change(table()).to_csv(places[0] / "votes.csv", index=False)
    result = badpo("audit", places[0] / "votes.csv", "--attribute", "length", *options)
    # what the caller wrote may stand there
    told = said(result).replace(b"PLANTED3", b"")
    assert result.exit_code == 3 and code.encode() in told and not PLANTED.search(told)


def test_a_table_with_a_column_for_each_annotator_is_imported_and_forgotten_without_their_ids(places):
    """One column has labels that are not read, so that its name, which is an id, is of no known kind."""
    frame = wide()
    frame.assign(**{frame.columns[-1]: "unsure"}).to_csv(places[0] / "votes.csv", index=False)
    imported = badpo("import", places[0] / "votes.csv", "--wide", "--out", places[1] / "votes.parquet")
    forgotten = badpo("forget", "somebody", "--data", places[0] / "votes.csv")
    assert imported.exit_code == 0 and forgotten.exit_code == 3 and b"E101" in said(forgotten)
    assert not PLANTED.search(said(imported) + said(forgotten))
