"""Forgetting a person: every row, estimate and parameter that is theirs, found first and then taken out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.bias_files import DESCRIPTION, TENSORS, without_annotators
from badpo.data.enclosed import require_enclosed
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import annotator_hint
from badpo.data.importers.tables import DROPPED_KEY, Table, read_table
from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym
from badpo.data.problems import ConfigError, DataError, Problem, counted, did_you_mean
from badpo.data.sealed_tables import DIGEST_KEY, write_sealed
from badpo.data.seals import file_checksum, left_open, resealed
from badpo.data.whole_files import appearing, is_unfinished, leftovers, unfinished_name

CHECKPOINTS = ("list", "remove")
_AUDIT_TABLES = ("annotators.parquet", "annotators.csv", "requests.parquet")
_AUDIT_PAGES = ("audit.json", "report.html")
_TEXT_FILES = frozenset({".json", ".jsonl", ".yaml", ".yml", ".csv", ".html", ".md", ".txt", ".log"})
_SEAL = "complete.json"
_NEXT = f"{TENSORS}.next"  # the tensors without them, until the description that goes with them is written


@dataclass(frozen=True)
class People:
    """Who is to be forgotten.

    Attributes
    ----------
    pseudonyms : frozenset of str
    raw_ids : frozenset of str
        Ids as the user gave them, for tables that were never pseudonymised.
    key : bytes or None
        This machine's key; None when there is none.
    """

    pseudonyms: frozenset[str]
    raw_ids: frozenset[str]
    key: bytes | None

    def rows(self, ids: NDArray[np.object_]) -> NDArray[np.bool_]:
        """Where a column of ids, raw or pseudonyms, names one of them."""
        known = {name: self._is_one(name) for name in set(ids.tolist()) if name is not None}
        return np.array([name is not None and known[name] for name in ids], dtype=bool)

    def _is_one(self, name: str) -> bool:
        if name in self.pseudonyms or name in self.raw_ids:
            return True
        return self.key is not None and pseudonym(name, self.key) in self.pseudonyms


@dataclass(frozen=True)
class Trace:
    """One place that holds something of a person.

    Attributes
    ----------
    path : Path
    what : str
        What is there.
    remedy : str
        What is left to do by hand; empty when `erase` does it all.
    erase : callable or None
        Takes it out; None where that needs another command.
    """

    path: Path
    what: str
    remedy: str = ""
    erase: Callable[[], None] | None = None


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """The pseudonyms of people who are named by pseudonym or by the id in the source.

    Parameters
    ----------
    annotators : sequence of str
    mapping : path or None
        A file that `badpo import --write-mapping` wrote; it knows pseudonyms without the key.

    Raises
    ------
    ConfigError
        An id that is no pseudonym where the key is lost and no mapping names it.

    Examples
    --------
    >>> sorted(find_people(["ann_wdfyjw2xn4"]).pseudonyms)
    ['ann_wdfyjw2xn4']
    """
    key = known_key()
    whose = _read_mapping(mapping) if mapping is not None else {}
    names: set[str] = set()
    unknown = []
    for annotator in annotators:
        listed = [name for name, raw in whose.items() if raw == annotator]
        if is_pseudonym(annotator):
            names.add(annotator)
        elif listed:
            names.update(listed)
        elif key is not None:
            names.add(pseudonym(annotator, key))
        else:
            unknown.append(annotator)
    if unknown:
        raise ConfigError(
            f"the pseudonym key is not there, so the pseudonyms of {counted(len(unknown), 'id')} cannot be computed: "
            f"bring the key back ({KEY_VARIABLE}, or pseudonym.key in the configuration folder), give the mapping "
            "that was written at import, or name the pseudonyms; without any of these, import the source again "
            "without these people"
        )
    raw_ids = {raw for name, raw in whose.items() if name in names} | set(annotators)
    return People(frozenset(names), frozenset(raw_ids), key)


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
        found += _in_table(Path(path), people, (columns or {}).get("annotator") or "annotator", "judgment")
        found += _left_behind(Path(path).parent, Path(path).name)
    for folder in audits:
        found += _in_audit(_existing(folder), people) + _left_behind(Path(folder))
    for folder in runs:
        found += _in_runs(_existing(folder), people, checkpoints)
        for inside in [Path(folder), *(path for path in Path(folder).rglob("*") if path.is_dir())]:
            found += _left_behind(inside)
    if mapping is not None:
        found += _in_mapping(Path(mapping), people) + _left_behind(Path(mapping).parent, Path(mapping).name)
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


def _in_table(path: Path, people: People, column: str, noun: str) -> list[Trace]:
    table = read_table(path)
    if column not in table.frame.columns:
        names = [str(name) for name in table.frame.columns]
        what = f'column "{column}" is not in the table.{annotator_hint(names)}'
        remedy = "name it with --column annotator=..., or take them out in the program that wrote this and export again"
        raise DataError([Problem("E101", what, f"{path}, found: {', '.join(names)}", remedy, "error")])
    theirs = _rows_of(table.frame[column], people)
    counts = [entry for entry in table.dropped if entry.get("annotator") in people.pseudonyms]
    if not theirs.any() and not counts:
        return []
    what = counted(int(theirs.sum()), noun)
    n_dropped = sum(int(entry.get("n", 0)) for entry in counts)
    what += f", and the count of {n_dropped:,} left out at import" if counts else ""
    return [Trace(path, what, erase=lambda: _rewrite(path, table, theirs, people))]


def _rows_of(column: Any, people: People) -> NDArray[np.bool_]:
    """Rows that name one of them; a cell may also list several people."""
    if any(isinstance(cell, list | tuple | np.ndarray) for cell in column):
        return np.array(
            [people.rows(np.array(list(cell), dtype=object)).any() for cell in column], dtype=bool
        )
    return people.rows(as_ids(column))


def _rewrite(path: Path, table: Table, theirs: NDArray[np.bool_], people: People) -> None:
    path = path.resolve()  # of a link the file that it leads to is changed, not the link
    if path.suffix.lower() == ".parquet":
        whole = pq.read_table(path)
        metadata = dict(whole.schema.metadata or {})
        if DROPPED_KEY in metadata:
            counts = [entry for entry in table.dropped if entry.get("annotator") not in people.pseudonyms]
            metadata[DROPPED_KEY] = json.dumps(counts).encode()
        left = whole.filter(pa.array(~theirs)).replace_schema_metadata(metadata or None)
        with appearing(path) as unfinished:
            (write_sealed if DIGEST_KEY in metadata else pq.write_table)(left, unfinished)
    elif path.suffix.lower() == ".json":
        records = json.loads(path.read_text(encoding="utf-8-sig"))
        kept = [record for record, gone in zip(records, theirs, strict=True) if not gone]
        _write_json(path, kept)
    else:
        content = _without_rows(path, table, theirs)
        with appearing(path) as unfinished:
            unfinished.write_bytes(content)


def _without_rows(path: Path, table: Table, theirs: NDArray[np.bool_]) -> bytes:
    """The file's own lines, those of some rows left out, so that nothing else about it changes."""
    assert table.lines is not None
    text = path.read_bytes().decode("utf-8")
    # CSV counts lines as the csv module does, JSON lines by line feeds alone
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    lines = list(io.StringIO(text, newline="" if is_csv else "\n"))
    starts = [*(table.lines - 1).tolist(), len(lines)]
    kept = lines[: starts[0]]
    for row, gone in enumerate(theirs):
        if not gone:
            kept += lines[starts[row] : starts[row + 1]]
    return "".join(kept).encode("utf-8")


