r"""Newton's method for biases, given a model of the comparisons' quality: conditioned on, or known.

The log-likelihood depends on the leans through one logit per vote, :math:`x_j = \theta_{k_j} \cdot d_j`, and on at
most a few extra numbers (the scale of a known quality). Votes on different comparisons are independent, so the second
derivative in x is block-diagonal.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from badpo.theory import Floats

LARGEST_DENSE = 3000
LARGEST_FACTORED = 600
STEPS = 100
TOLERANCE = 1e-8
LOOSEST = 0.1
STILL_MOVING = 0.01
PATIENCE = 5
NOTHING = np.zeros(0)


class Curvature(NamedTuple):
    """Derivatives of a log-likelihood at one point.

    ``score`` is the derivative in the logits x, of shape (n_votes,). ``information`` is minus the second derivative in
    x, of shape (n_votes, n_votes). ``extra_score`` is the derivative in the extra numbers, ``extra_cross`` is minus the
    mixed second derivative, of shape (n_votes, n_extra), and ``extra_information`` is minus the second derivative in
    the extra numbers.
    """

    score: Floats
    information: sparse.csr_array
    extra_score: Floats = NOTHING
    extra_cross: Floats | None = None
    extra_information: Floats = np.zeros((0, 0))


class QualityModel:
    """A model of the comparisons' quality, for votes in the order of their blocks.

    ``start`` contains the initial values of the extra numbers.
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
    """Minus the second derivative in leans and extra numbers, multiplied out only where it is small."""

    design: sparse.csr_array
    at: Curvature

    def times(self, leans: Floats) -> Floats:
        """The part in the leans, applied to some."""
        return self.design.T @ (self.at.information @ (self.design @ leans))

    @cached_property
    def diagonal(self) -> Floats:
        """Diagonal of the part in the leans, as if no annotator voted twice on a comparison."""
        return self.design.power(2).T @ self.at.information.diagonal()

    @cached_property
    def among(self) -> Floats:
        """The part in the leans as a matrix."""
        return (self.design.T @ (self.at.information @ self.design)).toarray()

    @cached_property
    def across(self) -> Floats:
        """The part between leans and extra numbers."""
        cross = self.at.extra_cross
        if cross is None:
            return np.zeros((self.design.shape[1], 0))
        return self.design.T @ cross


class Maximum(NamedTuple):
    """The top of a log-likelihood.

    ``gradient_norm`` is the largest entry of the gradient, extra numbers included. Where the likelihood rises without
    end, ``receding`` is Newton's last step, which stays as long as those before it though the gradient has vanished.
    """

    leans: Floats
    extra: Floats
    gradient_norm: float
    information: Information
    receding: Floats | None


def maximize(model: QualityModel, design: sparse.csr_array, free: Floats) -> Maximum:
    """Maximise a log-likelihood over leans and extra numbers; logits are ``design @ leans``.

    ``free`` has orthonormal directions in its columns in which the likelihood is flat; the leans are returned without
    them.
    """
    logits, leans = map(np.zeros, design.shape)
    extra, n_leans = model.start, len(leans)
    before, patience, receding = np.nan, PATIENCE, None
    value = float(model.values(logits, extra).sum())
    for n in range(STEPS + 1):
        information = Information(design, model.curvature(logits, extra))
        at = information.at
        gradient = np.append(design.T @ at.score, at.extra_score)
        size = float(np.abs(gradient).max(initial=0.0))
        # about as precise as Newton's model is, by what the last step left (Eisenstat and Walker)
        least = 0.1 * TOLERANCE / max(size, TOLERANCE)
        left = np.nan_to_num(size / before, nan=1.0) ** 2
        precision = float(np.clip(left, least, LOOSEST))
        step = _newton_step(information, gradient, free, precision)
        before = size
        if size < TOLERANCE:
            patience -= 1
            change = design @ step[:n_leans]
            is_moving = np.abs(change).max(initial=0.0) >= STILL_MOVING
            receding = step[:n_leans] if is_moving else None
            if not (is_moving and patience):
                break
        climbed = _climb(model, design, (leans, extra, value), step) if n < STEPS else None
        if climbed is None:
            break
        leans, extra, logits, value = climbed
    leans = leans - free @ (free.T @ leans)
    return Maximum(leans, extra, size, information, receding)


def _newton_step(
    information: Information,
    gradient: Floats,
    free: Floats,
    precision: float,
) -> Floats:
    """The step in leans and extra numbers.

    In the leans the likelihood is concave. In an extra number it need not be: far from the top its step goes uphill
    by at most 1, and the leans follow it.
    """
    p, across = len(free), information.across
    sides = np.column_stack([gradient[:p], across])
    if p <= LARGEST_FACTORED:
        solved = _solved(information.among, free, sides)
    else:
        each = [conjugate_gradients(information, side, precision) for side in sides.T]
        solved = np.column_stack(each)
    bend = information.at.extra_information - across.T @ solved[:, 1:]
    rest = gradient[p:] - across.T @ solved[:, 0]
    extra = np.clip(rest / np.maximum(np.abs(np.diag(bend)), 1e-300), -1.0, 1.0)
    return np.concatenate([solved[:, 0] - solved[:, 1:] @ extra, extra])


def conjugate_gradients(information: Information, side: Floats, precision: float) -> Floats:
    """The leans that the information takes to a vector in its range, up to a relative precision."""
    n = len(side)
    among = LinearOperator((n, n), information.times, dtype=float)
    scaling = sparse.diags_array(1 / np.maximum(information.diagonal, 1e-300))
    return cg(among, side, rtol=precision, maxiter=10 * n, M=scaling)[0]


def _solved(information: Floats, free: Floats, sides: Floats) -> Floats:
    """What the information takes to the sides, with the typical curvature along the flat directions."""
    if not len(information):  # scipy takes empty matrices from 1.14 on
        return np.zeros(sides.shape)
    matrix, p = information.copy(), len(free)
    matrix[:p, :p] += max(np.diag(information).mean(), 1e-12) * free @ free.T
    ridge, level = 0.0, max(np.abs(np.diag(matrix)).max(), 1e-12)
    while True:
        try:
            return cho_solve(cho_factor(matrix + ridge * np.eye(len(matrix))), sides)
        except LinAlgError:
            ridge = max(10 * ridge, 1e-10 * level)


def _climb(
    model: QualityModel,
    design: sparse.csr_array,
    point: tuple[Floats, Floats, float],
    step: Floats,
) -> tuple[Floats, Floats, Floats, float] | None:
    """Leans, extra numbers, logits and value after the step, halved until the likelihood does not fall.

    None if it always falls.
    """
    leans, extra, value = point
    least = value - 1e-12 * max(abs(value), 1.0)
    for halvings in range(40):
        change, extra_change = np.split(0.5**halvings * step, [len(leans)])
        logits = design @ (leans + change)
        reached = float(model.values(logits, extra + extra_change).sum())
        if reached >= least:
            return leans + change, extra + extra_change, logits, reached
    return None


def covariance_of_leans(maximum: Maximum, free: Floats) -> Floats:
    """Inverse information of the leans, the extra numbers estimated along with them, on the identified directions."""
    p, at = len(maximum.leans), maximum.information
    whole = np.block([[at.among, at.across], [at.across.T, at.at.extra_information]])
    inverse = _solved(whole, free, np.eye(len(whole)))[:p, :p]
    projector = np.eye(p) - free @ free.T
    return projector @ inverse @ projector
