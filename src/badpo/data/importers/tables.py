"""Any table, as a data frame with every cell as the source gave it: CSV, parquet, JSON, pandas, Arrow, datasets."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.files import checksum_file, checksummed, is_changed
from badpo.data.importers.cells import is_unicode
from badpo.data.problems import DataError, Problem, did_you_mean
from badpo.data.stored_texts import TextColumn, TextWriter

DROPPED_KEY = b"badpo.dropped"
_LONGEST_CELL = 2**31 - 1
# Finding out what columns mean takes the square of their number, and a frame has a cell for each row and name.
_MOST_COLUMNS = 2_000
# Text columns that are larger than this together do not come into memory whole.
STORED_BYTES = 64 * 2**20
_ROWS_AT_ONCE = 10_000
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class Table:
    """A table and where it came from.

    Attributes
    ----------
    frame : DataFrame
        Index 0, 1, ...; text of a CSV stays text, so ``0123`` is not a number.
    name : str
        What messages call it: the path, or the kind of object.
    lines : int array of shape (n_rows,), or None
        Line of the file, 1-based, at which each row starts; None where a row has no line.
    dropped : tuple of dict
        What an earlier import left out of this file: ``reason``, ``annotator``, ``n``.
    """

    frame: pd.DataFrame
    name: str
    lines: NDArray[np.int64] | None = None
    dropped: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        _require_narrow(self.frame.columns, self.name)
        if not all(is_unicode(str(name)) for name in self.frame.columns):
            raise _unreadable(
                self.name, "the name of a column holds half of a surrogate pair", "rename the column"
            )


def read_table(source: Any, texts: Sequence[str] = ()) -> Table:
    """Read a table from a path or an object in memory.

    Parameters
    ----------
    source : path, pandas DataFrame, Arrow table, `datasets` split, list of dicts, or Table
        Paths end in .csv, .tsv, .parquet, .jsonl, .ndjson or .json. Anything with ``to_arrow`` or ``to_pandas``
        works too.
    texts : sequence of str
        Columns of long texts. Where parquet, Arrow or a `datasets` split hold much of them, the column is a
        `badpo.data.stored_texts.TextColumn`: read in pieces, each distinct text kept once, in a private file.

    Returns
    -------
    Table

    Raises
    ------
    DataError
        E102, when it cannot be read.

    Examples
    --------
    >>> read_table([{"annotator": "0123", "winner": "a"}, {"winner": "b"}]).frame["annotator"].tolist()
    ['0123', None]
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _read_file(Path(source), texts)
    if isinstance(source, pd.DataFrame):
        return Table(source.reset_index(drop=True), "DataFrame")
    if isinstance(source, Mapping):
        splits = ", ".join(map(str, source))
        raise _unreadable(
            type(source).__name__,
            f"it holds several tables: {splits}",
            f'pass one of them: source["{next(iter(source), "train")}"]',
        )
    if isinstance(source, (list, tuple)):
        return Table(_frame_of_records(source, "list"), "list")
    if hasattr(source, "with_format") and hasattr(source, "num_rows"):
        source = source.with_format("arrow")[:]
    elif not isinstance(source, pa.Table) and hasattr(source, "to_arrow"):
        source = source.to_arrow()
    if isinstance(source, pa.Table):
        return Table(_frame_of_arrow(source, texts), "Arrow table")
    if hasattr(source, "to_pandas"):
        return Table(source.to_pandas().reset_index(drop=True), type(source).__name__)
    raise _unreadable(
        type(source).__name__,
        "it is no table that is known here",
        "pass a path, a DataFrame, an Arrow table, a split of a dataset or a list of dicts",
    )


