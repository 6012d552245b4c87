"""From a table to the two tables: every check on rows in one pass, nothing left out without being counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.carried import Carried, carried_columns
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import Layout, recognise
from badpo.data.importers.tables import read_table
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean
from badpo.data.row_annotators import RowAnnotators, read_row_annotators
from badpo.data.row_problems import RowProblems
from badpo.data.row_texts import RowTexts, digest, read_row_texts

TIES = ("drop", "error")
ANNOTATORS_MISSING = ("error", "drop")
REPEATED = ("all", "last")
DROPPED_COLUMNS = ["reason", "annotator", "n"]
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_FIRST_SHOWN = {"a_b": {"a": 1, "b": -1}, "chosen_rejected": {"a": 1, "b": -1, "chosen": 1, "rejected": -1}}
_NOT_READ = ("tools", "chat_template_kwargs", "image", "images")


@dataclass(frozen=True)
class Options:
    """What the reader does where there is a choice; see `Judgments.read`."""

    columns: Mapping[str, str | None] | None = None
    ties: str = "drop"
    annotators_missing: str = "error"
    repeated: str = "all"
    winners: Mapping[str, str] | None = None
    keep: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()

    def check(self) -> None:
        """Raise `ConfigError` for a choice that is not there."""
        for key, choices in (("ties", TIES), ("annotators_missing", ANNOTATORS_MISSING), ("repeated", REPEATED)):
            value = getattr(self, key)
            if value not in choices:
                hint = did_you_mean(str(value), choices)
                raise ConfigError(f"{key} must be {' or '.join(choices)}; got {value!r}.{hint}")
        for label, side in (self.winners or {}).items():
            if side not in _WINNERS:
                raise ConfigError(f"winners: {label!r} must mean a, b or tie; got {side!r}")


@dataclass(frozen=True)
class Reading:
    """What `Judgments` is made of, before attributes are measured."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    annotators: pd.DataFrame
    dropped: pd.DataFrame
    findings: tuple[Problem, ...]
    has_identities: bool


@dataclass(frozen=True)
class _Rows:
    """One value for each row of the source, in the row's own orientation."""

    texts: RowTexts
    who: RowAnnotators
    sign: NDArray[np.int64]
    weight: NDArray[np.float64]
    shown: NDArray[np.int64]
    comparison: NDArray[np.intp]
    comparison_id: NDArray[np.object_] | None
    prompt_id: NDArray[np.object_] | None


