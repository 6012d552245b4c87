"""From a table to rows that are understood: every check on rows in one pass."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from badpo.data.privacy import EVERYONE, direct_identifiers, is_pseudonym, pseudonyms, spelling
from badpo.data.problems import ConfigError, DataError, Problem, Severity, counted, did_you_mean
from badpo.data.tables import (
    KNOWN,
    Layout,
    Table,
    annotator_hint,
    as_ids,
    read_table,
    read_texts,
    recognise,
    side_pairs,
)

ROWS_SHOWN = 5
NO_ROWS = np.array([], dtype=np.intp)


class RowProblems:
    """Gathers problems with the rows they were found in.

    Parameters
    ----------
    table : Table
        Where the rows come from.
    theirs : mapping of str to str
        Our column names -> the table's.
    annotators : object array of shape (n_rows,)
        Pseudonym of each row's annotator; None where there is none.

    Examples
    --------
    >>> import pandas as pd
    >>> table = Table(pd.DataFrame({"winner": ["a", None]}), "votes.csv", lines=np.array([2, 3]))
    >>> rows = RowProblems(table, {"winner": "winner"}, np.array([None, None], dtype=object))
    >>> rows.add("E107", "error", "no winner", "winner", np.array([False, True]), "write a, b or tie")
    >>> rows.found[0].what, rows.found[0].where
    ('no winner: 1 of 2 rows', 'votes.csv, column "winner", row 2 (line 3 of the file)')
    """

    def __init__(self, table: Table, theirs: Mapping[str, str], annotators: NDArray[np.object_]):
        self.table = table
        self.annotators = annotators
        self.found: list[Problem] = []
        self._theirs = theirs

    def add(
        self,
        code: str,
        severity: Severity,
        what: str,
        column: str | None,
        rows: NDArray[np.bool_],
        remedy: str,
    ) -> None:
        """Note a problem of the rows where ``rows`` is True; nothing when there is none.

        The count of rows follows ``what``; ``column`` is our name for it.
        """
        index = np.flatnonzero(rows)
        if len(index):
            counted_rows = f"{what}: {len(index):,} of {len(rows):,} rows"
            self.note(code, severity, counted_rows, remedy, len(index), column, index)

    def note(
        self,
        code: str,
        severity: Severity,
        what: str,
        remedy: str,
        count: int = 1,
        column: str | None = None,
        index: NDArray[np.intp] = NO_ROWS,
    ) -> None:
        """Note a problem with a count of its own; ``index`` are the rows (0-based) to name, if any."""
        place = f', column "{self._theirs.get(column, column)}"' if column else ""
        where = f"{self.table.name}{place}{self._rows(index)}"
        self.found.append(Problem(code, what, where, remedy, severity, count))

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.found):
            raise DataError(sorted(self.found, key=lambda problem: problem.severity != "error"))

    def _rows(self, index: NDArray[np.intp]) -> str:
        if not len(index):
            return ""
        shown = index[:ROWS_SHOWN]
        named = ", ".join(self._row(int(i)) for i in shown)
        more = f" and {len(index) - len(shown):,} more" if len(index) > len(shown) else ""
        return f", row{'s' * (len(index) > 1)} {named}{more}{self._lines(shown)}"

    def _row(self, i: int) -> str:
        annotator = self.annotators[i]
        return f"{i + 1:,}" if annotator is None else f"{i + 1:,} [{annotator}]"

    def _lines(self, shown: NDArray[np.intp]) -> str:
        """Lines of the file where they are not the row numbers: a header is a line, and cells may hold breaks."""
        if self.table.lines is None or (self.table.lines[shown] == shown + 1).all():
            return ""
        lines = ", ".join(f"{line:,}" for line in self.table.lines[shown])
        return f" (line{'s' * (len(shown) > 1)} {lines} of the file)"


MODELS = ("model_a", "model_b")
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")


@dataclass(frozen=True)
class Carried:
    """Columns in the orientation of the source's rows.

    Attributes
    ----------
    columns : dict of str to array of shape (n_rows,)
    pairs : dict of str to str
        The column of the first side -> the column of the second; these are exchanged in rows that are turned.
    """

    columns: dict[str, NDArray[Any]]
    pairs: dict[str, str]

    def turned(self, rows: NDArray[np.intp], turn: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """The columns of ``rows`` in the orientation of their comparisons; ``turn`` is -1 where a row is turned."""
        partner = self.pairs | {second: first for first, second in self.pairs.items()}
        return {
            name: np.where(turn > 0, column[rows], self.columns[partner.get(name, name)][rows])
            for name, column in self.columns.items()
        }


def carried_columns(
    layout: Layout, keep: Sequence[str], pairs: Sequence[tuple[str, str]], rows: RowProblems
) -> Carried:
    """Which columns go along.

    Number columns that name both sides (``score_a`` and ``score_b``) always do, and so do ``model_a`` and ``model_b``
    where every row has them: they name who wrote the responses. Others stay behind unless they are in ``keep``, since
    a free column may say who an annotator is.

    Parameters
    ----------
    layout : Layout
    keep : sequence of str
        Columns the user asks for, of any type.
    pairs : sequence of (str, str)
        Columns that declared attributes read.
    rows : RowProblems
        Takes E103 for a column that is not there and E128 for an attribute's column that does not hold numbers.
    """
    frame = layout.frame
    free = [name for name in frame.columns if name not in KNOWN and name not in VOTE_COLUMNS]
    columns: dict[str, NDArray[Any]] = {}
    paired: dict[str, str] = {}
    for first, second in pairs:
        for name in (first, second):
            columns[name] = _declared_numbers(name, frame, free, rows)
        paired[first] = second
    for name in keep:
        fault = "is not a free column of the table" if name not in free else _fault(frame[name])
        if fault:
            what = f'keep: "{name}" {fault}.{did_you_mean(name, free)}'
            rows.note("E103", "error", what, f"free columns: {', '.join(free)}")
        else:
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    if set(MODELS) <= set(free) and not any(_fault(frame[name]) for name in MODELS):
        for name in MODELS if frame[list(MODELS)].notna().all(axis=None) else ():
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    for first, second in side_pairs(free).items():
        numbers = _numbers(frame[first]), _numbers(frame[second])
        if numbers[0] is not None and numbers[1] is not None:
            columns.setdefault(first, numbers[0])
            columns.setdefault(second, numbers[1])
        if first in columns and second in columns:
            paired.setdefault(first, second)
    return Carried(columns, paired)


def _numbers(column: pd.Series) -> NDArray[np.float64] | None:
    """The column as numbers; None when a cell that is there is no number, or no cell is there."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    present = column.notna().to_numpy()
    return values if present.any() and not np.isnan(values[present]).any() else None


