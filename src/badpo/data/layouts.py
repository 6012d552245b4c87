"""Recognize a table's layout: rename its columns, report missing columns, and give each vote its own row."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.cells import (
    MACHINES,
    MANY_ROWS,
    MOST_LABELS,
    NAMES_SIDES,
    NEARLY_ALL,
    OF_PEOPLE,
    OTHER_NAMES,
    OVERALL,
    THINGS,
    Cell,
    Findings,
    Groups,
    Table,
    are_groups,
    are_no_votes,
    are_votes,
    as_ids,
    as_numbers,
    as_objects,
    as_ratings,
    cell_key,
    clearest_votes,
    clearness_of_votes,
    columns_of_votes,
    compare_answers,
    few_labels,
    find_pairs_of_annotators,
    holds_texts,
    ids_in,
    is_chat,
    likely_annotators,
    most_alike,
    require_size,
    unused_columns,
)
from badpo.data.nesting import flatten
from badpo.data.problems import LISTED, Correction, DataError, Problem, counted, did_you_mean, listed
from badpo.data.reshaping import (
    best_beside_others,
    find_answers,
    find_judges,
    holds_rankings,
    melt_groups,
    reshape,
    spread,
    with_legends,
)
from badpo.data.vocabulary import (
    ANSWER,
    ANSWERS,
    ANSWERS_HERE,
    EVEN,
    EXCHANGED,
    KNOWN,
    LOST,
    MODELS,
    OF_ONE_ANSWER,
    PAIR,
    PEOPLE,
    SECONDS,
    SIDES,
    TEXTS,
    TURNED,
    alike,
    columns_named,
    columns_of_orders,
    columns_of_outcomes,
    columns_of_sides,
    folded,
    has_word,
    is_called_like_people,
    like_annotators,
    names_vote,
    side_of,
    which_wins,
    without_legend,
)

_COMMON_WORDS = re.compile(
    "|".join(
        [
            *(words.pattern for words in (OTHER_NAMES, MACHINES, PEOPLE, OF_PEOPLE, THINGS)),
            *SIDES,
            *SIDES.values(),
        ]
        + [
            r"\d+|text|rating|score|ratings|scores|quality|note|comment|label|worker|annotator|rater|judge"
        ]
    )
)


_LENGTHS = re.compile(
    "tokens?|length|len|chars|characters|words|wordcount|nchar|wc|longitud|largo|länge|laenge|longueur|lunghezza|"
    "comprimento|lengte|längd|längen|woerter|lungh|文字数|字数|글자수|zeichen|wörter|mots|palabras|palavras|parole|слов"
)


def find_misnamed(
    frame: pd.DataFrame, columns: Sequence[tuple[str, str | None]], where: str
) -> list[Problem]:
    """Return a problem, with a remedy, for each wrong column name that the user gave."""
    problems, known = [], (*KNOWN, *ANSWERS, *OF_ONE_ANSWER)
    found = [str(name) for name in frame.columns]
    absent = {column for _, column in columns if column is not None and column not in found}
    # if the caller's spelling differs from a column name only in case, messages may quote the column name
    asked = [name for name in found if folded(name) in {*map(folded, absent)}]
    shown = _nameable_columns(frame, asked) if absent else []
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
                remedy = f'exchange the two names: "{column}" is badpo\'s name and "{ours}" is the table\'s name'
            problems.append(Problem("E103", what, where, remedy))
        elif column is not None and column not in found:
            hint, close = did_you_mean(str(column), shown), alike([folded(column)], shown)
            what = f'column "{column}" (for {ours}) is not in the table.{hint}'
            is_one = [name for name, _ in columns].count(ours) == 1
            fix: Correction = {}
            if close and is_one:
                fix = {"columns": dict.fromkeys([ours], *close.values())}
            remedy = f"found: {list_columns(frame, asked)}"
            problems.append(Problem("E103", what, where, remedy, fix=fix))
        elif ours in ("comparison_id", "prompt_id") and columns_named([str(column)], ["annotator"]):
            what = (
                f'column "{column}" names the annotators; if badpo read it as {ours}, every file that badpo writes '
                "would contain raw ids"
            )
            remedy = "map this column to annotator, and use a column of ids that do not name people"
            problems.append(Problem("E103", what, where, remedy, fix={"columns": {ours: None}}))
    return problems


def report_missing(table: Table, theirs: Mapping[str, str], missing: Sequence[str]) -> Problem:
    """Return the problem (E101) that names the missing columns of a table.

    The problem's ``fix`` maps missing columns to the table's columns with similar names or the expected content.
    """
    frame = _rows_with_answers(table.frame, theirs)
    fix = _propose_columns(frame, theirs, missing)
    proposed = [name for name in fix.get("columns", {}).values() if name is not None]
    free = [name for name in frame if name not in theirs.values()]
    written = alike(missing, free)
    quoted = list_columns(frame, [*theirs.values(), *proposed, *written.values()])
    where = f"{table.name}, found: {quoted}"
    lengths = [
        pair
        for pair in [*columns_of_sides(free), *columns_of_outcomes(free)]
        if has_word(pair[0], _LENGTHS)
    ]
    if lengths and "prompt" in missing and not _votes_and_texts(frame, free)[1]:
        what = (
            f"columns missing: {', '.join(missing)}; {' and '.join(lengths[0])} hold lengths, and no column "
            "holds texts"
        )
        remedy = "write a table in which each response is a placeholder text of the response's length"
        return Problem("E101", what, where, remedy, len(missing), lengths=lengths[0])
    hints = "".join(f' "{ours}": Did you mean "{name}"?' for ours, name in written.items())
    known = ", ".join(f'{ours} from "{name}"' for ours, name in theirs.items() if ours in KNOWN)
    what = f"columns missing: {', '.join(missing)}.{hints}{f' Recognised: {known}.' * bool(known)}"
    remedy = "rename the columns to prompt, chosen, rejected or to prompt, response_a, response_b, winner, or map them"
    return Problem("E101", what, where, remedy, len(missing), fix=fix)


def _votes_and_texts(frame: pd.DataFrame, free: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the vote columns that have several labels, and the columns that hold texts."""
    votes = [name for name in columns_of_votes(frame, free) if len(few_labels(frame[name])) != 1]
    return votes, [name for name in free if name not in votes and holds_texts(frame[name])]