def read_votes(source: Any, options: Options) -> Reading:
    """Read a table of votes.

    Parameters
    ----------
    source : any source of `badpo.data.importers.tables.read_table`
    options : Options

    Raises
    ------
    DataError
        Everything that is wrong with the table. Problems of the columns come first and alone.
    ConfigError
        An option that is not there.
    """
    options.check()
    table = read_table(source)
    layout = recognise(table.frame, table.name, options.columns)
    if not len(layout.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again", "error")])
    who = read_row_annotators(layout, table)
    rows = RowProblems(table, layout.theirs, who.pseudonym_of_row())
    who.report(rows, options.annotators_missing)
    read = _read_rows(layout, who, rows, options)
    extras = carried_columns(layout, options.keep, options.pairs, rows)
    if rows.errors():
        raise DataError(sorted(rows.found, key=lambda problem: problem.severity != "error"))
    keep, dropped = _kept(read, rows, options)
    return _assembled(read, keep, dropped, extras, rows)


def _read_rows(layout: Layout, who: RowAnnotators, rows: RowProblems, options: Options) -> _Rows:
    texts = read_row_texts(layout, rows)
    unread = [name for name in _NOT_READ if name in layout.frame]
    if unread:
        what = f"columns that change what TRL trains on are not read: {', '.join(unread)}"
        rows.add_counted("W107", "warning", what, None, np.array([], dtype=int), "put their content in the prompt", len(unread))
    if layout.has("judgment_id"):
        _report_duplicate_ids(layout.frame["judgment_id"], rows)
    n = len(layout.frame)
    sign = _signs(layout.frame["winner"], options, rows) if layout.kind == "a_b" else np.ones(n, dtype=np.int64)
    key = texts.pair_keys()
    comparison_id = _ids("comparison_id", layout, rows)
    prompt_id = _ids("prompt_id", layout, rows)
    comparison = key if comparison_id is None else pd.factorize(comparison_id)[0]
    if comparison_id is not None:
        remedy = "give each pair of responses an id of its own, or leave the column out: columns={'comparison_id': None}"
        _report_conflict("E116", "one comparison_id with different texts", "comparison_id", comparison, key, rows, remedy)
    if prompt_id is not None:
        prompts = pd.factorize(prompt_id)[0]
        remedy = "give all votes on a comparison the same prompt_id"
        _report_conflict("E117", "one comparison with different prompt ids", "prompt_id", comparison, prompts, rows, remedy)
    return _Rows(
        texts, who, sign, _weights(layout, rows), _first_shown(layout, rows), comparison, comparison_id, prompt_id
    )


def _signs(winner: pd.Series, options: Options, rows: RowProblems) -> NDArray[np.int64]:
    """+1 where a won, -1 where b won, 0 for a tie (and for labels that are reported)."""
    labels = as_ids(winner)
    codes, distinct = pd.factorize(labels)
    meanings = {str(label): side for label, side in (options.winners or {}).items()}
    signs = [_WINNERS.get(meanings.get(label, label.strip().casefold())) for label in distinct]
    unknown = [label for label, sign in zip(distinct, signs, strict=True) if sign is None]
    named = ", ".join(f'"{label}"' for label in unknown[:5])
    remedy = f'write a, b or tie, or say what they mean: winners={{"{unknown[0] if unknown else "left"}": "a", ...}}'
    rows.add("E107", "error", "no winner", "winner", codes < 0, "write a, b or tie, or leave the row out")
    rows.add("E107", "error", f"unknown winner {named}", "winner", np.isin(labels, unknown), remedy)
    sign = np.array([*(sign or 0 for sign in signs), 0], dtype=np.int64)[codes]
    if options.ties == "error":
        rows.add("E130", "error", "ties", "winner", (sign == 0) & ~np.isin(labels, unknown) & (codes >= 0), "ties='drop'")
    return sign


def _ids(name: str, layout: Layout, rows: RowProblems) -> NDArray[np.object_] | None:
    if not layout.has(name):
        return None
    try:
        ids = as_ids(layout.frame[name])
    except ValueError as error:
        rows.add_counted("E108", "error", f"{name}: {error}", name, np.array([], dtype=int), "give one id", 1)
        return None
    remedy = f"fill it in, or leave the column out: columns={{'{name}': None}}"
    rows.add("E108", "error", f"no {name}", name, pd.isna(ids), remedy)
    return ids


def _weights(layout: Layout, rows: RowProblems) -> NDArray[np.float64]:
    if not layout.has("weight"):
        return np.ones(len(layout.frame))
    weight = pd.to_numeric(layout.frame["weight"], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    wrong = ~(np.isfinite(weight) & (weight > 0))
    rows.add("E106", "error", "weight is no number above 0", "weight", wrong, "give a positive number, or leave the row out")
    return weight


def _first_shown(layout: Layout, rows: RowProblems) -> NDArray[np.int64]:
    """+1 where the row's first side was shown first, -1 where its second was, 0 where it is not known."""
    if not layout.has("shown_first"):
        return np.zeros(len(layout.frame), dtype=np.int64)
    labels = as_ids(layout.frame["shown_first"])
    codes, distinct = pd.factorize(labels)
    sides = [_FIRST_SHOWN[layout.kind].get(label.strip().casefold()) for label in distinct]
    unknown = [label for label, side in zip(distinct, sides, strict=True) if side is None]
    known = " or ".join(_FIRST_SHOWN[layout.kind])
    rows.add("E109", "error", "unknown label", "shown_first", np.isin(labels, unknown), f"write {known}, or leave it empty")
    return np.array([*(side or 0 for side in sides), 0], dtype=np.int64)[codes]


def _report_duplicate_ids(column: pd.Series, rows: RowProblems) -> None:
    ids = pd.Series(as_ids(column), dtype=object)
    remedy = "keep one row for each judgment"
    rows.add("E132", "error", "judgment_id stands in more than one row", "judgment_id", _duplicated(ids, False), remedy)


def _duplicated(values: pd.Series, keep: Any) -> NDArray[np.bool_]:
    return (values.duplicated(keep=keep) & values.notna()).to_numpy()


def _report_conflict(code, what, column, group, value, rows: RowProblems, remedy: str) -> None:
    """Rows whose value is not that of the first usable row of their group."""
    usable = (group >= 0) & (value >= 0)
    first = np.full(group.max(initial=-1) + 1, -1)
    index = np.flatnonzero(usable)[::-1]
    first[group[index]] = value[index]
    rows.add(code, "error", what, column, usable & (value != first[group]), remedy)


def _kept(read: _Rows, rows: RowProblems, options: Options) -> tuple[NDArray[np.intp], pd.DataFrame]:
    """Rows that are votes, and a count of the others by reason and annotator."""
    reason = np.full(len(read.sign), None, dtype=object)
    reason[read.who.code < 0] = "no annotator"
    reason[(read.sign == 0) & pd.isna(reason)] = "tie"
    votes = np.flatnonzero(pd.isna(reason))
    if read.who.has_identities:
        again = _repeated(read, votes, rows, options.repeated)
        if options.repeated == "last":
            reason[again] = "repeated vote"
    keep = np.flatnonzero(pd.isna(reason))
    dropped = pd.DataFrame({"reason": reason, "annotator": read.who.pseudonym_of_row()})
    dropped = dropped[dropped["reason"].notna()].fillna({"annotator": "unknown"})
    dropped = dropped.groupby(DROPPED_COLUMNS[:2], sort=False).size().reset_index(name="n")
    earlier = pd.DataFrame(list(rows.table.dropped), columns=DROPPED_COLUMNS)
    _report_dropped(dropped, len(reason), len(keep), rows)
    dropped = pd.concat([earlier, dropped], ignore_index=True) if len(earlier) else dropped
    return keep, dropped.astype({"reason": object, "annotator": object, "n": np.int64})


def _repeated(read: _Rows, votes: NDArray[np.intp], rows: RowProblems, repeated: str) -> NDArray[np.intp]:
    """Rows that an annotator's later vote on the same comparison follows; reported with how often they disagree."""
    of = pd.DataFrame({"annotator": read.who.code[votes], "comparison": read.comparison[votes]})
    earlier = of.duplicated(keep="last").to_numpy()
    if not earlier.any():
        return votes[:0]
    _, turn = _turned(read.texts, read.comparison, votes)
    signs = of.assign(sign=read.sign[votes] * turn).groupby(["annotator", "comparison"])["sign"]
    n_votes, disagree = signs.size(), signs.nunique() > 1
    n_pairs = int((n_votes > 1).sum())
    share = float(disagree[n_votes > 1].mean())
    then = "all are kept" if repeated == "all" else "only the last is kept"
    what = (
        f"{int(earlier.sum()):,} judgments repeat an annotator's vote on the same comparison; "
        f"{share:.0%} of the {n_pairs:,} repeated votes disagree with themselves; {then}"
    )
    again = votes[of.duplicated(keep="first").to_numpy()]
    rows.add_counted("W133", "warning", what, None, again, "repeated='last' keeps the last vote only", int(earlier.sum()))
    return votes[earlier]


def _report_dropped(dropped: pd.DataFrame, n_rows: int, n_kept: int, rows: RowProblems) -> None:
    none = np.array([], dtype=int)
    for reason, n in dropped.groupby("reason", sort=False)["n"].sum().items():
        code = {"tie": "N130", "no annotator": "N112", "repeated vote": "N133"}[str(reason)]
        what = f"{n:,} of {n_rows:,} rows are left out: {reason} ({n / n_rows:.1%})"
        rows.add_counted(code, "notice", what, None, none, "judgments.dropped counts them by annotator", int(n))
    if not n_kept:
        what = f"no vote is left of {n_rows:,} rows"
        rows.add_counted("E104", "error", what, None, none, "give rows with a winner and an annotator", n_rows)
        raise DataError(sorted(rows.found, key=lambda problem: problem.severity != "error"))


def _turned(texts: RowTexts, comparison: NDArray[np.intp], keep: NDArray[np.intp]):
    """For the kept rows: the row that each comparison takes its orientation from, and -1 where a row is turned."""
    codes, distinct = pd.factorize(comparison[keep])
    first = np.full(len(distinct), -1, dtype=np.intp)
    first[codes[::-1]] = keep[::-1]
    return first, np.where(texts.first[keep] == texts.first[first[codes]], 1, -1)


def _assembled(read: _Rows, keep, dropped, extras: Carried, rows: RowProblems) -> Reading:
    first, turn = _turned(read.texts, read.comparison, keep)
    number = pd.factorize(read.comparison[keep])[0]
    comparisons = _comparison_frame(read, first)
    _report_comparisons(read, keep, first, turn, number, comparisons, rows)
    annotator, order = pd.factorize(read.who.code[keep])
    annotators = pd.DataFrame(
        {
            "pseudonym": pd.Series([read.who.pseudonyms[k] for k in order], dtype=object),
            "annotator_class": pd.Series([read.who.classes[k] for k in order], dtype=object),
        }
    )
    shown = np.array([None, "a", "b"], dtype=object)[read.shown[keep] * turn]
    votes = pd.DataFrame(
        {
            "comparison": number,
            "sign": read.sign[keep] * turn,
            "annotator": annotator,
            "weight": read.weight[keep],
            "row": keep,
            "shown_first": pd.Series(shown, dtype=object),
        }
    )
    for name, side in extras.turned(keep, turn).items():
        votes[name] = side
        value = pd.factorize(side, use_na_sentinel=False)[0]
        at_first = np.zeros(len(first), dtype=value.dtype)
        at_first[number[::-1]] = value[::-1]
        if (value == at_first[number]).all():
            comparisons[name] = side[np.searchsorted(keep, first)]
    return Reading(comparisons, votes, annotators, dropped, tuple(rows.found), read.who.has_identities)


def _comparison_frame(read: _Rows, first: NDArray[np.intp]) -> pd.DataFrame:
    texts = read.texts
    prompt, a, b = (texts.values[codes[first]] for codes in (texts.prompt, texts.first, texts.second))
    comparison_id = (
        [digest("c", p, *sorted((x, y), key=str)) for p, x, y in zip(prompt, a, b, strict=True)]
        if read.comparison_id is None
        else read.comparison_id[first]
    )
    if read.prompt_id is None:
        codes, distinct = pd.factorize(texts.prompt[first])
        prompt_id = np.array([digest("p", texts.values[code]) for code in distinct], dtype=object)[codes]
    else:
        prompt_id = read.prompt_id[first]
    columns = {"comparison_id": comparison_id, "prompt_id": prompt_id, "prompt": prompt, "response_a": a, "response_b": b}
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})


