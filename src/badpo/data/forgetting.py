"""Forgetting a person, so that what stays does not give away what they voted or how they lean.

Rows go from tables of votes. A file about single people, as an audit and a run have them, goes whole: with a mean or a
sum beside it, the rest of such a file would tell the missing value. Then every file beside them is searched for names.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import datetime
import glob
import gzip
import html
import io
import itertools
import json
import lzma
import os
import re
import shutil
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from badpo.data.files import (
    appearing,
    checksum_file,
    checksummed,
    file_checksum,
    holder,
    locked,
    require_enclosed,
)
from badpo.data.importers.cells import as_ids
from badpo.data.importers.columns import annotator_hint
from badpo.data.importers.tables import DROPPED_KEY, Table, read_table
from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym, spelling
from badpo.data.problems import ConfigError, DataError, Problem, counted

RECORD, POLICY = "forgotten.jsonl", "model"
AUDIT_FILES = ("annotators.*", "requests.*", "people.*", "audit.json", "report.html", ".writing-*")
# What makes a folder a run, an arm of several policies, or an anchor, finished or not.
RUN_MARKS = (
    "bias.json",
    "bias.safetensors",
    "begun.json",
    "run.json",
    "anchor.json",
    "checkpoints/*/bias.json",
)
# Of single people: theta and its optimizer, weights and types by index, seals with facts and checksums of these; and
# exact figures of steps and of held-out votes: who trains again on guessed votes sees by them which guess is right.
RUN_FILES = (
    *("bias.json*", "bias.safetensors*", "bias_optimizer.*", "objective.*", "checkpoints", "checkpoint-*"),
    *("round*.json*", "round-*", "round*-type*", "begun.json*", "run.json*", "start.json*", "planted.*"),
    *("log.jsonl*", "readouts.json*"),
    *(".writing-*", ".*.unfinished"),
)
# Of nobody, unless they name somebody.
POOL_FILES = ("config.yaml", "environment.json")
_BLOCK = 2**24
_OVERLAP = 2**12
_FEWEST_LETTERS, _FEWEST_DIGITS = 6, 9
_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_PSEUDONYMS = re.compile(rb"ann_[a-z2-7]{14}")
_ESCAPES = re.compile(rb"\\u[0-9a-fA-F]{4}(?:\\u[0-9a-fA-F]{4})*")


@dataclass(frozen=True)
class Trace:
    """A place that holds something of a person: what is there, whether it goes, and what is left to do by hand."""

    path: Path
    what: str
    remedy: str = ""
    goes: bool = True


# -- who -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class People:
    """Who is to be forgotten: pseudonyms, ids in the source as far as they are known, and this machine's key."""

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

    def spellings(self) -> frozenset[str]:
        """Their pseudonyms, and those of other spellings of their ids: case, spaces around them, leading zeros."""
        if self.key is None:
            return self.pseudonyms
        forms = {
            form
            for raw in self.raw_ids
            for word in (
                raw,
                raw.strip(),
                raw.strip().lstrip("0"),
                *(raw.strip().zfill(n) for n in range(2, 9)),
            )
            for cased in (word, word.lower(), word.upper(), word.title(), word.capitalize())
            for form in (cased, f" {cased}", f"{cased} ")
            if form.strip()
        }
        return self.pseudonyms | {pseudonym(form, self.key) for form in forms}


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """People who are named by pseudonym or by the id in the source.

    A mapping, the file of `badpo import --write-mapping`, knows pseudonyms without the key. Where neither does, a
    `ConfigError` says so.

    Examples
    --------
    >>> sorted(find_people(["ann_wdfyjw2xn4g5pc"]).pseudonyms)
    ['ann_wdfyjw2xn4g5pc']
    """
    key = known_key()
    whose = read_mapping(mapping) if mapping is not None else {}
    # as the reader of tables writes them
    asked = [name for name in as_ids(pd.Series(list(annotators), dtype=object)) if name is not None]
    listed = {name for name, raw in whose.items() if raw in asked}
    unknown = [name for name in asked if not is_pseudonym(name) and name not in whose.values()]
    if unknown and key is None:
        raise ConfigError(
            f"the pseudonym key is not there, so the pseudonyms of {counted(len(unknown), 'id')} cannot be computed: "
            f"bring the key back ({KEY_VARIABLE}, or pseudonym.key in the configuration folder), give the mapping "
            "that was written at import, or name the pseudonyms; without any of these, import the source again "
            "without these people"
        )
    names = {name for name in asked if is_pseudonym(name)} | listed
    names |= {pseudonym(name, key) for name in unknown if key is not None}
    raw_ids = {whose[name] for name in names & whose.keys()} | {n for n in asked if not is_pseudonym(n)}
    return People(frozenset(names), frozenset(raw_ids), key)


