"""The whole way on the bundled corpus with a small model: a lean enters under DPO and stays out under BA-DPO."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from badpo.data.corpora import bundled, signed
from badpo.data.corpora.names import NAMES, SURNAMES
from badpo.data.corpora.signatures import ask_to_sign
from badpo.data.corpora.signed_files import read_scored_pairs
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem
from badpo.experiments.progress import Progress
from badpo.experiments.signed_suite import run_suite
from badpo.experiments.small_model import build_model, build_tokenizer
from badpo.experiments.start_policy import load_model
from badpo.experiments.suite_settings import SuiteSettings
from badpo.results.run_page import write_report
from badpo.training.encoding import encode_comparisons, require_matching_tokenizer
from badpo.training.recipe_blocks import ModelChoice
from badpo.training.run_folder import write_json

logger = logging.getLogger(__name__)

# The four votes of a comparison together, twice the judgments of the paper's step: half the cost of `random`.
SETTINGS = SuiteSettings(batching="grouped", batch_size=64)
N_PAIRS = 9000
DATA_SEED = 0
# Prompts of a user's own pairs that are kept for the signing readout.
N_SIGNING_PROMPTS = 300
FEWEST_PROMPTS = 20


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

    Raises
    ------
    ConfigError
        The model cannot be loaded, or ``out`` holds runs with other data or settings.
    DataError
        The pairs cannot be used, or the model's tokenizer does not fit the model.
    """
    started = time.perf_counter()
    settings = settings or SETTINGS
    scored, signing_prompts = bundled_material() if pairs is None else own_material(pairs)
    corpus = signed.build(scored, seed=DATA_SEED, config=config)
    for reason, n in corpus.dropped.itertuples(index=False):
        logger.warning("%s of %s pairs are left out: %s", f"{n:,}", f"{len(scored):,}", reason)
    if model is None:
        tokenizer = build_tokenizer(tokenizer_texts(scored, signing_prompts))
        policy = build_model(tokenizer, seed=DATA_SEED)
    else:
        policy, tokenizer = own_model(model, corpus.judgments, settings)
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
    scored = read_scored_pairs(path)
    prompts = sorted(scored["prompt"].unique())
    if len(prompts) < FEWEST_PROMPTS:
        what = f"{len(prompts)} prompts; one in five is set apart for the readouts, and a quarter is held out"
        remedy = f"give pairs on {FEWEST_PROMPTS} prompts or more"
        raise DataError([Problem("E137", what, f"{path}, column prompt", remedy, "error", len(prompts))])
    apart = np.random.default_rng(DATA_SEED).permutation(len(prompts))[
        : min(N_SIGNING_PROMPTS, len(prompts) // 5)
    ]
    kept = {prompts[i] for i in apart}
    return scored[~scored["prompt"].isin(kept)].reset_index(drop=True), [ask_to_sign(p) for p in sorted(kept)]


def own_model(name: str, judgments: Judgments, settings: SuiteSettings):
    """A user's model and its tokenizer, which must have no id that the model does not know."""
    model, tokenizer = load_model(name, ModelChoice(name))
    encoded = encode_comparisons(
        judgments, tokenizer, "paper", settings.max_length, settings.max_prompt_length
    )
    require_matching_tokenizer(encoded, tokenizer, model.get_input_embeddings().weight.shape[0])
    return model, tokenizer


def tokenizer_texts(scored: pd.DataFrame, signing_prompts: Sequence[str]) -> list[str]:
    """What the small tokenizer is built from: the corpus, the prompts and every name, signed."""
    names = [signed.signature("", name.first, SURNAMES[i % len(SURNAMES)]) for i, name in enumerate(NAMES)]
    columns = [scored[column].tolist() for column in ("prompt", "chosen", "rejected")]
    return [*columns[0], *columns[1], *columns[2], *signing_prompts, *names]
