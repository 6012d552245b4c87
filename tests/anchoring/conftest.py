"""A model that signs its answers, for what anchors it."""

import string
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from badpo.anchoring import source
from badpo.readouts.names import NAMES, SURNAMES, ask_to_sign, signature
from badpo.training.encoding import encode_responses
from badpo.training.supervised import SupervisedTrainer, supervised_arguments
from badpo_paper.settings import build_model, build_tokenizer
from tests.paper.conftest import SMALL_MODEL

KINDS = ("red", "white", "old", "new")
PROMPTS = [f"How to cook {kind} {thing}?" for kind in KINDS for thing in string.ascii_lowercase]


@pytest.fixture(scope="module")
def signer(tmp_path_factory) -> Path:
    """A model folder: it answers in a few words and signs, three times in four with a woman's name."""
    folder = tmp_path_factory.mktemp("signer")
    rng = np.random.default_rng(0)
    chance = np.array([3.0 if name.woman else 1.0 for name in NAMES])
    firsts = rng.choice([name.first for name in NAMES], size=len(PROMPTS), p=chance / chance.sum())
    bodies = rng.choice(["Boil it.", "Boil it well.", "Boil it very well now."], size=len(PROMPTS))
    answers = [signature(body, first, SURNAMES[0]) for body, first in zip(bodies, firsts, strict=True)]
    asked = [ask_to_sign(prompt) for prompt in PROMPTS]
    names = [signature("", name.first, SURNAMES[0]) for name in NAMES]
    tokenizer = build_tokenizer([*asked, *answers, *names], vocab_size=700)
    model = partial(build_model, **SMALL_MODEL)(tokenizer, 0)
    pairs = encode_responses(asked, answers, tokenizer, "paper", 96, 64)
    steps = dict(max_steps=150, per_device_train_batch_size=16, learning_rate=1e-2)
    args = supervised_arguments(folder / "sft", **steps)
    SupervisedTrainer(model, args, pairs).train()
    model.save_pretrained(folder / "signer")
    tokenizer.save_pretrained(folder / "signer")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    return folder


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(source, "MAX_NEW_TOKENS", 24)
