r"""Care beside lean: how closely an annotator follows quality, beside what they prefer whatever it is.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k q_c + \theta_k \cdot d_j

The care :math:`a_k` has the mean 1; who clicks at random has care 0. Adding :math:`c\, a_k` to every lean changes
nothing that votes show (:math:`q_c - c \cdot d_c` is as good a quality), so leans count from a line in care. Care is
found where no lean acts: on comparisons whose sides do not differ.
"""

from __future__ import annotations

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
from badpo.estimation.fit import Leans
from badpo.estimation.newton import LARGEST_FACTORED, NOTHING, Curvature, Information
from badpo.estimation.shrinkage import Mixture, inverted
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import lean_design

# Sides that differ by less, in standard units, are the same.
SAME = 0.25
# Quality at equally spaced nodes, in units of its spread.
NODES = np.linspace(-3.9, 3.9, 13)
LOG_MASS = log_softmax(-(NODES**2) / 2)
# Spread of care between annotators, as a share of its mean, and the scale of its prior; shares who click at random.
SPREADS, USUAL = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.75, 1.0, 1.3]), 0.5
CLICKERS = np.array([0.0, 0.03, 0.1, 0.2, 0.35, 0.5])
# Log-likelihood that common care has to gain (at 5 %, one-sided); above the other, in units of the quality's spread,
# votes are unanimous; annotators need so many votes on average.
FOLLOWED, MOST_CARE, FEWEST = 1.35, 6.0, 5
# A line in care has this chance beforehand, since whoever leans is found less often beside one, and is so steep at
# most, roughly.
ANY_LINE, STEEPEST, LINE_ROUNDS = 0.25, 1.75, 12
STEPS, NEAR, LONGEST_STEP = 40, 0.05, 3.0
LOOSE = 1e-3


@dataclass(frozen=True)
class Care(Mixture):
    r"""Care :math:`a_k` of m annotators, with the mean 1, shrunk toward it; NaN where nothing is known.

    The last part of the mixture is that of clicking at random.

    Attributes
    ----------
    spread : float
        Standard deviation of the care of the others between annotators.
    unknown : str
        Why nothing is known: "few" votes, "careless" or "unanimous" annotators; empty otherwise.
    n_votes : int array of shape (m,)
        Votes that tell.
    """

    spread: float
    unknown: str
    n_votes: Ints


# -- comparisons on which no lean acts -------------------------------------------------------------------------


class _SameVotes:
    """Votes on comparisons whose sides do not differ and that have several, in the order of their ``blocks``.

    A comparison is of a ``kind``: so many (``n_wins``) of so many votes (``size``) won.
    """

    def __init__(
        self,
        comparison: ArrayLike,
        sign: ArrayLike,
        annotator: ArrayLike,
        delta: ArrayLike,
        n_annotators: int,
        shift: ArrayLike = 0.0,
    ) -> None:
        c, y = np.asarray(comparison), np.asarray(sign, float)
        differs = (np.abs(delta) >= SAME).any(axis=1)
        kept = np.flatnonzero((np.bincount(c, differs)[c] == 0) & (np.bincount(c)[c] > 1))
        order, self.blocks = sorted_blocks(c[kept], y[kept] > 0)
        kept = kept[order]
        self.sign, self.annotator = y[kept], np.asarray(annotator)[kept]
        self.shift = np.broadcast_to(shift, c.shape)[kept]
        self.of = lean_design(self.annotator, np.ones((len(kept), 1)), n_annotators)
        sizes, number = np.unique(self.blocks.sizes, return_inverse=True)
        first = np.cumsum(sizes + 1) - sizes - 1
        self.size = np.repeat(sizes, sizes + 1)
        self.n_wins = np.arange(len(self.size)) - np.repeat(first, sizes + 1)
        self.kind = first[number] + self.blocks.sums(np.maximum(self.sign, 0.0)).astype(np.intp)

    def log_wins(self, scale: float) -> Floats:
        """Log-probability of every kind at each node, given its size; of shape (n_kinds, n_nodes)."""
        size, wins = self.size[:, None], self.n_wins[:, None]
        ways = -betaln(wins + 1, size - wins + 1) - np.log(size + 1)
        return ways + scale * wins * NODES - size * np.logaddexp(0, scale * NODES) + LOG_MASS

    def common_care(self) -> tuple[float, float]:
        """The most likely common care in units of the quality's spread, from the numbers of wins, and what it gains."""
        n = np.bincount(self.kind, minlength=len(self.size))

        def loss(scale: float) -> float:
            return -float(n @ logsumexp(self.log_wins(scale), axis=1))

        best = minimize_scalar(loss, bounds=(0.05, 8.0), method="bounded")
        return float(best.x), loss(0.0) - float(best.fun)


