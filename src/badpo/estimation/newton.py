r"""Newton's method for biases, given a model of the quality of comparisons.

The log-likelihood depends on the biases through one logit per vote, :math:`x_j = \theta_{k_j} \cdot d_j`. The
log-likelihood also depends on a few extra parameters, such as the scale of a known quality. Votes on different
comparisons are independent, so the second derivative with respect to x is block-diagonal.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from badpo.theory import Floats

# The covariance matrix is stored if there are at most LARGEST_DENSE biases.
# Linear systems are solved directly if there are at most LARGEST_FACTORED biases.
LARGEST_DENSE = 3000
LARGEST_FACTORED = 600
# Newton's method ends after STEPS steps, or when the gradient is smaller than TOLERANCE.
STEPS = 100
TOLERANCE = 1e-8
# The relative error of a Newton step is at most this value.
LOOSEST = 0.1
# The likelihood has no maximum if PATIENCE steps at a zero gradient still change a logit by STILL_MOVING or more.
PATIENCE = 5
STILL_MOVING = 0.01
NOTHING = np.zeros(0)


class Curvature(NamedTuple):
    """Derivatives of a log-likelihood at one point.

    ``score``, of shape (n_votes,), is the derivative with respect to the logits x. ``information``, of shape (n_votes,
    n_votes), is minus the second derivative with respect to x. ``extra_score`` is the derivative with respect to the
    extra parameters, ``extra_information`` is minus the second derivative with respect to these parameters, and
    ``extra_cross``, of shape (n_votes, n_extra), is minus the mixed second derivative.
    """

    score: Floats
    information: sparse.csr_array
    extra_score: Floats = NOTHING
    extra_cross: Floats | None = None
    extra_information: Floats = np.zeros((0, 0))


class QualityModel:
    """Base class for models of the quality of comparisons; votes are sorted in the order of their blocks.

    ``start`` contains the initial values of the extra parameters.
    """

    start = NOTHING

    def values(self, logits: Floats, extra: Floats) -> Floats:
        """Log-likelihood of each comparison."""
        raise NotImplementedError

    def curvature(self, logits: Floats, extra: Floats) -> Curvature:
        """Derivatives of the sum of `values`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Information:
    """Minus the second derivative of the log-likelihood; `among` is the dense matrix, for small problems."""

    design: sparse.csr_array
    at: Curvature

    def times(self, biases: Floats) -> Floats:
        """Multiply the information matrix of the biases by a vector."""
        return np.asarray(self.design.T @ (self.at.information @ (self.design @ biases)))

    @cached_property
    def diagonal(self) -> Floats:
        """Diagonal of the information matrix of the biases; exact if no annotator voted twice on a comparison."""
        return np.asarray(self.design.power(2).T @ self.at.information.diagonal())

    @cached_property
    def among(self) -> Floats:
        """Information matrix of the biases as a dense array."""
        return np.asarray((self.design.T @ (self.at.information @ self.design)).toarray())

    @cached_property
    def across(self) -> Floats:
        """Block of the information matrix that relates the biases to the extra parameters."""
        cross = self.at.extra_cross
        if cross is None:
            return np.zeros((self.design.shape[1], 0))
        return np.asarray(self.design.T @ cross)


class Maximum(NamedTuple):
    """Maximum of a log-likelihood.

    ``gradient_norm`` is the largest entry of the gradient, including the extra parameters. If the likelihood has no
    maximum, ``receding`` is the last Newton step, which is still large although the gradient is zero.
    """

    biases: Floats
    extra: Floats
    gradient_norm: float
    information: Information
    receding: Floats | None


