"""Make the tables of a suite: values by seed, their mean and confidence interval, and the paper's values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias, TypedDict

import numpy as np
from tabulate import tabulate

from badpo.data.files import Json
from badpo.readouts.names import FIRST_NAMES, NAME_INDICATORS
from badpo.results.formatting import DASH, PLACEBO, arm_label, decimal, signed
from badpo.runs.run import read_facts, read_json, read_last_step
from badpo.theory.summaries import log_odds_distance, share_removed, t_interval
from badpo_paper.datasets import Dataset, measure_votes
from badpo_paper.run_readouts import ATTRIBUTES, SignatureShift, measure_signature_shift
from badpo_paper.suites import ARMS, MODELS, Corpus, Panel, Row, count_decimals

REFERENCE = "Reference"
# Kind of removed share -> run at which a shift starts: the reference or the placebo.
REFERENCE_RUN = "reference"
SHARES = {"removed": REFERENCE_RUN, "added": PLACEBO + "-s{seed}"}
# Source of a shift -> name of the shift in messages.
SHIFT_NAMES = {
    "tokens.mean": "tokens",
    "rates.woman.rate": "p(woman)",
    "rates.black.rate": "p(black)",
    "tilt.woman.tilt": "tilt (woman)",
    "tilt.black.tilt": "tilt (black)",
    "tilt.length.tilt": "tilt",
    "tilt.markdown.tilt": "tilt",
}
# Kind of spread in a panel -> meaning of the number after the plus-minus sign.
SPREADS = {
    "t95": "\u00b1 is half of the 95 % confidence interval over seeds (Student's t)",
    "sd": "\u00b1 is one standard deviation over seeds",
    "mean": "means over seeds",
    "prompts95": "\u00b1 is half of the 95 % confidence interval, clustered by prompt, over all judgments",
    "none": "",
}


# -- readouts of runs --------------------------------------------------------------------------------------------------


class PanelRuns:
    """Readouts of the runs of a panel."""

    def __init__(
        self,
        folder: Path,
        seeds: Sequence[int],
        planned: Mapping[str, tuple[int, ...]] | None = None,
    ):
        self.folder, self.seeds = folder, tuple(seeds)
        self._planned = planned or {}
        self._readouts: dict[str, Json] = {}

    def readouts(self, name: str) -> Json:
        """Read the readouts of a run folder; return an empty dict if the run has none."""
        if name not in self._readouts:
            self._readouts[name] = read_json(self.folder / name / "readouts.json")
        return self._readouts[name]

    def planned_seeds(self, condition: str) -> tuple[int, ...]:
        """Planned seeds of a condition."""
        return self._planned.get(condition, self.seeds)

    def measured_seeds(self, condition: str) -> tuple[int, ...]:
        """Return the planned seeds at which a condition was measured."""
        return tuple(
            seed for seed in self.planned_seeds(condition) if self.readouts(f"{condition}-s{seed}")
        )

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        """Compute the value of a source at each seed that has a value; see `badpo_paper.suites.Columns`."""
        kind, _, path = source.rpartition(":")
        if kind == "amplified":
            shifts = list(self.values(condition, f"shift:{path}").values())
            sd = float(np.std(shifts, ddof=1)) if len(shifts) > 1 else 0.0
            return {self.measured_seeds(condition)[0]: float(np.mean(shifts)) / sd} if sd else {}
        if kind in SHARES and (
            condition in (against, PLACEBO) or self.explain_missing_share(against, source)
        ):
            return {}
        values = {
            seed: self._compute_value(condition, seed, kind, path, against)
            for seed in self.measured_seeds(condition)
        }
        return {seed: value for seed, value in values.items() if math.isfinite(value)}

    def _compute_value(self, condition: str, seed: int, kind: str, path: str, against: str) -> float:
        """Compute the value of a source at one seed; return NaN if the value was not measured or is undefined."""
        name = f"{condition}-s{seed}"
        if kind in FILE_READERS:
            return read_number(FILE_READERS[kind](self.folder / name), path)
        runs = (name, SHARES.get(kind, REFERENCE_RUN).format(seed=seed), f"{against}-s{seed}")
        own, start, dpo = (read_number(self.readouts(run), path) for run in runs)
        match kind:
            case "shift":
                return own - start
            case "distance":
                return float(log_odds_distance(own, start))
            case "removed" | "added":
                return float(share_removed([dpo], [own], start)[0])
        return own

    def explain_missing_share(self, against: str, source: str) -> str:
        """Explain why the removed share of a measured shift is undefined; return an empty string if it is defined.

        The shift starts at the reference (``removed:``) or at the placebo with the same seed (``added:``). The removed
        share is defined if the shift's confidence interval over the measured seeds lies above zero. If only one seed
        was measured, the removed share is defined if the shift itself lies above zero. The removed share of a zero or
        negative shift has no meaning.
        """
        kind, _, path = source.partition(":")
        starts = {
            seed: read_number(self.readouts(SHARES[kind].format(seed=seed)), path) for seed in self.seeds
        }
        shifts = [value - starts[seed] for seed, value in self.values(against, path).items()]
        if not shifts or not np.isfinite(shifts).all():
            return ""
        shift = t_interval(shifts)
        if (shift.low if shift.n > 1 else shift.estimate) > 0:
            return ""
        decimals = count_decimals(path)
        interval = "one seed"
        if shift.n > 1:
            interval = f"{signed(shift.low, decimals)} to {signed(shift.high, decimals)}"
        arm = arm_label(against) if against in ARMS else against
        start = " from the placebo" if kind == "added" else ""
        return (
            f"the share removed is not reported: {arm}'s shift{start} in {SHIFT_NAMES.get(path, path)}, "
            f"{signed(shift.estimate, decimals)} ({interval}), is not reliably above zero"
        )


# Part of a JSON file.
Tree: TypeAlias = "Mapping[str, Tree] | Sequence[Tree] | float | str | None"


def read_number(content: Tree, path: str) -> float:
    """Return the number at a path (keys joined by dots) in a JSON object, or NaN if there is no number."""
    for key in path.split("."):
        content = content.get(key) if isinstance(content, Mapping) else None
    return float(content) if isinstance(content, int | float) else math.nan


def read_types(folder: Path) -> dict[str, dict[str, float]]:
    """Read the mixture weight and the number of annotators of each EM-DPO type; the largest type is first.

    Sorting makes the types comparable across seeds, because EM-DPO numbers the types in an arbitrary order.
    """
    types = read_json(folder / "readouts.json").get("types", {"annotators": []})
    order = np.argsort(-np.array(types["annotators"]), kind="stable")
    return {name: {str(rank): row[k] for rank, k in enumerate(order)} for name, row in types.items()}


# Prefix of a source such as ``log:NAME`` -> function that reads the source's file, which is not ``readouts.json``.
FILE_READERS: dict[str, Callable[[Path], Mapping[str, Tree]]] = {
    "log": read_last_step,
    "type": read_types,
    "anchor": lambda folder: read_json(folder / "anchor.json"),
}


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A table cell: values by seed, their mean, the half-width, the paper's value, and the number of decimals."""

    values: tuple[float, ...]
    mean: float
    half_width: float
    paper: tuple[float, float | None] | None
    decimals: int


