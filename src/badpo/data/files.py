"""Files that appear whole, one process at a time that changes them, and checksums that tell when they were damaged.

A seal is a JSON file that holds the checksums of files beside it and its own. A checkpoint counts only with its seal;
a finished run's is its ``run.json``.
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
from badpo.data.problems import Json as Json  # which most callers import from here

# -- names of the files that commands write --------------------------------------------------------------------

RUN_SEAL, RUN_RECIPE, POLICY = "run.json", "config.yaml", "model"
RUN_ENVIRONMENT, LOG_FILE, MARKER = "environment.json", "log.jsonl", "complete.json"
DESCRIPTION_FILE, TENSORS_FILE = "bias.json", "bias.safetensors"
BIAS_OPTIMIZER_FILE, OBJECTIVE_FILE = "bias_optimizer.safetensors", "objective.safetensors"
BIAS_SUFFIX = "-bias"  # of the folder of theta beside that of a policy of TRL's trainer
# Beside the policy, of a finished run.
RUN_FILES = (RUN_RECIPE, RUN_ENVIRONMENT, LOG_FILE, DESCRIPTION_FILE, TENSORS_FILE)
# of a run that a script made: its votes, and its reference if that has no name
VOTES_FILE, HELD_OUT_FILE, START_FOLDER = "votes.parquet", "held_out.parquet", "start"
# what run folders hold, and in which form: raised where a reader of the last form would misread the new one
RUN_SCHEMA = "badpo.run/1"
# What makes a folder a run, an arm of several policies, or an anchor, finished or not.
RUN_MARKS = (
    DESCRIPTION_FILE,
    TENSORS_FILE,
    "begun.json",
    RUN_SEAL,
    "anchor.json",
    f"checkpoints/*/{DESCRIPTION_FILE}",
)
# Of single people: theta and its optimizer, weights and types by index, seals with facts and checksums of these; and
# exact figures of steps and of held-out votes: who trains again on guessed votes sees by them which guess is right.
PERSONAL_RUN_FILES = (
    *("bias.*", "bias_optimizer.*", "objective.*", "checkpoints", "checkpoint-*", "round*"),
    *("begun.json*", "run.json*", "start.json*", "planted.*", "log.jsonl*", "readouts.json*"),
    *(f"{name}{end}" for name in (VOTES_FILE, HELD_OUT_FILE) for end in ("", ".sha256")),
    *(".writing-*", ".*.unfinished"),
)
# Of nobody, unless they name somebody.
POOL_RUN_FILES = (RUN_RECIPE, RUN_ENVIRONMENT)
AUDIT_FILES = ("annotators.*", "people.*", "reread.*", "audit.json", "report.html", ".writing-*")

_OWN = "sha256"
_KEYED = "made_here"
_PREFIX = ".writing-"
# whoever is at work touches the file more often; a number of a process says nothing where containers share a disk
_PATIENCE_SECONDS = 3600


NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # for os.open: Windows has no such flag


class SealError(ValueError):
    """A seal cannot be read, or is not as it was written."""


class BusyError(ConfigError):
    """Another process works on a folder or file."""


# -- whole files -----------------------------------------------------------------------------------------------


@contextmanager
def appearing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """A file to write into that takes the place of ``path`` when the block ends, and vanishes after an error.

    Its folder is made when it is not there. Only this user can read a ``private`` file; another one keeps the mode of
    the file that it replaces. A symbolic link is refused: nothing is written through it.
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
        # a write that fails does not know which file it was, and nobody else knows the unfinished one
        if error.filename in (None, str(unfinished)):
            error.filename = str(path)
            del error.filename2
        raise
    finally:
        unfinished.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def require_no_link(path: Path) -> None:
    """Refuse a symbolic link where a file is to be written: whoever made it may mean another file to be lost."""
    if path.is_symlink():
        raise ConfigError(
            f"{path} is a symbolic link, and nothing is written through one; remove it, or name the file itself: "
            f"{os.path.realpath(path)}"
        )


