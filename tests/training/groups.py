"""Groups of processes that train together, forked from one process that has imported everything.

An import costs more than a tiny run: a test that starts four processes would mostly import.

Usage of the server: python -m tests.training.groups, which reads one job as JSON per line and answers with one line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 120.0


@dataclass(frozen=True)
class Ended:
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


class Groups:
    """A server that forks groups of `tests.training.run_one`; to be used in a ``with`` block."""

    def __enter__(self) -> Groups:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.training.groups"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_) -> None:
        self._server.stdin.close()
        self._server.wait(timeout=30)

    def run(self, n: int, folder: Path, *options: str, seconds: float = SECONDS) -> Ended:
        """Train in ``n`` processes; with one there is no process group at all."""
        job = {"n": n, "arguments": [str(folder), *options], "seconds": seconds}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return Ended(tuple(answer["statuses"]), tuple(answer["outputs"]), answer["hung"])


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


def serve() -> None:
    """Fork a group for every job on standard input."""
    from tests.training import run_one

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder) / str(rank) for rank in range(job["n"])]
            children = [
                _fork(
                    partial(run_one.main, job["arguments"]),
                    rank_environment(rank, job["n"], port) if job["n"] > 1 else {},
                    outputs[rank],
                )
                for rank in range(job["n"])
            ]
            statuses, hung = _wait(children, job["seconds"])
            texts = [path.read_text(errors="replace") for path in outputs]
        answers.write(json.dumps({"statuses": statuses, "outputs": texts, "hung": hung}) + "\n")
        answers.flush()


def _fork(program, environment: dict[str, str], output: Path) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.environ.update(environment)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        program()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(children: list[int], seconds: float) -> tuple[list[int], bool]:
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(statuses) < len(children) and time.monotonic() < deadline:
        for pid in children:
            if pid not in statuses:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    hung = [pid for pid in children if pid not in statuses]
    for pid in hung:
        os.kill(pid, signal.SIGKILL)
        statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [statuses[pid] for pid in children], bool(hung)


if __name__ == "__main__":
    serve()
