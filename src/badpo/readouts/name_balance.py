"""How many tokens a tokenizer spends on the names of each cell, and how many of them begin alike.

Published names cannot be balanced in tokens. A cell whose names share their first token is favored by a sampler that
keeps few tokens, so the rate is read from probabilities over all names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from badpo.data.corpora.names import CELLS, cell_names
from badpo.readouts.attribute_rate import SIGNATURE_LEAD
from badpo.readouts.name_tokens import name_token_ids


@dataclass(frozen=True)
class CellTokens:
    """Tokens of the first names of one cell, behind the lead of a signature.

    Attributes
    ----------
    n_names : int
    mean_tokens : float
    one_token_share : float
        Share of the names that are one token.
    first_tokens : int
        Different tokens that a name begins with.
    largest_first_share : float
        Share of the names that begin with the most frequent of them.
    """

    n_names: int
    mean_tokens: float
    one_token_share: float
    first_tokens: int
    largest_first_share: float


def token_balance(
    tokenizer, cells: Mapping[str, Sequence[str]] | None = None, lead: str = SIGNATURE_LEAD
) -> dict[str, CellTokens]:
    """Tokens of the name pool under a tokenizer, cell by cell."""
    pool = cells or {cell: [name.first for name in cell_names(cell)] for cell in CELLS}
    names = [name for members in pool.values() for name in members]
    _, ids = name_token_ids(tokenizer, names, lead)
    by_name = dict(zip(names, ids, strict=True))
    return {cell: _cell_tokens([by_name[name] for name in members]) for cell, members in pool.items()}


def _cell_tokens(ids: Sequence[Sequence[int]]) -> CellTokens:
    lengths = np.array([len(tokens) for tokens in ids])
    first = Counter(tokens[0] for tokens in ids)
    return CellTokens(
        n_names=len(ids),
        mean_tokens=float(lengths.mean()),
        one_token_share=float((lengths == 1).mean()),
        first_tokens=len(first),
        largest_first_share=max(first.values()) / len(ids),
    )
