"""Estimate the pool's bias toward declared attributes and undeclared surface features.

The bias toward declared attributes is also estimated from swap pairs.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import logit

from badpo.data.attributes import BUILT_IN, Length, Markdown, Position
from badpo.data.judgments import Judgments, numbered_texts
from badpo.data.markers import split_signature
from badpo.data.privacy import FEWEST_ANNOTATORS, is_dominated
from badpo.estimation.fit import Votes
from badpo.estimation.log_odds import (
    WIDEST_HALF,
    LogOdds,
    attribute_sides,
    dependent_columns,
    joint_log_odds,
    offline_log_odds,
    population_interval,
)
from badpo.estimation.shrinkage import q_values
from badpo.estimation.significance import other_feature_p
from badpo.results import audit_json
from badpo.theory import Array, Bools, Floats
from badpo.theory.summaries import Interval

# With fewer prompts than this, the small-cluster correction noticeably widens intervals, and the audit says so.
MANY_PROMPTS = 50
# The search for revealing sums of four rows covers at most this many rows; a search over more rows takes seconds.
MOST_ROWS = 40


def add_default_attributes(judgments: Judgments) -> Judgments:
    """If the judgments have no attribute, add length, Markdown and, if known, the side shown first."""
    if judgments.n_attributes:
        return judgments
    is_known = judgments.votes["shown_first"].notna().any()
    return judgments.with_attributes([Length(), Markdown(), *[Position()] * bool(is_known)])


def pool_attributes(
    judgments: Judgments,
    ties: Mapping[str, audit_json.TieRow] | None = None,
    swap: Floats | None = None,
) -> list[audit_json.AttributeRow]:
    """Estimate the pool's bias toward each attribute from the votes.

    All log-odds are for a win of the response with the attribute (or with more of the attribute), so positive log-odds
    mean that the pool prefers the attribute. A value is None if the votes do not identify it.

    Parameters
    ----------
    judgments : Judgments
    ties : mapping, or None
        Result of `estimate_tie_effects`; each returned row has the entry of its attribute as ``ties``.
    swap : array, or None
        Result of `swap_pair_sides`, if already computed.

    Returns
    -------
    list of dict, one for each attribute; `plain` converts the list for JSON
        ``name``, ``scope``; ``n_cross`` and ``cross_share``: number and share of judgments whose sides differ;
        ``n_annotators``: number of annotators who cast these judgments; ``n_people``: number of these annotators who
        are not models; ``n_people_least``: number of people who chose the less popular side; ``is_dominated``: whether
        few people cast most votes of people (`badpo.data.privacy`); ``differs_by_few``: see `find_revealing_rows`;
        ``n_prompts``: number of prompts; ``win_rate``: share of the judgments that the response with the attribute won;
        ``log_odds`` and ``odds``; ``ci_low``, ``ci_high``: 95 % confidence interval for these annotators on other
        prompts, clustered by prompt (`badpo.estimation.log_odds`); ``population_ci``: 95 % confidence interval for a
        population of annotators; ``interval``: "clustered", "small-cluster" (clustered, on fewer than 50 prompts),
        "naive only" (one prompt, or prompts that all have the same share, so that the variance between prompts cannot
        be estimated), "too wide" (wider than ±3 log-odds: log-odds and intervals are None) or None; ``naive_ci_low``,
        ``naive_ci_high``: interval under the assumption that all votes are independent. If all votes are for one side,
        the log-odds are None and the interval has one end.

        ``joint``: ``log_odds`` and interval adjusted for the other attributes. ``quality_adjusted``: the bias
        estimated from swap pairs. ``collinear_with``: attributes that are linearly dependent together with this
        attribute.

    References
    ----------
    BA-DPO, Table `attributes` and appendix `app:multipref`.
    """
    sign, prompts = judgments.votes["sign"].to_numpy(), judgments.prompt_of_votes()
    cross = judgments.cross_group()
    side, names = attribute_sides(judgments.delta, cross), judgments.attribute_names
    pooled = offline_log_odds(sign, judgments.delta, cross, prompts)
    joint = joint_log_odds(side, sign, prompts)
    dependent = dependent_columns(side)
    swap = swap_pair_sides(judgments) if swap is None else swap
    revealing = find_revealing_rows(judgments, [*side.T, *swap.T])
    adjusted = _build_swap_pair_rows(judgments, swap, revealing[len(names) :])
    annotator = judgments.votes["annotator"].to_numpy()
    beyond = [
        population_interval((sign * side[:, j] > 0)[differs], prompts[differs], annotator[differs])
        for j, differs in enumerate(cross.T)
    ]
    return [
        {
            "name": attribute.name,
            "scope": attribute.scope,
            **count_voters(judgments, cross[:, j], judgments.delta[:, j], revealing[j]),
            **_remove_wide(log_odds_row(pooled[j], judgments.n_votes)),
            "population_ci": drop_wide_ends(*beyond[j]),
            "joint": interval_row(joint[j]),
            "quality_adjusted": adjusted[j],
            "collinear_with": [names[i] for i in np.flatnonzero(dependent[j])],
            "ties": (ties or {}).get(attribute.name),
            "verdict": None,
        }
        for j, attribute in enumerate(judgments.attributes)
    ]


def count_voters(
    judgments: Judgments, rows: Bools, delta: Floats, by_few: bool
) -> audit_json.VoteFigure:
    """Count the annotators and people who cast the selected votes, and the people who chose the less popular side.

    ``is_dominated`` says whether few people cast most of the human votes.
    """
    who = judgments.votes["annotator"].to_numpy()[rows]
    for_more = (judgments.votes["sign"].to_numpy() * delta)[rows] > 0
    is_person = judgments.annotators["model"].isna().to_numpy()
    each = (who, who[for_more], who[~for_more])
    n_votes = [np.bincount(one, minlength=len(is_person)) for one in each]
    people = [int(np.count_nonzero(one[is_person])) for one in n_votes]
    return {
        "n_annotators": int(np.count_nonzero(n_votes[0])),
        "n_people": people[0],
        "n_people_least": min(people),
        "is_dominated": judgments.has_identities and is_dominated(n_votes[0][is_person]),
        "differs_by_few": by_few,
    }


def find_revealing_rows(judgments: Judgments, rows: Sequence[Array]) -> list[bool]:
    """Find rows of figures that reveal the votes of fewer than five people if combined with earlier rows.

    A row contains, for every vote, the side with the row's attribute (`attribute_sides`). The sign of a vote is +1 or
    -1, and a side is +1, -1 or 0. From the published figures of a row, a reader can compute the sum of side times sign
    over all votes. The reader can also add or subtract the sums of up to three other rows, including the same row
    several times. A row is revealing if a combination of the row with other rows cancels the votes of all but one to
    four people. The page omits revealing rows, so the search does not combine later rows with them. The search covers
    at most ``MOST_ROWS`` rows; all later rows count as revealing.
    """
    who = judgments.votes["annotator"].to_numpy()
    if judgments.has_identities:
        is_chosen = judgments.annotators["model"].isna().to_numpy()[who]
    else:  # each vote may be from a different person
        who, is_chosen = np.arange(len(who)), np.ones(len(who), dtype=bool)
    person, people = pd.factorize(who[is_chosen])
    # Each vote gets a random weight. If a person's weights cancel in a sum of rows, so do the votes (almost surely).
    weights = np.random.default_rng(0).integers(2**62, size=len(person))
    signed, revealing = [np.zeros(len(people), np.int64)], list[bool]()
    for row in rows:
        own = np.zeros(len(people), np.int64)
        np.add.at(own, person, weights * np.asarray(row)[is_chosen].astype(np.int64))
        is_first = len(signed) // 2 < MOST_ROWS
        revealing.append(not is_first or _reveals_few(own, np.array([*signed, own, -own])))
        signed += [] if revealing[-1] else [own, -own]
    return revealing


def _reveals_few(own: Array, signed: Array) -> bool:
    """Return whether ``own`` plus three rows of ``signed`` can be nonzero for only one to four people (columns)."""
    if not len(own):
        return False
    three = np.array([*itertools.combinations_with_replacement(range(len(signed)), 3)]).T
    # Every group of people with a nonzero sum contains at least one person with a nonzero value.
    starts = np.unique(np.linspace(0, len(own), 12, endpoint=False).astype(int))
    sums, new = np.add.reduceat(signed, starts, axis=1), np.add.reduceat(own, starts)
    n_groups = np.count_nonzero(new + sums[three[0]] + sums[three[1]] + sums[three[2]], axis=1)
    candidates = three.T[(n_groups > 0) & (n_groups < FEWEST_ANNOTATORS)]
    n_people = (np.count_nonzero(own + signed[rows].sum(axis=0)) for rows in candidates)
    return any(n < FEWEST_ANNOTATORS for n in n_people)


def log_odds_row(pooled: LogOdds, n_votes: int) -> audit_json.CrossVotesRow:
    """Figures of an attribute that depend only on the votes whose sides differ in the attribute."""
    (low, high), naive = pooled.interval(), pooled.interval(naive=True)
    form = "small-cluster" if pooled.n_clusters < MANY_PROMPTS else "clustered"
    form = "naive only" if low is None and high is None else form
    return {
        "cross_share": pooled.n_cross / max(1, n_votes),
        "n_cross": pooled.n_cross,
        "n_prompts": pooled.n_clusters,
        "win_rate": pooled.win_rate,
        "log_odds": pooled.log_odds,
        "ci_low": low,
        "ci_high": high,
        "interval": form if pooled.n_cross else None,
        "naive_ci_low": naive[0],
        "naive_ci_high": naive[1],
        "odds": pooled.odds,
    }


def _remove_wide(row: audit_json.CrossVotesRow) -> audit_json.CrossVotesRow:
    """If the interval is too wide, remove the estimates from the row, and set ``interval`` to "too wide"."""
    is_naive = row["interval"] == "naive only"
    ends = (row["naive_ci_low"], row["naive_ci_high"]) if is_naive else (row["ci_low"], row["ci_high"])
    if drop_wide_ends(*ends) == [*ends]:
        return row
    wide: audit_json.CrossVotesRow = {**row, "log_odds": None, "odds": None, "interval": "too wide"}
    wide.update({"ci_low": None, "ci_high": None, "naive_ci_low": None, "naive_ci_high": None})
    return wide


def drop_wide_ends(low: float | None, high: float | None) -> audit_json.Ends:
    """Return both limits of an interval, or two None values if the interval is too wide to be useful."""
    is_wide = low is not None and high is not None and high - low > 2 * WIDEST_HALF
    return [None, None] if is_wide else [low, high]


def interval_row(interval: Interval | None) -> audit_json.LogOddsRow:
    """Return the log-odds with an interval; all values are None without an estimate or if the interval is too wide."""
    if interval is None or interval.high - interval.estimate > WIDEST_HALF:
        return {"log_odds": None, "ci_low": None, "ci_high": None}
    return {"log_odds": interval.estimate, "ci_low": interval.low, "ci_high": interval.high}


def plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to Python values for JSON, and NaN and infinite values to None.

    Examples
    --------
    >>> plain({"n": np.int64(3), "ci": (np.nan, 1.5), "known": np.bool_(True)})
    {'n': 3, 'ci': [None, 1.5], 'known': True}
    """
    text = json.dumps(value, default=methodcaller("tolist"))
    return json.loads(text, parse_constant=lambda _: None)


