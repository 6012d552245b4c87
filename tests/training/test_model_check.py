"""What a tokenizer and a length limit do to a table, found before training."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig

from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.training.encoding import model_problems
from tests import tiny


@pytest.fixture
def model(tmp_path):
    """A folder with a tokenizer and a configuration; no weights are needed."""
    tokenizer = tiny.tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")

    def with_embeddings(n: int) -> str:
        LlamaConfig(vocab_size=n).save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return with_embeddings


def judgments() -> Judgments:
    return Judgments.read(tiny.votes(12, 3))


def test_a_fitting_model_has_nothing_to_say(model):
    assert model_problems(judgments(), model(len(tiny.tokenizer())), "trl", 1024) == []


def test_a_short_limit_is_counted(model):
    problems = model_problems(judgments(), model(len(tiny.tokenizer())), "trl", 6)
    assert {problem.severity for problem in problems} == {"warning"}
    assert any("cut at max_length=6" in problem.what for problem in problems)


def test_token_ids_outside_the_embeddings_are_an_error(model):
    problems = model_problems(judgments(), model(10), "trl", 1024)
    assert [(problem.code, problem.severity) for problem in problems] == [("E151", "error")]


def test_an_unreachable_model_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="download it once with network"):
        model_problems(judgments(), str(tmp_path / "nothing"), "trl", 1024)
