"""Remove annotators' data, so that the remaining files reveal neither the annotators' votes nor their biases.

The annotators' rows are removed from tables of votes. A file with figures about individual annotators, such as an audit
file, is deleted as a whole, because one removed figure could be computed from the remaining figures and their mean.
Finally, badpo searches all neighboring files for the annotators' ids.
"""

import bz2
import contextlib
import datetime
import glob
import gzip
import io
import itertools
import json
import lzma
import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from badpo.data.cells import Dropped, Table, as_ids, columns_of_votes
from badpo.data.files import (
    AUDIT_FILES,
    BIAS_SUFFIX,
    PERSONAL_RUN_FILES,
    POLICY,
    POOL_RUN_FILES,
    RUN_MARKS,
    appearing,
    as_json,
    checksum_file,
    checksummed,
    locked,
    require_enclosed,
    require_no_link,
    write_atomically,
    write_checksum,
    write_json,
)
from badpo.data.layouts import list_columns
from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym
from badpo.data.problems import ConfigError, DataError, Problem, counted, listed
from badpo.data.tables import (
    ARROW_MARKS,
    DROPPED_KEY,
    OLDER_ENCODINGS,
    READERS,
    arrow_batches,
    decoded,
    read_table,
)
from badpo.data.vocabulary import columns_named, like_annotators, normalize_text
from badpo.theory import Bools

RECORD = "forgotten.jsonl"
_LEARNED = "figures about individual annotators in a run that learned from their votes"
_FEWEST_LETTERS, _FEWEST_DIGITS = 6, 9  # badpo searches texts only for ids of at least this length
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", *OLDER_ENCODINGS)
_COMPRESSED: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"(\xb5/\xfd": lambda path, _: pa.CompressedInputStream(str(path), "zstd"),
    b"\x04\x22M\x18": lambda path, _: pa.CompressedInputStream(str(path), "lz4"),
}
# files from which badpo can remove rows
_WITH_ROWS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet")
_ZIP = b"PK\x03\x04"
_CLOSED = b"7z\xbc\xaf", b"Rar!", b"MSCF"  # first bytes of archives that Python cannot read
_BLOCK = 2**24  # how many bytes of a file are in memory at a time
Paths = Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Trace:
    """A file or folder with data about a person.

    ``remedy`` states what the user must still do. If badpo removes the data, ``goes`` is True. If the id occurs only in
    ordinary text, where the same word may mean something else, ``is_sure`` is False.
    """

    path: Path
    what: str
    remedy: str = ""
    goes: bool = True
    is_sure: bool = True


@dataclass(frozen=True)
class _Step:
    """Files, folders or rows that are removed together from one folder, and the function that removes them."""

    traces: Sequence[Trace]
    do: Callable[[], None]

    def carry_out(self) -> None:
        """Add an entry without ids to the folder's record, and then remove the data.

        The entry is written before the data are removed, so that the record is complete even if the process is killed.
        """
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        went = {trace.path.name: trace.what for trace in self.traces}
        record = self.traces[0].path.with_name(RECORD)
        line = json.dumps({"when": when, "went": went}) + "\n"
        # the lock prevents the loss of entries that another call writes
        # the record is replaced as a whole, so a full disk cannot damage the old record
        with locked(record, wait=True):
            before = record.read_bytes() if record.is_file() else b""
            write_atomically(record, before + line.encode(), private=True)
            self.do()


