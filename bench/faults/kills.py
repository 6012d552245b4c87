"""Kill commands or fill the disk at every kind of file change, run the command again, and compare the results.

The comparison covers, byte by byte, all files that two uninterrupted runs have in common: the policy, theta, the
moments of both optimizers, random states, ``log.jsonl``, readouts, tables and the cache.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from badpo.data.privacy import pseudonyms
from badpo.training.checkpoints import find_damage
from bench.faults import Row, small_project
from bench.faults.children import Kill, run_child
from bench.faults.small_project import STAGES, Stage

MOST_IN_A_ROW = 4
FEWEST = 2  # least number of kills of a stage, even if the time is short
# Share of each stage in the kills of a long run, which are more than 200 in total.
LONG_SECONDS, LEAST_SHARE = 600.0, 0.7
OUTCOME = "the same command again ends bit-equal"
FULL = "a full disk"


def rows(budget_seconds: float) -> list[Row]:
    """Kill every stage repeatedly within the time; make one row for each stage and kind of moment."""
    small_project.prepare()
    total = sum(stage.n_kills for stage in STAGES)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        found = []
        for stage in STAGES:
            least = int(LEAST_SHARE * stage.n_kills) if budget_seconds >= LONG_SECONDS else FEWEST
            found += rows_of(stage, place, budget_seconds * stage.n_kills / total, least)
        return found


def rows_of(stage: Stage, place: Path, seconds: float, least: int) -> list[Row]:
    """Kill a stage, continue and compare until the time is over, at least a minimum number of times; print losses."""
    end, draw = time.monotonic() + seconds, random.Random(f"0 {stage.name}")
    template = stage.template(place)
    project = small_project.copy_project(template, place / "project")
    whole = small_project.must(stage.command, project)
    expected = small_project.contents(project)
    points = draw.sample(range(1, len(whole.writes) + 1), len(whole.writes))
    injected: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    while (n := injected.total()) < stage.n_kills and (time.monotonic() < end or n < least):
        at_random = Kill(after_seconds=draw.uniform(0, whole.seconds))
        kill = Kill(points.pop(), is_full=n % 4 == 3) if n % 3 < 2 and points else at_random
        small_project.copy_project(template, project)
        moments, problem = kill_and_go_on(stage, project, kill, whole, draw)
        injected.update(moments)
        problem = small_project.differences(small_project.contents(project), expected) or problem
        if not problem and stage.command is small_project.forget:
            problem = still_named(project)
        if problem:
            lost.update(set(moments))
            told = f"{stage.name}, killed {', then '.join(moments)}: {problem}"
            print(told, file=sys.stderr, flush=True)
    return [Row(how, stage.name, n, OUTCOME, lost[how]) for how, n in injected.items()]


def kill_and_go_on(stage: Stage, project: Path, kill: Kill, whole, draw) -> tuple[list[str], str]:
    """Kill a project, and sometimes its continuation, until it ends; return the moments and the reason of a failure."""
    moments: list[str] = []
    if kill.is_full:
        moments, full = [FULL], run_child(stage.command, project, kill, small_project.make_smaller)
        if full.status and (problem := said_or_left_badly(full.output, project)):
            return moments, problem
        kill = Kill()
    while (ended := run_child(stage.command, project, kill, small_project.make_smaller)).was_killed:
        moments.append(f"SIGKILL {moment_of(ended.writes)}")
        at_write = Kill(before_write=draw.randint(1, len(whole.writes)))
        kills = [at_write, Kill(after_seconds=draw.uniform(0, whole.seconds))]
        again = draw.random() < 0.4 and len(moments) < MOST_IN_A_ROW
        kill = draw.choice(kills) if again else Kill()
    return moments, f"status {ended.status}: {ended.output[-1500:]}" if ended.status else ""


def said_or_left_badly(output: str, project: Path) -> str:
    """Return the flaw in the message about a full disk, or a broken checkpoint; empty if there is neither."""
    if "Traceback" in output or "No space left on device" not in output:
        return f"a traceback, or the disk is not named: {output[-800:]}"
    checkpoints = [path for path in project.rglob("checkpoint-*") if path.is_dir()]
    return next(filter(None, map(find_damage, checkpoints)), "")


def still_named(project: Path) -> str:
    """Return the files that still name the forgotten person, apart from the source of the votes."""
    person = small_project.PERSON
    names = [name.encode() for name in (*pseudonyms([person]), f'"{person}"')]
    files = [path for path in project.rglob("*") if path.is_file() and path.name != "export.jsonl"]
    held = [path.name for path in files if any(name in path.read_bytes() for name in names)]
    return f"still named in {', '.join(held)}" if held else ""


MOMENTS = {"open": "opened", "os.mkdir": "made", "os.rename": "named", "os.remove": "removed"}


def moment_of(writes: tuple[str, ...]) -> str:
    """Describe the moment at which a child was killed, from its last change of a file."""
    if not writes:
        return "at a random moment"
    event, _, path = writes[-1].partition(" ")
    what = "complete.json" if path.endswith("complete.json") else "a file or folder"
    return f"before {what} is {MOMENTS.get(event, 'changed')}"
