"""Convert tables in other forms, for example with several votes per row, to tables with a row for each vote."""

import html
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from badpo.data.cells import (
    FEW_ROWS,
    MANY_ROWS,
    NEARLY_ALL,
    WORDS,
    Cell,
    Findings,
    Groups,
    Table,
    are_no_votes,
    as_numbers,
    as_objects,
    as_ratings,
    few_labels,
    holds_texts,
    ids_in,
    is_chat,
    parsed,
    require_size,
)
from badpo.data.problems import counted, listed
from badpo.data.vocabulary import (
    ANSWER,
    ANSWERS,
    EVEN,
    PAIR,
    PROMPT,
    TURNED,
    columns_named,
    columns_of_orders,
    columns_of_sides,
    direction_of,
    folded,
    has_word,
    is_called_like_people,
    is_number_of_people,
    legends_in,
    names_vote,
    number_of,
    numbered_answers,
    side_of,
    side_of_label,
    which_wins,
)
from badpo.theory import Bools, Floats

_LONGEST_QUOTE = 20_000
_MOST_LEGENDS = 100  # badpo reads at most this many legends outside the cells of a table
_USUAL_QUESTION = 15  # characters
_LONGEST_OPTION = 60  # characters


def is_legend(text: str) -> bool:
    """Return whether a text explains numbers, as in ``1 = A is better, 5 = B is better``."""
    return any(legends_in(text)) and bool(direction_of(f"x ({text})") or which_wins(f"x ({text})"))


def with_legends(table: Table) -> tuple[Table, dict[str, str]]:
    """Add legends to the names of the columns that they explain; return the table and the columns' new names.

    A legend explains the numbers in a column. The legend of a column may be outside the table, in a column of its own,
    or in the first row of the explained column.
    """
    frame, legends = table.frame, [*dict.fromkeys(table.legends)][:_MOST_LEGENDS]
    of_columns: dict[str, str] = {}
    for name in map(str, frame):
        column = frame[name]
        if not isinstance(column, pd.Series) or not len(column) or not isinstance(column.iat[0], str):
            continue
        text = "; ".join(few_labels(column))
        if (
            is_legend(text)
            and all(any(legends_in(label)) for label in few_labels(column))
            and len(column) > 1
        ):
            legends.append(text)
            frame = frame.drop(columns=[name])
        elif is_legend(column.iat[0]) and np.isfinite(as_numbers(column.iloc[1:])).any():
            of_columns[name] = column.iat[0]
    if of_columns:
        frame = frame.iloc[1:]
    for text in legends:
        if is_legend(text):
            of_columns |= dict.fromkeys(_explained(text, frame), text) | of_columns
        elif meanings := _meanings(text):
            for name in frame:
                labels = few_labels(frame[name])
                if labels and {*labels} <= {*meanings}:
                    frame = frame.assign(**{name: ids_in(frame[name]).map(meanings)})
                    table = replace(table, frame=frame)
    if not of_columns:
        return table, {}
    names = {name: f"{name} ({re.sub(r'[()]', ' ', text)})" for name, text in of_columns.items()}
    what = f"a legend in the file explains the numbers in {counted(len(of_columns), 'column')}"
    return table.with_rows(frame.rename(columns=names)).noted("N106", what), names


def _meanings(text: str) -> dict[str, str]:
    """Return the meaning of each code in a legend, or an empty mapping if the meanings do not name both sides."""
    pairs = [part.partition(" = ") for part in text.split("; ")]
    meanings = {code: meaning for code, _, meaning in pairs if meaning}
    sides = {side[0] for meaning in meanings.values() if (side := side_of(meaning))}
    return meanings if {"a", "b"} <= sides else {}


def _explained(text: str, frame: pd.DataFrame) -> list[str]:
    """Return the columns whose numbers a legend explains.

    A legend explains the columns that it names. If a legend names no column, it explains the columns with names such as
    "vote" or "rating". If no column has such a name, the legend explains every column that may hold votes on its scale.
    """
    form = f"_{folded(text)}_"
    ends = [float(number) for legend in legends_in(text) for number, _ in legend]
    columns = []
    for name in map(str, frame):
        numbers = np.array([number_of(label) for label in few_labels(frame[name])])
        is_on_scale = len(numbers) > 0 and min(ends) <= min(numbers) and max(numbers) <= max(ends)
        if is_on_scale and not direction_of(name) and which_wins(name) != "low":
            columns.append(name)
    if named := [name for name in columns if f"_{folded(name)}_" in form]:
        return named
    if text.partition(":")[0] in map(str, frame):
        return []  # the legend names a different column
    said = [
        name for name in columns if names_vote(name) or re.search("rating|score|likert", folded(name))
    ]
    return said or [name for name in columns if not are_no_votes(name, frame[name])]


def reshape(table: Table, told: Collection[str]) -> Table:
    """Convert the table to one row per vote.

    ``told`` contains the columns that the user named. A conversion step that would remove a named column is skipped.
    """
    for change in (
        _without_trials,
        _counts_of_shares,
        _votes_beside_events,
        _blocks_of_comparisons,
        _answers_to_questions,
        _replies_beside,
        _split_texts,
        _votes_of_voters,
        _votes_of_both_orders,
    ):
        changed = change(table)
        if {*told} <= {*map(str, changed.frame)} or not {*told} <= {*map(str, table.frame)}:
            table = changed
    return table


