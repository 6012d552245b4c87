"""One-sided bounds of infinite leans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from badpo.estimation.comparison_blocks import ComparisonBlocks, sorted_blocks
from badpo.estimation.estimable import Estimable
from badpo.estimation.lean_design import Identified, LeanDesign
from badpo.estimation.lean_votes import LeanVotes
from badpo.estimation.maximizing import Maximum, QualityModel
from badpo.estimation.spread import DROP

FARTHEST = 40.0
BISECTIONS = 50

MakeModel = Callable[[ComparisonBlocks, NDArray[np.intp]], QualityModel]


def lean_bounds(
    make_model: MakeModel,
    given: LeanVotes,
    found: Estimable,
    known: Identified,
    active: NDArray[np.bool_],
    maximum: Maximum,
) -> NDArray[np.float64]:
    """Where the likelihood of an infinite lean has fallen by 1.92 from its limit, all other leans held.

    Every vote that was set aside for one lean is put back into its comparison beside the votes that were used, alone:
    other votes set aside there are as if not cast. A lean that is infinite only together with others has no bound.
    """
    q = given.delta.shape[1]
    bounds = np.full(found.status.shape, np.nan)
    bounds[found.status == "separated_high"], bounds[found.status == "separated_low"] = -np.inf, np.inf
    back = np.flatnonzero(found.set_aside >= 0)
    if not len(back):
        return bounds
    pair = found.set_aside[back]
    rows, beside, own = _put_back(given, found, back)
    order, blocks = sorted_blocks(beside)
    rows, own, beside = rows[order], own[order], beside[order]
    model = make_model(blocks, rows)
    fitted = LeanDesign(given.only(rows, blocks, given.told), active).matrix @ maximum.leans
    pairs, number = np.unique(pair, return_inverse=True)
    step = given.delta[back, pair % q]
    side = np.where(found.status.ravel()[pairs] == "separated_high", 1.0, -1.0)
    unit = 1 / (np.bincount(number, np.abs(step)) / np.bincount(number))

    def support(lean: NDArray[np.float64]) -> NDArray[np.float64]:
        logits = fitted.copy()
        logits[own] += (lean[number] * step)[beside[own]]
        model.settle(logits, maximum.extra)
        values = model.values(logits, maximum.extra)
        return np.bincount(number[beside[blocks.starts]], values).astype(np.float64)

    wanted = support(side * unit * 2 * FARTHEST) - DROP
    far, near = -side * unit * FARTHEST, side * unit * FARTHEST
    bounded = support(far) < wanted
    for _ in range(BISECTIONS):
        middle = (far + near) / 2
        low = support(middle) < wanted
        far, near = np.where(low, middle, far), np.where(low, near, middle)
    center = _centers(given, known, active, maximum, (pairs, number[beside], rows[~own], ~own))
    bounded &= np.isfinite(center)
    bounds.flat[pairs[bounded]] = (far - center)[bounded]
    return bounds


def _centers(
    given: LeanVotes,
    known: Identified,
    active: NDArray[np.bool_],
    maximum: Maximum,
    met: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """The mean lean of those whom an infinite lean is compared with; NaN where these are not one group."""
    pairs, number, others, beside = met
    q = active.shape[1]
    leans = np.full(active.shape, np.nan)
    leans[active] = maximum.leans
    lowest, highest = np.full(len(pairs), np.inf), np.full(len(pairs), -np.inf)
    if known.everywhere:
        lowest[:] = highest[:] = 0.0
    else:
        number = number[beside]
        group = np.where(known.compared, known.group, -1)[given.annotator[others], pairs[number] % q]
        seen = (group >= 0) & (given.delta[others, pairs[number] % q] != 0)
        np.minimum.at(lowest, number[seen], group[seen])
        np.maximum.at(highest, number[seen], group[seen])
    center = np.full(len(pairs), np.nan)
    for i in np.flatnonzero(lowest == highest):
        members = active[:, pairs[i] % q] & (known.group[:, pairs[i] % q] == lowest[i])
        absolute = known.absolute[members, pairs[i] % q].any()
        center[i] = 0.0 if absolute or not members.any() else leans[members, pairs[i] % q].mean()
    return center


def _put_back(
    given: LeanVotes, found: Estimable, back: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Votes of the copied comparisons, the number of the copy, and which vote is the one put back."""
    used = np.flatnonzero(found.set_aside == -1)
    arranged = used[np.argsort(given.comparison[used], kind="stable")]
    first = np.searchsorted(given.comparison[arranged], given.comparison[back])
    size = np.searchsorted(given.comparison[arranged], given.comparison[back], side="right") - first
    copy = np.repeat(np.arange(len(back)), size)
    within = np.arange(len(copy)) - np.repeat(np.cumsum(size) - size, size)
    rows = np.concatenate([back, arranged[np.repeat(first, size) + within]])
    own = np.arange(len(rows)) < len(back)
    return rows, np.concatenate([np.arange(len(back)), copy]), own
