"""Label Studio's JSON export of a project with a Pairwise control."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from badpo.importers.fields import NO_PREFERENCE, NOT_SUBMITTED, TEXTS, Export, Importer, listed, side_of

_SELECTED = {"left": "a", "right": "b"}


def read_label_studio(export: Export) -> Iterator[dict[str, Any]]:
    """One row for each annotation that was not cancelled; the task is the comparison, left is side a.

    Of ``completed_by`` only the id is taken, so that a name or an e-mail address never leaves the export. Where the
    question also has a Choices control, its answer is read where the pair has none, such as ``tie``.
    ``columns={"response_a": "text1", "response_b": "text2", "prompt": "question"}`` names fields of a task's data,
    ``columns={"winner": "pw"}`` a control, where they cannot be recognised.
    """
    export.used |= {"id", "data", "annotations", "completions"}
    tasks = list(export.records())
    names = list(dict.fromkeys(name for task in tasks for name in task.get("data") or {}))
    # the control names the objects it compares, left and right, and these are often called as the fields
    compared = [str(entry.get("to_name")).split(",") for entry in _controls(tasks)]
    pairs = [(two[0], two[1]) for two in compared if len(two) == 2 and set(two) <= set(names)]
    prompt, a, b = export.text_fields(names, next(iter(pairs), None))
    controls = sorted({str(entry.get("from_name")) for entry in _controls(tasks)})
    control = export.columns.get("winner") or next(iter(controls), None)
    if len(controls) > 1 and not export.columns.get("winner"):
        what = f"{len(controls)} pairwise questions: {', '.join(controls)}"
        raise export.refusal("E146", what, f"import one at a time: --column winner={control}")
    for number, task in enumerate(tasks, start=1):
        data = task.get("data") or {}
        pair = {"prompt": data.get(prompt), "response_a": data.get(a), "response_b": data.get(b)}
        pair |= {"comparison_id": str(task.get("id", f"task {number}")), "shown_first": "a"}
        for annotation in _annotations(task):
            who = _person(annotation.get("completed_by"))
            winner = _winner(annotation, control, a, b, export.winners)
            if annotation.get("was_cancelled"):
                yield {"left_out": NOT_SUBMITTED, "annotator": who}
            elif winner is None:
                yield {"left_out": NO_PREFERENCE, "annotator": who}
            else:
                yield pair | {"winner": winner, "annotator": who, "when": annotation.get("created_at")}


def _annotations(task: Mapping) -> list[Mapping]:
    return listed(task.get("annotations", task.get("completions")))


def _controls(tasks: Sequence[Mapping]) -> Iterable[Mapping]:
    results = [entry for task in tasks for one in _annotations(task) for entry in listed(one.get("result"))]
    return [entry for entry in results if entry.get("type") == "pairwise"]


def _winner(
    annotation: Mapping, control: str | None, a: str, b: str, winners: Mapping[str, str]
) -> str | None:
    entries = listed(annotation.get("result"))
    for entry in entries:
        if entry.get("type") == "pairwise" and str(entry.get("from_name")) == control:
            selected = (entry.get("value") or {}).get("selected")
            if selected in _SELECTED:
                return _SELECTED[selected]
    for entry in entries:
        choices = listed((entry.get("value") or {}).get("choices"))
        if entry.get("type") == "choices" and choices:
            return side_of(choices[0], a, b, winners)
    return None


def _person(completed_by: Any) -> str | None:
    if isinstance(completed_by, Mapping):
        completed_by = completed_by.get("id", completed_by.get("email"))
    return None if completed_by is None else str(completed_by)


IMPORTER = Importer(
    "Label Studio's JSON export with a Pairwise control",
    (frozenset({"data", "annotations"}), frozenset({"data", "completions"})),
    read_label_studio,
    columns=(*TEXTS, "winner"),
    labels=True,
)
