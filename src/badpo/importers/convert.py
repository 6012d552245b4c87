"""Detect which program wrote an export, and convert the export into a table with badpo's column names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypedDict, Unpack

import pandas as pd

from badpo.data.cells import Table, as_ids, as_objects
from badpo.data.files import as_json, locked, write_json
from badpo.data.judgments import Judgments, ReadingOptions
from badpo.data.layouts import recognise
from badpo.data.privacy import is_pseudonym, pseudonyms
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean, listed
from badpo.data.tables import Source, read_table
from badpo.data.vocabulary import KNOWN
from badpo.importers import annotation_tools, public_votes
from badpo.importers.export import NO_PREFERENCE, TEXTS, Answer, Export, Importer, personal_fields

TABLE = "table"


# `detect_format` tries these formats in order; if none matches, the table is a plain table.
FORMATS: dict[str, Importer] = {
    "multipref": public_votes.MULTIPREF,
    "label-studio": annotation_tools.LABEL_STUDIO,
    "argilla": annotation_tools.ARGILLA,
    "prodigy": annotation_tools.PRODIGY,
    "arena": public_votes.ARENA,
    "prism": public_votes.PRISM,
}


@dataclass(frozen=True)
class Imported:
    """A converted export: a table of votes, the name of the format, and the columns that are left out."""

    table: Table  # one row per vote, with badpo's column names; ``dropped`` counts the other answers
    format: str
    columns: Mapping[str, str | None]  # column mapping to apply when the table is read
    left_behind: list[str]  # columns that are not imported
    personal: list[str]  # columns that are not imported and that identify a person
    findings: list[Problem]


def import_votes(
    source: Source, format: str | None = None, **reading: Unpack[ReadingOptions]
) -> Imported:
    """Read the votes of any known export.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    format : str or None
        A name in `FORMATS`, or ``table``. None detects the format from the columns.
    **reading
        Options of `Judgments.read`. The readers use only ``columns`` and ``winners`` and, for a plain table, ``layout``
        and ``bad_rows``.

    Raises
    ------
    ConfigError
        If the format has no reader, or if the reader does not use all of the given options.
    DataError
        E145 if the export has a different format, E146 if a field cannot be recognized, E104 if the export contains no
        votes.

    Examples
    --------
    >>> battle = {"conversation_a": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
    ...     "conversation_b": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "No."}],
    ...     "winner": "model_b", "judge": "voter 7"}
    >>> imported = import_votes([battle])
    >>> imported.format, imported.table.frame["winner"].tolist()
    ('arena', ['b'])
    """
    table = read_table(source, reading.get("bad_rows") == "drop")
    export = Export(table, reading.get("columns") or {}, reading.get("winners") or {})
    layout, names = reading.get("layout"), (*FORMATS, TABLE)
    if format not in (None, *names):
        hint = did_you_mean(str(format), names)
        raise ConfigError(f'unknown format "{format}".{hint} Known: {", ".join(names)}')
    name = format or detect_format(export)
    name = TABLE if layout else name
    if name != TABLE:
        votes = _build_table(name, export, _read_answers(FORMATS[name], export))
        unused = [name for name in export.names if name not in export.used]
        personal = personal_fields(table.frame, but=export.used)
        return Imported(votes, name, {}, unused, personal, export.findings)
    try:
        read = recognise(table, export.columns, layout)
    except DataError:
        # `Judgments.read` reports the error and suggests how to read the table
        return Imported(table, TABLE, export.columns, [], [], [])
    # in the wide layout, each annotator has a column, so the name of an unused column may also be an annotator's id
    unused = [str(name) for name in read.frame.columns if name not in KNOWN and layout != "wide"]
    return Imported(table, name, export.columns, unused, personal_fields(read.frame[unused]), [])


def detect_format(export: Export) -> str:
    """Return the name in `FORMATS` of an export's format, or ``table`` if no format is recognized."""
    return next((name for name in FORMATS if FORMATS[name].matches(export)), TABLE)


