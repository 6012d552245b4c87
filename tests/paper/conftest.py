"""The demo with a tiny model, for tests."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from badpo.training.supervised import SupervisedTrainer
from badpo.training.trainer import BADPOTrainer
from badpo_paper import datasets, reproduce, schedule, settings

# Arguments of `build_start` for the tiny model.
SMALL_MODEL = {"hidden_size": 32, "n_layers": 1, "n_heads": 2, "intermediate_size": 64}
SMALL_START = {**SMALL_MODEL, "vocab_size": 600}
# Keys of a recipe of eight steps.
SMALL_KEYS = {
    **settings.TINY,
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "bias": {"learning_rate": 0.1},
    "reference": {**settings.TINY["reference"], "max_steps": 8, "per_device_train_batch_size": 8},
}


@contextmanager
def small_demo(arms=reproduce.DEMO_ARMS, temperature=0.7, **changes):
    """Context in which `run_demo` uses 120 pairs, a tiny model and eight steps; ``changes`` are recipe keys."""
    sizes = {"keys": {"demo": {**SMALL_KEYS, **changes}}, "shapes": {"demo": SMALL_START}}
    decoding = settings.Decoding(max_new_tokens=12, temperature=temperature)
    scale = replace(settings.SCALES["demo"], decoding=decoding, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "N_DEMO_PAIRS", 120)
        patch.setattr(datasets, "N_DEMO_PROMPTS", 8)
        patch.setattr(reproduce, "SCALES", {"demo": scale})
        patch.setattr(reproduce, "DEMO_ARMS", arms)
        schedule._STAGES.clear()
        yield
    schedule._STAGES.clear()


@pytest.fixture
def tiny_demo():
    """Run the demo with a tiny model."""
    with small_demo():
        yield


def count_training(monkeypatch) -> list[str]:
    """Return a list that collects the run folders that are trained from now on, including the reference."""
    trained: list[str] = []
    for kind in (SupervisedTrainer, BADPOTrainer):

        def train(self, *args, _train=kind.train, **kwargs):
            folder = Path(self.args.output_dir).parent
            trained.append(f"{folder.parent.name}/{folder.name}")
            return _train(self, *args, **kwargs)

        monkeypatch.setattr(kind, "train", train)
    return trained
