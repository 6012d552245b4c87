"""What the pool as a whole leans toward: declared attributes, swap pairs, and surface features nobody declared."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logit

from badpo.data.attributes import (
    BUILT_IN,
    Length,
    LengthWords,
    Markdown,
    Position,
    markedly_longer,
)
from badpo.data.files import Json
from badpo.data.judgments import Judgments, measure_sides, numbered_texts
from badpo.data.markers import split_signature
from badpo.estimation.pool import (
    WIDEST_HALF,
    LogOdds,
    carrier_sides,
    dependent_columns,
    joint_log_odds,
    offline_log_odds,
    population_interval,
    swap_log_odds,
)
from badpo.estimation.shrinkage import q_values
from badpo.estimation.significance import other_feature_p
from badpo.theory import Floats
from badpo.theory.summaries import Interval

# Below this many prompts the interval is widened noticeably by its small-cluster form, and the table says so.
MANY_PROMPTS = 50
# Length ratios of the paper's appendix `app:multipref`; 1 is any difference at all.
LENGTH_RATIOS = (1.0, 1.25, 1.5, 2.0, 3.0)


def with_usual_attributes(judgments: Judgments) -> Judgments:
    """Judgments with their attributes; without any, with length, Markdown and, if known, the side shown first."""
    if judgments.n_attributes:
        return judgments
    is_known = judgments.votes["shown_first"].notna().any()
    return judgments.with_attributes([Length(), Markdown(), *[Position()] * bool(is_known)])


def pool_attributes(judgments: Judgments, ties: Mapping[str, Json] | None = None) -> list[Json]:
    """What the pool leans toward, before any model is trained.

    All log-odds are those of the side that carries the attribute (or has more of it) winning; above 0 the pool
    leans toward it. None stands for what the votes do not tell.

    Parameters
    ----------
    judgments : Judgments
    ties : mapping, or None
        For each attribute what `tie_effects` returns. Each row has its attribute's part as ``ties``.

    Returns
    -------
    list of dict, one for each attribute; `plain` makes it ready for JSON
        ``name``, ``scope``; ``n_cross`` and ``cross_share``: judgments whose sides differ; ``n_annotators`` who cast
        them, ``n_people`` of them no models, ``n_people_least`` of these who chose the side that fewer chose, and
        ``n_prompts`` that they stand on; ``carrier_wins``: share in which the carrying side won; ``log_odds`` and
        ``odds``; ``ci_low``, ``ci_high``: 95 %, for these annotators on other prompts, clustered by prompt
        (`badpo.estimation.pool`); ``population_ci``: 95 %, for other annotators like these too; ``interval``:
        "clustered", "small-cluster" (the same form, on fewer than 50 prompts), "naive only" (one prompt, or prompts
        that all have the very same share, which leaves no spread to tell others from), "too wide" (wider than ±3
        log-odds: log-odds and intervals are None) or None; ``naive_ci_low``,
        ``naive_ci_high``: as if every vote were independent. Where every vote went one way, log-odds are None and the
        interval has one end.

        ``sweep``: for a length ratio, ``parameter``, ``value``, ``cross_share``, ``log_odds``, ``ci_low``,
        ``ci_high`` for each of the ratios 1, 1.25, 1.5, 2 and 3; else empty. ``joint``: ``log_odds`` and interval
        beside the other attributes. ``quality_adjusted``: what `swap_pairs` says. ``collinear_with``: attributes that
        say exactly the same together with this one.

    References
    ----------
    BA-DPO, Table `attributes` and appendix `app:multipref`.
    """
    sign, prompts = judgments.votes["sign"].to_numpy(), judgments.prompt_of_votes()
    cross = judgments.cross_group()
    side, names = carrier_sides(judgments.delta, cross), judgments.attribute_names
    found = offline_log_odds(sign, judgments.delta, cross, prompts)
    joint = joint_log_odds(side, sign, prompts)
    dependent = dependent_columns(side)
    is_length = [attribute.config.get("type") == "length" for attribute in judgments.attributes]
    sweep = _sweep(judgments, prompts) if any(is_length) else []
    adjusted = swap_pairs(judgments)
    annotator = judgments.votes["annotator"].to_numpy()
    beyond = [
        population_interval((sign * side[:, j] > 0)[of], prompts[of], annotator[of])
        for j, of in enumerate(cross.T)
    ]
    return [
        {
            "name": attribute.name,
            "scope": attribute.scope,
            **voters(judgments, cross[:, j], judgments.delta[:, j]),
            **without_wide(log_odds_row(found[j], judgments.n_votes)),
            "population_ci": narrow_ends(*beyond[j]),
            "sweep": sweep if is_length[j] else [],
            "joint": interval_row(joint[j]),
            "quality_adjusted": adjusted[j],
            "collinear_with": [names[i] for i in np.flatnonzero(dependent[j])],
            "ties": (ties or {}).get(attribute.name),
        }
        for j, attribute in enumerate(judgments.attributes)
    ]


def voters(judgments: Judgments, rows: NDArray, delta: NDArray) -> dict[str, int]:
    """How many annotators cast the chosen votes, how many are people, and of these on the side of fewer."""
    who = judgments.votes["annotator"].to_numpy()[rows]
    for_carrier = (judgments.votes["sign"].to_numpy() * delta)[rows] > 0
    is_person = judgments.annotators["model"].isna().to_numpy()
    each = (who, who[for_carrier], who[~for_carrier])
    cast = [np.bincount(one, minlength=len(is_person)) > 0 for one in each]
    people = [int((one & is_person).sum()) for one in cast]
    return {
        "n_annotators": int(cast[0].sum()),
        "n_people": people[0],
        "n_people_least": min(people),
    }


def log_odds_row(found: LogOdds, n_votes: int) -> Json:
    """The part of an attribute's row that comes from its own cross-group votes alone."""
    (low, high), naive = found.interval(), found.interval(naive=True)
    form = "small-cluster" if found.n_clusters < MANY_PROMPTS else "clustered"
    form = "naive only" if low is None and high is None else form
    return {
        "cross_share": found.n_cross / max(1, n_votes),
        "n_cross": found.n_cross,
        "n_prompts": found.n_clusters,
        "carrier_wins": found.carrier_wins,
        "log_odds": found.log_odds,
        "ci_low": low,
        "ci_high": high,
        "interval": form if found.n_cross else None,
        "naive_ci_low": naive[0],
        "naive_ci_high": naive[1],
        "odds": found.odds,
    }


