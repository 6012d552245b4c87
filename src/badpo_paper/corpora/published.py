"""Public data sets: their rows, and statistics of their votes beside the published ones, before anything is trained."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from badpo.data.cells import Table
from badpo.data.files import Json
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import read_table
from badpo.readouts.names import SIGNING_INSTRUCTION

Source = str | os.PathLike | None


# -- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateRow:
    """A statistic of a corpus beside the published one, which is given with its decimals."""

    name: str
    found: float | None
    published: str

    @property
    def decimals(self) -> int:
        """Decimals of the published one."""
        return len(self.published.partition(".")[2])

    @property
    def agrees(self) -> bool:
        """Whether the statistic, rounded like the published one, equals it."""
        half_a_digit = 0.5 * 10.0**-self.decimals
        # the sum of a rounding error and half a digit is still half a digit
        return self.found is not None and abs(self.found - float(self.published)) <= half_a_digit + 1e-9

    def shown(self, value: float | None) -> str:
        """A value with as many decimals as the published one has."""
        return "-" if value is None else f"{value:,.{self.decimals}f}"

    def to_json(self) -> Json:
        """{"name", "found", "published", "agrees"}."""
        return {**vars(self), "published": float(self.published), "agrees": self.agrees}


def compared(gate: Mapping[str, Any], published: Mapping[str, str]) -> tuple[GateRow, ...]:
    """Every published statistic, by its place in the gate, beside that of a corpus."""
    (found,) = pd.json_normalize(dict(gate), sep=" ").to_dict("records")
    return tuple(
        GateRow(name, None if found.get(name) is None else float(found[name]), value)
        for name, value in published.items()
    )


def gate_table(rows: Sequence[GateRow]) -> list[str]:
    """The rows as lines of text, and how they agree."""
    lines = [f"{'statistic':<32} {'here':>9}  {'published':>9}"]
    for row in rows:
        found, published = row.shown(row.found), row.shown(float(row.published))
        lines.append(f"{row.name:<32} {found:>9}  {published:>9}{'' if row.agrees else '  differs'}")
    n_agreeing = sum(row.agrees for row in rows)
    warning = "" if n_agreeing == len(rows) else "warning: "
    return [*lines, f"{warning}{n_agreeing} of {len(rows)} agree with the published statistics"]


# -- prompts ----------------------------------------------------------------------------------------------------------

N_SHOWN = 3


def require_unseen(prompts: Sequence[str], training_prompts: Collection[str], where: str) -> None:
    """Refuse evaluation prompts that are training prompts, with or without the request to sign."""
    trained = set(map(_question, training_prompts))
    seen = [(row, q) for row, q in enumerate(map(_question, prompts), start=1) if q in trained]
    if not seen:
        return
    shown = "; ".join(f"row {row} ({question[:80]!r})" for row, question in seen[:N_SHOWN])
    more = f" and {len(seen) - N_SHOWN:,} more" if len(seen) > N_SHOWN else ""
    what = f"{counted(len(seen), 'evaluation prompt')} of {len(prompts):,} can be found among the training prompts"
    remedy = "leave them out here, or hold them out of training"
    raise DataError([Problem("E155", what, f"{where}, {shown}{more}", remedy, len(seen))])


def _question(prompt: str) -> str:
    return prompt.removesuffix(SIGNING_INSTRUCTION).strip()


# -- rows -------------------------------------------------------------------------------------------------------------


def require_columns(
    frame: pd.DataFrame, columns: Sequence[str], where: str, schema: str, remedy: str
) -> None:
    """Refuse a table that lacks columns."""
    missing = [name for name in columns if name not in frame]
    if missing:
        where = f"{where}, found: {', '.join(map(str, frame.columns))}"
        what = f"it lacks the columns {', '.join(missing)} of {schema}"
        raise DataError([Problem("E101", what, where, remedy, len(missing))])


class HubSplit(NamedTuple):
    """One split of a data set on the Hub."""

    repository: str
    split: str
    columns: tuple[str, ...]
    configuration: str | None = None
    revision: str | None = None

    @property
    def told(self) -> str:
        """Repository, revision and split for a message."""
        revision = f" at {self.revision[:12]}" if self.revision else ""
        return f"{self.repository}{revision}, split {self.split}"


def read_split(split: HubSplit, source: Source = None) -> Table:
    """The rows of a split, from the Hub or from a local file of the same schema."""
    table = _from_hub(split) if source is None else read_table(source)
    remedy = f"give a file with the schema of {split.told}"
    require_columns(table.frame, split.columns, table.name, split.repository, remedy)
    return table


def _from_hub(split: HubSplit) -> Table:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(
            split.repository, split.configuration, split=split.split, revision=split.revision
        )
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        remedy = "download it once with network"
        if "gated" in reason:
            remedy = "accept its terms on the Hub and log in with hf auth login"
        raise ConfigError(
            f"E190 {split.told} cannot be loaded: {reason}; {remedy}, or give a local file of the same schema "
            "(badpo reproduce takes it with --data)"
        ) from error
    return Table(read_table(rows).frame, split.told)
