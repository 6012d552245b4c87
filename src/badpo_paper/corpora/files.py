"""Corpora as folders: the votes, planted leans, prompts to evaluate on, and statistics.

``judgments.parquet`` is what anyone may train on; ``planted.parquet``, where leans are planted, only measures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from numpy.typing import NDArray

from badpo.data.files import Json, appearing
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.data.tables import read_table
from badpo_paper.corpora import bundled, multipref, signed, ultrafeedback
from badpo_paper.corpora.published import GateRow, Source, compared


class PublicCorpus(NamedTuple):
    """What is told of a public corpus that was written: its statistics, and how many rows were left out, by reason."""

    rows: tuple[GateRow, ...]
    left_out: dict[str, int]


def write_signed_corpus(
    out: Path, pairs: Path | None = None, n_pairs: int | None = None, seed: int = 0
) -> Json:
    """Build a signed corpus, write ``judgments.parquet`` and ``planted.parquet``, and return its statistics."""
    if pairs is not None and n_pairs is not None:
        raise ConfigError(
            "--n chooses among the bundled pairs; leave it out when you give a table of pairs"
        )
    if pairs is not None:
        scored = read_scored_pairs(pairs)
    else:
        scored = bundled.scored_pairs() if n_pairs is None else bundled.scored_pairs(n_pairs)
    corpus = signed.build(scored, seed=seed)
    _write_votes(out, corpus.judgments, corpus.planted_theta)
    return signed.gate(corpus)


def read_scored_pairs(path: Path) -> pd.DataFrame:
    """Scored pairs from a file, the scores as numbers."""
    scored = read_table(path).frame
    if "prompt_id" not in scored and "prompt" in scored:
        scored = scored.assign(prompt_id=pd.factorize(scored["prompt"])[0].astype(str))
    signed.check_pairs(scored, str(path))
    return scored


def write_style_votes(out: Path, n_pairs: int = 7177, seed: int = 0) -> Json:
    """The bundled answers with votes that lean toward length and Markdown, as a folder with ``planted.parquet``."""
    corpus = bundled.style_votes(n_pairs, seed)
    judgments = corpus.judgments
    told: Json = {
        "judgments": judgments.n_votes,
        "comparisons": judgments.n_comparisons,
        "annotators": judgments.n_annotators,
        "ties": int(judgments.dropped["n"].sum()),
    }
    for column, name in enumerate(judgments.attribute_names):
        told[name] = {
            "cross_share": float(judgments.cross_group()[:, column].mean()),
            "log_odds": judgments.offline_log_odds()[column].log_odds,
            "planted_mean": float(corpus.planted_theta[:, column].mean()),
        }
    _write_votes(out, judgments, corpus.planted_theta, gate=told)
    return told


def write_multipref(out: Path, source: Source = None) -> PublicCorpus:
    """MultiPref as a folder: ``judgments.parquet``, ``evaluation_prompts.json`` and ``gate.json``."""
    corpus = multipref.load(source)
    prompts = multipref.evaluation_prompts(corpus.judgments)
    _write_votes(out, corpus.judgments, evaluation_prompts=prompts, gate=corpus.gate)
    left_out = corpus.judgments.dropped.groupby("reason")["n"].sum().to_dict()
    return PublicCorpus(compared(corpus.gate, multipref.PUBLISHED), left_out)


def write_signed_ultrafeedback(
    out: Path,
    train: Source = None,
    test: Source = None,
    n_pairs: int = ultrafeedback.N_PAIRS,
    n_signing: int = ultrafeedback.N_SIGNING,
    seed: int = 0,
) -> PublicCorpus:
    """Signed-UltraFeedback as a folder: votes, planted leans, prompts to sign and to choose, and statistics."""
    drawn = ultrafeedback.scored_pairs(train, n_pairs, seed=seed)
    corpus = signed.build(drawn.pairs, seed=seed)
    signing = ultrafeedback.signing_prompts(test, set(drawn.pairs["prompt"]), n_signing, seed)
    gate = ultrafeedback.gate(corpus)
    choices = [choice._asdict() for choice in bundled.choice_prompts()]
    prompts = {"signing_prompts": signing, "choice_prompts": choices}
    _write_votes(out, corpus.judgments, corpus.planted_theta, **prompts, gate=gate)
    left_out = {reason: n for reason, n in (drawn.left_out | corpus.left_out).items() if n}
    return PublicCorpus(compared(gate, ultrafeedback.PUBLISHED), left_out)


def _write_votes(out: Path, judgments: Judgments, theta: NDArray | None = None, **texts: Any) -> None:
    """Write the votes, the planted lean of every annotator with a column for each attribute, and files of JSON."""
    judgments.to_parquet(out / "judgments.parquet")
    if theta is not None:
        columns = dict(zip(judgments.attribute_names, theta.T, strict=True))
        with appearing(out / "planted.parquet") as unfinished:
            judgments.annotators.assign(**columns).to_parquet(unfinished, index=False)
    for name, content in texts.items():
        with appearing(out / f"{name}.json") as unfinished:
            text = json.dumps(content, indent=1, ensure_ascii=False)
            unfinished.write_text(f"{text}\n", encoding="utf-8")