def read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    """Ids by pseudonym, from the file of `badpo import --write-mapping`; a `ConfigError` where it is none."""
    try:
        whose = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no mapping that badpo import wrote ({error})") from error
    if not isinstance(whose, dict):
        raise ConfigError(f"{path} is no mapping that badpo import wrote")
    return whose


# -- everything of theirs --------------------------------------------------------------------------------------


def forget(
    people: People,
    *,
    data: Iterable[str | os.PathLike[str]] = (),
    audits: Iterable[str | os.PathLike[str]] = (),
    runs: Iterable[str | os.PathLike[str]] = (),
    states: Iterable[str | os.PathLike[str]] = (),
    mapping: str | os.PathLike[str] | None = None,
    columns: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
) -> list[Trace]:
    """Take people out of tables of votes, audits, runs and states; list what went, and what remains.

    Everything that is changed is locked before the first change, and people's rows are looked up after that. Then every
    file below the folders and beside the files is searched. The list is empty where nothing of them is there.
    """
    column = (columns or {}).get("annotator") or "annotator"
    tables = [Path(path) for path in data]
    states, audits, runs = ([_existing(path) for path in paths] for paths in (states, audits, runs))
    runs += [anchor for run in runs for anchor in _anchors_beside(run)]
    files = [*tables, *states, *([Path(mapping)] if mapping is not None else [])]
    folders = [*audits, *runs]
    with contextlib.ExitStack() as held:
        if not dry_run:
            # in one order for everybody, so that no two wait for each other
            for path in sorted({os.path.realpath(path) for path in files}):
                held.enter_context(locked(path, wait=True))
            for audit in audits:
                held.enter_context(locked(audit))
        rows = {path: _rows_in(path, people, column) for path in tables}
        people = replace(people, raw_ids=people.raw_ids.union(*(found.raw_ids for found in rows.values())))
        hits = _search(files, folders, people)
        going = [*_going_audits(audits, hits), *_going_runs(runs, hits), *_going_states(states, hits)]
        if not dry_run:
            for place in going:
                held.enter_context(locked(place.path))
        found = [trace for path in files for trace in _remove_half_written(path, dry_run)]
        found += [trace for path in tables for trace in _take_rows(path, rows[path], dry_run)]
        found += [] if mapping is None else _take_entries(Path(mapping), people, dry_run)
        found += [trace for place in going for trace in place.remove(hits, dry_run)]
        found += [policy for folder in folders for policy in _policies(folder, going)]
        found += [trace for run in runs for trace in _at_work(run, {place.path for place in going})]
        dealt_with = {trace.path for trace in found} if dry_run else set()
        hits = hits if dry_run else _search(files, folders, people)
    remedy = "remove it, make it again without them, or name it: --data, --audit, --runs, --state, --mapping"
    found += [
        Trace(path, what, remedy, goes=False)
        for path, what in hits.items()
        if dealt_with.isdisjoint([path, *path.parents])
    ]
    return list({(os.path.realpath(trace.path), trace.what): trace for trace in found}.values())


def _existing(path: str | os.PathLike[str]) -> Path:
    path, record = Path(path), Path(path).with_name(RECORD)
    # a state that went by an earlier call is no mistake
    if not path.exists() and not (record.exists() and json.dumps(path.name) in record.read_text("utf-8")):
        raise ConfigError(
            f"{path} is not there; name an audit's folder, a folder of runs, or a state of watch"
        )
    # what is written takes the place of a link and would leave what the link leads to as it is
    require_enclosed(path)
    return path


def _note(folder: Path, **what: Any) -> None:
    """Add to the record of a folder, before anything goes; no id stands in it."""
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    handle = os.open(folder / RECORD, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps({"when": when, **what}) + "\n")


