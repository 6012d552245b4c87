"""The class `Attribute`, the built-in attributes, and functions that create attributes from a configuration.

For each judgment, an attribute defines a difference ``d = g(a) - g(b)``, where ``g`` is the value that the attribute
has for a response. The scope of an attribute determines which arguments its function ``measure`` takes:

``response``
    ``measure(prompt, response) -> g``.
``pair``
    ``measure(prompt, a, b) -> (g_a, g_b)``, for attributes that need both responses, such as the length ratio.
``judgment``
    ``measure(vote, comparison) -> d``, for attributes that differ between the votes on one comparison, such as the side
    that was shown first. The value is None if the vote does not record the attribute. A policy has no attribute with
    this scope.

A built-in attribute consists of a function in this module and a row in `BUILT_IN`; all other code uses the function and
the row.
"""

import inspect
import math
import re
import runpy
import signal
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from badpo.data import markers
from badpo.data.problems import ConfigError, Messages, did_you_mean, is_unicode

Scope = Literal["response", "pair", "judgment"]
Text = str | Messages
Config = Mapping[str, Any]  # the type and the parameters of an attribute, as JSON values
Measure = Callable[..., Any]  # a function that measures an attribute; see the docstring of this module
Parameter = str | int | float | bool | list[str] | list["str | int | float | bool"]
_TEXTS = ("name", "pattern", "a", "b", "tokenizer")
_LISTS = ("names", "words")
_REGEX_SECONDS = 10  # for one text; without nested repetitions, a search takes milliseconds
# letters in scripts that are written without spaces; vowel signs do not count as letters
_UNSPACED = re.compile(
    r"(?=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u312f\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])\w"
)
_UNSPACED_MARK = re.compile(r"[\u3000-\u3004\u3008-\u303f\uff00-\uff0f\uff1a-\uff20\uff5b-\uff65]")


@dataclass(frozen=True, eq=False)
class Attribute:
    """A declared attribute.

    Attributes
    ----------
    name : str
    scope : "response", "pair" or "judgment"
    measure : callable
        Function that measures the attribute. The module's docstring lists the function's arguments. Responses and
        prompts are plain text.
    continuous : bool
        False for 0/1 attributes.
    threshold : float
        A judgment is cross-group if ``|d| > threshold``. The threshold of a binary attribute is 0.
    config : mapping
        The ``type`` and the parameters of the attribute, as JSON values. Except for a `PythonFunction`,
        `badpo.data.attributes.attribute_from_config` creates the same attribute from this mapping.
    columns : pair of str or None
        Names of the columns that hold g(a) and g(b); None if the attribute is measured from text.

    Examples
    --------
    >>> Attribute("question", "response", lambda prompt, response: response.endswith("?")).measure("", "Rice?")
    True
    """

    name: str
    scope: Scope
    measure: Measure = field(repr=False)
    continuous: bool = False
    threshold: float = 0.0
    config: Config = field(default_factory=dict)
    columns: tuple[str, str] | None = None

    @property
    def is_position(self) -> bool:
        """Whether the attribute records which side was shown first; some votes may lack this information."""
        return self.config.get("type") == "position"


# type of the arguments that declare attributes; `as_attributes` converts such an argument to a tuple of `Attribute`
Attributes = Attribute | str | Config | Iterable[Attribute | str | Config]


def plain_text(response: Text) -> str:
    """Return a response as plain text; for a list of chat messages, join the assistant's messages.

    Parameters
    ----------
    response : str or list of dict
        Text, or messages with ``role`` and ``content``.

    Returns
    -------
    str
        The contents of the assistant's messages, joined by newlines. If there is no message from the assistant, as in a
        prompt, the contents of all messages are joined.

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
    """Return the module and name of a user's function or object as ``module:name``."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


# -- the built-in attributes -----------------------------------------------------------------------------------


