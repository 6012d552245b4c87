r"""Objectives: classes that weight the judgments of an optimizer step and return the normaliser of the weights.

An objective is called once per optimizer step, before the forward passes, with all judgments of the step:

.. math:: \mathcal{L} = \frac{1}{n} \sum_j w_j \ell_j, \qquad (w, n) = \text{objective}(\text{step})

The loss therefore does not depend on how the step is divided into micro-batches or among processes. Every process calls
the objective with its own share of the step, and the normalisers of the shares are added up.

An objective also defines the weights of a response's tokens, the loss of a judgment, and a state that it updates after
each step. `VoteWeights` defines all of them for DPO and BA-DPO. Other objectives extend `VoteWeights` and override some
of its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.objective.bias import require_classes
from badpo.objective.theta import JudgedVotes, VoteWindow
from badpo.theory import Floats, Ints
from badpo.theory.likelihood import fit_shared_bias, ipo_loss, judgment_loss, loss_slopes, project_on

Metrics = dict[str, float]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Step:
    """The judgments of one optimizer step, in the order of its micro-batches.

    Examples
    --------
    >>> batch = {"sign": torch.tensor([1.0]), "annotator": torch.tensor([0]), "delta": torch.tensor([[1.0]]),
    ...          "weight": torch.tensor([1.0])}
    >>> len(Step.of([batch, batch]))
    2
    """

    sign: Tensor  # +1 if response a was chosen, -1 if response b was chosen
    annotator: Tensor  # index of the annotator; -1 if the bias term does not know the annotator
    delta: Tensor  # attribute difference of a minus b, (n_judgments, n_attributes)
    vote_weight: Tensor  # weight of the vote in the votes table

    @classmethod
    def of(cls, batches: Sequence[Tensors]) -> Step:
        """Join micro-batches that contain the keys ``sign``, ``annotator``, ``delta`` and ``weight``."""
        names = ("sign", "annotator", "delta", "weight")
        return cls(*(torch.cat([batch[name] for batch in batches]) for name in names))

    def __len__(self) -> int:
        return len(self.sign)


class VoteWeights:
    """Weight every judgment by its weight in the votes table, as in DPO and BA-DPO.

    If all weights are 1, the loss is the mean over the step's judgments, as in Eq. `barp_dpo_loss`. A vote of weight 2
    counts as two equal votes. Other objectives extend this class. Every checkpoint contains the objective's state.

    Attributes
    ----------
    in_log_odds : bool
        Whether theta is in log-odds. If theta has another unit, training must not start at an estimate from the votes.
    weighs_tokens : bool
        Whether the trainer calls `token_weights`.
    follows_votes : bool
        Whether the trainer calls `learn` after every step.

    Examples
    --------
    >>> step = Step(sign=torch.ones(2), annotator=torch.zeros(2, dtype=torch.long), delta=torch.zeros(2, 1),
    ...             vote_weight=torch.tensor([1.0, 0.5]))
    >>> VoteWeights()(step)
    (tensor([1.0000, 0.5000], dtype=torch.float64), tensor(1.5000, dtype=torch.float64))
    """

    in_log_odds = True
    weighs_tokens = False
    follows_votes = False

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return the vote weights, of shape (n_judgments,), and their sum, which is the normaliser; both are float64.

        If a process has no judgments in the step, its normaliser is 0.
        """
        weights = step.vote_weight.double()
        return weights, weights.sum()

    def token_weights(self, lengths: Ints, comparison: Ints, step: int) -> list[tuple[Floats, Floats]]:
        """For each comparison, return the weights of the token log-ratios of responses a and b in the margin.

        ``lengths`` (n_comparisons, 2) contains the token counts, ``comparison`` contains the positions of the
        comparisons in the training data, and ``step`` is the number of earlier optimizer steps.
        """
        return [(self.response_weights(a, b), self.response_weights(b, a)) for a, b in lengths]

    def response_weights(self, n_tokens: int, n_other: int) -> Floats:
        """Return a weight of 1 for every token of a response; ``n_other`` is the other response's token count."""
        return np.ones(n_tokens)

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """Loss of each judgment, (n_judgments,): `badpo.theory.likelihood.judgment_loss`."""
        return judgment_loss(margins, bias_logits, sign)

    def learn(self, votes: JudgedVotes) -> None:
        """Update the state after a step, based on the votes of the whole step; all processes pass the same votes."""

    def metrics(self) -> Metrics:
        """Return metrics for the log that describe the state of the objective."""
        return {}

    def state_dict(self) -> Tensors:
        """Return the tensors that a resumed run needs in addition to the seed and step number."""
        return {}

    def load_state_dict(self, state: Tensors) -> None:
        """Restore the state from a checkpoint; raise `ValueError` if the state belongs to another objective."""
        saved = {name: list(values.shape) for name, values in state.items()}
        needed = {name: list(values.shape) for name, values in self.state_dict().items()}
        if saved != needed:
            raise ValueError(
                f"the checkpoint has {saved or 'no objective state'}, but this run needs {needed or 'no state'}; "
                "resume with the objective of the checkpoint, or start a new run"
            )


