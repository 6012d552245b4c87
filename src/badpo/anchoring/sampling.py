"""The tilted policy by sampling: another name drawn behind an answer's signature, or whole answers rejected."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from badpo.anchoring.editors import SignatureSwap
from badpo.readouts.generation import Generation
from badpo.readouts.rates import (
    continuation_logps,
    name_token_ids,
    signature_contexts,
    space_tokens,
    without_tail,
)
from badpo.theory import Floats
from badpo.theory.tilt import tilted_probabilities


def whole_name_logps(
    policy, tokenizer, context_ids: Sequence[Sequence[int]], names: Sequence[str]
) -> Floats:
    """Log-probability of completing every name and none that it begins, shape (n_contexts, n_names).

    A name is complete when the next token begins with a space. "Malik" then holds nothing of "Malika", and the
    beginning of a longer word that happens to spell a name (Jay, Jayden) counts for none; with names that a policy
    hardly ever writes, such beginnings are much of what their tokens alone would count.
    """
    closing = space_tokens(tokenizer)
    if not closing:
        raise ValueError(
            "no token of this tokenizer begins with a space, so no name would ever be complete before a surname"
        )
    n_lead, paths = name_token_ids(tokenizer, names)
    contexts = without_tail(tokenizer, context_ids, n_lead)
    logps, closed = continuation_logps(policy, contexts, paths, closing)
    complete = np.exp(closed)
    for column, path in enumerate(paths):
        # a token that closes this name may go on to longer ones instead
        n = len(path)
        onward = {other[n]: i for i, other in enumerate(paths) if len(other) > n and other[:n] == path}
        for longer in (i for token, i in onward.items() if token in closing):
            complete[:, column] -= np.exp(logps[:, longer, n])
    with np.errstate(divide="ignore"):
        # a name that is always left for a longer one leaves rounding error of either sign
        return logps.sum(axis=-1) + np.log(np.where(complete > 1e-6, complete, 0.0))


def redrawn_names(
    policy,
    tokenizer,
    answers: Sequence[Generation],
    editor: SignatureSwap,
    shift: ArrayLike,
    seed: int,
) -> tuple[list[Generation], Floats]:
    r"""Answers of the tilted policy: the name of a signature is drawn anew, everything else is the policy's own.

    .. math:: \pi_s(n \mid x) = \frac{\pi(n \mid x) \exp(s^\top g_n)}{\sum_{n'} \pi(n' \mid x) \exp(s^\top g_{n'})}

    over the names of the pool, whatever the temperature that the answers were sampled at. Whether an answer is signed,
    its surname and its end do not depend on the name, so how often the policy signs stays as it was. The draw for an
    answer is a function of the seed and its place alone. Beside the answers stands the gain of each in log-probability
    under the tilted policy, 0 where it is not signed and stays.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "a shift on the choice of the name".
    """
    names = list(editor.names)
    signed = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    found, gains = list(answers), np.zeros(len(answers))
    if not signed:
        return found, gains
    contexts = signature_contexts([answers[i] for i in signed], tokenizer)
    logps = whole_name_logps(policy, tokenizer, contexts, names)
    plain, tilted = softmax(logps, axis=1), tilted_probabilities(logps, editor.carried, shift)
    for i, before, after in zip(signed, plain, tilted, strict=True):
        answer, drawn = answers[i], np.random.default_rng([seed, i]).choice(len(names), p=after)
        text = editor.signed_as(answer.text, names[drawn])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        end = answer.token_ids[-1:] if answer.ended else ()
        found[i] = replace(answer, text=text, token_ids=(*ids, *end))
        gains[i] = np.log(after[drawn] / before[drawn])
    return found, gains


Answer = TypeVar("Answer")


def acceptance_probability(carries: ArrayLike, shift: ArrayLike) -> Floats:
    r"""Probability with which rejection keeps an answer that carries these attributes.

    .. math:: \exp(s^\top g - \max_{g'} s^\top g'), \qquad \max_{g'} s^\top g' = \sum_i \max(s_i, 0)
    """
    moved = np.atleast_1d(np.asarray(shift, float))
    return np.exp(np.asarray(carries, float) @ moved - np.maximum(moved, 0).sum())


def rejection_sample(
    draw: Callable[[Sequence[int], int], Sequence[Answer]],
    carries: Callable[[Answer], Sequence[float] | None],
    shift: ArrayLike,
    n_prompts: int,
    most_draws: int,
    seed: int = 0,
) -> tuple[list[Answer | None], float]:
    """One exact answer of the tilted policy for each prompt, by drawing until one is accepted, and the share accepted.

    The first draw decides whether the answer is one that the attributes are a choice of (``carries`` gives None where
    it is not), and stays where it is not; from then on only those that are can be accepted. The tilt thus never turns
    to another kind of answer. ``draw`` gives fresh answers to the numbered prompts, other ones in each round. A prompt
    that accepted none of its draws has None: leaving those out makes the rate lean toward prompts that accept easily.
    What is accepted of a prompt depends on its number alone.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "for an attribute of the whole text ... a rejection step".
    """
    chances = [np.random.default_rng([seed, i]).random(most_draws) for i in range(n_prompts)]
    kept: dict[int, Answer] = {}
    n_drawn = 0
    for number in range(most_draws):
        waiting = [i for i in range(n_prompts) if i not in kept]
        if not waiting:
            break
        n_drawn += len(waiting)
        for prompt, answer in zip(waiting, draw(waiting, number), strict=True):
            cell = carries(answer)
            limit = float(number == 0) if cell is None else acceptance_probability(cell, shift)
            if chances[prompt][number] < limit:
                kept[prompt] = answer
    return [kept.get(i) for i in range(n_prompts)], len(kept) / n_drawn
