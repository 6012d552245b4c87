"""Which columns of a table hold what, and how its votes are laid out; every layout becomes one row for each vote."""

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.cells import (
    ANSWER,
    ANSWERS,
    KNOWN,
    LOST,
    MODELS,
    NO,
    OF_ONE_ANSWER,
    SIDES,
    TURNED,
    YES,
    Objects,
    Table,
    alike,
    as_ids,
    as_objects,
    columns_named,
    columns_of_sides,
    direction_of,
    folded,
    graded,
    like_annotators,
    mirrored_sides,
    names_vote,
    number_of,
    numbered_answers,
    parsed,
    require_size,
    side_of,
    unfolded,
    which_wins,
    without_legend,
)
from badpo.data.files import Json
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
from badpo.theory import Floats

_PAIR = ("prompt", "response_a", "response_b")
REQUIRED = {
    "a_b": (*_PAIR, "winner"),
    "chosen_rejected": ("chosen", "rejected"),
    "rating": (*_PAIR, "rating"),
    "ratings": (*_PAIR, "rating_a", "rating_b"),
    "ranks": (*_PAIR, "rank_a", "rank_b"),
    "counts": (*_PAIR, "votes_a", "votes_b"),
    "rated answers": ("prompt", "response", "rating"),
    "ranked answers": ("prompt", "response", "rank"),
}
LAYOUTS = (None, "wide", "counts")
_MOST_LABELS = 12  # of one question
_FEW_WORDS = (2, 3)
MANY_ROWS = 1000
_LARGEST_RATING, _LARGEST_SCALE = 10, 100
_TICKED = {**dict.fromkeys(YES, 1), **dict.fromkeys(NO, 0)}
_NUMBERED_GRADE = re.compile(r"([+-]?\d+) *[-=:.(] *[^\W\d]")
_PERSONS_NAME = re.compile(r"(?:[^\W\d_][\w'\u2019]*[ .-]*){1,3}")
_MOST = 0.9  # of rows
_NAMES_SIDES = 3
_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}|\d{1,2}:\d\d")
# words in the names of columns that hold no votes
_OTHER_NAMES = re.compile(
    "ids?|uid|uuid|hash|date|datum|fecha|time|timestamp|utc|duration|seconds|ms|tokens?|count|length|len|chars|words|"
    "elo|age|year|lang|language|locale|seed|split|version|turn|confidence|confident|sure|certainty|certain|"
    "difficulty|gold|familiar|familiarity|knowledge|expertise|experience|domina|kenntnis|sicherheit|variant"
)
_MACHINES = re.compile("reward|auto|automatic|predicted|prediction|gpt|llm|model|machine")
# words in the names of columns that say who voted, and of those that say something else of people
_PEOPLE = re.compile(
    "who|user|subject|person|editor|experte?|tester|student|member|volunteer|prüfer|nutzer|proband|testperson|usuario|"
    "correo|e?mail|testeur|utilisateur|oceniający|beoordelaar|bedömare|checker|评估员|评审|用户|担当者|평가자|مقيم|"
    "инициалы|initials|name|by|valutatore|avaliador"
)
_OF_PEOPLE = re.compile("class|group|team|type|role|age|gender|country|model|file|domina")
_THINGS = re.compile(
    "prompt|question|item|task|case|topic|category|system|model|doc|document|batch|session|round|condition|version|hit|"
    "pair|page|block|set|part|wave|week|day|sheet|game|order|criteri(?:on|a)|aspect|dimension"
)
_LONGEST_LIST = 10_000  # characters of a list in a cell of text
_SEPARATED = re.compile(r"[^;|]{1,40}(?:[;|][^;|]{1,40})+")
_OVERALL = re.compile("overall|general|final|total|gesamt|insgesamt|global")
_USUAL_TEXT = 15  # characters of a text, at the least
_CHAT = re.compile("'(?:role|from)': ")
_WORDS = re.compile(r"[^\W\d_]\s|[^\x00-\x7f]")  # times, addresses and ids have none


_Recognised = tuple[Table, dict[str, str]]


def has_word(name: str, words: re.Pattern[str]) -> bool:
    """Whether one of the words in the name of a column is among ``words``."""
    return any(map(words.fullmatch, folded(name).split("_")))


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
        if code[0] == "E" and fix is None and len(index) <= max(1, (1 - _MOST) * len(rows)):
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
            named = [self.row_name(row) + f" [{name}]" * (name is not None) for row, name in who]
            where += f", row{'s' * (n > 1)} {listed(named, n)}"
            # a header is a line, and cells may hold breaks
            if lines is not None and (lines[shown] != shown + 1).any():
                told = [f"{line:,}" for line in lines[shown]]
                where += f" (line{'s' * (len(told) > 1)} {listed(told)} of the file)"
        problem = Problem(code, what, where, remedy, count, fix=fix or {})
        self.problems.append(problem)

    def row_name(self, row: int) -> str:
        """The row of the source, counted from 1, that a row was made of."""
        return f"{(row if self.table.rows is None else self.table.rows[row]) + 1:,}"

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


