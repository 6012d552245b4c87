"""Counterfactual editors: the same answer with an attribute exchanged, everything else as it was.

A `cell` is one 0 or 1 for each attribute of an editor. An editor says into which cells an answer can be put, and puts
it there; pairs of answers that differ in nothing else are what an offset stage learns from.
"""

import random
from collections.abc import Iterable
from itertools import product
from typing import Protocol

import numpy as np

from badpo.data import markers
from badpo.data.attributes import Attribute, Markdown, SignatureName, WordList
from badpo.data.problems import ConfigError
from badpo.readouts.judge import strip_markdown
from badpo.readouts.names import NAMES, black_names, signature, woman_names

Cell = tuple[int, ...]


class CounterfactualEditor(Protocol):
    """What can exchange an attribute of an answer."""

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """The attributes that it exchanges, each a 0/1 function of one response."""

    @property
    def config(self) -> dict:
        """What decides its edits, as JSON."""

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Cells that this answer can be in, its own among them; empty where the attribute is no choice of the answer.

        An answer of a single cell counts in a rate and cannot be edited.
        """

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer in a cell of `cells`; what the cell leaves open (which name) is drawn."""


def carries(editor: CounterfactualEditor, text: str) -> Cell:
    """The cell that a text is in."""
    return tuple(int(attribute.measure("", text)) for attribute in editor.attributes)


class SignatureSwap:
    """Another first name of the pool of 89 in the signature, the same surname; by ``woman`` and ``black``."""

    def __init__(self) -> None:
        self.attributes = (
            SignatureName("woman", woman_names()),
            SignatureName("black", black_names()),
        )
        self.names: dict[str, Cell] = {name.first: (name.woman, name.black) for name in NAMES}
        self.carried = np.array(list(self.names.values()), dtype=float)
        self.config = {"type": "signature_swap", "names": self.names}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """All cells of the pool for an answer that is signed with a name of it, else none."""
        return tuple(product((0, 1), repeat=2)) if markers.split_signature(text)[1] in self.names else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer signed with a name drawn uniformly from a cell."""
        return self.signed_as(text, draw.choice([name for name, of in self.names.items() if of == cell]))

    def signed_as(self, text: str, first: str) -> str:
        """A signed answer under another first name."""
        return signature(markers.split_signature(text)[0], first, text.split()[-1])


class WordSwap:
    """Words of a list exchanged for their counterparts, whole words, in the case that they stand in."""

    def __init__(self, name: str, pairs: Iterable[tuple[str, str]]):
        pairs = [(without.strip(), carrying.strip()) for without, carrying in pairs]
        if not pairs or not all(word for pair in pairs for word in pair):
            raise ConfigError(f"{name}: a word swap needs pairs of words, such as color=colour")
        # of several counterparts the first is taken
        self._into: dict[Cell, dict[str, str]] = {
            (0,): {carrying.lower(): without for without, carrying in reversed(pairs)},
            (1,): {without.lower(): carrying for without, carrying in reversed(pairs)},
        }
        if both := self._into[0,].keys() & self._into[1,].keys():
            raise ConfigError(
                f'{name}: "{min(both)}" stands on both sides; a word carries the attribute or not'
            )
        self.attributes = (WordList(name, [carrying for _, carrying in pairs]),)
        self.config = {"type": "word_swap", "name": name, "pairs": pairs}
        self._patterns = {cell: markers.word_pattern(words) for cell, words in self._into.items()}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Both cells for an answer with a word of the list, else none."""
        return ((0,), (1,)) if any(p.search(text) for p in self._patterns.values()) else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer with every word of the other side exchanged."""

        def exchanged(found) -> str:
            old, new = found.group(), self._into[cell][found.group().lower()]
            if old.isupper() and len(old) > 1:
                return new.upper()
            return new[:1].upper() + new[1:] if old[:1].isupper() else new

        return self._patterns[cell].sub(exchanged, text)


class MarkdownStrip:
    """Markdown taken off: the words and lines stay, the marks of headers, lists, bold, code and tables go.

    It cannot be put on, so that only answers that have it can be edited; one without it is in the cell that it has.
    """

    def __init__(self) -> None:
        self.attributes = (Markdown(),)
        self.config = {"type": "markdown_strip"}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Both cells for an answer with Markdown of which something is left without it, else its own."""
        if markers.has_markdown(text) and strip_markdown(text).strip():
            return ((0,), (1,))
        return (carries(self, text),)

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer as it is, or without its Markdown."""
        return text if cell == (1,) else strip_markdown(text)
