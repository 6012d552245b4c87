"""From a table to comparisons and votes: every check on rows in one pass, every row a vote or counted as left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from badpo.data.privacy import EVERYONE, direct_identifiers, folded_id, pseudonyms
from badpo.data.problems import ConfigError, DataError, Problem, counted, did_you_mean, worst_first
from badpo.data.tables import (
    KNOWN,
    Layout,
    Objects,
    Table,
    TextPool,
    annotator_hint,
    as_ids,
    as_objects,
    read_table,
    recognise,
    side_pairs,
    text_key,
)
from badpo.theory import Floats, Ints

Text = str | list[dict[str, Any]]

CHOICES = {
    "ties": ("drop", "error"),
    "annotators_missing": ("error", "drop"),
    "repeated": ("all", "last"),
}
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")
ROWS_SHOWN = 5
_SIDES = {"a_b": ("response_a", "response_b"), "chosen_rejected": ("chosen", "rejected")}
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {
    "a_b": {"a": 1, "b": -1},
    "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1},
}
_NOT_READ = ("tools", "chat_template_kwargs")
_IMAGES = ("image", "images")
_MODELS = ("model_a", "model_b")
_NOTICES = {"tie": "N130", "no annotator": "N112", "repeated vote": "N133"}


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
            raise ConfigError(f"{key} must be {' or '.join(known)}; got {choices[key]!r}")
    for label, side in (winners or {}).items():
        if side not in _WINNERS:
            raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")
    table = read_table(source)
    layout = recognise(table.frame, table.name, columns)
    if not len(layout.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again")])
    findings = Findings(table, layout)
    rows, texts, annotators = _rows(layout, winners or {}, choices, findings)
    carried = _carried(layout.frame, keep, pairs, findings)
    findings.stop_at_errors()
    votes, dropped = _votes(rows, table, choices["repeated"], findings)
    firsts = votes[~votes["number"].duplicated()]
    comparisons = _comparisons(votes, firsts, texts, findings)
    annotator, order = pd.factorize(votes["annotator"])
    shown = pd.Series(as_objects([None, "a", "b"])[votes["shown"]], votes.index, dtype=object)
    read = votes.assign(
        comparison=votes["number"], annotator=annotator, row=votes.index, shown_first=shown
    )[[*VOTE_COLUMNS]]
    for name, (values, other) in carried.items():
        read[name] = np.where(votes["turn"] < 0, other[votes.index], values[votes.index])
        of_comparison = read.loc[firsts.index, name].reset_index(drop=True)
        if of_comparison[votes["number"]].set_axis(read.index).equals(read[name]):
            comparisons[name] = of_comparison
    return {
        "comparisons": comparisons,
        "votes": read.reset_index(drop=True),
        "annotators": annotators.iloc[order].reset_index(drop=True),
        "dropped": dropped,
        "findings": tuple(findings.found),
        "has_identities": "annotator" in layout.theirs,
    }


class Findings:
    """Gathers problems, with the rows that have them."""

    def __init__(self, table: Table, layout: Layout):
        self.table = table
        self.layout = layout
        self.annotators = np.full(
            len(layout.frame), None, dtype=object
        )  # pseudonym of each row, once known
        self.found: list[Problem] = []

    def rows(self, code: str, what: str, column: str | None, rows: Any, remedy: str) -> None:
        """Note a problem of the rows where ``rows`` is True, with their count; nothing when there is none."""
        index = np.flatnonzero(rows)
        if len(index):
            self.note(
                code, f"{what}: {len(index):,} of {len(rows):,} rows", remedy, len(index), column, index
            )

    def note(
        self,
        code: str,
        what: str,
        remedy: str,
        count: int = 1,
        column: str | None = None,
        rows: Any = (),
    ) -> None:
        """Note a problem with a count of its own; ``rows`` (0-based) are named with lines and pseudonyms."""
        where, lines = self.table.name, self.table.lines
        if column:
            where += f', column "{self.layout.theirs.get(column, column)}"'
        if n := len(rows):
            shown = np.asarray(rows[:ROWS_SHOWN])
            who = [f" [{name}]" if name is not None else "" for name in self.annotators[shown]]
            named = ", ".join(f"{row + 1:,}{name}" for row, name in zip(shown, who, strict=True))
            more = f" and {n - ROWS_SHOWN:,} more" if n > ROWS_SHOWN else ""
            where += f", row{'s' * (n > 1)} {named}{more}"
            # a header is a line, and cells may hold breaks
            if lines is not None and (lines[shown] != shown + 1).any():
                told = ", ".join(f"{line:,}" for line in lines[shown])
                where += f" (line{'s' * (len(shown) > 1)} {told} of the file)"
        self.found.append(Problem(code, what, where, remedy, count))

    def ids(self, name: str, code: str, remedy: str | None = None) -> Objects | None:
        """A column of ids or labels; None where the table has none, and where one cannot be read, which is noted.

        With a remedy, rows without an id are noted too.
        """
        if name not in self.layout.theirs:
            return None
        try:
            ids = as_ids(self.layout.frame[name])
        except ValueError as error:
            remedy = "give one id or label in each cell"
            self.note(code, f"{name}: {error}", remedy, len(self.annotators), name)
            return None
        if remedy:
            self.rows(code, f"no {name}", name, pd.isna(ids), remedy)
        return ids

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.found):
            raise DataError(worst_first(self.found))


def _rows(
    layout: Layout, winners: Mapping[str, str], choices: Mapping[str, str], findings: Findings
) -> tuple[pd.DataFrame, Objects, pd.DataFrame]:
    """What each row says, in numbers, and ids that the table has; the distinct texts, and the annotators."""
    frame = layout.frame
    number, annotators = _annotators(frame, findings, choices["annotators_missing"])
    if unread := [name for name in _NOT_READ if name in frame]:
        what = f"columns that change what TRL would train on are not read: {', '.join(unread)}"
        findings.note("W107", what, "put what they say into the prompt", len(unread))
    if images := [name for name in _IMAGES if name in frame and frame[name].notna().any()]:
        what = f"images are not read, only the texts beside them: {', '.join(images)}"
        remedy = (
            "leave the column out where the texts can be judged without them; training refuses images"
        )
        findings.note("W108", what, remedy, len(images))
    texts, (prompt, first, second) = _texts(layout, findings)
    rows = pd.DataFrame({"annotator": number, "prompt": prompt, "first": first, "second": second})
    _compare(rows, findings)
    rows["sign"], rows["weight"] = 1, 1.0
    if layout.kind == "a_b":
        remedy = 'write a, b or tie, or say what the labels mean: winners={"LABEL": "a", ...}'
        known = _WINNERS | {str(label): _WINNERS[side] for label, side in winners.items()}
        sign = _meant("winner", "E107", known, remedy, findings)
        if choices["ties"] == "error":
            findings.rows("E130", "ties", "winner", sign == 0, "leave them out: ties='drop'")
        rows["sign"] = np.nan_to_num(sign).astype(np.int64)
    if "weight" in frame:
        rows["weight"] = weight = _numbers(frame["weight"])
        wrong = ~(np.isfinite(weight) & (weight > 0))
        remedy = "give a positive number, or leave the row out"
        findings.rows("E106", "the weight is no number above 0", "weight", wrong, remedy)
    known = _FIRST_SHOWN[layout.kind]
    remedy = f"write {' or '.join(known)}, or leave the cell empty"
    shown = _meant("shown_first", "E109", known, remedy, findings)
    rows["shown"] = np.nan_to_num(shown).astype(np.int64)
    return rows, texts, annotators


def _numbers(column: pd.Series) -> Floats:
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _meant(name: str, code: str, known: Mapping[str, int], remedy: str, findings: Findings) -> Floats:
    """What the labels of a column stand for; NaN where there is none, or one that is not known, which is reported."""
    labels = findings.ids(name, code, remedy if name == "winner" else None)
    if labels is None:
        return np.full(len(findings.annotators), np.nan)
    number, distinct = pd.factorize(labels)
    found = [known.get(label, known.get(label.strip().casefold())) for label in distinct]
    unknown = [label for label, value in zip(distinct, found, strict=True) if value is None]
    if unknown:
        named = ", ".join(f'"{label}"' for label in unknown[:ROWS_SHOWN])
        remedy = remedy.replace("LABEL", unknown[0])
        findings.rows(code, f"unknown {name} {named}", name, np.isin(labels, unknown), remedy)
    return np.array([*found, None], dtype=np.float64)[number]


# -- who voted -------------------------------------------------------------------------------------------------


def _annotators(frame: pd.DataFrame, findings: Findings, missing: str) -> tuple[Ints, pd.DataFrame]:
    """Number of each row's annotator, -1 where there is none, and pseudonym and class of each; no raw id."""
    if "annotator" not in frame:
        hint = annotator_hint(name for name in frame.columns if name not in KNOWN)
        what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"'
        remedy = (
            f"map the column.{hint}"
            if hint
            else "nothing for a pooled bias; per-annotator bias needs ids"
        )
        findings.note("W110" if hint else "N110", what, remedy)
        everyone = {"pseudonym": [EVERYONE], "annotator_class": [None]}
        return np.zeros(len(frame), dtype=np.intp), pd.DataFrame(everyone, dtype=object)
    raw = findings.ids("annotator", "E112")
    number, raw_ids = pd.factorize(findings.annotators if raw is None else raw)
    named = pseudonyms(list(raw_ids))
    findings.annotators = as_objects([*named, None])[number]
    if missing == "error" and raw is not None:
        remedy = "fill it in, or leave these rows out: annotators_missing='drop'"
        findings.rows("E112", "no annotator", "annotator", number < 0, remedy)
    annotators = pd.DataFrame({"pseudonym": named, "annotator_class": None}, dtype=object)
    labels = findings.ids("annotator_class", "E112")
    if labels is not None:
        label = pd.Series(labels, dtype=object)
        first = label.groupby(number).first().reindex(range(len(named)))
        annotators["annotator_class"] = first.where(first.notna(), None)
        conflict = label.notna() & (number >= 0) & (label != first.reindex(number).to_numpy())
        what = "an annotator has another annotator_class than before"
        remedy = (
            "give each annotator one class, or leave the column out: columns={'annotator_class': None}"
        )
        findings.rows("E115", what, "annotator_class", conflict, remedy)
    _report_ids(list(raw_ids), annotators, findings)
    return number, annotators


