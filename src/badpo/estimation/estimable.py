"""Which leans have a finite estimate: votes that push one to infinity are set aside, and what they say is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from badpo.theory.identifiability import jointly_separated, separated_annotators

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
    """

    status: NDArray[np.object_]
    n_informative: NDArray[np.intp]
    set_aside: NDArray[np.intp]


def find_estimable(
    comparison: NDArray,
    annotator: NDArray,
    sign: NDArray,
    delta: NDArray,
    anchored: NDArray[np.bool_],
    informative: Informative,
    beyond_doubt: NDArray[np.bool_] | None = None,
) -> Estimable:
    """Set aside the votes of infinite leans, one round after the other, until every remaining lean is finite.

    A lean whose informative votes all point one way is infinite; in the limit it predicts these votes without error,
    so the others are estimated as if they had not been cast. That can leave other leans without a counterweight or
    without votes, hence the rounds. Several attributes together can explain all votes of an annotator as well.

    Parameters
    ----------
    comparison, annotator, sign : array of shape (n_votes,)
    delta : array of shape (n_votes, n_attributes)
    anchored : bool array of shape (n_annotators,)
    informative : callable
        `cross_group`, or `badpo.theory.identifiability.informative_judgments`.
    beyond_doubt : bool array of shape (n_votes,), or None
        Votes known to be explained fully by the leans of several annotators together; they are set aside first.

    Returns
    -------
    Estimable

    Examples
    --------
    Annotator 1 always chose the side with more, annotator 2 saw no difference:

    >>> found = find_estimable(
    ...     np.arange(5), np.array([0, 0, 1, 1, 2]), np.array([1, -1, 1, 1, 1]),
    ...     np.array([[1.0], [1.0], [1.0], [1.0], [0.0]]), np.zeros(3, dtype=bool), cross_group)
    >>> found.status.ravel().tolist(), found.set_aside.tolist()
    (['ok', 'separated_high', 'no_cross'], [-1, -1, 1, 1, -1])
    """
    m = len(anchored)
    first = informative(comparison, annotator, sign, delta)
    status = np.where(_counted(annotator, delta != 0, m) > 0, "ok", "no_cross").astype(object)
    status[anchored] = "anchored"
    aside = np.full(len(annotator), -1, dtype=np.intp)
    if beyond_doubt is not None:
        aside[beyond_doubt] = -2
    while True:
        used = np.flatnonzero(aside == -1)
        live = np.zeros_like(first)
        live[used] = informative(comparison[used], annotator[used], sign[used], delta[used])
        live &= (status == "ok")[annotator]
        status[(status == "ok") & (_counted(annotator, live, m) == 0)] = "no_information"
        rows = annotator[used], sign[used], (delta * live)[used]
        changed = (
            _one_attribute(status, aside, used, *rows)
            or _several_attributes(status, aside, used, *rows)
            or _collinear(status, aside, used, *rows)
        )
        if not changed:
            return Estimable(status, _counted(annotator, first, m), aside)


def _counted(annotator: NDArray, votes: NDArray[np.bool_], m: int) -> NDArray[np.intp]:
    columns = [np.bincount(annotator[chosen], minlength=m) for chosen in votes.T]
    return np.stack(columns, axis=1) if columns else np.zeros((m, 0), dtype=np.intp)


def _one_attribute(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    side = separated_annotators(annotator, sign, delta, len(status))
    status[side > 0], status[side < 0] = "separated_high", "separated_low"
    q = status.shape[1]
    for j in range(q):
        gone = (side[annotator, j] != 0) & (delta[:, j] != 0)
        aside[used[gone]] = annotator[gone] * q + j
    return bool((side != 0).any())


def _several_attributes(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    found = np.flatnonzero(jointly_separated(annotator, sign, delta, len(status)))
    for k in found:
        mine = np.flatnonzero(annotator == k)
        votes = sign[mine, None] * delta[mine]
        mix = separating_mix(votes)
        status[k, mix > 0], status[k, mix < 0] = "separated_high", "separated_low"
        aside[used[mine[votes @ mix > 0]]] = -2
    return bool(len(found))


def separating_mix(votes: NDArray[np.float64]) -> NDArray[np.float64]:
    """A mix of attributes that explains votes and contradicts none; the rest is left to a further round.

    Parameters
    ----------
    votes : array of shape (n_votes, n_attributes)
        sign * delta of one annotator.

    Returns
    -------
    array of shape (n_attributes,)
        Entries between -1 and 1; all zero when no mix does.

    Examples
    --------
    Mixed votes on either attribute, none on their sum:

    >>> separating_mix(np.array([[3.0, -1.0], [-1.0, 3.0]]))
    array([1., 1.])
    """
    best = linprog(-votes.sum(axis=0), A_ub=-votes, b_ub=np.zeros(len(votes)), bounds=(-1, 1), method="highs")
    return np.where(np.abs(best.x) > 1e-7, best.x, 0.0)


def _collinear(
    status: NDArray, aside: NDArray, used: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray
) -> bool:
    """Annotators who saw attributes move only together: their leans cannot be told apart."""
    m, q = status.shape
    if q < 2:
        return False
    scale = np.sqrt((delta**2).mean(axis=0)) + (np.abs(delta).max(axis=0, initial=0.0) == 0)
    scaled = delta / scale
    gram = np.empty((m, q, q))
    for a, b in product(range(q), repeat=2):
        gram[:, a, b] = np.bincount(annotator, scaled[:, a] * scaled[:, b], minlength=m)
    gram += np.eye(q) * (status != "ok")[:, :, None] * gram.max(initial=1.0)
    size, axes = np.linalg.eigh(gram)
    flat = size < 1e-10 * size[:, -1:]
    lost = (np.abs(axes) * flat[:, None, :]).max(axis=2) > 1e-6
    status[lost] = "no_information"
    gone = (lost[annotator] & (delta != 0)).any(axis=1)
    aside[used[gone]] = -2
    return bool(lost.any())
