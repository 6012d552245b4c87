"""MultiPref with its votes one by one: two crowd workers and two experts for each pair of completions."""

from __future__ import annotations

from typing import Any

from badpo.data.tables import Table
from badpo.importers.fields import NO_PREFERENCE, Asked, Votes, listed, records_of, require_fields

POOLS = {"normal_worker_annotations": "normal", "expert_worker_annotations": "expert"}
WINNERS = {
    "A-is-clearly-better": "a",
    "A-is-slightly-better": "a",
    "Tie": "tie",
    "B-is-slightly-better": "b",
    "B-is-clearly-better": "b",
}


def is_multipref(table: Table) -> bool:
    """Whether a table has MultiPref's columns of annotations."""
    return {"completion_a", "completion_b"} <= set(table.frame.columns) and not set(POOLS).isdisjoint(
        table.frame.columns
    )


def read_multipref(table: Table, asked: Asked) -> Votes:
    """One row for each annotation, by its overall preference.

    Clear and slight preferences count alike, and a tie is a tie: as in the paper, which leaves ties out. An
    annotation without one of the five answers is left out and counted.

    Parameters
    ----------
    table : Table
    asked : Asked
        ``columns={"winner": "helpful_pref"}`` reads another of the four questions.
    """
    questions = [
        name
        for cell in table.frame[next(pool for pool in POOLS if pool in table.frame.columns)]
        for annotation in listed(cell)[:1]
        for name in annotation
    ]
    require_fields(asked, ("winner",), list(dict.fromkeys(questions)), table.name)
    question = asked.columns.get("winner") or "overall_pref"
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for record in records_of(table.frame):
        pair = {
            "comparison_id": record.get("comparison_id"),
            "prompt_id": record.get("prompt_id"),
            "prompt": record.get("text"),
            "response_a": record.get("completion_a"),
            "response_b": record.get("completion_b"),
            "model_a": record.get("model_a"),
            "model_b": record.get("model_b"),
        }
        for name, pool in POOLS.items():
            for annotation in listed(record.get(name)):
                winner = WINNERS.get(annotation.get(question))
                if winner is None:
                    left_out.append((NO_PREFERENCE, annotation.get("evaluator")))
                    continue
                vote = {"winner": winner, "annotator": annotation.get("evaluator"), "annotator_class": pool}
                rows.append(pair | vote | {"when": annotation.get("timestamp")})
    used = ["comparison_id", "prompt_id", "text", "completion_a", "completion_b", "model_a", "model_b"]
    used += [f"{pool}.{name}" for pool in POOLS for name in ("evaluator", question)]
    return Votes(rows, left_out, used)
