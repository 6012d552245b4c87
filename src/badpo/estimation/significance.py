"""Tests under the conditional likelihood, how far annotators agree, and whether chance decided who judged what."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import brentq
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import chdtrc, fdtrc, ndtr, stdtrit

from badpo.estimation.conditional_likelihood import ComparisonBlocks, KnownWins, sorted_blocks
from badpo.estimation.fit import Leans, lean_votes
from badpo.estimation.shrinkage import Shrunk
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import lean_design
from badpo.theory.summaries import cluster_mean, wilson_ends

# A standard error of a share below this is rounding of no spread at all.
_NO_SPREAD = 1e-9
_PROBES = 16
# Classes are compared within so many groups of annotators at most.
MOST_GROUPS = 50
LEVEL = 0.05
BiasVariant = Literal["pooled", "shared_mean", "class"]


# -- do annotators differ ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassOffsets:
    r"""Mean leans of the classes of annotators, relative to all annotators with a class.

    Attributes
    ----------
    offset, ci_low, ci_high : array of shape (n_classes, n_attributes)
        Lean of the class minus the mean over annotators; NaN for a class without an estimate, or that no votes compare
        with the others; the last two also where no annotators are left over to tell how far it may be off.
    n : int array of shape (n_classes, n_attributes)
        Annotators of the class with an informative vote.
    p_value : array of shape (n_attributes,)
        Of the test that classes do not differ; NaN where there is nothing to test.
    """

    offset: Floats
    ci_low: Floats
    ci_high: Floats
    n: Ints
    p_value: Floats


def equal_leans_test(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    leans: Leans,
    clusters: ArrayLike | None = None,
) -> Floats:
    r"""For each attribute, the p-value of the test that one lean shared by all annotators suffices.

    Under a shared lean the conditional likelihood does not depend on it (for an attribute of the responses), and the
    score of annotator k, :math:`S_k = \sum_j d_j (y_j - p_j)`, has mean 0 and covariance V. What is tested is
    :math:`\sum_k S_k^2`, the score in the variance of leans, against :math:`c \chi^2_\nu` with its mean tr V and its
    variance 2 tr V^2. It keeps its level with few votes per annotator, where a likelihood ratio with one parameter
    each does not.

    Votes are as in `badpo.estimation.fit.fit_conditional`, and ``leans`` by it: while one attribute is tested, those
    toward the others are taken from there. An attribute that varies between the votes on one comparison is tested at
    its estimated level. With ``clusters`` V is the sum of the products of the prompts' scores.

    Examples
    --------
    Annotator 0 always votes against annotator 1 on the side with more:

    >>> from badpo.estimation.fit import fit_conditional
    >>> votes = (np.repeat(np.arange(40), 2), np.tile([1, -1], 40), np.tile([0, 1], 40), np.ones((80, 1)))
    >>> bool(equal_leans_test(*votes, fit_conditional(*votes, 2))[0] < 1e-6)
    True
    """
    finite = np.isfinite(leans.deviation)
    theta = np.where(finite, leans.deviation, 0.0) + leans.origin
    shared = np.where(leans.absolute, leans.level, leans.origin)
    m, q = theta.shape
    votes = lean_votes(comparison, sign, annotator, delta, m)
    model, p_value = KnownWins(votes.blocks, votes.sign), np.full(q, np.nan)
    for j in range(q):
        lean = np.where(np.arange(q) == j, shared, theta)
        logits = (lean[votes.annotator] * votes.delta).sum(axis=1)
        score, information, *_ = model.curvature(logits)
        mine = lean_design(votes.annotator, votes.delta[:, [j]], m)
        variance = sparse.csr_array(mine.T @ (information @ mine))
        if clusters is not None:
            of = np.unique(np.asarray(clusters)[votes.row], return_inverse=True)[1]
            member = lean_design(of, score[:, None], len(of))
            each = sparse.csr_array(mine.T @ member)
            variance = sparse.csr_array(each @ each.T)
        mean, spread = variance.trace(), (variance.data**2).sum()
        if mean > 0:
            squares = ((mine.T @ score) ** 2).sum()
            p_value[j] = chdtrc(mean**2 / spread, squares * mean / spread)
    return p_value


def class_offsets(leans: Leans, annotator_class: ArrayLike) -> ClassOffsets:
    r"""Mean lean of every class of annotators, from the annotators' own estimates.

    People are the units, since those of a class differ too:

    .. math:: \hat d_k = \mu_{class(k)} + \gamma_{group(k)} + u_k + e_k, \qquad
        V = \tau^2 I + \Sigma, \qquad F = \frac{Q_0 - Q_1}{Q_1} \cdot \frac{n - p_1}{p_1 - p_0}

    with Sigma the covariance of the estimates' errors (their variances alone where it is too large to hold), made as
    large as so many informative votes have on average, tau^2 such that the weighted squares about the classes are as
    many as their degrees of freedom (Paule and Mandel, 1982), and Q the weighted squares that are left without the
    classes and with them. F is read with the annotators that are
    left over as degrees of freedom, and intervals with Student's t, scaled by what is left (Knapp and Hartung, 2003).
    Groups that no votes compare have means gamma of their own. An infinite lean counts as one Newton step gives it; an
    anchored one does not count, nor does an annotator of class -1.

    Examples
    --------
    Two annotators who win two of three votes against two others:

    >>> from badpo.estimation.fit import fit_conditional
    >>> comparison, annotator = np.repeat(np.arange(60), 2), np.tile([0, 2, 1, 3, 0, 3, 1, 2], 15)
    >>> sign = np.tile([1, -1, -1, 1, 1, -1], 20)
    >>> leans = fit_conditional(comparison, sign, annotator, np.ones((120, 1)), 4)
    >>> class_offsets(leans, [0, 0, 1, 1]).offset.ravel().round(3)
    array([ 0.347, -0.347])
    """
    of = np.asarray(annotator_class, np.intp)
    n_classes, q = int(of.max(initial=-1)) + 1, leans.deviation.shape[1]
    informed = (leans.n_informative > 0) & (leans.status != "anchored")
    informed &= (of >= 0)[:, None]
    n = np.zeros((n_classes, q), np.intp)
    offset, reach = np.full((2, n_classes, q), np.nan)
    p_value = np.full(q, np.nan)
    for j, mine in enumerate(informed.T):
        n[:, j] = np.bincount(of[mine], minlength=n_classes)
        rows = np.flatnonzero(mine & (leans.finite_se[:, j] > 0))
        rows = rows[_largest_groups(leans.component[rows, j])]
        if len(rows):
            group = leans.component[rows, j]
            present, sizes = np.unique(of[rows], return_counts=True)
            classes = np.equal.outer(of[rows], present)
            groups = np.equal.outer(group, np.unique(group))
            design = np.hstack([classes, groups]) * 1.0
            found = _between_classes(*_uncorrelated(leans, rows, j, design), sizes)
            offset[present, j], reach[present, j], p_value[j] = found
    return ClassOffsets(offset, offset - reach, offset + reach, n, p_value)


def _largest_groups(group: Ints) -> Bools:
    """Whose group is among the largest, with somebody else in it; so many keep the design small."""
    labels, of, sizes = np.unique(group, return_inverse=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:MOST_GROUPS]
    return np.isin(of, largest) & (sizes[of] > 1)


def _uncorrelated(
    leans: Leans,
    rows: Ints,
    j: int,
    design: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Leans toward attribute j, the design and the errors' variances, turned so that errors are uncorrelated.

    They count as that where they are not known.
    """
    value, group = leans.finite_deviation[rows, j], leans.component[rows, j]
    own, n = leans.finite_se[rows, j] ** 2, leans.n_informative[rows, j]
    # whoever leans far has a larger error: weighed by that, classes differ in fewer than 5 % of pools where none do
    variance = (own * n).mean() / n
    if leans.covariance is None:
        return value, design, variance
    place = rows * leans.deviation.shape[1] + j
    errors = leans.covariance[np.ix_(place, place)]
    size = np.sqrt(variance / own)
    errors = np.where(np.isnan(errors), np.diag(own), errors) * np.outer(size, size)
    # the level of a group is in the design: added to the errors, which leave it open, it changes no contrast
    errors = errors + variance.mean() * np.equal.outer(group, group)
    size, turn = np.linalg.eigh(errors)
    return turn.T @ value, turn.T @ design, np.maximum(size, 1e-9 * size.max())


