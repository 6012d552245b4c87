"""Votes in order of their comparison, and matrices that join only the votes of one comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

Votes = NDArray[np.intp] | slice
AlikePairs = tuple[Votes, Votes, NDArray[np.float64] | float]


@dataclass(frozen=True)
class ComparisonBlocks:
    """Which votes stand together: comparison after comparison, those with fewer votes first.

    Attributes
    ----------
    starts : int array of shape (n_comparisons,)
        Votes ``starts[c]`` up to ``starts[c + 1]`` (or the end) are those on comparison c.
    n_votes : int
    """

    starts: NDArray[np.intp]
    n_votes: int

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Votes on each comparison."""
        return np.diff(self.starts, append=self.n_votes)

    @cached_property
    def comparison(self) -> NDArray[np.intp]:
        """The comparison of each vote."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @cached_property
    def stacks(self) -> tuple[NDArray[np.intp], ...]:
        """Comparisons with equally many votes together: arrays (n_comparisons of that size, size) of votes."""
        return tuple(
            self.starts[self.sizes == size][:, None] + np.arange(size) for size in np.unique(self.sizes)
        )

    def stacked(self, values: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """A value per vote as views of shape (n_comparisons of that size, size), one for each of ``stacks``."""
        return [values[votes[0, 0] : votes[-1, -1] + 1].reshape(votes.shape) for votes in self.stacks]

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the votes of each comparison, along the first axis."""
        if not len(self.starts):
            return np.zeros((0, *values.shape[1:]))
        return np.add.reduceat(values, self.starts, axis=0)

    def any(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether a value is true for any vote of each comparison."""
        return np.asarray(np.logical_or.reduceat(values, self.starts) if len(self.starts) else values[:0])

    def take(self, chosen: NDArray[np.intp]) -> tuple[NDArray[np.intp], ComparisonBlocks]:
        """The votes of some comparisons, and their blocks, in an order with the small comparisons first."""
        sizes = self.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        n_votes = int(sizes.sum())
        return np.repeat(self.starts[chosen] - starts, sizes) + np.arange(n_votes), ComparisonBlocks(
            starts, n_votes
        )

    def squares(self, entries: NDArray) -> list[NDArray]:
        """An entry per pair of votes as views of shape (n_comparisons of that size, size, size), as in ``stacks``."""
        shapes = [(*votes.shape, votes.shape[1]) for votes in self.stacks]
        ends = np.cumsum([0, *(np.prod(shape) for shape in shapes)])
        return [
            entries[start:end].reshape(shape)
            for start, end, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
        ]

    @property
    def n_pairs(self) -> int:
        """Pairs of votes on one comparison, in either order, each with itself included."""
        return int((self.sizes**2).sum())

    def matrix(self, entries: NDArray[np.float64]) -> sparse.csr_array:
        """The block-diagonal matrix of shape (n_votes, n_votes) with one block per comparison.

        Parameters
        ----------
        entries : array of shape (n_pairs,)
            As `squares` divides them.
        """
        return sparse.csr_array((entries, *self._layout), shape=(self.n_votes, self.n_votes))

    def pairs_alike(self, matrix: sparse.csr_array, labels: NDArray[np.intp]) -> Iterator[AlikePairs]:
        """Entries of a `matrix` whose row and column carry the same label, as (rows, columns, entries).

        The diagonal first; most often that is all there is.
        """
        yield slice(None), slice(None), matrix.diagonal()
        for votes, block in zip(self.stacks, self.squares(matrix.data), strict=True):
            for i, j in permutations(range(votes.shape[1]), 2):
                alike = np.flatnonzero(labels[votes[:, i]] == labels[votes[:, j]])
                if len(alike):
                    yield votes[alike, i], votes[alike, j], block[alike, i, j]

    @cached_property
    def _layout(self) -> tuple[NDArray, NDArray]:
        kind = np.int32 if self.n_pairs < 2**31 else np.int64
        columns = np.empty(self.n_pairs, dtype=kind)
        for square, votes in zip(self.squares(columns), self.stacks, strict=True):
            square[:] = votes[:, None, :]
        ends = np.zeros(self.n_votes + 1, dtype=kind)
        np.cumsum(np.repeat(self.sizes, self.sizes), out=ends[1:])
        return columns, ends


def sorted_blocks(comparison: ArrayLike) -> tuple[NDArray[np.intp], ComparisonBlocks]:
    """The order that brings the votes of a comparison together, and the blocks in that order.

    Parameters
    ----------
    comparison : int array of shape (n_votes,)
        Any labels.

    Returns
    -------
    (order, blocks)
        By number of votes, then by label. ``values[order]`` puts a value per vote into the order of the blocks.

    Examples
    --------
    >>> order, blocks = sorted_blocks([7, 3, 7])
    >>> order.tolist(), blocks.sizes.tolist()
    ([1, 0, 2], [1, 2])
    """
    labels = np.asarray(comparison)
    order = np.argsort(labels, kind="stable")
    sizes = _run_lengths(labels[order])
    if (np.diff(sizes) < 0).any():
        order = order[np.argsort(np.repeat(sizes, sizes), kind="stable")]
        sizes = np.sort(sizes)
    return order, ComparisonBlocks(np.cumsum(sizes) - sizes, len(order))


def _run_lengths(arranged: NDArray) -> NDArray[np.intp]:
    first = np.flatnonzero(np.append(True, arranged[1:] != arranged[:-1])[: len(arranged)])
    return np.diff(first, append=len(arranged))
