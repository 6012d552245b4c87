"""Find camps of taste: groups of annotators who agree with one another more than their overall agreement implies.

A random responder agrees with other annotators only by chance, but an annotator with a different taste agrees with
annotators who share this taste.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import ndtr

from badpo.estimation.fit import Votes
from badpo.theory import Floats, Ints

# The tests compare at most MOST_COMPARED annotators, each with at least FEWEST_VOTES votes.
FEWEST_VOTES, MOST_COMPARED = 10, 200
# Largest number of simulated pools; a simulation ends after ENOUGH_EXTREME extreme pools (Besag and Clifford, 1991).
SIMULATED, ENOUGH_EXTREME = 99, 3
# Number of iterations of the one-factor fit, and significance level of the tests for camps.
ROUNDS, LEVEL = 60, 0.05


class Camps(NamedTuple):
    """Result of the tests for camps; all values are NaN if the votes are too few for the tests.

    ``attenuation`` is the approximate ratio of estimated to true values, for biases and tau, if annotators of different
    camps are compared. ``equal_p`` is the p-value of the hypothesis that all annotators agree equally with the pool.
    """

    p_value: float
    attenuation: float
    equal_p: float

    @property
    def are_found(self) -> bool:
        """Whether the test rejects, at the 5 % level, the hypothesis that all annotators have the same taste."""
        return self.p_value < LEVEL

    @property
    def are_possible(self) -> bool:
        """Whether no camps are found, but some annotators agree significantly less with the pool than others do."""
        return not self.are_found and self.equal_p < LEVEL


def find_camps(votes: Votes, suspect: ArrayLike) -> Camps:
    r"""Test whether quality has one dimension; the alternative is that annotators form camps of taste.

    The tests code votes as +1 or -1, minus the part that the annotator's biases explain. With one dimension of quality
    and reliabilities :math:`v_k`, the mean product of two annotators' votes is :math:`v_k v_l`. For each pair of
    annotators, the residual is the sum of the products of their votes, minus the expected sum, divided by
    :math:`\sqrt{n_k n_l}`. Here :math:`n_k` is the number of vote pairs that annotator k forms with co-voters. The
    statistic of the first test is the largest eigenvalue of the residual matrix. The null distribution of the largest
    eigenvalue comes from votes simulated with one normally distributed quality and the same :math:`v_k`. ``suspect``,
    of shape (n_annotators,), marks annotators who agree little with the pool. The second test asks whether the
    ``suspect`` annotators agree with one another. The p-value for camps is twice the smaller p-value of the two tests.

    A few annotators with a different taste share too few comparisons for these two tests, but agree less with the pool.
    A third test therefore compares the variance of :math:`v_k`, weighted by numbers of vote pairs, with the variance in
    votes that are simulated with equal :math:`v_k`. A significant result of the third test may be due to taste or to
    reliability.

    The attenuation is :math:`\sqrt{(1 - \rho_w) / (1 - \rho_b)}`, with the tetrachoric correlations :math:`\rho =
    \sin(\pi M / 2)` of mean products M within camps (w) and between camps (b). Biases are attenuated because they are
    estimated in units of the error of the logits, and this error includes differences in taste.

    Examples
    --------
    Annotators 0 to 2 nearly always agree with one another, and annotators 3 to 5 do the same. The tastes of the two
    camps are independent:

    >>> random = np.random.default_rng(0)
    >>> taste = np.repeat(random.choice([-1, 1], (60, 2)), 3, axis=1)
    >>> sign = np.where(random.random((60, 6)) < 0.9, taste, -taste).ravel()
    >>> votes = Votes(np.repeat(np.arange(60), 6), sign, np.tile(np.arange(6), 60), np.zeros((360, 1)), 6)
    >>> find_camps(votes, np.zeros(6, bool)).p_value
    0.02
    """
    who, suspect = votes.annotator, np.asarray(suspect, bool)
    n_votes = np.bincount(who, minlength=len(suspect))
    compared = np.argsort(-n_votes, kind="stable")[:MOST_COMPARED]
    compared = compared[n_votes[compared] >= FEWEST_VOTES]
    if len(compared) < 4:
        return Camps(np.nan, np.nan, np.nan)
    place = np.full(len(suspect), -1)
    place[compared] = np.arange(len(compared))
    rows = np.flatnonzero(place[who] >= 0)
    column, row = place[who[rows]], np.unique(votes.comparison[rows], return_inverse=True)[1]
    sign = np.asarray(votes.sign, float)[rows]
    rest = sign.copy()
    for side in votes.delta[rows].T:
        explained, squares = (np.bincount(column, side * each) for each in (rest, side))
        rest = rest - side * (explained / np.maximum(squares, 1e-9))[column]
    n = _products(np.ones(len(rows)), row, column)
    if not n.any():
        return Camps(np.nan, np.nan, np.nan)
    products = _products(rest, row, column)
    left, factor = _fit_one_factor(products, n)
    scale = np.sqrt(np.maximum(n.sum(axis=1), 1.0))
    scale = np.outer(scale, scale)
    sizes, along = np.linalg.eigh(left / scale)
    # if two logits are normal with correlation rho = sin(pi v^2 / 2), the votes have a mean product of v^2
    rho = np.sin(np.pi / 2 * np.clip(factor, 0.0, 0.99) ** 2)[column]

    def largest_of(random: np.random.Generator) -> float:
        simulated, _ = _fit_one_factor(_products(_draw_votes(rho, row, random), row, column), n)
        return float(np.linalg.eigvalsh(simulated / scale)[-1])

    # biases reduce the variance of the votes
    size = np.sqrt(np.maximum(1 - (sign - rest) ** 2, 0.0))
    common = np.clip(products.sum() / _products(size, row, column).sum(), 0.01, 0.99)
    equal_rho, n_pairs = np.sin(np.pi / 2 * common), n.sum(axis=1)

    def variance_of(random: np.random.Generator) -> float:
        drawn = size * _draw_votes(equal_rho, row, random)
        return _weighted_variance(_fit_one_factor(_products(drawn, row, column), n)[1], n_pairs)

    p_value, usual = _simulate_p_value(sizes[-1], largest_of)
    equal_p, _ = _simulate_p_value(_weighted_variance(factor, n_pairs), variance_of)
    pairs = np.outer(suspect[compared], suspect[compared])
    if n[pairs].sum():
        p_value = min(p_value, float(ndtr(-left[pairs].sum() / np.sqrt(2 * n[pairs].sum()))))
    large = sizes > usual
    beyond = (along[:, large] * sizes[large]) @ along[:, large].T * scale / n.mean()
    attenuation = _attenuation(products, n, np.outer(factor, factor) + beyond)
    return Camps(float(min(2 * p_value, 1.0)), attenuation, equal_p)


def _attenuation(products: Floats, n: Floats, implied: Floats) -> float:
    """Estimate how much camps attenuate biases; pairs of annotators with above-average agreement count as one camp."""
    same = implied > implied.mean()
    mean = (products[each].sum() / max(n[each].sum(), 1.0) for each in (same, ~same))
    within, between = np.sin(np.pi / 2 * np.clip(list(mean), -0.99, 0.99))
    return float(np.sqrt(min((1 - within) / (1 - between), 1.0)))


def _draw_votes(rho: Floats, row: Ints, random: np.random.Generator) -> Floats:
    """Draw votes of +1 or -1; normally distributed quality explains the share ``rho`` of the variance of each logit."""
    quality, noise = random.standard_normal(row.max() + 1)[row], random.standard_normal(len(row))
    return np.asarray(np.sign(np.sqrt(rho) * quality + np.sqrt(1 - rho) * noise))


def _weighted_variance(values: Floats, weight: Floats) -> float:
    """Weighted variance, up to a constant factor."""
    return float(weight @ (values - weight @ values / weight.sum()) ** 2)


def _simulate_p_value(
    observed: float, statistic: Callable[[np.random.Generator], float]
) -> tuple[float, float]:
    """One-sided p-value of an observed statistic, and mean of the statistics simulated under the null hypothesis."""
    random, simulated = np.random.default_rng(0), list[float]()
    while len(simulated) < SIMULATED and sum(np.array(simulated) >= observed) < ENOUGH_EXTREME:
        simulated.append(statistic(random))
    p_value = (1 + sum(np.array(simulated) >= observed)) / (1 + len(simulated))
    return p_value, float(np.mean(simulated))


def _products(values: Floats, row: Ints, column: Ints) -> Floats:
    """For each pair of annotators, sum the products of their values over common comparisons; the diagonal is zero."""
    table = sparse.csr_array((values, (row, column)))
    products = np.asarray((table.T @ table).toarray())
    np.fill_diagonal(products, 0.0)
    return products


def _fit_one_factor(products: Floats, n: Floats) -> tuple[Floats, Floats]:
    """Fit one factor to the products by weighted least squares (weights: pair counts); return residuals and factor."""
    factor = np.full(len(n), np.sqrt(max(products.sum() / n.sum(), 0.01)))
    for _ in range(ROUNDS):
        factor = (factor + (products @ factor) / (n @ factor**2 + 1e-9)) / 2
    return products - n * np.outer(factor, factor), factor
