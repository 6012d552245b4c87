"""The suite `names` with three arms at a scale of minutes: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from badpo.data.problems import DataError, Problem
from badpo.readouts.names import ask_to_sign
from badpo.results.run_page import write_report
from badpo.runs.evaluate import kept_json
from badpo.runs.run import Progress
from badpo.theory.summaries import log_odds_distance, share_removed
from badpo.training.checkpoints import write_json
from badpo_paper.corpora import bundled, signed
from badpo_paper.corpora.files import read_scored_pairs
from badpo_paper.materials import Material, tokenizer_texts
from badpo_paper.schedule import execute, planned_runs
from badpo_paper.settings import N_PAIRS, SCALES, TINY, TINY_HELD_OUT, Scale
from badpo_paper.suites import Condition, Corpus, Panel, Row, Suite

logger = logging.getLogger(__name__)

ARMS_SHOWN = ("dpo", "pooled", "shared_mean")
# Prompts of a user's own pairs that are kept for the signing readout.
N_SIGNING_PROMPTS = 300
FEWEST_PROMPTS = 20
CORPUS = Corpus("signed", "demo")


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    pairs: Path | None = None,
    keys: Mapping[str, Any] | None = None,
    config: signed.SignedConfig | None = None,
    arms: Sequence[str] = ARMS_SHOWN,
) -> list[dict]:
    """Reference, DPO, pooled and shared-mean on a signed corpus; run folders, summaries and ``report.html``.

    Parameters
    ----------
    out : Path
        Folder of the runs; runs that stand there already are not run again.
    seeds : sequence of int
        Training seeds. The data seed is 0 throughout, as in the paper.
    progress : function of (what is being done, share done of it)
    model : str or None
        Folder or Hub id of a causal language model; None builds a small one from its configuration.
    pairs : Path or None
        Scored pairs (``prompt``, ``chosen``, ``rejected``, ``score_chosen``, ``score_rejected``) as CSV, parquet or
        JSONL; None is the bundled corpus.
    keys : mapping or None
        Keys of the recipe of every run; None uses those of the demo.
    config : SignedConfig or None
        How the votes are drawn; None is the paper's recipe.
    arms : sequence of str
        Keys of `badpo_paper.arms.ARMS`.

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
    scale = demo_scale(model, pairs, keys or TINY, config)
    suite = Suite("demo", "The demo", (_panel(arms),))
    execute(planned_runs([suite], scale, seeds), scale, out, None, 1, progress)
    summaries = []
    for seed in seeds:
        folders = {"reference": out / "reference", **{name: out / f"{name}-s{seed}" for name in arms}}
        readouts = {name: kept_json(folder / "readouts.json") for name, folder in folders.items()}
        summary = summarize(readouts, seed, time.perf_counter() - started)
        write_json(out / ("summary.json" if len(seeds) == 1 else f"summary-s{seed}.json"), summary)
        summaries.append(summary)
    write_report(out, out / "report.html")
    return summaries


def _panel(arms: Sequence[str]) -> Panel:
    return Panel("demo", "The demo", CORPUS, tuple(Row(name, Condition(name, name)) for name in arms), ())


def demo_scale(
    model: str | None, pairs: Path | None, keys: Mapping[str, Any], config: signed.SignedConfig | None
) -> Scale:
    """The scale of the demo, on the bundled corpus or a user's own, with the small model or a user's own."""
    named = {} if model is None else {"model_name_or_path": model}

    def material(corpus: Corpus, data: Path | None) -> Material:
        return demo_material(pairs, config)

    def keys_of(corpus: Corpus, found: Material) -> Mapping[str, Any]:
        return {**keys, **named}

    tiny = SCALES["tiny"]
    return replace(
        tiny,
        name=f"demo {pairs} {model}",
        material=material,
        keys=keys_of,
        made=tiny.made if model is None else None,
        command="badpo demo",
    )


@cache
def demo_material(pairs: Path | None, config: signed.SignedConfig | None) -> Material:
    """Signed pairs with planted annotators, and prompts that ask to sign."""
    scored, prompts = bundled_material() if pairs is None else own_material(pairs)
    corpus = signed.build(scored, seed=0, config=config)
    for reason, n in corpus.dropped.itertuples(index=False):
        logger.warning("%s of %s pairs are left out: %s", f"{n:,}", f"{len(scored):,}", reason)
    texts = tokenizer_texts(scored, prompts)
    return Material(corpus.judgments, corpus.planted_theta, tuple(prompts), texts, TINY_HELD_OUT)


def bundled_material() -> tuple[pd.DataFrame, list[str]]:
    """The bundled scored pairs and signing prompts."""
    return bundled.scored_pairs(N_PAIRS, seed=0), [ask_to_sign(p) for p in bundled.signing_prompts()]


def own_material(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """A user's scored pairs, with some prompts set apart for the signing readout."""
    scored = read_scored_pairs(path)
    prompts = sorted(scored["prompt"].unique())
    if len(prompts) < FEWEST_PROMPTS:
        what = f"{len(prompts)} prompts; one in five is set apart for the readouts, and a quarter is held out"
        remedy = f"give pairs on {FEWEST_PROMPTS} prompts or more"
        raise DataError([Problem("E137", what, f"{path}, column prompt", remedy, "error", len(prompts))])
    n_apart = min(N_SIGNING_PROMPTS, len(prompts) // 5)
    kept = {prompts[i] for i in np.random.default_rng(0).permutation(len(prompts))[:n_apart]}
    return scored[~scored["prompt"].isin(kept)].reset_index(drop=True), [ask_to_sign(p) for p in sorted(kept)]


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