def _read_file(path: Path, texts: Sequence[str]) -> Table:
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".parquet": partial(_read_parquet, texts=texts),
        ".jsonl": _read_json_lines,
        ".ndjson": _read_json_lines,
        ".json": _read_json,
    }
    if not path.is_file():
        beside = [sibling.name for sibling in path.parent.glob("[!.]*")]
        what = (
            "it is a folder" if path.is_dir() else f"there is no such file.{did_you_mean(path.name, beside)}"
        )
        raise _unreadable(str(path), what, "give the path of a file")
    if path.suffix.lower() not in readers:
        raise _unreadable(
            str(path), f'files that end in "{path.suffix}" are not known', f"use {', '.join(readers)}"
        )
    try:
        return readers[path.suffix.lower()](path)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise _unreadable(str(path), str(error).strip().split("\n")[0], "export the table again") from error


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a parquet file that only this user can read, with checksums of its pages and, beside it, of the file."""
    with checksummed(path) as unfinished:
        pq.write_table(table, unfinished, write_page_checksum=True)


def has_column(source: Any, column: str) -> bool:
    """Whether a table has a column, without reading a parquet file for it."""
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ".parquet":
        try:
            return column in pq.read_schema(source).names
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            pass  # whoever reads the table says what is wrong with it
    return column in read_table(source).frame.columns


def _read_parquet(path: Path, texts: Sequence[str]) -> Table:
    if is_changed(path):
        what = f"its bytes are not those that {checksum_file(path).name} holds the checksum of"
        remedy = (
            "take an undamaged copy, or import the export again; if it was changed on purpose, remove "
            f"{checksum_file(path)}"
        )
        raise _unreadable(str(path), what, remedy)
    with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, page_checksum_verification=True) as file:
        schema = file.schema_arrow
        as_written = partial(Table, name=str(path), dropped=_dropped_of(schema, path))
        stored = [
            name for name in texts if schema.names.count(name) == 1 and _is_text(schema.field(name).type)
        ]
        if _stored_size(file.metadata, stored) < STORED_BYTES:
            return as_written(_frame_of_arrow(file.read()))
        pieces = file.iter_batches(_ROWS_AT_ONCE, columns=stored, use_threads=False)
        columns = _stored(stored, pieces)
        others = [name for name in schema.names if name not in stored]
        frame = _frame_of_arrow(file.read(columns=others))
    return as_written(_with_columns(frame, schema.names, columns))


def _dropped_of(schema: pa.Schema, path: Path) -> tuple[dict[str, Any], ...]:
    """What an earlier import left out, as it wrote it beside the table."""
    try:
        entries = json.loads((schema.metadata or {}).get(DROPPED_KEY, b"[]"))
        return tuple(
            {"reason": str(entry["reason"]), "annotator": str(entry["annotator"]), "n": int(entry["n"])}
            for entry in entries
        )
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        what = "the counts of what an earlier import left out are damaged"
        raise _unreadable(str(path), what, "import the export again") from error


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _stored_size(metadata: pq.FileMetaData, names: Sequence[str]) -> int:
    """Bytes of some columns before compression."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(group.num_columns)]
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema in names)


def _stored(names: Sequence[str], pieces: Iterable[pa.RecordBatch]) -> dict[str, TextColumn]:
    """Text columns whose distinct texts stand in one store."""
    writer = TextWriter()
    codes: dict[str, list[NDArray[np.int64]]] = {name: [] for name in names}
    for piece in pieces:
        for name in names:
            piece.column(name).validate(full=True)
            codes[name].append(writer.numbers(piece.column(name)))
    store = writer.finish()
    pa.default_memory_pool().release_unused()
    return {name: TextColumn(np.concatenate(parts), store) for name, parts in codes.items()}


def _with_columns(
    frame: pd.DataFrame, names: Sequence[str], columns: Mapping[str, TextColumn]
) -> pd.DataFrame:
    """A frame with further columns, in the order of ``names``."""
    there = {name: frame[name] for name in frame.columns} | {
        name: pd.Series(columns[name]) for name in columns
    }
    return pd.DataFrame({name: there[name] for name in names})


