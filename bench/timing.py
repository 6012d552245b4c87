"""CPU time on pinned threads, and how the speed benches print what they found."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

REPEATS = 5
THREADS = 1


def apart(work: Callable, *arguments: Any) -> Any:
    """What a function gives in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()


def machine() -> dict[str, str]:
    """Processor, threads and versions, for the foot of a table."""
    import torch
    import transformers
    import trl

    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.is_file() else []
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "threads": str(THREADS),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "trl": trl.__version__,
    }


def options_parser(description: str, cases: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all speed benches have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--case", choices=cases, action="append", help="only this case; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to FILE")
    return parser


def report(
    title: str,
    rows: Sequence[Mapping],
    options: argparse.Namespace,
    notes: Sequence[str] = (),
    where: Mapping[str, str] | None = None,
) -> None:
    """Print the rows with the machine, and write the table if asked for."""
    where = where or machine()
    text = as_markdown(title, rows, where, notes)
    if options.markdown is not None:
        options.markdown.write_text(text)
    print(json.dumps({"machine": where, "rows": list(rows)}, indent=2) if options.json else text)


def as_markdown(title: str, rows: Sequence[Mapping], where: Mapping, notes: Sequence[str] = ()) -> str:
    """A section with a table of the rows: their keys in the order of appearance, without those that nothing fills."""
    table = pd.DataFrame(list(rows), dtype=object).dropna(axis=1, how="all").map(_cell)
    foot = "; ".join(f"{name} {value}" for name, value in where.items())
    shown = table.to_markdown(index=False, disable_numparse=True)
    return "\n".join([f"### {title}", "", shown, "", *(f"{note}\n" for note in notes), f"{foot}.", ""])


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if math.isnan(value):
        return ""
    return f"{value:.2f}" if 0.01 <= abs(value) < 1e4 or value == 0 else f"{value:.1e}"
