r"""Measure biases relative to gold annotators, and adjust the biases for unequal reliability.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k\, (q_c + m d_c) + \theta_k d_c, \qquad \theta_g = 0

Gold annotators have no bias. If their biases are fixed at zero and all annotators are assumed to be equally reliable,
the fit estimates :math:`\hat d_k = \theta_k + (a_k - a_g)\, m`, where m is the merit of the attribute. Given their
reliability, merit alone determines how often gold annotators choose the side with the attribute, so their choices
identify m.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, softmax

from badpo.estimation.fit import BiasEstimates
from badpo.estimation.reliability import STEEPEST, USUAL, Reliability
from badpo.estimation.shrinkage import Mixture
from badpo.theory import Bools, Floats
from badpo.theory.summaries import Interval

# Averaging the logistic function over a normal logit of variance v divides its slope by about sqrt(1 + PROBIT * v).
PROBIT = (16 * math.sqrt(3) / (15 * math.pi)) ** 2
# At least this share of an error's variance counts as specific to the annotator, the rest as shared by all annotators.
LEAST_OWN = 0.1
# Grid for the reliability of gold annotators, in standard errors from the estimate.
NODES = np.linspace(-4.0, 4.0, 41)


class GoldLine(NamedTuple):
    r"""Effect of unequal reliability on biases measured relative to gold annotators: :math:`(a_k - a_g)\, m`.

    Given :math:`a_k`, the effect of reliability has the mean ``slope * a_k - center`` and the variance ``open_slope *
    (a_k - least_at)^2 + rest``. ``square`` is the mean of :math:`m^2`. ``chance``, the probability of the line, is 1.
    """

    reliability: Reliability
    slope: float
    center: float
    open_slope: float
    least_at: float
    rest: float
    chance: float = 1.0

    @property
    def square(self) -> float:
        """Mean of the squared merit."""
        return self.slope**2 + self.open_slope

    def variance(self, reliability: Floats | float) -> Floats | float:
        """Variance of the effect that a known ``reliability`` has on the bias of an annotator."""
        return self.open_slope * (reliability - self.least_at) ** 2 + self.rest

    def adjust(self, bias: Floats, se: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of each bias after the effect of reliability has been subtracted."""
        reliability = self.reliability
        left = bias[:, None] - self.slope * reliability.means + self.center
        variance = se[:, None] ** 2 + self.square * reliability.sds**2
        residual = Mixture(
            left, np.sqrt(variance + self.variance(reliability.means)), reliability.weights
        )
        return residual.mean, residual.sd**2


class GoldAdjustedBiases(NamedTuple):
    """Adjusted biases relative to gold annotators, with the adjustments and the variance of the shared error.

    ``shared``, of shape (q,), is the variance of the error that all biases toward an attribute share. The shared error
    comes from the votes and the reliability of the gold annotators, and from the estimated merit. The variance of the
    shared error is 0 for an attribute without gold annotators. ``equal_bias_p`` is the p-value of the hypothesis that
    all other annotators have the same bias; NaN without an adjustment.
    """

    biases: BiasEstimates
    lines: dict[int, GoldLine]
    shared: Floats
    equal_bias_p: Floats


