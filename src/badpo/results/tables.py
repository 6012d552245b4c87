"""The demo's figures over seeds as text: ten lines for a terminal, Markdown for a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from badpo.results.words import REFERENCE, arm_label, decimal, percent, shown, signed
from badpo.theory.summaries import t_interval

Summary = Mapping[str, Any]
_three, _signed_three = partial(decimal, places=3), partial(signed, places=3)


@dataclass(frozen=True)
class SeedReading:
    """How a reading of a summary is named, what its levels are, and how its numbers are written."""

    title: str
    levels: tuple[str, ...]
    number: Callable[[float | None], str]
    note: str = ""


_OF_ARM = ("Arm", "Attribute")
READINGS: dict[str, SeedReading] = {
    "rates": SeedReading("Attribute rates", _OF_ARM, _three),
    "removed": SeedReading(
        "Share of DPO's shift removed",
        _OF_ARM,
        percent,
        "0 % is DPO, 100 % the reference; per seed, then averaged.",
    ),
    "log_odds_distance": SeedReading("Distance to the reference in log-odds", _OF_ARM, signed),
    "theta_correlation": SeedReading("Correlation of learned with planted theta", ("Attribute",), _three),
    "votes": SeedReading("Held-out votes predicted", (*_OF_ARM, "Annotators"), _three),
    "votes_minus_ceiling": SeedReading(
        "Votes predicted minus the planted ceiling",
        (*_OF_ARM, "Annotators"),
        _signed_three,
        "Paired: each seed against the ceiling of the same policy on the same votes.",
    ),
    "gap": SeedReading("Held-out gap, any attribute", ("Arm",), _signed_three),
    "kl": SeedReading("KL from the reference, nats per token", ("Arm",), partial(decimal, places=4)),
}


def demo_table(summary: Summary) -> str:
    """The demo's figures in ten lines of plain text (with two attributes and four arms), from its ``summary.json``.

    For each arm its rates, the share of DPO's shift that it removed, its distance to the reference in log-odds, and
    KL; then the correlation of theta and the votes predicted.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for arm, rates in summary["rates"].items():
        row = rows[arm_label(arm)] = {}
        for name, rate in rates.items():
            share = summary.get("removed", {}).get(arm, {}).get(name)
            distance = summary.get("log_odds_distance", {}).get(arm, {}).get(name)
            row[shown(name, 20), "rate"] = f"{rate:.2f}"
            row[shown(name, 20), "removed"] = "" if share is None else f"{100 * share:.0f} %"
            row[shown(name, 20), "log-odds"] = "" if distance is None else f"{distance:+.2f}"
        divergence = summary.get("kl", {}).get(arm)
        row["", "KL/token"] = "" if divergence is None else f"{divergence:.4f}"
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.columns = pd.MultiIndex.from_tuples(
        frame.columns, names=[f"seed {summary['seed']}, {summary['seconds']:.0f} s", ""]
    )
    lines = [line.rstrip() for line in frame.to_string(col_space=8).splitlines()]
    known = {a: r for a, r in summary.get("theta_correlation", {}).items() if r is not None}
    if known:
        figures = ", ".join(f"{shown(attribute, 20)} r = {r:.2f}" for attribute, r in known.items())
        lines.append(f"learned against planted theta: {figures}")
    for attribute in summary["rates"][REFERENCE]:
        votes = {arm: by[attribute] for arm, by in summary.get("votes", {}).items() if attribute in by}
        if votes:
            figures = ", ".join(f"{arm_label(arm)} {by_class['all']:.3f}" for arm, by_class in votes.items())
            lines.append(f"votes, {shown(attribute, 20)}: {figures}")
    return "\n".join(
        [*lines, "removed: 0 % is DPO, 100 % the reference; log-odds: distance to the reference"]
    )


def seeds_markdown(summaries: Sequence[Summary]) -> str:
    """Every reading of one ``summary.json`` a seed as Markdown tables: mean, 95 % interval and each seed's value.

    A reading that a seed lacks is left out of the interval; the reference is one run and has none.
    """
    blocks = []
    for key, reading in READINGS.items():
        of_seeds = [dict(_leaves(summary.get(key, {}))) for summary in summaries]
        rows = []
        for labels in dict.fromkeys(labels for cells in of_seeds for labels in cells):
            values = [cells.get(labels, np.nan) for cells in of_seeds]
            known = [value for value in values if np.isfinite(value)]
            if known:
                runs = known[:1] if labels[0] == REFERENCE else known
                rows.append([*_named(labels, reading), *_over_seeds(runs, values, reading.number)])
        if rows:
            header = [*reading.levels, "Mean", "95 % interval", *(f"seed {s['seed']}" for s in summaries)]
            note = f"{reading.note}\n\n" if reading.note else ""
            table = pd.DataFrame(rows, columns=header).to_markdown(
                index=False,
                disable_numparse=True,
                colalign=["left"] * len(reading.levels) + ["right"] * (2 + len(summaries)),
            )
            blocks.append(f"### {reading.title}\n\n{note}{table}")
    return "\n\n".join(blocks) + "\n"


def _leaves(node: Any, labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """The numbers of nested mappings, by their keys."""
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from _leaves(inner, (*labels, name))
    elif node is not None:
        yield labels, float(node)


def _named(labels: Sequence[str], reading: SeedReading) -> list[str]:
    shown_as = {"Arm": arm_label}
    return [
        markdown_text(shown_as.get(level, str)(label))
        for level, label in zip(reading.levels, labels, strict=True)
    ]


def _over_seeds(
    runs: Sequence[float], values: Sequence[float], number: Callable[[float | None], str]
) -> list[str]:
    interval = t_interval(runs)
    known = np.isfinite(interval.low)
    ends = f"{number(interval.low)} to {number(interval.high)}" if known else decimal(None)
    return [number(interval.estimate), ends, *map(number, values)]


def markdown_text(text: str) -> str:
    r"""A text from data as one cell of a Markdown table: no markup of its own, no new cell, no new line."""
    clean = shown(text, 80).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # an underscore inside a word is no markup
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", clean)