def Length(ratio: float = 1.5, name: str = "length") -> Attribute:
    """1 for the markedly longer response, which has at least ``ratio`` times as many words as the other response.

    `word_count` counts the words, and an empty text counts as one word. If neither response has at least ``ratio``
    times as many words as the other, both values are 0. The attribute is defined in BA-DPO, appendix `app:multipref`.

    Examples
    --------
    >>> Length(ratio=1.5).measure("Why?", "because it is so", "just because")
    (1.0, 0.0)
    >>> Length(ratio=1.5).measure("Why?", "because it is", "it just is so")
    (0.0, 0.0)
    """
    # the ratio must be above 1: with a ratio of 1, two responses of equal length would both count as longer
    ratio = checked_number("ratio", ratio, above=1)

    def measure(prompt: str, a: str, b: str) -> tuple[float, float]:
        words = word_count(a), word_count(b)
        return float(markedly_longer(*words, ratio)), float(markedly_longer(*words[::-1], ratio))

    return _attribute("length", name, "pair", measure, ratio=ratio)


def word_count(text: str) -> int:
    """Count the words in a text; in a script without spaces, each letter counts as one word.

    The scripts written without spaces are Han, Hiragana, Katakana, Bopomofo, Thai, Lao, Burmese and Khmer.

    Examples
    --------
    >>> word_count("because it is so"), word_count("東京へ行く。"), word_count("GPT 很好")
    (4, 5, 3)
    """
    return len(
        text.split() if text.isascii() else _UNSPACED.sub(" x ", _UNSPACED_MARK.sub(" ", text)).split()
    )


def markedly_longer(words: int, other_words: int, ratio: float) -> bool:
    """Return whether a text has more words than another text, and at least ``ratio`` times as many.

    If the other text is empty, it counts as one word.
    """
    return (words >= ratio * other_words) & (words >= ratio) & (words > other_words)


def LengthWords(threshold: float, unit: float = 1.0, name: str = "length_words") -> Attribute:
    """Number of words divided by ``unit``; a judgment is cross-group if the sides differ by more than ``threshold``.

    `word_count` counts the words. The threshold is in the same unit as the attribute. Theta is the bias per unit: with
    ``unit=100``, theta is the bias per hundred words. The bias term's default learning rate assumes that theta is the
    bias per hundred words, not per word.

    Examples
    --------
    >>> LengthWords(threshold=0.5, unit=10).measure("Why?", "because it is so")
    0.4
    """
    return _count("length_words", name, word_count, threshold, unit)


def LengthTokens(
    tokenizer: Any, threshold: float, unit: float = 1.0, name: str = "length_tokens"
) -> Attribute:
    """Number of tokens, without special tokens, divided by ``unit``; `LengthWords` explains the parameters.

    ``tokenizer`` is a transformers tokenizer, a function that splits a text into a sequence of tokens, or the folder or
    Hub name of a model with a ``tokenizer.json``. The file ``tokenizer.json`` is read when the first text is measured.

    Examples
    --------
    >>> LengthTokens(str.split, threshold=50).measure("Why?", "because it is so")
    4.0
    """
    called = tokenizer if isinstance(tokenizer, str) else getattr(tokenizer, "name_or_path", None)

    def count(text: str) -> int:
        if isinstance(tokenizer, str):
            return len(_read_tokenizer(tokenizer).encode(text, add_special_tokens=False))
        if called is not None:
            return len(tokenizer(text, add_special_tokens=False)["input_ids"])
        return len(tokenizer(text))

    told = called or function_path(tokenizer)
    return _count("length_tokens", name, count, threshold, unit, tokenizer=told)


