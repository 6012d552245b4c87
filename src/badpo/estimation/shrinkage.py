r"""Empirical Bayes: shrink every annotator's deviation toward the pool, and flag large deviations.

There are two ways to a posterior. `shrink_normal` treats estimates as :math:`\hat d_k \sim N(d_k, s_k^2)`, with true
deviations from a normal prior whose standard deviation tau is estimated from the same estimates. With a dozen
informative votes each, however, estimates are inflated, their errors grow with them, some are infinite, and the
estimate of tau is biased. `shrink_votes` therefore integrates the biases out of the conditional likelihood. For an
annotator without an estimate the posterior is the prior, and ``basis`` says so.

In a real pool all annotators differ a little, so a test of exact equality flags everyone if there are enough votes.
Flags therefore use the posterior probability that a deviation exceeds a relevant size. The test of equality remains
available for pools in which all others may be equal.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse.linalg import cg
from scipy.special import chdtri, logit, ndtr, ndtri, softmax
from scipy.stats import false_discovery_control

from badpo.estimation.conditional_likelihood import KnownWins, Winners
from badpo.estimation.fit import LeanVotes, Votes, identified_leans, lean_votes
from badpo.theory import Bools, Floats, Ints

# Decrease of the log-likelihood from its maximum at the ends of a 95 % interval, and at the ends of its relevant range.
DROP = float(chdtri(1, 0.05)) / 2
NEGLIGIBLE = 12.0
SPREAD_NODES = 31
BISECTIONS = 30
# Shares of annotators with a large deviation, and the ratios of their standard deviation to that of the others.
FAR_SHARES, FAR_RATIOS = (0.03, 0.1, 0.3), (2.5, 4.5, 8.0)
CENTERINGS = 8
UNLIKELY = 1e-3
LARGEST_SAMPLE = 1000
LARGEST_DENSE = 600
FEW = 40
MOST_EXPLAINED = 0.9
NEWTON_STEPS, MOST_HALVINGS = 50, 40
# Mean square of a Newton step, in posterior standard deviations, below which the step is the last; number of modes
# from which the next one is predicted.
NEAR_ENOUGH, MOST_NEAR = 3e-11, 5
NODES = 11
ROUNDS_OF_CLUSTERS, SETTLED = 8, 0.01
LIKELY = 0.5
NARROWEST, WIDEST = 0.01, 0.99
_POINTS, _WEIGHTS = np.array(hermegauss(15))[..., None]


# -- posteriors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """One distribution for each annotator k: the sum over j of weights[k, j] * N(means[k, j], sds[k, j]^2).

    All three are of shape (m, n_parts); the standard deviations are above 0.
    """

    means: Floats
    sds: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        """Mean of every row."""
        return (self.weights * self.means).sum(axis=1)

    @property
    def sd(self) -> Floats:
        """Standard deviation of every row: the spread within its parts and between them."""
        centered = self.means - self.mean[:, None]
        return np.sqrt((self.weights * (self.sds**2 + centered**2)).sum(axis=1))

    def cdf(self, value: Floats | float) -> Floats:
        """Probability of at most ``value`` under every row."""
        gap = np.reshape(value, (-1, 1)) - self.means
        return (self.weights * ndtr(gap / self.sds)).sum(axis=1)

    def draws(self, n: int, random: np.random.Generator) -> Floats:
        """``n`` draws of all rows, of shape (n, m). Each draw uses one part, and so one value of tau, for all rows."""
        m, last = len(self.weights), self.weights.shape[1] - 1
        ends = np.cumsum(self.weights, axis=1)
        part = np.array([(ends < random.random()).sum(axis=1) for _ in range(n)])
        chosen = np.arange(m), np.minimum(part, last)
        noise = random.standard_normal(part.shape)
        return self.means[chosen] + self.sds[chosen] * noise

    def quantile(self, probability: float) -> Floats:
        """The value below which every row has the given probability, to a billionth of the spread of its parts."""
        parts = self.means + ndtri(probability) * self.sds
        low, high = parts.min(axis=1), parts.max(axis=1)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low = np.where(below, middle, low)
            high = np.where(below, high, middle)
        return high


@dataclass(frozen=True)
class Shrunk:
    """Posterior of every annotator's deviation given the whole pool. All values are in log-odds.

    Attributes
    ----------
    posterior : Mixture
        Posterior of every annotator's deviation; NaN only if no annotator has an estimate.
    basis : object array of shape (m,)
        Source of the posterior in addition to the pool: ``estimate``, ``votes`` or ``prior`` (nothing).
    tau, tau_low, tau_high : float
        Between-annotator standard deviation of the true biases and its 95 % confidence interval. With fewer than two
        estimates tau is NaN and the interval is (0, inf).
    reliability : float
        Mean of tau^2 / (tau^2 + se^2) over the annotators with an estimate: the share of the estimates' variance that
        is due to true differences, 0 to 1; NaN if tau is NaN.
    estimate, error : array of shape (m,)
        Normal estimates and standard errors with the same information as the votes; NaN without votes.
    """

    posterior: Mixture
    basis: NDArray
    tau: float
    tau_low: float
    tau_high: float
    reliability: float
    estimate: Floats
    error: Floats


def _nothing_known(m: int) -> Shrunk:
    """The result without any estimate."""
    nothing = np.full((m, 1), np.nan)
    posterior = Mixture(nothing, nothing, np.ones((m, 1)))
    basis = np.full(m, "prior", object)
    return Shrunk(posterior, basis, np.nan, 0.0, np.inf, np.nan, *np.full((2, m), np.nan))


# -- from estimates ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    r"""The restricted likelihood of the spread tau of true leans, from estimates with known errors; at least one.

    .. math:: \hat d_k \sim N(\mu, \tau^2 + s_k^2), \qquad \mu \text{ integrated out under a flat prior}
    """

    value: Floats
    se: Floats

    @cached_property
    def scale(self) -> float:
        """Root of the harmonic mean of squared standard errors."""
        return float(1 / np.sqrt(np.mean(1 / self.se**2)))

    def log_likelihood(self, tau: ArrayLike) -> Floats:
        """Of each of some taus, up to a constant."""
        between = np.asarray(tau, float)[..., None] ** 2
        weight = 1 / (between + self.se**2)
        total = weight.sum(axis=-1)
        center = (weight * self.value).sum(axis=-1) / total
        squares = weight * (self.value - center[..., None]) ** 2
        log_weight = np.log(weight).sum(axis=-1) - np.log(total)
        return (log_weight - squares.sum(axis=-1)) / 2

    def at(self, share: float | Floats) -> Floats:
        """The log-likelihood of some shares."""
        return self.log_likelihood(_tau_at(share, self.scale))

    @cached_property
    def share(self) -> float:
        """The most likely tau / (scale + tau)."""
        shares = np.linspace(0.0, 1.0, 101)[:-1]
        best = int(self.at(shares).argmax())
        found = minimize_scalar(
            lambda share: -float(self.at(share)),
            bounds=(shares[max(best - 1, 0)], min(shares[best] + 0.01, 1 - 1e-6)),
            method="bounded",
            options={"xatol": 1e-8},
        )
        return float(found.x) if self.at(found.x) > self.at(0.0) else 0.0

    def ends(self, drop: float) -> Floats:
        """Shares where the likelihood has fallen by ``drop`` on either side; the range's end where it never does."""

        def above(share: float) -> float:
            return float(self.at(share) - self.at(self.share)) + drop

        def end(farthest: float) -> float:
            if above(farthest) >= 0:
                return farthest
            return brentq(above, *sorted((farthest, self.share)))

        return np.array([end(0.0), end(1 - 1e-12)])


