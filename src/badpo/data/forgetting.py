"""Forgetting a person, so that what stays does not give away what they voted or how they lean.

Rows go from tables of votes. A file about single people, as an audit and a run have them, goes whole: with a mean or a
sum beside it, the rest of such a file would tell the missing value. Then every file beside them is searched for names.
"""

import contextlib
import datetime
import glob
import html
import io
import itertools
import json
import os
import re
import shlex
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from badpo.data.cells import Table, as_ids, columns_named, like_annotators
from badpo.data.files import (
    AUDIT_FILES,
    BIAS_SUFFIX,
    NO_LINK,
    PERSONAL_RUN_FILES,
    POLICY,
    POOL_RUN_FILES,
    RUN_MARKS,
    appearing,
    as_json,
    checksum_file,
    checksummed,
    holder,
    locked,
    require_enclosed,
    require_no_link,
    write_checksum,
    write_json,
)
from badpo.data.privacy import KEY_VARIABLE, is_pseudonym, known_key, pseudonym
from badpo.data.problems import ConfigError, DataError, Problem, counted, listed
from badpo.data.tables import DROPPED_KEY, OLDER_ENCODINGS, PACKED, READERS, decoded, read_table
from badpo.theory import Bools

RECORD = "forgotten.jsonl"
_LEARNED = "numbers of single people in a run that learned from their votes"
_FEWEST_LETTERS, _FEWEST_DIGITS = 6, 9  # of an id that is looked for in any text
_BY = re.compile("who|.*_?by(_?id)?")  # such as completed_by
_COUNTS = re.compile(
    "(n|num|has)_.*|.*(_per_|encoder|decoder).*|.*_p"
)  # and other numbers that are nobody's id
_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", *OLDER_ENCODINGS)
_BLOCK = 2**24  # bytes of a file that are in memory at a time
Paths = Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Trace:
    """A place that holds something of a person: what is there, whether it goes, and what is left to do by hand."""

    path: Path
    what: str
    remedy: str = ""
    goes: bool = True


@dataclass(frozen=True)
class _Step:
    """What goes together from one folder: its traces, and how it is done."""

    traces: Sequence[Trace]
    do: Callable[[], None]

    def carry_out(self) -> None:
        """Do it; the record of the folder tells beforehand what goes, and no id stands in it."""
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        went = {trace.path.name: trace.what for trace in self.traces}
        record = self.traces[0].path.with_name(RECORD)
        handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({"when": when, "went": went}) + "\n")
        self.do()


# -- who -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class People:
    """Who is to be forgotten, in the order in which they were named, and this machine's key.

    ``raw_ids`` are the ids in the source as far as they are known, with the pseudonym of each.
    """

    pseudonyms: tuple[str, ...]
    raw_ids: Mapping[str, str]
    key: bytes | None

    def owners(self, ids: Iterable[str | None]) -> dict[str, str]:
        """The pseudonym of each id, raw or a pseudonym, that is one of theirs."""
        named = {name: name for name in self.pseudonyms} | dict(self.raw_ids)
        if self.key is not None:
            named |= {name: pseudonym(name, self.key) for name in ids if name and name not in named}
        return {name: owner for name, owner in named.items() if owner in self.pseudonyms}


def find_people(annotators: Sequence[str], mapping: str | os.PathLike[str] | None = None) -> People:
    """People who are named by pseudonym or by the id in the source.

    A mapping, the file of `badpo import --write-mapping`, knows pseudonyms without the key. A `ConfigError` says that
    neither does, or that a name is empty or that of a file.
    """
    key = known_key()
    whose = {} if mapping is None else read_mapping(mapping)
    listed = dict(zip(as_ids(whose.values()), whose, strict=True))
    names: dict[str, None] = {}
    raw_ids: dict[str, str] = {}
    for word in annotators:
        if os.path.exists(word):
            raise ConfigError(
                f"{word} is a file or folder, and was taken for an annotator: nothing was changed; name each place "
                "with an option of its own, such as --data FILE --data FILE, and an annotator of that name by pseudonym"
            )
        # as the reader of tables writes them
        (asked,) = as_ids([word])
        if asked is None:
            raise ConfigError("an annotator has no name: nothing was changed; name a pseudonym or an id")
        if not (is_pseudonym(asked) or asked in listed or key):
            raise ConfigError(
                "the pseudonym key is not there, so that no pseudonym can be computed: bring the key back "
                f"({KEY_VARIABLE}, or pseudonym.key in the configuration folder), give the mapping that was written "
                "at import, or name the pseudonyms; without any of these, import the source again without these people"
            )
        name = listed.get(asked) or pseudonym(asked, key or b"")
        names[name] = None
        raw_ids |= {raw: name for raw in (whose.get(name, asked), asked) if raw != name}
    return People(tuple(names), raw_ids, key)