Objective = VoteWeights  # the trainer calls any objective through this interface


# Smallest group weight, before the weights are divided by their mean.
SMALLEST_WEIGHT = 1e-4


class GroupWeights(VoteWeights):
    r"""Weights of annotator groups, updated by exponentiated-gradient steps on the groups' losses.

    .. math:: \mathcal{L} = \frac{\sum_j q_{g(j)} w_j \ell_j}{\sum_j q_{g(j)} w_j}, \qquad
        q_g \leftarrow q_g\, e^{\eta \bar\ell_g}

    Here the mean loss of a group is unweighted, and a group without a judgment in the step keeps its weight. After
    every step, weights below 1e-4 are set to 1e-4, and all weights are divided by their mean. A positive eta
    increases the weight of the group with the highest loss, which is Group-DRO. A negative eta decreases it, which is
    the paper's adaptation of Crowd-PrefRL: votes that the policy does not predict are considered unreliable.

    ``group`` contains the number of each annotator's group, counted from 0. In the paper, ``eta`` is 0.5 for Group-DRO
    and -0.5 for Crowd-PrefRL.

    References
    ----------
    Sagawa et al. (2020), Distributionally robust neural networks for group shifts; BA-DPO, Appendix `app:baselines`.

    Examples
    --------
    >>> step = Step(sign=torch.ones(2), annotator=torch.tensor([0, 1]), delta=torch.zeros(2, 1),
    ...             vote_weight=torch.ones(2))
    >>> objective = GroupWeights([0, 1], eta=0.5)
    >>> margin, loss = torch.zeros(2), torch.tensor([0.2, 1.4])
    >>> objective.learn(JudgedVotes(step.annotator, step.sign, step.delta, step.vote_weight, margin, loss))
    >>> weights, normaliser = objective(step)
    >>> weights / normaliser
    tensor([0.3543, 0.6457], dtype=torch.float64)
    """

    follows_votes = True

    def __init__(self, group: Sequence[int], eta: float):
        self._group = torch.as_tensor(group, dtype=torch.long)
        self.eta = float(eta)
        self.n_groups = int(self._group.max()) + 1
        self._weight = torch.ones(self.n_groups, dtype=torch.float64)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Multiply each vote's weight by its group's weight; return the products and their sum."""
        weights = self._weight[self._group[step.annotator]] * step.vote_weight.double()
        return weights, weights.sum()

    def learn(self, votes: JudgedVotes) -> None:
        """Update the weight of every group that has a judgment in the step."""
        losses = votes.loss.double()
        columns = torch.stack([losses, torch.ones_like(losses)], dim=1)
        sums = torch.zeros(self.n_groups, 2, dtype=torch.float64)
        total, count = sums.index_add(0, self._group[votes.annotator], columns).unbind(dim=1)
        present = count > 0
        self._weight[present] *= torch.exp(self.eta * total[present] / count[present])
        self._weight.clamp_(min=SMALLEST_WEIGHT)
        self._weight /= self._weight.mean()

    def metrics(self) -> Metrics:
        """Standard deviation and maximum of the group weights, rounded to two decimals to protect the annotators."""
        spread, most = self._weight.std(correction=0).item(), self._weight.max().item()
        return {"groups/weight_sd": round(spread, 2), "groups/weight_max": round(most, 2)}

    def state_dict(self) -> Tensors:
        """Weights of the groups."""
        return {"group_weights": self._weight.clone()}

    def load_state_dict(self, state: Tensors) -> None:
        """Restore the weights of a checkpoint."""
        super().load_state_dict(state)
        self._weight = state["group_weights"].double().clone()


class SampledTokens(VoteWeights):
    """SamPO: the margin counts only a random sample of the longer response's tokens.

    The sample contains as many tokens as the shorter response. Policy and reference use the same sample. The sample
    changes with every step and depends only on the seed, the step and the comparison. The sample therefore does not
    depend on the micro-batches or on the number of processes, and a resumed run draws the same sample.

    References
    ----------
    Lu et al. (2024), Eliminating biased length reliance of DPO via down-sampled KL divergence; BA-DPO, Appendix
    `app:baselines`.

    Examples
    --------
    >>> a, b = SampledTokens(seed=0).token_weights(np.array([[2, 4]]), np.array([7]), step=0)[0]
    >>> a, int(b.sum())
    (array([1., 1.]), 2)
    """

    weighs_tokens = True

    def __init__(self, seed: int):
        self.seed = int(seed)

    def token_weights(self, lengths: Ints, comparison: Ints, step: int) -> list[tuple[Floats, Floats]]:
        """Return 1 for each sampled token and 0 for all other tokens."""
        weights = []
        for pair, place in zip(lengths, comparison, strict=True):
            rng = np.random.default_rng([self.seed, step, int(place)])
            a, b = ((rng.permutation(n).argsort() < min(pair)) * 1.0 for n in pair)
            weights.append((a, b))
        return weights


class DiscountedTail(VoteWeights):
    """LD-DPO: tokens beyond the shorter response's length have the weight ``alpha`` (``ld_alpha`` in TRL).

    With ``alpha=1``, the objective is DPO.

    References
    ----------
    Liu et al. (2024), Length desensitization in direct preference optimization.

    Examples
    --------
    >>> DiscountedTail(alpha=0.5).token_weights(np.array([[2, 4]]), np.array([0]), step=0)
    [(array([1., 1.]), array([1. , 1. , 0.5, 0.5]))]
    """

    weighs_tokens = True

    def __init__(self, alpha: float):
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha is {alpha!r}; it must be between 0 and 1")
        self.alpha = float(alpha)

    def response_weights(self, n_tokens: int, n_other: int) -> Floats:
        """Return the weight 1 for tokens up to the shorter response's length, and ``alpha`` for all later tokens."""
        return np.where(np.arange(n_tokens) < n_other, 1.0, self.alpha)


