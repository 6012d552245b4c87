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
from scipy.special import logsumexp

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.maximizing import Curvature

# Up to so many sets of winners are listed; beyond that the sums over them come from a recursion.
MOST_LISTED = 1000
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
        return _by_recursion(logits, n_wins)
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
        return _log_sums(logits, n_wins)[size][:, n_wins]
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


def _by_recursion(logits: NDArray[np.float64], n_wins: int) -> Winners:
    """The same by adding one vote at a time; one pass for each vote that is taken to have won."""
    log_total, chance = _marginals(logits, n_wins)
    size = logits.shape[1]
    together = np.empty((len(logits), size, size))
    for j in range(size):
        others = np.delete(np.arange(size), j)
        together[:, j, j] = chance[:, j]
        if n_wins == 1:
            together[:, j, others] = 0.0
            continue
        rest = _marginals(logits[:, others], n_wins - 1)[1]
        together[:, j, others] = chance[:, j, None] * rest
    return Winners(log_total, chance, together)


def _marginals(logits: NDArray[np.float64], n_wins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log of the sum over sets of winners, and every vote's chance; sums over the votes before and after each."""
    size = logits.shape[1]
    before, after = _log_sums(logits, n_wins), _log_sums(logits[:, ::-1], n_wins)
    log_total = before[size][:, n_wins]
    chance = np.empty_like(logits)
    for j in range(size):
        without = logsumexp(before[j][:, :n_wins] + after[size - 1 - j][:, n_wins - 1 :: -1], axis=1)
        chance[:, j] = np.exp(logits[:, j] + without - log_total)
    return log_total, chance


def _log_sums(logits: NDArray[np.float64], n_wins: int) -> list[NDArray[np.float64]]:
    """For the first 0, 1, ..., T votes: logs of the sums over sets of 0, 1, ..., n_wins of them."""
    sums = np.full((len(logits), n_wins + 1), -np.inf)
    sums[:, 0] = 0.0
    steps = [sums]
    for vote in logits.T:
        sums = sums.copy()
        sums[:, 1:] = np.logaddexp(sums[:, 1:], steps[-1][:, :-1] + vote[:, None])
        steps.append(sums)
    return steps


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
                width = max(size**2, min(comb(size, n_wins), MOST_LISTED), size * n_wins)
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
