"""A table of votes as large as asked for: `python -m bench.large_table votes.parquet --comparisons 1250000`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.audit_votes import Size, draw

VOTES_EACH, WORDS, PROMPT_WORDS, ANNOTATORS = 4, 120, 20, 2_000
ROWS_AT_ONCE = 25_000
_SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "se", "ti", "vo", "za", "pen", "dor", "lin", "gas", "tem")


def write_votes(path: Path, n_comparisons: int, seed: int = 0) -> None:
    """One row for each judgment, four on each comparison; the votes on one stand together.

    The two responses have 120 words on average and 1.5 times as many on one side of every other pair, so that the
    paper's length attribute differs there; leans are those of `bench.audit_votes`.
    """
    votes = draw(Size(n_comparisons, min(ANNOTATORS, n_comparisons), 1, VOTES_EACH), seed)
    random = np.random.default_rng(seed + 1)
    words = np.array(sorted({a + b for a in _SYLLABLES for b in _SYLLABLES}), dtype=object)
    sides = votes.delta[::VOTES_EACH, 0]
    writer = None
    for start in range(0, n_comparisons, ROWS_AT_ONCE):
        side = sides[start : start + ROWS_AT_ONCE]
        texts = {
            "prompt": _texts(random, words, np.full(len(side), PROMPT_WORDS)),
            "response_a": _texts(random, words, np.where(side > 0, 150, np.where(side < 0, 90, 120))),
            "response_b": _texts(random, words, np.where(side < 0, 150, np.where(side > 0, 90, 120))),
        }
        rows = slice(start * VOTES_EACH, (start + len(side)) * VOTES_EACH)
        table = pa.table(
            {
                name: pa.array(column).take(pa.array(np.repeat(np.arange(len(side)), VOTES_EACH)))
                for name, column in texts.items()
            }
            | {
                "winner": np.where(votes.sign[rows] > 0, "a", "b"),
                "annotator": [f"worker-{k}@example.org" for k in votes.annotator[rows].tolist()],
                "comparison_id": [f"c{c}" for c in votes.comparison[rows].tolist()],
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def _texts(random: np.random.Generator, words: np.ndarray, lengths: np.ndarray) -> list[str]:
    drawn = words[random.integers(len(words), size=int(lengths.sum()))].tolist()
    ends = np.cumsum(lengths).tolist()
    return [" ".join(drawn[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--comparisons", type=int, default=1_250_000)
    options = parser.parse_args()
    write_votes(options.path, options.comparisons)


if __name__ == "__main__":
    main()
