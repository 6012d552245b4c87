"""A person's rows in tables, audits and the mapping of ids."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.files import appearing
from badpo.data.forgetting_people import People, read_mapping
from badpo.data.forgetting_traces import Trace, mentions, remover, write_json
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import annotator_hint
from badpo.data.importers.tables import DROPPED_KEY, Table, read_table
from badpo.data.problems import DataError, Problem, counted
from badpo.data.sealed_tables import SEALED_KEY, write_sealed

_AUDIT_TABLES = ("annotators.parquet", "annotators.csv", "requests.parquet")
_AUDIT_PAGES = ("audit.json", "report.html", "people.html")


def in_table(path: Path, people: People, column: str, noun: str) -> list[Trace]:
    """Their rows in a table, and the counts of what was left out of theirs at import.

    Parameters
    ----------
    path : Path
    people : People
    column : str
        What the table calls the annotator.
    noun : str
        What a row is.

    Raises
    ------
    DataError
        The table cannot be read, or has no such column.
    """
    table = read_table(path)
    if column not in table.frame.columns:
        names = [str(name) for name in table.frame.columns]
        what = f'column "{column}" is not in the table.{annotator_hint(names)}'
        remedy = "name it with --column annotator=..., or take them out in the program that wrote this and export again"
        raise DataError([Problem("E101", what, f"{path}, found: {', '.join(names)}", remedy, "error")])
    theirs = _rows_of(table.frame[column], people)
    counts = [entry for entry in table.dropped if entry.get("annotator") in people.pseudonyms]
    if not theirs.any() and not counts:
        return []
    what = counted(int(theirs.sum()), noun)
    n_dropped = sum(int(entry.get("n", 0)) for entry in counts)
    what += f", and the count of {n_dropped:,} left out at import" if counts else ""
    return [Trace(path, what, erase=lambda: _rewrite(path, table, theirs, people))]


def _rows_of(column: Any, people: People) -> NDArray[np.bool_]:
    """Rows that name one of them; a cell may also list several people."""
    if any(isinstance(cell, list | tuple | np.ndarray) for cell in column):
        return np.array(
            [people.rows(np.array(list(cell), dtype=object)).any() for cell in column], dtype=bool
        )
    return people.rows(as_ids(column))


def _rewrite(path: Path, table: Table, theirs: NDArray[np.bool_], people: People) -> None:
    path = path.resolve()  # of a link the file that it leads to is changed, not the link
    if path.suffix.lower() == ".parquet":
        whole = pq.read_table(path)
        metadata = dict(whole.schema.metadata or {})
        if DROPPED_KEY in metadata:
            counts = [entry for entry in table.dropped if entry.get("annotator") not in people.pseudonyms]
            metadata[DROPPED_KEY] = json.dumps(counts).encode()
        left = whole.filter(pa.array(~theirs)).replace_schema_metadata(metadata or None)
        with appearing(path) as unfinished:
            (write_sealed if SEALED_KEY in metadata else pq.write_table)(left, unfinished)
    elif path.suffix.lower() == ".json":
        records = json.loads(path.read_text(encoding="utf-8-sig"))
        kept = [record for record, gone in zip(records, theirs, strict=True) if not gone]
        write_json(path, kept)
    else:
        content = _without_rows(path, table, theirs)
        with appearing(path) as unfinished:
            unfinished.write_bytes(content)


def _without_rows(path: Path, table: Table, theirs: NDArray[np.bool_]) -> bytes:
    """The file's own lines, those of some rows left out, so that nothing else about it changes."""
    assert table.lines is not None
    text = path.read_bytes().decode("utf-8")
    # CSV counts lines as the csv module does, JSON lines by line feeds alone
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    lines = list(io.StringIO(text, newline="" if is_csv else "\n"))
    starts = [*(table.lines - 1).tolist(), len(lines)]
    kept = lines[: starts[0]]
    for row, gone in enumerate(theirs):
        if not gone:
            kept += lines[starts[row] : starts[row + 1]]
    return "".join(kept).encode("utf-8")


def in_audit(folder: Path, people: People) -> list[Trace]:
    """Their rows in the tables of an audit, the pages that were made of them, and other files that name them."""
    found: list[Trace] = []
    for name in _AUDIT_TABLES:
        path = folder / name
        if path.is_file() and "annotator" in read_table(path).frame.columns:
            found += in_table(path, people, "annotator", "row")
    if found:
        remedy = "make the audit again from the table without them: badpo audit"
        pages = [folder / name for name in _AUDIT_PAGES if (folder / name).is_file()]
        # before the tables: killed in between, another call still finds them by the tables
        found = [
            Trace(page, "figures that hold their votes", remedy, remover(page)) for page in pages
        ] + found
    return found + mentions(folder, people, {trace.path for trace in found})


def in_mapping(path: Path, people: People) -> list[Trace]:
    """Their entries in the file of `badpo import --write-mapping`."""
    whose = read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}
    if len(left) == len(whose):
        return []
    return [Trace(path, counted(len(whose) - len(left), "entry"), erase=lambda: write_json(path, left))]