@contextlib.contextmanager
def reporting_unexpected(where: str) -> Iterator[None]:
    """Report an error that no check foresaw as columns that are not recognised (E101).

    Its own message is left out, because it may quote cells of the table.
    """
    try:
        yield
    except (ConfigError, DataError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"the columns are not recognised (unexpected {type(error).__name__})"
        remedy = "map the columns with columns, and please report this error"
        raise DataError([Problem("E101", what, where, remedy)]) from error


def recognise(
    table: Table, columns: Mapping[str, str | None] | None = None, layout: str | None = None
) -> Table:
    """The table with its columns under our names, others under their own, and one row for each vote.

    ``columns`` are our names and the table's; None as a value leaves a column of ours unused. A `DataError` lists all
    columns that are missing (E101) or misnamed (E103).
    """
    with reporting_unexpected(table.name):
        return _recognise(table, columns, layout)


def _recognise(table: Table, columns: Mapping[str, str | None] | None, layout: str | None) -> Table:
    # a recipe may have a number for the name of a column
    columns = {ours: name if name is None else str(name) for ours, name in (columns or {}).items()}
    people: list[str] = []
    if layout == "wide":
        people = [*filter(None, (columns.pop("annotator", "") or "").split(","))]
    table = _opened_votes(table)
    inside = unfolded(table.frame)
    table = replace(table, frame=table.frame.assign(**inside)) if inside else table
    found = [str(name) for name in table.frame.columns]
    if problems := _misnamed(
        table.frame, [*columns.items(), *(("annotator", one) for one in people)], table.name
    ):
        raise DataError(problems)
    # what nobody reads may be called alike
    found = [f"{name} ({i})" if name in found[:i] else name for i, name in enumerate(found)]
    table = replace(table, frame=table.frame.set_axis(pd.Index(found, dtype=object), axis=1))
    told = {ours: name for ours, name in columns.items() if name is not None}
    # an object whose parts are columns is none itself
    taken = {*told.values(), *(name.rpartition(".")[0] for name in inside)}
    free = [name for name in found if name not in taken]
    table, theirs, answers = _find_columns(table, free, columns, layout)
    if layout is None and not columns.get("annotator") and (slots := _slots(table, theirs)):
        table, theirs = _one_row_a_slot(table, theirs, slots)
        theirs = {ours: name for ours, name in theirs.items() if columns.get(ours, "") is not None}
    if layout is None and "annotator" not in {*theirs, *columns}:
        table, theirs = _find_annotators(table, theirs)
    if layout == "wide":
        table, theirs = _one_annotator_a_row(table, theirs, people)
        if "response" in theirs:
            number = theirs.pop("winner")
            theirs["rank" if number.startswith("rank") else "rating"] = number
    elif answers and "response_a" not in told:
        table, theirs = _best_beside_others(table, theirs, answers)
    elif "annotator" in theirs and len(games := _games(table, theirs)) > 1:
        table, theirs = _one_row_a_game(table, theirs, games)
    return _in_rows(table, theirs, told, layout)


def _find_columns(
    table: Table, free: Sequence[str], columns: Mapping[str, str | None], layout: str | None
) -> tuple[Table, dict[str, str], dict[str, str]]:
    """Our names and the column that each stands for, which the table notes, and columns of three or more answers."""
    told = {ours: name for ours, name in columns.items() if name is not None}
    wanted = [name for name in (*KNOWN, *ANSWERS, *MODELS) if name not in columns]
    theirs = told | columns_named(free, wanted)
    if "chosen" in theirs and "winner" not in theirs:
        # a label of one of two answers, and no text of its own
        is_beside = {*_PAIR[1:]} <= {*theirs} and _are_votes(table.frame[theirs["chosen"]])
        if is_beside or "rejected" not in theirs:
            theirs["winner"] = theirs.pop("chosen")
    answers = _many_answers(
        table.frame[:MANY_ROWS], [name for name in free if name != theirs.get("prompt")]
    )
    if not answers and not {"response_a", "rejected"} & {*theirs}:
        # a row is one answer, and others to its prompt stand in other rows
        left = [name for name in free if name not in theirs.values()]
        texts = [name for name in left if holds_texts(table.frame[name])]
        texts = texts or [name for name in left if not _are_votes(table.frame[name])]
        theirs |= columns_named(texts, {"response"} - {*theirs})
        if "response" in theirs:
            theirs = columns_named(left, ["rank"]) | theirs
            if "winner" in theirs:
                theirs["rating"] = theirs.pop("winner")
    if layout != "counts" and ("winner" in theirs or {"chosen", "rejected"} <= {*theirs}):
        # beside a winner they are columns like any other
        theirs = {ours: name for ours, name in theirs.items() if ours not in ANSWERS or ours in told}
    recognised = {ours: name for ours, name in theirs.items() if name not in (ours, told.get(ours))}
    group = recognised.get("annotator_class")
    if group and not are_groups(table.frame, group, theirs.get("annotator")):
        # called like one, and says something of the vote
        del recognised["annotator_class"], theirs["annotator_class"]
    if recognised:
        pairs = ", ".join(f'{ours} from "{name}"' for ours, name in recognised.items())
        table = _noted(table, "N103", f"columns read: {pairs}", "name one where another is meant")
    return table, theirs, answers


def _find_annotators(table: Table, theirs: dict[str, str]) -> _Recognised:
    """The columns with one that very likely says who voted, if no name of a column did, which the table notes."""
    beginning = table.with_rows(table.frame[: 10 * MANY_ROWS])
    has_texts = not {"response_a", "response", "chosen"}.isdisjoint(theirs)
    likely = likely_annotators(_renamed(beginning, theirs)) if has_texts else []
    if not likely:
        return table, theirs
    what = f'annotator read from "{likely[0]}", by what it is called or holds'
    fix: Json = {"columns": {"annotator": None}}
    table = _noted(table, "N103", what, "if it says something else, leave it unused", fix)
    return table, theirs | {"annotator": likely[0]}


def _in_rows(table: Table, theirs: dict[str, str], told: Mapping[str, str], layout: str | None) -> Table:
    """The table with one row for each vote, in whichever layout its columns are complete, or lack least."""
    is_told = "rating" in told and "response" not in theirs
    asked = layout if layout == "counts" else "rating" if is_told else None
    lacks = {kind: [name for name in names if name not in theirs] for kind, names in REQUIRED.items()}
    others = [name for name in table.frame if name not in theirs.values()]
    if "rating_a" not in told and not lacks["ratings"] and _columns_of_votes(table.frame, others):
        # ratings beside votes are no votes
        del lacks["ratings"]
    low = "rank" if which_wins(theirs.get("rating_a", "")) == "low" else ""
    if low and not {"rating_a", "rank_a"} & {*told}:
        # a legend says that the lower number is the better one
        theirs = {ours.replace("rating_", "rank_"): name for ours, name in theirs.items()}
        lacks["ranks"] = lacks.pop("ratings", [])
    of_sides = itertools.chain(*columns_of_sides([] if "response_a" in theirs else others))
    if "response" not in told and any(holds_texts(table.frame[name]) for name in of_sides):
        # both answers stand in one row
        del lacks["rated answers"], lacks["ranked answers"]
    kind = asked or min(lacks, key=lambda kind: len(lacks[kind]) / len(REQUIRED[kind]))
    if lacks[kind]:
        raise DataError([_missing(table, theirs, lacks[kind])])
    table = _without_empty_rows(table, [theirs[ours] for ours in REQUIRED[kind] if ours != "prompt"])
    turned: Json = {}
    if kind in ("rated answers", "ranked answers"):
        number, other = ("rating", "rank") if kind == "rated answers" else ("rank", "rating")
        # of a column for each annotator no name says so
        turned = {} if layout == "wide" else {"columns": {other: theirs[number]}}
        table, theirs = _answers_beside(table, theirs, number)
        kind = f"{number}s"
    if kind == "counts":
        table, theirs = _one_row_a_vote(table, theirs)
    elif kind in ("ratings", "ranks"):
        table, theirs = _compared(table, theirs, REQUIRED[kind][-2:], turned)
    elif kind == "rating":
        theirs = {"winner" if ours == "rating" else ours: name for ours, name in theirs.items()}
    kind = kind if kind in ("rating", "chosen_rejected") else "a_b"
    return replace(_renamed(table, theirs), kind=kind)


def _without_empty_rows(table: Table, names: Sequence[str]) -> Table:
    """The table without rows that are empty in all of these columns, such as other trials of an experiment."""
    is_empty = table.frame[[*names]].isna().all(axis=1).to_numpy()
    if is_empty.all() or not is_empty.any():
        return table
    found, at = Findings(table), np.flatnonzero(is_empty)
    rows = listed([found.row_name(row) for row in at[:LISTED]], len(at))
    what = f"{counted(len(at), 'row')} without answers and without a vote left out: {rows}"
    entry = {"reason": "no answers and no vote", "annotator": "unknown", "n": len(at)}
    table = replace(table, dropped=(*table.dropped, entry))
    return _noted(table.with_rows(table.frame[~is_empty]), "N106", what)


def _renamed(table: Table, theirs: Mapping[str, str]) -> Table:
    """The table with our names of its columns."""
    others = [name for name in table.frame.columns if name not in (*theirs.values(), *KNOWN)]
    used = table.frame[[*theirs.values(), *others]].set_axis([*theirs, *others], axis=1)
    return replace(table, frame=used, theirs=theirs)


def _opened_votes(table: Table) -> Table:
    """A row for each vote, if columns hold lists: of objects that are votes, or of annotators beside their votes."""
    beginning = table.frame[:MANY_ROWS]
    names = [name for name, column in beginning.items() if column.map(_listed).notna().mean() >= _MOST]
    lists = {name: table.frame[name].map(_listed) for name in names}
    n_of = {name: column.map(len, na_action="ignore") for name, column in lists.items()}
    of_votes = []
    for name, column in lists.items():
        votes = pd.Series([*itertools.chain(*column.dropna())], dtype=object)
        if len(votes) and all(isinstance(each, dict) for each in votes):
            sides = ({side_of(str(value)) for value in each.values()} - {None} for each in votes)
            is_message = not {"role", "from"}.isdisjoint(votes[0])
            if not is_message and (like_annotators(map(str, votes[0])) or all(sides)):
                of_votes = [name]
        elif like_annotators([name]) and len(votes) and not holds_texts(votes):
            beside = [other for other in lists if n_of[other].equals(n_of[name])]
            of_votes = [other for other in beside if not holds_texts(lists[other].explode())]
    if not of_votes or (
        len(of_votes) == 1 and not isinstance(lists[of_votes[0]].dropna().iat[0][0], dict)
    ):
        # a judge may be a list, as of a model and its prompt
        judges = [
            name
            for name in lists
            if like_annotators([name]) and isinstance(table.frame[name].iat[0], list)
        ]
        joined = {
            name: lists[name].map(lambda cell: " ".join(map(str, cell)), na_action="ignore")
            for name in judges
        }
        return replace(table, frame=table.frame.assign(**joined)) if joined else table
    n_votes = int(n_of[of_votes[0]].sum())
    require_size(table.name, n_votes, table.frame.shape[1])
    frame = table.frame.assign(**{name: lists[name] for name in of_votes}).explode(of_votes)
    what = f"lists in {', '.join(map(str, of_votes))}: {counted(n_votes, 'vote')} of {counted(len(table.frame), 'row')}"
    return _noted(table.with_rows(frame), "N106", what)


def _listed(cell: Any) -> list[Any] | None:
    """The list that a cell is or holds as text, as in ``["x", "y"]`` or ``x; y``; None of anything else."""
    if isinstance(cell, str) and len(cell) < _LONGEST_LIST:
        text = cell.strip()
        parts = re.split(r" *[;|] *", text) if _SEPARATED.fullmatch(text) else None
        cell = parsed(text) if text[:1] == "[" else parts
    return cell if isinstance(cell, list) and cell else None


def _noted(
    table: Table, code: str, what: str, remedy: str = "nothing", fix: Json | None = None
) -> Table:
    note = Problem(code, what, table.name, remedy, len(table.frame), fix=fix or {})
    return replace(table, notes=(*table.notes, note))


def _misnamed(
    frame: pd.DataFrame, columns: Sequence[tuple[str, str | None]], where: str
) -> list[Problem]:
    """What is wrong with names of columns, and what to do."""
    problems, known = [], (*KNOWN, *ANSWERS, *OF_ONE_ANSWER)
    found = [str(name) for name in frame.columns]
    hidden: set[str] = set()
    if any(column is not None and column not in found for _, column in columns):
        distinct = frame.set_axis(found, axis=1).loc[:, ~pd.Index(found).duplicated()]
        # with one column for each annotator
        votes = _columns_of_votes(distinct, [*distinct])
        hidden = {*votes} if len(votes) > 2 else hidden
    shown = [name for name in found if name not in hidden]
    for name in columns_named(sorted({name for name in found if found.count(name) > 1}), known).values():
        what = f'{found.count(name)} columns are called "{name}"'
        problems.append(Problem("E103", what, where, "rename all but one"))
    for ours, column in columns:
        if ours not in known:
            what = f'columns has no entry "{ours}".{did_you_mean(ours, known)}'
            remedy = f"use one of {', '.join(known)}"
            meant = columns_named([ours], known) or columns_named(
                [f"annotator_{ours}"], ["annotator_class"]
            )
            for name in meant:
                remedy = f'map "{name}", its name here, to "{column}"'
            if ours in found and column in known:
                remedy = f'the other way round: "{column}" stands first, then the table\'s "{ours}"'
            problems.append(Problem("E103", what, where, remedy))
        elif column is not None and column not in found:
            hint, close = did_you_mean(str(column), shown), alike([folded(column)], shown)
            what = f'column "{column}" (for {ours}) is not in the table.{hint}'
            is_one = [name for name, _ in columns].count(ours) == 1
            fix = {"columns": dict.fromkeys([ours], *close.values())} if close and is_one else {}
            remedy = f"found: {_listed_columns(shown, len(hidden))}"
            problems.append(Problem("E103", what, where, remedy, fix=fix))
        elif ours in ("comparison_id", "prompt_id") and columns_named([str(column)], ["annotator"]):
            what = f'column "{column}" says who voted; as {ours} it would stay in every file'
            remedy = "leave the column to the annotators, and give an id that names nobody"
            problems.append(Problem("E103", what, where, remedy, fix={"columns": {ours: None}}))
    return problems


# -- columns that nobody named ---------------------------------------------------------------------------------


def _missing(table: Table, theirs: Mapping[str, str], missing: Sequence[str]) -> Problem:
    """The columns that a table lacks, with those that may be meant: written alike, or holding what they would hold."""
    frame = table.frame
    fix = _proposed(frame, theirs, missing)
    columns = fix.get("columns", {})
    written = alike(missing, [name for name in frame if name not in theirs.values()])
    hints = "".join(f' "{ours}": Did you mean "{name}"?' for ours, name in written.items())
    free = [name for name in frame if name not in theirs.values()]
    votes = [name for name in _columns_of_votes(frame, free) if len(few_labels(frame[name])) != 1]
    # columns that hold votes may be called like the people who cast them
    hidden = [name for name in votes if name not in columns.values()]
    shown = [name for name in frame if name not in hidden]
    known = ", ".join(f'{ours} from "{name}"' for ours, name in theirs.items() if ours in KNOWN)
    what = f"columns missing: {', '.join(missing)}.{hints}{f' Recognised: {known}.' * bool(known)}"
    is_single = {*_PAIR[1:]} <= {*missing} and not {*_PAIR[1:]} <= {*columns}
    together = "; where a row is one answer, map response and rating, or rank"
    remedy = (
        "give prompt, chosen, rejected or prompt, response_a, response_b, winner, or map them with columns"
        f"{together * is_single}"
    )
    texts = [name for name in free if name not in votes and holds_texts(frame[name])]
    if len(votes) > 1 and not texts and {*_PAIR} <= {*missing}:
        # nothing in such a table says what was compared
        what = f"columns missing: {', '.join(missing)}; {counted(len(votes), 'column')} hold labels, and none texts"
        remedy = (
            "where a row is a person and a column a question, write a row for each answer (in pandas: melt), beside it "
            "the question's prompt, response_a and response_b (merge); else map the columns of texts"
        )
    where = f"{table.name}, found: {_listed_columns(shown, len(hidden))}"
    return Problem("E101", what, where, remedy, len(missing), fix=fix)


def _listed_columns(shown: Sequence[str], n_hidden: int) -> str:
    """Names of columns; of those that may be called like people only how many there are."""
    hidden = [f"{counted(n_hidden, 'column')} of labels"] if n_hidden else []
    return ", ".join([*shown, *hidden]) or "no column"


def _proposed(frame: pd.DataFrame, theirs: Mapping[str, str], missing: Sequence[str]) -> Json:
    """Options that map what is missing to columns that are written alike or hold what it would hold; maybe not all.

    Two text columns whose names differ only in the side (such as ``text_1`` and ``text_2``) hold the answers. If there
    are none, the first text column is the prompt and the next two are the answers. Two columns of numbers or ticks
    whose names differ only in the side rate the two answers. Among the other columns, the column that shows most
    clearly which side was preferred holds the votes.
    """
    free = [name for name in frame if name not in theirs.values()]
    votes = _columns_of_votes(frame, free)
    # one of many columns of the same kind is not the one that is missing
    several = {*_most_alike(frame, votes)} if len(votes) > 2 else {*()}
    columns = alike(missing, [name for name in free if name not in several])
    columns = {
        ours: own for ours, own in columns.items() if ours not in _PAIR[1:] or holds_texts(frame[own])
    }
    free = [name for name in free if name not in columns.values()]
    pairs = columns_of_sides(free)
    lacks = [ours for ours in _PAIR if ours in missing and ours not in columns]
    of_texts = [pair for pair in pairs if all(holds_texts(frame[name]) for name in pair)]
    if {*_PAIR[1:]} <= {*lacks} and len(of_texts) == 1:
        columns |= dict(zip(_PAIR[1:], of_texts[0], strict=True))
        lacks = [ours for ours in lacks if ours not in columns]
    free = [name for name in free if name not in columns.values()]
    votes = [name for name in _columns_of_votes(frame, free) if len(few_labels(frame[name])) != 1]
    texts = [name for name in free if name not in votes and holds_texts(frame[name])]
    if "winner" in missing and {*_PAIR[1:]} <= {*theirs, *columns}:
        # the text of a judge may end in a verdict
        texts = [name for name in texts if _clearness(frame, name, {}) < _NAMES_SIDES]
    if lacks[:1] == ["prompt"] and len(texts) == len(lacks) - 1:
        # prompts may be short, and are no ids
        many = [name for name in free if name not in (*votes, *texts) and not few_labels(frame[name])]
        many = [name for name in many if not _are_no_votes(name, frame[name])]
        texts = [*many[:1], *texts]
    if lacks == ["prompt"] and texts:
        # what stands before the answers; remarks stand after them
        texts = texts[:1]
    if len(lacks) == len(texts):
        columns |= dict(zip(lacks, texts, strict=True))
    fix: Json = {"columns": columns} if columns else {}
    if missing[-1] not in (*_PAIR, *columns):
        sides = {**theirs, **columns}
        compared = [pair for pair in pairs if _compare_answers(frame, pair)]
        labels = [name for name in free if name not in texts]
        best = _clearest_votes(frame, labels, sides)
        is_clearer = best != [] and _clearness(frame, best[0], sides) >= _NAMES_SIDES
        if "annotator" not in theirs and _pairs_of_people(frame, free):
            fix["layout"] = "wide"
        elif compared and (not is_clearer or {*best} <= {*compared[0]}):
            number = "rank" if which_wins(compared[0][0]) == "low" else "rating"
            columns |= {f"{number}_{side}": name for side, name in zip("ab", compared[0], strict=True)}
            fix["columns"] = columns
        elif (
            len(best) > 1
            and "annotator" not in theirs
            and not any(_is_called_like_people(name) for name in labels if name not in best)
        ):
            fix["layout"] = "wide"
        elif len(best) == 1:
            columns["rating" if missing[-1] == "rating" else "winner"] = best[0]
            fix["columns"] = columns
            if LOST & {*folded(best[0]).split("_")}:
                known = {label: side_of(label) for label in few_labels(frame[best[0]])}
                fix["winners"] = {label: TURNED[side[0]] for label, side in known.items() if side}
    return fix


def _compare_answers(frame: pd.DataFrame, pair: tuple[str, str], filled: float = _MOST) -> bool:
    """Whether two columns hold a number, or a tick, of each answer in most cells; of ticks at most one in a row."""
    is_of_people = not has_word(pair[0], _MACHINES)
    if not is_of_people or any(_are_no_votes(name, frame[name]) for name in pair):
        return False
    a, b = (as_ratings(frame[name]) for name in pair)
    cells = pd.concat([frame[name] for name in pair])
    is_number = np.isfinite([a, b]).ravel()
    if not len(a) or is_number.mean() < filled or is_number.sum() < _MOST * cells.notna().sum():
        return False
    values = {*a[np.isfinite(a)], *b[np.isfinite(b)]}
    if values <= {0.0, 1.0}:
        return bool(((a == 1) & (b == 1)).mean() < 1 - _MOST)
    return len(values) > 2 or which_wins(pair[0]) != ""


def _are_no_votes(name: str, column: pd.Series) -> bool:
    """Whether a column holds ids, times, counts, or what people say of themselves, and so neither votes nor texts."""
    if has_word(name, _OTHER_NAMES):
        return True
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna()]
    return cells != [] and all(map(_DATE.match, cells))


