"""Token ids of comparisons: the prompt once, the two responses apart.

Two encodings are offered. ``trl`` gives the token ids that TRL's ``DPOTrainer`` would train on, so that a
run can be compared with it to the last digit. ``paper`` is the encoding of the paper: the prompt rendered
by the chat template and cut from the left, the response followed by the end-of-text token.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os.path
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain, repeat
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from badpo.data.attributes import plain_text
from badpo.data.files import Json, asking_once
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.training.model_files import load_configuration, load_tokenizer
from badpo.training.packing import Pair
from badpo.training.trl_keys import PAPER_MAX_PROMPT_LENGTH

ENCODINGS = ("trl", "paper")
_SIDES = ("response_a", "response_b")
# Columns of a data set for TRL, as JSON, that its chat template is given.
TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs")
# Comparisons encoded at a time.
_ENCODED_AT_ONCE = 1_000
# For so many conversations, which take less than one.
_MOST_SECONDS = 60.0


def rendered_chats(
    tokenizer: Any,
    conversations: Sequence[Sequence[Any]],
    given: Iterable[Json] = (),
    **options: Any,
) -> list[str]:
    """Conversations as the texts that the tokenizer's chat template makes of them, with what is ``given`` to each."""
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template, and one is needed here. Use an instruct model, set "
            "tokenizer.chat_template, or give plain-text prompts with encoding: trl"
        )
    render = partial(tokenizer.apply_chat_template, tokenize=False, **options)

    def render_all() -> list[str]:
        both = zip(conversations, chain(given, repeat({})), strict=False)
        return [render(messages, **own) for messages, own in both]

    try:
        return _render_within_a_minute(tokenizer, render_all)
    except ConfigError:
        raise
    except Exception as error:  # whatever a program can raise
        raise _template_error(tokenizer, f"ends with {type(error).__name__}: {error}") from error


@contextmanager
def bounded_templates() -> Iterator[None]:
    """A block in which a library renders chats: each rendering is stopped after a minute."""

    def bounded(ordinary: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ordinary)
        def render(self: Any, *args: Any, **options: Any) -> Any:
            return _render_within_a_minute(self, partial(ordinary, self, *args, **options))

        return render

    kinds: tuple[Any, ...] = PreTrainedTokenizerBase, ProcessorMixin
    ordinary = [kind.apply_chat_template for kind in kinds]
    try:
        for kind, method in zip(kinds, ordinary, strict=True):
            kind.apply_chat_template = bounded(method)
        yield
    finally:
        for kind, method in zip(kinds, ordinary, strict=True):
            kind.apply_chat_template = method


def _render_within_a_minute(tokenizer: Any, render: Callable[[], Any]) -> Any:
    """What ``render`` returns or raises; a `ConfigError` says that the chat template does not end.

    A template is a program of somebody else. It runs in a thread of its own, which is told to end after a while.
    """
    rendered: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            rendered.append(render())
        except BaseException as error:  # whatever a program can raise, and what tells it to end
            failed.append(error)

    worker = threading.Thread(target=run, daemon=True)
    # a single long step, such as the power of a long number, lets no other thread run: the process ends then
    faulthandler.dump_traceback_later(2 * _MOST_SECONDS, exit=True, file=2)
    try:
        worker.start()
        worker.join(_MOST_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()
    if worker.is_alive():
        ident = ctypes.c_ulong(worker.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
        raise _template_error(tokenizer, f"does not end within {_MOST_SECONDS:g} seconds")
    if failed:
        raise failed[0]
    return rendered[0]


def _template_error(tokenizer: Any, what: str) -> ConfigError:
    name = getattr(tokenizer, "name_or_path", "")
    return ConfigError(
        f'the chat template of "{name}" {what}. Set another tokenizer.chat_template, or give plain-text prompts with '
        "encoding: trl"
    )


@dataclass(frozen=True)
class EncodedComparisons:
    """Token ids of every comparison, and what the length limit did to them.

    ``pairs`` are the prompt with response a, the prompt with response b, of one comparison after the other. A response
    ends with the end-of-text token unless it was cut.
    """

    pairs: list[Pair]
    fits: (
        np.ndarray
    )  # not where the prompt alone fills ``max_length``, and no response token is left to learn from
    cut: np.ndarray  # (n_comparisons, 2), where the end of response a or b was cut off

    def __len__(self) -> int:
        return len(self.fits)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each prompt with either response, shape (n_comparisons, 2)."""
        return np.array([len(p) + len(r) for p, r in self.pairs], dtype=np.int64).reshape(-1, 2)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with one response."""
        return int(self.lengths.max(initial=0))

    @property
    def identical(self) -> np.ndarray:
        """True where both responses have the same token ids, so that the margin is always 0."""
        responses = [response for _, response in self.pairs]
        return np.array(list(map(np.array_equal, responses[0::2], responses[1::2])), dtype=bool)

    def take(self, index: np.ndarray) -> EncodedComparisons:
        """The comparisons at the integer positions ``index``, in that order."""
        pairs = [pair for i in index for pair in self.pairs[2 * i : 2 * i + 2]]
        return EncodedComparisons(pairs, self.fits[index], self.cut[index])


def encode_prompts(
    prompts: Sequence,
    tokenizer,
    encoding: str,
    max_prompt_length: int | None,
    given: Iterable = (),
) -> list[np.ndarray]:
    """Token ids of prompts as generation should see them: the same ids that training put before a response."""
    is_plain = encoding == "trl" and all(isinstance(prompt, str) for prompt in prompts)
    texts = list(prompts)
    if not is_plain:
        chats = [[{"role": "user", "content": p}] if isinstance(p, str) else list(p) for p in prompts]
        texts = rendered_chats(tokenizer, chats, given, add_generation_prompt=True)
    first = None if max_prompt_length is None else -max_prompt_length
    ids = _token_ids(tokenizer, texts, add_special_tokens=is_plain)
    return [np.array(row[first:], dtype=np.int64) for row in ids]


def encode_responses(
    prompts: Sequence,
    responses: Sequence[str],
    tokenizer,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
) -> list[Pair]:
    """(prompt ids, response ids) of single responses, as in a comparison of each with itself; only those that fit."""
    answers = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, responses, strict=True)
    ]
    frame = pd.DataFrame({"prompt": list(prompts), **dict.fromkeys(_SIDES, answers)})
    encoded = encode_comparisons(frame, tokenizer, encoding, max_length, max_prompt_length)
    return [encoded.pairs[2 * i] for i in np.flatnonzero(encoded.fits)]


