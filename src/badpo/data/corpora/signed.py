"""The signed corpus: scored pairs, name signatures, and annotators whose bias is planted.

The annotators are constructed to lean toward a marker in the signature. The corpus does not measure prejudice;
its attributes are gender-coded and race-coded *names*. See the paper's appendix `app:names`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from badpo.data.attributes import SignatureName
from badpo.data.corpora.names import black_names, woman_names
from badpo.data.corpora.signatures import (
    SIGNING_INSTRUCTION,
    ask_to_sign,
    read_signature,
    resign,
    signature,
    some_ask_to_sign,
    strip_signature,
)
from badpo.data.corpora.signed_plan import SignedConfig, SignedPlan, draw_plan
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem

__all__ = [
    "PAIR_COLUMNS",
    "SIGNING_INSTRUCTION",
    "SignedConfig",
    "SignedCorpus",
    "SignedPlan",
    "ask_to_sign",
    "build",
    "draw_plan",
    "gate",
    "read_signature",
    "resign",
    "scored_pairs_from_responses",
    "signature",
    "some_ask_to_sign",
    "strip_signature",
    "usable_pairs",
]

PAIR_COLUMNS = ("prompt_id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected")
_TEXT_COLUMNS = ("prompt", "chosen", "rejected")
_SCORE_COLUMNS = ("score_chosen", "score_rejected")
_ATTRIBUTE_NAMES = ("woman", "black")


@dataclass(frozen=True)
class SignedCorpus:
    """A signed corpus with what is known about it because it was planted.

    Attributes
    ----------
    judgments : Judgments
        The votes, with the attributes ``woman`` and ``black`` read from the signatures. Response a is the originally
        chosen text of the pair, response b the other one.
    planted_theta : ndarray of shape (n_annotators, 2)
        Planted bias of each annotator of ``judgments.annotators``, in log-odds; to measure with, never to train on.
    quality : ndarray of shape (n_comparisons,)
        Planted quality margin q of response a over response b, in log-odds; 0 on swap pairs.
    kinds : ndarray of shape (n_comparisons,), str
        ``"quality"``, ``"swap"`` or ``"mixed"``.
    plan : SignedPlan
        The random plan.
    dropped : DataFrame
        Pairs that were left out: columns ``reason`` and ``n``.
    """

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]
    kinds: NDArray[np.str_]
    plan: SignedPlan
    dropped: pd.DataFrame


def usable_pairs(pairs: pd.DataFrame, min_words: int = 5) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs that the recipe keeps, and how many it leaves out.

    Parameters
    ----------
    pairs : DataFrame
        Scored pairs with the columns of ``PAIR_COLUMNS``: one row is a prompt, the response with the higher score,
        the other response and the two scores.
    min_words : int
        Least number of whitespace words in each response.

    Returns
    -------
    kept : DataFrame
        The usable rows in their order, index 0, 1, ...
    dropped : DataFrame
        Columns ``reason`` and ``n``; no row when nothing was left out.

    Raises
    ------
    DataError
        When a column is missing, a text is empty or no text, or a score is not a number: every such problem at once.

    Examples
    --------
    >>> rows = pd.DataFrame({"prompt_id": ["p1", "p2"], "prompt": ["Boil rice?", "Boil eggs?"],
    ...     "chosen": ["Rinse it and boil it slowly.", "Ten minutes in hot water do."],
    ...     "rejected": ["Put it in cold water first.", "No."],
    ...     "score_chosen": [8.0, 7.0], "score_rejected": [3.0, 1.0]})
    >>> kept, dropped = usable_pairs(rows)
    >>> len(kept), dropped.to_dict("records")
    (1, [{'reason': 'a response has fewer than 5 words', 'n': 1}])
    """
    check_pairs(pairs, "scored pairs")
    words = pairs[["chosen", "rejected"]].map(lambda text: len(text.split())).min(axis=1)
    long_enough = words >= min_words
    n_short = int((~long_enough).sum())
    reasons = [{"reason": f"a response has fewer than {min_words} words", "n": n_short}] if n_short else []
    return pairs[long_enough].reset_index(drop=True), pd.DataFrame(reasons, columns=["reason", "n"])


