"""Leans from votes: which have a finite estimate, the fit of those, and what the votes leave open.

The comparisons' quality is dealt with by a model (`badpo.estimation.newton.QualityModel`). The audit's own estimator,
`fit_conditional`, conditions it away; `badpo.estimation.alternative_estimators` has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.optimize import linprog
from scipy.special import ndtri

from badpo.estimation.conditional_likelihood import ComparisonBlocks, KnownWins, Leans, sorted_blocks
from badpo.estimation.newton import (
    LARGEST_DENSE,
    Information,
    Maximum,
    QualityModel,
    conjugate_gradients,
    covariance_of_leans,
    maximize,
)
from badpo.estimation.pool import summed_products
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import (
    annotator_components,
    free_directions,
    informative_judgments,
    jointly_separated,
    separated_annotators,
)

Informative = Callable[[NDArray, NDArray, NDArray, NDArray], Bools]

Z = float(ndtri(0.975))
ROUNDS = 8
WELL_DETERMINED = 1e-8
MARGIN = 1e-9
SAME = 1e-4
CONFIRMED = 1e-5


def fit_conditional(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
) -> Leans:
    r"""Leans by the conditional likelihood, given the number of wins of every comparison.

    .. math:: \max_\theta \prod_c \frac{\exp \sum_{j \in W_c} \theta_{k_j} \cdot d_j}
        {\sum_{|V| = |W_c|} \exp \sum_{j \in V} \theta_{k_j} \cdot d_j}

    with :math:`W_c` the votes for response a on comparison c and V any set of as many of its votes. The quality of
    the comparison cancels, so nothing is assumed of it: not its distribution, not that comparisons were given to
    annotators at random. It is consistent at any number of votes per comparison, where a free quality per comparison
    is not. Comparisons with one vote and unanimous ones say nothing.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    anchored : bool array of shape (n_annotators,), or None
        Annotators whose lean is zero by declaration.
    min_informative : int
        With fewer informative votes the status is "insufficient".

    Returns
    -------
    Leans
        A lean that all of an annotator's informative votes point to is infinite; they explain themselves, and the
        others are estimated as if they had not been cast. So are the votes of annotators whose leans are infinite only
        in a mix of several attributes, or who saw attributes move only together. Where a group of annotators won
        every vote against the rest, the two are separate components.

    Raises
    ------
    ValueError
        If arrays differ in length, a sign is not +1 or -1, an annotator is out of range or delta is not finite.

    References
    ----------
    BA-DPO, Theorem `thm:identif`: what is identified; Andersen (1970) for conditioning on sufficient statistics.

    Examples
    --------
    Two annotators who disagree on four comparisons, three times in the same way: the difference is log(3).

    >>> votes = dict(comparison=np.repeat(np.arange(4), 2), annotator=np.tile([0, 1], 4), n_annotators=2)
    >>> sign = [1, -1, 1, -1, 1, -1, -1, 1]
    >>> leans = fit_conditional(**votes, sign=sign, delta=np.ones((8, 1)))
    >>> round(float((leans.deviation[0, 0] - leans.deviation[1, 0]) / np.log(3)), 6)
    1.0
    """

    def model(votes: LeanVotes) -> KnownWins:
        return KnownWins(votes.blocks, votes.sign)

    return fit_leans(
        "conditional",
        model,
        informative_judgments,
        (comparison, sign, annotator, delta, n_annotators),
        anchored=anchored,
        min_informative=min_informative,
    )


def fit_leans(
    kind: str,
    make_model: Callable[[LeanVotes], QualityModel],
    informative: Informative,
    votes: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, int],
    *,
    anchored: ArrayLike | None,
    min_informative: int,
) -> Leans:
    """Fit the leans that are finite, and say of the others why there is no estimate."""
    given = lean_votes(*votes, anchored, informative)
    beyond_doubt = np.zeros(len(given.row), dtype=bool)
    while True:
        found = find_estimable(given, beyond_doubt)
        fit = _fit_finite(given, found, make_model)
        certain = _receded(fit)
        if not certain.any():
            return _leans(kind, given, found, fit, make_model(given), min_informative)
        beyond_doubt[fit.rows[certain]] = True


# -- votes ---------------------------------------------------------------------------------------------------


def cross_group(comparison: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray) -> Bools:
    """Votes whose sides differ on an attribute: all of them inform where a quality is given or integrated out."""
    return np.asarray(delta) != 0


@dataclass(frozen=True)
class LeanVotes:
    """Votes as they are fitted, in the order of their ``blocks``.

    ``row`` is where a vote stood among all that were given, ``told`` whether it informs on its annotator's lean toward
    an attribute, ``crossed`` whether an annotator saw the sides differ in any vote that was given.
    """

    row: Ints
    sign: Floats
    annotator: Ints
    delta: Floats
    told: Bools
    blocks: ComparisonBlocks
    crossed: Bools
    anchored: Bools
    informative: Informative

    @property
    def comparison(self) -> Ints:
        """The comparison's number in the blocks."""
        return self.blocks.comparison

    @property
    def free_quality(self) -> bool:
        """Whether nothing is assumed of the comparisons' quality, so that votes inform only beside each other."""
        return self.informative is not cross_group

    @cached_property
    def varying(self) -> Bools:
        """Attributes that vary between the votes on one comparison."""
        same = self.comparison[1:] == self.comparison[:-1]
        return np.array([bool(((x[1:] != x[:-1]) & same).any()) for x in self.delta.T], dtype=bool)

    def only(self, rows: Ints, blocks: ComparisonBlocks, told: Bools) -> LeanVotes:
        """Some of the votes, in the order of their blocks, and which of all votes inform."""
        return replace(
            self,
            row=self.row[rows],
            sign=self.sign[rows],
            annotator=self.annotator[rows],
            delta=self.delta[rows],
            told=told[rows],
            blocks=blocks,
        )

    def told_among(self, rows: Ints) -> Bools:
        """Which votes inform, and on what, when some of them are all there are."""
        told = np.zeros_like(self.told)
        told[rows] = self.informative(
            self.comparison[rows], self.annotator[rows], self.sign[rows], self.delta[rows]
        )
        return told


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
        sign=s[order].astype(float),
        annotator=k[order].astype(np.intp, copy=False),
        delta=d[order].astype(np.float64, copy=False),
        told=told[order],
        blocks=blocks,
        crossed=_counted(k, d != 0, n_annotators) > 0,
        anchored=held,
        informative=informative,
    )


