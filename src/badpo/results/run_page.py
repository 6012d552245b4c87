"""Write the report page about trained runs: findings, a table, charts, limits and provenance."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from badpo import __version__
from badpo.data.files import write_atomically
from badpo.data.privacy import is_about_single_people
from badpo.results.bias_check import (
    LITTLE_KL,
    BiasCheck,
    bias_findings,
    bias_verdicts,
    check_bias,
    tilt_table,
    train_more_command,
)
from badpo.results.charts import (
    DotPanel,
    DotRow,
    Figure,
    Level,
    Limits,
    Mark,
    class_style,
    dot_figure,
)
from badpo.results.formatting import (
    DASH,
    DPO,
    PLACEBO,
    REFERENCE,
    decimal,
    interval_text,
    page,
    percent,
    sentence,
    shown,
    signed,
)
from badpo.results.run_files import Estimate, MeasuredRuns, RunEnvironment, read_suite
from badpo.results.run_findings import anchor_of_run, anchor_sentences, quantities, quantity_findings

TILT_TITLE, RATES_TITLE, AMOUNTS_TITLE = _OPENING = (
    "Tilt of each policy",
    "Attribute rates",
    "Length and amounts",
)
_ARM_STYLES = {REFERENCE: 0, DPO: 1, "pooled": 2, "shared_mean": 3, PLACEBO: 8}
_sentence = partial(sentence, "run_sentences.jinja")
_three, _signed_three = partial(decimal, places=3), partial(signed, places=3)


def write_report(sources: MeasuredRuns | Path | Sequence[Path], page: Path, texts: bool = True) -> Path:
    """Write an HTML page about the runs in the given folders, and return the path of the page.

    The page needs neither a network nor a script, supports light and dark mode, and can be printed. It names no
    annotator. If ``texts`` is true, the page shows prompts and answers. The function raises `ConfigError` if it finds
    no measured run or cannot read a file of a run.
    """
    suite = sources if isinstance(sources, MeasuredRuns) else read_suite(sources)
    write_atomically(page, report_html(suite, texts).encode())
    return page


def report_html(suite: MeasuredRuns, texts: bool = True) -> str:
    """Return the page about measured runs as HTML text."""
    drawn, checks = figures(suite), check_bias(suite)
    first = [suite.of(arm)[0] for arm in suite.arms]
    groups, rows = summary_table(suite)
    return page(
        "page",
        name=shown(suite.name),
        arms=[suite.of(arm)[0].title for arm in suite.arms if arm != REFERENCE],
        seeds=suite.seeds,
        labels=[*suite.labels.values()],
        tilts=[(check, tilt_table(suite, check)) for check in checks],
        verdicts=bias_verdicts(suite),
        findings=[*bias_findings(suite), *quantity_findings(suite)],
        anchors=anchor_sentences(suite),
        groups=groups,
        rows=rows,
        opening=[f for f in drawn if f.title in _OPENING],
        figures=[f for f in drawn if f.title not in _OPENING],
        answers=suite.answers() if texts else [],
        notices=page_notices(suite),
        gold_arms=[run.title for run in first if anchor_of_run(run) == "gold"],
        is_planted=suite.is_planted,
        has_placebo=PLACEBO in suite.arms,
        unmeasured=[*map(shown, suite.unmeasured)],
        provenance=provenance(suite),
        version=__version__,
    )


def page_notices(suite: MeasuredRuns) -> list[str]:
    """Return a sentence about each missing item (held-out votes, reference, DPO policy) and what to do about it."""
    sentences = []
    run = next((run for run in suite.runs if run.arm != REFERENCE), None)
    if run and run.config.get("held_out_name", "") == run.config.get("dataset_name"):
        sentences.append(_sentence("no_held_out"))
    if run and REFERENCE not in suite.arms:
        measure = f"badpo evaluate {shlex.quote(str(run.shown_folder))}"
        sentences.append(_sentence("no_reference", command=measure))
    if run and DPO not in suite.arms:
        kl = suite.estimate(run.arm, "kl")
        more = train_more_command(run, kl.value) if kl and kl.value < LITTLE_KL else ""
        command, parent = suite.compare_command(), shlex.quote(str(run.shown_folder.parent))
        sentences.append(_sentence("no_dpo", command=command, folder=parent, kl=kl, more=more))
    return sentences


# -- the table ---------------------------------------------------------------------------------------------------

PAPERS_SHARE = "removed (paper)"
# A table cell: a value and its 95 % confidence interval, both as strings. A missing part is an empty string.
Cell = tuple[str, str]
_NOTHING: Cell = ("", "")
Columns = list[tuple[str, tuple[str, ...]]]  # name of each group of columns, and names of its columns


def summary_table(suite: MeasuredRuns) -> tuple[Columns, list[tuple[str, list[list[Cell]]]]]:
    """Return the column groups of the table and the cells of every arm; a dash means that a value was not measured."""
    found = quantities(suite)
    rate = ("rate", "distance in log-odds", PAPERS_SHARE)
    mean = ("mean", "distance", PAPERS_SHARE)
    groups = [(_with_n(suite, q.symbol, *q.place), rate if q.is_rate else mean) for q in found]
    gaps = [("heldout", name) for name in ("any", *suite.labels)]
    measured_gaps = (place for place in gaps if any(suite.estimate(arm, *place) for arm in suite.arms))
    of_gap = next(measured_gaps, gaps[0])
    rows = []
    for arm in suite.arms:
        cells = []
        for q in found:
            removal = suite.removal(arm, q.is_rate, *q.place)
            value = _cell(suite.estimate(arm, *q.place), q.number)
            share = _NOTHING if arm in (DPO, PLACEBO) else _cell(removal.share, percent)
            cells.append([value, _cell(removal.distance, q.difference), share])
        gap, kl = suite.estimate(arm, *of_gap), suite.estimate(arm, "kl")
        cells.append([_cell(gap, _signed_three), _cell(kl, _three)])
        if arm == REFERENCE:
            cells = [[*row[:-2], _NOTHING, _NOTHING] for row in cells]
        rows.append((suite.name_of(arm), cells))
    last = _with_n(suite, "gap", *of_gap), _with_n(suite, "KL", "kl")
    return [*groups, ("all attributes", last)], rows


def arms_side_by_side(suite: MeasuredRuns) -> list[list[str]]:
    """Return the results of all arms as rows of a terminal table; empty if no rate was measured."""
    groups, rows = summary_table(suite)
    if len(groups) == 1:
        return []
    header = ["95 % CI in brackets", *(name for name, _ in groups[:-1])]
    cells_of_arms = (
        [(value, ends and f"({ends})") for (value, ends), *_ in cells[:-1]] for _, cells in rows
    )
    return [
        header,
        *([arm, *map(" ".join, each)] for (arm, _), each in zip(rows, cells_of_arms, strict=True)),
    ]


def _cell(found: Estimate | None, number: Callable[[float], str]) -> Cell:
    if found is None:
        return decimal(None), ""
    ends = interval_text(found.interval.low, found.interval.high, number)
    return number(found.value), "" if ends == DASH else ends


# -- provenance --------------------------------------------------------------------------------------------------


def provenance(suite: MeasuredRuns) -> list[tuple[str, str]]:
    """Return facts about the origin of the runs (such as seeds, data and package versions) as names and values."""
    unknown, runs = RunEnvironment(), suite.runs
    made = next((run.environment for run in runs if run.environment != unknown), unknown)
    facts = {
        "Runs": [run.folder.name for run in runs],
        "Training seeds": map(str, suite.seeds),
        "Data fingerprint": sorted({str(data) for run in runs if (data := run.bias.extra.data)}),
        "Versions": [f"{name} {version}" for name, version in made.packages.items()],
        "Python": [f"{made.python}, {made.platform}".strip(", ")],
    }
    texts = {name: shown(", ".join(values), 2000) for name, values in facts.items()}
    return [(name, text or "not recorded") for name, text in texts.items()]


# -- figures -----------------------------------------------------------------------------------------------------


def figures(suite: MeasuredRuns) -> list[Figure]:
    """Return all figures for which the runs have data, in the order of the page."""
    drawn = [_tilt_figure(suite), *(_quantity_figure(suite, is_rate) for is_rate in (True, False))]
    for draw in (theta_figure, _gap_figure, _votes_figure):
        drawn.append(draw(suite))
    return [figure for figure in drawn if figure]


def style_of(suite: MeasuredRuns, arm: str) -> int:
    """Return an arm's chart style, which is the same in every figure."""
    others = [name for name in suite.arms if name not in _ARM_STYLES]
    return _ARM_STYLES[arm] if arm in _ARM_STYLES else class_style(others.index(arm))


