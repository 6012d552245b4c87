from __future__ import annotations

import pytest

from badpo.attributes import Column, Length, LengthWords, Position, PythonFunction
from badpo.data.judgments import Judgments, measure_delta, measure_sides
from badpo.data.problems import ConfigError, DataError

ROWS = [
    {
        "prompt": "p",
        "response_a": "one two",
        "response_b": "one",
        "winner": "a",
        "comparison_id": "c",
        "annotator": "x",
    },
    {
        "prompt": "p",
        "response_a": "one two",
        "response_b": "one",
        "winner": "b",
        "comparison_id": "c",
        "annotator": "y",
    },
]


def problems(*attributes, rows=ROWS):
    with pytest.raises(DataError) as caught:
        Judgments.read(rows, attributes=attributes)
    return caught.value.problems


def test_scopes_side_by_side():
    attributes = [
        Length(),
        LengthWords(threshold=0),
        PythonFunction("both", lambda prompt, a, b: (len(a), len(prompt)), scope="pair", continuous=True),
        PythonFunction(
            "own", lambda vote, comparison: vote["row"] + len(comparison["response_b"]), scope="judgment"
        ),
    ]
    assert Judgments.read(ROWS, attributes=attributes).delta.tolist() == [[1, 1, 6, 3], [1, 1, 6, 4]]


def test_chat_is_measured_as_plain_text():
    rows = [
        {
            "prompt": [{"role": "user", "content": "p q"}],
            "chosen": [{"role": "assistant", "content": "one two"}],
            "rejected": [{"role": "assistant", "content": "one"}],
        }
    ]
    seen = []
    function = PythonFunction("seen", lambda prompt, response: seen.append((prompt, response)) or 0.0)
    Judgments.read(rows, attributes=[function])
    assert seen == [("p q", "one two"), ("p q", "one")]


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        (PythonFunction("bad", lambda prompt, response: 1 / 0), "ZeroDivisionError"),
        (PythonFunction("bad", lambda prompt, response: None), "TypeError"),
        (PythonFunction("bad", lambda prompt, response: float("nan")), "gives no finite number: 2 of 2"),
        (PythonFunction("bad", lambda prompt, a, b: 1.0, scope="pair"), "TypeError"),
        (PythonFunction("bad", lambda vote, comparison: vote["nothing"], scope="judgment"), "KeyError"),
    ],
)
def test_failing_functions_are_named_with_the_comparison(attribute, message):
    (found,) = problems(attribute)
    assert found.code == "E127"
    assert '"bad"' in found.what and message in found.what
    assert found.where == "first: comparison c"


def test_all_attributes_are_tried():
    fails = [PythonFunction(name, lambda prompt, response: 1 / 0) for name in ("one", "two")]
    assert [problem.code for problem in problems(*fails, Position())] == ["E127", "E127", "E129"]


def test_position_needs_to_know_the_side():
    (found,) = problems(Position())
    assert found.code == "E129"
    assert "shown_first" in found.remedy


def test_columns_of_an_attribute_must_be_there_and_hold_numbers():
    rows = [{**row, "grade_a": "high", "grade_b": 1} for row in ROWS]
    found = problems(Column("grade", "grade_a", "grade_b"), Column("other", "grade_x", "grade_b"), rows=rows)
    assert [problem.code for problem in found] == ["E128", "E128"]
    assert 'attribute column "grade_a" holds no number: 2 of 2 rows' in found[0].what
    assert 'Did you mean "grade_b"?' in found[1].what


def test_columns_must_be_the_same_for_all_votes_on_a_comparison():
    rows = [{**row, "grade_a": i, "grade_b": 0} for i, row in enumerate(ROWS)]
    (found,) = problems(Column("grade", "grade_a", "grade_b"), rows=rows)
    assert found.code == "E128"
    assert "no single value for each comparison in grade_a" in found.what
    votes = Judgments.read(rows).votes
    assert votes["grade_a"].tolist() == [0, 1]


def test_a_wrong_setting_inside_an_attribute_is_no_data_problem():
    def refuses(prompt, response):
        raise ConfigError("no tokenizer")

    with pytest.raises(ConfigError, match="no tokenizer"):
        Judgments.read(ROWS, attributes=[PythonFunction("x", refuses)])


def test_sides_are_measured_as_differences_are():
    rows = [row | {"x_a": 3.0, "x_b": 0.5} for row in ROWS]
    attributes = [Length(), LengthWords(threshold=0), Column("x", "x_a", "x_b", threshold=1)]
    judgments = Judgments.read(rows, attributes=attributes)
    sides = [measure_sides(attribute, judgments.comparisons) for attribute in attributes]
    assert [side.tolist() for side in sides] == [[[1.0, 0.0]], [[2.0, 1.0]], [[3.0, 0.5]]]
    delta = measure_delta(attributes, judgments.comparisons, judgments.votes)
    assert [float(side[0, 0] - side[0, 1]) for side in sides] == delta[0].tolist()


def test_sides_that_are_no_numbers_are_an_error():
    comparisons = Judgments.read(ROWS).comparisons
    attribute = PythonFunction("half", lambda prompt, text: float("nan") if text == "one" else 1.0)
    with pytest.raises(DataError, match="no finite number"):
        measure_sides(attribute, comparisons)


def test_each_distinct_text_is_measured_once():
    seen = []
    attribute = PythonFunction(
        "seen", lambda prompt, text: float(len(seen.append(text) or text)), continuous=True
    )
    rows = [ROWS[0] | {"comparison_id": f"c{i}", "response_b": f"other {i % 3}"} for i in range(12)]
    Judgments.read(rows, attributes=[attribute])
    assert sorted(seen) == ["one two", "other 0", "other 1", "other 2"]
