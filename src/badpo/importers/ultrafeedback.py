"""UltraFeedback binarized: pairs of answers with a model's scores, and no votes."""

from __future__ import annotations

from typing import Any

from badpo.data.problems import Problem
from badpo.data.tables import Table, as_messages
from badpo.importers.fields import NOT_A_PAIR, Asked, Votes, records_of

SCORES = ("score_chosen", "score_rejected")


def is_ultrafeedback(table: Table) -> bool:
    """Whether rows are chosen and rejected conversations with scores and the full messages beside."""
    return {"prompt", "chosen", "rejected", "messages", *SCORES} <= set(table.frame.columns)


def read_ultrafeedback(table: Table, asked: Asked) -> Votes:
    """One scored pair for each row: prompt and last answers as text, with both scores.

    No person voted on these pairs, so nothing can be learned from them about annotators. They are what
    `badpo corpus signed` builds votes with planted leans on.

    Parameters
    ----------
    table : Table
    asked : Asked
    """
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for record in records_of(table.frame):
        try:
            answers = {side: _last_answer(record.get(side)) for side in ("chosen", "rejected")}
        except ValueError:
            left_out.append((NOT_A_PAIR, None))
            continue
        scores = {name: record.get(name) for name in SCORES}
        rows.append(
            {"prompt_id": record.get("prompt_id"), "prompt": record.get("prompt"), **answers, **scores}
        )
    what = "scored pairs, not votes: a model gave the scores, and no annotator can be told from them"
    remedy = "build votes on them with badpo corpus signed; some of the scores are known to be wrong"
    finding = Problem("N147", what, table.name, remedy, "notice", len(rows))
    return Votes(rows, left_out, ["prompt_id", "prompt", "chosen.*", "rejected.*", *SCORES], (finding,))


def _last_answer(cell: Any) -> str:
    messages = as_messages(cell)
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("the conversation does not end with an answer")
    return messages[-1]["content"]
