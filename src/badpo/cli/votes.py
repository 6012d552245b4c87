"""Commands for tables of votes: `audit`, `import`, `forget`, and `watch` for votes that still arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Option

from badpo.cli import options
from badpo.data.files import appearing, locked
from badpo.data.privacy import FEWEST_ANNOTATORS

if TYPE_CHECKING:
    from badpo.auditing.result import AuditResult
    from badpo.data.judgments import ReadingOptions


# `badpo audit` prints the findings with these codes, which are about columns and labels
_ABOUT_READING = ("N102", "N103", "N104", "N106", "N107", "W110")
_FAIL_ON = Option(
    [],
    "--fail-on",
    metavar="ATTRIBUTE.FIGURE>BOUND",
    help='Exit with code 4 if a figure of audit.json exceeds a bound, such as "length.log_odds>0.7"; repeatable.',
)
_MAPPING = Option(
    None,
    metavar="FILE",
    help="With --people: add the annotators' names from this file, which badpo import --write-mapping wrote.",
)
_RHO = Option(
    0.5,
    help="Smallest relevant deviation from the pool mean, in log-odds; larger deviations are flagged.",
)


@options.report_errors
@options.handle_interrupt("stopped before the audit was complete; start again with: {again}")
def audit(
    data: options.DataArgument,
    attribute: options.AttributeOption = None,
    attribute_file: options.AttributeFile = None,
    out: Path = Option(
        Path("audit"), "--out", "-o", help="Folder for audit.json, the tables and report.html."
    ),
    quality: str | None = Option(
        None,
        metavar="conditional|marginal",
        help="Model of the unknown quality of each comparison; by default, badpo chooses it based on the data.",
    ),
    anchor: list[str] = Option(
        [],
        "--anchor",
        metavar="ANNOTATOR",
        help="An annotator who is known to have no bias; repeatable.",
    ),
    anchor_class: str | None = Option(
        None, metavar="CLASS", help="A class of annotators who are known to have no bias."
    ),
    model: list[str] = Option(
        [],
        "--models",
        metavar="ANNOTATOR",
        help="An annotator that is a language model; the page may show its name. Repeatable.",
    ),
    rho: float = _RHO,
    fdr: float = Option(0.1, help="Accepted share of false flags (false discovery rate)."),
    people: bool = Option(
        False,
        "--people",
        help="Also write people.html, people.csv and reread.csv, which contain personal data.",
    ),
    mapping: Path | None = _MAPPING,
    fail_on: list[str] = _FAIL_ON,
    as_json: options.AsJson = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Estimate the biases of annotators with confidence intervals, and report what the votes cannot identify."""
    options.announce(data, as_json)
    _use_one_thread()
    from badpo.auditing.audit import audit as audit_judgments
    from badpo.auditing.result import audit_folder, split_bound
    from badpo.data.judgments import Judgments

    for bound in fail_on:  # report wrong bounds and folders before the audit
        split_bound(bound)
    audit_folder(out)
    # lock the folder before reading the table, so that `badpo forget` cannot run before the audit is written
    with locked(out), options.terminal_progress(as_json) as progress:
        progress("audit: reading", 0.0)
        judgments = Judgments.read(data, attributes=attribute or (), **reading)
        for problem in () if as_json else judgments.findings:
            if problem.code in _ABOUT_READING:
                options.complain(options.format_problem(problem))
        result = audit_judgments(
            judgments,
            quality=quality,
            anchors=anchor,
            anchor_class=anchor_class,
            models=model,
            rho=rho,
            fdr=fdr,
            progress=progress,
            source=str(data),
        )
        progress("audit: drawing the page", 1.0)
        _warn_about_replaced_audit(result, data, out)
        page = result.write(out)
        about_people = _write_people(result, out, mapping) if people else ""
    written = f"report: {page} (you may share this page; keep the other files of the folder private)"
    exceeded = result.beyond(fail_on)
    options.print_result(as_json, result.summary, f"{result}\n\n{written}{about_people}")
    if exceeded:
        options.complain("\n".join(f"--fail-on {bound}" for bound in exceeded))
        raise typer.Exit(options.EXIT_NOT_MET)


