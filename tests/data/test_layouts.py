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
from badpo.data.nesting import flatten
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
HIGH = numbers("7,5", "4")
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
    "places in a Dutch legend": texts("Vraag", "Tekst links", "Tekst rechts")
    | {"Deelnemer": PEOPLE, "Oordeel (-2 = links beter, 2 = rechts beter)": labels("-2", "1")},
    "sides of a legend in another language": texts("Kérdés", "Válasz A", "Válasz B")
    | {"judge": PEOPLE, "Vélemény (-2 = B sokkal jobb, +2 = A sokkal jobb)": labels("1", "-2")},
    "Portuguese grades": texts("Pergunta", "Resposta A", "Resposta B")
    | {"Avaliador": PEOPLE, "Nota A (0 a 10)": HIGH[0], "Nota B (0 a 10)": HIGH[1]},
    "letters before Korean particles": texts("질문", "답변 A", "답변 B")
    | {"평가자": PEOPLE, "평가": labels("A가 더 좋음", "B가 더 좋음")},
    "names of models in another language": texts("Pregunta", "Respuesta 1", "Respuesta 2")
    | {"Evaluador": PEOPLE, "Ganador": labels("Brisa", "Luna")}
    | {"Modelo 1": ["Brisa"] * N, "Modelo 2": ["Luna"] * N},
    "filler words in names, and booleans": {
        "question": [prompt for prompt in texts()["prompt"] for _ in "ab"],
        "answer_text": [
            *itertools.chain(*zip(texts()["response_a"], texts()["response_b"], strict=True))
        ],
        "user_id": [who for who in PEOPLE for _ in "ab"],
        "is_preferred": [*itertools.chain(*zip(*TICKS, strict=True))],
    },
    "one id for each pair, and a tick or nothing": {
        name: column for name, column in texts(a="Text 1", b="Text 2").items() if name != "prompt"
    }
    | {"instance_id": range(N), "user": PEOPLE, "time_string": [f"Time spent: {i} s" for i in range(N)]}
    | {"preference:::Text 1": labels("1.0", None), "preference:::Text 2": labels(None, "1.0")},
    "lists of votes beside their sum": texts()
    | {"overall_preference": [0] * N, "experts": [[]] * N}
    | {
        "people": [
            [{"annotator_id": who, "verdict": one}]
            for who, one in zip(PEOPLE, labels("A", "B"), strict=True)
        ]
    },
    "counts of votes that end in their sums": {
        name: [*column, None] for name, column in texts("Brief", "Text A", "Text B").items()
    }
    | {"user": [*PEOPLE, "sum of all"], "preferred": [*labels("A", "B"), "18"]},
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


ITEMS = [dict(zip(texts(), cells, strict=True)) for cells in zip(*texts().values(), strict=True)]
RUNS = [
    {
        "question": item["prompt"],
        "runs": [
            {"id": f"x{i}", "output": item["response_a"]},
            {"id": f"y{i}", "output": item["response_b"]},
        ],
        "scores": {f"y{i}": int(not A_WON[i]), f"x{i}": int(A_WON[i])},
        "user": PEOPLE[i],
    }
    for i, item in enumerate(ITEMS)
]
STRINGS = [
    {
        "dataObject": {
            "content": json.dumps(
                {"prompt": item["prompt"], "a": item["response_a"], "b": item["response_b"]}
            )
        },
        "annotations": [
            {
                "workerId": PEOPLE[i],
                "data": {"content": json.dumps({"choice": "Answer A" if A_WON[i] else "Answer B"})},
            }
        ],
    }
    for i, item in enumerate(ITEMS)
]


@pytest.mark.parametrize("records", [RUNS, RUNS[:5], STRINGS], ids=["ids", "5 rows of ids", "strings"])
def test_scores_under_ids_and_json_in_strings_are_opened(records):
    votes = read_as_offered(records)
    won = [LONG_WON[vote] for vote in votes.votes["row"]]
    texts_won = [
        votes.comparisons["response_a" if sign > 0 else "response_b"][number]
        for sign, number in zip(votes.votes["sign"], votes.votes["comparison"], strict=True)
    ]
    assert [text.startswith("a long") for text in texts_won] == won
    assert len(won) == len(records)