def _arm_panel(
    suite: MeasuredRuns,
    title: str,
    axis: str,
    level: Level | None,
    place: Sequence[str],
    arms: Iterable[str] | None = None,
    limits: Limits | None = None,
    number: Callable[[float], str] = decimal,
) -> DotPanel:
    """Return a chart panel with a row for every measured arm and a tick for every seed."""
    rows = [
        _arm_row(suite, arm, found, suite.count(*place, arm=arm))
        for arm in (suite.arms if arms is None else arms)
        if (found := suite.estimate(arm, *place))
    ]
    axis = _with_n(suite, axis, *place)
    return DotPanel(title, rows, f"{title} by arm", axis, level, limits, number)


def _arm_row(suite: MeasuredRuns, arm: str, found: Estimate, n: str) -> DotRow:
    ends, name = (found.interval.low, found.interval.high), suite.name_of(arm)
    several = found.values if len(found.values) > 1 else ()
    return DotRow(name, (Mark(found.value, name, style_of(suite, arm), *ends, several, n),))


def _level(suite: MeasuredRuns, name: str, *place: str, arms: Sequence[str] = ()) -> Level | None:
    """Return the reference line of a chart panel: the mean of a metric over arms."""
    each = (suite.estimate(arm, *place) for arm in arms or suite.arms)
    known = [found.value for found in each if found]
    return Level(float(np.mean(known)), name) if known else None