def read_mapping(path: str | os.PathLike[str]) -> dict[str, str]:
    """Ids by pseudonym, from the file of `badpo import --write-mapping`; a `ConfigError` where it is none."""
    try:
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no mapping that badpo import wrote ({error})") from error


# -- everything of theirs --------------------------------------------------------------------------------------


def forget(
    people: People,
    *,
    data: Paths = (),
    audits: Paths = (),
    runs: Paths = (),
    states: Paths = (),
    mapping: str | os.PathLike[str] | None = None,
    column: str | None = None,
    dry_run: bool = False,
) -> list[Trace]:
    """Take people out of tables of votes, audits, runs and states; list what went, and what remains.

    Everything that is changed is locked before the first change, and people's rows are looked up after that. Then every
    file below the folders and beside the files is searched. The list is empty if nothing of anybody is there. If there
    is something of some of the people and nothing of others, a `ConfigError` names the others and nothing is changed.
    """
    tables = [Path(path) for path in data]
    mappings = [Path(mapping)] if mapping is not None else []
    states, audits, runs = ([_existing(path) for path in paths] for paths in (states, audits, runs))
    if wrong := [path for path in (*audits, *runs) if path.is_file()]:
        raise ConfigError(
            f"{wrong[0]} is a file, and an audit or a run is a folder; a table is named with --data"
        )
    if wrong := [path for path in states if path.is_dir()]:
        raise ConfigError(f"{wrong[0]} is a folder, and a state of watch is a file")
    runs += _beside_runs(runs)
    files, folders = [*tables, *states, *mappings], [*audits, *runs]
    for path in files:
        require_no_link(path)
    with contextlib.ExitStack() as held:

        def hold(paths: Iterable[Path], wait: bool = False) -> None:
            # in one order for everybody, so that no two wait for each other
            for path in sorted({os.path.realpath(path) for path in paths} if not dry_run else ()):
                held.enter_context(locked(path, wait))

        hold(files, wait=True)
        hold(audits)
        theirs = {path: _rows_in(path, people, column or "annotator") for path in tables}
        found_ids = {raw: name for rows in theirs.values() for raw, name in rows.owners.items()}
        raw_ids = {raw: name for raw, name in found_ids.items() if not is_pseudonym(raw)}
        people = replace(people, raw_ids={**people.raw_ids, **raw_ids})
        hits, named = _search(files, folders, people)
        named |= {*found_ids.values()}
        named |= {entry["annotator"] for rows in theirs.values() for entry in rows.table.dropped}
        _require_everybody(people, named)
        learned = _learned_from_them(runs, hits)
        hold([*learned, *states])
        steps = [step for path, rows in theirs.items() for step in _without_rows(path, people, rows)]
        steps += [step for path in mappings for step in _without_entries(path, people)]
        steps += _files_of_people(files, audits, learned, states, hits)
        found = [trace for step in steps for trace in step.traces]
        found += [trace for folder in folders for trace in _policies(folder, learned)]
        found += [trace for run in runs for trace in _at_work(run, learned)]
        found += _pages(learned, [Path.cwd(), *(path.parent for path in files)])
        if not dry_run:
            for step in steps:
                step.carry_out()
            for path in (path for path in tables if _is_ours(path) and not checksum_file(path).exists()):
                write_checksum(path)  # an earlier call was killed before it did
            hits, _ = _search(files, folders, people)
        done = {trace.path for trace in found} if dry_run else set()
    remedy = (
        "remove it, make it again without them, or name it: --data, --audit, --runs, --state, --mapping"
    )
    found += [
        Trace(path, what, remedy, goes=False) for path, what in hits.items() if not _is_below(path, done)
    ]
    return list({(os.path.realpath(trace.path), trace.what): trace for trace in found}.values())


