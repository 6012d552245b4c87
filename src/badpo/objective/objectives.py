r"""Objectives: the weight of every judgment of an optimizer step, and what the weighted sum is divided by.

An objective is called once per optimizer step, before the forward passes, with the judgments of the whole step:

.. math:: \mathcal{L} = \frac{1}{n} \sum_j w_j \ell_j, \qquad (w, n) = \text{objective}(\text{step})

so that the loss depends on the judgments of the step and on nothing about its micro-batches or processes. Every
process calls it with its own share of the step; the normalisers of the shares are added up.

Three more things may differ from one objective to another: which tokens of a response count, what one judgment costs,
and what is learned from the losses of a step. `VoteWeights` says what they are in DPO and BA-DPO; another objective
extends it and says what it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from badpo.theory.likelihood import judgment_loss


@dataclass(frozen=True)
class Step:
    """The judgments of one optimizer step, in the order of its micro-batches.

    Attributes
    ----------
    sign : Tensor of shape (n_judgments,)
        +1 where response a was chosen, -1 where b was.
    annotator : Tensor of shape (n_judgments,), integers
        Index of the annotator; -1 for one the bias term does not know.
    delta : Tensor of shape (n_judgments, n_attributes)
        Attribute difference a minus b.
    vote_weight : Tensor of shape (n_judgments,)
        The weight the votes table gives each judgment; 1 unless stated there.

    Examples
    --------
    >>> batch = {"sign": torch.tensor([1.0]), "annotator": torch.tensor([0]), "delta": torch.tensor([[1.0]]),
    ...          "weight": torch.tensor([1.0])}
    >>> len(Step.of([batch, batch]))
    2
    """

    sign: Tensor
    annotator: Tensor
    delta: Tensor
    vote_weight: Tensor

    @classmethod
    def of(cls, batches: Sequence[Mapping[str, Tensor]]) -> Step:
        """The step made of micro-batches with the keys ``sign``, ``annotator``, ``delta`` and ``weight``."""
        columns = (
            torch.cat([batch[name] for batch in batches]) for name in ("sign", "annotator", "delta", "weight")
        )
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.sign)


class Objective(Protocol):
    """What the trainer asks of an objective; its state is saved with every checkpoint.

    Attributes
    ----------
    in_log_odds : bool
        Whether theta is in log-odds, so that it may start at an estimate made from the votes.
    weighs_tokens : bool
        Whether `token_weights` is to be asked.
    """

    in_log_odds: bool
    weighs_tokens: bool

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Weights (n_judgments,) and the normaliser (), both float64."""
        ...

    def token_weights(
        self, lengths: NDArray[np.int64], comparison: NDArray[np.int64], step: int
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """What each token's log-ratio counts in the margin, of response a and of response b of each comparison.

        Parameters
        ----------
        lengths : int array of shape (n_comparisons, 2)
            Tokens of response a and of response b.
        comparison : int array of shape (n_comparisons,)
            Their places in the training data.
        step : int
            Optimizer steps before this one.
        """
        ...

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """What each judgment costs, (n_judgments,); arguments as in `badpo.theory.likelihood.judgment_loss`."""
        ...

    def sums(self, step: Step, losses: Tensor) -> Tensor:
        """What is to be learned from the losses of a share of the step, as sums that processes add up, float64."""
        ...

    def learn(self, sums: Tensor) -> None:
        """Take up the sums of the whole step; called after it, on every process."""
        ...

    def metrics(self) -> dict[str, float]:
        """What the log should tell of the state."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the seed and the step; empty when there is nothing."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state of a checkpoint."""
        ...


class VoteWeights:
    """Every judgment counts as much as the votes table says: plain DPO and BA-DPO.

    With unit weights the loss is the mean over the judgments of the step, Eq. `barp_dpo_loss`; a vote of weight 2
    counts as two equal votes.

    Examples
    --------
    >>> step = Step(sign=torch.ones(2), annotator=torch.zeros(2, dtype=torch.long), delta=torch.zeros(2, 1),
    ...             vote_weight=torch.tensor([1.0, 0.5]))
    >>> VoteWeights()(step)
    (tensor([1.0000, 0.5000], dtype=torch.float64), tensor(1.5000, dtype=torch.float64))
    """

    in_log_odds = True
    weighs_tokens = False

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """The votes' own weights and their sum.

        A share of the step without judgments has the normaliser 0: it adds nothing to the sum over processes.
        """
        weights = step.vote_weight.double()
        return weights, weights.sum()

    def token_weights(
        self, lengths: NDArray[np.int64], comparison: NDArray[np.int64], step: int
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Every token counts 1."""
        return [(np.ones(n_a), np.ones(n_b)) for n_a, n_b in lengths]

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """Negative log-likelihood of each vote, Eq. `barp_dpo_loss`."""
        return judgment_loss(margins, bias_logits, sign)

    def sums(self, step: Step, losses: Tensor) -> Tensor:
        """Empty: nothing is learned."""
        return torch.zeros(0, dtype=torch.float64)

    def learn(self, sums: Tensor) -> None:
        """Nothing: the weights depend on the step alone."""

    def metrics(self) -> dict[str, float]:
        """Empty."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Empty: the weights depend on the step alone."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Accept the empty state.

        Raises
        ------
        ValueError
            The checkpoint was made with an objective that keeps a state.
        """
        if state:
            raise ValueError(
                f"the checkpoint holds the state of another objective ({', '.join(sorted(state))}); "
                "resume with the objective it was made with, or start a new run"
            )
