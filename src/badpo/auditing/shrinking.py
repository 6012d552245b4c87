"""Deviations pulled toward the pool, and the flags that rest on them; one attribute after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from badpo.auditing.design import Design
from badpo.auditing.options import Flag, Options
from badpo.estimation.flags import bayesian_fdr, benjamini_hochberg, probability_exceeds
from badpo.estimation.integrated import shrink_votes
from badpo.estimation.leans import Leans
from badpo.estimation.shrinkage import Shrunk, finite_estimates, shrink_normal, shrink_npmle

# exp(5) is odds of 148 to 1: no distance between people
WIDEST_SPREAD = 5.0


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of one attribute's deviations after seeing the whole pool; arrays of shape (n_annotators,)."""

    spread: Shrunk
    shrunk: NDArray[np.float64]
    post_sd: NDArray[np.float64]
    post_low: NDArray[np.float64]
    post_high: NDArray[np.float64]
    prob_exceeds: NDArray[np.float64]
    q_value: NDArray[np.float64]
    flag: NDArray[np.bool_]


def posteriors_of(design: Design, leans: Leans, options: Options) -> tuple[Posterior, ...]:
    """Shrink each attribute's deviations and flag those that are probably large.

    With the conditional likelihood the leans are integrated out of the votes themselves, which holds with few votes
    per annotator too. Otherwise, and where anchors or the design fix the level, the estimates are taken as normal
    with their standard errors, and an infinite one as that of its number of votes.
    """
    integrated: Sequence[Shrunk | None] = [None] * len(design.attributes)
    anchored = (leans.status == "anchored").any()
    if leans.quality == "conditional" and not anchored and not leans.absolute.all():
        integrated = shrink_votes(*design.votes)
    return tuple(
        _posterior(
            leans, j, _spread(leans, j, None if leans.absolute[j] else from_votes, options.shrink), options
        )
        for j, from_votes in enumerate(integrated)
    )


def _spread(leans: Leans, attribute: int, from_votes: Shrunk | None, shrink: str) -> Shrunk:
    """The prior that was asked for; intervals always from the normal one, since the free one's are too short.

    Where hardly anybody has more than a vote or two on contested comparisons, the likelihood of the spread rises
    without end: the spread is then not known, and nothing can be shrunk to it.
    """
    estimates = _estimates(leans, attribute)
    finite = finite_estimates(*estimates, leans.n_informative[:, attribute])
    normal = shrink_normal(*finite) if from_votes is None else from_votes
    if normal.tau > WIDEST_SPREAD or normal.tau_high == np.inf:
        return replace(normal, tau=np.nan, tau_low=0.0, tau_high=np.inf, reliability=np.nan)
    if shrink != "npmle":
        return normal
    free = shrink_npmle(*finite)
    return replace(free, post_sd=normal.post_sd, post_low=normal.post_low, post_high=normal.post_high)


def _estimates(leans: Leans, attribute: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One attribute's deviations and standard errors.

    Anchored annotators take no part, since their lean is given; nor does one who is compared with nobody, whose
    deviation from themselves is 0 by definition.
    """
    given = (leans.status[:, attribute] == "anchored") | (leans.se[:, attribute] == 0)
    deviation, se = leans.deviation[:, attribute], leans.se[:, attribute]
    return np.where(given, np.nan, deviation), np.where(given, np.nan, se)


def _posterior(leans: Leans, attribute: int, spread: Shrunk, options: Options) -> Posterior:
    told = leans.n_informative[:, attribute] > 0
    believed = told & (spread.basis != "prior") & (leans.status[:, attribute] != "anchored")
    believed &= (options.shrink != "none") & np.isfinite(spread.tau)
    shown = {
        name: np.where(believed, getattr(spread, name), np.nan)
        for name in ("shrunk", "post_sd", "post_low", "post_high")
    }
    prob_exceeds = np.where(believed, probability_exceeds(spread, options.flag.rho), np.nan)
    q_value = benjamini_hochberg(*_estimates(leans, attribute))
    enough = leans.n_informative[:, attribute] >= options.min_informative
    flag = enough & _flagged(prob_exceeds, q_value, enough, options.flag)
    return Posterior(spread, prob_exceeds=prob_exceeds, q_value=q_value, flag=flag, **shown)


def _flagged(prob_exceeds: NDArray, q_value: NDArray, enough: NDArray, flag: Flag) -> NDArray[np.bool_]:
    if flag.rule == "bh":
        return q_value <= flag.fdr
    return bayesian_fdr(np.where(enough, prob_exceeds, np.nan), flag.fdr)
