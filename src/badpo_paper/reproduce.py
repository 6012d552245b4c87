"""``badpo reproduce``: the runs of a suite, its tables, and whether the paper's patterns are in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from badpo import __version__
from badpo.data.problems import ConfigError, did_you_mean
from badpo.readouts.generation import GENERATORS, require_vllm
from badpo.results.charts import DotPanel, DotRow, Mark, dot_plot, legend
from badpo.results.words import page_templates, signed, write_whole
from badpo.runs.run import Progress
from badpo_paper.materials import Material, gate_lines, own_file
from badpo_paper.patterns import Pattern, found_patterns
from badpo_paper.schedule import (
    SuitePlan,
    execute,
    plan,
    planned_runs,
    read_stages,
    refused_runs,
    require_needs,
)
from badpo_paper.settings import SCALES, Scale
from badpo_paper.suites import SUITES, Column, Corpus, Suite
from badpo_paper.tables import (
    STYLES,
    Cell,
    Found,
    PanelTable,
    about_votes,
    footnotes,
    found_runs,
    has_reference,
    name_tables,
    published,
    row_label,
    tables,
    to_json,
    votes_table,
    with_notes,
    written,
    written_table,
)


@dataclass(frozen=True)
class SuiteResult:
    """A suite's tables and patterns."""

    suite: Suite
    tables: tuple[PanelTable, ...]
    patterns: tuple[Pattern, ...]
    left_out: tuple[str, ...]
    about: tuple[str, ...] = ()
    stand_in: str = ""

    def text(self, form: str) -> str:
        """Tables in one of `badpo_paper.tables.FORMATS`; patterns and what is said of the votes too, except in CSV."""
        parts = [written_table(table, form) for table in self.tables]
        if form == "csv":
            # one header for all panels
            return (
                "\n".join([parts[0], *("\n".join(part.split("\n")[1:]) for part in parts[1:])])
                if parts
                else ""
            )
        mark = {"text": "", "markdown": "- ", "latex": "% "}[form]
        lines = [mark + line for found in self.patterns for line in pattern_lines(found)]
        lines += [f"{mark}not at this scale: {title}" for title in self.left_out]
        lines += [mark + line for line in (*self.about, *([self.stand_in] if self.stand_in else []))]
        return "\n\n".join([*parts, "\n".join(lines)]).rstrip()

    def to_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "suite": self.suite.name,
            "tables": [to_json(table) for table in self.tables],
            "patterns": [
                {"sentence": p.sentence, "verdict": p.verdict, "holds": p.holds, "figures": list(p.figures)}
                for p in self.patterns
            ],
            "left_out": list(self.left_out),
            "about": list(self.about),
            "stand_in": self.stand_in,
        }


def pattern_lines(found: Pattern) -> list[str]:
    """A pattern in one line, with its figures."""
    return [f"{found.verdict}: {found.sentence}. {'; '.join(found.figures)}"]


def chosen_suites(name: str) -> list[Suite]:
    """The suites of a name, or all of them."""
    if name != "all" and name not in SUITES:
        raise ConfigError(
            f'there is no suite "{name}".{did_you_mean(name, list(SUITES))} Suites: {", ".join(SUITES)}'
        )
    return list(SUITES.values()) if name == "all" else [SUITES[name]]


def require_usable(data: Path, suites: Sequence[Suite], scale: Scale) -> None:
    """Refuse a user's own file that is not there, or that cannot stand in the place of a corpus."""
    takers = [
        suite.name
        for suite in SUITES.values()
        if not scale.own_pairs or any(corpus.kind == "style" for corpus in suite.corpora())
    ]
    if len(suites) > 1:
        raise ConfigError(
            f"--data stands in the place of the corpus of one suite; name that suite: {', '.join(takers)}"
        )
    if suites[0].name not in takers:
        raise ConfigError(
            f"--data: {suites[0].name} is on names, and at scale {scale.name} a file cannot stand in the place of its "
            f"pairs: {scale.own_pairs}. Take --scale paper, or a suite that takes votes: {', '.join(takers)}"
        )
    if not data.exists():
        raise ConfigError(f"--data: {data} is not there")


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    if name not in SCALES:
        raise ConfigError(
            f'there is no scale "{name}".{did_you_mean(name, list(SCALES))} Scales: {", ".join(SCALES)}'
        )
    return SCALES[name]


def drawing_with(scale: Scale, generator: str) -> Scale:
    """A scale whose measured answers are drawn by transformers or by vLLM."""
    if generator not in GENERATORS:
        raise ConfigError(
            f'answers cannot be drawn with "{generator}".{did_you_mean(generator, GENERATORS)} Known: '
            f"{', '.join(GENERATORS)}"
        )
    return replace(scale, decoding=replace(scale.decoding, generate_with=generator))


def suites_folder(out: Path, scale: Scale, data: Path | None) -> Path:
    """Where the runs of a scale, or of a user's own votes, stand."""
    return out / (scale.name if data is None else f"{scale.name}-{data.stem}")


