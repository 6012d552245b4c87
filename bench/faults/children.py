"""Run commands in child processes of a process that has imported all modules, and kill them at chosen moments.

An import takes longer than a tiny run. The parent process only imports and never computes, because the threads of
torch do not survive a fork.
"""

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Audit events of Python before a file or folder changes its content or its name.
WRITING_EVENTS = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"})
HUNG_SECONDS = 300.0

Work = Callable[[], None]


class Kill(NamedTuple):
    """Moment at which a child is killed: before its n-th change of a file, or after a number of seconds, or never.

    If ``is_full``, the child is not killed; instead, every new file or folder after that change fails because the disk
    is full.
    """

    before_write: int | None = None
    after_seconds: float | None = None
    is_full: bool = False


NEVER = Kill()


class Ended(NamedTuple):
    """Result of a child: its exit status (minus the number of the signal that killed it), its output, and its seconds.

    ``writes`` are its changes of files. For a child that was killed before a change, this change is the only entry.
    """

    status: int
    output: str
    writes: tuple[str, ...]
    seconds: float

    @property
    def was_killed(self) -> bool:
        """Whether the child was killed before its end."""
        return self.status == -signal.SIGKILL


def run_child(work: Work, folder: Path, kill: Kill = NEVER, prepare: Work = lambda: None) -> Ended:
    """Fork, change to ``folder``, run ``work`` and wait for the end; only changes of files in the folder count.

    ``work`` ends by returning or with `SystemExit`. ``prepare`` runs before changes are counted.
    """
    printed, counted = folder.parent / f"{folder.name}.out", folder.parent / f"{folder.name}.writes"
    counted.unlink(missing_ok=True)
    started = time.monotonic()
    if not (child := os.fork()):
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
    writes: list[str] = []

    def counted_work() -> None:
        os.chdir(folder)
        prepare()
        sys.addaudithook(_counter(f"{folder.resolve()}{os.sep}", writes, kill, counted))
        work()

    status = status_of(counted_work, printed)
    counted.write_text("\n".join(writes))
    os._exit(status)


def status_of(work: Callable[[], None], printed: Path) -> int:
    """Run some work in this process, which then prints to a file, and return the exit status."""
    handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    try:
        work()
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _counter(folder: str, writes: list[str], kill: Kill, told: Path) -> Callable[[str, tuple], None]:
    """Return an audit hook that counts changes of files in a folder, and that kills the process or fails at one
    change.
    """

    def count(event: str, arguments: tuple) -> None:
        flags = arguments[2] if event == "open" else None
        is_opened = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not (is_opened or event in WRITING_EVENTS):
            return
        if not isinstance(path := arguments[0], str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if os.path.isabs(name) and not name.startswith(folder):
            return
        writes.append(f"{event} {name}")
        if kill.before_write is None or len(writes) < kill.before_write:
            return
        if not kill.is_full:
            told.write_text(writes[-1])
            os.kill(os.getpid(), signal.SIGKILL)
        if event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    return count
