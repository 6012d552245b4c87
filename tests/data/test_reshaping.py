"""Exports whose rows are no votes: nested records, sheets, texts in one cell, ticks, names, legends, trials."""

import contextlib
import json
import os
import sqlite3

import pandas as pd
import pytest

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.data.tables import read_table

N = 8
PROMPTS = [f"what is to be said about case {i}?" for i in range(N)]
LONG_FIRST = [i % 2 == 0 for i in range(N)]
SIDES = [
    ("a long answer with many words on {}", "a short one on {}")[:: 1 if first else -1]
    for first in LONG_FIRST
]
A, B = ([pair[k].format(i) for i, pair in enumerate(SIDES)] for k in (0, 1))
WHO = [["ann", "bob", "eve"][i % 3] for i in range(N)]
# the long answer wins six of eight
A_WON = [first == (i not in (2, 5)) for i, first in enumerate(LONG_FIRST)]


def labels(a="A", b="B"):
    return [a if won else b for won in A_WON]


def table(**columns):
    return pd.DataFrame({"prompt": PROMPTS, "response_a": A, "response_b": B, **columns})


def records(make):
    return [make(*each) for each in zip(PROMPTS, A, B, WHO, labels(), strict=True)]


def scored(of_high):
    """Ratings from 1 to 5, of which a high one prefers ``of_high``."""
    return [5 if won == (of_high == "a") else 2 for won in A_WON]


def state(prompt, text):
    return {"model_name": "m", "messages": [["USER", prompt], ["ASSISTANT", text]]}


RECORDS = {
    "labels of a project": lambda p, a, b, who, side: {
        "data_row": {"row_data": {"prompt": p, "response_a": a, "response_b": b}},
        "projects": {
            "x1": {
                "labels": [
                    {
                        "label_details": {"created_by": who},
                        "annotations": {
                            "classifications": [
                                {"name": "better?", "radio_answer": {"name": f"Response {side}"}},
                                {"name": "note", "text_answer": {"content": "fine"}},
                            ]
                        },
                    }
                ]
            }
        },
    },
    "named values": lambda p, a, b, who, side: {
        "metadata": {"annotatorEmail": who},
        "instances": [
            {"element_path": name, "value": value}
            for name, value in dict(prompt=p, response_a=a, response_b=b, choice=side).items()
        ],
    },
    "values under ids of their fields": lambda p, a, b, who, side: {
        "metadata": {"annotatorEmail": who},
        "data": [
            {"component_id": name, "value": value}
            for name, value in dict(prompt=p, response_a=a, response_b=b, pick=[side], note="").items()
        ],
    },
    "fields in a list called answers": lambda p, a, b, who, side: {
        "user": who,
        "answers": [
            {"name": name, "value": value}
            for name, value in dict(prompt=p, option_a=a, option_b=b, choice=side).items()
        ],
    },
    "answers under questions": lambda p, a, b, who, side: {
        "fields": {"prompt": p, "response_a": a, "response_b": b},
        "responses": {
            "preference": [{"value": side, "user_id": who}],
            "comment": [{"value": "fine", "user_id": who}],
        },
    },
    "votes under names": lambda p, a, b, who, side: {
        "prompt": p,
        "outputs": {"A": a, "B": b},
        "votes": {who: {"choice": side, "seconds": 3}},
    },
    "reactions": lambda p, a, b, who, side: {
        "text": f"*Prompt:* {p}\n:one: {a}\n:two: {b}",
        "reactions": [
            {"name": name, "users": [who] * (name == {"A": "one", "B": "two"}[side])}
            for name in ("one", "two")
        ],
    },
    "options with keys, in either order": lambda p, a, b, who, side: {
        "userId": {"$oid": who},
        "pair": {
            "question": p,
            "options": sorted(
                ({"key": "a", "body": a}, {"key": "b", "body": b}), key=lambda one: one["body"]
            ),
        },
        "selected": side.lower(),
    },
    "a log of battles": lambda p, a, b, who, side: {
        "type": {"A": "leftvote", "B": "rightvote"}[side],
        "states": [state(p, a), state(p, b)],
        "ip": who,
    },
    "answers beside tokens and offsets": lambda p, a, b, who, side: {
        "question": {"full_text": p},
        "labeler": who,
        **{f"answer_{i}": text for i, text in enumerate((a, b))},
        **{f"tokens_{i}": {"prefix": [], "completion": [7, 8, i]} for i in range(2)},
        **{f"score_{i}": (0.5 - i) * {"A": 1, "B": -1}[side] for i in range(2)},
    },
    "a judge's request": lambda p, a, b, who, side: {
        "judge": who,
        "request": [
            {"role": "system", "content": "You are a judge."},
            {"role": "user", "content": f"[Question]\n{p}\n\n[Answer A]\n{a}\n\n[Answer B]\n{b}"},
        ],
        "reply": {"role": "assistant", "content": f"My verdict: [[{side}]]"},
    },
}


