"""Turn a table into comparisons and votes.

The reader checks all rows of the table in one pass. Every row either becomes a vote or is left out and counted.
"""

import hashlib
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from badpo.data.attributes import Text, plain_text
from badpo.data.cells import (
    FEW_ROWS,
    MANY_ROWS,
    NEARLY_ALL,
    Findings,
    Objects,
    Table,
    are_groups,
    as_ids,
    as_messages,
    as_numbers,
    as_objects,
    as_ratings,
    compare_answers,
    few_labels,
    holds_texts,
    ids_in,
    is_same_text,
    names_of_sides,
    numbered_cells,
    text_key,
    unused_columns,
)
from badpo.data.layouts import LAYOUTS, RATED, rated_pair, recognise
from badpo.data.nesting import flatten
from badpo.data.privacy import (
    EVERYONE,
    MODEL_CLASS,
    direct_identifiers,
    folded_id,
    hidden_ids,
    model_names,
    pseudonyms,
)
from badpo.data.problems import (
    LISTED,
    ConfigError,
    Correction,
    DataError,
    Problem,
    counted,
    did_you_mean,
    listed,
    written_out,
)
from badpo.data.reshaping import reshape, with_legends
from badpo.data.tables import Source, read_table
from badpo.data.vocabulary import (
    ANSWERS_HERE,
    KNOWN,
    MODELS,
    NO,
    PAIR,
    TEMPLATE_COLUMNS,
    TURNED,
    YES,
    RatingScale,
    columns_of_outcomes,
    columns_of_sides,
    direction_of,
    folded,
    graded,
    like_annotators,
    mirrored_sides,
    names_vote,
    number_of,
    proposed,
    scale_of,
    side_of,
    side_pairs,
    side_told,
    which_wins,
)
from badpo.theory import Floats, Ints

CHOICES = {
    "annotators_missing": ("error", "drop"),
    "repeated": ("all", "last"),
    "bad_rows": ("error", "drop"),
    "layout": LAYOUTS,
}
VOTE_COLUMNS = ("comparison", "sign", "annotator", "weight", "row", "shown_first")
_IDS = ("comparison_id", "prompt_id")
_A_B, _CHOSEN = ("response_a", "response_b"), ("chosen", "rejected")
_WINNERS = {"a": 1, "b": -1, "tie": 0}
_SKIP = "skip"  # meaning of labels such as "skipped", which say that nobody judged the row
_EMPTY = (
    ""  # label of rows whose cell in the winner column is empty, if the user gave empty cells a meaning
)
_EXCHANGED = {"winner": "annotator", "annotator": "winner"}
_FIRST_SHOWN = {"a": 1, "b": -1, "chosen": 1, "rejected": -1}
_SHOWN_ROWS, _SHOWN_CHARACTERS = 3, 60  # limits for the example rows and for each of their texts
_MOST_FIXES = 5  # badpo tries proposed options at most this many times
_LARGEST_RATING = 10  # numbers above this limit in a winner column may be ids of people
_NOT_READ = (
    (
        "W107",
        TEMPLATE_COLUMNS,
        "columns that change the texts on which TRL trains are not read",
        "train on the table itself, as badpo train does, or write the content of the unread columns into the prompt",
    ),
    (
        "W108",
        ("image", "images"),
        "badpo reads texts but not images",
        "leave out the column of images if the texts can be judged without it; training refuses images",
    ),
)
_LEFT_OUT = {
    "tie": "N130",
    "no annotator": "N112",
    "repeated vote": "N133",
    "exported twice": "N132",
}
# If at least FEWEST_COPIES votes are repeated with exchanged sides, and all agree, the table was exported twice.
# If fewer votes are repeated, annotators may have judged some pairs twice with the same result.
FEWEST_COPIES = 20
# Two columns of numbers define what labels mean only if at least _FEWEST_AGREEING rows have a label.
# The share of labels that agree with the numbers must be at least _AGREEING.
_AGREEING, _FEWEST_AGREEING = 0.95, 10


@dataclass(frozen=True)
class Request:
    """The options of `Judgments.read`; ``pairs`` contains the pairs of columns that declared attributes read."""

    columns: Mapping[str, str | None]
    winners: Mapping[str, str]
    keep: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    annotators_missing: str
    repeated: str
    bad_rows: str
    layout: str | None

    def with_options(self, options: Correction) -> "Request":
        """Return the request with changed options; ``columns`` and ``winners`` are extended, not replaced."""
        return replace(
            self,
            columns={**self.columns, **options.get("columns", {})},
            winners={**self.winners, **options.get("winners", {})},
            annotators_missing=options.get("annotators_missing", self.annotators_missing),
            repeated=options.get("repeated", self.repeated),
            bad_rows=options.get("bad_rows", self.bad_rows),
            layout=options.get("layout", self.layout),
        )


@dataclass(frozen=True)
class VotesRead:
    """The fields of `badpo.data.judgments.Judgments` that a table provides, without attribute values."""

    comparisons: pd.DataFrame
    votes: pd.DataFrame
    annotators: pd.DataFrame
    has_identities: bool
    dropped: pd.DataFrame
    findings: tuple[Problem, ...] = ()
    ties: "VotesRead | None" = None


def read_votes(source: Source | Table, request: Request) -> VotesRead:
    """Read the votes of a table.

    A `DataError` lists all errors in the table. If columns are missing or misnamed, the rows are not checked.
    """
    for key, known in CHOICES.items():
        if (value := getattr(request, key)) not in known:
            raise ConfigError(f"{key} must be {' or '.join(map(str, known))}; got {value!r}")
    for label, side in request.winners.items():
        if side not in (*_WINNERS, _SKIP):
            raise ConfigError(f"winners: {label!r} must mean a, b, tie or skip; got {side!r}")
    # words such as NULL stand for an empty cell
    names = [_EMPTY if name is None else name for name in as_ids([*request.winners])]
    request = replace(request, winners=dict(zip(names, request.winners.values(), strict=True)))
    try:
        return _read_table(source, request)[1]
    except DataError as error:
        _add_corrections(error, source, request)
        raise


def _add_corrections(error: DataError, source: Source | Table, request: Request) -> None:
    """Find options with which badpo can read the table, and add them to the error.

    The function tries the options that the problems in the error propose, until it can read the table or no proposal is
    left. If the table can be read with the proposed options, the function may also add a few rows to the error as
    examples. If no column is known to name the annotators, the function adds to the error the columns that may name
    them.
    """
    told = error
    fix: Correction = {}
    left_out: list[str] = []
    for problem in error.problems:
        if problem.lengths and isinstance(source, str | os.PathLike):
            source, told.preparation = with_texts(read_table(source), problem.lengths)
    for _ in range(_MOST_FIXES):
        proposals = [problem.fix for problem in error.problems if problem.fix and problem.code[0] == "E"]
        if not proposals and not (told is error and told.preparation):
            break
        left_out += [
            problem.what
            for problem in error.problems
            if problem.code[0] == "E" and _leaves_out_rows(problem.fix)
        ]
        for proposal in proposals:
            fix = _join_options(fix, proposal)
        corrected_request = request.with_options(fix)
        try:
            table, read = _read_table(fix.get("source", source), corrected_request)
        except DataError as other:
            error = other
        else:
            is_open = "annotator" not in {*table.theirs, *corrected_request.columns}
            sides = {*fix.get("winners", {}).values()}
            told.left_out = tuple(dict.fromkeys(left_out))
            told.fix = {**fix, "source": "with_lengths.csv"} if told.preparation else fix
            told.unused = unused_columns(table) if is_open and table.rows is None else ()
            if {*TURNED} & sides - {"tie"}:
                told.question, told.answers, told.shown = _asked_of_labels(
                    table, corrected_request.winners
                )
            elif {"layout", "columns"} & {*fix}:
                told.shown = _describe_votes(read, table)
                number = fix.get("columns", {}).get("rating_a", "")
                is_tick = (
                    number
                    and names_vote(number)
                    and {*as_ratings(table.frame[number].dropna())} <= {1.0, 0.0}
                )
                if number and not which_wins(number) and not is_tick:
                    told.question = f"do higher numbers in {number} mean a better answer? The table does not say this:"
                    told.answers = ("the higher number is better", "the lower number is better")
            told.others = (*_other_meanings(told), *_other_pairs(told.fix, table))
            return


