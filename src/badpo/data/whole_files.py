"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".writing-"
_LEFTOVER = re.compile(rf"{re.escape(_PREFIX)}(\d+)\.\d+-.+")
# A process of another machine that writes here is not known here; one that is at work touches its file more often.
_PATIENCE_SECONDS = 3600


@contextmanager
def appearing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write into that takes the place of ``path`` when the block ends, and vanishes after an error.

    The content is flushed to the disk before it takes the name, and the name after it. What a killed process left
    half written of the same file is removed.

    Parameters
    ----------
    path : path
        What stands there stays until the new file is whole. Its folder is made when it is not there.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with appearing(path) as unfinished:
    ...     _ = unfinished.write_text("whole")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('whole', 1)
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    unfinished = path.with_name(unfinished_name(path.name))
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        flush_to_disk(unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        # a write that fails does not know which file it was
        error.filename = error.filename or str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)
    flush_folder(path.parent)


def unfinished_name(name: str) -> str:
    """What this thread of this process calls a file or folder while it is being written.

    Examples
    --------
    >>> unfinished_name("a.txt").startswith(f".writing-{os.getpid()}.")
    True
    """
    return f"{_PREFIX}{os.getpid()}.{threading.get_native_id()}-{name}"


def leftovers(folder: Path, older_than: float = 0.0) -> list[Path]:
    """What killed processes left half written in a folder.

    Parameters
    ----------
    folder : Path
    older_than : float
        Seconds since it was last written to. 0 trusts that no other machine writes here.

    Returns
    -------
    list of Path
        Files and folders named as `unfinished_name` does, by processes that are not there any more.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / unfinished_name("a.txt")).touch()
    >>> leftovers(folder)
    []
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _LEFTOVER.fullmatch(entry.name)
            if match is None or _is_alive(int(match.group(1))):
                continue
            with contextlib.suppress(FileNotFoundError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than:
                    found.append(Path(entry.path))
    return sorted(found)


def is_unfinished(path: Path) -> bool:
    """Whether a file, or a folder that it is in, is one that somebody is writing or has left half written.

    Examples
    --------
    >>> is_unfinished(Path("runs") / unfinished_name("model") / "config.json"), is_unfinished(Path("runs/model"))
    (True, False)
    """
    return any(_LEFTOVER.fullmatch(part) for part in path.parts)


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left half written of one file or folder, where it is an hour old or more."""
    for leftover in leftovers(path.parent, _PATIENCE_SECONDS):
        if leftover.name.endswith(f"-{path.name}"):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    leftover.unlink()


def flush_to_disk(path: Path) -> None:
    """Have the content of a file on the disk before anything that relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can do that."""
    # some file systems, and Windows, have no way to; the names then come to the disk in their own time
    with contextlib.suppress(OSError):
        flush_to_disk(folder)


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
