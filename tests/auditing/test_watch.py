"""The monitor that is fed one closed comparison after the other, and looking at the votes while they arrive."""

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

from badpo.attributes import Column, Length, Markdown, Position
from badpo.auditing.watch import GUARANTEE, AuditMonitor, watch
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError
from tests.auditing.planted import votes


def stream(n=120):
    """Closed comparisons of nine people; annotator 0 leans by 2 toward the first of two attributes."""
    random, found = np.random.default_rng(0), []
    for i in range(n):
        people, delta = random.choice(9, 4, replace=False), random.choice([-1.0, 0.0, 1.0], 2)
        chance = 1 / (1 + np.exp(-(random.normal() + 2 * (people == 0) * delta[0])))
        sign = np.where(random.random(4) < chance, 1, -1)
        found.append((f"c{i}", [f"w{k}" for k in people], sign, delta))
    return found


def fed(comparisons, attributes=("length", "markdown"), **options):
    monitor = AuditMonitor(attributes, **options)
    for comparison in comparisons:
        monitor.update(*comparison)
    return monitor


def closed(name="c", people="xy", sign=(1, -1), delta=(1.0,)):
    return name, list(people), list(sign), list(delta)


def test_half_saved_and_loaded_is_as_good_as_all_and_much_evidence_is_still_a_number(tmp_path):
    comparisons, path = stream(250), tmp_path / "deeper" / "state.json"
    fed(comparisons[:60]).save(path)
    resumed, whole = AuditMonitor.load(path), fed(comparisons)
    for comparison in comparisons[60:]:
        resumed.update(*comparison)
    assert resumed.table().equals(whole.table())
    resumed.save(path)
    whole.save(tmp_path / "whole.json")
    assert path.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert whole.table().query("annotator == 'w0' and attribute == 'length'")["flag"].all()
    much = fed([closed(f"c{i}") for i in range(3_000)], ["length"])
    assert np.isfinite(much.table()["e_value"]).all()
    much.save(tmp_path / "state.json")
    assert AuditMonitor.load(tmp_path / "state.json").table().equals(much.table())
    nothing = fed([closed(sign=(1, 1))], ["length"]).table()
    assert nothing["e_value"].tolist() == [1.0, 1.0] and nothing["toward"].tolist() == ["", ""]
    assert len(AuditMonitor(["length"]).table()) == 0


def test_a_comparison_is_counted_once_and_other_votes_are_noticed():
    comparisons = stream(30)
    monitor = fed(comparisons)
    before, (_, people, sign, delta) = monitor.table(), comparisons[0]
    later = ("c0", [*people, "new"], [*sign, 1], delta)
    for other in (("c7", ["w1", "w8"], [1, -1], [1.0, 1.0]), later):
        with pytest.raises(DataError, match=f"comparison {other[0]}") as caught:
            monitor.update(*other)
        assert caught.value.problems[0].code == "E420"
    # the same votes again, their order and the side that stands first are no change
    order = [2, 0, 3, 1]
    monitor.update("c0", [people[i] for i in order], -sign[order], -delta)
    assert monitor.table().equals(before) and monitor.n_comparisons == 30
    assert monitor.has_seen("c7") and not monitor.has_seen("c30")


def test_the_first_of_repeated_votes_counts_and_what_does_not_fit_is_not_counted():
    once = fed([closed(people="12")], ["length"])
    again = fed([closed(5, people=[1, 2, 1], sign=(1, -1, -1))], ["length"])
    assert again.table().equals(once.table()) and again.has_seen("5")
    people = fed([closed(people=["nan", "None"])], ["length"]).table()["annotator"]
    assert "nan" in people.values
    assert fed([closed(people="12", delta=[9.0])], ["length"], units=[9.0]).table().equals(once.table())
    monitor, shape = AuditMonitor(["length"]), [{"delta": [1.0, 1.0]}, {"delta": [np.inf]}]
    other = {"sign": [1]}, {"sign": [1, 0]}, {"people": "", "sign": []}, {"people": [1, pd.NA]}
    for wrong in (*other, *shape):
        with pytest.raises(ValueError, match="delta" if wrong in shape else "sign|no id"):
            monitor.update(*closed(**wrong))
    assert monitor.n_comparisons == 0 and len(monitor.table()) == 0


def test_a_lean_is_told_from_clicking_at_random_and_what_is_not_known_tells_nothing():
    random, monitor = np.random.default_rng(0), AuditMonitor(["length"])
    for i in range(200):
        sign = [1, 1, 1, 1, 1, random.choice([-1, 1]), -1 if i % 2 else 1]
        monitor.update(*closed(f"c{i}", "abcdexy", sign, [float(i % 2)]))
    found = monitor.table().set_index("annotator").loc[["x", "y"]]
    assert found["reading"].tolist() == ["reliability", "bias"]
    assert found["unreliable"].tolist() == [True, False]
    unknown = fed([closed(f"c{i}", "abcx", [1, 1, 1, -1], [np.nan]) for i in range(50)], ["length"])
    assert (unknown.table()[["e_value", "e_unreliable"]] == 1).all(axis=None)


