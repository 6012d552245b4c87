"""Fields of exports: which hold the two responses, what a label means, which are personal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.problems import DataError, Problem, did_you_mean

# Names that fields of prompts and of the two responses usually have; any other is named with --column.
_PROMPTS = ("prompt", "instruction", "question", "input")
_RESPONSE_A = re.compile(r"(?:response|completion|answer|output|generation|text)[-_ ]?(?:a|1)", re.IGNORECASE)
_OTHER_SIDE = {"a": "b", "A": "B", "1": "2"}
_PARTS = re.compile(r"[a-z]+|\d+")
# the words that may stand before a side: "not a" must not be read as a
_SIDE_LABEL = re.compile(
    r"(?:(?:response|completion|answer|output|option|choice|model|text|candidate|generation|assistant|prefer)_)?"
    r"(a|b|1|2|left|right|first|second)(?:_is)?(?:_(?:clearly|slightly|much))?(?:_better)?"
)
_FIRST = frozenset({"a", "1", "left", "first"})
_TIES = frozenset(
    {
        "tie",
        "tied",
        "equal",
        "equally_good",
        "same",
        "both",
        "neither",
        "draw",
        "both_good",
        "both_bad",
        "bothbad",
    }
)
_PERSONAL = re.compile(
    r"e_?mail|(first|last|full|given|family|nick|user|display|screen)_?name|^name$|surname|phone|^ip$|^ip_|_ip$|"
    r"address|birth|^dob$|^age$|gender|^sex$|ethnic|religion|nationality|location|country|city|^zip|postcode|"
    r"avatar|login|^user$|cookie|user_agent|prolific|mturk|open_feedback|own_reason|comment"
)
# no address is longer; a cell may be a megabyte of dots behind an @
_EMAIL = re.compile(r"(?!\S{321})[^@\s]+@[^@\s]+\.[^@\s]+")
_DEEPEST = 50


def side_fields(names: Sequence[str]) -> tuple[str, str] | None:
    """The fields of the two responses, such as ``response_a`` and ``response_b``; None where no names say so.

    Examples
    --------
    >>> side_fields(["prompt", "text1", "text2", "id"])
    ('text1', 'text2')
    """
    firsts = [name for name in names if _RESPONSE_A.fullmatch(name)]
    pairs = [(name, name[:-1] + _OTHER_SIDE[name[-1]]) for name in firsts]
    pairs = [pair for pair in pairs if pair[1] in names]
    return pairs[0] if len(pairs) == 1 else None


def prompt_field(names: Iterable[str]) -> str | None:
    """The field that holds the prompt, by its name; None when no name says so."""
    folded = {name.casefold(): name for name in names}
    return next((folded[word] for word in _PROMPTS if word in folded), None)


def side_of(label: Any, field_a: str, field_b: str, winners: Mapping[str, str]) -> str:
    """``a``, ``b`` or ``tie`` for a label; the label itself where it is not known, which the reader then reports.

    A label may be the name of a field, or end in a side: ``A``, ``left``, ``response_2``, ``B-is-better``. What the
    user says in ``winners`` comes first.

    Examples
    --------
    >>> [side_of(label, "text1", "text2", {}) for label in ("left", "Text2", "Response 1", "Tie", "unsure")]
    ['a', 'b', 'a', 'tie', 'unsure']
    >>> side_of("unsure", "text1", "text2", {"unsure": "tie"})
    'tie'
    """
    text = str(label)
    if text in winners:
        return winners[text]
    if text.casefold() in (field_a.casefold(), field_b.casefold()):
        return "a" if text.casefold() == field_a.casefold() else "b"
    folded = "_".join(_PARTS.findall(text.casefold()))
    if folded in _TIES or folded.startswith("tie_"):
        return "tie"
    found = _SIDE_LABEL.fullmatch(folded)
    if found is None:
        return text
    return "a" if found[1] in _FIRST else "b"


def listed(cell: Any) -> list[Any]:
    """A cell that holds a list, as a list; empty for a missing one.

    Examples
    --------
    >>> listed(np.array([1, 2])), listed(None), listed("text")
    ([1, 2], [], [])
    """
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    return list(cell) if isinstance(cell, list | tuple) else []


def is_missing(cell: Any) -> bool:
    """Whether a cell holds nothing.

    Examples
    --------
    >>> is_missing(None), is_missing(float("nan")), is_missing([]), is_missing("")
    (True, True, False, False)
    """
    return cell is None or (pd.api.types.is_scalar(cell) and bool(pd.isna(cell)))


def records_of(frame: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """The rows of a table as dicts, missing cells left out.

    Examples
    --------
    >>> list(records_of(pd.DataFrame({"a": [1, None], "b": ["x", "y"]}, dtype=object)))
    [{'a': 1, 'b': 'x'}, {'b': 'y'}]
    """
    names = [str(name) for name in frame.columns]
    columns = [frame.iloc[:, i].to_numpy(dtype=object) for i in range(frame.shape[1])]
    for cells in zip(*columns, strict=True):
        yield {name: cell for name, cell in zip(names, cells, strict=True) if not is_missing(cell)}


def field_paths(frame: pd.DataFrame) -> list[str]:
    """Every field of a table, those inside objects and lists of objects with the path that leads to them.

    Examples
    --------
    >>> field_paths(pd.DataFrame({"id": [1], "by": [{"email": "x", "id": 2}], "votes": [[{"label": "a"}]]}))
    ['id', 'by.email', 'by.id', 'votes.label']
    """
    found: dict[str, None] = {}
    for i, name in enumerate(frame.columns):
        column = frame.iloc[:, i]
        if column.dtype != object:
            found[str(name)] = None
            continue
        for cell in column:
            _collect_paths(cell, str(name), found)
        if not any(path == name or path.startswith(f"{name}.") for path in found):
            found[str(name)] = None
    return list(found)


def personal_fields(paths: Iterable[str], frame: pd.DataFrame) -> list[str]:
    """Fields that by their name, or by e-mail addresses in them, tell who somebody is.

    Examples
    --------
    >>> frame = pd.DataFrame({"by.first_name": ["An"], "contact": ["an@example.org"], "model_name": ["x"]})
    >>> personal_fields(list(frame.columns), frame)
    ['by.first_name', 'contact']
    """
    by_name = [path for path in paths if _PERSONAL.search(path.rpartition(".")[2].casefold())]
    by_content = [
        str(name)
        for i, name in enumerate(frame.columns)
        if name not in by_name
        and any(isinstance(cell, str) and _EMAIL.fullmatch(cell) for cell in frame.iloc[:, i])
    ]
    return [*by_name, *by_content]


def _collect_paths(cell: Any, path: str, found: dict[str, None], depth: int = 0) -> None:
    if is_missing(cell) or (isinstance(cell, list | np.ndarray) and not len(cell)):
        return
    if isinstance(cell, Mapping) and depth < _DEEPEST:
        for name, value in cell.items():
            _collect_paths(value, f"{path}.{name}", found, depth + 1)
    elif isinstance(cell, list | tuple | np.ndarray) and len(cell) and isinstance(cell[0], Mapping):
        for value in cell:
            _collect_paths(value, path, found, depth)
    else:
        found[path] = None


NOT_SUBMITTED = "not submitted"
NO_PREFERENCE = "no preference given"
TEXTS = ("prompt", "response_a", "response_b")
NOT_A_PAIR = "not a pair of responses"


@dataclass(frozen=True)
class Asked:
    """What the user said about an export.

    Attributes
    ----------
    columns : mapping of str to str or None
        Our column -> the export's field.
    winners : mapping of str to str
        The export's labels -> a, b or tie.
    """

    columns: Mapping[str, str | None] = field(default_factory=dict)
    winners: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Votes:
    """What an importer found.

    Attributes
    ----------
    rows : list of dict
        One for each vote, under our column names, with the source's own annotator ids, and ``when`` for its time.
    left_out : list of (str, str or None)
        Reason and annotator of every answer that is no vote.
    used : sequence of str
        Fields of the export that went into the rows, dotted, with ``.*`` for all that is inside one; the others stay
        behind.
    findings : tuple of Problem
        Warnings and notices.
    """

    rows: list[dict[str, Any]]
    left_out: list[tuple[str, str | None]]
    used: Sequence[str]
    findings: tuple[Problem, ...] = ()


def require_fields(asked: Asked, names: Sequence[str], found: Sequence[str], source: str) -> None:
    """Raise E103 for every field that the user names and the export does not have.

    Parameters
    ----------
    asked : Asked
    names : sequence of str
        Our names whose fields are looked for.
    found : sequence of str
        The export's fields.
    source : str

    Examples
    --------
    >>> require_fields(Asked({"prompt": "text"}), ["prompt"], ["text", "id"], "export.json")
    """
    problems = []
    for ours in names:
        theirs = asked.columns.get(ours)
        if theirs is not None and theirs not in found:
            what = f'field "{theirs}" (for {ours}) is not in the export.{did_you_mean(theirs, found)}'
            problems.append(Problem("E103", what, source, f"found: {', '.join(found)}", "error"))
    if problems:
        raise DataError(problems)


def no_field(ours: str, found: Sequence[str], source: str) -> DataError:
    """The error for a field that is in the export under a name that cannot be guessed.

    Examples
    --------
    >>> print(no_field("response_a and response_b", ["x", "y"], "export.json").problems[0].what)
    cannot tell which field is response_a and response_b; found: x, y
    """
    what = f"cannot tell which field is {ours}; found: {', '.join(found) or 'none'}"
    names = " ".join(f"--column {name}=..." for name in ours.split(" and "))
    return DataError([Problem("E146", what, source, f"name it: {names}", "error")])


def text_fields(
    asked: Asked, names: Sequence[str], source: str, compared: tuple[str, str] | None = None
) -> tuple[str, str, str]:
    """The fields of the prompt and of the two responses: as the user says, as ``compared``, or by their names.

    Raises
    ------
    DataError
        E103 for a field that is not there, E146 for one that cannot be told.
    """
    require_fields(asked, TEXTS, names, source)
    a, b = (asked.columns.get(name) for name in TEXTS[1:])
    sides = (a, b) if a and b else compared or side_fields(names)
    if sides is None:
        raise no_field("response_a and response_b", names, source)
    others = [name for name in names if name not in sides]
    prompt = asked.columns.get("prompt") or prompt_field(others)
    if prompt is None:
        raise no_field("prompt", others, source)
    return prompt, *sides