# -- rows ------------------------------------------------------------------------------------------------------


def spread(
    table: Table, frame: pd.DataFrame, new: Iterable[str], what: str, code: str = "N106"
) -> Table:
    """Make a table from the votes in ``frame``, and add a notice to it.

    The index of ``frame`` gives, for each vote, the row of ``table`` from which the vote comes. ``new`` contains the
    columns of ``frame`` whose names are column names of badpo.
    """
    kept = {ours: name for ours, name in table.theirs.items() if name in frame and ours not in ANSWERS}
    return table.with_rows(frame).noted(code, what).with_names(kept | {name: name for name in new})


def melt_groups(table: Table, groups: Groups, key: str, what: str) -> Table:
    """Turn each group of columns in a row of ``table`` into a row of its own.

    If all cells of a group are empty, the group gets no row. The column ``key`` holds the name of the group, unless a
    column of the group is already named ``key``. If only a few votes lack an annotator, they count as the votes of one
    annotator named "no id".
    """
    old = {*itertools.chain(*(columns.values() for columns in groups.values()))}
    new = [*dict.fromkeys([key, *itertools.chain(*groups.values())])]
    others = table.frame.drop(columns=[name for name in table.frame if name in (*old, *new)])
    require_size(table.name, len(others) * len(groups), others.shape[1] + len(new))
    of_groups = (
        {key: name} | {ours: table.frame[own] for ours, own in columns.items()}
        for name, columns in groups.items()
    )
    votes = pd.concat([others.assign(**cells) for cells in of_groups]).sort_index(kind="stable")
    cells = [ids_in(votes[name]) for name in new if name not in (key, "annotator")]
    is_empty = pd.isna(cells).all(axis=0)
    votes, n_empty = votes[~is_empty], int(is_empty.sum())
    what += f": {counted(len(votes), 'vote')}, {counted(n_empty, 'empty pair' if cells[1:] else 'empty cell')}"
    is_unnamed = ids_in(votes[key]).isna()
    if 0 < (n_unnamed := int(is_unnamed.sum())) <= FEW_ROWS * len(votes):
        votes = votes.assign(**{key: votes[key].mask(is_unnamed, "no id")})
        what += f"; {counted(n_unnamed, 'vote')} without an annotator count as those of one annotator"
    return spread(table, votes, new, what)


def _without_rows(table: Table, is_out: Bools, reason: str, what: str) -> Table:
    """Remove the rows for which ``is_out`` is True; count them under ``reason`` and add a notice to the table."""
    at = np.flatnonzero(is_out)
    if not len(at) or len(at) == len(table.frame):
        return table
    rows = listed([table.row_name(row) for row in at[:5]], len(at))
    what = f"{counted(len(at), 'row')} left out, {what}: {'row' if len(at) == 1 else 'rows'} {rows}"
    kept = table.frame[~np.asarray(is_out)]
    return table.with_dropped(reason, len(at)).with_rows(kept).noted("N106", what)


_TRIAL = re.compile(
    "practice|practise|training|tutorial|warm_?up|attention(?:_check)?|catch(?:_trial)?|attn_check|instructional|"
    "übung|uebung|probedurchgang|práctica|practica|entrenamiento|entraînement|entrainement|essai|treino|prática|"
    "pratica|練習|练习|練習問題|연습|тренировка|oefening|övning"
)
_NO_VOTE = re.compile("(?:was_|is_)?(?:cancell?ed|skipped|discarded|test(?:_user|_account|_row)?)")
_STATUS = re.compile("status|state|progress|estado|statut|stato")
_NOT_FINISHED = re.compile(
    "timed_?out|skipped|incomplete|in_progress|partial|returned|cancell?ed|discarded|unanswered|pending|"
    "not_started|draft|survey_preview|preview|abandoned|expired|abgebrochen|übersprungen"
)
_OF_CONTENT = re.compile(
    "split|subset|dataset|source|topic|category|domain|task|genre|tags?|skill|label|reason|comments?"
)


def _is_trial(label: str) -> bool:
    form = folded(label)
    return (
        _TRIAL.fullmatch(re.sub(r"_?(?:trials?|items?|phase|block|round|questions?|\d+)", "", form))
        is not None
    )


