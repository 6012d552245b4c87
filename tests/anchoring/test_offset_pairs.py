"""Pairs of an offset stage: what differs, what is held out, and what is scored of them."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.anchoring.differing_parts import differing_parts
from badpo.anchoring.editors import MarkdownStrip, WordSwap, pool_signatures
from badpo.anchoring.offset_pairs import offset_pairs
from badpo.data.corpora import bundled
from badpo.data.corpora.names import NAMES
from badpo.data.corpora.signatures import signature
from badpo.data.markers import split_signature
from badpo.data.problems import DataError
from badpo.experiments.small_model import build_tokenizer
from badpo.training.encoding import encode_comparisons

ANSWERS = [signature(f"Boil it for {i} minutes.", NAMES[i % 89].first, "Clark") for i in range(100)]
PROMPTS = [f"How long, number {i}?" for i in range(100)]


def signed_pairs(**options):
    return offset_pairs(PROMPTS, ANSWERS, pool_signatures(), seed=3, **options)


def test_each_answer_gives_a_pair_for_each_attribute_in_both_directions():
    made = signed_pairs(held_out=0.0)
    assert (made.n_answers, made.n_kept) == (100, 100)
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


def test_names_that_the_policy_draws_stand_beside_the_pool():
    made = signed_pairs(held_out=0.0, drawn={0: ["Zoe"], 1: ["Emily", "Zed"]})
    assert made.train.attribute_names == ("woman", "black", "in_pool")
    assert made.train.n_comparisons == 203 or made.train.n_comparisons == 202
    others = made.train.comparisons["response_b"].str.contains("Zoe|Zed")
    signs = made.train.votes["sign"].to_numpy() > 0
    assert made.train.delta[signs][others.to_numpy(), 2].tolist() == [1.0, 1.0]
    assert not made.train.delta[signs][~others.to_numpy(), 2].any()


def test_markdown_is_taken_off_and_words_are_swapped():
    made = offset_pairs(["?"] * 3, ["# A\nb", "plain", "- c d"], MarkdownStrip(), 0, held_out=0.0, fewest=2)
    sides = made.train.comparisons[["response_a", "response_b"]].to_numpy().tolist()
    assert [set(pair) for pair in sides] == [{"# A\nb", "A\nb"}, {"- c d", "c d"}]
    swap = WordSwap("british", [("gray", "grey")])
    made = offset_pairs(["?"], ["so gray"], swap, 0, held_out=0.0, fewest=1)
    assert set(made.train.comparisons.iloc[0][["response_a", "response_b"]]) == {"so gray", "so grey"}


def test_what_is_scored_of_a_pair_is_the_name_and_nothing_behind_it():
    made = signed_pairs(held_out=0.0)
    tokenizer = build_tokenizer([*bundled.signing_prompts()[:20], *ANSWERS], vocab_size=400)
    encoded = encode_comparisons(made.train, tokenizer, "paper", 200, 100)
    parts = differing_parts(encoded, tokenizer)
    frame = made.train.comparisons
    for i in range(0, len(parts), 9):
        for ids, whole, text in zip(
            (parts.a_ids[i], parts.b_ids[i]),
            (encoded.a_ids[i], encoded.b_ids[i]),
            frame.iloc[i][["response_a", "response_b"]],
            strict=True,
        ):
            start = len(parts.prompt_ids[i]) - len(encoded.prompt_ids[i])
            assert np.array_equal(whole[start : start + len(ids)], ids)
            rest = tokenizer.decode(whole[start + len(ids) :], skip_special_tokens=True)
            assert rest == " Clark"
            assert split_signature(text)[1].endswith(tokenizer.decode(ids).strip())
