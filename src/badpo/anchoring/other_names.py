"""First names outside of the pool that a policy itself would sign with, to hold the pool's probability in place."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from badpo.anchoring.editors import SignatureSwap
from badpo.anchoring.rates import RateTable
from badpo.readouts.attribute_rate import signature_contexts
from badpo.readouts.generation import Generation, sample

# A first name is over within so many tokens.
NAME_TOKENS = 8


def other_names(
    policy,
    tokenizer,
    answers: Sequence[Generation],
    editor: SignatureSwap,
    seed: int,
    n_draws: int = 4000,
    per_answer: int = 2,
) -> dict[int, list[str]]:
    """Names that are not of the pool, drawn from the policy at temperature 1 where the signature of an answer starts.

    They are what is left of the policy's probability there. Pairs of pool names say nothing about it, so that
    training on them alone lets it grow: into other names, or into no names at all.

    Parameters
    ----------
    policy, tokenizer
    answers : sequence of Generation
        The policy's own.
    editor : SignatureSwap
    seed : int
    n_draws : int
        Names that are drawn in all, spread over the answers that are signed with a name of the pool.
    per_answer : int
        Most names given to an answer; where there are more answers than names, names are used more than once.

    Returns
    -------
    dict of int to list of str
        By the number of the answer; empty where the policy draws names of the pool only.
    """
    signed = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    if not signed:
        return {}
    contexts = signature_contexts([answers[i] for i in signed], tokenizer)
    places = [contexts[k % len(contexts)] for k in range(n_draws)]
    drawn = sample(policy, tokenizer, places, NAME_TOKENS, temperature=1.0, top_p=1.0, seed=seed)
    firsts = [generation.text.split(maxsplit=1)[:1] for generation in drawn]
    others = [first[0] for first in firsts if first and first[0] not in editor.names]
    if not others:
        return {}
    draw = random.Random(seed)
    return {i: draw.sample(others, min(per_answer, len(others))) for i in signed}


def pool_shift(table: RateTable, shift: ArrayLike) -> float:
    r"""Shift of the pool as a whole that keeps its probability where it is when its names are shifted.

    .. math:: -\frac{1}{n} \sum_x \log \frac{\sum_y \pi(y \mid x) \exp(s^\top g_y)}{\sum_y \pi(y \mid x)}

    Examples
    --------
    >>> table = RateTable(("woman",), np.log([[0.9, 0.1]]), np.array([[1.0], [0.0]]))
    >>> round(pool_shift(table, [-np.log(9)]), 3)
    1.609
    """
    tilted = table.log_probs + table.carries @ np.atleast_1d(np.asarray(shift, dtype=np.float64))
    return float((logsumexp(table.log_probs, axis=1) - logsumexp(tilted, axis=1)).mean())
