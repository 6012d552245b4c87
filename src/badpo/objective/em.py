"""Types of annotators: the E-step of EM-DPO, and the mixture of type policies that MinMax-DPO chooses."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import log_softmax

SMALLEST_PROBABILITY = 1e-6


def type_log_likelihood(
    margins: ArrayLike, comparison: ArrayLike, sign: ArrayLike, annotator: ArrayLike, n_annotators: int
) -> NDArray[np.float64]:
    r"""How well each type's policy explains each annotator's votes.

    .. math:: \Lambda_{ik} = \sum_{j:\, k_j = i} \log \sigma\bigl(s_j u^{(k)}_{c_j}\bigr)

    Parameters
    ----------
    margins : array of shape (n_comparisons, n_types)
        u of each comparison under each type's policy, response a over response b.
    comparison, sign, annotator : array of shape (n_votes,)
        Votes that the policies were not trained on.
    n_annotators : int

    Returns
    -------
    array of shape (n_annotators, n_types), in nats
        0 for an annotator without a vote.

    Examples
    --------
    >>> type_log_likelihood([[0.0, 50.0]], [0, 0], [1, 1], [0, 0], 2).round(3) + 0.0
    array([[-1.386,  0.   ],
           [ 0.   ,  0.   ]])
    """
    margins, sign = np.asarray(margins, dtype=np.float64), np.asarray(sign, dtype=np.float64)
    explained = -np.logaddexp(0.0, -sign[:, None] * margins[np.asarray(comparison)])
    total = np.zeros((n_annotators, margins.shape[1]))
    np.add.at(total, np.asarray(annotator), explained)
    return total


def type_probabilities(log_likelihood: ArrayLike, share: ArrayLike) -> NDArray[np.float64]:
    r"""The E-step: how probable each type is for each annotator.

    .. math:: \gamma_{ik} \propto \eta_k\, e^{\Lambda_{ik}}

    Parameters
    ----------
    log_likelihood : array of shape (n_annotators, n_types)
        From `type_log_likelihood`.
    share : array of shape (n_types,)
        Share of each type among the annotators.

    Returns
    -------
    array of shape (n_annotators, n_types)
        Rows add up to 1; each entry was raised to 1e-6 before, so that no type is lost for good.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.

    Examples
    --------
    An annotator without votes is of each type with its share:

    >>> type_probabilities([[0.0, 0.0], [-1.0, -4.0]], [0.25, 0.75]).round(3)
    array([[0.25, 0.75],
           [0.87, 0.13]])
    """
    log_share = np.log(np.maximum(np.asarray(share, dtype=np.float64), SMALLEST_PROBABILITY))
    gamma = np.exp(log_softmax(log_share + np.asarray(log_likelihood, dtype=np.float64), axis=1))
    gamma = np.maximum(gamma, SMALLEST_PROBABILITY)
    return gamma / gamma.sum(axis=1, keepdims=True)


def regret_matrix(log_ratios: ArrayLike) -> NDArray[np.float64]:
    r"""What each type loses when another type's policy answers.

    .. math:: R_{ij} = L_{ii} - L_{ij}, \qquad
        L_{ij} = \text{mean over prompts of } \log\frac{\pi_i(y_j)}{\pi_{ref}(y_j)}

    Parameters
    ----------
    log_ratios : array of shape (n_types, n_types)
        L: the reward of type i, up to beta, for answers that type j's policy wrote.

    Returns
    -------
    array of shape (n_types, n_types)
        Zero on the diagonal.

    Examples
    --------
    >>> regret_matrix([[3.0, 1.0], [0.0, 2.0]])
    array([[0., 2.],
           [2., 0.]])
    """
    rewards = np.asarray(log_ratios, dtype=np.float64)
    return np.diag(rewards)[:, None] - rewards


def minmax_weights(regrets: ArrayLike) -> NDArray[np.float64]:
    r"""The mixture of type policies whose largest regret over the types is smallest.

    .. math:: w = \arg\min_{w \in \Delta} \max\Bigl(0, \max_i \sum_j w_j R_{ij}\Bigr)

    The zero stands for a row of zeros in the game: a mixture that every type likes better than its own policy is not
    preferred over one that every type likes as well. The game is solved exactly, as a linear program; of several
    solutions the one nearest to equal weights is taken, so that types which nothing tells apart share alike.

    Parameters
    ----------
    regrets : array of shape (n_types, n_types)
        From `regret_matrix`.

    Returns
    -------
    array of shape (n_types,)
        Not negative, adding up to 1.

    Raises
    ------
    ValueError
        A matrix that is not square, or not finite.

    References
    ----------
    Chidambaram et al. (2024), MinMax-DPO; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    The type that loses three times as much from the other's policy is answered three times as often:

    >>> minmax_weights([[0.0, 3.0], [1.0, 0.0]]).round(4)
    array([0.75, 0.25])
    """
    matrix = np.asarray(regrets, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise ValueError(f"regrets are a finite square matrix; got shape {matrix.shape}")
    # scaled, so that the solver's tolerances mean the same for regrets of any size
    matrix = matrix / max(np.abs(matrix).max(), 1e-300)
    n = len(matrix)
    simplex = np.append(np.ones(n), 0.0)[None, :]
    bounds = [(0.0, 1.0)] * n + [(0.0, None)]
    last = np.append(np.zeros(n), 1.0)

    # unknowns: the weights, and last the largest regret, which is to be small
    found = linprog(last, np.hstack([matrix, -np.ones((n, 1))]), np.zeros(n), simplex, [1.0], bounds)
    # unknowns: the weights, and last their largest distance from 1 / n
    within = np.hstack([matrix, np.zeros((n, 1))])
    above, below = (np.hstack([sign * np.eye(n), -np.ones((n, 1))]) for sign in (1.0, -1.0))
    limits = np.concatenate([np.full(n, found.fun + 1e-9), np.full(n, 1 / n), np.full(n, -1 / n)])
    nearest = linprog(last, np.vstack([within, above, below]), limits, simplex, [1.0], bounds)
    weights = np.clip(nearest.x[:n], 0.0, None)
    return weights / weights.sum()