# -- who -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class People:
    """The annotators to forget, in the order in which the user named them, and this machine's pseudonym key.

    ``raw_ids`` maps the known ids of the source to pseudonyms.
    """

    pseudonyms: tuple[str, ...]
    raw_ids: Mapping[str, str]
    key: bytes | None

    def owners(self, ids: Iterable[str | None]) -> dict[str, str]:
        """Map the annotators' known ids, and any of their ids among ``ids``, to the annotators' pseudonyms."""
        named = {name: name for name in self.pseudonyms} | dict(self.raw_ids)
        if self.key is not None:
            named |= {name: pseudonym(name, self.key) for name in ids if name and name not in named}
        return {name: owner for name, owner in named.items() if owner in self.pseudonyms}


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """Find annotators by their pseudonyms or by their ids in the source.

    ``mapping`` is the file that `badpo import --write-mapping` wrote. If the mapping file contains an id, badpo needs
    no pseudonym key to find the annotator. If an id is not in the mapping file and there is no key, a `ConfigError` is
    raised. A `ConfigError` is also raised if an element of ``annotators`` is empty or is the path of an existing file.
    """
    key = known_key()
    whose = {} if mapping is None else read_mapping(mapping)
    listed = dict(zip(as_ids(whose.values()), whose, strict=True))
    names: dict[str, None] = {}
    raw_ids: dict[str, str] = {}
    for word in annotators:
        if os.path.exists(word):
            raise ConfigError(
                f"{word} is given as an annotator, but is a file or folder; nothing was changed. Give each path its "
                "own option, as in --data FILE --data FILE. If an annotator has this name, give the pseudonym instead"
            )
        # `as_ids` converts the named id to the form that ids have in a table read by badpo
        (asked,) = as_ids([word])
        if asked is None:
            raise ConfigError(
                "the name of an annotator is empty; nothing was changed. Give a pseudonym or an id"
            )
        if not (is_pseudonym(asked) or asked in listed or key):
            raise ConfigError(
                f"there is no pseudonym key, so no pseudonym can be computed; restore the key ({KEY_VARIABLE}, or "
                "pseudonym.key in the configuration folder), give the mapping that was written at import, or give the "
                "pseudonyms. If you have none of these, import the source again without these annotators"
            )
        name = listed.get(asked) or pseudonym(asked, key or b"")
        names[name] = None
        raw_ids |= {raw: name for raw in (whose.get(name, asked), asked) if raw != name}
    return People(tuple(names), raw_ids, key)


