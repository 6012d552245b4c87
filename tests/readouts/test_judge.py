"""A judge reads a whole conversation up to its end, alike in every batch, and refuses what is no reward model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from badpo.data.problems import ConfigError
from badpo.readouts import judge as judging
from badpo.readouts.judge import checked_judge, judge_answers, judge_scores, load_judge, strip_markdown
from tests.readouts import policies

TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<assistant>' }}{{ m['content'] }}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PROMPTS = ["Why?", "How much rice do I boil for two people and a dog?", "Why is the river high?"]
ANSWERS = ["So.", "- One cup.\n- Two cups of **water**.", "It rained in spring. " * 12]
SHAPE = {
    "vocab_size": 330,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


def tokenizer(**changes):
    tok = policies.tokenizer()
    tok.chat_template = TEMPLATE
    for name, value in changes.items():
        setattr(tok, name, value)
    return tok


def reward_model(**changes):
    torch.manual_seed(0)
    settings = {**SHAPE, "num_labels": 1, "pad_token_id": 0} | changes
    return Qwen3ForSequenceClassification(Qwen3Config(**settings)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("judge")
    reward_model().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def judge(folder):
    return load_judge(str(folder))


def conversation(prompt, answer):
    return f"<user>{prompt}<end>\n<assistant>{answer}<end>\n"


def plain_score(judge, ids):
    """The head on the last position of one unpadded sequence."""
    with torch.no_grad():
        hidden = judge.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        return float(judge.model.score(hidden)[0])


def test_scores_are_those_of_whole_conversations_one_by_one(judge):
    found, n_cut = judge_scores(judge, PROMPTS, ANSWERS)
    expected = [
        plain_score(judge, judge.tokenizer(conversation(p, a))["input_ids"])
        for p, a in zip(PROMPTS, ANSWERS, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert n_cut == 0 and len(set(np.round(expected, 4))) == 3


@pytest.mark.parametrize("batch", [1, 2])
def test_the_batch_changes_no_score(judge, batch, monkeypatch):
    together = judge_scores(judge, PROMPTS, ANSWERS)[0]
    monkeypatch.setattr(judging, "BATCH", batch)
    np.testing.assert_allclose(judge_scores(judge, PROMPTS, ANSWERS)[0], together, rtol=1e-5, atol=1e-6)


def test_a_model_without_padding_token_scores_one_by_one():
    judge = checked_judge(reward_model(pad_token_id=None), tokenizer(pad_token=None), "tiny")
    expected = [
        plain_score(judge, judge.tokenizer(conversation(p, a))["input_ids"])
        for p, a in zip(PROMPTS, ANSWERS, strict=True)
    ]
    np.testing.assert_allclose(judge_scores(judge, PROMPTS, ANSWERS)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_cut_conversation_keeps_the_end_that_the_head_reads(judge):
    ids = judge.tokenizer(conversation(PROMPTS[2], ANSWERS[2]))["input_ids"]
    closing = judge.tokenizer("<end>\n")["input_ids"]
    limit = len(ids) - 20
    found, n_cut = judge_scores(judge, PROMPTS, ANSWERS, max_length=limit)
    assert n_cut == 1
    kept = [*ids[: limit - len(closing)], *closing]
    assert len(kept) == limit
    np.testing.assert_allclose(found[2], plain_score(judge, kept), rtol=1e-5)
    assert abs(found[2] - plain_score(judge, ids[:limit])) > 1e-3


def test_a_prompt_that_fills_the_judge_is_an_error(judge):
    with pytest.raises(ValueError, match=r"prompt 1 takes \d+ tokens of the 30 that the judge reads"):
        judge_scores(judge, PROMPTS, ANSWERS, max_length=30)


def test_a_first_token_is_not_written_twice():
    tok = tokenizer(bos_token="<user>")

    class AddsFirst:
        chat_template, bos_token_id = tok.chat_template, tok.bos_token_id
        apply_chat_template = staticmethod(tok.apply_chat_template)

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [tok.bos_token_id] * add_special_tokens + tok(text)["input_ids"]}

    adds = checked_judge(reward_model(), AddsFirst(), "tiny")
    plain = checked_judge(reward_model(), tok, "tiny")
    np.testing.assert_allclose(
        judge_scores(adds, PROMPTS, ANSWERS)[0], judge_scores(plain, PROMPTS, ANSWERS)[0]
    )


def test_rm_minus_scores_the_stripped_answers(judge):
    found = judge_answers(judge, PROMPTS, ANSWERS, strip_markdown)
    raw, without = (
        judge_scores(judge, PROMPTS, texts)[0] for texts in (ANSWERS, list(map(strip_markdown, ANSWERS)))
    )
    assert found["n_stripped"] == 1 and abs(without[1] - raw[1]) > 1e-3
    assert (found["rm"]["mean"], found["rm_minus"]["mean"]) == pytest.approx((raw.mean(), without.mean()))
    assert found["rm"]["n"] == 3 and found["rm"]["n_cut"] == 0
    assert judge_answers(judge, PROMPTS, ANSWERS)["rm_minus"] is None


def test_answers_to_one_prompt_are_one_piece_of_evidence(judge):
    once, often = (judge_answers(judge, PROMPTS * n, ANSWERS * n)["rm"] for n in (1, 4))
    assert often["se"] == pytest.approx(once["se"], rel=1e-4) and often["n"] == 4 * len(PROMPTS)


def test_chat_messages_are_prompts_too(judge):
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    np.testing.assert_array_equal(
        judge_scores(judge, messages, ANSWERS)[0], judge_scores(judge, PROMPTS, ANSWERS)[0]
    )


def test_a_reward_model_without_chat_template_is_refused(tmp_path):
    reward_model().save_pretrained(tmp_path)
    tokenizer(chat_template=None).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no chat template") as error:
        load_judge(str(tmp_path))
    assert "\n" not in str(error.value)


def test_several_outputs_are_refused(tmp_path):
    reward_model(num_labels=3).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 3 outputs"):
        load_judge(str(tmp_path))


def test_a_language_model_is_no_judge(tmp_path):
    """Transformers would give it a random head and only print a warning."""
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_labels=1)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"is no reward model: score.weight is not in its files"):
        load_judge(str(tmp_path))


def test_nothing_there_is_one_message(tmp_path):
    with pytest.raises(ConfigError, match="cannot load the reward model") as error:
        load_judge(str(tmp_path / "nowhere"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("options", "match"), [({"answers": ["one"]}, "3 prompts, 1 answers")])
def test_arguments_that_do_not_fit(judge, options, match):
    with pytest.raises(ValueError, match=match):
        judge_scores(judge, PROMPTS, **{"answers": ANSWERS} | options)
