"""Rules that move theta during training: the anchored fit, which is the default, and the paper's Adam rule.

The trainer calls the selected rule once after every optimizer step, with the votes of the whole step and the policy's
margins for these votes. During training, only the selected rule changes the learned parts of a `BiasTerm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from badpo.objective.bias import BiasTerm
from badpo.theory.likelihood import (
    fit_shared_bias,
    fit_theta,
    loss_slopes,
    project_on,
    shared_bias_growth,
)

Losses = Callable[[Tensor, Tensor, Tensor], Tensor]

# Number of most recent votes that are used to estimate the growth of theta.
WINDOW = 1024
# Number of optimizer steps between two estimates of the growth of theta.
STEPS_BETWEEN_FITS = 4


@dataclass(frozen=True)
class JudgedVotes:
    """Votes, with the policy's margins (response a over b) and losses; all but ``annotator`` are float64."""

    annotator: Tensor  # (n,), -1 if the bias term does not know the annotator
    sign: Tensor  # (n,)
    delta: Tensor  # (n, n_attributes)
    weight: Tensor  # (n,), weights of the objective
    margin: Tensor  # (n,)
    loss: Tensor  # (n,), 0 before training

    @classmethod
    def on_processor(
        cls, annotator: Tensor, sign: Tensor, delta: Tensor, weight: Tensor, margin: Tensor, loss: Tensor
    ) -> JudgedVotes:
        """Copy tensors of any device and dtype to the CPU."""
        numbers = (
            each.detach().to("cpu", torch.float64) for each in (sign, delta, weight, margin, loss)
        )
        return cls(annotator.detach().to("cpu", torch.long), *numbers)

    @classmethod
    def join(cls, parts: list[JudgedVotes]) -> JudgedVotes:
        """Concatenate several sets of votes."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*map(torch.cat, columns))

    def select_last(self, n: int) -> JudgedVotes:
        """Select the last ``n`` votes."""
        return JudgedVotes(*(column[-n:] for column in vars(self).values()))


class VoteWindow:
    """The most recent votes of a run, which are used to update an estimate every few optimizer steps."""

    def __init__(self) -> None:
        self._n_steps = 0
        self._votes: JudgedVotes | None = None

    def add(self, votes: JudgedVotes) -> JudgedVotes | None:
        """Add the votes of a step; return the latest votes if an update is due, and None otherwise."""
        known = [self._votes, votes] if self._votes is not None else [votes]
        self._votes = JudgedVotes.join(known).select_last(WINDOW)
        self._n_steps += 1
        return self._votes if self._n_steps % STEPS_BETWEEN_FITS == 0 else None

    def state_dict(self) -> dict[str, Tensor]:
        """Number of steps, and the latest votes."""
        state = {"n_steps": torch.tensor(self._n_steps)}
        if self._votes is not None:
            state |= vars(self._votes)
        return {name: value.contiguous().clone() for name, value in state.items()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        votes = dict(tensors)
        self._n_steps = int(votes.pop("n_steps"))
        self._votes = JudgedVotes(**votes) if votes else None


class AdamSteps:
    """The paper's rule: an Adam optimizer moves theta at a constant learning rate, without gradient clipping."""

    takes_gradient = True

    def __init__(self, bias: BiasTerm, learning_rate: float):
        self.bias = bias
        self.optimizer = torch.optim.Adam(list(bias.parameters()), lr=learning_rate)

    def step(self, votes: JudgedVotes | None) -> None:
        """Take an Adam step, unless ``votes=None`` indicates that a gradient scaler skipped the optimizer step."""
        if votes is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """Adam's moments as named tensors, which can be saved without pickle."""
        return {
            f"{index}.{name}": torch.as_tensor(value).clone()
            for index, state in self.optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


class AnchoredFit:
    r"""The default rule: theta is the bias in the votes, given the quality that the policy has learned.

    .. math:: \theta_k(t) = \hat\theta_k + \hat\theta_W(u - D a) - \hat\theta_W(0)

    The first term is fitted to all votes before the first step and shrinks the annotators' deviations
    (`badpo.theory.likelihood.fit_theta`). The other two terms are the growth of the shared bias due to the quality that
    the policy has learned. They are updated every few steps from the latest votes W. The policy's own tilt is removed
    from the margins u by subtracting their projection D a on the attributes, so that theta never follows the tilt.

    Without ``votes``, for example for a stream, theta starts at zero and is the same for all annotators. Training then
    fits theta to the latest votes.
    """

    takes_gradient = False
    projects = True

    def __init__(self, bias: BiasTerm, losses: Losses, votes: JudgedVotes | None):
        self.bias, self.losses = bias, losses
        bias.requires_grad_(False)
        self._free = bias.mask.bool().cpu()
        self.start = torch.zeros(self.bias.fixed.shape, dtype=torch.float64)
        self._window = VoteWindow()
        self._is_stream = votes is None
        if votes is not None:
            self.start = self._fit_start(votes)
            bias.start_at(self.start)
        self._first = getattr(bias, bias.parts[0]).detach().clone()

    def step(self, votes: JudgedVotes | None) -> None:
        """Add the votes of a step and update theta every few steps; ``votes`` is None if the step was skipped."""
        if votes is not None and (latest := self._window.add(votes)) is not None:
            self.fit_to(latest)

    def fit_to(self, votes: JudgedVotes) -> None:
        """Set theta to its initial value plus the growth that the votes and their margins imply."""
        parameter = getattr(self.bias, self.bias.parts[0]).detach()  # shares the memory of the parameter
        parameter.copy_(self._first + self._estimate_growth(votes).to(parameter))

    def _design(self, votes: JudgedVotes) -> Tensor:
        """Return design columns for the shared bias and, if there are gold annotators, for the attributes' merit."""
        if self._free.all():
            return votes.delta
        is_free = torch.cat([self._free, torch.ones(1, dtype=torch.bool)])[votes.annotator]
        return torch.cat([votes.delta * is_free[:, None], votes.delta], dim=1)

    def _estimate_growth(self, votes: JudgedVotes) -> Tensor:
        q = self.start.shape[1]
        deviation = (self.start - self.start[self._free].mean(dim=0)) * self._free[:, None]
        # index -1 selects the last row, which is the zero deviation of an unknown annotator
        deviation = torch.cat([deviation, torch.zeros(1, q, dtype=torch.float64)])
        deviation_logits = (deviation[votes.annotator] * votes.delta).sum(dim=1)
        quality = votes.margin
        if self.projects:
            quality = quality - votes.delta @ project_on(votes.delta, votes.margin, votes.weight)
        slopes, design = loss_slopes(self.losses, votes.sign), self._design(votes)
        if self._is_stream:
            return fit_shared_bias(slopes, design, quality, votes.weight)[:q]
        return shared_bias_growth(slopes, design, deviation_logits, votes.weight, quality)[:q]

    def _fit_start(self, votes: JudgedVotes) -> Tensor:
        """Fit theta before the first training step; return it with shape (n_annotators, n_attributes)."""
        n, q = self.start.shape
        groupings = {"class_offset": self.bias._class_index, "deviation": torch.arange(n)}
        used = [grouping.cpu() for part, grouping in groupings.items() if part in self.bias.parts]
        is_free = (votes.annotator >= 0) & self._free[votes.annotator]
        groups = [torch.where(is_free, grouping[votes.annotator], -1) for grouping in used]
        slopes = loss_slopes(self.losses, votes.sign)
        level, offsets = fit_theta(slopes, self._design(votes), votes.delta, votes.weight, groups)
        theta = level[:q].expand(n, q)
        for grouping, offset in zip(used, offsets, strict=True):
            n_groups = int(grouping.max()) + 1
            padded = torch.cat([offset, torch.zeros(n_groups - len(offset), q, dtype=offset.dtype)])
            theta = theta + padded[grouping]
        return theta

    def state_dict(self) -> dict[str, Tensor]:
        """Latest votes, number of optimizer steps, and initial theta as named tensors."""
        state = {"start": self.start, "first": self._first}
        return {
            name: value.cpu().contiguous().clone() for name, value in state.items()
        } | self._window.state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        tensors = dict(tensors)
        self.start = tensors.pop("start")
        self._first = tensors.pop("first").to(self._first)
        self._window.load_state_dict(tensors)


ThetaRule = AdamSteps | AnchoredFit
