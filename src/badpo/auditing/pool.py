"""What the pool as a whole leans toward: declared attributes, swap pairs, and surface features nobody declared."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.auditing.result import plain
from badpo.data.attributes import BUILT_IN, Attribute, LengthWords, markedly_longer
from badpo.data.judgments import Judgments, measure_sides
from badpo.data.markers import split_signature
from badpo.data.tables import numbered_texts, side_pairs
from badpo.estimation.pool import (
    LogOdds,
    arena_coefficients,
    carrier_sides,
    co_occurrence,
    collinearity,
    joint_log_odds,
    normalized_difference,
    offline_log_odds,
    swap_log_odds,
)
from badpo.estimation.shrinkage import q_values
from badpo.theory.summaries import Interval

KIND_COLUMNS = ("kind", "kinds")
_MARKS = re.compile(r"[#*`|_>-]|(?<![^\n])[^\S\n]{0,8}\d{1,4}\.(?=\s)")


@dataclass(frozen=True)
class SwapEstimate:
    """The lean as swap pairs show it, the votes that it rests on, and what it assumes besides, as part of a sentence.

    Ends are None or NaN where a single prompt has swap pairs.
    """

    log_odds: float
    ci_low: float | None
    ci_high: float | None
    n_votes: int
    n_annotators: int
    assumes: str


def text_body(text: str) -> str:
    """A text without its signature and its Markdown marks, words apart by one space."""
    return " ".join(_MARKS.sub(" ", split_signature(text)[0]).split())


class SwapPairs:
    """The swap pairs among given judgments, for any of their attributes.

    Two kinds are found. In a *twin* the two responses of a comparison have one body (`text_body`), or a column
    ``kind`` or ``kinds`` says "swap". In a *reversal* votes on the same two bodies are there with the attribute on
    either one: on two comparisons of a prompt or, for an attribute of the judgment, on one. Other declared
    attributes are the same throughout.

    ``side``, of shape (n_votes, n_attributes), is as `badpo.estimation.pool.carrier_sides` gives it.
    """

    def __init__(self, judgments: Judgments, side: NDArray[np.float64]):
        self._judgments = judgments
        self._side = side
        self._comparison = judgments.votes["comparison"].to_numpy()
        self._sign = judgments.votes["sign"].to_numpy()
        self._annotator = judgments.votes["annotator"].to_numpy()
        comparisons = judgments.comparisons
        self._prompt = pd.factorize(comparisons["prompt_id"])[0][self._comparison]
        first, second = _body_codes(comparisons)
        self._twin = (first == second) | _said_to_be_swapped(comparisons)
        self._turn = np.where(first <= second, 1, -1)
        self._bodies = np.minimum(first, second), np.maximum(first, second)

    def log_odds(self, attribute: int) -> SwapEstimate | None:
        """The lean toward an attribute from its twins or, without any, from its reversals; None without either."""
        of_judgment = self._judgments.attributes[attribute].scope == "judgment"
        found = None if of_judgment else self._from_twins(attribute)
        return found or self._from_reversals(attribute, of_judgment)

    def _from_twins(self, attribute: int) -> SwapEstimate | None:
        others = np.delete(self._side, attribute, axis=1)
        rows = self._twin[self._comparison] & (others == 0).all(axis=1) & (self._side[:, attribute] != 0)
        side = self._side[:, [attribute]]
        (found,) = offline_log_odds(self._sign, side, rows[:, None], self._prompt)
        if found.log_odds is None:
            return None
        return self._estimate(attribute, (found.log_odds, found.ci_low, found.ci_high), rows)

    def _from_reversals(self, attribute: int, of_judgment: bool) -> SwapEstimate | None:
        turn, twin = self._turn[self._comparison], self._twin[self._comparison]
        rows = np.flatnonzero((self._side[:, attribute] != 0) & (of_judgment | ~twin))
        turned = self._side[rows] * turn[rows, None]
        codes = [self._prompt, *(body[self._comparison] for body in self._bodies)]
        others = np.delete(turned, attribute, axis=1)
        alike = pd.DataFrame(np.column_stack([*(code[rows] for code in codes), others]))
        stratum = alike.groupby(list(alike), sort=False).ngroup().to_numpy()
        side, sign = turned[:, attribute], self._sign[rows] * turn[rows]
        seen = pd.Series(side).groupby(stratum)
        both = (seen.transform("min") < seen.transform("max")).to_numpy(dtype=bool)
        rows = rows[both]
        found = swap_log_odds(side[both], sign[both], stratum[both], self._prompt[rows])
        if found is None:
            return None
        return self._estimate(attribute, (found.estimate, found.low, found.high), rows, of_judgment)

    def _estimate(
        self,
        attribute: int,
        log_odds: tuple[float, float | None, float | None],
        rows: NDArray,
        of_judgment: bool = False,
    ) -> SwapEstimate:
        voted = self._annotator[rows]
        name = self._judgments.attribute_names[attribute]
        assumes = f"under the convention that two texts that differ only in {name} are equally good"
        if of_judgment:
            assumes = "votes on the same two texts either way round are compared with each other"
        return SwapEstimate(*log_odds, len(voted), len(np.unique(voted)), assumes)


def _body_codes(comparisons: pd.DataFrame) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Numbers of the bodies of a and b; equal numbers are equal bodies."""
    numbers, texts = numbered_texts(comparisons, ("response_a", "response_b"))
    # sixty-four bits for each body: the bodies of millions of texts need not be kept
    bodies = [hashlib.blake2b(text_body(text).encode(), digest_size=8).digest() for text in texts]
    codes = pd.factorize(np.frombuffer(b"".join(bodies), dtype=np.int64))[0]
    first, second = codes[numbers]
    return first, second


