"""What is counted in sampled answers, and how far their policy is from the reference."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from badpo.readouts.sampled import (
    attribute_values,
    kl_per_token,
    mean_tokens,
    sampled_rates,
    style_rates,
)
from badpo.theory.summaries import cluster_mean, length_matched_mean, wilson_interval

NAMES, INDICATOR = ["Emily", "Theo", "Tia", "Brad"], [[1, 0], [0, 1], [1, 1], [0, 0]]


def answer(text, ended=True, n_tokens=3, prompt=0):
    ids = {"prompt_ids": (prompt,), "token_ids": tuple(range(n_tokens))}
    return SimpleNamespace(text=text, ended=ended, **ids)


def test_rates_are_shares_of_the_right_whole():
    signatures = ("A.\n\n\u2014 Emily Clark", "B.\n\n\u2014 Tia Moore", "C.\n\n\u2014 Brad Lewis")
    answers = [*map(answer, signatures), answer("D.\n\n\u2014 Zebulon Lewis"), answer("E", ended=False)]
    found = sampled_rates(answers, NAMES, INDICATOR, ["woman", "black"])
    assert (found["n"], found["signed"], found["ended"]) == (5, 0.6, 0.8)
    for name, k in (("woman", 2), ("black", 1)):
        wanted = wilson_interval(k, 3)
        assert found[name] == {"rate": wanted.estimate, "low": wanted.low, "high": wanted.high, "n": 3}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    # unsigned answers leave the attribute unknown
    found = sampled_rates([answer("A"), answer("B")], NAMES, INDICATOR, ["woman", "black"])
    assert found["signed"] == 0.0
    assert found["woman"] == {"rate": None, "low": None, "high": None, "n": 0}


def test_mean_tokens_and_standard_errors_count_prompts_as_evidence():
    answers = [answer("", n_tokens=n, prompt=n) for n in (2, 4, 9)]
    found, often = mean_tokens(answers), mean_tokens(answers * 20)
    assert (found["mean"], found["n"]) == (5.0, 3)
    assert found["se"] == pytest.approx(np.std([2, 4, 9], ddof=1) / np.sqrt(3))
    assert (often["mean"], often["n"]) == (5.0, 60) and often["se"] == pytest.approx(found["se"])
    unknown = dict.fromkeys(("se", "low", "high"))
    assert mean_tokens(answers[:1]) == {"mean": 2.0, "n": 1, **unknown}
    assert mean_tokens(answers[:2])["low"] == 0  # of two lengths the interval reaches below nothing
    # tokens of an answer, and answers to a prompt, that all agree are one piece of evidence
    levels = np.random.default_rng(1).normal(size=50)
    policy, reference = [np.full(2, level) for level in levels], [np.zeros(2)] * 50
    once = kl_per_token(policy, reference)
    longer = kl_per_token([np.full(40, level) for level in levels], [np.zeros(40)] * 50)
    assert longer["se"] == pytest.approx(once["se"])
    often = kl_per_token(policy * 20, reference * 20, prompts=np.tile(np.arange(50), 20))
    for name in ("se", "per_response_se"):
        assert often[name] == pytest.approx(once[name])
    assert often["n_generations"] == 1000


def test_style_rates_count_prompts_and_are_matched_to_the_lengths_of_the_reference():
    lengths, prompts, values = [10, 11, 30, 50], [0, 0, 1, 2], [1, 0, 0, 1]
    answers = [answer("", n_tokens=n, prompt=i) for n, i in zip(lengths, prompts, strict=True)]
    longer = [20, 30, 40, 50, 60]
    found = style_rates(values, answers, [answer("", n_tokens=n) for n in longer])
    rate, tokens = cluster_mean(values, prompts), cluster_mean(lengths, prompts)
    matched = length_matched_mean(values, lengths, longer, clusters=prompts)
    assert (found["rate"], found["se"]) == (rate.estimate, rate.se)
    assert (found["matched"], found["matched_se"]) == (matched.estimate, matched.se)
    assert (found["tokens"], found["tokens_se"], found["n"]) == (tokens.estimate, tokens.se, 4)
    echoes = SimpleNamespace(measure=lambda prompt, text: float(prompt in text))
    assert attribute_values(echoes, ["a", "x"], [answer("abc"), answer("abc")]).tolist() == [1.0, 0.0]


def test_divergence_by_hand_of_the_reference_and_of_a_single_answer():
    found = kl_per_token([[-1.0, -1.0], [-2.0]], [[-1.5, -1.0], [-1.9]], temperature=0.7, top_p=0.9)
    x = np.array([0.5, 0.0, -0.1])
    assert found["per_token"] == pytest.approx(x.sum() / 3)
    # the mean of means is another estimate
    assert found["per_token"] != pytest.approx((0.25 - 0.1) / 2)
    assert found["per_response"] == pytest.approx((0.5 - 0.1) / 2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["n_tokens"], found["n_generations"]) == (3, 2)
    assert (found["temperature"], found["top_p"]) == (0.7, 0.9)
    residual = np.array([x[:2].sum() - 2 * x.mean(), x[2] - x.mean()])
    assert found["se"] == pytest.approx(np.sqrt(2 * (residual**2).sum()) / 3)
    same = kl_per_token([[-1.0, -3.0], [-0.2]], [[-1.0, -3.0], [-0.2]])
    assert (same["per_token"], same["se"]) == (0.0, 0.0)
    one = kl_per_token([[-1.0]], [[-0.5]])
    assert one["per_token"] == -0.5 and one["se"] is None


@pytest.mark.parametrize("reference", [[[-1.0], [-1.0] * 3], [[-1.0]], [[-1.0], [-np.inf, -1.0]]])
def test_answers_must_match_and_be_finite(reference):
    with pytest.raises(ValueError, match="broadcast|shorter|not finite"):
        kl_per_token([[-1.0], [-1.0, -1.0]], reference)
