"""Votes in order of their comparison, and matrices that join only the votes of one comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse


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
        return np.logical_or.reduceat(values, self.starts) if len(self.starts) else np.zeros(0, dtype=bool)

    def of(self, chosen: NDArray[np.bool_]) -> ComparisonBlocks:
        """The blocks of the votes that remain when only some comparisons do."""
        sizes = self.sizes[chosen]
        return ComparisonBlocks(np.cumsum(sizes) - sizes, int(sizes.sum()))

    def matrix(self, blocks: Sequence[NDArray[np.float64]]) -> sparse.csr_array:
        """The block-diagonal matrix of shape (n_votes, n_votes) with one block per comparison.

        Parameters
        ----------
        blocks : sequence of arrays
            One of shape (n, size, size) for each array in ``stacks``, in that order.
        """
        data = np.concatenate([np.zeros(0), *(block.ravel() for block in blocks)])
        return sparse.csr_array((data, *self._layout), shape=(self.n_votes, self.n_votes))

    def pairs_alike(
        self, matrix: sparse.csr_array, labels: NDArray[np.intp]
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]]:
        """Entries of a `matrix` whose row and column carry the same label, as (rows, columns, entries).

        The diagonal first; most often that is all there is.
        """
        every = np.arange(self.n_votes)
        yield every, every, matrix.diagonal()
        start = 0
        for votes in self.stacks:
            n, size = votes.shape
            block = matrix.data[start : start + n * size**2].reshape(n, size, size)
            start += n * size**2
            for i, j in permutations(range(size), 2):
                alike = np.flatnonzero(labels[votes[:, i]] == labels[votes[:, j]])
                if len(alike):
                    yield votes[alike, i], votes[alike, j], block[alike, i, j]

    @cached_property
    def _layout(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        width = self.sizes[self.comparison]
        ends = np.concatenate([[0], np.cumsum(width)])
        kind = np.int32 if ends[-1] < 2**31 else np.int64
        columns = [np.repeat(votes, votes.shape[1], axis=0).ravel() for votes in self.stacks]
        return np.concatenate([np.zeros(0, dtype=kind), *columns], dtype=kind), ends.astype(kind)


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
