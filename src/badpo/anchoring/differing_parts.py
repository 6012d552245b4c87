"""What two versions of an answer do not share, in tokens: all that a tilt toward an attribute is about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from badpo.training.encoding import EncodedComparisons

# How tokenizers write white space at the start of a token: itself, byte-level BPE (blank, newline), SentencePiece.
WHITE_SPACE = (" ", "\n", "\t", "\u0120", "\u010a", "\u2581")


def differing_parts(encoded: EncodedComparisons, tokenizer) -> EncodedComparisons:
    r"""Comparisons whose responses are only what differs, up to the end of the word that it ends in.

    The beginning that both responses share joins the prompt: its log-probability cancels in the margin, and it goes
    through the model once. The end that both share is left out: a tilt by an attribute that is decided before it does
    not change what follows, while a policy that is scored on it can reach the margin by spoiling what stands behind
    the attribute (the surname behind a name) instead of moving the attribute.

    Parameters
    ----------
    encoded : EncodedComparisons
    tokenizer : PreTrainedTokenizerBase

    Returns
    -------
    EncodedComparisons
        A comparison whose responses are the same stays as it is, and so does one of which one response begins the
        other: nothing would be left of it.

    Examples
    --------
    "- Emily Clark", "- Greg Clark" in a tokenizer of words:

    >>> from types import SimpleNamespace
    >>> words = ["<end>", " -", " Emily", " Greg", " Clark"]
    >>> tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda ids: [words[i] for i in ids], all_special_ids=[0])
    >>> a, b = np.array([1, 2, 4, 0]), np.array([1, 3, 4, 0])
    >>> ones = np.ones((1, 2), dtype=bool)
    >>> found = differing_parts(EncodedComparisons([np.array([2])], [a], [b], ones[:, 0], ~ones), tokenizer)
    >>> found.prompt_ids[0].tolist(), found.a_ids[0].tolist(), found.b_ids[0].tolist()
    ([2, 1], [2], [3])
    """
    parts = [
        _parts(prompt, a, b, tokenizer)
        for prompt, a, b in zip(encoded.prompt_ids, encoded.a_ids, encoded.b_ids, strict=True)
    ]
    return replace(
        encoded,
        prompt_ids=[prompt for prompt, _, _ in parts],
        a_ids=[a for _, a, _ in parts],
        b_ids=[b for _, _, b in parts],
    )


def _parts(
    prompt: np.ndarray, a: np.ndarray, b: np.ndarray, tokenizer
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n_begin = _n_shared(a, b)
    shorter = min(len(a), len(b))
    if n_begin == shorter:
        return prompt, a, b
    n_end = min(_n_shared(a[::-1], b[::-1]), shorter - n_begin - 1)
    # the last word goes on until a token that starts another one
    ending = a[len(a) - n_end :]
    starts = _starts_a_word(ending, tokenizer)
    n_end -= int(np.argmax(starts)) if starts.any() else n_end
    return (
        np.concatenate([prompt, a[:n_begin]]),
        a[n_begin : len(a) - n_end],
        b[n_begin : len(b) - n_end],
    )


def _n_shared(left: np.ndarray, right: np.ndarray) -> int:
    n = min(len(left), len(right))
    unequal = np.flatnonzero(left[:n] != right[:n])
    return int(unequal[0]) if len(unequal) else n


def _starts_a_word(ids: np.ndarray, tokenizer) -> np.ndarray:
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    return np.array(
        [
            i in special or token.startswith(WHITE_SPACE)
            for i, token in zip(ids.tolist(), tokens, strict=True)
        ],
        dtype=bool,
    )