def read(source):
    """The table, read at once or as the first command says."""
    try:
        return Judgments.read(source)
    except DataError as error:
        assert error.fix
        return Judgments.read(source, **error.fix)


def counts(judgments):
    """The votes, those for the longer answer, and the annotators."""
    votes = judgments.votes
    texts = judgments.comparisons.loc[votes["comparison"], ["response_a", "response_b"]]
    longer = texts["response_a"].map(str).str.len() > texts["response_b"].map(str).str.len()
    n_long = int((longer.to_numpy() == (votes["sign"] > 0).to_numpy()).sum())
    return judgments.n_votes, n_long, judgments.n_annotators


@pytest.mark.parametrize("make", RECORDS.values(), ids=RECORDS)
def test_nested_records_are_read(make, tmp_path):
    path = tmp_path / "export.json"
    path.write_text("\n".join(map(json.dumps, records(make))))
    assert counts(read(path)) == (N, 6, 3)


SEVERAL = {
    "workers and their data": lambda who, side: {
        "worker_id": who,
        "data": {"Which is better?": f"Response {side}", "Why?": "clear"},
    },
    "choices": lambda who, side: {
        "completed_by": {"id": who},
        "result": [{"from_name": "pref", "value": {"choices": [f"Answer {side}"]}}],
    },
    "scores": lambda who, side: {"user": who, "score": -2 if side == "A" else 2, "reasoning": "clear"},
}


@pytest.mark.parametrize("vote", SEVERAL.values(), ids=SEVERAL)
def test_lists_of_several_votes_become_rows(vote, tmp_path):
    people = ("ann", "bob", "eve")
    tasks = records(
        lambda p, a, b, _, side: {
            "data": {"prompt": p, "answer_a": a, "answer_b": b},
            "annotations": [vote(who, side) for who in people],
        }
    )
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    assert counts(read(tmp_path / "tasks.json")) == (3 * N, 3 * 6, 3)


def test_each_person_may_have_judged_only_some_of_the_items(tmp_path):
    sides = {}
    for i, (who, side) in enumerate(zip(WHO, labels(), strict=True)):
        sides.setdefault(who, {})[f"item {i}"] = side
    texts = zip(PROMPTS, A, B, strict=True)
    items = {f"item {i}": {"prompt": p, "A": a, "B": b} for i, (p, a, b) in enumerate(texts)}
    path = tmp_path / "votes.json"
    path.write_text(json.dumps({"items": items, "annotations": sides}))
    assert counts(read(path)) == (N, 6, 3)


@pytest.mark.parametrize("kind", ["files of a folder", "lists of one file"])
def test_tables_of_single_people_become_one_table(kind, tmp_path):
    votes = table(id=range(N), choice=labels())
    rows = {who: votes.iloc[[i for i in range(N) if WHO[i] == who]] for who in WHO}
    path = tmp_path / "votes"
    if kind == "files of a folder":
        path.mkdir()
        for who, own in rows.items():
            own.to_csv(path / f"{who}.csv", index=False)
    else:
        path = tmp_path / "votes.json"
        path.write_text(json.dumps({who: own.to_dict("records") for who, own in rows.items()}))
    assert counts(read(path)) == (N, 6, 3)
    assert all(who not in note.what for note in read_table(path).notes for who in ("bob", "eve"))


def test_names_of_voters_stand_in_the_column_of_an_answer():
    sides = {"1️⃣": "A", "2️⃣": "B"}
    columns = {
        name: ["ann, bob, eve" if one == side else "" for one in labels()]
        for name, side in sides.items()
    }
    assert counts(read(table(**columns))) == (3 * N, 3 * 6, 3)


