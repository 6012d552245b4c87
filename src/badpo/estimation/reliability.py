r"""Reliability: how closely an annotator follows quality, estimated separately from the annotator's bias.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k q_c + \theta_k \cdot d_j

The reliability :math:`a_k` ("care" in the names of this module) has the mean 1; a random responder has reliability 0.
If :math:`c\, a_k` is added to every bias and :math:`c \cdot d_c` is subtracted from every quality, the votes keep
their probabilities. Biases are therefore measured as deviations from a line in reliability. Reliability is estimated
from comparisons whose sides do not differ, because no bias acts on them.
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

from badpo.estimation.conditional_likelihood import sorted_blocks
from badpo.estimation.fit import Leans, Votes
from badpo.estimation.newton import LARGEST_FACTORED, NOTHING, Curvature, Information
from badpo.estimation.shrinkage import Mixture, inverted
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import lean_design

# Sides that differ by less, in standard units, are the same.
SAME = 0.25
# Quality at equally spaced nodes, in units of its spread.
NODES = np.linspace(-3.9, 3.9, 13)
LOG_MASS = log_softmax(-(NODES**2) / 2)
# Between-annotator standard deviations of reliability, in units of its mean, and the scale of their half-normal
# prior.
SPREADS, USUAL = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.75, 1.0, 1.3]), 0.5
LOG_PRIOR = np.log(np.gradient(SPREADS)) - (SPREADS / USUAL) ** 2 / 2
# Shares of random responders.
CLICKERS = np.array([0.0, 0.03, 0.1, 0.2, 0.35, 0.5])
# Least gain in log-likelihood from a common slope (a one-sided test at 5 %); the slope, in units of the quality's
# standard deviation, above which votes count as unanimous; least mean number of votes per annotator.
FOLLOWED, MOST_CARE, FEWEST = 1.35, 6.0, 5
# Prior probability of a line in reliability, which is low because a line hides biases; prior standard deviation of
# its slope; iterations of its fit.
ANY_LINE, STEEPEST, LINE_ROUNDS = 0.25, 1.75, 12
# Number of standard errors beyond which low reliability does not explain an annotator's choices.
BEYOND = 3.0
STEPS, NEAR, LONGEST_STEP = 40, 0.05, 3.0
LOOSE = 1e-3


@dataclass(frozen=True)
class Care(Mixture):
    r"""Reliability :math:`a_k` of m annotators, with the mean 1 and shrunk toward it; NaN if nothing is known.

    The last part of the mixture is that of random responding.

    Attributes
    ----------
    spread : float
        Between-annotator standard deviation of reliability, without random responders.
    unknown : str
        Why nothing is known: "few" votes, "careless" or "unanimous" annotators; empty otherwise.
    n_votes : int array of shape (m,)
        Number of votes from which reliability is estimated.
    scale : float
        Slope of the average annotator: log-odds per standard deviation of the comparisons' quality.
    covariance : array of shape (m, m), or None
        Covariance of the errors of different annotators (off the diagonal); None if it is too large to store.
    """

    spread: float
    unknown: str
    n_votes: Ints
    scale: float = np.nan
    covariance: Floats | None = None

    def mean_of(self, weight: Floats) -> tuple[float, float]:
        """Weighted mean over annotators, and the variance of its error; weights sum to 1."""
        variance = float(weight**2 @ self.sd**2)
        if self.covariance is not None:
            among = self.covariance - np.diag(np.diag(self.covariance))
            variance = max(variance + float(weight @ among @ weight), 0.0)
        return float(weight @ self.mean), variance


# -- comparisons on which no bias acts -------------------------------------------------------------------------


def _of(annotator: Ints, n_annotators: int) -> sparse.csr_array:
    """Indicator matrix of the annotator of each vote, of shape (n_votes, n_annotators)."""
    return lean_design(annotator, np.ones((len(annotator), 1)), n_annotators)


class _SameVotes:
    """Votes on comparisons with several votes whose sides do not differ, in the order of their ``blocks``.

    The ``kind`` of a comparison is its number of votes (``size``) and its number of votes for a (``n_wins``).
    """

    def __init__(self, votes: Votes, shift: ArrayLike = 0.0) -> None:
        c, y = votes.comparison, np.asarray(votes.sign, float)
        differs = (np.abs(votes.delta) >= SAME).any(axis=1)
        is_same = np.bincount(c, differs) == 0
        kept = np.flatnonzero((is_same & (np.bincount(c) > 1))[c])
        order, self.blocks = sorted_blocks(c[kept], y[kept] > 0)
        kept = kept[order]
        self.sign = y[kept]
        self.annotator = votes.annotator[kept]
        self.shift = np.broadcast_to(shift, c.shape)[kept]
        self.of = _of(self.annotator, votes.n_annotators)
        sizes, number = np.unique(self.blocks.sizes, return_inverse=True)
        self.size = np.repeat(sizes, sizes + 1)
        self.n_wins = np.concatenate([NOTHING, *map(np.arange, sizes + 1)])
        wins = self.blocks.sums(np.maximum(self.sign, 0)).astype(np.intp)
        self.kind = (np.cumsum(sizes + 1) - sizes - 1)[number] + wins

    def log_wins(self, scale: float) -> Floats:
        """Log-probability of every kind at each node, given its size; of shape (n_kinds, n_nodes)."""
        size, wins = self.size[:, None], self.n_wins[:, None]
        ways = -betaln(wins + 1, size - wins + 1) - np.log(size + 1)
        x = scale * NODES
        return ways + wins * x - size * np.logaddexp(0, x) + LOG_MASS

    def common_care(self) -> tuple[float, float]:
        """Maximum-likelihood common slope, in units of the quality's spread, and its gain in log-likelihood."""
        n = np.bincount(self.kind, minlength=len(self.size))

        def loss(scale: float) -> float:
            return -float(n @ logsumexp(self.log_wins(scale), axis=1))

        best = minimize_scalar(loss, bounds=(0.05, 8.0), method="bounded")
        return float(best.x), loss(0.0) - float(best.fun)


