"""A small training run as a program, for tests that start several processes or kill one.

Usage: python -m tests.training.run_one FOLDER [options, see `parsed`]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
import yaml
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.objective.objectives import GroupWeights, SampledTokens, VoteWeights
from badpo.training import logprobs
from badpo.training.config import BADPOConfig
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.training import tiny_runs

SHIPPED = Path(__file__).parents[2] / "examples" / "accelerate"


# Each makes an objective for so many annotators.
OBJECTIVES = {
    "votes": lambda n_annotators: VoteWeights(),
    "sampo": lambda n_annotators: SampledTokens(seed=7),
    "group_dro": lambda n_annotators: GroupWeights(range(n_annotators), eta=0.5),
}


class KilledAt(TrainerCallback):
    """Kills the process, without any chance to clean up, while a step is under way."""

    def __init__(self, step: int):
        self._step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


class _NotFiniteBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


class BrokenAt(TrainerCallback):
    """From a step on, on the last process: a margin is NaN, or a gradient, or theta is infinite, or weights moved."""

    def __init__(self, step: int, kind: str):
        self._step = step
        self._kind = kind

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 != self._step or args.process_index != args.world_size - 1:
            return
        if self._kind == "theta":
            self.trainer.bias.deviation.data.fill_(math.inf)
            return
        if self._kind == "weights":
            for parameter in self.trainer.model.parameters():
                parameter.data.mul_(1.1)
            return
        whole = self.trainer._margins

        def margins(model, inputs):
            values = whole(model, inputs)
            if self._kind == "gradient":
                return _NotFiniteBackward.apply(values)
            return torch.cat([values[:1] * math.nan, values[1:]])

        self.trainer._margins = margins


FLAGS = {
    "resume": "from the newest checkpoint",
    "uneven": "fewer comparisons than micro-batches",
    "own-annotators": "nobody judges two comparisons",
    "untied": "an output embedding of its own",
    "multimodal": "with a vision tower that nothing goes through",
    "experts": "with the routers' auxiliary loss",
    "lora": "an adapter of every linear layer",
    "bf16": "under autocast",
    "fsdp": "with the FSDP2 settings that are shipped",
    "evaluate": "every two steps, on an odd number of votes",
    "as-accelerate-does": "which leaves weights whole on processors",
    "own-weights": "each process starts with other weights",
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    for name, told in FLAGS.items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    parser.add_argument("--die-at", type=int, metavar="STEP")
    parser.add_argument(
        "--die-rank", type=int, metavar="RANK", help="the process that dies; else all of them"
    )
    parser.add_argument("--batching", default="random")
    parser.add_argument("--bias", default="shared_mean")
    parser.add_argument("--objective", choices=OBJECTIVES, default="votes")
    parser.add_argument("--logits-at-once", type=int, metavar="N")
    parser.add_argument("--break", dest="broken", choices=["margin", "gradient", "theta", "weights"])
    parser.add_argument("--break-at", type=int, default=3, metavar="STEP")
    return parser.parse_args(arguments)


def votes(asked: argparse.Namespace) -> pd.DataFrame:
    """The judgments of a run; every one for the longer response."""
    table = tiny.for_the_longer(tiny.votes(n_comparisons=4 if asked.uneven else 24))
    if asked.own_annotators:
        return table.assign(annotator=table["comparison_id"] + " " + table["annotator"])
    return table


def config(asked: argparse.Namespace) -> BADPOConfig:
    """The settings of a run; the step is the same for every number of processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # with --uneven a step has fewer comparisons than micro-batches, so that some processes get empty ones
    per_device, accumulation = (1, 8) if asked.uneven else (2, 4)
    # what the shipped configuration says, for processes that no launcher has told
    shipped = yaml.safe_load((SHIPPED / "fsdp2.yaml").read_text())["fsdp_config"]
    sharded = {"fsdp": True, "fsdp_config": shipped} if asked.fsdp and world > 1 else {}
    return tiny_runs.config(
        asked.folder,
        per_device_train_batch_size=per_device,
        per_device_eval_batch_size=3,
        gradient_accumulation_steps=accumulation // world,
        batching=asked.batching,
        bias=asked.bias,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps" if asked.evaluate else "no",
        eval_steps=2,
        bf16=asked.bf16,
        router_aux_loss_coef=0.5 if asked.experts else None,
        **sharded,
    )


def divide_on_processors() -> None:
    """Let accelerate apply FSDP2 where there is no GPU: torch can, accelerate asks for a GPU first."""
    original = AcceleratorState.__init__

    def with_fsdp(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = with_fsdp


def multimodal():
    """A Llava of two layers: text does not go through its vision tower."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    torch.manual_seed(0)
    text = LlamaConfig(vocab_size=64, pad_token_id=0, eos_token_id=1, initializer_range=0.2, **sizes)
    vision = CLIPVisionConfig(image_size=28, patch_size=14, **sizes)
    return LlavaForConditionalGeneration(
        LlavaConfig(text_config=text, vision_config=vision, image_token_index=60)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, save the model and theta, and what was evaluated."""
    asked = parsed(arguments)
    judgments = Judgments.read(votes(asked), attributes=[Length(ratio=1.5)])
    rank = int(os.environ.get("RANK", "0"))
    callbacks = []
    if asked.die_at and asked.die_rank in (None, rank):
        callbacks.append(KilledAt(asked.die_at))
    if asked.broken:
        callbacks.append(BrokenAt(asked.break_at, asked.broken))
    if asked.fsdp and not asked.as_accelerate_does:
        divide_on_processors()
    if asked.logits_at_once:
        logprobs.LOGITS_AT_ONCE = asked.logits_at_once
    model = tiny.model(seed=rank if asked.own_weights else 0, tied=not asked.untied)
    trainer = BADPOTrainer(
        multimodal() if asked.multimodal else tiny.mixture_of_experts() if asked.experts else model,
        args=config(asked),
        train_dataset=judgments,
        eval_dataset=judgments.take(range(7)) if asked.evaluate else None,
        processing_class=tiny.tokenizer(),
        peft_config=tiny_runs.lora() if asked.lora else None,
        callbacks=callbacks,
        objective=OBJECTIVES[asked.objective](judgments.n_annotators),
    )
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train(resume_from_checkpoint=True if asked.resume else None)
    if trainer.args.fsdp:
        assert any(isinstance(p, DTensor) for p in trainer.model.parameters()), (
            "the weights are not divided"
        )
    trainer.save_model()
    if trainer.is_world_process_zero():
        torch.save(trainer.bias.theta().detach(), asked.folder / "theta.pt")
        evaluated = [line for line in trainer.state.log_history if "eval_loss" in line]
        (asked.folder / "evaluated.json").write_text(json.dumps(evaluated))


if __name__ == "__main__":
    main()