def without_wide(row: Json) -> Json:
    """The row without an estimate if its interval says nothing; ``interval`` is then "too wide"."""
    kind = "naive_ci_" if row["interval"] == "naive only" else "ci_"
    ends = [row[f"{kind}low"], row[f"{kind}high"]]
    if narrow_ends(*ends) == ends:
        return row
    figures = "log_odds", "odds", "ci_low", "ci_high", "naive_ci_low", "naive_ci_high"
    return {**row, **dict.fromkeys(figures), "interval": "too wide"}


def narrow_ends(low: float | None, high: float | None) -> list[float | None]:
    """The ends of an interval, None for one that is so wide that it says nothing."""
    is_wide = low is not None and high is not None and high - low > 2 * WIDEST_HALF
    return [None, None] if is_wide else [low, high]


def interval_row(interval: Interval | None) -> Json:
    """Log-odds and their interval; None if nothing is estimated, or with an interval that says nothing."""
    if interval is None or interval.high - interval.estimate > WIDEST_HALF:
        return {"log_odds": None, "ci_low": None, "ci_high": None}
    return {"log_odds": interval.estimate, "ci_low": interval.low, "ci_high": interval.high}


def _sweep(judgments: Judgments, prompts: NDArray) -> list[Json]:
    """The lean at other length ratios."""
    words = measure_sides(LengthWords(threshold=0), judgments.comparisons)
    a, b = words[judgments.votes["comparison"].to_numpy()].T
    shown, rows = ("cross_share", "log_odds", "ci_low", "ci_high"), []
    for ratio in LENGTH_RATIOS:
        longer, shorter = markedly_longer(a, b, ratio), markedly_longer(b, a, ratio)
        delta = (longer - shorter.astype(float))[:, None]
        (found,) = offline_log_odds(judgments.votes["sign"], delta, delta != 0, prompts)
        row = without_wide(log_odds_row(found, judgments.n_votes))
        who = voters(judgments, (delta != 0)[:, 0], delta[:, 0])
        rows.append({"parameter": "ratio", "value": ratio} | {name: row[name] for name in shown} | who)
    return rows


