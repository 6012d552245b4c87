"""Flatten nested records or several lists of records into one table with a row for each vote."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from badpo.data.cells import (
    MANY_ROWS,
    NEARLY_ALL,
    Cell,
    Objects,
    Record,
    Table,
    are_objects,
    as_objects,
    is_chat,
    is_message,
    parsed,
    require_size,
)
from badpo.data.problems import counted
from badpo.data.vocabulary import (
    ANSWER,
    OF_TEXTS,
    PAIR,
    TEMPLATE_COLUMNS,
    columns_named,
    folded,
    like_annotators,
    names_vote,
    number_of,
    side_of,
)

Parts = dict[str, list[Cell]]  # the columns that replace a nested column: names and cells

_DEEPEST = 12  # largest number of nested levels of objects and lists
_NUMBERS = "rank|rating|score"  # names of columns whose cells may be lists of numbers
_LISTED = f"{ANSWER}|{_NUMBERS}"  # names of columns whose cells may be lists
_NAMING_KEYS = ("from_name", "forced_label", "question", "name", "title", "field", "key")
_MOST_NAMES = 12  # values in lists may have at most this many distinct names
_FEW_CELLS = 0.02  # keys of objects become columns only if at least this share of their cells is filled
_LONGEST_LABEL, _USUAL_TEXT = 60, 15  # characters
_LONGEST_LIST = 10_000  # largest number of characters in a list that is stored as a string
_SEPARATED = re.compile(r"[^;|]{1,40}(?:[;|][^;|]{1,40})+")
_VOTES_AS_TEXT = re.compile(r"\s*+[^:=,;|\n]{1,40}+[:=]\s*+[^:=,;|\n]{1,20}+(?:[,;|\n]|$)")


# -- cells -----------------------------------------------------------------------------------------------------


def opened(name: str, column: pd.Series) -> pd.Series:
    """Convert the arrays and strings in a column to the chat messages, lists or objects that they hold.

    If no array or string in the column holds chat messages, lists or objects, the function returns the column
    unchanged. JSON strings in a column of prompts or responses are converted only if they are dialogue turns or a
    judge's votes.
    """
    at = column.first_valid_index()
    first = None if at is None else column[at]
    if isinstance(first, dict | list | np.ndarray):
        return column.map(_without_arrays)
    if not isinstance(first, str):
        return column
    if first.lstrip()[:1] not in ("[", "{"):
        return _opened_text(column, first)
    value = parsed(first)
    is_list, is_dialogue = isinstance(value, list), is_chat(_without_arrays(value))
    if is_list and not is_dialogue and columns_named([name], (*PAIR, "chosen", "rejected")):
        values = column.map(_join_turns, na_action="ignore")
    else:
        # JSON objects in an answer column are parsed only if they are a judge's votes
        is_vote = isinstance(value, dict) and columns_named(
            [*map(str, value)], ("winner", "rating_a", "rating_b")
        )
        is_text = re.fullmatch(OF_TEXTS, folded(name)) and not is_vote
        has_parts = isinstance(value, dict) or (isinstance(value, list) and len(value) > 0)
        if not is_dialogue and (is_text or not has_parts):
            return column
        parts = column.map(
            lambda cell: parsed(cell) if isinstance(cell, str) else cell, na_action="ignore"
        )
        values = parts.map(_without_arrays)
    return values if values.notna().equals(column.notna()) else column


def _join_turns(cell: Cell) -> str | None:
    """Join the turns in a string such as ``["Why?", "Because."]``; return None for other cells."""
    turns = parsed(cell) if isinstance(cell, str) else None
    if not isinstance(turns, list) or not turns:
        return None
    are_turns = all(isinstance(turn, str | None) for turn in turns)
    return "\n\n".join(str(turn) for turn in turns if turn) if are_turns else None


def _opened_text(column: pd.Series, first: str) -> pd.Series:
    """Convert strings such as ``Ann=A; Ben=B`` to objects; return any other column unchanged."""
    cells = column.dropna()
    if cells.map(lambda cell: len(str(cell))).max() > _LONGEST_LIST:
        return column
    parts = [part.split(":" if ":" in part else "=") for part in _VOTES_AS_TEXT.findall(first)]
    are_votes = all(
        side_of(value.strip(" ,;|\n")) and math.isnan(number_of(who)) for who, value in parts
    )
    if len(parts) > 1 and are_votes:
        pairs = cells.map(
            lambda cell: re.findall(r"\s*+([^:=,;|\n]{1,200}+)[:=]\s*+([^:=,;|\n]{1,200}+)", str(cell))
        )
        return pairs.map(lambda found: {who: vote.strip() for who, vote in found}).reindex(column.index)
    return column


def _without_arrays(cell: Cell | Objects) -> Cell:
    """Convert arrays from parquet cells to lists, and pairs of a role and a text to chat messages."""
    if isinstance(cell, dict):
        return {key: _without_arrays(value) for key, value in cell.items()}
    if not isinstance(cell, list | np.ndarray):
        return cell
    values = [*map(_without_arrays, cell)]
    turns = [*filter(None, map(_as_turn, values))]
    is_chat_log = len(turns) == len(values) > 0
    is_chat_log &= len({turn["role"] for turn in turns}) == min(2, len(values))
    return [*turns] if is_chat_log else values


def _as_turn(value: Cell) -> Record | None:
    """Convert a list such as ``["user", "Why?"]`` to a chat message; return None for other values."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        return None
    role, text = value[0].casefold(), value[1]
    return {"role": role, "content": text} if role in _ROLES and isinstance(text, str | None) else None


