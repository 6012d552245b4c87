from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.readouts.kl import kl_per_token


def test_ratio_of_sums_by_hand():
    found = kl_per_token([[-1.0, -1.0], [-2.0]], [[-1.5, -1.0], [-1.9]], temperature=0.7, top_p=0.9)
    x = np.array([0.5, 0.0, -0.1])
    assert found["per_token"] == pytest.approx(x.sum() / 3)
    # the mean of means is another estimate
    assert found["per_token"] != pytest.approx((0.25 - 0.1) / 2)
    assert found["k3"] == pytest.approx((np.exp(-x) - 1 + x).mean())
    assert found["per_response"] == pytest.approx((0.5 - 0.1) / 2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["n_tokens"], found["n_generations"]) == (3, 2)
    assert (found["temperature"], found["top_p"]) == (0.7, 0.9)
    for name, each in (("se", x), ("k3_se", np.exp(-x) - 1 + x)):
        residual = np.array([each[:2].sum() - 2 * each.mean(), each[2] - each.mean()])
        assert found[name] == pytest.approx(np.sqrt(2 * (residual**2).sum()) / 3)


def test_a_policy_that_is_the_reference_and_a_single_answer():
    same = kl_per_token([[-1.0, -3.0], [-0.2]], [[-1.0, -3.0], [-0.2]])
    assert (same["per_token"], same["k3"], same["se"]) == (0.0, 0.0, 0.0)
    one = kl_per_token([[-1.0]], [[-0.5]])
    assert one["k3"] > 0 > one["per_token"] and one["se"] is None


def test_standard_errors_count_prompts_and_not_tokens_or_answers():
    """Tokens of an answer, and answers to a prompt, that all agree are one piece of evidence."""
    levels = np.random.default_rng(1).normal(size=50)
    policy, reference = [np.full(2, level) for level in levels], [np.zeros(2)] * 50
    once = kl_per_token(policy, reference)
    longer = kl_per_token([np.full(40, level) for level in levels], [np.zeros(40)] * 50)
    assert longer["se"] == pytest.approx(once["se"])
    often = kl_per_token(policy * 20, reference * 20, prompts=np.tile(np.arange(50), 20))
    for name in ("se", "k3_se", "per_response_se"):
        assert often[name] == pytest.approx(once[name])
    assert often["n_generations"] == 1000


@pytest.mark.parametrize(
    "reference", [[[-1.0], [-1.0, -1.0, -1.0]], [[-1.0]], [[-1.0], [-np.inf, -1.0]]]
)
def test_answers_must_match_and_be_finite(reference):
    with pytest.raises(ValueError, match="broadcast|shorter|not finite"):
        kl_per_token([[-1.0], [-1.0, -1.0]], reference)
