"""From a table to comparisons and votes: every check on rows in one pass, every row a vote or counted as left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from badpo.data.files import Json
from badpo.data.privacy import (
    EVERYONE,
    MODEL_CLASS,
    direct_identifiers,
    folded_id,
    model_names,
    pseudonyms,
)
from badpo.data.problems import (
    LISTED,
    ConfigError,
    DataError,
    Problem,
    counted,
    did_you_mean,
    listed,
    worst_first,
)
from badpo.data.tables import (
    KNOWN,
    Objects,
    Table,
    annotator_hint,
    as_ids,
    as_objects,
    numbered_cells,
    read_table,
    recognise,
    side_pairs,
    text_key,
)
from badpo.theory import Floats, Ints

Text = str | list[Json]

CHOICES = {"annotators_missing": ("error", "drop"), "repeated": ("all", "last")}
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")
_SIDES = {"a_b": ("response_a", "response_b"), "chosen_rejected": ("chosen", "rejected")}
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {
    "a_b": {"a": 1, "b": -1},
    "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1},
}
_NOT_READ = (
    (
        "W107",
        ("tools", "chat_template_kwargs"),
        "columns that change what TRL would train on are not read",
        "put what they say into the prompt",
    ),
    (
        "W108",
        ("image", "images"),
        "images are not read, only the texts beside them",
        "leave the column out where the texts can be judged without them; training refuses images",
    ),
)
_MODELS = ("model_a", "model_b")
_LEFT_OUT = {"tie": "N130", "no annotator": "N112", "repeated vote": "N133", "exported twice": "N132"}
# Fewer votes that stand once more with the sides exchanged can be people who judged again and did not change.
FEWEST_COPIES = 20


def read_votes(
    source: Any,
    columns: Mapping[str, str | None] | None,
    winners: Mapping[str, str] | None,
    keep: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    choices: Mapping[str, str],
) -> Json:
    """What `badpo.data.judgments.Judgments` is made of, before attributes are measured; see `Judgments.read`.

    ``pairs`` are columns that declared attributes read, ``choices`` what `CHOICES` asks. A `DataError` lists everything
    that is wrong with the table; problems of the columns come first and alone.
    """
    for key, known in CHOICES.items():
        if choices[key] not in known:
            raise ConfigError(f"{key} must be {' or '.join(known)}; got {choices[key]!r}")
    meanings = dict(_WINNERS)
    for label, side in (winners or {}).items():
        if side not in _WINNERS:
            raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")
        meanings[str(label)] = _WINNERS[side]
    table = recognise(read_table(source), columns)
    if not len(table.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again")])
    found = Findings(table)
    rows = pd.DataFrame(index=table.frame.index)
    annotators = _annotators(rows, choices["annotators_missing"], found)
    _not_read(found)
    texts = _texts(rows, found)
    _compare(rows, found)
    _answers(rows, meanings, found)
    carried = _carried(keep, pairs, found)
    found.stop_at_errors()
    votes, dropped = _votes(rows, choices["repeated"], found)
    firsts = votes[~votes["number"].duplicated()]
    comparisons = _comparisons(votes, firsts, texts, found)
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
        "findings": tuple(found.problems),
        "has_identities": "annotator" in table.theirs,
    }


class Findings:
    """A table, the pseudonym of each row's annotator once known, and what is wrong."""

    def __init__(self, table: Table):
        self.table, self.frame = table, table.frame
        self.pseudonyms = np.full(len(table.frame), None, dtype=object)
        self.problems: list[Problem] = []

    def rows(self, code: str, what: str, column: str | None, rows: Any, remedy: str) -> None:
        """Note a problem of the rows where ``rows`` is True, with their count; nothing when there is none."""
        index = np.flatnonzero(rows)
        if n := len(index):
            self.note(code, f"{what}: {n:,} of {len(rows):,} rows", remedy, n, column, index)

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
            where += f', column "{self.table.theirs.get(column, column)}"'
        if n := len(rows):
            shown = np.asarray(rows)[:LISTED]
            who = zip(shown, self.pseudonyms[shown], strict=True)
            named = [f"{row + 1:,}" + f" [{name}]" * (name is not None) for row, name in who]
            where += f", row{'s' * (n > 1)} {listed(named, n)}"
            # a header is a line, and cells may hold breaks
            if lines is not None and (lines[shown] != shown + 1).any():
                told = [f"{line:,}" for line in lines[shown]]
                where += f" (line{'s' * (len(told) > 1)} {listed(told)} of the file)"
        self.problems.append(Problem(code, what, where, remedy, count))

    def ids(self, name: str, code: str, remedy: str | None = None) -> Objects:
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
            self.rows(code, f"no {name}", name, pd.isna(ids) & bool(remedy), str(remedy))
        return ids

    def stop_at_errors(self) -> None:
        """Raise `DataError` with everything found, errors first, when there is an error."""
        if any(problem.severity == "error" for problem in self.problems):
            raise DataError(worst_first(self.problems))