def _require_everybody(people: People, named: Collection[str]) -> None:
    """Refuse a call in which a mistyped id stands beside those of people who were found."""
    unknown = [
        f"{name} (number {i})" for i, name in enumerate(people.pseudonyms, 1) if name not in named
    ]
    if 0 < len(unknown) < len(people.pseudonyms):
        raise ConfigError(
            f"{listed(unknown)} of {len(people.pseudonyms)} annotators: nothing of them is there, and nothing was "
            "changed; correct the id (another spelling or key gives another pseudonym; a file is named with --data) "
            "or leave the annotator out"
        )


def _beside_runs(runs: Sequence[Path]) -> list[Path]:
    """What `badpo anchor` made of the runs, and theta of TRL's trainer, which is beside a run or a folder around it."""
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
    return [*anchors, *(_existing(path) for path in thetas if path.exists())]


def is_recorded(path: Path) -> bool:
    """Whether an earlier call took a file away, or rows out of it."""
    record = path.parent / RECORD
    return record.exists() and json.dumps(path.name) in record.read_text("utf-8")


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.name in ("", ".."):  # ".", of which no neighbour can be named
        path = Path(os.path.abspath(path))
    # a state that went by an earlier call is no mistake
    if not (path.exists() or is_recorded(path)):
        raise ConfigError(
            f"{path} is not there; name an audit's folder, a folder of runs, or a state of watch"
        )
    # what is written takes the place of a link and would leave what the link leads to as it is
    require_enclosed(path)
    return path


# -- rows of tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """A table, which of its rows are theirs, and the pseudonym of each id by which it knows them."""

    table: Table
    theirs: Bools
    owners: Mapping[str, str]


def _rows_in(path: Path, people: People, column: str) -> _Rows:
    table = read_table(path)
    names = [str(name) for name in table.frame.columns]
    if column == "annotator":
        column = columns_named(names, ["annotator"]).get("annotator", column)
    try:
        ids = as_ids(table.frame[column])
    except (KeyError, ValueError) as error:
        like = [f"; {name} looks like it" for name in like_annotators(names)[:1]]
        what = str(error) if column in names else f"is not in the table{''.join(like)}"
        remedy = "name it with --column annotator=..., or take them out in the program that wrote this and export again"
        where = f"{path}, found: {', '.join(names)}"
        raise DataError([Problem("E101", f'column "{column}": {what}', where, remedy)]) from error
    theirs = np.isin(ids, [*people.owners(ids)])
    present = {*ids[theirs]}
    owners = {name: owner for name, owner in people.owners(ids).items() if name in present}
    kind = path.suffix.lower()
    # the rows of an object that holds several lists are none of its own
    is_object = kind == ".json" and not isinstance(json.loads(decoded(path)[0]), list)
    if theirs.any() and (path.is_dir() or is_object or kind in (".xlsx", *PACKED)):
        places = np.arange(1, len(theirs) + 1) if table.lines is None else table.lines
        # of a workbook with several sheets each row is named with its sheet
        sheets = table.frame["sheet"] if "sheet" in table.frame else [""] * len(theirs)
        named = [f"{sheet} {place}".strip() for sheet, place in zip(sheets, places, strict=True)]
        rows = ", ".join(itertools.compress(named, theirs))
        what = f"no row can be taken out of it; {counted(int(theirs.sum()), 'row')} would go: {rows}"
        remedy = "delete these rows in the program that wrote it, or convert it with badpo import; then call again"
        raise DataError([Problem("E102", what, str(path), remedy)])
    return _Rows(table, theirs, owners)


def _is_ours(path: Path) -> bool:
    """Whether `badpo import` wrote a table."""
    is_parquet = path.suffix.lower() == ".parquet"
    return is_parquet and DROPPED_KEY in (pq.read_schema(path).metadata or {})


def _without_rows(path: Path, people: People, rows: _Rows) -> Iterator[_Step]:
    """Their rows out of a table, and the counts of what was left out of theirs at import."""
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


