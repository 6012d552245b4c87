"""MultiPref with its votes one by one: two crowd workers and two experts for each pair of completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from badpo.importers.fields import NO_PREFERENCE, Export, Importer, listed

POOLS = {"normal_worker_annotations": "normal", "expert_worker_annotations": "expert"}
WINNERS = {
    "A-is-clearly-better": "a",
    "A-is-slightly-better": "a",
    "Tie": "tie",
    "B-is-slightly-better": "b",
    "B-is-clearly-better": "b",
}


# our column -> the export's
_PAIR = {
    "comparison_id": "comparison_id",
    "prompt_id": "prompt_id",
    "prompt": "text",
    "response_a": "completion_a",
    "response_b": "completion_b",
    "model_a": "model_a",
    "model_b": "model_b",
}


def read_multipref(export: Export) -> Iterator[dict[str, Any]]:
    """One row for each annotation, by its overall preference; ``--column winner=`` names another of the questions.

    Clear and slight preferences count alike, and a tie is a tie: as in the paper, which leaves ties out. An
    annotation without one of the five answers is left out and counted.
    """
    export.used |= {*_PAIR.values(), *POOLS}
    pool = next(pool for pool in POOLS if pool in export.names)
    first = [name for cell in export.table.frame[pool] for name in next(iter(listed(cell)), ())]
    export.require(("winner",), list(dict.fromkeys(first)))
    question = export.columns.get("winner") or "overall_pref"
    for record in export.records():
        pair = {ours: record.get(theirs) for ours, theirs in _PAIR.items()}
        for name, pool in POOLS.items():
            for annotation in listed(record.get(name)):
                winner, who = WINNERS.get(annotation.get(question)), annotation.get("evaluator")
                if winner is None:
                    yield {"left_out": NO_PREFERENCE, "annotator": who}
                else:
                    when = annotation.get("timestamp")
                    vote = {"winner": winner, "annotator": who, "annotator_class": pool, "when": when}
                    yield pair | vote


IMPORTER = Importer(
    "MultiPref with its votes one by one",
    tuple(frozenset({"completion_a", "completion_b", pool}) for pool in POOLS),
    read_multipref,
    columns=("winner",),
)
