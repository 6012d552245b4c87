"""What an attribute finds in data, counted by hand."""

from __future__ import annotations

import pytest

from badpo.attributes import ATTRIBUTES, attribute_from_config
from badpo.data.attributes import BUILT_IN, describe_attributes
from badpo.data.checks import attribute_trials
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError

LONG, MIDDLE, SHORT = "one two three four five six", "one two three four", "one two"


def judgments() -> Judgments:
    pairs = [
        (LONG, SHORT, "a"),
        (SHORT, LONG, "b"),
        (LONG, SHORT, "b"),
        (MIDDLE, LONG, "b"),
        (SHORT, "eins zwei", "a"),
    ]
    rows = [
        {"prompt": f"question {i}", "response_a": a, "response_b": b, "winner": winner}
        for i, (a, b, winner) in enumerate(pairs)
    ]
    return Judgments.read(rows)


def test_counts_and_shares():
    (trial,) = attribute_trials(judgments(), [{"type": "length", "ratio": 2}])
    assert (trial["attribute"], trial["scope"], trial["parameters"]) == ("length", "pair", {"ratio": 2.0})
    assert (trial["n_cross"], trial["cross_share"]) == (3, 0.6)
    assert trial["carrier_wins"] == pytest.approx(2 / 3)
    assert trial["ci_low"] < trial["log_odds"] < trial["ci_high"]


def test_examples_are_on_the_right_side_and_not_repeated():
    (trial,) = attribute_trials(judgments(), [{"type": "length", "ratio": 2}])
    assert trial["examples"] == {"with": [LONG], "without": [SHORT]}
    (none,) = attribute_trials(judgments(), [{"type": "length"}], n_examples=0)
    assert none["examples"] == {"with": [], "without": []}


def test_long_examples_are_cut_and_chat_is_read():
    reply = [{"role": "assistant", "content": "word\n" * 100}]
    rows = [{"prompt": "Why?", "chosen": reply, "rejected": [{"role": "assistant", "content": "no"}]}]
    rows[0]["prompt"] = [{"role": "user", "content": "Why?"}]
    (trial,) = attribute_trials(Judgments.read(rows), [{"type": "length"}])
    assert trial["examples"]["with"][0].startswith("word word")
    assert trial["examples"]["with"][0].endswith("...")
    assert len(trial["examples"]["with"][0]) == 100


def test_a_sweep_repeats_every_attribute():
    trials = attribute_trials(judgments(), [{"type": "length"}], sweep=("ratio", [1.5, 2, 4]))
    assert [trial["parameters"]["ratio"] for trial in trials] == [1.5, 2.0, 4.0]
    assert [trial["n_cross"] for trial in trials] == [4, 3, 0]
    assert trials[-1]["carrier_wins"] is None


def test_a_sweep_over_a_parameter_that_is_not_there():
    with pytest.raises(ConfigError, match='no parameter "ration"'):
        attribute_trials(judgments(), [{"type": "length"}], sweep=("ration", [1.5]))


def test_no_attribute_is_an_error():
    with pytest.raises(ConfigError, match="name an attribute"):
        attribute_trials(judgments(), [])


def test_every_attribute_has_an_example_that_works():
    rows = describe_attributes()
    assert [row["type"] for row in rows] == list(ATTRIBUTES)
    for row in rows:
        assert (
            attribute_from_config({"type": row["type"], **BUILT_IN[row["type"]].example}).scope
            == row["scope"]
        )
        assert row["what"]
        assert "`" not in row["what"]