def plain(value: Any) -> Any:
    """The value as JSON has it: numpy's numbers and arrays as Python's, what is not finite as None.

    Examples
    --------
    >>> plain({"n": np.int64(3), "ci": (np.nan, 1.5), "known": np.bool_(True)})
    {'n': 3, 'ci': [None, 1.5], 'known': True}
    """

    def python(found: Any) -> Any:
        if isinstance(found, np.generic | np.ndarray):
            return found.tolist()
        raise TypeError(f"{type(found).__name__} has no place in audit.json")

    return json.loads(json.dumps(value, default=python), parse_constant=lambda _: None)


# -- swap pairs --------------------------------------------------------------------------------------------------

KIND_COLUMNS = ("kind", "kinds")
_MARKS = re.compile(r"[#*`|_>-]|(?<![^\n])[^\S\n]{0,8}\d{1,4}\.(?=\s)")
SAME_QUALITY = "under the convention that two texts that differ only in {} are equally good"
SAME_TEXTS = "votes on the same two texts either way round are compared with each other"
SWAP_PAIRS, OFFLINE = "swap pairs", "offline"


def audit_level(judgments: Judgments) -> dict[str, tuple[float | None, str]]:
    r"""The log-odds of each attribute that the carrying side wins, and where they are read.

    On swap pairs, whose texts differ in the attribute alone, quality cancels. An attribute without any takes the
    log-odds of all cross-group judgments, which quality pulls toward zero, or to the side that it goes with.

    The log-odds are per unit: None where no vote is cross-group, not finite where all go one way.
    """
    names, all_votes = judgments.attribute_names, judgments.offline_log_odds()
    found = zip(names, swap_pairs(judgments), all_votes, strict=True)
    return {
        name: (swap["log_odds"], SWAP_PAIRS) if swap else (offline.log_odds, OFFLINE)
        for name, swap, offline in found
    }


def swap_pairs(judgments: Judgments) -> list[Json | None]:
    """The lean toward each attribute as swap pairs show it, whose quality cancels; None without such pairs.

    Two kinds are found. In a *twin* the two responses of a comparison have one body (without signature and Markdown
    marks, words apart by one space), or a column ``kind``
    or ``kinds`` says "swap". In a *reversal* votes on the same two bodies are there with the attribute on either one:
    on two comparisons of a prompt or, for an attribute of the judgment, on one; reversals are read where there are no
    twins. Other declared attributes are the same throughout. Beside the log-odds, whose interval has no ends where a
    single prompt has swap pairs, stand the votes and voters behind them, what they ``assume``, as part of a sentence,
    and ``how``.
    """
    side = carrier_sides(judgments.delta, judgments.cross_group())
    votes = _votes_on_bodies(judgments)
    rows: list[Json | None] = []
    for j, attribute in enumerate(judgments.attributes):
        of_judgment = attribute.scope == "judgment"
        others = np.delete(side, j, axis=1)
        found = None if of_judgment else _from_twins(votes, side[:, j], others)
        row, pairs = found or _from_reversals(votes, side[:, j], others, of_judgment)
        assumes = SAME_TEXTS if of_judgment else SAME_QUALITY.format(attribute.name)
        people = {"n_votes": len(pairs), **voters(judgments, pairs, side[:, j])}
        rows.append(row and {**row, **people, "assumes": assumes, "how": SWAP_PAIRS})
    return rows


