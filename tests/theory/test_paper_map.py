"""docs/paper_map.md names code that is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
ROOMS = "theory|objective|data|estimation|training|readouts|anchoring|auditing|runs|results|badpo_paper"
CODE = sorted(set(re.findall(rf"`((?:{ROOMS})(?:\.\w+)+)`", TEXT)))


def defined(path: Path) -> set[str]:
    """Names that a module defines, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)
            }
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_the_map_was_read():
    assert len(CODE) > 25


@pytest.mark.parametrize("name", CODE)
def test_the_code_is_there(name):
    parts = name.split(".")
    for n_parts in range(len(parts), 0, -1):
        package = ROOT / "src" if name.startswith("badpo_paper.") else ROOT / "src" / "badpo"
        module = package.joinpath(*parts[:n_parts]).with_suffix(".py")
        if module.is_file():
            rest = ".".join(parts[n_parts:])
            assert not rest or rest in defined(module), f"{module.name} defines no {rest}"
            return
    pytest.fail(f"no module of the package holds {name}")
