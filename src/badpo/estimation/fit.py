"""Estimate annotators' biases from votes, and detect biases that are infinite or not identified.

A model of the quality of comparisons (`badpo.estimation.newton.QualityModel`) defines the likelihood. The audit's
default estimator, `fit_conditional`, conditions on the number of votes for response a on each comparison, so the
quality of the responses cancels out. For tables with one vote per comparison, use
`badpo.estimation.alternative_estimators`. In this module, a "bias" is the bias of one annotator toward one attribute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import orth
from scipy.sparse.linalg import lobpcg
from scipy.special import stdtrit

from badpo.estimation.conditional_likelihood import ComparisonBlocks, KnownWins, sort_into_blocks
from badpo.estimation.log_odds import summed, summed_products
from badpo.estimation.newton import (
    LARGEST_DENSE,
    LARGEST_FACTORED,
    Information,
    Maximum,
    QualityModel,
    compute_bias_covariance,
    conjugate_gradients,
    maximize,
)
from badpo.theory import Array, Bools, Floats, Ints
from badpo.theory.identifiability import (
    annotator_components,
    bias_design,
    free_directions,
    informative_judgments,
    judgment_arrays,
    separated_annotators,
    separating_mixes,
)

# Two logits change equally along a direction of recession if their changes differ by less than this tolerance.
SAME = 1e-4
# Relative precision of the linear solver in `has_expected_rank`, which checks large design matrices.
CONFIRMED = 1e-5
# The fit has not reached a maximum if an entry of the gradient is larger than this value.
REACHED = 1e-6
# A Newton step toward a bias is impossible if the information in the annotator's votes is below this value.
NO_INFORMATION = 1e-12
# A clustered error cannot be estimated if one cluster contains more than this share of the information about a bias.
WHOLE = 1 - 1e-9
# Two teams of annotators count as weakly joined if the ratio R in `find_weakly_joined_teams` exceeds this value.
WEAKEST_JOINT = 10.0
# Two teams count as weakly joined only if the standard error of their difference in bias exceeds this value.
LARGE_ERROR = 0.25
# Within a weakly joined team, the root mean square of the biases' standard errors is below this value, in log-odds.
HALF_KNOWN = 1.0
# A weakly joined team contains at least this many annotators.
SMALLEST_TEAM = 3


class Votes(NamedTuple):
    """Arrays of votes from which biases and reliability are estimated.

    ``comparison`` and ``annotator`` are integer codes, ``sign`` is +1 for a vote for a and -1 for a vote for b; the
    three arrays have the shape (n_votes,). ``delta`` is g(a) - g(b), with the shape (n_votes, n_attributes).
    """

    comparison: Ints
    sign: Ints
    annotator: Ints
    delta: Floats
    n_annotators: int

    def select(self, rows: Bools) -> Votes:
        """Return the selected votes."""
        comparison, sign, annotator = (each[rows] for each in self[:3])
        return Votes(comparison, sign, annotator, self.delta[rows], self.n_annotators)


@dataclass(frozen=True)
class BiasEstimates:
    r"""Biases of m annotators toward q attributes, in log-odds; positive if an annotator prefers more of the attribute.

    Attributes
    ----------
    quality : str
        Model of the quality of comparisons: "conditional" or "marginal".
    deviation : array of shape (m, q)
        :math:`\theta_k` minus the mean of the finite estimates in the annotator's component. If the shared bias is
        known (``absolute``), :math:`\theta_k` itself, which is 0 for anchored annotators. NaN without information;
        infinite if all votes are for one side.
    se : array of shape (m, q)
        Standard error of the deviation, including the error of the mean. NaN without a finite estimate, and NaN for all
        annotators if the likelihood has no maximum.
    df : array of shape (m, q)
        Degrees of freedom of Student's t for the confidence interval; infinite if errors are not clustered.
    finite_deviation, finite_se : array of shape (m, q)
        Deviations and standard errors in which one Newton step from the mean of the other biases replaces an infinite
        bias. Shrinkage toward the other biases uses these finite values. NaN if the standard error is not known.
    status : object array of shape (m, q)
        "ok"; "separated_high" or "separated_low" for an infinite bias; "anchored"; "insufficient" for an estimate from
        fewer than ``min_informative`` informative votes; "no_cross" if the annotator never judged sides that differ in
        the attribute; "no_information" if the annotator judged such sides, but only in votes that are not informative.
    component : int array of shape (m, q)
        Number of the annotator's component; the votes compare annotators in the same component. -1 without information.
    n_informative : int array of shape (m, q)
        Number of informative votes, which show differences between annotators.
    origin : array of shape (m, q)
        Value from which the deviation is measured, as far as it is identified; 0 if the shared bias is known.
    shared_bias, shared_bias_se, shared_bias_se_population : array of shape (q,)
        Mean bias, or NaN if it is not identified; standard error for other comparisons and the same annotators;
        standard error for other comparisons and a population of annotators, which is NaN for a single annotator.
    absolute : bool array of shape (q,)
        Whether the shared bias is known. It is known if annotators are anchored, or if votes on one comparison differ
        in the attribute. If only some annotators' biases are identified, deviations are measured from means.
    covariance : array of shape (m * q, m * q) or None
        Covariance of the deviations, ordered by annotator and then by attribute; NaN without a finite estimate, None if
        the matrix is too large.
    gradient_norm : float
        Largest entry of the gradient at the estimate; if the entry exceeds ``REACHED``, the estimate is not a maximum.
    """

    quality: str
    deviation: Floats
    se: Floats
    df: Floats
    finite_deviation: Floats
    finite_se: Floats
    status: Array
    component: Ints
    n_informative: Ints
    origin: Floats
    shared_bias: Floats
    shared_bias_se: Floats
    shared_bias_se_population: Floats
    absolute: Bools
    covariance: Floats | None
    gradient_norm: float

    @property
    def ci_low(self) -> Floats:
        """Lower limits of the 95 % confidence intervals; NaN without a finite estimate."""
        return np.asarray(self.deviation - stdtrit(self.df, 0.975) * self.se)

    @property
    def ci_high(self) -> Floats:
        """Upper limits of the 95 % confidence intervals; NaN without a finite estimate."""
        return np.asarray(self.deviation + stdtrit(self.df, 0.975) * self.se)


def fit_conditional(
    votes: Votes,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
    clusters: ArrayLike | None = None,
) -> BiasEstimates:
    r"""Estimate biases by maximum likelihood, conditional on the number of votes for response a on each comparison.

    .. math:: \max_\theta \prod_c \frac{\exp \sum_{j \in W_c} \theta_{k_j} \cdot d_j}
        {\sum_{|V| = |W_c|} \exp \sum_{j \in V} \theta_{k_j} \cdot d_j}

    Here :math:`W_c` is the set of votes for response a on comparison c, and V is any set of as many votes on the same
    comparison. The quality of the comparison cancels out, so the estimator assumes neither a distribution of quality
    nor a random assignment of comparisons to annotators. The estimator is consistent for any number of votes per
    comparison. An estimator with a free quality parameter for each comparison is not consistent. Comparisons with one
    vote and unanimous comparisons contain no information.

    Parameters
    ----------
    votes : Votes
    anchored : bool array of shape (n_annotators,), or None
        Annotators who are declared to have no bias.
    min_informative : int
        Annotators with fewer informative votes have the status "insufficient".
    clusters : int array of shape (n_votes,), or None
        Prompt of each vote. If given, standard errors are clustered by prompt (`clustered_variance_ratios`), because a
        bias may differ between prompts.

    Returns
    -------
    BiasEstimates
        If all informative votes of an annotator are for one side, the bias is infinite. The infinite bias explains
        these votes, so the other biases are estimated without the votes. Votes are omitted in the same way if only a
        combination of biases is infinite, or if attributes always differ together. If a group of annotators won every
        disagreement with the rest, the group and the rest are separate components.

    Raises
    ------
    ValueError
        If the arrays differ in length, a sign is not +1 or -1, an annotator code is out of range, or delta is not
        finite.

    References
    ----------
    BA-DPO, Theorem `thm:identif` (identification); Andersen (1970) (conditioning on sufficient statistics).

    Examples
    --------
    Two annotators disagree on four comparisons, three times in the same direction, so their biases differ by log(3):

    >>> sign = [1, -1, 1, -1, 1, -1, -1, 1]
    >>> biases = fit_conditional(Votes(np.repeat(np.arange(4), 2), sign, np.tile([0, 1], 4), np.ones((8, 1)), 2))
    >>> round(float((biases.deviation[0, 0] - biases.deviation[1, 0]) / np.log(3)), 6)
    1.0
    """
    return fit_biases(
        "conditional",
        lambda votes: KnownWins(votes.blocks, votes.sign),
        arrange_votes(votes, anchored),
        min_informative,
        clusters,
    )


# -- votes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrangedVotes:
    """Votes used in a fit, sorted in the order of their ``blocks`` (comparisons).

    ``row`` is the position of a vote among all votes. ``informative`` says whether a vote is informative about its
    annotator's bias toward an attribute. ``saw_difference`` says whether an annotator judged sides that differ in the
    attribute. ``absolute`` marks the attributes whose shared bias is taken as known. If ``free_quality`` is true, the
    quality of each comparison is a free parameter, so a vote is informative only relative to other votes on the same
    comparison.
    """

    row: Ints
    sign: Floats
    annotator: Ints
    delta: Floats
    informative: Bools
    blocks: ComparisonBlocks
    saw_difference: Bools
    anchored: Bools
    absolute: Bools
    free_quality: bool

    def select(self, chosen: Bools) -> ArrangedVotes:
        """Select votes, and arrange the selected votes as if no other votes had been cast.

        If the quality of every comparison is a free parameter, unanimous comparisons and comparisons whose sides do not
        differ are excluded, because they have no informative votes.
        """
        rows = np.flatnonzero(chosen)
        comparison, sign, delta = self.comparison[rows], self.sign[rows], self.delta[rows]
        informative = delta != 0
        if self.free_quality:
            informative = informative_judgments(comparison, self.annotator[rows], sign, delta)
            used = np.bincount(comparison, informative.any(axis=1))[comparison] > 0
            rows, comparison, sign = rows[used], comparison[used], sign[used]
            informative = informative[used]
        # comparisons with the same number of wins become adjacent, so that their likelihoods are computed together
        order, blocks = sort_into_blocks(comparison, sign > 0)
        rows = rows[order]
        return replace(
            self,
            row=self.row[rows],
            sign=self.sign[rows],
            annotator=self.annotator[rows],
            delta=self.delta[rows],
            informative=informative[order],
            blocks=blocks,
        )

    @property
    def comparison(self) -> Ints:
        """For each vote, the number of its comparison in ``blocks``."""
        return self.blocks.comparison

    @cached_property
    def varying(self) -> Bools:
        """Mask, of shape (n_votes, n_attributes), of votes on comparisons within which the attribute varies."""
        if not len(self.row):
            return np.zeros_like(self.informative)
        delta, starts = self.delta, self.blocks.starts
        differs = np.minimum.reduceat(delta, starts) < np.maximum.reduceat(delta, starts)
        return differs[self.comparison]

    def count_by_annotator(self, chosen: Bools) -> Ints:
        """Count the votes selected by ``chosen`` for each annotator; the result has one column per attribute."""
        return summed(self.annotator, chosen, len(self.anchored)).astype(np.intp)

    def design(self, active: Bools) -> sparse.csr_array:
        """Build the matrix, of shape (n_votes, n_biases), that maps the ``active`` biases to the votes' logits."""
        design = bias_design(self.annotator, self.delta, len(active))[:, active.ravel()]
        design.eliminate_zeros()
        return design


