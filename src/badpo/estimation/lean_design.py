"""The matrix from leans to logits, and what the design identifies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from badpo.estimation.comparison_blocks import AlikePairs
from badpo.estimation.lean_votes import LeanVotes
from badpo.estimation.maximizing import LARGEST_DENSE, Information, conjugate_gradients
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


@dataclass(frozen=True)
class LeanDesign:
    """How the leans that are estimated move the logits of votes.

    Attributes
    ----------
    votes : LeanVotes
    active : bool array of shape (n_annotators, n_attributes)
        The leans; they are numbered row by row.
    """

    votes: LeanVotes
    active: NDArray[np.bool_]

    @property
    def by_rank(self) -> bool:
        """Whether the design is small enough that its rank says what it identifies."""
        return int(self.active.sum()) <= LARGEST_DENSE

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """From leans to logits, of shape (n_votes, n_leans)."""
        annotator, delta = self.votes.annotator, self.votes.delta
        moves = delta != 0
        if not self.active.all():
            moves &= self.active[annotator]
        ends = np.zeros(len(moves) + 1, dtype=np.int32)
        np.cumsum(np.count_nonzero(moves, axis=1), out=ends[1:])
        return sparse.csr_array(
            (delta[moves], self._number[annotator][moves], ends), shape=(len(moves), int(self.active.sum()))
        )

    @cached_property
    def squares(self) -> sparse.csr_array:
        """The entries of the matrix squared."""
        return self.matrix.power(2)

    @cached_property
    def _number(self) -> NDArray[np.int32]:
        return (np.cumsum(self.active.ravel()) - 1).astype(np.int32).reshape(self.active.shape)

    def own_blocks(self, weights: sparse.csr_array | None) -> NDArray[np.float64]:
        """For each annotator the sum of weight * d d' over their votes, and pairs of votes on one comparison.

        Parameters
        ----------
        weights : sparse array of shape (n_votes, n_votes), or None
            None: the identity.

        Returns
        -------
        array of shape (n_annotators, n_attributes, n_attributes)
            With ones on the diagonal for leans that are not estimated.
        """
        m, q = self.active.shape
        annotator, delta = self.votes.annotator, self.votes.delta
        pairs: Iterable[AlikePairs] = [(slice(None), slice(None), 1.0)]
        if weights is not None:
            pairs = self.votes.blocks.pairs_alike(weights, annotator)
        found = np.zeros((m, q, q))
        for first, second, weight in pairs:
            for a in range(q):
                scaled = weight * delta[first, a]
                for b in range(a + 1):
                    found[:, a, b] += np.bincount(annotator[first], scaled * delta[second, b], minlength=m)
        found += np.tril(found, -1).transpose(0, 2, 1)
        found *= self.active[:, :, None] & self.active[:, None, :]
        return found + np.eye(q) * ~self.active[:, :, None]

    @cached_property
    def near_inverse(self) -> sparse.csr_array:
        """Inverses of the correlations of attributes in each annotator's votes, of shape (n_leans, n_leans).

        Scaled by the diagonal of an information it is near to its inverse: annotators share few comparisons.
        """
        blocks = self.own_blocks(None)
        size = np.sqrt(np.diagonal(blocks, axis1=1, axis2=2))
        blocks /= np.where(size > 0, size, 1.0)[:, :, None] * np.where(size > 0, size, 1.0)[:, None, :]
        inverse = np.linalg.pinv(blocks, rcond=1e-6, hermitian=True)
        k, a, b = np.nonzero(self.active[:, :, None] & self.active[:, None, :])
        p = int(self.active.sum())
        entries = inverse[k, a, b], (self._number[k, a], self._number[k, b])
        return sparse.csr_array(sparse.coo_array(entries, shape=(p, p)))


def identified_leans(design: LeanDesign) -> Identified:
    """Under a free quality the rank of the informative design decides; otherwise every pair of leans is comparable.

    The level of a lean is known only where no quality of the comparisons could stand in for it: where annotators are
    anchored, or an attribute varies between the votes on one comparison. Of a large design the graph is asked.
    """
    votes, active = design.votes, design.active
    if not (votes.free_quality or votes.anchored.any() or _varying(votes).any()):
        known = incomparable(active)
    elif not design.by_rank:
        known = expected_leans(design)
    else:
        delta = votes.delta * active[votes.annotator]
        directions = free_directions(votes.comparison, votes.annotator, delta, len(active))
        group = np.where(active, directions.difference_groups(), -1)
        absolute = directions.level_identified() & active
        known = Identified(False, group, absolute, _flat(directions.basis, active))
    if votes.free_quality:
        return known
    return Identified(True, np.where(active, 0, -1), known.absolute, np.zeros((int(active.sum()), 0)))


def incomparable(active: NDArray[np.bool_]) -> Identified:
    """Nothing is known of any lean beside another."""
    group = np.where(active, np.cumsum(active.ravel()).reshape(active.shape), -1)
    return Identified(False, group, np.zeros(active.shape, dtype=bool), np.zeros((int(active.sum()), 0)))


def expected_leans(design: LeanDesign) -> Identified:
    """What the graph of each attribute alone says, which holds unless attributes stand in for each other.

    Whoever judged beside someone whose lean is held at zero has a known level, and so have all if the attribute varies
    between the votes on one comparison. `confirmed` tells whether it will do.
    """
    votes, active = design.votes, design.active
    varies = _varying(votes)
    group, absolute = np.full(active.shape, -1), np.zeros(active.shape, dtype=bool)
    for j in range(active.shape[1]):
        mine = np.flatnonzero(votes.told[:, j])
        annotator, known = votes.annotator[mine], len(active)  # one node for all whose lean is held
        people = annotator if active[:, j].all() else np.where(active[annotator, j], annotator, known)
        component = _joined(votes.comparison[mine], people, known + 1)
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


def confirmed(expected: Identified, information: Information) -> bool:
    """Whether the information has no other flat directions than the means of the groups that are expected.

    A random vector without these components is in the range of the information only if there are none, and
    conjugate gradients converge for it.
    """
    centering = Centering.of(expected)
    size = np.sqrt(np.maximum(information.diagonal, 1e-300))
    side = centering @ (size * (centering @ np.random.default_rng(0).standard_normal(len(size))))
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


def _varying(votes: LeanVotes) -> NDArray[np.bool_]:
    """Attributes that vary between the votes on one comparison."""
    same = votes.comparison[1:] == votes.comparison[:-1]
    return np.array([bool(((x[1:] != x[:-1]) & same).any()) for x in votes.delta.T], dtype=bool)


def _flat(basis: sparse.csr_array, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Orthonormal flat directions among the unknown leans; none where too many to hold densely."""
    p = int(kept.sum())
    if p > LARGEST_DENSE or not p:
        return np.zeros((p, 0))
    among = basis[np.flatnonzero(kept.ravel())]
    directions = among[:, np.unique(among.indices)].toarray()
    left, size, _ = np.linalg.svd(directions, full_matrices=False)
    return np.asarray(left[:, size > 1e-9 * max(size.max(initial=0.0), 1e-300)])
