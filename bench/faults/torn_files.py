"""Files cut short, emptied, changed in one byte or gone; then whoever reads them must name them, and never use them."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.faults import small_project
from bench.faults.children import Ended, Kill, run_child
from bench.faults.table import Row

SEED = 0
FEWEST = 3  # of a kind of files, however short the time is
TWO_CHECKPOINTS = {"save_total_limit": 2}
# Rewritten by every evaluation and read by nobody.
NOT_READ = frozenset({"model/README.md"})


def cut(content: bytes, draw: random.Random) -> bytes:
    """The beginning of a file."""
    return content[: draw.randrange(len(content))]


def emptied(content: bytes, draw: random.Random) -> bytes:
    """Nothing of it."""
    return b""


def flipped(content: bytes, draw: random.Random) -> bytes:
    """One bit of it turned over."""
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :]


TEARS = (cut, flipped, emptied)


@dataclass(frozen=True)
class Victim:
    """Files to tear, and who reads them.

    Attributes
    ----------
    name : str
        In the table.
    template : Path
        A project.
    files : tuple of str
        Relative to the project.
    reader : function
        A command that reads them.
    outcome : str
        What is promised.
    expected : mapping or None
        The `contents` that the project must have afterwards; None where the reader must refuse with status 2 or 3.
    """

    name: str
    template: Path
    files: tuple[str, ...]
    reader: Callable[[], None]
    outcome: str
    expected: Mapping[str, str] | None


def rows(budget_seconds: float) -> list[Row]:
    """Tear every file of a checkpoint, a finished run, the cache and the table of votes."""
    small_project.prepare_environment()
    small_project.import_everything()
    place = Path(tempfile.mkdtemp(prefix="badpo-torn-"))
    try:
        victims = make_victims(place)
        n_files = sum(len(victim.files) for victim in victims)
        return [
            row
            for victim in victims
            for row in tear(victim, place / "project", budget_seconds * len(victim.files) / n_files)
        ]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make_victims(place: Path) -> list[Victim]:
    """A run that was killed after its second checkpoint, and one that came to its end."""
    begun = small_project.make_template(place / "begun", changes=TWO_CHECKPOINTS)
    finished = small_project.copy_project(begun, place / "finished")
    ended = small_project.must(small_project.train, finished)
    last = f"os.mkdir {small_project.RUN}/checkpoints/checkpoint-6"
    run_child(
        small_project.train,
        begun,
        Kill(before_write=ended.writes.index(last) + 1),
        small_project.make_smaller,
    )
    expected = small_project.contents(finished)
    imported = small_project.copy_project(finished, place / "imported")
    newest = str(small_project.RUN / "checkpoints" / "checkpoint-4")
    run = [*("config.yaml", "environment.json", "log.jsonl", "bias.json", "bias.safetensors", "run.json")]
    run += [
        str(path.relative_to(finished / small_project.RUN))
        for path in (finished / small_project.RUN / "model").iterdir()
    ]
    return [
        Victim(
            "the newest checkpoint",
            begun,
            files_below(begun, newest),
            small_project.train,
            "named, and made again from the one before, bit-equal",
            expected,
        ),
        Victim(
            "the cache of reference log-probabilities",
            begun,
            files_below(begun, "cache"),
            small_project.train,
            "named, and computed again, bit-equal",
            expected,
        ),
        Victim(
            "a finished run",
            finished,
            tuple(str(small_project.RUN / name) for name in sorted(run) if name not in NOT_READ),
            small_project.evaluate,
            "named and refused",
            None,
        ),
        Victim(
            "a table of votes",
            imported,
            ("votes.parquet",) * 12,
            partial(small_project.command, "check", "votes.parquet"),
            "named and refused",
            None,
        ),
    ]


def files_below(project: Path, folder: str) -> tuple[str, ...]:
    """Files of a folder, relative to the project."""
    return tuple(
        str(path.relative_to(project)) for path in sorted((project / folder).rglob("*")) if path.is_file()
    )


def tear(victim: Victim, folder: Path, seconds: float) -> list[Row]:
    """Tear each file in one way, then in the others, until the time is over; what was read is printed."""
    draw = random.Random(f"{SEED} {victim.name}")
    end = time.monotonic() + seconds
    injected, lost = dict.fromkeys(TEARS, 0), dict.fromkeys(TEARS, 0)
    for turn in range(len(TEARS)):
        for number, name in enumerate(victim.files):
            if sum(injected.values()) >= FEWEST and time.monotonic() > end:
                break
            how = TEARS[(number + turn) % len(TEARS)]
            small_project.copy_project(victim.template, folder)
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(how(content, draw) if content else b"x")
            ended = run_child(victim.reader, folder, prepare=small_project.make_smaller)
            problem = what_went_wrong(victim, name, ended, folder)
            injected[how] += 1
            lost[how] += bool(problem)
            if problem:
                print(f"{victim.name}, {name} {how.__name__}: {problem}", file=sys.stderr, flush=True)
    return [
        Row(f"a file {how.__name__}", victim.name, n, victim.outcome, lost[how])
        for how, n in injected.items()
        if n
    ]


def what_went_wrong(victim: Victim, name: str, ended: Ended, folder: Path) -> str:
    """Why the reader did not do what it must; empty where it did."""
    if Path(name).name not in ended.output:
        return f"it is not named (status {ended.status}): {ended.output[-600:]}"
    if "Traceback" in ended.output:
        return f"a traceback: {ended.output[-600:]}"
    if victim.expected is None:
        return "" if ended.status in (2, 3) else f"not refused (status {ended.status}): {ended.output[-600:]}"
    if ended.status:
        return f"status {ended.status}: {ended.output[-600:]}"
    return small_project.differences(small_project.contents(folder), victim.expected)
