r"""The conditional likelihood of votes: who won, given how many won.

With logits :math:`u_c + x_j` the number of wins of a comparison is sufficient for its quality u. Given that s of its
votes won, a set W of s votes is the winning one with probability

.. math:: \frac{\exp \sum_{j \in W} x_j}{\sum_{|V| = s} \exp \sum_{j \in V} x_j}

in which the quality no longer stands.
"""

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import expit

from badpo.estimation.newton import NOTHING, Curvature, QualityModel
from badpo.theory import Floats, Ints

# Of up to so many votes all sets of winners are listed; beyond that the sums over them come from a polynomial's values.
LARGEST_LISTED = 10
# Roots of unity whose share of the sum is smaller are left out.
MOST_ROOTS, NO_SHARE = 28, 1e-20
MOST_HALVINGS, NEAR_ENOUGH = 60, 0.5
# Entries of one intermediate array: what is worked on at once should fit into the processor's cache.
AT_ONCE = 2**18


class AlikeComparisons(NamedTuple):
    """Consecutive comparisons with equally many votes that are of one kind, and their votes."""

    comparisons: slice
    votes: slice
    size: int
    kind: int

    def rows(self, values: NDArray) -> NDArray:
        """What their votes have, a row for each comparison."""
        return values[self.votes].reshape(-1, self.size)


@dataclass(frozen=True)
class ComparisonBlocks:
    """Which votes stand together: comparison after comparison, those with fewer votes first.

    Attributes
    ----------
    starts : int array of shape (n_comparisons,)
        Votes ``starts[c]`` up to ``starts[c + 1]`` (or the end) are those on comparison c.
    n_votes : int
    """

    starts: Ints
    n_votes: int

    @cached_property
    def sizes(self) -> Ints:
        """Votes on each comparison."""
        return np.diff(self.starts, append=self.n_votes)

    @cached_property
    def comparison(self) -> Ints:
        """The comparison of each vote."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    def sums(self, values: Floats) -> Floats:
        """Sum over the votes of each comparison, along the first axis."""
        if not len(self.starts):
            return np.zeros((0, *values.shape[1:]))
        return np.add.reduceat(values, self.starts, axis=0)

    def runs(self, width: Callable[[int], int], kind: Ints | None = None) -> list[AlikeComparisons]:
        """The comparisons in runs of one size and kind, short enough for numbers of so many entries a comparison."""
        found, n = [], len(self.starts)
        kind = np.zeros_like(self.starts) if kind is None else kind
        changes = np.flatnonzero(np.diff(self.sizes) | np.diff(kind)) + 1
        for first, last in pairwise([0, *changes.tolist(), n] if n else ()):
            size, of = int(self.sizes[first]), int(kind[first])
            step = max(1, AT_ONCE // width(size))
            for start in range(first, last, step):
                end, vote = min(start + step, last), int(self.starts[start])
                votes = slice(vote, vote + (end - start) * size)
                found.append(AlikeComparisons(slice(start, end), votes, size, of))
        return found

    def chosen(self, comparisons: Ints) -> tuple["ComparisonBlocks", Ints]:
        """Blocks of some comparisons, which may stand there more than once, and the votes on them."""
        sizes = self.sizes[comparisons]
        votes = _ranges(self.starts[comparisons], sizes)
        return ComparisonBlocks(np.cumsum(sizes) - sizes, len(votes)), votes

    def pairs(self, votes: slice) -> slice:
        """Where the entries of `matrix` in the rows of some votes stand."""
        ends = self._layout[1]
        return slice(int(ends[votes.start]), int(ends[votes.stop]))

    def matrix(self, entries: Floats) -> sparse.csr_array:
        """The block-diagonal matrix of shape (n_votes, n_votes), one block per comparison."""
        found = copy(self._ones)
        found.data = entries
        return found

    @cached_property
    def _ones(self) -> sparse.csr_array:
        """The matrix with ones, whose layout is validated once."""
        shape = self.n_votes, self.n_votes
        return sparse.csr_array((np.ones(self.n_pairs), *self._layout), shape)

    @cached_property
    def n_pairs(self) -> int:
        """How many entries `matrix` has."""
        return int(self._layout[1][-1])

    @cached_property
    def _layout(self) -> tuple[NDArray, NDArray]:
        """Columns of the entries of `matrix`, and where each row begins."""
        length = self.sizes[self.comparison]
        ends = np.append(0, np.cumsum(length))
        kind = np.int32 if ends[-1] < 2**31 else np.int64
        ahead = ends[:-1] - self.starts[self.comparison]
        columns = np.arange(ends[-1]) - np.repeat(ahead, length)
        return columns.astype(kind), ends.astype(kind)


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """The numbers from each start on, as many as its length."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def sorted_blocks(comparison: ArrayLike, won: ArrayLike = False) -> tuple[Ints, ComparisonBlocks]:
    """The order that brings the votes of a comparison together, and the blocks in that order.

    By number of votes, then by how many won, then by label. ``values[order]`` puts a value per vote into the order of
    the blocks.
    """
    labels = np.asarray(comparison)
    by_label = np.argsort(labels, kind="stable")
    first = np.flatnonzero(np.diff(labels[by_label], prepend=-1))
    found = ComparisonBlocks(first, len(labels))
    wins = found.sums(np.broadcast_to(won, labels.shape)[by_label].astype(np.int64))
    order = np.lexsort((wins, found.sizes))
    sizes = found.sizes[order]
    starts = np.cumsum(sizes) - sizes
    return by_label[_ranges(first[order], sizes)], ComparisonBlocks(starts, len(labels))


