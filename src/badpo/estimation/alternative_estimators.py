"""Estimate biases from comparisons with one vote each; the quality of the responses may be known or unknown."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.special import chdtrc, chdtri, expit, softmax

from badpo.estimation.conditional_likelihood import ComparisonBlocks
from badpo.estimation.fit import BiasEstimates, Votes, arrange_votes, fit_biases
from badpo.estimation.log_odds import LEVEL, NO_SPREAD, dependent_columns, summed
from badpo.estimation.newton import Curvature, QualityModel
from badpo.theory import Floats, Ints

# Prior standard deviation of the strengths of the models that wrote the responses, in log-odds.
STRENGTH_PRIOR = 1.0
# Largest number of Newton steps; the iteration ends early if a step is shorter than TOLERANCE.
NEWTON_STEPS, TOLERANCE = 30, 1e-10
# Gauss-Hermite nodes and weights for the normal prior of a comparison's quality.
NODES = np.polynomial.hermite_e.hermegauss(15)
# The quality prior is fitted to at most LARGEST_FIT comparisons, with FIT_ROUNDS iterations of EM.
LARGEST_FIT, FIT_ROUNDS = 2000, 40
# A difference counts as detectable if the test finds it with this power.
POWER = 0.8
# Differences between annotators are relevant if their sd is at least this multiple of the sd of the tested values.
# For example, the multiple is 0.3 if half of the annotators choose response a in 35 % of votes and half in 65 %.
RELEVANT = 0.3


class GivenQuality(QualityModel):
    r"""Model of votes on comparisons of known quality, :math:`u_c = \text{scale} \cdot \text{quality}_c`.

    The scale of the quality is an extra parameter, unless the quality of every comparison is 0.
    """

    def __init__(self, blocks: ComparisonBlocks, sign: Floats, quality: Floats) -> None:
        self._blocks, self._sign, self._quality = blocks, sign, quality
        self.start = np.zeros(int(quality.any()))

    def values(self, logits: Floats, extra: Floats) -> Floats:
        """Log-likelihood of each comparison."""
        x = extra.sum() * self._quality + logits
        return self._blocks.sums(-np.logaddexp(0.0, -self._sign * x))

    def curvature(self, logits: Floats, extra: Floats) -> Curvature:
        """Derivatives of the total log-likelihood."""
        quality = self._quality[:, None][:, : len(extra)]
        chance = expit(extra.sum() * self._quality + logits)
        residual, weight = (self._sign > 0) - chance, chance * (1 - chance)
        information = sparse.csr_array(sparse.diags_array(weight))
        cross = weight[:, None] * quality
        return Curvature(residual, information, residual @ quality, cross, quality.T @ cross)


def fit_marginal(
    votes: Votes,
    quality: ArrayLike,
    *,
    absolute: ArrayLike,
    min_informative: int = 10,
    clusters: ArrayLike | None = None,
) -> BiasEstimates:
    r"""Estimate the log-odds that each annotator chooses the side with an attribute, without modeling unknown quality.

    .. math:: \operatorname{logit} P(a \text{ wins}) = \beta\, \text{quality}_c + s_k \cdot d_j

    The sum :math:`s_k` is the annotator's bias plus reliability times the merit of the attribute. Tables with one vote
    per comparison do not identify the two parts. If ``absolute`` (a bool for each attribute) is True, the function
    estimates the sums; otherwise, it estimates the deviations of the sums from the mean over annotators. ``quality``,
    of shape (n_comparisons,), is a known quality, for example from the strengths of the models that wrote the
    responses, or zero. The other arguments are those of `badpo.estimation.fit.fit_conditional`. With this estimator,
    every cross-group vote is informative.

    Examples
    --------
    An annotator chose the longer side in 30 of 40 comparisons, so the log-odds are log(3):

    >>> sign = np.repeat([1, -1], [30, 10])
    >>> votes = Votes(np.arange(40), sign, np.zeros(40, int), np.ones((40, 1)), 1)
    >>> fit_marginal(votes, np.zeros(40), absolute=[True]).deviation.round(3)
    array([[1.099]])
    """
    vote_quality = np.asarray(quality, float)[votes.comparison]
    return fit_biases(
        "marginal",
        lambda arranged: GivenQuality(arranged.blocks, arranged.sign, vote_quality[arranged.row]),
        arrange_votes(votes, free_quality=False, absolute=absolute),
        min_informative,
        clusters,
    )


class PooledSums(NamedTuple):
    """Pooled log-odds of q attributes with standard errors, and strengths of the models that wrote the responses."""

    log_odds: Floats
    se: Floats
    strength: Floats


def pooled_sums(
    sign: ArrayLike, delta: ArrayLike, models: sparse.csr_array, clusters: ArrayLike
) -> PooledSums:
    r"""Estimate pooled log-odds for each attribute, adjusted for the strengths of the models that wrote the responses.

    .. math:: \operatorname{logit} P(a \text{ wins}) = s \cdot d_j + \beta_{a(j)} - \beta_{b(j)}, \qquad
        \beta \sim N(0, 1)

    ``models``, of shape (n_votes, n_models), is +1 for the model that wrote response a and -1 for the model that wrote
    response b. If the models are not known, ``models`` has no columns. Standard errors are clustered. The standard
    error for an attribute is infinite if all votes are for one side, or if other attributes determine the attribute.

    Examples
    --------
    >>> votes = np.repeat([1, -1], [30, 10]), np.ones((40, 1)), sparse.csr_array((40, 0)), np.arange(40)
    >>> sums = pooled_sums(*votes)
    >>> sums.log_odds.round(3), sums.se.round(2)
    (array([1.099]), array([0.37]))
    """
    won, d = np.asarray(sign) > 0, np.asarray(delta, float)
    design, q = sparse.csr_array(sparse.hstack([d, models])), d.shape[1]
    precision = np.repeat([TOLERANCE, 1 / STRENGTH_PRIOR**2], [q, models.shape[1]])
    coefficients = np.zeros(len(precision))
    for _ in range(NEWTON_STEPS):
        chance = expit(design @ coefficients)
        score = design.T @ (won - chance) - precision * coefficients
        weighted = design.multiply((chance * (1 - chance))[:, None])
        factor = cho_factor((design.T @ weighted).toarray() + np.diag(precision))
        step = cho_solve(factor, score)
        coefficients = coefficients + np.clip(step, -1.0, 1.0)
        if np.abs(step).max(initial=0.0) < TOLERANCE:
            break
    cluster = np.unique(clusters, return_inverse=True)[1]
    member = sparse.csr_array((won - chance, (cluster, np.arange(len(cluster)))))
    cluster_influence = (member @ design) @ cho_solve(factor, np.eye(len(precision)))[:, :q]
    n = max(len(set(cluster.tolist())), 2)
    se = np.sqrt((cluster_influence**2).sum(axis=0) * n / (n - 1))
    toward = d * np.where(won, 1, -1)[:, None]
    both = (toward > 0).any(axis=0) & (toward < 0).any(axis=0)
    is_known = both & ~dependent_columns(d).any(axis=1)
    return PooledSums(coefficients[:q], np.where(is_known, se, np.inf), coefficients[q:])


class ExchangeTest(NamedTuple):
    """Result of `exchange_test`: a p-value for each column, and the power of the test.

    ``smallest`` is the smallest standard deviation of annotators' means, in standard deviations of the column, that the
    test detects with a power of 80 %. ``power`` is the power for a standard deviation of `RELEVANT`. Both ``smallest``
    and ``power`` apply at a significance level of 5 %, divided equally among the columns.
    """

    p_value: Floats
    smallest: float
    power: float


def exchange_test(values: ArrayLike, annotator: ArrayLike) -> ExchangeTest:
    r"""Test each column of ``values``, of shape (n, n_columns), for exchangeability between annotators.

    .. math:: T = \sum_k n_k (\bar z_k - \bar z)^2

    The test compares T with a scaled chi-squared distribution that has the mean and variance of T under all
    permutations of the values (Kazi-Aoual et al., 1995). If the values are votes minus their expectation, the null
    hypothesis is that annotators vote alike. If the values describe comparisons, the null hypothesis is that
    comparisons were assigned to annotators at random. The p-value is NaN for a constant column and for too few values.

    Examples
    --------
    >>> who = np.repeat(np.arange(20), 50)
    >>> values = np.random.default_rng(0).standard_normal((1000, 2)) + [[0.0, 1.0]] * (who % 2)[:, None]
    >>> test = exchange_test(values, who)
    >>> [bool(p > 0.05) for p in test.p_value], round(test.smallest, 2)
    ([True, False], 0.17)
    """
    z, of = np.asarray(values, float), np.unique(annotator, return_inverse=True)[1]
    n_each, p_value = np.bincount(of), np.full(z.shape[1], np.nan)
    n, m = len(z), len(n_each)
    if m < 2 or n < m + 3:
        return ExchangeTest(p_value, np.inf, 0.0)
    z = z - z.mean(axis=0)
    between = (summed(of, z, m) ** 2 / n_each[:, None]).sum(axis=0)
    squares, fourth = (z**2).sum(axis=0), (z**4).sum(axis=0)
    is_known = squares > NO_SPREAD * n
    scale = np.where(is_known, squares, 1.0)
    # moments of tr(H z z') / z'z under permutations of z, where H is the projection onto the annotators' means
    mean, ends = (m - 1) / (n - 1), (1 / n_each).sum() - (2 * m - 1) / n
    kurtosis = n * (n + 1) * fourth / scale**2 - 3 * (n - 1)
    uneven = n * (n + 1) * ends - (n - 1) * ((m - 1) ** 2 + 2 * (m - 1))
    whole = 2 * (m - 1) * (n - m) / ((n - 1) ** 2 * (n + 1))
    variance = whole + uneven * kurtosis / ((n + 1) * n * (n - 1) * (n - 2) * (n - 3))
    df = 2 * mean**2 / variance
    p_value = np.where(is_known, chdtrc(df, between / scale * df / mean), np.nan)
    critical = chdtri(m - 1, LEVEL / max(is_known.sum(), 1))
    votes_each = (n - (n_each**2).sum() / n) / (m - 1)
    smallest = np.sqrt(max(critical / chdtri(m - 1, POWER) - 1, 0.0) / votes_each)
    power = chdtrc(m - 1, critical / (1 + votes_each * RELEVANT**2))
    return ExchangeTest(p_value, float(smallest), float(power))


@dataclass(frozen=True)
class QualityPrior:
    r"""Prior distribution of the quality of comparisons.

    .. math:: P(s_j = 1) = \sigma(v_c + x_j), \qquad v_c \sim N(\mu \cdot \bar d_c, \sigma^2)

    ``slope`` is :math:`\mu`, of shape (n_attributes,): the merit that correlates with the attributes plus the shared
    bias, in log-odds per unit of the mean difference :math:`\bar d_c` of the sides. ``sd`` is :math:`\sigma`, in
    log-odds.
    """

    slope: Floats
    sd: float

    def posterior(
        self, comparison: Ints, sign: Ints, shift: Floats, differing: Floats
    ) -> tuple[Floats, Floats]:
        """Return quadrature nodes for the quality of each comparison, and the posterior probabilities of the nodes.

        Both arrays are of shape (n_comparisons, n_nodes). The votes must be sorted by comparison, and each comparison
        must have at least one vote.
        """
        value = (differing @ self.slope)[:, None] + self.sd * NODES[0]
        # -log P(s_j) = log(1 + exp(-s_j v_c) exp(-s_j x_j)) needs one exponential per comparison, node and side
        odds = np.exp(np.stack([value, -value]))[np.where(sign > 0, 1, 0), comparison]
        odds *= np.exp(-sign * shift)[:, None]
        starts = np.flatnonzero(np.diff(comparison, prepend=-1))
        log_weight = np.log(NODES[1]) - np.add.reduceat(np.log1p(odds, out=odds), starts)
        return value, softmax(log_weight, axis=1)


def fit_quality_prior(comparison: Ints, sign: Ints, shift: Floats, differing: Floats) -> QualityPrior:
    """Fit the prior distribution of quality to at most ``LARGEST_FIT`` comparisons by EM.

    ``comparison``, ``sign`` and ``shift`` (the known part of the logit) are of shape (n_votes,). ``differing``, of
    shape (n_comparisons, n_attributes), is the difference of the sides, averaged over the votes on each comparison.
    """
    step = -(-len(differing) // LARGEST_FIT)
    rows, sample = np.argsort(comparison, kind="stable"), differing[::step]
    rows = rows[comparison[rows] % step == 0]
    votes = comparison[rows] // step, sign[rows], shift[rows]
    prior = QualityPrior(np.zeros(differing.shape[1]), 1.0)
    for _ in range(FIT_ROUNDS):
        value, weight = prior.posterior(*votes, sample)
        slope = np.linalg.lstsq(sample, (weight * value).sum(axis=1), rcond=None)[0]
        squares = weight * (value - (sample @ slope)[:, None]) ** 2
        prior = QualityPrior(slope, float(np.sqrt(squares.sum(axis=1).mean())))
    return prior
