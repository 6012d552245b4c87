"""Values as text for a terminal, and as JSON for programs."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from badpo.data.problems import written_out


def is_first_process() -> bool:
    """Whether this is the only process of a run, or the first of those that a launcher started."""
    return int(os.environ.get("RANK", "0")) == 0


def say(what: Any) -> None:
    """Print something for people, at once: what it quotes from files and tables is not obeyed by a terminal."""
    print(written_out(str(what)), flush=True)


def complain(what: Any) -> None:
    """`say` beside the output, on the stream of errors."""
    print(written_out(str(what)), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON object; paths and other plain values become text."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def announce(source: Any, as_json: bool) -> None:
    """Say what is read, before anything is loaded for it."""
    if not as_json:
        say(f"reading {source}")


def tell(as_json: bool, value: Any, text: Any) -> None:
    """Print what a command found: for programs, or for people."""
    print_json(value) if as_json else say(text)


class WrittenOutRecord(logging.LogRecord):
    """A line of any program's log, as `say` would print it."""

    def getMessage(self) -> str:
        """The message with its arguments."""
        return written_out(super().getMessage())


def as_text(value: Any) -> str:
    """One value for people: four digits of a fraction, thousands separated, a dash for nothing.

    Examples
    --------
    >>> [as_text(value) for value in (0.123456, 27812, None, "pooled", [1.5, 2.0], {"ratio": 1.5})]
    ['0.1235', '27,812', '-', 'pooled', '1.5, 2', 'ratio=1.5']
    """
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case Mapping():
            return ", ".join(f"{name}={as_text(entry)}" for name, entry in value.items())
        case Sequence():
            return ", ".join(as_text(entry) for entry in value)
    return str(value)


def as_lines(values: Mapping[str, Any], indent: int = 0) -> str:
    """Names and values, one per line, what lies inside indented.

    Examples
    --------
    >>> print(as_lines({"rates": {"woman": 0.5}, "n": 1000}))
    rates
      woman                   0.5
    n                       1,000
    """
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += [f"{' ' * indent}{name}", as_lines(value, indent + 2)]
        else:
            rows.append(f"{' ' * indent}{name:<23} {as_text(value)}".rstrip())
    return "\n".join(rows)


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equal length with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@contextmanager
def terminal_progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A function of (what is being done, share of it done) that draws on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield lambda what, share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=written_out(what), completed=share)
