"""Write the two pages of an audit: a page that may be shared, and a page about individual annotators that may not.

`shareable` prepares all content of the page that may be shared. This function leaves out figures about fewer than five
people, and figures that reveal the votes of fewer than five people in a combination of up to four figures. It rounds
all other figures. If the tables of two pages differ by one person, the two pages together reveal the votes of this
person, almost exactly in a small pool; the page warns about this.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from tabulate import tabulate

from badpo.data.files import Json
from badpo.data.privacy import (
    FEWEST_ANNOTATORS,
    MOST_OF_FOUR,
    is_about_few,
    rounded_count,
    withheld_classes,
)
from badpo.results.audit_findings import (
    action,
    attribute_findings,
    audit_labels,
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
    DASH,
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

# Largest and smallest half-width of a chart's axis, in log-odds.
_WIDEST_CHART, _SMALLEST_REACH = 4.0, 0.2
# Rounding steps of estimates, by the largest share of the votes that one person cast.
# If a person cast a share w of all votes, removing these votes changes the pool's win rate by w (pool's - person's).
# Pages with and without these votes, rounded to a step s of log-odds, reveal this win rate up to about s / (10 w).
# At step 0.01 (w up to 0.5 %) or step 0.05 (w up to 2 %), guessing the pool's win rate is almost as accurate.
# tests/results/test_audit_page.py checks these numbers.
STEPS = ((0.005, 0.01), (0.2, 0.05), (1.0, 0.25))
# In smaller pools, rounding does not protect a person from a reader of the pages with and without this person.
FEWEST_HIDDEN = 50
# If the share of comparisons with a property (all agree) is outside this range, a voter can infer others' votes.
_SAFE_SHARES = 0.05, 0.95
# The page does not name the table's file, because a file name may contain an id.
_NEUTRAL_NAME = "this table"
_EXACT = ("schema", "version", "settings", "annotators_file")
# Names, codes and remedies on the page stay unchanged; numbers in other sentences are rounded.
_NAMES = {
    *("source", "name", "class", "model", "feature", "attribute", "collinear_with"),
    *("parameter", "quality", "code", "where", "remedy"),
}
_PROBABILITIES = {"size_p", "annotators_p", "equal_biases_p", "class_test_p", "p_value", "q_value"}
# A rounded count above this share of a whole is described as "most".
_MOST = 0.6
_COUNTS = {"median", "informative_votes", "judgments"}
_ESTIMATED_STATUSES = ("estimated", "insufficient", "separated")
_BIAS_COLUMNS = ("deviation", "ci_low", "ci_high", "shrunk", "post_low", "post_high")
# Numbers after "than" and before "times" are settings, so they are not rounded.
_NUMBER = re.compile(
    r"(?<![\w.\-])(?<!than )(\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(\s?%)?(?!\w| times)"
)
_PART = re.compile(r"(?<![\w.,\-])(\d[\d,]*)( \w+)? of (\d[\d,]*)(?![\w.%]| %)")
# A share next to a count, even a rounded count, would reveal how small the remaining part is.
_SHARE = re.compile(r" \(\d+(\.\d+)?%[^()]*\)")
_PSEUDONYM = re.compile(r"ann_[a-z2-7]{10,}")
_OF_WHAT = re.compile(r'(attribute|class) "[^"]*"')


def audit_html(summary: Json) -> str:
    """Return an audit's page as HTML text, given the content of ``audit.json``.

    The page needs no network and no script, and contains no texts from the table.
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


