"""How the data of an audit are made up: counts, repeats, agreement, which side was shown first."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from badpo.auditing.design import Design
from badpo.auditing.pool import voters
from badpo.data.judgments import Judgments
from badpo.estimation.offline import offline_log_odds

QUANTILES = {"min": 0.0, "lower_quartile": 0.25, "median": 0.5, "upper_quartile": 0.75, "max": 1.0}


def data_health(judgments: Judgments, design: Design, source: str) -> dict[str, Any]:
    """The part ``data`` of audit.json."""
    n_votes = np.bincount(design.annotator, minlength=design.n_annotators)
    n_votes = n_votes[n_votes > 0]
    per_comparison = np.bincount(design.comparison, minlength=judgments.n_comparisons)
    wins = np.bincount(design.comparison, weights=design.sign > 0, minlength=judgments.n_comparisons)
    several = per_comparison > 1
    unanimous = several & ((wins == 0) | (wins == per_comparison))
    sizes, counts = np.unique(per_comparison, return_counts=True)
    return {
        "source": source,
        "fingerprint": judgments.fingerprint(),
        "n_judgments": judgments.n_votes,
        "n_comparisons": judgments.n_comparisons,
        "n_prompts": int(judgments.comparisons["prompt_id"].nunique()),
        "n_annotators": len(n_votes) if judgments.has_identities else 0,
        "has_annotators": judgments.has_identities,
        "n_dropped": int(judgments.dropped["n"].sum()),
        "dropped": _dropped(judgments),
        "votes_per_comparison": {str(k): int(n) for k, n in zip(sizes, counts, strict=True)},
        "judgments_per_annotator": {
            name: float(np.quantile(n_votes, share)) for name, share in QUANTILES.items()
        },
        "unanimous_share": float(unanimous.sum() / several.sum()) if several.any() else None,
        "position": _position(judgments),
    }


def _dropped(judgments: Judgments) -> list[dict[str, Any]]:
    """Rows that are no vote, by reason, with the number of annotators who had one."""
    groups = judgments.dropped.groupby("reason", sort=False)
    return [
        {"reason": str(reason), "n": int(rows["n"].sum()), "n_annotators": len(rows)}
        for reason, rows in groups
    ]


def _position(judgments: Judgments) -> dict[str, Any] | None:
    """How often the side that was shown first won, with its interval clustered by prompt; None when nobody knows."""
    first = judgments.votes["shown_first"].map({"a": 1, "b": -1}).to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(first)
    if not known.any():
        return None
    prompts = judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"].to_numpy()[known]]
    sign = judgments.votes["sign"].to_numpy()[known]
    (found,) = offline_log_odds(sign, first[known, None], np.ones((len(sign), 1), dtype=bool), prompts)
    # where every vote went one way the interval has one end, and the share itself is the other
    ends = [found.carrier_wins if end is None else float(expit(end)) for end in (found.ci_low, found.ci_high)]
    known_ends = found.ci_low is not None or found.ci_high is not None
    return {
        "n_annotators": voters(judgments, known),
        "n_known": found.n_cross,
        "first_wins": found.carrier_wins,
        "ci_low": ends[0] if known_ends else None,
        "ci_high": ends[1] if known_ends else None,
    }
