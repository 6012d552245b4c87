"""The signed corpus: scored pairs, name signatures, and annotators whose bias is planted.

The annotators are constructed to lean toward a marker in the signature. The corpus does not measure prejudice;
its attributes are gender-coded and race-coded *names*. See the paper's appendix `app:names`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import SignatureName
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem
from badpo.readouts.names import CELLS, SURNAMES, Name, black_names, cell_names, signature, woman_names

# The paper's configuration (appendix `app:names`, "Configuration").
# Annotator class -> mean bias (woman, black) in log-odds, and the spread of its annotators on both attributes.
CLASS_MEANS = {"A": (1.2, 2.5), "B": (0.8, -0.5), "C": (1.0, 1.0)}
ANNOTATORS_PER_CLASS, SPREAD = 20, 0.8
# Shares of quality pairs and of swap pairs, the rest being mixed; share of quality pairs in which nothing is signed.
QUALITY_SHARE, SWAP_SHARE, UNSIGNED_SHARE = 0.4, 0.2, 0.5
VOTES_PER_PAIR = 4
# kappa: log-odds of preference per point of score difference.
QUALITY_SCALE = 0.5
MIN_WORDS = 5
ATTRIBUTES, KINDS = ("woman", "black"), ("quality", "swap", "mixed")
PAIR_COLUMNS = ("prompt_id", "prompt", "chosen", "rejected", "score_chosen", "score_rejected")


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedPlan:
    """Everything random about a signed corpus. It depends on no text and on no score.

    ``y1`` is the originally chosen text of a pair and ``y2`` the other one; on a swap pair both are the same text.

    Attributes
    ----------
    seed : int
        The data seed.
    theta : ndarray of shape (n_annotators, 2)
        Planted bias of each annotator on (woman, black), in log-odds; positive leans toward the attribute.
    annotator_class : ndarray of shape (n_annotators,), str
        Class of each annotator.
    kinds : ndarray of shape (n_pairs,), str
        ``"quality"``, ``"swap"`` or ``"mixed"``.
    delta : ndarray of shape (n_pairs, 2), int
        ``g(y1) - g(y2)`` with g = (woman, black); an unsigned response is (0, 0).
    names_first, names_second : ndarray of shape (n_pairs,), str
        First name under y1 and under y2; ``""`` when unsigned.
    surnames : ndarray of shape (n_pairs,), str
        Surname under both responses; ``""`` when unsigned.
    swap_source : ndarray of shape (n_pairs,), str
        On swap pairs the text that is doubled, ``"chosen"`` or ``"rejected"``; ``""`` elsewhere.
    annotators : ndarray of shape (n_pairs, 4), int
        The annotator of each vote. One annotator may vote twice on a pair.
    uniforms : ndarray of shape (n_pairs, 4), float
        The random number that decides each vote.
    """

    seed: int
    theta: NDArray[np.float64]
    annotator_class: NDArray[np.str_]
    kinds: NDArray[np.str_]
    delta: NDArray[np.int64]
    names_first: NDArray[np.str_]
    names_second: NDArray[np.str_]
    surnames: NDArray[np.str_]
    swap_source: NDArray[np.str_]
    annotators: NDArray[np.int64]
    uniforms: NDArray[np.float64]

    @property
    def n_pairs(self) -> int:
        """Number of pairs that the plan covers."""
        return len(self.kinds)

    def labels(self, quality: NDArray[np.float64]) -> NDArray[np.bool_]:
        r"""Votes that the planned annotators cast on pairs of the given quality.

        .. math:: y_1 \succ y_2 \iff v < \sigma(q + \theta_k^\top (g(y_1) - g(y_2)))

        with v the planned uniform number.

        Parameters
        ----------
        quality : ndarray of shape (n_pairs,)
            q, the quality margin of y1 over y2 in log-odds. On swap pairs it is taken as 0.

        Returns
        -------
        ndarray of shape (n_pairs, 4), bool
            True where y1, the originally chosen text, is preferred.

        Raises
        ------
        ValueError
            When the number of qualities is not the number of pairs.

        References
        ----------
        BA-DPO, appendix `app:names`, "Annotators and labels"; the likelihood is Eq. `biased_bt`.

        Examples
        --------
        With a very large margin every mixed or quality pair goes to y1:

        >>> plan = draw_plan(50, seed=0)
        >>> bool(plan.labels(np.full(50, 1e3))[plan.kinds != "swap"].all())
        True
        """
        quality = np.asarray(quality, dtype=np.float64)
        if quality.shape != (self.n_pairs,):
            raise ValueError(f"quality has shape {quality.shape}; the plan covers {self.n_pairs} pairs")
        quality = np.where(self.kinds == "swap", 0.0, quality)
        lean = np.einsum("ijq,iq->ij", self.theta[self.annotators], self.delta)
        return np.asarray(self.uniforms < expit(quality[:, None] + lean))


def draw_plan(n_pairs: int, seed: int = 0) -> SignedPlan:
    """Random plan of a signed corpus: a pure function of the number of pairs and the seed.

    The order of the draws from ``numpy.random.default_rng(seed)`` is the recipe:

    1. for each class, for each of its annotators: two normals, the bias around the class mean;
    2. for each pair: the choice of a surname; a uniform number v, with v < quality_share a quality pair, v <
       quality_share + swap_share a swap pair, else a mixed pair; then

       - quality: a uniform number (unsigned when below unsigned_share); unless unsigned the choice of a cell and of
         one name in it for both sides;
       - swap: a uniform number (below 0.5 the chosen text is doubled, else the rejected one), the choice of a cell,
         an integer 0 or 1 (the attribute to flip), a name of the cell for y1, a name of the flipped cell for y2;
       - mixed: two different cells, the first for y1, and one name of each;

       and at last for each vote: the integer of an annotator, then a uniform number.

    Parameters
    ----------
    n_pairs : int
        Number of pairs.
    seed : int
        Data seed.

    Returns
    -------
    SignedPlan
        The plan; see its attributes.

    References
    ----------
    BA-DPO, appendix `app:names`.

    Examples
    --------
    The pair counts and mean bias that the paper reports:

    >>> plan = draw_plan(7177, seed=0)
    >>> [int((plan.kinds == kind).sum()) for kind in ("quality", "swap", "mixed")]
    [2887, 1462, 2828]
    >>> plan.theta.mean(axis=0).round(2).tolist()
    [1.0, 1.13]
    """
    generator = np.random.default_rng(seed)
    theta = draw_theta(generator, CLASS_MEANS, ANNOTATORS_PER_CLASS, SPREAD)
    pairs, votes = [], []
    for _ in range(n_pairs):
        pairs.append(_draw_pair(generator))
        votes.append(
            [(generator.integers(len(theta)), generator.uniform()) for _ in range(VOTES_PER_PAIR)]
        )
    kinds, firsts, seconds, surnames, sources = np.array(pairs, dtype=object).reshape(n_pairs, 5).T
    vectors = [[_vector(name) for name in side] for side in (firsts, seconds)]
    vote = np.array(votes, dtype=np.float64).reshape(n_pairs, VOTES_PER_PAIR, 2)
    return SignedPlan(
        seed=seed,
        theta=theta,
        annotator_class=np.repeat(np.array(list(CLASS_MEANS)), ANNOTATORS_PER_CLASS),
        kinds=kinds.astype(np.str_),
        delta=np.subtract(*np.array(vectors, dtype=np.int64).reshape(2, n_pairs, 2)),
        names_first=np.array([name.first if name else "" for name in firsts], dtype=np.str_),
        names_second=np.array([name.first if name else "" for name in seconds], dtype=np.str_),
        surnames=surnames.astype(np.str_),
        swap_source=sources.astype(np.str_),
        annotators=vote[..., 0].astype(np.int64),
        uniforms=vote[..., 1].copy(),
    )


def draw_theta(
    generator: np.random.Generator, means: Mapping[str, tuple[float, float]], n_each: int, spread: float
) -> NDArray[np.float64]:
    """Planted biases on two attributes, class after class."""
    centers = np.repeat(np.array(list(means.values())), n_each, axis=0)
    return centers + generator.normal(0.0, spread, size=centers.shape)


def _draw_pair(generator: np.random.Generator) -> tuple[str, Name | None, Name | None, str, str]:
    """Kind, both names, surname and source of the doubled text of one pair."""
    surname = str(generator.choice(SURNAMES))
    kind_draw = generator.uniform()
    cells = tuple(CELLS)
    if kind_draw < QUALITY_SHARE:
        if generator.uniform() < UNSIGNED_SHARE:
            return "quality", None, None, "", ""
        name = _draw_name(generator, cells[generator.choice(len(cells))])
        return "quality", name, name, surname, ""
    if kind_draw < QUALITY_SHARE + SWAP_SHARE:
        kind, source = "swap", "chosen" if generator.uniform() < 0.5 else "rejected"
        one = cells[generator.choice(len(cells))]
        flipped = np.array(CELLS[one])
        flipped[generator.integers(2)] ^= 1
        other = next(cell for cell, vector in CELLS.items() if vector == tuple(flipped))
    else:
        kind, source = "mixed", ""
        one, other = (cells[i] for i in generator.choice(len(cells), size=2, replace=False))
    return kind, _draw_name(generator, one), _draw_name(generator, other), surname, source


def _draw_name(generator: np.random.Generator, cell: str) -> Name:
    """One name of a cell, uniformly."""
    names = cell_names(cell)
    return names[generator.choice(len(names))]


def _vector(name: Name | None) -> tuple[int, int]:
    """Attribute vector of a signature; unsigned is (0, 0)."""
    return (name.woman, name.black) if name else (0, 0)


# -- the corpus -------------------------------------------------------------------------------------------------------


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
    plan : SignedPlan
        The random plan.
    dropped : DataFrame
        Pairs that were left out: columns ``reason`` and ``n``.
    """

    judgments: Judgments
    planted_theta: NDArray[np.float64]
    quality: NDArray[np.float64]
    plan: SignedPlan
    dropped: pd.DataFrame


