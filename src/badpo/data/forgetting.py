"""Forgetting a person, so that what stays does not give away what they voted or how they lean.

Rows go from tables of votes. A file about single people, as an audit and a run have them, goes whole: with a mean or a
sum beside it, the rest of such a file would tell the missing value. Then every file beside them is searched for names.
"""

from __future__ import annotations

import bz2
import contextlib
import datetime
import glob
import gzip
import html
import io
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
    AUDIT_FILES,
    PERSONAL_RUN_FILES,
    POLICY,
    POOL_RUN_FILES,
    RUN_MARKS,
    appearing,
    checksum_file,
    checksummed,
    holder,
    locked,
    require_enclosed,
)
from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym
from badpo.data.problems import ConfigError, DataError, Problem, counted
from badpo.data.tables import DROPPED_KEY, READERS, Table, annotator_hint, as_ids, read_table, text_columns

RECORD = "forgotten.jsonl"
_BLOCK = 2**24
_OVERLAP = 2**12
_FEWEST_LETTERS, _FEWEST_DIGITS = 6, 9  # of an id that is looked for in any text
_COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


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
        known = {name: self._is_one(name) for name in set(ids.tolist())}
        return np.array([known[name] for name in ids], dtype=bool)

    def _is_one(self, name: str | None) -> bool:
        if name is None or name in self.pseudonyms or name in self.raw_ids:
            return name is not None
        return self.key is not None and pseudonym(name, self.key) in self.pseudonyms


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """People who are named by pseudonym or by the id in the source.

    A mapping, the file of `badpo import --write-mapping`, knows pseudonyms without the key. Where neither does, a
    `ConfigError` says so.
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
    # what `badpo anchor` made of a run stands beside it
    runs += [
        anchor for run in runs for anchor in run.parent.glob(f"*{glob.escape(run.resolve().name)}-anchored*")
    ]
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
        going = list(_going(audits, runs, states, hits))
        if not dry_run:
            for place in going:
                held.enter_context(locked(place.path))
        half_written = [
            half for path in files for half in sorted(path.parent.glob(f".writing-*-{path.name}"))
        ]
        for half in half_written if not dry_run else ():
            half.unlink()
        found = [Trace(half, "half of a file that a killed command was writing") for half in half_written]
        found += [trace for path in tables for trace in _take_rows(path, people, rows[path], dry_run)]
        found += [] if mapping is None else _take_entries(Path(mapping), people, dry_run)
        found += [trace for place in going for trace in place.remove(hits, dry_run)]
        found += [
            policy for folder in folders for policy in _policies(folder, {place.path for place in going})
        ]
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


# -- rows of tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """A table, whose rows of it are theirs, and by which ids it knows them."""

    table: Table
    theirs: NDArray[np.bool_]
    raw_ids: frozenset[str]


def _rows_in(path: Path, people: People, column: str) -> _Rows:
    table = read_table(path)
    names = [str(name) for name in table.frame.columns]
    what = f"is not in the table.{annotator_hint(names)}"
    try:
        if column in names:
            ids = as_ids(table.frame[column])
            theirs = people.rows(ids)
            return _Rows(table, theirs, frozenset(name for name in ids[theirs] if not is_pseudonym(name)))
    except ValueError as error:
        what = str(error)
    remedy = "name it with --column annotator=..., or take them out in the program that wrote this and export again"
    where = f"{path}, found: {', '.join(names)}"
    raise DataError([Problem("E101", f'column "{column}": {what}', where, remedy, "error")])


def _take_rows(path: Path, people: People, rows: _Rows, dry_run: bool) -> list[Trace]:
    """Their rows out of a table, and the counts of what was left out of theirs at import."""
    dropped = [entry for entry in rows.table.dropped if entry["annotator"] not in people.pseudonyms]
    n, n_dropped = int(rows.theirs.sum()), sum(entry["n"] for entry in rows.table.dropped)
    n_dropped -= sum(entry["n"] for entry in dropped)
    # a call that was killed may have left a table of ours without its checksum
    is_half_done = _is_ours(path) and not checksum_file(path).exists()
    if not dry_run and (n or n_dropped or is_half_done):
        if n or n_dropped:
            _note(path.parent, file=path.name, rows=n)
        _write_without(path, rows, dropped)
    left_out = f", and the count of {n_dropped:,} left out at import" if n_dropped else ""
    return [Trace(path, counted(n, "judgment") + left_out)] if n or n_dropped else []


def _is_ours(path: Path) -> bool:
    return path.suffix.lower() == ".parquet" and DROPPED_KEY in (pq.read_schema(path).metadata or {})


def _write_without(path: Path, rows: _Rows, dropped: Sequence[Mapping[str, Any]]) -> None:
    suffix, is_ours = path.suffix.lower(), _is_ours(path)
    with (checksummed if is_ours or checksum_file(path).exists() else appearing)(path) as unfinished:
        if suffix == ".parquet":
            # dictionaries hold values of rows that are gone, and metadata may name somebody
            table = pq.read_table(path).filter(pa.array(~rows.theirs))
            table = table.cast(pa.schema([(field.name, _plain_type(field.type)) for field in table.schema]))
            if is_ours:
                table = table.replace_schema_metadata({DROPPED_KEY: json.dumps(dropped).encode()})
            pq.write_table(table, unfinished, write_page_checksum=True)
        elif suffix == ".json":
            records = json.loads(path.read_text(encoding="utf-8-sig"))
            left = [record for record, gone in zip(records, rows.theirs, strict=True) if not gone]
            unfinished.write_bytes(_as_json(left))
        else:
            unfinished.write_bytes(_lines_without(path, rows))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """A type without dictionaries."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
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
    for row in np.flatnonzero(~rows.theirs):
        kept += lines[starts[row] : starts[row + 1]]
    return "".join(kept).encode("utf-8")


