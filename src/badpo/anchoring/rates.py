"""What an anchor reads a policy's rate from, probabilities at a place or sampled answers, and what else moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.anchoring.editors import CounterfactualEditor, SignatureSwap, carries
from badpo.anchoring.sampling import whole_name_logps
from badpo.data.attributes import BUILT_IN
from badpo.data.judgments import Judgments
from badpo.data.tables import numbered
from badpo.readouts.generation import Generation
from badpo.readouts.heldout import judgment_margins, judgment_prompts
from badpo.readouts.sampled import attribute_values, figures, share_figures, token_counts
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean, wilson_interval


@dataclass(frozen=True)
class RateTable:
    """A policy's rates with the choices that they are made of.

    Attributes
    ----------
    attributes : tuple of str
    log_probs : array of shape (n_prompts, n_choices)
        As `badpo.theory.tilt` takes them.
    carries : array of shape (n_choices, n_attributes)
    prompts : array of shape (n_counted,) or None
        Where sampled answers are counted, the number of the prompt of each; the first choices are the answers.
    counted : float or None
        Their share of all sampled answers; the others are no choice of the attribute, whatever is reweighted.
    """

    attributes: tuple[str, ...]
    log_probs: NDArray[np.float64]
    carries: NDArray[np.float64]
    prompts: NDArray[np.int64] | None = None
    counted: float | None = None

    @property
    def rate(self) -> NDArray[np.float64]:
        """Rate of each attribute, shape (n_attributes,)."""
        with np.errstate(invalid="ignore"):  # NaN where no answer is counted
            return (softmax(self.log_probs, axis=1) @ self.carries).mean(axis=0)

    def intervals(self) -> tuple[Interval, ...]:
        """The rate of each attribute with its interval over prompts; `share_interval` for counted answers."""
        if self.prompts is not None:
            return tuple(
                share_interval(column, self.prompts) for column in self.carries[: len(self.prompts)].T
            )
        per_prompt = softmax(self.log_probs, axis=1) @ self.carries
        return tuple(cluster_mean(column) for column in per_prompt.T)

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
    cells = np.array(list(editor.names.values()), dtype=np.float64)
    return RateTable(tuple(a.name for a in editor.attributes), logs, cells)


def answer_rates(
    answers: Sequence[Generation], editor: CounterfactualEditor, prompts: Iterable[int]
) -> RateTable:
    """Rates of an editor's attributes among the sampled answers that it has cells for, each as likely as the others.

    An answer without a word of a list is on neither side of it. Counted as one without the attribute, it would be what
    a reweighting turns to, and the topic would move instead of the spelling.
    """
    found = [
        (carries(editor, answer.text), prompt)
        for answer, prompt in zip(answers, prompts, strict=True)
        if editor.cells(answer.text)
    ]
    # a cell that no answer is in is a choice too, and never made
    never = list(product((0, 1), repeat=len(editor.attributes)))
    return RateTable(
        tuple(attribute.name for attribute in editor.attributes),
        np.array([[0.0] * len(found) + [-np.inf] * len(never)]),
        np.array([cell for cell, _ in found] + never, dtype=np.float64),
        np.array([prompt for _, prompt in found], dtype=np.int64),
        len(found) / len(answers),
    )


def share_interval(values: ArrayLike, prompts: ArrayLike) -> Interval:
    """Share of answers with its interval, several answers to a prompt being no independent evidence."""
    ones, where = np.asarray(values, dtype=np.float64), np.asarray(prompts)
    n_prompts = len(np.unique(where))
    if n_prompts == len(ones):
        return wilson_interval(int(ones.sum()), len(ones))
    if ones.min() == ones.max():
        return wilson_interval(int(ones[0]) * n_prompts, n_prompts)
    found = cluster_mean(ones, where)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


@dataclass(frozen=True)
class Behavior:
    """What a policy does on the prompts that are reported on.

    Attributes
    ----------
    answers : list of Generation
        To each prompt as many as to every other, sampled with the same random numbers for every policy.
    kl_source, kl_reference : dict or None
        Divergence from the policy that was anchored, and from the reference where there is one.
    margins : array of shape (n_comparisons,) or None
        Implicit reward margin on held-out comparisons, against the reference.
    margins_from : {"measured", "closed form"}
        Where they come from: the policy's own log-probabilities, or the source's margins plus the tilt.
    judged : dict of arrays
        Scores of the answers by a reward model, as they are (rm) and without the attribute (rm_minus).
    """

    answers: Sequence[Generation]
    kl_source: Mapping | None = None
    kl_reference: Mapping | None = None
    margins: NDArray[np.float64] | None = None
    margins_from: str = "measured"
    judged: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def moved(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
) -> dict[str, Any]:
    """Every readout of the source and of the anchored policy side by side."""
    sides = (before, after)
    numbers = numbered(prompts)[0]
    sampled = [answer_rates(side.answers, editor, numbers.tolist()).intervals() for side in sides]
    names = [attribute.name for attribute in editor.attributes]
    exchanged = {attribute.config["type"] for attribute in editor.attributes}
    # what nobody asked to move, looked at in every answer
    plain = [row.make() for row in BUILT_IN.values() if not row.example]
    watched = [
        attribute
        for attribute in plain
        if attribute.scope == "response" and attribute.config["type"] not in exchanged
    ]

    def paired(one: ArrayLike, other: ArrayLike) -> dict[str, Any]:
        one, other = (np.asarray(values, dtype=np.float64) for values in (one, other))
        return _change(one.mean(), other.mean(), cluster_mean(other - one, numbers))

    tokens = paired(*(token_counts(side.answers) for side in sides))
    return {
        "sampled": {
            name: {"before": share_figures(one), "after": share_figures(other)}
            for name, one, other in zip(names, *sampled, strict=True)
        },
        "editable": paired(*([len(editor.cells(a.text)) > 1 for a in side.answers] for side in sides)),
        "ended": paired(*([answer.ended for answer in side.answers] for side in sides)),
        "tokens": {**tokens, "ratio": tokens["after"] / tokens["before"]},
        "kl_source": after.kl_source,
        "kl_reference": {"before": before.kl_reference, "after": after.kl_reference},
        "heldout": _heldout(before.margins, after.margins, judgments),
        "undeclared": {
            attribute.name: paired(
                *(attribute_values(attribute, prompts, side.answers) for side in sides)
            )
            for attribute in watched
        },
        "heldout_from": None if after.margins is None else after.margins_from,
        "judge": {name: paired(before.judged[name], after.judged[name]) for name in after.judged}
        or None,
    }


def _heldout(before: NDArray | None, after: NDArray | None, judgments: Judgments | None) -> dict | None:
    if before is None or after is None or judgments is None:
        return None
    correct = [
        (judgment_margins(margins, judgments) > 0).astype(np.float64) for margins in (before, after)
    ]
    cross = judgments.cross_group().any(axis=1)
    prompts = judgment_prompts(judgments)
    change = correct[1] - correct[0]
    gap, new_gap = (cluster_difference(side, cross, prompts).estimate for side in correct)
    same, new_same = (side[~cross].mean() if (~cross).any() else np.nan for side in correct)
    return {
        "same": _change(same, new_same, cluster_mean(change[~cross], prompts[~cross])),
        "gap": _change(gap, new_gap, cluster_difference(change, cross, prompts)),
    }


def _change(before: float, after: float, difference: Interval) -> dict[str, Any]:
    ends = {"ci_low": difference.low, "ci_high": difference.high}
    return figures(before=before, after=after, difference=difference.estimate, **ends)
