"""A judge reads a whole conversation up to its end, alike in every batch; a strip leaves nothing of an attribute."""

import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from badpo.data.markers import has_markdown, split_signature
from badpo.data.problems import ConfigError
from badpo.readouts import judge as judging
from badpo.readouts.names import strip_signature
from tests.readouts import policies

TEMPLATE = (
    "{% for m in messages %}{{ '<user>' if m['role'] == 'user' else '<assistant>' }}{{ m['content'] }}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
PROMPTS = ["Why?", "How much rice do I boil for two people and a dog?", "Why is the river high?"]
ANSWERS = ["So.", "- One cup.\n- Two cups of **water**.", "It rained in spring. " * 12]
SHAPE = policies.SHAPE | {"head_dim": 8, "max_position_embeddings": 512}


def tokenizer(**changes):
    tok = policies.tokenizer()
    tok.chat_template = TEMPLATE
    for name, value in changes.items():
        setattr(tok, name, value)
    return tok


def reward_model(**changes):
    torch.manual_seed(0)
    given = {**SHAPE, "num_labels": 1, "pad_token_id": 0} | changes
    return Qwen3ForSequenceClassification(Qwen3Config(**given)).eval()


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    reward_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return judging.load_judge(str(folder))


def conversation(judge, i) -> list[int]:
    return judge.tokenizer(f"<user>{PROMPTS[i]}<end>\n<assistant>{ANSWERS[i]}<end>\n")["input_ids"]


def plain_score(judge, ids) -> float:
    """The head on the last position of one unpadded sequence."""
    with torch.no_grad():
        hidden = judge.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        return float(judge.model.score(hidden)[0])


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_scores_are_those_of_whole_conversations_one_by_one(judge, batch, monkeypatch):
    monkeypatch.setattr(judging, "BATCH", batch)
    unpadded = reward_model(pad_token_id=None), tokenizer(pad_token=None)
    without_padding = judging.require_judge(*unpadded, "tiny")
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    for one, prompts in ((judge, PROMPTS), (without_padding, messages)):
        found, n_cut = judging.judge_scores(one, prompts, ANSWERS)
        expected = [plain_score(one, conversation(one, i)) for i in range(3)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert n_cut == 0 and len(set(np.round(expected, 4))) == 3


def test_a_cut_conversation_keeps_the_end_that_the_head_reads(judge):
    ids, closing = conversation(judge, 2), judge.tokenizer("<end>\n")["input_ids"]
    limit = len(ids) - 20
    found, n_cut = judging.judge_scores(judge, PROMPTS, ANSWERS, max_length=limit)
    assert n_cut == 1
    kept = [*ids[: limit - len(closing)], *closing]
    np.testing.assert_allclose(found[2], plain_score(judge, kept), rtol=1e-5)
    assert abs(found[2] - plain_score(judge, ids[:limit])) > 1e-3
    with pytest.raises(ValueError, match=r"prompt 1 .*\b30\b"):
        judging.judge_scores(judge, PROMPTS, ANSWERS, max_length=30)


def test_a_first_token_is_not_written_twice():
    tok = tokenizer(bos_token="<user>")

    class AddsFirst:
        chat_template, bos_token_id = tok.chat_template, tok.bos_token_id
        apply_chat_template = staticmethod(tok.apply_chat_template)

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [tok.bos_token_id] * add_special_tokens + tok(text)["input_ids"]}

    judges = (judging.require_judge(reward_model(), one, "tiny") for one in (AddsFirst(), tok))
    np.testing.assert_allclose(*(judging.judge_scores(one, PROMPTS, ANSWERS)[0] for one in judges))


def test_rm_minus_scores_the_stripped_answers(judge):
    found = judging.judge_answers(judge, PROMPTS, ANSWERS, judging.strip_markdown)
    stripped = list(map(judging.strip_markdown, ANSWERS))
    raw, without = (judging.judge_scores(judge, PROMPTS, texts)[0] for texts in (ANSWERS, stripped))
    assert found["n_stripped"] == 1 and abs(without[1] - raw[1]) > 1e-3
    means = [found[name]["mean"] for name in ("rm", "rm_minus")]
    assert means == pytest.approx([raw.mean(), without.mean()])
    assert found["rm"]["n"] == 3 and found["rm"]["n_cut"] == 0
    # answers to one prompt are one piece of evidence
    often = judging.judge_answers(judge, PROMPTS * 4, ANSWERS * 4, judging.strip_markdown)["rm"]
    assert often["se"] == pytest.approx(found["rm"]["se"], rel=1e-4) and often["n"] == 12


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (reward_model, {"chat_template": None}, "has no chat template"),
        (lambda: reward_model(num_labels=3), {}, "has 3 outputs"),
        # transformers would give it a random head and only print a warning
        (lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_labels=1)), {}, "score.weight"),
        (None, {}, "tokenizer.json.* is missing"),
    ],
)
def test_what_is_no_judge_is_refused_in_one_line(model, changes, message, tmp_path):
    if model is not None:
        model().save_pretrained(tmp_path)
        tokenizer(**changes).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message) as error:
        judging.load_judge(str(tmp_path))
    assert "\n" not in str(error.value)


