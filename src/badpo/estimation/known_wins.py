r"""The conditional likelihood of votes: who won, given how many won.

With logits :math:`u_c + x_j` the number of wins of a comparison is sufficient for its quality u. Given that s of its
votes won, a set W of s votes is the winning one with probability

.. math:: \frac{\exp \sum_{j \in W} x_j}{\sum_{|V| = s} \exp \sum_{j \in V} x_j}

in which the quality no longer stands.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.maximizing import Curvature

# Up to so many sets of winners are listed; beyond that the sums over them come from a polynomial's values.
MOST_LISTED = 300
# Entries of one intermediate array: what is worked on at once should fit into the processor's cache.
AT_ONCE = 2**18


class Winners(NamedTuple):
    """Moments of the winning set: probability of every vote and pair of votes to win, and that of what happened.

    Attributes
    ----------
    log_total : array of shape (n,)
        Logarithm of the sum over all sets of winners.
    chance : array of shape (n, T)
    together : array of shape (n, T, T)
        Both win; ``chance`` on the diagonal.
    """

    log_total: NDArray[np.float64]
    chance: NDArray[np.float64]
    together: NDArray[np.float64]


class _Alike(NamedTuple):
    """Contested comparisons with equally many votes and wins: rows of one of the stacks of the blocks."""

    stack: int
    rows: NDArray[np.intp] | slice
    n_wins: int


def winners(logits: NDArray[np.float64], n_wins: int) -> Winners:
    """Moments of the set of ``n_wins`` winners, for comparisons with equally many votes.

    Parameters
    ----------
    logits : array of shape (n, T)
    n_wins : int
        Between 1 and T - 1.

    Examples
    --------
    Two of three votes won, one of them with odds of 3:

    >>> found = winners(np.log([[3.0, 1.0, 1.0]]), 2)
    >>> np.exp(found.log_total), found.chance.round(3)
    (array([7.]), array([[0.857, 0.571, 0.571]]))
    """
    size = logits.shape[1]
    if comb(size, n_wins) > MOST_LISTED:
        return _by_frequencies(logits, n_wins)
    members = _sets_of_winners(size, n_wins)
    weight, total, highest = _weights(members, logits)
    weight /= total
    pairs = (members[:, :, None] * members[:, None, :]).reshape(len(members), -1)
    together = (pairs.T @ weight).T.reshape(-1, size, size)
    return Winners(highest + np.log(total), (members.T @ weight).T, together)


def log_total(logits: NDArray[np.float64], n_wins: int) -> NDArray[np.float64]:
    """The first of the `winners`, for comparisons with equally many votes.

    Parameters
    ----------
    logits : array of shape (n, T)
    n_wins : int
        Between 1 and T - 1.

    Examples
    --------
    >>> np.exp(log_total(np.log([[3.0, 1.0, 1.0]]), 2))
    array([7.])
    """
    size = logits.shape[1]
    if comb(size, n_wins) > MOST_LISTED:
        return _frequencies(logits, n_wins).log_total
    _, total, highest = _weights(_sets_of_winners(size, n_wins), logits)
    return highest + np.log(total)


@cache
def _sets_of_winners(size: int, n_wins: int) -> NDArray[np.float64]:
    members = np.zeros((comb(size, n_wins), size))
    for row, chosen in zip(members, combinations(range(size), n_wins), strict=True):
        row[list(chosen)] = 1.0
    return members


def _weights(
    members: NDArray[np.float64], logits: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Weights of the sets, one row each, so that sums over the few sets run along whole rows; their sum; their scale.

    Weights are relative to the largest, whose logarithm is the scale.
    """
    weight = members @ logits.T
    highest = weight.max(axis=0)
    weight -= highest
    np.exp(weight, out=weight)
    return weight, weight.sum(axis=0), highest


class _Frequencies(NamedTuple):
    r"""Sums over sets of winners as coefficients of a polynomial, read off on the unit circle.

    Let every vote win by itself with chance p, such that about ``n_wins`` of them do. Given how many win, the winners
    are the same as before, and the number of wins has the generating function :math:`\prod_j (1 - p_j + p_j w)`. Its
    mean over the roots of unity w is exact and divides by no difference of logits, so that equal votes need no care
    (Fernandez and Williams 2010). Every root stands for its conjugate too; their number is odd, so that none is -1,
    where a factor could vanish.

    Attributes
    ----------
    log_total : array of shape (n,)
    weight : complex array of shape (n, roots, 1)
        Share of each root in the sum.
    won : complex array of shape (n, roots, T)
        :math:`p_j w` over the factor of the vote.
    """

    log_total: NDArray[np.float64]
    weight: NDArray[np.complex128]
    won: NDArray[np.complex128]


