"""The commands that look at annotators: `audit` once the votes are in, `watch` while they arrive."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from typer import Argument, Option

from badpo.cli.options import (
    EXIT_DATA,
    EXIT_NOT_MET,
    AsJson,
    AttributeFile,
    AttributeOption,
    ColumnOption,
    DataArgument,
    announce,
    as_json_problem,
    as_lines,
    as_told,
    complain,
    named,
    reading_a_table,
    reporting_errors,
    stopping_whole,
    tell,
    terminal_progress,
)
from badpo.data.files import Json, appearing, locked
from badpo.data.privacy import FEWEST_ANNOTATORS

if TYPE_CHECKING:
    from badpo.auditing.result import AuditResult


# what columns and labels stand for
_ABOUT_READING = ("N102", "N103", "N104", "N106", "N107", "W110")
_FAIL_ON = Option(
    [],
    "--fail-on",
    metavar="ATTRIBUTE.FIGURE>BOUND",
    help='Exit with 4 where audit.json says so, such as "length.log_odds>0.7"; repeatable.',
)
_MAPPING = Option(
    None, metavar="FILE", help="For --people: what import --write-mapping wrote, to name them."
)


@reporting_errors
@stopping_whole("stopped; nothing was written; start again with: {again}")
@reading_a_table
def audit(
    data: DataArgument,
    attribute: AttributeOption = None,
    attribute_file: AttributeFile = None,
    out: Path = Option(
        Path("audit"), "--out", "-o", help="Folder for audit.json, the tables and report.html."
    ),
    quality: str | None = Option(
        None,
        metavar="conditional|marginal",
        help="How the unknown quality of a comparison is dealt with; chosen by the data when not given.",
    ),
    anchor: list[str] = Option(
        [], "--anchor", metavar="ANNOTATOR", help="Someone known to lean nowhere; repeatable."
    ),
    anchor_class: str | None = Option(
        None, metavar="CLASS", help="Everyone in this class is known to lean nowhere."
    ),
    model: list[str] = Option(
        [], "--models", metavar="ANNOTATOR", help="A model, to be named; repeatable."
    ),
    time: str | None = Option(None, metavar="COLUMN", help="When each vote was cast, to see drift."),
    rho: float = Option(0.5, help="Deviation worth a flag, in log-odds."),
    fdr: float = Option(0.1, help="Share of the flags that may be false."),
    people: bool = Option(
        False, "--people", help="Also people.html, people.xlsx and reread.csv: personal data."
    ),
    mapping: Path | None = _MAPPING,
    fail_on: list[str] = _FAIL_ON,
    examples: bool = Option(
        False,
        "--examples",
        help="Put a pair of answers that five people judged on report.html, for each attribute.",
    ),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """Which way annotators lean, how sure that is, and what the votes cannot say. One page, no GPU."""
    announce(data, as_json)
    _keep_to_one_thread()
    from badpo.auditing.audit import audit as audit_judgments
    from badpo.auditing.result import audit_folder, audited_table, bound_parts
    from badpo.data.judgments import Judgments

    for bound in fail_on:  # what is wrong with bounds or the folder is told before the audit
        bound_parts(bound)
    audit_folder(out)
    # held from before the table is read: whoever is forgotten meanwhile would stand in the audit
    with locked(out), terminal_progress(as_json) as progress:
        progress("audit: reading", 0.0)
        keep = [time] if time else []
        judgments = Judgments.read(data, attributes=attribute or (), keep=keep, **reading)
        for problem in () if as_json else judgments.findings:
            if problem.code in _ABOUT_READING:
                complain(as_told(problem))
        result = audit_judgments(
            judgments,
            quality=quality,
            anchors=anchor,
            anchor_class=anchor_class,
            models=model,
            time=time,
            rho=rho,
            fdr=fdr,
            progress=progress,
            source=str(data),
        )
        progress("audit: drawing the page", 1.0)
        _tell_what_is_replaced(result, audited_table(out), data, out)
        page = result.write(out, examples)
        about_people = _write_people(result, out, mapping) if people else ""
    written = f"report: {page} (may be passed on; the rest of the folder is yours alone)"
    beyond = result.beyond(fail_on)
    tell(as_json, result.summary, f"{result}\n\n{written}{about_people}")
    if beyond:
        complain("\n".join(f"--fail-on {told}" for told in beyond))
        raise typer.Exit(EXIT_NOT_MET)


def _tell_what_is_replaced(result: AuditResult, before: Json, data: Path, out: Path) -> None:
    """A line if the folder held the audit of another table, or if the votes had a few annotators more or fewer."""
    from badpo.data.forgetting import is_recorded

    now = result.summary["data"]
    if before and before["source"] != now["source"]:
        complain(f"{out} held the audit of {before['source']}, which that of {now['source']} replaces")
    differ = abs(before.get("n_annotators", 0) - now["n_annotators"]) if before else 0
    if 0 < differ < FEWEST_ANNOTATORS or is_recorded(data) or is_recorded(out / "report.html"):
        complain(
            "annotators were added to these votes or removed since an earlier audit: whoever has its report.html and "
            "this one can estimate how they voted; pass on only one of the two"
        )


def _write_people(result: AuditResult, out: Path, mapping: Path | None) -> str:
    """The files about individual annotators, and where they are; with the names of a mapping."""
    from badpo.auditing.result import PEOPLE_FILE, PEOPLE_SHEET, REREAD_FILE
    from badpo.data.forgetting import read_mapping
    from badpo.data.tables import inert, write_csv

    names = read_mapping(mapping) if mapping else {}
    result.people_to_html(out / PEOPLE_FILE, names)
    if find_spec("openpyxl"):
        frame = result.annotators.assign(name=result.annotators["annotator"].map(names))
        frame = frame.map(lambda cell: inert(cell) if isinstance(cell, str) else cell)
        with appearing(out / PEOPLE_SHEET, private=True) as unfinished, unfinished.open("wb") as file:
            frame.to_excel(file, index=False, engine="openpyxl")
    with appearing(out / REREAD_FILE, private=True) as unfinished:
        write_csv(result.reread, unfinished)
    return f"\npeople: {out / PEOPLE_FILE}\nto reread of whom is flagged: {out / REREAD_FILE}"


@reporting_errors
@reading_a_table
def watch(
    data: DataArgument,
    state: Path = Option(..., help="File that keeps what was counted between calls."),
    attribute: AttributeOption = None,
    attribute_file: AttributeFile = None,
    votes_per_comparison: int | None = Option(
        None,
        metavar="N",
        help="A comparison is closed when it has so many judgments; without it all are.",
    ),
    alpha: float = Option(0.05, help="Share of the flags that may be false."),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """The audit while labels still arrive: look as often as you like, and call again with the votes so far."""
    announce(data, as_json)
    _keep_to_one_thread()
    from badpo.auditing.watch import watch as watch_votes

    found = watch_votes(
        data,
        attribute or (),
        state,
        votes_per_comparison=votes_per_comparison,
        alpha=alpha,
        **reading,
    )
    tell(as_json, found.summary, found)


def _keep_to_one_thread() -> None:
    """Before numpy is loaded: on matrices of this size a second thread gains little, and waits on a busy machine."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


