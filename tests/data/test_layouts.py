"""Tables of people who never read our documentation: read at once, or with the options that the refusal offers."""

import itertools
import json
import shlex
import subprocess
import sys

import pandas as pd
import pytest

from badpo.data.forgetting import find_people, forget
from badpo.data.judgments import Judgments
from badpo.data.layouts import recognise
from badpo.data.problems import DataError
from badpo.data.tables import read_table

N = 24
LONG, SHORT = "a long answer that says very much about question {}", "a short answer {}"
FIRST = [i % 2 == 0 for i in range(N)]  # whether the long answer stands first
LONG_WON = [i % 4 != 0 for i in range(N)]  # of 18 rows
PEOPLE = [f"p{i % 3}" for i in range(N)]
A_WON = [first == won for first, won in zip(FIRST, LONG_WON, strict=True)]


def texts(prompt="prompt", a="response_a", b="response_b"):
    sides = [[LONG, SHORT] if first else [SHORT, LONG] for first in FIRST]
    return {
        prompt: [f"what is to be said about question {i}?" for i in range(N)],
        a: [sides[i][0].format(i) for i in range(N)],
        b: [sides[i][1].format(i) for i in range(N)],
    }


def labels(a, b):
    return [a if won else b for won in A_WON]


def numbers(better, worse):
    return labels(better, worse), labels(worse, better)


MARKS, TICKS, PERCENT = numbers("1", "4"), numbers("true", "false"), numbers("74 %", "31 %")
SHAPES = {
    "French": texts("Question posée", "Réponse 1", "Réponse 2")
    | {"Horodateur": [f"03/03/2025 09:{i:02}" for i in range(N)], "Juge": PEOPLE}
    | {"Réponse préférée": labels("la première", "la seconde")},
    "a self-rating beside the vote": texts("Pregunta", "Respuesta izquierda", "Respuesta derecha")
    | {"correo": PEOPLE, "¿Cuál prefiere?": labels("Izquierda", "Derecha")}
    | {"¿Domina el tema? (1-5)": [str(1 + i % 5) for i in range(N)]},
    "Japanese": texts("質問", "回答1", "回答2")
    | {
        "No.": [str(i) for i in range(N)],
        "評価者": PEOPLE,
        "評価": labels("回答1の方が良い", "回答2の方が良い"),
    },
    "marks of which 1 is best": texts("Aufgabe", "Antwort 1", "Antwort 2")
    | {"Bewerter": PEOPLE, "Note 1 (1 = sehr gut)": MARKS[0], "Note 2 (1 = sehr gut)": MARKS[1]},
    "a tick for each answer": texts() | {"WorkerId": PEOPLE, "better.1": TICKS[0], "better.2": TICKS[1]},
    "percents": texts("query", "text 1", "text 2")
    | {"evaluator": PEOPLE, "quality 1": PERCENT[0], "quality 2": PERCENT[1]},
    "results of a match": texts("prompt", "white_text", "black_text")
    | {"voter": PEOPLE, "result": labels("1-0", "0-1"), "elo": [str(1500 + i) for i in range(N)]},
    "names of models": texts("prompt", "text_x", "text_y")
    | {"judge": PEOPLE, "system_x": ["one"] * N, "system_y": ["two"] * N}
    | {"preferred system": labels("one", "two")},
    "chosen and rejected in German": {
        "anfrage": texts()["prompt"],
        "bevorzugt": [(LONG if won else SHORT).format(i) for i, won in enumerate(LONG_WON)],
        "abgelehnt": [(SHORT if won else LONG).format(i) for i, won in enumerate(LONG_WON)],
        "gutachter": PEOPLE,
        "datum": [f"0{1 + i % 2}.03.2025" for i in range(N)],
    },
    "a machine's votes beside people's": texts()
    | {"reward_model_winner": ["A"] * 12 + ["B"] * 12, "human_winner": labels("A", "B")}
    | {"human_id": PEOPLE, "variant": ["A", "B"] * 12, "idx": [str(i) for i in range(N)]},
    "typed by hand": texts("q", "answer A", "answer B")
    | {
        "who": PEOPLE,
        "which one??": [f"{one}{'! ' * (i % 2)}" for i, one in enumerate(labels("A", "Resp. B"))],
    },
    "an index from 0": texts() | {"rater.id": PEOPLE, "label_idx": labels("0", "1")},
    "an index from 1": texts() | {"rater.id": PEOPLE, "label_idx": labels("1", "2")},
    "errors of each answer": texts()
    | {"tester": PEOPLE, "errors 1": labels("0", "4"), "errors 2": labels("3", "1")},
    "lists of votes": {
        **texts(),
        "votes": [
            [{"user": who, "pick": one}]
            for who, one in zip(PEOPLE, labels("left", "right"), strict=True)
        ],
    },
    "a judge's text": texts()
    | {
        "judge": PEOPLE,
        "raw": labels("B is short. My verdict: [[A]]", '{"reason": "A is long", "winner": "B"}'),
    },
    "a probability": texts() | {"judge": PEOPLE, "P(A better)": labels("0,81", "0.22")},
    "agreement": texts()
    | {"who": PEOPLE, "A is better than B": labels("Strongly agree", "Somewhat disagree")},
    "thumbs": {
        "prompt": [prompt for prompt in texts()["prompt"] for _ in "ab"],
        "response": [*itertools.chain(*zip(texts()["response_a"], texts()["response_b"], strict=True))],
        "by": [who for who in PEOPLE for _ in "ab"],
        "feedback": [*itertools.chain(*zip(*numbers("thumbs up", "not helpful"), strict=True))],
    },
    "parallel lists": texts()
    | {"raters": [[who] for who in PEOPLE], "choices": [[one] for one in labels("left", "right")]},
    "two numbers of each person": texts()
    | {
        f"{one}'s score for {side}": [
            number if who == one else None for who, number in zip(PEOPLE, column, strict=True)
        ]
        for one in ("p0", "p1", "p2")
        for side, column in zip("AB", numbers("5", "2"), strict=True)
    },
    "a slider, and codes of people": texts("stimulus", "left text", "right text")
    | {
        "subject": PEOPLE,
        "slider (-50 = left much better, +50 = right much better)": labels("-30,5", "22,5"),
    },
}


