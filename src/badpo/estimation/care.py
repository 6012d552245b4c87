r"""Care beside lean: how closely an annotator follows quality, beside what they prefer whatever it is.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k q_c + \theta_k \cdot d_j

The care :math:`a_k` has the mean 1; who clicks at random has care 0. Adding :math:`c\, a_k` to every lean changes
nothing that votes show (:math:`q_c - c \cdot d_c` is as good a quality), so leans count from a line in care. Care is
found where no lean acts: on comparisons whose sides do not differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import chdtrc, expit, gammaln, logsumexp, softmax

from badpo.estimation.conditional_likelihood import AlikeComparisons, ComparisonBlocks, sorted_blocks
from badpo.estimation.fit import Leans
from badpo.estimation.newton import LARGEST_FACTORED, NOTHING, Curvature, Information
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import lean_design

# Sides that differ by less, in standard units, are the same.
SAME = 0.25
# Quality at equally spaced nodes, in units of its spread.
NODES = np.linspace(-3.9, 3.9, 13)
LOG_MASS = -(NODES**2) / 2 - logsumexp(-(NODES**2) / 2)
# Spread of care between annotators, as a share of its mean.
SPREADS = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.75, 1.0, 1.3])
# Log-likelihood that common care has to gain (at 5 %, one-sided); above the other, in units of the quality's spread,
# votes are unanimous; annotators need so many votes on average.
CLICKERS = np.array([0.0, 0.03, 0.1, 0.2, 0.35, 0.5])
USUAL = 0.5
FOLLOWED = 1.35
MOST_CARE = 6.0
FEWEST = 5
# A line in care is this steep at most, roughly.
STEEPEST = 1.75
STEPS = 40
NEAR = 0.05
LONGEST_STEP = 3.0
LINE_ROUNDS = 12
LOOSE = 1e-3


@dataclass(frozen=True)
class Care:
    r"""Care :math:`a_k` of m annotators, with the mean 1, shrunk toward it.

    Attributes
    ----------
    means, sds, weights : array of shape (m, n_parts)
        Parts of a mixture of normals; NaN where nothing is known. The last part is that of clicking at random.
    spread : float
        Standard deviation of the care of the others between annotators.
    unknown : str
        Why nothing is known: "few" votes, "careless" or "unanimous" annotators; empty otherwise.
    n_votes : int array of shape (m,)
        Votes that tell.
    """

    means: Floats
    sds: Floats
    weights: Floats
    spread: float
    unknown: str
    n_votes: Ints

    @property
    def care(self) -> Floats:
        """Mean of every annotator's care."""
        return (self.means * self.weights).sum(axis=1)

    @property
    def variance(self) -> Floats:
        """Of what is not known of the care."""
        centered = self.means - self.care[:, None]
        return (self.weights * (self.sds**2 + centered**2)).sum(axis=1)


# -- comparisons on which no lean acts -------------------------------------------------------------------------


