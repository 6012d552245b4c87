"""The files of a run: atomic writes, checkpoints that count only when whole, the step log, provenance."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from badpo.data.files import (
    RUN_SEAL,
    SealError,
    appearing,
    flush_folder,
    flush_to_disk,
    read_seal,
    seal_damage,
    write_seal,
)
from badpo.data.problems import ConfigError, did_you_mean

MARKER = "complete.json"
RUN_FILES = ("config.yaml", "environment.json", "log.jsonl", "bias.json", "bias.safetensors")
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
# tokenizers and torch's writers say of a failed write no more than this
FAILED_WRITE_SIGNS = (
    "No space left on device",
    "inline_container.cc",
    "PytorchStreamWriter",
    "iostream error",
)
# Facts of a checkpoint that a resumed run may change when it is told to, and what is said of each.
ALLOWED_CHANGES = {
    "annotators": "new annotators start at the pool mean of theta, those who are gone are left out",
    "data": "the rest of the run takes its steps from the new votes",
    "code": "another version may round differently",
    "max_steps": "the learning rate goes on as the schedule of the new length says",
    "num_train_epochs": "the learning rate goes on as the schedule of the new length says",
}


def write_atomically(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part of it (see `appearing`)."""
    with appearing(path, private) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, value, private: bool = False) -> None:
    """Write ``value`` as indented JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # what has no UTF-8 form, half of a surrogate pair, becomes the escape that JSON has for it
    write_atomically(path, text.encode("utf-8", "backslashreplace"), private)


@contextlib.contextmanager
def whole_folder(folder: Path, is_writer: bool = True) -> Iterator[Path]:
    """A folder to write into that takes the place of ``folder`` only when everything is in it.

    Of several processes one is the writer. After an error nothing is left; `naming_failed_writes` holds.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if is_writer:
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with naming_failed_writes(folder):
            yield unfinished
            if is_writer:
                flush_tree(unfinished)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
                flush_folder(folder.parent)
    finally:
        if is_writer:
            shutil.rmtree(unfinished, ignore_errors=True)


def mark_complete(folder: Path, facts: Mapping) -> None:
    """Seal a checkpoint, with the checksum of every file in it and the ``facts`` that a resumed run must share."""
    flush_tree(folder)
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    write_seal(folder / MARKER, {"facts": dict(facts)}, [name for name in names if name != MARKER])


def seal_run(folder: Path, content: Mapping | None = None) -> None:
    """Write ``run.json``, the seal of a finished run: the checksums of its files and of its policy's.

    The model card is left out, which every evaluation writes anew.
    """
    model = (str(path.relative_to(folder)) for path in (folder / "model").rglob("*"))
    names = [name for name in (*RUN_FILES, *model) if (folder / name).is_file() and name != "model/README.md"]
    write_seal(folder / RUN_SEAL, content or {}, names)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None when its marker is there and every checksum agrees."""
    if not (folder / MARKER).exists():
        return f"{folder.name} was not finished (no {MARKER})"
    return seal_damage(folder / MARKER)


def facts_of(folder: Path) -> dict[str, Any]:
    """The facts of a whole checkpoint, as `mark_complete` was given them."""
    return read_seal(folder / MARKER)["facts"]


def flush_tree(folder: Path) -> None:
    """Have every file below a folder, and their names, on the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            flush_folder(path)
        elif path.is_file():
            flush_to_disk(path)
    flush_folder(folder)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders of a run, newest step first, whole or not."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    return sorted(found, key=lambda path: -_step(path))


def newest_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and why each newer one was passed over."""
    passed_over: list[str] = []
    for path in checkpoints(folder):
        reason = damage(path)
        if reason is None:
            return path, passed_over
        passed_over.append(reason)
    return None, passed_over


def keep_newest(folder: Path, n_kept: int, best: Path | None = None) -> None:
    """Delete all but the ``n_kept`` newest sealed checkpoints and the best, and the unfinished ones older than those.

    Nothing is deleted before the newest one's seal can be read and every file that it names is there.
    """
    sealed = [path for path in checkpoints(folder) if (path / MARKER).exists()]
    if len(sealed) < n_kept:
        return
    with contextlib.suppress(SealError):
        if not all((sealed[0] / name).is_file() for name in read_seal(sealed[0] / MARKER)["files"]):
            return
        for path in checkpoints(folder):
            if path not in (*sealed[:n_kept], best) and _step(path) < _step(sealed[0]):
                remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, its seal first: one that is half deleted never looks whole."""
    (path / MARKER).unlink(missing_ok=True)
    flush_folder(path)
    shutil.rmtree(path)


def remove_unsealed(folder: Path) -> None:
    """Delete what a full disk or a killed process left of checkpoints that were never sealed."""
    for path in checkpoints(folder):
        if not (path / MARKER).exists():
            shutil.rmtree(path, ignore_errors=True)


def changed_facts(before: Mapping, now: Mapping) -> list[str]:
    """Facts that differ between a checkpoint and the run that wants to resume it, one line each.

    Examples
    --------
    >>> changed_facts({"beta": 0.1, "seed": 42}, {"beta": 0.5, "seed": 42})
    ['beta was 0.1, is now 0.5']
    """
    return [f"{name} was {before.get(name)}, is now {now.get(name)}" for name in changed_names(before, now)]


def changed_names(before: Mapping, now: Mapping) -> list[str]:
    """The names of the facts that differ, in alphabetical order."""
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def require_allowed(names: Sequence[str]) -> None:
    """Raise `ConfigError` for names of changes that can never be allowed."""
    for name in names:
        if name not in ALLOWED_CHANGES:
            hint = did_you_mean(name, list(ALLOWED_CHANGES))
            raise ConfigError(f'"{name}" cannot be allowed to change;{hint} {", ".join(ALLOWED_CHANGES)} can')


@contextlib.contextmanager
def naming_failed_writes(place: Path) -> Iterator[None]:
    """Turn what a library says of a write that failed into an `OSError`; other errors pass."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(place)
        raise
    except Exception as error:  # tokenizers raises a bare Exception
        if not any(sign in str(error) for sign in FAILED_WRITE_SIGNS):
            raise
        folder = next(folder for folder in (place, *place.absolute().parents) if folder.is_dir())
        is_full = FAILED_WRITE_SIGNS[0] in str(error) or shutil.disk_usage(folder).free < 2**20
        code = errno.ENOSPC if is_full else errno.EIO
        raise OSError(code, os.strerror(code), str(place)) from error


def environment(command: str) -> dict:
    """The command that makes the same run again, and the versions it depends on; nothing that names a machine."""
    return {
        "command": command,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": package_versions(PACKAGES),
    }


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """The installed version of each package that is there."""
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[-1])
