"""What a declared attribute is, and the plain text that it is measured on.

An attribute gives each judgment a difference ``d = g(a) - g(b)``. Where it is measured is its scope:

``response``
    ``measure(prompt, response) -> g``.
``pair``
    ``measure(prompt, a, b) -> (g_a, g_b)``, for attributes such as the length ratio that need both sides.
``judgment``
    ``measure(vote, comparison) -> d``, for what differs between the votes on one comparison, such as the side that
    was shown first. A policy never sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
    'badpo.data.attribute:plain_text'
    """
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
