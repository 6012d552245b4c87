"""Token ids of both encodings, and the effects of the length limit."""

import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig

from badpo.attributes import Length, WordList
from badpo.data.judgments import Judgments
from badpo.data.privacy import EVERYONE
from badpo.data.problems import ConfigError
from badpo.objective.bias import BiasTerm
from badpo.training import encoding as encoding_module
from badpo.training.encoding import (
    EncodedComparisons,
    encode_comparisons,
    encode_prompts,
    encode_responses,
    render_chats,
    report_lengths,
)
from badpo.trl import BiasAdjustedDPOTrainer
from tests import tiny
from tests.training.tiny_runs import PLAIN, trl_trainer

WHY = [{"role": "user", "content": "Why?"}]


def rows_of(form: str) -> list[dict]:
    """Make chosen and rejected responses: one ends with the end-of-text token, one prompt has no final space."""
    texts = [
        ("the cat ", "sat home and ran", "sat slowly"),
        ("the big red cat ", "ran fast<end>", "ran and ran and ran and ran"),
        ("the do", "g ran home", "g sat"),
        ("and then the small blue dog ran slowly home ", "fast", "big"),
    ]
    rows = [dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in texts]
    if form == "text":
        return rows
    roles = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
    return [{k: [{"role": roles[k], "content": text}] for k, text in row.items()} for row in rows]


def ids_of(rows: list[dict], tokenizer, *limits, **options) -> EncodedComparisons:
    return encode_comparisons(Judgments.read(rows).comparisons, tokenizer, *limits, **options)


def marking_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer that adds a first token to each text that no template rendered."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<unk> $A", special_tokens=[("<unk>", tokenizer.unk_token_id)]
    )
    return tokenizer


def trl_sequences(rows: list[dict], tokenizer, max_length: int | None, folder) -> list[list]:
    """Token ids of prompts with chosen and rejected responses as TRL's DPOTrainer makes them."""
    trainer = trl_trainer(rows, folder, tokenizer, max_length=max_length)
    kept = list(trainer.train_dataset)
    batch = trainer.data_collator(kept)
    both = zip(batch["input_ids"], batch["completion_mask"], strict=True)
    responses = [ids[mask.bool()].tolist() for ids, mask in both]
    prompts = [row["prompt_ids"] for row in kept]
    sides = zip(prompts, responses[: len(kept)], responses[len(kept) :], strict=True)
    return [[prompt, response] for prompt, *sides in sides for response in sides]


@pytest.mark.parametrize("tokenizer", [tiny.tokenizer, marking_tokenizer])
@pytest.mark.parametrize("max_length", [None, 9])
@pytest.mark.parametrize("form", ["text", "chat"])
def test_the_encoding_trl_equals_trl(tmp_path, form, max_length, tokenizer):
    rows = rows_of(form)
    theirs = trl_sequences(rows, tokenizer(), max_length, tmp_path)
    encoded = ids_of(rows, tokenizer(), "trl", max_length)
    kept = encoded.take(np.flatnonzero(encoded.fits))
    assert [[part.tolist() for part in pair] for pair in kept.pairs] == theirs
    assert len(kept) == (len(rows) if max_length is None else len(rows) - 1)
    assert kept.cut.any() == (max_length is not None)


@pytest.mark.parametrize(
    ("limits", "prompt", "a", "b", "fits", "cut"),
    [
        # the template renders <user> the cat <end> <assistant>
        ((None, None), [3, 5, 6, 1, 4], [7, 9, 1], [8, 1], True, [False, False]),
        ((5, 3), [6, 1, 4], [7, 9], [8, 1], True, [True, False]),
        ((5, None), [3, 5, 6, 1, 4], [], [], False, [True, True]),
    ],
)
def test_the_encoding_paper_equals_ids_by_hand(limits, prompt, a, b, fits, cut):
    rows = [{"prompt": "the cat", "chosen": "dog ran", "rejected": "sat"}]
    encoded = ids_of(rows, tiny.tokenizer(), "paper", *limits)
    assert [[part.tolist() for part in pair] for pair in encoded.pairs] == [[prompt, a], [prompt, b]]
    assert encoded.fits.tolist() == [fits] and encoded.cut.tolist() == [cut]


@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("limits", [("trl", None, None), ("trl", 8, None), ("paper", 12, 2)])
def test_prompts_and_individual_responses_have_the_ids_of_the_comparisons(limits, form):
    # one prompt ends with a space
    rows, texts = ([r for i, r in enumerate(rows_of(kind)) if i != 2] for kind in (form, "text"))
    tokenizer, (encoding, max_length, limit) = tiny.tokenizer(), limits
    prompts, answers = ([row["prompt"] for row in rows], [row["chosen"] for row in texts])
    encoded = ids_of(rows, tokenizer, *limits)
    kept = np.flatnonzero(encoded.fits)
    singles = encode_responses(prompts, answers, tokenizer, encoding, max_length, limit)
    alone = encode_prompts([prompts[i] for i in kept], tokenizer, encoding, limit)
    for wanted, found, prompt in zip(encoded.take(kept).pairs[::2], singles, alone, strict=True):
        assert all(map(np.array_equal, found, wanted)) and np.array_equal(prompt, wanted[0])


