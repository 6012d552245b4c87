"""The files, the page and the texts of an audit."""

from __future__ import annotations

import html
import json
import os
import re

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.auditing.pool import plain
from badpo.auditing.result import AuditResult
from tests.auditing.planted import votes

FILES = {"audit.json", "annotators.parquet", "annotators.csv", "report.html"}


@pytest.fixture(scope="module")
def result() -> AuditResult:
    return audit(votes(300, 6)[0], [Length()], source="votes.csv")


def test_every_file_says_the_same_an_earlier_audit_goes_and_a_stranger_stays(result, tmp_path):
    (tmp_path / "audit.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    result.people_to_html(tmp_path / "people.html")
    (tmp_path / "reread.csv").write_text("theirs")
    assert result.annotators["annotator"][0] in (tmp_path / "people.html").read_text()
    assert result.write(tmp_path) == tmp_path / "report.html"
    assert set(os.listdir(tmp_path)) == FILES | {"notes.txt"}
    summary = json.loads((tmp_path / "audit.json").read_text())
    assert summary == result.summary and summary["about_single_people"] is True
    annotators = pd.read_parquet(tmp_path / "annotators.parquet")
    assert annotators.attrs == {"about_single_people": True}
    pd.testing.assert_frame_equal(annotators, result.annotators, check_dtype=False)
    spreadsheet = pd.read_csv(tmp_path / "annotators.csv")
    assert spreadsheet["annotator"].tolist() == annotators["annotator"].tolist()
    np.testing.assert_allclose(spreadsheet["deviation"], annotators["deviation"])


def test_a_failure_leaves_the_earlier_audit_as_it_was(result, tmp_path, monkeypatch):
    result.write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(OSError, match="No space"):
        result.write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_single_files_and_texts(result, tmp_path):
    result.to_json(tmp_path / "deep" / "summary.json")
    result.to_html(tmp_path / "page.html")
    assert json.loads((tmp_path / "deep" / "summary.json").read_text()) == result.summary
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert set(os.listdir(tmp_path)) == {"deep", "page.html"}
    assert repr(result) == "AuditResult(1,200 judgments by 6 annotators; attributes: length)"
    assert "length" in str(result)
    assert {"name", "cross_share", "odds"} <= set(result.attributes) and "joint" not in result.attributes
    assert list(result.pool) == ["length"]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(result):
    shown = result._repr_html_()
    assert shown.startswith("<iframe sandbox") and shown.count("<") == 2  # the frame's own tags
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown).group(1))
    assert inside.lstrip().startswith("<!doctype html>")


def test_only_plain_values_have_a_place_in_the_summary():
    assert plain([np.float64("inf"), np.float32(0.5), "so", True, None]) == [None, 0.5, "so", True, None]
    with pytest.raises(TypeError, match="no place"):
        plain({"made": pd.Timestamp("2020-01-01")})
