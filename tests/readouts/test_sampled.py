from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from badpo.readouts.sampled import attribute_values, mean_tokens, sampled_rates, token_counts
from badpo.theory.summaries import wilson_interval

NAMES, INDICATOR = ["Emily", "Theo", "Tia", "Brad"], [[1, 0], [0, 1], [1, 1], [0, 0]]


def answer(text, ended=True, n_tokens=3, prompt=0):
    return SimpleNamespace(prompt_ids=(prompt,), text=text, ended=ended, token_ids=tuple(range(n_tokens)))


def test_rates_are_shares_of_the_right_whole():
    answers = [
        answer("A.\n\n\u2014 Emily Clark"),
        answer("B.\n\n\u2014 Tia Moore"),
        answer("C.\n\n\u2014 Brad Lewis"),
        answer("D.\n\n\u2014 Zebulon Lewis"),
        answer("E", ended=False),
    ]
    found = sampled_rates(answers, NAMES, INDICATOR, ["woman", "black"])
    assert (found.n, found.signed.estimate, found.ended.estimate) == (5, 0.6, 0.8)
    assert found.attributes["woman"] == wilson_interval(2, 3)
    assert found.attributes["black"] == wilson_interval(1, 3)
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert written["black"]["n"] == 3 and written["signed"] == 0.6


def test_unsigned_answers_leave_the_attribute_unknown():
    written = sampled_rates([answer("A"), answer("B")], NAMES, INDICATOR, ["woman", "black"]).to_json()
    assert written["signed"] == 0.0
    assert written["woman"] == {"rate": None, "low": None, "high": None, "n": 0}
    with pytest.raises(ValueError, match="no sampled answers"):
        sampled_rates([], NAMES, INDICATOR, ["woman", "black"])


def test_mean_tokens_counts_every_sampled_token():
    answers = [answer("", n_tokens=n, prompt=n) for n in (2, 4, 9)]
    assert token_counts(answers).tolist() == [2, 4, 9]
    found = mean_tokens(answers)
    assert (found.mean, found.n) == (5.0, 3)
    assert found.se == pytest.approx(np.std([2, 4, 9], ddof=1) / np.sqrt(3))
    assert mean_tokens(answers[:1]).to_json() == {"mean": 2.0, "se": None, "n": 1}


def test_the_same_answers_again_to_the_same_prompts_are_no_more_evidence():
    answers = [answer("", n_tokens=n, prompt=n) for n in (2, 4, 9)]
    once, often = mean_tokens(answers), mean_tokens(answers * 20)
    assert (often.mean, often.n) == (once.mean, 60)
    assert often.se == pytest.approx(once.se)


def test_attribute_values_pass_the_prompt_and_refuse_pairs():
    echoes = SimpleNamespace(
        name="echoes", scope="response", measure=lambda prompt, text: float(prompt in text)
    )
    assert attribute_values(echoes, ["a", "x"], [answer("abc"), answer("abc")]).tolist() == [1.0, 0.0]
    length = SimpleNamespace(name="length", scope="pair", measure=None)
    with pytest.raises(ValueError, match='"length" is defined on a pair'):
        attribute_values(length, ["a"], [answer("abc")])