def build(pairs: pd.DataFrame, seed: int = 0) -> SignedCorpus:
    """Signed corpus on scored pairs.

    Pairs with a response under five words are left out and counted; the plan covers those that stay.
    A comparison has its own id (column ``comparison_id`` where the pairs have one, else the row number), so pairs
    that share a prompt stay apart.

    Parameters
    ----------
    pairs : DataFrame
        Scored pairs with the columns of ``PAIR_COLUMNS``.
    seed : int
        Data seed of the plan.

    Returns
    -------
    SignedCorpus
        Judgments with class labels on the annotators, and the planted values beside them.

    Raises
    ------
    DataError
        When the pairs are not usable (see `check_pairs`), or none is left.

    References
    ----------
    BA-DPO, appendix `app:names`.

    Examples
    --------
    >>> from badpo_paper.corpora import bundled
    >>> corpus = build(bundled.scored_pairs(200), seed=0)
    >>> corpus.judgments.attribute_names, corpus.judgments.n_votes
    (('woman', 'black'), 800)
    """
    check_pairs(pairs, "scored pairs")
    is_long = (pairs[["chosen", "rejected"]].map(lambda text: len(text.split())) >= MIN_WORDS).all(
        axis=1
    )
    kept, n_short = pairs[is_long].reset_index(drop=True), int((~is_long).sum())
    if not len(kept):
        remedy = "give pairs with longer responses"
        raise DataError([Problem("E137", "no usable pair", "scored pairs", remedy, 1)])
    plan = draw_plan(len(kept), seed)
    quality = QUALITY_SCALE * (kept["score_chosen"] - kept["score_rejected"]).to_numpy(np.float64)
    quality = np.where(plan.kinds == "swap", 0.0, quality)
    winner = np.where(plan.labels(quality), "a", "b")
    rows = vote_rows(
        _signed_responses(kept, plan), plan.annotators, winner, plan.annotator_class, "constructed"
    )
    judgments = Judgments.read(
        rows,
        attributes=(SignatureName("woman", woman_names()), SignatureName("black", black_names())),
        repeated="all",
    )
    reasons = {f"a response has fewer than {MIN_WORDS} words": n_short} if n_short else {}
    dropped = pd.DataFrame(list(reasons.items()), columns=["reason", "n"])
    planted = planted_by_annotator(judgments, plan.theta, plan.annotators)
    return SignedCorpus(judgments, planted, quality, plan, dropped)


