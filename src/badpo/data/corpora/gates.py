"""Statistics of a corpus beside the published ones, read from the votes before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["GateRow", "Published", "compared", "gate_table", "gate_text", "gate_verdict", "told_gate"]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Published:
    """One published statistic.

    Attributes
    ----------
    path : tuple of str
        Keys that lead to it in a gate, such as ``("cross_group", "woman")``.
    value : float
        As it is printed.
    decimals : int
        Decimals that it is printed with; 0 for a count.
    """

    path: tuple[str, ...]
    value: float
    decimals: int = 0


@dataclass(frozen=True)
class GateRow:
    """A statistic of a corpus beside the published one.

    Attributes
    ----------
    name : str
        Its path in the gate, joined by spaces.
    found : float or None
        None where the corpus has no such statistic.
    published : float
    decimals : int
        Decimals that the published one is printed with.
    """

    name: str
    found: float | None
    published: float
    decimals: int

    @property
    def agrees(self) -> bool:
        """Whether the statistic, rounded like the published one, equals it.

        Examples
        --------
        >>> GateRow("log-odds", 0.9946, 0.99, 2).agrees, GateRow("pairs", 7176, 7177, 0).agrees
        (True, False)
        """
        half_a_digit = 0.5 * 10.0**-self.decimals
        return self.found is not None and abs(self.found - self.published) <= half_a_digit + _ROUNDING

    @property
    def texts(self) -> tuple[str, str]:
        """The statistic and the published one, with as many decimals as the published one has."""
        found = "-" if self.found is None else f"{self.found:,.{self.decimals}f}"
        return found, f"{self.published:,.{self.decimals}f}"

    def to_json(self) -> dict[str, Any]:
        """{"name", "found", "published", "agrees"}."""
        return {"name": self.name, "found": self.found, "published": self.published, "agrees": self.agrees}


def compared(gate: Mapping[str, Any], published: Iterable[Published]) -> tuple[GateRow, ...]:
    """Every published statistic beside that of a corpus.

    Parameters
    ----------
    gate : mapping
        Nested statistics of a corpus, such as those of `badpo.data.corpora.signed.gate`.
    published : iterable of Published

    Returns
    -------
    tuple of GateRow, in the order of ``published``

    Examples
    --------
    >>> row, = compared({"pairs": {"swap": 1462}}, [Published(("pairs", "swap"), 1462)])
    >>> row.name, row.found, row.agrees
    ('pairs swap', 1462.0, True)
    """
    rows = []
    for statistic in published:
        found: Any = gate
        for key in statistic.path:
            found = found.get(key) if isinstance(found, Mapping) else None
        rows.append(
            GateRow(
                " ".join(statistic.path),
                None if found is None else float(found),
                statistic.value,
                statistic.decimals,
            )
        )
    return tuple(rows)


def gate_table(rows: Sequence[GateRow]) -> list[str]:
    """The rows as the lines of a Markdown table.

    Examples
    --------
    >>> gate_table([GateRow("pairs swap", 1462.0, 1462, 0)])[-1]
    '| pairs swap | 1,462 | 1,462 | agrees |'
    """
    lines = ["| statistic | here | published | |", "|--|--|--|--|"]
    for row in rows:
        found, published = row.texts
        lines.append(f"| {row.name} | {found} | {published} | {'agrees' if row.agrees else '**differs**'} |")
    return lines


def gate_text(rows: Sequence[GateRow]) -> str:
    """The rows as a Markdown table, and how many of them agree.

    Examples
    --------
    >>> print(gate_text([GateRow("pairs swap", 1462.0, 1462, 0), GateRow("log-odds", 0.72, 0.71, 2)]))
    | statistic | here | published | |
    |--|--|--|--|
    | pairs swap | 1,462 | 1,462 | agrees |
    | log-odds | 0.72 | 0.71 | **differs** |
    <BLANKLINE>
    1 of 2 agree with the published statistics.
    """
    n_agreeing = sum(row.agrees for row in rows)
    return "\n".join(
        [*gate_table(rows), "", f"{n_agreeing} of {len(rows)} agree with the published statistics."]
    )


def gate_verdict(rows: Sequence[GateRow]) -> str:
    """How the statistics of a corpus agree with the published ones, in one line.

    Examples
    --------
    >>> gate_verdict((GateRow("pairs swap", 1460.0, 1462, 0), GateRow("log-odds", 0.714, 0.71, 2)))
    'warning: of 2 published statistics of the votes 1 differs: pairs swap 1,460 (published 1,462)'
    """
    differ = [row for row in rows if not row.agrees]
    if not differ:
        return f"all {len(rows)} published statistics of the votes agree"
    verb = "differs" if len(differ) == 1 else "differ"
    return (
        f"warning: of {len(rows)} published statistics of the votes {len(differ)} {verb}: {told_gate(differ)}"
    )


def told_gate(rows: Iterable[GateRow]) -> str:
    """Statistics beside the published ones, in one line.

    Examples
    --------
    >>> told_gate([GateRow("pairs swap", 1460.0, 1462, 0), GateRow("log-odds", None, 0.71, 2)])
    'pairs swap 1,460 (published 1,462), log-odds - (published 0.71)'
    """
    return ", ".join("{} {} (published {})".format(row.name, *row.texts) for row in rows)
