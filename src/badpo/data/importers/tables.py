"""Any table, as a data frame with every cell as the source gave it: CSV, parquet, JSON, pandas, Arrow, datasets."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
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

DROPPED_KEY = b"badpo.dropped"
_LONGEST_CELL = 2**31 - 1
# Finding out what columns mean takes the square of their number, and a frame has a cell for each row and name.
_MOST_COLUMNS = 2_000
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
            what = "the name of a column holds half of a surrogate pair"
            raise _unreadable(self.name, what, "rename the column")


def read_table(source: Any) -> Table:
    """Read a table from a path or an object in memory.

    Parameters
    ----------
    source : path, pandas DataFrame, Arrow table, `datasets` split, list of dicts, or Table
        Paths end in .csv, .tsv, .parquet, .jsonl, .ndjson or .json. Anything with ``to_arrow`` works too.

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
        return _read_file(Path(source))
    kind = type(source).__name__
    if isinstance(source, pd.DataFrame):
        return Table(source.reset_index(drop=True), kind)
    if isinstance(source, Mapping):
        remedy = f'pass one of them: source["{next(iter(source), "train")}"]'
        raise _unreadable(kind, f"it holds several tables: {', '.join(map(str, source))}", remedy)
    if isinstance(source, (list, tuple)):
        return Table(_frame_of_records(source, "list"), "list")
    if hasattr(source, "with_format"):  # a split of a dataset
        source = source.with_format("arrow")[:]
    elif hasattr(source, "to_arrow"):
        source = source.to_arrow()
    if isinstance(source, pa.Table):
        return Table(_frame_of_arrow(source), "Arrow table")
    remedy = "pass a path, a DataFrame, an Arrow table, a split of a dataset or a list of dicts"
    raise _unreadable(kind, "it is no table that is known here", remedy)


def _read_file(path: Path) -> Table:
    if not path.is_file():
        beside = [sibling.name for sibling in path.parent.glob("[!.]*")]
        absent = f"there is no such file.{did_you_mean(path.name, beside)}"
        what = "it is a folder" if path.is_dir() else absent
        raise _unreadable(str(path), what, "give the path of a file")
    read = READERS.get(path.suffix.lower())
    if read is None:
        what = f'files that end in "{path.suffix}" are not known'
        raise _unreadable(str(path), what, f"use {', '.join(READERS)}")
    try:
        return read(path)
    except UnicodeDecodeError as error:
        what = f"byte {error.start:,} is not UTF-8"
        raise _unreadable(str(path), what, "save the file as UTF-8") from error
    except (OSError, pa.ArrowException) as error:
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


def _read_parquet(path: Path) -> Table:
    if is_changed(path):
        what = f"its bytes are not those that {checksum_file(path).name} holds the checksum of"
        remedy = (
            "take an undamaged copy, or import the export again; if it was changed on purpose, remove "
            f"{checksum_file(path)}"
        )
        raise _unreadable(str(path), what, remedy)
    # as dictionaries: a text that stands in many rows comes into memory once
    texts = text_columns(pq.read_schema(path))
    options = {"read_dictionary": texts, "buffer_size": _BUFFER_BYTES, "page_checksum_verification": True}
    with pq.ParquetFile(path, **options) as file:
        dropped = _dropped_of(file.schema_arrow, path)
        return Table(_frame_of_arrow(file.read()), str(path), dropped=dropped)


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


def text_columns(schema: pa.Schema) -> list[str]:
    """Names of a table's columns of texts."""
    return [field.name for field in schema if field.type in (pa.string(), pa.large_string())]


def _read_csv(path: Path) -> Table:
    text = path.read_bytes().decode("utf-8-sig")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    remedy = "quote cells that hold separators, quotes or line breaks"
    limit = csv.field_size_limit(_LONGEST_CELL)
    rows, ends = [], [0]
    try:
        for row in reader:
            rows.append(row)
            ends.append(reader.line_num)
    except csv.Error as error:
        raise _unreadable(str(path), f"line {reader.line_num}: {error}", remedy) from error
    finally:
        csv.field_size_limit(limit)
    header = rows[0] if rows else []
    filled = [(row, end + 1) for row, end in zip(rows[1:], ends[1:], strict=False) if row]
    uneven = [(line, len(row)) for row, line in filled if len(row) != len(header)]
    if uneven:
        where = ", ".join(f"line {line} has {n}" for line, n in uneven[:5])
        what = f"the header has {len(header)} columns, but {len(uneven):,} rows have another number: {where}"
        raise _unreadable(str(path), what, remedy)
    columns = [[row[i] or None for row, _ in filled] for i in range(len(header))]
    lines = np.array([line for _, line in filled], dtype=np.int64)
    return Table(_frame_of_columns(header, columns), str(path), lines)


def _read_json_lines(path: Path) -> Table:
    records, lines, broken = [], [], []
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            broken.append(f"line {number}: {getattr(error, 'msg', error)}")
            continue
        if not isinstance(record, dict):
            broken.append(f"line {number}: not an object")
        records.append(record)
        lines.append(number)
    if broken:
        what = f"{len(broken):,} lines are no JSON objects: {'; '.join(broken[:5])}"
        raise _unreadable(str(path), what, "write one JSON object on each line")
    return Table(_frame_of_records(records, str(path)), str(path), np.array(lines, dtype=np.int64))


def _read_json(path: Path) -> Table:
    remedy = "write a JSON list of objects, one for each judgment, or name a file of JSON lines .jsonl"
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(path), str(error), remedy) from error
    if not isinstance(content, list):
        raise _unreadable(str(path), "it holds no list", remedy)
    return Table(_frame_of_records(content, str(path)), str(path))


# By the end of a file's name.
READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
}


def _frame_of_arrow(table: pa.Table) -> pd.DataFrame:
    # whole numbers stay exact where some are missing: ids beyond 2^53 would change as floats
    # the metadata that pandas leaves may be damaged where the columns are not, and nothing here needs it
    plain = table.replace_schema_metadata(None)
    frame = plain.to_pandas(integer_object_nulls=True, ignore_metadata=True)
    return frame.astype({name: object for name, kind in frame.dtypes.items() if kind == "category"})


def _frame_of_records(records: Sequence[Any], name: str) -> pd.DataFrame:
    wrong = [row for row, record in enumerate(records, start=1) if not isinstance(record, Mapping)]
    if wrong:
        what = f"{len(wrong):,} rows are no objects with named cells, first: row {wrong[0]}"
        raise _unreadable(name, what, "give dicts")
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
