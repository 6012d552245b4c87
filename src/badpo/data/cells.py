"""A table, and the content of its cells and columns: ids, numbers, texts, chat messages, votes, people."""

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
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.problems import LISTED, DataError, Json, Problem, is_unicode, listed, worst_first
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
from badpo.theory import Floats, Ints

Objects = NDArray[np.object_]
# Columns that hold the parts of one vote: our name of each part -> the column, for each vote of a row.
Groups = dict[str, dict[str, str]]

_BREAK = re.compile(r"\}\n\s*\{")  # between what an array holds; of text itself a line break is escaped
_ROLES = {"human": "user", "gpt": "assistant"}


# What is read at the most: more takes memory that a machine may not have, out of a file of any size.
MOST_ROWS, MOST_COLUMNS, MOST_CELLS = 5_000_000, 2_000, 50_000_000


def require_size(name: str, n_rows: int, n_columns: int, n_cells: int | None = None) -> None:
    """Refuse a table (E102) that has, or would have once its votes are rows, more than what is read."""
    n_cells = n_rows * n_columns if n_cells is None else n_cells
    sizes = (
        ("rows", n_rows, MOST_ROWS),
        ("columns", n_columns, MOST_COLUMNS),
        ("cells", n_cells, MOST_CELLS),
    )
    if told := [f"{n:,} {noun}, more than {most:,}" for noun, n, most in sizes if n > most]:
        what = f"the table cannot be read: it is too large, {' and '.join(told)}"
        remedy = "export only the columns that are needed, or split the table"
        raise DataError([Problem("E102", what, name, remedy)])


@dataclass(frozen=True)
class Table:
    """A table and where it came from."""

    frame: pd.DataFrame  # index 0, 1, ...; text of a CSV stays text, so 0123 is not a number
    name: str  # what messages call it: the path, or the kind of object
    lines: Ints | None = None  # of the file, from 1, at which each row starts
    rows: Ints | None = None  # of the source, from 0, that each row was made of, where not its own
    dropped: tuple[dict[str, Any], ...] = ()  # what is no row here: reason, annotator, n
    kind: str = ""  # a name in `badpo.data.layouts.REQUIRED`, once the columns carry our names
    theirs: Mapping[str, str] = field(default_factory=dict)  # our name -> the source's, for messages
    encoding: str = "utf-8"  # of a file of text
    notes: tuple[Problem, ...] = ()  # what was noticed while the file was read
    legends: tuple[str, ...] = ()  # texts beside the cells, which may say what numbers mean

    def __post_init__(self) -> None:
        require_size(self.name, *self.frame.shape)
        if not all(is_unicode(str(name)) for name in self.frame.columns):
            what = "the table cannot be read: the name of a column holds half of a surrogate pair"
            raise DataError([Problem("E102", what, self.name, "rename the column")])

    def with_rows(self, frame: pd.DataFrame) -> "Table":
        """The table with the rows of ``frame``, whose index holds the row of this table that each was made of."""
        made_of = frame.index.to_numpy()
        lines, rows = (None if of is None else of[made_of] for of in (self.lines, self.rows))
        rows = made_of if rows is None else rows
        return replace(self, frame=frame.reset_index(drop=True), lines=lines, rows=rows)

    def row_name(self, row: int) -> str:
        """The row of the source, counted from 1, that a row was made of."""
        return f"{(row if self.rows is None else self.rows[row]) + 1:,}"

    def noted(
        self, code: str, what: str, remedy: str = "nothing", fix: Mapping[str, Any] | None = None
    ) -> "Table":
        """The table with a notice of how it was read."""
        note = Problem(code, what, self.name, remedy, len(self.frame), fix=fix or {})
        return replace(self, notes=(*self.notes, note))


_CODES_FOR_NOTHING = frozenset({-9.0, -77.0, -88.0, -99.0, -777.0, -888.0, -999.0, -9999.0})
_WORDS_FOR_NOTHING = frozenset({"NA", "nan", "NaN", "None", "null", "NULL", "<NA>", "NaT"})


def numbered(values: Iterable[Hashable]) -> tuple[Ints, Objects]:
    """Number of each value, and the distinct values in order of first appearance.

    Of texts, pandas before 3 compares what stands before a NUL: `pandas.factorize` takes others for equal.
    """
    places: defaultdict[Hashable, int] = defaultdict()
    places.default_factory = places.__len__
    numbers = np.fromiter(map(places.__getitem__, values), dtype=np.intp)
    return numbers, as_objects(places)