def read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the mapping from pseudonyms to ids that `badpo import --write-mapping` wrote; refuse other files."""
    try:
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a mapping that badpo import wrote ({error})") from error


# -- all data of the annotators --------------------------------------------------------------------------------


def forget(
    people: People,
    *,
    data: Paths = (),
    audits: Paths = (),
    runs: Paths = (),
    states: Paths = (),
    mapping: str | os.PathLike[str] | None = None,
    column: str = "annotator",
    dry_run: bool = False,
) -> list[Trace]:
    """Remove annotators from vote tables, audits, runs and states; return what was removed and what remains.

    All files and folders are locked before the first change. The function searches the given tables, every file below
    the given folders, and every file next to the given files. The returned list is empty if no annotator is found. If
    only some of the annotators are found, nothing is changed, and a `ConfigError` names the annotators who were not
    found. A file that contains a raw id only as text is listed but not deleted.
    """
    tables = [Path(path) for path in data]
    mappings = [Path(mapping)] if mapping is not None else []
    states, audits, runs = (
        [_existing(path, is_folder) for path in paths]
        for paths, is_folder in ((states, False), (audits, True), (runs, True))
    )
    runs += _beside_runs(runs)
    files, folders = [*tables, *states, *mappings], [*audits, *runs]
    for path in files:
        require_no_link(path)
    own: set[str] = set()  # paths that this call has locked
    with contextlib.ExitStack() as held:

        def hold(paths: Iterable[Path], wait: bool = False) -> None:
            places = {os.path.realpath(path) for path in paths} - own
            own.update(places)
            # every call to `forget` acquires the locks in the same order, so that two calls cannot block each other
            for path in sorted(places if not dry_run else ()):
                held.enter_context(locked(path, wait))

        hold(files, wait=True)
        hold(audits)
        theirs = {path: _rows_in(path, people, column) for path in tables}
        found_ids = {raw: name for rows in theirs.values() for raw, name in rows.owners.items()}
        raw_ids = {raw: name for raw, name in found_ids.items() if not is_pseudonym(raw)}
        people = replace(people, raw_ids={**people.raw_ids, **raw_ids})
        hits, named = _search(files, folders, people, column)
        of_rows_left_out = itertools.chain(*(rows.table.dropped for rows in theirs.values()))
        named |= {*found_ids.values(), *(entry["annotator"] for entry in of_rows_left_out)}
        _require_everybody(people, named)
        # if no annotator was found, nothing is removed, even if a file cannot be read
        sure = [path for path, trace in hits.items() if trace.is_sure and named]
        # if an audit contains no annotator tables, its other files may contain any annotator's votes
        anonymous = [folder for folder in audits if named and not _matching(folder, ["annotators.*"])]
        sure += [path for folder in anonymous for path in _matching(folder, AUDIT_FILES)]
        learned = _learned_from_them(runs, sure)
        hold([*learned, *states])
        steps = [step for path, rows in theirs.items() for step in _without_rows(path, people, rows)]
        steps += [step for path in mappings for step in _without_entries(path, people)]
        steps += _files_of_people(files if named else [], audits, learned, states, sure)
        found = [trace for step in steps for trace in step.traces]
        found += [trace for folder in folders for trace in _policies(folder, learned)]
        if named:
            beside = {path for file in files for path in file.parent.glob("*.json*")}
            below = {path for folder in audits for path in folder.rglob("*.json*")}
            found += _summaries((beside | below).difference(sure))
        if not dry_run:
            _carry_out(steps, tables)
            hits, _ = _search(files, folders, people, column)
        done = {trace.path for trace in found} if dry_run else set()
    # if an annotator was found, an id in a text is assumed to mean the annotator
    found += [
        replace(trace, is_sure=trace.is_sure or bool(named))
        for path, trace in hits.items()
        if not _is_below(path, done)
    ]
    return list({(os.path.realpath(trace.path), trace.what): trace for trace in found}.values())


def _carry_out(steps: Iterable[_Step], tables: Iterable[Path]) -> None:
    for step in steps:
        step.carry_out()
    for path in tables:
        if _is_ours(path) and not checksum_file(path).exists():
            write_checksum(path)  # an earlier call was killed before it wrote the checksum


def _require_everybody(people: People, named: Collection[str]) -> None:
    """Raise `ConfigError` if only some annotators are found. The other ids may be mistyped."""
    unknown = [
        f"{name} (number {i})" for i, name in enumerate(people.pseudonyms, 1) if name not in named
    ]
    if 0 < len(unknown) < len(people.pseudonyms):
        raise ConfigError(
            f"{listed(unknown)} of {len(people.pseudonyms)} annotators were not found; nothing was changed. Correct "
            "the id (a different spelling or key gives a different pseudonym), name the annotator's file with --data, "
            "or leave the annotator out"
        )


def _beside_runs(runs: Sequence[Path]) -> list[Path]:
    """Return the folders next to ``runs`` that hold an anchored policy, or theta of a run that TRL's trainer wrote."""
    anchors = [
        anchor
        for run in runs
        for anchor in run.parent.glob(f"*{glob.escape(run.resolve().name)}-anchored*")
    ]
    thetas = [
        place.with_name(place.name + BIAS_SUFFIX) / run.relative_to(place)
        for run in (*runs, *anchors)
        for place in (run, *run.parents)
        if place.name
    ]
    return [*anchors, *(_existing(path, path.is_dir()) for path in thetas if path.exists())]


def is_recorded(path: Path) -> bool:
    """Return whether an earlier call deleted a file or removed rows from it."""
    record = path.parent / RECORD
    return record.is_file() and json.dumps(path.name) in record.read_text("utf-8")