def _left_behind(folder: Path, name: str = "") -> list[Trace]:
    """What a command that was killed left half written, of one file or of a whole folder; it may hold anyone."""
    what = "half of a file that a killed command was writing"
    return [
        Trace(path, what, erase=_remover(path))
        for path in leftovers(folder)
        if path.name.endswith(f"-{name}" if name else "")
    ]


def _in_audit(folder: Path, people: People) -> list[Trace]:
    found: list[Trace] = []
    for name in _AUDIT_TABLES:
        path = folder / name
        if path.is_file() and "annotator" in read_table(path).frame.columns:
            found += _in_table(path, people, "annotator", "row")
    if found:
        remedy = "make the audit again from the table without them: badpo audit"
        pages = [folder / name for name in _AUDIT_PAGES if (folder / name).is_file()]
        # before the tables: killed in between, another call still finds them by the tables
        found = [
            Trace(page, "figures that hold their votes", remedy, _remover(page)) for page in pages
        ] + found
    return found + _mentions(folder, people, {trace.path for trace in found})


def _in_runs(folder: Path, people: People, checkpoints: str) -> list[Trace]:
    found: list[Trace] = []
    gone: list[Path] = []
    for description in sorted(folder.rglob(DESCRIPTION)):
        here = description.parent
        if is_unfinished(here):
            continue
        theirs = people.pseudonyms.intersection(_annotators(description))
        if _is_half_erased(here) or left_open(here, [DESCRIPTION, TENSORS]):
            what = "theta of people whose removal was interrupted"
            found.append(Trace(here / TENSORS, what, erase=partial(_finish_erasing, here)))
        if not theirs:
            continue
        if (here / _SEAL).is_file() or here.parent.name == "checkpoints":
            eraser = _remover(here) if checkpoints == "remove" else None
            remedy = "" if eraser else "remove it: --checkpoints remove; the run cannot be resumed after that"
            found.append(
                Trace(here, f"a checkpoint with theta of {counted(len(theirs), 'annotator')}", remedy, eraser)
            )
            gone.append(here)
            continue
        found.append(
            Trace(
                here / TENSORS,
                f"theta of {counted(len(theirs), 'annotator')}",
                erase=_bias_eraser(here, theirs),
            )
        )
        gone += [description, here / TENSORS]
        if (here / "model").is_dir():
            remedy = "train again on the table without them; a policy's weights cannot be changed back"
            found.append(Trace(here / "model", "a policy that was trained on their votes", remedy))
    return found + _mentions(folder, people, set(gone))