_ROLES = ("user", "human", "assistant", "system", "gpt", "bot")


def singular(name: str) -> str:
    """Return the singular of a noun, such as ``summary`` for ``summaries``."""
    return re.sub(r"(ie)?s$", lambda end: "y" * bool(end[1]), name)


def _listed(cell: Cell) -> list[Cell] | None:
    """Return a list, or the parts of a string such as ``["x", "y"]`` or ``x; y``; return None for any other cell."""
    if isinstance(cell, str) and len(cell) < _LONGEST_LIST:
        text = cell.strip()
        parts = re.split(r" *[;|] *", text) if _SEPARATED.fullmatch(text) else None
        cell = parsed(text) if text[:1] == "[" else parts
    return cell if isinstance(cell, list) and cell else None


# -- columns ---------------------------------------------------------------------------------------------------


def flatten(table: Table) -> Table:
    """Give each part of an object its own column, and each vote in a list its own row.

    Examples
    --------
    >>> nested = Table(pd.DataFrame({"data": [{"prompt": "Why?"}], "summaries": [["So.", "No."]]}), "t")
    >>> [*flatten(nested).frame]
    ['data.prompt', 'summary_1', 'summary_2']
    """
    inside = ""  # prefix of the columns whose lists may still become rows
    for _ in range(_DEEPEST):
        table = _with_values_by_id(table)
        frame = _with_columns(table, _parts_of_objects)
        if frame is not None:
            table = replace(table, frame=frame)
        elif (votes := _with_rows_of_votes(table, inside)) is not None:
            table, inside = votes
        elif (frame := _with_columns(table, _parts_of_lists)) is not None:
            table = replace(table, frame=frame)
        else:
            break
    return table


def _with_values_by_id(table: Table) -> Table:
    """Replace mappings from ids to values, such as ``{"x7": 0, "y3": 1}``, with lists of the values.

    The mappings in a column are replaced only if each row has a list of objects with the same ids in another column.
    The list contains the values of the mapping in the order of the objects in the other column.
    """
    frame = table.frame
    cells_of = {name: [*frame[name]] for name in frame if isinstance(frame[name], pd.Series)}
    lists = [cells for cells in cells_of.values() if all(isinstance(cell, list) for cell in cells)]
    for name, mappings in cells_of.items():
        if not all(isinstance(cell, dict) and cell for cell in mappings):
            continue
        for cells in lists:
            for key in records_in(cells[0] if cells else None) and cells[0][0] or ():
                ids = [[str(one.get(key)) for one in records_in(cell) or ()] for cell in cells]
                pairs = [*zip(mappings, ids, strict=True)]
                if all({*mapping} == {*places} for mapping, places in pairs):
                    listed = as_objects([mapping[one] for one in places] for mapping, places in pairs)
                    frame = frame.assign(**{name: listed})
    return replace(table, frame=frame)


