"""The whole way on the bundled corpus with a small model: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import AutoModelForCausalLM, AutoTokenizer

from badpo.data.corpora import bundled, signed
from badpo.data.corpora.names import NAMES, SURNAMES
from badpo.data.corpora.signatures import ask_to_sign
from badpo.experiments.signed_suite import Progress, SuiteSettings, run_suite
from badpo.experiments.small_model import build_model, build_tokenizer
from badpo.results.run_page import write_report
from badpo.training.run_folder import write_json

N_PAIRS = 9000
DATA_SEED = 0
# Prompts of a user's own pairs that are kept for the signing readout.
N_SIGNING_PROMPTS = 300


def run_demo(
    out: Path,
    seeds: Sequence[int],
    progress: Progress,
    model: str | None = None,
    pairs: Path | None = None,
    settings: SuiteSettings | None = None,
    config: signed.SignedConfig | None = None,
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
    settings : SuiteSettings or None
        None uses those of the demo.
    config : SignedConfig or None
        How the votes are drawn; None is the paper's recipe.

    Returns
    -------
    list of dict
        One summary per seed.
    """
    started = time.perf_counter()
    scored, signing_prompts = bundled_material() if pairs is None else own_material(pairs)
    plan = signed.draw_plan(len(scored), seed=DATA_SEED, config=config)
    corpus = signed.build(scored, plan)
    if model is None:
        tokenizer = build_tokenizer(tokenizer_texts(scored, signing_prompts))
        policy = build_model(tokenizer, seed=DATA_SEED)
    else:
        tokenizer = AutoTokenizer.from_pretrained(model)
        policy = AutoModelForCausalLM.from_pretrained(model)
    settings = settings or SuiteSettings()
    summaries = run_suite(corpus, signing_prompts, policy, tokenizer, settings, seeds, out, progress)
    if len(summaries) == 1:
        summaries[0]["seconds"] = round(time.perf_counter() - started, 1)
        write_json(out / "summary.json", summaries[0])
    write_report(out, out / "report.html")
    return summaries


def bundled_material() -> tuple[pd.DataFrame, list[str]]:
    """The bundled scored pairs and signing prompts."""
    return bundled.scored_pairs(N_PAIRS, seed=DATA_SEED), [ask_to_sign(p) for p in bundled.signing_prompts()]


def own_material(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """A user's scored pairs, with some prompts set apart for the signing readout."""
    readers = {
        ".csv": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".jsonl": lambda p: pd.read_json(p, lines=True),
    }
    scored = readers[path.suffix](path)
    if "prompt_id" not in scored:
        scored = scored.assign(prompt_id=pd.factorize(scored["prompt"])[0].astype(str))
    prompts = sorted(scored["prompt"].unique())
    apart = np.random.default_rng(DATA_SEED).permutation(len(prompts))[
        : min(N_SIGNING_PROMPTS, len(prompts) // 5)
    ]
    kept = {prompts[i] for i in apart}
    return scored[~scored["prompt"].isin(kept)].reset_index(drop=True), [ask_to_sign(p) for p in sorted(kept)]


def tokenizer_texts(scored: pd.DataFrame, signing_prompts: Sequence[str]) -> list[str]:
    """What the small tokenizer is built from: the corpus, the prompts and every name, signed."""
    names = [signed.signature("", name.first, SURNAMES[i % len(SURNAMES)]) for i, name in enumerate(NAMES)]
    columns = [scored[column].tolist() for column in ("prompt", "chosen", "rejected")]
    return [*columns[0], *columns[1], *columns[2], *signing_prompts, *names]
