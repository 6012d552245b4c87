r"""Objectives whose margin does not count every token alike: SamPO, LD-DPO and IPO.

.. math:: u = \beta \left[\sum_t w^a_t \log\frac{\pi(a_t)}{\pi_{ref}(a_t)}
    - \sum_t w^b_t \log\frac{\pi(b_t)}{\pi_{ref}(b_t)}\right]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from badpo.objective.objectives import VoteWeights
from badpo.theory.likelihood import ipo_loss

TokenWeights = list[tuple[NDArray[np.float64], NDArray[np.float64]]]


class SampledTokens(VoteWeights):
    """SamPO: of the longer response only as many tokens count as the shorter one has, drawn at random.

    The draw is one for the policy and the reference, fresh at every step, and a function of the seed, the step and the
    comparison alone, so that micro-batches, processes and a resumed run see the same one.

    Parameters
    ----------
    seed : int

    References
    ----------
    Lu et al. (2024), Eliminating biased length reliance of DPO via down-sampled KL divergence; BA-DPO, Appendix
    `app:baselines`.

    Examples
    --------
    >>> a, b = SampledTokens(seed=0).token_weights(np.array([[2, 4]]), np.array([7]), step=0)[0]
    >>> a, int(b.sum())
    (array([1., 1.]), 2)
    """

    weighs_tokens = True

    def __init__(self, seed: int):
        self.seed = int(seed)

    def token_weights(
        self, lengths: NDArray[np.int64], comparison: NDArray[np.int64], step: int
    ) -> TokenWeights:
        """1 for a token that was drawn, 0 for another."""
        drawn = []
        for (n_a, n_b), c in zip(lengths, comparison, strict=True):
            rng = np.random.default_rng([self.seed, step, int(c)])
            shorter = min(n_a, n_b)
            drawn.append((_drawn(rng, n_a, shorter), _drawn(rng, n_b, shorter)))
        return drawn


def _drawn(rng: np.random.Generator, n: int, n_drawn: int) -> NDArray[np.float64]:
    weights = np.zeros(n)
    weights[rng.permutation(n)[:n_drawn]] = 1.0
    return weights


class DiscountedTail(VoteWeights):
    """LD-DPO: tokens beyond the length of the shorter response count only ``alpha``.

    Parameters
    ----------
    alpha : float
        0 to 1; 1 is DPO. TRL's ``ld_alpha``.

    Raises
    ------
    ValueError
        An alpha outside of it.

    References
    ----------
    Liu et al. (2024), Length desensitization in direct preference optimization.

    Examples
    --------
    >>> DiscountedTail(alpha=0.5).token_weights(np.array([[2, 4]]), np.array([0]), step=0)
    [(array([1., 1.]), array([1. , 1. , 0.5, 0.5]))]
    """

    weighs_tokens = True

    def __init__(self, alpha: float):
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is a share, 0 to 1; got {alpha!r}")
        self.alpha = float(alpha)

    def token_weights(
        self, lengths: NDArray[np.int64], comparison: NDArray[np.int64], step: int
    ) -> TokenWeights:
        """1 up to the length of the shorter response, ``alpha`` after it."""
        return [
            (np.where(np.arange(n_a) < n_b, 1.0, self.alpha), np.where(np.arange(n_b) < n_a, 1.0, self.alpha))
            for n_a, n_b in lengths
        ]


class IdentityPreference(VoteWeights):
    r"""IPO with the bias term: a squared distance instead of a likelihood, of the mean log-ratio per token.

    .. math:: \ell = \left(\frac{s\,(u + b) - 1/2}{\beta}\right)^2

    where u is beta times the difference of the two responses' mean log-ratios per token, and b is in the unit of u.
    Without a bias this is TRL's ``loss_type="ipo"``. Because u is no log-odds, theta is none: an estimate that was made
    from the votes must not start it.

    Parameters
    ----------
    beta : float
        The same as the trainer's.

    References
    ----------
    Azar et al. (2024), A general theoretical paradigm to understand learning from human preferences; BA-DPO names the
    combination as future work.

    Examples
    --------
    >>> IdentityPreference(beta=0.1).token_weights(np.array([[2, 4]]), np.array([0]), step=0)
    [(array([0.5, 0.5]), array([0.25, 0.25, 0.25, 0.25]))]
    """

    in_log_odds = False
    weighs_tokens = True

    def __init__(self, beta: float):
        self.beta = float(beta)

    def token_weights(
        self, lengths: NDArray[np.int64], comparison: NDArray[np.int64], step: int
    ) -> TokenWeights:
        """One over the response's length."""
        return [(np.full(n_a, 1 / n_a), np.full(n_b, 1 / n_b)) for n_a, n_b in lengths]

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """The squared distance, `badpo.theory.likelihood.ipo_loss`."""
        return ipo_loss(margins, bias_logits, sign, self.beta)
