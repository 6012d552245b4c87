"""How a command ends that cannot go on: one message, one exit code, also when several processes run it.

Exit codes: 0 ok, 1 failed, 2 usage or recipe, 3 data, 4 what was asked for is not met (`forget` leaves something), 130
told to stop.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from badpo.cli_printing import complain, print_json

EXIT_FAILED, EXIT_USAGE, EXIT_DATA, EXIT_NOT_MET, EXIT_STOPPED = 1, 2, 3, 4, 130
TRAIN_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "safetensors", "datasets")


def reporting_errors(command: Callable) -> Callable:
    """Wrap a command: an error is one message and an exit code, and a traceback only with ``--debug``."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        if _of_several():
            # a launcher may be faster to end the others than they are to notice that one is gone
            signal.signal(signal.SIGTERM, _end_by_launcher)
        try:
            return command(*args, **kwargs)
        except typer.Exit:
            raise
        except BrokenPipeError:
            # who read the output has had enough; the interpreter would complain when it writes out the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_FAILED) from None
        except Exception as error:
            if _of_several():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if kwargs.get("debug"):
                complain(traceback.format_exc())
            code, problems = _verdict(error)
            if _another_speaks():
                raise typer.Exit(code) from error
            if kwargs.get("as_json"):
                print_json({"error": "\n".join(problems), "exit_code": code})
            else:
                complain("\n".join(problems))
            raise typer.Exit(code) from error

    return wrapped


@contextmanager
def stopping_whole(what_is_left: str) -> Iterator[None]:
    """A command that is told to stop says what is left; SIGTERM stops it as Ctrl-C does, unless a launcher ends it."""

    def stop(signum, frame):
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM) if _of_several() else signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as told:
        complain(str(told) or what_is_left)
        raise typer.Exit(EXIT_STOPPED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class EndedByLauncherError(RuntimeError):
    """The launcher of several processes told this one to end."""


def _of_several() -> bool:
    """Whether a launcher started this process as one of several that train together."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _end_by_launcher(signum, frame):
    raise EndedByLauncherError


def _another_speaks() -> bool:
    """Whether another process of the same run has told already why it ends."""
    if not _of_several():
        return False
    from badpo.training.processes import speaks_for_all

    return not speaks_for_all()


def _said_between_processes(error: Exception) -> list[str]:
    """What an error of one of several processes says of the others, in its own words; empty where it says nothing."""
    if not _of_several():
        return []
    from badpo.training.processes import lost_peer

    again = "start all of them again with --resume: the newest whole checkpoint is taken up"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    alone = "and this one cannot go on alone"
    if isinstance(error, EndedByLauncherError):
        return [f"another process of this run has ended, or the run was told to end, {alone}", again]
    if lost_peer(error):
        what = "another process of this run has ended, or the connection to it broke"
        return [f"{what}, {alone}: {first}", again]
    return []


def _verdict(error: Exception) -> tuple[int, list[str]]:
    """The exit code for an error, and the lines that say what it was and what to do."""
    from badpo.data.problems import ConfigError, DataError

    kind, text = type(error).__name__, str(error)
    if isinstance(error, DataError):
        return EXIT_DATA, [text]
    if isinstance(error, ConfigError):
        return EXIT_USAGE, [text]
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in TRAIN_PACKAGES:
        return EXIT_USAGE, [f'this needs {error.name}, which is not installed: pip install "ba-dpo[train]"']
    if kind == "OutOfMemoryError":
        return EXIT_FAILED, [
            "E180 out of memory on the device",
            "try in this order: a smaller per_device_train_batch_size with more gradient_accumulation_steps; "
            "gradient_checkpointing: true; use_peft: true",
        ]
    if kind == "NotFiniteError":
        return EXIT_FAILED, [text]
    if said := _said_between_processes(error):
        return EXIT_FAILED, said
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        is_full = error.errno == errno.ENOSPC
        remedy = ["free some space and try again; train continues with --resume"] if is_full else []
        return EXIT_FAILED, [f"{error.strerror}{name}", *remedy]
    return EXIT_FAILED, [f"{kind}: {text}", "run the command again with --debug to see where"]
