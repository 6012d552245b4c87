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

import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from badpo.data.files import Json
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, did_you_mean
from badpo.estimation.alternative_estimators import fit_quality_prior
from badpo.estimation.pool import summed
from badpo.objective.bias import require_classes
from badpo.theory import Floats, Ints
from badpo.theory.likelihood import ipo_loss, judgment_loss

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

    sign: Tensor  # +1 where response a was chosen, -1 where b was
    annotator: Tensor  # its index; -1 for one the bias term does not know
    delta: Tensor  # attribute difference a minus b, (n_judgments, n_attributes)
    vote_weight: Tensor  # as in the votes table

    @classmethod
    def of(cls, batches: Sequence[Tensors]) -> Step:
        """The step made of micro-batches with the keys ``sign``, ``annotator``, ``delta`` and ``weight``."""
        names = ("sign", "annotator", "delta", "weight")
        return cls(*(torch.cat([batch[name] for batch in batches]) for name in names))

    def __len__(self) -> int:
        return len(self.sign)


class VoteWeights:
    """Every judgment counts as much as the votes table says: plain DPO and BA-DPO.

    With unit weights the loss is the mean over the judgments of the step, Eq. `barp_dpo_loss`; a vote of weight 2
    counts as two equal votes. Another objective extends this one; its state is saved with every checkpoint.

    Attributes
    ----------
    in_log_odds : bool
        Whether theta is in log-odds, so that it may start at an estimate made from the votes.
    weighs_tokens : bool
        Whether `token_weights` is to be asked.

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
        """Weights (n_judgments,) and the normaliser (), both float64: the votes' own weights and their sum.

        A share of the step without judgments has the normaliser 0: it adds nothing to the sum over processes.
        """
        weights = step.vote_weight.double()
        return weights, weights.sum()

    def token_weights(self, lengths: Ints, comparison: Ints, step: int) -> list[tuple[Floats, Floats]]:
        """What each token's log-ratio counts in the margin, of response a and of response b of each comparison.

        ``lengths`` (n_comparisons, 2) are their tokens, ``comparison`` their places in the training data, and ``step``
        counts the optimizer steps before this one.
        """
        return [(self.response_weights(a, b), self.response_weights(b, a)) for a, b in lengths]

    def response_weights(self, n_tokens: int, n_other: int) -> Floats:
        """What each token counts of a response beside one of ``n_other`` tokens: 1."""
        return np.ones(n_tokens)

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """What each judgment costs, (n_judgments,): `badpo.theory.likelihood.judgment_loss`."""
        return judgment_loss(margins, bias_logits, sign)

    def sums(self, step: Step, losses: Tensor) -> Tensor:
        """What is to be learned from the losses of a share of the step, as sums that processes add up, float64."""
        return torch.zeros(0, dtype=torch.float64)

    def learn(self, sums: Tensor) -> None:
        """Take up the sums of the whole step; called after it, on every process."""

    def metrics(self) -> Metrics:
        """What the log should tell of the state."""
        return {}

    def state_dict(self) -> Tensors:
        """What a resumed run needs besides the seed and the step; empty when there is nothing."""
        return {}

    def load_state_dict(self, state: Tensors) -> None:
        """Take up the state of a checkpoint; a `ValueError` where it is that of another objective."""
        states = (state, self.state_dict())
        held, own = ({name: list(values.shape) for name, values in told.items()} for told in states)
        if held != own:
            raise ValueError(
                f"the checkpoint holds {held or 'no state of an objective'}, and this run needs {own or 'none'}; "
                "resume with the objective it was made with, or start a new run"
            )


Objective = VoteWeights  # what the trainer asks of any


SMALLEST_WEIGHT = 1e-4


class GroupWeights(VoteWeights):
    r"""Weights of groups of annotators that follow the groups' losses, by exponentiated gradient.

    .. math:: \mathcal{L} = \frac{\sum_j q_{g(j)} w_j \ell_j}{\sum_j q_{g(j)} w_j}, \qquad
        q_g \leftarrow q_g\, e^{\eta \bar\ell_g}

    with the mean loss of the group's judgments in the step, unweighted; a group without one keeps its weight. After
    every step the weights are raised to at least 1e-4 and divided by their mean. A positive eta moves weight to the
    group with the highest loss: Group-DRO. A negative one moves it away, which is the paper's adaptation of
    Crowd-PrefRL: votes that the policy does not explain are taken for unreliable.

    ``group`` numbers each annotator's group from 0, and ``eta`` is 0.5 in the paper, -0.5 for reliability. With a
    ``chunk`` the judgments of the step are taken this many at a time, in the order in which they are read, each such
    part is normalized on its own, and the step's loss is the mean over the parts. With parts of 2 a judgment weighs at
    most twice its share however large its group's weight is; it is here to reproduce published figures.

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
        parts = [part / part.sum() for part in weights.split(self.chunk) if len(part)]
        n_parts = torch.tensor(float(len(parts)), dtype=torch.float64)
        return torch.cat([weights[:0], *parts]), n_parts

    def sums(self, step: Step, losses: Tensor) -> Tensor:
        """Losses and numbers of judgments of every group, shape (2 * n_groups,)."""
        losses = losses.double().cpu()
        columns = torch.stack([losses, torch.ones_like(losses)], dim=1)
        sums = torch.zeros(self.n_groups, 2, dtype=torch.float64)
        return sums.index_add(0, self._group[step.annotator], columns).flatten()

    def learn(self, sums: Tensor) -> None:
        """Move the weights of the groups that had a judgment in the step."""
        total, count = sums.view(-1, 2).unbind(dim=1)
        present = count > 0
        self._weight[present] *= torch.exp(self.eta * total[present] / count[present])
        self._weight.clamp_(min=SMALLEST_WEIGHT)
        self._weight /= self._weight.mean()

    def metrics(self) -> Metrics:
        """Spread of the weights around their mean, which is 1, and the largest; to two decimal places, as of people."""
        spread, most = self._weight.std(correction=0).item(), self._weight.max().item()
        return {"groups/weight_sd": round(spread, 2), "groups/weight_max": round(most, 2)}

    def state_dict(self) -> Tensors:
        """The weights."""
        return {"group_weights": self._weight.clone()}

    def load_state_dict(self, state: Tensors) -> None:
        """Take up the weights of a checkpoint."""
        super().load_state_dict(state)
        self._weight = state["group_weights"].double().clone()