def shareable(summary: Json) -> Json:
    """Return the summary of an audit without personal data.

    Counts are rounded to the nearest ten and are None below five. Estimates are rounded to steps of 0.01. The rounding
    step is 0.05 if one person cast more than 0.5 % of the votes, and 0.25 if one person cast more than 20 % of the
    votes. Figures about one to four people are None or left out, as are figures from which the missing ones could be
    computed. The summary names models and no people. ``step`` is the rounding step of the estimates, and ``withheld``
    lists the attributes that are left out.
    """
    data, pools = summary["data"], summary["pool"]
    dominated = {row["name"] for row in summary["attributes"] if row["is_dominated"]}
    few = (
        set()
    )  # attributes whose pool figures are about few people; None stands for all attributes together
    for name, pool in pools.items():
        n_estimated = sum(pool[f"n_{kind}"] for kind in _ESTIMATED_STATUSES)
        if is_about_few(n_estimated, pool["n_people_estimated"]) or name in dominated:
            few |= {name, None}
    largest = 0.0
    if data["has_annotators"]:
        most = data["judgments_per_annotator"]["most_of_people"]
        largest = most / data["n_judgments"]
    attributes, withheld = [], []
    for row in summary["attributes"]:
        if _is_withheld(row, data):
            withheld.append(row["name"])
        else:
            attributes.append(_hide_attribute_figures(row, summary))
    warnings = [] if _is_withheld(data, data) else summary["warnings"]
    if data["n_people"] or not data["has_annotators"]:
        warnings = [problem for row in warnings if (problem := _hide_problem(row, data["source"]))]
    content: Json = {
        "attributes": attributes,
        "withheld": withheld,
        "pool": {name: _hide_pool_figures(pool, name in few, summary) for name, pool in pools.items()},
        "models": [row for name in pools for row in _shift_models(summary, name, name in few)],
        "checks": _hide_check_figures(summary["checks"], data),
        "scan": [row for row in summary["scan"] if not _is_withheld(row, data)],
        "flips": [row for row in summary["flips"] if row["attribute"] not in few],
        "next": summary["next"],
        "warnings": sorted(warnings, key=_severity_rank),
    }
    step = _find_step(largest)
    exact = {name: summary[name] for name in _EXACT}
    result: Json = cleaned(exact) | _round_content(content, "", step)
    result["step"] = step
    # if about half of the votes are won, a change of one log-odds changes the share of won votes by a quarter
    result["data"] = _round_content(_hide_data_figures(data), "", max(0.01, step / 5))
    for row in (*result["attributes"], *result["scan"]):
        if (
            row["log_odds"] is not None
        ):  # computed from the rounded log-odds, so that it adds no further digits
            share = min(max(round(float(expit(row["log_odds"])), 2), 0.01), 0.99)
            row |= {"win_rate": share, "odds": share / (1 - share)}
    return result


def _severity_rank(problem: Json) -> int:
    """Rank of a severity; errors are first."""
    return ("error", "warning", "notice").index(problem["severity"])


def _find_step(largest: float) -> float:
    """Rounding step, which depends on the largest share of the votes that one person cast."""
    return next(step for most, step in STEPS if min(largest, 1.0) <= most)


def _is_withheld(row: Json | None, data: Json) -> bool:
    """Return whether the page must omit a figure because it describes or reveals the votes of only a few people."""
    if row is None:
        return False
    if row.get("differs_by_few"):
        return True
    if not data["has_annotators"]:
        # the bound is the number of votes, because each vote may be from a different person
        share = row.get("win_rate")
        return share is not None and round(row["n_cross"] * min(share, 1 - share)) < FEWEST_ANNOTATORS
    n_least = row.get("n_people_least", FEWEST_ANNOTATORS)
    return (
        is_about_few(row["n_annotators"], row["n_people"])
        or row["is_dominated"]
        or n_least < FEWEST_ANNOTATORS <= row["n_people"]
    )


def _hide_data_figures(data: Json) -> Json:
    """Return the facts about the table of votes, without figures that describe only a few people."""
    sizes = data["votes_per_comparison"].items()
    content = data | {
        "source": _NEUTRAL_NAME,
        "fingerprint": None,
        "judgments_per_annotator": {"median": data["judgments_per_annotator"]["median"]},
        "votes_per_comparison": {size: n for size, n in sizes if n >= FEWEST_ANNOTATORS},
        "dropped": [row for row in data["dropped"] if row["n_annotators"] >= FEWEST_ANNOTATORS],
    }
    share = data["unanimous_share"]
    if _is_withheld(data, data) or _is_revealing(share) or _is_revealing(data["agreement"]["percent"]):
        content |= {"unanimous_share": None, "agreement": dict.fromkeys(data["agreement"])}
    if _is_withheld(data["both_orders"], data):
        content["both_orders"] = None
    return content


def _is_revealing(share: float | None) -> bool:
    """Return whether a share, such as that of unanimous comparisons, is so close to 0 or 1 that it reveals votes."""
    low, high = _SAFE_SHARES
    return share is not None and not low <= share <= high


def _hide_attribute_figures(row: Json, summary: Json) -> Json:
    """Return an attribute's summary row without figures that reveal individual votes."""
    joint = row["joint"]
    hidden = ["verdict"]
    if _is_withheld(row["quality_adjusted"], summary["data"]):
        hidden.append("quality_adjusted")
    if row["interval"] != "naive only":
        # the width of the naive interval would reveal the number of votes
        hidden += ["naive_ci_low", "naive_ci_high"]
    # the sentences about certainty and advice are computed from the exact figures
    return (
        row
        | dict.fromkeys(hidden)
        | {
            "is_sure": is_sure(row),
            "joint": joint | {"is_sure": is_sure(joint)},
            "action": action(row, summary["pool"].get(row["name"], {})),
        }
    )


