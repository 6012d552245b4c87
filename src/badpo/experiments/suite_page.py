"""A suite as one HTML page: patterns, tables with the paper's numbers, a figure for every column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from badpo import __version__
from badpo.experiments.reproduce import SuiteResult
from badpo.experiments.suite_formats import STYLES, footnotes, published, row_label, written
from badpo.experiments.suite_parts import Column
from badpo.experiments.suite_tables import Table
from badpo.results.charts import DotRow, Mark, dot_plot, legend
from badpo.results.labels import signed
from badpo.results.pages import page_templates, write_whole

OURS, THEIRS = 2, 1  # styles of the marks
VERDICT_CLASSES = {True: "holds", False: "fails", None: "unknown"}


@dataclass(frozen=True)
class PageCell:
    """Ours, the paper's, and the difference over the sum of the half widths."""

    ours: str
    paper: str
    difference: str


@dataclass(frozen=True)
class PageTable:
    """A panel for the page: its heading, where the paper has it, columns, those it has numbers for, cells, charts."""

    title: str
    source: str
    columns: tuple[str, ...]
    published: tuple[str, ...]
    rows: tuple[tuple[str, tuple[PageCell, ...]], ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    charts: tuple[tuple[str, Markup], ...]


def write_suite_page(result: SuiteResult, options: str, page: Path) -> Path:
    """Write one HTML page about a suite and return its path; it needs no network and no script.

    Parameters
    ----------
    result : SuiteResult
    options : str
        What the runs were asked for with, such as ``--scale tiny``; told above the heading.
    page : Path
        Replaced only once the new page is whole.
    """
    return write_whole(suite_html(result, options), page)


def suite_html(result: SuiteResult, options: str) -> str:
    """The page as text."""
    return (
        page_templates()
        .get_template("suite.html.jinja")
        .render(
            name=result.suite.name,
            title=result.suite.title,
            options=options,
            patterns=[(VERDICT_CLASSES[p.holds], p.verdict, p.sentence, p.figures) for p in result.patterns],
            tables=[page_table(table) for table in result.tables],
            left_out=result.left_out,
            about=result.about,
            stand_in=result.stand_in,
            legend=legend([("this run", OURS), ("the paper", THEIRS)]),
            version=__version__,
        )
    )


def page_table(table: Table) -> PageTable:
    """A panel's table and charts as texts and drawings."""
    rows = []
    for row in table.rows:
        cells = []
        for cell, column in zip(row.cells, table.columns, strict=True):
            found = cell.difference
            difference = "" if found is None else signed(found, 1)
            ours = written(cell, column.style) if cell.values or cell.paper else ""
            cells.append(PageCell(ours, published(cell, column.style), difference))
        rows.append((row_label(row), tuple(cells)))
    charts = [
        (column.label, drawn) for i, column in enumerate(table.columns) if (drawn := _chart(table, i, column))
    ]
    return PageTable(
        table.panel.title,
        source_of(table.panel.label),
        tuple(column.label for column in table.columns),
        tuple(
            column.label
            for i, column in enumerate(table.columns)
            if any(row.cells[i].paper for row in table.rows)
        ),
        tuple(rows),
        table.missing,
        tuple(footnotes(table)),
        tuple(charts),
    )


def source_of(label: str) -> str:
    """Where the paper has what a panel shows, as a sentence; empty where it has nothing like it.

    Examples
    --------
    >>> source_of("tab:votes"), source_of("app:abl_variants"), source_of("beyond")
    ('Table tab:votes of the paper.', 'Text of the paper, app:abl_variants.', '')
    """
    kind = label.partition(":")[0]
    if kind == "tab":
        return f"Table {label} of the paper."
    return f"Text of the paper, {label}." if kind in ("app", "sec") else ""


def _chart(table: Table, place: int, column: Column) -> Markup | None:
    """Ours and the paper's, row under row; None where there is nothing of ours."""
    rows = []
    for row in table.rows:
        cell = row.cells[place]
        marks = []
        if cell.values:
            low, high = _ends(cell.mean, cell.half)
            marks.append(Mark(cell.mean, "this run", OURS, low, high, cell.values))
        if cell.paper is not None:
            mean, half = cell.paper
            low, high = _ends(mean, math.nan if half is None else half)
            marks.append(Mark(mean, "the paper", THEIRS, low, high))
        if marks:
            rows.append(DotRow(row.label, tuple(marks)))
    if not any(row.cells[place].values for row in table.rows):
        return None
    label = f"{column.label} by row: this run and the paper"
    return dot_plot(rows, label, column.label, number=lambda value: STYLES[column.style](value))


def _ends(mean: float, half: float) -> tuple[float | None, float | None]:
    return (mean - half, mean + half) if math.isfinite(half) else (None, None)
