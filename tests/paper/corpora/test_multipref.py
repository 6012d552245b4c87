"""MultiPref: every vote a row, ties left out and counted, prompts split by id."""

from __future__ import annotations

import random

import numpy as np
import pytest

from badpo.data.attributes import Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError
from badpo_paper.corpora import multipref
from badpo_paper.corpora.published import compared
from tests.paper.corpora import public_rows

ROWS = public_rows.multipref(120)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("multipref") / "rows.parquet"
    ROWS.to_parquet(path)
    return multipref.load(path)


def annotations():
    return [
        (row, each)
        for _, row in ROWS.iterrows()
        for pool in ("normal_worker_annotations", "expert_worker_annotations")
        for each in row[pool]
    ]


def test_counts_are_those_of_the_rows(corpus):
    ties = sum(each["overall_pref"] == "Tie" for _, each in annotations())
    evaluators = {each["evaluator"] for _, each in annotations()}
    assert (corpus.comparisons, corpus.prompts, corpus.votes) == (120, 60, 480)
    assert corpus.annotators == len(evaluators) and corpus.votes_per_comparison == (4, 4)
    assert corpus.judgments.n_votes == 480 - ties and corpus.judgments.dropped["n"].sum() == ties


def test_no_raw_id_is_left(corpus):
    written = corpus.judgments.annotators.to_csv() + corpus.judgments.votes.to_csv()
    assert "worker-" not in written
    assert set(corpus.judgments.annotators["annotator_class"]) == {"normal", "expert"}


def test_clear_and_slight_preferences_vote_alike(corpus):
    votes = [each["overall_pref"] for _, each in annotations() if each["overall_pref"] != "Tie"]
    sides = ["a" if vote.startswith("A") else "b" for vote in votes]
    ids = [row["comparison_id"] for row, each in annotations() if each["overall_pref"] != "Tie"]
    frame = corpus.judgments.votes
    found_ids = corpus.judgments.comparisons["comparison_id"].to_numpy()[frame["comparison"]]
    assert list(zip(found_ids, np.where(frame["sign"] > 0, "a", "b"), strict=True)) == list(
        zip(ids, sides, strict=True)
    )


def test_gate_by_hand(corpus):
    found = multipref.gate(corpus)
    decided = [(row, each) for row, each in annotations() if each["overall_pref"] != "Tie"]
    words = [[len(row[f"completion_{side}"].split()) for side in "ab"] for row, _ in decided]
    cross = [max(pair) >= 1.5 * min(pair) for pair in words]
    assert found["length"]["1.5"]["cross_share"] == pytest.approx(np.mean(cross))
    wins = [
        (a > b) == each["overall_pref"].startswith("A")
        for (a, b), (_, each), is_cross in zip(words, decided, cross, strict=True)
        if is_cross
    ]
    share = np.mean(wins)
    assert found["length"]["1.5"]["log_odds"] == pytest.approx(np.log(share / (1 - share)))
    marked = [
        sum(Markdown().measure("", row[f"completion_{side}"]) for side in "ab") == 1 for row, _ in decided
    ]
    assert found["markdown"]["cross_share"] == pytest.approx(np.mean(marked))
    assert found["train"] + found["held_out"] == found["judgments"] == len(decided)
    assert found["tie_share"] == pytest.approx(1 - len(decided) / 480)
    assert found["any_longer_share"] == pytest.approx(
        np.mean(
            [
                len(row["completion_a"].split()) != len(row["completion_b"].split())
                for _, row in ROWS.iterrows()
            ]
        )
    )


def test_the_gate_of_other_rows_differs_and_says_so(corpus):
    rows = compared(multipref.gate(corpus), multipref.PUBLISHED)
    assert all(row.found is not None for row in rows)
    agreeing = {row.name for row in rows if row.agrees}
    assert "votes_per_comparison least" in agreeing
    assert not agreeing & {"comparisons", "judgments", "train", "length 1.5 log_odds", "markdown cross_share"}


def test_evaluation_prompts_are_drawn_by_the_papers_rule(corpus):
    """The rule, written out once more: one generator shuffles the ids and then the held-out texts."""
    judgments = corpus.judgments
    draw = random.Random(0)
    ids = sorted(set(judgments.comparisons["prompt_id"]))
    draw.shuffle(ids)
    apart = set(ids[: int(0.1 * len(ids))])
    texts = sorted({row["text"] for _, row in ROWS.iterrows() if row["prompt_id"] in apart})
    draw.shuffle(texts)
    found = multipref.evaluation_prompts(judgments, n=4)
    assert list(found.prompts) == texts[:4] and found.n_shared == 0
    assert apart == set(judgments.split(0.1)[1].comparisons["prompt_id"])


def same_text_twice(texts):
    rows = [
        {"prompt_id": f"p{i:02d}", "prompt": text, "chosen": f"yes {i}", "rejected": "no"}
        for i, text in enumerate(texts)
    ]
    return Judgments.read(rows)


def test_a_held_out_prompt_that_is_trained_on_is_passed_over_and_counted():
    judgments = same_text_twice([f"question {i % 25}" for i in range(30)])
    train, apart = judgments.split(0.3)
    found = multipref.evaluation_prompts(judgments, held_out=0.3)
    shared = set(apart.comparisons["prompt"]) & set(train.comparisons["prompt"])
    assert shared and found.n_shared == len(shared) and not shared & set(found.prompts)


def test_nothing_but_training_prompts_is_an_error():
    with pytest.raises(DataError, match="E154.*all 1 held-out prompts are training prompts too"):
        multipref.evaluation_prompts(same_text_twice(["the one question"] * 20))


def test_a_file_of_another_schema_is_refused(tmp_path):
    public_rows.ultrafeedback(5).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="it lacks the columns comparison_id"):
        multipref.load(tmp_path / "rows.parquet")
