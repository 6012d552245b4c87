"""The demo at the scale of a test."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from badpo_paper import demo, settings
from badpo_paper import schedule as schedule
from badpo_paper.corpora import bundled
from badpo_paper.settings import TINY, build_model, build_tokenizer

# What `build_model` and `build_tokenizer` are called with here.
SMALL_MODEL = {"hidden_size": 32, "n_layers": 1, "n_heads": 2, "intermediate_size": 64}
SMALL_VOCABULARY = 600
# Keys of a recipe of eight steps.
SMALL_KEYS = {
    **TINY,
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "bias": {"learning_rate": 0.1},
    "reference": {**TINY["reference"], "max_steps": 8, "per_device_train_batch_size": 8},
}


@contextmanager
def small_demo():
    """`run_demo` on 120 pairs with a tiny model and eight steps."""
    prompts = bundled.signing_prompts()[:8]
    tiny = settings.SCALES["tiny"]
    short = replace(tiny, decoding=replace(tiny.decoding, max_new_tokens=12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "N_PAIRS", 120)
        patch.setattr(demo.bundled, "signing_prompts", lambda: prompts)
        patch.setattr(settings, "build_model", partial(build_model, **SMALL_MODEL))
        patch.setattr(settings, "build_tokenizer", partial(build_tokenizer, vocab_size=SMALL_VOCABULARY))
        patch.setattr(demo, "SCALES", {"tiny": short})
        patch.setattr(demo, "TINY", SMALL_KEYS)
        demo.demo_material.cache_clear()
        schedule._STAGES.clear()
        yield
    demo.demo_material.cache_clear()
    schedule._STAGES.clear()


@pytest.fixture
def tiny_demo():
    """`run_demo` at the scale of a test."""
    with small_demo():
        yield