def _read_csv(path: Path) -> Table:
    text = _decoded(path)
    header_line = text.partition("\n")[0]
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=max(",;\t", key=header_line.count), strict=True
    )
    limit = csv.field_size_limit(_LONGEST_CELL)
    rows, lines = [], []
    try:
        header = next(reader, [])
        start = reader.line_num + 1
        for row in reader:
            if row:
                rows.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise _unreadable(
            str(path),
            f"line {reader.line_num}: {error}",
            "quote cells that hold separators, quotes or line breaks",
        ) from error
    finally:
        csv.field_size_limit(limit)
    uneven = [(line, len(row)) for line, row in zip(lines, rows, strict=True) if len(row) != len(header)]
    if uneven:
        where = ", ".join(f"line {line} has {n}" for line, n in uneven[:5])
        raise _unreadable(
            str(path),
            f"the header has {len(header)} columns, but {len(uneven):,} rows have another number: {where}",
            "quote cells that hold separators, quotes or line breaks",
        )
    cells = [[cell if cell != "" else None for cell in column] for column in zip(*rows, strict=True)]
    return Table(
        _frame_of_columns(header, cells or [[] for _ in header]), str(path), np.array(lines, dtype=np.int64)
    )


def _read_json_lines(path: Path) -> Table:
    records, lines, broken = [], [], []
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken.append(f"line {number}: {getattr(error, 'msg', None) or _json_fault(error)}")
            continue
        if not isinstance(record, dict):
            broken.append(f"line {number}: not an object")
            continue
        records.append(record)
        lines.append(number)
    if broken:
        what = f"{len(broken):,} lines are no JSON objects: {'; '.join(broken[:5])}"
        raise _unreadable(str(path), what, "write one JSON object on each line")
    return Table(_frame_of_records(records, str(path)), str(path), np.array(lines, dtype=np.int64))


def _read_json(path: Path) -> Table:
    try:
        content = json.loads(_decoded(path))
    except (ValueError, RecursionError) as error:
        raise _unreadable(
            str(path), _json_fault(error), "write a JSON list of objects, or name the file .jsonl"
        ) from error
    if not isinstance(content, list):
        raise _unreadable(
            str(path), "it holds no list", "write a JSON list of objects, one for each judgment"
        )
    return Table(_frame_of_records(content, str(path)), str(path))


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    return "it is nested too deep" if isinstance(error, RecursionError) else "a number has too many digits"


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(
            str(path), f"byte {error.start:,} is not UTF-8", "save the file as UTF-8"
        ) from error


def _frame_of_arrow(table: pa.Table, texts: Sequence[str] = ()) -> pd.DataFrame:
    names = table.schema.names
    stored = [name for name in texts if names.count(name) == 1 and _is_text(table.schema.field(name).type)]
    if sum(table[name].nbytes for name in stored) >= STORED_BYTES:
        columns = _stored(stored, table.select(stored).to_batches(_ROWS_AT_ONCE))
        return _with_columns(_frame_of_arrow(table.drop_columns(stored)), names, columns)
    # whole numbers stay exact where some are missing: ids beyond 2^53 would change as floats
    # the metadata that pandas leaves may be damaged where the columns are not, and nothing here needs it
    plain = table.replace_schema_metadata(None)
    return plain.to_pandas(integer_object_nulls=True, ignore_metadata=True)


def _frame_of_records(records: Sequence[Any], name: str) -> pd.DataFrame:
    wrong = [row for row, record in enumerate(records, start=1) if not isinstance(record, Mapping)]
    if wrong:
        raise _unreadable(
            name, f"{len(wrong):,} rows are no objects with named cells, first: row {wrong[0]}", "give dicts"
        )
    names = dict.fromkeys(name for record in records for name in record)
    _require_narrow(names, name)
    return _frame_of_columns(list(names), ([record.get(name) for record in records] for name in names))


def _frame_of_columns(names: Sequence[str], columns: Iterable[Sequence[Any]]) -> pd.DataFrame:
    series = [pd.Series(cells, dtype=object) for cells in columns]
    frame = pd.concat(series, axis=1) if series else pd.DataFrame()
    frame.columns = pd.Index(names, dtype=object)
    return frame


def _require_narrow(names: Sized, where: str) -> None:
    if len(names) > _MOST_COLUMNS:
        what = f"its rows have {len(names):,} names of cells together, more than {_MOST_COLUMNS:,}"
        raise _unreadable(where, what, "export only the columns that are needed")


def _unreadable(name: str, what: str, remedy: str) -> DataError:
    return DataError([Problem("E102", f"the table cannot be read: {what}", name, remedy, "error")])
