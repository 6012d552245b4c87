"""Write the two pages of an audit: one that may be shared, and one about individual annotators that must stay private.

`shareable` prepares all content of the page that may be shared. The function omits figures about fewer than five
people. It also omits figures if sums or differences of up to four figures reveal the votes of fewer than five people.
All other figures are rounded. If the tables of two pages differ by one person, the two pages together reveal how this
person voted. In a small pool, two such pages reveal the votes almost exactly. A notice on the page warns the reader.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from tabulate import tabulate

from badpo.data.privacy import (
    FEWEST_ANNOTATORS,
    MOST_OF_FOUR,
    is_about_few,
    rounded_count,
    withheld_classes,
)
from badpo.results import audit_json
from badpo.results.audit_findings import (
    attribute_findings,
    audit_labels,
    decide,
    impact_sentences,
    is_sure,
    model_sentence,
    pair_sentences,
    person_sentence,
    reliability_sentence,
)
from badpo.results.charts import (
    OWN,
    DotPanel,
    DotRow,
    Figure,
    Level,
    Limits,
    Mark,
    class_style,
    dot_figure,
    legend,
)
from badpo.results.formatting import (
    LONGEST,
    cleaned,
    count_text,
    decimal,
    interval_text,
    page,
    page_templates,
    percent,
    shown,
)

# Largest and smallest half-width of the axis of a chart, in log-odds.
_WIDEST_CHART, _SMALLEST_REACH = 4.0, 0.2
# Rounding steps of estimates, each with the largest share of the votes that one person may have cast.
# Removing a person with a share w of all votes changes the pool's win rate by w * (pool's rate - person's rate).
# Pages with and without the person, rounded to step s, reveal the person's win rate to within about s / (10 w).
# At step 0.01 (w up to 0.5 %) or 0.05 (w up to 2 %), the pool's win rate is an almost equally good guess.
# tests/results/test_audit_page.py checks these numbers.
STEPS = ((0.005, 0.01), (0.2, 0.05), (1.0, 0.25))
# In smaller pools, a reader of two pages, one with and one without a person, can infer the person's votes.
FEWEST_HIDDEN = 50
# If the share of unanimous comparisons is outside this range, a voter can infer the votes of others.
_SAFE_SHARES = 0.05, 0.95
# The page does not name the table's file, because a file name may contain an id.
_NEUTRAL_NAME = "this table"
# Keys of strings that stay unchanged: names, codes and remedies. Numbers in all other strings are rounded.
_NAMES = {
    *("source", "name", "class", "model", "feature", "attribute", "collinear_with"),
    *("parameter", "quality", "code", "where", "remedy"),
}
_PROBABILITIES = {"size_p", "annotators_p", "equal_biases_p", "class_test_p", "p_value", "q_value"}
# If a part is more than this share of a whole, its rounded count is described as "most".
_MOST = 0.6
_COUNTS = {"median", "informative_votes", "judgments"}
# Numbers after "than" or before "times" are settings, so they are not rounded.
_NUMBER = re.compile(
    r"(?<![\w.\-])(?<!than )(\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(\s?%)?(?!\w| times)"
)
_PART = re.compile(r"(?<![\w.,\-])(\d[\d,]*)( \w+)? of (\d[\d,]*)(?![\w.%]| %)")
# A share next to a count would reveal how small the remaining part is, even if the count is rounded.
_SHARE = re.compile(r" \(\d+(\.\d+)?%[^()]*\)")
_PSEUDONYM = re.compile(r"ann_[a-z2-7]{10,}")
# Codes of findings whose figures are about the whole pool; figures in other findings may be about only a few people.
_ABOUT_ALL = {
    *("W404", "W405", "W406", "W409", "W410", "W411", "W412", "W414", "W416", "W417", "W419"),
    *("W430", "W431", "N433", "N435", "W442"),
}
_OF_WHAT = re.compile(r'(attribute|class) "[^"]*"')


def audit_html(summary: audit_json.AuditSummary) -> str:
    """Return the page of an audit as HTML text, given the content of ``audit.json``.

    The page needs neither a network nor a script, and contains no texts from the table.
    """
    content = shareable(summary)
    return page(
        "audit",
        **content,
        name=shown(content["data"]["source"]),
        fewest=FEWEST_ANNOTATORS,
        most_of_four=MOST_OF_FOUR,
        fewest_hidden=FEWEST_HIDDEN,
        labels=audit_labels(content),
        verdicts=attribute_findings(content),
        leans=draw_bias_figure(content),
        figures=[*filter(None, (draw_class_figure(content), draw_model_figure(content)))],
        reliability=reliability_sentence(content),
        worth=impact_sentences(content),
    )


# -- content that may be shared ----------------------------------------------------------------------------------------


def shareable(summary: audit_json.AuditSummary) -> audit_json.AuditPage:
    """Return the summary of an audit without personal data.

    Counts are rounded to the nearest ten and are None below five. Estimates are rounded to steps of 0.01. The rounding
    step is 0.05 if one person cast more than 0.5 % of the votes, and 0.25 if one person cast more than 20 % of the
    votes. Figures about one to four people are None or omitted. If an omitted figure could be computed from another
    figure, this other figure is also None or omitted. The summary names models but no people. ``step`` is the rounding
    step of the estimates, and ``withheld`` lists the omitted attributes.
    """
    data, pools, few = summary["data"], summary["pool"], _find_few(summary)
    withheld = [row["name"] for row in summary["attributes"] if _is_withheld(row, data)]
    attributes = [row for row in summary["attributes"] if row["name"] not in withheld]
    most = data["judgments_per_annotator"]["most_of_people"] if data["has_annotators"] else 0
    step = _find_step(most / max(data["n_judgments"], 1))
    content: audit_json.AuditPage = {
        "schema": summary["schema"],
        "version": summary["version"],
        "settings": summary["settings"],
        "data": _hide_data_figures(data),
        "attributes": [_hide_attribute_figures(row, data) for row in attributes],
        "withheld": withheld,
        # the sentences about certainty and advice depend on the exact figures
        "decisions": {row["name"]: decide(row, pools.get(row["name"])) for row in attributes},
        "pool": {name: _hide_pool_figures(pool, name in few, summary) for name, pool in pools.items()},
        "models": [row for name in pools for row in _shift_models(summary, name, name in few)],
        "checks": _hide_check_figures(summary["checks"], data),
        "scan": [row for row in summary["scan"] if not _is_withheld(row, data)],
        "absent_features": [row["feature"] for row in summary["scan"] if not row["n_cross"]],
        "has_withheld_features": any(
            row["n_cross"] and _is_withheld(row, data) for row in summary["scan"]
        ),
        "flips": [row for row in summary["flips"] if row["attribute"] not in few],
        "next": summary["next"],
        "warnings": _hide_problems(summary),
        "annotators_file": summary["annotators_file"],
        "step": step,
    }
    rounded: audit_json.AuditPage = _round_content(content, "", step)
    # near a win rate of 0.5, a change of 1 in the log-odds changes the win rate by 0.25
    rounded["data"] = _round_content(content["data"], "", max(0.01, step / 5))
    for row in (*rounded["attributes"], *rounded["scan"]):
        # compute the win rate from the rounded log-odds, so that it reveals no further digits
        if row["log_odds"] is not None:
            row["win_rate"] = min(max(round(float(expit(row["log_odds"])), 2), 0.01), 0.99)
    for row in rounded["attributes"]:
        if row["log_odds"] is not None and row["win_rate"] is not None:
            row["odds"] = row["win_rate"] / (1 - row["win_rate"])
    rounded["settings"], rounded["step"] = cleaned(summary["settings"]), step
    rounded["schema"], rounded["version"] = cleaned(summary["schema"]), cleaned(summary["version"])
    return rounded


def _find_few(summary: audit_json.AuditSummary) -> set[str | None]:
    """Find the attributes whose pool figures are based on few people; None stands for all attributes together."""
    dominated = {row["name"] for row in summary["attributes"] if row["is_dominated"]}
    few: set[str | None] = set()
    for name, pool in summary["pool"].items():
        n_estimated = pool["n_estimated"] + pool["n_insufficient"] + pool["n_separated"]
        if is_about_few(n_estimated, pool["n_people_estimated"]) or name in dominated:
            few |= {name, None}
    return few


def _severity_rank(problem: audit_json.ProblemRow) -> int:
    """Return the rank of a problem's severity; errors come first."""
    return ("error", "warning", "notice").index(problem["severity"])


