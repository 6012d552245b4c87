"""A suite's tables: one value for each seed, their mean and interval, and the paper's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from badpo.auditing.pool import log_odds_row
from badpo.data.files import LOG_FILE
from badpo.data.judgments import Judgments
from badpo.data.tables import inert
from badpo.results.words import DASH, arm_label, decimal, markdown_text, percent, signed
from badpo.runs.run import kept_facts, kept_json
from badpo.theory.summaries import log_odds_distance, share_removed, shift, t_interval
from badpo_paper.arms import ARMS
from badpo_paper.name_readouts import FIRST_NAMES, INDICATOR, signature_shift
from badpo_paper.suites import PERCENT, PERCENT1, Column, Corpus, Panel, Row

REFERENCE = "Reference"
# What shares are taken of, in words, and with how many places a shift of it is told.
SHIFTED = {
    "tokens.mean": ("tokens", 1),
    "rates.woman.rate": ("p(woman)", 3),
    "rates.black.rate": ("p(black)", 3),
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
        self, folder: Path, seeds: Sequence[int], planned: Mapping[str, tuple[int, ...]] | None = None
    ):
        self.folder, self.seeds = folder, tuple(seeds)
        self._planned = planned or {}
        self._kept: dict[str, dict[str, Any]] = {}

    def readouts(self, name: str) -> dict[str, Any]:
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
        """The value at each seed that has it; sources as in `badpo_paper.suites.Column`."""
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
        return {
            seed: value for seed, value in found.items() if value is not None and math.isfinite(value)
        }

    def _value(self, condition: str, seed: int, how: str, place: str, against: str) -> float | None:
        """One value; None where it was not measured or is not defined."""
        name = f"{condition}-s{seed}"
        if how == "log":
            return place_of(last_step(self.folder / name), place)
        if how == "type":
            return of_type(self.readouts(name), place)
        if how == "anchor":
            return place_of(kept_json(self.folder / name / "anchor.json"), place)
        own, reference = (place_of(self.readouts(one), place) for one in (name, "reference"))
        if own is None or not how:
            return own
        if reference is None:
            return None
        if how == "shift":
            return own - reference
        if how == "distance":
            return float(log_odds_distance(own, reference))
        if how == "removed":
            dpo = place_of(self.readouts(f"{against}-s{seed}"), place)
            return None if dpo is None else float(share_removed([dpo], [own], reference)[0])
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
        ends = (
            f"{signed(moved.low, places)} to {signed(moved.high, places)}" if moved.n > 1 else "one seed"
        )
        told = f"{signed(moved.estimate, places)} ({ends})"
        whose = arm_label(against) if against in ARMS else against
        return f"no share removed: {whose}'s own shift in {words}, {told}, does not lie above zero"


def place_of(readouts: Mapping[str, Any], place: str) -> float | None:
    """The number at a place, its keys joined by dots; None where there is none."""
    found: Any = readouts
    for key in place.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return float(found) if isinstance(found, int | float) else None


def last_step(folder: Path) -> dict[str, Any]:
    """The metrics of a run's last training step; empty where its log cannot be read."""
    try:
        found = json.loads((folder / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def of_type(readouts: Mapping[str, Any], place: str) -> float | None:
    """A reading of one type of EM-DPO, types in the order of their annotators; None where there are none.

    The number of a type means nothing across seeds; its place in this order does.
    """
    types = readouts.get("types")
    if types is None:
        return None
    what, _, rank = place.partition(".")
    order = np.argsort(-np.array(types["annotators"]), kind="stable")
    return float(types[what][order[int(rank)]]) if int(rank) < len(order) else None


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One value of a table."""

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
    """A row: its label, a cell for each column by its label, its seeds, whether it is a control, and footnotes."""

    label: str
    cells: Mapping[str, Cell]
    seeds: tuple[int, ...] = ()
    is_control: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The label; a row at fewer seeds than the others is marked as a control."""
        return (
            f"{self.label} (seed {', '.join(map(str, self.seeds))} only)"
            if self.is_control
            else self.label
        )


@dataclass(frozen=True)
class PanelTable:
    """A panel with its values, in the columns that have some."""

    panel: Panel
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def footnotes(self) -> list[str]:
        """What is to be said of the table, and of single rows: each footnote once, behind the labels of its rows."""
        rows_of: dict[str, list[str]] = {}
        for row in self.rows:
            for note in row.notes:
                rows_of.setdefault(note, []).append(row.label)
        return [*self.notes, *(f"{'; '.join(labels)}: {note}" for note, labels in rows_of.items())]


@cache
def paper_numbers() -> dict[str, dict[str, dict[str, dict[str, list]]]]:
    """The paper's numbers: label of the table, panel, row, column -> [mean, half width or null]."""
    text = resources.files("badpo_paper").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def filled_row(
    panel: Panel, label: str, values: Mapping[str, Sequence[float | None]], spread: str = ""
) -> TableRow:
    """A row of a panel from its values, which stand by the sources of the columns."""
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {}).get(label, {})
    spread = spread or panel.spread
    cells = {}
    for column in panel.columns:
        known = [float(value) for value in values.get(column.source, ()) if value is not None]
        half = math.nan
        if len(known) > 1 and spread == "t95":
            half = t_interval(known).half_width
        if len(known) > 1 and spread == "sd":
            half = float(np.std(known, ddof=1))
        theirs = paper.get(column.label)
        cells[column.label] = Cell(
            tuple(known),
            float(np.mean(known)) if known else math.nan,
            half,
            tuple(theirs) if theirs else None,
        )
    return TableRow(label, cells)


def finished_table(
    panel: Panel, rows: Iterable[TableRow], missing: Sequence[str] = (), notes: Sequence[str] = ()
) -> PanelTable:
    """The rows as a table of those columns in which one of them has a value."""
    rows = tuple(rows)
    columns = tuple(c for c in panel.columns if any(row.cells[c.label].values for row in rows))
    return PanelTable(panel, columns, rows, tuple(missing), tuple(notes))


def panel_table(panel: Panel, found: Found) -> PanelTable:
    """A panel's values over the seeds that were planned and run."""
    reference = found.readouts("reference")
    plain = {c.source: [place_of(reference, c.source)] for c in panel.columns if ":" not in c.source}
    above = [filled_row(panel, REFERENCE, plain, "mean")]
    if panel.truth:
        above.append(filled_row(panel, panel.truth, _truth(panel, found), "mean"))
    rows = [row for row in above if any(cell.values or cell.paper for cell in row.cells.values())]
    missing, notes = [], []
    for row in panel.rows:
        name = row.condition.name
        measured, wanted = found.seeds_of(name), found.planned(name)
        missing += [f"{name}-s{seed}" for seed in wanted if seed not in measured]
        seeds = tuple(seed for seed in measured if seed in wanted)
        if not seeds:
            continue
        values = {}
        for column in panel.columns:
            at = found.values(name, column.source, row.against)
            values[column.source] = [at[seed] for seed in seeds if seed in at]
            if column.source.startswith("removed:") and name != row.against:
                notes.append(found.no_share(row.against, column.source.removeprefix("removed:")))
        said = filter(None, (row.note, length_note(row, found, seeds[0])))
        filled = filled_row(panel, row.label, values)
        is_control = len(seeds) < len(found.seeds)
        rows.append(replace(filled, seeds=seeds, is_control=is_control, notes=tuple(said)))
    return finished_table(panel, rows, missing, list(dict.fromkeys(filter(None, notes))))


def _truth(panel: Panel, found: Found) -> dict[str, list[float]]:
    """What was planted, or the prediction with it, averaged over arms and seeds."""
    values = {}
    for column in panel.columns:
        head, _, last = column.source.rpartition(".")
        is_vote = column.source.startswith("votes.")
        place = column.source.replace("votes.", "ceiling.", 1) if is_vote else f"{head}.planted_{last}"
        known = [v for row in panel.rows for v in found.values(row.condition.name, place).values()]
        values[column.source] = [float(np.mean(known))] if known else []
    return values


def length_note(row: Row, found: Found, seed: int) -> str:
    """How the scale changed a penalty, and the unit of a length, as a run was trained; empty without either."""
    arm, facts = ARMS[row.condition.arm], kept_facts(found.folder / f"{row.condition.name}-s{seed}")
    fixed, unit = facts.get("fixed", arm.fixed), facts.get("length_unit", arm.length_unit)
    if arm.fixed and fixed != arm.fixed:
        return (
            f"{arm.fixed:g} is multiplied by {fixed / arm.fixed:.2f} at this scale, whose answers are as much shorter "
            "than the paper's"
        )
    if arm.declared == "length_words" and not arm.fixed:
        return f"theta is for {unit:.3g} words"
    return ""


def votes_table(panel: Panel, judgments: Judgments) -> PanelTable:
    """How every declared attribute stands in the votes, the paper's numbers beside."""
    rows = []
    for name, found in zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True):
        read = log_odds_row(found, judgments.n_votes)
        row = filled_row(panel, name, {c.source: [read[c.source]] for c in panel.columns})
        label = next(column.label for column in panel.columns if column.source == "log_odds")
        if row.cells[label].values and None not in (read["ci_low"], read["ci_high"]):
            half = (read["ci_high"] - read["ci_low"]) / 2
            row = replace(row, cells={**row.cells, label: replace(row.cells[label], half=half)})
        rows.append(row)
    return finished_table(panel, rows)


