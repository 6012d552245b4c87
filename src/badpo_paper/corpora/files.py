"""Public corpora and our own votes as folders: the votes, prompts to evaluate on, statistics, and a card.

``judgments.parquet`` is what anyone may train on; ``planted.parquet``, where leans are planted, only measures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.data.files import appearing
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError
from badpo.data.tables import read_table
from badpo_paper.corpora import bundled, multipref, signed, ultrafeedback
from badpo_paper.corpora.published import GateRow, compared, gate_text


def write_signed_corpus(
    out: Path, pairs: Path | None = None, n_pairs: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Build a signed corpus and write ``judgments.parquet`` and ``planted.parquet``."""
    if pairs is not None and n_pairs is not None:
        raise ConfigError("--n chooses among the bundled pairs; leave it out when you give a table of pairs")
    if pairs is not None:
        scored = read_scored_pairs(pairs)
    else:
        scored = bundled.scored_pairs(n_pairs) if n_pairs is not None else bundled.scored_pairs()
    corpus = signed.build(scored, seed=seed)
    write_planted_votes(out, corpus.judgments, corpus.planted_theta)
    return signed.gate(corpus)


def write_planted_votes(out: Path, judgments: Judgments, theta: ArrayLike) -> None:
    """Write the votes, and beside them the planted lean of every annotator with a column for each attribute."""
    judgments.to_parquet(out / "judgments.parquet")
    columns = dict(zip(judgments.attribute_names, np.asarray(theta).T, strict=True))
    with appearing(out / "planted.parquet") as unfinished:
        judgments.annotators.assign(**columns).to_parquet(unfinished, index=False)


def read_scored_pairs(path: Path) -> pd.DataFrame:
    """Scored pairs from a file, the scores as numbers."""
    scored = read_table(path).frame
    if "prompt_id" not in scored and "prompt" in scored:
        scored = scored.assign(prompt_id=pd.factorize(scored["prompt"])[0].astype(str))
    # a CSV brings numbers as text; what is no number is left to the check
    columns = [name for name in ("score_chosen", "score_rejected") if name in scored]
    scored = scored.assign(**{name: pd.to_numeric(scored[name], errors="coerce") for name in columns})
    signed.check_pairs(scored, str(path))
    return scored


_SCORE_FAULT = (
    "About 2,000 poor responses of UltraFeedback carry its highest score by a known fault, so a part of the planted "
    "quality margin is wrong."
)
_CONSTRUCTED = (
    "The annotators are constructed: they lean toward a marker because they were built to. The corpus measures no "
    "prejudice; its attributes are gender-coded and race-coded names."
)
_REAL_PEOPLE = (
    "The votes are those of real people. Their ids were replaced by pseudonyms when the table was read; estimates for "
    "one of them are personal data."
)


def write_multipref(out: Path, source: str | os.PathLike[str] | None = None) -> tuple[GateRow, ...]:
    """MultiPref as a folder: ``judgments.parquet``, ``evaluation_prompts.json``, ``gate.json`` and ``card.md``."""
    corpus = multipref.load(source)
    prompts = multipref.evaluation_prompts(corpus.judgments)
    gate = multipref.gate(corpus)
    rows = compared(gate, multipref.PUBLISHED)
    corpus.judgments.to_parquet(out / "judgments.parquet")
    _write_json(out / "evaluation_prompts.json", list(prompts.prompts))
    _write_json(out / "gate.json", gate)
    facts = {
        "source": multipref.HUB.told
        if source is None
        else f"a local file with the rows of {multipref.HUB.told}",
        "license of the texts and votes": multipref.HUB.license,
        "evaluation prompts": f"{len(prompts.prompts)}, all held out; {prompts.n_shared} passed over that are "
        "training prompts too",
    }
    dropped = corpus.judgments.dropped.groupby("reason", as_index=False)["n"].sum()
    _write_text(out / "card.md", card("MultiPref", facts, dropped, rows, [_REAL_PEOPLE]))
    return rows


def write_signed_ultrafeedback(
    out: Path,
    train: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    n_pairs: int = ultrafeedback.N_PAIRS,
    n_signing: int = ultrafeedback.N_SIGNING,
    seed: int = 0,
) -> tuple[GateRow, ...]:
    """Signed-UltraFeedback as a folder: votes, planted leans, prompts to sign and to choose, statistics and card."""
    drawn = ultrafeedback.scored_pairs(train, n_pairs, seed=seed)
    corpus = signed.build(drawn.pairs, seed=seed)
    signing = ultrafeedback.signing_prompts(test, set(drawn.pairs["prompt"]), n_signing, seed)
    gate = ultrafeedback.gate(corpus)
    rows = compared(gate, ultrafeedback.PUBLISHED)
    write_planted_votes(out, corpus.judgments, corpus.planted_theta)
    _write_json(out / "signing_prompts.json", signing)
    _write_json(out / "choice_prompts.json", [vars(choice) for choice in bundled.choice_prompts()])
    _write_json(out / "gate.json", gate)
    facts = {
        "source": ultrafeedback.TRAIN.told,
        "license of the texts": ultrafeedback.TRAIN.license,
        "pairs": f"{drawn.n_drawn:,} drawn of {drawn.n_rows:,} rows, {corpus.plan.n_pairs:,} signed",
        "signing prompts": f"{len(signing)} questions of {ultrafeedback.TEST.told}, none of them trained on",
    }
    dropped = pd.concat([drawn.dropped, corpus.dropped], ignore_index=True)
    told = card("Signed-UltraFeedback", facts, dropped, rows, [_CONSTRUCTED, _SCORE_FAULT])
    _write_text(out / "card.md", told)
    return rows


def write_style_votes(out: Path, n_pairs: int = 7177, seed: int = 0) -> dict[str, Any]:
    """The bundled answers with votes that lean toward length and Markdown, as a folder with ``planted.parquet``."""
    corpus = bundled.style_votes(n_pairs, seed)
    judgments = corpus.judgments
    told: dict[str, Any] = {
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
    write_planted_votes(out, judgments, corpus.planted_theta)
    _write_json(out / "gate.json", told)
    return told


def card(
    title: str,
    facts: Mapping[str, str],
    dropped: pd.DataFrame,
    rows: Sequence[GateRow],
    warnings: Sequence[str],
) -> str:
    """What a corpus is, in Markdown: where it is from, what was left out, what to mind, and its statistics."""
    left_out = [f"- left out, {row['reason']}: {row['n']:,}" for row in dropped.to_dict("records")]
    lines = [f"- {name}: {fact}" for name, fact in facts.items()]
    parts = [
        f"# {title}",
        "\n".join(lines + left_out),
        *warnings,
        "## Statistics before any training",
        gate_text(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _write_json(path: Path, content: Any) -> None:
    _write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _write_text(path: Path, content: str) -> None:
    with appearing(path) as unfinished:
        unfinished.write_text(content, encoding="utf-8")