def _frequencies(logits: NDArray[np.float64], n_wins: int) -> _Frequencies:
    size = logits.shape[1]
    tilt = _tilt(logits, n_wins)
    n_roots = size + 1 + size % 2
    angle = 2 * np.pi / n_roots * np.arange((n_roots + 1) // 2)[:, None]
    shifted = (logits + tilt[:, None])[:, None, :]
    won = expit(shifted) * np.exp(1j * angle)
    factors = expit(-shifted) + won
    weight = np.prod(factors, axis=2, keepdims=True) * np.exp(-1j * n_wins * angle)
    weight[:, 1:] *= 2
    total = weight.real.sum(axis=(1, 2))
    log_total = np.log(total / n_roots) + np.logaddexp(0, shifted).sum(axis=(1, 2)) - n_wins * tilt
    return _Frequencies(log_total, weight / total[:, None, None], won / factors)


def _by_frequencies(logits: NDArray[np.float64], n_wins: int) -> Winners:
    log_sum, weight, won = _frequencies(logits, n_wins)
    halves = np.sqrt(weight) * won
    real, imaginary = halves.real, halves.imag
    together = real.transpose(0, 2, 1) @ real - imaginary.transpose(0, 2, 1) @ imaginary
    chance = (weight * won).real.sum(axis=1)
    diagonal = np.arange(logits.shape[1])
    together[:, diagonal, diagonal] = chance
    return Winners(log_sum, chance, together)


def _tilt(logits: NDArray[np.float64], n_wins: int) -> NDArray[np.float64]:
    """What to add to the logits so that ``n_wins`` votes are expected to win; near enough is enough."""
    size = logits.shape[1]
    low, high = -logits.max(axis=1) - np.log(size), -logits.min(axis=1) + np.log(size)
    for _ in range(20):
        middle = (low + high) / 2
        above = expit(logits + middle[:, None]).sum(axis=1) > n_wins
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low


class KnownWins:
    """Votes given the number of wins of each comparison; a `badpo.estimation.maximizing.QualityModel`.

    A unanimous comparison and one with a single vote have log-likelihood 0 whatever the leans.

    Parameters
    ----------
    blocks : ComparisonBlocks
    sign : array of shape (n_votes,)
    """

    def __init__(self, blocks: ComparisonBlocks, sign: NDArray) -> None:
        self._blocks, self._won = blocks, (sign > 0).astype(np.float64)
        wins = blocks.sums(self._won).astype(np.intp)
        self._alike: list[_Alike] = []
        for number, votes in enumerate(blocks.stacks):
            size, of = votes.shape[1], wins[blocks.comparison[votes[:, 0]]]
            for n_wins in range(1, size):
                rows = np.flatnonzero(of == n_wins)
                width = max(size**2, min(comb(size, n_wins), MOST_LISTED))
                step = max(1, AT_ONCE // width)
                parts = (rows[start : start + step] for start in range(0, len(rows), step))
                self._alike += [_Alike(number, _consecutive(part), n_wins) for part in parts]
        self.start = np.zeros(0)

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Nothing to place."""

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        stacked = self._blocks.stacked(logits)
        found = self._blocks.sums(self._won * logits)
        found[self._blocks.sums(self._won) == self._blocks.sizes] = 0.0
        totals = [np.zeros(len(stack)) for stack in stacked]
        for number, rows, n_wins in self._alike:
            totals[number][rows] = log_total(stacked[number][rows], n_wins)
        return found - np.concatenate([np.zeros(0), *totals])

    def chances(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability of every vote to be among the winners."""
        chance = self._won.copy()
        stacked, chances = self._blocks.stacked(logits), self._blocks.stacked(chance)
        for number, rows, n_wins in self._alike:
            chances[number][rows] = winners(stacked[number][rows], n_wins).chance
        return chance

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of the values: wins minus their expectation, and the covariance of the winners."""
        score = np.zeros(len(logits))
        stacked, scores = self._blocks.stacked(logits), self._blocks.stacked(score)
        won = self._blocks.stacked(self._won)
        entries = np.zeros(self._blocks.n_pairs)
        covariances = self._blocks.squares(entries)
        for number, rows, n_wins in self._alike:
            found = winners(stacked[number][rows], n_wins)
            scores[number][rows] = won[number][rows] - found.chance
            covariances[number][rows] = found.together - found.chance[:, :, None] * found.chance[:, None, :]
        return Curvature(
            score, self._blocks.matrix(entries), np.zeros(0), np.zeros((len(logits), 0)), np.zeros((0, 0))
        )


def _consecutive(rows: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """A slice where the rows are one: what it takes from an array is not copied."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
