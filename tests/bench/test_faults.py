"""The table of the injected faults; and, slowly, that a few faults of every kind lose nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults import __main__ as faults
from bench.faults import load
from bench.faults.children import Kill, run_child
from bench.faults.kills import moment_of
from bench.faults.table import GENERATED, KINDS, MINUTES, Kind, Row, as_section, as_table, totals
from bench.faults.torn_files import cut, emptied, flipped

ROOT = Path(__file__).parents[2]
ROWS = (Row("SIGKILL", "a step", 3, "resumed | bit-equal", 0), Row("SIGKILL", "a save", 2, "resumed", 1))


def test_rows_are_kept_and_read_back(tmp_path):
    kind = Kind("kills", ROWS, 61.5)
    faults.write_kind(tmp_path / "kills.json", kind)
    assert faults.read_kind(tmp_path / "kills.json") == kind


def test_the_table_names_what_was_lost():
    text = as_table(ROWS)
    assert text.splitlines()[0] == "| fault | stage | injected | outcome | lost |"
    assert "| SIGKILL | a step | 3 | resumed \\| bit-equal | 0 |" in text
    kinds = {
        "kills": Kind("kills", ROWS, 1.0),
        "load": Kind("load", ROWS[:1], 1.0),
        "ranks": Kind("ranks", (), 1.0, "x"),
    }
    assert totals(kinds) == "8 faults injected, 1 with a loss"
    tried = {"fuzz": Kind("fuzz", (Row(GENERATED, "importer, arena", 600, "taken", 0),), 1.0)}
    assert totals(kinds | tried) == "8 faults injected and 600 generated inputs tried, 1 with a loss"
    assert [name for name, kind in kinds.items() if kind.failed] == ["kills", "ranks"]
    assert "**Not whole:** x" in as_section(kinds["ranks"])


def test_a_kind_that_is_missing_or_fails_is_told(monkeypatch):
    kind = faults.run_here("nothing_of_that_name", 1.0)
    assert kind.rows == () and "No module named 'bench.faults.nothing_of_that_name'" in kind.problem
    monkeypatch.setattr("bench.faults.kills.rows", lambda seconds: [])
    assert faults.run_here("kills", 1.0).problem == "it gave no row"
    page = faults.page({"kills": kind})
    assert "Not run for this page: torn_files" in page


def test_make_faults_loads_the_whole_table_and_a_short_budget_a_tenth(monkeypatch):
    sizes = []
    monkeypatch.setattr(load, "measured_rows", lambda n_comparisons: sizes.append(n_comparisons) or ROWS)
    for minutes in (MINUTES, 10):
        load.rows(faults.seconds_for("load", minutes))
    assert sizes == [1_250_000, 125_000]
    assert sum(faults.seconds_for(name, 10) for name in KINDS) == pytest.approx(600)


def test_moments_have_names():
    assert moment_of(("os.remove model.safetensors in a folder that is deleted",)).startswith(
        "in the middle of deleting"
    )
    assert (
        moment_of(("os.rename cache/ab/.writing-1.1-shard-2.safetensors",))
        == "between temporary file and its name"
    )
    assert moment_of(("open runs/a/checkpoints/checkpoint-2/x",)) == "while a checkpoint is written"


def test_tears_change_a_file():
    content, draw = bytes(range(50)), random.Random(0)
    assert content.startswith(cut(content, draw)) and emptied(content, draw) == b""
    assert sum(a != b for a, b in zip(flipped(content, draw), content, strict=True)) == 1


def test_a_child_is_killed_before_the_change_that_is_asked_for(tmp_path):
    (tmp_path / "work").mkdir()

    def write_two() -> None:
        Path("one").write_text("1")
        Path("two").write_text("2")
        Path("two").rename("three")

    whole = run_child(write_two, tmp_path / "work")
    assert (whole.status, whole.writes) == (0, ("open one", "open two", "os.rename two"))
    for path in (tmp_path / "work").iterdir():
        path.unlink()
    killed = run_child(write_two, tmp_path / "work", Kill(before_write=3))
    assert killed.was_killed and killed.writes == ("os.rename two",)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["one", "two"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kills", "torn_files", "full_disk", "two_writers"])
def test_a_few_faults_lose_nothing(tmp_path, kind):
    told = tmp_path / "rows.json"
    command = [
        sys.executable,
        "-m",
        "bench.faults",
        "--only",
        kind,
        "--here",
        str(told),
        "--budget-minutes",
        "0.1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = faults.read_kind(told)
    assert found.problem == "", done.stderr
    if not any(row.injected for row in found.rows):
        pytest.skip(found.rows[0].outcome)
    assert [row for row in found.rows if row.lost] == [], done.stderr
