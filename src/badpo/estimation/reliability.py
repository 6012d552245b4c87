r"""Estimate how closely each annotator follows quality (reliability), separately from the annotator's bias.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k q_c + \theta_k \cdot d_j

The reliability :math:`a_k` has the mean 1; a random responder has reliability 0. The probabilities of the votes do not
change if :math:`c\, a_k` is added to every bias and :math:`c \cdot d_c` is subtracted from every quality. Biases are
therefore measured as deviations from a regression line on reliability. Reliability is estimated from comparisons whose
sides do not differ, because biases have no effect on these comparisons.
"""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import LinAlgError
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import betaln, chdtrc, expit, log_softmax, logsumexp, softmax

from badpo.estimation.conditional_likelihood import sort_into_blocks
from badpo.estimation.fit import BiasEstimates, Groups, Votes
from badpo.estimation.newton import LARGEST_FACTORED, NOTHING, Curvature, Information
from badpo.estimation.shrinkage import Mixture, inverted
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import bias_design

# Two sides count as equal in an attribute if they differ by less than this value, in standard units.
SAME = 0.25
# Equally spaced grid points for the quality of a comparison, in standard deviations of the quality.
NODES = np.linspace(-3.9, 3.9, 13)
LOG_MASS = log_softmax(-(NODES**2) / 2)
# RELIABILITY_SDS is the grid for the sd of reliability between annotators; the mean reliability is 1.
# The sd of reliability has a half-normal prior with the scale USUAL.
RELIABILITY_SDS, USUAL = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.75, 1.0, 1.3]), 0.5
LOG_PRIOR = np.log(np.gradient(RELIABILITY_SDS)) - (RELIABILITY_SDS / USUAL) ** 2 / 2
# Grid for the share of random responders.
RANDOM_SHARES = np.array([0.0, 0.03, 0.1, 0.2, 0.35, 0.5])
# A common slope is significantly above zero (one-sided, 5 %) if the log-likelihood increases by at least this value.
LEAST_GAIN = 1.35
# Votes count as unanimous if the slope, in log-odds per standard deviation of quality, exceeds this value.
LARGEST_SLOPE = 6.0
# Reliability is estimated only if the mean number of votes per annotator is at least this value.
FEWEST = 5
# `LINE_PROBABILITY` is the prior probability that biases depend linearly on reliability.
# `LINE_PROBABILITY` is low, because a linear dependence could hide biases.
# `STEEPEST` is the prior standard deviation of the slope; the slope is fitted in `LINE_ROUNDS` iterations.
LINE_PROBABILITY, STEEPEST, LINE_ROUNDS = 0.25, 1.75, 12
# Low reliability does not explain an annotator's choices beyond this number of standard errors.
BEYOND = 3.0
# Newton's method takes at most STEPS steps, each of length LONGEST_STEP or less.
# The iteration ends when a step is shorter than NEAR.
STEPS, NEAR, LONGEST_STEP = 40, 0.05, 3.0
# Precision of the normal prior for the annotators' mean slope.
LOOSE = 1e-3


@dataclass(frozen=True)
class Reliability(Mixture):
    r"""Reliability :math:`a_k` of m annotators, shrunk toward the mean of 1; NaN if reliability cannot be estimated.

    The last component of the mixture is random responding.

    Attributes
    ----------
    between_sd : float
        Between-annotator standard deviation of reliability, excluding random responders.
    unknown : str
        Reason why reliability cannot be estimated: "few" (votes), "unreliable" or "unanimous" (annotators); empty
        otherwise.
    n_votes : int array of shape (m,)
        Number of votes from which reliability is estimated.
    scale : float
        Slope of the average annotator, in log-odds per standard deviation of quality.
    covariance : array of shape (m, m), or None
        Error covariances of different annotators, off the diagonal; None if the matrix is too large to store.
    """

    between_sd: float
    unknown: str
    n_votes: Ints
    scale: float = np.nan
    covariance: Floats | None = None

    def mean_of(self, weight: Floats) -> tuple[float, float]:
        """Return the weighted mean of reliability and its error variance; the weights must sum to 1."""
        variance = float(weight**2 @ self.sd**2)
        if self.covariance is not None:
            among = self.covariance - np.diag(np.diag(self.covariance))
            variance = max(variance + float(weight @ among @ weight), 0.0)
        return float(weight @ self.mean), variance