def _between_classes(
    value: Floats, design: Floats, variance: Floats, sizes: Ints
) -> tuple[Floats, Floats, float]:
    """Offset of each class that is there, half the length of its interval, and the test's p-value."""
    n_classes, groups = len(sizes), design[:, len(sizes) :]
    contrast = np.eye(n_classes, design.shape[1])
    contrast[:, :n_classes] -= sizes / sizes.sum()
    rank, alone = (int(np.linalg.matrix_rank(x)) for x in (design, groups))
    residual, df = len(value) - rank, rank - alone

    def excess(between: float) -> float:
        return _weighted_squares(value, design, variance + between)[0] - residual

    if residual > 0 and excess(0.0) > 0:
        # with the sum of all squares for a variance less than one is left
        variance = variance + brentq(excess, 0.0, (value**2).sum(), rtol=1e-6)
    least, coefficients, spread = _weighted_squares(value, design, variance)
    beyond = contrast - contrast @ np.linalg.pinv(design) @ design
    is_known = np.abs(beyond).max(axis=1) < _NO_SPREAD
    offset = np.where(is_known, contrast @ coefficients, np.nan)
    if residual < 1 or df < 1 or least <= 0:
        return offset, np.full(n_classes, np.nan), np.nan
    scale = least / residual
    errors = np.sqrt(scale * np.diag(contrast @ spread @ contrast.T))
    without = _weighted_squares(value, groups, variance)[0]
    gained = max(without - least, 0.0) / df
    p_value = float(fdtrc(df, residual, gained / scale))
    return offset, stdtrit(residual, 0.975) * errors, p_value