@pytest.mark.parametrize("is_named", [True, False])
def test_places_on_the_screen_are_read_beside_what_stood_there(is_named):
    exchanged = [i % 3 == 0 for i in range(N)]
    first = ["right" if won == turned else "left" for won, turned in zip(A_WON, exchanged, strict=True)]
    columns = {"vote": first, "rater": WHO}
    if is_named:
        names = [("y", "x") if turned else ("x", "y") for turned in exchanged]
        columns |= {
            "left_model": [pair[0] for pair in names],
            "right_model": [pair[1] for pair in names],
        }
    else:
        columns["order"] = ["BA" if turned else "AB" for turned in exchanged]
    frame = table(**columns)
    frame = frame.rename(columns={"response_a": "x", "response_b": "y"}) if is_named else frame
    assert counts(read(frame)) == (N, 6, 3)


@pytest.mark.parametrize(
    ("column", "stored", "turned", "places"),
    [
        ("left_is", "a", "b", ("left", "right")),
        ("shown_first", "A", "B", ("first", "second")),
        ("on_the_right", "B", "A", ("left", "right")),
        ("presentation_order", [0, 1], [1, 0], (0, 1)),
        ("presentation_order", "[1, 2]", "[2, 1]", ("first", "second")),
    ],
)
def test_places_are_not_read_as_answers_if_a_column_says_what_stood_there(
    column, stored, turned, places
):
    exchanged = [i % 3 == 0 for i in range(N)]
    choice = [places[won == turned] for won, turned in zip(A_WON, exchanged, strict=True)]
    order = [turned if is_turned else stored for is_turned in exchanged]
    frame = table(rater=WHO, choice=choice, **{column: order})
    with pytest.raises(DataError) as caught:
        Judgments.read(frame)
    assert caught.value.question
    assert counts(Judgments.read(frame, **caught.value.fix)) == (N, 6, 3)


@pytest.mark.parametrize("is_survey", [True, False])
def test_codes_and_questions_are_explained_on_another_sheet(is_survey, tmp_path):
    pytest.importorskip("openpyxl")
    texts = table(Question=[f"Q{i}" for i in range(N)])
    votes, other = (
        table(rater=WHO, verdict=labels("X", "Q")),
        pd.DataFrame({"code": ["Q", "X"], "meaning": ["Response B preferred", "Response A preferred"]}),
    )
    if is_survey:
        votes = pd.DataFrame([labels()] * 3, columns=texts["Question"]).assign(
            Respondent=["ann", "bob", "eve"]
        )
        other = texts
    with pd.ExcelWriter(tmp_path / "votes.xlsx") as book:
        votes.to_excel(book, sheet_name="Data", index=False)
        other.to_excel(book, sheet_name="Items", index=False)
    n, n_long, n_annotators = counts(read(tmp_path / "votes.xlsx"))
    assert (n_long / n, n_annotators) == (6 / 8, 3)