class Winners(NamedTuple):
    """Every vote's chance to win, (n, T), the covariance between votes, (n, T, T), and `log_total`, (n,)."""

    chance: Floats
    covariance: Floats
    log_total: Floats


def winners(logits: Floats, n_wins: int | Ints) -> Winners:
    """Moments of the set of ``n_wins`` winners (1 to T - 1), for comparisons with equally many votes.

    Examples
    --------
    Two of three votes won, one of them with odds of 3:

    >>> winners(np.log([[3.0, 1.0, 1.0]]), 2).chance.round(3)
    array([[0.857, 0.571, 0.571]])
    """
    size = logits.shape[1]
    if size > LARGEST_LISTED:
        log_totals, share, won = _frequencies(logits, n_wins)
        chance = (share * won).real.sum(axis=2).T
        halves = (np.sqrt(share) * (won - chance.T[:, :, None])).transpose(1, 0, 2)
        real, imaginary = map(np.ascontiguousarray, (halves.real, halves.imag))
        # numpy takes half as long for a matrix times its own transpose
        covariance = real @ real.transpose(0, 2, 1)
        covariance -= imaginary @ imaginary.transpose(0, 2, 1)
        each = np.arange(size)
        covariance[:, each, each] = chance * (1 - chance)
        return Winners(chance, covariance, log_totals)
    members = _sets_of_winners(size, int(n_wins))
    weight, total, highest = _weights(members, logits)
    weight /= total
    pairs = (members[:, :, None] * members[:, None, :]).reshape(len(members), -1)
    together = (pairs.T @ weight).T.reshape(-1, size, size)
    chance = (members.T @ weight).T
    covariance = together - chance[:, :, None] * chance[:, None, :]
    return Winners(chance, covariance, highest + np.log(total))


def log_total(logits: Floats, n_wins: int | Ints) -> Floats:
    """The logarithm of the sum over all sets of `winners`, of shape (n,)."""
    size = logits.shape[1]
    if size > LARGEST_LISTED:
        return _frequencies(logits, n_wins)[0]
    _, total, highest = _weights(_sets_of_winners(size, int(n_wins)), logits)
    return highest + np.log(total)


@cache
def _sets_of_winners(size: int, n_wins: int) -> Floats:
    members = np.zeros((math.comb(size, n_wins), size))
    for row, chosen in zip(members, combinations(range(size), n_wins), strict=True):
        row[list(chosen)] = 1.0
    return members


def _weights(members: Floats, logits: Floats) -> tuple[Floats, Floats, Floats]:
    """Weights of the sets, one row each, so that sums over the few sets run along whole rows; their sum; their scale.

    Weights are relative to the largest, whose logarithm is the scale.
    """
    weight = members @ logits.T
    highest = weight.max(axis=0)
    weight -= highest
    np.exp(weight, out=weight)
    return weight, weight.sum(axis=0), highest


