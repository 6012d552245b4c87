"""Sampling from the tilted policy: redraw the name in a signature, or reject whole answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.anchoring.editors import SignatureSwap
from badpo.readouts.generation import Generation, TokenIds
from badpo.readouts.name_rates import (
    continuation_logps,
    name_token_ids,
    signature_contexts,
    space_tokens,
    trim_contexts,
)
from badpo.theory import Floats
from badpo.theory.tilt import tilted_probabilities


def whole_name_logps(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context_ids: Sequence[TokenIds],
    names: Sequence[str],
) -> Floats:
    """Compute the log-probability that each name is the whole next word, as an array of shape (n_contexts, n_names).

    A name is complete if the next token begins with a space. The probability of "Malik" therefore excludes "Malika",
    and the first letters of a longer word that spell a name (Jay, Jayden) do not count. If longer words counted as the
    name with which they begin, they would make up much of a rare name's probability.
    """
    closing = space_tokens(tokenizer)
    if not closing:
        raise ValueError(
            "no token of this tokenizer begins with a space, so badpo cannot detect the end of a first name"
        )
    n_lead, paths = name_token_ids(tokenizer, names)
    contexts = trim_contexts(tokenizer, context_ids, n_lead)
    logps, closed = continuation_logps(policy, contexts, paths, closing)
    complete = np.exp(closed)
    for column, path in enumerate(paths):
        # a token that ends this name may also continue a longer name
        n = len(path)
        onward = {other[n]: i for i, other in enumerate(paths) if len(other) > n and other[:n] == path}
        for longer in (i for token, i in onward.items() if token in closing):
            complete[:, column] -= np.exp(logps[:, longer, n])
    with np.errstate(divide="ignore"):
        # if the policy always writes a longer name, the probability is a rounding error and may be negative
        whole: Floats = logps.sum(axis=-1) + np.log(np.where(complete > 1e-6, complete, 0.0))
    return whole


def redraw_names(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    answers: Sequence[Generation],
    editor: SignatureSwap,
    shift: ArrayLike,
    seed: int,
) -> tuple[list[Generation], Floats]:
    r"""Sample answers from the tilted policy: redraw the name in each signature and keep the rest of the answer.

    .. math:: \pi_s(n \mid x) = \frac{\pi(n \mid x) \exp(s^\top g_n)}{\sum_{n'} \pi(n' \mid x) \exp(s^\top g_{n'})}

    The sum is over the names of the pool, and the probabilities have temperature 1. Names are drawn for signed
    answers only, so the share of signed answers does not change. The draw for an answer depends only on the seed and
    the index of the answer. The function returns the answers and, for each answer, the log-probability of its name
    under the tilted policy minus that under the policy; this gain is 0 for an answer that is not signed.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "a shift on the choice of the name".
    """
    names = list(editor.names)
    signed = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    tilted_answers, gains = list(answers), np.zeros(len(answers))
    if not signed:
        return tilted_answers, gains
    contexts = signature_contexts([answers[i] for i in signed], tokenizer)
    logps = whole_name_logps(policy, tokenizer, contexts, names)
    plain, tilted = softmax(logps, axis=1), tilted_probabilities(logps, editor.indicators, shift)
    for i, before, after in zip(signed, plain, tilted, strict=True):
        answer, drawn = answers[i], np.random.default_rng([seed, i]).choice(len(names), p=after)
        text = editor.replace_name(answer.text, names[drawn])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        end = answer.token_ids[-1:] if answer.ended else ()
        tilted_answers[i] = replace(answer, text=text, token_ids=(*ids, *end))
        gains[i] = np.log(after[drawn] / before[drawn])
    return tilted_answers, gains


Answer = TypeVar("Answer")


def acceptance_probability(indicators: ArrayLike, shift: ArrayLike) -> Floats:
    r"""Compute the probability that rejection sampling accepts an answer with these 0/1 attributes.

    .. math:: \exp(s^\top g - \max_{g'} s^\top g'), \qquad \max_{g'} s^\top g' = \sum_i \max(s_i, 0)
    """
    s = np.atleast_1d(np.asarray(shift, float))
    return np.asarray(np.exp(np.asarray(indicators, float) @ s - np.maximum(s, 0).sum()))


def rejection_sample(
    draw: Callable[[Sequence[int], int], Sequence[Answer]],
    cell_of: Callable[[Answer], Sequence[float] | None],
    shift: ArrayLike,
    n_prompts: int,
    most_draws: int,
    seed: int = 0,
) -> tuple[list[Answer | None], float]:
    """Sample one answer per prompt from the tilted policy by rejection; return the answers and the acceptance rate.

    If the attributes do not apply to the first answer drawn for a prompt (``cell_of`` returns None), the function
    returns this answer. If the attributes apply to the first draw, only draws to which the attributes apply can be
    accepted. The tilt therefore does not change the share of answers to which the attributes apply. ``draw(prompts,
    number)`` samples new answers to the prompts with these indices. If no draw for a prompt is accepted, the prompt's
    answer is None. If prompts without an accepted draw were left out, the rate would be biased toward prompts with a
    high acceptance rate. The random numbers for a prompt depend only on the seed and on the index of the prompt.

    References
    ----------
    BA-DPO, Appendix `app:anchor_target`: "for an attribute of the whole text ... a rejection step".
    """
    chances = [np.random.default_rng([seed, i]).random(most_draws) for i in range(n_prompts)]
    accepted: dict[int, Answer] = {}
    n_drawn = 0
    for number in range(most_draws):
        waiting = [i for i in range(n_prompts) if i not in accepted]
        if not waiting:
            break
        n_drawn += len(waiting)
        for prompt, answer in zip(waiting, draw(waiting, number), strict=True):
            cell = cell_of(answer)
            limit = float(number == 0) if cell is None else acceptance_probability(cell, shift)
            if chances[prompt][number] < limit:
                accepted[prompt] = answer
    return [accepted.get(i) for i in range(n_prompts)], len(accepted) / n_drawn
