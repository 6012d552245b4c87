"""What else moved, counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from badpo.anchoring.editors import MarkdownStrip, SignatureSwap, WordSwap
from badpo.anchoring.rates import Behavior, RateTable, answer_rates, moved
from badpo.attributes import Markdown
from badpo.data.judgments import Judgments
from badpo.readouts.kl import kl_per_token
from badpo.theory.summaries import cluster_mean

PROMPTS = ["one?", "two?", "three?", "four?"]
COLUMNS = ["prompt", "response_a", "response_b", "winner"]


def answers(texts, ended=True):
    return [SimpleNamespace(text=t, ended=ended, token_ids=tuple(range(len(t.split())))) for t in texts]


def votes() -> Judgments:
    sides = [("- x", "y", "a"), ("x", "- y", "a"), ("x", "y", "b"), ("x", "y", "a")]
    rows = [(prompt, *side) for prompt, side in zip(PROMPTS, sides, strict=True)]
    return Judgments.read(pd.DataFrame(rows, columns=COLUMNS), attributes=[Markdown()])


def test_everything_is_counted_before_and_after():
    before = answers(["Hi.\n\n— Emily Clark", "Yes.\n\n— Tia Clark", "No.", "Perhaps so."])
    after = answers(
        ["Hi.\n\n— Greg Clark", "Yes yes.\n\n— Emily Clark", "No.\n\n— Tia Clark", "- So it is."]
    )
    found = moved(Behavior(before), Behavior(after), PROMPTS, SignatureSwap())
    assert found["sampled"]["woman"]["before"]["rate"] == 1.0
    assert found["sampled"]["woman"]["after"]["rate"] == pytest.approx(2 / 3)
    assert found["sampled"]["black"]["before"]["rate"] == 0.5
    assert found["sampled"]["black"]["after"]["rate"] == pytest.approx(1 / 3)
    assert (found["editable"]["before"], found["editable"]["after"]) == (0.5, 0.75)
    assert found["editable"]["ci_low"] < 0.25 < found["editable"]["ci_high"]
    assert found["tokens"]["difference"] == pytest.approx((0 + 1 + 3 + 2) / 4)
    assert found["tokens"]["ratio"] == pytest.approx(17 / 11)
    assert found["undeclared"]["hedging"]["difference"] == -0.25
    assert found["undeclared"]["markdown"]["after"] == 0.25
    assert (
        found["heldout_from"] is None
        and found["heldout"] is None
        and found["kl_source"] is None
        and found["judge"] is None
    )
    json.dumps(found, allow_nan=False)


def test_gap_and_same_group_accuracy_are_paired():
    texts = answers(["a", "b", "c", "d"])
    margins = [np.array([1.0, 1.0, 1.0, 1.0]), np.array([-1.0, 1.0, 1.0, 1.0])]
    sides = [Behavior(texts, margins=m) for m in margins]
    told = moved(*sides, PROMPTS, MarkdownStrip(), votes())
    found = told["heldout"]
    assert told["heldout_from"] == "measured"
    closed = replace(sides[1], margins_from="closed form")
    assert moved(sides[0], closed, PROMPTS, MarkdownStrip(), votes())["heldout_from"] == "closed form"
    assert found["same"]["difference"] == 0.0 and found["same"]["ci_high"] == 0.0
    assert (found["gap"]["before"], found["gap"]["after"]) == (0.5, 0.0)
    assert found["gap"]["difference"] == -0.5


def test_divergence_and_judge_are_told_when_they_are_there():
    texts = answers(["a", "b", "c", "d"])
    kl = kl_per_token([[-1.0], [-2.0]], [[-1.5], [-2.5]])
    side = Behavior(texts, kl_source=kl, kl_reference=kl)
    scores = np.array([1.0, 2.0, 3.0, 4.0])
    sides = (
        replace(one, judged={"rm": scores + added, "rm_minus": scores})
        for one, added in ((Behavior(texts), 0.0), (side, 0.5))
    )
    found = moved(*sides, PROMPTS, MarkdownStrip())
    # what is anchored is not among what nobody asked to move
    assert "markdown" not in found["undeclared"] and "hedging" in found["undeclared"]
    assert found["kl_source"]["per_token"] == 0.5
    assert found["kl_reference"]["before"] is None
    assert found["judge"]["rm"]["difference"] == 0.5
    assert found["judge"]["rm_minus"]["difference"] == 0.0


def test_rates_of_names_and_of_answers():
    table = RateTable(
        ("a", "b"), np.log([[0.5, 0.2, 0.3]]), np.array([[1, 0], [0, 1], [0, 0]], dtype=float)
    )
    assert table.rate == pytest.approx([0.5, 0.2])
    assert table.of(["b"]).rate == pytest.approx([0.2])
    swap = WordSwap("british", [("gray", "grey")])
    found = answer_rates(answers(["so grey", "so gray", "none"]), swap, range(3))
    assert found.rate == pytest.approx([1 / 2]) and found.counted == pytest.approx(2 / 3)
    interval = answer_rates(answers(["so grey", "so gray"] * 5), swap, range(10)).intervals()[0]
    assert interval.estimate == 0.5 and 0.2 < interval.low < 0.3


def test_what_is_counted():
    """An answer without Markdown counts although nothing can be edited; rates without an answer are not zero."""
    found = answer_rates(answers(["- a", "b", "c d", "# e"]), MarkdownStrip(), range(4))
    assert found.rate == pytest.approx([0.5]) and found.counted == 1.0
    found = answer_rates(answers(["none", "neither"]), WordSwap("british", [("gray", "grey")]), range(2))
    assert np.isnan(found.rate).all() and np.isnan(found.intervals()[0].low)


def test_several_answers_to_a_prompt_are_no_independent_evidence():
    texts = answers(["so grey", "so gray"] * 20)
    swap = WordSwap("british", [("gray", "grey")])
    alone = answer_rates(texts, swap, range(40)).intervals()[0]
    # the two prompts are always answered alike, twenty times each
    together = answer_rates(texts, swap, [0, 1] * 20).intervals()[0]
    assert (alone.n, together.n) == (40, 2) and together.low == 0.0 < 0.3 < alone.low
    sides = Behavior(texts), Behavior(texts)
    sampled = moved(*sides, ["one?", "two?"] * 20, swap)["sampled"]["british"]["after"]
    assert sampled["n"] == 2 and sampled["low"] == 0.0


def test_intervals_of_held_out_votes_are_clustered_by_prompt():
    rows = [
        (f"{p}?", f"- x{i}" if i % 2 else f"x{i}", f"y{i}", "a") for p in range(4) for i in range(10)
    ]
    votes = Judgments.read(pd.DataFrame(rows, columns=COLUMNS), attributes=[Markdown()])
    texts, before = answers(["a", "b", "c", "d"]), np.ones(40)
    # one prompt in four changes, whole
    sides = [Behavior(texts, margins=m) for m in (before, np.where(np.arange(40) < 10, -1.0, 1.0))]
    found = moved(*sides, PROMPTS, MarkdownStrip(), votes)["heldout"]["same"]
    four_prompts = cluster_mean([-1.0, 0.0, 0.0, 0.0])
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((four_prompts.low, four_prompts.high))
