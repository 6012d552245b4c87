from __future__ import annotations

import json

import numpy as np
import pytest

from badpo.readouts.kl import kl_per_token


def test_ratio_of_sums_by_hand():
    found = kl_per_token([[-1.0, -1.0], [-2.0]], [[-1.5, -1.0], [-1.9]], temperature=0.7, top_p=0.9)
    x = np.array([0.5, 0.0, -0.1])
    assert found.per_token.estimate == pytest.approx(x.sum() / 3)
    assert found.per_token.estimate != pytest.approx((0.25 - 0.1) / 2), (
        "the mean of means is another estimate"
    )
    assert found.k3.estimate == pytest.approx((np.exp(-x) - 1 + x).mean())
    assert found.per_response.estimate == pytest.approx((0.5 - 0.1) / 2)
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (written["n_tokens"], written["n_generations"]) == (3, 2)
    assert (written["temperature"], written["top_p"]) == (0.7, 0.9)
    residual = np.array([0.5 - 2 * x.mean(), -0.1 - x.mean()])
    assert written["se"] == pytest.approx(np.sqrt(2 * (residual**2).sum()) / 3)


def test_a_policy_that_is_its_reference_has_no_distance():
    logps = [[-1.0, -3.0], [-0.2]]
    found = kl_per_token(logps, logps)
    assert (found.per_token.estimate, found.k3.estimate, found.per_token.se) == (0.0, 0.0, 0.0)


def test_both_estimators_find_the_divergence_of_known_distributions():
    rng = np.random.default_rng(0)
    policy, reference = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4])
    truth = float((policy * np.log(policy / reference)).sum())
    answers = [rng.choice(3, size=rng.integers(5, 40), p=policy) for _ in range(800)]
    found = kl_per_token([np.log(policy[y]) for y in answers], [np.log(reference[y]) for y in answers])
    for estimate in (found.per_token, found.k3):
        assert abs(estimate.estimate - truth) < 3 * estimate.se
        assert estimate.se < 0.02
    assert (
        kl_per_token([[-1.0]], [[-0.5]]).k3.estimate > 0 > kl_per_token([[-1.0]], [[-0.5]]).per_token.estimate
    )


def test_standard_error_counts_answers_not_tokens():
    """Tokens of an answer that all agree are one piece of evidence."""
    rng = np.random.default_rng(1)
    levels = rng.normal(size=50)
    few = kl_per_token([np.full(2, level) for level in levels], [np.zeros(2)] * 50)
    many = kl_per_token([np.full(40, level) for level in levels], [np.zeros(40)] * 50)
    assert many.per_token.se == pytest.approx(few.per_token.se)


def test_answers_to_one_prompt_are_one_piece_of_evidence():
    levels = np.random.default_rng(2).normal(size=50)
    policy, reference = [np.full(2, level) for level in levels], [np.zeros(2)] * 50
    once = kl_per_token(policy, reference)
    often = kl_per_token(policy * 20, reference * 20, prompts=np.tile(np.arange(50), 20))
    for name in ("per_token", "k3", "per_response"):
        assert getattr(often, name).se == pytest.approx(getattr(once, name).se)
    assert often.n_generations == 1000


def test_answers_must_match():
    with pytest.raises(ValueError, match="answer 1"):
        kl_per_token([[-1.0], [-1.0, -1.0]], [[-1.0], [-1.0]])
    with pytest.raises(ValueError, match="different answers"):
        kl_per_token([[-1.0]], [])
    with pytest.raises(ValueError, match="no sampled token"):
        kl_per_token([], [])
    with pytest.raises(ValueError, match="not finite"):
        kl_per_token([[-np.inf]], [[-1.0]])
