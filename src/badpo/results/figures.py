"""The figures of a run page: which readings stand in which chart, with a caption and the numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from badpo.results.charts import (
    DotRow,
    Level,
    Mark,
    PointGroup,
    STYLES,
    Series,
    dot_plot,
    legend,
    line_chart,
    scatter,
)
from badpo.results.labels import DPO, REFERENCE, arm_label, decimal, shown, signed
from badpo.results.readings import (
    Estimate,
    Read,
    accuracy,
    correlation,
    estimate,
    gap,
    kl,
    rate,
    votes_minus_ceiling,
)
from badpo.results.run_files import Planted, Run, Suite, attribute_configs, learned_theta, read_planted
from badpo.results.verdicts import Quantity, quantities

MOST_POINTS = 300
_POINTS_PER_LINE, _ROWS_PER_LINE = 100, 10
_ARM_STYLES = {REFERENCE: 0, DPO: 1, "pooled": 2, "shared_mean": 3}
_FIRST_CLASS_STYLE = 4
CEILING = "planted ceiling"


@dataclass(frozen=True)
class Table:
    """Column names and rows of texts; the first cell of a row names it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """One figure: panels with their subtitles, a legend, a caption, and its numbers as a table."""

    title: str
    panels: tuple[tuple[str, Markup], ...]
    legend: Markup
    caption: str
    table: Table


def figures(suite: Suite) -> list[Figure]:
    """Every figure for which the runs hold the numbers, in the order of the page."""
    drawn = [
        *(_quantity_figures(suite)),
        _theta_figure(suite),
        _planted_figure(suite),
        _gap_figure(suite),
        _votes_figure(suite),
        _kl_figure(suite),
    ]
    return [figure for figure in drawn if figure is not None]


def style_of(suite: Suite, arm: str) -> int:
    """The chart style of an arm, the same in every figure."""
    if arm in _ARM_STYLES:
        return _ARM_STYLES[arm]
    others = [name for name in suite.arms if name not in _ARM_STYLES]
    return _FIRST_CLASS_STYLE + others.index(arm) % (STYLES - _FIRST_CLASS_STYLE)


def _quantity_figures(suite: Suite) -> list[Figure]:
    found = quantities(suite)
    rates = [quantity for quantity in found if quantity.is_rate]
    lengths = [quantity for quantity in found if not quantity.is_rate]
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
            + f"The dashed line is the reference. {_interval_note(suite)}"
        )
        drawn.append(_reading_figure(suite, "Attribute rates", rates, caption, limits=(0.0, 1.0)))
    if lengths:
        caption = f"Mean length of sampled answers, by arm. The dashed line is the reference. {_interval_note(suite)}"
        drawn.append(_reading_figure(suite, "Length of answers", lengths, caption, limits=None))
    return drawn


def _reading_figure(suite: Suite, title: str, found: Sequence[Quantity], caption: str, limits) -> Figure:
    panels, rows = [], []
    for quantity in found:
        reference = estimate(suite, REFERENCE, quantity.read)
        level = Level(reference.value, "reference") if reference else None
        label = f"{quantity.symbol} by arm"
        lanes = _lanes(suite, suite.arms, quantity.read)
        panels.append((quantity.symbol, dot_plot(lanes, label, quantity.symbol, level, limits, quantity.number)))
        rows += _reading_rows(suite, suite.arms, quantity.symbol, quantity.read, quantity.number)
    return Figure(title, tuple(panels), Markup(""), caption, Table(_READING_HEADER, tuple(rows)))