def _fault(column: pd.Series) -> str:
    try:
        column.nunique()
    except TypeError:
        return "holds lists or objects, not single values"
    try:
        pa.array(column, from_pandas=True)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return "holds values of several kinds, which no table can be written with"
    return ""


def _declared_numbers(
    name: str, frame: pd.DataFrame, free: Sequence[str], rows: RowProblems
) -> NDArray[np.float64]:
    if name not in free:
        what = f'attribute column "{name}" is not a free column of the table.{did_you_mean(name, free)}'
        rows.note("E128", "error", what, f"free columns: {', '.join(free)}")
        return np.full(len(frame), np.nan)
    values = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    rows.add(
        "E128",
        "error",
        f'attribute column "{name}" holds no number',
        name,
        ~np.isfinite(values),
        "give a number",
    )
    return values


_MODELS = re.compile(r"gpt|claude|gemini|llama|mistral|mixtral|qwen|deepseek|gemma|command-r", re.IGNORECASE)


@dataclass(frozen=True)
class RowAnnotators:
    """Annotators of the rows; no raw id is in here.

    Attributes
    ----------
    code : int array of shape (n_rows,)
        Position in ``pseudonyms``; -1 where the row has no annotator.
    pseudonyms : list of str
    classes : list of str or None
        Class of each annotator.
    has_identities : bool
        False when the table has no annotator column.
    class_conflict : bool array of shape (n_rows,)
        Rows that give an annotator another class than before.
    findings : tuple of Problem
        What the raw ids look like.
    unreadable : (str, str) or None
        A column of ours that is no column of ids, and why.
    """

    code: NDArray[np.intp]
    pseudonyms: list[str]
    classes: list[str | None]
    has_identities: bool
    class_conflict: NDArray[np.bool_]
    findings: tuple[Problem, ...] = ()
    unreadable: tuple[str, str] | None = None

    def pseudonym_of_row(self) -> NDArray[np.object_]:
        """Pseudonym of each row's annotator, None where there is none; shape (n_rows,)."""
        known = [*self.pseudonyms, None] if self.has_identities else [None, None]
        return np.array(known, dtype=object)[self.code]

    def report(self, rows: RowProblems, annotators_missing: str) -> None:
        """Hand everything found to ``rows``."""
        rows.found.extend(self.findings)
        if self.unreadable is not None:
            column, why = self.unreadable
            remedy = "give the id alone, such as its id field"
            rows.note("E112", "error", f"{column}: {why}", remedy, len(self.code), column)
            return
        if annotators_missing == "error":
            remedy = "fill it in, or leave these rows out: annotators_missing='drop'"
            rows.add("E112", "error", "no annotator", "annotator", self.code < 0, remedy)
        remedy = "give each annotator one class, or leave the column out: columns={'annotator_class': None}"
        what = "an annotator has another annotator_class than before"
        rows.add("E115", "error", what, "annotator_class", self.class_conflict, remedy)


