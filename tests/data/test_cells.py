from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from badpo.data.tables import as_ids, as_messages, read_texts


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0123", "123"], ["0123", "123"]),
        ([123, 123.0, np.int64(5), 1.5], ["123", "123", "5", "1.5"]),
        ([None, float("nan"), pd.NA, pd.NaT, "", "  ", "nan", "None"], [None] * 8),
        ([" a", "a "], [" a", "a "]),
        ([b"bytes", True], ["bytes", "True"]),
    ],
)
def test_ids_are_text(cells, expected):
    assert as_ids(pd.Series(cells, dtype=object)).tolist() == expected


def test_ids_of_a_float_column_lose_the_point_that_a_gap_gave_them():
    assert as_ids(pd.Series([7, None, 8])).tolist() == ["7", None, "8"]


def test_ids_of_a_categorical_column():
    assert as_ids(pd.Series(["x", None, "x"], dtype="category")).tolist() == ["x", None, "x"]


def test_objects_are_no_ids():
    with pytest.raises(ValueError, match="not an identifier"):
        as_ids(pd.Series([{"id": 1}], dtype=object))


def test_texts_are_read_once_for_each_distinct_one():
    messages = [{"role": "user", "content": "hi"}]
    cells = np.empty(5, dtype=object)
    cells[:] = ["hi", messages, None, "hi", np.array(messages, dtype=object)]
    read = read_texts(cells)
    assert read.codes.tolist() == [0, 1, -1, 0, 1]
    assert read.values == ["hi", messages]
    assert read.missing.tolist() == [False, False, True, False, False]
    assert read.faults == {}


def test_a_text_that_looks_like_messages_stays_a_text():
    cells = np.empty(2, dtype=object)
    cells[:] = ['[{"content": "hi", "role": "user"}]', [{"role": "user", "content": "hi"}]]
    read = read_texts(cells)
    assert read.values == cells.tolist()


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (3, "it is of type int"),
        ({"role": "user", "content": "x"}, "it is of type dict"),
        (["x"], "needs a role and a content"),
        ([{"content": "x"}], "needs a role and a content"),
        ([{"role": "user"}], "the content of the user message is not text"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], "calls a tool and has no text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "is not text"),
        ("\ud800", "half of a surrogate pair"),
        ([{"role": "user", "content": "\udc00"}], "half of a surrogate pair"),
    ],
)
def test_faulty_cells_say_why(cell, reason):
    cells = np.empty(2, dtype=object)
    cells[:] = ["fine", cell]
    read = read_texts(cells)
    assert reason in read.faults[1]
    assert read.codes.tolist() == [0, -1]


def test_messages_lose_empty_keys_and_keep_the_others():
    cell = [{"role": "user", "content": "x", "name": "n", "tool_calls": None}]
    assert as_messages(cell) == [{"role": "user", "content": "x", "name": "n"}]


def test_ids_that_differ_behind_a_nul_are_two_and_stay_two_for_pandas():
    ids = as_ids(pd.Series(["w\0a", "w\0b", "w", None], dtype=object))
    assert ids.tolist() == [r"w\x00a", r"w\x00b", "w", None]
    assert pd.factorize(ids)[0].tolist() == [0, 1, 2, -1]
