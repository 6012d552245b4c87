"""Skip the tests and examples that need `badpo[train]` if the packages of `badpo[train]` are not installed.

Reading, estimation and the audit must work without these packages, so their tests are never skipped.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
TRAIN = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "safetensors",
    "datasets",
    "tokenizers",
    "huggingface_hub",
)
ABSENT = frozenset(name for name in TRAIN if importlib.util.find_spec(name) is None)
WORKS_WITHOUT = ("data", "estimation", "auditing", "importers")
_MISSING = re.compile(rf"ModuleNotFoundError: (?:No module named ')?(?:{'|'.join(TRAIN)})\b")


def pytest_ignore_collect(collection_path):
    """Skip a test file, or a folder with a conftest.py, if importing the file requires an absent package."""
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if (
        not ABSENT
        or path.suffix != ".py"
        or path == ROOT / "conftest.py"
        or path.parent.name in WORKS_WITHOUT
    ):
        return None
    return True if path.is_file() and needs_absent(path) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Skip a test that imports a missing package of `badpo[train]` while it runs."""
    report = yield
    found = _MISSING.search(str(report.longrepr)) if ABSENT and report.failed else None
    if found and item.path.parent.name not in WORKS_WITHOUT:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {found.group()}")
    return report


@cache
def needs_absent(path: Path) -> bool:
    """Return whether a file of this repository imports an absent package, directly or through other files."""
    todo, seen = [path], {path}
    while todo:
        for module in _imported(todo.pop()):
            if module.split(".")[0] in ABSENT:
                return True
            for file in set(_files(module)) - seen:
                seen.add(file)
                todo.append(file)
    return False


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports at its top level, but not the modules that its functions import."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            todo += [] if is_for_types else ast.iter_child_nodes(node)


def _files(module: str) -> Iterator[Path]:
    """Yield the files of this repository that Python runs if a module is imported."""
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        place = (ROOT / "src" if parts[0] in ("badpo", "badpo_paper") else ROOT).joinpath(*parts[:n])
        yield from (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file())
