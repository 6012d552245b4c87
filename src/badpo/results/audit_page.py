"""The two pages of an audit: a page that may be passed on, and a page of individual annotators that may not.

`shareable` prepares everything on the first page. It leaves out figures about fewer than five people, and figures that
reveal the votes of all but so few people, and rounds the rest. One page reveals nobody's votes. Two pages whose tables
differ by one person reveal the votes of that person, almost exactly in a small pool; the page warns of this.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from tabulate import tabulate

from badpo.data.files import Json
from badpo.data.privacy import FEWEST_ANNOTATORS, is_about_few, rounded_count, withheld_classes
from badpo.data.problems import counted
from badpo.results.audit_verdicts import (
    action,
    audit_labels,
    audit_verdicts,
    care_sentence,
    is_sure,
    pair_sentences,
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
from badpo.results.words import (
    DASH,
    LONGEST,
    cleaned,
    count_text,
    decimal,
    interval_text,
    lean_text,
    page,
    part_text,
    percent,
    shown,
    with_interval,
)

_WIDEST_CHART, _SMALLEST_REACH = 4.0, 0.2
# Rounding steps of estimates, by the largest share w of the votes that one person cast. An annotator moves the share
# that wins by w (share - own share). Two pages rounded to a step s of log-odds reveal the own share with an error of s
# / (10 w). If w is at most 0.5 % or 2 %, this error is hardly smaller than that of guessing the pool's share
# (tests/results/test_audit_page.py).
STEPS = ((0.005, 0.01), (0.2, 0.05), (1.0, 0.25))
# Least number of people in a pool in which rounding protects each of them from a reader of two pages.
FEWEST_HIDDEN = 50
# A share of comparisons outside this range reveals to each voter how the others voted.
_TELLING_SHARES = 0.05, 0.95
_EXACT = ("schema", "version", "settings", "annotators_file")
# Names, codes and remedies stay unchanged; numbers in other sentences are rounded.
_NAMES = {
    *("source", "name", "class", "model", "feature", "attribute", "collinear_with"),
    *("parameter", "quality", "code", "where", "remedy"),
}
_PROBABILITIES = {"size_p", "annotators_p", "equal_leans_p", "class_test_p", "p_value", "q_value"}
_MOST = 0.6
_COUNTS = {"median", "informative_votes", "judgments"}
_TOLD = ("estimated", "insufficient", "separated")
_LEANS = ("deviation", "ci_low", "ci_high", "shrunk", "post_low", "post_high")
# What something is more or fewer than, and a multiple, are settings.
_NUMBER = re.compile(
    r"(?<![\w.\-])(?<!than )(\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(\s?%)?(?!\w| times)"
)
_PART = re.compile(r"(?<![\w.,\-])(\d[\d,]*)( \w+)? of (\d[\d,]*)(?![\w.%]| %)")
# Beside a count, also a rounded one, a share tells how few the others are.
_SHARE = re.compile(r" \(\d+(\.\d+)?%[^()]*\)")
_PSEUDONYM = re.compile(r"ann_[a-z2-7]{10,}")
_OF_WHAT = re.compile(r'(attribute|class) "[^"]*"')


def audit_html(summary: Json, pairs: Sequence[Json] = ()) -> str:
    """The page about an audit, from ``audit.json``, as HTML text; it needs no network and no script.

    ``pairs`` are example pairs of answers. With pairs the page contains texts of the table, and says so.
    """
    found = shareable(summary)
    told = [
        pair
        for pair in pairs
        if pair["attribute"] not in found["withheld"]
        and not is_about_few(pair["n_annotators"], pair["n_people"])
    ]
    return page(
        "audit",
        **found,
        name=shown(found["data"]["source"]),
        fewest=FEWEST_ANNOTATORS,
        fewest_hidden=FEWEST_HIDDEN,
        labels=audit_labels(found),
        verdicts=audit_verdicts(found),
        leans=lean_figure(found),
        examples=pair_sentences(found, told),
        figures=[*filter(None, (class_figure(found), model_figure(found)))],
        care=care_sentence(found),
        worth=worth_sentences(found),
        drift_chart=drift_figure(found),
    )


# -- what may be passed on ---------------------------------------------------------------------------------------


def shareable(summary: Json) -> Json:
    """The summary of an audit as others may see it.

    Counts go to the nearest ten and are None below five; estimates go to two digits, in steps of 0.05 or 0.25 where
    one person cast more than 2 % or 20 % of the votes. What rests on one to four people is None or left out, with it
    whatever would let it be computed, and nobody is named. Models are. ``step`` says to what the estimates are
    rounded, ``withheld`` which attributes are left out.
    """
    data, pools = summary["data"], summary["pool"]
    few = set()  # attributes, and None for all of them, which tells of each
    for name, pool in pools.items():
        n_told = sum(pool[f"n_{kind}"] for kind in _TOLD)
        if is_about_few(n_told, pool["n_people_told"]):
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
            attributes.append(_telling_attribute(row, summary))
    warnings = [] if _is_withheld(data, data) else summary["warnings"]
    if data["n_people"] or not data["has_annotators"]:
        warnings = filter(None, map(_telling_problem, warnings))
    telling = {
        "attributes": attributes,
        "withheld": withheld,
        "pool": {name: _telling_pool(pool, name in few, summary) for name, pool in pools.items()},
        "models": [row for name in pools for row in _telling_models(summary, name, name in few)],
        "checks": _telling_checks(summary["checks"], data),
        "scan": [row for row in summary["scan"] if not _is_withheld(row, data)],
        "flips": [row for row in summary["flips"] if row["attribute"] not in few],
        "next": summary["next"],
        "warnings": sorted(warnings, key=_severity),
    }
    step = _step(largest)
    exact = {name: summary[name] for name in _EXACT}
    found = cleaned(exact) | _rounded(telling, "", step)
    found["step"] = step
    # in one window somebody's share of the votes may be as much larger as there are windows
    drift = summary["drift"] and _telling_drift(summary["drift"], data)
    largest *= max((len(row["windows"]) for row in drift or []), default=0)
    found["drift"] = _rounded(drift, "", _step(largest))
    # near one half a log-odd moves the share that wins by a quarter
    found["data"] = _rounded(_telling_data(data), "", max(0.01, step / 5))
    for row in (*found["attributes"], *found["scan"]):
        if row["log_odds"] is not None:  # said once, and not a second time to other digits
            share = min(max(round(float(expit(row["log_odds"])), 2), 0.01), 0.99)
            row |= {"carrier_wins": share, "odds": share / (1 - share)}
    return found


def _severity(problem: Json) -> int:
    return ("error", "warning", "notice").index(problem["severity"])


def _step(largest: float) -> float:
    return next(step for most, step in STEPS if min(largest, 1.0) <= most)


def _is_withheld(row: Json | None, data: Json) -> bool:
    """Whether an estimate is about fewer than five people, or reveals how nearly everyone voted."""
    if row is None:
        return False
    if not data["has_annotators"]:
        # each vote may be from a different person
        share = row.get("carrier_wins")
        return share is not None and round(row["n_cross"] * min(share, 1 - share)) < FEWEST_ANNOTATORS
    n_least = row.get("n_people_least", FEWEST_ANNOTATORS)
    return (
        is_about_few(row["n_annotators"], row["n_people"])
        or n_least < FEWEST_ANNOTATORS <= row["n_people"]
    )


def _telling_data(data: Json) -> Json:
    sizes = data["votes_per_comparison"].items()
    told = data | {
        "fingerprint": None,
        "judgments_per_annotator": {"median": data["judgments_per_annotator"]["median"]},
        "votes_per_comparison": {size: n for size, n in sizes if n >= FEWEST_ANNOTATORS},
        "dropped": [row for row in data["dropped"] if row["n_annotators"] >= FEWEST_ANNOTATORS],
    }
    share = data["unanimous_share"]
    if _is_withheld(data, data) or _is_telling(share) or _is_telling(data["agreement"]["percent"]):
        told |= {"unanimous_share": None, "agreement": dict.fromkeys(data["agreement"])}
    for name in ("both_orders", "position"):
        if _is_withheld(data[name], data):
            told[name] = None
    return told


def _is_telling(share: float | None) -> bool:
    """Whether nearly all comparisons are of one kind, so that one vote on a comparison reveals the other votes."""
    low, high = _TELLING_SHARES
    return share is not None and not low <= share <= high


def _telling_attribute(row: Json, summary: Json) -> Json:
    joint = row["joint"]
    hidden = ["verdict"]
    if _is_withheld(row["quality_adjusted"], summary["data"]):
        hidden.append("quality_adjusted")
    if row["interval"] != "naive only":
        # its width says how many votes there are
        hidden += ["naive_ci_low", "naive_ci_high"]
    # what is sure, and what to do, is said as the exact figures have it
    return (
        row
        | dict.fromkeys(hidden)
        | {
            "sweep": [each for each in row["sweep"] if not _is_withheld(each, summary["data"])],
            "is_sure": is_sure(row),
            "joint": joint | {"is_sure": is_sure(joint)},
            "action": action(row, summary["pool"].get(row["name"], {})),
        }
    )


def _telling_pool(pool: Json, is_few: bool, summary: Json) -> Json:
    classes, groups = pool["classes"], pool["groups"]
    sizes = {row["class"]: row["n_people"] for row in classes if row["n_people"]}
    withheld = withheld_classes(sizes)
    classes = [row for row in classes if row["class"] not in withheld]
    sizes = {str(i): row["n_people"] for i, row in enumerate(groups)}
    withheld = withheld_classes(sizes, pool["n_people_told"] - sum(sizes.values()))
    groups = [row for i, row in enumerate(groups) if str(i) not in withheld]
    told = pool | {"classes": classes, "groups": groups}
    if _is_telling(pool["informative_share"]):
        told["informative_share"] = None
    no_advice = {"recommendation": None, "recommendation_reason": ""}
    if len(classes) < 2 and pool["classes"]:
        told["class_test_p"] = None
        if pool["recommendation"] == "class":
            told |= no_advice
    if is_few:
        told |= dict.fromkeys(("tau", "reliability", "equal_leans_p")) | no_advice
        told |= {"tau_ci": [None, None], "classes": [], "sum": None, "refused": {}, "caveat": ""}
    anchors = summary["checks"]["anchors"]
    few_behind = is_about_few(pool["n_level"], pool["n_people_level"])
    few_behind |= bool(anchors) and is_about_few(anchors["n"], anchors["n_people"])
    if pool["level"] is not None and few_behind:
        told |= dict.fromkeys(("level", "level_ci", "level_ci_beyond"))
        told["absolute_why"] = "not on this page: it rests on few people"
    return told


def _telling_models(summary: Json, attribute: str, is_few: bool) -> list[Json]:
    """Each model's lean; where few people voted beside, from the models' mean, which tells nothing of those."""
    absolute = summary["pool"][attribute]["absolute"]
    models = [row for row in summary["models"] if row["attribute"] == attribute]
    finite = [row["shrunk"] for row in models if row["shrunk"] is not None]
    middle, origin = 0.0, "no lean" if absolute else "pool mean"
    if is_few and not absolute:
        middle, origin = sum(finite) / max(len(finite), 1), "mean of the models"
    told = []
    for row in models:
        leans = {key: row[key] - middle for key in _LEANS if row[key] is not None}
        told.append(row | leans | {"origin": origin})
    return told


def _telling_drift(rows: list[Json], data: Json) -> list[Json]:
    told = []
    for row in rows:
        windows = [window for window in row["windows"] if not _is_withheld(window, data)]
        few = {"own_tau": None} if is_about_few(row["n_annotators"], row["n_people"]) else {}
        told += [{**row, **few, "windows": windows}] if windows else []
    return told


def _telling_checks(checks: Json, data: Json) -> Json:
    care, anchors = checks["care"], checks["anchors"]
    # one group, or more: how many more is known from the warning
    groups = {}
    for name, graph in checks["components"]["informative"].items():
        several = ("none", "one", "several")[min(graph["n"], 2)]
        sizes = [size for size in graph["sizes"] if rounded_count(size)]
        groups[name] = {"n": several, "sizes": sizes, "outside": graph["outside"]}
    if care and not care["is_unknown"]:
        # of those whose care is told at least as many are people
        n_people = care["n_told"] - (data["n_annotators"] - data["n_people"])
        if is_about_few(care["n_told"], data["n_people"] and max(n_people, 1)):
            care = {**care, "spread": None}
    return {
        "estimator": {name: checks["estimator"][name] for name in ("quality", "why")},
        "groups": groups,
        "anchors": anchors and {"n": anchors["n"]},
        "care": care,
    }


def _telling_problem(row: Json) -> Json | None:
    """A finding without its rows and names; None where it is about one annotator or counts fewer than five."""
    what, where = _SHARE.sub("", row["what"]), row["where"]
    if where.startswith('class "') or _PSEUDONYM.fullmatch(where):
        return None
    if _PSEUDONYM.search(what + row["remedy"]):
        return None
    for number, is_share in _NUMBER.findall(what):
        digits = number.replace(",", "")
        if digits.isdigit() and int(digits) < FEWEST_ANNOTATORS and not is_share:
            return None
    told = {name: row[name] for name in ("code", "severity", "remedy")}
    return told | {"what": what, "where": _named(row)}


def _named(problem: Json) -> str:
    """The attribute or the class that a finding is about; nothing where the finding is about neither."""
    found = _OF_WHAT.match(problem["where"])
    return found[0] if found else ""


def _rounded(value: Any, key: str, step: float) -> Any:
    """A part of the summary with its counts, estimates and the numbers in its sentences rounded."""
    if isinstance(value, Mapping):
        told = {name: _rounded(entry, name, step) for name, entry in value.items()}
        return {shown(name, LONGEST): entry for name, entry in told.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry, key, step) for entry in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value = shown(value, LONGEST)
        if key in _NAMES:
            return value
        return _NUMBER.sub(lambda found: _rounded_number(found, step), _PART.sub(_rounded_part, value))
    if isinstance(value, int) or key in _COUNTS:
        return rounded_count(round(value))
    if key in _PROBABILITIES or key == "unit":  # the unit is of the texts, not of the votes
        return float(f"{value:.1g}" if key != "unit" else f"{value:.2g}")
    step = 0.01 if key.endswith("share") else step  # how many votes a share is of is rounded by itself
    return round(round(value / step) * step, 2)


def _rounded_part(found: re.Match[str]) -> str:
    """A part of a whole in words where both would be rounded to the same number."""
    n, of = (int(number.replace(",", "")) for number in found.group(1, 3))
    if not n or rounded_count(n) != rounded_count(of):
        return found[0]
    noun = found[2] or ""
    return f"{'most' if n > _MOST * of else 'about half' + ' the' * bool(noun)}{noun} of {found[3]}"


def _rounded_number(found: re.Match[str], step: float) -> str:
    number, percent_sign = found[1].replace(",", ""), found[2]
    if percent_sign:
        return f"{float(number):.0f}{percent_sign}"
    if number.isdigit():
        return count_text(rounded_count(int(number)))
    value = float(number)
    return f"{value:.1g}" if value < 0.1 else f"{round(value / step) * step:.2f}"


# -- figures -----------------------------------------------------------------------------------------------------


def _around_zero(panel: DotPanel) -> DotPanel:
    """The panel as wide as its marks."""
    reach = min(max(map(abs, (_SMALLEST_REACH, *panel.extent()))), _WIDEST_CHART)
    return replace(panel, limits=(-reach, reach))


def lean_figure(summary: Json) -> Figure | None:
    """How often the side with each attribute wins, with its interval; None where no votes tell."""
    rows, labels = [], audit_labels(summary)
    for row in summary["attributes"]:
        name, share = labels[row["name"]], row["carrier_wins"]
        if not row["n_cross"] or share is None or row["interval"] == "too wide":
            continue
        kind = "naive_ci_" if row["interval"] == "naive only" else "ci_"
        ends = row[f"{kind}low"], row[f"{kind}high"]
        low, high = (100 * float(share if end is None else expit(end)) for end in ends)
        n = count_text(row["n_cross"])
        mark = Mark(100 * share, name, 2 if is_sure(row) else 0, low, high, n=n)
        told = f"{decimal(low, 0)} to {percent(high / 100)}, n = {n}"
        rows.append(DotRow(f"{name}: {told}", (mark,)))
    axis, level = "% of the votes won by the side with it", Level(50.0, "no lean")
    told, ends = "share of votes for the side with each attribute", (0.0, 100.0)
    panel = DotPanel("", rows, told, axis, level, ends, lambda value: percent(value / 100))
    return dot_figure("Which side wins", [panel])


def class_figure(summary: Json) -> Figure | None:
    """How far the classes of annotators lie from the pool mean; None without classes."""
    panels, labels = [], audit_labels(summary)
    for attribute, pool in summary["pool"].items():
        label, rows = labels[attribute], []
        for i, found in enumerate(pool["classes"]):
            if found["offset"] is not None:
                name = f"{shown(found['class'], 14)} (n = {count_text(found['n'])})"
                ends = found["ci_low"], found["ci_high"]
                mark = Mark(found["offset"], name, class_style(i), *ends)
                rows.append(DotRow(name, (mark,)))
        what = f"classes of annotators on {label}", "difference from the pool, log-odds"
        panel = DotPanel(label, rows, *what, Level(0.0, "pool mean"))
        panels.append(_around_zero(panel))
    return dot_figure("Classes", panels)


def model_figure(summary: Json) -> Figure | None:
    """How the models among the annotators lean, by name; None where there is none."""
    panels = []
    for attribute, label in audit_labels(summary).items():
        rows, middle = [], ""
        for row in summary["models"]:
            if row["attribute"] == attribute and row["shrunk"] is not None:
                name, middle = row["model"], row["origin"]
                ends = row["post_low"], row["post_high"]
                of_votes = f"{name} (n = {count_text(row['n_cross'])})"
                mark = Mark(row["shrunk"], of_votes, class_style(0), *ends)
                rows.append(DotRow(shown(name, 24), (mark,), percent(row["raw_rate"])))
        what = f"models and how they lean on {label}", "shrunken lean, log-odds"
        panel = DotPanel(label, rows, *what, Level(0.0, middle), notes="chose it")
        panels.append(_around_zero(panel))
    return dot_figure("Models that vote", panels)


def drift_figure(summary: Json) -> Figure | None:
    """The pool's log-odds in each window of time; None without a column of times, or with one window."""
    panels, labels = [], audit_labels(summary)
    for row in summary["drift"] or []:
        label, rows = labels[row["attribute"]], []
        for of in row["windows"]:
            if of["log_odds"] is not None:
                mark = Mark(of["log_odds"], of["name"], 0, of["ci_low"], of["ci_high"])
                rows.append(DotRow(mark.name, (mark,)))
        what = f"log-odds of the pool on {label} over time", "log-odds"
        panels.append(DotPanel(label, rows, *what, Level(0.0, "no lean")))
    return dot_figure("Over time", panels)


