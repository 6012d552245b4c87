"""One process at a time works on a run folder: a lock file with its id, which the system lets go when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from badpo.data.problems import ConfigError


class RunBusyError(ConfigError):
    """Another process works on the run."""


@contextlib.contextmanager
def held(folder: Path, wait: bool = False) -> Iterator[None]:
    """Hold a run folder: nobody else who asks for it gets it until the block ends, or this process does.

    The lock is the operating system's, on a file beside the folder that holds the id of the process. A process that was
    killed holds nothing, whatever its file says.

    Parameters
    ----------
    folder : Path
        Need not exist.
    wait : bool
        Wait for another process instead of raising.

    Raises
    ------
    RunBusyError
        Another process holds it; its id is told.

    Examples
    --------
    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp()) / "dpo-s42"
    >>> with held(run):
    ...     holder(run) == os.getpid()
    True
    >>> holder(run)
    """
    path = _lock_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            who = file.read().strip() or "another process"
            raise RunBusyError(f"{folder}: process {who} works on it; wait for it, or end it") from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.seek(0)
            file.truncate()


def holder(folder: Path) -> int | None:
    """Id of the process that works on a run folder now; None when there is none."""
    path = _lock_file(folder)
    if not path.exists():
        return None
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            return int(text) if text.isdigit() else 0
    return None


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _opened(path: Path):
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    return os.fdopen(handle, "r+", encoding="utf-8")
