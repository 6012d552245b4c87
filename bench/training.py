"""Training steps of badpo and of TRL's `DPOTrainer` on the same judgments: `python -m bench.training`.

Every row first compares the gradients of the first step, then times whole optimizer steps in CPU time: collating,
forward, backward, clipping, AdamW. TRL's reference log-probabilities are computed before, as ours are.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from badpo.training.batches import planned_steps
from bench import timing
from bench.workloads import SIZES, build_model, signed, word_tokenizer

LARGEST_DIFFERENCE = 2e-5
MOVED = 0.05


@dataclass(frozen=True)
class Row:
    """One line of the table: ``micro_batch`` are the judgments of TRL's, and of ours unless ``ours_takes`` more."""

    batching: str
    micro_batch: int
    size: str = "0.5B-like"
    batch_size: int = 16
    n_steps: int = 3
    ours_takes: int | None = None


ROWS = (
    Row("random", 8),
    Row("random", 2),
    Row("grouped", 8, batch_size=32, n_steps=6),
    Row("grouped", 8, batch_size=32, n_steps=6, ours_takes=16),
    Row("random", 8, "8B-like"),
    Row("grouped", 8, "8B-like", batch_size=32, ours_takes=16),
    Row("random", 2, "head-dominated", batch_size=2),
    Row("grouped", 4, "head-dominated", batch_size=4),
)

NOTES = (
    "Ratios are TRL's CPU time over ours, medians of 5 rounds of 3 optimizer steps (6 where grouped, since such a "
    "step has 8 comparisons only). `ratio_vs_trl_compact`: TRL with its GPU head path; `ratio_vs_trl`: stock TRL on a "
    "processor. `micro_batch` are TRL's judgments a forward and `ours_takes` ours: 16 grouped judgments are 4 "
    "comparisons, fewer tokens than TRL's 8 judgments and less memory. `model`: a Qwen2 with random weights whose "
    "output embedding has the share of the work that it has in Qwen2.5-0.5B or in Llama-3.1-8B, or nearly all of it.",
    "`rel_grad_diff`: largest difference of a gradient entry from TRL's, relative to the largest entry. Lengths are "
    "those of `bench/workloads.py`.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], list(SIZES)).parse_args()
    timing.quiet()
    torch.set_num_threads(timing.THREADS)
    rows = [measured(row) for row in ROWS if row.size in (options.case or SIZES)]
    timing.report("Training steps", rows, options, NOTES)
    if any(row["rel_grad_diff"] > LARGEST_DIFFERENCE for row in rows):
        raise SystemExit(
            f"a gradient differs by more than {LARGEST_DIFFERENCE:.0e}: these ratios do not count"
        )


def measured(row: Row) -> dict[str, Any]:
    """The row's ratios, in a folder of its own."""
    from bench import peers

    size = SIZES[row.size]
    votes = signed(size.vocabulary)
    tokenizer = word_tokenizer(size.vocabulary)
    part = judgments_of_steps(votes, row.batching, row.batch_size, row.n_steps)
    models = build_model(size, moved=MOVED), build_model(size)
    takes = row.ours_takes or row.micro_batch
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = peers.ours(part, tokenizer, models, row.batching, takes, row.batch_size // takes, folder)
        trl = peers.trl(ours, models, folder, row.micro_batch)
        runs = {"ours": (ours, nullcontext), "trl": (trl, nullcontext), "compact": (trl, peers.gpu_head)}
        seconds: dict[str, list[float]] = {side: [] for side in runs}
        gradients: dict[str, Sequence] = {}
        # the first training of each warms up
        for turn in range(timing.REPEATS + 1):
            for side, (trainer, around) in runs.items():
                with around():
                    found = peers.watched(trainer)
                seconds[side] += [found.seconds] * (turn > 0)
                gradients.setdefault(side, found.gradients)
    median = {side: statistics.median(times) for side, times in seconds.items()}
    differ = [
        peers.relative_difference(gradients["ours"], gradients[side]) for side in ("trl", "compact")
    ]
    return {
        "model": row.size,
        "batching": row.batching,
        "micro_batch": row.micro_batch,
        "ours_takes": row.ours_takes or row.micro_batch,
        "ratio_vs_trl_compact": median["compact"] / median["ours"],
        "ratio_vs_trl": median["trl"] / median["ours"],
        "rel_grad_diff": max(differ),
        "seconds_per_step": median["ours"] / row.n_steps,
    }


def judgments_of_steps(
    votes: pd.DataFrame, batching: str, batch_size: int, n_steps: int
) -> pd.DataFrame:
    """The judgments that the first steps of a run on all of them would take."""
    comparison = votes["comparison_id"].to_numpy()
    plan = planned_steps(batching, comparison, batch_size, np.random.default_rng(0))
    return votes.iloc[np.concatenate(plan[:n_steps])].reset_index(drop=True)


if __name__ == "__main__":
    main()
