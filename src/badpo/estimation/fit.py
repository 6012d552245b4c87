"""Estimate annotators' biases from votes, and find the biases that are infinite or not identified.

A model of the comparisons' quality (`badpo.estimation.newton.QualityModel`) defines the likelihood. The audit's default
estimator, `fit_conditional`, conditions on how many votes on a comparison chose response a, so the quality of the
responses cancels out. `badpo.estimation.alternative_estimators` has the estimator for tables with one vote per
comparison. In this module a "bias" is the bias of one annotator toward one attribute.
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
# Relative precision of the check in `has_expected_rank` if the design matrix is large.
CONFIRMED = 1e-5
# If an entry of the gradient is larger than this value, the fit has not reached a maximum.
REACHED = 1e-6
# An annotator's votes determine neither a bias nor a Newton step if their information is below this value.
NO_INFORMATION = 1e-12
# If one cluster contains more than this share of the information about a bias, no clustered error can be estimated.
WHOLE = 1 - 1e-9
# Two teams of annotators count as weakly joined if the ratio R in `find_weakly_joined_teams` exceeds this value.
WEAKEST_JOINT = 10.0
# Smallest standard error, in log-odds, of the difference in bias between two weakly joined teams.
LARGE_ERROR = 0.25
# Largest root mean square, in log-odds, of the individual biases' standard errors in a weakly joined team.
HALF_KNOWN = 1.0
# Smallest number of annotators in a weakly joined team.
SMALLEST_TEAM = 3


class Votes(NamedTuple):
    """Arrays of votes from which biases and reliability are estimated.

    ``comparison`` and ``annotator`` are numbers, of shape (n_votes,). ``sign``, of shape (n_votes,), is +1 for a vote
    for a and -1 for a vote for b. ``delta``, of shape (n_votes, n_attributes), is g(a) - g(b).
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
    r"""Biases of m annotators toward q attributes, in log-odds; positive if an annotator prefers more of an attribute.

    Attributes
    ----------
    quality : str
        How the comparisons' quality is treated: "conditional" or "marginal".
    deviation : array of shape (m, q)
        :math:`\theta_k` minus the mean over the annotators of its component with a finite estimate. If the shared
        bias is known (``absolute``), :math:`\theta_k` itself, which is 0 for anchored annotators. NaN without
        information; infinite if all votes are for one side.
    se : array of shape (m, q)
        Standard error of the deviation, including the error of the mean. NaN without a finite estimate, and for
        everybody if the likelihood has no maximum.
    df : array of shape (m, q)
        Degrees of freedom of Student's t for the confidence interval; infinite if errors are not clustered.
    finite_deviation, finite_se : array of shape (m, q)
        The same, except that an infinite bias is replaced with one Newton step from the mean of the others. This is the
        estimate that a prior around the others needs. NaN if the error is not known.
    status : object array of shape (m, q)
        "ok"; "separated_high" or "separated_low" for an infinite bias; "anchored"; "insufficient" for an estimate
        from fewer than ``min_informative`` informative votes; "no_cross" if the annotator never saw the attribute
        differ; "no_information" if the annotator saw it differ only in votes that are not informative.
    component : int array of shape (m, q)
        The votes compare annotators with the same number; -1 without information.
    n_informative : int array of shape (m, q)
        Number of informative votes, which show differences between annotators.
    origin : array of shape (m, q)
        The value from which the deviation is measured, as far as it is identified; 0 if the shared bias is known.
    shared_bias, shared_bias_se, shared_bias_se_population : array of shape (q,)
        Mean bias if it is known, otherwise NaN; its standard error for other comparisons; its standard error for
        other comparisons and other annotators like these, which is NaN for one annotator.
    absolute : bool array of shape (q,)
        Whether the shared bias is known, because annotators are anchored or because the attribute varies between the
        votes on one comparison. If this identifies the bias of some annotators only, deviations are measured from
        means.
    covariance : array of shape (m * q, m * q) or None
        Covariance of the deviations, annotator by annotator; NaN without a finite estimate, None if too large.
    gradient_norm : float
        Largest gradient entry at the estimate; above ``REACHED`` the estimate is not a maximum.
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
        """Lower ends of the 95 % confidence intervals; NaN without a finite estimate."""
        return np.asarray(self.deviation - stdtrit(self.df, 0.975) * self.se)

    @property
    def ci_high(self) -> Floats:
        """Upper ends of the 95 % confidence intervals; NaN without a finite estimate."""
        return np.asarray(self.deviation + stdtrit(self.df, 0.975) * self.se)


def fit_conditional(
    votes: Votes,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
    clusters: ArrayLike | None = None,
) -> BiasEstimates:
    r"""Estimate biases by the conditional likelihood, given how many votes on every comparison chose response a.

    .. math:: \max_\theta \prod_c \frac{\exp \sum_{j \in W_c} \theta_{k_j} \cdot d_j}
        {\sum_{|V| = |W_c|} \exp \sum_{j \in V} \theta_{k_j} \cdot d_j}

    Here :math:`W_c` is the set of votes for response a on comparison c, and V is any set of the same number of its
    votes. The quality of the comparison cancels, so the estimator assumes neither a distribution of quality nor a
    random assignment of comparisons to annotators. It is consistent for any number of votes per comparison, unlike an
    estimator with a free quality parameter per comparison. Comparisons with one vote and unanimous comparisons
    contain no information.

    Parameters
    ----------
    votes : Votes
    anchored : bool array of shape (n_annotators,), or None
        Annotators who are declared to have no bias.
    min_informative : int
        With fewer informative votes the status is "insufficient".
    clusters : int array of shape (n_votes,), or None
        The prompt of each vote. If given, errors are clustered (`clustered_variance_ratios`), because a bias may
        differ by prompt.

    Returns
    -------
    BiasEstimates
        If all informative votes of an annotator are for one side, the bias is infinite. The infinite bias explains
        these votes, and the other biases are estimated without them. The same holds if biases are infinite only for a
        combination of attributes, or if attributes differed only together. If a group of annotators won every vote
        against the rest, the group and the rest are separate components.

    Raises
    ------
    ValueError
        If arrays differ in length, a sign is not +1 or -1, an annotator is out of range or delta is not finite.

    References
    ----------
    BA-DPO, Theorem `thm:identif`, on identification; Andersen (1970) on conditioning on sufficient statistics.

    Examples
    --------
    Two annotators who disagree on four comparisons, three times in the same way: the difference is log(3).

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
    """Votes that a fit uses, sorted in the order of their ``blocks`` (comparisons).

    ``row`` is the position of a vote among all votes. ``informative`` says whether a vote is informative about its
    annotator's bias toward an attribute. ``saw_difference`` says whether an annotator saw the sides differ in any
    vote. ``absolute`` marks the attributes whose shared bias is taken as known. If ``free_quality``, nothing is
    assumed about the comparisons' quality, so a vote is informative only in relation to other votes on its comparison.
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
        """Select the chosen votes and arrange them as if no other votes had been cast.

        If the quality of every comparison is free, comparisons without an informative vote are left out: unanimous
        comparisons, and comparisons on which no attribute differs.
        """
        rows = np.flatnonzero(chosen)
        comparison, sign, delta = self.comparison[rows], self.sign[rows], self.delta[rows]
        informative = delta != 0
        if self.free_quality:
            informative = informative_judgments(comparison, self.annotator[rows], sign, delta)
            used = np.bincount(comparison, informative.any(axis=1))[comparison] > 0
            rows, comparison, sign = rows[used], comparison[used], sign[used]
            informative = informative[used]
        # comparisons with the same number of wins are adjacent, because their likelihood is computed together
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
        """The comparison's number in the blocks."""
        return self.blocks.comparison

    @cached_property
    def varying(self) -> Bools:
        """Mask of votes on comparisons within which an attribute varies, of shape (n_votes, n_attributes)."""
        if not len(self.row):
            return np.zeros_like(self.informative)
        delta, starts = self.delta, self.blocks.starts
        differs = np.minimum.reduceat(delta, starts) < np.maximum.reduceat(delta, starts)
        return differs[self.comparison]

    def count_by_annotator(self, chosen: Bools) -> Ints:
        """Count each annotator's chosen votes; the result has one column per attribute."""
        return summed(self.annotator, chosen, len(self.anchored)).astype(np.intp)

    def design(self, active: Bools) -> sparse.csr_array:
        """Build the matrix, of shape (n_votes, n_biases), that maps the ``active`` biases (row by row) to logits."""
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
    """Validate votes and arrange them."""
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

    The estimate of a bias is infinite if all informative votes of the annotator are for one side. An infinite bias
    predicts the annotator's informative votes without error, so the other biases are estimated without these votes.
    After one annotator's votes have been removed, another annotator may have no informative votes or only votes for one
    side, so the function repeats the removal. A combination of attributes can also predict all votes of an annotator
    without error.

    ``status``, as in `BiasEstimates`, is "ok" for biases that may be finite. The function writes the status of the
    other biases into ``status``.
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
        # A bias can diverge in both directions if its attribute differed only when another attribute differed too.
        status[high], status[low] = "separated_high", "separated_low"
        status[high & low] = "no_information"
        removed = ((high | low)[votes.annotator] & (toward != 0)).any(axis=1)
        if not removed.any():
            return votes
        votes = votes.select(~removed)


