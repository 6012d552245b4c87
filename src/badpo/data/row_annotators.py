"""Who cast the vote of each row: raw ids in, pseudonyms out."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import Layout, annotator_hint
from badpo.data.importers.tables import Table
from badpo.data.privacy import EVERYONE, direct_identifiers, is_pseudonym, pseudonyms, spelling
from badpo.data.problems import Problem, counted
from badpo.data.row_problems import ROWS_SHOWN, RowProblems

_MODELS = re.compile(r"gpt|claude|gemini|llama|mistral|mixtral|qwen|deepseek|gemma|command-r", re.IGNORECASE)


@dataclass(frozen=True)
class RowAnnotators:
    """Annotators of the rows; no raw id is in here.

    Attributes
    ----------
    code : int array of shape (n_rows,)
        Position in ``pseudonyms``; -1 where the row has no annotator.
    pseudonyms : list of str
    classes : list of str or None
        Class of each annotator.
    has_identities : bool
        False when the table has no annotator column.
    class_conflict : bool array of shape (n_rows,)
        Rows that give an annotator another class than before.
    findings : tuple of Problem
        What the raw ids look like.
    unreadable : (str, str) or None
        A column of ours that is no column of ids, and why.
    """

    code: NDArray[np.intp]
    pseudonyms: list[str]
    classes: list[str | None]
    has_identities: bool
    class_conflict: NDArray[np.bool_]
    findings: tuple[Problem, ...] = ()
    unreadable: tuple[str, str] | None = None

    def pseudonym_of_row(self) -> NDArray[np.object_]:
        """Pseudonym of each row's annotator, None where there is none; shape (n_rows,)."""
        known = [*self.pseudonyms, None] if self.has_identities else [None, None]
        return np.array(known, dtype=object)[self.code]

    def report(self, rows: RowProblems, annotators_missing: str) -> None:
        """Hand everything found to ``rows``."""
        rows.found.extend(self.findings)
        if self.unreadable is not None:
            column, why = self.unreadable
            remedy = "give the id alone, such as its id field"
            rows.note("E112", "error", f"{column}: {why}", remedy, len(self.code), column)
            return
        if annotators_missing == "error":
            remedy = "fill it in, or leave these rows out: annotators_missing='drop'"
            rows.add("E112", "error", "no annotator", "annotator", self.code < 0, remedy)
        remedy = "give each annotator one class, or leave the column out: columns={'annotator_class': None}"
        what = "an annotator has another annotator_class than before"
        rows.add("E115", "error", what, "annotator_class", self.class_conflict, remedy)


def read_row_annotators(layout: Layout, table: Table) -> RowAnnotators:
    """Annotators of a table's rows, pseudonymised.

    Parameters
    ----------
    layout : Layout
    table : Table
    """
    n = len(layout.frame)
    nobody = np.zeros(n, dtype=np.intp)
    if not layout.has("annotator"):
        finding = _no_column(layout, table)
        return RowAnnotators(nobody, [EVERYONE], [None], False, np.zeros(n, dtype=bool), (finding,))
    for column in [name for name in ("annotator", "annotator_class") if layout.has(name)]:
        try:
            as_ids(layout.frame[column])
        except ValueError as error:
            unreadable = (column, str(error))
            return RowAnnotators(nobody - 1, [], [], True, np.zeros(n, dtype=bool), unreadable=unreadable)
    raw = as_ids(layout.frame["annotator"])
    code, raw_ids = pd.factorize(raw)
    named = pseudonyms(list(raw_ids))
    classes, conflict = _classes(layout, code, len(named))
    findings = [
        *_direct_identifiers(list(raw_ids), table),
        *_look_alikes(list(raw_ids), named, table),
        *_model_judges(list(raw_ids), named, classes, table),
    ]
    return RowAnnotators(code, named, classes, True, conflict, tuple(findings))


def _no_column(layout: Layout, table: Table) -> Problem:
    hint = annotator_hint([name for name in layout.frame.columns if name not in layout.theirs])
    unused = "; annotator_class is not used without it" if layout.has("annotator_class") else ""
    what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"{unused}'
    if hint:
        return Problem("W110", what, table.name, f"map the column.{hint}", "warning")
    remedy = "nothing for a pooled bias; per-annotator bias needs ids: columns={'annotator': '...'}"
    return Problem("N110", what, table.name, remedy, "notice")


def _classes(layout: Layout, code: NDArray[np.intp], n: int) -> tuple[list[str | None], NDArray[np.bool_]]:
    if not layout.has("annotator_class"):
        return [None] * n, np.zeros(len(code), dtype=bool)
    label_code, labels = pd.factorize(as_ids(layout.frame["annotator_class"]))
    first = np.full(n + 1, -1, dtype=np.intp)
    told = np.flatnonzero((label_code >= 0) & (code >= 0))[::-1]
    first[code[told]] = label_code[told]
    conflict = (label_code >= 0) & (code >= 0) & (label_code != first[code])
    return [None if label < 0 else str(labels[label]) for label in first[:n]], conflict


def _direct_identifiers(raw_ids: list[str], table: Table) -> list[Problem]:
    kinds = direct_identifiers(raw_ids)
    if not kinds:
        return []
    what = f"annotator ids look like {' and '.join(kinds)}; they were replaced by pseudonyms while reading"
    remedy = "share the table that badpo import writes, not this one"
    return [Problem("W301", what, table.name, remedy, "warning")]


def _look_alikes(raw_ids: list[str], named: list[str], table: Table) -> list[Problem]:
    groups: dict[str, list[str]] = {}
    for raw_id, name in zip(raw_ids, named, strict=True):
        groups.setdefault(spelling(raw_id), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    shown = "; ".join(" and ".join(group) for group in alike[:ROWS_SHOWN])
    what = (
        f"{counted(len(alike), 'group')} of annotators whose ids differ only in case, spaces or leading zeros"
    )
    remedy = "if they are the same people, write their ids alike before reading"
    return [Problem("W113", what, f"{table.name}: {shown}", remedy, "warning", len(alike))]


def _model_judges(
    raw_ids: list[str], named: list[str], classes: list[str | None], table: Table
) -> list[Problem]:
    is_model = [not is_pseudonym(raw_id) and _MODELS.search(raw_id) is not None for raw_id in raw_ids]
    people = {label for label, model in zip(classes, is_model, strict=True) if not model}
    mixed = [
        name for name, label, model in zip(named, classes, is_model, strict=True) if model and label in people
    ]
    if not mixed:
        return []
    what = (
        f"{counted(len(mixed), 'annotator')} with a language model's name as id, beside others in one class"
    )
    remedy = "give them an annotator_class of their own"
    return [
        Problem("W114", what, f"{table.name}: {', '.join(mixed[:ROWS_SHOWN])}", remedy, "warning", len(mixed))
    ]