def _warn_about_replaced_audit(result: AuditResult, data: Path, out: Path) -> None:
    """Warn if the folder contains an audit of another table, or if few annotators were added or removed since then."""
    from badpo.auditing.result import read_audited_table
    from badpo.data.forgetting import is_recorded

    before, data_now = read_audited_table(out), result.summary["data"]
    if before and before["source"] != data_now["source"]:
        options.complain(
            f"the audit of {data_now['source']} replaces the audit of {before['source']} in {out}"
        )
    differ = abs(before.get("n_annotators", 0) - data_now["n_annotators"]) if before else 0
    if 0 < differ < FEWEST_ANNOTATORS or is_recorded(data) or is_recorded(out / "report.html"):
        options.complain(
            "annotators were added to these votes or removed since an earlier audit: a reader of both report.html "
            "files can estimate the votes of these annotators; share only one of the two pages"
        )


def _write_people(result: AuditResult, out: Path, mapping: Path | None) -> str:
    """Write the files about individual annotators, with names from a mapping file; return text that lists the files."""
    from badpo.auditing.result import PEOPLE_FILE, PEOPLE_TABLE, REREAD_FILE
    from badpo.data.forgetting import read_mapping
    from badpo.data.tables import write_csv

    names = read_mapping(mapping) if mapping else {}
    result.people_to_html(out / PEOPLE_FILE, names)
    with_names = result.annotators.assign(name=result.annotators["annotator"].map(names))
    for file, frame in ((PEOPLE_TABLE, with_names), (REREAD_FILE, result.reread)):
        with appearing(out / file, private=True) as unfinished:
            write_csv(frame, unfinished)
    return f"\npeople: {out / PEOPLE_FILE}\ncomparisons of flagged annotators to reread: {out / REREAD_FILE}"