def _frequencies(logits: Floats, n_wins: int | Ints) -> tuple[Floats, NDArray, NDArray]:
    r"""Sums over sets of winners as coefficients of a polynomial, read off on the unit circle.

    Let every vote win by itself with chance p, such that about ``n_wins`` of them do. Given how many win, the winners
    are the same as before, and the number of wins has the generating function :math:`\prod_j (1 - p_j + p_j w)`. The
    mean of its values times :math:`w^{-s}` over the N-th roots of unity w is the chance of s wins, and of s plus or
    minus N, 2N, ... It divides by no difference of logits, so that equal votes need no care (Fernandez and Williams
    2010).

    With a standard deviation of :math:`\sigma` wins, N need not exceed :math:`9 \sigma + 13`: as many wins more or
    fewer have a chance below e^-39 (Bennett's inequality). At the angle a the product is at most
    :math:`\exp(-2 \sigma^2 \sin^2(a / 2))`, below e^-39 beyond the first `MOST_ROOTS` roots. So what is left out is
    less than rounding, and the work for a vote does not grow with the votes beside it. Every root stands for its
    conjugate too; N is odd, so that none is -1, where a factor could vanish.

    Returns
    -------
    log_total : array of shape (n,)
    weight : complex array of shape (n, roots)
        Share of each root in the sum.
    won : complex array of shape (T, n, roots)
        :math:`p_j w` over the factor of the vote.
    """
    tilt = expected_wins_shift(logits, n_wins)  # near enough is enough
    shifted = logits.T + tilt
    chance, other = expit(shifted), expit(-shifted)
    spread = np.sqrt((chance * other).sum(axis=0))
    n_roots = 1 + 2 * np.ceil(np.minimum(9 * spread + 13, len(shifted)) / 2)
    root = np.arange(min((n_roots.max() + 1) // 2, MOST_ROOTS))
    angle = 2 * np.pi / n_roots[:, None] * root
    won = chance[:, :, None] * np.exp(1j * angle)
    factors = other[:, :, None] + won
    turned = np.exp(-1j * np.reshape(n_wins, (-1, 1)) * angle)
    weight = np.prod(factors, axis=0) * turned
    weight[:, 1:] *= 2
    weight[2 * root > n_roots[:, None]] = 0
    total = weight.real.sum(axis=1)
    log_total = np.log(total / n_roots) - n_wins * tilt
    log_total += np.logaddexp(0, shifted).sum(axis=0)
    share = weight / total[:, None]
    n_kept = 1 + np.flatnonzero((np.abs(share) > NO_SHARE).any(axis=0))[-1]
    return log_total, share[:, :n_kept], won[:, :, :n_kept] / factors[:, :, :n_kept]


def expected_wins_shift(logits: Floats, n_wins: int | Ints) -> Floats:
    """What to add to the logits of each comparison so that about ``n_wins`` votes are expected to win, by bisection."""
    size = logits.shape[1]
    low, high = -logits.max(axis=1) - np.log(size), -logits.min(axis=1) + np.log(size)
    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        excess = expit(logits + middle[:, None]).sum(axis=1) - n_wins
        if np.abs(excess).max() < NEAR_ENOUGH:
            break
        low = np.where(excess > 0, low, middle)
        high = np.where(excess > 0, middle, high)
    return middle


class KnownWins(QualityModel):
    """Votes given the number of wins of each comparison.

    A unanimous comparison and one with a single vote have log-likelihood 0 whatever the leans.
    """

    def __init__(self, blocks: ComparisonBlocks, sign: NDArray) -> None:
        self._blocks, self._won = blocks, (sign > 0).astype(float)
        self._n_wins = blocks.sums(self._won).astype(np.intp)
        # 0 of those that say nothing; listed sets are of one number of wins
        kind = np.where(blocks.sizes > LARGEST_LISTED, 1, self._n_wins)
        kind[(self._n_wins == 0) | (self._n_wins == blocks.sizes)] = 0
        runs = blocks.runs(lambda size: size**2 if size > LARGEST_LISTED else 2**size, kind)
        self._runs = [run for run in runs if run.kind]

    def _parts(self, logits: Floats) -> Iterator[tuple[AlikeComparisons, Floats, Floats, int | Ints]]:
        """Runs of n comparisons, their votes' logits (n, T), which of them won, and how many."""
        for run in self._runs:
            is_listed = run.size <= LARGEST_LISTED
            n_wins = run.kind if is_listed else self._n_wins[run.comparisons]
            yield run, run.rows(logits), run.rows(self._won), n_wins

    def values(self, logits: Floats, extra: Floats = NOTHING) -> Floats:
        """Log-likelihood of each comparison."""
        found = np.zeros(len(self._blocks.starts))
        for run, x, won, n_wins in self._parts(logits):
            found[run.comparisons] = (won * x).sum(axis=1) - log_total(x, n_wins)
        return found

    def curvature(self, logits: Floats, extra: Floats = NOTHING) -> Curvature:
        """Derivatives of the sum of the values: wins minus their expectation, and the covariance of the winners."""
        found = self.winners(logits)
        return Curvature(self._won - found.chance, self._blocks.matrix(found.covariance))

    def winners(self, logits: Floats) -> Winners:
        """`winners` of all comparisons: chances by vote, and covariances as entries of `ComparisonBlocks.matrix`."""
        chance, entries = self._won.copy(), np.zeros(self._blocks.n_pairs)
        log_totals = self._blocks.sums(self._won * logits)
        for run, x, _, n_wins in self._parts(logits):
            found = winners(x, n_wins)
            chance[run.votes] = found.chance.ravel()
            entries[self._blocks.pairs(run.votes)] = found.covariance.ravel()
            log_totals[run.comparisons] = found.log_total
        return Winners(chance, entries, log_totals)
