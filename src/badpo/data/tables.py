"""Read tables from CSV, Excel, parquet, Arrow and JSON files, pandas, Arrow and `datasets`, and write tables.

The cells of a table keep the values of the source. For example, the text "0123" in a CSV file does not become a number.
"""

import codecs
import contextlib
import csv
import difflib
import io
import itertools
import json
import os
import re
import shlex
import sqlite3
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeAlias
from xml.parsers import expat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from badpo.data.cells import (
    MOST_CELLS,
    MOST_COLUMNS,
    MOST_ROWS,
    Cell,
    Dropped,
    Objects,
    Table,
    as_objects,
    holds_texts,
    require_size,
)
from badpo.data.files import (
    appearing,
    asking_once,
    checksum_file,
    checksummed,
    is_changed,
    leads_out,
    require_safe_to_read,
)
from badpo.data.nesting import flatten, joined_records, opened, records_in
from badpo.data.problems import (
    Correction,
    DataError,
    Problem,
    counted,
    did_you_mean,
    listed,
    written_out,
)
from badpo.data.reshaping import is_legend, question_in
from badpo.data.vocabulary import ANSWERS, KNOWN, columns_named, legends_in

DROPPED_KEY = b"badpo.dropped"
PACKED = (".gz", ".bz2", ".zst")
ARROW_MARKS = b"ARROW1", b"\xff\xff\xff\xff"  # first bytes of an Arrow file and of an Arrow stream
# kinds of Arrow messages that contain data
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_LONGEST_CELL = 2**31 - 1  # characters in a CSV cell; by default, the csv module allows at most 131,072
_BUFFER_BYTES = 2**20  # how many bytes or characters to read at a time, or to examine for the format
# An unpacked file may have at most 4 GiB, and at most 64 MiB plus 100 times the bytes of the packed file.
# The factor is 100 because no text compresses to one hundredth of its size.
_MOST_BYTES, _MOST_PACKED_BYTES, _MOST_TIMES = 2**32, 2**26, 100
# Largest total size of the texts in a parquet file, in bytes; a text that occurs in many rows counts once per row.
_MOST_REPEATED_BYTES = 2**34
# Reading a file may take at most 6 GiB of memory plus 40 times the bytes of the file.
_MOST_MEMORY, _MOST_MEMORY_TIMES = 6 * 2**30, 40
# Largest size of a workbook's cell formats, in bytes; openpyxl takes about four seconds for each 2**20 bytes.
_MOST_BYTES_OF_STYLES = 2**22
# Largest number of XML elements outside the rows of a sheet, such as merged ranges.
# openpyxl takes about 20 microseconds and 700 bytes of memory for each element outside the rows.
_MOST_ELEMENTS = 250_000
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# encodings that are older than UTF-8; each pattern matches the bytes of the encoding's most common letters
# if two encodings fit a file equally well, badpo uses the encoding that is listed first
OLDER_ENCODINGS = {
    "cp949": rb"[\xa1\xb0-\xc8][\xa1-\xfe]",
    "euc_jp": rb"\xa4[\xa1-\xf3]|\xa5[\xa1-\xf6]|\xa1[\xa2-\xbc]|[\xb0-\xcf][\xa1-\xfe]",
    "gb18030": rb"[\xa1\xa3\xb0-\xd7][\xa1-\xfe]",
    "big5": rb"[\xa1\xa4-\xc6][\x40-\x7e\xa1-\xfe]",
    "cp932": rb"\x82[\x9f-\xf1]|\x83[\x40-\x96]|\x81[\x40-\x5b]|[\x88-\x97][\x80-\xfc]",
    "cp1251": rb"[\xa8\xb8\xc0-\xff]{3,}",
    "cp1252": rb"(?<![\x80-\xff])[\x80-\xff]{1,2}(?![\x80-\xff])",
}
_FIRST_ROWS = 20  # the header is one of the first 20 rows
_LONGEST_NAME = 80  # cells of more than _LONGEST_NAME characters are not column names
_MOST_FILES = 10  # badpo joins at most this many files or tables
_TOTAL = re.compile(
    "(?:(?:grand |sub)?totals?|sum|count|average|mean|summe|gesamt|insgesamt|anzahl|mittelwert|somme|suma|soma|totale|"
    "итого|合計|合计|总计|總計|합계|المجموع|Σ|∑)(?: \\(?n\\)?)?[:.]?",
    re.IGNORECASE,
)
_QUOTE = "quote cells that hold separators, quotes or line breaks"
# how to export a table of votes from files that badpo cannot read, by suffix
_EXPORTS = {
    ".sql": (
        "export the table of votes, here called votes, from its database as CSV. SQLite: "
        "sqlite3 new.db < {0}, and use new.db; "
        "MySQL: mysql DATABASE --batch -e 'SELECT * FROM votes' > votes.tsv; "
        "PostgreSQL: psql DATABASE --csv -c 'SELECT * FROM votes' > votes.csv"
    ),
    ".xls": "convert the file: soffice --headless --convert-to xlsx {0}",
    ".ods": "convert the file: soffice --headless --convert-to xlsx {0}",
    ".dta": "write a CSV file with the value labels; in Stata, run: use {0}, then: export delimited using votes.csv",
    ".xml": (
        "convert the file to JSON, for example by: yq -p xml -o json {0} > votes.json; or write a CSV file with one "
        "row for each vote and the columns prompt, response_a, response_b, winner, annotator"
    ),
}
_CALLED = {"list": "the rows given", "tuple": "the rows given", "Table": "the Arrow table"}
NumberedRows = list[tuple[int, list[str]]]  # rows of cells with the numbers of their lines
_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())


class _Split(Protocol):
    def with_format(self, type: str) -> Any: ...


class _ArrowHolder(Protocol):
    def to_arrow(self) -> Any: ...


# types of objects that badpo's functions accept as a table of votes
Source: TypeAlias = (
    str | os.PathLike[str] | pd.DataFrame | Sequence[Mapping[str, Cell]] | _Split | _ArrowHolder
)


def read_table(source: Source | Table, drop_uneven: bool = False) -> Table:
    """Read a table from a path or from an object in memory.

    A path names a file with a suffix in `READERS`, a folder with such files, a folder that `datasets` wrote, or a data
    set on the Hub. Objects with a method ``to_arrow`` are accepted too. If ``drop_uneven`` is True, badpo leaves out
    and counts the lines of a CSV file that have more or fewer cells than the header. If badpo cannot read the table, a
    `DataError` (E102) gives the reason.

    Examples
    --------
    >>> read_table([{"annotator": "0123", "winner": "a"}, {"winner": "b"}]).frame["annotator"].tolist()
    ['0123', None]
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, (str, os.PathLike)):
        if not os.fspath(source):
            raise _unreadable("the source", "it is an empty text", "give the path of a file")
        return _read_file(Path(os.path.expanduser(source)), drop_uneven)
    kind = type(source).__name__
    name = _CALLED.get(kind, f"the {kind}")
    if isinstance(source, pd.DataFrame):
        # named levels of the index become columns, because they may hold annotator ids
        # duplicate column names are reported later
        names = enumerate(source.index.names)
        named = [level for level, name in names if name not in (None, *source.columns)]
        frame = source.reset_index(named, allow_duplicates=True).reset_index(drop=True)
        series = (frame.iloc[:, i] for i in range(frame.shape[1]))
        return Table(_frame_of_columns([*frame.columns], series), name)
    if isinstance(source, Mapping) and (columns := _columns_in(source)):
        return Table(_frame_of_columns([*source], columns), name)
    if isinstance(source, Mapping):
        what = f"it is a mapping, of {listed([*source])}"
        one = f'source["{next(iter(source), "train")}"]'
        raise _unreadable(
            kind,
            what,
            f"pass one table of the mapping, such as {one}; for a mapping of columns, pass pandas.DataFrame(source)",
        )
    if isinstance(source, (list, tuple)):
        return Table(_frame_of_records(source, name), name)
    if hasattr(source, "with_format"):  # a split of a dataset
        source = source.with_format("arrow")[:]
    elif hasattr(source, "to_arrow"):
        source = source.to_arrow()
    if isinstance(source, pa.Table):
        return Table(_frame_of_arrow(source), name)
    remedy = "pass a path, a DataFrame, an Arrow table, a split of a dataset or a list of dicts"
    raise _unreadable(kind, "badpo cannot read a table of this type", remedy)


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a parquet file that only this user can read.

    The parquet file contains checksums of its pages. A second file next to it contains the checksum of the whole file.
    """
    with checksummed(path) as unfinished:
        pq.write_table(table, unfinished, write_page_checksum=True)