def _require_sound(c: NDArray, s: NDArray, k: NDArray, d: NDArray, held: Bools, n_annotators: int) -> None:
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


def _counted(annotator: NDArray, votes: Bools, m: int) -> Ints:
    """Votes of each annotator, a column for each attribute."""
    columns = [np.bincount(annotator[chosen], minlength=m) for chosen in votes.T]
    return np.stack(columns, axis=1) if columns else np.zeros((m, 0), dtype=np.intp)


# -- which leans are finite ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimable:
    """What can be estimated, and from which votes.

    Attributes
    ----------
    status : object array of shape (n_annotators, n_attributes)
        "ok", "no_cross", "no_information", "separated_high", "separated_low" or "anchored".
    n_informative : int array of shape (n_annotators, n_attributes)
        Votes that inform before any was set aside.
    set_aside : int array of shape (n_votes,)
        0 for a vote that is used, 1 for one that a single lean explains fully, 2 where that takes several leans.
    told : bool array of shape (n_votes, n_attributes)
        Whether a vote informs among those that are used.
    """

    status: NDArray[np.object_]
    n_informative: Ints
    set_aside: Ints
    told: Bools


def find_estimable(votes: LeanVotes, beyond_doubt: Bools) -> Estimable:
    """Set aside the votes of infinite leans, one round after the other, until every remaining lean is finite.

    A lean whose informative votes all point one way is infinite; in the limit it predicts these votes without error,
    so the others are estimated as if they had not been cast. That can leave other leans without a counterweight or
    without votes, hence the rounds. Several attributes together can explain all votes of an annotator as well.
    """
    m = len(votes.anchored)
    status = np.where(votes.crossed, "ok", "no_cross").astype(object)
    status[votes.anchored] = "anchored"
    aside = np.where(beyond_doubt, 2, 0)
    told = votes.told
    if beyond_doubt.any():
        told = votes.told_among(np.flatnonzero(aside == 0))
    while True:
        live = told & (status == "ok")[votes.annotator]
        n_live = _counted(votes.annotator, live, m)
        status[(status == "ok") & (n_live == 0)] = "no_information"
        toward = votes.sign[:, None] * votes.delta * live
        doubtful = ~overlapping_annotators(votes.annotator, toward, n_live > 0)
        used = np.flatnonzero(doubtful[votes.annotator] & live.any(axis=1))
        rows = votes.annotator[used], toward[used]
        if not (
            _one_attribute(status, aside, used, *rows)
            or _separated_by_a_mix(status, aside, used, *rows)
            or _collinear(status, aside, used, *rows)
        ):
            return Estimable(status, _counted(votes.annotator, votes.told, m), aside, told)
        told = votes.told_among(np.flatnonzero(aside == 0))


