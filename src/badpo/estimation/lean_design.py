"""The matrix from leans to logits, and what the design identifies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from badpo.estimation.estimable import Estimable
from badpo.estimation.lean_votes import LeanVotes
from badpo.estimation.maximizing import LARGEST_DENSE, Information, QualityModel, conjugate_gradients
from badpo.theory.identifiability import annotator_components, free_directions

CONFIRMED = 1e-5


@dataclass(frozen=True)
class Identified:
    """What the design fixes: groups of leans whose differences are known, and leans known themselves.

    Attributes
    ----------
    everywhere : bool
        All leans are comparable by assumption, whoever met whom.
    group : int array of shape (n_annotators, n_attributes)
        -1 for a lean that is not among the unknowns.
    absolute : bool array of shape (n_annotators, n_attributes)
    flat : array of shape (n_unknown, n_flat)
        Orthonormal directions that change no probability; none where too many to hold.
    """

    everywhere: bool
    group: NDArray[np.intp]
    absolute: NDArray[np.bool_]
    flat: NDArray[np.float64]

    @cached_property
    def compared(self) -> NDArray[np.bool_]:
        """Leans that are known, at least beside another one's."""
        found = self.absolute.copy()
        for j, group in enumerate(self.group.T):
            size = np.bincount(group + 1)
            found[:, j] |= (group >= 0) & ((size[group + 1] > 1) | self.everywhere)
        return found


def lean_design(votes: LeanVotes, rows: NDArray[np.intp], active: NDArray[np.bool_]) -> sparse.csr_array:
    """The matrix from the leans that are estimated to the logits of some votes.

    Parameters
    ----------
    votes : LeanVotes
    rows : int array of shape (n_rows,)
        Votes, in the order of the result.
    active : bool array of shape (n_annotators, n_attributes)
        Leans that are estimated; they are numbered row by row.

    Returns
    -------
    sparse array of shape (n_rows, n_active)
    """
    annotator, delta = votes.annotator[rows], votes.delta[rows]
    moves = delta != 0
    if not active.all():
        moves &= active[annotator]
    number = (np.cumsum(active.ravel()) - 1).astype(np.int32).reshape(active.shape)
    ends = np.concatenate([[0], np.cumsum(np.count_nonzero(moves, axis=1))])
    return sparse.csr_array(
        (delta[moves], number[annotator][moves], ends.astype(np.int32)), shape=(len(rows), int(active.sum()))
    )


def identified_leans(
    votes: LeanVotes, found: Estimable, rows: NDArray[np.intp], model: QualityModel
) -> Identified:
    """Under a free quality the rank of the informative design decides; otherwise every pair of leans is comparable.

    The level of a lean is known only where no quality of the comparisons could stand in for it: where annotators are
    anchored, or an attribute varies between the votes on one comparison.

    Parameters
    ----------
    votes : LeanVotes
    found : Estimable
    rows : int array of shape (n_rows,)
        The votes that are used, in the order of the model's.
    model : QualityModel

    Returns
    -------
    Identified
    """
    active = found.status == "ok"
    if votes.free_quality:
        if active.sum() > LARGEST_DENSE:
            expected = _expected(votes, found, rows, active)
            if _confirmed(expected, lean_design(votes, rows, active), model):
                return expected
        return _by_rank(votes, found, rows, active)
    everyone = np.where(active, 0, -1)
    absolute = np.zeros(active.shape, dtype=bool)
    if votes.anchored.any() or _varying(votes, rows).any():
        directions = _directions(votes, rows, active)
        absolute = directions.level_identified() & active
    return Identified(True, everyone, absolute, np.zeros((int(active.sum()), 0)))


def _directions(votes: LeanVotes, rows: NDArray[np.intp], active: NDArray[np.bool_]):
    delta = votes.delta[rows] * active[votes.annotator[rows]]
    return free_directions(votes.comparison[rows], votes.annotator[rows], delta, len(active))


def _by_rank(
    votes: LeanVotes, found: Estimable, rows: NDArray[np.intp], active: NDArray[np.bool_]
) -> Identified:
    directions = _directions(votes, rows[found.told[rows].any(axis=1)], active)
    absolute = directions.level_identified() & active
    group = np.where(active, directions.difference_groups(), -1)
    return Identified(False, group, absolute, _flat(directions.basis, active))


