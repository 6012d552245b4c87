"""Seals: a JSON file beside others that holds their checksums and its own, so that damage is found and named.

A checkpoint counts only with its seal. A finished run's seal is its ``run.json``; one that was written before runs
were sealed has no checksums, and nothing is known of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from badpo.data.enclosed import leads_out
from badpo.data.whole_files import appearing

RUN_SEAL = "run.json"
_OWN = "sha256"


class SealError(ValueError):
    """A seal cannot be read, or is not as it was written."""


def write_seal(path: Path, content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write ``content`` with the checksums of the named files beside it, last of all.

    Parameters
    ----------
    path : Path
        The seal, such as ``run.json``.
    content : mapping
        What else it says, as JSON.
    names : iterable of str
        Files, relative to the folder of the seal.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("whole")
    >>> write_seal(folder / "seal.json", {"beta": 0.1}, ["a.txt"])
    >>> seal_damage(folder / "seal.json") is None
    True
    >>> _ = (folder / "a.txt").write_text("whale")
    >>> seal_damage(folder / "seal.json").partition("/")[2]
    'a.txt is damaged (its checksum does not match)'
    """
    files = {name: file_checksum(path.parent / name) for name in sorted(names)}
    _write(path, {**content, "files": files})


def read_seal(path: Path) -> dict[str, Any]:
    """What a seal says, with its own checksum verified.

    Raises
    ------
    FileNotFoundError
    SealError
        It is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.pop(_OWN)
        whole = own == _digest(content) and isinstance(content["files"], dict)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise SealError(f"{path.parent.name}/{path.name} is damaged")
    return content


def seal_damage(path: Path, names: Collection[str] | None = None, but: Collection[str] = ()) -> str | None:
    """What is wrong with sealed files, in words; None when every checksum agrees.

    Parameters
    ----------
    path : Path
        The seal, which is there.
    names : collection of str or None
        Only these of the sealed files; None is all of them.
    but : collection of str
        Not these.
    """
    folder = path.parent
    try:
        files = read_seal(path)["files"]
    except SealError as error:
        return str(error)
    for name, checksum in files.items():
        if name in but or (names is not None and name not in names):
            continue
        if leads_out(name):
            return f"{folder.name}/{path.name} names a file outside of its folder"
        if not (folder / name).is_file():
            return f"{folder.name}/{name} is missing"
        if file_checksum(folder / name) != checksum:
            return f"{folder.name}/{name} is damaged (its checksum does not match)"
    return None


def run_damage(folder: Path, names: Collection[str] | None = None, but: Collection[str] = ()) -> str | None:
    """What is wrong with the files of a finished run, in words; None when nothing is known to be.

    Parameters
    ----------
    folder : Path
        A run folder.
    names : collection of str or None
        Only these files; None is all that were sealed, the policy's weights among them.
    but : collection of str
        Not these, such as files that are about to be written anew.
    """
    path = folder / RUN_SEAL
    return seal_damage(path, names, but) if is_sealed(path) else None


def is_sealed(path: Path) -> bool:
    """Whether a ``run.json`` is there and holds checksums; those of old runs hold none."""
    return path.exists() and not _is_unsealed(path)


def rewrite_seal(path: Path, content: Mapping[str, Any]) -> None:
    """Write a seal anew that says something else, from `read_seal`; the checksums of its files stay as they are."""
    _write(path, content)


@contextlib.contextmanager
def resealed(folder: Path, names: Collection[str]) -> Iterator[None]:
    """Files of a run that may be written anew within the block; a run without a seal stays without.

    Between the two a killed process leaves them without a checksum, which is less than is known and not wrong.
    """
    path = folder / RUN_SEAL
    if not is_sealed(path):
        yield
        return
    content = read_seal(path)
    others = {name: checksum for name, checksum in content["files"].items() if name not in names}
    _write(path, {**content, "files": others})
    yield
    files = others | {name: file_checksum(folder / name) for name in names if (folder / name).is_file()}
    _write(path, {**content, "files": dict(sorted(files.items()))})


def left_open(folder: Path, names: Collection[str]) -> list[str]:
    """Those of some files of a sealed run that are there without a checksum, as a killed process leaves them."""
    path = folder / RUN_SEAL
    if not is_sealed(path):
        return []
    sealed = read_seal(path)["files"]
    return [name for name in names if name not in sealed and (folder / name).is_file()]


def file_checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_unsealed(path: Path) -> bool:
    """Whether a ``run.json`` is one of those that hold no checksums at all."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(content, dict) and not {"files", _OWN} & content.keys()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps({**content, _OWN: _digest(content)}, indent=2, ensure_ascii=False)
    with appearing(path) as unfinished:
        unfinished.write_text(text + "\n", encoding="utf-8")


def _digest(content: Mapping[str, Any]) -> str:
    # as it will be read back
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
