r"""Empirical Bayes estimates: shrink each annotator's deviation toward the pool mean, and flag large deviations.

The posterior of an annotator's deviation can be computed in two ways. `shrink_normal` treats estimates as :math:`\hat
d_k \sim N(d_k, s_k^2)` and assumes a normal prior for the true deviations, whose standard deviation tau is estimated
from the same estimates. The normal model fails if annotators have only about a dozen informative votes each: estimates
are too large or even infinite, large estimates have large standard errors, and the estimate of tau is biased.
`shrink_votes` therefore integrates the conditional likelihood over the biases. For an annotator without an estimate,
the posterior equals the prior, and ``basis`` is ``prior``.

In a real pool, all annotators differ a little, so a test of exact equality flags every annotator if the votes are
numerous enough. Flags therefore use the posterior probability that a deviation exceeds a relevant size. For pools in
which all other annotators may have the same bias, a test of equality is also available (`benjamini_hochberg`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse.linalg import cg
from scipy.special import chdtri, logit, ndtr, ndtri, softmax
from scipy.stats import false_discovery_control

from badpo.estimation.conditional_likelihood import KnownWins, Winners
from badpo.estimation.fit import ArrangedVotes, Votes, arrange_votes, find_identified_biases
from badpo.theory import Array, Bools, Floats, Ints

# At the limits of a 95 % confidence interval, the log-likelihood is lower than its maximum by this value.
DROP = float(chdtri(1, 0.05)) / 2
# Values of tau are omitted if their log-likelihood is lower than the maximum by more than this value.
NEGLIGIBLE = 12.0
# `shrink_normal` averages over this many values of tau.
TAU_NODES = 31
# Number of bisection steps for a quantile.
BISECTIONS = 30
# `FAR_SHARES` are the possible shares of annotators with large deviations from the pool mean.
# `FAR_RATIOS` are the possible ratios of the sd of large deviations to the sd of ordinary deviations.
FAR_SHARES, FAR_RATIOS = (0.03, 0.1, 0.3), (2.5, 4.5, 8.0)
# Number of EM iterations that estimate the common center of the priors.
CENTERINGS = 8
# A prior is omitted if its posterior probability is below this value.
UNLIKELY = 1e-3
# The weights of the priors are estimated from at most this many annotators.
LARGEST_SAMPLE = 1000
# The covariance is computed as a dense matrix if there are at most this many biases.
LARGEST_DENSE = 600
# In a large pool, variances are exact only in groups of at most this many biases.
FEW = 40
# Uncertainty about other biases reduces the approximate precision of a bias by at most this share.
MOST_EXPLAINED = 0.9
NEWTON_STEPS, MOST_HALVINGS = 50, 40
# Newton's method stops if the mean square of a step, in posterior standard deviations, is below `NEAR_ENOUGH`.
# The next posterior mode is interpolated from at most `MOST_NEAR` known modes.
NEAR_ENOUGH, MOST_NEAR = 3e-11, 5
# `shrink_votes` averages over this many values of tau.
NODES = 11
# Tau and the dispersion are updated at most ROUNDS_OF_CLUSTERS times.
# The updates end earlier if the dispersion changes by less than SETTLED.
ROUNDS_OF_CLUSTERS, SETTLED = 8, 0.01
# An annotator can be flagged only if the posterior probability of a large deviation is at least this value.
LIKELY = 0.5
# Range of tau / (scale + tau).
NARROWEST, WIDEST = 0.01, 0.99
_Share = TypeVar("_Share", float, Floats)
_POINTS, _WEIGHTS = np.array(hermegauss(15))[..., None]


# -- posteriors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """Mixture distribution of each annotator k: the sum over j of weights[k, j] * N(means[k, j], sds[k, j]^2).

    All three arrays have the shape (m, n_parts), and all standard deviations are above 0.
    """

    means: Floats
    sds: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        """Mean of every row."""
        return np.asarray((self.weights * self.means).sum(axis=1))

    @property
    def sd(self) -> Floats:
        """Standard deviation of the mixture in every row, including the variance between components."""
        centered = self.means - self.mean[:, None]
        return np.asarray(np.sqrt((self.weights * (self.sds**2 + centered**2)).sum(axis=1)))

    def cdf(self, value: Floats | float) -> Floats:
        """Probability that a draw from the mixture is at most ``value``, for every row."""
        gap = np.reshape(value, (-1, 1)) - self.means
        return np.asarray((self.weights * ndtr(gap / self.sds)).sum(axis=1))

    def draws(self, n: int, random: np.random.Generator) -> Floats:
        """Return ``n`` draws for every row, with shape (n, m). Within a draw, all rows use the same value of tau."""
        m, last = len(self.weights), self.weights.shape[1] - 1
        ends = np.cumsum(self.weights, axis=1)
        part = np.array([(ends < random.random()).sum(axis=1) for _ in range(n)])
        chosen = np.arange(m), np.minimum(part, last)
        noise = random.standard_normal(part.shape)
        return np.asarray(self.means[chosen] + self.sds[chosen] * noise)

    def quantile(self, probability: float) -> Floats:
        """Quantile of the mixture in every row, accurate to a billionth of the range of the components' quantiles."""
        parts = self.means + ndtri(probability) * self.sds
        low, high = parts.min(axis=1), parts.max(axis=1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low = np.where(below, middle, low)
            high = np.where(below, high, middle)
        return np.asarray(high)


@dataclass(frozen=True)
class ShrunkenBiases:
    """Posterior of every annotator's deviation, given the votes of the whole pool, in log-odds.

    Attributes
    ----------
    posterior : Mixture
        Posterior of every annotator's deviation; NaN only if no annotator has an estimate.
    basis : object array of shape (m,)
        Information in the posterior besides the prior: ``estimate``, ``votes``, or ``prior`` (none).
    tau, tau_low, tau_high : float
        Between-annotator standard deviation of the true biases, with its 95 % confidence interval. With fewer than two
        estimates, tau is NaN and the interval is (0, inf).
    reliability : float
        Share of the variance of the estimates that is due to true differences, 0 to 1: the mean of tau^2 / (tau^2 +
        se^2) over annotators with an estimate. NaN if tau is NaN.
    estimate, error : array of shape (m,)
        Normal estimates and standard errors that contain the same information as the votes; NaN without votes.
    """

    posterior: Mixture
    basis: Array
    tau: float
    tau_low: float
    tau_high: float
    reliability: float
    estimate: Floats
    error: Floats


def _without_estimates(m: int) -> ShrunkenBiases:
    """Return the result for a pool without any estimate."""
    nothing = np.full((m, 1), np.nan)
    posterior = Mixture(nothing, nothing, np.ones((m, 1)))
    basis = np.full(m, "prior", object)
    return ShrunkenBiases(posterior, basis, np.nan, 0.0, np.inf, np.nan, *np.full((2, m), np.nan))


# -- from estimates ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TauLikelihood:
    r"""Restricted likelihood of tau (the standard deviation of true biases) for estimates with known errors.

    .. math:: \hat d_k \sim N(\mu, \tau^2 + s_k^2), \qquad \mu \text{ integrated out under a flat prior}
    """

    value: Floats
    se: Floats

    @cached_property
    def scale(self) -> float:
        """Square root of the harmonic mean of the squared standard errors."""
        return float(1 / np.sqrt(np.mean(1 / self.se**2)))

    def log_likelihood(self, tau: ArrayLike) -> Floats:
        """Log-likelihood of each value of tau, up to an additive constant."""
        between = np.asarray(tau, float)[..., None] ** 2
        weight = 1 / (between + self.se**2)
        total = weight.sum(axis=-1)
        center = (weight * self.value).sum(axis=-1) / total
        squares = weight * (self.value - center[..., None]) ** 2
        log_weight = np.log(weight).sum(axis=-1) - np.log(total)
        return np.asarray((log_weight - squares.sum(axis=-1)) / 2)

    def at(self, share: float | Floats) -> Floats:
        """Log-likelihood of each value of tau / (scale + tau)."""
        return self.log_likelihood(_tau_of_share(np.asarray(share, float), self.scale))

    @cached_property
    def share(self) -> float:
        """Most likely value of tau / (scale + tau)."""
        shares = np.linspace(0.0, 1.0, 101)[:-1]
        best = int(self.at(shares).argmax())
        peak = minimize_scalar(
            lambda share: -float(self.at(share)),
            bounds=(shares[max(best - 1, 0)], min(shares[best] + 0.01, 1 - 1e-6)),
            method="bounded",
            options={"xatol": 1e-8},
        ).x
        return float(peak) if self.at(peak) > self.at(0.0) else 0.0

    def ends(self, drop: float) -> Floats:
        """Return the two values of tau / (scale + tau) at which the log-likelihood is ``drop`` below its maximum.

        If the log-likelihood decreases by less than ``drop`` on one side of the maximum, the function returns the end
        of the range on this side.
        """

        def height(share: float) -> float:
            return float(self.at(share) - self.at(self.share)) + drop

        def end(farthest: float) -> float:
            if height(farthest) >= 0:
                return farthest
            return float(brentq(height, *sorted((farthest, self.share))))

        return np.array([end(0.0), end(1 - 1e-12)])


def _tau_of_share(share: _Share, scale: float) -> _Share:
    """Convert share = tau / (scale + tau), a number between 0 and 1, to tau."""
    return scale * share / (1 - share)


def _log_flat_prior(shares: Floats) -> Floats:
    r"""Log-prior of the given values of tau / (scale + tau) under a flat prior density of tau^2.

    In terms of share = tau / (scale + tau), a flat density of tau^2 is proportional to share / (1 - share)^3.

    The prior does not depend on the unit of tau. Among flat priors, only a flat prior of :math:`\tau^2` gives credible
    intervals of biases with the stated coverage (Morris and Tang, 2011, "Estimating random effects via adjustment for
    density maximization"). With at most three annotators, the votes do not outweigh the prior, so tau may be large and
    deviations are hardly shrunk.
    """
    return np.asarray(np.log(shares / (1 - shares) ** 3 * np.gradient(shares)))


def shrink_normal(deviation: ArrayLike, se: ArrayLike) -> ShrunkenBiases:
    r"""Shrink deviations with estimated priors, and account for uncertainty about tau, the prior standard deviation.

    .. math:: \hat d_k \sim N(d_k, s_k^2), \qquad d_k \sim N(\mu, \tau^2)

    The posterior is an average over this normal prior and over priors that allow a few annotators large biases
    (`_average_priors`). Tau is estimated under the normal prior.

    The estimate of tau maximizes the restricted likelihood (mu is integrated out under a flat prior). The confidence
    interval of tau contains the values whose log-likelihood is less than 1.92 below the maximum. The posterior of d_k
    is averaged over all values of tau under a flat density of tau squared, instead of using only the estimate. With few
    votes or annotators, the credible intervals are therefore wider than those of plain empirical Bayes.

    Both arrays have the shape (m,). An estimate counts as missing if it is not finite or has no standard error.

    Examples
    --------
    The first two estimates are equal. The estimate with the small error is hardly shrunk, and the other is shrunk:

    >>> shrunken = shrink_normal([1.0, 1.0, -0.9, -0.6, 0.5, -1.0], [0.1, 2.0, 0.1, 0.1, 0.1, 0.1])
    >>> [bool(shrunken.posterior.mean[k] > 0.5) for k in (0, 1)]
    [True, False]
    """
    value, error = np.asarray(deviation, float), np.asarray(se, float)
    known = np.isfinite(value) & (error > 0)
    if not known.any():
        return _without_estimates(len(value))
    likelihood = TauLikelihood(value[known], error[known])
    (low, high), tau_interval = (0.0, 1.0), (np.nan, 0.0, np.inf)
    if known.sum() > 1:
        low, high = likelihood.ends(NEGLIGIBLE)
        ends = np.append(likelihood.share, likelihood.ends(DROP))
        tau, lowest, highest = _tau_of_share(ends, likelihood.scale)
        tau_interval = tau, lowest, highest
    middles = (np.arange(TAU_NODES) + 0.5) / TAU_NODES
    shares = low + (high - low) * middles
    taus, log_prior = _tau_of_share(shares, likelihood.scale), _log_flat_prior(shares)
    weight = 1 / (taus**2 + likelihood.se[:, None] ** 2)
    total = weight.sum(axis=0)
    center = likelihood.value @ weight / total
    estimates = (each[:, None] for each in _fill_missing(likelihood, known))
    means, variances = _shrink_to_center(center, total, taus, *estimates)
    masses = softmax(likelihood.log_likelihood(taus) + log_prior)
    weights = np.tile(masses, (len(known), 1))
    normal = Mixture(means, np.sqrt(variances), weights)
    return _average_priors("estimate", known, normal, likelihood, taus, log_prior, tau_interval)


def _shrink_to_center(
    center: Floats, total: Floats, sd: Floats, value: Floats, se: Floats
) -> tuple[Floats, Floats]:
    r"""Posterior mean :math:`B_k \hat d_k + (1 - B_k) \hat\mu`, and posterior variance, under a normal prior."""
    kept = sd**2 / (sd**2 + se**2)
    mean = kept * value + (1 - kept) * center
    return mean, kept * se**2 + (1 - kept) ** 2 / total


def _fill_missing(likelihood: TauLikelihood, known: Bools) -> tuple[Floats, Floats]:
    """Return estimates and errors for all annotators; a missing estimate is set to 0 with a very large error."""
    value = np.zeros(len(known))
    se = value + 1e6 * likelihood.se.max()
    value[known], se[known] = likelihood.value, likelihood.se
    return value, se


def _priors(taus: Floats) -> Floats:
    """Shares, offsets and standard deviations of the priors, which are mixtures of three normal distributions.

    The arrays of shares, offsets and standard deviations have the shape (3, n_priors, n_taus, 1). Offsets are measured
    from the center of the prior. The first prior is normal. The other priors allow a few annotators to have large
    deviations, either around the center of the other annotators or on both sides of this center.
    """
    parts: list[list[tuple[float, float, float]]] = [[(1, 0, 0), (0, 0, 0), (1, 1, 1)]]
    for far, ratio in product(FAR_SHARES, FAR_RATIOS):
        near, half = 1 - far, far / 2
        parts.append([(near, far, 0), (0, 0, 0), (1, ratio, 1)])
        parts.append([(near, half, half), (0, -ratio, ratio), (1, 1, 1)])
    share, offset, sd = np.array(parts, float).transpose(1, 2, 0)[..., None]
    square = (share * (sd**2 + offset**2)).sum(axis=0)
    narrow = taus / np.sqrt(square)
    share = share * np.ones_like(taus)
    return np.stack([share, offset * narrow, sd * narrow])[..., None]


def _weigh_parts(
    prior: Floats, value: Floats, se: Floats, center: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return precisions and log-likelihoods of the estimates under each prior, and probabilities of the components."""
    share, offset, sd = prior
    weight = 1 / (sd**2 + se**2)
    apart = value - offset - center[..., None]
    with np.errstate(divide="ignore"):
        part = np.log(share) + (np.log(weight) - weight * apart**2) / 2
    highest = part.max(axis=0)
    chance = np.exp(part - highest)
    total = chance.sum(axis=0)
    return weight, highest + np.log(total), chance / total


def _average_priors(
    basis: str,
    known: Bools,
    normal: Mixture,
    likelihood: TauLikelihood,
    taus: Floats,
    log_prior: Floats,
    tau_interval: tuple[float, float, float],
) -> ShrunkenBiases:
    r"""Average the posteriors under a normal prior and under priors that allow a few large biases.

    .. math:: d_k \sim (1 - \pi) N(\mu, t^2) + \pi N(\mu, r^2 t^2) \quad\text{or}\quad
        (1 - \pi) N(\mu, t^2) + \tfrac{\pi}{2} N(\mu - r t, t^2) + \tfrac{\pi}{2} N(\mu + r t, t^2)

    Here t is chosen so that the prior has the standard deviation tau. The shares pi are ``FAR_SHARES``, and the ratios
    r are ``FAR_RATIOS``. All priors, including the normal prior, have the same probability and the same prior of tau.
    If a few annotators are far from a narrow group of others, a normal prior overestimates the standard deviation
    within the group and the deviations of its members. EM finds the most likely center mu, and mu has the error of a
    mean. With a single estimate, only the normal prior is used.
    """
    annotator_basis = np.where(known, basis, "prior").astype(object)
    between = tau_interval[0] ** 2
    reliability = float(np.mean(between / (between + likelihood.se**2)))
    estimates = np.full((2, len(known)), np.nan)
    estimates[:, known] = likelihood.value, likelihood.se
    if len(likelihood.value) == 1:
        return ShrunkenBiases(normal, annotator_basis, *tau_interval, reliability, *estimates)
    # the weights of the priors would hardly change with a larger sample of annotators
    step = -(-len(likelihood.value) // LARGEST_SAMPLE)
    value, se, prior = likelihood.value[::step], likelihood.se[::step], _priors(taus)
    center = np.full(prior.shape[2:4], np.median(value))
    for _ in range(CENTERINGS):
        weight, log_likelihood, chance = _weigh_parts(prior, value, se, center)
        weight = weight * chance
        total = weight.sum(axis=(0, 3))
        center = (weight * (value - prior[1])).sum(axis=(0, 3)) / total
    log_marginal = log_likelihood.sum(axis=-1) - np.log(total) / 2
    masses = softmax(log_marginal + log_prior)
    prior_masses = masses.sum(axis=1)
    parts = [replace(normal, weights=prior_masses[0] * normal.weights)]
    value, se = _fill_missing(likelihood, known)
    for i in 1 + np.flatnonzero(prior_masses[1:] > UNLIKELY):
        _, offset, sd = one = prior[:, :, i]
        chance = _weigh_parts(one, value, se, center[i])[2] * masses[i][:, None]
        around, precision = center[i][:, None], step * total[i][:, None]
        mean, variance = _shrink_to_center(around + offset, precision, sd, value, se)
        mass = chance.sum(axis=1)
        safe = np.maximum(mass, 1e-300)
        square = (chance * (mean**2 + variance)).sum(axis=1) / safe
        mean = (chance * mean).sum(axis=1) / safe
        variance = np.maximum(square - mean**2, 1e-12 * taus.max() ** 2)
        parts.append(Mixture(mean.T, np.sqrt(variance).T, mass.T))
    posterior = _join_mixtures(parts)
    return ShrunkenBiases(posterior, annotator_basis, *tau_interval, reliability, *estimates)


def _join_mixtures(parts: list[Mixture]) -> Mixture:
    """Join mixtures into one mixture of all components, with weights that sum to 1."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    means, sds, weights = (np.hstack(each) for each in columns)
    return Mixture(means, sds, weights / weights.sum(axis=1, keepdims=True))


def average_posteriors(one: ShrunkenBiases, other: ShrunkenBiases, chance: float) -> ShrunkenBiases:
    """Average two posteriors; ``chance`` is the probability that the second posterior is correct for all annotators.

    The result takes tau from the more probable posterior. The interval of tau covers the intervals of all posteriors
    with a probability above 10 %.
    """
    both = (one, 1 - chance), (other, chance)
    likely = [shrunken for shrunken, share in both if share > 0.1]
    parts = [
        replace(shrunken.posterior, weights=share * shrunken.posterior.weights)
        for shrunken, share in both
    ]
    return replace(
        other if chance > 0.5 else one,
        posterior=_join_mixtures(parts),
        basis=one.basis,
        tau_low=min(shrunken.tau_low for shrunken in likely),
        tau_high=max(shrunken.tau_high for shrunken in likely),
    )


# -- from votes ----------------------------------------------------------------------------------------------


class _VotePool:
    """Informative votes of a pool, with the attribute and group of every bias that has an informative vote.

    A group consists of biases toward the same attribute whose annotators the votes compare. ``companions`` contains
    the size of each bias's group. The size is infinite if votes on one comparison differ in the attribute; the shared
    bias is then identified. ``scale`` is the typical error of a bias toward each attribute if all biases are equal.
    ``point`` is the last expansion of the likelihood; the search for the next mode starts at this point. The likelihood
    is raised to the power of 1 / ``dispersion``.

    Votes of one annotator with the same differences have the same code, and votes on a comparison are sorted by code.
    Comparisons with the same codes and the same number of wins have the same moments. Therefore, ``model`` and
    ``design`` contain one comparison of each ``kind``, and ``count`` is the number of comparisons of the kind.
    ``squares`` contains the squared entries of the design matrix. For each number of votes, ``alike`` sums the
    covariances of comparisons with the same codes; ``sums`` adds the result to the entries of the information matrix.
    """

    def __init__(self, votes: ArrangedVotes) -> None:
        self.informed = informed = votes.count_by_annotator(votes.informative) > 0
        known = find_identified_biases(votes, informed, by_rank=False)
        self.attribute, self.group = known.attribute, known.label
        self.companions = np.where(known.absolute, np.inf, known.member @ known.size)
        own = np.column_stack([votes.annotator, votes.delta])
        code, order = np.empty(len(own), np.intp), np.lexsort(own.T)
        code[order] = np.append(0, (np.diff(own[order], axis=0) != 0).any(axis=1).cumsum())
        order = np.lexsort((code, votes.comparison))
        code, fields = code[order], ("row", "sign", "annotator", "delta", "informative")
        self.votes = replace(votes, **{name: getattr(votes, name)[order] for name in fields})
        design, won = self.votes.design(informed), (self.votes.sign > 0).astype(float)
        self.wins, n_wins = design.T @ won, votes.blocks.sums(won).astype(np.intp)
        each, with_wins = np.arange(len(n_wins)), np.append(code, code.max() + 1 + n_wins)
        first, self.kind = _find_kinds(np.append(votes.comparison, each), with_wins)
        self.blocks, self.rows = votes.blocks.select(first)
        self.model = KnownWins(self.blocks, self.votes.sign[self.rows])
        self.dispersion, self.design = 1.0, design[self.rows]
        self.squares, self.count = self.design.power(2), np.bincount(self.kind)
        self.sums_by_bias, self.sums_of_squares = self.design.T, self.squares.T
        self.count_of_votes = self.count[self.blocks.comparison]
        self._add_pairs(code[self.rows])
        self.paths: dict[tuple[float, ...], dict[float, _PosteriorMoments]] = {}
        self.point = self.expanded(np.zeros(design.shape[1]))
        total = np.bincount(self.attribute, self.point.information[self.diagonal], informed.shape[1])
        n_biases = np.maximum(informed.sum(axis=0), 1)
        self.scale = np.sqrt(n_biases / np.where(total > 0, total, 1.0))

    def _add_pairs(self, code: Ints) -> None:
        """Determine the entries of the information matrix to which the covariance of each pair of votes contributes."""
        first, same = _find_kinds(self.blocks.comparison, code)
        self.alike = []
        for size in np.unique(self.blocks.sizes).tolist():
            of = np.flatnonzero(self.blocks.sizes == size)
            pairs = self.blocks.pairs(
                slice(self.blocks.starts[of[0]], self.blocks.starts[of[-1]] + size)
            )
            cells = same[of] - same[of[0]], np.arange(len(of))
            self.alike.append((pairs, sparse.csr_array((1.0 * self.count[of], cells))))
        blocks, votes = self.blocks.select(first)
        row, column = blocks.matrix(np.ones(blocks.n_pairs)).tocoo().coords
        n_biases, annotator = self.design.shape[1], self.votes.annotator[self.rows[votes]]
        delta = (self.votes.delta[self.rows[votes]] * self.informed[annotator]).T
        bias = (np.cumsum(self.informed).reshape(self.informed.shape) - 1)[annotator].T
        entries = []
        for i, j in product(range(len(delta)), repeat=2):
            weight = delta[i][row] * delta[j][column]
            pair = np.flatnonzero(weight)
            place = bias[i][row[pair]] * n_biases + bias[j][column[pair]]
            entries.append((weight[pair], place, pair))
        weight, place, pair = map(np.concatenate, zip(*entries, strict=True))
        places, place = np.unique(place, return_inverse=True)
        rows, columns = np.divmod(places, n_biases)
        self.diagonal = np.flatnonzero(rows == columns)
        places = sparse.coo_array((np.ones(len(rows)), (rows, columns)), (n_biases, n_biases))
        self.information = sparse.csr_array(places)
        self.sums = sparse.csr_array((weight, (place, pair)), (len(rows), blocks.n_pairs))

    def curvature(self, precision: Floats) -> sparse.csr_array:
        """Information matrix of the biases at ``point``, plus the prior ``precision`` of the biases."""
        curvature = copy(self.information)
        curvature.data = self.point.information / self.dispersion
        curvature.data[self.diagonal] += precision
        return curvature

    def expanded(self, biases: Floats) -> _Point:
        """Compute the log-likelihood and its derivatives at ``biases``, with a dispersion of 1."""
        moments = self.model.winners(self.design @ biases)
        value = float(self.wins @ biases - self.count @ moments.log_total)
        by_size = [(adds, moments.covariance[pairs]) for pairs, adds in self.alike]
        added = [(adds @ one.reshape(adds.shape[1], -1)).ravel() for adds, one in by_size]
        gradient = self.wins - self.sums_by_bias @ (self.count_of_votes * moments.chance)
        return _Point(biases, value, gradient, self.sums @ np.concatenate(added), moments)


class _Point(NamedTuple):
    """Biases, with the log-likelihood, its derivatives and the moments of the votes for response a."""

    biases: Floats
    value: float
    gradient: Floats
    information: Floats
    winners: Winners


def _find_kinds(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Assign the same kind to groups in which each value occurs equally often.

    The function returns the index of the first group of each kind and the kind of each group.

    The function replaces each value with a random 64-bit number, and compares the sums of the groups. The probability
    that two of a million different groups have the same sum is below 1e-7.
    """
    numbers = np.random.default_rng(0).integers(2**64, size=value.max() + 1, dtype=np.uint64)
    total = np.zeros(group.max() + 1, np.uint64)
    np.add.at(total, group, numbers[value])
    _, first, kind = np.unique(total, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[kind]


def shrink_votes(
    votes: Votes, clusters: ArrayLike | None = None, wanted: ArrayLike = True
) -> tuple[ShrunkenBiases, ...]:
    r"""Estimate tau and posterior deviations from the conditional likelihood of the votes, integrated over the biases.

    .. math:: L(\tau) = \int \prod_c P(W_c \mid |W_c|, \theta) \prod_k N(\theta_k; \mu, \tau^2) \, d\theta

    The integral is Laplace's approximation around the mode. For each bias, the function corrects the approximation by
    the ratio of the exact integral to Laplace's, for a logistic likelihood with the same first four derivatives. The
    posterior is averaged over tau under a flat density of tau squared. In simulations
    (`docs/results/audit_statistics.md`), these intervals have the stated coverage if annotators have ten or more
    informative votes. Intervals from estimates with normal errors do not have the stated coverage.

    The arguments are those of `badpo.estimation.fit.fit_conditional`. With ``clusters``, the likelihood is raised to
    the power of 1 / phi, where phi is the ratio of the variance of the cluster scores to the variance implied by the
    model (`_estimate_dispersion`). If biases differ between prompts, errors are therefore larger, and tau and the
    biases are means over all prompts.

    ``wanted`` marks the attributes whose posterior is needed; the result has no estimate for the other attributes.

    Deviations are measured from the mean of the annotators in the same component. ``basis`` is "votes", or "prior" for
    an annotator without an informative vote. With several attributes, the result for each attribute is averaged over
    the tau of this attribute, with the tau of each other attribute at its maximum. Anchors are not supported. If the
    votes identify the shared bias of an attribute, use `shrink_normal`; `shrink_votes` would shrink biases toward zero
    instead of toward the mean.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bias = np.repeat([-1.0, 1.0], 10)
    >>> who = np.array([rng.permutation(20)[:4] for _ in range(300)]).ravel()
    >>> sign = np.where(rng.random(1200) < 1 / (1 + np.exp(-bias[who])), 1, -1)
    >>> shrunken, = shrink_votes(Votes(np.repeat(np.arange(300), 4), sign, who, np.ones((1200, 1)), 20))
    >>> low, high = np.split(shrunken.posterior.mean, 2)
    >>> bool(low.max() < 0 < high.min()), bool(shrunken.tau_low < 1 < shrunken.tau_high)
    (True, True)
    """
    arranged = arrange_votes(votes)
    result = [_without_estimates(votes.n_annotators)] * arranged.delta.shape[1]
    if not len(arranged.row):
        return tuple(result)
    pool = _VotePool(arranged)
    taus, dispersion = pool.scale.copy(), np.ones(len(pool.scale))
    known = np.flatnonzero(pool.informed.sum(axis=0) > 1).tolist()
    prompt = None if clusters is None else np.unique(clusters, return_inverse=True)[1]
    for _ in range(min(len(known), 2) if prompt is None else ROUNDS_OF_CLUSTERS):
        before = dispersion.copy()
        for j in known:
            pool.dispersion = dispersion[j]
            at = partial(_posterior_at_share, pool, taus, j)
            best = minimize_scalar(
                lambda share, at=at: -at(share).log_marginal,
                bounds=(NARROWEST, WIDEST),
                method="bounded",
                options={"xatol": 1e-2},
            )
            if prompt is not None:
                dispersion[j] = _estimate_dispersion(pool, j, at(best.x), prompt)
            taus[j] = _tau_of_share(best.x, pool.scale[j])
        if prompt is not None and np.abs(dispersion - before).max() < SETTLED:
            break
    is_wanted = np.broadcast_to(wanted, len(result))
    for j in known:
        if not is_wanted[j]:
            continue
        pool.dispersion = dispersion[j]
        result[j] = _shrink_attribute(pool, taus, j)
    return tuple(result)


class _PosteriorMoments(NamedTuple):
    """Posterior mode, mean and standard deviation of every bias for known taus, and log marginal likelihood."""

    mode: Floats
    mean: Floats
    sd: Floats
    log_marginal: float


def _posterior_at_share(pool: _VotePool, taus: Floats, j: int, share: float) -> _PosteriorMoments:
    """Compute the posterior of the biases for known values of tau, one for each attribute.

    For attribute j, ``share`` is tau / (scale + tau), a number between 0 and 1. For the other attributes, ``taus``
    contains tau.

    The search for the posterior mode starts at an interpolated mode, from a polynomial in ``share`` through the modes
    for the nearest values of ``share``. The interpolated mode is usually so close to the exact mode that one expansion
    of the likelihood is enough.
    """
    path = pool.paths.setdefault((j, pool.dispersion, *np.delete(taus, j)), {})
    if share not in path:
        near = sorted(path, key=lambda one: abs(one - share))[:MOST_NEAR]
        if len(near) > 1:
            parts = [prod((share - b) / (a - b) for b in near if b != a) for a in near]
            modes = [path[one].mode for one in near]
            pool.point = pool.expanded(np.array(parts) @ np.array(modes))
        new_taus = taus.copy()
        new_taus[j] = _tau_of_share(share, pool.scale[j])
        path[share] = _find_posterior(pool, new_taus)
    return path[share]


def _estimate_dispersion(pool: _VotePool, j: int, moments: _PosteriorMoments, cluster: Ints) -> float:
    r"""Ratio of the cluster scores' variance to the variance that the model implies; the result is at least 1.

    .. math:: \phi = \frac{\sum_{kg} \big(s_{kg}^2 + \sum_l h_{kl,g}^2 v_l\big)}{\sum_{kg} h_{kk,g}}

    Here k numbers the biases toward attribute j, s is the score of bias k in cluster g, h is the information in the
    cluster, and v are the posterior variances. At the mode, the scores have too little variance, because each bias is
    fitted to its own votes and depends on the votes of others on the same comparisons. The second term adds the missing
    variance.
    """
    votes, n_biases = pool.votes, pool.design.shape[1]
    saw = votes.design(pool.informed).tocoo()
    pairs = saw.col + n_biases * cluster[votes.row][saw.row]
    cells, cell = np.unique(pairs, return_inverse=True)
    bias, apart = cells % n_biases, sparse.csr_array((saw.data, (saw.row, cell)))
    own_cells = np.flatnonzero(pool.attribute[bias] == j)
    own = sparse.csr_array(apart[:, own_cells].T)
    _, same = pool.blocks.select(pool.kind)
    chance, covariance, _ = pool.expanded(moments.mode).winners
    score = own @ ((votes.sign > 0) - chance[same])
    covariance_of_votes = votes.blocks.matrix(pool.blocks.matrix(covariance)[same].data)
    seen = own @ covariance_of_votes
    squares = score**2 + (seen @ apart).power(2) @ moments.sd[bias] ** 2
    expected = float(seen.multiply(own).sum())
    return max(float(squares.sum()) / expected, 1.0) if expected > 0 else 1.0


def _shrink_attribute(pool: _VotePool, all_taus: Floats, j: int) -> ShrunkenBiases:
    """Average the posterior of the biases toward attribute j over values of tau."""
    scale, known, members = pool.scale[j], pool.informed[:, j], pool.attribute == j
    at, top = partial(_posterior_at_share, pool, all_taus, j), all_taus[j] / (scale + all_taus[j])
    # widen the range of shares, within the limits, until little posterior mass is outside
    least, ends = at(top).log_marginal - 4.5, []
    for farthest in (NARROWEST - top, WIDEST - top):
        reach = 0.05 * farthest
        while abs(reach) < abs(farthest) and at(top + reach).log_marginal > least:
            reach *= 1.7
        ends.append(top + min(reach, farthest, key=abs))
    shares = np.unique(np.append(np.linspace(min(ends), max(ends), NODES), top))
    for share in sorted(shares, key=lambda share: abs(share - top)):
        at(share)
    moments = zip(*map(at, shares), strict=True)
    _, mean, sd, log_marginal = (np.stack(each, axis=-1) for each in moments)
    mean, sd = mean[members], sd[members]
    taus, log_prior = _tau_of_share(shares, scale), _log_flat_prior(shares)
    masses = softmax(log_marginal + log_prior)
    sds, weights = (np.tile(each, (len(known), 1)) for each in (taus, masses))
    means = np.zeros(sds.shape)
    means[known], sds[known] = mean, sd
    # find normal estimates whose posteriors under the prior N(0, tau^2) have the computed moments
    best = np.abs(taus - np.sqrt(masses @ taus**2)).argmin()
    prior_precision, own = taus[best] ** -2, sd[:, best] ** -2
    precision = np.maximum(own - prior_precision, 1e-6 * prior_precision)
    likelihood = TauLikelihood(mean[:, best] * own / precision, 1 / np.sqrt(precision))
    fine = np.linspace(shares[0], shares[-1], 2001)
    curve = PchipInterpolator(shares, log_marginal)(fine)
    first, last = fine[curve >= curve.max() - DROP][[0, -1]]
    low = _tau_of_share(first, scale) if first > NARROWEST + 1e-6 else 0.0
    high = _tau_of_share(last, scale) if last < WIDEST - 1e-6 else np.inf
    tau_interval = _tau_of_share(fine[curve.argmax()], scale), low, high
    normal = Mixture(means, sds, weights)
    return _average_priors("votes", known, normal, likelihood, taus, log_prior, tau_interval)


# -- posterior for known taus ----------------------------------------------------------------------------------


def _find_posterior(pool: _VotePool, taus: Floats) -> _PosteriorMoments:
    """Find the posterior mode of the biases by Newton's method, and compute the posterior moments around the mode."""
    precision, phi = 1 / taus[pool.attribute] ** 2, pool.dispersion
    is_dense = len(precision) <= LARGEST_DENSE

    def height(point: _Point) -> float:
        return point.value / phi - float(precision @ point.biases**2) / 2

    for _ in range(NEWTON_STEPS):
        here, value = pool.point, height(pool.point)
        curvature = pool.curvature(precision)
        gradient = here.gradient / phi - precision * here.biases
        if is_dense:
            inverse, log_determinant = inverted(curvature.toarray())
            step = inverse @ gradient
        else:
            scaling = sparse.diags_array(1 / curvature.diagonal())
            step = cg(curvature, gradient, rtol=1e-8, M=scaling)[0]
        if gradient @ step < NEAR_ENOUGH * len(step):
            break
        for halvings in range(MOST_HALVINGS):
            pool.point = pool.expanded(here.biases + 0.5**halvings * step)
            if height(pool.point) >= value - 1e-9 * abs(value):
                break
    mode = here.biases + step
    shared = 1 / (precision * pool.companions)
    if is_dense:
        variance = np.diag(inverse) - shared
    else:
        variance, log_determinant = _approximate_variances(pool, curvature, shared)
    variance = np.maximum(variance, 1e-12)
    mean, sd, correction = _correct_laplace(pool, mode, variance, precision)
    laplace = gradient @ step + np.log(precision).sum() - log_determinant
    return _PosteriorMoments(mode, mean, sd, float(value + correction + laplace / 2))


def _approximate_variances(
    pool: _VotePool, curvature: sparse.csr_array, shared: Floats
) -> tuple[Floats, float]:
    """Return the variance of every bias around the mean of its group, and the log-determinant of the precision matrix.

    In a large pool, most pairs of annotators share few comparisons. The approximate variance of a bias therefore uses
    only its neighbors (biases that share comparisons with it). The approximation ignores comparisons that the neighbors
    share with other biases. In groups of at most ``FEW`` biases, the variances are exact.
    """
    diagonal = curvature.diagonal()
    neighbours = curvature.power(2) @ (1 / diagonal) / diagonal - 1
    left = 1 - np.minimum(neighbours, MOST_EXPLAINED)
    variance = 1 / (diagonal * left)
    log_determinants = np.log(diagonal) + np.log(left) / 2
    for group in np.unique(pool.group[pool.companions <= FEW]):
        members = np.flatnonzero(pool.group == group)
        inverse, log_determinant = inverted(curvature[members][:, members].toarray())
        variance[members] = np.diag(inverse) - shared[members]
        log_determinants[members] = log_determinant / len(members)
    return variance, float(log_determinants.sum())


def inverted(positive: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant of a positive definite matrix."""
    half = float(np.log(np.diag(np.linalg.cholesky(positive))).sum())
    return np.asarray(np.linalg.inv(positive), dtype=np.float64), 2 * half


def _correct_laplace(
    pool: _VotePool, mode: Floats, variance: Floats, precision: Floats
) -> tuple[Floats, Floats, float]:
    r"""Return mean and sd of every bias without a normal approximation, and correct the log marginal likelihood.

    The likelihood of a bias is approximated by the likelihood of hypothetical logistic votes with a fitted number,
    fitted odds and a fitted attribute difference (``unit``). At the mode, the log-likelihood of the hypothetical votes
    has the same first four derivatives as the actual log-likelihood. The third and fourth derivatives are averaged over
    the other biases. The joint cumulants of two votes on the same comparison follow from their probabilities p and
    their covariance c: :math:`\kappa_{iik} = (1 - 2 p_i) c_{ik}` and :math:`\kappa_{iikk} = (1 - 2 p_i)(1 - 2 p_k)
    c_{ik} - 2 c_{ik}^2`.
    """
    chance, covariance, _ = pool.point.winners
    skew, vote_variance = 1 - 2 * chance, pool.squares @ variance
    once = pool.blocks.matrix(covariance) @ (skew * vote_variance) / pool.dispersion
    twice = pool.blocks.matrix(covariance**2) @ vote_variance / pool.dispersion
    information = np.maximum(1 / variance - precision, 1e-9)
    share = variance * information
    third = -(pool.sums_by_bias @ (pool.count_of_votes * once)) / share
    fourth = pool.sums_of_squares @ (pool.count_of_votes * (2 * twice - skew * once)) / share
    unit = 2 * np.maximum(fourth, 0.0) + 3 * third**2
    unit = np.sqrt(np.maximum(unit, 1e-6))
    chance = (1 + third / unit) / 2
    n_votes = information / (unit**2 * chance * (1 - chance))
    wins = n_votes * chance + precision * mode / unit

    def log_posterior(bias: Floats) -> Floats:
        x = logit(chance) + unit * (bias - mode)
        return np.asarray(wins * x - n_votes * np.logaddexp(0, x) - precision * bias**2 / 2)

    # one row for each quadrature point
    bias = mode + np.sqrt(variance) * _POINTS
    log_ratio = log_posterior(bias) - log_posterior(mode) + _POINTS**2 / 2
    mass = np.exp(log_ratio) * _WEIGHTS
    total = mass.sum(axis=0)
    exact = Mixture(bias.T, np.zeros_like(bias.T), (mass / total).T)
    return exact.mean, exact.sd, float(np.log(total).sum())


# -- flags ---------------------------------------------------------------------------------------------------


def probability_exceeds(shrunk: ShrunkenBiases, rho: float) -> Floats:
    r"""Posterior probability that the absolute deviation of each annotator exceeds rho.

    .. math:: p_k = P(|d_k| > \rho \mid \text{all votes})

    Examples
    --------
    >>> shrunken = shrink_normal([1.5, 0.1, -0.1, -0.2, -1.3], [0.1] * 5)
    >>> probability_exceeds(shrunken, 0.5).round(2)
    array([1., 0., 0., 0., 1.])
    """
    inside = shrunk.posterior.cdf(rho) - shrunk.posterior.cdf(-rho)
    return np.clip(1 - inside, 0.0, 1.0)


def bayesian_fdr(prob_exceeds: ArrayLike, fdr: float) -> Bools:
    r"""Return a mask of the longest list of annotators with an expected share of false flags of at most ``fdr``.

    Annotators are added to the list in order of decreasing probability :math:`p_k` of a large deviation, while the mean
    of :math:`1 - p_k` over the list is at most ``fdr``. Annotators with :math:`p_k < 1/2` are never added. Without the
    limit of 1/2, a list with many certain flags could include annotators whose deviation is probably small. If several
    annotators have the same probability, the list contains all of them or none.

    Examples
    --------
    The probabilities of an error are 0.01, 0.15 and 0.4; the mean of the first two is 0.08, and the mean of all three
    is 0.19:

    >>> bayesian_fdr([0.99, 0.85, 0.6, np.nan], 0.10)
    array([ True,  True, False, False])
    """
    chance = np.asarray(prob_exceeds, float)
    ranked = np.sort(chance[~np.isnan(chance)])[::-1]
    mistakes = np.cumsum(1 - ranked) / np.arange(1, len(ranked) + 1)
    last_of_tie = np.append(ranked[1:] < ranked[:-1], True)[: len(ranked)]
    allowed = ranked[(mistakes <= fdr) & last_of_tie & (ranked >= LIKELY)]
    return np.asarray(chance >= allowed.min(initial=np.inf))


def benjamini_hochberg(deviation: ArrayLike, se: ArrayLike) -> Floats:
    r"""Q-value of the hypothesis that an annotator's bias equals the mean bias of the pool exactly, for each annotator.

    The function adjusts the two-sided normal p-values of :math:`\hat d_k / s_k` by the step-up rule of Benjamini and
    Hochberg. If annotators with a q-value of at most 0.1 are flagged, the expected share of false flags is at most 10
    %, **provided that all other annotators have the same bias**. The q-value is NaN for an annotator without a finite
    estimate.

    Examples
    --------
    >>> benjamini_hochberg([3.0, 0.0, 2.0, np.nan], [1.0, 1.0, 1.0, 1.0]).round(4)
    array([0.0081, 1.    , 0.0683,    nan])
    """
    value, error = np.asarray(deviation, float), np.asarray(se, float)
    is_known = np.isfinite(value) & (error > 0)
    ratio = np.divide(value, error, out=np.full(len(value), np.nan), where=is_known)
    return q_values(2 * ndtr(-np.abs(ratio)))


def q_values(p_values: Floats) -> Floats:
    """Benjamini-Hochberg q-values; NaN for p-values that are NaN."""
    q = np.full(len(p_values), np.nan)
    is_known = ~np.isnan(p_values)
    q[is_known] = false_discovery_control(p_values[is_known])
    return q