def worth_sentences(summary: Json) -> list[str]:
    """Which labels and pairs would be otherwise without the leans, and how leans change over time."""
    labels, told = audit_labels(summary), []
    for row in summary["flips"]:
        name = row["attribute"]
        if row["labels"] is None:
            refused = summary["pool"][name]["refused"] if name else {}
            why = refused.get("flips", "how far people differ is not known")
            told.append(f"The impact of biases on {labels[name]} on majorities is not reported: {why}.")
            continue
        leans = "all of these together"
        if name:
            kind = "leans" if summary["pool"][name]["absolute"] else "deviations"
            leans = f"the {kind} on {labels[name]}"
        turned = f"{_turned(row['labels'], row['n_contested'])} contested majorities"
        pairs = f"{_turned(row['pairs'], summary['data']['n_judgments'])} pairs that train"
        told.append(f"Without {leans}, {turned} would turn, and with them {pairs}.")
    for row in summary["drift"] or []:
        label, change = labels[row["attribute"]], "is not known"
        if row["change"]["log_odds"] is not None:
            change = f"is {lean_text(row['change'])}; leans may have changed, or the comparisons"
        text = f"The change of log-odds on {label} from the first window to the last {change}."
        if row["own_tau"] is not None:
            spread = with_interval(row["own_tau"], *row["own_tau_ci"])
            text += f" Biases of individual annotators change with a standard deviation of {spread}."
        told.append(text)
    if summary["drift"] == []:
        told.append("Of change over time nothing can be said: the times are too few, or all the same.")
    return told