# -- comparisons on which no bias acts -------------------------------------------------------------------------


def _annotator_indicators(annotator: Ints, n_annotators: int) -> sparse.csr_array:
    """Return a matrix, of shape (n_votes, n_annotators), that indicates the annotator of each vote."""
    return bias_design(annotator, np.ones((len(annotator), 1)), n_annotators)


class _SameVotes:
    """Votes, in the order of ``blocks``, on comparisons that have several votes and equal attributes on both sides.

    Two comparisons have the same ``kind`` if the numbers of votes (``size``) and of votes for response a (``n_wins``)
    are equal.
    """

    def __init__(self, votes: Votes, shift: ArrayLike = 0.0) -> None:
        c, y = votes.comparison, np.asarray(votes.sign, float)
        differs = (np.abs(votes.delta) >= SAME).any(axis=1)
        is_same = np.bincount(c, differs) == 0
        rows = np.flatnonzero((is_same & (np.bincount(c) > 1))[c])
        order, self.blocks = sort_into_blocks(c[rows], y[rows] > 0)
        rows = rows[order]
        self.sign = y[rows]
        self.annotator = votes.annotator[rows]
        self.shift = np.broadcast_to(shift, c.shape)[rows]
        self.of = _annotator_indicators(self.annotator, votes.n_annotators)
        sizes, number = np.unique(self.blocks.sizes, return_inverse=True)
        self.size = np.repeat(sizes, sizes + 1)
        self.n_wins = np.concatenate([NOTHING, *map(np.arange, sizes + 1)])
        wins = self.blocks.sums(np.maximum(self.sign, 0)).astype(np.intp)
        self.kind = (np.cumsum(sizes + 1) - sizes - 1)[number] + wins

    def log_wins(self, scale: float) -> Floats:
        """Log joint probability of each number of wins and each quality node, given the number of votes."""
        size, wins = self.size[:, None], self.n_wins[:, None]
        ways = -betaln(wins + 1, size - wins + 1) - np.log(size + 1)
        x = scale * NODES
        return np.asarray(ways + wins * x - size * np.logaddexp(0, x) + LOG_MASS)

    def fit_common_slope(self) -> tuple[float, float]:
        """Return one slope for all annotators, per standard deviation of quality, and the gain in log-likelihood."""
        n = np.bincount(self.kind, minlength=len(self.size))

        def loss(scale: float) -> float:
            return -float(n @ logsumexp(self.log_wins(scale), axis=1))

        best = minimize_scalar(loss, bounds=(0.05, 8.0), method="bounded")
        return float(best.x), loss(0.0) - float(best.fun)