def as_objects(values: Iterable[Any]) -> Objects:
    """A one-dimensional object array, also of lists of equal length."""
    return np.fromiter(values, dtype=object)


def as_ids(column: Iterable[Any]) -> Objects:
    """Identifiers as text, None where there is none.

    Whole numbers lose a decimal point that a missing value elsewhere in the column gave them. Text stays as it is, but
    an accented letter is one character (Unicode's NFC), however the program that wrote the text composed the letter.
    Blank cells and the words that programs write for a missing value count as missing.
    """
    cells = pd.Series(column, dtype=object).to_numpy(copy=True)
    cells[pd.isna(cells)] = None
    try:
        numbers, distinct = numbered(cells)
    except TypeError:
        raise ValueError("a cell is a list or an object, not an identifier") from None
    return as_objects(map(_id_text, distinct))[numbers]


def _id_text(value: Any) -> str | None:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    # half of a surrogate pair can be written nowhere, and pandas 2 compares up to a NUL: each becomes its code
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    text = normalize_text(text, "NFC")
    return None if not text.strip() or text in _WORDS_FOR_NOTHING else text


def text_key(value: Any) -> str:
    """A text that identifies a text or a list of messages."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def cell_key(value: Any) -> str:
    """A text that identifies any cell, also a cell that JSON cannot write."""
    return value if isinstance(value, str) else repr(value)


def numbered_cells(cells: Iterable[Any]) -> tuple[Ints, Objects]:
    """The number of each cell's text or chat messages, -1 where there is none, and the distinct ones; the last is None.

    Where a cell holds neither, a `ValueError` says why in their place.
    """
    others: dict[Hashable, Any] = {}

    def key(cell: Any) -> Hashable:
        if pd.api.types.is_scalar(cell) and pd.isna(cell):
            return None
        try:
            messages = as_messages(cell)
            # a text may look like messages that are written as JSON
            key: Hashable = "messages", text_key(messages)
            others[key] = messages
        except (ValueError, TypeError, RecursionError) as error:
            key = "fault", str(error)
            others[key] = ValueError(str(error))
        return key

    # most cells hold a text that another one has held
    numbers, keys = numbered(cell if isinstance(cell, str) else key(cell) for cell in cells)
    values = as_objects([*(others.get(key, key) for key in keys), None])
    half = ValueError("it holds half of a surrogate pair, which is no character")
    for i, value in enumerate(values):
        if isinstance(value, (str, list)) and not is_unicode(text_key(value)):
            values[i] = half
    numbers[pd.isna(values)[numbers]] = -1
    return numbers, values


def as_messages(cell: Any) -> list[dict[str, Any]]:
    """Chat messages as plain dicts whose contents are text.

    A message alone is a list of one. Keys without a value, which columnar files add, are left out; text parts of a
    content are joined.
    """
    if isinstance(cell, Mapping):
        cell = [cell]
    if not isinstance(cell, (list, tuple, np.ndarray)):
        raise ValueError(f"it is of type {type(cell).__name__}, not text")
    return [_message(message) for message in cell]


def _message(message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping) and "from" in message:
        # as ShareGPT has it
        role = _ROLES.get(message["from"], message["from"])
        message = {"role": role, "content": message.get("value")}
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError("a chat message needs a role and a content")
    role, content = message["role"], message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        texts = [part["text"] for part in parts if part.get("type") == "text" and "text" in part]
        is_text = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
        content = "".join(texts) if is_text else None
    if content is None and message.get("tool_calls"):
        remedy = "which is what attributes read; write the call into its content"
        raise ValueError(f"the {role} message calls a tool and has no text, {remedy}")
    if not isinstance(content, str):
        raise ValueError(f"the content of the {role} message is not text")
    others = {key: value for key, value in message.items() if value is not None}
    return others | {"role": role, "content": content}


MOST_LABELS = 12  # of one question
FEW_ROWS, NEARLY_ALL = 0.1, 0.9  # shares of rows
MANY_ROWS = 1000


_LARGEST_RATING = 10


_TICKED = {**dict.fromkeys((*YES, "x", "✓", "✔"), 1), **dict.fromkeys(NO, 0)}


_NUMBERED_GRADE = re.compile(r"([+-]?\d+) *[-=:.(] *[^\W\d]")


_USUAL_TEXT = 15  # characters of a text, at the least


_WORDS = re.compile(r"[^\W\d_]\s|[^\x00-\x7f]")  # times, addresses and ids have none


def ids_in(column: pd.Series) -> pd.Series:
    """A column as ids, without any where it holds lists or objects."""
    try:
        return pd.Series(as_ids(column), column.index, dtype=object)
    except ValueError:
        return pd.Series(as_objects([None] * len(column)), column.index, dtype=object)


def equal_cells(column: pd.Series, other: pd.Series) -> pd.Series:
    """Rows in which two columns hold the same text, see `is_same_text`; no row in which the first one is empty."""
    is_there = column.notna().to_numpy()
    cells = zip(map(cell_key, column[is_there]), map(cell_key, other[is_there]), strict=True)
    are_equal = np.zeros(len(column), dtype=bool)
    are_equal[is_there] = [*itertools.starmap(is_same_text, cells)]
    return pd.Series(are_equal, column.index)


def is_same_text(cell: str, text: str) -> bool:
    """Whether a cell is a text, apart from white space, or the beginning of one that is cut off by dots."""
    cell, text = (" ".join(each.split()) for each in (cell, text))
    beginning = cell.removesuffix("...").removesuffix("\u2026").rstrip()
    is_cut = len(beginning) >= _USUAL_TEXT and beginning != cell
    return cell == text or (is_cut and text.startswith(beginning))


def few_labels(column: pd.Series) -> list[str]:
    """The distinct labels of a column; empty where there are more than one question has."""
    # most columns of other cells are known by their beginning
    for cells in (column[:MANY_ROWS], column):
        labels = [*ids_in(cells).dropna().unique()]
        if len(labels) > MOST_LABELS:
            return []
    return labels


def are_votes(column: pd.Series) -> bool:
    """Whether a column holds labels of sides, or ratings on a small scale, and nothing else."""
    labels = few_labels(column)
    numbers = [number_of(label) for label in labels if side_of(label) is None]
    are_numbers = labels != [] and all(abs(number) <= _LARGEST_RATING for number in numbers)
    return are_numbers or bool(graded(labels) or mirrored_sides(labels))


def holds_texts(column: pd.Series) -> bool:
    """Whether the cells of a column are longer than labels."""
    texts = [cell for cell in column if isinstance(cell, str) and _WORDS.search(cell)]
    chats = [*filter(is_chat, column)]
    lengths = [len(str(cell)) for cell in texts + chats]
    return 2 * len(lengths) > len(column) and float(np.median(lengths)) >= _USUAL_TEXT


def as_numbers(column: pd.Series) -> Floats:
    """A column as numbers, NaN where a cell holds none; of texts also with decimal commas."""
    found: Floats = pd.to_numeric(column, errors="coerce").to_numpy(
        dtype=np.float64, na_value=np.nan, copy=True
    )
    cells = column.to_numpy(dtype=object)
    texts = [i for i in np.flatnonzero(np.isnan(found)) if isinstance(cells[i], str)]
    found[texts] = [*map(cache(number_of), cells[texts])]
    return found


def as_ratings(column: pd.Series) -> Floats:
    """Ratings as numbers: numbers, ticks, grades in words, and numbers that stand before their meaning.

    The only negative number of a column is no rating if it is one of those that stand for a missing value.
    """
    grades = graded([label for label in few_labels(column) if math.isnan(number_of(label))])

    def rated(cell: Any) -> Any:
        words = str(cell).strip().casefold()
        first = _NUMBERED_GRADE.match(words)
        return _TICKED.get(words, grades.get(str(cell), float(first[1]) if first else cell))

    ratings = as_numbers(column.map(rated))
    negative = {*ratings[ratings < 0]}
    if len(negative) == 1 and negative <= _CODES_FOR_NOTHING:
        ratings[ratings < 0] = np.nan
    return ratings


def are_no_votes(name: str, column: pd.Series) -> bool:
    """Whether a column holds ids, times, counts, or what people say of themselves, and so neither votes nor texts."""
    if has_word(name, OTHER_NAMES) and not (names_vote(name) and direction_of(name)):
        return True
    numbers = as_numbers(column[:MANY_ROWS])
    if len(numbers) > MOST_LABELS and np.mean(np.diff(numbers) > 0) > 0.5 + FEW_ROWS:
        return True  # what grows from row to row counts something
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna()]
    return cells != [] and all(map(DATE.match, cells))


# words in the names of columns that hold no votes
OTHER_NAMES = re.compile(
    "ids?|uid|uuid|hash|date|datum|fecha|time|timestamp|utc|duration|seconds|ms|tokens?|count|length|len|chars|words|"
    "elo|ratio|age|year|lang|language|locale|seed|split|version|turn|confidence|confident|sure|certainty|certain|"
    "rt|latency|elapsed|index|idx|trial|row|nr|no|number|slot|position|difficulty|gold|familiar|familiarity|knowledge|expertise|experience|domina|kenntnis|sicherheit|variant"
)


DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{1,2}:\d\d")


_FEW_WORDS = (2, 3)


_LARGEST_SCALE = 100


NAMES_SIDES = 3


MACHINES = re.compile("reward|auto|automatic|predicted|prediction|gpt|llm|model|machine")


OVERALL = re.compile("overall|general|final|total|gesamt|insgesamt|global")


THINGS = re.compile(
    "prompt|question|item|task|case|topic|category|system|model|doc|document|batch|session|round|condition|version|hit|"
    "pair|page|block|set|part|wave|week|day|sheet|game|order|criteri(?:on|a)|aspect|dimension"
)


OF_PEOPLE = re.compile(
    "class|group|team|type|role|age|gender|country|model|file|domina|template|system|feature|field"
)


_PERSONS_NAME = re.compile(r"(?:[^\W\d_][\w'\u2019]*[ .-]*){1,3}")


_MOST_SIDES = 30  # columns that may be answers or their names, with which others are compared
_NAMES_OF_ANSWERS = re.compile("id|uid|uuid|name|model|system|source|key|hash|generator|policy")


def columns_of_votes(frame: pd.DataFrame, free: Sequence[str]) -> list[str]:
    """Columns that hold nothing but labels of a side, ratings on a small scale, or what one of two columns holds.

    Where there are none, columns that hold the same two or three words.
    """
    models = [*columns_named([*map(str, frame)], MODELS).values()]
    sides = [*models, *(name for name in frame if holds_texts(frame[name]))]
    # each column is compared with each side: the time must not grow with the square of the width of a table
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
    """Of columns of votes the most that share half of their labels and, where names are numbered, the name."""
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
    """Of columns those that tell most clearly which side was preferred, by what they hold, then by their names."""
    sides = [theirs[ours] for ours in PAIR[1:] if ours in theirs]
    # rows without answers, as of other trials, are no votes
    frame = frame[frame[sides].notna().any(axis=1)] if sides else frame

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
    # of two columns of words one may hold people, whose ids no message shows
    if len(best) < 2 or ranks[best[0]][0] > 1:
        return best
    words = [frozenset(few_labels(frame[name])) for name in best]
    return [name for name, one in zip(best, words, strict=True) if words.count(one) > 1]


def clearness_of_votes(frame: pd.DataFrame, name: str, theirs: Mapping[str, str]) -> int:
    """How clearly a column tells which side was preferred; 0 where it does not."""
    column = frame[name]
    texts = [theirs[ours] for ours in (*PAIR[1:], *MODELS) if ours in theirs]
    if not names_vote(name) and any(name in pair for pair in names_of_sides(frame)):
        return 0
    for pair in (texts, *(pair for pair in names_of_sides(frame) if name not in pair)):
        if sum(float(equal_cells(column, frame[text]).mean()) for text in pair) > 0.5:
            return NAMES_SIDES
    if are_no_votes(name, column):
        return 0
    labels = few_labels(column)
    if len(labels) == 1 < len(column) and not names_vote(name):
        return 0  # the same in each row, such as the number of a session
    if direction_of(name):
        return NAMES_SIDES
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna() if math.isnan(number_of(str(cell)))]
    told = [side[0] for cell in cells if (side := side_of(cell))]
    if ({"a", "b"} <= {*told} and len(told) >= NEARLY_ALL * len(cells)) or mirrored_sides(labels):
        return NAMES_SIDES
    called = {word for text in texts for word in (folded(text), *folded(text).split("_"))}
    if len([label for label in labels if folded(label) in called and math.isnan(number_of(label))]) > 1:
        return NAMES_SIDES
    found = as_numbers(column)  # as from a slider, and no ids
    is_scale = (np.abs(found) <= _LARGEST_SCALE).all() and 3 < len(np.unique(found)) < len(found)
    return 2 if are_votes(column) else int(len(labels) in _FEW_WORDS or is_scale)


def _without_copies(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Columns of votes without parts of one object that name the same side as an earlier part in every row."""
    found: dict[tuple[str, ...], str] = {}
    for name in names:
        sides = tuple((side_of(str(cell)) or (str(cell),))[0] for cell in frame[name])
        found.setdefault((name.rpartition(".")[0] or name, *sides), name)
    return [*found.values()]


