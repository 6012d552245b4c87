"""Forgetting a person: every row, estimate and parameter that is theirs, found first and then taken out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from badpo.data.files import require_enclosed
from badpo.data.forgetting_people import People, find_people
from badpo.data.forgetting_runs import in_runs
from badpo.data.forgetting_tables import in_audit, in_mapping, in_table
from badpo.data.forgetting_traces import Trace, left_behind
from badpo.data.problems import ConfigError, did_you_mean

__all__ = ["CHECKPOINTS", "People", "Trace", "erase", "find_people", "find_traces"]

CHECKPOINTS = ("list", "remove")


def find_traces(
    people: People,
    *,
    data: Iterable[str | os.PathLike[str]] = (),
    audits: Iterable[str | os.PathLike[str]] = (),
    runs: Iterable[str | os.PathLike[str]] = (),
    columns: Mapping[str, str | None] | None = None,
    checkpoints: str = "list",
    mapping: str | os.PathLike[str] | None = None,
) -> list[Trace]:
    """Everything of these people in tables, audits and runs; nothing is changed yet.

    Parameters
    ----------
    people : People
    data : paths
        Tables of judgments.
    audits : paths
        Folders that `badpo audit` wrote.
    runs : paths
        Run folders, or folders of run folders.
    columns : mapping or None
        ``{"annotator": ...}`` where the tables call that column otherwise.
    checkpoints : "list" or "remove"
        A checkpoint that holds their parameters cannot be changed, only kept or removed as a whole.
    mapping : path or None
        The mapping file, which names them too.

    Raises
    ------
    ConfigError
        A folder that is not there, or an unknown choice.
    DataError
        A table that cannot be read, or has no annotator column.
    """
    if checkpoints not in CHECKPOINTS:
        hint = did_you_mean(checkpoints, CHECKPOINTS)
        raise ConfigError(f"checkpoints must be {' or '.join(CHECKPOINTS)}; got {checkpoints!r}.{hint}")
    found: list[Trace] = []
    for path in data:
        found += in_table(Path(path), people, (columns or {}).get("annotator") or "annotator", "judgment")
        found += left_behind(Path(path).parent, Path(path).name)
    for folder in audits:
        found += in_audit(_existing(folder), people) + left_behind(Path(folder))
    for folder in runs:
        found += in_runs(_existing(folder), people, checkpoints)
        for inside in [Path(folder), *(path for path in Path(folder).rglob("*") if path.is_dir())]:
            found += left_behind(inside)
    if mapping is not None:
        found += in_mapping(Path(mapping), people) + left_behind(Path(mapping).parent, Path(mapping).name)
    return list({(str(trace.path), trace.what): trace for trace in found}.values())


def erase(traces: Iterable[Trace]) -> None:
    """Take out everything that can be taken out; each file changes whole or not at all."""
    for trace in traces:
        if trace.erase is not None:
            trace.erase()


def _existing(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"{path} is no folder; name an audit's folder or a folder of runs")
    # what is written takes the place of a link and would leave what the link leads to as it is
    require_enclosed(path)
    return path