# -- readers of files ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _limit_memory(path: Path) -> Iterator[None]:
    """Limit the memory that reading a file or a folder may take; only Linux enforces the limit.

    Size checks refuse most large files before any memory is allocated, but a file can state a wrong size.
    """
    n_bytes = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
    most = _MOST_MEMORY + _MOST_MEMORY_TIMES * n_bytes
    try:
        with _limit_data_segment(most):
            yield
    except MemoryError as error:  # caught here, where the memory limit no longer applies
        what = f"it is too large: reading it takes more than {most / 2**30:,.1f} GiB of memory"
        remedy = "export only the columns that are needed, or split the table"
        raise _unreadable(path, what, remedy) from error


@contextlib.contextmanager
def _limit_data_segment(most: int) -> Iterator[None]:
    """Let this process allocate at most ``most`` additional bytes, unless it already has a memory limit."""
    status = Path("/proc/self/status")
    taken = re.search(r"^VmData:\s+(\d+) kB", status.read_text(), re.M) if status.is_file() else None
    if taken is None:
        yield
        return
    import resource  # Windows has no such module

    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    if resource.getrlimit(resource.RLIMIT_DATA) != unlimited:
        # another thread, or the reader of the whole folder, will remove its own limit
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(taken[1]) + most, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, unlimited)


def _read_file(path: Path, drop_uneven: bool) -> Table:
    name, _, split = str(path).rpartition(":")
    try:
        folder = path if path.is_dir() or not name else Path(name)
        if folder.is_dir():
            with _limit_memory(folder):
                return _read_folder(folder, split if name else "")
        if is_hub_name(path):
            found = read_table(from_hub(name or str(path), split=split if name else None))
            return replace(found, name=str(path))
        if not path.is_file():
            beside = [sibling.name for sibling in path.parent.glob("[!.]*")]
            what = f"there is no such file.{did_you_mean(path.name, beside)}"
            close = difflib.get_close_matches(path.name, beside, n=1)
            fix: Correction = {"source": str(path.with_name(close[0]))} if close else {}
            raise _unreadable(path, what, "give the path of a file", fix)
        if (read := reader_of(path)) is None:
            what = f'badpo cannot read files that end in "{path.suffix}"'
            remedy = _EXPORTS.get(path.suffix.lower(), f"use {', '.join(READERS)}, or text as .gz")
            raise _unreadable(path, what, remedy.format(shlex.quote(str(path))))
        with _limit_memory(path):
            return read(path, drop_uneven) if read is _read_csv else read(path)
    except UnicodeDecodeError as error:
        what = f"the file's encoding is neither UTF-8 nor UTF-16 nor cp1252 ({error.reason})"
        raise _unreadable(path, what, "save the file as UTF-8") from error
    except (OSError, KeyError, json.JSONDecodeError, pa.ArrowException, RecursionError) as error:
        raise _unreadable(path, str(error).strip().split("\n")[0], "export the table again") from error


def _read_folder(path: Path, split: str = "") -> Table:
    """Read the table from a folder that `datasets` wrote, or from a folder of files such as a download from the Hub.

    If the folder contains a pipe or a symbolic link to a place outside the folder, badpo does not read it.
    """
    require_safe_to_read(path)
    if (path / "state.json").is_file():
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = [path / Path(entry["filename"]).name for entry in state["_data_files"]]
        return _read_files(path, files, _arrow_parts)
    parts: dict[str, list[Path]] = {}
    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        # dataset_dict.json may be from another person and name a private file on this machine, or a data set on the Hub
        if foreign := [name for name in splits if not _is_inner_folder(path, name)]:
            what = f"dataset_dict.json names {listed(foreign)}, which is not a folder in {path}"
            raise _unreadable(path, what, "save the data set again with save_to_disk")
        parts = {name: [path / name] for name in splits}
    elif files := sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet")):
        for file in files:
            parts.setdefault(file.stem.split("-")[0], []).append(file)
    elif files := sorted(path.glob("*=*/**/*.parquet")):
        return _read_files(path, files, _parquet_parts)
    else:
        parts = {file.name: [file] for file in sorted(path.iterdir()) if file.suffix.lower() in READERS}
        if not split and 1 < len(parts) <= _MOST_FILES:
            tables = {name: read_table(file) for name, (file,) in parts.items()}
            if joined := _stacked(path, tables) or _joined(path, tables):
                return joined
    if split not in parts and len(parts) != 1:
        raise _one_of(path, parts)
    files = parts.get(split) or next(iter(parts.values()))
    return _read_files(path, files, _parquet_parts) if files[1:] else read_table(files[0])


def _is_inner_folder(folder: Path, name: Any) -> bool:
    """Return whether ``name`` names a folder directly inside ``folder``; ``name`` comes from a file in ``folder``."""
    is_name = isinstance(name, str) and not leads_out(name) and Path(name).name == name
    return is_name and (folder / name).is_dir()


def _read_files(
    path: Path, files: Sequence[Path], parts_of: Callable[[Path], Iterator[pa.Table]]
) -> Table:
    """Read the parquet or Arrow files of one table; the size limits apply to all files together.

    Folders with names such as ``rater=R01`` add columns to the table.
    """
    frames, sizes, dropped = [], list[_Size](), list[Dropped]()
    for file in files:
        cells = (name.partition("=") for name in file.relative_to(path).parts[:-1] if "=" in name)
        added = {name: cell for name, _, cell in cells}
        for i, part in enumerate(parts_of(file)):
            sizes.append(_measure(part, len(added)))
            n_rows, n_cells, n_bytes, n_repeated = map(sum, zip(*sizes, strict=True))
            require_size(str(path), n_rows, part.num_columns + len(added), n_cells)
            if n_bytes > _MOST_BYTES or n_repeated > _MOST_REPEATED_BYTES:
                what = (
                    f"it is too large: it has more than {_MOST_BYTES >> 30:,} GiB, or the texts of all rows have more "
                    f"than {_MOST_REPEATED_BYTES >> 30:,} GiB in total"
                )
                raise _unreadable(
                    path, what, "export only the columns that are needed, or split the table"
                )
            frames.append(_frame_of_arrow(part).assign(**added))
            dropped += _read_dropped(file, part) if i == 0 else []
    if not frames:
        raise _unreadable(path, "it has no rows", "export the table again")
    frame = pd.concat(frames, ignore_index=True) if frames[1:] else frames[0]
    return Table(frame, str(path), dropped=tuple(dropped))


def is_hub_name(path: Path) -> bool:
    """Return whether a path may be the name of a data set on the Hub.

    Examples of names are ``allenai/multipref`` and ``nvidia/HelpSteer3:validation``.
    """
    is_short = len(path.parts) == 2 and not path.is_absolute() and not path.parent.exists()
    return is_short and not reader_of(path)