def equal_reliability_p_value(votes: Votes) -> float:
    r"""P-value of the hypothesis that all annotators are equally reliable; NaN if the votes contain no information.

    The test uses comparisons whose sides do not differ in any attribute, because biases have no effect on them. If
    annotators are equally reliable, the number s of wins on a comparison is a sufficient statistic for the quality z,
    and the score of annotator k is

    .. math:: U_k = \sum_c y_{kc}\, E[z_c \mid s_c] - E[z_c p(z_c) \mid s_c]

    The covariance V of the scores is exact for any number of votes. After the common reliability has been projected
    out, the sum of squared scores is compared with the scaled chi-squared distribution :math:`c \chi^2_\nu` of mean tr
    V and variance 2 tr V^2.

    Examples
    --------
    Annotator 0 votes at random, and three other annotators agree:

    >>> sign = np.tile([1, 1, 1, 1, -1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1], 40)
    >>> votes = Votes(np.repeat(np.arange(160), 4), sign, np.tile(np.arange(4), 160), np.zeros((640, 1)), 4)
    >>> equal_reliability_p_value(votes) < 1e-6
    True
    """
    same_votes = _SameVotes(votes)
    if not len(same_votes.sign):
        return np.nan
    scale, _ = same_votes.fit_common_slope()
    log_joint, of = same_votes.log_wins(scale), same_votes.of
    mass = softmax(log_joint, axis=1)
    chance = np.exp(logsumexp(log_joint, axis=1))
    size, wins = same_votes.size, same_votes.n_wins
    quality = mass @ NODES
    expected = mass @ (NODES * expit(scale * NODES))
    squares = wins * (quality - expected) ** 2 + (size - wins) * expected**2
    pairs = (wins * quality - size * expected) ** 2 - squares
    # variance of the score of a vote, and covariance of the scores of two votes, by number of votes
    own, between = (
        np.bincount(size, chance * each)[same_votes.blocks.sizes]
        for each in (squares / size, pairs / (size * (size - 1)))
    )
    vote = same_votes.blocks.comparison
    kind = same_votes.kind[vote]
    score = of.T @ ((same_votes.sign > 0) * quality[kind] - expected[kind])
    # the matrices contain one row per comparison, followed by one row per annotator for the annotator's own variance
    alone = of.T @ (own - between)[vote]
    columns = np.append(same_votes.annotator, np.arange(votes.n_annotators))
    starts = np.append(same_votes.blocks.starts, np.arange(len(vote), len(columns) + 1))
    cast, shared = (
        sparse.csr_array((each, columns, starts))
        for each in (np.ones(len(columns)), np.append(between[vote], alone))
    )
    return _sum_of_squares_p_value(score, cast.T @ shared)


def _sum_of_squares_p_value(score: Floats, variance: sparse.csr_array) -> float:
    """Remove the common part of the scores, and compute a p-value from two moments of the sum of squared scores."""
    common = variance.sum(axis=1)
    total = common.sum()
    part = common / total
    # moments of V - v v' / sum(v), computed without a dense matrix
    removed = common @ part
    mean = variance.trace() - removed
    if not mean > 1e-9 * total:
        return np.nan
    crossed = common @ (variance @ part)
    between_sd = (variance.data**2).sum() - 2 * crossed + removed**2
    squares = ((score - part * score.sum()) ** 2).sum()
    return float(chdtrc(mean**2 / between_sd, squares * mean / between_sd))


# -- reliability -----------------------------------------------------------------------------------------------


