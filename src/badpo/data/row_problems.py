"""Problems that belong to rows of a table, gathered in one pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from badpo.data.importers.tables import Table
from badpo.data.problems import DataError, Problem, Severity

ROWS_SHOWN = 5
NO_ROWS = np.array([], dtype=np.intp)


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
        self,
        code: str,
        severity: Severity,
        what: str,
        column: str | None,
        rows: NDArray[np.bool_],
        remedy: str,
    ) -> None:
        """Note a problem of the rows where ``rows`` is True; nothing when there is none.

        The count of rows follows ``what``; ``column`` is our name for it.
        """
        index = np.flatnonzero(rows)
        if len(index):
            counted_rows = f"{what}: {len(index):,} of {len(rows):,} rows"
            self.note(code, severity, counted_rows, remedy, len(index), column, index)

    def note(
        self,
        code: str,
        severity: Severity,
        what: str,
        remedy: str,
        count: int = 1,
        column: str | None = None,
        index: NDArray[np.intp] = NO_ROWS,
    ) -> None:
        """Note a problem with a count of its own; ``index`` are the rows (0-based) to name, if any."""
        place = f', column "{self._theirs.get(column, column)}"' if column else ""
        where = f"{self.table.name}{place}{self._rows(index)}"
        self.found.append(Problem(code, what, where, remedy, severity, count))

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.found):
            raise DataError(sorted(self.found, key=lambda problem: problem.severity != "error"))

    def _rows(self, index: NDArray[np.intp]) -> str:
        if not len(index):
            return ""
        shown = index[:ROWS_SHOWN]
        named = ", ".join(self._row(int(i)) for i in shown)
        more = f" and {len(index) - len(shown):,} more" if len(index) > len(shown) else ""
        return f", row{'s' * (len(index) > 1)} {named}{more}{self._lines(shown)}"

    def _row(self, i: int) -> str:
        annotator = self.annotators[i]
        return f"{i + 1:,}" if annotator is None else f"{i + 1:,} [{annotator}]"

    def _lines(self, shown: NDArray[np.intp]) -> str:
        """Lines of the file where they are not the row numbers: a header is a line, and cells may hold breaks."""
        if self.table.lines is None or (self.table.lines[shown] == shown + 1).all():
            return ""
        lines = ", ".join(f"{line:,}" for line in self.table.lines[shown])
        return f" (line{'s' * (len(shown) > 1)} {lines} of the file)"
