"""Argilla's exports: responses beside the record, flat (2.x), nested (2.x) or as lists of answers (1.x)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from badpo.data.importers.fields import is_missing, listed, prompt_field, records_of, side_fields, side_of
from badpo.data.importers.tables import Table
from badpo.data.importers.votes import (
    NO_PREFERENCE,
    NOT_SUBMITTED,
    TEXTS,
    Asked,
    Votes,
    no_field,
    require_fields,
)
from badpo.data.problems import DataError, Problem

_FLAT = ".responses"
_PARTS_OF_FLAT = (_FLAT, f"{_FLAT}.users", f"{_FLAT}.status")
_OWN = (
    "id",
    "status",
    "_server_id",
    "fields",
    "responses",
    "suggestions",
    "metadata",
    "vectors",
    "external_id",
)


@dataclass(frozen=True)
class _Answer:
    user: str | None
    value: Any
    status: str | None


def is_argilla(table: Table) -> bool:
    """Whether rows are records with responses of users, in one of Argilla's three shapes."""
    return bool(_questions(table))


def read_argilla(table: Table, asked: Asked) -> Votes:
    """One row for each submitted response to one question.

    The question is a label, such as ``response_a``, ``A`` or ``tie``, or a ranking of the two fields. Drafts and
    discarded responses are left out and counted.

    Parameters
    ----------
    table : Table
    asked : Asked
        ``columns={"winner": "preference"}`` names the question where there are several;
        ``prompt``, ``response_a``, ``response_b`` name fields that cannot be recognised.
    """
    question = _question(table, asked)
    records = list(records_of(table.frame))
    names = list(dict.fromkeys(name for record in records for name in _fields(record)))
    require_fields(asked, TEXTS, names, table.name)
    a, b = _sides(names, asked, table.name)
    others = [name for name in names if name not in (a, b)]
    prompt = asked.columns.get("prompt") or prompt_field(others)
    if prompt is None:
        raise no_field("prompt", others, table.name)
    rows: list[dict[str, Any]] = []
    left_out: list[tuple[str, str | None]] = []
    for record in records:
        fields = _fields(record)
        pair = {"prompt": fields.get(prompt), "response_a": fields.get(a), "response_b": fields.get(b)}
        if "id" in record:
            pair["comparison_id"] = str(record["id"])
        for answer in _answers(record, question):
            winner = _winner(answer.value, a, b, asked.winners)
            if answer.status not in (None, "submitted"):
                left_out.append((NOT_SUBMITTED, answer.user))
            elif winner is None:
                left_out.append((NO_PREFERENCE, answer.user))
            else:
                rows.append(pair | {"winner": winner, "annotator": answer.user})
    used = ["id", *(f"{prefix}{name}.*" for name in (prompt, a, b) for prefix in ("", "fields."))]
    used += [
        question,
        *(f"{question}.{part}" for part in ("user_id", "status", "value.*")),
        f"responses.{question}.*",
    ]
    used += [f"{question}{part}.*" for part in _PARTS_OF_FLAT]
    return Votes(rows, left_out, used)


def _questions(table: Table) -> list[str]:
    """Questions that people answered, in the order of the table."""
    names = [str(name) for name in table.frame.columns]
    flat = [name.removesuffix(_FLAT) for name in names if name.endswith(_FLAT) and f"{name}.users" in names]
    if flat:
        return flat
    if {"fields", "responses"} <= set(names):
        answered = (cell for cell in table.frame["responses"] if isinstance(cell, Mapping))
        return list(dict.fromkeys(name for cell in answered for name in cell))
    listing = []
    for name in names:
        first = next((listed(cell)[0] for cell in table.frame[name] if listed(cell)), None)
        if isinstance(first, Mapping) and {"user_id", "value"} <= set(first):
            listing.append(name)
    return listing


def _question(table: Table, asked: Asked) -> str:
    questions = _questions(table)
    named = asked.columns.get("winner")
    if named in questions:
        return str(named)
    if named is None and len(questions) == 1:
        return questions[0]
    what = f"{len(questions)} questions: {', '.join(questions)}" + (
        f'; "{named}" is none of them' if named else ""
    )
    example = questions[0] if questions else "QUESTION"
    raise DataError([Problem("E146", what, table.name, f"name one: --column winner={example}", "error")])


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of a record: its fields object, or the flat columns that are neither answers nor suggestions."""
    if isinstance(record.get("fields"), Mapping):
        return dict(record["fields"])
    kept = {name: value for name, value in record.items() if name not in _OWN}
    return {
        name: value
        for name, value in kept.items()
        if not any(part in name for part in (_FLAT, ".suggestion")) and not _is_answers(value)
    }


def _is_answers(value: Any) -> bool:
    first = next(iter(listed(value)), None)
    return isinstance(first, Mapping) and {"user_id", "value"} <= set(first)


def _sides(names: Sequence[str], asked: Asked, source: str) -> tuple[str, str]:
    a, b = (asked.columns.get(name) for name in ("response_a", "response_b"))
    found = (a, b) if a and b else side_fields(names)
    if found is None:
        raise no_field("response_a and response_b", names, source)
    return found


def _answers(record: Mapping[str, Any], question: str) -> Iterable[_Answer]:
    if f"{question}{_FLAT}" in record:
        values, users, statuses = (listed(record.get(f"{question}{part}")) for part in _PARTS_OF_FLAT)
        for i, value in enumerate(values):
            user, status = (column[i] if i < len(column) else None for column in (users, statuses))
            yield _Answer(_text(user), value, _text(status))
        return
    nested = record.get("responses")
    answers = nested.get(question) if isinstance(nested, Mapping) else record.get(question)
    for answer in listed(answers):
        yield _Answer(_text(answer.get("user_id")), answer.get("value"), _text(answer.get("status")))


def _winner(value: Any, a: str, b: str, winners: Mapping[str, str]) -> str | None:
    """The side that a label names or a ranking puts first; None for an empty answer."""
    if isinstance(value, Mapping) and "rank" in value:
        order = list(zip(listed(value["rank"]), listed(value.get("value")), strict=False))
    elif listed(value):
        ranked = listed(value)
        order = [
            (entry.get("rank"), entry.get("value")) if isinstance(entry, Mapping) else (i, entry)
            for i, entry in enumerate(ranked)
        ]
    elif is_missing(value) or not isinstance(value, str | int | float):
        return None
    else:
        return side_of(value, a, b, winners)
    ranks = [rank for rank, _ in order if not is_missing(rank)]
    if not ranks:
        return None
    best = [label for rank, label in order if rank == min(ranks)]
    return "tie" if Counter(ranks)[min(ranks)] > 1 else side_of(best[0], a, b, winners)


def _text(value: Any) -> str | None:
    return None if is_missing(value) or str(value) == "None" else str(value)