def write_atomically(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part of it (see `appearing`)."""
    with appearing(path, private) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, value: Any, private: bool = False) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, as_json(value), private)


def as_json(value: Any) -> bytes:
    """Indented JSON; half of a surrogate pair, which has no UTF-8 form, becomes the escape that JSON has for it."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of a file: at once if this process holds the lock, else after an hour."""
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
    """Have the content of a file, or the names in a folder, on the disk before anything that relies on it."""
    # some file systems, and Windows, have no way to for names, which then come to the disk in their own time
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- locks -----------------------------------------------------------------------------------------------------


@contextmanager
def locked(path: str | os.PathLike[str], wait: bool = False) -> Iterator[None]:
    """Hold a folder or file: nobody else who asks for it gets it until the block ends, or this process does.

    The lock is the operating system's, on a hidden file beside it (``.NAME.lock``), removed with it. Two names of one
    place are one, which need not exist. Who holds it may ask for it again, in the same thread. If another process
    holds it, `BusyError` names the process; with ``wait``, this one says that it waits, for an hour at most.
    """
    from filelock import FileLock, Timeout

    note = _lock_file(path)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        # else a lock that cannot be made is waited for without end; nor is one made where a link leads
        os.close(os.open(note, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644))
    except OSError as error:
        told = f"{path}: the lock {note} cannot be made ({error.strerror})"
        raise ConfigError(f"{told}; name a place that can be written") from error
    # one for all who ask in this process, so that it counts; the file alone would outlive a killed process
    lock = FileLock(note, is_singleton=True, fallback_to_soft=False)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if not wait:
                raise
            logging.getLogger(__name__).warning(
                "%s: waiting for %s, which works on it", path, _noted(note)
            )
            lock.acquire(_PATIENCE_SECONDS)
    except Timeout as error:
        raise BusyError(f"{path}: {_noted(note)} works on it; wait for it, or end it") from error
    except OSError as error:
        told = f"{path}: files cannot be locked there ({error.strerror})"
        raise ConfigError(f"{told}; name a place on another file system") from error
    try:
        # Windows lets nobody write into a file that is locked; who holds it is then not known
        with contextlib.suppress(OSError):
            note.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        # whoever waits for this file sees that it is gone, and makes another
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True) if lock.lock_counter == 1 else None
        lock.release()


def holder(path: str | os.PathLike[str]) -> str | None:
    """Which process holds a folder or file now, in words; None when there is none."""
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


# -- seals -----------------------------------------------------------------------------------------------------


