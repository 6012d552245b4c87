"""Parquet files that hold the checksum of their own bytes, so that damage is found before anything is read.

The checksum stands between the data and the footer, where readers of parquet do not look and a program that writes the
table anew puts nothing. Such a program copies the metadata, though, so the metadata say that there was one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

SEALED_KEY = b"badpo.sealed"
# It stands on both sides of the checksum: a changed bit in one of them still leaves the other.
_MARK = b"=badpo.sha256="
_DIGITS = 64
_BLANK = b"0" * _DIGITS
_BLOCK = 2 * len(_MARK) + _DIGITS
_PIECE = 2**20
_TAIL = 8  # the length of the footer and the magic word after it


class DamagedTableError(OSError):
    """A file is not the one that was written."""


def write_sealed(table: pa.Table, path: Path) -> None:
    """Write a table with the SHA-256 of the file before its footer, computed with that place left blank.

    Any reader of parquet reads it. Metadata of the table is kept.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.parquet"
    >>> write_sealed(pa.table({"n": [1, 2]}), path)
    >>> is_sealed(path), pq.read_table(path).num_rows
    (True, 2)
    >>> content = bytearray(path.read_bytes())
    >>> content[10] ^= 1
    >>> _ = path.write_bytes(content)
    >>> is_sealed(path)
    Traceback (most recent call last):
        ...
    badpo.data.sealed_tables.DamagedTableError: bytes of it have changed since badpo wrote it (its checksum ...
    """
    metadata = {**(table.schema.metadata or {}), SEALED_KEY: b"sha256 before the footer"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with path.open("r+b") as file:
        start = _start_of_footer(file)
        file.seek(start)
        footer = file.read()
        file.seek(start)
        file.write(_MARK + _BLANK + _MARK + footer)
    place = start + len(_MARK)
    digest = _digest(path, place)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(digest)


def is_sealed(path: Path) -> bool:
    """Whether a file is as `write_sealed` wrote it; False where another program wrote it, which says nothing of it.

    The bytes are compared before anything is made of them.

    Raises
    ------
    DamagedTableError
        It holds a checksum and is not what the checksum is of.
    """
    with path.open("rb") as file:
        place = _start_of_footer(file) - _BLOCK
        file.seek(max(0, place))
        block = file.read(_BLOCK)
    if place < 0 or not (block.startswith(_MARK) or block.endswith(_MARK)):
        return False
    place += len(_MARK)
    if _digest(path, place) != block[len(_MARK) : -len(_MARK)]:
        raise DamagedTableError("bytes of it have changed since badpo wrote it (its checksum does not match)")
    return True


def _start_of_footer(file: BinaryIO) -> int:
    size = file.seek(0, 2)
    file.seek(max(0, size - _TAIL))
    return size - _TAIL - int.from_bytes(file.read(4), "little")


def _digest(path: Path, place: int) -> bytes:
    found = hashlib.sha256()
    position = 0
    with path.open("rb") as file:
        while piece := bytearray(file.read(_PIECE)):
            first, last = max(place - position, 0), min(place + _DIGITS - position, len(piece))
            if first < last:
                piece[first:last] = _BLANK[: last - first]
            found.update(piece)
            position += len(piece)
    return found.hexdigest().encode()