def test_tables_below_each_other_in_one_file_are_joined_by_ids(tmp_path):
    ids = [f"q{i}" for i in range(N)]
    pairs = pd.DataFrame({"pair_id": ids} | texts())
    votes = pd.DataFrame({"pair_id": ids, "annotator": PEOPLE, "winner": labels("a", "b")})
    (tmp_path / "v.csv").write_text(f"{pairs.to_csv(index=False)}\n{votes.to_csv(index=False)}")
    read = Judgments.read(tmp_path / "v.csv")
    assert (read.n_votes, len(read.annotators)) == (N, 3)
    assert (read.votes["sign"] > 0).tolist() == A_WON


def test_values_under_ids_of_nothing_are_no_columns():
    others = [{**run, "scores": {f"z{i}": 0, f"w{i}": 1}} for i, run in enumerate(RUNS * 5)]
    assert "scores" in flatten(read_table(others)).frame


@pytest.mark.parametrize("whole", [100, 1])
def test_shares_of_a_number_of_raters_are_counts_of_votes(whole):
    shares = {
        "share for A": [whole * 0.625] * N,
        "share for B": [whole * 0.25] * N,
        "No. of raters": [8] * N,
    }
    votes = Judgments.read(pd.DataFrame(texts() | shares))
    assert (votes.n_votes, len(votes.ties.votes)) == (7 * N, N)
    assert (votes.votes["sign"] > 0).sum() == 5 * N


def test_a_label_may_mean_that_there_is_no_vote():
    table = pd.DataFrame(texts() | {"who": PEOPLE, "winner": [*labels("1", "2")[:-2], "9", "9"]})
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    assert caught.value.fix["winners"] == {"1": "a", "2": "b", "9": "skip"}
    votes = Judgments.read(table, **caught.value.fix)
    assert (votes.n_votes, votes.ties) == (N - 2, None)
    assert votes.dropped.groupby("reason")["n"].sum().to_dict() == {"skipped": 2}


def read_in_all_ways(table):
    """Judgments by the first command and by the further ones, after the question if there is one."""
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    error = caught.value
    return error, [
        Judgments.read(table, **fix) for fix in (error.fix, *(fix for _, fix in error.others))
    ]


@pytest.mark.parametrize(("a", "b"), [("A", "B"), (0, 1), ("first", "second"), ("1.0", "0.0")])
@pytest.mark.parametrize("n_empty", [1, 5])
@pytest.mark.parametrize("empty", [None, "", "NULL"])
def test_empty_cells_are_ties_or_no_votes_as_the_user_says(a, b, n_empty, empty, tmp_path):
    cells = [*labels(a, b)[:-n_empty], *[empty] * n_empty]
    path = tmp_path / "votes.csv"
    pd.DataFrame(texts() | {"rater": PEOPLE, "preferred": cells}).to_csv(path, index=False)
    error, (skipped, tied, *_) = read_in_all_ways(path)
    assert bool(error.question) == (a in (0, "1.0")) and len(error.others) == 1 + bool(error.question)
    assert (skipped.n_votes, skipped.ties) == (N - n_empty, None)
    assert skipped.dropped.groupby("reason")["n"].sum().to_dict() == {"skipped": n_empty}
    assert (tied.n_votes, len(tied.ties.votes)) == (N - n_empty, n_empty)
    named = error.fix["winners"] | {"NULL": "tie"}
    both = [{**named, "": "tie"}, {label: side for label, side in named.items() if label}]
    assert all(len(Judgments.read(path, winners=one).ties.votes) == n_empty for one in both)
    signs = [1 if won else -1 for won in A_WON[:-n_empty]]
    read = [judgments.votes["sign"].tolist() for judgments in (skipped, tied)]
    assert read == [[-sign for sign in signs] if a == "1.0" else signs] * 2


