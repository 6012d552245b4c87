"""SIGKILL at random moments and before every kind of change of a file; then the same command again, and compare.

What is compared is every file that two uninterrupted runs have in common, byte by byte: the policy, theta, both
optimizers' moments, the random states, ``log.jsonl``, readouts, tables and the cache.
"""

from __future__ import annotations

import importlib
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from badpo.data.privacy import pseudonyms
from bench.faults import small_project
from bench.faults.children import Kill, run_child
from bench.faults.table import Row

SEED = 0
MOST_IN_A_ROW = 4
FEWEST = 2  # of a stage, however short the time is
# In a long call, however slow the machine is: the share of a stage's kills that is more than 200 in all.
LONG_SECONDS, LEAST_SHARE = 600.0, 0.7
PREFIXES = (
    "badpo",
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "safetensors",
    "tokenizers",
    "pandas",
    "scipy",
)


@dataclass(frozen=True)
class Stage:
    """A command that can be killed and given again, what was done before it, what is other in the recipe.

    ``n_kills`` is how often, where the time allows for as many.
    """

    name: str
    command: Callable[[], None]
    before: tuple[Callable[[], None], ...] = ()
    changes: Mapping[str, object] = field(default_factory=dict)
    n_kills: int = 20


LORA = {"use_peft": True, "lora_target_modules": "all-linear", "lora_r": 2}
SUPERVISED = {"reference": {"sft": True}}
ALL = (small_project.train, small_project.audit, small_project.import_votes)
STAGES = (
    Stage("a training run", small_project.train, n_kills=90),
    Stage("a training run with an adapter", small_project.train, changes=LORA, n_kills=30),
    Stage("the supervised stage and a run", small_project.train, changes=SUPERVISED, n_kills=30),
    Stage("a demo", small_project.suite, n_kills=40),
    Stage("readouts", small_project.evaluate, (small_project.train,), n_kills=20),
    Stage("badpo import", small_project.import_votes, n_kills=15),
    Stage("badpo audit", small_project.audit, n_kills=20),
    Stage("badpo anchor", small_project.anchor, n_kills=20),
    Stage("badpo forget", small_project.forget, ALL, n_kills=50),
)


def rows(budget_seconds: float) -> list[Row]:
    """Kill every stage again and again within the time; one row for each stage and kind of moment."""
    small_project.prepare_environment()
    small_project.import_everything()
    place = Path(tempfile.mkdtemp(prefix="badpo-kills-"))
    total = sum(stage.n_kills for stage in STAGES)
    found: list[Row] = []
    try:
        for stage in STAGES:
            least = int(LEAST_SHARE * stage.n_kills) if budget_seconds >= LONG_SECONDS else FEWEST
            found += Killing(stage, place).rows(budget_seconds * stage.n_kills / total, least)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found