# Each of the following adds to ``rows`` what the rows of the table say, in numbers and ids.

# -- who voted -------------------------------------------------------------------------------------------------


def _annotators(rows: pd.DataFrame, missing: str, found: Findings) -> pd.DataFrame:
    """Each row's ``annotator``, -1 where there is none; pseudonym and class of each; raw ids of models alone."""
    if "annotator" not in found.frame:
        hint = annotator_hint(name for name in found.frame if name not in KNOWN)
        what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"'
        remedy = (
            f"map the column.{hint}"
            if hint
            else "nothing for a pooled bias; per-annotator bias needs ids"
        )
        found.note("W110" if hint else "N110", what, remedy)
        rows["annotator"] = 0
        return pd.DataFrame(
            {"pseudonym": [EVERYONE], "annotator_class": [None], "model": [None]}, dtype=object
        )
    remedy = "fill it in, or leave these rows out: annotators_missing='drop'" * (missing == "error")
    number, raw_ids = pd.factorize(found.ids("annotator", "E112", remedy))
    named = pseudonyms(list(raw_ids))
    found.pseudonyms = as_objects([*named, None])[number]
    rows["annotator"] = number
    empty = {"annotator_class": None, "model": None}
    annotators = pd.DataFrame({"pseudonym": named, **empty}, dtype=object)
    label = pd.Series(found.ids("annotator_class", "E112"), dtype=object)
    if label.notna().any():
        first = label.groupby(number).first().reindex(range(len(named)))
        annotators["annotator_class"] = first.where(first.notna(), None)
        is_model = (first.str.strip().str.casefold() == MODEL_CLASS).to_numpy()
        annotators.loc[is_model, "model"] = model_names(raw_ids[is_model])
        conflict = label.notna() & (number >= 0) & (label != first.reindex(number).to_numpy())
        what = "an annotator has another annotator_class than before"
        remedy = (
            "give each annotator one class, or leave the column out: columns={'annotator_class': None}"
        )
        found.rows("E115", what, "annotator_class", conflict, remedy)
    if kinds := direct_identifiers(list(raw_ids)):
        what = f"annotator ids look like {' and '.join(kinds)}; they were replaced by pseudonyms while reading"
        found.note("W301", what, "share the table that badpo import writes, not this one")
    groups = annotators["pseudonym"].groupby([*map(folded_id, raw_ids)], sort=False)
    if alike := [" and ".join(group) for _, group in groups if len(group) > 1]:
        n = counted(len(alike), "group")
        what = f"{n} of annotators whose ids differ only in case, spaces or leading zeros"
        remedy = f"if they are the same people, write their ids alike before reading: {listed(alike)}"
        found.note("W113", what, remedy, len(alike))
    return annotators


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


def _not_read(found: Findings) -> None:
    for code, names, what, remedy in _NOT_READ:
        has_cells = [name for name in names if name in found.frame and found.frame[name].notna().any()]
        if has_cells:
            found.note(code, f"{what}: {', '.join(has_cells)}", remedy, len(has_cells))


