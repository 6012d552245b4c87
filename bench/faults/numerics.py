"""Values that are not finite, injected at one step on one process: the run stops and names the comparison."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.faults.table import Row
from tests.training.groups import Groups

KINDS = {"margin": "a margin is NaN", "gradient": "a gradient is NaN", "theta": "theta is infinite"}
PRECISIONS = (
    ("float32", 1, ()),
    ("bf16", 1, ("--bf16",)),
    ("adapter in bf16", 1, ("--bf16", "--lora")),
    ("float32, 2 processes", 2, ()),
    ("bf16, 2 processes", 2, ("--bf16",)),
    ("FSDP2, 2 processes", 2, ("--fsdp",)),
)


def rows(budget_seconds: float) -> list[Row]:
    """Every kind of value in every precision, once each; minutes on one core, whatever the budget."""
    with Groups() as groups, tempfile.TemporaryDirectory() as place:
        return [
            _stopped(groups, Path(place) / f"{kind}-{i}", kind, *precision)
            for kind in KINDS
            for i, precision in enumerate(PRECISIONS)
        ]


def _stopped(groups: Groups, folder: Path, kind: str, stage: str, n: int, options: tuple[str, ...]) -> Row:
    ended = groups.run(n, folder, "--break", kind, *options)
    last = [text.strip().splitlines()[-1] if text.strip() else "" for text in ended.outputs]
    named = all("NotFiniteError: step 3: " in line and "comparison" in line for line in last)
    newest = max((path.name for path in (folder / "checkpoints").glob("checkpoint-*")), default="none")
    right = named and not ended.hung and newest == "checkpoint-2" and all(ended.statuses)
    outcome = "stopped at its step, comparison named, no later checkpoint" if right else f"{last[0][:80]}"
    return Row(KINDS[kind], stage, 1, outcome, int(not right))