def _weighted_squares(
    value: Floats,
    design: Floats,
    variance: Floats,
) -> tuple[float, Floats, Floats]:
    """Weighted least squares: what is left of the squares, the coefficients and their covariance."""
    size = np.sqrt(variance)
    x, y = design / size[:, None], value / size
    inverse = np.linalg.pinv(x, rcond=1e-10)
    coefficients = inverse @ y
    left = float(((y - x @ coefficients) ** 2).sum())
    return left, coefficients, inverse @ inverse.T


class Recommendation(NamedTuple):
    """Which bias term the votes call for, by its name in a training config, and the evidence in a sentence."""

    variant: BiasVariant
    reason: str


def recommend(
    shrunk: Shrunk,
    equal_leans_p: float,
    class_test_p: float | None = None,
) -> Recommendation:
    """Choose the bias term from the evidence that annotators, and their classes, differ.

    Classes that differ call for ``class``; else annotators that differ call for ``shared_mean``; else one number is
    enough. Whether annotators differ is read from the test that one shared lean suffices, and from the interval of
    tau where that test could not be made.

    Examples
    --------
    >>> from badpo.estimation.shrinkage import shrink_normal
    >>> advice = recommend(shrink_normal([0.8, -0.7, 0.1, -0.2], [0.1] * 4), equal_leans_p=1e-9)
    >>> print(advice.variant, "-", advice.reason)
    shared_mean - Annotators differ (test of one shared lean: p < 0.001).
    """
    is_known = not np.isnan(shrunk.tau)
    unknown = "" if is_known else "; spread not known"
    if class_test_p is not None and class_test_p < LEVEL:
        told = f"test of no class difference: {_p(class_test_p)}{unknown}"
        return Recommendation("class", f"Classes of annotators differ ({told}).")
    is_spread = differ = shrunk.tau_low > 0
    told = f"tau {shrunk.tau_low:.2f} to {shrunk.tau_high:.2f}"
    if not np.isnan(equal_leans_p):
        differ = equal_leans_p < LEVEL
        told = f"test of one shared lean: {_p(equal_leans_p)}"
    if differ:
        return Recommendation("shared_mean", f"Annotators differ ({told}{unknown}).")
    if not is_known:
        why = "The votes cannot tell annotators apart: too few of them judged contested comparisons together."
    elif is_spread:
        why = f"Whether annotators differ is not settled: the test does not show it, the spread does ({told})."
    else:
        possible = f"A spread of up to {shrunk.tau_high:.2f} log-odds remains possible."
        why = f"The votes do not show that annotators differ ({told}). {possible}"
    return Recommendation("pooled", why)


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


# -- agreement: reliability, which is another thing than a lean ----------------------------------------------