def _tau_at(share: Any, scale: float) -> Any:
    """Tau is searched on share = tau / (scale + tau), which is 0 to 1."""
    return scale * share / (1 - share)


def _flat(shares: Floats) -> Floats:
    r"""Log-masses of shares under a flat density of :math:`\tau^2`, which is share / (1 - share)^3 in them.

    It has no unit of its own, and of the flat priors it is the one whose posterior intervals of the leans hold the
    truth as often as they say (Morris and Tang, 2011, "Estimating random effects via adjustment for density
    maximization"). Up to three annotators do not outvote it: tau may then be large, and next to nothing is shrunk.
    """
    return np.log(shares / (1 - shares) ** 3 * np.gradient(shares))


def shrink_normal(deviation: ArrayLike, se: ArrayLike) -> Shrunk:
    r"""Shrink deviations under priors whose spread tau is fitted and whose uncertainty is carried along.

    .. math:: \hat d_k \sim N(d_k, s_k^2), \qquad d_k \sim N(\mu, \tau^2)

    and, as likely, priors under which a few lean far (`_believed`); tau is read off the normal one.

    The estimate of tau maximises the restricted likelihood (mu integrated out under a flat prior), and its interval
    is where that likelihood falls by less than 1.92 from the top. The posterior of d_k does not plug that estimate
    in: it is averaged over tau under a flat density of its square. With few votes or annotators the posterior intervals
    are therefore wider than plain empirical Bayes.

    Estimates and standard errors are of shape (m,); an estimate that is not finite, or has no error, counts as none.

    Examples
    --------
    A well-measured annotator keeps most of their deviation, a badly measured one of the same size little:

    >>> found = shrink_normal([1.0, 1.0, -0.9, -0.6, 0.5, -1.0], [0.1, 2.0, 0.1, 0.1, 0.1, 0.1])
    >>> [bool(found.posterior.mean[k] > 0.5) for k in (0, 1)]
    [True, False]
    """
    value, error = np.asarray(deviation, float), np.asarray(se, float)
    known = np.isfinite(value) & (error > 0)
    if not known.any():
        return _nothing_known(len(value))
    spread = Spread(value[known], error[known])
    (low, high), of_tau = (0.0, 1.0), (np.nan, 0.0, np.inf)
    if known.sum() > 1:
        low, high = spread.ends(NEGLIGIBLE)
        shares = np.append(spread.share, spread.ends(DROP))
        tau, lowest, highest = _tau_at(shares, spread.scale)
        of_tau = tau, lowest, highest
    middles = (np.arange(SPREAD_NODES) + 0.5) / SPREAD_NODES
    shares = low + (high - low) * middles
    taus, log_prior = _tau_at(shares, spread.scale), _flat(shares)
    weight = 1 / (taus**2 + spread.se[:, None] ** 2)
    total = weight.sum(axis=0)
    center = spread.value @ weight / total
    everyone = (each[:, None] for each in _all(spread, known))
    means, variances = _drawn_to(center, total, taus, *everyone)
    masses = softmax(spread.log_likelihood(taus) + log_prior)
    weights = np.tile(masses, (len(known), 1))
    normal = Mixture(means, np.sqrt(variances), weights)
    return _believed("estimate", known, normal, spread, taus, log_prior, of_tau)