def equal_care_test(given: Votes) -> float:
    r"""P-value of the test that all annotators are equally reliable; NaN if the votes contain no information about it.

    The test uses the comparisons whose sides do not differ in any attribute, because no bias acts on them. If
    annotators are equally reliable, the number of wins s of T votes is sufficient for the quality z, and the score of
    annotator k is

    .. math:: U_k = \sum_c y_{kc}\, E[z_c \mid s_c] - E[z_c p(z_c) \mid s_c]

    The covariance V of the scores is exact for any number of votes. The common reliability is projected out, and the
    sum of squares is compared with the :math:`c \chi^2_\nu` of the same mean, tr V, and variance, 2 tr V^2.

    Examples
    --------
    Annotator 0 votes at random beside three who agree:

    >>> sign = np.tile([1, 1, 1, 1, -1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1], 40)
    >>> votes = Votes(np.repeat(np.arange(160), 4), sign, np.tile(np.arange(4), 160), np.zeros((640, 1)), 4)
    >>> equal_care_test(votes) < 1e-6
    True
    """
    votes = _SameVotes(given)
    if not len(votes.sign):
        return np.nan
    scale, _ = votes.common_care()
    log_joint, of = votes.log_wins(scale), votes.of
    mass = softmax(log_joint, axis=1)
    chance = np.exp(logsumexp(log_joint, axis=1))
    size, wins = votes.size, votes.n_wins
    quality = mass @ NODES
    expected = mass @ (NODES * expit(scale * NODES))
    squares = wins * (quality - expected) ** 2 + (size - wins) * expected**2
    pairs = (wins * quality - size * expected) ** 2 - squares
    # variance of a vote's score and covariance of two votes' scores, by the number of votes
    own, between = (
        np.bincount(size, chance * each)[votes.blocks.sizes]
        for each in (squares / size, pairs / (size * (size - 1)))
    )
    vote = votes.blocks.comparison
    kind = votes.kind[vote]
    score = of.T @ ((votes.sign > 0) * quality[kind] - expected[kind])
    # one row for each comparison, then one row for the variance that belongs to each annotator alone
    alone = of.T @ (own - between)[vote]
    columns = np.append(votes.annotator, np.arange(given.n_annotators))
    starts = np.append(votes.blocks.starts, np.arange(len(vote), len(columns) + 1))
    cast, shared = (
        sparse.csr_array((each, columns, starts))
        for each in (np.ones(len(columns)), np.append(between[vote], alone))
    )
    return _sum_of_squares(score, cast.T @ shared)