class Killing:
    """One stage, killed until its number of kills or its time is used up; ``place`` is a folder for projects."""

    def __init__(self, stage: Stage, place: Path):
        self._stage = stage
        self._folder = place / "project"
        self._template = place / stage.name.replace(" ", "-")
        self._random = random.Random(f"{SEED} {stage.name}")
        self._injected: dict[str, int] = defaultdict(int)
        self._lost: dict[str, int] = defaultdict(int)
        self._output = ""

    def rows(self, seconds: float, least: int) -> list[Row]:
        """Kill, go on and compare until the time is over, so many times at least; what was lost is printed."""
        end = time.monotonic() + seconds
        small_project.make_template(self._template, self._stage.before, self._stage.changes)
        whole, duration = self._uninterrupted()
        points = list(range(1, len(whole) + 1))
        self._random.shuffle(points)
        expected = small_project.contents(self._folder)
        while self._n_injected < self._stage.n_kills and (time.monotonic() < end or self._n_injected < least):
            at_a_write = self._n_injected % 3 < 2 and points
            first = Kill(before_write=points.pop()) if at_a_write else self._random_moment(duration)
            moments = self._kill_and_go_on(first, len(whole), duration)
            problem = self._difference(expected)
            if problem:
                told = f"{self._stage.name}, killed {', then '.join(moments)}: {problem}\n{self._output}"
                print(told, file=sys.stderr, flush=True)
            for moment in dict.fromkeys(moments) if problem else ():
                self._lost[moment] += 1
        outcome = "the same command again ends bit-equal"
        return [
            Row(f"SIGKILL {moment}", self._stage.name, n, outcome, self._lost[moment])
            for moment, n in sorted(self._injected.items())
        ]

    @property
    def _n_injected(self) -> int:
        return sum(self._injected.values())

    def _uninterrupted(self) -> tuple[tuple[str, ...], float]:
        """The changes of files of a run that nothing disturbs, and its duration once everything is imported."""
        small_project.copy_project(self._template, self._folder)
        modules = self._folder.parent / "modules"

        def run_and_tell() -> None:
            self._stage.command()
            modules.write_text("\n".join(sys.modules))

        small_project.must(run_and_tell, self._folder)
        for name in modules.read_text().splitlines():
            if name.startswith(PREFIXES) and name not in sys.modules:
                importlib.import_module(name)
        small_project.copy_project(self._template, self._folder)
        ended = small_project.must(self._stage.command, self._folder)
        return ended.writes, ended.seconds

    def _random_moment(self, duration: float) -> Kill:
        return Kill(after_seconds=self._random.uniform(0.0, duration))

    def _kill_and_go_on(self, first: Kill, n_writes: int, duration: float) -> list[str]:
        """Kill a fresh project, and sometimes what goes on with it, until it comes to its end; the moments."""
        small_project.copy_project(self._template, self._folder)
        moments: list[str] = []
        kill = first
        while True:
            ended = run_child(self._stage.command, self._folder, kill, small_project.make_smaller)
            if not ended.was_killed:
                self._output = f"status {ended.status}: {ended.output[-1500:]}" if ended.status else ""
                return moments
            moments.append(moment_of(ended.writes))
            self._injected[moments[-1]] += 1
            again = self._random.random() < 0.4 and len(moments) < MOST_IN_A_ROW
            choice = Kill(before_write=self._random.randint(1, n_writes)), self._random_moment(duration)
            kill = choice[self._random.randrange(2)] if again else Kill()

    def _difference(self, expected: Mapping[str, str]) -> str:
        if problem := small_project.differences(small_project.contents(self._folder), expected):
            return problem
        if self._output:
            return "the command failed when it was given again"
        return self._still_named() if self._stage.command is small_project.forget else ""

    def _still_named(self) -> str:
        """Files that still name the person who was to be forgotten, the source of the votes apart."""
        names = [name.encode() for name in (*pseudonyms([small_project.PERSON]), f'"{small_project.PERSON}"')]
        files = [path for path in self._folder.rglob("*") if path.is_file() and path.name != "export.jsonl"]
        held = [path.name for path in files if any(name in path.read_bytes() for name in names)]
        return f"still named in {', '.join(held)}" if held else ""


def moment_of(writes: tuple[str, ...]) -> str:
    """In words, at which kind of moment a child was killed, from its last change of a file."""
    if not writes:
        return "at a random moment"
    event, _, path = writes[-1].partition(" ")
    if path.endswith("in a folder that is deleted"):
        return "in the middle of deleting a folder"
    name = Path(path).name
    if event == "os.rename" and name.endswith("complete.json"):
        return "before complete.json gets its name"
    if event == "os.rename":
        return "between temporary file and its name"
    if event in ("os.remove", "os.rmdir"):
        return "before a file is removed"
    if "cache" in Path(path).parts:
        return "while the cache is written"
    if "checkpoints" in Path(path).parts:
        return "while a checkpoint is written"
    return "before a file or folder is made"