def Markdown(name: str = "markdown") -> Attribute:
    """1 if the response has a header, a list, bold text, a code fence or a table line. See `badpo.data.markers`.

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
    return _of_text("lists", name, markers.LIST.search)


def Headers(name: str = "headers") -> Attribute:
    """1 when a line is a Markdown header.

    Examples
    --------
    >>> Headers().measure("Why?", "# Because")
    1.0
    """
    return _of_text("headers", name, markers.HEADER.search)


def Bold(name: str = "bold") -> Attribute:
    """1 when some text stands between double asterisks.

    Examples
    --------
    >>> Bold().measure("Why?", "**because**")
    1.0
    """
    return _of_text("bold", name, markers.BOLD.search)


def Emoji(name: str = "emoji") -> Attribute:
    """1 when the response has an emoji or a symbol of that kind.

    Examples
    --------
    >>> Emoji().measure("Why?", "because :)")
    0.0
    """
    return _of_text("emoji", name, markers.EMOJI.search)


def Code(name: str = "code") -> Attribute:
    """1 when the response has a code fence (three backticks).

    Examples
    --------
    >>> Code().measure("Why?", "```because```")
    1.0
    """
    return _of_text("code", name, markers.FENCE.search)


def Links(name: str = "links") -> Attribute:
    """1 when the response has a web address or a Markdown link.

    Examples
    --------
    >>> Links().measure("Why?", "See https://example.org.")
    1.0
    """
    return _of_text("links", name, markers.LINK.search)


def Hedging(name: str = "hedging") -> Attribute:
    """1 when the response weakens a claim: "perhaps", "might", "I think" and the like (English).

    The list of words is in `badpo.data.markers`. Use `WordList` for your own words.

    Examples
    --------
    >>> Hedging().measure("Why?", "Perhaps it is so.")
    1.0
    """
    return _of_text("hedging", name, markers.has_hedge)


def Refusal(name: str = "refusal") -> Attribute:
    """1 when the opening of the response says that the speaker cannot or will not do it (English).

    Examples
    --------
    >>> Refusal().measure("Why?", "I'm sorry, but I cannot help with that.")
    1.0
    """
    return _of_text("refusal", name, markers.has_refusal)


def FirstPerson(name: str = "first_person") -> Attribute:
    """1 when the speaker says I, me, my, mine or myself (English).

    Examples
    --------
    >>> FirstPerson().measure("Why?", "I say so.")
    1.0
    """
    return _of_text("first_person", name, markers.FIRST_PERSON.search)


def SignatureName(name: str, names: Iterable[str]) -> Attribute:
    r"""1 when the response ends in a signature whose first name is one of ``names``; an unsigned response has 0.

    Examples
    --------
    >>> woman = SignatureName("woman", ["Emily", "Anne"])
    >>> woman.measure("Why?", "Because.\n\n— Emily Miller"), woman.measure("Why?", "Emily said so.")
    (1.0, 0.0)
    """
    carriers = checked_words(name, names)
    known = frozenset(carriers)

    def is_signed(text: str) -> bool:
        return markers.split_signature(text)[1] in known

    return _of_text("signature_name", name, is_signed, names=carriers)


def WordList(name: str, words: Iterable[str]) -> Attribute:
    """1 when one of the words or phrases stands in the response as a whole word, in upper or lower case.

    Examples
    --------
    >>> WordList("hedging", ["perhaps", "it depends"]).measure("Why?", "Well, it depends.")
    1.0
    """
    listed = checked_words(name, words)
    return _of_text("word_list", name, markers.word_pattern(listed).search, words=listed)


def Regex(name: str, pattern: str) -> Attribute:
    r"""1 when the regular expression is found anywhere in the response. Write ``(?i)`` for upper or lower case.

    A search for a pattern with nested repetitions can take a very long time. On systems with timers, a search in the
    main thread raises a `ConfigError` if it takes more than ten seconds on one text.

    Examples
    --------
    >>> Regex("question", r"[?]\s*$").measure("Why?", "Why not?")
    1.0
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, TypeError) as error:
        what = f"{pattern!r} is not a regular expression"
        raise ConfigError(f'attribute "{name}": {what}: {error}') from error

    def is_found(text: str) -> bool:
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            return compiled.search(text) is not None
        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, _REGEX_SECONDS)
        try:
            return compiled.search(text) is not None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def stop(signal_number: int, frame: FrameType | None) -> None:
        raise ConfigError(
            f'attribute "{name}": the regular expression {pattern!r} takes more than {_REGEX_SECONDS} seconds on one '
            "text; rewrite it without nested repetitions"
        )

    return _of_text("regex", name, is_found, pattern=pattern)