def equal_care_test(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int
) -> float:
    r"""P-value of the test that all annotators are equally careful; NaN where nothing tells.

    It uses the comparisons whose sides do not differ in any attribute, on which no lean acts. With equal care the
    number of wins s of T votes says all about the quality z, and the score of annotator k is

    .. math:: U_k = \sum_c y_{kc}\, E[z_c \mid s_c] - E[z_c p(z_c) \mid s_c]

    Its covariance V is exact at any number of votes, the common care is projected out, and the sum of squares is
    compared with :math:`c \chi^2_\nu` that has its mean tr V and its variance 2 tr V^2.

    Examples
    --------
    Annotator 0 votes at random beside three who agree:

    >>> sign = np.tile([1, 1, 1, 1, -1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1], 40)
    >>> votes = (np.repeat(np.arange(160), 4), sign, np.tile(np.arange(4), 160), np.zeros((640, 1)))
    >>> equal_care_test(*votes, 4) < 1e-6
    True
    """
    votes = _SameVotes(comparison, sign, annotator, delta, n_annotators)
    if not len(votes.sign):
        return np.nan
    scale, _ = votes.common_care()
    log_joint, size, wins = votes.log_wins(scale), votes.size, votes.n_wins
    mass, chance = softmax(log_joint, axis=1), np.exp(logsumexp(log_joint, axis=1))
    quality, expected = mass @ NODES, mass @ (NODES * expit(scale * NODES))
    squares = wins * (quality - expected) ** 2 + (size - wins) * expected**2
    pairs = (wins * quality - size * expected) ** 2 - squares
    # variance of a vote's score and covariance with another's, by their number
    own, between = (
        np.bincount(size, chance * each)[votes.blocks.sizes]
        for each in (squares / size, pairs / (size * (size - 1)))
    )
    vote = votes.blocks.comparison
    kind = votes.kind[vote]
    score = votes.of.T @ ((votes.sign > 0) * quality[kind] - expected[kind])
    layout = np.ones(len(vote)), votes.annotator, np.append(votes.blocks.starts, len(vote))
    cast = sparse.csr_array(layout, shape=(len(own), n_annotators))
    alone = sparse.diags_array(votes.of.T @ (own - between)[vote])
    return _sum_of_squares(score, (cast.T @ sparse.diags_array(between) @ cast + alone).tocsr())


def _sum_of_squares(score: Floats, variance: sparse.csr_array) -> float:
    """P-value of scores without their common part, from the first two moments of their squares' sum."""
    common = variance.sum(axis=1)
    total, square = common.sum(), common @ common
    # moments of V - v v' / sum(v), which need no dense matrix
    mean = variance.trace() - square / total
    if not mean > 1e-9 * total:
        return np.nan
    crossed = common @ (variance @ common)
    spread = (variance.data**2).sum() - 2 * crossed / total + (square / total) ** 2
    squares = ((score - common * (score.sum() / total)) ** 2).sum()
    return float(chdtrc(mean**2 / spread, squares * mean / spread))


# -- care ------------------------------------------------------------------------------------------------------


