"""An answer without the attribute, so that a judge can score the rest of it.

A strip leaves nothing that the attribute's own detector finds. Length has none: an answer of another length is
another answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from badpo.data.attribute import Attribute
from badpo.data.markers import has_markdown, signature_first_name

# Runs are taken whole, so that nothing new is joined where they stood.
_FENCE = re.compile(r"`{3,}[^\S\n]*\w*$|`{3,}", re.MULTILINE)
_BOLD = re.compile(r"\*{2,}([^*]+)\*{2,}")
_LINE_MARKS = re.compile(r"^(?:[^\S\n]*(?:#{1,6}|[-*+]|\d+\.)(?=\s))+[^\S\n]*", re.MULTILINE)
_TABLE_LINE = re.compile(r"^[^\S\n]*\|(.*)\|[^\S\n]*$", re.MULTILINE)
_RULE = re.compile(r"[\s|:=-]*")


def strip_markdown(text: str) -> str:
    """Text without the marks that `badpo.data.markers.has_markdown` looks for; the words stay.

    Fences go with the name of their language, header and list marks from the front of their lines, asterisks from
    around bold text, bars from table lines. What a removal brings to light is removed too.
    """
    before = ""
    # a pass that changes nothing would change nothing the next time either
    while text != before and has_markdown(text):
        before = text
        text = _FENCE.sub("", text)
        text = _BOLD.sub(r"\1", text)
        text = _LINE_MARKS.sub("", text)
        text = _TABLE_LINE.sub(_cells, text)
    return text


def strip_signatures(text: str) -> str:
    """Text without the signature at its end, nor any that stands above it."""
    lines = text.split("\n")
    first = kept = len(lines)
    # the first line is no signature: there is nothing that it could be below
    while first > 1:
        line = lines[first - 1]
        if signature_first_name(f"\n{line}"):
            kept = first - 1
        elif line.strip():
            break
        first -= 1
    return text if kept == len(lines) else "\n".join(lines[:kept]).rstrip()


STRIPS: dict[str, Callable[[str], str]] = {"markdown": strip_markdown, "signature_name": strip_signatures}


def strip_for(attribute: Attribute) -> Callable[[str], str] | None:
    """The strip of an attribute; None where there is none."""
    return STRIPS.get(str(attribute.config.get("type")))


def _cells(line: re.Match[str]) -> str:
    """The cells of a table line, spaced; nothing for a rule between header and body."""
    inside = line.group(1)
    return "" if _RULE.fullmatch(inside) else " ".join(inside.replace("|", " ").split())