# -- swap pairs --------------------------------------------------------------------------------------------------

KIND_COLUMNS = ("kind", "kinds")
_MARKS = re.compile(r"[#*`|_>-]|(?<![^\n])[^\S\n]{0,8}\d{1,4}\.(?=\s)")
SAME_QUALITY = "under the convention that two texts that differ only in {} are equally good"
SWAP_PAIRS, OFFLINE = "swap pairs", "offline"


def estimate_shared_biases(judgments: Judgments) -> dict[str, tuple[float | None, str]]:
    r"""Log-odds that the response with each attribute wins, and the votes used: swap pairs or all judgments.

    The responses in a swap pair differ only in the attribute, so quality cancels out. If an attribute has no swap
    pairs, the log-odds come from all cross-group judgments. Log-odds from all cross-group judgments are attenuated by
    the quality of the responses, or biased if quality correlates with the attribute.

    The log-odds are per unit; they are None without a cross-group vote, and infinite if all votes are for one side.
    """
    swap = swap_pair_sides(judgments)
    of_swap = offline_log_odds(judgments.votes["sign"], swap, swap != 0, judgments.prompt_of_votes())
    columns = zip(judgments.attribute_names, of_swap, judgments.offline_log_odds(), strict=True)
    return {
        name: (offline.log_odds, OFFLINE) if paired.log_odds is None else (paired.log_odds, SWAP_PAIRS)
        for name, paired, offline in columns
    }