def _join_options(options: Correction, others: Correction) -> Correction:
    """Merge two sets of options; an option in ``others`` replaces the same option in ``options``.

    The entries of ``columns`` and ``winners`` in ``others`` are added to those in ``options``.
    """
    joined: Correction = {**options, **others}
    if "columns" in options and "columns" in others:
        joined["columns"] = {**options["columns"], **others["columns"]}
    if "winners" in options and "winners" in others:
        joined["winners"] = {**options["winners"], **others["winners"]}
    return joined


def _leaves_out_rows(fix: Correction) -> bool:
    return fix.get("bad_rows") == "drop" or _SKIP in fix.get("winners", {}).values()


def _other_meanings(error: DataError) -> list[tuple[str, Correction]]:
    """Return options under which rows that ``error.fix`` leaves out count as ties."""
    winners = error.fix.get("winners", {})
    ties = {label: "tie" for label, side in winners.items() if side == _SKIP}
    if not ties:
        return []
    skipped = " and ".join(_meaning(label, _SKIP) for label in ties)
    fixes = zip(error.answers or (skipped,), (error.fix, error.turned), strict=False)
    return [
        (answer.replace(_OTHERS[_SKIP], _OTHERS["tie"]), {**fix, "winners": {**fix["winners"], **ties}})
        for answer, fix in fixes
    ]


def _other_pairs(fix: Correction, table: Table) -> list[tuple[str, Correction]]:
    """Return options for each pair of rating columns that ``fix`` does not read."""
    columns = fix.get("columns", {})
    number = next((ours for ours in ("rating_a", "rank_a") if ours in columns), None)
    if number is None:
        return []
    others = {ours: name for ours, name in columns.items() if ours not in RATED}
    return [
        (f"{a} and {b} are the ratings to read", {**fix, "columns": {**others, **rated_pair(a, b)}})
        for a, b in columns_of_sides([*table.frame])
        if a != columns[number] and compare_answers(table.frame, (a, b))
    ]


_OTHERS = {"tie": "a tie", _SKIP: "no vote"}


def _meaning(label: str, side: str) -> str:
    return f"{label or 'an empty cell'} means {_OTHERS[side]}"


def _asked_of_labels(
    table: Table, winners: Mapping[str, str]
) -> tuple[str, tuple[str, str], tuple[str, ...]]:
    """Return a question for the user about the meaning of the labels, its two possible answers, and rows to show.

    The question asks which side was preferred in one row of the table. The first of the two possible answers agrees
    with the label meanings in ``winners``, and the second answer contradicts these meanings.
    """
    has_texts = table.frame[[*_A_B]].notna().all(axis=1).to_numpy()
    written = _filled(as_ids(table.frame["winner"]), winners)
    of_rows: Objects = np.where(has_texts, written, np.array(None))
    labels = _Labels.of(of_rows, table, winners)
    known = {label: side for label, (side, _) in zip(labels.distinct, labels.sides, strict=True) if side}
    scale, winner = labels.scale, table.theirs["winner"]
    # the labels with the clearest preference come first: the two ends of a scale, the high end before the low end
    order = sorted(
        known,
        key=lambda label: (
            known[label] == "tie",
            *((-abs(number_of(label) - scale.middle), -number_of(label)) if scale else ()),
        ),
    )[:_SHOWN_ROWS]
    shown = []
    for label in order:
        row = int(np.flatnonzero(labels.cells == label)[0])
        cells = {winner: label, **{table.theirs[side]: table.frame.at[row, side] for side in _A_B}}
        texts = (f"{name} {_beginning(_plain(text))}" for name, text in cells.items())
        shown.append(f"row {table.row_name(row)}: {', '.join(texts)}")
    at = shown[0].partition(":")[0]
    ties = [_meaning(label, side) for label, side in winners.items() if side in _OTHERS]
    meant = f" (and {' and '.join(ties)})" * bool(ties)
    own, other = (
        table.theirs[f"response_{side}"] for side in (known[order[0]], TURNED[known[order[0]]])
    )
    a, b = (table.theirs[side] for side in _A_B)
    question = f"in {at}, {winner} is {_beginning(order[0])}: is {a} or {b} better? The table does not say this:"
    return (
        question,
        (f"{own} is better in {at}{meant}", f"{other} is better in {at}{meant}"),
        tuple(shown),
    )


def _plain(cell: object) -> str:
    """Return the plain text of a cell, or ``str(cell)`` if the cell holds neither text nor messages."""
    try:
        return plain_text(cell if isinstance(cell, str) else as_messages(cell))
    except ValueError:
        return str(cell)


def _filled(cells: Objects, winners: Mapping[str, str]) -> Objects:
    """If ``winners`` gives empty cells a meaning, replace each empty cell with an empty string."""
    return as_objects(_EMPTY if cell is None and _EMPTY in winners else cell for cell in cells)


class _Labels(NamedTuple):
    """The labels in the winner column of a table, and the meaning of each label."""

    cells: Objects  # the label of each row, or None if the row has no label or nobody judged the row
    number: Ints  # the index of each row's label in ``distinct``, or -1 if the row has no label
    distinct: Sequence[str]
    stated: Mapping[str, str]  # the meanings of labels that the column name or number columns define
    stated_by: str  # what defines the meanings in ``stated``, as a phrase for messages
    scale: RatingScale | None
    sides: list[tuple[str, str]]  # the result of `side_told` for each label in ``distinct``

    @classmethod
    def of(cls, cells: Objects, table: Table, winners: Mapping[str, str]) -> "_Labels":
        """Interpret the labels in a table's winner column; ``winners`` contains the meanings that the user gave."""
        skips = {str(label) for label, side in winners.items() if side == _SKIP}
        labels = filter(pd.notna, pd.unique(cells))
        is_skipped = {label: label in skips or _SKIPPED.fullmatch(folded(label)) for label in labels}
        cells = as_objects(None if is_skipped.get(cell) else cell for cell in cells)
        winners = {label: side for label, side in winners.items() if side != _SKIP}
        number, distinct = pd.factorize(cells)
        # if the user gives a meaning only to ties, a column name may still define the meaning of the other labels
        are_told = bool({*winners.values()} - {"tie"})
        stated = {} if are_told else _stated(table.theirs["winner"], distinct)
        told = stated | {str(label): side for label, side in winners.items()}
        columns = [folded(table.theirs[name]) for name in _A_B]
        # labels that are ids of the preferred answers are not ratings, even if the ids are numbers
        scale = None
        if not _are_names_of_answers(cells, table.frame):
            scale = scale_of(distinct, told, table.kind == "rating")
        # of the labels 1 and 2, 1 means the first side; of the labels 0 and 1, 1 may mean either side
        are_places = {*filter(math.isfinite, map(number_of, distinct))} == {1.0, 2.0}
        sides = [side_told(label, told, columns, scale, are_places) for label in distinct]
        stated_by = "as the column is called" * bool(stated)
        if not are_told and scale is None and not any(side for side, _ in sides if side != "tie"):
            is_tie = pd.Series(cells).isin([*winners])
            stated, stated_by = _stated_by_numbers(np.where(is_tie, np.array(None), cells), table.frame)
            sides = [
                (stated[label], "name") if label in stated else side
                for label, side in zip(distinct, sides, strict=True)
            ]
        mirrored = mirrored_sides(filter(None, distinct))
        known = [
            (label, side) for label, (side, _) in zip(distinct, sides, strict=True) if side in ("a", "b")
        ]
        if known and all(mirrored.get(label) == side for label, side in known):
            # the labels differ only in the word for the side, so the known labels explain the other labels
            sides = [
                each if each[0] or mirrored[label] == "tie" else (mirrored[label], "order")
                for label, each in zip(distinct, sides, strict=True)
            ]
        return cls(cells, number, distinct, stated, stated_by, scale, sides)


