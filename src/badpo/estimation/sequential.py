r"""Evidence that someone votes unlike their co-voters, valid whenever one looks.

Take a closed comparison on which s of n votes went to side a. If annotator k votes as the others on it do, each of
the n voters is equally likely to be among the s, so k is with chance s / n exactly, however good the two responses
are. Leaning by :math:`\epsilon` log-odds per unit of the attribute more than the co-voters turns the odds
:math:`s / (n - s)` into :math:`e^{\epsilon d} s / (n - s)`. The likelihood ratio of the two,

.. math:: \frac{e^{\epsilon d x}}{1 - s/n + (s/n)\, e^{\epsilon d}}, \qquad x = 1 \text{ if } k \text{ chose a, else 0},

has mean one under the null. So has its product over the comparisons that close one after the other, and the mean of
these products over a grid of :math:`\epsilon`: an e-process. It ever reaches :math:`1 / \alpha` with probability at
most :math:`\alpha` (Ville), so looking after every comparison costs nothing.

Who clicks at random is unlike the co-voters too. Given the others' votes, such a vote goes either way with chance
1/2, against which `log_chance_ratios` tests; the smaller of two e-values holds under either null. No lean acts where
the sides do not differ, so that there s / n is the chance of everyone who is as careful as the co-voters
(`log_care_ratios`). Someone who is careful by half is under neither null.

What the guarantee needs: a comparison enters once, with all the votes it will get, and nobody decides by its votes
how many that are. The null is "votes as their co-voters do wherever the sides differ in the attribute"; where two
attributes go together, leaning toward one moves the evidence for both.
"""

import numpy as np
from numpy.typing import ArrayLike

from badpo.theory import Bools, Floats

GRID = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
CARE_GRID = np.array([0.5, 1.0])


def winner_shares(sign: ArrayLike, delta: ArrayLike) -> Floats:
    """The chance s / n that each voter of one comparison chose a, given how many did.

    Only voters who saw the same differences are alike, so s and n are counted among them. For attributes of the
    responses these are all voters of the comparison.

    Examples
    --------
    >>> winner_shares([1, 1, -1, -1], [[1.0]] * 4)
    array([0.5, 0.5, 0.5, 0.5])

    The third and fourth saw the other side first:

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
    r"""Log-likelihood ratio of leaning by each value of the grid against leaning as the co-voters do.

    .. math:: \epsilon d x - \log(1 - p + p\, e^{\epsilon d})

    Of the broadcast shape and (n_grid,); exactly 0 where p is 0 or 1, or d is 0.

    Examples
    --------
    The ratios of the two outcomes, weighted by their chances under the null, have mean one:

    >>> ratio = np.exp(log_tilt_ratios([True, False], 0.25, 1.0))
    >>> (0.25 * ratio[0] + 0.75 * ratio[1]).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    step = np.asarray(delta, float)[..., None] * grid
    chose_a = np.asarray(chose_a, bool)[..., None]
    p = np.asarray(share, float)[..., None]
    # either way of writing it is exact; this one cannot overflow
    with np.errstate(divide="ignore"):
        up = np.logaddexp(np.log1p(-p) - step, np.log(p))
    contested = (p > 0) & (p < 1) & (step != 0)
    return np.where(contested, np.where(chose_a, 0.0, -step) - up, 0.0)


def log_care_ratios(chose_a: ArrayLike, share: ArrayLike) -> Floats:
    r"""Log-likelihood ratio of less care than the co-voters have against as much, where the sides do not differ.

    The odds are :math:`(p / (1 - p))^{1 - \kappa}` instead of :math:`p / (1 - p)`, for each :math:`\kappa` of a grid.

    Examples
    --------
    Voting alone against three is what the careless do more often:

    >>> log_care_ratios([False, True], 0.75).round(2)
    array([[ 0.38,  0.69],
           [-0.17, -0.41]])
    """
    p = np.asarray(share, float)
    p = np.where((p > 0) & (p < 1), p, 0.5)
    return log_tilt_ratios(chose_a, p, np.log1p(-p) - np.log(p), CARE_GRID)


def log_chance_ratios(chose_a: ArrayLike, wins: ArrayLike, size: ArrayLike, delta: ArrayLike) -> Floats:
    r"""Log-likelihood ratio of a lean, by each value of the grid, against clicking at random.

    .. math:: \log 2 - \log(1 + e^{\mp(\epsilon d + g / 2)}), \qquad g = \log \frac{1 + s_{-k}}{n - s_{-k}}

    with :math:`s_{-k}` of the n - 1 others for a: who leans follows them at least in part.

    Examples
    --------
    Beside two others for a and one for b, either vote has the chance 1/2:

    >>> ratio = np.exp(log_chance_ratios([True, False], [3, 2], 4, 1.0))
    >>> ratio.mean(axis=0).round(12)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    chose_a = np.asarray(chose_a, bool)[..., None]
    others = np.asarray(wins)[..., None] - chose_a
    follows = np.log((1 + others) / (np.asarray(size)[..., None] - others)) / 2
    logit = follows + np.asarray(delta, float)[..., None] * GRID
    return np.log(2) - np.logaddexp(0, np.where(chose_a, -logit, logit))


def log_e_values(log_ratios: ArrayLike) -> Floats:
    """Log of the mean over the grid of the accumulated likelihood ratios.

    Examples
    --------
    >>> log_e_values(np.log([[1.0, 3.0], [1.0, 1.0]])).round(3)
    array([0.693, 0.   ])
    """
    log_ratios = np.asarray(log_ratios, float)
    return np.logaddexp.reduce(log_ratios, axis=-1) - np.log(log_ratios.shape[-1])


def lean_e_values(log_e: Floats, log_chance: Floats, log_care: Floats) -> Floats:
    """Log e-values of a lean, against voting as the co-voters and against clicking at random; 0 where care is at fault.

    Examples
    --------
    >>> lean_e_values(np.array([5.0, 5.0, 5.0]), np.array([9.0, -2.0, 9.0]), np.array([-1.0, -1.0, 1.0]))
    array([  5.,  -2., -inf])
    """
    return np.where(log_care > 0, -np.inf, np.minimum(log_e, log_chance))


def e_bh(log_e: ArrayLike, alpha: float) -> Bools:
    r"""The e-values that stand out when many are looked at together: e-BH.

    The i largest are flagged, with the largest i for which the i-th is at least :math:`m / (\alpha i)`. At most a
    share :math:`\alpha` of the flags is false on average, however the e-values depend on each other and whenever one
    stops, since every e-process here is valid for the stream of all votes.

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
    needed = np.log(n / (alpha * np.arange(1, n + 1)))
    enough = descending[descending >= needed - 1e-12]
    return values >= enough.min(initial=np.inf)