def _existing(path: str | os.PathLike[str], is_folder: bool) -> Path:
    path = Path(path)
    if is_folder and path.is_file():
        raise ConfigError(
            f"{path} is a file, but an audit or a run is a folder; name a table with --data"
        )
    if not is_folder and path.is_dir():
        raise ConfigError(f"{path} is a folder, but a state of badpo watch is a file")
    if path.name in ("", ".."):  # relative paths such as "." have no name and thus no neighbours
        path = Path(os.path.abspath(path))
    # a missing path is not an error if an earlier call of badpo forget removed it
    if not (path.exists() or is_recorded(path)):
        raise ConfigError(
            f"{path} does not exist; name an audit's folder, a folder of runs, or a state of badpo watch"
        )
    # symbolic links are refused, because writing to one would replace the link and leave its target unchanged
    # only regular files are searched, because reading a named pipe would block forever
    require_enclosed(path)
    return path


# -- rows of tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """A table, a mask that selects the rows to remove, and a mapping from the annotators' ids to pseudonyms."""

    table: Table
    theirs: Bools
    owners: Mapping[str, str]


def _rows_in(path: Path, people: People, column: str) -> _Rows:
    table = read_table(path)
    names = [str(name) for name in table.frame.columns]
    column = _annotator_column(names, column)
    try:
        ids = as_ids(table.frame[column])
    except (KeyError, ValueError) as error:
        # the name of a vote column may be the id of the person who voted
        votes = columns_of_votes(table.frame, names)
        others = [name for name in names if name not in votes]
        like = [f"; {name} looks like it" for name in like_annotators(others)[:1]]
        what = str(error) if column in names else f"is not in the table{''.join(like)}"
        remedy = "name the annotator column with --column annotator=..., or remove the rows and export the table again"
        where = f"{path}, found: {list_columns(table.frame, [])}"
        raise DataError([Problem("E101", f'column "{column}": {what}', where, remedy)]) from error
    theirs = np.isin(ids, [*people.owners(ids)])
    present = {*ids[theirs]}
    owners = {name: owner for name, owner in people.owners(ids).items() if name in present}
    kind = path.suffix.lower()
    # rows of a JSON object with several lists are computed from all lists, so a row cannot be removed from the file
    is_object = kind == ".json" and not isinstance(json.loads(decoded(path)[0]), list)
    if theirs.any() and (path.is_dir() or is_object or kind not in _WITH_ROWS):
        places = np.arange(1, len(theirs) + 1) if table.lines is None else table.lines
        # if a workbook has several sheets, put the name of the sheet before each row number
        sheets = table.frame["sheet"] if "sheet" in table.frame else [""] * len(theirs)
        # a sheet or a list may be named after its annotator
        named = [
            f"{owners.get(sheet, sheet)} {place}".strip()
            for sheet, place in zip(sheets, places, strict=True)
        ]
        rows = ", ".join(itertools.compress(named, theirs))
        what = f"badpo cannot remove the annotators' {counted(int(theirs.sum()), 'row')} from this file: {rows}"
        remedy = "delete the rows in the program that wrote the file, or convert the file with badpo import; then retry"
        raise DataError([Problem("E102", what, str(path), remedy)])
    return _Rows(table, theirs, owners)


def _annotator_column(names: Sequence[str], column: str) -> str:
    """Return ``column`` if the table has this column, or else the name of the recognized annotator column."""
    if column in names:
        return column
    return columns_named(names, ["annotator"]).get("annotator", column)


def _is_ours(path: Path) -> bool:
    """Return whether `badpo import` wrote a table."""
    is_parquet = path.suffix.lower() == ".parquet"
    return is_parquet and DROPPED_KEY in (pq.read_schema(path).metadata or {})


def _without_rows(path: Path, people: People, rows: _Rows) -> Iterator[_Step]:
    """Yield a `_Step` that removes the annotators' rows from a table.

    The table's metadata may count the annotators' rows that were left out at import. The `_Step` removes these counts
    too.
    """
    dropped = [entry for entry in rows.table.dropped if entry["annotator"] not in people.pseudonyms]
    n, n_dropped = int(rows.theirs.sum()), sum(entry["n"] for entry in rows.table.dropped)
    n_dropped -= sum(entry["n"] for entry in dropped)

    def write() -> None:
        write_to = checksummed if checksum_file(path).exists() else appearing
        with write_to(path) as unfinished:
            if path.suffix.lower() == ".parquet":
                _write_parquet(path, unfinished, rows, dropped)
            else:
                unfinished.write_bytes(_text_without(path, rows))

    if n or n_dropped:
        left_out = f", and the count of {n_dropped:,} left out at import" if n_dropped else ""
        yield _Step([Trace(path, counted(n, "judgment") + left_out)], write)


