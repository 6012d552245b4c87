"""The votes of a fit as arrays, the matrix from leans to logits, and what the design identifies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from badpo.estimation.comparison_blocks import sorted_blocks
from badpo.estimation.estimable import Estimable, Informative, cross_group
from badpo.estimation.maximizing import LARGEST_DENSE
from badpo.theory.identifiability import free_directions


@dataclass(frozen=True)
class LeanVotes:
    """Votes that were looked over; arrays of shape (n_votes,) and (n_votes, n_attributes), anchored (n_annotators,)."""

    comparison: NDArray[np.intp]
    sign: NDArray[np.float64]
    annotator: NDArray[np.intp]
    delta: NDArray[np.float64]
    n_annotators: int
    anchored: NDArray[np.bool_]


@dataclass(frozen=True)
class Identified:
    """What the design fixes: groups of leans whose differences are known, and leans known themselves.

    ``everywhere`` says that all leans are comparable by assumption, whoever met whom.
    """

    everywhere: bool
    group: NDArray[np.intp]
    absolute: NDArray[np.bool_]
    flat: NDArray[np.float64]


def checked_votes(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    anchored: ArrayLike | None,
) -> LeanVotes:
    """The votes as arrays of their types.

    Raises
    ------
    ValueError
        Naming the first vote at fault, if lengths differ, a sign is not +1 or -1, an annotator is out of range or
        delta is not finite.
    """
    c, k, s = np.asarray(comparison), np.asarray(annotator), np.asarray(sign, dtype=np.float64)
    d = np.asarray(delta, dtype=np.float64)
    if d.ndim != 2 or not len(c) == len(k) == len(s) == len(d):
        raise ValueError(
            f"one comparison, sign, annotator and row of delta per vote are needed; got shapes {c.shape}, {s.shape}, "
            f"{k.shape} and {d.shape}"
        )
    if len(k) and not 0 <= k.min() <= k.max() < n_annotators:
        raise ValueError(
            f"annotator indices must lie between 0 and {n_annotators - 1}; got {k.min()} to {k.max()}"
        )
    if not np.isin(s, (-1.0, 1.0)).all():
        row = int(np.flatnonzero(~np.isin(s, (-1.0, 1.0)))[0])
        raise ValueError(f"the sign of vote {row} is {s[row]:g}; +1 chose a and -1 chose b")
    if not np.isfinite(d).all():
        row, column = np.argwhere(~np.isfinite(d))[0]
        raise ValueError(f"delta is not finite at vote {row}, attribute {column}")
    held = np.zeros(n_annotators, dtype=bool) if anchored is None else np.asarray(anchored, dtype=bool)
    if held.shape != (n_annotators,):
        raise ValueError(f"anchored needs one entry for each of {n_annotators} annotators; got {held.shape}")
    return LeanVotes(np.asarray(c, dtype=np.intp), s, np.asarray(k, dtype=np.intp), d, n_annotators, held)


def _masked(given: LeanVotes, rows: NDArray[np.intp], active: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The attribute differences of some votes, zero where the annotator's lean is not among the unknowns."""
    return given.delta[rows] * active[given.annotator[rows]]


def lean_design(given: LeanVotes, rows: NDArray[np.intp], active: NDArray[np.bool_]) -> sparse.csr_array:
    """The matrix from the leans that are estimated to the logits of some votes.

    Parameters
    ----------
    given : LeanVotes
    rows : int array of shape (n_rows,)
        Votes, in the order of the result.
    active : bool array of shape (n_annotators, n_attributes)
        Leans that are estimated; they are numbered row by row.

    Returns
    -------
    sparse array of shape (n_rows, n_active)
    """
    number = np.cumsum(active.ravel()).reshape(active.shape) - 1
    delta = _masked(given, rows, active)
    vote, attribute = np.nonzero(delta)
    column = number[given.annotator[rows[vote]], attribute]
    shape = (len(rows), int(active.sum()))
    return sparse.csr_array(sparse.coo_array((delta[vote, attribute], (vote, column)), shape=shape))


def identified_leans(
    kind: str, given: LeanVotes, found: Estimable, rows: NDArray[np.intp], informative: Informative
) -> Identified:
    """Under a free quality the rank of the informative design decides; otherwise every pair of leans is comparable.

    The level of a lean is known only where no quality of the comparisons could stand in for it: where annotators are
    anchored, or an attribute varies between the votes on one comparison.
    """
    active = found.status == "ok"
    free_quality = informative is not cross_group
    delta = _masked(given, rows, active)
    if not (free_quality or given.anchored.any() or _varies(given.comparison[rows], given.delta[rows])):
        nothing = np.zeros(active.shape, dtype=bool)
        return Identified(True, np.where(active, 0, -1), nothing, np.zeros((int(active.sum()), 0)))
    tells = np.ones(len(rows), dtype=bool)
    if free_quality:
        tells = _informative_rows(given, rows, informative)
    comparison, annotator = given.comparison[rows[tells]], given.annotator[rows[tells]]
    directions = free_directions(comparison, annotator, delta[tells], given.n_annotators)
    absolute = directions.level_identified() & active
    if not free_quality:
        return Identified(True, np.where(active, 0, -1), absolute, np.zeros((int(active.sum()), 0)))
    group = np.where(active, directions.difference_groups(), -1)
    for j in range(group.shape[1]):
        values, size = np.unique(group[:, j], return_counts=True)
        group[np.isin(group[:, j], values[size == 1]) & ~absolute[:, j], j] = -1
    return Identified(False, group, absolute, _flat(directions.basis, group >= 0))


def _informative_rows(
    given: LeanVotes, rows: NDArray[np.intp], informative: Informative
) -> NDArray[np.bool_]:
    """Which of some votes inform on any attribute."""
    told = informative(given.comparison[rows], given.annotator[rows], given.sign[rows], given.delta[rows])
    return np.asarray(told.any(axis=1), dtype=np.bool_)


def _varies(comparison: NDArray[np.intp], delta: NDArray[np.float64]) -> bool:
    order, blocks = sorted_blocks(comparison)
    if not len(order):
        return False
    arranged = delta[order]
    return bool((arranged != arranged[blocks.starts[blocks.comparison]]).any())


def _flat(basis: sparse.csr_array, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Orthonormal flat directions among the leans that are estimated; none where too many to hold densely."""
    p = int(kept.sum())
    if p > LARGEST_DENSE or not p:
        return np.zeros((p, 0))
    directions = basis[np.flatnonzero(kept.ravel())].toarray()
    left, size, _ = np.linalg.svd(directions, full_matrices=False)
    return np.asarray(left[:, size > 1e-9 * max(size.max(initial=0.0), 1e-300)])
