"""Which program wrote a table of votes, and its votes under our column names."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from badpo.data.files import appearing
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, DataError, Problem, did_you_mean
from badpo.data.tables import KNOWN, Table, as_ids, read_table, recognise, write_table
from badpo.importers.arena import is_arena, read_arena
from badpo.importers.argilla import is_argilla, read_argilla
from badpo.importers.fields import TEXTS, Asked, Votes, field_paths, personal_fields
from badpo.importers.label_studio import is_label_studio, read_label_studio
from badpo.importers.multipref import is_multipref, read_multipref
from badpo.importers.prism import is_prism, read_prism
from badpo.importers.prodigy import is_prodigy, read_prodigy
from badpo.importers.ultrafeedback import is_ultrafeedback, read_ultrafeedback

TABLE = "table"
PAIRS = "ultrafeedback"


@dataclass(frozen=True)
class Importer:
    """One format that can be read: what it is, and the columns by which messages say that it is known."""

    what: str
    signs: str
    fits: Callable[[Table], bool]
    read: Callable[[Table, Asked], Votes]
    columns: tuple[str, ...] = ()  # of ours, whose field the user may name
    labels: bool = False  # whether the user may say what labels mean


# Tried in this order; a plain table is what is left.
FORMATS: dict[str, Importer] = {
    "multipref": Importer(
        "MultiPref with its votes one by one",
        "completion_a, completion_b, normal_worker_annotations, expert_worker_annotations",
        is_multipref,
        read_multipref,
        ("winner",),
    ),
    "label-studio": Importer(
        "Label Studio's JSON export with a Pairwise control",
        "data, annotations",
        is_label_studio,
        read_label_studio,
        (*TEXTS, "winner"),
        labels=True,
    ),
    "argilla": Importer(
        "Argilla records with responses",
        "QUESTION.responses and QUESTION.responses.users, or fields and responses",
        is_argilla,
        read_argilla,
        (*TEXTS, "winner"),
        labels=True,
    ),
    "prodigy": Importer(
        "Prodigy's JSONL of choice tasks",
        "answer, options, and _task_hash or _annotator_id",
        is_prodigy,
        read_prodigy,
        ("prompt", "annotator"),
        labels=True,
    ),
    "arena": Importer(
        "battles of the Chatbot Arena or MT-Bench",
        "conversation_a, conversation_b, winner",
        is_arena,
        read_arena,
        ("annotator",),
        labels=True,
    ),
    "prism": Importer(
        "PRISM's conversations or utterances",
        "conversation_history and user_id, or user_prompt, model_response, if_chosen",
        is_prism,
        read_prism,
    ),
    PAIRS: Importer(
        "UltraFeedback binarized, scored pairs without votes",
        "prompt, chosen, rejected, messages, score_chosen, score_rejected",
        is_ultrafeedback,
        read_ultrafeedback,
    ),
}


@dataclass(frozen=True)
class Imported:
    """A table that `badpo.data.reading` takes, and what came with it."""

    table: Table  # one row for each vote under our names; ``dropped`` counts what was none
    format: str
    columns: Mapping[str, str | None]  # what is still to be mapped when the table is read
    left_behind: tuple[str, ...]
    personal: tuple[str, ...]  # fields left behind that tell who somebody is
    findings: tuple[Problem, ...]


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
    table = read_table(source)
    asked = Asked(columns or {}, winners or {})
    names = (*FORMATS, TABLE)
    if format not in (None, *names):
        hint = did_you_mean(str(format), names)
        raise ConfigError(f'unknown format "{format}".{hint} Known: {", ".join(names)}')
    name = format or recognised(table, asked)
    if name == TABLE:
        layout = recognise(table.frame, table.name, asked.columns)
        unused = [name for name in map(str, layout.frame.columns) if name not in KNOWN]
        personal = tuple(personal_fields(unused, table.frame[unused]))
        return Imported(table, name, asked.columns, tuple(unused), personal, ())
    votes = _read(name, table, asked)
    if not votes.rows:
        reasons = Counter(reason for reason, _ in votes.left_out)
        counts = ", ".join(f"{reason}: {n:,}" for reason, n in reasons.items()) or "no answers in it"
        what = f"no vote to import ({counts})"
        raise DataError([Problem("E104", what, table.name, "export it again", "error")])
    frame = pd.DataFrame(
        {name: [row.get(name) for row in votes.rows] for name in votes.rows[0]}, dtype=object
    )
    frame = frame.loc[:, frame.notna().any() | frame.columns.isin(TEXTS)]
    left_behind = [path for path in field_paths(table.frame) if not _is_used(path, votes.used)]
    top = [path for path in left_behind if path in table.frame.columns]
    personal = tuple(personal_fields(left_behind, table.frame[top]))
    made = Table(frame, f"{table.name} ({name}, one row for each vote)", dropped=_counted(votes))
    return Imported(made, name, {}, tuple(left_behind), personal, votes.findings)


def recognised(table: Table, asked: Asked) -> str:
    """The name of a table's format.

    Raises
    ------
    DataError
        E145 with what was looked for, and what is missing in a plain table.

    Examples
    --------
    >>> recognised(read_table([{"prompt": "Why?", "chosen": "So.", "rejected": "No."}]), Asked())
    'table'
    """
    for name, importer in FORMATS.items():
        if importer.fits(table):
            return name
    try:
        recognise(table.frame, table.name, asked.columns)
    except DataError as error:
        if asked.columns:
            raise
        looked_for = "; ".join(f"{name} ({importer.signs})" for name, importer in FORMATS.items())
        what = f"the format is not known; looked for {looked_for}"
        remedy = "name the columns with --column, or the format with --format"
        raise DataError([Problem("E145", what, table.name, remedy, "error"), *error.problems]) from None
    return TABLE


def _read(name: str, table: Table, asked: Asked) -> Votes:
    """The votes of a format; what does not fit it, or what the user says and it has no use for, is an error."""
    importer = FORMATS[name]
    if unused := [ours for ours in asked.columns if ours not in importer.columns]:
        raise ConfigError(
            f"{name}: columns that can be named: {', '.join(importer.columns) or 'none'}; got {', '.join(unused)}. "
            "Import it as a plain table, with format table, to name any"
        )
    if asked.winners and not importer.labels:
        raise ConfigError(f"{name}: what the labels mean is known; leave the winners out")
    what = f"this is no table of {importer.what}, which is known by {importer.signs}"
    try:
        if importer.fits(table):
            return importer.read(table, asked)
    except (ConfigError, DataError):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has the columns of {importer.what}, but something else in them: {error}"
    where = f"{table.name}, found: {', '.join(map(str, table.frame.columns))}"
    remedy = "export it again, leave --format out, or name the columns of a plain table with --format table"
    raise DataError([Problem("E145", what, where, remedy, "error")])


def _is_used(path: str, used: Sequence[str]) -> bool:
    whole = (name.removesuffix(".*") for name in used if name.endswith(".*"))
    return path in used or any(path == name or path.startswith(f"{name}.") for name in whole)


def _counted(votes: Votes) -> tuple[dict[str, Any], ...]:
    """What was no vote, by reason and pseudonym."""
    if not votes.left_out:
        return ()
    # an id that is none is told where it stands beside a vote
    told = [who if isinstance(who, str | int | float) else None for _, who in votes.left_out]
    ids = as_ids(pd.Series(told, dtype=object))
    known = list(dict.fromkeys(who for who in ids if who is not None))
    named = dict(zip(known, pseudonyms(known), strict=True))
    counts = Counter(
        (reason, named.get(who, "unknown")) for (reason, _), who in zip(votes.left_out, ids, strict=True)
    )
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
    told: dict[str, Any] = {"format": imported.format, "out": str(out)}
    if imported.format == PAIRS:
        return told | _write_pairs(imported, out)
    imported, with_day = _with_days(imported, times)
    carried = [*keep, *(["day"] if with_day else [])]
    _refuse_personal(keep, imported.table.frame)
    judgments = Judgments.read(
        imported.table,
        columns=imported.columns,
        winners=winners,
        annotators_missing=annotators_missing,
        keep=list(dict.fromkeys(carried)),
    )
    whose = {} if mapping is None else _whose(imported, judgments)
    judgments.to_parquet(out)
    if mapping is not None:
        _write_mapping(whose, Path(mapping))
    written = set(judgments.votes.columns)
    return told | {
        "makes": "judgments",
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "annotators": judgments.n_annotators if judgments.has_identities else 0,
        "dropped": _by_reason(judgments.dropped),
        "left_behind": [name for name in imported.left_behind if name not in written],
        "personal": [name for name in imported.personal if name not in written],
        "problems": [*imported.findings, *judgments.findings],
        "mapping": None if mapping is None else str(mapping),
    }


def _refuse_personal(keep: Sequence[str], frame: pd.DataFrame) -> None:
    asked = [name for name in keep if name in frame.columns]
    personal = personal_fields(asked, frame[asked])
    if personal:
        raise ConfigError(
            f"keep: {', '.join(personal)} may tell who somebody is and stays behind; rename the column first if it "
            "does not"
        )


def _with_days(imported: Imported, times: str) -> tuple[Imported, bool]:
    """The import without the time of each vote, and with its date where that is asked for."""
    frame = imported.table.frame
    if "when" not in frame.columns or imported.format == "table":
        return imported, False
    days = pd.Series([day_of(when) for when in frame["when"]], dtype=object)
    frame = frame.drop(columns="when")
    wanted = times == "day" and bool(days.notna().any())
    frame = frame.assign(day=days) if wanted else frame
    return dataclasses.replace(imported, table=dataclasses.replace(imported.table, frame=frame)), wanted


def day_of(when: Any) -> str | None:
    """The date of a moment, given as seconds or milliseconds since 1970 or as ISO text; None where it is neither.

    Examples
    --------
    >>> day_of(1_700_000_000), day_of("2024-02-06T10:17:19.5Z"), day_of("soon")
    ('2023-11-14', '2024-02-06', None)
    """
    if isinstance(when, str):
        try:
            return datetime.date.fromisoformat(when.strip()[:10]).isoformat()
        except ValueError:
            return None
    try:
        seconds = float(when)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    seconds = seconds / 1000 if seconds > _LATEST_SECONDS else seconds
    return datetime.datetime.fromtimestamp(min(seconds, _LATEST_SECONDS), datetime.UTC).date().isoformat()


def _by_reason(dropped: pd.DataFrame) -> list[dict[str, Any]]:
    by_reason = dropped.groupby("reason", sort=False)["n"].sum()
    return [{"reason": str(reason), "n": int(n)} for reason, n in by_reason.items()]


def _write_pairs(imported: Imported, out: str | os.PathLike[str]) -> dict[str, Any]:
    table = imported.table
    scores = {
        name: pd.to_numeric(table.frame[name], errors="coerce") for name in table.frame if "score" in name
    }
    write_table(pa.Table.from_pandas(table.frame.assign(**scores), preserve_index=False), out)
    return {
        "makes": "scored pairs",
        "pairs": len(table.frame),
        "prompts": int(table.frame["prompt"].nunique()),
        "dropped": _by_reason(pd.DataFrame(list(table.dropped), columns=["reason", "annotator", "n"])),
        "left_behind": list(imported.left_behind),
        "personal": list(imported.personal),
        "problems": list(imported.findings),
        "mapping": None,
    }


def _whose(imported: Imported, judgments: Judgments) -> dict[str, str]:
    """Pseudonym -> the source's id of everyone in the table."""
    if not judgments.has_identities:
        raise ConfigError("there is no annotator column, so there is nobody to map; leave the mapping out")
    column = imported.table.frame[imported.columns.get("annotator") or "annotator"]
    ids = [raw for raw in dict.fromkeys(as_ids(column)) if raw is not None]
    return dict(zip(pseudonyms(ids), ids, strict=True))


def _write_mapping(whose: Mapping[str, str], path: Path) -> None:
    """Write a mapping as JSON that only this user can read."""
    with appearing(path, private=True) as unfinished:
        unfinished.write_text(json.dumps(whose, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