def fit_reliability(votes: Votes, shift: ArrayLike = 0.0, group: ArrayLike | None = None) -> Reliability:
    r"""Estimate the reliability of annotators from comparisons whose sides differ by less than a quarter of a unit.

    On a comparison of quality :math:`z \sim N(0, 1)`, the logit of annotator k's vote is :math:`s_k z` plus the known
    ``shift``, and the reliability of the annotator is :math:`a_k = s_k / \bar s`. The slopes are normally distributed
    between annotators, with a standard deviation of :math:`\kappa` times the mean slope. Some annotators are random
    responders with a slope of 0. The result is an average over :math:`\kappa` and over the share of random responders,
    weighted by the priors and the marginal likelihood (Laplace approximation). The prior of :math:`\kappa` is
    half-normal with the scale ``USUAL``; the prior over the shares in ``RANDOM_SHARES`` is flat. Annotators who nearly
    always choose the side with an attribute do not count as random responders.

    ``votes.delta`` contains only attributes of the responses, in standard units. ``shift`` is the known part of the
    logits, such as a bias toward the side shown first. Annotators are shrunk toward the mean of their ``group``; by
    default, all annotators are in one group.

    Examples
    --------
    Annotators 0 to 3 agree and annotator 4 votes at random:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> reliability = np.array([1, 1, 1, 1, 0])
    >>> sign = np.where(random.logistic(size=(300, 5)) < quality[:, None] * reliability, 1, -1).ravel()
    >>> votes = Votes(np.repeat(np.arange(300), 5), sign, np.tile(np.arange(5), 300), np.zeros((1500, 1)), 5)
    >>> fitted = fit_reliability(votes)
    >>> bool(fitted.mean[4] + 3 * fitted.sd[4] < 1)
    True
    """
    n_annotators, same_votes = votes.n_annotators, _SameVotes(votes, shift)
    n_votes = np.bincount(same_votes.annotator, minlength=n_annotators)
    n_voters = np.count_nonzero(n_votes)
    scale, unknown = _find_common_slope(same_votes)
    if n_voters < 3 or n_votes.sum() < FEWEST * n_voters:
        unknown = "few"
    if unknown:
        nothing = np.full((n_annotators, 1), np.nan)
        return Reliability(nothing, nothing, np.ones_like(nothing), np.nan, unknown, n_votes)
    # for each annotator and the most extreme attribute, squared distance of the choices from 50 %, in standard errors
    toward = np.sign(votes.delta) * votes.sign[:, None]
    of = _annotator_indicators(votes.annotator, n_annotators).T
    square = (of @ toward) ** 2 / np.maximum(of @ toward**2, 1)
    veto = np.maximum(square.max(axis=1, initial=0.0) - 4, 0.0)
    at, results, covariances = _expand_likelihood(same_votes, np.full(n_annotators, scale)), [], []
    everyone = np.zeros(n_annotators, np.intp)
    label = everyone if group is None else np.unique(group, return_inverse=True)[1]
    groups = Groups(label, everyone > 0)
    for between_sd in RELIABILITY_SDS:
        sd = between_sd * scale
        at, step, variance, covariance, log_marginal = _maximize(same_votes, at, sd, groups)
        mean_slope = at.slopes.mean()
        gain = np.log1p(np.maximum(at.information.diagonal, 0.0) * sd**2)
        far = (groups.centered(at.slopes) / sd) ** 2
        odds = at.random_ratio + (far - veto + gain) / 2
        log_marginal -= (n_annotators - len(groups.size)) * np.log(between_sd)
        mean, error = (at.slopes + step) / mean_slope, np.sqrt(variance) / mean_slope
        results.append((mean, error, odds, log_marginal))
        covariances.append(covariance)
    stacked = (np.stack(each, axis=-1) for each in zip(*results, strict=True))
    means, sds, odds, log_marginals = stacked
    weight, weights = _weigh_random_responders(odds, log_marginals)
    zeros = np.zeros((n_annotators, 1))
    means, sds = np.hstack([means, zeros]), np.hstack([sds, zeros + LOOSE])
    overall = (means * weights).sum(axis=1).mean()
    typical = float(np.sqrt(weight @ RELIABILITY_SDS**2))
    slope = float(at.slopes.mean())
    covariance = None
    if n_annotators <= LARGEST_FACTORED:
        covariance = np.einsum("s,sij->ij", weight, np.array(covariances)) / (slope * overall) ** 2
    posterior = means / overall, sds / overall, weights
    return Reliability(*posterior, typical, "", n_votes, slope * overall, covariance)


def _find_common_slope(votes: _SameVotes) -> tuple[float, str]:
    """Estimate one slope for all annotators; return the slope, and the reason if the slope cannot be used."""
    if not len(votes.sign):
        return np.nan, "few"
    scale, gain = votes.fit_common_slope()
    if gain < LEAST_GAIN:
        return scale, "unreliable"
    return scale, "unanimous" if scale > LARGEST_SLOPE else ""


def _weigh_random_responders(odds: Floats, log_marginal: Floats) -> tuple[Floats, Floats]:
    """Return posterior weights of the values in ``RELIABILITY_SDS``, and of each annotator's mixture components.

    The last component of each mixture is random responding.

    ``odds``, of shape (m, n_spreads), contains the log-likelihood ratio of random responding for the votes of each
    annotator.
    """
    share = RANDOM_SHARES[:, None, None]
    with np.errstate(divide="ignore"):
        random = np.log(share) + odds
    either = np.logaddexp(np.log1p(-share), random)
    weight = softmax(log_marginal + either.sum(axis=1) + LOG_PRIOR)
    chance = np.einsum("pk,pmk->mk", weight, np.exp(random - either))
    of_spread = weight.sum(axis=0)
    return of_spread, np.column_stack([of_spread - chance, chance.sum(axis=1)])