def _report_ids(raw_ids: list[str], annotators: pd.DataFrame, findings: Findings) -> None:
    """What the raw ids look like."""
    if kinds := direct_identifiers(raw_ids):
        what = f"annotator ids look like {' and '.join(kinds)}; they were replaced by pseudonyms while reading"
        findings.note("W301", what, "share the table that badpo import writes, not this one")
    groups = annotators["pseudonym"].groupby([*map(folded_id, raw_ids)], sort=False)
    alike = [" and ".join(group) for _, group in groups if len(group) > 1]
    if alike:
        what = f"{counted(len(alike), 'group')} of annotators whose ids differ only in case, spaces or leading zeros"
        remedy = f"if they are the same people, write their ids alike before reading: {'; '.join(alike[:ROWS_SHOWN])}"
        findings.note("W113", what, remedy, len(alike))


# -- what was compared -----------------------------------------------------------------------------------------


def arrange(prompt: Text | None, first: Text, second: Text) -> tuple[Text, Text, Text]:
    """Prompt and two responses of one row, all text or all messages; the responses are of one kind.

    An explicit prompt stays. Without one, or when the prompt is text and the responses are whole conversations, the
    prompt is what the two begin with, as TRL takes it. A text beside messages becomes a message.
    """
    chat = not isinstance(first, str)
    if prompt is None or (chat and isinstance(prompt, str)):
        n_shared = shared_beginning(first, second)
        if n_shared or prompt is None:
            return first[:n_shared], first[n_shared:], second[n_shared:]
        return [{"role": "user", "content": prompt}], first, second
    if isinstance(prompt, list) and not chat:
        return (
            prompt,
            [{"role": "assistant", "content": first}],
            [{"role": "assistant", "content": second}],
        )
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


