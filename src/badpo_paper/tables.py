"""Tables of a suite: values of all seeds, their mean and confidence interval, and the paper's values."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from badpo.data.files import LOG_FILE, Json
from badpo.results.formatting import DASH, PLACEBO, arm_label, decimal, signed
from badpo.runs.run import read_facts, read_json
from badpo.theory.summaries import log_odds_distance, share_removed, t_interval
from badpo_paper.arms import ARMS
from badpo_paper.datasets import Dataset, measure_votes
from badpo_paper.run_readouts import FIRST_NAMES, INDICATOR, measure_signature_shift
from badpo_paper.suites import MODELS, Corpus, Panel, Row, count_decimals

REFERENCE = "Reference"
# Share of a shift -> run at which the shift starts.
REFERENCE_RUN = "reference"
SHARES = {"removed": REFERENCE_RUN, "added": PLACEBO + "-s{seed}"}
# Source of a shift -> its name in messages.
SHIFTED = {
    "tokens.mean": "tokens",
    "rates.woman.rate": "p(woman)",
    "rates.black.rate": "p(black)",
    "tilt.woman.tilt": "tilt (woman)",
    "tilt.black.tilt": "tilt (black)",
    "tilt.length.tilt": "tilt",
    "tilt.markdown.tilt": "tilt",
}
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
        self._kept: Json = {}

    def readouts(self, name: str) -> Json:
        """Readouts of a run folder; empty if the run has no readouts."""
        if name not in self._kept:
            self._kept[name] = read_json(self.folder / name / "readouts.json")
        return self._kept[name]

    def planned(self, condition: str) -> tuple[int, ...]:
        """Planned seeds of a condition."""
        return self._planned.get(condition, self.seeds)

    def seeds_of(self, condition: str) -> tuple[int, ...]:
        """Planned seeds at which a condition was measured."""
        return tuple(seed for seed in self.planned(condition) if self.readouts(f"{condition}-s{seed}"))

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        """Value of a source at each seed that has the value. `badpo_paper.suites.Columns` describes the sources."""
        how, _, place = source.rpartition(":")
        if how == "amplified":
            moved = list(self.values(condition, f"shift:{place}").values())
            sd = float(np.std(moved, ddof=1)) if len(moved) > 1 else 0.0
            return {self.seeds_of(condition)[0]: float(np.mean(moved)) / sd} if sd else {}
        if how in SHARES and (
            condition in (against, PLACEBO) or self.explain_missing_share(against, source)
        ):
            return {}
        found = {
            seed: self._value(condition, seed, how, place, against) for seed in self.seeds_of(condition)
        }
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    def _value(self, condition: str, seed: int, how: str, place: str, against: str) -> float:
        """Value at one seed; NaN if the value was not measured or is not defined."""
        name = f"{condition}-s{seed}"
        if how in FILES:
            return read_number(FILES[how](self.folder / name), place)
        runs = (name, SHARES.get(how, REFERENCE_RUN).format(seed=seed), f"{against}-s{seed}")
        own, start, dpo = (read_number(self.readouts(run), place) for run in runs)
        match how:
            case "shift":
                return own - start
            case "distance":
                return float(log_odds_distance(own, start))
            case "removed" | "added":
                return float(share_removed([dpo], [own], start)[0])
        return own

    def explain_missing_share(self, against: str, source: str) -> str:
        """Reason why a removed share of a condition's shift is not defined; empty if defined or not measured.

        The shift starts at the reference (``removed:``) or at the placebo with the same seed (``added:``). The share
        is defined if the confidence interval of the shift over the measured seeds lies above zero. If only one seed
        was measured, the shift itself must lie above zero. A share of a zero or negative shift has no meaning.
        """
        how, _, place = source.partition(":")
        starts = {
            seed: read_number(self.readouts(SHARES[how].format(seed=seed)), place) for seed in self.seeds
        }
        shifts = [value - starts[seed] for seed, value in self.values(against, place).items()]
        if not shifts or not np.isfinite(shifts).all():
            return ""
        moved = t_interval(shifts)
        if (moved.low if moved.n > 1 else moved.estimate) > 0:
            return ""
        words, places = SHIFTED.get(place, place), count_decimals(place)
        ends = (
            f"{signed(moved.low, places)} to {signed(moved.high, places)}" if moved.n > 1 else "one seed"
        )
        told = f"{signed(moved.estimate, places)} ({ends})"
        whose = arm_label(against) if against in ARMS else against
        where = " from the placebo" * (how == "added")
        return f"removed share not defined: {whose}'s own shift{where} in {words}, {told}, does not lie above zero"


def read_number(readouts: Any, place: str) -> float:
    """Number at a place, a path of keys joined by dots; NaN if there is no number."""
    for key in place.split("."):
        readouts = readouts.get(key) if isinstance(readouts, Mapping) else None
    return float(readouts) if isinstance(readouts, int | float) else math.nan


def read_last_step(folder: Path) -> Json:
    """Metrics of a run's last training step; empty if the log cannot be read."""
    try:
        found = json.loads((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def read_types(folder: Path) -> Json:
    """Number of annotators and mixture weight of EM-DPO's types, sorted by the number of annotators.

    The sorting makes types comparable across seeds, because the index of a type is arbitrary.
    """
    types = read_json(folder / "readouts.json").get("types", {"annotators": []})
    order = np.argsort(-np.array(types["annotators"]), kind="stable")
    return {what: {str(rank): row[k] for rank, k in enumerate(order)} for what, row in types.items()}


# Text before the colon of a source -> function that reads another file of a run folder than the readouts.
FILES = {
    "log": read_last_step,
    "type": read_types,
    "anchor": lambda folder: read_json(folder / "anchor.json"),
}


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of a table: values of the seeds, mean, half width, the paper's value, and number of decimals."""

    values: tuple[float, ...]
    mean: float
    half: float
    paper: tuple[float, float | None] | None
    places: int


@dataclass(frozen=True)
class TableRow:
    """A row of a table. ``cells`` maps column labels to cells. A control has fewer seeds than other rows."""

    label: str
    cells: Mapping[str, Cell]
    seeds: tuple[int, ...] = ()
    is_control: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Label of the row. The label of a control includes its seeds."""
        only = f" (seed {', '.join(map(str, self.seeds))} only)"
        return self.label + only * self.is_control


@dataclass(frozen=True)
class PanelTable:
    """A panel and its values."""

    panel: Panel
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ran: str = ""  # name of the model, if it is not the paper's model

    @property
    def title(self) -> str:
        """Title of the panel. If the runs use another model than the paper, the title names both models."""
        title = self.panel.title
        for model in MODELS if self.ran else ():
            title = title.replace(model, f"{self.ran} (the paper: {model})")
        return title

    @property
    def columns(self) -> list[str]:
        """Labels of the columns in which at least one row has a value."""
        has = {label for row in self.rows for label, cell in row.cells.items() if cell.values}
        return [label for label in self.panel.columns if label in has]

    @property
    def published(self) -> set[str]:
        """Labels of the columns for which the paper reports values."""
        has = {label for row in self.rows for label, cell in row.cells.items() if cell.paper}
        return has & {*self.columns}

    def footnotes(self) -> list[str]:
        """Footnotes of the table, and footnotes of individual rows with the labels of these rows."""
        rows_of: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                rows_of.setdefault(note, []).append(row.label)
        return [
            *self.notes,
            *(f"{'; '.join(labels)}: {note}" for note, labels in rows_of.items()),
        ]


@cache
def paper_numbers() -> Json:
    """Numbers of the paper: table label -> panel -> row -> column -> [mean, half width or null]."""
    text = resources.files("badpo_paper").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def make_row(
    panel: Panel,
    label: str,
    values: Mapping[str, Sequence[float | None]],
    halves: Mapping[str, float] | None = None,
) -> TableRow:
    """Build a row of a panel from values and half widths. The keys of both mappings are sources of columns."""
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {}).get(label, {})
    cells = {}
    for name, source in panel.columns.items():
        given = values.get(source, ())
        known = [float(value) for value in given if value is not None and math.isfinite(value)]
        half = (halves or {}).get(source, math.nan)
        if len(known) > 1 and panel.spread == "t95":
            half = t_interval(known).half_width
        if len(known) > 1 and panel.spread == "sd":
            half = float(np.std(known, ddof=1))
        mean, theirs = float(np.mean(known)) if known else math.nan, paper.get(name)
        published = tuple(theirs) if theirs else None
        cells[name] = Cell(tuple(known), mean, half, published, count_decimals(source))
    return TableRow(label, cells)


# -- rows of runs -----------------------------------------------------------------------------------------------------


def make_run_table(panel: Panel, found: PanelRuns) -> PanelTable:
    """Table of a panel from the planned seeds that were run."""
    rows, missing, notes = _rows_above(panel, found), [], []
    for row in panel.rows:
        name = row.condition.name
        seeds = found.seeds_of(name)
        missing += [f"{name}-s{seed}" for seed in found.planned(name) if seed not in seeds]
        if not seeds:
            continue
        values = {}
        for source in panel.columns.values():
            values[source] = list(found.values(name, source, row.against).values())
            if source.partition(":")[0] in SHARES and name != row.against:
                notes.append(found.explain_missing_share(row.against, source))
        said = filter(None, (row.note, describe_penalty(row, found, seeds[0])))
        filled, is_control = make_row(panel, row.label, values), len(seeds) < len(found.seeds)
        rows.append(replace(filled, seeds=seeds, is_control=is_control, notes=tuple(said)))
    return PanelTable(panel, tuple(rows), tuple(missing), tuple(dict.fromkeys(filter(None, notes))))


def _rows_above(panel: Panel, found: PanelRuns) -> list[TableRow]:
    """Rows for the reference and the planted values, if the runs or the paper have values for these rows."""
    reference = found.readouts("reference")
    sources = panel.columns.values()
    plain = {source: [read_number(reference, source)] for source in sources if ":" not in source}
    above = [make_row(panel, REFERENCE, plain)]
    if panel.truth:
        above.append(make_row(panel, panel.truth, _truth(panel, found)))
    return [row for row in above if any(cell.values or cell.paper for cell in row.cells.values())]


def _truth(panel: Panel, found: PanelRuns) -> dict[str, list[float]]:
    """Planted values, or readouts computed with planted theta, averaged over arms and seeds."""
    values = {}
    for source in panel.columns.values():
        head, _, last = source.rpartition(".")
        is_vote = source.startswith("votes.")
        place = source.replace("votes.", "ceiling.", 1) if is_vote else f"{head}.planted_{last}"
        known = [v for row in panel.rows for v in found.values(row.condition.name, place).values()]
        values[source] = [float(np.mean(known))] if known else []
    return values


def describe_penalty(row: Row, found: PanelRuns, seed: int) -> str:
    """Footnote on the factor by which the scale multiplied a penalty; empty if the penalty is unchanged."""
    usual = ARMS[row.condition.arm].fixed
    fixed = read_facts(found.folder / f"{row.condition.name}-s{seed}").get("fixed", usual)
    if fixed == usual:
        return ""
    return (
        f"{usual:g} is multiplied by {fixed / usual:.2f} at this scale, because its answers are shorter than the "
        "paper's by this factor"
    )


# -- rows of votes and names ------------------------------------------------------------------------------------------


def make_table(panel: Panel, found: PanelRuns, dataset: Callable[[Corpus], Dataset]) -> PanelTable:
    """Table of a panel whose rows are runs, attributes or cells of names."""
    match panel.of:
        case "runs":
            return make_run_table(panel, found)
        case "votes":
            values = measure_votes(dataset(panel.corpus).judgments)
        case "signatures":
            values = measure_signature_shifts(found)
        case "names":
            values = found.readouts("reference").get("name_tokens", {})
    rows = []
    for name, row in values.items():
        low, high = row.get("ci_low"), row.get("ci_high")
        halves = {} if low is None or high is None else {"log_odds": (high - low) / 2}
        numbers = {source: [number] for source, number in row.items()}
        rows.append(make_row(panel, name.replace("_", " "), numbers, halves))
    return PanelTable(panel, tuple(rows))


def measure_signature_shifts(found: PanelRuns) -> Json:
    """Mean shift of DPO's signatures toward each attribute, compared with random labels of the names."""
    runs = ["reference", *(f"dpo-s{seed}" for seed in found.seeds_of("dpo"))]
    kept = [found.readouts(name).get("signatures") for name in runs]
    if kept[0] is None or not any(kept[1:]):
        return {}
    reference, *arm = [[one[name] for name in FIRST_NAMES] for one in kept if one]
    return {
        name: measure_signature_shift(np.mean(arm, axis=0), reference, carries)
        for name, carries in zip(("woman", "black"), INDICATOR.T, strict=True)
    }


# -- tables as text ---------------------------------------------------------------------------------------------------


def number(value: float, places: int) -> str:
    """A number with a given number of decimals; a negative number of decimals means a percentage."""
    return decimal(value, places) if places >= 0 else f"{decimal(100 * value, -1 - places)} %"


def _spread(mean: float, half: float | None, places: int) -> str:
    if half is None or not math.isfinite(half):
        return number(mean, places)
    return f"{number(mean, places)} \u00b1 {number(half, places)}"


def format_cell(cell: Cell) -> str:
    """A cell as text: the mean, the half width after a plus-minus sign, and the paper's value in brackets."""
    own = _spread(cell.mean, cell.half, cell.places) if cell.values else DASH
    return own if cell.paper is None else f"{own} [{_spread(*cell.paper, cell.places)}]"


def format_table(table: PanelTable) -> str:
    """A table in Markdown, with its title above and its notes below."""
    columns = table.columns
    rows = [[row.shown, *(format_cell(row.cells[name]) for name in columns)] for row in table.rows]
    aligned = ["left", *["right"] * len(columns)]
    body = tabulate(rows, ["", *columns], "pipe", colalign=aligned, disable_numparse=True)
    notes = [f"\n*{note}*" for note in _notes(table)]
    return "\n".join([f"**{table.title}**\n", *[body] * bool(columns), *notes])


def _notes(table: PanelTable) -> list[str]:
    """Notes below a table: meaning of the plus-minus sign, missing runs, and footnotes."""
    spread = table.panel.spread
    has_half = any(math.isfinite(cell.half) for row in table.rows for cell in row.cells.values())
    notes = [SPREADS[spread]] * (has_half or spread == "mean") if table.columns else ["nothing measured"]
    if table.missing:
        notes.append(f"not run: {', '.join(table.missing)}")
    in_brackets = ["values in brackets: the paper"] * bool(table.published)
    return [*notes, *table.footnotes(), *in_brackets]


# -- tables as data ---------------------------------------------------------------------------------------------------


def list_cells(table: PanelTable) -> list[Json]:
    """One entry for each cell with a value: mean, half width, values of the seeds, and the paper's value."""
    return [
        {
            "row": row.label,
            "column": name,
            "mean": cell.mean,
            "half_width": cell.half if math.isfinite(cell.half) else None,
            "n_seeds": len(cell.values),
            "values": cell.values,
            "paper_mean": cell.paper and cell.paper[0],
            "paper_half_width": cell.paper and cell.paper[1],
            "notes": "; ".join(row.notes),
        }
        for row in table.rows
        for name in table.columns
        if (cell := row.cells[name]).values
    ]


def to_json(table: PanelTable) -> Json:
    """A table as a dictionary for JSON. A missing value is null."""
    told = {"table": table.panel.label, "panel": table.panel.title, "spread": table.panel.spread}
    return {**told, "missing": table.missing, "notes": table.notes, "cells": list_cells(table)}
