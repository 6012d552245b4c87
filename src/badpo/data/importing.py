"""From an export to a table of judgments that may be kept: pseudonyms, no personal field, no time of day."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from badpo.data.files import appearing
from badpo.data.importers.cells import as_ids
from badpo.data.importers.fields import personal_fields
from badpo.data.importers.formats import PAIRS, Imported, import_votes
from badpo.data.importers.tables import write_table
from badpo.data.judgments import Judgments
from badpo.data.privacy import pseudonyms
from badpo.data.problems import ConfigError, did_you_mean

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
    source : any source of `badpo.data.importers.tables.read_table`
    out : path
        A file that ends in ``.parquet``; it appears whole or not at all.
    format, columns, winners
        See `badpo.data.importers.formats.import_votes`.
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
