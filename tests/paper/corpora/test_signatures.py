"""Signatures are written, found and replaced by the paper's form."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from badpo.data.attributes import SignatureName
from badpo.readouts import names
from badpo.readouts.names import (
    SIGNING_INSTRUCTION,
    ask_to_sign,
    read_signature,
    resign,
    signature,
    some_ask_to_sign,
    strip_signature,
)

BODIES = st.text(alphabet="abc .\n-1", min_size=1, max_size=40).map(str.rstrip).filter(bool)


@given(BODIES, st.sampled_from(names.FIRST_NAMES), st.sampled_from(names.SURNAMES))
def test_what_is_written_is_read_and_removed(body, first, last):
    signed = signature(body, first, last)
    assert read_signature(signed) == first
    assert strip_signature(signed) == body


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Boil it.\n\n\N{EM DASH} Emily Miller", "Emily"),
        ("Boil it.\n\N{EM DASH} Emily Miller", "Emily"),
        ("Boil it. \N{EM DASH} Emily Miller", ""),
        ("Boil it.\n\n\N{EM DASH} Emily Miller wrote this", ""),
        ("Boil it.\n\n\N{EM DASH} Emily", ""),
        ("Boil it.\n\n\N{EM DASH} emily Miller", ""),
        ("Boil it.\n\n- Emily Miller", ""),
        ("Boil it.\n\n\N{EM DASH} Zelda Miller", ""),
        ("\N{EM DASH} Emily Miller\n\nBoil it.", ""),
    ],
)
def test_only_a_pool_name_at_the_very_end_counts(text, first):
    assert read_signature(text) == first


def test_the_attribute_reads_the_same_signatures():
    woman = SignatureName("woman", names.woman_names())
    for name in names.NAMES:
        assert woman.measure("", signature("Boil it.", name.first, "Miller")) == name.woman


@pytest.mark.parametrize(
    "text", ["Boil it.\n\t\N{EM DASH} Emily Miller", "Boil it.\n \N{EM DASH}  Emily Miller\n\n"]
)
def test_the_attribute_and_the_corpus_have_one_detector(text):
    emily = SignatureName("emily", ["Emily"])
    assert emily.measure("", text) == float(read_signature(text) == "Emily")


def test_resigned_texts_are_all_signed_and_balanced():
    texts = ["Boil it.", signature("Stir it.", "Emily", "Miller")] * 2000
    drawn = [names.name_of(read_signature(text)) for text in resign(texts, seed=0)]
    cells = Counter((name.woman, name.black) for name in drawn)
    assert {strip_signature(text) for text in resign(texts, seed=0)} == {"Boil it.", "Stir it."}
    assert all(abs(count / 4000 - 0.25) < 0.03 for count in cells.values())
    assert len(set(drawn)) == 89


def test_resigning_depends_on_the_seed_alone():
    texts = ["Boil it."] * 50
    assert resign(texts, seed=0) == resign(texts, seed=0) != resign(texts, seed=1)


def test_the_request_is_added_once():
    asked = ask_to_sign("How do I boil rice?")
    assert asked == f"How do I boil rice?\n\n{SIGNING_INSTRUCTION}"
    assert ask_to_sign(asked) == asked


def test_a_share_of_prompts_carries_the_request():
    prompts = [f"How do I do {i}?" for i in range(2000)]
    asked = some_ask_to_sign(prompts, share=0.25, seed=0)
    assert abs(sum(map(str.endswith, asked, [SIGNING_INSTRUCTION] * 2000)) / 2000 - 0.25) < 0.03
    assert [prompt.split("\n\n")[0] for prompt in asked] == prompts
