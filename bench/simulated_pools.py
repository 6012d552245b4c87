"""Simulated votes of pools with known biases, from the model or from a model that violates an assumption."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.fit import Votes

# Share of a specialist's votes in the specialist's own domain.
OWN_DOMAIN = 0.9


@dataclass(frozen=True)
class Pool:
    """A pool of annotators who vote on comparisons with one attribute.

    The quality of comparisons has the standard deviation ``quality_sd``; if ``bimodal``, it is a mixture of two normal
    distributions. The response with the attribute is better by ``better``. If there are ``specialists``, half of the
    annotators cast nine tenths of the votes of each of two domains, and in the second domain the response with the
    attribute is worse by ``better``.

    The biases have the mean ``mean`` and the standard deviation ``spread`` (times Student's t with two degrees of
    freedom if ``heavy``). The biases of the first ``n_planted`` annotators differ from the mean by ``planted`` in
    either direction, or upward if ``one_way``. The biases of the first class (``classes`` are the sizes of classes) are
    larger by ``class_gap``. ``taste`` is the standard deviation of a bias between prompts of ``per_prompt``
    comparisons. The last ``n_clickers`` annotators are random responders: their reliability and biases are multiplied
    by ``clicker_care``, which is 0 by default. ``care_sd`` is the standard deviation of the other annotators'
    reliability.

    Annotators of different ``camps`` (their sizes) have qualities with the correlation ``agreement``.

    The biases of two teams are larger and smaller by ``teams``; each team judges its own comparisons, and both judge
    ``n_joint`` comparisons together, on which each team has a winner and a loser. If the sides differ, annotator 0
    votes for the attribute (``adversary`` +1) or against it (-1), except for a share of ``errors``; if ``blind``, its
    other votes are random. A ``continuous`` attribute is normal with the median difference 1, and a share of
    ``outliers`` is recorded 40 times too large. ``hidden`` is the standard deviation of biases toward a feature that
    equals the attribute in a share of ``together``, and is random otherwise.

    Annotators vote in proportion to one over the power ``zipf`` of their rank, which is random. If ``busiest`` is above
    0, annotator 0 judges every comparison, and other votes are removed until this is annotator 0's share of the votes.
    ``class_care`` is the reliability of the first class, relative to the other classes. The first ``n_gold`` annotators
    have no bias, and ``gold_care`` is their reliability relative to the others; deviations are then the biases
    themselves.
    """

    n_comparisons: int
    n_annotators: int = 60
    votes_each: int = 4
    quality_sd: float = 1.0
    spread: float = 0.5
    n_planted: int = 0
    bimodal: bool = False
    better: float = 0.0
    specialists: bool = False
    mean: float = 0.8
    planted: float = 1.0
    heavy: bool = False
    one_way: bool = False
    n_clickers: int = 0
    clicker_care: float = 0.0
    care_sd: float = 0.0
    classes: tuple[int, ...] = ()
    class_gap: float = 0.0
    taste: float = 0.0
    per_prompt: int = 1
    teams: float = 0.0
    n_joint: int = 0
    adversary: int = 0
    errors: float = 0.0
    blind: bool = False
    continuous: bool = False
    outliers: float = 0.0
    camps: tuple[int, ...] = ()
    agreement: float = 0.0
    hidden: float = 0.0
    together: float = 0.7
    cross_share: float = 0.5
    zipf: float = 0.0
    busiest: float = 0.0
    class_care: float = 1.0
    n_gold: int = 0
    gold_care: float = 1.0


@dataclass(frozen=True)
class DrawnVotes:
    """Simulated votes, and the true deviations and reliability, of shape (m,), and quality, of shape (n_comparisons,).

    ``recorded`` and ``feature`` are the recorded difference in the attribute and in the hidden feature.
    """

    comparison: NDArray[np.intp]
    sign: NDArray[np.intp]
    annotator: NDArray[np.intp]
    delta: NDArray[np.float64]
    n_annotators: int
    deviation: NDArray[np.float64]
    quality: NDArray[np.float64]
    care: NDArray[np.float64]
    recorded: NDArray[np.float64]
    feature: NDArray[np.float64]

    @property
    def arrays(self) -> Votes:
        """Votes in the form that the estimators take."""
        return Votes(self.comparison, self.sign, self.annotator, self.delta, self.n_annotators)


def draw_votes(pool: Pool, random: np.random.Generator) -> DrawnVotes:
    """Draw the biases, comparisons and votes of one pool."""
    m, n, each = pool.n_annotators, pool.n_comparisons, pool.votes_each
    bias, reliability = _annotators(pool, random)
    difference, feature, recorded = _sides(pool, random)
    domain = random.integers(2, size=n)
    quality = random.standard_normal(n)
    if pool.bimodal:
        quality = 0.6 * quality + 0.8 * random.choice([-1.0, 1.0], n)
    quality = pool.quality_sd * quality
    quality += pool.better * difference * np.where(pool.specialists & (domain == 1), -1.0, 1.0)
    annotator = _voters(pool, domain, random)
    comparison = np.repeat(np.arange(n), each)
    if pool.busiest:
        is_kept = (annotator == 0) | (random.random(len(annotator)) < _kept_share(pool))
        comparison, annotator = comparison[is_kept], annotator[is_kept]
    tastes = pool.taste * random.standard_normal((m, n // pool.per_prompt + 1))
    toward = bias[annotator] + tastes[annotator, comparison // pool.per_prompt]
    sizes = pool.camps or (m,)
    camp = np.repeat(np.arange(len(sizes)), sizes)
    liked = _tastes(pool, quality, random)[comparison, camp[annotator]]
    logit = reliability[annotator] * liked + toward * difference[comparison]
    logit += (pool.hidden * random.standard_normal(m))[annotator] * feature[comparison]
    decides = (annotator == 0) & (difference[comparison] != 0) & (pool.adversary != 0)
    always = logit_of(1 - pool.errors) * pool.adversary * np.sign(difference[comparison])
    logit = np.where(decides, always, logit)
    if pool.blind:
        logit[(annotator == 0) & ~decides] = 0.0
    sign = np.where(random.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
    sign[: each * pool.n_joint] = np.resize([1, -1], each * pool.n_joint)
    deviation = bias - (0.0 if pool.n_gold else bias.mean())
    if pool.adversary:
        deviation[0] = pool.adversary * np.inf
    delta = difference[comparison][:, None]
    truth = deviation, quality, reliability, recorded, feature
    return DrawnVotes(comparison, sign, annotator, delta, m, *truth)


def _kept_share(pool: Pool) -> float:
    """Share of the other annotators' votes to keep, so that annotator 0 has the share ``busiest`` of all votes."""
    return (1 / pool.busiest - 1) / (pool.votes_each - 1)