class SampledTokens(VoteWeights):
    """SamPO: of the longer response only as many tokens count as the shorter one has, drawn at random.

    The draw is one for the policy and the reference, fresh at every step, and a function of the seed, the step and the
    comparison alone, so that micro-batches, processes and a resumed run see the same one.

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

    def token_weights(self, lengths, comparison, step):
        """1 for a token that was drawn, 0 for another."""
        weights = []
        for pair, place in zip(lengths, comparison, strict=True):
            rng = np.random.default_rng([self.seed, step, int(place)])
            a, b = ((rng.permutation(n).argsort() < min(pair)) * 1.0 for n in pair)
            weights.append((a, b))
        return weights


class DiscountedTail(VoteWeights):
    """LD-DPO: tokens beyond the length of the shorter response count only ``alpha``, TRL's ``ld_alpha``; 1 is DPO.

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
            raise ValueError(f"alpha is a share, 0 to 1; got {alpha!r}")
        self.alpha = float(alpha)

    def response_weights(self, n_tokens: int, n_other: int) -> Floats:
        """1 up to the length of the shorter response, ``alpha`` after it."""
        return np.where(np.arange(n_tokens) < n_other, 1.0, self.alpha)


class IdentityPreference(VoteWeights):
    r"""IPO with the bias term: a squared distance instead of a likelihood, of the mean log-ratio per token.

    .. math:: \ell = \left(\frac{s\,(u + b) - 1/2}{\beta}\right)^2

    where u is beta times the difference of the two responses' mean log-ratios per token, b is in the unit of u, and
    beta is the trainer's.
    Without a bias this is TRL's ``loss_type="ipo"``. Because u is no log-odds, theta is none: an estimate that was made
    from the votes must not start it.

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
        """One over the response's length."""
        return np.full(n_tokens, 1 / n_tokens)

    def losses(self, margins: Tensor, bias_logits: Tensor, sign: Tensor) -> Tensor:
        """The squared distance, `badpo.theory.likelihood.ipo_loss`."""
        return ipo_loss(margins, bias_logits, sign, self.beta)


class PlaceboWeights(VoteWeights):
    r"""Votes weighted so that the shared bias toward the declared attributes leaves them: DPO's placebo on real votes.

    .. math:: w_j \propto e^{-s_j \theta \cdot d_j / 2}

    with theta the bias that all annotators share, beside a quality of every comparison
    (`badpo.estimation.alternative_estimators.fit_quality_prior`). On comparisons with a quality of zero a vote for the
    attribute and a vote against it then weigh as much together. That assumes that quality does not go with the
    attribute: merit that does is counted as bias, as in BA-DPO with the reference as its anchor.

    Examples
    --------
    >>> step = Step(sign=torch.tensor([1.0, -1.0]), annotator=torch.zeros(2, dtype=torch.long),
    ...             delta=torch.ones(2, 1), vote_weight=torch.ones(2))
    >>> weights, normaliser = PlaceboWeights([2.0])(step)
    >>> weights.round(decimals=3), round(normaliser.item(), 3)
    (tensor([0.3680, 2.7180], dtype=torch.float64), 3.086)
    """

    def __init__(self, theta: Sequence[float] | Floats):
        self._theta = torch.as_tensor(theta, dtype=torch.float64)

    def __call__(self, step: Step) -> tuple[Tensor, Tensor]:
        """The votes' own weights times those that take the bias out, and their sum."""
        toward = step.sign.double() * (step.delta.double() @ self._theta)
        weights = step.vote_weight.double() * torch.exp(-toward / 2)
        return weights, weights.sum()


