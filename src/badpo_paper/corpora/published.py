"""Read public data sets, and compare the statistics of their votes with the published statistics."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple, TypeAlias

import pandas as pd

from badpo.data.cells import Table
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import read_table
from badpo.readouts.names import SIGNING_INSTRUCTION

Source = str | os.PathLike[str] | None
# Statistics of a corpus by name, arranged in groups.
Statistics: TypeAlias = "Mapping[str, float | str | None | Statistics]"
# Name of a corpus -> name of a statistic (its keys joined by spaces) -> published value as text.
STATISTICS: dict[str, dict[str, str]] = json.loads(
    resources.files("badpo_paper.corpora").joinpath("published.json").read_text("utf-8")
)


# -- statistics -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedStatistic:
    """A statistic of a corpus and its published value, which is stored as text to keep its number of decimals."""

    name: str
    value: float | None
    published: str

    @property
    def decimals(self) -> int:
        """Number of decimals of the published value."""
        return len(self.published.partition(".")[2])

    @property
    def agrees(self) -> bool:
        """Whether the statistic equals the published value after rounding to the same decimals."""
        half_a_digit = 0.5 * 10.0**-self.decimals
        # the tolerance of 1e-9 allows for floating-point error at exactly half a digit
        return self.value is not None and abs(self.value - float(self.published)) <= half_a_digit + 1e-9

    def format_value(self, value: float | None) -> str:
        """Format a number with as many decimals as the published value."""
        return "-" if value is None else f"{value:,.{self.decimals}f}"

    def to_json(self) -> dict[str, str | float | None]:
        """Return the statistic as a dictionary with the keys "name", "value", "published" and "agrees"."""
        return {**vars(self), "published": float(self.published), "agrees": self.agrees}


def compare_statistics(
    statistics: Statistics, published: Mapping[str, str]
) -> tuple[PublishedStatistic, ...]:
    """Compare corpus statistics with published ones; the name of a statistic is its keys joined by spaces."""
    (values,) = pd.json_normalize(dict(statistics), sep=" ").to_dict("records")
    return tuple(
        PublishedStatistic(name, None if values.get(name) is None else float(values[name]), text)
        for name, text in published.items()
    )


def format_statistics(rows: Sequence[PublishedStatistic]) -> list[str]:
    """Format statistics as lines of text. The last line states how many statistics agree with the published ones."""
    lines = [f"{'statistic':<32} {'here':>9}  {'published':>9}"]
    for row in rows:
        value, published = row.format_value(row.value), row.format_value(float(row.published))
        lines.append(f"{row.name:<32} {value:>9}  {published:>9}{'' if row.agrees else '  differs'}")
    n_agreeing = sum(row.agrees for row in rows)
    warning = "" if n_agreeing == len(rows) else "warning: "
    return [*lines, f"{warning}{n_agreeing} of {len(rows)} agree with the published statistics"]


# -- prompts ----------------------------------------------------------------------------------------------------------

# Maximum number of training prompts that an error message lists.
N_LISTED = 3


def require_unseen(prompts: Sequence[str], training_prompts: Collection[str], where: str) -> None:
    """Raise `DataError` if an evaluation prompt is a training prompt. The request to sign the answer is ignored."""
    training_questions = set(map(_remove_instruction, training_prompts))
    questions = enumerate(map(_remove_instruction, prompts), start=1)
    shared = [(row, question) for row, question in questions if question in training_questions]
    if not shared:
        return
    examples = "; ".join(f"row {row} ({question[:80]!r})" for row, question in shared[:N_LISTED])
    more = f" and {len(shared) - N_LISTED:,} more" if len(shared) > N_LISTED else ""
    what = (
        f"the training prompts contain {counted(len(shared), 'evaluation prompt')} of {len(prompts):,}"
    )
    remedy = "remove these prompts here, or hold these prompts out of training"
    raise DataError([Problem("E155", what, f"{where}, {examples}{more}", remedy, len(shared))])


def _remove_instruction(prompt: str) -> str:
    return prompt.removesuffix(SIGNING_INSTRUCTION).strip()


# -- rows -------------------------------------------------------------------------------------------------------------


def require_columns(
    frame: pd.DataFrame, columns: Sequence[str], where: str, schema: str, remedy: str
) -> None:
    """Raise `DataError` if a table lacks one of the columns."""
    missing = [name for name in columns if name not in frame]
    if missing:
        where = f"{where}, found: {', '.join(map(str, frame.columns))}"
        what = f"the table lacks the columns {', '.join(missing)} of {schema}"
        raise DataError([Problem("E101", what, where, remedy, len(missing))])


class HubSplit(NamedTuple):
    """A split of a data set on the Hub."""

    repository: str
    split: str
    columns: tuple[str, ...]
    configuration: str | None = None
    revision: str | None = None

    @property
    def description(self) -> str:
        """Repository, revision and split, for messages."""
        revision = f" at {self.revision[:12]}" if self.revision else ""
        return f"{self.repository}{revision}, split {self.split}"


def read_split(split: HubSplit, source: Source = None) -> Table:
    """Read the rows of a data set split from the Hub or from a local file with the same schema."""
    table = _load_split(split) if source is None else read_table(source)
    remedy = f"give a file with the schema of {split.description}"
    require_columns(table.frame, split.columns, table.name, split.repository, remedy)
    return table


def _load_split(split: HubSplit) -> Table:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(
            split.repository, split.configuration, split=split.split, revision=split.revision
        )
    except (OSError, ValueError, DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        remedy = "download the data set once with a network connection"
        if "gated" in reason:
            remedy = "accept its terms on the Hub and log in with hf auth login"
        raise ConfigError(
            f"E190 {split.description} cannot be loaded: {reason}; {remedy}, or give a local file with the same schema "
            "(badpo reproduce --data FILE)"
        ) from error
    return Table(read_table(rows).frame, split.description)
