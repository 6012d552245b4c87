"""Attribute differences of judgments: each distinct text is measured once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.attribute import Attribute
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.stored_texts import numbered_texts

_RETURNS = {"response": "one number", "pair": "two numbers (g_a, g_b)", "judgment": "one number"}


def measure_delta(
    attributes: Sequence[Attribute], comparisons: pd.DataFrame, votes: pd.DataFrame
) -> NDArray[np.float64]:
    """Differences d_j = g(a) - g(b), of shape (n_votes, n_attributes).

    Parameters
    ----------
    attributes : sequence of Attribute
    comparisons, votes : DataFrame
        The two tables of `Judgments`.

    Raises
    ------
    DataError
        E127, E128, E129 for attributes that fail, give no number or miss their column: all of them at once.

    Examples
    --------
    >>> from badpo.data.attributes import Length
    >>> comparisons = pd.DataFrame({"comparison_id": ["c"], "prompt": ["Why?"], "response_a": ["because it is"],
    ...     "response_b": ["so"]})
    >>> measure_delta([Length(ratio=1.5)], comparisons, pd.DataFrame({"comparison": [0, 0]})).ravel()
    array([1., 1.])
    """
    delta = np.zeros((len(votes), len(attributes)))
    problems = []
    comparison = votes["comparison"].to_numpy()
    texts = _PlainTexts(comparisons)
    for j, attribute in enumerate(attributes):
        try:
            if attribute.scope == "judgment":
                delta[:, j] = _of_judgments(attribute, comparisons, votes)
            else:
                delta[:, j] = np.subtract(*_of_comparisons(attribute, texts).T)[comparison]
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(problems)
    return delta


def measure_sides(attribute: Attribute, comparisons: pd.DataFrame) -> NDArray[np.float64]:
    """Values g(a) and g(b), of shape (n_comparisons, 2), of an attribute of the response or the pair.

    Parameters
    ----------
    attribute : Attribute
    comparisons : DataFrame
        The comparisons of `Judgments`.

    Raises
    ------
    DataError
        When the attribute fails or gives no number.

    Examples
    --------
    >>> from badpo.data.attributes import LengthWords
    >>> comparisons = pd.DataFrame({"comparison_id": ["c"], "prompt": ["Why?"], "response_a": ["because it is"],
    ...     "response_b": ["so"]})
    >>> measure_sides(LengthWords(threshold=0), comparisons)
    array([[3., 1.]])
    """
    return _of_comparisons(attribute, _PlainTexts(comparisons))


class _PlainTexts:
    """Prompts and responses of all comparisons as plain text, numbered when the first attribute asks."""

    def __init__(self, comparisons: pd.DataFrame):
        self.comparisons = comparisons
        self.ids = comparisons["comparison_id"].to_numpy()

    @cached_property
    def numbered(self) -> tuple[NDArray[np.intp], NDArray[np.object_]]:
        """Numbers of the texts in ``prompt``, ``response_a`` and ``response_b``, and the distinct texts."""
        return numbered_texts(self.comparisons, ("prompt", "response_a", "response_b"))


def _of_comparisons(attribute: Attribute, texts: _PlainTexts) -> NDArray[np.float64]:
    """Values g(a) and g(b), of shape (n_comparisons, 2)."""
    if attribute.columns is not None:
        return _column_sides(attribute, texts.comparisons)
    numbers, distinct = texts.numbered
    if attribute.scope == "pair":
        return _called(attribute, _pair, texts.ids, distinct[numbers].T).reshape(-1, 2)
    prompt, response = np.repeat(numbers[0], 2), numbers[1:].T.ravel()
    number, first = pd.factorize(prompt * len(distinct) + response)
    pairs = np.stack(
        [distinct[first // max(1, len(distinct))], distinct[first % max(1, len(distinct))]], axis=1
    )
    ids = np.repeat(texts.ids, 2)[np.unique(number, return_index=True)[1]]
    return _called(attribute, float, ids, pairs)[number].reshape(-1, 2)


def _of_judgments(
    attribute: Attribute, comparisons: pd.DataFrame, votes: pd.DataFrame
) -> NDArray[np.float64]:
    if attribute.config.get("type") == "position":
        return _first_shown(attribute, votes)
    comparison = votes["comparison"].to_numpy()
    of = comparisons.to_dict("records")
    rows = [(vote, of[vote["comparison"]]) for vote in votes.to_dict("records")]
    return _called(attribute, float, comparisons["comparison_id"].to_numpy()[comparison], rows)


def _first_shown(attribute: Attribute, votes: pd.DataFrame) -> NDArray[np.float64]:
    """What `Position` measures, of all votes at once."""
    if votes["shown_first"].isna().all() and len(votes):
        what = (
            f'attribute "{attribute.name}" needs to know which side was shown first, and no judgment says so'
        )
        remedy = "give a column shown_first with a or b; all a, when the table's a side was always first"
        raise DataError([Problem("E129", what, "the column shown_first", remedy, "error", len(votes))])
    sides, distinct = pd.factorize(votes["shown_first"])
    values = [attribute.measure({"shown_first": side}, {}) for side in (*distinct, None)]
    return np.array(values, dtype=np.float64)[sides]


def _column_sides(attribute: Attribute, comparisons: pd.DataFrame) -> NDArray[np.float64]:
    assert attribute.columns is not None
    missing = [name for name in attribute.columns if name not in comparisons]
    if missing:
        what = f'attribute "{attribute.name}": no single value for each comparison in {", ".join(missing)}'
        remedy = (
            "declare the attribute in Judgments.read; where the votes on one comparison differ in it, declare a "
            "PythonFunction of the judgment"
        )
        raise DataError([Problem("E128", what, "the comparisons", remedy, "error", len(missing))])
    return comparisons[list(attribute.columns)].to_numpy(dtype=np.float64)


def _called(
    attribute: Attribute, read: Callable[[Any], Any], ids: NDArray[np.object_], rows: Iterable[Sequence[Any]]
) -> NDArray[np.float64]:
    """What the attribute's function, which may be the user's own, says of each row."""
    values = []
    remedy = f"its function must return {_RETURNS[attribute.scope]} for every text"
    for comparison_id, row in zip(ids, rows, strict=True):
        try:
            values.append(read(attribute.measure(*row)))
        except ConfigError:
            raise
        except Exception as error:
            what = f'attribute "{attribute.name}" failed: {type(error).__name__}: {error}'
            where = f"first: comparison {comparison_id}"
            raise DataError([Problem("E127", what, where, remedy, "error")]) from error
    measured = np.array(values, dtype=np.float64)
    bad = np.unique(np.nonzero(~np.isfinite(measured))[0])
    if len(bad):
        what = f'attribute "{attribute.name}" gives no finite number: {len(bad):,} of {len(measured):,}'
        where = f"first: comparison {ids[bad[0]]}"
        raise DataError([Problem("E127", what, where, "return a number for every text", "error", len(bad))])
    return measured


def _pair(value: Any) -> tuple[float, float]:
    a, b = value
    return float(a), float(b)