def _with_columns(
    table: Table, parts_of: Callable[[str, list[Cell]], Parts | None]
) -> pd.DataFrame | None:
    """Replace each nested column with one column for each of its parts; return None if no column is nested."""
    columns: list[tuple[str, pd.Series]] = []
    is_changed = False
    for i, name in enumerate(map(str, table.frame)):
        column = table.frame.iloc[:, i]
        first = next((cell for cell in column if isinstance(cell, str | dict | list)), "")
        is_nested = (
            isinstance(first, dict | list) and not is_chat(first) and name not in TEMPLATE_COLUMNS
        )
        parts = parts_of(name, [*column]) if is_nested else None
        if parts is None:
            columns.append((name, column))
            continue
        is_changed = True
        require_size(f'column "{name}"', len(column), len(parts))
        columns += [
            (part, opened(part, pd.Series(as_objects(cells), column.index)))
            for part, cells in parts.items()
            # omit a part of an object if the table already has a column with the same name
            if part == name or (part not in table.frame and any(cell is not None for cell in cells))
        ]
    if not is_changed:
        return None
    names = [name for name, _ in columns]
    frame = pd.concat([column for _, column in columns], axis=1)
    return frame.set_axis(pd.Index(names, dtype=object), axis=1)


def _parts_of_objects(name: str, cells: list[Cell]) -> Parts | None:
    """Split a column of objects, of lists with named values, or of one-element lists into columns.

    If the column cannot be split, the result is None.
    """
    if any(map(is_message, cells)):
        contents = [
            cell.get("content", cell.get("value")) if is_message(cell) else cell for cell in cells
        ]
        are_texts = all(isinstance(content, str | None) for content in contents)
        return {name: contents} if are_texts else None
    if any(isinstance(cell, dict) for cell in cells):
        objects = [cell if isinstance(cell, dict) else {} for cell in cells]
        if (votes := _votes_by_person(name, objects)) is not None:
            return {name: votes}
        keys = Counter(itertools.chain(*objects))
        if _FEW_CELLS * len(keys) * len(cells) > sum(keys.values()):
            return None  # the keys are ids, not column names
        is_typed = len(keys) == 1 and min(keys).startswith(
            "$"
        )  # MongoDB writes a value's type as its key
        return {
            name if is_typed else f"{name}.{key}": [each.get(key) for each in objects] for key in keys
        }
    lists = [cell for cell in cells if isinstance(cell, list)]
    n_cells = sum(cell is not None for cell in cells)
    is_one = max(map(len, lists), default=0) == 1 and len(lists) >= NEARLY_ALL * n_cells
    if is_one and not like_annotators([name]):
        return {name: [cell[0] if isinstance(cell, list) and cell else None for cell in cells]}
    key = _naming_key(name, [each for each in lists if each])
    if key is None:
        return None
    named: list[Cell] = [
        {str(one[key]): {part: one[part] for part in one if part != key} for one in cell}
        if are_objects(cell)
        else None
        for cell in cells
    ]
    return {name: named}


