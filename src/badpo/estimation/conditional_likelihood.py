r"""Conditional likelihood of the votes, given the number of votes for response a on each comparison.

A vote for response a is called a win. If the logit of a vote is :math:`u_c + x_j`, the number of wins on a comparison
is a sufficient statistic for the quality u of the comparison. If exactly s votes on a comparison are wins, the
probability that W is the set of winning votes is

.. math:: \frac{\exp \sum_{j \in W} x_j}{\sum_{|V| = s} \exp \sum_{j \in V} x_j}

This conditional probability does not depend on the quality of the comparison.
"""

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import expit

from badpo.estimation.newton import NOTHING, Curvature, QualityModel
from badpo.theory import Array, Floats, Ints

# If a comparison has at most LARGEST_LISTED votes, all possible sets of winners are listed.
# If a comparison has more than LARGEST_LISTED votes, a generating polynomial gives the sum over all sets of winners.
LARGEST_LISTED = 10
# The sum uses at most MOST_ROOTS roots of unity.
# A root of unity is omitted if it contributes less than the share NO_SHARE of the sum.
MOST_ROOTS, NO_SHARE = 28, 1e-20
# Bisection takes at most MOST_HALVINGS steps.
# The expected number of wins may differ from the actual number by at most NEAR_ENOUGH.
MOST_HALVINGS, NEAR_ENOUGH = 60, 0.5
# Largest number of entries in an intermediate array; arrays of this size fit into the processor's cache.
AT_ONCE = 2**18


class AlikeComparisons(NamedTuple):
    """Run of consecutive comparisons with the same kind and the same number of votes, and the slice of their votes."""

    comparisons: slice
    votes: slice
    size: int
    kind: int

    def rows(self, values: Array) -> Array:
        """Reshape an array with one value per vote into one row per comparison."""
        return values[self.votes].reshape(-1, self.size)


@dataclass(frozen=True)
class ComparisonBlocks:
    """Votes sorted by comparison; comparisons with fewer votes come first.

    Attributes
    ----------
    starts : int array of shape (n_comparisons,)
        Position of each comparison's first vote. The votes on comparison c end before ``starts[c + 1]``, or at the end.
    n_votes : int
    """

    starts: Ints
    n_votes: int

    @cached_property
    def sizes(self) -> Ints:
        """Number of votes on each comparison."""
        return np.diff(self.starts, append=self.n_votes)

    @cached_property
    def comparison(self) -> Ints:
        """Number of the comparison of each vote."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    def sums(self, values: Floats) -> Floats:
        """Sum values over the votes on each comparison, along the first axis."""
        if not len(self.starts):
            return np.zeros((0, *values.shape[1:]))
        return np.add.reduceat(values, self.starts, axis=0)

    def runs(self, width: Callable[[int], int], kind: Ints | None = None) -> list[AlikeComparisons]:
        """Divide the comparisons into runs; the comparisons of a run have the same kind and the same number of votes.

        ``width`` maps the number of votes on a comparison to the number of array entries that the comparison needs. The
        comparisons of a run need at most ``AT_ONCE`` entries together, unless the run contains a single comparison.
        """
        runs, n = [], len(self.starts)
        kind = np.zeros_like(self.starts) if kind is None else kind
        changes = np.flatnonzero(np.diff(self.sizes) | np.diff(kind)) + 1
        for first, last in pairwise([0, *changes.tolist(), n] if n else ()):
            size, run_kind = int(self.sizes[first]), int(kind[first])
            step = max(1, AT_ONCE // width(size))
            for start in range(first, last, step):
                end, vote = min(start + step, last), int(self.starts[start])
                votes = slice(vote, vote + (end - start) * size)
                runs.append(AlikeComparisons(slice(start, end), votes, size, run_kind))
        return runs

    def select(self, comparisons: Ints) -> tuple["ComparisonBlocks", Ints]:
        """Select comparisons, possibly with repetitions, and return their blocks and the positions of their votes."""
        sizes = self.sizes[comparisons]
        votes = _ranges(self.starts[comparisons], sizes)
        return ComparisonBlocks(np.cumsum(sizes) - sizes, len(votes)), votes

    def pairs(self, votes: slice) -> slice:
        """Slice of the entries of `matrix` in the rows of the given votes."""
        ends = self._layout[1]
        return slice(int(ends[votes.start]), int(ends[votes.stop]))

    def matrix(self, entries: Floats) -> sparse.csr_array:
        """Build a block-diagonal matrix, of shape (n_votes, n_votes), with one block per comparison."""
        matrix = copy(self._ones)
        matrix.data = entries
        return matrix

    @cached_property
    def _ones(self) -> sparse.csr_array:
        """Block-diagonal matrix filled with ones; SciPy validates the layout only once."""
        shape = self.n_votes, self.n_votes
        return sparse.csr_array((np.ones(self.n_pairs), *self._layout), shape)

    @cached_property
    def n_pairs(self) -> int:
        """Number of entries of `matrix`."""
        return int(self._layout[1][-1])

    @cached_property
    def _layout(self) -> tuple[Array, Array]:
        """Column indices and row pointers that store the block-diagonal `matrix` in the CSR format."""
        length = self.sizes[self.comparison]
        ends = np.append(0, np.cumsum(length))
        kind = np.int32 if ends[-1] < 2**31 else np.int64
        ahead = ends[:-1] - self.starts[self.comparison]
        columns = np.arange(ends[-1]) - np.repeat(ahead, length)
        return columns.astype(kind), ends.astype(kind)


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """Concatenate integer ranges with the given ``starts`` and ``lengths``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def sort_into_blocks(comparison: ArrayLike, won: ArrayLike = False) -> tuple[Ints, ComparisonBlocks]:
    """Sort votes by comparison, and return the order and the blocks of the sorted votes.

    Comparisons are sorted by number of votes, then by number of wins, then by label. ``values[order]`` sorts an array
    with one value per vote.
    """
    labels = np.asarray(comparison)
    by_label = np.argsort(labels, kind="stable")
    first = np.flatnonzero(np.diff(labels[by_label], prepend=-1))
    by_label_blocks = ComparisonBlocks(first, len(labels))
    wins = by_label_blocks.sums(np.broadcast_to(won, labels.shape)[by_label].astype(np.int64))
    order = np.lexsort((wins, by_label_blocks.sizes))
    sizes = by_label_blocks.sizes[order]
    starts = np.cumsum(sizes) - sizes
    return by_label[_ranges(first[order], sizes)], ComparisonBlocks(starts, len(labels))