def _one_attribute(status: NDArray, aside: Ints, used: Ints, annotator: Ints, toward: Floats) -> bool:
    side = separated_annotators(annotator, np.ones(len(used)), toward, len(status))
    status[side > 0], status[side < 0] = "separated_high", "separated_low"
    if not (side != 0).any():
        return False
    aside[used[((side[annotator] != 0) & (toward != 0)).any(axis=1)]] = 1
    return True


def _separated_by_a_mix(status: NDArray, aside: Ints, used: Ints, annotator: Ints, toward: Floats) -> bool:
    """Votes on attributes of the mix go aside, also those on which it is neutral: the rest of the mix is unknown."""
    if status.shape[1] < 2:
        return False
    found = np.flatnonzero(jointly_separated(annotator, np.ones(len(used)), toward, len(status)))
    for k in found:
        mine = np.flatnonzero(annotator == k)
        lowest, highest = _separating_mixes(toward[mine])
        involved = (lowest < 0) | (highest > 0)
        one_way = np.where(lowest == 0, "separated_high", "separated_low")
        told = np.where((lowest < 0) & (highest > 0), "no_information", one_way)
        status[k, involved] = told[involved]
        aside[used[mine[(toward[mine] * involved).any(axis=1)]]] = 2
    return bool(len(found))


def _separating_mixes(votes: Floats) -> tuple[Floats, Floats]:
    """How far each attribute goes, down to -1 and up to 1, among the mixes that contradict no vote (sign * delta).

    An attribute that goes one way only has an infinite lean; one that goes both ways is undetermined.
    """
    q = votes.shape[1]
    scaled = votes / np.maximum(np.abs(votes).max(axis=1, keepdims=True), 1e-300)
    aims = np.vstack([np.eye(q), -np.eye(q)])
    found = [linprog(aim, A_ub=-scaled, b_ub=np.zeros(len(votes)), bounds=(-1, 1)).x @ aim for aim in aims]
    ends = np.where(np.abs(found) > 1e-7, found, 0.0)
    return ends[:q], -ends[q:]


def _collinear(status: NDArray, aside: Ints, used: Ints, annotator: Ints, toward: Floats) -> bool:
    """Annotators who saw attributes move only together: their leans cannot be told apart."""
    m, q = status.shape
    if q < 2:
        return False
    scale = np.abs(toward).max(axis=0, initial=0.0)
    scaled = toward / np.where(scale > 0, scale, 1.0)
    gram = summed_products(annotator, scaled, scaled, m)
    gram += np.eye(q) * (status != "ok")[:, :, None] * gram.max(initial=1.0)
    size, axes = np.linalg.eigh(gram)
    flat = size < 1e-10 * size[:, -1:]
    lost = (np.abs(axes) * flat[:, None, :]).max(axis=2, initial=0.0) > 1e-6
    lost &= (np.bincount(annotator, minlength=m) > 0)[:, None]
    status[lost] = "no_information"
    aside[used[(lost[annotator] & (toward != 0)).any(axis=1)]] = 2
    return bool(lost.any())


