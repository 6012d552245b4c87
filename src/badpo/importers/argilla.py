"""Argilla's exports: responses beside the record, in columns of their own or nested."""

from collections.abc import Iterator, Mapping
from typing import Any

from badpo.data.files import Json
from badpo.importers.export import NOT_SUBMITTED, Export, Importer, is_missing, listed

_FLAT = ".responses"
_UNANSWERED = ""  # in place of a question
# what no text of a record is called
_OWN = ("id", "status", "_server_id", "fields", "responses", "suggestions", "metadata", "vectors")


def read_argilla(export: Export) -> Iterator[Json]:
    """One row for each submitted response to one question.

    The question is a label, such as ``response_a``, ``A`` or ``tie``, or the two fields in order. Drafts and
    discarded responses are left out and counted. ``columns={"winner": "preference"}`` names the question where there
    are several; ``prompt``, ``response_a``, ``response_b`` name fields that cannot be recognised.
    """
    records = [(record, _texts(record), _answers(record)) for record in export.records()]
    names = (name for _, _, answers in records for name in answers if name != _UNANSWERED)
    question = export.question(names)
    fields = export.text_fields(name for _, texts, _ in records for name in texts)
    export.used |= {"id", "fields", "responses", *fields.values()}
    export.used |= {f"{question}{_FLAT}{part}" for part in ("", ".users", ".status")}
    for number, (record, texts, answers) in enumerate(records, start=1):
        pair = {ours: texts.get(theirs) for ours, theirs in fields.items()}
        pair["comparison_id"] = str(record.get("id", f"record {number}"))
        for answer in (*answers.get(question or "", ()), *answers.get(_UNANSWERED, ())):
            label, status = answer.get("value"), answer.get("status")
            # labels in order: the first of them
            label = next(iter(label), None) if isinstance(label, list) else label
            vote = {"winner": None if is_missing(label) else export.side_of(label)}
            is_sent = is_missing(status) or status == "submitted"
            vote |= {
                "annotator": answer.get("user_id"),
                "left_out": None if is_sent else NOT_SUBMITTED,
            }
            yield pair | vote


def _answers(record: Json) -> dict[str, list[Any]]:
    """The answers to each question, with ``user_id``, ``value`` and ``status``."""
    if isinstance(record.get("responses"), Mapping):
        return {name: listed(given) for name, given in record["responses"].items()}
    found: dict[str, list[Any]] = {}
    for response in listed(record.get("responses")):
        # a response of one annotator answers all questions, and a discarded one may answer none
        for name, value in (response.get("values") or {_UNANSWERED: {}}).items():
            found.setdefault(name, []).append({**response, "value": value.get("value")})
    for name in [name for name in record if f"{name}.users" in record and name.endswith(_FLAT)]:
        parts = {"value": name, "user_id": f"{name}.users", "status": f"{name}.status"}
        columns = {key: dict(enumerate(listed(record.get(part)))) for key, part in parts.items()}
        found[name.removesuffix(_FLAT)] = [
            {key: cells.get(i) for key, cells in columns.items()} for i in columns["value"]
        ]
    return found


def _texts(record: Json) -> Json:
    """The texts of a record: its fields object, or the flat columns that are neither answers nor suggestions."""
    if isinstance(record.get("fields"), Mapping):
        return dict(record["fields"])
    others = [name for name in record if _FLAT not in name and ".suggestion" not in name]
    return {name: record[name] for name in others if name not in _OWN}


IMPORTER = Importer(
    "Argilla records with responses",
    ({"*.responses", "*.responses.users"}, {"fields", "responses"}),
    read_argilla,
)