def swap_pair_sides(judgments: Judgments) -> Floats:
    """For each vote on a swap pair, the side with each attribute; for other votes, 0.

    The result has the shape (n_votes, n_attributes).

    The two responses in a swap pair have the same body: the text without signature, Markdown markers and repeated
    spaces. A comparison is also a swap pair if a column ``kind`` or ``kinds`` contains the value "swap". In all other
    declared attributes, the sides of a swap pair do not differ. An attribute of the judgment, such as which response
    was shown first, has no swap pairs.
    """
    comparisons = judgments.comparisons
    numbers, texts = numbered_texts(comparisons, ("response_a", "response_b"))
    # 64-bit digests need much less memory than the bodies of millions of texts.
    bodies = (" ".join(_MARKS.sub(" ", split_signature(text)[0]).split()) for text in texts)
    digests = [hashlib.blake2b(body.encode(), digest_size=8).digest() for body in bodies]
    number = np.frombuffer(b"".join(digests), dtype=np.int64)[numbers]
    is_pair = number[0] == number[1]
    for name in KIND_COLUMNS:
        if name in comparisons:
            is_pair |= (comparisons[name] == "swap").to_numpy(dtype=bool)
    side = attribute_sides(judgments.delta, judgments.cross_group())
    of_responses = np.array([one.scope != "judgment" for one in judgments.attributes], dtype=bool)
    differs_alone = (side != 0).sum(axis=1) == 1
    is_used = differs_alone & is_pair[judgments.votes["comparison"]]
    return np.where(is_used[:, None] & of_responses, side, 0.0)


