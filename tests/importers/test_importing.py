"""What `badpo import` writes, and what never leaves the export."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from badpo.importers.formats import import_file
from badpo_paper.corpora.files import read_scored_pairs

ROOT = Path(__file__).parents[2]
LABEL_STUDIO = ROOT / "examples" / "label_studio.json"
EXPORTS = Path(__file__).parent / "exports"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("BADPO_PSEUDONYM_KEY", "a key that only this test knows")


def rows_with(ids) -> list[dict]:
    texts = {"prompt": "Why?", "response_a": "So.", "response_b": "No."}
    return [texts | {"winner": "ab"[i % 2], "annotator": who} for i, who in enumerate(ids)]


def test_no_personal_field_leaves_the_export(tmp_path):
    told = import_file(LABEL_STUDIO, tmp_path / "judgments.parquet")
    written = (tmp_path / "judgments.parquet").read_bytes()
    for personal in (b"example.org", b"Mia", b"2024-03-01"):
        assert personal not in written
    assert (told["makes"], told["judgments"], told["annotators"], told["comparisons"]) == (
        "judgments",
        6,
        3,
        3,
    )
    assert told["personal"] == [
        f"annotations.completed_by.{x}" for x in ("email", "first_name", "last_name")
    ]
    assert {row["reason"]: row["n"] for row in told["dropped"]} == {
        "not submitted": 1,
        "no preference given": 1,
        "tie": 1,
    }
    assert told["mapping"] is None
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "judgments.parquet",
        "judgments.parquet.sha256",
    ]


def test_a_mapping_is_written_only_when_asked_and_for_one_reader(tmp_path):
    mapping = tmp_path / "private" / "who.json"
    told = import_file(LABEL_STUDIO, tmp_path / "j.parquet", mapping=mapping)
    assert told["mapping"] == str(mapping)
    assert stat.S_IMODE(mapping.stat().st_mode) == 0o600
    assert json.loads(mapping.read_text()) == dict(
        zip(pseudonyms(["3", "7", "9"]), ["3", "7", "9"], strict=True)
    )
    with pytest.raises(ConfigError, match="never written over"):
        import_file(LABEL_STUDIO, tmp_path / "j.parquet", mapping=mapping)
    assert sorted(path.name for path in mapping.parent.iterdir()) == ["who.json"]


def test_a_mapping_needs_people(tmp_path):
    rows = [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]
    with pytest.raises(ConfigError, match="nobody to map"):
        import_file(rows, tmp_path / "j.parquet", mapping=tmp_path / "who.json")
    assert list(tmp_path.iterdir()) == []


def test_scored_pairs_are_for_the_signed_corpus(tmp_path):
    told = import_file(EXPORTS / "ultrafeedback.jsonl", tmp_path / "pairs.parquet")
    assert (told["makes"], told["pairs"], told["prompts"]) == ("scored pairs", 2, 2)
    pairs = read_scored_pairs(tmp_path / "pairs.parquet")
    assert pairs["score_chosen"].tolist() == [8.5, 7.0]


def test_nothing_is_written_when_the_table_is_wrong(tmp_path):
    rows = rows_with(["1", None, "3"])
    with pytest.raises(DataError, match="no annotator"):
        import_file(rows, tmp_path / "j.parquet")
    assert list(tmp_path.iterdir()) == []
    told = import_file(rows, tmp_path / "j.parquet", annotators_missing="drop")
    assert told["dropped"] == [{"reason": "no annotator", "n": 1}]


def test_choices_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.parquet"):
        import_file(LABEL_STUDIO, tmp_path / "j.csv")
