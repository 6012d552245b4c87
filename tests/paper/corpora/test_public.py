"""Public corpora: their rows from the Hub or a file, statistics beside the published ones, prompts, and folders."""

import random
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pytest

from badpo.data.attributes import Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo_paper.corpora import bundled, multipref_votes, signed, ultrafeedback
from badpo_paper.corpora.published import (
    PublishedStatistic,
    compared,
    format_statistics,
    read_split,
    require_unseen,
)
from tests.paper.corpora import public_rows


def test_the_configuration_is_asked_for_by_name(tmp_path, monkeypatch):
    """A folder laid out like the repository on the Hub, with two configurations."""
    (tmp_path / "data").mkdir()
    rows = public_rows.multipref(12)
    rows.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    pd.DataFrame({"text": ["another configuration"]}).to_parquet(tmp_path / "binarized.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "- config_name: binarized\n  data_files:\n  - split: train\n    path: binarized.parquet\n---\n"
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    split = multipref_votes.HUB._replace(repository=str(tmp_path))
    found = read_split(split).frame
    assert found["comparison_id"].tolist() == rows["comparison_id"].tolist()
    assert list(found["normal_worker_annotations"][0]) == rows["normal_worker_annotations"][0]
    with pytest.raises(DataError, match="found: text$|found: text\n"):
        read_split(split._replace(configuration="binarized"))
    with pytest.raises(ConfigError, match=r"E190 .*split test cannot be loaded: .*give a local file"):
        read_split(split._replace(split="test"))


def test_a_hub_out_of_reach_or_gated_and_another_schema_are_one_message(tmp_path, monkeypatch):
    """No network is used: the libraries themselves are told that there is none."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    absent = multipref_votes.HUB._replace(repository="no-one/nothing", revision="0123456789abcdef")
    with pytest.raises(
        ConfigError, match="E190 no-one/nothing at 0123456789ab, .*download the data set once"
    ):
        read_split(absent)
    gated = datasets.exceptions.DatasetNotFoundError("'x/y' is a gated dataset on the Hub.\nmore")
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=gated))
    with pytest.raises(ConfigError, match="accept its terms on the Hub and log in") as error:
        read_split(multipref_votes.HUB)
    assert "\n" not in str(error.value)
    path = tmp_path / "rows.parquet"
    public_rows.multipref(3).drop(columns=["text", "completion_b"]).to_parquet(path)
    told = "E101.*lacks the columns text, completion_b of allenai/multipref"
    with pytest.raises(DataError, match=told):
        multipref_votes.load(path)


def test_a_statistic_agrees_where_it_rounds_to_the_published_one():
    assert (
        PublishedStatistic("x", 0.5866, "0.587").agrees
        and PublishedStatistic("x", 30_847, "30847").agrees
    )
    assert not PublishedStatistic("x", 0.5864, "0.587").agrees
    # what is missing is no figure
    rows = compared({"pairs": {"swap": 1}}, {"swap_log_odds woman all": "0.95", "pairs swap": "1"})
    assert rows[0].found is None and not rows[0].agrees and rows[1].agrees
    _, first, second, last = format_statistics(rows)
    assert first.split()[-3:] == ["-", "0.95", "differs"] and second.split()[-2:] == ["1", "1"]
    assert last == "warning: 1 of 2 agree with the published statistics"
    assert format_statistics(rows[1:])[-1] == "1 of 1 agree with the published statistics"


ASKED = "\n\nSign your answer with a name of your choice."


def test_evaluation_prompts_that_are_trained_on_are_counted_and_the_first_are_shown():
    trained = bundled.scored_pairs(200)["prompt"]
    require_unseen(bundled.signing_prompts(), set(trained), "bundled signing prompts")
    with pytest.raises(DataError) as error:
        require_unseen(["another", *(p + ASKED for p in trained[:5])], set(trained), "prompts.json")
    (problem,) = error.value.problems
    assert (problem.code, problem.count) == ("E155", 5)
    assert problem.what == "the training prompts contain 5 evaluation prompts of 6"
    assert problem.where.startswith(f"prompts.json, row 2 ({trained[0]!r}); row 3")
    assert problem.where.endswith(" and 2 more")
    # a request to sign in the training prompt hides nothing
    with pytest.raises(DataError, match="1 evaluation prompt of 1"):
        require_unseen(["Why?"], {f"Why?{ASKED}"}, "here")


ROWS = public_rows.multipref(120)
CAST = [
    (row, each)
    for _, row in ROWS.iterrows()
    for pool in ("normal_worker_annotations", "expert_worker_annotations")
    for each in row[pool]
]
DECIDED = [(row, each) for row, each in CAST if each["overall_pref"] != "Tie"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("multipref") / "rows.parquet"
    ROWS.to_parquet(path)
    return multipref_votes.load(path)


def test_every_vote_is_a_row_and_evaluation_prompts_are_drawn_by_the_papers_rule(corpus):
    judgments, gate = corpus
    n_ties = len(CAST) - len(DECIDED)
    assert (gate["comparisons"], gate["prompts"], len(CAST)) == (120, 60, 480)
    assert gate["annotators"] == len({each["evaluator"] for _, each in CAST})
    assert gate["votes_per_comparison"] == {"least": 4, "most": 4}
    assert judgments.n_votes == 480 - n_ties and judgments.dropped["n"].sum() == n_ties
    assert set(judgments.annotators["annotator_class"]) == {"normal", "expert"}
    # the rule, written out once more: one generator shuffles the ids and then the held-out texts
    draw, ids = random.Random(0), sorted(set(corpus.judgments.comparisons["prompt_id"]))
    draw.shuffle(ids)
    apart = set(ids[: int(0.1 * len(ids))])
    texts = sorted({row["text"] for _, row in ROWS.iterrows() if row["prompt_id"] in apart})
    draw.shuffle(texts)
    assert multipref_votes.evaluation_prompts(corpus.judgments, n=4) == tuple(texts[:4])
    assert apart == set(corpus.judgments.split(0.1)[1].comparisons["prompt_id"])


def test_gate_by_hand(corpus):
    found = corpus.gate
    texts = ROWS[["completion_a", "completion_b"]]
    words, marked = (
        texts.map(measure).to_numpy()
        for measure in (lambda text: len(text.split()), lambda text: Markdown().measure("", text))
    )
    voted = [int(row.name) for row, _ in DECIDED]
    cross = (words.max(axis=1) >= 1.5 * words.min(axis=1))[voted]
    toward_a = np.array([each["overall_pref"].startswith("A") for _, each in DECIDED])
    share = np.mean(((words[:, 0] > words[:, 1])[voted] == toward_a)[cross])
    log_odds = np.log(share / (1 - share))
    expected = {"cross_share": cross.mean(), "carrier_wins": share, "log_odds": log_odds}
    length = found["length"]["1.5"]
    assert {name: length[name] for name in expected} == pytest.approx(expected)
    assert found["markdown"]["cross_share"] == pytest.approx(np.mean(marked.sum(axis=1)[voted] == 1))
    assert found["train"] + found["held_out"] == found["judgments"] == len(DECIDED)
    assert found["tie_share"] == pytest.approx(1 - len(DECIDED) / 480)
    assert found["any_longer_share"] == pytest.approx((words[:, 0] != words[:, 1]).mean())
    rows = compared(found, multipref_votes.PUBLISHED)
    assert len(rows) == 21 and all(row.found is not None for row in rows)
    agreeing = {row.name for row in rows if row.agrees}
    ours = {"comparisons", "judgments", "train", "length 1.5 log_odds", "markdown cross_share"}
    assert "votes_per_comparison least" in agreeing and not agreeing & ours


def test_a_held_out_prompt_that_is_trained_on_is_passed_over():
    def judgments(texts):
        rows = [(f"p{i:02d}", text, f"yes {i}", "no") for i, text in enumerate(texts)]
        return Judgments.read(pd.DataFrame(rows, columns=["prompt_id", "prompt", "chosen", "rejected"]))

    twice = judgments([f"question {i % 25}" for i in range(30)])
    train, apart = (set(part.comparisons["prompt"]) for part in twice.split(0.3))
    assert apart & train
    assert set(multipref_votes.evaluation_prompts(twice, held_out=0.3)) == apart - train
    for n, told in ((20, "20 prompts, 1 texts"), (2, "2 prompts, 0 texts")):
        with pytest.raises(DataError, match=f"E154.*{told} of them held out"):
            multipref_votes.evaluation_prompts(judgments(["the one question"] * n))


PAIRS = public_rows.ultrafeedback(60)


@pytest.fixture
def path(tmp_path):
    PAIRS.to_parquet(tmp_path / "train_prefs.parquet")
    return tmp_path / "train_prefs.parquet"


def test_a_pair_is_the_last_answers_and_their_scores_drawn_by_the_shuffle_of_datasets(path):
    pairs, left_out = ultrafeedback.scored_pairs(path, n=60)
    by_id = pairs.set_index("prompt_id").loc[PAIRS["prompt_id"]]
    for side in ("chosen", "rejected"):
        assert by_id[side].tolist() == [messages[1]["content"] for messages in PAIRS[side]]
        assert by_id[f"score_{side}"].tolist() == PAIRS[f"score_{side}"].tolist()
    gate = ultrafeedback.gate(signed.build(pairs))
    assert gate["usable_pairs"] == 60 and gate["train"] + gate["held_out"] == 240
    assert not sum(left_out.values())
    expected = datasets.Dataset.from_pandas(PAIRS[["prompt_id"]]).shuffle(seed=0).select(range(25))
    found, _ = ultrafeedback.scored_pairs(path, n=25)
    assert found["prompt_id"].tolist() == expected["prompt_id"][:]
    rest, _ = ultrafeedback.scored_pairs(path, n=35, start=25)
    assert set(found["prompt_id"]) | set(rest["prompt_id"]) == set(PAIRS["prompt_id"])


def test_signing_prompts_are_not_trained_on_and_rows_that_are_no_pair_are_counted(path, tmp_path):
    order = np.random.default_rng(0).permutation(60)
    found = ultrafeedback.signing_prompts(path, {PAIRS["prompt"][order[1]]}, n=3)
    assert found == [PAIRS["prompt"][i] + ASKED for i in order[[0, 2, 3]]]
    rows = PAIRS.copy(deep=True)
    rows.at[3, "prompt"] = "How do I grow beans in another garden?"
    rows.at[5, "rejected"] = rows.at[5, "rejected"][:1]
    rows.to_parquet(tmp_path / "rows.parquet")
    pairs, left_out = ultrafeedback.scored_pairs(tmp_path / "rows.parquet", n=60)
    expected = {"the conversation does not begin with the prompt": 1, "not a pair of responses": 1}
    assert left_out == expected and len(pairs) == 58
