"""The page of an audit that may be passed on: verdicts, tables, figures, what is not known, provenance.

Everything on the page comes from `shareable`, which leaves out whatever is about fewer than five people and rounds the
rest, so that the pages of two audits do not tell what the one annotator voted in whom their tables differ.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from badpo.data.privacy import FEWEST_ANNOTATORS, rounded_count, withheld_classes
from badpo.results.audit_verdicts import (
    action,
    audit_labels,
    audit_verdicts,
    has_usable_spread,
    is_sure,
    limits,
)
from badpo.results.charts import DotPanel, DotRow, Figure, Level, Mark, TextTable, class_style, dot_figure
from badpo.results.words import (
    LONGEST,
    attribute_definition,
    cleaned,
    count_text,
    decimal,
    interval_text,
    page_templates,
    percent,
    shown,
)

# Columns of the pool's table that are there whether or not an attribute fills them.
_ALWAYS = 6
# exp(10) is odds of 22,000 to 1: an interval that goes beyond says nothing.
_WIDEST = 10.0
_UNKNOWN = "not known, or not to be passed on"
_SEVERITIES = ("error", "warning", "notice")
_WIDEST_CHART = 4.0
# Taking one annotator out moves an estimate by about their share of the votes times how far they lean from the pool.
# At these steps, by the largest such share, the difference of two pages leaves that lean open by a quarter or more.
STEPS = ((0.02, 0.01), (0.2, 0.05), (1.0, 0.25))
_EXACT = ("schema", "version", "settings", "annotators_file")
_NAMES = {
    "source",
    "name",
    "class",
    "feature",
    "attribute",
    "collinear_with",
    "parameter",
    "quality",
    "code",
    "remedy",
}
_WINNING = {"first_wins", "agreement", "position", "co_occurrence"}
_PROBABILITIES = {"equal_leans_p", "class_test_p", "p_value", "q_value"}
_TELLING_OF_SOME = {"W410"}  # is there where anybody is flagged, also where it is one
_COUNTS = {"median", "informative_votes", "judgments"}
_NUMBER = re.compile(r"(?<![\w.\-])(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(\s?%)?(?!\w)")
_PSEUDONYM = re.compile(r"ann_[a-z2-7]{10,}")
_ATTRIBUTE = re.compile(r'attribute "[^"]*"')


def audit_html(summary: Mapping[str, Any]) -> str:
    """The page about an audit, from ``audit.json``, as HTML text; it needs no network and no script."""
    found = shareable(summary)
    has_annotators = found["data"]["has_annotators"]
    return (
        page_templates()
        .get_template("audit.html.jinja")
        .render(
            name=shown(found["data"]["source"]),
            facts=_facts(found),
            rounding=_rounding(found),
            caution=few_votes(found),
            verdicts=audit_verdicts(found),
            spread=spread_figure(found),
            spread_table=spread_table(found) if has_annotators else None,
            health=health(found),
            problems=found["warnings"],
            attributes=attribute_table(found),
            sweeps=sweep_table(found),
            together=_together(found),
            known=known_table(found) if has_annotators else None,
            not_known=_not_known(found),
            scan=scan_table(found),
            votes_needed=votes_needed_table(found),
            next_steps=_next_steps(found),
            limits=limits(found),
            provenance=provenance(found),
            version=found["version"],
        )
    )


# -- what may be passed on ---------------------------------------------------------------------------------------


def shareable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of an audit as others may see it.

    Counts go to the nearest ten and are None below five; estimates go to two digits, in steps of 0.05 or 0.25 where
    one annotator cast more than 2 % or 20 % of the votes. What rests on fewer than five annotators is None or left
    out, with it whatever would let it be computed, and no annotator is named. ``step`` says to what the estimates are
    rounded.
    """
    data = summary["data"]
    largest = data["judgments_per_annotator"]["max"] / data["n_judgments"] if data["has_annotators"] else 0.0
    step = next(step for most, step in STEPS if largest <= most)
    warnings = [] if _is_withheld(data, data) else filter(None, map(_telling_problem, summary["warnings"]))
    telling = {
        "data": _telling_data(data),
        "attributes": [_telling_attribute(row, summary) for row in summary["attributes"]],
        "checks": _telling_checks(summary["checks"]),
        "scan": [row for row in summary["scan"] if not _is_withheld(row, data)],
        "next": summary["next"],
        "warnings": sorted(warnings, key=lambda row: _SEVERITIES.index(row["severity"])),
    }
    found = cleaned({name: summary[name] for name in _EXACT}) | _rounded(telling, "", step) | {"step": step}
    # each by itself: an attribute may be called position, as one of the parts that are rounded in another way
    pools = {name: _telling_pool(pool, summary) for name, pool in summary["pool"].items()}
    found["pool"] = {shown(name, LONGEST): _rounded(pool, "", step) for name, pool in pools.items()}
    for row in (*found["attributes"], *found["scan"]):
        if row["log_odds"] is not None:  # said once, and not a second time to other digits
            row["odds"] = math.exp(row["log_odds"])
            row["carrier_wins"] = row["odds"] / (1 + row["odds"])
    for graph in found["checks"]["components"].values():
        for groups in graph.values():
            groups["sizes"] = [size for size in groups["sizes"] if size is not None]
    return found