@dataclass(frozen=True)
class PoolAgreement:
    """Agreement of a pool on the comparisons with two annotators or more, and the votes on them.

    ``percent`` is the mean over these votes of the share of co-voters who chose the same side, 0 to 1, with its 95 %
    interval, clustered, or Wilson's with clusters as trials where all have the very same share. ``kappa``, Cohen-type,
    is ``(percent - 1/2) / (1 - 1/2)``, since without an orientation every annotator gives each side half of the votes:
    0 is chance, 1 is full agreement. ``alpha`` is Krippendorff's, which also corrects for the finite number of votes.
    """

    n_comparisons: int
    n_votes: int
    percent: float
    low: float
    high: float
    kappa: float
    alpha: float


class AnnotatorAgreement(NamedTuple):
    """Mean share of co-voters on the same side, over comparisons that someone else judged; NaN without any.

    The ends are Wilson's, 95 %, with comparisons as trials. A share of several co-voters varies less than a trial, so
    the interval is wide rather than narrow.
    """

    agreement: Floats
    low: Floats
    high: Floats


def pool_agreement(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    clusters: ArrayLike | None = None,
) -> PoolAgreement:
    r"""Percent agreement and its chance-corrected forms.

    .. math:: A = \text{mean over votes of } \frac{\#\{\text{co-voters on the same side}\}}{n_c - 1}, \qquad
        \kappa = 2A - 1, \qquad \alpha = 1 - \frac{1 - A}{N / (2N - 1)}

    with N votes on comparisons that two or more annotators judged; NaN without any.

    Examples
    --------
    Two of three agree on the first comparison, both on the second:

    >>> found = pool_agreement([0, 0, 0, 1, 1], [1, 1, -1, 1, 1], [0, 1, 2, 0, 1])
    >>> found.n_votes, round(found.percent, 3), round(found.kappa, 3), round(found.alpha, 3)
    (5, 0.6, 0.2, 0.28)
    """
    votes, share = _shares(comparison, sign, annotator)
    if not len(votes):
        return PoolAgreement(0, 0, *[np.nan] * 5)
    c, n = np.asarray(comparison)[votes], len(votes)
    of = c if clusters is None else np.asarray(clusters)[votes]
    interval = cluster_mean(share, of)
    percent = interval.estimate
    low, high = max(interval.low, 0.0), min(interval.high, 1.0)
    if interval.se < _NO_SPREAD:
        ends = wilson_ends(np.array(percent), np.array(interval.n))
        low, high = map(float, ends)
    alpha = 1 - (1 - percent) * (2 - 1 / n)
    return PoolAgreement(len(np.unique(c)), n, percent, low, high, 2 * percent - 1, alpha)


def annotator_agreement(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    n_annotators: int,
) -> AnnotatorAgreement:
    """How often each annotator sides with their co-voters.

    A lean lowers it a little on comparisons whose sides differ. To keep the two wholly apart give only the votes
    without such a difference.

    Examples
    --------
    >>> annotator_agreement([0, 0, 0, 1], [1, 1, -1, 1], [0, 1, 2, 0], 3).agreement
    array([0.5, 0.5, 0. ])
    """
    votes, share = _shares(comparison, sign, annotator)
    people = np.asarray(annotator)[votes]
    n = np.bincount(people, minlength=n_annotators)
    total = np.bincount(people, share, n_annotators)
    with np.errstate(invalid="ignore"):
        mean = total / n
        return AnnotatorAgreement(mean, *wilson_ends(mean, n))


