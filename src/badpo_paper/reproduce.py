"""``badpo reproduce`` and ``badpo demo``: the runs of a suite, its tables, and the patterns of the paper in them."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from badpo import __version__
from badpo.data.files import Json, write_atomically, write_json
from badpo.data.problems import ConfigError, counted
from badpo.results.charts import DotPanel, DotRow, Mark, dot_plot, legend
from badpo.results.run_page import write_report
from badpo.results.words import REFERENCE, arm_label, page_templates
from badpo.runs.run import Progress
from badpo.theory.summaries import share_removed
from badpo_paper.datasets import lean_lines
from badpo_paper.patterns import VERDICTS, Pattern, found_patterns
from badpo_paper.schedule import Reproduction, execute, require_needs
from badpo_paper.settings import SCALES
from badpo_paper.suites import (
    KL,
    RATES,
    SUITES,
    Columns,
    Condition,
    Corpus,
    Panel,
    Row,
    Suite,
    known,
    places_of,
)
from badpo_paper.tables import (
    Found,
    PanelTable,
    number,
    panel_table,
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
    suites = list(SUITES.values()) if suite == "all" else [SUITES[suite]]
    chosen = SCALES[known("scale", scale, SCALES)]
    if data is not None:
        # what cannot stand in the place of a corpus
        if len(suites) > 1:
            raise ConfigError("--data stands in the place of the corpus of one suite; name that suite")
        takers = [name for name, one in SUITES.items() if any(c.kind == "style" for c in one.corpora())]
        if scale != "paper" and (scale, suite in takers) != ("tiny", True):
            raise ConfigError(
                f"--data: {suite} at scale {scale} has no votes that a file could replace; at scale tiny a table of "
                f"votes goes with {', '.join(takers)}"
            )
        if not data.exists():
            raise ConfigError(f"--data: {data} is not there")
    folder = out / (scale if data is None else f"{scale}-{data.stem}")
    return Reproduction(suites, chosen, seeds, folder, data)


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

    def to_json(self) -> Json:
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
        " ".join([asked.scale.stand_in, *about_votes(asked)]),
    )


def about_votes(asked: Reproduction) -> list[str]:
    """How many votes a file has, which way they lean, and on how many prompts policies are measured; else nothing."""
    lines = []
    for dataset in (asked.dataset(corpus) for corpus in asked.corpora if asked.file_of(corpus)):
        n_held_out, n_prompts = dataset.split()[1].n_votes, len(set(dataset.prompts))
        total, *leans = map(str.strip, lean_lines(dataset.judgments))
        lines.append(
            f"{total} {'; '.join(leans)}. Held out: {counted(n_held_out, 'vote')}; "
            f"{counted(n_prompts, 'evaluation prompt')}, each answered "
            f"{counted(len(dataset.prompts) // n_prompts, 'time')}."
        )
    return lines


def found_runs(suite: Suite, corpus: Corpus, asked: Reproduction) -> Found:
    """A suite's runs on a corpus, with the seeds that its conditions are planned at: of several rows the most."""
    planned: dict[str, tuple[int, ...]] = {}
    for row in (row for panel in suite.panels if panel.corpus == corpus for row in panel.rows):
        seeds, name = asked.scale.seeds_of(row, asked.seeds), row.condition.name
        planned[name] = max(planned.get(name, ()), seeds, key=len)
    return Found(asked.out / corpus.folder, asked.seeds, planned)


def results_page(results: Sequence[SuiteResult], command: str) -> str:
    """Markdown with every pattern of the suites and its verdict, then each suite's readings and tables.

    Nothing depends on the verdicts: a pattern that failed has the same lines as one that was found.
    """
    page = [
        f"# The paper's tables\n\nPrinted by `{command}` of badpo {__version__}.\n\n## Every pattern and its verdict\n",
        "| suite | pattern | verdict |",
        "|--|--|--|",
    ]
    page += [
        f"| `{one.suite.name}` | {p.sentence} | {p.verdict} |" for one in results for p in one.patterns
    ]
    for one in results:
        page.append(f"\n## {one.suite.name}: {one.suite.title}\n\n{one.text('markdown')}")
    return "\n".join(page) + "\n"


# -- the page ---------------------------------------------------------------------------------------------------------

