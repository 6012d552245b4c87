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

from badpo.experiments.arms import ARMS
from badpo.experiments.evaluate import kept_json
from badpo.experiments.suite_parts import Column, Corpus, Panel, Row, SeedPlan, Suite
from badpo.readouts.amplification import amplification
from badpo.results.labels import arm_label, signed
from badpo.theory.summaries import log_odds_distance, share_removed, shift, t_interval

Readouts = Mapping[str, Any]
REFERENCE = "Reference"
LOG_FILE = "log.jsonl"
# What shares are taken of, in words, and with how many places a shift of it is told.
SHIFTED = {
    "tokens.mean": ("tokens", 1),
    "rates.woman.rate": ("p(woman)", 3),
    "rates.black.rate": ("p(black)", 3),
}


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
    """A row: its label, how many seeds it has and whether it is a control, a cell for each column, and footnotes."""

    label: str
    seeds: tuple[int, ...]
    is_control: bool
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


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
    notes : tuple of str
        Footnotes of the whole.
    """

    panel: Panel
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Found:
    """The readouts of a panel's runs.

    Parameters
    ----------
    folder : Path
        Of the panel's corpus, with ``reference`` and ``<condition>-s<seed>`` in it.
    seeds : sequence of int
    planned : mapping of str to tuple of int, or None
        The seeds that a condition is run at, by its name; those that are not named are run at all of ``seeds``.
    """

    def __init__(
        self, folder: Path, seeds: Sequence[int], planned: Mapping[str, tuple[int, ...]] | None = None
    ):
        self.folder = folder
        self.seeds = tuple(seeds)
        self._planned = dict(planned or {})
        self._kept: dict[str, Readouts] = {}

    def readouts(self, name: str) -> Readouts:
        """The readouts of a run folder; empty where there are none."""
        if name not in self._kept:
            self._kept[name] = kept_json(self.folder / name / "readouts.json")
        return self._kept[name]

    def planned(self, condition: str) -> tuple[int, ...]:
        """The seeds at which a condition is to be run."""
        return self._planned.get(condition, self.seeds)

    def seeds_of(self, condition: str) -> tuple[int, ...]:
        """The seeds at which a condition was measured."""
        return tuple(seed for seed in self.seeds if self.readouts(f"{condition}-s{seed}"))

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        """The value at each seed that has it; sources as in `badpo.experiments.suite_parts.Column`."""
        found = {seed: self.value(condition, seed, source, against) for seed in self.seeds_of(condition)}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    def value(self, condition: str, seed: int, source: str, against: str = "dpo") -> float | None:
        """One value; None where it was not measured or is not defined."""
        how, _, place = source.rpartition(":")
        name = f"{condition}-s{seed}"
        if how == "log":
            return place_of(last_step(self.folder / name), place)
        if how == "type":
            return of_type(self.readouts(name), place)
        if how == "anchor":
            return place_of(kept_json(self.folder / name / "anchor.json"), place)
        own = place_of(self.readouts(name), place)
        if own is None or not how:
            return own
        reference = place_of(self.readouts("reference"), place)
        if reference is None:
            return None
        if how == "distance":
            return float(log_odds_distance(own, reference))
        dpo = place_of(self.readouts(f"{against}-s{seed}"), place)
        if how == "removed":
            if dpo is None or condition == against or self.no_share(against, place):
                return None
            return float(share_removed([dpo], [own], reference)[0])
        raise ValueError(f"there is no source {how}:PLACE")

    def no_share(self, against: str, place: str) -> str:
        """Why no share of a condition's shift can be said to be removed; empty where it moved up, or was not run.

        It moved up where its whole interval over the seeds that were measured lies above the reference, or the value
        itself with one seed. A share of a shift that is not there, or goes the other way, has no meaning.
        """
        reference = place_of(self.readouts("reference"), place)
        values = list(self.values(against, place).values())
        if reference is None or not values:
            return ""
        moved = shift(values, reference)
        if (moved.low if moved.n > 1 else moved.estimate) > 0:
            return ""
        words, places = SHIFTED.get(place, (place, 3))
        ends = f"{signed(moved.low, places)} to {signed(moved.high, places)}" if moved.n > 1 else "one seed"
        told = f"{signed(moved.estimate, places)} ({ends})"
        whose = arm_label(against) if against in ARMS else against
        return f"no share removed: {whose}'s own shift in {words}, {told}, does not lie above zero"

    def shift(self, condition: str, place: str) -> float | None:
        """How far a condition moved from the reference, in standard deviations over its seeds."""
        reference = place_of(self.readouts("reference"), place)
        values = list(self.values(condition, place).values())
        if reference is None or len(values) < 2:
            return None
        moved = amplification(values, reference).in_seed_sds
        return moved if math.isfinite(moved) else None


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


def last_step(folder: Path) -> Readouts:
    """The metrics of a run's last training step; empty where its log cannot be read."""
    try:
        lines = (folder / LOG_FILE).read_text(encoding="utf-8").splitlines()
        found = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def of_type(readouts: Readouts, place: str) -> float | None:
    """A reading of one type of EM-DPO, types in the order of their annotators; None where there are none.

    The number of a type means nothing across seeds; its place in this order does.

    Examples
    --------
    >>> readouts = {"types": {"annotators": [3, 55, 2], "weights": [0.1, 0.4, 0.5]}}
    >>> of_type(readouts, "annotators.0"), of_type(readouts, "weights.0"), of_type({}, "weights.0")
    (55.0, 0.4, None)
    """
    types = readouts.get("types")
    if types is None:
        return None
    what, _, rank = place.partition(".")
    order = sorted(range(len(types["annotators"])), key=lambda k: -types["annotators"][k])
    return float(types[what][order[int(rank)]]) if int(rank) < len(order) else None


