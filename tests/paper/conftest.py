"""The demo at the scale of a test."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from badpo.training.trainer import BADPOTrainer, SupervisedTrainer
from badpo_paper import datasets, demo, schedule, settings
from badpo_paper.settings import build_tokenizer

# What `build_model` and `build_tokenizer` are called with here.
SMALL_MODEL = {"hidden_size": 32, "n_layers": 1, "n_heads": 2, "intermediate_size": 64}
SMALL_VOCABULARY = 600
# Keys of a recipe of eight steps.
SMALL_KEYS = {
    **settings.TINY,
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "bias": {"learning_rate": 0.1},
    "reference": {**settings.TINY["reference"], "max_steps": 8, "per_device_train_batch_size": 8},
}


@contextmanager
def small_demo(arms=demo.ARMS_SHOWN, temperature=0.7, **changes):
    """`run_demo` on 120 pairs with a tiny model and eight steps; changes are keys of its recipe."""
    scale = settings.SCALES["demo"]
    decoding = replace(scale.decoding, max_new_tokens=12, temperature=temperature)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "N_DEMO_PAIRS", 120)
        patch.setattr(datasets, "N_DEMO_PROMPTS", 8)
        patch.setattr(settings, "build_tokenizer", partial(build_tokenizer, vocab_size=SMALL_VOCABULARY))
        patch.setattr(settings, "DEMO_SHAPE", SMALL_MODEL)
        patch.setattr(settings, "DEMO", {**SMALL_KEYS, **changes})
        patch.setattr(demo, "SCALES", {"demo": replace(scale, decoding=decoding)})
        patch.setattr(demo, "ARMS_SHOWN", arms)
        schedule._STAGES.clear()
        yield
    schedule._STAGES.clear()


@pytest.fixture
def tiny_demo():
    """`run_demo` at the scale of a test."""
    with small_demo():
        yield


def count_training(monkeypatch) -> list[str]:
    """The run folders that are trained from now on, the reference among them."""
    trained: list[str] = []
    for kind in (SupervisedTrainer, BADPOTrainer):

        def train(self, *args, _train=kind.train, **kwargs):
            folder = Path(self.args.output_dir).parent
            trained.append(f"{folder.parent.name}/{folder.name}")
            return _train(self, *args, **kwargs)

        monkeypatch.setattr(kind, "train", train)
    return trained