def read_row_annotators(layout: Layout, table: Table) -> RowAnnotators:
    """Annotators of a table's rows, pseudonymised.

    Parameters
    ----------
    layout : Layout
    table : Table
    """
    n = len(layout.frame)
    nobody = np.zeros(n, dtype=np.intp)
    if not layout.has("annotator"):
        finding = _no_column(layout, table)
        return RowAnnotators(nobody, [EVERYONE], [None], False, np.zeros(n, dtype=bool), (finding,))
    for column in [name for name in ("annotator", "annotator_class") if layout.has(name)]:
        try:
            as_ids(layout.frame[column])
        except ValueError as error:
            unreadable = (column, str(error))
            return RowAnnotators(nobody - 1, [], [], True, np.zeros(n, dtype=bool), unreadable=unreadable)
    raw = as_ids(layout.frame["annotator"])
    code, raw_ids = pd.factorize(raw)
    named = pseudonyms(list(raw_ids))
    classes, conflict = _classes(layout, code, len(named))
    findings = [
        *_direct_identifiers(list(raw_ids), table),
        *_look_alikes(list(raw_ids), named, table),
        *_model_judges(list(raw_ids), named, classes, table),
    ]
    return RowAnnotators(code, named, classes, True, conflict, tuple(findings))


def _no_column(layout: Layout, table: Table) -> Problem:
    hint = annotator_hint([name for name in layout.frame.columns if name not in layout.theirs])
    unused = "; annotator_class is not used without it" if layout.has("annotator_class") else ""
    what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"{unused}'
    if hint:
        return Problem("W110", what, table.name, f"map the column.{hint}", "warning")
    remedy = "nothing for a pooled bias; per-annotator bias needs ids: columns={'annotator': '...'}"
    return Problem("N110", what, table.name, remedy, "notice")


def _classes(layout: Layout, code: NDArray[np.intp], n: int) -> tuple[list[str | None], NDArray[np.bool_]]:
    if not layout.has("annotator_class"):
        return [None] * n, np.zeros(len(code), dtype=bool)
    label_code, labels = pd.factorize(as_ids(layout.frame["annotator_class"]))
    first = np.full(n + 1, -1, dtype=np.intp)
    told = np.flatnonzero((label_code >= 0) & (code >= 0))[::-1]
    first[code[told]] = label_code[told]
    conflict = (label_code >= 0) & (code >= 0) & (label_code != first[code])
    return [None if label < 0 else str(labels[label]) for label in first[:n]], conflict


def _direct_identifiers(raw_ids: list[str], table: Table) -> list[Problem]:
    kinds = direct_identifiers(raw_ids)
    if not kinds:
        return []
    what = f"annotator ids look like {' and '.join(kinds)}; they were replaced by pseudonyms while reading"
    remedy = "share the table that badpo import writes, not this one"
    return [Problem("W301", what, table.name, remedy, "warning")]


def _look_alikes(raw_ids: list[str], named: list[str], table: Table) -> list[Problem]:
    groups: dict[str, list[str]] = {}
    for raw_id, name in zip(raw_ids, named, strict=True):
        groups.setdefault(spelling(raw_id), []).append(name)
    alike = [group for group in groups.values() if len(group) > 1]
    if not alike:
        return []
    shown = "; ".join(" and ".join(group) for group in alike[:ROWS_SHOWN])
    what = (
        f"{counted(len(alike), 'group')} of annotators whose ids differ only in case, spaces or leading zeros"
    )
    remedy = "if they are the same people, write their ids alike before reading"
    return [Problem("W113", what, f"{table.name}: {shown}", remedy, "warning", len(alike))]


