"""Run the suites of ``badpo reproduce`` and ``badpo demo``, and compute their tables and patterns."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np
import pandas as pd

from badpo import __version__
from badpo.data.files import write_json
from badpo.data.problems import ConfigError, counted
from badpo.readouts.sampled import Figures, figures
from badpo.results.formatting import DPO, PLACEBO, REFERENCE, arm_label
from badpo.results.run_page import write_report
from badpo.runs.run import Progress
from badpo.theory.summaries import share_removed
from badpo_paper.datasets import describe_bias
from badpo_paper.patterns import VERDICTS, Pattern, evaluate_patterns, select_patterns
from badpo_paper.run_readouts import ATTRIBUTES
from badpo_paper.schedule import Reproduction, execute, require_inputs
from badpo_paper.settings import SCALES, SUITE_SCALES
from badpo_paper.suites import (
    KL,
    RATES,
    SUITES,
    TILTS,
    Columns,
    Condition,
    Corpus,
    Panel,
    Row,
    Suite,
    require_known,
    set_data_seed,
)
from badpo_paper.tables import (
    PanelRuns,
    PanelTable,
    TableJson,
    format_table,
    make_run_table,
    make_table,
    read_number,
    to_json,
)

# -- options ----------------------------------------------------------------------------------------------------------


def make_reproduction(
    suite: str,
    scale: str,
    seeds: Sequence[int],
    out: Path,
    data: Path | None,
    data_seed: int = 0,
) -> Reproduction:
    """Plan the reproduction of one suite; the name ``all`` selects all suites.

    Runs that use a local file or another data seed are written to a separate folder.
    """
    suites = list(SUITES.values()) if suite == "all" else [SUITES[suite]]
    suites = [set_data_seed(member, data_seed) for member in suites]
    require_known("scale", scale, SUITE_SCALES)
    if data is not None:
        if len(suites) > 1:
            raise ConfigError("--data replaces the corpus of one suite; name that suite")
        replaceable = [
            name for name, member in SUITES.items() if any(c.kind == "style" for c in member.corpora())
        ]
        if scale == "tiny" and suite not in replaceable:
            raise ConfigError(
                f"--data: at scale tiny, a file cannot replace the votes of {suite}; it can replace the votes of "
                f"{', '.join(replaceable)}"
            )
        if not data.exists():
            raise ConfigError(f"--data: the file {data} does not exist")
    folder = out / "-".join(
        [scale, *([data.stem] if data else []), *([f"data{data_seed}"] if data_seed else [])]
    )
    return Reproduction(suites, SCALES[scale], seeds, folder, data)


# -- results ----------------------------------------------------------------------------------------------------------


class PatternJson(TypedDict):
    """A pattern and its verdict as JSON."""

    sentence: str
    verdict: str
    holds: bool | None
    figures: tuple[str, ...]


class SuiteJson(TypedDict):
    """Tables and patterns of a suite as JSON."""

    suite: str
    tables: list[TableJson]
    patterns: list[PatternJson]
    left_out: tuple[str, ...]
    stand_in: str


@dataclass(frozen=True)
class SuiteResult:
    """A suite's tables and patterns, the titles of the panels that this scale omits, and notes on model and votes."""

    suite: Suite
    tables: tuple[PanelTable, ...]
    patterns: tuple[Pattern, ...]
    left_out: tuple[str, ...]
    stand_in: str

    def text(self) -> str:
        """Tables and patterns in Markdown."""
        lines = [self.verdict]
        lines += [f"{p.verdict}: {p.sentence}. {'; '.join(p.figures)}" for p in self.patterns]
        lines += [*(f"not at this scale: {title}" for title in self.left_out), self.stand_in]
        list_of_lines = "\n".join(f"- {line}" for line in lines if line)
        return "\n\n".join([list_of_lines, *map(format_table, self.tables)]).rstrip()

    @property
    def verdict(self) -> str:
        """Sentence with the number of patterns by verdict."""
        counts = Counter(p.verdict for p in self.patterns)
        if not counts:
            return "This suite evaluates no pattern of the paper."
        numbers = (f"{counts[verdict]} {verdict}" for verdict in VERDICTS[::-1] if counts[verdict])
        return f"Of the paper's patterns: {', '.join(numbers)}."

    def to_json(self) -> SuiteJson:
        """Convert the result for JSON."""
        return {
            "suite": self.suite.name,
            "tables": [to_json(table) for table in self.tables],
            "patterns": [
                {"sentence": p.sentence, "verdict": p.verdict, "holds": p.holds, "figures": p.figures}
                for p in self.patterns
            ],
            "left_out": self.left_out,
            "stand_in": self.stand_in,
        }


def run_suites(reproduction: Reproduction, progress: Progress, jobs: int = 1) -> list[SuiteResult]:
    """Execute the runs that are missing, and compute the tables and patterns of every suite."""
    require_inputs(reproduction)
    execute(reproduction, progress, jobs)
    return [read_suite(suite, reproduction) for suite in reproduction.suites]