_SAID_BY_THE_COUNTS = ("N112", "N119", "N130", "N133")
_LEFT_OUT = {"personal": "personal, left out"}


@reporting_errors
@reading_a_table
def import_votes(
    source: Path = Argument(
        ..., metavar="SRC", help="An export: CSV, Excel, parquet, JSON, JSON lines or a folder."
    ),
    out: Path = Option(..., "--out", "-o", help="The table to write; ends in .parquet."),
    format: str | None = Option(
        None,
        "--format",
        metavar="FORMAT",
        help="A format by its name, such as label-studio; recognised when not given. A wrong name lists them.",
    ),
    keep: list[str] = Option([], metavar="COLUMN", help="Carry this column along; repeatable."),
    annotators: Literal["none"] | None = Option(None, help="none: no column names who cast the votes."),
    write_mapping: Path | None = Option(
        None, metavar="FILE", help="Also write whose pseudonym is whose, for your eyes only."
    ),
    as_json: AsJson = False,
    *,
    reading: dict,
) -> None:
    """Convert another program's votes: pseudonyms for ids, personal fields left behind."""
    announce(source, as_json)
    from badpo.importers.convert import import_file

    if annotators:
        reading["columns"]["annotator"] = None
    told = import_file(
        source,
        out,
        format=format,
        keep=keep,
        mapping=write_mapping,
        **reading,
    )
    problems = told.pop("problems")
    counts = told | {"dropped": {row["reason"]: row["n"] for row in told["dropped"]}}
    counts = {name: value for name, value in counts.items() if value or name == "annotators"}
    lines = [as_lines({_LEFT_OUT.get(name, name): value for name, value in counts.items()})]
    lines += [as_told(problem) for problem in problems if problem.code not in _SAID_BY_THE_COUNTS]
    if write_mapping:
        lines.append(f"{told['mapping']}: whose pseudonym is whose; keep it apart from the table")
    tell(
        as_json,
        told | {"problems": [as_json_problem(each) for each in problems]},
        "\n".join(lines),
    )


