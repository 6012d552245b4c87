r"""Newton's method for leans when the comparisons' quality has been dealt with: integrated, profiled or given.

The log-likelihood depends on the leans through one logit per vote, :math:`x_j = \theta_{k_j} \cdot d_j`, and on at
most a few numbers more (the spread or the scale of the quality). Votes of different comparisons do not meet, so the
second derivative in x is block-diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

LARGEST_DENSE = 3000
LARGEST_FACTORED = 600
STEPS = 100
TOLERANCE = 1e-8
LOOSEST = 0.1
STILL_MOVING = 0.01
PATIENCE = 5


@dataclass(frozen=True)
class Curvature:
    """Derivatives of a log-likelihood at one point.

    Attributes
    ----------
    score : array of shape (n_votes,)
        In the logits x.
    information : sparse array of shape (n_votes, n_votes)
        Minus the second derivative in x.
    extra_score : array of shape (n_extra,)
    extra_cross : array of shape (n_votes, n_extra)
        Minus the mixed second derivative.
    extra_information : array of shape (n_extra, n_extra)
    """

    score: NDArray[np.float64]
    information: sparse.csr_array
    extra_score: NDArray[np.float64]
    extra_cross: NDArray[np.float64]
    extra_information: NDArray[np.float64]


class QualityModel(Protocol):
    """What is assumed of the comparisons' quality; votes stand in the order of their blocks."""

    @property
    def start(self) -> NDArray[np.float64]:
        """First value of the extra numbers."""
        ...

    def settle(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> None:
        """Place whatever the likelihood is computed with (quadrature nodes) for the neighborhood of a point.

        Asked for at the start, and after every step where there are extra numbers.
        """
        ...

    def values(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood of each comparison."""
        ...

    def curvature(self, logits: NDArray[np.float64], extra: NDArray[np.float64]) -> Curvature:
        """Derivatives of the sum of `values`."""
        ...


class Linear(Protocol):
    """How the logits depend on the leans."""

    @property
    def matrix(self) -> sparse.csr_array:
        """From leans to logits, of shape (n_votes, n_leans)."""
        ...

    @property
    def squares(self) -> sparse.csr_array:
        """Its entries squared."""
        ...

    @property
    def near_inverse(self) -> sparse.csr_array:
        """About the inverse of an information in the leans after that is scaled to a unit diagonal."""
        ...


@dataclass(frozen=True)
class Maximum:
    """The top of a log-likelihood.

    Attributes
    ----------
    leans : array of shape (n_parameters,)
    extra : array of shape (n_extra,)
    value : float
    gradient_norm : float
        Largest entry of the gradient, extra numbers included.
    n_newton, n_cg : int
        Newton steps, and steps of conjugate gradients in all of them (0 where solved directly).
    information : Information
        Minus the second derivative at the top, of shape (n_parameters + n_extra, n_parameters + n_extra).
    receding : array of shape (n_parameters,) or None
        Where the likelihood rises without end: Newton's last step, which stays as long as those before it though the
        gradient has vanished.
    """

    leans: NDArray[np.float64]
    extra: NDArray[np.float64]
    value: float
    gradient_norm: float
    n_newton: int
    n_cg: int
    information: Information
    receding: NDArray[np.float64] | None


@dataclass(frozen=True)
class Information:
    """Minus the second derivative in leans and extra numbers, multiplied out only where it is small."""

    linear: Linear
    at: Curvature

    def times(self, leans: NDArray[np.float64]) -> NDArray[np.float64]:
        """The part in the leans, applied to some."""
        return np.asarray(self.linear.matrix.T @ (self.at.information @ (self.linear.matrix @ leans)))

    @cached_property
    def diagonal(self) -> NDArray[np.float64]:
        """Diagonal of the part in the leans, as if no annotator voted twice on a comparison."""
        return np.asarray(self.linear.squares.T @ self.at.information.diagonal())

    @cached_property
    def among(self) -> NDArray[np.float64]:
        """The part in the leans as a matrix."""
        return np.asarray((self.linear.matrix.T @ (self.at.information @ self.linear.matrix)).toarray())

    @cached_property
    def across(self) -> NDArray[np.float64]:
        """The part between leans and extra numbers."""
        return np.asarray(self.linear.matrix.T @ self.at.extra_cross)

    def toarray(self) -> NDArray[np.float64]:
        """All of it."""
        return np.block([[self.among, self.across], [self.across.T, self.at.extra_information]])


def maximize(model: QualityModel, linear: Linear, free: NDArray[np.float64]) -> Maximum:
    r"""Maximise a log-likelihood over leans and extra numbers.

    Parameters
    ----------
    model : QualityModel
    linear : Linear
        Logits are ``linear.matrix @ leans``.
    free : array of shape (n_parameters, n_free)
        Orthonormal directions in which the likelihood is flat; the leans are returned without them.

    Returns
    -------
    Maximum
        The largest gradient entry is below 1e-8 unless floating point or 100 steps came first; look at it.
    """
    design = linear.matrix
    leans, extra = np.zeros(design.shape[1]), model.start
    logits = design @ leans
    model.settle(logits, extra)
    value, n_cg, patience, receding = float(model.values(logits, extra).sum()), 0, PATIENCE, None
    before = np.nan
    for n_newton in range(STEPS + 1):
        at = model.curvature(logits, extra)
        gradient = np.concatenate([design.T @ at.score, at.extra_score])
        information = Information(linear, at)
        size = float(np.abs(gradient).max(initial=0.0))
        # about as precise as Newton's model is, by what the last step left (Eisenstat and Walker)
        precision = np.clip(
            np.nan_to_num(size / before, nan=1.0) ** 2, 0.1 * TOLERANCE / max(size, TOLERANCE), LOOSEST
        )
        step, used = _newton_step(information, gradient, free, float(precision))
        before = size
        n_cg += used
        if size < TOLERANCE:
            moving = float(np.abs(design @ step[: len(leans)]).max(initial=0.0))
            patience -= 1
            if moving < STILL_MOVING:
                break
            if not patience:
                receding = step[: len(leans)]
                break
        if n_newton == STEPS:
            break
        climbed = _climb(model, design, (leans, extra, value), step)
        if climbed is None:
            break
        leans, extra, logits, value = climbed
        if len(extra):
            model.settle(logits, extra)
            value = float(model.values(logits, extra).sum())
    return Maximum(leans - free @ (free.T @ leans), extra, value, size, n_newton, n_cg, information, receding)


def _newton_step(
    information: Information, gradient: NDArray[np.float64], free: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], int]:
    """The step, and the conjugate-gradient steps it took.

    In the leans the likelihood is concave. In an extra number it need not be: far from the top its step goes uphill
    by at most 1, and the leans follow it.
    """
    p = len(free)
    across = information.across
    solved, n_cg = _solve(information, np.column_stack([gradient[:p], across]), free, precision)
    bend = information.at.extra_information - across.T @ solved[:, 1:]
    rest = gradient[p:] - across.T @ solved[:, 0]
    extra = np.clip(rest / np.maximum(np.abs(np.diag(bend)), 1e-300), -1.0, 1.0)
    return np.concatenate([solved[:, 0] - solved[:, 1:] @ extra, extra]), n_cg


def _solve(
    information: Information, sides: NDArray[np.float64], free: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], int]:
    if len(free) <= LARGEST_FACTORED:
        return _solved(_filled(information.among, free), sides), 0
    found = [conjugate_gradients(information, side, precision) for side in sides.T]
    return np.column_stack([solved for solved, _ in found]), sum(used for _, used in found)


def conjugate_gradients(
    information: Information, side: NDArray[np.float64], precision: float
) -> tuple[NDArray[np.float64], int]:
    """The leans that the information takes to some vector in its range, and the steps that took.

    Parameters
    ----------
    information : Information
    side : array of shape (n_leans,)
    precision : float
        Of what is left, relative to the vector.
    """
    shape = (len(side), len(side))
    scale = 1 / np.sqrt(np.maximum(information.diagonal, 1e-300))
    among = LinearOperator(shape, matvec=lambda v: information.times(v.ravel()), dtype=np.float64)

    def nearly_inverse(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return scale * (information.linear.near_inverse @ (scale * v.ravel()))

    precondition = LinearOperator(shape, matvec=nearly_inverse, dtype=np.float64)
    count = 0

    def counted(_: NDArray) -> None:
        nonlocal count
        count += 1

    solved = cg(among, side, rtol=precision, maxiter=10 * len(side), M=precondition, callback=counted)[0]
    return solved, count


def _filled(information: NDArray[np.float64], free: NDArray[np.float64]) -> NDArray[np.float64]:
    """The information with its flat directions given the typical curvature, so that it can be inverted."""
    level = max(float(np.mean(np.diag(information))), 1e-12) if len(information) else 1.0
    filled = information.copy()
    p = len(free)
    filled[:p, :p] += level * free @ free.T
    return filled


def _solved(matrix: NDArray[np.float64], sides: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(matrix):  # scipy takes empty matrices from 1.14 on
        return np.zeros(sides.shape)
    return np.asarray(cho_solve(_factor(matrix), sides))


def _factor(matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], bool]:
    level = max(float(np.abs(np.diag(matrix)).max(initial=0.0)), 1e-12)
    ridge = 0.0
    while True:
        try:
            return cho_factor(matrix + ridge * np.eye(len(matrix)))
        except LinAlgError:
            ridge = max(10 * ridge, 1e-10 * level)


def _climb(
    model: QualityModel,
    design: sparse.csr_array,
    point: tuple[NDArray[np.float64], NDArray[np.float64], float],
    step: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float] | None:
    """Halve the step until the likelihood does not fall; None if it always does.

    Otherwise the new leans, extra numbers, logits and value.
    """
    leans, extra, value = point
    p = len(leans)
    slack = 1e-12 * max(abs(value), 1.0)
    for halvings in range(40):
        share = 0.5**halvings
        new_leans, new_extra = leans + share * step[:p], extra + share * step[p:]
        logits = design @ new_leans
        new_value = float(model.values(logits, new_extra).sum())
        if new_value >= value - slack:
            return new_leans, new_extra, logits, new_value
    return None


def covariance_of_leans(maximum: Maximum, free: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse information of the leans, the extra numbers estimated along with them, on the identified directions.

    Parameters
    ----------
    maximum : Maximum
    free : array of shape (n_parameters, n_free)
        As in `maximize`.

    Returns
    -------
    array of shape (n_parameters, n_parameters)
    """
    p = len(maximum.leans)
    filled = _filled(maximum.information.toarray(), free)
    inverse = _solved(filled, np.eye(len(filled)))[:p, :p]
    projector = np.eye(p) - free @ free.T
    return projector @ inverse @ projector
