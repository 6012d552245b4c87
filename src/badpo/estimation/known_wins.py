r"""The conditional likelihood of votes: who won, given how many won.

With logits :math:`u_c + x_j` the number of wins of a comparison is sufficient for its quality u. Given that s of its
votes won, a set W of s votes is the winning one with probability

.. math:: \frac{\exp \sum_{j \in W} x_j}{\sum_{|V| = s} \exp \sum_{j \in V} x_j}

in which the quality no longer stands.
"""

from __future__ import annotations

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
# Entries of one intermediate array, so that many comparisons need no more memory than a few.
AT_ONCE = 2**22


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


class _Stack(NamedTuple):
    """Contested comparisons with equally many votes and wins."""

    votes: NDArray[np.intp]
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
    members = np.zeros((comb(size, n_wins), size))
    for row, chosen in zip(members, combinations(range(size), n_wins), strict=True):
        row[list(chosen)] = 1.0
    # one row per set of winners: sums over the few sets run along whole rows
    weight = members @ logits.T
    highest = weight.max(axis=0)
    np.exp(weight - highest, out=weight)
    total = weight.sum(axis=0)
    weight /= total
    pairs = (members[:, :, None] * members[:, None, :]).reshape(len(members), -1)
    together = (pairs.T @ weight).T.reshape(-1, size, size)
    return Winners(highest + np.log(total), (members.T @ weight).T, together)


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

    def __init__(self, blocks: ComparisonBlocks, sign: NDArray[np.float64]) -> None:
        self._blocks, self._won = blocks, (sign > 0).astype(np.float64)
        wins = blocks.sums(self._won).astype(np.intp)
        self._stacks: list[list[_Stack]] = []
        for votes in blocks.stacks:
            size, of = votes.shape[1], wins[blocks.comparison[votes[:, 0]]]
            self._stacks.append([_Stack(votes[of == s], s) for s in range(1, size) if (of == s).any()])
        self.start = np.zeros(0)

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Nothing to place."""

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        found = np.zeros(len(self._blocks.starts))
        for stack in self._pieces():
            comparison = self._blocks.comparison[stack.votes[:, 0]]
            won = (self._won[stack.votes] * logits[stack.votes]).sum(axis=1)
            found[comparison] = won - winners(logits[stack.votes], stack.n_wins).log_total
        return found

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of the values: wins minus their expectation, and the covariance of the winners."""
        score = np.zeros(len(logits))
        covariances = [
            np.zeros((len(votes), votes.shape[1], votes.shape[1])) for votes in self._blocks.stacks
        ]
        place = np.empty(len(self._blocks.starts), dtype=np.intp)
        for votes in self._blocks.stacks:
            place[self._blocks.comparison[votes[:, 0]]] = np.arange(len(votes))
        sizes = {votes.shape[1]: i for i, votes in enumerate(self._blocks.stacks)}
        for stack in self._pieces():
            found = winners(logits[stack.votes], stack.n_wins)
            score[stack.votes] = self._won[stack.votes] - found.chance
            rows = place[self._blocks.comparison[stack.votes[:, 0]]]
            covariances[sizes[stack.votes.shape[1]]][rows] = (
                found.together - found.chance[:, :, None] * found.chance[:, None, :]
            )
        return Curvature(
            score, self._blocks.matrix(covariances), np.zeros(0), np.zeros((len(logits), 0)), np.zeros((0, 0))
        )

    def _pieces(self):
        """Contested comparisons, alike in votes and wins, a bounded number at a time."""
        for stacks in self._stacks:
            for votes, n_wins in stacks:
                size = votes.shape[1]
                width = max(size**2, min(comb(size, n_wins), MOST_LISTED), size * n_wins)
                step = max(1, AT_ONCE // width)
                for start in range(0, len(votes), step):
                    yield _Stack(votes[start : start + step], n_wins)
