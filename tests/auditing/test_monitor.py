"""The monitor that is fed one closed comparison after the other."""

from __future__ import annotations

import errno
import json
import os
import random
import stat

import numpy as np
import pytest

from badpo.auditing.watch import AuditMonitor, ClosedComparison, ReopenedComparison
from badpo.data.problems import ConfigError
from badpo.estimation.sequential import GRID, log_e_values, log_tilt_ratios


def stream(n=120, m=9, seed=0, n_attributes=2):
    """Closed comparisons; annotator 0 leans by 2 toward the first attribute."""
    random = np.random.default_rng(seed)
    lean = np.zeros(m)
    lean[0] = 2.0
    found = []
    for i in range(n):
        people = random.choice(m, 4, replace=False)
        delta = random.choice([-1.0, 0.0, 1.0], n_attributes)
        chance = 1 / (1 + np.exp(-(random.normal() + lean[people] * delta[0])))
        sign = np.where(random.random(4) < chance, 1, -1)
        found.append(ClosedComparison(f"c{i}", [f"w{k}" for k in people], sign, delta))
    return found


def fed(comparisons, attributes=("length", "markdown")):
    monitor = AuditMonitor(attributes)
    for comparison in comparisons:
        monitor.update(comparison)
    return monitor


def test_e_values_are_products_over_comparisons():
    comparisons = stream(40)
    monitor = fed(comparisons)
    total = np.zeros((2, len(GRID)))
    highest = np.zeros(2)
    for closed in comparisons:
        if "w3" in closed.annotators:
            chose_a = closed.sign > 0
            won = chose_a[closed.annotators.index("w3")]
            total += log_tilt_ratios([won] * 2, [chose_a.mean()] * 2, closed.delta)
            highest = np.maximum(highest, log_e_values(total))
    rows = monitor.table().query("annotator == 'w3'")
    np.testing.assert_allclose(rows["e_value"], np.exp(log_e_values(total)))
    np.testing.assert_allclose(rows["highest"], np.exp(highest))


def test_half_saved_and_loaded_is_as_good_as_all(tmp_path):
    comparisons, path = stream(250), tmp_path / "deeper" / "state.json"
    fed(comparisons[:60]).save(path)
    resumed, whole = AuditMonitor.load(path), fed(comparisons)
    for comparison in comparisons[60:]:
        resumed.update(comparison)
    assert resumed.table().equals(whole.table())
    resumed.save(path)
    whole.save(tmp_path / "whole.json")
    assert path.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert whole.table().query("annotator == 'w0' and attribute == 'length'")["flag"].all()


def test_a_comparison_is_counted_once():
    comparisons = stream(30)
    monitor = fed(comparisons)
    before = monitor.table()
    later = ClosedComparison("c7", ["w1", "w8"], [1, -1], [1.0, 1.0])
    with pytest.raises(ReopenedComparison, match="comparison c7") as caught:
        monitor.update(later)
    assert caught.value.problems[0].code == "E420"
    assert monitor.table().equals(before)
    assert monitor.n_comparisons == 30
    assert monitor.has_seen("c7")
    assert not monitor.has_seen("c30")


def test_votes_that_changed_are_noticed_and_their_order_is_no_change():
    closed = stream(1)[0]
    monitor = fed([closed])
    order = [2, 0, 3, 1]
    turned = ClosedComparison(
        "c0", [closed.annotators[i] for i in order], -closed.sign[order], -np.asarray(closed.delta)
    )
    assert not monitor.is_reopened(turned)
    one_more = ClosedComparison("c0", [*closed.annotators, "new"], [*closed.sign, 1], closed.delta)
    assert monitor.is_reopened(one_more)
    assert not monitor.is_reopened(ClosedComparison("never", ["w1"], [1], [0.0, 0.0]))


def test_the_first_of_repeated_votes_counts_and_a_unit_scales_the_attribute():
    once = fed([ClosedComparison("c", ["x", "y"], [1, -1], [1.0])], ["length"])
    again = fed([ClosedComparison("c", ["x", "y", "x"], [1, -1, -1], [1.0])], ["length"])
    assert again.table().equals(once.table())
    assert (once.n_repeated, again.n_repeated) == (0, 1)
    metres = AuditMonitor(["length"], units=[100.0])
    metres.update(ClosedComparison("c", ["x", "y"], [1, -1], [100.0]))
    assert metres.table().equals(once.table())