def from_hub(
    name: str, config: str | None = None, split: str | None = None, revision: str | None = None
) -> Any:
    """Load a split of a data set from the Hub or the cache; if ``split`` is None, load "train" or the only split."""
    from datasets import load_dataset

    try:
        with asking_once(name, "dataset"):
            found = load_dataset(name, config, split=split, revision=revision)
    except (OSError, ValueError) as error:
        why = str(error).strip().split("\n")[0]
        what = (
            f"there is no such file, and no data set of this name could be loaded from the Hub ({why})"
        )
        remedy = "accept its terms on the Hub and log in with hf auth login, or name a local file"
        if "gated" not in why:
            remedy = "download the data set once with network access, or name a local file"
        raise DataError([Problem("E190", what, name, remedy)]) from error
    if split is None and "train" not in found and len(found) > 1:
        raise _one_of(name, found)
    return found if split else found[min(found, key="train".__ne__)]


def _one_of(name: str | Path, parts: Iterable[str]) -> DataError:
    fix: Correction = {"source": f"{name}:{next(iter(parts))}"} if [*parts] else {}
    what = "it holds several tables: " + ", ".join(parts) if fix else "it holds no table"
    remedy = (
        f"name one of the tables after a colon, as in {name}:{next(iter(parts))}"
        if fix
        else "name a file"
    )
    return _unreadable(name, what, remedy, fix)


def _parquet_parts(path: Path) -> Iterator[pa.Table]:
    """Check the size of a parquet file, and yield its content."""
    if is_changed(path):
        beside = checksum_file(path)
        what = f"the checksum of the file differs from the checksum in {beside.name}"
        remedy = "use an undamaged copy of the table, or import the export again"
        raise _unreadable(path, what, f"{remedy}; if the table was changed on purpose, remove {beside}")
    layout = pq.read_metadata(path)
    parts = [layout.row_group(i) for i in range(layout.num_row_groups)]
    # each level of a nested column needs its own Python lists
    n_levels = [1 + layout.schema.column(i).max_repetition_level for i in range(layout.num_columns)]
    n_cells = sum(part.column(i).num_values * n for part in parts for i, n in enumerate(n_levels))
    require_size(str(path), layout.num_rows, layout.num_columns, n_cells)
    _require_bytes(path, sum(part.total_byte_size for part in parts))
    # read texts as Arrow dictionaries, so that a text that occurs in many rows is in memory only once
    # Arrow cannot read columns with a DELTA encoding as dictionaries
    texts = [
        layout.schema.column(i).path
        for i in range(layout.num_columns)
        if layout.schema.column(i).logical_type.type == "STRING"
        and not any("DELTA" in name for part in parts for name in part.column(i).encodings)
    ]
    options = {
        "read_dictionary": texts,
        "buffer_size": _BUFFER_BYTES,
        "page_checksum_verification": True,
    }
    with pq.ParquetFile(path, **options) as file:
        content = file.read()
    # the sizes in the metadata are too small for DELTA encodings, which store a common prefix of texts only once
    _require_bytes(
        path, sum(column.nbytes for column in content.columns if _is_text_or_binary(column.type))
    )
    yield content


def _is_text_or_binary(kind: pa.DataType) -> bool:
    """Return whether the elements of an array of this type are texts or byte strings."""
    types = pa.types
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return kind in _TEXT_TYPES or is_binary or types.is_fixed_size_binary(kind)


def _read_dropped(path: Path, content: pa.Table) -> list[Dropped]:
    """Return how many rows an earlier import left out, as counted in the metadata of the imported table."""
    try:
        entries = json.loads((content.schema.metadata or {}).get(DROPPED_KEY, b"[]"))
        return [
            Dropped(reason=str(one["reason"]), annotator=str(one["annotator"]), n=int(one["n"]))
            for one in entries
        ]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        what = "the metadata with the counts of rows that an earlier import left out is damaged"
        raise _unreadable(path, what, "import the export again") from error


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow file, a Feather file or an Arrow stream in batches.

    If the unpacked file would be too large, raise a `DataError` before any batch is unpacked.
    """
    with pa.memory_map(str(path)) as source:
        is_stream = source.read(6) != ARROW_MARKS[0]
        source.seek(0 if is_stream else 8)  # the content of a file is a stream after eight bytes
        try:
            messages = pa.ipc.MessageReader.open_stream(source)
            _require_bytes(path, sum(map(_count_unpacked_bytes, messages)))
        except (struct.error, TypeError) as error:
            raise _unreadable(path, "it is damaged", "export the table again") from error
        source.seek(0)
        file = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(source)
        for batch in file if is_stream else map(file.get_batch, range(file.num_record_batches)):
            # positions of texts in a damaged file may point outside its memory, which Arrow does not check by default
            batch.validate(full=True)
            yield batch


def _count_unpacked_bytes(message: pa.ipc.Message) -> int:
    """Count the bytes of an Arrow message's buffers after unpacking; Arrow itself has no function for this.

    The metadata are a FlatBuffer (https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format). A
    compressed buffer begins with its unpacked size, or with -1 if the rest of the buffer is not compressed.
    """
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")

    def find_field(table: int, number: int) -> int:
        offsets = table - struct.unpack_from("<i", metadata, table)[0]
        (size,) = struct.unpack_from("<H", metadata, offsets)
        place = 4 + 2 * number
        (offset,) = struct.unpack_from("<H", metadata, offsets + place) if place < size else (0,)
        return table + int(offset) if offset else 0

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", metadata, place)[0])

    root = follow(0)
    kind = metadata[find_field(root, 1)]
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return len(body)
    batch = follow(find_field(root, 2))
    if kind == _DICTIONARY_BATCH:
        batch = follow(find_field(batch, 1))
    if not find_field(batch, 3):  # without compression
        return len(body)
    buffers, n = follow(find_field(batch, 2)), 0
    for i in range(struct.unpack_from("<I", metadata, buffers)[0]):
        start, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * i)
        if length:
            (size,) = struct.unpack_from("<q", body, start)
            n += length if size < 0 else size
    return n


def _arrow_parts(path: Path) -> Iterator[pa.Table]:
    """Yield the batches of an Arrow file as tables."""
    for batch in arrow_batches(path):
        yield pa.Table.from_batches([batch])


class _Size(NamedTuple):
    """Size of an Arrow table; ``n_cells`` includes the elements of nested columns.

    ``n_bytes`` is the memory that reading the table takes, and ``n_repeated`` is the size of the texts in all rows.
    """

    n_rows: int
    n_cells: int
    n_bytes: int
    n_repeated: int


def _measure(content: pa.Table, n_added: int) -> _Size:
    """Measure a table and its ``n_added`` further columns before Python objects are made from its elements.

    The metadata of a file can state wrong numbers of elements, so this function counts them.
    """
    n_cells, n_bytes, n_repeated = content.num_rows * n_added, content.nbytes, 0
    for column in content.columns:
        for level in _levels(column):
            n_cells += len(level)
            if not pa.types.is_dictionary(level.type):
                continue
            if level.type == column.type and level.type.value_type in _TEXT_TYPES:
                n_repeated += _count_repeated_bytes(level)
            else:  # each element of a nested array, and each cell that is not a text, becomes a Python object
                n_bytes += _count_repeated_bytes(level)
    return _Size(content.num_rows, n_cells, n_bytes, n_repeated)


def _levels(array: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the chunks of an array and, for all levels of nesting, the arrays of their elements.

    If a type stores a nested value only once for many rows, raise an `ArrowNotImplementedError`.
    """
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            yield from _levels(chunk)
        return
    is_dictionary = pa.types.is_dictionary(array.type)
    if pa.types.is_run_end_encoded(array.type) or (
        is_dictionary and pa.types.is_nested(array.type.value_type)
    ):
        raise pa.ArrowNotImplementedError(f"badpo cannot read columns of the Arrow type {array.type}")
    yield array
    inner = []
    if pa.types.is_struct(array.type):
        inner = array.flatten()
    elif pa.types.is_map(array.type):
        inner = [array.keys, array.items]
    elif pa.types.is_nested(array.type) and hasattr(array, "values"):
        inner = [array.values]
    for each in inner:
        yield from _levels(each)


