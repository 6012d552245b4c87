"""Pairs of an offset stage: what differs, and what is held out."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.anchoring.editors import MarkdownStrip, WordSwap, pool_signatures
from badpo.anchoring.offset_stage import offset_pairs
from badpo.data.markers import split_signature
from badpo.data.problems import DataError
from badpo.readouts.names import NAMES, signature

ANSWERS = [signature(f"Boil it for {i} minutes.", NAMES[i % 89].first, "Clark") for i in range(100)]
PROMPTS = [f"How long, number {i}?" for i in range(100)]


def signed_pairs(**options):
    return offset_pairs(PROMPTS, ANSWERS, pool_signatures(), seed=3, **options)


def test_each_answer_gives_a_pair_for_each_attribute_in_both_directions():
    made = signed_pairs(held_out=0.0)
    assert (made.n_answers, made.n_edited, made.unedited) == (100, 100, ())
    assert made.train.n_comparisons == 200 and made.train.n_votes == 400
    assert made.train.votes.groupby("comparison")["sign"].sum().eq(0).all()
    delta = np.abs(made.train.delta[made.train.votes["sign"].to_numpy() > 0])
    assert (delta.sum(axis=1) == 1).all() and delta.sum(axis=0).tolist() == [100, 100]


def test_only_the_first_name_differs():
    frame = signed_pairs().train.comparisons
    for a, b in zip(frame["response_a"], frame["response_b"], strict=True):
        assert split_signature(a)[0] == split_signature(b)[0]
        assert a.split()[-1] == b.split()[-1] == "Clark"
        assert split_signature(a)[1] != split_signature(b)[1]


def test_the_first_cell_is_drawn_and_not_the_policys_own():
    all_women = [signature(f"Boil it, {i}.", "Emily", "Clark") for i in range(200)]
    made = offset_pairs(["?"] * 200, all_women, pool_signatures(), seed=0, held_out=0.0)
    firsts = made.train.comparisons["response_a"].map(lambda text: split_signature(text)[1])
    woman = firsts.map({name.first: name.woman for name in NAMES})
    assert 0.4 < woman.mean() < 0.6


def test_the_split_is_by_answer_and_the_seed_decides():
    made, again = signed_pairs(), signed_pairs()
    parts = [set(part.comparisons["prompt_id"]) for part in (made.train, made.held_out)]
    assert not parts[0] & parts[1] and len(parts[1]) == 10
    assert made.train.comparisons["response_a"].equals(again.train.comparisons["response_a"])


def test_too_few_usable_answers_say_how_many():
    with pytest.raises(DataError, match=r"7 answers of 100 can be edited for woman, black.*needs 50"):
        offset_pairs(PROMPTS, ANSWERS[:7] + ["Boil it."] * 93, pool_signatures(), seed=0)


def test_markdown_is_taken_off_and_words_are_swapped():
    made = offset_pairs(["?"] * 3, ["# A\nb", "plain", "- c d"], MarkdownStrip(), 0, held_out=0.0, fewest=2)
    sides = made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist()
    assert [set(pair) for pair in sides] == [{"# A\nb", "A\nb"}, {"- c d", "c d"}]
    swap = WordSwap("british", [("gray", "grey")])
    made = offset_pairs(["?"], ["so gray"], swap, 0, held_out=0.0, fewest=1)
    assert set(made.train.comparisons.iloc[0][["response_a", "response_b"]]) == {"so gray", "so grey"}