def arrange_votes(
    votes: Votes,
    anchored: ArrayLike | None = None,
    *,
    free_quality: bool = True,
    absolute: ArrayLike = False,
) -> ArrangedVotes:
    """Validate and arrange votes."""
    c, k, d, m = judgment_arrays(votes.comparison, votes.annotator, votes.delta, votes.n_annotators)
    s = np.asarray(votes.sign, float)
    wrong = np.flatnonzero(np.abs(s) != 1)
    if len(s) != len(c) or len(wrong):
        problem = f"there are {len(s)} signs"
        if len(wrong):
            problem = f"the sign of vote {wrong[0]} is {s[wrong[0]]:g}"
        raise ValueError(
            f"each of the {len(c)} votes needs a sign: +1 for response a or -1 for response b; {problem}"
        )
    is_anchored = np.asarray([False] * m if anchored is None else anchored, bool)
    is_absolute = np.broadcast_to(np.asarray(absolute, bool), d.shape[1:])
    saw_difference = summed(k, d != 0, m) > 0
    order, blocks = sort_into_blocks(c)
    s, k, d = s[order], k[order], d[order]
    differs = d != 0
    every_vote = ArrangedVotes(
        order, s, k, d, differs, blocks, saw_difference, is_anchored, is_absolute, free_quality
    )
    return every_vote.select(np.ones(len(c), dtype=bool))


