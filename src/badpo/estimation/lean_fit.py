"""From votes and an assumption about quality to deviations, intervals and statuses: what three estimators share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from badpo.estimation.comparison_blocks import ComparisonBlocks, sorted_blocks
from badpo.estimation.estimable import Estimable, find_estimable
from badpo.estimation.lean_bounds import MakeModel
from badpo.estimation.lean_design import (
    Centering,
    Identified,
    LeanDesign,
    confirmed,
    identified_leans,
    incomparable,
)
from badpo.estimation.lean_votes import Informative, LeanVotes, lean_votes
from badpo.estimation.leans import Leans
from badpo.estimation.maximizing import LARGEST_DENSE, Maximum, QualityModel, covariance_of_leans, maximize
from badpo.estimation.separation import explained_by_receding
from badpo.theory.identifiability import annotator_components

Z = float(ndtri(0.975))


@dataclass(frozen=True)
class _Fit:
    """Leans at the top of the likelihood, and what they rest on: the votes used, which are ``rows`` of the votes given.

    Of the leans that are estimated some may not be comparable with any other.
    """

    rows: NDArray[np.intp]
    design: LeanDesign
    known: Identified
    maximum: Maximum


def fit_leans(
    kind: str,
    make_model: MakeModel,
    informative: Informative,
    votes: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, int],
    *,
    anchored: ArrayLike | None,
    min_informative: int,
) -> Leans:
    """Fit the leans that are finite, and say of the others why there is no estimate.

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
    given = lean_votes(*votes, anchored, informative)

    def model_of(blocks: ComparisonBlocks, rows: NDArray[np.intp]) -> QualityModel:
        return make_model(blocks, given.row[rows])

    beyond_doubt = np.zeros(len(given.row), dtype=bool)
    while True:
        found = find_estimable(given, beyond_doubt)
        fit = _fit_finite(given, found, model_of)
        certain = _receded(fit)
        if not certain.any():
            break
        beyond_doubt[fit.rows[certain]] = True
    return _leans(kind, given, found, fit, min_informative)


def _fit_finite(votes: LeanVotes, found: Estimable, model_of: MakeModel) -> _Fit:
    """The fit to the votes that were not set aside; where the quality is free, to comparisons that still tell."""
    rows, used = np.arange(len(votes.row)), votes
    if (found.set_aside != -1).any():
        rows = np.flatnonzero(found.set_aside == -1)
        order, blocks = sorted_blocks(votes.comparison[rows])
        rows = rows[order]
        if votes.free_quality:
            telling, blocks = blocks.take(np.flatnonzero(blocks.any(np.any(found.told[rows], axis=1))))
            rows = rows[telling]
        used = votes.only(rows, blocks, found.told)
    design = LeanDesign(used, found.status == "ok")
    known = identified_leans(design)
    maximum = maximize(model_of(used.blocks, rows), design, known.flat)
    guessed = used.free_quality and not design.by_rank and maximum.receding is None
    if guessed and not confirmed(known, maximum.information):
        known = incomparable(design.active)
    return _Fit(rows, design, known, maximum)


def _receded(fit: _Fit) -> NDArray[np.bool_]:
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
    levels = _levels(fit, deviation, variance, absolute, covariance)
    return Leans(
        quality=kind,
        deviation=deviation,
        se=se,
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


def _final_status(found: Estimable, reported: NDArray[np.bool_], min_informative: int) -> NDArray[np.object_]:
    status = found.status.copy()
    status[(status == "ok") & ~reported] = "no_information"
    status[(status == "ok") & (found.n_informative < min_informative)] = "insufficient"
    return status


def _components(votes: LeanVotes, found: Estimable, fit: _Fit) -> NDArray[np.intp]:
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
    deviation: NDArray[np.float64],
    variance: NDArray[np.float64],
    absolute: NDArray[np.bool_],
    covariance: NDArray | None,
) -> NDArray[np.float64]:
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


def _in_place(
    covariance: NDArray[np.float64] | None, active: NDArray[np.bool_], reported: NDArray[np.bool_]
) -> NDArray[np.float64] | None:
    """The covariance with a row for every annotator and attribute; NaN where there is no finite estimate."""
    if covariance is None or active.size > LARGEST_DENSE:
        return None
    full = np.full((active.size, active.size), np.nan)
    shown = np.flatnonzero(reported[active])
    there = np.flatnonzero(reported.ravel())
    full[np.ix_(there, there)] = covariance[np.ix_(shown, shown)]
    return full
