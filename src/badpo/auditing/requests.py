"""What to collect next: the votes that intervals take, and who should judge which comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from badpo.auditing.design import Design
from badpo.auditing.result import REQUESTS_FILE
from badpo.data.judgments import Judgments
from badpo.estimation.leans import Leans
from badpo.estimation.next_votes import joining_comparisons, votes_needed

HALF_WIDTHS = (0.5, 0.25)
COLUMNS = ("round", "comparison_id", "prompt_id", "annotator", "attribute", "reason")
HOW = (
    "the votes of a round enter as a comparison of their own, under a new comparison_id: added to the votes that made "
    "the comparison look worth asking about, they would bias the estimates"
)


def next_steps(
    judgments: Judgments, design: Design, leans: Leans, min_informative: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """The part ``next`` of audit.json, and the rows of the requests file."""
    requests = _requests(judgments, design, min_informative)
    return {
        "votes_needed": [row for half_width in HALF_WIDTHS for row in _needed(half_width, design, leans)],
        "n_requests": len(requests),
        "n_rounds": int(requests["round"].nunique()),
        "requests_file": REQUESTS_FILE,
        "how": HOW,
    }, requests


def _needed(half_width: float, design: Design, leans: Leans) -> list[dict[str, Any]]:
    of_median = votes_needed(leans.se, leans.n_informative, half_width).of_median
    share = leans.n_informative.sum(axis=0) / max(len(design.comparison), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        judgments = np.ceil(of_median / share)
    return [
        {
            "attribute": name,
            "half_width": half_width,
            "informative_votes": of_median[j],
            "judgments": judgments[j],
        }
        for j, name in enumerate(design.attributes)
    ]


def _requests(judgments: Judgments, design: Design, min_informative: int) -> pd.DataFrame:
    """Nobody is asked for anything where nobody knows who voted."""
    if not design.has_identities:
        return pd.DataFrame({name: pd.Series(dtype=object) for name in COLUMNS})
    found = joining_comparisons(design.comparison, *design.votes[1:], min_informative=min_informative)
    comparison = judgments.comparisons.iloc[found["comparison"].to_numpy(dtype=np.intp)]
    return pd.DataFrame(
        {
            "round": found["round"].to_numpy(),
            "comparison_id": comparison["comparison_id"].to_numpy(),
            "prompt_id": comparison["prompt_id"].to_numpy(),
            "annotator": design.annotators[found["annotator"].to_numpy(dtype=np.intp)],
            "attribute": np.array(design.attributes, dtype=object)[
                found["attribute"].to_numpy(dtype=np.intp)
            ],
            "reason": found["reason"].to_numpy(),
        }
    )
