r"""Lean and care in one model: how closely an annotator follows quality, beside what they prefer whatever it is.

.. math:: \operatorname{logit} P(a \text{ wins}) = a_k q_c + \theta_k \cdot d_j

The care :math:`a_k` has the mean 1; who clicks at random has care 0. Adding :math:`c\, a_k` to every lean changes
nothing that votes show (:math:`q_c - c \cdot d_c` is as good a quality), so leans count from a line in care.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.special import chdtrc, expit, gammaln, logsumexp, softmax

from badpo.estimation.conditional_likelihood import AlikeComparisons, sorted_blocks
from badpo.estimation.fit import LeanVotes, lean_votes
from badpo.theory import Floats
from badpo.theory.identifiability import lean_design

# Quality at equally spaced nodes, in units of its spread.
NODES = np.linspace(-4.5, 4.5, 19)
LOG_MASS = -(NODES**2) / 2 - logsumexp(-(NODES**2) / 2)
# Spread of care between annotators, as a share of its mean.
SPREADS = np.array([0.03, 0.12, 0.25, 0.4, 0.55, 0.75, 1.0, 1.3])
# Log-likelihood that common care has to gain (at 5 %, one-sided); above the other, in units of the quality's spread,
# votes are unanimous.
FOLLOWED = 1.35
MOST_CARE = 6.0
# A lean without information stays near the others; a line in care is this steep at most, roughly.
WIDEST_LEAN = 3.0
STEEPEST = 2.5
STEPS = 40
TOLERANCE = 1e-5
LONGEST_STEP = 3.0
LINE_ROUNDS = 8
LOOSE = 1e-3


@dataclass(frozen=True)
class Care:
    r"""Care of m annotators and their leans toward q attributes given it.

    Attributes
    ----------
    care, care_se : array of shape (m,)
        :math:`a_k` with the mean 1, shrunk toward it, and the standard deviation of what is not known of it. NaN, as
        everything else, where nobody follows any quality or all agree about everything.
    spread : float
        Standard deviation of care between annotators, averaged over what the votes leave open.
    deviation, se : array of shape (m, q)
        :math:`\theta_k` minus the line :math:`t + b\, a_k`, and its standard error, that of the care included.
    slope : array of shape (q,)
        The line's b.
    equal_leans_p : array of shape (q,)
        P-value of the test that all leans lie on the line, with m - 2 degrees of freedom.
    """

    care: Floats
    care_se: Floats
    spread: float
    deviation: Floats
    se: Floats
    slope: Floats
    equal_leans_p: Floats


# -- is care equal? ------------------------------------------------------------------------------------------


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
    difference = np.asarray(delta, float)
    same = (
        np.bincount(np.asarray(comparison), (difference != 0).any(axis=1))[np.asarray(comparison)] == 0
    )
    won, who = np.asarray(sign)[same] > 0, np.asarray(annotator)[same]
    order, blocks = sorted_blocks(np.asarray(comparison)[same], won)
    won, who = won[order], who[order]
    if not len(won):
        return np.nan
    wins = blocks.sums(won.astype(np.int64))
    scale = _common_care(blocks.sizes, wins)
    score, entries = np.zeros(len(won)), np.zeros(blocks.n_pairs)
    for run in blocks.runs(np.zeros_like(wins), lambda size, _: size**2):
        at = _by_wins(run.size, scale)
        s = wins[run.comparisons]
        score[run.votes] = (
            won[run.votes].reshape(-1, run.size) * at.quality[s, None] - at.expected[s, None]
        ).ravel()
        among = np.full((run.size, run.size), at.between)
        np.fill_diagonal(among, at.own)
        entries[blocks.pairs(run.votes)] = np.tile(among.ravel(), len(s))
    of = sparse.csr_array(
        (np.ones(len(who)), (np.arange(len(who)), who)), shape=(len(who), n_annotators)
    )
    variance = sparse.csr_array(of.T @ (blocks.matrix(entries) @ of))
    return _sum_of_squares(of.T @ score, variance)


def _nothing_known(m: int, q: int) -> Care:
    nobody, no_lean = np.full(m, np.nan), np.full((m, q), np.nan)
    return Care(nobody, nobody, np.nan, no_lean, no_lean, no_lean.mean(axis=0), no_lean.mean(axis=0))


class _Wins(NamedTuple):
    """By the number of wins of T votes: E[z | s] and E[z p | s]; the score's variance and covariance."""

    quality: Floats
    expected: Floats
    own: float
    between: float


