"""The votes of a fit: looked over, in the order of their comparisons, without those that no lean can change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.estimation.comparison_blocks import ComparisonBlocks, sorted_blocks

Informative = Callable[[NDArray, NDArray, NDArray, NDArray], NDArray[np.bool_]]


def cross_group(
    comparison: ArrayLike, annotator: ArrayLike, sign: ArrayLike, delta: ArrayLike
) -> NDArray[np.bool_]:
    """Votes whose sides differ on an attribute: all of them inform where a quality is given or integrated out.

    It takes what `badpo.theory.identifiability.informative_judgments` takes, which is its counterpart where the
    quality of every comparison is free.

    Examples
    --------
    >>> cross_group([0, 0], [0, 1], [1, 1], [[0.0], [2.0]]).ravel()
    array([False,  True])
    """
    return np.asarray(delta) != 0


@dataclass(frozen=True)
class LeanVotes:
    """Votes as they are fitted, of which there are n.

    Attributes
    ----------
    row : int array of shape (n,)
        Where the vote stood among all that were given.
    comparison : int array of shape (n,)
        The comparison's number in ``blocks``.
    sign, annotator : array of shape (n,)
    delta : array of shape (n, n_attributes)
    told : bool array of shape (n, n_attributes)
        Whether the vote informs on the annotator's lean.
    blocks : ComparisonBlocks
    crossed : bool array of shape (n_annotators, n_attributes)
        Whether the annotator saw the sides differ, in any vote that was given.
    anchored : bool array of shape (n_annotators,)
    informative : callable
        `cross_group`, or `badpo.theory.identifiability.informative_judgments`.
    """

    row: NDArray[np.intp]
    comparison: NDArray[np.intp]
    sign: NDArray[np.float64]
    annotator: NDArray[np.intp]
    delta: NDArray[np.float64]
    told: NDArray[np.bool_]
    blocks: ComparisonBlocks
    crossed: NDArray[np.bool_]
    anchored: NDArray[np.bool_]
    informative: Informative

    @property
    def free_quality(self) -> bool:
        """Whether nothing is assumed of the comparisons' quality, so that votes inform only beside each other."""
        return self.informative is not cross_group

    def only(self, rows: NDArray[np.intp], blocks: ComparisonBlocks, told: NDArray[np.bool_]) -> LeanVotes:
        """Some of the votes, in the order of their blocks, and which of these inform."""
        return replace(
            self,
            row=self.row[rows],
            comparison=blocks.comparison,
            sign=self.sign[rows],
            annotator=self.annotator[rows],
            delta=self.delta[rows],
            told=told[rows],
            blocks=blocks,
        )

    def told_among(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of some votes inform, and on what, when these are all there are."""
        return self.informative(
            self.comparison[rows], self.annotator[rows], self.sign[rows], self.delta[rows]
        )


def lean_votes(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    anchored: ArrayLike | None,
    informative: Informative,
) -> LeanVotes:
    """Look votes over and arrange them.

    Where the quality of every comparison is free, comparisons without an informative vote are left out: unanimous
    ones, and those on which no attribute differs.

    Raises
    ------
    ValueError
        Naming the first vote at fault, if lengths differ, a sign is not +1 or -1, an annotator is out of range or
        delta is not finite.
    """
    c, k, s, d = np.asarray(comparison), np.asarray(annotator), np.asarray(sign), np.asarray(delta)
    held = np.zeros(n_annotators, dtype=bool) if anchored is None else np.asarray(anchored, dtype=bool)
    _require_sound(c, s, k, d, held, n_annotators)
    if not len(c):
        c, k = c.astype(np.intp), k.astype(np.intp)
    order, blocks = sorted_blocks(c)
    told = informative(c, k, s, d)
    if informative is not cross_group:
        chosen = np.flatnonzero(blocks.any(np.any(told, axis=1)[order]))
        # comparisons with as many wins stand together, as their likelihood is computed
        wins = blocks.sums((s > 0)[order].astype(np.int32))[chosen]
        rows, blocks = blocks.take(chosen[np.lexsort((wins, blocks.sizes[chosen]))])
        order = order[rows]
    return LeanVotes(
        row=order,
        comparison=blocks.comparison,
        sign=s[order].astype(np.float64),
        annotator=k[order].astype(np.intp, copy=False),
        delta=d[order].astype(np.float64, copy=False),
        told=told[order],
        blocks=blocks,
        crossed=_ever(k, d != 0, n_annotators),
        anchored=held,
        informative=informative,
    )


def _require_sound(
    c: NDArray, s: NDArray, k: NDArray, d: NDArray, held: NDArray[np.bool_], n_annotators: int
) -> None:
    if d.ndim != 2 or not len(c) == len(k) == len(s) == len(d):
        raise ValueError(
            f"one comparison, sign, annotator and row of delta per vote are needed; got shapes {c.shape}, {s.shape}, "
            f"{k.shape} and {d.shape}"
        )
    if len(k) and not 0 <= k.min() <= k.max() < n_annotators:
        raise ValueError(
            f"annotator indices must lie between 0 and {n_annotators - 1}; got {k.min()} to {k.max()}"
        )
    unknown = np.abs(s) != 1
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        raise ValueError(f"the sign of vote {row} is {s[row]:g}; +1 chose a and -1 chose b")
    if not np.isfinite(d).all():
        row, column = np.argwhere(~np.isfinite(d))[0]
        raise ValueError(f"delta is not finite at vote {row}, attribute {column}")
    if held.shape != (n_annotators,):
        raise ValueError(f"anchored needs one entry for each of {n_annotators} annotators; got {held.shape}")


def _ever(annotator: NDArray, happened: NDArray[np.bool_], n_annotators: int) -> NDArray[np.bool_]:
    found = np.zeros((n_annotators, happened.shape[1]), dtype=bool)
    for j, rows in enumerate(happened.T):
        found[annotator[rows], j] = True
    return found
