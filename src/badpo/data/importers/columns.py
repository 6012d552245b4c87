"""Which column of a table is what: the user's names, the two layouts, and columns that come in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from badpo.data.problems import DataError, Problem, did_you_mean

REQUIRED = {
    "a_b": ("prompt", "response_a", "response_b", "winner"),
    "chosen_rejected": ("chosen", "rejected"),
}
OPTIONAL = (
    "prompt",
    "annotator",
    "annotator_class",
    "comparison_id",
    "prompt_id",
    "judgment_id",
    "weight",
    "shown_first",
)
KNOWN = tuple(dict.fromkeys([*OPTIONAL, *(name for names in REQUIRED.values() for name in names)]))
_SIDES = {"a": "b", "chosen": "rejected"}
_CONVERT = "; convert it: badpo import SRC -o judgments.parquet"
_ELSEWHERE = {
    ("prompt_ids", "chosen_ids"): "a TRL dataset that is tokenised already; give the texts",
    ("completion", "label"): "unpaired feedback (KTO); votes on pairs are needed",
    ("conversation_a", "conversation_b"): f"arena battles{_CONVERT}",
    ("normal_worker_annotations",): f"MultiPref, which keeps four votes in one row{_CONVERT}",
    ("overall_pref",): "MultiPref; write one row for each vote with the winner a, b or tie",
    ("data", "annotations"): f"a Label Studio export{_CONVERT}",
    ("annotation_id", "lead_time"): "a short Label Studio export; export it as JSON",
    ("fields", "responses"): f"an Argilla export{_CONVERT}",
    ("answer", "options"): f"a Prodigy export{_CONVERT}",
    ("conversation_history",): f"PRISM's conversations{_CONVERT}",
}
_ANNOTATOR_WORDS = ("annotator", "worker", "rater", "judge", "evaluator", "labeler", "labeller", "user")


@dataclass(frozen=True)
class Layout:
    """A table whose columns carry our names.

    Attributes
    ----------
    frame : DataFrame
        The columns under our names, the others under their own.
    kind : "a_b" or "chosen_rejected"
    theirs : dict of str to str
        Our name -> the source's, for messages.
    """

    frame: pd.DataFrame
    kind: str
    theirs: dict[str, str]

    def has(self, name: str) -> bool:
        """Whether the table has this column of ours."""
        return name in self.theirs


def recognise(frame: pd.DataFrame, source: str, columns: Mapping[str, str | None] | None = None) -> Layout:
    """The layout of a table, with its columns under our names.

    Parameters
    ----------
    frame : DataFrame
    source : str
        Name of the table for messages.
    columns : mapping or None
        Our name -> the table's; None as a value leaves a column of ours unused.

    Raises
    ------
    DataError
        E101 and E103: columns that are missing or misnamed, all of them at once.

    Examples
    --------
    >>> table = pd.DataFrame({"question": ["Why?"], "chosen": ["yes"], "rejected": ["no"]})
    >>> recognise(table, "votes.csv", {"prompt": "question"}).theirs
    {'prompt': 'question', 'chosen': 'chosen', 'rejected': 'rejected'}
    """
    found = [str(name) for name in frame.columns]
    problems = _mapping_problems(found, source, columns or {})
    theirs = _theirs(found, columns or {})
    kind = "a_b" if not _missing("a_b", theirs) else "chosen_rejected"
    if not problems and _missing(kind, theirs):
        problems.append(_missing_problem(found, theirs, source))
    if problems:
        raise DataError(problems)
    named = {name: frame.iloc[:, found.index(column)] for name, column in theirs.items()}
    unused = {
        name: frame.iloc[:, i]
        for i, name in enumerate(found)
        if name not in theirs.values() and name not in KNOWN
    }
    return Layout(pd.DataFrame(named | unused), kind, theirs)


def annotator_hint(found: Sequence[str]) -> str:
    """A column that may hold the annotators, named in a sentence; empty when none looks like it.

    Examples
    --------
    >>> annotator_hint(["prompt", "worker_id"])
    ' "worker_id" looks like it: columns={"annotator": "worker_id"}.'
    """
    like = [name for name in found if any(word in name.casefold() for word in _ANNOTATOR_WORDS)]
    return f' "{like[0]}" looks like it: columns={{"annotator": "{like[0]}"}}.' if like else ""


def side_pairs(names: Sequence[str]) -> dict[str, str]:
    """Columns that hold one value for each side: the name of the first side's -> the name of the second's.

    A name has ``a`` and ``b``, or ``chosen`` and ``rejected``, as one of the parts that underscores separate.
    Columns of identifiers are left out.

    Examples
    --------
    >>> side_pairs(["score_a", "score_b", "chosen_words", "rejected_words", "id_a", "id_b", "a_b"])
    {'score_a': 'score_b', 'chosen_words': 'rejected_words'}
    """
    pairs = {}
    for name in names:
        parts = name.split("_")
        sides = [i for i, part in enumerate(parts) if part in _SIDES]
        if len(sides) != 1 or "id" in parts or "ids" in parts:
            continue
        i = sides[0]
        other = "_".join([*parts[:i], _SIDES[parts[i]], *parts[i + 1 :]])
        if other in names:
            pairs[name] = other
    return pairs


def _theirs(found: Sequence[str], columns: Mapping[str, str | None]) -> dict[str, str]:
    names = {name: columns.get(name, name) for name in KNOWN}
    return {name: column for name, column in names.items() if column is not None and column in found}


def _missing(kind: str, theirs: Mapping[str, str]) -> list[str]:
    return [name for name in REQUIRED[kind] if name not in theirs]


def _mapping_problems(found: list[str], source: str, columns: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for name in dict.fromkeys(name for name in found if found.count(name) > 1):
        problems.append(
            Problem(
                "E103",
                f'{found.count(name)} columns are called "{name}"',
                source,
                "rename all but one",
                "error",
            )
        )
    for ours, column in columns.items():
        if ours not in KNOWN:
            what = f'columns has no entry "{ours}".{did_you_mean(ours, KNOWN)}'
            problems.append(Problem("E103", what, source, f"use one of {', '.join(KNOWN)}", "error"))
        elif column is not None and column not in found:
            what = f'column "{column}" (for {ours}) is not in the table.{did_you_mean(str(column), found)}'
            problems.append(Problem("E103", what, source, f"found: {', '.join(found)}", "error"))
    return problems


def _missing_problem(found: list[str], theirs: Mapping[str, str], source: str) -> Problem:
    kind = max(
        REQUIRED, key=lambda kind: sum(name in theirs for name in REQUIRED[kind]) / len(REQUIRED[kind])
    )
    missing = _missing(kind, theirs)
    hints = [f'"{name}":{did_you_mean(name, found)}' for name in missing if did_you_mean(name, found)]
    looks = next((what for signs, what in _ELSEWHERE.items() if all(sign in found for sign in signs)), None)
    if looks:
        remedy = f"this looks like {looks}"
    elif any(name in theirs for name in REQUIRED[kind]):
        needed = ", ".join(REQUIRED[kind])
        remedy = f'this looks like a {needed} table; name the columns with columns={{"{missing[0]}": "..."}}'
    else:
        remedy = "give prompt, chosen, rejected or prompt, response_a, response_b, winner, or map them with columns"
    return Problem(
        "E101",
        f"columns missing: {', '.join(missing)}. {' '.join(hints)}".rstrip(),
        f"{source}, found: {', '.join(found) or 'no column'}",
        remedy,
        "error",
        len(missing),
    )
