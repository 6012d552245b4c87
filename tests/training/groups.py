"""Small training runs in groups of processes, which are forked from one process that has imported the libraries.

An import costs more than a tiny run: a test that starts four processes would mostly import.
"""

import math
import multiprocessing
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
import transformers
import yaml
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.objective.objectives import GroupWeights, SampledTokens, VoteWeights
from badpo.training import logprobs
from badpo.training.trainer import BADPOTrainer
from tests import tiny
from tests.training import tiny_runs

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.groups"])


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    batching: str = "random"
    bias: str = "shared_mean"
    objective: str = "votes"
    anchored: bool = False  # theta by its default rule, not by Adam
    resume: bool = False
    uneven: bool = False  # fewer comparisons than micro-batches
    own_annotators: bool = False  # nobody judges two comparisons
    untied: bool = False  # an output embedding of its own
    multimodal: bool = False  # with a vision tower that nothing goes through
    experts: bool = False  # with the routers' auxiliary loss
    lora: bool = False
    bf16: bool = False
    fsdp: bool = False  # with the FSDP2 settings that are shipped
    evaluate: bool = False  # every two steps, on an odd number of votes
    as_accelerate_does: bool = False  # which leaves weights whole on processors
    own_weights: bool = False  # each process starts with other weights
    fault: str = ""  # what goes wrong, of `Fault`
    fault_at: int = 3
    fault_rank: int | None = None  # where it does; everywhere
    logits_at_once: int = 0


# Functions that make an objective for a number of annotators.
OBJECTIVES = {
    "votes": lambda n_annotators: VoteWeights(),
    "sampo": lambda n_annotators: SampledTokens(seed=7),
    "group_dro": lambda n_annotators: GroupWeights(range(n_annotators), eta=0.5),
}


class Fault(transformers.TrainerCallback):
    """Cause a fault at a step: kill the process, or make a margin, a gradient, theta or the weights wrong."""

    def __init__(self, run: BADPOTrainer, step: int, kind: str):
        self._run = run
        self._step = step
        self._kind = kind

    def on_step_begin(self, args, state, control, **kwargs):
        run = self._run
        if state.global_step + 1 != self._step:
            return
        if self._kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "theta":
            run.bias.deviation.data.fill_(math.inf)
        elif self._kind == "weights":
            for parameter in run.model.parameters():
                parameter.data.mul_(1.1)
        else:
            whole = run._compute_margins
            run._compute_margins = lambda model, inputs: broken(whole(model, inputs), self._kind)


def broken(margins: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "margin":
        return torch.cat([margins[:1] * math.nan, margins[1:]])
    margins.register_hook(lambda gradient: gradient * math.nan)
    return margins


def votes(asked: Options) -> pd.DataFrame:
    """Make the judgments of a run; every judgment is for the longer response."""
    table = tiny.for_the_longer(tiny.votes(n_comparisons=4 if asked.uneven else 24))
    if asked.own_annotators:
        return table.assign(annotator=table["comparison_id"] + " " + table["annotator"])
    return table


def settings(asked: Options) -> dict:
    """Make the settings of a run; a step has the same judgments for every number of processes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    # an uneven step has fewer comparisons than micro-batches, so that some processes get empty ones
    per_device, accumulation = (1, 8) if asked.uneven else (2, 4)
    # settings of the shipped configuration, for processes without a launcher
    shipped = yaml.safe_load((ROOT / "examples" / "accelerate" / "fsdp2.yaml").read_text())
    sharded = {"fsdp": True, "fsdp_config": shipped["fsdp_config"]} if asked.fsdp and world > 1 else {}
    sizes = dict(per_device_train_batch_size=per_device, per_device_eval_batch_size=3)
    sizes |= dict(gradient_accumulation_steps=accumulation // world)
    times = dict(save_strategy="steps", save_steps=2, eval_steps=2)
    times |= dict(eval_strategy="steps" if asked.evaluate else "no")
    own = dict(batching=asked.batching, bias=asked.bias, bf16=asked.bf16)
    own |= dict(router_aux_loss_coef=0.5 if asked.experts else None)
    own |= dict(bias_fit="anchored", bias_learning_rate=None) if asked.anchored else {}
    return sizes | times | own | sharded


def divide_on_processors() -> None:
    """Let accelerate apply FSDP2 without a GPU, which torch supports but accelerate refuses."""
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
    """Make a Llava model with two layers; texts do not use its vision tower."""
    sizes = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
    torch.manual_seed(0)
    tokens = dict(vocab_size=64, pad_token_id=0, eos_token_id=1, initializer_range=0.2)
    text = transformers.LlamaConfig(**tokens, **sizes)
    vision = transformers.CLIPVisionConfig(image_size=28, patch_size=14, **sizes)
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=60)
    return transformers.LlavaForConditionalGeneration(config)


def train(folder: Path, asked: Options) -> None:
    judgments = Judgments.read(votes(asked), attributes=[Length(ratio=1.5)])
    rank = int(os.environ.get("RANK", "0"))
    if asked.fsdp and not asked.as_accelerate_does:
        divide_on_processors()
    if asked.logits_at_once:
        logprobs.LOGITS_AT_ONCE = asked.logits_at_once
    model = tiny.model(seed=rank if asked.own_weights else 0, tied=not asked.untied)
    trainer = tiny_runs.trainer(
        folder,
        judgments,
        multimodal() if asked.multimodal else tiny.mixture_of_experts() if asked.experts else model,
        eval_dataset=judgments.take(range(7)) if asked.evaluate else None,
        peft_config=tiny_runs.lora() if asked.lora else None,
        objective=OBJECTIVES[asked.objective](judgments.n_annotators),
        **settings(asked),
    )
    if asked.fault and asked.fault_rank in (None, rank):
        trainer.add_callback(Fault(trainer, asked.fault_at, asked.fault))
    trainer.train(resume_from_checkpoint=True if asked.resume else None)
    if trainer.args.fsdp:
        divided = any(isinstance(p, DTensor) for p in trainer.model.parameters())
        assert divided, "the weights are not divided"
    trainer.save_model()


def free_port() -> int:
    """Find a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_group(
    n: int, folder: Path, asked: Options, seconds: float = SECONDS
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Train in ``n`` processes; return the status (or minus the signal) and the output of each process."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"output-{rank}.txt" for rank in range(n)]
    # environment variables that a launcher sets for the process of a rank
    launched = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "ACCELERATE_USE_CPU": "true"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = []
    for rank, output in enumerate(outputs):
        own = launched | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) if n > 1 else {}
        processes.append(FORKS.Process(target=_run, args=(folder, asked, own, output)))
        processes[-1].start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    hung = [process for process in processes if process.exitcode is None]
    for process in hung:
        process.kill()
        process.join()
    outputs = tuple(path.read_text(errors="replace") for path in outputs)
    assert not hung, outputs
    return tuple(process.exitcode for process in processes), outputs


def _run(folder: Path, asked: Options, environment: dict[str, str], output: Path) -> None:
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    train(folder, asked)
