"""Tables that do not fit: `python -m bench.faults.load --comparisons 1250000` measures five million judgments.

Each command runs in a process of its own, whose largest resident memory the system tells.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.audit import Size, draw
from bench.faults.table import Row, as_table

VOTES_EACH, ANNOTATORS, ROWS_AT_ONCE = 4, 2_000, 25_000
WHOLE, PART = 1_250_000, 125_000
# The whole table takes 20 to 30 minutes of one core; with less, a tenth of it is measured against its share of memory.
SECONDS_FOR_ALL = 1_800
GIB, FIXED_GIB, MOST_GIB = 2**30, 0.5, 4.0
MOST_PAGE_BYTES = 2 * 2**20
SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "za", "pen", "dor", "lin", "gas", "tem")
# Read a table and encode all of its texts, as the trainer does before its first step.
ENCODE = (
    "import sys; from badpo import Judgments; from badpo.training.encoding import encode_comparisons; "
    "from tests import tiny; encode_comparisons(Judgments.read(sys.argv[1]), tiny.tokenizer(), 'trl', 1024, None)"
)


def rows(budget_seconds: float) -> list[Row]:
    """Reading, checking, auditing, and what the trainer holds, at the size that the time allows."""
    return measured_rows(WHOLE if budget_seconds >= SECONDS_FOR_ALL else PART)


def measured_rows(n_comparisons: int) -> list[Row]:
    """The rows at a number of comparisons with four judgments each."""
    size = f"{n_comparisons * VOTES_EACH:,} judgments"
    most_gib = FIXED_GIB + (MOST_GIB - FIXED_GIB) * n_comparisons / WHOLE
    with tempfile.TemporaryDirectory() as folder:
        votes, audit = f"{folder}/votes.parquet", Path(folder) / "audit"
        write_votes(Path(votes), n_comparisons)
        length = ["--attribute", "length:ratio=1.5"]
        commands = {
            "badpo check": ["-m", "badpo", "check", votes, *length],
            "badpo audit": ["-m", "badpo", "audit", votes, *length, "-o", str(audit)],
            "the trainer's texts and tokens": ["-c", ENCODE, votes],
        }
        found = []
        for name, command in commands.items():
            status, gib, seconds = measured(command)
            outcome = f"peak {gib:.2f} GiB of {most_gib:.2f}, {seconds:,.0f} s of one core"
            outcome += f", status {status}" if status else ""
            found.append(Row(size, name, 1, outcome, int(status != 0 or gib > most_gib)))
        page = (audit / "report.html").stat().st_size
    outcome = f"{page / 2**10:,.0f} KiB, at most {MOST_PAGE_BYTES / 2**20:.0f} MiB"
    return [*found, Row(size, "report.html", 1, outcome, int(page > MOST_PAGE_BYTES))]


def measured(command: list[str]) -> tuple[int, float, float]:
    """Exit status, largest memory in GiB and processor seconds of Python with some arguments."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.executable, [sys.executable, *command], os.environ, file_actions=quiet)
    _, status, used = os.wait4(child, 0)
    # in KiB on Linux, in bytes on macOS
    gib = used.ru_maxrss * (1 if sys.platform == "darwin" else 2**10) / GIB
    return os.waitstatus_to_exitcode(status), gib, used.ru_utime + used.ru_stime


def write_votes(path: Path, n_comparisons: int, seed: int = 0) -> None:
    """One row for each judgment, four on each comparison; the votes on one stand together.

    The two responses have 120 words on average and 1.5 times as many on one side of every other pair, so that the
    paper's length attribute differs there; leans are those of `bench.audit`.
    """
    votes = draw(Size(n_comparisons, min(ANNOTATORS, n_comparisons), 1, VOTES_EACH), seed)
    random = np.random.default_rng(seed + 1)
    words = np.array(sorted({a + b for a in SYLLABLES for b in SYLLABLES}), dtype=object)
    sides = votes.delta[::VOTES_EACH, 0]
    writer = None
    for start in range(0, n_comparisons, ROWS_AT_ONCE):
        side = sides[start : start + ROWS_AT_ONCE]
        n_words = {"prompt": 0 * side + 20, "response_a": 120 + 30 * side, "response_b": 120 - 30 * side}
        texts = {name: _texts(random, words, n.astype(int)) for name, n in n_words.items()}
        repeated = pa.array(np.repeat(np.arange(len(side)), VOTES_EACH))
        columns = {name: pa.array(column).take(repeated) for name, column in texts.items()}
        rows = slice(start * VOTES_EACH, (start + len(side)) * VOTES_EACH)
        columns["winner"] = pa.array(np.where(votes.sign[rows] > 0, "a", "b"))
        columns["annotator"] = pa.array([f"worker-{k}@example.org" for k in votes.annotator[rows]])
        columns["comparison_id"] = pa.array([f"c{c}" for c in votes.comparison[rows]])
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _texts(random: np.random.Generator, words: np.ndarray, lengths: np.ndarray) -> list[str]:
    drawn = words[random.integers(len(words), size=int(lengths.sum()))].tolist()
    ends = np.cumsum(lengths).tolist()
    return [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=PART)
    print(as_table(measured_rows(parser.parse_args().comparisons)))


if __name__ == "__main__":
    main()
