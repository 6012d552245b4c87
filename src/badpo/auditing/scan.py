"""What else the pool prefers: surface features that nobody declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from badpo.auditing.pool import interval_row, vote_prompts, voters
from badpo.data.attribute import Attribute
from badpo.data.judgments import Judgments
from badpo.data.table_attributes import Position
from badpo.data.text_attributes import (
    Bold,
    Code,
    Emoji,
    FirstPerson,
    Headers,
    Hedging,
    Length,
    Links,
    Lists,
    Refusal,
)
from badpo.estimation.offline import offline_log_odds
from badpo.estimation.pool import carrier_sides, collinearity, joint_log_odds

# Feature -> its attribute. A feature is skipped where an attribute of its type is declared.
FEATURES: dict[str, Callable[[], Attribute]] = {
    "length": Length,
    "lists": Lists,
    "headers": Headers,
    "bold": Bold,
    "emoji": Emoji,
    "code": Code,
    "links": Links,
    "hedging": Hedging,
    "refusal": Refusal,
    "first_person": FirstPerson,
    "position": Position,
}
# Other declared types that a feature would only repeat.
_SAME_AS = {"length": ("length_words", "length_tokens")}

# What makes a lean worth declaring: 0.3 log-odds is 57 to 43; a rarer feature hardly moves a policy.
LARGE_LOG_ODDS = 0.3
COMMON_SHARE = 0.05
RULE = (
    "declare: surely preferred or avoided, by 0.3 log-odds or more, also beside the declared attributes, and in 5 % of "
    "the judgments or more; watch: by as much, alone or beside the declared attributes, and either sure or as common; "
    "nothing: by less, or neither sure nor common, or a declared attribute says the same"
)


def scan_features(judgments: Judgments, fdr: float = 0.1) -> list[dict[str, Any]]:
    """How the undeclared surface features fare in the votes, and which are worth declaring.

    The features are those of ``FEATURES``, without the declared ones and, where no vote says which side was shown
    first, without the position.

    Parameters
    ----------
    judgments : Judgments
    fdr : float
        Share of false alarms that is accepted among the features called sure.

    Returns
    -------
    list of dict, in the order of ``FEATURES``
        ``feature``; ``n_annotators``, ``n_cross``, ``cross_share``, ``carrier_wins``, ``log_odds``: as for a declared
        attribute (`badpo.auditing.pool.pool_attributes`); ``ci_low``, ``ci_high``: clustered by prompt and
        simultaneous, so that all features' intervals together cover with 95 % (Bonferroni); ``q_value``: of Benjamini
        and Hochberg over the features; ``beyond_declared``: ``log_odds`` and interval (simultaneous too) beside the
        declared attributes, None where none is declared or where they say the same; ``advice``: "declare", "watch" or
        "nothing", by ``RULE``. None stands for what the votes do not tell; a feature that stands on one prompt is
        never sure.

    Examples
    --------
    >>> rows = [{"prompt": str(i), "chosen": "**so** it is", "rejected": "it is so"} for i in range(12)]
    >>> rows[0] = {"prompt": "0", "chosen": "it is so", "rejected": "**so** it is"}
    >>> bold, = [row for row in scan_features(Judgments.read(rows)) if row["feature"] == "bold"]
    >>> round(bold["carrier_wins"], 2), bold["advice"]
    (0.92, 'declare')
    """
    measured = judgments.with_attributes([FEATURES[name]() for name in _undeclared(judgments)])
    prompts = vote_prompts(judgments)
    cross = measured.cross_group()
    sign = judgments.votes["sign"].to_numpy()
    found = offline_log_odds(sign, measured.delta, cross, prompts)
    q_values = _q_values([one.p_value for one in found])
    declared = carrier_sides(judgments.delta, judgments.cross_group())
    feature = carrier_sides(measured.delta, cross)
    level = 1 - 0.05 / max(1, sum(one.n_cross > 0 for one in found))
    rows = []
    for attribute, rows_differ, one, q_value, side in zip(
        measured.attributes, cross.T, found, q_values, feature.T, strict=True
    ):
        columns = np.column_stack([declared, side])
        beyond = joint_log_odds(columns, sign, prompts, level)[-1] if judgments.n_attributes else None
        low, high = one.interval(level) if one.n_cross else (None, None)
        row = {
            "feature": attribute.name,
            "n_annotators": voters(judgments, rows_differ),
            "n_cross": one.n_cross,
            "cross_share": one.n_cross / max(1, judgments.n_votes),
            "carrier_wins": one.carrier_wins,
            "log_odds": one.log_odds,
            "ci_low": low,
            "ci_high": high,
            "q_value": q_value,
            "beyond_declared": None if beyond is None else interval_row(beyond, "log_odds"),
        }
        told = collinearity(columns).dependent[-1].any()
        rows.append({**row, "advice": "nothing" if told else _advice(row, fdr)})
    return rows


def _undeclared(judgments: Judgments) -> list[str]:
    declared = {attribute.config.get("type") for attribute in judgments.attributes}
    known_order = judgments.votes["shown_first"].notna().any()
    return [
        name
        for name in FEATURES
        if not declared & {name, *_SAME_AS.get(name, ())} and (name != "position" or known_order)
    ]


def _q_values(p_values: list[float | None]) -> list[float | None]:
    """Benjamini and Hochberg's q-values of the p-values that are there."""
    known = [j for j, p in enumerate(p_values) if p is not None]
    p = np.array([p_values[j] for j in known], dtype=np.float64)
    order = np.argsort(p)
    raised = p[order] * len(p) / np.arange(1, len(p) + 1)
    q = np.empty(len(p))
    q[order] = np.minimum(1.0, np.minimum.accumulate(raised[::-1])[::-1])
    found: list[float | None] = [None] * len(p_values)
    for j, value in zip(known, q, strict=True):
        found[j] = float(value)
    return found


def _advice(row: dict[str, Any], fdr: float) -> str:
    """What ``RULE`` says of a feature that no declared attribute repeats."""
    beyond = row["beyond_declared"] or {"log_odds": None, "ci_low": None, "ci_high": None}
    sure = row["q_value"] is not None and row["q_value"] <= fdr
    sure_beyond = beyond["ci_low"] is not None and not beyond["ci_low"] <= 0 <= beyond["ci_high"]
    large = row["carrier_wins"] in (0.0, 1.0) if row["log_odds"] is None else _is_large(row["log_odds"])
    large_beyond = beyond["log_odds"] is not None and _is_large(beyond["log_odds"])
    common = row["cross_share"] >= COMMON_SHARE
    if sure and large and common and (large_beyond or beyond["log_odds"] is None):
        return "declare"
    return "watch" if (large or large_beyond) and (sure or sure_beyond or common) else "nothing"


def _is_large(log_odds: float) -> bool:
    return abs(log_odds) >= LARGE_LOG_ODDS