def _are_names_of_answers(cells: Objects, frame: pd.DataFrame) -> bool:
    """Return whether nearly every label is the id or the name of one of the two answers in its row."""
    labels = pd.Series(cells, frame.index)
    labels = labels[labels.notna() & ~labels.isin([*TURNED, _EMPTY])]
    for pair in names_of_sides(frame):
        a, b = (labels == ids_in(frame.loc[labels.index, name]) for name in pair)
        if (a != b).sum() >= NEARLY_ALL * len(labels) > 0:
            return True
    return False


def _stated_by_numbers(labels: Objects, frame: pd.DataFrame) -> tuple[dict[str, str], str]:
    """Infer from columns of numbers which side each label means; return the sides, and a phrase that names the columns.

    Each pair of columns, such as ``score_a`` and ``score_b``, holds a number for each side, and the column names say
    whether the higher number wins. If no pair of columns agrees with almost all labels, or if two pairs contradict each
    other, the result contains no sides, and the phrase is empty.
    """
    n = int(pd.notna(labels).sum())
    found: dict[str, dict[str, str]] = {}
    for names in columns_of_sides([name for name in frame if which_wins(str(name))]):
        a, b = (as_numbers(frame[name]) for name in names)
        ahead = np.sign(b - a if which_wins(names[0]) == "low" else a - b)
        counts = pd.crosstab(labels, ahead)
        if n >= _FEWEST_AGREEING and counts.max(axis=1).sum() >= _AGREEING * n:
            found[" and ".join(names)] = counts.idxmax(axis=1).map({1: "a", -1: "b", 0: "tie"}).to_dict()
    sides = next(iter(found.values()), {})
    is_clear = {"a", "b"} <= {*sides.values()} and len({*sides.values()}) == len(sides)
    if not is_clear or any(other != sides for other in found.values()):
        return {}, ""
    return sides, f"as {listed([*found])} say"


def rows_in_words(
    votes: pd.DataFrame,
    comparisons: pd.DataFrame,
    pseudonyms: pd.Series | None,
    labels: pd.Series | None = None,
) -> tuple[str, ...]:
    """Describe a few votes in words; if both sides have votes, include at least one vote for each side.

    The tables are those of `badpo.data.judgments.Judgments`. ``pseudonyms`` contains the pseudonyms of the annotators,
    or is None if the table names no annotators. If ``labels`` are given, each description ends with the label of the
    row.
    """
    firsts = votes.index[~votes["sign"].duplicated()]
    descriptions = []
    for vote in votes.loc[sorted({*firsts, *votes.index[:_SHOWN_ROWS]})[:_SHOWN_ROWS]].itertuples():
        texts = comparisons.loc[vote.comparison, ["response_a", "response_b"]].to_list()
        won, lost = (_beginning(plain_text(text)) for text in texts[:: vote.sign])
        who = "" if pseudonyms is None else f"{pseudonyms.iat[vote.annotator]} "
        label = "" if labels is None else f", in the table {_beginning(str(labels[vote.row]))}"
        descriptions.append(f"row {vote.row + 1:,}: {who}preferred {won} over {lost}{label}")
    return tuple(descriptions)


def _describe_votes(read: VotesRead, table: Table) -> tuple[str, ...]:
    pseudonyms = read.annotators["pseudonym"] if read.has_identities else None
    labels = table.frame.get("winner") if table.rows is None else None
    return rows_in_words(read.votes, read.comparisons, pseudonyms, labels)


def _read_table(source: Source | Table, request: Request) -> tuple[Table, VotesRead]:
    """Read a table; return the table with badpo's column names, and the result of `read_votes`."""
    file = read_table(source, request.bad_rows == "drop")
    table = recognise(file, request.columns, request.layout)
    return table, _read_rows(table, request)


def _read_rows(table: Table, request: Request) -> VotesRead:
    if not len(table.frame):
        raise DataError([Problem("E104", "the table has no rows", table.name, "export it again")])
    found = Findings(table, request.bad_rows == "drop")
    rows = pd.DataFrame(index=table.frame.index)
    annotators = _annotators(rows, request.annotators_missing, found)
    for code, names, what, remedy in _NOT_READ:
        there = [name for name in names if name in table.frame and name not in request.keep]
        if has_cells := [name for name in there if table.frame[name].notna().any()]:
            found.note(code, f"{what}: {', '.join(has_cells)}", remedy, len(has_cells))
    texts = _texts(rows, found)
    _compare(rows, found)
    _answers(rows, request.winners, texts, found)
    carried = _carried((*request.keep, *found.kept), request.pairs, found)
    found.stop_at_errors()
    _not_used(found, {*carried, *request.columns})
    votes, ties, dropped = _votes(rows, request.repeated, found)
    read = _content(votes, dropped, annotators, texts, carried, found)
    findings = tuple(
        replace(each, shown=_describe_votes(read, table)) if each.code == "N107" else each
        for each in found.problems
    )
    # the list of findings is complete before the rows of ties are processed, so `found` reports no further problems
    undecided = _content(ties, dropped.head(0), annotators, texts, carried, found) if len(ties) else None
    return replace(read, findings=findings, ties=undecided)


def _content(
    votes: pd.DataFrame,
    dropped: pd.DataFrame,
    annotators: pd.DataFrame,
    texts: Objects,
    carried: dict[str, tuple[Objects, Objects]],
    found: Findings,
) -> VotesRead:
    """Build the tables of comparisons, votes and annotators.

    The first vote on a comparison defines response a and response b. If a later vote has the two responses in the
    opposite order, its sides are exchanged.
    """
    table = found.table
    number, _ = pd.factorize(votes["comparison"])
    first = votes["first"].to_numpy()[~votes["comparison"].duplicated()]
    turn = np.where(votes["first"] == first[number], 1, -1)
    turned = {name: votes[name] * turn for name in ("sign", "shown")}
    votes = votes.assign(number=number, turn=turn, **turned)
    firsts = votes[~votes["number"].duplicated()]
    comparisons = _comparisons(votes, firsts, texts, found)
    annotator, order = pd.factorize(votes["annotator"])
    shown = pd.Series(as_objects([None, "a", "b"])[votes["shown"]], votes.index, dtype=object)
    row = votes.index if table.rows is None else table.rows[votes.index]
    read = votes.assign(comparison=votes["number"], annotator=annotator, row=row, shown_first=shown)
    read = read[[*VOTE_COLUMNS]]
    for name, (values, other) in carried.items():
        read[name] = np.where(votes["turn"] < 0, other[votes.index], values[votes.index])
        of_comparison = read.loc[firsts.index, name].reset_index(drop=True)
        if of_comparison[votes["number"]].set_axis(read.index).equals(read[name]):
            comparisons[name] = of_comparison
    voters = annotators.iloc[order].reset_index(drop=True)
    has_identities = "annotator" in table.theirs
    return VotesRead(comparisons, read.reset_index(drop=True), voters, has_identities, dropped)


# Most of the following functions read columns of the table and add columns of numbers and ids to ``rows``.

# -- who voted -------------------------------------------------------------------------------------------------