def _hide_pool_figures(pool: Json, is_few: bool, summary: Json) -> Json:
    """Return an attribute's summary of the annotators, without figures about only a few people."""
    classes, groups = pool["classes"], pool["groups"]
    # a class dominated by one to four people counts as one person
    sizes = {
        row["class"]: 1 if row["is_dominated"] else row["n_people"] for row in classes if row["n_people"]
    }
    withheld = withheld_classes(sizes)
    classes = [row for row in classes if row["class"] not in withheld]
    sizes = {str(i): row["n_people"] for i, row in enumerate(groups)}
    withheld = withheld_classes(sizes, pool["n_people_estimated"] - sum(sizes.values()))
    groups = [row for i, row in enumerate(groups) if str(i) not in withheld]
    content = pool | {"classes": classes, "groups": groups}
    if is_few or _is_revealing(pool["informative_share"]):
        content["informative_share"] = None
    no_advice = {"recommendation": None, "recommendation_reason": ""}
    if len(classes) < 2 and pool["classes"]:
        content["class_test_p"] = None
        if pool["recommendation"] == "class":
            content |= no_advice
    if is_few:
        content |= dict.fromkeys(("tau", "reliability", "equal_biases_p")) | no_advice
        content |= {"tau_ci": [None, None], "classes": [], "sum": None, "refused": {}, "caveat": ""}
    anchors = summary["checks"]["anchors"]
    few_behind = is_few or is_about_few(pool["n_shared_bias"], pool["n_people_shared_bias"])
    few_behind |= bool(anchors) and is_about_few(anchors["n"], anchors["n_people"])
    if pool["shared_bias"] is not None and few_behind:
        content |= dict.fromkeys(("shared_bias", "shared_bias_ci", "shared_bias_ci_beyond"))
        content["absolute_why"] = "omitted here, because few people determine it"
    return content


def _shift_models(summary: Json, attribute: str, is_few: bool) -> list[Json]:
    """Return each model's bias; if only a few people voted, return it relative to the models' mean."""
    absolute = summary["pool"][attribute]["absolute"]
    models = [row for row in summary["models"] if row["attribute"] == attribute]
    finite = [row["shrunk"] for row in models if row["shrunk"] is not None]
    middle, origin = 0.0, "no bias" if absolute else "pool mean"
    if is_few and not absolute:
        middle, origin = sum(finite) / max(len(finite), 1), "mean of the models"
    rows = []
    for row in models:
        biases = {key: row[key] - middle for key in _BIAS_COLUMNS if row[key] is not None}
        rows.append(row | biases | {"origin": origin})
    return rows


def _hide_check_figures(checks: Json, data: Json) -> Json:
    """Return the checks of reliability, anchors and groups, without figures about only a few people."""
    reliability, anchors = checks["reliability"], checks["anchors"]
    # if there are several groups of annotators, the page does not state their number
    groups = {}
    for name, graph in checks["components"]["informative"].items():
        several = ("none", "one", "several")[min(graph["n"], 2)]
        sizes = [size for size in graph["sizes"] if rounded_count(size)]
        groups[name] = {"n": several, "sizes": sizes, "outside": graph["outside"]}
    if reliability and not reliability["is_unknown"]:
        # minimum number of people among annotators with an estimated reliability
        n_people = reliability["n_estimated"] - (data["n_annotators"] - data["n_people"])
        if data["is_dominated"] or is_about_few(
            reliability["n_estimated"], data["n_people"] and max(n_people, 1)
        ):
            reliability = {**reliability, "spread": None}
    return {
        "estimator": {name: checks["estimator"][name] for name in ("quality", "why")},
        "groups": groups,
        "anchors": anchors and {"n": anchors["n"]},
        "reliability": reliability,
    }


