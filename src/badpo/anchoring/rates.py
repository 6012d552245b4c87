"""What an anchor reads a policy's rate from: probabilities at a place, or the share of sampled answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from badpo.anchoring.editors import Cell, CounterfactualEditor, SignatureSwap, all_cells, carries
from badpo.anchoring.sampling import ChoiceScorer
from badpo.readouts.generation import Generation
from badpo.theory.summaries import Interval, cluster_mean, wilson_interval


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
