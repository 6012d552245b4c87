"""Leans with the quality of every comparison conditioned away: the audit's own estimator."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.estimation.comparison_blocks import ComparisonBlocks
from badpo.estimation.known_wins import KnownWins
from badpo.estimation.lean_fit import fit_leans
from badpo.estimation.leans import Leans
from badpo.theory.identifiability import informative_judgments


def fit_conditional(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    *,
    anchored: ArrayLike | None = None,
    min_informative: int = 10,
) -> Leans:
    r"""Leans by the conditional likelihood, given the number of wins of every comparison.

    .. math:: \max_\theta \prod_c \frac{\exp \sum_{j \in W_c} \theta_{k_j} \cdot d_j}
        {\sum_{|V| = |W_c|} \exp \sum_{j \in V} \theta_{k_j} \cdot d_j}

    with :math:`W_c` the votes for response a on comparison c and V any set of as many of its votes. The quality of
    the comparison cancels, so nothing is assumed of it: not its distribution, not that comparisons were given to
    annotators at random. It is consistent at any number of votes per comparison, where a free quality per comparison
    is not. Comparisons with one vote and unanimous ones say nothing.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    anchored : bool array of shape (n_annotators,), or None
        Annotators whose lean is zero by declaration.
    min_informative : int
        With fewer informative votes the status is "insufficient".

    Returns
    -------
    Leans
        A lean that all of an annotator's informative votes point to is infinite; they explain themselves, and the
        others are estimated as if they had not been cast. So are the votes of annotators whose leans are infinite only
        in a mix of several attributes, or who saw attributes move only together. Where a group of annotators won
        every vote against the rest, the two are separate components.

    Raises
    ------
    ValueError
        If arrays differ in length, a sign is not +1 or -1, an annotator is out of range or delta is not finite.

    References
    ----------
    BA-DPO, Theorem `thm:identif`: what is identified; Andersen (1970) for conditioning on sufficient statistics.

    Examples
    --------
    Two annotators who disagree on four comparisons, three times in the same way: the difference is log(3).

    >>> votes = dict(comparison=np.repeat(np.arange(4), 2), annotator=np.tile([0, 1], 4), n_annotators=2)
    >>> sign = [1, -1, 1, -1, 1, -1, -1, 1]
    >>> leans = fit_conditional(**votes, sign=sign, delta=np.ones((8, 1)))
    >>> round(float((leans.deviation[0, 0] - leans.deviation[1, 0]) / np.log(3)), 6)
    1.0
    """

    def model(blocks: ComparisonBlocks, votes: NDArray[np.intp]) -> KnownWins:
        return KnownWins(blocks, np.asarray(sign)[votes])

    return fit_leans(
        "conditional",
        model,
        informative_judgments,
        (comparison, sign, annotator, delta, n_annotators),
        anchored=anchored,
        min_informative=min_informative,
    )
