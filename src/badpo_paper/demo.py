"""The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from badpo.data.files import write_json
from badpo.results.run_page import write_report
from badpo.results.words import REFERENCE, arm_label
from badpo.runs.run import Progress
from badpo.theory.summaries import share_removed
from badpo_paper.schedule import Reproduction, execute
from badpo_paper.settings import SCALES
from badpo_paper.suites import KL, RATES, Columns, Condition, Corpus, Panel, Row, Suite
from badpo_paper.tables import Found, panel_table, written_table

ARMS_SHOWN = ("dpo", "pooled", "shared_mean")
# The tables: title and columns.
TABLES = {
    "Rates, share of DPO's shift removed, and KL in nats per token": {**RATES, **KL},
    "Distance to the reference in log-odds, held-out gap, theta against the planted": {
        "log-odds, p(woman)": "distance:rates.woman.rate",
        "log-odds, p(black)": "distance:rates.black.rate",
        "gap": "heldout.any.gap",
        "correlation, woman": "theta.woman.correlation",
        "correlation, black": "theta.black.correlation",
    },
    "Held-out votes predicted, less those that planted theta predicts, by class": {
        f"{name}, {who}": f"votes_minus_ceiling.{name}.{who}.difference"
        for name in ("woman", "black")
        for who in ("all", "A", "B", "C")
    },
}


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    data_seed: int = 0,
) -> list[dict]:
    """Reference, DPO, pooled and shared-mean on a signed corpus; run folders, summaries and ``report.html``.

    Runs that stand in ``out`` already are not run again. ``model`` is a folder or Hub id; without it a small one is
    built from its configuration. ``data_seed`` is that of the votes that are drawn. There is a summary for each seed:
    of one seed in ``out/summary.json``, else in ``out/summary-s<seed>.json`` each.
    """
    started, scale = time.perf_counter(), SCALES["demo"]
    if model is not None:
        keys = {**scale.keys["demo"], "model_name_or_path": model}
        scale = replace(scale, name=f"demo on {model}", keys={"demo": keys}, shapes={})
    suite = Suite("demo", "The demo", (demo_panel("The demo", {}, data_seed),))
    execute(Reproduction([suite], scale, seeds, out), progress)
    found, summaries = Found(out, seeds), []
    for seed in seeds:
        readouts = {name: found.readouts(f"{name}-s{seed}") for name in ARMS_SHOWN}
        figures = summarize({REFERENCE: found.readouts(REFERENCE), **readouts})
        summary = {"seed": seed, "seconds": round(time.perf_counter() - started, 1), **figures}
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    write_report(out, out / "report.html")
    return summaries


def demo_panel(title: str, columns: Columns, data_seed: int = 0) -> Panel:
    """The demo's arms as a part of a table."""
    rows = tuple(Row(arm_label(name), Condition(name)) for name in ARMS_SHOWN)
    return Panel("demo", title, Corpus("signed", "demo", data_seed), rows, columns)


def summarize(readouts: Mapping[str, dict]) -> dict[str, Any]:
    """A seed's rates, the share of DPO's shift that each other arm removed, and how theta agrees with the planted one.

    Theta is that of the first arm that learns one for each annotator. What is not defined is None.
    """
    rates = {
        arm: {name: row["rate"] for name, row in of["rates"].items()} for arm, of in readouts.items()
    }
    removed = {
        arm: {name: _share(rates["dpo"][name], own, rates[REFERENCE][name]) for name, own in of.items()}
        for arm, of in rates.items()
        if arm not in (REFERENCE, "dpo")
    }
    correlations = (
        {name: readouts[arm]["theta"][name]["correlation"] for name in rates[arm]}
        for arm in rates
        if arm != REFERENCE
    )
    learned = (found for found in correlations if None not in found.values())
    unknown = dict.fromkeys(rates[REFERENCE])
    return {"rates": rates, "removed": removed, "theta_correlation": next(learned, unknown)}


def _share(dpo: float, own: float, reference: float) -> float | None:
    """The share of DPO's shift that is removed; None of no shift."""
    share = float(share_removed([dpo], [own], reference)[0])
    return share if math.isfinite(share) else None


def demo_tables(out: Path, seeds: Sequence[int], form: str) -> str:
    """The demo's figures in one of the formats of tables: over several seeds means with half of the 95 % interval."""
    found = Found(out, seeds)
    panels = (demo_panel(title, columns) for title, columns in TABLES.items())
    return "\n\n".join(written_table(panel_table(panel, found), form) for panel in panels)