def _rows_with_answers(frame: pd.DataFrame, theirs: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows with an answer; rows without answers, such as other trials of an experiment, hold no votes."""
    sides = [theirs[ours] for ours in PAIR[1:] if ours in theirs]
    return frame[frame[sides].notna().any(axis=1)] if sides else frame


def _propose_columns(
    frame: pd.DataFrame, theirs: Mapping[str, str], missing: Sequence[str]
) -> Correction:
    """Return options that map missing columns to columns with similar names or with the expected content.

    The options may map only some of the missing columns. If the names of two text columns differ only in the word for
    the side, as in ``text_1`` and ``text_2``, the function proposes these columns as the answers. If the names do not
    show which text columns are the answers, the function proposes the first text column as the prompt and the next two
    as the answers. Two columns of numbers or ticks, such as ``score_1`` and ``score_2``, are proposed as the ratings of
    the two answers. If no two columns rate the answers, the function proposes
    a vote column: the column that shows most clearly which side was preferred.
    """
    columns, labels = _propose_texts(frame, theirs, missing)
    names = {ours: name for ours, name in columns.items() if name is not None}
    fix: Correction = {"columns": columns} if columns else {}
    if missing[-1] in (*PAIR, *columns):
        return fix
    sides, free = {**theirs, **names}, [name for name in frame if name not in theirs.values()]
    free = [name for name in free if name not in columns.values()]
    compared = [pair for pair in columns_of_sides(free) if compare_answers(frame, pair)]
    frame = _rows_with_answers(frame, sides)
    best = clearest_votes(frame, labels, sides)
    others = [name for name in labels if name not in best]
    is_clearer = best != [] and clearness_of_votes(frame, best[0], sides) >= NAMES_SIDES
    has_no_people = "annotator" not in theirs
    if has_no_people and find_pairs_of_annotators(frame, free):
        fix["layout"] = "wide"
    elif compared and (not is_clearer or {*best} <= {*compared[0]}):
        overall = [pair for pair in compared if has_word(pair[0], OVERALL)]
        fix["columns"] = columns | rated_pair(*[*overall, *compared][0])
    elif (
        len(best) > 1 and has_no_people and not any(map(is_called_like_people, others))
    ) or _is_of_one_person(frame, best, others, theirs):
        fix["layout"] = "wide"
    elif len(best) == 1:
        rating = "rank" if which_wins(best[0]) == "low" else "rating"
        ours = rating if missing[-1] == "rating" else "winner"
        fix["columns"] = columns | {ours: best[0]}
        if LOST & {*folded(best[0]).split("_")}:
            known = {label: side_of(label) for label in few_labels(frame[best[0]])}
            fix["winners"] = {label: TURNED[side[0]] for label, side in known.items() if side}
    return fix


def _propose_texts(
    frame: pd.DataFrame, theirs: Mapping[str, str], missing: Sequence[str]
) -> tuple[dict[str, str | None], list[str]]:
    """Map missing columns to columns with similar names or texts; return the mapping and the columns without texts.

    If the table has no prompts, the mapping has the value None for the prompt.
    """
    free = [name for name in frame if name not in theirs.values()]
    votes = columns_of_votes(frame, free)
    # if the table has three or more vote columns, do not propose the vote columns with similar labels
    several = {*most_alike(frame, votes)} if len(votes) > 2 else {*()}
    columns = alike(missing, [name for name in free if name not in several])
    columns = {
        ours: own for ours, own in columns.items() if ours not in PAIR[1:] or holds_texts(frame[own])
    }
    free = [name for name in free if name not in columns.values()]
    lacks = [ours for ours in PAIR if ours in missing and ours not in columns]
    pairs = columns_of_sides(free)
    of_texts = [pair for pair in pairs if all(holds_texts(frame[name]) for name in pair)]
    if {*PAIR[1:]} <= {*lacks} and len(of_texts) == 1:
        columns |= dict(zip(PAIR[1:], of_texts[0], strict=True))
        lacks = [ours for ours in lacks if ours not in columns]
        free = [name for name in free if name not in columns.values()]
    votes, texts = _votes_and_texts(frame, free)
    if "winner" in missing and {*PAIR[1:]} <= {*theirs, *columns}:
        # a text column in which a judge states the preferred side holds votes, not prompts or answers
        texts = [name for name in texts if clearness_of_votes(frame, name, {}) < NAMES_SIDES]
    if lacks == ["prompt"]:
        texts = [name for name in texts if not has_word(name, OTHER_NAMES)]
    if lacks[:1] == ["prompt"] and len(texts) == len(lacks) - 1:
        # a prompt column may hold short texts, but no ids
        many = [name for name in free if name not in (*votes, *texts) and not few_labels(frame[name])]
        many = [name for name in many if not are_no_votes(name, frame[name])]
        texts = [*many[:1], *texts]
    if lacks == ["prompt"]:
        # the first text column holds the prompts, because a column of remarks usually follows the answers
        texts = texts[:1] or _ids_of_comparisons(frame, {**theirs, **columns}, free)[:1]
    labels = [name for name in free if name not in texts]
    if len(lacks) == len(texts):
        columns |= dict(zip(lacks, texts, strict=True))
    if lacks == ["prompt"] and not texts and "response_b" in {*theirs, *columns}:
        return {**columns, "prompt": None}, labels
    return {**columns}, labels


def rated_pair(a: str, b: str) -> dict[str, str]:
    """Return the option ``columns`` that reads the winner from the ratings or ranks of the two answers."""
    number = "rank" if which_wins(a) == "low" else "rating"
    return {f"{number}_a": a, f"{number}_b": b}


def _is_of_one_person(
    frame: pd.DataFrame, votes: Sequence[str], others: Sequence[str], theirs: Mapping[str, str]
) -> bool:
    """Return whether the table has a single vote column whose name may be the annotator's name.

    If another column may hold annotator ids, the result is False.
    """
    if "annotator" in theirs or len(votes) != 1 or votes[0] in _nameable_columns(frame, []):
        return False
    ids = [ids_in(frame[name]).dropna() for name in others if not has_word(name, OTHER_NAMES)]
    return not any(len(one) and not one.is_unique for one in ids)


def _ids_of_comparisons(
    frame: pd.DataFrame, theirs: Mapping[str, str], free: Sequence[str]
) -> list[str]:
    """Return the id columns that can replace a missing prompt column.

    Equal answers must always have the same id. If each row has only one answer, most ids must occur with several
    answers.
    """
    sides = [theirs[ours] for ours in TEXTS if ours in theirs]
    if not sides:
        return []
    answers = frame.groupby([frame[name].map(cell_key) for name in sides]).ngroup()
    found = []
    for name in [*free, *(theirs[ours] for ours in ("prompt_id", "comparison_id") if ours in theirs)]:
        ids = ids_in(frame[name])
        is_other = is_called_like_people(name) or ids.isna().any()
        if is_other or ids.nunique() < answers.nunique() / MOST_LABELS:
            continue
        n_answers = answers.groupby(ids).nunique()
        if ids.groupby(answers).nunique().max() == 1 and (len(sides) > 1 or n_answers.median() > 1):
            found.append(name)
    return found


def _nameable_columns(frame: pd.DataFrame, known: Sequence[str]) -> list[str]:
    """Return the columns whose names a message may quote.

    A label column may hold the votes of one person, and the column's name may be the name of this person. A message
    quotes the name of a label column only if the name is in ``known``, is a variant of one of badpo's names, or
    consists only of common words.
    """
    ours = (*KNOWN, *ANSWERS, *MODELS, *OF_ONE_ANSWER)
    like_ours = {*columns_named([*frame], ours).values(), *alike(ours, [*frame]).values(), *known}
    votes = columns_of_votes(frame, [*frame])

    def is_nameable(name: str) -> bool:
        words = folded(name).split("_")
        if name in votes and len(words) > 1 and is_called_like_people(words[0]):
            return False
        if name in like_ours or all(_COMMON_WORDS.fullmatch(word) or names_vote(word) for word in words):
            return True
        are_labels = 0 < len(few_labels(frame[name])) < frame[name].count()
        return not (name in votes or are_labels or np.isfinite(as_numbers(frame[name])).any())

    return [name for name in frame if is_nameable(name)]


def list_columns(frame: pd.DataFrame, known: Sequence[str]) -> str:
    """Return the column names that a message may quote, and the number of further columns."""
    shown = _nameable_columns(frame, known)
    n_others = len(frame.columns) - len(shown)
    others = counted(n_others, "further column") if n_others else ""
    return " and ".join(filter(None, [", ".join(shown), others])) or "no column"


RATED = ("rating_a", "rating_b", "rank_a", "rank_b")
REQUIRED = {
    "a_b": (*PAIR, "winner"),
    "chosen_rejected": ("chosen", "rejected"),
    "rating": (*PAIR, "rating"),
    "ratings": (*PAIR, "rating_a", "rating_b"),
    "ranks": (*PAIR, "rank_a", "rank_b"),
    "counts": (*PAIR, "votes_a", "votes_b"),
    "rated answers": ("prompt", "response", "rating"),
    "ranked answers": ("prompt", "response", "rank"),
}
LAYOUTS = (None, "wide", "counts")
_EXCHANGED = re.compile("flipped|flip|swapped|swap|reversed|exchanged|inverted|mirrored|vertauscht")
_OF_PLACES = re.compile(
    f"{ANSWER}|left|right|first|second|links|rechts|shown|displayed|presented|on|the|side|position|model|which"
)
_SUMS = re.compile(
    "majority|consensus|gold|adjudicated|adjudication|mode|aggregated?|konsens|mehrheit|mayoría|consenso|majorité|truth"
)


def recognise(
    table: Table, columns: Mapping[str, str | None] | None = None, layout: str | None = None
) -> Table:
    """Return the table with one row for each vote, and with badpo's names for the columns that badpo recognizes.

    Other columns keep their names. ``columns`` maps badpo's names to the table's names; the value None leaves a column
    unused. A `DataError` lists all columns that are missing (E101) or misnamed (E103).
    """
    # in a recipe, a column name may be a number
    columns = {ours: name if name is None else str(name) for ours, name in (columns or {}).items()}
    people: list[str] = []
    if layout == "wide":
        people = [*filter(None, (columns.pop("annotator", "") or "").split(","))]
    table, longer = with_legends(flatten(_with_distinct_names(table)))
    columns = {ours: longer.get(name, name) if name else name for ours, name in columns.items()}
    people = [longer.get(name, name) for name in people]
    table = reshape(table, [*filter(None, columns.values()), *people])
    found = [str(name) for name in table.frame.columns]
    if problems := find_misnamed(
        table.frame, [*columns.items(), *(("annotator", one) for one in people)], table.name
    ):
        raise DataError(problems)
    told = {ours: name for ours, name in columns.items() if name is not None}
    free = [name for name in found if name not in told.values()]
    table, answers = _find_columns(table, free, columns, layout)
    votes = _find_numbered_votes(table) if layout is None else {}
    if not columns.get("annotator") and all("annotator" in vote for vote in votes.values()) and votes:
        what = f"{counted(len(votes), 'pair')} of columns, each with an annotator and a vote"
        table = melt_groups(table, votes, "annotator", what)
        table = table.without_names(*(ours for ours, name in columns.items() if name is None))
        votes = {}
    if layout is None and "annotator" not in {*table.theirs, *columns}:
        table = _find_annotators(table)
    if layout == "wide":
        table = _melt_annotators(table, people)
    elif answers and "response_a" not in told:
        table = _melt_judges(table, answers) if "annotator" not in table.theirs else table
        table = best_beside_others(table, answers)
    elif "annotator" in table.theirs and votes:
        what = f"{' and '.join(votes)}: each column holds a vote by the row's annotator"
        games = {name: {"winner": name} for name in votes}
        table = melt_groups(table.without_names("judgment_id"), games, "game", what)
    if columns.get("prompt", "") is None:
        table = _without_prompts(table)
    return _in_rows(table, told, layout)


def _melt_judges(table: Table, answers: Mapping[str, str]) -> Table:
    """If several judges rated or ranked three or more answers, return a table with a separate row for each judge."""
    others = [name for name in table.frame if name not in answers.values()]
    rankings = {name: {"ranking": name} for name in others if holds_rankings(table.frame[name])}
    if judges := find_judges(table.frame, answers):
        table = melt_groups(
            table, judges, "annotator", f"{counted(len(judges), 'judge')} of every answer"
        )
    elif len(rankings) > 1:
        what = f"{counted(len(rankings), 'column')} of rankings, one for each annotator"
        table = melt_groups(table, rankings, "annotator", what)
    else:
        return table
    known = (*KNOWN, *MODELS)
    return table.with_names({ours: name for ours, name in table.theirs.items() if ours in known})


def _with_distinct_names(table: Table) -> Table:
    """Return the table with numbers appended to repeated column names.

    A `DataError` (E103) is raised if a repeated name could be one of badpo's names.
    """
    found = [str(name) for name in table.frame]
    twice = sorted({name for name in found if found.count(name) > 1})
    if problems := [
        Problem(
            "E103", f'{found.count(name)} columns are called "{name}"', table.name, "rename all but one"
        )
        for name in columns_named(twice, (*KNOWN, *ANSWERS, *OF_ONE_ANSWER)).values()
    ]:
        raise DataError(problems)
    distinct = [f"{name} ({i})" if name in found[:i] else name for i, name in enumerate(found)]
    return replace(table, frame=table.frame.set_axis(pd.Index(distinct, dtype=object), axis=1))


def _find_columns(
    table: Table, free: Sequence[str], columns: Mapping[str, str | None], layout: str | None
) -> tuple[Table, dict[str, str]]:
    """Return the table with its recognized columns, and the columns that hold three or more answers.

    The returned table has a notice (N103) that lists the recognized columns.
    """
    told = {ours: name for ours, name in columns.items() if name is not None}
    wanted = [name for name in (*KNOWN, *ANSWERS, *MODELS) if name not in columns]
    theirs = told | columns_named(free, wanted)
    winner = theirs.get("winner", "")
    labels = few_labels(table.frame[winner]) if winner and winner not in told.values() else []
    if len(labels) == 1 < len(table.frame) and side_of(labels[0]) is None:
        # a column does not hold votes if every row has the same label, and the label names no side
        theirs = told | columns_named([name for name in free if name != winner], wanted)
    if "chosen" in theirs and "winner" not in theirs:
        # "chosen" may hold the label of the preferred answer instead of its text
        is_beside = {*PAIR[1:]} <= {*theirs} and are_votes(table.frame[theirs["chosen"]])
        if is_beside or "rejected" not in theirs:
            theirs["winner"] = theirs.pop("chosen")
    if {*MODELS} <= {*theirs} and "response_a" not in {*theirs, *columns}:
        # columns with names such as "model_a" and "model_b" may hold the models' answers instead of their names
        texts = [theirs[model] for model in MODELS]
        if all(holds_texts(table.frame[name]) for name in texts):
            theirs = {ours: name for ours, name in theirs.items() if ours not in MODELS}
            theirs |= dict(zip(PAIR[1:], texts, strict=True))
    answers = find_answers(
        table.frame[:MANY_ROWS], [name for name in free if name != theirs.get("prompt")]
    )
    if not answers and not {"response_a", "rejected"} & {*theirs}:
        # the table may have one answer per row, and several rows per prompt
        left = [name for name in free if name not in theirs.values()]
        texts = [name for name in left if holds_texts(table.frame[name])]
        texts = texts or [name for name in left if not are_votes(table.frame[name])]
        theirs |= columns_named(texts, {"response"} - {*theirs})
        if "response" in theirs:
            theirs = columns_named(left, ["rank"]) | theirs
            if "winner" in theirs:
                theirs["rating"] = theirs.pop("winner")
    if layout != "counts" and ("winner" in theirs or {"chosen", "rejected"} <= {*theirs}):
        # if the table has a winner column, the columns with ratings, ranks and counts do not hold the votes
        theirs = {ours: name for ours, name in theirs.items() if ours not in ANSWERS or ours in told}
    if "annotator" not in {*theirs, *columns}:
        # parts of one record may repeat the annotator's id
        # if all annotator columns hold the same ids, read the first of these columns
        people = [name for name in like_annotators(free) if name not in theirs.values()]
        ids = [ids_in(table.frame[name]) for name in people]
        if len(ids) > 1 and ids[0].notna().any() and all(ids[0].equals(other) for other in ids):
            theirs["annotator"] = people[0]
    recognised = {ours: name for ours, name in theirs.items() if name not in (ours, told.get(ours))}
    group = recognised.get("annotator_class")
    if group and not are_groups(table.frame, group, theirs.get("annotator")):
        # the column has a name such as "group", but its values describe votes and not annotators
        del recognised["annotator_class"], theirs["annotator_class"]
    if recognised:
        pairs = ", ".join(f'{ours} from "{name}"' for ours, name in recognised.items())
        table = table.noted("N103", f"columns read: {pairs}", "name one where another is meant")
    return table.with_names(theirs), answers


def _find_annotators(table: Table) -> Table:
    """If a column very likely names the annotators, return the table with this column as its annotator column.

    The annotator column is recognized by its content or its name. The returned table has a notice (N103) that names the
    annotator column.
    """
    has_texts = not {"response_a", "response", "chosen"}.isdisjoint(table.theirs)
    beginning = table.with_rows(table.frame[: 10 * MANY_ROWS])
    likely = likely_annotators(_renamed(beginning)) if has_texts else []
    if not likely:
        return table
    what = f'annotators read from column "{likely[0]}", which was recognized by its name or its content'
    fix: Correction = {"columns": {"annotator": None}}
    table = table.noted("N103", what, "if the column does not hold annotators, leave it unused", fix)
    return table.with_names({**table.theirs, "annotator": likely[0]})


def _without_prompts(table: Table) -> Table:
    """Return the table with an empty prompt in each row.

    The table stays unchanged if each prompt is the common prefix of two conversations.
    """
    first = table.theirs.get("response_a", table.theirs.get("chosen"))
    if first is None or table.frame[first].map(_is_conversation).mean() >= NEARLY_ALL:
        return table
    table = table.with_names({**table.theirs, "prompt": "prompt"})
    return replace(table, frame=table.frame.assign(prompt=""))


def _is_conversation(cell: Cell) -> bool:
    return is_chat(cell) or (isinstance(cell, str) and ANSWERS_HERE in cell)


def _in_rows(table: Table, told: Mapping[str, str], layout: str | None) -> Table:
    """Read the table in the layout for which the fewest columns are missing; return one row for each vote.

    If a column is missing, a `DataError` lists the missing columns.
    """
    theirs = table.theirs
    is_told = "rating" in told and "response" not in theirs
    asked = layout if layout == "counts" else "rating" if is_told else None
    # if the answers are conversations, no prompt column is needed, because the prompt is their common prefix
    first = theirs.get("response_a")
    has_chats = first is not None and bool(table.frame[first].dropna().map(is_chat).mean() >= NEARLY_ALL)
    there = {*theirs, *["prompt"] * has_chats}
    lacks = {kind: [name for name in names if name not in there] for kind, names in REQUIRED.items()}
    others = [name for name in table.frame if name not in theirs.values()]
    if "rating_a" not in told and not lacks["ratings"] and columns_of_votes(table.frame, others):
        # if another column holds votes, the two rating columns are not read as votes
        del lacks["ratings"]
    low = "rank" if which_wins(theirs.get("rating_a", "")) == "low" else ""
    if low and not {"rating_a", "rank_a"} & {*told}:
        # the column name implies that a lower number is better, as in "rank"
        theirs = {ours.replace("rating_", "rank_"): name for ours, name in theirs.items()}
        lacks["ranks"] = lacks.pop("ratings", [])
    of_sides = itertools.chain(*columns_of_sides([] if "response_a" in theirs else others))
    if "response" not in told and any(holds_texts(table.frame[name]) for name in of_sides):
        # each row holds both answers
        del lacks["rated answers"], lacks["ranked answers"]
    kind = asked or min(lacks, key=lambda kind: len(lacks[kind]) / len(REQUIRED[kind]))
    if lacks[kind]:
        raise DataError([report_missing(table, theirs, lacks[kind])])
    table = _filled_down(table.with_names(theirs))
    table = _without_empty_rows(table, [theirs[ours] for ours in REQUIRED[kind] if ours in TEXTS])
    turned: Correction = {}
    if kind in ("rated answers", "ranked answers"):
        number, other = ("rating", "rank") if kind == "rated answers" else ("rank", "rating")
        # in the wide layout, each annotator has a column, so no single column can be mapped to the ratings or ranks
        turned = {} if layout == "wide" else {"columns": {other: theirs[number]}}
        table, kind = _answers_beside(table, number), f"{number}s"
    if kind == "counts":
        table = _one_row_a_vote(table)
    elif kind in ("ratings", "ranks"):
        table = _compared(table, REQUIRED[kind][-2:], turned)
    elif kind == "rating":
        names = {"winner" if ours == "rating" else ours: name for ours, name in theirs.items()}
        table = table.with_names(names)
    kind = kind if kind in ("rating", "chosen_rejected") else "a_b"
    prompt = table.theirs.get("prompt")
    if prompt is not None and np.isfinite(as_numbers(table.frame[prompt])).all():
        prompts = as_ids(table.frame[prompt])
        table = replace(table, frame=table.frame.assign(**{prompt: prompts}))
    return _with_flags(_with_names_of_places(replace(_renamed(table), kind=kind)))


def _with_flags(table: Table) -> Table:
    """If columns flag ties or exchanged sides, change the vote labels accordingly; return the table.

    Labels may name places such as left and right, or count from 0, although the names of the answer columns do not.
    Only the user then knows whether a label means a place on the screen. In a row with exchanged sides, the word
    "exchanged" is appended to a label that names a place, so that badpo reads the label only if the user defines the
    label's meaning.
    """
    frame, kind = table.frame, table.kind
    sides = ("chosen", "rejected") if kind == "chosen_rejected" else PAIR[1:]
    called = {word for side in sides for word in folded(table.theirs[side]).split("_")}
    free = [name for name in frame if name not in KNOWN and name not in table.theirs]
    for name in [*free, *(["shown_first"] if "shown_first" in frame else [])]:
        words = [
            word for word in folded(name).split("_") if word not in ("is", "was", "a", "flag", "order")
        ]
        are_even = words != [] and all(map(EVEN.fullmatch, words))
        rows = _ticked(frame[name]) if are_even else _exchanged_rows(words, frame[name])
        if not rows.any():
            continue
        if are_even and kind == "chosen_rejected":
            sides_of = {"chosen": "response_a", "rejected": "response_b"}
            own = {sides_of.get(ours, ours): theirs for ours, theirs in table.theirs.items()}
            table, kind = replace(table, theirs=own | {"winner": name}, kind="a_b"), "a_b"
            frame = frame.rename(columns=sides_of).assign(winner="a")
        if are_even:
            frame = frame.assign(winner=frame["winner"].astype(object).mask(rows, "tie"))
            what = f'"{name}" marks {counted(int(rows.sum()), "vote")} as ties'
            table = table.noted("N106", what)
        elif kind != "chosen_rejected":
            named = {cell: (side_of(str(cell)) or ("", ""))[1] for cell in few_labels(frame["winner"])}
            places = [cell for cell, word in named.items() if word not in ("", "a", "b", *called)]
            places = [*named] if {*named} == {"0", "1"} else places
            labels = ids_in(frame["winner"])
            marked = labels.where(
                ~(labels.isin(places) & rows), labels + f" ({re.sub(r'[()]', '', name)}:{EXCHANGED}"
            )
            frame = frame.assign(winner=marked) if places else frame
    return replace(table, frame=frame)


def _ticked(column: pd.Series) -> NDArray[np.bool_]:
    """Return, for each row, whether a column has a tick; if the column holds other values, all rows are False."""
    ticks = as_ratings(column)
    is_ticked: NDArray[np.bool_] = (ticks == 1) & ({*ticks[np.isfinite(ticks)]} <= {0.0, 1.0})
    return is_ticked


def _exchanged_rows(words: Sequence[str], column: pd.Series) -> NDArray[np.bool_]:
    """Return, for each row, whether a column says that the sides were exchanged.

    ``words`` are the words in the name of the column. The column holds ticks, orders of the answers such as ``BA`` or
    ``[1, 0]``, or names of answers. If the cells name answers, the column name mentions a place on the screen, as in
    ``left_is``.
    """
    # a list such as [1, 0] becomes the string "[1, 0]"; only the letters and digits of this string are compared
    texts = as_objects(str(cell) if isinstance(cell, list) else cell for cell in column)
    cells = pd.Series(texts, column.index, dtype=object)
    labels = few_labels(cells)
    forms = {cell: re.sub(r"\W", "", cell) for cell in labels}
    forms = {cell: form if len(form) == 2 else cell for cell, form in forms.items()}
    cells = ids_in(cells).map(forms) if labels else column
    labels = [*dict.fromkeys(forms.values())]
    if len(labels) == 2 and (orders := columns_of_orders(labels)):
        return np.asarray(cells == orders[0][1], dtype=bool)
    if any(map(_EXCHANGED.fullmatch, words)):
        return _ticked(column)
    first = [word in SIDES for word in words if (word in SIDES or word in SECONDS) and word.isalpha()]
    sides = {label: (side_of(label) or ("",))[0] for label in labels}
    if len(first) != 1 or not all(map(_OF_PLACES.fullmatch, words)) or {*sides.values()} != {"a", "b"}:
        return np.zeros(len(column), dtype=bool)
    return np.asarray(cells.map(sides) == "ab"[first[0]], dtype=bool)


def _with_names_of_places(table: Table) -> Table:
    """If labels name places such as left and right, replace them with the names of the answers in these places.

    The table must have columns such as ``left_model`` and ``right_model``, which name the answer in each place.
    """
    frame, kind = table.frame, table.kind
    if kind != "a_b" or "winner" not in frame:
        return table
    called = [folded(table.theirs[side]) for side in PAIR[1:]]
    labels = {label: side for label in few_labels(frame["winner"]) if (side := side_of(label))}
    names = {*called}
    if not {"a", "b"} & {word for _, word in labels.values()}:
        # if labels name places, a column such as left_model may name the answer response_base by the word "base" alone
        names |= {*called[0].split("_")} ^ {*called[1].split("_")}
    if any(word in form.split("_") for _, word in labels.values() if word for form in called):
        return table
    for first, second in columns_of_sides([name for name in frame if name not in PAIR]):
        cells = [ids_in(frame[name]) for name in (first, second)]
        if all(len(one) > 0 and one.map(lambda cell: folded(str(cell)) in names).all() for one in cells):
            sides = ids_in(frame["winner"]).map(lambda label: labels.get(label, ("",))[0])
            winner = ids_in(frame["winner"]).mask(sides == "a", cells[0]).mask(sides == "b", cells[1])
            what = f'the labels name places and were replaced with the names of the answers in "{first}" and "{second}"'
            return replace(table, frame=frame.assign(winner=winner)).noted("N106", what)
    return table


def _filled_down(table: Table) -> Table:
    """If merged cells in the file left text cells empty, fill these cells from the row above; return the table.

    The table stays unchanged unless each row has an annotator and a label, each label also occurs in a row with texts,
    and no annotator has two votes on the same texts.
    """
    frame, theirs = table.frame, table.theirs
    texts = [theirs[ours] for ours in PAIR if ours in theirs]
    votes = [theirs[ours] for ours in ("annotator", "winner") if ours in theirs]
    is_empty = frame[texts].isna().all(axis=1)
    if len(votes) < 2 or not 0 < is_empty.sum() < len(frame) or is_empty.iat[0]:
        return table
    keys = pd.DataFrame({"who": ids_in(frame[votes[0]]), "block": (~is_empty).cumsum()})
    labels = ids_in(frame[votes[1]])
    are_votes = labels.notna() & labels.isin(labels[~is_empty])
    if not are_votes.all() or keys.isna().any(axis=None) or keys.duplicated().any():
        return table
    filled = frame[texts].mask(is_empty, frame[texts].ffill())
    what = f"{counted(int(is_empty.sum()), 'row')} without texts: the texts of the row above were used"
    return replace(table, frame=frame.assign(**filled)).noted("N106", what)


def _without_empty_rows(table: Table, names: Sequence[str]) -> Table:
    """Return the table without the rows in which all of the given text columns are empty.

    Rows without texts may hold totals, or trials of an experiment that are not votes.
    """
    is_empty = table.frame[[*names]].isna().all(axis=1).to_numpy()
    if is_empty.all() or not is_empty.any():
        return table
    at = np.flatnonzero(is_empty)
    rows = listed([table.row_name(row) for row in at[:LISTED]], len(at))
    what = f"{counted(len(at), 'row')} without answers left out: {rows}"
    return (
        table.with_dropped("no answers", len(at)).with_rows(table.frame[~is_empty]).noted("N106", what)
    )


def _renamed(table: Table) -> Table:
    """Return the table with badpo's names for the recognized columns."""
    theirs = table.theirs
    others = [name for name in table.frame.columns if name not in (*theirs.values(), *KNOWN)]
    used = table.frame[[*theirs.values(), *others]].set_axis([*theirs, *others], axis=1)
    return replace(table, frame=used)


# -- layouts ---------------------------------------------------------------------------------------------------
# The functions below convert other layouts to tables with one row for each vote.


def _group_by_number(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group the columns whose names differ only in their numbers; each inner dict maps the numbers to the columns."""
    kinds: dict[str, dict[str, str]] = {}
    for name in names:
        if numbers := re.findall(r"\d+", form := folded(name)):
            kinds.setdefault(re.sub(r"_?\d+", "", form), {})["_".join(numbers)] = name
    return kinds


def _find_numbered_votes(table: Table) -> Groups:
    """Return the vote columns whose names differ only in their numbers, such as ``vote_1`` and ``vote_2``.

    If each vote column has an annotator column with the same number in its name (such as ``rater_1`` for ``vote_1``),
    the result also contains the annotator columns.
    """
    frame, theirs, people, votes = table.frame, table.theirs, [], []
    for kind, of in _group_by_number(frame).items():
        if columns_named([kind], ["annotator"]):
            people.append(of)
        elif names_vote(kind):
            votes.append(
                {key: name for key, name in of.items() if clearness_of_votes(frame, name, theirs) > 1}
            )
    if len(people) == len(votes) == 1 and {*people[0]} == {*votes[0]} and len(people[0]) > 1:
        return {name: {"annotator": people[0][key], "winner": name} for key, name in votes[0].items()}
    used = {name for ours, name in theirs.items() if ours != "winner"}
    games = max(
        ([name for name in of.values() if name not in used] for of in votes), key=len, default=[]
    )
    # if two columns rate or tick the two answers, the columns together hold one vote per row, not two votes
    if len(games) < 2 or (len(games) == 2 and compare_answers(frame, (games[0], games[1]))):
        return {}
    return {name: {"winner": name} for name in games}


def _melt_annotators(table: Table, people: Sequence[str]) -> Table:
    """Convert a table with one column for each annotator to a table with one row for each vote.

    The annotators' columns are ``people`` or, by default, the label columns that are most alike.
    """
    new = ["annotator", "winner"]
    old = [table.theirs[ours] for ours in new if ours in table.theirs]
    table = replace(table, frame=table.frame.drop(columns=old)).without_names(*new, *ANSWERS)
    frame, free = table.frame, [name for name in table.frame if name not in table.theirs.values()]
    if not people and (pairs := find_pairs_of_annotators(frame, free)):
        what = f"{counted(len(pairs), 'pair')} of columns, one for each annotator"
        return melt_groups(table, pairs, "annotator", what)
    people, are_told = people or columns_of_votes(frame, free), bool(people)
    if not people:
        what = "no column holds the votes of one annotator (labels of a side, or ratings)"
        where = f"{table.name}, free columns: {list_columns(frame[free], [])}"
        raise DataError([Problem("E101", what, where, "write each annotator's votes in one column")])
    n_others = 0
    if not are_told:
        n_others = len(people)
        people = [name for name in people if not has_word(name, _SUMS)] or people
        people = most_alike(frame, people)
        n_others -= len(people)
    # if the names of all annotator columns contain the same legend of the values, keep the legend
    legends = {name[len(without_legend(name)) :] for name in people}
    label = "rank" if all(which_wins(name) == "low" for name in people) else "winner"
    label += legends.pop() if len(legends) == 1 else ""
    what = f"{counted(len(people), 'column')} of labels, one for each annotator"
    if n_others:
        what += f" ({counted(n_others, 'further column')} with other labels or names not read)"
    groups = {without_legend(name): {label: name} for name in people}
    table = melt_groups(table, groups, "annotator", what)
    ours_of_label = "winner"
    if "response" in table.theirs:
        ours_of_label = "rank" if label.startswith("rank") else "rating"
    return table.with_names(
        {ours_of_label if ours == label else ours: name for ours, name in table.theirs.items()}
    )


def _one_row_a_vote(table: Table) -> Table:
    """Convert a table with vote counts for each side to a table with one row for each vote, without annotators."""
    theirs = table.theirs
    sides = {name.removeprefix("votes_"): theirs[name] for name in ANSWERS[-3:] if name in theirs}
    cells = {side: table.frame[name] for side, name in sides.items()}
    # a tick counts as one vote
    counts = pd.DataFrame({side: as_ratings(column) for side, column in cells.items()})
    counts = counts.mask(
        pd.DataFrame({side: ids_in(column).isna() for side, column in cells.items()}), 0
    )
    is_wrong = ~((counts >= 0) & (counts % 1 == 0)).all(axis=1)
    found = Findings(table)
    remedy = "write whole numbers, and 0 if a side has no votes"
    found.rows("E106", "the number of votes is not a whole number", None, is_wrong, remedy, {})
    found.stop_at_errors()
    require_size(table.name, int(counts.to_numpy().sum()), table.frame.shape[1])
    each = counts.stack().astype(np.intp)
    rows, winner = (each.index.repeat(each).get_level_values(level) for level in (0, 1))
    votes = table.frame.drop(columns=[*sides.values()]).loc[rows].assign(winner=winner.astype(object))
    what = f"counts of votes: {counted(len(votes), 'vote')} from {counted(len(counts), 'row')}"
    return spread(table, votes, ["winner"], what)


def _compared(table: Table, sides: Sequence[str], turned: Correction) -> Table:
    """Return the table with a winner column, which is derived from the two ratings or ranks in each row.

    The higher rating or the lower rank wins, and equal numbers are a tie. If one of the two numbers is missing, the row
    has no winner.
    """
    names = [table.theirs[ours] for ours in sides]
    a, b = (as_ratings(table.frame[name]) for name in names)
    if {*a[np.isfinite(a)], *b[np.isfinite(b)]} <= {0.0, 1.0}:
        # if one column has a tick in a row, an empty cell in the other column means "not preferred"
        a, b = (
            np.where(np.isnan(one) & np.isfinite(other), 0.0, one) for one, other in ((a, b), (b, a))
        )
    is_rank = sides[0] == "rank_a"
    won = ["b", "a", "tie"] if is_rank else ["a", "b", "tie"]
    winner = pd.Series(np.sign(a - b)).map(dict(zip((1, -1, 0), won, strict=True))).astype(object)
    what = f"two numbers in each row: the {'lower' if is_rank else 'higher'} number wins, and equal numbers are a tie"
    if table.rows is None:
        turned = {"columns": dict(zip(sides, reversed(names), strict=True))}
    table = replace(table, frame=table.frame.assign(winner=winner))
    table = table.noted("N107", what, "if it is the other way round", turned)
    return table.with_names({**table.without_names(*sides).theirs, "winner": "winner"})


def _with_repeats_apart(keys: pd.DataFrame, others: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Extend ``keys`` by a column that distinguishes repeated ratings of an answer; return ``keys`` and a phrase.

    The added column holds, for example, the criterion or the task of a rating. If one of several criteria is the
    overall impression, only the rows with the overall impression are kept. The phrase names the column and becomes part
    of a notice. If no column distinguishes repeated ratings, the phrase is empty.
    """
    of_one = keys.drop(columns="response")
    for name in others:
        ids = ids_in(others.loc[keys.index, name])
        n_groups = len(of_one.assign(apart=ids).drop_duplicates())
        if ids.isna().any() or keys.assign(apart=ids).duplicated().any() or 2 * n_groups > len(keys):
            continue
        if overall := [label for label in few_labels(ids) if has_word(label, OVERALL)]:
            what = f'; {counted(int((ids != overall[0]).sum()), "row")} of other values of "{name}" left out'
            return keys[ids == overall[0]], what
        return keys.assign(apart=ids), f'; rows are compared under the same value of "{name}"'
    return keys, ""


def _answers_beside(table: Table, number: str) -> Table:
    """Convert a table with one rated or ranked answer in each row to a table with a pair of answers in each row.

    The answers to a prompt are sorted by first appearance, and each answer is compared with the next one, so that all
    annotators compare the same pairs. The table does not contain all k (k - 1) / 2 pairs of k answers, because an
    annotator's k numbers are not k (k - 1) / 2 independent votes.
    """
    frame, theirs = table.frame, table.theirs
    places = as_ratings(frame[theirs[number]])
    who = {name: ids_in(frame[theirs[name]]) for name in ("prompt_id", "annotator") if name in theirs}
    texts = {name: frame[theirs[name]].map(cell_key) for name in ("prompt", "response")}
    keys = pd.DataFrame({**who, **texts}).fillna("")[np.isfinite(places)]
    left_out = ""
    if "annotator" in theirs and keys.duplicated().any():
        keys, left_out = _with_repeats_apart(keys, frame.drop(columns=[*theirs.values()]))
    of_one = [name for name in keys if name != "response"]
    if "annotator" not in theirs and keys.duplicated().any():
        like = unused_columns(table.with_names({own: own for own in theirs.values()}))
        what = "some answers are rated more than once, but no column names the annotators"
        fix: Correction = {"columns": {"annotator": like[0]}} if like else {}
        raise DataError([Problem("E110", what, table.name, "name the annotator column", fix=fix)])
    if not len(keys):
        what = f'column "{theirs[number]}" holds no numbers and no grades in words'
        remedy = "write numbers in the column, or name another column as the ratings"
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
    votes = frame.drop(columns=[*new.values()]).iloc[first].assign(**sides)
    n = int(np.isnan(places).sum())
    sizes = np.bincount(group)
    n_all = int((sizes * (sizes - 1) // 2).sum())
    what = (
        f"one answer in each row: {counted(len(first), 'pair')} of consecutive answers to the same prompt"
        + (f", not all {n_all:,} pairs" if n_all > len(first) else "")
        + (f"; {counted(n, 'row')} without a number left out" if n else "")
        + left_out
    )
    return spread(table.without_names("judgment_id", "comparison_id"), votes, sides, what)
