"""The table of annotators: one row for each annotator and attribute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from badpo.auditing.design import Design
from badpo.auditing.shrinking import Posterior
from badpo.estimation.leans import Leans

COLUMNS = (
    "annotator",
    "class",
    "attribute",
    "component",
    "n_judgments",
    "n_cross",
    "n_informative",
    "raw_rate",
    "deviation",
    "se",
    "ci_low",
    "ci_high",
    "shrunk",
    "post_sd",
    "post_low",
    "post_high",
    "odds_ratio",
    "q_value",
    "prob_exceeds",
    "flag",
    "status",
    "agreement",
    "agreement_low",
    "agreement_high",
)


def annotator_table(
    design: Design, leans: Leans, posteriors: Sequence[Posterior], agreement: pd.DataFrame
) -> pd.DataFrame:
    """The annotators with a vote, by id, and the attributes of each in the order in which they were declared.

    No row where nobody knows who voted.
    """
    n_votes = design.per_annotator(np.ones(len(design.annotator), dtype=bool))
    parts = [
        _of_attribute(j, design, leans, posterior, n_votes).join(agreement)
        for j, posterior in enumerate(posteriors)
    ]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=list(COLUMNS))
    table["order"] = np.tile(np.argsort(np.argsort(design.annotators, kind="stable")), len(parts))
    table = table[design.has_identities & (table["n_judgments"] > 0)].sort_values("order", kind="stable")
    return table.reset_index(drop=True)[list(COLUMNS)]


def _of_attribute(
    j: int, design: Design, leans: Leans, posterior: Posterior, n_votes: np.ndarray
) -> pd.DataFrame:
    deviation = leans.deviation[:, j]
    effect = np.where(np.isnan(posterior.shrunk), deviation, posterior.shrunk)
    with np.errstate(over="ignore"):
        odds_ratio = np.exp(effect)
    return pd.DataFrame(
        {
            "annotator": design.annotators,
            "class": design.classes,
            "attribute": design.attributes[j],
            "component": leans.component[:, j],
            "n_judgments": n_votes,
            "n_cross": design.per_annotator(design.cross[:, j]),
            "n_informative": leans.n_informative[:, j],
            "raw_rate": design.raw_rate()[:, j],
            "deviation": deviation,
            "se": leans.se[:, j],
            "ci_low": leans.ci_low[:, j],
            "ci_high": leans.ci_high[:, j],
            "shrunk": posterior.shrunk,
            "post_sd": posterior.post_sd,
            "post_low": posterior.post_low,
            "post_high": posterior.post_high,
            "odds_ratio": odds_ratio,
            "q_value": posterior.q_value,
            "prob_exceeds": posterior.prob_exceeds,
            "flag": posterior.flag,
            "status": leans.status[:, j].astype(str),
        }
    )
