"""A suite's tables: one value for each seed, their mean and interval, and the paper's."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from badpo.data.files import LOG_FILE, Json
from badpo.data.tables import inert
from badpo.results.words import DASH, arm_label, decimal, markdown_text, signed
from badpo.runs.run import kept_facts, kept_json
from badpo.theory.summaries import log_odds_distance, share_removed, shift, t_interval
from badpo_paper.arms import ARMS
from badpo_paper.datasets import Dataset, votes_before
from badpo_paper.run_readouts import FIRST_NAMES, INDICATOR, signature_shift
from badpo_paper.suites import MODELS, Corpus, Panel, Row, places_of

REFERENCE = "Reference"
# What shares are taken of, in words.
SHIFTED = {
    "tokens.mean": "tokens",
    "rates.woman.rate": "p(woman)",
    "rates.black.rate": "p(black)",
}
SPREADS = {
    "t95": "\u00b1 is half of the 95 % interval over seeds (Student's t)",
    "sd": "\u00b1 is one standard deviation over seeds",
    "mean": "means over seeds",
    "prompts95": "\u00b1 is half of the 95 % interval, clustered by prompt; all judgments, held-out ones too",
    "none": "",
}


# -- what was measured ------------------------------------------------------------------------------------------------


class Found:
    """The readouts of a panel's runs."""

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
        """The readouts of a run folder; empty where there are none."""
        if name not in self._kept:
            self._kept[name] = kept_json(self.folder / name / "readouts.json")
        return self._kept[name]

    def planned(self, condition: str) -> tuple[int, ...]:
        """The seeds at which a condition is to be run."""
        return self._planned.get(condition, self.seeds)

    def seeds_of(self, condition: str) -> tuple[int, ...]:
        """Those of them at which it was measured."""
        return tuple(seed for seed in self.planned(condition) if self.readouts(f"{condition}-s{seed}"))

    def values(self, condition: str, source: str, against: str = "dpo") -> dict[int, float]:
        """The value at each seed that has it; sources as in `badpo_paper.suites.Columns`."""
        how, _, place = source.rpartition(":")
        if how == "amplified":
            moved = list(self.values(condition, f"shift:{place}").values())
            sd = float(np.std(moved, ddof=1)) if len(moved) > 1 else 0.0
            return {self.seeds_of(condition)[0]: float(np.mean(moved)) / sd} if sd else {}
        if how == "removed" and (condition == against or self.no_share(against, place)):
            return {}
        found = {
            seed: self._value(condition, seed, how, place, against) for seed in self.seeds_of(condition)
        }
        return {seed: value for seed, value in found.items() if math.isfinite(value)}

    def _value(self, condition: str, seed: int, how: str, place: str, against: str) -> float:
        """One value; NaN where it was not measured or is not defined."""
        name = f"{condition}-s{seed}"
        if how in FILES:
            return place_of(FILES[how](self.folder / name), place)
        runs = (name, "reference", f"{against}-s{seed}")
        own, reference, dpo = (place_of(self.readouts(run), place) for run in runs)
        match how:
            case "shift":
                return own - reference
            case "distance":
                return float(log_odds_distance(own, reference))
            case "removed":
                return float(share_removed([dpo], [own], reference)[0])
        return own

    def no_share(self, against: str, place: str) -> str:
        """Why no share of a condition's shift can be said to be removed; empty where it moved up, or was not run.

        It moved up where its whole interval over the seeds that were measured lies above the reference, or the value
        itself with one seed. A share of a shift that is not there, or goes the other way, has no meaning.
        """
        reference = place_of(self.readouts("reference"), place)
        values = list(self.values(against, place).values())
        if math.isnan(reference) or not values:
            return ""
        moved = shift(values, reference)
        if (moved.low if moved.n > 1 else moved.estimate) > 0:
            return ""
        words, places = SHIFTED.get(place, place), places_of(place)
        ends = (
            f"{signed(moved.low, places)} to {signed(moved.high, places)}" if moved.n > 1 else "one seed"
        )
        told = f"{signed(moved.estimate, places)} ({ends})"
        whose = arm_label(against) if against in ARMS else against
        return f"no share removed: {whose}'s own shift in {words}, {told}, does not lie above zero"


def place_of(readouts: Any, place: str) -> float:
    """The number at a place, its keys joined by dots; NaN where there is none."""
    for key in place.split("."):
        readouts = readouts.get(key) if isinstance(readouts, Mapping) else None
    return float(readouts) if isinstance(readouts, int | float) else math.nan


