"""Tables, and the content of their cells and columns: ids, numbers, texts, chat messages, votes and people."""

import ast
import contextlib
import itertools
import json
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias, TypedDict, TypeGuard

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.problems import (
    LISTED,
    Correction,
    DataError,
    Json,
    Messages,
    Problem,
    is_unicode,
    listed,
    worst_first,
)
from badpo.data.vocabulary import (
    LONGEST_LEGEND,
    MODELS,
    NO,
    PAIR,
    SIDES,
    YES,
    columns_named,
    columns_of_sides,
    direction_of,
    folded,
    graded,
    has_word,
    is_called_like_people,
    like_annotators,
    mirrored_sides,
    names_vote,
    normalize_text,
    number_of,
    side_of,
    which_wins,
)
from badpo.theory import Bools, Floats, Ints

Objects = NDArray[np.object_]
# content of a cell: nothing, a plain value, or nested lists and objects as in JSON
Cell: TypeAlias = None | int | float | str | list["Cell"] | dict[str, "Cell"]
Record = dict[str, Cell]


class Dropped(TypedDict):
    """How many votes or rows of an annotator were excluded for the same reason."""

    reason: str
    annotator: str
    n: int


# For a table with several votes per row: vote name -> badpo's column name -> the table's column name.
Groups = dict[str, dict[str, str]]

_BREAK = re.compile(
    r"\}\n\s*\{"
)  # end of a JSON object and start of the next one; line breaks inside strings are escaped
_ROLES = {"human": "user", "gpt": "assistant"}


# Largest table that badpo reads. A larger table may need more memory than the machine has, even if its file is small.
MOST_ROWS, MOST_COLUMNS, MOST_CELLS = 5_000_000, 2_000, 50_000_000


def require_size(name: str, n_rows: int, n_columns: int, n_cells: int | None = None) -> None:
    """Raise a `DataError` (E102) if a table has too many rows, columns or cells.

    If a row holds several votes, callers also check the size of the converted table, which has one row per vote.
    """
    n_cells = n_rows * n_columns if n_cells is None else n_cells
    sizes = (
        ("rows", n_rows, MOST_ROWS),
        ("columns", n_columns, MOST_COLUMNS),
        ("cells", n_cells, MOST_CELLS),
    )
    if excesses := [f"{n:,} {noun} (limit: {most:,})" for noun, n, most in sizes if n > most]:
        what = f"the table is too large to be read: it has {' and '.join(excesses)}"
        remedy = "export only the columns that are needed, or split the table"
        raise DataError([Problem("E102", what, name, remedy)])


@dataclass(frozen=True)
class Table:
    """A table and its source."""

    frame: pd.DataFrame  # index 0, 1, ...; cells of a CSV file stay strings: 0123 does not become 123
    name: str  # name of the table in messages: its path or the kind of the object
    lines: Ints | None = None  # line of the file, counted from 1, at which each row starts
    rows: Ints | None = None  # 0-based source row of each row; None if the rows are the source rows
    dropped: tuple[Dropped, ...] = ()  # how many votes or rows were left out
    kind: str = ""  # a key of `badpo.data.layouts.REQUIRED`, set when the columns have badpo's names
    theirs: Mapping[str, str] = field(
        default_factory=dict
    )  # badpo's column name -> the source's column name
    encoding: str = "utf-8"  # encoding of a text file
    notes: tuple[Problem, ...] = ()  # notices about how the file was read
    legends: tuple[str, ...] = ()  # texts outside the table's rows that may explain its numbers

    def __post_init__(self) -> None:
        require_size(self.name, *self.frame.shape)
        if not all(is_unicode(str(name)) for name in self.frame.columns):
            what = "the table cannot be read: the name of a column contains half of a surrogate pair"
            raise DataError([Problem("E102", what, self.name, "rename the column")])

    def with_rows(self, frame: pd.DataFrame) -> "Table":
        """Return a copy of the table whose rows are replaced by the rows of ``frame``.

        The index of ``frame`` holds, for each new row, the number of the old row from which the new row was made.
        """
        made_of = frame.index.to_numpy()
        lines, rows = (None if of is None else of[made_of] for of in (self.lines, self.rows))
        rows = made_of if rows is None else rows
        return replace(self, frame=frame.reset_index(drop=True), lines=lines, rows=rows)

    def with_dropped(self, reason: str, n: int) -> "Table":
        """Return a copy of the table that counts ``n`` more rows or votes as left out."""
        entry: Dropped = {"reason": reason, "annotator": "unknown", "n": n}
        return replace(self, dropped=(*self.dropped, entry))

    def with_names(self, columns: Mapping[str, str]) -> "Table":
        """Return a copy of the table with a new mapping from badpo's column names to the table's column names."""
        return replace(self, theirs=columns)

    def without_names(self, *ours: str) -> "Table":
        """Return a copy of the table with some of badpo's column names removed from the mapping."""
        return self.with_names({name: own for name, own in self.theirs.items() if name not in ours})

    def row_name(self, row: int) -> str:
        """Return the number, counted from 1, of the source row from which a row of the table was made."""
        return f"{(row if self.rows is None else self.rows[row]) + 1:,}"

    def noted(
        self, code: str, what: str, remedy: str = "nothing", fix: Correction | None = None
    ) -> "Table":
        """Return a copy of the table with one more notice about how the table was read."""
        note = Problem(code, what, self.name, remedy, len(self.frame), fix=fix or {})
        return replace(self, notes=(*self.notes, note))


