"""One page about an audit, drawn from its files: verdicts, tables, figures, what is not known, provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from badpo.results.audit_figures import (
    agreement_figure,
    caterpillar_figure,
    funnel_figure,
    least_informative,
    shown_classes,
    spread_figure,
)
from badpo.results.audit_tables import (
    attribute_table,
    known_table,
    p_value,
    scan_table,
    spread_table,
    sweep_table,
    votes_needed_table,
)
from badpo.results.audit_verdicts import audit_labels, audit_verdicts, interval_text, limits
from badpo.results.labels import attribute_definition, decimal, percent, shown
from badpo.results.pages import page_templates

if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 400
_SEVERITIES = ("error", "warning", "notice")


@dataclass(frozen=True)
class Caution:
    """What the page leads with when it says little about single annotators; empty texts when it says enough."""

    title: str
    text: str


def audit_html(summary: Mapping[str, Any], annotators: pd.DataFrame) -> str:
    """The page about an audit as HTML text.

    Parameters
    ----------
    summary : mapping
        The content of ``audit.json``.
    annotators : DataFrame
        The content of ``annotators.parquet``.
    """
    spread = spread_figure(summary, annotators)
    people = [
        caterpillar_figure(summary, annotators),
        funnel_figure(summary, annotators),
        agreement_figure(summary, annotators),
    ]
    return (
        page_templates()
        .get_template("audit.html.jinja")
        .render(
            name=shown(summary["data"]["source"]),
            facts=_facts(summary),
            caution=few_votes(summary, annotators),
            verdicts=audit_verdicts(summary),
            spread=spread,
            spread_table=spread_table(summary),
            people=[figure for figure in people if figure],
            health=health(summary),
            problems=problems(summary),
            attributes=attribute_table(summary),
            sweeps=sweep_table(summary),
            together=_together(summary),
            known=known_table(summary),
            not_known=_not_known(summary),
            scan=scan_table(summary),
            votes_needed=votes_needed_table(summary),
            next_steps=_next_steps(summary),
            limits=limits(summary),
            provenance=provenance(summary),
            version=shown(str(summary["version"])),
        )
    )


def few_votes(summary: Mapping[str, Any], annotators: pd.DataFrame) -> Caution | None:
    """What the page leads with when most annotators have too few informative votes, on any attribute; else None."""
    least, labels, parts = least_informative(summary), audit_labels(summary), []
    for name, label in labels.items():
        votes = annotators.loc[annotators["attribute"] == name, "n_informative"]
        few = int((votes < least).sum())
        if few > len(votes) / 2:
            parts.append(f"{few:,} of {len(votes):,} ({percent(few / len(votes))}) on {label}")
    if not parts:
        return None
    text = (
        f"Most annotators have fewer than {least} informative votes: {'; '.join(parts)}. What these votes do tell is "
        "how far the pool spreads (tau) and how classes differ, so the page leads with that. Estimates of single "
        "people come further down and are rough guesses."
    )
    return Caution("Read the pool, not the people", text)


def health(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the data are made of, as names and values."""
    data = summary["data"]
    facts = [
        (
            "Judgments",
            f"{data['n_judgments']:,} on {data['n_comparisons']:,} comparisons of {data['n_prompts']:,} prompts",
        ),
        ("Annotators", _people_text(data)),
        ("Votes per comparison", ", ".join(f"{k}: {n:,}" for k, n in data["votes_per_comparison"].items())),
        ("Left out", _dropped_text(data)),
        ("Unanimous", f"{percent(data['unanimous_share'])} of the comparisons with two votes or more"),
        ("Agreement", _agreement_text(data["agreement"])),
        ("Same vote asked again", _repeats_text(data["self_contradictions"])),
        ("Shown first wins", _position_text(data["position"])),
    ]
    assignment = summary["checks"]["assignment"]
    if assignment:
        facts.append(("Given out at random", f"{p_value(assignment['p_value'])} of the test that it was"))
    return facts


