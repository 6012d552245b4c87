"""The paper's scale with stand-ins of its architectures: the same presets, code and judge, on models of one layer."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from badpo.experiments import suite_scales
from badpo.experiments.reproduce import run_suites
from badpo.experiments.signed_suite import SuiteSettings
from badpo.experiments.small_model import build_tokenizer
from badpo.experiments.suite_parts import Column, Condition, Corpus
from badpo.experiments.suite_scales import PAPER_HELD_OUT, PRESET_OF, SCALES, paper_model, paper_settings
from badpo.experiments.suite_stages import Material
from tests.experiments.suite_scale import material, suite

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
MODELS = {
    "small": (Qwen2Config, Qwen2ForCausalLM),
    "large": (LlamaConfig, LlamaForCausalLM),
    "other": (MistralConfig, MistralForCausalLM),
}
DTYPES = {"small": torch.float32, "large": torch.bfloat16, "other": torch.bfloat16}


def saved(config, architecture, tokenizer, folder: Path, **more) -> Path:
    torch.manual_seed(0)
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    architecture(config(vocab_size=len(tokenizer), **SHAPE, **ids, **more)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def short_settings(corpus: Corpus, found: Material) -> SuiteSettings:
    """The paper's, of which four steps of four judgments are taken and eight tokens sampled."""
    return replace(
        paper_settings(corpus, found), sft_steps=2, steps=4, batch_size=4, sft_batch_size=4, max_new_tokens=8
    )


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """The paper's scale on local folders: three models, a judge, and bundled votes for the public ones."""
    tokenizer = build_tokenizer(material(Corpus("signed"), None).texts, vocab_size=600)
    for model, (config, architecture) in MODELS.items():
        folder = saved(config, architecture, tokenizer, tmp_path / model)
        preset = suite_scales.PRESETS[PRESET_OF[model]] | {"model_name_or_path": str(folder)}
        monkeypatch.setitem(suite_scales.PRESETS, PRESET_OF[model], preset)
    judge = saved(
        Qwen3Config, Qwen3ForSequenceClassification, tokenizer, tmp_path / "judge", head_dim=8, num_labels=1
    )
    return replace(
        SCALES["paper"],
        material=partial(material, held_out=PAPER_HELD_OUT),
        settings=short_settings,
        judge=str(judge),
    )


@pytest.mark.parametrize("model", list(MODELS))
def test_the_settings_are_those_of_the_table(model):
    found = material(Corpus("signed"), None, PAPER_HELD_OUT)
    settings = paper_settings(Corpus("signed", model), found)
    train, _ = found.judgments.split(0.1, seed=0)
    assert settings.held_out == 0.1
    assert (settings.beta, settings.steps, settings.batch_size) == (0.1, 1000, 32)
    assert settings.micro_batches(settings.batch_size) == (2, 16)
    assert (settings.max_length, settings.max_prompt_length, settings.max_new_tokens) == (1280, 384, 512)
    assert (settings.temperature, settings.top_p, settings.bias_learning_rate) == (0.7, 0.9, 1e-2)
    assert settings.sft_steps == train.n_comparisons // 32
    full = model == "small"
    assert settings.learning_rate == (5e-7 if full else 5e-6)
    assert settings.sft_learning_rate == (1e-5 if full else 1e-4)
    assert (settings.lora_rank, settings.lora_alpha) == ((0, 0) if full else (32, 64))


@pytest.mark.parametrize("model", list(MODELS))
def test_the_precision_is_that_of_the_paper(stand_ins, model):
    loaded, _ = paper_model(Corpus("signed", model), material(Corpus("signed"), None))
    assert next(loaded.parameters()).dtype == DTYPES[model]


@pytest.mark.slow
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("kind", ["signed", "style"])
def test_every_model_and_corpus_goes_the_whole_way(stand_ins, tmp_path, kind, model):
    conditions = [Condition("dpo", "dpo"), Condition("shared_mean", "shared_mean")]
    columns = (Column("RM minus", "judge.rm_minus.mean"), Column("KL", "kl.per_token"))
    asked = suite(*conditions, corpus=Corpus(kind, model), columns=columns)
    (result,) = run_suites([asked], stand_ins, (42,), tmp_path / "out", lambda what, share: None)
    assert result.tables[0].missing == ()
    assert [column.label for column in result.tables[0].columns] == ["RM minus", "KL"]
    folder = tmp_path / "out" / Corpus(kind, model).folder
    has_adapter = (folder / "dpo-s42" / "model" / "adapter_config.json").exists()
    assert has_adapter == (model != "small")
    readouts = json.loads((folder / "shared_mean-s42" / "readouts.json").read_text())
    assert {"tokens", "heldout", "votes", "kl", "theta", "judge"} <= set(readouts)
    first = json.loads((folder / "dpo-s42" / "log.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
