"""A suite's figures as text: ten lines for a terminal, Markdown over seeds for a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from badpo.results.labels import REFERENCE, arm_label, decimal, percent, shown, signed
from badpo.theory.summaries import Interval, t_interval

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class SeedRow:
    """One reading over the seeds of a suite.

    Attributes
    ----------
    reading : str
        A key of `READINGS`.
    arm, attribute, annotator_class : str
        What the reading is of; empty where it does not apply.
    interval : Interval
        Mean over seeds with Student's t interval; NaN ends for one seed.
    values : tuple of float
        One per seed.
    """

    reading: str
    arm: str
    attribute: str
    annotator_class: str
    interval: Interval
    values: tuple[float, ...]


@dataclass(frozen=True)
class Reading:
    """How a reading is named, which level of a summary it stands on, and how its numbers are written."""

    title: str
    number: Callable[[float | None], str]
    note: str = ""


READINGS: dict[str, Reading] = {
    "rates": Reading("Attribute rates", lambda value: decimal(value, 3)),
    "removed": Reading(
        "Share of DPO's shift removed", percent, "0 % is DPO, 100 % the reference; per seed, then averaged."
    ),
    "log_odds_distance": Reading("Distance to the reference in log-odds", signed),
    "theta_correlation": Reading(
        "Correlation of learned with planted theta", lambda value: decimal(value, 3)
    ),
    "votes": Reading("Held-out votes predicted", lambda value: decimal(value, 3)),
    "votes_minus_ceiling": Reading(
        "Votes predicted minus the planted ceiling",
        lambda value: signed(value, 3),
        "Paired: each seed against the ceiling of the same policy on the same votes.",
    ),
    "gap": Reading("Held-out gap, any attribute", lambda value: signed(value, 3)),
    "kl": Reading("KL from the reference, nats per token", lambda value: decimal(value, 4)),
}


def demo_table(summary: Summary) -> str:
    """The demo's figures in ten lines of plain text (with two attributes and four arms).

    Parameters
    ----------
    summary : mapping
        The content of ``summary.json``.

    Returns
    -------
    str
        For each arm its rates, the share of DPO's shift that it removed, its distance to the reference in
        log-odds, and KL; then the correlation of theta and the votes predicted.

    Examples
    --------
    >>> rates = {"reference": {"woman": 0.5}, "dpo": {"woman": 0.96}, "pooled": {"woman": 0.55}}
    >>> summary = {"seed": 42, "seconds": 300, "rates": rates, "removed": {"pooled": {"woman": 0.891}},
    ...     "log_odds_distance": {"dpo": {"woman": 3.18}, "pooled": {"woman": 0.2}},
    ...     "theta_correlation": {"woman": None}, "votes": {}, "kl": {"dpo": 0.03, "pooled": 0.02}}
    >>> print(demo_table(summary))
    seed 42, 300 s    woman
                       rate  removed  log-odds  KL/token
    reference          0.50
    DPO                0.96              +3.18    0.0300
    pooled             0.55     89 %     +0.20    0.0200
    removed: 0 % is DPO, 100 % the reference; log-odds: distance to the reference
    """
    attributes = list(summary["rates"][REFERENCE])
    header = ["", *("rate", "removed", "log-odds") * len(attributes), "KL/token"]
    rows = [header, *([label, *cells] for label, cells in _arm_rows(summary))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    title = f"seed {summary['seed']}, {summary['seconds']:.0f} s"
    widths[0] = max(widths[0], len(title))
    gaps = [4 if i % 3 == 1 else 2 for i in range(len(header))]
    lines = [_line(row, widths, gaps) for row in rows]
    spans = [
        sum(widths[i : i + 3]) + gaps[i] + gaps[i + 1] + gaps[i + 2] for i in range(1, len(header) - 1, 3)
    ]
    groups = (f"    {shown(name, 20)}".ljust(span) for name, span in zip(attributes, spans, strict=True))
    top = title.ljust(widths[0]) + "".join(groups)
    return "\n".join([top.rstrip(), *lines, *_closing_lines(summary)])


def seed_rows(summaries: Sequence[Summary]) -> list[SeedRow]:
    """Every reading of every arm over seeds.

    Parameters
    ----------
    summaries : sequence of mapping
        One ``summary.json`` per seed.

    Returns
    -------
    list of SeedRow
        In the order of `READINGS`. A reading that a seed lacks is left out of the interval and is NaN among its
        values.
    """
    flat = [_flat(summary) for summary in summaries]
    keys = dict.fromkeys(key for cells in flat for key in cells)
    rows = []
    for reading in READINGS:
        for key in keys:
            if key[0] != reading:
                continue
            values = tuple(cells.get(key, float("nan")) for cells in flat)
            known = [value for value in values if np.isfinite(value)]
            if known:
                # the reference is one run: its value at every seed is the same measurement
                runs = known[:1] if key[1] == REFERENCE else known
                rows.append(SeedRow(*key, t_interval(runs), values))
    return rows


def seeds_markdown(summaries: Sequence[Summary]) -> str:
    """Every reading over seeds as Markdown tables: mean, 95 % interval and each seed's value.

    Parameters
    ----------
    summaries : sequence of mapping
        One ``summary.json`` per seed.

    Returns
    -------
    str
        One table under a heading for each of `READINGS` that was measured.
    """
    rows, seeds = seed_rows(summaries), [summary["seed"] for summary in summaries]
    blocks = []
    for key, reading in READINGS.items():
        found = [row for row in rows if row.reading == key]
        if found:
            note = f"{reading.note}\n\n" if reading.note else ""
            blocks.append(f"### {reading.title}\n\n{note}{_markdown_table(found, seeds, reading.number)}")
    return "\n\n".join(blocks) + "\n"


def _flat(summary: Summary) -> dict[tuple[str, str, str, str], float]:
    """A summary's numbers by (reading, arm, attribute, annotator class)."""
    cells: dict[tuple[str, str, str, str], float | None] = {}
    for reading in ("rates", "removed", "log_odds_distance"):
        for arm, by_attribute in summary.get(reading, {}).items():
            cells |= {(reading, arm, attribute, ""): value for attribute, value in by_attribute.items()}
    cells |= {
        ("theta_correlation", "", a, ""): value for a, value in summary.get("theta_correlation", {}).items()
    }
    for reading in ("votes", "votes_minus_ceiling"):
        for arm, by_attribute in summary.get(reading, {}).items():
            for attribute, by_class in by_attribute.items():
                cells |= {(reading, arm, attribute, name): value for name, value in by_class.items()}
    for reading in ("gap", "kl"):
        cells |= {(reading, arm, "", ""): value for arm, value in summary.get(reading, {}).items()}
    return {key: float(value) for key, value in cells.items() if value is not None}


