"""Distinct values numbered by first appearance, told apart as Python tells them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray


def numbered(values: Iterable[Hashable]) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
    """Number of each value, and the distinct values in order of first appearance.

    Of texts, pandas before 3 compares what stands before a NUL: `pandas.factorize` takes others for equal.

    Parameters
    ----------
    values : iterable of hashable
        Missing values are values as well.

    Returns
    -------
    numbers : int array of shape (n_values,)
    distinct : object array

    Raises
    ------
    TypeError
        A value is a list or another object that may change.

    Examples
    --------
    >>> numbers, distinct = numbered(["so", "so" + chr(0) + "on", "so"])
    >>> numbers.tolist(), len(distinct)
    ([0, 1, 0], 2)
    """
    places: dict[Hashable, int] = {}
    numbers = np.fromiter((places.setdefault(value, len(places)) for value in values), dtype=np.intp)
    distinct = np.empty(len(places), dtype=object)
    distinct[:] = list(places)
    return numbers, distinct