def _theta_figure(suite: Suite) -> Figure | None:
    planted = read_planted(suite)
    panels, rows, drawn = [], [], {}
    for attribute in suite.attributes:
        series = [line for arm in suite.arms if (line := _theta_line(suite, arm, attribute)) is not None]
        if not series:
            continue
        level = None
        if planted is not None and attribute in planted.attributes:
            level = Level(planted.theta[:, planted.attributes.index(attribute)].mean().item(), "planted mean")
        name = shown(attribute, 24)
        panels.append((name, line_chart(series, f"learned theta of {name} by step", "step", "log-odds", level)))
        drawn |= {line.name: line.style for line in series}
        for line in series:
            rows += [(name, line.name, decimal(x, 0), decimal(y, 3)) for x, y in _thinned(line.points, _ROWS_PER_LINE)]
    if not panels:
        return None
    over = "Mean over seeds of the" if len(suite.seeds) > 1 else "The"
    caption = (
        f"{over} learned bias term while training, as the mean over annotators. It starts at zero, takes up the lean "
        "of the votes, and is left out of the saved policy. The place where it ends is not identified by the votes: "
        "what theta does not take up, the policy learns."
    )
    if planted is not None:
        caption += " The dashed line is the mean that was planted."
    table = Table(("Attribute", "Arm", "Step", "Theta, mean over annotators"), tuple(rows))
    return Figure("Theta over steps", tuple(panels), legend(list(drawn.items()), lines=True), caption, table)


def _theta_line(suite: Suite, arm: str, attribute: str) -> Series | None:
    key = f"bias/theta/{attribute}"
    paths = [{step["step"]: step[key] for step in run.steps if key in step} for run in suite.of(arm)]
    paths = [path for path in paths if any(path.values())]
    if not paths:
        return None
    common = sorted(set.intersection(*(set(path) for path in paths)))
    points = [(float(step), float(np.mean([path[step] for path in paths]))) for step in common]
    return Series(arm_label(arm), style_of(suite, arm), tuple(_thinned(points, _POINTS_PER_LINE)))


def _planted_figure(suite: Suite) -> Figure | None:
    planted = read_planted(suite)
    if planted is None:
        return None
    panels, rows, correlations = [], [], []
    classes = sorted(set(planted.classes))
    styles = {name: _FIRST_CLASS_STYLE + i % (STYLES - _FIRST_CLASS_STYLE) for i, name in enumerate(classes)}
    for run in _identified_runs(suite):
        for attribute in planted.attributes:
            aligned = _aligned(run, planted, attribute)
            if aligned is None:
                continue
            r = float(np.corrcoef(aligned.truth, aligned.learned)[0, 1])
            name = f"{shown(attribute, 24)}, {arm_label(run.arm)}"
            groups = aligned.groups(styles)
            label = f"learned against planted theta of {name}: correlation {decimal(r)}"
            panels.append((name, scatter(groups, label, "planted theta", "learned theta", f"r = {decimal(r)}")))
            per_seed = _per_seed(estimate(suite, run.arm, correlation(attribute)))
            correlations.append(f"{name}: {per_seed or decimal(r)}")
            rows += [(f"{name}, class {g.name}", decimal(x), decimal(y)) for g in groups for x, y in g.points]
    if not panels:
        return None
    caption = (
        "Each point is one constructed annotator; the dashed line is equality. Points on a parallel of it have the "
        "right differences between annotators at another common level, which votes cannot tell apart. "
        f"Correlation over annotators: {'; '.join(correlations)}."
    )
    if len(suite.seeds) > 1:
        caption += f" The points are those of seed {min(suite.seeds)}."
    if len(planted.classes) > MOST_POINTS:
        caption += f" {MOST_POINTS} of {len(planted.classes):,} annotators are drawn, evenly spaced."
    table = Table(("Attribute, arm, class", "Planted", "Learned"), tuple(rows))
    entries = [(f"class {shown(name, 24)}", style) for name, style in styles.items()]
    return Figure("Learned against planted theta", tuple(panels), legend(entries), caption, table)


@dataclass(frozen=True)
class _Aligned:
    classes: np.ndarray
    truth: np.ndarray
    learned: np.ndarray

    def groups(self, styles: dict[str, int]) -> list[PointGroup]:
        chosen = np.unique(np.linspace(0, len(self.truth) - 1, min(MOST_POINTS, len(self.truth))).round().astype(int))
        return [
            PointGroup(
                shown(name, 24),
                style,
                tuple((float(self.truth[i]), float(self.learned[i])) for i in chosen if self.classes[i] == name),
            )
            for name, style in styles.items()
        ]


def _identified_runs(suite: Suite) -> list[Run]:
    """The first seed of each arm whose bias term has more than one value."""
    firsts = [suite.of(arm)[0] for arm in suite.arms if arm not in (REFERENCE, DPO)]
    return [run for run in firsts if (theta := learned_theta(run)) is not None and np.ptp(theta, axis=0).max() > 1e-9]


