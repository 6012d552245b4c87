"""Groups of processes that train together, forked from one process that has imported everything.

An import costs more than a tiny run: a test that starts four processes would mostly import.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.run_one"])


class Ended(NamedTuple):
    """How the processes of one group ended.

    Attributes
    ----------
    statuses : tuple of int
        Exit status of each rank; minus the signal's number for one that was killed.
    outputs : tuple of str
        What each printed, standard error included.
    hung : bool
        Whether they had to be killed because the time was over.
    """

    statuses: tuple[int, ...]
    outputs: tuple[str, ...]
    hung: bool

    @property
    def ok(self) -> bool:
        """Every process ended by itself and without an error."""
        return not self.hung and not any(self.statuses)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def rank_environment(rank: int, n: int, port: int) -> dict[str, str]:
    """What a launcher tells the process of one rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
    }


def run_group(n: int, folder: Path, *options: str, seconds: float = SECONDS) -> Ended:
    """Train in ``n`` processes; with one there is no process group at all."""
    port, arguments = free_port(), [str(folder), *options]
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"output-{rank}.txt" for rank in range(n)]
    processes = []
    for rank, output in enumerate(outputs):
        environment = rank_environment(rank, n, port) if n > 1 else {}
        processes.append(FORKS.Process(target=_run, args=(arguments, environment, output)))
        processes[-1].start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    hung = [process for process in processes if process.exitcode is None]
    for process in hung:
        process.kill()
        process.join()
    texts = [path.read_text(errors="replace") for path in outputs]
    return Ended(tuple(process.exitcode for process in processes), tuple(texts), bool(hung))


def _run(arguments: list[str], environment: dict[str, str], output: Path) -> None:
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    from tests.training import run_one

    run_one.main(arguments)
