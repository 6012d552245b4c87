"""Attribute rates of a policy, from next-token probabilities or sampled answers, and side effects of anchoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from badpo.anchoring.editors import CounterfactualEditor, SignatureSwap, measure_cell
from badpo.anchoring.sampling import whole_name_logps
from badpo.data.attributes import BUILT_IN
from badpo.data.cells import numbered
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.readouts.generation import Generation, TokenIds
from badpo.readouts.heldout import judgment_margins
from badpo.readouts.sampled import (
    Figures,
    attribute_values,
    estimate_figures,
    figures,
    token_counts,
)
from badpo.theory import Floats, Ints
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean, clustered_share


@dataclass(frozen=True)
class RateTable:
    """Log-probabilities and 0/1 attributes of a policy's choices, in the form that `badpo.theory.tilt` uses.

    The policy's choices are either all first names in the name pool, or answers sampled from the policy. A table
    of sampled answers contains only the answers to which the attributes apply; ``counted`` is the share of these
    answers, and ``prompts`` contains the prompt number of each of them. After the columns of the sampled answers, each
    combination of attributes has a column with probability zero, in case no answer has this combination.
    """

    attributes: tuple[str, ...]
    log_probs: Floats
    indicators: Floats
    prompts: Ints | None = None
    counted: float | None = None

    @property
    def per_prompt(self) -> Floats:
        """Each attribute's rate at each prompt, of shape (n_prompts, n_attributes); NaN if no answer is counted."""
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
        """Return the table restricted to some of the attributes."""
        columns = [self.attributes.index(name) for name in attributes]
        return replace(self, attributes=tuple(attributes), indicators=self.indicators[:, columns])


def signature_rates(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[TokenIds],
    editor: SignatureSwap,
) -> RateTable:
    """Compute how often signatures have each attribute, from the probability of every name after each context.

    If one name is the beginning of another name (Malik, Malika), the probability of the shorter name excludes the
    longer name. The paper's readout adds the probability of the longer name to the shorter name too.
    """
    logs = whole_name_logps(policy, tokenizer, contexts, list(editor.names))
    return RateTable(tuple(attribute.name for attribute in editor.attributes), logs, editor.indicators)


def answer_rates(
    answers: Sequence[Generation], editor: CounterfactualEditor, prompts: ArrayLike
) -> RateTable:
    """Measure the rates of an editor's attributes among the sampled answers to which the attributes apply.

    All answers have equal weight. With a word list, an answer that contains none of the listed words does not count,
    because a tilt would otherwise favor answers without these words, and would change the topic of the answers instead
    of the spelling.
    """
    counted = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    # add each combination of attributes as a choice of probability zero, in case no sampled answer has it
    all_cells = list(product((0, 1), repeat=len(editor.attributes)))
    cells = [measure_cell(editor, answers[i].text) for i in counted] + all_cells
    return RateTable(
        tuple(attribute.name for attribute in editor.attributes),
        np.repeat([[0.0, -np.inf]], [len(counted), len(all_cells)], axis=1),
        np.array(cells, float),
        np.asarray(prompts)[counted],
        len(counted) / len(answers),
    )


@dataclass(frozen=True)
class Behavior:
    """A policy's answers to the report prompts, with KL divergences and margins on held-out comparisons.

    All policies are sampled with the same random numbers. ``kl_source`` is the divergence from the source policy.
    ``kl_reference`` is the divergence from the reference, or None without a reference. ``margins`` are margins against
    the reference on held-out comparisons. The margins are computed from the policy's log-probabilities ("measured"), or
    as the margins of the source plus the tilt ("closed form").
    """

    answers: Sequence[Generation]
    kl_source: Figures | None = None
    kl_reference: Figures | None = None
    margins: Floats | None = None
    margins_from: str = "measured"


def compare_behavior(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
) -> Json:
    """Compare all metrics of the anchored policy with the metrics of the source policy."""
    numbers = numbered(prompts)[0]

    def change(measure: Callable[[Sequence[Generation]], ArrayLike]) -> Figures:
        values = measure(before.answers), measure(after.answers)
        return _paired_change(lambda values: cluster_mean(values, numbers), *values)

    rates = [answer_rates(side.answers, editor, numbers).intervals() for side in (before, after)]
    tokens = [float(token_counts(side.answers).mean()) for side in (before, after)]
    anchored = {attribute.config["type"] for attribute in editor.attributes}
    # built-in attributes of a response that the editor does not change
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
    """Compare the same-group accuracy and the held-out gap of two policies; None if a policy has no margins."""
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
    """Summarize values before and after anchoring, and their paired differences."""
    start, end = np.asarray(before, float), np.asarray(after, float)
    difference = summarize(end - start)
    return figures(
        before=summarize(start).estimate,
        after=summarize(end).estimate,
        difference=difference.estimate,
        ci_low=difference.low,
        ci_high=difference.high,
    )
