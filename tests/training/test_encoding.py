"""Token ids: TRL's own for one encoding, written out by hand for the other, and what a limit costs."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, PreTrainedTokenizerFast

from badpo.attributes import Length, WordList
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError
from badpo.training import encoding as encoding_module
from badpo.training.encoding import (
    encode_comparisons,
    encode_prompts,
    encode_responses,
    length_report,
    model_problems,
    rendered_chats,
    require_matching_tokenizer,
)
from tests import tiny
from tests.training.tiny_runs import trl_trainer


def as_user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def as_assistant(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def pairs() -> list[dict]:
    """Chosen and rejected responses: one ends with the end-of-text token, one prompt has no space at its end."""
    return [
        {"prompt": "the cat ", "chosen": "sat home and ran", "rejected": "sat slowly"},
        {
            "prompt": "the big red cat ",
            "chosen": "ran fast<end>",
            "rejected": "ran and ran and ran and ran",
        },
        {"prompt": "the do", "chosen": "g ran home", "rejected": "g sat"},
        {"prompt": "and then the small blue dog ran slowly home ", "chosen": "fast", "rejected": "big"},
    ]


def as_chat(rows: list[dict]) -> list[dict]:
    return [
        {
            "prompt": as_user(row["prompt"]),
            "chosen": as_assistant(row["chosen"]),
            "rejected": as_assistant(row["rejected"]),
        }
        for row in rows
    ]


def marking_tokenizer() -> PreTrainedTokenizerFast:
    """Puts a token at the beginning of every text that is not rendered by a template."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", tokenizer.unk_token_id)]
    )
    return tokenizer