def find_explained_votes(change: Floats, won: Bools, blocks: ComparisonBlocks) -> Bools:
    r"""Mark the votes that become certain along a direction in which the conditional likelihood keeps increasing.

    A direction in the space of biases is a direction of recession if, on every comparison, no losing vote's logit
    increases more than a winning vote's logit. In a direction that is not a direction of recession, the likelihood
    eventually decreases. Along a direction of recession, the likelihood keeps increasing or stays constant. A vote
    becomes certain if the change of its logit along the direction differs from the smallest change among the winning
    votes on the same comparison. The likelihood of the votes that do not become certain stays constant along the
    direction.

    ``change`` is the change of each vote's logit along the direction. All entries are False if the direction is not a
    direction of recession or does not change the likelihood.
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
    """Groups of values, such as biases: ``label`` is the group of each value. A value in ``absolute`` has no group."""

    label: Ints
    absolute: Bools

    @cached_property
    def member(self) -> sparse.csr_array:
        """Indicator matrix of each value's group, of shape (n_values, n_groups); zero for values in ``absolute``."""
        n, relative = len(self.label), (~self.absolute).astype(float)
        entries = relative, (np.arange(n), self.label)
        return sparse.csr_array(entries, shape=(n, self.label.max(initial=-1) + 1))

    @cached_property
    def size(self) -> Floats:
        """Number of values of each group."""
        return np.asarray(np.maximum(self.member.sum(axis=0).ravel(), 1))

    def centered(self, values: Floats) -> Floats:
        """Along the first axis, which enumerates the values of the groups, center at the mean of each group."""
        return np.asarray(values - self.member @ ((self.member.T @ values).T / self.size).T)


