"""Readers for public data sets of votes: Chatbot Arena, MT-Bench, MultiPref and PRISM."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from badpo.data.cells import as_messages
from badpo.data.privacy import MODEL_CLASS
from badpo.data.reading import shared_beginning
from badpo.importers.export import (
    NO_PREFERENCE,
    NOT_A_PAIR,
    Answer,
    Cell,
    Export,
    Importer,
    Record,
    as_records,
)

_BATTLE = {"conversation_a", "conversation_b", "winner"}
MODEL_JUDGES = ("gpt4_pair",)  # MT-Bench's name for GPT-4 as a judge

POOLS = {"normal_worker_annotations": "normal", "expert_worker_annotations": "expert"}
WINNERS = {
    "A-is-clearly-better": "a",
    "A-is-slightly-better": "a",
    "Tie": "tie",
    "B-is-slightly-better": "b",
    "B-is-clearly-better": "b",
}
# badpo's column -> column of MultiPref
_PAIR = {name: name for name in ("comparison_id", "prompt_id", "model_a", "model_b")} | {
    "prompt": "text",
    "response_a": "completion_a",
    "response_b": "completion_b",
}
MULTIPREF_COLUMNS = (*_PAIR.values(), *POOLS)

_CONVERSATIONS = {"conversation_history", "user_id"}


def read_arena(export: Export) -> Iterator[Answer]:
    """Yield one row for each battle of Chatbot Arena or each vote of MT-Bench, which has the same columns.

    The prompt is the common prefix of the two conversations. The annotators are in the column ``judge`` or in the
    column that the user names. The arena shows model a on the left, so response a counts as shown first. Battles with
    the same texts are votes on the same comparison. A judge that is known to be a language model is assigned to the
    annotator class "model".
    """
    who = export.chosen_field("annotator", export.names) or "judge"
    export.used |= {*_BATTLE, "model_a", "model_b", who}
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


ARENA = Importer("Chatbot Arena or MT-Bench battles", (_BATTLE,), read_arena)


def read_multipref(export: Export) -> Iterator[Answer]:
    """Yield one row per annotation; two crowd workers and two experts annotated each pair.

    The vote is the overall preference; ``--column winner=QUESTION`` imports another question. Clear and slight
    preferences count as the same vote. Annotations with none of MultiPref's five answers are left out and counted.
    """
    export.used |= set(MULTIPREF_COLUMNS)
    annotated = [
        (record, pool, annotation)
        for record in export.records()
        for name, pool in POOLS.items()
        for annotation in as_records(record.get(name))
    ]
    questions = dict.fromkeys(name for _, _, annotation in annotated for name in annotation)
    question = export.chosen_field("winner", list(questions)) or "overall_pref"
    for record, pool, annotation in annotated:
        pair = {column: record.get(name) for column, name in _PAIR.items()}
        winner = WINNERS.get(str(annotation.get(question)))
        who = annotation.get("evaluator")
        yield Answer(**pair, winner=winner, annotator=who, annotator_class=pool)


MULTIPREF = Importer(
    "MultiPref's individual votes",
    [{"completion_a", "completion_b", pool} for pool in POOLS],
    read_multipref,
)


def read_prism(export: Export) -> Iterator[Answer]:
    """Yield one row for each comparison of the chosen answer with another answer of the same turn.

    At each turn, one person chooses among the answers of several models. A turn with four answers gives three pairs, so
    the votes of one turn are not independent. All pairs of a turn have the same prompt id, and confidence intervals are
    clustered by prompt. PRISM's scores are not imported, because they repeat the same person's judgment and do not
    measure quality. Each comparison has one annotator.
    """
    export.used |= {*_CONVERSATIONS, "conversation_id"}
    for record in export.records():
        turns: dict[float, dict[Cell, list[Record]]] = defaultdict(lambda: defaultdict(list))
        for entry in as_records(record.get("conversation_history")):
            turns[_number(entry["turn"])][entry.get("role")].append(entry)
        history: list[Record] = []
        for turn, entries in sorted(turns.items()):
            history = history + _messages("user", entries["user"])
            prompt_id = f"{record.get('conversation_id')}-t{turn}"
            turn_answer = Answer(history, prompt_id=prompt_id, annotator=record.get("user_id"))
            yield from _pairs(entries["model"], turn_answer)
            chosen = [entry for entry in entries["model"] if entry.get("if_chosen")]
            history = history + _messages("assistant", chosen[:1])


def _number(cell: Cell) -> float:
    if not isinstance(cell, int | float):
        raise TypeError(f"{cell!r} is not a number")
    return cell


def _messages(role: str, entries: Sequence[Record]) -> list[Record]:
    """Convert ``entries`` to chat messages with the given role."""
    return [{"role": role, "content": entry.get("content")} for entry in entries]


def _pairs(answers: Sequence[Record], turn: Answer) -> Iterator[Answer]:
    """Pair the chosen answer with every other answer; response a is the answer that was shown first."""
    shown = sorted(answers, key=lambda entry: _number(entry.get("within_turn_id") or 0))
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


PRISM = Importer("PRISM's conversations", (_CONVERSATIONS,), read_prism)