def _without_trials(table: Table) -> Table:
    """Remove practice trials, attention checks and canceled votes from a table."""
    names = [*map(str, table.frame)]
    known = columns_named(names, (*PAIR, "response", "chosen", "rejected", "winner")).values()
    for name in names:
        column = table.frame[name]
        if not isinstance(column, pd.Series) or has_word(name, _OF_CONTENT) or name in known:
            continue
        form = re.sub("^(?:is|was)_|_flag$", "", folded(name))
        if _is_trial(form) or _NO_VOTE.fullmatch(form):
            ticks = as_ratings(column)
            if {*ticks[np.isfinite(ticks)]} <= {0.0, 1.0} and pd.notna(column).any():
                table = _without_rows(table, ticks == 1, "trial", f'marked by the column "{name}"')
            continue
        if has_word(name, _STATUS):
            ids = ids_in(column)
            others = [one for one in few_labels(column) if _NOT_FINISHED.fullmatch(folded(one))]
            named = " or ".join(f'"{label}"' for label in others)
            table = _without_rows(table, ids.isin(others), "not finished", f'"{name}" is {named}')
            continue
        if is_called_like_people(name):
            continue
        if trials := [label for label in few_labels(column) if _is_trial(label)]:
            named = " or ".join(f'"{label}"' for label in trials)
            table = _without_rows(table, ids_in(column).isin(trials), "trial", f'"{name}" is {named}')
    return table


def _counts_of_shares(table: Table) -> Table:
    """If a table has vote shares and numbers of annotators, replace both with counts of votes.

    Vote shares may be fractions or percentages. If the two shares add up to less than 100 %, the remainder counts as
    ties.
    """
    frame = table.frame
    sizes = [name for name in frame if is_number_of_people(name)]
    for pair in columns_of_sides([*map(str, frame)]) if len(sizes) == 1 else ():
        n, a, b = (as_numbers(frame[name]) for name in (*sizes, *pair))
        whole = 100 if max(a.max(), b.max()) > 1 else 1
        counts = [n * a / whole, n * b / whole]
        is_rounded = all((np.abs(count - np.round(count)) <= n / 100).all() for count in counts)
        if is_rounded and (n % 1 == 0).all() and (n > 1).all() and (a + b <= whole * 1.01).all():
            counts = [*np.round(counts)]
            ties = np.maximum(n - sum(counts), 0)
            votes = dict(zip(("votes_a", "votes_b", "votes_tie"), [*counts, ties], strict=True))
            what = f"{' and '.join(pair)} are shares of {sizes[0]} and were converted to counts of votes"
            return replace(table, frame=frame.drop(columns=[*pair, *sizes]).assign(**votes)).noted(
                "N106", what
            )
    return table


def _votes_beside_events(table: Table) -> Table:
    """If ids link the events in a log, join each vote with the texts that another event showed.

    If the same ids belong to different texts, the order of the sides is unknown, and the table stays unchanged.
    """
    frame = table.frame
    known = columns_named([*map(str, frame)], PAIR)
    if not {"response_a", "response_b"} <= {*known} or len({*frame}) < frame.shape[1]:
        return table
    texts = [*known.values()]
    shown = frame[frame[texts].notna().all(axis=1)]
    # an event that shows both responses has no vote, so vote columns are empty in its row
    of_votes = [name for name in frame if len(shown) and shown[name].isna().all() and name not in texts]
    votes = frame[frame[texts].isna().all(axis=1) & frame[of_votes].notna().any(axis=1)]
    if not len(votes):
        return table
    ids = {name: ids_in(frame[name]) for name in frame if name not in (*texts, *of_votes)}
    keys = [
        name
        for name in ids
        if ids[name].nunique() > 1 and ids[name][votes.index].isin(ids[name][shown.index].dropna()).all()
    ]
    events = shown[[*keys, *texts]].drop_duplicates()
    if not keys or events.duplicated(keys).any():
        return table
    joined = votes.drop(columns=texts).reset_index().merge(events, on=keys, how="inner")
    if len(joined) < len(votes):
        return table
    what = (
        f"{counted(len(joined), 'vote')} joined with the texts that {counted(len(shown), 'row')} showed"
    )
    return table.with_rows(joined.set_index("index")).noted("N106", what)


def _blocks_of_comparisons(table: Table) -> Table:
    """If each row holds several comparisons in numbered columns, give each comparison its own row.

    The names of corresponding columns differ only in the comparison number, which is the first or the last number in
    the name. A comparison has two responses, a vote and possibly a prompt. In a survey, a column name may begin with a
    code such as ``P01left``, before the text of the question.
    """
    for place, has_stem in itertools.product((0, -1), (True, False)):
        blocks = _blocks([*map(str, table.frame)], place, has_stem)
        names, n_alike = max(
            Counter(frozenset(block) for block in blocks.values()).items(),
            key=lambda item: item[1],
            default=(frozenset(), 0),
        )
        known = columns_named(sorted(names), (*PAIR, "winner"))
        votes = {*names} - {known.get(ours) for ours in PAIR}
        is_distinct = len({*table.frame}) == table.frame.shape[1]
        if n_alike < 2 or not {*PAIR[1:]} <= {*known} or not votes or not is_distinct:
            continue
        # a block may have extra columns, and it may lack any column except the texts and the vote
        needed = {*known.values()} if "winner" in known else names
        groups = {
            key: {kind: block[kind] for kind in sorted(names) if kind in block}
            for key, block in blocks.items()
            if needed <= {*block}
        }
        trials = [key for key in groups if _is_trial(key)]
        if not columns_named([*map(str, table.frame)], ["annotator"]):
            people = [f"row {row + 1}" for row in range(len(table.frame))]
            table = replace(table, frame=table.frame.assign(annotator=people))
        what = f"{counted(len(groups) - len(trials), 'block')} of columns, each with one comparison"
        if trials:
            what += f" ({counted(len(trials), 'block')} of practice trials not read)"
            unread = [*itertools.chain(*(blocks[key].values() for key in trials))]
            table = replace(table, frame=table.frame.drop(columns=unread))
        groups = {key: block for key, block in groups.items() if key not in trials}
        return melt_groups(table, groups, "comparison number", what) if groups else table
    return table