def _find_step(largest: float) -> float:
    """Return the rounding step of estimates, given the largest share of the votes that one person cast."""
    return next(step for most, step in STEPS if min(largest, 1.0) <= most)


def _is_withheld(
    row: audit_json.AttributeRow | audit_json.FeatureRow, data: audit_json.DataFacts
) -> bool:
    """Return whether the page must omit an attribute or a feature."""
    share = row["win_rate"]
    if data["has_annotators"] or share is None:
        return _is_by_few(row, data)
    # votes are counted instead of people, because each vote may be from a different person
    n_least = round((row["n_cross"] or 0) * min(share, 1 - share))
    return row["differs_by_few"] or n_least < FEWEST_ANNOTATORS


def _is_by_few(row: audit_json.VoteFigure, data: audit_json.DataFacts) -> bool:
    """Return whether a figure describes or reveals the votes of only a few people."""
    if row["differs_by_few"] or not data["has_annotators"]:
        return row["differs_by_few"]
    return _has_few_voters(row) or row["n_people_least"] < FEWEST_ANNOTATORS <= row["n_people"]


def _has_few_voters(row: audit_json.Voters | audit_json.DataFacts) -> bool:
    """Return whether only a few people cast the votes behind a figure, or most of these votes."""
    return is_about_few(row["n_annotators"], row["n_people"]) or row["is_dominated"]