def overlapping_annotators(annotator: Ints, toward: Floats, differed: Bools) -> Bools:
    r"""Annotators whose votes no mix of attributes explains without exception, and tell attributes apart.

    With :math:`a_j = s_j d_j` a mix v explains votes fully when :math:`a_j \cdot v \ge 0` for all of them and
    > 0 for one; positive weights with :math:`\sum_j w_j a_j = 0` exclude it. The gradient of the annotator's logistic
    likelihood (quality zero) has weights :math:`w_j = \sigma(-a_j \cdot \theta)`, and the Newton step h from there
    changes them to weights that do sum to zero, :math:`w_j (1 - (1 - w_j) a_j \cdot h)`. They are positive near the
    likelihood's top, mostly after the first step. Where that holds for some of the votes it holds for all of them.

    True is certain; False is not (`badpo.theory.identifiability.jointly_separated` decides there).
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


def _newton_steps(number: Ints, votes: Floats, weight: Floats, differed: Bools) -> tuple[Floats, Bools]:
    """The step of every annotator, and whether their votes tell the attributes that differ apart."""
    m, q = differed.shape
    gradient = np.stack([np.bincount(number, weight * column, m) for column in votes.T], axis=1)
    information = summed_products(number, (weight * (1 - weight))[:, None] * votes, votes, m)
    information[:, np.arange(q), np.arange(q)] += ~differed
    size = np.linalg.eigvalsh(information)
    inverse = np.linalg.pinv(information, rcond=WELL_DETERMINED, hermitian=True)
    return np.einsum("kab,kb->ka", inverse, gradient), size[:, 0] > WELL_DETERMINED * size[:, -1]


def explained_by_receding(change: Floats, won: Bools, blocks: ComparisonBlocks) -> Bools:
    r"""Votes that a direction of recession explains without error, when the number of wins is given.

    Along a direction the winners of every comparison must have the largest changes of the logit, else the likelihood
    falls in the end. Then it rises without end, or stays: a vote whose change lies above the least of its
    comparison's winners, or below, becomes certain, and those that lie at it remain a comparison of their own.

    ``change`` is that of each vote's logit along the direction. All are False where the direction is none of
    recession, or changes no likelihood.
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


# -- what the design identifies ------------------------------------------------------------------------------


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
    group: Ints
    absolute: Bools
    flat: Floats

    @cached_property
    def compared(self) -> Bools:
        """Leans that are known, at least beside another one's."""
        found = self.absolute.copy()
        for j, group in enumerate(self.group.T):
            size = np.bincount(group + 1)
            found[:, j] |= (group >= 0) & ((size[group + 1] > 1) | self.everywhere)
        return found


@dataclass(frozen=True)
class LeanDesign:
    """How the leans that are estimated (``active``, numbered row by row) move the logits of votes."""

    votes: LeanVotes
    active: Bools

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
        number = (np.cumsum(self.active.ravel()) - 1).astype(np.int32).reshape(self.active.shape)
        ends = np.zeros(len(moves) + 1, dtype=np.int32)
        np.cumsum(np.count_nonzero(moves, axis=1), out=ends[1:])
        entries = delta[moves], number[annotator][moves], ends
        return sparse.csr_array(entries, shape=(len(moves), int(self.active.sum())))

    def own_blocks(self, weights: sparse.csr_array) -> Floats:
        """For each annotator the sum of weight * d d' over pairs of their votes on one comparison.

        Of shape (n_annotators, n_attributes, n_attributes), with ones on the diagonal for leans that are not estimated.
        """
        annotator, delta = self.votes.annotator, self.votes.delta
        pairs = weights.tocoo()
        own = annotator[pairs.row] == annotator[pairs.col]
        entries = pairs.data[own], (pairs.row[own], pairs.col[own])
        weighted = sparse.csr_array(entries, shape=weights.shape) @ delta
        found = summed_products(annotator, delta, weighted, len(self.active))
        found *= self.active[:, :, None] & self.active[:, None, :]
        return found + np.eye(found.shape[1]) * ~self.active[:, :, None]