def _model_judges(
    raw_ids: list[str], named: list[str], classes: list[str | None], table: Table
) -> list[Problem]:
    is_model = [not is_pseudonym(raw_id) and _MODELS.search(raw_id) is not None for raw_id in raw_ids]
    people = {label for label, model in zip(classes, is_model, strict=True) if not model}
    mixed = [
        name for name, label, model in zip(named, classes, is_model, strict=True) if model and label in people
    ]
    if not mixed:
        return []
    what = (
        f"{counted(len(mixed), 'annotator')} with a language model's name as id, beside others in one class"
    )
    remedy = "give them an annotator_class of their own"
    return [
        Problem("W114", what, f"{table.name}: {', '.join(mixed[:ROWS_SHOWN])}", remedy, "warning", len(mixed))
    ]


Text = str | list[dict[str, Any]]


def arrange(prompt: Text | None, first: Text, second: Text) -> tuple[Text, Text, Text]:
    """Prompt and two responses of one row, all text or all messages.

    An explicit prompt stays. Without one, or when the prompt is text and the responses are whole conversations, the
    prompt is what the two begin with, as TRL takes it. A text beside messages becomes a message.

    Parameters
    ----------
    prompt : str, list of dict or None
        None when the table has no prompt.
    first, second : str or list of dict

    Returns
    -------
    prompt, first, second
        An empty prompt when there is none to be found.

    Raises
    ------
    ValueError
        When one response is text and the other a list of messages.

    Examples
    --------
    >>> question = {"role": "user", "content": "Why?"}
    >>> yes, no = ({"role": "assistant", "content": word} for word in ("yes", "no"))
    >>> arrange(None, [question, yes], [question, no]) == ([question], [yes], [no])
    True
    >>> arrange("Why?", [yes], [no]) == ([question], [yes], [no])
    True
    """
    if isinstance(first, str) != isinstance(second, str):
        raise ValueError("one response is text and the other a list of messages")
    chat = not isinstance(first, str)
    if prompt is None or (chat and isinstance(prompt, str)):
        n_shared = shared_beginning(first, second)
        if n_shared or prompt is None:
            return first[:n_shared], first[n_shared:], second[n_shared:]
    if chat and isinstance(prompt, str):
        return [{"role": "user", "content": prompt}], first, second
    if isinstance(prompt, list) and not chat:
        return prompt, [{"role": "assistant", "content": first}], [{"role": "assistant", "content": second}]
    assert prompt is not None
    return prompt, first, second


