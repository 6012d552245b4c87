"""Functions of ``badpo reproduce`` and ``badpo demo``: run suites, and read their tables and patterns."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from badpo import __version__
from badpo.data.files import Json, write_json
from badpo.data.problems import ConfigError, counted
from badpo.results.formatting import DPO, PLACEBO, REFERENCE, arm_label
from badpo.results.run_page import write_report
from badpo.runs.run import Progress
from badpo.theory.summaries import share_removed
from badpo_paper.datasets import describe_bias
from badpo_paper.patterns import VERDICTS, Pattern, evaluate_patterns, select_patterns
from badpo_paper.run_readouts import ATTRIBUTES
from badpo_paper.schedule import Reproduction, execute, require_needs
from badpo_paper.settings import SCALES
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
    format_table,
    make_run_table,
    make_table,
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
    """Reproduction of one suite or of all suites (``all``).

    Runs on a local file or on the votes of another data seed get their own folder.
    """
    suites = list(SUITES.values()) if suite == "all" else [SUITES[suite]]
    suites = [set_data_seed(one, data_seed) for one in suites]
    chosen = SCALES[require_known("scale", scale, SCALES)]
    if data is not None:
        if len(suites) > 1:
            raise ConfigError("--data replaces the corpus of one suite; name that suite")
        takers = [name for name, one in SUITES.items() if any(c.kind == "style" for c in one.corpora())]
        if scale != "paper" and (scale, suite in takers) != ("tiny", True):
            raise ConfigError(
                f"--data: {suite} at scale {scale} has no votes that a file can replace; at scale tiny a table of "
                f"votes can replace the votes of {', '.join(takers)}"
            )
        if not data.exists():
            raise ConfigError(f"--data: the file {data} does not exist")
    folder = out / "-".join(
        [scale, *([data.stem] if data else []), *([f"data{data_seed}"] if data_seed else [])]
    )
    return Reproduction(suites, chosen, seeds, folder, data)


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteResult:
    """Tables and patterns of a suite, titles of the panels that the scale lacks, and sentences on model and votes."""

    suite: Suite
    tables: tuple[PanelTable, ...]
    patterns: tuple[Pattern, ...]
    left_out: tuple[str, ...]
    stand_in: str

    def text(self) -> str:
        """Tables and patterns in Markdown."""
        parts = [format_table(table) for table in self.tables]
        found = [f"{p.verdict}: {p.sentence}. {'; '.join(p.figures)}" for p in self.patterns]
        found += [*(f"not at this scale: {title}" for title in self.left_out), self.stand_in]
        first = "\n".join(f"- {line}" for line in (self.verdict, *found) if line)
        return "\n\n".join([first, *parts]).rstrip()

    @property
    def verdict(self) -> str:
        """Sentence with the number of patterns for each verdict."""
        counts = Counter(p.verdict for p in self.patterns)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS[::-1] if counts[verdict])
        return (
            f"Of the paper's patterns: {told}."
            if told
            else "This suite evaluates no pattern of the paper."
        )

    def to_json(self) -> Json:
        """The result as a dictionary for JSON."""
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
    """Run the missing runs, and read the tables and patterns of every suite."""
    require_needs(asked)
    execute(asked, progress, jobs)
    return [read_suite(suite, asked) for suite in asked.suites]


def read_suite(suite: Suite, asked: Reproduction) -> SuiteResult:
    """Read the tables and patterns of a suite from its finished runs and their votes."""
    asked = replace(asked, suites=[suite])
    found = {corpus: find_runs(suite, corpus, asked) for corpus in suite.corpora()}
    tables = [
        make_table(panel, found[panel.corpus], asked.dataset)
        for panel in suite.panels
        if found[panel.corpus].readouts("reference")
    ]
    # title of the first panel of each corpus
    titles = {panel.corpus: panel.title for panel in reversed(suite.panels)}
    patterns = evaluate_patterns(
        select_patterns(suite.name), [f for c, f in found.items() if asked.scale.has(c)]
    )
    return SuiteResult(
        suite,
        tuple(replace(table, ran=asked.scale.ran) for table in tables if table.rows or table.missing),
        tuple(patterns),
        tuple(titles[corpus] for corpus in found if not asked.scale.has(corpus)),
        " ".join([asked.scale.stand_in, *describe_votes(asked)]),
    )


def describe_votes(asked: Reproduction) -> list[str]:
    """Number and bias of a file's votes, and number of evaluation prompts. Empty if no file is given."""
    lines = []
    for dataset in (asked.dataset(corpus) for corpus in asked.corpora if asked.find_file(corpus)):
        n_held_out, n_prompts = dataset.split()[1].n_votes, len(set(dataset.prompts))
        total, *leans = map(str.strip, describe_bias(dataset.judgments))
        lines.append(
            f"{total} {'; '.join(leans)}. Held out: {counted(n_held_out, 'vote')}; "
            f"{counted(n_prompts, 'evaluation prompt')}, each answered "
            f"{counted(len(dataset.prompts) // n_prompts, 'time')}."
        )
    return lines


def find_runs(suite: Suite, corpus: Corpus, asked: Reproduction) -> PanelRuns:
    """Runs of a suite on a corpus. If several rows have the same condition, the longest list of seeds is planned."""
    planned: dict[str, tuple[int, ...]] = {}
    for row in (row for panel in suite.panels if panel.corpus == corpus for row in panel.rows):
        seeds, name = asked.scale.seeds_of(row, asked.seeds), row.condition.name
        planned[name] = max(planned.get(name, ()), seeds, key=len)
    return PanelRuns(asked.out / corpus.folder, asked.seeds, planned)