def last_step(folder: Path) -> Json:
    """The metrics of a run's last training step; empty where its log cannot be read."""
    try:
        found = json.loads((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def types_in_order(folder: Path) -> Json:
    """What is told of EM-DPO's types, by their places in the order of their annotators.

    The number of a type means nothing across seeds; its place in this order does.
    """
    types = kept_json(folder / "readouts.json").get("types", {"annotators": []})
    order = np.argsort(-np.array(types["annotators"]), kind="stable")
    return {what: {str(rank): row[k] for rank, k in enumerate(order)} for what, row in types.items()}


# By what stands before the colon of a source: what else of a run is read than its readouts.
FILES = {
    "log": last_step,
    "type": types_in_order,
    "anchor": lambda folder: kept_json(folder / "anchor.json"),
}


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One value of a table, and with how many decimals it is written."""

    values: tuple[float, ...]
    mean: float
    half: float
    paper: tuple[float, float | None] | None
    places: int


@dataclass(frozen=True)
class TableRow:
    """A row: its label, a cell for each column by its label, its seeds, whether it is a control, and footnotes."""

    label: str
    cells: Mapping[str, Cell]
    seeds: tuple[int, ...] = ()
    is_control: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The label; a row at fewer seeds than the others is marked as a control."""
        only = f" (seed {', '.join(map(str, self.seeds))} only)"
        return self.label + only * self.is_control


@dataclass(frozen=True)
class PanelTable:
    """A panel with its values."""

    panel: Panel
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ran: str = ""  # the model, where that is not the paper's

    @property
    def title(self) -> str:
        """The panel's title, the model that was run in front of the paper's where it is another one."""
        title = self.panel.title
        for model in MODELS if self.ran else ():
            title = title.replace(model, f"{self.ran} (the paper: {model})")
        return title

    @property
    def columns(self) -> list[str]:
        """Labels of the columns in which one of the rows has a value."""
        has = {label for row in self.rows for label, cell in row.cells.items() if cell.values}
        return [label for label in self.panel.columns if label in has]

    @property
    def published(self) -> set[str]:
        """Labels of the columns that the paper has too."""
        has = {label for row in self.rows for label, cell in row.cells.items() if cell.paper}
        return has & {*self.columns}

    def footnotes(self) -> list[str]:
        """What is to be said of the table, and of single rows: each footnote once, behind the labels of its rows."""
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
    """The paper's numbers: label of the table, panel, row, column -> [mean, half width or null]."""
    text = resources.files("badpo_paper").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def filled_row(
    panel: Panel,
    label: str,
    values: Mapping[str, Sequence[float | None]],
    halves: Mapping[str, float] | None = None,
) -> TableRow:
    """A row of a panel from its values, and half widths where they are known, both by the sources of the columns."""
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
        cells[name] = Cell(tuple(known), mean, half, published, places_of(source))
    return TableRow(label, cells)


# -- rows of runs -----------------------------------------------------------------------------------------------------


def panel_table(panel: Panel, found: Found) -> PanelTable:
    """A panel's values over the seeds that were planned and run."""
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
            if source.startswith("removed:") and name != row.against:
                notes.append(found.no_share(row.against, source.removeprefix("removed:")))
        said = filter(None, (row.note, length_note(row, found, seeds[0])))
        filled, is_control = filled_row(panel, row.label, values), len(seeds) < len(found.seeds)
        rows.append(replace(filled, seeds=seeds, is_control=is_control, notes=tuple(said)))
    return PanelTable(panel, tuple(rows), tuple(missing), tuple(dict.fromkeys(filter(None, notes))))


def _rows_above(panel: Panel, found: Found) -> list[TableRow]:
    """The reference, and what was planted, where the columns or the paper tell something of them."""
    reference = found.readouts("reference")
    sources = panel.columns.values()
    plain = {source: [place_of(reference, source)] for source in sources if ":" not in source}
    above = [filled_row(panel, REFERENCE, plain)]
    if panel.truth:
        above.append(filled_row(panel, panel.truth, _truth(panel, found)))
    return [row for row in above if any(cell.values or cell.paper for cell in row.cells.values())]


def _truth(panel: Panel, found: Found) -> dict[str, list[float]]:
    """What was planted, or the prediction with it, averaged over arms and seeds."""
    values = {}
    for source in panel.columns.values():
        head, _, last = source.rpartition(".")
        is_vote = source.startswith("votes.")
        place = source.replace("votes.", "ceiling.", 1) if is_vote else f"{head}.planted_{last}"
        known = [v for row in panel.rows for v in found.values(row.condition.name, place).values()]
        values[source] = [float(np.mean(known))] if known else []
    return values


def length_note(row: Row, found: Found, seed: int) -> str:
    """How the scale changed a penalty, and the unit of a length, as a run was trained; empty without either."""
    arm, facts = (
        ARMS[row.condition.arm],
        kept_facts(found.folder / f"{row.condition.name}-s{seed}"),
    )
    fixed, unit = facts.get("fixed", arm.fixed), facts.get("length_unit", arm.length_unit)
    if arm.fixed and fixed != arm.fixed:
        return (
            f"{arm.fixed:g} is multiplied by {fixed / arm.fixed:.2f} at this scale, whose answers are as much shorter "
            "than the paper's"
        )
    if arm.declared == "length_words" and not arm.fixed:
        return f"theta is for {unit:.3g} words"
    return ""


# -- rows of votes and names ------------------------------------------------------------------------------------------


def table_of(panel: Panel, found: Found, dataset: Callable[[Corpus], Dataset]) -> PanelTable:
    """The table of a panel, whatever its rows are: runs, attributes, or cells of names."""
    match panel.of:
        case "runs":
            return panel_table(panel, found)
        case "votes":
            values = votes_before(dataset(panel.corpus).judgments)
        case "signatures":
            values = signature_shifts(found)
        case "names":
            values = found.readouts("reference").get("name_tokens", {})
    rows = []
    for name, row in values.items():
        low, high = row.get("ci_low"), row.get("ci_high")
        halves = {} if low is None or high is None else {"log_odds": (high - low) / 2}
        numbers = {source: [number] for source, number in row.items()}
        rows.append(filled_row(panel, name.replace("_", " "), numbers, halves))
    return PanelTable(panel, tuple(rows))


def signature_shifts(found: Found) -> Json:
    """For each attribute, DPO's mean share of signatures over its seeds beside random labels of the pool."""
    runs = ["reference", *(f"dpo-s{seed}" for seed in found.seeds_of("dpo"))]
    kept = [found.readouts(name).get("signatures") for name in runs]
    if kept[0] is None or not any(kept[1:]):
        return {}
    reference, *arm = [[one[name] for name in FIRST_NAMES] for one in kept if one]
    return {
        name: signature_shift(np.mean(arm, axis=0), reference, carries)
        for name, carries in zip(("woman", "black"), INDICATOR.T, strict=True)
    }


# -- tables as text ---------------------------------------------------------------------------------------------------


def number(value: float, places: int) -> str:
    """A number with a column's decimals."""
    return decimal(value, places) if places >= 0 else f"{decimal(100 * value, -1 - places)} %"


def _spread(mean: float, half: float | None, places: int) -> str:
    if half is None or not math.isfinite(half):
        return number(mean, places)
    return f"{number(mean, places)} \u00b1 {number(half, places)}"


def written(cell: Cell) -> str:
    """A cell as text: the mean, and what stands behind the plus-minus sign."""
    return _spread(cell.mean, cell.half, cell.places) if cell.values else DASH


def published(cell: Cell) -> str:
    """The paper's value as text; empty where it has none."""
    return "" if cell.paper is None else _spread(*cell.paper, cell.places)


# How a table is written: what `tabulate` calls its format, and how the title and a note stand beside it.
FORMATS = {
    "text": ("plain", "{}", "{}"),
    "markdown": ("pipe", "**{}**\n", "\n*{}*"),
    "latex": ("latex_booktabs", "% {}", "% {}"),
}


def written_table(table: PanelTable, form: str) -> str:
    """A table in one of `FORMATS`; in Markdown the paper's value stands behind ours."""
    of_tabulate, titled, noted = FORMATS[form]
    columns, is_markdown = table.columns, form == "markdown"

    def text(cell: Cell) -> str:
        theirs = published(cell) if is_markdown else ""
        return written(cell) + f" [{theirs}]" * bool(theirs)

    rows = [[row.shown, *(text(row.cells[name]) for name in columns)] for row in table.rows]
    aligned = ["left", *["right"] * len(columns)]
    body = tabulate(rows, ["", *columns], of_tabulate, colalign=aligned, disable_numparse=True)
    if form != "text":
        body = re.sub(" +", " ", body)  # nobody reads the columns as they stand
    if form == "latex":
        body = body.replace("\u00b1", r"$\pm$").replace("\u2212", "$-$")
    notes = [
        *_notes(table),
        *["in brackets: the paper's"] * bool(is_markdown and table.published),
    ]
    title = markdown_text(table.title) if is_markdown else table.title
    return "\n".join([titled.format(title), *[body] * bool(columns), *map(noted.format, notes)])


def _notes(table: PanelTable) -> list[str]:
    """What stands under a table: what its plus-minus is, which runs lack, and its footnotes."""
    spread = table.panel.spread
    has_half = any(math.isfinite(cell.half) for row in table.rows for cell in row.cells.values())
    notes = [SPREADS[spread]] * (has_half or spread == "mean") if table.columns else ["nothing measured"]
    if table.missing:
        notes.append(f"not run: {', '.join(table.missing)}")
    return [*notes, *table.footnotes()]


# -- tables as data ---------------------------------------------------------------------------------------------------


def cells_of(table: PanelTable) -> list[Json]:
    """One entry for each cell that has a value: ours, the paper's, each seed."""
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
    """A table as plain values; null where there is none."""
    told = {"table": table.panel.label, "panel": table.panel.title, "spread": table.panel.spread}
    return {**told, "missing": table.missing, "notes": table.notes, "cells": cells_of(table)}


def to_frame(table: PanelTable) -> pd.DataFrame:
    """The cells with their table and panel, as texts that no spreadsheet computes."""
    frame = pd.DataFrame(cells_of(table))
    frame["values"] = [" ".join(f"{value:.6g}" for value in values) for values in frame["values"]]
    for name in ("row", "column", "notes"):
        frame[name] = frame[name].map(inert)
    return frame.assign(table=table.panel.label, panel=table.panel.title, spread=table.panel.spread)