SHIFT = (
    Column("shift of the share", "shift"),
    Column("random labels, sd", "sd"),
    Column("2.5 %", "low"),
    Column("97.5 %", "high"),
    Column("share as large", "p_greater"),
    Column("three names' share", "top_share", PERCENT),
    Column("shift without them", "shift_without_top"),
)
TOKENS = (
    Column("names", "n_names", 0),
    Column("tokens a name", "mean_tokens", 1),
    Column("one token", "one_token_share", PERCENT),
    Column("first tokens", "first_tokens", 0),
    Column("begin alike", "largest_first_share", PERCENT),
)
SHIFT_TITLE = "DPO's signatures by carriers: among 1,000 random labels, and without three names"


def name_panels(corpus: Corpus) -> tuple[Panel, Panel]:
    """The shift of DPO's signatures, its rows the attributes; the tokens of names, its rows the cells."""
    return (
        Panel("app:abl_names", SHIFT_TITLE, corpus, (), SHIFT, "none"),
        Panel("app:names", "Tokens of the names, cell by cell", corpus, (), TOKENS, "none"),
    )


def name_tables(corpus: Corpus, found: Found) -> list[PanelTable]:
    """Both tables, as far as there are readouts for them."""
    reference, tables = found.readouts("reference"), []
    for panel, rows in zip(
        name_panels(corpus), (_shifts(found), reference.get("name_tokens", {})), strict=True
    ):
        if rows:
            filled = (
                filled_row(
                    panel, name.replace("_", " "), {place: [number] for place, number in row.items()}
                )
                for name, row in rows.items()
            )
            tables.append(finished_table(panel, filled))
    return tables