def about_data(corpora: Sequence[Corpus], scale: Scale, data: Path | None) -> tuple[str, ...]:
    """What is to be said of a user's own file: of its votes, and of which corpora it is not."""
    if data is None:
        return ()
    of_file = [corpus for corpus in corpora if own_file(corpus, corpora, data)]
    lines = [line for corpus in of_file for line in about_votes(corpus, scale, data)]
    if len(of_file) < len(corpora):
        lines.append(
            f"{data.name} holds the votes on length and Markdown; the signed pairs are those of scale {scale.name}"
        )
    return tuple(dict.fromkeys(lines))


def plan_suites(
    suites: Sequence[Suite],
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    data: Path | None = None,
) -> SuitePlan:
    """What `run_suites` would do; trains nothing and loads no model.

    A corpus that is out of reach is named, and what is there of its runs is then told from the folders alone.
    """
    runs = planned_runs(suites, scale, seeds)
    corpora = list(dict.fromkeys(run.corpus for run in runs))
    stages, unread = read_stages(corpora, scale, out, data)
    told = (
        *about_data(corpora, scale, data),
        *unread,
        *gate_lines(scale.material(corpus, own_file(corpus, corpora, data)) for corpus in stages),
    )
    return plan(runs, out, refused_runs(runs, stages, scale, out), told)


def run_suites(
    suites: Sequence[Suite],
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    progress: Progress,
    jobs: int = 1,
    data: Path | None = None,
) -> list[SuiteResult]:
    """Run what is not there yet, and read the tables and patterns of every suite."""
    if scale.decoding.generate_with == "vllm":
        require_vllm()
    require_needs(suites, scale, seeds, out, data)
    execute(planned_runs(suites, scale, seeds), scale, out, data, jobs, progress)
    return [read_suite(suite, scale, seeds, out, data) for suite in suites]


def read_suite(
    suite: Suite, scale: Scale, seeds: Sequence[int], out: Path, data: Path | None = None
) -> SuiteResult:
    """The tables and patterns of a suite from the runs that are there, and from the votes that they were trained on."""

    def material(corpus: Corpus) -> Material:
        return scale.material(corpus, own_file(corpus, suite.corpora(), data))

    # the first panel of a corpus stands for it
    titles = {panel.corpus: panel.title for panel in reversed(suite.panels)}
    here = [corpus for corpus in suite.corpora() if scale.has(corpus)]
    plan = scale.seed_plan(seeds)
    before = [
        votes_table(panel, material(panel.corpus).judgments)
        for panel in suite.votes
        if has_reference(out, panel)
    ]
    signatures = [
        table
        for corpus in suite.signatures
        for table in name_tables(corpus, Found(out / corpus.folder, seeds))
    ]
    noted = [
        with_notes(table, out / table.panel.corpus.folder, material) for table in tables(suite, out, plan)
    ]
    return SuiteResult(
        suite,
        (*before, *noted, *signatures),
        tuple(found_patterns(suite.patterns, [found_runs(suite, corpus, out, plan) for corpus in here])),
        tuple(titles[corpus] for corpus in suite.corpora() if corpus not in here),
        about_data(here, scale, data),
        scale.stand_in,
    )


OURS, THEIRS = 2, 1  # styles of the marks
VERDICT_CLASSES = {True: "holds", False: "fails", None: "unknown"}


def write_suite_page(result: SuiteResult, options: str, page: Path) -> Path:
    """Write one HTML page about a suite and return its path; it needs no network and no script."""
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


def page_table(table: PanelTable) -> dict[str, Any]:
    """A panel's table and charts as texts and drawings; ``published`` are columns that the paper has too."""
    charts = [(column.label, _chart(table, i, column)) for i, column in enumerate(table.columns)]
    return {
        "title": table.panel.title,
        "source": source_of(table.panel.label),
        "columns": [column.label for column in table.columns],
        "published": [
            column.label
            for i, column in enumerate(table.columns)
            if any(row.cells[i].paper for row in table.rows)
        ],
        "rows": [
            (row_label(row), [_page_cell(*one) for one in zip(row.cells, table.columns, strict=True)])
            for row in table.rows
        ],
        "missing": table.missing,
        "notes": footnotes(table),
        "charts": [(label, drawn) for label, drawn in charts if drawn],
    }


def _page_cell(cell: Cell, column: Column) -> dict[str, str]:
    return {
        "ours": written(cell, column.style) if cell.values or cell.paper else "",
        "paper": published(cell, column.style),
        "difference": "" if cell.difference is None else signed(cell.difference, 1),
    }


def source_of(label: str) -> str:
    """Where the paper has what a panel shows, as a sentence; empty where it has nothing like it."""
    kind = label.partition(":")[0]
    if kind == "tab":
        return f"Table {label} of the paper."
    return f"Text of the paper, {label}." if kind in ("app", "sec") else ""


def _chart(table: PanelTable, place: int, column: Column) -> Markup | None:
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
    return dot_plot(DotPanel("", rows, label, column.label, number=STYLES[column.style]))


def _ends(mean: float, half: float) -> tuple[float | None, float | None]:
    return (mean - half, mean + half) if math.isfinite(half) else (None, None)