def shared_bias(judgments: Judgments) -> Floats:
    """The bias that all annotators share, beside the comparisons' quality, (n_attributes,)."""
    if not judgments.n_attributes:
        raise ValueError("it needs an attribute: declare what the votes may be biased toward")
    comparison, sign = (judgments.votes[name].to_numpy() for name in ("comparison", "sign"))
    n_votes = np.maximum(np.bincount(comparison, minlength=judgments.n_comparisons), 1)
    differing = summed(comparison, judgments.delta, len(n_votes)) / n_votes[:, None]
    return fit_quality_prior(comparison, sign, np.zeros(len(sign)), differing).slope


def group_numbers(judgments: Judgments, groups: str) -> list[int]:
    """Group of every annotator, counted from 0: their "class", or each "annotator" a group of their own."""
    if groups == "annotator":
        return list(range(judgments.n_annotators))
    if groups != "class":
        raise ValueError(f'groups is "{groups}"; choose class or annotator')
    classes = judgments.annotators["annotator_class"]
    require_classes(judgments.annotators["pseudonym"], classes)
    return pd.factorize(classes)[0].tolist()


# What a recipe can name. Each is made for the judgments that are trained on, with the run's seed, its beta, and the
# settings that stand beside the name.
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "votes": lambda judgments, seed, beta: VoteWeights(),
    "sampled_tokens": lambda judgments, seed, beta: SampledTokens(seed),
    "discounted_tail": lambda judgments, seed, beta, alpha: DiscountedTail(alpha),
    "placebo": lambda judgments, seed, beta: PlaceboWeights(shared_bias(judgments)),
    "identity_preference": lambda judgments, seed, beta: IdentityPreference(beta),
    "group_weights": lambda judgments, seed, beta, groups, **rest: GroupWeights(
        group_numbers(judgments, groups), **rest
    ),
}


_BUILT_IN = frozenset(OBJECTIVES)
_TRL_NAMES = {"sigmoid": "votes", "ipo": "identity_preference"}


def objective_of_loss(loss_type: object) -> str | None:
    """The name in `OBJECTIVES` of the loss that TRL's key ``loss_type`` selects; None if there is no such objective."""
    losses = [loss_type] if isinstance(loss_type, str) else loss_type
    if not isinstance(losses, list) or len(losses) != 1:
        return None
    name = _TRL_NAMES.get(losses[0], losses[0])
    return name if name in OBJECTIVES else None


def require_known(name: str, further: Sequence[str] = ()) -> None:
    """Raise `ConfigError` for a name that is not in `OBJECTIVES`, nor among further ones."""
    if name not in OBJECTIVES:
        known = [*further, *OBJECTIVES]
        raise ConfigError(
            f'unknown objective "{name}".{did_you_mean(name, known)} Choose one of '
            f"{', '.join(known)}; one of yours comes from a file: --arm-file. EM-DPO, spectral labels and "
            "shuffled annotators are no objectives but procedures of the paper, in badpo_paper: badpo reproduce"
        )


def add_objectives(path: str | Path) -> None:
    """Make the objectives of a Python file of the user's known: its ``OBJECTIVES``, made as those here are.

    Only a flag or a call names such a file, never a recipe or a run folder.
    """
    try:
        own = runpy.run_path(str(path))["OBJECTIVES"]
    except KeyError:
        raise ConfigError(
            f'{path} has no OBJECTIVES, as in OBJECTIVES = {{"bounded": lambda judgments, seed, beta, q: Bounded(q)}}'
        ) from None
    except Exception as error:  # it is the user's own program
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    if taken := sorted(_BUILT_IN & own.keys()):
        raise ConfigError(f"{path}: {', '.join(taken)} is a built-in objective; choose another name")
    OBJECTIVES.update(own)


def make_objective(named: Json, judgments: Judgments, seed: int, beta: float) -> Objective:
    """The objective of a ``name`` in `OBJECTIVES`, with the settings beside it; `ConfigError` where there is none."""
    settings = dict(named)
    require_known(name := settings.pop("name"))
    try:
        return OBJECTIVES[name](judgments, seed, beta, **settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"objective {name}: {str(error).removeprefix('<lambda>() ')}") from error
