"""From a table to rows that are understood: every check on rows in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.assembling import Assembled, Rows, assemble
from badpo.data.carried import carried_columns
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import Layout, recognise
from badpo.data.importers.tables import read_table
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean
from badpo.data.row_annotators import RowAnnotators, read_row_annotators
from badpo.data.row_problems import RowProblems
from badpo.data.row_texts import read_row_texts

TIES = ("drop", "error")
ANNOTATORS_MISSING = ("error", "drop")
REPEATED = ("all", "last")
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {"a_b": {"a": 1, "b": -1}, "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1}}
_NOT_READ = ("tools", "chat_template_kwargs")
_IMAGES = ("image", "images")


@dataclass(frozen=True)
class Options:
    """What the reader does where there is a choice; `Judgments.read` says what each means."""

    columns: Mapping[str, str | None] | None = None
    ties: str = "drop"
    annotators_missing: str = "error"
    repeated: str = "all"
    winners: Mapping[str, str] | None = None
    keep: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()

    def check(self) -> None:
        """Raise `ConfigError` for a choice that is not there."""
        choices = {"ties": TIES, "annotators_missing": ANNOTATORS_MISSING, "repeated": REPEATED}
        for key, known in choices.items():
            value = getattr(self, key)
            if value not in known:
                hint = did_you_mean(str(value), known)
                raise ConfigError(f"{key} must be {' or '.join(known)}; got {value!r}.{hint}")
        for label, side in (self.winners or {}).items():
            if side not in _WINNERS:
                raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")


def read_votes(source: Any, options: Options) -> Assembled:
    """Read a table of votes.

    Parameters
    ----------
    source : any source of `badpo.data.importers.tables.read_table`
    options : Options

    Raises
    ------
    DataError
        Everything that is wrong with the table. Problems of the columns come first and alone.
    ConfigError
        An option that is not there.

    Examples
    --------
    >>> read_votes([{"prompt": "Why?", "chosen": "So.", "rejected": "No."}], Options()).votes["sign"].tolist()
    [1]
    """
    options.check()
    table = read_table(source)
    layout = recognise(table.frame, table.name, options.columns)
    if not len(layout.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again", "error")])
    who = read_row_annotators(layout, table)
    problems = RowProblems(table, layout.theirs, who.pseudonym_of_row())
    who.report(problems, options.annotators_missing)
    rows = _read_rows(layout, who, options, problems)
    carried = carried_columns(layout, options.keep, options.pairs, problems)
    problems.stop_at_errors()
    return assemble(rows, carried, options.repeated, problems)


def _read_rows(layout: Layout, who: RowAnnotators, options: Options, problems: RowProblems) -> Rows:
    _report_unread(layout, problems)
    _report_duplicate_ids(layout, problems)
    texts = read_row_texts(layout, problems)
    key = texts.pair_keys()
    comparison_id = _ids("comparison_id", layout, problems)
    prompt_id = _ids("prompt_id", layout, problems)
    comparison = key if comparison_id is None else pd.factorize(comparison_id)[0]
    what = "the comparison_id stands for other texts in an earlier row"
    remedy = "give each pair of responses an id of its own, or leave ids out: columns={'comparison_id': None}"
    problems.add("E116", "error", what, "comparison_id", _unlike_first(comparison, key), remedy)
    if prompt_id is not None:
        changed = _unlike_first(comparison, pd.factorize(prompt_id)[0])
        what = "another prompt_id than in the comparison's first row"
        problems.add("W117", "warning", what, "prompt_id", changed, "write one; the first is used")
    return Rows(
        texts,
        who,
        _signs(layout, options, problems),
        _weights(layout, problems),
        _first_shown(layout, problems),
        comparison,
        comparison_id,
        prompt_id,
    )


def _signs(layout: Layout, options: Options, problems: RowProblems) -> NDArray[np.int64]:
    """+1 where the first side won, -1 where the second did, 0 for a tie (and for rows that are reported)."""
    if layout.kind == "chosen_rejected":
        return np.ones(len(layout.frame), dtype=np.int64)
    labels = _labels("winner", "E107", layout, problems)
    codes, distinct = pd.factorize(labels)
    meanings = {str(label): side for label, side in (options.winners or {}).items()}
    signs = [_WINNERS.get(meanings.get(label, label.strip().casefold())) for label in distinct]
    unknown = [label for label, sign in zip(distinct, signs, strict=True) if sign is None]
    problems.add("E107", "error", "no winner", "winner", codes < 0, "write a, b or tie, or leave the row out")
    named = ", ".join(f'"{label}"' for label in unknown[:5])
    example = f'winners={{"{unknown[0] if unknown else "left"}": "a", ...}}'
    remedy = f"write a, b or tie, or say what the labels mean: {example}"
    problems.add("E107", "error", f"unknown winner {named}", "winner", np.isin(labels, unknown), remedy)
    if options.ties == "error":
        ties = np.isin(labels, [label for label, sign in zip(distinct, signs, strict=True) if sign == 0])
        problems.add("E130", "error", "ties", "winner", ties, "leave them out: ties='drop'")
    return np.array([*(sign or 0 for sign in signs), 0], dtype=np.int64)[codes]


def _ids(name: str, layout: Layout, problems: RowProblems) -> NDArray[np.object_] | None:
    if not layout.has(name):
        return None
    try:
        ids = as_ids(layout.frame[name])
    except ValueError as error:
        problems.note("E108", "error", f"{name}: {error}", "give one id in each cell", column=name)
        return None
    remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
    problems.add("E108", "error", f"no {name}", name, pd.isna(ids), remedy)
    return ids


def _labels(name: str, code: str, layout: Layout, problems: RowProblems) -> NDArray[np.object_]:
    """A column of labels; where a cell is no label, that is reported and there are none."""
    try:
        return as_ids(layout.frame[name])
    except ValueError as error:
        problems.note(code, "error", f"{name}: {error}", "give one label in each cell", column=name)
        return np.full(len(layout.frame), None, dtype=object)


def _weights(layout: Layout, problems: RowProblems) -> NDArray[np.float64]:
    if not layout.has("weight"):
        return np.ones(len(layout.frame))
    weight = pd.to_numeric(layout.frame["weight"], errors="coerce")
    weight = weight.to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~(np.isfinite(weight) & (weight > 0))
    remedy = "give a positive number, or leave the row out"
    problems.add("E106", "error", "the weight is no number above 0", "weight", wrong, remedy)
    return weight


def _first_shown(layout: Layout, problems: RowProblems) -> NDArray[np.int64]:
    """+1 where the row's first side was shown first, -1 where its second was, 0 where it is not known."""
    if not layout.has("shown_first"):
        return np.zeros(len(layout.frame), dtype=np.int64)
    labels = _labels("shown_first", "E109", layout, problems)
    codes, distinct = pd.factorize(labels)
    known = _FIRST_SHOWN[layout.kind]
    sides = [known.get(label.strip().casefold()) for label in distinct]
    unknown = [label for label, side in zip(distinct, sides, strict=True) if side is None]
    remedy = f"write {' or '.join(known)}, or leave the cell empty"
    problems.add("E109", "error", "an unknown side", "shown_first", np.isin(labels, unknown), remedy)
    return np.array([*(side or 0 for side in sides), 0], dtype=np.int64)[codes]


