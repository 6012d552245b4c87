"""An audit as text for a terminal: a line per attribute, and what each of them comes to."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tabulate import tabulate

from badpo.results.audit_verdicts import audit_labels, audit_verdicts, interval_text
from badpo.results.labels import cleaned, decimal, percent, shown

_WIDTH = 100
_WORST = 5


def audit_table(summary: Mapping[str, Any]) -> str:
    """What the terminal prints of an audit: the pool's leans, their spread over annotators, verdicts, problems."""
    summary = cleaned(summary)
    data, labels = summary["data"], audit_labels(summary)
    head = f"{shown(data['source'], 60)}: {data['n_judgments']:,} judgments, {data['n_prompts']:,} prompts"
    if data["has_annotators"]:
        head += f", {data['n_annotators']:,} annotators"
    header = [
        "attribute",
        "differs",
        "wins",
        "log-odds",
        "95 % interval",
        "tau",
        "95 % interval",
        "estimated",
    ]
    rows = [
        _row(row, summary["pool"].get(row["name"], {}), labels[row["name"]]) for row in summary["attributes"]
    ]
    aligned = ("left", *["right"] * (len(header) - 1))
    table = tabulate([header, *rows], tablefmt="plain", colalign=aligned, disable_numparse=True)
    parts = [head, "\n".join(line.rstrip() for line in table.splitlines())]
    for verdict in audit_verdicts(summary):
        told = [verdict.finding, *(f"{term}: {sentence}" for term, sentence in verdict.sentences)]
        parts.append("\n".join([verdict.title, *(_wrapped(sentence) for sentence in told)]))
    declared = [row["feature"] for row in summary["scan"] if row["advice"] == "declare"]
    if declared:
        parts.append(f"not declared, and preferred or avoided: {', '.join(declared)}")
    if problems := summary["warnings"]:
        lines = [_wrapped(f"{row['code']} {row['what']}: {row['remedy']}") for row in problems[:_WORST]]
        more = [f"  and {len(problems) - _WORST:,} more in audit.json"] if len(problems) > _WORST else []
        parts.append("\n".join(["to look at", *lines, *more]))
    return "\n\n".join(parts)


def _row(row: Mapping[str, Any], pool: Mapping[str, Any], label: str) -> tuple[str, ...]:
    counts = [
        pool.get(name, 0) for name in ("n_estimated", "n_insufficient", "n_separated", "n_no_information")
    ]
    return (
        label,
        percent(row["cross_share"]),
        percent(row["carrier_wins"]),
        decimal(row["log_odds"]),
        interval_text(row["ci_low"], row["ci_high"]),
        decimal(pool.get("tau")),
        interval_text(*pool.get("tau_ci", (None, None))),
        f"{counts[0]:,} of {sum(counts):,}" if pool else decimal(None),
    )


def _wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, _WIDTH, initial_indent="  ", subsequent_indent="    ")
