"""Argilla's exports: responses beside the record, flat (2.x), nested (2.x) or as lists of answers (1.x)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from badpo.importers.fields import (
    NO_PREFERENCE,
    NOT_SUBMITTED,
    TEXTS,
    Export,
    Importer,
    is_missing,
    listed,
    side_of,
)

_FLAT = ".responses"
# what no text of a record is called
_OWN = (
    *("id", "status", "_server_id", "fields", "responses", "suggestions", "metadata", "vectors"),
    "external_id",
)
_LOOKED_AT = 100  # rows in which a column of answers is looked for


def _looks_like(export: Export) -> bool:
    """Whether rows hold answers of users, in one of Argilla's three shapes."""
    return any(map(_answers, islice(export.records(), _LOOKED_AT)))


def read_argilla(export: Export) -> Iterator[dict[str, Any]]:
    """One row for each submitted response to one question.

    The question is a label, such as ``response_a``, ``A`` or ``tie``, or a ranking of the two fields. Drafts and
    discarded responses are left out and counted. ``columns={"winner": "preference"}`` names the question where there
    are several; ``prompt``, ``response_a``, ``response_b`` name fields that cannot be recognised.
    """
    records = [(record, _fields(record), _answers(record)) for record in export.records()]
    questions = list(dict.fromkeys(name for _, _, answers in records for name in answers))
    question = export.columns.get("winner") or (questions[0] if len(questions) == 1 else None)
    if question not in questions:
        none = f'; "{question}" is none of them' if question else ""
        what = f"{len(questions)} questions: {', '.join(questions)}{none}"
        raise export.refusal("E146", what, f"name one: --column winner={next(iter(questions), 'QUESTION')}")
    names = list(dict.fromkeys(name for _, fields, _ in records for name in fields))
    prompt, a, b = export.text_fields(names)
    parts = ("", _FLAT, f"{_FLAT}.users", f"{_FLAT}.status")
    export.used |= {"id", "fields", "responses", prompt, a, b, *(f"{question}{part}" for part in parts)}
    for record, fields, answers in records:
        pair = {"prompt": fields.get(prompt), "response_a": fields.get(a), "response_b": fields.get(b)}
        if "id" in record:
            pair["comparison_id"] = str(record["id"])
        for answer in answers.get(question, ()):
            who = _text(answer.get("user_id"))
            winner = _winner(answer.get("value"), a, b, export.winners)
            if _text(answer.get("status")) not in (None, "submitted"):
                yield {"left_out": NOT_SUBMITTED, "annotator": who}
            elif winner is None:
                yield {"left_out": NO_PREFERENCE, "annotator": who}
            else:
                yield pair | {"winner": winner, "annotator": who}


def _answers(record: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The answers to each question, with ``user_id``, ``value`` and ``status``."""
    if isinstance(record.get("responses"), Mapping) and "fields" in record:
        return {name: listed(given) for name, given in record["responses"].items()}
    found = {name: listed(cell) for name, cell in record.items() if _are_answers(cell)}
    for name in [name for name in record if name.endswith(_FLAT) and f"{name}.users" in record]:
        columns = [listed(record.get(f"{name}{part}")) for part in ("", ".users", ".status")]
        keys = ("value", "user_id", "status")
        found[name.removesuffix(_FLAT)] = [
            {key: column[i] for key, column in zip(keys, columns, strict=True) if i < len(column)}
            for i in range(len(columns[0]))
        ]
    return found


def _are_answers(cell: Any) -> bool:
    first = next(iter(listed(cell)), None)
    return isinstance(first, Mapping) and {"user_id", "value"} <= set(first)


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of a record: its fields object, or the flat columns that are neither answers nor suggestions."""
    if isinstance(record.get("fields"), Mapping):
        return dict(record["fields"])
    return {
        name: value
        for name, value in record.items()
        if name not in _OWN
        and not any(part in name for part in (_FLAT, ".suggestion"))
        and not _are_answers(value)
    }


def _winner(value: Any, a: str, b: str, winners: Mapping[str, str]) -> str | None:
    """The side that a label names or a ranking puts first; None for an empty answer."""
    order = list(_ranked(value))
    if not order and isinstance(value, str | int | float) and not is_missing(value):
        return side_of(value, a, b, winners)
    best = [label for rank, label in order if rank == min(order)[0]] if order else []
    return None if not best else "tie" if len(best) > 1 else side_of(best[0], a, b, winners)


def _ranked(value: Any) -> Iterable[tuple[Any, str]]:
    """Ranks and labels of an answer that is a ranking: an object of lists, a list of objects, or labels in order."""
    if isinstance(value, Mapping):
        value = [
            {"rank": rank, "value": label}
            for rank, label in zip(listed(value.get("rank")), listed(value.get("value")), strict=False)
        ]
    for i, entry in enumerate(listed(value)):
        rank, label = (entry.get("rank"), entry.get("value")) if isinstance(entry, Mapping) else (i, entry)
        if not is_missing(rank):
            yield rank, str(label)


def _text(value: Any) -> str | None:
    return None if is_missing(value) or str(value) == "None" else str(value)


IMPORTER = Importer(
    "Argilla records with responses",
    (frozenset({"QUESTION.responses", "QUESTION.responses.users"}), frozenset({"fields", "responses"})),
    read_argilla,
    columns=(*TEXTS, "winner"),
    labels=True,
    looks_like=_looks_like,
)
