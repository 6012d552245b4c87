r"""Answers of a policy tilted toward or away from an attribute of the whole text, by choosing among its own samples.

No token shows such an attribute before the answer is finished, so whole answers are drawn from the policy and some
are kept. The target is the same tilted policy as everywhere,

.. math:: \pi_s(y \mid x) \propto \pi(y \mid x) \exp(s^\top g(y))

Rejection draws from it exactly, at a price that grows with the shift; the best-of-n draw costs n answers whatever the
shift, and its rate falls short of the tilted policy's by an amount that goes down with n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Kept(Generic[Answer]):
    """Answers of the tilted policy, one per prompt.

    Attributes
    ----------
    answers : list of n_prompts answers
        None for a prompt of which every draw was rejected.
    carries : array of shape (n_prompts, n_attributes)
        g of each kept answer; NaN where there is none.
    n_drawn : int
        Answers drawn from the policy in all.
    n_without : int
        Prompts without an answer. Leaving them out makes the rate lean toward prompts that accept easily.
    """

    answers: list[Answer | None]
    carries: NDArray[np.float64]
    n_drawn: int
    n_without: int

    @property
    def acceptance_rate(self) -> float:
        """Answers kept for each answer drawn."""
        return (len(self.answers) - self.n_without) / self.n_drawn


def acceptance_probability(carries: ArrayLike, shift: ArrayLike) -> NDArray[np.float64]:
    r"""Probability with which rejection keeps an answer that carries these attributes.

    .. math:: \exp(s^\top g - \max_{g'} s^\top g'), \qquad \max_{g'} s^\top g' = \sum_i \max(s_i, 0)

    Parameters
    ----------
    carries : array of shape (n_answers, n_attributes)
        1 where the answer carries the attribute, else 0.
    shift : array of shape (n_attributes,)
        s in log-odds.

    Returns
    -------
    array of shape (n_answers,)
        In (0, 1]. For one attribute of rate p the acceptance rate is p exp(s) + 1 - p for s < 0 and
        p + (1 - p) exp(-s) for s > 0.

    Examples
    --------
    Made rarer by 3.38 in log-odds, an answer with the attribute is kept once in 29 times:

    >>> acceptance_probability([[1], [0]], [-3.38]).round(3)
    array([0.034, 1.   ])
    """
    indicator = np.asarray(carries, dtype=np.float64)
    moved = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    if indicator.ndim != 2 or indicator.shape[1] != len(moved):
        raise ValueError(f"carries of shape {indicator.shape} and {len(moved)} shifts do not belong together")
    if not np.isin(indicator, (0.0, 1.0)).all() or not np.isfinite(moved).all():
        raise ValueError("an answer carries an attribute (1) or not (0), and shifts are finite")
    return np.exp(indicator @ moved - np.maximum(moved, 0).sum())


def rejection_sample(
    draw: Callable[[Sequence[int], int], Sequence[Answer]],
    carries: Callable[[Answer], Sequence[float]],
    shift: ArrayLike,
    n_prompts: int,
    most_draws: int,
    seed: int = 0,
) -> Kept[Answer]:
    """One exact answer of the tilted policy for each prompt, by drawing until one is accepted.

    Parameters
    ----------
    draw : function of (prompts, round)
        One fresh answer of the policy for each of these prompts (their numbers); rounds differ in randomness.
    carries : function of an answer
        1 or 0 for each attribute.
    shift : array of shape (n_attributes,)
        s in log-odds.
    n_prompts : int
    most_draws : int
        Answers drawn for a prompt at most; a prompt that accepted none of them stays without one.
    seed : int
        Of the decisions to accept; those of a prompt depend on its number alone.

    Returns
    -------
    Kept
        Exact for the prompts that have an answer. A prompt waits 1 / (its acceptance rate) draws on average.

    Raises
    ------
    ValueError
        No prompt, or fewer draws than one.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "for an attribute of the whole text ... a rejection step".

    Examples
    --------
    A policy that shouts in every other round, tilted so far that no shout is kept:

    >>> kept = rejection_sample(
    ...     lambda prompts, number: ["Yes!" if number % 2 == 0 else "Yes." for _ in prompts],
    ...     lambda answer: [float("!" in answer)], shift=[-60.0], n_prompts=2, most_draws=5
    ... )
    >>> kept.answers, kept.acceptance_rate
    (['Yes.', 'Yes.'], 0.5)
    """
    if n_prompts < 1 or most_draws < 1:
        raise ValueError(f"{n_prompts} prompts and {most_draws} draws: at least one of each is needed")
    moved = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    chances = np.stack([np.random.default_rng([seed, i]).random(most_draws) for i in range(n_prompts)])
    answers: list[Answer | None] = [None] * n_prompts
    values = np.full((n_prompts, len(moved)), np.nan)
    waiting, n_drawn = list(range(n_prompts)), 0
    for number in range(most_draws):
        drawn = draw(waiting, number)
        n_drawn += len(waiting)
        found = np.array([carries(answer) for answer in drawn], dtype=np.float64).reshape(len(drawn), -1)
        accepted = chances[waiting, number] < acceptance_probability(found, moved)
        for place in np.flatnonzero(accepted).tolist():
            answers[waiting[place]], values[waiting[place]] = drawn[place], found[place]
        waiting = [prompt for prompt, done in zip(waiting, accepted, strict=True) if not done]
        if not waiting:
            break
    return Kept(answers, values, n_drawn, len(waiting))


def best_of_weights(carries: ArrayLike, shift: ArrayLike) -> NDArray[np.float64]:
    r"""Probability of choosing each of a prompt's n answers: importance resampling among them.

    .. math:: w_i = \exp(s^\top g_i) \Big/ \sum_{j \le n} \exp(s^\top g_j)

    Parameters
    ----------
    carries : array of shape (n_prompts, n_answers, n_attributes)
        Independent answers of the policy.
    shift : array of shape (n_attributes,)

    Returns
    -------
    array of shape (n_prompts, n_answers)
        Rows add up to 1. Not the tilted policy itself: where all n answers are of one kind there is nothing to
        choose, so the rate stays between the policy's and the tilted policy's; `best_of_rate` says where.

    Examples
    --------
    >>> best_of_weights([[[1], [1], [1], [0]]], [-np.log(3)]).round(3)
    array([[0.167, 0.167, 0.167, 0.5  ]])
    """
    indicator = np.asarray(carries, dtype=np.float64)
    moved = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    if indicator.ndim != 3 or indicator.shape[2] != len(moved):
        raise ValueError(f"carries of shape {indicator.shape} and {len(moved)} shifts do not belong together")
    return softmax(indicator @ moved, axis=1)


def best_of_rate(rate: float, shift: float, n: int) -> float:
    r"""Rate of one attribute in best-of-n answers of a policy that carries it at this rate.

    .. math:: \sum_{k=0}^{n} \binom{n}{k} p^k (1-p)^{n-k} \frac{k e^s}{k e^s + n - k}

    Parameters
    ----------
    rate : float
        p at one prompt.
    shift : float
        s in log-odds.
    n : int
        Answers drawn.

    Returns
    -------
    float
        p for n = 1; tends to the tilted policy's rate as n grows.

    Examples
    --------
    A policy at 0.9 that is asked for 0.5 needs many answers to come close:

    >>> [round(best_of_rate(0.9, -np.log(9), n), 3) for n in (1, 4, 16, 64, 256)]
    [0.9, 0.734, 0.574, 0.518, 0.504]
    """
    from scipy.stats import binom  # slow to import

    if n < 1 or not 0 <= rate <= 1:
        raise ValueError(f"n = {n} answers at a rate of {rate:g}: n is at least 1 and a rate lies in [0, 1]")
    k = np.arange(n + 1)
    weight = k * np.exp(min(shift, 0.0))
    return float(binom.pmf(k, n, rate) @ (weight / (weight + (n - k) * np.exp(min(-shift, 0.0)))))