@dataclass(frozen=True)
class IdentifiedBiases(Groups):
    """Biases that the votes identify, either absolutely or relative to other biases in the same group.

    ``annotator`` and ``attribute`` are the annotator and the attribute of each bias. Biases toward one attribute with
    the same ``group`` can be compared; ``label`` numbers the groups of all attributes. ``absolute`` marks biases whose
    absolute size is identified. ``compared`` marks biases that are identified at least relative to another bias. The
    columns of ``flat`` are orthonormal directions in which a change in the biases affects no vote's probability;
    ``flat`` has no columns if the design matrix is too large.
    """

    annotator: Ints
    attribute: Ints
    group: Ints
    compared: Bools
    flat: Floats

    def centered_variance(self, variance: Floats) -> Floats:
        """Variances of uncorrelated values after the values have been centered at the mean of each group."""
        shared = (self.member.T @ variance) / self.size**2
        weight = 1 - 2 * (self.member @ (1 / self.size))
        return np.asarray(weight * variance + self.member @ shared)


def find_identified_biases(votes: ArrangedVotes, active: Bools, by_rank: bool) -> IdentifiedBiases:
    """Find the biases that the votes identify.

    All biases are comparable unless the quality of every comparison is a free parameter.

    A shared bias is identified only if the quality of the comparisons cannot explain the same votes: if annotators are
    anchored, or if an attribute varies between the votes on one comparison. The rank of the design matrix decides
    exactly which biases are identified. For a large design matrix the function uses the graph of annotators who share
    comparisons. If attributes are not collinear, the graph and the rank identify the same biases. After a fit with
    groups from the graph, `has_expected_rank` checks these groups.
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
    # a shared bias counts as not identified if it is identified only for some of the annotators
    absolute &= ~np.isin(attribute, attribute[in_company & ~absolute])
    compared = absolute | in_company
    return IdentifiedBiases(label, absolute, annotator, attribute, group, compared, flat)


def _find_groups_in_graph(votes: ArrangedVotes, active: Bools) -> tuple[Ints, Bools]:
    """Find groups of annotators who share comparisons, and mark the biases whose absolute size is identified.

    A bias is identified if the annotator's group contains an anchored annotator, or contains votes on a comparison
    within which the attribute varies.
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
    """Check whether the information matrix is singular only along the means of the expected groups.

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
    """Result of a fit: biases at the maximum of the likelihood, the votes used, and which biases are identified.

    ``variance`` and ``covariance`` belong to the deviations; ``covariance`` is None if it is too large to store.
    ``cluster`` is the prompt of each vote, or None if errors are not clustered.
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
        """`clustered_variance_ratios` of every bias."""
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
        """Clustered covariance matrix of the deviations; None if it is too large to store."""
        if len(self.top.biases) > LARGEST_DENSE:
            return None
        centered, size = self.known.centered, np.sqrt(self.clustered[0])
        covariance = compute_bias_covariance(self.top, self.known.flat)
        return centered(centered(covariance).T) * size * size[:, None]

    @cached_property
    def variance(self) -> Floats:
        """Variance of every deviation, clustered."""
        if self.covariance is not None:
            return np.diag(self.covariance)
        # Information about each annotator's biases when the other annotators' biases are known; 1 for inactive biases.
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
    r"""Return each bias's ratio of clustered variance to variance for independent votes, and its degrees of freedom.

    .. math:: \phi_k = \frac{1}{h_k} \sum_g a_{kg} s_{kg}^2, \quad a_{kg} = \frac{1}{1 - K_{kg}}, \quad
        \nu_k = \frac{1}{\sum_g a_{kg}^2 K_{kg}^2 (1 - 2 K_{kg}) + (\sum_g a_{kg} K_{kg}^2)^2}

    Here s and h are the score and the information of bias k in cluster g, and K_{kg} is the cluster's share of h_k.
    The result is the CR2 estimator with the degrees of freedom of Bell and McCaffrey, as in
    `badpo.estimation.log_odds.cluster_errors`, for every bias as if the other biases were known. The result is NaN if
    one cluster has all information. A sandwich estimator of all scores would have almost no error for biases that only
    a few comparisons connect; a factor on the inverse information avoids this. Each entry of the arrays is a vote and
    an attribute.

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
    """Fit the finite biases, and set the status of the other biases.

    Two groups of annotators are separated if, whenever members of both groups disagree on a comparison, the member of
    the first group chose the side with the attribute. The likelihood then keeps increasing with the difference in bias
    between the two groups, although every annotator has votes for both sides. Groups of annotators can be separated
    only if the quality of every comparison is a free parameter. The fit omits the votes that compare separated groups
    of annotators.
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
    """Collect the estimates from a fit, with one row per annotator and one column per attribute."""
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
    """Return each bias's deviation and standard error after one Newton step from the mean of the estimated biases."""
    biases, extra = np.zeros(fit.active.shape), fit.top.extra
    biases[fit.active] = fit.top.biases
    mean = biases.sum(axis=0) / np.maximum(fit.active.sum(axis=0), 1)
    biases = np.where(fit.active | all_votes.anchored[:, None], biases, mean)
    logits = (biases[all_votes.annotator] * all_votes.delta).sum(axis=1)
    at = model.curvature(logits, extra)
    information = at.information.diagonal()
    # a vote with a probability below one half gets an information of 0.25, as at even odds, to shorten the step
    information[np.abs(at.score) > 0.5 + 1e-9] = 0.25
    pieces = at.score[:, None] * all_votes.delta, information[:, None] * all_votes.delta**2
    slope, bend = (summed(all_votes.annotator, each, len(biases)) for each in pieces)
    # an annotator's votes have no information if other attributes explain every vote
    bend = np.where(bend > NO_INFORMATION, bend, np.nan)
    return np.where(absolute, mean, 0.0) + slope / bend, 1 / np.sqrt(bend)