def read_as_offered(table):
    try:
        return Judgments.read(table)
    except DataError as error:
        assert error.fix and not error.question and "bad_rows" not in error.fix
        return Judgments.read(table, **error.fix)


@pytest.mark.parametrize("columns", SHAPES.values(), ids=SHAPES)
def test_a_table_is_read_at_once_or_as_offered(columns):
    votes = read_as_offered(pd.DataFrame(columns))
    texts_of = votes.comparisons.loc[votes.votes["comparison"]]
    is_long_first = texts_of["response_a"].str.contains("long").to_numpy()
    n_long_won = int((is_long_first == (votes.votes["sign"] > 0).to_numpy()).sum())
    assert (len(votes.votes), n_long_won, len(votes.annotators)) == (N, 18, 3)


def test_two_numbers_whose_direction_nothing_says_are_asked_about():
    a, b = ([*column[1:], "3"] for column in numbers("4", "2.5"))
    table = pd.DataFrame(texts() | {"annotator": PEOPLE, "value 1": a, "value 2": b})
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    error = caught.value
    assert error.question and len(error.answers) == 2
    won = [Judgments.read(table, **fix).votes["sign"].to_numpy() for fix in (error.fix, error.turned)]
    assert (won[0] == -won[1]).all()


def test_many_rows_of_an_unknown_label_are_not_offered_to_be_dropped():
    table = pd.DataFrame(texts() | {"annotator": PEOPLE, "winner": ["shrug", "a", "b", "b"] * 6})
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    assert not caught.value.fix


def test_rows_of_totals_and_objects_under_their_ids(tmp_path):
    table = pd.DataFrame(texts() | {"winner": labels("a", "b")})
    total = pd.DataFrame([{"prompt": "Total", "winner": "a: 12 / b: 12"}])
    pd.concat([table, total]).to_csv(tmp_path / "votes.csv", index=False)
    assert len(read_table(tmp_path / "votes.csv").frame) == N
    table.T.to_json(tmp_path / "votes.json")
    assert len(recognise(read_table(tmp_path / "votes.json")).frame) == N


