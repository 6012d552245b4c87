"""Places that hold something of a person, and how a file or folder goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from badpo.data.files import appearing, is_unfinished, leftovers, unfinished_name
from badpo.data.forgetting_people import People

_TEXT_FILES = frozenset({".json", ".jsonl", ".yaml", ".yml", ".csv", ".html", ".md", ".txt", ".log"})


@dataclass(frozen=True)
class Trace:
    """One place that holds something of a person.

    Attributes
    ----------
    path : Path
    what : str
        What is there.
    remedy : str
        What is left to do by hand; empty when `erase` does it all.
    erase : callable or None
        Takes it out; None where that needs another command.
    """

    path: Path
    what: str
    remedy: str = ""
    erase: Callable[[], None] | None = None


def mentions(folder: Path, people: People, known: set[Path]) -> list[Trace]:
    """Text files that name one of them and are not dealt with otherwise."""
    names = [name.encode() for name in people.pseudonyms]
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in _TEXT_FILES or not path.is_file() or is_unfinished(path):
            continue
        if path in known or not known.isdisjoint(path.parents):
            continue
        content = path.read_bytes()
        if any(name in content for name in names):
            found.append(Trace(path, "a file that names them", "remove it, or make it again without them"))
    return found


def left_behind(folder: Path, name: str = "") -> list[Trace]:
    """What a command that was killed left half written, of one file or of a whole folder; it may hold anyone."""
    what = "half of a file that a killed command was writing"
    return [
        Trace(path, what, erase=remover(path))
        for path in leftovers(folder)
        if path.name.endswith(f"-{name}" if name else "")
    ]


def remover(path: Path) -> Callable[[], None]:
    """What removes a file or a whole folder when it is called."""

    def remove() -> None:
        if not path.is_dir():
            path.unlink()
            return
        # half deleted it is found by its name, whatever is left of what was in it
        going = path.with_name(unfinished_name(path.name))
        path.rename(going)
        shutil.rmtree(going)

    return remove


def write_json(path: Path, value: Any) -> None:
    """Write JSON in place of a file, readable by those who could read that one."""
    with appearing(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
