"""Compare training steps of badpo and of TRL's `DPOTrainer` on a GPU, on the same judgments: `python -m bench.gpu`.

The models have published shapes and random weights, because the time of a step does not depend on the weights. Texts
have realistic lengths. Both trainers compute the reference's log-probabilities before the timing starts. ``--case
tiny`` also runs on a CPU, to test the benchmark.
"""

import gc
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from peft import LoraConfig

from badpo.training.logprobs import remove_adapter
from bench import timing, training
from bench.workloads import Size, build_model, signed, word_tokenizer


class Case(NamedTuple):
    """A model, and the timed forward passes: batching, TRL's judgments in a micro-batch, and badpo's."""

    size: Size
    batch_size: int
    forwards: tuple[tuple[str, int, int], ...]
    lora: dict[str, Any] | None = None


PAPERS_LORA = {"r": 32, "lora_alpha": 64, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
FORWARDS = (("random", 8, 8), ("random", 16, 32), ("grouped", 8, 8), ("grouped", 16, 64))
CASES = {
    "0.5B": Case(Size(896, 24, 14, 2, 4864, 151_936), 64, FORWARDS),
    "8B-lora": Case(Size(4096, 4, 32, 8, 14_336, 128_256), 64, FORWARDS, PAPERS_LORA),
    "tiny": Case(Size(32, 2, 4, 2, 64, 512), 8, (("random", 2, 2), ("grouped", 2, 4))),
}
WARM_UP, N_STEPS = 2, 7
HAS_GPU = torch.cuda.is_available()
CARD = torch.cuda.get_device_name() if HAS_GPU else "a processor"
# Operations per second in bf16 without sparsity, from the data sheets.
PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
SETTINGS = training.SETTINGS | {"use_cpu": not HAS_GPU}
NOTES = (
    f"`micro_batch`: judgments of a forward. Means of {N_STEPS - WARM_UP} optimizer steps after {WARM_UP}, wall clock; "
    "weights in fp32, forwards in bf16 (autocast). `tokens_per_second`: tokens that the model read, without padding. "
    "`mfu`: operations that these tokens need, without attention scores, over the card's peak in bf16. `waits`: "
    "operations of a micro-batch that wait for the GPU. `peak_gib`: most memory allocated in training. `8B-lora`: 4 "
    "of 32 layers. Loss and gradients are those of one step of 8 judgments, relative to TRL's in fp32.",
)


def main() -> None:
    options = timing.options_parser(__doc__.splitlines()[0], list(CASES)).parse_args()
    cases = options.case or ["0.5B", "8B-lora"]
    if cases != ["tiny"] and not HAS_GPU:
        raise SystemExit("bench.gpu needs a CUDA device; on a processor: python -m bench.training")
    training.quiet()
    rows: list[dict[str, Any]] = []
    for name in cases:
        rows += [] if CASES[name].lora else agreement(name)
        for forward in CASES[name].forwards:
            rows += speed(name, *forward)
    timing.report(f"Training steps on {CARD}", rows, options, NOTES, ("torch", "transformers", "trl"))


def agreement(name: str) -> list[dict[str, Any]]:
    """Compute the differences of loss and gradients of one step from TRL's in fp32."""
    size, rows = CASES[name].size, []
    row = training.Row("signed", "random", 2, name, batch_size=8, n_steps=1)
    votes, tokenizer = (
        training.first_judgments(row, signed(size.vocabulary, 1)),
        word_tokenizer(size.vocabulary),
    )
    models = build_model(size, moved=training.MOVED), build_model(size)
    expected = None
    with tempfile.TemporaryDirectory() as folder:
        for is_bf16 in (False, True):
            settings = SETTINGS | {"bf16": is_bf16}
            us = training.ours(row, votes, tokenizer, models, Path(folder), settings)
            for side in (training.trl(row, us, models, Path(folder), settings), us):
                gradients = [gradient.cpu() for gradient in training.watched(side).gradients]
                loss = side.state.log_history[-1]["train_loss"]
                release(side)
                expected = expected or (loss, gradients)
                apart = training.relative_difference(gradients, expected[1])
                shared = {"case": name, "side": "badpo" if side is us else "TRL"}
                differences = {"rel_loss_diff": abs(loss / expected[0] - 1), "rel_grad_diff": apart}
                rows.append(shared | {"precision": "bf16" if is_bf16 else "fp32"} | differences)
    return rows


def speed(name: str, batching: str, trl_takes: int, takes: int) -> list[dict[str, Any]]:
    """Time TRL's and badpo's steps on the same judgments; return one row for each."""
    case = CASES[name]
    row = training.Row("signed", batching, trl_takes, name, case.batch_size, N_STEPS, takes)
    votes, tokenizer = signed(case.size.vocabulary, 1), word_tokenizer(case.size.vocabulary)
    models, adapter = (build_model(case.size), None), LoraConfig(**case.lora) if case.lora else None
    with tempfile.TemporaryDirectory() as folder:
        settings = SETTINGS | {"bf16": True}
        votes = training.first_judgments(row, votes)
        us = training.ours(row, votes, tokenizer, models, Path(folder), settings, adapter)
        fed = [batch["scoring"] for batch in us.get_train_dataloader()]
        n_fed, n_scored = (sum(len(inputs[key]) for inputs in fed) for key in ("input_ids", "target"))
        our_row = timed(us, case, takes, n_fed, n_scored)
        release(us)
        them = training.trl(row, us, models, Path(folder), settings, adapter)
        lengths = np.array([[len(part) for part in pair] for pair in us.encoded.pairs]).reshape(-1, 2, 2)
        n_prompt, n_response = lengths[us.judgments.votes["comparison"]].sum(axis=(0, 1)).tolist()
        trl_row = timed(them, case, trl_takes, n_prompt + n_response, n_response)
        release(them)
    our_row["ratio_vs_trl"] = our_row["judgments_per_second"] / trl_row["judgments_per_second"]
    sides = {"TRL": trl_row, "badpo": our_row}
    return [{"case": name, "side": side, "batching": batching} | each for side, each in sides.items()]


class Clock(transformers.TrainerCallback):
    """Time the training after its warm-up, and detect operations that wait for the GPU in the second step."""

    def on_train_begin(self, args, state, control, **given):
        self.times, self.warned = list[float](), list[warnings.WarningMessage]()

    def on_step_end(self, args, state, control, **given):
        if HAS_GPU and state.global_step == 1:
            self._recording = warnings.catch_warnings(record=True)
            self.warned = self._recording.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        elif HAS_GPU and state.global_step == 2:
            torch.cuda.set_sync_debug_mode("default")
            self._recording.__exit__(None, None, None)
        if state.global_step in (WARM_UP, N_STEPS):
            if HAS_GPU:
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())


