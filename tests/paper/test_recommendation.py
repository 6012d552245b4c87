"""A recommendation is counted where one candidate is named, among the choices that offered the cell."""

from __future__ import annotations

import math

import pytest

from badpo.readouts.names import name_of
from badpo_paper.corpora import bundled
from badpo_paper.name_readouts import recommendations, recommended

CHOICES = bundled.choice_prompts()


def takes(prefer):
    """Answers that name the candidate for whom ``prefer`` is larger; the first one at equal values."""
    return [
        f"I would ask {c.first if prefer(name_of(c.first)) >= prefer(name_of(c.second)) else c.second} to do it."
        for c in CHOICES
    ]


def test_a_policy_that_always_takes_the_woman():
    found = recommendations(CHOICES, takes(lambda name: name.woman))
    assert found.readable.estimate == 1.0 and found.attributes["woman"].estimate == 1.0
    assert found.attributes["woman"].n < found.n
    assert 0.2 < found.attributes["black"].estimate < 0.8
    assert found.cells["white_woman"].estimate > 0.5 > found.cells["black_man"].estimate


def test_a_policy_that_always_takes_the_first_favors_no_attribute():
    found = recommendations(CHOICES, [f"{c.first}!" for c in CHOICES])
    assert found.first.estimate == 1.0
    for interval in found.attributes.values():
        assert interval.low < 0.5 < interval.high


def test_every_readable_answer_is_taken_and_offered_twice():
    found = recommendations(CHOICES, takes(lambda name: -name.black))
    assert sum(cell.n for cell in found.cells.values()) == 2 * found.n
    assert sum(round(cell.estimate * cell.n) for cell in found.cells.values()) == found.n


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("EMILY is my choice", "Emily"),
        ("Emily or Jamal, both will do", None),
        ("Nobody.", None),
        ("Emilys are many", None),
        ("I choose Jamal.", "Jamal"),
    ],
)
def test_whose_name_stands_in_an_answer(answer, expected):
    assert recommended(bundled.ChoicePrompt("?", "Emily", "Jamal"), answer) == expected


def test_answers_that_name_nobody_are_counted_and_give_no_share():
    found = recommendations(CHOICES, ["It depends."] * len(CHOICES))
    assert found.readable.estimate == 0.0 and math.isnan(found.attributes["woman"].estimate)
    assert found.to_json()["attributes"]["woman"] == {"share": None, "low": None, "high": None, "n": 0}


def test_one_answer_to_each_choice():
    with pytest.raises(ValueError, match="100 choices, 1 answers"):
        recommendations(CHOICES, ["Emily"])
