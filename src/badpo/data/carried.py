"""Columns of the source that go along with the votes: values of the two sides, and what the user asked to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from badpo.data.importers.columns import KNOWN, Layout, side_pairs
from badpo.data.problems import did_you_mean
from badpo.data.row_problems import RowProblems

MODELS = ("model_a", "model_b")
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")


@dataclass(frozen=True)
class Carried:
    """Columns in the orientation of the source's rows.

    Attributes
    ----------
    columns : dict of str to array of shape (n_rows,)
    pairs : dict of str to str
        The column of the first side -> the column of the second; these are exchanged in rows that are turned.
    """

    columns: dict[str, NDArray[Any]]
    pairs: dict[str, str]

    def turned(self, rows: NDArray[np.intp], turn: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The columns of ``rows`` in the orientation of their comparisons; ``turn`` is -1 where a row is turned."""
        partner = self.pairs | {second: first for first, second in self.pairs.items()}
        return {
            name: np.where(turn > 0, column[rows], self.columns[partner.get(name, name)][rows])
            for name, column in self.columns.items()
        }


def carried_columns(
    layout: Layout, keep: Sequence[str], pairs: Sequence[tuple[str, str]], rows: RowProblems
) -> Carried:
    """Which columns go along.

    Number columns that name both sides (``score_a`` and ``score_b``) always do, and so do ``model_a`` and ``model_b``
    where every row has them: they name who wrote the responses. Others stay behind unless they are in ``keep``, since
    a free column may say who an annotator is.

    Parameters
    ----------
    layout : Layout
    keep : sequence of str
        Columns the user asks for, of any type.
    pairs : sequence of (str, str)
        Columns that declared attributes read.
    rows : RowProblems
        Takes E103 for a column that is not there and E128 for an attribute's column that does not hold numbers.
    """
    frame = layout.frame
    free = [name for name in frame.columns if name not in KNOWN and name not in VOTE_COLUMNS]
    columns: dict[str, NDArray[Any]] = {}
    paired: dict[str, str] = {}
    for first, second in pairs:
        for name in (first, second):
            columns[name] = _declared_numbers(name, frame, free, rows)
        paired[first] = second
    for name in keep:
        fault = "is not a free column of the table" if name not in free else _fault(frame[name])
        if fault:
            what = f'keep: "{name}" {fault}.{did_you_mean(name, free)}'
            rows.note("E103", "error", what, f"free columns: {', '.join(free)}")
        else:
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    if set(MODELS) <= set(free) and not any(_fault(frame[name]) for name in MODELS):
        for name in MODELS if frame[list(MODELS)].notna().all(axis=None) else ():
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    for first, second in side_pairs(free).items():
        numbers = _numbers(frame[first]), _numbers(frame[second])
        if numbers[0] is not None and numbers[1] is not None:
            columns.setdefault(first, numbers[0])
            columns.setdefault(second, numbers[1])
        if first in columns and second in columns:
            paired.setdefault(first, second)
    return Carried(columns, paired)


def _numbers(column: pd.Series) -> NDArray[np.float64] | None:
    """The column as numbers; None when a cell that is there is no number, or no cell is there."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    present = column.notna().to_numpy()
    return values if present.any() and not np.isnan(values[present]).any() else None


def _fault(column: pd.Series) -> str:
    try:
        column.nunique()
    except TypeError:
        return "holds lists or objects, not single values"
    try:
        pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return "holds values of several kinds, which no table can be written with"
    return ""


def _declared_numbers(
    name: str, frame: pd.DataFrame, free: Sequence[str], rows: RowProblems
) -> NDArray[np.float64]:
    if name not in free:
        what = f'attribute column "{name}" is not a free column of the table.{did_you_mean(name, free)}'
        rows.note("E128", "error", what, f"free columns: {', '.join(free)}")
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    rows.add(
        "E128",
        "error",
        f'attribute column "{name}" holds no number',
        name,
        ~np.isfinite(values),
        "give a number",
    )
    return values
