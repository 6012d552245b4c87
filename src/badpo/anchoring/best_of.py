r"""Answers of a policy tilted toward or away from an attribute of the whole text, by rejecting some of its own samples.

No token shows such an attribute before the answer is finished, so whole answers are drawn from the policy and some
are kept. The target is the same tilted policy as everywhere: among the answers that the attribute is a choice of,

.. math:: \pi_s(y \mid x) \propto \pi(y \mid x) \exp(s^\top g(y))

and these together keep the probability that they have. Rejection draws from it exactly, at a price that grows with the
shift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    carries: Callable[[Answer], Sequence[float] | None],
    shift: ArrayLike,
    n_prompts: int,
    most_draws: int,
    seed: int = 0,
) -> Kept[Answer]:
    """One exact answer of the tilted policy for each prompt, by drawing until one is accepted.

    The first draw decides whether the answer is one that the attributes are a choice of, and stays where it is not;
    from then on only those that are can be accepted. The tilt thus never turns to another kind of answer.

    Parameters
    ----------
    draw : function of (prompts, round)
        One fresh answer of the policy for each of these prompts (their numbers); rounds differ in randomness.
    carries : function of an answer
        1 or 0 for each attribute; None for an answer that they are no choice of, which is kept as it comes.
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
        Exact for the prompts that have an answer; ``carries`` is NaN for an answer that is no choice. A prompt waits
        1 / (its acceptance rate) draws on average.

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
        cells = [carries(answer) for answer in drawn]
        is_choice = np.array([cell is not None for cell in cells])
        found = np.full((len(drawn), len(moved)), np.nan)
        for i in np.flatnonzero(is_choice):
            found[i] = cells[i]
        accepted = np.full(len(drawn), number == 0)
        chance = acceptance_probability(found[is_choice], moved)
        accepted[is_choice] = chances[waiting, number][is_choice] < chance
        for place in np.flatnonzero(accepted).tolist():
            answers[waiting[place]], values[waiting[place]] = drawn[place], found[place]
        waiting = [prompt for prompt, done in zip(waiting, accepted, strict=True) if not done]
        if not waiting:
            break
    return Kept(answers, values, n_drawn, len(waiting))
