"""A corpus folder holds votes without raw ids, the truth apart from them, prompts, statistics, and what to mind."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from badpo.data.judgments import Judgments
from badpo.data.problems import DataError
from badpo_paper.corpora import bundled, files
from tests.paper.corpora import public_rows


def test_multipref_folder(tmp_path):
    public_rows.multipref(120).to_parquet(tmp_path / "rows.parquet")
    rows = files.write_multipref(tmp_path / "out", tmp_path / "rows.parquet")
    assert len(rows) == 21
    read = Judgments.read(tmp_path / "out" / "judgments.parquet")
    assert read.n_votes == next(row.found for row in rows if row.name == "judgments")
    prompts = json.loads((tmp_path / "out" / "evaluation_prompts.json").read_text())
    assert len(prompts) == 6
    card = (tmp_path / "out" / "card.md").read_text()
    for told in ("ODC-By", "real people", "left out, tie", "| judgments |"):
        assert told in card
    for file in (tmp_path / "out").iterdir():
        assert b"worker-" not in file.read_bytes(), file


def test_signed_ultrafeedback_folder(tmp_path):
    public_rows.ultrafeedback(80).to_parquet(tmp_path / "train.parquet")
    public_rows.ultrafeedback(100).to_parquet(tmp_path / "test.parquet")
    out = tmp_path / "out"
    files.write_signed_ultrafeedback(
        out, tmp_path / "train.parquet", tmp_path / "test.parquet", n_pairs=80, n_signing=20
    )
    signing = json.loads((out / "signing_prompts.json").read_text())
    trained = set(Judgments.read(out / "judgments.parquet").comparisons["prompt"])
    assert len(signing) == 20 and not {prompt.split("\n\n")[0] for prompt in signing} & trained
    assert len(json.loads((out / "choice_prompts.json").read_text())) == 100
    card = (out / "card.md").read_text()
    for told in (
        "About 2,000 poor responses",
        "3949bf5f8c17",
        "MIT",
        "measures no prejudice",
        "80 drawn of 80",
    ):
        assert told in card


def test_nothing_is_written_when_prompts_run_out(tmp_path):
    public_rows.ultrafeedback(80).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="E154"):
        files.write_signed_ultrafeedback(
            tmp_path / "out", tmp_path / "rows.parquet", tmp_path / "rows.parquet", n_pairs=80
        )
    assert not (tmp_path / "out").exists()


def test_style_folder(tmp_path):
    told = files.write_style_votes(tmp_path, n_pairs=300, seed=2)
    corpus = bundled.style_votes(300, seed=2)
    read = Judgments.read(tmp_path / "judgments.parquet", attributes=corpus.judgments.attributes)
    assert read.fingerprint() == corpus.judgments.fingerprint()
    assert told["ties"] == read.dropped["n"].sum() and told["judgments"] == read.n_votes
    planted = pd.read_parquet(tmp_path / "planted.parquet").set_index("pseudonym")
    in_order = planted.loc[corpus.judgments.annotators["pseudonym"], ["length", "markdown"]].to_numpy()
    np.testing.assert_array_equal(in_order, corpus.planted_theta)