def _sum_of_squares(score: Floats, variance: sparse.csr_array) -> float:
    """P-value of scores without their common part, from the first two moments of their sum of squares."""
    common = variance.sum(axis=1)
    total = common.sum()
    part = common / total
    # moments of V - v v' / sum(v), which need no dense matrix
    removed = common @ part
    mean = variance.trace() - removed
    if not mean > 1e-9 * total:
        return np.nan
    crossed = common @ (variance @ part)
    spread = (variance.data**2).sum() - 2 * crossed + removed**2
    squares = ((score - part * score.sum()) ** 2).sum()
    return float(chdtrc(mean**2 / spread, squares * mean / spread))


# -- reliability -----------------------------------------------------------------------------------------------


def fit_care(given: Votes, shift: ArrayLike = 0.0, group: ArrayLike | None = None) -> Care:
    r"""Estimate reliability by the marginal likelihood of comparisons whose sides differ by less than a quarter unit.

    With the quality :math:`z \sim N(0, 1)` the logit is :math:`s_k z` plus the known ``shift``, and :math:`a_k = s_k
    / \bar s`. Slopes are normal around their mean with a standard deviation :math:`\kappa` in units of the mean. A
    share of annotators are random responders with slope 0. The result is averaged over the standard deviation and the
    share, with weights from the marginal likelihood (Laplace approximation), a half-normal prior of the standard
    deviation with the scale ``USUAL`` and a flat prior of the shares in ``CLICKERS``. An annotator who nearly always
    chooses the side with an attribute does not count as a random responder.

    ``given.delta`` contains only attributes of the responses, in standard units. ``shift`` is the known part of the
    logits, such as a bias toward the side that was shown first. Annotators with the same ``group`` are shrunk toward
    their own mean; without ``group`` there is one group.

    Examples
    --------
    Annotators 0 to 3 agree and annotator 4 votes at random:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> care = np.array([1, 1, 1, 1, 0])
    >>> sign = np.where(random.logistic(size=(300, 5)) < quality[:, None] * care, 1, -1).ravel()
    >>> votes = Votes(np.repeat(np.arange(300), 5), sign, np.tile(np.arange(5), 300), np.zeros((1500, 1)), 5)
    >>> fitted = fit_care(votes)
    >>> bool(fitted.mean[4] + 3 * fitted.sd[4] < 1)
    True
    """
    n_annotators, votes = given.n_annotators, _SameVotes(given, shift)
    n_votes = np.bincount(votes.annotator, minlength=n_annotators)
    n_people = np.count_nonzero(n_votes)
    scale, unknown = _common_slope(votes)
    if n_people < 3 or n_votes.sum() < FEWEST * n_people:
        unknown = "few"
    if unknown:
        nothing = np.full((n_annotators, 1), np.nan)
        return Care(nothing, nothing, np.ones_like(nothing), np.nan, unknown, n_votes)
    # squared distance of each annotator's choices from 50 %, in standard errors, for the most extreme attribute
    toward = np.sign(given.delta) * given.sign[:, None]
    of = _of(given.annotator, n_annotators).T
    square = (of @ toward) ** 2 / np.maximum(of @ toward**2, 1)
    veto = np.maximum(square.max(axis=1, initial=0.0) - 4, 0.0)
    at, found, among = _likelihood(votes, np.full(n_annotators, scale)), [], []
    groups = _Groups.of(np.zeros(n_annotators, np.intp) if group is None else group)
    for spread in SPREADS:
        sd = spread * scale
        at, step, variance, covariance, log_marginal = _climbed(votes, at, sd, groups)
        level = at.slopes.mean()
        gain = np.log1p(np.maximum(at.information.diagonal, 0.0) * sd**2)
        far = (groups.centered(at.slopes) / sd) ** 2
        odds = at.clicking + (far - veto + gain) / 2
        log_marginal -= (n_annotators - groups.n) * np.log(spread)
        mean, error = (at.slopes + step) / level, np.sqrt(variance) / level
        found.append((mean, error, odds, log_marginal))
        among.append(covariance)
    stacked = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
    means, sds, odds, log_marginals = stacked
    weight, weights = _some_click(odds, log_marginals)
    clicks = np.zeros((n_annotators, 1))
    means, sds = np.hstack([means, clicks]), np.hstack([sds, clicks + LOOSE])
    level = (means * weights).sum(axis=1).mean()
    typical = float(np.sqrt(weight @ SPREADS**2))
    slope = float(at.slopes.mean())
    covariance = None
    if n_annotators <= LARGEST_FACTORED:
        covariance = np.einsum("s,sij->ij", weight, np.array(among)) / (slope * level) ** 2
    return Care(means / level, sds / level, weights, typical, "", n_votes, slope * level, covariance)