def _take_entries(path: Path, people: People, dry_run: bool) -> list[Trace]:
    """Their entries out of the mapping."""
    whose = read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}
    n_gone = len(whose) - len(left)
    if n_gone and not dry_run:
        _note(path.parent, file=path.name, rows=n_gone)
        with appearing(path) as unfinished:
            unfinished.write_bytes(_as_json(left))
    return [Trace(path, counted(n_gone, "entry"))] if n_gone else []


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

    def remove(self, hits: Collection[Path], dry_run: bool) -> list[Trace]:
        if not dry_run:
            folder = self.path if self.path.is_dir() else self.path.parent
            _note(folder, went=sorted(path.name for path in self.files))
            inside = [path for top in self.files for path in (top, *top.rglob("*"))]
            inside = [path for path in inside if path.is_symlink() or not path.is_dir()]
            # those that name them last, and those that make it a run: killed in between, another call finds the rest
            for path in sorted(inside, key=lambda path: (path in hits, path.name in RUN_MARKS)):
                path.unlink(missing_ok=True)
            for path in self.files:
                if path.is_dir():
                    shutil.rmtree(path)
        return [Trace(path, self.what, self.remedy) for path in self.files]


def _going(
    audits: Sequence[Path], runs: Sequence[Path], states: Sequence[Path], hits: Collection[Path]
) -> Iterator[_Place]:
    for folder in audits:
        files = _matching(folder, AUDIT_FILES)
        if _any_below(files, hits):
            remedy = f"make it again on the table without them: badpo audit DATA --out {folder}"
            yield _Place(folder, files, "figures of an audit that holds their votes", remedy)
    remedy = "remove the run and train it again on the table without them, by the command that made it"
    for folder in _learned_from_them(runs, hits):
        files = _matching(folder, PERSONAL_RUN_FILES)
        files += tuple(folder / name for name in POOL_RUN_FILES if folder / name in hits)
        yield _Place(folder, files, "numbers of single people in a run that learned from their votes", remedy)
    for state in states:
        if state in hits:
            remedy = f"count again, on the table without them: badpo watch DATA --state {state}"
            yield _Place(state, (state,), "what was counted of them and of others", remedy)


def _learned_from_them(tops: Sequence[Path], hits: Collection[Path]) -> list[Path]:
    """Run folders that name them, those that hold one, and those that name nobody and stand beside or rest on one."""
    folders = [folder for top in tops for folder in _run_folders(top, RUN_MARKS)]
    patterns = (*PERSONAL_RUN_FILES, *POOL_RUN_FILES)
    learned = [folder for folder in folders if _any_below(_matching(folder, patterns), hits)]
    while new := [folder for folder in folders if folder not in learned and _rests_on(folder, learned)]:
        learned += new
    # what was found by another goes before that one
    return list(dict.fromkeys(learned[::-1]))


def _rests_on(folder: Path, learned: Sequence[Path]) -> bool:
    if any(folder in run.parents for run in learned):
        return not (folder / "bias.json").exists()
    if any(folder.rglob("bias.json")):
        return False
    told = b"".join(path.read_bytes() for path in _matching(folder, RUN_MARKS) if path.suffix == ".json")
    if b'"source"' not in told:
        return any(folder.parent == run.parent for run in learned)
    # an anchor tells its source by name: the run of that name beside it, or, where it stands alone, any
    sources = [run for run in learned if json.dumps(run.name).encode() in told]
    return any(run.parent == folder.parent or not (folder.parent / run.name).exists() for run in sources)