def _aligned(run: Run, planted: Planted, attribute: str) -> _Aligned | None:
    """Planted and learned theta of the annotators that both files name; None when there are fewer than three."""
    theta, names = learned_theta(run), list(run.bias.get("annotators", ()))
    declared = list(attribute_configs(run))
    if theta is None or attribute not in declared:
        return None
    row = {pseudonym: i for i, pseudonym in enumerate(names)}
    kept = [i for i, pseudonym in enumerate(planted.pseudonyms) if pseudonym in row]
    if len(kept) < 3:
        return None
    truth = planted.theta[kept, planted.attributes.index(attribute)]
    learned = theta[[row[planted.pseudonyms[i]] for i in kept], declared.index(attribute)]
    if np.ptp(truth) < 1e-9 or np.ptp(learned) < 1e-9:
        return None
    return _Aligned(np.array(planted.classes, dtype=object)[kept], truth, learned)


def _gap_figure(suite: Suite) -> Figure | None:
    measured = [a for a in (*suite.attributes, "any") if any(estimate(suite, arm, gap(a)) for arm in suite.arms)]
    if len(measured) == 2:
        measured.remove("any")  # with one attribute, any attribute is that one
    panels, rows = [], []
    everywhere = _common_limits([_lanes(suite, suite.arms, gap(name)) for name in measured])
    for name in measured:
        title = "any attribute" if name == "any" else shown(name, 24)
        lanes = _lanes(suite, suite.arms, gap(name))
        label = f"held-out gap on {title} by arm"
        level = Level(0.0, "no gap")
        panels.append((title, dot_plot(lanes, label, "cross minus same", level, everywhere, _three_signed)))
        rows += _reading_rows(suite, suite.arms, title, gap(name), _three_signed)
    if not panels:
        return None
    caption = (
        "Held-out gap, by arm: the policy\u2019s accuracy on judgments whose two responses differ on the attribute, "
        "minus its accuracy on those whose responses agree. A policy that learned the lean predicts the votes that "
        f"carry it better, and so has a larger gap. {_interval_note(suite)}"
    )
    return Figure("Held-out gap", tuple(panels), Markup(""), caption, Table(_READING_HEADER, tuple(rows)))


def _votes_figure(suite: Suite) -> Figure | None:
    panels, rows = [], []
    arms = [arm for arm in suite.arms if any("votes" in run.readouts for run in suite.of(arm))]
    tables = [run.readouts["votes"] for arm in arms for run in suite.of(arm)]
    charts = {}
    for attribute in suite.attributes:
        names = list(dict.fromkeys(name for table in tables for name in table.get(attribute, {})))
        lanes = [row for name in names if (row := _class_row(suite, arms, attribute, name)).marks]
        if lanes:
            charts[shown(attribute, 24)] = lanes
        rows += [row for name in names for arm in arms for row in _vote_rows(suite, arm, attribute, name)]
    everywhere = _common_limits(list(charts.values()))
    for name, lanes in charts.items():
        label = f"votes predicted on {name} by annotator class"
        panels.append((name, dot_plot(lanes, label, "share of votes predicted", Level(0.5, "coin"), everywhere)))
    if not panels:
        return None
    entries = [(arm_label(arm), style_of(suite, arm)) for arm in arms]
    has_ceiling = any("ceiling" in run.readouts for run in suite.runs)
    caption = "Held-out votes that the arm\u2019s own policy and theta predict together, overall and by annotator class, "
    caption += "on judgments whose responses differ on the attribute. "
    if has_ceiling:
        entries.insert(0, (CEILING, 0))
        caption += (
            "The planted ceiling puts the planted theta in the place of the learned one, as a mean over the arms; "
            "the table has each arm\u2019s difference from its own ceiling, vote by vote. "
        )
    header = ("Attribute, class, arm", "Predicted", "Own ceiling", "Difference", "95 % interval", "Each seed")
    table = Table(header, tuple(rows))
    return Figure("Votes predicted", tuple(panels), legend(entries), caption + _interval_note(suite), table)


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
            marks.append(_mark(found, f"{label}, {arm_label(arm)}", style_of(suite, arm)))
    return DotRow(label, tuple(marks))