def _find_components(all_votes: ArrangedVotes, fit: _Fit, status: Array, informed: Bools) -> Ints:
    """Return every annotator's group number for each attribute; the votes compare the biases within a group.

    Annotators with infinite or anchored biases also belong to groups. The number -1 means that the annotator has no
    group.
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
    """Mean of the identified biases, with a standard error for these annotators and one for a population of annotators.

    The standard error for these annotators is clustered by comparison or by prompt, because a bias may differ between
    comparisons. The standard error for a population also includes the between-annotator variance of biases that the
    errors of the estimates do not explain.
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
    eigenvector of the smallest nonzero eigenvalue of L. Each position in this order divides the annotators into a set A
    and the rest. The function chooses the set A with the largest ratio R: the variance of the difference in bias
    between A and the other annotators, divided by the variance that the errors of individual biases imply.

    .. math:: R = \frac{1 / (1_A^\top L\, 1_A)}
        {\sum_{k \in A} L_{kk}^{-1} / |A|^2 + \sum_{k \notin A} L_{kk}^{-1} / |\bar A|^2}

    The numerator of R is the variance of the difference if all biases in A are equal and all other biases are equal.
    The set A and the rest are separate teams if R exceeds ``WEAKEST_JOINT``, the standard error of the difference
    exceeds ``LARGE_ERROR``, and the mean of the squared errors :math:`L_{kk}^{-1}` is below ``HALF_KNOWN`` squared on
    both sides. The function then divides each team in the same way. If comparisons are assigned to annotators at
    random, R is small unless annotators have only about two informative votes each. All team numbers are 0 if there are
    no separate teams.

    Examples
    --------
    Two teams of three judged 30 comparisons each, and two annotators of each team share one comparison:

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
            # remove the information shared with annotators outside the team, so that every row sums to zero
            shared = sparse.diags_array(within.sum(axis=1))
            is_apart = _find_weakly_joined_team(sparse.csr_array(within - shared))
            if is_apart.any():
                teams[members[is_apart], j] = teams[:, j].max() + 1
                candidates += [members[is_apart], members[~is_apart]]
    return teams


def _find_weakly_joined_team(information: sparse.csr_array) -> Bools:
    """If only a few votes compare a team of annotators with all other annotators, mark the members of the team."""
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
    """Find the direction with the smallest scaled information among the directions orthogonal to ``flat``."""
    if len(flat) <= LARGEST_FACTORED:
        unit = flat / np.linalg.norm(flat)
        return np.linalg.eigh(scaled.toarray() + 3 * np.outer(unit, unit))[1][:, 0]
    start = np.random.default_rng(0).standard_normal((len(flat), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, vectors = lobpcg(scaled, start, Y=flat[:, None], tol=1e-3, maxiter=200, largest=False)
    return np.asarray(vectors[:, 0])
