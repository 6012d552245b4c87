"""PRISM: conversations in which one person chooses among several models' answers at every turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from badpo.importers.fields import NO_PREFERENCE, Export, Importer, listed

CONVERSATIONS = frozenset({"conversation_history", "user_id"})
UTTERANCES = frozenset({"user_prompt", "model_response", "if_chosen"})
LATER_TURN = "later turn, whose history is only in conversations.jsonl"


def read_prism(export: Export) -> Iterator[dict[str, Any]]:
    """The chosen answer of every turn against each of the others that were shown with it.

    Four answers make three pairs, so votes of one turn are not independent; they share a prompt, by which intervals
    are clustered. The scores that people gave stay behind: they are the same person's judgment again, not a measure
    of quality. Each comparison was seen by one person only. Of ``utterances.jsonl`` only the opening turns can be read.
    """
    export.used |= {*CONVERSATIONS, *UTTERANCES, "conversation_id", "turn", "within_turn_id", "model_name"}
    if "conversation_history" in export.names:
        for record in export.records():
            yield from _of_conversation(record)
        return
    turns: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for record in export.records():
        turns[record.get("conversation_id"), record.get("turn")].append(record)
    for (conversation, turn), said in turns.items():
        person = said[0].get("user_id")
        if turn not in (0, "0"):
            yield {"left_out": LATER_TURN, "annotator": person}
            continue
        answers = [entry | {"content": entry.get("model_response")} for entry in said]
        prompt = [{"role": "user", "content": said[0].get("user_prompt")}]
        yield from _pairs(
            answers, {"prompt_id": f"{conversation}-t{turn}", "prompt": prompt, "annotator": person}
        )


def _of_conversation(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    turns: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in listed(record.get("conversation_history")):
        turns[entry.get("turn")].append(entry)
    so_far: list[dict[str, Any]] = []
    for turn, said in sorted(turns.items()):
        asked = [entry for entry in said if entry.get("role") == "user"]
        answers = [entry for entry in said if entry.get("role") == "model"]
        so_far = [*so_far, *({"role": "user", "content": entry.get("content")} for entry in asked)]
        common: dict[str, Any] = {"prompt_id": f"{record.get('conversation_id')}-t{turn}", "prompt": so_far}
        common |= {"annotator": record.get("user_id"), "when": record.get("generated_datetime")}
        yield from _pairs(answers, common)
        chosen = [entry.get("content") for entry in answers if entry.get("if_chosen")]
        so_far = [*so_far, *({"role": "assistant", "content": content} for content in chosen[:1])]


def _pairs(answers: Iterable[Mapping[str, Any]], common: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chosen answer against each of the others, the one shown first as side a."""
    shown = sorted(answers, key=lambda entry: entry.get("within_turn_id") or 0)
    chosen = [i for i, entry in enumerate(shown) if entry.get("if_chosen")]
    if not chosen or len(shown) < 2:
        yield {"left_out": NO_PREFERENCE, "annotator": common["annotator"]}
        return
    for other in [i for i in range(len(shown)) if i not in chosen]:
        sides = sorted((chosen[0], other))
        pair = {"comparison_id": f"{common['prompt_id']}-{sides[0]}-{sides[1]}", **common}
        pair["winner"] = "a" if sides[0] == chosen[0] else "b"
        for name, i in zip("ab", sides, strict=True):
            pair[f"response_{name}"] = [{"role": "assistant", "content": shown[i].get("content")}]
            pair[f"model_{name}"] = shown[i].get("model_name")
        yield pair


IMPORTER = Importer("PRISM's conversations or utterances", (CONVERSATIONS, UTTERANCES), read_prism)