def encode_comparisons(
    comparisons: pd.DataFrame,
    tokenizer,
    encoding: str = "trl",
    max_length: int | None = 1024,
    max_prompt_length: int | None = None,
) -> EncodedComparisons:
    """Token ids of a table of comparisons."""
    if encoding not in ENCODINGS:
        raise ConfigError(f'unknown encoding "{encoding}"; use one of {", ".join(ENCODINGS)}')
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token; set tokenizer.eos_token before training"
        )
    pairs, fits, cut = [], [], []
    limit = sys.maxsize if max_length is None else max_length
    for start in range(0, len(comparisons), _ENCODED_AT_ONCE):
        frame = comparisons.iloc[start : start + _ENCODED_AT_ONCE]
        is_paper = encoding == "paper"
        rows = (
            _paper_ids(frame, tokenizer, max_prompt_length) if is_paper else _trl_ids(frame, tokenizer)
        )
        for prompt, *responses in rows:
            room = max(limit - len(prompt), 0)
            prompt_ids = np.array(prompt, dtype=np.int64)
            pairs += [(prompt_ids, np.array(r[:room], dtype=np.int64)) for r in responses]
            cut.append([len(response) > room for response in responses])
            fits.append(room > 0)
    return EncodedComparisons(pairs, np.array(fits, bool), np.array(cut, bool).reshape(-1, 2))


def template_options(frame: pd.DataFrame) -> list[Json]:
    """What each comparison hands to the chat template, as TRL does: its tools and its own options."""
    tools, options = (
        [json.loads(cell) if cell else None for cell in frame.get(name, [None] * len(frame))]
        for name in TEMPLATE_COLUMNS
    )
    return [{"tools": tool, **(own or {})} for tool, own in zip(tools, options, strict=True)]


def _trl_ids(frame: pd.DataFrame, tokenizer) -> Iterator[tuple]:
    """Prompt and continuations are tokenized whole; the prompt ends where the three begin to differ."""
    prompts, end = list(frame["prompt"]), tokenizer.eos_token
    is_plain = isinstance(prompts[0], str)
    texts = [prompts]
    for side in _SIDES:
        responses = [r.removesuffix(end) + end if is_plain else r for r in frame[side]]
        texts.append([p + r for p, r in zip(prompts, responses, strict=True)])
    if not is_plain:
        given = template_options(frame)
        texts = [
            rendered_chats(tokenizer, part, given, add_generation_prompt=part is prompts)
            for part in texts
        ]
    ids = [_token_ids(tokenizer, part, add_special_tokens=is_plain) for part in texts]
    for prompt, a, b in zip(*ids, strict=True):
        shared = len(os.path.commonprefix([prompt, a, b]))
        yield prompt[:shared], a[shared:], b[shared:]


def _paper_ids(frame: pd.DataFrame, tokenizer, max_prompt_length: int | None) -> Iterator[tuple]:
    """The rendered prompt, and the plain responses with the end-of-text token."""
    given = template_options(frame)
    prompts = encode_prompts(list(frame["prompt"]), tokenizer, "paper", max_prompt_length, given)
    a_ids, b_ids = (
        _token_ids(tokenizer, [plain_text(r) for r in frame[side]], add_special_tokens=False)
        for side in _SIDES
    )
    end = [tokenizer.eos_token_id]
    for prompt, a, b in zip(prompts, a_ids, b_ids, strict=True):
        yield prompt, a + end, b + end


