"""Run two commands at once on one table, state or folder, and check that nothing is lost.

A command that ends because another process is at work has changed nothing, and is run again.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from badpo.auditing.watch import AuditMonitor
from badpo.data.files import run_damage
from badpo.data.privacy import pseudonyms
from badpo.data.tables import read_table
from bench.faults import Row, small_project
from bench.faults.children import status_of

ROUNDS, ROUNDS_OF_TRAINING = 200, 15
LATEST_SECONDS = 0.4
REFUSED = 2
GONE = (
    "from whose votes the run learned; remove"  # said by a training during which somebody was forgotten
)

WATCH = ("watch", "--attribute", "length")
FORGET = ("forget", small_project.PERSON, "--data", "votes.parquet")
IMPORT = ("import", "export.jsonl", "--out", "votes.parquet")
TRAIN = ("train", "--config", "run.yaml")


class Pair(NamedTuple):
    """Two commands, and a function that describes what the project lost after both; empty if nothing is lost."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    wrong: Callable[[Path, Sequence[str]], str]
    rounds: int = ROUNDS


def rows(budget_seconds: float) -> list[Row]:
    """Run every pair a number of times, or as often as there is time."""
    small_project.prepare()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        template = small_project.make_template(place / "project", [prepare])
        share = budget_seconds / len(PAIRS)
        return [
            rounds_of(pair, template, place / f"round-{i}", time.monotonic() + share)
            for i, pair in enumerate(PAIRS)
        ]


def prepare() -> None:
    """Write two parts of the votes, an audit and a mapping; call this function in a child, in the project."""
    small_project.import_votes()
    votes = pd.read_parquet("votes.parquet")
    first = votes["comparison_id"].isin(votes["comparison_id"].unique()[::2])
    votes[first].to_parquet("part-1.parquet")
    votes[~first].to_parquet("part-2.parquet")
    small_project.command(*WATCH, "--state", "part.json", "part-1.parquet")
    Path("runs").mkdir()
    small_project.audit()


def rounds_of(pair: Pair, template: Path, folder: Path, end: float) -> Row:
    """Repeat one pair until the time is over."""
    draw = random.Random(pair.name)
    n = lost = refused = 0
    while n < pair.rounds and not (n and time.monotonic() > end):
        delay = draw.uniform(-LATEST_SECONDS, LATEST_SECONDS)
        n_refused, problem = one_round(pair, small_project.copy_project(template, folder), delay)
        n, refused, lost = n + 1, refused + n_refused, lost + bool(problem)
        if problem:
            print(f"{pair.name}, {delay:.3f} s apart: {problem}", file=sys.stderr, flush=True)
    outcome = f"one waited, or said who works there and changed nothing ({refused} times; given again)"
    return Row("two commands at once", pair.name, n, outcome, lost)


def one_round(pair: Pair, folder: Path, delay: float) -> tuple[int, str]:
    """Run a pair once, and return the number of refusals and the losses.

    The second command starts after a delay; if the delay is negative, the first command does.
    """
    told = [folder.parent / f"{folder.name}.{i}.out" for i in (1, 2)]
    commands = [pair.first, pair.second]

    def ended(child: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    waits = [max(0.0, -delay), max(0.0, delay)]
    children = [start(commands[i], told[i], folder, waits[i]) for i in (0, 1)]
    status = [ended(child) for child in children]
    refused = [i for i in (0, 1) if status[i] == REFUSED and "is in use by" in told[i].read_text()]
    for i in refused:
        status[i] = ended(start(commands[i], told[i], folder, 0.0))
    output = [path.read_text(errors="replace") for path in told]
    for command, code, text in zip(commands, status, output, strict=True):
        if "Traceback" in text or code not in allowed(command, text):
            return len(refused), f"{' '.join(command)} ended with {code}: {text[-600:]}"
    return len(refused), pair.wrong(folder, output)


def allowed(command: Sequence[str], output: str) -> tuple[int, ...]:
    """Return the statuses that lose nothing: 4 lists the remains of a person; an existing run is not overwritten."""
    if command[0] == "forget":
        return (0, 4)
    told = ("a finished run; remove it", "holds an unfinished run", GONE)
    return (0, REFUSED) if command[0] == "train" and any(text in output for text in told) else (0,)


def start(command: Sequence[str], told: Path, folder: Path, wait: float) -> int:
    """Start the command in a child in the project's folder, and return the process id."""
    if child := os.fork():
        return child

    def work() -> None:
        os.chdir(folder)
        time.sleep(wait)
        small_project.make_smaller()
        small_project.command(*command)

    os._exit(status_of(work, told))


# -- what must be there afterwards -------------------------------------------------------------------------------


def as_votes(frame: pd.DataFrame) -> list[tuple]:
    return sorted(frame[["comparison_id", "annotator", "winner"]].itertuples(index=False, name=None))


def votes_of(folder: Path) -> list[tuple]:
    """Read the votes of the project's table with badpo, so that damage is detected."""
    return as_votes(read_table(folder / "votes.parquet").frame)


def imported(folder: Path) -> list[tuple]:
    """Return the votes of an export."""
    frame = pd.read_json(folder / "export.jsonl", lines=True, dtype={"comparison_id": str})
    people = frame["annotator"].unique().tolist()
    frame["annotator"] = frame["annotator"].map(dict(zip(people, pseudonyms(people), strict=True)))
    return as_votes(frame)


def without(votes: Sequence[tuple], *people: str) -> list[tuple]:
    """Return the votes of all other people."""
    theirs = set(pseudonyms(people))
    return [vote for vote in votes if vote[1] not in theirs]


def names_them(folder: Path) -> list[str]:
    """Return the files of a folder that name the forgotten person."""
    (name,) = pseudonyms([small_project.PERSON])
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if name.encode() in path.read_bytes()]


