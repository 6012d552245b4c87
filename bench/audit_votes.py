"""Votes of large pools with known leans, for the speed of the audit's estimators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MEAN_LEAN, SPREAD = 0.8, 0.5


@dataclass(frozen=True)
class Size:
    """Comparisons with unit-normal quality; the sides differ in an attribute in every other one."""

    n_comparisons: int
    n_annotators: int
    n_attributes: int
    votes_each: int = 4


SIZES = {
    "tiny": Size(300, 12, 2),
    "S": Size(7_177, 60, 2),
    "M": Size(10_461, 227, 2),
    "L": Size(1_000_000, 10_000, 3),
    "panel": Size(200, 96, 3, votes_each=96),
}


@dataclass(frozen=True)
class Votes:
    """Votes as every estimator takes them, and the leans behind them, of shape (n_annotators, n_attributes)."""

    comparison: NDArray[np.int64]
    sign: NDArray[np.int64]
    annotator: NDArray[np.int64]
    delta: NDArray[np.float64]
    theta: NDArray[np.float64]

    @property
    def arrays(self) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
        """The first arguments of every estimator."""
        return self.comparison, self.sign, self.annotator, self.delta, len(self.theta)


def draw(size: Size, seed: int = 0) -> Votes:
    """Votes of distinct annotators on every comparison, assigned at random."""
    random = np.random.default_rng(seed)
    n, q, each = size.n_comparisons, size.n_attributes, size.votes_each
    theta = MEAN_LEAN + SPREAD * random.standard_normal((size.n_annotators, q))
    differs = random.choice([-1.0, 0.0, 1.0], (n, q), p=[0.25, 0.5, 0.25])
    annotator = _distinct(random, n, size.n_annotators, each).ravel()
    comparison = np.repeat(np.arange(n), each)
    delta = differs[comparison]
    logit = random.standard_normal(n)[comparison] + np.einsum("ij,ij->i", theta[annotator], delta)
    sign = np.where(random.random(n * each) < 1 / (1 + np.exp(-logit)), 1, -1)
    return Votes(comparison, sign, annotator, delta, theta)


def _distinct(random: np.random.Generator, n: int, m: int, each: int) -> NDArray[np.int64]:
    """Rows of distinct annotators; where they are few of many, those with a repetition are drawn again."""
    if each > m / 2:
        return np.argsort(random.random((n, m)), axis=1)[:, :each]
    drawn = random.integers(m, size=(n, each))
    while len(again := np.flatnonzero((np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1))):
        drawn[again] = random.integers(m, size=(len(again), each))
    return drawn


def save(votes: Votes, path: Path) -> None:
    np.savez(path, **vars(votes))


def load(path: Path) -> Votes:
    with np.load(path) as stored:
        return Votes(**stored)