def _texts(layout: Layout, findings: Findings) -> tuple[Objects, Ints]:
    """The distinct texts, and those of each row by number: prompt, first and second, of shape (3, n_rows).

    First is response a or the chosen one. Rows at fault have a number below 0.
    """
    sides, has_prompt = _SIDES[layout.kind], "prompt" in layout.theirs
    names, pool = [*["prompt"] * has_prompt, *sides], TextPool()
    codes = np.stack([pool.numbers(layout.frame[name].to_numpy(dtype=object)) for name in names])
    for name, column in zip(names, codes, strict=True):
        findings.rows("E134", f"no {name}", name, column == -1, "fill it in, or leave the row out")
    remedy = 'give text, or a list of messages with "role" and "content"'
    for name, column in zip(names, codes, strict=True):
        for why, i in pool.faults.items():
            findings.rows("E105", f"{name} cannot be read, {why}", name, column == -2 - i, remedy)
    codes[:, (codes < 0).any(axis=0)] = -1
    is_text = np.array([*(isinstance(value, str) for value in pool.values), False])
    mixed = is_text[codes[-2]] != is_text[codes[-1]]
    what = "one response is text and the other a list of messages"
    findings.rows("E105", what, None, mixed, "give both responses in the same form")
    codes[:, mixed] = -1
    if not has_prompt or not is_text[:-1].all():
        pool, codes = _arranged(pool, codes)
        is_text = np.array([*(isinstance(value, str) for value in pool.values), False])[codes[0]]
        if is_text.any() and (~is_text & (codes[0] >= 0)).any():
            what = "text in some rows and chat messages in others; text here"
            findings.rows("E105", what, None, is_text, "give all rows in one form")
    blank = np.array([*map(_is_blank, pool.values), False])[codes]
    if has_prompt:
        findings.rows("E134", "empty prompt", "prompt", blank[0], "fill it in, or leave the row out")
    else:
        what = f"no prompt, and {sides[0]} and {sides[1]} share no beginning"
        findings.rows("E134", what, None, blank[0], 'map the prompt: columns={"prompt": "..."}')
    for name, is_blank in zip(sides, blank[1:], strict=True):
        remedy = "check the export; kept, since saying nothing can be an answer"
        findings.rows("W134", f"empty response ({name})", name, is_blank, remedy)
    # a row that is reported already does not also stand for other texts than its comparison
    codes[0, blank[0]] = -1
    return as_objects(pool.values), codes