def _signed_responses(kept: pd.DataFrame, plan: SignedPlan) -> pd.DataFrame:
    """Comparison id, prompt id, prompt and the two signed responses of every pair."""

    def signed(texts: pd.Series, first_names: NDArray[np.str_]) -> list[str]:
        return [
            signature(text, str(first), str(last)) if first else text
            for text, first, last in zip(texts, first_names, plan.surnames, strict=True)
        ]

    first = kept["rejected"].where(plan.swap_source == "rejected", kept["chosen"])
    second = kept["chosen"].where(plan.swap_source == "chosen", kept["rejected"])
    numbered = [f"pair-{row:05d}" for row in range(len(kept))]
    return pd.DataFrame(
        {
            "comparison_id": kept.get("comparison_id", numbered),
            "prompt_id": kept["prompt_id"].astype(str),
            "prompt": kept["prompt"],
            "response_a": signed(first, plan.names_first),
            "response_b": signed(second, plan.names_second),
        }
    )


def vote_rows(
    comparisons: pd.DataFrame,
    annotators: NDArray[np.int64],
    winner: NDArray[np.str_],
    annotator_class: NDArray[np.str_],
    prefix: str,
) -> pd.DataFrame:
    """One row for each vote of constructed annotators, comparison after comparison."""
    drawn = annotators.ravel()
    rows = comparisons.loc[comparisons.index.repeat(annotators.shape[1])].reset_index(drop=True)
    return rows.assign(
        winner=winner.ravel(),
        annotator=[f"{prefix}-{k:02d}" for k in drawn],
        annotator_class=annotator_class[drawn],
    )


