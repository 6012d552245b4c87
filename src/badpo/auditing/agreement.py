"""How far annotators agree with others and with themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.design import Design
from badpo.estimation.agreement import annotator_agreement, pool_agreement
from badpo.estimation.repeats import self_contradictions


@dataclass(frozen=True, eq=False)
class Agreement:
    """Agreement of an audit."""

    summary: dict[str, Any]
    annotators: pd.DataFrame


def agreement_of(design: Design, prompts: NDArray) -> Agreement:
    """Agreement of the pool and of each annotator."""
    votes = design.comparison, design.sign, design.annotator
    pool = pool_agreement(*votes, prompts)
    each = annotator_agreement(*votes, design.n_annotators)
    repeats = self_contradictions(*votes, design.n_annotators)
    return Agreement(
        {
            "agreement": {
                "n_comparisons": pool.n_comparisons,
                "n_votes": pool.n_votes,
                "percent": pool.percent,
                "ci_low": pool.low,
                "ci_high": pool.high,
                "kappa": pool.kappa,
                "alpha": pool.alpha,
            },
            "self_contradictions": {
                "n_repeated": int(repeats.n_repeated.sum()),
                "n_contradicted": int(repeats.n_contradicted.sum()),
                "n_annotators": int((repeats.n_contradicted > 0).sum()),
                "share": repeats.share,
            },
        },
        pd.DataFrame({"agreement": each.agreement, "agreement_low": each.low, "agreement_high": each.high}),
    )