def write_seal(path: Path, content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Write ``content`` with the checksums of the named files beside it, last of all.

    The seal of a run says with the pseudonym key that it was made here, see `made_here`.
    """
    sealed = {**content, "files": _checksums(path.parent, sorted(names))}
    is_run = path.name == RUN_SEAL
    _write_seal(path, _keyed({"schema": RUN_SCHEMA, **sealed}) if is_run else sealed)


def read_seal(path: Path) -> Json:
    """What a seal says, with its own checksum verified; a `SealError` where it is damaged."""
    content: Json = {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        own = content.pop(_OWN)
        whole = own == _digest(content) and isinstance(content["files"], dict)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise SealError(f"{path.parent.name}/{path.name} is damaged")
    return content


def seal_damage(
    path: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> str | None:
    """What is wrong with sealed files, all or some of them, in words; None when every checksum agrees."""
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


def run_damage(
    folder: Path, names: Collection[str] | None = None, but: Collection[str] = ()
) -> str | None:
    """What `seal_damage` says of a run folder; None also when the run is not finished and has no seal."""
    path = folder / RUN_SEAL
    if not path.exists():
        return None
    reason = seal_damage(path, names, but)
    if reason is None and (schema := read_seal(path).get("schema")) != RUN_SCHEMA:
        return f"{folder.name} is a run of another version of badpo ({RUN_SEAL} says {schema}, not {RUN_SCHEMA})"
    return reason


def made_here(folder: Path) -> bool:
    """Whether a run, its recipe included, was sealed with this machine's pseudonym key, and so not by somebody else.

    Whether the files are still those that were sealed is what `run_damage` tells.
    """
    try:
        content = read_seal(folder / RUN_SEAL)
    except (SealError, OSError):
        return False
    # the seal of a reference is ours too, and could be put beside the recipe of somebody else
    return RUN_RECIPE in content["files"] and _is_keyed(content)


@contextmanager
def resealed(folder: Path, names: Collection[str]) -> Iterator[None]:
    """Files of a run that may be written anew within the block; a run without a seal stays without.

    Between the two a killed process leaves them without a checksum, which is less than is known and not wrong.
    """
    path = folder / RUN_SEAL
    if not path.exists():
        yield
        return
    content = read_seal(path)
    # what somebody else sealed does not become ours
    sealed = _keyed if _is_keyed(content) else dict
    files = {name: checksum for name, checksum in content["files"].items() if name not in names}
    _write_seal(path, sealed({**content, "files": files}))
    yield
    files |= _checksums(folder, [name for name in names if (folder / name).is_file()])
    _write_seal(path, sealed({**content, "files": files}))


def _checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: file_checksum(folder / name) for name in names}


def file_checksum(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_seal(path: Path, content: Json) -> None:
    # the checksum of a file about single people tells whether a guess at it is right
    write_json(path, {**content, _OWN: _digest(content)}, private=True)


def _is_keyed(content: Json) -> bool:
    if known_key() is None:
        return False
    told, own = str(content.get(_KEYED)), _keyed(content)[_KEYED]
    return hmac.compare_digest(told.encode("utf-8", "replace"), own.encode())


def _keyed(content: Json) -> Json:
    """What a seal says, and a code that only this machine's key makes of it."""
    said = {name: value for name, value in content.items() if name != _KEYED}
    # the purpose stands first: the same key makes pseudonyms and fingerprints
    return {**said, _KEYED: keyed_digest(b"seal of a run\n" + _plain(said)).hexdigest()}


def _digest(content: Json) -> str:
    return hashlib.sha256(_plain(content)).hexdigest()


def _plain(content: Json) -> bytes:
    # as it will be read back
    return json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()


# -- tables ----------------------------------------------------------------------------------------------------


@contextmanager
def checksummed(path: str | os.PathLike[str]) -> Iterator[Path]:
    """As `appearing`, for a table that holds votes: locked, private, its SHA-256 in a file beside it."""
    path = Path(os.path.expanduser(path))
    with locked(path, wait=True):
        with appearing(path, private=True) as unfinished:
            yield unfinished
            # between the two a killed process leaves a table of which less is known, and nothing wrong
            checksum_file(path).unlink(missing_ok=True)
        write_checksum(path)


def write_checksum(path: Path) -> None:
    """Write the SHA-256 of a table into the file beside it."""
    beside = checksum_file(path)
    with appearing(beside, private=True) as unfinished:
        unfinished.write_text(f"{file_checksum(path)}  {beside.stem}\n", encoding="utf-8")


def checksum_file(path: Path) -> Path:
    """Where the checksum of a table stands, as ``sha256sum --check`` reads it: ``votes.parquet.sha256``."""
    return Path(f"{os.path.realpath(path)}.sha256")


def is_changed(path: Path) -> bool:
    """Whether a file is not the one that the checksum beside it is of; False where there is no checksum."""
    beside = checksum_file(path)
    while beside.exists():
        told = beside.read_bytes()
        if told[:64] == file_checksum(path).encode():
            return False
        # not where a writer has replaced both meanwhile
        if beside.exists() and beside.read_bytes() == told:
            return True
    return False


# -- folders that came from somebody else ----------------------------------------------------------------------


def require_enclosed(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads out of it; the folder itself may be a link, or not be there."""
    # else a run or a cache from elsewhere could have any file of this machine read into a page, or taken for a policy
    top = folder.resolve()
    for here, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(top):
                raise ConfigError(
                    f"{path} is a symbolic link that leads out of {folder}; put the file or folder itself in its place"
                )


def leads_out(name: str) -> bool:
    """Whether a file's name, relative to a folder, is of something outside of that folder."""
    # which takes both kinds of slashes, and the letters of drives
    path = PureWindowsPath(name)
    return bool(path.anchor) or ".." in path.parts


# -- the Hub -----------------------------------------------------------------------------------------------------

_HUB_SECONDS = 10


@contextmanager
def asking_once(name: str, kind: str = "model") -> Iterator[None]:
    """Where the Hub does not answer at once, the cache alone is read: each file would be asked for six times."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    programs = [constants, *filter(None, [sys.modules.get("datasets.config")])]
    is_offline = was_offline = constants.HF_HUB_OFFLINE
    if not Path(name).exists():
        try:
            HfApi().repo_info(name, repo_type=kind, timeout=_HUB_SECONDS)
        except (HfHubHTTPError, ValueError):
            pass  # the Hub answers, or a name is none of the Hub's, which the caller hears below
        except Exception:
            is_offline = True  # whatever the client of HTTP calls its error
    try:
        for program in programs:
            vars(program)["HF_HUB_OFFLINE"] = is_offline
        yield
    finally:
        for program in programs:
            vars(program)["HF_HUB_OFFLINE"] = was_offline