def test_labels_that_differ_in_the_side_alone_are_asked_about_in_any_language():
    words = ("jest lepsza", "jest trochę lepsza")
    cells = [f"{side} {words[i // 4 % 2]}" for i, side in enumerate(labels("A", "B"))]
    table = texts() | {"annotator": PEOPLE, "Ocena": cells}
    with pytest.raises(DataError) as caught:
        Judgments.read(pd.DataFrame(table))
    error = caught.value
    assert error.question and {
        label[0].lower() for label, side in error.fix["winners"].items() if side == "a"
    } == {"a"}


def test_sheets_with_the_same_columns_are_read_and_name_the_annotators(tmp_path):
    pytest.importorskip("openpyxl")
    table = pd.DataFrame(texts() | {"winner": labels("a", "b")})
    with pd.ExcelWriter(tmp_path / "votes.xlsx") as book:
        pd.DataFrame({"notes": ["read me"]}).to_excel(book, sheet_name="ReadMe", index=False)
        for i in range(3):
            one = table[[who == f"p{i}" for who in PEOPLE]]
            (one if i else one[[*reversed(one.columns)]]).to_excel(book, sheet_name=f"p{i}", index=False)
    votes = Judgments.read(tmp_path / "votes.xlsx")
    assert (votes.n_votes, votes.n_annotators) == (N, 3)
    assert any("ReadMe" in finding.what for finding in votes.findings)


def test_two_games_are_two_votes_and_names_that_differ_in_case_can_be_joined(tmp_path):
    table = pd.DataFrame(
        texts() | {"judge": PEOPLE, "g1_winner": labels("A", "B"), "g2_winner": labels("A", "B")}
    )
    table.loc[:9, "judge"] = table.loc[:9, "judge"].str.upper()
    table.to_csv(tmp_path / "votes.csv", index=False)
    votes = Judgments.read(tmp_path / "votes.csv")
    assert (votes.n_votes, votes.n_annotators) == (2 * N, 6)
    (finding,) = [finding for finding in votes.findings if finding.code == "W113"]
    command = shlex.split(finding.remedy.partition("joined.csv: ")[2])
    subprocess.run([sys.executable, *command[1:]], check=True, cwd=tmp_path)
    assert Judgments.read(tmp_path / "joined.csv").n_annotators == 3


def test_slots_of_annotators_and_votes_are_read_together_and_keep_votes_without_a_name():
    table = texts() | {"winner_1": labels("A", "B"), "winner_2": labels("A", "B")}
    table |= {"rater_1": [None, *PEOPLE[1:]], "rater_2": ["p9"] * (N - 1) + [None]}
    table["winner_2"][-1] = None
    votes = Judgments.read(pd.DataFrame(table))
    assert (votes.n_votes, votes.n_annotators) == (2 * N - 1, 5)
    unnamed = Judgments.read(pd.DataFrame(table), columns={"annotator": None})
    assert (unnamed.n_votes, unnamed.n_annotators) == (2 * N - 1, 1)


@pytest.mark.parametrize(
    ("names", "n_others"), [("score_A|score_B", 1), ("rank_A|rank_B", 1), ("score_A|score_B", 6)]
)
def test_numbers_of_both_sides_say_what_labels_mean_if_they_agree(names, n_others):
    (a, b), is_rank = names.split("|"), names.startswith("rank")
    cells = labels("1", "0")
    cells[:n_others] = ["0" if cell == "1" else "1" for cell in cells[:n_others]]
    scores = numbers("2", "7") if is_rank else numbers("7", "2")
    table = pd.DataFrame(texts() | {"who": PEOPLE, "label": cells, a: scores[0], b: scores[1]})
    columns = {"winner": "label"}
    if n_others > 1:
        with pytest.raises(DataError) as caught:
            Judgments.read(table, columns=columns)
        assert caught.value.question
        return
    votes = Judgments.read(table, columns=columns)
    assert (votes.votes["sign"] > 0).tolist() == [cell == "1" for cell in cells]
    assert any(a in finding.what and finding.code == "N107" for finding in votes.findings)


