"""What else compare_behavior, counted by hand."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from badpo.anchoring.attribute_rates import Behavior, answer_rates, compare_behavior
from badpo.anchoring.editors import MarkdownStrip, SignatureSwap, WordSwap
from badpo.attributes import Markdown
from badpo.data.judgments import Judgments
from badpo.readouts.sampled import kl_per_token
from badpo.theory.summaries import cluster_mean

PROMPTS = ["one?", "two?", "three?", "four?"]
COLUMNS = ["prompt", "response_a", "response_b", "winner"]


def answers(texts, ended=True):
    return [SimpleNamespace(text=t, ended=ended, token_ids=tuple(range(len(t.split())))) for t in texts]


FOUR = answers(["a", "b", "c", "d"])
SPELLING = WordSwap("british", [("gray", "grey")])


def test_everything_is_counted_before_and_after():
    before = answers(["Hi.\n\n— Emily Clark", "Yes.\n\n— Tia Clark", "No.", "Perhaps so."])
    texts = ["Hi.\n\n— Greg Clark", "Yes yes.\n\n— Emily Clark", "No.\n\n— Tia Clark", "- So it is."]
    after = answers(texts)
    found = compare_behavior(Behavior(before), Behavior(after), PROMPTS, SignatureSwap())
    sampled = found["sampled"]
    rates = [sampled[name][when]["rate"] for name in ("woman", "black") for when in ("before", "after")]
    assert rates == pytest.approx([1, 2 / 3, 1 / 2, 1 / 3])
    assert (found["editable"]["before"], found["editable"]["after"]) == (0.5, 0.75)
    assert found["editable"]["ci_low"] < 0.25 < found["editable"]["ci_high"]
    assert found["tokens"]["difference"] == pytest.approx((0 + 1 + 3 + 2) / 4)
    assert found["tokens"]["ratio"] == pytest.approx(17 / 11)
    assert found["undeclared"]["hedging"]["difference"] == -0.25
    assert found["undeclared"]["markdown"]["after"] == 0.25
    absent = ("heldout_from", "heldout", "kl_source")
    assert [found[name] for name in absent] == [None] * 3
    json.dumps(found, allow_nan=False)


def test_gap_and_same_group_accuracy_are_paired():
    sides = [("- x", "y", "a"), ("x", "- y", "a"), ("x", "y", "b"), ("x", "y", "a")]
    rows = [(prompt, *side) for prompt, side in zip(PROMPTS, sides, strict=True)]
    votes = Judgments.read(pd.DataFrame(rows, columns=COLUMNS), attributes=[Markdown()])
    margins = [np.array([1.0, 1.0, 1.0, 1.0]), np.array([-1.0, 1.0, 1.0, 1.0])]
    sides = [Behavior(FOUR, margins=m) for m in margins]
    sides.append(replace(sides[1], margins_from="closed form"))
    told, closed = (
        compare_behavior(sides[0], side, PROMPTS, MarkdownStrip(), votes) for side in sides[1:]
    )
    assert (told["heldout_from"], closed["heldout_from"]) == ("measured", "closed form")
    same, gap = told["heldout"]["same"], told["heldout"]["gap"]
    assert same["difference"] == 0.0 and same["ci_high"] == 0.0
    assert (gap["before"], gap["after"], gap["difference"]) == (0.5, 0.0, -0.5)


def test_divergence_is_told_when_it_is_there():
    kl = kl_per_token([[-1.0], [-2.0]], [[-1.5], [-2.5]])
    found = compare_behavior(Behavior(FOUR), Behavior(FOUR, kl, kl), PROMPTS, MarkdownStrip())
    # what is anchored is not among what nobody asked to move
    assert "markdown" not in found["undeclared"] and "hedging" in found["undeclared"]
    assert found["kl_source"]["per_token"] == 0.5
    assert found["kl_reference"]["before"] is None and found["kl_reference"]["after"] == kl


@pytest.mark.parametrize(
    ("editor", "texts", "rate", "counted"),
    [
        (SPELLING, ["so grey", "so gray", "none"], 1 / 2, 2 / 3),
        # one without Markdown counts although nothing can be edited
        (MarkdownStrip(), ["- a", "b", "c d", "# e"], 1 / 2, 1),
        (SPELLING, ["none", "neither"], np.nan, 0),
    ],
)
def test_answers_that_are_a_choice_are_counted(editor, texts, rate, counted):
    found = answer_rates(answers(texts), editor, range(len(texts)))
    assert found.rate == pytest.approx([rate], nan_ok=True) and found.counted == pytest.approx(counted)
    assert np.isnan(found.intervals()[0].low) == (counted == 0)


def test_evidence_is_counted_by_prompt():
    texts = answers(["so grey", "so gray"] * 20)
    alone = answer_rates(texts, SPELLING, range(40)).intervals()[0]
    # the two prompts are always answered alike, twenty times each
    together = answer_rates(texts, SPELLING, [0, 1] * 20).intervals()[0]
    assert (alone.n, together.n) == (40, 2) and together.low < 0.1 < 0.3 < alone.low < 0.5
    assert answer_rates(texts[::2], SPELLING, [0, 1] * 10).intervals()[0].n == 2
    found = compare_behavior(Behavior(texts), Behavior(texts), ["one?", "two?"] * 20, SPELLING)[
        "sampled"
    ]
    assert found["british"]["after"]["n"] == 2 and found["british"]["after"]["low"] < 0.1
    rows = [(f"{p}?", f"{'- ' * (i % 2)}x{i}", f"y{i}", "a") for p in range(4) for i in range(10)]
    votes = Judgments.read(pd.DataFrame(rows, columns=COLUMNS), attributes=[Markdown()])
    # one prompt in four changes, whole
    sides = [Behavior(FOUR, margins=np.where(np.arange(40) < n, -1.0, 1.0)) for n in (0, 10)]
    found = compare_behavior(*sides, PROMPTS, MarkdownStrip(), votes)["heldout"]["same"]
    four_prompts = cluster_mean([-1.0, 0.0, 0.0, 0.0])
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((four_prompts.low, four_prompts.high))
