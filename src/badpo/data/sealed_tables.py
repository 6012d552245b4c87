"""Parquet files that hold the checksum of their own bytes, so that damage is found before anything is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DIGEST_KEY = b"badpo.sha256"
_BLANK = b"0" * 64
_PIECE = 2**20
_TAIL = 8  # the length of the footer and the magic word after it


class DamagedTableError(OSError):
    """A file is not the one that was written."""


def write_sealed(table: pa.Table, path: Path) -> None:
    """Write a table with the SHA-256 of the file in its metadata, computed with that place left blank.

    Any reader of parquet reads it. Metadata of the table is kept.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.parquet"
    >>> write_sealed(pa.table({"n": [1, 2]}), path)
    >>> require_undamaged(path)
    >>> content = bytearray(path.read_bytes())
    >>> content[10] ^= 1
    >>> _ = path.write_bytes(content)
    >>> require_undamaged(path)
    Traceback (most recent call last):
        ...
    badpo.data.sealed_tables.DamagedTableError: it is damaged: its checksum does not match
    """
    metadata = {**(table.schema.metadata or {}), DIGEST_KEY: _BLANK}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    place = _place_of_digest(path)
    assert place is not None
    digest = _digest(path, place)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(digest)


def require_undamaged(path: Path) -> None:
    """Compare a file with the checksum in it; one that was not written by `write_sealed` has none, and passes.

    The bytes are compared before anything is made of them.

    Raises
    ------
    DamagedTableError
    """
    place = _place_of_digest(path)
    if place is None:
        return
    with path.open("rb") as file:
        file.seek(place)
        written = file.read(len(_BLANK))
    if _digest(path, place) != written:
        raise DamagedTableError("it is damaged: its checksum does not match")


def _place_of_digest(path: Path) -> int | None:
    """Where in the file the digest stands: in the footer, behind its key and two bytes that say how long it is."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        length = int.from_bytes(file.read(4), "little")
        start = max(0, size - _TAIL - length)
        file.seek(start)
        key = file.read().rfind(DIGEST_KEY)
    return None if key < 0 else start + key + len(DIGEST_KEY) + 2


def _digest(path: Path, place: int) -> bytes:
    found = hashlib.sha256()
    position = 0
    with path.open("rb") as file:
        while piece := bytearray(file.read(_PIECE)):
            first, last = max(place - position, 0), min(place + len(_BLANK) - position, len(piece))
            if first < last:
                piece[first:last] = _BLANK[: last - first]
            found.update(piece)
            position += len(piece)
    return found.hexdigest().encode()
