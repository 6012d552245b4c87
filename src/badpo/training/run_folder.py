"""The files of a run: atomic writes, checkpoints that count only when whole, the step log, provenance."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

MARKER = "complete.json"
PACKAGES = (
    "ba-dpo",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "numpy",
    "pandas",
    "scipy",
    "safetensors",
)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part of it.

    The content goes to a temporary file in the same folder, is flushed to the disk and renamed over ``path``.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomically(folder / "a.json", b"{}")
    >>> (folder / "a.json").read_bytes()
    b'{}'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


@contextlib.contextmanager
def whole_folder(folder: Path, is_writer: bool = True) -> Iterator[Path]:
    """A folder to write into that takes its own name only when everything is in it, and vanishes after an error.

    Parameters
    ----------
    folder : Path
        The name; what stands there is replaced.
    is_writer : bool
        Whether this process writes; of several, one does.

    Examples
    --------
    >>> place = Path(tempfile.mkdtemp())
    >>> with whole_folder(place / "model") as unfinished:
    ...     unfinished.mkdir()
    ...     (place / "model").exists()
    False
    >>> [path.name for path in place.iterdir()]
    ['model']
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if is_writer:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield unfinished
        if is_writer:
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    finally:
        if is_writer:
            shutil.rmtree(unfinished, ignore_errors=True)


def mark_complete(folder: Path, facts: Mapping) -> None:
    """Seal a checkpoint: write ``complete.json`` with the checksum of every file in it, last of all.

    Parameters
    ----------
    folder : Path
    facts : mapping
        What a resumed run must have in common with this one (see `changed_facts`).
    """
    files = {
        str(path.relative_to(folder)): _checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    write_json(folder / MARKER, {"files": files, "facts": dict(facts)})


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None when its marker is there and every checksum agrees."""
    try:
        files = json.loads((folder / MARKER).read_text())["files"]
    except FileNotFoundError:
        return f"{folder.name} was not finished (no {MARKER})"
    except (ValueError, KeyError):
        return f"{folder.name}/{MARKER} is damaged"
    for name, checksum in files.items():
        path = folder / name
        if not path.is_file():
            return f"{folder.name}/{name} is missing"
        if _checksum(path) != checksum:
            return f"{folder.name}/{name} is damaged (its checksum does not match)"
    return None


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders of a run, newest step first, whole or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    return sorted(found, key=lambda path: -int(path.name.split("-")[-1]))


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and why each newer one was passed over."""
    passed_over: list[str] = []
    for path in checkpoints(folder):
        reason = damage(path)
        if reason is None:
            return path, passed_over
        passed_over.append(reason)
    return None, passed_over


def keep_newest(folder: Path, n_kept: int) -> None:
    """Delete all but the ``n_kept`` newest whole checkpoints, and the unfinished ones older than those."""
    whole = [path for path in checkpoints(folder) if (path / MARKER).exists()]
    if len(whole) < n_kept:
        return
    for path in checkpoints(folder):
        if path not in whole[:n_kept] and int(path.name.split("-")[-1]) < int(whole[0].name.split("-")[-1]):
            shutil.rmtree(path)


def changed_facts(before: Mapping, now: Mapping) -> list[str]:
    """Facts that differ between a checkpoint and the run that wants to resume it, one line each.

    Examples
    --------
    >>> changed_facts({"beta": 0.1, "seed": 42}, {"beta": 0.5, "seed": 42})
    ['beta was 0.1, is now 0.5']
    """
    return [
        f"{name} was {before.get(name)}, is now {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def cut_log(path: Path, last_step: int) -> None:
    """Drop the lines of a step log that come after ``last_step``, and a torn last line."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError):
            break
        if step > last_step:
            break
        kept.append(line + "\n")
    write_atomically(path, "".join(kept).encode())


def environment(command: str) -> dict:
    """How a run was started, and the versions it depends on; nothing that names a machine.

    Parameters
    ----------
    command : str
        What makes the same run again.
    """
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "command": command,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions,
    }


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