def _report_comparisons(read: _Rows, keep, first, turn, number, comparisons, rows: RowProblems) -> None:
    n_votes, n_comparisons, n_turned = len(keep), len(first), int((turn < 0).sum())
    if read.comparison_id is None and n_comparisons < n_votes:
        what = f"{n_votes:,} judgments are on {n_comparisons:,} comparisons: the same prompt and the same two texts, in either order"
        rows.add_counted("N138", "notice", what, None, first[:0], "a comparison_id column would decide instead", n_votes - n_comparisons)
    if n_turned:
        what = f"{n_turned:,} judgments had the two responses the other way round and were turned"
        remedy = "nothing; which side was shown first is turned with them"
        rows.add_counted("N138", "notice", what, None, keep[turn < 0], remedy, n_turned)
    key = pd.factorize(read.texts.pair_keys()[first])[0]
    n_shared = int((np.bincount(key)[key] > 1).sum())
    if n_shared:
        what = f"{n_shared:,} comparison ids share prompt and both texts with another id; they stay apart"
        rows.add_counted(
            "N139", "notice", what, "comparison_id", first[:0], "leave the column out to merge them: columns={'comparison_id': None}", n_shared
        )
    same = read.texts.first[first] == read.texts.second[first]
    if same.any():
        n_judgments = int(same[number].sum())
        what = f"{int(same.sum()):,} comparisons ({n_judgments:,} judgments) have two identical responses; they carry no signal about the policy"
        rows.add_counted("W131", "warning", what, None, first[same], "check the export: was a difference lost?", int(same.sum()))
