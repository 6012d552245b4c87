"""The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from badpo.objective.bias import BiasTerm
from badpo.results.charts import Figure, Series, TextTable, class_style, legend, point_cloud
from badpo.results.run_files import MeasuredRuns, read_suite
from badpo.results.run_page import report_html
from badpo.results.words import (
    REFERENCE,
    arm_label,
    decimal,
    markdown_text,
    percent,
    shown,
    signed,
    write_whole,
)
from badpo.runs.run import Progress, kept_json
from badpo.theory.summaries import log_odds_distance, share_removed, t_interval
from badpo.training.checkpoints import write_json
from badpo_paper.materials import Material
from badpo_paper.schedule import execute, planned_runs
from badpo_paper.settings import SCALES, Scale
from badpo_paper.suites import Condition, Corpus, Panel, Row, Suite

ARMS_SHOWN = ("dpo", "pooled", "shared_mean")


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    pairs: Path | None = None,
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
    pairs : Path or None
        Scored pairs (``prompt``, ``chosen``, ``rejected``, ``score_chosen``, ``score_rejected``) as CSV, parquet or
        JSONL; None is the bundled corpus.
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
        The pairs cannot be used, or the model's tokenizer does not fit the model.
    """
    started = time.perf_counter()
    rows = tuple(Row(name, Condition(name, name)) for name in ARMS_SHOWN)
    panel = Panel("demo", "The demo", Corpus("signed", "demo", data_seed), rows, ())
    scale = demo_scale(model)
    runs = planned_runs([Suite("demo", "The demo", (panel,))], scale, seeds)
    execute(runs, scale, out, pairs, 1, progress)
    summaries = []
    for seed in seeds:
        folders = {"reference": out / "reference", **{name: out / f"{name}-s{seed}" for name in ARMS_SHOWN}}
        readouts = {name: kept_json(folder / "readouts.json") for name, folder in folders.items()}
        summary = summarize(readouts, seed, time.perf_counter() - started)
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    suite = read_suite(out)
    beside = learned_against_planted(suite)
    write_whole(report_html(suite, [beside] if beside else []), out / "report.html")
    return summaries


def demo_scale(model: str | None) -> Scale:
    """The scale of the demo, with a user's own model where there is one."""
    scale = SCALES["demo"]
    if model is None:
        return scale
    return replace(scale, name=f"demo on {model}", keys=partial(_keys_of, model), made=None)


def _keys_of(model: str, corpus: Corpus, material: Material) -> dict[str, Any]:
    return {**SCALES["demo"].keys(corpus, material), "model_name_or_path": model}


def summarize(readouts: Mapping[str, dict], seed: int, seconds: float) -> dict:
    """One seed's figures over all arms: what ``summary.json`` holds."""
    arms = [name for name in readouts if name != "reference"]
    rates = {name: {a: found["rate"] for a, found in r["rates"].items()} for name, r in readouts.items()}
    attributes = list(rates["reference"])
    adjusted = [name for name in arms if name != "dpo"]
    identified = next(
        (n for n in arms if all(v["correlation"] is not None for v in readouts[n]["theta"].values())), None
    )
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "rates": rates,
        "removed": {
            name: {
                a: _finite(share_removed([rates["dpo"][a]], [rates[name][a]], rates["reference"][a])[0])
                for a in attributes
            }
            for name in adjusted
        },
        "log_odds_distance": {
            name: {a: _finite(log_odds_distance(rates[name][a], rates["reference"][a])) for a in attributes}
            for name in arms
        },
        "theta_correlation": {
            a: readouts[identified]["theta"][a]["correlation"] if identified else None for a in attributes
        },
        "votes": {
            "ceiling": _mean_accuracy([readouts[name]["ceiling"] for name in arms]),
            **{name: _mean_accuracy([readouts[name]["votes"]]) for name in arms},
        },
        "votes_minus_ceiling": {
            name: {
                a: {c: cell["difference"] for c, cell in row.items()}
                for a, row in readouts[name]["votes_minus_ceiling"].items()
            }
            for name in adjusted
        },
        "gap": {name: readouts[name]["heldout"]["any"]["gap"] for name in arms},
        "signed": {name: r["sampled"]["signed"] for name, r in readouts.items()},
        "kl": {name: readouts[name]["kl"]["per_token"] for name in arms},
    }


def _finite(value) -> float | None:
    """None for what is not defined: a share of no shift, or the log-odds of a rate of 0 or 1."""
    return float(value) if np.isfinite(value) else None


def _mean_accuracy(tables: list[dict]) -> dict:
    return {
        a: {c: _mean([table[a][c]["accuracy"] for table in tables]) for c in row}
        for a, row in tables[0].items()
    }


def _mean(values: list[float | None]) -> float | None:
    """None where a value is not known: a class without a held-out vote has no accuracy."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


# -- the tables --------------------------------------------------------------------------------------------------

Summary = Mapping[str, Any]
_three, _signed_three = partial(decimal, places=3), partial(signed, places=3)


@dataclass(frozen=True)
class SeedReading:
    """How a reading of a summary is named, what its levels are, and how its numbers are written."""

    title: str
    levels: tuple[str, ...]
    number: Callable[[float | None], str]
    note: str = ""


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
    "kl": SeedReading("KL from the reference, nats per token", ("Arm",), partial(decimal, places=4)),
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


# -- the figure --------------------------------------------------------------------------------------------------


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
        planted, bias = json.loads((run.folder / "planted.json").read_text()), BiasTerm.load(run.folder)
        learned = pd.DataFrame(bias.theta().detach().numpy(), list(bias.annotators), list(bias.attributes))
        people = pd.DataFrame(planted["annotators"]).set_index("pseudonym")
        truth = pd.DataFrame(people["theta"].tolist(), people.index, planted["attributes"])
        for attribute in truth.columns.intersection(learned.columns):
            columns = {"class": people["annotator_class"], "planted": truth[attribute]}
            both = pd.DataFrame({**columns, "learned": learned[attribute]}).dropna()
            if both["learned"].std() > 1e-9:  # a pooled theta is the same for all
                yield f"{suite.labels[attribute]}, {arm_label(run.arm)}", both
