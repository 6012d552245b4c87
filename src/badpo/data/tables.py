"""Any table, as a data frame with every cell as the source gave it: CSV, parquet, JSON, pandas, Arrow, datasets."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.attributes import plain_text
from badpo.data.files import appearing, checksum_file, checksummed, is_changed
from badpo.data.problems import DataError, Problem, did_you_mean, written_out


def numbered(values: Iterable[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Number of each value, and the distinct values in order of first appearance.

    Of texts, pandas before 3 compares what stands before a NUL: `pandas.factorize` takes others for equal.
    """
    places: dict[Hashable, int] = {}
    numbers = np.fromiter((places.setdefault(value, len(places)) for value in values), dtype=np.intp)
    distinct = np.empty(len(places), dtype=object)
    distinct[:] = list(places)
    return numbers, distinct


_WORDS_FOR_NOTHING = frozenset({"nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def as_ids(column: pd.Series) -> NDArray[np.object_]:
    """Identifiers as text, None where there is none.

    Whole numbers lose a decimal point that a missing value elsewhere in the column gave them; text is never changed.
    Blank cells and the words that programs write for a missing value count as missing.
    """
    cells = column.to_numpy(dtype=object)
    present = ~pd.isna(cells)
    try:
        codes, distinct = numbered(cells[present])
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    ids = np.full(len(cells), None, dtype=object)
    ids[present] = np.array([*map(_id_text, distinct), None], dtype=object)[codes]
    return ids


def _id_text(value: Any) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # half of a surrogate pair can be written nowhere, and pandas 2 compares up to a NUL: each becomes its code
    text = text.replace("\0", "\\x00")
    text = text if is_unicode(text) else text.encode("utf-8", "backslashreplace").decode("utf-8")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


@dataclass(frozen=True)
class TextCells:
    """The distinct texts of some cells, and which cell holds which."""

    codes: NDArray[np.intp]  # position in ``values``; -1 where the cell is missing or at fault
    values: list[Any]  # str, or messages as plain dicts with text contents
    missing: NDArray[np.bool_]
    faults: dict[int, str]  # cell -> why it is neither text nor chat messages


def read_texts(cells: NDArray[np.object_]) -> TextCells:
    """Texts and lists of chat messages out of raw cells."""
    missing = pd.isna(cells)
    # not `factorize`: pandas 2 takes texts that hold half of a surrogate pair for equal
    places: dict[Any, int] = {}
    values: list[Any] = []
    codes, faults = [], {}
    for i, cell in enumerate(cells):
        # most cells hold a text that another one has held
        code = places.get(cell, -1) if isinstance(cell, str) else -1
        if code < 0 and not missing[i]:
            try:
                code = _placed(cell, places, values)
            except ValueError as error:
                faults[i] = str(error)
        codes.append(code)
    return TextCells(np.array(codes, dtype=np.intp), values, missing, faults)


def _placed(cell: Any, places: dict[Any, int], values: list[Any]) -> int:
    """The number of a text, or of messages; what is new is kept."""
    value = cell if isinstance(cell, str) else as_messages(cell)
    written = cell if isinstance(cell, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    # a text may look like messages that are written as JSON
    key = cell if isinstance(cell, str) else ("messages", written)
    if key not in places:
        if not is_unicode(written):
            raise ValueError("it holds half of a surrogate pair, which is no character")
        places[key] = len(values)
        values.append(value)
    return places[key]


def as_messages(cell: Any) -> list[dict[str, Any]]:
    """Chat messages as plain dicts whose contents are text.

    Keys without a value, which columnar files add, are left out; text parts of a content are joined.
    """
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError("a chat message needs a role and a content")
    content = message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        content = _joined_parts(content)
    if content is None and message.get("tool_calls"):
        raise ValueError(
            f"the {message['role']} message calls a tool and has no text, and only text is trained on; write the call "
            "into its content"
        )
    if not isinstance(content, str):
        raise ValueError(f"the content of the {message['role']} message is not text")
    others = {
        key: value for key, value in message.items() if key not in ("role", "content") and value is not None
    }
    try:
        json.dumps(others, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"the {message['role']} message has something else than text, numbers and lists beside its content"
        ) from None
    return {"role": message["role"], "content": content, **others}


def _joined_parts(parts: Iterable[Any]) -> str | None:
    """The texts of a content given in parts; None when a part is not text."""
    texts = []
    for part in parts:
        if not (
            isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        ):
            return None
        texts.append(part["text"])
    return "".join(texts)


def is_unicode(text: str) -> bool:
    r"""Whether a text can be written anywhere: it holds no half of a surrogate pair, which JSON can escape."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


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


REQUIRED = {
    "a_b": ("prompt", "response_a", "response_b", "winner"),
    "chosen_rejected": ("chosen", "rejected"),
}
OPTIONAL = (
    "prompt",
    "annotator",
    "annotator_class",
    "comparison_id",
    "prompt_id",
    "judgment_id",
    "weight",
    "shown_first",
)
KNOWN = tuple(dict.fromkeys([*OPTIONAL, *(name for names in REQUIRED.values() for name in names)]))
_SIDES = {"a": "b", "chosen": "rejected"}
_ELSEWHERE = {
    ("prompt_ids", "chosen_ids"): "a TRL dataset that is tokenised already; give the texts",
    ("completion", "label"): "unpaired feedback (KTO); votes on pairs are needed",
    ("overall_pref",): "MultiPref; write one row for each vote with the winner a, b or tie",
    ("annotation_id", "lead_time"): "a short Label Studio export; export it as JSON",
}
_ANNOTATOR_WORDS = ("annotator", "worker", "rater", "judge", "evaluator", "labeler", "labeller", "user")


@dataclass(frozen=True)
class Layout:
    """A table whose columns carry our names.

    Attributes
    ----------
    frame : DataFrame
        The columns under our names, the others under their own.
    kind : "a_b" or "chosen_rejected"
    theirs : dict of str to str
        Our name -> the source's, for messages.
    """

    frame: pd.DataFrame
    kind: str
    theirs: dict[str, str]

    def has(self, name: str) -> bool:
        """Whether the table has this column of ours."""
        return name in self.theirs


def recognise(frame: pd.DataFrame, source: str, columns: Mapping[str, str | None] | None = None) -> Layout:
    """The layout of a table, with its columns under our names.

    ``columns`` are our names and the table's; None as a value leaves a column of ours unused. A `DataError` lists all
    columns that are missing (E101) or misnamed (E103).
    """
    columns, found = columns or {}, [str(name) for name in frame.columns]
    asked = {name: columns.get(name, name) for name in KNOWN}
    theirs = {name: column for name, column in asked.items() if column is not None and column in found}
    missing = {kind: [name for name in names if name not in theirs] for kind, names in REQUIRED.items()}
    kind = "chosen_rejected" if missing["a_b"] else "a_b"
    faults = _misnamed(found, columns)
    problems = [Problem("E103", what, source, remedy, "error") for what, remedy in faults.items()]
    if missing[kind] and not problems:
        nearest = max(REQUIRED, key=lambda kind: -len(missing[kind]) / len(REQUIRED[kind]))
        problems = [_missing_problem(found, nearest, missing[nearest], source)]
    if problems:
        raise DataError(problems)
    named = {name: frame.iloc[:, found.index(column)] for name, column in theirs.items()}
    others = [name for name in found if name not in theirs.values() and name not in KNOWN]
    unused = {name: frame.iloc[:, found.index(name)] for name in others}
    return Layout(pd.DataFrame(named | unused), kind, theirs)


def _misnamed(found: list[str], columns: Mapping[str, str | None]) -> dict[str, str]:
    """What is wrong with names of columns, and what to do."""
    faults = {}
    for name in {name for name in found if found.count(name) > 1}:
        faults[f'{found.count(name)} columns are called "{name}"'] = "rename all but one"
    for ours, column in columns.items():
        if ours not in KNOWN:
            what = f'columns has no entry "{ours}".{did_you_mean(ours, KNOWN)}'
            faults[what] = f"use one of {', '.join(KNOWN)}"
        elif column is not None and column not in found:
            what = f'column "{column}" (for {ours}) is not in the table.{did_you_mean(str(column), found)}'
            faults[what] = f"found: {', '.join(found)}"
    return faults


def _missing_problem(found: list[str], kind: str, missing: list[str], source: str) -> Problem:
    hints = [f' "{name}":{did_you_mean(name, found)}' for name in missing if did_you_mean(name, found)]
    looks = [what for signs, what in _ELSEWHERE.items() if all(sign in found for sign in signs)]
    needed = REQUIRED[kind]
    remedy = (
        "give prompt, chosen, rejected or prompt, response_a, response_b, winner, or map them with columns; what "
        "another program wrote, convert: badpo import SRC -o judgments.parquet"
    )
    if looks:
        remedy = f"this looks like {looks[0]}"
    elif len(missing) < len(needed):
        names = f'name the columns with columns={{"{missing[0]}": "..."}}'
        remedy = f"this looks like a {', '.join(needed)} table; {names}"
    what = f"columns missing: {', '.join(missing)}.{''.join(hints)}"
    where = f"{source}, found: {', '.join(found) or 'no column'}"
    return Problem("E101", what, where, remedy, "error", len(missing))


def annotator_hint(found: Sequence[str]) -> str:
    """A column that may hold the annotators, named in a sentence; empty when none looks like it."""
    like = [name for name in found if any(word in name.casefold() for word in _ANNOTATOR_WORDS)]
    return f' "{like[0]}" looks like it: columns={{"annotator": "{like[0]}"}}.' if like else ""


def side_pairs(names: Sequence[str]) -> dict[str, str]:
    """Columns that hold one value for each side: the name of the first side's -> the name of the second's.

    A name has ``a`` and ``b``, or ``chosen`` and ``rejected``, as one of the parts that underscores separate.
    Columns of identifiers are left out.

    Examples
    --------
    >>> side_pairs(["score_a", "score_b", "chosen_words", "rejected_words", "id_a", "id_b", "a_b"])
    {'score_a': 'score_b', 'chosen_words': 'rejected_words'}
    """
    pairs = {}
    for name in names:
        parts = name.split("_")
        sides = [i for i, part in enumerate(parts) if part in _SIDES]
        if len(sides) != 1 or "id" in parts or "ids" in parts:
            continue
        i = sides[0]
        other = "_".join([*parts[:i], _SIDES[parts[i]], *parts[i + 1 :]])
        if other in names:
            pairs[name] = other
    return pairs


def numbered_texts(
    table: pd.DataFrame, columns: Sequence[str]
) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Which plain text stands in which cell, of shape (n_columns, n_rows), and the distinct texts."""
    cells = [cell for name in columns for cell in table[name]]
    numbers, distinct = numbered([cell if isinstance(cell, str) else plain_text(cell) for cell in cells])
    return numbers.reshape(len(columns), -1), distinct


# What makes a spreadsheet take a cell for a formula, also in the full-width forms that it takes for the same.
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
# Where the separator of lists is a semicolon, a cell of ours is cut at these, quoted or not.
_LATER_FORMULA = re.compile(r"([;\t\n] *)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
_LONGEST_SHEET_CELL = 32_767  # the longest that spreadsheets take


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    r"""Write a table as UTF-8 CSV; the file appears whole or not at all.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, see `inert`. Numbers, also negative
    ones, are written as they are; a missing value is an empty cell, and an infinite one is ``inf`` or ``-inf``.
    """
    written = pd.DataFrame({i: _inert_column(frame.iloc[:, i]) for i in range(frame.shape[1])})
    written.columns = pd.Index([inert(str(name)) for name in frame.columns], dtype=object)
    with appearing(path) as unfinished:
        written.to_csv(unfinished, index=False, lineterminator="\n", encoding="utf-8")


def inert(text: str) -> str:
    r"""Text that does nothing in a spreadsheet or a terminal.

    An apostrophe stands before a character that would make it, or what follows a semicolon, a formula; control
    characters and those that turn the reading direction are written out; text longer than a cell may be is cut, and
    says so. Any other text is returned as it is.
    """
    # a lone carriage return is not quoted, and what follows it would start a cell
    written = written_out(text.replace("\r\n", "\n"))
    written = _LATER_FORMULA.sub(r"\1'", written)
    if _FORMULA.match(written):
        written = f"'{written}"
    if len(written) > _LONGEST_SHEET_CELL:
        said = f"... ({len(text):,} characters)"
        written = written[: _LONGEST_SHEET_CELL - len(said)] + said
    return written


def _inert_column(column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    return pd.Series([_inert_cell(cell) for cell in column], dtype=object, index=column.index)


def _inert_cell(cell: Any) -> Any:
    """Text made inert; numbers and missing values as they are; anything else as its text, made inert."""
    if isinstance(cell, str):
        return inert(cell)
    if isinstance(cell, int | float) or cell is None or pd.api.types.is_scalar(cell) and pd.isna(cell):
        return cell
    return inert(str(cell))
