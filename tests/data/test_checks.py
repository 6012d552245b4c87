from __future__ import annotations

import numpy as np
import pytest

from badpo.attributes import Column, Emoji, Length, LengthWords, Markdown, Position, PythonFunction
from badpo.data.checks import check
from badpo.data.judgments import Judgments
from badpo.data.problems import Problem


def table(n: int = 400, n_annotators: int = 8, share: float = 0.5, seed: int = 0, **columns) -> list[dict]:
    """Two votes on each comparison; the sides differ in Markdown with probability ``share``."""
    rng = np.random.default_rng(seed)
    rows = []
    for c in range(n):
        a = "- point" if rng.random() < share else "point"
        for k in rng.choice(n_annotators, 2, replace=False):
            row = {"prompt": f"p{c}", "response_a": a, "response_b": "other point", "comparison_id": f"c{c}"}
            rows.append(row | {"winner": rng.choice(["a", "b"]), "annotator": f"person {k}"} | columns)
    return rows


def found(rows, *attributes) -> dict[str, Problem]:
    problems = check(Judgments.read(rows, attributes=attributes))
    return {problem.code: problem for problem in problems}


def test_a_healthy_table_has_nothing_to_mend():
    assert found(table(), Markdown()) == {}


def test_findings_of_the_reader_are_in_the_report():
    assert list(found([*table(), {**table(1)[0], "winner": "tie"}], Markdown())) == ["N130"]


def test_errors_come_first():
    rows = [*table(share=0.1), {**table(1)[0], "winner": "tie"}]
    severities = [
        problem.severity for problem in check(Judgments.read(rows, attributes=[Markdown(), Emoji()]))
    ]
    assert severities == ["error", "warning", "notice"]


def test_an_attribute_that_is_the_same_everywhere():
    problem = found(table(), Emoji())["E120"]
    assert problem.severity == "error"
    assert "is 0 for every response" in problem.what


def test_an_attribute_that_never_differs_within_a_pair():
    problem = found(table(), PythonFunction("odd prompt", lambda prompt, response: int(prompt[1:]) % 2))[
        "E121"
    ]
    assert problem.severity == "error"
    assert "0 of 800 judgments" in problem.what
    assert "by more than 99" in found(table(), LengthWords(threshold=99))["E121"].what


def test_few_cross_group_votes():
    assert "W121" in found(table(share=0.03), Markdown())
    assert "W121" in found(table(n=150), Markdown())
    assert "W121" not in found(table(n=400, share=0.4), Markdown())


def test_sides_that_always_differ():
    assert "W122" in found(table(share=1.0), Markdown())
    shown = [{**row, "shown_first": "a"} for row in table()]
    assert "W122" not in found(shown, Position())


def test_one_annotator():
    rows = [{**row, "annotator": "x"} for row in table()[::2]]
    assert found(rows, Markdown())["W111"].where.startswith("ann_")


def test_an_annotator_who_cast_most_votes():
    rows = table(n=300, n_annotators=60)
    rows += [{**row, "annotator": "busy"} for row in rows[::2]]
    assert "33%" in found(rows, Markdown())["W114"].what
    alone = [{**row, "annotator_class": "model" if row["annotator"] == "busy" else "people"} for row in rows]
    assert "W114" not in found(alone, Markdown())


def test_annotators_without_a_cross_group_vote():
    rows = table()
    rows.append({**next(row for row in rows if row["response_a"] == "point"), "annotator": "newcomer"})
    problem = found(rows, Markdown())["W123"]
    assert problem.count == 1
    assert "1 annotator of 9" in problem.what


def test_annotators_who_never_changed_sides():
    rows = table(n_annotators=20)
    rows += [
        {**row, "annotator": "newcomer", "winner": "a"}
        for row in rows[::40]
        if row["response_a"] == "- point"
    ]
    problem = found(rows, Markdown())["W124"]
    assert problem.count == 1
    assert problem.what == "1 annotator always sided one way"


