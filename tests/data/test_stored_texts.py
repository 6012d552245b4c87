"""Texts of a large table stand once in a private file, and everything that is read from them is the same."""

from __future__ import annotations

import dataclasses
import os
import pickle
import stat
import tempfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from badpo.attributes import Length, LengthWords, Markdown
from badpo.auditing.audit import audit
from badpo.data import stored_texts
from badpo.data.importers import tables
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.data.stored_texts import TextColumn, TextWriter, numbered_texts
from tests.test_privacy import table


@pytest.fixture
def stored(monkeypatch):
    """Every table counts as large."""
    monkeypatch.setattr(tables, "STORED_BYTES", 1)
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 7)


def odd_texts() -> pd.DataFrame:
    """Votes on texts that are turned, repeated, empty, blank, long and in other scripts."""
    texts = [
        "So.",
        "",
        " \u2003",
        "Ünïcödé \N{PARTY POPPER}",
        "**yes**\n- no",
        "word " * 5_000,
        "=1+1",
        "\x00",
    ]
    rows = [
        {
            "prompt": f"{p % 3}?",
            "response_a": a,
            "response_b": b,
            "winner": "ab"[(p + i) % 2],
            "annotator": str(i % 4),
        }
        for p in range(12)
        for i, (a, b) in enumerate(zip(texts, texts[1:] + texts[:1], strict=True))
    ]
    turned = [
        {**row, "response_a": row["response_b"], "response_b": row["response_a"], "annotator": "turned"}
        for row in rows[:20]
    ]
    return pd.DataFrame([*rows, *turned])


def same(left: Judgments, right: Judgments) -> None:
    for name in ("comparisons", "votes", "annotators", "dropped"):
        expected, found = getattr(left, name), getattr(right, name)
        pd.testing.assert_frame_equal(found.astype(object), expected.astype(object))
    assert right.findings == left.findings
    assert right.fingerprint() == left.fingerprint()
    np.testing.assert_array_equal(right.delta, left.delta)


@pytest.mark.parametrize("make", [table, odd_texts])
def test_a_stored_table_gives_the_same_judgments(make, tmp_path, request):
    make().to_parquet(tmp_path / "v.parquet", row_group_size=11)
    attributes = [Length(), LengthWords(threshold=0), Markdown()]
    expected = Judgments.read(tmp_path / "v.parquet", attributes=attributes)
    request.getfixturevalue("stored")
    found = Judgments.read(tmp_path / "v.parquet", attributes=attributes)
    for name in ("prompt", "response_a", "response_b"):
        assert isinstance(found.comparisons[name].array, TextColumn)
        assert not isinstance(expected.comparisons[name].array, TextColumn)
    same(expected, found)
    of_arrow = Judgments.read(pa.Table.from_pandas(make()), attributes=attributes)
    assert isinstance(of_arrow.comparisons["prompt"].array, TextColumn)
    same(dataclasses.replace(expected, findings=()), dataclasses.replace(of_arrow, findings=()))
    for one, other in zip(expected.split(0.4), found.split(0.4), strict=True):
        same(one, other)
    found.to_parquet(tmp_path / "again.parquet")
    expected.to_parquet(tmp_path / "expected.parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "again.parquet"), pd.read_parquet(tmp_path / "expected.parquet")
    )


def test_a_stored_table_has_the_same_problems(tmp_path, request):
    wrong = odd_texts()
    wrong.loc[3, "prompt"] = None
    wrong.loc[4, "prompt"] = " "
    wrong.loc[5, "response_b"] = None
    wrong.loc[6, "winner"] = "left"
    wrong.to_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError) as expected:
        Judgments.read(tmp_path / "v.parquet")
    request.getfixturevalue("stored")
    with pytest.raises(DataError) as found:
        Judgments.read(tmp_path / "v.parquet")
    assert str(found.value) == str(expected.value)


def test_the_audit_of_a_stored_table_is_the_same(tmp_path, request):
    table().to_parquet(tmp_path / "v.parquet")
    expected = audit(tmp_path / "v.parquet", [Length()])
    request.getfixturevalue("stored")
    found = audit(tmp_path / "v.parquet", [Length()])
    assert found.summary == expected.summary
    pd.testing.assert_frame_equal(found.annotators, expected.annotators)


def test_responses_without_a_prompt_column_are_arranged_as_ever(tmp_path, request):
    rows = {"chosen": ["Why? So.", "How? Thus."], "rejected": ["Why? No.", "How? Not."]}
    pd.DataFrame(rows).to_parquet(tmp_path / "v.parquet")
    expected = Judgments.read(tmp_path / "v.parquet", attributes=[Length()])
    request.getfixturevalue("stored")
    same(expected, Judgments.read(tmp_path / "v.parquet", attributes=[Length()]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8))))
def test_texts_come_back_in_their_places(texts):
    writer = TextWriter()
    half = len(texts) // 2
    codes = [writer.numbers(pa.array(part, pa.string())) for part in (texts[:half], texts[half:])]
    store = writer.finish()
    column = pd.Series(TextColumn(np.concatenate(codes), store))
    assert column.tolist() == texts and list(column) == texts
    assert len(store) == len({text for text in texts if text is not None})
    assert column.isna().tolist() == [text is None for text in texts]
    assert column.iloc[::-1].tolist() == texts[::-1]
    codes_of, distinct = pd.factorize(column)
    expected = pd.factorize(np.array([*texts, None], dtype=object)[:-1])
    assert codes_of.tolist() == expected[0].tolist() and list(distinct) == expected[1].tolist()
    assert pa.array(column).to_pylist() == texts
    assert pd.concat([column, column]).tolist() == texts * 2


def test_the_file_is_private_and_has_no_name(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer = TextWriter()
    writer.numbers(pa.array(["so"]))
    assert list(tmp_path.iterdir()) == []
    assert stat.S_IMODE(os.fstat(writer._file.fileno()).st_mode) == 0o600
    assert list(writer.finish()) == ["so"]


def test_no_room_for_the_texts_is_said(monkeypatch):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = TextWriter()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(ConfigError, match="do not fit into .*TMPDIR"):
            writer.numbers(pa.array(["x" * 100_000]))
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_text_that_is_not_unicode_is_refused(tmp_path, stored):
    import pyarrow.parquet as pq

    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], "<i4")), pa.py_buffer(b"\xff\xfe")]
    )
    good = pa.array(["a"])
    columns = {"prompt": good, "response_a": broken, "response_b": good, "winner": good}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="E102"):
        Judgments.read(tmp_path / "v.parquet")


def test_columns_of_two_stores_are_numbered_together():
    columns = {
        name: pd.Series(TextColumn._from_sequence(texts))
        for name, texts in {"a": ["x", "y"], "b": ["y", "z"]}.items()
    }
    found = numbered_texts(pd.DataFrame(columns), ("a", "b"))
    assert found.numbers.tolist() == [[0, 1], [1, 2]]


def test_reading_a_store_lets_go_of_what_was_read(monkeypatch):
    """With the bound at nothing every piece is let go of, and the texts are the same."""
    monkeypatch.setattr(stored_texts, "_PAGES_KEPT", 0)
    monkeypatch.setattr(stored_texts, "_READ_AHEAD", 3)
    column = TextColumn._from_sequence([f"text {i}" for i in range(50)])
    assert list(column) == [f"text {i}" for i in range(50)]


def test_stored_texts_go_to_another_process():
    column = TextColumn._from_sequence(["a", None, "b"])
    assert list(pickle.loads(pickle.dumps(column))) == ["a", None, "b"]