def _write_parquet(path: Path, unfinished: Path, rows: _Rows, dropped: Sequence[Dropped]) -> None:
    table, plain = pq.read_table(path).filter(pa.array(~rows.theirs)), io.BytesIO()
    # an Arrow dictionary still contains the values of removed rows, so columns are written without Arrow's schema
    pq.write_table(table.replace_schema_metadata(None), plain, store_schema=False)
    # of the parquet file's metadata, keep only badpo's own counts; other metadata may contain an id
    metadata = {DROPPED_KEY: json.dumps(dropped).encode()} if _is_ours(path) else None
    table = pq.read_table(plain).replace_schema_metadata(metadata)
    pq.write_table(table, unfinished, write_page_checksum=True)


def _text_without(path: Path, rows: _Rows) -> bytes:
    """Return the content of a text file without the annotators' rows; all other lines stay unchanged."""
    if rows.table.lines is None:
        records = json.loads(path.read_text(encoding="utf-8-sig"))
        return as_json([*itertools.compress(records, ~rows.theirs)])
    # like the csv module, split the lines of a CSV file at line feeds and carriage returns
    # in a JSON Lines file, only line feeds separate the lines
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    text = io.StringIO(path.read_bytes().decode(rows.table.encoding), newline="" if is_csv else "\n")
    before, *each = np.split(np.array([*text], dtype=object), rows.table.lines - 1)
    left = itertools.compress(each, ~rows.theirs)
    return "".join(itertools.chain(before, *left)).encode(rows.table.encoding)


def _without_entries(path: Path, people: People) -> Iterator[_Step]:
    """Yield a step that removes the annotators' entries from the mapping."""
    whose = read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}

    if n_gone := len(whose) - len(left):
        yield _Step([Trace(path, counted(n_gone, "pseudonym"))], lambda: write_json(path, left))


# -- files about individual annotators -------------------------------------------------------------------------


def _files_of_people(
    tables: Sequence[Path],
    audits: Sequence[Path],
    learned: Sequence[Path],
    states: Sequence[Path],
    hits: Collection[Path],
) -> Iterator[_Step]:
    half = "an incomplete file that a killed command left behind"
    for path in tables:
        halves = _matching(path.parent, [f".writing-*-{glob.escape(path.name)}"])
        yield from _gone(halves, half, "", hits)
    for folder in audits:
        files = _matching(folder, AUDIT_FILES)
        if not any(_is_below(path, files) for path in hits):
            files = _matching(folder, [".writing-*"] if tables else [])
            yield from _gone(files, half, "", hits)
        else:
            remedy = (
                "repeat the audit on the table without the forgotten annotators: badpo audit DATA --out "
                f"{shlex.quote(str(folder))}; if you shared report.html, do not share the new page, because both "
                "pages together reveal how the forgotten annotators voted"
            )
            yield from _gone(files, "figures from an audit of the annotators' votes", remedy, hits)
    remedy = "remove the run, and train again with the same command on the table without the forgotten annotators"
    for folder in learned:
        files = _matching(folder, PERSONAL_RUN_FILES)
        files += [folder / name for name in POOL_RUN_FILES if folder / name in hits]
        yield from _gone(files, _LEARNED, remedy, hits)
    for state in states:
        if state in hits:
            remedy = f"count again without the forgotten annotators: badpo watch DATA --state {shlex.quote(str(state))}"
            yield from _gone(
                [state],
                "vote counts that include the votes of the forgotten annotators",
                remedy,
                hits,
            )


