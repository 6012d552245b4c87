"""Inject every kind of fault and write docs/results/faults.md: `python -m bench.faults`.

Each kind runs in a process of its own and leaves its rows in runs/faults/KIND.json, so that one kind can be run
again (`--only kills`) and the page still has the others. A kind that is missing or fails is named in the page.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
import traceback
from pathlib import Path

from bench.faults.table import KINDS, MINUTES, Kind, as_section, failed, read_kind, totals, write_kind
from bench.timing import machine

FOLDER, PAGE = Path("runs/faults"), Path("docs/results/faults.md")
# A kind that takes this many times its share is ended: it hangs.
PATIENCE = 4

HEAD = """\
# Faults injected, and what became of them

Written by `make faults`, which is `python -m bench.faults`; one kind again: `make faults FAULTS=kills`. What is
promised and how it is tested stands in [reliability.md](../reliability.md).
"""


def main() -> None:
    """Run the kinds that were asked for, one after the other, and write the page of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="KINDS", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--budget-minutes", type=float, metavar="N", default=MINUTES, help="for all kinds")
    parser.add_argument("--out", type=Path, metavar="FILE", default=PAGE, help="the page to write")
    parser.add_argument(
        "--here", type=Path, metavar="FILE", help="run one kind in this process; write its rows"
    )
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := [name for name in names if name not in KINDS]:
        raise SystemExit(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.here is not None:
        write_kind(options.here, run_here(names[0], options.budget_minutes * 60))
        return
    for name in names:
        kind = run_apart(name, seconds_for(name, options.budget_minutes))
        print(as_section(kind), flush=True)
    kinds = {name: read_kind(path) for name in KINDS if (path := FOLDER / f"{name}.json").exists()}
    options.out.write_text(page(kinds))
    print(f"\n{options.out}: {totals(kinds)}")
    if wrong := failed(kinds):
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
        rows, problem = (), f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
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


def page(kinds: dict[str, Kind]) -> str:
    """The page: its head, the totals, a section per kind, and the kinds that were not run."""
    parts = [HEAD, f"**{totals(kinds)}.**"]
    if missing := [name for name in KINDS if name not in kinds]:
        parts.append(f"Not run for this page: {', '.join(missing)}.")
    parts += [as_section(kind) for kind in kinds.values()]
    where = "; ".join(f"{name} {value}" for name, value in machine().items() if name != "trl")
    return "\n\n".join([*parts, f"{where}."]).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    main()
