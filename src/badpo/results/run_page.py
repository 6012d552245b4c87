"""One page about trained runs, drawn from their folders: verdicts, a table, charts, limits and provenance."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from markupsafe import Markup
from numpy.typing import NDArray

from badpo import __version__
from badpo.data.privacy import is_about_single_people
from badpo.results.charts import (
    STYLES,
    DotRow,
    Level,
    Mark,
    PointGroup,
    Series,
    dot_plot,
    legend,
    line_chart,
    scatter,
)
from badpo.results.run_files import (
    Environment,
    Estimate,
    MeasuredRuns,
    Planted,
    Read,
    accuracy,
    correlation,
    estimate,
    gap,
    kl,
    learned_annotators,
    learned_theta,
    offline,
    read_planted,
    read_suite,
    removal,
    votes_minus_ceiling,
)
from badpo.results.verdicts import Quantity, anchor_sentences, attribute_labels, limits, quantities, verdicts
from badpo.results.words import (
    DPO,
    REFERENCE,
    arm_label,
    decimal,
    page_templates,
    percent,
    shown,
    signed,
    write_whole,
)
from badpo.theory.summaries import t_interval

READING_HEADER = ("Reading, arm", "Value", "95 % interval", "Each seed")
FIRST_CLASS_STYLE = 4
Point = TypeVar("Point")
_ARM_STYLES = {REFERENCE: 0, DPO: 1, "pooled": 2, "shared_mean": 3}


@dataclass(frozen=True)
class TextTable:
    """Column names and rows of texts; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Figure:
    """One figure: panels with their subtitles, a caption, its numbers as a table, and a legend where it needs one."""

    title: str
    panels: Sequence[tuple[str, Markup]]
    caption: str
    table: TextTable
    legend: Markup = Markup("")


def style_of(suite: MeasuredRuns, arm: str) -> int:
    """The chart style of an arm, the same in every figure."""
    if arm in _ARM_STYLES:
        return _ARM_STYLES[arm]
    others = [name for name in suite.arms if name not in _ARM_STYLES]
    return class_style(others.index(arm))


def class_style(i: int) -> int:
    """The chart style of the i-th of things that are no arm with a style of its own."""
    return FIRST_CLASS_STYLE + i % (STYLES - FIRST_CLASS_STYLE)


def arm_rows(suite: MeasuredRuns, read: Read) -> list[DotRow]:
    """One row with one mark for every arm that was measured."""
    return [
        DotRow(arm_label(arm), (estimate_mark(reading, arm_label(arm), style_of(suite, arm)),))
        for arm in suite.arms
        if (reading := estimate(suite, arm, read))
    ]


def estimate_mark(found: Estimate, name: str, style: int) -> Mark:
    """An estimate with its interval and, over several seeds, a tick for each."""
    repeats = found.values if len(found.values) > 1 else ()
    return Mark(found.value, name, style, found.interval.low, found.interval.high, repeats)


def common_limits(charts: Sequence[Sequence[DotRow]]) -> tuple[float, float]:
    """One axis for charts that stand side by side."""
    values = [value for rows in charts for row in rows for mark in row.marks for value in mark.extent()]
    return min(values), max(values)


def reading_rows(
    suite: MeasuredRuns, name: str, read: Read, number: Callable[[float], str]
) -> list[tuple[str, ...]]:
    """The rows of a table under `READING_HEADER`: one for every arm that was measured."""
    return [
        (f"{name}, {arm_label(arm)}", number(found.value), ends(found, number), per_seed(found, number))
        for arm in suite.arms
        if (found := estimate(suite, arm, read))
    ]


def ends(found: Estimate | None, number: Callable[[float], str]) -> str:
    """The interval of an estimate as text; a dash where it is not known."""
    if found is None or not np.isfinite(found.interval.low):
        return decimal(None)
    return f"{number(found.interval.low)} to {number(found.interval.high)}"


def per_seed(found: Estimate | None, number: Callable[[float], str] = decimal) -> str:
    """The value of every seed as text."""
    if found is None:
        return ""
    of_seeds = zip(found.seeds, found.values, strict=True)
    return ", ".join(f"{number(value)} (seed {seed})" for seed, value in of_seeds)


