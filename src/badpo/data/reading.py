"""From a table to comparisons and votes: every check on rows in one pass, every row a vote or counted as left out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from badpo.data.privacy import EVERYONE, direct_identifiers, folded_id, is_pseudonym, pseudonyms
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

Text = str | list[dict[str, Any]]

CHOICES = {"ties": ("drop", "error"), "annotators_missing": ("error", "drop"), "repeated": ("all", "last")}
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")
ROWS_SHOWN = 5
_SIDES = {"a_b": ("response_a", "response_b"), "chosen_rejected": ("chosen", "rejected")}
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {"a_b": {"a": 1, "b": -1}, "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1}}
_NOT_READ = ("tools", "chat_template_kwargs")
_IMAGES = ("image", "images")
_MODELS = ("model_a", "model_b")
_MODEL_NAMES = re.compile(
    r"gpt|claude|gemini|llama|mistral|mixtral|qwen|deepseek|gemma|command-r", re.IGNORECASE
)
_NOTICES = {"tie": "N130", "no annotator": "N112", "repeated vote": "N133"}
_SEVERITIES: dict[str, Severity] = {"E": "error", "W": "warning", "N": "notice"}


def read_votes(
    source: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    winners: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] = (),
    **choices: str,
) -> dict[str, Any]:
    """What `badpo.data.judgments.Judgments` is made of, before attributes are measured; see `Judgments.read`.

    ``pairs`` are columns that declared attributes read. A `DataError` lists everything that is wrong with the table;
    problems of the columns come first and alone.
    """
    for key, known in CHOICES.items():
        if choices[key] not in known:
            hint = did_you_mean(str(choices[key]), known)
            raise ConfigError(f"{key} must be {' or '.join(known)}; got {choices[key]!r}.{hint}")
    for label, side in (winners or {}).items():
        if side not in _WINNERS:
            raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")
    table = read_table(source)
    layout = recognise(table.frame, table.name, columns)
    if not len(layout.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again", "error")])
    problems = RowProblems(table, layout)
    annotator, annotators = _annotators(layout, problems, choices["annotators_missing"])
    _report_unread(layout, problems)
    texts, parts = _texts(layout, problems)
    rows = pd.DataFrame(dict(zip(("prompt", "first", "second"), parts, strict=True)))
    ids = _grouped(rows, layout, problems)
    rows["annotator"] = annotator
    rows["sign"] = _signs(layout, winners or {}, choices["ties"], problems)
    rows["weight"] = _weights(layout, problems)
    remedy = f"write {' or '.join(_FIRST_SHOWN[layout.kind])}, or leave the cell empty"
    rows["shown"] = _understood("shown_first", "E109", _FIRST_SHOWN[layout.kind], {}, remedy, problems)
    carried = _carried(layout, keep, pairs, problems)
    problems.stop_at_errors()
    votes, dropped = _votes(rows, layout.has("annotator"), choices["repeated"], problems)
    comparisons = _comparisons(votes, texts, ids)
    _report_comparisons(votes, "comparison_id" in ids, problems)
    number, order = pd.factorize(votes["annotator"])
    shown = np.array([None, "a", "b"], dtype=object)[votes["shown"]]
    told = {
        "comparison": votes["number"],
        "sign": votes["sign"],
        "annotator": number,
        "weight": votes["weight"],
    }
    told |= {"row": votes.index, "shown_first": pd.Series(shown, dtype=object, index=votes.index)}
    read = pd.DataFrame(told).reset_index(drop=True)
    firsts = np.flatnonzero(~votes["number"].duplicated())
    turned = votes["turn"].to_numpy() < 0
    for name, (values, other) in carried.items():
        read[name] = np.where(turned, other[votes.index], values[votes.index])
        of_comparison = read[name].iloc[firsts].reset_index(drop=True)
        if of_comparison.iloc[votes["number"]].reset_index(drop=True).equals(read[name]):
            comparisons[name] = of_comparison
    return {
        "comparisons": comparisons,
        "votes": read,
        "annotators": annotators.iloc[order].reset_index(drop=True),
        "dropped": dropped,
        "findings": tuple(problems.found),
        "has_identities": layout.has("annotator"),
    }


class RowProblems:
    """Gathers problems with the rows they were found in."""

    def __init__(self, table: Table, layout: Layout):
        self.table = table
        self.layout = layout
        self.annotators = np.full(len(layout.frame), None, dtype=object)  # pseudonym of each row, once known
        self.found: list[Problem] = []

    def add(self, code: str, what: str, column: str | None, rows: NDArray[np.bool_], remedy: str) -> None:
        """Note a problem of the rows where ``rows`` is True, with their count; nothing when there is none."""
        index = np.flatnonzero(rows)
        if len(index):
            what = f"{what}: {len(index):,} of {len(rows):,} rows"
            self.note(code, what, remedy, len(index), column, index)

    def note(
        self,
        code: str,
        what: str,
        remedy: str,
        count: int = 1,
        column: str | None = None,
        index: Sequence[int] | NDArray[np.integer] = (),
    ) -> None:
        """Note a problem with a count of its own; ``index`` are the rows (0-based) to name, if any."""
        place = f', column "{self.layout.theirs.get(column, column)}"' if column else ""
        where = f"{self.table.name}{place}{self._rows(np.asarray(index, dtype=np.intp))}"
        self.found.append(Problem(code, what, where, remedy, _SEVERITIES[code[0]], count))

    def ids(self, name: str, code: str) -> NDArray[np.object_] | None:
        """A column of ids or labels; None where the table has none, and where one cannot be read, which is noted."""
        if not self.layout.has(name):
            return None
        try:
            return as_ids(self.layout.frame[name])
        except ValueError as error:
            self.note(
                code, f"{name}: {error}", "give one id or label in each cell", len(self.annotators), name
            )
            return None

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.found):
            raise DataError(sorted(self.found, key=lambda problem: problem.severity != "error"))

    def _rows(self, index: NDArray[np.intp]) -> str:
        if not len(index):
            return ""
        shown, lines = index[:ROWS_SHOWN], self.table.lines
        who = [f" [{name}]" if name is not None else "" for name in self.annotators[shown]]
        named = ", ".join(f"{i + 1:,}{name}" for i, name in zip(shown, who, strict=True))
        more = f" and {len(index) - len(shown):,} more" if len(index) > len(shown) else ""
        where = f", row{'s' * (len(index) > 1)} {named}{more}"
        # a header is a line, and cells may hold breaks
        if lines is None or (lines[shown] == shown + 1).all():
            return where
        told = ", ".join(f"{line:,}" for line in lines[shown])
        return f"{where} (line{'s' * (len(shown) > 1)} {told} of the file)"


# -- who voted -------------------------------------------------------------------------------------------------


def _annotators(layout: Layout, problems: RowProblems, missing: str) -> tuple[NDArray[np.intp], pd.DataFrame]:
    """Number of each row's annotator, -1 where there is none, and pseudonym and class of each; no raw id."""
    n = len(layout.frame)
    if not layout.has("annotator"):
        _report_no_column(layout, problems)
        everyone = {"pseudonym": [EVERYONE], "annotator_class": [None]}
        return np.zeros(n, dtype=np.intp), pd.DataFrame(everyone, dtype=object)
    raw, labels = problems.ids("annotator", "E112"), problems.ids("annotator_class", "E112")
    number, raw_ids = pd.factorize(np.full(n, None, dtype=object) if raw is None else raw)
    named = np.array(pseudonyms(list(raw_ids)), dtype=object)
    problems.annotators = np.array([*named, None], dtype=object)[number]
    if missing == "error" and raw is not None:
        remedy = "fill it in, or leave these rows out: annotators_missing='drop'"
        problems.add("E112", "no annotator", "annotator", number < 0, remedy)
    classes: dict[int, str] = {}
    if labels is not None:
        told = pd.Series(labels, index=number)[(number >= 0) & ~pd.isna(labels)]
        classes = told[~told.index.duplicated()].to_dict()
        first = np.array([classes.get(k) for k in number], dtype=object)
        remedy = "give each annotator one class, or leave the column out: columns={'annotator_class': None}"
        conflict = ~pd.isna(labels) & (number >= 0) & (labels != first)
        what = "an annotator has another annotator_class than before"
        problems.add("E115", what, "annotator_class", conflict, remedy)
    annotators = pd.DataFrame(
        {"pseudonym": named, "annotator_class": [classes.get(k) for k in range(len(named))]}, dtype=object
    )
    _report_ids(list(raw_ids), annotators, problems)
    return number, annotators


