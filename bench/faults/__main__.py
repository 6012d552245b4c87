"""Inject every kind of fault and write docs/results/faults.md: `python -m bench.faults`.

Each kind runs in a process of its own and leaves its rows in runs/faults/KIND.json, so that one kind can be run
again (`--only kills`) and the page still has the others. A kind that is missing or fails is named in the page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from bench.faults.table import KINDS, MINUTES, Kind, Row, as_section, totals
from bench.timing import machine

FOLDER, PAGE = Path("runs/faults"), Path("docs/results/faults.md")
# A kind that takes this many times its share is ended: it hangs.
PATIENCE = 4
HEAD = """\
# Faults injected, and what became of them

Written by `make faults`, which is `python -m bench.faults`; one kind again: `make faults FAULTS=kills`. What is
promised and how it is tested stands in [reliability.md](../reliability.md)."""


def main() -> None:
    """Run the kinds that were asked for, one after the other, and write the page of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="KINDS", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--budget-minutes", type=float, metavar="N", default=MINUTES, help="for all kinds")
    parser.add_argument("--out", type=Path, metavar="FILE", default=PAGE, help="the page to write")
    parser.add_argument("--here", type=Path, metavar="FILE", help="one kind in this process; writes its rows")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := [name for name in names if name not in KINDS]:
        raise SystemExit(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.here is not None:
        write_kind(options.here, run_here(names[0], options.budget_minutes * 60))
        return
    for name in names:
        print(as_section(run_apart(name, seconds_for(name, options.budget_minutes))), flush=True)
    kinds = {name: read_kind(path) for name in KINDS if (path := FOLDER / f"{name}.json").exists()}
    options.out.write_text(page(kinds))
    print(f"\n{options.out}: {totals(kinds)}")
    if wrong := [name for name, kind in kinds.items() if kind.failed]:
        raise SystemExit(f"failed: {', '.join(wrong)}")


def seconds_for(name: str, budget_minutes: float) -> float:
    """A kind's share of the minutes that all kinds have together."""
    return 60 * budget_minutes * KINDS[name] / MINUTES


def run_here(name: str, seconds: float) -> Kind:
    """The rows of one kind, and what kept it from giving them."""
    started = time.monotonic()
    try:
        rows = tuple(importlib.import_module(f"bench.faults.{name}").rows(seconds))
        problem = "" if rows else "it gave no row"
    except Exception as error:
        traceback.print_exc()
        rows, problem = (), f"{type(error).__name__}: {error}".splitlines()[0]
    return Kind(name, rows, time.monotonic() - started, problem)


def run_apart(name: str, seconds: float) -> Kind:
    """The rows of one kind from a process of its own; what it leaves when it dies or hangs is told as a problem."""
    path = FOLDER / f"{name}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.faults", "--only", name, "--here", str(path)]
    command += ["--budget-minutes", str(seconds / 60)]
    started = time.monotonic()
    try:
        status = subprocess.run(command, timeout=PATIENCE * seconds + 300, check=False).returncode
        problem = f"its process ended with status {status}"
    except subprocess.TimeoutExpired:
        problem = f"it was ended after {PATIENCE} times its share of the time"
    if not path.exists():
        write_kind(path, Kind(name, (), time.monotonic() - started, problem))
    return read_kind(path)


def write_kind(path: Path, kind: Kind) -> None:
    """Keep what a kind of fault found, so that another can be run again without it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(kind), indent=2) + "\n")


def read_kind(path: Path) -> Kind:
    """What `write_kind` wrote."""
    content = json.loads(path.read_text())
    return Kind(**{**content, "rows": tuple(Row(**row) for row in content["rows"])})


def page(kinds: dict[str, Kind]) -> str:
    """The page: its head, the totals, a section per kind, and the kinds that were not run."""
    missing = [name for name in KINDS if name not in kinds]
    where = "; ".join(f"{name} {value}" for name, value in machine().items() if name != "trl")
    parts = [HEAD, f"**{totals(kinds)}.**"]
    parts += [f"Not run for this page: {', '.join(missing)}."] if missing else []
    return "\n\n".join([*parts, *map(as_section, kinds.values()), f"{where}."]) + "\n"


if __name__ == "__main__":
    main()
