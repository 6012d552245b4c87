"""Rates behind own and shared answers are compared prompt by prompt."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.readouts.generation import sample
from badpo.readouts.rates import cell_rates, name_probabilities, signature_contexts
from badpo_paper.name_readouts import own_body_difference
from tests.readouts import policies

INDICATOR = np.array([[i % 2, i < 5] for i in range(len(policies.NAMES))], dtype=float)


def rates(probabilities):
    return cell_rates(probabilities, INDICATOR, ("woman", "black"))


def test_a_policy_behind_its_own_answers_and_behind_anothers():
    tok, policy, reference = policies.tokenizer(), policies.qwen2(), policies.gpt2()
    prompts = ["Why?", "How much rice?", "Who?", "When?"]
    bodies = [sample(model, tok, prompts, 12, seed=1) for model in (policy, reference)]
    contexts = [signature_contexts(answers, tok) for answers in bodies]
    own, shared = (rates(name_probabilities(policy, tok, c, policies.NAMES)) for c in contexts)
    found = own_body_difference(own, shared)
    for column, name in enumerate(("woman", "black")):
        assert found[name].estimate == pytest.approx(own.rate[column] - shared.rate[column])
        assert found[name].n == 4
    assert own_body_difference(shared, shared)["woman"].estimate == 0.0


def test_pairing_removes_what_prompts_have_in_common():
    rng = np.random.default_rng(0)
    level = rng.uniform(0.1, 0.9, 200)
    probabilities = np.zeros((200, len(policies.NAMES)))
    probabilities[:, 1], probabilities[:, 0] = level, 1 - level
    moved = probabilities.copy()
    moved[:, 1] += 0.01
    moved[:, 0] -= 0.01
    found = own_body_difference(rates(moved), rates(probabilities))["woman"]
    assert found.estimate == pytest.approx(0.01) and found.se < 1e-9 < rates(probabilities).se[0]


def test_other_prompts_are_an_error():
    with pytest.raises(ValueError, match="not of the same prompts"):
        own_body_difference(rates(np.ones((2, 10)) / 10), rates(np.ones((3, 10)) / 10))
