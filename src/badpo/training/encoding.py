"""Token ids of comparisons: the prompt once, the two responses apart.

Two encodings are offered. ``trl`` gives the token ids that TRL's ``DPOTrainer`` would train on, so that a
run can be compared with it to the last digit. ``paper`` is the encoding of the paper: the prompt rendered
by the chat template and cut from the left, the response followed by the end-of-text token.
"""

from __future__ import annotations

import ctypes
import faulthandler
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.attributes import plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.training.trl_keys import PAPER_MAX_PROMPT_LENGTH

# For a thousand conversations, which take less than one.
_MOST_SECONDS = 60.0


def rendered_chats(tokenizer: Any, conversations: Sequence[Sequence[Any]], **options: Any) -> list[str]:
    """Conversations as the texts that the tokenizer's chat template makes of them.

    A thread of its own renders them, which can be left alone and told to end, on any system and from any thread. A
    script without a main guard could start no other process, and a signal reaches the main thread only.
    """
    rendered: list[str] = []
    failed: list[BaseException] = []

    def render() -> None:
        try:
            for messages in conversations:
                rendered.append(tokenizer.apply_chat_template(messages, tokenize=False, **options))
        except BaseException as error:  # whatever a program can raise, and what tells it to end
            failed.append(error)

    worker = threading.Thread(target=render, daemon=True)
    # a single long step, such as the square of a long number, lets no other thread run: the process ends then
    faulthandler.dump_traceback_later(2 * _MOST_SECONDS, exit=True, file=2)
    try:
        worker.start()
        worker.join(_MOST_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if worker.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(worker.ident or 0), ctypes.py_object(SystemExit)
        )
        raise _unusable(tokenizer, f"does not end within {_MOST_SECONDS:g} seconds")
    if failed:
        raise _unusable(tokenizer, f"ends with {type(failed[0]).__name__}: {failed[0]}") from failed[0]
    return rendered


def _unusable(tokenizer: Any, reason: str) -> ConfigError:
    return ConfigError(
        f'the chat template of "{tokenizer.name_or_path}" {reason}. Set another tokenizer.chat_template, or give '
        "plain-text prompts with encoding: trl"
    )


_NO_LIMIT = 2**31
_ENCODED_AT_ONCE = 1_000


