"""The table of the injected faults: one row per fault and stage, and how rows become a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# Minutes that a kind of fault may take in `make faults`, in the order in which they are run; of another budget each
# has the same share.
KINDS = {
    "kills": 24,
    "torn_files": 6,
    "full_disk": 3,
    "ranks": 6,
    "numerics": 3,
    "fuzz": 6,
    "privacy": 3,
    "two_writers": 40,
    "load": 39,
}
MINUTES = sum(KINDS.values())
GENERATED = "generated inputs"
COLUMNS = ("fault", "stage", "injected", "outcome", "lost")


@dataclass(frozen=True)
class Row:
    """What became of one fault in one stage.

    Attributes
    ----------
    fault : str
        What was done, such as "SIGKILL at a random moment".
    stage : str
        What was going on, such as "a checkpoint is written".
    injected : int
        How often it was done.
    outcome : str
        What the run or the command did then, such as "resumed, bit-equal".
    lost : int
        How often something was lost, wrong or unnamed; 0 is what is promised.
    """

    fault: str
    stage: str
    injected: int
    outcome: str
    lost: int


@dataclass(frozen=True)
class Kind:
    """One kind of fault as it was last run.

    Attributes
    ----------
    name : str
        A module of this package.
    rows : tuple of Row
    seconds : float
        How long it took.
    problem : str
        Why there are no rows, or fewer than there should be; empty when all is there.
    """

    name: str
    rows: tuple[Row, ...]
    seconds: float
    problem: str = ""


def write_kind(path: Path, kind: Kind) -> None:
    """Keep what a kind of fault found, so that another can be run again without it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(kind), indent=2) + "\n")


def read_kind(path: Path) -> Kind:
    """What `write_kind` wrote."""
    content = json.loads(path.read_text())
    return Kind(**{**content, "rows": tuple(Row(**row) for row in content["rows"])})


def as_table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *([asdict(row)[name] for name in COLUMNS] for row in rows)]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def as_section(kind: Kind) -> str:
    """One kind of fault as a section of the page: its table, its time and what went wrong with it."""
    parts = [f"## {kind.name.replace('_', ' ')}"]
    if kind.rows:
        parts.append(as_table(kind.rows))
    if kind.problem:
        parts.append(f"**Not whole:** {kind.problem}")
    parts.append(f"`python -m bench.faults --only {kind.name}`, {kind.seconds / 60:.1f} minutes.")
    return "\n\n".join(parts)


def totals(kinds: Mapping[str, Kind]) -> str:
    """How much was injected and lost over all kinds, in one line; generated inputs are counted apart."""
    rows = [row for kind in kinds.values() for row in kind.rows]
    n_inputs = sum(row.injected for row in rows if row.fault == GENERATED)
    injected, lost = sum(row.injected for row in rows) - n_inputs, sum(row.lost for row in rows)
    inputs = f" and {n_inputs:,} generated inputs tried" if n_inputs else ""
    return f"{injected:,} faults injected{inputs}, {lost:,} with a loss"


def failed(kinds: Mapping[str, Kind]) -> list[str]:
    """The kinds that found a loss or could not be run."""
    return [name for name, kind in kinds.items() if kind.problem or any(row.lost for row in kind.rows)]
