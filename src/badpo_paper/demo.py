"""The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from badpo.results.charts import Figure, Series, TextTable, class_style, legend, point_cloud
from badpo.results.run_files import MeasuredRuns, read_suite
from badpo.results.run_page import report_html
from badpo.results.words import REFERENCE, arm_label, decimal, write_whole
from badpo.runs.run import Progress, kept_json
from badpo.theory.summaries import log_odds_distance, share_removed
from badpo.training.checkpoints import write_json
from badpo_paper.datasets import Dataset
from badpo_paper.schedule import Reproduction, execute
from badpo_paper.settings import SCALES, Scale
from badpo_paper.suites import BLACK, KL, RATES, WOMAN, Column, Condition, Corpus, Panel, Row, Suite
from badpo_paper.tables import Found, panel_table, written_table

ARMS_SHOWN = ("dpo", "pooled", "shared_mean")
# The tables over training seeds: title and columns.
OVER_SEEDS = {
    "Rates, share of DPO's shift removed, and KL in nats per token": (*RATES, KL),
    "Distance to the reference in log-odds, held-out gap, theta against the planted": (
        *(
            replace(c, label=f"log-odds, {c.label}", source=f"distance:{c.source}")
            for c in (WOMAN, BLACK)
        ),
        Column("gap", "heldout.any.gap"),
        Column("correlation, woman", "theta.woman.correlation"),
        Column("correlation, black", "theta.black.correlation"),
    ),
    "Held-out votes predicted, less those that planted theta predicts, by class": tuple(
        Column(f"{name}, {who}", f"votes_minus_ceiling.{name}.{who}.difference")
        for name in ("woman", "black")
        for who in ("all", "A", "B", "C")
    ),
}


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    data_seed: int = 0,
) -> list[dict]:
    """Reference, DPO, pooled and shared-mean on a signed corpus; run folders, summaries and ``report.html``.

    Parameters
    ----------
    out : Path
        Folder of the runs; runs that stand there already are not run again.
    seeds : sequence of int
        Training seeds.
    progress : function of (what is being done, share done of it)
    model : str or None
        Folder or Hub id of a causal language model; None builds a small one from its configuration.
    data_seed : int
        Of the votes that are drawn.

    Returns
    -------
    list of dict
        One summary per seed; with one seed it is ``out/summary.json``, else ``out/summary-s<seed>.json`` each.

    Raises
    ------
    ConfigError
        The model cannot be loaded, or ``out`` holds runs with other data or settings.
    DataError
        The model's tokenizer does not fit the model.
    """
    started = time.perf_counter()
    suite = Suite("demo", "The demo", (demo_panel("The demo", data_seed=data_seed),))
    execute(Reproduction([suite], demo_scale(model), seeds, out), progress)
    summaries = []
    for seed in seeds:
        folders = {REFERENCE: out / REFERENCE, **{name: out / f"{name}-s{seed}" for name in ARMS_SHOWN}}
        readouts = {name: kept_json(folder / "readouts.json") for name, folder in folders.items()}
        summary = summarize(readouts, seed, time.perf_counter() - started)
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    measured = read_suite(out)
    beside = learned_against_planted(measured)
    write_whole(report_html(measured, [beside] if beside else []), out / "report.html")
    return summaries


def demo_panel(title: str, columns: tuple[Column, ...] = (), data_seed: int = 0) -> Panel:
    """The demo's arms as a part of a table."""
    rows = tuple(Row(arm_label(name), Condition(name)) for name in ARMS_SHOWN)
    return Panel("demo", title, Corpus("signed", "demo", data_seed), rows, columns)


def demo_scale(model: str | None) -> Scale:
    """The scale of the demo, with a user's own model where there is one."""
    scale = SCALES["demo"]
    if model is None:
        return scale
    return replace(scale, name=f"demo on {model}", keys=partial(_keys_of, model), made=None)


