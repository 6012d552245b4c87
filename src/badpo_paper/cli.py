"""Define the commands `demo`, `corpus` and `reproduce`, which `badpo` finds through entry points."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from badpo.cli import options
from badpo.data.files import write_atomically
from badpo.data.problems import TRAIN, ConfigError
from badpo_paper.suites import SUITES, require_known

if TYPE_CHECKING:
    from badpo_paper.corpora.signed import Statistics
    from badpo_paper.datasets import PublicCorpus

corpus = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Build a corpus of simulated annotators with known biases, or load a public data set.",
)
# A note below the demo's tables explains how the demo's settings were chosen.
HISTORY = (
    "The policy's rate (`badpo_paper.settings.DEMO`) was chosen on data seed 9 by a rule about KL and signatures "
    "(docs/reproduce.md); no setting was chosen on the data seed of this page."
)
LEFT = "stopped; finished runs and checkpoints are kept; continue with: {again}"


@options.report_errors
@options.handle_interrupt(LEFT)
def demo(
    out: Path = Option(Path("runs/demo"), "--out", "-o", help="Folder for the runs and the report."),
    seeds: str = Option("42", help="Training seeds, separated by commas."),
    model: str | None = Option(None, help="A causal language model: a folder, or a name on the Hub."),
    data_seed: int = Option(1, help="Random seed of the simulated votes."),
    results: Path | None = Option(
        None, help="Also write the figures of all seeds to this Markdown file."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Train a small model with DPO and with BA-DPO on biased votes, and compare the learned biases.

    The demo takes a few minutes and needs neither a GPU nor a network.
    """
    from badpo_paper.datasets import describe_bias, make_demo_dataset
    from badpo_paper.suites import Corpus

    for module in TRAIN:
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)  # the error of a failed import
    if not as_json:
        # describe the votes first; loading the training libraries takes seconds
        options.say(
            "\n".join(describe_bias(make_demo_dataset(Corpus("signed", "demo", data_seed)).judgments))
        )
    numbers = parse_seeds(seeds)
    with options.terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        from badpo_paper.reproduce import ALL_TABLES, format_demo_tables, run_demo

        summaries = run_demo(out, numbers, progress, model, data_seed)

    if results is not None:
        values = {"out": out, "seeds": seeds, "model": model, "data-seed": data_seed}
        arguments = " ".join(f"--{name} {value}" for name, value in values.items() if value)
        page = (
            f"# The demo over training seeds, data seed {data_seed}\n\n"
            f"Printed by `badpo demo {arguments} --results {results}`. The votes are the same for all "
            f"training seeds (data seed {data_seed}). Another number of threads changes the rounding, which can change "
            f"the second digit of a rate.\n\n{HISTORY}\n\n{format_demo_tables(out, numbers, ALL_TABLES)}\n"
        )
        write_atomically(results, page.encode())
    text = f"{format_demo_tables(out, numbers)}\n\nreport: {out / 'report.html'}"
    options.print_result(as_json, summaries[0] if len(summaries) == 1 else summaries, text)


@options.report_errors
@options.handle_interrupt(LEFT)
def reproduce(
    suite: str = Argument(..., metavar="SUITE", help=f"{', '.join(SUITES)}, or all."),
    scale: str = Option(
        "tiny", help="tiny: a small model on the CPU; paper: the models and data of the authors."
    ),
    seeds: str = Option("42,123,456", help="Training seeds, separated by commas."),
    jobs: int = Option(
        1,
        min=1,
        help="Number of runs to train in parallel, at most one per processor. Each parallel run uses one thread.",
    ),
    data: Path | None = Option(
        None,
        help="File to use instead of a suite's votes: any table of votes (tiny), or rows of the public corpus (paper).",
    ),
    data_seed: int = Option(0, min=0, help="Random seed of the simulated votes."),
    out: Path = Option(Path("runs/reproduce"), "--out", "-o", help="Folder for the runs."),
    dry_run: bool = Option(False, "--dry-run", help="Print the planned runs and train nothing."),
    results: Path | None = Option(
        None,
        help="Markdown file for all tables, patterns and verdicts; by default OUT/SCALE/SUITE.md.",
    ),
    as_json: options.AsJson = False,
) -> None:
    """Run the paper's experiments, and print their tables and a verdict for each pattern that the paper found.

    Suites share runs if their settings are equal. An interrupted run is resumed.
    """
    # check the suite's name before loading the training libraries
    require_known("suite", suite, [*SUITES, "all"])
    import transformers

    from badpo_paper.reproduce import format_page, make_reproduction, run_suites
    from badpo_paper.schedule import read_states

    reproduction = make_reproduction(suite, scale, parse_seeds(seeds), out, data, data_seed)
    if dry_run:
        states = read_states(reproduction)
        width, n_done = max(map(len, states)), list(states.values()).count("done")
        lines = [f"{place:<{width}}  {state}" for place, state in states.items()]
        summary = f"{len(states)} runs, {n_done} of them done"
        options.print_result(as_json, {"states": states}, "\n".join([*lines, "", summary]))
        return
    # the progress bars of transformers would overwrite badpo's progress lines
    transformers.utils.logging.disable_progress_bar()
    jobs = min(jobs, os.cpu_count() or 1)
    with options.terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        suite_results = run_suites(reproduction, progress, jobs)
    given = {"data": data and data.name, "data-seed": data_seed, "seeds": seeds, "results": results}
    flags = " ".join(f"--{name} {value}" for name, value in given.items() if value)
    page = results or reproduction.out / f"{suite}.md"
    command = f"badpo reproduce {suite} --scale {scale} {flags}"
    tables = "\n\n".join(result.text() for result in suite_results)
    # print the tables first, so that they are not lost if the page cannot be written
    options.print_result(as_json, [result.to_json() for result in suite_results], tables)
    write_atomically(page, format_page(suite_results, command).encode())
    if not as_json:
        options.say(f"\npage: {page}")


