"""PRISM: conversations in which one person chooses among several models' answers at every turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from badpo.data.tables import Table
from badpo.importers.fields import NO_PREFERENCE, Asked, Votes, listed, records_of

_OF_UTTERANCE = ("turn", "role", "content", "within_turn_id", "if_chosen", "model_name")
LATER_TURN = "later turn, whose history is only in conversations.jsonl"


def is_prism(table: Table) -> bool:
    """Whether a table is PRISM's conversations, or its utterances."""
    names = set(table.frame.columns)
    return {"conversation_history", "user_id"} <= names or {
        "user_prompt",
        "model_response",
        "if_chosen",
    } <= names


def read_prism(table: Table, asked: Asked) -> Votes:
    """The chosen answer of every turn against each of the others that were shown with it.

    Four answers make three pairs, so votes of one turn are not independent; they share a prompt, by which intervals
    are clustered. The scores that people gave stay behind: they are the same person's judgment again, not a measure
    of quality. Each comparison was seen by one person only.

    Parameters
    ----------
    table : Table
        ``conversations.jsonl``, or ``utterances.jsonl``, of which only the opening turns can be read.
    asked : Asked
    """
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    if "conversation_history" in table.frame.columns:
        for record in records_of(table.frame):
            begin = len(rows)
            _read_conversation(record, rows, left_out)
            for row in rows[begin:]:
                row["when"] = record.get("generated_datetime")
        history = [f"conversation_history.{name}" for name in _OF_UTTERANCE]
        return Votes(rows, left_out, ["user_id", "conversation_id", *history])
    turns: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for record in records_of(table.frame):
        turns[record.get("conversation_id"), record.get("turn")].append(record)
    for (conversation, turn), said in turns.items():
        person = said[0].get("user_id")
        if turn not in (0, "0"):
            left_out.append((LATER_TURN, person))
            continue
        answers = [entry | {"content": entry.get("model_response")} for entry in said]
        prompt = [{"role": "user", "content": said[0].get("user_prompt")}]
        rows += _pairs(answers, prompt, f"{conversation}-t{turn}", person, left_out)
    return Votes(
        rows, left_out, ["user_id", "conversation_id", *_OF_UTTERANCE, "user_prompt", "model_response"]
    )


def _read_conversation(
    record: Mapping[str, Any], rows: list[dict[str, Any]], left_out: list[tuple[str, str | None]]
) -> None:
    turns: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in listed(record.get("conversation_history")):
        turns[entry.get("turn")].append(entry)
    so_far: list[dict[str, Any]] = []
    for turn, said in sorted(turns.items()):
        so_far = so_far + [
            {"role": "user", "content": entry.get("content")} for entry in said if entry.get("role") == "user"
        ]
        answers = [entry for entry in said if entry.get("role") == "model"]
        key = f"{record.get('conversation_id')}-t{turn}"
        rows += _pairs(answers, so_far, key, record.get("user_id"), left_out)
        chosen = [entry for entry in answers if entry.get("if_chosen")]
        so_far = so_far + [{"role": "assistant", "content": entry.get("content")} for entry in chosen[:1]]


def _pairs(
    answers: Iterable[Mapping[str, Any]],
    prompt: list[dict[str, Any]],
    key: str,
    person: Any,
    left_out: list[tuple[str, str | None]],
) -> list[dict[str, Any]]:
    """The chosen answer against each of the others, the one shown first as side a."""
    shown = sorted(answers, key=lambda entry: entry.get("within_turn_id") or 0)
    chosen = [i for i, entry in enumerate(shown) if entry.get("if_chosen")]
    if not chosen or len(shown) < 2:
        left_out.append((NO_PREFERENCE, person))
        return []
    pairs = []
    for other in [i for i in range(len(shown)) if i not in chosen]:
        a, b = sorted((chosen[0], other))
        pairs.append(
            {
                "comparison_id": f"{key}-{a}-{b}",
                "prompt_id": key,
                "prompt": prompt,
                "response_a": [{"role": "assistant", "content": shown[a].get("content")}],
                "response_b": [{"role": "assistant", "content": shown[b].get("content")}],
                "winner": "a" if a == chosen[0] else "b",
                "annotator": person,
                "model_a": shown[a].get("model_name"),
                "model_b": shown[b].get("model_name"),
            }
        )
    return pairs