def test_rows_without_answers_and_vote_are_left_out_and_counted():
    table = pd.DataFrame(texts() | {"annotator": PEOPLE, "winner": labels("a", "b")})
    others = pd.DataFrame({"annotator": PEOPLE, "trial": "instructions"})
    votes = Judgments.read(pd.concat([others, table], ignore_index=True))
    assert (votes.n_votes, votes.dropped["n"].sum(), votes.votes["row"].min()) == (N, N, N)


def test_lists_in_one_object_are_joined_by_their_ids(tmp_path):
    pairs = {f"x{i}": row for i, row in enumerate(pd.DataFrame(texts()).to_dict("records"))}
    votes = [{"pair_id": f"x{i}", "choice": choice} for i, choice in enumerate(labels("a", "b"))]
    people = [
        {"id": who, "votes": [vote for vote, own in zip(votes, PEOPLE, strict=True) if own == who]}
        for who in dict.fromkeys(PEOPLE)
    ]
    listed = [{"id": key, **pair} for key, pair in pairs.items()]
    flat = [{**vote, "annotator": who} for vote, who in zip(votes, PEOPLE, strict=True)]
    for content in ({"pairs": pairs, "annotators": people}, {"pairs": listed, "votes": flat}):
        (tmp_path / "dump.json").write_text(json.dumps({"version": 2, **content}))
        read = Judgments.read(tmp_path / "dump.json")
        assert (read.n_votes, read.n_annotators, read.n_comparisons) == (N, 3, N)
    (tmp_path / "dump.json").write_text(json.dumps({"pairs": listed[1:], "votes": flat}))
    with pytest.raises(DataError, match="several lists"):
        Judgments.read(tmp_path / "dump.json")
    # no row of such a file is one object of it
    (tmp_path / "dump.json").write_text(before := json.dumps({"pairs": listed, "votes": flat}))
    with pytest.raises(DataError, match="no row can be taken out"):
        forget(find_people(["p0"]), data=[tmp_path / "dump.json"])
    assert (tmp_path / "dump.json").read_text() == before


def test_scores_inside_of_answers_rank_them():
    answers = [
        [
            {"response": LONG.format(i), "overall_score": 9},
            {"response": SHORT.format(i), "overall_score": 4},
        ]
        + [{"response": f"an answer of a middling length to {i}", "overall_score": 5 + i % 3}]
        for i in range(N)
    ]
    table = pd.DataFrame({"instruction": texts()["prompt"], "completions": answers})
    votes = Judgments.read(table)
    assert votes.n_votes == 2 * N


def test_an_error_that_nobody_foresaw_is_told_as_not_recognised(monkeypatch):
    def fail(*_):
        raise KeyError("a cell")

    table = pd.DataFrame(texts() | {"judge": PEOPLE, "winner": labels("a", "b"), "page": PEOPLE})
    assert Judgments.read(table).n_votes == N
    for module, name in (("layouts", "likely_annotators"), ("reading", "unused_columns")):
        with monkeypatch.context() as patch:
            patch.setattr(f"badpo.data.{module}.{name}", fail)
            patch.setattr("badpo.data.layouts._find_annotators", fail) if module == "layouts" else None
            with pytest.raises(DataError) as caught:
                Judgments.read(table)
        assert caught.value.problems[0].code == "E101" and "a cell" not in str(caught.value)


def test_a_long_table_with_a_column_for_each_judge_is_read():
    n = 600
    table = {name: [f"{name} of case {i} in words" for i in range(n)] for name in texts()}
    table |= {f"m{j} verdict": ["A", "B"] * (n // 2) for j in range(3)} | {"note": ["x", "y", "z"] * 200}
    votes = Judgments.read(pd.DataFrame(table), layout="wide")
    assert (votes.n_votes, votes.n_annotators) == (3 * n, 3)
