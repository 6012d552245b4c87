"""The signed corpus: scored pairs, name signatures, and annotators whose bias is planted.

The annotators are constructed to lean toward a marker in the signature. The corpus does not measure prejudice;
its attributes are gender-coded and race-coded *names*. See the paper's appendix `app:names`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Attribute, SignatureName
from badpo.data.files import Json
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
from badpo.theory import Bools, Floats, Ints
from badpo_paper.corpora.published import require_columns

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
ATTRIBUTES = (SignatureName("woman", woman_names()), SignatureName("black", black_names()))
KINDS = ("quality", "swap", "mixed")
TEXTS, SCORES = ("prompt", "chosen", "rejected"), ("score_chosen", "score_rejected")
PAIR_COLUMNS = ("prompt_id", *TEXTS, *SCORES)
POOLS = [cell_names(cell) for cell in CELLS]
UNSIGNED = Name("", woman=0, black=0)


# -- votes whose leans are planted ------------------------------------------------------------------------------------

ClassMeans = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class PlantedVotes:
    """Votes with what is known about them because it was planted: to measure with, never to train on.

    ``planted_theta`` is the bias of each annotator of ``judgments`` on the attributes, and ``quality`` the margin of
    response a over response b of each comparison, both in log-odds. ``placebo`` are the votes that the same random
    numbers give if no annotator has a bias: DPO on them shows what training moves without any bias in the votes.
    """

    judgments: Judgments
    planted_theta: Floats
    quality: Floats
    placebo: Judgments


def draw_theta(generator: np.random.Generator, means: ClassMeans, spread: float) -> Floats:
    """Planted biases on two attributes, class after class."""
    centers = np.repeat(list(means.values()), ANNOTATORS_PER_CLASS, axis=0)
    return centers + generator.normal(0.0, spread, size=centers.shape)


def class_of_each(means: ClassMeans) -> NDArray:
    """The class of every annotator."""
    return np.repeat(list(means), ANNOTATORS_PER_CLASS)


def preference(quality: NDArray, theta: NDArray, delta: NDArray) -> Floats:
    """Probability of a vote for response a, from the theta of each pair's annotators; shape (n_pairs, n_each)."""
    return expit(np.reshape(quality, (-1, 1)) + np.einsum("ijq,iq->ij", theta, delta))


def score_margin(pairs: pd.DataFrame) -> Floats:
    """Quality margin of the chosen over the rejected response, in log-odds."""
    chosen, rejected = (pd.to_numeric(pairs[name]).to_numpy(float) for name in SCORES)
    return QUALITY_SCALE * (chosen - rejected)