def _hide_data_figures(data: audit_json.DataFacts) -> audit_json.DataFacts:
    """Return the facts about the table of votes, without figures that describe only a few people."""
    sizes, both = data["votes_per_comparison"].items(), data["both_orders"]
    content: audit_json.DataFacts = {
        **data,
        "source": _NEUTRAL_NAME,
        "fingerprint": None,
        "n_dropped": 0,  # a reader could subtract the shown counts from the total, and so compute the hidden counts
        "judgments_per_annotator": {"median": data["judgments_per_annotator"]["median"]},
        "votes_per_comparison": {size: n for size, n in sizes if n >= FEWEST_ANNOTATORS},
        "dropped": [
            row
            for row in data["dropped"]
            if row["n_annotators"] >= FEWEST_ANNOTATORS and not row["is_dominated"]
        ],
    }
    has_few, shares = data["has_annotators"] and _has_few_voters(data), [data["unanimous_share"]]
    shares.append(data["agreement"]["percent"])
    if has_few or any(map(_is_revealing, shares)):
        content["unanimous_share"] = None
        content["agreement"] = dict.fromkeys(data["agreement"])
    if data["has_annotators"] and both and _has_few_voters(both):
        content["both_orders"] = None
    return content


def _is_revealing(share: float | None) -> bool:
    """Return whether a share, for example of unanimous comparisons, is so close to 0 or 1 that it reveals votes."""
    low, high = _SAFE_SHARES
    return share is not None and not low <= share <= high


def _hide_attribute_figures(
    row: audit_json.AttributeRow, data: audit_json.DataFacts
) -> audit_json.AttributeRow:
    """Return an attribute's summary row without figures that reveal individual votes."""
    content: audit_json.AttributeRow = {**row, "verdict": None}
    if data["has_annotators"] and row["ties"] and _has_few_voters(row["ties"]):
        content["ties"] = None
    if row["quality_adjusted"] and _is_by_few(row["quality_adjusted"], data):
        content["quality_adjusted"] = None
    if row["interval"] != "naive only":
        # from the width of the naive interval, a reader could compute the number of votes
        content["naive_ci_low"] = content["naive_ci_high"] = None
    return content