def _hide_problem(row: Json, source: str) -> Json | None:
    """Return a finding without rows, names and file; None if it concerns one annotator or has a count below five."""
    what, where = _SHARE.sub("", row["what"]), row["where"]
    if where.startswith('class "') or _PSEUDONYM.fullmatch(where):
        return None
    if _PSEUDONYM.search(what + row["remedy"]):
        return None
    for number, is_share in _NUMBER.findall(what):
        digits = number.replace(",", "")
        if digits.isdigit() and int(digits) < FEWEST_ANNOTATORS and not is_share:
            return None
    content = {"code": row["code"], "severity": row["severity"], "where": _subject(row)}
    remedy = row["remedy"].replace(source, _NEUTRAL_NAME)
    return content | {"what": what.replace(source, _NEUTRAL_NAME), "remedy": remedy}


def _subject(problem: Json) -> str:
    """Return a finding's attribute or class; empty if the finding has neither."""
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
    )  # the number of votes behind a share is rounded separately
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
    """Return a chart's panel with a symmetric axis around zero that is wide enough for the panel's marks."""
    reach = min(max(map(abs, (_SMALLEST_REACH, *panel.extent()))), _WIDEST_CHART)
    return replace(panel, limits=(-reach, reach))


def draw_bias_figure(summary: Json) -> Figure | None:
    """Chart how often the response with each attribute wins, with intervals; None if no attribute has votes."""
    rows, labels = [], audit_labels(summary)
    for row in summary["attributes"]:
        name, share = labels[row["name"]], row["win_rate"]
        if not row["n_cross"] or share is None or row["interval"] == "too wide":
            continue
        kind = "naive_ci_" if row["interval"] == "naive only" else "ci_"
        ends = row[f"{kind}low"], row[f"{kind}high"]
        low, high = (100 * float(share if end is None else expit(end)) for end in ends)
        n = count_text(row["n_cross"])
        mark = Mark(100 * share, name, 2 if is_sure(row) else 0, low, high, n=n)
        figures = f"{decimal(low, 0)} to {percent(high / 100)}, n = {n}"
        rows.append(DotRow(f"{name}: {figures}", (mark,)))
    axis, level = "% of votes for the response with the attribute", Level(50.0, "no bias")
    label, ends = "share of votes for the response with each attribute", (0.0, 100.0)
    panel = DotPanel("", rows, label, axis, level, ends, lambda value: percent(value / 100))
    return dot_figure("Which response wins", [panel])


def draw_class_figure(summary: Json) -> Figure | None:
    """Chart each annotator class's difference from the pool mean; None if there are no classes."""
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


def draw_model_figure(summary: Json) -> Figure | None:
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

# Maximum numbers of problems and of models that the terminal prints.
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


def audit_table(summary: Json, pairs: Sequence[Json] = ()) -> str:
    """Return the terminal output of an audit: pooled biases, their variation over annotators, findings, problems."""
    summary = cleaned(summary)
    labels, pools = audit_labels(summary), summary["pool"]
    rows = [
        [labels[row["name"]], *_format_row(row, pools.get(row["name"]))] for row in summary["attributes"]
    ]
    aligned = ("left", *["right"] * (len(_COLUMNS) - 1))
    table = tabulate([_COLUMNS, *rows], tablefmt="plain", colalign=aligned, disable_numparse=True)
    # problems with estimates (codes 4xx) come before problems with the table
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
        problems=[row | {"place": _subject(row)} for row in problems],
        worst=_WORST,
    )
    return text.rstrip("\n")


def _format_row(row: Json, pool: Json | None) -> list[str]:
    """Format one attribute's row for the table printed in the terminal."""
    shares, ends = (row["cross_share"], row["win_rate"]), (row["ci_low"], row["ci_high"])
    columns = [*map(percent, shares), decimal(row["log_odds"]), interval_text(*ends)]
    columns.append(interval_text(*row["population_ci"]))
    if pool is None:
        return [*columns, *[DASH] * 3]
    counts = [pool[f"n_{kind}"] for kind in (*_ESTIMATED_STATUSES, "no_information")]
    people = f"{counts[0]:,} of {sum(counts):,}"
    return [*columns, decimal(pool["tau"]), interval_text(*pool["tau_ci"]), people]


# -- the page of individual annotators ---------------------------------------------------------------------------

MOST_ROWS, FEWEST_DRAWN = 60, 2
_KINDS = ("too few informative votes", "flagged", "estimated")
_FEW, _FLAGGED, _ESTIMATED = range(3)
_MARKS = [(name, style) for style, name in enumerate(_KINDS)]
_LEAST_AXIS, _LONGEST_AXIS = 1.0, 4.0
# Columns that the chart shows if the audit does not compare annotators.
_SUMS = {"deviation": "log_odds", "ci_low": "log_odds_low", "ci_high": "log_odds_high"}


