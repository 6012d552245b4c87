"""A wheel holds what the packages need, and works where nothing else of the project is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")
ROOT = Path(__file__).parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Where a wheel, built of a copy of the sources, is installed alone."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("installed")
    for name in BUILT_FROM:
        source, leave = ROOT / name, shutil.ignore_patterns("__pycache__", "*.egg-info")
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=leave)
        else:
            shutil.copy(source, tree)
    asked = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *asked, "--target", str(folder), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


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


def files(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if ".egg-info" not in name and ".pyc" not in name}


def test_the_wheel_holds_every_file_of_the_packages(installed):
    assert files(ROOT / "src") <= files(installed)
    assert not (installed / "tests").exists()


@pytest.mark.slow
def test_the_wheel_audits_and_knows_the_demo(installed, tmp_path):
    shutil.copy(ROOT / "examples" / "votes.csv", tmp_path)
    printed = badpo(installed, tmp_path, "audit", "votes.csv", "--attribute", "length")
    assert "report: " in printed
    assert "</html>" in (tmp_path / "audit" / "report.html").read_text()
    assert "--out" in badpo(installed, tmp_path, "demo", "--help")