def _hide_pool_figures(
    pool: audit_json.PoolRow, is_few: bool, summary: audit_json.AuditSummary
) -> audit_json.PoolRow:
    """Return the figures about the annotators for one attribute, without figures about only a few people."""
    # if one to four people dominate a class, the class counts as one person
    sizes = {
        row["class"]: 1 if row["is_dominated"] else row["n_people"]
        for row in pool["classes"]
        if row["n_people"]
    }
    withheld = withheld_classes(sizes)
    classes = [row for row in pool["classes"] if row["class"] not in withheld]
    sizes = {str(i): row["n_people"] for i, row in enumerate(pool["groups"])}
    withheld = withheld_classes(sizes, pool["n_people_estimated"] - sum(sizes.values()))
    groups = [row for i, row in enumerate(pool["groups"]) if str(i) not in withheld]
    content: audit_json.PoolRow = {**pool, "classes": classes, "groups": groups}
    if is_few or _is_revealing(pool["informative_share"]):
        content["informative_share"] = None
    hides_classes = len(classes) < 2 and bool(pool["classes"])
    if hides_classes:
        content["class_test_p"] = None
    if is_few or hides_classes and pool["recommendation"] == "class":
        content.update({"recommendation": None, "recommendation_reason": ""})
    if is_few:
        content.update(
            {"tau": None, "tau_ci": [None, None], "reliability": None, "equal_biases_p": None}
        )
        content.update({"classes": [], "sum": None, "refused": {}, "caveat": ""})
    anchors = summary["checks"]["anchors"]
    few_behind = is_few or is_about_few(pool["n_shared_bias"], pool["n_people_shared_bias"])
    few_behind |= anchors is not None and is_about_few(anchors["n"], anchors["n_people"])
    if pool["shared_bias"] is not None and few_behind:
        content.update({"shared_bias": None, "shared_bias_ci": None, "shared_bias_ci_beyond": None})
        content["absolute_why"] = "omitted here, because few people determine it"
    return content


def _shift_models(
    summary: audit_json.AuditSummary, attribute: str, is_few: bool
) -> list[audit_json.ModelRow]:
    """Return each model's bias; if only a few people voted, return it relative to the models' mean."""
    absolute = summary["pool"][attribute]["absolute"]
    models = [row for row in summary["models"] if row["attribute"] == attribute]
    finite = [row["shrunk"] for row in models if row["shrunk"] is not None]
    middle, origin = 0.0, "no bias" if absolute else "pool mean"
    if is_few and not absolute:
        middle, origin = sum(finite) / max(len(finite), 1), "mean of the models"

    def shift(bias: float | None) -> float | None:
        return None if bias is None else bias - middle

    return [
        {
            **row,
            "deviation": shift(row["deviation"]),
            "ci_low": shift(row["ci_low"]),
            "ci_high": shift(row["ci_high"]),
            "shrunk": shift(row["shrunk"]),
            "post_low": shift(row["post_low"]),
            "post_high": shift(row["post_high"]),
            "origin": origin,
        }
        for row in models
    ]


def _hide_check_figures(checks: audit_json.Checks, data: audit_json.DataFacts) -> audit_json.PageChecks:
    """Return the checks of reliability, anchors and groups, without figures about only a few people."""
    reliability, anchors = checks["reliability"], checks["anchors"]
    # if there are several groups of annotators, the page does not state their number
    groups: dict[str, audit_json.PageGroups] = {}
    for name, graph in checks["components"]["informative"].items():
        several = ("none", "one", "several")[min(graph["n"], 2)]
        sizes = [size for size in graph["sizes"] if rounded_count(size)]
        groups[name] = {"n": several, "sizes": sizes, "outside": graph["outside"]}
    if reliability and not reliability["is_unknown"]:
        # at least n_people people have an estimated reliability
        n_people = reliability["n_estimated"] - (data["n_annotators"] - data["n_people"])
        if data["is_dominated"] or is_about_few(
            reliability["n_estimated"], data["n_people"] and max(n_people, 1)
        ):
            reliability = {**reliability, "spread": None}
    return {
        "estimator": checks["estimator"],
        "groups": groups,
        "anchors": {"n": anchors["n"]} if anchors else None,
        "reliability": reliability,
    }


