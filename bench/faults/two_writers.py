"""Two commands at once on one table, state or folder: nothing is lost, also where each is process 1 of a container.

A command that ends because another process is at work has changed nothing, and is given again.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.faults import small_project
from bench.faults.table import Row

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
ROUNDS, ROUNDS_OF_TRAINING = 200, 15
AS_PROGRAMS = 40  # every so many rounds start programs of their own; the others fork
LATEST_SECONDS = 0.4
REFUSED = 2
PROJECT = "project"
SECOND_PERSON = "person 4"

WATCH = ("watch", "--attribute", "length")
FORGET = ("forget", small_project.PERSON, "--data", "votes.parquet")
IMPORT = ("import", "export.jsonl", "--out", "votes.parquet")
AUDIT = ("audit", "votes.parquet", "--attribute", "length", "--out", "audit")
TRAIN = ("train", "--config", "run.yaml")
KEPT = ("--audit", "audit", "--mapping", "whose.json")


@dataclass(frozen=True)
class Pair:
    """Two commands, and what must be there after both.

    Attributes
    ----------
    name : str
    first, second : tuple of str
        Arguments of ``badpo``.
    wrong : function of the project's folder and what both printed
        What was lost, in words; empty where nothing was.
    rounds : int
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    wrong: Callable[[Path, Sequence[str]], str]
    rounds: int = ROUNDS


@dataclass(frozen=True)
class Way:
    """How the two of a round are started."""

    delay: float
    as_first_process: bool
    as_program: bool