def _count_repeated_bytes(array: pa.DictionaryArray) -> int:
    """Count the bytes of the texts in a dictionary-encoded array, once for each occurrence.

    A small file can store a long text once and repeat it in very many rows. Processing all repeated texts could take
    days.
    """
    if not _is_text_or_binary(array.type.value_type):
        return 0
    return pc.sum(pc.take(pc.binary_length(array.dictionary), array.indices)).as_py() or 0


def reader_of(path: Path) -> Callable[..., Table] | None:
    """Return the reader for a file name's suffix, or None; ignore a compression suffix such as ``.gz``."""
    plain = Path(path.stem) if path.suffix.lower() in PACKED else path
    return READERS.get(plain.suffix.lower())


def _require_bytes(path: Path, n: int) -> None:
    """Refuse a file whose unpacked size of ``n`` bytes is too large, in total or relative to its size on disk."""
    usual = _MOST_PACKED_BYTES + _MOST_TIMES * path.stat().st_size
    if n > (most := min(_MOST_BYTES, usual)):
        what = f"it is too large: the unpacked file has more than {most >> 20:,} MiB"
        raise _unreadable(
            path, what, "export the table in parts or as parquet, or unpack the file first"
        )


def decoded(path: Path) -> tuple[str, str]:
    """Return the text of a file and its encoding.

    If the file has a byte-order mark, the mark determines the encoding. If many bytes are zero, the encoding is UTF-16,
    and if all bytes are valid UTF-8, it is UTF-8. For any other file, the encoding is the older encoding in which the
    largest share of non-ASCII characters are common letters. If most of the non-ASCII bytes are valid UTF-8, the file
    is damaged UTF-8 rather than text in an older encoding.
    """
    with pa.input_stream(str(path)) as file:  # the stream also decompresses files
        parts, n_bytes = [], 0
        while part := file.read(_BUFFER_BYTES):
            parts.append(part)
            n_bytes += len(part)
            _require_bytes(path, n_bytes)
    content = b"".join(parts)
    del parts
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return content.decode(name), name
    start = content[:1_000]
    for name, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if zeros.count(0) * 4 > len(start):
            return content.decode(name), name
    try:
        return content.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        n_wrong = content.decode("utf-8", "replace").count("\ufffd")
        if n_wrong * 2 < sum(byte > 127 for byte in content):
            raise
        return _decoded_as_older(content)


def _decoded_as_older(content: bytes) -> tuple[str, str]:
    beginning = content[:_BUFFER_BYTES]
    n_bytes = sum(byte > 127 for byte in beginning)

    def share_common(name: str) -> float:
        """Return the share of the non-ASCII bytes that are common letters in an encoding, or 0 if decoding fails."""
        try:
            content.decode(name)
        except UnicodeDecodeError:
            return 0.0
        common = re.compile(b"(" + OLDER_ENCODINGS[name] + b")|[\\x81-\\xfe][\\x40-\\xfe]|.", re.DOTALL)
        return sum(sum(byte > 127 for byte in found) for found in common.findall(beginning)) / n_bytes

    name = max(OLDER_ENCODINGS, key=share_common)
    name = name if share_common(name) > 0.5 else "cp1252"
    return content.decode(name), name


def _read_csv(path: Path, drop_uneven: bool = False) -> Table:
    csv.field_size_limit(_LONGEST_CELL)
    text, encoding = decoded(path)
    separator = _separator(text)
    try:
        rows, lines = _cells_of_csv(text, separator, path)
    except DataError:
        if '\\"' not in text:
            raise
        # R and Spark write a backslash before a quotation mark inside a cell
        rows, lines = _cells_of_csv(text, separator, path, escapechar="\\")
    peculiarities = [f"encoding {encoding}"] if encoding not in ("utf-8", "utf-8-sig") else []
    usual = ",\t" if path.suffix.lower() == ".tsv" else ",;"
    peculiarities += [f'columns separated by "{separator}"'] if separator not in usual else []
    blocks: list[NumberedRows] = [[]]
    for line, row in zip(lines, rows, strict=True):
        if any(map(str.strip, row)):
            blocks[-1].append((line, row))
        elif blocks[-1]:
            blocks.append([])
    blocks = [block for block in blocks if len(block) > 1]
    if 1 < len(blocks) <= _MOST_FILES and all(_n_known(block[0][1]) for block in blocks):
        # the file holds several tables below each other, for example a table of pairs and a table of votes
        tables = {
            f"table {i}": _table_of_rows(path, [row for _, row in block], [line for line, _ in block])
            for i, block in enumerate(blocks, start=1)
        }
        if joined := _joined(path, tables):
            return replace(joined, encoding=encoding)
    return _table_of_rows(path, rows, lines, peculiarities, encoding, drop_uneven)


def _cells_of_csv(
    text: str, separator: str, path: Path, escapechar: str | None = None
) -> tuple[list[list[str]], list[int]]:
    """Return the cells of each row of a CSV file, and the line number at which each row starts."""
    rows, lines = [], []
    known: dict[str, str] = {}  # a text that occurs in many rows is in memory only once
    lines_of_text = io.StringIO(text, newline="")
    reader = csv.reader(lines_of_text, delimiter=separator, escapechar=escapechar, strict=True)
    end = 0
    try:
        for row in _limited(reader, path):
            rows.append([known.setdefault(cell, cell) for cell in row])
            lines.append(end + 1)
            end = reader.line_num
    except csv.Error as error:
        what = f"line {reader.line_num}: {error}"
        raise _unreadable(path, what, _QUOTE) from error
    return rows, lines


def _limited(rows: Iterable[list[str]], path: Path) -> Iterator[list[str]]:
    """Yield the rows of a file; raise an error as soon as there are too many rows, columns or cells."""
    n_cells = 0
    for n, row in enumerate(rows, start=1):
        n_cells += len(row)
        if n > MOST_ROWS or n_cells > MOST_CELLS or len(row) > MOST_COLUMNS:
            require_size(str(path), n, len(row), n_cells)
        yield row


def _separator(text: str) -> str:
    """Return the separator of a CSV file.

    The separator is the character that splits the first lines of the file into the most known column names. If several
    characters give equally many known names, the separator is the one for which the most lines have the same number of
    cells.
    """
    beginning = text[:_BUFFER_BYTES]
    escapechar = "\\" if '\\"' in beginning else None

    def evidence(separator: str) -> tuple[int, float, int]:
        cells = io.StringIO(beginning, newline="")
        lines = csv.reader(cells, delimiter=separator, escapechar=escapechar)
        try:
            rows = [*itertools.islice((row for row in lines if any(map(str.strip, row))), _FIRST_ROWS)]
        except csv.Error:
            return 0, 0.0, 0
        if not rows:
            return 0, 0.0, 0
        width, n = Counter(map(len, rows)).most_common(1)[0]
        if separator == " " and n < len(rows) - 1:
            return 0, 0.0, 0  # the spaces belong to the texts and do not separate cells
        # a line without the separator may be part of a longer cell, for example "Response A:"
        known = max((_n_known(row) for row in rows if len(row) > 1), default=0)
        return known, (width > 1) * n / len(rows), width

    return max(",;\t| ", key=evidence)


def _has_votes_and_texts(frame: pd.DataFrame, is_joined: bool = False) -> bool:
    """Return whether a table contains vote columns and response columns with texts.

    The columns are recognized by their names. In a table that was joined by ids, an annotator column counts as a vote
    column too.
    """
    known = columns_named([*map(str, frame)], (*KNOWN, *ANSWERS, "response"))
    texts = [frame[known[name]] for name in ("response_a", "chosen", "response") if name in known]
    votes = {"winner", "rejected", *ANSWERS} | ({"annotator"} if is_joined else {*()})
    return any(map(holds_texts, texts)) and not votes.isdisjoint(known)


def _n_known(cells: Sequence[str]) -> int:
    """Count the cells of a row that are column names known to badpo."""
    names = [cell.strip() for cell in cells if cell.strip()]
    if (
        len(names) > MOST_COLUMNS
        or len({*names}) < len(names)
        or any(len(name) > _LONGEST_NAME for name in names)
    ):
        return 0  # the row is not a header but contains votes; a label may equal a column name by chance
    return len(columns_named(names, (*KNOWN, *ANSWERS)))


