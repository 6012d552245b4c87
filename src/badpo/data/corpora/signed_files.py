"""The signed corpus as files: the votes that anyone may train on, and the planted leans that measure the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from badpo.data.corpora import bundled, signed
from badpo.data.importers.tables import read_table
from badpo.data.problems import ConfigError


def write_signed_corpus(
    out: Path, pairs: Path | None = None, n_pairs: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Build a signed corpus and write ``judgments.parquet`` and ``planted.parquet``.

    Parameters
    ----------
    out : Path
        Folder; made when it is not there.
    pairs : Path or None
        Table of scored pairs with the columns of `signed.PAIR_COLUMNS`. None takes the bundled pairs.
    n_pairs : int or None
        How many of the bundled pairs; None takes as many as the paper has. Not with ``pairs``.
    seed : int
        Data seed of the plan.

    Returns
    -------
    dict
        The gate statistics of `signed.gate`.

    Raises
    ------
    ConfigError
        Both a table and a number of pairs are given.
    DataError
        The pairs cannot be used.
    """
    if pairs is not None and n_pairs is not None:
        raise ConfigError("--n chooses among the bundled pairs; leave it out when you give a table of pairs")
    if pairs is not None:
        scored = _with_numbers(read_table(pairs).frame)
    else:
        scored = bundled.scored_pairs(n_pairs) if n_pairs is not None else bundled.scored_pairs()
    corpus = signed.build(scored, seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    corpus.judgments.to_parquet(out / "judgments.parquet")
    planted = corpus.judgments.annotators.assign(
        woman=corpus.planted_theta[:, 0], black=corpus.planted_theta[:, 1]
    )
    planted.to_parquet(out / "planted.parquet", index=False)
    return signed.gate(corpus)


def _with_numbers(scored: pd.DataFrame) -> pd.DataFrame:
    """The pairs with scores as numbers; a CSV brings them as text, and what is no number is left to the check."""
    columns = [name for name in ("score_chosen", "score_rejected") if name in scored]
    return scored.assign(**{name: pd.to_numeric(scored[name], errors="coerce") for name in columns})