def _hide_problems(summary: audit_json.AuditSummary) -> list[audit_json.ProblemRow]:
    """Return the findings that a page may show, errors first; if all annotators are models, findings stay unchanged."""
    data, problems = summary["data"], summary["warnings"]
    if data["has_annotators"] and _has_few_voters(data):
        return []
    if data["n_people"] or not data["has_annotators"]:
        by_few = [row for row in summary["attributes"] if row["ties"] and _has_few_voters(row["ties"])]
        places = [f'attribute "{row["name"]}"' for row in by_few if data["has_annotators"]]
        problems = [row for row in problems if row["code"] != "W442" or row["where"] not in places]
        problems = [problem for row in problems if (problem := _hide_problem(row, data["source"]))]
    return sorted(problems, key=_severity_rank)


def _hide_problem(row: audit_json.ProblemRow, source: str) -> audit_json.ProblemRow | None:
    """Return a finding without rows, names and file name; None if its figures may be about only a few annotators."""
    what, where = _SHARE.sub("", row["what"]), row["where"]
    if where.startswith('class "') or _PSEUDONYM.fullmatch(where):
        return None
    if _PSEUDONYM.search(what + row["remedy"]):
        return None
    numbers = _NUMBER.findall(what)
    if numbers and row["code"] not in _ABOUT_ALL:
        return None
    for number, is_share in numbers:
        digits = number.replace(",", "")
        if digits.isdigit() and int(digits) < FEWEST_ANNOTATORS and not is_share:
            return None
    return {
        "code": row["code"],
        "severity": row["severity"],
        "where": _subject(row),
        "what": what.replace(source, _NEUTRAL_NAME),
        "remedy": row["remedy"].replace(source, _NEUTRAL_NAME),
    }


def _subject(problem: audit_json.ProblemRow) -> str:
    """Return the attribute or the class that a finding is about; empty if there is neither."""
    match = _OF_WHAT.match(problem["where"])
    return match[0] if match else ""