def read_suite(suite: Suite, reproduction: Reproduction) -> SuiteResult:
    """Compute the tables of a suite from its finished runs, and check the paper's statements about them."""
    reproduction, scale = replace(reproduction, suites=[suite]), reproduction.scale
    runs = {corpus: find_runs(suite, corpus, reproduction) for corpus in suite.corpora()}
    tables = [
        make_table(panel, runs[panel.corpus], reproduction.make_dataset)
        for panel in suite.panels
        if runs[panel.corpus].readouts("reference")
    ]
    # reversed: for each corpus, the dict keeps the title of the first panel
    titles = {panel.corpus: panel.title for panel in reversed(suite.panels)}
    available = [panel_runs for corpus, panel_runs in runs.items() if scale.has_corpus(corpus)]
    return SuiteResult(
        suite,
        tuple(
            replace(table, model=scale.model_title) for table in tables if table.rows or table.missing
        ),
        tuple(evaluate_patterns(select_patterns(suite.name), available)),
        tuple(titles[corpus] for corpus in runs if not scale.has_corpus(corpus)),
        " ".join([scale.stand_in, *describe_votes(reproduction)]),
    )


def describe_votes(reproduction: Reproduction) -> list[str]:
    """Describe the votes in a file (number and bias) and the evaluation prompts; return [] if there is no file."""
    lines = []
    for corpus in reproduction.corpora:
        if reproduction.find_file(corpus) is None:
            continue
        dataset = reproduction.make_dataset(corpus)
        n_held_out, n_prompts = dataset.split()[1].n_votes, len(set(dataset.prompts))
        total, *biases = map(str.strip, describe_bias(dataset.judgments))
        lines.append(
            f"{total} {'; '.join(biases)}. Held out: {counted(n_held_out, 'vote')}; "
            f"{counted(n_prompts, 'evaluation prompt')}, each answered "
            f"{counted(len(dataset.prompts) // n_prompts, 'time')}."
        )
    return lines


def find_runs(suite: Suite, corpus: Corpus, reproduction: Reproduction) -> PanelRuns:
    """Find the runs of a suite on a corpus. If several rows have the same condition, use the longest list of seeds."""
    planned: dict[str, tuple[int, ...]] = {}
    for row in (row for panel in suite.panels if panel.corpus == corpus for row in panel.rows):
        seeds, name = reproduction.scale.select_seeds(row, reproduction.seeds), row.condition.name
        planned[name] = max(planned.get(name, ()), seeds, key=len)
    return PanelRuns(reproduction.out / corpus.folder, reproduction.seeds, planned)


def format_page(results: Sequence[SuiteResult], command: str) -> str:
    """Format a Markdown page with the verdicts on all patterns, followed by the readings and tables of each suite.

    The page reports failed patterns in the same way as reproduced patterns.
    """
    page = [
        f"# The paper's tables\n\nPrinted by `{command}` of badpo {__version__}.\n\n## Every pattern and its verdict\n",
        "| suite | place in the paper | pattern | verdict |",
        "|--|--|--|--|",
    ]
    page += [
        f"| `{result.suite.name}` | `{p.place}` | {p.sentence} | {p.verdict} |"
        for result in results
        for p in result.patterns
    ]
    for result in results:
        page.append(f"\n## {result.suite.name}: {result.suite.title}\n\n{result.text()}")
    return "\n".join(page) + "\n"


# -- the demo ---------------------------------------------------------------------------------------------------------

BA_ARMS = ("pooled", "shared_mean")
DEMO_ARMS = (DPO, PLACEBO, *BA_ARMS)
# Title -> columns: The demo prints MAIN_TABLES, and the page with its results contains ALL_TABLES.
MAIN_TABLES = {
    "Rates, share of DPO's shift removed, and KL in nats per token": {**RATES, **KL},
    "Tilt: mean margin toward the attribute on held-out comparisons, in log-odds": TILTS,
}
ALL_TABLES = {
    **MAIN_TABLES,
    "Distance to the reference in log-odds, held-out gap, estimated and planted theta": {
        "log-odds, p(woman)": "distance:rates.woman.rate",
        "log-odds, p(black)": "distance:rates.black.rate",
        "gap": "heldout.any.gap",
        "correlation, woman": "theta.woman.correlation",
        "correlation, black": "theta.black.correlation",
    },
    "Share of held-out votes predicted, minus the share that planted theta predicts, by class": {
        f"{name}, {group}": f"votes_minus_ceiling.{name}.{group}.difference"
        for name in ("woman", "black")
        for group in ("all", "A", "B", "C")
    },
}


class DemoFigures(TypedDict):
    """Figures of one demo seed; values that are not defined are None."""

    rates: dict[str, Figures]
    removed: dict[str, Figures]
    theta_correlation: Figures


