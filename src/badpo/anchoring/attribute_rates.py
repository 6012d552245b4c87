"""Measure a policy's attribute rates, sample from the tilted policy, and measure side effects of anchoring.

Attribute rates are computed from next-token probabilities or from sampled answers. To sample from the tilted policy,
badpo redraws the name in each signature, or draws whole answers by rejection sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.anchoring.editors import CounterfactualEditor, SignatureSwap, measure_cell
from badpo.data.attributes import BUILT_IN
from badpo.data.cells import numbered
from badpo.data.judgments import Judgments
from badpo.readouts.generation import Generation, TokenIds
from badpo.readouts.heldout import judgment_margins
from badpo.readouts.name_rates import (
    continuation_logps,
    name_token_ids,
    signature_contexts,
    space_tokens,
    trim_contexts,
)
from badpo.readouts.sampled import (
    Figures,
    attribute_values,
    estimate_figures,
    figures,
    token_counts,
)
from badpo.theory import Floats, Ints
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean, clustered_share
from badpo.theory.tilt import tilted_probabilities

# -- rates --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateTable:
    """Log-probabilities and 0/1 attributes of a policy's choices, in the format of `badpo.theory.tilt`.

    The policy's choices are either all first names in the name pool, or answers sampled from the policy. A table of
    sampled answers contains only answers to which the attributes apply. ``counted`` is the share of such answers, and
    ``prompts`` contains the index of each answer's prompt. The table also has a row of probability zero for every
    combination of attributes, so that no combination is missing.
    """

    attributes: tuple[str, ...]
    log_probs: Floats
    indicators: Floats
    prompts: Ints | None = None
    counted: float | None = None

    @property
    def per_prompt(self) -> Floats:
        """Rate of each attribute at each prompt, shape (n_prompts, n_attributes); NaN if no answer is counted."""
        with np.errstate(invalid="ignore"):
            rates: Floats = softmax(self.log_probs, axis=1) @ self.indicators
        return rates

    @property
    def rate(self) -> Floats:
        """Rate of each attribute, shape (n_attributes,)."""
        return np.asarray(self.per_prompt.mean(axis=0))

    def intervals(self) -> list[Interval]:
        """Compute the rate of each attribute with its 95 % confidence interval, clustered by prompt."""
        if self.prompts is None:
            return list(map(cluster_mean, self.per_prompt.T))
        return [
            clustered_share(column, self.prompts) for column in self.indicators[: len(self.prompts)].T
        ]

    def select(self, attributes: Sequence[str]) -> RateTable:
        """Return a copy of the table with only the given attributes."""
        columns = [self.attributes.index(name) for name in attributes]
        return replace(self, attributes=tuple(attributes), indicators=self.indicators[:, columns])


def whole_name_logps(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context_ids: Sequence[TokenIds],
    names: Sequence[str],
) -> Floats:
    """Compute the log-probability that each name is the whole next word, as an array of shape (n_contexts, n_names).

    A name is complete if the next token begins with a space. The probability of "Malik" therefore excludes "Malika",
    and the probability of "Jay" excludes "Jayden". If longer words counted too, a rare name would get much of its
    probability from words that begin with the name.
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
        # a token that begins with a space may also continue a longer name
        n = len(path)
        onward = {other[n]: i for i, other in enumerate(paths) if len(other) > n and other[:n] == path}
        for longer in (i for token, i in onward.items() if token in closing):
            complete[:, column] -= np.exp(logps[:, longer, n])
    with np.errstate(divide="ignore"):
        # if the policy always writes a longer name, the probability of the shorter name may be slightly negative
        whole: Floats = logps.sum(axis=-1) + np.log(np.where(complete > 1e-6, complete, 0.0))
    return whole


def signature_rates(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[TokenIds],
    editor: SignatureSwap,
) -> RateTable:
    """Compute the rate of each attribute in signatures, from the probability of every name after each context.

    If a name is a prefix of another name, as "Malik" is of "Malika", the probability of the shorter name excludes the
    longer name. In the paper's readout, the probability of the shorter name includes the longer name.
    """
    logs = whole_name_logps(policy, tokenizer, contexts, list(editor.names))
    return RateTable(tuple(attribute.name for attribute in editor.attributes), logs, editor.indicators)


def answer_rates(
    answers: Sequence[Generation], editor: CounterfactualEditor, prompts: ArrayLike
) -> RateTable:
    """Measure the rates of an editor's attributes in sampled answers, among the answers to which the attributes apply.

    All answers have equal weight. With a word list, answers that contain none of the listed words are excluded.
    If answers without any listed word counted, a tilt could favor them and change the topic of the answers instead of
    the spelling.
    """
    counted = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    # for every combination of attributes, add a row of probability zero, so that no combination is missing
    all_cells = list(product((0, 1), repeat=len(editor.attributes)))
    cells = [measure_cell(editor, answers[i].text) for i in counted] + all_cells
    return RateTable(
        tuple(attribute.name for attribute in editor.attributes),
        np.repeat([[0.0, -np.inf]], [len(counted), len(all_cells)], axis=1),
        np.array(cells, float),
        np.asarray(prompts)[counted],
        len(counted) / len(answers),
    )