def _policies(top: Path, changed: Collection[Path]) -> Iterator[Trace]:
    """Policies that learned from the votes of these people, or of others who were forgotten before."""
    what = "a policy that was trained on their votes, or that rests on one which was"
    for folder in _run_folders(top, (*RUN_MARKS, RECORD)):
        record, policy = folder / RECORD, folder / POLICY
        if not policy.is_dir():
            continue
        # one that is newer than the record has taken the place of that policy
        if folder in changed or (record.exists() and policy.stat().st_mtime < record.stat().st_mtime):
            remedy = (
                f"remove {folder} and make it again on the table without them; weights cannot be changed back"
            )
            yield Trace(policy, what, remedy, goes=False)


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


def _matching(folder: Path, patterns: Sequence[str]) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in patterns for path in folder.glob(pattern)}))


def _any_below(places: Iterable[Path], hits: Collection[Path]) -> bool:
    return any(not {path, *path.parents}.isdisjoint(places) for path in hits)


# -- the search of every byte ----------------------------------------------------------------------------------


def _search(files: Sequence[Path], folders: Sequence[Path], people: People) -> dict[Path, str]:
    """Files that name them, of those below some folders and beside some files; and what cannot be looked into."""
    beside = [path for file in files for path in sorted(file.parent.iterdir()) if path.is_file()]
    below = [Path(here, name) for folder in folders for here, _, names in os.walk(folder) for name in names]
    patterns = _patterns(people)
    found = {}
    for path in dict.fromkeys([*beside, *sorted(below)]):
        try:
            if any(_is_in(stream, patterns) for stream in _streams(path)) or _is_in_column(path, people):
                found[path] = "a file that names them"
        except FileNotFoundError:
            continue  # a link to nothing, or a file that another process has removed
        except Exception as error:  # whatever a damaged file does to its reader
            found[path] = f"a file that cannot be looked into ({(str(error) or repr(error)).splitlines()[0]})"
    return found


def _patterns(people: People) -> dict[bytes, re.Pattern[bytes]]:
    """What files are searched for: pseudonyms, and long ids in the forms that programs write them in."""
    long = {
        raw for raw in people.raw_ids if len(raw) >= (_FEWEST_DIGITS if raw.isdigit() else _FEWEST_LETTERS)
    }
    patterns = {}
    for text in {
        form for raw in long for form in (raw, json.dumps(raw)[1:-1], html.escape(raw))
    } | people.pseudonyms:
        for encoding, unit in (("utf-8", rb"%s"), ("utf-16-le", rb"%s\x00"), ("utf-16-be", rb"\x00%s")):
            content = text.strip().encode(encoding, "surrogatepass").lower()
            edge = unit % b"[0-9a-z]"
            # a letter before it may belong to an escape, such as \\n and %20
            begin = rb"(?:(?<!%s)|(?<=\\[a-z])|(?<=%%[0-9a-f]{2}))" % edge
            patterns[content] = re.compile(begin + b"%s(?!%s)" % (re.escape(content), edge))
    return patterns


def _is_in(stream: IO[bytes], patterns: Mapping[bytes, re.Pattern[bytes]]) -> bool:
    with stream:
        tail, block = b"", stream.read(_BLOCK)
        while block:
            following = stream.read(_BLOCK)
            text = tail + block.lower()
            for content, pattern in patterns.items():
                # what ends at the end may go on in the next block, which begins with it
                found = pattern.finditer(text) if content in text else ()
                if any(not following or one.end() + 2 <= len(text) for one in found):
                    return True
            tail, block = text[-_OVERLAP:], following
    return False


def _streams(path: Path) -> Iterator[IO[bytes]]:
    """The name of a file, its bytes, and those that it holds compressed."""
    yield io.BytesIO(path.name.encode("utf-8", "surrogateescape").lower())
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
        # as dictionaries: values that no row has any more are looked at too
        with pq.ParquetFile(path, read_dictionary=text_columns(schema)) as file:
            for group in range(file.num_row_groups):
                for column in file.read_row_group(group).itercolumns():
                    for chunk in column.chunks if not pa.types.is_primitive(column.type) else ():
                        values = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
                        yield io.BytesIO(
                            "\n".join(map(str, values.to_pylist())).encode("utf-8", "surrogatepass")
                        )


def _is_in_column(path: Path, people: People) -> bool:
    """Whether a table, or a copy of one, names them where people stand: a short id, such as 7, stands anywhere."""
    read = next((READERS[kind] for kind in path.suffixes if kind in READERS), None)
    try:
        frame = read(path).frame if read else pd.DataFrame()
        columns = [frame[name] for name in frame.columns if annotator_hint([str(name)])]
        return any(people.rows(as_ids(column)).any() for column in columns)
    except ValueError:
        return False  # no table, or no column of ids
