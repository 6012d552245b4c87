"""Cells of a table as identifiers and as texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.numbering import numbered

_WORDS_FOR_NOTHING = frozenset({"nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def as_ids(column: pd.Series) -> NDArray[np.object_]:
    """Identifiers as text, None where there is none.

    Whole numbers lose a decimal point that a missing value elsewhere in the column gave them; text is never changed.
    Blank cells and the words that programs write for a missing value count as missing.

    Raises
    ------
    ValueError
        When a cell is a list or an object.

    Examples
    --------
    >>> as_ids(pd.Series(["0123", 7, 7.0, None, " "], dtype=object)).tolist()
    ['0123', '7', '7', None, None]
    """
    cells = column.to_numpy(dtype=object)
    present = ~pd.isna(cells)
    try:
        codes, distinct = numbered(cells[present])
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    ids = np.full(len(cells), None, dtype=object)
    ids[present] = np.array([*map(_id_text, distinct), None], dtype=object)[codes]
    return ids


def _id_text(value: Any) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # half of a surrogate pair can be written nowhere, and pandas 2 compares up to a NUL: each becomes its code
    text = text.replace("\0", "\\x00")
    text = text if is_unicode(text) else text.encode("utf-8", "backslashreplace").decode("utf-8")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


@dataclass(frozen=True)
class TextCells:
    """The distinct texts of some cells, and which cell holds which.

    Attributes
    ----------
    codes : int array of shape (n_cells,)
        Position in ``values``; -1 where the cell is missing or at fault.
    values : sequence of str or of list of dict
        Distinct texts in order of first appearance; messages as plain dicts with text contents.
    missing : bool array of shape (n_cells,)
    faults : dict of int to str
        Cell -> why it is neither text nor chat messages.
    """

    codes: NDArray[np.intp]
    values: Sequence[Any]
    missing: NDArray[np.bool_]
    faults: dict[int, str]


def read_texts(cells: NDArray[np.object_]) -> TextCells:
    """Texts and lists of chat messages out of raw cells.

    Examples
    --------
    >>> cells = np.array(["a", None, "a", 3], dtype=object)
    >>> read_texts(cells).codes.tolist(), read_texts(cells).faults
    ([0, -1, 0, -1], {3: 'it is of type int, not text'})
    """
    missing = pd.isna(cells)
    # not `factorize`: pandas 2 takes texts that hold half of a surrogate pair for equal, which the keys below do
    places: dict[str, int] = {}
    codes = np.full(len(cells), -1, dtype=np.intp)
    messages: dict[str, Any] = {}
    faults: dict[int, str] = {}
    for i, cell in enumerate(cells):
        if isinstance(cell, str):
            codes[i] = places.setdefault(cell, len(places))
        elif not missing[i]:
            try:
                value = as_messages(cell)
            except ValueError as error:
                faults[i] = str(error)
                continue
            # no text can be taken for a list: a text that starts with this character is at fault below
            key = "\ud800" + json.dumps(value, sort_keys=True, ensure_ascii=False)
            codes[i] = places.setdefault(key, len(places))
            messages[key] = value
    distinct = list(places)
    values = [messages.get(key, key) for key in distinct]
    broken = np.array(
        [not is_unicode(key.removeprefix("\ud800") if key in messages else key) for key in distinct]
    )
    if broken.any():
        for cell in np.flatnonzero(broken[codes] & (codes >= 0)).tolist():
            faults[cell] = "it holds half of a surrogate pair, which is no character"
        codes[list(faults)] = -1
    return TextCells(codes, values, missing, faults)


def as_messages(cell: Any) -> list[dict[str, Any]]:
    """Chat messages as plain dicts whose contents are text.

    Keys without a value, which columnar files add, are left out; text parts of a content are joined.

    Raises
    ------
    ValueError
        Saying what is wrong with the cell.

    Examples
    --------
    >>> as_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": None}])
    [{'role': 'user', 'content': 'Hi'}]
    """
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError("a chat message needs a role and a content")
    content = message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        content = _joined_parts(content)
    if content is None and message.get("tool_calls"):
        raise ValueError(
            f"the {message['role']} message calls a tool and has no text, and only text is trained on; write the call "
            "into its content"
        )
    if not isinstance(content, str):
        raise ValueError(f"the content of the {message['role']} message is not text")
    others = {
        key: value for key, value in message.items() if key not in ("role", "content") and value is not None
    }
    try:
        json.dumps(others, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"the {message['role']} message has something else than text, numbers and lists beside its content"
        ) from None
    return {"role": message["role"], "content": content, **others}


def _joined_parts(parts: Iterable[Any]) -> str | None:
    """The texts of a content given in parts; None when a part is not text."""
    texts = []
    for part in parts:
        if not (
            isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        ):
            return None
        texts.append(part["text"])
    return "".join(texts)


def is_unicode(text: str) -> bool:
    r"""Whether a text can be written anywhere: it holds no half of a surrogate pair, which JSON can escape.

    Examples
    --------
    >>> is_unicode("\N{PARTY POPPER}"), is_unicode("\ud83c")
    (True, False)
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