# -- which biases are finite ---------------------------------------------------------------------------------


def remove_infinite_biases(votes: ArrangedVotes, status: Array) -> ArrangedVotes:
    """Repeatedly remove the votes of annotators with infinite biases until every remaining bias is finite.

    The estimate of a bias is infinite if all informative votes of the annotator are for one side, or if a combination
    of attributes predicts all votes of the annotator. An infinite bias predicts the annotator's votes without error, so
    the other biases are estimated without these votes. After the removal of one annotator's votes, another annotator
    may have no informative votes, or only votes for one side, so the function repeats the removal.

    ``status``, as in `BiasEstimates`, is "ok" for biases that may be finite. The function updates ``status`` for all
    other biases.
    """
    while True:
        live = votes.informative & (status == "ok")[votes.annotator]
        finite = status == "ok"
        status[finite & (votes.count_by_annotator(live) == 0)] = "no_information"
        toward = votes.sign[:, None] * votes.delta * live
        m, q = status.shape
        side = separated_annotators(votes.annotator, np.ones(len(toward)), toward, m)
        high, low = side > 0, side < 0
        if q > 1 and not side.any():
            lowest, highest = separating_mixes(votes.annotator, toward, m)
            finite = status == "ok"
            high, low = finite & (highest > 0), finite & (lowest < 0)
        # A bias that can diverge to plus infinity and to minus infinity is not identified.
        # A bias can diverge in both directions if its attribute differs only when another attribute also differs.
        status[high], status[low] = "separated_high", "separated_low"
        status[high & low] = "no_information"
        removed = ((high | low)[votes.annotator] & (toward != 0)).any(axis=1)
        if not removed.any():
            return votes
        votes = votes.select(~removed)