class ClassMerit(NamedTuple):
    """Distribution of the class offsets that unequal reliability produces; the result of `estimate_class_merit`.

    With probability ``LINE_PROBABILITY``, the offsets are normally distributed with the ``covariance``, of shape
    (n_classes, n_classes); otherwise the offsets are 0. If ``covariance`` is None, ``unknown`` gives the reason, as in
    `Reliability`.
    """

    covariance: Floats | None
    unknown: str


def estimate_class_merit(votes: Votes, shift: ArrayLike = 0.0) -> ClassMerit:
    r"""Estimate the distribution of the apparent biases that classes have if they differ only in reliability.

    Suppose that the side with the attribute is better by m log-odds. An unbiased annotator of reliability :math:`a`
    then favors this side by :math:`a\,m` log-odds. A class c of reliability :math:`a_c` therefore appears to have an
    additional bias:

    .. math:: h_c = m\, (a_c - \bar a), \qquad m \sim N(0, \text{STEEPEST}^2), \qquad
        \operatorname{cov} h = \text{STEEPEST}^2\, E[(a - \bar a)(a - \bar a)^\top]

    The votes do not separate m from bias, so m has the prior of the slope in `adjust_for_reliability`. The reliability
    of the classes is estimated as in `fit_reliability`, with one slope for all annotators of a class.

    In ``votes``, the annotator codes are class codes, and -1 means no class.

    Examples
    --------
    Class 1 votes at random. If the side with the attribute is better by 1, class 0 chooses this side more often than
    class 1:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> reliability = np.array([1, 1, 0, 0])
    >>> sign = np.where(random.logistic(size=(300, 4)) < quality[:, None] * reliability, 1, -1).ravel()
    >>> votes = Votes(np.repeat(np.arange(300), 4), sign, np.tile([0, 0, 1, 1], 300), np.zeros((1200, 1)), 2)
    >>> covariance = estimate_class_merit(votes).covariance
    >>> bool(np.sqrt([1, -1] @ covariance @ [1, -1]) > 1)
    True
    """
    known, n_classes = votes.annotator >= 0, votes.n_annotators
    same_votes = _SameVotes(votes.select(known), np.broadcast_to(shift, known.shape)[known])
    scale, unknown = _find_common_slope(same_votes)
    if unknown:
        return ClassMerit(None, unknown)
    at, squares, log_masses = _expand_likelihood(same_votes, np.full(n_classes, scale)), [], []
    everyone = np.zeros(n_classes, np.intp)
    groups = Groups(everyone, everyone > 0)
    for between_sd, log_prior in zip(RELIABILITY_SDS, LOG_PRIOR, strict=True):
        at, _, variance, covariance, log_marginal = _maximize(same_votes, at, between_sd * scale, groups)
        mean = at.slopes.mean()
        apart = at.slopes - mean
        errors = np.diag(variance) if covariance is None else covariance
        squares.append((np.outer(apart, apart) + errors) / mean**2)
        log_masses.append(log_marginal - (n_classes - 1) * np.log(between_sd) + log_prior)
    expected = np.einsum("s,sij->ij", softmax(log_masses), np.array(squares))
    return ClassMerit(STEEPEST**2 * expected, "")


class _Expansion(NamedTuple):
    """Marginal likelihood of given annotator slopes, with derivatives from Louis's formula.

    For each annotator, ``random_ratio`` contains the log-likelihood ratio of a slope of 0, with the other slopes
    unchanged.
    """

    slopes: Floats
    value: float
    score: Floats
    information: Information
    random_ratio: Floats


