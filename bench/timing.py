"""CPU time on pinned threads, and the output that the speed benchmarks share."""

import argparse
import json
import multiprocessing
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pandas as pd

REPEATS = 5
THREADS = 1


def apart(work: Callable, *arguments: Any) -> Any:
    """Call a function in a fresh process and return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def machine(libraries: Sequence[str]) -> str:
    """Describe processor, threads and versions, for the line below a table."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    processor = names[0] if names else platform.processor() or platform.machine()
    versions = [f"{name} {one.version}" for name in libraries for one in [*distributions(name=name)][:1]]
    return "; ".join([processor, f"threads {THREADS}", f"python {platform.python_version()}", *versions])


def options_parser(description: str, cases: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of all speed benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--case", choices=cases, action="append", help="only this case; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to FILE")
    return parser


def report(
    title: str,
    rows: Sequence[Mapping],
    options: argparse.Namespace,
    notes: Sequence[str],
    libraries: Sequence[str],
) -> None:
    """Print the rows and the machine as a table without empty columns; write the table to a file if requested."""
    where = machine(libraries)
    table = pd.DataFrame(list(rows), dtype=object).dropna(axis=1, how="all").map(_cell)
    shown = table.to_markdown(index=False, disable_numparse=True)
    text = "\n\n".join([f"### {title}", shown, *notes, f"{where}.\n"])
    if options.markdown is not None:
        options.markdown.write_text(text)
    print(json.dumps({"machine": where, "rows": list(rows)}, indent=2) if options.json else text)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if 0.01 <= abs(value) < 1e4 or value == 0 else f"{value:.1e}"
