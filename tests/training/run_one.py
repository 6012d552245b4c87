"""A small training run as a program, for tests that start several processes or kill one.

Usage: python -m tests.training.run_one FOLDER [--resume] [--die-at STEP] [--steps N] [--uneven] [--batching NAME]
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import torch
from transformers import TrainerCallback

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from tests import tiny


class KilledAt(TrainerCallback):
    """Kills the process, without any chance to clean up, while a step is under way."""

    def __init__(self, step: int):
        self._step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--batching", default="random")
    asked = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # with --uneven a step has fewer comparisons than micro-batches, so that some processes get empty ones
    per_device, accumulation = (1, 8) if asked.uneven else (4, 2)
    args = BADPOConfig(
        output_dir=str(asked.folder),
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=accumulation // world,
        batching=asked.batching,
        max_steps=asked.steps,
        learning_rate=1e-3,
        bias_learning_rate=1e-2,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        reference_cache=str(asked.folder / "cache"),
        seed=7,
    )
    votes = tiny.for_the_longer(tiny.votes(n_comparisons=4 if asked.uneven else 24))
    trainer = BADPOTrainer(
        tiny.model(),
        args=args,
        train_dataset=Judgments.read(votes, attributes=[Length(ratio=1.5)]),
        processing_class=tiny.tokenizer(),
        callbacks=[KilledAt(asked.die_at)] if asked.die_at else None,
    )
    trainer.train(resume_from_checkpoint=True if asked.resume else None)
    trainer.save_model()
    if trainer.is_world_process_zero():
        torch.save(trainer.bias.theta().detach(), asked.folder / "theta.pt")


if __name__ == "__main__":
    main()