def _expand_likelihood(votes: _SameVotes, slopes: Floats) -> _Expansion:
    """Compute the marginal likelihood of the annotators' slopes, and its derivatives."""
    value, slope, blocks = 0.0, slopes[votes.annotator], votes.blocks
    score, random_ratio = np.empty((2, len(votes.sign)))
    entries = np.empty(blocks.n_pairs)
    for run in blocks.runs(lambda size: size * max(size, len(NODES))):
        of_votes = slope, votes.shift, votes.sign
        s, x, sign = (run.rows(each)[..., None] for each in of_votes)
        chance = np.maximum(expit(sign * (s * NODES + x)), 1e-300)
        mass = np.log(chance).sum(axis=1, keepdims=True) + LOG_MASS
        value += float(logsumexp(mass, axis=2).sum())
        mass = softmax(mass, axis=2)
        rest = sign * (1 - chance) * NODES
        weighed = mass * rest
        mean = weighed.sum(axis=2)
        among = mean[:, :, None] * mean[:, None, :]
        among -= weighed @ rest.transpose(0, 2, 1)
        each = np.arange(run.size)
        among[:, each, each] += (mass * chance * (1 - chance)) @ NODES**2
        score[run.votes] = mean.ravel()
        ratio = mass * (expit(sign * x) / chance)
        random_ratio[run.votes] = np.log(ratio.sum(axis=2)).ravel()
        entries[blocks.pairs(run.votes)] = among.ravel()
    at = Curvature(score, blocks.matrix(entries))
    of = votes.of.T
    return _Expansion(slopes, value, of @ score, Information(votes.of, at), of @ random_ratio)


def _maximize(
    votes: _SameVotes, at: _Expansion, between_sd: float, groups: Groups
) -> tuple[_Expansion, Floats, Floats, Floats | None, float]:
    """Maximize the posterior density of the annotators' slopes by Newton's method.

    Returns the maximum, the last step, the variances, the covariance and the log marginal likelihood (Laplace).

    In a large pool, two annotators share few comparisons. The function then computes the variance of each slope as if
    the other slopes were known, and returns None as the covariance.
    """
    m, inverse = len(at.slopes), None

    def pulled(slopes: Floats) -> Floats:
        return groups.centered(slopes) / between_sd**2 + LOOSE * slopes

    def height(at: _Expansion) -> float:
        return at.value - float(at.slopes @ pulled(at.slopes)) / 2

    for _ in range(STEPS):
        uphill = at.score - pulled(at.slopes)
        if m <= LARGEST_FACTORED:
            inverse, log_det = _inverse(at.information.among + pulled(np.eye(m)))
            step, variance = inverse @ uphill, np.diag(inverse)
        else:
            own = np.maximum(at.information.diagonal, 0.0)
            variance = 1 / (own + 1 / between_sd**2 + LOOSE)
            bend = LinearOperator(
                (m, m), lambda x, at=at: at.information.times(x) + pulled(x), dtype=float
            )
            step = cg(bend, uphill, rtol=1e-3, M=sparse.diags_array(variance))[0]
            log_det = -float(np.log(variance).sum())
        longest = float(np.abs(step).max())
        if longest < NEAR:
            break
        step *= min(1.0, LONGEST_STEP / longest)
        steps = (0.5**halved * step for halved in range(12))
        ways = (_expand_likelihood(votes, at.slopes + each) for each in steps)
        least = height(at) - 1e-9
        higher = next((candidate for candidate in ways if height(candidate) >= least), None)
        # no step remains: the step was taken, or no fraction of the step increases the likelihood
        step = np.zeros(m)
        if higher is None:
            break
        at = higher
    return at, step, variance, inverse, height(at) - log_det / 2


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant of a symmetric matrix, with absolute values in place of negative eigenvalues."""
    try:
        return inverted(matrix)
    except LinAlgError:
        size, along = np.linalg.eigh(matrix)
        return inverted((along * np.maximum(np.abs(size), LOOSE)) @ along.T)


# -- the line --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Regression line of the biases toward one attribute on reliability, with a probability and a slope variance.

    ``between`` is the variance around the line. ``offset`` is an annotator's reliability minus the mean reliability of
    the annotators in the same component.
    """

    chance: float
    slope: float
    open_slope: float
    between: float
    offset: Mixture

    def adjust(self, bias: Floats, se: Floats) -> tuple[Floats, Floats]:
        """Return the mean and variance of each bias minus the line, averaged over the reliability distribution."""
        offset = self.offset
        left = bias[:, None] - self.slope * offset.means
        # unbiased estimate of the squared slope: square of the estimate minus the error variance
        steep = max(self.slope**2 - self.open_slope, 0.0)
        variance = se[:, None] ** 2 + steep * offset.sds**2
        variance += self.open_slope * offset.means**2
        whole = variance + self.between
        fit = -(left**2 / whole + np.log(whole)) / 2
        log_weight = np.log(np.maximum(offset.weights, 1e-300)) + fit
        residual = Mixture(left, np.sqrt(variance), softmax(log_weight, axis=1))
        return residual.mean, residual.sd**2