def fit_care(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    shift: ArrayLike = 0.0,
) -> Care:
    r"""Care by the marginal likelihood of the comparisons whose sides differ by less than a quarter of a unit.

    With the quality :math:`z \sim N(0, 1)` the logit is :math:`s_k z` plus what is known of it, and
    :math:`a_k = s_k / \bar s`. Slopes are normal around their mean with a spread :math:`\kappa` in units of it, or 0
    for a share of annotators who click at random. Everything is averaged over spread and share by the marginal
    likelihood (Laplace), under a half-normal prior of the spread with the scale ``USUAL`` and a flat one of the shares
    in ``CLICKERS``. Who chooses one side of an attribute nearly always is not taken for somebody who clicks at random.

    Parameters
    ----------
    comparison, sign, annotator, n_annotators
        As in `badpo.estimation.fit.fit_conditional`.
    delta : array of shape (n_votes, n_attributes)
        Of the responses' attributes, in standard units.
    shift : array of shape (n_votes,)
        What is known of the logits, such as leans toward the side that was shown first.

    Examples
    --------
    Annotators 0 to 3 agree and annotator 4 votes at random:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> care = np.array([1, 1, 1, 1, 0])
    >>> sign = np.where(random.logistic(size=(300, 5)) < quality[:, None] * care, 1, -1).ravel()
    >>> votes = (np.repeat(np.arange(300), 5), sign, np.tile(np.arange(5), 300), np.zeros((1500, 1)))
    >>> fitted = fit_care(*votes, 5)
    >>> bool(fitted.mean[4] + 3 * fitted.sd[4] < 1)
    True
    """
    votes = _SameVotes(comparison, sign, annotator, delta, n_annotators, shift)
    n_votes = np.bincount(votes.annotator, minlength=n_annotators)
    n_people = np.count_nonzero(n_votes)
    scale, gained = votes.common_care()
    reasons = {
        "few": n_people < 3 or n_votes.sum() < FEWEST * n_people,
        "careless": gained < FOLLOWED,
        "unanimous": scale > MOST_CARE,
    }
    unknown = next((why for why, holds in reasons.items() if holds), "")
    if unknown:
        nothing = np.full((n_annotators, 1), np.nan)
        return Care(nothing, nothing, np.ones_like(nothing), np.nan, unknown, n_votes)
    # by how many standard errors choices are off even, by the attribute where that is most
    toward = np.sign(delta) * np.asarray(sign)[:, None]
    of = lean_design(np.asarray(annotator), np.ones((len(toward), 1)), n_annotators).T
    partial = np.abs(of @ toward) / np.sqrt(np.maximum(of @ toward**2, 1))
    veto = np.maximum(partial.max(axis=1, initial=0.0) ** 2 - 4, 0.0)
    at, found = _likelihood(votes, np.full(n_annotators, scale)), []
    for spread in SPREADS:
        sd = spread * scale
        at, step, variance, log_marginal = _climbed(votes, at, sd)
        level = at.slopes.mean()
        gain = np.log1p(np.maximum(at.information.diagonal, 0.0) * sd**2)
        odds = at.clicking + (((at.slopes - level) / sd) ** 2 - veto + gain) / 2
        log_marginal -= (n_annotators - 1) * np.log(spread)
        found.append(((at.slopes + step) / level, np.sqrt(variance) / level, odds, log_marginal))
    means, sds, odds, log_marginals = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
    weight, weights = _some_click(odds, log_marginals)
    means, sds = np.pad(means, ((0, 0), (0, 1))), np.pad(sds, ((0, 0), (0, 1)), constant_values=LOOSE)
    level = (means * weights).sum(axis=1).mean()
    typical = float(np.sqrt(weight @ SPREADS**2))
    return Care(means / level, sds / level, weights, typical, "", n_votes)


