r"""Shrinkage straight from the votes, for pools in which most annotators have few of them.

`badpo.estimation.shrinkage` starts from estimates and their standard errors. With a dozen informative votes each the
estimates are inflated, their errors grow with them, some are infinite, and the spread tau comes out wrong. Here the
leans are integrated out of the conditional likelihood itself, and tau is the one that makes the votes most likely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import cg

from badpo.estimation.comparison_blocks import sorted_blocks
from badpo.estimation.known_wins import KnownWins
from badpo.estimation.maximizing import Curvature
from badpo.estimation.mixtures import Mixture
from badpo.estimation.shrinkage import Shrunk, free_posterior, summarize_posterior
from badpo.estimation.spread import DROP
from badpo.theory.identifiability import annotator_components, informative_judgments

LARGEST_DENSE = 600
FEW = 40
MOST_EXPLAINED = 0.9
NEWTON_STEPS = 50
NODES = 11
NARROWEST, WIDEST = 0.01, 0.99
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_NONE = np.zeros(0)


@dataclass(frozen=True)
class _Pool:
    """The informative votes, and the leans they inform: annotator, attribute and group of each.

    A group is what one attribute compares with one another; ``companions`` is its size, infinite where the attribute
    varies between the votes on one comparison, so that these fix its level. ``turned`` is the transposed design,
    ``squares`` has its entries squared.
    """

    model: KnownWins
    design: sparse.csr_array
    turned: sparse.csr_array
    squares: sparse.csr_array
    annotator: NDArray[np.intp]
    attribute: NDArray[np.intp]
    group: NDArray[np.intp]
    companions: NDArray[np.float64]
    won: NDArray[np.float64]


@dataclass(frozen=True)
class _Posterior:
    """Leans given the spreads: mode, mean and sd of each, and the log marginal likelihood of the spreads."""

    mode: NDArray[np.float64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    log_marginal: float


def shrink_votes(
    comparison: ArrayLike,
    sign: ArrayLike,
    annotator: ArrayLike,
    delta: ArrayLike,
    n_annotators: int,
    level: float = 0.95,
) -> tuple[Shrunk, ...]:
    r"""Posterior deviations and tau from the conditional likelihood of the votes, the leans integrated out.

    .. math:: L(\tau) = \int \prod_c P(W_c \mid |W_c|, \theta) \prod_k N(\theta_k; \mu, \tau^2) \, d\theta

    by Laplace's approximation around the penalised fit, times for every lean the ratio of its own integral to
    Laplace's, of a logistic likelihood with the same first four derivatives there. The posterior is averaged over tau
    under the density of `badpo.estimation.spread.spread_posterior`. By simulation
    (`docs/results/audit_statistics.md`) the intervals keep their promise from about ten informative votes each,
    where estimates with normal errors do not.

    Parameters
    ----------
    comparison, annotator : int array of shape (n_votes,)
    sign : array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : array of shape (n_votes, n_attributes)
        g(a) - g(b).
    n_annotators : int
    level : float
        Posterior probability of the interval.

    Returns
    -------
    tuple of Shrunk
        One for each attribute. Deviations are from the mean of the annotators that the votes compare; ``basis`` is
        "votes", or "prior" for an annotator without an informative vote. Of several attributes each is averaged over
        its own tau, the others' held where they are most likely. Anchors are not taken, and an attribute whose level
        the votes fix is pulled toward zero instead of its mean: use `shrink_normal` there.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> lean = np.repeat([-1.0, 1.0], 10)
    >>> who = np.array([rng.permutation(20)[:4] for _ in range(300)]).ravel()
    >>> sign = np.where(rng.random(1200) < 1 / (1 + np.exp(-lean[who])), 1, -1)
    >>> found, = shrink_votes(np.repeat(np.arange(300), 4), sign, who, np.ones((1200, 1)), 20)
    >>> bool(found.shrunk[:10].max() < 0 < found.shrunk[10:].min()), bool(found.tau_low < 1 < found.tau_high)
    (True, True)
    """
    votes = np.asarray(comparison), np.asarray(annotator), np.asarray(sign, dtype=np.float64)
    differences = np.asarray(delta, dtype=np.float64)
    q = differences.shape[1]
    pool = _informative_pool(*votes, differences, n_annotators)
    scale = _scales(pool, q)
    spread = scale.copy()
    mode = np.zeros(pool.design.shape[1])
    known = np.flatnonzero(np.bincount(pool.attribute, minlength=q) > 1).tolist()
    for _ in range(1 if len(known) < 2 else 2):
        for j in known:
            spread[j], mode = _most_likely(pool, spread, mode, j, scale[j])
    return tuple(
        _shrunk_attribute(pool, spread, mode, j, scale[j], n_annotators, level)
        if j in known
        else _unknown(n_annotators)
        for j in range(q)
    )


def _informative_pool(
    comparison: NDArray, annotator: NDArray, sign: NDArray, delta: NDArray, n_annotators: int
) -> _Pool:
    told = informative_judgments(comparison, annotator, sign, delta)
    rows = np.flatnonzero(told.any(axis=1))
    order, blocks = sorted_blocks(comparison[rows])
    rows = rows[order]
    component = annotator_components(comparison, annotator, delta * told, n_annotators)
    q = delta.shape[1]
    informed = np.flatnonzero(component.ravel() >= 0)
    number = np.full(component.size, -1)
    number[informed] = np.arange(len(informed))
    vote, attribute = np.nonzero(delta[rows] * told[rows])
    entries = delta[rows[vote], attribute], (vote, number[annotator[rows[vote]] * q + attribute])
    of = informed % q
    _, group, size = np.unique(
        np.stack([of, component.ravel()[informed]]), axis=1, return_inverse=True, return_counts=True
    )
    design = sparse.csr_array(sparse.coo_array(entries, shape=(len(rows), len(informed))))
    seen = delta[rows]
    on_one = comparison[rows][1:] == comparison[rows][:-1]
    varies = ((seen[1:] != seen[:-1]) & on_one[:, None]).any(axis=0)
    return _Pool(
        KnownWins(blocks, sign[rows]),
        design,
        sparse.csr_array(design.T),
        design.power(2),
        informed // q,
        of,
        group.ravel(),
        np.where(varies[of], np.inf, size[group.ravel()]),
        (sign[rows] > 0).astype(np.float64),
    )


def _scales(pool: _Pool, q: int) -> NDArray[np.float64]:
    """For each attribute the typical error of a lean when all lean alike."""
    at = pool.model.curvature(np.zeros(pool.design.shape[0]), _NONE)
    diagonal = (pool.turned @ (at.information @ pool.design)).diagonal()
    total, count = np.bincount(pool.attribute, diagonal, q), np.bincount(pool.attribute, minlength=q)
    return np.sqrt(np.maximum(count, 1) / np.where(total > 0, total, 1.0))


# -- given the spreads ---------------------------------------------------------------------------------------


def _given_spreads(pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64]) -> _Posterior:
    precision = 1 / spread[pool.attribute] ** 2
    mode = start
    value = _penalized(pool, mode, precision)
    for _ in range(NEWTON_STEPS):
        at = pool.model.curvature(pool.design @ mode, _NONE)
        curvature = pool.turned @ (at.information @ pool.design) + sparse.diags_array(precision)
        step = _solved(curvature, pool.turned @ at.score - precision * mode)
        moved = _penalized(pool, mode + step, precision)
        while moved < value - 1e-9 * abs(value) and np.abs(step).max() > 1e-9:
            step = step / 2
            moved = _penalized(pool, mode + step, precision)
        mode, value = mode + step, moved
        if np.abs(step).max(initial=0.0) < 1e-4 * spread.max():
            break
    variance, log_determinant = _deviation_variances(pool, curvature, precision)
    mean, sd, gained = _one_by_one(pool, mode, np.maximum(variance, 1e-12), precision, at)
    log_marginal = value + np.log(precision).sum() / 2 - log_determinant / 2 + gained
    return _Posterior(mode, mean, sd, float(log_marginal))


def _penalized(pool: _Pool, leans: NDArray[np.float64], precision: NDArray[np.float64]) -> float:
    return float(pool.model.values(pool.design @ leans, _NONE).sum() - (precision * leans**2).sum() / 2)


def _solved(curvature: sparse.csr_array, gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(gradient) <= LARGEST_DENSE:
        return np.asarray(cho_solve(cho_factor(curvature.toarray()), gradient))
    return np.asarray(cg(curvature, gradient, rtol=1e-8, M=sparse.diags_array(1 / curvature.diagonal()))[0])


def _deviation_variances(
    pool: _Pool, curvature: sparse.csr_array, precision: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Variance of every lean beside the level of its group, which the votes do not fix, and the log-determinant.

    In a large pool two annotators share few comparisons. There a lean is taken with its neighbours, and they as if
    they had no others; groups of few are taken whole.
    """
    level = 1 / (precision * pool.companions)
    if curvature.shape[0] <= LARGEST_DENSE:
        variance, log_determinant = _inverse(curvature.toarray())
        return variance - level, log_determinant
    diagonal = curvature.diagonal()
    scaling = sparse.diags_array(1 / np.sqrt(diagonal))
    neighbours = np.asarray((scaling @ curvature @ scaling).power(2).sum(axis=1)).ravel() - 1
    left = 1 - np.minimum(neighbours, MOST_EXPLAINED)
    variance = 1 / (diagonal * left)
    log_determinants = np.log(diagonal) + np.log(left) / 2
    for group in np.unique(pool.group[pool.companions <= FEW]):
        members = np.flatnonzero(pool.group == group)
        block, log_determinant = _inverse(curvature[members][:, members].toarray())
        variance[members] = block - level[members]
        log_determinants[members] = log_determinant / len(members)
    return variance, float(log_determinants.sum())