def _clearness(frame: pd.DataFrame, name: str, theirs: Mapping[str, str]) -> int:
    """How clearly a column tells which side was preferred; 0 where it does not."""
    column = frame[name]
    if _are_no_votes(name, column):
        return 0
    labels = few_labels(column)
    texts = [theirs[ours] for ours in (*_PAIR[1:], *MODELS) if ours in theirs]
    if direction_of(name) or sum(float((column == frame[text]).mean()) for text in texts) > 0.5:
        return _NAMES_SIDES
    cells = [str(cell) for cell in column[:MANY_ROWS].dropna() if math.isnan(number_of(str(cell)))]
    told = [side[0] for cell in cells if (side := side_of(cell))]
    if ({"a", "b"} <= {*told} and len(told) >= _MOST * len(cells)) or mirrored_sides(labels):
        return _NAMES_SIDES
    called = {word for text in texts for word in (folded(text), *folded(text).split("_"))}
    if len([label for label in labels if folded(label) in called and math.isnan(number_of(label))]) > 1:
        return _NAMES_SIDES
    if not labels:
        return int(_is_scale(column))
    return 2 if _are_votes(column) else int(len(labels) in _FEW_WORDS)


def _clearest_votes(frame: pd.DataFrame, free: Sequence[str], theirs: Mapping[str, str]) -> list[str]:
    """Of columns those that tell most clearly which side was preferred, by what they hold, then by their names."""

    def rank(name: str) -> tuple[int, bool, bool]:
        return _clearness(frame, name, theirs), names_vote(name), not has_word(name, _MACHINES)

    ranks = {name: rank(name) for name in free}
    ranks = {name: found for name, found in ranks.items() if found[0]}
    best = [name for name, found in ranks.items() if found == max(ranks.values())]
    best = [name for name in best if has_word(name, _OVERALL)][:1] or best
    # of two columns of words one may hold people, whose ids no message shows
    return best if len(best) < 2 or ranks[best[0]][0] > 1 else _of_same_words(frame, best)


