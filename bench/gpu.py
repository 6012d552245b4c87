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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import timing

NO_DEVICE = "bench.gpu needs a CUDA device; on a processor: python -m bench.training"
BATCH_SIZE, STEPS_OF_THE_PAPER = 32, 1000


@dataclass(frozen=True)
class Case:
    """A model's published configuration and the precision of its weights, and how it is trained.

    Forwards are in bf16 on a CUDA device. ``lora`` is what `peft.LoraConfig` takes; None trains all weights, and with
    it activations are computed again in the backward pass. ``warm_up`` and ``measured`` are optimizer steps.
    """

    config: dict[str, Any]
    weights: str = "float32"
    lora: dict[str, Any] | None = None
    warm_up: int = 3
    measured: int = 20
    lengths_divided_by: int = 1


QWEN = dict(
    **dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24),
    **dict(num_attention_heads=14, num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True),
    **dict(max_position_embeddings=32_768, rms_norm_eps=1e-6),
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
)
LLAMA_ROPE = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA = dict(
    **dict(model_type="llama", hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32),
    **dict(num_attention_heads=32, num_key_value_heads=8, vocab_size=128_256, tie_word_embeddings=False),
    **dict(max_position_embeddings=131_072, rms_norm_eps=1e-5),
    rope_parameters=LLAMA_ROPE | {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
)
TINY = QWEN | dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, vocab_size=512)
TINY |= dict(num_attention_heads=2, num_key_value_heads=1)
PAPERS_LORA = dict(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
PAPERS = {
    "qwen-0.5b": Case(QWEN),
    "llama-8b-lora": Case(LLAMA, "bfloat16", PAPERS_LORA, warm_up=2, measured=8),
}
CASES = PAPERS | {"tiny": Case(TINY, warm_up=1, measured=2, lengths_divided_by=16)}
# Batching, and how many judgments a micro-batch of TRL's and of ours takes: the paper's 2 x 16, one that fills the
# device better, and votes of a comparison together.
SETTINGS = (("random", 2, 2), ("random", 8, 8), ("grouped", 8, 16))
NOTES = (
    "Judgments are those of the case `signed` of `bench/workloads.py` in full-size lengths: at most 384 tokens of a "
    "prompt, 1,280 in all. `micro_batch`: judgments a forward, of 32 a step. `seconds_per_step`: mean of the measured "
    "steps, with all of `train()`. `projected_seconds`: 1,000 such steps, without loading, reference and saving. "
    "`peak_gib`: largest memory allocated in `train()`, weights and optimizer included. `ratio_vs_trl`: TRL's seconds "
    "over ours. `self_test`: how far our log-probabilities are from the model's own, relative to their spread.",
)


def main() -> None:
    parser = timing.options_parser(__doc__.splitlines()[0], list(CASES))
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu for the case tiny only"
    )
    options = parser.parse_args()
    names = options.case or list(PAPERS)
    # with several cards in sight a Trainer splits its batches over them
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    import torch

    if names != ["tiny"] if options.device == "cpu" else not torch.cuda.is_available():
        parser.exit(2, f"{NO_DEVICE}\n")
    timing.quiet()
    timing.pin_threads()
    rows = [row for name in names for row in measured(name, options.device)]
    where = timing.machine()
    if options.device == "cuda":
        where |= {"card": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    timing.report("Training on a GPU", rows, options, NOTES, where)


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
            {"case": name} | row for row in both_sides(case, setting, workload, tokenizer, model, device)
        ]
    return rows


def both_sides(
    case: Case, setting: tuple[str, int, int], workload, tokenizer, model, device: str
) -> list[dict]:
    """TRL's and our row of one setting, on the same judgments.

    Raises
    ------
    RuntimeError
        Our trainer fell back to padding.
    """
    from peft import LoraConfig

    from badpo.training.packing import packed_layout
    from bench.peers import TRL, Ours
    from bench.training import judgments_of_steps

    batching, trl_takes, takes = setting
    part = judgments_of_steps(workload, batching, BATCH_SIZE, case.warm_up + case.measured)
    lora = LoraConfig(**case.lora) if case.lora else None
    settings = {"use_cpu": device == "cpu", "bf16": device == "cuda", "gradient_checkpointing": bool(lora)}
    settings["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    with tempfile.TemporaryDirectory() as name:
        common = (part, tokenizer, (model, None), batching, takes, BATCH_SIZE // takes, Path(name))
        ours = Ours(*common, settings, lora)
        if ours.trainer._layout is not packed_layout:
            raise RuntimeError("badpo's trainer pads this model instead of packing; the bench measures packs")
        # the last one is in the precision that is trained in
        self_test = ours.trainer.self_tests[-1].values
        our_row = trained(ours, case.warm_up, device)
        empty(ours)
        peer = TRL(ours, (model, None), Path(name), lora, trl_takes, **settings)
        trl_row = trained(peer, case.warm_up, device)
        empty(peer)
    ratio = trl_row["seconds_per_step"] / our_row["seconds_per_step"]
    return [
        {"batching": batching, "side": "TRL", "micro_batch": trl_takes} | trl_row,
        {"batching": batching, "side": "badpo", "micro_batch": takes} | our_row
        | {"ratio_vs_trl": ratio, "self_test": self_test},
    ]  # fmt: skip


def trained(side, warm_up: int, device: str) -> dict[str, Any]:
    """The columns of one epoch of a side's own ``train()``."""
    import torch
    from transformers import TrainerCallback

    ends: list[float] = []
    cuda = device == "cuda"

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if cuda:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    side.trainer.add_callback(Clock())
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    side.train()
    seconds = (ends[-1] - ends[warm_up - 1]) / (len(ends) - warm_up)
    return {
        "seconds_per_step": seconds,
        "judgments_per_second": BATCH_SIZE / seconds,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "projected_seconds": STEPS_OF_THE_PAPER * seconds,
    }


def random_model(case: Case, device: str):
    """A causal language model of the case's configuration, drawn on the device and kept on the processor."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**case.config, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    settings = {"dtype": getattr(torch, case.weights), "attn_implementation": "sdpa"}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, **settings)
    return model.cpu()


def empty(side) -> None:
    """Free the memory of a side's weights, gradients and optimizer, whoever still refers to its trainer."""
    trainer = side.trainer
    trainer.optimizer.state.clear()
    for tensor in [*trainer.model.parameters(), *trainer.model.buffers()]:
        tensor.grad = None
        tensor.data = tensor.new_empty(0)
    gc.collect()


if __name__ == "__main__":
    main()