def _common_slope(votes: _SameVotes) -> tuple[float, str]:
    """The maximum-likelihood common slope, and the reason if it is not usable (otherwise empty)."""
    if not len(votes.sign):
        return np.nan, "few"
    scale, gained = votes.common_care()
    if gained < FOLLOWED:
        return scale, "careless"
    return scale, "unanimous" if scale > MOST_CARE else ""


@dataclass(frozen=True)
class _Groups:
    """Groups of annotators with separate means."""

    member: sparse.csr_array
    size: Floats

    @classmethod
    def of(cls, group: ArrayLike) -> "_Groups":
        label = np.unique(np.asarray(group), return_inverse=True)[1]
        return cls(_of(label, int(label.max()) + 1), np.bincount(label).astype(float))

    @property
    def n(self) -> int:
        return len(self.size)

    def centered(self, values: Floats) -> Floats:
        """Values minus the mean of their group, along the first axis."""
        return values - self.member @ ((self.member.T @ values).T / self.size).T


def _some_click(odds: Floats, log_marginal: Floats) -> tuple[Floats, Floats]:
    """Weights of each standard deviation, and of each annotator's parts, with a share of random responders.

    ``odds``, of shape (m, n_spreads), has the log-likelihood ratio of random responding for each annotator's votes.
    """
    share = CLICKERS[:, None, None]
    with np.errstate(divide="ignore"):
        clicks = np.log(share) + odds
    either = np.logaddexp(np.log1p(-share), clicks)
    weight = softmax(log_marginal + either.sum(axis=1) + LOG_PRIOR)
    chance = np.einsum("pk,pmk->mk", weight, np.exp(clicks - either))
    of_spread = weight.sum(axis=0)
    return of_spread, np.column_stack([of_spread - chance, chance.sum(axis=1)])


class ClassMerit(NamedTuple):
    """Distribution of the class offsets that unequal reliability produces, from `class_merit`.

    With the probability ``ANY_LINE`` the offsets are normal with the ``covariance``, of shape (n_classes, n_classes);
    otherwise they are 0. If the covariance is None, ``unknown`` is the reason, as in `Care`.
    """

    covariance: Floats | None
    unknown: str


