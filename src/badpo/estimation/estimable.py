"""Which leans have a finite estimate: votes that push one to infinity are set aside, and what they say is kept."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from badpo.estimation.lean_votes import LeanVotes
from badpo.estimation.separation import overlapping_annotators
from badpo.theory.identifiability import jointly_separated, separated_annotators


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
        -1 for a vote that is used; otherwise ``annotator * n_attributes + attribute`` of the lean that explains it
        fully, or -2 where that takes several attributes or no lean at all.
    told : bool array of shape (n_votes, n_attributes)
        Whether a vote informs among those that are used.
    """

    status: NDArray[np.object_]
    n_informative: NDArray[np.intp]
    set_aside: NDArray[np.intp]
    told: NDArray[np.bool_]


def find_estimable(votes: LeanVotes, beyond_doubt: NDArray[np.bool_]) -> Estimable:
    """Set aside the votes of infinite leans, one round after the other, until every remaining lean is finite.

    A lean whose informative votes all point one way is infinite; in the limit it predicts these votes without error,
    so the others are estimated as if they had not been cast. That can leave other leans without a counterweight or
    without votes, hence the rounds. Several attributes together can explain all votes of an annotator as well.

    Parameters
    ----------
    votes : LeanVotes
    beyond_doubt : bool array of shape (n_votes,)
        Votes known to be explained fully by the leans of several annotators together; they are set aside first.

    Returns
    -------
    Estimable

    Examples
    --------
    Annotator 1 always chose the side with more, annotator 2 saw no difference:

    >>> from badpo.estimation.lean_votes import cross_group, lean_votes
    >>> votes = lean_votes(
    ...     np.arange(5), [1, -1, 1, 1, 1], [0, 0, 1, 1, 2], [[1.0], [1.0], [1.0], [1.0], [0.0]], 3, None, cross_group)
    >>> found = find_estimable(votes, np.zeros(5, dtype=bool))
    >>> found.status.ravel().tolist(), found.set_aside.tolist()
    (['ok', 'separated_high', 'no_cross'], [-1, -1, 1, 1, -1])
    """
    m = len(votes.anchored)
    status = np.where(votes.crossed, "ok", "no_cross").astype(object)
    status[votes.anchored] = "anchored"
    aside = np.where(beyond_doubt, -2, -1)
    told = votes.told
    if beyond_doubt.any():
        told = _told_by_the_rest(votes, aside)
    while True:
        live = told & (status == "ok")[votes.annotator]
        n_live = _counted(votes.annotator, live, m)
        status[(status == "ok") & (n_live == 0)] = "no_information"
        used = np.flatnonzero((_doubtful(votes, live, n_live > 0)[votes.annotator]) & live.any(axis=1))
        rows = votes.annotator[used], votes.sign[used], votes.delta[used] * live[used]
        if not (
            _one_attribute(status, aside, used, *rows)
            or _separated_by_a_mix(status, aside, used, *rows)
            or _collinear(status, aside, used, *rows)
        ):
            return Estimable(status, _counted(votes.annotator, votes.told, m), aside, told)
        told = _told_by_the_rest(votes, aside)


def _doubtful(votes: LeanVotes, live: NDArray[np.bool_], differed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Annotators who could have infinite leans or leans that cannot be told apart, first by an eighth of the votes."""
    doubtful = np.ones(len(differed), dtype=bool)
    for last in (len(live) // 8, len(live)):
        used = np.flatnonzero(doubtful[votes.annotator[:last]])
        toward = votes.sign[used, None] * votes.delta[used] * live[used]
        doubtful &= ~overlapping_annotators(votes.annotator[used], toward, differed)
    return doubtful


def _told_by_the_rest(votes: LeanVotes, aside: NDArray[np.intp]) -> NDArray[np.bool_]:
    used = np.flatnonzero(aside == -1)
    told = np.zeros_like(votes.told)
    told[used] = votes.told_among(used)
    return told


def _counted(annotator: NDArray, votes: NDArray[np.bool_], m: int) -> NDArray[np.intp]:
    columns = [np.bincount(annotator[chosen], minlength=m) for chosen in votes.T]
    return np.stack(columns, axis=1) if columns else np.zeros((m, 0), dtype=np.intp)


def _one_attribute(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    side = separated_annotators(annotator, sign, delta, len(status))
    status[side > 0], status[side < 0] = "separated_high", "separated_low"
    if not (side != 0).any():
        return False
    q = status.shape[1]
    for j in range(q):
        gone = (side[annotator, j] != 0) & (delta[:, j] != 0)
        aside[used[gone]] = annotator[gone] * q + j
    return True


def _separated_by_a_mix(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    """Votes on attributes of the mix go aside, also those on which it is neutral: the rest of the mix is unknown."""
    if status.shape[1] < 2:
        return False
    found = np.flatnonzero(jointly_separated(annotator, sign, delta, len(status)))
    for k in found:
        mine = np.flatnonzero(annotator == k)
        lowest, highest = separating_mixes(sign[mine, None] * delta[mine])
        involved = (lowest < 0) | (highest > 0)
        status[k, involved] = "no_information"
        status[k, involved & (lowest == 0)], status[k, involved & (highest == 0)] = (
            "separated_high",
            "separated_low",
        )
        aside[used[mine[(delta[mine] * involved).any(axis=1)]]] = -2
    return bool(len(found))


def separating_mixes(votes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each attribute goes, down and up, among the mixes that contradict no vote.

    Parameters
    ----------
    votes : array of shape (n_votes, n_attributes)
        sign * delta of one annotator.

    Returns
    -------
    (lowest, highest) : arrays of shape (n_attributes,)
        Within -1 to 0 and 0 to 1. An attribute that goes one way only has an infinite lean; one that goes both ways
        is undetermined.

    Examples
    --------
    Mixed votes on either attribute, none on their sum:

    >>> separating_mixes(np.array([[3.0, -1.0], [-1.0, 3.0]]))
    (array([0., 0.]), array([1., 1.]))
    """
    q = votes.shape[1]
    scaled = votes / np.maximum(np.abs(votes).max(axis=1, keepdims=True), 1e-300)
    ends = np.zeros((2, q))
    for j in range(q):
        for end, side in zip(ends, (1.0, -1.0), strict=True):
            aim = side * (np.arange(q) == j)
            best = linprog(aim, A_ub=-scaled, b_ub=np.zeros(len(votes)), bounds=(-1, 1), method="highs")
            end[j] = best.x[j] if abs(best.x[j]) > 1e-7 else 0.0
    return ends[0], ends[1]


def _collinear(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    """Annotators who saw attributes move only together: their leans cannot be told apart."""
    q = status.shape[1]
    if q < 2:
        return False
    people, number = np.unique(annotator, return_inverse=True)
    scale = np.abs(delta).max(axis=0, initial=0.0)
    scaled = delta / np.where(scale > 0, scale, 1.0)
    gram = np.empty((len(people), q, q))
    for a, b in product(range(q), repeat=2):
        gram[:, a, b] = np.bincount(number, scaled[:, a] * scaled[:, b], minlength=len(people))
    gram += np.eye(q) * (status[people] != "ok")[:, :, None] * gram.max(initial=1.0)
    size, axes = np.linalg.eigh(gram)
    flat = size < 1e-10 * size[:, -1:]
    lost = (np.abs(axes) * flat[:, None, :]).max(axis=2, initial=0.0) > 1e-6
    status[people] = np.where(lost, "no_information", status[people])
    gone = (lost[number] & (delta != 0)).any(axis=1)
    aside[used[gone]] = -2
    return bool(lost.any())
