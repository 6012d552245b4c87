"""Readers for exports of annotation tools: Label Studio, Argilla and Prodigy."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from badpo.data.problems import counted
from badpo.importers.export import (
    NOT_A_PAIR,
    NOT_SUBMITTED,
    Answer,
    Cell,
    Export,
    Importer,
    Record,
    as_list,
    as_record,
    as_records,
    is_missing,
)

_SELECTED = {"left": "a", "right": "b"}
_FLAT = ".responses"
_UNANSWERED = ""  # question name for responses that answer no question
# columns of an Argilla record that never contain the prompt or a response
_OWN = ("id", "status", "_server_id", "fields", "responses", "suggestions", "metadata", "vectors")
_PEOPLE = ("_annotator_id", "_session_id")
# if the annotator gives no session name, Prodigy uses the session's starting time as its name
_UNNAMED = re.compile(r"(?:.*-)?\d{4}-\d{2}-\d{2}(?:[_T]\d{2}-\d{2}-\d{2})?")


def read_label_studio(export: Export) -> Iterator[Answer]:
    """Yield one row per annotation; each task is a comparison, and its left response is response a.

    Cancelled annotations are left out and counted. The annotator is the id in ``completed_by``, or the e-mail address
    if there is no id. If an annotation contains no answer to the Pairwise control, badpo reads the answer to a Choices
    control, such as ``tie``. ``columns={"response_a": "text1", "response_b": "text2", "prompt": "question"}`` names
    fields of the task data that badpo does not recognize, and ``columns={"winner": "pw"}`` names one of several
    Pairwise controls.
    """
    export.used |= {"id", "data", "annotations"}
    tasks = [(task, as_record(task.get("data"))) for task in export.records()]
    annotations = [one for task, _ in tasks for one in as_records(task.get("annotations"))]
    # each annotation contains answers to the controls of the labeling form
    answers = [answer for one in annotations for answer in as_records(one.get("result"))]
    control = export.find_question(
        str(one.get("from_name")) for one in answers if one.get("type") == "pairwise"
    )
    fields = export.find_text_fields(name for _, data in tasks for name in data)
    for number, (task, data) in enumerate(tasks, start=1):
        pair = {column: data.get(name) for column, name in fields.items()}
        pair |= {"comparison_id": str(task.get("id", f"task {number}")), "shown_first": "a"}
        for one in as_records(task.get("annotations")):
            selected = chosen = None
            for answer in as_records(one.get("result")):
                value = as_record(answer.get("value"))
                if answer.get("type") == "pairwise" and str(answer.get("from_name")) == control:
                    selected = selected or _SELECTED.get(str(value.get("selected")))
                if answer.get("type") == "choices" and (labels := as_list(value.get("choices"))):
                    chosen = chosen or export.side_of(labels[0])
            who = one.get("completed_by")
            if isinstance(who, Mapping):
                who = who.get("id", who.get("email"))
            left_out = NOT_SUBMITTED if one.get("was_cancelled") else None
            yield Answer(**pair, winner=selected or chosen, annotator=who, left_out=left_out)


LABEL_STUDIO = Importer(
    "Label Studio's JSON export with a Pairwise control",
    ({"data", "annotations"},),
    read_label_studio,
)


def read_argilla(export: Export) -> Iterator[Answer]:
    """Yield one row for each response to one question; the responses may be flat columns or nested objects.

    The answer to the question is a label such as ``response_a``, ``A`` or ``tie``, or a ranking of the two text fields.
    Drafts and discarded answers are left out and counted. In an export with several questions, the option
    ``columns={"winner": "preference"}`` names the question to import. ``prompt``, ``response_a`` and ``response_b``
    name the fields that badpo does not recognize.
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
            # the answer to a ranking question is a list of labels, and the first label names the preferred response
            label = next(iter(label), None) if isinstance(label, list) else label
            is_sent = is_missing(status) or status == "submitted"
            yield Answer(
                **pair,
                winner=None if is_missing(label) else export.side_of(label),
                annotator=answer.get("user_id"),
                left_out=None if is_sent else NOT_SUBMITTED,
            )


