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
    # one attribute beside no other is the attribute by itself
    needless = {"Beside the others"} if len(rows) == 1 else set()
    told = [
        i
        for i, name in enumerate(header)
        if i < _ALWAYS or name not in needless and any(row[i] != decimal(None) for row in rows)
    ]
    return TextTable(tuple(header[i] for i in told), tuple(tuple(row[i] for i in told) for row in rows))


def sweep_table(summary: Mapping[str, Any]) -> TextTable | None:
    """The lean at other thresholds, where an attribute has one."""
    labels = audit_labels(summary)
    rows = [
        (
            f"{labels[row['name']]}, {shown(step['parameter'], 20)} {decimal(step['value'])}",
            percent(step["cross_share"]),
            decimal(step["log_odds"]),
            interval_text(step["ci_low"], step["ci_high"]),
        )
        for row in summary["attributes"]
        for step in row["sweep"]
    ]
    return TextTable(("Threshold", "Sides differ", "Log-odds", "95 %"), tuple(rows)) if rows else None


def spread_table(summary: Mapping[str, Any]) -> TextTable | None:
    """How far annotators differ on every attribute, and what that says for training; None without annotators."""
    if not summary["data"]["has_annotators"]:
        return None
    labels = audit_labels(summary)
    rows = [
        (
            labels[name],
            decimal(pool["tau"]),
            interval_text(*(pool["tau_ci"] or (None, None))),
            decimal(pool["reliability"]),
            p_value(pool["equal_leans_p"]),
            p_value(pool["class_test_p"]),
            shown(pool["recommendation"] or decimal(None), 20),
        )
        for name, pool in summary["pool"].items()
    ]
    header = ("Attribute", "Tau", "95 %", "Reliability", "One lean for all", "Classes alike", "Bias term")
    return TextTable(header, tuple(rows))


def known_table(summary: Mapping[str, Any]) -> TextTable | None:
    """Who can be compared with whom: components of the theorem's graph and of the informative one."""
    if not summary["data"]["has_annotators"]:
        return None
    graphs, labels = summary["checks"]["components"], audit_labels(summary)
    rows = [
        (
            labels[name],
            _component_text(graphs["theorem"][name]),
            _component_text(graphs["informative"][name]),
            percent(pool["informative_share"]),
            *(
                count_text(pool[name])
                for name in ("n_estimated", "n_insufficient", "n_separated", "n_no_information")
            ),
        )
        for name, pool in summary["pool"].items()
    ]
    header = (
        "Attribute", "Groups, theorem", "Groups, informative votes", "Informative share", "Estimated", "Too few votes",
        "Without bound", "No information",
    )  # fmt: skip
    return TextTable(header, tuple(rows))


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
            "< 0.001"
            if row["q_value"] is not None and row["q_value"] < 0.001
            else decimal(row["q_value"], 3),
            shown(row["advice"], 20),
        )
        for row in summary["scan"]
    ]
    header = (
        "Feature", "Sides differ", "Carrier wins", "Log-odds", "95 %, simultaneous", "Beside the declared", "q",
        "Advice",
    )  # fmt: skip
    return TextTable(header, tuple(rows))


def votes_needed_table(summary: Mapping[str, Any]) -> TextTable:
    """Informative votes that the median annotator needs for an interval of a given width."""
    labels = audit_labels(summary)
    rows = [
        (
            f"{labels.get(row['attribute'], shown(row['attribute'], 24))}, \u00b1{decimal(row['half_width'])}",
            decimal(row["informative_votes"], 0),
            decimal(row["judgments"], 0),
        )
        for row in summary["next"]["votes_needed"]
    ]
    return TextTable(("Attribute, interval", "Informative votes", "Judgments"), tuple(rows))


def p_value(value: float | None) -> str:
    """A p value as text; a dash where there was no test.

    Examples
    --------
    >>> p_value(0.0321), p_value(1e-9), p_value(None)
    ('p = 0.032', 'p < 0.001', '\u2013')
    """
    if value is None:
        return decimal(None)
    return "p < 0.001" if value < 0.001 else f"p = {decimal(value, 3)}"


def _bounded_text(low: float | None, high: float | None) -> str:
    if low is not None and high is not None and low < -_WIDEST and high > _WIDEST:
        return f"wider than \u00b1{_WIDEST:.0f}"
    return interval_text(low, high)


def _attribute_row(row: Mapping[str, Any], label: str) -> tuple[str, ...]:
    if row.get("withheld"):
        return (label, *[decimal(None)] * 8)
    adjusted = row["quality_adjusted"]
    how = f"; {shown(adjusted['how'], 40)}" if adjusted else ""
    return (
        label,
        f"{count_text(row['n_cross'])} ({percent(row['cross_share'])})",
        percent(row["carrier_wins"]),
        decimal(row["log_odds"]),
        interval_text(row["ci_low"], row["ci_high"])
        + (" (few prompts)" if row["interval"] == "small-cluster" else ""),
        decimal(row["odds"], 1),
        _estimate_text(row["joint"], "log_odds"),
        _estimate_text(adjusted, "log_odds") + how,
        _estimate_text(row["arena"], "coefficient"),
    )


def _estimate_text(found: Mapping[str, Any] | None, key: str) -> str:
    if not found or found[key] is None:
        return decimal(None)
    return f"{decimal(found[key])} ({_bounded_text(found['ci_low'], found['ci_high'])})"


def _component_text(graph: Mapping[str, Any]) -> str:
    if graph["n"] == "none":
        return "none"
    sizes = " + ".join(f"{size:,}" for size in graph["sizes"])
    return f"{graph['n']}{f' ({sizes})' if sizes else ''}; outside: {count_text(graph['outside'])}"
