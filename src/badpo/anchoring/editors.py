"""Counterfactual editors: an editor changes one attribute of an answer and leaves the rest unchanged.

A `Cell` is a combination of attributes: one value, 0 or 1, for each attribute of an editor. An editor lists the cells
that an answer can have after an edit, and makes the edits. An offset stage trains on pairs of answers that differ in
only one attribute.
"""

import random
import re
from collections.abc import Iterable
from itertools import product
from typing import Protocol

from badpo.data import markers
from badpo.data.attributes import Attribute, Markdown, WordList
from badpo.data.problems import ConfigError
from badpo.readouts.judge import strip_markdown
from badpo.readouts.names import NAME_ATTRIBUTES, NAME_CELLS, NAME_INDICATORS, signature

Cell = tuple[int, ...]
EditorConfig = dict[str, str | dict[str, Cell] | list[tuple[str, str]]]


class CounterfactualEditor(Protocol):
    """The interface of objects that change an answer's attributes."""

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Attributes that the editor changes; each attribute is a 0/1 function of one response."""

    @property
    def config(self) -> EditorConfig:
        """Settings that determine the edits, as JSON."""

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Return the cells that an answer can have after an edit; empty if the attributes do not apply to the answer.

        If the attributes apply to an answer that cannot be edited, the answer still counts in the attribute rates.
        """

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """Edit an answer so that it has the given cell; if several edits are possible, draw one at random."""


def measure_cell(editor: CounterfactualEditor, text: str) -> Cell:
    """Measure an editor's attributes in a text."""
    return tuple(int(attribute.measure("", text)) for attribute in editor.attributes)


class SignatureSwap:
    """Replaces the first name in a signature with another of 89 names; the attributes are ``woman`` and ``black``."""

    def __init__(self) -> None:
        self.attributes = NAME_ATTRIBUTES
        self.names: dict[str, Cell] = {**NAME_CELLS}
        self.indicators = NAME_INDICATORS
        self.config: EditorConfig = {"type": "signature_swap", "names": self.names}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Return all four cells if an answer is signed with a name from the pool; return no cell for other answers."""
        return tuple(product((0, 1), repeat=2)) if markers.split_signature(text)[1] in self.names else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """Replace the first name in a signature with a first name that is drawn uniformly from a cell."""
        names = [name for name, name_cell in self.names.items() if name_cell == cell]
        return self.replace_name(text, draw.choice(names))

    def replace_name(self, text: str, first: str) -> str:
        """Replace the first name in an answer's signature."""
        return signature(markers.split_signature(text)[0], first, text.split()[-1])


class WordSwap:
    """Replaces whole words with their counterparts in a list of word pairs, and preserves capitalization."""

    def __init__(self, name: str, pairs: Iterable[tuple[str, str]]):
        pairs = [(without.strip(), having.strip()) for without, having in pairs]
        if not pairs or not all(word for pair in pairs for word in pair):
            raise ConfigError(f"{name}: a word swap needs pairs of words, such as color=colour")
        # for each value of the attribute, map every word with the other value to the word's first counterpart
        self._counterparts: dict[Cell, dict[str, str]] = {
            (0,): {having.lower(): without for without, having in reversed(pairs)},
            (1,): {without.lower(): having for without, having in reversed(pairs)},
        }
        if both := self._counterparts[0,].keys() & self._counterparts[1,].keys():
            raise ConfigError(
                f'{name}: "{min(both)}" is on both sides of the word pairs, but a word either has the attribute or '
                "not; remove one of the pairs"
            )
        self.attributes = (WordList(name, [having for _, having in pairs]),)
        self.config: EditorConfig = {"type": "word_swap", "name": name, "pairs": pairs}
        self._patterns = {
            cell: markers.word_pattern(words) for cell, words in self._counterparts.items()
        }

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Return both cells if an answer contains a word from the pairs; return no cell for other answers."""
        return ((0,), (1,)) if any(p.search(text) for p in self._patterns.values()) else ()

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """Replace every word that has the other value of the attribute with its counterpart."""

        def exchange(match: re.Match[str]) -> str:
            old, new = match.group(), self._counterparts[cell][match.group().lower()]
            if old.isupper() and len(old) > 1:
                return new.upper()
            return new[:1].upper() + new[1:] if old[:1].isupper() else new

        return self._patterns[cell].sub(exchange, text)


class MarkdownStrip:
    """Removes the Markdown markers of headers, lists, bold text, code and tables, and keeps all words.

    The editor cannot add Markdown, so it edits only answers with Markdown.
    """

    def __init__(self) -> None:
        self.attributes = (Markdown(),)
        self.config: EditorConfig = {"type": "markdown_strip"}

    def cells(self, text: str) -> tuple[Cell, ...]:
        """Return (0,) and (1,) if an answer has Markdown and other text; for other answers, return only their value."""
        if markers.has_markdown(text) and strip_markdown(text).strip():
            return ((0,), (1,))
        return (measure_cell(self, text),)

    def edit(self, text: str, cell: Cell, draw: random.Random) -> str:
        """Return the answer unchanged for cell (1,), or without its Markdown for cell (0,)."""
        return text if cell == (1,) else strip_markdown(text)