def _keys_of(model: str, corpus: Corpus, dataset: Dataset) -> dict[str, Any]:
    return {**SCALES["demo"].keys(corpus, dataset), "model_name_or_path": model}


# -- the figures of a seed --------------------------------------------------------------------------------------------


def summarize(readouts: Mapping[str, dict], seed: int, seconds: float) -> dict:
    """One seed's figures over all arms: what ``summary.json`` holds."""
    arms = [name for name in readouts if name != REFERENCE]
    rates = {name: {a: found["rate"] for a, found in r["rates"].items()} for name, r in readouts.items()}
    attributes = list(rates[REFERENCE])
    correlations = [{a: readouts[name]["theta"][a]["correlation"] for a in attributes} for name in arms]

    def removed(name: str, a: str) -> float:
        return float(share_removed([rates["dpo"][a]], [rates[name][a]], rates[REFERENCE][a])[0])

    def distance(name: str, a: str) -> float:
        return float(log_odds_distance(rates[name][a], rates[REFERENCE][a]))

    def of_each(names: Sequence[str], read: Callable[[str, str], float]) -> dict:
        return {name: {a: _finite(read(name, a)) for a in attributes} for name in names}

    adjusted = [name for name in arms if name != "dpo"]
    minus_ceiling = {name: readouts[name].get("votes_minus_ceiling", {}) for name in adjusted}
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "rates": rates,
        "removed": of_each(adjusted, removed),
        "log_odds_distance": of_each(arms, distance),
        # of the first arm that learns a theta for each annotator
        "theta_correlation": next(
            (found for found in correlations if None not in found.values()), dict.fromkeys(attributes)
        ),
        "votes": {
            "ceiling": _mean_accuracy([readouts[name]["ceiling"] for name in arms]),
            **{name: _mean_accuracy([readouts[name]["votes"]]) for name in arms},
        },
        "votes_minus_ceiling": {
            name: {a: {c: cell["difference"] for c, cell in row.items()} for a, row in found.items()}
            for name, found in minus_ceiling.items()
        },
        "gap": {name: readouts[name]["heldout"]["any"]["gap"] for name in arms},
        "signed": {name: r["sampled"]["signed"] for name, r in readouts.items()},
        "kl": {name: readouts[name]["kl"]["per_token"] for name in arms},
    }


def _finite(value: float) -> float | None:
    """None for what is not defined: a share of no shift, or the log-odds of a rate of 0 or 1."""
    return value if np.isfinite(value) else None


def _mean_accuracy(tables: list[dict]) -> dict:
    return {
        a: {c: _mean([table[a][c]["accuracy"] for table in tables]) for c in row}
        for a, row in tables[0].items()
    }


def _mean(values: list[float | None]) -> float | None:
    """None where a value is not known: a class without a held-out vote has no accuracy."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def demo_table(summary: Mapping[str, Any]) -> str:
    """The demo's figures in ten lines of plain text (with two attributes and four arms), from its ``summary.json``.

    For each arm its rates, the share of DPO's shift that it removed, its distance to the reference in log-odds, and
    KL; then the correlation of theta and the votes predicted.
    """
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for arm, rates in summary["rates"].items():
        row = rows[arm_label(arm)] = {}
        for name, rate in rates.items():
            share = summary["removed"].get(arm, {}).get(name)
            distance = summary["log_odds_distance"].get(arm, {}).get(name)
            row[name, "rate"] = f"{rate:.2f}"
            row[name, "removed"] = "" if share is None else f"{100 * share:.0f} %"
            row[name, "log-odds"] = "" if distance is None else f"{distance:+.2f}"
        divergence = summary["kl"].get(arm)
        row["", "KL/token"] = "" if divergence is None else f"{divergence:.4f}"
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.columns = pd.MultiIndex.from_tuples(
        frame.columns, names=[f"seed {summary['seed']}, {summary['seconds']:.0f} s", ""]
    )
    lines = [line.rstrip() for line in frame.to_string(col_space=8).splitlines()]
    known = {a: r for a, r in summary["theta_correlation"].items() if r is not None}
    if known:
        figures = ", ".join(f"{attribute} r = {r:.2f}" for attribute, r in known.items())
        lines.append(f"learned against planted theta: {figures}")
    for attribute in summary["rates"][REFERENCE]:
        votes = {arm: by[attribute] for arm, by in summary["votes"].items()}
        figures = ", ".join(f"{arm_label(arm)} {by_class['all']:.3f}" for arm, by_class in votes.items())
        lines.append(f"votes, {attribute}: {figures}")
    return "\n".join(
        [*lines, "removed: 0 % is DPO, 100 % the reference; log-odds: distance to the reference"]
    )


def seeds_markdown(out: Path, seeds: Sequence[int]) -> str:
    """The demo's figures over training seeds as Markdown tables: means with half of the 95 % interval."""
    found = Found(out, seeds)
    panels = (demo_panel(title, columns) for title, columns in OVER_SEEDS.items())
    return "\n\n".join(written_table(panel_table(panel, found), "markdown") for panel in panels) + "\n"


