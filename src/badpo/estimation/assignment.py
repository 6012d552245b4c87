r"""A test whether it was left to chance who judged which comparisons.

If some annotators mostly get comparisons on which the attribute does well, their raw rates are high whatever their
lean, and estimates that take the quality for random or known go wrong. The sign of it: the *other* voters on an
annotator's comparisons choose the attribute's side unusually often or seldom.

Whole sets of annotators are exchanged between comparisons with as many votes on which the attribute differs, to see
how much of that chance makes. The other voters are people with leans of their own, though, and an annotator is never
among their own co-voters: in a small pool, or one in which everyone judges everything, exchanging sets while the
votes stay would take this for an assignment. Each annotator therefore takes along a lean, estimated within comparisons
(where assignment cannot reach it) and shrunken as far as it is unsure.

Fixed teams cannot be told from an assignment: when those who always judge together lean alike, the votes do not say
whether it is the people or their comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, cg

from badpo.estimation.comparison_blocks import ComparisonBlocks, sorted_blocks
from badpo.estimation.repeats import first_votes

_PROBES = 16


@dataclass(frozen=True)
class AssignmentTest:
    """A permutation test that annotators were assigned to comparisons at random.

    Attributes
    ----------
    p_value : float
        Small when the other voters' rates differ between annotators' comparisons by more than chance; NaN when no
        two sets of annotators can be exchanged.
    statistic : float
        Sum over the attributes of the variance between annotators, in units in which chance gives about the number
        of annotators for each attribute.
    by_attribute : tuple of float
        The p-value of each attribute alone.
    n_permutations : int
    """

    p_value: float
    statistic: float
    by_attribute: tuple[float, ...]
    n_permutations: int


def assignment_test(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_permutations: int = 199,
    seed: int = 0,
) -> AssignmentTest:
    r"""Whether the attribute-side rate of the other voters differs between annotators' comparisons.

    .. math:: T = \sum_k n_k (\bar v_k - \bar v)^2, \qquad
        v_{ck} = \text{share of k's co-voters on c who chose the side with more of the attribute}

    over comparisons whose sides differ, against its values when the sets of annotators are exchanged at random
    between comparisons with the same number of votes and the same attributes differing.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
        Of an annotator's repeated votes on one comparison the first counts.
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_permutations : int
        The smallest p-value is one over this plus one.
    seed : int

    Returns
    -------
    AssignmentTest
        A comparison with one vote, or on which no attribute differs, has no part in it.

    Examples
    --------
    Annotators 0 and 1 get comparisons on which the longer side wins, 2 and 3 those on which it loses:

    >>> comparison, annotator = np.repeat(np.arange(40), 2), np.tile([0, 1, 2, 3], 20)
    >>> sign = np.tile([1, 1, -1, -1], 20)
    >>> assignment_test(comparison, sign, annotator, np.ones((80, 1))).p_value
    0.005
    """
    if n_permutations < 1:
        raise ValueError(f"at least one permutation is needed; got {n_permutations}")
    comparison, sign, annotator = (np.asarray(each) for each in (comparison, sign, annotator))
    delta = np.asarray(delta, dtype=np.float64)
    votes = np.flatnonzero(first_votes(comparison, annotator))
    order, blocks = sorted_blocks(comparison[votes])
    votes = votes[order]
    people = np.unique(annotator[votes], return_inverse=True)[1].reshape(-1)
    cross = delta[votes] != 0
    stacks = _exchangeable(blocks, cross)
    n_attributes = delta.shape[1]
    if not any(_sets_differ(people[stack]) for stack in stacks):
        return AssignmentTest(np.nan, np.nan, (np.nan,) * n_attributes, n_permutations)
    stratum = np.zeros(len(votes), dtype=np.intp)
    for label, stack in enumerate(stacks):
        stratum[stack] = label
    attributes = [
        _other_voters(chose_it, differs, people, blocks.comparison, stratum, people.max() + 1)
        for chose_it, differs in zip((sign[votes] * delta[votes].T) > 0, cross.T, strict=True)
    ]
    observed = np.array([voters.variance(people) for voters in attributes])
    random = np.random.default_rng(seed)
    exchanged = np.empty((n_permutations, n_attributes))
    for i in range(n_permutations):
        others = _exchanged(people, stacks, random)
        exchanged[i] = [voters.variance(others) for voters in attributes]
    return AssignmentTest(
        p_value=float(_p_value(observed.sum(), exchanged.sum(axis=1))),
        statistic=float(observed.sum()),
        by_attribute=tuple(_p_value(observed, exchanged).tolist()),
        n_permutations=n_permutations,
    )


def _p_value(observed: ArrayLike, exchanged: NDArray[np.float64]) -> NDArray[np.float64]:
    # equal values may differ by rounding
    as_large = (exchanged >= np.asarray(observed) * (1 - 1e-9)).sum(axis=0)
    return (1 + as_large) / (1 + len(exchanged))


def _exchangeable(blocks: ComparisonBlocks, cross: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Comparisons whose sets of annotators may be exchanged: arrays (n_comparisons, n_votes each) of votes."""
    kind = np.column_stack([blocks.sizes, blocks.sums(cross.astype(np.int64))]).astype(np.int64)
    judged = np.flatnonzero((blocks.sizes > 1) & (kind[:, 1:] > 0).any(axis=1))
    labels = np.unique(kind[judged], axis=0, return_inverse=True)[1].reshape(-1)
    alike = (judged[labels == label] for label in range(labels.max(initial=-1) + 1))
    return [blocks.starts[each][:, None] + np.arange(blocks.sizes[each[0]]) for each in alike]


def _sets_differ(people: NDArray[np.intp]) -> bool:
    sets = np.sort(people, axis=1)
    return bool((sets != sets[:1]).any())


def _exchanged(
    people: NDArray[np.intp], stacks: Sequence[NDArray[np.intp]], random: np.random.Generator
) -> NDArray[np.intp]:
    given = people.copy()
    for stack in stacks:
        given[stack] = people[random.permutation(stack)]
    return given


@dataclass(frozen=True)
class _OtherVoters:
    """How the other voters on an annotator's comparisons choose, for one attribute.

    ``cast`` has the votes that count, ``rest`` what is left of each (1 for the attribute's side, else 0) without the
    voter's ``lean`` and the mean of the comparisons that it can be exchanged with, ``unit`` the variance of the other
    voters' rate.
    """

    cast: NDArray[np.intp]
    blocks: ComparisonBlocks
    rest: NDArray[np.float64]
    lean: NDArray[np.float64]
    unit: float

    def variance(self, people: NDArray[np.intp]) -> float:
        """Variance of the rate between annotators, if these people had cast the votes."""
        people = people[self.cast]
        rate = _rate_of_others(self.rest + self.lean[people], self.blocks)
        n, total = np.bincount(people), np.bincount(people, weights=rate)
        between = np.sum(total**2 / np.maximum(n, 1)) - rate.sum() ** 2 / max(len(rate), 1)
        return float(between) / self.unit


def _other_voters(
    chose_it: NDArray[np.bool_],
    cross: NDArray[np.bool_],
    people: NDArray[np.intp],
    comparison: NDArray[np.intp],
    stratum: NDArray[np.intp],
    n_annotators: int,
) -> _OtherVoters:
    cast = np.flatnonzero(cross & (np.bincount(comparison, weights=cross)[comparison] > 1))
    blocks = ComparisonBlocks(np.flatnonzero(np.diff(comparison[cast], prepend=-1)), len(cast))
    vote, people, stratum = chose_it[cast].astype(np.float64), people[cast], stratum[cast]
    lean = _leans(vote, people, blocks, n_annotators)
    rest = vote - lean[people]
    rest -= (np.bincount(stratum, weights=rest) / np.maximum(np.bincount(stratum), 1))[stratum]
    spread = float(np.var(_rate_of_others(rest + lean[people], blocks))) if len(cast) else 0.0
    return _OtherVoters(cast, blocks, rest, lean, spread or 1.0)


def _rate_of_others(vote: NDArray[np.float64], blocks: ComparisonBlocks) -> NDArray[np.float64]:
    sizes = blocks.sizes[blocks.comparison]
    return (blocks.sums(vote)[blocks.comparison] - vote) / (sizes - 1)


def _leans(
    vote: NDArray[np.float64], people: NDArray[np.intp], blocks: ComparisonBlocks, n_annotators: int
) -> NDArray[np.float64]:
    r"""Best linear prediction of each annotator's part in the votes, beside a free mean for every comparison.

    With L the Laplacian of who voted with whom and S the sums of the votes' differences from their comparison's mean,
    E|S|^2 = sigma^2 tr L + tau^2 tr L^2 gives the variances; the prediction is (L + sigma^2 / tau^2)^-1 S.
    """
    sizes = blocks.sizes[blocks.comparison]

    def rest(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values - blocks.sums(values)[blocks.comparison] / sizes

    def laplacian(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(people, weights=rest(x[people]), minlength=n_annotators).astype(np.float64)

    random = np.random.default_rng(0)
    probes = random.choice([-1.0, 1.0], (_PROBES, n_annotators))
    trace = len(vote) - len(blocks.starts)
    trace_of_square = np.mean([np.sum(laplacian(probe) ** 2) for probe in probes])
    score = np.bincount(people, weights=rest(vote), minlength=n_annotators)
    total = np.sum(rest(vote) ** 2) / max(trace, 1)
    excess = float(np.sum(score**2) - total * trace)
    if excess <= 0 or trace_of_square <= trace:
        return np.zeros(n_annotators)
    between = excess / float(trace_of_square - trace)
    ridge = max(total - between, 0.01 * total) / between
    system = LinearOperator((n_annotators,) * 2, matvec=lambda x: laplacian(x) + ridge * x, dtype=np.float64)
    return cg(system, score, rtol=1e-4, maxiter=100)[0]
