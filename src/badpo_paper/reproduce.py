"""``badpo reproduce``: the runs of a suite, its tables, and whether the paper's patterns are in them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from badpo import __version__
from badpo.data.problems import ConfigError, did_you_mean
from badpo.results.charts import DotPanel, DotRow, Mark, dot_plot, legend
from badpo.results.words import page_templates, write_whole
from badpo.runs.run import Progress
from badpo_paper.patterns import VERDICTS, Pattern, found_patterns
from badpo_paper.schedule import Reproduction, execute, require_needs
from badpo_paper.settings import SCALES
from badpo_paper.suites import SUITES, Corpus, Suite, places_of
from badpo_paper.tables import (
    Found,
    PanelTable,
    number,
    published,
    table_of,
    to_frame,
    to_json,
    written,
    written_table,
)

# -- what is asked for ------------------------------------------------------------------------------------------------


def asked_for(
    suite: str, scale: str, seeds: Sequence[int], out: Path, data: Path | None
) -> Reproduction:
    """Suites by their name, or all of them, at a scale by its name; those on a local file in a folder of their own."""
    suites = list(SUITES.values()) if suite == "all" else [SUITES[known("suite", suite, SUITES)]]
    chosen = SCALES[known("scale", scale, SCALES)]
    if data is not None:
        # what cannot stand in the place of a public corpus
        if scale != "paper":
            raise ConfigError(
                f"--data holds rows of a public corpus, which scale {scale} does not read; take paper"
            )
        if len(suites) > 1:
            raise ConfigError("--data stands in the place of the corpus of one suite; name that suite")
        if not data.exists():
            raise ConfigError(f"--data: {data} is not there")
    folder = out / (scale if data is None else f"{scale}-{data.stem}")
    return Reproduction(suites, chosen, seeds, folder, data)


def known(kind: str, name: str, names: Collection[str]) -> str:
    """A name that is known; another one is refused with the likeliest and with all that are."""
    if name not in names:
        raise ConfigError(
            f'there is no {kind} "{name}".{did_you_mean(name, list(names))} Known: {", ".join(names)}'
        )
    return name


# -- what is found ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteResult:
    """A suite's tables and patterns, the panels that the scale has not, and what stands in for the models."""

    suite: Suite
    tables: tuple[PanelTable, ...]
    patterns: tuple[Pattern, ...]
    left_out: tuple[str, ...]
    stand_in: str

    def text(self, form: str) -> str:
        """Tables and patterns in one of `badpo_paper.tables.FORMATS`; as CSV the cells of the tables alone."""
        if form == "csv":
            frames = [to_frame(table) for table in self.tables if table.columns]
            return pd.concat(frames).to_csv(index=False, lineterminator="\n") if frames else ""
        parts = [written_table(table, form) for table in self.tables]
        mark = {"text": "", "markdown": "- ", "latex": "% "}[form]
        found = [f"{p.verdict}: {p.sentence}. {'; '.join(p.figures)}" for p in self.patterns]
        found += [*(f"not at this scale: {title}" for title in self.left_out), self.stand_in]
        first = "\n".join(mark + line for line in (self.verdict, *found) if line)
        return "\n\n".join([first, *parts]).rstrip()

    @property
    def verdict(self) -> str:
        """How many of the paper's patterns were found."""
        counts = Counter(p.verdict for p in self.patterns)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS[::-1] if counts[verdict])
        return f"Of the paper's patterns: {told}." if told else "No pattern of the paper is read here."

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "suite": self.suite.name,
            "tables": [to_json(table) for table in self.tables],
            "patterns": [
                {name: getattr(p, name) for name in ("sentence", "verdict", "holds", "figures")}
                for p in self.patterns
            ],
            "left_out": self.left_out,
            "stand_in": self.stand_in,
        }


def run_suites(asked: Reproduction, progress: Progress, jobs: int = 1) -> list[SuiteResult]:
    """Run what is not there yet, and read the tables and patterns of every suite."""
    require_needs(asked)
    execute(asked, progress, jobs)
    return [read_suite(suite, asked) for suite in asked.suites]


def read_suite(suite: Suite, asked: Reproduction) -> SuiteResult:
    """The tables and patterns of a suite from the runs that are there, and from the votes that they were trained on."""
    asked = replace(asked, suites=[suite])
    found = {corpus: found_runs(suite, corpus, asked) for corpus in suite.corpora()}
    tables = [
        table_of(panel, found[panel.corpus], asked.dataset)
        for panel in suite.panels
        if found[panel.corpus].readouts("reference")
    ]
    # the first panel of a corpus stands for it
    titles = {panel.corpus: panel.title for panel in reversed(suite.panels)}
    patterns = found_patterns(suite.patterns, [f for c, f in found.items() if asked.scale.has(c)])
    return SuiteResult(
        suite,
        tuple(replace(table, ran=asked.scale.ran) for table in tables if table.rows or table.missing),
        tuple(patterns),
        tuple(titles[corpus] for corpus in found if not asked.scale.has(corpus)),
        asked.scale.stand_in,
    )


def found_runs(suite: Suite, corpus: Corpus, asked: Reproduction) -> Found:
    """A suite's runs on a corpus, with the seeds that its conditions are planned at: of several rows the most."""
    planned: dict[str, tuple[int, ...]] = {}
    for row in (row for panel in suite.panels if panel.corpus == corpus for row in panel.rows):
        seeds, name = asked.scale.seeds_of(row, asked.seeds), row.condition.name
        planned[name] = max(planned.get(name, ()), seeds, key=len)
    return Found(asked.out / corpus.folder, asked.seeds, planned)


# -- the page ---------------------------------------------------------------------------------------------------------

OURS, THEIRS = 2, 1  # styles of the marks


def write_suite_page(result: SuiteResult, options: str, page: Path) -> Path:
    """Write one HTML page about a suite and return its path; it needs no network and no script."""
    return write_whole(suite_html(result, options), page)


def suite_html(result: SuiteResult, options: str) -> str:
    """The page as text."""
    template = page_templates().get_template("suite.html.jinja")
    return template.render(
        result=result,
        name=result.suite.name,
        options=options,
        written=written,
        published=published,
        chart=chart,
        legend=legend([("this run", OURS), ("the paper", THEIRS)]),
        version=__version__,
    )


def chart(table: PanelTable, column: str) -> Markup:
    """A column, ours and the paper's, row under row."""
    rows = []
    for row in table.rows:
        cell, marks = row.cells[column], []
        if cell.values:
            marks.append(_mark("this run", OURS, cell.mean, cell.half, cell.values))
        if cell.paper is not None:
            marks.append(_mark("the paper", THEIRS, *cell.paper))
        if marks:
            rows.append(DotRow(row.label, tuple(marks)))
    label = f"{column} by row: this run and the paper"
    places = places_of(table.panel.columns[column])
    return dot_plot(DotPanel("", rows, label, column, number=partial(number, places=places)))


def _mark(
    name: str, style: int, mean: float, half: float | None, values: tuple[float, ...] = ()
) -> Mark:
    half = math.nan if half is None else half
    return Mark(mean, name, style, mean - half, mean + half, values)
