"""Tables of suites as text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from typing import Any

from badpo.data.csv_cells import inert
from badpo.experiments.suite_tables import Cell, Table, TableRow
from badpo.results.labels import DASH, decimal, percent
from badpo.results.tables import markdown_text

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


def table_lines(table: Table) -> list[list[str]]:
    """Header and rows as text."""
    header = ["", *(column.label for column in table.columns)]
    return [
        header,
        *(
            [
                row_label(row),
                *(written(c, col.style) for c, col in zip(row.cells, table.columns, strict=True)),
            ]
            for row in table.rows
        ),
    ]


def as_text(table: Table) -> str:
    """The table for a terminal, columns aligned."""
    lines = table_lines(table)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    body = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    shown = [line.rstrip() for line in body] if table.columns else []
    return "\n".join([table.panel.title, *shown, *_notes(table)])


def as_markdown(table: Table) -> str:
    """The table as Markdown, the paper's value behind each of ours where it has one."""
    lines = [["", *(column.label for column in table.columns)]]
    for row in table.rows:
        cells = []
        for cell, column in zip(row.cells, table.columns, strict=True):
            theirs = published(cell, column.style)
            cells.append(written(cell, column.style) + (f" [{theirs}]" if theirs else ""))
        lines.append([markdown_text(row_label(row)), *cells])
    lines.insert(1, ["---", *("---:" for _ in table.columns)])
    body = ["", *("| " + " | ".join(line) + " |" for line in lines)] if table.columns else []
    has_paper = any(cell.paper for row in table.rows for cell in row.cells)
    notes = [f"*{note}*" for note in [*_notes(table), *(["in brackets: the paper's"] if has_paper else [])]]
    return "\n".join([f"**{markdown_text(table.panel.title)}**", *body, "", *notes])


def as_latex(table: Table) -> str:
    """The table as a LaTeX ``tabular``."""
    lines = table_lines(table)
    body = [" & ".join(_latex(text) for text in line) + r" \\" for line in lines]
    top = [r"\begin{tabular}{@{}l" + "c" * len(table.columns) + "@{}}", r"\toprule", body[0], r"\midrule"]
    notes = [f"% {note}" for note in _notes(table)]
    return "\n".join([f"% {table.panel.title}", *top, *body[1:], r"\bottomrule", r"\end{tabular}", *notes])


def as_csv(table: Table) -> str:
    """The table as CSV, one line for each cell: ours, the paper's, the difference in half widths, each seed."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = ["table", "panel", "row", "column", "mean", "half_width", "spread", "n_seeds", "paper_mean"]
    writer.writerow([*header, "paper_half_width", "difference_in_half_widths", "values", "notes"])
    for row in table.rows:
        for cell, column in zip(row.cells, table.columns, strict=True):
            if not cell.values:
                continue
            theirs = cell.paper or (None, None)
            words = [table.panel.label, table.panel.title, row.label, column.label]
            numbers = [cell.mean, cell.half, table.panel.spread, len(cell.values), *theirs, cell.difference]
            values = " ".join(f"{value:.6g}" for value in cell.values)
            notes = inert("; ".join(row.notes))
            writer.writerow([*map(inert, words), *map(_csv_number, numbers), values, notes])
    return file.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": as_text,
    "markdown": as_markdown,
    "latex": as_latex,
    "csv": as_csv,
}


def to_json(table: Table) -> dict[str, Any]:
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
                    for cell, column in zip(row.cells, table.columns, strict=True)
                },
            }
            for row in table.rows
        ],
    }


def _notes(table: Table) -> list[str]:
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


def footnotes(table: Table) -> list[str]:
    """What is to be said of a table, and of single rows: each footnote once, behind the labels of its rows."""
    rows_of: dict[str, list[str]] = {}
    for row in table.rows:
        for note in row.notes:
            rows_of.setdefault(note, []).append(row.label)
    return [*table.notes, *(f"{'; '.join(labels)}: {note}" for note, labels in rows_of.items())]


def _latex(text: str) -> str:
    r"""A text for LaTeX.

    >>> _latex("89 % ± 2 %")
    '89 \\% $\\pm$ 2 \\%'
    """
    for plain, escaped in (
        ("\\", r"\textbackslash{}"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("&", r"\&"),
        ("#", r"\#"),
    ):
        text = text.replace(plain, escaped)
    return text.replace("\u00b1", r"$\pm$").replace("\u2212", "$-$").replace(DASH, "---")


def _csv_number(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