def _arranged(pool: TextPool, codes: Ints) -> tuple[TextPool, Ints]:
    """Each distinct row of texts and messages through `arrange`."""
    distinct, number = np.unique(codes, axis=1, return_inverse=True)
    arranged, parts = TextPool(), np.full((3, distinct.shape[1]), -1, dtype=np.intp)
    for i, row in enumerate(distinct.T.tolist()):
        if row[-1] >= 0:
            *prompt, first, second = (pool.values[code] for code in row)
            parts[:, i] = arranged.numbers(arrange(prompt[0] if prompt else None, first, second))
    return arranged, parts[:, number]


def _is_blank(value: Text) -> bool:
    contents = [value] if isinstance(value, str) else [message["content"] for message in value]
    return not any(content.strip() for content in contents)


def _compare(rows: pd.DataFrame, findings: Findings) -> None:
    """Give ``rows`` their ``pair`` of texts, their ``comparison``, and the ids that the table has."""
    low, high = rows[["first", "second"]].min(axis=1), rows[["first", "second"]].max(axis=1)
    pair = rows.groupby([rows["prompt"], low, high], sort=False).ngroup()
    rows["pair"] = rows["comparison"] = pair.where((rows["prompt"] >= 0) & (low >= 0), -1)
    for name in ("judgment_id", "comparison_id", "prompt_id"):
        remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
        found = findings.ids(name, "E108", remedy)
        if found is not None:
            rows[name] = pd.Series(found, dtype=object)
    if "judgment_id" in rows:
        twice = rows["judgment_id"].notna() & rows["judgment_id"].duplicated(keep=False)
        what, remedy = "the judgment_id stands in more than one row", "keep one row for each judgment"
        findings.rows("E132", what, "judgment_id", twice, remedy)
    if "comparison_id" in rows:
        rows["comparison"] = pd.factorize(rows["comparison_id"])[0]
        what = "the comparison_id stands for other texts in an earlier row"
        remedy = "give each pair of responses an id of its own, or leave ids out: columns={'comparison_id': None}"
        findings.rows("E116", what, "comparison_id", _unlike_first(rows, rows["pair"]), remedy)
    if "prompt_id" in rows:
        changed = _unlike_first(rows, pd.Series(pd.factorize(rows["prompt_id"])[0]))
        what = "another prompt_id than in the comparison's first row"
        findings.rows("W117", what, "prompt_id", changed, "write one; the first is used")


def _unlike_first(rows: pd.DataFrame, value: pd.Series) -> pd.Series:
    """Rows whose value is not that of their comparison's first row; negative numbers are unknown and never differ."""
    usable = (rows["comparison"] >= 0) & (value >= 0)
    first = value.where(usable).groupby(rows["comparison"]).transform("first")
    return usable & (value != first)


# -- what goes along -------------------------------------------------------------------------------------------