HTML = [
    f"<b>Prompt</b><p>{p}</p><h3>A</h3><p>{a}</p><h3>B</h3><p>{b}</p>"
    for p, a, b in zip(PROMPTS, A, B, strict=True)
]
CELLS = {
    "both texts in one cell": pd.DataFrame({"user": WHO, "text": HTML, "label": labels()}),
    "a list of three texts": pd.DataFrame(
        {"user": WHO, "text": [json.dumps(each) for each in zip(PROMPTS, A, B, strict=True)]}
    ).assign(label=labels()),
    "one tick of three": table(user=WHO).assign(
        **{f"choice:::{side}": [one == side for one in labels()] for side in ("A", "B", "Tie")}
    ),
    "answers under names of models": table(
        user=WHO, verdict=labels("👈 A is better", "👉 B is better")
    ).rename(columns={"response_a": "Model A", "response_b": "Model B"}),
    "practice": pd.concat(
        [table(user=WHO, choice=labels(), block="main"), table(user=WHO, choice="A", block="practice")]
    ),
    "skipped": pd.concat([table(user=WHO, choice=labels()), table(user=WHO, choice="skip")]),
    "a scale in a column": table(
        user=WHO, preference=scored("a"), scale="1 = B is much better; 5 = A is much better"
    ),
    "marks of single answers": pd.concat(
        [
            pd.DataFrame(
                {
                    "Frage": PROMPTS,
                    "Antwort": texts,
                    "Bewerter": WHO,
                    "Note (1 = gut, 6 = schlecht)": marks,
                }
            )
            for texts, marks in ((A, labels(1, 4)), (B, labels(4, 1)))
        ]
    ),
    "agreement with a statement": table(
        user=WHO, **{"Response 1 is better than Response 2": labels("Agree", "Strongly disagree")}
    ).pipe(
        lambda frame: pd.concat(
            [frame, frame[:1].assign(**{frame.columns[-1]: "Neither agree nor disagree"})]
        )
    ),
    "a code for missing ratings": pd.concat(
        [
            *[table(user=WHO, quality_1=labels(5, 2), quality_2=labels(2, 4))] * 2,
            table(user=WHO, quality_1=-99, quality_2=-99)[:1],
        ]
    ),
    "the beginning of the preferred text": table(
        user=WHO,
        selected=[f"{(a if won else b)[:16]}..." for a, b, won in zip(A, B, A_WON, strict=True)],
    ),
    "texts in the first row of a block alone": pd.concat(
        [
            table(user="ann", choice=labels()),
            pd.DataFrame({"user": WHO, "choice": labels()}).replace("ann", "bob"),
        ]
    ).sort_index(kind="stable"),
    "three ratings of an answer, one of them overall": pd.concat(
        [
            pd.DataFrame({"prompt": PROMPTS, "response": texts, "rater": WHO}).assign(
                criterion=name, score=scores
            )
            for name, a, b in (("accuracy", 1, 5), ("tone", 5, 1), ("overall", 4, 2))
            for texts, scores in ((A, labels(a, b)), (B, labels(b, a)))
        ]
    ),
    "keys that were pressed beside counters": table(
        participant=WHO, session=1, repetition=0, key=labels("f", "j")
    ),
    "ratings by people under a legend": table(
        **{f"{who} (1 = B better, 5 = A better)": scored("a") for who in ("Ann", "Bob", "Eve")}
    ),
}


@pytest.mark.parametrize("frame", CELLS.values(), ids=CELLS)
def test_a_table_of_other_cells_is_read(frame):
    n, n_long, n_annotators = counts(read(frame.reset_index(drop=True)))
    assert (n_long / n, n_annotators) == (6 / 8, 3)


@pytest.mark.parametrize("place", ["above", "below", "first row", "another key"])
def test_a_legend_beside_the_cells_says_what_numbers_mean(place, tmp_path):
    legend = "1 = B is much better, 5 = A is much better"
    frame = table(user=WHO, preference=scored("a")).astype(str)
    path = tmp_path / "votes.csv"
    if place == "another key":
        path = tmp_path / "votes.json"
        path.write_text(json.dumps({"scale": legend, "data": frame.to_dict("records")}))
    elif place == "first row":
        first = pd.DataFrame([["the prompt", "one", "two", "who", legend]], columns=frame.columns)
        pd.concat([first, frame]).to_csv(path, index=False)
    else:
        lines = frame.to_csv(index=False).splitlines()
        quoted = f'"{legend}"'
        path.write_text("\n".join([quoted, *lines] if place == "above" else [*lines, "", quoted]))
    judgments = Judgments.read(path)
    assert counts(judgments) == (N, 6, 3)


@pytest.mark.parametrize("is_long", [False, True])
def test_sheets_are_joined_by_ids(is_long, tmp_path):
    pytest.importorskip("openpyxl")
    ids = [f"i{i}" for i in range(N)]
    texts = table(Item=ids).rename(columns={"response_a": "Response A", "response_b": "Response B"})
    votes = pd.DataFrame({"Item": ids, "Rater": WHO, "Preference": labels()})
    if is_long:
        answers = [
            pd.DataFrame({"Item": ids, "prompt": PROMPTS, "system": name, "output": text})
            for name, text in (("x", A), ("y", B))
        ]
        texts, votes = pd.concat(answers), votes.assign(Preference=labels("x", "y"))
    with pd.ExcelWriter(tmp_path / "votes.xlsx") as book:
        texts.to_excel(book, sheet_name="Items", index=False, startrow=2)
        votes.to_excel(book, sheet_name="Votes", index=False)
    assert counts(read(tmp_path / "votes.xlsx")) == (N, 6, 3)