def _report_no_column(layout: Layout, problems: RowProblems) -> None:
    hint = annotator_hint([name for name in layout.frame.columns if name not in layout.theirs])
    unused = "; annotator_class is not used without it" if layout.has("annotator_class") else ""
    what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"{unused}'
    nothing = "nothing for a pooled bias; per-annotator bias needs ids: columns={'annotator': '...'}"
    problems.note("W110" if hint else "N110", what, f"map the column.{hint}" if hint else nothing)


def _report_ids(raw_ids: list[str], annotators: pd.DataFrame, problems: RowProblems) -> None:
    """What the raw ids look like."""
    if kinds := direct_identifiers(raw_ids):
        what = (
            f"annotator ids look like {' and '.join(kinds)}; they were replaced by pseudonyms while reading"
        )
        problems.note("W301", what, "share the table that badpo import writes, not this one")
    groups = annotators["pseudonym"].groupby([folded_id(raw_id) for raw_id in raw_ids], sort=False)
    alike = [" and ".join(group) for _, group in groups if len(group) > 1]
    if alike:
        what = f"{counted(len(alike), 'group')} of annotators whose ids differ only in case, spaces or leading zeros"
        remedy = f"if they are the same people, write their ids alike before reading: {'; '.join(alike[:ROWS_SHOWN])}"
        problems.note("W113", what, remedy, len(alike))
    named = [not is_pseudonym(raw_id) and _MODEL_NAMES.search(raw_id) is not None for raw_id in raw_ids]
    is_model = np.array(named, dtype=bool)
    people = annotators.loc[~is_model, "annotator_class"].unique().tolist()
    mixed = annotators["pseudonym"][is_model & annotators["annotator_class"].isin(people)]
    if len(mixed):
        what = f"{counted(len(mixed), 'annotator')} with a language model's name as id, beside others in one class"
        remedy = f"give them an annotator_class of their own: {', '.join(mixed[:ROWS_SHOWN])}"
        problems.note("W114", what, remedy, len(mixed))