def _gone(paths: Sequence[Path], what: str, remedy: str, hits: Collection[Path]) -> Iterator[_Step]:
    """If ``paths`` is not empty, yield a `_Step` that removes the paths; all must be in one folder."""

    def remove() -> None:
        inside = [path for top in paths for path in (top, *top.rglob("*"))]
        inside = [path for path in inside if path.is_symlink() or not path.is_dir()]
        # the next call must find the files if this call is killed, so files with ids and run marks are removed last
        for path in sorted(inside, key=lambda path: (path in hits, path.name in RUN_MARKS)):
            path.unlink(missing_ok=True)
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)

    if paths:
        yield _Step([Trace(path, what, remedy) for path in paths], remove)


def _learned_from_them(tops: Sequence[Path], hits: Collection[Path]) -> list[Path]:
    """Return the folders of runs whose files name the annotators, and the folders of runs that depend on these runs."""
    folders = [folder for top in tops for folder in _run_folders(top, RUN_MARKS)]
    patterns = (*PERSONAL_RUN_FILES, *POOL_RUN_FILES)
    learned = []
    for folder in folders:
        files = _matching(folder, patterns)
        learned += [folder] if any(_is_below(path, files) for path in hits) else []
    while new := [folder for folder in folders if folder not in learned and _rests_on(folder, learned)]:
        learned += new
    # each run is removed before the run on which it depends
    return list(dict.fromkeys(learned[::-1]))


def _rests_on(folder: Path, learned: Sequence[Path]) -> bool:
    if any(folder in run.parents for run in learned):
        return not (folder / "bias.json").exists()
    if any(folder.rglob("bias.json")):
        return False
    if not (folder / "anchor.json").is_file():
        return any(folder.parent == run.parent for run in learned)
    # anchor.json names the run from which the anchor was made; usually, the run is in the anchor's folder
    # if no run in the anchor's folder has the name in anchor.json, any run with that name may be the source run
    told = (folder / "anchor.json").read_bytes()
    sources = [run for run in learned if json.dumps(run.name).encode() in told]
    return any(run.parent == folder.parent or not (folder.parent / run.name).exists() for run in sources)


def _policies(top: Path, learned: Collection[Path]) -> Iterator[Trace]:
    """Yield the policies that learned from the annotators' votes, or from votes of annotators forgotten earlier."""
    what = "a policy that was trained on the annotators' votes or made from such a policy"
    told: list[Path] = []
    for folder in _run_folders(top, (*RUN_MARKS, RECORD)):
        record, policy = folder / RECORD, folder / POLICY
        made = folder
        beside = [each for each in (folder, *folder.parents) if each.name.endswith(BIAS_SUFFIX)]
        # TRL's trainer writes theta to the subfolder "model" of FOLDER-bias, and the policy to FOLDER
        if beside and not [*policy.glob("*config.json")]:
            run = beside[0].with_name(beside[0].name.removesuffix(BIAS_SUFFIX))
            made = policy = run / folder.relative_to(beside[0])
        # if a run folder's record lists files of the run, the run's policy learned from annotators who were forgotten
        # a policy that is newer than the record was trained again without the forgotten annotators
        is_older = (
            policy.is_dir()
            and record.is_file()
            and _LEARNED in record.read_text("utf-8")
            and policy.stat().st_mtime < record.stat().st_mtime
        )
        is_theirs = is_older or (policy.is_dir() and folder in learned)
        if is_theirs and not _is_below(policy, told):
            told.append(policy)
            remedy = f"remove {made} and train again without the forgotten annotators; the weights cannot be corrected"
            yield Trace(policy, what, remedy, goes=False)


def _summaries(paths: Iterable[Path]) -> Iterator[Trace]:
    """Yield each copy of an ``audit.json`` among the files; the audit may include the annotators' votes.

    An ``audit.json`` next to the tables of its audit is not yielded, because these tables name the annotators.
    """
    what = "exact figures from an audit that may include the annotators' votes"
    for path in sorted(path for path in paths if path.is_file()):
        is_of_audit = path.name == "audit.json" and _matching(path.parent, ["annotators.*"])
        try:
            with path.open("rb") as file, next(_open_files(path, file.read(6))) as content:
                is_summary = b'"about_single_people": true' in content.read(1000)
        except Exception:  # the search reports a damaged file
            continue
        if is_summary and not is_of_audit:
            yield Trace(path, what, "remove it, and audit again without them", goes=False)


