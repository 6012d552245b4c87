"""Splits of public data sets: from the Hub, or from a local file of the same schema."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from badpo.data.importers.tables import Table, read_table
from badpo.data.problems import ConfigError, DataError, Problem

__all__ = ["HubSplit", "read_split"]


@dataclass(frozen=True)
class HubSplit:
    """One split of a data set on the Hub.

    Attributes
    ----------
    repository : str
        Its name, or a folder that holds a copy of the repository.
    configuration : str or None
    split : str
    revision : str or None
        The commit that is read; None reads the newest.
    license : str
        Under which the texts are given.
    columns : tuple of str
        Columns that the split must have.
    """

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
    """The rows of a split.

    Parameters
    ----------
    split : HubSplit
    source : path or None
        A local file of the same schema: parquet, JSON lines or JSON. None loads the split from the Hub, or from the
        Hub's local cache.

    Raises
    ------
    ConfigError
        E190: the Hub cannot be reached, or wants an agreement first.
    DataError
        E102 when a file cannot be read, E101 when columns are missing.
    """
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