def Column(
    name: str, a: str, b: str, threshold: float = 0.0, continuous: bool | None = None
) -> Attribute:
    """Two number columns of the table: ``a`` holds g of response a (or of the chosen one), ``b`` of the other.

    All votes on a comparison must have the same number in column ``a``, and the same number in column ``b``. If a row
    lists the two responses in the opposite order, both the responses and their numbers are exchanged. By default,
    ``continuous`` is True if the threshold is above 0.

    Examples
    --------
    >>> Column("hedging", a="hedge_chosen", b="hedge_rejected").columns
    ('hedge_chosen', 'hedge_rejected')
    """
    threshold = checked_number("threshold", threshold)
    if continuous is None:
        continuous = threshold > 0

    def measure(prompt: str, first: str, second: str) -> tuple[float, float]:
        where = f"is read from columns {a}, {b}"
        raise ConfigError(f'attribute "{name}" cannot be measured from text, because it {where}')

    return _attribute(
        "column",
        name,
        "pair",
        measure,
        (a, b),
        a=a,
        b=b,
        threshold=threshold,
        continuous=continuous,
    )


def Position(name: str = "position") -> Attribute:
    """+1 if response a was shown first, -1 if response b was; missing if the vote does not record the position.

    The shared bias estimated for the position is the pool's bias toward the side shown first. The attribute needs the
    column ``shown_first``.

    Examples
    --------
    >>> Position().measure({"shown_first": "b"}, {})
    -1.0
    """
    signs = {"a": 1.0, "b": -1.0}

    def measure(vote: Mapping[str, str | None], comparison: Mapping[str, Text]) -> float | None:
        return signs.get(vote["shown_first"] or "")

    return _attribute("position", name, "judgment", measure)


def PythonFunction(
    name: str,
    function: Measure,
    scope: Scope = "response",
    threshold: float = 0.0,
    continuous: bool = False,
) -> Attribute:
    """Make an attribute from your own function; ``scope`` determines the function's arguments and its result.

    The module's docstring lists the arguments for each scope. An attribute that uses your own function can be declared
    only in Python, because a configuration file must not name code to run.

    Examples
    --------
    >>> PythonFunction("polite", lambda prompt, response: "please" in response.lower()).measure("", "Please sit.")
    True
    """
    if scope not in ("response", "pair", "judgment"):
        raise ConfigError(f'attribute "{name}": scope must be response, pair or judgment; got {scope!r}')
    try:
        arguments = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):  # functions that are written in C may have no signature
        arguments = []
    if scope != "judgment" and "prompt" in arguments[1:]:
        raise ConfigError(f'attribute "{name}": the first argument of the function must be the prompt')
    return _attribute(
        "python_function",
        name,
        scope,
        function,
        function=function_path(function),
        scope=scope,
        threshold=checked_number("threshold", threshold),
        continuous=continuous,
    )


@dataclass(frozen=True)
class BuiltIn:
    """The function that creates a built-in attribute, and the properties of the attribute's type."""

    make: Callable[..., Attribute]
    example: Config = field(default_factory=dict)  # example parameters
    is_scanned: bool = False  # whether the audit scans the attribute when it is not declared
    # the audit does not scan the attribute if an attribute of a type in `repeats` is declared
    repeats: tuple[str, ...] = ()
    is_length: bool = False  # whether the attribute measures the length of answers
    is_coded: bool = False  # whether the attribute is coded from names and so does not describe people
    toward: str = ""  # noun for the object of the bias in messages; by default, the attribute's name


