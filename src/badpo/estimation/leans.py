"""What every estimator of leans returns: an estimate, how sure it is, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Leans:
    r"""Leans of m annotators toward q attributes, in log-odds; positive toward the side with more of the attribute.

    Attributes
    ----------
    quality : str
        What was assumed of the comparisons' quality: "conditional", "random", "fixed" or "joint".
    deviation : array of shape (m, q)
        :math:`\theta_k` minus the mean over those annotators of its component who have a finite estimate;
        :math:`\theta_k` itself where the level is known (``absolute``), 0 of those who are anchored. NaN without
        information, infinite where all votes point one way.
    se : array of shape (m, q)
        Standard error of the deviation, the mean's part included; NaN where there is no finite estimate.
    ci_low, ci_high : array of shape (m, q)
        Ends of the 95 % interval; NaN where there is no finite estimate.
    status : object array of shape (m, q)
        "ok"; "separated_high" or "separated_low" for an infinite lean; "anchored"; "insufficient": an estimate from
        fewer informative votes than were asked for; "no_cross": never saw the attribute differ; "no_information":
        only where the votes of others say nothing.
    component : int array of shape (m, q)
        Annotators with the same number can be compared; -1 without information.
    n_informative : int array of shape (m, q)
        Votes that tell annotators apart.
    level, level_se, level_se_beyond : array of shape (q,)
        Mean lean where it is known, else NaN; its standard error over other comparisons, and over other annotators
        like these too, which NaN stands for where there is one.
    absolute : bool array of shape (q,)
        Whether the level is known: annotators are anchored, or the attribute varies between votes on one comparison.
    covariance : array of shape (m * q, m * q) or None
        Of the deviations, annotator by annotator; NaN where there is no finite estimate, None where too large.
    gradient_norm : float
        Largest gradient entry at the estimate.
    n_newton, n_cg : int
        Newton steps, and conjugate-gradient steps in all of them.
    log_likelihood : float
        Of the comparisons with a vote that informs, at the estimate.
    u_scale : float or None
        Fitted scale of a given quality.
    quality_sd : float or None
        Fitted standard deviation of a random quality.
    """

    quality: str
    deviation: NDArray[np.float64]
    se: NDArray[np.float64]
    ci_low: NDArray[np.float64]
    ci_high: NDArray[np.float64]
    status: NDArray[np.object_]
    component: NDArray[np.intp]
    n_informative: NDArray[np.intp]
    level: NDArray[np.float64]
    level_se: NDArray[np.float64]
    level_se_beyond: NDArray[np.float64]
    absolute: NDArray[np.bool_]
    covariance: NDArray[np.float64] | None
    gradient_norm: float
    n_newton: int
    n_cg: int
    log_likelihood: float
    u_scale: float | None
    quality_sd: float | None