def interval_note(suite: MeasuredRuns) -> str:
    """What the intervals of a figure cover."""
    if len(suite.seeds) > 1:
        return (
            f"Mark: mean over {len(suite.seeds)} seeds; line: 95 % interval (Student\u2019s t over seeds; the "
            "reference, a single run, over prompts); ticks: each seed."
        )
    return "Line: 95 % interval over the prompts measured."


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` of the points, evenly spaced, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int))
    return [points[i] for i in chosen]


MOST_POINTS, MOST_ARMS = 300, 2
_POINTS_PER_LINE, _ROWS_PER_LINE = 100, 10


def theta_over_steps(suite: MeasuredRuns) -> Figure | None:
    """The pool mean of the learned theta at every step, by arm; None when no run logged it."""
    planted, panels, rows = read_planted(suite), [], []
    drawn: dict[str, int] = {}
    for attribute, name in attribute_labels(suite).items():
        series = [line for arm in suite.arms if (line := _theta_line(suite, arm, attribute)) is not None]
        if not series:
            continue
        level = _theta_level(suite, planted, attribute)
        panels.append(
            (name, line_chart(series, f"learned theta of {name} by step", "step", "log-odds", level))
        )
        drawn |= {line.name: line.style for line in series}
        rows += [
            (f"{name}, {line.name}", decimal(x, 0), decimal(y, 3))
            for line in series
            for x, y in thinned(line.points, _ROWS_PER_LINE)
        ]
    if not panels:
        return None
    over = "Mean over seeds of the" if len(suite.seeds) > 1 else "The"
    caption = (
        f"{over} learned bias term while training, as the mean over annotators. It starts at zero, or at the offline "
        "estimate in a warm start, takes up the lean of the votes, and is left out of the saved policy. The place "
        "where it ends is not identified by the votes: what theta does not take up, the policy learns."
    )
    if planted is not None:
        caption += " The dashed line is the mean that was planted."
    elif any(estimate(suite, arm, offline(a)) for arm in suite.arms for a in suite.attributes):
        caption += " The dashed line is the log-odds that the side with the attribute won a training vote."
    table = TextTable(("Attribute, arm", "Step", "Mean theta"), rows)
    return Figure("Theta over steps", panels, caption, table, legend(list(drawn.items()), lines=True))


def _theta_level(suite: MeasuredRuns, planted: Planted | None, attribute: str) -> Level | None:
    """What the learned theta is read against: the planted mean, else the offline estimate."""
    if planted is not None:
        if attribute not in planted.attributes:
            return None
        return Level(planted.theta[:, planted.attributes.index(attribute)].mean().item(), "planted mean")
    found = next((e for arm in suite.arms if (e := estimate(suite, arm, offline(attribute)))), None)
    return Level(found.value, "offline estimate") if found else None


def _theta_line(suite: MeasuredRuns, arm: str, attribute: str) -> Series | None:
    key = f"bias/theta/{attribute}"
    shown_runs = [run for run in suite.of(arm) if not is_about_single_people(learned_annotators(run))]
    paths = [{step["step"]: step[key] for step in run.steps if key in step} for run in shown_runs]
    paths = [path for path in paths if any(path.values())]  # an arm without a bias term logs zeros
    common = sorted(set.intersection(*map(set, paths))) if paths else []
    if len(common) < 2:
        return None
    points = [(float(step), float(np.mean([path[step] for path in paths]))) for step in common]
    return Series(arm_label(arm), style_of(suite, arm), tuple(thinned(points, _POINTS_PER_LINE)))


def learned_against_planted(suite: MeasuredRuns) -> Figure | None:
    """Each constructed annotator's learned theta against the planted one; None for votes of real annotators."""
    planted = read_planted(suite)
    aligned = _all_aligned(suite, planted) if planted else []
    if planted is None or not aligned:
        return None
    arms = list(dict.fromkeys(points.arm for points in aligned))[:MOST_ARMS]
    styles = {name: class_style(i) for i, name in enumerate(sorted(set(planted.classes)))}
    panels, rows = [], []
    for points in aligned:
        if points.arm in arms:
            groups = points.groups(styles)
            label = f"learned against planted theta of {points.title}: correlation {decimal(points.r)}"
            note = f"r = {decimal(points.r)}"
            panels.append((points.title, scatter(groups, label, "planted theta", "learned theta", note)))
            rows += [
                (f"{points.title}, class {group.name}", decimal(x), decimal(y))
                for group in groups
                for x, y in group.points
            ]
    table = TextTable(("Attribute, arm, class", "Planted", "Learned"), rows)
    entries = [(f"class {shown(name, 24)}", style) for name, style in styles.items()]
    caption = _planted_caption(suite, planted, aligned)
    return Figure("Learned against planted theta", panels, caption, table, legend(entries))


@dataclass(frozen=True)
class _Aligned:
    """Planted and learned theta on one attribute, of the annotators that both files name."""

    title: str
    arm: str
    attribute: str
    classes: tuple[str, ...]
    truth: NDArray[np.float64]
    learned: NDArray[np.float64]

    @property
    def r(self) -> float:
        return float(np.corrcoef(self.truth, self.learned)[0, 1])

    def groups(self, styles: dict[str, int]) -> list[PointGroup]:
        points = zip(self.truth.tolist(), self.learned.tolist(), strict=True)
        chosen = thinned([*zip(self.classes, points, strict=True)], MOST_POINTS)
        return [
            PointGroup(shown(name, 24), style, tuple(point for label, point in chosen if label == name))
            for name, style in styles.items()
        ]


def _all_aligned(suite: MeasuredRuns, planted: Planted) -> list[_Aligned]:
    """The first seed of each arm, on each attribute on which its annotators differ."""
    labels, found = attribute_labels(suite), []
    for run in (suite.of(arm)[0] for arm in suite.arms if arm not in (REFERENCE, DPO)):
        theta, declared = learned_theta(run), run.bias.attributes
        row = {pseudonym: i for i, pseudonym in enumerate(run.bias.annotators)}
        kept = [i for i, pseudonym in enumerate(planted.pseudonyms) if pseudonym in row]
        if theta is None or len(kept) < 3:
            continue
        classes = tuple(planted.classes[i] for i in kept)
        theta = theta[[row[planted.pseudonyms[i]] for i in kept]]
        for j, attribute in enumerate(planted.attributes):
            if attribute not in declared:
                continue
            truth, learned = planted.theta[kept, j], theta[:, declared.index(attribute)]
            if min(np.ptp(truth), np.ptp(learned)) > 1e-9:
                title = f"{labels[attribute]}, {arm_label(run.arm)}"
                found.append(_Aligned(title, run.arm, attribute, classes, truth, learned))
    return found


def _planted_caption(suite: MeasuredRuns, planted: Planted, aligned: list[_Aligned]) -> str:
    over_seeds = [(points, estimate(suite, points.arm, correlation(points.attribute))) for points in aligned]
    figures = [f"{points.title} {per_seed(found) or decimal(points.r)}" for points, found in over_seeds]
    caption = (
        "Each point is one constructed annotator; the dashed line is equality. Points on a parallel of it have the "
        "right differences between annotators at another common level, which votes cannot tell apart. "
        f"Correlation over annotators: {'; '.join(figures)}."
    )
    if len(suite.seeds) > 1:
        caption += f" The points are those of seed {min(suite.seeds)}."
    if len({points.arm for points in aligned}) > MOST_ARMS:
        caption += f" The first {MOST_ARMS} arms are drawn."
    if len(planted.classes) > MOST_POINTS:
        caption += f" {MOST_POINTS} of {len(planted.classes):,} annotators are drawn, evenly spaced."
    return caption


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


_KEY = (
    (
        "removed",
        "share of DPO\u2019s shift from the reference that the arm does not make; 100 % is the reference",
    ),
    ("log-odds", "distance of the rate from the reference\u2019s, in log-odds; zero is the reference"),
    ("distance", "the mean minus the reference\u2019s"),
    ("gap", "held-out accuracy where any attribute differs, minus accuracy where none does"),
    (
        "votes",
        "held-out votes predicted minus the planted ceiling, on the attribute that falls furthest short",
    ),
    ("KL", "distance from the reference in nats per token"),
)
_KEY_PACKAGES = ("ba-dpo", "torch", "transformers", "trl", "peft", "accelerate", "numpy")


@dataclass(frozen=True)
class SummaryCell:
    """A value of the summary table and half of its 95 % interval; empty where it does not apply or is not known."""

    value: str = ""
    half: str = ""
    starts_group: bool = False


@dataclass(frozen=True)
class SummaryTable:
    """One row per arm: its name and its cells, under groups of columns; ``key`` says what the columns mean."""

    groups: Sequence[tuple[str, tuple[str, ...]]]
    rows: Sequence[tuple[str, list[SummaryCell]]]
    key: Sequence[tuple[str, str]]


def write_report(sources: Path | Sequence[Path], page: Path) -> Path:
    """Write one HTML page about the runs in some folders and return its path.

    The page needs no network and no script, follows a light or a dark system and prints. It names no annotator. Raises
    `ConfigError` where no measured run was found, or a file in a run folder cannot be read.
    """
    return write_whole(report_html(read_suite(sources)), page)


def report_html(suite: MeasuredRuns) -> str:
    """The page about a suite as HTML text."""
    return (
        page_templates()
        .get_template("page.html.jinja")
        .render(
            name=shown(suite.name),
            facts=_facts(suite),
            verdicts=verdicts(suite),
            anchors=anchor_sentences(suite),
            summary=summary_table(suite),
            figures=figures(suite),
            limits=limits(suite),
            unmeasured=[shown(name) for name in suite.unmeasured],
            provenance=provenance(suite),
            settings=settings(suite),
            version=__version__,
        )
    )


def summary_table(suite: MeasuredRuns) -> SummaryTable:
    """The readings of every arm side by side; a dash where something was not measured, nothing where none applies."""
    found = quantities(suite)
    has_ceiling = any(run.readouts.ceiling for run in suite.runs)
    names: dict[bool, tuple[str, ...]] = {
        True: ("rate", "removed", "log-odds"),
        False: ("mean", "removed", "distance"),
    }
    groups = [(quantity.symbol, names[quantity.is_rate]) for quantity in found]
    groups.append(("all attributes", ("gap", *["votes"] * has_ceiling, "KL")))
    rows = []
    for arm in suite.arms:
        cells = [cell for quantity in found for cell in _quantity_cells(suite, arm, quantity)]
        rows.append((arm_label(arm), cells + _shared_cells(suite, arm, has_ceiling)))
    over = f"over {len(suite.seeds)} seeds" if len(suite.seeds) > 1 else "over the prompts measured"
    columns = {name for _, names in groups for name in names}
    key = [(term, meaning) for term, meaning in _KEY if term in columns]
    return SummaryTable(groups, rows, [("\u00b1", f"half of the 95 % interval, {over}"), *key])


def provenance(suite: MeasuredRuns) -> list[tuple[str, str]]:
    """What the runs were made with, as names and values: seeds, versions, data, command."""
    unknown = Environment()
    made = next((run.environment for run in suite.runs if run.environment != unknown), unknown)
    versions = [f"{name} {made.packages[name]}" for name in _KEY_PACKAGES if name in made.packages]
    fingerprints = sorted({str(run.bias.extra.data) for run in suite.runs if run.bias.extra.data})
    command = " ".join(_without_folders(word) for word in (made.command or "").split())
    facts = [
        ("Runs", ", ".join(shown(run.folder.name) for run in suite.runs)),
        ("Training seeds", ", ".join(map(str, suite.seeds))),
        ("Data fingerprint", ", ".join(fingerprints)),
        ("Command", shown(command, 400)),
        ("Versions", ", ".join(versions)),
        ("Python", f"{made.python}, {made.platform}".strip(", ")),
        ("Page written by", f"badpo {__version__}"),
    ]
    return [(name, value or "not recorded") for name, value in facts]


def settings(suite: MeasuredRuns) -> list[tuple[str, str]]:
    """The settings of the first trained run; of a path only its last part is shown, of annotators their number."""
    config = next((run.config for run in suite.runs if run.config and run.arm != REFERENCE), {})
    return [
        (shown(str(key)), shown(_without_folders(_without_names(value)), 200))
        for key, value in config.items()
    ]


def _facts(suite: MeasuredRuns) -> str:
    arms = [arm_label(arm) for arm in suite.arms if arm != REFERENCE]
    seeds = ", ".join(map(str, suite.seeds))
    parts = [
        ", ".join(arms) or "the reference alone",
        f"{len(suite.seeds)} seeds ({seeds})" if len(suite.seeds) > 1 else f"seed {seeds}" if seeds else "",
        f"attributes: {', '.join(attribute_labels(suite).values())}" if suite.attributes else "",
    ]
    return " \u00b7 ".join(part for part in parts if part)


def _quantity_cells(suite: MeasuredRuns, arm: str, quantity: Quantity) -> list[SummaryCell]:
    value = replace(_cell(estimate(suite, arm, quantity.read), quantity.number), starts_group=True)
    if arm == REFERENCE:
        return [value, SummaryCell(), SummaryCell()]
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    share = SummaryCell() if arm == DPO else _cell(found.share, percent)
    return [value, share, _cell(found.distance, quantity.difference)]


def _shared_cells(suite: MeasuredRuns, arm: str, has_ceiling: bool) -> list[SummaryCell]:
    if arm == REFERENCE:
        return [SummaryCell(starts_group=True), *[SummaryCell()] * (2 if has_ceiling else 1)]
    gaps = (estimate(suite, arm, gap(name)) for name in ("any", *suite.attributes))
    votes = [_cell(_worst_votes(suite, arm), lambda value: signed(value, 3))] if has_ceiling else []
    held_out = _cell(next(filter(None, gaps), None), lambda value: signed(value, 3))
    divergence = _cell(estimate(suite, arm, kl), lambda value: decimal(value, 3))
    return [replace(held_out, starts_group=True), *votes, divergence]


def _worst_votes(suite: MeasuredRuns, arm: str) -> Estimate | None:
    """Votes minus ceiling on the attribute where the arm falls furthest short."""
    found = [estimate(suite, arm, votes_minus_ceiling(name, "all")) for name in suite.attributes]
    return min((reading for reading in found if reading), key=lambda reading: reading.value, default=None)


def _cell(found: Estimate | None, number: Callable[[float], str]) -> SummaryCell:
    if found is None:
        return SummaryCell(decimal(None))
    half = found.interval.half_width
    return SummaryCell(number(found.value), number(half).lstrip("+") if math.isfinite(half) else "")


def _without_names(value: Any) -> Any:
    """A setting without the pseudonyms in it: gold annotators are counted."""
    if not isinstance(value, dict) or not value.get("gold_annotators"):
        return value
    return {**value, "gold_annotators": len(value["gold_annotators"])}


def _without_folders(value: Any) -> str:
    """A setting as text; of a path that names a place on a machine only the last part is left."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_without_folders(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_without_folders(inner) for inner in value)
    text = str(value)
    if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute() or text.startswith("~"):
        return PureWindowsPath(text).name
    return text


Summary = Mapping[str, Any]


@dataclass(frozen=True)
class SeedReading:
    """How a reading of a summary is named, what its levels are, and how its numbers are written."""

    title: str
    levels: tuple[str, ...]
    number: Callable[[float | None], str]
    note: str = ""


def _three(value: float | None) -> str:
    return decimal(value, 3)


def _signed_three(value: float | None) -> str:
    return signed(value, 3)


_OF_ARM = ("Arm", "Attribute")
READINGS: dict[str, SeedReading] = {
    "rates": SeedReading("Attribute rates", _OF_ARM, _three),
    "removed": SeedReading(
        "Share of DPO's shift removed",
        _OF_ARM,
        percent,
        "0 % is DPO, 100 % the reference; per seed, then averaged.",
    ),
    "log_odds_distance": SeedReading("Distance to the reference in log-odds", _OF_ARM, signed),
    "theta_correlation": SeedReading("Correlation of learned with planted theta", ("Attribute",), _three),
    "votes": SeedReading("Held-out votes predicted", (*_OF_ARM, "Annotators"), _three),
    "votes_minus_ceiling": SeedReading(
        "Votes predicted minus the planted ceiling",
        (*_OF_ARM, "Annotators"),
        _signed_three,
        "Paired: each seed against the ceiling of the same policy on the same votes.",
    ),
    "gap": SeedReading("Held-out gap, any attribute", ("Arm",), _signed_three),
    "kl": SeedReading("KL from the reference, nats per token", ("Arm",), lambda value: decimal(value, 4)),
}


def demo_table(summary: Summary) -> str:
    """The demo's figures in ten lines of plain text (with two attributes and four arms), from its ``summary.json``.

    For each arm its rates, the share of DPO's shift that it removed, its distance to the reference in log-odds, and
    KL; then the correlation of theta and the votes predicted.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for arm, rates in summary["rates"].items():
        row = rows[arm_label(arm)] = {}
        for name, rate in rates.items():
            share = summary.get("removed", {}).get(arm, {}).get(name)
            distance = summary.get("log_odds_distance", {}).get(arm, {}).get(name)
            row[shown(name, 20), "rate"] = f"{rate:.2f}"
            row[shown(name, 20), "removed"] = "" if share is None else f"{100 * share:.0f} %"
            row[shown(name, 20), "log-odds"] = "" if distance is None else f"{distance:+.2f}"
        divergence = summary.get("kl", {}).get(arm)
        row["", "KL/token"] = "" if divergence is None else f"{divergence:.4f}"
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.columns = pd.MultiIndex.from_tuples(
        frame.columns, names=[f"seed {summary['seed']}, {summary['seconds']:.0f} s", ""]
    )
    lines = [line.rstrip() for line in frame.to_string(col_space=8).splitlines()]
    known = {a: r for a, r in summary.get("theta_correlation", {}).items() if r is not None}
    if known:
        figures = ", ".join(f"{shown(attribute, 20)} r = {r:.2f}" for attribute, r in known.items())
        lines.append(f"learned against planted theta: {figures}")
    for attribute in summary["rates"][REFERENCE]:
        votes = {arm: by[attribute] for arm, by in summary.get("votes", {}).items() if attribute in by}
        if votes:
            figures = ", ".join(f"{arm_label(arm)} {by_class['all']:.3f}" for arm, by_class in votes.items())
            lines.append(f"votes, {shown(attribute, 20)}: {figures}")
    return "\n".join(
        [*lines, "removed: 0 % is DPO, 100 % the reference; log-odds: distance to the reference"]
    )


def seeds_markdown(summaries: Sequence[Summary]) -> str:
    """Every reading of one ``summary.json`` a seed as Markdown tables: mean, 95 % interval and each seed's value.

    A reading that a seed lacks is left out of the interval; the reference is one run and has none.
    """
    blocks = []
    for key, reading in READINGS.items():
        of_seeds = [dict(_leaves(summary.get(key, {}))) for summary in summaries]
        rows = []
        for labels in dict.fromkeys(labels for cells in of_seeds for labels in cells):
            values = [cells.get(labels, np.nan) for cells in of_seeds]
            known = [value for value in values if np.isfinite(value)]
            if known:
                runs = known[:1] if labels[0] == REFERENCE else known
                rows.append([*_named(labels, reading), *_over_seeds(runs, values, reading.number)])
        if rows:
            header = [*reading.levels, "Mean", "95 % interval", *(f"seed {s['seed']}" for s in summaries)]
            note = f"{reading.note}\n\n" if reading.note else ""
            table = pd.DataFrame(rows, columns=header).to_markdown(
                index=False,
                disable_numparse=True,
                colalign=["left"] * len(reading.levels) + ["right"] * (2 + len(summaries)),
            )
            blocks.append(f"### {reading.title}\n\n{note}{table}")
    return "\n\n".join(blocks) + "\n"


def _leaves(node: Any, labels: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """The numbers of nested mappings, by their keys."""
    if isinstance(node, Mapping):
        for name, inner in node.items():
            yield from _leaves(inner, (*labels, name))
    elif node is not None:
        yield labels, float(node)


def _named(labels: Sequence[str], reading: SeedReading) -> list[str]:
    shown_as = {"Arm": arm_label}
    return [
        markdown_text(shown_as.get(level, str)(label))
        for level, label in zip(reading.levels, labels, strict=True)
    ]


def _over_seeds(
    runs: Sequence[float], values: Sequence[float], number: Callable[[float | None], str]
) -> list[str]:
    interval = t_interval(runs)
    known = np.isfinite(interval.low)
    ends = f"{number(interval.low)} to {number(interval.high)}" if known else decimal(None)
    return [number(interval.estimate), ends, *map(number, values)]


def markdown_text(text: str) -> str:
    r"""A text from data as one cell of a Markdown table: no markup of its own, no new cell, no new line."""
    clean = shown(text, 80).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # an underscore inside a word is no markup
    return re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", clean)