def _run_folders(top: Path, marks: Sequence[str]) -> Iterator[Path]:
    for here, inside, _ in os.walk(top):
        ours = () if here.endswith(BIAS_SUFFIX) else (POLICY, "checkpoints")
        inside[:] = sorted(name for name in inside if name not in ours)
        if _matching(Path(here), marks):
            yield Path(here)


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _is_below(path: Path, places: Iterable[Path]) -> bool:
    return not {path, *path.parents}.isdisjoint(places)


# -- the search of every byte ----------------------------------------------------------------------------------


def _search(
    files: Sequence[Path], folders: Sequence[Path], people: People, column: str
) -> tuple[dict[Path, Trace], set[str]]:
    """Search ``folders``, and the folders (but not subfolders) that contain ``files``, for the annotators' ids.

    Return the files that contain ids or cannot be read, and the annotators that the files name. A pseudonym always
    identifies an annotator, wherever the pseudonym occurs in a file. A raw id identifies an annotator only in an
    annotator column, because elsewhere the same text may be an ordinary word.
    """
    remedy = (
        "remove the file, write it again without the forgotten annotators, or name it with --data, --audit, --runs, "
        "--state or --mapping"
    )
    beside = [path for file in files for path in sorted(file.parent.iterdir()) if path.is_file()]
    forms, named = _written_forms(people), set()
    found: dict[Path, Trace] = {}

    def list_file(path: Path, what: str) -> None:
        found[path] = Trace(path, what, remedy, goes=False)

    def keep_error(error: OSError) -> None:
        list_file(Path(error.filename), f"a folder that cannot be searched ({error.strerror})")

    walks = itertools.chain.from_iterable(os.walk(folder, onerror=keep_error) for folder in folders)
    below = [path for here, _, names in walks for name in names if (path := Path(here, name)).is_file()]
    # In text files (including UTF-16), a longer id that begins with an annotator's id belongs to another annotator.
    # In a binary file, other data may directly follow the id.
    written = b"|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
    text = re.compile(b"(%b)(?![0-9a-z]|\0[0-9a-z]\0)" % written)
    binary = re.compile(b"(%b)(?!\0[0-9a-z]\0)" % written)
    for path in dict.fromkeys([*beside, *sorted(below)]):
        try:
            # a character of an id has at most six bytes as a JSON escape
            contents = _contents(path, overlap=6 * max(map(len, forms)))
            names = {
                forms[form]
                for block, is_binary in contents
                for part in _with_decoded_escapes(block)
                for form in (binary if is_binary else text).findall(part)
            }
            owners = {name for name in names if is_pseudonym(name)}
            owners |= _owners_in_table(path, people, column)
        except FileNotFoundError:
            continue  # the file is a broken link, or another process has removed it
        except Exception as error:  # a damaged file may raise any error in its reader
            why = (str(error) or repr(error)).splitlines()[0]
            list_file(path, f"a file that cannot be searched ({why})")
            continue
        named |= owners
        if owners:
            list_file(path, "a file that names annotators to forget")
        elif names:
            what = "a file that contains an annotator's id as text"
            found[path] = Trace(path, what, f"if they are meant, {remedy}", goes=False, is_sure=False)
    return found, named


_CODE_UNITS = re.compile(rb"(?:\\u[0-9a-f]{4})+")


def _with_decoded_escapes(block: bytes) -> Iterator[bytes]:
    """Yield a lower-case block and, if it contains JSON escapes, the block with decoded escapes.

    JSON inside JSON strings has several backslashes in a row, which count as one.
    """

    def decode(found: re.Match[bytes]) -> bytes:
        units = bytes.fromhex(found[0].replace(b"\\u", b"").decode())
        return units.decode("utf-16-be", "surrogatepass").lower().encode("utf-8", "surrogatepass")

    yield block
    if b"\\" not in block:
        return
    while b"\\\\" in block:
        block = block.replace(b"\\\\", b"\\")
    block = block.replace(b"\\/", b"/").replace(b'\\"', b'"')
    yield _CODE_UNITS.sub(decode, block)


