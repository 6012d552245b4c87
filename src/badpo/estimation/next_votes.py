"""What to collect next: how many votes an interval takes, and who should judge which comparison.

Requests are *rounds*: a few annotators judge a comparison that is there already, and their votes enter as a comparison
of their own, under a new id. Comparisons are asked again because their votes were split, and votes added to those
would break the likelihood: given that a comparison was split before, the newcomer decides how many votes each side
gets, which shrinks the newcomers' leans by a third and inflates the others' (``tests/estimation/test_next_votes.py``
shows it). Within a round of its own nothing depends on how the comparison was chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import ndtri

from badpo.theory import Floats, Ints
from badpo.theory.identifiability import annotator_components, informative_judgments

REQUEST_COLUMNS = ("round", "comparison", "annotator", "attribute", "reason")
_TRIES = 1_000
VOTES_PER_ROUND = 4
# For each group outside the largest one: a round that turns out unanimous joins nothing.
ROUNDS_PER_JOIN = 3
Panel = list[tuple[int, str]]


def votes_needed(se: ArrayLike, n_informative: ArrayLike, half_width: float) -> Floats:
    r"""Informative votes until the median annotator's 95 % interval is as narrow as asked for, for each attribute.

    The information of votes adds up, so with v = n se^2 the variance of one informative vote

    .. math:: n^* = v\, (1.96 / h)^2

    ``se`` and ``n_informative`` are of shape (n_annotators, n_attributes), as in
    `badpo.estimation.conditional_likelihood.Leans`; NaN where nobody has an estimate. Votes on comparisons that turn
    out unanimous, or whose sides do not differ, come on top: divide by the share of informative votes for judgments.

    Examples
    --------
    >>> votes_needed([[0.5], [0.4], [np.nan]], [[20], [25], [0]], half_width=0.25)
    array([277.])
    """
    se, n = np.asarray(se, float), np.asarray(n_informative, float)
    of_one_vote = pd.DataFrame(np.where(np.isfinite(se) & (n > 0), n * se**2, np.nan))
    return np.ceil(of_one_vote.median().to_numpy() * (float(ndtri(0.975)) / half_width) ** 2)


def joining_comparisons(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    *,
    min_informative: int = 10,
    max_requests: int = 1_000,
) -> pd.DataFrame:
    """Rounds of votes that would join groups of annotators, then rounds for those with few informative votes.

    Comparisons are taken in the order of :math:`d^2 p (1 - p)`, with d the attribute difference and p the share of
    votes for a, one vote added to either side: the more split, the likelier the next votes differ. None is asked
    twice, and nobody is asked what they judged before.

    Of an attribute that differs between the votes on a comparison its first vote counts. ``min_informative`` are the
    votes that everyone should have, ``max_requests`` the most rows; groups go first, the larger ones before the
    smaller, and the attributes share the rows.

    Returns
    -------
    DataFrame
        `REQUEST_COLUMNS`: rows with the same ``round`` are votes on one comparison; ``comparison``, ``annotator`` and
        ``attribute`` are indices; ``reason`` says why this annotator is asked. The same for the same votes.

    Examples
    --------
    Annotators 0 and 1 disagreed, and so did 2 and 3, who never met them. Comparison 2 was judged by 1 and 3:

    >>> comparison, annotator = [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 1, 3]
    >>> requests = joining_comparisons(
    ...     comparison, [1, -1, 1, -1, 1, 1], annotator, np.ones((6, 1)), 4, min_informative=1
    ... )
    >>> requests[["comparison", "annotator", "reason"]].values.tolist()
    [[2, 2, 'joins a group of 2 to the largest'], [2, 0, 'is of the largest group']]
    """
    comparison, sign, annotator = (np.asarray(each) for each in (comparison, sign, annotator))
    delta = np.asarray(delta, float)
    informative = informative_judgments(comparison, annotator, sign, delta)
    component = annotator_components(comparison, annotator, delta * informative, n_annotators)
    n_votes = np.bincount(annotator, minlength=n_annotators)
    ranked = np.argsort(-n_votes, kind="stable")[: np.count_nonzero(n_votes)]
    order = np.argsort(comparison, kind="stable")
    rows: list[tuple] = []
    asked: set[int] = set()
    n_attributes = delta.shape[1]
    for j in range(n_attributes):
        limit = len(rows) + (max_requests - len(rows)) // (n_attributes - j)
        free = [c for c in _most_split(comparison, sign, delta[:, j]) if c not in asked]
        desk = _Desk(comparison[order], annotator[order], free)
        n_informative = np.bincount(annotator[informative[:, j]], minlength=n_annotators)
        rounds = itertools.chain(
            _joining(desk, ranked, component[:, j]),
            _tightening(desk, ranked, component[:, j], n_informative, min_informative),
        )
        for c, panel in rounds:
            if len(rows) + len(panel) > limit:
                break
            asked.add(c)
            rows += [(len(asked) - 1, c, k, j, reason) for k, reason in panel]
    return pd.DataFrame(rows, columns=list(REQUEST_COLUMNS))


@dataclass
class _Desk:
    """Comparisons still to be given out, the best first; and who judged which, in the order of comparisons."""

    comparison: Ints
    annotator: Ints
    free: list[int]

    def round_of(self, leader: int, others: Iterable[int]) -> tuple[int, list[int]] | None:
        """The best comparison that the leader and one of the others have not judged, and who is to judge it."""
        for place, c in enumerate(self.free[:_TRIES]):
            first, end = np.searchsorted(self.comparison, [c, c + 1])
            known = set(self.annotator[first:end].tolist())
            if leader in known:
                continue
            fresh = (k for k in others if k not in known and k != leader)
            panel = [leader, *itertools.islice(fresh, VOTES_PER_ROUND - 1)]
            if len(panel) > 1:
                del self.free[place]
                return c, panel
        return None


def _most_split(comparison: Ints, sign: Ints, delta: Floats) -> list[int]:
    distinct, first, code = np.unique(comparison, return_index=True, return_inverse=True)
    share = (np.bincount(code, weights=sign > 0) + 1) / (np.bincount(code) + 2)
    worth = delta[first] ** 2 * share * (1 - share)
    return distinct[np.lexsort((distinct, -worth.round(12)))][: np.count_nonzero(worth)].tolist()


def _joining(desk: _Desk, ranked: Ints, component: Ints) -> Iterator[tuple[int, Panel]]:
    """Rounds that bring one of each group, and each person without a group, together with the largest group."""
    group = component[ranked]
    core, *groups = (ranked[group == g].tolist() for g in range(group.max(initial=0) + 1))
    for members in [*groups, *([k] for k in ranked[group < 0].tolist())] if core else []:
        n = len(members)
        reason = f"joins a group of {n} to the largest" if n > 1 else "is compared with nobody yet"
        made = 0
        for leader in itertools.islice(itertools.cycle(members), n + ROUNDS_PER_JOIN):
            found = desk.round_of(leader, core) if made < ROUNDS_PER_JOIN else None
            if found is None:
                continue
            made += 1
            c, (_, *others) = found
            core = [k for k in core if k not in others] + others
            yield c, [(leader, reason), *((k, "is of the largest group") for k in others)]


def _tightening(
    desk: _Desk, ranked: Ints, component: Ints, n_informative: Ints, min_informative: int
) -> Iterator[tuple[int, Panel]]:
    """Rounds among those with the fewest informative votes, filled up with those who have the most votes."""
    can_join = ranked[component[ranked] == 0] if (component == 0).any() else ranked
    lacks = np.zeros(len(component), dtype=np.intp)
    lacks[can_join] = np.maximum(min_informative - n_informative[can_join], 0)
    others = ranked[lacks[ranked] == 0].tolist()
    while lacks.any():
        needy = np.argsort(-lacks, kind="stable")[: np.count_nonzero(lacks)].tolist()
        found = desk.round_of(needy[0], [*needy[1:], *others])
        if found is None:
            lacks[needy[0]] = 0
            continue
        c, panel = found
        has = f"of {min_informative} informative votes"
        told = {k: f"has {n_informative[k]} {has}" for k in panel if n_informative[k] < min_informative}
        yield c, [(k, told.get(k, "completes the round")) for k in panel]
        lacks[panel] = np.maximum(lacks[panel] - 1, 0)
        others = [k for k in others if k not in panel] + [k for k in panel if lacks[k] == 0]