def _annotators(description: Path) -> list[str]:
    try:
        return list(json.loads(description.read_text(encoding="utf-8"))["annotators"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{description} is not the description of a bias term; restore it or remove it"
        ) from error


def _bias_eraser(folder: Path, theirs: frozenset[str]) -> Callable[[], None]:
    def erase_from_bias() -> None:
        from safetensors.numpy import load, save

        _finish_erasing(folder)
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        with resealed(folder, [DESCRIPTION, TENSORS]):
            if theirs.issuperset(description["annotators"]):
                # the names last: killed in between, another call still finds them
                for name in (TENSORS, DESCRIPTION):
                    (folder / name).unlink(missing_ok=True)
                return
            left = without_annotators(description, load((folder / TENSORS).read_bytes()), theirs)
            assert left is not None
            content = save({name: np.ascontiguousarray(values) for name, values in left[1].items()})
            with appearing(folder / _NEXT) as unfinished:
                unfinished.write_bytes(content)
            _write_json(folder / DESCRIPTION, {**left[0], "sha256": hashlib.sha256(content).hexdigest()})
            _finish_erasing(folder)

    return erase_from_bias


def _is_half_erased(folder: Path) -> bool:
    """Whether a killed call wrote a description without them and did not come to put the tensors in place."""
    if not (folder / _NEXT).is_file():
        return False
    described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")).get("sha256")
    return described == file_checksum(folder / _NEXT)


def _finish_erasing(folder: Path) -> None:
    with resealed(folder, [DESCRIPTION, TENSORS]):
        if _is_half_erased(folder):
            os.replace(folder / _NEXT, folder / TENSORS)
    (folder / _NEXT).unlink(missing_ok=True)


def _in_mapping(path: Path, people: People) -> list[Trace]:
    whose = _read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}
    if len(left) == len(whose):
        return []
    return [Trace(path, counted(len(whose) - len(left), "entry"), erase=lambda: _write_json(path, left))]


def _read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        whose = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no mapping that badpo import wrote ({error})") from error
    if not isinstance(whose, dict):
        raise ConfigError(f"{path} is no mapping that badpo import wrote")
    return whose


def _mentions(folder: Path, people: People, known: set[Path]) -> list[Trace]:
    """Text files that name one of them and are not dealt with otherwise."""
    names = [name.encode() for name in people.pseudonyms]
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in _TEXT_FILES or not path.is_file() or is_unfinished(path):
            continue
        if path in known or not known.isdisjoint(path.parents):
            continue
        content = path.read_bytes()
        if any(name in content for name in names):
            found.append(Trace(path, "a file that names them", "remove it, or make it again without them"))
    return found


def _remover(path: Path) -> Callable[[], None]:
    def remove() -> None:
        if not path.is_dir():
            path.unlink()
            return
        # half deleted it is found by its name, whatever is left of what was in it
        going = path.with_name(unfinished_name(path.name))
        path.rename(going)
        shutil.rmtree(going)

    return remove


def _write_json(path: Path, value: Any) -> None:
    """Write JSON in place of a file, readable by those who could read that one."""
    path = path.resolve()
    with appearing(path) as unfinished:
        unfinished.touch(mode=stat.S_IMODE(path.stat().st_mode))
        unfinished.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
