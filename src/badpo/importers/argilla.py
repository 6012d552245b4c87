"""Reader for Argilla exports, which store responses as flat columns or as nested objects."""

from collections.abc import Iterator, Mapping
from typing import Any

from badpo.data.files import Json
from badpo.importers.export import NOT_SUBMITTED, Answer, Export, Importer, as_list, is_missing

_FLAT = ".responses"
_UNANSWERED = ""  # question name of a response that answers no question
# columns of an Argilla record that never contain the prompt or a response
_OWN = ("id", "status", "_server_id", "fields", "responses", "suggestions", "metadata", "vectors")


def read_argilla(export: Export) -> Iterator[Answer]:
    """Yield one row for each response to one question.

    The answer to the question is a label such as ``response_a``, ``A`` or ``tie``, or a ranking of the two text fields.
    An annotator's draft and discarded answers are left out and counted. If the export has several questions,
    ``columns={"winner": "preference"}`` names the one to import. ``prompt``, ``response_a`` and ``response_b`` name the
    fields that badpo does not recognize.
    """
    records = [(record, _texts(record), _answers(record)) for record in export.records()]
    names = (name for _, _, answers in records for name in answers if name != _UNANSWERED)
    question = export.find_question(names)
    fields = export.find_text_fields(name for _, texts, _ in records for name in texts)
    export.used |= {"id", "fields", "responses", *fields.values()}
    export.used |= {f"{question}{_FLAT}{part}" for part in ("", ".users", ".status")}
    for number, (record, texts, answers) in enumerate(records, start=1):
        pair = {column: texts.get(name) for column, name in fields.items()}
        pair["comparison_id"] = str(record.get("id", f"record {number}"))
        for answer in (*answers.get(question or "", ()), *answers.get(_UNANSWERED, ())):
            label, status = answer.get("value"), answer.get("status")
            # the answer to a ranking question is a list of labels, and the first label is the preferred response
            label = next(iter(label), None) if isinstance(label, list) else label
            is_sent = is_missing(status) or status == "submitted"
            yield Answer(
                **pair,
                winner=None if is_missing(label) else export.side_of(label),
                annotator=answer.get("user_id"),
                left_out=None if is_sent else NOT_SUBMITTED,
            )


def _answers(record: Json) -> dict[str, list[Any]]:
    """Return the answers to each question; each answer has ``user_id``, ``value`` and ``status``."""
    if isinstance(record.get("responses"), Mapping):
        return {name: as_list(answers) for name, answers in record["responses"].items()}
    questions: dict[str, list[Any]] = {}
    for response in as_list(record.get("responses")):
        # an annotator's response to a record answers all questions of the record; a discarded one may answer none
        for name, value in (response.get("values") or {_UNANSWERED: {}}).items():
            questions.setdefault(name, []).append({**response, "value": value.get("value")})
    for name in [name for name in record if f"{name}.users" in record and name.endswith(_FLAT)]:
        parts = {"value": name, "user_id": f"{name}.users", "status": f"{name}.status"}
        columns = {key: dict(enumerate(as_list(record.get(part)))) for key, part in parts.items()}
        questions[name.removesuffix(_FLAT)] = [
            {key: cells.get(i) for key, cells in columns.items()} for i in columns["value"]
        ]
    return questions


def _texts(record: Json) -> Json:
    """Return a record's ``fields`` object, or else the record's cells except answers, suggestions and metadata."""
    if isinstance(record.get("fields"), Mapping):
        return dict(record["fields"])
    others = [name for name in record if _FLAT not in name and ".suggestion" not in name]
    return {name: record[name] for name in others if name not in _OWN}


IMPORTER = Importer(
    "Argilla records with responses",
    ({"*.responses", "*.responses.users"}, {"fields", "responses"}),
    read_argilla,
)