def _round_content(value: Any, key: str, step: float) -> Any:
    """Round a part of the audit's summary: its counts, its estimates, and the numbers in its sentences."""
    if isinstance(value, Mapping):
        entries = {name: _round_content(entry, name, step) for name, entry in value.items()}
        return {shown(name, LONGEST): entry for name, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [_round_content(entry, key, step) for entry in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value = shown(value, LONGEST)
        if key in _NAMES:
            return value
        return _NUMBER.sub(lambda match: _round_number(match, step), _PART.sub(_round_part, value))
    if isinstance(value, int) or key in _COUNTS:
        return rounded_count(round(value))
    if key in _PROBABILITIES or key == "unit":  # the unit is computed from texts, not from votes
        return float(f"{value:.1g}" if key != "unit" else f"{value:.2g}")
    step = (
        0.01 if key.endswith("share") else step
    )  # the number of votes that a share is based on is rounded separately
    return round(round(value / step) * step, 2)


def _round_part(match: re.Match[str]) -> str:
    """Replace "N of TOTAL" with words, such as "most of TOTAL", if N and TOTAL would be rounded to the same number."""
    n, whole = (int(number.replace(",", "")) for number in match.group(1, 3))
    if not n or rounded_count(n) != rounded_count(whole):
        return match[0]
    noun = match[2] or ""
    return f"{'most' if n > _MOST * whole else 'about half' + ' the' * bool(noun)}{noun} of {match[3]}"


def _round_number(match: re.Match[str], step: float) -> str:
    """Round a number in a sentence."""
    number, percent_sign = match[1].replace(",", ""), match[2]
    if percent_sign:
        return f"{float(number):.0f}{percent_sign}"
    if number.isdigit():
        return count_text(rounded_count(int(number)))
    value = float(number)
    return f"{value:.1g}" if value < 0.1 else f"{round(value / step) * step:.2f}"


# -- figures -----------------------------------------------------------------------------------------------------


def _center_panel(panel: DotPanel) -> DotPanel:
    """Return a panel whose axis is symmetric around zero and wide enough for the panel's marks."""
    reach = min(max(map(abs, (_SMALLEST_REACH, *panel.extent()))), _WIDEST_CHART)
    return replace(panel, limits=(-reach, reach))


def draw_bias_figure(summary: audit_json.AuditedBiases) -> Figure | None:
    """Chart how often the response with each attribute wins, with intervals; None if no attribute has votes."""
    rows, labels, decisions = [], audit_labels(summary), summary.get("decisions", {})
    for row in summary["attributes"]:
        name, share = labels[row["name"]], row["win_rate"]
        if not row["n_cross"] or share is None or row["interval"] == "too wide":
            continue
        ends = row["ci_low"], row["ci_high"]
        if row["interval"] == "naive only":
            ends = row["naive_ci_low"], row["naive_ci_high"]
        low, high = (100 * float(share if end is None else expit(end)) for end in ends)
        n = count_text(row["n_cross"])
        decision = decisions.get(row["name"])
        is_significant = decision["is_sure"] if decision else is_sure(row)
        mark = Mark(100 * share, name, 2 if is_significant else 0, low, high, n=n)
        figures = f"{decimal(low, 0)} to {percent(high / 100)}, n = {n}"
        rows.append(DotRow(f"{name}: {figures}", (mark,)))
    axis, level = "% of votes for the response with the attribute", Level(50.0, "no bias")
    label, ends = "share of votes for the response with each attribute", (0.0, 100.0)
    panel = DotPanel("", rows, label, axis, level, ends, lambda value: percent(value / 100))
    return dot_figure("Which response wins", [panel])


def draw_class_figure(summary: audit_json.AuditedBiases) -> Figure | None:
    """Chart the difference between each annotator class and the pool mean; None if there are no classes."""
    panels, labels = [], audit_labels(summary)
    for attribute, pool in summary["pool"].items():
        label, rows = labels[attribute], []
        for i, row in enumerate(pool["classes"]):
            if row["offset"] is not None:
                name = f"{shown(row['class'], 14)} (n = {count_text(row['n'])})"
                ends = row["ci_low"], row["ci_high"]
                mark = Mark(row["offset"], name, class_style(i), *ends)
                rows.append(DotRow(name, (mark,)))
        what = f"classes of annotators on {label}", "difference from the pool, log-odds"
        panel = DotPanel(label, rows, *what, Level(0.0, "pool mean"))
        panels.append(_center_panel(panel))
    return dot_figure("Classes", panels)


def draw_model_figure(summary: audit_json.AuditPage) -> Figure | None:
    """Chart the bias of each model among the annotators; None if there are no models."""
    panels = []
    for attribute, label in audit_labels(summary).items():
        rows, middle = [], ""
        for row in summary["models"]:
            if row["attribute"] == attribute and row["shrunk"] is not None:
                name, middle = row["model"], row["origin"]
                ends = row["post_low"], row["post_high"]
                label_text = f"{name} (n = {count_text(row['n_cross'])})"
                mark = Mark(row["shrunk"], label_text, class_style(0), *ends)
                rows.append(DotRow(shown(name, 24), (mark,), percent(row["raw_rate"])))
        what = f"biases of models on {label}", "shrunken bias, log-odds"
        panel = DotPanel(label, rows, *what, Level(0.0, middle), notes="chose it")
        panels.append(_center_panel(panel))
    return dot_figure("Models that vote", panels)


# -- the terminal ----------------------------------------------------------------------------------------------

# Maximum number of problems and maximum number of models that the terminal output lists.
_WORST, _MOST_MODELS = 5, 20
_COLUMNS = (
    "attribute",
    "differs",
    "wins",
    "log-odds",
    "95 % CI",
    "for others",
    "tau",
    "95 % CI",
    "estimated",
)


def audit_table(summary: audit_json.AuditSummary, pairs: Sequence[audit_json.ExamplePair] = ()) -> str:
    """Return the terminal output of an audit: pooled biases, differences between annotators, findings, and problems."""
    summary = cleaned(summary)
    labels, pools = audit_labels(summary), summary["pool"]
    rows = [
        [labels[row["name"]], *_format_row(row, pools[row["name"]])] for row in summary["attributes"]
    ]
    aligned = ("left", *["right"] * (len(_COLUMNS) - 1))
    table = tabulate([_COLUMNS, *rows], tablefmt="plain", colalign=aligned, disable_numparse=True)
    # estimation problems (codes 4xx) come before problems in the table
    problems = sorted(summary["warnings"], key=lambda row: (_severity_rank(row), row["code"][1] != "4"))
    template = page_templates().get_template("audit.txt.jinja")
    text = template.render(
        data=summary["data"],
        table="\n".join(line.rstrip() for line in table.splitlines()),
        findings=attribute_findings(summary),
        examples=pair_sentences(summary, pairs),
        reliability=reliability_sentence(summary),
        models=[model_sentence(row, pools[row["attribute"]]) for row in summary["models"]],
        most_models=_MOST_MODELS,
        impact=impact_sentences(summary),
        undeclared=[row["feature"] for row in summary["scan"] if row["advice"] == "declare"],
        scanned=[row["feature"] for row in summary["scan"]],
        problems=[{**row, "place": _subject(row)} for row in problems],
        worst=_WORST,
    )
    return text.rstrip("\n")


def _format_row(row: audit_json.AttributeRow, pool: audit_json.PoolRow) -> list[str]:
    """Format one attribute's row for the table printed in the terminal."""
    shares, ends = (row["cross_share"], row["win_rate"]), (row["ci_low"], row["ci_high"])
    (low, high), (tau_low, tau_high), n = row["population_ci"], pool["tau_ci"], pool["n_estimated"]
    n_all = n + pool["n_insufficient"] + pool["n_separated"] + pool["n_no_information"]
    return [
        *map(percent, shares),
        decimal(row["log_odds"]),
        interval_text(*ends),
        interval_text(low, high),
        decimal(pool["tau"]),
        interval_text(tau_low, tau_high),
        f"{n:,} of {n_all:,}",
    ]


# -- the page of individual annotators ---------------------------------------------------------------------------

MOST_ROWS, FEWEST_DRAWN = 60, 2
_KINDS = ("too few informative votes", "flagged", "estimated")
_FEW, _FLAGGED, _ESTIMATED = range(3)
_MARKS = [(name, style) for style, name in enumerate(_KINDS)]
_LEAST_AXIS, _LONGEST_AXIS = 1.0, 4.0
# If the audit does not compare annotators, the chart shows log-odds instead of deviations.
_SUMS = {"deviation": "log_odds", "ci_low": "log_odds_low", "ci_high": "log_odds_high"}


def people_html(
    summary: audit_json.AuditSummary, annotators: pd.DataFrame, names: Mapping[str, str] | None = None
) -> str:
    """Return the page about individual annotators as HTML text. The page contains personal data and must not be shared.

    ``names`` maps pseudonyms to annotator ids, which the page shows next to the pseudonyms.
    """
    summary = cleaned(summary)
    annotators = annotators.assign(
        attribute=annotators["attribute"].map(cleaned),
        annotator=[shown(name, 20) for name in annotators["model"].fillna(annotators["annotator"])],
    )
    figures = (draw(summary, annotators) for draw in (draw_annotator_figure, draw_reliability_figure))
    source, version = shown(summary["data"]["source"]), summary["version"]
    labels, ids = (
        audit_labels(summary),
        {shown(key, 20): shown(name) for key, name in (names or {}).items()},
    )
    sentences = [
        person_sentence(row, labels[row["attribute"]], ids.get(row["annotator"]))
        for _, row in annotators.sort_values(["annotator", "attribute"]).iterrows()
    ]
    content = {"figures": [*filter(None, figures)], "people": sentences}
    return page("people", name=source, version=version, **content)


def draw_annotator_figure(summary: audit_json.AuditSummary, annotators: pd.DataFrame) -> Figure | None:
    """Chart each annotator's own and shrunken estimates, sorted by number of votes; None if there are no estimates."""
    panels = []
    least = summary["settings"]["min_informative"]
    for name, label in audit_labels(summary).items():
        people = annotators[annotators["attribute"] == name]
        if people.empty:
            continue
        pool, has_estimate = summary["pool"][name], people["n_informative"] >= FEWEST_DRAWN
        is_sum = "flag" in pool["refused"]
        if is_sum:
            people = people.assign(**{own: people[total] for own, total in _SUMS.items()})
        if pool["tau"] is None:
            # without tau, no estimate is shrunk, so only annotators with enough votes have an estimate
            has_estimate &= people["status"] == "ok"
        order = _sort_by_votes(people[has_estimate], "n_informative")
        drawn = order.head(MOST_ROWS)
        rows = [_draw_person(row, least) for _, row in drawn.iterrows()]
        what = f"biases of {len(rows):,} annotators on {label} with intervals"
        origin = "group mean" if pool["is_divided"] else "pool mean"
        middle = Level(0.0, "no bias" if pool["absolute"] or is_sum else origin)
        unit = "log-odds, bias and merit together" if is_sum else "deviation, log-odds"
        how = unit, middle, _find_limits(drawn)
        panels.append(DotPanel(label, rows, what, *how, notes="votes"))
    rest = f"The chart shows at most {MOST_ROWS} annotators; {summary['annotators_file']} contains all of them."
    return dot_figure("Individual annotators", panels, rest, legend(_MARKS))


def draw_reliability_figure(summary: audit_json.AuditSummary, annotators: pd.DataFrame) -> Figure | None:
    """Chart each annotator's reliability, sorted by number of judgments; None if there are no estimates."""
    people = annotators.dropna(subset="reliability").drop_duplicates("annotator")
    order = _sort_by_votes(people, "n_judgments")
    rows = []
    for _, row in order.head(MOST_ROWS).iterrows():
        name, ends = row["annotator"], (row["reliability_low"], row["reliability_high"])
        style = _FLAGGED if row["flag_reliability"] else _ESTIMATED
        mark = Mark(row["reliability"], name, style, *ends)
        rows.append(DotRow(name, (mark,), f"{row['n_judgments']:,}"))
    rest = f"The chart shows at most {MOST_ROWS} annotators; {summary['annotators_file']} contains all of them."
    label, middle = f"reliability of {len(rows):,} annotators with intervals", Level(1.0, "mean")
    panel = DotPanel("", rows, label, "reliability", middle, (-1.0, 3.0), notes="judgments")
    return dot_figure("Reliability", [panel], rest, legend(_MARKS[1:]))


def _sort_by_votes(people: pd.DataFrame, votes: str) -> pd.DataFrame:
    """Sort annotators by the column ``votes``, in descending order."""
    return people.sort_values([votes, "annotator"], ascending=[False, True])


def _draw_person(row: pd.Series, least: int) -> DotRow:
    """Draw an annotator's own estimate and shrunken estimate in one row."""
    name, n_votes = row["annotator"], row["n_informative"]
    style = _FEW if n_votes < least else _ESTIMATED
    style = _FLAGGED if row["flag"] else style
    ends, post = (row["ci_low"], row["ci_high"]), (row["post_low"], row["post_high"])
    own = Mark(row["deviation"], f"{name}, own estimate", OWN, *ends)
    shrunken = Mark(row["shrunk"], f"{name}, shrunken", style, *post)
    return DotRow(name, (own, shrunken), f"{n_votes:,}")


def _find_limits(people: pd.DataFrame) -> Limits:
    """Return limits around zero that include most estimates but exclude the far ends of a few wide intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = np.quantile(values, 0.9) if values.size else 0.0
    reach = np.ceil(2 * np.clip(reach, _LEAST_AXIS, _LONGEST_AXIS)).item() / 2
    return -reach, reach
