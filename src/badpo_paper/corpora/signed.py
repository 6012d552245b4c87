"""Build the signed corpus: scored pairs with name signatures, and votes of simulated annotators with known biases.

The simulated annotators are biased toward the names in signatures. The signed corpus does not measure prejudice,
because its attributes are gender-coded and race-coded *names*. The paper's appendix `app:names` describes the corpus.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit

from badpo.data.attributes import Attribute
from badpo.data.judgments import Judgments
from badpo.data.problems import DataError, Problem
from badpo.readouts.names import CELLS, NAME_ATTRIBUTES, SURNAMES, Name, cell_names, signature
from badpo.theory import Bools, Floats, Ints

# Array of texts.
Texts = NDArray[np.str_]
# Statistics of a corpus, as nested mappings from names to values.
Statistics: TypeAlias = "Mapping[str, float | str | None | Statistics]"

# The paper's configuration (appendix `app:names`, "Configuration").
# Annotator class -> mean bias toward (woman, black), in log-odds.
# SPREAD is the standard deviation of the biases within a class.
CLASS_MEANS = {"A": (1.2, 2.5), "B": (0.8, -0.5), "C": (1.0, 1.0)}
ANNOTATORS_PER_CLASS, SPREAD = 20, 0.8
# Shares of quality pairs and of swap pairs (all other pairs are mixed), and unsigned share of the quality pairs.
QUALITY_SHARE, SWAP_SHARE, UNSIGNED_SHARE = 0.4, 0.2, 0.5
VOTES_PER_PAIR = 4
# The paper's kappa: change in the log-odds of a preference per point of score difference.
QUALITY_SCALE = 0.5
MIN_WORDS = 5
KINDS = ("quality", "swap", "mixed")
TEXTS, SCORES = ("prompt", "chosen", "rejected"), ("score_chosen", "score_rejected")
PAIR_COLUMNS = ("prompt_id", *TEXTS, *SCORES)
POOLS = [cell_names(cell) for cell in CELLS]
UNSIGNED = Name("", woman=0, black=0)


# -- votes with planted biases ----------------------------------------------------------------------------------------

ClassMeans = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class PlantedVotes:
    """Simulated votes and the true values from which they were generated. The true values are for evaluation only.

    ``planted_theta`` is the bias of each annotator of ``judgments`` toward the attributes. ``quality`` is the quality
    margin of response a over response b of each comparison. Theta and quality are in log-odds. ``placebo`` contains the
    votes that the same random numbers produce if no annotator is biased. A policy that DPO trains on the placebo votes
    shows the effect of training on votes without bias.
    """

    judgments: Judgments
    planted_theta: Floats
    quality: Floats
    placebo: Judgments


def draw_theta(generator: np.random.Generator, means: ClassMeans, spread: float) -> Floats:
    """Draw the planted biases of all annotators toward two attributes; annotators are ordered by class."""
    centers = np.repeat(list(means.values()), ANNOTATORS_PER_CLASS, axis=0)
    return np.asarray(centers + generator.normal(0.0, spread, size=centers.shape))


def repeat_classes(means: ClassMeans) -> Texts:
    """Return the class of every annotator, in the order in which `draw_theta` returns the annotators."""
    return np.asarray(np.repeat(list(means), ANNOTATORS_PER_CLASS))


def predict_votes(quality: Floats, theta: Floats, delta: Ints | Floats) -> Floats:
    """Return the probability that each vote is for response a, shape (n_pairs, n_each); ``theta`` is given by vote."""
    return np.asarray(expit(np.reshape(quality, (-1, 1)) + np.einsum("ijq,iq->ij", theta, delta)))


def score_margin(pairs: pd.DataFrame) -> Floats:
    """Compute the quality margin of the chosen response over the rejected response, in log-odds."""
    chosen, rejected = (pd.to_numeric(pairs[name]).to_numpy(float) for name in SCORES)
    return np.asarray(QUALITY_SCALE * (chosen - rejected))


def make_planted_votes(
    comparisons: pd.DataFrame,
    winner: Texts,
    unbiased: Bools,
    annotators: Ints,
    theta: Floats,
    classes: Texts,
    quality: Floats,
    attributes: Sequence[Attribute],
    prefix: str,
) -> PlantedVotes:
    """Make judgments from simulated votes, and sort the planted values in the same order as the judgments.

    ``winner`` and ``annotators`` have the shape (n_pairs, n_each). ``unbiased`` has the same shape, and says whether
    response a wins with the same random numbers if no annotator is biased.
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
    """All random draws of a signed corpus; they do not depend on texts or scores.

    ``y1`` is the originally chosen text of a pair, and ``y2`` is the rejected text. In a swap pair, ``y1`` and ``y2``
    are the same text. ``theta`` is the planted bias of each annotator toward (woman, black), in log-odds. ``delta`` is
    g(y1) - g(y2) of each pair. An unsigned response has g = (0, 0), and its first name and surname are ``""``.
    ``swap_source`` is the text that a swap pair uses twice, "chosen" or "rejected". ``annotators`` contains the
    annotators who cast the four votes on each pair; an annotator may vote twice on a pair. ``uniforms`` contains the
    random number that decides each vote.
    """

    theta: Floats
    annotator_class: Texts
    kinds: Texts
    delta: Ints
    names_first: Texts
    names_second: Texts
    surnames: Texts
    swap_source: Texts
    annotators: Ints
    uniforms: Floats

    @property
    def n_pairs(self) -> int:
        """Number of pairs of the plan."""
        return len(self.kinds)

    def decide_votes(self, quality: Floats) -> Bools:
        r"""Decide which planned votes are for y1, given the quality margins of the pairs.

        .. math:: y_1 \succ y_2 \iff v < \sigma(q + \theta_k^\top (g(y_1) - g(y_2)))

        where v is the planned uniform number, and q is the quality margin in log-odds, which is 0 on swap pairs.

        Examples
        --------
        If the margin is very large, y1 wins every vote on mixed and quality pairs:

        >>> plan = draw_plan(50, seed=0)
        >>> bool(plan.decide_votes(np.full(50, 1e3))[plan.kinds != "swap"].all())
        True
        """
        quality = np.where(self.kinds == "swap", 0.0, quality)
        return self.uniforms < predict_votes(quality, self.theta[self.annotators], self.delta)


