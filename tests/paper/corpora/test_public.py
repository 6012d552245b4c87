"""Public corpora: rows from the Hub or a file, comparison with published statistics, and evaluation prompts."""

import random
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pytest

from badpo.data.attributes import Markdown
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError
from badpo_paper.corpora import bundled, public, signed
from badpo_paper.corpora.public import (
    PublishedStatistic,
    compare_statistics,
    format_statistics,
    read_split,
    require_unseen,
)
from tests.paper.corpora import public_rows


def test_the_configuration_of_a_data_set_is_selected_by_name(tmp_path, monkeypatch):
    """The folder has the layout of the repository on the Hub and two configurations."""
    (tmp_path / "data").mkdir()
    rows = public_rows.multipref(12)
    rows.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    pd.DataFrame({"text": ["another configuration"]}).to_parquet(tmp_path / "binarized.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "- config_name: binarized\n  data_files:\n  - split: train\n    path: binarized.parquet\n---\n"
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    split = public.MULTIPREF._replace(repository=str(tmp_path))
    frame = read_split(split).frame
    assert frame["comparison_id"].tolist() == rows["comparison_id"].tolist()
    assert list(frame["normal_worker_annotations"][0]) == rows["normal_worker_annotations"][0]
    with pytest.raises(DataError, match="found: text$|found: text\n"):
        read_split(split._replace(configuration="binarized"))
    with pytest.raises(DataError, match="(?s)E190.*could be loaded from the Hub.*name a local file"):
        read_split(split._replace(split="test"))


def test_an_unreachable_hub_a_gated_data_set_and_missing_columns_are_reported(tmp_path, monkeypatch):
    """The test uses no network: settings of the libraries say that there is none."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    absent = public.MULTIPREF._replace(repository="no-one/nothing", revision="0123456789abcdef")
    with pytest.raises(DataError, match="(?s)E190.*no-one/nothing.*download the data set once"):
        read_split(absent)
    gated = datasets.exceptions.DatasetNotFoundError("'x/y' is a gated dataset on the Hub.\nmore")
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=gated))
    with pytest.raises(DataError, match="accept its terms on the Hub and log in") as error:
        read_split(public.MULTIPREF)
    assert "more" not in str(error.value)
    path = tmp_path / "rows.parquet"
    public_rows.multipref(3).drop(columns=["text", "completion_b"]).to_parquet(path)
    with pytest.raises(DataError, match="E101.* text, completion_b"):
        public.load_multipref(path)


def test_a_statistic_agrees_if_it_rounds_to_the_published_value():
    assert (
        PublishedStatistic("x", 0.5866, "0.587").agrees
        and PublishedStatistic("x", 30_847, "30847").agrees
    )
    assert not PublishedStatistic("x", 0.5864, "0.587").agrees
    # a missing statistic does not agree
    rows = compare_statistics(
        {"pairs": {"swap": 1}}, {"swap_log_odds woman all": "0.95", "pairs swap": "1"}
    )
    assert rows[0].value is None and not rows[0].agrees and rows[1].agrees
    _, first, second, last = format_statistics(rows)
    assert first.split()[-3:] == ["-", "0.95", "differs"] and second.split()[-2:] == ["1", "1"]
    assert last == "warning: 1 of 2 agree with the published statistics"
    assert format_statistics(rows[1:])[-1] == "1 of 1 agree with the published statistics"


INSTRUCTION = "\n\nSign your answer with a name of your choice."


def test_evaluation_prompts_among_the_training_prompts_are_counted_and_listed():
    trained = bundled.scored_pairs(200)["prompt"]
    require_unseen(bundled.signing_prompts(), set(trained), "bundled signing prompts")
    with pytest.raises(DataError) as error:
        require_unseen(
            ["another", *(p + INSTRUCTION for p in trained[:5])], set(trained), "prompts.json"
        )
    (problem,) = error.value.problems
    assert (problem.code, problem.count) == ("E155", 5)
    assert problem.what == "the training prompts contain 5 evaluation prompts of 6"
    assert problem.where.startswith(f"prompts.json, row 2 ({trained[0]!r}); row 3")
    assert problem.where.endswith(" and 2 more")
    # the instruction to sign in a training prompt is ignored
    with pytest.raises(DataError, match="1 evaluation prompt of 1"):
        require_unseen(["Why?"], {f"Why?{INSTRUCTION}"}, "here")


ROWS = public_rows.multipref(120)
VOTES = [
    (row, each)
    for _, row in ROWS.iterrows()
    for pool in ("normal_worker_annotations", "expert_worker_annotations")
    for each in row[pool]
]
VOTES_WITHOUT_TIES = [(row, each) for row, each in VOTES if each["overall_pref"] != "Tie"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("multipref") / "rows.parquet"
    ROWS.to_parquet(path)
    return public.load_multipref(path)


def test_each_vote_is_a_row_and_evaluation_prompts_follow_the_rule_of_the_paper(corpus):
    judgments, statistics = corpus
    n_ties = len(VOTES) - len(VOTES_WITHOUT_TIES)
    assert (statistics["comparisons"], statistics["prompts"], len(VOTES)) == (120, 60, 480)
    assert statistics["annotators"] == len({each["evaluator"] for _, each in VOTES})
    assert statistics["votes_per_comparison"] == {"least": 4, "most": 4}
    assert judgments.n_votes == 480 - n_ties and judgments.dropped["n"].sum() == n_ties
    assert set(judgments.annotators["annotator_class"]) == {"normal", "expert"}
    # the rule of the paper: one generator shuffles the ids and then the held-out texts
    draw, ids = random.Random(0), sorted(set(corpus.judgments.comparisons["prompt_id"]))
    draw.shuffle(ids)
    held_out = set(ids[: int(0.1 * len(ids))])
    texts = sorted({row["text"] for _, row in ROWS.iterrows() if row["prompt_id"] in held_out})
    draw.shuffle(texts)
    assert public.choose_evaluation_prompts(corpus.judgments, n=4) == tuple(texts[:4])
    assert held_out == set(corpus.judgments.split(0.1)[1].comparisons["prompt_id"])


def test_statistics_equal_a_separate_computation(corpus):
    statistics = corpus.statistics
    texts = ROWS[["completion_a", "completion_b"]]
    words, marked = (
        texts.map(measure).to_numpy()
        for measure in (lambda text: len(text.split()), lambda text: Markdown().measure("", text))
    )
    voted = [int(row.name) for row, _ in VOTES_WITHOUT_TIES]
    cross = (words.max(axis=1) >= 1.5 * words.min(axis=1))[voted]
    toward_a = np.array([each["overall_pref"].startswith("A") for _, each in VOTES_WITHOUT_TIES])
    share = np.mean(((words[:, 0] > words[:, 1])[voted] == toward_a)[cross])
    log_odds = np.log(share / (1 - share))
    expected = {"cross_share": cross.mean(), "win_rate": share, "log_odds": log_odds}
    length = statistics["length"]["1.5"]
    assert {name: length[name] for name in expected} == pytest.approx(expected)
    assert statistics["markdown"]["cross_share"] == pytest.approx(
        np.mean(marked.sum(axis=1)[voted] == 1)
    )
    assert (
        statistics["train"] + statistics["held_out"]
        == statistics["judgments"]
        == len(VOTES_WITHOUT_TIES)
    )
    assert statistics["tie_share"] == pytest.approx(1 - len(VOTES_WITHOUT_TIES) / 480)
    assert statistics["any_longer_share"] == pytest.approx((words[:, 0] != words[:, 1]).mean())
    rows = compare_statistics(statistics, public.STATISTICS["multipref"])
    assert len(rows) == 21 and all(row.value is not None for row in rows)
    agreeing = {row.name for row in rows if row.agrees}
    different = {"comparisons", "judgments", "train", "length 1.5 log_odds", "markdown cross_share"}
    assert "votes_per_comparison least" in agreeing and not agreeing & different


def test_a_held_out_prompt_among_the_training_prompts_is_skipped():
    def judgments(texts):
        rows = [(f"p{i:02d}", text, f"yes {i}", "no") for i, text in enumerate(texts)]
        return Judgments.read(pd.DataFrame(rows, columns=["prompt_id", "prompt", "chosen", "rejected"]))

    repeated = judgments([f"question {i % 25}" for i in range(30)])
    train, test = (set(part.comparisons["prompt"]) for part in repeated.split(0.3))
    assert test & train
    assert set(public.choose_evaluation_prompts(repeated, held_out=0.3)) == test - train
    for n, counts in ((20, "20 prompts, 1 texts"), (2, "2 prompts, 0 texts")):
        with pytest.raises(DataError, match=f"E154.*{counts}"):
            public.choose_evaluation_prompts(judgments(["the one question"] * n))


PAIRS = public_rows.ultrafeedback(60)


@pytest.fixture
def path(tmp_path):
    PAIRS.to_parquet(tmp_path / "train_prefs.parquet")
    return tmp_path / "train_prefs.parquet"


def test_pairs_have_the_last_answers_and_scores_in_the_shuffled_order_of_datasets(path):
    pairs, left_out = public.draw_ultrafeedback(path, n=60)
    by_id = pairs.set_index("prompt_id").loc[PAIRS["prompt_id"]]
    for side in ("chosen", "rejected"):
        assert by_id[side].tolist() == [messages[1]["content"] for messages in PAIRS[side]]
        assert by_id[f"score_{side}"].tolist() == PAIRS[f"score_{side}"].tolist()
    statistics = public.measure_ultrafeedback(signed.build(pairs))
    assert statistics["usable_pairs"] == 60 and statistics["train"] + statistics["held_out"] == 240
    assert not sum(left_out.values())
    expected = datasets.Dataset.from_pandas(PAIRS[["prompt_id"]]).shuffle(seed=0).select(range(25))
    first, _ = public.draw_ultrafeedback(path, n=25)
    assert first["prompt_id"].tolist() == expected["prompt_id"][:]
    rest, _ = public.draw_ultrafeedback(path, n=35, start=25)
    assert set(first["prompt_id"]) | set(rest["prompt_id"]) == set(PAIRS["prompt_id"])


def test_signing_prompts_exclude_training_prompts_and_unusable_rows_are_counted(path, tmp_path):
    order = np.random.default_rng(0).permutation(60)
    prompts = public.signing_prompts(path, {PAIRS["prompt"][order[1]]}, n=3)
    assert prompts == [PAIRS["prompt"][i] + INSTRUCTION for i in order[[0, 2, 3]]]
    rows = PAIRS.copy(deep=True)
    rows.at[3, "prompt"] = "How do I grow beans in another garden?"
    rows.at[5, "rejected"] = rows.at[5, "rejected"][:1]
    rows.to_parquet(tmp_path / "rows.parquet")
    pairs, left_out = public.draw_ultrafeedback(tmp_path / "rows.parquet", n=60)
    expected = {"the conversation does not begin with the prompt": 1, "not a pair of responses": 1}
    assert left_out == expected and len(pairs) == 58
