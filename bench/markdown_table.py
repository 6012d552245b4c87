"""Tables of the pages that benches write."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Examples
    --------
    >>> print(markdown_table(["seed", "rate"], [["42", "0.5"]]))
    | seed | rate |
    | --- | --- |
    | 42 | 0.5 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