class AdjustedBiases(NamedTuple):
    """Biases adjusted for reliability, with the regression lines and the p-values for equal adjusted biases."""

    biases: BiasEstimates
    lines: dict[int, Line]
    equal_bias_p: Floats


def find_unexplained_choices(votes: Votes) -> Bools:
    r"""Return a mask, of shape (n_annotators, n_attributes), of choices that low reliability cannot explain.

    About half of the votes of an unreliable annotator are for the side with more of the attribute. Of the :math:`n_k`
    votes that annotator k casts, the share :math:`s_k` is for the side with the attribute. In the whole pool, the share
    of votes for the side with the attribute is :math:`S`. Low reliability cannot explain the annotator's choices if
    :math:`s_k` is more than z = ``BEYOND`` standard errors outside the range from 1/2 to S:

    .. math:: 2 \sqrt{n_k}\, (1/2 - s_k)\, g > z \quad\text{or}\quad
        \sqrt{n_k}\, \frac{(s_k - S)\, g}{\sqrt{S (1 - S)}} > z, \qquad g = \operatorname{sign}(S - 1/2)

    Examples
    --------
    Annotators 0 to 2 choose the longer response in 75 % of 40 votes, and annotator 3 never chooses it:

    >>> sign = np.concatenate([np.tile([1, 1, 1, -1], 30), -np.ones(40)])
    >>> find_unexplained_choices(Votes(np.arange(160), sign, np.repeat(np.arange(4), 40), np.ones((160, 1)), 4)).ravel()
    array([False, False, False,  True])
    """
    toward = np.sign(votes.delta) * votes.sign[:, None]
    of = _annotator_indicators(votes.annotator, votes.n_annotators).T
    n, net = of @ toward**2, of @ toward
    total = net.sum(axis=0)
    pool = np.abs(total) / np.maximum(n.sum(axis=0), 1)
    # votes for the side that the pool prefers, minus votes against this side: n (2 s - 1)
    net *= np.where(total < 0, -1, 1)
    error = np.sqrt(np.maximum(n, 1))
    further = (net - n * pool) / (error * np.sqrt(np.maximum(1 - pool**2, LOOSE)))
    return np.asarray(np.maximum(-net / error, further) > BEYOND)


