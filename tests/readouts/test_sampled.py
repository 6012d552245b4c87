"""What is counted in sampled answers, and Markdown at the reference's lengths."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from badpo.attributes import Markdown
from badpo.readouts.sampled import attribute_values, mean_tokens, sampled_rates, style_rates
from badpo.theory.summaries import wilson_interval

NAMES, INDICATOR = ["Emily", "Theo", "Tia", "Brad"], [[1, 0], [0, 1], [1, 1], [0, 0]]


def answer(text, ended=True, n_tokens=3, prompt=0):
    return SimpleNamespace(
        prompt_ids=(prompt,), text=text, ended=ended, token_ids=tuple(range(n_tokens))
    )


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


def test_mean_tokens_counts_every_sampled_token_and_prompts_as_evidence():
    answers = [answer("", n_tokens=n, prompt=n) for n in (2, 4, 9)]
    found, often = mean_tokens(answers), mean_tokens(answers * 20)
    assert (found["mean"], found["n"]) == (5.0, 3)
    assert found["se"] == pytest.approx(np.std([2, 4, 9], ddof=1) / np.sqrt(3))
    assert (often["mean"], often["n"]) == (5.0, 60) and often["se"] == pytest.approx(found["se"])
    assert mean_tokens(answers[:1]) == {"mean": 2.0, "se": None, "n": 1}


def test_attribute_values_pass_the_prompt():
    echoes = SimpleNamespace(measure=lambda prompt, text: float(prompt in text))
    assert attribute_values(echoes, ["a", "x"], [answer("abc"), answer("abc")]).tolist() == [1.0, 0.0]


# -- at the reference's lengths ----------------------------------------------------------------------------------


def by_length(rng, n, mean):
    """Answers whose Markdown depends on their length alone: the longer, the more often."""
    lengths = rng.poisson(mean, n) + 1
    marked = rng.random(n) < np.clip(lengths / 200, 0, 1)
    texts = np.where(marked, "- rice", "rice")
    return [answer(text, n_tokens=lengths[i], prompt=i) for i, text in enumerate(texts)]


def style(generations, reference):
    values = attribute_values(Markdown(), [""] * len(generations), generations)
    return style_rates(values, generations, reference)


def test_a_policy_that_only_shortens_its_answers_keeps_its_matched_rate():
    rng = np.random.default_rng(0)
    reference = by_length(rng, 4000, 100)
    shorter = by_length(rng, 2000, 100) + by_length(rng, 2000, 80)
    found, own = style(shorter, reference), style(reference, reference)
    assert own["matched"] == pytest.approx(own["rate"])
    assert own["rate"] - found["rate"] > 3 * found["se"]
    assert abs(found["matched"] - own["matched"]) < 3 * np.hypot(found["matched_se"], own["se"])


def test_the_same_answers_again_to_the_same_prompts_are_no_more_evidence():
    rng = np.random.default_rng(2)
    reference, policy = by_length(rng, 60, 100), by_length(rng, 60, 90)
    once, often = style(policy, reference), style(policy * 20, reference)
    assert (once.pop("n"), often.pop("n")) == (60, 1200) and often == pytest.approx(once)


def test_an_empty_bin_gets_the_overall_rate():
    answers, reference = (
        [answer("", n_tokens=n, prompt=i) for i, n in enumerate(lengths)]
        for lengths in ([10, 11], [10, 20, 30, 40, 50])
    )
    found = style_rates([1, 0], answers, reference)
    assert (found["matched"], found["tokens"], found["n"]) == (pytest.approx(0.5), 10.5, 2)
