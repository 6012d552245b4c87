"""Supervised fine-tuning on responses, and the base class of the trainers."""

# mypy does not analyze transformers, so its classes are untyped
# mypy: disallow-subclassing-any=False

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput

from badpo.training.batches import MicroBatch
from badpo.training.config import computes_in_bf16, lacks_float64
from badpo.training.logprobs import (
    ScoringInputs,
    attach,
    move_inputs,
    response_layout,
    scoring_attention,
)
from badpo.training.packing import Pair


class StepTrainer(transformers.Trainer):
    """Trainer that divides the loss only by a count over the whole optimizer step and all processes."""

    def __init__(self, **options: object):
        super().__init__(**options)
        self.model_accepts_loss_kwargs = True
        if hasattr(self, "loss_is_scaled_for_ga"):
            self.loss_is_scaled_for_ga = True

    def floating_point_ops(self, inputs: MicroBatch) -> int:
        """Estimate 6 operations per weight and input token, as the Trainer does; count shared tokens only once."""
        scoring = inputs["scoring"]
        return (
            0
            if scoring is None
            else int(super().floating_point_ops({"input_ids": scoring["input_ids"]}))
        )


def supervised_arguments(folder: Path, **options: object) -> transformers.TrainingArguments:
    """Return the training arguments of the supervised stage: cosine schedule, 10 % warm-up and no checkpoints.

    ``options`` are arguments of the Trainer. If ``options`` does not set ``bf16``, the supervised stage uses the
    preference stage's default precision.
    """
    settings: dict[str, object] = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
        "use_cpu": lacks_float64(),
        "remove_unused_columns": False,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
        **options,
    }
    settings.setdefault("bf16", computes_in_bf16(bool(settings["use_cpu"])))
    return transformers.TrainingArguments(output_dir=str(folder / "checkpoints"), **settings)


class SupervisedTrainer(StepTrainer):
    """Trainer for supervised fine-tuning on responses, with the same forward pass as in preference training.

    The loss of an optimizer step is the mean over all response tokens of the step, regardless of the number of
    micro-batches or processes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: transformers.TrainingArguments,
        pairs: Sequence[Pair],
        callbacks: list[transformers.TrainerCallback] | None = None,
    ):
        self._layout = response_layout(attach(model), pairs)
        super().__init__(
            model=model,
            args=args,
            train_dataset=list(pairs),
            data_collator=self._collate,
            callbacks=callbacks,
        )

    def _collate(self, rows: list[Pair]) -> dict[str, ScoringInputs]:
        return {"scoring": move_inputs(self._layout(rows), torch.device("cpu"))}

    def train(self, *args: object, **kwargs: object) -> TrainOutput:
        """Train like `transformers.Trainer.train`, but with the attention that packed rows require."""
        with scoring_attention(self.model, self._layout):
            return super().train(*args, **kwargs)

    def get_batch_samples(
        self,
        epoch_iterator: Iterator[dict[str, ScoringInputs]],
        num_batches: int,
        device: torch.device,
    ) -> tuple[list[dict[str, ScoringInputs]], Tensor]:
        """Return the micro-batches of a step and the step's number of response tokens over all processes."""
        batches = list(islice(epoch_iterator, num_batches))
        n_tokens = sum(len(batch["scoring"]["target"]) for batch in batches)
        return batches, self.accelerator.reduce(
            torch.tensor(float(n_tokens), device=device), reduction="sum"
        )

    def compute_loss(
        self,
        model: PreTrainedModel,
        inputs: dict[str, ScoringInputs],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | None = None,
    ) -> Tensor:
        """Negative log-likelihood of the response tokens, divided by the number of tokens in the step."""
        logps = model(scoring=inputs["scoring"])
        # the token count is a sum over all processes, so DDP's averaging of gradients must be undone
        return -logps.sum() / num_items_in_batch * self.args.world_size
