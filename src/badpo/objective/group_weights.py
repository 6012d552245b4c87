r"""Objectives that weight each vote by who cast it: Group-DRO, reliability weights, and types of annotators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from badpo.objective.objectives import Step, VoteWeights

SMALLEST_WEIGHT = 1e-4


class GroupWeights(VoteWeights):
    r"""Weights of groups of annotators that follow the groups' losses, by exponentiated gradient.

    .. math:: \mathcal{L} = \frac{\sum_j q_{g(j)} w_j \ell_j}{\sum_j q_{g(j)} w_j}, \qquad
        q_g \leftarrow q_g\, e^{\eta \bar\ell_g}

    with the mean loss of the group's judgments in the step, unweighted; a group without one keeps its weight. After
    every step the weights are raised to at least 1e-4 and divided by their mean. A positive eta moves weight to the
    group with the highest loss: Group-DRO. A negative one moves it away, which is the paper's adaptation of
    Crowd-PrefRL: votes that the policy does not explain are taken for unreliable.

    Parameters
    ----------
    group : sequence of int, of shape (n_annotators,)
        Group of each annotator, counted from 0.
    eta : float
        Step size; the paper's is 0.5, and -0.5 for reliability.
    chunk : int
        0 normalizes the weights over the whole step. Otherwise the judgments of the step are taken this many at a
        time, in the order in which they are read, each such part is normalized on its own, and the step's loss is the
        mean over the parts. With parts of 2 a judgment weighs at most twice its share however large its group's weight
        is; it is here to reproduce published figures.

    References
    ----------
    Sagawa et al. (2020), Distributionally robust neural networks for group shifts; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    >>> step = Step(sign=torch.ones(2), annotator=torch.tensor([0, 1]), delta=torch.zeros(2, 1),
    ...             vote_weight=torch.ones(2))
    >>> objective = GroupWeights([0, 1], eta=0.5)
    >>> objective.learn(objective.sums(step, torch.tensor([0.2, 1.4])))
    >>> weights, normaliser = objective(step)
    >>> weights / normaliser
    tensor([0.3543, 0.6457], dtype=torch.float64)
    """

    def __init__(self, group, eta: float, chunk: int = 0):
        self._group = torch.as_tensor(group, dtype=torch.long)
        self.eta = float(eta)
        self.chunk = int(chunk)
        self.n_groups = int(self._group.max()) + 1
        self._weight = torch.ones(self.n_groups, dtype=torch.float64)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Weight of each vote's group times its own, and their sum; with parts, the number of parts."""
        weights = self._weight[self._group[step.annotator]] * step.vote_weight.double()
        if not self.chunk:
            return weights, weights.sum()
        part = torch.arange(len(weights)) // self.chunk
        n_parts = -(-len(weights) // self.chunk)
        total = torch.zeros(n_parts, dtype=torch.float64).index_add(0, part, weights)
        return weights / total[part], torch.tensor(float(n_parts), dtype=torch.float64)

    def sums(self, step: Step, losses: Tensor) -> Tensor:
        """Losses and numbers of judgments of every group, shape (2 * n_groups,)."""
        group = self._group[step.annotator]
        columns = torch.stack([losses.double().cpu(), torch.ones(len(group), dtype=torch.float64)], dim=1)
        return torch.zeros(self.n_groups, 2, dtype=torch.float64).index_add(0, group, columns).flatten()

    def learn(self, sums: Tensor) -> None:
        """Move the weights of the groups that had a judgment in the step."""
        total, count = sums.view(-1, 2).unbind(dim=1)
        present = count > 0
        self._weight[present] *= torch.exp(self.eta * total[present] / count[present])
        self._weight.clamp_(min=SMALLEST_WEIGHT)
        self._weight /= self._weight.mean()

    def metrics(self) -> dict[str, float]:
        """Spread of the weights around their mean, which is 1, and the largest; to two decimal places, as of people."""
        spread = float(self._weight.std(correction=0))
        return {
            "groups/weight_sd": round(spread, 2),
            "groups/weight_max": round(float(self._weight.max()), 2),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """The weights."""
        return {"group_weights": self._weight.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up the weights of a checkpoint.

        Raises
        ------
        ValueError
            The checkpoint holds other things than the weights of as many groups.
        """
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != {"group_weights": (self.n_groups,)}:
            raise ValueError(
                f"the checkpoint holds {found or 'no state of an objective'}, and this run needs the weights of "
                f"{self.n_groups} groups; resume with the objective it was made with, or start a new run"
            )
        self._weight = state["group_weights"].double().clone()


class AnnotatorWeights(VoteWeights):
    r"""A constant weight for every annotator: the M-step of EM-DPO for one type.

    .. math:: \mathcal{L} = \frac{\sum_j \gamma_{k_j} w_j \ell_j}{\bar\gamma \sum_j w_j}

    with the mean weight over all votes that are trained on. It is a constant: were the sum of the step's own weights in
    its place, a step in which hardly anyone is of the type would still move the policy by a whole step, on the votes of
    the others.

    Parameters
    ----------
    weight : array of shape (n_annotators,)
        The probability that an annotator is of the type; not negative.
    annotator : int array of shape (n_votes,)
        Of every vote that is trained on.

    Raises
    ------
    ValueError
        No vote has a weight.

    References
    ----------
    Chidambaram et al. (2024), Direct preference optimization with unobserved preference heterogeneity.

    Examples
    --------
    >>> step = Step(sign=torch.ones(2), annotator=torch.tensor([0, 1]), delta=torch.zeros(2, 1),
    ...             vote_weight=torch.ones(2))
    >>> AnnotatorWeights([0.9, 0.1], annotator=[0, 1])(step)
    (tensor([1.8000, 0.2000], dtype=torch.float64), tensor(2., dtype=torch.float64))
    """

    def __init__(self, weight, annotator):
        given = torch.tensor(np.asarray(weight, dtype=np.float64))
        mean = given[torch.tensor(np.array(annotator), dtype=torch.long)].mean()
        if not mean > 0:
            raise ValueError("no vote has a weight, so that there is nothing to train on")
        self._weight = given / mean

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """The annotators' weights, relative to their mean, times the votes' own, and the sum of the votes' own."""
        own = step.vote_weight.double()
        return self._weight[step.annotator] * own, own.sum()

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, by which a checkpoint knows its type."""
        return {"annotator_weights": self._weight}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Make sure that the checkpoint was made with the same weights.

        Raises
        ------
        ValueError
            It was not.
        """
        before = state.get("annotator_weights")
        if before is None or not torch.equal(before, self._weight):
            raise ValueError(
                "the checkpoint was made with other weights of the annotators; remove its run folder and train anew"
            )
