"""What an anchor reads a policy's rate from, probabilities at a place or sampled answers, and what else moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from badpo.anchoring.editors import CounterfactualEditor, SignatureSwap, carries
from badpo.anchoring.sampling import whole_name_logps
from badpo.data.attributes import BUILT_IN
from badpo.data.cells import numbered
from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.readouts.generation import Generation
from badpo.readouts.heldout import judgment_margins
from badpo.readouts.sampled import attribute_values, figures, token_counts, told
from badpo.theory import Floats, Ints
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean, clustered_share


@dataclass(frozen=True)
class RateTable:
    """A policy's rates with the choices that they are made of, as `badpo.theory.tilt` takes them.

    Where sampled answers are counted, ``prompts`` has the number of the prompt of each, the first choices are the
    answers, and ``counted`` is their share of all; the others are no choice of the attribute, whatever is reweighted.
    """

    attributes: tuple[str, ...]
    log_probs: Floats
    carries: Floats
    prompts: Ints | None = None
    counted: float | None = None

    @property
    def per_prompt(self) -> Floats:
        """Rate of each attribute at each prompt, shape (n_prompts, n_attributes); NaN where no answer is counted."""
        with np.errstate(invalid="ignore"):
            return softmax(self.log_probs, axis=1) @ self.carries

    @property
    def rate(self) -> Floats:
        """Rate of each attribute, shape (n_attributes,)."""
        return self.per_prompt.mean(axis=0)

    def intervals(self) -> list[Interval]:
        """The rate of each attribute with its interval over prompts."""
        if self.prompts is None:
            return list(map(cluster_mean, self.per_prompt.T))
        return [clustered_share(column, self.prompts) for column in self.carries[: len(self.prompts)].T]

    def of(self, attributes: Sequence[str]) -> RateTable:
        """The table of some of the attributes."""
        columns = [self.attributes.index(name) for name in attributes]
        return replace(self, attributes=tuple(attributes), carries=self.carries[:, columns])


def signature_rates(
    policy, tokenizer, contexts: Sequence[Sequence[int]], editor: SignatureSwap
) -> RateTable:
    """Rates at the signature: the probability of every name of the pool after every context.

    Of two names of which one begins the other (Malik, Malika), the shorter counts where the policy does not go on to
    the longer one. The paper's readout counts the longer one under both.
    """
    logs = whole_name_logps(policy, tokenizer, contexts, list(editor.names))
    return RateTable(tuple(attribute.name for attribute in editor.attributes), logs, editor.carried)


def answer_rates(
    answers: Sequence[Generation], editor: CounterfactualEditor, prompts: ArrayLike
) -> RateTable:
    """Rates of an editor's attributes among the sampled answers that it has cells for, each as likely as the others.

    An answer without a word of a list is on neither side of it. Counted as one without the attribute, it would be what
    a reweighting turns to, and the topic would move instead of the spelling.
    """
    counted = [i for i, answer in enumerate(answers) if editor.cells(answer.text)]
    # a cell that no answer is in is a choice too, and never made
    never = list(product((0, 1), repeat=len(editor.attributes)))
    cells = [carries(editor, answers[i].text) for i in counted] + never
    return RateTable(
        tuple(attribute.name for attribute in editor.attributes),
        np.repeat([[0.0, -np.inf]], [len(counted), len(never)], axis=1),
        np.array(cells, float),
        np.asarray(prompts)[counted],
        len(counted) / len(answers),
    )


@dataclass(frozen=True)
class Behavior:
    """What a policy does on the prompts that are reported on, sampled with the same random numbers for every policy.

    Divergences are from the policy that was anchored, and from the reference where there is one; margins, against the
    reference, on held-out comparisons. They come from the policy's own log-probabilities ("measured"), or are the
    source's plus the tilt ("closed form"). ``judged`` has scores by a reward model, with (rm) and without the attribute
    (rm_minus).
    """

    answers: Sequence[Generation]
    kl_source: Mapping | None = None
    kl_reference: Mapping | None = None
    margins: Floats | None = None
    margins_from: str = "measured"
    judged: Mapping[str, Floats] = field(default_factory=dict)


def moved(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
) -> Json:
    """Every readout of the source and of the anchored policy side by side."""
    sides, numbers = (before, after), numbered(prompts)[0]
    changed = partial(_change, lambda values: cluster_mean(values, numbers))
    sampled = [answer_rates(side.answers, editor, numbers).intervals() for side in sides]
    tokens = changed(*(token_counts(side.answers) for side in sides))
    exchanged = {attribute.config["type"] for attribute in editor.attributes}
    # what nobody asked to move, looked at in every answer
    watched = [
        attribute
        for attribute in (row.make() for row in BUILT_IN.values() if not row.example)
        if attribute.scope == "response" and attribute.config["type"] not in exchanged
    ]
    return {
        "sampled": {
            attribute.name: {
                side: told("rate", found, "low", "high", "n")
                for side, found in zip(("before", "after"), each, strict=True)
            }
            for attribute, *each in zip(editor.attributes, *sampled, strict=True)
        },
        "editable": changed(*([len(editor.cells(a.text)) > 1 for a in side.answers] for side in sides)),
        "ended": changed(*([answer.ended for answer in side.answers] for side in sides)),
        "tokens": {**tokens, "ratio": tokens["after"] / tokens["before"]},
        "kl_source": after.kl_source,
        "kl_reference": {"before": before.kl_reference, "after": after.kl_reference},
        "heldout": _heldout(before.margins, after.margins, judgments),
        "undeclared": {
            attribute.name: changed(
                *(attribute_values(attribute, prompts, side.answers) for side in sides)
            )
            for attribute in watched
        },
        "heldout_from": None if after.margins is None else after.margins_from,
        "judge": {name: changed(before.judged[name], after.judged[name]) for name in after.judged}
        or None,
    }


def _heldout(before: Floats | None, after: Floats | None, judgments: Judgments | None) -> Json | None:
    if before is None or after is None or judgments is None:
        return None
    correct = [judgment_margins(margins, judgments) > 0 for margins in (before, after)]
    cross, prompts = judgments.cross_group().any(axis=1), judgments.prompt_of_votes()
    return {
        "same": _change(lambda values: cluster_mean(values[~cross], prompts[~cross]), *correct),
        "gap": _change(lambda values: cluster_difference(values, cross, prompts), *correct),
    }


def _change(summary: Callable[[Floats], Interval], before: ArrayLike, after: ArrayLike) -> Json:
    """A summary before and after, and of the differences row by row."""
    values = [np.asarray(side, float) for side in (before, after)]
    one, other, change = map(summary, (*values, values[1] - values[0]))
    return figures(
        before=one.estimate,
        after=other.estimate,
        difference=change.estimate,
        ci_low=change.low,
        ci_high=change.high,
    )
