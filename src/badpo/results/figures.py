"""The figures of a run page: which readings stand in which chart, with a caption and the numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from badpo.results.charts import DotRow, Level, Mark, dot_plot, legend
from badpo.results.figure_parts import (
    READING_HEADER,
    Figure,
    Table,
    arm_rows,
    common_limits,
    ends,
    estimate_mark,
    interval_note,
    per_seed,
    reading_rows,
    style_of,
)
from badpo.results.labels import REFERENCE, arm_label, decimal, shown, signed
from badpo.results.readings import accuracy, estimate, gap, kl, votes_minus_ceiling
from badpo.results.run_files import Suite
from badpo.results.theta_figures import learned_against_planted, theta_over_steps
from badpo.results.verdicts import Quantity, attribute_labels, quantities

CEILING = "planted ceiling"


def figures(suite: Suite) -> list[Figure]:
    """Every figure for which the runs hold the numbers, in the order of the page."""
    drawn = [
        *(_quantity_figures(suite)),
        theta_over_steps(suite),
        learned_against_planted(suite),
        _gap_figure(suite),
        _votes_figure(suite),
        _kl_figure(suite),
    ]
    return [figure for figure in drawn if figure is not None]


def _quantity_figures(suite: Suite) -> list[Figure]:
    found = quantities(suite)
    rates = [quantity for quantity in found if quantity.is_rate]
    amounts = [quantity for quantity in found if not quantity.is_rate]
    drawn = []
    if rates:
        by_probability = any(run.readouts.get("rates") for run in suite.runs)
        caption = (
            "Rate of each attribute, by arm. "
            + (
                "It is read from probabilities at the place where the attribute is decided, with the reference\u2019s "
                "own answer before it, the same for every arm; sampled answers saturate earlier. "
                if by_probability
                else "It is the share among sampled answers. "
            )
            + f"The dashed line is the reference. {interval_note(suite)}"
        )
        drawn.append(_reading_figure(suite, "Attribute rates", rates, caption, limits=(0.0, 1.0)))
    if amounts:
        caption = (
            f"Means over sampled answers, by arm. The dashed line is the reference. {interval_note(suite)}"
        )
        drawn.append(_reading_figure(suite, "Length and amounts", amounts, caption, limits=None))
    return drawn


def _reading_figure(suite: Suite, title: str, found: Sequence[Quantity], caption: str, limits) -> Figure:
    panels, rows = [], []
    for quantity in found:
        reference = estimate(suite, REFERENCE, quantity.read)
        level = Level(reference.value, "reference") if reference else None
        label = f"{quantity.symbol} by arm"
        lanes = arm_rows(suite, suite.arms, quantity.read)
        panels.append(
            (quantity.symbol, dot_plot(lanes, label, quantity.symbol, level, limits, quantity.number))
        )
        rows += reading_rows(suite, suite.arms, quantity.symbol, quantity.read, quantity.number)
    return Figure(title, tuple(panels), Markup(""), caption, Table(READING_HEADER, tuple(rows)))


def _gap_figure(suite: Suite) -> Figure | None:
    measured = [
        a for a in (*suite.attributes, "any") if any(estimate(suite, arm, gap(a)) for arm in suite.arms)
    ]
    if len(measured) == 2:
        measured.remove("any")  # with one attribute, any attribute is that one
    labels = {**attribute_labels(suite), "any": "any attribute"}
    panels, rows = [], []
    charts = {name: arm_rows(suite, suite.arms, gap(name)) for name in measured}
    everywhere = common_limits(list(charts.values()))
    for name, lanes in charts.items():
        title = labels[name]
        label = f"held-out gap on {title} by arm"
        level = Level(0.0, "no gap")
        panels.append((title, dot_plot(lanes, label, "cross minus same", level, everywhere, _three_signed)))
        rows += reading_rows(suite, suite.arms, title, gap(name), _three_signed)
    if not panels:
        return None
    caption = (
        "Held-out gap, by arm: the policy\u2019s accuracy on judgments whose two responses differ on the attribute, "
        "minus its accuracy on those whose responses agree. A policy that learned the lean predicts the votes that "
        "carry it better, and so has a larger gap. Zero is not the target: a policy that follows quality alone may "
        f"have a gap on either side of it, and an arm below that has gone too far. {interval_note(suite)}"
    )
    return Figure("Held-out gap", tuple(panels), Markup(""), caption, Table(READING_HEADER, tuple(rows)))


def _votes_figure(suite: Suite) -> Figure | None:
    labels, panels, rows = attribute_labels(suite), [], []
    arms = [arm for arm in suite.arms if any("votes" in run.readouts for run in suite.of(arm))]
    tables = [run.readouts["votes"] for arm in arms for run in suite.of(arm)]
    charts = {}
    for attribute in suite.attributes:
        names = list(dict.fromkeys(name for table in tables for name in table.get(attribute, {})))
        lanes = [row for name in names if (row := _class_row(suite, arms, attribute, name)).marks]
        if lanes:
            charts[labels[attribute]] = lanes
        where = labels[attribute]
        rows += [
            row for name in names for arm in arms for row in _vote_rows(suite, arm, attribute, name, where)
        ]
    everywhere = common_limits(list(charts.values()))
    for name, lanes in charts.items():
        label = f"votes predicted on {name} by annotator class"
        panels.append(
            (name, dot_plot(lanes, label, "share of votes predicted", Level(0.5, "coin"), everywhere))
        )
    if not panels:
        return None
    entries = [(arm_label(arm), style_of(suite, arm)) for arm in arms]
    has_ceiling = any("ceiling" in run.readouts for run in suite.runs)
    caption = (
        "Held-out votes that the arm\u2019s own policy and theta predict together, overall and by annotator class, on "
        "judgments whose responses differ on the attribute. "
    )
    if has_ceiling:
        entries.insert(0, (CEILING, 0))
        caption += (
            "The planted ceiling puts the planted theta in the place of the learned one, as a mean over the arms; "
            "the table has each arm\u2019s difference from its own ceiling. "
        )
    header = ("Attribute, class, arm", "Predicted", "Own ceiling", "Difference", "95 % interval", "Each seed")
    table = Table(header, tuple(rows))
    return Figure("Votes predicted", tuple(panels), legend(entries), caption + interval_note(suite), table)


def _class_row(suite: Suite, arms: Sequence[str], attribute: str, annotator_class: str) -> DotRow:
    label = "all" if annotator_class == "all" else f"class {shown(annotator_class, 8)}"
    marks = []
    ceilings = [estimate(suite, arm, accuracy("ceiling", attribute, annotator_class)) for arm in arms]
    known = [found.value for found in ceilings if found]
    if known:
        marks.append(Mark(float(np.mean(known)), f"{label}, {CEILING}", 0))
    for arm in arms:
        found = estimate(suite, arm, accuracy("votes", attribute, annotator_class))
        if found:
            marks.append(estimate_mark(found, f"{label}, {arm_label(arm)}", style_of(suite, arm)))
    return DotRow(label, tuple(marks))


def _vote_rows(
    suite: Suite, arm: str, attribute: str, annotator_class: str, where: str
) -> list[tuple[str, ...]]:
    own, ceiling = (
        estimate(suite, arm, accuracy(k, attribute, annotator_class)) for k in ("votes", "ceiling")
    )
    apart = estimate(suite, arm, votes_minus_ceiling(attribute, annotator_class))
    if own is None:
        return []
    name = f"{where}, {shown(annotator_class, 12)}, {arm_label(arm)}"
    return [
        (
            name,
            decimal(own.value, 3),
            decimal(ceiling.value, 3) if ceiling else decimal(None),
            _three_signed(apart.value) if apart else decimal(None),
            ends(apart, _three_signed),
            per_seed(apart, _three_signed),
        )
    ]


def _kl_figure(suite: Suite) -> Figure | None:
    lanes = arm_rows(suite, suite.arms, kl)
    if not lanes:
        return None
    caption = (
        "Distance from the reference, by arm: Kullback\u2013Leibler divergence in nats per token, on answers drawn "
        f"from the arm at temperature 1. An estimate that may fall below zero by chance. {interval_note(suite)}"
    )
    level = Level(0.0, "reference")
    chart = dot_plot(lanes, "KL divergence from the reference by arm", "nats per token", level, None, _three)
    rows = reading_rows(suite, suite.arms, "KL per token", kl, lambda value: decimal(value, 4))
    table = Table(READING_HEADER, tuple(rows))
    return Figure("Distance from the reference", (("", chart),), Markup(""), caption, table)


def _three(value: float) -> str:
    return decimal(value, 3)


def _three_signed(value: float) -> str:
    return signed(value, 3)
