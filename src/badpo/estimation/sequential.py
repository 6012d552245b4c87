r"""Evidence, valid at any time, that an annotator votes differently from co-voters.

Consider a comparison that receives no further votes and on which s of n votes are for side a. If annotator k votes like
the co-voters, each of the n voters is equally likely to be one of the s voters. The probability that annotator k chose
side a is then s / n, whatever the quality of the two responses. A bias that exceeds the co-voters' bias by
:math:`\epsilon` log-odds per unit of the attribute changes the odds :math:`s / (n - s)` to :math:`e^{\epsilon d} s / (n
- s)`. If annotator k made the choice x, the likelihood ratio of the larger bias to the co-voters' bias is

.. math:: \frac{e^{\epsilon d x}}{1 - s/n + (s/n)\, e^{\epsilon d}}, \qquad x = 1 \text{ if } k \text{ chose a, else 0}.

Its mean is 1 under the null hypothesis. The same holds for its product over successive comparisons, and for the mean of
these products over a grid of :math:`\epsilon`, which is an e-process. The probability that an e-process ever reaches
:math:`1 / \alpha` is at most :math:`\alpha` (Ville's inequality), so the evidence may be inspected after every
comparison.

A random responder votes differently from co-voters too. `log_random_ratios` is the evidence against random responding,
under which each side has the probability 1/2. The smaller one of two e-values is valid under either null hypothesis.
Bias has no effect if the sides do not differ. On such comparisons s / n is the probability for every annotator who is
as reliable as the co-voters (`log_reliability_ratios`). Neither null hypothesis covers an annotator who is half as
reliable.

The guarantee requires that a comparison is processed once, with all its votes, and that nobody decides by the votes
how many votes a comparison receives. The null hypothesis is that the annotator votes as the co-voters do if the sides
differ in the attribute. If two attributes are correlated, a bias toward one attribute changes the evidence for both.
"""

import numpy as np
from numpy.typing import ArrayLike

from badpo.theory import Bools, Floats

# Grid of epsilon, the additional bias in log-odds per unit of the attribute.
GRID = np.array([-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0])
# Grid of kappa, the relative decrease in an annotator's reliability.
RELIABILITY_GRID = np.array([0.5, 1.0])


def winner_shares(sign: ArrayLike, delta: ArrayLike) -> Floats:
    """Probability s / n that a voter of one comparison chose response a, given that s of n votes are for a.

    The numbers s and n count only the voters who saw the same attribute differences between responses a and b. If all
    attributes describe the responses, all voters of a comparison saw the same differences.

    Examples
    --------
    >>> winner_shares([1, 1, -1, -1], [[1.0]] * 4)
    array([0.5, 0.5, 0.5, 0.5])

    For the third and fourth voter the order of the sides was reversed:

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
    r"""For each epsilon in the grid, log-likelihood ratio of the co-voters' bias plus epsilon to the co-voters' bias.

    .. math:: \epsilon d x - \log(1 - p + p\, e^{\epsilon d})

    The result has the broadcast shape of the arguments and a last axis for the grid. The log-likelihood ratio is
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
    r"""If the sides do not differ, log-likelihood ratio of a lower reliability to the co-voters' reliability.

    A less reliable annotator votes for response a with the odds :math:`(p / (1 - p))^{1 - \kappa}` instead of :math:`p
    / (1 - p)`. The function computes the ratio on a grid of values of :math:`\kappa`.

    Examples
    --------
    A vote against three others is evidence of low reliability:

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

    Here :math:`s_{-k}` of the n - 1 other voters chose a. A biased annotator is assumed to follow them in part.

    Examples
    --------
    If two other voters chose a and one chose b, the mean of the ratios over the two votes is 1:

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
    """Log of the e-value, which is the mean of the accumulated likelihood ratios over the grid.

    Examples
    --------
    >>> log_e_values(np.log([[1.0, 3.0], [1.0, 1.0]])).round(3)
    array([0.693, 0.   ])
    """
    log_ratios = np.asarray(log_ratios, float)
    return np.asarray(np.logaddexp.reduce(log_ratios, axis=-1) - np.log(log_ratios.shape[-1]))


def bias_e_values(log_e: Floats, log_chance: Floats, log_reliability: Floats) -> Floats:
    """Log e-values for a bias against two null hypotheses: voting like the co-voters and random responding.

    The e-value of a bias is 0 if the evidence for low reliability is positive.

    Examples
    --------
    >>> bias_e_values(np.array([5.0, 5.0, 5.0]), np.array([9.0, -2.0, 9.0]), np.array([-1.0, -1.0, 1.0]))
    array([  5.,  -2., -inf])
    """
    return np.where(log_reliability > 0, -np.inf, np.minimum(log_e, log_chance))


def e_bh(log_e: ArrayLike, alpha: float) -> Bools:
    r"""Select the significant e-values among many by the e-BH procedure.

    Among m e-values the procedure flags the i largest, where i is the largest number for which the i-th largest e-value
    is at least :math:`m / (\alpha i)`. The expected share of false flags is at most :math:`\alpha`, for any dependence
    between the e-values and any stopping time, because every e-process is valid for the stream of all votes.

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
