"""Parameters of attributes, as a configuration file or a command line may give them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from badpo.data.problems import ConfigError


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