def test_the_effects_of_the_length_limit_are_counted():
    rows = [
        ("the big red cat ", "ran", "sat"),  # the prompt alone fills the limit
        ("the ", "dog ran fast home", "sat"),  # the signature is cut off a
        ("the ", "home dog ran fast and", "cat sat and then ran"),  # both are cut, neither signature is
        ("the ", "red red red red", "red red red blue"),  # the difference is cut off
    ]
    frame = pd.DataFrame(rows, columns=["prompt", "response_a", "response_b"]).assign(winner="a")
    # the first comparison has two votes
    frame = pd.concat([frame, frame.iloc[:1]], ignore_index=True)
    frame["annotator"] = [f"person {i}" for i in range(len(frame))]
    data = Judgments.read(frame, attributes=[WordList("signed", ["home"]), Length(ratio=1.5)])
    ids, tokenizer = data.comparisons["comparison_id"], tiny.tokenizer()
    assert not report_lengths(data, encode_comparisons(data.comparisons, tokenizer), tokenizer, 1024)
    encoded = encode_comparisons(data.comparisons, tokenizer, max_length=4)
    found = {problem.code: problem for problem in report_lengths(data, encoded, tokenizer, 4)}
    counts = {"W140": 1, "W142": 5, "W141": 1, "W143": 1}
    assert {code: problem.count for code, problem in found.items()} == counts
    assert all(problem.severity == "warning" for problem in found.values())
    assert "1 comparisons (2 judgments)" in found["W140"].what and ids[0] in found["W140"].where
    assert 'limit changes the attribute "signed" in 1 of 5 cut responses' in found["W141"].what
    assert "5 of 8 responses are cut at max_length=4" in found["W142"].what
    assert ids[3] in found["W143"].where


def tokenizer_with(**changes) -> PreTrainedTokenizerFast:
    tokenizer = tiny.tokenizer()
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def test_missing_tokens_and_unknown_encodings_are_reported():
    silent = tokenizer_with(chat_template=None)
    raising = tokenizer_with(chat_template="{{ raise_exception('only \x1b[2J') }}")
    assert len(ids_of(rows_of("text"), silent, "trl")) == 4
    for form, tokenizer, encoding, said in [
        ("text", silent, "paper", "no chat template"),
        ("chat", silent, "trl", "no chat template"),
        ("chat", raising, "trl", r"ends with TemplateError: only \\u001b\[2J"),
        ("text", tokenizer_with(eos_token=None), "trl", "no end-of-text token"),
        ("text", tiny.tokenizer(), "ours", 'unknown encoding "ours"; use one of trl, paper'),
    ]:
        with pytest.raises(ConfigError, match=said):
            ids_of(rows_of(form), tokenizer, encoding)


# -- a model's tokenizer before training -----------------------------------------------------------------------------


# -- chat templates of others, and one without an end -----------------------------------------------------------------


def test_an_endless_template_is_stopped(monkeypatch):
    monkeypatch.setattr(encoding_module, "_MOST_SECONDS", 0.05)
    # faulthandler would end the tests on a busy machine; another test checks this end
    monkeypatch.setattr(encoding_module.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    long = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="does not end within 0.05 seconds"):
        render_chats(tokenizer_with(chat_template=long), [WHY])
    for worker in set(threading.enumerate()) - before:
        worker.join(60)
        assert not worker.is_alive()  # it was told to end


@pytest.mark.parametrize("form", ["rows", "stream", "processes"])
def test_trl_s_trainer_stops_an_endless_template(tmp_path, monkeypatch, form):
    monkeypatch.setattr(encoding_module, "_MOST_SECONDS", 0.5)
    monkeypatch.setattr(encoding_module.faulthandler, "dump_traceback_later", lambda *_, **__: None)
    long = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    rows = Dataset.from_list(rows_of("chat") * 2)
    args = DPOConfig(
        str(tmp_path), max_steps=1, dataset_num_proc=2 if form == "processes" else None, **PLAIN
    )
    given = rows.to_iterable_dataset() if form == "stream" else rows
    term = BiasTerm(["length"], [EVERYONE], ["mean"])
    with pytest.raises(ConfigError, match="does not end within 0.5 seconds"):
        BiasAdjustedDPOTrainer(
            tiny.model(),
            tiny.model(seed=1),
            args=args,
            train_dataset=given,
            processing_class=tokenizer_with(chat_template=long),
            attributes=["length:ratio=1.5"],
            bias=term,
        ).train()
    assert "bounded" not in PreTrainedTokenizerFast.apply_chat_template.__qualname__


def test_an_uninterruptible_operation_of_a_template_ends_the_process():
    program = (
        "from badpo.training import encoding\nfrom tests import tiny\nencoding._MOST_SECONDS = 0.5\n"
        # one operation takes minutes and blocks all threads
        "t = tiny.tokenizer()\nt.chat_template = '{{ (3 ** 1000000000) % 7 }}'\n"
        f"encoding.render_chats(t, [{WHY}])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "encoding.py" in done.stderr and "Timeout" in done.stderr
