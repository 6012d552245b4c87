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


# what people write: any name that is not known to a type checker, or not typed, is an error here
CODE = """
from pathlib import Path
import badpo
from badpo import AuditMonitor, AuditResult, ConfigError, DataError, Judgments, audit
from badpo.attributes import Column, Length, Markdown, PythonFunction, WordList

result: AuditResult = badpo.audit("votes.csv", "length:ratio=1.5", columns={"annotator": "who"})
page: Path = result.write("audit")
svg: str = result.plot("leans.svg").svg
polite = PythonFunction("polite", lambda prompt, response: "please" in response)
rows = [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]
column = Column("x", a="x_a", b="x_b")
judgments = Judgments.read(rows, attributes=[Length(2), "markdown", column, polite], keep=["x"])
train, held_out = judgments.split(0.1)
n: int = train.n_votes
names: tuple[str, ...] = train.with_attributes(WordList("thanks", ["thanks"])).attribute_names
try:
    print(audit(train, [Markdown()], models=["gpt-4"], rho=0.4).warnings[0]["code"])
except (DataError, ConfigError) as error:
    print(error)
monitor = AuditMonitor(["length"], alpha=0.1)
monitor.update("c1", ["ann", "bob"], [1, -1], [1.0])
reveal_type(badpo.audit)
"""
WRONG = """
import badpo
badpo.audit("votes.csv", 1.5)
badpo.audit("votes.csv", colums={})
badpo.audit("votes.csv", columns=["annotator"])
"""
MYPY = """
[mypy]
strict = True
# to be done within a minute
[mypy-torch.*,transformers.*,accelerate.*,peft.*,datasets.*,trl.*,scipy.*]
follow_imports = skip
"""


@pytest.mark.slow
def test_types_of_the_wheel_are_known_to_those_who_use_it(installed, tmp_path):
    for name, content in {"code.py": CODE, "wrong.py": WRONG, "mypy.ini": MYPY}.items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "mypy", "code.py", "wrong.py"]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    told = done.stdout.splitlines()
    (audit,) = [line for line in told if "Revealed type" in line]
    assert audit.endswith('badpo.auditing.result.AuditResult"') and "'columns'?" in audit
    wrong = [line.partition(" error:")[0] for line in told if " error:" in line]
    assert wrong == [f"wrong.py:{n}:" for n in (3, 4, 5)], done.stdout


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