_CODES_FOR_NOTHING = frozenset({-9.0, -77.0, -88.0, -99.0, -777.0, -888.0, -999.0, -9999.0})
_WORDS_FOR_NOTHING = frozenset({"NA", "nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def numbered(values: Iterable[Hashable]) -> tuple[Ints, Objects]:
    """Return each value's index among the distinct values, and the distinct values in order of first appearance.

    `pandas.factorize` is not used: pandas before version 3 compares strings only up to the first NUL character.
    """
    places: defaultdict[Hashable, int] = defaultdict()
    places.default_factory = places.__len__
    numbers = np.fromiter(map(places.__getitem__, values), dtype=np.intp)
    return numbers, as_objects(places)


def as_objects(values: Iterable[object]) -> Objects:
    """Return the values as a one-dimensional object array, even if they are lists of equal length."""
    return np.fromiter(values, dtype=object)


def as_ids(column: Iterable[Cell]) -> Objects:
    """Return the identifiers in a column as strings, with None for missing identifiers.

    Whole numbers are written without the decimal point that pandas adds if another cell in the column is empty. Text
    stays unchanged, except that it is normalized to Unicode form NFC, which encodes accented letters as single
    characters. Blank cells and common words for missing values, such as ``NA`` and ``null``, count as missing.
    """
    cells = pd.Series(column, dtype=object).to_numpy(copy=True)
    cells[pd.isna(cells)] = None
    try:
        numbers, distinct = numbered(cells)
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    return as_objects(map(_id_text, distinct))[numbers]


def _id_text(value: Cell | bytes) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # escape NUL characters and lone surrogates: pandas 2 compares strings only up to a NUL, and UTF-8 has no surrogates
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    text = normalize_text(text, "NFC")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


def text_key(value: str | Sequence[Mapping[str, str]]) -> str:
    """Return a key that identifies a text or a list of chat messages."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def cell_key(value: Cell) -> str:
    """Return a string that identifies a cell, even if the cell cannot be written as JSON."""
    return value if isinstance(value, str) else repr(value)


def numbered_cells(cells: Iterable[Cell]) -> tuple[Ints, Objects]:
    """Return each cell's index into an array of the distinct contents, and the array itself.

    The content of a cell is a string or a list of chat messages. Empty cells have the index -1, because the last
    element of the array is None. If a cell cannot be read as text or messages, the array contains a `ValueError` object
    that describes the problem.
    """
    others: dict[Hashable, Messages | ValueError] = {}

    def key(cell: Cell) -> Hashable:
        if pd.api.types.is_scalar(cell) and pd.isna(cell):
            return None
        try:
            messages = as_messages(cell)
            # the tag "messages" distinguishes a list of messages from a string with the same JSON
            key: Hashable = "messages", text_key(messages)
            others[key] = messages
        except (ValueError, TypeError, RecursionError) as error:
            key = "fault", str(error)
            others[key] = ValueError(str(error))
        return key

    # most texts occur in several cells
    numbers, keys = numbered(cell if isinstance(cell, str) else key(cell) for cell in cells)
    values = as_objects([*(others.get(key, key) for key in keys), None])
    half = ValueError("the text contains half of a surrogate pair, which is not a valid character")
    for i, value in enumerate(values):
        if isinstance(value, (str, list)) and not is_unicode(text_key(value)):
            values[i] = half
    numbers[pd.isna(values)[numbers]] = -1
    return numbers, values


def as_messages(cell: object) -> Messages:
    """Return the chat messages in a cell as plain dicts whose contents are text.

    A single message becomes a list with one message. If the content of a message is a list of text parts, the parts are
    joined. Message keys with the value None, which are common in parquet files, are left out. If the cell holds no
    messages, a `ValueError` is raised.
    """
    if isinstance(cell, Mapping):
        cell = [cell]
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: object) -> Json:
    fields = dict(message) if isinstance(message, Mapping) else {}
    if "from" in fields:
        # the ShareGPT format
        role = _ROLES.get(fields["from"], fields["from"])
        fields = {"role": role, "content": fields.get("value")}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str):
        raise ValueError("a chat message must have a role and content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part["text"] for part in parts if part.get("type") == "text" and "text" in part]
        is_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(texts) if is_text else None
    if content is None and fields.get("tool_calls"):
        remedy = "write the call into the content of the message, because attributes read only text"
        raise ValueError(f"the {role} message calls a tool and has no text; {remedy}")
    if not isinstance(content, str):
        raise ValueError(f"the content of the {role} message is not text")
    others = {key: value for key, value in fields.items() if value is not None}
    return others | {"role": role, "content": content}


MOST_LABELS = 12  # largest number of distinct labels in a column of votes
FEW_ROWS, NEARLY_ALL = 0.1, 0.9  # few rows and nearly all rows, as shares of all rows
MANY_ROWS = 1000  # most checks read only this many rows at the beginning of a table


_LARGEST_RATING = 10


_TICKED = {**dict.fromkeys((*YES, "x", "✓", "✔"), 1), **dict.fromkeys(NO, 0)}


_NUMBERED_GRADE = re.compile(r"([+-]?\d+) *[-=:.(] *[^\W\d]")


_USUAL_TEXT = 15  # smallest median length of the texts in a column of texts, in characters


# Only the first MANY_CHARACTERS characters of a text are searched for words.
MANY_CHARACTERS = 10_000
WORDS = re.compile(r"[^\W\d_]\s|[^\x00-\x7f]")  # matches texts, but no times, addresses or ids


def ids_in(column: pd.Series) -> pd.Series:
    """Return the ids in a column; if a cell holds a list or an object, all ids are None."""
    try:
        return pd.Series(as_ids(column), column.index, dtype=object)
    except ValueError:
        return pd.Series(as_objects([None] * len(column)), column.index, dtype=object)


def equal_cells(column: pd.Series, other: pd.Series) -> pd.Series:
    """Return, for each row, whether two columns hold the same text (see `is_same_text`).

    If the cell in the first column is empty, the result is False.
    """
    is_there = column.notna().to_numpy()
    cells = zip(map(cell_key, column[is_there]), map(cell_key, other[is_there]), strict=True)
    are_equal = np.zeros(len(column), dtype=bool)
    are_equal[is_there] = [*itertools.starmap(is_same_text, cells)]
    return pd.Series(are_equal, column.index)


def is_same_text(cell: str, text: str) -> bool:
    """Return whether a cell equals a text, apart from white space, or is a truncated copy that ends in dots."""
    cell, text = (" ".join(each.split()) for each in (cell, text))
    beginning = cell.removesuffix("...").removesuffix("\u2026").rstrip()
    is_cut = len(beginning) >= _USUAL_TEXT and beginning != cell
    return cell == text or (is_cut and text.startswith(beginning))


def few_labels(column: pd.Series) -> list[str]:
    """Return the distinct labels of a column, or an empty list if there are more than `MOST_LABELS`."""
    # to save time, count the labels in the first MANY_ROWS rows before the labels in the whole column
    for cells in (column[:MANY_ROWS], column):
        labels = [*ids_in(cells).dropna().unique()]
        if len(labels) > MOST_LABELS:
            return []
    return labels


def are_votes(column: pd.Series) -> bool:
    """Return whether a column holds nothing but side labels and ratings on a small scale."""
    labels = few_labels(column)
    numbers = [number_of(label) for label in labels if side_of(label) is None]
    are_numbers = labels != [] and all(abs(number) <= _LARGEST_RATING for number in numbers)
    return are_numbers or bool(graded(labels) or mirrored_sides(labels))


def holds_texts(column: pd.Series) -> bool:
    """Return whether most cells of a column are texts or chats, which are longer than labels."""
    # searching very long texts in full could take minutes if many rows repeat the same text
    texts = [cell for cell in column if isinstance(cell, str) and WORDS.search(cell, 0, MANY_CHARACTERS)]
    chats = [*filter(is_chat, column)]
    lengths = [len(str(cell)) for cell in texts + chats]
    return 2 * len(lengths) > len(column) and float(np.median(lengths)) >= _USUAL_TEXT


def as_numbers(column: pd.Series) -> Floats:
    """Return the numbers in a column, with NaN for cells without a number. Strings may have a decimal comma."""
    try:
        numbers = pd.to_numeric(column, errors="coerce")
    except OverflowError:  # an integer exceeds the largest float; read all numbers as strings
        numbers = pd.to_numeric(column.map(str), errors="coerce")
    found: Floats = numbers.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    cells = column.to_numpy(dtype=object)
    texts = [i for i in np.flatnonzero(np.isnan(found)) if isinstance(cells[i], str)]
    found[texts] = [*map(cache(number_of), cells[texts])]
    return found


def as_ratings(column: pd.Series) -> Floats:
    """Return the ratings in a column as numbers.

    A cell may hold a number, a tick, a grade in words, or a number followed by its meaning. If the only distinct
    negative number in a column is a common code for a missing value (such as -99), it is replaced with NaN.
    """
    grades = graded([label for label in few_labels(column) if math.isnan(number_of(label))])

    def rated(cell: Cell) -> Cell:
        words = str(cell).strip().casefold()
        first = _NUMBERED_GRADE.match(words)
        return _TICKED.get(words, grades.get(str(cell), float(first[1]) if first else cell))

    ratings = as_numbers(column.map(rated))
    negative = {*ratings[ratings < 0]}
    if len(negative) == 1 and negative <= _CODES_FOR_NOTHING:
        ratings[ratings < 0] = np.nan
    return ratings


def are_no_votes(name: str, column: pd.Series) -> bool:
    """Return whether a column holds ids, dates, counts or data about people, and therefore neither votes nor texts."""
    if has_word(name, OTHER_NAMES) and not (names_vote(name) and direction_of(name)):
        return True
    numbers = as_numbers(column[:MANY_ROWS])
    if len(numbers) > MOST_LABELS and np.mean(np.diff(numbers) > 0) > 0.5 + FEW_ROWS:
        return True  # a number that mostly grows from row to row is a counter
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna()]
    return cells != [] and all(map(DATE.match, cells))


# if a column name contains a word that matches OTHER_NAMES, the column does not hold votes
OTHER_NAMES = re.compile(
    "ids?|uid|uuid|hash|date|datum|fecha|time|timestamp|utc|duration|seconds|ms|tokens?|count|length|len|chars|words|"
    "elo|ratio|age|year|lang|language|locale|seed|split|version|turn|confidence|confident|sure|certainty|certain|"
    "rt|latency|elapsed|index|idx|trial|row|nr|no|number|slot|position|difficulty|gold|familiar|familiarity|knowledge|expertise|experience|domina|kenntnis|sicherheit|variant"
)


# the four numbers of an IP address are not a date
DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}(?!\.?\d)|\d{1,2}:\d\d")


_FEW_WORDS = (2, 3)


_LARGEST_SCALE = 100


NAMES_SIDES = 3


MACHINES = re.compile("reward|auto|automatic|predicted|prediction|gpt|llm|model|machine")


OVERALL = re.compile(
    r"overall|general|final|total\w*|gesamt\w*|insgesamt|globale?|générale?|geral|totaal|complessiv\w|综合|総合|종합|общ\w+"
)


THINGS = re.compile(
    "prompt|question|item|task|case|topic|category|system|model|doc|document|batch|session|round|condition|version|hit|"
    "pair|page|block|set|part|wave|week|day|sheet|game|order|criteri(?:on|a)|aspect|dimension"
)


OF_PEOPLE = re.compile(
    "class|group|team|type|role|age|gender|country|model|file|domina|template|system|feature|field"
)


_PERSONS_NAME = re.compile(r"(?:[^\W\d_][\w'\u2019]*[ .-]*){1,3}")


_MOST_SIDES = (
    30  # other columns are compared with at most this many columns of answers or of answer names
)
_NAMES_OF_ANSWERS = re.compile("id|uid|uuid|name|model|system|source|key|hash|generator|policy")


def columns_of_votes(frame: pd.DataFrame, free: Sequence[str]) -> list[str]:
    """Return the columns in which every cell holds a vote.

    A vote is a side label, a rating on a small scale, or a copy of the preferred answer or of its model's name. If no
    column holds votes, return each column with two or three distinct labels that also occur in another column.
    """
    models = [*columns_named([*map(str, frame)], MODELS).values()]
    sides = [*models, *(name for name in frame if holds_texts(frame[name]))]
    # _MOST_SIDES limits the running time, because every column is compared with every answer column
    if len(sides) > _MOST_SIDES:
        sides = models[:_MOST_SIDES]

    def holds_votes(name: str) -> bool:
        column = frame[name]
        copies = [equal_cells(column, frame[side]) for side in sides if side != name]
        copies = [copy for copy in copies if copy.sum() > 1]
        if len(copies) > 1:
            column = column[~np.any(copies, axis=0)]
        has_votes = column.isna().all() or are_votes(column)
        return bool(has_votes and name not in models and frame[name].notna().any())

    if found := [name for name in free if holds_votes(name)]:
        return found
    words = [frozenset(few_labels(frame[name])) for name in free]
    are_few = [len(one) in _FEW_WORDS and words.count(one) > 1 for one in words]
    return list(itertools.compress(free, are_few))


def most_alike(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the largest set of vote columns with similar labels.

    Two vote columns are similar if they share at least half of their labels. If some column names differ only in a
    trailing number, the names of similar columns must also be equal apart from this number.
    """
    stems = {name: folded(name).rstrip("_0123456789") for name in columns}
    are_numbered = len({*stems.values()}) < len(columns)
    kinds: dict[tuple[frozenset[str], str], list[str]] = {}
    for name in columns:
        kind = frozenset(few_labels(frame[name])), stems[name] * are_numbered
        kinds.setdefault(kind, []).append(name)
    groups = []
    for labels, stem in kinds:
        alike = [kind for kind in kinds if kind[1] == stem]
        alike = [kind for kind in alike if 2 * len(labels & kind[0]) >= max(len(labels), len(kind[0]))]
        groups.append([name for kind in alike for name in kinds[kind]])
    most = {*max(groups, key=len)}
    return [name for name in columns if name in most]


def clearest_votes(frame: pd.DataFrame, free: Sequence[str], theirs: Mapping[str, str]) -> list[str]:
    """Return the columns whose cells and names show most clearly which side was preferred."""

    def rank(name: str) -> tuple[int, bool, bool, bool]:
        return (
            clearness_of_votes(frame, name, theirs),
            names_vote(name),
            not has_word(name, MACHINES),
            not has_word(name, THINGS),
        )

    ranks = {name: rank(name) for name in free}
    ranks = {name: found for name, found in ranks.items() if found[0]}
    best = [name for name, found in ranks.items() if found == max(ranks.values())]
    best = _without_copies(frame, [name for name in best if has_word(name, OVERALL)][:1] or best)
    # A column of words may hold annotator ids, which messages must not quote.
    # Two columns with the same words probably hold votes, so these columns are kept.
    if len(best) < 2 or ranks[best[0]][0] > 1:
        return best
    words = [frozenset(few_labels(frame[name])) for name in best]
    return [name for name, one in zip(best, words, strict=True) if words.count(one) > 1]


def clearness_of_votes(frame: pd.DataFrame, name: str, theirs: Mapping[str, str]) -> int:
    """Return how clearly a column shows which side was preferred, from 0 (not at all) to 3 (it names the sides)."""
    column = frame[name]
    texts = [theirs[ours] for ours in (*PAIR[1:], *MODELS) if ours in theirs]
    sides = names_of_sides(frame)
    if not names_vote(name) and any(name in pair for pair in sides):
        return 0
    for pair in (texts, *(pair for pair in sides if name not in pair)):
        if sum(float(equal_cells(column, frame[text]).mean()) for text in pair) > 0.5:
            return NAMES_SIDES
    if are_no_votes(name, column):
        return 0
    labels = few_labels(column)
    if len(labels) == 1 < len(column) and not names_vote(name):
        return 0  # every row has the same cell, such as a session number
    if direction_of(name):
        return NAMES_SIDES
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna() if math.isnan(number_of(str(cell)))]
    named = [side[0] for cell in cells if (side := side_of(cell))]
    if ({"a", "b"} <= {*named} and len(named) >= NEARLY_ALL * len(cells)) or mirrored_sides(labels):
        return NAMES_SIDES
    called = {word for text in texts for word in (folded(text), *folded(text).split("_"))}
    if len([label for label in labels if folded(label) in called and math.isnan(number_of(label))]) > 1:
        return NAMES_SIDES
    found = as_numbers(column)  # the numbers of a slider repeat, but ids do not
    is_scale = (np.abs(found) <= _LARGEST_SCALE).all() and 3 < len(np.unique(found)) < len(found)
    return 2 if are_votes(column) else int(len(labels) in _FEW_WORDS or is_scale)


def _without_copies(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the vote columns ``names`` without the columns that are copies of earlier columns.

    A column is a copy if an earlier column from the same source object names the same side in every row.
    """
    found: dict[tuple[str, ...], str] = {}
    for name in names:
        sides = tuple((side_of(str(cell)) or (str(cell),))[0] for cell in frame[name])
        found.setdefault((name.rpartition(".")[0] or name, *sides), name)
    return [*found.values()]


def names_of_sides(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs of columns that identify the two responses in a row by id, model or source.

    A vote's label may be the id, the model or the source of the preferred response.
    """

    def holds_words(name: str) -> bool:
        are_words = [
            isinstance(cell, str) and math.isnan(number_of(cell)) for cell in frame[name][:MANY_ROWS]
        ]
        return len(are_words) > 0 and float(np.mean(are_words)) >= NEARLY_ALL

    pairs = columns_of_sides([*map(str, frame)])
    if 2 * len(pairs) > _MOST_SIDES:
        return []
    return [
        pair for pair in pairs if has_word(pair[0], _NAMES_OF_ANSWERS) or all(map(holds_words, pair))
    ]


def compare_answers(frame: pd.DataFrame, pair: tuple[str, str], filled: float = NEARLY_ALL) -> bool:
    """Return whether two columns rate the two answers of a row.

    Nearly all cells in the two columns must hold numbers. If the cells hold ticks, nearly all rows must contain a tick,
    and fewer than 10 % of the rows may contain ticks for both answers.
    """
    is_of_people = not has_word(pair[0], MACHINES)
    if not is_of_people or any(are_no_votes(name, frame[name]) for name in pair):
        return False
    a, b = (as_ratings(frame[name]) for name in pair)
    cells = pd.concat([frame[name] for name in pair])
    is_number = np.isfinite([a, b])
    values = {*a[np.isfinite(a)], *b[np.isfinite(b)]}
    # if one column has a tick in a row, an empty cell in the other column means "not preferred"
    is_said = is_number.any(axis=0) if values <= {0.0, 1.0} else is_number
    if not len(a) or is_said.mean() < filled or is_number.sum() < NEARLY_ALL * cells.notna().sum():
        return False
    if values <= {0.0, 1.0}:
        return bool(((a == 1) & (b == 1)).mean() < 1 - NEARLY_ALL)
    are_words = not any(math.isfinite(number_of(label)) for label in few_labels(frame[pair[0]]))
    return len(values) > 2 or are_words or which_wins(pair[0]) != ""


def find_pairs_of_annotators(frame: pd.DataFrame, free: Sequence[str]) -> Groups:
    """Return, for each annotator, the pair of columns in which the annotator rates the two answers.

    The name of a rating column must contain the side and the annotator. If fewer than two annotators have a pair of
    rating columns, the result is empty.
    """
    forms = {folded(name): name for name in free}
    pairs: dict[str, tuple[str, str]] = {}
    used: set[str] = set()
    # the side of a rating may be any word in the column name
    # column names longer than LONGEST_LEGEND are skipped to save time
    words = {form: form.split("_") for form in forms if len(form) <= LONGEST_LEGEND}
    sides = [(form, i) for form in words for i, word in enumerate(words[form]) if word in SIDES]
    # a number in a column name may identify the annotator, so numbers are tried last as names of sides
    for form, i in sorted(sides, key=lambda side: (words[side[0]][side[1]].isdigit(), -side[1])):
        before, side, after = words[form][:i], words[form][i], words[form][i + 1 :]
        both = forms[form], forms.get("_".join([*before, SIDES[side], *after]), "")
        is_free = "" not in both and used.isdisjoint(both)
        if is_free and compare_answers(frame, both, 0.0):
            pairs["_".join([*before, *after])] = both
            used |= {*both}
    number = "rank" if pairs and which_wins(next(iter(pairs.values()))[0]) == "low" else "rating"
    groups = {who: {f"{number}_a": a, f"{number}_b": b} for who, (a, b) in pairs.items()}
    return groups if len(pairs) > 1 else {}


def likely_annotators(table: Table) -> list[str]:
    """Return the columns that very likely name the annotators; the table must use badpo's column names.

    Columns with a name such as "annotator" or "rater" come first. If source rows hold several votes, a column is
    returned only if its values differ within a source row.
    """
    frame, names = table.frame, open_columns(table)
    texts = [ours for ours in (*PAIR, "response", "chosen", "rejected") if ours in frame]
    codes = pd.DataFrame({text: pd.factorize(frame[text].map(cell_key))[0] for text in texts})
    compared = codes.groupby(texts).ngroup()
    prompts = codes.get("prompt", compared)
    reasons = {name: _reason_for_annotators(frame[name], prompts, compared) for name in names}
    reasons = {name: reason for name, reason in reasons.items() if reason}
    if table.rows is not None and len(np.unique(table.rows)) < len(table.rows):
        several = frame.groupby(table.rows)
        reasons = {name: reason for name, reason in reasons.items() if several[name].nunique().max() > 1}
    if found := [name for name in reasons if reasons[name] in ("called", "crossed", "codes")]:
        return sorted(found, key=lambda name: reasons[name] != "called")
    # a column of people's names counts as the annotator column only if no other column holds people's names
    named = [name for name in reasons if reasons[name] == "names"]
    return named if len(named) == 1 else []


def _reason_for_annotators(column: pd.Series, prompts: pd.Series, compared: pd.Series) -> str:
    """Return the reason why a column may hold annotators, or an empty string if there is no reason.

    The reason is ``called`` if the column has a name such as "annotator", and ``crossed`` if no value of the column
    occurs twice among the votes on one comparison. The reason is ``codes`` if the values are codes such as ``p07``, and
    ``names`` if the values are names of people. Dates, values that rarely repeat and values that depend only on the
    prompt do not count as annotators.
    """
    name, ids = str(column.name), ids_in(column).dropna()
    n, labels = ids.nunique(), ids.unique()
    if (
        not 2 <= n <= len(ids) / 2
        or len(ids) < NEARLY_ALL * len(column)
        or all(map(DATE.match, ids[:MANY_ROWS]))
    ):
        return ""
    is_of_people = not has_word(name, OF_PEOPLE)
    if is_of_people and is_called_like_people(name):
        return "called"
    groups = prompts[ids.index]
    if groups.nunique() < NEARLY_ALL * len(ids) and ids.groupby(groups).nunique().max() == 1:
        return ""
    are_things = has_word(name, THINGS) or not is_of_people
    are_others = are_things or has_word(name, OTHER_NAMES)
    rows = pd.DataFrame({"compared": compared, "who": ids})[compared.duplicated(keep=False)]
    is_crossed = not rows.duplicated().any() and 2 * len(rows) > len(column) and 3 * n <= len(rows)
    if is_crossed and (folded(name) == "model" or not are_others):
        return "crossed"
    shapes = {re.sub(r"\d+", "0", label) for label in labels}
    if n < 3 or are_things:
        return ""
    if len(shapes) == 1 and re.fullmatch(r"[^\W\d]+[-_ ]?0", min(shapes)):
        return "codes"
    are_names = all(_PERSONS_NAME.fullmatch(label) and not label[0].islower() for label in labels)
    return "names" if are_names and not are_others else ""


def open_columns(table: Table) -> list[str]:
    """Return a recognized table's unused columns, except columns that hold votes, texts or unique ids."""
    frame, free = table.frame, [name for name in table.frame if name not in table.theirs]
    votes = columns_of_votes(frame, free)
    free = [name for name in free if name not in votes and not holds_texts(frame[name])]
    ids = {name: ids_in(frame[name]).dropna() for name in free}
    # a column of lists or objects contains no ids
    return [name for name, one in ids.items() if 0 < len(one) <= MOST_LABELS or not one.is_unique]


def unused_columns(table: Table) -> tuple[str, ...]:
    """Return a recognized table's unused columns that may name the annotators, the likeliest column first."""
    free = open_columns(table)
    called = filter(is_called_like_people, free)
    return tuple(dict.fromkeys([*likely_annotators(table), *like_annotators(free), *called, *free]))


def are_groups(frame: pd.DataFrame, name: str, annotator: str | None) -> bool:
    """Return whether a column may hold groups of annotators.

    Each annotator must have exactly one label. The column must have at least two labels, but fewer labels than
    annotators.
    """
    # if the first rows hold more than MOST_LABELS labels, the column cannot hold groups, so skip the other rows
    if annotator not in frame or not few_labels(frame[name][:MANY_ROWS]):
        return False
    labels = few_labels(frame[name])
    pairs = pd.DataFrame({"who": ids_in(frame[annotator]), "group": ids_in(frame[name])})
    pairs = pairs.dropna().drop_duplicates()
    return 2 <= len(labels) < len(pairs) and pairs["who"].is_unique


class Findings:
    """A table, its annotators' pseudonyms (once they are known), and the problems found in the table."""

    def __init__(self, table: Table, drops_bad_rows: bool = False):
        self.table, self.frame = table, table.frame
        self.pseudonyms = np.full(len(table.frame), None, dtype=object)
        self.raw_ids = self.pseudonyms  # the raw id of each row's annotator; models keep their names
        self.problems: list[Problem] = [*table.notes]
        self.drops_bad_rows = drops_bad_rows
        self.bad = np.full(len(table.frame), None, dtype=object)  # reason why a row is left out, or None
        self.kept: list[str] = []  # further columns that are kept in the judgments

    def rows(
        self,
        code: str,
        what: str,
        column: str | None,
        rows: Bools,
        remedy: str,
        fix: Correction | None = None,
    ) -> None:
        """Add a problem that counts the rows for which ``rows`` is True, unless there are none.

        If the user drops bad rows and ``code`` is an error, the method marks the rows in ``bad`` and adds no problem.
        """
        index = np.flatnonzero(rows)
        if not len(index):
            return
        if code[0] == "E" and self.drops_bad_rows:
            # users share pages that show the reason, so the reason must not quote labels, which may be private
            self.bad[index] = "bad row: " + what.partition(' "')[0]
            return
        if code[0] == "E" and fix is None and len(index) <= max(1, FEW_ROWS * len(rows)):
            fix = {"bad_rows": "drop"}
        said = f"{what}: {len(index):,} of {len(rows):,} rows"
        self.note(code, said, remedy, len(index), column, index, fix)

    def note(
        self,
        code: str,
        what: str,
        remedy: str,
        count: int = 1,
        column: str | None = None,
        rows: Ints | Sequence[int] = (),
        fix: Correction | None = None,
    ) -> None:
        """Add a problem with the given count.

        ``rows`` are the row numbers, counted from 0, that the message names together with lines and pseudonyms.
        """
        where, lines = self.table.name, self.table.lines
        if column:
            where += f', column "{self.table.theirs.get(column, column)}"'
        if n := len(rows):
            shown: Ints = np.asarray(rows)[:LISTED]
            who = zip(shown, self.pseudonyms[shown], strict=True)
            named = [self.table.row_name(row) + f" [{name}]" * (name is not None) for row, name in who]
            where += f", row{'s' * (n > 1)} {listed(named, n)}"
            # line numbers of a file differ from row numbers if the file has a header or line breaks in cells
            if lines is not None and (lines[shown] != shown + 1).any():
                numbers = [f"{line:,}" for line in lines[shown]]
                where += f" (line{'s' * (len(numbers) > 1)} {listed(numbers)} of the file)"
        problem = Problem(code, what, where, remedy, count, fix=fix or {})
        self.problems.append(problem)

    def ids(
        self, name: str, code: str, remedy: str | None = None, fix: Correction | None = None
    ) -> Objects:
        """Return the ids or labels in a column, with None for missing values.

        If ``remedy`` is given, the method adds a problem for the rows without an id. If a cell of the column holds a
        list or an object, the method adds a problem for the whole column and returns None for every row. If the table
        lacks the column, the method also returns None for every row.
        """
        ids = np.full(len(self.frame), None, dtype=object)
        if name not in self.frame:
            return ids
        try:
            ids = as_ids(self.frame[name])
        except ValueError as error:
            self.note(code, f"{name}: {error}", "write one id or label in each cell", len(ids), name)
        else:
            self.rows(code, f"no {name}", name, pd.isna(ids) & bool(remedy), str(remedy), fix)
        return ids

    def stop_at_errors(self) -> None:
        """If at least one problem is an error, raise a `DataError` that lists all problems."""
        if any(problem.severity == "error" for problem in self.problems):
            raise DataError(worst_first(self.problems))


def is_message(cell: Cell) -> TypeGuard[Record]:
    """Return whether a cell is a chat message: an object with the key "role" or "from"."""
    return isinstance(cell, dict) and not {"role", "from"}.isdisjoint(cell)


def are_objects(cells: Cell) -> TypeGuard[list[Record]]:
    """Return whether a value is a list that contains only objects."""
    return isinstance(cells, list) and all(isinstance(cell, dict) for cell in cells)


def is_chat(cell: Cell) -> TypeGuard[list[Record]]:
    """Return whether a cell is a list of chat messages."""
    return isinstance(cell, list) and any(map(is_message, cell[:1]))


def parsed(text: str) -> Cell:
    """Parse a string as JSON, or as a list in Python or numpy notation; return None for other strings."""
    for read, written in ((json.loads, text), (ast.literal_eval, _BREAK.sub("}, {", text))):
        faults = ValueError, SyntaxError, RecursionError, MemoryError, TypeError
        # Python would warn about invalid escape sequences
        with contextlib.suppress(*faults), warnings.catch_warnings(action="ignore"):
            value: Cell = read(written)
            return value
    return None
