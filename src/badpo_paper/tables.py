"""A suite's tables: one value for each seed, their mean and interval, and the paper's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from badpo.training.encoding import encode_comparisons, length_report
from badpo_paper.arms import ARMS
from badpo_paper.materials import Material
from badpo_paper.methods import START, start_levels
from badpo_paper.name_readouts import FIRST_NAMES, INDICATOR, concentration, relabelling_null
from badpo_paper.settings import Scale
from badpo_paper.stages import declared
from badpo_paper.suites import Column, Condition, Corpus, Panel, Row, SeedPlan, Suite

Readouts = Mapping[str, Any]
REFERENCE = "Reference"
# What shares are taken of, in words, and with how many places a shift of it is told.
SHIFTED = {
    "tokens.mean": ("tokens", 1),
    "rates.woman.rate": ("p(woman)", 3),
    "rates.black.rate": ("p(black)", 3),
}


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
    """A row: its label, how many seeds it has and whether it is a control, a cell for each column, and footnotes."""

    label: str
    seeds: tuple[int, ...]
    is_control: bool
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PanelTable:
    """A panel with its values."""

    panel: Panel
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()


class Found:
    """The readouts of a panel's runs."""

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
        """The value at each seed that has it; sources as in `badpo_paper.suites.Column`."""
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
        if reference is None or len(values) < 2 or not (sd := float(np.std(values, ddof=1))):
            return None
        return shift(values, reference).estimate / sd


def place_of(readouts: Readouts, place: str) -> float | None:
    """The number at a place, its keys joined by dots; None where there is none."""
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
    """
    types = readouts.get("types")
    if types is None:
        return None
    what, _, rank = place.partition(".")
    order = sorted(range(len(types["annotators"])), key=lambda k: -types["annotators"][k])
    return float(types[what][order[int(rank)]]) if int(rank) < len(order) else None


def planted_place(place: str) -> str:
    """Where what was planted stands beside a reading of what was learned."""
    if place.startswith("votes."):
        return place.replace("votes.", "ceiling.", 1)
    head, _, last = place.rpartition(".")
    return f"{head}.planted_{last}"


def paper_numbers() -> dict[str, dict[str, dict[str, dict[str, list]]]]:
    """The paper's numbers: label of the table, panel, row, column -> [mean, half width or null]."""
    text = resources.files("badpo_paper").joinpath("paper_numbers.json").read_text(encoding="utf-8")
    return json.loads(text)


def found_runs(suite: Suite, corpus: Corpus, out: Path, plan: SeedPlan) -> Found:
    """A suite's runs on a corpus, with the seeds that its rows are planned at."""
    rows = [row for panel in suite.panels if panel.corpus == corpus for row in panel.rows]
    return Found(out / corpus.folder, plan.seeds, plan.by_condition(rows))


def tables(suite: Suite, out: Path, plan: SeedPlan) -> list[PanelTable]:
    """The tables of a suite from its run folders; a panel whose reference is not there is left out."""
    return [
        panel_table(panel, found_runs(suite, panel.corpus, out, plan))
        for panel in suite.panels
        if has_reference(out, panel)
    ]


def has_reference(out: Path, panel: Panel) -> bool:
    """Whether the reference of a panel was measured."""
    return (out / panel.corpus.folder / "reference" / "readouts.json").exists()


def panel_table(panel: Panel, found: Found) -> PanelTable:
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
    return PanelTable(panel, columns, tuple(rows), tuple(missing), _no_shares(panel, found))


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
    """A cell from its value at each seed, or from the one value that there is."""
    mean = float(np.mean(values)) if values else math.nan
    half = math.nan
    if len(values) > 1 and spread == "t95":
        half = t_interval(values).half_width
    if len(values) > 1 and spread == "sd":
        half = float(np.std(values, ddof=1))
    return Cell(tuple(values), mean, half, (paper[0], paper[1]) if paper else None)


ATTRIBUTES = ("woman", "black")
SHIFT = (
    Column("shift of the share", "shift"),
    Column("random labels, sd", "sd"),
    Column("2.5 %", "low"),
    Column("97.5 %", "high"),
    Column("share as large", "p_greater"),
    Column("three names' share", "top_share", "percent"),
    Column("shift without them", "shift_without_top"),
)
TOKENS = (
    Column("names", "n_names", "whole"),
    Column("tokens a name", "mean_tokens", "decimal1"),
    Column("one token", "one_token_share", "percent"),
    Column("first tokens", "first_tokens", "whole"),
    Column("begin alike", "largest_first_share", "percent"),
)
SHIFT_TITLE = "DPO's signatures by carriers: among 1,000 random labels, and without three names"
TOKENS_TITLE = "Tokens of the names, cell by cell"


