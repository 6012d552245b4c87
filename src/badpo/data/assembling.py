"""From understood rows to the two tables: what is a vote, which rows are one comparison, which way round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.carried import Carried
from badpo.data.privacy import EVERYONE
from badpo.data.problems import Problem, counted
from badpo.data.row_annotators import RowAnnotators
from badpo.data.row_problems import RowProblems
from badpo.data.row_texts import RowTexts, digest, text_key

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