def _build_swap_pair_rows(
    judgments: Judgments, swap: Floats, revealing: Sequence[bool]
) -> list[audit_json.SwapPairRow | None]:
    """Bias toward each attribute, estimated from swap pairs, so that quality cancels out; None without an estimate.

    A row contains the log-odds with an interval, the numbers of votes and voters, and the assumption behind the
    estimate (``assumes``, phrased as part of a sentence). If all swap pairs share one prompt, the limits of the
    interval are None.
    """
    sign, prompts = judgments.votes["sign"], judgments.prompt_of_votes()
    rows: list[audit_json.SwapPairRow | None] = []
    for j, pooled in enumerate(offline_log_odds(sign, swap, swap != 0, prompts)):
        (low, high), side = pooled.interval(), swap[:, j]
        row: audit_json.SwapPairRow = {
            "log_odds": pooled.log_odds,
            "ci_low": low,
            "ci_high": high,
            "n_votes": pooled.n_cross,
            **count_voters(judgments, side != 0, side, revealing[j]),
            "assumes": SAME_QUALITY.format(judgments.attribute_names[j]),
        }
        rows.append(None if pooled.log_odds is None else row)
    return rows


# -- undeclared features -----------------------------------------------------------------------------------------

# Feature -> its attribute. The scan skips a feature if an attribute of the same or a similar type is declared.
FEATURES = {kind: row.make for kind, row in BUILT_IN.items() if row.is_scanned}

# The audit recommends declaring a feature only if the bias toward the feature is at least LARGE_LOG_ODDS.
# Log-odds of 0.3 correspond to 57 wins in 100 judgments.
# The audit also requires that the responses differ in the feature in at least COMMON_SHARE of the judgments.
LARGE_LOG_ODDS = 0.3
COMMON_SHARE = 0.05
# Largest q-value of a significant feature.
FALSE_ALARMS = 0.1


def measure_undeclared_features(judgments: Judgments) -> Judgments:
    """Return the judgments with the scanned surface features as attributes."""
    left_out = {attribute.config.get("type") for attribute in judgments.attributes}
    if judgments.votes["shown_first"].isna().all():
        left_out.add("position")
    scanned = [
        make() for name, make in FEATURES.items() if not left_out & {name, *BUILT_IN[name].repeats}
    ]
    return judgments.with_attributes(scanned)


