"""The three texts of every row, read once for each distinct text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.importers.cells import TextCells, read_texts
from badpo.data.importers.columns import Layout
from badpo.data.importers.trl import arrange
from badpo.data.row_problems import RowProblems
from badpo.data.stored_texts import TextColumn, TextStore

SIDES = {"a_b": ("response_a", "response_b"), "chosen_rejected": ("chosen", "rejected")}


@dataclass(frozen=True)
class RowTexts:
    """Which texts stand in which row.

    Attributes
    ----------
    values : object array, or TextStore
        Distinct texts: str, or lists of messages. Those of a large table are in a store.
    prompt, first, second : int arrays of shape (n_rows,)
        Positions in ``values``; -1 in rows at fault. ``first`` is response a or the chosen one.
    """

    values: NDArray[np.object_] | TextStore
    prompt: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]

    def pair_keys(self) -> NDArray[np.intp]:
        """A number for each prompt and unordered pair of texts; -1 in rows at fault. Shape (n_rows,)."""
        low, high = np.minimum(self.first, self.second), np.maximum(self.first, self.second)
        # two steps, so that the products stay far below 2^63
        pair = pd.factorize((low + 1) * (len(self.values) + 1) + high + 1)[0]
        key = pd.factorize(pair * (len(self.values) + 1) + self.prompt + 1)[0]
        key[(low < 0) | (self.prompt < 0)] = -1
        return key

    def column(self, codes: NDArray[np.intp]) -> pd.Series:
        """The texts with these codes as a column; those of a store stay there."""
        if isinstance(self.values, TextStore):
            return pd.Series(TextColumn(codes, self.values))
        return pd.Series(self.values[codes], dtype=object)


def read_row_texts(layout: Layout, rows: RowProblems) -> RowTexts:
    """Prompt and responses of every row; what is wrong with them goes to ``rows``.

    Parameters
    ----------
    layout : Layout
    rows : RowProblems
    """
    first, second = SIDES[layout.kind]
    names = [name for name in ("prompt", first, second) if layout.has(name)]
    n = len(layout.frame)
    read = _read_cells([layout.frame[name] for name in names])
    codes = read.codes.reshape(len(names), n)
    _report_cells(read.missing.reshape(len(names), n), read.faults, names, rows)
    if len(names) == 2:
        codes = np.concatenate([np.full((1, n), -1), codes])
    usable = (codes[-2:] >= 0).all(axis=0) & ((codes[0] >= 0) | (len(names) == 2))
    texts = _arranged(codes, read.values, usable, rows, implicit=len(names) == 2)
    _report_blank(texts, usable, rows, first, second, implicit=len(names) == 2)
    return texts


def _read_cells(columns: Sequence[pd.Series]) -> TextCells:
    """The cells of several columns one after the other; where all are in one store, no text is looked at."""
    arrays = [column.array for column in columns]
    stored = [values for values in arrays if isinstance(values, TextColumn)]
    if len(stored) == len(arrays) and all(values.store is stored[0].store for values in stored):
        codes = np.concatenate([values.codes for values in stored])
        return TextCells(codes, stored[0].store, codes < 0, {})
    return read_texts(np.concatenate([column.to_numpy(dtype=object) for column in columns]))


def text_key(value: Any) -> str:
    """A text that identifies a text or a list of messages.

    Examples
    --------
    >>> text_key("yes"), text_key([{"role": "user", "content": "hi"}])
    ('yes', '[{"content": "hi", "role": "user"}]')
    """
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def digest(prefix: str, *values: Any) -> str:
    """An id made of texts: the same for the same texts on every machine.

    Examples
    --------
    >>> digest("p", "Why?")
    'p-e554f91c2648e1b7'
    """
    joined = json.dumps([text_key(value) for value in values])
    return f"{prefix}-{hashlib.sha256(joined.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def as_objects(values: list[Any]) -> NDArray[np.object_]:
    """A one-dimensional object array, also of lists of equal length.

    Examples
    --------
    >>> as_objects([[1, 2], [3, 4]]).shape
    (2,)
    """
    array = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _report_cells(missing, faults, names, rows) -> None:
    n = missing.shape[1]
    for name, column in zip(names, missing, strict=True):
        rows.add("E134", "error", f"no {name}", name, column, "fill it in, or leave the row out")
    for reason in dict.fromkeys(faults.values()):
        cells = np.array([cell for cell, why in faults.items() if why == reason])
        for j in np.unique(cells // n):
            at = np.isin(np.arange(n), cells[cells // n == j] % n)
            remedy = 'give text, or a list of messages with "role" and "content"'
            rows.add("E105", "error", f"{names[j]} cannot be read, {reason}", names[j], at, remedy)


def _arranged(codes, values, usable, rows, implicit) -> RowTexts:
    """Texts as they are where all three are text; otherwise each distinct row through `arrange`."""
    n = codes.shape[1]
    stored = isinstance(values, TextStore)
    if not implicit and (stored or all(isinstance(value, str) for value in values)):
        codes = np.where(usable, codes, -1)
        return RowTexts(values if stored else as_objects(values), *codes)
    # pandas 2 cannot tell how many columns no row has
    triples = pd.MultiIndex.from_arrays(codes[:, usable])
    row_triple, distinct = pd.factorize(triples) if usable.any() else (np.zeros(0, dtype=np.intp), [])
    places: dict[str, int] = {}
    arranged_values: list[Any] = []
    arranged = np.full((len(distinct), 3), -1, dtype=np.intp)
    faults: dict[int, str] = {}
    for i, (prompt, first, second) in enumerate(distinct):
        try:
            parts = arrange(None if prompt < 0 else values[prompt], values[first], values[second])
        except ValueError as error:
            faults[i] = str(error)
            continue
        for side, part in enumerate(parts):
            # a text may look like messages written as JSON, hence the kind in the key
            key = ("text " if isinstance(part, str) else "chat ") + text_key(part)
            if key not in places:
                places[key] = len(arranged_values)
                arranged_values.append(part)
            arranged[i, side] = places[key]
    new = np.full((3, n), -1, dtype=np.intp)
    new[:, usable] = arranged[row_triple].T if len(distinct) else 0
    for reason in dict.fromkeys(faults.values()):
        at = np.zeros(n, dtype=bool)
        at[np.flatnonzero(usable)[np.isin(row_triple, [i for i, why in faults.items() if why == reason])]] = (
            True
        )
        rows.add("E105", "error", reason, None, at, "give both responses in the same form")
    _report_mixture(new, arranged_values, rows)
    return RowTexts(as_objects(arranged_values), *new)


def _report_mixture(codes, values, rows) -> None:
    is_text = np.array([isinstance(value, str) for value in values] + [False])
    valid = codes[0] >= 0
    text = valid & is_text[codes[0]]
    chat = valid & ~is_text[codes[0]]
    if text.any() and chat.any():
        rows.add(
            "E105",
            "error",
            "text in some rows and chat messages in others; text here",
            None,
            text,
            "give all rows in one form",
        )


def _report_blank(texts, usable, rows, first, second, implicit) -> None:
    blank = np.array([_is_blank(value) for value in texts.values] + [False])
    no_prompt = usable & (texts.prompt >= 0) & blank[texts.prompt]
    if implicit:
        what = f"no prompt, and {first} and {second} share no beginning"
        rows.add("E134", "error", what, None, no_prompt, 'map the prompt: columns={"prompt": "..."}')
    else:
        rows.add("E134", "error", "empty prompt", "prompt", no_prompt, "fill it in, or leave the row out")
    for name, side in ((first, texts.first), (second, texts.second)):
        empty = (side >= 0) & blank[side]
        remedy = "check the export; kept, since saying nothing can be an answer"
        rows.add("W134", "warning", f"empty response ({name})", name, empty, remedy)
    # a row that is reported already does not also stand for other texts than its comparison
    texts.prompt[no_prompt] = -1


def _is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not any(message["content"].strip() for message in value)
