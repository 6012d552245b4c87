"""Cut, empty, change or delete files, and check that their readers report the damage and never use it."""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.faults import Row, small_project
from bench.faults.children import Ended, Kill, run_child

SEED = 0
FEWEST = 3  # least number of files of a kind, even if the time is short
# Every evaluation writes these files again, and no command reads them.
NOT_READ = {str(small_project.RUN / "model" / "README.md")}

TEARS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda content, draw: content[: draw.randrange(len(content))],
    "flipped": lambda content, draw: flipped(content, draw.randrange(8 * len(content))),
    "emptied": lambda content, draw: b"",
}


def flipped(content: bytes, bit: int) -> bytes:
    """Flip one bit."""
    return (int.from_bytes(content, "little") ^ (1 << bit)).to_bytes(len(content), "little")


class Victim(NamedTuple):
    """Files of a project to damage, a command that reads them, and the expected result.

    Afterwards the project must have the expected `contents`; without expected contents the reader must refuse.
    """

    name: str
    template: Path
    files: tuple[str, ...]
    reader: Callable[[], None]
    outcome: str
    expected: Mapping[str, str] | None


def rows(budget_seconds: float) -> list[Row]:
    """Damage every file of a checkpoint, a finished run, the cache and the table of votes."""
    small_project.prepare()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        victims = make_victims(place)
        n_files = sum(len(victim.files) for victim in victims)
        return [
            row
            for victim in victims
            for row in tear(victim, place / "project", budget_seconds * len(victim.files) / n_files)
        ]


def make_victims(place: Path) -> list[Victim]:
    """Make a run that was killed after its second checkpoint, and a finished run."""
    begun = small_project.make_template(place / "begun", changes={"save_total_limit": 2})
    finished = small_project.copy_project(begun, place / "finished")
    ended = small_project.must(small_project.train, finished)
    last = f"os.mkdir {small_project.RUN}/checkpoints/checkpoint-6"
    kill = Kill(before_write=ended.writes.index(last) + 1)
    run_child(small_project.train, begun, kill, small_project.make_smaller)
    expected = small_project.contents(finished)
    imported = small_project.copy_project(finished, place / "imported")
    run = ("config.yaml", "environment.json", "log.jsonl", "bias.json", "bias.safetensors", "run.json")
    model = set(files_below(finished, small_project.RUN / "model")) - NOT_READ
    of_run = tuple(sorted(model | {str(small_project.RUN / name) for name in run}))
    checkpoint = files_below(begun, small_project.RUN / "checkpoints" / "checkpoint-4")
    check = partial(small_project.command, "check", "votes.parquet")
    again, refused = "named, and made again, bit-equal", "named and refused"
    cache = "the cache of reference log-probabilities"
    return [
        Victim("the newest checkpoint", begun, checkpoint, small_project.train, again, expected),
        Victim(cache, begun, files_below(begun, Path("cache")), small_project.train, again, expected),
        Victim("a finished run", finished, of_run, small_project.evaluate, refused, None),
        Victim("a table of votes", imported, ("votes.parquet",) * 12, check, refused, None),
    ]


def files_below(project: Path, folder: Path) -> tuple[str, ...]:
    """List the files of a folder, relative to the project."""
    paths = sorted((project / folder).rglob("*"))
    return tuple(str(path.relative_to(project)) for path in paths if path.is_file())


def tear(victim: Victim, folder: Path, seconds: float) -> list[Row]:
    """Damage each file in one way, then in the other ways, until the time is over; print the files that were used."""
    draw, end = random.Random(f"{SEED} {victim.name}"), time.monotonic() + seconds
    injected: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    ways = list(TEARS)
    for turn, (number, name) in product(range(len(ways)), enumerate(victim.files)):
        if injected.total() >= FEWEST and time.monotonic() > end:
            break
        how = ways[(number + turn) % len(ways)]
        small_project.copy_project(victim.template, folder)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(TEARS[how](content, draw) if content else b"x")
        ended = run_child(victim.reader, folder, prepare=small_project.make_smaller)
        injected[how] += 1
        if problem := what_went_wrong(victim, name, ended, folder):
            lost[how] += 1
            print(f"{victim.name}, {name} {how}: {problem}", file=sys.stderr, flush=True)
    outcome = victim.outcome
    return [Row(f"a file {how}", victim.name, n, outcome, lost[how]) for how, n in injected.items()]


def what_went_wrong(victim: Victim, name: str, ended: Ended, folder: Path) -> str:
    """Describe how the reader failed; empty if it did what it must."""
    if Path(name).name not in ended.output:
        return f"it is not named (status {ended.status}): {ended.output[-600:]}"
    if "Traceback" in ended.output:
        return f"a traceback: {ended.output[-600:]}"
    if ended.status not in ((2, 3) if victim.expected is None else (0,)):
        return f"status {ended.status}: {ended.output[-600:]}"
    if victim.expected is None:
        return ""
    return small_project.differences(small_project.contents(folder), victim.expected)
