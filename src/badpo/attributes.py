"""Attributes to declare: ``from badpo.attributes import Length, Markdown``."""

from __future__ import annotations

from badpo.data.attributes import (
    ATTRIBUTES,
    Attribute,
    Bold,
    Code,
    Column,
    Emoji,
    Headers,
    Length,
    LengthTokens,
    LengthWords,
    Lists,
    Markdown,
    Position,
    PythonFunction,
    Regex,
    SignatureName,
    WordList,
    attribute_from_config,
    plain_text,
)

__all__ = [
    "ATTRIBUTES",
    "Attribute",
    "Bold",
    "Code",
    "Column",
    "Emoji",
    "Headers",
    "Length",
    "LengthTokens",
    "LengthWords",
    "Lists",
    "Markdown",
    "Position",
    "PythonFunction",
    "Regex",
    "SignatureName",
    "WordList",
    "attribute_from_config",
    "plain_text",
]
