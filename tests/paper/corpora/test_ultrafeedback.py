"""Pairs of UltraFeedback are drawn as for the paper, and prompts to evaluate on are none of them."""

from __future__ import annotations

import datasets
import numpy as np
import pandas as pd
import pytest

from badpo.data.problems import DataError
from badpo_paper.corpora import signed, ultrafeedback
from tests.paper.corpora import public_rows

ROWS = public_rows.ultrafeedback(60)


@pytest.fixture
def path(tmp_path):
    ROWS.to_parquet(tmp_path / "train_prefs.parquet")
    return tmp_path / "train_prefs.parquet"


def test_the_draw_is_the_shuffle_of_datasets(path):
    expected = datasets.Dataset.from_pandas(ROWS[["prompt_id"]]).shuffle(seed=0).select(range(25))
    found = ultrafeedback.scored_pairs(path, n=25)
    assert found.pairs["prompt_id"].tolist() == expected["prompt_id"][:]
    assert (found.n_drawn, found.n_rows) == (25, 60)
    rest = ultrafeedback.scored_pairs(path, n=35, start=25)
    assert set(found.pairs["prompt_id"]) | set(rest.pairs["prompt_id"]) == set(ROWS["prompt_id"])


def test_a_pair_is_the_last_answers_and_their_scores(path):
    pairs = ultrafeedback.scored_pairs(path, n=60).pairs.set_index("prompt_id")
    for _, row in ROWS.iterrows():
        pair = pairs.loc[row["prompt_id"]]
        assert [pair["chosen"], pair["rejected"]] == [
            row["chosen"][1]["content"],
            row["rejected"][1]["content"],
        ]
        assert [pair["score_chosen"], pair["score_rejected"]] == [row["score_chosen"], row["score_rejected"]]


def test_rows_that_are_no_pair_are_counted_by_reason(tmp_path):
    rows = ROWS.copy(deep=True)
    rows.at[3, "prompt"] = "How do I grow beans in another garden?"
    rows.at[5, "rejected"] = rows.at[5, "rejected"][:1]
    rows.to_parquet(tmp_path / "rows.parquet")
    found = ultrafeedback.scored_pairs(tmp_path / "rows.parquet", n=60)
    assert dict(found.dropped.to_numpy().tolist()) == {
        "the conversation does not begin with the prompt": 1,
        "not a pair of responses": 1,
    }
    assert len(found.pairs) == 58


def test_the_recipe_runs_on_the_pairs(path):
    pairs = ultrafeedback.scored_pairs(path, n=60).pairs
    found = ultrafeedback.gate(signed.build(pairs))
    assert found["usable_pairs"] == 60 and found["train"] + found["held_out"] == 240


def test_too_few_rows_is_an_error(path):
    with pytest.raises(DataError, match="it has 60 rows, and 50 from position 20 on are asked for"):
        ultrafeedback.scored_pairs(path, n=50, start=20)


def test_signing_prompts_are_the_first_of_the_shuffle_that_are_not_trained_on(path):
    order = np.random.default_rng(0).permutation(60)
    trained = {ROWS["prompt"][order[1]]}
    found = ultrafeedback.signing_prompts(path, trained, n=3)
    expected = [ROWS["prompt"][i] for i in order[[0, 2, 3]]]
    assert found == [f"{prompt}\n\nSign your answer with a name of your choice." for prompt in expected]


def test_too_few_questions_is_an_error(path):
    with pytest.raises(DataError, match="60 questions that are not trained on, and 300 are asked for"):
        ultrafeedback.signing_prompts(path)


def test_pairs_that_were_imported_before_are_named_as_another_schema(tmp_path):
    pd.DataFrame({"prompt": ["why?"], "chosen": ["so"], "rejected": ["no"]}).to_csv(tmp_path / "pairs.csv")
    with pytest.raises(DataError, match="lacks the columns prompt_id, messages, score_chosen"):
        ultrafeedback.scored_pairs(tmp_path / "pairs.csv", n=1)
