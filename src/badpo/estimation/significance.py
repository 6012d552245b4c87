r"""Test for differences between annotators and between classes of annotators, and measure agreement.

The e-values in this module are evidence that an annotator votes differently from the co-voters. The evidence is valid
at any time.

Consider a closed comparison on which s of n votes are for side a. If annotator k votes like the co-voters, each of the
n voters is equally likely to be one of the s voters for side a. The probability that annotator k chose side a is
therefore s / n, whatever the quality of the two responses. A bias that exceeds the co-voters' bias by :math:`\epsilon`
log-odds per unit of the attribute changes the odds :math:`s / (n - s)` to :math:`e^{\epsilon d} s / (n - s)`. If
annotator k made the choice x, the likelihood ratio of the larger bias to the co-voters' bias is

.. math:: \frac{e^{\epsilon d x}}{1 - s/n + (s/n)\, e^{\epsilon d}}, \qquad x = 1 \text{ if } k \text{ chose a, else 0}.

Under the null hypothesis, the likelihood ratio has the mean 1, and so does the product of these ratios over successive
comparisons. The mean of the products over a grid of :math:`\epsilon` is an e-process. The probability that an e-process
ever reaches :math:`1 / \alpha` is at most :math:`\alpha` (Ville's inequality), so the evidence may be inspected after
every comparison.

A random responder also votes differently from the co-voters. `log_random_ratios` computes the evidence against random
responding, with a probability of 1/2 for each side. The smaller of the two e-values is valid under both null
hypotheses. Bias has no effect on comparisons whose sides do not differ. On these comparisons, s / n is the probability
for every annotator who is as reliable as the co-voters (`log_reliability_ratios`). Neither null hypothesis covers
annotators with half the reliability of the co-voters.

The error rate is guaranteed only if each comparison is processed once, with all its votes, and if the number of votes
on a comparison does not depend on the votes. The null hypothesis is that the annotator votes like the co-voters on
comparisons whose sides differ in the attribute. If two attributes are correlated, a bias toward one attribute changes
the evidence for both.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.linalg import cg
from scipy.special import chdtrc, ndtr, softmax

from badpo.estimation.conditional_likelihood import KnownWins
from badpo.estimation.fit import BiasEstimates, Votes, arrange_votes
from badpo.estimation.log_odds import LEVEL, NO_SPREAD
from badpo.estimation.reliability import LINE_PROBABILITY, ClassMerit
from badpo.estimation.shrinkage import Mixture, ShrunkenBiases
from badpo.theory import Bools, Floats, Ints
from badpo.theory.identifiability import bias_design
from badpo.theory.summaries import cluster_mean, wilson_ends

# The test of classes uses at most this many groups of annotators, and omits the smallest groups.
MOST_GROUPS = 50
# The test of classes averages over TAU_NODES values of tau.
# The test omits values of tau whose log-mass is below the largest log-mass by NEGLIGIBLE or more.
TAU_NODES, NEGLIGIBLE = 80, 12.0
BiasVariant = Literal["pooled", "shared_mean", "class"]


# -- differences between annotators ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassOffsets:
    r"""Mean biases of annotator classes, relative to the mean over all annotators who have a class.

    Attributes
    ----------
    offset, ci_low, ci_high : array of shape (n_classes, n_attributes)
        Mean bias of the class minus the mean over annotators, with the limits of a credible interval. NaN for a class
        without an estimate, or if no votes compare the class with other classes. The limits are also NaN if the
        annotators are too few to estimate how much annotators differ.
    n : int array of shape (n_classes, n_attributes)
        Number of annotators of the class with an informative vote.
    p_value : array of shape (n_attributes,)
        P-value of the hypothesis that the classes do not differ; NaN if the classes cannot be compared.
    """

    offset: Floats
    ci_low: Floats
    ci_high: Floats
    n: Ints
    p_value: Floats


def equal_bias_p_value(votes: Votes, biases: BiasEstimates, clusters: ArrayLike | None = None) -> Floats:
    r"""P-value of the hypothesis that all annotators have the same bias, for each attribute.

    If all annotators have the same bias toward an attribute of the responses, the conditional likelihood does not
    depend on this bias. Under the hypothesis of equal biases, the annotators' scores :math:`S_k = \sum_j d_j (y_j -
    p_j)` have mean 0 and covariance V. The test statistic is :math:`\sum_k S_k^2`, the score with respect to the
    variance of the biases. The test compares the statistic with the scaled chi-squared distribution :math:`c
    \chi^2_\nu` of mean tr V and variance 2 tr V^2. The test keeps its level even with few votes per annotator, unlike a
    likelihood ratio test with one parameter per annotator.

    ``biases`` is the result of `badpo.estimation.fit.fit_conditional`. The test of one attribute uses the biases toward
    all other attributes from ``biases``. If votes on one comparison differ in the attribute, the test uses the
    estimated shared bias as the null hypothesis. With ``clusters``, V is the sum of the outer products of the scores of
    the prompts.

    Examples
    --------
    Annotator 0 always chooses the side with the attribute, and annotator 1 never does:

    >>> from badpo.estimation.fit import fit_conditional
    >>> votes = Votes(np.repeat(np.arange(40), 2), np.tile([1, -1], 40), np.tile([0, 1], 40), np.ones((80, 1)), 2)
    >>> bool(equal_bias_p_value(votes, fit_conditional(votes))[0] < 1e-6)
    True
    """
    finite = np.isfinite(biases.deviation)
    theta = np.where(finite, biases.deviation, 0.0) + biases.origin
    shared = np.where(biases.absolute, biases.shared_bias, biases.origin)
    m, q = theta.shape
    arranged = arrange_votes(votes)
    model, p_value = KnownWins(arranged.blocks, arranged.sign), np.full(q, np.nan)
    for j in range(q):
        bias = np.where(np.arange(q) == j, shared, theta)
        logits = (bias[arranged.annotator] * arranged.delta).sum(axis=1)
        score, information, *_ = model.curvature(logits)
        design = bias_design(arranged.annotator, arranged.delta[:, [j]], m)
        variance = sparse.csr_array(design.T @ (information @ design))
        if clusters is not None:
            cluster = np.unique(np.asarray(clusters)[arranged.row], return_inverse=True)[1]
            member = bias_design(cluster, score[:, None], len(cluster))
            each = sparse.csr_array(design.T @ member)
            variance = sparse.csr_array(each @ each.T)
        mean, squared = variance.trace(), (variance.data**2).sum()
        if mean > 0:
            squares = ((design.T @ score) ** 2).sum()
            p_value[j] = chdtrc(mean**2 / squared, squares * mean / squared)
    return p_value


def class_offsets(
    biases: BiasEstimates, annotator_class: ArrayLike, merit: ClassMerit | None = None
) -> ClassOffsets:
    r"""Estimate the mean bias of every annotator class from the estimates for individual annotators.

    The units of analysis are annotators, not votes, because annotators within a class also differ:

    .. math:: \hat d_k = \mu_{class(k)} + h_{class(k)} + \gamma_{group(k)} + u_k + e_k, \qquad
        V = \tau^2 I + \Sigma, \qquad p = \int P(\chi^2_\nu > Q_0(\tau) - Q_1(\tau))\, \pi(\tau)\, d\tau

    Sigma is the error covariance of the estimates (only the variances if the matrix is too large to store), scaled to
    the average error for the annotator's number of informative votes. Q is the weighted residual sum of squares:
    :math:`Q_0` without classes (mu = 0), and :math:`Q_1` with classes. The integral accounts for the uncertainty about
    tau. The weight pi is proportional to the restricted likelihood times the density :math:`1 / (\tau^2 + s^2)` of
    tau^2, where s^2 is the harmonic mean of the error variances. If estimates are equally precise and errors are much
    smaller than tau, the test equals an analysis of variance, in which a few annotators with most of the votes count as
    few. Groups that no votes compare have separate means gamma. The result of one Newton step replaces an infinite
    bias. Anchored annotators and annotators of class -1 are excluded.

    Parameters
    ----------
    biases : BiasEstimates
    annotator_class : int array of shape (n_annotators,)
    merit : ClassMerit or None
        Distribution of h, the part of a class offset that reliability produces. The p-value is averaged over h (Box,
        1980), and the intervals of the offsets include the uncertainty about h. If the covariance is None, classes
        count as equally reliable. Classes also count as equally reliable for an attribute whose shared bias is known,
        because merit does not affect this attribute.

    References
    ----------
    Box (1980), "Sampling and Bayes' inference in scientific modelling and robustness": the prior predictive p-value.

    Examples
    --------
    Two annotators win two thirds of their disagreements with two other annotators:

    >>> from badpo.estimation.fit import fit_conditional
    >>> comparison, annotator = np.repeat(np.arange(60), 2), np.tile([0, 2, 1, 3, 0, 3, 1, 2], 15)
    >>> sign = np.tile([1, -1, -1, 1, 1, -1], 20)
    >>> biases = fit_conditional(Votes(comparison, sign, annotator, np.ones((120, 1)), 4))
    >>> class_offsets(biases, [0, 0, 1, 1]).offset.ravel().round(3)
    array([ 0.347, -0.347])
    """
    class_of = np.asarray(annotator_class, np.intp)
    n_classes, q = int(class_of.max(initial=-1)) + 1, biases.deviation.shape[1]
    informed = (biases.n_informative > 0) & (biases.status != "anchored")
    informed &= (class_of >= 0)[:, None]
    n = np.zeros((n_classes, q), np.intp)
    offset, low, high = np.full((3, n_classes, q), np.nan)
    p_value = np.full(q, np.nan)
    for j, is_informed in enumerate(informed.T):
        n[:, j] = np.bincount(class_of[is_informed], minlength=n_classes)
        rows = np.flatnonzero(is_informed & (biases.finite_se[:, j] > 0))
        rows = rows[_largest_groups(biases.component[rows, j])]
        if len(rows):
            group = biases.component[rows, j]
            present, sizes = np.unique(class_of[rows], return_counts=True)
            classes = np.equal.outer(class_of[rows], present)
            groups = np.equal.outer(group, np.unique(group))
            design = np.hstack([classes, groups]) * 1.0
            turned = _uncorrelated(biases, rows, j, design)
            covariance = None
            if merit is not None and merit.covariance is not None and not biases.absolute[j]:
                covariance = merit.covariance[np.ix_(present, present)]
            result = _compare_classes(*turned, sizes, covariance)
            offset[present, j], low[present, j], high[present, j], p_value[j] = result
    return ClassOffsets(offset, low, high, n, p_value)


def _largest_groups(group: Ints) -> Bools:
    """Return a mask of the annotators in the ``MOST_GROUPS`` largest groups; groups with one member are omitted.

    The limit on the number of groups keeps the design matrix small.
    """
    labels, of, sizes = np.unique(group, return_inverse=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:MOST_GROUPS]
    return np.isin(of, largest) & (sizes[of] > 1)


def _uncorrelated(
    biases: BiasEstimates,
    rows: Ints,
    j: int,
    design: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Rotate the biases toward attribute j and the design matrix so that errors are uncorrelated; return variances too.

    Without a covariance matrix, errors are assumed to be uncorrelated.
    """
    value, group = biases.finite_deviation[rows, j], biases.component[rows, j]
    own, n = biases.finite_se[rows, j] ** 2, biases.n_informative[rows, j]
    # a large bias has a large error; weights based on these errors would make the test of equal classes conservative
    variance = (own * n).mean() / n
    if biases.covariance is None:
        return value, design, variance
    place = rows * biases.deviation.shape[1] + j
    errors = biases.covariance[np.ix_(place, place)]
    size = np.sqrt(variance / own)
    errors = np.where(np.isnan(errors), np.diag(own), errors) * np.outer(size, size)
    # adding a constant per group to the covariance leaves contrasts unchanged, because the design contains the groups
    errors = errors + variance.mean() * np.equal.outer(group, group)
    size, turn = np.linalg.eigh(errors)
    return turn.T @ value, turn.T @ design, np.maximum(size, 1e-9 * size.max())


def _compare_classes(
    value: Floats, design: Floats, variance: Floats, sizes: Ints, merit_covariance: Floats | None
) -> tuple[Floats, Floats, Floats, float]:
    """Return class offsets, limits of their 95 % credible intervals, and the p-value of the test of equal classes."""
    n_classes = len(sizes)
    classes, groups = design[:, :n_classes], design[:, n_classes:]
    contrast = np.eye(n_classes, design.shape[1])
    contrast[:, :n_classes] -= sizes / sizes.sum()
    rank, alone = (int(np.linalg.matrix_rank(x)) for x in (design, groups))
    residual, df = len(value) - rank, rank - alone
    beyond = contrast - contrast @ np.linalg.pinv(design) @ design
    unknown = np.abs(beyond).max(axis=1) > NO_SPREAD
    between, log_mass = _tau_masses(value, design, variance, rank)
    weight = 1 / (variance + between[:, None])
    with_classes = _weighted_squares(value, design, weight)
    if residual < 1 or df < 1 or not (with_classes.left > 0).all():
        offset = with_classes.coefficients[0] @ contrast.T
        nothing = np.full(n_classes, np.nan)
        return np.where(unknown, np.nan, offset), nothing, nothing, np.nan
    mass = softmax(log_mass)
    spread = contrast @ np.linalg.pinv(with_classes.information, 1e-10, hermitian=True) @ contrast.T
    variance_of = np.diagonal(spread, axis1=1, axis2=2)
    center = with_classes.coefficients @ contrast.T
    parts, p_value = [], 0.0
    for chance, covariance in _merits(merit_covariance, n_classes):
        size, along = np.linalg.eigh(covariance)
        produced = classes @ (along * np.sqrt(np.maximum(size, 0.0)))
        without = _weighted_squares(value, np.hstack([groups, produced]), weight, groups.shape[1])
        gained = np.maximum(without.left - with_classes.left, 0.0)
        p_value += chance * float(mass @ chdtrc(df, gained))
        apart = contrast[:, :n_classes]
        own = variance_of + np.diag(apart @ covariance @ apart.T)
        parts.append((center, np.sqrt(own), np.tile(chance * mass[:, None], n_classes)))
    offsets = Mixture(*(np.concatenate(each).T for each in zip(*parts, strict=True)))
    columns = offsets.mean, offsets.quantile(0.025), offsets.quantile(0.975)
    offset, low, high = (np.where(unknown, np.nan, each) for each in columns)
    return offset, low, high, p_value


def _merits(covariance: Floats | None, n_classes: int) -> list[tuple[float, Floats]]:
    """List possible covariance matrices of the class offsets that reliability produces, each with a probability."""
    nothing = np.zeros((n_classes, n_classes))
    if covariance is None:
        return [(1.0, nothing)]
    return [(1 - LINE_PROBABILITY, nothing), (LINE_PROBABILITY, covariance)]


def _tau_masses(value: Floats, design: Floats, variance: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return a log-spaced grid of likely values of tau^2, and the log probability masses of these values."""
    scale = 1 / np.mean(1 / variance)
    low, high = np.log(1e-3 * scale), np.log(10 * scale + 100 * np.mean(value**2))
    for n_nodes in (TAU_NODES // 2, TAU_NODES):
        log_between = np.linspace(low, high, n_nodes)
        between = np.exp(log_between)
        weight = 1 / (variance + between[:, None])
        fit = _weighted_squares(value, design, weight)
        information = np.maximum(np.linalg.eigvalsh(fit.information)[:, -rank:], 1e-300)
        log_likelihood = np.log(weight).sum(axis=1) - np.log(information).sum(axis=1) - fit.left
        log_mass = log_likelihood / 2 + log_between - np.log(between + scale)
        likely = np.flatnonzero(log_mass > log_mass.max() - NEGLIGIBLE)
        low, high = log_between[max(likely[0] - 1, 0)], log_between[min(likely[-1] + 1, n_nodes - 1)]
    return between, log_mass


class _LeastSquares(NamedTuple):
    """Residual sums of squares (t,), coefficients (t, p) and information (t, p, p) for t rows of weights."""

    left: Floats
    coefficients: Floats
    information: Floats


def _weighted_squares(
    value: Floats, design: Floats, weight: Floats, n_free: int | None = None
) -> _LeastSquares:
    """Fit weighted least squares for each row of weights; coefficients from ``n_free`` on have N(0, 1) priors."""
    n_free = design.shape[1] if n_free is None else n_free
    information = np.einsum("tn,np,nq->tpq", weight, design, design, optimize=True)
    information += np.diag(np.arange(design.shape[1]) >= n_free)
    score = weight @ (design * value[:, None])
    inverse = np.linalg.pinv(information, 1e-10, hermitian=True)
    coefficients = np.einsum("tpq,tq->tp", inverse, score)
    left = weight @ value**2 - (coefficients * score).sum(axis=1)
    return _LeastSquares(left, coefficients, information)


class Recommendation(NamedTuple):
    """Recommended bias term, by its name in a training config, with the evidence in one sentence."""

    variant: BiasVariant
    reason: str


def recommend(
    shrunk: ShrunkenBiases,
    equal_bias_p: float,
    class_test_p: float | None = None,
) -> Recommendation:
    """Choose the bias term based on the evidence that annotators or annotator classes differ.

    The function chooses ``class`` if the biases of classes differ, ``shared_mean`` if only the biases of individual
    annotators differ, and ``pooled`` otherwise. The test of one shared bias decides whether annotators differ. Without
    a test result, the interval of tau decides whether annotators differ.

    Examples
    --------
    >>> from badpo.estimation.shrinkage import shrink_normal
    >>> advice = recommend(shrink_normal([0.8, -0.7, 0.1, -0.2], [0.1] * 4), equal_bias_p=1e-9)
    >>> print(advice.variant, "-", advice.reason)
    shared_mean - Annotators differ (test of one shared bias: p < 0.001).
    """
    is_known = not np.isnan(shrunk.tau)
    unknown = "" if is_known else "; tau not known"
    if class_test_p is not None and class_test_p < LEVEL:
        evidence = f"test of no class difference: {format_p_value(class_test_p)}{unknown}"
        return Recommendation("class", f"Classes of annotators differ ({evidence}).")
    is_spread = differ = shrunk.tau_low > 0
    evidence = f"tau {shrunk.tau_low:.2f} to {shrunk.tau_high:.2f}"
    if not np.isnan(equal_bias_p):
        differ = equal_bias_p < LEVEL
        evidence = f"test of one shared bias: {format_p_value(equal_bias_p)}"
    if differ:
        return Recommendation("shared_mean", f"Annotators differ ({evidence}{unknown}).")
    if not is_known:
        why = "The votes cannot show differences: too few annotators judged contested comparisons together."
    elif is_spread:
        why = (
            "The evidence is mixed: the confidence interval of tau shows that annotators differ, but the test does not "
            f"({evidence})."
        )
    else:
        possible = f"A tau of up to {shrunk.tau_high:.2f} log-odds remains possible."
        why = f"The votes do not show that annotators differ ({evidence}). {possible}"
    return Recommendation("pooled", why)


def format_p_value(value: float) -> str:
    """Format a p-value with = or <, as in "p = 0.03"."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


# -- agreement -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolAgreement:
    """Agreement within a pool, computed from votes on comparisons that at least two annotators judged.

    ``percent`` is the mean share (0 to 1) of co-voters who chose the same side. ``low`` and ``high`` are the limits of
    a clustered 95 % confidence interval, or of Wilson's interval with clusters as trials if all votes have the same
    share. ``alpha`` is Krippendorff's alpha: 0 is chance agreement, and 1 is full agreement.
    """

    n_comparisons: int
    n_votes: int
    percent: float
    low: float
    high: float
    alpha: float


class AnnotatorAgreement(NamedTuple):
    """Mean share of co-voters who chose the same side as each annotator; NaN for an annotator without co-voters.

    ``low`` and ``high`` are the limits of Wilson's 95 % confidence interval, with comparisons as trials. If comparisons
    have several co-voters, the interval is conservative: a share of co-voters varies less than a single trial with the
    outcome 0 or 1.
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
    r"""Compute percent agreement, and Krippendorff's alpha, which corrects for chance agreement.

    .. math:: A = \text{mean over votes of } \frac{\#\{\text{co-voters on the same side}\}}{n_c - 1}, \qquad
        \alpha = 1 - \frac{1 - A}{N / (2N - 1)}

    Here N is the number of votes on comparisons that two or more annotators judged. If N is 0, the results are NaN.

    Examples
    --------
    Two of three annotators agree on the first comparison, and both annotators agree on the second:

    >>> agreement = pool_agreement([0, 0, 0, 1, 1], [1, 1, -1, 1, 1], [0, 1, 2, 0, 1])
    >>> agreement.n_votes, round(agreement.percent, 3), round(agreement.alpha, 3)
    (5, 0.6, 0.28)
    """
    votes, share = _shares(comparison, sign, annotator)
    if not len(votes):
        return PoolAgreement(0, 0, *[np.nan] * 4)
    c, n = np.asarray(comparison)[votes], len(votes)
    cluster = c if clusters is None else np.asarray(clusters)[votes]
    interval = cluster_mean(share, cluster)
    percent = interval.estimate
    low, high = max(interval.low, 0.0), min(interval.high, 1.0)
    if interval.se < NO_SPREAD:
        ends = wilson_ends(np.array(percent), np.array(interval.n))
        low, high = map(float, ends)
    alpha = 1 - (1 - percent) * (2 - 1 / n)
    return PoolAgreement(len(np.unique(c)), n, percent, low, high, alpha)


def annotator_agreement(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    n_annotators: int,
) -> AnnotatorAgreement:
    """Compute the share of co-voters who agree with each annotator.

    On comparisons whose sides differ, a bias slightly lowers agreement. To exclude the effect of bias on agreement,
    pass only votes on comparisons whose sides do not differ in any attribute.

    Examples
    --------
    >>> annotator_agreement([0, 0, 0, 1], [1, 1, -1, 1], [0, 1, 2, 0], 3).agreement
    array([0.5, 0.5, 0. ])
    """
    votes, share = _shares(comparison, sign, annotator)
    cast_by = np.asarray(annotator)[votes]
    n = np.bincount(cast_by, minlength=n_annotators)
    total = np.bincount(cast_by, share, n_annotators)
    with np.errstate(invalid="ignore"):
        mean = total / n
        return AnnotatorAgreement(mean, *wilson_ends(mean, n))


def _shares(comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike) -> tuple[Ints, Floats]:
    """Select the votes that have a co-voter, and compute the share of co-voters who chose the same side."""
    side = 2 * np.asarray(comparison) + (np.asarray(sign) > 0)
    votes = np.flatnonzero(first_votes(comparison, annotator))
    side = side[votes]
    same = np.bincount(side)[side]
    size = np.bincount(side // 2)[side // 2]
    shared = size > 1
    return votes[shared], (same[shared] - 1) / (size[shared] - 1)


def first_votes(comparison: ArrayLike, annotator: ArrayLike) -> Bools:
    """Return a mask of the first vote of each annotator on each comparison.

    Agreement statistics use only one vote per annotator and comparison.

    Examples
    --------
    >>> first_votes([0, 0, 0, 1], [5, 6, 5, 5])
    array([ True,  True, False,  True])
    """
    votes = pd.DataFrame({"comparison": comparison, "annotator": annotator})
    return np.asarray(~votes.duplicated().to_numpy())


# -- biases toward other features -----------------------------------------------------------------------------


def other_feature_p(votes: Votes, feature: ArrayLike, offset: ArrayLike = 0.0) -> float:
    r"""P-value of the hypothesis that biases are toward an attribute, and not toward a correlated feature.

    If the same side has more of the attribute and of the feature, attribute and feature agree, and a bias toward either
    has the same effect. From comparisons on which attribute and feature agree, the function estimates the annotators'
    biases :math:`x_k` by one Newton step from zero with shrinkage. If attribute and feature do not agree, the logit of
    a vote is

    .. math:: x_k d + \gamma x_k (f - d)

    Here d is the difference in the attribute, and f is the difference in the feature, scaled to the mean size of d. The
    biases are toward the attribute if :math:`\gamma = 0`, and toward the feature if :math:`\gamma = 1`. The test
    statistic is the score with respect to :math:`\gamma`, under the conditional likelihood, divided by its standard
    deviation. This standard deviation includes the errors of the :math:`x_k`. If the standard deviation from the
    annotators' contributions to the score is larger, the test uses the larger value. The test is one-sided.

    Parameters
    ----------
    votes : Votes
        Votes with a single attribute, in units of this attribute.
    feature : array of shape (n_votes,)
        Side with more of the feature: +1 (a), -1 (b) or 0.
    offset : array of shape (n_votes,)
        Known log-odds, such as biases toward other attributes.

    Returns
    -------
    float
        P-value; NaN if the biases have no variance, or if no comparison separates the attribute from the feature.

    Examples
    --------
    On every second comparison, the longer response has an emoji. On all other comparisons, both responses have the same
    length, and one has an emoji. Two annotators choose the response with the emoji, and two avoid it:

    >>> comparison, delta = np.repeat(np.arange(40), 4), np.repeat(np.tile([[1.0], [0.0]], (20, 1)), 4, axis=0)
    >>> votes = Votes(comparison, np.tile([1, 1, -1, -1], 40), np.tile(np.arange(4), 40), delta, 4)
    >>> other_feature_p(votes, np.ones(160)) < 0.001
    True
    """
    d, f = np.asarray(votes.delta[:, 0], float), np.asarray(feature, float)
    agree = d * f > 0
    number = np.unique(votes.annotator, return_inverse=True)[1]
    m = number.max(initial=-1) + 1
    f = f * np.abs(d[agree]).mean() if agree.any() else f
    arranged = arrange_votes(Votes(votes.comparison, votes.sign, number, np.column_stack([d, f]), m))
    model, (d, f) = KnownWins(arranged.blocks, arranged.sign), arranged.delta.T
    known = np.broadcast_to(offset, len(agree))[arranged.row]
    agree = d * f > 0
    score, information, *_ = model.curvature(known)
    together, apart = (
        bias_design(arranged.annotator, (d * side)[:, None], m) for side in (agree, ~agree)
    )
    net, precision = together.T @ score, together.T @ (information @ together)
    own, squares = precision.diagonal(), (precision.data**2).sum()
    between = float((net**2).sum() - own.sum()) / max(float(squares), 1e-12)
    if not between > 0:
        return np.nan
    ridge = sparse.diags_array(np.full(m, 1 / between))
    bias = cg(sparse.csr_array(precision + ridge), net, rtol=1e-6)[0]
    score, information, *_ = model.curvature(known + apart @ bias)
    toward = bias[arranged.annotator] * (f - d) * ~agree
    spread = information @ toward
    variance = float(toward @ spread + (apart.T @ spread) ** 2 @ (1 / (own + 1 / between)))
    parts = np.bincount(arranged.annotator, toward * score, m)
    variance = max(variance, m * float(np.var(parts)))
    return float(ndtr(-parts.sum() / np.sqrt(variance))) if variance > 0 else np.nan


# -- evidence that is valid at any time ---------------------------------------------------------------------

# Grid of epsilon, the additional bias in log-odds per unit of the attribute.
GRID = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
# Grid of kappa, the relative decrease in an annotator's reliability.
RELIABILITY_GRID = np.array([0.5, 1.0])


def winner_shares(sign: ArrayLike, delta: ArrayLike) -> Floats:
    """Probability s / n that a voter on a comparison chose response a, given that s of n votes are for a.

    The numbers s and n count only voters who judged the same attribute differences between responses a and b. If all
    attributes describe the responses, all voters on a comparison judged the same differences.

    Examples
    --------
    >>> winner_shares([1, 1, -1, -1], [[1.0]] * 4)
    array([0.5, 0.5, 0.5, 0.5])

    The third and the fourth voter saw the sides in reverse order:

    >>> winner_shares([1, -1, -1, -1], [[1.0], [1.0], [-1.0], [-1.0]])
    array([0.5, 0.5, 0. , 0. ])
    """
    chose_a, differences = np.asarray(sign) > 0, np.asarray(delta, float)
    if (differences == differences[:1]).all():
        return np.full(len(chose_a), chose_a.mean())
    alike = np.unique(differences, axis=0, return_inverse=True)[1].reshape(-1)
    return (np.bincount(alike, weights=chose_a) / np.bincount(alike))[alike]


def log_tilt_ratios(
    chose_a: ArrayLike, share: ArrayLike, delta: ArrayLike, grid: Floats = GRID
) -> Floats:
    r"""Log-likelihood ratio of the co-voters' bias plus epsilon to the co-voters' bias, for each epsilon in the grid.

    .. math:: \epsilon d x - \log(1 - p + p\, e^{\epsilon d})

    The result has the broadcast shape of the arguments, plus a last axis for the grid. The log-likelihood ratio is
    exactly 0 if the share p is 0 or 1, or if the difference d is 0.

    Examples
    --------
    The mean of the ratios under the null hypothesis is 1:

    >>> ratio = np.exp(log_tilt_ratios([True, False], 0.25, 1.0))
    >>> (0.25 * ratio[0] + 0.75 * ratio[1]).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    step = np.asarray(delta, float)[..., None] * grid
    chose_a = np.asarray(chose_a, bool)[..., None]
    p = np.asarray(share, float)[..., None]
    # this form cannot overflow
    with np.errstate(divide="ignore"):
        up = np.logaddexp(np.log1p(-p) - step, np.log(p))
    contested = (p > 0) & (p < 1) & (step != 0)
    return np.where(contested, np.where(chose_a, 0.0, -step) - up, 0.0)


def log_reliability_ratios(chose_a: ArrayLike, share: ArrayLike) -> Floats:
    r"""Log-likelihood ratio of a lower reliability to the co-voters' reliability, for sides that do not differ.

    A less reliable annotator votes for response a with the odds :math:`(p / (1 - p))^{1 - \kappa}` instead of :math:`p
    / (1 - p)`. The function computes the likelihood ratio for a grid of :math:`\kappa`.

    Examples
    --------
    A vote against three other votes is evidence of low reliability:

    >>> log_reliability_ratios([False, True], 0.75).round(2)
    array([[ 0.38,  0.69],
           [-0.17, -0.41]])
    """
    p = np.asarray(share, float)
    p = np.where((p > 0) & (p < 1), p, 0.5)
    return log_tilt_ratios(chose_a, p, np.log1p(-p) - np.log(p), RELIABILITY_GRID)


def log_random_ratios(chose_a: ArrayLike, wins: ArrayLike, size: ArrayLike, delta: ArrayLike) -> Floats:
    r"""Log-likelihood ratio of each bias in the grid against random responding.

    .. math:: \log 2 - \log(1 + e^{\mp(\epsilon d + g / 2)}), \qquad g = \log \frac{1 + s_{-k}}{n - s_{-k}}

    Here :math:`s_{-k}` of the n - 1 other voters chose a. The model assumes that a biased annotator partly follows the
    other voters.

    Examples
    --------
    Two other voters chose a, and one chose b. The mean of the ratio over the two possible votes of the annotator is 1:

    >>> ratio = np.exp(log_random_ratios([True, False], [3, 2], 4, 1.0))
    >>> ratio.mean(axis=0).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    chose_a = np.asarray(chose_a, bool)[..., None]
    others = np.asarray(wins)[..., None] - chose_a
    follows = np.log((1 + others) / (np.asarray(size)[..., None] - others)) / 2
    logit = follows + np.asarray(delta, float)[..., None] * GRID
    return np.asarray(np.log(2) - np.logaddexp(0, np.where(chose_a, -logit, logit)))


def log_e_values(log_ratios: ArrayLike) -> Floats:
    """Log of the e-value: the mean, over the grid, of the accumulated likelihood ratios.

    Examples
    --------
    >>> log_e_values(np.log([[1.0, 3.0], [1.0, 1.0]])).round(3)
    array([0.693, 0.   ])
    """
    log_ratios = np.asarray(log_ratios, float)
    return np.asarray(np.logaddexp.reduce(log_ratios, axis=-1) - np.log(log_ratios.shape[-1]))


def bias_e_values(log_e: Floats, log_chance: Floats, log_reliability: Floats) -> Floats:
    """Log e-values for bias, against two null hypotheses: voting like the co-voters, and random responding.

    The e-value of a bias is 0 if the evidence for low reliability is positive.

    Examples
    --------
    >>> bias_e_values(np.array([5.0, 5.0, 5.0]), np.array([9.0, -2.0, 9.0]), np.array([-1.0, -1.0, 1.0]))
    array([  5.,  -2., -inf])
    """
    return np.where(log_reliability > 0, -np.inf, np.minimum(log_e, log_chance))


def e_bh(log_e: ArrayLike, alpha: float) -> Bools:
    r"""Return a mask of the significant e-values, by the e-BH procedure.

    Of m e-values, the procedure flags the i largest, where i is the largest number for which the i-th largest e-value
    is at least :math:`m / (\alpha i)`. The expected share of false flags is at most :math:`\alpha`, for any dependence
    between the e-values and any stopping time. The bound on false flags holds because every e-process is valid for the
    stream of all votes.

    References
    ----------
    Wang and Ramdas (2022), False discovery rate control with e-values.

    Examples
    --------
    >>> e_bh(np.log([[100.0], [45.0], [3.0]]), 0.05).ravel()
    array([ True,  True, False])
    """
    values = np.asarray(log_e, float)
    n, descending = values.size, np.sort(values, axis=None)[::-1]
    threshold = np.log(n / (alpha * np.arange(1, n + 1)))
    flagged = descending[descending >= threshold - 1e-12]
    return np.asarray(values >= flagged.min(initial=np.inf))
