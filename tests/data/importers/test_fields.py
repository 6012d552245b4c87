from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from badpo.importers.fields import field_paths, personal_fields, prompt_field, side_fields, side_of


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["text1", "text2"], ("text1", "text2")),
        (["Response A", "Response B", "prompt"], ("Response A", "Response B")),
        (["words_a", "words_b", "answer_a", "answer_b"], ("answer_a", "answer_b")),
        (["response_a", "response_b", "answer_a", "answer_b"], None),
        (["response_a", "prompt"], None),
        ([], None),
    ],
)
def test_the_fields_of_the_two_sides(names, expected):
    assert side_fields(names) == expected


@pytest.mark.parametrize(
    ("label", "side"),
    [
        ("A", "a"),
        ("b", "b"),
        ("Response-2", "b"),
        ("response 1 is better", "a"),
        ("B-is-clearly-better", "b"),
        ("right", "b"),
        ("model_b", "b"),
        (1, "a"),
        ("Both", "tie"),
        ("tie (bothbad)", "tie"),
        ("equally good", "tie"),
        ("about", "about"),
        ("not a", "not a"),
        ("prefer B", "b"),
        ("abstain", "abstain"),
        ("", ""),
    ],
)
def test_what_a_label_means(label, side):
    assert side_of(label, "text_x", "text_y", {}) == side


def test_a_field_name_is_its_side_even_when_it_ends_otherwise():
    assert side_of("answer_b", "answer_b", "answer_a", {}) == "a"


def test_the_prompt_is_found_by_name_in_order():
    assert prompt_field(["context", "prompt"]) == "prompt"
    assert prompt_field(["id", "Question"]) == "Question"
    assert prompt_field(["id", "x"]) is None


def test_paths_go_through_lists_and_arrays():
    inner = np.array([{"a": 1}, {"b": {"c": 2}}], dtype=object)
    frame = pd.DataFrame({"n": [1, 2], "v": [inner, None], "empty": [[], None]})
    assert field_paths(frame) == ["n", "v.a", "v.b.c", "empty"]


def test_personal_by_name_or_by_content():
    frame = pd.DataFrame({"reply_to": ["x", "a.b@example.org"], "email": ["", ""], "topic": ["a @ b", "c"]})
    assert personal_fields(list(frame.columns), frame) == ["email", "reply_to"]