# -- samples from the tilted policy -------------------------------------------------------------------------------


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
    accepts this answer. If the attributes apply to the first answer, the function accepts only answers to which they
    apply. The tilt therefore does not change the share of answers to which the attributes apply.
    ``draw(prompts, number)`` samples new answers to the prompts with these indices. If no answer to a prompt is
    accepted, the result for the prompt is None. A rate that omits the prompts without an accepted answer would be
    biased toward prompts with a high acceptance rate. The random numbers that accept or reject the answers to a prompt
    depend only on the seed and on the index of the prompt.

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


# -- side effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Behavior:
    """A policy's answers to the report prompts, its KL divergences, and its margins on held-out comparisons.

    All policies are sampled with the same random numbers. ``kl_source`` is the divergence from the source policy.
    ``kl_reference`` is the divergence from the reference, or None without a reference. ``margins`` are margins against
    the reference on held-out comparisons. ``margins_from`` is "measured" if the margins were computed from the policy's
    log-probabilities, and "closed form" if they were computed as the margins of the source plus the tilt.
    """

    answers: Sequence[Generation]
    kl_source: Figures | None = None
    kl_reference: Figures | None = None
    margins: Floats | None = None
    margins_from: str = "measured"


class Changes(TypedDict):
    """Metrics of a policy before and after anchoring, with paired differences."""

    sampled: dict[str, dict[str, Figures]]
    editable: Figures
    ended: Figures
    tokens: Figures
    kl_source: Figures | None
    kl_reference: dict[str, Figures | None]
    heldout: dict[str, Figures] | None
    undeclared: dict[str, Figures]
    heldout_from: str | None


def compare_behavior(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
) -> Changes:
    """Compare the anchored policy with the source policy in all metrics."""
    numbers = numbered(prompts)[0]

    def change(measure: Callable[[Sequence[Generation]], ArrayLike]) -> Figures:
        values = measure(before.answers), measure(after.answers)
        return _paired_change(lambda values: cluster_mean(values, numbers), *values)

    rates = [answer_rates(side.answers, editor, numbers).intervals() for side in (before, after)]
    tokens = [float(token_counts(side.answers).mean()) for side in (before, after)]
    anchored = {attribute.config["type"] for attribute in editor.attributes}
    # the built-in response attributes that the editor does not change
    others = [
        attribute
        for attribute in (row.make() for row in BUILT_IN.values() if not row.example)
        if attribute.scope == "response" and attribute.config["type"] not in anchored
    ]
    return {
        "sampled": {
            attribute.name: {
                side: estimate_figures("rate", rate, "low", "high", "n")
                for side, rate in zip(("before", "after"), pair, strict=True)
            }
            for attribute, *pair in zip(editor.attributes, *rates, strict=True)
        },
        "editable": change(lambda answers: [len(editor.cells(a.text)) > 1 for a in answers]),
        "ended": change(lambda answers: [answer.ended for answer in answers]),
        "tokens": change(token_counts) | {"ratio": tokens[1] / tokens[0]},
        "kl_source": after.kl_source,
        "kl_reference": {"before": before.kl_reference, "after": after.kl_reference},
        "heldout": _heldout(before.margins, after.margins, judgments),
        "undeclared": {
            attribute.name: change(partial(attribute_values, attribute, prompts)) for attribute in others
        },
        "heldout_from": None if after.margins is None else after.margins_from,
    }


def _heldout(
    before: Floats | None, after: Floats | None, judgments: Judgments | None
) -> dict[str, Figures] | None:
    """Compare the same-group accuracies and the gaps of two policies; return None if a policy has no margins."""
    if before is None or after is None or judgments is None:
        return None
    correct = [judgment_margins(margins, judgments) > 0 for margins in (before, after)]
    cross, prompts = judgments.cross_group().any(axis=1), judgments.prompt_of_votes()
    return {
        "same": _paired_change(lambda values: cluster_mean(values[~cross], prompts[~cross]), *correct),
        "gap": _paired_change(lambda values: cluster_difference(values, cross, prompts), *correct),
    }


def _paired_change(
    summarize: Callable[[Floats], Interval], before: ArrayLike, after: ArrayLike
) -> Figures:
    """Summarize the values before anchoring, the values after anchoring, and the paired differences."""
    start, end = np.asarray(before, float), np.asarray(after, float)
    difference = summarize(end - start)
    return figures(
        before=summarize(start).estimate,
        after=summarize(end).estimate,
        difference=difference.estimate,
        ci_low=difference.low,
        ci_high=difference.high,
    )
