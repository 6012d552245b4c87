r"""Summaries of measurements: intervals over seeds, shares of a shift removed, and intervals of proportions and ratios.

Measurements vary for two reasons. Training seeds give a few independent runs, so the interval over seeds is Student's t
interval. Within a run, the rows (votes, prompts, tokens) of one prompt are not independent, so the interval over rows
is cluster-robust.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit, ndtri, stdtrit

from badpo.theory import Array, Floats


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    Attributes
    ----------
    estimate : float
        NaN if there are no data.
    se : float
        Standard error; NaN if there is only one run or one cluster.
    low, high : float
        Limits of the 95 % confidence interval, in the unit of the estimate; NaN if ``se`` is NaN.
    n : int
        Number of independent units: runs, clusters or trials.
    """

    estimate: float
    se: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval, which tables show after ±."""
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        """Whether the interval excludes ``value``; False if the interval is NaN."""
        return bool(self.low > value or self.high < value)


def t_interval(values: ArrayLike) -> Interval:
    r"""Mean over training runs with Student's 95 % confidence interval.

    .. math:: \bar{x} \pm t_{n-1}\, \mathrm{sd}(x) / \sqrt{n}

    For three seeds, the factor t is 4.303. For a single run, the limits of the interval are NaN.

    References
    ----------
    BA-DPO, Section `setup` (mean and 95 % interval over three seeds).

    Examples
    --------
    >>> interval = t_interval([0.90, 0.95, 1.00])
    >>> round(interval.estimate, 3), round(interval.half_width, 3)
    (0.95, 0.124)
    """
    return cluster_mean(values)


def share_removed(dpo: ArrayLike, arm: ArrayLike, reference: ArrayLike) -> Floats:
    r"""Share of DPO's shift from the reference that another training arm removes, for each seed.

    .. math:: \frac{x_{DPO} - x_{arm}}{x_{DPO} - x_{ref}}

    Returns
    -------
    array of shape (n_runs,)
        0 if the arm equals DPO, 1 if the arm equals the reference, and above 1 if the arm is beyond the reference. NaN
        if DPO did not shift. If the interval of DPO's `shift` contains zero, the share is meaningless.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, paragraph "Bias removed": per seed, then averaged.

    Examples
    --------
    >>> share_removed(dpo=[0.95, 0.90], arm=[0.55, 0.60], reference=0.50).round(3)
    array([0.889, 0.75 ])
    """
    dpo, arm, reference = np.broadcast_arrays(*(np.asarray(x, float) for x in (dpo, arm, reference)))
    moved = dpo - reference
    return np.asarray(np.divide(dpo - arm, moved, out=np.full(moved.shape, np.nan), where=moved != 0))


def shift(arm: ArrayLike, reference: float) -> Interval:
    """Difference between the metric of a training arm and the metric of the reference, averaged over seeds.

    As in the paper, the reference is measured once, and its value is treated as exact. Report the share that an arm
    removes only if the interval of DPO's shift excludes 0 (``excludes(0.0)``).

    References
    ----------
    BA-DPO, Section `formatting`: no share is reported if DPO's shift is smaller than its interval over seeds.

    Examples
    --------
    >>> shift([0.60, 0.55, 0.62], reference=0.56).excludes(0.0)
    False
    """
    return t_interval(np.asarray(arm, float) - reference)


def log_odds_distance(rate: ArrayLike, reference: ArrayLike) -> Floats:
    r"""Difference between a rate and the rate of the reference, in log-odds.

    .. math:: \operatorname{logit} p - \operatorname{logit} p_{ref}

    If all prompts have the same log-odds, the difference is the policy's tilt divided by beta. The sign shows whether
    an arm is below or above the reference, even for rates close to 0 or 1, whose differences are small.

    References
    ----------
    BA-DPO, Eq. `anchor_tilt` (the tilt between two rates, without the factor beta).

    Examples
    --------
    >>> float(log_odds_distance(0.96, 0.50).round(3))
    3.178
    """
    rate, reference = np.asarray(rate, float), np.asarray(reference, float)
    for value in (rate, reference):
        if np.any((value < 0) | (value > 1)):
            raise ValueError("rates must be between 0 and 1")
    with np.errstate(invalid="ignore"):  # the difference between two rates of 0 is unknown
        return np.asarray(logit(rate) - logit(reference))


def wilson_interval(successes: int, n: int) -> Interval:
    """Proportion of independent trials with Wilson's score interval; NaN if there are no trials.

    Examples
    --------
    >>> interval = wilson_interval(0, 10)
    >>> interval.estimate, interval.low, round(interval.high, 3)
    (0.0, 0.0, 0.278)
    """
    p = successes / n if n else np.nan
    low, high = wilson_ends(np.array(p), np.array(n))
    se = np.sqrt(p * (1 - p) / n) if n else np.nan
    return Interval(p, float(se), float(low), float(high), n)


def wilson_ends(share: Floats, n: Array) -> tuple[Floats, Floats]:
    """Limits of Wilson's score intervals, which are within [0, 1]; NaN if there are no trials."""
    z2 = float(ndtri(0.975)) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        center = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = np.sqrt(z2 * share * (1 - share) / n + (z2 / (2 * n)) ** 2) / (1 + z2 / n)
    # without this step, rounding could move a limit of the interval away from 0 or 1
    return np.where(share == 0, 0.0, center - half), np.where(share == 1, 1.0, center + half)


