"""The signed corpus as files: the votes that anyone may train on, and the planted leans that measure the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from badpo.data.corpora import bundled, signed
from badpo.data.files import appearing
from badpo.data.importers.tables import read_table
from badpo.data.judgments import Judgments
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
        scored = read_scored_pairs(pairs)
    else:
        scored = bundled.scored_pairs(n_pairs) if n_pairs is not None else bundled.scored_pairs()
    corpus = signed.build(scored, seed=seed)
    write_planted_votes(out, corpus.judgments, corpus.planted_theta)
    return signed.gate(corpus)


def write_planted_votes(out: Path, judgments: Judgments, theta: ArrayLike) -> None:
    """Write the votes, and beside them the planted lean of every annotator with a column for each attribute.

    Parameters
    ----------
    out : Path
        Folder; made when it is not there.
    judgments : Judgments
    theta : array of shape (n_annotators, n_attributes)
        In log-odds.
    """
    judgments.to_parquet(out / "judgments.parquet")
    columns = dict(zip(judgments.attribute_names, np.asarray(theta).T, strict=True))
    with appearing(out / "planted.parquet") as unfinished:
        judgments.annotators.assign(**columns).to_parquet(unfinished, index=False)


def read_scored_pairs(path: Path) -> pd.DataFrame:
    """Scored pairs from a file, the scores as numbers.

    Parameters
    ----------
    path : Path
        With the columns of `signed.PAIR_COLUMNS`; without ``prompt_id``, equal prompts get one id.

    Raises
    ------
    DataError
        The table cannot be read, or its pairs cannot be used; every problem at once.
    """
    scored = read_table(path).frame
    if "prompt_id" not in scored and "prompt" in scored:
        scored = scored.assign(prompt_id=pd.factorize(scored["prompt"])[0].astype(str))
    # a CSV brings numbers as text; what is no number is left to the check
    columns = [name for name in ("score_chosen", "score_rejected") if name in scored]
    scored = scored.assign(**{name: pd.to_numeric(scored[name], errors="coerce") for name in columns})
    signed.check_pairs(scored, str(path))
    return scored
