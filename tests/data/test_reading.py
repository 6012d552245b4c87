"""Bad tables: each mistake is named with file, row, column and remedy, and all of them come at once."""

import numpy as np
import pandas as pd
import pytest

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem


def good(n: int = 8) -> pd.DataFrame:
    columns = {
        "prompt": [f"p{i // 2}" for i in range(n)],
        "response_a": [f"first answer {i // 2}" for i in range(n)],
        "response_b": [f"second answer {i // 2}" for i in range(n)],
        "winner": ["a", "b"] * (n // 2),
        "annotator": ["x", "y"] * (n // 2),
        "comparison_id": [f"c{i // 2}" for i in range(n)],
    }
    return pd.DataFrame(columns, dtype=object)


def changed(column: str, row: int, cell) -> pd.DataFrame:
    table = good()
    if column not in table:
        table[column] = None
    table.at[row, column] = cell
    return table


def errors(source, **options) -> list[Problem]:
    with pytest.raises(DataError) as caught:
        Judgments.read(source, **options)
    return [problem for problem in caught.value.problems if problem.severity == "error"]


CHAT = [{"role": "assistant", "content": "x"}]


@pytest.mark.parametrize(
    ("column", "row", "cell", "code", "what"),
    [
        ("prompt", 2, None, "E134", "no prompt: 1 of 8 rows"),
        ("prompt", 2, " \n", "E134", "empty prompt"),
        ("prompt", 2, 3.5, "E105", "prompt cannot be read, it is of type float"),
        ("response_a", 3, None, "E134", "no response_a"),
        ("response_b", 3, CHAT, "E105", "one response is a text and the other"),
        ("winner", 0, None, "E107", "no winner"),
        ("winner", 0, "lft", "E107", 'unknown winner "lft"'),
        ("winner", 0, 1, "E107", 'unknown winner "1"'),
        ("winner", 1, ["b"], "E107", "winner: a cell is a list"),
        ("annotator", 5, None, "E112", "no annotator"),
        ("annotator", 5, "  ", "E112", "no annotator"),
        ("annotator", 5, {"id": 5, "email": "x@example.org"}, "E112", "a cell is a list or an object"),
        ("annotator_class", 1, ["b"], "E112", "annotator_class: a cell is a list"),
        ("comparison_id", 5, None, "E108", "no comparison_id"),
        ("comparison_id", 5, "c0", "E116", "same comparison_id and different texts"),
        ("weight", 1, 0.0, "E106", "not a positive number: 8 of 8"),
        ("shown_first", 1, "lft", "E109", 'unknown shown_first "lft"'),
        ("shown_first", 1, ["b", "a"], "E109", "shown_first: a cell is a list"),
    ],
)
def test_one_bad_cell_is_named(column, row, cell, code, what):
    (found,) = errors(changed(column, row, cell))
    assert found.code == code and what in found.what and found.remedy
    if "8 of 8" not in what and "a cell is" not in what:
        assert f"row {row + 1}" in found.where
    if "one response" not in what:
        assert f'column "{column}"' in found.where


def test_everything_is_reported_in_one_pass():
    table = good(20)
    for row, column, cell in ((0, "prompt", None), (2, "response_a", 4), (4, "winner", "shrug")):
        table.at[row, column] = cell
    table.at[6, "annotator"], table.at[9, "comparison_id"] = None, "c0"
    table["judgment_id"] = ["j0", "j0", *(f"j{i}" for i in range(2, 20))]
    table["weight"] = [1.0] * 19 + [np.nan]
    table["annotator_class"] = ["crowd"] * 18 + ["expert", None]
    codes = ["E105", "E106", "E107", "E112", "E115", "E116", "E132", "E134"]
    assert sorted(problem.code for problem in errors(table)) == codes


def test_rows_columns_files_and_pseudonyms_are_named(tmp_path):
    path = tmp_path / "votes.csv"
    table = changed("winner", 5, "shrug").rename(columns={"winner": "label"})
    table.to_csv(path, index=False)
    (found,) = errors(path, columns={"winner": "label"})
    assert found.where.startswith(f'{path}, column "label", row 6 [ann_')
    assert found.where.endswith("(line 7 of the file)")
    assert found.fix == {"winners": {"shrug": "skip"}}


def test_many_rows_are_counted_and_a_few_are_named():
    table = good(5000)
    table.loc[10:, "winner"] = None
    (found,) = errors(table)
    assert found.count == 4990 and "4,990 of 5,000 rows" in found.what
    assert found.where.count("[ann_") == 5 and "and 4,985 more" in found.where


NOBODY = good().assign(annotator=None, annotator_class="crowd")
TEXT_AND_CHAT = pd.concat([good(4), good(2).assign(prompt=[[{"role": "user", "content": "p"}]] * 2)])
NUMBERED = good().assign(annotator=[123456789, 5] * 4)
NAMING = good().assign(annotator=["Ann-7", "y"] * 4)
ANSWERS = good()[["annotator"]].assign(Q1=[*"ab"] * 4, Q2=[*"ba"] * 4)
PAIRS = good().drop(columns="winner").rename(columns={"response_a": "chosen", "response_b": "rejected"})


@pytest.mark.parametrize(
    ("table", "options", "code", "what"),
    [
        (good().assign(weight=[0.0, *[1.0] * 7]), {}, "E106", "weight is not a positive number: 1 of 8"),
        (TEXT_AND_CHAT, {}, "E105", "some rows hold texts and other rows hold chat messages"),
        (
            [{"topic": "Why?", "chosen": "so", "rejected": "no"}],
            {},
            "E134",
            "do not have the same beginning",
        ),
        (good().iloc[:0], {}, "E104", "the table has no rows"),
        (good().assign(chosen=["a", "b", "b", "b", *"abab"]), {}, "E117", "than winner: 1 of 8 rows"),
        (PAIRS.assign(winner=PAIRS["rejected"]), {}, "E117", "than chosen and rejected: 8 of 8"),
        (
            good(),
            {"winners": {"A": "b", "B": "a"}},
            "E107",
            'winner "A", "B"; the winners in the table are "a", "b"',
        ),
        (PAIRS, {"winners": {"a": "b"}}, "E107", "the option winners is given, but"),
        (good().assign(rejected=good()["response_b"]), {}, "E117", "rejected names a different side"),
        (ANSWERS, {}, "E101", "columns missing: prompt"),
        (
            good()[["prompt", "response_a"]].set_axis([*"pr"], axis=1),
            {},
            "E101",
            "columns missing: prompt",
        ),
        (good().assign(winner="tie"), {}, "E104", "no vote is left of 8 rows"),
        (NOBODY, {}, "E112", "no annotator: 8 of 8"),
        (good().assign(annotator_class=[*"xy"] * 4), {}, "E118", "2 of 2 annotators"),
        (good(), {"columns": {"prompt_id": "annotator"}}, "E103", '"annotator" names the annotators'),
        (
            good(),
            {"columns": {"class": "prompt"}},
            "E103",
            'map "annotator_class", its name here, to "prompt"',
        ),
        (NOBODY, {"annotators_missing": "drop"}, "E104", "no vote is left of 8 rows"),
    ],
)
def test_a_bad_table_is_told(table, options, code, what):
    found = errors(table, **options)[0]
    assert found.code == code and what in f"{found.what}; {found.remedy}"


@pytest.mark.parametrize(
    ("table", "code", "count", "what"),
    [
        (changed("response_a", 4, "").iloc[4:5], "W134", 1, "empty response"),
        (changed("response_b", 0, "first answer 0").iloc[:1], "W131", 1, "1 comparison (1 judgment) of"),
        (good().assign(tools="[]"), "W107", 1, "tools"),
        (good().assign(images=[["x"]] * 8), "W108", 1, "images"),
        (good().assign(annotator=["Ann7", "ann7 "] * 4), "W113", 1, "1 group of annotators whose ids"),
        (good().assign(annotator=["0123", "123"] * 4), "W113", 1, "leading zeros"),
        (good().assign(annotator=["someone@example.org", "y"] * 4), "W301", 1, "e-mail addresses"),
        (good().assign(annotator=["A2X4Y6Z8B0C2D4", "y"] * 4), "W301", 1, "Mechanical Turk"),
        (NAMING.assign(comparison_id=[f"c{i // 2}-ann.7" for i in range(8)]), "W302", 8, "of 8 cells"),
        (good().assign(prompt_id=[*"xy"] * 4), "W302", 8, "prompt_id holds annotator ids: 8 of 8"),
        (NUMBERED.assign(model_a=123456789, model_b=7), "W302", 8, "model_a holds annotator ids"),
        (NUMBERED.assign(rater_a=123456789.0, rater_b=0.5), "W302", 8, "rater_a holds annotator ids"),
        (NUMBERED.assign(prompt_id="p-0123456789"), "W302", 8, "prompt_id holds annotator ids"),
        (NUMBERED.assign(annotator_class=["123456789.0", "crowd"] * 4), "W302", 1, "1 of 2 annotators"),
        (
            NUMBERED.assign(annotator_class=["123456789_team", "crowd"] * 4),
            "W302",
            1,
            "1 of 2 annotators",
        ),
        (NAMING.assign(annotator=["Zo\u00eb7", "y"] * 4, prompt_id="Zoe\u03087"), "W302", 8, "8 of 8"),
        (NAMING.assign(model_a="ANN-7", model_b="m"), "W302", 8, "model_a holds annotator ids"),
        (NAMING.assign(annotator_class=["ann-7", "crowd"] * 4), "W302", 1, "1 of 2 annotators"),
    ],
)
def test_what_is_odd_is_kept_with_a_warning(table, code, count, what):
    judgments = Judgments.read(table)
    (finding,) = judgments.findings
    assert (finding.code, finding.severity, finding.count) == (code, "warning", count)
    assert what in finding.what and judgments.n_votes == len(table)
    raw_ids = {raw.strip().casefold() for raw in table["annotator"].map(str) if len(raw) > 3}
    kept = (judgments.comparisons, judgments.votes, judgments.annotators)
    told = "".join([str(finding), *(frame.to_csv() for frame in kept)]).casefold()
    assert not any(raw in told for raw in raw_ids)


def test_kept_columns_must_be_free_and_choices_known():
    found = errors(good().assign(note="n", lists=[[1, 2]] * 8), keep=["nota", "annotator", "lists"])
    assert [problem.code for problem in found] == ["E103"] * 3
    assert 'Did you mean "note"' in found[0].what and "lists or objects" in found[2].what
    (finding,) = Judgments.read(good().drop(columns="annotator").assign(person="n")).findings
    assert finding.code == "N110" and "names the annotators, map it: person" in finding.remedy
    teams = good().assign(annotator=[*"wxyz"] * 2, Team=[*"rbrb"] * 2, Ticket=[*"stuvwxyz"])
    (finding,) = Judgments.read(teams).findings
    assert "not used: Team, Ticket" in finding.what
    assert finding.fix == {"columns": {"annotator_class": "Team"}}
    for labels, classes in (("rbrbrbrb", [*"rbrb"]), ("rbrbbbbb", [None] * 4), ("wxyzwxyz", [None] * 4)):
        read = Judgments.read(teams.assign(Rater_class=[*labels]).drop(columns="Team"))
        assert read.annotators["annotator_class"].tolist() == classes
    with pytest.raises(ConfigError, match="annotators_missing must be error or drop; got 'mean'"):
        Judgments.read(good(), annotators_missing="mean")


# -- what people have in place of our labels -----------------------------------------------------------------------


def answered(labels=None, **columns) -> pd.DataFrame:
    """Comparisons, each with two votes; every row has one of the labels."""
    table = good(4 if labels is None else len(labels)).drop(columns=["winner", "comparison_id"])
    return table.assign(**({} if labels is None else {"winner": labels}), **columns)


TEXTS = ["second answer 0", "first answer 0", "first answer 1", "tie"]
COUNTS = {"votes_a": [2, 0, 0, ""], "votes_b": [1, 0, 0, 1]}
TICKED = {"Answer.left.on": ["true", "false"] * 2, "Answer.right.on": ["false", "true"] * 2}
IN_LISTS = answered().drop(columns=["response_a", "response_b"])
ONE_ANSWER = pd.DataFrame({"prompt": ["p0", "p0"] * 3, "annotator": [*"xxyyzz"]})
ONE_ANSWER["answer"] = ["the first answer", "the other answer"] * 3
SIDES = ("first", "second")
IN_LISTS["summaries"] = [[{"text": f"{one} answer {i // 2}"} for one in SIDES] for i in range(4)]
LETTERS = {"response_a": "B", "response_b": "A", "chosen": list("BAAB")}
READ = {
    "1 and 2": (answered(["1", "2", "2", "1"]), [1, -1, -1, 1], "N107"),
    "left and right": (answered(["left", "right", "same", "left"]), [1, -1, 1], "N107"),
    "names": (answered(["Response A", "B is better", "A>>B", "[[B]]"]), [1, -1, 1, -1], ""),
    "a tie's sign": (answered(["A", "=", "Both about the same", "B"]), [1, -1], ""),
    "a tie in a language": (answered(["A", "unentschieden", "égalité", "平局"]), [1], ""),
    "ties in words": (answered(["B", "Both are good", "neither one", "A and B are equal"]), [-1], ""),
    "sides in a language": (answered(["links", "rechts", "gleich gut", "links"]), [1, -1, 1], "N107"),
    "numbers before words": (
        answered(["1 - A much better", "3 - B is better", "2 = tie", "3: B"]),
        [1, -1, -1],
        "",
    ),
    "what 1 is, in a name": (answered(**{"A is better?": [1, 0, 0, 1]}), [1, -1, -1, 1], "N107"),
    "yes in a name": (answered(response_2_preferred=["no", "yes", "yes", "no"]), [1, -1, -1, 1], "N107"),
    "a legend": (
        answered(**{"Preference (1 = A much better, 7 = B)": [2, 6, 4, 1]}),
        [1, -1, 1],
        "N107",
    ),
    "a legend, turned": (answered(**{"Score: B (1) ... A (5)": [4, 2, 3, 5]}), [1, -1, 1], "N107"),
    "ticks": (answered(**{"A is better": [*"x  x"], "B is better": [*" xx "]}), [1, -1, -1, 1], "N106"),
    "letters of a judge": (answered(["[[A]]", "[[B]]", "[[C]]", "[[A]]"]), [1, -1, 1], ""),
    "sentences": (answered(["I prefer the first one", "both", "second", "tie"]), [1, -1], "N107"),
    "texts": (answered(TEXTS), [-1, 1, 1], ""),
    "models": (answered(["x1", "y2", "y2", "x1"], model_a="x1", model_b="y2"), [1, -1, -1, 1], ""),
    "two ratings": (answered(rating_a=["4,5", "4/5", "2%", "2"], rating_b="3"), [1, 1, -1, -1], "N107"),
    "stars": (answered(stars_a=["\u2605\u2605", "\u2605"] * 2, stars_b="\u2605"), [1, 1], "N107"),
    "two ranks": (answered(rank_1=[1, 2, 2, 1], rank_2=[2, 1, 1, 2]), [1, -1, -1, 1], "N107"),
    "counts": (answered(**COUNTS).drop(columns="annotator"), [1, 1, -1, -1], "N106"),
    "in objects": (pd.DataFrame({"data": good(4).iloc[:, :5].to_dict("records")}), [1, -1, 1, -1], ""),
    "labels called chosen": (answered(chosen=list("abba"), rejected=list("baab")), [1, -1, -1, 1], ""),
    "letters": (answered(list("abba"), **LETTERS), [1, -1, -1, 1], ""),
    "ranks in lists": (IN_LISTS.assign(ranks=[[1, 2], [2, 1]] * 2), [1, -1, 1, -1], "N107"),
    "in lists": (IN_LISTS.assign(chosen=["a", "b", "b", "a"]), [1, -1, -1, 1], ""),
    "ticked boxes": (answered(**TICKED), [1, -1, 1, -1], "N106"),
}


@pytest.mark.parametrize(("table", "signs", "code"), READ.values(), ids=READ)
def test_what_says_who_won_is_read_and_said_where_the_order_alone_tells(table, signs, code):
    judgments = Judgments.read(table)
    assert judgments.votes["sign"].tolist() == signs
    found = {problem.code: problem for problem in judgments.findings}
    assert {code} - {""} == {"N106", "N107"} & {*found}
    if code == "N107":
        assert found["N107"].shown[0].startswith("row 1: ann_")
        turned = Judgments.read(table, **found["N107"].fix)
        assert turned.votes["sign"].tolist() == [-sign for sign in signs]


def test_what_all_names_of_people_say_of_their_ratings_is_read():
    people = {f"p{i} (1 = A, 5 = B)": [1, 4] for i in range(3)}
    table = answered().drop(columns="annotator")[1:3].assign(**people)
    assert Judgments.read(table, layout="wide").votes["sign"].tolist() == [1] * 3 + [-1] * 3


@pytest.mark.parametrize("name", ["rating", "place"])
def test_of_one_answer_a_row_those_of_one_prompt_and_person_are_compared(name):
    table = ONE_ANSWER.assign(**{name: [4, 2, 3, 3, 1, 5]}, model=[*"mnmnmn"])
    judgments = Judgments.read(table)
    sign = 1 if name == "rating" else -1
    assert judgments.votes["sign"].tolist() == [sign, -sign]  # of three people one sees a tie
    assert (judgments.n_comparisons, judgments.n_annotators) == (1, 2)
    assert judgments.comparisons[["model_a", "model_b"]].to_numpy().tolist() == [[*"mn"]]
    fix = next(problem.fix for problem in judgments.findings if problem.code == "N107")
    assert Judgments.read(table, **fix).votes["sign"].tolist() == [-sign, sign]
    with pytest.raises(DataError, match="E110"):
        Judgments.read(table.drop(columns="annotator"))


def test_each_answer_of_many_is_compared_with_its_neighbour_and_everybody_compares_the_same():
    rows = [(f"Since {i} is so", who, i) for who in "xyz" for i in range(6)]
    rows = rows[:6] + rows[6:12][::-1] + rows[13:]  # in another order, and without the first
    judgments = Judgments.read(
        [dict(prompt="Why?", response=text, annotator=who, rating=i) for text, who, i in rows]
    )
    assert (judgments.n_comparisons, judgments.n_votes) == (5, 14)
    assert set(judgments.votes["sign"]) == {-1}


LOST = {"B": "a", "A": "b"}
UNREAD = {
    "0 and 1": (answered(["0", "1", "1", "0"]), {"winners": {"0": "a", "1": "b"}}),
    "-1, 0, 1": (answered(["-1", "0", "1", "1"]), {"winners": {"-1": "a", "0": "tie", "1": "b"}}),
    "a rare -1": (answered([*"01010", "-1"]), {"winners": {"0": "a", "1": "b", "-1": "tie"}}),
    "1 to 2": (answered([1, 2, 1.5, 1]), {"winners": {"high": "b", "1.5": "tie"}}),
    "a rating": (answered([-3, 2, -1, 3]), {"winners": {"high": "b"}}),
    "three of a rating": (answered([-2, 2, 0, 2]), {"winners": {"high": "b"}}),
    "one of three": (answered([0, 1, 0.5, 0]), {"winners": {"high": "a", "0.5": "tie"}}),
    "a slider": (answered(slider=[3, 97, 60, 42]), {"winners": {"high": "b", "50": "tie"}}),
    "a place in a list": (IN_LISTS.assign(choice=[0, 1, 1, 0]), {"winners": {"0": "a", "1": "b"}}),
    "words": (answered(["ja", "nein", "ja", "ja"]), {"winners": {"ja": "a", "nein": "b"}}),
    "who lost": (answered(worse=list("BAAB")), {"columns": {"winner": "worse"}, "winners": LOST}),
    "one odd row": (answered(["a", "b", "shrug", "a"]), {"winners": {"shrug": "skip"}}),
}


@pytest.mark.parametrize(("table", "fix"), UNREAD.values(), ids=UNREAD)
def test_the_direction_is_never_guessed(table, fix):
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    error = caught.value
    assert error.fix == fix
    signs = Judgments.read(table, **fix).votes["sign"].tolist()
    if error.question:
        turned = Judgments.read(table, **error.turned)
        assert turned.votes["sign"].tolist() == [-sign for sign in signs]
        # the two answers are about the first row that is shown, and are right about both ways of reading
        row = int(error.shown[0].split(":")[0].removeprefix("row ")) - 1
        of_row = turned.votes.index[turned.votes["row"] == row][0]
        names = [cell.split(" \u201c")[0] for cell in error.shown[0].split(": ", 1)[1].split(", ")[1:]]
        better = [names[0 if sign[of_row] > 0 else 1] for sign in (signs, turned.votes["sign"])]
        assert [answer.split(" is better")[0] for answer in error.answers] == better
        assert f"in row {row + 1}, " in error.question and "first answer" in error.shown[0]
        assert "preferred" not in "".join([error.question, *error.shown, *error.answers])


def test_bad_rows_are_dropped_and_counted_by_reason():
    table = good()
    table.at[2, "prompt"], table.at[5, "winner"] = None, "shrug"
    judgments = Judgments.read(table, bad_rows="drop")
    assert judgments.n_votes == 6 and judgments.votes["row"].tolist() == [0, 1, 3, 4, 6, 7]
    reasons = judgments.dropped.set_index("reason")["n"].to_dict()
    assert reasons == {"bad row: no prompt": 1, "bad row: unknown winner": 1}


def test_one_column_for_each_annotator():
    table = good(4)[["prompt", "response_a", "response_b"]]
    table = table.assign(Zoe=["a", "b", None, "a"], Ann=list("bbab"))
    judgments = Judgments.read(table, layout="wide")
    assert judgments.n_votes == 7 and judgments.n_annotators == 2
    assert judgments.votes["row"].tolist() == [0, 0, 1, 1, 2, 3, 3]
    with pytest.raises(DataError) as caught:
        Judgments.read(table)
    assert caught.value.fix == {"layout": "wide"} and "Zoe" not in str(caught.value)
    numbered = table.rename(columns={"Zoe": "ann_1", "Ann": "ann_2"})
    for odd in ({"difficulty": [1, 5, 3, 4]}, {"was_first": list("abba")}):
        read = Judgments.read(numbered.assign(**odd), layout="wide")
        assert read.votes["sign"].tolist() == judgments.votes["sign"].tolist()


BEST = {
    "ranks": dict(rank_1=2, rank_2=1, rank_3=3),
    "equal ranks": dict(rank_1=2, rank_2=1, rank_3=2),
    "scores": dict(score_1=3, score_2=5, score_3=1),
    "an order": dict(ranking="2>1>3"),
    "places": {"1st place": "answer_2", "2nd place": "answer_1", "3rd place": "answer_3"},
    "the best": dict(best=2),
}


@pytest.mark.parametrize("said", BEST.values(), ids=BEST)
def test_the_best_of_three_is_one_choice(said):
    texts = {
        "prompt": "p",
        "annotator": "x",
        "answer_1": "first",
        "answer_2": "second",
        "answer_3": "third",
    }
    judgments = Judgments.read([texts | said])
    pairs = judgments.comparisons[["response_a", "response_b"]].to_numpy().tolist()
    assert pairs == [["first", "second"], ["second", "third"]]
    assert judgments.votes["sign"].tolist() == [-1, 1]
    (note,) = [problem for problem in judgments.findings if problem.code == "N107"]
    assert note.shown and "of 1 choice" in note.what


def test_the_best_and_the_worst_are_two_choices_and_no_best_is_none():
    texts = {"prompt": "p", "annotator": "x"} | {f"option {i}": f"text {i}" for i in "abcd"}
    judgments = Judgments.read([texts | {"Most liked": "c", "Least liked": "option a"}, texts])
    pairs = judgments.comparisons[["response_a", "response_b"]].to_numpy()
    assert [a[-1] + b[-1] for a, b in pairs] == ["ab", "ac", "ad", "bc", "cd"]
    assert judgments.votes["sign"].tolist() == [-1, -1, -1, -1, 1]
    assert judgments.dropped["reason"].tolist() == ["no best answer"]


def test_ids_under_the_winner_are_not_printed():
    """The columns of the winner and of the annotator are exchanged: a command exchanges them back."""
    ids = [f"maria-{i}" for i in range(8)]
    table = good().assign(winner=ids, annotator=["a", "b"] * 4)
    (found,) = errors(table)
    assert found.code == "E107" and "maria" not in str(found)
    assert Judgments.read(table, columns=found.fix["columns"]).n_annotators == 8
    # labels that nobody knows are shown, so that the user can say what they mean
    assert "maria-0" in str(errors(table.assign(annotator=["x", "y"] * 4)))