def planted_place(place: str) -> str:
    """Where what was planted stands beside a reading of what was learned.

    Examples
    --------
    >>> planted_place("votes.black.A.accuracy"), planted_place("theta.black.classes.A.offset")
    ('ceiling.black.A.accuracy', 'theta.black.classes.A.planted_offset')
    """
    if place.startswith("votes."):
        return place.replace("votes.", "ceiling.", 1)
    head, _, last = place.rpartition(".")
    return f"{head}.planted_{last}"


def paper_numbers() -> dict[str, dict[str, dict[str, dict[str, list]]]]:
    """The paper's numbers: label of the table, panel, row, column -> [mean, half width or null].

    Examples
    --------
    >>> paper_numbers()["tab:lora"]["Qwen2.5-0.5B-Instruct, full fine-tuning"]["Full fine-tuning, DPO"][
    ...     "KL, as published"
    ... ]
    [0.037, None]
    """
    text = resources.files("badpo.experiments").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def found_runs(suite: Suite, corpus: Corpus, out: Path, plan: SeedPlan) -> Found:
    """A suite's runs on a corpus, with the seeds that its rows are planned at."""
    rows = [row for panel in suite.panels if panel.corpus == corpus for row in panel.rows]
    return Found(out / corpus.folder, plan.seeds, plan.by_condition(rows))


def tables(suite: Suite, out: Path, plan: SeedPlan) -> list[Table]:
    """The tables of a suite from its run folders; a panel whose reference is not there is left out."""
    return [
        panel_table(panel, found_runs(suite, panel.corpus, out, plan))
        for panel in suite.panels
        if has_reference(out, panel)
    ]


def has_reference(out: Path, panel: Panel) -> bool:
    """Whether the reference of a panel was measured."""
    return (out / panel.corpus.folder / "reference" / "readouts.json").exists()