def cluster_mean(values: ArrayLike, clusters: ArrayLike | None = None) -> Interval:
    """Mean with a cluster-robust interval; the mean of zeros and ones is a proportion.

    ``clusters`` contains the same label for rows that are dependent, usually the rows of a prompt. By default, every
    row is a separate cluster.

    Returns
    -------
    Interval
        Student's t interval with n - 1 degrees of freedom, where ``n`` is the number of clusters. With one cluster, the
        limits are NaN.

    Examples
    --------
    Ten rows that repeat two prompts five times contain the information of two rows:

    >>> rows = cluster_mean([1] * 5 + [0] * 5)
    >>> prompts = cluster_mean([1] * 5 + [0] * 5, clusters=["p"] * 5 + ["q"] * 5)
    >>> round(rows.se, 3), round(prompts.se, 3), prompts.n
    (0.167, 0.5, 2)
    """
    x = np.asarray(values, float)
    return ratio_of_sums(x, np.ones_like(x), clusters)


def clustered_share(values: ArrayLike, clusters: ArrayLike | None = None) -> Interval:
    """Proportion or mean of probabilities, with Wilson's interval for the effective number of trials.

    The effective number of trials is the number of independent trials that would have the same standard error. The
    interval is within [0, 1].

    Examples
    --------
    >>> interval = clustered_share([1] * 5 + [0] * 5, clusters=["p"] * 5 + ["q"] * 5)
    >>> round(interval.low, 3), round(interval.high, 3)
    (0.055, 0.945)
    """
    found, x = cluster_mean(values, clusters), np.atleast_1d(values)
    p, n = found.estimate, float(found.n if found.n > 1 else np.nan)
    most = len(x) if np.isin(x, (0, 1)).all() else np.inf
    worth = min(p * (1 - p) / found.se**2, most) if found.se > 0 else n
    low, high = wilson_ends(np.array(p), np.array(worth))
    return Interval(p, found.se, float(low), float(high), found.n)


def cluster_difference(
    values: ArrayLike, first: ArrayLike, clusters: ArrayLike | None = None
) -> Interval:
    """Mean of the rows in ``first`` minus the mean of the other rows, with a cluster-robust interval.

    If a cluster contains rows from both means, the interval accounts for the dependence between these rows. For the
    held-out gap, ``values`` is the correctness of each judgment, and ``first`` is the mask of cross-group judgments.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, paragraph "Held-out accuracy and the gap".

    Examples
    --------
    >>> gap = cluster_difference([1, 1, 1, 0, 1, 0, 1, 0], first=[True] * 4 + [False] * 4)
    >>> gap.estimate, gap.excludes(0.0)
    (0.25, False)
    """
    x, first = np.asarray(values, float), np.asarray(first, dtype=bool)
    sides = np.stack([first, ~first]).astype(float)
    n = sides.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        means = (sides * x).sum(axis=1, keepdims=True) / n
        influence = sides * (x - means) / n
    return interval_from_influence(means[0, 0] - means[1, 0], influence[0] - influence[1], clusters)


