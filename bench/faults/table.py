"""The table of the injected faults: one row per fault and stage, and how rows become a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

# Minutes that a kind of fault may take in `make faults`, in the order in which they are run; of another budget each
# has the same share.
KINDS = {"kills": 24, "torn_files": 6, "full_disk": 3, "ranks": 6, "numerics": 3, "fuzz": 6, "privacy": 3}
KINDS |= {"two_writers": 40, "load": 39}
MINUTES = sum(KINDS.values())
GENERATED = "generated inputs"


@dataclass(frozen=True)
class Row:
    """What was done in which stage, how often, what became of it, and how often something was lost or unnamed."""

    fault: str
    stage: str
    injected: int
    outcome: str
    lost: int


@dataclass(frozen=True)
class Kind:
    """A module of this package as it was last run; its problem is why rows are missing, empty where none is."""

    name: str
    rows: tuple[Row, ...]
    seconds: float
    problem: str = ""

    @property
    def failed(self) -> bool:
        """Whether a loss was found, or the kind could not be run."""
        return bool(self.problem) or any(row.lost for row in self.rows)


def merged(rows: Sequence[Row]) -> list[Row]:
    """Rows with one outcome and as much lost as one row: their faults and stages side by side, their numbers added."""
    alike: dict[tuple, list[Row]] = {}
    for row in rows:
        alike.setdefault((row.outcome, row.lost), []).append(row)
    return [
        Row(
            "; ".join(dict.fromkeys(row.fault for row in found)),
            "; ".join(dict.fromkeys(row.stage for row in found)),
            sum(row.injected for row in found),
            outcome,
            sum(row.lost for row in found),
        )
        for (outcome, _), found in alike.items()
    ]


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    names = [field.name for field in fields(Row)]
    lines = [names, ["---"] * len(names), *(astuple(row) for row in merged(rows))]
    escaped = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def as_section(kind: Kind) -> str:
    """One kind of fault as a section of the page: its table, its time and what went wrong with it."""
    parts = [f"## {kind.name.replace('_', ' ')}"]
    parts += [as_table(kind.rows)] if kind.rows else []
    parts += [f"**Not whole:** {kind.problem}"] if kind.problem else []
    parts.append(f"`python -m bench.faults --only {kind.name}`, {kind.seconds / 60:.1f} minutes.")
    return "\n\n".join(parts)


def totals(kinds: Mapping[str, Kind]) -> str:
    """How much was injected and lost over all kinds, in one line; generated inputs are counted apart."""
    rows = [row for kind in kinds.values() for row in kind.rows]
    n_inputs = sum(row.injected for row in rows if row.fault == GENERATED)
    injected, lost = sum(row.injected for row in rows) - n_inputs, sum(row.lost for row in rows)
    inputs = f" and {n_inputs:,} generated inputs tried" if n_inputs else ""
    return f"{injected:,} faults injected{inputs}, {lost:,} with a loss"
