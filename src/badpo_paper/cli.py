"""The commands of the paper: `demo`, `corpus` and `reproduce`, which `badpo` finds by their entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from badpo.cli.options import (
    AsJson,
    announce,
    as_lines,
    print_json,
    reporting_errors,
    say,
    stopping_whole,
    tell,
    terminal_progress,
)
from badpo.data.files import write_atomically
from badpo.data.problems import TRAIN, ConfigError
from badpo_paper.suites import SUITES, known

if TYPE_CHECKING:
    from badpo_paper.datasets import PublicCorpus

corpus = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Build a corpus whose annotators' leans are planted, and so known, or load a public one.",
)
LARGEST_SEED = 2**32 - 1
# Of the demo's settings, beside the table that they give.
HISTORY = (
    "The settings (`badpo_paper.settings.DEMO`) were chosen on data seed 0, and nothing was chosen on data seeds 1 and "
    "2: `make demo-seeds` writes a page for each of the three."
)
LEFT = "stopped; finished runs and checkpoints are kept; go on with: {again}"


@reporting_errors
@stopping_whole(LEFT)
def demo(
    out: Path = Option(Path("runs/demo"), "--out", "-o", help="Folder for the runs and the report."),
    seeds: str = Option("42", help="Training seeds, separated by commas."),
    model: str | None = Option(None, help="A causal language model, a folder or a name on the Hub."),
    data_seed: int = Option(0, help="Seed of the votes that are drawn."),
    results: Path | None = Option(
        None, help="Also write the figures over the seeds to this Markdown file."
    ),
    as_json: AsJson = False,
) -> None:
    """Watch a bias enter a small model under DPO and stay out under BA-DPO. Minutes, no GPU, no network."""
    from badpo_paper.datasets import demo_votes, lean_lines
    from badpo_paper.suites import Corpus

    for module in TRAIN:
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)  # told as where an import fails
    if not as_json:
        # nothing that trains is loaded yet
        say("\n".join(lean_lines(demo_votes(Corpus("signed", "demo", data_seed)).judgments)))
    numbers = parsed_seeds(seeds)
    with terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        from badpo_paper.reproduce import demo_tables, run_demo

        summaries = run_demo(out, numbers, progress, model, data_seed)

    if results is not None:
        given = {"out": out, "seeds": seeds, "model": model, "data-seed": data_seed}
        asked = (f"--{name} {value}" for name, value in given.items() if value)
        text = (
            f"# The demo over training seeds, data seed {data_seed}\n\n"
            f"Printed by `badpo demo {' '.join(asked)} --results {results}`. The data are the same at every seed (data "
            f"seed {data_seed}). Another number of threads rounds differently, and training carries that to the second "
            f"digit of a rate.\n\n{HISTORY}\n\n{demo_tables(out, numbers, 'markdown')}\n"
        )
        write_atomically(results, text.encode())
    shown = f"{demo_tables(out, numbers, 'text')}\n\nreport: {out / 'report.html'}"
    tell(as_json, summaries[0] if len(summaries) == 1 else summaries, shown)


@reporting_errors
@stopping_whole(LEFT)
def reproduce(
    suite: str = Argument(..., metavar="SUITE", help=f"{', '.join(SUITES)}, or all."),
    scale: str = Option("tiny", help="tiny: a small model on the CPU; paper: what the authors ran."),
    seeds: str = Option("42,123,456", help="Training seeds, separated by commas."),
    jobs: int = Option(
        1, min=1, help="Runs side by side, one thread each from two on; at most one a processor."
    ),
    data: Path | None = Option(
        None,
        help="In place of a suite's votes: at scale tiny any table of votes, at scale paper rows of the public corpus.",
    ),
    out: Path = Option(Path("runs/reproduce"), "--out", "-o", help="Folder of the runs."),
    dry_run: bool = Option(False, "--dry-run", help="Say what would run."),
    form: str = Option("text", "--format", help="text, markdown, latex or csv."),
    results: Path | None = Option(
        None, help="Also write all tables, patterns and verdicts to this Markdown file."
    ),
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments: tables, a page, and which patterns were found. Runs are shared and resumed."""
    known("suite", suite, [*SUITES, "all"])  # a misspelt one is refused before what trains is loaded
    from badpo_paper.reproduce import asked_for, results_page, run_suites, write_suite_page
    from badpo_paper.schedule import plan
    from badpo_paper.tables import FORMATS

    known("format", form, [*FORMATS, "csv"])
    asked = asked_for(suite, scale, parsed_seeds(seeds), out, data)
    if dry_run:
        planned = plan(asked)
        states, width = planned["states"], max(map(len, planned["states"]))
        lines = [f"{place:<{width}}  {state}" for place, state in states.items()]
        n_done = list(states.values()).count("done")
        counted = f"{len(states)} runs, {n_done} of them done"
        tell(as_json, planned, "\n".join([*lines, "", counted, *planned["about"]]))
        return
    quiet_libraries()
    jobs = min(jobs, os.cpu_count() or 1)
    with terminal_progress(as_json) as progress, redirect_stdout(sys.stderr):
        found = run_suites(asked, progress, jobs)
    if as_json:
        print_json([result.to_json() for result in found])
    options = f"--scale {scale}" + (f" --data {data.name}" if data else "")
    for result in found:
        # tables first: a page that cannot be written takes none of them away
        if not as_json:
            say(result.text(form).rstrip() + "\n" * (form != "csv"))
        page = write_suite_page(result, options, asked.out / f"{result.suite.name}.html")
        if form == "text" and not as_json:
            say(f"page: {page}\n")
    if results is not None:
        command = f"badpo reproduce {suite} {options} --seeds {seeds} --results {results}"
        write_atomically(results, results_page(found, command).encode())


