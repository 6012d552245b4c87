"""Looking at the votes again and again while they arrive."""

from __future__ import annotations

import threading
import time

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Column, Length, Markdown
from badpo.auditing.watch import GUARANTEE, AuditMonitor, watch
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from tests.auditing.planted import votes


@pytest.fixture(scope="module")
def table():
    """Three hundred comparisons with four votes each; w0 and w1 lean apart from the others."""
    frame, _ = votes(300, 12, spread=0.0, seed=3)
    longer = frame["response_a"].str.len() > frame["response_b"].str.len()
    differ = frame["response_a"].str.split().str.len() != frame["response_b"].str.split().str.len()
    for name, toward_longer in (("w0", True), ("w1", False)):
        rows = differ & (frame["annotator"] == name)
        frame.loc[rows, "winner"] = np.where(longer[rows] == toward_longer, "a", "b")
    return frame


def test_looking_twice_is_looking_once(table, tmp_path):
    first = watch(table.iloc[:600], [Length()], tmp_path / "state.json")
    second = watch(table, [Length()], tmp_path / "state.json")
    third = watch(table, [Length()], tmp_path / "state.json")
    assert [found.summary["n_new"] for found in (first, second, third)] == [150, 150, 0]
    whole = watch(table, [Length()], tmp_path / "other.json")
    assert second.table.equals(whole.table)
    assert third.table.equals(whole.table)
    assert third.summary["n_counted"] == 300