def _naming_key(name: str, lists: Sequence[list[Cell]]) -> str | None:
    """Return the key that holds the names of the objects in a column's lists.

    If the objects have no names, or if the lists should be split by position, the result is None.
    """
    records = [each for each in lists if are_objects(each)]
    if not records or len(records) < len(lists):
        return None
    is_listed = re.fullmatch(_LISTED, folded(singular(name.rpartition(".")[2]))) is not None
    first = records[0][0]
    others = [] if like_annotators([*first]) else [*first]
    part = next((part for part in ("value", "answer") if part in first), "")
    is_pair = {*map(len, records)} == {2}
    # in objects such as {"component_id": "prompt", "value": "Why?"}, the name of the value may be under any key
    values = [one.get(part) for each in records for one in each]
    has_names = part and not (is_pair and _are_texts(values))
    for key in [*_NAMING_KEYS, *others]:
        is_usual = key in _NAMING_KEYS
        if not _names_values(key, records) or not (is_usual or has_names or is_pair):
            continue
        # a list of answers is split by position, unless its objects say which side each answer belongs to
        is_answer = is_listed or not (is_usual or has_names)
        is_number = names_vote(key) or re.search(_NUMBERS, folded(key))
        if not is_answer or (_name_sides(key, records) and not is_number):
            return key
    return None


def _names_values(key: str, records: Sequence[list[Record]]) -> bool:
    """Return whether each object in the lists has a name under the key ``key``.

    The names within a list must be distinct, and each name must occur in at least half of the lists.
    """
    names = [one.get(key) for each in records for one in each]
    if not all(isinstance(one, str) and len(one) <= _LONGEST_LABEL for one in names):
        return False
    counts = Counter(names)
    is_distinct = all(len({one[key] for one in each}) == len(each) for each in records)
    return is_distinct and len(counts) <= _MOST_NAMES and 2 * min(counts.values()) >= len(records)


def _name_sides(key: str, records: Sequence[list[Record]]) -> bool:
    """Return whether the values under ``key`` are labels of the two sides or column names for both sides."""
    names = [*dict.fromkeys(str(one[key]) for each in records for one in each)]
    sides = {(side_of(name) or ("",))[0] for name in names}
    return sides == {"a", "b"} or {*PAIR[1:]} <= {*columns_named(names, PAIR)}


def _votes_by_person(name: str, objects: Sequence[Record]) -> list[Cell] | None:
    """Convert objects that map annotators to votes to lists of votes; return None for other objects."""
    counts = Counter(itertools.chain(*objects))
    is_varied = len(counts) > 2 and max(map(len, objects)) < len(counts)
    values: list[Cell] = [value for each in objects for value in each.values() if value is not None]
    if not values or any(map(side_of, map(str, counts))):
        return None
    if are_objects(values):
        called = is_varied or re.search("vote|annotat|judg", folded(name)) is not None
        if not called or not all(map(_holds_side, values)):
            return None
    elif not is_varied or not all(isinstance(one, str) and side_of(one) for one in values):
        return None
    return [
        [
            {"annotator": key, **(value if isinstance(value, dict) else {"vote": value})}
            for key, value in each.items()
            if value
        ]
        for each in objects
    ]


def _parts_of_lists(name: str, cells: list[Cell]) -> Parts | None:
    """Split lists of answers, ratings or pairs into numbered columns; return None for other lists."""
    stem = singular(name)
    lists = [cell if isinstance(cell, list) else [] for cell in cells]
    sizes = {len(each) for each in lists if each}
    elements = [one for each in lists for one in each]
    # a list of numbers in a column such as "completion" holds tokens or offsets, not answers
    are_numbers = bool(elements) and all(isinstance(one, int | float) for one in elements)
    called = _NUMBERS if are_numbers else _LISTED
    are_listed = re.fullmatch(called, folded(stem.rpartition(".")[2])) is not None
    are_pairs = sizes == {2} and all(isinstance(one, dict) or is_chat(one) for one in elements)
    are_texts = (
        len(sizes) == 1
        and 2 in sizes
        and all(isinstance(one, str) and len(one) >= _USUAL_TEXT for one in elements)
    )
    if not sizes or not (are_listed or are_pairs or are_texts):
        return None
    require_size(f'column "{name}"', len(lists), max(sizes))
    places = enumerate(itertools.zip_longest(*lists), start=1)
    return {f"{stem}_{i}": [*each] for i, each in places}


# -- rows ------------------------------------------------------------------------------------------------------


