"""Write files atomically, lock files and folders, and detect damaged files by their checksums.

A manifest (function names in this module call it a seal) is a JSON file that contains its own checksum and the
checksums of the files next to it. A checkpoint is complete only if it has a manifest. The manifest of a finished run is
``run.json``.
"""

import contextlib
import glob
import hashlib
import hmac
import json
import logging
import os
import platform
import re
import secrets
import stat
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from typing import Any

from badpo.data.privacy import keyed_digest, known_key
from badpo.data.problems import ConfigError
from badpo.data.problems import Json as Json  # most callers import Json from this module

# -- names of the files that commands write --------------------------------------------------------------------

RUN_SEAL, RUN_RECIPE, POLICY = "run.json", "config.yaml", "model"
RUN_ENVIRONMENT, LOG_FILE, MARKER = "environment.json", "log.jsonl", "complete.json"
DESCRIPTION_FILE, TENSORS_FILE = "bias.json", "bias.safetensors"
BIAS_OPTIMIZER_FILE, OBJECTIVE_FILE = "bias_optimizer.safetensors", "objective.safetensors"
BIAS_SUFFIX = "-bias"  # TRL's trainer writes a policy to FOLDER, and theta is written to FOLDER-bias
# files of a finished run, apart from the folder with the policy
RUN_FILES = (RUN_RECIPE, RUN_ENVIRONMENT, LOG_FILE, DESCRIPTION_FILE, TENSORS_FILE)
# if a script trained the run, the run folder also contains the votes
# if the reference model has no name, the run folder of a script also contains the reference model
VOTES_FILE, HELD_OUT_FILE, START_FOLDER = "votes.parquet", "held_out.parquet", "start"
# version of the run folder format; increase it when older versions of badpo would misread a new folder
RUN_SCHEMA = "badpo.run/1"
# A folder that contains a file in RUN_MARKS is a finished or unfinished run, an arm of several policies, or an anchor.
RUN_MARKS = (
    DESCRIPTION_FILE,
    TENSORS_FILE,
    "begun.json",
    RUN_SEAL,
    "anchor.json",
    f"checkpoints/*/{DESCRIPTION_FILE}",
)
# Run files are personal data if they contain theta, the state of theta's optimizer, or annotators' weights or types.
# Manifests count as personal data too, because they contain checksums of files about individual annotators.
# Logs count as personal data, because anyone could guess the votes, train on the guess, and compare the new log.
PERSONAL_RUN_FILES = (
    *("bias.*", "bias_optimizer.*", "objective.*", "checkpoints", "checkpoint-*", "round*"),
    *("begun.json*", "run.json*", "start.json*", "planted.*", "log.jsonl*", "readouts.json*"),
    *(f"{name}{end}" for name in (VOTES_FILE, HELD_OUT_FILE) for end in ("", ".sha256")),
    *(".writing-*", ".*.unfinished"),
)
# The files in POOL_RUN_FILES contain no data about individual annotators, unless a file contains a pseudonym or an id.
POOL_RUN_FILES = (RUN_RECIPE, RUN_ENVIRONMENT)
AUDIT_FILES = ("annotators.*", "people.*", "reread.*", "audit.json", "report.html", ".writing-*")

_OWN = "sha256"
_KEYED = "made_here"
_PREFIX = ".writing-"
# If an unfinished file is older than _PATIENCE_SECONDS, the process that wrote the file is assumed to be dead.
# A process id does not show whether the writer is dead, because the writer may run in another container.
_PATIENCE_SECONDS = 3600


NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # for os.open: Windows has no such flag


class SealError(ValueError):
    """Raised if a manifest cannot be read, or was changed after it was written."""


class BusyError(ConfigError):
    """Raised if another process holds the lock on a folder or file."""


# -- whole files -----------------------------------------------------------------------------------------------


@contextmanager
def appearing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """Yield a temporary file; it replaces ``path`` when the ``with`` block ends, and is deleted after an error.

    The parent folder of ``path`` is created if it does not exist. Only this user can read a ``private`` file; any other
    file gets the permissions of the file that it replaces. If ``path`` is a symbolic link, a `ConfigError` is raised.
    """
    path = Path(os.path.expanduser(path))
    require_no_link(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    unfinished = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}-{path.name}")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() and not private else None
    try:
        unfinished.touch(0o600 if private or mode is not None else 0o666, exist_ok=False)
        yield unfinished
        if mode is not None:
            unfinished.chmod(mode)
        flush_to_disk(unfinished)
        unfinished.replace(path)
    except OSError as error:
        # if an OSError names no file or the temporary file, change the name to that of the final file
        if error.filename in (None, str(unfinished)):
            error.filename = str(path)
            del error.filename2
        raise
    finally:
        unfinished.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def require_no_link(path: Path) -> None:
    """Raise `ConfigError` if ``path`` is a symbolic link. Writing through the link could overwrite another file."""
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a symbolic link, and badpo does not write through links; remove the link, or name its target: "
            f"{os.path.realpath(path)}"
        )