def _write_parquet(
    path: Path, unfinished: Path, rows: _Rows, dropped: Sequence[Mapping[str, Any]]
) -> None:
    table, plain = pq.read_table(path).filter(pa.array(~rows.theirs)), io.BytesIO()
    # dictionaries hold values of rows that are gone: without Arrow's schema, columns come back without them
    pq.write_table(table.replace_schema_metadata(None), plain, store_schema=False)
    # and metadata may name somebody
    metadata = {DROPPED_KEY: json.dumps(dropped).encode()} if _is_ours(path) else None
    table = pq.read_table(plain).replace_schema_metadata(metadata)
    pq.write_table(table, unfinished, write_page_checksum=True)


def _text_without(path: Path, rows: _Rows) -> bytes:
    """A file of text without their rows; of lines the file's own are left, so that nothing else about it changes."""
    if rows.table.lines is None:
        records = json.loads(path.read_text(encoding="utf-8-sig"))
        return as_json([*itertools.compress(records, ~rows.theirs)])
    # CSV counts lines as the csv module does, JSON lines by line feeds alone
    is_csv = path.suffix.lower() in (".csv", ".tsv")
    text = io.StringIO(path.read_bytes().decode(rows.table.encoding), newline="" if is_csv else "\n")
    before, *each = np.split(np.array([*text], dtype=object), rows.table.lines - 1)
    left = itertools.compress(each, ~rows.theirs)
    return "".join(itertools.chain(before, *left)).encode(rows.table.encoding)


def _without_entries(path: Path, people: People) -> Iterator[_Step]:
    """Their entries out of the mapping."""
    whose = read_mapping(path)
    left = {name: raw for name, raw in whose.items() if name not in people.pseudonyms}

    if n_gone := len(whose) - len(left):
        yield _Step([Trace(path, counted(n_gone, "pseudonym"))], lambda: write_json(path, left))


# -- files about single people ---------------------------------------------------------------------------------


def _files_of_people(
    tables: Sequence[Path],
    audits: Sequence[Path],
    learned: Sequence[Path],
    states: Sequence[Path],
    hits: Collection[Path],
) -> Iterator[_Step]:
    for path in tables:
        halves = _matching(path.parent, [f".writing-*-{glob.escape(path.name)}"])
        yield from _gone(halves, "half of a file that a killed command was writing", "", hits)
    for folder in audits:
        files = _matching(folder, AUDIT_FILES)
        if any(_is_below(path, files) for path in hits):
            remedy = (
                f"make it again on the table without them: badpo audit DATA --out {shlex.quote(str(folder))}; if "
                "report.html was passed on, keep the new page to yourself: the two together tell how they voted"
            )
            yield from _gone(files, "figures of an audit that holds their votes", remedy, hits)
    remedy = "remove the run and train it again on the table without them, by the command that made it"
    for folder in learned:
        files = _matching(folder, PERSONAL_RUN_FILES)
        files += [folder / name for name in POOL_RUN_FILES if folder / name in hits]
        yield from _gone(files, _LEARNED, remedy, hits)
    for state in states:
        if state in hits:
            remedy = f"count again, on the table without them: badpo watch DATA --state {shlex.quote(str(state))}"
            yield from _gone([state], "what was counted of them and of others", remedy, hits)


def _gone(paths: Sequence[Path], what: str, remedy: str, hits: Collection[Path]) -> Iterator[_Step]:
    """Files and folders of one folder out of it, if there are any."""

    def remove() -> None:
        inside = [path for top in paths for path in (top, *top.rglob("*"))]
        inside = [path for path in inside if path.is_symlink() or not path.is_dir()]
        # those that name them last, and those that make it a run: killed in between, another call finds the rest
        for path in sorted(inside, key=lambda path: (path in hits, path.name in RUN_MARKS)):
            path.unlink(missing_ok=True)
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)

    if paths:
        yield _Step([Trace(path, what, remedy) for path in paths], remove)