def _log_wins(size: int, scale: float) -> Floats:
    """Log-probability of s wins at each node, of shape (size + 1, n_nodes)."""
    s, x = np.arange(size + 1)[:, None], scale * NODES
    ways = gammaln(size + 1) - gammaln(s + 1) - gammaln(size - s + 1)
    return ways + s * x - size * np.logaddexp(0, x) + LOG_MASS


def _by_wins(size: int, scale: float) -> _Wins:
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
    return _Wins(quality, expected, float(own), float(chance @ pairs) / max(size * (size - 1), 1))


def _common_care(sizes: ArrayLike, wins: ArrayLike) -> float:
    """The most likely common care in units of the quality's spread, from the numbers of wins alone."""
    kinds, n = np.unique(np.column_stack([sizes, wins]), axis=0, return_counts=True)

    def loss(scale: float) -> float:
        tables = {size: logsumexp(_log_wins(size, scale), axis=1) for size in set(kinds[:, 0].tolist())}
        return -sum(
            k * tables[size][won] for (size, won), k in zip(kinds.tolist(), n.tolist(), strict=True)
        )

    return float(minimize_scalar(loss, bounds=(0.05, 8.0), method="bounded").x)


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


# -- care and leans ------------------------------------------------------------------------------------------


def fit_care(
    comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, delta: ArrayLike, n_annotators: int
) -> Care:
    r"""Care and leans by the marginal likelihood, with the quality drawn from one normal distribution.

    With :math:`z \sim N(0, 1)` the logit is :math:`s_k z + \theta_k \cdot d`: the mean of the quality given the
    attributes is part of the leans' line, and its spread is part of :math:`s`. Slopes are normal around their mean
    with a spread :math:`\kappa` in units of it, over which everything is averaged by its marginal likelihood
    (Laplace) under a flat prior; leans have a prior of sd 3 around their mean. A slope may fall below zero: a
    logarithm would put who clicks at random at minus infinity.

    Comparisons have to be given to annotators at random, as for `badpo.estimation.alternative_estimators.fit_random`.

    Examples
    --------
    Annotators 0 to 3 agree and annotator 4 votes at random:

    >>> random = np.random.default_rng(0)
    >>> quality = 2 * random.standard_normal(300)
    >>> care = np.array([1, 1, 1, 1, 0])
    >>> sign = np.where(random.logistic(size=(300, 5)) < quality[:, None] * care, 1, -1).ravel()
    >>> votes = (np.repeat(np.arange(300), 5), sign, np.tile(np.arange(5), 300), np.zeros((1500, 1)))
    >>> fitted = fit_care(*votes, 5)
    >>> bool(fitted.care[4] + 3 * fitted.care_se[4] < 1)
    True
    """
    votes = lean_votes(comparison, sign, annotator, delta, n_annotators, free_quality=False)
    sizes = votes.blocks.sizes
    scale = (
        _common_care(sizes, votes.blocks.sums((votes.sign > 0).astype(np.int64))) if len(sizes) else 1.0
    )
    problem = _Problem(votes)
    start = np.append(np.full(n_annotators, scale), np.zeros(n_annotators * problem.q))
    point, height, *_ = problem.top(start, SPREADS[0] * scale)
    # slopes of 0 stay there, as quality and its opposite are equally likely
    careless = problem.top(np.zeros_like(start), SPREADS[0] * scale)[1]
    scale = abs(float(point[:n_annotators].mean()))
    if height - careless < FOLLOWED or scale > MOST_CARE:
        return _nothing_known(n_annotators, problem.q)
    found, log_marginal = [], []
    for spread in SPREADS:
        point, height, inverse, log_det = problem.top(point, spread * scale)
        log_marginal.append(height - (n_annotators - 1) * np.log(spread) - log_det / 2)
        found.append(_given(point, inverse, n_annotators))
    weight = softmax(np.array(log_marginal) + np.log(np.gradient(SPREADS)))
    care, care_covariance = _mixed(weight, [g.care for g in found], [g.care_covariance for g in found])
    deviation, se, p = [], [], []
    for j in range(votes.delta.shape[1]):
        lines = [g.lines[j] for g in found]
        mine, around = _mixed(weight, [x.deviation for x in lines], [x.about_the_line for x in lines])
        whole = sum(w * x.line for w, x in zip(weight, lines, strict=True))
        deviation.append(mine)
        se.append(np.sqrt(np.maximum(np.diag(around + whole), 0.0)))
        p.append(_on_the_line(mine, around))
    slope = np.array(
        [sum(w * g.lines[j].slope for w, g in zip(weight, found, strict=True)) for j in range(len(p))]
    )
    return Care(
        care,
        np.sqrt(np.maximum(np.diag(care_covariance), 0.0)),
        float(weight @ SPREADS),
        np.column_stack(deviation),
        np.column_stack(se),
        slope,
        np.array(p),
    )