def _token_ids(tokenizer, texts, add_special_tokens):
    return tokenizer(texts, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]


def length_report(
    judgments: Judgments, encoded: EncodedComparisons, tokenizer, max_length: int | None
) -> list[Problem]:
    """What the length limit costs, counted: dropped comparisons, cut responses, cut attributes, lost differences.

    An attribute that stands at the end of a response, such as a signature, is the first thing that a length
    limit removes; the policy would then be trained on votes about something that it never sees.
    """
    dropped, cut = ~encoded.fits, encoded.cut & encoded.fits[:, None]
    same = encoded.identical & encoded.fits
    names = judgments.comparisons["comparison_id"]
    first_dropped, first_same = (
        f"first: comparison {next(iter(names[broken]), '')}" for broken in (dropped, same)
    )
    n_dropped, n_cut, n_same = int(dropped.sum()), int(cut.sum()), int(same.sum())
    n_votes = int(dropped[judgments.votes["comparison"].to_numpy()].sum())
    found = [
        left_out(
            f"{n_dropped:,} comparisons ({n_votes:,} judgments)",
            first_dropped,
            n_dropped,
            max_length,
        ),
        Problem(
            "W142",
            f"{n_cut:,} of {2 * len(encoded):,} responses are cut at max_length={max_length}",
            "the end of the response and its end-of-text token are not trained on",
            "raise max_length to keep them whole",
            n_cut,
        ),
        *(
            Problem(
                "W141",
                f'attribute "{name}" is changed by the length limit in {n_lost:,} of {n_cut:,} cut responses',
                "the model would be trained on votes about text that it never sees",
                "raise max_length until no attribute marker is cut",
                n_lost,
            )
            for name, n_lost in _n_changed(judgments, encoded, tokenizer, cut)
        ),
        Problem(
            "W143",
            f"{n_same:,} comparisons have two identical responses after encoding; their margin is always 0",
            first_same,
            "they still inform theta; raise max_length if the difference was cut away",
            n_same,
        ),
    ]
    return [problem for problem in found if problem.count]


def left_out(what: str, first: str, n: int, max_length: int | None) -> Problem:
    """What is said of rows, or of comparisons, whose prompt leaves no place for a response."""
    told = f"{what} are left out: the prompt alone has {max_length} tokens or more"
    return Problem("W140", told, first, "raise max_length, or shorten the prompts", n)


def _n_changed(judgments, encoded, tokenizer, cut: np.ndarray) -> Iterator[tuple[str, int]]:
    """Attributes of responses, and in how many of the responses that are cut the limit changes their values."""
    texts = []
    for row, side in zip(*np.nonzero(cut), strict=True):
        comparison = judgments.comparisons.iloc[row]
        _, ids = encoded.pairs[2 * row + side]
        kept = tokenizer.decode(ids, skip_special_tokens=True)
        texts.append((*(plain_text(comparison[column]) for column in ("prompt", _SIDES[side])), kept))
    for attribute in judgments.attributes:
        if attribute.scope == "response":
            of = attribute.measure
            yield (
                attribute.name,
                sum(of(prompt, whole) != of(prompt, kept) for prompt, whole, kept in texts),
            )


def require_matching_tokenizer(pairs: Sequence[Pair], tokenizer, n_embeddings: int) -> None:
    """Raise `DataError` (E151) when a token id lies outside the model's embedding table."""
    largest = max((int(ids.max(initial=0)) for pair in pairs for ids in pair), default=0)
    if largest < n_embeddings:
        return
    token = tokenizer.convert_ids_to_tokens(largest)
    what = f"token id {largest} ({token!r}) is outside the model's {n_embeddings} embeddings"
    where = f"the tokenizer has {len(tokenizer)} ids"
    remedy = "use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
    raise DataError([Problem("E151", what, where, remedy)])


def model_problems(judgments: Judgments, model: str, encoding: str, max_length: int) -> list[Problem]:
    """What the length limit costs, and token ids that the model lacks, of which no weights are read."""
    try:
        with asking_once(model):
            tokenizer = load_tokenizer(model)
            config = load_configuration(model).get_text_config()
    except OSError as error:
        raise ConfigError(
            f'cannot read "{model}": it is neither a folder with a model nor reachable on the Hub '
            f"({str(error).splitlines()[0]}); download it once with network, or name a folder"
        ) from error
    encoded = encode_comparisons(
        judgments.comparisons, tokenizer, encoding, max_length, PAPER_MAX_PROMPT_LENGTH
    )
    problems = length_report(judgments, encoded, tokenizer, max_length)
    try:
        require_matching_tokenizer(encoded.pairs, tokenizer, config.vocab_size)
    except DataError as error:
        problems += error.problems
    return problems
