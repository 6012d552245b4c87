"""Write ``docs/results_tiny.md`` from finished runs: `python -m bench.results_tiny [--runs DIR] [--votes FILE ...]`.

Trains nothing; a suite whose runs are not all there says which are missing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from badpo.experiments.removal_gains import READINGS, Gain, gains, recommendation, verdict
from badpo.experiments.reproduce import SuiteResult, pattern_lines, read_suite, suites_folder
from badpo.experiments.suite_parts import Condition
from badpo.experiments.suite_plan import state_of, timing_of
from badpo.experiments.suite_runs import PlannedRun, planned_runs
from badpo.experiments.suite_scales import SCALES
from badpo.experiments.suite_tables import Found
from badpo.experiments.suites import SUITES
from badpo.results.labels import DASH, signed
from bench.pattern_causes import STYLE, explanation, gap_by_prompt, style_causes

PAGE = Path("docs/results_tiny.md")
SEEDS = (42, 123, 456)
CORES = 2
TINY = SCALES["tiny"]
VOTES_SUITES = "multipref"  # of which runs on real votes are shown
PAPERS_ARMS = ("dpo", "pooled", "shared_mean")
PLACES = {"KL": 4}
HEAD = """# The paper's tables with a small model

Printed by `badpo reproduce all --scale tiny` and `python -m bench.results_tiny`. A model of 0.4 million weights,
trained from scratch on the bundled corpus: the paper's numbers stand in brackets so that the orders can be compared,
not the values. What each suite is, and how a pattern is decided, stands in [reproduce.md](reproduce.md).
"""


@dataclass(frozen=True)
class Timed:
    """What a run took: processor seconds, or, of a version that kept the clock alone, the time on it."""

    run: PlannedRun
    seconds: float
    is_clock: bool

    @property
    def trains_one_policy(self) -> bool:
        """Whether it takes about as long as others: a reference, EM-DPO and anchored runs do not."""
        condition = self.run.condition
        return condition is not None and condition.offset is None and condition.arm != "em_dpo"


def timed(folder: Path) -> dict[str, Timed]:
    """The runs of all suites that were timed, by their place."""
    found = {}
    for run in planned_runs(SUITES.values(), TINY, SEEDS):
        if timing := timing_of(folder / run.place):
            clock = timing["train_seconds"] + timing["measure_seconds"]
            seconds = timing.get("processor_seconds", clock)
            found[run.place] = Timed(run, seconds, "processor_seconds" not in timing)
    return found


def usual_seconds(every: Sequence[Timed]) -> float:
    """Mean processor seconds of a run that trains one policy; infinite where none was kept."""
    known = [one.seconds for one in every if one.trains_one_policy and not one.is_clock]
    return fmean(known) if known else math.inf


def clock_only(every: Sequence[Timed]) -> str:
    """How many runs tell the time on the clock alone, which other work on the machine makes longer, and what counts."""
    n = sum(one.is_clock for one in every)
    if not n:
        return ""
    return (
        f" {n} of the {len(every)} timed runs are of a version that kept the time on the clock alone, with other work "
        f"on the machine. `at most` counts them with it; `minutes` with {usual_seconds(every):.0f} s, the mean of the "
        "runs of one policy that have processor seconds, where that is less. EM-DPO and anchored runs count with the "
        "clock in both."
    )


def time_section(folder: Path) -> str:
    """Minutes of every suite and of all, and the machine they were taken on."""
    runs = planned_runs(SUITES.values(), TINY, SEEDS)
    machines = {
        (timing["processors"], timing["threads"])
        for run in runs
        if (timing := timing_of(folder / run.place)) and {"processors", "threads"} <= set(timing)
    }
    machine = "; ".join(
        f"{processors} processors, {threads} {'thread' if threads == 1 else 'threads'} a run"
        for processors, threads in sorted(machines)
    )
    found = timed(folder)
    every = list(found.values())
    usual = usual_seconds(every)
    lines = ["| suite | runs | of them timed | minutes | at most | goal |", "|---|--:|--:|--:|--:|--:|"]
    for name, suites in (
        {suite.name: [suite] for suite in SUITES.values()} | {"all": list(SUITES.values())}
    ).items():
        runs_of = planned_runs(suites, TINY, SEEDS)
        known = [found[run.place] for run in runs_of if run.place in found]
        likely = sum(
            min(one.seconds, usual) if one.is_clock and one.trains_one_policy else one.seconds
            for one in known
        )
        cells = [f"{seconds / 60 / CORES:.1f}" for seconds in (likely, sum(one.seconds for one in known))]
        lines.append(
            f"| {name} | {len(runs_of)} | {len(known)} | {' | '.join(cells)} | {180 if name == 'all' else 30} |"
        )
    return "\n".join(
        [
            "## Time\n",
            f"Minutes: the processor seconds of a suite's runs, training and readouts, added up and divided by {CORES} "
            "cores, as if it had been run alone; suites share runs, and `all` counts each once. Of a run that was "
            f"stopped, those since it went on.{clock_only(every)}",
            f"Machine: {machine or 'not known, for nothing was run'}.\n",
            *lines,
            "",
        ]
    )


def suite_section(result: SuiteResult, depth: str = "##") -> str:
    """Tables and patterns of a suite."""
    # what stands in for the paper's models is said once, in the head
    body = replace(result, stand_in="").text("markdown") if result.tables else "Not run."
    return f"{depth} {result.suite.name}: {result.suite.title}\n\n{body}\n"


def unmet_section(results: Sequence[SuiteResult], folder: Path) -> str:
    """Every pattern that is not there, of the suites that were run, with what explains it."""
    lines = unmet_lines(results)
    causes = style_causes(folder / STYLE.folder, SEEDS)
    return "\n".join(["## Patterns that are not there, and why\n", *(lines or ["None."]), "", causes])


def unmet_lines(results: Sequence[SuiteResult], votes: str = "") -> list[str]:
    """A line for every pattern that is not there; ``votes`` is the name of the table of real votes."""
    return [
        f"- `{result.suite.name}`, {pattern_lines(pattern)[0]} **Why:** {explanation(pattern.sentence, votes)}"
        for result in results
        for pattern in result.patterns
        if pattern.verdict != "reproduced" and result.tables
    ]


def gain_line(found: Gain, labels: dict[Condition, str]) -> str:
    """A row of the table of gains."""
    cells = []
    for name in READINGS:
        difference = found.differences.get(name)
        places = PLACES.get(name, 3)
        cells.append(
            DASH
            if difference is None
            else f"{signed(difference.estimate, places)} ({signed(difference.low, places)} to "
            f"{signed(difference.high, places)})"
        )
    n = max((interval.n for interval in found.differences.values()), default=0)
    words = [labels[found.condition], found.against, f"{n} {found.over}", *cells]
    return f"| {' | '.join(words)} |"


def gains_section(folder: Path) -> str:
    """Whether an arm of ours removes more than the paper's at no cost."""
    panels = SUITES["beyond"].panels
    founds = [Found(folder / panel.corpus.folder, SEEDS) for panel in panels]
    rows = [row for row in panels[0].rows if row.condition.name not in PAPERS_ARMS]
    labels = {row.condition: row.label for row in panels[0].rows}
    found = gains(rows, founds)
    shown = [one for one in found if one.differences]
    if not shown:
        return "## Beyond the paper's own removal\n\nNot run.\n"
    header = ["arm", "against", "over", *READINGS]
    verdicts = [verdict(row, found) for row in rows]
    return "\n".join(
        [
            "## Beyond the paper's own removal\n",
            "Each arm minus the paper's, run against run, with 95 % intervals (Student's t): over training seeds at "
            f"data seed 0, and over {len(panels)} data seeds at training seed {SEEDS[0]}. Distance: from the "
            "reference's rates, in log-odds without its sign, mean of both attributes; below zero is nearer. The rule "
            "(`badpo.experiments.removal_gains`): an arm removes more at no cost where this interval lies below zero "
            "over training seeds and over data seeds, compared with the paper's arm of its kind, and no interval of "
            "another column shows a loss.\n",
            f"| {' | '.join(header)} |",
            f"|{'---|' * 3}{'---:|' * len(READINGS)}",
            *(gain_line(one, labels) for one in shown),
            "",
            *(f"- {one.row.label}: {'yes' if one.earns else 'no'}; {one.reason}." for one in verdicts),
            "",
            f"**{recommendation(verdicts)}**\n",
        ]
    )