@options.report_errors
def watch(
    data: options.DataArgument,
    state: Path = Option(..., help="File that keeps the counts between calls."),
    attribute: options.AttributeOption = None,
    attribute_file: options.AttributeFile = None,
    votes_per_comparison: int | None = Option(
        None,
        metavar="N",
        help="Number of votes that make a comparison complete; by default, all comparisons count as complete.",
    ),
    alpha: float = Option(0.05, help="Accepted share of false flags (false discovery rate)."),
    as_json: options.AsJson = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Audit votes while more votes arrive. Run badpo watch on all votes so far, as often as you like."""
    options.announce(data, as_json)
    _use_one_thread()
    from badpo.auditing.watch import watch as watch_votes

    result = watch_votes(
        data,
        attribute or (),
        state,
        votes_per_comparison=votes_per_comparison,
        alpha=alpha,
        **reading,
    )
    options.print_result(as_json, result.summary, str(result))


def _use_one_thread() -> None:
    """Limit numpy to one thread before loading it. More threads do not speed up computations with small matrices."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


_COUNTED_CODES = ("N112", "N119", "N130", "N133")


@options.report_errors
def import_votes(
    source: Path = Argument(
        ...,
        metavar="SRC",
        help="An export, as a CSV, Excel, parquet, JSON or JSON lines file, or as a folder.",
    ),
    out: Path = Option(..., "--out", "-o", help="The table to write; ends in .parquet."),
    format: str | None = Option(
        None,
        "--format",
        metavar="FORMAT",
        help="Format of the export, such as label-studio; by default, badpo detects it. A wrong name lists all names.",
    ),
    keep: list[str] = Option(
        [], metavar="COLUMN", help="Copy this column to the new table; repeatable."
    ),
    write_mapping: Path | None = Option(
        None, metavar="FILE", help="Also write a private file with the id behind each pseudonym."
    ),
    as_json: options.AsJson = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Convert another program's votes: pseudonyms replace ids, and personal fields are left out."""
    options.announce(source, as_json)
    from badpo.importers.convert import import_file

    reading["keep"] = keep
    result = import_file(source, out, format=format, mapping=write_mapping, **reading)
    if as_json:
        problems = [options.convert_problem(problem) for problem in result["problems"]]
        return options.print_json({**result, "problems": problems})
    dropped = {row["reason"]: row["n"] for row in result["dropped"]}
    names = {"personal": "personal, left out"}
    shown = {
        names.get(name, name): value
        for name, value in {**result, "dropped": dropped}.items()
        if name != "problems" and (value or name == "annotators")
    }
    options.say(options.format_lines(shown))
    for problem in result["problems"]:
        if problem.code not in _COUNTED_CODES:
            options.say(options.format_problem(problem))
    if write_mapping:
        options.say(
            f"{write_mapping} contains the id behind each pseudonym; keep this file apart from the table"
        )


@options.report_errors
def forget(
    annotators: list[str] = Argument(
        ..., metavar="ANNOTATOR...", help="Pseudonyms, or ids as in the source."
    ),
    data: list[Path] = Option([], "--data", metavar="FILE", help="A table of judgments; repeatable."),
    audit: list[Path] = Option([], "--audit", metavar="FOLDER", help="An audit's folder; repeatable."),
    runs: list[Path] = Option(
        [],
        "--runs",
        metavar="FOLDER",
        help="A run folder, or a folder that contains run folders; repeatable.",
    ),
    mapping: Path | None = Option(
        None,
        metavar="FILE",
        help="File from badpo import --write-mapping; the annotators are also removed from this file.",
    ),
    state: list[Path] = Option(
        [], "--state", metavar="FILE", help="A state of `badpo watch`; repeatable."
    ),
    column: options.ColumnOption = None,
    dry_run: bool = Option(False, "--dry-run", help="Only report what would be removed."),
    as_json: options.AsJson = False,
) -> None:
    """Remove annotators from tables, audits, runs and states, and report where their votes remain."""
    from badpo.data import forgetting
    from badpo.data.problems import ConfigError, counted

    places = {"data": data, "audits": audit, "runs": runs, "states": state}
    if not (mapping or any(places.values())):
        where = "--data FILE, --audit FOLDER, --runs FOLDER, --state FILE or --mapping FILE"
        raise ConfigError(f"name the places to search: {where}")
    people = forgetting.find_people(annotators, mapping)
    columns = options.convert_columns(column)
    if column and (columns.keys() != {"annotator"} or not columns["annotator"]):
        raise ConfigError(
            "--column of forget names the column of the annotators: --column annotator=COLUMN"
        )
    id_column = columns.get("annotator") or "annotator"
    traces = forgetting.forget(people, **places, mapping=mapping, column=id_column, dry_run=dry_run)
    names, verb = sorted(people.pseudonyms), "would be removed" if dry_run else "removed"
    messages = {f"{verb if t.goes else 'still there'}: {t.path}: {t.what}": t.remedy for t in traces}
    then = dict.fromkeys(f"then: {remedy}" for remedy in messages.values() if remedy)
    is_found = any(trace.is_sure for trace in traces)
    nobody = [
        "badpo found none of these annotators; a different key or spelling of the id gives a different pseudonym"
    ] * (not is_found)
    lines = [f"{counted(len(names), 'annotator')}: {', '.join(names)}", *nobody, *messages, *then]
    rows = [
        {"path": t.path, "what": t.what, "erased": t.goes and not dry_run, "remedy": t.remedy}
        for t in traces
    ]
    options.print_result(as_json, {"annotators": names, "traces": rows}, "\n".join(lines))
    if not all(trace.goes for trace in traces) or not is_found:
        raise typer.Exit(options.EXIT_NOT_MET if is_found else options.EXIT_DATA)
