"""Where a likelihood has no top: who is surely not on the way to infinity, and what those explain who are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.comparison_blocks import ComparisonBlocks

ROUNDS = 8
WELL_DETERMINED = 1e-8
MARGIN = 1e-9
SAME = 1e-4


def overlapping_annotators(
    annotator: NDArray[np.intp], toward: NDArray[np.float64], differed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    r"""Annotators whose votes no mix of attributes explains without exception, and tell attributes apart.

    With :math:`a_j = s_j d_j` a mix v explains votes fully when :math:`a_j \cdot v \ge 0` for all of them and
    > 0 for one; positive weights with :math:`\sum_j w_j a_j = 0` exclude it. The gradient of the annotator's logistic
    likelihood (quality zero) has weights :math:`w_j = \sigma(-a_j \cdot \theta)`, and the Newton step h from there
    changes them to weights that do sum to zero, :math:`w_j (1 - (1 - w_j) a_j \cdot h)`. They are positive near the
    likelihood's top, mostly after the first step. Where that holds for some of the votes it holds for all of them.

    Parameters
    ----------
    annotator : int array of shape (n_votes,)
    toward : array of shape (n_votes, n_attributes)
        sign * delta; zero where a vote does not count.
    differed : bool array of shape (n_annotators, n_attributes)
        Which attributes the annotator's votes should tell apart.

    Returns
    -------
    bool array of shape (n_annotators,)
        True is certain. False is not: see `badpo.theory.identifiability.jointly_separated` for those.

    Examples
    --------
    Annotator 0 is separated on the difference of the two attributes, annotator 1 is not:

    >>> toward = np.array([[1.0, 0], [0, -1], [2, 1], [-1, -2], [1, 0], [0, -1], [2, 1], [-2, -1], [0, 1]])
    >>> overlapping_annotators(np.array([0] * 4 + [1] * 5), toward, np.ones((2, 2), dtype=bool))
    array([False,  True])
    """
    scale = np.abs(toward).max(axis=0, initial=0.0)
    votes = toward / np.where(scale > 0, scale, 1.0)
    number, people = annotator, np.arange(len(differed))
    cleared = np.zeros(len(differed), dtype=bool)
    lean = np.zeros(differed.shape)
    for _ in range(ROUNDS):
        weight = 1 / (1 + np.exp(np.einsum("ij,ij->i", votes, lean[number])))
        step, determined = _newton_steps(number, votes, weight, differed[people])
        excess = (1 - weight) * np.einsum("ij,ij->i", votes, step[number]) >= 1 - MARGIN
        done = determined
        done[number[excess]] = False
        cleared[people[done]] = True
        left = np.flatnonzero(~done)
        if not len(left):
            break
        rows = np.flatnonzero(~done[number])
        renumbered = np.cumsum(~done) - 1
        number, votes = renumbered[number[rows]], votes[rows]
        lean, people = (lean + step)[left], people[left]
    return cleared


def _newton_steps(
    number: NDArray[np.intp],
    votes: NDArray[np.float64],
    weight: NDArray[np.float64],
    differed: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The step of every annotator, and whether their votes tell the attributes that differ apart."""
    m, q = differed.shape
    gradient, information = np.empty((m, q)), np.empty((m, q, q))
    curved = weight * (1 - weight)
    for a in range(q):
        gradient[:, a] = np.bincount(number, weight * votes[:, a], m)
        for b in range(a + 1):
            information[:, a, b] = np.bincount(number, curved * votes[:, a] * votes[:, b], m)
            information[:, b, a] = information[:, a, b]
    each = np.arange(q)
    information[:, each, each] += ~differed
    size, axes = np.linalg.eigh(information)
    determined = size[:, 0] > WELL_DETERMINED * size[:, -1]
    usable = size > WELL_DETERMINED * size[:, -1:]
    along = np.einsum("kba,kb->ka", axes, gradient)
    along = np.divide(along, size, out=np.zeros_like(along), where=usable)
    return np.einsum("kab,kb->ka", axes, along), determined


def explained_by_receding(
    change: NDArray[np.float64], won: NDArray[np.bool_], blocks: ComparisonBlocks
) -> NDArray[np.bool_]:
    r"""Votes that a direction of recession explains without error, when the number of wins is given.

    Along a direction the winners of every comparison must have the largest changes of the logit, else the likelihood
    falls in the end. Then it rises without end, or stays: a vote whose change lies above the least of its
    comparison's winners, or below, becomes certain, and those that lie at it remain a comparison of their own.

    Parameters
    ----------
    change : array of shape (n_votes,)
        Change of each logit along the direction.
    won : bool array of shape (n_votes,)
    blocks : ComparisonBlocks

    Returns
    -------
    bool array of shape (n_votes,)
        All False where the direction is none of recession, or changes no likelihood.

    Examples
    --------
    The first comparison is won by the vote that runs away, the second is between two votes that stay:

    >>> from badpo.estimation.comparison_blocks import sorted_blocks
    >>> _, blocks = sorted_blocks([0, 0, 1, 1])
    >>> explained_by_receding(np.array([1.0, 0.0, 0.0, 0.0]), np.array([True, False, False, True]), blocks)
    array([ True,  True, False, False])
    """
    nothing = np.zeros(len(change), dtype=bool)
    size = np.abs(change).max(initial=0.0)
    if not size:
        return nothing
    change = change / size
    least_winner = np.minimum.reduceat(np.where(won, change, np.inf), blocks.starts)
    most_loser = np.maximum.reduceat(np.where(won, -np.inf, change), blocks.starts)
    if (least_winner < most_loser - SAME).any():
        return nothing
    apart = least_winner > most_loser + SAME
    away = np.abs(change - least_winner[blocks.comparison]) > SAME
    return np.asarray(away | apart[blocks.comparison], dtype=np.bool_)