def _weights(folder: Path) -> list[str]:
    """What the policy of a folder is known by, so that one that takes its place is not taken for it."""
    return [file_checksum(path) for path in sorted((folder / POLICY).glob("*.safetensors"))]


def _remove_half_written(path: Path, dry_run: bool) -> list[Trace]:
    """What killed commands were writing in the place of a file, which is locked now; it may hold anybody."""
    leftovers = sorted(path.parent.glob(f".writing-*-{path.name}"))
    for leftover in leftovers if not dry_run else ():
        leftover.unlink()
    return [Trace(leftover, "half of a file that a killed command was writing") for leftover in leftovers]


# -- rows of tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """A table, whose rows of it are theirs, and by which ids it knows them."""

    table: Table
    theirs: NDArray[np.bool_]
    raw_ids: frozenset[str]
    dropped: tuple[dict[str, Any], ...]  # counts of what an import left out, theirs taken out


def _rows_in(path: Path, people: People, column: str) -> _Rows:
    table = read_table(path)
    remedy = "name it with --column annotator=..., or take them out in the program that wrote this and export again"
    if column not in table.frame.columns:
        names = [str(name) for name in table.frame.columns]
        what = f'column "{column}" is not in the table.{annotator_hint(names)}'
        raise DataError([Problem("E101", what, f"{path}, found: {', '.join(names)}", remedy, "error")])
    try:
        ids = as_ids(table.frame[column])
    except ValueError as error:
        raise DataError(
            [Problem("E101", f'column "{column}": {error}', str(path), remedy, "error")]
        ) from error
    theirs = people.rows(ids)
    left = tuple(entry for entry in table.dropped if entry["annotator"] not in people.pseudonyms)
    return _Rows(table, theirs, frozenset(name for name in ids[theirs] if not is_pseudonym(name)), left)


def _take_rows(path: Path, rows: _Rows, dry_run: bool) -> list[Trace]:
    """Their rows out of a table, and the counts of what was left out of theirs at import."""
    n, n_dropped = int(rows.theirs.sum()), sum(entry["n"] for entry in rows.table.dropped)
    n_dropped -= sum(entry["n"] for entry in rows.dropped)
    has_theirs = bool(n or n_dropped)
    if has_theirs and not dry_run:
        _note(path.parent, file=path.name, rows=n)
    # a call that was killed may have left a table of ours without its checksum
    if not dry_run and (has_theirs or (_is_ours(path) and not checksum_file(path).exists())):
        _write_without(path, rows)
    if not has_theirs:
        return []
    what = counted(n, "judgment") + (
        f", and the count of {n_dropped:,} left out at import" if n_dropped else ""
    )
    return [Trace(path, what)]


def _is_ours(path: Path) -> bool:
    return path.suffix.lower() == ".parquet" and DROPPED_KEY in (pq.read_schema(path).metadata or {})


def _write_without(path: Path, rows: _Rows) -> None:
    suffix, is_ours = path.suffix.lower(), _is_ours(path)
    with (checksummed if is_ours or checksum_file(path).exists() else appearing)(path) as unfinished:
        if suffix == ".parquet":
            table = _plain(pq.read_table(path).filter(pa.array(~rows.theirs)))
            if is_ours:
                table = table.replace_schema_metadata({DROPPED_KEY: json.dumps(rows.dropped).encode()})
            pq.write_table(table, unfinished, write_page_checksum=True)
        elif suffix == ".json":
            records = json.loads(path.read_text(encoding="utf-8-sig"))
            left = [record for record, gone in zip(records, rows.theirs, strict=True) if not gone]
            unfinished.write_bytes(_as_json(left))
        else:
            unfinished.write_bytes(_lines_without(path, rows))