# -- the figure -------------------------------------------------------------------------------------------------------


def learned_against_planted(suite: MeasuredRuns) -> Figure | None:
    """Each constructed annotator's learned theta against the planted one; None where no arm learned one for each."""
    panels, rows, told, groups = [], [], [], {}
    for title, people in _learned_and_planted(suite):
        r = people["planted"].corr(people["learned"])
        told.append(f"{title} r = {decimal(r)}")
        by_class = dict(iter(people.groupby("class")))
        groups = {name: class_style(i) for i, name in enumerate(by_class)}
        series = [
            Series(f"class {name}", groups[name], part[["planted", "learned"]].to_numpy().tolist())
            for name, part in by_class.items()
        ]
        label = f"learned against planted theta of {title}: correlation {decimal(r)}"
        low, high = (float(people[["planted", "learned"]].agg(end).agg(end)) for end in ("min", "max"))
        axes = ("planted theta", "learned theta", (low, high), (low, high))
        equality = [Series("equality", 4, [(low, low), (high, high)])]
        panels.append((title, point_cloud(series, label, *axes, equality)))
        for name, part in by_class.items():
            means = (decimal(part[column].mean()) for column in ("planted", "learned"))
            rows.append((f"{title}, class {name}", f"{len(part):,}", *means))
    caption = (
        "Each point is one constructed annotator; the dashed line is equality. Points on a parallel of it have the "
        "right differences between annotators at another common level, which votes cannot tell apart. "
        f"Correlation over annotators at seed {min(suite.seeds, default=0)}: {'; '.join(told)}."
    )
    table = TextTable(("Attribute, arm, class", "Annotators", "Mean planted", "Mean learned"), rows)
    marks = legend((f"class {name}", style) for name, style in groups.items())
    return Figure("Learned against planted theta", panels, caption, table, marks) if panels else None


def _learned_and_planted(suite: MeasuredRuns) -> Iterator[tuple[str, pd.DataFrame]]:
    """Of each arm's first seed, attribute by attribute: every annotator's class, planted and learned theta."""
    for run in (suite.of(arm)[0] for arm in suite.arms if arm != REFERENCE):
        theta = run.theta()
        if theta is None:  # the types of EM-DPO have no bias term
            continue
        learned = pd.DataFrame(theta, run.bias.annotators, run.bias.attributes)
        planted = json.loads((run.folder / "planted.json").read_text())
        people = pd.DataFrame(planted["annotators"]).set_index("pseudonym")
        truth = pd.DataFrame(people["theta"].tolist(), people.index, planted["attributes"])
        for attribute in truth.columns.intersection(learned.columns):
            columns = {"class": people["annotator_class"], "planted": truth[attribute]}
            both = pd.DataFrame({**columns, "learned": learned[attribute]}).dropna()
            if both["learned"].std() > 1e-9:  # a pooled theta is the same for all
                yield f"{suite.labels[attribute]}, {arm_label(run.arm)}", both