def class_merit(given: Votes, shift: ArrayLike = 0.0) -> ClassMerit:
    r"""Distribution of the apparent biases of classes that differ in reliability only.

    If the side with the attribute is better by m log-odds, an annotator with reliability a and without any bias
    prefers that side by a m log-odds. Class c with the reliability a_c therefore appears to have the bias

    .. math:: h_c = m\, (a_c - \bar a), \qquad m \sim N(0, \text{STEEPEST}^2), \qquad
        \operatorname{cov} h = \text{STEEPEST}^2\, E[(a - \bar a)(a - \bar a)^\top]

    in addition to its own. The votes do not separate m from bias, so m has the prior of the line in reliability
    (`beside_care`). The reliability of the classes is estimated as in `fit_care`, with one slope for all annotators
    of a class.

    In ``given``, annotators are replaced by their classes; -1 stands for an annotator without a class.

    Examples
    --------
    Class 1 votes at random. If the side with the attribute is better by 1, class 0 chooses this side more often:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> reliability = np.array([1, 1, 0, 0])
    >>> sign = np.where(random.logistic(size=(300, 4)) < quality[:, None] * reliability, 1, -1).ravel()
    >>> votes = Votes(np.repeat(np.arange(300), 4), sign, np.tile([0, 0, 1, 1], 300), np.zeros((1200, 1)), 2)
    >>> covariance = class_merit(votes).covariance
    >>> bool(np.sqrt([1, -1] @ covariance @ [1, -1]) > 1)
    True
    """
    known, n_classes = given.annotator >= 0, given.n_annotators
    votes = _SameVotes(given.chosen(known), np.broadcast_to(shift, known.shape)[known])
    scale, unknown = _common_slope(votes)
    if unknown:
        return ClassMerit(None, unknown)
    at, squares, log_masses = _likelihood(votes, np.full(n_classes, scale)), [], []
    groups = _Groups.of(np.zeros(n_classes, np.intp))
    for spread, log_prior in zip(SPREADS, LOG_PRIOR, strict=True):
        at, _, variance, covariance, log_marginal = _climbed(votes, at, spread * scale, groups)
        mean = at.slopes.mean()
        apart = at.slopes - mean
        errors = np.diag(variance) if covariance is None else covariance
        squares.append((np.outer(apart, apart) + errors) / mean**2)
        log_masses.append(log_marginal - (n_classes - 1) * np.log(spread) + log_prior)
    expected = np.einsum("s,sij->ij", softmax(log_masses), np.array(squares))
    return ClassMerit(STEEPEST**2 * expected, "")


class _At(NamedTuple):
    """The marginal likelihood at some slopes, and its derivatives by Louis's formula.

    ``clicking`` is how much more likely the votes were if one slope alone were 0.
    """

    slopes: Floats
    value: float
    score: Floats
    information: Information
    clicking: Floats


def _likelihood(votes: _SameVotes, slopes: Floats) -> _At:
    value, slope, blocks = 0.0, slopes[votes.annotator], votes.blocks
    score, clicking = np.empty((2, len(votes.sign)))
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
        clicking[run.votes] = np.log(ratio.sum(axis=2)).ravel()
        entries[blocks.pairs(run.votes)] = among.ravel()
    at = Curvature(score, blocks.matrix(entries))
    of = votes.of.T
    return _At(slopes, value, of @ score, Information(votes.of, at), of @ clicking)