@pytest.mark.parametrize("second", [labels("B", "A"), labels("A", "B")])
def test_verdicts_in_both_orders_are_two_votes(second):
    judgments = Judgments.read(
        pd.concat([table(judge=WHO, verdict_AB=labels(), verdict_BA=second)] * 4, ignore_index=True)
    )
    assert counts(judgments)[:2] == (8 * N, 6 * N)
    assert set(judgments.votes["shown_first"]) == {"a", "b"}


def test_a_header_that_tells_lengths_alone_stands_for_texts():
    columns = {
        f"Frage {i}: Antwort A ({len(a.split())} Wörter) oder Antwort B ({len(b.split())} Wörter)?": [
            label
        ]
        * 3
        for i, (a, b, label) in enumerate(zip(A, B, labels(), strict=True))
    }
    judgments = Judgments.read(pd.DataFrame({"Name": ["ann", "bob", "eve"], **columns}))
    assert counts(judgments) == (3 * N, 3 * 6, 3)


@pytest.mark.parametrize("n_words", [0, 1, 2, 4, 8, 11, 12, 300])
@pytest.mark.parametrize(
    "words", ["this is the same plan B: an answer on things", "x", "it has 200 words"]
)
def test_a_survey_loses_no_question_by_the_length_of_an_answer(n_words, words):
    quoted = ("Which answer is better?\nA: {}\nB: {}".format(*pair) for pair in zip(A, B, strict=True))
    pairs = zip(quoted, labels(), strict=True)
    columns = {f"{i}. {text}": [label] * 3 for i, (text, label) in enumerate(pairs, 1)}
    short = " ".join((words.split() * n_words)[:n_words])
    columns |= {f"9. Which one?\nA: {A[0]} plan B: {A[0]}\nB: {short}": ["A", "B", "No preference"]}
    columns |= {f"10. Which one?\nA: {short}\nB: {B[0]}": ["A", "B", "A"]}
    judgments = Judgments.read(pd.DataFrame({"Name": ["admin", "test", "eve"], **columns}))
    assert (judgments.n_votes, judgments.dropped["n"].sum()) == (3 * N + 5, 1)
    texts = judgments.comparisons.set_index("prompt_id")[["response_a", "response_b"]].iloc[N:]
    assert texts.to_numpy().tolist() == [[f"{A[0]} plan B: {A[0]}", short], [short, B[0]]]
    assert judgments.n_annotators == 3


@pytest.mark.parametrize("name", ["worker_A2B7", "rater maria.kovacs"])
def test_the_only_annotator_is_read_from_the_header_and_never_shown(name):
    with pytest.raises(DataError) as caught:
        Judgments.read(table(**{name: labels()}))
    assert caught.value.fix == {"layout": "wide"} and name not in str(caught.value)
    assert Judgments.read(table(**{name: labels()}), layout="wide").has_identities


def wins_of_the_long_answer(judgments):
    """Votes, and how many of them prefer the longer response."""
    measured = judgments.with_attributes(["length:ratio=1.5"])
    return measured.n_votes, int((measured.delta[:, 0] == measured.votes["sign"]).sum())


def read_as_offered(source):
    try:
        return Judgments.read(source)
    except DataError as error:
        options = dict(error.fix)
        return Judgments.read(options.pop("source", source), **options)


@pytest.mark.parametrize("name", ["A", "response_a"])
def test_labels_of_places_stand_for_the_answers_that_columns_name(name):
    other = {"A": "B", "response_a": "response_b"}[name]
    is_a_left = [i % 3 == 0 for i in range(N)]
    rows = table(
        left_response=[name if left else other for left in is_a_left],
        right_response=[other if left else name for left in is_a_left],
        side_chosen=[
            "left" if won == left else "right" for won, left in zip(A_WON, is_a_left, strict=True)
        ],
    )
    assert wins_of_the_long_answer(read_as_offered(rows)) == (N, 6)


def test_two_sides_in_one_label_are_a_tie():
    choices = labels("Response A", "Response B")
    choices[0] = "Response A,Response B"
    judgments = Judgments.read(table(winner=choices))
    assert judgments.n_votes == N - 1
    assert judgments.dropped.set_index("reason")["n"].to_dict() == {"tie": 1}