def identified_leans(design: LeanDesign) -> Identified:
    """Under a free quality the rank of the informative design decides; otherwise every pair of leans is comparable.

    The level of a lean is known only where no quality of the comparisons could stand in for it: where annotators are
    anchored, or an attribute varies between the votes on one comparison. Of a large design the graph is asked.
    """
    votes, active = design.votes, design.active
    if not (votes.free_quality or votes.anchored.any() or votes.varying.any()):
        known = incomparable(active)
    elif not design.by_rank:
        known = expected_leans(design)
    else:
        delta = votes.delta * active[votes.annotator]
        directions = free_directions(votes.comparison, votes.annotator, delta, len(active))
        group = np.where(active, directions.difference_groups(), -1)
        absolute = directions.level_identified() & active
        known = Identified(False, group, absolute, _orthonormal(directions.basis, active))
    if votes.free_quality:
        return known
    return Identified(True, np.where(active, 0, -1), known.absolute, np.zeros((int(active.sum()), 0)))


def incomparable(active: Bools) -> Identified:
    """Nothing is known of any lean beside another."""
    group = np.where(active, np.cumsum(active.ravel()).reshape(active.shape), -1)
    return Identified(False, group, np.zeros(active.shape, dtype=bool), np.zeros((int(active.sum()), 0)))


def expected_leans(design: LeanDesign) -> Identified:
    """What the graph of each attribute alone says, which holds unless attributes stand in for each other.

    Whoever judged beside someone whose lean is held at zero has a known level, and so have all if the attribute varies
    between the votes on one comparison. `confirmed` tells whether it will do.
    """
    votes, active = design.votes, design.active
    group, absolute = np.full(active.shape, -1), np.zeros(active.shape, dtype=bool)
    for j in range(active.shape[1]):
        mine = np.flatnonzero(votes.told[:, j])
        annotator, known = votes.annotator[mine], len(active)  # one node for all whose lean is held
        people = np.where(active[annotator, j], annotator, known)
        crossed = np.ones((len(mine), 1))
        component = annotator_components(votes.comparison[mine], people, crossed, known + 1)[:, 0]
        group[:, j] = np.where(active[:, j], component[:-1], -1)
        absolute[:, j] = (group[:, j] >= 0) & (votes.varying[j] | (component[:-1] == component[-1]))
    return Identified(False, group, absolute, np.zeros((int(active.sum()), 0)))


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

    ``member``, of shape (n_leans, n_groups), says which lean is in which group (a lean whose level is known is in
    none), ``size`` how many each group has.
    """

    member: sparse.csr_array
    size: Floats

    @classmethod
    def of(cls, known: Identified) -> Centering:
        """The centering of the unknown leans."""
        active = known.group >= 0
        p, n_groups = int(active.sum()), int(known.group.max(initial=-1)) + 1
        attribute = np.broadcast_to(np.arange(active.shape[1]), active.shape)[active]
        relative = np.flatnonzero(~known.absolute[active])
        _, label = np.unique((attribute * n_groups + known.group[active])[relative], return_inverse=True)
        entries = np.ones(len(relative)), (relative, label)
        member = sparse.csr_array(entries, shape=(p, label.max(initial=-1) + 1))
        return cls(member, np.maximum(member.sum(axis=0).ravel(), 1))

    def __matmul__(self, values: Floats) -> Floats:
        """The values, along the first axis, less the mean of their group."""
        return values - self.member @ ((self.member.T @ values).T / self.size).T

    def variance(self, variance: Floats) -> Floats:
        """Variances of uncorrelated values after their groups' means are taken from them."""
        shared = (self.member.T @ variance) / self.size**2
        weight = 1 - 2 * (self.member @ (1 / self.size))
        return weight * variance + self.member @ shared


def _orthonormal(basis: sparse.csr_array, kept: Bools) -> Floats:
    among = basis[np.flatnonzero(kept.ravel())]
    directions = among[:, np.unique(among.indices)].toarray()
    left, size, _ = np.linalg.svd(directions, full_matrices=False)
    return left[:, size > 1e-9 * max(size.max(initial=0.0), 1e-300)]


