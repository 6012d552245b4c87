"""The commands that look at annotators: `audit` once the votes are in, `watch` while they arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_errors import reporting_errors
from badpo.cli_options import (
    AnnotatorsMissing,
    AsJson,
    AttributeOption,
    ColumnOption,
    DataArgument,
    Debug,
    Repeated,
    WinnerOption,
    declared,
    named,
)
from badpo.cli_printing import announce, tell, terminal_progress
from badpo.data.files import locked


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
    annotators_missing: AnnotatorsMissing = "error",
    repeated: Repeated = "all",
    people: Annotated[
        bool, typer.Option("--people", help="Also write people.html: single annotators, personal data.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Which way annotators lean, how sure that is, and what the votes cannot say. One page, no GPU."""
    announce(data, as_json)
    _keep_to_one_thread()
    from badpo.auditing.audit import audit as audit_judgments
    from badpo.auditing.options import Flag
    from badpo.auditing.result import PEOPLE_FILE

    # held from before the table is read: whoever is forgotten meanwhile would stand in the audit
    with locked(out), terminal_progress(as_json) as progress:
        result = audit_judgments(
            data,
            declared(attribute),
            quality=quality,
            shrink=shrink,
            anchors=anchor or (),
            anchor_class=anchor_class,
            flag=Flag(rho, fdr, flag_rule),
            min_informative=min_informative,
            progress=progress,
            **named(column, winner),
            annotators_missing=annotators_missing,
            repeated=repeated,
        )
        progress("drawing the page", 1.0)
        page = result.write(out)
        if people:
            result.people_to_html(out / PEOPLE_FILE)
    written = f"report: {page} (may be passed on; everything else in the folder is about single people)"
    if people:
        written += f"\npeople: {out / PEOPLE_FILE}"
    tell(as_json, result.summary, f"{result}\n\n{written}")


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
    announce(data, as_json)
    _keep_to_one_thread()
    from badpo.auditing.watch import watch as watch_votes

    found = watch_votes(
        data,
        declared(attribute),
        state,
        closed=closed,
        votes_per_comparison=votes_per_comparison,
        alpha=alpha,
        **named(column, winner),
    )
    tell(as_json, found.summary, found)


def _keep_to_one_thread() -> None:
    """Before numpy is loaded: on matrices of this size a second thread gains little, and waits on a busy machine."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