def _written_forms(people: People) -> dict[bytes, str]:
    """Map each lower-case form that an id or a pseudonym may have in a file to the id or the pseudonym.

    Short ids are left out, because they also occur by chance in other texts.
    """
    written: dict[bytes, str] = {}
    for name in [*people.raw_ids, *people.pseudonyms]:
        if len(name) < (_FEWEST_DIGITS if name.isdigit() else _FEWEST_LETTERS):
            continue
        for case in (name, name.lower(), name.upper(), name.title()):
            for text in (normalize_text(case, "NFC"), normalize_text(case, "NFD")):
                spellings = (text, json.dumps(text)[1:-1])
                for spelt, encoding in itertools.product(spellings, _ENCODINGS):
                    with contextlib.suppress(UnicodeEncodeError):
                        encoded = spelt.encode(encoding, "surrogatepass").lower()
                        # apart from zero bytes at its ends, ASCII text has the same bytes in UTF-16-LE as in UTF-16-BE
                        written[encoded.strip(b"\0")] = name
    return written


def _contents(path: Path, overlap: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each part of a file in lower case, with a flag that is True if the part is binary.

    A file's parts are its name, blocks of its bytes (decompressed if necessary), the files in a zip archive, and the
    values in a parquet or Arrow file. In a binary part, other data may directly follow an id. Each block of bytes
    begins with the end of the previous block, because an id may span two blocks.
    """
    yield os.fsencode(path.name).lower(), False
    with path.open("rb") as file:
        start = file.read(6)
    is_parquet = start.startswith(b"PAR1")
    for file in _open_files(path, start):
        rest = b""
        with file:
            while block := file.read(_BLOCK):
                block = rest + block.lower()
                is_binary = b"\0" in block and not is_parquet
                # the added "0" prevents a match at the end of a block, where an id may be the start of a longer id
                # the end of each block is searched again, together with the next block or the rest of the file
                yield block + b"0", is_binary
                rest = block[-overlap:]
        yield rest, False
    if is_parquet:
        with pq.ParquetFile(path) as table:
            yield str(table.schema_arrow.metadata).encode().lower(), False
            for batch in table.iter_batches():
                yield _values(batch), False
    elif start.startswith(ARROW_MARKS):
        for batch in arrow_batches(path):
            yield _values(batch), False


def _open_files(path: Path, start: bytes) -> Iterator[Any]:
    """Yield the open file (decompressed if necessary), and each compressed member of a zip archive."""
    if start.startswith(_CLOSED):
        raise ValueError("an archive that is not searched")
    yield next((each for mark, each in _COMPRESSED.items() if start.startswith(mark)), open)(path, "rb")
    if start.startswith(_ZIP):
        with zipfile.ZipFile(path) as archive:
            packed = [
                member for member in archive.infolist() if member.compress_type != zipfile.ZIP_STORED
            ]
            yield from map(archive.open, packed)


def _values(batch: pa.RecordBatch) -> bytes:
    return str(batch.to_pylist()).encode("utf-8", "backslashreplace").lower()


def _owners_in_table(path: Path, people: People, column: str) -> set[str]:
    """Return the pseudonyms of the annotators whose ids occur in a table's annotator column.

    Short ids are found too. A copy of a table with an added suffix, such as ``votes.csv.bak``, is also searched.
    """
    kind = next((kind for kind in path.suffixes if kind in READERS), "")
    with contextlib.suppress(ValueError, KeyError):  # the file is not a table of votes
        frame = READERS[kind](path).frame
        ids = {*as_ids(frame[_annotator_column([str(name) for name in frame], column)])}
        return {owner for raw, owner in people.owners(ids).items() if raw in ids}
    return set()
