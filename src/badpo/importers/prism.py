"""Reader for PRISM, in which one person chooses among the answers of several models at every turn."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from badpo.data.files import Json
from badpo.importers.export import NO_PREFERENCE, Answer, Export, Importer, as_list

CONVERSATIONS = {"conversation_history", "user_id"}


def read_prism(export: Export) -> Iterator[Answer]:
    """Yield one row for each answer that was not chosen; it is compared with the chosen answer of the same turn.

    A turn with four answers gives three pairs, so the votes of one turn are not independent. All pairs of a turn have
    the same prompt id, and confidence intervals are clustered by prompt. PRISM's scores are not imported, because they
    repeat the same person's judgment and do not measure quality. Each comparison has one annotator.
    """
    export.used |= {*CONVERSATIONS, "conversation_id"}
    for record in export.records():
        turns: dict[Any, dict[str, list[Json]]] = defaultdict(lambda: defaultdict(list))
        for entry in as_list(record.get("conversation_history")):
            turns[entry.get("turn")][entry.get("role")].append(entry)
        history: list[Mapping[str, str | None]] = []
        for turn, entries in sorted(turns.items()):
            history = history + _messages("user", entries["user"])
            prompt_id = f"{record.get('conversation_id')}-t{turn}"
            turn_answer = Answer(history, prompt_id=prompt_id, annotator=record.get("user_id"))
            yield from _pairs(entries["model"], turn_answer)
            chosen = [entry for entry in entries["model"] if entry.get("if_chosen")]
            history = history + _messages("assistant", chosen[:1])


def _messages(role: str, entries: Sequence[Json]) -> list[Mapping[str, str | None]]:
    """Return ``entries`` as chat messages with the given role."""
    return [{"role": role, "content": entry.get("content")} for entry in entries]


def _pairs(answers: Sequence[Json], turn: Answer) -> Iterator[Answer]:
    """Yield the pairs of the chosen answer and each other answer; response a is the answer that was shown first."""
    shown = sorted(answers, key=lambda entry: entry.get("within_turn_id") or 0)
    chosen = [i for i, entry in enumerate(shown) if entry.get("if_chosen")]
    if not chosen or len(shown) < 2:
        yield replace(turn, left_out=NO_PREFERENCE)
        return
    for other in [i for i in range(len(shown)) if i not in chosen]:
        first, second = sorted((chosen[0], other))
        yield replace(
            turn,
            response_a=_messages("assistant", [shown[first]]),
            response_b=_messages("assistant", [shown[second]]),
            winner="a" if first == chosen[0] else "b",
            comparison_id=f"{turn.prompt_id}-{first}-{second}",
            model_a=shown[first].get("model_name"),
            model_b=shown[second].get("model_name"),
        )


IMPORTER = Importer("PRISM's conversations", (CONVERSATIONS,), read_prism)
