"""The demo at the scale of a test."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from badpo.data.corpora import bundled
from badpo.experiments import demo
from badpo.experiments.small_model import build_model, build_tokenizer

# What `build_model` and `build_tokenizer` are called with here.
SMALL_MODEL = {"hidden_size": 32, "n_layers": 1, "n_heads": 2, "intermediate_size": 64}
SMALL_VOCABULARY = 600


@pytest.fixture
def tiny_demo(monkeypatch):
    """`run_demo` on 120 pairs with a tiny model and eight steps."""
    prompts = bundled.signing_prompts()[:8]
    settings = {"sft_steps": 8, "sft_batch_size": 8, "steps": 8, "batch_size": 8, "max_new_tokens": 8}
    monkeypatch.setattr(demo, "N_PAIRS", 120)
    monkeypatch.setattr(demo.bundled, "signing_prompts", lambda: prompts)
    monkeypatch.setattr(demo, "build_model", partial(build_model, **SMALL_MODEL))
    monkeypatch.setattr(demo, "build_tokenizer", partial(build_tokenizer, vocab_size=SMALL_VOCABULARY))
    monkeypatch.setattr(demo, "SETTINGS", replace(demo.SETTINGS, **settings))
