"""Footnotes of a suite's rows: what one is besides its label, how a scale changes a penalty, where theta started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from badpo.experiments.arm_setup import START
from badpo.experiments.arms import ARMS
from badpo.experiments.evaluate import kept_json
from badpo.experiments.suite_materials import Material
from badpo.experiments.suite_parts import Condition, Corpus, Row
from badpo.experiments.suite_runs import kept_facts
from badpo.experiments.suite_stages import declared
from badpo.experiments.suite_tables import Table, TableRow
from badpo.experiments.theta_starts import start_levels
from badpo.results.labels import signed


def with_notes(table: Table, folder: Path, material: Callable[[Corpus], Material]) -> Table:
    """A table with the footnotes of its rows.

    Parameters
    ----------
    table : Table
    folder : Path
        Of the runs of its corpus.
    material : function of Corpus
        The votes, for runs that did not keep where they started: it is a function of these alone.
    """
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
