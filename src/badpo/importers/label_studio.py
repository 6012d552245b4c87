"""Reader for Label Studio's JSON export of a project with a Pairwise control."""

from collections.abc import Iterator, Mapping

from badpo.importers.export import NOT_SUBMITTED, Answer, Export, Importer, as_list

_SELECTED = {"left": "a", "right": "b"}


def read_label_studio(export: Export) -> Iterator[Answer]:
    """Yield one row for each annotation; a task is a comparison, and its left response is response a.

    Cancelled annotations are left out and counted. The annotator is the id in ``completed_by``, or the e-mail address
    if ``completed_by`` has no id. If an annotation has no answer to the Pairwise control, its answer to a Choices
    control is read, such as ``tie``. ``columns={"response_a": "text1", "response_b": "text2", "prompt": "question"}``
    names fields of the task data that badpo does not recognize, and ``columns={"winner": "pw"}`` names one of several
    Pairwise controls.
    """
    export.used |= {"id", "data", "annotations"}
    tasks = list(export.records())
    annotations = [one for task in tasks for one in as_list(task.get("annotations"))]
    # each annotation has answers to the controls of the labeling form
    answers = [answer for one in annotations for answer in as_list(one.get("result"))]
    control = export.find_question(
        str(one.get("from_name")) for one in answers if one.get("type") == "pairwise"
    )
    fields = export.find_text_fields(name for task in tasks for name in task.get("data") or {})
    for number, task in enumerate(tasks, start=1):
        data = task.get("data") or {}
        pair = {column: data.get(name) for column, name in fields.items()}
        pair |= {"comparison_id": str(task.get("id", f"task {number}")), "shown_first": "a"}
        for one in as_list(task.get("annotations")):
            selected = chosen = None
            for answer in as_list(one.get("result")):
                value = answer.get("value") or {}
                if answer.get("type") == "pairwise" and str(answer.get("from_name")) == control:
                    selected = selected or _SELECTED.get(str(value.get("selected")))
                if answer.get("type") == "choices" and as_list(value.get("choices")):
                    chosen = chosen or export.side_of(value["choices"][0])
            who = one.get("completed_by")
            if isinstance(who, Mapping):
                who = who.get("id", who.get("email"))
            left_out = NOT_SUBMITTED if one.get("was_cancelled") else None
            yield Answer(**pair, winner=selected or chosen, annotator=who, left_out=left_out)


IMPORTER = Importer(
    "Label Studio's JSON export with a Pairwise control",
    ({"data", "annotations"},),
    read_label_studio,
)
