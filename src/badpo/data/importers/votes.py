"""Votes taken out of another program's export, before they are a table of judgments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from badpo.data.importers.fields import prompt_field, side_fields
from badpo.data.problems import DataError, Problem, did_you_mean

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