def _turned(counts: list[int | None], of: int | None) -> str:
    """How many of others, with a 95 % interval, which is left out where its ends are too small to be passed on."""
    n, low, high = part_text(counts[0], of), *map(count_text, counts[1:])
    told = n if counts[2] is None else f"{n} (95 % interval {low} to {high})"
    return f"{told} of {count_text(of)}"


# -- the terminal ----------------------------------------------------------------------------------------------

_WIDTH, _WORST, _MOST_MODELS = 100, 5, 20
_POOL = ("attribute", "differs", "wins", "log-odds", "95 % interval", "for others")
_COLUMNS = (*_POOL, "tau", "95 % interval", "estimated")
_OF_PEOPLE = (
    "95 % interval: for these annotators on other prompts; for others: for annotators like these, too\n"
    "tau: how far annotators differ; estimated: how many have enough votes for a lean of their own"
)


def audit_table(summary: Json, pairs: Sequence[Json] = ()) -> str:
    """What the terminal prints of an audit: the pool's leans, their spread over annotators, verdicts, problems."""
    summary = cleaned(summary)
    examples = pair_sentences(summary, pairs, exact=True)
    data, labels, pools = summary["data"], audit_labels(summary), summary["pool"]
    nouns = ("judgment", "prompt", *["annotator"] * data["has_annotators"])
    head = ", ".join(counted(data[f"n_{noun}s"], noun) for noun in nouns)
    head = f"{shown(data['source'], 60)}: {head}"
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for row in summary["attributes"]:
        name = row["name"]
        rows.append((labels[name], *_cells(row, pools.get(name))))
    how = {"tablefmt": "plain", "disable_numparse": True}
    aligned = ("left", *["right"] * (len(_COLUMNS) - 1))
    table = tabulate(rows, colalign=aligned, **how)
    told = [line.rstrip() for line in table.splitlines()] + [_OF_PEOPLE] * data["has_annotators"]
    parts = [head, "\n".join(told)]
    for verdict in audit_verdicts(summary):
        told = [f"{term}: {sentence}" for term, sentence in verdict.sentences]
        if example := examples.get(verdict.title):
            told.insert(1, f"Example: {example}")
        parts.append(_part(verdict.title, [verdict.finding, *told]))
    if care := care_sentence(summary):
        parts.append(_part("care", [care]))
    models = [_model(row, pools[row["attribute"]]) for row in summary["models"]]
    if models:
        parts.append("\n".join(["models", *models[:_MOST_MODELS]]))
        if len(models) > _MOST_MODELS:
            rest = len(models) - _MOST_MODELS
            parts[-1] += f"\n  and {rest:,} more in annotators.csv (Python: .annotators)"
    parts.append(_part("worth", worth_sentences(summary)))
    scan = summary["scan"]
    declared = [row["feature"] for row in scan if row["advice"] == "declare"]
    if declared:
        parts.append(f"not declared, and preferred or avoided: {', '.join(declared)}")
    # what the estimates are worth, before what reading the table noticed
    problems = sorted(summary["warnings"], key=lambda row: (_severity(row), row["code"][1] != "4"))
    found = []
    for row in problems[:_WORST]:
        where = _named(row)
        what = f"{row['code']} {where}{': ' * bool(where)}{row['what']}"
        is_told = not row["remedy"].startswith("nothing")
        found.append(what + f" \u00b7 do: {row['remedy']}" * is_told)
    if found:
        parts.append(_part("to look at", found))
    if len(problems) > _WORST:
        parts[-1] += f"\n  and {len(problems) - _WORST:,} more in audit.json (Python: .warnings)"
    return "\n\n".join(parts)


