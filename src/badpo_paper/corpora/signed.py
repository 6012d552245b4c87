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
from scipy.special import expit

from badpo.data.attributes import SignatureName
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem
from badpo.readouts.names import (
    CELLS,
    SURNAMES,
    Name,
    black_names,
    cell_names,
    signature,
    woman_names,
)

_CELL_OF_VECTOR = {vector: cell for cell, vector in CELLS.items()}
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


@dataclass(frozen=True)
class _PairDraw:
    """What is drawn for one pair before its votes."""

    kind: str
    first: Name | None
    second: Name | None
    surname: str
    swap_source: str = ""


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
    theta = _draw_theta(generator)
    draws, annotators, uniforms = [], [], []
    for _ in range(n_pairs):
        draws.append(_draw_pair(generator))
        for _ in range(VOTES_PER_PAIR):
            annotators.append(generator.integers(len(theta)))
            uniforms.append(generator.uniform())
    votes_shape = (n_pairs, VOTES_PER_PAIR)
    vectors = [[_vector(draw.first), _vector(draw.second)] for draw in draws]
    pairs = np.asarray(vectors, dtype=np.int64).reshape(n_pairs, 2, 2)
    return SignedPlan(
        seed=seed,
        theta=theta,
        annotator_class=np.repeat(np.array(list(CLASS_MEANS)), ANNOTATORS_PER_CLASS),
        kinds=np.array([draw.kind for draw in draws], dtype=np.str_),
        delta=pairs[:, 0] - pairs[:, 1],
        names_first=np.array([draw.first.first if draw.first else "" for draw in draws], dtype=np.str_),
        names_second=np.array([draw.second.first if draw.second else "" for draw in draws], dtype=np.str_),
        surnames=np.array([draw.surname for draw in draws], dtype=np.str_),
        swap_source=np.array([draw.swap_source for draw in draws], dtype=np.str_),
        annotators=np.array(annotators, dtype=np.int64).reshape(votes_shape),
        uniforms=np.array(uniforms, dtype=np.float64).reshape(votes_shape),
    )


def _draw_theta(generator: np.random.Generator) -> NDArray[np.float64]:
    """Planted bias, class after class."""
    return np.array(
        [
            np.asarray(mean) + generator.normal(0.0, SPREAD, size=2)
            for mean in CLASS_MEANS.values()
            for _ in range(ANNOTATORS_PER_CLASS)
        ]
    )


def _draw_pair(generator: np.random.Generator) -> _PairDraw:
    """Kind, names and surname of one pair."""
    surname = str(generator.choice(SURNAMES))
    kind_draw = generator.uniform()
    cells = tuple(CELLS)
    if kind_draw < QUALITY_SHARE:
        if generator.uniform() < UNSIGNED_SHARE:
            return _PairDraw("quality", None, None, "")
        name = _draw_name(generator, cells[generator.choice(len(cells))])
        return _PairDraw("quality", name, name, surname)
    if kind_draw < QUALITY_SHARE + SWAP_SHARE:
        source = "chosen" if generator.uniform() < 0.5 else "rejected"
        first_cell = cells[generator.choice(len(cells))]
        second_cell = _flipped(first_cell, attribute=int(generator.integers(2)))
        first = _draw_name(generator, first_cell)
        return _PairDraw("swap", first, _draw_name(generator, second_cell), surname, source)
    first_cell, second_cell = (cells[i] for i in generator.choice(len(cells), size=2, replace=False))
    first = _draw_name(generator, first_cell)
    return _PairDraw("mixed", first, _draw_name(generator, second_cell), surname)


def _draw_name(generator: np.random.Generator, cell: str) -> Name:
    """One name of a cell, uniformly."""
    names = cell_names(cell)
    return names[generator.choice(len(names))]


def _flipped(cell: str, attribute: int) -> str:
    """The cell that differs on one attribute (0: woman, 1: black) only."""
    woman, black = CELLS[cell]
    return _CELL_OF_VECTOR[(1 - woman, black) if attribute == 0 else (woman, 1 - black)]


def _vector(name: Name | None) -> tuple[int, int]:
    """Attribute vector of a signature; unsigned is (0, 0)."""
    return (name.woman, name.black) if name else (0, 0)


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


def usable_pairs(pairs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pairs that the recipe keeps, and how many it leaves out."""
    check_pairs(pairs, "scored pairs")
    words = pairs[["chosen", "rejected"]].map(lambda text: len(text.split())).min(axis=1)
    long_enough = words >= MIN_WORDS
    n_short = int((~long_enough).sum())
    reasons = [{"reason": f"a response has fewer than {MIN_WORDS} words", "n": n_short}] if n_short else []
    return pairs[long_enough].reset_index(drop=True), pd.DataFrame(reasons, columns=["reason", "n"])


def build(pairs: pd.DataFrame, plan: SignedPlan | None = None, *, seed: int = 0) -> SignedCorpus:
    """Signed corpus on scored pairs.

    Pairs with a response under five words are left out and counted; the plan covers those that stay.
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
    >>> from badpo_paper.corpora import bundled
    >>> corpus = build(bundled.scored_pairs(200), seed=0)
    >>> corpus.judgments.attribute_names, corpus.judgments.n_votes
    (('woman', 'black'), 800)
    """
    kept, dropped = usable_pairs(pairs)
    plan = plan or draw_plan(len(kept), seed)
    if len(kept) != plan.n_pairs or not len(kept):
        raise DataError([_count_problem(len(kept), plan.n_pairs)])
    quality = QUALITY_SCALE * (kept["score_chosen"] - kept["score_rejected"]).to_numpy(np.float64)
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
    """Statistics that are read from the labels before any training."""
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
            for name in CLASS_MEANS
        },
        "cross_group": {**shares, "any": float(cross.any(axis=1).mean())},
        "swap_log_odds": _log_odds_table(carrier_wins, cross & swap[:, None], classes, CLASS_MEANS),
        "all_log_odds": _log_odds_table(carrier_wins, cross, classes, CLASS_MEANS),
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
    """Raise `DataError` with everything that is wrong with scored pairs."""
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
