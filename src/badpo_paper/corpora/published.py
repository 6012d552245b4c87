"""Statistics of a corpus beside the published ones, read from the votes before anything is trained."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import Table, read_table
from badpo.readouts.names import SIGNING_INSTRUCTION

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Published:
    """One published statistic."""

    path: tuple[str, ...]
    value: float
    decimals: int = 0


@dataclass(frozen=True)
class GateRow:
    """A statistic of a corpus beside the published one."""

    name: str
    found: float | None
    published: float
    decimals: int

    @property
    def agrees(self) -> bool:
        """Whether the statistic, rounded like the published one, equals it."""
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
    """Every published statistic beside that of a corpus."""
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
    """The rows as the lines of a Markdown table."""
    lines = ["| statistic | here | published | |", "|--|--|--|--|"]
    for row in rows:
        found, published = row.texts
        lines.append(f"| {row.name} | {found} | {published} | {'agrees' if row.agrees else '**differs**'} |")
    return lines


def gate_text(rows: Sequence[GateRow]) -> str:
    """The rows as a Markdown table, and how many of them agree."""
    n_agreeing = sum(row.agrees for row in rows)
    return "\n".join(
        [*gate_table(rows), "", f"{n_agreeing} of {len(rows)} agree with the published statistics."]
    )


def gate_verdict(rows: Sequence[GateRow]) -> str:
    """How the statistics of a corpus agree with the published ones, in one line."""
    differ = [row for row in rows if not row.agrees]
    if not differ:
        return f"all {len(rows)} published statistics of the votes agree"
    verb = "differs" if len(differ) == 1 else "differ"
    return (
        f"warning: of {len(rows)} published statistics of the votes {len(differ)} {verb}: {told_gate(differ)}"
    )


def told_gate(rows: Iterable[GateRow]) -> str:
    """Statistics beside the published ones, in one line."""
    return ", ".join("{} {} (published {})".format(row.name, *row.texts) for row in rows)


_N_SHOWN = 3
_LONGEST_SHOWN = 80


def require_unseen(prompts: Sequence[str], training_prompts: Collection[str], where: str) -> None:
    """Refuse evaluation prompts that are training prompts, with or without the request to sign."""
    trained = {_question(prompt) for prompt in training_prompts}
    seen = [row for row, prompt in enumerate(prompts, start=1) if _question(prompt) in trained]
    if not seen:
        return
    shown = "; ".join(
        f"row {row} ({_question(prompts[row - 1])[:_LONGEST_SHOWN]!r})" for row in seen[:_N_SHOWN]
    )
    more = f" and {len(seen) - _N_SHOWN:,} more" if len(seen) > _N_SHOWN else ""
    what = f"{counted(len(seen), 'evaluation prompt')} of {len(prompts):,} can be found among the training prompts"
    remedy = "leave them out here, or hold them out of training"
    raise DataError([Problem("E155", what, f"{where}, {shown}{more}", remedy, "error", len(seen))])


def _question(prompt: str) -> str:
    return prompt.removesuffix(SIGNING_INSTRUCTION).strip()


@dataclass(frozen=True)
class HubSplit:
    """One split of a data set on the Hub."""

    repository: str
    configuration: str | None
    split: str
    revision: str | None
    license: str
    columns: tuple[str, ...]

    @property
    def told(self) -> str:
        """Repository, revision and split for a message or a card."""
        revision = f" at {self.revision[:12]}" if self.revision else ""
        return f"{self.repository}{revision}, split {self.split}"


def read_split(split: HubSplit, source: str | os.PathLike[str] | None = None) -> Table:
    """The rows of a split."""
    table = _from_hub(split) if source is None else read_table(source)
    missing = [name for name in split.columns if name not in table.frame]
    if missing:
        found = ", ".join(map(str, table.frame.columns))
        what = f"it lacks the columns {', '.join(missing)} of {split.repository}"
        remedy = f"give a file with the schema of {split.told}"
        raise DataError(
            [Problem("E101", what, f"{table.name}, found: {found}", remedy, "error", len(missing))]
        )
    return table


def _from_hub(split: HubSplit) -> Table:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        with _quiet():
            rows = load_dataset(
                split.repository, split.configuration, split=split.split, revision=split.revision
            )
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        remedy = (
            "accept its terms on the Hub and log in with hf auth login"
            if "gated" in reason
            else "download it once with network"
        )
        raise ConfigError(
            f"E190 {split.told} cannot be loaded: {reason}; {remedy}, or give a local file of the same schema "
            "(badpo reproduce takes it with --data)"
        ) from error
    return Table(read_table(rows).frame, split.told)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines that the Hub's library writes at every attempt: one message tells how it ended."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