def _table_of_rows(
    path: Path,
    rows: list[list[str]],
    lines: Sequence[int] = (),
    known_peculiarities: Sequence[str] = (),
    encoding: str = "utf-8",
    drop_uneven: bool = False,
) -> Table:
    """Make a table from rows of cells.

    The function leaves out rows that do not belong to the table, such as titles and totals. A notice counts the rows
    that were left out and lists ``known_peculiarities``. ``lines`` contains the line number of each row; if it is
    empty, rows are numbered from 1.
    """
    numbered_rows = [*zip(lines or range(1, len(rows) + 1), rows, strict=True)]
    # a row of dashes is a horizontal line and contains no data
    kept = [each for each in numbered_rows if any(cell.strip(" -:+") for cell in each[1])]
    n_blank = sum(map(bool, rows)) - len(kept)
    kept, legends = _without_legends(kept)
    header, body, above, of_header = _split_header(kept)
    legends += [" ".join(filter(None, row)) for row in above]
    width = len(header)
    # spreadsheets end rows with empty cells
    body = [(line, row if any(row[width:]) else row[:width]) for line, row in body]
    n_body, body = len(body), [(line, row) for line, row in body if not _is_total(row)]
    votes = [(line, row) for line, row in body if [cell.strip() for cell in row] != header]
    peculiarities = [*known_peculiarities, *of_header]
    for n_left_out, what in (
        (len(body) - len(votes), "repeated header"),
        (n_body - len(body), "row of totals"),
        (n_blank, "empty row"),
    ):
        peculiarities += [f"{counted(n_left_out, what)} left out"] if n_left_out else []
    uneven = [f"line {line} has {len(row)}" for line, row in votes if len(row) != width]
    if uneven:
        what = (
            f"the header has {width} columns, but {len(uneven):,} rows have a different number of cells"
        )
        if not drop_uneven:
            raise _unreadable(path, f"{what}: {listed(uneven)}", _QUOTE, {"bad_rows": "drop"})
        votes = [(line, row) for line, row in votes if len(row) == width]
        peculiarities.append(f"{what}; these were left out")
    cells = zip(*(row for _, row in votes), strict=True) if votes else ([] for _ in header)
    names = [name or f"column_{i}" for i, name in enumerate(header, start=1)]
    frame = _frame_of_columns(names, ([cell or None for cell in column] for column in cells))
    at = np.array([line for line, _ in votes], dtype=np.intp)
    joined_legends = ("; ".join(legends),) if legends else ()
    table = Table(frame, str(path), at, encoding=encoding, legends=joined_legends)
    if peculiarities:
        what = f"the file was read with {'; '.join(peculiarities)}"
        table = replace(table, notes=(Problem("N102", what, str(path), "nothing"),))
    return table.with_dropped("bad row: number of cells", len(uneven)) if uneven else table


def _split_header(
    rows: NumberedRows,
) -> tuple[list[str], NumberedRows, list[list[str]], list[str]]:
    """Return the names in the header, the rows below and above the header, and the peculiarities of the header."""
    n_known = [_n_known(row) for _, row in rows[:_FIRST_ROWS]]
    start = n_known.index(max(n_known)) if max(n_known, default=0) > 1 else 0
    above, peculiarities = [row for _, row in rows[:start]], []
    joined = _joined_header([row for _, row in rows[start : start + 2]])
    if joined and max(_n_known(joined), 1) > max(n_known):
        rows = [*rows[:start], (rows[start][0], joined), *rows[start + 2 :]]
        n_known = [max(2, _n_known(joined))]
        peculiarities.append("two lines as one header")
    header = [name.strip() for _, row in rows[start : start + 1] for name in row]
    body = rows[start + 1 :]
    if _has_names_of_rows(len(header), [row for _, row in body]):
        header.insert(0, "")
    # Qualtrics writes two extra lines below the header: one with questions and one with import ids
    again = [i for i, (_, row) in enumerate(body[:3], start=1) if row[0].startswith('{"ImportId"')]
    if again and again[0] > 1:
        # the first line of a Qualtrics file contains only question numbers; the second line contains the questions
        lines_of_header = zip(header, body[0][1], strict=False)
        header = [text.strip() if question_in(text) else name for name, text in lines_of_header]
    n_below = max(again, default=0)
    body = body[n_below:]
    while header and not header[-1] and not any(any(row[len(header) - 1 :]) for _, row in body):
        header.pop()
    # a first row whose words are frequent in the rows below is not a header
    columns = zip(header, zip(*(row for _, row in body), strict=False), strict=False)
    if not max(n_known, default=1) and any(
        cell and 10 * column.count(cell) >= len(body) for cell, column in columns
    ):
        body, header = rows, [""] * len(header)
        peculiarities.append("no header, so the columns are called column_1, column_2 and so on")
    for n_left_out, what in ((start, "preceding line"), (n_below, "further header line")):
        peculiarities += [f"{counted(n_left_out, what)} left out"] if n_left_out else []
    return header, body, above, peculiarities


def _without_legends(rows: NumberedRows) -> tuple[NumberedRows, list[str]]:
    """Separate the legends from the rows of a table, and return both.

    A legend is a row with one or two cells that explain what numbers mean.
    """
    width = max((len(row) for _, row in rows[:_FIRST_ROWS]), default=0)
    legends: dict[int, str] = {}
    for i, (_, row) in enumerate(rows):
        filled = [cell.strip() for cell in row if cell.strip()]
        is_edge = i < _FIRST_ROWS or i >= len(rows) - _FIRST_ROWS
        if is_edge and len(filled) < min(3, width) and any(legends_in(text := " = ".join(filled))):
            legends[i] = text
    # a legend explains each number only once, so rows that repeat a number are votes rather than legends
    codes = [code for text in legends.values() for code, _ in legends_in(text)[0]]
    if len({*codes}) < len(codes) or not is_legend("; ".join(legends.values())):
        return rows, []
    return [each for i, each in enumerate(rows) if i not in legends], [*legends.values()]


def _joined_header(rows: Sequence[Sequence[str]]) -> list[str]:
    """Join the two lines of a header if names in the upper line span several columns.

    At least two names in the upper line must span columns with the same names in the lower line, such as "text" and
    "score" below both "A" and "B". If fewer than two names span columns in this way, the result is empty.
    """
    if len(rows) < 2 or all(rows[0]) or len(rows[0]) != len(rows[1]):
        return []
    above: list[str] = []
    for name in rows[0]:
        above.append(name or (above[-1] if above else ""))
    groups = [
        tuple(group)
        for _, group in itertools.groupby(zip(above, rows[1], strict=True), lambda pair: pair[0])
    ]
    below = [tuple(name for _, name in group) for group in groups if len(group) > 1]
    if len({*below}) == len(below):
        return []
    # if the upper name is a question, the lower name is one of its options and goes on a new line
    names = [
        f"{name}{chr(10) if question_in(name) else ' '}{under}".strip()
        for name, under in zip(above, rows[1], strict=True)
    ]
    return names if len({*names}) == len(names) else []


def _has_names_of_rows(width: int, rows: Sequence[Sequence[str]]) -> bool:
    """Return whether each row begins with a row number that has no name in the header, as in tables from R.

    Each row must have one more cell than the header. If the last cell is empty in all rows, the result is False. The
    result is also False if a cell begins with a space, because such a cell is part of a text with separators.
    """
    if {*map(len, rows)} != {width + 1} or not any(row[-1] for row in rows):
        return False
    are_numbers = all(row[0].isdigit() for row in rows) and len({row[0] for row in rows}) == len(rows)
    return are_numbers and not any(cell.startswith(" ") for row in rows for cell in row)


