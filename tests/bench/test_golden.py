"""The golden comparison finds nothing between a commit and itself, and everything that is planted."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench import golden

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> Path:
    """The sources of the last commit."""
    asked = ["git", "-C", str(ROOT), "archive", "HEAD", "src"]
    found = subprocess.run(asked, capture_output=True, check=False)
    if found.returncode:
        pytest.skip("no commit to compare with: this is no checkout of git")
    folder = tmp_path_factory.mktemp("head")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def compared(source: Path, kept: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bench.golden", "--base", "HEAD", "--source", str(source)]
    command += ["--only", "attributes", "--keep", str(kept)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_commit_differs_from_itself_in_nothing_and_a_planted_difference_is_seen(head, tmp_path):
    same = compared(head, tmp_path)
    assert same.returncode == 0, same.stdout + same.stderr
    (kept,) = tmp_path.glob("*/attributes/commands.jsonl")
    written = kept.stat().st_mtime_ns
    default, other = "ratio: float = 1.5", "ratio: float = 2.5"
    changed = [path for path in head.rglob("*.py") if default in path.read_text()]
    assert changed
    for path in changed:
        path.write_text(path.read_text().replace(default, other))
    planted = compared(head, tmp_path)
    assert planted.returncode == 1
    assert kept.stat().st_mtime_ns == written, "the base's side ran again"
    assert "attributes: commands.jsonl" in planted.stdout


def write(
    folder: Path, value: float = 0.5, word: str = "same", seconds: float = 1.0, mode: int = 0o600
) -> Path:
    folder.mkdir()
    (folder / "a.json").write_text(
        json.dumps({"rows": [{"rate": value, "seconds": seconds}], "word": word})
    )
    (folder / "page.html").write_text(
        f"<style>p {{width: {seconds}px}}</style><p class='n{seconds}'>rate {value}</p>"
    )
    pd.DataFrame({"n": [1.0, value, np.nan], "word": ["a", word, None]}).to_parquet(folder / "t.parquet")
    (folder / "a.json").chmod(mode)
    return folder


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"seconds": 2.0}, set()),
        ({"value": 0.5 + 1e-8}, {"page.html: figures"}),
        ({"value": 0.6}, {"a.json: rows[0].rate", "page.html: figures", "t.parquet: n"}),
        ({"word": "other"}, {"a.json: word", "t.parquet: word"}),
        ({"mode": 0o644}, {"a.json: mode"}),
    ],
)
def test_what_differs_is_named(changes, places, tmp_path):
    sides = [
        golden.contents(write(tmp_path / "base")),
        golden.contents(write(tmp_path / "here", **changes)),
    ]
    assert {place for place, *_ in golden.compare(*sides, tolerance=1e-6)} == places


def test_a_file_that_one_side_lacks_is_named(tmp_path):
    base, here = write(tmp_path / "base"), write(tmp_path / "here")
    (here / "a.json").unlink()
    rows = golden.compare(golden.contents(base), golden.contents(here), tolerance=1e-6)
    assert ("a.json: word", "same", "(nothing)") in rows