@dataclass(frozen=True)
class _SameVotes:
    """Votes on comparisons whose sides do not differ and that have several, in the order of their blocks."""

    sign: Floats
    annotator: Ints
    shift: Floats
    blocks: ComparisonBlocks
    n_annotators: int

    @classmethod
    def among(
        cls,
        comparison: ArrayLike,
        sign: ArrayLike,
        annotator: ArrayLike,
        delta: ArrayLike,
        n_annotators: int,
        shift: ArrayLike = 0.0,
    ) -> _SameVotes:
        c, differs = np.asarray(comparison), (np.abs(delta) >= SAME).any(axis=1)
        kept = (np.bincount(c, differs)[c] == 0) & (np.bincount(c)[c] > 1)
        y, who = np.asarray(sign, float)[kept], np.asarray(annotator)[kept]
        order, blocks = sorted_blocks(c[kept], y > 0)
        shifts = np.broadcast_to(np.asarray(shift, float), c.shape)[kept][order]
        return cls(y[order], who[order], shifts, blocks, n_annotators)

    @cached_property
    def of(self) -> sparse.csr_array:
        """From annotators to votes."""
        return lean_design(self.annotator, np.ones((len(self.sign), 1)), self.n_annotators)

    @cached_property
    def wins(self) -> Ints:
        """Of each comparison."""
        return self.blocks.sums(np.maximum(self.sign, 0.0)).astype(np.intp)

    @cached_property
    def runs(self) -> list[AlikeComparisons]:
        """Comparisons with equally many votes."""
        nodes = len(NODES)
        return self.blocks.runs(
            np.zeros_like(self.blocks.starts), lambda size, _: size * max(size, nodes)
        )

    def common_care(self) -> tuple[float, float]:
        """The most likely common care in units of the quality's spread, from the numbers of wins, and what it gains."""
        sizes = np.unique(self.blocks.sizes).tolist()
        counts = [
            np.bincount(self.wins[self.blocks.sizes == size], minlength=size + 1) for size in sizes
        ]

        def loss(scale: float) -> float:
            tables = (logsumexp(_log_wins(size, scale), axis=1) for size in sizes)
            return -sum(float(n @ table) for n, table in zip(counts, tables, strict=True))

        best = minimize_scalar(loss, bounds=(0.05, 8.0), method="bounded")
        return float(best.x), float(loss(0.0) - best.fun)


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
    votes = _SameVotes.among(comparison, sign, annotator, delta, n_annotators)
    if not len(votes.sign):
        return np.nan
    scale, _ = votes.common_care()
    quality, expected, own, between = np.empty((4, len(votes.wins)))
    for size in np.unique(votes.blocks.sizes).tolist():
        of = votes.blocks.sizes == size
        by_wins, by_chance, own[of], between[of] = _by_wins(size, scale)
        quality[of], expected[of] = by_wins[votes.wins[of]], by_chance[votes.wins[of]]
    vote = votes.blocks.comparison
    score = (votes.sign > 0) * quality[vote] - expected[vote]
    layout = np.ones(len(vote)), votes.annotator, np.append(votes.blocks.starts, len(vote))
    cast = sparse.csr_array(layout, shape=(len(own), n_annotators))
    alone = np.bincount(votes.annotator, (own - between)[vote], n_annotators)
    variance = cast.T @ (sparse.diags_array(between) @ cast) + sparse.diags_array(alone)
    return _sum_of_squares(votes.of.T @ score, sparse.csr_array(variance))


def _log_wins(size: int, scale: float) -> Floats:
    """Log-probability of s wins at each node, of shape (size + 1, n_nodes)."""
    s, x = np.arange(size + 1)[:, None], scale * NODES
    ways = gammaln(size + 1) - gammaln(s + 1) - gammaln(size - s + 1)
    return ways + s * x - size * np.logaddexp(0, x) + LOG_MASS


def _by_wins(size: int, scale: float) -> tuple[Floats, Floats, float, float]:
    """By the number of wins of T votes E[z | s] and E[z p | s]; the score's variance and covariance."""
    log_joint, s = _log_wins(size, scale), np.arange(size + 1)
    chance, mass = np.exp(logsumexp(log_joint, axis=1)), softmax(log_joint, axis=1)
    quality, expected = mass @ NODES, mass @ (NODES * expit(scale * NODES))
    mine, other = quality - expected, -expected
    own = chance @ (s * mine**2 + (size - s) * other**2) / size
    pairs = (
        s * (s - 1) * mine**2
        + 2 * s * (size - s) * mine * other
        + (size - s) * (size - s - 1) * other**2
    )
    return quality, expected, float(own), float(chance @ pairs) / (size * (size - 1))


