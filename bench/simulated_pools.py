"""Votes of pools whose leans are known: drawn by the model, or by one that breaks an assumption of some estimator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

MEAN_LEAN = 0.8
CROSS_SHARE = 0.5
OWN_DOMAIN = 0.9


@dataclass(frozen=True)
class Pool:
    """How a pool of annotators votes on comparisons with one attribute, whose sides differ in every other one.

    The sd of the comparisons' quality is ``quality_sd``, from two normals 1.6 sd apart where ``bimodal``; that of the
    leans is ``spread``, and ``n_planted`` annotators lean 1 more or less on top. The side with more of the attribute
    is ``better`` by so much, with opposite signs in two domains where there are ``specialists``: half of the annotators
    cast nine tenths of the votes of each.
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


@dataclass(frozen=True)
class DrawnVotes:
    """Votes as every estimator takes them, and the truth: deviations (m,) and quality (n_comparisons,)."""

    comparison: NDArray[np.intp]
    sign: NDArray[np.intp]
    annotator: NDArray[np.intp]
    delta: NDArray[np.float64]
    n_annotators: int
    deviation: NDArray[np.float64]
    quality: NDArray[np.float64]

    @property
    def arrays(self) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
        """The first arguments of every estimator."""
        return self.comparison, self.sign, self.annotator, self.delta, self.n_annotators


def draw_votes(pool: Pool, random: np.random.Generator) -> DrawnVotes:
    """One pool's leans, comparisons and votes."""
    m, n = pool.n_annotators, pool.n_comparisons
    lean = MEAN_LEAN + pool.spread * random.standard_normal(m)
    lean[: pool.n_planted] += random.choice([-1.0, 1.0], pool.n_planted)
    difference = random.choice(
        [-1.0, 0.0, 1.0], n, p=[CROSS_SHARE / 2, 1 - CROSS_SHARE, CROSS_SHARE / 2]
    )
    domain = random.integers(2, size=n)
    quality = random.standard_normal(n)
    if pool.bimodal:
        quality = 0.6 * quality + 0.8 * random.choice([-1.0, 1.0], n)
    quality = pool.quality_sd * quality
    quality += pool.better * difference * np.where(pool.specialists & (domain == 1), -1.0, 1.0)
    annotator = _voters(pool, domain, random)
    comparison = np.repeat(np.arange(n), pool.votes_each)
    logit = quality[comparison] + lean[annotator] * difference[comparison]
    sign = np.where(random.random(len(logit)) < 1 / (1 + np.exp(-logit)), 1, -1)
    delta = difference[comparison][:, None]
    return DrawnVotes(comparison, sign, annotator, delta, m, lean - lean.mean(), quality)


def _voters(pool: Pool, domain: NDArray[np.intp], random: np.random.Generator) -> NDArray[np.intp]:
    """Distinct annotators for every comparison: those with the largest keys, in their order of arrival."""
    keys = random.gumbel(size=(pool.n_comparisons, pool.n_annotators))
    if pool.specialists:
        home = np.arange(pool.n_annotators) % 2
        at_home = domain[:, None] == home[None, :]
        keys += np.where(at_home, np.log(OWN_DOMAIN), np.log(1 - OWN_DOMAIN))
    return np.argpartition(-keys, pool.votes_each - 1, axis=1)[:, : pool.votes_each].ravel()


@cache
def informative_share(votes_each: int, quality_sd: float) -> float:
    """Share of votes that are cross-group and on a comparison that is not unanimous, from 20,000 comparisons."""
    votes = draw_votes(
        Pool(20_000, votes_each=votes_each, quality_sd=quality_sd), np.random.default_rng(0)
    )
    wins = np.bincount(votes.comparison, votes.sign > 0)[votes.comparison]
    return float(np.mean((votes.delta[:, 0] != 0) & (wins > 0) & (wins < votes_each)))


def sized(informative: float, votes_each: int, quality_sd: float, n_annotators: int = 60) -> int:
    """Comparisons that give every annotator so many informative votes on average."""
    return round(informative * n_annotators / votes_each / informative_share(votes_each, quality_sd))
