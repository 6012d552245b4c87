"""Settings of a signed suite, and the arguments of its two stages that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import TrainingArguments

from badpo.experiments.arms import Arm
from badpo.training.config import RENAMED, BADPOConfig


@dataclass(frozen=True)
class SuiteSettings:
    """Everything that decides the figures of a signed suite, besides the corpus and the start model.

    Attributes
    ----------
    held_out : float
        Share of prompts held out, split by prompt.
    sft_steps, sft_batch_size, sft_learning_rate
        The supervised stage; batches count responses.
    steps, warmup, batching, batch_size, learning_rate, bias_learning_rate, beta
        The preference stage; ``warmup`` is the share of steps in which the policy's rate rises, and ``batch_size``
        counts what ``batching`` says (`badpo.training.batches.BATCHING`).
    max_length, max_prompt_length : int
        In tokens, of the paper's encoding.
    max_new_tokens : int
        Longest sampled answer.
    temperature, top_p : float
        How answers are sampled.
    arms : tuple of str
        Keys of `badpo.experiments.arms.ARMS`.
    command : str
        What makes the same runs again; told in the report.
    lora_rank, lora_alpha : int
        Of an adapter on all linear layers; rank 0 trains all weights.
    lora_base : str
        Precision of the weights under an adapter, such as "bfloat16"; "auto" keeps that of the reference.
    micro_batch_size : int
        What one forward pass takes of a batch; 0 takes all of it.
    gradient_checkpointing : bool
        Compute activations again in the backward pass.
    generate_with : str
        What draws the answers that are measured, one of `badpo.readouts.generation_vllm.GENERATORS`.
    """

    held_out: float = 0.25
    sft_steps: int = 400
    sft_batch_size: int = 32
    sft_learning_rate: float = 3e-3
    steps: int = 800
    warmup: float = 0.3
    batching: str = "random"
    batch_size: int = 32
    learning_rate: float = 2.2e-4
    bias_learning_rate: float = 2e-2
    beta: float = 0.1
    max_length: int = 192
    max_prompt_length: int = 96
    max_new_tokens: int = 128
    temperature: float = 0.7
    top_p: float = 0.9
    arms: tuple[str, ...] = ("dpo", "pooled", "shared_mean")
    command: str = "badpo demo"
    lora_rank: int = 0
    lora_alpha: int = 0
    lora_base: str = "auto"
    micro_batch_size: int = 0
    gradient_checkpointing: bool = False
    generate_with: str = "transformers"

    def micro_batches(self, batch_size: int) -> tuple[int, int]:
        """What one forward pass takes of a batch, and how many make the batch.

        Examples
        --------
        >>> SuiteSettings(micro_batch_size=2).micro_batches(32), SuiteSettings().micro_batches(64)
        ((2, 16), (64, 1))
        """
        size = min(self.micro_batch_size or batch_size, batch_size)
        return size, -(-batch_size // size)


SUPERVISED_FIELDS = (
    "held_out",
    "sft_steps",
    "sft_batch_size",
    "sft_learning_rate",
    "max_length",
    "max_prompt_length",
)
# These decide a run's figures only where they are not what they have always been.
ADAPTER_FIELDS = ("lora_rank", "lora_alpha", "lora_base")
PREFERENCE_FIELDS = (
    "steps",
    "warmup",
    "batching",
    "batch_size",
    "learning_rate",
    "bias_learning_rate",
    "beta",
    "max_length",
    "max_prompt_length",
)


def adapter_config(settings: SuiteSettings):
    """The adapter that is trained instead of the weights; None where all weights are."""
    if not settings.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def checkpointing_argument() -> str:
    """What `transformers.TrainingArguments` calls activation checkpointing; an older one has its old name only."""
    new = RENAMED["gradient_checkpointing"]
    return new if hasattr(TrainingArguments, new) else "gradient_checkpointing"


def supervised_settings(settings: SuiteSettings) -> dict:
    """The suite's settings as arguments of the supervised stage."""
    size, accumulation = settings.micro_batches(settings.sft_batch_size)
    return {
        "max_steps": settings.sft_steps,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": accumulation,
        **({checkpointing_argument(): True} if settings.gradient_checkpointing else {}),
        "learning_rate": settings.sft_learning_rate,
        "logging_steps": 50,
    }


def arm_arguments(arm: Arm, settings: SuiteSettings, seed: int, folder: Path, cache: Path) -> BADPOConfig:
    """The trainer's arguments for an arm: the paper's encoding and schedule at the suite's scale."""
    size, accumulation = settings.micro_batches(settings.batch_size)
    return BADPOConfig(
        output_dir=str(folder),
        bias=arm.bias or "none",
        warm_start=arm.warm_start,
        gold_annotators=list(arm.gold),
        beta=settings.beta,
        encoding="paper",
        max_length=settings.max_length,
        max_prompt_length=settings.max_prompt_length,
        batching=settings.batching,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        bias_learning_rate=settings.bias_learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.warmup,
        gradient_checkpointing=settings.gradient_checkpointing,
        reference_cache=str(cache),
        save_strategy="steps",
        save_steps=max(1, settings.steps // 4),
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
