"""The commands that bring votes in and take a person's votes out again: `import` and `forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from badpo.cli_errors import EXIT_DATA, EXIT_NOT_MET, reporting_errors
from badpo.cli_options import AnnotatorsMissing, AsJson, ColumnOption, Debug, WinnerOption, named
from badpo.cli_printing import announce, as_lines, print_json, say, tell

_SAID_BY_THE_COUNTS = ("N112", "N119", "N130", "N133")


@reporting_errors
def import_votes(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="An export: CSV, parquet, JSON or JSON lines.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table to write; ends in .parquet.")],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="multipref, label-studio, argilla, prodigy, arena, prism, ultrafeedback or table; "
            "recognised when not given.",
        ),
    ] = None,
    column: ColumnOption = None,
    winner: WinnerOption = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Carry this column along; repeatable.")
    ] = None,
    times: Annotated[
        str, typer.Option(metavar="drop|day", help="Leave out when a vote was cast, or keep its date.")
    ] = "drop",
    annotators_missing: AnnotatorsMissing = "error",
    write_mapping: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write whose pseudonym is whose, for your eyes only."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Convert another program's votes: pseudonyms for ids, personal fields left behind."""
    announce(source, as_json)
    from badpo.data.importing import import_file

    told = import_file(
        source,
        out,
        format=format,
        **named(column, winner),
        keep=keep or (),
        times=times,
        annotators_missing=annotators_missing,
        mapping=write_mapping,
    )
    problems = told.pop("problems")
    if as_json:
        print_json({**told, "problems": [vars(problem) for problem in problems]})
        return
    dropped = {row["reason"]: row["n"] for row in told.pop("dropped")}
    lists = {name: ", ".join(told.pop(name)) or None for name in ("left_behind", "personal")}
    out_written, mapping = told.pop("out"), told.pop("mapping")
    say(as_lines(told | {"dropped": sum(dropped.values())}))
    if dropped:
        say(as_lines(dropped, indent=2))
    say(as_lines(lists))
    for problem in problems:
        if problem.code not in _SAID_BY_THE_COUNTS:
            say(problem)
    say(f"\n{out_written}")
    if mapping:
        say(f"{mapping}: whose pseudonym is whose; keep it apart from the table")


@reporting_errors
def forget(
    annotators: Annotated[
        list[str], typer.Argument(metavar="ANNOTATOR...", help="Pseudonyms, or ids as the source has them.")
    ],
    data: Annotated[
        list[Path] | None, typer.Option("--data", metavar="FILE", help="A table of judgments; repeatable.")
    ] = None,
    audit: Annotated[
        list[Path] | None, typer.Option("--audit", metavar="FOLDER", help="An audit's folder; repeatable.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--runs", metavar="FOLDER", help="A run, or a folder of runs; repeatable."),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What import --write-mapping wrote; they go from it too."),
    ] = None,
    state: Annotated[
        list[Path] | None,
        typer.Option("--state", metavar="FILE", help="A state of `badpo watch`; repeatable."),
    ] = None,
    column: ColumnOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is there.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a person out of tables, audits, runs and states, and say what still names them."""
    from badpo.data import forgetting
    from badpo.data.problems import ConfigError, counted

    if not (data or audit or runs or state or mapping):
        places = "--data FILE, --audit FOLDER, --runs FOLDER, --state FILE or --mapping FILE"
        raise ConfigError(f"say where to look: {places}")
    people = forgetting.find_people(annotators, mapping)
    traces = forgetting.forget(
        people,
        data=data or (),
        audits=audit or (),
        runs=runs or (),
        states=state or (),
        mapping=mapping,
        columns=named(column, None)["columns"],
        dry_run=dry_run,
    )
    rows = [
        {
            "path": trace.path,
            "what": trace.what,
            "erased": trace.goes and not dry_run,
            "remedy": trace.remedy,
        }
        for trace in traces
    ]
    names = sorted(people.pseudonyms)
    verb = "would be taken out" if dry_run else "taken out"
    lines = [f"{counted(len(names), 'annotator')}: {', '.join(names)}"]
    lines += [f"{verb if t.goes else 'still there'}: {t.path}: {t.what}" for t in traces]
    lines += [f"then: {remedy}" for remedy in dict.fromkeys(t.remedy for t in traces if t.remedy)]
    if not traces:
        lines.append(
            "nothing of them is there; another key, or another spelling of the id, gives another pseudonym"
        )
    tell(as_json, {"annotators": names, "traces": rows}, "\n".join(lines))
    if not traces:
        raise typer.Exit(EXIT_DATA)
    if any(not trace.goes for trace in traces):
        raise typer.Exit(EXIT_NOT_MET)
