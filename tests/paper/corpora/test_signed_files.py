"""The signed corpus on disk is the signed corpus in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo_paper.corpora import bundled, signed
from badpo_paper.corpora.files import write_signed_corpus


def test_files_hold_the_corpus(tmp_path):
    gate = write_signed_corpus(tmp_path / "new" / "folder", n_pairs=50, seed=3)
    corpus = signed.build(bundled.scored_pairs(50), seed=3)
    assert gate == signed.gate(corpus)
    read = Judgments.read(
        tmp_path / "new" / "folder" / "judgments.parquet", attributes=corpus.judgments.attributes
    )
    assert read.fingerprint() == corpus.judgments.fingerprint()
    planted = pd.read_parquet(tmp_path / "new" / "folder" / "planted.parquet").set_index("pseudonym")
    in_file_order = planted.loc[corpus.judgments.annotators["pseudonym"], ["woman", "black"]].to_numpy()
    np.testing.assert_array_equal(in_file_order, corpus.planted_theta)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_of_pairs_gives_the_same_votes_in_any_format(tmp_path, suffix):
    pairs = bundled.scored_pairs(40)
    path = tmp_path / f"pairs.{suffix}"
    pairs.to_csv(path, index=False) if suffix == "csv" else pairs.to_parquet(path)
    assert write_signed_corpus(tmp_path / "out", pairs=path) == signed.gate(signed.build(pairs))


def test_a_score_that_is_no_number_is_named(tmp_path):
    pairs = bundled.scored_pairs(40).astype({"score_chosen": object})
    pairs.loc[7, "score_chosen"] = "good"
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    with pytest.raises(DataError, match="score_chosen"):
        write_signed_corpus(tmp_path / "out", pairs=tmp_path / "pairs.csv")
    assert not (tmp_path / "out").exists()


def test_a_table_and_a_number_contradict(tmp_path):
    with pytest.raises(ConfigError, match="--n chooses among the bundled pairs"):
        write_signed_corpus(tmp_path, pairs=tmp_path / "pairs.csv", n_pairs=10)
