"""Battles of the Chatbot Arena, and of MT-Bench, which has the same columns."""

from __future__ import annotations

from typing import Any

from badpo.data.problems import Problem
from badpo.data.reading import shared_beginning
from badpo.data.tables import Table, as_messages
from badpo.importers.fields import NOT_A_PAIR, Asked, Votes, records_of, require_fields

WINNERS = {"model_a": "a", "model_b": "b", "tie": "tie", "tie (bothbad)": "tie", "both_bad": "tie"}


def is_arena(table: Table) -> bool:
    """Whether a table has the columns of battles."""
    return {"conversation_a", "conversation_b", "winner"} <= set(table.frame.columns)


def read_arena(table: Table, asked: Asked) -> Votes:
    """One row for each battle; the prompt is what the two conversations begin with.

    The annotator is the ``judge``. Model a stands on the left, so it counts as shown first. The same texts are one
    comparison, whichever battle they come from.

    Parameters
    ----------
    table : Table
    asked : Asked
    """
    require_fields(asked, ("annotator",), [str(name) for name in table.frame.columns], table.name)
    who = asked.columns.get("annotator", "judge")
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for record in records_of(table.frame):
        annotator = record.get(who) if who else None
        try:
            first, second = (_messages(record.get(f"conversation_{side}")) for side in "ab")
        except ValueError:
            left_out.append((NOT_A_PAIR, annotator))
            continue
        n_shared = shared_beginning(first, second)
        if n_shared == 0:
            left_out.append((NOT_A_PAIR, annotator))
            continue
        label = record.get("winner")
        rows.append(
            {
                "prompt": first[:n_shared],
                "response_a": first[n_shared:],
                "response_b": second[n_shared:],
                "winner": asked.winners.get(str(label), WINNERS.get(str(label), label)),
                "annotator": annotator,
                "model_a": record.get("model_a"),
                "model_b": record.get("model_b"),
                "shown_first": "a",
                "when": record.get("tstamp", record.get("timestamp")),
            }
        )
    used = ["conversation_a.*", "conversation_b.*", "winner", "model_a", "model_b", who or ""]
    return Votes(rows, left_out, used, _about_judges(table, who))


def _messages(cell: Any) -> list[dict[str, Any]]:
    return [{"role": message["role"], "content": message["content"]} for message in as_messages(cell)]


def _about_judges(table: Table, who: str | None) -> tuple[Problem, ...]:
    if who in table.frame.columns or "evaluation_session_id" not in table.frame.columns:
        return ()
    what = "battles without a judge: a session id is there, but one person may have many sessions"
    remedy = "nothing for a pooled bias; --column annotator=evaluation_session_id counts sessions as people"
    return (Problem("W146", what, table.name, remedy, "warning"),)