def _arm_rows(summary: Summary) -> list[tuple[str, list[str]]]:
    rows = []
    for arm, rates in summary["rates"].items():
        cells = []
        for attribute, rate in rates.items():
            share = summary.get("removed", {}).get(arm, {}).get(attribute)
            distance = summary.get("log_odds_distance", {}).get(arm, {}).get(attribute)
            cells += [
                f"{rate:.2f}",
                _or_blank(share, lambda v: f"{100 * v:.0f} %"),
                _or_blank(distance, "{:+.2f}".format),
            ]
        rows.append((arm_label(arm), [*cells, _or_blank(summary.get("kl", {}).get(arm), "{:.4f}".format)]))
    return rows


def _closing_lines(summary: Summary) -> list[str]:
    """How far theta agrees with what was planted, the votes predicted on each attribute, and what the columns are."""
    lines = []
    known = {a: r for a, r in summary.get("theta_correlation", {}).items() if r is not None}
    if known:
        figures = ", ".join(f"{shown(attribute, 20)} r = {r:.2f}" for attribute, r in known.items())
        lines.append(f"learned against planted theta: {figures}")
    votes = summary.get("votes", {})
    for attribute in summary["rates"][REFERENCE]:
        figures = ", ".join(
            f"{_voter(arm)} {by_attribute[attribute]['all']:.3f}"
            for arm, by_attribute in votes.items()
            if attribute in by_attribute
        )
        if figures:
            lines.append(f"votes, {shown(attribute, 20)}: {figures}")
    return [*lines, "removed: 0 % is DPO, 100 % the reference; log-odds: distance to the reference"]


def _voter(arm: str) -> str:
    return "ceiling" if arm == "ceiling" else arm_label(arm)


def _or_blank(value: float | None, number: Callable[[float], str]) -> str:
    return "" if value is None else number(value)


def _line(row: Sequence[str], widths: Sequence[int], gaps: Sequence[int]) -> str:
    cells = [" " * gaps[i] + cell.rjust(widths[i]) for i, cell in enumerate(row) if i > 0]
    return (row[0].ljust(widths[0]) + "".join(cells)).rstrip()


def _markdown_table(
    rows: Sequence[SeedRow], seeds: Sequence[int], number: Callable[[float | None], str]
) -> str:
    labels = {
        "Arm": [_voter(row.arm) if row.arm else "" for row in rows],
        "Attribute": [row.attribute for row in rows],
        "Annotators": [row.annotator_class for row in rows],
    }
    used = {name: cells for name, cells in labels.items() if any(cells)}
    header = [*used, "Mean", "95 % interval", *(f"seed {seed}" for seed in seeds)]
    lines = [header, [*("---" for _ in used), *("---:" for _ in header[len(used) :])]]
    for i, row in enumerate(rows):
        interval = row.interval
        known = np.isfinite(interval.low)
        ends = f"{number(interval.low)} to {number(interval.high)}" if known else decimal(None)
        names = [markdown_text(cells[i]) for cells in used.values()]
        lines.append([*names, number(interval.estimate), ends, *(number(value) for value in row.values)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown_text(text: str) -> str:
    r"""A text from data as one cell of a Markdown table: no markup of its own, no new cell, no new line.

    Examples
    --------
    >>> print(markdown_text("a|b <i> *c*"))
    a\|b &lt;i&gt; \*c\*
    """
    clean = shown(text, 80).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # an underscore inside a word is no markup
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", clean)