def adjust_for_reliability(
    biases: BiasEstimates, reliability: Reliability, beyond: ArrayLike = False
) -> AdjustedBiases:
    r"""Subtract the part of the biases that depends linearly on reliability, weighted by the probability of dependence.

    .. math:: \hat d_k = b\, (a_k - \bar a) + r_k, \qquad
        \operatorname{var} r_k = s_k^2 + b^2 \operatorname{var} a_k + (a_k - \bar a)^2 \operatorname{var} b

    The regression uses shrunken reliability, because unshrunken reliability would attenuate the slope (Berkson, 1950).
    The weights of the regression include the residual variance (Paule and Mandel, 1982). The slope is zero with a prior
    probability of 75 %. With a probability of 25 %, the slope has a normal prior, so that the line does not fit noise
    if annotators are about equally reliable. The Savage-Dickey ratio gives the probability of a line. If the shared
    bias is known, no line is needed, because the shift by reliability is also known. Annotators in ``beyond``
    (`find_unexplained_choices`) are excluded from the fit if their reliability is below the mean. The p-value is based
    on the sum of squared residuals, each divided by its variance. The degrees of freedom are the number of annotators,
    minus one for the slope and one for each group. The p-value is NaN if no line is fitted.
    """
    biases, lines = deepcopy(biases), {}
    beyond = np.broadcast_to(beyond, biases.deviation.shape)
    own = biases.deviation, biases.se
    finite = biases.finite_deviation, biases.finite_se
    p_values = np.full(len(biases.absolute), np.nan)
    for j in np.flatnonzero(~biases.absolute & (reliability.unknown == "")).tolist():
        is_known, group = biases.se[:, j] > 0, biases.component[:, j]
        if _df(group[is_known]) < 1:
            continue
        bias, se = biases.deviation[:, j], biases.se[:, j]
        # a reliable annotator may choose the side with the attribute more often because of quality alone
        explained = is_known & ~(beyond[:, j] & (reliability.mean < 1))
        explained = explained if _df(group[explained]) > 0 else is_known
        lines[j] = line = _fit_line(bias, se, reliability, group, is_known, explained)
        for deviation, error in (own, finite):
            bias, se = deviation[:, j], error[:, j]
            mean, variance = line.adjust(bias, se)
            mean -= _group_means(mean, group, is_known)
            squares = mean**2 / variance
            moved = np.isfinite(bias) & (se > 0)
            # average the results with and without the regression line, weighted by the probability of the line
            further = line.chance * (mean - bias)
            apart = se**2 + further * (mean - bias)
            variance = (1 - line.chance) * apart + line.chance * variance
            bias[moved] += further[moved]
            se[moved] = np.sqrt(variance[moved])
        p_values[j] = chdtrc(_df(group[np.isfinite(squares)]), np.nansum(squares))
        if biases.covariance is not None:
            at = np.arange(j, biases.se.size, len(biases.absolute))
            biases.covariance[at, at] = np.where(is_known, biases.se[:, j] ** 2, np.nan)
    return AdjustedBiases(biases, lines, p_values)


def _df(group: Ints) -> int:
    """Residual degrees of freedom of a line that is fitted with a separate mean for each group of annotators."""
    return len(group) - 1 - len(np.unique(group))


def _group_means(values: Floats, group: Ints, is_known: Bools) -> Floats:
    """Mean of the estimates in each annotator's group, or the overall mean if the group has no estimate."""
    means = pd.Series(np.where(is_known, values, np.nan)).groupby(group).transform("mean")
    return np.asarray(means.fillna(values[is_known].mean()))


def _fit_line(
    bias: Floats, se: Floats, reliability: Reliability, group: Ints, is_known: Bools, explained: Bools
) -> Line:
    """Fit a line through the origin to the ``explained`` annotators, with alternating updates of slope and variance."""
    group_mean = _group_means(reliability.mean, group, is_known)
    x, y = (reliability.mean - group_mean)[explained], bias[explained]
    variance, open_reliability = se[explained] ** 2, reliability.sd[explained] ** 2
    slope, between, df = 0.0, 0.0, _df(group[explained])
    for _ in range(LINE_ROUNDS):
        weight = 1 / (between + variance + slope**2 * open_reliability)
        open_slope = float(1 / (weight @ x**2 + STEEPEST**-2))
        slope = float(weight @ (x * y) * open_slope)
        rest = weight * (y - slope * x) ** 2
        excess = float((rest.sum() - df) / (weight @ rest))
        between = max(between + excess, 0.0)
    against = (1 - LINE_PROBABILITY) / LINE_PROBABILITY * STEEPEST / math.sqrt(open_slope)
    against *= math.exp(-(slope**2) / open_slope / 2)
    offset = Mixture(reliability.means - group_mean[:, None], reliability.sds, reliability.weights)
    return Line(1 / (1 + against), slope, open_slope, between, offset)
