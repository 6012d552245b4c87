from __future__ import annotations

import pandas as pd
import pytest

from badpo.data.problems import DataError
from badpo.data.tables import annotator_hint, recognise, side_pairs


def problems(names, columns=None) -> list[str]:
    with pytest.raises(DataError) as caught:
        recognise(pd.DataFrame([["x"] * len(names)], columns=names), "votes.csv", columns)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("names", "columns", "kind"),
    [
        (["prompt", "response_a", "response_b", "winner"], None, "a_b"),
        (["prompt", "chosen", "rejected"], None, "chosen_rejected"),
        (["chosen", "rejected"], None, "chosen_rejected"),
        (
            ["q", "left", "right", "best"],
            {"prompt": "q", "response_a": "left", "response_b": "right", "winner": "best"},
            "a_b",
        ),
        (["prompt", "chosen", "rejected", "response_a", "response_b", "winner"], None, "a_b"),
    ],
)
def test_layouts(names, columns, kind):
    layout = recognise(pd.DataFrame([["x"] * len(names)], columns=names), "votes.csv", columns)
    assert layout.kind == kind
    assert set(layout.theirs) <= set(layout.frame.columns)


def test_a_mapped_column_takes_the_place_of_one_that_has_our_name():
    frame = pd.DataFrame(
        [["p", "c", "r", "wrong", "right"]], columns=["prompt", "chosen", "rejected", "annotator", "who"]
    )
    layout = recognise(frame, "votes.csv", {"annotator": "who"})
    assert layout.frame["annotator"].tolist() == ["right"]
    assert list(layout.frame.columns).count("annotator") == 1


def test_none_leaves_a_column_unused():
    frame = pd.DataFrame([["p", "c", "r", "x"]], columns=["prompt", "chosen", "rejected", "comparison_id"])
    assert not recognise(frame, "votes.csv", {"comparison_id": None}).has("comparison_id")


def test_misspelled_columns_are_named():
    (text,) = problems(["prompt", "choosen", "rejected"])
    assert 'columns missing: chosen. "chosen": Did you mean "choosen"?' in text
    assert "found: prompt, choosen, rejected" in text
    assert "looks like a chosen, rejected table" in text


def test_all_missing_columns_are_named_at_once():
    (text,) = problems(["prompt", "response_a"])
    assert "response_b, winner" in text
    assert "looks like a prompt, response_a, response_b, winner table" in text


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["prompt_ids", "chosen_ids", "rejected_ids"], "tokenised already"),
        (["prompt", "completion", "label"], "unpaired feedback (KTO)"),
        (["id", "data", "annotations"], "what another program wrote, convert: badpo import"),
        (["x", "y"], "give prompt, chosen, rejected or"),
    ],
)
def test_tables_of_other_kinds_are_recognised(names, hint):
    assert hint in problems(names)[0]


def test_wrong_mappings_are_all_reported():
    texts = problems(
        ["prompt", "chosen", "rejected", "worker"],
        {"annotater": "worker", "prompt_id": "promt", "weight": "wait"},
    )
    assert len(texts) == 3
    assert 'columns has no entry "annotater". Did you mean "annotator"?' in texts[0]
    assert 'column "promt" (for prompt_id) is not in the table. Did you mean "prompt"?' in texts[1]


def test_two_columns_of_one_name_are_refused():
    assert '2 columns are called "chosen"' in problems(["prompt", "chosen", "chosen", "rejected"])[0]


def test_annotator_hint_is_silent_without_a_likely_column():
    assert annotator_hint(["prompt", "winner"]) == ""
    assert "AnnotatorID" in annotator_hint(["AnnotatorID"])


def test_side_pairs_need_both_sides_and_no_identifier():
    assert side_pairs(["score_a", "score_b", "b_x", "a_x", "only_a", "arg_a_id", "arg_b_id", "a_to_b"]) == {
        "score_a": "score_b",
        "a_x": "b_x",
    }