def name_tables(corpus: Corpus, found: Found) -> list[PanelTable]:
    """Both tables, as far as there are readouts for them."""
    values = (_shifts(found), found.readouts("reference").get("name_tokens", {}))
    return [_table(panel, rows) for panel, rows in zip(name_panels(corpus), values, strict=True) if rows]


def name_panels(corpus: Corpus) -> tuple[Panel, Panel]:
    """The shift of DPO's signatures, its rows the attributes; the tokens of names, its rows the cells."""
    return (
        Panel("app:abl_names", SHIFT_TITLE, corpus, (), SHIFT, "none"),
        Panel("app:names", TOKENS_TITLE, corpus, (), TOKENS, "none"),
    )


def _shifts(found: Found) -> dict[str, dict]:
    """For each attribute, DPO's mean share over its seeds beside random labels of the pool."""
    reference = found.readouts("reference").get("signatures")
    kept = [found.readouts(f"dpo-s{seed}").get("signatures") for seed in found.seeds_of("dpo")]
    arm = [_mass(signatures) for signatures in kept if signatures is not None]
    if reference is None or not arm:
        return {}
    masses = np.mean(arm, axis=0), _mass(reference)
    return {
        name: dict(vars(relabelling_null(*masses, carries)))
        | concentration(*masses, carries, FIRST_NAMES).to_json()
        for name, carries in zip(ATTRIBUTES, INDICATOR.T, strict=True)
    }


def _mass(signatures: Mapping[str, float]) -> list[float]:
    return [signatures[name] for name in FIRST_NAMES]


def _table(panel: Panel, values: Mapping[str, Mapping]) -> PanelTable:
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    rows = []
    for name, found in values.items():
        theirs = paper.get(name, {})
        cells = (
            cell_of([] if found[c.source] is None else [found[c.source]], panel.spread, theirs.get(c.label))
            for c in panel.columns
        )
        rows.append(TableRow(name.replace("_", " "), (), False, tuple(cells)))
    return PanelTable(panel, panel.columns, tuple(rows), ())


STYLES: dict[str, Callable[[float | None], str]] = {
    "decimal3": lambda value: decimal(value, 3),
    "decimal2": lambda value: decimal(value, 2),
    "decimal1": lambda value: decimal(value, 1),
    "whole": lambda value: decimal(value, 0),
    "percent": percent,
    "percent1": lambda value: decimal(None if value is None else 100 * value, 1) + "\u00a0%",
}


def written(cell: Cell, style: str, sign: str = "\u00b1") -> str:
    """A cell as text: the mean, and what stands behind the plus-minus sign."""
    if not cell.values:
        return DASH
    number = STYLES[style]
    half = f" {sign} {number(cell.half)}" if math.isfinite(cell.half) else ""
    return f"{number(cell.mean)}{half}".replace("\u00a0", " ")


def published(cell: Cell, style: str) -> str:
    """The paper's value as text; empty where it has none."""
    if cell.paper is None:
        return ""
    mean, half = cell.paper
    number = STYLES[style]
    spread = "" if half is None else f" \u00b1 {number(half)}"
    return f"{number(mean)}{spread}".replace("\u00a0", " ")


def row_label(row: TableRow) -> str:
    """The label; a row at fewer seeds than the others is marked as a control."""
    return f"{row.label} (seed {', '.join(map(str, row.seeds))} only)" if row.is_control else row.label


# How `tabulate` calls each format of a table, and how a line beside one is marked.
FORMATS = {
    "text": ("plain", "{}"),
    "markdown": ("pipe", "*{}*"),
    "latex": ("latex_booktabs", "% {}"),
    "csv": ("", ""),
}


def written_table(table: PanelTable, form: str) -> str:
    """A table in one of `FORMATS`; in Markdown the paper's value stands behind ours, in CSV a line is a cell."""
    if form == "csv":
        return pd.DataFrame(_csv_rows(table)).to_csv(index=False, lineterminator="\n").rstrip("\n")
    name, mark = FORMATS[form]
    rows = [
        [row_label(row), *(_cell_text(cell, column, form) for cell, column in _columns(row, table))]
        for row in table.rows
    ]
    header = ["", *(column.label for column in table.columns)]
    aligned = ["left", *["right"] * len(table.columns)]
    body = tabulate(rows, header, tablefmt=name, colalign=aligned, disable_numparse=True)
    if form != "text":
        body = re.sub(" +", " ", body)  # nobody reads the columns as they stand
    body = body.replace("\u00b1", r"$\pm$").replace("\u2212", "$-$") if form == "latex" else body
    has_paper = form == "markdown" and any(cell.paper for row in table.rows for cell in row.cells)
    notes = [*_notes(table), *(["in brackets: the paper's"] if has_paper else [])]
    title = {"markdown": f"**{markdown_text(table.panel.title)}**\n"}.get(
        form, mark.format(table.panel.title)
    )
    gap = [""] if form == "markdown" else []
    return "\n".join([title, *([body] if table.columns else []), *gap, *map(mark.format, notes)])