BUILT_IN: dict[str, BuiltIn] = {
    "length": BuiltIn(Length, {"ratio": 1.5}, True, ("length_words", "length_tokens"), is_length=True),
    "length_words": BuiltIn(LengthWords, {"threshold": 20}, is_length=True),
    "length_tokens": BuiltIn(LengthTokens, {"tokenizer": "gpt2", "threshold": 20}, is_length=True),
    "markdown": BuiltIn(Markdown),
    "lists": BuiltIn(Lists, is_scanned=True),
    "headers": BuiltIn(Headers, is_scanned=True),
    "bold": BuiltIn(Bold, is_scanned=True),
    "emoji": BuiltIn(Emoji, is_scanned=True),
    "code": BuiltIn(Code, is_scanned=True),
    "links": BuiltIn(Links, is_scanned=True),
    "hedging": BuiltIn(Hedging, is_scanned=True),
    "refusal": BuiltIn(Refusal, is_scanned=True),
    "first_person": BuiltIn(FirstPerson, is_scanned=True),
    "signature_name": BuiltIn(
        SignatureName, {"name": "woman", "names": ["Emily", "Anne"]}, is_coded=True
    ),
    "word_list": BuiltIn(WordList, {"name": "thanks", "words": ["thank you", "thanks"]}),
    "regex": BuiltIn(Regex, {"name": "question", "pattern": "[?]$"}),
    "column": BuiltIn(Column, {"name": "formality", "a": "formal_a", "b": "formal_b"}),
    "position": BuiltIn(Position, is_scanned=True, toward="the side shown first"),
}
# Maps each attribute type to the function that creates it; `add_attributes` adds the types from a user's file.
ATTRIBUTES: dict[str, Callable[..., Attribute]] = {kind: row.make for kind, row in BUILT_IN.items()}


def describe_attributes() -> list[dict[str, str]]:
    """List the known attribute types.

    Each attribute type is described by a dict with the keys ``type``, ``scope``, ``example`` (as on the command line)
    and ``what`` (a description).
    """
    rows = []
    for kind, make in ATTRIBUTES.items():
        example = BUILT_IN[kind].example if kind in BUILT_IN else {}
        written = [f"{k}={';'.join(v) if isinstance(v, list) else v}" for k, v in example.items()]
        what = (inspect.getdoc(make) or "").partition("\n")[0]
        row = {
            "type": kind,
            "scope": make(**example).scope,
            "example": f"{kind}:{','.join(written)}".strip(":"),
            "what": what.replace("`", ""),
        }
        rows.append(row)
    return rows


def add_attributes(path: str | Path) -> None:
    """Add the attribute types that a user's Python file defines in its mapping ``ATTRIBUTES``.

    The mapping ``ATTRIBUTES`` contains one function for each attribute type. Each function takes the parameters of its
    attribute and returns an `Attribute`, such as a `PythonFunction`. The user must name the Python file in a
    command-line option or a function call, because a recipe or a run folder must not name code to run. An installed
    package can add attribute types through entry points in the group ``badpo.attributes``.
    """
    try:
        own = runpy.run_path(str(path))["ATTRIBUTES"]
    except KeyError:
        raise ConfigError(f'{path} has no ATTRIBUTES, as in ATTRIBUTES = {{"polite": Polite}}') from None
    except Exception as error:  # the user's own code may raise any error
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if taken := sorted(BUILT_IN.keys() & own.keys()):
        what = f"{', '.join(taken)} is the type of a built-in attribute"
        raise ConfigError(f"{path}: {what}; choose another name")
    ATTRIBUTES.update(own)


