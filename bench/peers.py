"""badpo's trainer and TRL's `DPOTrainer` on the same judgments, step by step.

On a processor TRL is measured twice: as it runs there, where its head scores every position, and with the path that
it takes on a GPU, where its head scores the positions of the responses only.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.batches import planned_steps
from badpo.training.config import BADPOConfig
from badpo.training.logprobs import scoring_attention
from badpo.training.trainer import BADPOTrainer
from bench.workloads import Workload

BETA, LEARNING_RATE, CLIP, SEED = 0.1, 1e-6, 1.0, 0
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


class Steps:
    """Whole optimizer steps of a trainer on all of its judgments; what both sides have in common."""

    trainer: Any
    losses: Callable[
        [], Iterator[Iterator[torch.Tensor]]
    ]  # of every step's micro-batches; their gradients add up
    _optimizer: torch.optim.Optimizer | None = None

    def around(self) -> AbstractContextManager:
        """What is open around forwards and backwards."""
        return nullcontext()

    def after_backward(self) -> None:
        """What a step does besides the policy's gradients."""

    def run(self) -> None:
        """All steps: collating, forward, backward, clipping, the optimizer."""
        model = self.trainer.model.train()
        self._optimizer = self._optimizer or torch.optim.AdamW(
            trained_parameters(model), lr=LEARNING_RATE
        )
        optimizer = self._optimizer
        with self.around():
            for losses in self.losses():
                for loss in losses:
                    loss.backward()
                self.after_backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()

    def first_gradients(self) -> list[torch.Tensor]:
        """Gradients of the first step, in the order of the model's parameters."""
        model = self.trainer.model.train()
        with self.around():
            for loss in next(self.losses()):
                loss.backward()
            self.after_backward()
        gradients = [parameter.grad.clone() for parameter in trained_parameters(model)]
        model.zero_grad()
        return gradients


class Ours(Steps):
    """badpo's trainer on the judgments of all steps, batched by a way of `badpo.training.batches.BATCHING`.

    ``models`` are the policy and the reference, which are copied; where they differ, margins are not 0, and without a
    reference the policy is its own. ``micro_batch`` are judgments of a micro-batch, ``n_micro`` micro-batches of a
    step; ``folder`` is for what the trainer writes, the reference log-probabilities among it.
    """

    def __init__(
        self,
        workload: Workload,
        tokenizer,
        models: Sequence,
        batching: str,
        micro_batch: int,
        n_micro: int,
        folder: Path,
    ):
        policy, reference = models
        self.trainer = BADPOTrainer(
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
            train_dataset=Judgments.read(workload.votes, attributes=[Length(ratio=1.5)]),
            processing_class=tokenizer,
        )
        # now, because the arguments of a second trainer reset what accelerate keeps about the first
        self.trainer.compute_references()
        self._n_micro = n_micro
        comparison = self.trainer.judgments.votes["comparison"].to_numpy()
        batch_size = micro_batch * n_micro
        self.steps = planned_steps(batching, comparison, batch_size, np.random.default_rng([SEED, 0]))

    def losses(self) -> Iterator[Iterator[torch.Tensor]]:
        """The losses of every step's micro-batches."""
        trainer = self.trainer
        batches = iter(trainer.get_train_dataloader())
        for _ in self.steps:
            step, normaliser = trainer.get_batch_samples(batches, self._n_micro, trainer.args.device)
            yield (self._loss(inputs, normaliser) for inputs in step)

    def _loss(self, inputs, normaliser) -> torch.Tensor:
        trainer = self.trainer
        with trainer.accelerator.autocast():
            inputs = trainer._prepare_inputs(inputs)
            return trainer.compute_loss(trainer.model, inputs, num_items_in_batch=normaliser)

    def around(self) -> AbstractContextManager:
        """The tree attention, as ``train()`` has it."""
        return scoring_attention(self.trainer.model, self.trainer._layout)

    def after_backward(self) -> None:
        """Theta's step and the step's sums."""
        self.trainer.finish_step()


class TRL(Steps):
    """TRL's `DPOTrainer` on the judgments of an `Ours`, in the order of its steps; reference computed before.

    Its micro-batches have ``micro_batch`` judgments.
    """

    def __init__(self, ours: Ours, models: Sequence, folder: Path, micro_batch: int):
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        policy, reference = models
        args = ours.trainer.args
        order = np.concatenate(ours.steps)
        batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps
        self._micro_batch = micro_batch
        self._n_micro = batch_size // self._micro_batch
        self.trainer = DPOTrainer(
            copy.deepcopy(policy),
            ref_model=copy.deepcopy(reference),
            args=DPOConfig(
                str(folder / "trl"),
                **SETTINGS,
                precompute_ref_log_probs=True,
                train_sampling_strategy="sequential",
                max_length=args.max_length,
                per_device_train_batch_size=self._micro_batch,
                gradient_accumulation_steps=self._n_micro,
            ),
            train_dataset=Dataset.from_list(preference_rows(ours.trainer.judgments, order)),
            processing_class=ours.trainer.processing_class,
        )
        self._rows = list(self.trainer.train_dataset)

    def losses(self) -> Iterator[Iterator[torch.Tensor]]:
        """The losses of every step's micro-batches, each weighted with its share of the step's judgments."""
        rows = iter(self._rows)
        while step := list(itertools.islice(rows, self._micro_batch * self._n_micro)):
            parts = [step[i : i + self._micro_batch] for i in range(0, len(step), self._micro_batch)]
            yield (self._loss(part) * len(part) / len(step) for part in parts)

    def _loss(self, part: list) -> torch.Tensor:
        trainer = self.trainer
        with trainer.accelerator.autocast():
            batch = trainer._prepare_inputs(trainer.data_collator(part))
            return trainer.compute_loss(trainer.model, batch)


def trained_parameters(model) -> list[torch.nn.Parameter]:
    """Those that are not frozen."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


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
