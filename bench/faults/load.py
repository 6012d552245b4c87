"""Tables that do not fit: `python -m bench.faults.load --comparisons 1250000` measures five million judgments.

Each command runs in a process of its own, whose largest resident memory the system tells.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.faults.table import Row, as_table
from bench.large_table import VOTES_EACH, write_votes

WHOLE, PART = 1_250_000, 125_000
# The whole table takes 20 to 30 minutes of one core; with less, a tenth of it is measured against its share of memory.
SECONDS_FOR_ALL = 1_800
GIB, FIXED_GIB, MOST_GIB = 2**30, 0.5, 4.0
MOST_PAGE_BYTES = 2 * 2**20


@dataclass(frozen=True)
class Measured:
    """A command that has ended: its exit status, its largest memory in GiB and its seconds of processor time."""

    status: int
    gib: float
    seconds: float


def rows(budget_seconds: float) -> list[Row]:
    """Reading, checking, auditing, and what the trainer holds, at the size that the time allows."""
    return measured_rows(WHOLE if budget_seconds >= SECONDS_FOR_ALL else PART)


def measured_rows(n_comparisons: int) -> list[Row]:
    """The rows at a number of comparisons with four judgments each."""
    with tempfile.TemporaryDirectory() as folder:
        votes, audit = Path(folder) / "votes.parquet", Path(folder) / "audit"
        write_votes(votes, n_comparisons)
        length = ["--attribute", "length:ratio=1.5"]
        commands = {
            "badpo check": ["-m", "badpo", "check", str(votes), *length],
            "badpo audit": ["-m", "badpo", "audit", str(votes), *length, "-o", str(audit)],
            "the trainer's texts and tokens": ["-m", "bench.faults.load", "--encode", str(votes)],
        }
        found = []
        for name, command in commands.items():
            found.append(_row(name, measured(command), n_comparisons))
        page = (audit / "report.html").stat().st_size
    outcome = f"{page / 2**10:,.0f} KiB, at most {MOST_PAGE_BYTES / 2**20:.0f} MiB"
    return [*found, Row(_size(n_comparisons), "report.html", 1, outcome, int(page > MOST_PAGE_BYTES))]


def measured(command: list[str]) -> Measured:
    """Run Python with some arguments in a process of its own."""
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *command],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(child, 0)
    # in KiB on Linux, in bytes on macOS
    unit = 1 if sys.platform == "darwin" else 2**10
    return Measured(
        os.waitstatus_to_exitcode(status), used.ru_maxrss * unit / GIB, used.ru_utime + used.ru_stime
    )


def most_gib(n_comparisons: int) -> float:
    """The memory allowed: 4 GiB for the whole table, of which half a GiB is the program's own."""
    return FIXED_GIB + (MOST_GIB - FIXED_GIB) * n_comparisons / WHOLE


def _row(name: str, found: Measured, n_comparisons: int) -> Row:
    most = most_gib(n_comparisons)
    outcome = f"peak {found.gib:.2f} GiB of {most:.2f}, {found.seconds:,.0f} s of one core"
    outcome += f", status {found.status}" if found.status else ""
    return Row(_size(n_comparisons), name, 1, outcome, int(found.status != 0 or found.gib > most))


def _size(n_comparisons: int) -> str:
    return f"{n_comparisons * VOTES_EACH:,} judgments"


def encode(votes: Path) -> None:
    """Read a table and encode all of its texts, as the trainer does before its first step."""
    from badpo.data.judgments import Judgments
    from badpo.training.encoding import encode_comparisons
    from tests import tiny

    encode_comparisons(Judgments.read(votes), tiny.tokenizer(), "trl", 1024, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=PART)
    parser.add_argument("--encode", type=Path, metavar="FILE", help="only this, in this process")
    options = parser.parse_args()
    if options.encode is not None:
        encode(options.encode)
        return
    print(as_table(measured_rows(options.comparisons)))


if __name__ == "__main__":
    main()
