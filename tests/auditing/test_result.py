"""The files, the page and the texts of an audit."""

import html
import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Length, Position, Regex
from badpo.auditing.audit import audit
from badpo.auditing.pool_bias import plain
from badpo.auditing.result import AuditResult
from badpo.auditing.watch import watch
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from tests.auditing.planted import votes

FILES = {"audit.json", "annotators.parquet", "annotators.csv", "report.html"}


@pytest.fixture(scope="module")
def result() -> AuditResult:
    return audit(votes(300, 6, votes_each=5)[0], [Length()], source="votes.csv")


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


def test_single_files_texts_and_the_frame_of_a_notebook(result, tmp_path):
    result.to_json(tmp_path / "deep" / "summary.json")
    result.to_html(tmp_path / "page.html")
    assert json.loads((tmp_path / "deep" / "summary.json").read_text()) == result.summary
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert set(os.listdir(tmp_path)) == {"deep", "page.html"}
    told = repr(result).splitlines()
    assert told[0] == "AuditResult: 1,500 judgments by 6 annotators"
    assert told[-1].startswith("next: .plot()")
    row, pool = result.pool.loc["length"], result.summary["attributes"][0]
    assert f"{row['log_odds']:.2f}" in repr(result) and "declare length" in repr(result)
    assert [row["n"], row["ci_low"]] == [pool["n_cross"], pool["ci_low"]]
    assert [row["tau_low"], row["tau_high"]] == result.summary["pool"]["length"]["tau_ci"]
    assert row["n_estimated"] == result.summary["pool"]["length"]["n_estimated"]
    assert "length" in str(result)
    assert {"name", "cross_share", "odds"} <= set(result.attributes) and "joint" not in result.attributes
    shown = result._repr_html_()
    assert shown.startswith("<iframe sandbox") and shown.count("<") == 2  # the frame's own tags
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown).group(1))
    assert inside.lstrip().startswith("<!doctype html>")


def test_the_chart_of_the_page_is_a_picture_that_stands_alone(result, tmp_path):
    drawn = result.plot(drawn_at := tmp_path / "leans.SVG")
    assert drawn_at.read_text() == drawn.svg == drawn._repr_svg_()
    refused = {"length": r"\.svg, not 'length'", 3: "not '3'", drawn_at / "x.svg": "cannot be"}
    for wrong, told in refused.items():
        with pytest.raises(ConfigError, match=told):
            result.plot(wrong)
    with pytest.raises(ConfigError, match="an audit needs a folder"):
        result.write(drawn_at)
    svg = ET.fromstring(drawn.svg)
    style, label = svg[0].text, [part.text for part in svg.iter() if part.get("class") == "label"]
    assert "prefers-color-scheme: dark" in style and "var(" not in style and "{%" not in style
    (row,) = result.summary["attributes"]
    n = round(row["n_cross"], -1)
    assert len(label) == 1 and label[0].startswith("length: ") and label[0].endswith(f"n = about {n:,}")
    table = votes(80, 6)[0]
    few = audit(table[table["annotator"].isin(["w0", "w1", "w2"])], "length")
    with pytest.raises(ConfigError, match="there is no shareable chart: fewer than 5 people"):
        few.plot()
    assert few.pool["n"].item()


@pytest.mark.parametrize("place", [None, 5])
def test_what_is_no_path_number_or_pattern_is_told_in_a_sentence(result, place):
    read = Judgments.read([*votes(4, 6)[0].to_dict("records")])
    for call in (
        lambda: result.write(place),
        lambda: result.to_html(place),
        lambda: watch(read, Length(), place),
        lambda: read.split(held_out="a"),
        lambda: Regex("x", place),
        lambda: audit("", Length()),
    ):
        with pytest.raises((ConfigError, DataError), match="takes|regular expression|empty text"):
            call()