def scan_features(
    judgments: Judgments, measured: Judgments, swap: Floats
) -> list[audit_json.FeatureRow]:
    """Estimate the bias toward undeclared surface features, and advise which features to declare.

    ``measured`` is the result of `measure_undeclared_features`, and ``swap`` is the result of `swap_pair_sides`.
    `pool_attributes` explains the figures. The 95 % confidence intervals are clustered by prompt and simultaneous over
    all features (Bonferroni). ``q_value`` is the Benjamini-Hochberg q-value over the features; a feature is significant
    if the q-value is at most ``FALSE_ALARMS``. ``beyond_declared`` is adjusted for the declared attributes, and None if
    no attribute is declared or if the feature is a linear combination of them. `_advise` explains ``advice``. If the
    sides differ in a feature on only one prompt, the feature is never significant.
    """
    sign, prompts = judgments.votes["sign"].to_numpy(), judgments.prompt_of_votes()
    cross = measured.cross_group()
    pooled = offline_log_odds(sign, measured.delta, cross, prompts)
    q_value = q_values(np.array([one.p_value for one in pooled], float))
    declared = attribute_sides(judgments.delta, judgments.cross_group())
    level = 1 - 0.05 / max(1, sum(one.n_cross > 0 for one in pooled))
    rows, sides = list[audit_json.FeatureRow](), attribute_sides(measured.delta, cross).T
    before = [*declared.T, *swap.T]
    revealing = find_revealing_rows(judgments, [*before, *sides])[len(before) :]
    for j, side in enumerate(sides):
        columns = np.column_stack([declared, side])
        beyond = None
        if judgments.n_attributes:
            beyond = joint_log_odds(columns, sign, prompts, level)[-1]
        alone, (low, high) = log_odds_row(pooled[j], judgments.n_votes), pooled[j].interval(level)
        is_common = alone["cross_share"] >= COMMON_SHARE
        advice = _advise(pooled[j], is_common, q_value[j] <= FALSE_ALARMS, beyond)
        row: audit_json.FeatureRow = {
            "feature": measured.attribute_names[j],
            **count_voters(judgments, cross[:, j], measured.delta[:, j], revealing[j]),
            "n_cross": alone["n_cross"],
            "cross_share": alone["cross_share"],
            "win_rate": alone["win_rate"],
            "log_odds": alone["log_odds"],
            "ci_low": low,
            "ci_high": high,
            "q_value": q_value[j],
            "beyond_declared": interval_row(beyond) if beyond else None,
            "advice": "nothing" if dependent_columns(columns)[-1].any() else advice,
        }
        rows.append(row)
    return rows


# A feature is tested if its differences correlate at least this strongly with the differences in an attribute.
# The tests of whether a feature explains the biases have this significance level over all feature-attribute pairs.
LEAST_CORRELATION, CONFOUNDED = 0.2, 0.05


class ConfoundingFeature(NamedTuple):
    """Undeclared feature that may explain the biases toward a correlated attribute, with a p-value."""

    attribute: str
    feature: str
    correlation: float
    p_value: float


def find_confounding_features(
    judgments: Judgments, measured: Judgments, votes: Votes, biases: Floats
) -> list[ConfoundingFeature]:
    """Find undeclared features that explain the annotators' biases better than a correlated, declared attribute.

    ``biases`` contains the annotators' biases toward all attributes, with the shape (n_annotators, n_attributes).
    """
    known, both = np.nan_to_num(biases)[votes.annotator] * votes.delta, (judgments, measured)
    sides = declared, features = [attribute_sides(each.delta, each.cross_group()) for each in both]
    sizes = np.multiply.outer(*(np.linalg.norm(side, axis=0) for side in sides))
    correlation = declared.T @ features / np.maximum(sizes, 1.0)
    scopes = ([one.scope != "judgment" for one in each.attributes] for each in both)
    pairs = np.argwhere(np.multiply.outer(*scopes) & (np.abs(correlation) >= LEAST_CORRELATION))
    rows = []
    for j, i in pairs:
        feature = features[:, i] * np.sign(correlation[j, i])
        others = np.delete(known, j, axis=1).sum(axis=1)
        p_value = len(pairs) * other_feature_p(
            votes._replace(delta=votes.delta[:, [j]]), feature, others
        )
        if p_value < CONFOUNDED:
            names = judgments.attribute_names[j], measured.attribute_names[i]
            rows.append(ConfoundingFeature(*names, float(correlation[j, i]), p_value))
    return rows


def _advise(pooled: LogOdds, is_common: bool, is_sure: bool, beyond: Interval | None) -> str:
    """Choose the advice about a feature that is not a linear combination of the declared attributes.

    "declare": the bias toward the feature is significant and at least ``LARGE_LOG_ODDS``, before and after adjustment
    for the declared attributes, and the sides differ in at least ``COMMON_SHARE`` of the judgments. "watch": the bias
    is at least ``LARGE_LOG_ODDS`` before or after adjustment, and the feature is either significant or common.
    "nothing": all other features.
    """
    is_large = pooled.win_rate is not None and abs(logit(pooled.win_rate)) >= LARGE_LOG_ODDS
    large_beyond = beyond is not None and abs(beyond.estimate) >= LARGE_LOG_ODDS
    sure_beyond = beyond is not None and (beyond.low > 0 or beyond.high < 0)
    if is_sure and is_large and is_common and (large_beyond or beyond is None):
        return "declare"
    is_relevant = (is_large or large_beyond) and (is_sure or sure_beyond or is_common)
    return "watch" if is_relevant else "nothing"