class _Problem:
    """The penalised likelihood of slopes and leans, in this order and annotator by annotator."""

    def __init__(self, votes: LeanVotes) -> None:
        m, q = len(votes.anchored), votes.delta.shape[1]
        self.votes, self.m, self.q = votes, m, q
        self._won = (votes.sign > 0).astype(float)
        self._of = lean_design(votes.annotator, np.ones((len(self._won), 1)), m)
        self._design = lean_design(votes.annotator, votes.delta, m)
        self._runs = votes.blocks.runs(
            np.zeros_like(votes.blocks.starts), lambda size, _: size * len(NODES)
        )

    def _at_nodes(self, point: Floats) -> Iterator[tuple[AlikeComparisons, Floats, Floats]]:
        """Runs of n comparisons, the votes' logits at the nodes (n, T, H) and log terms (n, H)."""
        slope, shift = self._of @ point[: self.m], self._design @ point[self.m :]
        for run in self._runs:
            s, x, won = (each[run.votes].reshape(-1, run.size, 1) for each in (slope, shift, self._won))
            logits = s * NODES + x
            yield run, logits, (won * logits - np.logaddexp(0.0, logits)).sum(axis=1) + LOG_MASS

    def value(self, point: Floats, precision: Floats) -> float:
        """Log-likelihood and log prior."""
        total = sum(float(logsumexp(terms, axis=1).sum()) for _, _, terms in self._at_nodes(point))
        return total - float(point @ precision @ point) / 2

    def derivatives(self, point: Floats) -> tuple[Floats, Floats]:
        """The likelihood's score, and its information by Louis's formula."""
        by_node, plain = np.empty(len(self._won)), np.empty(len(self._won))
        entries = np.empty((3, self.votes.blocks.n_pairs))
        for run, logits, terms in self._at_nodes(point):
            mass, chance = softmax(terms, axis=1)[:, None, :], expit(logits)
            rest = self._won[run.votes].reshape(-1, run.size, 1) - chance
            both = np.concatenate([rest * NODES, rest], axis=1)
            mean = (mass * both).sum(axis=2)
            among = mean[:, :, None] * mean[:, None, :] - (mass * both) @ both.transpose(0, 2, 1)
            own, size = mass * chance * (1 - chance), run.size
            each = np.arange(size)
            for row, column, power in ((0, 0, 2), (0, size, 1), (size, size, 0)):
                among[:, row + each, column + each] += own @ NODES**power
            at = self.votes.blocks.pairs(run.votes)
            entries[0, at] = among[:, :size, :size].ravel()
            entries[1, at] = among[:, :size, size:].ravel()
            entries[2, at] = among[:, size:, size:].ravel()
            by_node[run.votes], plain[run.votes] = mean[:, :size].ravel(), mean[:, size:].ravel()
        slopes, mixed, leans = (self.votes.blocks.matrix(each) for each in entries)
        across = self._of.T @ (mixed @ self._design)
        blocks = [
            [self._of.T @ (slopes @ self._of), across],
            [across.T, self._design.T @ (leans @ self._design)],
        ]
        score = np.concatenate([self._of.T @ by_node, self._design.T @ plain])
        return score, sparse.block_array(blocks).toarray()

    def prior(self, spread: float) -> Floats:
        """Precision of slopes around their mean and of leans around theirs; next to none of the means."""
        centered = np.eye(self.m) - 1 / self.m
        whole = np.zeros((self.m * (1 + self.q),) * 2)
        whole[: self.m, : self.m] = centered / spread**2
        whole[self.m :, self.m :] = np.kron(centered, np.eye(self.q)) / WIDEST_LEAN**2
        return whole + LOOSE * np.eye(len(whole))

    def top(self, point: Floats, spread: float) -> tuple[Floats, float, Floats, float]:
        """The top near a point, its height, the inverse of minus the second derivative and its log-determinant."""
        precision = self.prior(spread)
        height = self.value(point, precision)
        for _ in range(STEPS):
            score, information = self.derivatives(point)
            inverse, log_det = _inverse(information + precision)
            step = inverse @ (score - precision @ point)
            longest = float(np.abs(step).max())
            if longest < TOLERANCE:
                break
            step *= min(1.0, LONGEST_STEP / longest)
            for halvings in range(12):
                tried = point + 0.5**halvings * step
                reached = self.value(tried, precision)
                if reached >= height - 1e-9:
                    break
            else:
                break
            point, height = tried, reached
        return point, height, inverse, log_det


