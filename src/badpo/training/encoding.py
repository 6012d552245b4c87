"""Encode comparisons as the token ids of their prompts and responses.

The encoding ``trl`` produces the same token ids as TRL's ``DPOTrainer``, so that runs with badpo and with TRL can be
compared exactly. The encoding ``paper`` follows the BA-DPO paper: the chat template renders the prompt, a long prompt
is truncated on the left, and the end-of-text token follows the response.
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
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from badpo.data.attributes import plain_text
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.data.vocabulary import TEMPLATE_COLUMNS
from badpo.training.packing import Pair

ENCODINGS = ("trl", "paper")
_SIDES = ("response_a", "response_b")
# Number of comparisons that badpo passes to the tokenizer at once.
_ENCODED_AT_ONCE = 1_000
# Time limit, in seconds, for rendering a chat template once. Rendering usually takes less than a second.
_MOST_SECONDS = 60.0

# A chat message, or any object that a chat template accepts as a message.
Message = Any
# A prompt or a response, which is either plain text or a list of chat messages.
Text = str | Sequence[Message]
# Chat-template arguments for one conversation, such as its tools.
TemplateOptions = Json
# Token ids of a prompt and of its two responses a and b.
TokenIds = tuple[Sequence[int] | np.ndarray, list[int], list[int]]
Rendered = TypeVar("Rendered")


def render_chats(
    tokenizer: PreTrainedTokenizerBase,
    conversations: Sequence[Sequence[Message]],
    template_options: Iterable[TemplateOptions] = (),
    **options: object,
) -> list[str]:
    """Render conversations with the tokenizer's chat template.

    ``template_options`` contains the template variables of each conversation, whereas ``options`` apply to all
    conversations.
    """
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template, but encoding these prompts requires one. Use an instruct model, "
            "set tokenizer.chat_template, or use plain-text prompts with encoding: trl"
        )
    render = partial(tokenizer.apply_chat_template, tokenize=False, **options)

    def render_all() -> list[str]:
        rows = zip(conversations, chain(template_options, repeat({})), strict=False)
        return [render(messages, **row_options) for messages, row_options in rows]

    try:
        return _run_bounded(tokenizer, render_all)
    except ConfigError:
        raise
    except Exception as error:  # a template is a program and can raise anything
        raise _template_error(tokenizer, f"ends with {type(error).__name__}: {error}") from error


@contextmanager
def limit_templates() -> Iterator[None]:
    """Context manager that limits every rendering of a chat template to one minute."""

    def bounded(method: Callable[..., str]) -> Callable[..., str]:
        @wraps(method)
        def render(self: PreTrainedTokenizerBase, *args: object, **options: object) -> str:
            return _run_bounded(self, partial(method, self, *args, **options))

        return render

    kinds = PreTrainedTokenizerBase, ProcessorMixin
    methods = [kind.apply_chat_template for kind in kinds]
    try:
        for kind, method in zip(kinds, methods, strict=True):
            kind.apply_chat_template = bounded(method)
        yield
    finally:
        for kind, method in zip(kinds, methods, strict=True):
            kind.apply_chat_template = method


def _run_bounded(tokenizer: PreTrainedTokenizerBase, render: Callable[[], Rendered]) -> Rendered:
    """Call ``render`` in a thread; raise `ConfigError` if the chat template does not finish within one minute.

    A chat template is a third-party program, so its running time has no upper bound.
    """
    rendered: list[Rendered] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            rendered.append(render())
        except BaseException as error:  # also the SystemExit that ends this thread
            errors.append(error)

    worker = threading.Thread(target=run, daemon=True)
    # A single long operation in a chat template, such as raising a large number to a power, blocks all Python threads.
    # If a chat template blocks all threads, faulthandler ends the process.
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
    if errors:
        raise errors[0]
    return rendered[0]


def _template_error(tokenizer: PreTrainedTokenizerBase, what: str) -> ConfigError:
    name = getattr(tokenizer, "name_or_path", "")
    return ConfigError(
        f'the chat template of "{name}" {what}. Set another tokenizer.chat_template, or use plain-text prompts with '
        "encoding: trl"
    )


@dataclass(frozen=True)
class EncodedComparisons:
    """Token ids of comparisons, with a record of which comparisons and responses exceed the length limit.

    ``pairs`` has two entries for each comparison: the prompt with response a and the prompt with response b. Each
    response ends with the end-of-text token, unless the length limit truncated the response.
    """

    pairs: list[Pair]
    fits: np.ndarray  # (n_comparisons,), False if the prompt alone has ``max_length`` tokens
    cut: np.ndarray  # (n_comparisons, 2), True if response a or b was truncated

    def __len__(self) -> int:
        return len(self.fits)

    @property
    def lengths(self) -> np.ndarray:
        """Token counts of each prompt with response a and with response b, as an array of shape (n_comparisons, 2)."""
        return np.array([len(p) + len(r) for p, r in self.pairs], dtype=np.int64).reshape(-1, 2)

    @property
    def longest(self) -> int:
        """Largest token count of a prompt together with a response."""
        return int(self.lengths.max(initial=0))

    @property
    def identical(self) -> np.ndarray:
        """Whether both responses of a comparison have the same token ids, so that their margin is always 0."""
        responses = [response for _, response in self.pairs]
        return np.array(list(map(np.array_equal, responses[0::2], responses[1::2])), dtype=bool)

    def take(self, index: np.ndarray) -> EncodedComparisons:
        """Return the comparisons at the positions in ``index``, in the same order."""
        pairs = [pair for i in index for pair in self.pairs[2 * i : 2 * i + 2]]
        return EncodedComparisons(pairs, self.fits[index], self.cut[index])


def encode_prompts(
    prompts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    encoding: str,
    max_prompt_length: int | None,
    template_options: Iterable[TemplateOptions] = (),
) -> list[np.ndarray]:
    """Encode prompts for generation as the token ids that precede the responses in training."""
    is_plain = encoding == "trl" and all(isinstance(prompt, str) for prompt in prompts)
    if is_plain:
        texts = [str(prompt) for prompt in prompts]
    else:
        chats = [[{"role": "user", "content": p}] if isinstance(p, str) else list(p) for p in prompts]
        texts = render_chats(tokenizer, chats, template_options, add_generation_prompt=True)
    first = None if max_prompt_length is None else -max_prompt_length
    ids = _token_ids(tokenizer, texts, add_special_tokens=is_plain)
    return [np.array(row[first:], dtype=np.int64) for row in ids]


def encode_responses(
    prompts: Sequence[Text],
    responses: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
) -> list[Pair]:
    """Encode pairs of a prompt and a response; omit pairs whose prompt leaves no room for a response."""
    answers = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, responses, strict=True)
    ]
    frame = pd.DataFrame({"prompt": list(prompts), **dict.fromkeys(_SIDES, answers)})
    encoded = encode_comparisons(frame, tokenizer, encoding, max_length, max_prompt_length)
    return [encoded.pairs[2 * i] for i in np.flatnonzero(encoded.fits)]


def encode_comparisons(
    comparisons: pd.DataFrame,
    tokenizer: PreTrainedTokenizerBase,
    encoding: str = "trl",
    max_length: int | None = 1024,
    max_prompt_length: int | None = None,
) -> EncodedComparisons:
    """Return the token ids of a table of comparisons."""
    if encoding not in ENCODINGS:
        raise ConfigError(f'unknown encoding "{encoding}"; use one of {", ".join(ENCODINGS)}')
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "the tokenizer has no end-of-text token; set tokenizer.eos_token before training"
        )
    pairs: list[Pair] = []
    fits: list[bool] = []
    cut: list[list[bool]] = []
    limit = sys.maxsize if max_length is None else max_length
    for start in range(0, len(comparisons), _ENCODED_AT_ONCE):
        frame = comparisons.iloc[start : start + _ENCODED_AT_ONCE]
        rows = (
            _paper_ids(frame, tokenizer, max_prompt_length)
            if encoding == "paper"
            else _trl_ids(frame, tokenizer)
        )
        for prompt, *responses in rows:
            room = max(limit - len(prompt), 0)
            prompt_ids = np.array(prompt, dtype=np.int64)
            pairs += [(prompt_ids, np.array(r[:room], dtype=np.int64)) for r in responses]
            cut.append([len(response) > room for response in responses])
            fits.append(room > 0)
    return EncodedComparisons(pairs, np.array(fits, bool), np.array(cut, bool).reshape(-1, 2))


def read_template_options(frame: pd.DataFrame) -> list[TemplateOptions]:
    """Read the chat-template arguments of each comparison, such as tools, from the columns that TRL uses."""
    tools, options = (
        [json.loads(cell) if cell else None for cell in frame.get(name, [None] * len(frame))]
        for name in TEMPLATE_COLUMNS
    )
    return [{"tools": tool, **(option or {})} for tool, option in zip(tools, options, strict=True)]


def _trl_ids(frame: pd.DataFrame, tokenizer: PreTrainedTokenizerBase) -> Iterator[TokenIds]:
    """Token ids as in TRL: prompts are tokenized alone and with each response; the common prefix is the prompt."""
    prompts, end = list(frame["prompt"]), tokenizer.eos_token
    is_plain = isinstance(prompts[0], str)
    texts = [prompts]
    for side in _SIDES:
        responses = [r.removesuffix(end) + end if is_plain else r for r in frame[side]]
        texts.append([p + r for p, r in zip(prompts, responses, strict=True)])
    if not is_plain:
        options = read_template_options(frame)
        texts = [
            render_chats(tokenizer, part, options, add_generation_prompt=part is prompts)
            for part in texts
        ]
    ids = [_token_ids(tokenizer, part, add_special_tokens=is_plain) for part in texts]
    for prompt, a, b in zip(*ids, strict=True):
        shared = len(os.path.commonprefix([prompt, a, b]))
        yield prompt[:shared], a[shared:], b[shared:]


def _paper_ids(
    frame: pd.DataFrame, tokenizer: PreTrainedTokenizerBase, max_prompt_length: int | None
) -> Iterator[TokenIds]:
    """Token ids as in the BA-DPO paper: a rendered prompt, and responses that end with the end-of-text token."""
    options = read_template_options(frame)
    prompts = encode_prompts(list(frame["prompt"]), tokenizer, "paper", max_prompt_length, options)
    a_ids, b_ids = (
        _token_ids(tokenizer, [plain_text(r) for r in frame[side]], add_special_tokens=False)
        for side in _SIDES
    )
    end = [tokenizer.eos_token_id]
    for prompt, a, b in zip(prompts, a_ids, b_ids, strict=True):
        yield prompt, a + end, b + end


def _token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], add_special_tokens: bool
) -> list[list[int]]:
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=add_special_tokens, verbose=False)[
        "input_ids"
    ]
    return ids


def report_lengths(
    judgments: Judgments,
    encoded: EncodedComparisons,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
) -> list[Problem]:
    """Report how many comparisons the length limit excludes, and how many responses and attributes it changes.

    A truncated response loses attributes at its end, such as a signature. Votes on a truncated response would train the
    policy on an attribute that the response no longer has.
    """
    dropped, cut = ~encoded.fits, encoded.cut & encoded.fits[:, None]
    same = encoded.identical & encoded.fits
    names = judgments.comparisons["comparison_id"]
    first_dropped, first_same = (
        f"first: comparison {next(iter(names[positions]), '')}" for positions in (dropped, same)
    )
    n_dropped, n_cut, n_same = int(dropped.sum()), int(cut.sum()), int(same.sum())
    n_votes = int(dropped[judgments.votes["comparison"].to_numpy()].sum())
    problems = [
        report_long_prompts(
            f"{n_dropped:,} comparisons ({n_votes:,} judgments)",
            first_dropped,
            n_dropped,
            max_length,
        ),
        Problem(
            "W142",
            f"{n_cut:,} of {2 * len(encoded):,} responses are cut at max_length={max_length}",
            "the policy is not trained on the end of a cut response or on its end-of-text token",
            "raise max_length to keep them whole",
            n_cut,
        ),
        *(
            Problem(
                "W141",
                f'the length limit changes the attribute "{name}" in {n_lost:,} of {n_cut:,} cut responses',
                "the votes would refer to text that the model does not see in training",
                "raise max_length until no cut response loses the attribute",
                n_lost,
            )
            for name, n_lost in _count_changed(judgments, encoded, tokenizer, cut)
        ),
        Problem(
            "W143",
            f"{n_same:,} comparisons have two identical responses after encoding; their margin is always 0",
            first_same,
            "theta still learns from these comparisons; raise max_length if the length limit removed the difference",
            n_same,
        ),
    ]
    return [problem for problem in problems if problem.count]


def report_long_prompts(subject: str, first: str, n: int, max_length: int | None) -> Problem:
    """Return the problem W140 about rows or comparisons whose prompt leaves no room for a response."""
    message = f"{subject} are left out, because the prompt alone has at least {max_length} tokens"
    return Problem("W140", message, first, "raise max_length, or shorten the prompts", n)


def _count_changed(
    judgments: Judgments,
    encoded: EncodedComparisons,
    tokenizer: PreTrainedTokenizerBase,
    cut: np.ndarray,
) -> Iterator[tuple[str, int]]:
    """For each response attribute, count the responses in which truncation changes the attribute's value."""
    texts = []
    for row, side in zip(*np.nonzero(cut), strict=True):
        comparison = judgments.comparisons.iloc[row]
        _, ids = encoded.pairs[2 * row + side]
        cut_text = tokenizer.decode(ids, skip_special_tokens=True)
        prompt, response = (plain_text(comparison[column]) for column in ("prompt", _SIDES[side]))
        texts.append((prompt, response, cut_text))
    for attribute in judgments.attributes:
        if attribute.scope == "response":
            measure = attribute.measure
            n_changed = sum(
                measure(prompt, response) != measure(prompt, cut_text)
                for prompt, response, cut_text in texts
            )
            yield attribute.name, n_changed


def require_matching_tokenizer(
    pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, n_embeddings: int
) -> None:
    """Raise `DataError` (E151) if a token id is outside the model's embedding table."""
    largest = max((int(ids.max(initial=0)) for pair in pairs for ids in pair), default=0)
    if largest < n_embeddings:
        return
    token = tokenizer.convert_ids_to_tokens(largest)
    what = f"token id {largest} ({token!r}) is outside the model's {n_embeddings} embeddings"
    where = f"the tokenizer has {len(tokenizer)} ids"
    remedy = "use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
    raise DataError([Problem("E151", what, where, remedy)])