def _blocks(names: Sequence[str], place: int, has_stem: bool) -> Groups:
    """Group columns by the number in their names: number -> name without the number -> column.

    ``place`` is the index of the number among the numbers in a column's name. If ``has_stem`` is True, the group's key
    contains the part of the name before the number, as in ``pairs.1.player.choice`` and ``pair1_choice``.
    """
    blocks: Groups = {}
    for name in names:
        numbers = [*re.finditer(r"\d+", name)]
        if not numbers:
            continue
        before, behind = name[: numbers[place].start()], name[numbers[place].end() :]
        kind = name.partition(". ")[2] or (behind if has_stem else f"{before}{behind}")
        kind = re.sub(r"([_. -])[_. -]+", r"\1", kind).strip("_ .-")
        key = f"{before if has_stem else ''}{numbers[place][0]}"
        if kind or not has_stem:
            blocks.setdefault(key, {})[kind] = name
    return blocks


def _answers_to_questions(table: Table) -> Table:
    """Convert a survey with a row per person and a column per comparison to a table with a row per vote.

    The name of a comparison's column may quote the prompt and both responses. If the name is the prompt alone, each
    cell must hold the chosen response. If no column names the annotators, each row counts as one annotator.
    """
    frame = table.frame
    names = [str(name) for name in frame]
    if len({*names}) < len(names) or columns_named(names, ("response_a", "chosen", "response")):
        return table
    questions = {name: of for name in names if (of := question_in(name))}
    n_alike: dict[str, int] = {}
    quotes = [name for name in names if len(name) >= _USUAL_QUESTION and WORDS.search(name)]
    for name in quotes if not questions else ():
        texts = sorted(few_labels(frame[name])) if holds_texts(frame[name]) else []
        if len(texts) == 2 < frame[name].count():
            questions[name] = name, texts[0], texts[1]
        elif len(texts) == 1:
            n_alike[name] = int(frame[name].count())
    if len(questions) < 2:
        return table
    if n := sum(n_alike.values()):
        reason = "everybody chose the same response, so the other response is not in the table"
        what = f"{counted(len(n_alike), 'question')} ({counted(n, 'vote')}) left out: {reason}"
        frame = frame.drop(columns=[*n_alike])
        table = replace(table.with_dropped(reason, n), frame=frame).noted("N106", what)
    if not columns_named(names, ["annotator"]):
        frame = frame.assign(annotator=[f"row {row + 1}" for row in range(len(frame))])
    what = f"{counted(len(questions), 'column')} with one comparison each, and one row for each person"
    labels = {*itertools.chain(*(few_labels(frame[name]) for name in questions))}
    others = [name for name in frame if name not in questions and {*few_labels(frame[name])} & labels]
    if others:
        what += f" (not read, because the name quotes no two answers: {listed(others)})"
    groups = {name: {"winner": name} for name in questions}
    table = melt_groups(replace(table, frame=frame), groups, "question", what)
    cells = [questions[name] for name in table.frame["question"]]
    columns = {ours: [each[i] for each in cells] for i, ours in enumerate(PAIR)}
    return replace(table, frame=table.frame.drop(columns=["question"]).assign(**columns))


def _replies_beside(table: Table) -> Table:
    """Convert a table of messages to a table of its ranked messages, with each parent message as the prompt.

    Drop columns that name the writers of messages, because the writer of a message is not its annotator.
    """
    forms = {folded(str(name)): name for name in table.frame}
    wanted = ("parent_id", "parent_message_id"), ("message_id", "id"), ("text", "content"), ("rank",)
    called = [next((forms[form] for form in names if form in forms), None) for names in wanted]
    if None in called:
        return table
    parent, own, text, rank = called
    texts = table.frame.set_index(ids_in(table.frame[own]))[text]
    above = ids_in(table.frame[parent]).map(texts[~texts.index.duplicated()])
    writers = columns_named([str(name) for name in table.frame], ["annotator"]).values()
    others = table.frame.drop(columns=[parent, own, "prompt", "response", *writers], errors="ignore")
    replies = others.rename(columns={text: "response"}).assign(prompt=above)
    replies = replies[above.notna() & replies[rank].notna()]
    what = f"{counted(len(replies), 'ranked message')}, each with the message above it as its prompt"
    return table.with_rows(replies).noted("N106", what)


_TIES = re.compile("🤝|🤷.*|⚖️|=|🟰")