def scored_pairs_from_responses(responses: pd.DataFrame, n_pairs: int, seed: int = 0) -> pd.DataFrame:
    """Scored pairs drawn from a table with several scored responses to each prompt.

    Each pair is two different texts to one prompt; the one with the higher score is the chosen one (at equal scores
    the one drawn first). All such pairs are shuffled and the first ``n_pairs`` are taken, so no pair comes twice.

    Parameters
    ----------
    responses : DataFrame
        Columns ``prompt_id``, ``prompt``, ``response`` and ``score``.
    n_pairs : int
        Number of pairs; fewer come back when there are fewer.
    seed : int
        Seed of the shuffle.

    Returns
    -------
    DataFrame
        Columns ``PAIR_COLUMNS``, ready for ``build``.

    Examples
    --------
    >>> table = pd.DataFrame({"prompt_id": ["p"] * 3, "prompt": ["Boil rice?"] * 3,
    ...     "response": ["Rinse it first.", "No.", "Use a pot."], "score": [8, 1, 6]})
    >>> pairs = scored_pairs_from_responses(table, n_pairs=10)
    >>> len(pairs), bool((pairs.score_chosen > pairs.score_rejected).all())
    (3, True)
    """
    generator = np.random.default_rng(seed)
    rows = responses.reset_index(drop=True)
    candidates = [
        (first, second)
        for _, members in sorted(rows.groupby("prompt_id").groups.items())
        for position, first in enumerate(members)
        for second in members[position + 1 :]
        if rows.at[first, "response"] != rows.at[second, "response"]
    ]
    taken = [candidates[i] for i in generator.permutation(len(candidates))[:n_pairs]]
    records = []
    for first, second in taken:
        better, worse = (
            (second, first) if rows.at[second, "score"] > rows.at[first, "score"] else (first, second)
        )
        records.append(
            {
                "prompt_id": rows.at[better, "prompt_id"],
                "prompt": rows.at[better, "prompt"],
                "chosen": rows.at[better, "response"],
                "rejected": rows.at[worse, "response"],
                "score_chosen": float(rows.at[better, "score"]),
                "score_rejected": float(rows.at[worse, "score"]),
            }
        )
    return pd.DataFrame(records, columns=list(PAIR_COLUMNS))


def build(
    pairs: pd.DataFrame, plan: SignedPlan | None = None, *, seed: int = 0, config: SignedConfig | None = None
) -> SignedCorpus:
    """Signed corpus on scored pairs.

    Pairs with a response under ``config.min_words`` words are left out and counted; the plan covers those that stay.
    A comparison has its own id (column ``comparison_id`` where the pairs have one, else the row number), so pairs
    that share a prompt stay apart.

    Parameters
    ----------
    pairs : DataFrame
        Scored pairs with the columns of ``PAIR_COLUMNS``.
    plan : SignedPlan or None
        A plan for exactly the usable pairs; None draws one.
    seed : int
        Data seed of the plan that is drawn; unused when a plan is given.
    config : SignedConfig or None
        Configuration of the plan that is drawn; unused when a plan is given.

    Returns
    -------
    SignedCorpus
        Judgments with class labels on the annotators, and the planted values beside them.

    Raises
    ------
    DataError
        When the pairs are not usable (see ``usable_pairs``), none is left, or the plan covers another number.

    References
    ----------
    BA-DPO, appendix `app:names`.

    Examples
    --------
    >>> from badpo.data.corpora import bundled
    >>> corpus = build(bundled.scored_pairs(200), seed=0)
    >>> corpus.judgments.attribute_names, corpus.judgments.n_votes
    (('woman', 'black'), 800)
    """
    config = plan.config if plan else config or SignedConfig()
    kept, dropped = usable_pairs(pairs, config.min_words)
    plan = plan or draw_plan(len(kept), seed, config)
    if len(kept) != plan.n_pairs or not len(kept):
        raise DataError([_count_problem(len(kept), plan.n_pairs)])
    quality = config.quality_scale * (kept["score_chosen"] - kept["score_rejected"]).to_numpy(
        dtype=np.float64
    )
    quality = np.where(plan.kinds == "swap", 0.0, quality)
    comparisons = _signed_responses(kept, plan)
    judgments = Judgments.read(
        _vote_rows(comparisons, plan, plan.labels(quality)),
        attributes=(SignatureName("woman", woman_names()), SignatureName("black", black_names())),
        repeated="all",
    )
    planted = np.full((judgments.n_annotators, 2), np.nan)
    planted[judgments.votes["annotator"]] = plan.theta[plan.annotators.ravel()[judgments.votes["row"]]]
    return SignedCorpus(judgments, planted, quality, plan.kinds, plan, dropped)


