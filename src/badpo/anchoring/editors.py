"""Counterfactual editors: the same answer with an attribute exchanged, everything else as it was.

A `cell` is one 0 or 1 for each attribute of an editor. An editor says into which cells an answer can be put, and puts
it there; pairs of answers that differ in nothing else are what an offset stage learns from.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Protocol

from badpo.data import markers
from badpo.data.attributes import Attribute, Markdown, SignatureName, WordList
from badpo.data.problems import ConfigError
from badpo.readouts.judge import strip_markdown
from badpo.readouts.names import NAMES, signature

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
    """Another first name in the signature, the same surname."""

    def __init__(self, names: Mapping[str, Cell], attributes: Sequence[str]):
        wrong = [name for name, cell in names.items() if len(cell) != len(attributes)]
        if wrong:
            raise ConfigError(f"{wrong[0]}: a cell needs one 0 or 1 for each of {', '.join(attributes)}")
        carriers = [[name for name, cell in names.items() if cell[i]] for i in range(len(attributes))]
        for name, who in zip(attributes, carriers, strict=True):
            if len(who) in (0, len(names)):
                raise ConfigError(
                    f"{name}: {'every' if who else 'no'} name of the pool carries it; a swap needs both kinds"
                )
        self.names = dict(names)
        self.attributes = tuple(
            SignatureName(name, who) for name, who in zip(attributes, carriers, strict=True)
        )
        self.config = {"type": "signature_swap", "attributes": list(attributes), "names": self.names}
        self._names_of: dict[Cell, list[str]] = {}
        for name, cell in sorted(names.items(), key=lambda item: item[1]):
            self._names_of.setdefault(cell, []).append(name)

    def cells(self, text: str) -> tuple[Cell, ...]:
        """All cells of the pool for an answer that is signed with a name of it, else none."""
        return tuple(self._names_of) if markers.signature_first_name(text) in self.names else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer signed with a name drawn uniformly from a cell."""
        return self.signed_as(text, draw.choice(self._names_of[cell]))

    def signed_as(self, text: str, first: str) -> str:
        """A signed answer under another first name."""
        return signature(markers.split_signature(text)[0], first, text.split()[-1])


def pool_signatures() -> SignatureSwap:
    """Signatures of the pool of 89 names, by ``woman`` and ``black``."""
    return SignatureSwap({name.first: (name.woman, name.black) for name in NAMES}, ["woman", "black"])


class WordSwap:
    """Words of a list exchanged for their counterparts, whole words, in the case that they stand in."""

    def __init__(self, name: str, pairs: Iterable[tuple[str, str]]):
        pairs = [(without.strip(), carrying.strip()) for without, carrying in pairs]
        if not pairs or not all(word for pair in pairs for word in pair):
            raise ConfigError(f"{name}: a word swap needs pairs of words, such as color=colour")
        sides = [{word.lower() for word in side} for side in zip(*pairs, strict=True)]
        if sides[0] & sides[1]:
            raise ConfigError(
                f'{name}: "{min(sides[0] & sides[1])}" stands on both sides; a word carries the attribute or not'
            )
        self.attributes = (WordList(name, [carrying for _, carrying in pairs]),)
        self.config = {"type": "word_swap", "name": name, "pairs": pairs}
        self._into: dict[int, dict[str, str]] = {0: {}, 1: {}}
        for without, carrying in pairs:
            self._into[0].setdefault(carrying.lower(), without)
            self._into[1].setdefault(without.lower(), carrying)
        self._patterns = {cell: markers.word_pattern(words) for cell, words in self._into.items()}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Both cells for an answer with a word of the list, else none."""
        return ((0,), (1,)) if any(p.search(text) for p in self._patterns.values()) else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer with every word of the other side exchanged."""
        words = self._into[cell[0]]
        return self._patterns[cell[0]].sub(
            lambda found: _in_case_of(words[found.group().lower()], found.group()), text
        )


class MarkdownStrip:
    """Markdown taken off: the words and lines stay, the marks of headers, lists, bold, code and tables go.

    It cannot be put on, so that only answers that have it can be edited; one without it is in the cell that it has.
    """

    def __init__(self, name: str = "markdown"):
        self.attributes = (Markdown(name),)
        self.config = {"type": "markdown_strip", "name": name}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Both cells for an answer with Markdown of which something is left without it, else its own."""
        if markers.has_markdown(text) and strip_markdown(text).strip():
            return ((0,), (1,))
        return (carries(self, text),)

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """The answer as it is, or without its Markdown."""
        return text if cell == (1,) else strip_markdown(text)


def all_cells(n_attributes: int) -> tuple[Cell, ...]:
    """Every cell of so many attributes, from all 0 to all 1."""
    return tuple(product((0, 1), repeat=n_attributes))


def _in_case_of(word: str, model: str) -> str:
    if model.isupper() and len(model) > 1:
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word