def _sum_of_squares(score: Floats, variance: sparse.csr_array) -> float:
    """P-value of scores without their common part, from the first two moments of their squares' sum."""
    common = np.asarray(variance.sum(axis=1)).ravel()
    total = common.sum()
    if not total > 1e-9 * max(float(variance.diagonal().sum()), 1e-300):
        return np.nan
    score = score - common * (score.sum() / total)
    # moments of V - v v' / sum(v), which need no dense matrix
    mean = float(variance.diagonal().sum() - (common**2).sum() / total)
    crossed = common @ (variance @ common)
    spread = float((variance.data**2).sum() - 2 * crossed / total + ((common**2).sum() / total) ** 2)
    if not mean > 1e-9 * total:
        return np.nan
    return float(chdtrc(mean**2 / spread, (score**2).sum() * mean / spread))


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
    :math:`a_k = s_k / \bar s`. Slopes are normal around their mean with a spread :math:`\kappa` in units of it, over
    which everything is averaged by its marginal likelihood (Laplace) under a flat prior. A slope may fall below zero:
    a logarithm would put who clicks at random at minus infinity.

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
    >>> bool(fitted.care[4] + 3 * fitted.variance[4] ** 0.5 < 1)
    True
    """
    votes = _SameVotes.among(comparison, sign, annotator, delta, n_annotators, shift)
    n_votes = np.bincount(votes.annotator, minlength=n_annotators)
    n_people = np.count_nonzero(n_votes)
    are_few = n_people < 3 or n_votes.sum() < FEWEST * n_people
    scale, gained = (np.nan, np.nan) if are_few else votes.common_care()
    reasons = {"few": are_few, "careless": gained < FOLLOWED, "unanimous": scale > MOST_CARE}
    unknown = next((why for why, holds in reasons.items() if holds), "")
    if unknown:
        nothing = np.full((n_annotators, 1), np.nan)
        return Care(nothing, nothing, np.ones_like(nothing), np.nan, unknown, n_votes)
    partial = _partiality(np.asarray(sign), np.asarray(annotator), np.asarray(delta), n_annotators)
    at, found = _likelihood(votes, np.full(n_annotators, scale)), []
    for spread in SPREADS:
        top = _top(votes, at, spread * scale)
        at, level = top.at, top.at.slopes.mean()
        odds = at.clicking + ((at.slopes - level) / (spread * scale)) ** 2 / 2
        odds -= np.maximum(partial**2 - 4, 0.0) / 2
        odds += np.log(np.maximum(at.information.diagonal, 0.0) * (spread * scale) ** 2 + 1) / 2
        log_marginal = top.height - (n_annotators - 1) * np.log(spread) - top.log_det / 2
        found.append(((at.slopes + top.step) / level, np.sqrt(top.variance) / level, odds, log_marginal))
    means, sds, odds, log_marginals = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
    return _some_click(means, sds, odds, log_marginals, n_votes)


def _partiality(sign: Floats, annotator: Ints, delta: Floats, n_annotators: int) -> Floats:
    """How many standard errors from even odds each annotator's choices are, by the attribute where that is most."""
    toward = np.sign(delta) * sign[:, None]
    of = lean_design(annotator, np.ones((len(sign), 1)), n_annotators)
    return np.max(np.abs(of.T @ toward) / np.sqrt(np.maximum(of.T @ toward**2, 1)), axis=1, initial=0.0)


def _some_click(means: Floats, sds: Floats, odds: Floats, log_marginal: Floats, n_votes: Ints) -> Care:
    """Care where some share of the annotators may have none at all.

    Given are the moments with each spread, and for each annotator the log-odds of the votes when they click at random
    rather than follow as the others do.
    """
    share = CLICKERS[:, None, None]
    with np.errstate(divide="ignore"):
        either = np.logaddexp(np.log1p(-share), np.log(share) + odds)
        clicks = np.exp(np.log(share) + odds - either)
    log_prior = np.log(np.gradient(SPREADS)) - (SPREADS / USUAL) ** 2 / 2
    weight = softmax(log_marginal + either.sum(axis=1) + log_prior)
    chance = np.einsum("pk,pmk->mk", weight, clicks)
    weights = np.column_stack([weight.sum(axis=0) - chance, chance.sum(axis=1)])
    means, sds = np.pad(means, ((0, 0), (0, 1))), np.pad(sds, ((0, 0), (0, 1)), constant_values=LOOSE)
    level = (means * weights).sum(axis=1).mean()
    spread = float(np.sqrt(weight.sum(axis=0) @ SPREADS**2))
    return Care(means / level, sds / level, weights, spread, "", n_votes)


class _At(NamedTuple):
    """The marginal likelihood at some slopes, and its derivatives by Louis's formula.

    ``score`` is that of each slope, ``clicking`` how much more likely the votes were if that slope alone were 0.
    """

    slopes: Floats
    value: float
    score: Floats
    information: Information
    clicking: Floats


class _Top(NamedTuple):
    """Near the highest likelihood and prior: the last step, the height, variances and log-determinant."""

    at: _At
    step: Floats
    height: float
    variance: Floats
    log_det: float