def _inverse(positive: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Diagonal of the inverse of a positive definite matrix, and the matrix's log-determinant."""
    lower, _ = cho_factor(positive, lower=True)
    inverse = cho_solve((lower, True), np.eye(len(positive)))
    return np.diag(inverse).copy(), 2 * float(np.log(np.diag(lower)).sum())


def _one_by_one(
    pool: _Pool,
    mode: NDArray[np.float64],
    variance: NDArray[np.float64],
    precision: NDArray[np.float64],
    at: Curvature,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Mean and sd of every lean beyond the normal approximation, and what the marginal likelihood gains by it.

    A lean's likelihood is taken as that of logistic votes in some unit and at some odds, which has the slope and the
    curvature found at the mode, and the third and fourth derivative, those shared with co-voters included.
    """
    information = np.maximum(1 / variance - precision, 1e-9)
    third, fourth = _higher_derivatives(pool, variance, at)
    third, fourth = third / information, np.maximum(fourth / information, 0.0)
    unit = np.sqrt(np.maximum(2 * fourth + 3 * third**2, 1e-6))
    chance = (1 + third / unit) / 2
    n_votes = information / (unit**2 * chance * (1 - chance))
    odds = np.log(chance / (1 - chance))
    wins = n_votes * chance + precision * mode / unit

    def log_posterior(lean: NDArray[np.float64]) -> NDArray[np.float64]:
        x = odds[:, None] + unit[:, None] * (lean - mode[:, None])
        return wins[:, None] * x - n_votes[:, None] * np.logaddexp(0, x) - precision[:, None] * lean**2 / 2

    lean = mode[:, None] + np.sqrt(variance)[:, None] * _POINTS
    log_ratio = log_posterior(lean) - log_posterior(mode[:, None]) + _POINTS**2 / 2
    mass = np.exp(log_ratio) * _WEIGHTS / np.sqrt(2 * np.pi)
    total = mass.sum(axis=1)
    mass /= total[:, None]
    mean = (mass * lean).sum(axis=1)
    sd = np.sqrt((mass * (lean - mean[:, None]) ** 2).sum(axis=1))
    return mean, sd, float(np.log(total).sum())


def _higher_derivatives(
    pool: _Pool, variance: NDArray[np.float64], at: Curvature
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Third and fourth derivative of the log-likelihood in each lean, averaged over what its co-voters leave open.

    A vote is won or not, so its cumulants with another of the same comparison follow from the chances p and the
    covariance c: :math:`\kappa_{iik} = (1 - 2 p_i) c_{ik}` and
    :math:`\kappa_{iikk} = (1 - 2 p_i)(1 - 2 p_k) c_{ik} - 2 c_{ik}^2`.
    """
    skew = 1 - 2 * (pool.won - at.score)
    spread = pool.squares @ variance
    together = at.information
    third = -(pool.turned @ (together @ (skew * spread)))
    pairs = skew * (together @ (skew * spread)) - 2 * (together.multiply(together) @ spread)
    return third / variance, -(pool.squares.T @ pairs) / variance


# -- over the spreads ----------------------------------------------------------------------------------------


def _profile(
    pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64], j: int, scale: float
) -> Callable[[float], _Posterior]:
    """The posterior as a function of one attribute's tau / (scale + tau), which is 0 to 1."""
    mode = start

    def at(share: float) -> _Posterior:
        nonlocal mode
        spreads = spread.copy()
        spreads[j] = scale * share / (1 - share)
        found = _given_spreads(pool, spreads, mode)
        mode = found.mode
        return found

    return at


def _most_likely(
    pool: _Pool, spread: NDArray[np.float64], start: NDArray[np.float64], j: int, scale: float
) -> tuple[float, NDArray[np.float64]]:
    at = _profile(pool, spread, start, j, scale)
    best = minimize_scalar(
        lambda share: -at(share).log_marginal,
        bounds=(NARROWEST, WIDEST),
        method="bounded",
        options={"xatol": 1e-2},
    )
    share = float(best.x)
    return scale * share / (1 - share), at(share).mode


def _shrunk_attribute(
    pool: _Pool,
    spread: NDArray[np.float64],
    start: NDArray[np.float64],
    j: int,
    scale: float,
    n_annotators: int,
    level: float,
) -> Shrunk:
    at = _profile(pool, spread, start, j, scale)
    top = spread[j] / (scale + spread[j])
    shares, found = _nodes(at, top)
    log_mass = np.array([one.log_marginal for one in found])
    masses = np.exp(log_mass - log_mass.max()) * np.gradient(shares) * shares / (1 - shares) ** 3
    masses /= masses.sum()
    mine = pool.attribute == j
    taus = scale * shares / (1 - shares)
    means = np.zeros((n_annotators, len(shares)))
    sds = np.tile(taus, (n_annotators, 1))
    means[pool.annotator[mine]] = np.stack([one.mean[mine] for one in found], axis=1)
    sds[pool.annotator[mine]] = np.stack([one.sd[mine] for one in found], axis=1)
    basis = np.full(n_annotators, "prior", dtype=object)
    basis[pool.annotator[mine]] = "votes"
    tau, low, high = _tau_with_interval(shares, log_mass, scale)
    value, error = np.zeros(n_annotators), np.ones(n_annotators)
    told = basis == "votes"
    value[pool.annotator[mine]], error[pool.annotator[mine]] = _as_estimates(
        found[int(log_mass.argmax())], taus[int(log_mass.argmax())], mine
    )
    posterior = Mixture(means, sds, np.broadcast_to(masses, means.shape))
    other = free_posterior(value, error, told)
    return summarize_posterior(posterior, other, basis, (tau, low, high), error[told], level)


def _as_estimates(
    found: _Posterior, tau: float, mine: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The normal observations that would have moved N(0, tau^2) to these posteriors."""
    precision = np.maximum(1 / found.sd[mine] ** 2 - 1 / tau**2, 1e-6 / tau**2)
    return found.mean[mine] / found.sd[mine] ** 2 / precision, 1 / np.sqrt(precision)


def _nodes(at: Callable[[float], _Posterior], top: float) -> tuple[NDArray[np.float64], list[_Posterior]]:
    """Shares around the most likely one, out to where little of the posterior is left or the range ends."""
    highest = at(top).log_marginal
    ends: list[float] = []
    for limit in (NARROWEST, WIDEST):
        reach = 0.05 * abs(limit - top)
        while (
            reach < abs(limit - top) and at(top + np.sign(limit - top) * reach).log_marginal > highest - 4.5
        ):
            reach *= 1.7
        ends.append(float(top + np.sign(limit - top) * min(reach, abs(limit - top))))
    shares = np.unique(np.append(np.linspace(ends[0], ends[1], NODES), top))
    return shares, [at(share) for share in shares]


def _tau_with_interval(
    shares: NDArray[np.float64], log_marginal: NDArray[np.float64], scale: float
) -> tuple[float, float, float]:
    """Tau where the curve through the nodes is highest, and the ends of where it is within 1.92 of that."""
    fine = np.linspace(shares[0], shares[-1], 2001)
    curve = np.interp(fine, shares, log_marginal)
    if len(shares) > 3:
        from scipy.interpolate import PchipInterpolator  # slow to import, seldom needed

        curve = PchipInterpolator(shares, log_marginal)(fine)
    taus = scale * fine / (1 - fine)
    inside = np.flatnonzero(curve >= curve.max() - DROP)
    tau = float(taus[curve.argmax()])
    low = 0.0 if fine[inside[0]] <= NARROWEST + 1e-6 else float(taus[inside[0]])
    high = np.inf if fine[inside[-1]] >= WIDEST - 1e-6 else float(taus[inside[-1]])
    return tau, low, high


def _unknown(n_annotators: int) -> Shrunk:
    """Nothing is known where fewer than two annotators have an informative vote."""
    nothing = np.full((n_annotators, 1), np.nan)
    basis = np.full(n_annotators, "prior", dtype=object)
    posterior = Mixture(nothing, nothing, np.ones((n_annotators, 1)))
    return summarize_posterior(posterior, None, basis, (np.nan, 0.0, np.inf), np.zeros(0), 0.95)
