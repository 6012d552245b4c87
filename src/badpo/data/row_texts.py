"""The three texts of every row, read once for each distinct text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.importers.cells import read_texts
from badpo.data.importers.columns import Layout
from badpo.data.importers.trl import arrange
from badpo.data.row_problems import RowProblems

SIDES = {"a_b": ("response_a", "response_b"), "chosen_rejected": ("chosen", "rejected")}


@dataclass(frozen=True)
class RowTexts:
    """Which texts stand in which row.

    Attributes
    ----------
    values : object array
        Distinct texts: str, or lists of messages.
    prompt, first, second : int arrays of shape (n_rows,)
        Positions in ``values``; -1 in rows at fault. ``first`` is response a or the chosen one.
    """

    values: NDArray[np.object_]
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


def read_row_texts(layout: Layout, rows: RowProblems) -> RowTexts:
    """Prompt and responses of every row; what is wrong with them goes to ``rows``."""
    first, second = SIDES[layout.kind]
    has_prompt = layout.has("prompt")
    names = ["prompt", first, second] if has_prompt else [first, second]
    n = len(layout.frame)
    read = read_texts(np.concatenate([layout.frame[name].to_numpy(dtype=object) for name in names]))
    for name, missing in zip(names, read.missing.reshape(-1, n), strict=True):
        rows.add("E134", "error", f"no {name}", name, missing, "fill it in, or leave the row out")
    remedy = 'give text, or a list of messages with "role" and "content"'
    for j, name in enumerate(names):
        faults = {cell - j * n: why for cell, why in read.faults.items() if cell // n == j}
        _report_faults(f"{name} cannot be read, ", name, faults, rows, n, remedy)
    codes = read.codes.reshape(-1, n)
    usable = (codes >= 0).all(axis=0)
    if not has_prompt:
        codes = np.concatenate([np.full((1, n), -1), codes])
    texts = _arranged(codes, read.values, usable, rows, has_prompt)
    _report_blank(texts, rows, (first, second), has_prompt)
    return texts


def _report_faults(
    what: str, column: str | None, faults: Mapping[int, str], rows: RowProblems, n: int, remedy: str
) -> None:
    for reason in dict.fromkeys(faults.values()):
        at = np.isin(np.arange(n), [row for row, why in faults.items() if why == reason])
        rows.add("E105", "error", f"{what}{reason}", column, at, remedy)


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


def as_objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """A one-dimensional object array, also of lists of equal length."""
    return np.fromiter(values, dtype=object, count=len(values))


def _arranged(codes, values, usable, rows, has_prompt) -> RowTexts:
    """Texts as they are where all three are text; otherwise each distinct row through `arrange`."""
    n = codes.shape[1]
    if has_prompt and all(isinstance(value, str) for value in values):
        return RowTexts(as_objects(values), *np.where(usable, codes, -1))
    distinct, number = np.unique(codes[:, usable], axis=1, return_inverse=True)
    places: dict[str, int] = {}
    arranged: dict[str, Any] = {}
    parts = np.full(distinct.shape, -1, dtype=np.intp)
    faults: dict[int, str] = {}
    for i, (prompt, first, second) in enumerate(distinct.T.tolist()):
        try:
            texts = arrange(values[prompt] if has_prompt else None, values[first], values[second])
        except ValueError as error:
            faults[i] = str(error)
            continue
        for side, text in enumerate(texts):
            # a text may look like messages written as JSON, hence the kind in the key
            key = ("text " if isinstance(text, str) else "chat ") + text_key(text)
            parts[side, i] = places.setdefault(key, len(places))
            arranged[key] = text
    new = np.full((3, n), -1, dtype=np.intp)
    new[:, usable] = parts[:, number]
    at_fault = {row: faults[i] for row, i in zip(np.flatnonzero(usable), number, strict=True) if i in faults}
    _report_faults("", None, at_fault, rows, n, "give both responses in the same form")
    is_text = np.array([*(isinstance(value, str) for value in arranged.values()), False])[new[0]]
    if is_text.any() and (~is_text & (new[0] >= 0)).any():
        what = "text in some rows and chat messages in others; text here"
        rows.add("E105", "error", what, None, is_text, "give all rows in one form")
    return RowTexts(as_objects(list(arranged.values())), *new)


def _report_blank(texts: RowTexts, rows: RowProblems, sides: tuple[str, str], has_prompt: bool) -> None:
    blank = np.array([*map(_is_blank, texts.values), False])
    no_prompt = blank[texts.prompt]
    if has_prompt:
        rows.add("E134", "error", "empty prompt", "prompt", no_prompt, "fill it in, or leave the row out")
    else:
        what = f"no prompt, and {sides[0]} and {sides[1]} share no beginning"
        rows.add("E134", "error", what, None, no_prompt, 'map the prompt: columns={"prompt": "..."}')
    for name, side in zip(sides, (texts.first, texts.second), strict=True):
        remedy = "check the export; kept, since saying nothing can be an answer"
        rows.add("W134", "warning", f"empty response ({name})", name, blank[side], remedy)
    # a row that is reported already does not also stand for other texts than its comparison
    texts.prompt[no_prompt] = -1


def _is_blank(value: Any) -> bool:
    contents = [value] if isinstance(value, str) else [message["content"] for message in value]
    return not any(content.strip() for content in contents)