def gate(corpus: SignedCorpus) -> dict[str, Any]:
    """Statistics that are read from the labels before any training.

    Parameters
    ----------
    corpus : SignedCorpus
        A signed corpus.

    Returns
    -------
    dict
        ``pairs`` (count by kind), ``n_judgments``, ``judgments_per_annotator`` (least, most), ``class_means``
        (class -> realised planted mean of each attribute), ``cross_group`` (share of judgments whose responses
        differ, by attribute and on ``any``), ``swap_log_odds`` and ``all_log_odds`` (attribute -> ``all`` and each
        class -> log-odds that the side with the attribute wins, on swap pairs and on all cross-group judgments; None
        when every such vote goes one way or there is none). Plain numbers, ready for JSON.

    References
    ----------
    BA-DPO, appendix `app:names`, "Gate".

    Examples
    --------
    >>> from badpo.data.corpora import bundled
    >>> gate(build(bundled.scored_pairs(200), seed=0))["pairs"]
    {'quality': 85, 'swap': 39, 'mixed': 76}
    """
    judgments, plan = corpus.judgments, corpus.plan
    votes = judgments.votes
    swap = corpus.kinds[votes["comparison"]] == "swap"
    classes = judgments.annotators["annotator_class"].to_numpy()[votes["annotator"]]
    cross = judgments.delta != 0
    carrier_wins = judgments.delta * votes["sign"].to_numpy()[:, None] > 0
    shares = dict(zip(_ATTRIBUTE_NAMES, cross.mean(axis=0).tolist(), strict=True))
    per_annotator = np.bincount(votes["annotator"], minlength=judgments.n_annotators)
    return {
        "pairs": {kind: int((corpus.kinds == kind).sum()) for kind in ("quality", "swap", "mixed")},
        "n_judgments": judgments.n_votes,
        "judgments_per_annotator": {"least": int(per_annotator.min()), "most": int(per_annotator.max())},
        "class_means": {
            name: dict(
                zip(
                    _ATTRIBUTE_NAMES,
                    plan.theta[plan.annotator_class == name].mean(axis=0).tolist(),
                    strict=True,
                )
            )
            for name in plan.config.class_means
        },
        "cross_group": {**shares, "any": float(cross.any(axis=1).mean())},
        "swap_log_odds": _log_odds_table(
            carrier_wins, cross & swap[:, None], classes, plan.config.class_means
        ),
        "all_log_odds": _log_odds_table(carrier_wins, cross, classes, plan.config.class_means),
    }


def _log_odds_table(
    carrier_wins: NDArray[np.bool_],
    rows: NDArray[np.bool_],
    classes: NDArray[Any],
    class_names: Mapping[str, Any],
) -> dict[str, dict[str, float | None]]:
    """Attribute -> ``all`` and each class -> log-odds that the side with the attribute wins."""
    table: dict[str, dict[str, float | None]] = {}
    for j, attribute in enumerate(_ATTRIBUTE_NAMES):
        table[attribute] = {"all": _log_odds(carrier_wins[rows[:, j], j])}
        for name in class_names:
            table[attribute][name] = _log_odds(carrier_wins[rows[:, j] & (classes == name), j])
    return table