def _shifts(found: Found) -> dict[str, dict]:
    """For each attribute, DPO's mean share over its seeds beside random labels of the pool."""
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


def number(value: float | None, places: int) -> str:
    """A number with a column's decimals."""
    if places == PERCENT:
        return percent(value)
    if places == PERCENT1:
        return f"{decimal(None if value is None else 100 * value, 1)}\u00a0%"
    return decimal(value, places)


def _spread(mean: float, half: float | None, places: int) -> str:
    behind = "" if half is None or not math.isfinite(half) else f" \u00b1 {number(half, places)}"
    return f"{number(mean, places)}{behind}".replace("\u00a0", " ")


def written(cell: Cell, places: int) -> str:
    """A cell as text: the mean, and what stands behind the plus-minus sign."""
    return _spread(cell.mean, cell.half, places) if cell.values else DASH


def published(cell: Cell, places: int) -> str:
    """The paper's value as text; empty where it has none."""
    return "" if cell.paper is None else _spread(*cell.paper, places)


# How `tabulate` calls each format of a table, and how a line beside one is marked.
FORMATS = {"text": ("plain", "{}"), "markdown": ("pipe", "*{}*"), "latex": ("latex_booktabs", "% {}")}


def written_table(table: PanelTable, form: str) -> str:
    """A table in one of `FORMATS`; in Markdown the paper's value stands behind ours."""
    name, mark = FORMATS[form]
    is_markdown, lines = form == "markdown", [*_notes(table)]
    rows = []
    for row in table.rows:
        texts = []
        for column in table.columns:
            cell = row.cells[column.label]
            theirs = published(cell, column.places) if is_markdown else ""
            texts.append(written(cell, column.places) + (f" [{theirs}]" if theirs else ""))
        rows.append([row.shown, *texts])
    header = ["", *(column.label for column in table.columns)]
    aligned = ["left", *["right"] * len(table.columns)]
    body = tabulate(rows, header, tablefmt=name, colalign=aligned, disable_numparse=True)
    if form != "text":
        body = re.sub(" +", " ", body)  # nobody reads the columns as they stand
    if form == "latex":
        body = body.replace("\u00b1", r"$\pm$").replace("\u2212", "$-$")
    if is_markdown and any(cell.paper for row in table.rows for cell in row.cells.values()):
        lines.append("in brackets: the paper's")
    title = table.panel.title
    title = f"**{markdown_text(title)}**\n" if is_markdown else mark.format(title)
    gap = [""] if is_markdown else []
    return "\n".join([title, *([body] if table.columns else []), *gap, *map(mark.format, lines)])


def cells_of(table: PanelTable) -> list[dict[str, Any]]:
    """One entry for each cell that has a value: ours, the paper's, the difference in half widths, each seed."""
    return [
        {
            "row": row.label,
            "column": column.label,
            "mean": cell.mean,
            "half_width": cell.half if math.isfinite(cell.half) else None,
            "n_seeds": len(cell.values),
            "values": cell.values,
            "paper_mean": cell.paper and cell.paper[0],
            "paper_half_width": cell.paper and cell.paper[1],
            "difference_in_half_widths": cell.difference,
            "notes": "; ".join(row.notes),
        }
        for row in table.rows
        for column in table.columns
        if (cell := row.cells[column.label]).values
    ]


def to_json(table: PanelTable) -> dict[str, Any]:
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


def _notes(table: PanelTable) -> list[str]:
    """What stands under a table: what its plus-minus is, which runs lack, and its footnotes."""
    spread = table.panel.spread
    has_half = any(math.isfinite(cell.half) for row in table.rows for cell in row.cells.values())
    notes = [SPREADS[spread]] * (has_half or spread == "mean") if table.columns else ["nothing measured"]
    if table.missing:
        notes.append(f"not run: {', '.join(table.missing)}")
    return [*notes, *table.footnotes()]