def _plain(table: pa.Table) -> pa.Table:
    """A table without what may still name somebody: dictionaries with values of rows that are gone, and metadata."""
    fields = [pa.field(field.name, _plain_type(field.type)) for field in table.schema]
    return table.cast(pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    return kind


def _lines_without(path: Path, rows: _Rows) -> bytes:
    """The file's own lines, those of some rows left out, so that nothing else about it changes."""
    assert rows.table.lines is not None
    text = path.read_bytes().decode("utf-8")
    # CSV counts lines as the csv module does, JSON lines by line feeds alone
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    lines = list(io.StringIO(text, newline="" if is_csv else "\n"))
    starts = [*(rows.table.lines - 1).tolist(), len(lines)]
    kept = lines[: starts[0]]
    for row, gone in enumerate(rows.theirs):
        if not gone:
            kept += lines[starts[row] : starts[row + 1]]
    return "".join(kept).encode("utf-8")


def _take_entries(path: Path, people: People, dry_run: bool) -> list[Trace]:
    """Their entries out of the mapping."""
    whose = read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}
    if len(left) == len(whose):
        return []
    if not dry_run:
        _note(path.parent, file=path.name, rows=len(whose) - len(left))
        with appearing(path) as unfinished:
            unfinished.write_bytes(_as_json(left))
    return [Trace(path, counted(len(whose) - len(left), "entry"))]


def _as_json(value: Any) -> bytes:
    # half of a surrogate pair becomes the escape that JSON has for it
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


# -- files about single people ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A folder or state whose files about single people go."""

    path: Path
    files: tuple[Path, ...]
    what: str
    remedy: str

    def remove(self, hits: Mapping[Path, str], dry_run: bool) -> list[Trace]:
        if not dry_run:
            folder = self.path if self.path.is_dir() else self.path.parent
            policy = {"policy": weights} if (weights := _weights(self.path)) else {}
            _note(folder, went=sorted(path.name for path in self.files), **policy)
            inside = [path for top in self.files for path in (top, *top.rglob("*"))]
            inside = [path for path in inside if path.is_symlink() or not path.is_dir()]
            # those that name them last, and those that make it a run: killed in between, another call finds the rest
            for path in sorted(inside, key=lambda path: (path in hits, path.name in RUN_MARKS)):
                path.unlink(missing_ok=True)
            for path in self.files:
                if path.is_dir():
                    shutil.rmtree(path)
        return [Trace(path, self.what, self.remedy) for path in self.files]


def _going_audits(folders: Sequence[Path], hits: Mapping[Path, str]) -> Iterator[_Place]:
    for folder in folders:
        files = _matching(folder, AUDIT_FILES)
        if _any_below(files, hits):
            remedy = f"make it again on the table without them: badpo audit DATA --out {folder}"
            yield _Place(folder, files, "figures of an audit that holds their votes", remedy)


def _going_states(states: Sequence[Path], hits: Mapping[Path, str]) -> Iterator[_Place]:
    for state in states:
        if state in hits:
            remedy = f"count again, on the table without them: badpo watch DATA --state {state}"
            yield _Place(state, (state,), "what was counted of them and of others", remedy)


def _going_runs(tops: Sequence[Path], hits: Mapping[Path, str]) -> Iterator[_Place]:
    remedy = "remove the run and train it again on the table without them, by the command that made it"
    for folder in _learned_from_them(tops, hits):
        files = _matching(folder, RUN_FILES)
        files += tuple(folder / name for name in POOL_FILES if folder / name in hits)
        yield _Place(folder, files, "numbers of single people in a run that learned from their votes", remedy)


def _learned_from_them(tops: Sequence[Path], hits: Mapping[Path, str]) -> list[Path]:
    """Run folders that name them, those that hold one, and those that name nobody and stand beside or rest on one."""
    folders = [folder for top in tops for folder in _run_folders(top, RUN_MARKS)]
    learned = [folder for folder in folders if _any_below(_matching(folder, (*RUN_FILES, *POOL_FILES)), hits)]
    while new := [folder for folder in folders if folder not in learned and _rests_on(folder, learned)]:
        learned += new
    # what was found by another goes before that one
    return list(dict.fromkeys(learned[::-1]))


def _rests_on(folder: Path, learned: Sequence[Path]) -> bool:
    if any(folder in run.parents for run in learned):
        return not (folder / "bias.json").exists()
    if any(folder.rglob("bias.json")):
        return False
    told = b"".join(path.read_bytes() for path in _matching(folder, ("anchor.json", "begun.json")))
    if b'"source"' not in told:
        return any(folder.parent == run.parent for run in learned)
    # an anchor tells its source by name: the run of that name beside it, or, where it stands alone, any
    sources = [run for run in learned if json.dumps(run.name).encode() in told]
    return any(run.parent == folder.parent or not (folder.parent / run.name).exists() for run in sources)