def _texts(rows: pd.DataFrame, found: Findings) -> Objects:
    """Each row's ``prompt``, ``first`` and ``second`` response by number, below 0 in rows at fault; the texts.

    First is response a or the chosen one.
    """
    sides, has_prompt = _SIDES[found.table.kind], "prompt" in found.frame
    names = [*["prompt"] * has_prompt, *sides]
    numbers, texts = numbered_cells(found.frame[names].to_numpy(dtype=object).ravel("F"))
    codes = numbers.reshape(len(names), -1)
    for name, column in zip(names, codes, strict=True):
        found.rows("E134", f"no {name}", name, column == -1, "fill it in, or leave the row out")
    faults = as_objects(str(text) if isinstance(text, ValueError) else "" for text in texts)
    remedy = 'give text, or a list of messages with "role" and "content"'
    for name, column in zip(names, codes, strict=True):
        for why in filter(None, dict.fromkeys(faults)):
            found.rows("E105", f"{name} cannot be read, {why}", name, (faults == why)[column], remedy)
    is_read = np.array([isinstance(text, (str, list)) for text in texts])
    codes[:, ~is_read[codes].all(axis=0)] = -1
    is_text = np.array([isinstance(text, str) for text in texts])
    mixed = is_text[codes[-2]] != is_text[codes[-1]]
    what = "one response is text and the other a list of messages"
    found.rows("E105", what, None, mixed, "give both responses in the same form")
    codes[:, mixed] = -1
    if not has_prompt or (is_read & ~is_text).any():
        texts, codes = _arranged(texts, codes)
        is_text = np.array([isinstance(text, str) for text in texts])[codes[0]]
        if (is_text != (codes[0] >= 0)).any():
            what = "text in some rows and chat messages in others; text here"
            found.rows("E105", what, None, is_text, "give all rows in one form")
    blank = np.array([*map(_is_blank, texts)])[codes]
    if has_prompt:
        found.rows("E134", "empty prompt", "prompt", blank[0], "fill it in, or leave the row out")
    else:
        what = f"no prompt, and {sides[0]} and {sides[1]} share no beginning"
        found.rows("E134", what, None, blank[0], 'map the prompt: columns={"prompt": "..."}')
    for name, is_blank in zip(sides, blank[1:], strict=True):
        remedy = "check the export; kept, since saying nothing can be an answer"
        found.rows("W134", f"empty response ({name})", name, is_blank, remedy)
    # a row that is reported already does not also stand for other texts than its comparison
    codes[0, blank[0]] = -1
    rows[["prompt", "first", "second"]] = codes.T
    return texts


def _arranged(texts: Objects, codes: Ints) -> tuple[Objects, Ints]:
    """Each distinct row of texts and messages through `arrange`."""
    distinct, number = np.unique(codes, axis=1, return_inverse=True)
    arranged = np.full((3, distinct.shape[1]), None, dtype=object)
    for i, row in enumerate(distinct.T):
        if row[-1] >= 0:
            # without a column of prompts there is none
            arranged[:, i] = as_objects(arrange(*[None, *texts[row]][-3:]))
    numbers, texts = numbered_cells(arranged.ravel())
    return texts, numbers.reshape(3, -1)[:, number]


def _is_blank(text: Any) -> bool:
    if isinstance(text, list):
        return not any(message["content"].strip() for message in text)
    return not str(text).strip()


def _compare(rows: pd.DataFrame, found: Findings) -> None:
    """Each row's ``pair`` of texts, its ``comparison``, and the ids that the table has."""
    low, high = rows[["first", "second"]].min(axis=1), rows[["first", "second"]].max(axis=1)
    pair = rows.groupby([rows["prompt"], low, high], sort=False).ngroup()
    rows["pair"] = rows["comparison"] = pair.where((rows["prompt"] >= 0) & (low >= 0), -1)
    for name in ("judgment_id", "comparison_id", "prompt_id"):
        if name in found.frame:
            remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
            rows[name] = pd.Series(found.ids(name, "E108", remedy), dtype=object)
    if "judgment_id" in rows:
        twice = rows["judgment_id"].notna() & rows["judgment_id"].duplicated(keep=False)
        what, remedy = "the judgment_id stands in more than one row", "keep one row for each judgment"
        found.rows("E132", what, "judgment_id", twice, remedy)
    if "comparison_id" in rows:
        rows["comparison"] = pd.factorize(rows["comparison_id"])[0]
        known = rows["pair"].where((rows["pair"] >= 0) & (rows["comparison"] >= 0))
        first = known.groupby(rows["comparison"]).transform("first")
        what = "the comparison_id stands for other texts in an earlier row"
        remedy = "give each pair of responses an id of its own, or leave ids out: columns={'comparison_id': None}"
        found.rows("E116", what, "comparison_id", known.notna() & (known != first), remedy)


