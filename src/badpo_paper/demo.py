"""The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from badpo.results.run_page import write_report
from badpo.runs.evaluate import kept_json
from badpo.runs.run import Progress
from badpo.theory.summaries import log_odds_distance, share_removed
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
    write_report(out, out / "report.html")
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