def _annotators(rows: pd.DataFrame, missing: str, found: Findings) -> pd.DataFrame:
    """Add the column ``annotator`` to ``rows`` (-1 for rows without an annotator), and return the table of annotators.

    The table of annotators contains the pseudonym and the class of each annotator, and the name of each annotator that
    is a model.
    """
    if "annotator" not in found.frame:
        _report_no_annotators(found)
        rows["annotator"] = 0
        return pd.DataFrame(
            {"pseudonym": [EVERYONE], "annotator_class": [None], "model": [None]}, dtype=object
        )
    remedy = (
        "fill in the annotator, or read the table without annotators, which keeps all votes; with "
        "annotators_missing=drop (--annotators-missing drop), badpo leaves out the rows without an annotator"
    ) * (missing == "error")
    # if only a few rows lack an annotator, propose to drop these rows rather than all annotators
    n_missing = int(ids_in(found.frame["annotator"]).isna().sum())
    is_few = n_missing <= FEW_ROWS * len(rows)
    fix: Correction = {"bad_rows": "drop"} if is_few else {"columns": {"annotator": None}}
    number, raw_ids = pd.factorize(found.ids("annotator", "E112", remedy, fix))
    named = pseudonyms(list(raw_ids))
    found.pseudonyms = as_objects([*named, None])[number]
    rows["annotator"] = number
    empty = {"annotator_class": None, "model": None}
    annotators = pd.DataFrame({"pseudonym": named, **empty}, dtype=object)
    label = pd.Series(found.ids("annotator_class", "E112"), dtype=object)
    first = label.groupby(number).first().reindex(range(len(named)))
    if label.notna().any():
        is_model = (first.str.strip().str.casefold() == MODEL_CLASS).to_numpy()
        annotators.loc[is_model, "model"] = model_names(raw_ids[is_model])
        conflict = label.notna() & (number >= 0) & (label != first.reindex(number).to_numpy())
        what = "an annotator has a different annotator_class than in an earlier row"
        remedy = "give each annotator one class, or leave the column out"
        fix = {"columns": {"annotator_class": None}}
        found.rows("E115", what, "annotator_class", conflict, remedy, fix)
    secret = as_objects(raw_ids)
    secret[raw_ids == annotators["model"].fillna(annotators["pseudonym"])] = None
    found.raw_ids = as_objects([*secret, None])[number]
    first = as_objects(first.where(first.notna(), None))
    classes = _without_ids("annotator_class", first, secret, found)
    # the class of an annotator is None if it is unknown
    annotators["annotator_class"] = pd.Series(classes, dtype=object)
    _report_ids(raw_ids, annotators["pseudonym"], found)
    return annotators


def _report_no_annotators(found: Findings) -> None:
    """Report that the table has no annotator column, and list columns that may name the annotators."""
    like = like_annotators(name for name in found.frame if name not in KNOWN)
    what = f'no annotator column: all votes count as one annotator, "{EVERYONE}"'
    remedy = "nothing, if you estimate a pooled bias; the bias of each annotator requires a column of annotator ids"
    if like:
        remedy = f'map the column; "{like[0]}" looks like it'
    elif unused := unused_columns(found.table):
        remedy += f"; if one of these columns names the annotators, map it: {listed(unused)}"
    mapped: Correction = {"columns": {"annotator": like[0]}} if like else {}
    found.note("W110" if like else "N110", what, remedy, fix=mapped)


def _report_ids(raw_ids: Objects, names: pd.Series, found: Findings) -> None:
    """Report raw ids that identify people directly, and groups of annotators whose ids differ only in spelling."""
    if kinds := direct_identifiers(list(raw_ids)):
        what = f"annotator ids look like {' and '.join(kinds)}; badpo replaced them with pseudonyms while reading"
        remedy = "share only the imported table, which holds pseudonyms, not the source table"
        found.note("W301", what, remedy)
    groups = names.groupby([*map(folded_id, raw_ids)], sort=False)
    if alike := [" and ".join(group) for _, group in groups if len(group) > 1]:
        n = counted(len(alike), "group")
        what = f"{n} of annotators whose ids differ only in case, spaces or leading zeros"
        remedy = f"if each group is one person, spell the person's ids the same way before reading: {listed(alike)}"
        found.note("W113", what, remedy, len(alike))


def _without_ids(name: str, cells: Objects, owners: Objects, found: Findings) -> Objects:
    """Replace cells that contain a raw annotator id with pseudonyms; return all cells of the column.

    If any cell contains a raw id, all cells of the column become strings. If no cell contains a raw id, all cells stay
    unchanged.
    """
    texts = as_ids(cells)
    hidden = hidden_ids(texts.tolist(), owners.tolist(), inside=name in (*_IDS, "annotator_class"))
    if not (n := sum(text in hidden for text in texts)):
        return cells
    n_there = int(pd.notna(cells).sum())
    of_all = f"{n:,} of {counted(n_there, 'annotator' if name == 'annotator_class' else 'cell')}"
    if name == "annotator_class" and 2 * n > n_there:
        what = f"annotator_class holds annotator ids, and badpo would write them to files unchanged: {of_all}"
        remedy = 'leave the column unused; badpo shows the name of an annotator only if its annotator_class is "model"'
        found.note("E118", what, remedy, n, name, fix={"columns": {name: None}})
    else:
        what = f"{name} holds annotator ids: {of_all}; pseudonyms replaced these cells while reading"
        remedy = 'nothing has to be done; badpo shows the name of an annotator only if its annotator_class is "model"'
        found.note("W302", what, remedy, n, name)
    return as_objects([hidden.get(text, text) for text in texts])


# -- what was compared -----------------------------------------------------------------------------------------