def _votes_of_voters(table: Table) -> Table:
    """If the column of each answer lists the people who voted for it, convert the table to one row per vote.

    Chat programs export reactions to messages as lists of people.
    """

    def tail(name: str) -> str:
        return re.sub(r"\.(?:users|voters|people|names)$", "", name).rpartition(".")[2]

    frame = table.frame
    called = {str(name): _as_number(tail(str(name))) for name in frame}
    called = {name: re.sub(_BESIDE_VOTERS, "", folded(label)) or label for name, label in called.items()}
    sides = {name: side for name, label in called.items() if (side := _side_alone(label))}
    names = {name: frame[name].map(_names_in) for name in sides}
    names = {name: cells for name, cells in names.items() if any(map(len, cells))}
    sides = {name: sides[name] for name in names}
    if Counter(sides.values())["a"] != 1 or Counter(sides.values())["b"] != 1:
        return table
    people = {name: {*itertools.chain(*cells)} for name, cells in names.items()}
    first, second = (next(name for name in sides if sides[name] == side) for side in "ab")
    n_named = sum(len(cell) for cells in names.values() for cell in cells)
    everybody = {*itertools.chain(*people.values())}
    # voter columns repeat names, and contain no numbers, long texts or labels such as A and B
    if not people[first] & people[second] or len(everybody) > n_named / 2:
        return table
    are_numbers = np.isfinite(as_ratings(pd.Series([*everybody], dtype=object)))
    if are_numbers.any() or any(side_of(who) or len(who) > 60 for who in everybody):
        return table
    votes = [
        (row, who, sides[name])
        for row, cells in enumerate(zip(*names.values(), strict=True))
        for name, cell in zip(names, cells, strict=True)
        for who in cell
    ]
    rows = [row for row, _, _ in votes]
    made = frame.drop(columns=[*names]).iloc[rows]
    made = made.assign(annotator=[who for _, who, _ in votes], winner=[side for _, _, side in votes])
    what = (
        f"{counted(len(names), 'column')} of names, one for each answer: {counted(len(votes), 'vote')}"
    )
    return spread(table, made, [], what)


def _side_alone(label: str) -> str:
    """Return the side that a label names, or "" if the label contains anything other than a word for a side."""
    if _TIES.fullmatch(label.strip()) or EVEN.fullmatch(label):
        return "tie"
    side, word = side_of(label) or ("", "")
    return side if folded(label) in (word, "") else ""


_BESIDE_VOTERS = (
    r"(?:^|_)(?:voters?|votes?|users?|people|names?|reactions?|who|for|by|chose|prefers?)(?=_|$)|^_"
)
_NUMBER_WORDS = {"one": "1", "two": "2", "+1": "1"}


def _as_number(label: str) -> str:
    """Convert an emoji name such as ``:one:`` to a number; return any other label unchanged."""
    return _NUMBER_WORDS.get(label.strip(": "), label)


def _names_in(cell: Cell) -> list[str]:
    """Return the names in a list or in a string such as ``Ann, Ben``; return an empty list for any other cell."""
    if isinstance(cell, list):
        return [one for one in cell if isinstance(one, str)]
    return (
        [name for part in re.split("[,;|\n]", cell) if (name := part.strip())]
        if isinstance(cell, str)
        else []
    )


def _votes_of_both_orders(table: Table) -> Table:
    """If each pair was judged twice, once in each order, give each verdict its own row.

    If the labels name places on the screen, badpo exchanges the sides of the labels for the second order. If the two
    labels are equal in more pairs than expected by chance, the labels name the answers, and badpo exchanges no sides.
    """
    frame = table.frame
    pairs = []
    for pair in columns_of_orders([*map(str, frame)]):
        labels = [few_labels(frame[name]) for name in pair]
        if all(one and all(map(side_of, one)) for one in labels):
            pairs.append(pair)
    if len(pairs) != 1:
        return table
    first, second = pairs[0]
    sides = [frame[name].map(lambda cell: (side_of(str(cell)) or (cell,))[0]) for name in pairs[0]]
    a, b = ([np.mean(column == side) for column in sides] for side in "ab")
    same = np.mean((sides[0] == sides[1]) & sides[0].isin(["a", "b"]))
    excess = (same - a[0] * a[1] - b[0] * b[1]) * np.sqrt(len(frame))
    columns = {folded(str(name)) for name in frame}
    are_columns = any(folded(label) in columns for label in few_labels(frame[first]))
    is_turned = excess < (-1 if are_columns else 1)
    if is_turned:
        sides[1] = sides[1].map(lambda side: TURNED.get(side, side))
    others = frame.drop(columns=[first, second])
    votes = [
        others.assign(winner=cells, shown_first=side) for cells, side in zip(sides, "ab", strict=True)
    ]
    made = pd.concat(votes).sort_index(kind="stable")
    meant = "the place on the screen" if is_turned else "the answer"
    what = f'"{first}" and "{second}" hold votes on the same answers in both orders; the labels name {meant}'
    return spread(table, made, [], what, "N107")


# -- columns ---------------------------------------------------------------------------------------------------


