"""Any table, as a data frame with every cell as the source gave it: CSV, parquet, JSON, pandas, Arrow, datasets."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.attributes import plain_text
from badpo.data.files import Json, appearing, checksum_file, checksummed, is_changed
from badpo.data.problems import DataError, Problem, did_you_mean, is_unicode, listed, written_out
from badpo.theory import Ints

Objects = NDArray[np.object_]

DROPPED_KEY = b"badpo.dropped"
_LONGEST_CELL = 2**31 - 1
# of cells in JSON, where every row may have names of its own, and a frame has a cell for each
_MOST_NAMES = 2_000
_BUFFER_BYTES = 2**20
_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())


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
    kind : "a_b", "chosen_rejected" or ""
        The layout, once the columns carry our names; see `recognise`.
    theirs : dict of str to str
        Our name -> the source's, for messages.
    """

    frame: pd.DataFrame
    name: str
    lines: Ints | None = None
    dropped: tuple[Json, ...] = ()
    kind: str = ""
    theirs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
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
        what = f"it holds several tables: {', '.join(map(str, source))}"
        raise _unreadable(kind, what, f'pass one of them: source["{next(iter(source), "train")}"]')
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


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a parquet file that only this user can read, with checksums of its pages and, beside it, of the file."""
    with checksummed(path) as unfinished:
        pq.write_table(table, unfinished, write_page_checksum=True)


# -- readers of files ------------------------------------------------------------------------------------------


def _read_file(path: Path) -> Table:
    if not path.is_file():
        beside = [sibling.name for sibling in path.parent.glob("[!.]*")]
        absent = f"there is no such file.{did_you_mean(path.name, beside)}"
        raise _unreadable(path, "it is a folder" if path.is_dir() else absent, "give the path of a file")
    read = READERS.get(path.suffix.lower())
    if read is None:
        what = f'files that end in "{path.suffix}" are not known'
        raise _unreadable(path, what, f"use {', '.join(READERS)}")
    try:
        return read(path)
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is not UTF-8 ({error.reason})", "save the file as UTF-8") from error
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, str(error).strip().split("\n")[0], "export the table again") from error


def _read_parquet(path: Path) -> Table:
    if is_changed(path):
        beside = checksum_file(path)
        what = f"its bytes are not those that {beside.name} holds the checksum of"
        remedy = "take an undamaged copy, or import the export again"
        raise _unreadable(path, what, f"{remedy}; if it was changed on purpose, remove {beside}")
    # as dictionaries: a text that stands in many rows comes into memory once
    options = {
        "read_dictionary": [
            column.name for column in pq.read_schema(path) if column.type in _TEXT_TYPES
        ],
        "buffer_size": _BUFFER_BYTES,
        "page_checksum_verification": True,
    }
    with pq.ParquetFile(path, **options) as file:
        try:
            entries = json.loads((file.schema_arrow.metadata or {}).get(DROPPED_KEY, b"[]"))
            kinds = {"reason": str, "annotator": str, "n": int}
            told = ({key: kind(entry[key]) for key, kind in kinds.items()} for entry in entries)
            dropped = tuple(told)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            what = "the counts of what an earlier import left out are damaged"
            raise _unreadable(path, what, "import the export again") from error
        return Table(_frame_of_arrow(file.read()), str(path), dropped=dropped)


def _read_csv(path: Path) -> Table:
    remedy = "quote cells that hold separators, quotes or line breaks"
    csv.field_size_limit(_LONGEST_CELL)
    rows, lines = [], []
    known: dict[str, str | None] = {"": None}  # so that a text of many rows is in memory once
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=max(",;\t", key=header.count), strict=True)
        try:
            names, end = next(reader, []), reader.line_num
            for row in reader:
                if row:
                    rows.append([known.setdefault(cell, cell) for cell in row])
                    lines.append(end + 1)
                end = reader.line_num
        except csv.Error as error:
            raise _unreadable(path, f"line {reader.line_num}: {error}", remedy) from error
    lengths = zip(lines, map(len, rows), strict=True)
    if uneven := [f"line {line} has {n}" for line, n in lengths if n != len(names)]:
        what = f"the header has {len(names)} columns, but {len(uneven):,} rows have another number"
        raise _unreadable(path, f"{what}: {listed(uneven)}", remedy)
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    frame = _frame_of_columns(names, columns)
    return Table(frame, str(path), np.array(lines, dtype=np.intp))


def _read_json_lines(path: Path) -> Table:
    records, lines, broken = [], [], []
    # at line feeds alone, as forgetting counts lines
    for number, line in enumerate(path.read_bytes().decode("utf-8-sig").split("\n"), start=1):
        if line.strip():
            try:
                records.append(json.loads(line))
                lines.append(number)
            except (ValueError, RecursionError) as error:
                broken.append(f"line {number}: {getattr(error, 'msg', error)}")
    if broken:
        what = f"{len(broken):,} lines are no JSON: {listed(broken)}"
        raise _unreadable(path, what, "write one JSON object on each line")
    frame = _frame_of_records(records, path)
    return Table(frame, str(path), np.array(lines, dtype=np.intp))


def _read_json(path: Path) -> Table:
    remedy = "write a JSON list of objects, one for each judgment, or name a file of JSON lines .jsonl"
    text = path.read_text(encoding="utf-8-sig")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, str(error), remedy) from error
    if not isinstance(content, list):
        raise _unreadable(path, "it holds no list", remedy)
    return Table(_frame_of_records(content, path), str(path))


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
    return _frame_of_columns(table.column_names, map(_cells_of_arrow, table.columns))


def _cells_of_arrow(column: pa.ChunkedArray) -> Any:
    if column.type in _TEXT_TYPES:
        column = column.dictionary_encode()
    if not pa.types.is_dictionary(column.type) or not column.num_chunks:
        # whole numbers stay exact where some are missing: ids beyond 2^53 would change as floats
        return column.to_pandas(integer_object_nulls=True)
    chunks = column.unify_dictionaries().chunks
    # each text is one object, in however many rows it stands
    values = as_objects([*chunks[0].dictionary.to_pylist(), None])
    numbers = [chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy() for chunk in chunks]
    return values[np.concatenate(numbers)]


def _frame_of_records(records: Sequence[Any], name: str | Path) -> pd.DataFrame:
    wrong = [row for row, record in enumerate(records, start=1) if not isinstance(record, Mapping)]
    if wrong:
        what = f"{len(wrong):,} rows are no objects with named cells, first: row {wrong[0]}"
        raise _unreadable(name, what, "give objects, or dicts")
    names = list(dict.fromkeys(key for record in records for key in record))
    if len(names) > _MOST_NAMES:
        what = f"its rows have {len(names):,} names of cells together, more than {_MOST_NAMES:,}"
        raise _unreadable(name, what, "export only the columns that are needed")
    columns = ([record.get(key) for record in records] for key in names)
    return _frame_of_columns(names, columns)


def _frame_of_columns(names: Sequence[str], columns: Iterable[Any]) -> pd.DataFrame:
    series = [
        column if isinstance(column, pd.Series) else pd.Series(column, dtype=object)
        for column in columns
    ]
    frame = pd.concat(series, axis=1) if series else pd.DataFrame()
    frame.columns = pd.Index(names, dtype=object)
    return frame


def _unreadable(name: str | Path, what: str, remedy: str) -> DataError:
    return DataError([Problem("E102", f"the table cannot be read: {what}", str(name), remedy)])


# -- names of columns ------------------------------------------------------------------------------------------

REQUIRED = {
    "a_b": ("prompt", "response_a", "response_b", "winner"),
    "chosen_rejected": ("chosen", "rejected"),
}
OPTIONAL = (
    *("prompt", "annotator", "annotator_class", "comparison_id", "prompt_id", "judgment_id", "weight"),
    "shown_first",
)
KNOWN = tuple(dict.fromkeys([*OPTIONAL, *REQUIRED["a_b"], *REQUIRED["chosen_rejected"]]))
_SIDES = {"a": "b", "chosen": "rejected"}
_ANNOTATOR_WORDS = ("annotator", "worker", "rater", "judge", "evaluator", "labeler", "labeller", "user")


def recognise(table: Table, columns: Mapping[str, str | None] | None = None) -> Table:
    """The table with its columns under our names, others under their own, and the kind of its layout.

    ``columns`` are our names and the table's; None as a value leaves a column of ours unused. A `DataError` lists all
    columns that are missing (E101) or misnamed (E103).
    """
    columns = columns or {}
    found = pd.Index([str(name) for name in table.frame.columns], dtype=object)
    if faults := _misnamed(found, columns):
        raise DataError(Problem("E103", what, table.name, remedy) for what, remedy in faults.items())
    asked = {ours: columns.get(ours, ours) for ours in KNOWN}
    theirs = {ours: column for ours, column in asked.items() if column is not None and column in found}
    lacks = {kind: [name for name in names if name not in theirs] for kind, names in REQUIRED.items()}
    kind = min(REQUIRED, key=lambda kind: len(lacks[kind]) / len(REQUIRED[kind]))
    if missing := lacks[kind]:
        hints = [f' "{name}":{hint}' for name in missing if (hint := did_you_mean(name, found))]
        what = f"columns missing: {', '.join(missing)}.{''.join(hints)}"
        where = f"{table.name}, found: {', '.join(found) or 'no column'}"
        remedy = (
            "give prompt, chosen, rejected or prompt, response_a, response_b, winner, or map them with columns; what "
            "another program wrote, convert: badpo import SRC -o judgments.parquet"
        )
        raise DataError([Problem("E101", what, where, remedy, len(missing))])
    others = found.difference([*theirs.values(), *KNOWN], sort=False)
    used = table.frame.set_axis(found, axis=1)[[*theirs.values(), *others]]
    return replace(table, frame=used.set_axis([*theirs, *others], axis=1), kind=kind, theirs=theirs)


def _misnamed(found: pd.Index, columns: Mapping[str, str | None]) -> dict[str, str]:
    """What is wrong with names of columns, and what to do."""
    faults = {}
    for name in found[found.duplicated()].unique():
        faults[f'{(found == name).sum()} columns are called "{name}"'] = "rename all but one"
    for ours, column in columns.items():
        if ours not in KNOWN:
            what = f'columns has no entry "{ours}".{did_you_mean(ours, KNOWN)}'
            faults[what] = f"use one of {', '.join(KNOWN)}"
        elif column is not None and column not in found:
            what = (
                f'column "{column}" (for {ours}) is not in the table.{did_you_mean(str(column), found)}'
            )
            faults[what] = f"found: {', '.join(found)}"
    return faults


def annotator_hint(found: Iterable[str]) -> str:
    """A column that may hold the annotators, named in a sentence; empty when none looks like it."""
    like = [name for name in found if any(word in name.casefold() for word in _ANNOTATOR_WORDS)]
    return f' "{like[0]}" looks like it: columns={{"annotator": "{like[0]}"}}.' if like else ""


def side_pairs(names: Iterable[str]) -> dict[str, str]:
    """Columns that hold one value for each side: the name of the first side's -> the name of the second's.

    A name has ``a`` and ``b``, or ``chosen`` and ``rejected``, as one of the parts that underscores separate.
    Columns of identifiers are left out.

    Examples
    --------
    >>> side_pairs(["score_a", "score_b", "chosen_words", "rejected_words", "id_a", "id_b", "a_b"])
    {'score_a': 'score_b', 'chosen_words': 'rejected_words'}
    """
    pairs = {}
    for name in (names := dict.fromkeys(names)):
        parts = name.split("_")
        other = "_".join(_SIDES.get(part, part) for part in parts)
        is_of_one_side = sum(part in _SIDES for part in parts) == 1
        if is_of_one_side and other in names and not {"id", "ids"} & set(parts):
            pairs[name] = other
    return pairs


# -- cells -----------------------------------------------------------------------------------------------------

_WORDS_FOR_NOTHING = frozenset({"nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def numbered(values: Iterable[Hashable]) -> tuple[Ints, Objects]:
    """Number of each value, and the distinct values in order of first appearance.

    Of texts, pandas before 3 compares what stands before a NUL: `pandas.factorize` takes others for equal.
    """
    places: defaultdict[Hashable, int] = defaultdict()
    places.default_factory = places.__len__
    numbers = np.fromiter(map(places.__getitem__, values), dtype=np.intp)
    return numbers, as_objects(places)


def as_objects(values: Iterable[Any]) -> Objects:
    """A one-dimensional object array, also of lists of equal length."""
    return np.fromiter(values, dtype=object)


def as_ids(column: Iterable[Any]) -> Objects:
    """Identifiers as text, None where there is none.

    Whole numbers lose a decimal point that a missing value elsewhere in the column gave them; text is never changed.
    Blank cells and the words that programs write for a missing value count as missing.
    """
    cells = pd.Series(column, dtype=object).to_numpy(copy=True)
    cells[pd.isna(cells)] = None
    try:
        numbers, distinct = numbered(cells)
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    return as_objects(map(_id_text, distinct))[numbers]


def _id_text(value: Any) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # half of a surrogate pair can be written nowhere, and pandas 2 compares up to a NUL: each becomes its code
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


def text_key(value: Any) -> str:
    """A text that identifies a text or a list of messages."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def numbered_cells(cells: Iterable[Any]) -> tuple[Ints, Objects]:
    """The number of each cell's text or chat messages, -1 where there is none, and the distinct ones; the last is None.

    Where a cell holds neither, a `ValueError` says why in their place.
    """
    others: dict[Hashable, Any] = {}

    def key(cell: Any) -> Hashable:
        if pd.api.types.is_scalar(cell) and pd.isna(cell):
            return None
        try:
            messages = as_messages(cell)
            # a text may look like messages that are written as JSON
            key: Hashable = "messages", text_key(messages)
            others[key] = messages
        except (ValueError, TypeError, RecursionError) as error:
            key = "fault", str(error)
            others[key] = ValueError(str(error))
        return key

    # most cells hold a text that another one has held
    numbers, keys = numbered(cell if isinstance(cell, str) else key(cell) for cell in cells)
    values = as_objects([*(others.get(key, key) for key in keys), None])
    half = ValueError("it holds half of a surrogate pair, which is no character")
    for i, value in enumerate(values):
        if isinstance(value, (str, list)) and not is_unicode(text_key(value)):
            values[i] = half
    numbers[pd.isna(values)[numbers]] = -1
    return numbers, values


