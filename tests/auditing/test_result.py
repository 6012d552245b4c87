"""The files, the page and the texts of an audit."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Length
from badpo.auditing.audit import audit
from badpo.auditing.result import AuditResult, plain
from tests.auditing.planted import votes

FILES = {"audit.json", "annotators.parquet", "annotators.csv", "requests.parquet", "report.html"}


@pytest.fixture(scope="module")
def result() -> AuditResult:
    return audit(votes(300, 6)[0], [Length()], source="votes.csv")


def test_every_file_is_written_and_says_the_same(result, tmp_path):
    page = result.write(tmp_path / "audit")
    assert page == tmp_path / "audit" / "report.html"
    assert {path.name for path in page.parent.iterdir()} == FILES
    assert json.loads((page.parent / "audit.json").read_text()) == result.summary
    annotators = pd.read_parquet(page.parent / "annotators.parquet")
    pd.testing.assert_frame_equal(annotators, result.annotators, check_dtype=False)
    spreadsheet = pd.read_csv(page.parent / "annotators.csv")
    assert spreadsheet["annotator"].tolist() == annotators["annotator"].tolist()
    np.testing.assert_allclose(spreadsheet["deviation"], annotators["deviation"])
    assert len(pd.read_parquet(page.parent / "requests.parquet")) == result.summary["next"]["n_requests"]


def test_an_earlier_audit_and_its_people_go_a_stranger_stays_and_what_is_private_says_so(result, tmp_path):
    (tmp_path / "audit.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    result.people_to_html(tmp_path / "people.html")
    assert result.annotators["annotator"][0] in (tmp_path / "people.html").read_text()
    result.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"notes.txt"}
    assert json.loads((tmp_path / "audit.json").read_text())["about_single_people"] is True
    for name in ("annotators.parquet", "requests.parquet"):
        assert pd.read_parquet(tmp_path / name).attrs == {"about_single_people": True}


def test_a_failure_leaves_the_earlier_audit_as_it_was(result, tmp_path, monkeypatch):
    result.write(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(OSError, match="No space"):
        result.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


def test_single_files(result, tmp_path):
    result.to_json(tmp_path / "deep" / "summary.json")
    result.to_html(tmp_path / "page.html")
    assert json.loads((tmp_path / "deep" / "summary.json").read_text()) == result.summary
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert {path.name for path in tmp_path.iterdir()} == {"deep", "page.html"}


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(result):
    shown = result._repr_html_()
    assert shown.startswith("<iframe sandbox")
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown).group(1))
    assert inside.lstrip().startswith("<!doctype html>")
    assert shown.count("<") == 2  # the frame's own tags


def test_texts_and_tables(result):
    assert repr(result) == "AuditResult(1,200 judgments by 6 annotators; attributes: length)"
    assert "length" in str(result)
    assert {"name", "cross_share", "odds"} <= set(result.attributes) and list(result.pool) == ["length"]
    assert result.checks["estimator"]["quality"] == "conditional"


def test_only_plain_values_have_a_place_in_the_summary():
    assert plain([np.float64("inf"), np.float32(0.5), "text", True, None]) == [None, 0.5, "text", True, None]
    with pytest.raises(TypeError, match="no place"):
        plain({"made": pd.Timestamp("2020-01-01")})