def _split_texts(table: Table) -> Table:
    """If one column holds the prompt and both answers, give each text its own column."""
    frame = table.frame
    names = [*map(str, frame)]
    if len({*names}) < len(names):
        return table
    for name in names:
        column = frame[name]
        first = next((cell for cell in column if isinstance(cell, str | list)), None)
        if _three_texts(first) is None or not (isinstance(first, list) or holds_texts(column)):
            continue
        cells = [_three_texts(cell) for cell in column]
        if sum(each is not None for each in cells) < NEARLY_ALL * column.notna().sum():
            continue
        parts = zip(*(each or (None, None, None) for each in cells), strict=True)
        made = dict(zip(PAIR, map(list, parts), strict=True))
        prompts = {text for text in made["prompt"] if text}
        if "prompt" in names or not prompts:
            del made["prompt"]
        if any(part in frame for part in made):
            return table
        what = f'prompt, response_a and response_b were read from "{name}"'
        return replace(table, frame=frame.drop(columns=[name]).assign(**made)).noted("N106", what)
    return table


def _three_texts(cell: Cell) -> tuple[str, str, str] | None:
    if is_chat(cell):
        cell = cell[-1].get("content")
    if isinstance(cell, str):
        texts = parsed(cell) if cell.startswith("[") else None
        return _three_texts(texts) if isinstance(texts, list) else question_in(cell, needs_prompt=False)
    texts_of_cell = [one for one in cell if isinstance(one, str)] if isinstance(cell, list) else []
    if len(texts_of_cell) != 3 or cell != texts_of_cell:
        return None
    return texts_of_cell[0], texts_of_cell[1], texts_of_cell[2]


_TAG = re.compile(r"</?\s*([a-zA-Z]\w*)\b[^<>]*>")
_INLINE = {"b", "i", "em", "strong", "span", "u", "a", "code", "font", "small"}
_COUNTED_WORDS = (
    r"(\d+) ?(?:words?|wörter|woerter|mots|palabras|palavras|parole|woorden|ord|字|語|слов\w*)"
)
_LABELLED = re.compile(
    rf"^\W*(?:{PROMPT}|user[ _](?:question|prompt)|user|human|context|item|q)"
    r"\s*(?:\d+\s*)?\W*[:\n]\W*",
    re.IGNORECASE,
)
_TITLES = re.compile(r"[\s,;|/*#:\[(\u2013-]*$")


def _mark(side: str) -> re.Pattern[str]:
    """Return a pattern for the marker before an answer, such as ``A:``, ``[1]`` or ``Answer B (60 words):``."""
    called = rf"(?:(?i:(?:{ANSWER}|model|system|version|variante?|opci[oó]n|antwort))[ _#]*)"
    note = r"(?: ?\([^()\n]{1,40}\))?"
    return re.compile(
        rf"(?:(?<!\w){called}?{side}{note}\s?[*_]*[:)\]][*_]*|:{side}:|"
        rf"(?:(?<=\n)|^)[ *#\[<|]*(?i:(?:the |start of |begin(?:ning)? of )*)"
        rf"{called}?{side}(?:['’]s \w+)?{note}[ *\]>|:]*(?=\n)|"
        rf"(?<!\w){called}{side} ?\((?=\d))"
    )


_MARKS = [(_mark(a), _mark(b)) for a, b in (("A", "B"), ("1", "2"), ("one", "two"))]


def question_in(name: str, needs_prompt: bool = True) -> tuple[str, str, str] | None:
    """Return the prompt and both responses that a text such as a survey's column name quotes, or None.

    If the text states only how many words a response has, the returned response has that many placeholder words.

    Examples
    --------
    >>> question_in("Why is the sky blue? A: Because of the air. B: It is not.")
    ('Why is the sky blue?', 'Because of the air.', 'It is not.')
    >>> question_in("Which one? Answer A (2 words) or answer B (1 word)?")
    ('Which one?', 'word word', 'word')
    """
    if len(name) > _LONGEST_QUOTE:
        return None
    text = name
    if _TAG.search(text):
        text = html.unescape(_TAG.sub(lambda tag: "" if tag[1].lower() in _INLINE else "\n", text))
    text = re.sub(r"\s*\n\s*", "\n", text.strip())
    question, _, option = text.rpartition("\n")
    if len(option) <= _LONGEST_OPTION and side_of_label(option):
        # a survey may add an option below the question; the option is not part of the second answer
        is_answer = any(second.match(option) for _, second in _MARKS)
        text = text if is_answer else question
    # prefer markers that leave neither answer empty; if there are none, accept one empty answer
    for are_there, (first, second) in itertools.product((all, any), _MARKS):
        a = _find_mark(first, text, 0)
        b = _find_mark(second, text, a.end()) if a else None
        if not a or not b:
            continue
        between, behind = text[a.end() : b.start()], text[b.end() :]
        prompt = _LABELLED.sub("", _TITLES.sub("", text[: a.start()]).strip())
        answers = [_answer_in_words(*each) for each in ((a[0], between), (b[0], behind))]
        if are_there(answers) and (prompt or not needs_prompt):
            return prompt, answers[0], answers[1]
    return None