def ratio_of_sums(
    numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike | None = None
) -> Interval:
    r"""Ratio of two sums, such as nats per token, with an interval from linearization.

    .. math:: R = \frac{\sum_i x_i}{\sum_i y_i}

    References
    ----------
    BA-DPO, Appendix `app:readouts`, paragraph "Distance from the reference": a mean over generated tokens.

    Examples
    --------
    >>> ratio_of_sums([1.0, 30.0], [10, 100]).estimate.__round__(3)
    0.282
    """
    x, y = np.asarray(numerator, float), np.asarray(denominator, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = x.sum() / y.sum()
        influence = (x - ratio * y) / y.sum()
    return interval_from_influence(ratio if y.sum() else np.nan, influence, clusters)


def sums_by_cluster(
    numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike
) -> tuple[Floats, Floats]:
    """Sum the rows of each cluster, in the order of the cluster labels.

    `ratio_of_sums` of the sums equals `ratio_of_sums` of the rows with the same clusters. To compare two policies row
    by row on the same rows, pass the difference of their numerators to `ratio_of_sums`.

    Examples
    --------
    >>> ours, sizes = sums_by_cluster([1.0, 2.0, 3.0], [1, 1, 1], ["p", "p", "q"])
    >>> ours.tolist(), sizes.tolist()
    ([3.0, 3.0], [2.0, 1.0])
    """
    labels, number = np.unique(clusters, return_inverse=True)
    sums = np.zeros((2, len(labels)))
    np.add.at(sums.T, number, np.column_stack([numerator, denominator]))
    return sums[0], sums[1]


def length_matched_mean(
    values: ArrayLike,
    lengths: ArrayLike,
    reference_lengths: ArrayLike,
    n_bins: int = 5,
    clusters: ArrayLike | None = None,
) -> Interval:
    r"""Mean over answers, reweighted so that their lengths have the length distribution of the reference.

    .. math:: \sum_b w_b\, \bar{x}_b

    The bins end at quantiles of the reference lengths. Here w_b is the share of reference lengths in bin b, and x_b is
    the mean of the values with a length in bin b. A length on the edge of two bins belongs to the bin of longer
    answers. With this reweighting, the mean of a policy does not change if the policy only shortens its answers.

    Returns
    -------
    Interval
        ``n`` is the number of clusters. A bin without answers gets the mean over all answers. The shares w_b are
        treated as exact.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, paragraph "Attribute rate on MultiPref": five bins.

    Examples
    --------
    Half of the reference answers are long, and the policy writes mostly short answers without Markdown:

    >>> matched = length_matched_mean(
    ...     values=[0, 0, 0, 1], lengths=[10, 12, 11, 90], reference_lengths=[9, 10, 80, 99], n_bins=2
    ... )
    >>> matched.estimate
    0.5
    """
    x, sizes = np.asarray(values, float), np.asarray(lengths, float)
    reference = np.asarray(reference_lengths, float)

    edges = np.quantile(reference, np.arange(1, n_bins) / n_bins)
    bins, reference_bins = (np.searchsorted(edges, each, side="right") for each in (sizes, reference))
    shares = np.bincount(reference_bins, minlength=n_bins) / len(reference)
    counts = np.bincount(bins, minlength=n_bins)
    filled = counts > 0
    means = np.bincount(bins, weights=x, minlength=n_bins) / np.where(filled, counts, 1)
    empty_share = shares[~filled].sum()
    estimate = shares[filled] @ means[filled] + empty_share * x.mean()
    within = shares[bins] * (x - means[bins]) / counts[bins]
    influence = within + empty_share * (x - x.mean()) / len(x)
    return interval_from_influence(estimate, influence, clusters)


def interval_from_influence(estimate: float, influence: Floats, clusters: ArrayLike | None) -> Interval:
    """Student's t interval of an estimate, computed from the influence of each row, summed within clusters."""
    labels = np.arange(len(influence)) if clusters is None else clusters
    sums = np.bincount(np.unique(labels, return_inverse=True)[1], influence)
    n = len(sums)
    se = np.sqrt(n / (n - 1) * np.sum(sums**2)) if n > 1 else np.nan
    center, half = float(estimate), float(se * stdtrit(n - 1, 0.975))
    return Interval(center, float(se), center - half, center + half, n)