def test_the_state_is_private_and_small_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "state.json"
    fed(stream(60)).save(path)
    small = path.stat().st_size
    fed(stream(1_060)).save(path)
    assert path.stat().st_size - small < 1_000 * 25
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())["annotators"]) == {f"w{k}" for k in range(9)}
    fed(stream(10)).save(path := tmp_path / "state.json")
    content = path.read_bytes()
    damaged = [content[:length] for length in range(0, len(content), 997)]
    others = (
        b"[]",
        b'{"schema": "badpo.audit/1"}',
        b'{"schema": "badpo.watch/5"}',
        b"annotator,winner",
        b"[" * 100_000,
    )
    for text in (*damaged, *others):
        path.write_bytes(text)
        with pytest.raises(ConfigError, match="is not a state of badpo watch") as refused:
            AuditMonitor.load(path)
        # what is not ours may be somebody's only table
        assert ("or delete this file" in str(refused.value)) == (b"badpo.watch/" in text)
    with pytest.raises(ConfigError, match="is not a state of badpo watch"):
        AuditMonitor.load(tmp_path)


SENSELESS = {
    "one or more distinct attributes": ([],),
    "distinct attributes": (["x", "x"],),
    "takes names of attributes": ("length:ratio=1.5",),
    "alpha": (["x"], 0),
    "above 0": (["x"], 0.05, [0.0]),
    "one finite number above 0": (["x"], 0.05, [1.0, 1.0]),
}


@pytest.mark.parametrize("message", SENSELESS)
def test_a_monitor_that_makes_no_sense(message):
    with pytest.raises(ConfigError, match=message):
        AuditMonitor(*SENSELESS[message])


@pytest.fixture(scope="module")
def table():
    """Three hundred comparisons with four votes each; w0 and w1 lean, w2 goes against all where sides are alike."""
    frame = votes(300, 12, spread=0.0, seed=3)[0]
    n_words = [frame[f"response_{side}"].str.split().str.len() for side in "ab"]
    alike, a_longer = n_words[0] == n_words[1], n_words[0] > n_words[1]
    of_w0, of_w1, of_w2 = (frame["annotator"] == name for name in ("w0", "w1", "w2"))
    is_chosen = [alike, of_w0, of_w1], [~of_w2, a_longer, ~a_longer]
    is_a = np.select(*is_chosen, frame["winner"] == "a")
    return frame.assign(winner=np.where(is_a, "a", "b"))


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state.json"


def test_looking_twice_is_looking_once(table, state, tmp_path):
    looks = [watch(table.iloc[:n], [Length()], state) for n in (600, 1200, 1200)]
    assert [found.summary["n_new"] for found in looks] == [150, 150, 0]
    whole = watch(table, [Length()], tmp_path / "other.json", winners={"both": "tie"})
    assert looks[1].table.equals(whole.table) and looks[2].table.equals(whole.table)
    assert looks[2].summary["n_counted"] == 300
    # the order of rows may change what is highest, never what is counted
    shuffled = watch(table.sample(frac=1, random_state=0), [Length()], tmp_path / "third.json").table
    np.testing.assert_allclose(shuffled["e_value"], whole.table["e_value"])
    assert shuffled["n_informative"].tolist() == whole.table["n_informative"].tolist()


def test_two_looks_at_once_both_count(table, state, monkeypatch):
    save = AuditMonitor.save
    monkeypatch.setattr(AuditMonitor, "save", lambda self, path: (time.sleep(0.2), save(self, path)))
    with ThreadPoolExecutor() as pool:
        halves = table.iloc[:600], table.iloc[600:]
        looks = [*pool.map(lambda half: watch(half, [Length()], state), halves)]
    assert [look.summary["n_new"] for look in looks] == [150, 150]
    assert AuditMonitor.load(state).n_comparisons == 300


def test_who_stands_out_is_listed_by_pseudonym_with_the_guarantee(table, state):
    found, names = watch(table, [Length(), Markdown()], state), pseudonyms(["w0", "w1", "w2"])
    flagged = [(row["annotator"], row["toward"]) for row in found.summary["flagged"]["length"]]
    assert flagged == sorted(zip(names, ("more", "less"), strict=False))
    assert [*found.summary["unreliable"]] == names[2:]
    assert str(found).count("  biased") == 2
    assert found.summary["flagged"]["markdown"] == []
    said = (GUARANTEE, "badpo watch treated all comparisons in the table as closed.", *names)
    assert all(text in str(found) for text in said) and "w0" not in str(found)
    with pytest.raises(DataError, match="no annotator column"):
        watch(table.drop(columns=["annotator", "annotator_class"]), [Length()], state)


@pytest.mark.parametrize("changed", [{"winner": "a"}, {"annotator": "me", "annotator_class": "x"}])
def test_votes_that_tell_nobody_apart_are_said_to(table, state, changed):
    rows = table.drop_duplicates("comparison_id") if "annotator" in changed else table
    found = watch(rows.assign(**changed), [Length(name="length: words")], state)
    assert [problem["code"] for problem in found.summary["warnings"]] == ["W422"]
    assert "no difference between annotators" in str(found)