def people_html(summary: Json, annotators: pd.DataFrame, names: Mapping[str, str] | None = None) -> str:
    """Return the page about individual annotators as HTML text. This page is personal data and must not be shared.

    ``names`` maps pseudonyms to annotator ids, which the page shows next to the pseudonyms.
    """
    summary, names = cleaned(summary), names or {}
    annotators = annotators.assign(
        attribute=annotators["attribute"].map(cleaned),
        annotator=[shown(name, 20) for name in annotators["model"].fillna(annotators["annotator"])],
    )
    figures = (draw(summary, annotators) for draw in (draw_annotator_figure, draw_reliability_figure))
    source, version = shown(summary["data"]["source"]), summary["version"]
    labels, ids = audit_labels(summary), {shown(key, 20): shown(name) for key, name in names.items()}
    sentences = [
        person_sentence(row, labels[row["attribute"]], ids.get(row["annotator"]))
        for row in annotators.sort_values(["annotator", "attribute"]).to_dict("records")
    ]
    content = {"figures": [*filter(None, figures)], "people": sentences}
    return page("people", name=source, version=version, **content)


def draw_annotator_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Chart each annotator's individual and shrunken estimates, sorted by votes; None if there are no estimates."""
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
            # if no estimate is shrunk, only annotators with enough votes have an estimate
            has_estimate &= people["status"] == "ok"
        order = _sort_by_votes(people[has_estimate], "n_informative")
        drawn = order.head(MOST_ROWS)
        rows = [_draw_person(row, least) for row in drawn.to_dict("records")]
        what = f"biases of {len(rows):,} annotators on {label} with intervals"
        origin = "group mean" if pool["is_divided"] else "pool mean"
        middle = Level(0.0, "no bias" if pool["absolute"] or is_sum else origin)
        unit = "log-odds, bias and merit together" if is_sum else "deviation, log-odds"
        how = unit, middle, _find_limits(drawn)
        panels.append(DotPanel(label, rows, what, *how, notes="votes"))
    rest = f"The chart shows at most {MOST_ROWS} annotators; {summary['annotators_file']} contains all of them."
    return dot_figure("Individual annotators", panels, rest, legend(_MARKS))


def draw_reliability_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Chart each annotator's reliability, sorted by number of judgments; None if there are no estimates."""
    people = annotators.dropna(subset="reliability").drop_duplicates("annotator")
    order = _sort_by_votes(people, "n_judgments")
    rows = []
    for row in order.head(MOST_ROWS).to_dict("records"):
        name, ends = row["annotator"], (row["reliability_low"], row["reliability_high"])
        style = _FLAGGED if row["flag_reliability"] else _ESTIMATED
        mark = Mark(row["reliability"], name, style, *ends)
        rows.append(DotRow(name, (mark,), f"{row['n_judgments']:,}"))
    rest = f"The chart shows at most {MOST_ROWS} annotators; {summary['annotators_file']} contains all of them."
    label, middle = f"reliability of {len(rows):,} annotators with intervals", Level(1.0, "mean")
    panel = DotPanel("", rows, label, "reliability", middle, (-1.0, 3.0), notes="judgments")
    return dot_figure("Reliability", [panel], rest, legend(_MARKS[1:]))


def _sort_by_votes(people: pd.DataFrame, votes: str) -> pd.DataFrame:
    """Sort annotators by a number of votes."""
    return people.sort_values([votes, "annotator"], ascending=[False, True])


def _draw_person(row: Json, least: int) -> DotRow:
    """Draw one annotator's individual estimate and shrunken estimate."""
    name, n_votes = row["annotator"], row["n_informative"]
    style = _FEW if n_votes < least else _ESTIMATED
    style = _FLAGGED if row["flag"] else style
    ends, post = (row["ci_low"], row["ci_high"]), (row["post_low"], row["post_high"])
    own = Mark(row["deviation"], f"{name}, own estimate", OWN, *ends)
    shrunken = Mark(row["shrunk"], f"{name}, shrunken", style, *post)
    return DotRow(name, (own, shrunken), f"{n_votes:,}")


def _find_limits(people: pd.DataFrame) -> Limits:
    """Return a chart axis around zero that contains most estimates but not the far ends of a few wide intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = np.quantile(values, 0.9) if values.size else 0.0
    reach = np.ceil(2 * np.clip(reach, _LEAST_AXIS, _LONGEST_AXIS)).item() / 2
    return -reach, reach
