"""Plain texts of several columns, numbered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.attribute import plain_text
from badpo.data.numbering import numbered


def numbered_texts(
    table: pd.DataFrame, columns: Sequence[str]
) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Which plain text stands in which cell, of shape (n_columns, n_rows), and the distinct texts.

    Examples
    --------
    >>> table = pd.DataFrame({"a": ["so", "no"], "b": ["no", "why"]})
    >>> numbers, texts = numbered_texts(table, ("a", "b"))
    >>> numbers.tolist(), texts.tolist()
    ([[0, 1], [1, 2]], ['so', 'no', 'why'])
    """
    numbers, distinct = numbered(plain_text(text) for name in columns for text in table[name])
    return numbers.reshape(len(columns), -1), distinct