def test_a_comparison_waits_for_its_votes(table, state):
    for rows, counts in ((table[:3], (0, 1)), (table[:-2], (299, 1)), (table, (1, 0))):
        found = watch(rows, [Length()], state, votes_per_comparison=4)
        assert (found.summary["n_new"], found.summary["n_open"]) == counts
        assert found.summary["warnings"] == []
    assert "closed when it has 4 judgments" in str(found)


@pytest.mark.parametrize("ties", [False, True])
def test_a_repeated_row_neither_closes_nor_reopens_a_comparison(table, state, tmp_path, ties):
    if ties:
        table = table.assign(winner=table["winner"].where(table.index % 40 != 5, "tie"))
    early = pd.concat([table[:3], table[2:3]])  # three of four votes, the last one sent twice
    found = watch(early, [Length()], state, votes_per_comparison=4)
    assert (found.summary["n_new"], found.summary["n_open"]) == (0, 1)
    twice = pd.concat([table, table[2:3], table[40:41]])
    for rows, n_new in ((table, 300), (twice, 0)):
        found = watch(rows, [Length()], state, votes_per_comparison=4)
        assert (found.summary["n_new"], found.summary["reopened"]) == (n_new, [])
    again = watch(twice, [Length()], tmp_path / "other.json", votes_per_comparison=4)
    np.testing.assert_allclose(again.table["e_value"], found.table["e_value"])


def test_ties_count_toward_the_votes_of_a_comparison(table, state, tmp_path):
    with_ties = table.replace({"annotator": {"w0": "worker-0"}})
    with_ties["comparison_id"] += " worker-0"  # which stays nowhere
    with_ties.loc[::8, "winner"] = "tie"
    found = watch(with_ties, [Length()], state, votes_per_comparison=4)
    assert (found.summary["n_new"], found.summary["warnings"]) == (300, [])
    without_ids = with_ties.drop(columns="comparison_id")
    found = watch(without_ids, [Length()], tmp_path / "other.json", votes_per_comparison=4)
    assert (found.summary["n_open"], found.summary["warnings"]) == (0, [])
    Judgments.read(with_ties).to_parquet(tmp_path / "imported.parquet")
    imported = tmp_path / "imported.parquet"
    found = watch(imported, [Length()], tmp_path / "third.json", votes_per_comparison=4)
    assert found.summary["n_open"] == 150
    assert [problem["code"] for problem in found.summary["warnings"]] == ["W421"]
    assert "W421" in str(found)


def test_a_reopened_comparison_is_refused_and_named_and_its_id_does_nothing_in_a_terminal(table, state):
    renamed = table.assign(comparison_id=table["comparison_id"].replace("c0", "\x1b[2Jc0\u202e"))
    before = watch(renamed, [Length()], state)
    found = watch(pd.concat([renamed, renamed.iloc[:1].assign(annotator="late")]), [Length()], state)
    assert (len(found.summary["reopened"]), found.summary["n_new"]) == (1, 0)
    assert found.table.equals(before.table)
    assert "W420" in str(found) and "c0" in str(found)
    assert "\x1b" not in str(found) and "\u202e" not in str(found)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attributes": [Length(ratio=2.0)]}, "other attributes"),
        ({"attributes": [Markdown()]}, "other attributes"),
        ({"attributes": [Length(), Markdown()]}, "other attributes"),
        ({"alpha": 0.2}, "other alpha: 0.05, now 0.2"),
        ({"votes_per_comparison": 1}, "2 or more"),
    ],
)
def test_a_state_made_otherwise_and_options_that_make_no_sense(table, state, changed, message):
    asked = {"attributes": [Length()], "state": state}
    if "other" in message:
        watch(table, **asked)
    with pytest.raises(ConfigError, match=message):
        watch(table, **(asked | changed))
    assert state.exists() == ("other" in message)


def test_a_continuous_attribute_has_the_unit_of_its_first_votes(table, state):
    words = {side: table[f"response_{side}"].str.len() * 10.0 for side in "ab"}
    ten_times = [Column("words", "a", "b", continuous=True)]
    found = watch(table.assign(**words), ten_times, state).summary["flagged"]["words"]
    assert set(pseudonyms(["w0", "w1"])) <= {row["annotator"] for row in found}


def test_the_side_shown_first(table, state):
    """Everyone leans the same way toward what they saw first; nobody stands out."""
    random = np.random.default_rng(0)
    first = random.choice(["a", "b"], len(table)).astype(object)
    winner = np.where(random.random(len(table)) < 0.85, first, np.where(first == "a", "b", "a"))
    first[:600] = None
    found = watch(table.assign(shown_first=first, winner=winner), [Position()], state)
    assert list(found.summary["flagged"].values()) == [[]]
    assert found.table["n_informative"].sum() > 0
    # sides whose order is not known are not alike
    assert (found.table["e_unreliable"] == 1).all()