def maximize(model: QualityModel, design: sparse.csr_array, free: Floats) -> Maximum:
    """Maximize a log-likelihood over biases and extra parameters; the logits are ``design @ biases``.

    The columns of ``free`` are orthonormal directions along which the likelihood is constant. The returned biases have
    no component along the columns of ``free``.
    """
    logits, biases = map(np.zeros, design.shape)
    extra, n_biases = model.start, len(biases)
    before, patience, receding = np.nan, PATIENCE, None
    value = float(model.values(logits, extra).sum())
    for n in range(STEPS + 1):
        information = Information(design, model.curvature(logits, extra))
        at = information.at
        gradient = np.append(design.T @ at.score, at.extra_score)
        size = float(np.abs(gradient).max(initial=0.0))
        # the linear solver's tolerance depends on the last decrease of the gradient (Eisenstat and Walker)
        least = 0.1 * TOLERANCE / max(size, TOLERANCE)
        left = np.nan_to_num(size / before, nan=1.0) ** 2
        precision = float(np.clip(left, least, LOOSEST))
        step = _newton_step(information, gradient, free, precision)
        before = size
        if size < TOLERANCE:
            patience -= 1
            change = design @ step[:n_biases]
            is_moving = np.abs(change).max(initial=0.0) >= STILL_MOVING
            receding = step[:n_biases] if is_moving else None
            if not (is_moving and patience):
                break
        climbed = _climb(model, design, (biases, extra, value), step) if n < STEPS else None
        if climbed is None:
            break
        biases, extra, logits, value = climbed
    biases = biases - free @ (free.T @ biases)
    return Maximum(biases, extra, size, information, receding)


def _newton_step(
    information: Information,
    gradient: Floats,
    free: Floats,
    precision: float,
) -> Floats:
    """Return a Newton step for the biases and the extra parameters.

    The log-likelihood is concave in the biases, but not necessarily in an extra parameter. A Newton step therefore
    moves an extra parameter in the direction of its gradient, by at most 1. The biases then take the Newton step for
    the new value of the extra parameter.
    """
    p, across = len(free), information.across
    sides = np.column_stack([gradient[:p], across])
    if p <= LARGEST_FACTORED:
        solved = _solve(information.among, free, sides)
    else:
        each = [conjugate_gradients(information, side, precision) for side in sides.T]
        solved = np.column_stack(each)
    bend = information.at.extra_information - across.T @ solved[:, 1:]
    rest = gradient[p:] - across.T @ solved[:, 0]
    extra = np.clip(rest / np.maximum(np.abs(np.diag(bend)), 1e-300), -1.0, 1.0)
    return np.concatenate([solved[:, 0] - solved[:, 1:] @ extra, extra])


def conjugate_gradients(information: Information, side: Floats, precision: float) -> Floats:
    """Solve information * x = ``side`` by conjugate gradients (``side`` must be in the range of the matrix)."""
    n = len(side)
    among = LinearOperator((n, n), information.times, dtype=float)
    scaling = sparse.diags_array(1 / np.maximum(information.diagonal, 1e-300))
    return np.asarray(cg(among, side, rtol=precision, maxiter=10 * n, M=scaling)[0])


def _solve(information: Floats, free: Floats, sides: Floats) -> Floats:
    """Solve linear systems with the information matrix plus a typical curvature along the ``free`` directions."""
    if not len(information):  # SciPy before 1.14 rejects empty matrices
        return np.zeros(sides.shape)
    matrix, p = information.copy(), len(free)
    matrix[:p, :p] += max(np.diag(information).mean(), 1e-12) * free @ free.T
    ridge, largest = 0.0, max(np.abs(np.diag(matrix)).max(), 1e-12)
    while True:
        try:
            return np.asarray(cho_solve(cho_factor(matrix + ridge * np.eye(len(matrix))), sides))
        except LinAlgError:
            ridge = max(10 * ridge, 1e-10 * largest)


def _climb(
    model: QualityModel,
    design: sparse.csr_array,
    point: tuple[Floats, Floats, float],
    step: Floats,
) -> tuple[Floats, Floats, Floats, float] | None:
    """Take a Newton step, and halve the step until the likelihood does not decrease.

    Returns the biases, extra parameters, logits and log-likelihood, or None if the likelihood always decreases.
    """
    biases, extra, value = point
    least = value - 1e-12 * max(abs(value), 1.0)
    for halvings in range(40):
        change, extra_change = np.split(0.5**halvings * step, [len(biases)])
        logits = design @ (biases + change)
        reached = float(model.values(logits, extra + extra_change).sum())
        if reached >= least:
            return biases + change, extra + extra_change, logits, reached
    return None


def compute_bias_covariance(maximum: Maximum, free: Floats) -> Floats:
    """Return the covariance of the biases: the inverse of the information matrix along the identified directions."""
    p, at = len(maximum.biases), maximum.information
    whole = np.block([[at.among, at.across], [at.across.T, at.at.extra_information]])
    inverse = _solve(whole, free, np.eye(len(whole)))[:p, :p]
    projector = np.eye(p) - free @ free.T
    return projector @ inverse @ projector