def planted_by_annotator(
    judgments: Judgments, theta: NDArray[np.float64], annotators: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What was planted, in the order of the judgments' annotators, from the votes as they were drawn."""
    planted = np.full((judgments.n_annotators, theta.shape[1]), np.nan)
    planted[judgments.votes["annotator"]] = theta[annotators.ravel()[judgments.votes["row"]]]
    return planted


def gate(corpus: SignedCorpus) -> dict[str, Any]:
    """Statistics that are read from the labels before any training."""
    judgments, plan = corpus.judgments, corpus.plan
    votes = judgments.votes
    swap = (plan.kinds[votes["comparison"]] == "swap")[:, None]
    classes = judgments.annotators["annotator_class"].to_numpy()[votes["annotator"]]
    groups = {"all": classes != "", **{name: classes == name for name in CLASS_MEANS}}
    cross = judgments.delta != 0
    carrier_wins = judgments.delta * votes["sign"].to_numpy()[:, None] > 0

    def log_odds(rows: NDArray[np.bool_]) -> dict[str, dict[str, float | None]]:
        return {
            attribute: {name: _log_odds(carrier_wins[rows[:, j] & of, j]) for name, of in groups.items()}
            for j, attribute in enumerate(ATTRIBUTES)
        }

    def of_both(values: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(ATTRIBUTES, values.tolist(), strict=True))

    each = votes["annotator"].value_counts()
    means = {name: plan.theta[plan.annotator_class == name].mean(axis=0) for name in CLASS_MEANS}
    return {
        "pairs": {kind: int((plan.kinds == kind).sum()) for kind in KINDS},
        "n_judgments": judgments.n_votes,
        "judgments_per_annotator": {"least": int(each.min()), "most": int(each.max())},
        "class_means": {name: of_both(mean) for name, mean in means.items()},
        "cross_group": {**of_both(cross.mean(axis=0)), "any": float(cross.any(axis=1).mean())},
        "swap_log_odds": log_odds(cross & swap),
        "all_log_odds": log_odds(cross),
    }


def _log_odds(wins: NDArray[np.bool_]) -> float | None:
    """Log-odds of the share of wins; None when it is not finite."""
    n_wins, n_losses = int(wins.sum()), int((~wins).sum())
    return float(np.log(n_wins / n_losses)) if n_wins and n_losses else None


def check_pairs(pairs: pd.DataFrame, source: str) -> None:
    """Raise `DataError` with everything that is wrong with scored pairs."""
    missing = [column for column in PAIR_COLUMNS if column not in pairs]
    if missing:
        found = ", ".join(map(str, pairs.columns))
        what = f"scored pairs lack the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        where = f"{source}, found: {found}"
        raise DataError([Problem("E101", what, where, "rename your columns", len(missing))])
    problems = []
    for column in PAIR_COLUMNS[1:]:
        if column.startswith("score_"):
            told = ("E136", f"{column} is no finite number", "give a score")
            bad = ~np.isfinite(pd.to_numeric(pairs[column], errors="coerce"))
        else:
            told = ("E134", f"{column} is empty or no text", "give plain text")
            bad = ~pairs[column].map(lambda text: isinstance(text, str) and bool(text.strip()))
        if n := int(bad.sum()):
            code, what, remedy = told
            more = f" and {n - 1:,} more" if n > 1 else ""
            where = f"{source}, column {column}, row {int(np.argmax(bad)) + 1:,}{more}"
            problems.append(Problem(code, what, where, remedy, n))
    if problems:
        raise DataError(problems)