def _learned_from_them(tops: Sequence[Path], hits: Collection[Path]) -> list[Path]:
    """Run folders that name them, those that hold one, and those that name nobody and stand beside or rest on one."""
    folders = [folder for top in tops for folder in _run_folders(top, RUN_MARKS)]
    patterns = (*PERSONAL_RUN_FILES, *POOL_RUN_FILES)
    learned = []
    for folder in folders:
        files = _matching(folder, patterns)
        learned += [folder] if any(_is_below(path, files) for path in hits) else []
    while new := [folder for folder in folders if folder not in learned and _rests_on(folder, learned)]:
        learned += new
    # what was found by another goes before that one
    return list(dict.fromkeys(learned[::-1]))


def _rests_on(folder: Path, learned: Sequence[Path]) -> bool:
    if any(folder in run.parents for run in learned):
        return not (folder / "bias.json").exists()
    if any(folder.rglob("bias.json")):
        return False
    if not (folder / "anchor.json").exists():
        return any(folder.parent == run.parent for run in learned)
    # an anchor tells its source by name: the run of that name beside it, or, where it stands alone, any
    told = (folder / "anchor.json").read_bytes()
    sources = [run for run in learned if json.dumps(run.name).encode() in told]
    return any(run.parent == folder.parent or not (folder.parent / run.name).exists() for run in sources)


def _policies(top: Path, learned: Collection[Path]) -> Iterator[Trace]:
    """Policies that learned from the votes of these people, or of others who were forgotten before."""
    what = "a policy that was trained on their votes, or that rests on one which was"
    told: list[Path] = []
    for folder in _run_folders(top, (*RUN_MARKS, RECORD)):
        record, policy = folder / RECORD, folder / POLICY
        made = folder
        beside = [each for each in (folder, *folder.parents) if each.name.endswith(BIAS_SUFFIX)]
        # of TRL's trainer the folder "model" there has theta alone
        if beside and not [*policy.glob("*config.json")]:
            run = beside[0].with_name(beside[0].name.removesuffix(BIAS_SUFFIX))
            made = policy = run / folder.relative_to(beside[0])
        # a table's record says nothing of a policy beside it, and a newer policy has taken the place of the one before
        is_older = (
            policy.is_dir()
            and record.exists()
            and _LEARNED in record.read_text("utf-8")
            and policy.stat().st_mtime < record.stat().st_mtime
        )
        is_theirs = is_older or (policy.is_dir() and folder in learned)
        if is_theirs and not _is_below(policy, told):
            told.append(policy)
            remedy = f"remove {made} and make it again on the table without them; weights cannot be changed back"
            yield Trace(policy, what, remedy, goes=False)


def _pages(learned: Sequence[Path], places: Iterable[Path]) -> Iterator[Trace]:
    """Pages of `badpo report` with one of these runs: in some places, in the runs and beside them."""
    what = "a page with exact figures of a run that learned from their votes"
    beside = {*places, *learned, *(run.parent for run in learned)}
    for path in sorted({path for place in beside for path in place.glob("*.html") if path.is_file()}):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "badpo report</title>" in text and any(html.escape(run.name) in text for run in learned):
            yield Trace(path, what, "make it again without that run: badpo report RUNS", goes=False)


def _at_work(top: Path, held: Collection[Path]) -> Iterator[Trace]:
    """Runs that another command works on: it holds the folder before it reads, and may have read their votes."""
    for lock in sorted([*top.rglob(".*.lock"), *top.parent.glob(f".{glob.escape(top.name)}.lock")]):
        folder = lock.with_name(lock.name[1:].removesuffix(".lock"))
        if folder not in held and (who := holder(folder)):
            remedy = "wait until it has ended, and give this command again"
            yield Trace(folder, f"{who} works on it and may have read their votes", remedy, goes=False)


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
    files: Sequence[Path], folders: Sequence[Path], people: People
) -> tuple[dict[Path, str], set[str]]:
    """Files that name them below some folders and beside some files, or that cannot be read; and who is named."""
    beside = [path for file in files for path in sorted(file.parent.iterdir()) if path.is_file()]
    forms, named = _written_forms(people), set()
    found: dict[Path, str] = {}

    def keep_error(error: OSError) -> None:
        found[Path(error.filename)] = f"a folder that cannot be looked into ({error.strerror})"

    walks = itertools.chain.from_iterable(os.walk(folder, onerror=keep_error) for folder in folders)
    below = [path for here, _, names in walks for name in names if (path := Path(here, name)).is_file()]
    # an id that begins like theirs is not theirs, in UTF-16 neither
    pattern = re.compile(b"(%b)(?![0-9a-z]|\0[0-9a-z]\0)" % b"|".join(map(re.escape, forms)))
    for path in dict.fromkeys([*beside, *sorted(below)]):
        try:
            contents = _contents(path, overlap=max(map(len, forms)))
            owners = {forms[form] for block in contents for form in pattern.findall(block)}
            owners |= _owners_where_people_stand(path, people)
        except FileNotFoundError:
            continue  # a link to nothing, or a file that another process has removed
        except Exception as error:  # whatever a damaged file does to its reader
            found[path] = (
                f"a file that cannot be looked into ({(str(error) or repr(error)).splitlines()[0]})"
            )
            continue
        named |= owners
        if owners:
            found[path] = "a file that names them"
    return found, named