def _of_same_words(frame: pd.DataFrame, names: Sequence[str]) -> list[str]:
    words = [frozenset(few_labels(frame[name])) for name in names]
    return [name for name, one in zip(names, words, strict=True) if words.count(one) > 1]


def likely_annotators(table: Table) -> list[str]:
    """Of a table under our names the columns that very likely say who voted, those that are called so first.

    Where several votes were made of one row, columns that differ between these.
    """
    frame, names = table.frame, open_columns(table)
    texts = [ours for ours in (*_PAIR, "response", "chosen", "rejected") if ours in frame]
    codes = pd.DataFrame({text: pd.factorize(frame[text].map(_text_of_cell))[0] for text in texts})
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


def _text_of_cell(cell: Any) -> str:
    """A text that is the same for equal cells, also for cells that hold something else than text or messages."""
    return cell if isinstance(cell, str) else repr(cell)


def _how_people_are_told(column: pd.Series, prompts: pd.Series, compared: pd.Series) -> str:
    """How a column tells people: called so, crossed with comparisons, as codes such as ``p07``, as names, or empty.

    Values that all differ, dates, texts and what the prompt decides are no people. Of votes on the same comparisons,
    no two share a value of a crossed column.
    """
    name, ids = str(column.name), _ids_in(column).dropna()
    n, labels = ids.nunique(), ids.unique()
    if (
        not 2 <= n <= len(ids) / 2
        or len(ids) < _MOST * len(column)
        or all(map(_DATE.match, ids[:MANY_ROWS]))
    ):
        return ""
    is_of_people = not has_word(name, _OF_PEOPLE)
    if is_of_people and _is_called_like_people(name):
        return "called"
    groups = prompts[ids.index]
    if groups.nunique() < _MOST * len(ids) and ids.groupby(groups).nunique().max() == 1:
        return ""
    are_things = has_word(name, _THINGS) or not is_of_people
    are_others = are_things or has_word(name, _OTHER_NAMES)
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


