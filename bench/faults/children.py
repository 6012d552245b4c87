"""Commands run in children of one process that has imported everything, and killed where it hurts.

An import costs more than a tiny run. The parent imports and never computes: torch's threads do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# What Python tells of before it happens, where a file or folder changes its content or its name.
WRITING_EVENTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"})
HUNG_SECONDS = 300.0


@dataclass(frozen=True)
class Kill:
    """When a child is killed, without a chance to clean up.

    Attributes
    ----------
    before_write : int or None
        Before this change of a file, the first being 1: opened to be written, renamed, removed.
    after_seconds : float or None
    """

    before_write: int | None = None
    after_seconds: float | None = None


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes
    ----------
    status : int
        Its exit status; minus the signal's number when it was killed.
    output : str
        What it printed, standard error included.
    writes : tuple of str
        Changes of files that it made; of one that was killed before a change, that change alone.
    seconds : float
    """

    status: int
    output: str
    writes: tuple[str, ...]
    seconds: float

    @property
    def was_killed(self) -> bool:
        """Whether the signal came before the end."""
        return self.status == -signal.SIGKILL


def run_child(
    work: Callable[[], None],
    folder: Path,
    kill: Kill | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Fork, go to ``folder``, do ``work``, and wait for the end of it.

    Parameters
    ----------
    work : function
        Ends by returning or with `SystemExit`.
    folder : Path
        Its working folder; only changes of files in it count.
    kill : Kill or None
        None lets it come to its end.
    prepare : function or None
        Called in the child before anything is counted, such as to make a library smaller.
    """
    kill = kill or Kill()
    printed, counted = folder.parent / f"{folder.name}.out", folder.parent / f"{folder.name}.writes"
    counted.unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(work, folder, kill, prepare, printed, counted)
    status = _wait(child, started, kill.after_seconds)
    writes = tuple(counted.read_text().splitlines()) if counted.exists() else ()
    return Ended(status, printed.read_text(errors="replace"), writes, time.monotonic() - started)


def _wait(child: int, started: float, after_seconds: float | None) -> int:
    end = started + (HUNG_SECONDS if after_seconds is None else after_seconds)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if after_seconds is None:
                raise RuntimeError(f"a child hung for {HUNG_SECONDS:.0f} seconds")
            return status
        time.sleep(0.002)


def _be_child(work, folder: Path, kill: Kill, prepare, printed: Path, counted: Path) -> None:
    status = 1
    writes: list[str] = []
    try:
        handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(folder)
        if prepare is not None:
            prepare()
        sys.addaudithook(_counter(str(folder.resolve()), writes, kill.before_write, counted))
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        done = "\n".join(writes)
        sys.stdout.flush()
        sys.stderr.flush()
        counted.write_text(done)
        os._exit(status)


def _counter(folder: str, writes: list[str], last: int | None, told: Path) -> Callable[[str, tuple], None]:
    """An audit hook that counts changes of files in a folder, and kills before one of them."""

    def count(event: str, arguments: tuple) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in WRITING_EVENTS:
            path = arguments[0]
        else:
            return
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if os.path.isabs(name) and not name.startswith(folder):
            return
        # shutil.rmtree names what it deletes relative to an open folder
        is_within = event in ("os.remove", "os.rmdir") and len(arguments) > 1 and arguments[1] >= 0
        writes.append(f"{event} {name}" + " in a folder that is deleted" * is_within)
        if len(writes) == last:
            told.write_text(writes[-1])
            os.kill(os.getpid(), signal.SIGKILL)

    return count