def find_explained_votes(change: Floats, won: Bools, blocks: ComparisonBlocks) -> Bools:
    r"""Return a mask of votes that become certain along a direction of recession of the likelihood.

    A direction in the space of biases is a direction of recession if, on every comparison, no losing vote's logit
    increases more than a winning vote's logit. In a direction that is not a direction of recession, the likelihood
    eventually decreases. Along a direction of recession, the likelihood keeps increasing or stays constant. A vote
    becomes certain if the change of its logit along the direction differs from the smallest change among the winning
    votes on the same comparison. The likelihood of the votes that do not become certain stays constant along the
    direction.

    ``change`` is the change of each vote's logit along the direction. All returned values are False if the direction is
    not a direction of recession, or if the likelihood does not change along the direction.
    """
    change, of = change / np.abs(change).max(), blocks.comparison
    winner = np.minimum.reduceat(np.where(won, change, np.inf), blocks.starts)
    loser = np.maximum.reduceat(np.where(won, -np.inf, change), blocks.starts)
    recedes = bool((winner >= loser - SAME).all())
    away = np.abs(change - winner[of]) > SAME
    return recedes & (away | (winner > loser + SAME)[of])


# -- what the design identifies ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """Groups of values, such as biases.

    ``label`` contains the group of each value; values in ``absolute`` have no group.
    """

    label: Ints
    absolute: Bools

    @cached_property
    def member(self) -> sparse.csr_array:
        """Indicator matrix of the groups, with shape (n_values, n_groups); rows of values in ``absolute`` are zero."""
        n, relative = len(self.label), (~self.absolute).astype(float)
        entries = relative, (np.arange(n), self.label)
        return sparse.csr_array(entries, shape=(n, self.label.max(initial=-1) + 1))

    @cached_property
    def size(self) -> Floats:
        """Number of values of each group."""
        return np.asarray(np.maximum(self.member.sum(axis=0).ravel(), 1))

    def centered(self, values: Floats) -> Floats:
        """Subtract the mean of each group from the values, along the first axis."""
        return np.asarray(values - self.member @ ((self.member.T @ values).T / self.size).T)


@dataclass(frozen=True)
class IdentifiedBiases(Groups):
    """Biases that the votes identify, either absolutely or relative to other biases in the same group.

    ``annotator`` and ``attribute`` are the annotator and the attribute of each bias. Biases toward the same attribute
    can be compared if they have the same ``group``; ``label`` numbers the groups of all attributes. ``absolute`` marks
    biases whose absolute size is identified. ``compared`` marks biases that are identified at least relative to another
    bias. The columns of ``flat`` are orthonormal directions in which a change in the biases affects no vote's
    probability; ``flat`` has no columns if the design matrix is too large.
    """

    annotator: Ints
    attribute: Ints
    group: Ints
    compared: Bools
    flat: Floats

    def centered_variance(self, variance: Floats) -> Floats:
        """Variances of uncorrelated values after the group means have been subtracted."""
        shared = (self.member.T @ variance) / self.size**2
        weight = 1 - 2 * (self.member @ (1 / self.size))
        return np.asarray(weight * variance + self.member @ shared)


def find_identified_biases(votes: ArrangedVotes, active: Bools, by_rank: bool) -> IdentifiedBiases:
    """Find the biases that the votes identify.

    All biases are comparable, unless the quality of every comparison is a free parameter.

    A shared bias is identified only if quality cannot explain the same votes: if annotators are anchored, or if votes
    on one comparison differ in the attribute. The rank of the design matrix determines exactly which biases are
    identified. If the design matrix is large, the function uses the graph of annotators who share comparisons instead.
    The graph and the rank give the same result if attributes are not collinear. After a fit with groups from the graph,
    `has_expected_rank` checks the groups.
    """
    annotator, attribute = np.nonzero(active)
    flat = np.zeros((len(annotator), 0))
    group, absolute = np.zeros(active.shape, np.intp), np.zeros(active.shape, bool)
    if not (votes.free_quality or votes.varying.any()):
        pass
    elif by_rank:
        delta = votes.delta * active[votes.annotator]
        directions = free_directions(votes.comparison, votes.annotator, delta, len(active))
        group, absolute = directions.difference_groups(), directions.theta_identified()
        nonzero = directions.basis[np.flatnonzero(active)]
        nonzero = nonzero[:, np.unique(nonzero.indices)].toarray()
        flat = orth(nonzero, 1e-9) if votes.free_quality and nonzero.size else flat
    else:
        group, absolute = _find_groups_in_graph(votes, active)
    absolute = absolute | votes.absolute
    group, absolute = group[active] * votes.free_quality, absolute[active]
    label = attribute * (group.max(initial=0) + 1) + group
    in_company = (np.bincount(label)[label] > 1) | (not votes.free_quality)
    # a shared bias that is identified for only some annotators counts as not identified
    absolute &= ~np.isin(attribute, attribute[in_company & ~absolute])
    compared = absolute | in_company
    return IdentifiedBiases(label, absolute, annotator, attribute, group, compared, flat)


def _find_groups_in_graph(votes: ArrangedVotes, active: Bools) -> tuple[Ints, Bools]:
    """Find groups of annotators who share comparisons, and the biases whose absolute size is identified.

    The absolute size of a bias is identified if the annotator's group contains an anchored annotator. It is also
    identified if someone in the group voted on a comparison within which the attribute varies.
    """
    m, groups, absolute = len(active), [], []
    columns = zip(votes.informative.T, votes.varying.T, active.T, strict=True)
    for informative, varies, is_active in columns:
        # one node for all anchored annotators
        node = np.where(is_active, np.arange(m), m)[votes.annotator]
        edges = votes.comparison, node, informative.astype(float)
        *group, anchor_group = annotator_components(*edges, m + 1)[:, 0]
        groups.append(group)
        varied = np.take([*group, anchor_group], node[varies & informative])
        absolute.append(np.isin(group, [*np.unique(varied), anchor_group]))
    return np.column_stack(groups), np.column_stack(absolute)


def has_expected_rank(expected: IdentifiedBiases, information: Information) -> bool:
    """Return whether the information matrix is singular only along the means of the expected groups.

    If the information matrix has other singular directions, a random vector without the group means is not in the range
    of the matrix, and conjugate gradients do not converge for this vector.
    """
    size = np.sqrt(np.maximum(information.diagonal, 1e-300))
    random = np.random.default_rng(0).standard_normal(len(size))
    side = expected.centered(size * expected.centered(random))
    missing = side - information.times(conjugate_gradients(information, side, CONFIRMED))
    return bool(np.linalg.norm(missing) < 10 * CONFIRMED * np.linalg.norm(side))


# -- the fit -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fit:
    """Result of a fit: the votes used, the biases at the maximum of the likelihood, and the identified biases.

    ``variance`` and ``covariance`` are those of the deviations; ``covariance`` is None if the matrix is too large to
    store. ``cluster`` is the prompt of each vote, or None if standard errors are not clustered.
    """

    votes: ArrangedVotes
    active: Bools
    design: sparse.csr_array
    known: IdentifiedBiases
    top: Maximum
    cluster: Ints | None = None

    @cached_property
    def _information(self) -> Floats:
        """Minus the derivative of each vote's score with respect to the biases of the vote's annotator.

        The array has the shape (n_votes, n_attributes).
        """
        pairs = self.top.information.at.information.tocoo()
        one, other = (self.votes.annotator[each] for each in (pairs.row, pairs.col))
        pairs.data = pairs.data * (one == other)
        return np.asarray(pairs @ self.votes.delta)

    @cached_property
    def clustered(self) -> tuple[Floats, Floats]:
        """Result of `clustered_variance_ratios` for all biases."""
        saw, n = self.design.tocoo(), len(self.top.biases)
        if self.cluster is None:
            return np.ones(n), np.full(n, np.inf)
        bias = saw.col.astype(np.intp)
        cluster = self.cluster[self.votes.row[saw.row]]
        score = saw.data * self.top.information.at.score[saw.row]
        place = saw.row, self.known.attribute[bias]
        information = saw.data * self._information[place]
        return clustered_variance_ratios(bias, cluster, score, information, n)

    @cached_property
    def covariance(self) -> Floats | None:
        """Clustered covariance matrix of the deviations; None if the matrix is too large to store."""
        if len(self.top.biases) > LARGEST_DENSE:
            return None
        centered, size = self.known.centered, np.sqrt(self.clustered[0])
        covariance = compute_bias_covariance(self.top, self.known.flat)
        return centered(centered(covariance).T) * size * size[:, None]

    @cached_property
    def variance(self) -> Floats:
        """Clustered variance of every deviation."""
        if self.covariance is not None:
            return np.diag(self.covariance)
        # Information about an annotator's biases if all other annotators' biases are known; 1 for inactive biases.
        votes, active = self.votes, self.active
        m, q = active.shape
        own = summed_products(votes.annotator, votes.delta, self._information, m)
        own *= active[:, :, None] & active[:, None, :]
        own += np.eye(q) * ~active[:, :, None]
        inverse = np.linalg.pinv(own, rcond=1e-10, hermitian=True)
        variance = np.diagonal(inverse, axis1=1, axis2=2)[active]
        return self.known.centered_variance(variance * self.clustered[0])


def clustered_variance_ratios(
    bias: Ints, cluster: Ints, score: ArrayLike, information: ArrayLike, n_biases: int
) -> tuple[Floats, Floats]:
    r"""Return the ratio of clustered to independent variance for each bias, and the degrees of freedom.

    .. math:: \phi_k = \frac{1}{h_k} \sum_g a_{kg} s_{kg}^2, \quad a_{kg} = \frac{1}{1 - K_{kg}}, \quad
        \nu_k = \frac{1}{\sum_g a_{kg}^2 K_{kg}^2 (1 - 2 K_{kg}) + (\sum_g a_{kg} K_{kg}^2)^2}

    Here s_{kg} is the score of bias k in cluster g, h_k is the information about bias k, and K_{kg} is the share of h_k
    in cluster g. The result is the CR2 estimator with the degrees of freedom of Bell and McCaffrey, as in
    `badpo.estimation.log_odds.cluster_errors`, computed for every bias as if the other biases were known. The result is
    NaN if one cluster contains all information. A sandwich estimator over all scores would give almost no error to
    biases that are connected by only a few comparisons. A factor on the inverse information avoids this problem. Each
    array contains one entry for each vote and attribute.

    Examples
    --------
    Four clusters of equal information have three degrees of freedom:

    >>> pieces = np.zeros(4, int), np.arange(4), [1.0, -1.0, 1.0, -1.0], np.ones(4)
    >>> [each.round(3).tolist() for each in clustered_variance_ratios(*pieces, 1)]
    [[1.333], [3.0]]
    """
    n = int(cluster.max(initial=0)) + 1
    cells, cell = np.unique(bias * n + cluster, return_inverse=True)
    of = cells // n

    def total(values: Array) -> Array:
        return np.bincount(of, values, n_biases)

    slope, bend = (np.bincount(cell, x, len(cells)) for x in (score, information))
    whole = np.maximum(total(bend), 1e-300)
    share = bend / whole[of]
    by = 1 / np.maximum(1 - share, 1 - WHOLE)
    square = total((by * share) ** 2 * (1 - 2 * share))
    square += total(by * share**2) ** 2
    is_known = (total(share > WHOLE) == 0) & (square > 0)
    df = 1 / np.where(is_known, square, np.nan)
    return total(by * slope**2) / whole, df


def fit_biases(
    kind: str,
    make_model: Callable[[ArrangedVotes], QualityModel],
    all_votes: ArrangedVotes,
    min_informative: int,
    clusters: ArrayLike | None = None,
) -> BiasEstimates:
    """Fit the finite biases, and set the status of all other biases.

    Two groups of annotators are separated if, in every disagreement between them, the member of the first group chose
    the side with the attribute. The likelihood keeps increasing with the difference in bias between separated groups,
    although every annotator has votes for both sides. Groups can be separated only if the quality of every comparison
    is a free parameter. The fit omits the votes that compare separated groups.
    """
    remaining = all_votes
    while True:
        status = np.where(all_votes.saw_difference, "ok", "no_cross").astype(object)
        status[all_votes.anchored] = "anchored"
        votes, active = remove_infinite_biases(remaining, status), status == "ok"
        design = votes.design(active)
        by_rank = design.shape[1] <= LARGEST_DENSE
        known = find_identified_biases(votes, active, by_rank)
        top = maximize(make_model(votes), design, known.flat)
        if top.receding is None or not votes.free_quality:
            break
        certain = find_explained_votes(design @ top.receding, votes.sign > 0, votes.blocks)
        if not certain.any():
            break
        remaining = remaining.select(~np.isin(remaining.row, votes.row[certain]))
    is_guess = votes.free_quality and not by_rank and top.receding is None
    if is_guess and not has_expected_rank(known, top.information):
        alone = np.arange(len(top.biases))
        nobody = alone < 0
        known = replace(known, group=alone, label=alone, absolute=nobody, compared=nobody)
    cluster = None if clusters is None else np.unique(clusters, return_inverse=True)[1]
    fit = _Fit(votes, active, design, known, top, cluster)
    return _estimate_biases(kind, all_votes, fit, status, make_model(all_votes), min_informative)


def _estimate_biases(
    kind: str,
    all_votes: ArrangedVotes,
    fit: _Fit,
    status: Array,
    model: QualityModel,
    min_informative: int,
) -> BiasEstimates:
    """Arrange the estimates of a fit in arrays with one row per annotator and one column per attribute."""
    known, top = fit.known, fit.top
    place = known.annotator[known.compared], known.attribute[known.compared]

    def arrange(values: Floats) -> Floats:
        full = np.full(status.shape, np.nan)
        full[place] = values[known.compared]
        return full

    is_top = top.gradient_norm < REACHED
    deviation = arrange(known.centered(top.biases))
    df = arrange(np.where(is_top, fit.clustered[1], np.nan))
    se = arrange(np.sqrt(np.maximum(fit.variance, 0.0)))
    se[np.isnan(df)] = np.nan
    n_informative = all_votes.count_by_annotator(all_votes.informative)
    estimated = status == "ok"
    status[estimated & (n_informative < min_informative)] = "insufficient"
    status[estimated & np.isnan(deviation)] = "no_information"
    component = _find_components(all_votes, fit, status, n_informative > 0)
    origin = np.nan_to_num(arrange(top.biases) - deviation)
    deviation[status == "separated_high"] = np.inf
    deviation[status == "separated_low"] = -np.inf
    absolute = np.isin(np.arange(status.shape[1]), known.attribute[known.absolute])
    deviation[all_votes.anchored] = np.where(absolute, 0.0, np.nan)
    infinite = np.isinf(deviation) & is_top
    finite, finite_se = np.where(np.isnan(se), np.nan, deviation), se.copy()
    if infinite.any():
        step, step_se = _step_from_mean(all_votes, fit, model, absolute)
        finite = np.where(infinite, step, finite)
        finite_se = np.where(infinite, step_se, se)
    shared = np.full((3, len(absolute)), np.nan)
    for j in np.flatnonzero(absolute):
        members = known.absolute & (known.attribute == j)
        shared[:, j] = _estimate_shared_bias(fit, np.flatnonzero(members))
    shared_bias, shared_bias_se, shared_bias_se_population = shared
    return BiasEstimates(
        kind,
        deviation,
        se,
        df,
        finite,
        finite_se,
        status,
        component,
        n_informative,
        origin,
        shared_bias,
        shared_bias_se,
        shared_bias_se_population,
        absolute,
        _expand_covariance(fit, status.size),
        top.gradient_norm,
    )


def _step_from_mean(
    all_votes: ArrangedVotes, fit: _Fit, model: QualityModel, absolute: Bools
) -> tuple[Floats, Floats]:
    """Return deviations and standard errors after one Newton step from the mean of the estimated biases."""
    biases, extra = np.zeros(fit.active.shape), fit.top.extra
    biases[fit.active] = fit.top.biases
    mean = biases.sum(axis=0) / np.maximum(fit.active.sum(axis=0), 1)
    biases = np.where(fit.active | all_votes.anchored[:, None], biases, mean)
    logits = (biases[all_votes.annotator] * all_votes.delta).sum(axis=1)
    at = model.curvature(logits, extra)
    information = at.information.diagonal()
    # to shorten the step, a vote with a probability below one half gets the information of even odds (0.25)
    information[np.abs(at.score) > 0.5 + 1e-9] = 0.25
    pieces = at.score[:, None] * all_votes.delta, information[:, None] * all_votes.delta**2
    slope, bend = (summed(all_votes.annotator, each, len(biases)) for each in pieces)
    # an annotator's votes have no information if other attributes explain every vote
    bend = np.where(bend > NO_INFORMATION, bend, np.nan)
    return np.where(absolute, mean, 0.0) + slope / bend, 1 / np.sqrt(bend)


def _find_components(all_votes: ArrangedVotes, fit: _Fit, status: Array, informed: Bools) -> Ints:
    """Return the group number of every annotator for each attribute; the votes compare biases within a group.

    Annotators with infinite or anchored biases also belong to groups. Annotators without a group get the group number
    -1.
    """
    fixed = np.isin(status, ("separated_high", "separated_low", "anchored")) & informed
    if not all_votes.free_quality:
        return np.where(informed & (fit.active | fixed), 0, -1)
    edges = all_votes.comparison, all_votes.annotator, all_votes.delta * all_votes.informative
    group, known = np.full(status.shape, -1), fit.known
    for j, joined in enumerate(annotator_components(*edges, len(status)).T):
        members = known.compared & (known.attribute == j)
        annotators, own = known.annotator[members], known.group[members]
        number = own.max(initial=-1) + 1 + np.arange(joined.max(initial=-1) + 1)
        number[joined[annotators]] = own
        group[fixed[:, j], j] = number[joined[fixed[:, j]]]
        group[annotators, j] = own
    return group


def _estimate_shared_bias(fit: _Fit, members: Ints) -> tuple[float, float, float]:
    """Mean of the identified biases, with one standard error for the same annotators and one for a population.

    The standard error for the same annotators is clustered by comparison or by prompt, because a bias may differ
    between comparisons. The standard error for a population of annotators also includes the between-annotator variance
    of the biases, beyond the variance of the estimation errors.
    """
    biases, n, variance = fit.top.biases[members], len(members), fit.variance
    moves = np.zeros(len(variance))
    moves[members] = variance[members] / n
    if fit.covariance is not None:
        moves = fit.covariance[:, members].mean(axis=1)
    moved = (fit.design @ moves) * fit.top.information.at.score
    cluster = fit.votes.comparison if fit.cluster is None else fit.cluster[fit.votes.row]
    clustered = (np.bincount(cluster, moved) ** 2).sum()
    between = np.nan
    if n > 1:
        between = biases.var(ddof=1) / n - variance[members].sum() / n**2
    beyond = clustered + np.maximum(between, 0.0)
    return biases.mean(), np.sqrt(clustered), np.sqrt(beyond)


def _expand_covariance(fit: _Fit, n_biases: int) -> Floats | None:
    """Expand the covariance matrix to one row per annotator and attribute; rows without an estimate are NaN."""
    if fit.covariance is None or n_biases > LARGEST_DENSE:
        return None
    full, compared = np.full((n_biases, n_biases), np.nan), fit.known.compared
    rows = np.flatnonzero(fit.active)[compared]
    full[np.ix_(rows, rows)] = fit.covariance[np.ix_(compared, compared)]
    return full


# -- weakly joined teams ---------------------------------------------------------------------------------------


def find_weakly_joined_teams(votes: Votes) -> Ints:
    r"""For each attribute, divide the annotators into teams if few votes compare the biases of different teams.

    Let L be the information matrix of the biases if all biases are equal. The annotators are sorted by the scaled
    eigenvector of the smallest nonzero eigenvalue of L. Each position in the sorted order divides the annotators into a
    set A and the rest. The function chooses the set A with the largest ratio R. R is the variance of the difference in
    bias between A and the other annotators, divided by the variance that the errors of individual biases imply.

    .. math:: R = \frac{1 / (1_A^\top L\, 1_A)}
        {\sum_{k \in A} L_{kk}^{-1} / |A|^2 + \sum_{k \notin A} L_{kk}^{-1} / |\bar A|^2}

    The numerator of R is the variance of the difference if all biases in A are equal and all other biases are equal.
    The set A and the rest are separate teams if R exceeds ``WEAKEST_JOINT``, the standard error of the difference
    exceeds ``LARGE_ERROR``, and the mean of the squared errors :math:`L_{kk}^{-1}` is below ``HALF_KNOWN`` squared on
    both sides. The function then divides each team in the same way. If comparisons are assigned to annotators at
    random, R is small, unless annotators have only about two informative votes each. All team numbers are 0 if there
    are no separate teams.

    Examples
    --------
    Two teams of three annotators judged 30 comparisons each, and one comparison was judged by two annotators of each
    team:

    >>> comparison, annotator = np.repeat(np.arange(61), 4), np.tile([0, 1, 2, 0, 3, 4, 5, 3], 31)[:244]
    >>> annotator[-4:] = [0, 1, 3, 4]
    >>> votes = Votes(comparison, np.tile([1, -1, -1, 1], 61), annotator, np.ones((244, 1)), 6)
    >>> teams = find_weakly_joined_teams(votes).ravel()
    >>> teams == teams[0]
    array([ True,  True,  True, False, False, False])
    """
    arranged = arrange_votes(votes)
    at = KnownWins(arranged.blocks, arranged.sign).curvature(np.zeros(len(arranged.row)))
    teams = np.zeros(arranged.saw_difference.shape, dtype=np.intp)
    for j in np.flatnonzero(~arranged.varying.any(axis=0)):
        design = bias_design(arranged.annotator, arranged.delta[:, [j]], votes.n_annotators)
        information = sparse.csr_array(design.T @ (at.information @ design))
        candidates = [np.flatnonzero(arranged.count_by_annotator(arranged.informative)[:, j])]
        while candidates:
            members = candidates.pop()
            within = information[members][:, members]
            # subtract the information shared with annotators outside the team, so that every row sums to zero
            shared = sparse.diags_array(within.sum(axis=1))
            is_apart = _find_weakly_joined_team(sparse.csr_array(within - shared))
            if is_apart.any():
                teams[members[is_apart], j] = teams[:, j].max() + 1
                candidates += [members[is_apart], members[~is_apart]]
    return teams


def _find_weakly_joined_team(information: sparse.csr_array) -> Bools:
    """Return a mask of a team that few votes compare with all other annotators, or all False if there is none."""
    n, own = information.shape[0], information.diagonal()
    nobody = np.zeros(n, bool)
    if n < 2 * SMALLEST_TEAM or own.min() <= 0:
        return nobody
    unit = np.sqrt(own)
    scaling = sparse.diags_array(1 / unit)
    scaled = sparse.csr_array(scaling @ information @ scaling)
    order = np.argsort(_find_slowest_direction(scaled, unit) / unit, kind="stable")
    rank, pairs = np.argsort(order), information.tocoo()
    last = np.maximum(rank[pairs.row], rank[pairs.col])
    joint = np.bincount(last, pairs.data, n).cumsum()[:-1]
    size, below = np.arange(1, n), np.cumsum(1 / own[order])
    single = below[:-1] / size, (below[-1] - below[:-1]) / (n - size)
    resistance = 1 / np.maximum(joint, 1e-12 * own.max())
    ratio = resistance / (single[0] / size + single[1] / (n - size))
    are_teams = np.minimum(size, n - size) >= SMALLEST_TEAM
    are_teams &= resistance >= LARGE_ERROR**2
    are_teams &= np.maximum(*single) <= HALF_KNOWN**2
    ratio = np.where(are_teams, ratio, 0.0)
    best = int(ratio.argmax())
    return rank > best if ratio[best] > WEAKEST_JOINT else nobody


def _find_slowest_direction(scaled: sparse.csr_array, flat: Floats) -> Floats:
    """Among all directions orthogonal to ``flat``, find the direction with the smallest scaled information."""
    if len(flat) <= LARGEST_FACTORED:
        unit = flat / np.linalg.norm(flat)
        return np.linalg.eigh(scaled.toarray() + 3 * np.outer(unit, unit))[1][:, 0]
    start = np.random.default_rng(0).standard_normal((len(flat), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, vectors = lobpcg(scaled, start, Y=flat[:, None], tol=1e-3, maxiter=200, largest=False)
    return np.asarray(vectors[:, 0])