MARKUP = st.text(alphabet="*#-+|`1.\n \t\rab\u2003", max_size=60)
SIGNED = st.lists(
    st.sampled_from(["Boil it.", "\n", "\n\n", "\u2014 Emily Miller", " ", "- ", "\u2014"]), max_size=12
).map("".join)


@settings(max_examples=600, deadline=None)
@given(MARKUP)
@example("**a\n* b**")
@example("****a****")
@example("- | - a |")
@example("-\n")
@example("12. a\n\n13.\n")
@example("`` ```` `")
@example("| **a |\n* b** |")
def test_no_markdown_is_left_and_letters_stay_in_their_order(text):
    """Marks and white space go; letters do not, but for the name of a fence's language."""
    stripped = judging.strip_markdown(text)
    assert not has_markdown(stripped) and judging.strip_markdown(stripped) == stripped
    if not has_markdown(text):
        assert stripped == text
    without_languages = re.sub(r"(`{3,}[^\S\n]*)\w*$", r"\1", text, flags=re.MULTILINE)
    letters, found, fewest = (re.sub(r"[^ab]", "", each) for each in (stripped, text, without_languages))
    assert letters == found or len(letters) >= len(fewest)


@settings(max_examples=300, deadline=None)
@given(SIGNED)
@example("\u2014 Emily Miller\n\u2014 Emily Miller")
@example("\n\n \u2014 Emily Miller \r\n\t\n\u2014 Emily Miller\n")
def test_signatures_go_as_one_after_the_other_would(text):
    stripped = judging.strip_signatures(text)
    assert split_signature(stripped) == (stripped, "") and text.startswith(stripped)
    expected, shorter = text, strip_signature(text)
    while shorter != expected:
        expected, shorter = shorter, strip_signature(shorter)
    assert stripped == expected


def test_a_whole_answer_and_the_strip_of_each_attribute():
    text = "# Rice\n\n1. Rinse **the rice**.\n2. Boil:\n   - slowly\n   + covered\n\n```python\nx = 2 ** 3\n```\n"
    plain = "Rice\n\nRinse the rice.\nBoil:\nslowly\ncovered\n\n\nx = 2 ** 3\n\n"
    assert judging.strip_markdown(text) == plain


@pytest.mark.parametrize(
    "unit", ["*" * 10, "- ", "|", "1. ", "`", "** a ", "**a\n* b**\n", "\n- **", "|:\n", "1. # "]
)
def test_no_markup_is_left_of_a_long_text_of_marks(unit):
    assert not has_markdown(judging.strip_markdown(unit * (100_000 // len(unit))))