def _is_total(row: Sequence[str]) -> bool:
    """Return whether a row contains totals.

    In a row of totals, the first nonempty cell is a word such as "total", and at least half of the cells are empty.
    """
    filled = [cell for cell in row if cell.strip()]
    return (
        len(row) > 2
        and 0 < 2 * len(filled) <= len(row)
        and _TOTAL.fullmatch(filled[0].strip()) is not None
    )


def _read_excel(path: Path) -> Table:
    """Read the table in a workbook with `_table_of_sheets`."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        what = "badpo reads Excel files with openpyxl, which is not installed"
        remedy = 'run in the clone: pip install -c constraints.txt ".[excel]"; or save the sheet as CSV'
        raise _unreadable(path, what, remedy) from None
    try:
        with zipfile.ZipFile(path) as packed:
            _require_bytes(path, sum(part.file_size for part in packed.infolist()))
            n_bytes = sum(
                part.file_size for part in packed.infolist() if part.filename == "xl/styles.xml"
            )
        if n_bytes > _MOST_BYTES_OF_STYLES:
            what = f"the cell formats of the workbook have {n_bytes:,} bytes; the limit is {_MOST_BYTES_OF_STYLES:,}"
            raise _unreadable(path, what, "save the table as CSV, without cell formats")
        # with read_only=False, openpyxl would create every cell of a merged range, even cells outside the table
        with contextlib.closing(load_workbook(path, read_only=True, data_only=True)) as book:
            sheets = _limited_sheets(
                ((sheet.title, _rows_of_sheet(sheet, path)) for sheet in book.worksheets), path
            )
            n_hidden = sum(sheet.sheet_state != "visible" for sheet in book.worksheets)
    except DataError:
        raise
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        SyntaxError,
        zipfile.BadZipFile,
        expat.ExpatError,
    ) as error:
        what = f"it is not a workbook ({error})"
        raise _unreadable(path, what, "save it as .xlsx or CSV again") from error
    table = _table_of_sheets(path, sheets)
    # the notice does not name the sheets, because their names may be names of people
    what = f"{n_hidden} of {counted(len(sheets), 'sheet')} hidden in the workbook, but read like the other sheets"
    return table.noted("N102", what) if n_hidden else table


def _table_of_sheets(path: Path, sheets: Mapping[str, list[list[str]]]) -> Table:
    """Make one table from the sheets of a workbook or the tables of a database.

    The main sheet is the sheet with the most known column names. Sheets with the same columns as the main sheet are
    read as one table. If no column names the annotators, the name of each sheet is read as the annotator of its votes.
    If any sheet name is generic, such as "Sheet 1", the names are not read as annotators. If the main sheet lacks votes
    or texts, the function joins it with the other sheets.
    """
    title = max(sheets, key=lambda title: max(map(_n_known, sheets[title][:_FIRST_ROWS]), default=0))
    tables = {name: _table_of_rows(path, rows) for name, rows in sheets.items() if rows}
    names = [*map(str, tables[title].frame)]
    alike = {name: table for name, table in tables.items() if {*table.frame} == {*names}}
    if _n_known(names) > 1 < len(alike) and (stacked := _stacked(path, alike)):
        unread = [f'"{name}"' for name in sheets if name not in alike]
        what = f"sheets not read because their columns differ: {listed(unread)}"
        return stacked.noted("N102", what) if unread else stacked
    others = {name: rows for name, rows in sheets.items() if name != title and rows}
    peculiarities = [f'sheet "{title}" of {len(sheets)}'] if others else []
    table = _table_of_rows(path, sheets[title], known_peculiarities=peculiarities)
    joined = None
    if others and not _has_votes_and_texts(table.frame):
        joined = _joined(path, {title: table} | {name: tables[name] for name in others})
    legends = itertools.chain(*map(_legends_of_rows, others.values()))
    return joined or replace(table, legends=(*table.legends, *legends))


def _legends_of_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts of a sheet that may explain the codes in another sheet.

    Each row of the sheet is one text. All rows with two cells, a code and its meaning, are also joined to one text.
    """
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    codes = [" = ".join(row) for row in cells if len(row) == 2]
    return [*(": ".join(row) for row in cells if row), "; ".join(codes)]


def _stacked(path: Path, tables: Mapping[str, Table]) -> Table | None:
    """Join the rows of all tables; return None if the columns differ or the tables are splits of a data set.

    If no column names the annotators, the name of each table is read as the annotator of its votes. If any name is
    generic, such as "part 1", the names are not read as annotators.
    """
    names = {name: name.partition(".")[0] for name in tables}
    columns = [*map(str, next(iter(tables.values())).frame)]
    are_alike = all({*map(str, table.frame)} == {*columns} for table in tables.values())
    is_split = any(map(_SPLIT.fullmatch, names.values()))
    if not are_alike or is_split or len({*columns}) < len(columns) or len(columns) < 2:
        return None
    # read sheet or file names as annotators, unless a column names annotators or one of the names is generic
    has_annotators = "annotator" in columns_named(columns, KNOWN)
    of_people = not has_annotators and not any(map(_PART.match, names.values()))
    frames = [
        table.frame[columns].assign(
            sheet=names[name], **({"annotator": names[name]} if of_people else {})
        )
        for name, table in tables.items()
    ]
    lines = [table.lines for table in tables.values() if table.lines is not None]
    at = np.concatenate(lines) if len(lines) == len(tables) else None
    what = f"{counted(len(tables), 'table')} with the same columns read as one table"
    what += ", with the name of each table as its annotator" * of_people
    dropped = tuple(itertools.chain(*(table.dropped for table in tables.values())))
    notes: list[Problem] = []
    for note in itertools.chain(*(table.notes for table in tables.values())):
        # the notice does not name a file in the folder, because the file may be named after a person
        if (of_all := replace(note, where=str(path))) not in notes:
            notes.append(of_all)
    frame = pd.concat(frames, ignore_index=True)
    table = Table(frame, str(path), at, dropped=dropped, notes=tuple(notes))
    return table.noted("N102", what)


def _joined(path: Path, tables: Mapping[str, Table]) -> Table | None:
    """Join tables by ids; return None if no ids connect votes with texts.

    Tables with a single row are ignored.
    """
    records = {
        name: table.frame.to_dict("records") for name, table in tables.items() if len(table.frame) > 1
    }
    for used, rows in joined_records(records).items():
        if len(used) == 1:
            continue
        legends = tuple(itertools.chain(*(table.legends for table in tables.values())))
        joined = flatten(Table(_frame_of_records(rows, path), str(path), legends=legends))
        if _has_votes_and_texts(joined.frame, is_joined=True):
            what = f"{' and '.join(used)} joined by ids: {counted(len(rows), 'row')}"
            if n_others := len(tables) - len(used):
                what += f"; {counted(n_others, 'further table')} not read"
            return joined.noted("N102", what)
    return None


_SPLIT = re.compile("(?i)train|test|valid|validation|dev|eval|val|unused")
# generic names of sheets and files, which are not names of annotators
_PART = re.compile(
    r"(?i)(?:sheet|tabelle|feuil|hoja|foglio|blad|лист|batch|part|round|week|day|set|wave|group|data|table|teil|page|votes|ratings|"
    r"labels|annotations|judge?ments|responses|results|export|file|shard|chunk)?[\W_\d]*$"
)


def _rows_of_sheet(sheet: Any, path: Path) -> list[list[str]]:
    """Return the rows of a sheet, padded to the same number of cells."""
    # count elements outside the rows before openpyxl reads the sheet, because openpyxl keeps all of them in memory
    with sheet.parent._archive.open(sheet._worksheet_path) as content:
        ranges = _merged_ranges(content)
    sheet.reset_dimensions()  # a file may state dimensions that are much too large
    texts = ([*map(_excel_text, row)] for row in sheet.iter_rows(values_only=True))
    # remove empty cells at the end of a row; a workbook stores empty cells if, for example, they have a color
    filled = (row[: max((i for i, cell in enumerate(row, 1) if cell), default=0)] for row in texts)
    rows = [*_limited(filled, path)]
    width = max(map(len, rows), default=0)
    require_size(str(path), len(rows), width)
    rows = [row + [""] * (width - len(row)) for row in rows]
    _fill_merged_cells(rows, ranges)
    return rows


