"""Attributes that are measured from the text of the responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from badpo.data import markers, wording
from badpo.data.attribute import Attribute, function_path
from badpo.data.parameters import checked_number, checked_positive, checked_threshold, checked_words
from badpo.data.problems import ConfigError


def Length(ratio: float = 1.5, name: str = "length") -> Attribute:
    """The markedly longer response: 1 for the side with at least ``ratio`` times the other's words.

    Words are separated by white space; an empty text counts as one word. (0, 0) where neither side is that much
    longer. BA-DPO, appendix `app:multipref`.

    Examples
    --------
    >>> Length(ratio=1.5).measure("Why?", "because it is so", "just because")
    (1.0, 0.0)
    >>> Length(ratio=1.5).measure("Why?", "because it is", "it just is so")
    (0.0, 0.0)
    """
    ratio = checked_number("ratio", ratio)
    if not ratio > 1:
        raise ConfigError(
            f"length: ratio must be above 1, or equal lengths would count as longer; got {ratio:g}"
        )

    def measure(prompt: str, a: str, b: str) -> tuple[float, float]:
        words_a, words_b = len(a.split()), len(b.split())
        return float(markedly_longer(words_a, words_b, ratio)), float(
            markedly_longer(words_b, words_a, ratio)
        )

    return Attribute(name, "pair", measure, config={"type": "length", "name": name, "ratio": ratio})


def markedly_longer(words: Any, other_words: Any, ratio: float) -> Any:
    """Whether a text has at least ``ratio`` times the words of another, and more of them.

    Parameters
    ----------
    words, other_words : int, or arrays of int
        An empty text counts as one word.
    ratio : float
        1 or more; 1 asks for any longer text.

    Returns
    -------
    bool, or array of bool

    Examples
    --------
    >>> markedly_longer(3, 2, 1.5), markedly_longer(2, 2, 1.0), markedly_longer(1, 0, 1.5)
    (True, False, False)
    """
    return (words >= ratio * other_words) & (words >= ratio) & (words > other_words)


def LengthWords(threshold: float, unit: float = 1.0, name: str = "length_words") -> Attribute:
    """Number of white-space words divided by ``unit``; cross-group where the sides differ by more than ``threshold``.

    The threshold is in the same unit. A theta is per unit: with ``unit=100`` it is the lean per hundred words, a
    size that the bias term's learning rate is made for.

    Examples
    --------
    >>> LengthWords(threshold=0.5, unit=10).measure("Why?", "because it is so")
    0.4
    """
    unit, threshold = checked_positive("unit", unit), checked_threshold(threshold)
    config = {"type": "length_words", "name": name, "threshold": threshold, "unit": unit}
    return Attribute(
        name, "response", lambda prompt, response: len(response.split()) / unit, True, threshold, config
    )


def LengthTokens(
    tokenizer: Any, threshold: float, unit: float = 1.0, name: str = "length_tokens"
) -> Attribute:
    """Number of tokens divided by ``unit``, without special tokens; see `LengthWords` for threshold and unit.

    ``tokenizer`` is a name or path for `transformers.AutoTokenizer` (loaded at the first text), a tokenizer of
    transformers, or any function from a text to a sequence of tokens.

    Examples
    --------
    >>> LengthTokens(str.split, threshold=50).measure("Why?", "because it is so")
    4.0
    """
    unit, threshold = checked_positive("unit", unit), checked_threshold(threshold)
    config = {
        "type": "length_tokens",
        "name": name,
        "tokenizer": tokenizer
        if isinstance(tokenizer, str)
        else getattr(tokenizer, "name_or_path", function_path(tokenizer)),
        "threshold": threshold,
        "unit": unit,
    }

    def measure(prompt: str, response: str) -> float:
        loaded = _pretrained_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        if hasattr(loaded, "name_or_path"):
            return len(loaded(response, add_special_tokens=False)["input_ids"]) / unit
        return len(loaded(response)) / unit

    return Attribute(name, "response", measure, True, threshold, config)


def Markdown(name: str = "markdown") -> Attribute:
    """1 when the response has a header, a list, bold text, a code fence or a table line. See `badpo.data.markers`.

    Examples
    --------
    >>> Markdown().measure("Why?", "- because")
    1.0
    """
    return _of_text("markdown", name, markers.has_markdown)


def Lists(name: str = "lists") -> Attribute:
    """1 when a line starts with a bullet or a number.

    Examples
    --------
    >>> Lists().measure("Why?", "1. because")
    1.0
    """
    return _of_text("lists", name, markers.has_list)


def Headers(name: str = "headers") -> Attribute:
    """1 when a line is a Markdown header.

    Examples
    --------
    >>> Headers().measure("Why?", "# Because")
    1.0
    """
    return _of_text("headers", name, markers.has_header)


def Bold(name: str = "bold") -> Attribute:
    """1 when some text stands between double asterisks.

    Examples
    --------
    >>> Bold().measure("Why?", "**because**")
    1.0
    """
    return _of_text("bold", name, markers.has_bold)


def Emoji(name: str = "emoji") -> Attribute:
    """1 when the response has an emoji or a symbol of that kind.

    Examples
    --------
    >>> Emoji().measure("Why?", "because :)")
    0.0
    """
    return _of_text("emoji", name, markers.has_emoji)


def Code(name: str = "code") -> Attribute:
    """1 when the response has a code fence (three backticks).

    Examples
    --------
    >>> Code().measure("Why?", "```because```")
    1.0
    """
    return _of_text("code", name, markers.has_code_fence)


def Links(name: str = "links") -> Attribute:
    """1 when the response has a web address or a Markdown link.

    Examples
    --------
    >>> Links().measure("Why?", "See https://example.org.")
    1.0
    """
    return _of_text("links", name, markers.has_link)


def Hedging(name: str = "hedging") -> Attribute:
    """1 when the response weakens a claim: "perhaps", "might", "I think" and the like (English).

    The list is `badpo.data.wording.HEDGES`; use `WordList` for one of your own.

    Examples
    --------
    >>> Hedging().measure("Why?", "Perhaps it is so.")
    1.0
    """
    return _of_text("hedging", name, wording.has_hedge)


def Refusal(name: str = "refusal") -> Attribute:
    """1 when the opening of the response says that the speaker cannot or will not do it (English).

    Examples
    --------
    >>> Refusal().measure("Why?", "I'm sorry, but I cannot help with that.")
    1.0
    """
    return _of_text("refusal", name, wording.has_refusal)


def FirstPerson(name: str = "first_person") -> Attribute:
    """1 when the speaker says I, me, my, mine or myself (English).

    Examples
    --------
    >>> FirstPerson().measure("Why?", "I say so.")
    1.0
    """
    return _of_text("first_person", name, wording.has_first_person)


def SignatureName(name: str, names: Iterable[str]) -> Attribute:
    r"""1 when the response ends in a signature whose first name is one of ``names``; an unsigned response has 0.

    Examples
    --------
    >>> woman = SignatureName("woman", ["Emily", "Anne"])
    >>> woman.measure("Why?", "Because.\n\n— Emily Miller"), woman.measure("Why?", "Emily said so.")
    (1.0, 0.0)
    """
    carriers = checked_words(name, names)
    carrier_set = frozenset(carriers)
    return _of_text(
        "signature_name", name, lambda text: markers.signature_first_name(text) in carrier_set, names=carriers
    )


def WordList(name: str, words: Iterable[str]) -> Attribute:
    """1 when one of the words or phrases stands in the response as a whole word, in upper or lower case.

    Examples
    --------
    >>> WordList("hedging", ["perhaps", "it depends"]).measure("Why?", "Well, it depends.")
    1.0
    """
    listed = checked_words(name, words)
    return _of_text("word_list", name, _found(markers.word_pattern(listed)), words=listed)


def Regex(name: str, pattern: str) -> Attribute:
    r"""1 when the regular expression is found anywhere in the response. Write ``(?i)`` for upper or lower case.

    The pattern is yours: one with nested repetitions can take very long on a long text.

    Examples
    --------
    >>> Regex("question", r"[?]\s*$").measure("Why?", "Why not?")
    1.0
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f'attribute "{name}": {pattern!r} is not a regular expression: {error}') from error
    return _of_text("regex", name, _found(compiled), pattern=pattern)


def _of_text(kind: str, name: str, test: Callable[[str], bool], **parameters: Any) -> Attribute:
    """A 0/1 attribute of the response's own text."""
    config = {"type": kind, "name": name, **parameters}
    return Attribute(name, "response", lambda prompt, response: float(test(response)), config=config)


def _found(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.search(text) is not None


@lru_cache(maxsize=4)
def _pretrained_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