@dataclass(frozen=True)
class TableRow:
    """A table row; ``cells`` maps column labels to cells. A control row was run with fewer seeds than other rows."""

    label: str
    cells: Mapping[str, Cell]
    seeds: tuple[int, ...] = ()
    is_control: bool = False
    note: str = ""

    @property
    def full_label(self) -> str:
        """Label of the row; for a control row, the label includes the seeds."""
        if not self.is_control:
            return self.label
        return f"{self.label} (seed {', '.join(map(str, self.seeds))} only)"


@dataclass(frozen=True)
class PanelTable:
    """A panel and its values."""

    panel: Panel
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    model: str = ""  # name of the model if it is not the paper's model

    @property
    def title(self) -> str:
        """Title of the panel; if the runs do not use the paper's model, the title names both models."""
        title = self.panel.title
        for model in MODELS if self.model else ():
            title = title.replace(model, f"{self.model} (the paper: {model})")
        return title

    @property
    def columns(self) -> list[str]:
        """Labels of the columns in which at least one row has a value."""
        measured = {label for row in self.rows for label, cell in row.cells.items() if cell.values}
        return [label for label in self.panel.columns if label in measured]


# Table label -> panel -> row -> column -> the paper's mean, and the half-width or None.
PaperNumbers = dict[str, dict[str, dict[str, dict[str, tuple[float, float | None]]]]]


@cache
def load_paper_numbers() -> PaperNumbers:
    """Load the numbers of the paper."""
    text = resources.files("badpo_paper").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    numbers: PaperNumbers = json.loads(text)
    return numbers


