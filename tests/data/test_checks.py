"""What is legal in a table and still wrong for the statistics, each by its code."""

import numpy as np
import pytest

from badpo.attributes import Column, Emoji, Length, LengthWords, Markdown, Position, PythonFunction
from badpo.data.checks import check
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem


def table(n: int = 400, n_annotators: int = 8, share: float = 0.5, seed: int = 0) -> list[dict]:
    """Two votes on each comparison; the sides differ in Markdown with probability ``share``."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in range(n):
        a = "- point" if rng.random() < share else "point"
        texts = {"response_a": a, "response_b": "other point"}
        pair = texts | {"prompt": f"p{c}", "comparison_id": f"c{c}"}
        for k in rng.choice(n_annotators, 2, replace=False):
            rows.append(pair | {"winner": rng.choice(["a", "b"]), "annotator": f"person {k}"})
    return rows


def found(rows, *attributes) -> dict[str, Problem]:
    problems = check(Judgments.read(rows, attributes=attributes))
    return {problem.code: problem for problem in problems}


TABLE = table()
WORDS = LengthWords(threshold=0, name="words")


def test_healthy_tables_have_nothing_to_mend_and_errors_come_first():
    assert found(TABLE, Markdown()) == {}
    assert list(found([*TABLE, TABLE[0] | {"winner": "tie"}], Markdown())) == ["N130"]
    rows = [*table(share=0.1), {**table(1)[0], "winner": "tie"}]
    problems = found(rows, Markdown(), Emoji()).values()
    assert [problem.severity for problem in problems] == ["error", "warning", "notice"]
    assert "W121" not in found(table(n=400, share=0.4), Markdown())
    assert "W122" not in found([row | {"shown_first": "a"} for row in TABLE], Position())


ODD = PythonFunction("odd", lambda prompt, text: int(prompt[1:]) % 2)
ALIKE = [row | {"response_a": "one", "response_b": "two"} for row in TABLE]
ONE = [row | {"annotator": "x"} for row in TABLE[::2]]
HALF_KNOWN = [row | {"shown_first": "a" if i % 2 else None} for i, row in enumerate(TABLE)]


@pytest.mark.parametrize(
    ("rows", "attribute", "code", "what"),
    [
        (TABLE, Emoji(), "E120", "is 0 for every response"),
        (TABLE, ODD, "E121", "0 of 800 judgments"),
        (TABLE, LengthWords(threshold=99), "E121", "by more than 99"),
        (ALIKE, Length(), "E121", "in 0 of"),
        (table(share=0.03), Markdown(), "W121", "judgments of 800"),
        (table(n=150), Markdown(), "W121", "judgments of 300"),
        (table(share=1.0), Markdown(), "W122", "100.0% of judgments"),
        (ONE, Markdown(), "W111", "1 annotator"),
        (TABLE[::2], Markdown(), "W125", "judged by two annotators"),
        (HALF_KNOWN, Position(), "W127", "400 of 800 judgments do not say"),
    ],
)
def test_what_an_attribute_cannot_tell(rows, attribute, code, what):
    problem = found(rows, attribute)[code]
    assert what in problem.what and problem.severity == {"E": "error", "W": "warning"}[code[0]]


def test_who_cast_most_votes_and_who_takes_the_same_side_whatever_stands_there():
    rows = table(n=300, n_annotators=60)
    rows += [row | {"annotator": "busy"} for row in rows[::2]]
    assert "33%" in found(rows, Markdown())["W114"].what
    alone = [row | {"annotator_class": ["people", "model"][row["annotator"] == "busy"]} for row in rows]
    assert "W114" not in found(alone, Markdown())
    rows = table(n=100, n_annotators=5)
    assert "W115" not in found(rows, Markdown())
    rows += [row | {"annotator": "left", "winner": "a"} for row in rows[::2]]
    problem = found(rows, Markdown())["W115"]
    assert "1 annotator nearly always chose the same side" in problem.what and problem.count == 100
    assert "W115" not in found([row | {"winner": "a"} for row in rows], Markdown())


def test_annotators_without_a_cross_group_vote_and_those_who_never_changed_sides():
    alike = next(row for row in TABLE if row["response_a"] == "point")
    problem = found([*TABLE, alike | {"annotator": "newcomer"}], Markdown())["W123"]
    assert problem.count == 1 and "1 annotator of 9" in problem.what
    order = [row | {"shown_first": "a" if row["annotator"] < "person 5" else None} for row in TABLE]
    problems = found([*order, alike | {"annotator": "newcomer", "shown_first": "b"}], Position())
    assert "W123" not in problems and "3 annotators never did" in problems["W127"].what
    rows = table(n_annotators=20)
    always = [row for row in rows[::40] if row["response_a"] == "- point"]
    rows += [row | {"annotator": "newcomer", "winner": "a"} for row in always]
    problem = found(rows, Markdown())["W124"]
    assert (problem.count, problem.what) == (1, "1 annotator always sided one way")


def test_groups_that_share_no_comparison_and_votes_that_go_against_the_scores():
    first, second = table(n=300, seed=1), table(n=200, seed=2)
    ids = ("comparison_id", "annotator")
    apart = [row | {name: f"other {row[name]}" for name in ids} for row in second]
    what = found([*first, *apart], Markdown())["W125"].what
    assert "2 groups" in what and "(8 + 8)" in what
    bridge = {**next(row for row in apart if row["response_a"] == "- point"), "annotator": "person 0"}
    assert "W125" not in found([*first, *apart, bridge], Markdown())
    scores = {"score_a": 8.0, "score_b": 2.0}
    told = found([row | scores | {"winner": "b"} for row in TABLE])["W135"]
    assert "800 of 800 judgments" in told.what and "score_a and score_b" in told.where
    for columns in (scores, scores | {"winner": "a"}, {"winner": "b", "words_a": 8.0, "words_b": 2.0}):
        assert "W135" not in found([row | columns for row in TABLE])


def test_attributes_that_say_the_same_or_nearly_so_or_follow_from_others():
    problem = found(TABLE, WORDS, LengthWords(threshold=0, unit=10, name="tens"), Markdown())["E126"]
    assert problem.what.startswith('"words" and "tens" say the same')
    assert "W126" not in found(TABLE, WORDS, Markdown())
    drawn = np.random.default_rng(0).integers(0, 4, (400, 4)).tolist()
    rows = [
        row | {"x_a": a, "x_b": b, "y_a": c, "y_b": d, "z_a": a + c, "z_b": b + d}
        for row, (a, b, c, d) in zip(TABLE[::2], drawn, strict=True)
    ]
    what = found(rows, *(Column(name, f"{name}_a", f"{name}_b") for name in "xyz"))["E126"].what
    assert all(f'"{name}"' in what for name in "xyz") and "the same" not in what
    noise = np.random.default_rng(0).normal(size=400) * 0.1
    rows = [row | {"x_a": len(row["response_a"]), "x_b": 0.0, "y_b": 0.0} for row in TABLE]
    rows = [row | {"y_a": row["x_a"] + noise[int(row["comparison_id"][1:])]} for row in rows]
    problem = found(rows, Column("x", "x_a", "x_b"), Column("y", "y_a", "y_b"))["W126"]
    assert problem.what.startswith('"x" and "y" nearly say the same')


@pytest.mark.parametrize("attributes", [(), (Markdown(),)])
def test_an_empty_part_can_be_checked(attributes):
    empty = Judgments.read(TABLE, attributes=attributes).take(np.zeros(800, dtype=bool))
    assert {problem.severity for problem in check(empty)} <= {"error"}
