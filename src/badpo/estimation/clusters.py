r"""Cluster-robust errors that hold with few clusters of unequal size: CR2 with Satterthwaite's degrees of freedom.

The votes on one prompt are not independent evidence. With hundreds of prompts any cluster-robust error will do; with
the 6 to 50 prompts that audits often have, the usual one is too small, the more so the more the prompts differ in
their number of votes. Each cluster's score is therefore divided by the root of what its own leverage leaves of it
(the bias-reduced error CR2 of Bell and McCaffrey), and Student's t gets the degrees of freedom that the leverages
leave.

This form was chosen by simulation among the usual sandwich error with t, CR2, the delete-one-cluster jackknife with
t, and the wild cluster bootstrap-t: it keeps closest to its 95 % when prompts differ in size and votes on a prompt hang
together. `python -m bench.small_clusters` prints the comparison (docs/results/small_clusters.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

# Below this leverage (trace) of a cluster, (1 - K)^(-1/2) is its series to K squared; the error is below 1e-9.
_SMALL_LEVERAGE = 1e-3
# Above this a cluster alone determines a direction, and nothing is left to measure the spread with.
_WHOLE = 1 - 1e-9


@dataclass(frozen=True)
class ClusterErrors:
    """Standard errors of coefficients, with what Student's t needs.

    Attributes
    ----------
    se, df : array of shape (n_coefficients,)
        Standard error and degrees of freedom; NaN where a single cluster determines the coefficient.
    n_clusters : int
        Clusters with information.
    """

    se: NDArray[np.float64]
    df: NDArray[np.float64]
    n_clusters: int

    def half_width(self, level: float = 0.95) -> NDArray[np.float64]:
        """Half the interval's length at this coverage; NaN where there is no error."""
        return self.se * stdtrit(self.df, 0.5 + level / 2)

    def p_values(self, coefficients: ArrayLike) -> NDArray[np.float64]:
        """Two-sided p-values of the coefficients being zero; NaN where there is no error."""
        return 2 * stdtr(self.df, -np.abs(np.asarray(coefficients, dtype=np.float64) / self.se))


def cluster_errors(score: ArrayLike, information: ArrayLike) -> ClusterErrors:
    r"""CR2 standard errors and Satterthwaite degrees of freedom of a maximum likelihood estimate.

    .. math:: V = H^{-1/2} \Bigl(\sum_g A_g t_g t_g^\top A_g\Bigr) H^{-1/2}, \qquad
        t_g = H^{-1/2} s_g, \quad K_g = H^{-1/2} H_g H^{-1/2}, \quad A_g = (I - K_g)^{-1/2}

    with the scores s_g and the informations H_g of the clusters at the estimate, and H their sum. The degrees of
    freedom are (tr P)^2 / tr(P^2) of the matrix P of the quadratic form, for votes that are independent given the
    model, as Bell and McCaffrey have it.

    Parameters
    ----------
    score : array of shape (n_clusters, n_coefficients)
        Gradient of each cluster's log-likelihood at the estimate; the sum over clusters is zero.
    information : array of shape (n_clusters, n_coefficients, n_coefficients)
        Minus its second derivative.

    Returns
    -------
    ClusterErrors

    Examples
    --------
    The mean of four clusters of one, 0, 0, 1, 1: the ordinary standard error with three degrees of freedom.

    >>> errors = cluster_errors([[-0.5], [-0.5], [0.5], [0.5]], np.ones((4, 1, 1)))
    >>> errors.se.round(4), errors.df.round(1)
    (array([0.2887]), array([3.]))
    """
    s, h = np.asarray(score, dtype=np.float64), np.asarray(information, dtype=np.float64)
    informed = np.trace(h, axis1=1, axis2=2) > 0
    s, h = s[informed], h[informed]
    q = s.shape[1]
    if len(s) == 0:
        return ClusterErrors(np.full(q, np.nan), np.full(q, np.nan), 0)
    root = _inverse_root(h.sum(axis=0))
    leverage = root @ h @ root
    adjustment, alone = _inverse_root_of_rest(leverage)
    m = adjustment @ root
    u = leverage @ m
    se = np.sqrt((np.einsum("gic,gi->gc", m, s @ root) ** 2).sum(axis=0))
    p = np.einsum("gic,gic->gc", m, u)
    u_squared = np.einsum("gic,gic->gc", u, u)
    gram = np.einsum("gic,gjc->cij", u, u)
    trace = (p - u_squared).sum(axis=0)
    square = (p**2 - 2 * p * u_squared).sum(axis=0) + (gram**2).sum(axis=(1, 2))
    undetermined = (np.abs(alone @ root) > 1e-7 * np.abs(root).max()).any(axis=0)
    df = np.where(undetermined, np.nan, trace**2 / np.where(square > 0, square, np.nan))
    return ClusterErrors(np.where(np.isnan(df), np.nan, se), df, len(s))


def _inverse_root(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors / np.sqrt(values)) @ vectors.T


def _inverse_root_of_rest(leverage: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(I - K_g)^(-1/2) of every cluster, and the directions that a cluster determines alone, as rows."""
    q = leverage.shape[1]
    adjustment = np.eye(q) + leverage / 2 + 0.375 * (leverage @ leverage)
    large = np.trace(leverage, axis1=1, axis2=2) > _SMALL_LEVERAGE
    values, vectors = np.linalg.eigh(leverage[large])
    alone = np.swapaxes(vectors, 1, 2)[values > _WHOLE]
    scale = 1 / np.sqrt(np.where(values > _WHOLE, 1.0, 1 - values))
    adjustment[large] = (vectors * scale[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return adjustment, alone.reshape(-1, q)