def as_messages(cell: Any) -> list[Json]:
    """Chat messages as plain dicts whose contents are text.

    Keys without a value, which columnar files add, are left out; text parts of a content are joined.
    """
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: Any) -> Json:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError("a chat message needs a role and a content")
    role, content = message["role"], message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part["text"] for part in parts if part.get("type") == "text" and "text" in part]
        is_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(texts) if is_text else None
    if content is None and message.get("tool_calls"):
        remedy = "and only text is trained on; write the call into its content"
        raise ValueError(f"the {role} message calls a tool and has no text, {remedy}")
    if not isinstance(content, str):
        raise ValueError(f"the content of the {role} message is not text")
    others = {key: value for key, value in message.items() if value is not None}
    return others | {"role": role, "content": content}


def numbered_texts(table: pd.DataFrame, columns: Sequence[str]) -> tuple[Ints, Objects]:
    """Which plain text stands in which cell, of shape (n_columns, n_rows), and the distinct texts."""
    cells = (
        cell if isinstance(cell, str) else plain_text(cell) for name in columns for cell in table[name]
    )
    numbers, distinct = numbered(cells)
    return numbers.reshape(len(columns), -1), distinct


# -- tables for spreadsheets -----------------------------------------------------------------------------------

# What makes a spreadsheet take a cell for a formula, also in the full-width forms that it takes for the same.
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
# Where the separator of lists is a semicolon, a cell of ours is cut at these, quoted or not.
_LATER_FORMULA = re.compile(r"([;\t\n] *)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    r"""Write a table as UTF-8 CSV; the file appears whole or not at all.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, see `inert`. Numbers, also negative
    ones, are written as they are; a missing value is an empty cell, and an infinite one is ``inf`` or ``-inf``.
    """
    names = [inert(str(name)) for name in frame.columns]
    with appearing(path) as unfinished:
        cells = frame.map(_inert_cell)
        cells.to_csv(unfinished, index=False, header=names, lineterminator="\n", encoding="utf-8")


def inert(text: str) -> str:
    r"""Text that does nothing in a spreadsheet or a terminal.

    An apostrophe stands before a character that would make it, or what follows a semicolon, a formula; control
    characters and those that turn the reading direction are written out. Any other text is returned as it is.
    """
    # a lone carriage return is not quoted, and what follows it would start a cell
    written = written_out(text.replace("\r\n", "\n"))
    written = _LATER_FORMULA.sub(r"\1'", written)
    return f"'{written}" if _FORMULA.match(written) else written


def _inert_cell(cell: Any) -> Any:
    """Text made inert; numbers and missing values as they are; anything else as its text, made inert."""
    is_missing = cell is None or (pd.api.types.is_scalar(cell) and pd.isna(cell))
    return cell if is_missing or isinstance(cell, int | float) else inert(str(cell))
