"""What else the pool prefers: surface features that nobody declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from badpo.auditing.pool import interval_row, log_odds_row, vote_prompts, voters
from badpo.auditing.result import plain
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

    ``fdr`` is the share of false alarms that is accepted among the features called sure.

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
    """
    measured = judgments.with_attributes([FEATURES[name]() for name in _undeclared(judgments)])
    sign, prompts = judgments.votes["sign"].to_numpy(), vote_prompts(judgments)
    cross = measured.cross_group()
    found = offline_log_odds(sign, measured.delta, cross, prompts)
    q_values = _q_values(np.array([one.p_value for one in found], dtype=np.float64))
    declared = carrier_sides(judgments.delta, judgments.cross_group())
    sides = carrier_sides(measured.delta, cross)
    level = 1 - 0.05 / max(1, sum(one.n_cross > 0 for one in found))
    shown = ("n_cross", "cross_share", "carrier_wins", "log_odds")
    rows = []
    for j, one in enumerate(found):
        columns = np.column_stack([declared, sides[:, j]])
        beyond = joint_log_odds(columns, sign, prompts, level)[-1] if judgments.n_attributes else None
        alone = log_odds_row(one, judgments.n_votes)
        low, high = one.interval(level) if one.n_cross else (None, None)
        row = {
            "feature": measured.attribute_names[j],
            "n_annotators": voters(judgments, cross[:, j]),
            **{name: alone[name] for name in shown},
            "ci_low": low,
            "ci_high": high,
            "q_value": q_values[j],
            "beyond_declared": beyond and interval_row(beyond, "log_odds"),
        }
        told = collinearity(columns).dependent[-1].any()
        rows.append({**row, "advice": "nothing" if told else _advice(row, fdr)})
    return plain(rows)


def _undeclared(judgments: Judgments) -> list[str]:
    declared = {attribute.config.get("type") for attribute in judgments.attributes}
    if not judgments.votes["shown_first"].notna().any():
        declared.add("position")
    return [name for name in FEATURES if not declared & {name, *_SAME_AS.get(name, ())}]


def _q_values(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini and Hochberg's q-values of the p-values that are there; NaN for the others."""
    order = np.argsort(p_values)  # NaN comes last
    raised = p_values[order] * np.isfinite(p_values).sum() / np.arange(1, len(order) + 1)
    q_values = np.empty(len(order))
    q_values[order] = np.minimum(1.0, np.fmin.accumulate(raised[::-1])[::-1])
    return np.where(np.isnan(p_values), np.nan, q_values)


def _advice(row: dict[str, Any], fdr: float) -> str:
    """What ``RULE`` says of a feature that no declared attribute repeats."""
    beyond = row["beyond_declared"] or {"log_odds": None, "ci_low": np.nan, "ci_high": np.nan}
    sure, common = row["q_value"] <= fdr, row["cross_share"] >= COMMON_SHARE
    sure_beyond = beyond["ci_low"] > 0 or beyond["ci_high"] < 0
    large = row["carrier_wins"] in (0.0, 1.0) if row["log_odds"] is None else _is_large(row["log_odds"])
    large_beyond = beyond["log_odds"] is not None and _is_large(beyond["log_odds"])
    if sure and large and common and (large_beyond or beyond["log_odds"] is None):
        return "declare"
    return "watch" if (large or large_beyond) and (sure or sure_beyond or common) else "nothing"


def _is_large(log_odds: float) -> bool:
    return abs(log_odds) >= LARGE_LOG_ODDS