def _is_called_like_people(name: str) -> bool:
    return bool(like_annotators([name])) or has_word(name, _PEOPLE)


def open_columns(table: Table) -> list[str]:
    """Columns of a recognised table that hold no votes, no texts and not another value in each row."""
    frame, free = table.frame, [name for name in table.frame if name not in table.theirs]
    votes = _columns_of_votes(frame, free)
    free = [name for name in free if name not in votes and not holds_texts(frame[name])]
    ids = {name: _ids_in(frame[name]).dropna() for name in free}
    return [name for name in free if len(ids[name]) <= _MOST_LABELS or not ids[name].is_unique]


def unused_columns(table: Table) -> tuple[str, ...]:
    """Of a recognised table the columns that may say who voted, the likeliest first."""
    free = open_columns(table)
    return tuple(dict.fromkeys([*likely_annotators(table), *like_annotators(free), *free]))


def _ids_in(column: pd.Series) -> pd.Series:
    """A column as ids, without any where it holds lists or objects."""
    try:
        return pd.Series(as_ids(column), column.index, dtype=object)
    except ValueError:
        return pd.Series(as_objects([None] * len(column)), column.index, dtype=object)


def are_groups(frame: pd.DataFrame, name: str, annotator: str | None) -> bool:
    """Whether a column may hold groups of annotators: few labels, one for each annotator, and fewer than annotators."""
    # most columns that hold something else are known by their beginning
    if annotator not in frame or not few_labels(frame[name][:MANY_ROWS]):
        return False
    labels = few_labels(frame[name])
    pairs = pd.DataFrame({"who": _ids_in(frame[annotator]), "group": _ids_in(frame[name])})
    pairs = pairs.dropna().drop_duplicates()
    return 2 <= len(labels) < len(pairs) and pairs["who"].is_unique


def few_labels(column: pd.Series) -> list[str]:
    """The distinct labels of a column; empty where there are more than one question has."""
    labels = [*_ids_in(column).dropna().unique()]
    return labels if len(labels) <= _MOST_LABELS else []


def _columns_of_votes(frame: pd.DataFrame, free: Sequence[str]) -> list[str]:
    """Columns that hold nothing but labels of a side, ratings on a small scale, or what one of two columns holds.

    Where there are none, columns that hold the same two or three words.
    """
    models = [*columns_named([*map(str, frame)], MODELS).values()]
    sides = [*models, *(name for name in frame if holds_texts(frame[name]))]

    def holds_votes(name: str) -> bool:
        column = frame[name]
        copies = [column == frame[side] for side in sides if side != name]
        copies = [copy for copy in copies if copy.sum() > 1]
        if len(copies) > 1:
            column = column[~np.any(copies, axis=0)]
        are_votes = column.isna().all() or _are_votes(column)
        return bool(are_votes and name not in models and frame[name].notna().any())

    if found := [name for name in free if holds_votes(name)]:
        return found
    words = [frozenset(few_labels(frame[name])) for name in free]
    are_few = [len(one) in _FEW_WORDS and words.count(one) > 1 for one in words]
    return list(itertools.compress(free, are_few))


