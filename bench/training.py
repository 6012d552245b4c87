"""Compare training steps of badpo and of TRL's `DPOTrainer` on the same judgments: `python -m bench.training`.

Every row compares the gradients of the first step, and measures the CPU time of whole optimizer steps: collating,
forward, backward, clipping and AdamW. Both trainers compute the reference's log-probabilities before. On a CPU, TRL is
measured twice: as it is, with a head that scores every position, and with its GPU path, in which the head scores only
the positions of the responses.
"""

import copy
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import torch
import transformers
from peft import PeftConfig

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.batches import plan_steps
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from bench import timing
from bench.workloads import CASES, SIZES, build_model, word_tokenizer

SEED = 0
# Settings of both trainers: they write and report nothing.
SETTINGS: dict[str, Any] = dict(
    # with a learning rate of 0 every training has the same first step
    learning_rate=0.0,
    beta=0.1,
    max_grad_norm=1.0,
    num_train_epochs=1,
    seed=SEED,
    gradient_checkpointing=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    max_length=None,
)
LARGEST_DIFFERENCE = 2e-5
MOVED = 0.05


class Row(NamedTuple):
    """A line of the table; ``micro_batch`` is the number of judgments, for badpo unless ``ours_takes`` is larger."""

    case: str
    batching: str
    micro_batch: int
    size: str = "0.5B-like"
    batch_size: int = 16
    n_steps: int = 3
    ours_takes: int | None = None


ROWS = (
    Row("signed", "random", 8),
    Row("signed", "random", 2),
    Row("multipref", "random", 8),
    Row("signed", "grouped", 8, batch_size=32, n_steps=6),
    Row("signed", "grouped", 8, batch_size=32, n_steps=6, ours_takes=16),
    Row("multipref", "grouped", 8, batch_size=32, n_steps=6),
    Row("multipref", "grouped", 8, batch_size=32, n_steps=6, ours_takes=16),
    Row("signed", "random", 8, "8B-like"),
    Row("signed", "grouped", 8, "8B-like", batch_size=32, ours_takes=16),
    Row("signed", "random", 2, "head-dominated", batch_size=2),
    Row("signed", "grouped", 4, "head-dominated", batch_size=4),
)

NOTES = (
    "Ratios are TRL's CPU time over ours, medians of 5 trainings of 3 steps (6 where grouped). `ratio_vs_trl_compact`: "
    "TRL with its GPU head path; `ratio_vs_trl`: TRL as it runs on a processor. `micro_batch` are TRL's judgments a "
    "forward and `ours_takes` ours. `model`: a Qwen2 with random weights whose output embedding has the share of the "
    "work that it has in Qwen2.5-0.5B or in Llama-3.1-8B, or nearly all. `rel_grad_diff`: largest difference of a "
    "gradient entry from TRL's, relative to the largest entry. Lengths are those of `bench/workloads.py`.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], list(CASES)).parse_args()
    quiet()
    torch.set_num_threads(timing.THREADS)
    rows = [measured(row) for row in ROWS if row.case in (options.case or CASES)]
    timing.report("Training steps", rows, options, NOTES, ("torch", "transformers", "trl"))
    if any(row["rel_grad_diff"] > LARGEST_DIFFERENCE for row in rows):
        raise SystemExit(
            f"a gradient differs by more than {LARGEST_DIFFERENCE:.0e}: these ratios do not count"
        )


def quiet() -> None:
    """Suppress all output except the table."""
    os.environ["TQDM_DISABLE"] = "1"
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)


def measured(row: Row) -> dict[str, Any]:
    """Measure the ratios of a row in a folder of its own."""
    size = SIZES[row.size]
    tokenizer = word_tokenizer(size.vocabulary)
    part = first_judgments(row, CASES[row.case](size.vocabulary))
    models = build_model(size, moved=MOVED), build_model(size)
    with tempfile.TemporaryDirectory() as folder:
        us = ours(row, part, tokenizer, models, Path(folder))
        them = trl(row, us, models, Path(folder))
        runs = {"ours": (us, nullcontext), "trl": (them, nullcontext), "compact": (them, gpu_head)}
        seconds: dict[str, list[float]] = {side: [] for side in runs}
        gradients: dict[str, Sequence] = {}
        # the first training of each trainer is a warm-up
        for turn in range(timing.REPEATS + 1):
            for side, (trainer, around) in runs.items():
                with around():
                    found = watched(trainer)
                seconds[side] += [found.seconds] * (turn > 0)
                gradients.setdefault(side, found.gradients)
    median = {side: statistics.median(times) for side, times in seconds.items()}
    differ = [relative_difference(gradients["ours"], gradients[side]) for side in ("trl", "compact")]
    return {
        "case": row.case,
        "model": row.size,
        "batching": row.batching,
        "micro_batch": row.micro_batch,
        "ours_takes": row.ours_takes or row.micro_batch,
        "ratio_vs_trl_compact": median["compact"] / median["ours"],
        "ratio_vs_trl": median["trl"] / median["ours"],
        "rel_grad_diff": max(differ),
        "seconds_per_step": median["ours"] / row.n_steps,
    }


