"""Measure the share of a training step that the update of theta takes: `python -m bench.theta_cost`."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from bench import timing
from bench.training import MOVED, SEED, SETTINGS, quiet
from bench.workloads import CASES, SIZES, build_model, word_tokenizer

MODEL, N_STEPS = "0.5B-like", 40
# rule for theta, annotators, ratios of the length attributes
ROWS = (
    ("anchored", 30, (1.5,)),
    ("adam", 30, (1.5,)),
    ("anchored", 10_000, (1.1, 1.3, 1.5, 1.8, 2.2)),
)
NOTES = (
    "`percent_of_step`: CPU time of the rule that moves theta, in percent of the CPU time of all steps. The votes are "
    "the first 1,000 of `signed`, 20 times, given to annotators at random. A step has 16 judgments; the variant is "
    "pooled.",
)


class StepTimer(transformers.TrainerCallback):
    """CPU time of the steps of a training, and of the updates of theta."""

    def __init__(self, trainer: BADPOTrainer):
        self.trainer, self.rule_seconds = trainer, 0.0

    def on_train_begin(self, args, state, control, **given):
        rule = self.trainer.theta_rule
        take_step = rule.step

        def take_timed_step(votes):
            start = time.process_time()
            take_step(votes)
            self.rule_seconds += time.process_time() - start

        rule.step = take_timed_step
        self._start = time.process_time()

    def on_step_end(self, args, state, control, **given):
        self.seconds = time.process_time() - self._start


def measure_cost(rule: str, n_annotators: int, ratios: Sequence[float]) -> dict[str, Any]:
    """Train for a few steps, and compare the time of theta's updates with the time of the steps."""
    size, random = SIZES[MODEL], np.random.default_rng(SEED)
    # few comparisons, so that their reference log-probabilities take no time
    votes = pd.concat([CASES["signed"](size.vocabulary).iloc[:1_000]] * 20, ignore_index=True)
    votes["annotator"] = [f"person {k}" for k in random.integers(0, n_annotators, len(votes))]
    attributes = [Length(ratio=ratio, name=f"length_{ratio:g}".replace(".", "_")) for ratio in ratios]
    with tempfile.TemporaryDirectory() as folder:
        trainer = BADPOTrainer(
            build_model(size, moved=MOVED),
            ref_model=build_model(size),
            args=BADPOConfig(
                str(Path(folder) / "run"),
                **SETTINGS,
                bias="pooled",
                bias_fit=rule,
                max_steps=N_STEPS,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=2,
            ),
            train_dataset=Judgments.read(votes, attributes=attributes),
            processing_class=word_tokenizer(size.vocabulary),
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(timer := StepTimer(trainer))
        trainer.train()
    return {
        "rule": rule,
        "annotators": n_annotators,
        "attributes": len(ratios),
        "seconds_per_step": timer.seconds / N_STEPS,
        "percent_of_step": 100 * timer.rule_seconds / timer.seconds,
    }


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], ["signed"]).parse_args()
    quiet()
    torch.set_num_threads(timing.THREADS)
    rows = [measure_cost(*row) for row in ROWS]
    timing.report("Theta's share of a step", rows, options, NOTES, ("torch", "transformers"))


if __name__ == "__main__":
    main()