# -- what was answered -----------------------------------------------------------------------------------------


def _answers(rows: pd.DataFrame, winners: Mapping[str, int], found: Findings) -> None:
    """Each row's ``sign``, ``weight``, and side ``shown`` first (0 where nobody says)."""
    rows["sign"], rows["weight"] = 1, 1.0
    if found.table.kind == "a_b":
        remedy = 'write a, b or tie, or say what the labels mean: winners={"LABEL": "a", ...}'
        rows["sign"] = _meant("winner", "E107", winners, remedy, found)
    if "weight" in found.frame:
        rows["weight"] = weight = _numbers(found.frame["weight"])
        wrong = ~(np.isfinite(weight) & (weight > 0))
        remedy = "give a positive number, or leave the row out"
        found.rows("E106", "the weight is no number above 0", "weight", wrong, remedy)
    known = _FIRST_SHOWN[found.table.kind]
    remedy = f"write {' or '.join(known)}, or leave the cell empty"
    rows["shown"] = _meant("shown_first", "E109", known, remedy, found)


def _numbers(column: pd.Series) -> Floats:
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _meant(name: str, code: str, known: Mapping[str, int], remedy: str, found: Findings) -> Ints:
    """What the labels of a column stand for; 0 where there is none, or one that is not known, which is reported."""
    labels = found.ids(name, code, remedy * (name == "winner"))
    number, distinct = pd.factorize(labels)
    meant = [known.get(label, known.get(label.strip().casefold())) for label in distinct]
    if unknown := [label for label, value in zip(distinct, meant, strict=True) if value is None]:
        quoted = listed([f'"{label}"' for label in unknown])
        remedy = remedy.replace("LABEL", unknown[0])
        found.rows(code, f"unknown {name} {quoted}", name, np.isin(labels, unknown), remedy)
    return np.array([*(value or 0 for value in meant), 0])[number]


# -- what goes along -------------------------------------------------------------------------------------------


def _carried(
    keep: Sequence[str], pairs: Sequence[tuple[str, str]], found: Findings
) -> dict[str, tuple[Objects, Objects]]:
    """Columns that go along with the votes, and the column that each is exchanged with where a row is turned.

    Number columns that name both sides (``score_a`` and ``score_b``) always do, as numbers unless one is in ``keep``;
    and so do ``model_a`` and ``model_b`` where every row has them: they name who wrote the responses. Others stay
    behind unless they are in ``keep``, since a free column may say who an annotator is.
    """
    frame = found.frame[[name for name in found.frame if name not in (*KNOWN, *VOTE_COLUMNS)]]
    sides, remedy = side_pairs(frame), f"free columns: {', '.join(frame)}"
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        what = f'attribute column "{name}"'
        if name in frame:
            columns[name] = _numbers(frame[name])
            is_missing = ~np.isfinite(columns[name])
            found.rows("E128", f"{what} holds no number", name, is_missing, "give a number")
        else:
            hint = did_you_mean(name, [*frame])
            found.note("E128", f"{what} is not a free column of the table.{hint}", remedy)
    # what an attribute reads is a number all the same
    as_written = {*keep}.difference(columns)
    for pair in sides.items():
        numbers = {name: _numbers(frame[name]) for name in pair}
        there = [values[frame[name].notna()] for name, values in numbers.items()]
        if all(len(values) and not np.isnan(values).any() for values in there):
            go = numbers if as_written.isdisjoint(pair) else frame[[*pair]].astype(object)
            for name in pair:
                columns.setdefault(name, go[name])
    for name in keep:
        if fault := _fault(name, frame):
            found.note("E103", f'keep: "{name}" {fault}.{did_you_mean(name, [*frame])}', remedy)
    are_told = all(not _fault(name, frame) and frame[name].notna().all() for name in _MODELS)
    for name in (*keep, *(_MODELS if are_told else ())):
        if name in frame:
            columns.setdefault(name, frame[name].astype(object))
    partner: dict[str, str] = {}
    for first, second in (*pairs, *sides.items()):
        if first in columns and second in columns:
            partner.setdefault(first, second)
            partner.setdefault(second, first)
    cells = {name: np.asarray(column) for name, column in columns.items()}
    return {name: (cells[name], cells[partner.get(name, name)]) for name in cells}