def _read_answers(importer: Importer, export: Export) -> list[Answer]:
    """Read the answers in an export with the reader for the export's format.

    Raise an error if the export has a different format, or if the reader does not use all of the given options.
    """
    what = f"this export does not have the columns of {importer.description}: {importer.known_by}"
    try:
        answers = list(importer.read(export)) if importer.matches(export) else None
    except (ConfigError, DataError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"the export has the columns of {importer.description}, but their content cannot be read: {error}"
        answers = None
    if answers is None:
        remedy = "export the data again, omit --format, or name the columns of a plain table with --format table"
        raise export.build_error("E145", f"{what}; the columns are: {', '.join(export.names)}", remedy)
    if unused := {*export.columns, *["winners"] * bool(export.winners)} - export.used_options:
        raise ConfigError(
            f"{', '.join(sorted(unused))}: the reader for {importer.description} does not use this option. To name any "
            "column, import the file as a plain table with --format table"
        )
    return answers


def _build_table(name: str, export: Export, answers: Sequence[Answer]) -> Table:
    """Make a table of the votes; its ``dropped`` counts answers that are not votes, by reason and pseudonym."""
    names = [field.name for field in fields(Answer)]
    cells = {name: [getattr(answer, name) for answer in answers] for name in names}
    frame = pd.DataFrame(cells, dtype=object)
    frame.loc[frame[["left_out", "winner"]].isna().all(axis=1), "left_out"] = NO_PREFERENCE
    is_vote = frame["left_out"].isna()
    others = frame.loc[~is_vote, ["left_out", "annotator"]].set_axis(["reason", "annotator"], axis=1)
    if not is_vote.any():
        counts = others["reason"].value_counts(sort=False)
        reasons = ", ".join(f"{why}: {n:,}" for why, n in counts.items())
        what = f"no vote to import ({reasons or 'the export has no answers'})"
        raise export.build_error("E104", what, "export it again")
    # if an answer has no vote and its annotator is neither a string nor a number, count the annotator as "unknown"
    usable = others["annotator"].map(lambda who: who if isinstance(who, str | int | float) else None)
    number, known = pd.factorize(as_ids(usable))
    others["annotator"] = as_objects([*pseudonyms(list(known)), "unknown"])[number]
    counted = others.value_counts(sort=False).reset_index(name="n")
    votes = frame[is_vote].drop(columns="left_out").reset_index(drop=True)
    votes = votes.loc[:, votes.notna().any() | votes.columns.isin(TEXTS)]
    title = f"{export.table.name} ({name}, one row for each vote)"
    return Table(votes, title, dropped=tuple(counted.to_dict("records")))


class ImportSummary(TypedDict):
    """Result of `import_file`.

    ``left_behind`` and ``personal`` are fields that are not in the table. ``problems`` contains warnings and notices.
    """

    format: str
    out: str
    judgments: int
    comparisons: int
    prompts: int
    annotators: int
    dropped: list[dict[str, str | int]]
    left_behind: list[str]
    personal: list[str]
    mapping: str | None
    problems: list[Problem]


def import_file(
    source: Source,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    mapping: str | os.PathLike[str] | None = None,
    **reading: Unpack[ReadingOptions],
) -> ImportSummary:
    """Convert an export to a table that `Judgments.read` can read, and write the table.

    badpo replaces annotator ids in the written table with pseudonyms, which are computed with this machine's pseudonym
    key. The table also contains texts, votes, annotator classes, comparison and prompt ids, model names, numbers that
    describe both responses, and the columns in ``keep``. All other columns of the export are left out. If ``keep``
    names a column with personal data, the function raises an error.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    out : path
        File name that ends in ``.parquet``. The file appears only when it is complete.
    format
        See `badpo.importers.convert.import_votes`.
    mapping : path or None
        File for the mapping from pseudonyms to annotator ids, readable only by this user. Anyone who has this file
        can identify the annotators. If ``mapping`` is None, no such file is written.
    **reading
        Options of `Judgments.read`. If the export names no annotators, set ``columns`` to ``{"annotator": None}``.
    """
    if not str(out).endswith(".parquet"):
        raise ConfigError(f"{out}: the file name must end in .parquet")
    if mapping is not None and Path(mapping).suffix != ".json":
        raise ConfigError(
            f"{mapping}: the mapping is a JSON file; use the file name {Path(mapping).with_suffix('.json')}"
        )
    imported = import_votes(source, format, **reading)
    judgments = _read_judgments(imported, mapping, reading)
    if mapping is None:
        judgments.to_parquet(out)
    else:
        ids = _build_mapping(imported, reading.get("layout"))
        _write_with_mapping(judgments, out, Path(mapping), ids)
    dropped, written = judgments.dropped, list(judgments.votes)
    by_reason = dropped.groupby("reason", sort=False)["n"].sum()
    return {
        "format": imported.format,
        "out": str(out),
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "annotators": judgments.n_annotators if judgments.has_identities else 0,
        "dropped": [{"reason": str(reason), "n": int(n)} for reason, n in by_reason.items()],
        "left_behind": [name for name in imported.left_behind if name not in written],
        "personal": [name for name in imported.personal if name not in written],
        "mapping": None if mapping is None else str(mapping),
        "problems": [*imported.findings, *judgments.findings],
    }


def _write_with_mapping(
    judgments: Judgments, out: str | os.PathLike[str], mapping: Path, ids: dict[str, str]
) -> None:
    """Write the votes and then the mapping; raise an error if the mapping file exists with different content."""
    with locked(mapping, wait=True):
        if mapping.exists() and mapping.read_bytes() != as_json(ids):
            raise ConfigError(
                f"{mapping} exists with other content, and badpo does not overwrite a mapping; choose another file name"
            )
        judgments.to_parquet(out)
        write_json(mapping, ids, private=True)


def _read_judgments(
    imported: Imported, mapping: str | os.PathLike[str] | None, reading: ReadingOptions
) -> Judgments:
    """Read the judgments of an import; raise E110 if the annotators are missing and the user has not confirmed this."""
    frame, keep = imported.table.frame, list(dict.fromkeys(reading.get("keep", ())))
    if personal := personal_fields(frame[[name for name in keep if name in frame]]):
        raise ConfigError(
            f"keep: {', '.join(personal)} may identify a person, so badpo does not copy it; rename the "
            "column if it contains no personal data"
        )
    options: ReadingOptions = {**reading, "columns": imported.columns, "keep": keep}
    if imported.format != TABLE:
        # the reader of a known format has already applied ``winners``, so do not apply it again
        options |= {"winners": None, "layout": None}
    judgments = Judgments.read(imported.table, **options)
    is_intended = imported.columns.get("annotator", "") is None or imported.format != TABLE
    if not judgments.has_identities and not is_intended:
        reasons = [problem for problem in judgments.findings if problem.code in ("W110", "N110")]
        fix = reasons[0].fix or {"columns": {"annotator": None}}
        what = "no column names the annotators, so all votes would count as the votes of one annotator"
        remedy = "name the column of annotators, or state that the table has no annotators"
        error = DataError([Problem("E110", what, imported.table.name, remedy, fix=fix)])
        error.fix = fix
        raise error
    if mapping is not None and not judgments.has_identities:
        raise ConfigError(
            "the table has no annotators, so the mapping from pseudonyms to ids would be empty; leave out the mapping"
        )
    naming = [name for name in keep if _names_annotators(judgments, name)]
    if not naming:
        return judgments
    what = f"{listed(naming)}: each annotator has a different value, so the kept column identifies the annotators"
    remedy = "do not keep the column if its values identify people"
    problem = Problem("W303", what, imported.table.name, remedy)
    return replace(judgments, findings=(*judgments.findings, problem))


def _names_annotators(judgments: Judgments, name: str) -> bool:
    """Return whether the values of a kept column correspond one-to-one to the annotators."""
    votes = judgments.votes
    if name not in votes or votes["annotator"].nunique() in (1, len(votes)):
        return False
    pairs = votes[["annotator", name]].astype({name: str}).drop_duplicates()
    are_pseudonyms = pairs[name].map(is_pseudonym).all()
    return bool(pairs["annotator"].is_unique and pairs[name].is_unique and not are_pseudonyms)


def _build_mapping(imported: Imported, layout: str | None) -> dict[str, str]:
    """Return the annotator id of each pseudonym."""
    table = imported.table
    if imported.format == TABLE:
        table = recognise(table, imported.columns, layout)
    ids = [raw for raw in dict.fromkeys(as_ids(table.frame["annotator"])) if raw is not None]
    return dict(zip(pseudonyms(ids), ids, strict=True))
