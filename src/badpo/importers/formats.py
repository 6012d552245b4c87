"""Which program wrote a table of votes, and its votes under our column names."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from badpo.data.files import appearing
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean
from badpo.data.tables import KNOWN, Table, as_ids, read_table, recognise, write_table
from badpo.importers import arena, argilla, label_studio, multipref, prism, prodigy, ultrafeedback
from badpo.importers.fields import TEXTS, Export, Importer, personal_fields

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
    export = Export(read_table(source), columns or {}, winners or {})
    table, names = export.table, (*FORMATS, TABLE)
    if format not in (None, *names):
        hint = did_you_mean(str(format), names)
        raise ConfigError(f'unknown format "{format}".{hint} Known: {", ".join(names)}')
    name = format or _recognised(export)
    if name == TABLE:
        layout = recognise(table.frame, table.name, export.columns)
        unused = [name for name in map(str, layout.frame.columns) if name not in KNOWN]
        return Imported(table, name, export.columns, unused, personal_fields(table.frame[unused]), [])
    entries = _entries(name, export)
    rows = [entry for entry in entries if "left_out" not in entry]
    others = [entry for entry in entries if "left_out" in entry]
    if not rows:
        reasons = Counter(entry["left_out"] for entry in others)
        counts = ", ".join(f"{reason}: {n:,}" for reason, n in reasons.items()) or "no answers in it"
        raise export.refusal("E104", f"no vote to import ({counts})", "export it again")
    frame = pd.DataFrame({name: [row.get(name) for row in rows] for name in rows[0]}, dtype=object)
    frame = frame.loc[:, frame.notna().any() | frame.columns.isin(TEXTS)]
    made = Table(frame, f"{table.name} ({name}, one row for each vote)", dropped=_counted(others))
    unused = [name for name in export.names if name not in export.used]
    personal = personal_fields(table.frame, export.used)
    return Imported(made, name, {}, unused, personal, export.findings)


def _recognised(export: Export) -> str:
    for name, importer in FORMATS.items():
        if importer.fits(export):
            return name
    try:
        recognise(export.table.frame, export.table.name, export.columns)
    except DataError as error:
        if export.columns:
            raise
        looked_for = "; ".join(f"{name} ({importer.known_by})" for name, importer in FORMATS.items())
        what = f"the format is not known; looked for {looked_for}"
        remedy = "name the columns with --column, or the format with --format"
        refusal = export.refusal("E145", what, remedy)
        raise DataError([*refusal.problems, *error.problems]) from None
    return TABLE


def _entries(name: str, export: Export) -> list[dict[str, Any]]:
    """What a reader yields; what does not fit it, or what the user says and it has no use for, is an error."""
    importer = FORMATS[name]
    if unused := [ours for ours in export.columns if ours not in importer.columns]:
        raise ConfigError(
            f"{name}: columns that can be named: {', '.join(importer.columns) or 'none'}; got {', '.join(unused)}. "
            "Import it as a plain table, with format table, to name any"
        )
    if export.winners and not importer.labels:
        raise ConfigError(f"{name}: what the labels mean is known; leave the winners out")
    what = f"this is no table of {importer.what}, which is known by {importer.known_by}"
    try:
        if importer.fits(export):
            return list(importer.read(export))
    except (ConfigError, DataError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has the columns of {importer.what}, but something else in them: {error}"
    remedy = "export it again, leave --format out, or name the columns of a plain table with --format table"
    raise export.refusal("E145", f"{what}; found: {', '.join(export.names)}", remedy)


def _counted(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """What was no vote, by reason and pseudonym."""
    # an id that is none is told where it stands beside a vote
    told = [entry["annotator"] for entry in entries]
    told = [who if isinstance(who, str | int | float) else None for who in told]
    ids = as_ids(pd.Series(told, dtype=object))
    known = [who for who in dict.fromkeys(ids) if who is not None]
    named = dict(zip(known, pseudonyms(known), strict=True))
    reasons = [entry["left_out"] for entry in entries]
    counts = Counter((reason, named.get(who, "unknown")) for reason, who in zip(reasons, ids, strict=True))
    return tuple({"reason": reason, "annotator": who, "n": n} for (reason, who), n in counts.items())


TIMES = ("drop", "day")
_LATEST_SECONDS = 1e11  # later than any date in seconds: then it is milliseconds


def import_file(
    source: Any,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    winners: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    times: str = "drop",
    annotators_missing: str = "error",
    mapping: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Convert an export and write it as a table that `Judgments.read` takes.

    Annotators become pseudonyms under this machine's key. Of everything else only texts, votes, classes, ids of
    comparisons and prompts, names of models, numbers that name both sides and ``keep`` come along.

    Parameters
    ----------
    source : any source of `badpo.data.tables.read_table`
    out : path
        A file that ends in ``.parquet``; it appears whole or not at all.
    format, columns, winners
        See `badpo.importers.formats.import_votes`.
    keep : sequence of str
        Further columns to carry along; personal ones are refused.
    times : "drop" or "day"
        ``day`` keeps the date of each vote, in a column ``day``, where the export has times.
    annotators_missing : "error" or "drop"
        What happens to votes without an annotator where others have one.
    mapping : path or None
        Where to write which pseudonym is whose, readable by this user only. It undoes the pseudonyms without a key:
        None, the default, writes no such file.

    Returns
    -------
    dict
        ``format``, ``out``, ``makes`` ("judgments" or "scored pairs"), counts, ``dropped`` by reason,
        ``left_behind`` and ``personal`` fields, ``problems`` (what the reader noticed), ``mapping``.

    Raises
    ------
    ConfigError, DataError
        What cannot be imported; nothing is written then.
    """
    if times not in TIMES:
        raise ConfigError(f"times must be {' or '.join(TIMES)}; got {times!r}.{did_you_mean(times, TIMES)}")
    if not str(out).endswith(".parquet"):
        raise ConfigError(f"{out}: the file's name must end in .parquet")
    if mapping is not None and Path(mapping).exists():
        raise ConfigError(f"{mapping} is there already; a mapping is never written over, choose another name")
    imported = import_votes(source, format, columns, winners)
    frame, carried = imported.table.frame, list(dict.fromkeys(keep))
    if imported.format == PAIRS:
        return _write_pairs(imported, out)
    if personal := personal_fields(frame[[name for name in carried if name in frame]]):
        raise ConfigError(
            f"keep: {', '.join(personal)} may tell who somebody is and stays behind; rename the column first if it "
            "does not"
        )
    if "when" in frame and imported.format != TABLE:
        days = pd.Series([day_of(when) for when in frame["when"]], dtype=object)
        frame = frame.drop(columns="when")
        if times == "day" and days.notna().any():
            frame, carried = frame.assign(day=days), [*carried, "day"]
    judgments = Judgments.read(
        replace(imported.table, frame=frame),
        columns=imported.columns,
        winners=winners,
        annotators_missing=annotators_missing,
        keep=carried,
    )
    if mapping is not None and not judgments.has_identities:
        raise ConfigError("there is no annotator column, so there is nobody to map; leave the mapping out")
    judgments.to_parquet(out)
    if mapping is not None:
        column = frame[imported.columns.get("annotator") or "annotator"]
        ids = [raw for raw in dict.fromkeys(as_ids(column)) if raw is not None]
        whose = dict(zip(pseudonyms(ids), ids, strict=True))
        with appearing(mapping, private=True) as unfinished:
            unfinished.write_text(json.dumps(whose, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    counts = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "annotators": judgments.n_annotators if judgments.has_identities else 0,
        "problems": [*imported.findings, *judgments.findings],
        "mapping": None if mapping is None else str(mapping),
    }
    return _told(imported, out, judgments.dropped, list(judgments.votes.columns)) | counts


def _told(
    imported: Imported, out: str | os.PathLike[str], dropped: pd.DataFrame, written: Sequence[str] = ()
) -> dict[str, Any]:
    by_reason = dropped.groupby("reason", sort=False)["n"].sum()
    return {
        "format": imported.format,
        "out": str(out),
        "makes": "scored pairs" if imported.format == PAIRS else "judgments",
        "dropped": [{"reason": str(reason), "n": int(n)} for reason, n in by_reason.items()],
        "left_behind": [name for name in imported.left_behind if name not in written],
        "personal": [name for name in imported.personal if name not in written],
        "problems": imported.findings,
        "mapping": None,
    }


def day_of(when: Any) -> str | None:
    """The date of a moment, given as seconds or milliseconds since 1970 or as ISO text; None where it is neither."""
    is_number = isinstance(when, int | float) and 0 < when < math.inf
    options = {"unit": "s" if when < _LATEST_SECONDS else "ms"} if is_number else {"format": "ISO8601"}
    told = when.strip()[:10] if isinstance(when, str) else when if is_number else None
    moment = pd.to_datetime(told, errors="coerce", **options)
    return None if pd.isna(moment) else moment.date().isoformat()


def _write_pairs(imported: Imported, out: str | os.PathLike[str]) -> dict[str, Any]:
    frame = imported.table.frame
    scores = {name: pd.to_numeric(frame[name], errors="coerce") for name in frame if "score" in name}
    write_table(pa.Table.from_pandas(frame.assign(**scores), preserve_index=False), out)
    dropped = pd.DataFrame(list(imported.table.dropped), columns=["reason", "annotator", "n"])
    return _told(imported, out, dropped) | {"pairs": len(frame), "prompts": int(frame["prompt"].nunique())}
