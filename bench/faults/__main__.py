"""Inject every kind of fault and write docs/results/faults.md: `python -m bench.faults`.

Each kind writes its rows to runs/faults/KIND.json, so that one kind can be repeated (`--only kills`) and the page
keeps the others. The page names each kind that is missing or failed.
"""

import argparse
import importlib
import json
import time
import traceback
from pathlib import Path
from typing import Any

import pandas as pd

from bench.faults import GENERATED, Row
from bench.timing import machine

# Default minutes of each kind of fault, in the order of the runs; another total is divided in the same proportions.
KINDS = {"kills": 27, "torn_files": 6, "two_writers": 40, "fuzz": 6}
MINUTES = sum(KINDS.values())
FOLDER, PAGE = Path("runs/faults"), Path("docs/results/faults.md")
LIBRARIES = ("torch", "transformers")
HEAD = """\
# Injected faults and their outcomes

The command `make faults` (`python -m bench.faults`) writes this page; `make faults FAULTS=kills` repeats one kind of
fault. [reliability.md](../reliability.md) describes the guarantees and their tests."""


def main() -> None:
    """Run the requested kinds in turn, and write the page of all existing rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="KINDS", default=",".join(KINDS), help="separated by commas")
    parser.add_argument("--budget-minutes", type=float, default=MINUTES, help="for all kinds")
    parser.add_argument("--out", type=Path, metavar="FILE", default=PAGE, help="the page to write")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the rows of kinds stand")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := [name for name in names if name not in KINDS]:
        raise SystemExit(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    there = {name: options.folder / f"{name}.json" for name in KINDS}
    for name in names:
        found = run(name, seconds_for(name, options.budget_minutes))
        there[name].write_text(json.dumps(found, indent=2))
        print(section(name, found), flush=True)
    kinds = {name: json.loads(path.read_text()) for name, path in there.items() if path.exists()}
    options.out.write_text(page(kinds))
    print(f"\n{options.out}: {totals(kinds)}")
    if wrong := [name for name, kind in kinds.items() if has_failed(kind)]:
        raise SystemExit(f"failed: {', '.join(wrong)}")


def seconds_for(name: str, budget_minutes: float) -> float:
    """Compute the seconds of a kind from the total number of minutes."""
    return 60 * budget_minutes * KINDS[name] / MINUTES


def run(name: str, seconds: float) -> dict[str, Any]:
    """Run one kind, and return its rows, its seconds and its error, if any."""
    started = time.monotonic()
    rows: list[Row] = []
    try:
        rows = importlib.import_module(f"bench.faults.{name}").rows(seconds)
        problem = "" if rows else "it gave no row"
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    found = [row._asdict() for row in rows]
    return {"rows": found, "seconds": time.monotonic() - started, "problem": problem}


def has_failed(kind: dict[str, Any]) -> bool:
    """Whether a kind lost data or could not be run."""
    return bool(kind["problem"]) or any(row["lost"] for row in kind["rows"])


def section(name: str, kind: dict[str, Any]) -> str:
    """Write the section of one kind: rows with equal outcomes are added up; then the time and the error."""
    parts = [f"## {name.replace('_', ' ')}"]
    if kind["rows"]:
        told = pd.DataFrame(kind["rows"])
        told["is_lost"] = told["lost"] > 0
        joined = {name: lambda texts: "; ".join(dict.fromkeys(texts)) for name in ("fault", "stage")}
        alike = told.groupby(["outcome", "is_lost"], sort=False, as_index=False)
        table = alike.agg({**joined, "injected": "sum", "lost": "sum"})[list(Row._fields)]
        parts.append(table.map(lambda cell: str(cell).replace("|", "\\|")).to_markdown(index=False))
    parts += [f"**Incomplete:** {kind['problem']}"] if kind["problem"] else []
    parts.append(f"`python -m bench.faults --only {name}`, {kind['seconds'] / 60:.1f} minutes.")
    return "\n\n".join(parts)


def totals(kinds: dict[str, dict[str, Any]]) -> str:
    """Write the numbers of injections and losses over all kinds; generated inputs are counted separately."""
    rows = [row for kind in kinds.values() for row in kind["rows"]]
    n_inputs = sum(row["injected"] for row in rows if row["fault"] == GENERATED)
    injected, lost = sum(row["injected"] for row in rows) - n_inputs, sum(row["lost"] for row in rows)
    inputs = f" and {n_inputs:,} generated inputs tried" if n_inputs else ""
    return f"{injected:,} faults injected{inputs}, {lost:,} with a loss"


def page(kinds: dict[str, dict[str, Any]]) -> str:
    """Write the page: introduction, totals, a section for each kind, and the kinds that were not run."""
    missing = [name for name in KINDS if name not in kinds]
    parts = [HEAD, f"**{totals(kinds)}.**"]
    parts += [f"Not run for this page: {', '.join(missing)}."] if missing else []
    return (
        "\n\n".join([*parts, *(section(*kind) for kind in kinds.items()), f"{machine(LIBRARIES)}."])
        + "\n"
    )


if __name__ == "__main__":
    main()