def arrange(prompt: Text | None, first: Text, second: Text) -> tuple[Text, Text, Text]:
    """Convert the prompt and the two responses of a row to the same form: text, or lists of messages.

    Either both responses must be text, or both must be lists of messages. If the row has no prompt, or if the prompt is
    text and the responses are whole conversations, the common prefix of the two responses becomes the prompt, as in
    TRL. If the common prefix contains "Assistant:" markers, the prompt ends after the last marker. If either the prompt
    or the responses are lists of messages, the other texts become messages too.
    """
    chat = not isinstance(first, str)
    if prompt is None or (chat and isinstance(prompt, str)):
        n_shared = shared_beginning(first, second)
        if not chat and (asked := str(first).rfind(ANSWERS_HERE, 0, n_shared)) >= 0:
            n_shared = asked + len(ANSWERS_HERE)
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
    """Return the number of characters or messages in the common prefix of two responses.

    The common prefix is never a whole response, so removing it never leaves a response empty. A space at the end of the
    common prefix stays with the responses, as in TRL.
    """
    low, high = 0, max(0, min(len(first), len(second)) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    differs = first[low : low + 1] != second[low : low + 1]
    gives_back = isinstance(first, str) and differs and low > 0 and first[low - 1] == " "
    return low - 1 if gives_back else low


def _texts(rows: pd.DataFrame, found: Findings) -> Objects:
    """Add the columns ``prompt``, ``first`` and ``second`` to ``rows``, and return the distinct texts.

    The added columns contain indices into the array of distinct texts. If a row has an error, its index is negative.
    The column ``first`` contains the index of response a or of the chosen response.
    """
    has_prompt = "prompt" in found.frame
    sides = _CHOSEN if found.table.kind == "chosen_rejected" else _A_B
    names = [*["prompt"] * has_prompt, *sides]
    numbers, texts = numbered_cells(found.frame[names].to_numpy(dtype=object).ravel("F"))
    codes = numbers.reshape(len(names), -1)
    faults = as_objects(str(text) if isinstance(text, ValueError) else "" for text in texts)
    remedy = 'give text, or a list of messages with "role" and "content"'
    for name, column in zip(names, codes, strict=True):
        found.rows("E134", f"no {name}", name, column == -1, "fill in the text, or leave out the row")
        for why in filter(None, dict.fromkeys(faults)):
            found.rows("E105", f"{name} cannot be read, {why}", name, (faults == why)[column], remedy)
    is_read = np.array([isinstance(text, (str, list)) for text in texts])
    codes[:, ~is_read[codes].all(axis=0)] = -1
    is_text = np.array([isinstance(text, str) for text in texts])
    mixed = is_text[codes[-2]] != is_text[codes[-1]]
    what = "one response is a text and the other response is a list of messages"
    found.rows("E105", what, None, mixed, "give both responses in the same form")
    codes[:, mixed] = -1
    if not has_prompt or (is_read & ~is_text).any():
        texts, codes = _arranged(texts, codes)
        is_text = np.array([isinstance(text, str) for text in texts])[codes[0]]
        if (is_text != (codes[0] >= 0)).any():
            what = "some rows hold texts and other rows hold chat messages; the listed rows hold texts"
            found.rows("E105", what, None, is_text, "write all rows in the same form")
    contents = (
        "".join(message["content"] for message in text) if isinstance(text, list) else str(text)
        for text in texts
    )
    blank = np.array([not content.strip() for content in contents])[codes]
    if has_prompt and all(texts[code] == "" for code in np.unique(codes[0])):
        blank[0] = False
        what = "the table has no prompts: comparisons are identified by their two responses"
        found.note("N103", what, "map the column of prompts, if there is one")
    elif has_prompt:
        found.rows(
            "E134", "empty prompt", "prompt", blank[0], "fill in the prompt, or leave out the row"
        )
    else:
        what = f"there is no prompt, and {sides[0]} and {sides[1]} do not have the same beginning"
        others = [name for name in found.frame if name not in KNOWN and holds_texts(found.frame[name])]
        prompts = others[0] if len(others) == 1 else None
        fix: Correction | None = None
        if prompts or 2 * blank[0].sum() > len(rows):
            fix = {"columns": {"prompt": prompts}}
        found.rows("E134", what, None, blank[0], "map the column of prompts", fix)
    for name, is_blank in zip(sides, blank[1:], strict=True):
        remedy = "check the export; the votes are kept, because an empty response can be an answer"
        found.rows("W134", f"empty response ({name})", name, is_blank, remedy)
    # mark rows without a prompt as faulty, so that different texts in their comparison do not cause a second error
    codes[0, blank[0]] = -1
    rows[["prompt", "first", "second"]] = codes.T
    return texts


def _arranged(texts: Objects, codes: Ints) -> tuple[Objects, Ints]:
    """Apply `arrange` to each distinct row; return the new distinct texts and the rows' indices into them."""
    distinct, number = np.unique(codes, axis=1, return_inverse=True)
    arranged = np.full((3, distinct.shape[1]), None, dtype=object)
    for i, row in enumerate(distinct.T):
        if row[-1] >= 0:
            # if the table has no prompt column, the prompt is None
            arranged[:, i] = as_objects(arrange(*[None, *texts[row]][-3:]))
    numbers, texts = numbered_cells(arranged.ravel())
    return texts, numbers.reshape(3, -1)[:, number]


def _compare(rows: pd.DataFrame, found: Findings) -> None:
    """Add to each row the index of its pair of texts, the index of its comparison, and the table's ids."""
    low, high = np.sort(rows[["first", "second"]]).T
    pair = rows.groupby([rows["prompt"], low, high], sort=False).ngroup()
    rows["pair"] = rows["comparison"] = pair.where((rows["prompt"] >= 0) & (low >= 0), -1)
    for name in ("judgment_id", "comparison_id", "prompt_id"):
        if name in found.frame:
            remedy = "fill in the ids, or leave out the column"
            ids = found.ids(name, "E108", remedy, {"columns": {name: None}})
            ids = _without_ids(name, ids, found.raw_ids, found) if name in _IDS else ids
            rows[name] = pd.Series(ids, dtype=object)
    if "judgment_id" in rows:
        twice = rows["judgment_id"].notna() & rows["judgment_id"].duplicated(keep=False)
        what, remedy = "the same judgment_id is in several rows", "keep one row for each judgment"
        found.rows("E132", what, "judgment_id", twice, remedy, {"columns": {"judgment_id": None}})
    if "comparison_id" in rows:
        rows["comparison"] = pd.factorize(rows["comparison_id"])[0]
        known = rows["pair"].where((rows["pair"] >= 0) & (rows["comparison"] >= 0))
        first = known.groupby(rows["comparison"]).transform("first")
        what = "an earlier row has the same comparison_id and different texts"
        remedy = (
            "give each pair of responses its own comparison_id, or leave out the column comparison_id"
        )
        is_other = known.notna() & (known != first)
        found.rows("E116", what, "comparison_id", is_other, remedy, {"columns": {"comparison_id": None}})


# -- what was answered -----------------------------------------------------------------------------------------


def _answers(rows: pd.DataFrame, winners: Mapping[str, str], texts: Objects, found: Findings) -> None:
    """Add the columns ``sign``, ``weight`` and ``shown`` to ``rows``.

    ``shown`` is the sign of the side that was shown first, or 0 if the table does not say which side this was.
    """
    rows["sign"], rows["weight"] = 1, 1.0
    if found.table.kind != "chosen_rejected":
        rows["sign"] = _winners(rows, winners, texts, found)
    elif winners:
        what = "the option winners is given, but the table has columns chosen and rejected instead of labels"
        remedy = (
            "leave out the option winners; if chosen and rejected are reversed, exchange the columns"
        )
        found.note("E107", what, remedy)
    if "weight" in found.frame:
        rows["weight"] = weight = as_numbers(found.frame["weight"])
        wrong = ~(np.isfinite(weight) & (weight > 0))
        remedy = "write a positive weight, or leave out the row"
        found.rows("E106", "the weight is not a positive number", "weight", wrong, remedy)
    rows["shown"] = _shown_first(found)
    _said_otherwise(rows, texts, found)


def _said_otherwise(rows: pd.DataFrame, texts: Objects, found: Findings) -> None:
    """Compare the votes with other columns that may name the winner.

    A table with chosen and rejected responses may also have a column ``winner``, and a table with winners may also have
    columns ``chosen`` and ``rejected``. If the additional column contradicts a vote, the function reports an error for
    the row. If no cell of the additional column names a side, a notice says that the column is not read.
    """
    is_chosen = found.table.kind == "chosen_rejected"
    for name, sign in ({"winner": 1} if is_chosen else {"chosen": 1, "rejected": -1}).items():
        if name not in found.frame:
            continue
        labels = found.frame[name].to_numpy(dtype=object)
        # in a table of chosen and rejected responses, the labels a and b mean nothing
        # numbers are not read as labels, because they may count from 0 or from 1
        words = [] if is_chosen else few_labels(found.frame[name])
        known = {one: side[0] for one in words if math.isnan(number_of(one)) and (side := side_of(one))}
        said = as_objects([""] * len(labels))
        # compare labels with the answers first, because a label "A" may be the text of one of the two answers
        _by_row(labels, said, rows, texts, found)
        words = [known.get(cell, "") if isinstance(cell, str) else "" for cell in labels]
        said = np.where(said == "", as_objects(words), said)
        signs = pd.Series(said).map({**_WINNERS, "": 0}).to_numpy() * sign
        read = "chosen and rejected" if is_chosen else "winner"
        what, remedy = f"{name} names a different side than {read}", "leave the wrong column unused"
        wrong = signs * rows["sign"].to_numpy() < 0
        found.rows("E117", what, name, wrong, remedy, {"columns": {name: None}})
        if not signs.any():
            what = f"{name} is not read beside {read}"
            found.note("N103", what, f"nothing, unless {name} says who won", len(labels), name)


def _shown_first(found: Findings) -> Ints:
    is_chosen = found.table.kind == "chosen_rejected"
    known = {name: sign for name, sign in _FIRST_SHOWN.items() if is_chosen or name in "ab"}
    labels = pd.Series(found.ids("shown_first", "E109"), dtype=object)
    named = {
        label: [label.strip().casefold(), *(side_of(label) or ())] for label in labels.dropna().unique()
    }
    meant = {label: known[name] for label, names in named.items() for name in names[:2] if name in known}
    unknown = [label for label in named if label not in meant]
    remedy = f"write {' or '.join(known)}, or leave the cell empty"
    hidden = hidden_ids(labels.tolist(), found.raw_ids.tolist(), inside=True) if unknown else {}
    what = f"unknown shown_first {_quoted(unknown, hidden)}"
    found.rows("E109", what, "shown_first", labels.isin(unknown), remedy)
    signs: Ints = labels.map(meant).fillna(0).to_numpy(dtype=np.int64)
    return signs


def _winners(rows: pd.DataFrame, winners: Mapping[str, str], texts: Objects, found: Findings) -> Ints:
    """Return the sign of each row's winner: +1 for a, -1 for b, and 0 for a tie or an unknown label.

    A meaning that the user gave to a label takes precedence. A label without a given meaning may name a side, a
    response column, or the preferred text or model of its row. If the labels do not match the names of the response
    columns, a notice reports how the labels were read. A label that could mean either side is an error.
    """
    remedy = "write a, b or tie, or say whether an empty cell means a tie or no vote (skip)"
    n_empty = int(ids_in(found.frame["winner"]).isna().sum()) if "winner" in found.frame else 0
    fix: Correction | None = {"winners": {_EMPTY: _SKIP}} if 2 * n_empty < len(rows) else None
    written = found.ids("winner", "E107", "" if _EMPTY in winners else remedy, fix)
    written = _filled(written, winners)
    labels = _Labels.of(written, found.table, winners)
    found.bad[pd.isna(labels.cells) & ~pd.isna(written)] = "skipped"
    # report an error if the option winners names labels for side a or b, but none of its labels occurs
    given = [*map(str, winners)]
    if {"a", "b"} & {*winners.values()} and not labels.scale and {*given}.isdisjoint(labels.distinct):
        hidden = hidden_ids(labels.cells.tolist(), found.raw_ids.tolist(), inside=True)
        named, there = (_quoted(words, hidden) for words in (given, labels.distinct))
        what = f"no row has the winner {named}; the winners in the table are {there}"
        found.note("E107", what, "write labels as the table has them", column="winner")
    side = as_objects([*(side for side, _ in labels.sides), ""])[labels.number]
    _by_row(labels.cells, side, rows, texts, found)
    if labels.scale:
        values = np.array([*map(number_of, labels.distinct), np.nan])[labels.number]
        found.frame = found.frame.assign(strength=np.abs(values - labels.scale.middle))
        found.kept.append("strength")
    _report_meanings(labels, found)
    _report_unknown(labels, side, found)
    signs: Ints = pd.Series(side).map({**_WINNERS, "": 0}).to_numpy(dtype=np.int64)
    return signs


def _report_meanings(labels: "_Labels", found: Findings) -> None:
    """Report how badpo read labels that do not name a response, such as ratings and the labels 1 and 2."""
    scale, stated_by = labels.scale, labels.stated_by
    by_order = {
        label: side
        for label, (side, how) in zip(labels.distinct, labels.sides, strict=True)
        if how == "order" or (label in labels.stated and side != "tie")
    }
    if scale and scale.high:
        what = (
            f"{_on_scale(scale)}: a high rating prefers {scale.high}{', ' * bool(stated_by)}{stated_by}"
        )
        told, remedy = labels.stated, "strength goes along with the votes"
        remedy += "; where the other answer was preferred" * bool(told)
    elif by_order:
        pairs = ", ".join(f'"{label}" = {side}' for label, side in by_order.items())
        what = f"winners read {stated_by or 'by their order'}: {pairs}"
        told, remedy = by_order, "where the other answer was preferred"
    else:
        return
    turned = {label: TURNED[side] for label, side in told.items()}
    fix: Correction = {"winners": turned} if turned else {}
    found.note("N107", what, remedy, len(labels.cells), "winner", fix=fix)


def _on_scale(scale: RatingScale) -> str:
    return f"ratings from {scale.low:g} to {scale.end:g}, {scale.middle:g} in the middle"


def _report_unknown(labels: "_Labels", side: Objects, found: Findings) -> None:
    """Report labels whose side is unknown, and propose meanings for them."""
    scale, n_rows = labels.scale, len(labels.cells)
    is_unknown = (side == "") & ~pd.isna(labels.cells)
    if not is_unknown.any():
        return
    of_unknown = pd.Series(labels.cells[is_unknown]).value_counts()
    counts = {str(label): int(n) for label, n in of_unknown.items()}
    unknown, n = [*counts], int(is_unknown.sum())
    hidden = hidden_ids(labels.cells.tolist(), found.raw_ids.tolist(), inside=True)
    quoted = _quoted(unknown, hidden)
    sides = [folded(found.table.theirs.get(name, name)) for name in _A_B]
    voters = [str(who) for who in pd.unique(found.raw_ids) if who is not None]
    are_sides = [bool(side_told(who, {}, sides, None, False)[0]) for who in voters]
    are_ratings = scale is not None and scale.end <= _LARGEST_RATING
    if len(unknown) > len(voters) > 0 and all(are_sides) and not are_ratings:
        # the labels in the winner column are people's ids
        what = 'the column "annotator" names the winners; the labels in "winner" are not shown, as they may be ids'
        turned = {name: found.table.theirs.get(other, other) for name, other in _EXCHANGED.items()}
        remedy = "exchange the columns"
        found.rows("E107", what, "winner", is_unknown, remedy, {"columns": turned})
    elif meanings := {} if hidden else proposed(counts, {*side} - {""}, scale):
        # a label has the same meaning in all rows, so bad_rows=drop must not drop individual rows with an unknown label
        said = _on_scale(scale) if scale else f"unknown winner {quoted}"
        what = f"{said}: {n:,} of {counted(n_rows, 'row')}"
        remedy = (
            f"say what {'a high rating prefers' if scale else 'the labels mean'}, or write a, b or tie"
        )
        index = np.flatnonzero(is_unknown)
        found.note("E107", what, remedy, n, "winner", index, {"winners": meanings})
    else:
        remedy = "write a, b or tie, or say what the labels mean"
        is_few = n <= max(1, FEW_ROWS * n_rows) and len(unknown) <= LISTED
        # if the other labels name both sides, one unknown label probably means a tie or no vote
        is_few |= len(unknown) == 1 and {"a", "b"} <= {*side} and 2 * n < n_rows
        are_labels = not hidden and max(map(len, unknown)) <= _SHOWN_CHARACTERS
        fix: Correction | None = None
        if is_few and are_labels:
            fix = {"winners": dict.fromkeys(unknown, _SKIP)}
        found.rows("E107", f"unknown winner {quoted}", "winner", is_unknown, remedy, fix)


# labels that say that nobody judged the row
_SKIPPED = re.compile(
    "(?:i_)?skip(?:ped|_this|_task)?|übersprungen|uebersprungen|omitido|saltado|omitida|passé|sauté|saltato|pulado|"
    "跳过|スキップ|건너뛰기|пропущено|пропустить|invalid|no_answer|not_answered|keine_angabe|k_a|n_a|timeout|timed_out"
)


def _stated(header: str, labels: Sequence[str]) -> dict[str, str]:
    """Derive from the name of a winner column what numbers, grades, or the labels yes and no mean."""
    told, numbers = direction_of(header), [number_of(label) for label in labels]
    if told.keys() == {"0", "1"} and 2.0 in numbers:
        return {}  # the labels count the answers from 1
    if told.keys() != {"high"}:
        return told
    yes, no = told["high"], TURNED[told["high"]]
    if grades := graded(labels):
        # the column name is a statement such as "A is better than B", and each label is a degree of agreement
        return {
            label: yes if grade > 0 else no if grade < 0 else "tie" for label, grade in grades.items()
        }
    of_numbers = {1.0: yes, 0.0: no}
    of_words = dict.fromkeys(YES, yes) | dict.fromkeys(NO, no)
    sides = [
        of_numbers.get(number) or of_words.get(label.casefold())
        for label, number in zip(labels, numbers, strict=True)
    ]
    yes_or_no = {label: side for label, side in zip(labels, sides, strict=True) if side}
    if len(yes_or_no) == len({*labels}):
        return yes_or_no
    # do not read 2 as the high end of a scale if the only labels are 1 and 2, which may mean yes and no
    return told if {*numbers} != {1.0, 2.0} else {}


def _quoted(labels: Sequence[str], hidden: Mapping[str, str]) -> str:
    """Format labels in quotes; a pseudonym replaces each label that contains an annotator's id."""
    return listed([f'"{hidden.get(label, label)[:_SHOWN_CHARACTERS]}"' for label in labels])


def _by_row(labels: Objects, side: Objects, rows: pd.DataFrame, texts: Objects, found: Findings) -> None:
    """If a row's label is the text or the model of only one of its responses, set ``side`` to that response."""
    open_rows = np.flatnonzero((side == "") & ~pd.isna(labels))
    pairs = [[texts[rows[name]] for name in ("first", "second")]]
    if found.table.kind != "chosen_rejected":
        pairs += [
            [found.frame[name].to_numpy() for name in pair] for pair in names_of_sides(found.frame)
        ]
    for cells in pairs:
        for row in open_rows:
            # a label that is not a string matches neither response
            is_first, is_second = (
                isinstance(labels[row], str)
                and isinstance(column[row], str)
                and is_same_text(labels[row], column[row])
                for column in cells
            )
            if is_first != is_second:
                side[row] = "a" if is_first else "b"


def _beginning(text: str) -> str:
    words = written_out(" ".join(text.split()))
    cut = words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]}..."
    return f"\u201c{cut}\u201d"


