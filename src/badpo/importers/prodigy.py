"""Reader for Prodigy's JSONL export of choice tasks; the accepted option of a task is the preferred response."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from badpo.data.problems import counted
from badpo.importers.export import NOT_A_PAIR, NOT_SUBMITTED, Answer, Export, Importer, as_list

_PEOPLE = ("_annotator_id", "_session_id")
# Prodigy names a session by its starting time if the annotator gave no name
_UNNAMED = re.compile(r"(?:.*-)?\d{4}-\d{2}-\d{2}(?:[_T]\d{2}-\d{2}-\d{2})?")


def read_prodigy(export: Export) -> Iterator[Answer]:
    """Yield one row for each task; response a is the option that Prodigy showed first.

    A third option may mean a tie. Rejected and ignored tasks, tasks without exactly two responses, and tasks without
    a chosen option are left out and counted.
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
        options = [
            one for one in as_list(task.get("options")) if isinstance(one, Mapping) and "id" in one
        ]
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


IMPORTER = Importer(
    "Prodigy's JSONL of choice tasks",
    [{"answer", "options", name} for name in ("_task_hash", "_input_hash", *_PEOPLE)],
    read_prodigy,
)