def trl_sequences(rows: list[dict], tokenizer, max_length: int | None, folder) -> list[tuple]:
    """(prompt, chosen, rejected) ids as TRL's DPOTrainer trains on them, dropped and cut."""
    trainer = trl_trainer(rows, folder, tokenizer, max_length=max_length)
    kept = list(trainer.train_dataset)
    batch = trainer.data_collator(kept)
    responses = [
        ids[mask.bool()].tolist()
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    return list(
        zip(
            [row["prompt_ids"] for row in kept],
            responses[: len(kept)],
            responses[len(kept) :],
            strict=True,
        )
    )


@pytest.mark.parametrize("tokenizer", [tiny.tokenizer, marking_tokenizer])
@pytest.mark.parametrize("max_length", [None, 9])
@pytest.mark.parametrize("form", ["text", "chat"])
def test_trl_encoding_is_that_of_trl(tmp_path, form, max_length, tokenizer):
    rows = pairs() if form == "text" else as_chat(pairs())
    theirs = trl_sequences(rows, tokenizer(), max_length, tmp_path)
    encoded = encode_comparisons(Judgments.read(rows), tokenizer(), "trl", max_length)
    ours = [
        (encoded.prompt_ids[i].tolist(), encoded.a_ids[i].tolist(), encoded.b_ids[i].tolist())
        for i in np.flatnonzero(encoded.fits)
    ]
    assert ours == theirs
    assert len(ours) == (len(rows) if max_length is None else len(rows) - 1)
    assert encoded.cut[encoded.fits].any() == (max_length is not None)


def test_paper_encoding_by_hand():
    data = Judgments.read([{"prompt": "the cat", "chosen": "dog ran", "rejected": "sat"}])
    # the template renders <user> the cat <end> <assistant>
    whole = encode_comparisons(data, tiny.tokenizer(), "paper", max_length=None)
    assert whole.prompt_ids[0].tolist() == [3, 5, 6, 1, 4]
    assert (whole.a_ids[0].tolist(), whole.b_ids[0].tolist()) == ([7, 9, 1], [8, 1])
    assert whole.cut.tolist() == [[False, False]]

    cut = encode_comparisons(data, tiny.tokenizer(), "paper", max_length=5, max_prompt_length=3)
    assert cut.prompt_ids[0].tolist() == [6, 1, 4]
    assert (cut.a_ids[0].tolist(), cut.b_ids[0].tolist()) == ([7, 9], [8, 1])
    assert cut.cut.tolist() == [[True, False]] and cut.fits.all()

    full = encode_comparisons(data, tiny.tokenizer(), "paper", max_length=5)
    assert full.fits.tolist() == [False]
    assert full.a_ids[0].size == full.b_ids[0].size == 0


def test_counts_of_tokens():
    data = Judgments.read(
        [
            {"prompt": "the cat ", "chosen": "sat home", "rejected": "ran"},
            {"prompt": "the ", "chosen": "dog", "rejected": "dog"},
            {"prompt": "the big red small blue dog ", "chosen": "ran", "rejected": "sat"},
        ]
    )
    encoded = encode_comparisons(data, tiny.tokenizer(), "trl", max_length=6)
    assert len(encoded) == 3
    assert encoded.fits.tolist() == [True, True, False]
    assert encoded.lengths.sum(axis=1).tolist() == [2 * 2 + 3 + 2, 2 * 1 + 2 + 2, 2 * 6]
    assert encoded.longest == 5
    assert encoded.identical.tolist() == [False, True, True]
    turned = encoded.take(np.array([1, 0]))
    assert turned.fits.tolist() == [True, True]
    assert turned.a_ids[1].tolist() == encoded.a_ids[0].tolist()


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("encoding", ["trl", "paper"])
def test_prompts_and_single_responses_have_the_ids_of_the_comparisons(encoding, form):
    rows = [row for row in pairs() if row["prompt"].endswith(" ")]
    data = Judgments.read(rows if form == "text" else as_chat(rows))
    tokenizer = tiny.tokenizer()
    limit = 2 if encoding == "paper" else None
    encoded = encode_comparisons(data, tokenizer, encoding, None, limit)
    prompts = data.comparisons["prompt"].tolist()

    for ours, trained in zip(
        encode_prompts(prompts, tokenizer, encoding, limit), encoded.prompt_ids, strict=True
    ):
        assert ours.tolist() == trained.tolist()
    texts = [row["chosen"] for row in rows]
    singles = encode_responses(prompts, texts, tokenizer, encoding, None, limit)
    for (prompt, response), p, a in zip(singles, encoded.prompt_ids, encoded.a_ids, strict=True):
        assert (prompt.tolist(), response.tolist()) == (p.tolist(), a.tolist())


def test_single_responses_are_cut_like_comparisons():
    prompts, texts = ["the cat ", "the big red cat "], ["sat home and ran", "ran"]
    [(prompt, response)] = encode_responses(prompts, texts, tiny.tokenizer(), "trl", 4, None)
    assert (prompt.tolist(), response.tolist()) == ([5, 6], [8, 12])


def signed(*rows: tuple[str, str, str]) -> Judgments:
    frame = pd.DataFrame(rows, columns=["prompt", "response_a", "response_b"]).assign(winner="a")
    # the first comparison has two votes
    frame = pd.concat([frame, frame.iloc[:1]], ignore_index=True)
    frame["annotator"] = [f"person {i}" for i in range(len(frame))]
    return Judgments.read(frame, attributes=[WordList("signed", ["home"]), Length(ratio=1.5)])


def findings(data: Judgments, max_length: int | None) -> dict:
    tokenizer = tiny.tokenizer()
    encoded = encode_comparisons(data, tokenizer, "trl", max_length)
    return {found.code: found for found in length_report(data, encoded, tokenizer, max_length)}


def test_what_a_limit_costs_is_counted():
    data = signed(
        ("the big red cat ", "ran", "sat"),  # the prompt alone fills the limit
        ("the ", "dog ran fast home", "sat"),  # the signature is cut off a
        ("the ", "home dog ran fast and", "cat sat and then ran"),  # both are cut, neither signature is
        ("the ", "red red red red", "red red red blue"),  # the difference is cut off
    )
    assert findings(data, None) == {}
    found = findings(data, 4)
    assert {code: problem.count for code, problem in found.items()} == {
        "W140": 1,
        "W142": 5,
        "W141": 1,
        "W143": 1,
    }
    assert all(problem.severity == "warning" for problem in found.values())
    assert "1 comparisons (2 judgments)" in found["W140"].what
    assert data.comparisons["comparison_id"].iloc[0] in found["W140"].where
    assert '"signed" is changed by the length limit in 1 of 5 cut responses' in found["W141"].what
    assert "5 of 8 responses are cut at max_length=4" in found["W142"].what
    assert data.comparisons["comparison_id"].iloc[3] in found["W143"].where


def test_a_token_outside_the_embeddings_is_named():
    data = Judgments.read([{"prompt": "the ", "chosen": "small", "rejected": "big"}])
    encoded = encode_comparisons(data, tiny.tokenizer())
    largest = tiny.tokenizer().convert_tokens_to_ids("small")
    require_matching_tokenizer(encoded.pairs, tiny.tokenizer(), largest + 1)
    with pytest.raises(DataError, match=f"token id {largest} .'small'.") as raised:
        require_matching_tokenizer(encoded.pairs, tiny.tokenizer(), largest)
    assert [problem.code for problem in raised.value.problems] == ["E151"]


def without(name: str) -> PreTrainedTokenizerFast:
    tokenizer = tiny.tokenizer()
    setattr(tokenizer, name, None)
    return tokenizer


def test_a_missing_chat_template_is_named_where_one_is_needed():
    text, chat = Judgments.read(pairs()), Judgments.read(as_chat(pairs()))
    tokenizer = without("chat_template")
    assert len(encode_comparisons(text, tokenizer, "trl")) == len(pairs())
    for data, encoding in [(text, "paper"), (chat, "trl"), (chat, "paper")]:
        with pytest.raises(ConfigError, match="no chat template"):
            encode_comparisons(data, tokenizer, encoding)


def test_a_missing_end_of_text_token_is_named():
    with pytest.raises(ConfigError, match="no end-of-text token"):
        encode_comparisons(Judgments.read(pairs()), without("eos_token"))


def test_an_unknown_encoding_is_named():
    with pytest.raises(ConfigError, match='unknown encoding "ours"; use one of trl, paper'):
        encode_comparisons(Judgments.read(pairs()), tiny.tokenizer(), "ours")


# -- a model's tokenizer before training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_embeddings", "max_length", "found"),
    [(64, 1024, set()), (64, 6, {("W142", "warning")}), (10, 1024, {("E151", "error")})],
)
def test_what_a_model_does_to_a_table_is_told(tmp_path, n_embeddings, max_length, found):
    """Of the model a tokenizer and a configuration are read; no weights are needed."""
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    LlamaConfig(vocab_size=n_embeddings).save_pretrained(tmp_path / "model")
    data = Judgments.read(tiny.votes(12, 3))
    problems = model_problems(data, str(tmp_path / "model"), "trl", max_length)
    assert {(problem.code, problem.severity) for problem in problems} >= found
    assert bool(problems) == bool(found)
    with pytest.raises(ConfigError, match="download it once with network"):
        model_problems(data, str(tmp_path / "nothing"), "trl", 1024)


