"""Figures of the bias term: theta over steps, and learned against planted theta."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from badpo.data.privacy import is_about_single_people
from badpo.results.charts import Level, PointGroup, Series, legend, line_chart, scatter
from badpo.results.figure_parts import Figure, TextTable, class_style, per_seed, style_of, thinned
from badpo.results.labels import DPO, REFERENCE, arm_label, decimal, shown
from badpo.results.readings import correlation, estimate, offline
from badpo.results.run_files import (
    MeasuredRuns,
    Planted,
    learned_annotators,
    learned_theta,
    read_planted,
)
from badpo.results.verdicts import attribute_labels

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
