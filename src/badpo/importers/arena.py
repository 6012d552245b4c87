"""Reader for Chatbot Arena battles and for MT-Bench votes, which have the same columns."""

from collections.abc import Iterator
from typing import Any

from badpo.data.cells import as_messages
from badpo.data.files import Json
from badpo.data.privacy import MODEL_CLASS
from badpo.data.reading import shared_beginning
from badpo.importers.export import NOT_A_PAIR, Export, Importer

COLUMNS = {"conversation_a", "conversation_b", "winner"}
MODEL_JUDGES = ("gpt4_pair",)  # MT-Bench's name for GPT-4 as a judge


def read_arena(export: Export) -> Iterator[Json]:
    """Yield one row for each battle; the prompt is the shared beginning of the two conversations.

    The annotators are read from the column ``judge``, or from the column that the user names. The arena shows model a
    on the left, so response a counts as shown first. Battles with the same texts are votes on the same comparison. If a
    judge is known to be a language model, its annotator class is "model".
    """
    who = export.chosen_field("annotator", export.names) or "judge"
    export.used |= {*COLUMNS, "model_a", "model_b", who}
    for record in export.records():
        label = record.get("winner")
        row = {"annotator": record.get(who), "shown_first": "a"}
        if row["annotator"] in MODEL_JUDGES:
            row["annotator_class"] = MODEL_CLASS
        row |= {name: record.get(name) for name in ("model_a", "model_b")}
        row["winner"] = None if label is None else export.side_of(label)
        try:
            first, second = (_messages(record.get(f"conversation_{side}")) for side in "ab")
        except ValueError:
            first = second = []
        n_shared = shared_beginning(first, second)
        row |= {
            "prompt": first[:n_shared],
            "response_a": first[n_shared:],
            "response_b": second[n_shared:],
        }
        yield row | {"left_out": None if n_shared else NOT_A_PAIR}


def _messages(cell: Any) -> list[Json]:
    """Return the messages of a conversation with their role and content only."""
    return [{"role": message["role"], "content": message["content"]} for message in as_messages(cell)]


IMPORTER = Importer("Chatbot Arena or MT-Bench battles", (COLUMNS,), read_arena)
