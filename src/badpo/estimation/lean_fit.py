"""From votes and an assumption about quality to deviations, intervals and statuses: what three estimators share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import ndtri

from badpo.estimation.comparison_blocks import sorted_blocks
from badpo.estimation.estimable import Estimable, Informative, cross_group, find_estimable
from badpo.estimation.lean_bounds import MakeModel, lean_bounds
from badpo.estimation.lean_design import Identified, LeanVotes, checked_votes, identified_leans, lean_design
from badpo.estimation.leans import Leans
from badpo.estimation.maximizing import LARGEST_DENSE, Maximum, QualityModel, covariance_of_leans, maximize
from badpo.theory.identifiability import annotator_components

Z = float(ndtri(0.975))
CERTAIN = 1e-5


def fit_leans(
    kind: str,
    make_model: MakeModel,
    informative: Informative,
    votes: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, int],
    *,
    anchored: ArrayLike | None,
    min_informative: int,
) -> Leans:
    """Fit the leans that are finite, bound those that are not, and say of the others why there is no estimate.

    Parameters
    ----------
    kind : str
        "random", "fixed" or "joint", as it stands in the result.
    make_model : callable
        From blocks and the votes in their order (indices) to the quality model.
    informative : callable
        Which votes tell annotators apart under that model.
    votes : tuple
        comparison, sign, annotator, delta, n_annotators.
    anchored : bool array of shape (n_annotators,), or None
    min_informative : int

    Returns
    -------
    Leans

    Raises
    ------
    ValueError
        If arrays differ in length, a sign is not +1 or -1, an annotator is out of range or delta is not finite.
    """
    given = checked_votes(*votes, anchored)
    beyond_doubt = np.zeros(len(given.comparison), dtype=bool)
    while True:
        found = find_estimable(
            given.comparison,
            given.annotator,
            given.sign,
            given.delta,
            given.anchored,
            informative,
            beyond_doubt,
        )
        used = _votes_that_tell(given, np.flatnonzero(found.set_aside == -1), informative)
        order, blocks = sorted_blocks(given.comparison[used])
        rows = used[order]
        known = identified_leans(kind, given, found, rows, informative)
        active = (found.status == "ok") & (known.group >= 0)
        design = lean_design(given, rows, active)
        model = make_model(blocks, rows)
        maximum = maximize(model, design, known.flat)
        certain = _predicted_for_sure(model, design, maximum, given, rows, informative)
        if not certain.any():
            break
        beyond_doubt[rows[certain]] = True
    bounds = lean_bounds(make_model, given, found, known, active, maximum)
    return _leans(kind, given, found, known, active, maximum, bounds, min_informative)


def _votes_that_tell(given: LeanVotes, used: NDArray[np.intp], informative: Informative) -> NDArray[np.intp]:
    """Votes on comparisons with an informative vote, where the quality is free: leans change nothing on the others."""
    if informative is cross_group:
        return used
    comparison = given.comparison[used]
    told = informative(comparison, given.annotator[used], given.sign[used], given.delta[used]).any(axis=1)
    return used[np.isin(comparison, comparison[told])]


def _predicted_for_sure(
    model: QualityModel,
    design: sparse.csr_array,
    maximum: Maximum,
    given: LeanVotes,
    rows: NDArray[np.intp],
    informative: Informative,
) -> NDArray[np.bool_]:
    """Votes that leans of several annotators together explain fully, by running away from those of the others.

    Where some annotators won every vote that they cast against the rest, the likelihood rises without end as the two
    groups part, though every one of them has votes of both kinds. Where Newton's method stops on that way such a vote
    has next to no residual, and any other vote has one: at the maximum the residuals of a comparison balance those of
    others. Only a free quality per comparison allows it.
    """
    if informative is cross_group:
        return np.zeros(len(rows), dtype=bool)
    counts = informative(given.comparison[rows], given.annotator[rows], given.sign[rows], given.delta[rows])
    residual = model.curvature(design @ maximum.leans, maximum.extra).score
    moved = np.diff(design.indptr) > 0
    return counts.any(axis=1) & moved & (np.abs(residual) < CERTAIN)


@dataclass(frozen=True)
class _Centering:
    """Taking the mean of its group from every lean whose level is not known.

    ``member`` (n_leans, n_groups) says which; a lean whose level is known is in no group.
    """

    member: sparse.csr_array
    size: NDArray[np.float64]

    @classmethod
    def of(cls, known: Identified, active: NDArray[np.bool_]) -> _Centering:
        p = int(active.sum())
        attribute = np.broadcast_to(np.arange(active.shape[1]), active.shape)[active]
        _, label = np.unique(np.stack([attribute, known.group[active]]), axis=1, return_inverse=True)
        label = label.ravel()
        relative = np.flatnonzero(~known.absolute[active])
        member = sparse.csr_array(
            (np.ones(len(relative)), (relative, label[relative])), shape=(p, label.max(initial=-1) + 1)
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


def _covariance(maximum: Maximum, known: Identified, centering: _Centering) -> tuple[NDArray, NDArray | None]:
    """Variances of the deviations, and their covariance where it can be held.

    Beyond that the leans of different annotators are taken as uncorrelated.
    """
    p = len(maximum.leans)
    if p <= LARGEST_DENSE:
        covariance = centering @ (centering @ covariance_of_leans(maximum, known.flat)).T
        return np.diag(covariance).copy(), covariance
    return centering.variance(1 / np.maximum(maximum.information.diagonal, 1e-300)), None


def _leans(
    kind: str,
    given: LeanVotes,
    found: Estimable,
    known: Identified,
    active: NDArray[np.bool_],
    maximum: Maximum,
    bounds: NDArray[np.float64],
    min_informative: int,
) -> Leans:
    m, q = active.shape
    status = _final_status(found, active, min_informative)
    centering = _Centering.of(known, active)
    variance, covariance = _covariance(maximum, known, centering)
    deviation, se = np.full((m, q), np.nan), np.full((m, q), np.nan)
    deviation[active] = centering @ maximum.leans
    se[active] = np.sqrt(np.maximum(variance, 0.0))
    low, high = deviation - Z * se, deviation + Z * se
    for side, name in ((1, "separated_high"), (-1, "separated_low")):
        there = status == name
        deviation[there] = side * np.inf
        low[there], high[there] = (bounds[there], np.inf) if side > 0 else (-np.inf, bounds[there])
    component = _components(given, found, known, active)
    absolute = np.array(
        [active[:, j].any() and known.absolute[active[:, j], j].all() for j in range(q)], dtype=bool
    )
    deviation[given.anchored & (status == "anchored").any(axis=1)] = 0.0
    level, level_se = _levels(maximum, active, absolute, covariance)
    return Leans(
        quality=kind,
        deviation=deviation,
        se=se,
        ci_low=low,
        ci_high=high,
        status=status,
        component=component,
        n_informative=found.n_informative,
        level=level,
        level_se=level_se,
        absolute=absolute,
        covariance=_in_place(covariance, active),
        gradient_norm=maximum.gradient_norm,
        n_newton=maximum.n_newton,
        n_cg=maximum.n_cg,
        log_likelihood=maximum.value,
        u_scale=float(maximum.extra[0]) if kind == "fixed" else None,
        quality_sd=float(np.exp(maximum.extra[0])) if kind == "random" else None,
    )


def _final_status(found: Estimable, active: NDArray[np.bool_], min_informative: int) -> NDArray[np.object_]:
    status = found.status.copy()
    status[(status == "ok") & ~active] = "no_information"
    status[(status == "ok") & (found.n_informative < min_informative)] = "insufficient"
    return status


def _components(
    given: LeanVotes, found: Estimable, known: Identified, active: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Groups of annotators that the votes compare; an infinite lean belongs where its votes join it."""
    if known.everywhere:
        informed = active | np.char.startswith(found.status.astype(str), "separated")
        informed |= given.anchored[:, None] & (found.n_informative > 0)
        return np.where(informed, 0, -1)
    joined = annotator_components(
        given.comparison,
        given.annotator,
        given.delta * (found.n_informative > 0)[given.annotator],
        given.n_annotators,
    )
    joined[(found.n_informative == 0) | (found.status == "no_information")] = -1
    joined[active] = known.group[active]
    return joined


def _levels(
    maximum: Maximum, active: NDArray[np.bool_], absolute: NDArray[np.bool_], covariance: NDArray | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean lean of the annotators, with its standard error, for the attributes whose level is known."""
    q = active.shape[1]
    level, level_se = np.full(q, np.nan), np.full(q, np.nan)
    attribute = np.nonzero(active)[1]
    variance = maximum.information.diagonal
    for j in np.flatnonzero(absolute):
        mine = np.flatnonzero(attribute == j)
        level[j] = maximum.leans[mine].mean()
        total = (1 / variance[mine]).sum() if covariance is None else covariance[np.ix_(mine, mine)].sum()
        level_se[j] = np.sqrt(total) / len(mine)
    return level, level_se


def _in_place(
    covariance: NDArray[np.float64] | None, active: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """The covariance with a row for every annotator and attribute; NaN where there is no finite estimate."""
    if covariance is None or active.size > LARGEST_DENSE:
        return None
    full = np.full((active.size, active.size), np.nan)
    there = np.flatnonzero(active.ravel())
    full[np.ix_(there, there)] = covariance
    return full