def test_groups_that_share_no_comparison():
    first, second = table(n=300, seed=1), table(n=200, seed=2)
    apart = [
        {**row, "annotator": f"other {row['annotator']}", "comparison_id": f"d{row['comparison_id']}"}
        for row in second
    ]
    problem = found([*first, *apart], Markdown())["W125"]
    assert "2 groups" in problem.what and "(8 + 8)" in problem.what
    bridge = {**next(row for row in apart if row["response_a"] == "- point"), "annotator": "person 0"}
    assert "W125" not in found([*first, *apart, bridge], Markdown())


def test_nobody_shares_a_comparison():
    problem = found(table()[::2], Markdown())["W125"]
    assert "no two annotators judged the same cross-group comparison" in problem.what


def test_attributes_that_say_the_same():
    words = LengthWords(threshold=0, name="words")
    problem = found(table(), words, LengthWords(threshold=0, unit=10, name="tens"), Markdown())["E126"]
    assert problem.what.startswith('"words" and "tens" say the same')
    assert "W126" not in found(table(), words, Markdown())


def test_an_attribute_that_is_the_sum_of_two_others():
    rows = table()[::2]
    for row, (a, b, c, d) in zip(rows, np.random.default_rng(0).integers(0, 4, (len(rows), 4)), strict=True):
        row |= {"x_a": a, "x_b": b, "y_a": c, "y_b": d, "z_a": a + c, "z_b": b + d}
    what = found(rows, *(Column(name, f"{name}_a", f"{name}_b") for name in "xyz"))["E126"].what
    assert all(f'"{name}"' in what for name in "xyz")
    assert "the same" not in what


def test_attributes_that_nearly_say_the_same():
    rng = np.random.default_rng(0)
    rows = table()
    for row in rows:
        row |= {"x_a": len(row["response_a"]), "x_b": 0.0}
    for c in {row["comparison_id"] for row in rows}:
        noise = rng.normal() * 0.1
        for row in rows:
            if row["comparison_id"] == c:
                row |= {"y_a": row["x_a"] + noise, "y_b": 0.0}
    problem = found(rows, Column("x", "x_a", "x_b"), Column("y", "y_a", "y_b"))["W126"]
    assert problem.what.startswith('"x" and "y" nearly say the same')


def test_sides_of_unknown_order():
    rows = [{**row, "shown_first": "a" if i % 2 else None} for i, row in enumerate(table())]
    assert found(rows, Position())["W127"].count == 400


def test_length_on_equal_texts_is_not_called_constant():
    rows = [{**row, "response_a": "one", "response_b": "two"} for row in table()]
    assert found(rows, Length())["E121"].severity == "error"


@pytest.mark.parametrize("attributes", [(), (Markdown(),)])
def test_an_empty_part_can_be_checked(attributes):
    empty = Judgments.read(table(), attributes=attributes).take(np.zeros(800, dtype=bool))
    assert {problem.severity for problem in check(empty)} <= {"error"}


@pytest.mark.parametrize(("winner", "expected"), [("b", True), ("a", False), (None, False)])
def test_votes_that_go_against_the_scores(winner, expected):
    rows = table(score_a=8.0, score_b=2.0)
    if winner:
        rows = [row | {"winner": winner} for row in rows]
    problems = found(rows)
    assert ("W135" in problems) is expected
    if expected:
        assert "100% of 800 judgments" in problems["W135"].what
        assert "columns score_a and score_b" in problems["W135"].where


def test_other_numbers_of_the_two_sides_are_no_scores():
    rows = [row | {"winner": "b"} for row in table(words_a=8.0, words_b=2.0)]
    assert "W135" not in found(rows)


def test_scores_of_chosen_and_rejected_are_read_by_side():
    rows = [
        {"prompt": f"p{i}", "chosen": "yes", "rejected": "no", "score_chosen": 1.0, "score_rejected": 2.0}
        for i in range(40)
    ]
    assert "W135" in found(rows)