class IdentityPreference(VoteWeights):
    r"""IPO with the bias term: a squared loss on the mean log-ratio per token instead of a likelihood.

    .. math:: \ell = \left(\frac{s\,(u + b) - 1/2}{\beta}\right)^2

    Here u is beta times the difference of the two responses' mean log-ratios per token, b has the unit of u, and beta
    is the beta of the trainer. Without a bias, the loss is TRL's ``loss_type="ipo"``. Neither u nor theta is in
    log-odds, so theta must not start at an estimate from the votes.

    References
    ----------
    Azar et al. (2024), A general theoretical paradigm to understand learning from human preferences; BA-DPO names the
    combination as future work.

    Examples
    --------
    >>> IdentityPreference(beta=0.1).token_weights(np.array([[2, 4]]), np.array([0]), step=0)
    [(array([0.5, 0.5]), array([0.25, 0.25, 0.25, 0.25]))]
    """

    in_log_odds = False
    weighs_tokens = True

    def __init__(self, beta: float):
        self.beta = float(beta)

    def response_weights(self, n_tokens: int, n_other: int) -> Floats:
        """Weight every token of a response by the reciprocal of the response's token count."""
        return np.full(n_tokens, 1 / n_tokens)

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """Loss of each judgment, (n_judgments,): `badpo.theory.likelihood.ipo_loss`."""
        return ipo_loss(margins, bias_logits, sign, self.beta)


