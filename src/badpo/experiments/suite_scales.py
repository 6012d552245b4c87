"""The two scales: small models on the bundled corpora in minutes, and what the authors ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from badpo.data.corpora import multipref
from badpo.experiments.demo import N_PAIRS, SETTINGS
from badpo.experiments.small_model import build_model, build_tokenizer
from badpo.experiments.start_policy import load_model
from badpo.experiments.suite_parts import Corpus
from badpo.experiments.suite_settings import SuiteSettings
from badpo.experiments.suite_stages import (
    Material,
    Scale,
    bundled_fresh,
    bundled_signed,
    bundled_style,
    own_style,
    public_fresh,
    public_signed,
    public_style,
)
from badpo.training.presets import PRESETS
from badpo.training.recipe_blocks import ModelChoice

COMMAND = "badpo reproduce"
JUDGE = "Skywork/Skywork-Reward-V2-Qwen3-1.7B"
N_STYLE_PAIRS = 7177
OTHER_VOCABULARY = 1024
# Share of prompts held out; votes and evaluation prompts are divided by the one number of their scale.
TINY_HELD_OUT = 0.25
PAPER_HELD_OUT = multipref.HELD_OUT


def tiny_material(corpus: Corpus, data: Path | None) -> Material:
    """The bundled votes of a kind, or a user's own for length and Markdown."""
    if corpus.kind == "signed":
        return bundled_signed(N_PAIRS, corpus.data_seed, TINY_HELD_OUT)
    return (
        bundled_style(N_STYLE_PAIRS, corpus.data_seed, TINY_HELD_OUT)
        if data is None
        else own_style(data, TINY_HELD_OUT)
    )


def tiny_model(corpus: Corpus, material: Material):
    """A small Llama from scratch; for ``other`` a Mistral with a smaller vocabulary."""
    tokenizer = tiny_tokenizer(corpus, material)
    build = build_model if corpus.model == "small" else small_mistral
    return build(tokenizer, seed=0), tokenizer


def tiny_tokenizer(corpus: Corpus, material: Material):
    """A tokenizer learned from the corpus's texts."""
    if corpus.model == "small":
        return build_tokenizer(material.texts)
    return build_tokenizer(material.texts, vocab_size=OTHER_VOCABULARY)


def small_mistral(tokenizer, seed: int):
    """A Mistral of the same shape as the small Llama, which attends to the last 256 tokens only."""
    from transformers import MistralConfig, MistralForCausalLM

    shape = build_model(tokenizer, seed).config
    names = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "tie_word_embeddings",
        "pad_token_id",
        "eos_token_id",
        "initializer_range",
    )
    config = MistralConfig(
        **{name: getattr(shape, name) for name in names},
        bos_token_id=None,
        sliding_window=256,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MistralForCausalLM(config)
    return model.float().eval()


def tiny_settings(corpus: Corpus, material: Material) -> SuiteSettings:
    """The demo's settings, for every corpus."""
    return replace(SETTINGS, held_out=material.held_out, command=COMMAND)


def tiny_has(corpus: Corpus) -> bool:
    """There is no large model at this scale."""
    return corpus.model != "large"


PRESET_OF = {"small": "paper-0.5b", "large": "paper-8b-lora", "other": "paper-7b-lora"}


def paper_material(corpus: Corpus, data: Path | None) -> Material:
    """The public corpora, from the Hub or from a local file of the same schema."""
    if corpus.kind == "signed":
        return public_signed(data, corpus.data_seed, PAPER_HELD_OUT)
    return public_style(data, PAPER_HELD_OUT)


def paper_model_named(corpus: Corpus) -> ModelChoice:
    """The start model of the preset, in float32 for full fine-tuning and in bfloat16 under an adapter."""
    preset = PRESETS[PRESET_OF[corpus.model]]
    return ModelChoice(preset["model_name_or_path"], dtype=preset["dtype"])


def paper_model(corpus: Corpus, material: Material):
    """The model of the preset, on a GPU where there is one."""
    choice = paper_model_named(corpus)
    model, tokenizer = load_model(choice.model_name_or_path, choice)
    return model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def paper_settings(corpus: Corpus, material: Material) -> SuiteSettings:
    """The paper's settings (Table `tab:hyperparams`), from the preset of the model."""
    preset = PRESETS[PRESET_OF[corpus.model]]
    batch = preset["per_device_train_batch_size"] * preset["gradient_accumulation_steps"]
    train, _ = material.split()
    return SuiteSettings(
        held_out=material.held_out,
        sft_steps=train.n_comparisons // batch,
        sft_batch_size=batch,
        sft_learning_rate=preset["reference"]["learning_rate"],
        steps=preset["max_steps"],
        warmup=preset["warmup_steps"],
        batching="random",
        batch_size=batch,
        learning_rate=preset["learning_rate"],
        bias_learning_rate=preset["bias"]["learning_rate"],
        beta=preset["beta"],
        max_length=preset["max_length"],
        max_prompt_length=preset["max_prompt_length"],
        max_new_tokens=512,
        command=COMMAND,
        lora_rank=preset.get("lora_r", 0),
        lora_alpha=preset.get("lora_alpha", 0),
        lora_base="bfloat16",
        micro_batch_size=preset["per_device_train_batch_size"],
        gradient_checkpointing=True,
    )


def paper_has(corpus: Corpus) -> bool:
    """Every corpus and model."""
    return True


STAND_IN = (
    "The models that tables name are the paper's; in their place stands one of 0.4 million weights, trained from "
    "scratch on the texts of these votes: compare orders, not numbers."
)
NO_OWN_PAIRS = (
    "the small model reads 192 tokens of prompt and response, and a signature, which stands at a response's end, would "
    "be cut from most pairs of your own"
)
SCALES: dict[str, Scale] = {
    "tiny": Scale(
        "tiny",
        tiny_material,
        tiny_model,
        tiny_settings,
        tiny_has,
        single_seed_arms=("em_dpo",),
        control_seeds="all",
        scales_penalty=True,
        tokenizer=tiny_tokenizer,
        fresh_prompts=bundled_fresh,
        stand_in=STAND_IN,
        own_pairs=NO_OWN_PAIRS,
    ),
    "paper": Scale(
        "paper",
        paper_material,
        paper_model,
        paper_settings,
        paper_has,
        judge=JUDGE,
        fresh_prompts=public_fresh,
        model_named=paper_model_named,
    ),
}
