"""The commands `corpus` and `reproduce` of the paper, without training."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from badpo.cli.main import app
from badpo.data.judgments import Judgments
from badpo_paper.corpora import bundled, signed
from tests.paper.corpora import public_rows


def run(*arguments: object):
    if arguments[0] == "reproduce":
        pytest.importorskip("transformers")
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_demo_reports_missing_packages_before_its_first_result(monkeypatch):
    monkeypatch.setattr("badpo_paper.cli.find_spec", lambda module: None)
    result = run("demo")
    assert (result.exit_code, result.stdout) == (2, "") and '".[train]"' in result.stderr


@pytest.mark.parametrize("kind", ["signed", "style"])
def test_corpus_writes_votes_and_true_biases_to_separate_files(tmp_path, kind):
    out = tmp_path / "new" / "folder"
    result = run("corpus", kind, "--out", out, "--n", 60, "--seed", 3, "--json")
    assert result.exit_code == 0, result.output
    pairs, is_signed = bundled.scored_pairs(60), kind == "signed"
    corpora = [signed.build(pairs, n) if is_signed else bundled.style_votes(60, n) for n in (3, 4)]
    corpus, names = corpora[0], list(corpora[0].judgments.attribute_names)
    read = Judgments.read(out / "judgments.parquet", attributes=corpus.judgments.attributes)
    assert [c.judgments.fingerprint() == read.fingerprint() for c in corpora] == [True, False]
    n_ties = read.dropped["n"].sum()
    expected = {"judgments": read.n_votes, "ties": n_ties}
    if is_signed:
        expected = signed.measure_corpus(corpus)
    assert json.loads(result.stdout).items() >= expected.items() and bool(n_ties) == (not is_signed)
    planted = pd.read_parquet(out / "planted.parquet").set_index("pseudonym")
    in_file_order = planted.loc[corpus.judgments.annotators["pseudonym"], names].to_numpy()
    np.testing.assert_array_equal(in_file_order, corpus.planted_theta)


def test_multipref(tmp_path):
    words, out = ("corpus", "multipref", tmp_path / "rows.parquet", "-o"), tmp_path / "out"
    public_rows.multipref(120).to_parquet(tmp_path / "rows.parquet")
    result = run(*words, out)
    assert result.exit_code == 0, result.output
    assert "comparisons                            120     10,461  differs" in result.output
    assert "of 21 agree with the published statistics" in result.output
    content = json.loads(run(*words, out, "--json").output)
    expected = {"name": "comparisons", "value": 120.0, "published": 10461, "agrees": False}
    assert content["statistics"][0] == expected
    read = Judgments.read(out / "judgments.parquet")
    assert {"tie": 480 - read.n_votes} == content["left_out"]
    assert len(json.loads((out / "evaluation_prompts.json").read_text())) == 6
    for file in out.iterdir():
        assert b"worker-" not in file.read_bytes(), file


def test_ultrafeedback(tmp_path):
    train, test, out = (tmp_path / name for name in ("train.parquet", "test.parquet", "out"))
    public_rows.ultrafeedback(80).to_parquet(train)
    public_rows.ultrafeedback(100).to_parquet(test)
    for options, message in (
        (("--n", "90"), "the table has 80 rows, but 90 rows are requested"),
        (("--n", "80"), "20 questions that are not training prompts, but 300"),
    ):
        result = run("corpus", "ultrafeedback", train, test, "-o", out, *options)
        assert result.exit_code == 3 and result.output.count("E154") == 1
        assert message in result.output and not out.exists()
    result = run("corpus", "ultrafeedback", train, test, "-o", out, "--n", 80, "--signing", 20)
    assert result.exit_code == 0, result.output
    signing = json.loads((out / "signing_prompts.json").read_text())
    trained = set(Judgments.read(out / "judgments.parquet").comparisons["prompt"])
    assert len(signing) == 20 and not {prompt.split("\n\n")[0] for prompt in signing} & trained
    assert len(json.loads((out / "choice_prompts.json").read_text())) == 100
    assert {path.name for path in out.iterdir()} >= {"planted.parquet", "statistics.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nmaes", "--dry-run"), 'Did you mean "names"'),
        (("names", "--scale", "tinny", "--dry-run"), 'Did you mean "tiny"? Known: tiny, paper'),
        (
            ("names", "--data", "votes.csv", "--dry-run"),
            "at scale tiny, a file cannot replace the votes of names; it can replace the votes of multipref-length",
        ),
        (("attributes", "--data", "votes.csv", "--dry-run"), "votes.csv does not exist"),
        (("names", "--seeds", "a,b", "--dry-run"), "seeds"),
        (("names", "--seeds", "42,42", "--dry-run"), "write every seed once"),
        (("names", "--seeds", "-1", "--dry-run"), "whole numbers"),
    ],
)
def test_bad_input_gets_one_message_and_exit_code_2(tmp_path, words, message):
    result = run("reproduce", *words, "--out", tmp_path)
    assert result.exit_code == 2 and message in result.output
