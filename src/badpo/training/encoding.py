"""Token ids of comparisons: the prompt once, the two responses apart.

Two encodings are offered. ``trl`` gives the token ids that TRL's ``DPOTrainer`` would train on, so that a
run can be compared with it to the last digit. ``paper`` is the encoding of the paper: the prompt rendered
by the chat template and cut from the left, the response followed by the end-of-text token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from badpo.data.attributes import plain_text
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, DataError, Problem
from badpo.training.chat_templates import rendered_chats
from badpo.training.token_rows import TokenRows, TokenWriter

PAPER_MAX_PROMPT_LENGTH = 384
_NO_LIMIT = 2**31
_ENCODED_AT_ONCE = 1_000


@dataclass(frozen=True)
class EncodedComparisons:
    """Token ids of every comparison, and what the length limit did to them.

    Attributes
    ----------
    prompt_ids, a_ids, b_ids : TokenRows
        One int64 array per comparison: the prompt and the two responses. A response ends with the end-of-text token
        unless it was cut.
    fits : bool array of shape (n_comparisons,)
        False where the prompt alone fills ``max_length``: no response token would be left to learn from.
    cut : bool array of shape (n_comparisons, 2)
        True where the end of response a or b was cut off.
    """

    prompt_ids: TokenRows
    a_ids: TokenRows
    b_ids: TokenRows
    fits: np.ndarray
    cut: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @property
    def n_tokens(self) -> np.ndarray:
        """Tokens that the plain forward of each comparison reads, shape (n_comparisons,)."""
        triples = zip(self.prompt_ids, self.a_ids, self.b_ids, strict=True)
        return np.array([2 * len(p) + len(a) + len(b) for p, a, b in triples], dtype=np.int64)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with one response, among the comparisons that fit."""
        triples = zip(self.prompt_ids, self.a_ids, self.b_ids, strict=True)
        lengths = np.array([len(p) + max(len(a), len(b)) for p, a, b in triples], dtype=np.int64)
        return int((lengths * self.fits).max())

    def identical(self) -> np.ndarray:
        """True where both responses have the same token ids, so that the margin is always 0."""
        return np.array(
            [np.array_equal(a, b) for a, b in zip(self.a_ids, self.b_ids, strict=True)], dtype=bool
        )

    def take(self, index: np.ndarray) -> EncodedComparisons:
        """The comparisons at the integer positions ``index``, in that order."""
        return EncodedComparisons(
            self.prompt_ids.take(index),
            self.a_ids.take(index),
            self.b_ids.take(index),
            self.fits[index],
            self.cut[index],
        )


def encode_comparisons(
    judgments: Judgments,
    tokenizer,
    encoding: str = "trl",
    max_length: int | None = 1024,
    max_prompt_length: int | None = None,
) -> EncodedComparisons:
    """Token ids of every comparison of ``judgments``.

    Parameters
    ----------
    judgments : Judgments
        Texts or chat messages; each comparison is encoded once, however many annotators voted on it.
    tokenizer : PreTrainedTokenizerBase
        Must define an end-of-text token; a chat template where the texts are chat messages, and always for
        ``encoding="paper"``.
    encoding : "trl" or "paper"
        ``trl``: prompt and prompt + response are tokenized as TRL does and the response begins where they
        diverge; the whole is cut at the end. ``paper``: the chat-rendered prompt is cut from the left to
        ``max_prompt_length``, the response is tokenized by itself.
    max_length : int or None
        Longest prompt + response in tokens; None cuts nothing.
    max_prompt_length : int or None
        Longest prompt in tokens, for ``encoding="paper"`` only.

    Raises
    ------
    ConfigError
        Unknown encoding, or a tokenizer without the template or the token that the encoding needs.
    """
    encoders: dict[str, Callable] = {"trl": _trl_ids, "paper": _paper_ids}
    if encoding not in encoders:
        raise ConfigError(f'unknown encoding "{encoding}"; use one of {", ".join(encoders)}')
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token; set tokenizer.eos_token before training")
    limit = max_length if max_length is not None else _NO_LIMIT
    prompts, a_ids, b_ids, fits, cut = TokenWriter(), TokenWriter(), TokenWriter(), [], []
    for start in range(0, judgments.n_comparisons, _ENCODED_AT_ONCE):
        frame = judgments.comparisons.iloc[start : start + _ENCODED_AT_ONCE]
        for prompt, a, b in encoders[encoding](frame, tokenizer, max_prompt_length):
            room = limit - len(prompt)
            prompts.add(prompt)
            a_ids.add(a[: max(room, 0)])
            b_ids.add(b[: max(room, 0)])
            fits.append(room > 0)
            cut.append((len(a) > room, len(b) > room))
    return EncodedComparisons(
        prompts.finish(),
        a_ids.finish(),
        b_ids.finish(),
        np.array(fits, dtype=bool),
        np.array(cut, dtype=bool).reshape(-1, 2),
    )