def _written_forms(people: People) -> dict[bytes, str]:
    """Pseudonyms and long ids in the encodings that tables may have and as JSON writes them, with small ASCII letters.

    Short ids are left out: they occur by chance.
    """
    written: dict[bytes, str] = {}
    for name, owner in [*people.raw_ids.items(), *((name, name) for name in people.pseudonyms)]:
        if len(name) < (_FEWEST_DIGITS if name.isdigit() else _FEWEST_LETTERS):
            continue
        for case in (name, name.lower(), name.upper(), name.title()):
            for text in (unicodedata.normalize("NFC", case), unicodedata.normalize("NFD", case)):
                for spelt, encoding in itertools.product((text, json.dumps(text)[1:-1]), _ENCODINGS):
                    with contextlib.suppress(UnicodeEncodeError):
                        encoded = spelt.encode(encoding, "surrogatepass").lower()
                        # without the zero at an end, ASCII in UTF-16 is the same in both orders of bytes
                        written[encoded.strip(b"\0")] = owner
    return written


def _contents(path: Path, overlap: int) -> Iterator[bytes]:
    """The name, the bytes and, of a parquet file, the values of a file in small letters.

    Each block of bytes begins with the end of the one before.
    """
    yield os.fsencode(path.name).lower()
    rest = b""
    with path.open("rb") as file:
        is_parquet = file.peek(4).startswith(b"PAR1")
        while block := file.read(_BLOCK):
            block = rest + block.lower()
            yield block + b"0"  # what ends here may go on; if it does not, it is found in the rest
            rest = block[-overlap:]
        yield rest
    if is_parquet:
        with pq.ParquetFile(path) as table:
            yield str(table.schema_arrow.metadata).encode().lower()
            for batch in table.iter_batches():
                yield str(batch.to_pylist()).encode("utf-8", "backslashreplace").lower()


def _owners_where_people_stand(path: Path, people: People) -> set[str]:
    """Who of them a table or JSON, or a copy of one, names where people stand; a short id stands anywhere by chance."""
    kind = next((kind for kind in path.suffixes if kind in READERS), "")
    content: Any = {}
    if "json" in kind:
        content = _json_values(decoded(path)[0])
    else:
        with contextlib.suppress(ValueError):  # no table
            content = READERS[kind](path).frame.to_dict("list") if kind else {}
    ids = {*as_ids([*_values_of_people(content)])}
    return {owner for name, owner in people.owners(ids).items() if name in ids}


def _json_values(text: str) -> list[Any]:
    """What a text has in JSON: as a whole, or else on each of its lines."""
    try:
        return [json.loads(text)]
    except ValueError:
        values = []
        for line in text.split("\n"):
            with contextlib.suppress(ValueError):
                values.append(json.loads(line))
        return values


def _values_of_people(content: Any, is_of_people: bool = False) -> Iterator[Any]:
    """What stands under columns and keys that are called like people, at any depth."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if is_of_people:
                yield key
            name = str(key).casefold()
            is_called = bool(like_annotators([name]) or _BY.fullmatch(name))
            is_person = is_called and not _COUNTS.fullmatch(name)
            yield from _values_of_people(value, is_of_people or is_person)
    elif isinstance(content, list | tuple | np.ndarray):
        for value in content:
            yield from _values_of_people(value, is_of_people)
    elif is_of_people and not isinstance(content, bool):
        yield content