# -- columns that are carried along with the votes -------------------------------------------------------------


def _not_used(found: Findings, told: set[str]) -> None:
    """Report unused columns of the table.

    The function reports unused columns if one of them may hold groups of annotators, or if the table has annotators and
    badpo recognized some columns automatically.
    """
    frame, theirs = found.table.frame, {*found.table.theirs}
    known = theirs | told | {*itertools.chain(*(names for _, names, *_ in _NOT_READ))}
    groups = []
    if "annotator_class" not in theirs | told:
        groups = [name for name in frame if name not in known and are_groups(frame, name, "annotator")]
    if groups or ("annotator" in theirs and any(note.code == "N103" for note in found.table.notes)):
        beginning = found.table.with_rows(frame[:MANY_ROWS])
        rest = [name for name in unused_columns(beginning) if name not in known]
        if unused := [*dict.fromkeys([*groups, *rest])]:
            fix: Correction = {"columns": {"annotator_class": groups[0]}} if groups else {}
            remedy = "if an unused column holds groups of annotators, map it" if groups else "nothing"
            found.note("N103", f"columns not used: {listed(unused)}", remedy, len(unused), fix=fix)


def _carried(
    keep: Sequence[str], pairs: Sequence[tuple[str, str]], found: Findings
) -> dict[str, tuple[Objects, Objects]]:
    """Return two arrays for each carried column: its cells, and the cells to use if a row's sides are exchanged.

    A carried column is a column of the table that badpo keeps in the judgments. badpo always keeps a pair of number
    columns for the two sides, such as ``score_a`` and ``score_b``. The cells of a pair of number columns become
    numbers, unless ``keep`` names one of the two columns. If every row names both models, badpo keeps the columns
    ``model_a`` and ``model_b``, which name the models that wrote the responses. badpo keeps any other column only if
    ``keep`` names the column, because the column may identify annotators.
    """
    frame = found.frame[[name for name in found.frame if name not in (*KNOWN, *VOTE_COLUMNS)]]
    sides = side_pairs(frame)
    remedy = (
        f"available columns: {', '.join(frame) or 'none; badpo import carries one along with --keep'}"
    )
    columns: dict[str, pd.Series | Floats] = {}
    for name in dict.fromkeys(itertools.chain(*pairs)):
        what = f'attribute column "{name}"'
        if name in frame:
            columns[name] = as_numbers(frame[name])
            is_missing = ~np.isfinite(columns[name])
            found.rows("E128", f"{what} holds no number", name, is_missing, "give a number")
        else:
            hint = did_you_mean(name, [*frame])
            found.note(
                "E128",
                f"the {what} is not in the table, or badpo reads it as votes or texts.{hint}",
                remedy,
            )
    # a column that an attribute reads becomes numbers, even if ``keep`` names the column
    as_written = {*keep}.difference(columns)
    for pair in sides.items():
        numbers = {name: as_numbers(frame[name]) for name in pair}
        there = [values[frame[name].notna()] for name, values in numbers.items()]
        if all(len(values) and not np.isnan(values).any() for values in there):
            columns = {**(numbers if as_written.isdisjoint(pair) else frame[[*pair]]), **columns}
    faults = {name: _fault(name, frame) for name in (*keep, *MODELS)}
    for name in keep:
        if faults[name]:
            found.note("E103", f'column "{name}" {faults[name]}.{did_you_mean(name, [*frame])}', remedy)
    are_told = all(not faults[name] and frame[name].notna().all() for name in MODELS)
    for name in (*keep, *(MODELS if are_told else ())):
        if not faults[name]:
            columns.setdefault(name, frame[name].astype(object))
    both = [pair for pair in (*sides.items(), *pairs) if {*pair} <= {*columns}]
    partner = {one: other for pair in both for one, other in (pair, pair[::-1])}
    written = {name: np.asarray(column) for name, column in columns.items()}
    free = [name for name in written if name not in {*itertools.chain(*pairs)}]
    cells = written | {name: _without_ids(name, written[name], found.raw_ids, found) for name in free}
    for pair in both:
        if any(cells[name] is not written[name] for name in pair):
            cells |= {name: as_ids(cells[name]) for name in pair}  # both columns of a pair become text
    return {name: (cells[name], cells[partner.get(name, name)]) for name in cells}