def _report_unread(layout: Layout, problems: RowProblems) -> None:
    unread = [name for name in _NOT_READ if name in layout.frame]
    if unread:
        what = f"columns that change what TRL would train on are not read: {', '.join(unread)}"
        problems.note("W107", "warning", what, "put what they say into the prompt", len(unread))
    images = [name for name in _IMAGES if name in layout.frame and layout.frame[name].notna().any()]
    if images:
        what = f"images are not read, only the texts beside them: {', '.join(images)}"
        remedy = "leave the column out where the texts can be judged without them; training refuses images"
        problems.note("W108", "warning", what, remedy, len(images))


def _report_duplicate_ids(layout: Layout, problems: RowProblems) -> None:
    ids = _ids("judgment_id", layout, problems)
    if ids is not None:
        twice = pd.Series(ids, dtype=object).duplicated(keep=False).to_numpy() & ~pd.isna(ids)
        what = "the judgment_id stands in more than one row"
        problems.add("E132", "error", what, "judgment_id", twice, "keep one row for each judgment")


def _unlike_first(group: NDArray[np.intp], value: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Rows whose value is not that of their group's first row; negative numbers are unknown and never differ."""
    usable = (group >= 0) & (value >= 0)
    first = np.full(group.max(initial=-1) + 2, -1)
    backwards = np.flatnonzero(usable)[::-1]
    first[group[backwards]] = value[backwards]
    return usable & (value != first[group])
