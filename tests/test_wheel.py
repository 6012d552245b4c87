"""A wheel holds what the packages need, and works where nothing else of the project is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        source, leave = ROOT / name, shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=leave)
        else:
            shutil.copy(source, tree)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, tree)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def badpo(installed: Path, folder: Path, *arguments: object) -> str:
    """What a command of the installed wheel prints, run far from the sources."""
    program = "import sys, badpo; print(badpo.__file__); from badpo.__main__ import main; main()"
    own = {"PYTHONPATH": str(installed), "BADPO_PSEUDONYM_KEY": "only for this example"}
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | own)
    assert done.returncode == 0, done.stderr
    place, _, printed = done.stdout.partition("\n")
    assert Path(place).is_relative_to(installed)
    return printed


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    there = set(zipfile.ZipFile(wheel).namelist())
    sources = (path for path in (ROOT / "src").rglob("*") if path.is_file())
    names = {str(path.relative_to(ROOT / "src")) for path in sources}
    assert {name for name in names if ".egg-info" not in name and ".pyc" not in name} <= there
    assert not [name for name in there if name.startswith("tests")]


@pytest.mark.slow
def test_the_wheel_audits_and_knows_the_demo(installed, tmp_path):
    shutil.copy(ROOT / "examples" / "votes.csv", tmp_path)
    printed = badpo(installed, tmp_path, "audit", "votes.csv", "--attribute", "length")
    assert "report: " in printed
    assert "</html>" in (tmp_path / "audit" / "report.html").read_text()
    assert "--out" in badpo(installed, tmp_path, "demo", "--help")
