"""Which micro-batches one of several processes goes through: planned steps in training, a share in evaluation."""

from __future__ import annotations

import math

import numpy as np
import torch

from badpo.data.judgments import Judgments
from badpo.training.batches import ComparisonCollator, EncodedJudgments, StepSampler
from badpo.training.config import BADPOConfig


def step_loader(
    data: EncodedJudgments, collator: ComparisonCollator, args: BADPOConfig
) -> torch.utils.data.DataLoader:
    """Micro-batches of this process, planned by `StepSampler`."""
    sampler = StepSampler(
        data,
        args.batching,
        args.step_size,
        args.gradient_accumulation_steps,
        args.data_seed if args.data_seed is not None else args.seed,
        args.process_index,
        args.world_size,
    )
    return loader(data, sampler, collator, args)


def loader(data: EncodedJudgments, batches, collator, args: BADPOConfig) -> torch.utils.data.DataLoader:
    """What is collated of planned micro-batches; not passed through ``accelerator.prepare``."""
    return torch.utils.data.DataLoader(
        data,
        batch_sampler=batches,
        collate_fn=collator,
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
    )


def evaluation_batches(judgments: Judgments, args: BADPOConfig) -> list[np.ndarray]:
    """The share of one process of all judgments, those on a comparison together, in micro-batches.

    Every process has as many: divided weights are gathered by all of them together, so that one without judgments
    left still has to take part.
    """
    order = np.argsort(judgments.votes["comparison"].to_numpy(), kind="stable")
    mine = np.array_split(order, args.world_size)[args.process_index]
    longest, size = math.ceil(len(order) / args.world_size), args.per_device_eval_batch_size
    return [mine[start : start + size] for start in range(0, longest, size)]