def checked_number(key: str, value: str | float, above: float | None = None) -> float:
    """Convert a value to a float; raise `ConfigError` if the value is not a finite number or is too small.

    The float must be greater than ``above``. If ``above`` is None, the float must be at least 0.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{key} must be a number; got {value!r}") from None
    is_enough = number >= 0 if above is None else number > above
    if not (is_enough and math.isfinite(number)):
        bound = "0 or more" if above is None else f"above {above:g}"
        raise ConfigError(f"{key} must be {bound}; got {number:g}")
    return number


def checked_words(name: str, words: Iterable[str]) -> list[str]:
    """Return the words of the attribute ``name`` as a list; raise `ConfigError` if the list or a word is empty."""
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise ConfigError(f'attribute "{name}" needs a list of words; got {words!r}')
    listed = list(words)
    if not listed or not all(isinstance(word, str) and word.strip() for word in listed):
        raise ConfigError(f'attribute "{name}" needs at least one word, and no word may be empty')
    return listed


def attribute_from_config(config: Config) -> Attribute:
    """Create the attribute that a configuration describes.

    Parameters
    ----------
    config : mapping
        ``type`` (a key of ``ATTRIBUTES``) and the parameters of the function for this type.

    Raises
    ------
    ConfigError
        If the type or a parameter is unknown, or if a parameter is missing.

    Examples
    --------
    >>> attribute_from_config({"type": "length", "ratio": 2}).config
    {'type': 'length', 'name': 'length', 'ratio': 2.0}
    """
    parameters = dict(config)
    kind = parameters.pop("type", None)
    if kind == "python_function":
        what = "an attribute that is a Python function"
        raise ConfigError(f"{what} can be declared only in Python or with --attribute-file")
    make = _maker(kind)
    _check_parameters(kind, inspect.signature(make).parameters, parameters)
    attribute = make(**parameters)
    if kind not in BUILT_IN:
        attribute = replace(attribute, config={"type": kind, "name": attribute.name, **parameters})
    return attribute


def as_attributes(declared: Attributes) -> tuple[Attribute, ...]:
    """Convert declared attributes to a tuple of `Attribute`.

    ``declared`` is one attribute or several attributes. An attribute may be an `Attribute`, a configuration, or a
    string such as ``"length:ratio=1.5"``.
    """
    if isinstance(declared, str | Mapping) or not isinstance(declared, Iterable):
        declared = [declared]
    return tuple(map(_as_attribute, declared))


def _as_attribute(declared: Attribute | str | Config) -> Attribute:
    if isinstance(declared, Attribute):
        return declared
    if isinstance(declared, str):
        return attribute_from_config(parsed_attribute(declared))
    if isinstance(declared, Mapping):
        return attribute_from_config(declared)
    right, called = '"length:ratio=1.5" or Length(ratio=1.5)', getattr(declared, "__name__", "")
    if callable(declared):
        kinds = [kind for kind, make in ATTRIBUTES.items() if make is declared]
        example = BUILT_IN[kinds[0]].example if kinds and kinds[0] in BUILT_IN else {}
        given = ", ".join(f"{key}={value!r}" for key, value in example.items())
        right = f"{called}({given})" if kinds else 'PythonFunction("name", function)'
    raise ConfigError(f"attributes: {called or repr(declared)} is no attribute; write {right}")


def parsed_attribute(text: str) -> dict[str, Parameter]:
    r"""Parse an attribute such as ``length:ratio=1.5`` (TYPE:KEY=VALUE,KEY=VALUE;VALUE) into its configuration.

    A comma that is not followed by KEY= is part of the value. A pattern or a name may contain a comma; in any other
    value, a comma or a semicolon separates the elements of a list. If a value contains ``,KEY=``, or if a word in a
    list contains a comma, the attribute must be declared in Python.

    Examples
    --------
    >>> parsed_attribute("regex:name=long,pattern=o{2,3}"), parsed_attribute("word_list:words=so, well,name=x")["words"]
    ({'type': 'regex', 'name': 'long', 'pattern': 'o{2,3}'}, ['so', 'well'])
    """
    kind, _, parameters = text.partition(":")
    config: dict[str, Parameter] = {"type": kind}
    for part in re.split(r",(?=\w+=)", parameters) if parameters else []:
        name, equals, value = part.partition("=")
        if not equals:
            what = f'"{part}" is not KEY=VALUE; write it as in "length:ratio=1.5"'
            raise ConfigError(f'attribute "{text}": {what}')
        if name in config:
            raise ConfigError(f'attribute "{text}": {name} is given twice')
        several = [one.strip() for one in re.split("[;,]", value)]
        others = [one for one in several[1:] if one.partition(":")[0] in ATTRIBUTES]
        if others and name not in (*_LISTS, *_TEXTS):
            what = f'"{others[0]}" is an attribute of its own; declare each by itself'
            raise ConfigError(f'attribute "{text}": {what}')
        listed = several if name in _LISTS else [*map(parameter, several)]
        config[name] = value if name in _TEXTS else listed if listed[1:] or name in _LISTS else listed[0]
    return config


def parameter(text: str) -> str | int | float | bool:
    """Convert a string to a number or a bool if possible; return any other string, such as "no" or "on", unchanged."""
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def _maker(kind: Any) -> Callable[..., Attribute]:
    if isinstance(kind, str) and kind not in ATTRIBUTES:
        for installed in entry_points(group="badpo.attributes", name=kind):
            ATTRIBUTES[kind] = installed.load()
    if not isinstance(kind, str) or kind not in ATTRIBUTES:
        hint, known = did_you_mean(str(kind), [*ATTRIBUTES]), ", ".join(ATTRIBUTES)
        several = re.findall(r"\w+", str(kind))
        if several[1:] and {*several} <= {*ATTRIBUTES}:
            hint = f" Declare each by itself: {', '.join(several)}."
        raise ConfigError(
            f"unknown attribute type {kind!r}.{hint} Known: {known}; one of yours: PythonFunction or --attribute-file"
        )
    return ATTRIBUTES[kind]


def _check_parameters(kind: str, known: Mapping[str, inspect.Parameter], given: Config) -> None:
    where = f"attribute type {kind}"
    for key, value in given.items():
        if key not in known:
            hint = did_you_mean(str(key), [*known])
            raise ConfigError(f'{where} has no parameter "{key}".{hint} It takes: {", ".join(known)}')
        if key in _TEXTS and not (isinstance(value, str) and value.strip() and is_unicode(value)):
            raise ConfigError(f"{where}: {key} must be text; got {value!r}")
    if not isinstance(given.get("continuous"), bool | None):
        raise ConfigError(f"{where}: continuous must be true or false")
    if missing := [
        key for key, value in known.items() if value.default is value.empty and key not in given
    ]:
        raise ConfigError(f"{where} needs {', '.join(missing)}")


def _attribute(
    kind: str,
    name: str,
    scope: Scope,
    measure: Measure,
    columns: tuple[str, str] | None = None,
    /,
    **parameters: Any,
) -> Attribute:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"the name of an attribute must be text; got {name!r}")
    # an attribute with the parameter "unit" is a count, and counts are continuous attributes
    continuous = parameters.get("continuous", "unit" in parameters)
    threshold = parameters.get("threshold", 0.0)
    config = {"type": kind, "name": name, **parameters}
    return Attribute(name, scope, measure, continuous, threshold, config, columns)


def _count(
    kind: str,
    name: str,
    count: Callable[[str], int],
    threshold: float,
    unit: float,
    **parameters: str,
) -> Attribute:
    """Make an attribute that counts something in the response's text and divides the count by ``unit``."""
    unit = checked_number("unit", unit, above=0)
    threshold = checked_number("threshold", threshold)

    def measure(prompt: str, response: str) -> float:
        return count(response) / unit

    return _attribute(kind, name, "response", measure, **parameters, threshold=threshold, unit=unit)


def _of_text(kind: str, name: str, test: Callable[[str], object], **parameters: Parameter) -> Attribute:
    """Make a 0/1 attribute that is measured from the response's text."""

    def measure(prompt: str, response: str) -> float:
        return float(bool(test(response)))

    return _attribute(kind, name, "response", measure, **parameters)


@lru_cache(maxsize=4)
def _read_tokenizer(name: str) -> Any:
    """Read only the file tokenizer.json of a model: unlike the model's other files, it cannot contain code."""
    from huggingface_hub import hf_hub_download
    from tokenizers import Tokenizer

    from badpo.data.files import asking_once

    file = "tokenizer.json"
    try:
        with asking_once(name):
            path = Path(name, file) if Path(name).is_dir() else Path(hf_hub_download(name, file))
        if not path.is_file():  # reading a named pipe would block
            raise OSError(f"{path} is no file")
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise ConfigError(
            f'cannot read the tokenizer "{name}" ({str(error).rstrip(".")}); name a folder with a tokenizer.json, or '
            "download the tokenizer once with network access"
        ) from error
    # a tokenizer.json may contain settings that truncate or pad texts
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