def _likelihood(votes: _SameVotes, slopes: Floats) -> _At:
    value, slope = 0.0, slopes[votes.annotator]
    (score, clicking), entries = np.empty((2, len(votes.sign))), np.empty(votes.blocks.n_pairs)
    for run in votes.runs:
        s, x, sign = (
            each[run.votes].reshape(-1, run.size, 1) for each in (slope, votes.shift, votes.sign)
        )
        chance = np.maximum(expit(sign * (s * NODES + x)), 1e-300)
        mass = np.log(chance).sum(axis=1) + LOG_MASS
        highest = mass.max(axis=1, keepdims=True)
        mass = np.exp(mass - highest)
        total = mass.sum(axis=1, keepdims=True)
        value += float((np.log(total) + highest).sum())
        mass = (mass / total)[:, None, :]
        rest = sign * (1 - chance) * NODES
        weighed = mass * rest
        mean = weighed.sum(axis=2)
        among = mean[:, :, None] * mean[:, None, :] - weighed @ rest.transpose(0, 2, 1)
        each = np.arange(run.size)
        among[:, each, each] += (mass * chance * (1 - chance)) @ NODES**2
        score[run.votes] = mean.ravel()
        clicking[run.votes] = np.log((mass * (expit(sign * x) / chance)).sum(axis=2)).ravel()
        entries[votes.blocks.pairs(run.votes)] = among.ravel()
    extras = NOTHING, np.zeros((len(score), 0)), np.zeros((0, 0))
    information = Information(votes.of, Curvature(score, votes.blocks.matrix(entries), *extras))
    return _At(slopes, value, votes.of.T @ score, information, votes.of.T @ clicking)


def _top(votes: _SameVotes, at: _At, spread: float) -> _Top:
    """Newton's way up from a point, by halved steps where a whole one falls."""

    def pulled(slopes: Floats) -> Floats:
        return (slopes - slopes.mean()) / spread**2 + LOOSE * slopes

    def height(at: _At) -> float:
        return at.value - float(at.slopes @ pulled(at.slopes)) / 2

    for _ in range(STEPS):
        step, variance, log_det = _newton(at.information, pulled, spread, at.score - pulled(at.slopes))
        longest = float(np.abs(step).max())
        if longest < NEAR:
            break
        step *= min(1.0, LONGEST_STEP / longest)
        ways = (_likelihood(votes, at.slopes + 0.5**halved * step) for halved in range(12))
        higher = next((tried for tried in ways if height(tried) >= height(at) - 1e-9), None)
        if higher is None:
            break
        at = higher
    return _Top(at, step, height(at), variance, log_det)