def votes_section(runs: Path, files: Sequence[Path]) -> str:
    """The suites on real votes, of which the runs are there."""
    data = {suites_folder(runs, TINY, file): file for file in files}
    parts = ["## On real votes\n"]
    for folder in sorted(path for path in runs.glob(f"{TINY.name}-*") if path.is_dir()):
        parts.append(f"### {folder.name.removeprefix(f'{TINY.name}-')}\n")
        results = []
        for suite in SUITES.values():
            if not suite.name.startswith(VOTES_SUITES):
                continue
            states = [state_of(folder / run.place) for run in planned_runs([suite], TINY, SEEDS)]
            if all(state == "done" for state in states):
                results.append(read_suite(suite, TINY, SEEDS, folder, data.get(folder)))
                parts.append(suite_section(results[-1], "####"))
            else:
                parts.append(f"`{suite.name}`: {states.count('done')} of {len(states)} runs are there.\n")
        if results and folder in data:
            parts += votes_causes(results, folder / STYLE.folder, data[folder])
    return "\n".join(parts if len(parts) > 1 else [*parts, "Not run.\n"])


def votes_causes(results: Sequence[SuiteResult], style: Path, votes: Path) -> list[str]:
    """What explains the patterns that are not there on real votes; ``style`` holds the runs."""
    return [
        "#### Patterns that are not there, and why\n",
        *(unmet_lines(results, votes.stem) or ["None."]),
        "",
        gap_by_prompt(style, SEEDS),
        style_causes(style, SEEDS, votes),
    ]


def page(runs: Path, files: Sequence[Path] = ()) -> str:
    """The page from the runs in a folder.

    Parameters
    ----------
    runs : Path
        As ``badpo reproduce --out``.
    files : sequence of Path
        Tables of real votes that runs were made from; without them the page does not say what was cut of their texts.
    """
    folder = suites_folder(runs, TINY, None)
    results = [read_suite(suite, TINY, SEEDS, folder) for suite in SUITES.values()]
    parts = [
        HEAD,
        time_section(folder),
        *map(suite_section, results),
        unmet_section(results, folder),
        gains_section(folder),
        votes_section(runs, files),
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--votes", type=Path, nargs="*", default=())
    given = parser.parse_args()
    PAGE.write_text(page(given.runs, given.votes), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
