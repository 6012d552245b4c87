"""The paper's runs on a CUDA device, ours and TRL's, with random weights: `python -m bench.gpu`.

Both sides train with their own ``train()`` on the same judgments; the time of a step is wall clock between the ends of
optimizer steps, each awaited on the device. Weights are random, of the published configurations: what a step costs
does not depend on their values. ``--device cpu --case tiny`` runs the same path on a processor, to test it.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import timing
from bench.model_cost import ModelCost, Reading, our_reading, peak_flops, plain_reading

if TYPE_CHECKING:
    from bench.peers import Ours, Steps

NO_DEVICE = "bench.gpu needs a CUDA device; on a processor: python -m bench.training"
BATCH_SIZE, STEPS_OF_THE_PAPER = 32, 1000
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Case:
    """A model's published configuration, and how it is trained.

    Attributes
    ----------
    config : dict
        What `transformers.AutoConfig.for_model` takes.
    weights : str
        Precision of the weights. Forwards are in bf16 on a CUDA device either way.
    lora : dict or None
        What `peft.LoraConfig` takes; None trains all weights.
    checkpointing : bool
        Activations are computed again in the backward pass, on both sides.
    warm_up, measured : int
        Optimizer steps.
    lengths_divided_by : int
        1 for the paper's sequence lengths.
    """

    config: dict[str, Any]
    weights: str = "float32"
    lora: dict[str, Any] | None = None
    checkpointing: bool = False
    warm_up: int = 3
    measured: int = 20
    lengths_divided_by: int = 1


QWEN = dict(
    model_type="qwen2",
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151_936,
    tie_word_embeddings=True,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
)
LLAMA = dict(
    model_type="llama",
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128_256,
    tie_word_embeddings=False,
    max_position_embeddings=131_072,
    rms_norm_eps=1e-5,
    rope_parameters={
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
)
TINY = QWEN | dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=512,
)
PAPERS_LORA = dict(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
PAPERS = {
    "qwen-0.5b": Case(QWEN),
    "llama-8b-lora": Case(LLAMA, "bfloat16", PAPERS_LORA, checkpointing=True, warm_up=2, measured=8),
}
CASES = PAPERS | {"tiny": Case(TINY, warm_up=1, measured=2, lengths_divided_by=16)}


@dataclass(frozen=True)
class Setting:
    """How judgments make up a step of 32, and how many a micro-batch of either side takes."""

    batching: str
    trl_takes: int
    ours_takes: int


# The paper's 2 x 16, one that fills the device better, and votes of a comparison together.
SETTINGS = (Setting("random", 2, 2), Setting("random", 8, 8), Setting("grouped", 8, 16))

NOTES = (
    "Judgments are those of the case `signed` of `bench/workloads.py` in full-size lengths: at most 384 tokens of a "
    "prompt, 1,280 in all. `micro_batch`: judgments a forward, of 32 a step. `seconds_per_step`: mean of the measured "
    "steps, with all of `train()`. `projected_seconds`: 1,000 such steps, without loading, reference and saving.",
    "`tokens_per_second`: prompt and response of both rows of every judgment, as TRL reads them, so that the sides "
    "compare; `fed_per_second`: what goes through the model, padding left out. `utilisation`: operations that the fed "
    "tokens need in forward and backward, over the card's dense bf16 peak; what is computed again is not counted. "
    "`peak_gib`: largest memory allocated in `train()`, weights and optimizer included. `ratio_vs_trl`: TRL's seconds "
    "over ours. `self_test`: how far our log-probabilities are from the model's own, relative to their spread, as "
    "trained; the trainer refuses more than rounding explains.",
)


def main() -> None:
    parser = timing.options_parser(__doc__.splitlines()[0], list(CASES))
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu is for the case tiny only"
    )
    options = parser.parse_args()
    names = options.case or list(PAPERS)
    if not runs_on(options.device, names):
        parser.exit(2, f"{NO_DEVICE}\n")
    timing.quiet()
    timing.pin_threads()
    rows = [row for name in names for row in measured(name, options.device)]
    timing.report("Training on a GPU", rows, options, NOTES, card_facts(options.device))


def runs_on(device: str, names: list[str]) -> bool:
    """Whether the cases can be run: on CUDA where there is one, the tiny one on a processor."""
    if device == "cpu":
        return names == ["tiny"]
    # with several cards in sight a Trainer splits its batches over them
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    import torch

    return torch.cuda.is_available()


def measured(name: str, device: str) -> list[dict[str, Any]]:
    """Two rows for each setting of a case, TRL's and ours."""
    from bench.workloads import signed, word_tokenizer

    case = CASES[name]
    n_vocabulary = case.config["vocab_size"]
    workload = signed(n_vocabulary, divided_by=case.lengths_divided_by)
    tokenizer, model = word_tokenizer(n_vocabulary), random_model(case, device)
    rows = []
    for setting in SETTINGS:
        rows += [
            {"case": name, **row} for row in both_sides(case, setting, workload, tokenizer, model, device)
        ]
    return rows


