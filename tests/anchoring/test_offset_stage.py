"""The offset stage on a tiny model: it teaches the shift that it is asked for, and holds the pool in place."""

from __future__ import annotations

import copy
from functools import cache, partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from badpo.anchoring.editors import pool_signatures
from badpo.anchoring.offset_pairs import offset_pairs
from badpo.anchoring.offset_stage import StageSettings, fixed_offset, train_offset
from badpo.anchoring.other_names import other_names, pool_shift
from badpo.anchoring.rates import RateTable, signature_rates
from badpo.anchoring.sampling import ChoiceScorer
from badpo.data.corpora.names import NAMES
from badpo.data.corpora.signatures import signature
from badpo.experiments.small_model import build_model, build_tokenizer
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation
from badpo.training.encoding import encode_prompts
from tests.experiments.conftest import SMALL_MODEL

EDITOR = pool_signatures()
PROMPTS = [f"How long does dish {i} take?" for i in range(60)]
ANSWERS = [signature(f"Boil it for {i} minutes.", NAMES[i].first, "Clark") for i in range(60)]
SETTINGS = StageSettings(
    steps=200, batch_size=16, learning_rate=3e-3, encoding="paper", max_length=128, max_prompt_length=64
)


@cache
def material():
    """A tokenizer, a tiny model, its answers and the contexts of their names."""
    tokenizer = build_tokenizer([*PROMPTS, *ANSWERS], vocab_size=500)
    model = partial(build_model, **SMALL_MODEL)(tokenizer, 0)
    ids = encode_prompts(PROMPTS, tokenizer, "paper", 64)
    answers = [Generation(tuple(p), (), text, True) for p, text in zip(ids, ANSWERS, strict=True)]
    return tokenizer, model, answers, signature_contexts(answers, tokenizer)


def pool_mass(model, tokenizer, contexts) -> float:
    return float(
        np.exp(ChoiceScorer(model, tokenizer, list(EDITOR.names)).name_logps(contexts)).sum(1).mean()
    )


def test_the_stage_teaches_the_shift_and_keeps_the_source(tmp_path):
    tokenizer, model, answers, contexts = material()
    before = signature_rates(model, tokenizer, contexts, EDITOR)
    shift = np.array([-2.0, 2.0])
    others = other_names(model, tokenizer, answers, EDITOR, seed=0, n_draws=200)
    pairs = offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=0, drawn=others)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    asked = np.append(shift, pool_shift(before, shift))
    policy = train_offset(
        copy.deepcopy(model), tokenizer, pairs.train, asked, SETTINGS, 0, tmp_path / "run", tmp_path / "cache"
    )
    after = signature_rates(policy, tokenizer, contexts, EDITOR)
    change = (after.log_probs - before.log_probs).mean(axis=0)
    design = np.column_stack([np.ones(len(change)), before.carries])
    moved = np.linalg.lstsq(design, change, rcond=None)[0]
    assert moved[1:] == pytest.approx(shift, abs=0.4)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert signature_rates(saved, tokenizer, contexts, EDITOR).rate == pytest.approx(after.rate, abs=1e-5)
    mass = [pool_mass(found, tokenizer, contexts) for found in (model, policy)]
    assert mass[1] == pytest.approx(mass[0], rel=0.4)


def test_the_offset_is_minus_beta_times_the_shift_and_nothing_is_learned():
    pairs = offset_pairs(PROMPTS, ANSWERS, EDITOR, seed=0)
    bias = fixed_offset(pairs.train, [3.4, -1.0], beta=0.1)
    assert bias.theta().numpy() == pytest.approx(np.array([[-0.34, 0.1]]))
    assert not list(bias.parameters())


def test_other_names_are_not_of_the_pool_and_stand_where_an_answer_is_signed():
    tokenizer, model, answers, _ = material()
    unsigned = Generation(answers[0].prompt_ids, (), "Boil it.", True)
    found = other_names(model, tokenizer, [unsigned, *answers[:5]], EDITOR, seed=0, n_draws=60)
    assert set(found) == {1, 2, 3, 4, 5}
    assert all(name not in EDITOR.names for names in found.values() for name in names)
    assert other_names(model, tokenizer, [unsigned], EDITOR, seed=0) == {}


def test_the_pools_shift_keeps_its_probability():
    table = RateTable(("woman",), np.log([[0.5, 0.2], [0.3, 0.3]]), np.array([[1.0], [0.0]]))
    shift = np.array([-2.0])
    weights = np.exp(table.log_probs + table.carries @ shift + pool_shift(table, shift)).sum(axis=1)
    assert np.log(weights / np.exp(table.log_probs).sum(axis=1)).mean() == pytest.approx(0.0, abs=1e-12)
