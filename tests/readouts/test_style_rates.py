"""Markdown and length of answers, at the reference's lengths too."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from badpo.attributes import Markdown
from badpo.readouts.sampled import attribute_values, style_rates


def answers(lengths, marked=None):
    marked = [False] * len(lengths) if marked is None else marked
    return [
        SimpleNamespace(prompt_ids=(i,), token_ids=(5,) * n, text="- rice" if is_marked else "rice")
        for i, (n, is_marked) in enumerate(zip(lengths, marked, strict=True))
    ]


def by_length(rng, n, mean):
    """Answers whose Markdown depends on their length alone: the longer, the more often."""
    lengths = rng.poisson(mean, n) + 1
    return answers(lengths, rng.random(n) < np.clip(lengths / 200, 0, 1))


def values(generations):
    return attribute_values(Markdown(), [""] * len(generations), generations)


def test_a_policy_that_only_shortens_its_answers_keeps_its_matched_rate():
    rng = np.random.default_rng(0)
    reference = by_length(rng, 4000, 100)
    shorter = by_length(rng, 2000, 100) + by_length(rng, 2000, 80)
    found, own = (style_rates(values(g), g, reference) for g in (shorter, reference))
    assert own.matched.estimate == pytest.approx(own.raw.estimate)
    assert own.raw.estimate - found.raw.estimate > 3 * found.raw.se
    assert abs(found.matched.estimate - own.matched.estimate) < 3 * np.hypot(found.matched.se, own.raw.se)


def test_the_same_answers_again_to_the_same_prompts_are_no_more_evidence():
    rng = np.random.default_rng(2)
    reference, policy = by_length(rng, 60, 100), by_length(rng, 60, 90)
    once, often = (style_rates(values(g), g, reference) for g in (policy, policy * 20))
    for name in ("raw", "matched", "tokens"):
        few, many = getattr(once, name), getattr(often, name)
        assert many.estimate == pytest.approx(few.estimate) and many.n == 60
        assert many.se == pytest.approx(few.se)
    assert often.to_json()["n"] == 1200


def test_five_bins_add_up():
    rng = np.random.default_rng(1)
    reference, policy = by_length(rng, 300, 100), by_length(rng, 300, 100)
    found = style_rates(values(policy), policy, reference)
    assert len(found.bin_rate) == 5 and found.bin_n.sum() == 300
    assert found.reference_share == pytest.approx([0.2] * 5, abs=0.04)
    assert found.reference_share @ found.bin_rate == pytest.approx(found.matched.estimate)


def test_an_empty_bin_gets_the_overall_rate_and_has_none_of_its_own():
    found = style_rates([1, 0], answers([10, 11]), answers([10, 20, 30, 40, 50]))
    told = found.to_json()
    assert [each["n"] for each in told["bins"]] == [2, 0, 0, 0, 0]
    assert told["bins"][4]["rate"] is None and told["matched"] == pytest.approx(0.5)
    assert told["tokens"] == 10.5 and told["n"] == 2