def make_row(
    panel: Panel,
    label: str,
    values: Mapping[str, Sequence[float | None]],
    half_widths: Mapping[str, float] | None = None,
) -> TableRow:
    """Make a row of a panel from ``values`` and ``half_widths``, whose keys are sources in ``panel.columns``."""
    paper = load_paper_numbers().get(panel.label, {}).get(panel.title, {}).get(label, {})
    cells = {}
    for name, source in panel.columns.items():
        finite = [
            float(value)
            for value in values.get(source, ())
            if value is not None and math.isfinite(value)
        ]
        half_width = (half_widths or {}).get(source, math.nan)
        if len(finite) > 1 and panel.spread == "t95":
            half_width = t_interval(finite).half_width
        if len(finite) > 1 and panel.spread == "sd":
            half_width = float(np.std(finite, ddof=1))
        mean = float(np.mean(finite)) if finite else math.nan
        published = (paper[name][0], paper[name][1]) if name in paper else None
        cells[name] = Cell(tuple(finite), mean, half_width, published, count_decimals(source))
    return TableRow(label, cells)


# -- rows of runs -----------------------------------------------------------------------------------------------------


def make_run_table(panel: Panel, runs: PanelRuns) -> PanelTable:
    """Make the table of a panel; the values are from those planned seeds that have been run."""
    rows, missing, notes = _make_first_rows(panel, runs), [], []
    for row in panel.rows:
        name = row.condition.name
        seeds = runs.measured_seeds(name)
        missing += [f"{name}-s{seed}" for seed in runs.planned_seeds(name) if seed not in seeds]
        if not seeds:
            continue
        values = {}
        for source in panel.columns.values():
            values[source] = list(runs.values(name, source, row.against).values())
            if source.partition(":")[0] in SHARES and name != row.against:
                notes.append(runs.explain_missing_share(row.against, source))
        is_control, note = len(seeds) < len(runs.seeds), describe_penalty(row, runs, seeds[0])
        table_row = make_row(panel, row.label, values)
        rows.append(replace(table_row, seeds=seeds, is_control=is_control, note=note))
    return PanelTable(panel, tuple(rows), tuple(missing), tuple(dict.fromkeys(filter(None, notes))))


def _make_first_rows(panel: Panel, runs: PanelRuns) -> list[TableRow]:
    """Make the reference's row and the row of planted values, if the runs or the paper have values for them."""
    reference = runs.readouts("reference")
    sources = panel.columns.values()
    values = {source: [read_number(reference, source)] for source in sources if ":" not in source}
    rows = [make_row(panel, REFERENCE, values)]
    if panel.truth:
        rows.append(make_row(panel, panel.truth, _average_truth(panel, runs)))
    return [row for row in rows if any(cell.values or cell.paper for cell in row.cells.values())]


def _average_truth(panel: Panel, runs: PanelRuns) -> dict[str, list[float]]:
    """For each column, average the planted values, or the readouts computed with planted theta, over arms and seeds."""
    values = {}
    for source in panel.columns.values():
        head, _, last = source.rpartition(".")
        is_vote = source.startswith("votes.")
        path = source.replace("votes.", "ceiling.", 1) if is_vote else f"{head}.planted_{last}"
        planted = [v for row in panel.rows for v in runs.values(row.condition.name, path).values()]
        values[source] = [float(np.mean(planted))] if planted else []
    return values


def describe_penalty(row: Row, runs: PanelRuns, seed: int) -> str:
    """Describe the ratio of a run's penalty to the arm's default penalty; return an empty string if the ratio is 1."""
    default = ARMS[row.condition.arm].fixed
    penalty = read_facts(runs.folder / f"{row.condition.name}-s{seed}").get("fixed", default)
    if penalty == default:
        return ""
    return (
        f"{default:g} is multiplied by {penalty / default:.2f} at this scale, because answers at this scale "
        "are shorter than the paper's answers by the same factor"
    )


# -- rows of votes and names ------------------------------------------------------------------------------------------


def make_table(panel: Panel, runs: PanelRuns, dataset: Callable[[Corpus], Dataset]) -> PanelTable:
    """Make the table of a panel, whose rows are runs, attributes, or groups of names by gender and race."""
    values: Mapping[str, Mapping[str, float | None]]
    match panel.of:
        case "runs":
            return make_run_table(panel, runs)
        case "votes":
            values = measure_votes(dataset(panel.corpus).judgments)
        case "signatures":
            values = {name: asdict(shift) for name, shift in measure_signature_shifts(runs).items()}
        case "names":
            values = runs.readouts("reference").get("name_tokens", {})
    rows = []
    for name, row in values.items():
        low, high = row.get("ci_low"), row.get("ci_high")
        half_widths = {} if low is None or high is None else {"log_odds": (high - low) / 2}
        numbers = {source: [number] for source, number in row.items()}
        rows.append(make_row(panel, name.replace("_", " "), numbers, half_widths))
    return PanelTable(panel, tuple(rows))


