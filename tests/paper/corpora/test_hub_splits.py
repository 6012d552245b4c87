"""A split comes from the Hub's files or from a local one, and what goes wrong is one message."""

from __future__ import annotations

from dataclasses import replace

import datasets
import pandas as pd
import pytest

from badpo.data.problems import ConfigError, DataError
from badpo_paper.corpora import multipref
from badpo_paper.corpora.published import read_split
from tests.paper.corpora import public_rows


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder laid out like the repository on the Hub, with two configurations."""
    folder = tmp_path / "multipref"
    (folder / "data").mkdir(parents=True)
    public_rows.multipref(12).to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    pd.DataFrame({"text": ["another configuration"]}).to_parquet(folder / "binarized.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "- config_name: binarized\n  data_files:\n  - split: train\n    path: binarized.parquet\n---\n"
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return replace(multipref.HUB, repository=str(folder))


def test_the_configuration_is_asked_for_by_name(repository):
    table = read_split(repository)
    assert table.frame["comparison_id"].tolist() == public_rows.multipref(12)["comparison_id"].tolist()
    annotations = table.frame["normal_worker_annotations"].iloc[0]
    assert [each["evaluator"] for each in annotations] == [
        each["evaluator"] for each in public_rows.multipref(12)["normal_worker_annotations"][0]
    ]


def test_another_configuration_is_another_table(repository):
    with pytest.raises(DataError, match="found: text$|found: text\n"):
        read_split(replace(repository, configuration="binarized"))


def test_a_local_file_of_another_schema_names_what_is_missing(tmp_path):
    public_rows.multipref(3).drop(columns=["text", "completion_b"]).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(
        DataError, match=r"E101.*it lacks the columns text, completion_b of allenai/multipref"
    ):
        read_split(multipref.HUB, tmp_path / "rows.parquet")


def test_a_split_that_is_not_there_is_one_message(repository):
    with pytest.raises(ConfigError, match=r"E190 .*split test cannot be loaded: .*give a local file"):
        read_split(replace(repository, split="test"))


def test_an_unreachable_hub_is_one_message(tmp_path, monkeypatch):
    """No network is used: the libraries themselves are told that there is none."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"E190 no-one/nothing at 0123456789ab, .*download it once with network"
    ):
        read_split(replace(multipref.HUB, repository="no-one/nothing", revision="0123456789abcdef"))


def test_a_gated_repository_says_how_to_be_let_in(monkeypatch):
    def refuse(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'x/y' is a gated dataset on the Hub.\nmore")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(ConfigError, match="accept its terms on the Hub and log in") as error:
        read_split(multipref.HUB)
    assert "\n" not in str(error.value)