def _inverse(matrix: Floats) -> tuple[Floats, float]:
    """Inverse and log-determinant; directions along which the likelihood bends upward are taken as bending down."""
    try:
        factor = cho_factor(matrix, lower=True)
        return cho_solve(factor, np.eye(len(matrix))), 2 * float(np.log(np.diag(factor[0])).sum())
    except LinAlgError:
        size, along = np.linalg.eigh(matrix)
        size = np.maximum(np.abs(size), LOOSE)
        return (along / size) @ along.T, float(np.log(size).sum())


class _Line(NamedTuple):
    """Leans as deviations from a line in care; their covariance about it, and what its own error adds."""

    deviation: Floats
    about_the_line: Floats
    line: Floats
    slope: float


class _Given(NamedTuple):
    """What is found with one spread of care."""

    care: Floats
    care_covariance: Floats
    lines: list[_Line]


def _given(point: Floats, covariance: Floats, m: int) -> _Given:
    slopes, leans = point[:m], point[m:].reshape(m, -1)
    level, centered = slopes.mean(), np.eye(m) - 1 / m
    care = slopes / level
    change = (np.eye(m) - care[:, None] / m) / level
    lines, q = [], leans.shape[1]
    for j in range(q):
        chosen = np.concatenate([np.arange(m), m + j + q * np.arange(m)])
        mine = covariance[np.ix_(chosen, chosen)] * np.repeat([level**-1, 1], m)
        mine *= np.repeat([level**-1, 1], m)[:, None]
        lines.append(_line(centered @ care, centered @ leans[:, j], mine))
    return _Given(care, change @ covariance[:m, :m] @ change.T, lines)


def _line(care: Floats, lean: Floats, covariance: Floats) -> _Line:
    """The line through leans in shrunken care, which is not attenuated as one in unshrunken care would be.

    Its slope has a normal prior, which keeps it from running through noise where care hardly differs.
    """
    m, slope = len(care), 0.0
    centered = np.eye(m) - 1 / m
    noise = float(np.trace(covariance[m:, m:])) / m + float(lean.var())
    for _ in range(LINE_ROUNDS):
        weight = care @ care / noise + STEEPEST**-2
        slope = float(care @ lean / noise / weight)
        across = np.hstack([-slope * centered, centered])
        around = across @ covariance @ across.T
        noise = max(float(np.trace(around)) / m, 1e-12)
    return _Line(lean - slope * care, around, np.outer(care, care) / weight, slope)


def _mixed(weight: Floats, means: list[Floats], covariances: list[Floats]) -> tuple[Floats, Floats]:
    """Mean and covariance of a mixture."""
    mean = weight @ np.array(means)
    apart = np.array(means) - mean
    return mean, np.einsum("i,ijk->jk", weight, np.array(covariances)) + (
        weight[:, None] * apart
    ).T @ apart


def _on_the_line(deviation: Floats, covariance: Floats) -> float:
    """P-value of the test that all deviations are 0; NaN with fewer than three annotators."""
    df = len(deviation) - 2
    if df < 1:
        return np.nan
    size, along = np.linalg.eigh(covariance)
    return float(chdtrc(df, (((along.T @ deviation) ** 2)[-df:] / np.maximum(size[-df:], 1e-300)).sum()))