def test_rows_of_a_label_are_left_out_by_its_name_and_other_rows_are_counted():
    sides = [*labels("leftvote", "rightvote")[:-2], "no idea", "rightvote"]
    table = pd.DataFrame(texts() | {"ip": [f"10.4.1{who[1]}.7" for who in PEOPLE], "type": sides})
    error, (skipped, tied) = read_in_all_ways(table)
    assert error.fix["winners"] == {"no idea": "skip"} and "bad_rows" not in error.fix
    assert (skipped.n_votes, tied.n_votes, len(tied.ties.votes)) == (N - 1, N - 1, 1)
    assert skipped.n_annotators == 3
    table.loc[3, "response_a"] = None
    error, _ = read_in_all_ways(table)
    assert error.fix["bad_rows"] == "drop" and "no response_a: 1 of 24 rows" in error.left_out


def test_a_legend_counts_beside_the_meaning_of_an_empty_cell():
    name = "Preference (1 = B is better, 5 = A is better)"
    table = pd.DataFrame(texts() | {"rater": PEOPLE, name: [*labels(5, 1)[:-2], None, None]})
    votes = Judgments.read(table, winners={"": "tie"})
    assert len(votes.ties.votes) == 2
    assert votes.votes["sign"].tolist() == [1 if won else -1 for won in A_WON[:-2]]


def test_the_overall_ratings_come_first_and_other_pairs_are_offered():
    ratings = zip(("tone_A", "tone_B", "overall_A", "overall_B"), [*numbers("2", "5")] * 2, strict=True)
    table = pd.DataFrame(texts() | {"rater": PEOPLE} | dict(ratings))
    table[["overall_A", "overall_B"]] = table[["overall_B", "overall_A"]].to_numpy()
    table.loc[:2, ["overall_A", "tone_A", "tone_B"]] = "1"
    table.loc[3:5, ["tone_A", "tone_B"]] = "1"
    error, (overall, tone) = read_in_all_ways(table)
    assert error.question and error.fix["columns"]["rating_a"] == "overall_A"
    assert (overall.n_votes, tone.n_votes, len(tone.ties.votes)) == (N, N - 6, 6)
    assert (overall.votes["sign"][6:].to_numpy() == -tone.votes["sign"].to_numpy()).all()


@pytest.mark.parametrize("kind", ["a_b", "chosen"])
def test_comparisons_without_prompts_are_known_by_their_pairs(kind, tmp_path):
    table = pd.DataFrame(texts("question") | {"winner": labels("A", "B"), "annotator": PEOPLE})
    table = pd.concat([table, table.assign(annotator="p3")]).drop(columns="question")
    if kind == "chosen":  # a common beginning of both answers would be the prompt
        table = table.replace("^a short", "This short", regex=True)
        sides = zip(table["response_a"], table["response_b"], labels(1, -1) * 2, strict=True)
        table[["chosen", "rejected"]] = [pair[:2][::way] for *pair, way in sides]
        table = table[["chosen", "rejected", "annotator"]]
    table = table.reset_index(drop=True)
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    assert caught.value.fix == {"columns": {"prompt": None}}
    votes = Judgments.read(table, **caught.value.fix, attributes=["length:ratio=1.5"])
    assert (votes.n_votes, votes.n_annotators, votes.n_comparisons) == (2 * N, 4, N)
    assert votes.comparisons["prompt_id"].nunique() == N and {*votes.comparisons["prompt"]} == {""}
    assert (votes.votes["sign"] == votes.delta[:, 0]).mean() == sum(LONG_WON) / N
    assert {text[:7] for text in votes.comparisons["response_a"]} <= {"a long ", "a short", "This sh"}
    votes.to_parquet(tmp_path / "votes.parquet")
    assert Judgments.read(tmp_path / "votes.parquet").n_comparisons == N


def test_two_numbers_whose_direction_nothing_says_are_asked_about():
    a, b = ([*column[1:], "3"] for column in numbers("4", "2.5"))
    table = pd.DataFrame(texts() | {"annotator": PEOPLE, "value 1": a, "value 2": b})
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    error = caught.value
    assert error.question and len(error.answers) == 2
    won = [Judgments.read(table, **fix).votes["sign"].to_numpy() for fix in (error.fix, error.turned)]
    assert (won[0] == -won[1]).all()