def _drawn_to(
    center: Floats, total: Floats, sd: Floats, value: Floats, se: Floats
) -> tuple[Floats, Floats]:
    r"""Mean :math:`B_k \hat d_k + (1 - B_k) \hat\mu` and variance under a normal prior."""
    kept = sd**2 / (sd**2 + se**2)
    mean = kept * value + (1 - kept) * center
    return mean, kept * se**2 + (1 - kept) ** 2 / total


def _all(spread: Spread, known: Bools) -> tuple[Floats, Floats]:
    """Estimates and errors of all annotators; who has none has one that says nothing."""
    value = np.zeros(len(known))
    se = value + 1e6 * spread.se.max()
    value[known], se[known] = spread.value, spread.se
    return value, se


def _priors(taus: Floats) -> Floats:
    """Priors as mixtures of three normals: shares, offsets from the center and sds, each (3, n_priors, n_taus, 1).

    The normal prior, then those under which a few lean far: all around the others, or on either side of them.
    """
    found: list[Any] = [[(1, 0, 0), (0, 0, 0), (1, 1, 1)]]
    for far, ratio in product(FAR_SHARES, FAR_RATIOS):
        near, half = 1 - far, far / 2
        found.append([(near, far, 0), (0, 0, 0), (1, ratio, 1)])
        found.append([(near, half, half), (0, -ratio, ratio), (1, 1, 1)])
    share, offset, sd = np.array(found, float).transpose(1, 2, 0)[..., None]
    square = (share * (sd**2 + offset**2)).sum(axis=0)
    narrow = taus / np.sqrt(square)
    share = share * np.ones_like(taus)
    return np.stack([share, offset * narrow, sd * narrow])[..., None]


def _seen(prior: Floats, value: Floats, se: Floats, center: Floats) -> tuple[Floats, Floats, Floats]:
    """Precision of each estimate under each part, its log-likelihood, and the chance of each part given it."""
    share, offset, sd = prior
    weight = 1 / (sd**2 + se**2)
    apart = value - offset - center[..., None]
    with np.errstate(divide="ignore"):
        part = np.log(share) + (np.log(weight) - weight * apart**2) / 2
    highest = part.max(axis=0)
    chance = np.exp(part - highest)
    total = chance.sum(axis=0)
    return weight, highest + np.log(total), chance / total