def _columns(row: TableRow, table: PanelTable) -> Iterator[tuple[Cell, Column]]:
    return zip(row.cells, table.columns, strict=True)


def _cell_text(cell: Cell, column: Column, form: str) -> str:
    theirs = published(cell, column.style) if form == "markdown" else ""
    return written(cell, column.style) + (f" [{theirs}]" if theirs else "")


def _csv_rows(table: PanelTable) -> list[dict[str, Any]]:
    """One row for each cell that has a value: ours, the paper's, the difference in half widths, each seed."""
    return [
        {
            "table": inert(table.panel.label),
            "panel": inert(table.panel.title),
            "row": inert(row.label),
            "column": inert(column.label),
            "mean": cell.mean,
            "half_width": cell.half,
            "spread": table.panel.spread,
            "n_seeds": len(cell.values),
            "paper_mean": cell.paper and cell.paper[0],
            "paper_half_width": cell.paper and cell.paper[1],
            "difference_in_half_widths": cell.difference,
            "values": " ".join(f"{value:.6g}" for value in cell.values),
            "notes": inert("; ".join(row.notes)),
        }
        for row in table.rows
        for cell, column in _columns(row, table)
        if cell.values
    ]


def to_json(table: PanelTable) -> dict[str, Any]:
    """A table as plain numbers; null where there is none."""
    return {
        "label": table.panel.label,
        "title": table.panel.title,
        "spread": table.panel.spread,
        "missing": list(table.missing),
        "notes": list(table.notes),
        "rows": [
            {
                "label": row.label,
                "seeds": list(row.seeds),
                "notes": list(row.notes),
                "cells": {
                    column.label: {
                        "mean": _finite(cell.mean),
                        "half_width": _finite(cell.half),
                        "values": list(cell.values),
                        "paper": None if cell.paper is None else list(cell.paper),
                        "difference": cell.difference,
                    }
                    for cell, column in _columns(row, table)
                },
            }
            for row in table.rows
        ],
    }


def _notes(table: PanelTable) -> list[str]:
    spread = {
        "t95": "\u00b1 is half of the 95 % interval over seeds (Student's t)",
        "sd": "\u00b1 is one standard deviation over seeds",
        "mean": "means over seeds",
        "prompts95": "\u00b1 is half of the 95 % interval, clustered by prompt; all judgments, held-out ones too",
        "none": "",
    }[table.panel.spread]
    has_spread = any(math.isfinite(cell.half) for row in table.rows for cell in row.cells)
    notes = [spread] * (has_spread or table.panel.spread == "mean") if table.columns else ["nothing measured"]
    if table.missing:
        notes.append(f"not run: {', '.join(table.missing)}")
    return [*notes, *footnotes(table)]


def footnotes(table: PanelTable) -> list[str]:
    """What is to be said of a table, and of single rows: each footnote once, behind the labels of its rows."""
    rows_of: dict[str, list[str]] = {}
    for row in table.rows:
        for note in row.notes:
            rows_of.setdefault(note, []).append(row.label)
    return [*table.notes, *(f"{'; '.join(labels)}: {note}" for note, labels in rows_of.items())]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def with_notes(table: PanelTable, folder: Path, material: Callable[[Corpus], Material]) -> PanelTable:
    """A table with the footnotes of its rows."""
    rows = {row.label: row for row in table.panel.rows}

    def notes(shown: TableRow) -> tuple[str, ...]:
        row = rows.get(shown.label)
        if row is None:
            return ()
        run = folder / f"{row.condition.name}-s{shown.seeds[0]}"
        started = start_note(row.condition, run, lambda: material(table.panel.corpus))
        return tuple(note for note in (row.note, length_note(row, run), started) if note)

    return replace(table, rows=tuple(replace(row, notes=notes(row)) for row in table.rows))


def length_note(row: Row, run: Path) -> str:
    """How the scale changed a penalty, and the unit of a length, as a run was trained; empty without either."""
    arm, facts = ARMS[row.condition.arm], kept_facts(run)
    fixed, unit = facts.get("fixed", arm.fixed), facts.get("length_unit", arm.length_unit)
    if arm.fixed and fixed != arm.fixed:
        return (
            f"{arm.fixed:g} is multiplied by {fixed / arm.fixed:.2f} at this scale, whose answers are as much shorter "
            "than the paper's"
        )
    if arm.declared == "length_words" and not arm.fixed:
        return f"theta is for {unit:.3g} words"
    return ""


def start_note(condition: Condition, run: Path, material: Callable[[], Material]) -> str:
    """Where theta started; empty for a start at zero."""
    if condition.start == "zero":
        return ""
    levels = kept_json(run / START)
    if not levels:
        train, _ = material().split()
        levels = start_levels(declared(train, condition.declared), condition.start)
    told = (f"{name} {signed(found['level'], 2)} from {found['from']}" for name, found in levels.items())
    return f"theta started at {', '.join(told)}"