def _merged_ranges(content: IO[bytes]) -> list[tuple[int, int, int, int]]:
    """Return each merged range in the XML of a sheet: first column, first row, last column and last row.

    If the sheet has too many elements outside its rows, raise a `ValueError`.
    """
    from openpyxl.utils import range_boundaries

    ranges: list[tuple[int, int, int, int]] = []
    n_elements, is_in_rows = 0, False

    def start(name: str, attributes: Mapping[str, str]) -> None:
        nonlocal n_elements, is_in_rows
        if is_in_rows:
            return
        n_elements += 1
        if n_elements > _MOST_ELEMENTS:
            what = "merged ranges, rules and links"
            raise ValueError(f"a sheet has more than {_MOST_ELEMENTS:,} {what}")
        kind = name.rpartition(":")[2]
        is_in_rows = kind == "sheetData"
        if kind == "mergeCell":
            ranges.append(range_boundaries(attributes["ref"]))

    def end(name: str) -> None:
        nonlocal is_in_rows
        is_in_rows = is_in_rows and name.rpartition(":")[2] != "sheetData"

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.ParseFile(content)
    return ranges


def _fill_merged_cells(rows: list[list[str]], ranges: Iterable[tuple[int, int, int, int]]) -> None:
    """Fill the first column of each merged range with the range's value, and empty its other columns.

    The value is not copied to the right, because a title may be as wide as the table. Parts of a range outside the rows
    are ignored. If ranges overlap so much that they contain more cells than the rows, raise a `ValueError`.
    """
    width = len(rows[0]) if rows else 0
    n_cells = len(rows) * width
    for left, top, right, bottom in ranges:
        right, bottom = min(right, width), min(bottom, len(rows))
        if 1 <= left <= right and 1 <= top <= bottom:
            n_cells -= (right - left + 1) * (bottom - top + 1)
            if n_cells < 0:
                raise ValueError("its merged ranges overlap")
            value = rows[top - 1][left - 1]
            for row in rows[top - 1 : bottom]:
                row[left - 1 : right] = [value, *[""] * (right - left)]


def _limited_sheets(
    sheets: Iterable[tuple[str, list[list[str]]]], path: Path
) -> dict[str, list[list[str]]]:
    """Return the rows of each sheet; raise a `DataError` (E102) if all sheets together have too many rows or cells."""
    found: dict[str, list[list[str]]] = {}
    n_rows = n_cells = 0
    for name, rows in sheets:
        n_rows, n_cells = n_rows + len(rows), n_cells + sum(map(len, rows))
        require_size(str(path), n_rows, 0, n_cells)
        found[name] = rows
    return found