def _tastes(pool: Pool, quality: NDArray, random: np.random.Generator) -> NDArray:
    """Quality of each comparison for each camp, of shape (n_comparisons, n_camps)."""
    if not pool.camps:
        return quality[:, None]
    own = pool.quality_sd * random.standard_normal((len(quality), len(pool.camps)))
    return np.sqrt(pool.agreement) * quality[:, None] + np.sqrt(1 - pool.agreement) * own


def logit_of(share: float) -> float:
    """Log-odds, at most 30."""
    return float(np.log(share / max(1 - share, 1e-13)))


def _annotators(pool: Pool, random: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Draw the bias and the reliability of each annotator."""
    m = pool.n_annotators
    drawn = random.standard_t(2, m) if pool.heavy else random.standard_normal(m)
    bias = pool.mean + pool.spread * drawn
    signs = random.choice([1.0] if pool.one_way else [-1.0, 1.0], pool.n_planted)
    bias[: pool.n_planted] = pool.mean + pool.planted * signs
    bias[: sum(pool.classes[:1])] += pool.class_gap
    bias += np.where(np.arange(m) < m // 2, pool.teams, -pool.teams)
    reliability = np.maximum(1 + pool.care_sd * random.standard_normal(m), 0)
    clicks = np.arange(m) >= m - pool.n_clickers
    if pool.adversary:
        bias[0] = pool.adversary * logit_of(1 - max(pool.errors, 0.1))
    reliability[: sum(pool.classes[:1])] *= pool.class_care
    bias[: pool.n_gold], reliability[: pool.n_gold] = 0.0, pool.gold_care
    return np.where(clicks, pool.clicker_care * bias, bias), np.where(
        clicks, pool.clicker_care, reliability
    )


def _sides(pool: Pool, random: np.random.Generator) -> tuple[NDArray, NDArray, NDArray]:
    """Draw the difference in the attribute, in the hidden feature, and the recorded difference, for each comparison."""
    n = pool.n_comparisons
    chances = [pool.cross_share / 2, 1 - pool.cross_share, pool.cross_share / 2]
    difference = random.choice([-1.0, 0.0, 1.0], n, p=chances)
    difference[: pool.n_joint] = 1.0
    anywhere = random.choice([-1.0, 0.0, 1.0], n)
    feature = np.where(random.random(n) < pool.together, difference, anywhere)
    if pool.continuous:
        difference = difference * np.abs(random.standard_normal(n)) / 0.6745
    wrong = random.random(n) < pool.outliers
    return difference, feature, np.where(wrong, 40.0, 1.0) * difference


def _voters(pool: Pool, domain: NDArray[np.intp], random: np.random.Generator) -> NDArray[np.intp]:
    """Draw distinct annotators for every comparison: the annotators with the largest random keys."""
    n, m, each = pool.n_comparisons, pool.n_annotators, pool.votes_each
    keys = random.gumbel(size=(n, m))
    if pool.specialists:
        home = np.arange(m) % 2
        at_home = domain[:, None] == home[None, :]
        keys += np.where(at_home, np.log(OWN_DOMAIN), np.log(1 - OWN_DOMAIN))
    if pool.teams:
        is_first = np.arange(m) < m // 2
        keys[is_first[None, :] != (np.arange(n) % 2 == 0)[:, None]] = -np.inf
    if pool.zipf:
        keys -= pool.zipf * np.log(1 + random.permutation(m))
    if pool.busiest:
        keys[:, 0] = np.inf
    chosen = np.argpartition(-keys, each - 1, axis=1)[:, :each]
    if pool.n_joint:
        chosen[: pool.n_joint] = [0, 1, m - 2, m - 1]
    return chosen.ravel()


@cache
def informative_share(votes_each: int, quality_sd: float) -> float:
    """Share of votes that are cross-group and on a comparison that is not unanimous, from 20,000 comparisons."""
    votes = draw_votes(
        Pool(20_000, votes_each=votes_each, quality_sd=quality_sd), np.random.default_rng(0)
    )
    wins = np.bincount(votes.comparison, votes.sign > 0)[votes.comparison]
    return float(np.mean((votes.delta[:, 0] != 0) & (wins > 0) & (wins < votes_each)))


def sized(informative: float, votes_each: int, quality_sd: float, n_annotators: int = 60) -> int:
    """Compute the number of comparisons that gives every annotator this mean number of informative votes."""
    return round(informative * n_annotators / votes_each / informative_share(votes_each, quality_sd))