def _part(title: str, sentences: Iterable[str]) -> str:
    wrapped = textwrap.TextWrapper(_WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join([title, *map(wrapped.fill, sentences)])


def _cells(row: Json, pool: Json | None) -> list[str]:
    shares, ends = (row["cross_share"], row["carrier_wins"]), (row["ci_low"], row["ci_high"])
    told = [*map(percent, shares), decimal(row["log_odds"]), interval_text(*ends)]
    told.append(interval_text(*row["population_ci"]))
    if pool is None:
        return [*told, *[DASH] * 3]
    counts = [pool[f"n_{kind}"] for kind in (*_TOLD, "no_information")]
    people = f"{counts[0]:,} of {sum(counts):,}"
    return [*told, decimal(pool["tau"]), interval_text(*pool["tau_ci"]), people]


def _model(row: Json, pool: Json) -> str:
    told = "lean not known"
    if row["shrunk"] is not None:
        lean = with_interval(row["shrunk"], row["post_low"], row["post_high"])
        origin = "lean" if pool["absolute"] else "lean from the pool mean"
        told = f"{origin} {lean}, chose it in {percent(row['raw_rate'])} of {row['n_cross']:,}"
    if row["both_orders"]:
        told += (
            f", the same answer in either order {percent(row['same_share'])} of {row['both_orders']:,}"
        )
    told += ", flagged for its lean" * row["flag"]
    told += ", flagged for low reliability or another taste" * row["flag_care"]
    name, attribute = shown(row["model"], 40), shown(row["attribute"], 24)
    return f"  {name} on {attribute}: {told}"


# -- the page of single annotators ------------------------------------------------------------------------------------

MOST_ROWS, FEWEST_DRAWN = 60, 2
_KINDS = ("fewer informative votes than asked for", "flagged", "estimated")
_FEW, _FLAGGED, _ESTIMATED = range(3)
_MARKS = [(name, style) for style, name in enumerate(_KINDS)]
_LEAST_AXIS, _LONGEST_AXIS = 1.0, 4.0
# Columns that the chart shows if annotators are not compared.
_SUMS = {"deviation": "log_odds", "ci_low": "log_odds_low", "ci_high": "log_odds_high"}


def people_html(summary: Json, annotators: pd.DataFrame, names: Mapping[str, str] | None = None) -> str:
    """The page about an audit's annotators as HTML text: personal data, which is not to be passed on.

    ``names`` maps pseudonyms to ids, which the page then shows beside the pseudonyms.
    """
    summary, names = cleaned(summary), names or {}
    annotators = annotators.assign(
        attribute=annotators["attribute"].map(cleaned),
        annotator=[shown(name, 20) for name in annotators["model"].fillna(annotators["annotator"])],
    )
    figures = (draw(summary, annotators) for draw in (caterpillar_figure, care_figure))
    source, version = shown(summary["data"]["source"]), summary["version"]
    labels, whose = audit_labels(summary), {shown(key, 20): shown(name) for key, name in names.items()}
    told = [
        _person_sentence(row, labels[row["attribute"]], whose.get(row["annotator"]))
        for row in annotators.sort_values(["annotator", "attribute"]).to_dict("records")
    ]
    content = {"figures": [*filter(None, figures)], "people": told}
    return page("people", name=source, version=version, **content)


def _person_sentence(row: Json, label: str, name: str | None) -> str:
    """One annotator's votes on one attribute in a sentence."""
    who = f"{row['annotator']} ({name})" if name else row["annotator"]
    n = counted(int(row["n_cross"]), "judgment")
    if not row["n_cross"]:
        return f"{who} judged no responses that differ in {label}."
    told = f"{who} chose the side with more {label} in {percent(row['raw_rate'])} of {n}"
    if not np.isfinite(row["shrunk"]):
        return f"{told}; the votes do not tell how this compares with others."
    ends = row["post_low"], row["post_high"]
    is_sure = ends[0] > 0 or ends[1] < 0
    way = ("toward it" if row["shrunk"] > 0 else "away from it") if is_sure else "neither way for sure"
    flag = "; flagged: read these comparisons again before anything else" * bool(row["flag"])
    return (
        f"{told}; compared with the pool {way} ({with_interval(row['shrunk'], *ends)} log-odds){flag}."
    )


def caterpillar_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's own and shrunken estimate, most informative votes first; None where nobody has any."""
    panels, left_out = [], []
    least = summary["settings"]["min_informative"]
    for name, label in audit_labels(summary).items():
        people = annotators[annotators["attribute"] == name]
        if people.empty:
            continue
        pool, told = summary["pool"][name], people["n_informative"] >= FEWEST_DRAWN
        is_sum = "flag" in pool["refused"]
        if is_sum:
            people = people.assign(**{own: people[total] for own, total in _SUMS.items()})
        if pool["tau"] is None:
            # no estimate is shrunk: only annotators with enough votes have an estimate
            told &= people["status"] == "ok"
        order = _ordered(people[told], "n_informative")
        drawn = order.head(MOST_ROWS)
        rows = [_person(row, least) for row in drawn.to_dict("records")]
        counts = (
            (len(order) - len(rows), "fewer votes than those"),
            (len(people) - len(order), "hardly any"),
        )
        if told_of := ", ".join(f"{n:,} with {votes}" for n, votes in counts if n):
            left_out.append(f"{label}: {told_of}")
        what = f"leans of {len(rows):,} annotators on {label} with intervals"
        origin = "group mean" if pool["is_divided"] else "pool mean"
        middle = Level(0.0, "no lean" if pool["absolute"] or is_sum else origin)
        unit = "log-odds of choosing it, bias and merit together" if is_sum else "deviation, log-odds"
        how = unit, middle, _limits(drawn)
        panels.append(DotPanel(label, rows, what, *how, notes="votes"))
    rest = f"Not drawn: {'; '.join(left_out)}. " * bool(left_out)
    rest += f"Everyone is in {summary['annotators_file']}."
    return dot_figure("Single annotators", panels, rest, legend(_MARKS))


def care_figure(summary: Json, annotators: pd.DataFrame) -> Figure | None:
    """Each annotator's care, most judgments first; None where nobody's is known."""
    people = annotators.dropna(subset="care").drop_duplicates("annotator")
    order = _ordered(people, "n_judgments")
    rows = []
    for row in order.head(MOST_ROWS).to_dict("records"):
        name, ends = row["annotator"], (row["care_low"], row["care_high"])
        style = _FLAGGED if row["flag_care"] else _ESTIMATED
        mark = Mark(row["care"], name, style, *ends)
        rows.append(DotRow(name, (mark,), f"{row['n_judgments']:,}"))
    n_more = len(order) - len(rows)
    rest = f"{n_more:,} more are in {summary['annotators_file']}." * (n_more > 0)
    label, middle = f"care of {len(rows):,} annotators with intervals", Level(1.0, "mean")
    panel = DotPanel("", rows, label, "care", middle, (-1.0, 3.0), notes="judgments")
    return dot_figure("Care", [panel], rest, legend(_MARKS[1:]))


def _ordered(people: pd.DataFrame, votes: str) -> pd.DataFrame:
    return people.sort_values([votes, "annotator"], ascending=[False, True])


def _person(row: Json, least: int) -> DotRow:
    name, n_votes = row["annotator"], row["n_informative"]
    style = _FEW if n_votes < least else _ESTIMATED
    style = _FLAGGED if row["flag"] else style
    ends, post = (row["ci_low"], row["ci_high"]), (row["post_low"], row["post_high"])
    own = Mark(row["deviation"], f"{name}, own estimate", OWN, *ends)
    shrunken = Mark(row["shrunk"], f"{name}, shrunken", style, *post)
    return DotRow(name, (own, shrunken), f"{n_votes:,}")


def _limits(people: pd.DataFrame) -> Limits:
    """An axis around zero that holds most estimates and not the absurd ends of a few intervals."""
    values = people[["shrunk", "post_low", "post_high", "deviation"]].to_numpy(dtype=float)
    values = np.abs(values[np.isfinite(values)])
    reach = np.quantile(values, 0.9) if values.size else 0.0
    reach = np.ceil(2 * np.clip(reach, _LEAST_AXIS, _LONGEST_AXIS)).item() / 2
    return -reach, reach