def test_options_below_a_question_are_no_part_of_its_answers(tmp_path):
    questions = [f"Which is better? Answer A: {a}. Answer B: {b}." for a, b in zip(A, B, strict=True)]
    lines = [["who", *(cell for question in questions for cell in (question, "", ""))]]
    lines += [["", *["Answer A", "Answer B", "The same"] * N]]
    for who in ("ann", "bob"):
        lines += [
            [who, *(cell for won in A_WON for cell in ("Answer A" * won, "Answer B" * (not won), ""))]
        ]
    path = tmp_path / "survey.csv"
    pd.DataFrame(lines).to_csv(path, index=False, header=False)
    judgments = Judgments.read(path)
    assert (judgments.n_comparisons, *wins_of_the_long_answer(judgments)) == (N, 2 * N, 12)


@pytest.mark.parametrize(
    "names", [("Votes pour A", "Votes pour B", "Sans préférence"), ("A better", "B better", "Same")]
)
def test_a_tie_beside_counts_is_counted(names):
    counts = dict(
        zip(names, ([2 * won for won in A_WON], [2 * (not won) for won in A_WON], [1] * N), strict=True)
    )
    judgments = Judgments.read(table(**counts))
    assert wins_of_the_long_answer(judgments) == (2 * N, 12)
    assert judgments.dropped.set_index("reason")["n"].to_dict() == {"tie": N}


def test_na_is_nobody():
    with pytest.raises(DataError) as caught:
        Judgments.read(table(winner=labels(), annotator=["NA", *WHO[1:]]))
    assert {problem.code: problem.count for problem in caught.value.problems}["E112"] == 1


def test_columns_as_mappings_from_numbers_of_rows(tmp_path):
    path = tmp_path / "columns.json"
    table(winner=labels(), annotator=WHO).to_json(path)
    assert wins_of_the_long_answer(Judgments.read(path)) == (N, 6)


def test_ids_of_answers_that_are_numbers_are_no_ratings():
    rows = table(response_a_id=[100 + i for i in range(N)], response_b_id=[200 - i for i in range(N)])
    rows = rows.astype(str)
    won = [
        a if won else b
        for won, a, b in zip(A_WON, rows["response_a_id"], rows["response_b_id"], strict=True)
    ]
    assert wins_of_the_long_answer(read_as_offered(rows.assign(preferred_response_id=won))) == (N, 6)


def test_an_answer_may_be_one_message_of_a_dialogue():
    rows = [
        {
            "conversations": [{"from": "human", "value": prompt}],
            "chosen": {"from": "gpt", "value": a if won else b},
            "rejected": {"from": "gpt", "value": b if won else a},
        }
        for prompt, a, b, won in zip(PROMPTS, A, B, A_WON, strict=True)
    ]
    assert wins_of_the_long_answer(Judgments.read(rows)) == (N, 6)


BLOCKS = {
    "codes before questions": {
        "prompt": "P{:02}prompt. Question",
        "left": "P{:02}left. Left answer",
        "right": "P{:02}right. Right answer",
        "choice": "P{:02}choice. Which answer is better?",
    },
    "numbers of rounds": {
        "prompt": "pairs.{}.player.question",
        "left": "pairs.{}.player.left_text",
        "right": "pairs.{}.player.right_text",
        "choice": "pairs.{}.player.choice",
    },
    "number at the end": {name: name + "_{}" for name in ("prompt", "left", "right", "choice")},
    "number within": {
        "prompt": "pair{}_prompt",
        "left": "pair{}_answer_1",
        "right": "pair{}_answer_2",
        "choice": "pair{}_choice",
    },
}