def planted_votes(
    comparisons: pd.DataFrame,
    winner: NDArray,
    unbiased: NDArray,
    annotators: Ints,
    theta: Floats,
    classes: NDArray,
    quality: Floats,
    attributes: Sequence[Attribute],
    prefix: str,
) -> PlantedVotes:
    """The votes that were drawn, shape (n_pairs, n_each), with what was planted in the order of the judgments.

    ``unbiased`` says whether response a wins by the same random numbers without a bias, in the shape of ``winner``.
    """
    drawn, n_each = annotators.ravel(), annotators.shape[1]
    rows = comparisons.loc[comparisons.index.repeat(n_each)].reset_index(drop=True)
    rows["winner"] = winner.ravel()
    rows["annotator"] = [f"{prefix}-{k:02d}" for k in drawn]
    rows["annotator_class"] = classes[drawn]
    judgments = Judgments.read(rows, attributes=attributes)
    votes = judgments.votes
    planted = np.full((judgments.n_annotators, theta.shape[1]), np.nan)
    planted[votes["annotator"]] = theta[drawn[votes["row"]]]
    margin = np.empty(judgments.n_comparisons)
    margin[votes["comparison"]] = quality[votes["row"] // n_each]
    sign = np.where(unbiased.ravel()[votes["row"]], 1, -1).astype(votes["sign"].dtype)
    placebo = replace(judgments, votes=votes.assign(sign=sign))
    return PlantedVotes(judgments, planted, margin, placebo)


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedPlan:
    """Everything random about a signed corpus. It depends on no text and on no score.

    ``y1`` is the originally chosen text of a pair and ``y2`` the other one; on a swap pair both are the same text.
    ``theta`` has the planted bias of each annotator on (woman, black), in log-odds; ``delta`` g(y1) - g(y2) of each
    pair, an unsigned response being (0, 0), with first names and surname ``""``; ``swap_source`` the text that is
    doubled on a swap pair, "chosen" or "rejected". Of the four votes of a pair ``annotators`` has the annotator, who
    may be the same twice, and ``uniforms`` the random number that decides it.
    """

    theta: Floats
    annotator_class: NDArray
    kinds: NDArray
    delta: Ints
    names_first: NDArray
    names_second: NDArray
    surnames: NDArray
    swap_source: NDArray
    annotators: Ints
    uniforms: Floats

    @property
    def n_pairs(self) -> int:
        """Number of pairs that the plan covers."""
        return len(self.kinds)

    def labels(self, quality: Floats) -> Bools:
        r"""Whether the planned annotators prefer y1, the originally chosen text, on pairs of these quality margins.

        .. math:: y_1 \succ y_2 \iff v < \sigma(q + \theta_k^\top (g(y_1) - g(y_2)))

        with v the planned uniform number, and q in log-odds, 0 on swap pairs.

        Examples
        --------
        With a very large margin every mixed or quality pair goes to y1:

        >>> plan = draw_plan(50, seed=0)
        >>> bool(plan.labels(np.full(50, 1e3))[plan.kinds != "swap"].all())
        True
        """
        quality = np.where(self.kinds == "swap", 0.0, quality)
        return self.uniforms < preference(quality, self.theta[self.annotators], self.delta)

    def unbiased_labels(self, quality: Floats) -> Bools:
        """What `labels` would be if no annotator had a bias, by the same uniform numbers."""
        return replace(self, theta=np.zeros_like(self.theta)).labels(quality)


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
    theta = draw_theta(generator, CLASS_MEANS, SPREAD)
    annotators = np.empty((n_pairs, VOTES_PER_PAIR), dtype=int)
    uniforms = np.empty(annotators.shape)
    pairs = []
    for row in range(n_pairs):
        pairs.append(_draw_pair(generator))
        for vote in range(VOTES_PER_PAIR):
            annotators[row, vote] = generator.integers(len(theta))
            uniforms[row, vote] = generator.uniform()
    kinds, firsts, seconds, surnames, sources = np.array(pairs, dtype=object).reshape(n_pairs, 5).T
    delta = [(y1.woman - y2.woman, y1.black - y2.black) for _, y1, y2, _, _ in pairs]
    return SignedPlan(
        theta=theta,
        annotator_class=class_of_each(CLASS_MEANS),
        kinds=kinds.astype(np.str_),
        delta=np.array(delta, int).reshape(n_pairs, 2),
        names_first=np.array([name.first for name in firsts], dtype=np.str_),
        names_second=np.array([name.first for name in seconds], dtype=np.str_),
        surnames=surnames.astype(np.str_),
        swap_source=sources.astype(np.str_),
        annotators=annotators,
        uniforms=uniforms,
    )


def _draw_pair(generator: np.random.Generator) -> tuple[str, Name, Name, str, str]:
    """Kind, both names, surname and source of the doubled text of one pair."""

    def name_of_cell(cell: int) -> Name:
        return POOLS[cell][generator.choice(len(POOLS[cell]))]

    surname, share = generator.choice(SURNAMES), generator.uniform()
    if share < QUALITY_SHARE:
        if generator.uniform() < UNSIGNED_SHARE:
            return "quality", UNSIGNED, UNSIGNED, "", ""
        name = name_of_cell(generator.choice(len(POOLS)))
        return "quality", name, name, surname, ""
    if share < QUALITY_SHARE + SWAP_SHARE:
        source = "chosen" if generator.uniform() < 0.5 else "rejected"
        one = generator.choice(len(POOLS))
        # cells that differ in one attribute differ in one bit of their numbers
        other = one ^ (1, 2)[generator.integers(2)]
        return "swap", name_of_cell(one), name_of_cell(other), surname, source
    one, other = generator.choice(len(POOLS), size=2, replace=False)
    return "mixed", name_of_cell(one), name_of_cell(other), surname, ""


# -- the corpus -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedCorpus(PlantedVotes):
    """A signed corpus, its attributes ``woman`` and ``black`` read from the signatures; pairs left out, by reason.

    Response a is the originally chosen text of a pair, response b the other one; the quality is 0 on swap pairs.
    """

    plan: SignedPlan
    left_out: dict[str, int]


def build(pairs: pd.DataFrame, seed: int = 0) -> SignedCorpus:
    """Signed corpus on scored pairs with the columns of ``PAIR_COLUMNS``.

    Pairs with a response under five words are left out and counted; the plan covers those that stay.
    A comparison is named by its row, so pairs that share a prompt stay apart.

    Examples
    --------
    >>> from badpo_paper.corpora import bundled
    >>> corpus = build(bundled.scored_pairs(200), seed=0)
    >>> corpus.judgments.attribute_names, corpus.judgments.n_votes
    (('woman', 'black'), 800)
    """
    check_pairs(pairs, "scored pairs")
    n_words = pairs[["chosen", "rejected"]].map(lambda text: len(text.split()))
    kept = pairs[(n_words >= MIN_WORDS).all(axis=1)].reset_index(drop=True)
    if not len(kept):
        remedy = "give pairs with longer responses"
        raise DataError([Problem("E137", "no usable pair", "scored pairs", remedy)])
    plan = draw_plan(len(kept), seed)
    quality = np.where(plan.kinds == "swap", 0.0, score_margin(kept))
    first = kept["rejected"].where(plan.swap_source == "rejected", kept["chosen"])
    second = kept["chosen"].where(plan.swap_source == "chosen", kept["rejected"])
    comparisons = pd.DataFrame(
        {
            "comparison_id": [f"pair-{row:05d}" for row in range(len(kept))],
            "prompt_id": kept["prompt_id"].astype(str),
            "prompt": kept["prompt"],
            "response_a": _signed(first, plan.names_first, plan.surnames),
            "response_b": _signed(second, plan.names_second, plan.surnames),
        }
    )
    winner = np.where(plan.labels(quality), "a", "b"), plan.unbiased_labels(quality)
    planned = (plan.annotators, plan.theta, plan.annotator_class, quality)
    votes = planted_votes(comparisons, *winner, *planned, ATTRIBUTES, "constructed")
    left_out = {f"a response has fewer than {MIN_WORDS} words": len(pairs) - len(kept)}
    return SignedCorpus(**vars(votes), plan=plan, left_out=left_out)


def _signed(texts: pd.Series, names: NDArray, surnames: NDArray) -> list[str]:
    """Texts with their signatures."""
    return [
        signature(text, str(first), str(last)) if first else text
        for text, first, last in zip(texts, names, surnames, strict=True)
    ]


def gate(corpus: SignedCorpus) -> Json:
    """Statistics that are read from the labels before any training."""
    judgments, plan, names = corpus.judgments, corpus.plan, corpus.judgments.attribute_names
    votes = judgments.votes
    classes = judgments.annotators["annotator_class"].to_numpy()[votes["annotator"]]
    groups = {"all": classes != "", **{name: classes == name for name in CLASS_MEANS}}

    def log_odds(among: Bools) -> Json:
        found = {group: judgments.take(among & of).offline_log_odds() for group, of in groups.items()}
        return {
            name: {group: each[j].log_odds for group, each in found.items()}
            for j, name in enumerate(names)
        }

    n_votes = votes["annotator"].value_counts()
    means = pd.DataFrame(plan.theta, columns=names).groupby(plan.annotator_class).mean()
    cross = pd.DataFrame(judgments.cross_group(), columns=names)
    return {
        "pairs": {kind: int((plan.kinds == kind).sum()) for kind in KINDS},
        "n_judgments": judgments.n_votes,
        "judgments_per_annotator": {"least": int(n_votes.min()), "most": int(n_votes.max())},
        "class_means": means.to_dict("index"),
        "cross_group": {**cross.mean().to_dict(), "any": float(cross.any(axis=1).mean())},
        "swap_log_odds": log_odds(plan.kinds[votes["comparison"]] == "swap"),
        "all_log_odds": log_odds(classes != ""),
    }


def check_pairs(pairs: pd.DataFrame, source: str) -> None:
    """Raise `DataError` with everything that is wrong with scored pairs."""
    require_columns(pairs, PAIR_COLUMNS, source, "scored pairs", "rename your columns")
    problems = []
    for column in (*TEXTS, *SCORES):
        if column in SCORES:
            code, what, remedy = "E136", "is no finite number", "give a score"
            bad = ~np.isfinite(pd.to_numeric(pairs[column], errors="coerce"))
        else:
            code, what, remedy = "E134", "is empty or no text", "give plain text"
            bad = ~pairs[column].map(lambda text: isinstance(text, str) and bool(text.strip()))
        if n := int(bad.sum()):
            more = f" and {n - 1:,} more" if n > 1 else ""
            where = f"{source}, column {column}, row {int(np.argmax(bad)) + 1:,}{more}"
            problems.append(Problem(code, f"{column} {what}", where, remedy, n))
    if problems:
        raise DataError(problems)