def _excel_text(cell: Cell | bytes) -> str:
    """Return the text that a workbook's or a database's cell would have in a CSV file."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return "" if pd.isna(cell) else str(cell)


_COMPUTED = 2  # value of the field "hidden" in PRAGMA table_xinfo for virtual generated columns


def _read_sqlite(path: Path) -> Table:
    """Read the table in a SQLite database with `_table_of_sheets`, without changing the database."""
    with path.open("rb") as file:
        start = file.read(19)
    remedy = "unpack the file if it is compressed, or export the table of votes as CSV"
    if not start.startswith(b"SQLite format 3\0"):
        raise _unreadable(path, "it is not a SQLite database", remedy)
    # SQLite creates files when it reads a closed database with a write-ahead log, unless the database is immutable
    is_closed = start[18:] == b"\2" and not path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' * is_closed}"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_PACKED_BYTES)
            # skip virtual tables, because reading them would run code on content of the file
            named = database.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            ).fetchall()
            names = [name for (name,) in named if not name.startswith("sqlite_")]
            tables = (
                (name, [*_limited(_rows_of_database(database, name, path), path)]) for name in names
            )
            sheets = _limited_sheets(tables, path)
    except sqlite3.Error as error:
        raise _unreadable(path, f"SQLite reports: {error}", remedy) from error
    if not any(rows[1:] for rows in sheets.values()):
        raise _unreadable(path, "no table of the database has rows", remedy)
    return _table_of_sheets(path, {name: rows for name, rows in sheets.items() if rows[1:]})


def _rows_of_database(database: sqlite3.Connection, name: str, path: Path) -> Iterator[list[str]]:
    """Yield the column names of a table and then the cells of each row as texts.

    The function refuses tables with a virtual generated column, because SQLite computes each cell of such a column when
    it is read, which may take days.
    """
    quoted = name.replace('"', '""')
    columns = database.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
    if computed := [column for _, column, *_, hidden in columns if hidden == _COMPUTED]:
        what = f'column "{computed[0]}" of table "{name}" is computed from other columns when the table is read'
        remedy = f"copy the table without such columns, or export it: sqlite3 -header -csv {shlex.quote(str(path))}"
        raise _unreadable(path, what, f"{remedy} 'SELECT * FROM \"{quoted}\"' > votes.csv")
    cursor = database.execute(f'SELECT * FROM "{quoted}"')
    yield [column[0] for column in cursor.description]
    n_characters = 0
    for cells in cursor:
        row = [*map(_excel_text, cells)]
        n_characters += sum(map(len, row))
        _require_bytes(path, n_characters)
        yield row


def _json_text(path: Path) -> str:
    text = decoded(path)[0]
    # limit the number of objects and lists, which take few bytes in a JSON file but many bytes in memory
    require_size(str(path), 1, 1, text.count("{") + text.count("["))
    return text


def _read_json_lines(path: Path) -> Table:
    records, lines, broken = [], [], []
    # split only at line feeds, because `badpo.data.forgetting` counts the lines of a JSON lines file in this way
    text = _json_text(path)
    require_size(str(path), text.count("\n"), 1)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                records.append(json.loads(line))
                lines.append(number)
            except (ValueError, RecursionError) as error:
                broken.append(f"line {number}: {getattr(error, 'msg', error)}")
    if broken:
        what = f"{len(broken):,} lines are not JSON: {listed(broken)}"
        raise _unreadable(path, what, "write one JSON object on each line")
    frame = _frame_of_records(records, path)
    return Table(frame, str(path), np.array(lines, dtype=np.intp))


def _read_json(path: Path) -> Table:
    remedy = (
        "write a JSON list with one object for each judgment, or rename a file of JSON lines to .jsonl"
    )
    text = _json_text(path)
    # count empty JSON objects too: even a row without cells takes memory
    require_size(str(path), sum(1 for _ in re.finditer(r"\{\s*\}", text)), 1)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", "") == "Extra data":
            return _read_json_lines(path)
        raise _unreadable(path, str(error), remedy) from error
    beside: list[str] = []
    if isinstance(content, dict):
        if len(content) > 1 and all(isinstance(each, dict) for each in content.values()):
            # pandas writes each column of a JSON file as a mapping from row numbers to values
            keys = {tuple(each) for each in content.values()}
            if len(keys) == 1 and (rows := min(keys)) == tuple(map(str, range(len(rows)))) and rows:
                content = {name: [*each.values()] for name, each in content.items()}
        if not any(isinstance(each, list) for each in content.values()):
            # search services return records next to counts, in an object such as {"hits": {"hits": [...]}}
            inner = [each for each in content.values() if isinstance(each, dict)]
            lists_in = [[one for one in each.values() if isinstance(one, list)] for each in inner]
            with_records = [
                each for each, lists in zip(inner, lists_in, strict=True) if any(map(records_in, lists))
            ]
            content = with_records[0] if len(with_records) == 1 else content
        if isinstance(names := content.get("columns"), list) and isinstance(content.get("data"), list):
            content = {"rows": [dict(zip(names, row, strict=False)) for row in content["data"]]}
        lists = [each for each in content.values() if isinstance(each, list)]
        tables = {name: records for name, each in content.items() if (records := records_in(each))}
        of_objects = {name: each for name, each in tables.items() if isinstance(content[name], list)}
        tables_of_objects = {
            name: Table(_frame_of_records(each, path), str(path)) for name, each in of_objects.items()
        }
        are_tables = len(of_objects) == len(content) > 1
        if are_tables and (stacked := _stacked(path, tables_of_objects)):
            return stacked
        remaining = [*joined_records(tables).values()] if "rows" not in tables else []
        joined = remaining[0] if len(remaining) == 1 < len(tables) else []
        # the rows of tables may have different orders, so tables are not columns of one table
        if not joined and not are_tables and (columns := _columns_in(content)):
            return Table(_frame_of_columns([*content], columns), str(path))
        if len(of_objects) > 1 and not joined and "rows" not in tables:
            what = f"it holds several lists of objects: {listed([*of_objects])}; no ids join all of them"
            raise _unreadable(path, what, "write the list of votes to a separate file")
        others = {key: value for key, value in content.items() if not records_in(value)}
        beside = _legends_of(others)
        keyed = records_in(content) or next(iter(tables.values()), None)
        content = joined or of_objects.get("rows") or next(iter([*of_objects.values(), *lists]), keyed)
    if not isinstance(content, list):
        raise _unreadable(path, "it holds no list", remedy)
    if len(content) > 1 and all(
        isinstance(row, list) and len(row) == len(content[0]) for row in content
    ):
        content = [dict(zip(map(str, content[0]), row, strict=True)) for row in content[1:]]
    return Table(_frame_of_records(content, path), str(path), legends=tuple(beside))


# the function that reads a file, by the suffix of its name
READERS: dict[str, Callable[..., Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".txt": _read_csv,
    ".xlsx": _read_excel,
    ".db": _read_sqlite,
    ".sqlite": _read_sqlite,
    ".sqlite3": _read_sqlite,
    ".parquet": lambda path: _read_files(path, [path], _parquet_parts),
    ".feather": lambda path: _read_files(path, [path], _arrow_parts),
    ".arrow": lambda path: _read_files(path, [path], _arrow_parts),
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
}


def _legends_of(value: Cell) -> list[str]:
    """Return the texts in a JSON value that may explain codes.

    For each object or list, the result also contains one text that joins all texts inside the object or list.
    """
    if isinstance(value, list):
        value = {str(i): each for i, each in enumerate(value)}
    if not isinstance(value, dict):
        return [str(value)] if isinstance(value, str | int | float) else []
    inner = [(key, text) for key, each in value.items() for text in _legends_of(each)]
    codes = [f"{key} = {text}" for key, text in inner if isinstance(value[key], str)]
    return [*(text if " = " in text else f"{key}: {text}" for key, text in inner), "; ".join(codes)]


def _frame_of_arrow(table: pa.Table) -> pd.DataFrame:
    frame = _frame_of_columns(table.column_names, map(_cells_of_arrow, table.columns))
    for name, labels in _class_labels(table.schema).items():
        if name in frame and frame.columns.is_unique:
            # `datasets` writes -1 for a missing label
            frame[name] = frame[name].map(dict(enumerate(labels))).astype(object)
    return frame


def _class_labels(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the label names of each column whose labels `datasets` wrote as numbers."""
    try:
        written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = written["info"]["features"].items()
        return {
            name: [*map(str, of["names"])] for name, of in features if of.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _cells_of_arrow(column: pa.ChunkedArray) -> pd.Series | list[Cell] | Objects:
    if column.type in _TEXT_TYPES:
        column = column.dictionary_encode()
    if pa.types.is_nested(column.type):
        return column.to_pylist()
    if not pa.types.is_dictionary(column.type) or not column.num_chunks:
        # keep the integers of a column with missing cells, because floats would change ids above 2^53
        return column.to_pandas(integer_object_nulls=True)
    chunks = column.unify_dictionaries().chunks
    # take texts from one array of distinct texts, so that equal texts in different rows share one Python object
    values = as_objects([*chunks[0].dictionary.to_pylist(), None])
    numbers = [chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy() for chunk in chunks]
    return values[np.concatenate(numbers)]


def _frame_of_records(records: Sequence[Mapping[str, Cell]], name: str | Path) -> pd.DataFrame:
    wrong = [row for row, record in enumerate(records, start=1) if not isinstance(record, Mapping)]
    if wrong:
        what = f"{len(wrong):,} rows are not objects with names and values; the first of these is row {wrong[0]}"
        raise _unreadable(name, what, "pass objects or dicts")
    names = list(dict.fromkeys(key for record in records for key in record))
    require_size(str(name), len(records), len(names))  # the records may have different keys
    columns = ([record.get(key) for record in records] for key in names)
    return _frame_of_columns(names, columns)


def _columns_in(content: Mapping[str, Cell]) -> list[list[Cell]]:
    """Return the values of a mapping if they are two or more lists of equal length; otherwise return an empty list."""
    lists = [each for each in content.values() if isinstance(each, list)]
    return lists if 1 < len(lists) == len(content) and len({*map(len, lists)}) == 1 else []


def _frame_of_columns(
    names: Sequence[str], columns: Iterable[pd.Series | Sequence[Cell]]
) -> pd.DataFrame:
    series = [
        column if isinstance(column, pd.Series) else pd.Series(column, dtype=object)
        for column in columns
    ]
    series = [opened(str(name), column) for name, column in zip(names, series, strict=True)]
    frame = pd.concat(series, axis=1) if series else pd.DataFrame()
    frame.columns = pd.Index(names, dtype=object)
    return frame


def _unreadable(name: str | Path, what: str, remedy: str, fix: Correction | None = None) -> DataError:
    what = f"the table cannot be read: {what}"
    error = DataError([Problem("E102", what, str(name), remedy, fix=fix or {})])
    error.fix = fix or {}
    return error


# -- tables for spreadsheets -----------------------------------------------------------------------------------

# A spreadsheet reads a cell as a formula if it begins with =, +, -, @, a tab, a line feed or a full-width sign.
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
# If a spreadsheet splits cells at ";", it splits even quoted cells, and the part after a separator may be a formula.
_LATER_FORMULA = re.compile(r"([;\t\n] *)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    r"""Write a table as a UTF-8 CSV file; an interrupted call leaves no incomplete file.

    `inert` inserts an apostrophe before a string that a spreadsheet would read as a formula. Numbers, including
    negative numbers, are written unchanged. A missing value becomes an empty cell, and an infinite value becomes
    ``inf`` or ``-inf``.
    """
    names = [inert(str(name)) for name in frame.columns]
    with appearing(path) as unfinished:
        cells = frame.map(_inert_cell)
        cells.to_csv(unfinished, index=False, header=names, lineterminator="\n", encoding="utf-8")


def inert(text: str) -> str:
    r"""Escape a string so that neither a spreadsheet nor a terminal executes any part of it.

    If a spreadsheet would read the string as a formula, an apostrophe is inserted before it. An apostrophe is also
    inserted before each part after a semicolon, tab or line break that a spreadsheet would read as a formula. Escape
    sequences replace control characters and characters that change the writing direction. Any other string is returned
    unchanged.
    """
    # escape a lone carriage return, because the CSV writer does not quote it and a new cell would start after it
    written = written_out(text.replace("\r\n", "\n"))
    written = _LATER_FORMULA.sub(r"\1'", written)
    return f"'{written}" if _FORMULA.match(written) else written


def _inert_cell(cell: Cell) -> Cell:
    """Return a number or a missing value unchanged; convert any other cell to a string and pass it to `inert`."""
    is_missing = cell is None or (pd.api.types.is_scalar(cell) and pd.isna(cell))
    return cell if is_missing or isinstance(cell, int | float) else inert(str(cell))