class Winners(NamedTuple):
    """Conditional moments of the T votes on each of n comparisons, given the number of votes for response a.

    ``chance``, of shape (n, T), is the probability that a vote is for response a. ``covariance``, of shape (n, T, T),
    is the covariance matrix of the indicators of votes for a. ``log_total``, of shape (n,), is the logarithm of the
    normalizing sum over all sets of winners.
    """

    chance: Floats
    covariance: Floats
    log_total: Floats


def winners(logits: Floats, n_wins: int | Ints) -> Winners:
    """Return conditional moments of the votes, given that ``n_wins`` of T votes on each comparison are for response a.

    ``n_wins`` must be between 1 and T - 1.

    Examples
    --------
    Two of three votes are for response a. The first vote has odds of 3, and the other votes have odds of 1:

    >>> winners(np.log([[3.0, 1.0, 1.0]]), 2).chance.round(3)
    array([[0.857, 0.571, 0.571]])
    """
    size = logits.shape[1]
    if size > LARGEST_LISTED:
        log_totals, share, won = _frequencies(logits, n_wins)
        chance = (share * won).real.sum(axis=2).T
        halves = (np.sqrt(share) * (won - chance.T[:, :, None])).transpose(1, 0, 2)
        real, imaginary = map(np.ascontiguousarray, (halves.real, halves.imag))
        # NumPy multiplies a matrix by its own transpose twice as fast as by another matrix
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
    """Log of the normalizing sum over all sets of ``n_wins`` winners, for each comparison."""
    size = logits.shape[1]
    if size > LARGEST_LISTED:
        return _frequencies(logits, n_wins)[0]
    _, total, highest = _weights(_sets_of_winners(size, int(n_wins)), logits)
    return highest + np.log(total)


@cache
def _sets_of_winners(size: int, n_wins: int) -> Floats:
    """Return all sets of ``n_wins`` winners among ``size`` votes, as an indicator matrix with one row per set."""
    members = np.zeros((math.comb(size, n_wins), size))
    for row, chosen in zip(members, combinations(range(size), n_wins), strict=True):
        row[list(chosen)] = 1.0
    return members


