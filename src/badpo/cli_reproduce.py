"""The command that runs the paper's experiments: `reproduce`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_errors import reporting_errors
from badpo.cli_options import AsJson, Debug
from badpo.cli_parsing import parsed_seeds
from badpo.cli_printing import print_json, terminal_progress


@reporting_errors
def reproduce(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A suite by name, or all.")],
    scale: Annotated[
        str, typer.Option(help="tiny: a small model on the CPU; paper: what the authors ran.")
    ] = "tiny",
    seeds: Annotated[str, typer.Option(help="Training seeds, separated by commas.")] = "42,123,456",
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, one thread each from two on.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(help="Your own votes, for the multipref suites; MultiPref's rows at scale paper."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.")] = Path("runs/reproduce"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and what it costs.")] = False,
    form: Annotated[str, typer.Option("--format", help="text, markdown, latex or csv.")] = "text",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run the paper's experiments: tables, a page, and which patterns were found. Runs are shared and resumed."""
    from badpo.data.problems import ConfigError, did_you_mean
    from badpo.experiments.reproduce import chosen_suites, plan_suites, run_suites, scale_named, suites_folder
    from badpo.experiments.suite_formats import FORMATS
    from badpo.experiments.suite_page import write_suite_page

    if form not in FORMATS:
        raise ConfigError(
            f'"{form}" is no format.{did_you_mean(form, list(FORMATS))} Formats: {", ".join(FORMATS)}'
        )
    suites, chosen = chosen_suites(suite, data), scale_named(scale)
    folder, numbers = suites_folder(out, chosen, data), parsed_seeds(seeds)
    if dry_run:
        planned = plan_suites(suites, chosen, numbers, folder, jobs, data)
        if as_json:
            print_json(planned.to_json())
        else:
            print("\n".join(planned.lines()))
        return
    with redirect_stdout(sys.stderr), terminal_progress(as_json) as progress:
        results = run_suites(suites, chosen, numbers, folder, progress, jobs, data)
        pages = [
            write_suite_page(result, chosen.name, folder / f"{result.suite.name}.html") for result in results
        ]
    if as_json:
        print_json([result.to_json() for result in results])
        return
    for result, page in zip(results, pages, strict=True):
        print(result.text(form), end="\n\n" if form != "csv" else "\n")
        if form == "text":
            print(f"page: {page}\n")
