"""Several processes: what one gives is what two and four give, and one that dies ends all of them.

The runs are those of `tests.training.run_one`; the groups are forked, so that nothing is imported twice.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from bench.faults.table import Row
from tests.training.groups import Ended, Groups

RELATIVE = 1e-5
STEPS = 6
# What is run in one process and in several: (stage, number of processes, options of both, options of the several).
LAYOUTS = (
    ("DDP", 2, (), ()),
    ("DDP", 4, (), ()),
    ("DDP, fewer comparisons than processes", 4, ("--uneven",), ()),
    ("DDP, nobody judges two comparisons", 4, ("--own-annotators", "--uneven"), ()),
    ("DDP, adapter", 2, ("--lora",), ()),
    ("FSDP2, tied head", 4, (), ("--fsdp",)),
    ("FSDP2, own head", 2, ("--untied",), ("--fsdp",)),
    ("FSDP2, adapter", 2, ("--lora",), ("--fsdp",)),
    ("FSDP2, evaluation on unequal shares", 4, ("--evaluate",), ("--fsdp",)),
)
KILLED = (("DDP", 2, ()), ("DDP", 4, ()), ("FSDP2", 2, ("--fsdp",)))


def rows(budget_seconds: float) -> list[Row]:
    """Runs in several processes against the run in one; kills of one rank and of all, each then resumed.

    The kills go on over ranks and steps until the time is over; each kind is done once in any case.
    """
    stop = time.monotonic() + budget_seconds
    with Groups() as groups, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = [_like_one(groups, folder / f"like-{i}", *layout) for i, layout in enumerate(LAYOUTS)]
        return found + [_one_dies(groups, folder / f"dies-{i}", *kind, stop) for i, kind in enumerate(KILLED)]


def _like_one(
    groups: Groups, folder: Path, stage: str, n: int, common: tuple[str, ...], divided: tuple[str, ...]
) -> Row:
    one, several = folder / "one", folder / "several"
    ended = [groups.run(1, one, *common), groups.run(n, several, *common, *divided)]
    if not all(end.ok for end in ended):
        return Row(f"{n} processes", stage, 1, _how(ended[-1]), 1)
    apart = max(abs(a / b - 1) for a, b in zip(_losses(several), _losses(one), strict=True))
    theta = float((_theta(several) - _theta(one)).abs().max())
    same = apart < RELATIVE and theta < RELATIVE
    return Row(
        f"{n} processes", stage, 1, f"losses differ by {apart:.0e}, theta by {theta:.0e}", int(not same)
    )


def _one_dies(groups: Groups, folder: Path, stage: str, n: int, options: tuple[str, ...], stop: float) -> Row:
    """Kill each rank at each step, as far as the time goes, and compare what is resumed with the whole run."""
    whole = folder / "whole"
    groups.run(n, whole, *options)
    plans = [(rank, step) for step in range(3, STEPS + 1) for rank in range(n)]
    injected = lost = 0
    for rank, step in plans:
        if injected and time.monotonic() > stop:
            break
        cut = folder / f"{rank}-{step}"
        killed = groups.run(n, cut, "--die-at", str(step), "--die-rank", str(rank), *options)
        resumed = groups.run(n, cut, "--resume", *options)
        injected += 1
        lost += killed.hung or not resumed.ok or not _same_bits(cut, whole)
    outcome = "all processes end; resumed, bit-equal" if not lost else "not bit-equal, or not ended"
    return Row(f"SIGKILL of one of {n} processes", f"{stage}, a step", injected, outcome, lost)


def _same_bits(ours: Path, theirs: Path) -> bool:
    if (ours / "log.jsonl").read_text() != (theirs / "log.jsonl").read_text():
        return False
    tensors = [load_file(folder / "model" / "model.safetensors") for folder in (ours, theirs)]
    same = all(torch.equal(value, tensors[1][name]) for name, value in tensors[0].items())
    return same and torch.equal(_theta(ours), _theta(theirs))


def _losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def _theta(folder: Path) -> torch.Tensor:
    return torch.load(folder / "theta.pt", weights_only=True)


def _how(ended: Ended) -> str:
    return "hung" if ended.hung else f"ended with {ended.statuses}"