def adjust_to_gold(
    biases: BiasEstimates, reliability: Reliability, choices: Sequence[Interval | None], has_merit: Bools
) -> GoldAdjustedBiases:
    r"""Subtract the effect of unequal reliability from biases relative to gold annotators and from mean biases.

    .. math:: \hat\theta_k = \hat d_k - E[(a_k - a_g)\, m], \qquad
        \operatorname{var} \hat\theta_k = s_k^2 + \operatorname{var} (a_k - a_g)\, m

    Parameters
    ----------
    biases : BiasEstimates
        Result of the conditional fit with the gold annotators anchored.
    reliability : Reliability
        Reliability from a fit with gold annotators as a separate group, so that gold and other annotators are not
        shrunk toward a common mean.
    choices : sequence of Interval or None, one for each attribute
        Log-odds per unit that a gold annotator chooses the side with the attribute.
    has_merit : bool array of shape (q,)
        False for an attribute of the judgment, such as the side shown first, because such an attribute is unrelated to
        the quality of a response.

    Returns
    -------
    GoldAdjustedBiases
        If reliability cannot be estimated, the function assumes a reliability of 1 with the standard deviation
        ``USUAL`` for gold annotators and for other annotators.
    """
    biases, lines = deepcopy(biases), {}
    gold = biases.status == "anchored"
    if reliability.unknown:
        reliability = _usual_reliability(gold.any(axis=1))
    shared, p_values = np.zeros(len(biases.absolute)), np.full(len(biases.absolute), np.nan)
    for j in np.flatnonzero(biases.absolute & gold.any(axis=0) & has_merit).tolist():
        others, squares = biases.se[:, j] > 0, biases.se[:, j] ** 2
        n = int(others.sum())
        if n > 1:
            common = (biases.shared_bias_se[j] ** 2 - squares[others].mean() / n) * n / (n - 1)
            shared[j] = max(float(common), 0.0)
        votes = np.where(gold[:, j], biases.n_informative[:, j], 0)
        if not votes.any() or not n:
            continue
        lines[j] = line = _gold_line(choices[j], reliability, *reliability.mean_of(votes / votes.sum()))
        other_mean, other_variance = reliability.mean_of(others / n)
        shared[j] += line.variance(other_mean)
        biases.shared_bias[j] -= line.slope * other_mean - line.center
        more = line.variance(other_mean) + line.square * other_variance
        for error in (biases.shared_bias_se, biases.shared_bias_se_population):
            error[j] = math.sqrt(error[j] ** 2 + more)
        for deviation, se in (
            (biases.deviation, biases.se),
            (biases.finite_deviation, biases.finite_se),
        ):
            mean, variance = line.adjust(deviation[:, j], se[:, j])
            moved = np.isfinite(deviation[:, j]) & (se[:, j] > 0)
            deviation[moved, j], se[moved, j] = mean[moved], np.sqrt(variance[moved])
        if n > 1:
            weight = 1 / own_variance(biases.se[others, j] ** 2, shared[j])
            left = biases.deviation[others, j]
            left = left - (weight @ left) / weight.sum()
            p_values[j] = chdtrc(n - 1, weight @ left**2)
    return GoldAdjustedBiases(biases, lines, shared, p_values)


def own_variance(variance: Floats, shared: float) -> Floats:
    """Error variances without the shared variance."""
    return np.maximum(variance - shared, LEAST_OWN * variance)


def _usual_reliability(gold: Bools) -> Reliability:
    """Return a reliability of 1, with one error shared by all gold annotators and another shared by all others."""
    one = np.ones((len(gold), 1))
    covariance = USUAL**2 * np.equal.outer(gold, gold)
    return Reliability(one, USUAL * one, one, USUAL, "", np.zeros(len(gold), int), 1.0, covariance)


def _gold_line(
    choice: Interval | None, reliability: Reliability, gold_mean: float, gold_variance: float
) -> GoldLine:
    r"""Compute the joint posterior of an attribute's merit and of the gold annotators' reliability.

    Gold annotators with reliability :math:`a_g \ge 0` choose the side with the attribute at log-odds of :math:`a_g m`.
    The merit m has the same prior as the slope of the regression of biases on reliability
    (`badpo.estimation.reliability.adjust_for_reliability`).
    """
    a = np.maximum(gold_mean + math.sqrt(gold_variance) * NODES, 0.0)
    log_mass, mean, variance = -(NODES**2) / 2, 0.0 * a, STEEPEST**2 + 0.0 * a
    if choice is not None and choice.se > 0:
        # quality differences between comparisons attenuate the log-odds; the factor corrects for this attenuation
        factor = math.sqrt(1 + PROBIT * (reliability.scale * gold_mean) ** 2)
        value, error = factor * choice.estimate, (factor * choice.se) ** 2
        whole = error + (a * STEEPEST) ** 2
        log_mass = log_mass - (value**2 / whole + np.log(whole)) / 2
        variance = error * STEEPEST**2 / whole
        mean = variance * a * value / error
    mass = softmax(log_mass)
    slope, center = mass @ mean, mass @ (a * mean)
    open_slope = mass @ (variance + mean**2) - slope**2
    joint = mass @ (a * (variance + mean**2)) - slope * center
    of_gold = mass @ (a**2 * (variance + mean**2)) - center**2
    rest = max(of_gold - joint**2 / open_slope, 0.0)
    return GoldLine(reliability, slope, center, open_slope, joint / open_slope, rest)
