"""Reader for Chatbot Arena battles and for MT-Bench votes, which have the same columns."""

from collections.abc import Iterator

from badpo.data.cells import as_messages
from badpo.data.privacy import MODEL_CLASS
from badpo.data.reading import shared_beginning
from badpo.importers.export import NOT_A_PAIR, Answer, Export, Importer

COLUMNS = {"conversation_a", "conversation_b", "winner"}
MODEL_JUDGES = ("gpt4_pair",)  # MT-Bench's name for GPT-4 as a judge


def read_arena(export: Export) -> Iterator[Answer]:
    """Yield one row for each battle; the prompt is the shared beginning of the two conversations.

    The annotators are read from the column ``judge``, or from the column that the user names. The arena shows model a
    on the left, so response a counts as shown first. Battles with the same texts are votes on the same comparison. If a
    judge is known to be a language model, its annotator class is "model".
    """
    who = export.chosen_field("annotator", export.names) or "judge"
    export.used |= {*COLUMNS, "model_a", "model_b", who}
    for record in export.records():
        label, judge = record.get("winner"), record.get(who)
        try:
            first, second = (
                [{name: message[name] for name in ("role", "content")} for message in as_messages(cell)]
                for cell in (record.get("conversation_a"), record.get("conversation_b"))
            )
        except ValueError:
            first = second = []
        n_shared = shared_beginning(first, second)
        yield Answer(
            first[:n_shared],
            first[n_shared:],
            second[n_shared:],
            winner=None if label is None else export.side_of(label),
            annotator=judge,
            annotator_class=MODEL_CLASS if judge in MODEL_JUDGES else None,
            model_a=record.get("model_a"),
            model_b=record.get("model_b"),
            shown_first="a",
            left_out=None if n_shared else NOT_A_PAIR,
        )


IMPORTER = Importer("Chatbot Arena or MT-Bench battles", (COLUMNS,), read_arena)