def _newton(
    information: Information, pulled: Callable[[Floats], Floats], spread: float, uphill: Floats
) -> tuple[Floats, Floats, float]:
    """Newton's step, and of minus the second derivative the inverse's diagonal and the log-determinant.

    In a large pool two annotators share few comparisons: each slope's variance is then that beside known others.
    """
    m, held = len(uphill), 1 / spread**2 + LOOSE
    if m <= LARGEST_FACTORED:
        inverse, log_det = _inverse(information.among + held * np.eye(m) - 1 / (m * spread**2))
        return inverse @ uphill, np.diag(inverse), log_det
    whole = np.maximum(information.diagonal, 0.0) + held
    times = LinearOperator((m, m), matvec=lambda x: information.times(x) + pulled(x), dtype=np.float64)
    step = cg(times, uphill, rtol=1e-3, M=sparse.diags_array(1 / whole))[0]
    return step, 1 / whole, float(np.log(whole).sum())


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant; directions along which the likelihood bends upward are taken as bending down."""
    try:
        factor = cho_factor(matrix, lower=True)
        return cho_solve(factor, np.eye(len(matrix))), 2 * float(np.log(np.diag(factor[0])).sum())
    except LinAlgError:
        size, along = np.linalg.eigh(matrix)
        size = np.maximum(np.abs(size), LOOSE)
        return (along / size) @ along.T, float(np.log(size).sum())


# -- the line --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Leans toward one attribute beside care: the chance that there is a line, its slope and what is open of that.

    Parts of a mixture, of shape (m, n_parts), are an annotator's care beyond the mean of those compared with them;
    ``between`` is the variance about the line.
    """

    chance: float
    slope: float
    open_slope: float
    between: float
    offset: Floats
    sds: Floats
    weights: Floats

    def about(self, lean: Floats, se: Floats) -> tuple[Floats, Floats]:
        """What is left of leans if the care is that of each part, and its errors, of shape (m, n_parts)."""
        steep = max(self.slope**2 - self.open_slope, 0.0)
        variance = se[:, None] ** 2 + steep * self.sds**2 + self.open_slope * self.offset**2
        return lean[:, None] - self.slope * self.offset, np.sqrt(variance)

    def averaged(self, lean: Floats, se: Floats) -> tuple[Floats, Floats]:
        """Mean and variance of what is left, parts weighed by how well they explain the lean."""
        left, errors = self.about(lean, se)
        whole = errors**2 + self.between
        weight = softmax(
            np.log(np.maximum(self.weights, 1e-300)) - (left**2 / whole + np.log(whole)) / 2, axis=1
        )
        mean = (weight * left).sum(axis=1)
        return mean, (weight * (errors**2 + (left - mean[:, None]) ** 2)).sum(axis=1)


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
    weights that fit what is left (Paule and Mandel, 1982). Its slope is zero with an even chance and has otherwise a
    normal prior, which keeps it from running through noise where care hardly differs; the chance of a line is that of
    Savage and Dickey's ratio. Where the level of a lean is known, so is its shift by care, and there is no line. The
    p-value is of the squares of what is left over its variances, with m - 2 degrees of freedom; NaN without a line.
    """
    names = ("deviation", "se", "finite_deviation", "finite_se")
    changed: dict[str, Any] = {name: getattr(leans, name).copy() for name in names}
    if leans.covariance is not None:
        changed["covariance"] = leans.covariance.copy()
    lines, p_values = {}, np.full(len(leans.absolute), np.nan)
    for j in np.flatnonzero(~leans.absolute & (care.unknown == "")).tolist():
        told, group = leans.se[:, j] > 0, leans.component[:, j]
        if told.sum() < 3:
            continue
        lines[j] = line = _line(
            leans.deviation[:, j], leans.se[:, j], care, _means(care.care, group, told), told
        )
        for value, error in (names[:2], names[2:]):
            lean, se = changed[value][:, j], changed[error][:, j]
            mean, variance = line.averaged(lean, se)
            mean -= _means(np.where(told, mean, 0.0), group, told)
            squares = mean**2 / variance
            variance = (1 - line.chance) * (
                se**2 + line.chance * (lean - mean) ** 2
            ) + line.chance * variance
            moved = np.isfinite(lean) & (se > 0)
            lean[moved] += line.chance * (mean - lean)[moved]
            se[moved] = np.sqrt(variance[moved])
        p_values[j] = chdtrc(np.isfinite(squares).sum() - 2, np.nansum(squares))
        if leans.covariance is not None:
            own = np.arange(j, leans.se.size, len(leans.absolute))
            changed["covariance"][own, own] = np.where(told, changed["se"][:, j] ** 2, np.nan)
    return BesideCare(replace(leans, **changed), lines, p_values)


def _line(lean: Floats, se: Floats, care: Care, level: Floats, told: Bools) -> Line:
    known = (care.care - level)[told], lean[told], se[told], care.variance[told]
    slope, open_slope, between = _slope(*known)
    against = STEEPEST / np.sqrt(open_slope) * np.exp(-(slope**2) / open_slope / 2)
    parts = care.means - level[:, None], care.sds, care.weights
    return Line(1 / (1 + against), slope, open_slope, between, *parts)


def _means(values: Floats, group: Ints, told: Bools) -> Floats:
    """Of each annotator's group, over those who are told; over all of them where a group has none."""
    number = np.unique(group, return_inverse=True)[1].reshape(-1)
    n = np.bincount(number, told)
    means = np.bincount(number, told * values) / np.maximum(n, 1)
    return np.where(n > 0, means, values[told].mean())[number]


def _slope(care: Floats, lean: Floats, se: Floats, open_care: Floats) -> tuple[float, float, float]:
    """The slope of a line through the origin and its variance; the variance about it."""
    b, between = 0.0, 0.0
    for _ in range(LINE_ROUNDS):
        weight = 1 / (between + se**2 + b**2 * open_care)
        open_slope = 1 / (weight @ care**2 + STEEPEST**-2)
        b = float(weight @ (care * lean) * open_slope)
        rest = weight * (lean - b * care) ** 2
        between = max(between + (rest.sum() - (len(care) - 2)) / (weight @ rest), 0.0)
    return b, float(open_slope), between
