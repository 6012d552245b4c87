"""The built-in attributes by the type that a configuration names, and an attribute from its configuration."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from badpo.data import markers
from badpo.data import markers as wording
from badpo.data.problems import ConfigError, did_you_mean

Scope = Literal["response", "pair", "judgment"]
Text = str | list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Attribute:
    """A declared attribute.

    Attributes
    ----------
    name : str
    scope : "response", "pair" or "judgment"
    measure : callable
        See the module's text for its arguments. Responses and prompts arrive as plain text.
    continuous : bool
        False for 0/1 attributes.
    threshold : float
        A judgment is cross-group where ``|d| > threshold``; 0 for binary attributes.
    config : mapping
        Identity as JSON: ``type`` and parameters. `badpo.data.attributes.attribute_from_config` reads it back,
        except for `PythonFunction`.
    columns : pair of str or None
        Columns of the table that hold g of side a and of side b; None when the attribute is measured from text.

    Examples
    --------
    >>> Attribute("question", "response", lambda prompt, response: response.endswith("?")).measure("", "Rice?")
    True
    """

    name: str
    scope: Scope
    measure: Callable[..., Any]
    continuous: bool = False
    threshold: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"Attribute({self.name!r}, scope={self.scope!r}, config={dict(self.config)!r})"


def plain_text(response: Text) -> str:
    """Text of a response: itself, or what the assistant says in a list of chat messages.

    Parameters
    ----------
    response : str or list of dict
        Messages with ``role`` and ``content``.

    Returns
    -------
    str
        Contents of the assistant's messages joined by a newline; of all messages when none is the assistant's, so
        that a prompt has a text too.

    Examples
    --------
    >>> plain_text([{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}])
    'Yes.'
    >>> plain_text("Yes.")
    'Yes.'
    """
    if isinstance(response, str):
        return response
    said = [message["content"] for message in response if message["role"] == "assistant"]
    return "\n".join(said or [message["content"] for message in response])


def function_path(function: Any) -> str:
    """Where a function or object of the user's comes from, as ``module:name``.

    Examples
    --------
    >>> function_path(plain_text)
    'badpo.data.attributes:plain_text'
    """
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def checked_number(key: str, value: Any) -> float:
    """A number, also when it is written as text.

    Raises
    ------
    ConfigError
        When it is none.

    Examples
    --------
    >>> checked_number("ratio", "1.5")
    1.5
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} must be a number; got {value!r}") from None


def checked_positive(key: str, value: Any) -> float:
    """A finite number above 0, or `ConfigError`.

    Examples
    --------
    >>> checked_positive("unit", 100)
    100.0
    """
    number = checked_number(key, value)
    if not (number > 0 and math.isfinite(number)):
        raise ConfigError(f"{key} must be above 0; got {number:g}")
    return number


def checked_threshold(value: Any) -> float:
    """A finite number of at least 0, or `ConfigError`.

    Examples
    --------
    >>> checked_threshold(0)
    0.0
    """
    number = checked_number("threshold", value)
    if not (number >= 0 and math.isfinite(number)):
        raise ConfigError(f"threshold must be 0 or more; got {number:g}")
    return number


def checked_words(name: str, words: Iterable[str]) -> list[str]:
    """The words that attribute ``name`` looks for: at least one, none empty, or `ConfigError`.

    Examples
    --------
    >>> checked_words("hedging", ("perhaps", "it depends"))
    ['perhaps', 'it depends']
    """
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise ConfigError(f'attribute "{name}" needs a list of words; got {words!r}')
    listed = list(words)
    if not listed or not all(isinstance(word, str) and word.strip() for word in listed):
        raise ConfigError(f'attribute "{name}" needs at least one word, and no empty one')
    return listed


def Column(name: str, a: str, b: str, threshold: float = 0.0, continuous: bool | None = None) -> Attribute:
    """Two number columns of the table: ``a`` holds g of response a (or of the chosen one), ``b`` of the other.

    All votes on a comparison must agree on them; a row that has the two responses the other way round is turned,
    its two numbers with it. ``continuous`` is taken from the threshold when it is not given: True above 0.

    Examples
    --------
    >>> Column("hedging", a="hedge_chosen", b="hedge_rejected").columns
    ('hedge_chosen', 'hedge_rejected')
    """
    threshold = checked_threshold(threshold)
    continuous = threshold > 0 if continuous is None else continuous
    config = {
        "type": "column",
        "name": name,
        "a": a,
        "b": b,
        "threshold": threshold,
        "continuous": continuous,
    }

    def measure(prompt: str, first: str, second: str) -> tuple[float, float]:
        raise ConfigError(
            f'attribute "{name}" is read from the columns {a} and {b}; it cannot be measured from text'
        )

    return Attribute(name, "pair", measure, continuous, threshold, config, columns=(a, b))