# -- what was compared -----------------------------------------------------------------------------------------


def arrange(prompt: Text | None, first: Text, second: Text) -> tuple[Text, Text, Text]:
    """Prompt and two responses of one row, all text or all messages.

    An explicit prompt stays. Without one, or when the prompt is text and the responses are whole conversations, the
    prompt is what the two begin with, as TRL takes it. A text beside messages becomes a message.
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
    """
    low, high = 0, max(0, min(len(first), len(second)) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    differs = first[low : low + 1] != second[low : low + 1]
    gives_back = isinstance(first, str) and differs and low > 0 and first[low - 1] == " "
    return low - 1 if gives_back else low


def text_key(value: Any) -> str:
    """A text that identifies a text or a list of messages."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _digest(prefix: str, *values: Any) -> str:
    """An id made of texts: the same for the same texts on every machine."""
    joined = json.dumps([text_key(value) for value in values])
    return f"{prefix}-{hashlib.sha256(joined.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _texts(layout: Layout, problems: RowProblems) -> tuple[NDArray[np.object_], NDArray[np.intp]]:
    """The distinct texts, and those of each row by number: prompt, first and second, of shape (3, n_rows).

    First is response a or the chosen one. Rows at fault have -1.
    """
    sides, has_prompt = _SIDES[layout.kind], layout.has("prompt")
    names = ["prompt", *sides] if has_prompt else list(sides)
    n = len(layout.frame)
    read = read_texts(np.concatenate([layout.frame[name].to_numpy(dtype=object) for name in names]))
    for name, missing in zip(names, read.missing.reshape(-1, n), strict=True):
        problems.add("E134", f"no {name}", name, missing, "fill it in, or leave the row out")
    remedy = 'give text, or a list of messages with "role" and "content"'
    for j, name in enumerate(names):
        faults = {cell - j * n: why for cell, why in read.faults.items() if cell // n == j}
        _report_faults(f"{name} cannot be read, ", name, faults, remedy, problems)
    codes = read.codes.reshape(-1, n)
    usable = np.asarray((codes >= 0).all(axis=0))
    if has_prompt and all(isinstance(value, str) for value in read.values):
        values, parts = as_objects(read.values), np.where(usable, codes, -1)
    else:
        values, parts = _arranged(codes, read.values, usable, problems)
    blank = np.array([*map(_is_blank, values), False])
    no_prompt = blank[parts[0]]
    if has_prompt:
        problems.add("E134", "empty prompt", "prompt", no_prompt, "fill it in, or leave the row out")
    else:
        what = f"no prompt, and {sides[0]} and {sides[1]} share no beginning"
        problems.add("E134", what, None, no_prompt, 'map the prompt: columns={"prompt": "..."}')
    for name, side in zip(sides, parts[1:], strict=True):
        remedy = "check the export; kept, since saying nothing can be an answer"
        problems.add("W134", f"empty response ({name})", name, blank[side], remedy)
    # a row that is reported already does not also stand for other texts than its comparison
    parts[0, no_prompt] = -1
    return values, parts


def as_objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """A one-dimensional object array, also of lists of equal length."""
    return np.fromiter(values, dtype=object, count=len(values))


def _arranged(
    codes: NDArray[np.intp], values: Sequence[Text], usable: NDArray[np.bool_], problems: RowProblems
) -> tuple[NDArray[np.object_], NDArray[np.intp]]:
    """Each distinct row of texts and messages through `arrange`."""
    distinct, number = np.unique(codes[:, usable], axis=1, return_inverse=True)
    arranged: dict[str, Text] = {}
    places: dict[str, int] = {}
    parts = np.full((3, distinct.shape[1]), -1, dtype=np.intp)
    faults: dict[int, str] = {}
    for i, (*prompt, first, second) in enumerate(distinct.T.tolist()):
        try:
            texts = arrange(values[prompt[0]] if prompt else None, values[first], values[second])
        except ValueError as error:
            faults[i] = str(error)
            continue
        for side, text in enumerate(texts):
            # a text may look like messages written as JSON, hence the kind in the key
            key = f"{type(text).__name__} {text_key(text)}"
            parts[side, i] = places.setdefault(key, len(places))
            arranged[key] = text
    of_rows = np.full((3, len(usable)), -1, dtype=np.intp)
    of_rows[:, usable] = parts[:, number]
    at_fault = {
        row: faults[i] for row, i in zip(np.flatnonzero(usable).tolist(), number, strict=True) if i in faults
    }
    _report_faults("", None, at_fault, "give both responses in the same form", problems)
    is_text = np.array([*(isinstance(text, str) for text in arranged.values()), False])[of_rows[0]]
    if is_text.any() and (~is_text & (of_rows[0] >= 0)).any():
        what = "text in some rows and chat messages in others; text here"
        problems.add("E105", what, None, is_text, "give all rows in one form")
    return as_objects(list(arranged.values())), of_rows


def _report_faults(
    what: str, column: str | None, faults: Mapping[int, str], remedy: str, problems: RowProblems
) -> None:
    for reason in dict.fromkeys(faults.values()):
        rows = [row for row, why in faults.items() if why == reason]
        at = np.isin(np.arange(len(problems.annotators)), rows)
        problems.add("E105", f"{what}{reason}", column, at, remedy)


def _is_blank(value: Text) -> bool:
    contents = [value] if isinstance(value, str) else [message["content"] for message in value]
    return not any(content.strip() for content in contents)


def _grouped(rows: pd.DataFrame, layout: Layout, problems: RowProblems) -> dict[str, NDArray[np.object_]]:
    """Give ``rows`` their ``pair`` of texts and their ``comparison``; ids that the table has, by their column."""
    sides = rows[["first", "second"]].to_numpy()
    texts = pd.DataFrame({"prompt": rows["prompt"], "low": sides.min(axis=1), "high": sides.max(axis=1)})
    pair = texts.groupby(["prompt", "low", "high"], sort=False).ngroup()
    rows["pair"] = pair.where((rows[["prompt", "first", "second"]] >= 0).all(axis=1), -1)
    ids = {}
    for name in ("judgment_id", "comparison_id", "prompt_id"):
        found = problems.ids(name, "E108")
        if found is not None:
            ids[name] = found
            remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
            problems.add("E108", f"no {name}", name, pd.isna(found), remedy)
    twice = pd.Series(ids.get("judgment_id", []), dtype=object)
    twice = (twice.duplicated(keep=False) & twice.notna()).to_numpy()
    what = "the judgment_id stands in more than one row"
    problems.add("E132", what, "judgment_id", twice, "keep one row for each judgment")
    rows["comparison"] = pd.factorize(ids["comparison_id"])[0] if "comparison_id" in ids else rows["pair"]
    what = "the comparison_id stands for other texts in an earlier row"
    remedy = "give each pair of responses an id of its own, or leave ids out: columns={'comparison_id': None}"
    problems.add("E116", what, "comparison_id", _unlike_first(rows["comparison"], rows["pair"]), remedy)
    if "prompt_id" in ids:
        changed = _unlike_first(rows["comparison"], pd.Series(pd.factorize(ids["prompt_id"])[0]))
        what = "another prompt_id than in the comparison's first row"
        problems.add("W117", what, "prompt_id", changed, "write one; the first is used")
    return ids


def _unlike_first(group: pd.Series, value: pd.Series) -> NDArray[np.bool_]:
    """Rows whose value is not that of their group's first row; negative numbers are unknown and never differ."""
    usable = (group >= 0) & (value >= 0)
    first = value[usable].groupby(group[usable]).transform("first")
    return (usable & (value != first.reindex(value.index))).to_numpy()


# -- what was voted --------------------------------------------------------------------------------------------


def _understood(
    name: str,
    code: str,
    known: Mapping[str, int],
    meanings: Mapping[str, str],
    remedy: str,
    problems: RowProblems,
    is_required: bool = False,
) -> NDArray[np.int64]:
    """What the labels of a column stand for; 0 where there is none, or one that is not known, which is reported."""
    labels = problems.ids(name, code)
    if labels is None:
        return np.zeros(len(problems.annotators), dtype=np.int64)
    if is_required:
        problems.add(code, f"no {name}", name, pd.isna(labels), remedy)
    distinct = [label for label in dict.fromkeys(labels) if label is not None]
    found = {label: known.get(meanings.get(label, label.strip().casefold())) for label in distinct}
    unknown = [label for label in distinct if found[label] is None]
    named = ", ".join(f'"{label}"' for label in unknown[:ROWS_SHOWN])
    remedy = remedy.replace("LABEL", unknown[0]) if unknown else remedy
    problems.add(code, f"unknown {name} {named}", name, np.isin(labels, unknown), remedy)
    return np.array([found.get(label) or 0 for label in labels], dtype=np.int64)


def _signs(layout: Layout, winners: Mapping[str, str], ties: str, problems: RowProblems) -> NDArray[np.int64]:
    """+1 where the first side won, -1 where the second did, 0 for a tie (and for rows that are reported)."""
    if layout.kind == "chosen_rejected":
        return np.ones(len(layout.frame), dtype=np.int64)
    meanings = {str(label): side for label, side in winners.items()}
    remedy = 'write a, b or tie, or say what the labels mean: winners={"LABEL": "a", ...}'
    n_found = len(problems.found)
    signs = _understood("winner", "E107", _WINNERS, meanings, remedy, problems, is_required=True)
    if ties == "error" and len(problems.found) == n_found:
        problems.add("E130", "ties", "winner", signs == 0, "leave them out: ties='drop'")
    return signs


def _weights(layout: Layout, problems: RowProblems) -> NDArray[np.float64]:
    if not layout.has("weight"):
        return np.ones(len(layout.frame))
    weight = _numbers(layout.frame["weight"])
    wrong = ~(np.isfinite(weight) & (weight > 0))
    remedy = "give a positive number, or leave the row out"
    problems.add("E106", "the weight is no number above 0", "weight", wrong, remedy)
    return weight


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _report_unread(layout: Layout, problems: RowProblems) -> None:
    unread = [name for name in _NOT_READ if name in layout.frame]
    images = [name for name in _IMAGES if name in layout.frame and layout.frame[name].notna().any()]
    if unread:
        what = f"columns that change what TRL would train on are not read: {', '.join(unread)}"
        problems.note("W107", what, "put what they say into the prompt", len(unread))
    if images:
        what = f"images are not read, only the texts beside them: {', '.join(images)}"
        remedy = "leave the column out where the texts can be judged without them; training refuses images"
        problems.note("W108", what, remedy, len(images))


# -- what goes along -------------------------------------------------------------------------------------------


def _carried(
    layout: Layout, keep: Sequence[str], pairs: Sequence[tuple[str, str]], problems: RowProblems
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Columns that go along with the votes, and the column that each is exchanged with where a row is turned.

    Number columns that name both sides (``score_a`` and ``score_b``) always do, and so do ``model_a`` and ``model_b``
    where every row has them: they name who wrote the responses. Others stay behind unless they are in ``keep``, since
    a free column may say who an annotator is.
    """
    frame = layout.frame
    free = [name for name in frame.columns if name not in KNOWN and name not in VOTE_COLUMNS]
    columns: dict[str, NDArray[Any]] = {}
    partner: dict[str, str] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        if name in free:
            columns[name] = _numbers(frame[name])
            what = f'attribute column "{name}" holds no number'
            problems.add("E128", what, name, ~np.isfinite(columns[name]), "give a number")
        else:
            what = f'attribute column "{name}" is not a free column of the table.{did_you_mean(name, free)}'
            problems.note("E128", what, f"free columns: {', '.join(free)}")
    for name in keep:
        fault = "is not a free column of the table" if name not in free else _fault(frame[name])
        if fault:
            what = f'keep: "{name}" {fault}.{did_you_mean(name, free)}'
            problems.note("E103", what, f"free columns: {', '.join(free)}")
        else:
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    if set(_MODELS) <= set(free) and frame[list(_MODELS)].notna().all(axis=None):
        for name in _MODELS if not any(_fault(frame[name]) for name in _MODELS) else ():
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    for pair in side_pairs(free).items():
        numbers = {name: _numbers(frame[name]) for name in pair}
        there = {name: frame[name].notna().to_numpy() for name in pair}
        if all(there[name].any() and not np.isnan(numbers[name][there[name]]).any() for name in pair):
            columns = numbers | columns
    for first, second in (*pairs, *side_pairs(free).items()):
        if first in columns and second in columns:
            partner.setdefault(first, second)
            partner.setdefault(second, first)
    return {name: (column, columns[partner.get(name, name)]) for name, column in columns.items()}


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


# -- votes and comparisons -------------------------------------------------------------------------------------


def _votes(
    rows: pd.DataFrame, has_identities: bool, repeated: str, problems: RowProblems
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that are votes, in the orientation of their comparisons, and a count of the others."""
    reason = pd.Series(None, index=rows.index, dtype=object)
    reason[rows["sign"] == 0] = "tie"
    reason[rows["annotator"] < 0] = "no annotator"
    votes = _oriented(rows[reason.isna()])
    if has_identities:
        reason[_repeated(votes, repeated, problems)] = "repeated vote"
        votes = _oriented(rows[reason.isna()])
    nobody = "unknown" if has_identities else EVERYONE
    left_out = pd.DataFrame({"reason": reason, "annotator": problems.annotators})[reason.notna()]
    counts = left_out.fillna({"annotator": nobody}).groupby(["reason", "annotator"], sort=False).size()
    dropped = counts.reset_index(name="n")
    remedy = "nothing; judgments.dropped counts them by annotator"
    for why, n in dropped.groupby("reason", sort=False)["n"].sum().items():
        what = f"{n:,} of {counted(len(rows), 'row')} left out: {why} ({n / len(rows):.1%})"
        problems.note(_NOTICES[str(why)], what, remedy, int(n))
    if n := sum(entry["n"] for entry in problems.table.dropped):
        what = f"{counted(n, 'row')} were left out at import ({n / (len(rows) + n):.1%})"
        problems.note("N119", what, remedy, n)
    if not len(votes):
        what = f"no vote is left of {counted(len(rows), 'row')}"
        problems.note("E104", what, "give rows with a winner and an annotator", len(rows))
        problems.stop_at_errors()
    earlier = pd.DataFrame(list(problems.table.dropped), columns=dropped.columns)
    dropped = pd.concat([part for part in (earlier, dropped) if len(part)] or [dropped], ignore_index=True)
    return votes, dropped.astype({"reason": object, "annotator": object, "n": np.int64})


def _oriented(rows: pd.DataFrame) -> pd.DataFrame:
    """Votes with the ``number`` of their comparison, turned to the way round of its first row (``turn`` -1)."""
    number, _ = pd.factorize(rows["comparison"])
    first = rows["first"].to_numpy()[~rows["comparison"].duplicated().to_numpy()]
    turn = np.where(rows["first"].to_numpy() == first[number], 1, -1)
    return rows.assign(number=number, turn=turn, sign=rows["sign"] * turn, shown=rows["shown"] * turn)


def _repeated(votes: pd.DataFrame, repeated: str, problems: RowProblems) -> pd.Index:
    """Rows to leave out because the annotator votes on the comparison again; repetitions are reported.

    Seeing the other side first is no repetition: both votes are kept.
    """
    same = ["annotator", "number", "shown"]
    again = votes.duplicated(same)
    if again.any():
        then = "all are kept" if repeated == "all" else "only the last is kept"
        signs = votes.groupby(same)["sign"].agg(["size", "nunique"])
        signs = signs[signs["size"] > 1]
        pairs = f"{counted(len(signs), 'such pair')} of annotator and comparison"
        what = (
            f"{counted(int(again.sum()), 'judgment')} by an annotator who had judged the comparison before; "
            f"{(signs['nunique'] > 1).mean():.0%} of {pairs} disagree with themselves; {then}"
        )
        remedy = (
            "repeated='last' keeps the last vote only; of votes that saw the two sides in either order keep all, and "
            "say in shown_first which was first"
        )
        problems.note("W133", what, remedy, int(again.sum()), index=votes.index[again])
    return votes.index[votes.duplicated(same, keep="last") & (repeated == "last")]


def _comparisons(
    votes: pd.DataFrame, texts: NDArray[np.object_], ids: Mapping[str, NDArray[np.object_]]
) -> pd.DataFrame:
    firsts = votes[~votes["number"].duplicated()]
    prompt, a, b = (texts[firsts[side]] for side in ("prompt", "first", "second"))
    if "comparison_id" in ids:
        comparison_id = ids["comparison_id"][firsts.index]
    else:
        sides = (sorted(pair, key=text_key) for pair in zip(a, b, strict=True))
        comparison_id = [_digest("c", p, *pair) for p, pair in zip(prompt, sides, strict=True)]
    if "prompt_id" in ids:
        prompt_id = ids["prompt_id"][firsts.index]
    else:
        digests = {code: _digest("p", texts[code]) for code in firsts["prompt"].unique()}
        prompt_id = [digests[code] for code in firsts["prompt"]]
    columns = {"comparison_id": comparison_id, "prompt_id": prompt_id}
    columns |= {"prompt": prompt, "response_a": a, "response_b": b}
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _report_comparisons(votes: pd.DataFrame, has_ids: bool, problems: RowProblems) -> None:
    firsts = votes[~votes["number"].duplicated()]
    if not has_ids and len(firsts) < len(votes):
        what = (
            f"{counted(len(votes), 'judgment')} on {counted(len(firsts), 'comparison')}: rows with the same prompt "
            "and the same two texts, in either order, are votes on one comparison"
        )
        remedy = "nothing; a comparison_id column would decide instead"
        problems.note("N138", what, remedy, len(votes) - len(firsts))
    turned = votes.index[votes["turn"] < 0]
    if len(turned):
        what = f"{counted(len(turned), 'judgment')} had the two responses the other way round and were turned"
        remedy = "nothing; which side was shown first was turned with them"
        problems.note("N118", what, remedy, len(turned), index=turned)
    if n_repeated := len(firsts) - firsts["pair"].nunique():
        what = f"{counted(n_repeated, 'comparison')} with the prompt and texts of another id; they stay apart"
        remedy = (
            "leave ids out to merge them: columns={'comparison_id': None}; where the very same votes stand twice, also "
            "repeated='last'"
        )
        problems.note("N139", what, remedy, n_repeated, "comparison_id")
    same = firsts[firsts["first"] == firsts["second"]]
    if len(same):
        n_votes = int(votes["number"].isin(same["number"]).sum())
        what = (
            f"{counted(len(same), 'comparison')} ({counted(n_votes, 'judgment')}) of two identical responses"
        )
        remedy = "check the export: was a difference lost? They are kept"
        problems.note("W131", f"{what}: no signal", remedy, len(same), index=same.index)