def both_counted(folder: Path, output: Sequence[str]) -> str:
    """Check two simultaneous looks: the state contains both parts."""
    n = len({vote[0] for vote in votes_of(folder)})
    counted = AuditMonitor.load(folder / "state.json").n_comparisons
    return "" if counted == n else f"{counted} of {n} comparisons counted"


def forgotten_or_not_counted(folder: Path, output: Sequence[str]) -> str:
    """Check a look during a forget: the person is in neither table nor state, and both contain all others."""
    expected = without(imported(folder), small_project.PERSON)
    if votes_of(folder) != expected:
        return "the table is not that of the others"
    state = folder / "part.json"
    (name,) = pseudonyms([small_project.PERSON])
    if not state.exists():
        return "" if "part.json" in output[0] else "the state is gone, and nobody said so"
    counted, n = AuditMonitor.load(state).n_comparisons, len({vote[0] for vote in expected})
    if name.encode() in state.read_bytes():
        return "the state names them"
    return "" if counted == n else "not all counted"


def one_after_the_other(folder: Path, output: Sequence[str]) -> str:
    """Check an import during a forget: the result is that of one command after the other."""
    whole, found = imported(folder), votes_of(folder)
    return "" if found in (whole, without(whole, small_project.PERSON)) else "the table is of neither"


def one_run(folder: Path, output: Sequence[str]) -> str:
    """Check two simultaneous trainings: there is one run, with a line for each step and a matching manifest."""
    run = folder / small_project.RUN
    lines = (run / "log.jsonl").read_text().splitlines() if (run / "log.jsonl").exists() else []
    if len(lines) != small_project.RECIPE["max_steps"]:
        return f"{len(lines)} lines in the log"
    return run_damage(run) or ("" if (run / "run.json").exists() else "no seal")


def nobody_trained_unsaid(folder: Path, output: Sequence[str]) -> str:
    """Check a training during a forget: the run is that of the others, or the command reports what remains."""
    if votes_of(folder) != without(imported(folder), small_project.PERSON):
        return "the table is not that of the others"
    said = "is in use by" in output[0] or str(small_project.RUN) in output[0] or GONE in output[1]
    if names_them(folder / "runs") and not said:
        return f"nothing was said of {names_them(folder / 'runs')}"
    small_project.must(small_project.forget, folder)
    return f"still named in {left}" if (left := names_them(folder / "runs")) else ""


INTO, PART = ("--state", "state.json"), ("--state", "part.json")
FORGET_RUNS = (*FORGET, "--runs", "runs")
PAIRS = (
    Pair("watch and watch", *((*WATCH, f"part-{i}.parquet", *INTO) for i in (1, 2)), both_counted),
    Pair(
        "forget and watch", (*FORGET, *PART), (*WATCH, "votes.parquet", *PART), forgotten_or_not_counted
    ),
    Pair("import and forget", IMPORT, FORGET, one_after_the_other),
    Pair("train and train", TRAIN, TRAIN, one_run, ROUNDS_OF_TRAINING),
    Pair("forget and train", FORGET_RUNS, TRAIN, nobody_trained_unsaid, ROUNDS_OF_TRAINING),
)
