"""What a topic of the bundled corpus is made of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Topic", "topic"]


@dataclass(frozen=True)
class Topic:
    """The phrases of one everyday topic.

    Attributes
    ----------
    name : str
        One or two words for a heading.
    tasks : tuple of str
        What a person may want to do; fits after "how do I".
    tools : tuple of str
        Things that help, with their article.
    steps : tuple of str
        What to do, as an instruction; fits after "first" and after "to".
    details : tuple of str
        Instructions with a figure in them.
    reasons : tuple of str
        Clauses that fit after "because".
    aims : tuple of str
        Clauses that fit after "so that".
    mistakes : tuple of str
        Instructions that are wrong for this topic.
    """

    name: str
    tasks: tuple[str, ...]
    tools: tuple[str, ...]
    steps: tuple[str, ...]
    details: tuple[str, ...]
    reasons: tuple[str, ...]
    aims: tuple[str, ...]
    mistakes: tuple[str, ...]


def topic(name: str, **phrases: str) -> Topic:
    """Topic from phrases that are separated by semicolons.

    Parameters
    ----------
    name : str
        One or two words for a heading.
    **phrases : str
        The other fields of ``Topic``; phrases of a field stand apart by ``"; "``.

    Returns
    -------
    Topic
        The topic.

    Examples
    --------
    >>> topic("tea", tasks="make tea; cool tea", tools="a pot", steps="boil it", details="wait 3 minutes",
    ...     reasons="it is hot", aims="it is good", mistakes="drop it").tasks
    ('make tea', 'cool tea')
    """
    return Topic(name, **{field: tuple(text.split("; ")) for field, text in phrases.items()})