class DemoSummary(DemoFigures):
    """The summary of one demo seed, with the seed itself and the duration of the run."""

    seed: int
    seconds: float


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    data_seed: int = 1,
) -> list[DemoSummary]:
    """Train a small model with DPO, the placebo and two BA-DPO arms on signed answers, and return a summary per seed.

    Finished runs in ``out`` are not repeated. ``model`` is a folder or a Hub id. If ``model`` is None, a small model is
    built from scratch. ``data_seed`` is the random seed of the simulated votes. For one seed, the summary is written to
    ``out/summary.json``; for several seeds, the summaries are written to ``out/summary-s<seed>.json``.
    """
    started, scale = time.perf_counter(), SCALES["demo"]
    if model is not None:
        keys = {**scale.keys["demo"], "model_name_or_path": model}
        scale = replace(scale, name=f"demo on {model}", keys={"demo": keys}, shapes={})
    suite = Suite("demo", "The demo", (make_demo_panel("The demo", {}, data_seed),))
    execute(Reproduction([suite], scale, seeds, out), progress)
    runs, summaries = PanelRuns(out, seeds), []
    for seed in seeds:
        seconds = round(time.perf_counter() - started, 1)
        summary: DemoSummary = {"seed": seed, "seconds": seconds, **summarize_seed(runs, seed)}
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    write_report(out, out / "report.html")
    return summaries


def make_demo_panel(title: str, columns: Columns, data_seed: int = 1) -> Panel:
    """Make a panel (a part of a table) with the demo's arms as rows."""
    rows = tuple(Row(arm_label(name), Condition(name)) for name in DEMO_ARMS)
    return Panel("demo", title, Corpus("signed", "demo", data_seed), rows, columns)


def summarize_seed(runs: PanelRuns, seed: int) -> DemoFigures:
    """Summarize the readouts of a seed: rates, the share of DPO's shift that each arm removed, and theta correlations.

    Each correlation is between planted theta and learned theta, for the first arm with one theta per annotator.
    """
    folders = {REFERENCE: REFERENCE, **{arm: f"{arm}-s{seed}" for arm in DEMO_ARMS}}

    def read(arm: str, place: str) -> dict[str, float]:
        readouts = runs.readouts(folders[arm])
        return {name: read_number(readouts, place.format(name)) for name in ATTRIBUTES}

    rates = {arm: read(arm, "rates.{}.rate") for arm in folders}
    removed = {
        arm: {
            name: float(share_removed(rates[DPO][name], rate, rates[REFERENCE][name]))
            for name, rate in arm_rates.items()
        }
        for arm, arm_rates in rates.items()
        if arm in BA_ARMS
    }
    correlations = (read(arm, "theta.{}.correlation") for arm in DEMO_ARMS)
    learned = (each for each in correlations if np.isfinite(list(each.values())).all())
    correlation = next(learned, dict.fromkeys(ATTRIBUTES, np.nan))
    return {
        "rates": {arm: figures(**rates[arm]) for arm in folders},
        "removed": {arm: figures(**shares) for arm, shares in removed.items()},
        "theta_correlation": figures(**correlation),
    }


def format_demo_tables(
    out: Path, seeds: Sequence[int], tables: Mapping[str, Columns] = MAIN_TABLES
) -> str:
    """Format the results of the demo in Markdown: a comparison of the arms with the placebo, followed by the tables.

    ``tables`` maps the title of each table to its columns. With several seeds, each cell contains the mean and the
    half-width of the confidence interval.
    """
    runs = PanelRuns(out, seeds)
    panels = (make_demo_panel(title, columns) for title, columns in tables.items())
    texts = (format_table(make_run_table(panel, runs)) for panel in panels)
    return "\n\n".join(["\n".join(compare_with_placebo(runs)), *texts])


def compare_with_placebo(runs: PanelRuns) -> list[str]:
    """For each attribute and BA-DPO arm, state for how many seeds the arm is nearer to the placebo than DPO is."""
    lines = ["The placebo is DPO on the same votes, drawn without bias. Nearer to the placebo than DPO:"]
    for name in ATTRIBUTES:
        for label, source in (
            ("tilt", f"tilt.{name}.tilt"),
            ("rate, in log-odds", f"distance:rates.{name}.rate"),
        ):
            dpo, placebo = (pd.Series(runs.values(arm, source)) for arm in (DPO, PLACEBO))
            counts = []
            for arm in BA_ARMS:
                values = pd.Series(runs.values(arm, source))
                is_nearer = (values - placebo).abs() < (dpo - placebo).abs()
                counts.append(f"{arm_label(arm)} at {is_nearer.sum()} of {counted(len(values), 'seed')}")
            lines.append(f"- toward {name}, {label}: {', '.join(counts)}")
    return lines