def test_an_alarm_is_told_once_and_stays():
    monitor = AuditMonitor(["length"])
    told = []
    for i in range(60):
        told += monitor.update(ClosedComparison(f"a{i}", ["x", "y", "z", "w"], [1, 1, -1, -1], [1.0]))
    assert sorted(told) == [(name, "length") for name in "wxyz"]
    for i in range(60):
        assert monitor.update(ClosedComparison(f"b{i}", ["x", "y", "z", "w"], [-1, -1, 1, 1], [1.0])) == ()
    table = monitor.table()
    assert table["alarm"].all()
    assert not table["flag"].any()
    assert table["n_informative"].tolist() == [120] * 4


def test_overwhelming_evidence_is_still_a_number(tmp_path):
    monitor = AuditMonitor(["length"])
    for i in range(3_000):
        monitor.update(ClosedComparison(f"c{i}", ["x", "y"], [1, -1], [1.0]))
    assert np.isfinite(monitor.table()["e_value"]).all()
    monitor.save(tmp_path / "state.json")
    assert AuditMonitor.load(tmp_path / "state.json").table().equals(monitor.table())


def test_an_annotator_without_information_is_listed_without_direction():
    table = fed([ClosedComparison("c", ["x", "y"], [1, 1], [1.0])], ["length"]).table()
    assert table["e_value"].tolist() == [1.0, 1.0]
    assert table["toward"].tolist() == ["", ""]
    assert len(AuditMonitor(["length"]).table()) == 0


def test_the_state_is_private_and_small(tmp_path):
    path = tmp_path / "state.json"
    fed(stream(60)).save(path)
    small = path.stat().st_size
    fed(stream(1_060)).save(path)
    assert path.stat().st_size - small < 1_000 * 18
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(json.loads(path.read_text())["annotators"]) == {f"w{k}" for k in range(9)}


def test_a_failed_write_leaves_the_old_state(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    monitor = fed(stream(10))
    monitor.save(path)
    before = path.read_bytes()
    monitor.update(stream(11)[10])

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device.*state.json"):
        monitor.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.json"]


def test_every_bit_of_a_state_counts(tmp_path):
    path = tmp_path / "state.json"
    fed(stream(10)).save(path)
    content, draw = path.read_bytes(), random.Random(0)
    damaged = [content[:length] for length in range(0, len(content), 997)]
    for place in draw.sample(range(len(content)), 300):
        changed = bytearray(content)
        changed[place] ^= 1 << draw.randrange(8)
        damaged.append(bytes(changed))
    for text in [
        *damaged,
        b"not json",
        b"[]",
        b'{"schema": "badpo.audit/1"}',
        b'{"schema": "badpo.watch/2"}',
    ]:
        path.write_bytes(text)
        with pytest.raises(ConfigError, match="is no state of badpo watch"):
            AuditMonitor.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attributes": []}, "one attribute or more"),
        ({"attributes": ["x", "x"]}, "each once"),
        ({"attributes": ["x"], "alpha": 0}, "alpha"),
        ({"attributes": ["x"], "units": [0.0]}, "above 0"),
        ({"attributes": ["x"], "units": [1.0, 1.0]}, "for each attribute"),
    ],
)
def test_a_monitor_that_makes_no_sense(arguments, message):
    with pytest.raises(ConfigError, match=message):
        AuditMonitor(**arguments)


@pytest.mark.parametrize(
    ("annotators", "sign", "delta", "message"),
    [
        (["x", "y"], [1], [1.0], "one sign"),
        (["x", "y"], [1, 0], [1.0], "one sign"),
        ([], [], [1.0], "one sign"),
        (["x", "y"], [1, -1], [1.0, 1.0], "delta has shape"),
        (["x", "y"], [1, -1], [np.nan], "delta has shape"),
    ],
)
def test_votes_that_do_not_fit_are_not_counted(annotators, sign, delta, message):
    monitor = AuditMonitor(["length"])
    with pytest.raises(ValueError, match=message):
        monitor.update(ClosedComparison("c", annotators, sign, delta))
    assert monitor.n_comparisons == 0
    assert len(monitor.table()) == 0


def test_an_alarm_needs_an_e_value_of_one_over_alpha():
    monitor, highest = AuditMonitor(["length"], alpha=0.05), 0.0
    for i in range(60):
        before = highest
        told = monitor.update(ClosedComparison(f"c{i}", ["x", "y", "z", "w"], [1, 1, -1, -1], [1.0]))
        highest = monitor.table()["highest"].max()
        if told:
            break
    assert before < 20 <= highest
