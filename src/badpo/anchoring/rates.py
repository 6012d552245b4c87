"""What an anchor reads a policy's rate from: probabilities at a place, or the share of sampled answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.anchoring.editors import Cell, CounterfactualEditor, SignatureSwap, all_cells, carries
from badpo.anchoring.sampling import ChoiceScorer
from badpo.data import attributes as declared
from badpo.data.judgments import Judgments
from badpo.data.tables import numbered
from badpo.readouts.generation import Generation
from badpo.readouts.heldout import judgment_margins, judgment_prompts
from badpo.readouts.judge import JudgeReadout
from badpo.readouts.kl import Divergence
from badpo.readouts.sampled import attribute_values, json_number, token_counts
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean, wilson_interval


@dataclass(frozen=True)
class Counted:
    """The answers that a rate is the share of.

    Attributes
    ----------
    values : array of shape (n_counted, n_attributes)
        1 where the answer carries the attribute, else 0.
    prompts : array of shape (n_counted,)
        Number of the prompt of each.
    n_answers : int
        All that were sampled; the others are no choice of the attribute, whatever is reweighted.
    """

    values: NDArray[np.float64]
    prompts: NDArray[np.int64]
    n_answers: int

    @property
    def share(self) -> float:
        """Share of the answers that are counted."""
        return len(self.values) / self.n_answers


@dataclass(frozen=True)
class RateTable:
    """A policy's rates with the choices that they are made of.

    Attributes
    ----------
    attributes : tuple of str
    log_probs : array of shape (n_prompts, n_choices)
        As `badpo.theory.tilt` takes them.
    carries : array of shape (n_choices, n_attributes)
    counted : Counted or None
        The answers, where the rates are shares of sampled ones and there is a single row; None where they are
        probabilities, one row for each prompt.
    """

    attributes: tuple[str, ...]
    log_probs: NDArray[np.float64]
    carries: NDArray[np.float64]
    counted: Counted | None = None

    @property
    def rate(self) -> NDArray[np.float64]:
        """Rate of each attribute, shape (n_attributes,)."""
        return (softmax(self.log_probs, axis=1) @ self.carries).mean(axis=0)

    def intervals(self) -> tuple[Interval, ...]:
        """The rate of each attribute with its interval over prompts; `share_interval` for counted answers."""
        if self.counted is not None:
            return tuple(share_interval(column, self.counted.prompts) for column in self.counted.values.T)
        per_prompt = softmax(self.log_probs, axis=1) @ self.carries
        return tuple(cluster_mean(column) for column in per_prompt.T)

    def of(self, attributes: Sequence[str]) -> RateTable:
        """The table of some of the attributes."""
        columns = [self.attributes.index(name) for name in attributes]
        counted = self.counted
        if counted is not None:
            counted = replace(counted, values=counted.values[:, columns])
        return RateTable(tuple(attributes), self.log_probs, self.carries[:, columns], counted)


def signature_rates(policy, tokenizer, contexts: Sequence[Sequence[int]], editor: SignatureSwap) -> RateTable:
    """Rates at the signature: the probability of every name of the pool after every context.

    Of two names of which one begins the other (Malik, Malika), the shorter counts where the policy does not go on to
    the longer one. The paper's readout counts the longer one under both.
    """
    names = list(editor.names)
    carries = np.array([editor.names[name] for name in names], dtype=np.float64)
    logs = ChoiceScorer(policy, tokenizer, names).name_logps(contexts)
    return RateTable(tuple(a.name for a in editor.attributes), logs, carries)


def counted_rates(
    cells: Sequence[Cell], attributes: Sequence[str], prompts: Sequence[int], n_answers: int
) -> RateTable:
    """Rates of attributes of whole answers: the shares of the cells among counted answers."""
    choices = all_cells(len(attributes))
    counts = np.array([sum(cell == choice for cell in cells) for choice in choices], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(counts / counts.sum())
    values = np.array(cells, dtype=np.float64).reshape(len(cells), len(attributes))
    counted = Counted(values, np.asarray(prompts, dtype=np.int64), n_answers)
    return RateTable(tuple(attributes), logs[None], np.array(choices, dtype=np.float64), counted)


def answer_rates(
    answers: Sequence[Generation], editor: CounterfactualEditor, prompts: Sequence[int] | None = None
) -> RateTable:
    """Rates of an editor's attributes among the sampled answers that it has cells for.

    An answer without a word of a list is on neither side of it. Counted as one without the attribute, it would be what
    a reweighting turns to, and the topic would move instead of the spelling.
    """
    numbers = range(len(answers)) if prompts is None else prompts
    found = [
        (carries(editor, answer.text), prompt)
        for answer, prompt in zip(answers, numbers, strict=True)
        if editor.cells(answer.text)
    ]
    names = [attribute.name for attribute in editor.attributes]
    return counted_rates([cell for cell, _ in found], names, [prompt for _, prompt in found], len(answers))


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


# Attributes that nobody asked to move, looked at in every answer.
WATCHED = (
    declared.Markdown,
    declared.Lists,
    declared.Headers,
    declared.Bold,
    declared.Emoji,
    declared.Code,
    declared.Links,
    declared.Hedging,
    declared.Refusal,
    declared.FirstPerson,
)


@dataclass(frozen=True)
class Behavior:
    """What a policy does on the prompts that are reported on.

    Attributes
    ----------
    answers : list of Generation
        To each prompt as many as to every other, sampled with the same random numbers for every policy.
    kl_source, kl_reference : Divergence or None
        From the policy that was anchored, and from the reference where there is one; None where not measured.
    margins : array of shape (n_comparisons,) or None
        Implicit reward margin on held-out comparisons, against the reference.
    margins_from : {"measured", "closed form"}
        Where they come from: the policy's own log-probabilities, or the source's margins plus the tilt.
    """

    answers: Sequence[Generation]
    kl_source: Divergence | None = None
    kl_reference: Divergence | None = None
    margins: NDArray[np.float64] | None = None
    margins_from: Literal["measured", "closed form"] = "measured"


def moved(
    before: Behavior,
    after: Behavior,
    prompts: Sequence[str],
    editor: CounterfactualEditor,
    judgments: Judgments | None = None,
    judged: tuple[JudgeReadout, JudgeReadout] | None = None,
) -> dict:
    """Every readout of the source and of the anchored policy side by side."""
    texts = [[answer.text for answer in behavior.answers] for behavior in (before, after)]
    editable = [np.array([len(editor.cells(text)) > 1 for text in side], dtype=float) for side in texts]
    tokens = [token_counts(behavior.answers) for behavior in (before, after)]
    ended = [np.array([answer.ended for answer in b.answers], dtype=float) for b in (before, after)]
    return {
        "sampled": _sampled((before, after), prompts, editor),
        "editable": _paired(editable, prompts),
        "ended": _paired(ended, prompts),
        "tokens": {**_paired(tokens, prompts), "ratio": float(tokens[1].mean() / tokens[0].mean())},
        "kl_source": _divergence(after.kl_source),
        "kl_reference": {
            "before": _divergence(before.kl_reference),
            "after": _divergence(after.kl_reference),
        },
        "heldout": _heldout(before.margins, after.margins, judgments),
        "undeclared": _undeclared(before, after, prompts, editor),
        "heldout_from": None if after.margins is None else after.margins_from,
        "judge": None if judged is None else _judged(*judged, prompts),
    }


def tilted_margins(margins: ArrayLike, delta: ArrayLike, tilt: ArrayLike) -> NDArray[np.float64]:
    """Margins of the policy that is tilted in closed form: u + c (g_a - g_b)."""
    return np.asarray(margins, dtype=np.float64) + np.asarray(delta, dtype=np.float64) @ np.asarray(tilt)


def _sampled(sides: Sequence[Behavior], prompts: Sequence[str], editor: CounterfactualEditor) -> dict:
    numbers = numbered(prompts)[0]
    tables = [answer_rates(side.answers, editor, numbers.tolist()) for side in sides]
    before, after = ([_interval(found) for found in table.intervals()] for table in tables)
    return {
        attribute.name: {"before": before[i], "after": after[i]}
        for i, attribute in enumerate(editor.attributes)
    }


def _undeclared(
    before: Behavior, after: Behavior, prompts: Sequence[str], editor: CounterfactualEditor
) -> dict:
    anchored = {attribute.config["type"] for attribute in editor.attributes}
    watched = [attribute for make in WATCHED if (attribute := make()).config["type"] not in anchored]
    return {
        attribute.name: _paired(
            [attribute_values(attribute, prompts, side.answers) for side in (before, after)], prompts
        )
        for attribute in watched
    }


def _heldout(before: NDArray | None, after: NDArray | None, judgments: Judgments | None) -> dict | None:
    if before is None or after is None or judgments is None:
        return None
    correct = [(judgment_margins(margins, judgments) > 0).astype(np.float64) for margins in (before, after)]
    cross = judgments.cross_group().any(axis=1)
    prompts = judgment_prompts(judgments)
    change = correct[1] - correct[0]
    gaps = [cluster_difference(side, cross, prompts).estimate for side in correct]
    same = [cluster_mean(side[~cross], prompts[~cross]).estimate for side in correct]
    return {
        "same": _row(same[0], same[1], cluster_mean(change[~cross], prompts[~cross])),
        "gap": _row(gaps[0], gaps[1], cluster_difference(change, cross, prompts)),
    }


def _judged(before: JudgeReadout, after: JudgeReadout, prompts: Sequence[str]) -> dict:
    found = {"rm": _paired([before.raw.scores, after.raw.scores], prompts)}
    if before.stripped is not None and after.stripped is not None:
        found["rm_minus"] = _paired([before.stripped.scores, after.stripped.scores], prompts)
    return found


def _paired(sides: Sequence[NDArray], prompts: Sequence[str]) -> dict:
    before, after = sides
    change = cluster_mean(after.astype(np.float64) - before, numbered(prompts)[0])
    return _row(before.mean(), after.mean(), change)


def _row(before: float, after: float, difference: Interval) -> dict:
    return {
        "before": json_number(before),
        "after": json_number(after),
        "difference": json_number(difference.estimate),
        "ci_low": json_number(difference.low),
        "ci_high": json_number(difference.high),
    }


def _interval(found: Interval) -> dict:
    return {
        "rate": json_number(found.estimate),
        "low": json_number(found.low),
        "high": json_number(found.high),
        "n": found.n,
    }


def _divergence(found: Divergence | None) -> dict | None:
    return None if found is None else found.to_json()