def rows(budget_seconds: float) -> list[Row]:
    """Every pair so often, or as often as there is time."""
    small_project.prepare_environment()
    small_project.import_everything()
    place = Path(tempfile.mkdtemp(prefix="badpo-two-"))
    try:
        template = small_project.make_template(place / PROJECT, [prepare])
        found = []
        for i, pair in enumerate(PAIRS):
            end = time.monotonic() + budget_seconds / len(PAIRS)
            found += rounds_of(pair, template, place / f"round-{i}", pair.rounds, end)
        return found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def prepare() -> None:
    """Two parts of the votes, a second export, an audit, a mapping; to be called in a child, in the project."""
    import pandas as pd

    small_project.import_votes()
    votes = pd.read_parquet("votes.parquet")
    first = votes["comparison_id"].isin(votes["comparison_id"].unique()[::2])
    votes[first].to_parquet("part-1.parquet")
    votes[~first].to_parquet("part-2.parquet")
    small_project.command(*WATCH, "--state", "part.json", "part-1.parquet")
    export = Path("export.jsonl").read_text().splitlines(keepends=True)
    Path("other.jsonl").write_text("".join(export[: len(export) // 2]))
    Path("runs").mkdir()
    small_project.audit()


def rounds_of(pair: Pair, template: Path, folder: Path, rounds: int, end: float) -> list[Row]:
    """One pair again and again, half of the rounds as process 1 of two containers where the system has them."""
    draw = random.Random(pair.name)
    kinds = (False, True) if may_be_first_process() else (False,)
    found = []
    for as_first in kinds:
        until = time.monotonic() + (end - time.monotonic()) / (len(kinds) - len(found))
        n = lost = refused = 0
        for i in range(rounds * len(found) // len(kinds), rounds * (len(found) + 1) // len(kinds)):
            if n and time.monotonic() > until:
                break
            way = Way(
                draw.uniform(-LATEST_SECONDS, LATEST_SECONDS), as_first, i % AS_PROGRAMS == AS_PROGRAMS - 1
            )
            n_refused, problem = one_round(pair, small_project.copy_project(template, folder), way)
            n, refused, lost = n + 1, refused + n_refused, lost + bool(problem)
            if problem:
                print(f"{pair.name}, round {i}, {way}: {problem}", file=sys.stderr, flush=True)
        stage = f"{pair.name}, each as process 1" if as_first else pair.name
        outcome = (
            f"one waited, or said who works there and changed nothing ({refused} times; then given again)"
        )
        found.append(Row("two commands at once", stage, n, outcome, lost))
    return found


def one_round(pair: Pair, folder: Path, way: Way) -> tuple[int, str]:
    """How many were refused, and what was lost."""
    told = [folder.parent / f"{folder.name}.{i}.out" for i in (1, 2)]
    commands = [pair.first, pair.second]
    children = [
        start(commands[i], folder, told[i], way, max(0.0, (-way.delay, way.delay)[i])) for i in (0, 1)
    ]
    status = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    refused = [i for i in (0, 1) if status[i] == REFUSED and "works on it" in told[i].read_text()]
    for i in refused:
        again = start(commands[i], folder, told[i], way, 0.0)
        status[i] = os.waitstatus_to_exitcode(os.waitpid(again, 0)[1])
    output = [path.read_text(errors="replace") for path in told]
    for i in (0, 1):
        if "Traceback" in output[i] or status[i] not in allowed(commands[i], output[i]):
            return len(refused), f"{' '.join(commands[i])} ended with {status[i]}: {output[i][-600:]}"
    return len(refused), pair.wrong(folder, output)


def allowed(command: Sequence[str], output: str) -> tuple[int, ...]:
    """Statuses that lose nothing: what remains of a person is listed with 4, a run that is there is not made again."""
    if command[0] == "forget":
        return (0, 4)
    if command[0] == "train" and ("holds a finished run" in output or "holds an unfinished run" in output):
        return (0, REFUSED)
    return (0,)


def start(command: Sequence[str], folder: Path, told: Path, way: Way, wait: float) -> int:
    """A child that gives the command in the project's folder; its process number."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(folder)
        time.sleep(wait)
        if way.as_first_process:
            become_first_process()
        if way.as_program:
            os.execv(sys.executable, [sys.executable, "-m", "badpo", *command])
        small_project.make_smaller()
        small_project.command(*command)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        print(f"Traceback: {error!r}")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def may_be_first_process() -> bool:
    """Whether the system gives a process numbers of its own."""
    child = os.fork()
    if child == 0:
        try:
            become_first_process()
            os._exit(0 if os.getpid() == 1 else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def become_first_process() -> None:
    """Go on as process 1, as in a container; the process that called this waits and ends as that one does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWPID if os.getuid() == 0 else CLONE_NEWPID | CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


# -- what must be there afterwards -------------------------------------------------------------------------------


def votes_of(path: Path) -> list[tuple]:
    """The votes of a table, read as badpo reads them, so that damage is found."""
    from badpo.data.importers.tables import read_table

    frame = read_table(path).frame
    return sorted(map(tuple, frame[["comparison_id", "annotator", "winner"]].itertuples(index=False)))


def without(votes: Sequence[tuple], *people: str) -> list[tuple]:
    """The votes of all others."""
    theirs = set(pseudonyms(people))
    return [vote for vote in votes if vote[1] not in theirs]


def pseudonyms(people: Sequence[str]) -> list[str]:
    """The pseudonyms of some people under the key of the small project."""
    from badpo.data.privacy import pseudonyms

    return pseudonyms(list(people))


def imported(folder: Path, export: str = "export.jsonl") -> list[tuple]:
    """The votes of an export."""
    import pandas as pd

    frame = pd.read_json(folder / export, lines=True, dtype={"comparison_id": str})
    names = dict(zip(people := frame["annotator"].unique().tolist(), pseudonyms(people), strict=True))
    frame["annotator"] = frame["annotator"].map(names)
    return sorted(map(tuple, frame[["comparison_id", "annotator", "winner"]].itertuples(index=False)))


def names_them(folder: Path) -> list[str]:
    """Files of a folder that name the person who was forgotten."""
    (name,) = pseudonyms([small_project.PERSON])
    return [str(path) for path in folder.rglob("*") if path.is_file() and name.encode() in path.read_bytes()]


def both_counted(folder: Path, output: Sequence[str]) -> str:
    """Two looks at once: the state has both parts."""
    from badpo.auditing.monitor import AuditMonitor

    n = len({vote[0] for vote in votes_of(folder / "votes.parquet")})
    counted = AuditMonitor.load(folder / "state.json").n_comparisons
    return "" if counted == n else f"{counted} of {n} comparisons counted"


def both_forgotten(folder: Path, output: Sequence[str]) -> str:
    """Two people forgotten at once: both are gone, and nobody else."""
    left = votes_of(folder / "votes.parquet")
    expected = without(imported(folder), small_project.PERSON, SECOND_PERSON)
    if left != expected:
        return f"{len(left)} votes, {len(expected)} expected"
    mapping = (folder / "whose.json").read_text()
    return "the mapping names them" if small_project.PERSON in mapping or SECOND_PERSON in mapping else ""


def one_import(folder: Path, output: Sequence[str]) -> str:
    """Two imports at once: the table is that of one of them."""
    found = votes_of(folder / "votes.parquet")
    return "" if found in (imported(folder), imported(folder, "other.jsonl")) else "the table is of neither"


def forgotten_or_not_counted(folder: Path, output: Sequence[str]) -> str:
    """A look while somebody is forgotten: neither the table nor the state has them, both have all others."""
    from badpo.auditing.monitor import AuditMonitor

    expected = without(imported(folder), small_project.PERSON)
    if votes_of(folder / "votes.parquet") != expected:
        return "the table is not that of the others"
    state = folder / "part.json"
    (name,) = pseudonyms([small_project.PERSON])
    if not state.exists():
        return "" if "part.json" in output[0] else "the state is gone, and nobody said so"
    counted, n = AuditMonitor.load(state).n_comparisons, len({vote[0] for vote in expected})
    return (
        "the state names them"
        if name.encode() in state.read_bytes()
        else ""
        if counted == n
        else "not all counted"
    )


def one_audit(folder: Path, output: Sequence[str]) -> str:
    """Two audits at once: the folder holds one."""
    half = ", ".join(path.name for path in (folder / "audit").glob(".writing-*"))
    expected = small_project.contents(folder.parent / PROJECT / "audit")
    return half or small_project.differences(small_project.contents(folder / "audit"), expected)


def one_after_the_other(folder: Path, output: Sequence[str]) -> str:
    """An import while somebody is forgotten: as if one had come after the other."""
    whole = imported(folder)
    found = votes_of(folder / "votes.parquet")
    return "" if found in (whole, without(whole, small_project.PERSON)) else "the table is of neither"


def one_run(folder: Path, output: Sequence[str]) -> str:
    """Two trainings at once: one run, with a line for each step and a seal that agrees."""
    from badpo.data.files import run_damage

    run = folder / small_project.RUN
    lines = (run / "log.jsonl").read_text().splitlines() if (run / "log.jsonl").exists() else []
    if len(lines) != small_project.RECIPE["max_steps"]:
        return f"{len(lines)} lines in the log"
    return run_damage(run) or ("" if (run / "run.json").exists() else "no seal")


def nobody_trained_unsaid(folder: Path, output: Sequence[str]) -> str:
    """A training while somebody is forgotten: the run is of the others, or what remains was said, and goes then."""
    if votes_of(folder / "votes.parquet") != without(imported(folder), small_project.PERSON):
        return "the table is not that of the others"
    said = "works on it" in output[0] or str(small_project.RUN) in output[0]
    if names_them(folder / "runs") and not said:
        return f"nothing was said of {names_them(folder / 'runs')}"
    small_project.must(small_project.forget, folder)
    return f"still named in {left}" if (left := names_them(folder / "runs")) else ""


PAIRS = (
    Pair(
        "watch and watch",
        (*WATCH, "part-1.parquet", "--state", "state.json"),
        (*WATCH, "part-2.parquet", "--state", "state.json"),
        both_counted,
    ),
    Pair(
        "forget and forget",
        (*FORGET, *KEPT),
        ("forget", SECOND_PERSON, *FORGET[2:], *KEPT),
        both_forgotten,
    ),
    Pair("import and import", IMPORT, ("import", "other.jsonl", *IMPORT[2:]), one_import),
    Pair(
        "forget and watch",
        (*FORGET, "--state", "part.json"),
        (*WATCH, "votes.parquet", "--state", "part.json"),
        forgotten_or_not_counted,
    ),
    Pair("audit and audit", AUDIT, AUDIT, one_audit),
    Pair("import and forget", IMPORT, FORGET, one_after_the_other),
    Pair("train and train", TRAIN, TRAIN, one_run, ROUNDS_OF_TRAINING),
    Pair("forget and train", (*FORGET, "--runs", "runs"), TRAIN, nobody_trained_unsaid, ROUNDS_OF_TRAINING),
)