def panel_table(panel: Panel, found: Found) -> Table:
    """A panel's values over the seeds that were planned and run."""
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    reference = _reference_row(panel, found, paper.get(REFERENCE, {}))
    above = [reference, *([_truth_row(panel, found, paper.get(panel.truth, {}))] if panel.truth else [])]
    rows = [row for row in above if any(cell.values or cell.paper for cell in row.cells)]
    missing = []
    for row in panel.rows:
        seeds = found.seeds_of(row.condition.name)
        wanted = found.planned(row.condition.name)
        missing += [f"{row.condition.name}-s{seed}" for seed in wanted if seed not in seeds]
        seeds = tuple(seed for seed in seeds if seed in wanted)
        if seeds:
            rows.append(_row(panel, row, seeds, found, paper.get(row.label, {})))
    known = [i for i in range(len(panel.columns)) if any(row.cells[i].values for row in rows)]
    rows = [TableRow(r.label, r.seeds, r.is_control, tuple(r.cells[i] for i in known)) for r in rows]
    columns = tuple(panel.columns[i] for i in known)
    return Table(panel, columns, tuple(rows), tuple(missing), _no_shares(panel, found))


def _no_shares(panel: Panel, found: Found) -> tuple[str, ...]:
    """Why shares are not in a panel that asks for them and has the runs; each reason once."""
    reasons = [
        found.no_share(row.against, column.source.removeprefix("removed:"))
        for column in panel.columns
        if column.source.startswith("removed:")
        for row in panel.rows
        if row.condition.name != row.against and found.seeds_of(row.condition.name)
    ]
    return tuple(dict.fromkeys(filter(None, reasons)))


def _row(panel: Panel, row: Row, seeds: tuple[int, ...], found: Found, paper: Mapping) -> TableRow:
    cells = []
    for column in panel.columns:
        if column.source.startswith("shift:"):
            shift = found.shift(row.condition.name, column.source.removeprefix("shift:"))
            values = [] if shift is None else [shift]
        else:
            at = found.values(row.condition.name, column.source, row.against)
            values = [at[seed] for seed in seeds if seed in at]
        cells.append(cell_of(values, panel.spread, paper.get(column.label)))
    return TableRow(row.label, seeds, len(seeds) < len(found.seeds), tuple(cells))


def _reference_row(panel: Panel, found: Found, paper: Mapping) -> TableRow:
    readouts = found.readouts("reference")
    cells = []
    for column in panel.columns:
        value = None if ":" in column.source else place_of(readouts, column.source)
        cells.append(cell_of([] if value is None else [value], "mean", paper.get(column.label)))
    return TableRow(REFERENCE, (), False, tuple(cells))


def _truth_row(panel: Panel, found: Found, paper: Mapping) -> TableRow:
    """What was planted, or the prediction with it, averaged over arms and seeds."""
    cells = []
    for column in panel.columns:
        place = planted_place(column.source)
        values = [v for row in panel.rows for v in found.values(row.condition.name, place).values()]
        cells.append(cell_of([float(np.mean(values))] if values else [], "mean", paper.get(column.label)))
    return TableRow(panel.truth, (), False, tuple(cells))


def cell_of(values: Sequence[float], spread: str, paper: Sequence | None) -> Cell:
    """A cell from its value at each seed, or from the one value that there is.

    Parameters
    ----------
    values : sequence of float
        Empty where nothing is known.
    spread : str
        As a panel has it; two values or more have one.
    paper : (mean, half width or None), or None

    Examples
    --------
    >>> cell_of([0.5], "none", None).mean, cell_of([0.0, 1.0], "sd", (0.4, None)).half
    (0.5, 0.7071067811865476)
    """
    mean = float(np.mean(values)) if values else math.nan
    half = math.nan
    if len(values) > 1 and spread == "t95":
        half = t_interval(values).half_width
    if len(values) > 1 and spread == "sd":
        half = float(np.std(values, ddof=1))
    return Cell(tuple(values), mean, half, (paper[0], paper[1]) if paper else None)