def timed(trainer, case: Case, takes: int, n_fed: int, n_scored: int) -> dict[str, Any]:
    """Run a whole training and return its figures; the model reads ``n_fed`` tokens and scores ``n_scored``."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.add_callback(clock := Clock())
    if HAS_GPU:
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    begin, end = clock.times
    seconds = (end - begin) / (N_STEPS - WARM_UP)
    model = remove_adapter(trainer.model)
    n_weights = sum(weight.numel() for weight in model.model.layers.parameters() if weight.ndim == 2)
    n_products = n_weights * n_fed + model.get_output_embeddings().weight.numel() * n_scored
    # frozen weights have no gradient of their own
    operations = n_products * (4 if case.lora else 6)
    peak = next((rate for name, rate in PEAK.items() if name in CARD), None)
    n_waits = sum("synchronizing" in str(warning.message) for warning in clock.warned)
    return {
        "micro_batch": takes,
        "seconds_per_step": seconds,
        "judgments_per_second": case.batch_size / seconds,
        "tokens_per_second": n_fed / N_STEPS / seconds,
        "mfu": operations / N_STEPS / seconds / peak if peak else None,
        "waits": n_waits * takes / case.batch_size if HAS_GPU else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if HAS_GPU else None,
    }


def release(trainer: transformers.Trainer) -> None:
    """Free the memory of a trainer's weights and moments, even if other objects refer to the trainer."""
    trainer.optimizer.state.clear()
    for tensor in [*trainer.model.parameters(), *trainer.model.buffers()]:
        tensor.grad = None
        tensor.data = tensor.new_empty(0)
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