def Position(name: str = "position") -> Attribute:
    """+1 where response a was shown first, -1 where b was; 0, and compared only with its like, where nobody says.

    Its level is the pool's lean toward the first-shown side. Needs the column ``shown_first``.

    Examples
    --------
    >>> Position().measure({"shown_first": "b"}, {})
    -1.0
    """
    signs = {"a": 1.0, "b": -1.0}
    return Attribute(
        name,
        "judgment",
        lambda vote, comparison: signs.get(vote["shown_first"], 0.0),
        config={"type": "position", "name": name},
    )


def PythonFunction(
    name: str,
    function: Callable[..., Any],
    scope: Scope = "response",
    threshold: float = 0.0,
    continuous: bool = False,
) -> Attribute:
    """A function of yours, with the arguments and the value that the scope asks for (see the module's text).

    Only from Python: a configuration file cannot name code to run.

    Examples
    --------
    >>> PythonFunction("polite", lambda prompt, response: "please" in response.lower()).measure("", "Please sit.")
    True
    """
    if scope not in ("response", "pair", "judgment"):
        raise ConfigError(f'attribute "{name}": scope must be response, pair or judgment; got {scope!r}')
    threshold = checked_threshold(threshold)
    config = {
        "type": "python_function",
        "name": name,
        "function": function_path(function),
        "scope": scope,
        "threshold": threshold,
        "continuous": continuous,
    }
    return Attribute(name, scope, function, continuous, threshold, config)


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

    The list is `badpo.data.markers.HEDGES`; use `WordList` for one of your own.

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


ATTRIBUTES: dict[str, Callable[..., Attribute]] = {
    "length": Length,
    "length_words": LengthWords,
    "length_tokens": LengthTokens,
    "markdown": Markdown,
    "lists": Lists,
    "headers": Headers,
    "bold": Bold,
    "emoji": Emoji,
    "code": Code,
    "links": Links,
    "hedging": Hedging,
    "refusal": Refusal,
    "first_person": FirstPerson,
    "signature_name": SignatureName,
    "word_list": WordList,
    "regex": Regex,
    "column": Column,
    "position": Position,
}

_TEXTS = ("name", "pattern", "a", "b", "tokenizer")


def attribute_from_config(config: Mapping[str, Any]) -> Attribute:
    """The attribute that a configuration describes.

    Parameters
    ----------
    config : mapping
        ``type`` (a key of ``ATTRIBUTES``) and the constructor's parameters. ``scope`` may be given and must then be
        right: the paper's length is an attribute of the pair.

    Raises
    ------
    ConfigError
        Unknown type or parameter, a parameter that is missing, or another scope.

    Examples
    --------
    >>> attribute_from_config({"type": "length", "ratio": 2}).config
    {'type': 'length', 'name': 'length', 'ratio': 2.0}
    """
    parameters = dict(config)
    kind, scope = parameters.pop("type", None), parameters.pop("scope", None)
    if kind == "python_function":
        raise ConfigError(
            "an attribute that is a Python function can only be declared in Python, not in a file"
        )
    if not isinstance(kind, str) or kind not in ATTRIBUTES:
        raise ConfigError(
            f"unknown attribute type {kind!r}.{did_you_mean(str(kind), list(ATTRIBUTES))} "
            f"Known: {', '.join(ATTRIBUTES)}"
        )
    constructor = ATTRIBUTES[kind]
    _check_parameters(kind, constructor, parameters)
    attribute = constructor(**parameters)
    if scope not in (None, attribute.scope):
        raise ConfigError(
            f'attribute "{attribute.name}": {kind} is an attribute of the {attribute.scope}, not {scope}'
        )
    return attribute


def _is_text(value: Any) -> bool:
    """Whether a value is a text that says something and can be written to a file."""
    return (
        isinstance(value, str) and bool(value.strip()) and value == value.encode("utf-8", "ignore").decode()
    )


def _check_parameters(
    kind: str, constructor: Callable[..., Attribute], parameters: Mapping[str, Any]
) -> None:
    known = inspect.signature(constructor).parameters
    for key in parameters:
        if key not in known:
            hint = did_you_mean(str(key), list(known))
            raise ConfigError(
                f'attribute type {kind} has no parameter "{key}".{hint} It takes: {", ".join(known)}'
            )
    for key in _TEXTS:
        if key in parameters and not _is_text(parameters[key]):
            raise ConfigError(f"attribute type {kind}: {key} must be text; got {parameters[key]!r}")
    if not isinstance(parameters.get("continuous"), bool | None):
        raise ConfigError(f"attribute type {kind}: continuous must be true or false")
    missing = [key for key, value in known.items() if value.default is value.empty and key not in parameters]
    if missing:
        raise ConfigError(f"attribute type {kind} needs {', '.join(missing)}")