def leaves(value: Cell, path: str = "") -> Iterator[tuple[str, Cell]]:
    """Yield the path and the value of each leaf in nested objects and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


def _holds_side(vote: Cell) -> bool:
    """Return whether an object contains a word for a side, or a number for a side under a key such as ``vote``."""
    for path, value in leaves(vote):
        label, is_called = str(value), names_vote(path.rpartition(".")[2])
        is_word = (
            isinstance(value, str) and len(label) <= _LONGEST_LABEL and math.isnan(number_of(label))
        )
        if value is not None and (is_word or is_called) and side_of(label):
            return True
    return False


def _inner_votes(keys: Sequence[str]) -> dict[str, str]:
    return columns_named(keys, ("winner", "rating"))


def _clearness_of_votes(elements: list[Cell]) -> int:
    """Return how clearly objects are votes: 2 if all have a side or a rating, 1 if all name annotators, otherwise 0."""
    if not elements or not are_objects(elements) or is_message(elements[0]):
        return 0
    keys = [*map(str, elements[0])]
    paths = [*dict.fromkeys(path for path, _ in leaves(elements[0]))]
    if columns_named(keys, ["response"]) and not like_annotators(keys):
        return 0
    are_ratings = bool(_inner_votes(keys))
    if are_ratings or all(map(_holds_side, elements)):
        return 2
    return int(bool(like_annotators(paths)))


def _with_rows_of_votes(table: Table, inside: str) -> tuple[Table, str] | None:
    """Expand the lists of votes in a column to one row per vote; return the table and the prefix of the new columns.

    The votes may be in one column, or one column may hold lists of annotators and another column lists of their votes.
    If no column holds lists of votes or of annotators, the result is None. The function uses only columns whose names
    begin with the prefix ``inside``.
    """
    beginning = table.frame[:MANY_ROWS].filter(regex=f"^{re.escape(inside)}")
    names = [
        name for name, column in beginning.items() if column.map(_listed).notna().mean() >= NEARLY_ALL
    ]
    lists = {name: table.frame[name].map(_listed) for name in names}
    n_of = {name: column.map(len, na_action="ignore") for name, column in lists.items()}
    elements = {name: [*itertools.chain(*column.dropna())] for name, column in lists.items()}
    clearness = {name: _clearness_of_votes(elements[name]) for name in lists}
    best = max(clearness.values(), default=0)
    if best:
        name = next(name for name in lists if clearness[name] == best)
        return _exploded(table, {name: lists[name]}, elements[name][0]), f"{name}."
    for name in like_annotators(map(str, lists)):
        if elements[name] and not any(isinstance(one, dict) for one in elements[name]):
            beside = [other for other in lists if n_of[other].equals(n_of[name])]
            beside = [other for other in beside if not _are_texts(elements[other])]
            if len(beside) > 1:
                return _exploded(table, {other: lists[other] for other in beside}, None), f"{name}."
            if isinstance(table.frame[name].iat[0], list):
                # a list in an annotator column may describe a single judge, for example its model and its prompt
                joined = lists[name].map(lambda cell: " ".join(map(str, cell)), na_action="ignore")
                return replace(table, frame=table.frame.assign(**{name: joined})), inside
    return None


def _are_texts(cells: Sequence[Cell]) -> bool:
    lengths = [len(cell) for cell in cells if isinstance(cell, str)]
    return bool(lengths) and float(np.median(lengths)) >= _USUAL_TEXT


def _exploded(table: Table, lists: Mapping[str, pd.Series], vote: Record | None) -> Table:
    """Expand lists of equal length to a table with one row per element.

    ``vote`` is the first element if the elements are objects, and None if they are plain values.
    """
    n_votes = int(sum(map(len, next(iter(lists.values())).dropna())))
    require_size(table.name, n_votes, table.frame.shape[1])
    frame = table.frame
    if vote is not None and _inner_votes([*map(str, vote)]):
        # a column of verdicts next to the lists of votes summarizes the votes in the lists, so the column is dropped
        outer = [name for name in frame if name not in lists and _inner_votes([str(name)])]
        frame = frame.drop(columns=[name for name in outer if _are_labels(frame[name])])
    frame = frame.assign(**lists).explode([*lists])
    what = f"lists in {', '.join(map(str, lists))}: {counted(n_votes, 'vote')} of {counted(len(table.frame), 'row')}"
    return table.with_rows(frame).noted("N106", what)


def _are_labels(column: pd.Series) -> bool:
    """Return whether each nonempty cell of a column is a label of a side or a number."""
    cells = {str(cell) for cell in column.dropna()}
    return all(side_of(cell) or math.isfinite(number_of(cell)) for cell in cells)


_TEXT_KEYS = ("text", "content", "body")  # keys that do not say what their text is about
_MOST_LISTS = 10  # lists are joined only if a file contains at most _MOST_LISTS lists


def records_in(value: Cell) -> list[Record] | None:
    """Return the objects in a list or in a mapping from ids to objects; return None for any other value."""
    if isinstance(value, dict) and len(value) > 1 and are_objects([*value.values()]):
        return [{"id": key, **one} for key, one in value.items() if isinstance(one, dict)]
    return value if value and are_objects(value) else None


def joined_records(tables: Mapping[str, list[Record]]) -> dict[tuple[str, ...], list[Record]]:
    """Join lists of objects by ids; for example, a vote with a ``pair_id`` gets the fields of the pair.

    The keys of the result are the names of the lists that were joined, and each value is a joined list. An object that
    describes an annotator may contain a list of the annotator's votes. If there are more than ten lists, none are
    joined.
    """
    left = {name: _opened_records(name, records) for name, records in tables.items()}
    used = {name: [name] for name in left}
    stems = {name: re.sub(r"[_\d]+$", "", folded(name.partition(".")[0])) for name in left}
    nouns = {name: singular(stem).rpartition("_")[2] for name, stem in stems.items()}
    is_joined = 1 < len(left) <= _MOST_LISTS
    while is_joined:
        is_joined = False
        # try lists of votes first, because the fields of a pair are added to each vote, and never the reverse
        are_votes = {
            name: bool(columns_named([*records[0]], ("winner", "annotator")))
            for name, records in left.items()
        }
        pairs = sorted(itertools.permutations(left, 2), key=lambda pair: not are_votes[pair[0]])
        for name, other in pairs:
            others_nouns = {*nouns.values()} - {nouns[other]}
            if joined := _joined_pair(left[name], left[other], nouns[other], others_nouns):
                left[name], is_joined = joined, True
                used[name] += used[other]
                del left[other]
                break
    return {(*used[name],): records for name, records in left.items()}


def _joined_pair(
    rows: list[Record], others: list[Record], noun: str, nouns: Collection[str]
) -> list[Record]:
    """Add to each row the fields of the objects in ``others`` that the row references by id.

    If any row references no object, the result is empty. The id column either has the same name in both lists or is
    named after the list ``others``: a column ``pair_id`` references the list ``pairs``. A row may reference several
    objects, for example through the columns ``answer_a_id`` and ``answer_b_id``, and two objects may share an id.
    ``noun`` is the noun for an object in ``others``, and ``nouns`` contains the nouns for objects in the remaining
    lists.
    """
    melted = _melted(rows, others)
    rows = melted or rows
    for named in (others, _beside(others)):
        for key in named[0] if named else ():
            by_id = {str(one.get(key)): one for one in named}
            if not 1 < len(by_id) == len(named):
                continue
            has_own_id = not melted and folded(key) == "id" and len({*_values(rows, key)}) == len(rows)
            columns = [
                column
                for column in rows[0]
                if _names(column, key, noun)
                and not (has_own_id and column == key)
                and all(str(row.get(column)) in by_id for row in rows)
            ]
            # ids of different lists may be equal numbers by chance, so a column named after a list references that list
            words = {column: {*folded(column).split("_")} for column in columns}
            columns = [column for column in columns if noun in words[column]] or [
                column for column in columns if words[column].isdisjoint(nouns)
            ]
            if columns:
                return [
                    _with_fields(row, {name: by_id[str(row[name])] for name in columns}, key, noun)
                    for row in rows
                ]
    return []


def _melted(rows: list[Record], others: list[Record]) -> list[Record]:
    """If column names are ids in ``others``, as in survey exports, return a row for each nonempty cell.

    The result is empty unless more than half of the ids in ``others`` are column names. A respondent may have judged
    only some of the comparisons, which leaves the cells of the other comparisons empty.
    """
    names = [*dict.fromkeys(itertools.chain(*rows))]
    for key in others[0]:
        ids = {*_values(others, key)}
        columns = [name for name in names if name in ids]
        if len(ids) == len(others) and len(columns) > 1 and 2 * len(columns) > len(ids):
            # if a row of a survey holds all answers of one respondent, the row's id identifies the respondent
            left = {"respondent_id" if name == key else name: name for name in names if name not in ids}
            return [
                {
                    **{own: row.get(name) for own, name in left.items()},
                    key: column,
                    "winner": row[column],
                }
                for row in rows
                for column in columns
                if row.get(column) is not None
            ]
    return []


def _values(rows: Sequence[Record], name: str) -> list[str]:
    return [str(row.get(name)) for row in rows]


def _names(column: str, key: str, noun: str) -> bool:
    """Return whether a column may hold the ids that the objects in the list ``noun`` have under ``key``."""
    words, own, thing = folded(column).split("_"), folded(key).split("_"), folded(noun)
    if words == own or (folded(column) in (thing, f"{thing}_id") and own == ["id"]):
        return True
    is_id = bool({"id", "ids", "nr", "no", "code", "key"} & {*words, *own})
    shared = {*words} & {*own}
    return is_id and words != ["id"] and (bool(shared) or own == ["id"])


def _with_fields(row: Record, others: Mapping[str, Record], key: str, noun: str) -> Record:
    """Add to a row the fields of the objects that its id columns reference.

    If the row references several objects, a field that differs between them gets a prefix from the name of the id
    column.
    """
    if len(others) == 1:
        ((column, other),) = others.items()
        fields = {
            f"{noun}_{name}" if name in row or folded(name) in _TEXT_KEYS else name: other[name]
            for name in other
            if name not in (key, column)
        }
        return fields | row
    fields = {}
    for column, other in others.items():
        stem = "_".join(word for word in folded(column).split("_") if word not in ("id", "ids"))
        for name in other:
            if name != key:
                same = len({str(one.get(name)) for one in others.values()}) == 1
                fields[name if same else f"{stem}_{name}"] = other[name]
    return fields | row


def _beside(records: list[Record]) -> list[Record]:
    """If each id has two records, join them into one record with the fields of both.

    If any id does not belong to exactly two records, the result is empty.
    """
    for key in records[0] if records else ():
        counts = Counter(_values(records, key))
        if len(counts) < 2 or {*counts.values()} != {2}:
            continue
        pairs: dict[str, list[Record]] = {}
        for record in records:
            pairs.setdefault(str(record[key]), []).append(record)
        names = [name for name in records[0] if name != key]
        alike = {name for name in names if all(a.get(name) == b.get(name) for a, b in pairs.values())}
        return [
            {key: a[key]}
            | {name: a.get(name) for name in alike}
            | {
                f"{name}_{i}": one.get(name)
                for i, one in enumerate((a, b), 1)
                for name in names
                if name not in alike
            }
            for a, b in pairs.values()
        ]
    return []


def _opened_records(name: str, records: list[Record]) -> list[Record]:
    """If records contain lists of inner records with keys that end in ``_id``, return one record per inner record.

    Each inner record gets the fields of its outer record. If no record contains inner records, the function returns
    ``records`` unchanged.
    """
    for key in records[0]:
        lists = [record.get(key) for record in records]
        inner: list[Record] = next(filter(None, map(records_in, lists)), [{}])
        are_lists = all(isinstance(each, list) and (not each or records_in(each)) for each in lists)
        if are_lists and any(part.endswith("_id") for part in inner[0]):
            return [
                {f"{singular(name)}_{part}": cell for part, cell in record.items() if part != key} | one
                for record in records
                for one in records_in(record[key]) or ()
            ]
    return records