def _some_click(odds: Floats, log_marginal: Floats) -> tuple[Floats, Floats]:
    """Weights of each spread, and of each annotator's parts, where some share may click at random.

    ``odds``, of shape (m, n_spreads), are those of the votes when an annotator does, rather than follow as the others.
    """
    share = CLICKERS[:, None, None]
    with np.errstate(divide="ignore"):
        clicks = np.log(share) + odds
    either = np.logaddexp(np.log1p(-share), clicks)
    log_prior = np.log(np.gradient(SPREADS)) - (SPREADS / USUAL) ** 2 / 2
    weight = softmax(log_marginal + either.sum(axis=1) + log_prior)
    chance = np.einsum("pk,pmk->mk", weight, np.exp(clicks - either))
    return weight.sum(axis=0), np.column_stack([weight.sum(axis=0) - chance, chance.sum(axis=1)])


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
    (score, clicking), entries = np.empty((2, len(votes.sign))), np.empty(blocks.n_pairs)
    for run in blocks.runs(np.zeros_like(blocks.starts), lambda size, _: size * max(size, len(NODES))):
        s, x, sign = (
            each[run.votes].reshape(-1, run.size, 1) for each in (slope, votes.shift, votes.sign)
        )
        chance = np.maximum(expit(sign * (s * NODES + x)), 1e-300)
        mass = np.log(chance).sum(axis=1, keepdims=True) + LOG_MASS
        value += float(logsumexp(mass, axis=2).sum())
        mass = softmax(mass, axis=2)
        rest = sign * (1 - chance) * NODES
        weighed = mass * rest
        mean = weighed.sum(axis=2)
        among = mean[:, :, None] * mean[:, None, :] - weighed @ rest.transpose(0, 2, 1)
        each = np.arange(run.size)
        among[:, each, each] += (mass * chance * (1 - chance)) @ NODES**2
        score[run.votes] = mean.ravel()
        clicking[run.votes] = np.log((mass * (expit(sign * x) / chance)).sum(axis=2)).ravel()
        entries[blocks.pairs(run.votes)] = among.ravel()
    at = Curvature(score, blocks.matrix(entries), NOTHING, NOTHING, NOTHING)
    return _At(slopes, value, votes.of.T @ score, Information(votes.of, at), votes.of.T @ clicking)