def _policies(top: Path, going: Sequence[_Place]) -> Iterator[Trace]:
    """Policies that learned from the votes of these people, or of others who were forgotten before."""
    changed = {place.path for place in going}
    for folder in _run_folders(top, (*RUN_MARKS, RECORD)):
        record = (folder / RECORD).read_text("utf-8") if (folder / RECORD).exists() else ""
        is_theirs = folder in changed or any(weights in record for weights in _weights(folder))
        if is_theirs and (folder / POLICY).is_dir():
            what = "a policy that was trained on their votes, or that rests on one which was"
            remedy = (
                f"remove {folder} and make it again on the table without them; weights cannot be changed back"
            )
            yield Trace(folder / POLICY, what, remedy, goes=False)


def _at_work(top: Path, held: Collection[Path]) -> Iterator[Trace]:
    """Runs that another command works on: it holds the folder before it reads, and may have read their votes."""
    for lock in sorted([*top.rglob(".*.lock"), *top.parent.glob(f".{glob.escape(top.name)}.lock")]):
        folder = lock.with_name(lock.name[1:].removesuffix(".lock"))
        if folder not in held and (who := holder(folder)):
            remedy = "wait until it has ended, and give this command again"
            yield Trace(folder, f"{who} works on it and may have read their votes", remedy, goes=False)


def _run_folders(top: Path, marks: Sequence[str]) -> Iterator[Path]:
    for here, inside, _ in os.walk(top):
        inside[:] = sorted(name for name in inside if name not in (POLICY, "checkpoints"))
        if _matching(Path(here), marks):
            yield Path(here)


def _anchors_beside(run: Path) -> list[Path]:
    """What `badpo anchor` made of a run that is named itself, beside it: the result, and its unfinished rounds."""
    names = (f"{run.resolve().name}-anchored", f".{run.resolve().name}-anchored.anchoring")
    return [run.parent / name for name in names if (run.parent / name).is_dir()]


def _matching(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in patterns for path in folder.glob(pattern)}))


def _any_below(places: Iterable[Path], hits: Mapping[Path, str]) -> bool:
    return any(not {path, *path.parents}.isdisjoint(places) for path in hits)


# -- the search of every byte ----------------------------------------------------------------------------------


def _search(files: Sequence[Path], folders: Sequence[Path], people: People) -> dict[Path, str]:
    """Files that name them, of those below some folders and those beside some files; and what cannot be looked into."""
    beside = [path for file in files for path in sorted(file.parent.iterdir()) if path.is_file()]
    below = [Path(here, name) for folder in folders for here, _, names in os.walk(folder) for name in names]
    needles = _Needles(people)
    found = {}
    for path in dict.fromkeys([*beside, *sorted(below)]):
        try:
            if needles.in_file(path):
                found[path] = "a file that names them, or another spelling of their id"
        except FileNotFoundError:
            continue  # a link to nothing, or a file that another process has removed
        except Exception as error:  # whatever a damaged file does to its reader
            found[path] = f"a file that cannot be looked into ({(str(error) or repr(error)).splitlines()[0]})"
    return found


