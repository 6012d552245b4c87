from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from badpo.data.problems import DataError
from badpo.data.tables import read_table
from badpo.importers.fields import Export, personal_fields, side_fields, side_of


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
    export = Export(read_table([{"prompt": "x"}]))
    assert export.prompt_field(["context", "prompt"]) == "prompt"
    assert export.prompt_field(["id", "Question"]) == "Question"
    with pytest.raises(DataError, match="cannot tell which field is prompt; found: id, x"):
        export.prompt_field(["id", "x"])


def test_personal_by_name_or_by_content():
    inner = np.array([{"a": 1}, {"b": {"email": 2}}], dtype=object)
    cells = {
        "reply_to": ["x", "a.b@example.org"],
        "email": ["", ""],
        "topic": ["a @ b", "c"],
        "v": [inner, None],
    }
    assert personal_fields(pd.DataFrame(cells)) == ["reply_to", "email", "v.b.email"]
