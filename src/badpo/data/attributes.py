"""The built-in attributes by the type that a configuration names, and an attribute from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from badpo.data.attribute import Attribute, Scope, Text, plain_text
from badpo.data.problems import ConfigError, did_you_mean
from badpo.data.table_attributes import Column, Position, PythonFunction
from badpo.data.text_attributes import (
    Bold,
    Code,
    Emoji,
    FirstPerson,
    Headers,
    Hedging,
    Length,
    LengthTokens,
    LengthWords,
    Links,
    Lists,
    Markdown,
    Refusal,
    Regex,
    SignatureName,
    WordList,
)

__all__ = [
    "ATTRIBUTES",
    "Attribute",
    "Bold",
    "Code",
    "Column",
    "Emoji",
    "FirstPerson",
    "Headers",
    "Hedging",
    "Length",
    "LengthTokens",
    "LengthWords",
    "Links",
    "Lists",
    "Markdown",
    "Position",
    "PythonFunction",
    "Refusal",
    "Regex",
    "Scope",
    "SignatureName",
    "Text",
    "WordList",
    "attribute_from_config",
    "plain_text",
]

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