def _votes_on_bodies(judgments: Judgments) -> pd.DataFrame:
    """Of each vote: sign, prompt, the two bodies by number, which of them a has, and whether they are twins."""
    comparisons, comparison = judgments.comparisons, judgments.votes["comparison"].to_numpy()
    numbers, texts = numbered_texts(comparisons, ("response_a", "response_b"))
    # sixty-four bits for each body: the bodies of millions of texts need not be kept
    bodies = (" ".join(_MARKS.sub(" ", split_signature(text)[0]).split()) for text in texts)
    digests = [hashlib.blake2b(body.encode(), digest_size=8).digest() for body in bodies]
    number = pd.factorize(np.frombuffer(b"".join(digests), dtype=np.int64))[0][numbers]
    twin = number[0] == number[1]
    for name in KIND_COLUMNS:
        if name in comparisons:
            twin |= (comparisons[name] == "swap").to_numpy(dtype=bool)
    found = {
        "turn": np.where(number[0] <= number[1], 1, -1)[comparison],
        "low": number.min(axis=0)[comparison],
        "high": number.max(axis=0)[comparison],
        "twin": twin[comparison],
        "sign": judgments.votes["sign"].to_numpy(),
        "prompt": judgments.prompt_of_votes(),
    }
    return pd.DataFrame(found)


def _from_twins(votes: pd.DataFrame, side: NDArray, others: NDArray) -> tuple[Json, NDArray] | None:
    """The log-odds and the votes behind them; None where twins tell nothing."""
    pairs = votes["twin"].to_numpy() & (side != 0) & (others == 0).all(axis=1)
    (found,) = offline_log_odds(votes["sign"], side[:, None], pairs[:, None], votes["prompt"])
    if found.log_odds is None:
        return None
    ends = dict(zip(("ci_low", "ci_high"), found.interval(), strict=True))
    return {"log_odds": found.log_odds, **ends}, np.flatnonzero(pairs)


def _from_reversals(
    votes: pd.DataFrame, side: NDArray, others: NDArray, of_judgment: bool
) -> tuple[Json | None, NDArray]:
    turn, is_pair = votes["turn"].to_numpy(), of_judgment | ~votes["twin"].to_numpy()
    alike = votes[["prompt", "low", "high"]].join(pd.DataFrame(others * turn[:, None]))
    table = alike.assign(side=side * turn, sign=votes["sign"] * turn)[(side != 0) & is_pair]
    seen = table.groupby(list(alike), sort=False)
    table = table.assign(stratum=seen.ngroup())[seen["side"].transform("nunique") == 2]
    found = swap_log_odds(table["side"], table["sign"], table["stratum"], table["prompt"])
    return interval_row(found) if found else None, table.index.to_numpy()


# -- undeclared features -----------------------------------------------------------------------------------------

# Feature -> its attribute. A feature is skipped where an attribute of its type, or one that it repeats, is declared.
FEATURES = {kind: row.make for kind, row in BUILT_IN.items() if row.is_scanned}

# What makes a lean worth declaring: 0.3 log-odds is 57 to 43; a rarer feature hardly moves a policy.
LARGE_LOG_ODDS = 0.3
COMMON_SHARE = 0.05
FALSE_ALARMS = 0.1
SCANNED = "n_cross", "cross_share", "carrier_wins", "log_odds"


def undeclared_features(judgments: Judgments) -> Judgments:
    """The votes with the surface features that are scanned as their attributes."""
    left_out = {attribute.config.get("type") for attribute in judgments.attributes}
    if judgments.votes["shown_first"].isna().all():
        left_out.add("position")
    scanned = [
        make() for name, make in FEATURES.items() if not left_out & {name, *BUILT_IN[name].repeats}
    ]
    return judgments.with_attributes(scanned)


