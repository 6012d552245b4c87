"""Which program wrote a table of votes, and its votes under our column names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from badpo.data.cells import KNOWN, Table, as_ids, as_objects
from badpo.data.files import Json, as_json, locked, write_json
from badpo.data.judgments import Judgments
from badpo.data.layouts import recognise
from badpo.data.privacy import is_pseudonym, pseudonyms
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean, listed
from badpo.data.tables import read_table, write_table
from badpo.importers import arena, argilla, label_studio, multipref, prism, prodigy, ultrafeedback
from badpo.importers.export import NO_PREFERENCE, TEXTS, Export, Importer, personal_fields

TABLE = "table"
PAIRS = "ultrafeedback"


# Tried in this order; a plain table is what is left.
FORMATS: dict[str, Importer] = {
    "multipref": multipref.IMPORTER,
    "label-studio": label_studio.IMPORTER,
    "argilla": argilla.IMPORTER,
    "prodigy": prodigy.IMPORTER,
    "arena": arena.IMPORTER,
    "prism": prism.IMPORTER,
    PAIRS: ultrafeedback.IMPORTER,
}


@dataclass(frozen=True)
class Imported:
    """A table that `badpo.data.reading` takes, and what came with it."""

    table: Table  # one row for each vote under our names; ``dropped`` counts what was none
    format: str
    columns: Mapping[str, str | None]  # what is still to be mapped when the table is read
    left_behind: list[str]
    personal: list[str]  # columns left behind that tell who somebody is
    findings: list[Problem]


def import_votes(
    source: Any,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    winners: Mapping[str, str] | None = None,
    layout: str | None = None,
    bad_rows: str = "error",
) -> Imported:
    """Read the votes of any known export.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    format : str or None
        A name in `FORMATS`, or ``table``; None recognises it by the columns.
    columns : mapping or None
        Our column -> the source's column or field.
    winners : mapping or None
        The source's labels -> a, b or tie.
    layout, bad_rows
        Of a plain table, as in `Judgments.read`.

    Raises
    ------
    ConfigError
        A format that is not there.
    DataError
        E145 when the format is not known, E146 when a field cannot be told, E104 when there is no vote.

    Examples
    --------
    >>> battle = {"conversation_a": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
    ...     "conversation_b": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "No."}],
    ...     "winner": "model_b", "judge": "voter 7"}
    >>> imported = import_votes([battle])
    >>> imported.format, imported.table.frame["winner"].tolist()
    ('arena', ['b'])
    """
    export = Export(read_table(source, bad_rows == "drop"), columns or {}, winners or {})
    table, names = export.table, (*FORMATS, TABLE)
    if format not in (None, *names):
        hint = did_you_mean(str(format), names)
        raise ConfigError(f'unknown format "{format}".{hint} Known: {", ".join(names)}')
    name = format or format_of(export)
    name = TABLE if layout else name
    if name != TABLE:
        votes = _votes(name, export, _answers(FORMATS[name], export))
        unused = [name for name in export.names if name not in export.used]
        personal = personal_fields(table.frame, but=export.used)
        return Imported(votes, name, {}, unused, personal, export.findings)
    try:
        read = recognise(table, export.columns, layout)
    except DataError as error:
        if export.columns or format or any(problem.fix for problem in error.problems):
            # `Judgments.read` says what is wrong, and how the table can be read
            return Imported(table, TABLE, export.columns, [], [], [])
        looked_for = "; ".join(f"{name} ({importer.known_by})" for name, importer in FORMATS.items())
        remedy = "name the columns with --column, or the format with --format"
        refusal = export.refusal("E145", f"the format is not known; looked for {looked_for}", remedy)
        raise DataError([*refusal.problems, *error.problems]) from None
    unused = [str(name) for name in read.frame.columns if name not in KNOWN]
    return Imported(table, name, export.columns, unused, personal_fields(read.frame[unused]), [])


def format_of(export: Export) -> str:
    """The name in `FORMATS` of the program that wrote a table; ``table`` where none is known."""
    return next((name for name in FORMATS if FORMATS[name].fits(export)), TABLE)


def _answers(importer: Importer, export: Export) -> list[Json]:
    """What a reader yields; what does not fit it, or what the user says and it has no use for, is an error."""
    what = f"this is no table of {importer.what}, which is known by {importer.known_by}"
    try:
        answers = list(importer.read(export)) if importer.fits(export) else None
    except (ConfigError, DataError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has the columns of {importer.what}, but something else in them: {error}"
        answers = None
    if answers is None:
        remedy = "export it again, leave --format out, or name the columns of a plain table with --format table"
        raise export.refusal("E145", f"{what}; found: {', '.join(export.names)}", remedy)
    if unused := {*export.columns, *["winners"] * bool(export.winners)} - export.asked:
        raise ConfigError(
            f"{', '.join(sorted(unused))}: {importer.what} have no use for it. Import a plain table, with format "
            "table, to name any column"
        )
    return answers


def _votes(name: str, export: Export, answers: Sequence[Json]) -> Table:
    """The votes among the answers as a table, with the others counted by reason and pseudonym."""
    given = (name for answer in answers for name in answer)
    names = dict.fromkeys([*given, "left_out", "annotator"])
    cells = {name: [answer.get(name) for answer in answers] for name in names}
    frame = pd.DataFrame(cells, dtype=object)
    if "winner" in frame:
        frame.loc[frame[["left_out", "winner"]].isna().all(axis=1), "left_out"] = NO_PREFERENCE
    is_vote = frame["left_out"].isna()
    others = frame.loc[~is_vote, ["left_out", "annotator"]].set_axis(["reason", "annotator"], axis=1)
    if not is_vote.any():
        counts = others["reason"].value_counts(sort=False)
        reasons = ", ".join(f"{why}: {n:,}" for why, n in counts.items())
        what = f"no vote to import ({reasons or 'no answers in it'})"
        raise export.refusal("E104", what, "export it again")
    # an id that is none is told where it stands beside a vote
    told = others["annotator"].map(lambda who: who if isinstance(who, str | int | float) else None)
    number, known = pd.factorize(as_ids(told))
    others["annotator"] = as_objects([*pseudonyms(list(known)), "unknown"])[number]
    counted = others.value_counts(sort=False).reset_index(name="n")
    votes = frame[is_vote].drop(columns="left_out").reset_index(drop=True)
    votes = votes.loc[:, votes.notna().any() | votes.columns.isin(TEXTS)]
    title = f"{export.table.name} ({name}, one row for each vote)"
    return Table(votes, title, dropped=tuple(counted.to_dict("records")))


def import_file(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    winners: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    mapping: str | os.PathLike[str] | None = None,
    **reading: Any,
) -> Json:
    """Convert an export and write it as a table that `Judgments.read` takes.

    Annotators become pseudonyms under this machine's key. Of everything else only texts, votes, classes, ids of
    comparisons and prompts, names of models, numbers that name both sides and ``keep`` come along.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    out : path
        A file that ends in ``.parquet``; it appears whole or not at all.
    format, columns, winners
        See `badpo.importers.convert.import_votes`.
    keep : sequence of str
        Further columns to carry along; personal ones are refused.
    mapping : path or None
        Where to write which pseudonym is whose, readable by this user only. It undoes the pseudonyms without a key:
        None, the default, writes no such file.
    **reading
        Further options of `Judgments.read`. A table without annotators is written where ``columns`` says
        ``{"annotator": None}``.

    Returns
    -------
    dict
        ``format``, ``out``, ``makes`` ("judgments" or "scored pairs"), counts, ``dropped`` by reason,
        ``left_behind`` and ``personal`` fields, ``problems`` (what the reader noticed), ``mapping``.
    """
    if not str(out).endswith(".parquet"):
        raise ConfigError(f"{out}: the file's name must end in .parquet")
    if mapping is not None and Path(mapping).suffix != ".json":
        raise ConfigError(f"{mapping}: a mapping is JSON; name it {Path(mapping).with_suffix('.json')}")
    plain = {name: reading[name] for name in ("layout", "bad_rows") if name in reading}
    imported = import_votes(source, format, columns, winners, **plain)
    frame, problems = imported.table.frame, imported.findings
    if imported.format == PAIRS:
        scores = {name: pd.to_numeric(frame[name], errors="coerce") for name in frame if "score" in name}
        write_table(pa.Table.from_pandas(frame.assign(**scores), preserve_index=False), out)
        dropped = pd.DataFrame(list(imported.table.dropped), columns=["reason", "annotator", "n"])
        n_prompts = int(frame["prompt"].nunique())
        counts = {"makes": "scored pairs", "pairs": len(frame), "prompts": n_prompts}
        written = list(frame)
    else:
        judgments = _judgments(imported, winners, keep, mapping, reading)
        if mapping is None:
            judgments.to_parquet(out)
        else:
            whose = _mapping_of(imported, reading.get("layout"))
            _write_with_mapping(judgments, out, Path(mapping), whose)
        problems, dropped = [*problems, *judgments.findings], judgments.dropped
        counts = {
            "makes": "judgments",
            "judgments": judgments.n_votes,
            "comparisons": judgments.n_comparisons,
            "prompts": int(judgments.comparisons["prompt_id"].nunique()),
            "annotators": judgments.n_annotators if judgments.has_identities else 0,
        }
        written = list(judgments.votes)
    by_reason = dropped.groupby("reason", sort=False)["n"].sum()
    return {
        "format": imported.format,
        "out": str(out),
        **counts,
        "dropped": [{"reason": str(reason), "n": int(n)} for reason, n in by_reason.items()],
        "left_behind": [name for name in imported.left_behind if name not in written],
        "personal": [name for name in imported.personal if name not in written],
        "problems": problems,
        "mapping": None if mapping is None else str(mapping),
    }


def _write_with_mapping(
    judgments: Judgments, out: str | os.PathLike[str], mapping: Path, whose: Json
) -> None:
    """Write the votes and then the mapping; an error if the mapping exists with another content."""
    with locked(mapping, wait=True):
        if mapping.exists() and mapping.read_bytes() != as_json(whose):
            told = f"{mapping} is there already and differs; a mapping is never written over"
            raise ConfigError(f"{told}, choose another name")
        judgments.to_parquet(out)
        write_json(mapping, whose, private=True)


def _judgments(
    imported: Imported,
    winners: Mapping[str, str] | None,
    keep: Sequence[str],
    mapping: Any,
    reading: Json,
) -> Judgments:
    frame, keep = imported.table.frame, list(dict.fromkeys(keep))
    if personal := personal_fields(frame[[name for name in keep if name in frame]]):
        raise ConfigError(
            f"keep: {', '.join(personal)} may tell who somebody is and stays behind; rename the column first if it "
            "does not"
        )
    # a reader of a format has told the sides by them already
    if imported.format != TABLE:
        winners, reading = None, {**reading, "layout": None}
    judgments = Judgments.read(
        imported.table, columns=imported.columns, winners=winners, keep=keep, **reading
    )
    is_meant = imported.columns.get("annotator", "") is None or imported.format != TABLE
    if not judgments.has_identities and not is_meant:
        found = [problem for problem in judgments.findings if problem.code in ("W110", "N110")]
        fix = found[0].fix or {"columns": {"annotator": None}}
        what = "no column says who voted, so that all votes would count as one annotator's"
        remedy = "name the column, or say that there is none"
        error = DataError([Problem("E110", what, imported.table.name, remedy, fix=fix)])
        error.fix = fix
        raise error
    if mapping is not None and not judgments.has_identities:
        raise ConfigError(
            "there is no annotator column, so there is nobody to map; leave the mapping out"
        )
    naming = [name for name in keep if _names_annotators(judgments, name)]
    if not naming:
        return judgments
    what = f"{listed(naming)}: one value for each annotator, which names them as an id does and is kept as it is"
    remedy = "leave out --keep unless the column is not about a person"
    problem = Problem("W303", what, imported.table.name, remedy)
    return replace(judgments, findings=(*judgments.findings, problem))


def _names_annotators(judgments: Judgments, name: str) -> bool:
    """Whether a kept column has another value for each annotator, who has cast several votes."""
    votes = judgments.votes
    if name not in votes or votes["annotator"].nunique() in (1, len(votes)):
        return False
    pairs = votes[["annotator", name]].astype({name: str}).drop_duplicates()
    are_pseudonyms = pairs[name].map(is_pseudonym).all()
    return bool(pairs["annotator"].is_unique and pairs[name].is_unique and not are_pseudonyms)


def _mapping_of(imported: Imported, layout: str | None) -> dict[str, str]:
    """The id of each pseudonym."""
    table = imported.table
    if imported.format == TABLE:
        table = recognise(table, imported.columns, layout)
    ids = [raw for raw in dict.fromkeys(as_ids(table.frame["annotator"])) if raw is not None]
    return dict(zip(pseudonyms(ids), ids, strict=True))
