"""A suite's tables: one value for each seed, their mean and interval, and the paper's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from badpo.experiments.suite_parts import Column, Panel, Row, Suite
from badpo.experiments.suite_readouts import kept_readouts
from badpo.theory.summaries import log_odds_distance, share_removed, t_interval

Readouts = Mapping[str, Any]
REFERENCE, CEILING = "Reference", "Ceiling"


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Attributes
    ----------
    values : tuple of float
        One for each seed that has it.
    mean : float
        NaN where there is none.
    half : float
        Behind the plus-minus sign; NaN where the panel has nothing there, or one seed cannot tell.
    paper : tuple of (float, float or None), or None
        The paper's mean and half width.
    """

    values: tuple[float, ...]
    mean: float
    half: float
    paper: tuple[float, float | None] | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, over the sum of the two half widths: at 1 the intervals just touch."""
        if self.paper is None or self.paper[1] is None or not math.isfinite(self.half):
            return None
        width = self.half + self.paper[1]
        return (self.mean - self.paper[0]) / width if width > 0 and math.isfinite(self.mean) else None


@dataclass(frozen=True)
class TableRow:
    """A row: its label, how many seeds it has and whether it is a control, and a cell for each column."""

    label: str
    seeds: tuple[int, ...]
    is_control: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A panel with its values.

    Attributes
    ----------
    panel : Panel
    columns : tuple of Column
        Those that at least one row has a value for.
    rows : tuple of TableRow
        The reference first.
    missing : tuple of str
        Runs that are not there.
    """

    panel: Panel
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...]


class Found:
    """The readouts of a panel's runs.

    Parameters
    ----------
    folder : Path
        Of the panel's corpus, with ``reference`` and ``<condition>-s<seed>`` in it.
    seeds : sequence of int
    """

    def __init__(self, folder: Path, seeds: Sequence[int]):
        self.folder = folder
        self.seeds = tuple(seeds)
        self._kept: dict[str, Readouts] = {}

    def readouts(self, name: str) -> Readouts:
        """The readouts of a run folder; empty where there are none."""
        if name not in self._kept:
            self._kept[name] = kept_readouts(self.folder / name)
        return self._kept[name]

    def seeds_of(self, condition: str) -> tuple[int, ...]:
        """The seeds at which a condition was measured."""
        return tuple(seed for seed in self.seeds if self.readouts(f"{condition}-s{seed}"))

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        """The value at each seed that has it; sources as in `badpo.experiments.suites.Column`."""
        found = {seed: self.value(condition, seed, source, against) for seed in self.seeds_of(condition)}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    def value(self, condition: str, seed: int, source: str, against: str = "dpo") -> float | None:
        """One value; None where it was not measured or is not defined."""
        how, _, place = source.rpartition(":")
        own = place_of(self.readouts(f"{condition}-s{seed}"), place)
        if own is None or not how:
            return own
        reference = place_of(self.readouts("reference"), place)
        if reference is None:
            return None
        if how == "distance":
            return float(log_odds_distance(own, reference))
        dpo = place_of(self.readouts(f"{against}-s{seed}"), place)
        if how == "removed":
            return (
                None
                if dpo is None or condition == against
                else float(share_removed([dpo], [own], reference)[0])
            )
        raise ValueError(f"there is no source {how}:PLACE")

    def shift(self, condition: str, place: str) -> float | None:
        """How far a condition moved from the reference, in standard deviations over its seeds."""
        reference = place_of(self.readouts("reference"), place)
        values = list(self.values(condition, place).values())
        if reference is None or len(values) < 2:
            return None
        spread = float(np.std(values, ddof=1))
        return (float(np.mean(values)) - reference) / spread if spread > 0 else None


def place_of(readouts: Readouts, place: str) -> float | None:
    """The number at a place, its keys joined by dots; None where there is none.

    Examples
    --------
    >>> place_of({"rates": {"woman": {"rate": 0.5}}}, "rates.woman.rate"), place_of({}, "kl.per_token")
    (0.5, None)
    """
    found: Any = readouts
    for key in place.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return float(found) if isinstance(found, int | float) else None