def encode_prompts(
    prompts: Sequence, tokenizer, encoding: str, max_prompt_length: int | None
) -> list[np.ndarray]:
    """Token ids of prompts as generation should see them: the same ids that training put before a response."""
    if encoding == "paper" or any(not isinstance(prompt, str) for prompt in prompts):
        rendered = _rendered(
            tokenizer, [_as_messages(prompt) for prompt in prompts], add_generation_prompt=True
        )
        ids = _token_ids(tokenizer, rendered, add_special_tokens=False)
    else:
        ids = _token_ids(tokenizer, list(prompts), add_special_tokens=True)
    return [
        np.asarray(_cut_left(i, max_prompt_length if encoding == "paper" else None), dtype=np.int64)
        for i in ids
    ]


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
    triples = {"trl": _trl_ids, "paper": _paper_ids}[encoding](frame, tokenizer, max_prompt_length)
    limit = max_length if max_length is not None else _NO_LIMIT
    return [
        (np.asarray(prompt, dtype=np.int64), np.asarray(response[: limit - len(prompt)], dtype=np.int64))
        for prompt, response, _ in triples
        if len(prompt) < limit
    ]


def length_report(
    judgments: Judgments, encoded: EncodedComparisons, tokenizer, max_length: int | None
) -> list[Problem]:
    """What the length limit costs, counted: dropped comparisons, cut responses, cut attributes, lost differences.

    An attribute that stands at the end of a response, such as a signature, is the first thing that a length
    limit removes; the policy would then be trained on votes about something that it never sees.
    """
    findings = []
    votes_per_comparison = np.bincount(judgments.votes["comparison"], minlength=len(encoded))
    n_dropped = int((~encoded.fits).sum())
    if n_dropped:
        lost = int(votes_per_comparison[~encoded.fits].sum())
        findings.append(
            Problem(
                "W140",
                f"{n_dropped:,} comparisons ({lost:,} judgments) are left out: the prompt alone has "
                f"{max_length} tokens or more",
                f"first: comparison {judgments.comparisons['comparison_id'].iloc[int(np.argmin(encoded.fits))]}",
                "raise max_length, or shorten the prompts",
                "warning",
                n_dropped,
            )
        )
    cut = encoded.cut & encoded.fits[:, None]
    if cut.any():
        findings.append(
            Problem(
                "W142",
                f"{int(cut.sum()):,} of {2 * len(encoded):,} responses are cut at max_length={max_length}",
                "the end of the response and its end-of-text token are not trained on",
                "raise max_length to keep them whole",
                "warning",
                int(cut.sum()),
            )
        )
        findings.extend(_cut_attributes(judgments, encoded, tokenizer, cut))
    same = encoded.identical() & encoded.fits
    if same.any():
        findings.append(
            Problem(
                "W143",
                f"{int(same.sum()):,} comparisons have two identical responses after encoding; "
                "their margin is always 0",
                f"first: comparison {judgments.comparisons['comparison_id'].iloc[int(np.argmax(same))]}",
                "they still inform theta; raise max_length if the difference was cut away",
                "warning",
                int(same.sum()),
            )
        )
    return findings


def require_matching_tokenizer(encoded: EncodedComparisons, tokenizer, n_embeddings: int) -> None:
    """Raise `DataError` (E151) when a token id lies outside the model's embedding table."""
    largest = max(
        (
            int(ids.max())
            for part in (encoded.prompt_ids, encoded.a_ids, encoded.b_ids)
            for ids in part
            if len(ids)
        ),
        default=0,
    )
    if largest >= n_embeddings:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise DataError(
            [
                Problem(
                    "E151",
                    f"token id {largest} ({token!r}) is outside the model's {n_embeddings} embeddings",
                    f"the tokenizer has {len(tokenizer)} ids",
                    "use the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))",
                    "error",
                )
            ]
        )