def _find_mark(mark: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Return a marker's first match at the start of a line, or else its first match in the text."""
    found = [*mark.finditer(text, start)]
    at_lines = [one for one in found if not text[: one.start()].rpartition("\n")[2].strip(" *#_[(<>|-")]
    return next(iter(at_lines or found), None)


_END_OF_ANSWER = re.compile(r"(?is)\n\W*(?:the )?end of [^\n]{1,60}(?:\n.*)?$|\n\[/?inst.*$")


def _answer_in_words(mark: str, text: str) -> str:
    """Return the text of an answer; if it states only a number of words, return that many placeholder words."""
    text = _TITLES.sub("", _END_OF_ANSWER.sub("", text.strip())).strip(" \t\n*[]|")
    # only a number of words at the start of an answer counts, so "It has 200 words." is an ordinary answer
    n_words = re.search(_COUNTED_WORDS, mark, re.IGNORECASE) or re.match(
        rf"\W*{_COUNTED_WORDS}", text, re.IGNORECASE
    )
    rest = re.sub(rf"\(?{_COUNTED_WORDS}\)?", "", text, flags=re.IGNORECASE)
    if n_words and len(rest.split()) < 5:
        return " ".join(["word"] * int(n_words[1]))
    return text


_ORDER = re.compile(r"\s*\w{1,20}(?:\s*[>≻=]\s*\w{1,20}){2,}\s*")  # ranking such as "B>A=C"


_RANKS = "rank|place|position|ranking"


_SCORES = "score|rating|stars|points|quality|grade|overall_score|overall_rating"


_BEST, _WORST = re.compile("best|most|top|favou?rite"), re.compile("worst|least")


def find_answers(frame: pd.DataFrame, free: Sequence[str]) -> dict[str, str]:
    """Return the columns of three or more answers to one prompt, or an empty mapping if there are no such columns.

    badpo recognizes answer columns by their names, or by another column whose labels or rankings contain these names.
    """
    if answers := numbered_answers(free):
        return answers
    texts = {folded(name): name for name in free if holds_texts(frame[name])}
    if len(texts) < 3:
        return {}
    kinds: dict[str, dict[str, str]] = {}
    for form, name in texts.items():
        key, _, kind = form.rpartition("_")
        kinds.setdefault(kind * bool(key), {})[key] = name
    for kind, of_kind in kinds.items():
        if len(of_kind) > 2 and re.fullmatch(ANSWER, kind) and not {"best", "worst"} & {*of_kind}:
            return of_kind
    labels = [{*map(folded, few_labels(frame[name]))} for name in free if name not in texts.values()]
    for name in free:
        if holds_rankings(frame[name]):
            groups = _groups_in(frame[name].dropna().iat[0])
            labels.append({folded(one) for one in itertools.chain(*groups)})
    called = max((one & {*texts} for one in labels), key=len, default=set())
    return {form: texts[form] for form in texts if form in called} if len(called) > 2 else {}


def find_judges(frame: pd.DataFrame, answers: Mapping[str, str]) -> Groups:
    """Return each judge's columns with ratings of all answers, such as ``answer_1.annotations.JUDGE.rating``.

    If fewer than two judges rate all answers, the result is empty.
    """
    groups: Groups = {}
    for key, answer in answers.items():
        inside = answer.rpartition(".")[0] + "."
        for name in frame if inside != "." else ():
            *head, leaf = str(name).removeprefix(inside).split(".")
            judge = head[1:]
            if (
                str(name).startswith(inside)
                and judge
                and re.fullmatch(f"{_RANKS}|{_SCORES}", folded(leaf))
            ):
                groups.setdefault(".".join(judge), {})[f"{folded(leaf)}_{key}"] = name
    whole = {judge: of for judge, of in groups.items() if len(of) == len(answers)}
    return whole if len(whole) > 1 else {}


def best_beside_others(table: Table, answers: Mapping[str, str]) -> Table:
    """Convert choices among three or more answers to comparisons of the best answer with every other answer.

    If a column names the worst answer, the result also compares every other answer with the worst answer. If no column
    ranks the answers, the function returns the table unchanged.
    """
    frame, keys = table.frame, [*answers]
    texts = frame[[*answers.values()]].to_numpy(dtype=object)
    places, used, has_worst = _places(table, answers)
    if not used:
        return table
    places[pd.isna(texts)] = np.nan
    has_best = np.isfinite(places).sum(axis=1) > 1
    best = np.nan_to_num(places, nan=np.inf).argmin(axis=1)[:, None]
    first, second = np.triu_indices(len(keys), 1)
    is_said = places[:, first] != places[:, second] if has_worst else (best == first) | (best == second)
    is_said &= np.isfinite(places[:, first] + places[:, second])
    require_size(table.name, int(is_said.sum()), frame.shape[1] - len(keys))
    rows, pair = np.nonzero(is_said)
    first, second = first[pair], second[pair]
    beside = ", and of other answers with the worst answer," if has_worst else ""
    what = (
        f"comparing the best answer with every other answer{beside} gives {counted(len(rows), 'pair')}"
    )
    n_without = int((~has_best).sum())
    n_pairs = len(keys) * (len(keys) - 1) // 2
    what = (
        f"rankings of up to {len(keys)} answers by {', '.join(dict.fromkeys(used))}: {what} "
        f"of {counted(len(frame) - n_without, 'choice')}, not all {n_pairs} pairs of each choice"
    )
    if n_without:
        what += f"; {counted(n_without, 'row')} without a best answer left out"
        table = table.with_dropped("no best answer", n_without)
    new = {"response_a": texts[rows, first], "response_b": texts[rows, second]}
    sides = np.sign(places[rows, second] - places[rows, first]).astype(np.intp)
    new["winner"] = as_objects(["tie", "a", "b"])[sides]
    votes = frame.drop(columns=[*answers.values(), *used]).iloc[rows].assign(**new)
    # the notice N107 shows rows in which users can check the direction of the ranking
    return spread(table.without_names("judgment_id", "comparison_id"), votes, new, what, "N107")


def _places(table: Table, answers: Mapping[str, str]) -> tuple[Floats, list[str], bool]:
    """Return the ranks of each row's answers, the rank columns, and whether these name the best and the worst answer.

    The lowest number is the best rank, and the rank of an answer is NaN if the row does not rank it. The ranks may come
    from a number for each answer, from a column for each rank, from an order such as ``2>1=3``, or from the names of
    the best and the worst answer.
    """
    frame, keys = table.frame, [*answers]
    forms = {folded(name): name for name in frame if name not in answers.values()}
    called = [
        [key, folded(name), re.sub(rf"_?(?:{ANSWER})$", "", folded(name))]
        for key, name in answers.items()
    ]
    for words, sign in ((_RANKS, 1), (_SCORES, -1)):
        of_answers = []
        for names in called:
            answer = "|".join(map(re.escape, filter(None, names)))
            pattern = re.compile(f"(?:{words})_(?:of_)?(?:{answer})|(?:{answer})_(?:{words})")
            of_answers.append([name for form, name in forms.items() if pattern.fullmatch(form)])
        if all(of_answers):
            numbers = [as_ratings(frame[names[0]]) for names in of_answers]
            if np.isfinite(numbers).any():
                return sign * np.array(numbers).T, [names[0] for names in of_answers], False
    in_order = [name for i in range(len(keys)) for form, name in forms.items() if _is_place(form, i)]
    orders = [forms[form] for form in ("ranking", "order", "rank", "ranks", "ranked") if form in forms]
    orders += [name for name in forms.values() if holds_rankings(frame[name])]
    best, worst = (
        [name for name in forms.values() if has_word(name, words)] for words in (_BEST, _WORST)
    )
    best = [*best, table.theirs["winner"]] if "winner" in table.theirs else best
    if len(in_order) == len(keys):
        used = in_order
    elif orders:
        used = orders[:1]
    else:
        used = best[:1] + (worst[:1] if best else [])
    columns = [frame[name].to_numpy(dtype=object) for name in answers.values()]
    known = {form: i for i, names in enumerate(called) for form in names if form}
    cells_of_ranks = itertools.chain(*(frame[name].dropna() for name in used))
    ranked = {one for cell in cells_of_ranks for group in _groups_in(cell) for one in group}
    if "0" not in known and {"0", "0.0"} & ranked:
        known = {str(i): i for i in range(len(keys))}  # the ranking counts the answers from 0
    places = np.full((len(frame), len(keys)), np.nan)
    for row, cells in enumerate(zip(*(frame[name] for name in used), strict=True)):
        texts = [column[row] for column in columns]
        groups = [
            group for cell in cells for group in (_groups_in(cell) if used == orders[:1] else [[cell]])
        ]
        order = [[i for one in group if (i := _answer_in(one, texts, known)) >= 0] for group in groups]
        if any(order):
            # answers not in the ranking come after the ranked answers, but before a named worst answer
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


def _is_place(form: str, i: int) -> bool:
    """Return whether a column such as ``rank_1`` or ``second_choice`` holds the answers of rank ``i`` (0 is best)."""
    nth = ("first", "second", "third", "fourth", "fifth", "sixth")[i : i + 1] or ("-",)
    number = rf"(?:rank|place|position|choice|top)_{i + 1}|{i + 1}_(?:st|nd|rd|th)"
    return (
        re.fullmatch(rf"(?:{number}|{nth[0]})(?:_(?:place|choice|rank|best|preference))?", form)
        is not None
    )


def _groups_in(cell: Cell) -> list[list[str]]:
    """Return the answers in a ranking, grouped by rank.

    A ranking is a list or a string such as ``2>1=3`` or ``B, A, C``.
    """
    if isinstance(cell, list):
        return [[str(one)] for one in cell]
    places = re.split(r"[>≻]+", str(cell)) if ">" in str(cell) else re.split(r"[\s,;]+", str(cell))
    return [[one.strip() for one in place.split("=")] for place in places]


def _answer_in(cell: Cell, texts: Sequence[Cell], known: Mapping[str, int]) -> int:
    """Return the index of the answer whose text or name is in a cell, or -1 if there is no such answer."""
    if isinstance(cell, str) and texts.count(cell) == 1:
        return texts.index(cell)
    form = folded(str(cell).removesuffix(".0"))
    return known.get(form, known.get(form.rpartition("_")[2], -1))


def holds_rankings(column: pd.Series) -> bool:
    """Return whether the cells of a column are rankings such as ``B>A>C``."""
    cells = column.dropna()[:MANY_ROWS].map(str)
    return bool(len(cells) and cells.str.fullmatch(_ORDER).all())
