"""Prodigy's JSONL of choice tasks: two options, the accepted one wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from badpo.data.problems import Problem, counted
from badpo.data.tables import Table
from badpo.importers.fields import (
    NO_PREFERENCE,
    NOT_A_PAIR,
    NOT_SUBMITTED,
    Asked,
    Votes,
    listed,
    no_field,
    prompt_field,
    records_of,
    require_fields,
    side_of,
)

_PEOPLE = ("_annotator_id", "_session_id")
# what Prodigy calls a session that nobody named: the moment at which it began
_UNNAMED = re.compile(r"(?:.*-)?\d{4}-\d{2}-\d{2}(?:[_T]\d{2}-\d{2}-\d{2})?")


def is_prodigy(table: Table) -> bool:
    """Whether rows are answered tasks with options."""
    names = set(table.frame.columns)
    return {"answer", "options"} <= names and not names.isdisjoint({"_task_hash", "_input_hash", *_PEOPLE})


def read_prodigy(table: Table, asked: Asked) -> Votes:
    """One row for each accepted task with two options, in the order in which they were shown.

    An option that stands for a tie is no response. Rejected and ignored tasks, tasks with another number of options
    and tasks where nothing was chosen are left out and counted.

    Parameters
    ----------
    table : Table
    asked : Asked
        ``columns={"annotator": "_session_id"}`` reads another field than ``_annotator_id``.
    """
    tasks = list(records_of(table.frame))
    names = [str(name) for name in table.frame.columns]
    require_fields(asked, ("prompt", "annotator"), names, table.name)
    people = [asked.columns["annotator"]] if asked.columns.get("annotator") else _PEOPLE
    who = next((name for name in people if name in names), None)
    prompt = asked.columns.get("prompt") or prompt_field(name for name in names if not name.startswith("_"))
    if prompt is None:
        raise no_field("prompt", names, table.name)
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for task in tasks:
        annotator = task.get(who) if who else None
        options, ties = _options(task, asked.winners)
        accepted = [str(choice) for choice in listed(task.get("accept"))]
        if task.get("answer") != "accept":
            left_out.append((NOT_SUBMITTED, annotator))
        elif len(options) != 2:
            left_out.append((NOT_A_PAIR, annotator))
        elif not accepted:
            left_out.append((NO_PREFERENCE, annotator))
        else:
            first, second = options
            a_won, b_won = (str(option["id"]) in accepted for option in options)
            tied = a_won == b_won or not ties.isdisjoint(accepted)
            rows.append(
                {
                    "prompt": task.get(prompt),
                    "response_a": first.get("text"),
                    "response_b": second.get("text"),
                    "winner": "tie" if tied else "a" if a_won else "b",
                    "annotator": annotator,
                    "shown_first": "a",
                    "when": task.get("_timestamp"),
                }
            )
    used = [prompt, "options.id", "options.text", "accept", "answer", who or ""]
    return Votes(rows, left_out, used, _about_sessions(tasks, who, table.name))


def _options(
    task: Mapping[str, Any], winners: Mapping[str, str]
) -> tuple[list[Mapping[str, Any]], frozenset[str]]:
    """The options that are responses, and the ids of those that stand for a tie."""
    options = [
        option for option in listed(task.get("options")) if isinstance(option, Mapping) and "id" in option
    ]
    ties = frozenset(
        str(option["id"]) for option in options if side_of(option["id"], "", "", winners) == "tie"
    )
    return [option for option in options if str(option["id"]) not in ties], ties


def _about_sessions(tasks: list[dict[str, Any]], who: str | None, source: str) -> tuple[Problem, ...]:
    unnamed = sum(_UNNAMED.fullmatch(str(task.get(who))) is not None for task in tasks) if who else 0
    if not unnamed:
        return ()
    what = f"{counted(unnamed, 'task')} of sessions that are named by a date: one person may have many"
    remedy = "have annotators open the app with ?session=NAME; until then trust only pooled figures"
    return (Problem("W146", what, f'{source}, field "{who}"', remedy, "warning", unnamed),)