def _expected(
    votes: LeanVotes, found: Estimable, rows: NDArray[np.intp], active: NDArray[np.bool_]
) -> Identified:
    """What the graph of each attribute alone says, which holds unless attributes stand in for each other.

    Whoever judged beside someone whose lean is held at zero has a known level, and so have all if the attribute varies
    between the votes on one comparison.
    """
    comparison, annotator, told = votes.comparison[rows], votes.annotator[rows], found.told[rows]
    varies = _varying(votes, rows)
    group, absolute = np.full(active.shape, -1), np.zeros(active.shape, dtype=bool)
    for j in range(active.shape[1]):
        mine = np.flatnonzero(told[:, j])
        known = len(active)  # one node for all whose lean is held
        people = np.where(active[annotator[mine], j], annotator[mine], known)
        component = _joined(comparison[mine], people, known + 1)
        group[:, j] = np.where(active[:, j], component[:-1], -1)
        absolute[:, j] = (group[:, j] >= 0) & (varies[j] | (component[:-1] == component[-1]))
    return Identified(False, group, absolute, np.zeros((int(active.sum()), 0)))


def _joined(comparison: NDArray[np.intp], people: NDArray[np.intp], n: int) -> NDArray[np.intp]:
    """Connected groups of people; the first votes are enough where these join everyone."""
    everyone = np.bincount(people, minlength=n) > 0
    for last in (len(people) // 8, len(people)):
        found = annotator_components(comparison[:last], people[:last], np.ones((last, 1)), n)[:, 0]
        if found.max() == 0 and (found[everyone] == 0).all():
            break
    return np.asarray(found)


def _confirmed(expected: Identified, design: sparse.csr_array, model: QualityModel) -> bool:
    """Whether the information has no other flat directions than the means of the groups that are expected.

    A random vector without these components is in the range of the information only if there are none, and
    conjugate gradients converge for it.
    """
    centering = Centering.of(expected)
    information = Information(design, model.curvature(np.zeros(design.shape[0]), model.start))
    probe = centering @ np.random.default_rng(0).standard_normal(design.shape[1])
    scale = np.sqrt(np.maximum(information.diagonal, 1e-300))
    side = centering @ (scale * probe)
    solved, _ = conjugate_gradients(information, side, CONFIRMED)
    missing = side - information.times(solved)
    return bool(np.linalg.norm(missing) < 10 * CONFIRMED * np.linalg.norm(side))


@dataclass(frozen=True)
class Centering:
    """Taking the mean of its group from every lean whose level is not known.

    Attributes
    ----------
    member : sparse array of shape (n_leans, n_groups)
        Which lean is in which group; a lean whose level is known is in none.
    size : array of shape (n_groups,)
    """

    member: sparse.csr_array
    size: NDArray[np.float64]

    @classmethod
    def of(cls, known: Identified) -> Centering:
        """The centering of the unknown leans."""
        active = known.group >= 0
        p, n_groups = int(active.sum()), int(known.group.max(initial=-1)) + 1
        attribute = np.broadcast_to(np.arange(active.shape[1]), active.shape)[active]
        relative = np.flatnonzero(~known.absolute[active])
        _, label = np.unique((attribute * n_groups + known.group[active])[relative], return_inverse=True)
        member = sparse.csr_array(
            (np.ones(len(relative)), (relative, label)), shape=(p, label.max(initial=-1) + 1)
        )
        return cls(member, np.maximum(np.asarray(member.sum(axis=0)).ravel(), 1))

    def __matmul__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values, along the first axis, less the mean of their group."""
        sums = self.member.T @ values
        return np.asarray(values - self.member @ (sums.T / self.size).T)

    def variance(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Variances of uncorrelated values after their groups' means are taken from them."""
        shared = (self.member.T @ variance) / self.size**2
        weight = 1 - 2 * (self.member @ (1 / self.size))
        return np.asarray(weight * variance + self.member @ shared)


def _varying(votes: LeanVotes, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Attributes that vary between the votes on one comparison."""
    comparison, delta = votes.comparison[rows], votes.delta[rows]
    same = comparison[1:] == comparison[:-1]
    return np.array([bool(((x[1:] != x[:-1]) & same).any()) for x in delta.T], dtype=bool)


def _flat(basis: sparse.csr_array, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Orthonormal flat directions among the unknown leans; none where too many to hold densely."""
    p = int(kept.sum())
    if p > LARGEST_DENSE or not p:
        return np.zeros((p, 0))
    among = basis[np.flatnonzero(kept.ravel())]
    directions = among[:, np.unique(among.indices)].toarray()
    left, size, _ = np.linalg.svd(directions, full_matrices=False)
    return np.asarray(left[:, size > 1e-9 * max(size.max(initial=0.0), 1e-300)])