OutFolder = Annotated[
    Path, typer.Option("--out", "-o", help="Output folder; badpo creates a missing folder.")
]


@corpus.command("signed")
@options.report_errors
def corpus_signed(
    out: OutFolder,
    n: int = Option(7_177, min=1, help="Number of bundled pairs."),
    seed: int = Option(
        0, help="Random seed for the kinds of pairs, the names, the annotators and the votes."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Add signatures to the bundled answers and simulate votes of 60 biased annotators, as in the paper."""
    from badpo_paper.datasets import write_signed_corpus

    _print_simulated(write_signed_corpus(out, n, seed), out, as_json)


@corpus.command("multipref")
@options.report_errors
def corpus_multipref(
    out: OutFolder,
    source: Path | None = Argument(
        None,
        metavar="[FILE]",
        help="File with the rows of allenai/multipref; the default is the data set on the Hub.",
    ),
    as_json: options.AsJson = False,
) -> None:
    """Write the votes and evaluation prompts of MultiPref, and compare their statistics with the paper's."""
    from badpo_paper.datasets import write_multipref

    options.announce(source or "from the Hub", as_json)
    _print_statistics(write_multipref(out, source), out, as_json)


@corpus.command("ultrafeedback")
@options.report_errors
def corpus_ultrafeedback(
    out: OutFolder,
    train: Path | None = Argument(
        None,
        metavar="[TRAIN]",
        help="File with the rows of split train_prefs; the default is the split on the Hub.",
    ),
    test: Path | None = Argument(
        None,
        metavar="[TEST]",
        help="File with the rows of split test_prefs; the default is the split on the Hub.",
    ),
    n: int = Option(
        8_000, min=1, help="Number of rows to draw, before pairs with a short response are excluded."
    ),
    signing: int = Option(300, min=1, help="Number of evaluation prompts that ask for a signature."),
    seed: int = Option(0, help="Random seed for drawing the rows and for simulating the votes."),
    as_json: options.AsJson = False,
) -> None:
    """Add signatures to UltraFeedback answers, simulate votes of 60 biased annotators, and write prompts."""
    from badpo_paper.datasets import write_signed_ultrafeedback

    options.announce(train or "from the Hub", as_json)
    _print_statistics(write_signed_ultrafeedback(out, train, test, n, signing, seed), out, as_json)


@corpus.command("style")
@options.report_errors
def corpus_style(
    out: OutFolder,
    n: int = Option(7_177, min=1, help="Number of bundled pairs."),
    seed: int = Option(0, help="Random seed of the biases and votes."),
    as_json: options.AsJson = False,
) -> None:
    """Simulate votes on the bundled answers; the 40 annotators are biased toward length and Markdown."""
    from badpo_paper.datasets import write_style_votes

    _print_simulated(write_style_votes(out, n, seed), out, as_json)


def _print_simulated(statistics: Statistics, out: Path, as_json: bool) -> None:
    """Print the statistics of simulated votes, and the path of the file with the votes."""
    text = f"{options.format_lines(statistics)}\n\n{out / 'judgments.parquet'}"
    options.print_result(as_json, statistics, text)


def _print_statistics(corpus: PublicCorpus, out: Path, as_json: bool) -> None:
    """Print the statistics of a public corpus next to the published ones, and the number of excluded rows."""
    from badpo_paper.corpora.public import format_statistics

    rows, left_out = corpus
    reasons = [f"excluded, {reason}: {n:,}" for reason, n in left_out.items()]
    content = {"out": out, "statistics": [row.to_json() for row in rows], "left_out": left_out}
    options.print_result(as_json, content, "\n".join([*format_statistics(rows), *reasons, str(out)]))


def parse_seeds(text: str) -> list[int]:
    """Parse training seeds separated by commas. A repeated seed is an error: each seed is one run."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(
            f'--seeds "{text}": write whole numbers separated by commas, for example 42,123,456'
        )
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f'--seeds "{text}": each seed is one run, so write every seed once')
    return seeds