MOST = 0.5
FEW_PROMPTS = 30
_NO_PROMPT_LIMIT = 2**31


def votes_table(panel: Panel, judgments: Judgments) -> PanelTable:
    """How every declared attribute stands in the votes, the paper's numbers beside."""
    paper = paper_numbers().get(panel.label, {}).get(panel.title, {})
    rows = []
    for name, found in zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True):
        read, theirs = log_odds_row(found, judgments.n_votes), paper.get(name, {})
        cells = tuple(_cell(read, column.source, theirs.get(column.label)) for column in panel.columns)
        rows.append(TableRow(name, (), False, cells))
    return PanelTable(panel, panel.columns, tuple(rows), ())


def _cell(read: Mapping[str, Any], source: str, paper: list | None) -> Cell:
    value, low, high = read[source], read["ci_low"], read["ci_high"]
    cell = cell_of([] if value is None else [float(value)], "prompts95", paper)
    has_interval = source == "log_odds" and low is not None and high is not None
    return replace(cell, half=(high - low) / 2) if has_interval else cell


@cache
def about_votes(corpus: Corpus, scale: Scale, data: Path) -> tuple[str, ...]:
    """A user's own votes in sentences: how many they are, and what the scale's limits leave of their texts.

    Nothing is trained and no model is loaded. Where the tokenizer is not learned from the votes, nothing is said of
    tokens.
    """
    material = scale.material(corpus, data).require_unseen()
    judgments = material.judgments
    train, held_out = material.split()
    left_out = judgments.dropped.groupby("reason")["n"].sum()
    reasons = "".join(f"; {n:,} rows left out ({reason})" for reason, n in left_out.items())
    n_prompts, n_asked = judgments.comparisons["prompt_id"].nunique(), len(set(material.prompts))
    lines = [
        f"votes: {judgments.n_votes:,} judgments of {judgments.n_annotators:,} annotators on "
        f"{judgments.n_comparisons:,} comparisons of {n_prompts:,} prompts{reasons}; "
        f"{train.n_votes:,} to train on, {held_out.n_votes:,} held out; {n_asked:,} evaluation prompts, "
        f"{len(material.prompts) // n_asked:,} times each"
    ]
    if n_asked < FEW_PROMPTS:
        lines.append(f"{n_asked} evaluation prompts are few: what is read from sampled answers is rough")
    if scale.made is not None:
        keys, n_sampled = scale.keys(corpus, material), scale.decoding.max_new_tokens
        limits = (keys["max_length"], keys["max_prompt_length"], n_sampled)
        lines += _about_texts(judgments, scale.made(corpus, material)[1], *limits)
    return tuple(lines)


def _about_texts(judgments: Judgments, tokenizer, limit: int, prompt_limit: int, n_sampled: int) -> list[str]:
    """What the limits in tokens leave of prompts and responses, and of the attributes."""
    whole = encode_comparisons(judgments, tokenizer, "paper", None, _NO_PROMPT_LIMIT)
    prompts = np.array([len(ids) for ids in whole.prompt_ids])
    responses = np.array([[len(a), len(b)] for a, b in zip(whole.a_ids, whole.b_ids, strict=True)])
    room = (limit - np.minimum(prompts, prompt_limit))[:, None]
    longer = responses > n_sampled
    consequence = (
        ": the length of sampled answers then says little, and the held-out gap is what to read"
        if longer.mean() > MOST
        else ""
    )
    lines = [
        f"texts: prompt and response together are cut to {limit} tokens at this scale, the prompt to {prompt_limit}: "
        f"{_share(prompts > prompt_limit)} of prompts lose their beginning, {_share(responses > room)} of responses "
        f"their end; the median response has {np.median(responses):.0f} tokens",
        f"answers are sampled up to {n_sampled} tokens, and {_share(longer)} of responses are longer"
        f"{consequence}",
    ]
    encoded = encode_comparisons(judgments, tokenizer, "paper", limit, prompt_limit)
    found = length_report(judgments, encoded, tokenizer, limit)
    lines += [f"{problem.what} ({problem.where})" for problem in found]
    both = (responses > room).all(axis=1)[judgments.votes["comparison"].to_numpy()]
    for place, attribute in enumerate(judgments.attributes):
        cross = judgments.cross_group()[:, place]
        if attribute.scope == "pair" and cross.any():
            lines.append(
                f'attribute "{attribute.name}" is measured on whole texts; in {_share(both[cross])} of the judgments '
                "whose sides differ in it both responses are cut, so that policies see two sides equally long"
            )
    return lines


def _share(mask: np.ndarray) -> str:
    return f"{100 * float(np.mean(mask)):.0f} %"
