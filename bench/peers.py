"""badpo's trainer and TRL's `DPOTrainer` on the same judgments, step by step.

On a processor TRL is measured twice: as it runs there, where its head scores every position, and with the path that
it takes on a GPU, where its head scores the positions of the responses only.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
from transformers import TrainerCallback

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.batches import planned_steps
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer

# without a rate every training has the same first step
BETA, LEARNING_RATE, CLIP, SEED = 0.1, 0.0, 1.0, 0
# For both trainers: nothing written or reported.
SETTINGS: dict[str, Any] = dict(
    learning_rate=LEARNING_RATE,
    beta=BETA,
    max_grad_norm=CLIP,
    num_train_epochs=1,
    seed=SEED,
    gradient_checkpointing=False,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
)


def gpu_head() -> AbstractContextManager:
    """Inside, TRL's head scores the positions of the responses only, as it does on a GPU."""
    return mock.patch("trl.trainer.utils._use_triton", lambda device: True)


class Watched(TrainerCallback):
    """CPU time from the start of training to the end of its last step, and the gradients of its first step."""

    def on_train_begin(self, args, state, control, **given):
        self._start, self.gradients = time.process_time(), list[torch.Tensor]()

    def on_pre_optimizer_step(self, args, state, control, model, **given):
        if not self.gradients:
            self.gradients = [p.grad.clone() for p in model.parameters() if p.requires_grad]

    def on_step_end(self, args, state, control, **given):
        self.seconds = time.process_time() - self._start


def watched(trainer) -> Watched:
    """A whole training: collating, forward, backward, clipping, the optimizer."""
    trainer.add_callback(callback := Watched())
    trainer.train()
    trainer.remove_callback(callback)
    return callback


def ours(
    votes: pd.DataFrame,
    tokenizer,
    models: Sequence,
    batching: str,
    micro_batch: int,
    n_micro: int,
    folder: Path,
) -> BADPOTrainer:
    """badpo's trainer on all judgments, batched by a way of `badpo.training.batches.BATCHING`.

    ``models`` are the policy and the reference, which are copied; where they differ, margins are not 0. ``micro_batch``
    are judgments of a micro-batch, ``n_micro`` micro-batches of a step; ``folder`` is for what the trainer writes, the
    reference log-probabilities among it, which are computed here.
    """
    policy, reference = models
    trainer = BADPOTrainer(
        copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        # theta stays at 0, so that the policy's gradients are DPO's; theta's are computed besides
        args=BADPOConfig(
            str(folder / "ours"),
            **SETTINGS,
            bias="shared_mean",
            bias_learning_rate=0.0,
            reference_cache=str(folder / "cache"),
            batching=batching,
            max_length=None,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=n_micro,
        ),
        train_dataset=Judgments.read(votes, attributes=[Length(ratio=1.5)]),
        processing_class=tokenizer,
    )
    trainer.compute_references()
    return trainer


def trl(ours: BADPOTrainer, models: Sequence, folder: Path, micro_batch: int):
    """TRL's `DPOTrainer` on the judgments of ours, in the order of its steps; reference computed before.

    Its micro-batches have ``micro_batch`` judgments.
    """
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    policy, reference = models
    args = ours.args
    batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
    comparison = ours.judgments.votes["comparison"].to_numpy()
    steps = planned_steps(args.batching, comparison, batch_size, np.random.default_rng([SEED, 0]))
    return DPOTrainer(
        copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=DPOConfig(
            str(folder / "trl"),
            **SETTINGS,
            precompute_ref_log_probs=True,
            train_sampling_strategy="sequential",
            max_length=args.max_length,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=batch_size // micro_batch,
        ),
        train_dataset=Dataset.from_list(preference_rows(ours.judgments, np.concatenate(steps))),
        processing_class=ours.processing_class,
    )


def preference_rows(judgments: Judgments, order: np.ndarray) -> list[dict[str, str]]:
    """Prompt, chosen and rejected response of judgments, as TRL takes them."""
    votes = judgments.votes.iloc[order]
    texts = judgments.comparisons.iloc[votes["comparison"]]
    chose_a = votes["sign"].to_numpy() > 0
    a, b = texts["response_a"].to_numpy(), texts["response_b"].to_numpy()
    return [
        {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        for prompt, chosen, rejected in zip(
            texts["prompt"], np.where(chose_a, a, b), np.where(chose_a, b, a), strict=True
        )
    ]


def relative_difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest absolute difference over all tensors, relative to the largest entry that is expected."""
    largest = max(float(g.abs().max()) for g in expected)
    return max(float((f - e).abs().max()) for f, e in zip(found, expected, strict=True)) / largest