def paper_numbers() -> dict[str, dict[str, dict[str, dict[str, list]]]]:
    """The paper's numbers: label of the table, panel, row, column -> [mean, half width or null].

    Examples
    --------
    >>> paper_numbers()["tab:lora"]["Qwen2.5-0.5B-Instruct, full fine-tuning"]["Full fine-tuning, DPO"]["KL"]
    [0.037, None]
    """
    text = resources.files("badpo.experiments").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def tables(suite: Suite, out: Path, seeds: Sequence[int]) -> list[Table]:
    """The tables of a suite from its run folders; a panel whose reference is not there is left out."""
    return [
        panel_table(panel, Found(out / panel.corpus.folder, seeds))
        for panel in suite.panels
        if (out / panel.corpus.folder / "reference" / "readouts.json").exists()
    ]


def panel_table(panel: Panel, found: Found) -> Table:
    """A panel's values over the seeds that were run."""
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    rows = [_reference_row(panel, found, paper.get(REFERENCE, {}))]
    if panel.label == "tab:votes":
        rows.append(_ceiling_row(panel, found, paper.get(CEILING, {})))
    missing = []
    for row in panel.rows:
        seeds = found.seeds_of(row.condition.name)
        wanted = found.seeds[:1] if row.seeds == "first" else found.seeds
        missing += [f"{row.condition.name}-s{seed}" for seed in wanted if seed not in seeds]
        seeds = tuple(seed for seed in seeds if seed in wanted)
        if seeds:
            rows.append(_row(panel, row, seeds, found, paper.get(row.label, {})))
    known = [i for i in range(len(panel.columns)) if any(row.cells[i].values for row in rows)]
    rows = [TableRow(r.label, r.seeds, r.is_control, tuple(r.cells[i] for i in known)) for r in rows]
    return Table(panel, tuple(panel.columns[i] for i in known), tuple(rows), tuple(missing))


def _row(panel: Panel, row: Row, seeds: tuple[int, ...], found: Found, paper: Mapping) -> TableRow:
    cells = []
    for column in panel.columns:
        if column.source.startswith("shift:"):
            shift = found.shift(row.condition.name, column.source.removeprefix("shift:"))
            values = [] if shift is None else [shift]
        else:
            at = found.values(row.condition.name, column.source, row.against)
            values = [at[seed] for seed in seeds if seed in at]
        cells.append(_cell(values, panel.spread, paper.get(column.label)))
    return TableRow(row.label, seeds, len(seeds) < len(found.seeds), tuple(cells))


def _reference_row(panel: Panel, found: Found, paper: Mapping) -> TableRow:
    readouts = found.readouts("reference")
    cells = []
    for column in panel.columns:
        value = None if ":" in column.source else place_of(readouts, column.source)
        cells.append(_cell([] if value is None else [value], "mean", paper.get(column.label)))
    return TableRow(REFERENCE, (), False, tuple(cells))


def _ceiling_row(panel: Panel, found: Found, paper: Mapping) -> TableRow:
    """The prediction with the planted theta, averaged over arms and seeds."""
    cells = []
    for column in panel.columns:
        place = column.source.replace("votes.", "ceiling.", 1)
        values = [v for row in panel.rows for v in found.values(row.condition.name, place).values()]
        cells.append(_cell([float(np.mean(values))] if values else [], "mean", paper.get(column.label)))
    return TableRow(CEILING, (), False, tuple(cells))


def _cell(values: Sequence[float], spread: str, paper: Sequence | None) -> Cell:
    mean = float(np.mean(values)) if values else math.nan
    half = math.nan
    if len(values) > 1 and spread == "t95":
        half = t_interval(values).half_width
    if len(values) > 1 and spread == "sd":
        half = float(np.std(values, ddof=1))
    return Cell(tuple(values), mean, half, (paper[0], paper[1]) if paper else None)
