"""The golden comparison finds nothing between a commit and itself, and everything that is planted."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench import golden

ROOT = Path(__file__).parents[2]


def compared(source: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bench.golden", "--base", "HEAD", "--source", str(source)]
    command += ["--only", "attributes"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no commit to compare with")
def test_a_commit_differs_from_itself_in_nothing_and_a_planted_difference_is_seen(tmp_path):
    (source := tmp_path / "head").mkdir()
    archive = ["git", "-C", str(ROOT), "archive", "HEAD", "src", "--output", str(source / "src.tar")]
    subprocess.run(archive, check=True)
    shutil.unpack_archive(source / "src.tar", source, filter="data")
    same = compared(source / "src")
    assert same.returncode == 0, same.stdout + same.stderr
    default, other = "ratio: float = 1.5", "ratio: float = 2.5"
    changed = [path for path in source.rglob("*.py") if default in path.read_text()]
    for path in changed:
        path.write_text(path.read_text().replace(default, other))
    planted = compared(source / "src")
    assert changed and planted.returncode == 1
    assert "attributes: commands.jsonl" in planted.stdout


def write(folder: Path, value=0.5, word="same", seconds=1.0, mode=0o600) -> dict:
    """What the comparison sees of a folder with a file of each kind."""
    folder.mkdir()
    rows = [{"rate": value, "seconds": seconds}]
    (folder / "a.json").write_text(json.dumps({"rows": rows, "word": word}))
    page = f"<style>p {{width: {seconds}px}}</style><p class='n{seconds}'>rate {value}</p>"
    (folder / "page.html").write_text(page)
    pd.DataFrame({"n": [1.0, value, np.nan], "word": ["a", word, None]}).to_parquet(folder / "t.parquet")
    (folder / "a.json").chmod(mode)
    return golden.contents(folder)


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
    base, here = write(tmp_path / "base"), write(tmp_path / "here", **changes)
    assert {place for place, *_ in golden.compare(base, here, tolerance=1e-6)} == places
    lacking = {place: value for place, value in here.items() if not place.startswith("a.json")}
    missing = golden.compare(base, lacking, tolerance=1e-6)
    assert ("a.json: word", "same", "(nothing)") in missing