def _carried(
    frame: pd.DataFrame, keep: Sequence[str], pairs: Sequence[tuple[str, str]], findings: Findings
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Columns that go along with the votes, and the column that each is exchanged with where a row is turned.

    Number columns that name both sides (``score_a`` and ``score_b``) always do, as numbers unless one is in ``keep``;
    and so do ``model_a`` and ``model_b``
    where every row has them: they name who wrote the responses. Others stay behind unless they are in ``keep``, since
    a free column may say who an annotator is.
    """
    free = [name for name in frame.columns if name not in KNOWN and name not in VOTE_COLUMNS]
    sides, remedy = side_pairs(free), f"free columns: {', '.join(free)}"
    named = dict.fromkeys(name for pair in (*pairs, *sides.items()) for name in pair)
    numbers = {name: _numbers(frame[name]) for name in named if name in free}
    # what an attribute reads is a number all the same
    kept = {*keep}.difference(*pairs)
    columns: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        if name in free:
            what = f'attribute column "{name}" holds no number'
            findings.rows("E128", what, name, ~np.isfinite(numbers[name]), "give a number")
            columns[name] = numbers[name]
        else:
            what = (
                f'attribute column "{name}" is not a free column of the table.{did_you_mean(name, free)}'
            )
            findings.note("E128", what, remedy)
    for pair in sides.items():
        there = {name: numbers[name][frame[name].notna()] for name in pair}
        if all(len(values) and not np.isnan(values).any() for values in there.values()):
            as_written = not kept.isdisjoint(pair)
            columns |= {
                name: frame[name].to_numpy(dtype=object) if as_written else numbers[name]
                for name in pair
            }
    faults = {name: _fault(frame[name]) for name in free if name in (*keep, *_MODELS)}
    for name in keep:
        if fault := faults.get(name, "is not a free column of the table"):
            findings.note("E103", f'keep: "{name}" {fault}.{did_you_mean(name, free)}', remedy)
    models = [name for name in _MODELS if faults.get(name) == "" and frame[name].notna().all()]
    for name in (*keep, *(models if len(models) == 2 else ())):
        if name in free:
            columns.setdefault(name, frame[name].to_numpy(dtype=object))
    partner: dict[str, str] = {}
    for first, second in (*pairs, *sides.items()):
        if first in columns and second in columns:
            partner.setdefault(first, second)
            partner.setdefault(second, first)
    return {name: (column, columns[partner.get(name, name)]) for name, column in columns.items()}


def _fault(column: pd.Series) -> str:
    """Why a column cannot go along, in words; empty where it can."""
    try:
        column.nunique()
        pa.array(column, from_pandas=True)
    except (TypeError, pa.ArrowException, OverflowError, UnicodeError):
        return "holds values of several kinds, or it holds lists or objects"
    return ""


# -- votes and comparisons -------------------------------------------------------------------------------------


def _votes(
    rows: pd.DataFrame, table: Table, repeated: str, findings: Findings
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that are votes, turned the way round of their comparison's first, and a count of the others."""
    has_identities = "annotator" in findings.layout.theirs
    reason = pd.Series(None, index=rows.index, dtype=object)
    reason[rows["sign"] == 0] = "tie"
    reason[rows["annotator"] < 0] = "no annotator"
    if has_identities:
        reason[_repeated(rows[reason.isna()], repeated, findings)] = "repeated vote"
    n, nobody = len(rows), "unknown" if has_identities else EVERYONE
    left_out = pd.DataFrame({"reason": reason, "annotator": findings.annotators})[reason.notna()]
    counts = left_out.fillna({"annotator": nobody}).value_counts(["reason", "annotator"], sort=False)
    for why, n_left in left_out["reason"].value_counts(sort=False).items():
        what = f"{n_left:,} of {counted(n, 'row')} left out: {why} ({n_left / n:.1%})"
        remedy = "nothing; judgments.dropped counts them by annotator"
        findings.note(_NOTICES[str(why)], what, remedy, int(n_left))
    if n_before := sum(entry["n"] for entry in table.dropped):
        what = f"{counted(n_before, 'row')} were left out at import ({n_before / (n + n_before):.1%})"
        findings.note("N119", what, "nothing; judgments.dropped counts them by annotator", n_before)
    votes = rows[reason.isna()]
    if not len(votes):
        what = f"no vote is left of {counted(n, 'row')}"
        findings.note("E104", what, "give rows with a winner and an annotator", n)
        findings.stop_at_errors()
    number, _ = pd.factorize(votes["comparison"])
    first = votes["first"].to_numpy()[~votes["comparison"].duplicated()]
    turn = np.where(votes["first"] == first[number], 1, -1)
    votes = votes.assign(
        number=number, turn=turn, sign=votes["sign"] * turn, shown=votes["shown"] * turn
    )
    entries = [*table.dropped, *counts.reset_index(name="n").to_dict("records")]
    dropped = pd.DataFrame(entries, columns=["reason", "annotator", "n"])
    return votes, dropped.astype({"reason": object, "annotator": object, "n": np.int64})


def _repeated(rows: pd.DataFrame, repeated: str, findings: Findings) -> pd.Index:
    """Rows to leave out because the annotator votes on the comparison again; repetitions are reported.

    Seeing the other side first is no repetition: both votes are kept.
    """
    turn = np.where(rows["first"] <= rows["second"], 1, -1)
    same = [rows["annotator"], rows["comparison"], rows["shown"] * turn]
    again = pd.DataFrame(dict(enumerate(same))).duplicated()
    if again.any():
        signs = (rows["sign"] * turn).groupby(same).agg(["size", "nunique"])
        signs = signs[signs["size"] > 1]
        then = "all are kept" if repeated == "all" else "only the last is kept"
        what = (
            f"{counted(int(again.sum()), 'judgment')} by an annotator who had judged the comparison before; "
            f"{(signs['nunique'] > 1).mean():.0%} of {counted(len(signs), 'such pair')} of annotator and comparison "
            f"disagree with themselves; {then}"
        )
        remedy = (
            "repeated='last' keeps the last vote only; of votes that saw the two sides in either order keep all, and "
            "say in shown_first which was first"
        )
        findings.note("W133", what, remedy, int(again.sum()), rows=rows.index[again])
    before = pd.DataFrame(dict(enumerate(same))).duplicated(keep="last")
    return rows.index[before & (repeated == "last")]


def _comparisons(
    votes: pd.DataFrame, firsts: pd.DataFrame, texts: Objects, findings: Findings
) -> pd.DataFrame:
    """The comparisons, from the first vote on each; ids that the table lacks are made of the texts."""
    if "comparison_id" not in votes and len(firsts) < len(votes):
        what = (
            f"{counted(len(votes), 'judgment')} on {counted(len(firsts), 'comparison')}: rows with the same prompt "
            "and the same two texts, in either order, are votes on one comparison"
        )
        findings.note(
            "N138", what, "a column comparison_id would decide instead", len(votes) - len(firsts)
        )
    turned = votes.index[votes["turn"] < 0]
    if len(turned):
        what = f"{counted(len(turned), 'judgment')} with the two responses the other way round"
        remedy = "they were turned, and with them which side was shown first"
        findings.note("N118", what, remedy, len(turned), rows=turned)
    if n_repeated := len(firsts) - firsts["pair"].nunique():
        what = f"{counted(n_repeated, 'comparison')} with the prompt and texts of another id; they stay apart"
        remedy = (
            "leave ids out to merge them: columns={'comparison_id': None}; where the very same votes stand twice, also "
            "repeated='last'"
        )
        findings.note("N139", what, remedy, n_repeated, "comparison_id")
    same = firsts[firsts["first"] == firsts["second"]]
    if len(same):
        n_votes = int(votes["number"].isin(same["number"]).sum())
        of_votes = f"{counted(len(same), 'comparison')} ({counted(n_votes, 'judgment')})"
        remedy = "check the export: was a difference lost? They are kept"
        findings.note(
            "W131",
            f"{of_votes} of two identical responses: no signal",
            remedy,
            len(same),
            rows=same.index,
        )
    prompt, a, b = (texts[firsts[side]] for side in ("prompt", "first", "second"))
    if "comparison_id" not in firsts:
        sides = (sorted(pair, key=text_key) for pair in zip(a, b, strict=True))
        digests = [_digest("c", p, *pair) for p, pair in zip(prompt, sides, strict=True)]
        firsts = firsts.assign(comparison_id=pd.Series(digests, firsts.index, dtype=object))
    if "prompt_id" not in firsts:
        of_prompt = {code: _digest("p", texts[code]) for code in firsts["prompt"].unique()}
        firsts = firsts.assign(prompt_id=firsts["prompt"].map(of_prompt).astype(object))
    columns = {name: firsts[name].to_numpy() for name in ("comparison_id", "prompt_id")}
    columns |= {"prompt": prompt, "response_a": a, "response_b": b}
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _digest(prefix: str, *values: Any) -> str:
    """An id made of texts: the same for the same texts on every machine."""
    joined = json.dumps([text_key(value) for value in values])
    return f"{prefix}-{hashlib.sha256(joined.encode()).hexdigest()[:16]}"
