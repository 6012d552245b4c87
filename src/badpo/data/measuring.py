"""Attribute differences of judgments: each distinct text is measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.attribute import Attribute
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.stored_texts import NumberedTexts, numbered_texts


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
                sides = _of_comparisons(attribute, texts)
                delta[:, j] = _finite(attribute, sides[:, 0] - sides[:, 1], texts.ids)[comparison]
        except _MeasuringError as error:
            problems.append(error.problem)
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
    texts = _PlainTexts(comparisons)
    try:
        sides = _of_comparisons(attribute, texts)
        _finite(attribute, sides.sum(axis=1), texts.ids)
    except _MeasuringError as error:
        raise DataError([error.problem]) from error
    return sides


class _MeasuringError(Exception):
    def __init__(self, problem: Problem):
        super().__init__(problem.what)
        self.problem = problem


class _PlainTexts:
    """Prompts and responses of all comparisons as plain text, numbered when the first attribute asks."""

    def __init__(self, comparisons: pd.DataFrame):
        self.comparisons = comparisons
        self.ids = comparisons["comparison_id"].to_numpy()

    @cached_property
    def numbered(self) -> NumberedTexts:
        """Texts of ``prompt``, ``response_a`` and ``response_b``, in that order."""
        return numbered_texts(self.comparisons, ("prompt", "response_a", "response_b"))


def _of_comparisons(attribute: Attribute, texts: _PlainTexts) -> NDArray[np.float64]:
    if attribute.columns is not None:
        return _column_sides(attribute, texts.comparisons)
    numbers, each = texts.numbered.numbers, texts.numbered.each
    if attribute.scope == "pair":
        rows = zip(*map(each, numbers), strict=True)
        pairs = [_called(attribute, _pair, texts.ids[i], *row) for i, row in enumerate(rows)]
        return np.array(pairs, dtype=np.float64).reshape(-1, 2)
    prompt, response = np.repeat(numbers[0], 2), numbers[1:].T.ravel()
    number, first = _distinct_pairs(prompt, response)
    rows = zip(texts.ids[first // 2], each(prompt[first]), each(response[first]), strict=True)
    values = [_called(attribute, _single, *row) for row in rows]
    return np.array(values, dtype=np.float64)[number].reshape(-1, 2)


def _distinct_pairs(
    left: NDArray[np.integer], right: NDArray[np.integer]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number of each pair by first appearance, and the place where each distinct one stands first."""
    number, distinct = pd.factorize(left.astype(np.int64) * (right.max(initial=0) + 1) + right)
    first = np.zeros(len(distinct), dtype=np.intp)
    first[number[::-1]] = np.arange(len(left))[::-1]
    return number, first


def _of_judgments(
    attribute: Attribute, comparisons: pd.DataFrame, votes: pd.DataFrame
) -> NDArray[np.float64]:
    if attribute.config.get("type") == "position":
        return _first_shown(attribute, votes)
    of = comparisons.to_dict("records")
    ids = comparisons["comparison_id"].to_numpy()
    values = [
        _called(attribute, _single, ids[vote["comparison"]], vote, of[vote["comparison"]])
        for vote in votes.to_dict("records")
    ]
    return _finite(attribute, np.array(values, dtype=np.float64), ids[votes["comparison"].to_numpy()])


def _first_shown(attribute: Attribute, votes: pd.DataFrame) -> NDArray[np.float64]:
    """What `Position` measures, of all votes at once."""
    if votes["shown_first"].isna().all() and len(votes):
        what = (
            f'attribute "{attribute.name}" needs to know which side was shown first, and no judgment says so'
        )
        remedy = "give a column shown_first with a or b; all a, when the table's a side was always first"
        raise _MeasuringError(Problem("E129", what, "the column shown_first", remedy, "error", len(votes)))
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
        raise _MeasuringError(Problem("E128", what, "the comparisons", remedy, "error", len(missing)))
    return comparisons[list(attribute.columns)].to_numpy(dtype=np.float64)


def _called(attribute: Attribute, read: Callable[[Any], Any], comparison_id: str, *arguments: Any) -> Any:
    try:
        return read(attribute.measure(*arguments))
    except ConfigError:
        raise
    except Exception as error:  # the function may be the user's own
        what = f'attribute "{attribute.name}" failed: {type(error).__name__}: {error}'
        shape = {"response": "one number", "pair": "two numbers (g_a, g_b)", "judgment": "one number"}[
            attribute.scope
        ]
        remedy = f"its function must return {shape} for every text"
        raise _MeasuringError(
            Problem("E127", what, f"first: comparison {comparison_id}", remedy, "error")
        ) from error


def _single(value: Any) -> float:
    return float(value)


def _pair(value: Any) -> tuple[float, float]:
    a, b = value
    return float(a), float(b)


def _finite(
    attribute: Attribute, values: NDArray[np.float64], ids: NDArray[np.object_]
) -> NDArray[np.float64]:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        what = f'attribute "{attribute.name}" gives no finite number: {len(bad):,} of {len(values):,}'
        raise _MeasuringError(
            Problem(
                "E127",
                what,
                f"first: comparison {ids[bad[0]]}",
                "return a number for every text",
                "error",
                len(bad),
            )
        )
    return values