class PlaceboWeights(VoteWeights):
    r"""The placebo objective: DPO with vote weights that cancel the shared bias toward the declared attributes.

    .. math:: w_j \propto e^{-s_j \theta \cdot d_j / 2}

    Here theta is the bias that balances the votes for and against each attribute, given the quality that the policy
    has learned (`fit_balancing_bias`). Before training, the margins are zero, and theta is the bias that the votes
    show without regard to quality. When the margins equal the quality of the responses, theta is the bias that quality
    does not explain, and the weighted votes are distributed like votes without bias. The policy's own tilt is removed
    from the margins, so theta never follows this tilt.

    If the attribute has merit, the weights remove the merit too. BA-DPO with the reference as its anchor does the same.

    Examples
    --------
    If three quarters of the votes are for the response with the attribute, each vote against this response gets three
    times the weight of a vote for it:

    >>> step = Step(sign=torch.tensor([1.0, 1, 1, -1] * 500), annotator=torch.zeros(2000, dtype=torch.long),
    ...             delta=torch.ones(2000, 1), vote_weight=torch.ones(2000))
    >>> weights, normaliser = PlaceboWeights(step)(step)
    >>> round((weights[3] / weights[0]).item(), 2)
    3.0
    """

    follows_votes = True

    def __init__(self, votes: Step):
        sign, delta, weight = votes.sign.double(), votes.delta.double(), votes.vote_weight.double()
        self._start = self._theta = fit_balancing_bias(sign, delta, weight, 0 * sign)
        self._window = VoteWindow()

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """Multiply the vote weights by the weights that cancel the bias; return the products and their sum."""
        weights = step.vote_weight.double() * self._cancelling_weights(step.sign, step.delta)
        return weights, weights.sum()

    def _cancelling_weights(self, sign: Tensor, delta: Tensor) -> Tensor:
        return torch.exp(-sign.double() * (delta.double() @ self._theta) / 2)

    def learn(self, votes: JudgedVotes) -> None:
        """Add the votes of a step, and update theta from the latest votes every few steps."""
        vote_weight = votes.weight / self._cancelling_weights(votes.sign, votes.delta)
        latest = self._window.add(replace(votes, weight=vote_weight))
        if latest is None:
            return
        tilt = project_on(latest.delta, latest.margin, latest.weight)
        quality = latest.margin - latest.delta @ tilt
        before, now = (
            fit_balancing_bias(latest.sign, latest.delta, latest.weight, margin)
            for margin in (0 * quality, quality)
        )
        self._theta = self._start + now - before

    def state_dict(self) -> Tensors:
        """Return theta, the number of steps, and the latest votes as tensors."""
        return {"placebo_theta": self._theta.clone(), **self._window.state_dict()}

    def load_state_dict(self, state: Tensors) -> None:
        """Restore the state of a checkpoint."""
        state = dict(state)
        super().load_state_dict({name: state[name] for name in state.keys() & self.state_dict().keys()})
        self._theta = state.pop("placebo_theta").double().clone()
        self._window.load_state_dict(state)


def fit_balancing_bias(sign: Tensor, delta: Tensor, weight: Tensor, margin: Tensor) -> Tensor:
    r"""Fit the theta for which the gradient of DPO's loss on the weighted votes is zero along every attribute.

    .. math:: \sum_j w_j\, e^{-s_j \theta \cdot d_j / 2}\, \sigma(-s_j u_j)\, s_j d_j = 0

    The result is float64 of shape (n_attributes,). The equation's solution is the minimum of a convex function. A weak
    prior keeps theta finite if all votes point in the same direction (`fit_shared_bias`). If the votes have the
    probabilities :math:`\sigma(s (u + \theta_0 \cdot d))`, the expected solution is :math:`\theta_0`.

    Examples
    --------
    Three of four votes are for the response with the attribute:

    >>> sign = torch.tensor([1.0, 1, 1, -1] * 500).double()
    >>> fit_balancing_bias(sign, torch.ones(2000, 1).double(), sign**2, 0 * sign).item()  # log 3 is 1.0986
    1.098...
    """
    slopes = loss_slopes(lambda margins, logit, sign: 2 * torch.exp(-sign * logit / 2), sign)
    return fit_shared_bias(slopes, delta, 0 * sign, weight * torch.sigmoid(-sign * margin))


def votes_of(judgments: Judgments) -> Step:
    """Convert all votes in ``judgments`` to one `Step`."""
    if not judgments.n_attributes:
        raise ValueError(
            "it needs an attribute: declare the attribute toward which the votes may be biased"
        )
    columns = (judgments.votes[name].to_numpy() for name in ("sign", "annotator", "weight"))
    sign, annotator, weight = (torch.tensor(column) for column in columns)
    return Step(sign, annotator, torch.from_numpy(np.array(judgments.delta, float)), weight)


def group_numbers(judgments: Judgments, groups: str) -> list[int]:
    """Return the group number of each annotator; if ``groups`` is "annotator", every annotator is a separate group."""
    if groups == "annotator":
        return list(range(judgments.n_annotators))
    if groups != "class":
        raise ValueError(f'groups is "{groups}"; choose class or annotator')
    classes = judgments.annotators["annotator_class"]
    require_classes(judgments.annotators["pseudonym"], classes)
    numbers, _ = pd.factorize(classes)
    return [int(number) for number in numbers]