OURS, THEIRS = 2, 1  # styles of the marks


def write_suite_page(result: SuiteResult, options: str, page: Path) -> Path:
    """Write one HTML page about a suite and return its path; it needs no network and no script."""
    write_atomically(page, suite_html(result, options).encode())
    return page


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


# -- the demo ---------------------------------------------------------------------------------------------------------

ARMS_SHOWN = ("dpo", "pooled", "shared_mean")
# The demo's tables: title and columns.
TABLES = {
    "Rates, share of DPO's shift removed, and KL in nats per token": {**RATES, **KL},
    "Distance to the reference in log-odds, held-out gap, theta against the planted": {
        "log-odds, p(woman)": "distance:rates.woman.rate",
        "log-odds, p(black)": "distance:rates.black.rate",
        "gap": "heldout.any.gap",
        "correlation, woman": "theta.woman.correlation",
        "correlation, black": "theta.black.correlation",
    },
    "Held-out votes predicted, less those that planted theta predicts, by class": {
        f"{name}, {who}": f"votes_minus_ceiling.{name}.{who}.difference"
        for name in ("woman", "black")
        for who in ("all", "A", "B", "C")
    },
}


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    data_seed: int = 0,
) -> list[dict]:
    """The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO.

    Runs that stand in ``out`` already are not run again. ``model`` is a folder or Hub id; without it a small one is
    built from its configuration. ``data_seed`` is that of the votes that are drawn. There is a summary for each seed:
    of one seed in ``out/summary.json``, else in ``out/summary-s<seed>.json`` each.
    """
    started, scale = time.perf_counter(), SCALES["demo"]
    if model is not None:
        keys = {**scale.keys["demo"], "model_name_or_path": model}
        scale = replace(scale, name=f"demo on {model}", keys={"demo": keys}, shapes={})
    suite = Suite("demo", "The demo", (demo_panel("The demo", {}, data_seed),))
    execute(Reproduction([suite], scale, seeds, out), progress)
    found, summaries = Found(out, seeds), []
    for seed in seeds:
        readouts = {name: found.readouts(f"{name}-s{seed}") for name in ARMS_SHOWN}
        figures = summarize({REFERENCE: found.readouts(REFERENCE), **readouts})
        summary = {"seed": seed, "seconds": round(time.perf_counter() - started, 1), **figures}
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    write_report(out, out / "report.html")
    return summaries


def demo_panel(title: str, columns: Columns, data_seed: int = 0) -> Panel:
    """The demo's arms as a part of a table."""
    rows = tuple(Row(arm_label(name), Condition(name)) for name in ARMS_SHOWN)
    return Panel("demo", title, Corpus("signed", "demo", data_seed), rows, columns)


def summarize(readouts: Json) -> Json:
    """A seed's rates, the share of DPO's shift that each other arm removed, and how theta agrees with the planted one.

    Theta is that of the first arm that learns one for each annotator. What is not defined is None.
    """
    rates = {
        arm: {name: row["rate"] for name, row in of["rates"].items()} for arm, of in readouts.items()
    }
    removed = {
        arm: {name: _share(rates["dpo"][name], own, rates[REFERENCE][name]) for name, own in of.items()}
        for arm, of in rates.items()
        if arm not in (REFERENCE, "dpo")
    }
    correlations = (
        {name: readouts[arm]["theta"][name]["correlation"] for name in rates[arm]}
        for arm in rates
        if arm != REFERENCE
    )
    learned = (found for found in correlations if None not in found.values())
    unknown = dict.fromkeys(rates[REFERENCE])
    return {"rates": rates, "removed": removed, "theta_correlation": next(learned, unknown)}


def _share(dpo: float, own: float, reference: float) -> float | None:
    """The share of DPO's shift that is removed; None of no shift."""
    share = float(share_removed([dpo], [own], reference)[0])
    return share if math.isfinite(share) else None


def demo_tables(out: Path, seeds: Sequence[int], form: str) -> str:
    """The demo's figures in one of the formats of tables: over several seeds means with half of the 95 % interval."""
    found = Found(out, seeds)
    panels = (demo_panel(title, columns) for title, columns in TABLES.items())
    return "\n\n".join(written_table(panel_table(panel, found), form) for panel in panels)
