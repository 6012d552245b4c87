"""Battles of the Chatbot Arena, and of MT-Bench, which has the same columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from badpo.data.reading import shared_beginning
from badpo.data.tables import as_messages
from badpo.importers.fields import NOT_A_PAIR, Export, Importer

COLUMNS = frozenset({"conversation_a", "conversation_b", "winner"})
WINNERS = {"model_a": "a", "model_b": "b", "tie": "tie", "tie (bothbad)": "tie", "both_bad": "tie"}


def read_arena(export: Export) -> Iterator[dict[str, Any]]:
    """One row for each battle; the prompt is what the two conversations begin with.

    The annotator is the ``judge``. Model a stands on the left, so it counts as shown first. The same texts are one
    comparison, whichever battle they come from.
    """
    export.require(("annotator",), export.names)
    who = export.columns.get("annotator", "judge") or ""
    export.used |= {*COLUMNS, "model_a", "model_b", who}
    if who not in export.names and "evaluation_session_id" in export.names:
        what = "battles without a judge: a session id is there, but one person may have many sessions"
        remedy = (
            "nothing for a pooled bias; --column annotator=evaluation_session_id counts sessions as people"
        )
        export.note("W146", what, remedy)
    for record in export.records():
        annotator = record.get(who)
        try:
            first, second = (_messages(record.get(f"conversation_{side}")) for side in "ab")
            n_shared = shared_beginning(first, second)
        except ValueError:
            n_shared = 0
        if n_shared == 0:
            yield {"left_out": NOT_A_PAIR, "annotator": annotator}
            continue
        label = str(record.get("winner"))
        yield {
            "prompt": first[:n_shared],
            "response_a": first[n_shared:],
            "response_b": second[n_shared:],
            "winner": export.winners.get(label, WINNERS.get(label, record.get("winner"))),
            "annotator": annotator,
            "model_a": record.get("model_a"),
            "model_b": record.get("model_b"),
            "shown_first": "a",
            "when": record.get("tstamp", record.get("timestamp")),
        }


def _messages(cell: Any) -> list[dict[str, Any]]:
    return [{"role": message["role"], "content": message["content"]} for message in as_messages(cell)]


IMPORTER = Importer(
    "battles of the Chatbot Arena or MT-Bench", (COLUMNS,), read_arena, columns=("annotator",), labels=True
)