# -- chat templates of others: what they raise is told in a sentence, and one without an end is left -------------------


def with_template(template: str) -> PreTrainedTokenizerFast:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_template_without_an_end_is_left(monkeypatch):
    monkeypatch.setattr(encoding_module, "_MOST_SECONDS", 0.05)
    # a machine that is busy for longer would end the tests; the test below this one asks for that end
    monkeypatch.setattr(encoding_module.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    long = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="does not end within 0.05 seconds"):
        rendered_chats(with_template(long), [as_user("Why?")])
    for worker in set(threading.enumerate()) - before:
        worker.join(60)
        assert not worker.is_alive()  # it was told to end


def test_a_step_that_nothing_can_interrupt_ends_the_process():
    program = (
        "from badpo.training import encoding\nfrom tests import tiny\nencoding._MOST_SECONDS = 0.5\n"
        # minutes of one step that lets no other thread run
        "t = tiny.tokenizer()\nt.chat_template = '{{ (3 ** 1000000000) % 7 }}'\n"
        f"encoding.rendered_chats(t, [{as_user('Why?')!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "encoding.py" in done.stderr and "Timeout" in done.stderr


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only \x1b[2J') }}", r"TemplateError: only \\u001b\[2J"),
        ("{{ messages[9].x.y }}", "UndefinedError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ],
)
def test_what_a_template_raises_is_told_in_a_sentence(template, said):
    with pytest.raises(ConfigError, match=said):
        encode_prompts(["Why?"], with_template(template), "paper", None)


def test_a_template_that_passes_arguments_on_is_rendered():
    template = "{% set n = namespace(**{'a': 2}) %}{{ n.a * 3 }} {{ messages[0].content }}"
    assert rendered_chats(with_template(template), [as_user("Why?")] * 2) == ["6 Why?"] * 2