@dataclass(frozen=True)
class EncodedComparisons:
    """Token ids of every comparison, and what the length limit did to them.

    Attributes
    ----------
    prompt_ids, a_ids, b_ids : list of int64 arrays
        The prompt and the two responses of each. A response ends with the end-of-text token unless it was cut.
    fits : bool array of shape (n_comparisons,)
        False where the prompt alone fills ``max_length``: no response token would be left to learn from.
    cut : bool array of shape (n_comparisons, 2)
        True where the end of response a or b was cut off.
    """

    prompt_ids: list[np.ndarray]
    a_ids: list[np.ndarray]
    b_ids: list[np.ndarray]
    fits: np.ndarray
    cut: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def triples(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Prompt, response a and response b of each comparison."""
        return zip(self.prompt_ids, self.a_ids, self.b_ids, strict=True)

    @property
    def n_tokens(self) -> np.ndarray:
        """Tokens that the plain forward of each comparison reads, shape (n_comparisons,)."""
        return np.array([2 * len(p) + len(a) + len(b) for p, a, b in self.triples()], dtype=np.int64)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with one response, among the comparisons that fit."""
        lengths = np.array([len(p) + max(len(a), len(b)) for p, a, b in self.triples()], dtype=np.int64)
        return int((lengths * self.fits).max())

    def identical(self) -> np.ndarray:
        """True where both responses have the same token ids, so that the margin is always 0."""
        return np.array([np.array_equal(a, b) for _, a, b in self.triples()], dtype=bool)

    def take(self, index: np.ndarray) -> EncodedComparisons:
        """The comparisons at the integer positions ``index``, in that order."""

        def taken(rows: Any) -> Any:
            return rows[index] if isinstance(rows, np.ndarray) else [rows[i] for i in index]

        return EncodedComparisons(*(taken(getattr(self, field.name)) for field in fields(self)))


def encode_comparisons(
    judgments: Judgments,
    tokenizer,
    encoding: str = "trl",
    max_length: int | None = 1024,
    max_prompt_length: int | None = None,
) -> EncodedComparisons:
    """Token ids of every comparison of ``judgments``."""
    return _encoded(judgments.comparisons, tokenizer, encoding, max_length, max_prompt_length)


def _encoded(
    comparisons: pd.DataFrame, tokenizer, encoding: str, max_length: int | None, max_prompt_length: int | None
) -> EncodedComparisons:
    encoders: dict[str, Callable] = {"trl": _trl_ids, "paper": _paper_ids}
    if encoding not in encoders:
        raise ConfigError(f'unknown encoding "{encoding}"; use one of {", ".join(encoders)}')
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token; set tokenizer.eos_token before training")
    prompts: list[np.ndarray] = []
    a_ids: list[np.ndarray] = []
    b_ids: list[np.ndarray] = []
    fits, cut = [], []
    for start in range(0, len(comparisons), _ENCODED_AT_ONCE):
        frame = comparisons.iloc[start : start + _ENCODED_AT_ONCE]
        for prompt, *responses in encoders[encoding](frame, tokenizer, max_prompt_length):
            room = _NO_LIMIT if max_length is None else max_length - len(prompt)
            kept = [response[: max(room, 0)] for response in responses]
            for column, row in zip((prompts, a_ids, b_ids), (prompt, *kept), strict=True):
                column.append(np.array(row, dtype=np.int64))
            fits.append(room > 0)
            cut.append([len(response) > room for response in responses])
    is_cut = np.array(cut, dtype=bool).reshape(-1, 2)
    return EncodedComparisons(prompts, a_ids, b_ids, np.array(fits, dtype=bool), is_cut)


def encode_prompts(
    prompts: Sequence, tokenizer, encoding: str, max_prompt_length: int | None
) -> list[np.ndarray]:
    """Token ids of prompts as generation should see them: the same ids that training put before a response."""
    limit = max_prompt_length if encoding == "paper" else None
    if encoding == "paper" or any(not isinstance(prompt, str) for prompt in prompts):
        ids = _prompt_ids(tokenizer, prompts)
    else:
        ids = _token_ids(tokenizer, list(prompts), add_special_tokens=True)
    return [np.array(_cut_left(row, limit), dtype=np.int64) for row in ids]


def encode_responses(
    prompts: Sequence,
    responses: Sequence[str],
    tokenizer,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(prompt ids, response ids) of single responses, for the supervised stage.

    The ids are those that `encode_comparisons` gives for a comparison of each response with itself. Responses
    whose prompt fills ``max_length`` are left out.
    """
    answers = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, responses, strict=True)
    ]
    frame = pd.DataFrame({"prompt": list(prompts), "response_a": answers, "response_b": answers})
    encoded = _encoded(frame, tokenizer, encoding, max_length, max_prompt_length)
    return [(encoded.prompt_ids[i], encoded.a_ids[i]) for i in np.flatnonzero(encoded.fits)]


def length_report(
    judgments: Judgments, encoded: EncodedComparisons, tokenizer, max_length: int | None
) -> list[Problem]:
    """What the length limit costs, counted: dropped comparisons, cut responses, cut attributes, lost differences.

    An attribute that stands at the end of a response, such as a signature, is the first thing that a length
    limit removes; the policy would then be trained on votes about something that it never sees.
    """
    findings = []

    def found(code: str, n: int, what: str, where: str, remedy: str) -> None:
        findings.append(Problem(code, what, where, remedy, "warning", n))

    def first(broken: np.ndarray) -> str:
        return f"first: comparison {judgments.comparisons['comparison_id'].iloc[int(np.argmax(broken))]}"

    dropped = ~encoded.fits
    if dropped.any():
        n, n_votes = int(dropped.sum()), int(dropped[judgments.votes["comparison"].to_numpy()].sum())
        what = f"{n:,} comparisons ({n_votes:,} judgments) are left out"
        what += f": the prompt alone has {max_length} tokens or more"
        found("W140", n, what, first(dropped), "raise max_length, or shorten the prompts")
    cut = encoded.cut & encoded.fits[:, None]
    if n := int(cut.sum()):
        what = f"{n:,} of {2 * len(encoded):,} responses are cut at max_length={max_length}"
        where = "the end of the response and its end-of-text token are not trained on"
        found("W142", n, what, where, "raise max_length to keep them whole")
        for name, n_lost in _cut_attributes(judgments, encoded, tokenizer, cut):
            what = f'attribute "{name}" is changed by the length limit in {n_lost:,} of {n:,} cut responses'
            where = "the model would be trained on votes about text that it never sees"
            found("W141", n_lost, what, where, "raise max_length until no attribute marker is cut")
    same = encoded.identical() & encoded.fits
    if n := int(same.sum()):
        what = f"{n:,} comparisons have two identical responses after encoding; their margin is always 0"
        remedy = "they still inform theta; raise max_length if the difference was cut away"
        found("W143", n, what, first(same), remedy)
    return findings


def require_matching_tokenizer(encoded: EncodedComparisons, tokenizer, n_embeddings: int) -> None:
    """Raise `DataError` (E151) when a token id lies outside the model's embedding table."""
    largest = max((int(ids.max()) for part in encoded.triples() for ids in part if len(ids)), default=0)
    if largest < n_embeddings:
        return
    token = tokenizer.convert_ids_to_tokens(largest)
    what = f"token id {largest} ({token!r}) is outside the model's {n_embeddings} embeddings"
    where = f"the tokenizer has {len(tokenizer)} ids"
    remedy = "use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
    raise DataError([Problem("E151", what, where, remedy, "error")])


def model_problems(judgments: Judgments, model: str, encoding: str, max_length: int) -> list[Problem]:
    """Cut and dropped comparisons, attributes that the limit cuts away, token ids that the model does not have.

    Of the model, a folder or a name on the Hub, the tokenizer and the configuration are read, and no weights.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        n_embeddings = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config().vocab_size
    except OSError as error:
        raise ConfigError(
            f'cannot read "{model}": it is neither a folder with a model nor reachable on the Hub '
            f"({str(error).splitlines()[0]}); download it once with network, or name a folder"
        ) from error
    max_prompt_length = PAPER_MAX_PROMPT_LENGTH if encoding == "paper" else None
    encoded = encode_comparisons(judgments, tokenizer, encoding, max_length, max_prompt_length)
    problems = length_report(judgments, encoded, tokenizer, max_length)
    try:
        require_matching_tokenizer(encoded, tokenizer, n_embeddings)
    except DataError as error:
        problems += error.problems
    return problems


def _trl_ids(frame, tokenizer, max_prompt_length):
    prompts, sides = list(frame["prompt"]), [frame["response_a"], frame["response_b"]]
    if chat := not isinstance(prompts[0], str):
        texts = [_rendered(tokenizer, prompts, add_generation_prompt=True)]
        texts += [_rendered(tokenizer, [p + r for p, r in zip(prompts, side, strict=True)]) for side in sides]
    else:
        end = tokenizer.eos_token
        texts = [prompts]
        texts += [
            [p + r.removesuffix(end) + end for p, r in zip(prompts, side, strict=True)] for side in sides
        ]
    ids = [_token_ids(tokenizer, part, add_special_tokens=not chat) for part in texts]
    for prompt, a, b in zip(*ids, strict=True):
        shared = min(_common_prefix(prompt, a), _common_prefix(prompt, b))
        yield prompt[:shared], a[shared:], b[shared:]


def _paper_ids(frame, tokenizer, max_prompt_length):
    prompt_ids = _prompt_ids(tokenizer, frame["prompt"])
    sides = [
        _token_ids(tokenizer, [plain_text(r) for r in frame[side]], add_special_tokens=False)
        for side in ("response_a", "response_b")
    ]
    end = [tokenizer.eos_token_id]
    for prompt, a, b in zip(prompt_ids, *sides, strict=True):
        yield _cut_left(prompt, max_prompt_length), a + end, b + end


def _cut_attributes(judgments, encoded, tokenizer, cut) -> Iterator[tuple[str, int]]:
    """Attributes that the limit changes in some of the responses that are cut, and in how many."""
    texts = []
    for row, side in zip(*np.nonzero(cut), strict=True):
        comparison = judgments.comparisons.iloc[row]
        ids = (encoded.a_ids, encoded.b_ids)[side][row]
        whole = plain_text(comparison[("response_a", "response_b")[side]])
        kept = tokenizer.decode(ids, skip_special_tokens=True)
        texts.append((plain_text(comparison["prompt"]), whole, kept))
    for attribute in judgments.attributes:
        if attribute.scope == "response":
            measure = attribute.measure
            n_lost = sum(measure(prompt, whole) != measure(prompt, kept) for prompt, whole, kept in texts)
            if n_lost:
                yield attribute.name, n_lost


def _prompt_ids(tokenizer, prompts):
    """Token ids of prompts as the chat template renders them."""
    messages = [[{"role": "user", "content": p}] if isinstance(p, str) else list(p) for p in prompts]
    rendered = _rendered(tokenizer, messages, add_generation_prompt=True)
    return _token_ids(tokenizer, rendered, add_special_tokens=False)


def _rendered(tokenizer, conversations, **options):
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template, and this encoding needs one. Use an instruct model, set "
            "tokenizer.chat_template, or give plain-text prompts with encoding: trl"
        )
    return rendered_chats(tokenizer, conversations, **options)


def _token_ids(tokenizer, texts, add_special_tokens):
    return tokenizer(texts, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]


def _cut_left(ids, limit):
    return ids if limit is None else ids[-limit:]


def _common_prefix(left, right) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((position for position, (x, y) in pairs if x != y), min(len(left), len(right)))