def scan_features(judgments: Judgments, measured: Judgments) -> list[Json]:
    """How the undeclared surface features fare in the votes, and which are worth declaring.

    The features, ``measured``, are those of `undeclared_features`; their figures are those of a declared attribute
    (`pool_attributes`). Intervals are clustered by prompt and simultaneous, so that all features' together cover with
    95 % (Bonferroni); ``q_value`` is Benjamini and Hochberg's over the features, and sure is one of at most
    ``FALSE_ALARMS``; ``beyond_declared`` is beside the declared attributes, None where none is declared or where they
    say the same; ``advice`` is described in `_advice`. A feature that stands on one prompt is never sure.
    """
    sign, prompts = judgments.votes["sign"].to_numpy(), judgments.prompt_of_votes()
    cross = measured.cross_group()
    found = offline_log_odds(sign, measured.delta, cross, prompts)
    q_value = q_values(np.array([one.p_value for one in found], float))
    declared = carrier_sides(judgments.delta, judgments.cross_group())
    level = 1 - 0.05 / max(1, sum(one.n_cross > 0 for one in found))
    rows = []
    for j, side in enumerate(carrier_sides(measured.delta, cross).T):
        columns = np.column_stack([declared, side])
        beyond = None
        if judgments.n_attributes:
            beyond = joint_log_odds(columns, sign, prompts, level)[-1]
        alone, (low, high) = log_odds_row(found[j], judgments.n_votes), found[j].interval(level)
        advice = _advice(alone, q_value[j] <= FALSE_ALARMS, beyond)
        row = {
            "feature": measured.attribute_names[j],
            **voters(judgments, cross[:, j], measured.delta[:, j]),
            **{name: alone[name] for name in SCANNED},
            "ci_low": low,
            "ci_high": high,
            "q_value": q_value[j],
            "beyond_declared": beyond and interval_row(beyond),
            "advice": "nothing" if dependent_columns(columns)[-1].any() else advice,
        }
        rows.append(row)
    return rows


# A feature goes with an attribute if their sides correlate by so much. The error of saying that biases are about the
# feature, over all pairs of both.
GOES_WITH, CONFOUNDED = 0.2, 0.05


def features_behind_biases(
    judgments: Judgments, measured: Judgments, votes: tuple[NDArray, ...], leans: Floats
) -> list[tuple[str, str, float, float]]:
    """Undeclared features that go with an attribute of the responses and explain the annotators' biases toward it.

    ``votes`` are the design's (comparison, sign, annotator and delta in units), ``leans``, of shape
    (n_annotators, n_attributes), the biases toward all attributes. Rows are attribute, feature, correlation of the
    sides, p-value.
    """
    stratum, sign, annotator, delta = votes
    of_vote, both = np.nan_to_num(leans)[annotator] * delta, (judgments, measured)
    sides = declared, features = [carrier_sides(each.delta, each.cross_group()) for each in both]
    sizes = np.multiply.outer(*(np.linalg.norm(side, axis=0) for side in sides))
    together = declared.T @ features / np.maximum(sizes, 1.0)
    scopes = ([one.scope != "judgment" for one in each.attributes] for each in both)
    pairs = np.argwhere(np.multiply.outer(*scopes) & (np.abs(together) >= GOES_WITH))
    rows = []
    for j, i in pairs:
        feature = features[:, i] * np.sign(together[j, i])
        others = np.delete(of_vote, j, axis=1).sum(axis=1)
        p_value = len(pairs) * other_feature_p(stratum, sign, annotator, delta[:, j], feature, others)
        if p_value < CONFOUNDED:
            names = judgments.attribute_names[j], measured.attribute_names[i]
            rows.append((*names, float(together[j, i]), p_value))
    return rows


def _advice(alone: Json, is_sure: bool, beyond: Interval | None) -> str:
    """What to do about a feature that no declared attribute repeats.

    "declare": it is surely preferred or avoided by ``LARGE_LOG_ODDS`` or more, also beside the declared attributes, and
    sides differ in ``COMMON_SHARE`` of the judgments or more. "watch": by as much, alone or beside the declared
    attributes, and it is either sure or as common. "nothing": anything else.
    """
    is_common = alone["cross_share"] >= COMMON_SHARE
    is_large = alone["n_cross"] > 0 and abs(logit(alone["carrier_wins"])) >= LARGE_LOG_ODDS
    large_beyond = beyond is not None and abs(beyond.estimate) >= LARGE_LOG_ODDS
    sure_beyond = beyond is not None and (beyond.low > 0 or beyond.high < 0)
    if is_sure and is_large and is_common and (large_beyond or beyond is None):
        return "declare"
    is_worth_it = (is_large or large_beyond) and (is_sure or sure_beyond or is_common)
    return "watch" if is_worth_it else "nothing"