def _shares(comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike) -> tuple[Ints, Floats]:
    """Votes that have a co-voter, and the share of the co-voters who chose the same side."""
    side = 2 * np.asarray(comparison) + (np.asarray(sign) > 0)
    votes = np.flatnonzero(first_votes(comparison, annotator))
    side = side[votes]
    same = np.bincount(side)[side]
    size = np.bincount(side // 2)[side // 2]
    shared = size > 1
    return votes[shared], (same[shared] - 1) / (size[shared] - 1)


def first_votes(comparison: ArrayLike, annotator: ArrayLike) -> Bools:
    """The earliest vote of each annotator on each comparison.

    Two votes of one person are not two people, so whatever compares a vote with those of others uses one of them.

    Examples
    --------
    >>> first_votes([0, 0, 0, 1], [5, 6, 5, 5])
    array([ True,  True, False,  True])
    """
    votes = pd.DataFrame({"comparison": comparison, "annotator": annotator})
    return ~votes.duplicated().to_numpy()


def self_contradictions(comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike) -> pd.DataFrame:
    """Comparisons that an annotator judged more than once, and whether they chose both sides (``contradicted``).

    Examples
    --------
    Annotator 0 judged comparison 0 twice and changed sides:

    >>> self_contradictions([0, 0, 0, 1], [1, -1, 1, 1], [0, 0, 1, 1]).values.tolist()
    [[0, 0, True]]
    """
    votes = pd.DataFrame({"annotator": annotator, "comparison": comparison, "sign": sign})
    found = votes[votes.duplicated(["annotator", "comparison"], keep=False)]
    sides = found.groupby(["annotator", "comparison"])["sign"].nunique()
    return (sides > 1).reset_index(name="contradicted")


# -- who judged which comparisons ----------------------------------------------------------------------------


class AssignmentTest(NamedTuple):
    """A permutation test that annotators were assigned to comparisons at random; NaN where no sets can be exchanged.

    The statistic is the sum over the attributes of the variance between annotators, in units in which chance gives
    about the number of annotators for each attribute.
    """

    p_value: float
    statistic: float


def assignment_test(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_permutations: int = 199,
) -> AssignmentTest:
    r"""Whether the attribute-side rate of the other voters differs between annotators' comparisons.

    .. math:: T = \sum_k n_k (\bar v_k - \bar v)^2, \qquad
        v_{ck} = \text{share of k's co-voters on c who chose the side with more of the attribute}

    over comparisons whose sides differ, against its values when the sets of annotators are exchanged at random
    between comparisons with the same number of votes and the same attributes differing. A comparison with one vote, or
    on which no attribute differs, has no part in it.

    Examples
    --------
    Annotators 0 and 1 get comparisons on which the longer side wins, 2 and 3 those on which it loses:

    >>> comparison, annotator = np.repeat(np.arange(40), 2), np.tile([0, 1, 2, 3], 20)
    >>> sign = np.tile([1, 1, -1, -1], 20)
    >>> assignment_test(comparison, sign, annotator, np.ones((80, 1))).p_value
    0.005
    """
    comparison, sign, annotator = (np.asarray(each) for each in (comparison, sign, annotator))
    delta = np.asarray(delta, float)
    votes = np.flatnonzero(first_votes(comparison, annotator))
    order, blocks = sorted_blocks(comparison[votes])
    votes = votes[order]
    toward = sign[votes, None] * delta[votes]
    people = np.unique(annotator[votes], return_inverse=True)[1]
    cross = toward != 0
    # comparisons whose sets of annotators may be exchanged: arrays (n_comparisons, n_votes each) of votes
    kind = np.column_stack([blocks.sizes, blocks.sums(cross.astype(np.intp))])
    judged = np.flatnonzero((blocks.sizes > 1) & (kind[:, 1:] > 0).any(axis=1))
    labels = np.unique(kind[judged], axis=0, return_inverse=True)[1].reshape(-1)
    alike = (judged[labels == label] for label in range(labels.max(initial=-1) + 1))
    starts, sizes = blocks.starts[:, None], blocks.sizes
    stacks = [starts[each] + np.arange(sizes[each[0]]) for each in alike]
    sets = (np.sort(people[stack], axis=1) for stack in stacks)
    if not any(np.ptp(each, axis=0).any() for each in sets):
        return AssignmentTest(np.nan, np.nan)
    stratum = np.zeros(len(votes), dtype=np.intp)
    for label, stack in enumerate(stacks):
        stratum[stack] = label
    of_votes = people, blocks.comparison, stratum
    between = [_between_annotators(each, *of_votes) for each in toward.T]
    observed = sum(variance(people) for variance in between)
    as_large, random = 1, np.random.default_rng(0)
    for _ in range(n_permutations):
        others = people.copy()
        for stack in stacks:
            others[stack] = people[random.permutation(stack)]
        exchanged = sum(variance(others) for variance in between)
        # equal values may differ by rounding
        as_large += exchanged >= observed * (1 - 1e-9)
    return AssignmentTest(as_large / (1 + n_permutations), observed)


def _between_annotators(
    toward: Floats, people: Ints, comparison: Ints, stratum: Ints
) -> Callable[[Ints], float]:
    """Variance between annotators of the rate at which the other voters on their comparisons choose an attribute.

    It is a function of who cast the votes. A vote stands for what is left of it (1 for the attribute's side, else 0)
    without its voter's lean and the mean of the comparisons that its own can be exchanged with, plus the lean of who
    is taken for its voter. The unit is the variance of the other voters' rate.
    """
    cross = toward != 0
    n_cross = np.bincount(comparison, cross)[comparison]
    cast = np.flatnonzero(cross & (n_cross > 1))
    starts = np.flatnonzero(np.diff(comparison[cast], prepend=-1))
    blocks = ComparisonBlocks(starts, len(cast))
    n_others, group = blocks.sizes[blocks.comparison] - 1, stratum[cast]
    chose_it = (toward[cast] > 0).astype(float)
    lean = _leans(chose_it, people[cast], blocks, people.max() + 1)
    own = lean[people[cast]]
    rest = chose_it - own
    n = np.maximum(np.bincount(group), 1)
    rest -= (np.bincount(group, rest) / n)[group]

    def rate(vote: Floats) -> Floats:
        return (blocks.sums(vote)[blocks.comparison] - vote) / n_others

    unit = float(np.var(rate(rest + own))) if len(cast) else 0.0

    def variance(people: Ints) -> float:
        rates = rate(rest + lean[people[cast]])
        n, total = (np.bincount(people[cast], each) for each in (None, rates))
        squares = np.sum(total**2 / np.maximum(n, 1))
        between = squares - rates.sum() ** 2 / max(len(rates), 1)
        return float(between) / (unit or 1.0)

    return variance


def _leans(vote: Floats, people: Ints, blocks: ComparisonBlocks, n_annotators: int) -> Floats:
    r"""Best linear prediction of each annotator's part in the votes, beside a free mean for every comparison.

    With L the Laplacian of who voted with whom and S the sums of the votes' differences from their comparison's mean,
    E|S|^2 = sigma^2 tr L + tau^2 tr L^2 gives the variances; the prediction is (L + sigma^2 / tau^2)^-1 S.
    """

    def rest(values: Floats) -> Floats:
        return values - (blocks.sums(values) / blocks.sizes)[blocks.comparison]

    def summed(values: Floats) -> Floats:
        return np.bincount(people, rest(values), n_annotators).astype(float)

    random = np.random.default_rng(0)
    probes = random.choice([-1.0, 1.0], (_PROBES, n_annotators))
    trace = len(vote) - len(blocks.starts)
    squares = [np.sum(summed(probe[people]) ** 2) for probe in probes]
    trace_of_square = np.mean(squares)
    score = summed(vote)
    total = np.sum(rest(vote) ** 2) / max(trace, 1)
    excess = np.sum(score**2) - total * trace
    if excess <= 0 or trace_of_square <= trace:
        return np.zeros(n_annotators)
    between = excess / (trace_of_square - trace)
    ridge = max(total - between, 0.01 * total) / between
    shape = n_annotators, n_annotators
    system = LinearOperator(shape, lambda x: summed(x[people]) + ridge * x, dtype=float)
    return cg(system, score, rtol=1e-4, maxiter=100)[0]


def shared_lean_p(comparison: ArrayLike, sign: ArrayLike, side: ArrayLike, lean: ArrayLike) -> float:
    r"""Whether those who lean toward one thing also chose the side that has another: a stratified permutation test.

    .. math:: Z = \frac{\sum_c d_c \sum_{j \in c} (x_j - \bar x_c) y_j}
        {\sqrt{\sum_c d_c^2 \frac{w_c (n_c - w_c)}{n_c (n_c - 1)} \sum_{j \in c} (x_j - \bar x_c)^2}}

    for comparisons c of n votes, w of them for a (y = 1), where the other thing is on side d (+1: a) and whoever cast
    vote j leans x. The quality of the comparison drops out, as in Mantel and Haenszel's test (1959). Leans must come
    from other comparisons. The p-value is two-sided, and NaN where no comparison tells.

    Examples
    --------
    >>> comparison, lean = np.repeat(np.arange(20), 2), np.tile([1.0, -1.0], 20)
    >>> bool(shared_lean_p(comparison, lean, np.ones(40), lean) < 0.001)
    True
    """
    c = np.unique(comparison, return_inverse=True)[1]
    x, won, n = np.asarray(lean, float), np.asarray(sign) > 0, np.bincount(c)
    apart = np.asarray(side, float) * (x - (np.bincount(c, x) / n)[c])
    wins = np.bincount(c, won)
    chance = wins * (n - wins) / np.maximum(n * (n - 1), 1)
    variance = (chance[c] * apart**2).sum()
    if not variance > 0:
        return np.nan
    return float(2 * ndtr(-abs(apart @ won) / np.sqrt(variance)))