def _climbed(
    votes: _SameVotes, at: _At, spread: float, groups: _Groups
) -> tuple[_At, Floats, Floats, Floats | None, float]:
    """Maximise by Newton's method: the maximum, last step, variances, covariance, log marginal likelihood (Laplace).

    In a large pool two annotators share few comparisons. The variance of each slope is then computed as if the other
    slopes were known, and there is no covariance.
    """
    m, inverse = len(at.slopes), None

    def pulled(slopes: Floats) -> Floats:
        return groups.centered(slopes) / spread**2 + LOOSE * slopes

    def height(at: _At) -> float:
        return at.value - float(at.slopes @ pulled(at.slopes)) / 2

    for _ in range(STEPS):
        uphill = at.score - pulled(at.slopes)
        if m <= LARGEST_FACTORED:
            inverse, log_det = _inverse(at.information.among + pulled(np.eye(m)))
            step, variance = inverse @ uphill, np.diag(inverse)
        else:
            own = np.maximum(at.information.diagonal, 0.0)
            variance = 1 / (own + 1 / spread**2 + LOOSE)
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
        ways = (_likelihood(votes, at.slopes + each) for each in steps)
        least = height(at) - 1e-9
        higher = next((tried for tried in ways if height(tried) >= least), None)
        # no step is left after the step was taken, or if it does not increase the likelihood
        step = np.zeros(m)
        if higher is None:
            break
        at = higher
    return at, step, variance, inverse, height(at) - log_det / 2


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant; directions of positive curvature count with the negative of their curvature."""
    try:
        return inverted(matrix)
    except LinAlgError:
        size, along = np.linalg.eigh(matrix)
        return inverted((along * np.maximum(np.abs(size), LOOSE)) @ along.T)


# -- the line --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Line of the biases toward one attribute in reliability: its probability, its slope and the slope's variance.

    ``between`` is the variance about the line. ``offset`` is reliability minus the mean over the annotators with whom
    the votes compare an annotator.
    """

    chance: float
    slope: float
    open_slope: float
    between: float
    offset: Mixture

    def averaged(self, lean: Floats, se: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of the residual biases, over the parts of reliability weighted by their likelihood."""
        care = self.offset
        left = lean[:, None] - self.slope * care.means
        # the square of the slope, minus the variance of its error
        steep = max(self.slope**2 - self.open_slope, 0.0)
        variance = se[:, None] ** 2 + steep * care.sds**2
        variance += self.open_slope * care.means**2
        whole = variance + self.between
        fit = -(left**2 / whole + np.log(whole)) / 2
        log_weight = np.log(np.maximum(care.weights, 1e-300)) + fit
        found = Mixture(left, np.sqrt(variance), softmax(log_weight, axis=1))
        return found.mean, found.sd**2


class BesideCare(NamedTuple):
    """Biases as deviations from lines in reliability, the line of each attribute, and p-values of no deviation."""

    leans: Leans
    lines: dict[int, Line]
    equal_leans_p: Floats


def beyond_care(votes: Votes) -> Bools:
    r"""Annotators whose choices low reliability cannot explain, of shape (n_annotators, n_attributes).

    Low reliability moves the share of an annotator's votes for the side with more of the attribute toward one half.
    With :math:`n_k` votes, a share :math:`s_k` of them for that side and the pool's share :math:`S`, low reliability
    does not explain the choices of annotator k if :math:`s_k` is outside the range from 1/2 to S by ``BEYOND``
    standard errors z:

    .. math:: 2 \sqrt{n_k}\, (1/2 - s_k)\, g > z \quad\text{or}\quad
        \sqrt{n_k}\, \frac{(s_k - S)\, g}{\sqrt{S (1 - S)}} > z, \qquad g = \operatorname{sign}(S - 1/2)

    Examples
    --------
    Annotators 0 to 2 choose the longer response in 75 % of 40 votes; annotator 3 never does:

    >>> sign = np.concatenate([np.tile([1, 1, 1, -1], 30), -np.ones(40)])
    >>> beyond_care(Votes(np.arange(160), sign, np.repeat(np.arange(4), 40), np.ones((160, 1)), 4)).ravel()
    array([False, False, False,  True])
    """
    toward = np.sign(votes.delta) * votes.sign[:, None]
    of = _of(votes.annotator, votes.n_annotators).T
    n, net = of @ toward**2, of @ toward
    total = net.sum(axis=0)
    pool = np.abs(total) / np.maximum(n.sum(axis=0), 1)
    # votes for the pool's side minus votes against it: n (2 s - 1)
    net *= np.where(total < 0, -1, 1)
    error = np.sqrt(np.maximum(n, 1))
    further = (net - n * pool) / (error * np.sqrt(np.maximum(1 - pool**2, LOOSE)))
    return np.maximum(-net / error, further) > BEYOND


def beside_care(leans: Leans, care: Care, beyond: ArrayLike = False) -> BesideCare:
    r"""Deviations from a line in reliability, weighted by the probability of a line, and from the mean otherwise.

    .. math:: \hat d_k = b\, (a_k - \bar a) + r_k, \qquad
        \operatorname{var} r_k = s_k^2 + b^2 \operatorname{var} a_k + (a_k - \bar a)^2 \operatorname{var} b

    The line is fitted to shrunken reliability, because unshrunken reliability would attenuate the slope (Berkson,
    1950). Its weights include the residual variance (Paule and Mandel, 1982). The prior probability that the slope is
    zero is three in four; otherwise the slope has a normal prior, so that the line does not fit noise if reliability
    hardly differs. The probability of a line is from the Savage-Dickey ratio. If the shared bias is known, its shift
    by reliability is known too, and there is no line. Annotators in ``beyond`` (`beyond_care`) do not take part in
    the fit if their reliability is below the mean. The p-value is that of the sum of squared residuals over their
    variances. Its degrees of freedom are the number of annotators minus one for the slope and one for each group. It
    is NaN without a line.
    """
    leans, lines = deepcopy(leans), {}
    beyond = np.broadcast_to(beyond, leans.deviation.shape)
    own = leans.deviation, leans.se
    finite = leans.finite_deviation, leans.finite_se
    p_values = np.full(len(leans.absolute), np.nan)
    for j in np.flatnonzero(~leans.absolute & (care.unknown == "")).tolist():
        told, group = leans.se[:, j] > 0, leans.component[:, j]
        if _df(group[told]) < 1:
            continue
        lean, se = leans.deviation[:, j], leans.se[:, j]
        # a reliable annotator may choose the attribute more often because of quality alone
        explained = told & ~(beyond[:, j] & (care.mean < 1))
        explained = explained if _df(group[explained]) > 0 else told
        lines[j] = line = _line(lean, se, care, group, told, explained)
        for deviation, error in (own, finite):
            lean, se = deviation[:, j], error[:, j]
            mean, variance = line.averaged(lean, se)
            mean -= _means(mean, group, told)
            squares = mean**2 / variance
            moved = np.isfinite(lean) & (se > 0)
            # mixture of both cases: with a line and without
            further = line.chance * (mean - lean)
            apart = se**2 + further * (mean - lean)
            variance = (1 - line.chance) * apart + line.chance * variance
            lean[moved] += further[moved]
            se[moved] = np.sqrt(variance[moved])
        p_values[j] = chdtrc(_df(group[np.isfinite(squares)]), np.nansum(squares))
        if leans.covariance is not None:
            at = np.arange(j, leans.se.size, len(leans.absolute))
            leans.covariance[at, at] = np.where(told, leans.se[:, j] ** 2, np.nan)
    return BesideCare(leans, lines, p_values)


def _df(group: Ints) -> int:
    """Degrees of freedom about a line, with a mean for each group."""
    return len(group) - 1 - len(np.unique(group))


def _means(values: Floats, group: Ints, told: Bools) -> Floats:
    """Mean of each annotator's group, over annotators with an estimate; of all annotators if a group has none."""
    means = pd.Series(np.where(told, values, np.nan)).groupby(group).transform("mean")
    return means.fillna(values[told].mean()).to_numpy()


def _line(lean: Floats, se: Floats, care: Care, group: Ints, told: Bools, explained: Bools) -> Line:
    """Fit a line through the origin to the ``explained`` annotators: its slope and the variance about it in turn."""
    level = _means(care.mean, group, told)
    x, y = (care.mean - level)[explained], lean[explained]
    variance, open_care = se[explained] ** 2, care.sd[explained] ** 2
    slope, between, df = 0.0, 0.0, _df(group[explained])
    for _ in range(LINE_ROUNDS):
        weight = 1 / (between + variance + slope**2 * open_care)
        open_slope = float(1 / (weight @ x**2 + STEEPEST**-2))
        slope = float(weight @ (x * y) * open_slope)
        rest = weight * (y - slope * x) ** 2
        excess = float((rest.sum() - df) / (weight @ rest))
        between = max(between + excess, 0.0)
    against = (1 - ANY_LINE) / ANY_LINE * STEEPEST / math.sqrt(open_slope)
    against *= math.exp(-(slope**2) / open_slope / 2)
    offset = Mixture(care.means - level[:, None], care.sds, care.weights)
    return Line(1 / (1 + against), slope, open_slope, between, offset)
