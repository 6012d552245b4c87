"""Label Studio's JSON export of a project with a Pairwise control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from badpo.data.problems import DataError, Problem
from badpo.data.tables import Table
from badpo.importers.fields import (
    NO_PREFERENCE,
    NOT_SUBMITTED,
    Asked,
    Votes,
    listed,
    records_of,
    side_of,
    text_fields,
)

_SELECTED = {"left": "a", "right": "b"}


def is_label_studio(table: Table) -> bool:
    """Whether rows are tasks with data and annotations."""
    names = set(table.frame.columns)
    return "data" in names and not names.isdisjoint({"annotations", "completions"})


def read_label_studio(table: Table, asked: Asked) -> Votes:
    """One row for each annotation that was not cancelled; the task is the comparison, left is side a.

    Of ``completed_by`` only the id is taken, so that a name or an e-mail address never leaves the export. Where the
    question also has a Choices control, its answer is read where the pair has none, such as ``tie``.

    ``columns={"response_a": "text1", "response_b": "text2", "prompt": "question"}`` names fields of a task's data,
    ``columns={"winner": "pw"}`` a control, where they cannot be recognised.
    """
    tasks = list(records_of(table.frame))
    names = list(dict.fromkeys(name for task in tasks for name in task.get("data") or {}))
    # the control names the objects it compares, left and right, and these are often called as the fields
    compared = [str(entry.get("to_name")).split(",") for entry in _controls(tasks)]
    pairs = [(two[0], two[1]) for two in compared if len(two) == 2 and set(two) <= set(names)]
    prompt, a, b = text_fields(asked, names, table.name, next(iter(pairs), None))
    control = asked.columns.get("winner") or _control(tasks, table.name)
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for number, task in enumerate(tasks, start=1):
        data = task.get("data") or {}
        pair = {
            "comparison_id": str(task.get("id", f"task {number}")),
            "prompt": data.get(prompt),
            "response_a": data.get(a),
            "response_b": data.get(b),
            "shown_first": "a",
        }
        for annotation in listed(task.get("annotations", task.get("completions"))):
            who = _person(annotation.get("completed_by"))
            winner = _winner(annotation, control, a, b, asked.winners)
            if annotation.get("was_cancelled"):
                left_out.append((NOT_SUBMITTED, who))
            elif winner is None:
                left_out.append((NO_PREFERENCE, who))
            else:
                when = annotation.get("created_at")
                rows.append(pair | {"winner": winner, "annotator": who, "when": when})
    answers = ("completed_by.id", "completed_by", "result.*", "was_cancelled")
    used = ["id", *(f"data.{name}.*" for name in (prompt, a, b))]
    used += [f"{name}.{answer}" for name in ("annotations", "completions") for answer in answers]
    return Votes(rows, left_out, used)


def _controls(tasks: Sequence[Mapping]) -> Iterable[Mapping]:
    for task in tasks:
        for annotation in listed(task.get("annotations", task.get("completions"))):
            results = listed(annotation.get("result"))
            yield from (entry for entry in results if entry.get("type") == "pairwise")


def _control(tasks: Sequence[Mapping], source: str) -> str | None:
    names = sorted({str(entry.get("from_name")) for entry in _controls(tasks)})
    if len(names) > 1:
        what = f"{len(names)} pairwise questions: {', '.join(names)}"
        remedy = f"import one at a time: --column winner={names[0]}"
        raise DataError([Problem("E146", what, source, remedy, "error")])
    return next(iter(names), None)


def _winner(
    annotation: Mapping, control: str | None, a: str, b: str, winners: Mapping[str, str]
) -> str | None:
    entries = listed(annotation.get("result"))
    for entry in entries:
        if entry.get("type") == "pairwise" and str(entry.get("from_name")) == control:
            selected = (entry.get("value") or {}).get("selected")
            if selected in _SELECTED:
                return _SELECTED[selected]
    for entry in entries:
        choices = listed((entry.get("value") or {}).get("choices"))
        if entry.get("type") == "choices" and choices:
            return side_of(choices[0], a, b, winners)
    return None


def _person(completed_by: Any) -> str | None:
    if isinstance(completed_by, Mapping):
        completed_by = completed_by.get("id", completed_by.get("email"))
    return None if completed_by is None else str(completed_by)
