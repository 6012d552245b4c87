"""The command that runs the paper's experiments: `reproduce`."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_errors import reporting_errors, stopping_whole
from badpo.cli_options import AsJson, Debug
from badpo.cli_parsing import parsed_seeds
from badpo.cli_printing import print_json, say, terminal_progress

WHAT_IS_LEFT = "stopped; finished runs are whole, and the same command goes on from here"


@reporting_errors
def reproduce(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite by name, or all.")],
    scale: Annotated[
        str, typer.Option(help="tiny: a small model on the CPU; paper: what the authors ran.")
    ] = "tiny",
    seeds: Annotated[str, typer.Option(help="Training seeds, separated by commas.")] = "42,123,456",
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Runs side by side, one thread each from two on; at most one a processor."),
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Your own votes, where length is asked about; at scale paper rows of the public corpus."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.")] = Path("runs/reproduce"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run.")] = False,
    generate_with: Annotated[
        str, typer.Option(help="What draws the answers that are measured: transformers, or vllm.")
    ] = "transformers",
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run the paper's experiments: tables, a page, and which patterns were found. Runs are shared and resumed."""
    from badpo.data.problems import ConfigError, did_you_mean
    from badpo.experiments.reproduce import (
        chosen_suites,
        drawing_with,
        plan_suites,
        require_usable,
        run_suites,
        scale_named,
        suites_folder,
    )
    from badpo.experiments.suite_formats import FORMATS
    from badpo.experiments.suite_page import write_suite_page

    if form not in FORMATS:
        raise ConfigError(
            f'"{form}" is no format.{did_you_mean(form, list(FORMATS))} Formats: {", ".join(FORMATS)}'
        )
    suites, chosen = chosen_suites(suite), drawing_with(scale_named(scale), generate_with)
    if data is not None:
        require_usable(data, suites, chosen)
    require_folder(out)
    folder, numbers = suites_folder(out, chosen, data), parsed_seeds(seeds)
    jobs = min(jobs, os.cpu_count() or 1)
    if dry_run:
        planned = plan_suites(suites, chosen, numbers, folder, data)
        if as_json:
            print_json(planned.to_json())
        else:
            say("\n".join(planned.lines()))
        return
    quiet_libraries()
    with stopping_whole(WHAT_IS_LEFT), redirect_stdout(sys.stderr), terminal_progress(as_json) as progress:
        results = run_suites(suites, chosen, numbers, folder, progress, jobs, data)
    if as_json:
        print_json([result.to_json() for result in results])
    options = f"--scale {chosen.name}" + (f" --data {data.name}" if data else "")
    for result in results:
        # tables first: a page that cannot be written takes none of them away
        if not as_json:
            say(result.text(form) + "\n" * (form != "csv"))
        page = write_suite_page(result, options, folder / f"{result.suite.name}.html")
        if form == "text" and not as_json:
            say(f"page: {page}\n")


def require_folder(out: Path) -> None:
    """Stop at a place that cannot hold the runs of suites."""
    from badpo.data.problems import ConfigError

    if out.exists() and not out.is_dir():
        raise ConfigError(f'--out: "{out}" is no folder; name one, such as runs/reproduce')
    for folder in (out, *out.absolute().parents):
        if (folder / "run.json").exists():
            raise ConfigError(f"--out: {folder} is the folder of one run; name one outside it")


def quiet_libraries() -> None:
    """Bars of other libraries, one for every model that is loaded, would hide our own lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()
