"""The commands that look at annotators: `audit` once the votes are in, `watch` while they arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_errors import reporting_errors
from badpo.cli_options import AsJson, AttributeOption, ColumnOption, Debug, WinnerOption
from badpo.cli_parsing import parsed_attribute, parsed_pairs
from badpo.cli_printing import print_json, say, terminal_progress
from badpo.data.files import locked

DataArgument = Annotated[Path, typer.Argument(help="Judgments: CSV, parquet, JSON or JSON lines.")]


@reporting_errors
def audit(
    data: DataArgument,
    attribute: AttributeOption = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for audit.json, the tables and report.html.")
    ] = Path("audit"),
    quality: Annotated[
        str | None,
        typer.Option(
            metavar="conditional|random|fixed:COLUMN|joint",
            help="How the unknown quality of a comparison is dealt with; chosen by the data when not given.",
        ),
    ] = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option("--anchor", metavar="ANNOTATOR", help="Someone known to lean nowhere; repeatable."),
    ] = None,
    anchor_class: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Everyone in this class is known to lean nowhere.")
    ] = None,
    shrink: Annotated[
        str, typer.Option(metavar="normal|npmle|none", help="Spread of the leans that estimates shrink to.")
    ] = "normal",
    rho: Annotated[float, typer.Option(help="Deviation worth a flag, in log-odds.")] = 0.5,
    fdr: Annotated[float, typer.Option(help="Share of the flags that may be false.")] = 0.1,
    flag_rule: Annotated[
        str, typer.Option(metavar="posterior|bh", help="What a flag rests on.")
    ] = "posterior",
    min_informative: Annotated[
        int,
        typer.Option(help="Informative votes below which an annotator's estimate counts as insufficient."),
    ] = 10,
    column: ColumnOption = None,
    winner: WinnerOption = None,
    annotators_missing: Annotated[
        str, typer.Option(help="What to do with votes without an annotator: error or drop.")
    ] = "error",
    repeated: Annotated[
        str, typer.Option(help="What to do with an annotator's repeated votes: all or last.")
    ] = "all",
    people: Annotated[
        bool, typer.Option("--people", help="Also write people.html: single annotators, personal data.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Which way annotators lean, how sure that is, and what the votes cannot say. One page, no GPU."""
    if not as_json:
        say(f"reading {data}")
    _keep_to_one_thread()
    from badpo.auditing.audit import audit as audit_judgments
    from badpo.auditing.options import Flag
    from badpo.auditing.result import PEOPLE_FILE
    from badpo.data.attributes import attribute_from_config

    # held from before the table is read: whoever is forgotten meanwhile would stand in the audit
    with locked(out), terminal_progress(as_json) as progress:
        result = audit_judgments(
            data,
            [attribute_from_config(parsed_attribute(text)) for text in attribute or []],
            quality=quality,
            shrink=shrink,
            anchors=anchor or (),
            anchor_class=anchor_class,
            flag=Flag(rho, fdr, flag_rule),
            min_informative=min_informative,
            progress=progress,
            columns=parsed_pairs(column, "--column"),
            winners=parsed_pairs(winner, "--winner"),
            annotators_missing=annotators_missing,
            repeated=repeated,
        )
        progress("drawing the page", 1.0)
        page = result.write(out)
        if people:
            result.people_to_html(out / PEOPLE_FILE)
    if as_json:
        print_json(result.summary)
        return
    say(result)
    say(f"\nreport: {page} (may be passed on; everything else in the folder is about single people)")
    if people:
        say(f"people: {out / PEOPLE_FILE}")


@reporting_errors
def watch(
    data: DataArgument,
    state: Annotated[Path, typer.Option(help="File that keeps what was counted between calls.")],
    attribute: AttributeOption = None,
    closed: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column that says whether a comparison is closed.")
    ] = None,
    votes_per_comparison: Annotated[
        int | None, typer.Option(metavar="N", help="A comparison is closed when it has so many judgments.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Share of the flags that may be false.")] = 0.05,
    column: ColumnOption = None,
    winner: WinnerOption = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """The audit while labels still arrive: look as often as you like, and call again with the votes so far."""
    if not as_json:
        say(f"reading {data}")
    _keep_to_one_thread()
    from badpo.auditing.watch import watch as watch_votes
    from badpo.data.attributes import attribute_from_config

    found = watch_votes(
        data,
        [attribute_from_config(parsed_attribute(text)) for text in attribute or []],
        state,
        closed=closed,
        votes_per_comparison=votes_per_comparison,
        alpha=alpha,
        columns=parsed_pairs(column, "--column"),
        winners=parsed_pairs(winner, "--winner"),
    )
    if as_json:
        print_json(found.summary)
        return
    say(found)


def _keep_to_one_thread() -> None:
    """Before numpy is loaded: on matrices of this size a second thread gains little, and waits on a busy machine."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