def draw_plan(n_pairs: int, seed: int = 0) -> SignedPlan:
    """Draw the random plan of a signed corpus; the plan depends only on the number of pairs and the seed.

    ``numpy.random.default_rng(seed)`` draws the random numbers in this order:

    1. For each annotator, class by class: two normal numbers, which give the bias around the class mean.
    2. For each pair: a surname and a uniform number v. The pair is a quality pair if v < quality_share, a swap pair if
       v < quality_share + swap_share, and otherwise a mixed pair. The next draws depend on the kind of the pair:

       - Quality pair: a uniform number. The pair is unsigned if the number is below unsigned_share. Otherwise the
         generator draws a cell and one name of the cell, which signs both responses.
       - Swap pair: a uniform number (below 0.5 both responses have the chosen text, otherwise the rejected text), a
         cell, an integer 0 or 1 (the attribute to flip), a name of the cell for y1, and a name of the flipped cell
         for y2.
       - Mixed pair: two different cells, and one name of each cell. The first cell is for y1.

       The last draws for a pair are, for each vote, the index of an annotator and a uniform number.

    Examples
    --------
    The plan has the pair counts and the mean bias that the paper reports:

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
        annotator_class=repeat_classes(CLASS_MEANS),
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
    """Draw the kind of one pair, its two first names, its surname and the text that a swap pair uses twice."""

    def draw_name(cell: int) -> Name:
        return POOLS[cell][generator.choice(len(POOLS[cell]))]

    surname, share = generator.choice(SURNAMES), generator.uniform()
    if share < QUALITY_SHARE:
        if generator.uniform() < UNSIGNED_SHARE:
            return "quality", UNSIGNED, UNSIGNED, "", ""
        name = draw_name(generator.choice(len(POOLS)))
        return "quality", name, name, surname, ""
    if share < QUALITY_SHARE + SWAP_SHARE:
        source = "chosen" if generator.uniform() < 0.5 else "rejected"
        first = generator.choice(len(POOLS))
        # The index of a name pool has one bit for gender and one bit for race, so flipping a bit changes one attribute.
        second = first ^ (1, 2)[generator.integers(2)]
        return "swap", draw_name(first), draw_name(second), surname, source
    first, second = generator.choice(len(POOLS), size=2, replace=False)
    return "mixed", draw_name(first), draw_name(second), surname, ""


# -- the corpus -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignedCorpus(PlantedVotes):
    """A signed corpus, its random plan, and the number of excluded pairs for each reason.

    The attributes ``woman`` and ``black`` are measured from the signatures. Response a is the originally chosen text
    of a pair, and response b is the rejected text. The quality margin is 0 on swap pairs.
    """

    plan: SignedPlan
    left_out: dict[str, int]


def build(pairs: pd.DataFrame, seed: int = 0) -> SignedCorpus:
    """Build a signed corpus from scored pairs with the columns of ``PAIR_COLUMNS``.

    The function excludes pairs with a response of fewer than five words, and counts them. The plan covers all other
    pairs. Each pair has its own comparison id, so pairs with the same prompt remain separate comparisons.

    Examples
    --------
    >>> from badpo_paper.corpora import bundled
    >>> corpus = build(bundled.scored_pairs(200), seed=0)
    >>> corpus.judgments.attribute_names, corpus.judgments.n_votes
    (('woman', 'black'), 800)
    """
    check_pairs(pairs)
    n_words = pairs[["chosen", "rejected"]].map(lambda text: len(text.split()))
    usable = pairs[(n_words >= MIN_WORDS).all(axis=1)].reset_index(drop=True)
    if not len(usable):
        remedy = "give pairs with longer responses"
        raise DataError([Problem("E137", "the table has no usable pair", "scored pairs", remedy)])
    plan = draw_plan(len(usable), seed)
    quality = np.where(plan.kinds == "swap", 0.0, score_margin(usable))
    first = usable["rejected"].where(plan.swap_source == "rejected", usable["chosen"])
    second = usable["chosen"].where(plan.swap_source == "chosen", usable["rejected"])
    comparisons = pd.DataFrame(
        {
            "comparison_id": [f"pair-{row:05d}" for row in range(len(usable))],
            "prompt_id": usable["prompt_id"].astype(str),
            "prompt": usable["prompt"],
            "response_a": _append_signatures(first, plan.names_first, plan.surnames),
            "response_b": _append_signatures(second, plan.names_second, plan.surnames),
        }
    )
    votes = make_planted_votes(
        comparisons,
        np.where(plan.decide_votes(quality), "a", "b"),
        replace(plan, theta=0 * plan.theta).decide_votes(quality),
        plan.annotators,
        plan.theta,
        plan.annotator_class,
        quality,
        NAME_ATTRIBUTES,
        "constructed",
    )
    left_out = {f"a response has fewer than {MIN_WORDS} words": len(pairs) - len(usable)}
    return SignedCorpus(**vars(votes), plan=plan, left_out=left_out)


def _append_signatures(texts: pd.Series, names: Texts, surnames: Texts) -> list[str]:
    """Append the signatures to the texts. A text without a name remains unsigned."""
    return [
        signature(text, str(first), str(last)) if first else text
        for text, first, last in zip(texts, names, surnames, strict=True)
    ]


def measure_corpus(corpus: SignedCorpus) -> Statistics:
    """Measure the bias in the votes of a signed corpus before training."""
    judgments, plan, names = corpus.judgments, corpus.plan, corpus.judgments.attribute_names
    votes = judgments.votes
    classes = judgments.annotators["annotator_class"].to_numpy()[votes["annotator"]]
    groups = {"all": classes != "", **{name: classes == name for name in CLASS_MEANS}}

    def measure_log_odds(selected: Bools) -> Statistics:
        log_odds = {
            group: judgments.take(selected & is_member).offline_log_odds()
            for group, is_member in groups.items()
        }
        return {
            name: {group: estimates[j].log_odds for group, estimates in log_odds.items()}
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
        "swap_log_odds": measure_log_odds(plan.kinds[votes["comparison"]] == "swap"),
        "all_log_odds": measure_log_odds(classes != ""),
    }


def check_pairs(pairs: pd.DataFrame) -> None:
    """Raise a `DataError` that lists all problems with a table of scored pairs, if there are any."""
    require_columns(pairs, PAIR_COLUMNS, "scored pairs", "scored pairs", "rename your columns")
    problems = []
    for column in (*TEXTS, *SCORES):
        if column in SCORES:
            code, what, remedy = "E136", "is not a finite number", "give a score"
            bad = ~np.isfinite(pd.to_numeric(pairs[column], errors="coerce"))
        else:
            code, what, remedy = "E134", "is empty or not a text", "give plain text"
            bad = ~pairs[column].map(lambda text: isinstance(text, str) and bool(text.strip()))
        if n := int(bad.sum()):
            more = f" and {n - 1:,} more" if n > 1 else ""
            where = f"scored pairs, column {column}, row {int(np.argmax(bad)) + 1:,}{more}"
            problems.append(Problem(code, f"{column} {what}", where, remedy, n))
    if problems:
        raise DataError(problems)


def require_columns(
    frame: pd.DataFrame, columns: Sequence[str], where: str, schema: str, remedy: str
) -> None:
    """Raise `DataError` if a table lacks one of the given columns."""
    missing = [name for name in columns if name not in frame]
    if missing:
        where = f"{where}, found: {', '.join(map(str, frame.columns))}"
        what = f"the table lacks these columns of {schema}: {', '.join(missing)}"
        raise DataError([Problem("E101", what, where, remedy, len(missing))])