def _weights(members: Floats, logits: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the relative weights of all sets, their sum, and the log of the largest weight."""
    weight = members @ logits.T
    highest = weight.max(axis=0)
    weight -= highest
    np.exp(weight, out=weight)
    return weight, weight.sum(axis=0), highest


def _frequencies(logits: Floats, n_wins: int | Ints) -> tuple[Floats, Array, Array]:
    r"""Compute the sum over all sets of winners by evaluating a generating polynomial on the unit circle.

    First, all logits are shifted by the same amount, so that independent votes with the resulting probabilities p have
    about ``n_wins`` expected wins. Shifting all logits does not change the distribution of the winners given the number
    of wins. The number of wins has the generating function :math:`\prod_j (1 - p_j + p_j w)`. The mean of the
    generating function times :math:`w^{-s}` over the N-th roots of unity w is the probability of s wins, plus the
    probabilities of s plus or minus N, 2N, ... wins. Equal logits need no special treatment, because the computation
    never divides by a difference between logits (Fernandez and Williams, 2010).

    With a standard deviation :math:`\sigma` of the number of wins, :math:`N = 9 \sigma + 13` roots are enough: the
    probability of N more or fewer wins is below e^-39 (Bennett's inequality). At the angle a, the product is at most
    :math:`\exp(-2 \sigma^2 \sin^2(a / 2))`, which is below e^-39 after the first `MOST_ROOTS` roots. The omitted terms
    are therefore below the rounding error, and the cost per vote does not depend on the number of votes. Every root
    also represents its conjugate. N is odd, because a factor could be zero at the root -1.

    Returns
    -------
    log_total : array of shape (n,)
    weight : complex array of shape (n, roots)
        Relative contribution of each root to the sum.
    won : complex array of shape (T, n, roots)
        :math:`p_j w / (1 - p_j + p_j w)` for each vote and root.
    """
    tilt = expected_wins_shift(logits, n_wins)
    shifted = logits.T + tilt
    chance, other = expit(shifted), expit(-shifted)
    sd = np.sqrt((chance * other).sum(axis=0))
    n_roots = 1 + 2 * np.ceil(np.minimum(9 * sd + 13, len(shifted)) / 2)
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
    n_used = 1 + np.flatnonzero((np.abs(share) > NO_SHARE).any(axis=0))[-1]
    return log_total, share[:, :n_used], won[:, :, :n_used] / factors[:, :, :n_used]


def expected_wins_shift(logits: Floats, n_wins: int | Ints) -> Floats:
    """Find, by bisection, the shift of the logits that makes ``n_wins`` the approximate expected number of wins."""
    size = logits.shape[1]
    low, high = -logits.max(axis=1) - np.log(size), -logits.min(axis=1) + np.log(size)
    for _ in range(MOST_HALVINGS):
        middle = (low + high) / 2
        excess = expit(logits + middle[:, None]).sum(axis=1) - n_wins
        if np.abs(excess).max() < NEAR_ENOUGH:
            break
        low = np.where(excess > 0, low, middle)
        high = np.where(excess > 0, middle, high)
    return np.asarray(middle)


class KnownWins(QualityModel):
    """Conditional model of the votes, given the number of votes for response a on each comparison.

    The log-likelihood of a unanimous comparison, or of a comparison with one vote, is 0 for all biases.
    """

    def __init__(self, blocks: ComparisonBlocks, sign: Array) -> None:
        self._blocks, self._won = blocks, (sign > 0).astype(float)
        self._n_wins = blocks.sums(self._won).astype(np.intp)
        # kind: 0 without information, 1 with more than LARGEST_LISTED votes, and otherwise the number of wins
        kind = np.where(blocks.sizes > LARGEST_LISTED, 1, self._n_wins)
        kind[(self._n_wins == 0) | (self._n_wins == blocks.sizes)] = 0
        runs = blocks.runs(lambda size: size**2 if size > LARGEST_LISTED else 2**size, kind)
        self._runs = [run for run in runs if run.kind]

    def _parts(self, logits: Floats) -> Iterator[tuple[AlikeComparisons, Floats, Floats, int | Ints]]:
        """Yield each run with the logits of its votes, indicators of votes for a, and the numbers of votes for a."""
        for run in self._runs:
            is_listed = run.size <= LARGEST_LISTED
            n_wins = run.kind if is_listed else self._n_wins[run.comparisons]
            yield run, run.rows(logits), run.rows(self._won), n_wins

    def values(self, logits: Floats, extra: Floats = NOTHING) -> Floats:
        """Log-likelihood of each comparison."""
        values = np.zeros(len(self._blocks.starts))
        for run, x, won, n_wins in self._parts(logits):
            values[run.comparisons] = (won * x).sum(axis=1) - log_total(x, n_wins)
        return values

    def curvature(self, logits: Floats, extra: Floats = NOTHING) -> Curvature:
        """Derivatives of the log-likelihood: wins minus expected wins, and covariance matrix of the wins."""
        moments = self.winners(logits)
        return Curvature(self._won - moments.chance, self._blocks.matrix(moments.covariance))

    def winners(self, logits: Floats) -> Winners:
        """Return each vote's probability of a win, and the covariances as entries of `ComparisonBlocks.matrix`."""
        chance, entries = self._won.copy(), np.zeros(self._blocks.n_pairs)
        log_totals = self._blocks.sums(self._won * logits)
        for run, x, _, n_wins in self._parts(logits):
            moments = winners(x, n_wins)
            chance[run.votes] = moments.chance.ravel()
            entries[self._blocks.pairs(run.votes)] = moments.covariance.ravel()
            log_totals[run.comparisons] = moments.log_total
        return Winners(chance, entries, log_totals)
