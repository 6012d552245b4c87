"""What an anchor reads a policy's rate from: probabilities at a place, or the share of sampled answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from badpo.anchoring.editors import Cell, CounterfactualEditor, SignatureSwap, all_cells, carries
from badpo.anchoring.sampling import ChoiceScorer
from badpo.readouts.generation import Generation
from badpo.theory.summaries import Interval, cluster_mean, wilson_interval


@dataclass(frozen=True)
class RateTable:
    """A policy's rates with the choices that they are made of.

    Attributes
    ----------
    attributes : tuple of str
    log_probs : array of shape (n_prompts, n_choices)
        As `badpo.theory.tilt` takes them.
    carries : array of shape (n_choices, n_attributes)
    n_answers : int or None
        Answers that were counted, where the rates are shares of sampled answers and there is a single row; None where
        they are probabilities, one row for each prompt.
    """

    attributes: tuple[str, ...]
    log_probs: NDArray[np.float64]
    carries: NDArray[np.float64]
    n_answers: int | None = None

    @property
    def rate(self) -> NDArray[np.float64]:
        """Rate of each attribute, shape (n_attributes,)."""
        return (softmax(self.log_probs, axis=1) @ self.carries).mean(axis=0)

    def intervals(self) -> tuple[Interval, ...]:
        """The rate of each attribute with its interval: over prompts, or Wilson's over counted answers."""
        if self.n_answers is not None:
            n = self.n_answers
            return tuple(wilson_interval(round(float(rate) * n), n) for rate in self.rate)
        per_prompt = softmax(self.log_probs, axis=1) @ self.carries
        return tuple(cluster_mean(column) for column in per_prompt.T)

    def of(self, attributes: Sequence[str]) -> RateTable:
        """The table of some of the attributes."""
        columns = [self.attributes.index(name) for name in attributes]
        return RateTable(tuple(attributes), self.log_probs, self.carries[:, columns], self.n_answers)


def signature_rates(policy, tokenizer, contexts: Sequence[Sequence[int]], editor: SignatureSwap) -> RateTable:
    """Rates at the signature: the probability of every name of the pool after every context.

    Of two names of which one begins the other (Malik, Malika), the shorter counts where the policy does not go on to
    the longer one. The paper's readout counts the longer one under both.
    """
    names = list(editor.names)
    carries = np.array([editor.names[name] for name in names], dtype=np.float64)
    logs = ChoiceScorer(policy, tokenizer, names).name_logps(contexts)
    return RateTable(tuple(a.name for a in editor.attributes), logs, carries)


def counted_rates(cells: Sequence[Cell], attributes: Sequence[str]) -> RateTable:
    """Rates of attributes of whole answers: the shares of the cells among sampled answers.

    Examples
    --------
    >>> table = counted_rates([(1,), (0,), (0,), (0,)], ["markdown"])
    >>> table.rate, table.n_answers
    (array([0.25]), 4)
    """
    choices = all_cells(len(attributes))
    counts = np.array([sum(cell == choice for cell in cells) for choice in choices], dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(counts / counts.sum())
    return RateTable(tuple(attributes), logs[None], np.array(choices, dtype=np.float64), len(cells))


def answer_rates(answers: Sequence[Generation], editor: CounterfactualEditor) -> RateTable:
    """Rates of an editor's attributes among sampled answers, all of which count."""
    cells = [carries(editor, answer.text) for answer in answers]
    return counted_rates(cells, [attribute.name for attribute in editor.attributes])