def test_two_looks_at_once_both_count(table, tmp_path, monkeypatch):
    # the second begins when the first has read the state and has not written it
    state, looks = tmp_path / "state.json", []
    halves = [table.iloc[: len(table) // 2], table.iloc[len(table) // 2 :]]
    save, begun = AuditMonitor.save, threading.Event()

    def slowly(self, path):
        begun.set()
        time.sleep(0.2)
        save(self, path)

    monkeypatch.setattr(AuditMonitor, "save", slowly)
    first = threading.Thread(target=lambda: looks.append(watch(halves[0], [Length()], state)))
    first.start()
    begun.wait(60)
    looks.append(watch(halves[1], [Length()], state))
    first.join()
    assert [look.summary["n_new"] for look in looks] == [150, 150]
    assert AuditMonitor.load(state).n_comparisons == 300


def test_a_state_that_is_a_link_stays_one(table, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    state = tmp_path / "state.json"
    state.symlink_to(tmp_path / "elsewhere" / "state.json")
    watch(table, [Length()], state)
    assert state.is_symlink() and watch(table, [Length()], state).summary["n_new"] == 0


def test_who_stands_out_is_listed_by_pseudonym_with_the_guarantee(table, tmp_path):
    found = watch(table, [Length(), Markdown()], tmp_path / "state.json")
    flagged = found.summary["flagged"]["length"]
    names = pseudonyms(["w0", "w1"])
    assert {row["annotator"]: row["toward"] for row in flagged} == dict(
        zip(names, ("more", "less"), strict=True)
    )
    assert [row["annotator"] for row in flagged] == sorted(names)
    assert found.summary["flagged"]["markdown"] == []
    text = str(found)
    assert GUARANTEE in text
    assert "All comparisons in the table were taken as closed." in text
    assert all(name in text for name in names)
    assert "w0" not in text


def test_a_comparison_waits_for_its_votes(table, tmp_path):
    state = tmp_path / "state.json"
    early = watch(table.iloc[:-2], [Length()], state, votes_per_comparison=4)
    assert (early.summary["n_new"], early.summary["n_open"]) == (299, 1)
    late = watch(table, [Length()], state, votes_per_comparison=4)
    assert (late.summary["n_new"], late.summary["n_open"]) == (1, 0)
    assert "closed when it has 4 judgments" in str(late)


def test_ties_count_toward_the_votes_of_a_comparison(table, tmp_path):
    with_ties = table.copy()
    with_ties.loc[::8, "winner"] = "tie"
    found = watch(with_ties, [Length()], tmp_path / "state.json", votes_per_comparison=4)
    assert (found.summary["n_new"], found.summary["warnings"]) == (300, [])
    without_ids = with_ties.drop(columns="comparison_id")
    found = watch(without_ids, [Length()], tmp_path / "other.json", votes_per_comparison=4)
    assert found.summary["n_open"] == 150
    assert [problem["code"] for problem in found.summary["warnings"]] == ["W421"]
    assert "W421" in str(found)


def test_a_column_says_what_is_closed(table, tmp_path):
    number = table["comparison_id"].str[1:].astype(int)
    marked = table.assign(done=np.where(number < 100, "yes", "no"))
    marked.loc[marked["comparison_id"] == "c5", "done"] = ["yes", "yes", "yes", "no"]
    found = watch(marked, [Length()], tmp_path / "state.json", closed="done")
    assert (found.summary["n_new"], found.summary["n_open"]) == (99, 201)
    assert 'column "done"' in str(found)
    flags = table.assign(done=number < 100)
    assert watch(flags, [Length()], tmp_path / "other.json", closed="done").summary["n_new"] == 100
    with pytest.raises(DataError, match="neither closed nor open"):
        watch(table.assign(done="perhaps"), [Length()], tmp_path / "third.json", closed="done")


def test_a_reopened_comparison_is_refused_and_named_and_its_id_does_nothing_in_a_terminal(table, tmp_path):
    renamed = table.assign(comparison_id=table["comparison_id"].replace("c0", "\x1b[2Jc0\u202e"))
    before = watch(renamed, [Length()], tmp_path / "state.json")
    more = pd.concat([renamed, renamed.iloc[:1].assign(annotator="late")])
    found = watch(more, [Length()], tmp_path / "state.json")
    assert len(found.summary["reopened"]) == 1
    assert found.summary["n_new"] == 0
    assert found.table.equals(before.table)
    assert "W420" in str(found) and "c0" in str(found)
    assert "\x1b" not in str(found) and "\u202e" not in str(found)


@pytest.mark.parametrize(
    ("attributes", "alpha", "message"),
    [
        ([Length(ratio=2.0)], 0.05, "other attributes"),
        ([Markdown()], 0.05, "other attributes"),
        ([Length(), Markdown()], 0.05, "other attributes"),
        ([Length()], 0.2, "a level chosen after looking is none"),
    ],
)
def test_a_state_made_otherwise_is_refused(table, tmp_path, attributes, alpha, message):
    watch(table, [Length()], tmp_path / "state.json")
    with pytest.raises(ConfigError, match=message):
        watch(table, attributes, tmp_path / "state.json", alpha=alpha)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attributes": []}, "needs an attribute"),
        ({"closed": "x", "votes_per_comparison": 4}, "not both"),
        ({"votes_per_comparison": 1}, "2 or more"),
        ({"alpha": 1.5}, "alpha"),
    ],
)
def test_options_that_make_no_sense(table, tmp_path, options, message):
    arguments = {"attributes": [Length()], "state": tmp_path / "state.json"} | options
    with pytest.raises(ConfigError, match=message):
        watch(table, **arguments)
    assert not (tmp_path / "state.json").exists()


def test_without_annotators_there_is_no_one_to_watch(table, tmp_path):
    with pytest.raises(DataError, match="no annotator column"):
        watch(table.drop(columns=["annotator", "annotator_class"]), [Length()], tmp_path / "state.json")


def test_a_continuous_attribute_has_the_unit_of_its_first_votes(table, tmp_path):
    words = table.assign(
        words_a=table["response_a"].str.len() * 10.0, words_b=table["response_b"].str.len() * 10.0
    )
    ten_times = [Column("words", "words_a", "words_b", continuous=True)]
    found = watch(words, ten_times, tmp_path / "state.json")
    names = {row["annotator"] for row in found.summary["flagged"]["words"]}
    assert set(pseudonyms(["w0", "w1"])) <= names


def test_the_side_shown_first(table, tmp_path):
    """Everyone leans the same way toward what they saw first; nobody stands out."""
    from badpo.attributes import Position

    random = np.random.default_rng(0)
    first = random.choice(["a", "b"], len(table))
    winner = np.where(random.random(len(table)) < 0.85, first, np.where(first == "a", "b", "a"))
    found = watch(table.assign(shown_first=first, winner=winner), [Position()], tmp_path / "state.json")
    assert list(found.summary["flagged"].values()) == [[]]
    assert found.table["n_informative"].sum() > 0


def test_a_table_of_votes_is_what_judgments_read(table, tmp_path):
    """The order of rows may change what is highest, never what is counted."""
    shuffled = table.sample(frac=1, random_state=0)
    one = watch(table, [Length()], tmp_path / "one.json").table
    other = watch(shuffled, [Length()], tmp_path / "other.json").table
    np.testing.assert_allclose(one["e_value"], other["e_value"])
    assert one["n_informative"].tolist() == other["n_informative"].tolist()
    assert one["annotator"].nunique() == Judgments.read(table).n_annotators