def measure_signature_shifts(runs: PanelRuns) -> dict[str, SignatureShift]:
    """For each attribute, compare DPO's mean shift of signatures toward the attribute's names with random labels."""
    names = ["reference", *(f"dpo-s{seed}" for seed in runs.measured_seeds("dpo"))]
    signatures = [runs.readouts(name).get("signatures") for name in names]
    if signatures[0] is None or not any(signatures[1:]):
        return {}
    reference, *dpo = [[shares[name] for name in FIRST_NAMES] for shares in signatures if shares]
    return {
        name: measure_signature_shift(np.mean(dpo, axis=0), reference, indicator)
        for name, indicator in zip(ATTRIBUTES, NAME_INDICATORS.T, strict=True)
    }


# -- tables as text ---------------------------------------------------------------------------------------------------


def format_number(value: float, decimals: int) -> str:
    """Format a number; a negative number of decimals stands for a percentage."""
    return decimal(value, decimals) if decimals >= 0 else f"{decimal(100 * value, -1 - decimals)} %"


def _format_mean(mean: float, half_width: float | None, decimals: int) -> str:
    if half_width is None or not math.isfinite(half_width):
        return format_number(mean, decimals)
    return f"{format_number(mean, decimals)} \u00b1 {format_number(half_width, decimals)}"


def format_cell(cell: Cell) -> str:
    """Format a cell: the mean, the half-width after a plus-minus sign, and the paper's value in brackets."""
    text = _format_mean(cell.mean, cell.half_width, cell.decimals) if cell.values else DASH
    return text if cell.paper is None else f"{text} [{_format_mean(*cell.paper, cell.decimals)}]"


def format_table(table: PanelTable) -> str:
    """Format a table in Markdown, with its title above and its notes below."""
    parts = [f"**{table.title}**\n"]
    if columns := table.columns:
        rows = [
            [row.full_label, *(format_cell(row.cells[name]) for name in columns)] for row in table.rows
        ]
        alignment = ["left", *["right"] * len(columns)]
        parts.append(tabulate(rows, ["", *columns], "pipe", colalign=alignment, disable_numparse=True))
    return "\n".join([*parts, *(f"\n*{note}*" for note in _list_notes(table))])


def _list_notes(table: PanelTable) -> list[str]:
    """List the notes below a table: the meaning of the plus-minus sign, missing runs, and footnotes."""
    spread, notes = table.panel.spread, []
    if not table.columns:
        notes.append("nothing measured")
    elif spread == "mean" or any(
        math.isfinite(cell.half_width) for row in table.rows for cell in row.cells.values()
    ):
        notes.append(SPREADS[spread])
    if table.missing:
        notes.append(f"not run: {', '.join(table.missing)}")
    notes += table.notes
    labels: dict[str, list[str]] = {}
    for row in table.rows:
        if row.note:
            labels.setdefault(row.note, []).append(row.label)
    notes += [f"{'; '.join(rows)}: {note}" for note, rows in labels.items()]
    if any(row.cells[name].paper for row in table.rows for name in table.columns):
        notes.append("values in brackets: the paper")
    return notes


# -- tables as data ---------------------------------------------------------------------------------------------------


class CellJson(TypedDict):
    """A cell of a table as JSON."""

    row: str
    column: str
    mean: float
    half_width: float | None
    n_seeds: int
    values: tuple[float, ...]
    paper_mean: float | None
    paper_half_width: float | None
    notes: str


class TableJson(TypedDict):
    """A table as JSON."""

    table: str
    panel: str
    spread: str
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    cells: list[CellJson]


def list_cells(table: PanelTable) -> list[CellJson]:
    """List all table cells that have a value: mean, half-width, values by seed, and the paper's value."""
    return [
        {
            "row": row.label,
            "column": name,
            "mean": cell.mean,
            "half_width": cell.half_width if math.isfinite(cell.half_width) else None,
            "n_seeds": len(cell.values),
            "values": cell.values,
            "paper_mean": cell.paper and cell.paper[0],
            "paper_half_width": cell.paper and cell.paper[1],
            "notes": row.note,
        }
        for row in table.rows
        for name in table.columns
        if (cell := row.cells[name]).values
    ]


def to_json(table: PanelTable) -> TableJson:
    """Convert a table to JSON; a missing value is null."""
    return {
        "table": table.panel.label,
        "panel": table.panel.title,
        "spread": table.panel.spread,
        "missing": table.missing,
        "notes": table.notes,
        "cells": list_cells(table),
    }