@pytest.mark.parametrize("names", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("others", [{}, {"survey.1.player.age": "33", "pairs.1.player.note": "ok"}])
def test_several_comparisons_in_a_row_differ_in_their_number(names, others):
    row = {"token": "x", **others}
    for i, (prompt, a, b, label) in enumerate(zip(PROMPTS, A, B, labels(), strict=True), 1):
        chosen = {"A": "Left answer", "B": "Right answer"}[label]
        cells = {"prompt": prompt, "left": a, "right": b, "choice": chosen}
        row |= {names[kind].format(i): cell for kind, cell in cells.items()}
    assert wins_of_the_long_answer(read_as_offered([row])) == (N, 6)


def test_blocks_of_practice_trials_are_no_votes():
    row = {"practice.1.left_text": B[0], "practice.1.right_text": A[0], "practice.1.choice": "left"}
    for i, (a, b, label) in enumerate(zip(A, B, labels("left", "right"), strict=True), 1):
        row |= {f"main.{i}.left_text": a, f"main.{i}.right_text": b, f"main.{i}.choice": label}
    judgments = Judgments.read([row], columns={"prompt": None})
    assert wins_of_the_long_answer(judgments) == (N, 6)


def sqlite_of_votes(path):
    """Write the tables of an app; the last vote has no winner and is a tie."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(
            "PRAGMA journal_mode = wal;"
            "create table users (id integer primary key, username text);"
            "create table prompts (id integer primary key, text text);"
            "create table answers (id integer primary key, prompt_id integer, text text);"
            "create table votes (id integer primary key, user_id integer, left_answer_id integer,"
            "                    right_answer_id integer, winner_answer_id integer);"
            "create table settings (name text, value text);"
            "insert into settings values ('theme', 'dark'), ('lang', 'en');"
        )
        users = [*dict.fromkeys(WHO)]
        database.executemany("insert into users values (?, ?)", enumerate(users, 1))
        database.executemany("insert into prompts values (?, ?)", enumerate(PROMPTS, 1))
        for i, (a, b) in enumerate(zip(A, B, strict=True), 1):
            answers = [(2 * i - 1, i, a), (2 * i, i, b)]
            database.executemany("insert into answers values (?, ?, ?)", answers)
        votes = [
            (users.index(who) + 1, 2 * i - 1, 2 * i, 2 * i - won)
            for i, (who, won) in enumerate(zip(WHO, A_WON, strict=True), 1)
        ]
        votes += [(1, 3, 4, None)]
        database.executemany("insert into votes values (null, ?, ?, ?, ?)", votes)
        database.commit()


def test_tables_of_a_database_are_joined_and_the_database_stays_as_it_is(tmp_path):
    path = tmp_path / "votes.db"
    sqlite_of_votes(path)
    content = path.read_bytes()
    assert counts(read(path)) == (N, 6, 3)
    judgments = Judgments.read(path, columns={"winner": "winner_answer_id"}, winners={"": "tie"})
    assert (judgments.n_votes, judgments.dropped["n"].sum()) == (N, 1)
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["votes.db"]


def test_columns_that_a_database_would_compute_are_refused_and_virtual_tables_are_not_read(tmp_path):
    path = tmp_path / "votes.db"
    sqlite_of_votes(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("create virtual table search using fts5(body)")
        database.execute("insert into search values ('why')")
        database.commit()
        assert "search" not in str(counts(read(path)))
        # each cell of this column takes minutes
        slow = "instr(hex(zeroblob(5000000)), hex(zeroblob(2500000)) || '1')"
        database.execute(f"alter table votes add column z as ({slow})")
        database.commit()
    with pytest.raises(DataError, match='column "z" of table "votes" is computed'):
        read_table(path)


@pytest.mark.parametrize("start", [0, 1])
def test_a_ranking_in_a_list_numbers_the_answers_from_zero_or_one(start):
    rows = []
    for i, (prompt, who) in enumerate(zip(PROMPTS, WHO, strict=True)):
        best_first = [(i + k) % 4 for k in range(4)]
        answers = [A[i] if k == best_first[0] else f"no {k}" for k in range(4)]
        ranking = [start + k for k in best_first]
        rows.append({"prompt": prompt, "responses": answers, "ranking": ranking, "rater": who})
    judgments = Judgments.read(rows, attributes="length")
    longer = judgments.delta[:, 0] * judgments.votes["sign"]
    assert judgments.n_votes == 3 * N and (longer > 0).all()


@pytest.mark.parametrize(
    "names",
    [
        ("n_prefer_a", "n_prefer_b", "n_tie"),
        ("num chosen 1", "num chosen 2", "ties"),
        ("A votes count", "B votes count", "equal"),
    ],
)
def test_columns_of_counts_are_known_by_their_names(names):
    counted = [(2, 1, 1) if won else (0, 3, 0) for won in A_WON]
    judgments = read(table(**dict(zip(names, zip(*counted, strict=True), strict=True))))
    assert judgments.n_votes == 3 * N and judgments.dropped["n"].sum() == sum(A_WON)


def test_texts_that_are_lists_of_turns_are_joined():
    lists = {
        name: [json.dumps([text, None, "and"]) for text in texts]
        for name, texts in (("response_a", A), ("response_b", B))
    }
    judgments = read(table(rater=WHO, winner=labels("a", "b")).assign(**lists))
    assert judgments.comparisons["response_a"].tolist()[0] == f"{A[0]}\n\nand"


SIDES_IN_OBJECTS = {
    "ids": ("pair", "id", "text", ("A", "B")),
    "ids of answers in a list": ("responses", "id", "answer", ("A", "B")),
    "positions": ("items", "position", "content", ("left", "right")),
    "models": ("pair", "model", "value", ("m1", "m2")),
}


@pytest.mark.parametrize(
    ("column", "key", "text", "names"), SIDES_IN_OBJECTS.values(), ids=SIDES_IN_OBJECTS
)
def test_two_answers_in_any_order_are_known_by_the_name_of_their_side(column, key, text, names):
    rows = []
    for i, (prompt, a, b, who, side) in enumerate(zip(PROMPTS, A, B, WHO, labels(*names), strict=True)):
        pair = [{key: names[0], text: a}, {key: names[1], text: b}][:: 1 if i % 3 else -1]
        rows.append({"prompt": prompt, column: pair, "winner": side, "rater": who})
    assert counts(read(rows)) == (N, 6, 3)


def test_ids_of_winners_and_losers_are_joined_with_their_texts(tmp_path):
    texts = [
        {"id": 2 * i + k, "prompt": prompt, "body": text}
        for i, (prompt, *pair) in enumerate(zip(PROMPTS, A, B, strict=True))
        for k, text in enumerate(pair)
    ]
    votes = [
        {"id": i, "rater": who, "winner_id": 2 * i + (not won), "loser_id": 2 * i + won}
        for i, (who, won) in enumerate(zip(WHO, A_WON, strict=True))
    ]
    (tmp_path / "elo.json").write_text(json.dumps({"responses": texts, "judgements": votes}))
    assert counts(read(tmp_path / "elo.json")) == (N, 6, 3)


def test_a_damaged_database_is_refused(tmp_path):
    path = tmp_path / "votes.db"
    for content in (b"", b"SQLite format 3\0" + b"\1" * 2000):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read_table(path)
        assert [problem.code for problem in caught.value.problems] == ["E102"]


@pytest.mark.parametrize(
    ("suffix", "command"),
    [(".ods", "soffice --headless --convert-to xlsx"), (".dta", "export delimited")],
)
def test_a_file_of_another_program_is_refused_with_the_command_that_converts_it(
    suffix, command, tmp_path
):
    path = tmp_path / f"votes{suffix}"
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=command):
        read_table(path)


@pytest.mark.skipif(os.name != "posix", reason="symbolic links")
def test_a_folder_of_tables_with_a_link_to_a_file_elsewhere_is_refused(tmp_path):
    (folder := tmp_path / "votes").mkdir()
    table(rater=WHO, winner=labels("a", "b")).to_csv(tmp_path / "private.csv", index=False)
    (folder / "rater.csv").symlink_to(tmp_path / "private.csv")
    with pytest.raises(ConfigError, match="leads out of"):
        read_table(folder)


def test_votes_of_a_log_follow_the_texts_that_were_shown():
    events = []
    for i, (prompt, a, b, who, label) in enumerate(zip(PROMPTS, A, B, WHO, labels(), strict=True)):
        event = {"user": who, "pair_id": f"pair {i}"}
        events += [event | {"event": "shown", "ts": f"1{i}:00", "prompt": prompt, "left": a, "right": b}]
        events += [event | {"event": "vote", "ts": f"1{i}:30", "button": {"A": "👈", "B": "👉"}[label]}]
    assert wins_of_the_long_answer(read_as_offered(events)) == (N, 6)


def test_sheets_of_items_ratings_and_codes_are_joined(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "study.xlsx"
    with pd.ExcelWriter(path) as writer:
        items = {"Item no.": range(N), "Prompt": PROMPTS, "First text": A, "Second text": B}
        pd.DataFrame(items).to_excel(writer, sheet_name="Items", index=False)
        ratings = {"Item no.": range(N), "Rater": WHO, "Code": [1 if won else 2 for won in A_WON]}
        pd.DataFrame(ratings).to_excel(writer, sheet_name="Ratings", index=False)
        codes = {
            "Code": [1, 2, 0],
            "Meaning": ["First text is better", "Second text is better", "No difference"],
        }
        pd.DataFrame(codes).to_excel(writer, sheet_name="Codes", index=False)
    assert wins_of_the_long_answer(read_as_offered(path)) == (N, 6)