def _is_withheld(row: Mapping[str, Any] | None, data: Mapping[str, Any]) -> bool:
    """Whether an estimate rests on so few annotators that it is about single ones."""
    return row is not None and data["has_annotators"] and row["n_annotators"] < FEWEST_ANNOTATORS


def _telling_data(data: Mapping[str, Any]) -> dict[str, Any]:
    few = _is_withheld(data, data)
    sizes = {k: n for k, n in data["votes_per_comparison"].items() if rounded_count(n) is not None}
    return {name: value for name, value in data.items() if name != "fingerprint"} | {
        "judgments_per_annotator": {"median": data["judgments_per_annotator"]["median"]},
        "votes_per_comparison": sizes,
        "dropped": [row for row in data["dropped"] if not _is_withheld(row, data)],
        "unanimous_share": None if few else data["unanimous_share"],
        "agreement": dict.fromkeys(data["agreement"]) if few else data["agreement"],
        "position": None if _is_withheld(data["position"], data) else data["position"],
    }


def _telling_attribute(row: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    data = summary["data"]
    if _is_withheld(row, data):
        nothing = {name: None for name, value in row.items() if not isinstance(value, list | str | dict)}
        return {
            **nothing, "name": row["name"], "scope": row["scope"], "interval": None, "sweep": [], "joint": {},
            "quality_adjusted": None, "collinear_with": [], "co_occurrence": {}, "withheld": True,
        }  # fmt: skip
    adjusted = row["quality_adjusted"]
    # what is sure, and what to do, is said as the exact figures have it
    told = {
        **row,
        "verdict": None,
        "quality_adjusted": None if _is_withheld(adjusted, data) else adjusted,
        "is_sure": is_sure(row),
        "joint": {**row["joint"], "is_sure": is_sure(row["joint"])},
        "action": action(row, summary["pool"].get(row["name"], {})),
    }
    if row["interval"] != "naive only":
        # its width says how many votes there are
        told |= {"naive_ci_low": None, "naive_ci_high": None}
    return told


def _telling_pool(pool: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    withheld = withheld_classes({row["class"]: row["n"] for row in pool["classes"]})
    told = {**pool, "classes": [row for row in pool["classes"] if row["class"] not in withheld]}
    if len(told["classes"]) < 2 and pool["classes"]:
        told["class_test_p"] = None
        if pool["recommendation"] == "class":
            told |= {"recommendation": None, "recommendation_reason": ""}
    n_informed = pool["n_estimated"] + pool["n_insufficient"] + pool["n_separated"]
    if n_informed < FEWEST_ANNOTATORS:
        told |= {"tau": None, "tau_ci": [None, None], "reliability": None, "equal_leans_p": None}
        told |= {"recommendation": None, "recommendation_reason": "", "classes": []}
    anchors = summary["checks"]["anchors"]
    few_behind = pool["n_level"] < FEWEST_ANNOTATORS or anchors and anchors["n"] < FEWEST_ANNOTATORS
    if pool["level"] is not None and few_behind:
        why = "not on this page: it rests on few people"
        told |= {"level": None, "level_ci": None, "level_ci_beyond": None, "absolute_why": why}
    return told


def _telling_checks(checks: Mapping[str, Any]) -> dict[str, Any]:
    estimator, anchors = checks["estimator"], checks["anchors"]
    # one group, or more: how many more is known from the warning
    graphs = {
        kind: {
            name: {**graph, "n": ("none", "one", "several")[min(graph["n"], 2)]}
            for name, graph in found.items()
        }
        for kind, found in checks["components"].items()
    }
    return {
        "assignment": checks["assignment"] and {"p_value": checks["assignment"]["p_value"]},
        "estimator": {name: estimator[name] for name in ("quality", "why")},
        "components": graphs,
        "anchors": anchors and {"n": anchors["n"]},
    }


def _telling_problem(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A finding without its rows and names; None where it is about one annotator or counts fewer than five."""
    numbers = (number.replace(",", "") for number, share in _NUMBER.findall(row["what"]) if not share)
    few = any(number.isdigit() and rounded_count(int(number)) is None for number in numbers)
    named = _PSEUDONYM.fullmatch(row["where"]) or _PSEUDONYM.search(row["what"] + row["remedy"])
    if few or named or row["code"] in _TELLING_OF_SOME:
        return None
    where = _ATTRIBUTE.match(row["where"])
    return {name: row[name] for name in ("code", "severity", "what", "remedy")} | {
        "where": where[0] if where else ""
    }


def _rounded(value: Any, key: str, step: float) -> Any:
    """A part of the summary with its counts, estimates and the numbers in its sentences rounded."""
    if isinstance(value, Mapping):
        of = {name: key if key in _WINNING else name for name in value}
        return {shown(name, LONGEST): _rounded(entry, of[name], step) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry, key, step) for entry in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value = shown(value, LONGEST)
        return value if key in _NAMES else _NUMBER.sub(lambda found: _rounded_number(found, step), value)
    if isinstance(value, int) or key in _COUNTS:
        return rounded_count(round(value))
    if key in _PROBABILITIES:
        return float(f"{value:.1g}")
    if key.endswith("share"):
        step = 0.01  # how many votes these are is rounded by itself
    elif key in _WINNING:
        step = max(0.01, step / 5)  # near one half a log-odd moves the share that wins by a quarter
    return round(round(value / step) * step, 2)


def _rounded_number(found: re.Match[str], step: float) -> str:
    number, percent_sign = found[1].replace(",", ""), found[2]
    if percent_sign:
        return f"{float(number):.0f}{percent_sign}"
    if number.isdigit():
        return count_text(rounded_count(int(number)))
    value = float(number)
    return f"{value:.1g}" if value < 0.1 else f"{round(value / step) * step:.2f}"


def _rounding(found: Mapping[str, Any]) -> str:
    because = f"in steps of {found['step']:.2f} (somebody cast a large part of the votes)"
    steps = "to two digits" if found["step"] == STEPS[0][1] else because
    return (
        f"This page may be passed on. Nothing on it is about fewer than {FEWEST_ANNOTATORS} people, counts are rounded "
        f"to the nearest 10 (\u201cfewer than {FEWEST_ANNOTATORS}\u201d may be none) and estimates {steps}, so that "
        "nobody\u2019s votes can be computed from it. The exact figures are in audit.json and in "
        f"{found['annotators_file']}: those are personal data."
    )


# -- tables ----------------------------------------------------------------------------------------------------


def attribute_table(summary: Mapping[str, Any]) -> TextTable:
    """The pool's lean on every attribute, by every way of reading it that some attribute has."""
    header = (
        "Attribute", "Sides differ", "Carrier wins", "Log-odds", "95 %, clustered", "Odds",
        "Beside the others", "Swap pairs",
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
        return (label, *[decimal(None)] * 7)
    adjusted = row["quality_adjusted"]
    few = " (few prompts)" if row["interval"] == "small-cluster" else ""
    return (
        label,
        f"{count_text(row['n_cross'])} ({percent(row['cross_share'])})",
        percent(row["carrier_wins"]),
        decimal(row["log_odds"]),
        interval_text(row["ci_low"], row["ci_high"]) + few,
        decimal(row["odds"], 1),
        _estimate_text(row["joint"], "log_odds"),
        _estimate_text(adjusted, "log_odds"),
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


# -- figures and facts -------------------------------------------------------------------------------------------


def spread_figure(summary: Mapping[str, Any]) -> Figure | None:
    """How far annotators spread around the pool mean, and the classes' offsets; None without annotators."""
    pools = labelled_pools(summary) if summary["data"]["has_annotators"] else []
    rows = [
        _row_of(label, label, i, pool["tau"], *pool["tau_ci"])
        for i, (label, pool) in enumerate(pools)
        if has_usable_spread(pool)
    ]
    panels = [_panel("Tau: how far leans spread", rows, "spread of leans", "tau, log-odds", None)]
    for label, pool in pools:
        rows = [
            _row_of(
                shown(c["class"], 16),
                f"class {shown(c['class'], 24)} (n = {count_text(c['n'])})",
                i,
                c["offset"],
                c["ci_low"],
                c["ci_high"],
            )
            for i, c in enumerate(pool["classes"])
            if c["offset"] is not None
        ]
        name, axis = f"classes of annotators on {label}", "difference from the pool, log-odds"
        panels.append(_panel(label, rows, name, axis, Level(0.0, "pool mean")))
    caption = (
        "Marks and lines: estimates and their 95 % intervals. Classes: difference of each class from the pool mean, "
        f"from the conditional likelihood; a class of fewer than {FEWEST_ANNOTATORS} people is left out, and so is "
        "one that would let it be computed."
    )
    return dot_figure("Spread and classes", [panel for panel in panels if panel.rows], caption)


def _row_of(label: str, name: str, i: int, *estimate: float) -> DotRow:
    value, low, high = estimate
    return DotRow(label, (Mark(value, name, class_style(i), low, high),))


def _panel(title: str, rows: Sequence[DotRow], label: str, axis: str, level: Level | None) -> DotPanel:
    reach = max([0.2, *(abs(value) for row in rows for value in row.marks[0].extent())])
    reach = min(reach, _WIDEST_CHART)
    return DotPanel(title, rows, label, axis, level, (-reach if level else 0.0, reach))


def few_votes(summary: Mapping[str, Any]) -> str:
    """What the page leads with when most annotators have no sure estimate on some attribute; else nothing."""
    others = ("n_insufficient", "n_separated", "n_no_information")
    everyone = count_text(summary["data"]["n_annotators"])
    parts = [
        f"{count_text(pool['n_estimated'])} of {everyone} on {label}"
        for label, pool in labelled_pools(summary)
        if (pool["n_estimated"] or 0) < sum(pool[kind] or 0 for kind in others)
    ]
    if not parts:
        return ""
    return (
        f"Few annotators have enough informative votes for an estimate of their own: {'; '.join(parts)}. What these "
        "votes do tell is how far the pool spreads (tau) and how classes differ, so the page leads with that."
    )


def health(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the data are made of, as names and values."""
    data, assignment = summary["data"], summary["checks"]["assignment"]
    made_of = (
        f"{count_text(data['n_judgments'])} on {count_text(data['n_comparisons'])} comparisons of "
        f"{count_text(data['n_prompts'])} prompts"
    )
    people = "not in the table"
    if data["has_annotators"]:
        median = count_text(data["judgments_per_annotator"]["median"])
        people = f"{count_text(data['n_annotators'])}; judgments of the median one: {median}"
    reasons = ", ".join(f"{shown(row['reason'], 40)} {count_text(row['n'])}" for row in data["dropped"])
    facts = [
        ("Judgments", made_of),
        ("Annotators", people),
        ("Votes per comparison", ", ".join(f"{k}: {n:,}" for k, n in data["votes_per_comparison"].items())),
        ("Left out", f"{count_text(data['n_dropped'])} rows{f' ({reasons})' if reasons else ''}"),
        ("Unanimous", f"{percent(data['unanimous_share'])} of the comparisons with two votes or more"),
        ("Agreement", _agreement_text(data["agreement"])),
        ("Same comparison asked again", _repeats_text(data["self_contradictions"])),
        ("Shown first wins", _position_text(data["position"])),
    ]
    if assignment:
        facts.append(("Given out at random", f"{p_value(assignment['p_value'])} of the test that it was"))
    return facts


def provenance(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the audit was made from and with."""
    settings, estimator = summary["settings"], summary["checks"]["estimator"]
    definitions = [
        f"{shown(str(config.get('name', '')), 24)}: {attribute_definition(config)}"
        for config in settings["attributes"]
    ]
    asked = [f"{key} {value}" for key, value in settings.items() if key != "attributes"]
    return [
        ("Data", shown(summary["data"]["source"], 100)),
        ("Attributes", "; ".join(definitions)),
        ("Settings", ", ".join(asked)),
        ("Estimator", f"{estimator['quality']}: {estimator['why']}"),
        ("Annotators", summary["annotators_file"]),
        ("Schema", summary["schema"]),
        ("Made by", f"badpo {summary['version']}"),
    ]


def _facts(summary: Mapping[str, Any]) -> str:
    data = summary["data"]
    parts = [f"{count_text(data['n_judgments'])} judgments", f"{count_text(data['n_prompts'])} prompts"]
    if data["has_annotators"]:
        parts.append(f"{count_text(data['n_annotators'])} annotators")
    return " \u00b7 ".join([*parts, f"attributes: {', '.join(audit_labels(summary).values())}"])


def _together(summary: Mapping[str, Any]) -> list[str]:
    """How attributes go together, and what the estimate from swap pairs takes for granted."""
    labels, found = audit_labels(summary), []
    for row in summary["attributes"]:
        label, adjusted = labels[row["name"]], row["quality_adjusted"]
        shares = ", ".join(
            f"{labels[other]} {percent(share)}" for other, share in row["co_occurrence"].items()
        )
        if shares:
            found.append(f"Of the judgments whose sides differ in {label}, the same side has: {shares}.")
        if adjusted:
            found.append(f"Swap pairs, {label}: {adjusted['assumes']}.")
    if not any(row["quality_adjusted"] for row in summary["attributes"]):
        found.append(
            "No estimate is free of the quality of the responses: too few pairs of texts differ in an attribute alone."
        )
    return found


def _not_known(summary: Mapping[str, Any]) -> list[str]:
    """One sentence for each attribute on its common level, and how to read the two graphs."""
    if not summary["data"]["has_annotators"]:
        return ["The table does not say who voted: how annotators differ, and who differs, is not known."]
    anchors = summary["checks"]["anchors"]
    found = [
        f"{label}: the common level is {pool['absolute_why']}." for label, pool in labelled_pools(summary)
    ]
    if anchors:
        found.append(f"Anchors: {count_text(anchors['n'])} annotators are taken to lean nowhere.")
    found.append(
        "Leans of two annotators are compared only inside a group. The theorem\u2019s groups are joined by judging one "
        "comparison whose sides differ; those of informative votes only by comparisons that were not unanimous, which "
        "is what the estimates rest on."
    )
    return found


def _next_steps(summary: Mapping[str, Any]) -> list[str]:
    steps, found = summary["next"], []
    for feature in (shown(row["feature"], 24) for row in summary["scan"] if row["advice"] == "declare"):
        told = f"{feature.replace('_', ' ')} is preferred or avoided and not declared"
        found.append(f"{told}: add --attribute {feature}.")
    if steps["n_requests"]:
        found.append(
            f"{steps['requests_file']} lists {count_text(steps['n_requests'])} votes that would join groups or "
            f"tighten estimates; {steps['how']}."
        )
    return found


def _agreement_text(agreement: Mapping[str, Any]) -> str:
    if agreement["percent"] is None:
        return _UNKNOWN
    ends = interval_text(agreement["ci_low"], agreement["ci_high"], percent)
    told = "" if agreement["ci_low"] is None else f" (95 % interval {ends})"
    alpha = decimal(agreement["alpha"])
    return f"{percent(agreement['percent'])} of pairs of votes{told}; Krippendorff\u2019s alpha {alpha}"


def _repeats_text(repeats: Mapping[str, Any]) -> str:
    told = f"{count_text(repeats['n_repeated'])} times"
    if repeats["n_annotators"] is None:
        return told
    return (
        f"{told}; contradicted {count_text(repeats['n_contradicted'])} times, by {count_text(repeats['n_annotators'])} "
        "annotators"
    )


def _position_text(position: Mapping[str, Any] | None) -> str:
    if position is None:
        return _UNKNOWN
    ends = interval_text(position["ci_low"], position["ci_high"])
    return f"{percent(position['first_wins'])} of {count_text(position['n_known'])} judgments (95 % interval {ends})"


# -- the terminal ----------------------------------------------------------------------------------------------

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
