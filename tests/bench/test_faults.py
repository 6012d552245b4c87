"""The table of the injected faults; and, slowly, that a few faults of every kind lose nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.faults import GENERATED, Row
from bench.faults import __main__ as faults

ROOT = Path(__file__).parents[2]


def kind(*rows: Row, problem: str = "") -> dict:
    return {"rows": [row._asdict() for row in rows], "seconds": 60.0, "problem": problem}


KINDS = {
    "kills": kind(
        Row("SIGKILL", "a step", 3, "resumed | bit-equal", 0),
        Row("SIGKILL", "a save", 2, "resumed | bit-equal", 0),
        Row("SIGKILL", "a save", 2, "resumed", 1),
    ),
    "torn_files": kind(problem="x"),
    "fuzz": kind(Row(GENERATED, "importer, arena", 600, "taken", 0)),
}


def test_the_page_names_what_was_lost_and_a_kind_that_fails_is_told(monkeypatch):
    text = faults.page(KINDS)
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "| SIGKILL | a step; a save | 5 | resumed \\| bit-equal | 0 |" in rows
    assert "| SIGKILL | a save | 2 | resumed | 1 |" in rows
    assert "**7 faults injected and 600 generated inputs tried, 1 with a loss.**" in rows
    assert "**Incomplete:** x" in rows and "Not run for this page: two_writers." in rows
    assert [name for name, found in KINDS.items() if faults.has_failed(found)] == ["kills", "torn_files"]
    found = faults.run("nothing_of_that_name", 1.0)
    assert not found["rows"]
    assert "No module named 'bench.faults.nothing_of_that_name'" in found["problem"]
    monkeypatch.setattr("bench.faults.kills.rows", lambda seconds: [])
    assert faults.run("kills", 1.0)["problem"] == "it gave no row"
    assert sum(faults.seconds_for(name, 10) for name in faults.KINDS) == pytest.approx(600)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kills", "torn_files", "two_writers"])
def test_a_few_faults_lose_nothing(tmp_path, name):
    where = ["--folder", str(tmp_path), "--out", str(tmp_path / "page.md")]
    command = [sys.executable, "-m", "bench.faults", "--only", name, *where]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    asked = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--budget-minutes", "0.1"], **asked, check=False)
    assert done.returncode == 0, done.stderr
    found = faults.json.loads((tmp_path / f"{name}.json").read_text())
    assert found["problem"] == "" and found["rows"], done.stderr
    assert [row for row in found["rows"] if row["lost"] or not row["injected"]] == [], done.stderr
