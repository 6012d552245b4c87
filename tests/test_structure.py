"""The shape of the project: imports point downward, light modules stay light, public names are documented."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import badpo

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# A floor may import itself and what stands above it here; the package of the paper may import all of the library.
FLOORS = (
    *("theory", "estimation", "data", "importers", "attributes", "objective", "results", "auditing"),
    *("training", "trl", "readouts", "runs", "anchoring", "cli", "badpo_paper"),
)
# Results are drawn from files: they know nothing of how a run was made.
RESULTS_MAY_IMPORT = {"theory", "estimation", "data", "objective", "results"}
HEAVY = ("torch", "transformers", "datasets", "trl", "peft", "accelerate")


def modules() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, names: set[str]) -> set[str]:
    """The modules of both packages that a file imports anywhere, also inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write the full name"
            members = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {member if member in names else node.module for member in members}
    return {name for name in found if name.split(".")[0] in ("badpo", "badpo_paper")}


def floor(module: str) -> str | None:
    """The floor of a module; None for the package's own front door, which gives the version to everyone."""
    package, *inner = module.split(".")
    if package == "badpo_paper":
        return package
    return inner[0] if inner and inner != ["__main__"] else None


def upward(importer: str, target: str) -> bool:
    """Whether an import points to a higher floor."""
    above, below = floor(importer), floor(target)
    if above is None or below is None:
        return False
    if above == "results":
        return below not in RESULTS_MAY_IMPORT
    return FLOORS.index(below) > FLOORS.index(above)


def test_imports_point_downward_and_in_no_circle():
    names = set(modules())
    graph = {name: imported(path, names) - {name} for name, path in modules().items()}
    wrong = [(name, target) for name in graph for target in graph[name] if upward(name, target)]
    assert not wrong
    # where there is a circle, the error has it
    TopologicalSorter({name: graph[name] & names - {"badpo"} for name in graph}).prepare()


def test_light_modules_load_nothing_heavy():
    floors = (None, "data", "importers", "attributes", "estimation", "results", "auditing", "cli")
    light = [name for name in modules() if floor(name) in floors and name != "badpo.__main__"]
    light += ["badpo.training.recipe", "badpo_paper.suites"]
    program = (
        f"import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == [], f"one of these loads {finished.stdout.strip()}: {light}"


def test_the_installation_knows_the_commands_of_the_paper():
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    known = {entry.name: entry.value for entry in entry_points(group="badpo.commands")}
    assert written["badpo.commands"].items() <= known.items(), "install the project again"


def test_public_names_are_those_of_the_readme_and_no_others():
    table = re.search(r"## Python\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S)
    named = "".join(re.findall(r"^\| (`.*?) \|", table.group(1), re.M))
    documented = set(re.findall(r"`(?:badpo\.)?(\w+)`", named))
    assert set(badpo.__all__) == documented | {"__version__"}
    with pytest.raises(AttributeError, match="Nothing"):
        badpo.Nothing  # noqa: B018


def test_a_public_name_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    lines = {"badpo.training.trainer": "from badpo import BADPOTrainer", "badpo.trl": "import badpo.trl"}
    for module, line in lines.items():
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(ModuleNotFoundError, match=r'constraints.txt "\.\[train\]"'):
            exec(line)