def _said_to_be_swapped(comparisons: pd.DataFrame) -> NDArray[np.bool_]:
    said = np.zeros(len(comparisons), dtype=bool)
    for name in KIND_COLUMNS:
        if name in comparisons:
            said |= (comparisons[name] == "swap").to_numpy(dtype=bool)
    return said


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
        (`badpo.estimation.pool`); ``interval``: "clustered", "small-cluster" (the same form, on fewer than 50
        prompts), "naive only" (one prompt, or prompts that all have the very same share, which leaves no spread to
        tell others from) or None; ``naive_ci_low``, ``naive_ci_high``: as if every vote were independent. Where every
        vote went one way, log-odds are None and the interval has one end.

        ``sweep``: for a length ratio, ``parameter``, ``value``, ``cross_share``, ``log_odds``, ``ci_low``,
        ``ci_high`` for each of the ratios 1, 1.25, 1.5, 2 and 3; else empty. ``joint``: ``log_odds`` and interval
        beside the other attributes. ``quality_adjusted``: ``log_odds``, interval, ``how`` ("swap pairs" or "quality
        column ..."), ``n_votes``, ``n_annotators`` and what it ``assumes``. ``arena``: ``coefficient`` and interval as
        `badpo.estimation.pool` defines them. ``collinear_with``: attributes that say exactly the same together
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
        "naive_ci_low": found.interval(naive=True)[0],
        "naive_ci_high": found.interval(naive=True)[1],
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


# Feature -> its attribute. A feature is skipped where an attribute of its type, or one that it repeats, is declared.
FEATURES = {kind: row.make for kind, row in BUILT_IN.items() if row.is_scanned}

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
    q_value = q_values(np.array([one.p_value for one in found], dtype=np.float64))
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
            "q_value": q_value[j],
            "beyond_declared": beyond and interval_row(beyond, "log_odds"),
        }
        told = collinearity(columns).dependent[-1].any()
        rows.append({**row, "advice": "nothing" if told else _advice(row, fdr)})
    return plain(rows)


def _undeclared(judgments: Judgments) -> list[str]:
    declared = {attribute.config.get("type") for attribute in judgments.attributes}
    if not judgments.votes["shown_first"].notna().any():
        declared.add("position")
    return [name for name in FEATURES if not declared & {name, *BUILT_IN[name].repeats}]


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


SWAP_PAIRS, OFFLINE = "swap pairs", "offline"


def audit_level(judgments: Judgments) -> dict[str, tuple[float | None, str]]:
    r"""The log-odds of each attribute that the carrying side wins, and where they are read.

    On swap pairs, whose texts differ in the attribute alone, quality cancels. An attribute without any takes the
    log-odds of all cross-group judgments, which quality pulls toward zero, or to the side that it goes with.

    The log-odds are per unit: None where no vote is cross-group, not finite where all go one way.
    """
    pairs = SwapPairs(judgments, carrier_sides(judgments.delta, judgments.cross_group()))
    found = {}
    for j, (name, offline) in enumerate(
        zip(judgments.attribute_names, judgments.offline_log_odds(), strict=True)
    ):
        swap = pairs.log_odds(j)
        found[name] = (offline.log_odds, OFFLINE) if swap is None else (swap.log_odds, SWAP_PAIRS)
    return found