def both_sides(case: Case, setting: Setting, workload, tokenizer, model, device: str) -> list[dict[str, Any]]:
    """TRL's and our row of one setting, on the same judgments."""
    from bench.peers import TRL, Ours
    from bench.training import judgments_of_steps

    part = judgments_of_steps(workload, setting.batching, BATCH_SIZE, case.warm_up + case.measured)
    models, takes, lora = (model, None), setting.ours_takes, adapter(case)
    options = training_options(case, device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = allocated(device)
        ours = Ours(
            part, tokenizer, models, setting.batching, takes, BATCH_SIZE // takes, folder, options, lora
        )
        require_packed(ours)
        # the last one is in the precision that is trained in
        self_test = ours.trainer.self_tests[-1].values
        cost = ModelCost.of(ours.trainer.model)
        fed, plain = our_reading(ours, case.warm_up), plain_reading(ours, case.warm_up)
        our_run = trained(ours, case.warm_up, device, before)
        empty(ours)
        before = allocated(device)
        peer = TRL(ours, models, folder, lora, setting.trl_takes, **options)
        trl_run = trained(peer, case.warm_up, device, before)
        empty(peer)
    peak = peak_flops(card_name(device))
    sides = (
        ("TRL", setting.trl_takes, figures(trl_run, plain, plain, cost, peak)),
        ("badpo", takes, figures(our_run, plain, fed, cost, peak)),
    )
    trl_row, our_row = (
        {"batching": setting.batching, "side": side, "micro_batch": micro_batch, **columns}
        for side, micro_batch, columns in sides
    )
    ratio = trl_run.seconds_per_step / our_run.seconds_per_step
    return [trl_row, our_row | {"ratio_vs_trl": ratio, "self_test": self_test}]


def training_options(case: Case, device: str) -> dict[str, Any]:
    """Arguments of both trainers that depend on the case and on the device."""
    on_processor = device == "cpu"
    return dict(
        use_cpu=on_processor,
        bf16=not on_processor,
        gradient_checkpointing=case.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )


# -- a run and its figures -----------------------------------------------------------------------------------


@dataclass
class StepClock:
    """Ends of optimizer steps in seconds, each awaited on the device; told by the trainer through a callback."""

    device: str
    ends: list[float] = field(default_factory=list)

    def callback(self):
        from transformers import TrainerCallback

        clock = self

        class AtStepEnd(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                clock.step_ended()

        return AtStepEnd()

    def step_ended(self) -> None:
        synchronize(self.device)
        self.ends.append(time.perf_counter())

    def seconds_per_step(self, warm_up: int) -> float:
        """Mean over the steps after the first ``warm_up``, which must be at least one."""
        return (self.ends[-1] - self.ends[warm_up - 1]) / (len(self.ends) - warm_up)


@dataclass(frozen=True)
class Run:
    """Seconds of a step, and the most memory that was allocated, in GiB; None on a processor."""

    seconds_per_step: float
    peak_gib: float | None


def trained(side: Steps, warm_up: int, device: str, before: int) -> Run:
    """One epoch of a side's own ``train()``; ``before`` bytes were allocated when its trainer was made."""
    clock = StepClock(device)
    side.trainer.add_callback(clock.callback())
    reset_peak(device)
    side.train()
    return Run(clock.seconds_per_step(warm_up), peak_gib(device, before))


def figures(
    run: Run, plain: Reading, fed: Reading, cost: ModelCost, peak: float | None
) -> dict[str, float | None]:
    """The columns of a row."""
    seconds = run.seconds_per_step
    return {
        "seconds_per_step": seconds,
        "judgments_per_second": BATCH_SIZE / seconds,
        "tokens_per_second": round(plain.tokens / plain.n_steps / seconds),
        "fed_per_second": round(fed.tokens / fed.n_steps / seconds),
        "utilisation": cost.operations(fed) / seconds / peak if peak else None,
        "peak_gib": run.peak_gib,
        "projected_seconds": STEPS_OF_THE_PAPER * seconds,
    }


def random_model(case: Case, device: str):
    """A causal language model of the case's configuration, drawn on the device and kept on the processor."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**case.config, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, case.weights), attn_implementation="sdpa"
        )
    return model.cpu()


def adapter(case: Case):
    """The LoRA configuration, or None."""
    if case.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**case.lora)


def require_packed(ours: Ours) -> None:
    """Raise RuntimeError where our trainer fell back to padding: its reading would be another."""
    from badpo.training.packing import packed_layout

    if ours.trainer._layout is not packed_layout:
        raise RuntimeError("badpo's trainer pads this model instead of packing; the bench measures packs")


def empty(side: Steps) -> None:
    """Free the memory of a side's weights, gradients and optimizer, whoever still refers to its trainer."""
    trainer = side.trainer
    trainer.optimizer.state.clear()
    for tensor in [*trainer.model.parameters(), *trainer.model.buffers()]:
        tensor.grad = None
        tensor.data = tensor.new_empty(0)
    gc.collect()


# -- the device ----------------------------------------------------------------------------------------------


def synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def allocated(device: str) -> int:
    """Bytes allocated now, 0 on a processor."""
    import torch

    return torch.cuda.memory_allocated() if device == "cuda" else 0


def reset_peak(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib(device: str, before: int) -> float | None:
    if device != "cuda":
        return None
    import torch

    return (torch.cuda.max_memory_allocated() - before) / GIBIBYTE


def card_name(device: str) -> str:
    if device != "cuda":
        return ""
    import torch

    return torch.cuda.get_device_name()


def card_facts(device: str) -> dict[str, str]:
    """Card, its peak and the version of CUDA, for the foot of the table."""
    if device != "cuda":
        return {}
    import torch

    peak = peak_flops(card_name(device))
    return {
        "card": card_name(device),
        "peak": f"{peak / 1e12:,.0f} TFLOP/s in bf16" if peak else "unknown, so that utilisation is left out",
        "cuda": str(torch.version.cuda),
    }


if __name__ == "__main__":
    main()