@reporting_errors
def forget(
    annotators: list[str] = Argument(
        ..., metavar="ANNOTATOR...", help="Pseudonyms, or ids as the source has them."
    ),
    data: list[Path] = Option([], "--data", metavar="FILE", help="A table of judgments; repeatable."),
    audit: list[Path] = Option([], "--audit", metavar="FOLDER", help="An audit's folder; repeatable."),
    runs: list[Path] = Option(
        [], "--runs", metavar="FOLDER", help="A run, or a folder of runs; repeatable."
    ),
    mapping: Path | None = Option(
        None, metavar="FILE", help="What import --write-mapping wrote; they go from it too."
    ),
    state: list[Path] = Option(
        [], "--state", metavar="FILE", help="A state of `badpo watch`; repeatable."
    ),
    column: ColumnOption = None,
    dry_run: bool = Option(False, "--dry-run", help="Only say what is there."),
    as_json: AsJson = False,
) -> None:
    """Take a person out of tables, audits, runs and states, and say what still names them."""
    from badpo.data import forgetting
    from badpo.data.problems import ConfigError, counted

    places = {"data": data, "audits": audit, "runs": runs, "states": state}
    if not (mapping or any(places.values())):
        where = "--data FILE, --audit FOLDER, --runs FOLDER, --state FILE or --mapping FILE"
        raise ConfigError(f"say where to look: {where}")
    people = forgetting.find_people(annotators, mapping)
    columns = named(column, None)["columns"]
    if column and (columns.keys() != {"annotator"} or not columns["annotator"]):
        raise ConfigError(
            "--column of forget names the column of the annotators: --column annotator=COLUMN"
        )
    whose = columns.get("annotator")
    traces = forgetting.forget(people, **places, mapping=mapping, column=whose, dry_run=dry_run)
    names, verb = sorted(people.pseudonyms), "would be taken out" if dry_run else "taken out"
    told = {f"{verb if t.goes else 'still there'}: {t.path}: {t.what}": t.remedy for t in traces}
    then = dict.fromkeys(f"then: {remedy}" for remedy in told.values() if remedy)
    nobody = (
        "nothing of them is there; another key, or another spelling of the id, gives another pseudonym"
    )
    lines = [
        f"{counted(len(names), 'annotator')}: {', '.join(names)}",
        *(told or [nobody]),
        *then,
    ]
    rows = [
        {"path": t.path, "what": t.what, "erased": t.goes and not dry_run, "remedy": t.remedy}
        for t in traces
    ]
    tell(as_json, {"annotators": names, "traces": rows}, "\n".join(lines))
    if not all(trace.goes for trace in traces) or not traces:
        raise typer.Exit(EXIT_NOT_MET if traces else EXIT_DATA)
