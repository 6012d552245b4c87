"""Attributes that are read from columns, from the side shown first, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from badpo.data.attribute import Attribute, Scope, function_path
from badpo.data.parameters import checked_threshold
from badpo.data.problems import ConfigError


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
