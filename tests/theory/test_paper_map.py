"""docs/paper_map.md names code that is there."""

import pkgutil
import re
from pathlib import Path
from types import FunctionType

import pytest

pytest.importorskip("torch")

TEXT = (Path(__file__).parents[2] / "docs" / "paper_map.md").read_text(encoding="utf-8")
ROOMS = "theory|objective|data|estimation|training|readouts|anchoring|auditing|runs|results|badpo_paper"


def is_there(name: str) -> bool:
    """Whether a module, or what it defines itself, has this name."""
    whole = name if name.startswith("badpo_paper.") else f"badpo.{name}"
    try:
        found = pkgutil.resolve_name(whole)
    except (ImportError, AttributeError):
        return False
    return not isinstance(found, type | FunctionType) or whole.startswith(found.__module__)


def test_the_code_is_there():
    names = set(re.findall(rf"`((?:{ROOMS})(?:\.\w+)+)`", TEXT))
    assert len(names) > 25
    assert [name for name in names if not is_there(name)] == []
    assert not is_there("theory.tilt.shift_to_target") and not is_there("theory.tilt.softmax")
