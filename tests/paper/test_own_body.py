"""Rates behind own and shared answers are compared prompt by prompt."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.readouts.generation import sample
from badpo.readouts.rates import name_probabilities, signature_contexts
from badpo_paper.name_readouts import own_body_difference
from tests.readouts import policies

INDICATOR = np.array([[i % 2, i < 5] for i in range(len(policies.NAMES))], dtype=float)


def test_a_policy_behind_its_own_answers_and_behind_anothers():
    tok, policy, reference = policies.tokenizer(), policies.qwen2(), policies.gpt2()
    prompts = policies.asked(tok, ["Why?", "How much rice?", "Who?", "When?"])
    bodies = [sample(model, tok, prompts, 12, seed=1) for model in (policy, reference)]
    contexts = [signature_contexts(answers, tok) for answers in bodies]
    own, shared = (name_probabilities(policy, tok, c, policies.NAMES) @ INDICATOR for c in contexts)
    for column, found in enumerate(own_body_difference(own, shared)):
        assert found.estimate == pytest.approx((own - shared)[:, column].mean()) and found.n == 4
    assert own_body_difference(shared, shared)[0].estimate == 0.0


def test_pairing_removes_what_prompts_have_in_common():
    level = np.random.default_rng(0).uniform(0.1, 0.9, (200, 2))
    (found, _) = own_body_difference(level + 0.01, level)
    assert found.estimate == pytest.approx(0.01) and found.se < 1e-9