def _answers(record: Record) -> dict[str, list[Record]]:
    """Return the answers to each question, each with ``user_id``, ``value`` and ``status``."""
    responses = record.get("responses")
    if isinstance(responses, Mapping):
        return {name: as_records(answers) for name, answers in responses.items()}
    questions: dict[str, list[Record]] = {}
    for response in as_records(responses):
        # a response to a record answers all questions of the record, but a discarded response may answer none
        for name, value in (as_record(response.get("values")) or {_UNANSWERED: {}}).items():
            answer = {**response, "value": as_record(value).get("value")}
            questions.setdefault(name, []).append(answer)
    for name in [name for name in record if f"{name}.users" in record and name.endswith(_FLAT)]:
        parts = {"value": name, "user_id": f"{name}.users", "status": f"{name}.status"}
        columns = {key: dict(enumerate(as_list(record.get(part)))) for key, part in parts.items()}
        questions[name.removesuffix(_FLAT)] = [
            {key: cells.get(i) for key, cells in columns.items()} for i in columns["value"]
        ]
    return questions


def _texts(record: Record) -> Mapping[str, Cell]:
    """Return a record's ``fields`` object or, if it has none, its cells except answers, suggestions and metadata."""
    if isinstance(fields := record.get("fields"), Mapping):
        return fields
    others = [name for name in record if _FLAT not in name and ".suggestion" not in name]
    return {name: record[name] for name in others if name not in _OWN}


ARGILLA = Importer(
    "Argilla records with responses",
    ({"*.responses", "*.responses.users"}, {"fields", "responses"}),
    read_argilla,
)


def read_prodigy(export: Export) -> Iterator[Answer]:
    """Yield one row per choice task; response a is the option that Prodigy showed first.

    The accepted option of a task is the preferred response. A third option may mean a tie. Rejected and ignored tasks,
    tasks without exactly two responses, and tasks without a chosen option are left out and counted.
    """
    names, unnamed = export.names, 0
    who = export.chosen_field("annotator", names) or next(
        (name for name in _PEOPLE if name in names), ""
    )
    prompt = export.find_prompt_field([name for name in names if not name.startswith("_")], "text")
    export.used |= {prompt, "options", "accept", "answer", who}
    for task in export.records():
        annotator = task.get(who)
        unnamed += _UNNAMED.fullmatch(str(annotator)) is not None
        options = [one for one in as_list(task.get("options")) if isinstance(one, Mapping)]
        options = [one for one in options if "id" in one]
        ties = {str(one["id"]) for one in options if export.side_of(one["id"]) == "tie"}
        sides = [one for one in options if str(one["id"]) not in ties]
        accepted = {str(choice) for choice in as_list(task.get("accept"))}
        row = Answer(task.get(prompt), annotator=annotator, shown_first="a")
        if task.get("answer") != "accept":
            yield replace(row, left_out=NOT_SUBMITTED)
        elif len(sides) != 2:
            yield replace(row, left_out=NOT_A_PAIR)
        else:
            a_won, b_won = (str(side["id"]) in accepted for side in sides)
            is_tie = a_won == b_won or not ties.isdisjoint(accepted)
            winner = "tie" if is_tie else "a" if a_won else "b"
            first, second = (side.get("text") for side in sides)
            yield replace(row, response_a=first, response_b=second, winner=winner if accepted else None)
    if unnamed:
        what = f"{counted(unnamed, 'task')} in sessions named by a date; one person may have several such sessions"
        remedy = "let each annotator open Prodigy with ?session=NAME, and use only pooled estimates of this export"
        export.note("W146", what, remedy, unnamed)


PRODIGY = Importer(
    "Prodigy's JSONL of choice tasks",
    [{"answer", "options", name} for name in ("_task_hash", "_input_hash", *_PEOPLE)],
    read_prodigy,
)