def names_of_sides(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Pairs of columns that name the two responses of a row: ids, models or sources, as labels may."""

    def holds_words(name: str) -> bool:
        cells = frame[name][:MANY_ROWS]
        return bool(
            cells.map(lambda cell: isinstance(cell, str) and math.isnan(number_of(cell))).mean()
            >= NEARLY_ALL
        )

    pairs = columns_of_sides([*map(str, frame)])
    if 2 * len(pairs) > _MOST_SIDES:
        return []
    return [
        pair for pair in pairs if has_word(pair[0], _NAMES_OF_ANSWERS) or all(map(holds_words, pair))
    ]


def compare_answers(frame: pd.DataFrame, pair: tuple[str, str], filled: float = NEARLY_ALL) -> bool:
    """Whether two columns hold a number, or a tick, of each answer in most cells; of ticks at most one in a row."""
    is_of_people = not has_word(pair[0], MACHINES)
    if not is_of_people or any(are_no_votes(name, frame[name]) for name in pair):
        return False
    a, b = (as_ratings(frame[name]) for name in pair)
    cells = pd.concat([frame[name] for name in pair])
    is_number = np.isfinite([a, b])
    values = {*a[np.isfinite(a)], *b[np.isfinite(b)]}
    # beside a tick an empty cell says no
    is_said = is_number.any(axis=0) if values <= {0.0, 1.0} else is_number
    if not len(a) or is_said.mean() < filled or is_number.sum() < NEARLY_ALL * cells.notna().sum():
        return False
    if values <= {0.0, 1.0}:
        return bool(((a == 1) & (b == 1)).mean() < 1 - NEARLY_ALL)
    are_words = not any(math.isfinite(number_of(label)) for label in few_labels(frame[pair[0]]))
    return len(values) > 2 or are_words or which_wins(pair[0]) != ""


def find_pairs_of_annotators(frame: pd.DataFrame, free: Sequence[str]) -> Groups:
    """The columns in which each of several people rates the two answers, by what their names have beside the side."""
    forms = {folded(name): name for name in free}
    pairs: dict[str, tuple[str, str]] = {}
    used: set[str] = set()
    # each word of a name may be the side: a name of very many words is none
    words = {form: form.split("_") for form in forms if len(form) <= LONGEST_LEGEND}
    sides = [(form, i) for form in words for i, word in enumerate(words[form]) if word in SIDES]
    # letters before numbers, and the last word first: people are numbered too
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
    """Of a table under our names the columns that very likely say who voted, those that are called so first.

    Where several votes were made of one row, columns that differ between these.
    """
    frame, names = table.frame, open_columns(table)
    texts = [ours for ours in (*PAIR, "response", "chosen", "rejected") if ours in frame]
    codes = pd.DataFrame({text: pd.factorize(frame[text].map(cell_key))[0] for text in texts})
    compared = codes.groupby(texts).ngroup()
    prompts = codes.get("prompt", compared)
    how = {name: _how_people_are_told(frame[name], prompts, compared) for name in names}
    how = {name: told for name, told in how.items() if told}
    if table.rows is not None and len(np.unique(table.rows)) < len(table.rows):
        several = frame.groupby(table.rows)
        how = {name: told for name, told in how.items() if several[name].nunique().max() > 1}
    if found := [name for name in how if how[name] in ("called", "crossed", "codes")]:
        return sorted(found, key=lambda name: how[name] != "called")
    # names of people only in the one column that could hold them
    named = [name for name in how if how[name] == "names"]
    return named if len(named) == 1 else []


def _how_people_are_told(column: pd.Series, prompts: pd.Series, compared: pd.Series) -> str:
    """How a column tells people: called so, crossed with comparisons, as codes such as ``p07``, as names, or empty.

    Values that all differ, dates, texts and what the prompt decides are no people. Of votes on the same comparisons,
    no two share a value of a crossed column.
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
    """Columns of a recognised table that hold no votes, no texts and not another value in each row."""
    frame, free = table.frame, [name for name in table.frame if name not in table.theirs]
    votes = columns_of_votes(frame, free)
    free = [name for name in free if name not in votes and not holds_texts(frame[name])]
    ids = {name: ids_in(frame[name]).dropna() for name in free}
    return [name for name in free if len(ids[name]) <= MOST_LABELS or not ids[name].is_unique]


def unused_columns(table: Table) -> tuple[str, ...]:
    """Of a recognised table the columns that may say who voted, the likeliest first."""
    free = open_columns(table)
    return tuple(dict.fromkeys([*likely_annotators(table), *like_annotators(free), *free]))


def are_groups(frame: pd.DataFrame, name: str, annotator: str | None) -> bool:
    """Whether a column may hold groups of annotators: few labels, one for each annotator, and fewer than annotators."""
    # most columns that hold something else are known by their beginning
    if annotator not in frame or not few_labels(frame[name][:MANY_ROWS]):
        return False
    labels = few_labels(frame[name])
    pairs = pd.DataFrame({"who": ids_in(frame[annotator]), "group": ids_in(frame[name])})
    pairs = pairs.dropna().drop_duplicates()
    return 2 <= len(labels) < len(pairs) and pairs["who"].is_unique


class Findings:
    """A table, the pseudonym of each row's annotator once known, and what is wrong."""

    def __init__(self, table: Table, drops_bad_rows: bool = False):
        self.table, self.frame = table, table.frame
        self.pseudonyms = np.full(len(table.frame), None, dtype=object)
        self.raw_ids = self.pseudonyms  # of the same rows, but of models, which are named
        self.problems: list[Problem] = [*table.notes]
        self.drops_bad_rows = drops_bad_rows
        self.bad = np.full(len(table.frame), None, dtype=object)  # why a row is left out
        self.kept: list[str] = []  # columns that go along

    def rows(
        self,
        code: str,
        what: str,
        column: str | None,
        rows: Any,
        remedy: str,
        fix: Json | None = None,
    ) -> None:
        """Note a problem of the rows where ``rows`` is True, with their count; nothing when there is none.

        Where bad rows are to be dropped, those of an error are marked instead.
        """
        index = np.flatnonzero(rows)
        if not len(index):
            return
        if code[0] == "E" and self.drops_bad_rows:
            # without the labels, which may be anything: reasons stand on pages that are passed on
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
        rows: Any = (),
        fix: Json | None = None,
    ) -> None:
        """Note a problem with a count of its own; ``rows`` (0-based) are named with lines and pseudonyms."""
        where, lines = self.table.name, self.table.lines
        if column:
            where += f', column "{self.table.theirs.get(column, column)}"'
        if n := len(rows):
            shown = np.asarray(rows)[:LISTED]
            who = zip(shown, self.pseudonyms[shown], strict=True)
            named = [self.table.row_name(row) + f" [{name}]" * (name is not None) for row, name in who]
            where += f", row{'s' * (n > 1)} {listed(named, n)}"
            # a header is a line, and cells may hold breaks
            if lines is not None and (lines[shown] != shown + 1).any():
                told = [f"{line:,}" for line in lines[shown]]
                where += f" (line{'s' * (len(told) > 1)} {listed(told)} of the file)"
        problem = Problem(code, what, where, remedy, count, fix=fix or {})
        self.problems.append(problem)

    def ids(self, name: str, code: str, remedy: str | None = None, fix: Json | None = None) -> Objects:
        """A column of ids or labels, None where there is none; with a remedy, rows without one are noted.

        Where the table has no such column, or one that holds something else, which is noted, nobody has one.
        """
        ids = np.full(len(self.frame), None, dtype=object)
        if name not in self.frame:
            return ids
        try:
            ids = as_ids(self.frame[name])
        except ValueError as error:
            self.note(code, f"{name}: {error}", "give one id or label in each cell", len(ids), name)
        else:
            self.rows(code, f"no {name}", name, pd.isna(ids) & bool(remedy), str(remedy), fix)
        return ids

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.problems):
            raise DataError(worst_first(self.problems))


def is_message(cell: Any) -> bool:
    """Whether a cell is a chat message: an object that says who speaks."""
    return isinstance(cell, dict) and not {"role", "from"}.isdisjoint(cell)


def is_chat(cell: Any) -> bool:
    """Whether a cell is a list of chat messages."""
    return isinstance(cell, list) and any(map(is_message, cell[:1]))


def parsed(text: str) -> Any:
    """What a text is as JSON, or as Python and numpy write lists; None where it is neither."""
    for read, written in ((json.loads, text), (ast.literal_eval, _BREAK.sub("}, {", text))):
        faults = ValueError, SyntaxError, RecursionError, MemoryError, TypeError
        # Python warns of odd backslashes
        with contextlib.suppress(*faults), warnings.catch_warnings(action="ignore"):
            return read(written)
    return None