def _most_alike(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Of columns of votes the most that share half of their labels and, where names are numbered, the name."""
    stems = {name: folded(name).rstrip("_0123456789") for name in columns}
    are_numbered = len({*stems.values()}) < len(columns)
    kinds = {name: (frozenset(few_labels(frame[name])), stems[name] * are_numbered) for name in columns}
    n_of_kind = Counter(kinds.values())

    def kinds_like(one: tuple[frozenset[str], str]) -> list[tuple[frozenset[str], str]]:
        labels, stem = one
        alike = [other for other in n_of_kind if other[1] == stem]
        return [
            other for other in alike if 2 * len(labels & other[0]) >= max(map(len, (labels, other[0])))
        ]

    most = max(map(kinds_like, n_of_kind), key=lambda alike: sum(n_of_kind[one] for one in alike))
    return [name for name in columns if kinds[name] in most]


def _is_scale(column: pd.Series) -> bool:
    """Whether a column holds numbers as from a slider, and no ids."""
    found = as_numbers(column)
    return bool((np.abs(found) <= _LARGEST_SCALE).all()) and 3 < len(np.unique(found)) < len(found)


def _are_votes(column: pd.Series) -> bool:
    """Whether a column holds labels of sides, or ratings on a small scale, and nothing else."""
    labels = few_labels(column)
    numbers = [number_of(label) for label in labels if side_of(label) is None]
    are_numbers = labels != [] and all(abs(number) <= _LARGEST_RATING for number in numbers)
    return are_numbers or bool(graded(labels) or mirrored_sides(labels))


def holds_texts(column: pd.Series) -> bool:
    """Whether the cells of a column are longer than labels."""
    texts = [cell for cell in column if isinstance(cell, str) and _WORDS.search(cell)]
    chats = [cell for cell in column if isinstance(cell, list) and _CHAT.search(str(cell[:1]))]
    lengths = [len(str(cell)) for cell in texts + chats]
    return 2 * len(lengths) > len(column) and float(np.median(lengths)) >= _USUAL_TEXT


# -- layouts ---------------------------------------------------------------------------------------------------
# Each gives the table with one row for each vote, and our names of its columns.


def _spread(
    table: Table,
    frame: pd.DataFrame,
    theirs: Mapping[str, str],
    new: Sequence[str],
    what: str,
    code: str = "N106",
) -> _Recognised:
    """A table of votes, whose index says from which row each was made, with its ``new`` columns and a notice."""
    table = table.with_rows(frame)
    kept = {ours: name for ours, name in theirs.items() if name in frame and ours not in ANSWERS}
    return _noted(table, code, what), kept | {name: name for name in new}


def _one_annotator_a_row(table: Table, theirs: Mapping[str, str], people: Sequence[str]) -> _Recognised:
    """Every one of these columns is an annotator, by default those of labels; an empty cell is no vote."""
    new = ["annotator", "winner"]
    frame = table.frame.drop(columns=[theirs[ours] for ours in new if ours in theirs])
    theirs = {ours: name for ours, name in theirs.items() if ours not in (*new, *ANSWERS)}
    free = [name for name in frame if name not in theirs.values()]
    if not people and (pairs := _pairs_of_people(frame, free)):
        return _two_numbers_a_person(table, frame, theirs, pairs)
    people, are_told = people or _columns_of_votes(frame, free), bool(people)
    if not people:
        what = "no column holds one annotator's votes: labels of a side, or ratings"
        where = f"{table.name}, free columns: {', '.join(free) or 'none'}"
        raise DataError([Problem("E101", what, where, "give the votes of each annotator in a column")])
    if not are_told and len(alike := _most_alike(frame, people)) < len(people):
        n = counted(len(people), "column")
        what = (
            f"{n} could hold one annotator's votes each, but hold other labels, or are called otherwise"
        )
        fix = {"columns": {"annotator": ",".join(alike)}}
        raise DataError([Problem("E113", what, table.name, "name those that do", len(people), fix=fix)])
    # what all of these names say of their values
    legends = {name[len(without_legend(name)) :] for name in people}
    label = "rank" if all(which_wins(name) == "low" for name in people) else "winner"
    label += legends.pop() if len(legends) == 1 else ""
    votes = _melted(table.name, frame, people, ("annotator", label))
    n_empty = len(frame) * len(people) - len(votes)
    what = (
        f"{counted(len(people), 'column')} of labels, one for each annotator: {counted(len(votes), 'vote')}, "
        f"{counted(n_empty, 'empty cell')}"
    )
    table, kept = _spread(table, votes, theirs, ["annotator", label], what)
    number = kept.pop(label)
    return table, kept | {"winner": number}


def _melted(
    where: str, frame: pd.DataFrame, columns: Sequence[str], new: tuple[str, str]
) -> pd.DataFrame:
    """A row for each filled cell of these columns; the ``new`` names are those of the column's name and of the cell."""
    others = [name for name in frame if name not in columns]
    require_size(where, len(frame) * len(columns), len(others))
    votes = frame.melt(others, columns, *new, ignore_index=False).sort_index(kind="stable")
    return votes[~pd.isna(as_ids(votes[new[1]]))]


def _games(table: Table, theirs: Mapping[str, str]) -> list[str]:
    """Columns that each hold a vote of the row's annotator: of votes, with names that differ in a number alone."""
    kinds: dict[str, list[str]] = {}
    for name in table.frame:
        is_free = name not in theirs.values() or name == theirs.get("winner")
        is_numbered_vote = names_vote(name) and re.search(r"\d", name)
        if is_free and is_numbered_vote and _clearness(table.frame, name, theirs) > 1:
            kinds.setdefault(re.sub(r"_?\d+", "", folded(name)), []).append(name)
    games = max(kinds.values(), key=len, default=[])
    # a tick for each of the two answers is one vote
    return [] if len(games) == 2 and _compare_answers(table.frame, (games[0], games[1])) else games


def _one_row_a_game(table: Table, theirs: Mapping[str, str], games: Sequence[str]) -> _Recognised:
    """Every one of these columns is a vote of the row's annotator; an empty cell is none."""
    votes = _melted(table.name, table.frame, games, ("game", "winner"))
    left = {ours: name for ours, name in theirs.items() if ours not in ("winner", "judgment_id")}
    what = f"{' and '.join(games)}: a vote of the row's annotator in each, {counted(len(votes), 'vote')}"
    return _spread(table, votes, left, ["winner"], what)


def _slots(table: Table, theirs: Mapping[str, str]) -> dict[str, str]:
    """Columns of annotators and of their votes that share a number, such as ``annotator_1`` and ``vote_1``."""
    kinds: dict[str, dict[str, str]] = {}
    for name in table.frame:
        if number := re.search(r"\d+", form := folded(name)):
            kinds.setdefault(re.sub(r"_?\d+", "", form), {})[number[0]] = name
    people = [of for kind, of in kinds.items() if columns_named([kind], ["annotator"])]
    votes = [
        of
        for kind, of in kinds.items()
        if of not in people
        and names_vote(kind)
        and all(_clearness(table.frame, name, theirs) > 1 for name in of.values())
    ]
    if len(people) != 1 or len(votes) != 1 or len(people[0]) < 2 or {*people[0]} != {*votes[0]}:
        return {}
    return {name: votes[0][number] for number, name in people[0].items()}


def _one_row_a_slot(table: Table, theirs: Mapping[str, str], slots: Mapping[str, str]) -> _Recognised:
    """A row for each column of votes, with the annotator from the column beside it; an empty vote is none.

    If few votes have no annotator, one annotator without a name stands for these, so that no vote is lost.
    """
    others = table.frame.drop(columns=[*slots, *slots.values()])
    require_size(table.name, len(others) * len(slots), len(others.columns) + 2)
    parts = [
        others.assign(annotator=as_ids(table.frame[who]), winner=table.frame[vote])
        for who, vote in slots.items()
    ]
    votes = pd.concat(parts).sort_index(kind="stable")
    votes = votes[~pd.isna(as_ids(votes["winner"]))]
    what = f"{counted(len(slots), 'pair')} of columns, an annotator and a vote in each: {counted(len(votes), 'vote')}"
    n_unnamed = int(votes["annotator"].isna().sum())
    if 0 < n_unnamed <= (1 - _MOST) * len(votes):
        votes = votes.fillna({"annotator": "no id"})
        what += f"; {counted(n_unnamed, 'vote')} without an annotator count as those of one annotator"
    return _spread(table, votes, theirs, ["annotator", "winner"], what)


def _pairs_of_people(frame: pd.DataFrame, free: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The columns in which each of several people rates the two answers, by what their names have beside the side."""
    forms = {folded(name): name for name in free}
    pairs: dict[str, tuple[str, str]] = {}
    words = {form: form.split("_") for form in forms}
    sides = [(form, i) for form in forms for i, word in enumerate(words[form]) if word in SIDES]
    # letters before numbers, and the last word first: people are numbered too
    for form, i in sorted(sides, key=lambda side: (words[side[0]][side[1]].isdigit(), -side[1])):
        before, side, after = words[form][:i], words[form][i], words[form][i + 1 :]
        both = forms[form], forms.get("_".join([*before, SIDES[side], *after]), "")
        is_free = "" not in both and {*both}.isdisjoint(itertools.chain(*pairs.values()))
        if is_free and _compare_answers(frame, both, 0.0):
            pairs["_".join([*before, *after])] = both
    return pairs if len(pairs) > 1 else {}


def _two_numbers_a_person(
    table: Table, frame: pd.DataFrame, theirs: Mapping[str, str], pairs: Mapping[str, tuple[str, str]]
) -> _Recognised:
    """Each pair of columns is an annotator's numbers for the two answers; a pair of empty cells is no vote."""
    others = frame.drop(columns=[*itertools.chain(*pairs.values())])
    require_size(table.name, len(frame) * len(pairs), len(others.columns) + 3)
    number = "rank" if which_wins(next(iter(pairs.values()))[0]) == "low" else "rating"
    new = [f"{number}_a", f"{number}_b"]
    parts = [
        others.assign(
            annotator=who, **{side: frame[name] for side, name in zip(new, names, strict=True)}
        )
        for who, names in pairs.items()
    ]
    votes = pd.concat(parts).sort_index(kind="stable").dropna(subset=new, how="all")
    what = f"{counted(len(pairs), 'pair')} of columns, one for each annotator: {counted(len(votes), 'vote')}"
    table, kept = _spread(table, votes, theirs, ["annotator"], what)
    return table, kept | {side: side for side in new}


def _one_row_a_vote(table: Table, theirs: Mapping[str, str]) -> _Recognised:
    """As many rows for each side as there are votes for it; nobody knows whose they are."""
    sides = {name.removeprefix("votes_"): theirs[name] for name in ANSWERS[-3:] if name in theirs}
    cells = {side: table.frame[name].map(_count) for side, name in sides.items()}
    counts = pd.DataFrame({side: as_numbers(column) for side, column in cells.items()})
    is_wrong = ~((counts >= 0) & (counts % 1 == 0)).all(axis=1)
    found = Findings(table)
    remedy = "give whole numbers, 0 where a side has none"
    found.rows("E106", "the number of votes is no whole number", None, is_wrong, remedy, {})
    found.stop_at_errors()
    require_size(table.name, int(counts.to_numpy().sum()), table.frame.shape[1])
    each = counts.stack().astype(np.intp)
    rows, winner = (each.index.repeat(each).get_level_values(level) for level in (0, 1))
    votes = table.frame.loc[rows].assign(winner=winner.astype(object))
    what = f"counts of votes: {counted(len(votes), 'vote')} from {counted(len(counts), 'row')}"
    return _spread(table, votes, theirs, ["winner"], what)


def _count(cell: Any) -> Any:
    """A number of votes; none is none, and a box that was ticked is one."""
    return {"true": 1, "x": 1, "false": 0, "none": 0, "nan": 0, "": 0}.get(
        str(cell).strip().casefold(), cell
    )


def _compared(
    table: Table, theirs: Mapping[str, str], sides: Sequence[str], turned: Json
) -> _Recognised:
    """Of two ratings a row the higher one wins, of two ranks the lower; without two numbers nobody does."""
    names = [theirs[ours] for ours in sides]
    a, b = (as_ratings(table.frame[name]) for name in names)
    is_rank = sides[0] == "rank_a"
    won = ["b", "a", "tie"] if is_rank else ["a", "b", "tie"]
    winner = pd.Series(np.sign(a - b)).map(dict(zip((1, -1, 0), won, strict=True))).astype(object)
    what = f"two numbers a row: the {'lower' if is_rank else 'higher'} one wins, equal ones are a tie"
    if table.rows is None:
        turned = {"columns": dict(zip(sides, reversed(names), strict=True))}
    table = replace(table, frame=table.frame.assign(winner=winner))
    table = _noted(table, "N107", what, "where it is the other way round", turned)
    kept = {ours: name for ours, name in theirs.items() if ours not in sides}
    return table, kept | {"winner": "winner"}


def _answers_beside(table: Table, theirs: Mapping[str, str], number: str) -> _Recognised:
    """Of one answer a row, neighbours among those to one prompt that one annotator rated or ranked, as pairs.

    All k (k - 1) / 2 pairs of k answers would count one annotator's k numbers as that many votes. Answers stand in the
    order in which the table has them first, so that all annotators compare the same pairs.
    """
    frame = table.frame
    places = as_ratings(frame[theirs[number]])
    who = {name: as_ids(frame[theirs[name]]) for name in ("prompt_id", "annotator") if name in theirs}
    texts = {name: frame[theirs[name]].map(_text_of_cell) for name in ("prompt", "response")}
    keys = pd.DataFrame({**who, **texts}).fillna("")[np.isfinite(places)]
    of_one = [name for name in keys if name != "response"]
    if "annotator" not in theirs and keys.duplicated().any():
        like = unused_columns(replace(table, theirs={own: own for own in theirs.values()}))
        what = "answers are rated more than once, and no column says by whom"
        fix: Json = {"columns": {"annotator": like[0]}} if like else {}
        raise DataError([Problem("E110", what, table.name, "name the column of annotators", fix=fix)])
    if not len(keys):
        what = f'column "{theirs[number]}" holds no numbers and no grades in words'
        remedy = "write numbers, or name the column of ratings"
        raise DataError([Problem("E106", what, table.name, remedy)])
    answer, _ = pd.factorize(keys["response"])
    group = keys.groupby(of_one, sort=False).ngroup().to_numpy()
    order = np.lexsort((answer, group))
    are_pairs = (np.diff(group[order]) == 0) & (np.diff(answer[order]) != 0)
    rows = keys.index.to_numpy()[order]
    first, second = rows[:-1][are_pairs], rows[1:][are_pairs]
    new = {"response": theirs["response"], number: theirs[number]}
    new |= columns_named([name for name in frame if name not in theirs.values()], ["model"])
    cells = {name: places if name == number else frame[own].to_numpy() for name, own in new.items()}
    sides = {
        f"{name}_{side}": cells[name][rows]
        for name in new
        for side, rows in (("a", first), ("b", second))
    }
    left = {ours: own for ours, own in theirs.items() if ours not in ("judgment_id", "comparison_id")}
    votes = frame.drop(columns=[*new.values()]).iloc[first].assign(**sides)
    n = int(np.isnan(places).sum())
    sizes = np.bincount(group)
    n_all = int((sizes * (sizes - 1) // 2).sum())
    what = (
        f"one answer in each row: {counted(len(first), 'pair')} of an answer and the next one to its prompt, "
        f"not all {n_all:,} pairs" + (f"; {counted(n, 'row')} without a number left out" if n else "")
    )
    return _spread(table, votes, left, [*sides], what)


def _many_answers(frame: pd.DataFrame, free: Sequence[str]) -> dict[str, str]:
    """Columns of three or more answers to one prompt, as their names or the labels of another column say."""
    if answers := numbered_answers(free):
        return answers
    texts = {folded(name): name for name in free if holds_texts(frame[name])}
    if len(texts) < 3:
        return {}
    for kind in {form.rpartition("_")[2] for form in texts}:
        of_kind = {
            form.removesuffix(f"_{kind}"): name
            for form, name in texts.items()
            if form.endswith(f"_{kind}")
        }
        if len(of_kind) > 2 and re.fullmatch(ANSWER, kind) and not {"best", "worst"} & {*of_kind}:
            return of_kind
    labels = [{*map(folded, few_labels(frame[name]))} for name in free if name not in texts.values()]
    called = max((one & {*texts} for one in labels), key=len, default=set())
    return {form: texts[form] for form in texts if form in called} if len(called) > 2 else {}


def _best_beside_others(
    table: Table, theirs: Mapping[str, str], answers: Mapping[str, str]
) -> _Recognised:
    """Of three or more answers the best, beside each of the others, and these beside the worst, if a column names it.

    The table itself if nothing ranks the answers.
    """
    frame, keys = table.frame, [*answers]
    texts = frame[[*answers.values()]].to_numpy(dtype=object)
    places, used, has_worst = _places(table, theirs, answers)
    if not used:
        return table, dict(theirs)
    places[pd.isna(texts)] = np.nan
    has_best = np.isfinite(places).sum(axis=1) > 1
    best = np.nan_to_num(places, nan=np.inf).argmin(axis=1)[:, None]
    first, second = np.triu_indices(len(keys), 1)
    is_said = places[:, first] != places[:, second] if has_worst else (best == first) | (best == second)
    is_said &= np.isfinite(places[:, first] + places[:, second])
    require_size(table.name, int(is_said.sum()), frame.shape[1] - len(keys))
    rows, pair = np.nonzero(is_said)
    first, second = first[pair], second[pair]
    beside = ", and these beside the worst," if has_worst else ""
    what = f"the best beside each of the others{beside} makes {counted(len(rows), 'pair')}"
    n_without = int((~has_best).sum())
    n_pairs = len(keys) * (len(keys) - 1) // 2
    what = (
        f"rankings of up to {len(keys)} answers by {', '.join(dict.fromkeys(used))}: {what} "
        f"of {counted(len(frame) - n_without, 'choice')}, not all {n_pairs} pairs of each"
    )
    if n_without:
        what += f"; {counted(n_without, 'row')} without a best answer left out"
        entry = {"reason": "no best answer", "annotator": "unknown", "n": n_without}
        table = replace(table, dropped=(*table.dropped, entry))
    new = {"response_a": texts[rows, first], "response_b": texts[rows, second]}
    sides = np.sign(places[rows, second] - places[rows, first]).astype(np.intp)
    new["winner"] = as_objects(["tie", "a", "b"])[sides]
    votes = frame.drop(columns=[*answers.values(), *used]).iloc[rows].assign(**new)
    left = {ours: name for ours, name in theirs.items() if ours not in ("judgment_id", "comparison_id")}
    # who takes places for an order, or the other way round, sees it in rows as read
    return _spread(table, votes, left, [*new], what, "N107")


def _places(
    table: Table, theirs: Mapping[str, str], answers: Mapping[str, str]
) -> tuple[Floats, list[str], bool]:
    """The place of each answer in each row, 0 the best and NaN of one without a place; the columns that say so.

    These are a number for each answer, a column for each place, an order such as ``2>1=3``, or the best and the worst,
    as the last of the three results says.
    """
    frame, keys = table.frame, [*answers]
    forms = {folded(name): name for name in frame if name not in answers.values()}
    called = [
        [key, folded(name), re.sub(rf"_?(?:{ANSWER})$", "", folded(name))]
        for key, name in answers.items()
    ]
    for words, sign in ((_RANKS, 1), (_SCORES, -1)):
        of_answers = [
            [name for form, name in forms.items() if form in _joined(names, words)] for names in called
        ]
        if all(of_answers):
            numbers = [as_ratings(frame[names[0]]) for names in of_answers]
            if np.isfinite(numbers).any():
                return sign * np.array(numbers).T, [names[0] for names in of_answers], False
    in_order = [name for i in range(len(keys)) for form, name in forms.items() if _is_place(form, i)]
    orders = [forms[form] for form in ("ranking", "order", "rank", "ranks", "ranked") if form in forms]
    best, worst = (
        [name for name in forms.values() if has_word(name, words)] for words in (_BEST, _WORST)
    )
    best = [*best, theirs["winner"]] if "winner" in theirs else best
    if len(in_order) == len(keys):
        used = in_order
    elif orders:
        used = orders[:1]
    else:
        used = best[:1] + (worst[:1] if best else [])
    columns = [frame[name].to_numpy(dtype=object) for name in answers.values()]
    known = {form: i for i, names in enumerate(called) for form in names if form}
    places = np.full((len(frame), len(keys)), np.nan)
    for row, cells in enumerate(zip(*(frame[name] for name in used), strict=True)):
        texts = [column[row] for column in columns]
        groups = [
            group for cell in cells for group in (_groups_in(cell) if used == orders[:1] else [[cell]])
        ]
        order = [[i for one in group if (i := _answer_in(one, texts, known)) >= 0] for group in groups]
        if any(order):
            # what is not named stands behind the others, but before the worst
            rest = [i for i in range(len(keys)) if all(i not in group for group in order)]
            order.insert(1 if used[0] in best else len(order), rest)
        for place, group in enumerate(order):
            places[row, group] = place
    if used:
        found, what = Findings(table), f"the ranking names none of the answers {', '.join(keys)}"
        is_wrong = np.isnan(places).all(axis=1) & frame[used].notna().any(axis=1).to_numpy()
        found.rows("E107", what, used[0], is_wrong, "name the best answer first", {})
        found.stop_at_errors()
    return places, used, len(used) == 2 and used[0] in best


def _joined(names: Sequence[str], words: Sequence[str]) -> set[str]:
    """What a column that says something of an answer may be called."""
    pairs = itertools.product(filter(None, names), words)
    return {
        form
        for name, word in pairs
        for form in (f"{word}_{name}", f"{name}_{word}", f"{word}_of_{name}")
    }


def _is_place(form: str, i: int) -> bool:
    """Whether a column is called like the one of the answers in place ``i``, counted from 0."""
    nth = ("first", "second", "third", "fourth", "fifth", "sixth")[i : i + 1] or ("-",)
    number = rf"(?:rank|place|position|choice|top)_{i + 1}|{i + 1}_(?:st|nd|rd|th)"
    return (
        re.fullmatch(rf"(?:{number}|{nth[0]})(?:_(?:place|choice|rank|best|preference))?", form)
        is not None
    )


def _groups_in(cell: Any) -> list[list[str]]:
    """The answers that an order names, those of one place together: a list, or text as in ``2>1=3`` or ``B, A, C``."""
    if isinstance(cell, list):
        return [[one] for one in cell]
    places = re.split(r"[>≻]+", str(cell)) if ">" in str(cell) else re.split(r"[\s,;]+", str(cell))
    return [[one.strip() for one in place.split("=")] for place in places]


def _answer_in(cell: Any, texts: Sequence[object], known: Mapping[str, int]) -> int:
    """The number of the answer that a cell is the text of, or names; -1 where it is none."""
    if isinstance(cell, str) and texts.count(cell) == 1:
        return texts.index(cell)
    form = folded(str(cell).removesuffix(".0"))
    return known.get(form, known.get(form.rpartition("_")[2], -1))


_RANKS, _SCORES = (
    ("rank", "place", "position", "ranking"),
    ("score", "rating", "stars", "points", "quality", "grade", "overall_score", "overall_rating"),
)
_BEST, _WORST = re.compile("best|most|top|favou?rite"), re.compile("worst|least")


def as_numbers(column: pd.Series) -> Floats:
    """A column as numbers, NaN where a cell holds none; of texts also with decimal commas."""
    found = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    cells = column.to_numpy(dtype=object)
    texts = [i for i in np.flatnonzero(np.isnan(found)) if isinstance(cells[i], str)]
    found[texts] = [*map(cache(number_of), cells[texts])]
    return found


def as_ratings(column: pd.Series) -> Floats:
    """Ratings as numbers: numbers, ticks, grades in words, and numbers that stand before their meaning."""
    grades = graded([label for label in few_labels(column) if math.isnan(number_of(label))])

    def rated(cell: Any) -> Any:
        words = str(cell).strip().casefold()
        first = _NUMBERED_GRADE.match(words)
        return _TICKED.get(words, grades.get(str(cell), float(first[1]) if first else cell))

    return as_numbers(column.map(rated))