def _fault(name: str, frame: pd.DataFrame) -> str:
    """Return why a column cannot be kept alongside the votes, or "" if it can."""
    if name not in frame:
        return "is not in the table, or badpo reads it as votes or texts"
    try:
        frame[name].nunique()
        pa.array(frame[name], from_pandas=True)
    except (TypeError, pa.ArrowException, OverflowError, UnicodeError):
        return "holds values of several types, lists or objects"
    return ""


# -- votes and comparisons -------------------------------------------------------------------------------------


def _votes(
    rows: pd.DataFrame, repeated: str, found: Findings
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return the rows with votes, the rows with ties, and counts of the rows that are left out.

    The counts of rows that are left out are grouped by reason and annotator.
    """
    has_identities, earlier = "annotator" in found.frame, found.table.dropped
    reason = pd.Series(None, index=rows.index, dtype=object)
    reason[rows["sign"] == 0] = "tie"
    reason[rows["annotator"] < 0] = "no annotator"
    is_bad = ~pd.isna(found.bad)
    reason[is_bad] = found.bad[is_bad]
    # compute the sign of each vote for a fixed order of the two texts, because rows may have the texts in either order
    order = np.where(rows["first"] <= rows["second"], 1, -1)
    rows = rows.assign(order=order, said=rows["sign"] * order, seen=rows["shown"] * order)
    if has_identities:
        reason[_exported_twice(rows[reason.isna()])] = "exported twice"
        reason[_repeated(rows[reason.isna()], repeated, found)] = "repeated vote"
    n, nobody = len(rows), "unknown" if has_identities else EVERYONE
    left_out = pd.DataFrame({"reason": reason, "annotator": found.pseudonyms})[reason.notna()]
    counts = left_out.fillna({"annotator": nobody}).value_counts(["reason", "annotator"], sort=False)
    remedy = "nothing; judgments.dropped counts them by annotator"
    for why, n_left in left_out["reason"].value_counts(sort=False).items():
        what = f"{n_left:,} of {counted(n, 'row')} left out: {why} ({n_left / n:.1%})"
        found.note(_LEFT_OUT.get(str(why), "N104"), what, remedy, int(n_left))
    if n_before := sum(entry["n"] for entry in earlier):
        share = n_before / (n + n_before)
        what = f"{counted(n_before, 'row')} were left out before ({share:.1%})"
        found.note("N119", what, remedy, n_before)
    votes = rows[reason.isna()]
    if not len(votes):
        what = f"no vote is left of {counted(n, 'row')}"
        found.note("E104", what, "provide rows that have a winner and an annotator", n)
        found.stop_at_errors()
    entries = [*earlier, *counts.reset_index(name="n").to_dict("records")]
    dropped = pd.DataFrame(entries, columns=["reason", "annotator", "n"])
    dropped = dropped.astype({"reason": object, "annotator": object, "n": np.int64})
    return votes, rows[reason == "tie"], dropped


def _exported_twice(rows: pd.DataFrame) -> pd.Index:
    """Return rows in which an annotator's vote on the same two texts is repeated with the sides exchanged.

    Annotators who judge a pair again sometimes change their minds, and models do so even more often. If at least
    ``FEWEST_COPIES`` rows repeat a vote and all of these rows agree with the annotator's first vote, the table was
    exported twice. If too few rows repeat a vote, or if any of them disagrees with the first vote, the result is empty.
    Comparison ids are ignored. If different responses were shown first in two votes, the second vote is a separate
    judgment, not a copy.
    """
    votes = rows[(rows["pair"] >= 0) & (rows["first"] != rows["second"])]
    first = votes.groupby(["annotator", "pair", "seen"])[["order", "said"]].transform("first")
    exchanged = votes.index[votes["order"] != first["order"]]
    are_copies = len(exchanged) >= FEWEST_COPIES and votes["said"].eq(first["said"])[exchanged].all()
    return exchanged if are_copies else exchanged[:0]


def _repeated(rows: pd.DataFrame, repeated: str, found: Findings) -> pd.Index:
    """Return the rows to leave out: all of an annotator's votes on a comparison except the last vote.

    The result is empty unless ``repeated`` is "last". Repeated votes are reported in either case. If different sides
    were shown first in two votes of an annotator, neither vote counts as repeated, and both are kept.
    """
    same = rows[["annotator", "comparison", "seen"]]
    again = same.duplicated()
    if n := int(again.sum()):
        signs = rows.groupby([*same])["said"].agg(["size", "nunique"])
        signs = signs[signs["size"] > 1]
        then = "all are kept" if repeated == "all" else "only the last is kept"
        what = (
            f"{counted(n, 'judgment')} by an annotator who had judged the same comparison before; in "
            f"{(signs['nunique'] > 1).mean():.0%} of {counted(len(signs), 'such case')}, the annotator's votes "
            f"contradict each other; {then}"
        )
        remedy = (
            "if the annotator saw the two responses in both orders, keep all votes and add a column shown_first; "
            "otherwise you can keep only the last vote"
        )
        found.note("W133", what, remedy, n, rows=rows.index[again], fix={"repeated": "last"})
    return rows.index[same.duplicated(keep="last") & (repeated == "last")]


def _comparisons(
    votes: pd.DataFrame, firsts: pd.DataFrame, texts: Objects, found: Findings
) -> pd.DataFrame:
    """Build the table of comparisons from the first vote on each comparison.

    If the source has no comparison ids or no prompt ids, hashes of the texts serve as ids.
    """
    n_merged = len(votes) - len(firsts)
    if "comparison_id" not in votes and n_merged:
        what = (
            f"{counted(len(votes), 'judgment')} on {counted(len(firsts), 'comparison')}: rows with the same prompt "
            "and the same two texts, in either order, are votes on one comparison"
        )
        found.note("N138", what, "to override this, add a column comparison_id", n_merged)
    turned = votes.index[votes["turn"] < 0]
    if n := len(turned):
        what = f"{counted(n, 'judgment')} with the two responses in the opposite order"
        remedy = "nothing has to be done: badpo exchanged the sides and shown_first in these rows"
        found.note("N118", what, remedy, n, rows=turned)
    if n := len(firsts) - firsts["pair"].nunique():
        what = f"{counted(n, 'comparison')} with the same texts as a comparison with another id; they stay separate"
        remedy = (
            "to merge these comparisons, read the table without comparison ids; if their votes are repeated too, keep "
            "only the last vote"
        )
        separate: Correction = {"columns": {"comparison_id": None}}
        found.note("N139", what, remedy, n, "comparison_id", fix=separate)
    same = firsts[firsts["first"] == firsts["second"]]
    if n := len(same):
        n_votes = int(votes["number"].isin(same["number"]).sum())
        of_votes = f"{counted(n, 'comparison')} ({counted(n_votes, 'judgment')})"
        what = f"{of_votes} of two identical responses: no signal"
        remedy = "check whether the export lost a difference; the comparisons are kept"
        found.note("W131", what, remedy, n, rows=same.index)
    prompt, a, b = (texts[firsts[side]] for side in ("prompt", "first", "second"))
    pairs = [sorted(pair, key=text_key) for pair in zip(a, b, strict=True)]
    if "comparison_id" not in firsts:
        ids = [_digest("c", p, *pair) for p, pair in zip(prompt, pairs, strict=True)]
        firsts = firsts.assign(comparison_id=ids)
    if "prompt_id" not in firsts and all(text == "" for text in prompt):
        firsts = firsts.assign(prompt_id=[_digest("p", *pair) for pair in pairs])
    elif "prompt_id" not in firsts:
        of_prompt = {code: _digest("p", texts[code]) for code in firsts["prompt"].unique()}
        firsts = firsts.assign(prompt_id=firsts["prompt"].map(of_prompt))
    columns = {name: firsts[name].to_numpy() for name in ("comparison_id", "prompt_id")}
    columns |= {"prompt": prompt, "response_a": a, "response_b": b}
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def _digest(prefix: str, *values: Text) -> str:
    """Hash texts to an id; the same texts give the same id on every machine."""
    joined = json.dumps([text_key(value) for value in values])
    return f"{prefix}-{hashlib.sha256(joined.encode()).hexdigest()[:16]}"


def with_texts(table: Table, pair: tuple[str, str]) -> tuple[Table, str]:
    """Add placeholder texts whose lengths are in two columns; return the table and a command that writes it."""
    table = reshape(with_legends(flatten(table))[0], pair)
    lengths = [as_numbers(table.frame[name]) for name in pair]
    sides = ("chosen", "rejected") if pair in columns_of_outcomes(pair) else PAIR[1:]
    texts = [as_objects("word " * int(n) for n in np.nan_to_num(of)) for of in lengths]
    # the prompt names the two lengths in ascending order, so that all votes on a pair have the same prompt
    prompts = as_objects("lengths {:g}, {:g}".format(*sorted(of)) for of in zip(*lengths, strict=True))
    new = dict(zip(sides, texts, strict=True))
    made = replace(table, frame=table.frame.assign(prompt=prompts, **new), notes=())
    code = f"from badpo.data.reading import write_texts; write_texts({table.name!r}, {pair!r})"
    return made, f"python -c {shlex.quote(code)}"


def write_texts(path: str, pair: tuple[str, str]) -> None:
    """Read a table, add placeholder texts whose lengths are in two of its columns, and write ``with_lengths.csv``."""
    with_texts(read_table(path), pair)[0].frame.to_csv("with_lengths.csv", index=False)