# -- the fit -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """Leans at the top of the likelihood, and what they rest on: the votes used, which are ``rows`` of the votes given.

    Of the leans that are estimated some may not be comparable with any other.
    """

    rows: Ints
    design: LeanDesign
    known: Identified
    maximum: Maximum


def _fit_finite(votes: LeanVotes, found: Estimable, make_model: Callable[[LeanVotes], QualityModel]) -> _Fit:
    """The fit to the votes that were not set aside; where the quality is free, to comparisons that still tell."""
    rows, used = np.arange(len(votes.row)), votes
    if found.set_aside.any():
        rows = np.flatnonzero(found.set_aside == 0)
        order, blocks = sorted_blocks(votes.comparison[rows])
        rows = rows[order]
        if votes.free_quality:
            telling, blocks = blocks.take(np.flatnonzero(blocks.any(np.any(found.told[rows], axis=1))))
            rows = rows[telling]
        used = votes.only(rows, blocks, found.told)
    design = LeanDesign(used, found.status == "ok")
    known = identified_leans(design)
    maximum = maximize(make_model(used), design.matrix, known.flat)
    guessed = used.free_quality and not design.by_rank and maximum.receding is None
    if guessed and not confirmed(known, maximum.information):
        known = incomparable(design.active)
    return _Fit(rows, design, known, maximum)


def _receded(fit: _Fit) -> Bools:
    """Votes that leans of several annotators together explain fully, by running away from those of the others.

    Where some annotators won every vote that they cast against the rest, the likelihood rises without end as the two
    groups part, though every one of them has votes of both kinds. Only a free quality per comparison allows it.
    """
    direction, votes = fit.maximum.receding, fit.design.votes
    if direction is None or not votes.free_quality:
        return np.zeros(len(fit.rows), dtype=bool)
    return explained_by_receding(fit.design.matrix @ direction, votes.sign > 0, votes.blocks)


def _covariance(fit: _Fit, centering: Centering) -> tuple[NDArray, NDArray | None]:
    """Variances of the deviations, and their covariance where it can be held.

    Beyond that the leans of different annotators are taken as uncorrelated.
    """
    if len(fit.maximum.leans) <= LARGEST_DENSE:
        covariance = centering @ (centering @ covariance_of_leans(fit.maximum, fit.known.flat)).T
        return np.diag(covariance).copy(), covariance
    own = fit.design.own_blocks(fit.maximum.information.at.information)
    inverse = np.linalg.pinv(own, rcond=1e-10, hermitian=True)
    variance = np.diagonal(inverse, axis1=1, axis2=2)[fit.design.active]
    return centering.variance(np.asarray(variance)), None


def _leans(
    kind: str,
    given: LeanVotes,
    found: Estimable,
    fit: _Fit,
    model: QualityModel,
    min_informative: int,
) -> Leans:
    known, active, maximum = fit.known, fit.design.active, fit.maximum
    m, q = active.shape
    reported = active & known.compared
    status = _final_status(found, reported, min_informative)
    centering = Centering.of(known)
    variance, covariance = _covariance(fit, centering)
    deviation, se = np.full((m, q), np.nan), np.full((m, q), np.nan)
    deviation[active] = centering @ maximum.leans
    se[active] = np.sqrt(np.maximum(variance, 0.0))
    deviation[~reported] = se[~reported] = np.nan
    low, high = deviation - Z * se, deviation + Z * se
    deviation[status == "separated_high"], deviation[status == "separated_low"] = np.inf, -np.inf
    component = _components(given, found, fit)
    absolute = np.array(
        [reported[:, j].any() and known.absolute[reported[:, j], j].all() for j in range(q)], dtype=bool
    )
    deviation[given.anchored & (status == "anchored").any(axis=1)] = 0.0
    infinite = np.isinf(deviation)
    step, step_se = _one_step(given, fit, model, absolute) if infinite.any() else (deviation, se)
    levels = _levels(fit, deviation, variance, absolute, covariance)
    return Leans(
        quality=kind,
        deviation=deviation,
        se=se,
        finite_deviation=np.where(infinite, step, deviation),
        finite_se=np.where(infinite, step_se, se),
        ci_low=low,
        ci_high=high,
        status=status,
        component=component,
        n_informative=found.n_informative,
        level=levels[0],
        level_se=levels[1],
        level_se_beyond=levels[2],
        absolute=absolute,
        covariance=_in_place(covariance, active, reported),
        gradient_norm=maximum.gradient_norm,
        n_newton=maximum.n_newton,
        n_cg=maximum.n_cg,
        log_likelihood=maximum.value,
        u_scale=float(maximum.extra[0]) if kind == "fixed" else None,
        quality_sd=float(np.exp(maximum.extra[0])) if kind == "random" else None,
    )


def _one_step(given: LeanVotes, fit: _Fit, model: QualityModel, absolute: Bools) -> tuple[Floats, Floats]:
    """Deviations after one Newton step of every lean alone, from the mean of those estimated, and their errors."""
    active, extra = fit.design.active, fit.maximum.extra
    leans = np.zeros(active.shape)
    leans[active] = fit.maximum.leans
    mean = leans.sum(axis=0) / np.maximum(active.sum(axis=0), 1)
    leans = np.where(active | given.anchored[:, None], leans, mean)
    logits = (leans[given.annotator] * given.delta).sum(axis=1)
    model.settle(logits, extra)
    at = model.curvature(logits, extra)
    # where a vote surprises the step would overshoot: on the way its information rises to that of even odds
    information = np.where(np.abs(at.score) > 0.5, 0.25, at.information.diagonal())
    slopes, bends = at.score[:, None] * given.delta, information[:, None] * given.delta**2
    slope, bend = (
        np.stack([np.bincount(given.annotator, x, len(active)) for x in each.T], axis=1)
        for each in (slopes, bends)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(absolute, mean, 0.0) + slope / bend, 1 / np.sqrt(bend)


def _final_status(found: Estimable, reported: Bools, min_informative: int) -> NDArray[np.object_]:
    status = found.status.copy()
    status[(status == "ok") & ~reported] = "no_information"
    status[(status == "ok") & (found.n_informative < min_informative)] = "insufficient"
    return status


def _components(votes: LeanVotes, found: Estimable, fit: _Fit) -> Ints:
    """Groups of annotators that the votes compare; an infinite lean belongs where its votes join it."""
    active = fit.design.active
    group = np.where(active & fit.known.compared, fit.known.group, -1)
    informed = found.n_informative > 0
    if fit.known.everywhere:
        informed &= (
            active | np.char.startswith(found.status.astype(str), "separated") | votes.anchored[:, None]
        )
        return np.where(informed, 0, -1)
    others = informed & ~active & (found.status != "no_information")
    if not others.any():
        return group
    joined = annotator_components(votes.comparison, votes.annotator, votes.delta * votes.told, len(informed))
    return np.where(others, joined, group)


def _levels(
    fit: _Fit,
    deviation: Floats,
    variance: Floats,
    absolute: Bools,
    covariance: NDArray | None,
) -> Floats:
    """Mean lean of the annotators where it is known, its error, and that for annotators like them; a row each.

    The first error is clustered by comparison, since a lean may be stronger on some; the second adds the variance of
    leans between annotators, beyond what their own errors explain.
    """
    found = np.full((3, len(absolute)), np.nan)
    annotator, attribute = np.nonzero(fit.design.active)
    for j in np.flatnonzero(absolute):
        mine = np.flatnonzero((attribute == j) & fit.known.compared[annotator, attribute])
        leans, n = deviation[annotator[mine], j], len(mine)
        moves = np.zeros(len(variance))
        moves[mine] = variance[mine] / n
        if covariance is not None:
            moves = covariance[:, mine].mean(axis=1)
        moved = (fit.design.matrix @ moves) * fit.maximum.information.at.score
        clustered = float((fit.design.votes.blocks.sums(moved) ** 2).sum())
        found[:2, j] = leans.mean(), np.sqrt(clustered)
        if n > 1:
            between = leans.var(ddof=1) / n - variance[mine].sum() / n**2
            found[2, j] = np.sqrt(clustered + max(between, 0.0))
    return found


def _in_place(covariance: Floats | None, active: Bools, reported: Bools) -> Floats | None:
    """The covariance with a row for every annotator and attribute; NaN where there is no finite estimate."""
    if covariance is None or active.size > LARGEST_DENSE:
        return None
    full = np.full((active.size, active.size), np.nan)
    shown = np.flatnonzero(reported[active])
    there = np.flatnonzero(reported.ravel())
    full[np.ix_(there, there)] = covariance[np.ix_(shown, shown)]
    return full
