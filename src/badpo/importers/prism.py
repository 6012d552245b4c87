"""Reader for PRISM, in which one person chooses among the answers of several models at every turn."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from badpo.data.files import Json
from badpo.importers.export import NO_PREFERENCE, Export, Importer, as_list

CONVERSATIONS = {"conversation_history", "user_id"}


def read_prism(export: Export) -> Iterator[Json]:
    """Yield one row for each answer that was not chosen; it is compared with the chosen answer of the same turn.

    A turn with four answers gives three pairs, so the votes of one turn are not independent. All pairs of a turn have
    the same prompt id, and confidence intervals are clustered by prompt. PRISM's scores are not imported, because they
    repeat the same person's judgment and do not measure quality. Each comparison has one annotator.
    """
    export.used |= {*CONVERSATIONS, "conversation_id"}
    for record in export.records():
        yield from _read_conversation(record)


def _read_conversation(record: Json) -> Iterator[Json]:
    """Yield the pairs of answers in one conversation, turn by turn."""
    turns: dict[Any, dict[str, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for entry in as_list(record.get("conversation_history")):
        turns[entry.get("turn")][entry.get("role")].append(entry)
    history: list[Json] = []
    for turn, messages in sorted(turns.items()):
        history = [
            *history,
            *({"role": "user", "content": entry.get("content")} for entry in messages["user"]),
        ]
        common = {"prompt_id": f"{record.get('conversation_id')}-t{turn}", "prompt": history}
        yield from _pairs(messages["model"], common | {"annotator": record.get("user_id")})
        chosen = [entry.get("content") for entry in messages["model"] if entry.get("if_chosen")]
        history = [*history, *({"role": "assistant", "content": content} for content in chosen[:1])]


def _pairs(answers: Sequence[Json], common: Json) -> Iterator[Json]:
    """Yield the pairs of the chosen answer and each other answer; response a is the answer that was shown first."""
    shown = sorted(answers, key=lambda entry: entry.get("within_turn_id") or 0)
    chosen = [i for i, entry in enumerate(shown) if entry.get("if_chosen")]
    if not chosen or len(shown) < 2:
        yield common | {"left_out": NO_PREFERENCE}
        return
    for other in [i for i in range(len(shown)) if i not in chosen]:
        sides = sorted((chosen[0], other))
        pair = {"comparison_id": f"{common['prompt_id']}-{sides[0]}-{sides[1]}", **common}
        pair["winner"] = "a" if sides[0] == chosen[0] else "b"
        for name, i in zip("ab", sides, strict=True):
            pair[f"response_{name}"] = [{"role": "assistant", "content": shown[i].get("content")}]
            pair[f"model_{name}"] = shown[i].get("model_name")
        yield pair


IMPORTER = Importer("PRISM's conversations", (CONVERSATIONS,), read_prism)