def test_the_terminal_quotes_a_pair_of_the_table_and_no_file_does(result, tmp_path):
    (pair,) = result.pairs
    words = pair["chosen"], pair["other"]
    page = result.write(tmp_path).read_text()
    assert not any(text in page for text in words)
    told = " ".join(str(result).split())
    assert f"{pair['n_chosen']} of {pair['n_votes']} votes were for the longer response" in told
    assert all(text in told for text in words)
    assert not any(text in json.dumps(result.summary) for text in words)
    judgments = Judgments.read([*votes(40, 6)[0].to_dict("records")], attributes=[Length()])
    shown = html.unescape(audit(replace(judgments, source="mine.csv"))._repr_html_())
    assert "<h1>Biases in the votes of <bdi>this table</bdi>" in shown and "mine.csv" not in shown


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("length.log_odds>0", "length.log_odds>0: log_odds is {:.2f}, 95 % confidence interval"),
        ("length.log_odds > {}", None),
        ("length.log_odds >= {}", "length.log_odds >= {}: log_odds is"),
        ("length.log_odds<=9.5e0", "length.log_odds<=9.5e0: log_odds is"),
        ("length.tau>-1", "length.tau>-1: tau is"),
        # votes alone know no level
        (
            "length.shared_bias>-99",
            'bound "length.shared_bias>-99" would test nothing: this audit has no shared_bias',
        ),
        ("width.tau>1", 'bound "width.tau>1" would test nothing: this audit has no width; it has l'),
        ("length.width>1", 'bound "length.width>1" would test nothing: this audit has no width; it'),
        ("length>1", 'bound "length>1": write ATTRIBUTE.FIGURE>NUMBER in quotes'),
    ],
)
def test_a_bound_names_a_figure_and_is_passed_or_not(result, bound, told):
    value = result.attributes["log_odds"][0]
    try:
        said = result.beyond(["length.log_odds>99", bound.format(value)])
    except ConfigError as error:
        said = [str(error)]
    assert [one.startswith(told.format(value)) for one in said] == [True] * (told is not None)


def test_votes_that_all_went_one_way_pass_any_bound_and_only_plain_values_have_a_place(result):
    row = result.summary["attributes"][0] | {"log_odds": None, "ci_high": None, "win_rate": 1.0}
    one_way = AuditResult(result.summary | {"attributes": [row]}, result.annotators)
    (told,) = one_way.beyond(["length.log_odds>50", "length.log_odds<50"])
    assert told.startswith("length.log_odds>50") and one_way.beyond("length.log_odds>50") == [told]
    assert plain([np.float64("inf"), np.float32(0.5), "so", True, None]) == [None, 0.5, "so", True, None]
    with pytest.raises(AttributeError, match="tolist"):
        plain({"made": pd.Timestamp("2020-01-01")})


def with_everything(table: pd.DataFrame) -> AuditResult:
    both = table.assign(shown_first=np.resize(["a", "b"], len(table)))
    known = {"anchors": [f"w{k}" for k in range(5)], "models": ["w5"]}
    return audit(both, [Length(), Position()], quality="marginal", **known)


@pytest.mark.parametrize(
    "make",
    [
        lambda table: audit(table, [Length()]),
        lambda table: audit(table.drop(columns=["annotator", "annotator_class"]), [Length()]),
        lambda table: audit(table[table["annotator"] == "w0"], [Length()]),
        with_everything,
    ],
    ids=["plain", "nobody named", "one", "everything"],
)
def test_the_summary_is_what_its_schema_says(make):
    schema = json.loads((Path(__file__).parents[2] / "docs" / "audit.schema.json").read_text())
    summary = make(votes(200, 8)[0]).summary
    jsonschema.validate(summary, schema)
    row = summary["attributes"][0]
    wrong = summary | {"attributes": [row | {"odds": "2"}], "new": 1}
    told = jsonschema.validators.validator_for(schema)(schema).iter_errors(wrong)
    assert {error.json_path for error in told} == {"$", "$.attributes[0].odds"}
