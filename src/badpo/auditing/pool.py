"""What the pool as a whole leans toward: one table row for each declared attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.result import plain
from badpo.auditing.swap_pairs import SwapPairs
from badpo.data.attribute import Attribute
from badpo.data.importers.columns import side_pairs
from badpo.data.judgments import Judgments
from badpo.data.measuring import measure_sides
from badpo.data.text_attributes import LengthWords, markedly_longer
from badpo.estimation.arena import arena_coefficients, normalized_difference
from badpo.estimation.offline import LogOdds, offline_log_odds
from badpo.estimation.pool import carrier_sides, co_occurrence, collinearity, joint_log_odds
from badpo.theory.summaries import Interval

# Below this many prompts the interval is widened noticeably by its small-cluster form, and the table says so.
MANY_PROMPTS = 50
# Length ratios of the paper's appendix `app:multipref`; 1 is any difference at all.
LENGTH_RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0)
# A pair of number columns is taken for the quality of the responses where a part of its name is one of these.
QUALITY_WORDS = {"quality", "score", "rating", "reward"}


def pool_attributes(judgments: Judgments) -> list[dict[str, Any]]:
    """What the pool leans toward, before any model is trained.

    All log-odds are those of the side that carries the attribute (or has more of it) winning; above 0 the pool
    leans toward it. None stands for what the votes do not tell.

    Returns
    -------
    list of dict, one for each attribute, ready for JSON
        ``name``, ``scope``; ``n_cross`` and ``cross_share``: judgments whose sides differ; ``n_annotators`` who cast
        them and ``n_prompts`` that they stand on; ``carrier_wins``: share in which the carrying side won;
        ``log_odds`` and ``odds``; ``ci_low``, ``ci_high``: 95 %, clustered by prompt
        (`badpo.estimation.clusters`); ``interval``: "clustered", "small-cluster" (the same form, on fewer than 50
        prompts), "naive only" (one prompt, or prompts that all have the very same share, which leaves no spread to
        tell others from) or None; ``naive_ci_low``, ``naive_ci_high``: as if every vote were independent. Where every
        vote went one way, log-odds are None and the interval has one end.

        ``sweep``: for a length ratio, ``parameter``, ``value``, ``cross_share``, ``log_odds``, ``ci_low``,
        ``ci_high`` for each of the ratios 1, 1.25, 1.5, 2 and 3; else empty. ``joint``: ``log_odds`` and interval
        beside the other attributes. ``quality_adjusted``: ``log_odds``, interval, ``how`` ("swap pairs" or "quality
        column ..."), ``n_votes``, ``n_annotators`` and what it ``assumes``. ``arena``: ``coefficient`` and interval as
        `badpo.estimation.arena` defines them. ``collinear_with``: attributes that say exactly the same together
        with this one; ``variance_inflation``: how much the others widen its variance; ``co_occurrence``: for each
        other attribute the share of this one's cross-group judgments in which the same side has it too.

    References
    ----------
    BA-DPO, Table `attributes` and appendix `app:multipref`.
    """
    sign, prompts = judgments.votes["sign"].to_numpy(), vote_prompts(judgments)
    cross = judgments.cross_group()
    side = carrier_sides(judgments.delta, cross)
    found = offline_log_odds(sign, judgments.delta, cross, prompts)
    joint = joint_log_odds(side, sign, prompts)
    same, together = collinearity(side), co_occurrence(side)
    words = _words(judgments)
    arena = _arena(judgments, prompts, words)
    adjusted = _quality_adjusted(judgments, side, prompts)
    names = judgments.attribute_names
    rows = [
        {
            "name": attribute.name,
            "scope": attribute.scope,
            "n_annotators": voters(judgments, cross[:, j]),
            **log_odds_row(found[j], judgments.n_votes),
            "sweep": [] if words is None or not _is_length(attribute) else _sweep(judgments, words, prompts),
            "joint": interval_row(joint[j], "log_odds"),
            "quality_adjusted": adjusted[j],
            "arena": interval_row(arena.get(j), "coefficient"),
            "collinear_with": [names[i] for i in np.flatnonzero(same.dependent[j])],
            "variance_inflation": same.variance_inflation[j],
            "co_occurrence": {names[i]: together[j, i] for i in range(len(names)) if i != j},
        }
        for j, attribute in enumerate(judgments.attributes)
    ]
    return plain(rows)


def vote_prompts(judgments: Judgments) -> NDArray[np.intp]:
    """Number of the prompt that each vote stands on, of shape (n_votes,)."""
    return pd.factorize(judgments.comparisons["prompt_id"])[0][judgments.votes["comparison"].to_numpy()]


def voters(judgments: Judgments, rows: NDArray[np.bool_]) -> int:
    """How many annotators cast the chosen votes."""
    return int(judgments.votes["annotator"][rows].nunique())


def log_odds_row(found: LogOdds, n_votes: int) -> dict[str, Any]:
    """The part of an attribute's row that comes from its own cross-group votes alone."""
    interval = None
    if found.n_cross:
        few = "small-cluster" if found.n_clusters < MANY_PROMPTS else "clustered"
        interval = "naive only" if found.ci_low is None and found.ci_high is None else few
    return {
        "cross_share": found.n_cross / max(1, n_votes),
        "n_cross": found.n_cross,
        "n_prompts": found.n_clusters,
        "carrier_wins": found.carrier_wins,
        "log_odds": found.log_odds,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "interval": interval,
        "naive_ci_low": found.naive_ci_low,
        "naive_ci_high": found.naive_ci_high,
        "odds": found.odds,
    }


def interval_row(interval: Interval | None, key: str) -> dict[str, float | None]:
    """An estimate under a name of its own, and its interval; None where nothing is estimated."""
    if interval is None:
        return {key: None, "ci_low": None, "ci_high": None}
    return {key: interval.estimate, "ci_low": interval.low, "ci_high": interval.high}


def _is_length(attribute: Attribute) -> bool:
    return attribute.config.get("type") == "length"


def _words(judgments: Judgments) -> NDArray[np.float64] | None:
    """Words of response a and of response b of each comparison, where a length ratio is declared."""
    if not any(_is_length(attribute) for attribute in judgments.attributes):
        return None
    return measure_sides(LengthWords(threshold=0), judgments.comparisons)


def _sweep(judgments: Judgments, words: NDArray[np.float64], prompts: NDArray) -> list[dict[str, Any]]:
    """The lean at other length ratios."""
    a, b = words[judgments.votes["comparison"].to_numpy()].T
    longer = [
        markedly_longer(a, b, ratio) - markedly_longer(b, a, ratio).astype(np.float64)
        for ratio in LENGTH_RATIOS
    ]
    delta = np.stack(longer, axis=1)
    found = offline_log_odds(judgments.votes["sign"], delta, delta != 0, prompts)
    shown = ("cross_share", "log_odds", "ci_low", "ci_high")
    rows = [log_odds_row(one, judgments.n_votes) for one in found]
    return [
        {"parameter": "ratio", "value": ratio} | {name: row[name] for name in shown}
        for ratio, row in zip(LENGTH_RATIOS, rows, strict=True)
    ]


def _arena(judgments: Judgments, prompts: NDArray, words: NDArray | None) -> dict[int, Interval | None]:
    """Arena-style coefficients by attribute, without attributes of the judgment, which belong to neither text."""
    shown = [j for j, attribute in enumerate(judgments.attributes) if attribute.scope != "judgment"]
    if not shown:
        return {}
    comparison = judgments.votes["comparison"].to_numpy()
    features = [_arena_feature(judgments, j, words)[comparison] for j in shown]
    models = None
    if {"model_a", "model_b"} <= set(judgments.comparisons.columns):
        a, b = (judgments.comparisons[name].to_numpy()[comparison] for name in ("model_a", "model_b"))
        models = (a, b)
    found = arena_coefficients(np.stack(features, axis=1), judgments.votes["sign"], prompts, models)
    return dict(zip(shown, found, strict=True))


def _arena_feature(judgments: Judgments, j: int, words: NDArray | None) -> NDArray[np.float64]:
    """(g(a) - g(b)) / (g(a) + g(b)) of each comparison; of the words for a length ratio."""
    attribute = judgments.attributes[j]
    if _is_length(attribute) and words is not None:
        return normalized_difference(*words.T)
    delta = np.zeros(judgments.n_comparisons)
    delta[judgments.votes["comparison"].to_numpy()] = judgments.delta[:, j]
    if not attribute.continuous and np.abs(delta).max(initial=0.0) <= 1:
        return delta  # of zeros and ones the normalized difference is the difference
    return normalized_difference(*measure_sides(attribute, judgments.comparisons).T)


def _quality_adjusted(
    judgments: Judgments, side: NDArray[np.float64], prompts: NDArray[np.intp]
) -> list[dict[str, Any] | None]:
    """From swap pairs where an attribute has them, else beside a quality column where there is one."""
    swaps, columns = SwapPairs(judgments, side), _quality_columns(judgments)
    rows: list[dict[str, Any] | None] = []
    for j in range(judgments.n_attributes):
        found = swaps.log_odds(j)
        if found is not None:
            rows.append({**vars(found), "how": "swap pairs"})
        else:
            rows.append(_beside_quality(judgments, side[:, j], prompts, *columns) if columns else None)
    return rows


def _quality_columns(judgments: Judgments) -> tuple[str, str] | None:
    """The first pair of number columns whose name speaks of quality, and that no attribute reads."""
    comparisons = judgments.comparisons
    used = {name for attribute in judgments.attributes for name in attribute.columns or ()}
    for pair in side_pairs(list(comparisons.columns)).items():
        named = QUALITY_WORDS & set(pair[0].lower().split("_"))
        numbers = all(pd.api.types.is_numeric_dtype(comparisons[name]) for name in pair)
        if named and numbers and not used & set(pair):
            return pair
    return None


def _beside_quality(
    judgments: Judgments, side: NDArray[np.float64], prompts: NDArray[np.intp], first: str, second: str
) -> dict[str, Any] | None:
    a, b = (judgments.comparisons[name].to_numpy(dtype=np.float64) for name in (first, second))
    quality = (a - b)[judgments.votes["comparison"].to_numpy()]
    rows = np.isfinite(quality)
    columns = np.stack([side, quality], axis=1)[rows]
    lean, scale = joint_log_odds(columns, judgments.votes["sign"].to_numpy()[rows], prompts[rows])
    if lean is None or scale is None:
        return None
    fitted = f"at a fitted {scale.estimate:+.3g} log-odds a point"
    return {
        **interval_row(lean, "log_odds"),
        "n_votes": int((columns[:, 0] != 0).sum()),
        "n_annotators": voters(judgments, rows & (side != 0)),
        "assumes": f"the quality of a text is {first} or {second}, {fitted}",
        "how": f"quality column {first}",
    }