def _log_odds(wins: NDArray[np.bool_]) -> float | None:
    """Log-odds of the share of wins; None when it is not finite."""
    n_wins, n_losses = int(wins.sum()), int((~wins).sum())
    return float(np.log(n_wins / n_losses)) if n_wins and n_losses else None


def _signed_responses(kept: pd.DataFrame, plan: SignedPlan) -> pd.DataFrame:
    """Comparison id, prompt id, prompt and the two signed responses of every pair."""
    doubled_rejected = plan.swap_source == "rejected"
    first = kept["rejected"].where(doubled_rejected, kept["chosen"])
    second = kept["chosen"].where(plan.swap_source == "chosen", kept["rejected"])
    ids = (
        kept["comparison_id"] if "comparison_id" in kept else [f"pair-{row:05d}" for row in range(len(kept))]
    )
    return pd.DataFrame(
        {
            "comparison_id": ids,
            "prompt_id": kept["prompt_id"].astype(str),
            "prompt": kept["prompt"],
            "response_a": _signed(first, plan.names_first, plan.surnames),
            "response_b": _signed(second, plan.names_second, plan.surnames),
        }
    )


def _signed(texts: Sequence[str], first_names: NDArray[np.str_], surnames: NDArray[np.str_]) -> list[str]:
    """Texts with their signatures; a text without a name stays as it is."""
    return [
        signature(text, str(first), str(last)) if first else text
        for text, first, last in zip(texts, first_names, surnames, strict=True)
    ]


def _vote_rows(comparisons: pd.DataFrame, plan: SignedPlan, prefers_first: NDArray[np.bool_]) -> pd.DataFrame:
    """One row for each vote, pair after pair."""
    rows = comparisons.loc[comparisons.index.repeat(plan.annotators.shape[1])].reset_index(drop=True)
    annotators = plan.annotators.ravel()
    return rows.assign(
        winner=np.where(prefers_first.ravel(), "a", "b"),
        annotator=[f"constructed-{k:02d}" for k in annotators],
        annotator_class=plan.annotator_class[annotators],
    )


def check_pairs(pairs: pd.DataFrame, source: str) -> None:
    """Raise `DataError` with everything that is wrong with scored pairs.

    Parameters
    ----------
    pairs : DataFrame
    source : str
        What messages call the table, such as its path.
    """
    missing = [column for column in PAIR_COLUMNS if column not in pairs]
    if missing:
        found = ", ".join(map(str, pairs.columns))
        what = f"scored pairs lack the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise DataError(
            [Problem("E101", what, f"{source}, found: {found}", "rename your columns", "error", len(missing))]
        )
    problems = []
    for column in _TEXT_COLUMNS:
        bad = ~pairs[column].map(lambda text: isinstance(text, str) and bool(text.strip()))
        if bad.any():
            what = f"{column} is empty or no text"
            problems.append(
                Problem("E134", what, _where(source, bad, column), "give plain text", "error", int(bad.sum()))
            )
    for column in _SCORE_COLUMNS:
        bad = ~np.isfinite(pd.to_numeric(pairs[column], errors="coerce"))
        if bad.any():
            what = f"{column} is no finite number"
            problems.append(
                Problem("E136", what, _where(source, bad, column), "give a score", "error", int(bad.sum()))
            )
    if problems:
        raise DataError(problems)


def _where(source: str, bad: pd.Series, column: str) -> str:
    """The first bad row, counted from 1."""
    first, n = int(np.flatnonzero(bad.to_numpy())[0]) + 1, int(bad.sum())
    return f"{source}, column {column}, row {first:,}{f' and {n - 1:,} more' if n > 1 else ''}"


def _count_problem(n_kept: int, n_planned: int) -> Problem:
    """The plan does not fit the pairs."""
    what = f"{n_kept} usable pairs, but the plan covers {n_planned}" if n_kept else "no usable pair"
    remedy = (
        "draw the plan for len(usable_pairs(pairs)[0]) pairs"
        if n_kept
        else "give pairs with longer responses"
    )
    return Problem("E137", what, "scored pairs", remedy, "error", max(abs(n_kept - n_planned), 1))