def _fault(name: str, frame: pd.DataFrame) -> str:
    """Why a column cannot go along, in words; empty where it can."""
    if name not in frame:
        return "is not a free column of the table"
    try:
        frame[name].nunique()
        pa.array(frame[name], from_pandas=True)
    except (TypeError, pa.ArrowException, OverflowError, UnicodeError):
        return "holds values of several kinds, or it holds lists or objects"
    return ""


# -- votes and comparisons -------------------------------------------------------------------------------------


def _votes(rows: pd.DataFrame, repeated: str, found: Findings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that are votes, turned the way round of their comparison's first, and a count of the others."""
    has_identities, earlier = "annotator" in found.frame, found.table.dropped
    reason = pd.Series(None, index=rows.index, dtype=object)
    reason[rows["sign"] == 0] = "tie"
    reason[rows["annotator"] < 0] = "no annotator"
    if has_identities:
        reason[_exported_twice(rows[reason.isna()])] = "exported twice"
        reason[_repeated(rows[reason.isna()], repeated, found)] = "repeated vote"
    n, nobody = len(rows), "unknown" if has_identities else EVERYONE
    left_out = pd.DataFrame({"reason": reason, "annotator": found.pseudonyms})[reason.notna()]
    counts = left_out.fillna({"annotator": nobody}).value_counts(["reason", "annotator"], sort=False)
    remedy = "nothing; judgments.dropped counts them by annotator"
    for why, n_left in left_out["reason"].value_counts(sort=False).items():
        what = f"{n_left:,} of {counted(n, 'row')} left out: {why} ({n_left / n:.1%})"
        found.note(_LEFT_OUT[str(why)], what, remedy, int(n_left))
    if n_before := sum(entry["n"] for entry in earlier):
        share = n_before / (n + n_before)
        what = f"{counted(n_before, 'row')} were left out at import ({share:.1%})"
        found.note("N119", what, remedy, n_before)
    votes = rows[reason.isna()]
    if not len(votes):
        what = f"no vote is left of {counted(n, 'row')}"
        found.note("E104", what, "give rows with a winner and an annotator", n)
        found.stop_at_errors()
    number, _ = pd.factorize(votes["comparison"])
    first = votes["first"].to_numpy()[~votes["comparison"].duplicated()]
    turn = np.where(votes["first"] == first[number], 1, -1)
    turned = {name: votes[name] * turn for name in ("sign", "shown")}
    entries = [*earlier, *counts.reset_index(name="n").to_dict("records")]
    dropped = pd.DataFrame(entries, columns=["reason", "annotator", "n"])
    dropped = dropped.astype({"reason": object, "annotator": object, "n": np.int64})
    return votes.assign(number=number, turn=turn, **turned), dropped


def _exported_twice(rows: pd.DataFrame) -> pd.Index:
    """Rows that say once more, with the two sides exchanged, what their annotator said of the same texts before.

    People who judge again change their mind now and then, and models the more so. Where all of at least
    ``FEWEST_COPIES`` such rows agree with the first, under other comparison ids too, the table was exported twice.
    Rows that say that the other text was shown first are judgments of their own.
    """
    turn = np.where(rows["first"] <= rows["second"], 1, -1)
    vote = rows[["annotator", "pair"]].assign(shown=rows["shown"] * turn, turn=turn)
    vote = vote[(rows["pair"] >= 0) & (rows["first"] != rows["second"])]
    said = (rows["sign"] * turn)[vote.index]
    seen = vote.groupby(["annotator", "pair", "shown"])
    exchanged = vote.index[vote["turn"] != seen["turn"].transform("first")]
    agrees = said == said.groupby([vote[name] for name in ("annotator", "pair", "shown")]).transform(
        "first"
    )
    are_copies = len(exchanged) >= FEWEST_COPIES and agrees[exchanged].all()
    return exchanged if are_copies else exchanged[:0]


def _repeated(rows: pd.DataFrame, repeated: str, found: Findings) -> pd.Index:
    """Rows to leave out because the annotator votes on the comparison again; repetitions are reported.

    Seeing the other side first is no repetition: both votes are kept.
    """
    turn = np.where(rows["first"] <= rows["second"], 1, -1)
    same = rows[["annotator", "comparison"]].assign(shown=rows["shown"] * turn)
    again = same.duplicated()
    if n := int(again.sum()):
        signs = same.assign(sign=rows["sign"] * turn).groupby([*same])["sign"].agg(["size", "nunique"])
        signs = signs[signs["size"] > 1]
        then = "all are kept" if repeated == "all" else "only the last is kept"
        what = (
            f"{counted(n, 'judgment')} by an annotator who had judged the comparison before; "
            f"{(signs['nunique'] > 1).mean():.0%} of {counted(len(signs), 'such pair')} of annotator and comparison "
            f"disagree with themselves; {then}"
        )
        remedy = (
            "repeated='last' keeps the last vote only; of votes that saw the two sides in either order keep all, and "
            "say in shown_first which was first"
        )
        found.note("W133", what, remedy, n, rows=rows.index[again])
    return rows.index[same.duplicated(keep="last") & (repeated == "last")]


def _comparisons(
    votes: pd.DataFrame, firsts: pd.DataFrame, texts: Objects, found: Findings
) -> pd.DataFrame:
    """The comparisons, from the first vote on each; ids that the table lacks are made of the texts."""
    n_merged = len(votes) - len(firsts)
    if "comparison_id" not in votes and n_merged:
        what = (
            f"{counted(len(votes), 'judgment')} on {counted(len(firsts), 'comparison')}: rows with the same prompt "
            "and the same two texts, in either order, are votes on one comparison"
        )
        found.note("N138", what, "a column comparison_id would decide instead", n_merged)
    turned = votes.index[votes["turn"] < 0]
    if n := len(turned):
        what = f"{counted(n, 'judgment')} with the two responses the other way round"
        remedy = "they were turned, and with them which side was shown first"
        found.note("N118", what, remedy, n, rows=turned)
    if n := len(firsts) - firsts["pair"].nunique():
        what = f"{counted(n, 'comparison')} with the prompt and texts of another id; they stay apart"
        remedy = (
            "leave ids out to merge them: columns={'comparison_id': None}; where the very same votes stand twice, also "
            "repeated='last'"
        )
        found.note("N139", what, remedy, n, "comparison_id")
    same = firsts[firsts["first"] == firsts["second"]]
    if n := len(same):
        n_votes = int(votes["number"].isin(same["number"]).sum())
        of_votes = f"{counted(n, 'comparison')} ({counted(n_votes, 'judgment')})"
        what = f"{of_votes} of two identical responses: no signal"
        remedy = "check the export: was a difference lost? They are kept"
        found.note("W131", what, remedy, n, rows=same.index)
    prompt, a, b = (texts[firsts[side]] for side in ("prompt", "first", "second"))
    if "comparison_id" not in firsts:
        pairs = (sorted(pair, key=text_key) for pair in zip(a, b, strict=True))
        ids = [_digest("c", p, *pair) for p, pair in zip(prompt, pairs, strict=True)]
        firsts = firsts.assign(comparison_id=ids)
    if "prompt_id" not in firsts:
        of_prompt = {code: _digest("p", texts[code]) for code in firsts["prompt"].unique()}
        firsts = firsts.assign(prompt_id=firsts["prompt"].map(of_prompt))
    columns = {name: firsts[name].to_numpy() for name in ("comparison_id", "prompt_id")}
    columns |= {"prompt": prompt, "response_a": a, "response_b": b}
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _digest(prefix: str, *values: Any) -> str:
    """An id made of texts: the same for the same texts on every machine."""
    joined = json.dumps([text_key(value) for value in values])
    return f"{prefix}-{hashlib.sha256(joined.encode()).hexdigest()[:16]}"