def write_atomically(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file so that a reader sees either the old content or the complete new content (see `appearing`)."""
    with appearing(path, private) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, as_json(value), private)


def as_json(value: Any) -> bytes:
    """Return a value as indented JSON in UTF-8.

    Lone surrogates become JSON escape sequences, because UTF-8 cannot encode them.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left behind when they wrote ``path``.

    If this process holds the lock on the file or its folder, all temporary files are removed. Without the lock, only
    temporary files that are at least an hour old are removed.
    """
    from filelock import FileLock

    notes = map(_lock_file, (path, path.parent))
    is_held = any(FileLock(note, is_singleton=True, fallback_to_soft=False).is_locked for note in notes)
    form = re.compile(f"({re.escape(_PREFIX)}[0-9a-f]{{16}}-)+{re.escape(path.name)}")
    for leftover in path.parent.glob(f"{_PREFIX}*-{glob.escape(path.name)}"):
        with contextlib.suppress(OSError):
            is_old = time.time() - leftover.lstat().st_mtime >= _PATIENCE_SECONDS
            if form.fullmatch(leftover.name) and (is_held or is_old):
                leftover.unlink()


def flush_to_disk(path: Path) -> None:
    """Flush the content of a file, or the file names in a folder, to disk."""
    # Windows and some file systems cannot flush the file names in a folder; the operating system writes them later
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- locks -----------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str], wait: bool = False) -> Iterator[None]:
    """Hold the lock on a folder or file until the ``with`` block or the process ends.

    The operating system locks a hidden file (``.NAME.lock``) next to the folder or file. The hidden file is deleted
    when the block ends. The folder or file need not exist. Two paths to the same folder or file share one lock. The
    thread that holds the lock can acquire it again. If another process holds the lock, a `BusyError` names that
    process. If ``wait`` is True and the lock is held, the function logs a warning and waits for at most an hour.
    """
    from filelock import FileLock, Timeout

    note = _lock_file(path)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        # create the lock file first, because filelock waits forever if it cannot create the file
        # the flag O_NOFOLLOW rejects a lock file that is a symbolic link
        os.close(os.open(note, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644))
    except OSError as error:
        told = f"{path}: the lock file {note} cannot be created ({error.strerror})"
        raise ConfigError(f"{told}; choose a folder in which badpo can write files") from error
    # all callers in this process share one lock object, which counts how often it was acquired
    # filelock's soft lock is disabled, because a soft lock remains when a process is killed
    lock = FileLock(note, is_singleton=True, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not wait:
                raise
            logging.getLogger(__name__).warning("%s is in use by %s; waiting", path, _noted(note))
            lock.acquire(_PATIENCE_SECONDS)
    except Timeout as error:
        raise BusyError(
            f"{path} is in use by {_noted(note)}; wait until that command has finished, or stop it"
        ) from error
    except OSError as error:
        told = f"{path}: files cannot be locked there ({error.strerror})"
        raise ConfigError(f"{told}; choose a path on another file system") from error
    try:
        # on Windows, a locked file cannot be written, so the lock file does not name the process that holds the lock
        with contextlib.suppress(OSError):
            note.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        # a process that waits for the lock notices that the lock file was deleted, and creates a new one
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True) if lock.lock_counter == 1 else None
        lock.release()


def holder(path: str | os.PathLike[str]) -> str | None:
    """Return a description of the process that holds the lock on ``path``, or None if no process holds it."""
    from filelock import FileLock, Timeout

    note = _lock_file(path)
    if not note.exists():
        return None
    try:
        with FileLock(note, blocking=False, fallback_to_soft=False):
            return None
    except Timeout:
        return _noted(note)


def _lock_file(path: str | os.PathLike[str]) -> Path:
    place = Path(os.path.realpath(os.path.expanduser(path)))
    return place.parent / f".{place.name}.lock"


def _noted(note: Path) -> str:
    with contextlib.suppress(OSError):
        return note.read_text(encoding="utf-8") or "another process"
    return "another process"


# -- manifests -------------------------------------------------------------------------------------------------


def write_seal(path: Path, content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write a manifest that contains ``content`` and the checksums of the files ``names`` next to it.

    All named files must already be written. A run's manifest also contains a code that is computed with the pseudonym
    key (see `made_here`).
    """
    sealed = {**content, "files": _checksums(path.parent, sorted(names))}
    is_run = path.name == RUN_SEAL
    _write_seal(path, {"schema": RUN_SCHEMA, **sealed} if is_run else sealed, is_keyed=is_run)


def read_seal(path: Path) -> Json:
    """Read a manifest and verify its own checksum; raise `SealError` if the manifest is damaged."""
    faults = ValueError, KeyError, TypeError, AttributeError, RecursionError
    with contextlib.suppress(*faults):
        content: Json = json.loads(path.read_text(encoding="utf-8"))
        own = content.pop(_OWN)
        if own == hashlib.sha256(_plain(content)).hexdigest() and isinstance(content["files"], dict):
            return content
    raise SealError(f"{path.parent.name}/{path.name} is damaged")


def seal_damage(
    path: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> str | None:
    """Verify the files listed in a manifest; return a description of the first damaged file, or None if all are intact.

    If ``names`` is given, only the files in ``names`` are verified. The files in ``but`` are not verified.
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
            return f"{folder.name}/{path.name} names a file outside of the manifest's folder"
        if not (folder / name).is_file():
            return f"{folder.name}/{name} is missing"
        if file_checksum(folder / name) != checksum:
            return f"{folder.name}/{name} is damaged (its checksum does not match)"
    return None


def run_damage(
    folder: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> str | None:
    """Verify the files of a run folder with `seal_damage`; return a description of the damage, or None.

    The result is None if all files are intact, or if the run is not finished and therefore has no manifest.
    """
    path = folder / RUN_SEAL
    if not path.exists():
        return None
    reason = seal_damage(path, names, but)
    if reason is None and (schema := read_seal(path).get("schema")) != RUN_SCHEMA:
        return f"{folder.name} is a run of another version of badpo ({RUN_SEAL} says {schema}, not {RUN_SCHEMA})"
    return reason


def made_here(folder: Path) -> bool:
    """Return whether a run's manifest was written with this machine's pseudonym key and lists the recipe.

    If the result is True, the run was made on this machine. To check whether the run's files have changed since they
    were written, call `run_damage`.
    """
    try:
        content = read_seal(folder / RUN_SEAL)
    except (SealError, OSError):
        return False
    # a manifest that lists no recipe, such as a reference model's, could be copied next to any recipe
    return RUN_RECIPE in content["files"] and _is_keyed(content)


@contextmanager
def resealed(folder: Path, names: Collection[str]) -> Iterator[None]:
    """Update a run's manifest with the new checksums of the files ``names``, which the ``with`` block rewrites.

    The files' old checksums are removed from the manifest before the ``with`` block, and the new checksums are added
    after the block. If the process is killed within the block, the manifest lacks the checksums of the rewritten files,
    but its other checksums are correct. If the run has no manifest, no manifest is written.
    """
    path = folder / RUN_SEAL
    if not path.exists():
        yield
        return
    content = read_seal(path)
    # if another machine wrote the manifest, do not add the code that is computed with this machine's key
    is_keyed = _is_keyed(content)
    files = {name: checksum for name, checksum in content["files"].items() if name not in names}
    _write_seal(path, {**content, "files": files}, is_keyed)
    yield
    files |= _checksums(folder, [name for name in names if (folder / name).is_file()])
    _write_seal(path, {**content, "files": files}, is_keyed)


def _checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: file_checksum(folder / name) for name in names}


def file_checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file's bytes as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_seal(path: Path, content: Json, is_keyed: bool) -> None:
    """Write a manifest with its checksum; if ``is_keyed`` is True, add the code computed with this machine's key."""
    if is_keyed:
        content = {**content, _KEYED: _code(content)}
    checksum = hashlib.sha256(_plain(content)).hexdigest()
    # the manifest is private, because the checksum of a file about annotators could confirm a guess about the file
    write_json(path, {**content, _OWN: checksum}, private=True)


def _is_keyed(content: Json) -> bool:
    if known_key() is None:
        return False
    told = str(content.get(_KEYED)).encode("utf-8", "replace")
    return hmac.compare_digest(told, _code(content).encode())


def _code(content: Json) -> str:
    """Return a code for a manifest's content; the code can be computed only with this machine's key."""
    said = {name: value for name, value in content.items() if name != _KEYED}
    # the hashed text begins with "seal of a run", because the same key is used for pseudonyms and fingerprints
    return keyed_digest(b"seal of a run\n" + _plain(said)).hexdigest()


def _plain(content: Json) -> bytes:
    # converting the content to JSON and back gives the values that are read from the manifest's file
    return json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()


# -- tables ----------------------------------------------------------------------------------------------------


@contextmanager
def checksummed(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file for a table of votes; the file replaces ``path`` when the ``with`` block ends.

    The table is locked while it is written, and only this user can read it. The table's SHA-256 checksum is written to
    a file next to it.
    """
    path = Path(os.path.expanduser(path))
    with locked(path, wait=True):
        with appearing(path, private=True) as unfinished:
            yield unfinished
            # remove the old checksum first: if the process is killed, the table has no checksum rather than a wrong one
            checksum_file(path).unlink(missing_ok=True)
        write_checksum(path)


def write_checksum(path: Path) -> None:
    """Write a table's SHA-256 checksum to a file next to the table."""
    beside = checksum_file(path)
    with appearing(beside, private=True) as unfinished:
        unfinished.write_text(f"{file_checksum(path)}  {beside.stem}\n", encoding="utf-8")


def checksum_file(path: Path) -> Path:
    """Return the path of a table's checksum file, such as ``votes.parquet.sha256``.

    The command ``sha256sum --check`` reads this file.
    """
    return Path(f"{os.path.realpath(path)}.sha256")


def is_changed(path: Path) -> bool:
    """Return whether a file does not match the checksum next to it; return False if there is no checksum."""
    beside = checksum_file(path)
    while beside.exists():
        told = beside.read_bytes()
        if told[:64] == file_checksum(path).encode():
            return False
        # if another process has replaced the file and its checksum file in the meantime, compare again
        if beside.exists() and beside.read_bytes() == told:
            return True
    return False


# -- folders that came from somebody else ----------------------------------------------------------------------


def _paths_inside(folder: Path) -> Iterator[Path]:
    return (Path(here, name) for here, folders, files in os.walk(folder) for name in (*folders, *files))


def require_enclosed(folder: Path) -> None:
    """Raise `ConfigError` if a symbolic link inside a folder leads out of the folder.

    The folder itself may be a symbolic link or may not exist.
    """
    # a folder from another person could contain symbolic links to private files on this machine
    # a link out of the folder could make badpo show a private file in a report or load a private file as a policy
    top = folder.resolve()
    # the Hub cache stores each file once in blobs, and the links in snapshots/COMMIT point to these files
    blobs = top.parents[1] / "blobs" if top.parent.name == "snapshots" else top
    for path in _paths_inside(folder):
        real = Path(os.path.realpath(path))
        if path.is_symlink() and not (real.is_relative_to(top) or real.is_relative_to(blobs)):
            raise ConfigError(
                f"{path} is a symbolic link that leads out of {folder}; replace the link with its target"
            )


def require_safe_to_read(folder: Path) -> None:
    """Raise `ConfigError` if a folder contains a pipe or a device, or a symbolic link that leads out of the folder."""
    require_enclosed(folder)
    for path in _paths_inside(folder):
        # reading a named pipe would block forever
        # a path that another process has just removed is not an error
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise ConfigError(
                f"{path} is a named pipe, a socket or a device, not a regular file; remove it"
            )


def leads_out(name: str) -> bool:
    """Return whether a file name, appended to a folder, leads out of that folder."""
    # PureWindowsPath also parses Windows paths, which have backslashes and drive letters
    path = PureWindowsPath(name)
    return bool(path.anchor) or ".." in path.parts


# -- the Hub -----------------------------------------------------------------------------------------------------

_HUB_SECONDS = 10


@contextmanager
def asking_once(name: str, kind: str = "model") -> Iterator[None]:
    """If the Hub does not answer a request within ten seconds, use only the local cache within the ``with`` block.

    Without `asking_once`, badpo would request each file from the Hub six times before it uses the cache.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    programs = [constants, *filter(None, [sys.modules.get("datasets.config")])]
    is_offline = was_offline = constants.HF_HUB_OFFLINE
    if not Path(name).exists():
        try:
            HfApi().repo_info(name, repo_type=kind, timeout=_HUB_SECONDS)
        except (HfHubHTTPError, ValueError):
            pass  # the Hub answers, or the name is not valid on the Hub; the block itself then raises the error
        except Exception:
            is_offline = True  # the HTTP client may raise any class of error
    try:
        for program in programs:
            vars(program)["HF_HUB_OFFLINE"] = is_offline
        yield
    finally:
        for program in programs:
            vars(program)["HF_HUB_OFFLINE"] = was_offline