def _climbed(votes: _SameVotes, at: _At, spread: float) -> tuple[_At, Floats, Floats, float]:
    """Newton's way up from a point: its end, the last step, variances and the log marginal likelihood (Laplace).

    In a large pool two annotators share few comparisons: each slope's variance is then that beside known others.
    """
    m = len(at.slopes)

    def pulled(slopes: Floats) -> Floats:
        return (slopes - slopes.mean(axis=0)) / spread**2 + LOOSE * slopes

    def height(at: _At) -> float:
        return at.value - float(at.slopes @ pulled(at.slopes)) / 2

    for _ in range(STEPS):
        uphill = at.score - pulled(at.slopes)
        if m <= LARGEST_FACTORED:
            inverse, log_det = _inverse(at.information.among + pulled(np.eye(m)))
            step, variance = inverse @ uphill, np.diag(inverse)
        else:
            times = LinearOperator(
                (m, m), lambda x, at=at: at.information.times(x) + pulled(x), dtype=np.float64
            )
            variance = 1 / (np.maximum(at.information.diagonal, 0.0) + 1 / spread**2 + LOOSE)
            step = cg(times, uphill, rtol=1e-3, M=sparse.diags_array(variance))[0]
            log_det = -float(np.log(variance).sum())
        longest = float(np.abs(step).max())
        if longest < NEAR:
            break
        step *= min(1.0, LONGEST_STEP / longest)
        ways = (_likelihood(votes, at.slopes + 0.5**halved * step) for halved in range(12))
        least = height(at) - 1e-9
        higher = next((tried for tried in ways if height(tried) >= least), None)
        if higher is None:
            break
        at = higher
    return at, step, variance, height(at) - log_det / 2


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant; directions along which the likelihood bends upward are taken as bending down."""
    try:
        return inverted(matrix)
    except LinAlgError:
        size, along = np.linalg.eigh(matrix)
        return inverted((along * np.maximum(np.abs(size), LOOSE)) @ along.T)


# -- the line --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Leans toward one attribute beside care: the chance that there is a line, its slope and the variance of that.

    ``between`` is the variance about the line, ``offset`` care beyond the mean of those compared with an annotator.
    """

    chance: float
    slope: float
    open_slope: float
    between: float
    offset: Mixture

    def averaged(self, lean: Floats, se: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of what is left of leans, parts of care weighed by how well they explain the lean."""
        care, steep = self.offset, max(self.slope**2 - self.open_slope, 0.0)
        left = lean[:, None] - self.slope * care.means
        variance = se[:, None] ** 2 + steep * care.sds**2 + self.open_slope * care.means**2
        whole = variance + self.between
        log_weight = np.log(np.maximum(care.weights, 1e-300)) - (left**2 / whole + np.log(whole)) / 2
        found = Mixture(left, np.sqrt(variance), softmax(log_weight, axis=1))
        return found.mean, found.sd**2


class BesideCare(NamedTuple):
    """Leans as deviations from lines in care, the lines by attribute, and the p-values that all leans are on them."""

    leans: Leans
    lines: dict[int, Line]
    equal_leans_p: Floats


def beside_care(leans: Leans, care: Care) -> BesideCare:
    r"""Deviations from a line in care as far as there is one, and from the mean otherwise.

    .. math:: \hat d_k = b\, (a_k - \bar a) + r_k, \qquad
        \operatorname{var} r_k = s_k^2 + b^2 \operatorname{var} a_k + (a_k - \bar a)^2 \operatorname{var} b

    The line is fitted to shrunken care, which does not attenuate it as unshrunken care would (Berkson, 1950), with
    weights that fit what is left (Paule and Mandel, 1982). Its slope is zero beforehand with a chance of three in four
    and has otherwise a normal prior, which keeps it from running through noise where care hardly differs; the chance
    of a line is that of Savage and Dickey's ratio. Where the level of a lean is known, so is its shift by care, and
    there is no line. The p-value is of the squares of what is left over its variances, with m - 2 degrees of freedom;
    NaN without a line.
    """
    leans, lines = deepcopy(leans), {}
    own, finite = (leans.deviation, leans.se), (leans.finite_deviation, leans.finite_se)
    p_values = np.full(len(leans.absolute), np.nan)
    for j in np.flatnonzero(~leans.absolute & (care.unknown == "")).tolist():
        told, group = leans.se[:, j] > 0, leans.component[:, j]
        if told.sum() < 3:
            continue
        lines[j] = line = _line(leans.deviation[:, j], leans.se[:, j], care, group, told)
        for deviation, error in (own, finite):
            lean, se = deviation[:, j], error[:, j]
            mean, variance = line.averaged(lean, se)
            mean -= _means(mean, group, told)
            squares = mean**2 / variance
            moved, further = np.isfinite(lean) & (se > 0), line.chance * (mean - lean)
            # one or the other holds
            variance = (1 - line.chance) * (se**2 + further * (mean - lean)) + line.chance * variance
            lean[moved] += further[moved]
            se[moved] = np.sqrt(variance[moved])
        p_values[j] = chdtrc(np.isfinite(squares).sum() - 2, np.nansum(squares))
        if leans.covariance is not None:
            at = np.arange(j, leans.se.size, len(leans.absolute))
            leans.covariance[at, at] = np.where(told, leans.se[:, j] ** 2, np.nan)
    return BesideCare(leans, lines, p_values)


def _means(values: Floats, group: Ints, told: Bools) -> Floats:
    """Of each annotator's group, over those who are told; over all of them where a group has none."""
    means = pd.Series(np.where(told, values, np.nan)).groupby(group).transform("mean")
    return means.fillna(values[told].mean()).to_numpy()


def _line(lean: Floats, se: Floats, care: Care, group: Ints, told: Bools) -> Line:
    """A line through the origin, its slope and the variance about it in turn."""
    level = _means(care.mean, group, told)
    x, y, variance, open_care = (each[told] for each in (care.mean - level, lean, se**2, care.sd**2))
    slope, between = 0.0, 0.0
    for _ in range(LINE_ROUNDS):
        weight = 1 / (between + variance + slope**2 * open_care)
        open_slope = float(1 / (weight @ x**2 + STEEPEST**-2))
        slope = float(weight @ (x * y) * open_slope)
        rest = weight * (y - slope * x) ** 2
        between = max(between + float((rest.sum() - (len(x) - 2)) / (weight @ rest)), 0.0)
    against = (1 - ANY_LINE) / ANY_LINE * STEEPEST / math.sqrt(open_slope)
    against *= math.exp(-(slope**2) / open_slope / 2)
    offset = Mixture(care.means - level[:, None], care.sds, care.weights)
    return Line(1 / (1 + against), slope, open_slope, between, offset)
