"""A disk without room for another file, from each change of a file on; then with room again."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from badpo.training.checkpoints import damage
from bench.faults import Row, small_project
from bench.faults.children import Kill, run_child
from bench.faults.small_project import Stage

FEWEST = 3  # of a stage, however short the time is
WRITING = ("a training run", "a demo", "readouts", "badpo import", "badpo audit")
OUTCOME = "one message, earlier checkpoints whole; with room again bit-equal"


def rows(budget_seconds: float) -> list[Row]:
    """Fill the disk at different moments of every stage."""
    small_project.prepare()
    with tempfile.TemporaryDirectory() as name:
        stages = [stage for stage in small_project.STAGES if stage.name in WRITING]
        return [fill(stage, Path(name), budget_seconds / len(stages)) for stage in stages]


def fill(stage: Stage, place: Path, seconds: float) -> Row:
    """One stage with room for ever other parts of what it writes."""
    end, draw = time.monotonic() + seconds, random.Random(stage.name)
    template = stage.template(place)
    project = small_project.copy_project(template, place / "project")
    whole = small_project.must(stage.command, project)
    expected = small_project.contents(project)
    injected = lost = 0
    for point in draw.sample(range(1, len(whole.writes) + 1), len(whole.writes)):
        if injected >= FEWEST and time.monotonic() > end:
            break
        small_project.copy_project(template, project)
        ended = run_child(stage.command, project, Kill(point, is_full=True), small_project.make_smaller)
        if not ended.status:
            continue  # nothing was made any more
        injected += 1
        problem = said_or_left_badly(ended.output, project)
        again = run_child(stage.command, project, prepare=small_project.make_smaller)
        problem = problem or (f"and then: {again.output[-800:]}" if again.status else "")
        problem = problem or small_project.differences(small_project.contents(project), expected)
        if problem:
            lost += 1
            print(f"{stage.name}, {whole.writes[point - 1]}: {problem}", file=sys.stderr, flush=True)
    return Row("a full disk", stage.name, injected, OUTCOME, lost)


def said_or_left_badly(output: str, project: Path) -> str:
    """What is wrong with the message, or which checkpoint is neither whole nor gone; empty where all is well."""
    if "Traceback" in output:
        return f"a traceback: {output[-800:]}"
    if "No space left on device" not in output:
        return f"the disk is not named: {output[-800:]}"
    checkpoints = [path for path in project.rglob("checkpoint-*") if path.is_dir()]
    return next(filter(None, map(damage, checkpoints)), "")
