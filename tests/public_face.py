"""The public face as plain data, and its comparison with what ``public_face.json`` holds."""

import difflib
import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from badpo.cli.main import app

GOLDEN = Path(__file__).with_suffix(".json")
REWRITE = "WRITE_FACE=1 python -m pytest -m face"


def invoke(*arguments: object):
    """The result of a command of ``badpo``."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_face(section: str, found: Any) -> None:
    """Fail where a section of the public face is not what ``public_face.json`` says, or write it there if asked to."""
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    found = json.loads(json.dumps(found))
    if os.environ.get("WRITE_FACE"):
        known[section] = found
        GOLDEN.write_text(json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    both = (json.dumps(value, indent=1, sort_keys=True) for value in (known.get(section), found))
    was, now = map(str.splitlines, both)
    differences = "\n".join(difflib.unified_diff(was, now, "was", "is", lineterm=""))
    assert known.get(section) == found, (
        f"{section}:\n{differences}\nif that is meant: {REWRITE}, and a line in CHANGELOG.md"
    )


def keys(value: Any) -> Any:
    """The keys of a JSON value with the kinds of what they hold; a list is the union of its rows."""
    if isinstance(value, Mapping):
        return {name: keys(entry) for name, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        rows = [keys(entry) for entry in value]
        if all(isinstance(row, dict) for row in rows):
            return [{name: entry for row in rows for name, entry in row.items()}] if rows else []
        return [row for i, row in enumerate(rows) if row not in rows[:i]]
    if isinstance(value, bool):
        return "yes or no"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "nothing"


def signature(value: Any) -> str:
    """The parameters of something that is called, with their defaults, without what they are annotated with."""
    bare = inspect.Parameter.empty
    full = inspect.signature(value, follow_wrapped=False)
    parameters = [parameter.replace(annotation=bare) for parameter in full.parameters.values()]
    shown = str(full.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"<function .*?> at 0x\w+>|<function \S+ at 0x\w+>", "a function", shown)


def commands(group=None, name: str = ""):
    """Every command below a group, by the words that are typed; all of `badpo` unless another group is given."""
    if group is None:
        group = typer.main.get_command(app)
    for word in group.list_commands(None):
        command = group.get_command(None, word)
        yield f"{name} {word}".strip(), command
        if hasattr(command, "list_commands"):
            yield from commands(command, f"{name} {word}".strip())
