"""CSV files that a spreadsheet opens as what they are: text stays text, numbers stay numbers."""

from __future__ import annotations

import os
import re
from typing import Any

import pandas as pd

from badpo.data.files import appearing
from badpo.data.problems import written_out

# What makes a spreadsheet take a cell for a formula, also in the full-width forms that it takes for the same.
_FORMULA = re.compile(r"[=+\-@\t\n\uff1d\uff0b\uff0d\uff20]")
# Where the separator of lists is a semicolon, a cell of ours is cut at these, quoted or not.
_LATER_FORMULA = re.compile(r"([;\t\n] *)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
_LONGEST_CELL = 32_767  # the longest that spreadsheets take


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    r"""Write a table as UTF-8 CSV; the file appears whole or not at all.

    Text that a spreadsheet would take for a formula gets an apostrophe before it, see `inert`. Numbers, also negative
    ones, are written as they are; a missing value is an empty cell, and an infinite one is ``inf`` or ``-inf``.

    Parameters
    ----------
    frame : DataFrame
        Its index is not written.
    path : path
        Its folder is made when it is not there.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "table.csv"
    >>> write_csv(pd.DataFrame({"class": ["=1+1", "crowd"], "lean": [-0.5, None]}), path)
    >>> path.read_text()
    "class,lean\n'=1+1,-0.5\ncrowd,\n"
    """
    written = pd.DataFrame({i: _inert_column(frame.iloc[:, i]) for i in range(frame.shape[1])})
    written.columns = pd.Index([inert(str(name)) for name in frame.columns], dtype=object)
    with appearing(path) as unfinished:
        written.to_csv(unfinished, index=False, lineterminator="\n", encoding="utf-8")


def inert(text: str) -> str:
    r"""Text that does nothing in a spreadsheet or a terminal.

    An apostrophe stands before a character that would make it, or what follows a semicolon, a formula; control
    characters and those that turn the reading direction are written out; text longer than a cell may be is cut, and
    says so. Any other text is returned as it is.

    Examples
    --------
    >>> inert("=cmd()"), inert("a-b"), inert("x;=cmd()"), inert("a\x00b")
    ("'=cmd()", 'a-b', "x;'=cmd()", 'a\\u0000b')
    >>> inert("x" * 100_000)[-26:]
    '... (100,000 characters)'
    """
    # a lone carriage return is not quoted, and what follows it would start a cell
    written = written_out(text.replace("\r\n", "\n"))
    written = _LATER_FORMULA.sub(r"\1'", written)
    if _FORMULA.match(written):
        written = f"'{written}"
    if len(written) > _LONGEST_CELL:
        said = f"... ({len(text):,} characters)"
        written = written[: _LONGEST_CELL - len(said)] + said
    return written


def _inert_column(column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return column
    return pd.Series([_inert_cell(cell) for cell in column], dtype=object, index=column.index)


def _inert_cell(cell: Any) -> Any:
    """Text made inert; numbers and missing values as they are; anything else as its text, made inert."""
    if isinstance(cell, str):
        return inert(cell)
    if isinstance(cell, int | float) or cell is None or pd.api.types.is_scalar(cell) and pd.isna(cell):
        return cell
    return inert(str(cell))