def _believed(
    basis: str,
    known: Bools,
    normal: Mixture,
    spread: Spread,
    taus: Floats,
    log_prior: Floats,
    of_tau: tuple[float, float, float],
) -> Shrunk:
    r"""What follows from tau, the estimates of those who are known, and the posterior under a normal prior.

    With two estimates or more, that is averaged with those under priors by which a few annotators lean far.

    .. math:: d_k \sim (1 - \pi) N(\mu, t^2) + \pi N(\mu, r^2 t^2) \quad\text{or}\quad
        (1 - \pi) N(\mu, t^2) + \tfrac{\pi}{2} N(\mu - r t, t^2) + \tfrac{\pi}{2} N(\mu + r t, t^2)

    with t such that the sd is tau, for the shares and ratios of ``FAR_SHARES`` and ``FAR_RATIOS``; before the
    estimates are seen, all are as likely, the normal one with them, and tau under each. Where a few annotators stand
    far from a tight crowd a normal prior takes the crowd for wider than it is and its people for outstanding. The
    center mu is the most likely one, by the EM iteration, with the error of a mean.
    """
    of = np.where(known, basis, "prior").astype(object)
    between = of_tau[0] ** 2
    reliability = float(np.mean(between / (between + spread.se**2)))
    seen = np.full((2, len(known)), np.nan)
    seen[:, known] = spread.value, spread.se
    if len(spread.value) == 1:
        return Shrunk(normal, of, *of_tau, reliability, *seen)
    # more annotators than this would not change the weights, only take longer
    step = -(-len(spread.value) // LARGEST_SAMPLE)
    value, se, prior = spread.value[::step], spread.se[::step], _priors(taus)
    center = np.full(prior.shape[2:4], np.median(value))
    for _ in range(CENTERINGS):
        weight, log_likelihood, chance = _seen(prior, value, se, center)
        weight = weight * chance
        total = weight.sum(axis=(0, 3))
        center = (weight * (value - prior[1])).sum(axis=(0, 3)) / total
    log_marginal = log_likelihood.sum(axis=-1) - np.log(total) / 2
    masses = softmax(log_marginal + log_prior)
    of_prior = masses.sum(axis=1)
    parts = [replace(normal, weights=of_prior[0] * normal.weights)]
    value, se = _all(spread, known)
    for i in 1 + np.flatnonzero(of_prior[1:] > UNLIKELY):
        _, offset, sd = one = prior[:, :, i]
        chance = _seen(one, value, se, center[i])[2] * masses[i][:, None]
        around, precision = center[i][:, None], step * total[i][:, None]
        mean, variance = _drawn_to(around + offset, precision, sd, value, se)
        mass = chance.sum(axis=1)
        safe = np.maximum(mass, 1e-300)
        square = (chance * (mean**2 + variance)).sum(axis=1) / safe
        mean = (chance * mean).sum(axis=1) / safe
        variance = np.maximum(square - mean**2, 1e-12 * taus.max() ** 2)
        parts.append(Mixture(mean.T, np.sqrt(variance).T, mass.T))
    return Shrunk(_joined(parts), of, *of_tau, reliability, *seen)


def _joined(parts: list[Mixture]) -> Mixture:
    """All parts of some mixtures, with weights that add up to 1."""
    of_all = zip(*(vars(part).values() for part in parts), strict=True)
    means, sds, weights = (np.hstack(each) for each in of_all)
    return Mixture(means, sds, weights / weights.sum(axis=1, keepdims=True))


def averaged(one: Shrunk, other: Shrunk, chance: float) -> Shrunk:
    """What is believed where the other holds with some chance; tau is that of the likelier, its interval that of both.

    Which of the two holds is the same for all annotators. Less than a tenth of chance adds nothing to the interval.
    """
    both = (one, 1 - chance), (other, chance)
    held = [belief for belief, share in both if share > 0.1]
    parts = [
        replace(belief.posterior, weights=share * belief.posterior.weights) for belief, share in both
    ]
    return replace(
        other if chance > 0.5 else one,
        posterior=_joined(parts),
        basis=one.basis,
        tau_low=min(belief.tau_low for belief in held),
        tau_high=max(belief.tau_high for belief in held),
    )


# -- from votes ----------------------------------------------------------------------------------------------


class _Pool:
    """The informative votes, and the leans they inform: attribute and group of each.

    A group is what one attribute compares with one another; ``companions`` is its size, infinite where the attribute
    varies between the votes on one comparison, so that these fix its level. ``scale`` has for each attribute the
    typical error of a lean when all lean alike. ``point`` is where the likelihood was expanded last, from where the
    next mode is sought. The likelihood is raised to 1 / ``dispersion``.

    The votes on a comparison are in the order of their codes, which are the same for votes of one annotator with the
    same differences. Comparisons with the same codes and as many wins have the same moments: one of each ``kind`` is
    kept in ``model`` and ``design``, for a number of comparisons, ``count``; ``squares`` has the squares of the design.
    ``alike`` adds up the covariances of comparisons with the same codes, for each number of votes; ``sums`` takes these
    to the entries of the information.
    """

    def __init__(self, votes: LeanVotes) -> None:
        self.informed = informed = votes.counted(votes.told) > 0
        known = identified_leans(votes, informed, by_rank=False)
        self.attribute, self.group = known.attribute, known.label
        self.companions = np.where(known.absolute, np.inf, known.member @ known.size)
        own = np.column_stack([votes.annotator, votes.delta])
        code, order = np.empty(len(own), np.intp), np.lexsort(own.T)
        code[order] = np.append(0, (np.diff(own[order], axis=0) != 0).any(axis=1).cumsum())
        order = np.lexsort((code, votes.comparison))
        code, fields = code[order], ("row", "sign", "annotator", "delta", "told")
        self.votes = replace(votes, **{name: getattr(votes, name)[order] for name in fields})
        design, won = self.votes.design(informed), (self.votes.sign > 0).astype(float)
        self.wins, n_wins = design.T @ won, votes.blocks.sums(won).astype(np.intp)
        each, with_wins = np.arange(len(n_wins)), np.append(code, code.max() + 1 + n_wins)
        first, self.kind = _kinds(np.append(votes.comparison, each), with_wins)
        self.blocks, self.kept = votes.blocks.chosen(first)
        self.model = KnownWins(self.blocks, self.votes.sign[self.kept])
        self.dispersion, self.design = 1.0, design[self.kept]
        self.squares, self.count = self.design.power(2), np.bincount(self.kind)
        self.sums_of_leans, self.sums_of_squares = self.design.T, self.squares.T
        self.count_of_votes = self.count[self.blocks.comparison]
        self._add_pairs(code[self.kept])
        self.paths: dict[tuple[float, ...], dict[float, _Given]] = {}
        self.point = self.expanded(np.zeros(design.shape[1]))
        total = np.bincount(self.attribute, self.point.information[self.diagonal], informed.shape[1])
        n_leans = np.maximum(informed.sum(axis=0), 1)
        self.scale = np.sqrt(n_leans / np.where(total > 0, total, 1.0))

    def _add_pairs(self, code: Ints) -> None:
        """Find which entries of the information the covariances of the winners are part of."""
        first, same = _kinds(self.blocks.comparison, code)
        self.alike = []
        for size in np.unique(self.blocks.sizes).tolist():
            of = np.flatnonzero(self.blocks.sizes == size)
            pairs = self.blocks.pairs(
                slice(self.blocks.starts[of[0]], self.blocks.starts[of[-1]] + size)
            )
            cells = same[of] - same[of[0]], np.arange(len(of))
            self.alike.append((pairs, sparse.csr_array((1.0 * self.count[of], cells))))
        blocks, votes = self.blocks.chosen(first)
        row, column = blocks.matrix(np.ones(blocks.n_pairs)).tocoo().coords
        n_leans, annotator = self.design.shape[1], self.votes.annotator[self.kept[votes]]
        delta = (self.votes.delta[self.kept[votes]] * self.informed[annotator]).T
        lean = (np.cumsum(self.informed).reshape(self.informed.shape) - 1)[annotator].T
        found = []
        for i, j in product(range(len(delta)), repeat=2):
            weight = delta[i][row] * delta[j][column]
            pair = np.flatnonzero(weight)
            found.append((weight[pair], lean[i][row[pair]] * n_leans + lean[j][column[pair]], pair))
        weight, place, pair = map(np.concatenate, zip(*found, strict=True))
        places, place = np.unique(place, return_inverse=True)
        rows, columns = np.divmod(places, n_leans)
        self.diagonal = np.flatnonzero(rows == columns)
        places = sparse.coo_array((np.ones(len(rows)), (rows, columns)), (n_leans, n_leans))
        self.information = sparse.csr_array(places)
        self.sums = sparse.csr_array((weight, (place, pair)), (len(rows), blocks.n_pairs))

    def curvature(self, precision: Floats) -> sparse.csr_array:
        """The information at ``point`` plus the precision of the priors."""
        found = copy(self.information)
        found.data = self.point.information / self.dispersion
        found.data[self.diagonal] += precision
        return found

    def expanded(self, leans: Floats) -> _Point:
        """The likelihood around some leans, as if the dispersion was 1."""
        found = self.model.winners(self.design @ leans)
        value = float(self.wins @ leans - self.count @ found.log_total)
        of_sizes = [(adds, found.covariance[pairs]) for pairs, adds in self.alike]
        added = [(adds @ one.reshape(adds.shape[1], -1)).ravel() for adds, one in of_sizes]
        gradient = self.wins - self.sums_of_leans @ (self.count_of_votes * found.chance)
        return _Point(leans, value, gradient, self.sums @ np.concatenate(added), found)


class _Point(NamedTuple):
    """Leans, their log-likelihood, its gradient and information, and the moments of the winners."""

    leans: Floats
    value: float
    gradient: Floats
    information: Floats
    winners: Winners


def _kinds(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """First group of each kind, and the kind of each group; those of one kind hold the same values, as often.

    Each value stands for a random number of 64 bits. Of a million different groups, two have the same sum of these
    with a probability below 1e-7.
    """
    numbers = np.random.default_rng(0).integers(2**64, size=value.max() + 1, dtype=np.uint64)
    total = np.zeros(group.max() + 1, np.uint64)
    np.add.at(total, group, numbers[value])
    _, first, kind = np.unique(total, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[kind]


def shrink_votes(
    given: Votes, clusters: ArrayLike | None = None, wanted: ArrayLike = True
) -> tuple[Shrunk, ...]:
    r"""Posterior deviations and tau from the conditional likelihood of the votes, the leans integrated out.

    .. math:: L(\tau) = \int \prod_c P(W_c \mid |W_c|, \theta) \prod_k N(\theta_k; \mu, \tau^2) \, d\theta

    by Laplace's approximation around the penalised fit, times for every lean the ratio of its own integral to
    Laplace's, of a logistic likelihood with the same first four derivatives there. The posterior is averaged over tau
    under a flat density of its square. By simulation (`docs/results/audit_statistics.md`) the intervals keep their
    promise from about ten informative votes each, where estimates with normal errors do not.

    Arguments are those of `badpo.estimation.fit.fit_conditional`. With clusters the likelihood is raised to 1 / phi,
    with phi how much more than the model says the clusters' scores vary (`_dispersion`): where people lean more on one
    prompt than on another, errors are larger, and tau and the leans are those over all prompts.

    ``wanted`` marks the attributes whose posterior is needed; the result has no estimate for the other attributes.

    Deviations are from the mean of the annotators that the votes compare; ``basis`` is "votes", or "prior" for an
    annotator without an informative vote. Of several attributes each is averaged over its own tau, the others' held
    where they are most likely. Anchors are not taken, and an attribute whose level the votes fix is pulled toward zero
    instead of its mean: use `shrink_normal` there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> lean = np.repeat([-1.0, 1.0], 10)
    >>> who = np.array([rng.permutation(20)[:4] for _ in range(300)]).ravel()
    >>> sign = np.where(rng.random(1200) < 1 / (1 + np.exp(-lean[who])), 1, -1)
    >>> found, = shrink_votes(Votes(np.repeat(np.arange(300), 4), sign, who, np.ones((1200, 1)), 20))
    >>> low, high = np.split(found.posterior.mean, 2)
    >>> bool(low.max() < 0 < high.min()), bool(found.tau_low < 1 < found.tau_high)
    (True, True)
    """
    votes = lean_votes(given)
    found = [_nothing_known(given.n_annotators)] * votes.delta.shape[1]
    if not len(votes.row):
        return tuple(found)
    pool = _Pool(votes)
    spread, dispersion = pool.scale.copy(), np.ones(len(pool.scale))
    known = np.flatnonzero(pool.informed.sum(axis=0) > 1).tolist()
    of = None if clusters is None else np.unique(clusters, return_inverse=True)[1]
    for _ in range(min(len(known), 2) if of is None else ROUNDS_OF_CLUSTERS):
        before = dispersion.copy()
        for j in known:
            pool.dispersion = dispersion[j]
            at = partial(_given_share, pool, spread, j)
            best = minimize_scalar(
                lambda share, at=at: -at(share).log_marginal,
                bounds=(NARROWEST, WIDEST),
                method="bounded",
                options={"xatol": 1e-2},
            )
            if of is not None:
                dispersion[j] = _dispersion(pool, j, at(best.x), of)
            spread[j] = _tau_at(best.x, pool.scale[j])
        if of is not None and np.abs(dispersion - before).max() < SETTLED:
            break
    is_wanted = np.broadcast_to(wanted, len(found))
    for j in known:
        if not is_wanted[j]:
            continue
        pool.dispersion = dispersion[j]
        found[j] = _shrunk_attribute(pool, spread, j)
    return tuple(found)


class _Given(NamedTuple):
    """Mode, mean and standard deviation of every bias given the spreads, and the log marginal likelihood."""

    mode: Floats
    mean: Floats
    sd: Floats
    log_marginal: float


def _given_share(pool: _Pool, spread: Floats, j: int, share: float) -> _Given:
    """Posterior given the spreads, if attribute j has this tau / (scale + tau), which is 0 to 1.

    The mode is sought from the polynomial through the modes at the nearest shares, which is so close to it that one
    expansion of the likelihood is usually enough.
    """
    path = pool.paths.setdefault((j, pool.dispersion, *np.delete(spread, j)), {})
    if share not in path:
        near = sorted(path, key=lambda one: abs(one - share))[:MOST_NEAR]
        if len(near) > 1:
            parts = [prod((share - b) / (a - b) for b in near if b != a) for a in near]
            modes = [path[one].mode for one in near]
            pool.point = pool.expanded(np.array(parts) @ np.array(modes))
        spreads = spread.copy()
        spreads[j] = _tau_at(share, pool.scale[j])
        path[share] = _given_spreads(pool, spreads)
    return path[share]


def _dispersion(pool: _Pool, j: int, given: _Given, cluster: Ints) -> float:
    r"""Ratio of the variance of the clusters' scores to the variance that the model implies; at least 1.

    .. math:: \phi = \frac{\sum_{kg} \big(s_{kg}^2 + \sum_l h_{kl,g}^2 v_l\big)}{\sum_{kg} h_{kk,g}}

    Here k is an annotator's bias toward attribute j, s its score in cluster g, h the cluster's information and v the
    posterior variances. The second term replaces what the scores lack at the mode, because every bias is fitted to its
    own votes and depends on the votes of others on the same comparisons.
    """
    votes, n_leans = pool.votes, pool.design.shape[1]
    saw = votes.design(pool.informed).tocoo()
    pairs = saw.col + n_leans * cluster[votes.row][saw.row]
    cells, cell = np.unique(pairs, return_inverse=True)
    lean, apart = cells % n_leans, sparse.csr_array((saw.data, (saw.row, cell)))
    mine = np.flatnonzero(pool.attribute[lean] == j)
    own = sparse.csr_array(apart[:, mine].T)
    _, same = pool.blocks.chosen(pool.kind)
    chance, covariance, _ = pool.expanded(given.mode).winners
    score = own @ ((votes.sign > 0) - chance[same])
    among = votes.blocks.matrix(pool.blocks.matrix(covariance)[same].data)
    seen = own @ among
    squares = score**2 + (seen @ apart).power(2) @ given.sd[lean] ** 2
    expected = float(seen.multiply(own).sum())
    return max(float(squares.sum()) / expected, 1.0) if expected > 0 else 1.0


def _shrunk_attribute(pool: _Pool, spread: Floats, j: int) -> Shrunk:
    scale, known, mine = pool.scale[j], pool.informed[:, j], pool.attribute == j
    at, top = partial(_given_share, pool, spread, j), spread[j] / (scale + spread[j])
    # out to where little of the posterior is left or the range ends
    least, ends = at(top).log_marginal - 4.5, []
    for farthest in (NARROWEST - top, WIDEST - top):
        reach = 0.05 * farthest
        while abs(reach) < abs(farthest) and at(top + reach).log_marginal > least:
            reach *= 1.7
        ends.append(top + min(reach, farthest, key=abs))
    shares = np.unique(np.append(np.linspace(min(ends), max(ends), NODES), top))
    for share in sorted(shares, key=lambda share: abs(share - top)):
        at(share)
    found = zip(*map(at, shares), strict=True)
    _, mean, sd, log_marginal = (np.stack(each, axis=-1) for each in found)
    mean, sd = mean[mine], sd[mine]
    taus, log_prior = _tau_at(shares, scale), _flat(shares)
    masses = softmax(log_marginal + log_prior)
    sds, weights = (np.tile(each, (len(known), 1)) for each in (taus, masses))
    means = np.zeros(sds.shape)
    means[known], sds[known] = mean, sd
    # as normal observations that move N(0, tau^2) to posteriors with these moments
    best = np.abs(taus - np.sqrt(masses @ taus**2)).argmin()
    wide, own = taus[best] ** -2, sd[:, best] ** -2
    precision = np.maximum(own - wide, 1e-6 * wide)
    of = Spread(mean[:, best] * own / precision, 1 / np.sqrt(precision))
    fine = np.linspace(shares[0], shares[-1], 2001)
    curve = PchipInterpolator(shares, log_marginal)(fine)
    first, last = fine[curve >= curve.max() - DROP][[0, -1]]
    low = _tau_at(first, scale) if first > NARROWEST + 1e-6 else 0.0
    high = _tau_at(last, scale) if last < WIDEST - 1e-6 else np.inf
    of_tau = _tau_at(fine[curve.argmax()], scale), low, high
    normal = Mixture(means, sds, weights)
    return _believed("votes", known, normal, of, taus, log_prior, of_tau)


# -- given the spreads ---------------------------------------------------------------------------------------


def _given_spreads(pool: _Pool, spread: Floats) -> _Given:
    """Find the mode by Newton's method, and the moments around it."""
    precision, phi = 1 / spread[pool.attribute] ** 2, pool.dispersion
    is_dense = len(precision) <= LARGEST_DENSE

    def height(point: _Point) -> float:
        return point.value / phi - float(precision @ point.leans**2) / 2

    for _ in range(NEWTON_STEPS):
        here, value = pool.point, height(pool.point)
        curvature = pool.curvature(precision)
        gradient = here.gradient / phi - precision * here.leans
        if is_dense:
            inverse, log_determinant = inverted(curvature.toarray())
            step = inverse @ gradient
        else:
            scaling = sparse.diags_array(1 / curvature.diagonal())
            step = cg(curvature, gradient, rtol=1e-8, M=scaling)[0]
        if gradient @ step < NEAR_ENOUGH * len(step):
            break
        for halvings in range(MOST_HALVINGS):
            pool.point = pool.expanded(here.leans + 0.5**halvings * step)
            if height(pool.point) >= value - 1e-9 * abs(value):
                break
    mode = here.leans + step
    level = 1 / (precision * pool.companions)
    if is_dense:
        variance = np.diag(inverse) - level
    else:
        variance, log_determinant = _variances_by_neighbours(pool, curvature, level)
    variance = np.maximum(variance, 1e-12)
    mean, sd, gained = _one_by_one(pool, mode, variance, precision)
    laplace = gradient @ step + np.log(precision).sum() - log_determinant
    return _Given(mode, mean, sd, float(value + gained + laplace / 2))


def _variances_by_neighbours(
    pool: _Pool, curvature: sparse.csr_array, level: Floats
) -> tuple[Floats, float]:
    """Variance of every lean beside the level of its group, which the votes do not fix, and the log-determinant.

    In a large pool two annotators share few comparisons. There a lean is taken with its neighbours, and they as if
    they had no others; groups of few are taken whole.
    """
    diagonal = curvature.diagonal()
    neighbours = curvature.power(2) @ (1 / diagonal) / diagonal - 1
    left = 1 - np.minimum(neighbours, MOST_EXPLAINED)
    variance = 1 / (diagonal * left)
    log_determinants = np.log(diagonal) + np.log(left) / 2
    for group in np.unique(pool.group[pool.companions <= FEW]):
        members = np.flatnonzero(pool.group == group)
        inverse, log_determinant = inverted(curvature[members][:, members].toarray())
        variance[members] = np.diag(inverse) - level[members]
        log_determinants[members] = log_determinant / len(members)
    return variance, float(log_determinants.sum())


def inverted(positive: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant of a positive definite matrix."""
    half = float(np.log(np.diag(np.linalg.cholesky(positive))).sum())
    return np.asarray(np.linalg.inv(positive), dtype=np.float64), 2 * half


def _one_by_one(
    pool: _Pool, mode: Floats, variance: Floats, precision: Floats
) -> tuple[Floats, Floats, float]:
    r"""Mean and sd of every lean beyond the normal approximation, and what the marginal likelihood gains by it.

    A lean's likelihood is taken as that of logistic votes in some unit and at some odds, which has the slope and the
    curvature found at the mode, and the third and fourth derivative, averaged over what co-voters leave open. A vote
    is won or not, so its cumulants with another of the same comparison follow from the chances p and the covariance c:
    :math:`\kappa_{iik} = (1 - 2 p_i) c_{ik}` and
    :math:`\kappa_{iikk} = (1 - 2 p_i)(1 - 2 p_k) c_{ik} - 2 c_{ik}^2`.
    """
    chance, covariance, _ = pool.point.winners
    skew, spread = 1 - 2 * chance, pool.squares @ variance
    once = pool.blocks.matrix(covariance) @ (skew * spread) / pool.dispersion
    twice = pool.blocks.matrix(covariance**2) @ spread / pool.dispersion
    information = np.maximum(1 / variance - precision, 1e-9)
    share = variance * information
    third = -(pool.sums_of_leans @ (pool.count_of_votes * once)) / share
    fourth = pool.sums_of_squares @ (pool.count_of_votes * (2 * twice - skew * once)) / share
    unit = 2 * np.maximum(fourth, 0.0) + 3 * third**2
    unit = np.sqrt(np.maximum(unit, 1e-6))
    chance = (1 + third / unit) / 2
    n_votes = information / (unit**2 * chance * (1 - chance))
    wins = n_votes * chance + precision * mode / unit

    def log_posterior(lean: Floats) -> Floats:
        x = logit(chance) + unit * (lean - mode)
        return wins * x - n_votes * np.logaddexp(0, x) - precision * lean**2 / 2

    # a row for each point
    lean = mode + np.sqrt(variance) * _POINTS
    beside = log_posterior(lean) - log_posterior(mode) + _POINTS**2 / 2
    mass = np.exp(beside) * _WEIGHTS
    total = mass.sum(axis=0)
    found = Mixture(lean.T, np.zeros_like(lean.T), (mass / total).T)
    return found.mean, found.sd, float(np.log(total).sum())


# -- flags ---------------------------------------------------------------------------------------------------


def probability_exceeds(shrunk: Shrunk, rho: float) -> Floats:
    r"""Posterior probability that an annotator's deviation is larger than rho, either way.

    .. math:: p_k = P(|d_k| > \rho \mid \text{all votes})

    Examples
    --------
    >>> found = shrink_normal([1.5, 0.1, -0.1, -0.2, -1.3], [0.1] * 5)
    >>> probability_exceeds(found, 0.5).round(2)
    array([1., 0., 0., 0., 1.])
    """
    inside = shrunk.posterior.cdf(rho) - shrunk.posterior.cdf(-rho)
    return np.clip(1 - inside, 0.0, 1.0)


def bayesian_fdr(prob_exceeds: ArrayLike, fdr: float) -> Bools:
    r"""The longest list of annotators whose expected share of mistakes is at most ``fdr``, each more likely than not.

    Nobody with :math:`p_k < 1/2` is on it: beside sure ones a list could carry them along. Annotators enter in order of
    decreasing probability while the mean of :math:`1 - p_k` over the list stays within ``fdr``. Annotators with the
    same probability enter together or not at all.

    Examples
    --------
    The first two are wrong with probability 0.01 and 0.15, 0.08 on average; the third would make it 0.19:

    >>> bayesian_fdr([0.99, 0.85, 0.6, np.nan], 0.10)
    array([ True,  True, False, False])
    """
    chance = np.asarray(prob_exceeds, float)
    ranked = np.sort(chance[~np.isnan(chance)])[::-1]
    mistakes = np.cumsum(1 - ranked) / np.arange(1, len(ranked) + 1)
    last_of_tie = np.append(ranked[1:] < ranked[:-1], True)[: len(ranked)]
    allowed = ranked[(mistakes <= fdr) & last_of_tie & (ranked >= LIKELY)]
    return chance >= allowed.min(initial=np.inf)


def benjamini_hochberg(deviation: ArrayLike, se: ArrayLike) -> Floats:
    r"""Q-values of the hypotheses that an annotator leans exactly as the pool does.

    Two-sided normal p-values of :math:`\hat d_k / s_k`, adjusted by the step-up rule of Benjamini and Hochberg:
    flagging all with q at most 0.1 keeps the expected share of false flags at 10 % **if the others are all alike**.
    NaN where the estimate is not finite.

    Examples
    --------
    >>> benjamini_hochberg([3.0, 0.0, 2.0, np.nan], [1.0, 1.0, 1.0, 1.0]).round(4)
    array([0.0081, 1.    , 0.0683,    nan])
    """
    value, error = np.asarray(deviation, float), np.asarray(se, float)
    told = np.isfinite(value) & (error > 0)
    far = np.divide(value, error, out=np.full(len(value), np.nan), where=told)
    return q_values(2 * ndtr(-np.abs(far)))


def q_values(p_values: Floats) -> Floats:
    """Benjamini-Hochberg q-values; NaN for p-values that are NaN."""
    found = np.full(len(p_values), np.nan)
    is_there = ~np.isnan(p_values)
    found[is_there] = false_discovery_control(p_values[is_there])
    return found