def format_page(results: Sequence[SuiteResult], command: str) -> str:
    """Markdown page with the verdict on every pattern, and then the readings and tables of each suite.

    The page has the same lines for failed patterns and for reproduced patterns.
    """
    page = [
        f"# The paper's tables\n\nPrinted by `{command}` of badpo {__version__}.\n\n## Every pattern and its verdict\n",
        "| suite | place in the paper | pattern | verdict |",
        "|--|--|--|--|",
    ]
    page += [
        f"| `{one.suite.name}` | `{p.place}` | {p.sentence} | {p.verdict} |"
        for one in results
        for p in one.patterns
    ]
    for one in results:
        page.append(f"\n## {one.suite.name}: {one.suite.title}\n\n{one.text()}")
    return "\n".join(page) + "\n"


# -- the demo ---------------------------------------------------------------------------------------------------------

ARMS_SHOWN = ("dpo", PLACEBO, "pooled", "shared_mean")
# Title -> columns of the demo's tables.
TABLES = {
    "Rates, share of DPO's shift removed, and KL in nats per token": {**RATES, **KL},
    "Tilt: mean margin toward the attribute on held-out comparisons, in log-odds": TILTS,
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
    data_seed: int = 1,
) -> list[dict]:
    """Run the suite `names` with three arms and a small model, and return a summary for each seed.

    Finished runs in ``out`` are not run again. ``model`` is a folder or a Hub id. If ``model`` is None, a small model
    is built from scratch. ``data_seed`` is the random seed of the simulated votes. The summary is written to
    ``out/summary.json`` if there is one seed, and to ``out/summary-s<seed>.json`` if there are several seeds.
    """
    started, scale = time.perf_counter(), SCALES["demo"]
    if model is not None:
        keys = {**scale.keys["demo"], "model_name_or_path": model}
        scale = replace(scale, name=f"demo on {model}", keys={"demo": keys}, shapes={})
    suite = Suite("demo", "The demo", (demo_panel("The demo", {}, data_seed),))
    execute(Reproduction([suite], scale, seeds, out), progress)
    found, summaries = PanelRuns(out, seeds), []
    for seed in seeds:
        readouts = {name: found.readouts(f"{name}-s{seed}") for name in ARMS_SHOWN}
        figures = summarize_seed({REFERENCE: found.readouts(REFERENCE), **readouts})
        summary = {"seed": seed, "seconds": round(time.perf_counter() - started, 1), **figures}
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    write_report(out, out / "report.html")
    return summaries


def demo_panel(title: str, columns: Columns, data_seed: int = 1) -> Panel:
    """Panel with the demo's arms as rows."""
    rows = tuple(Row(arm_label(name), Condition(name)) for name in ARMS_SHOWN)
    return Panel("demo", title, Corpus("signed", "demo", data_seed), rows, columns)


def summarize_seed(readouts: Json) -> Json:
    """Rates of a seed, the share of DPO's shift that each other arm removed, and the correlation of theta.

    The correlation compares planted theta with the theta of the first arm that learns one theta per annotator. Values
    that are not defined are None.
    """
    rates = {
        arm: {name: row["rate"] for name, row in of["rates"].items()} for arm, of in readouts.items()
    }
    removed = {
        arm: {name: _share(rates["dpo"][name], own, rates[REFERENCE][name]) for name, own in of.items()}
        for arm, of in rates.items()
        if arm not in (REFERENCE, DPO, PLACEBO)
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
    """Share of DPO's shift that is removed; None if DPO has no shift."""
    share = float(share_removed([dpo], [own], reference)[0])
    return share if math.isfinite(share) else None


def format_demo_tables(out: Path, seeds: Sequence[int]) -> str:
    """The demo's comparison with the placebo, and its tables in Markdown.

    With several seeds, cells have the mean and half of the confidence interval.
    """
    found = PanelRuns(out, seeds)
    panels = (demo_panel(title, columns) for title, columns in TABLES.items())
    return "\n\n".join(
        [
            "\n".join(compare_with_placebo(found)),
            *(format_table(make_run_table(panel, found)) for panel in panels),
        ]
    )


def compare_with_placebo(found: PanelRuns) -> list[str]:
    """Sentences that say at how many seeds each BA-DPO arm is nearer to the placebo than DPO, for each attribute."""
    lines = ["The placebo is DPO on the same votes, drawn without bias. Nearer to the placebo than DPO:"]
    arms = [arm for arm in ARMS_SHOWN if arm not in (DPO, PLACEBO)]
    for name in ATTRIBUTES:
        for what, source in (
            ("tilt", f"tilt.{name}.tilt"),
            ("rate, in log-odds", f"distance:rates.{name}.rate"),
        ):
            dpo, placebo = (pd.Series(found.values(one, source)) for one in (DPO, PLACEBO))
            counts = []
            for arm in arms:
                own = pd.Series(found.values(arm, source))
                is_nearer = (own - placebo).abs() < (dpo - placebo).abs()
                counts.append(f"{arm_label(arm)} at {is_nearer.sum()} of {counted(len(own), 'seed')}")
            lines.append(f"- toward {name}, {what}: {', '.join(counts)}")
    return lines
