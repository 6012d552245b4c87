"""The tables of an audit's page: the pool, thresholds, spread, who can be compared, the scan, votes needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from badpo.results.audit_verdicts import audit_labels, interval_text
from badpo.results.figure_parts import TextTable
from badpo.results.labels import count_text, decimal, percent, shown

# Columns of the pool's table that are there whether or not an attribute fills them.
_ALWAYS = 6
# exp(10) is odds of 22,000 to 1: an interval that goes beyond says nothing.
_WIDEST = 10.0


def attribute_table(summary: Mapping[str, Any]) -> TextTable:
    """The pool's lean on every attribute, by every way of reading it that some attribute has."""
    header = (
        "Attribute", "Sides differ", "Carrier wins", "Log-odds", "95 %, clustered", "Odds",
        "Beside the others", "Quality-adjusted", "Arena-style",
    )  # fmt: skip
    labels = audit_labels(summary)
    rows = [_attribute_row(row, labels[row["name"]]) for row in summary["attributes"]]
    told = [*range(_ALWAYS)]
    for i in range(_ALWAYS, len(header)):
        # one attribute beside no other is the attribute by itself
        if any(row[i] != decimal(None) for row in rows) and (i != _ALWAYS or len(rows) > 1):
            told.append(i)
    return TextTable(tuple(header[i] for i in told), [tuple(row[i] for i in told) for row in rows])


def _attribute_row(row: Mapping[str, Any], label: str) -> tuple[str, ...]:
    if row.get("withheld"):
        return (label, *[decimal(None)] * 8)
    adjusted = row["quality_adjusted"]
    few = " (few prompts)" if row["interval"] == "small-cluster" else ""
    how = f"; {shown(adjusted['how'], 40)}" if adjusted else ""
    return (
        label,
        f"{count_text(row['n_cross'])} ({percent(row['cross_share'])})",
        percent(row["carrier_wins"]),
        decimal(row["log_odds"]),
        interval_text(row["ci_low"], row["ci_high"]) + few,
        decimal(row["odds"], 1),
        _estimate_text(row["joint"], "log_odds"),
        _estimate_text(adjusted, "log_odds") + how,
        _estimate_text(row["arena"], "coefficient"),
    )


def sweep_table(summary: Mapping[str, Any]) -> TextTable | None:
    """The lean at other thresholds, where an attribute has one."""
    labels = audit_labels(summary)
    rows = [
        (
            f"{labels[row['name']]}, {step['parameter']} {decimal(step['value'])}",
            percent(step["cross_share"]),
            decimal(step["log_odds"]),
            interval_text(step["ci_low"], step["ci_high"]),
        )
        for row in summary["attributes"]
        for step in row["sweep"]
    ]
    return TextTable(("Threshold", "Sides differ", "Log-odds", "95 %"), rows) if rows else None


def spread_table(summary: Mapping[str, Any]) -> TextTable:
    """How far annotators differ on every attribute, and what that says for training."""
    rows = [
        (
            label,
            decimal(pool["tau"]),
            interval_text(*pool["tau_ci"]),
            decimal(pool["reliability"]),
            p_value(pool["equal_leans_p"]),
            p_value(pool["class_test_p"]),
            pool["recommendation"] or decimal(None),
        )
        for label, pool in labelled_pools(summary)
    ]
    header = ("Attribute", "Tau", "95 %", "Reliability", "One lean for all", "Classes alike", "Bias term")
    return TextTable(header, rows)


def known_table(summary: Mapping[str, Any]) -> TextTable:
    """Who can be compared with whom: components of the theorem's graph and of the informative one."""
    theorem, informative = (summary["checks"]["components"][kind] for kind in ("theorem", "informative"))
    counts = ("n_estimated", "n_insufficient", "n_separated", "n_no_information")
    labels = audit_labels(summary)
    rows = [
        (
            labels[name],
            _component_text(theorem[name]),
            _component_text(informative[name]),
            percent(pool["informative_share"]),
            *(count_text(pool[count]) for count in counts),
        )
        for name, pool in summary["pool"].items()
    ]
    header = (
        "Attribute", "Groups, theorem", "Groups, informative votes", "Informative share", "Estimated", "Too few votes",
        "Without bound", "No information",
    )  # fmt: skip
    return TextTable(header, rows)


def scan_table(summary: Mapping[str, Any]) -> TextTable:
    """What else the pool prefers, among features that nobody declared."""
    rows = [
        (
            shown(row["feature"].replace("_", " "), 24),
            percent(row["cross_share"]),
            percent(row["carrier_wins"]),
            decimal(row["log_odds"]),
            _bounded_text(row["ci_low"], row["ci_high"]),
            _estimate_text(row["beyond_declared"], "log_odds"),
            decimal(row["q_value"], 3) if row["q_value"] is None or row["q_value"] >= 0.001 else "< 0.001",
            row["advice"],
        )
        for row in summary["scan"]
    ]
    header = (
        "Feature", "Sides differ", "Carrier wins", "Log-odds", "95 %, simultaneous", "Beside the declared", "q",
        "Advice",
    )  # fmt: skip
    return TextTable(header, rows)


def votes_needed_table(summary: Mapping[str, Any]) -> TextTable:
    """Informative votes that the median annotator needs for an interval of a given width."""
    labels = audit_labels(summary)
    rows = [
        (
            f"{labels[row['attribute']]}, \u00b1{decimal(row['half_width'])}",
            decimal(row["informative_votes"], 0),
            decimal(row["judgments"], 0),
        )
        for row in summary["next"]["votes_needed"]
    ]
    return TextTable(("Attribute, interval", "Informative votes", "Judgments"), rows)


def labelled_pools(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What is known of the annotators' leans on each attribute, with its name for people."""
    labels = audit_labels(summary)
    return [(labels[name], pool) for name, pool in summary["pool"].items()]


def p_value(value: float | None) -> str:
    """A p value as text; a dash where there was no test."""
    if value is None:
        return decimal(None)
    return "p < 0.001" if value < 0.001 else f"p = {decimal(value, 3)}"


def _bounded_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None and low < -_WIDEST and high > _WIDEST:
        return f"wider than \u00b1{_WIDEST:.0f}"
    return interval_text(low, high)


def _estimate_text(found: Mapping[str, Any] | None, key: str) -> str:
    if not found or found[key] is None:
        return decimal(None)
    return f"{decimal(found[key])} ({_bounded_text(found['ci_low'], found['ci_high'])})"


def _component_text(graph: Mapping[str, Any]) -> str:
    if graph["n"] == "none":
        return "none"
    sizes = " + ".join(f"{size:,}" for size in graph["sizes"])
    return f"{graph['n']}{f' ({sizes})' if sizes else ''}; outside: {count_text(graph['outside'])}"