def _trl_ids(frame, tokenizer, max_prompt_length):
    chat = not isinstance(frame["prompt"].iloc[0], str)
    if chat:
        prompts = list(frame["prompt"])
        texts = _rendered(tokenizer, prompts, add_generation_prompt=True)
        with_a = _rendered(tokenizer, [p + r for p, r in zip(prompts, frame["response_a"], strict=True)])
        with_b = _rendered(tokenizer, [p + r for p, r in zip(prompts, frame["response_b"], strict=True)])
    else:
        eos = tokenizer.eos_token
        texts = list(frame["prompt"])
        with_a = [p + _ended(r, eos) for p, r in zip(texts, frame["response_a"], strict=True)]
        with_b = [p + _ended(r, eos) for p, r in zip(texts, frame["response_b"], strict=True)]
    ids = [_token_ids(tokenizer, part, add_special_tokens=not chat) for part in (texts, with_a, with_b)]
    for prompt, a, b in zip(*ids, strict=True):
        shared = min(_common_prefix(prompt, a), _common_prefix(prompt, b))
        yield prompt[:shared], a[shared:], b[shared:]


def _paper_ids(frame, tokenizer, max_prompt_length):
    prompts = _rendered(tokenizer, [_as_messages(p) for p in frame["prompt"]], add_generation_prompt=True)
    prompt_ids = _token_ids(tokenizer, prompts, add_special_tokens=False)
    sides = [
        _token_ids(tokenizer, [plain_text(r) for r in frame[side]], add_special_tokens=False)
        for side in ("response_a", "response_b")
    ]
    end = [tokenizer.eos_token_id]
    for prompt, a, b in zip(prompt_ids, *sides, strict=True):
        yield _cut_left(prompt, max_prompt_length), a + end, b + end


def _cut_attributes(judgments, encoded, tokenizer, cut):
    findings = []
    rows, sides = np.nonzero(cut)
    for attribute in judgments.attributes:
        if attribute.scope != "response":
            continue
        lost = 0
        for row, side in zip(rows, sides, strict=True):
            comparison = judgments.comparisons.iloc[row]
            prompt = plain_text(comparison["prompt"])
            whole = plain_text(comparison["response_a" if side == 0 else "response_b"])
            kept = tokenizer.decode(
                (encoded.a_ids if side == 0 else encoded.b_ids)[row], skip_special_tokens=True
            )
            lost += attribute.measure(prompt, whole) != attribute.measure(prompt, kept)
        if lost:
            findings.append(
                Problem(
                    "W141",
                    f'attribute "{attribute.name}" is changed by the length limit in {lost:,} of '
                    f"{len(rows):,} cut responses",
                    "the model would be trained on votes about text that it never sees",
                    "raise max_length until no attribute marker is cut",
                    "warning",
                    lost,
                )
            )
    return findings


def _as_messages(prompt):
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _rendered(tokenizer, conversations, **options):
    if tokenizer.chat_template is None:
        raise ConfigError(
            "the tokenizer has no chat template, and this encoding needs one. Use an instruct model, set "
            "tokenizer.chat_template, or give plain-text prompts with encoding: trl"
        )
    return rendered_chats(tokenizer, conversations, **options)


def _token_ids(tokenizer, texts, add_special_tokens):
    ids = tokenizer(texts, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
    if not any(ids) and any(text.strip() for text in texts):
        raise ConfigError(
            f'the tokenizer of "{tokenizer.name_or_path}" gives no token for any text; use the model\'s own tokenizer'
        )
    return ids


def _ended(response: str, eos: str) -> str:
    return response if response.endswith(eos) else response + eos


def _cut_left(ids, limit):
    return ids if limit is None else ids[-limit:]


def _common_prefix(left, right) -> int:
    for position, (x, y) in enumerate(zip(left, right, strict=False)):
        if x != y:
            return position
    return min(len(left), len(right))
