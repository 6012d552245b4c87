"""Argilla's exports: responses beside the record, in columns of their own or nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from badpo.importers.fields import NOT_SUBMITTED, Export, Importer, is_missing, listed

_FLAT = ".responses"
# what no text of a record is called
_OWN = ("id", "status", "_server_id", "fields", "responses", "suggestions", "metadata", "vectors")


def read_argilla(export: Export) -> Iterator[dict[str, Any]]:
    """One row for each submitted response to one question.

    The question is a label, such as ``response_a``, ``A`` or ``tie``, or the two fields in order. Drafts and
    discarded responses are left out and counted. ``columns={"winner": "preference"}`` names the question where there
    are several; ``prompt``, ``response_a``, ``response_b`` name fields that cannot be recognised.
    """
    records = [(record, _fields(record), _answers(record)) for record in export.records()]
    questions = list(dict.fromkeys(name for _, _, answers in records for name in answers))
    question = export.named("winner", questions) or (questions[0] if len(questions) == 1 else None)
    if question is None:
        what = f"{len(questions)} questions: {', '.join(questions)}"
        raise export.refusal(
            "E146", what, f"name one: --column winner={next(iter(questions), 'QUESTION')}"
        )
    prompt, a, b = export.text_fields(
        list(dict.fromkeys(name for _, fields, _ in records for name in fields))
    )
    parts = ("", ".users", ".status")
    export.used |= {"id", "fields", "responses", prompt, a, b, *(f"{question}{_FLAT}{p}" for p in parts)}
    for number, (record, fields, answers) in enumerate(records, start=1):
        pair = {"prompt": fields.get(prompt), "response_a": fields.get(a), "response_b": fields.get(b)}
        pair["comparison_id"] = str(record.get("id", f"record {number}"))
        for answer in answers.get(question, ()):
            who, status = (
                None if is_missing(x) else str(x) for x in map(answer.get, ("user_id", "status"))
            )
            vote = {"winner": _winner(answer.get("value"), a, b, export), "annotator": who}
            yield pair | vote | {"left_out": None if status in (None, "submitted") else NOT_SUBMITTED}


def _answers(record: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The answers to each question, with ``user_id``, ``value`` and ``status``."""
    if isinstance(record.get("responses"), Mapping):
        return {name: listed(given) for name, given in record["responses"].items()}
    found = {}
    for name in [name for name in record if f"{name}.users" in record and name.endswith(_FLAT)]:
        parts = {"value": name, "user_id": f"{name}.users", "status": f"{name}.status"}
        columns = {key: dict(enumerate(listed(record.get(part)))) for key, part in parts.items()}
        found[name.removesuffix(_FLAT)] = [
            {key: cells.get(i) for key, cells in columns.items()} for i in columns["value"]
        ]
    return found


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of a record: its fields object, or the flat columns that are neither answers nor suggestions."""
    if isinstance(record.get("fields"), Mapping):
        return dict(record["fields"])
    others = [name for name in record if _FLAT not in name and ".suggestion" not in name]
    return {name: record[name] for name in others if name not in _OWN}


def _winner(value: Any, a: str, b: str, export: Export) -> str | None:
    """The side that a label names, or the first of labels in order; None for an empty answer."""
    label = next(iter(value), None) if isinstance(value, list) else value
    return None if is_missing(label) else export.side_of(label, a, b)


IMPORTER = Importer(
    "Argilla records with responses",
    (frozenset({"*.responses", "*.responses.users"}), frozenset({"fields", "responses"})),
    read_argilla,
)
