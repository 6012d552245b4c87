"""Check that the readers of texts take linear time: four times the text must take about four times as long."""

import sys
import time
import timeit
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle

import pandas as pd

from badpo.auditing.pool_bias import _MARKS
from badpo.data.attributes import BUILT_IN
from badpo.data.cells import Table
from badpo.data.markers import split_signature
from badpo.data.privacy import direct_identifiers
from badpo.data.problems import did_you_mean, written_out
from badpo.data.tables import inert
from badpo.importers.annotation_tools import _UNNAMED
from badpo.importers.export import Export, personal_fields
from badpo.readouts.judge import strip_markdown, strip_signatures
from badpo.results.formatting import kept_together, markdown_text
from badpo.results.model_card import _FILE, _HUB_ID

_EXPORT = Export(Table(pd.DataFrame(), "cells"))
DETECTORS = [
    row.make(**row.example)
    for kind, row in BUILT_IN.items()
    if kind not in ("length_tokens", "column", "position")
]
# Repeated beginnings of a match, and an end that prevents the match.
# fmt: off
REPEATED = (
    "a", " ", "\n", "\t\n", "\r", " \n", "*", "**", "**a", "- ", "-", "#", "# ", "1", "1.", "1. ", "|", "| ", "|:\n",
    "| a\n", "| : ", "```", "``` \n", "\N{EM DASH} A", " \N{EM DASH} ", "A", "Aa ", "www", "http://", "](", "[", "I ",
    "i cannot ", "as far as i ", "it ", "'", "@", "a@", ".", "a.", "_", "2024-02-", "p < ", "=", "\U0001f600",
)
# fmt: on
ENDINGS = ("", "x", " ", "\n\N{EM DASH} Emily", "\x00", "a")
BEFORE = ("", "a@", "|", "**", "i cannot ", "a_", "a@a.")

READERS: dict[str, Callable[[str], object]] = {
    **{one.name: partial(one.measure, "Why?") for one in DETECTORS if one.scope != "pair"},
    **{one.name: partial(one.measure, "Why?", "So.") for one in DETECTORS if one.scope == "pair"},
    "strip_markdown": strip_markdown,
    "strip_signatures": strip_signatures,
    "split_signature": split_signature,
    "swap pairs' bodies": lambda text: _MARKS.sub("", text),
    "side of a label": lambda text: _EXPORT.side_of(text, "response_a", "response_b"),
    "fields": lambda text: _EXPORT.text_fields([text, "prompt", "text1", "text2"]),
    "personal fields": lambda text: personal_fields(pd.DataFrame({"cell": [text]})),
    "ids": lambda text: direct_identifiers([text]),
    "unnamed sessions": _UNNAMED.fullmatch,
    "closest name": lambda text: did_you_mean(text, [text[:-1], "prompt"]),
    "cells": inert,
    "messages": written_out,
    "pages": kept_together,
    "tables": markdown_text,
    "model cards": lambda text: (_HUB_ID.fullmatch(text), _FILE.search(text)),
}


def slow_texts(read: Callable[[str], object], n: int, units: Sequence[str] = REPEATED) -> list[str]:
    """Return the texts on which the time grows much faster than the length (16 times as long if quadratic)."""
    slow = []
    for unit, before, ending in zip(units, cycle(BEFORE), cycle(ENDINGS), strict=False):
        short, long = (before + unit * (size // len(unit)) + ending for size in (n // 4, n))
        if seconds(read, long) < max(0.02, 9 * seconds(read, short)):
            continue
        # measure again, because another process may have used the CPU
        if seconds(read, long, 3) > max(0.02, 9 * seconds(read, short, 3)):
            slow.append(f"{before!r} + {unit!r} * n + {ending!r}")
    return slow


def seconds(read: Callable[[str], object], text: str, times: int = 1) -> float:
    """Return the smallest processor time of several runs."""
    return min(timeit.repeat(lambda: read(text), timer=time.process_time, repeat=times, number=1))


def main() -> int:
    """Print every reader with its slow texts; the exit status is 1 if there are any."""
    found = {
        f"{name}, {size:,} characters": slow_texts(read, size)
        for name, read in READERS.items()
        for size in (12_000, 1_000_000)
    }
    for name, slow in found.items():
        print(f"{name}: {'; '.join(slow) or 'linear'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