class _Needles:
    """What a file is searched for: pseudonyms, and ids in every form that a program may have written them in."""

    def __init__(self, people: People):
        self._pseudonyms = people.spellings()
        telling = {
            raw.strip()
            for raw in people.raw_ids
            if len(raw) >= (_FEWEST_DIGITS if raw.isdigit() else _FEWEST_LETTERS)
        }
        words = {word for raw in telling for word in (raw, raw.upper(), raw.casefold())}
        patterns = {}
        for text in {form for word in words for form in (word, json.dumps(word)[1:-1], html.escape(word))}:
            for encoding, unit in (("utf-8", rb"%s"), ("utf-16-le", rb"%s\x00"), ("utf-16-be", rb"\x00%s")):
                content = text.encode(encoding, "surrogatepass").lower()
                edge = unit % b"[0-9a-z]"
                # a letter before it may belong to an escape, such as \\n and %20
                begin = rb"(?:(?<!%s)|(?<=\\[a-z])|(?<=%%[0-9a-f]{2}))" % edge
                patterns[content] = re.compile(begin + b"%s(?!%s)" % (re.escape(content), edge))
        self._patterns = patterns
        # a number of one digit stands in every file: where people stand, it is a person
        self._in_cells = {spelling(raw) for raw in people.raw_ids}

    def in_file(self, path: Path) -> bool:
        """Whether a file, or its name, holds one of them."""
        return (
            self._in_stream(io.BytesIO(path.name.encode("utf-8", "surrogateescape")))
            or any(self._in_stream(stream) for stream in _streams(path))
            or any(spelling(cell) in self._in_cells for cell in (_cells(path) if self._in_cells else ()))
        )

    def _in_stream(self, stream: IO[bytes]) -> bool:
        with stream:
            tail, block = b"", stream.read(_BLOCK)
            while block:
                following = stream.read(_BLOCK)
                text = tail + block
                if any(self._in_text(form.lower(), not following) for form in _forms(text)):
                    return True
                tail, block = text[-_OVERLAP:], following
        return False

    def _in_text(self, text: bytes, is_last: bool) -> bool:
        names = _PSEUDONYMS.findall(text) if b"ann_" in text else []
        if any(name.decode() in self._pseudonyms for name in names):
            return True
        # what ends at the end may go on in the next block, which begins with it
        return any(
            is_last or found.end() + 2 <= len(text)
            for content, pattern in self._patterns.items()
            if content in text
            for found in pattern.finditer(text)
        )


def _forms(text: bytes) -> Iterator[bytes]:
    """Bytes as they are, with what escapes of JSON stand for, and as ASCII where they are UTF-16 with pseudonyms."""

    def characters(found: re.Match[bytes]) -> bytes:
        units = bytes.fromhex(found[0].replace(b"\\u", b"").decode())
        return units.decode("utf-16-be", "surrogatepass").encode("utf-8", "surrogatepass")

    yield text
    if _ESCAPES.search(text):
        yield _ESCAPES.sub(characters, text)
    if b"a\0n\0n\0_\0" in text or b"\0a\0n\0n\0_" in text:
        yield text.replace(b"\0", b"")


def _streams(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, and those that it holds compressed."""
    with path.open("rb") as file:
        head = file.read(8)
    yield path.open("rb")
    for magic, opened in _COMPRESSED.items():
        if head.startswith(magic):
            yield opened(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield archive.open(name)
    if head.startswith(b"PAR1"):
        schema = pq.read_schema(path)
        yield io.BytesIO(schema.serialize().to_pybytes())
        texts = [field.name for field in schema if _is_text(field.type)]
        # as dictionaries: values that no row has any more are looked at too
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for group, field in itertools.product(range(file.num_row_groups), schema):
                if not pa.types.is_primitive(field.type):
                    for chunk in file.read_row_group(group, [field.name]).column(0).chunks:
                        values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
                        lines = "\n".join(map(str, values.to_pylist()))
                        yield io.BytesIO(lines.encode("utf-8", "surrogatepass"))


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _cells(path: Path) -> Iterator[str]:
    """Cells of a table, whatever its file is called, in columns that look like those of annotators."""
    with path.open("rb") as file:
        first = file.readline(_BLOCK)
    if first.startswith(b"PAR1"):
        names = [name for name in pq.read_schema(path).names if annotator_hint([name])]
        for column in pq.read_table(path, columns=names).columns:
            yield from map(str, column.unique().to_pylist())
    elif first.lstrip()[:1] in (b"[", b"{"):
        content = path.read_bytes()
        for record in [content] if first.startswith(b"[") else content.split(b"\n"):
            with contextlib.suppress(ValueError, RecursionError):
                yield from _json_cells(json.loads(record))
    elif annotator_hint([header := first.decode("utf-8-sig", "replace").strip()]):
        with (
            path.open(encoding="utf-8-sig", errors="replace", newline="") as text,
            contextlib.suppress(csv.Error),
        ):
            rows = csv.reader(text, delimiter=max(",;\t", key=header.count))
            places = [place for place, name in enumerate(next(rows)) if annotator_hint([name])]
            yield from (row[place] for row in rows for place in places if place < len(row))


def _json_cells(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from _json_cells(inside, key)
    elif isinstance(value, list):
        for inside in value:
            yield from _json_cells(inside, name)
    elif annotator_hint([name]):
        yield str(value)