def _with_n(suite: MeasuredRuns, what: str, *place: str) -> str:
    n = suite.count(*place)
    return f"{what} (n = {n})" if n else what


def _on_one_axis(panels: Sequence[DotPanel]) -> list[DotPanel]:
    values = [value for panel in panels for value in panel.extent()]
    values += [panel.level.value for panel in panels if panel.level and values]
    limits = (min(values), max(values)) if values else None
    return [replace(panel, limits=limits) for panel in panels]


def _interval_note(suite: MeasuredRuns) -> str:
    if len(suite.seeds) <= 1:
        return "Each line is a 95 % confidence interval over the measured prompts."
    return (
        f"Each mark is the mean over {len(suite.seeds)} seeds, and each tick is one seed "
        f"({', '.join(map(str, suite.seeds))}). Lines are 95 % confidence intervals over seeds (Student\u2019s t), or "
        "over prompts for the reference, which is a single run."
    )


def _tilt_figure(suite: MeasuredRuns) -> Figure | None:
    panels = [_tilt_panel(suite, check) for check in check_bias(suite)]
    return dot_figure(TILT_TITLE, panels, _interval_note(suite))


def _tilt_panel(suite: MeasuredRuns, check: BiasCheck) -> DotPanel:
    """Return a chart panel with the tilt of every trained arm; the dashed line is the tilt of the target."""
    is_tilt, target = check.kind == "tilt", check.tilts.get(check.target)
    rows = [
        _arm_row(suite, arm, found, suite.count("tilt", check.name, arm=arm) if is_tilt else "")
        for arm, found in check.tilts.items()
    ]
    level = Level(target.value if target else 0.0, check.target_label)
    n = suite.count("tilt", check.name)
    axis = f"log-odds (n = {n} prompts)" if n and is_tilt else "log-odds"
    return DotPanel(check.title, rows, f"{check.title} by arm", axis, level, number=check.number)


def _quantity_figure(suite: MeasuredRuns, is_rate: bool) -> Figure | None:
    panels, limits = [], (0.0, 1.0) if is_rate else None
    for q in quantities(suite):
        if q.is_rate == is_rate:
            level = _level(suite, "reference", *q.place, arms=[REFERENCE])
            what = q.symbol, q.symbol, level, q.place
            panels.append(_arm_panel(suite, *what, limits=limits, number=q.number))
    if not is_rate:
        return dot_figure(AMOUNTS_TITLE, panels, _interval_note(suite))
    how_read = "The rate of an attribute is its share among sampled answers."
    if any(run.readouts.rates for run in suite.runs):
        how_read = (
            "The rate of an attribute is computed from the policy\u2019s probabilities at the position that decides "
            "the attribute. Every arm reads the same answer of the reference before this position. Rates in sampled "
            "answers saturate earlier."
        )
    caption = f"{how_read} The dashed line is the rate of the reference. {_interval_note(suite)}"
    return dot_figure(RATES_TITLE, panels, caption)


def _gap_figure(suite: MeasuredRuns) -> Figure | None:
    panels = []
    for name, title in {**suite.labels, "any": "any attribute"}.items():
        what = title, "cross minus same", Level(0.0, "no gap"), ("heldout", name)
        panels.append(_arm_panel(suite, *what, number=_signed_three))
    if sum(len(panel.rows) > 0 for panel in panels[:-1]) == 1:
        panels.pop()  # with only one attribute, the panel for any attribute would be the same
    return dot_figure("Held-out gap", _on_one_axis(panels), _interval_note(suite))


def _votes_figure(suite: MeasuredRuns) -> Figure | None:
    panels = []
    for name, title in suite.labels.items():
        level = _level(suite, "planted ceiling", "ceiling", name, "all") or Level(0.5, "chance")
        what = title, "share of votes predicted", level, ("votes", name, "all")
        panels.append(_arm_panel(suite, *what, number=_three))
    ceiling = "The planted ceiling uses the planted theta instead of the learned theta and is a mean over all arms. "
    note = ceiling * suite.is_planted + _interval_note(suite)
    return dot_figure("Votes predicted", _on_one_axis(panels), note)


def theta_figure(suite: MeasuredRuns) -> Figure | None:
    """Chart each arm's learned theta, averaged over annotators; None if no arm has five or more annotators."""
    panels, runs = [], [run for run in suite.runs if run.bias.parts]
    arms = dict.fromkeys(r.arm for r in runs if not is_about_single_people(r.learned_annotators))
    for name, title in suite.labels.items():
        planted = _level(suite, "planted mean", "theta", name, "planted_level")
        level = planted or _level(suite, "log-odds of the votes", "theta", name, "offline")
        what = title, "mean theta, log-odds", level, ("theta", name, "level")
        panel = _arm_panel(suite, *what, arms=arms)
        shown_values = [0.0, *panel.extent(), *([level.value] if level else [])]
        panels.append(replace(panel, limits=(min(shown_values), max(shown_values))))
    note = _interval_note(suite) if len(suite.seeds) > 1 else ""
    return dot_figure("Theta", panels, note)