def test_keys_beside_counters_are_asked_about_and_other_trials_are_no_votes():
    trials = pd.DataFrame(texts("prompt", "stim_left", "stim_right") | {"key": labels("f", "j")})
    consent = pd.DataFrame({"key": ["0"] * 3, "trial_type": ["consent"] * 3})
    log = pd.concat([consent, trials.assign(trial_type=["vote", "practice"] * (N // 2))])
    log = log.assign(trial_index=range(N + 3), rt=[900 + i % 7 for i in range(N + 3)])
    with pytest.raises(DataError) as caught:
        Judgments.read(log.assign(PROLIFIC_PID=["p0", *PEOPLE, "p1", "p2"]))
    assert caught.value.question and caught.value.fix["columns"]["winner"] == "key"
    assert caught.value.fix["winners"] == {"f": "a", "j": "b"}


@pytest.mark.parametrize(
    "word",
    [
        "pari",
        "parità",
        "gelijkwaardig",
        "equivalentes",
        "Gleichstand",
        "どちらとも言えない",
        "차이 없음",
        "无差异",
        "bothbad_vote",
        "both_bad",
        "tie (bothbad)",
    ],
)
def test_a_word_for_a_tie_is_one(word):
    table = texts() | {"judge": PEOPLE, "preferita": [*labels("Risposta 1", "Risposta 2")[:-1], word]}
    votes = read_as_offered(pd.DataFrame(table))
    assert (len(votes.votes), len(votes.ties.votes)) == (N - 1, 1)


def test_an_order_names_the_columns_of_the_answers():
    three = {letter: [f"answer {letter} of some words to {i}" for i in range(N)] for letter in "ABC"}
    order = ["B > A > C", "C > A > B"] * (N // 2)
    name = "Rank the answers, best first"
    votes = read_as_offered(
        pd.DataFrame({"Question": texts()["prompt"], "who": PEOPLE} | three | {name: order})
    )
    pairs = votes.comparisons.loc[votes.votes["comparison"], ["response_a", "response_b"]].to_numpy()
    assert votes.n_votes == 2 * N
    won = [pair[int(sign < 0)] for pair, sign in zip(pairs, votes.votes["sign"], strict=True)]
    assert {text.split()[1] for text in won} == {"B", "C"}


def test_a_choice_counts_the_answers_in_a_list_from_0():
    sides = zip(texts()["response_a"], texts()["response_b"], strict=True)
    lists = [[{"text": text, "note": None, "policy": "x"} for text in pair] for pair in sides]
    table = {"prompt": texts()["prompt"], "summaries": lists, "choice": labels(0, 1), "worker": PEOPLE}
    with pytest.raises(DataError) as caught:
        Judgments.read(pd.DataFrame(table))
    assert caught.value.question and caught.value.fix["winners"] == {"0": "a", "1": "b"}


@pytest.mark.parametrize("labels", [["shrug", "a", "b", "b"], ["shrug", "a", "b", "wow"]])
def test_many_rows_are_offered_to_be_left_out_only_under_one_label(labels):
    table = pd.DataFrame(texts() | {"annotator": PEOPLE, "winner": labels * 6})
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    error = caught.value
    assert error.fix == ({} if "wow" in labels else {"winners": {"shrug": "skip"}})
    assert [fix["winners"] for _, fix in error.others] == [{"shrug": "tie"}] * ("wow" not in labels)


def test_rows_of_totals_and_objects_under_their_ids(tmp_path):
    table = pd.DataFrame(texts() | {"winner": labels("a", "b")})
    total = pd.DataFrame([{"prompt": "Total", "winner": "a: 12 / b: 12"}])
    pd.concat([table, total]).to_csv(tmp_path / "votes.csv", index=False)
    assert len(read_table(tmp_path / "votes.csv").frame) == N
    table.T.to_json(tmp_path / "votes.json")
    assert len(recognise(read_table(tmp_path / "votes.json")).frame) == N


def test_labels_that_differ_in_the_side_alone_are_asked_about_in_any_language():
    words = ("jobb", "kicsit jobb")
    cells = [f"{side} {words[i // 4 % 2]}" for i, side in enumerate(labels("A", "B"))]
    table = texts() | {"annotator": PEOPLE, "Vélemény": cells}
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


def test_two_games_are_two_votes_and_names_that_differ_in_case_are_reported(tmp_path):
    table = pd.DataFrame(
        texts() | {"judge": PEOPLE, "g1_winner": labels("A", "B"), "g2_winner": labels("A", "B")}
    )
    table.loc[:9, "judge"] = table.loc[:9, "judge"].str.upper()
    table.to_csv(tmp_path / "votes.csv", index=False)
    votes = Judgments.read(tmp_path / "votes.csv")
    assert (votes.n_votes, votes.n_annotators) == (2 * N, 6)
    assert [finding.count for finding in votes.findings if finding.code == "W113"] == [3]


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
    with pytest.raises(DataError, match="badpo cannot remove .* from this file"):
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


def test_several_judges_inside_of_answers_are_the_annotators():
    def answer(text, *scores):
        return {"response": text, "notes": {f"judge-{j}.5": {"rating": n} for j, n in enumerate(scores)}}

    answers = [
        [
            answer(LONG.format(i), 9, 1),
            answer(SHORT.format(i), 4, 5),
            answer(f"an answer of a middling length to {i}", 5, 3),
        ]
        for i in range(N)
    ]
    votes = Judgments.read(pd.DataFrame({"instruction": texts()["prompt"], "completions": answers}))
    assert (votes.n_votes, votes.n_annotators) == (4 * N, 2)


def test_a_long_table_with_a_column_for_each_judge_is_read():
    n = 600
    table = {name: [f"{name} of case {i} in words" for i in range(n)] for name in texts()}
    table |= {f"m{j} verdict": ["A", "B"] * (n // 2) for j in range(3)} | {"note": ["x", "y", "z"] * 200}
    votes = Judgments.read(pd.DataFrame(table), layout="wide")
    assert (votes.n_votes, votes.n_annotators) == (3 * n, 3)


def flagged(name, yes, no):
    """Votes under the names of the winner and the loser; every fourth row is marked as a tie."""
    sides = [[LONG.format(i), SHORT.format(i)][:: 1 if LONG_WON[i] else -1] for i in range(N)]
    columns = dict(zip(("winner_text", "loser_text"), map(list, zip(*sides, strict=True)), strict=True))
    return {"prompt": texts()["prompt"], **columns, name: [no if won else yes for won in LONG_WON]}


@pytest.mark.parametrize(
    "table",
    [
        flagged("is_draw", True, False) | {"rater": PEOPLE},
        flagged("Tie?", "yes", "no"),
        flagged("draw", "x", ""),
        texts() | {"winner": labels("A", "B"), "is_tie": [int(not won) for won in LONG_WON]},
    ],
)
def test_a_vote_that_a_column_marks_as_a_tie_is_one(table):
    judgments = Judgments.read(pd.DataFrame(table).replace("", None), attributes=["length:ratio=1.5"])
    n_ties = LONG_WON.count(False)
    assert judgments.ties and judgments.ties.n_votes == n_ties
    assert judgments.n_votes == N - n_ties
    assert (judgments.votes["sign"].to_numpy() == judgments.delta[:, 0]).all()


def test_labels_of_places_are_asked_about_where_a_column_says_that_sides_were_exchanged():
    flips = [i % 3 == 0 for i in range(N)]
    shown = [won != flip for won, flip in zip(A_WON, flips, strict=True)]
    table = texts() | {"flipped": flips, "choice": ["left" if one else "right" for one in shown]}
    with pytest.raises(DataError) as caught:
        Judgments.read(pd.DataFrame(table))
    assert caught.value.question and "winners" in caught.value.turned
    signs = Judgments.read(pd.DataFrame(table), **caught.value.fix).votes["sign"]
    assert signs.tolist() == [1 if won else -1 for won in A_WON]
    as_named = Judgments.read(pd.DataFrame(table), **caught.value.turned).votes["sign"]
    assert as_named.tolist() == [1 if one else -1 for one in shown]


CHATS = texts()
for side in "ab":
    CHATS[f"conversation_{side}"] = [
        json.dumps([{"role": "user", "content": p}, {"role": "assistant", "content": text}])
        for p, text in zip(CHATS["prompt"], CHATS.pop(f"response_{side}"), strict=True)
    ]
del CHATS["prompt"]


@pytest.mark.parametrize(
    "table",
    [
        CHATS | {"vote": labels("model_a", "model_b")},
        texts(a="baseline_output", b="candidate_output") | {"winner": labels("baseline", "candidate")},
        texts()
        | {"resp_a_id": [f"{i}x" for i in range(N)], "resp_b_id": [f"{i}y" for i in range(N)]}
        | {"preferred_id": [f"{i}{'x' if won else 'y'}" for i, won in enumerate(A_WON)]},
        texts(prompt="pair") | {"pair": [f"item {i}" for i in range(N)], "winner": labels("a", "b")},
    ],
)
def test_a_table_is_read_by_conversations_baselines_and_ids(table):
    assert not {"prompt"} & {*CHATS}
    table = pd.DataFrame(table)
    try:
        votes = Judgments.read(table).votes
    except DataError as error:
        votes = Judgments.read(table, **error.fix).votes
    assert votes["sign"].tolist() == [1 if won else -1 for won in A_WON]


@pytest.mark.parametrize("is_qualtrics", [True, False])
@pytest.mark.parametrize(
    "marked", ["{}\n\nAnswer A: {}\nAnswer B: {}", "{}\nResponse A:\n{}\n\nResponse B:\n{}"]
)
def test_a_survey_with_a_column_for_each_comparison_is_read(marked, is_qualtrics, tmp_path):
    quoted = [marked.format(*each) for each in zip(*texts().values(), strict=True)]
    header = [f"Q{i}" for i in range(N)] if is_qualtrics else quoted
    table = pd.DataFrame([labels("Answer A", "Answer B")] * 3, columns=header)
    if is_qualtrics:
        below = pd.DataFrame([quoted, [f'{{"ImportId":"QID{i}"}}' for i in range(N)]], columns=header)
        table = pd.concat([below, table])
    table.to_csv(tmp_path / "survey.csv", index=False)
    judgments = Judgments.read(tmp_path / "survey.csv", attributes=["length:ratio=1.5"])
    assert (judgments.n_votes, judgments.n_annotators, judgments.n_comparisons) == (3 * N, 3, N)
    assert (judgments.votes["sign"] == judgments.delta[:, 0]).mean() == sum(LONG_WON) / N


def test_a_question_on_which_everybody_agreed_is_counted_as_left_out():
    columns = {"Timestamp": ["today"] * 3}
    for i, (p, a, b) in enumerate(zip(*texts().values(), strict=True)):
        columns[p] = [a, a, b] if i % 4 else [a] * 3
    judgments = Judgments.read(pd.DataFrame(columns))
    assert (judgments.n_votes, judgments.dropped["n"].tolist()) == (3 * 18, [3 * 6])
    assert "everybody" in judgments.dropped["reason"].item()


def test_a_second_header_row_does_not_cost_the_annotators():
    below = {"prompt": "Response", "response_a": "Response", "winner": "Open-Ended Response"}
    table = pd.DataFrame(
        [below, *pd.DataFrame(texts() | {"winner": labels("a", "b")}).to_dict("records")]
    )
    table["annotator"] = [None, *PEOPLE]
    assert Judgments.read(table, **offer(table)).n_annotators == 3
    table.loc[:5, "annotator"] = None
    assert offer(table)["columns"] == {"annotator": None}


def offer(table):
    """The options that the refusal of a table offers."""
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    return caught.value.fix


def test_ranked_replies_stand_beside_the_message_above_them():
    messages = []
    for i, (p, a, b) in enumerate(zip(*texts().values(), strict=True)):
        sides = ((f"{i}a", a, 0), (f"{i}b", b, 1)) if A_WON[i] else ((f"{i}a", a, 1), (f"{i}b", b, 0))
        messages.append({"message_id": f"p{i}", "parent_id": None, "text": p, "rank": None})
        messages += [{"message_id": m, "parent_id": f"p{i}", "text": t, "rank": r} for m, t, r in sides]
    judgments = Judgments.read([{**one, "user_id": f"u{i % 7}"} for i, one in enumerate(messages)])
    assert judgments.votes["sign"].tolist() == [1 if won else -1 for won in A_WON]


def test_a_column_of_rankings_for_each_annotator_is_read():
    third = {"response_c": [f"a third answer of some length {i}" for i in range(N)]}
    table = texts() | third | dict.fromkeys(("ranking_Ann", "ranking_Bob"), labels("A>B>C", "B>A>C"))
    judgments = Judgments.read(pd.DataFrame(table))
    assert (judgments.n_votes, judgments.n_annotators) == (4 * N, 2)


def test_an_index_of_the_best_answer_may_count_from_0():
    answers = [
        [a, b, f"a third answer {i}"] for i, (_, a, b) in enumerate(zip(*texts().values(), strict=True))
    ]
    table = {"prompt": texts()["prompt"], "responses": answers, "best": labels(0, 1)}
    assert Judgments.read(pd.DataFrame(table)).n_votes == 2 * N


def test_merged_cells_stand_for_all_of_their_rows(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["About this export"])
    sheet = book.create_sheet("Votes")
    sheet.append([*texts(), "winner", "annotator"])
    for i, row in enumerate(zip(*texts().values(), labels("a", "b"), strict=True)):
        for j in range(3):
            sheet.append([*(row[:3] if j == 0 else (None,) * 3), row[3], f"p{j}"])
        for letter in "ABC":
            sheet.merge_cells(f"{letter}{3 * i + 2}:{letter}{3 * i + 4}")
    book.save(tmp_path / "v.xlsx")
    judgments = Judgments.read(tmp_path / "v.xlsx")
    assert (judgments.n_votes, judgments.n_comparisons, judgments.n_annotators) == (3 * N, N, 3)


@pytest.mark.parametrize(
    ("a", "b", "end"),
    [
        ("len_a", "len_b", "csv"),
        ("sum_a_tokens", "sum_b_tokens", "jsonl"),
        ("文字数A", "文字数B", "csv"),
    ],
)
def test_a_table_with_lengths_alone_is_answered_with_a_command(a, b, end, tmp_path):
    lengths = {a: [9 + 80 * f for f in FIRST], b: [9 + 80 * (not f) for f in FIRST]}
    table = pd.DataFrame(lengths | {"winner": labels("a", "b"), "judge": PEOPLE})
    path = tmp_path / f"lengths.{end}"
    if end == "csv":
        table.to_csv(path, index=False)
    else:
        path.write_text(
            "\n".join(
                json.dumps({"winner": w, "judge": j, "counts": {a: x, b: y}})
                for x, y, w, j in table.values
            )
        )
    with pytest.raises(DataError) as caught:
        Judgments.read(path)
    words = shlex.split(caught.value.preparation)
    subprocess.run([sys.executable, *words[1:]], check=True, cwd=tmp_path)
    assert caught.value.fix["source"] == "with_lengths.csv"
    judgments = Judgments.read(tmp_path / "with_lengths.csv", attributes=["length:ratio=1.5"])
    assert (judgments.votes["sign"] == judgments.delta[:, 0]).mean() == sum(LONG_WON) / N


def test_lengths_of_what_won_and_lost_are_texts_of_these_lengths(tmp_path):
    lengths = [(9 + i, 40) for i in range(N - 3)] + [(40, 9 + i) for i in range(3)]
    table = pd.DataFrame(lengths, columns=["winner_tokens", "loser_tokens"]).assign(voter=PEOPLE)
    table.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError) as caught:
        Judgments.read(tmp_path / "t.csv")
    words = shlex.split(caught.value.preparation)
    subprocess.run([sys.executable, *words[1:]], check=True, cwd=tmp_path)
    read = Judgments.read(tmp_path / caught.value.fix["source"], attributes=["length:ratio=1.1"])
    assert ((read.votes["sign"] * read.delta[:, 0])[:15] < 0).all()
    assert (read.n_comparisons, read.n_annotators) == (N - 3, 3)