def shared_beginning(first: Text, second: Text) -> int:
    """How many characters, or messages, two responses share from the start and leave something of each.

    A space at the end of shared text is given back to the responses, as TRL does.

    Examples
    --------
    >>> text = "Why? Because it is."
    >>> text[:shared_beginning(text, "Why? Since it is.")]
    'Why?'
    """
    low, high = 0, max(0, min(len(first), len(second)) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    differs = first[low : low + 1] != second[low : low + 1]
    gives_back = isinstance(first, str) and differs and low > 0 and first[low - 1] == " "
    return low - 1 if gives_back else low


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


DROPPED_COLUMNS = ["reason", "annotator", "n"]
_NOTICES = {"tie": "N130", "no annotator": "N112", "repeated vote": "N133"}


@dataclass(frozen=True)
class Rows:
    """One value for each row of the source, in the row's own orientation.

    Attributes
    ----------
    texts : RowTexts
    who : RowAnnotators
    sign : int array
        +1 the first side won, -1 the second, 0 a tie.
    weight : float array
    shown : int array
        +1 the first side was shown first, -1 the second, 0 not known.
    comparison : int array
        Rows with the same number are votes on one comparison.
    comparison_id, prompt_id : object arrays or None
    """

    texts: RowTexts
    who: RowAnnotators
    sign: NDArray[np.int64]
    weight: NDArray[np.float64]
    shown: NDArray[np.int64]
    comparison: NDArray[np.intp]
    comparison_id: NDArray[np.object_] | None
    prompt_id: NDArray[np.object_] | None


@dataclass(frozen=True)
class Assembled:
    """What `badpo.data.judgments.Judgments` is made of, before attributes are measured."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    annotators: pd.DataFrame
    dropped: pd.DataFrame
    findings: tuple[Problem, ...]
    has_identities: bool


@dataclass(frozen=True)
class _Orientation:
    """Comparisons of the kept rows, numbered by first appearance.

    ``number`` is the comparison of each kept row, ``first`` the row that each comparison takes its orientation
    from, ``turn`` -1 where a kept row has the responses the other way round and +1 elsewhere.
    """

    number: NDArray[np.intp]
    first: NDArray[np.intp]
    turn: NDArray[np.int64]


def assemble(rows: Rows, carried: Carried, repeated: str, problems: RowProblems) -> Assembled:
    """The two tables, and a count of every row that is not in them.

    Parameters
    ----------
    rows : Rows
    carried : Carried
    repeated : "all" or "last"
        Which of an annotator's votes on one comparison are kept.
    problems : RowProblems
        Takes notices and warnings.

    Raises
    ------
    DataError
        When no row is a vote.
    """
    keep, dropped = _kept(rows, repeated, problems)
    sides = _oriented(rows, keep)
    comparisons = _comparison_table(rows, sides.first)
    _report_comparisons(rows, keep, sides, problems)
    annotator, order = pd.factorize(rows.who.code[keep])
    annotators = {
        "pseudonym": [rows.who.pseudonyms[k] for k in order],
        "annotator_class": [rows.who.classes[k] for k in order],
    }
    shown = np.array([None, "a", "b"], dtype=object)[rows.shown[keep] * sides.turn]
    votes = pd.DataFrame(
        {
            "comparison": sides.number,
            "sign": rows.sign[keep] * sides.turn,
            "annotator": annotator,
            "weight": rows.weight[keep],
            "row": keep,
            "shown_first": pd.Series(shown, dtype=object),
        }
    )
    for name, values in carried.turned(keep, sides.turn).items():
        votes[name] = values
        of_comparison = values[np.searchsorted(keep, sides.first)]
        if _all_equal(values, of_comparison[sides.number]):
            comparisons[name] = of_comparison
    return Assembled(
        comparisons,
        votes,
        _object_frame(annotators),
        dropped,
        tuple(problems.found),
        rows.who.has_identities,
    )


def _kept(rows: Rows, repeated: str, problems: RowProblems) -> tuple[NDArray[np.intp], pd.DataFrame]:
    """Rows that are votes, and a count of the others by reason and annotator."""
    reason = np.full(len(rows.sign), None, dtype=object)
    reason[rows.sign == 0] = "tie"
    reason[rows.who.code < 0] = "no annotator"
    if rows.who.has_identities:
        earlier = _repeated(rows, np.flatnonzero(pd.isna(reason)), repeated, problems)
        reason[earlier] = "repeated vote"
    keep = np.flatnonzero(pd.isna(reason))
    nobody = "unknown" if rows.who.has_identities else EVERYONE
    left_out = pd.DataFrame({"reason": reason, "annotator": rows.who.pseudonym_of_row()})
    left_out = left_out[left_out["reason"].notna()].fillna({"annotator": nobody})
    dropped = left_out.groupby(DROPPED_COLUMNS[:2], sort=False).size().reset_index(name="n")
    _report_dropped(dropped, len(reason), problems)
    if not len(keep):
        what, remedy = (
            f"no vote is left of {counted(len(reason), 'row')}",
            "give rows with a winner and an annotator",
        )
        problems.note("E104", "error", what, remedy, len(reason))
        problems.stop_at_errors()
    earlier_import = [pd.DataFrame(list(problems.table.dropped))] if problems.table.dropped else []
    dropped = pd.concat([*earlier_import, dropped], ignore_index=True)[DROPPED_COLUMNS]
    return keep, dropped.astype({"reason": object, "annotator": object, "n": np.int64})


def _repeated(rows: Rows, votes: NDArray[np.intp], repeated: str, problems: RowProblems) -> NDArray[np.intp]:
    """Rows to leave out because the annotator votes on the comparison again; repetitions are reported.

    Seeing the other side first is no repetition: both votes are kept.
    """
    of = pd.DataFrame({"annotator": rows.who.code[votes], "comparison": rows.comparison[votes]})
    if not of.duplicated().any():
        return votes[:0]
    turn = _oriented(rows, votes).turn
    of["first"], of["sign"] = rows.shown[votes] * turn, rows.sign[votes] * turn
    again = of.duplicated(["annotator", "comparison", "first"]).to_numpy()
    exchanged = of.duplicated(["annotator", "comparison"]).to_numpy() & ~again
    if again.any():
        then = "all are kept" if repeated == "all" else "only the last is kept"
        what = (
            f"{counted(int(again.sum()), 'judgment')} by an annotator who had judged the comparison before; "
            f"{_disagreeing(of, ['annotator', 'comparison', 'first'])}; {then}"
        )
        remedy = (
            "repeated='last' keeps the last vote only; of votes that saw the two sides in either order keep all, and "
            "say in shown_first which was first"
        )
        problems.note("W133", "warning", what, remedy, int(again.sum()), index=votes[again])
    if exchanged.any():
        what = (
            f"{counted(int(exchanged.sum()), 'judgment')} by an annotator who had judged the comparison with the other "
            f"side first; {_disagreeing(of, ['annotator', 'comparison'])}; all are kept"
        )
        remedy = "nothing; both orders tell what position does: --attribute position"
        problems.note("N131", "notice", what, remedy, int(exchanged.sum()), index=votes[exchanged])
    last = of.duplicated(["annotator", "comparison", "first"], keep="last").to_numpy()
    return votes[last & (repeated == "last")]


def _disagreeing(votes: pd.DataFrame, same: list[str]) -> str:
    signs = votes.groupby(same)["sign"].agg(["size", "nunique"])
    signs = signs[signs["size"] > 1]
    return (
        f"{(signs['nunique'] > 1).mean():.0%} of {counted(len(signs), 'such pair')} of annotator and comparison "
        "disagree with themselves"
    )


def _report_dropped(dropped: pd.DataFrame, n_rows: int, problems: RowProblems) -> None:
    for reason, n in dropped.groupby("reason", sort=False)["n"].sum().items():
        what = f"{n:,} of {counted(n_rows, 'row')} left out: {reason} ({n / n_rows:.1%})"
        remedy = "nothing; judgments.dropped counts them by annotator"
        problems.note(_NOTICES[str(reason)], "notice", what, remedy, int(n))
    for earlier in problems.table.dropped:
        n_rows += earlier["n"]
    if problems.table.dropped:
        n = sum(earlier["n"] for earlier in problems.table.dropped)
        what = f"{counted(n, 'row')} were left out at import ({n / n_rows:.1%})"
        problems.note("N119", "notice", what, "nothing; judgments.dropped counts them by annotator", n)


def _oriented(rows: Rows, keep: NDArray[np.intp]) -> _Orientation:
    number, distinct = pd.factorize(rows.comparison[keep])
    first = np.zeros(len(distinct), dtype=np.intp)
    first[number[::-1]] = keep[::-1]
    same_way = rows.texts.first[keep] == rows.texts.first[first[number]]
    return _Orientation(number, first, np.where(same_way, 1, -1))


def _comparison_table(rows: Rows, first: NDArray[np.intp]) -> pd.DataFrame:
    texts = rows.texts
    prompt, a, b = (
        pd.Series(texts.values[codes[first]], dtype=object)
        for codes in (texts.prompt, texts.first, texts.second)
    )
    if rows.comparison_id is None:
        sides = (sorted(pair, key=text_key) for pair in zip(a, b, strict=True))
        comparison_id = [digest("c", p, *pair) for p, pair in zip(prompt, sides, strict=True)]
    else:
        comparison_id = list(rows.comparison_id[first])
    if rows.prompt_id is None:
        codes, distinct = pd.factorize(texts.prompt[first])
        digests = [digest("p", texts.values[code]) for code in distinct]
        prompt_id = [digests[code] for code in codes]
    else:
        prompt_id = list(rows.prompt_id[first])
    ids = _object_frame({"comparison_id": comparison_id, "prompt_id": prompt_id})
    return ids.assign(prompt=prompt, response_a=a, response_b=b)


def _report_comparisons(
    rows: Rows, keep: NDArray[np.intp], sides: _Orientation, problems: RowProblems
) -> None:
    n_comparisons, turned = len(sides.first), keep[sides.turn < 0]
    if rows.comparison_id is None and n_comparisons < len(keep):
        what = (
            f"{counted(len(keep), 'judgment')} on {counted(n_comparisons, 'comparison')}: rows with the same prompt "
            "and the same two texts, in either order, are votes on one comparison"
        )
        remedy = "nothing; a comparison_id column would decide instead"
        problems.note("N138", "notice", what, remedy, len(keep) - n_comparisons)
    if len(turned):
        what = f"{counted(len(turned), 'judgment')} had the two responses the other way round and were turned"
        remedy = "nothing; which side was shown first was turned with them"
        problems.note("N118", "notice", what, remedy, len(turned), index=turned)
    n_repeated = n_comparisons - len(np.unique(rows.texts.pair_keys()[sides.first]))
    if n_repeated:
        what = f"{counted(n_repeated, 'comparison')} with the prompt and texts of another id; they stay apart"
        remedy = (
            "leave ids out to merge them: columns={'comparison_id': None}; where the very same votes stand twice, also "
            "repeated='last'"
        )
        problems.note("N139", "notice", what, remedy, n_repeated, "comparison_id")
    same = rows.texts.first[sides.first] == rows.texts.second[sides.first]
    if same.any():
        n, n_votes = int(same.sum()), int(same[sides.number].sum())
        what = f"{counted(n, 'comparison')} ({counted(n_votes, 'judgment')}) of two identical responses: no signal"
        remedy = "check the export: was a difference lost? They are kept"
        problems.note("W131", "warning", what, remedy, n, index=sides.first[same])


def _all_equal(values: NDArray, others: NDArray) -> bool:
    return bool(((values == others) | (pd.isna(values) & pd.isna(others))).all())


def _object_frame(columns: dict) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


TIES = ("drop", "error")
ANNOTATORS_MISSING = ("error", "drop")
REPEATED = ("all", "last")
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {"a_b": {"a": 1, "b": -1}, "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1}}
_NOT_READ = ("tools", "chat_template_kwargs")
_IMAGES = ("image", "images")


@dataclass(frozen=True)
class Options:
    """What the reader does where there is a choice; `Judgments.read` says what each means."""

    columns: Mapping[str, str | None] | None = None
    ties: str = "drop"
    annotators_missing: str = "error"
    repeated: str = "all"
    winners: Mapping[str, str] | None = None
    keep: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()

    def check(self) -> None:
        """Raise `ConfigError` for a choice that is not there."""
        choices = {"ties": TIES, "annotators_missing": ANNOTATORS_MISSING, "repeated": REPEATED}
        for key, known in choices.items():
            value = getattr(self, key)
            if value not in known:
                hint = did_you_mean(str(value), known)
                raise ConfigError(f"{key} must be {' or '.join(known)}; got {value!r}.{hint}")
        for label, side in (self.winners or {}).items():
            if side not in _WINNERS:
                raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")


def read_votes(source: Any, options: Options) -> Assembled:
    """Read a table of votes.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    options : Options

    Raises
    ------
    DataError
        Everything that is wrong with the table. Problems of the columns come first and alone.
    ConfigError
        An option that is not there.

    Examples
    --------
    >>> read_votes([{"prompt": "Why?", "chosen": "So.", "rejected": "No."}], Options()).votes["sign"].tolist()
    [1]
    """
    options.check()
    table = read_table(source)
    layout = recognise(table.frame, table.name, options.columns)
    if not len(layout.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again", "error")])
    who = read_row_annotators(layout, table)
    problems = RowProblems(table, layout.theirs, who.pseudonym_of_row())
    who.report(problems, options.annotators_missing)
    rows = _read_rows(layout, who, options, problems)
    carried = carried_columns(layout, options.keep, options.pairs, problems)
    problems.stop_at_errors()
    return assemble(rows, carried, options.repeated, problems)


def _read_rows(layout: Layout, who: RowAnnotators, options: Options, problems: RowProblems) -> Rows:
    _report_unread(layout, problems)
    _report_duplicate_ids(layout, problems)
    texts = read_row_texts(layout, problems)
    key = texts.pair_keys()
    comparison_id = _ids("comparison_id", layout, problems)
    prompt_id = _ids("prompt_id", layout, problems)
    comparison = key if comparison_id is None else pd.factorize(comparison_id)[0]
    what = "the comparison_id stands for other texts in an earlier row"
    remedy = "give each pair of responses an id of its own, or leave ids out: columns={'comparison_id': None}"
    problems.add("E116", "error", what, "comparison_id", _unlike_first(comparison, key), remedy)
    if prompt_id is not None:
        changed = _unlike_first(comparison, pd.factorize(prompt_id)[0])
        what = "another prompt_id than in the comparison's first row"
        problems.add("W117", "warning", what, "prompt_id", changed, "write one; the first is used")
    return Rows(
        texts,
        who,
        _signs(layout, options, problems),
        _weights(layout, problems),
        _first_shown(layout, problems),
        comparison,
        comparison_id,
        prompt_id,
    )


def _signs(layout: Layout, options: Options, problems: RowProblems) -> NDArray[np.int64]:
    """+1 where the first side won, -1 where the second did, 0 for a tie (and for rows that are reported)."""
    if layout.kind == "chosen_rejected":
        return np.ones(len(layout.frame), dtype=np.int64)
    labels = _labels("winner", "E107", layout, problems)
    codes, distinct = pd.factorize(labels)
    meanings = {str(label): side for label, side in (options.winners or {}).items()}
    signs = [_WINNERS.get(meanings.get(label, label.strip().casefold())) for label in distinct]
    unknown = [label for label, sign in zip(distinct, signs, strict=True) if sign is None]
    problems.add("E107", "error", "no winner", "winner", codes < 0, "write a, b or tie, or leave the row out")
    named = ", ".join(f'"{label}"' for label in unknown[:5])
    example = f'winners={{"{unknown[0] if unknown else "left"}": "a", ...}}'
    remedy = f"write a, b or tie, or say what the labels mean: {example}"
    problems.add("E107", "error", f"unknown winner {named}", "winner", np.isin(labels, unknown), remedy)
    if options.ties == "error":
        ties = np.isin(labels, [label for label, sign in zip(distinct, signs, strict=True) if sign == 0])
        problems.add("E130", "error", "ties", "winner", ties, "leave them out: ties='drop'")
    return np.array([*(sign or 0 for sign in signs), 0], dtype=np.int64)[codes]


def _ids(name: str, layout: Layout, problems: RowProblems) -> NDArray[np.object_] | None:
    if not layout.has(name):
        return None
    try:
        ids = as_ids(layout.frame[name])
    except ValueError as error:
        problems.note("E108", "error", f"{name}: {error}", "give one id in each cell", column=name)
        return None
    remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
    problems.add("E108", "error", f"no {name}", name, pd.isna(ids), remedy)
    return ids


def _labels(name: str, code: str, layout: Layout, problems: RowProblems) -> NDArray[np.object_]:
    """A column of labels; where a cell is no label, that is reported and there are none."""
    try:
        return as_ids(layout.frame[name])
    except ValueError as error:
        problems.note(code, "error", f"{name}: {error}", "give one label in each cell", column=name)
        return np.full(len(layout.frame), None, dtype=object)


def _weights(layout: Layout, problems: RowProblems) -> NDArray[np.float64]:
    if not layout.has("weight"):
        return np.ones(len(layout.frame))
    weight = pd.to_numeric(layout.frame["weight"], errors="coerce")
    weight = weight.to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~(np.isfinite(weight) & (weight > 0))
    remedy = "give a positive number, or leave the row out"
    problems.add("E106", "error", "the weight is no number above 0", "weight", wrong, remedy)
    return weight


def _first_shown(layout: Layout, problems: RowProblems) -> NDArray[np.int64]:
    """+1 where the row's first side was shown first, -1 where its second was, 0 where it is not known."""
    if not layout.has("shown_first"):
        return np.zeros(len(layout.frame), dtype=np.int64)
    labels = _labels("shown_first", "E109", layout, problems)
    codes, distinct = pd.factorize(labels)
    known = _FIRST_SHOWN[layout.kind]
    sides = [known.get(label.strip().casefold()) for label in distinct]
    unknown = [label for label, side in zip(distinct, sides, strict=True) if side is None]
    remedy = f"write {' or '.join(known)}, or leave the cell empty"
    problems.add("E109", "error", "an unknown side", "shown_first", np.isin(labels, unknown), remedy)
    return np.array([*(side or 0 for side in sides), 0], dtype=np.int64)[codes]


def _report_unread(layout: Layout, problems: RowProblems) -> None:
    unread = [name for name in _NOT_READ if name in layout.frame]
    if unread:
        what = f"columns that change what TRL would train on are not read: {', '.join(unread)}"
        problems.note("W107", "warning", what, "put what they say into the prompt", len(unread))
    images = [name for name in _IMAGES if name in layout.frame and layout.frame[name].notna().any()]
    if images:
        what = f"images are not read, only the texts beside them: {', '.join(images)}"
        remedy = "leave the column out where the texts can be judged without them; training refuses images"
        problems.note("W108", "warning", what, remedy, len(images))


def _report_duplicate_ids(layout: Layout, problems: RowProblems) -> None:
    ids = _ids("judgment_id", layout, problems)
    if ids is not None:
        twice = pd.Series(ids, dtype=object).duplicated(keep=False).to_numpy() & ~pd.isna(ids)
        what = "the judgment_id stands in more than one row"
        problems.add("E132", "error", what, "judgment_id", twice, "keep one row for each judgment")


def _unlike_first(group: NDArray[np.intp], value: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Rows whose value is not that of their group's first row; negative numbers are unknown and never differ."""
    usable = (group >= 0) & (value >= 0)
    first = np.full(group.max(initial=-1) + 2, -1)
    backwards = np.flatnonzero(usable)[::-1]
    first[group[backwards]] = value[backwards]
    return usable & (value != first[group])