def quiet_libraries() -> None:
    """Bars of other libraries, one for every model that is loaded, would hide our own lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()


OutFolder = Annotated[
    Path, typer.Option("--out", "-o", help="Folder to write; made when it is not there.")
]


@corpus.command("signed")
@reporting_errors
def corpus_signed(
    out: Path = Option(..., "--out", "-o", help="Folder for judgments.parquet and planted.parquet."),
    pairs: Path | None = Argument(
        None,
        help="Scored pairs: prompt_id, prompt, chosen, rejected, score_chosen, score_rejected.",
    ),
    n: int | None = Option(None, help="How many of the bundled pairs, when no file is given."),
    seed: int = Option(0, help="Seed of the plan: kinds, names, annotators, votes."),
    as_json: AsJson = False,
) -> None:
    """Sign scored pairs with names and let 60 planted annotators vote, as in the paper."""
    from badpo_paper.datasets import write_signed_corpus

    gate = write_signed_corpus(out, pairs=pairs, n_pairs=n, seed=seed)
    tell(as_json, gate, f"{as_lines(gate)}\n\n{out / 'judgments.parquet'}")


@corpus.command("multipref")
@reporting_errors
def corpus_multipref(
    out: OutFolder,
    source: Path | None = Argument(
        None, metavar="[FILE]", help="Rows of allenai/multipref; from the Hub if not given."
    ),
    as_json: AsJson = False,
) -> None:
    """MultiPref with its votes one by one, its evaluation prompts, and its statistics beside the published ones."""
    from badpo_paper.datasets import write_multipref

    _tell(lambda: write_multipref(out, source), out, source, as_json)


@corpus.command("ultrafeedback")
@reporting_errors
def corpus_ultrafeedback(
    out: OutFolder,
    train: Path | None = Argument(
        None, metavar="[TRAIN]", help="Rows of split train_prefs; from the Hub if not given."
    ),
    test: Path | None = Argument(
        None, metavar="[TEST]", help="Rows of split test_prefs; from the Hub if not given."
    ),
    n: int = Option(8_000, min=1, help="Rows to draw before short responses are left out."),
    signing: int = Option(300, min=1, help="Signing prompts."),
    seed: int = Option(0, help="Seed of the draw and of the plan."),
    as_json: AsJson = False,
) -> None:
    """Signed-UltraFeedback: real pairs signed with names, 60 planted annotators, prompts to evaluate on."""
    from badpo_paper.datasets import write_signed_ultrafeedback

    _tell(
        lambda: write_signed_ultrafeedback(out, train, test, n, signing, seed),
        out,
        train,
        as_json,
    )


@corpus.command("style")
@reporting_errors
def corpus_style(
    out: OutFolder,
    n: int = Option(7_177, min=1, help="How many of the bundled pairs."),
    seed: int = Option(0, help="Seed of leans and votes."),
    as_json: AsJson = False,
) -> None:
    """Votes of 40 planted annotators who lean toward length and Markdown, on the bundled answers."""
    from badpo_paper.datasets import write_style_votes

    told = write_style_votes(out, n, seed)
    tell(as_json, told, f"{as_lines(told)}\n\n{out / 'judgments.parquet'}")


def _tell(write: Callable[[], PublicCorpus], out: Path, source: Path | None, as_json: bool) -> None:
    """Write a corpus and print its statistics beside the published ones, and what was left out of it."""
    from badpo_paper.corpora.published import gate_table

    announce("from the Hub" if source is None else source, as_json)
    rows, left_out = write()
    reasons = [f"left out, {reason}: {n:,}" for reason, n in left_out.items()]
    told = {"out": out, "gate": [row.to_json() for row in rows], "left_out": left_out}
    tell(as_json, told, "\n".join([*gate_table(rows), *reasons, str(out)]))


def parsed_seeds(text: str) -> list[int]:
    """Training seeds separated by commas, each once: an interval over runs counts every run once."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f'--seeds "{text}": write whole numbers separated by commas, as in 42,123,456')
    seeds = [int(part) for part in parts]
    for seed in seeds:
        if seed > LARGEST_SEED:
            raise ConfigError(f"--seeds: {seed} is more than {LARGEST_SEED}, the largest seed there is")
        if seeds.count(seed) > 1:
            raise ConfigError(f"--seeds: {seed} is given twice; a seed is one run, so name each once")
    return seeds