def problems(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """What is wrong or worth knowing: code and severity, what, where, remedy; errors first."""
    order = {name: i for i, name in enumerate(_SEVERITIES)}
    rows = sorted(summary["warnings"], key=lambda row: order.get(row["severity"], len(order)))
    return [
        (
            f"{shown(row['code'], 8)} {shown(row['severity'], 12)}",
            shown(row["what"], _LONGEST),
            shown(row["where"], _LONGEST),
            shown(row["remedy"], _LONGEST),
        )
        for row in rows
    ]


def provenance(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the audit was made from and with."""
    settings, estimator = summary["settings"], summary["checks"]["estimator"]
    asked = {key: value for key, value in settings.items() if key != "attributes"}
    definitions = [
        f"{shown(str(config.get('name', '')), 24)}: {attribute_definition(config)}"
        for config in settings["attributes"]
    ]
    numbers = f"gradient norm {estimator['gradient_norm']:.1e} after {estimator['n_newton']:,} Newton steps"
    if estimator["gradient_norm"] is None:
        numbers = "not recorded"
    return [
        ("Data", shown(summary["data"]["source"], 100)),
        ("Data fingerprint", shown(str(summary["data"]["fingerprint"]), 100)),
        ("Attributes", "; ".join(definitions)),
        ("Settings", ", ".join(f"{shown(key)} {shown(str(value))}" for key, value in asked.items())),
        ("Estimator", f"{shown(estimator['quality'])}: {shown(estimator['why'], _LONGEST)}"),
        ("Fit", numbers),
        ("Annotators", shown(summary["annotators_file"])),
        ("Schema", shown(summary["schema"])),
        ("Made by", f"badpo {shown(str(summary['version']))}"),
    ]


def _facts(summary: Mapping[str, Any]) -> str:
    data = summary["data"]
    parts = [f"{data['n_judgments']:,} judgments", f"{data['n_prompts']:,} prompts"]
    if data["has_annotators"]:
        parts.append(f"{data['n_annotators']:,} annotators")
    return " \u00b7 ".join([*parts, f"attributes: {', '.join(audit_labels(summary).values())}"])


def _together(summary: Mapping[str, Any]) -> list[str]:
    """How attributes go together, and what a quality-adjusted estimate takes for granted or lacks."""
    labels, found = audit_labels(summary), []
    for row in summary["attributes"]:
        shares = [f"{labels.get(o, shown(o, 24))} {percent(s)}" for o, s in row["co_occurrence"].items()]
        if shares:
            found.append(
                f"Of the judgments whose sides differ in {labels[row['name']]}, the same side has: {', '.join(shares)}."
            )
        if row["quality_adjusted"]:
            found.append(
                f"Quality-adjusted {labels[row['name']]}: {shown(row['quality_adjusted']['assumes'], 200)}."
            )
    if not any(row["quality_adjusted"] for row in summary["attributes"]):
        found.append(
            "There is no quality-adjusted estimate: the table has neither scores of the responses nor pairs in which "
            "they were swapped."
        )
    return found


def _not_known(summary: Mapping[str, Any]) -> list[str]:
    """One sentence for each attribute on its common level, and how to read the two graphs."""
    if not summary["data"]["has_annotators"]:
        return ["The table does not say who voted: how annotators differ, and who differs, is not known."]
    labels, anchors = audit_labels(summary), summary["checks"]["anchors"]
    found = [
        f"{labels[name]}: the common level is {shown(pool['absolute_why'], _LONGEST)}."
        for name, pool in summary["pool"].items()
    ]
    if anchors:
        found.append(f"Anchors: {anchors['n']:,} annotators are taken to lean nowhere.")
    found.append(
        "Leans of two annotators are compared only inside a group. The theorem\u2019s groups are joined by judging one "
        "comparison whose sides differ; those of informative votes only by comparisons that were not unanimous, which "
        "is what the estimates rest on."
    )
    return found


def _next_steps(summary: Mapping[str, Any]) -> list[str]:
    steps = summary["next"]
    found = [
        f"{shown(row['feature'].replace('_', ' '), 24)} is preferred or avoided and not declared: add --attribute "
        f"{shown(row['feature'], 24)}."
        for row in summary["scan"]
        if row["advice"] == "declare"
    ]
    if steps["n_requests"]:
        found.append(
            f"{shown(steps['requests_file'])} lists {steps['n_requests']:,} votes in {steps['n_rounds']:,} rounds that "
            f"would join groups or tighten estimates; {shown(steps['how'], _LONGEST)}."
        )
    small = any(len(shown_classes(pool)) < len(pool["classes"]) for pool in summary["pool"].values())
    if small:
        found.append(
            "Some classes are too small to be shown; more people in them would make them comparable."
        )
    return found


def _people_text(data: Mapping[str, Any]) -> str:
    if not data["has_annotators"]:
        return "not in the table"
    q = data["judgments_per_annotator"]
    return (
        f"{data['n_annotators']:,}; judgments of each: median {decimal(q['median'], 0)}, half of them "
        f"{decimal(q['lower_quartile'], 0)} to {decimal(q['upper_quartile'], 0)}, all {decimal(q['min'], 0)} to "
        f"{decimal(q['max'], 0)}"
    )


def _dropped_text(data: Mapping[str, Any]) -> str:
    reasons = ", ".join(f"{shown(row['reason'], 40)} {row['n']:,}" for row in data["dropped"])
    return f"{data['n_dropped']:,} rows ({reasons})" if reasons else f"{data['n_dropped']:,} rows"


def _agreement_text(agreement: Mapping[str, Any]) -> str:
    if agreement["percent"] is None:
        return "not known: no comparison has two votes"
    low, high = agreement["ci_low"], agreement["ci_high"]
    ends = (
        f" (95 % interval {percent(low)} to {percent(high)})" if low is not None and high is not None else ""
    )
    alpha = decimal(agreement["alpha"])
    return f"{percent(agreement['percent'])} of pairs of votes{ends}; Krippendorff\u2019s alpha {alpha}"


def _repeats_text(repeats: Mapping[str, Any]) -> str:
    if not repeats["n_repeated"]:
        return "never"
    return (
        f"{repeats['n_repeated']:,} times; contradicted {repeats['n_contradicted']:,} times, by "
        f"{repeats['n_annotators']:,} annotators"
    )


def _position_text(position: Mapping[str, Any] | None) -> str:
    if position is None:
        return "not known: the table does not say which response was shown first"
    ends = interval_text(position["ci_low"], position["ci_high"])
    return f"{percent(position['first_wins'])} of {position['n_known']:,} judgments (95 % interval {ends})"
