"""Problems that belong to rows of a table, gathered in one pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from badpo.data.importers.tables import Table
from badpo.data.problems import Problem, Severity

ROWS_SHOWN = 5


class RowProblems:
    """Gathers problems with the rows they were found in.

    Parameters
    ----------
    table : Table
        Where the rows come from.
    theirs : mapping of str to str
        Our column names -> the table's.
    annotators : object array of shape (n_rows,)
        Pseudonym of each row's annotator; None where there is none.

    Examples
    --------
    >>> import pandas as pd
    >>> table = Table(pd.DataFrame({"winner": ["a", None]}), "votes.csv", lines=np.array([2, 3]))
    >>> rows = RowProblems(table, {"winner": "winner"}, np.array([None, None], dtype=object))
    >>> rows.add("E107", "error", "no winner", "winner", np.array([False, True]), "write a, b or tie")
    >>> rows.found[0].what, rows.found[0].where
    ('no winner: 1 of 2 rows', 'votes.csv, column "winner", row 2 (line 3 of the file)')
    """

    def __init__(self, table: Table, theirs: Mapping[str, str], annotators: NDArray[np.object_]):
        self.table = table
        self.annotators = annotators
        self.found: list[Problem] = []
        self._theirs = theirs

    def add(
        self, code: str, severity: Severity, what: str, column: str | None, rows: NDArray[np.bool_], remedy: str
    ) -> None:
        """Note a problem of the rows where ``rows`` is True; nothing when there is none.

        The count of rows follows ``what``; ``column`` is our name for it.
        """
        index = np.flatnonzero(rows)
        if len(index):
            counted = f"{what}: {len(index):,} of {len(rows):,} rows"
            self.add_counted(code, severity, counted, column, index, remedy, len(index))

    def add_counted(
        self, code: str, severity: Severity, what: str, column: str | None, index: NDArray[np.intp], remedy: str, n: int
    ) -> None:
        """Note a problem with a count of its own; ``index`` are the rows (0-based) to name."""
        place = f', column "{self._theirs.get(column, column)}"' if column else ""
        where = f"{self.table.name}{place}{self._rows(index)}"
        self.found.append(Problem(code, what, where, remedy, severity, n))

    def errors(self) -> list[Problem]:
        """The problems that stop the reader."""
        return [problem for problem in self.found if problem.severity == "error"]

    def _rows(self, index: NDArray[np.intp]) -> str:
        if not len(index):
            return ""
        shown = index[:ROWS_SHOWN]
        named = ", ".join(self._row(int(i)) for i in shown)
        more = f" and {len(index) - len(shown):,} more" if len(index) > len(shown) else ""
        lines = self._lines(shown)
        return f", row{'s' * (len(index) > 1)} {named}{more}{lines}"

    def _row(self, i: int) -> str:
        annotator = self.annotators[i]
        return f"{i + 1:,}" if annotator is None else f"{i + 1:,} [{annotator}]"

    def _lines(self, shown: NDArray[np.intp]) -> str:
        """Line numbers where they are not the row numbers: a CSV's header is line 1, and cells may hold breaks."""
        lines = self.table.lines
        if lines is None or (lines[shown] == shown + 1).all():
            return ""
        return f" (line{'s' * (len(shown) > 1)} {', '.join(f'{line:,}' for line in lines[shown])} of the file)"