def first_judgments(row: Row, votes: pd.DataFrame) -> pd.DataFrame:
    """Return the judgments of the row's first steps in a training on all votes."""
    comparison = votes["comparison_id"].to_numpy()
    plan = plan_steps(row.batching, comparison, row.batch_size, np.random.default_rng(0))
    return votes.iloc[np.concatenate(plan[: row.n_steps])].reset_index(drop=True)


# -- the two sides ---------------------------------------------------------------------------------------------


def gpu_head() -> AbstractContextManager:
    """Within this context, TRL's head scores only the positions of the responses, as on a GPU."""
    return mock.patch("trl.trainer.utils._use_triton", lambda device: True)


class Watched(transformers.TrainerCallback):
    """CPU time from the start of training to the end of its last step, and gradients of its first step."""

    def on_train_begin(self, args, state, control, **given):
        self._start, self.gradients = time.process_time(), list[torch.Tensor]()

    def on_pre_optimizer_step(self, args, state, control, model, **given):
        if not self.gradients:
            self.gradients = [p.grad.clone() for p in model.parameters() if p.requires_grad]

    def on_step_end(self, args, state, control, **given):
        self.seconds = time.process_time() - self._start


def watched(trainer) -> Watched:
    """Run a whole training: collating, forward, backward, clipping and the optimizer."""
    trainer.remove_callback(transformers.PrinterCallback)  # standard output contains only the table
    trainer.add_callback(callback := Watched())
    trainer.train()
    trainer.remove_callback(callback)
    return callback


def ours(
    row: Row,
    votes: pd.DataFrame,
    tokenizer,
    models: Sequence,
    folder: Path,
    settings: Mapping[str, Any] = SETTINGS,
    adapter: PeftConfig | None = None,
) -> BADPOTrainer:
    """Make badpo's trainer on all judgments, with the reference's log-probabilities computed.

    ``models`` are the policy and the reference (or None), which are copied; if they differ, margins are not 0. The
    trainer writes to ``folder``.
    """
    policy, reference = map(copy.deepcopy, models)
    takes = row.ours_takes or row.micro_batch
    trainer = BADPOTrainer(
        policy,
        ref_model=reference,
        # theta stays at 0, so that the policy's gradients are those of DPO; theta's gradients are computed too
        args=BADPOConfig(
            str(folder / "ours"),
            **settings,
            bias="shared_mean",
            bias_learning_rate=0.0,
            reference_cache=str(folder / "cache"),
            batching=row.batching,
            per_device_train_batch_size=takes,
            gradient_accumulation_steps=row.batch_size // takes,
        ),
        train_dataset=Judgments.read(votes, attributes=[Length(ratio=1.5)]),
        processing_class=tokenizer,
        peft_config=adapter,
    )
    trainer.compute_references()
    return trainer


def trl(
    row: Row,
    us: BADPOTrainer,
    models: Sequence,
    folder: Path,
    settings: Mapping[str, Any] = SETTINGS,
    adapter: PeftConfig | None = None,
):
    """Make TRL's `DPOTrainer` on badpo's judgments in the order of badpo's steps, with the reference computed."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    policy, reference = map(copy.deepcopy, models)
    comparison = us.judgments.votes["comparison"].to_numpy()
    draw = np.random.default_rng([SEED, 0])
    steps = plan_steps(row.batching, comparison, row.batch_size, draw)
    return DPOTrainer(
        policy,
        ref_model=reference,
        args=DPOConfig(
            str(folder / "trl"),
            **settings,
            precompute_ref_log_probs=True,
            train_sampling_strategy="sequential",
            per_device_train_batch_size=row.micro_batch,
            gradient_accumulation_steps=row.batch_size // row.micro_batch,
        ),
        train_dataset=Dataset.from_dict(preferences(us.judgments, np.concatenate(steps))),
        processing_class=us.processing_class,
        peft_config=adapter,
    )


def preferences(judgments: Judgments, order: np.ndarray) -> dict[str, list[str]]:
    """Convert judgments to prompt, chosen and rejected response for TRL."""
    votes = judgments.votes.iloc[order]
    texts = judgments.comparisons.iloc[votes["comparison"]]
    chose_a, prompts = votes["sign"].to_numpy() > 0, texts["prompt"].tolist()
    a, b = texts["response_a"].to_numpy(), texts["response_b"].to_numpy()
    chosen, rejected = np.where(chose_a, a, b).tolist(), np.where(chose_a, b, a).tolist()
    return {"prompt": prompts, "chosen": chosen, "rejected": rejected}


def relative_difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Compute the largest absolute difference over all tensors, relative to the largest expected entry."""
    largest = max(float(g.abs().max()) for g in expected)
    return max(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)) / largest


if __name__ == "__main__":
    main()
