"""The figures of a run page: which readings stand in which chart, with a caption and the numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from badpo.results.charts import DotRow, Level, Mark, dot_plot, legend
from badpo.results.figure_parts import (
    READING_HEADER,
    Figure,
    TextTable,
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
from badpo.results.run_files import MeasuredRuns
from badpo.results.theta_figures import learned_against_planted, theta_over_steps
from badpo.results.verdicts import Quantity, attribute_labels, quantities

CEILING = "planted ceiling"


def figures(suite: MeasuredRuns) -> list[Figure]:
    """Every figure for which the runs hold the numbers, in the order of the page."""
    found = quantities(suite)
    drawn = [
        _rates_figure(suite, [quantity for quantity in found if quantity.is_rate]),
        _amounts_figure(suite, [quantity for quantity in found if not quantity.is_rate]),
        theta_over_steps(suite),
        learned_against_planted(suite),
        _gap_figure(suite),
        _votes_figure(suite),
        _kl_figure(suite),
    ]
    return [figure for figure in drawn if figure is not None]


def _rates_figure(suite: MeasuredRuns, found: Sequence[Quantity]) -> Figure | None:
    how = (
        "It is read from probabilities at the place where the attribute is decided, with the reference\u2019s own "
        "answer before it, the same for every arm; sampled answers saturate earlier."
        if any(run.readouts.rates for run in suite.runs)
        else "It is the share among sampled answers."
    )
    caption = f"Rate of each attribute, by arm. {how}"
    return _quantities_figure(suite, "Attribute rates", found, caption, limits=(0.0, 1.0))


def _amounts_figure(suite: MeasuredRuns, found: Sequence[Quantity]) -> Figure | None:
    caption = "Means over sampled answers, by arm."
    return _quantities_figure(suite, "Length and amounts", found, caption, limits=None)


def _quantities_figure(
    suite: MeasuredRuns,
    title: str,
    found: Sequence[Quantity],
    caption: str,
    limits: tuple[float, float] | None,
) -> Figure | None:
    panels, rows = [], []
    for quantity in found:
        symbol = quantity.symbol
        reference = estimate(suite, REFERENCE, quantity.read)
        level = Level(reference.value, "reference") if reference else None
        lanes = arm_rows(suite, quantity.read)
        panels.append((symbol, dot_plot(lanes, f"{symbol} by arm", symbol, level, limits, quantity.number)))
        rows += reading_rows(suite, symbol, quantity.read, quantity.number)
    caption += f" The dashed line is the reference. {interval_note(suite)}"
    return Figure(title, panels, caption, TextTable(READING_HEADER, rows)) if panels else None


def _gap_figure(suite: MeasuredRuns) -> Figure | None:
    labels = {**attribute_labels(suite), "any": "any attribute"}
    charts = {name: lanes for name in labels if (lanes := arm_rows(suite, gap(name)))}
    if len(charts) == 2:
        charts.pop("any", None)  # with one attribute, any attribute is that one
    panels, rows = [], []
    for name, lanes in charts.items():
        title = labels[name]
        label, level = f"held-out gap on {title} by arm", Level(0.0, "no gap")
        everywhere = common_limits(list(charts.values()))
        panels.append((title, dot_plot(lanes, label, "cross minus same", level, everywhere, _three_signed)))
        rows += reading_rows(suite, title, gap(name), _three_signed)
    caption = (
        "Held-out gap, by arm: the policy\u2019s accuracy on judgments whose two responses differ on the attribute, "
        "minus its accuracy on those whose responses agree. A policy that learned the lean predicts the votes that "
        "carry it better, and so has a larger gap. Zero is not the target: a policy that follows quality alone may "
        f"have a gap on either side of it, and an arm below that has gone too far. {interval_note(suite)}"
    )
    return Figure("Held-out gap", panels, caption, TextTable(READING_HEADER, rows)) if panels else None


def _votes_figure(suite: MeasuredRuns) -> Figure | None:
    arms = [arm for arm in suite.arms if any(run.readouts.votes for run in suite.of(arm))]
    charts, rows = {}, []
    for attribute, title in attribute_labels(suite).items():
        cells = (run.readouts.votes.get(attribute, {}) for arm in arms for run in suite.of(arm))
        classes = list(dict.fromkeys(name for cell in cells for name in cell))
        lanes = [row for name in classes if (row := _class_row(suite, arms, attribute, name)).marks]
        if lanes:
            charts[title] = lanes
        told = (_vote_row(suite, arm, attribute, name, title) for name in classes for arm in arms)
        rows += [row for row in told if row]
    if not charts:
        return None
    axis, everywhere = "share of votes predicted", common_limits(list(charts.values()))
    panels = [
        (title, dot_plot(lanes, f"votes predicted on {title} by annotator class", axis, Level(0.5, "coin"), everywhere))
        for title, lanes in charts.items()
    ]  # fmt: skip
    entries = [(arm_label(arm), style_of(suite, arm)) for arm in arms]
    caption = (
        "Held-out votes that the arm\u2019s own policy and theta predict together, overall and by annotator class, on "
        "judgments whose responses differ on the attribute. "
    )
    if any(run.readouts.ceiling for run in suite.runs):
        entries.insert(0, (CEILING, 0))
        caption += (
            "The planted ceiling puts the planted theta in the place of the learned one, as a mean over the arms; "
            "the table has each arm\u2019s difference from its own ceiling. "
        )
    header = ("Attribute, class, arm", "Predicted", "Own ceiling", "Difference", "95 % interval", "Each seed")
    caption += interval_note(suite)
    return Figure("Votes predicted", panels, caption, TextTable(header, rows), legend(entries))


def _class_row(suite: MeasuredRuns, arms: Sequence[str], attribute: str, annotator_class: str) -> DotRow:
    label = "all" if annotator_class == "all" else f"class {shown(annotator_class, 8)}"
    ceilings = [estimate(suite, arm, accuracy("ceiling", attribute, annotator_class)) for arm in arms]
    known = [found.value for found in ceilings if found]
    marks = [Mark(float(np.mean(known)), f"{label}, {CEILING}", 0)] if known else []
    marks += [
        estimate_mark(found, f"{label}, {arm_label(arm)}", style_of(suite, arm))
        for arm in arms
        if (found := estimate(suite, arm, accuracy("votes", attribute, annotator_class)))
    ]
    return DotRow(label, tuple(marks))


def _vote_row(
    suite: MeasuredRuns, arm: str, attribute: str, annotator_class: str, title: str
) -> tuple[str, ...] | None:
    own = estimate(suite, arm, accuracy("votes", attribute, annotator_class))
    ceiling = estimate(suite, arm, accuracy("ceiling", attribute, annotator_class))
    apart = estimate(suite, arm, votes_minus_ceiling(attribute, annotator_class))
    if own is None:
        return None
    return (
        f"{title}, {shown(annotator_class, 12)}, {arm_label(arm)}",
        decimal(own.value, 3),
        decimal(ceiling.value if ceiling else None, 3),
        _three_signed(apart.value if apart else None),
        ends(apart, _three_signed),
        per_seed(apart, _three_signed),
    )


def _kl_figure(suite: MeasuredRuns) -> Figure | None:
    lanes = arm_rows(suite, kl)
    if not lanes:
        return None
    caption = (
        "Distance from the reference, by arm: Kullback\u2013Leibler divergence in nats per token, on answers drawn "
        f"from the arm at temperature 1. An estimate that may fall below zero by chance. {interval_note(suite)}"
    )
    label, level = "KL divergence from the reference by arm", Level(0.0, "reference")
    chart = dot_plot(lanes, label, "nats per token", level, None, lambda value: decimal(value, 3))
    rows = reading_rows(suite, "KL per token", kl, lambda value: decimal(value, 4))
    return Figure("Distance from the reference", [("", chart)], caption, TextTable(READING_HEADER, rows))


def _three_signed(value: float | None) -> str:
    return signed(value, 3)