def _vote_rows(suite: Suite, arm: str, attribute: str, annotator_class: str) -> list[tuple[str, ...]]:
    own, ceiling = (estimate(suite, arm, accuracy(k, attribute, annotator_class)) for k in ("votes", "ceiling"))
    apart = estimate(suite, arm, votes_minus_ceiling(attribute, annotator_class))
    if own is None:
        return []
    name = f"{shown(attribute, 24)}, {shown(annotator_class, 12)}, {arm_label(arm)}"
    return [
        (
            name,
            decimal(own.value, 3),
            decimal(ceiling.value, 3) if ceiling else decimal(None),
            _three_signed(apart.value) if apart else decimal(None),
            _ends(apart, _three_signed),
            _per_seed(apart, _three_signed),
        )
    ]


def _kl_figure(suite: Suite) -> Figure | None:
    lanes = _lanes(suite, suite.arms, kl)
    if not lanes:
        return None
    caption = (
        "Distance from the reference, by arm: Kullback\u2013Leibler divergence in nats per token on the arm\u2019s own "
        "sampled answers. The estimator is unbiased only for answers sampled at temperature 1, and it may fall below "
        f"zero. {_interval_note(suite)}"
    )
    chart = dot_plot(lanes, "KL divergence from the reference by arm", "nats per token", None, None, _three)
    rows = _reading_rows(suite, suite.arms, "KL per token", kl, lambda value: decimal(value, 4))
    return Figure("Distance from the reference", (("", chart),), Markup(""), caption, Table(_READING_HEADER, tuple(rows)))


# -- pieces ------------------------------------------------------------------------------------------------------

_READING_HEADER = ("Reading, arm", "Value", "95 % interval", "Each seed")


def _lanes(suite: Suite, arms: Sequence[str], read: Read) -> list[DotRow]:
    found = [(arm, estimate(suite, arm, read)) for arm in arms]
    return [
        DotRow(arm_label(arm), (_mark(reading, arm_label(arm), style_of(suite, arm)),)) for arm, reading in found if reading
    ]


def _mark(found: Estimate, name: str, style: int) -> Mark:
    repeats = found.values if len(found.values) > 1 else ()
    return Mark(found.value, name, style, found.interval.low, found.interval.high, repeats)


def _common_limits(charts: Sequence[Sequence[DotRow]]) -> tuple[float, float] | None:
    """One axis for charts that stand side by side."""
    marks = [mark for rows in charts for row in rows for mark in row.marks]
    values = [v for m in marks for v in (m.value, m.low, m.high) if v is not None and np.isfinite(v)]
    return (min(values), max(values)) if values else None


def _reading_rows(suite: Suite, arms: Sequence[str], name: str, read: Read, number) -> list[tuple[str, ...]]:
    found = [(arm, estimate(suite, arm, read)) for arm in arms]
    return [
        (f"{name}, {arm_label(arm)}", number(reading.value), _ends(reading, number), _per_seed(reading, number))
        for arm, reading in found
        if reading
    ]


def _ends(found: Estimate | None, number: Callable[[float], str]) -> str:
    if found is None or not np.isfinite(found.interval.low):
        return decimal(None)
    return f"{number(found.interval.low)} to {number(found.interval.high)}"


def _per_seed(found: Estimate | None, number: Callable[[float], str] = decimal) -> str:
    if found is None:
        return ""
    return ", ".join(f"{number(value)} (seed {seed})" for seed, value in zip(found.seeds, found.values, strict=True))


def _interval_note(suite: Suite) -> str:
    if len(suite.seeds) > 1:
        return (
            f"Mark: mean over {len(suite.seeds)} seeds; line: 95 % interval (Student\u2019s t over seeds; the "
            "reference, a single run, over prompts); ticks: each seed."
        )
    return "Line: 95 % interval over the prompts measured."


def _three(value: float) -> str:
    return decimal(value, 3)


def _three_signed(value: float) -> str:
    return signed(value, 3)


def _thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most ``most`` points of a line, evenly spaced, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(points) - 1, min(most, len(points))).round().astype(int))
    return [points[i] for i in chosen]
