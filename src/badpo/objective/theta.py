"""How theta follows the votes while a policy is trained: fitted beside the policy's margins, or by the paper's Adam.

A rule is asked once after every optimizer step, with the votes of the whole step and the margins that the policy had
for them. It alone moves the learned parts of a `BiasTerm`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from badpo.objective.bias import BiasTerm
from badpo.theory.bias_fit import fit_level, fit_theta, level_growth, loss_slopes, project_on

Losses = Callable[[Tensor, Tensor, Tensor], Tensor]

# Latest votes that the growth of theta is read from, and steps from one reading to the next.
WINDOW, STEPS_BETWEEN_FITS = 1024, 4


@dataclass(frozen=True)
class JudgedVotes:
    """Votes with the margin that the policy had for each, in the a-minus-b orientation; float64 but for the index."""

    annotator: Tensor  # (n,), -1 for one the bias term does not know
    sign: Tensor  # (n,)
    delta: Tensor  # (n, n_attributes)
    weight: Tensor  # (n,), the objective's
    margin: Tensor  # (n,)

    @classmethod
    def on_processor(cls, annotator, sign, delta, weight, margin) -> JudgedVotes:
        """From tensors of any device and precision."""
        numbers = (each.detach().to("cpu", torch.float64) for each in (sign, delta, weight, margin))
        return cls(annotator.detach().to("cpu", torch.long), *numbers)

    @classmethod
    def joined(cls, parts: list[JudgedVotes]) -> JudgedVotes:
        """All votes of several, in their order."""
        return cls(*(torch.cat(each) for each in zip(*map(_fields, parts), strict=True)))

    def last(self, n: int) -> JudgedVotes:
        """The last ``n``."""
        return JudgedVotes(*(each[-n:] for each in _fields(self)))


def _fields(votes: JudgedVotes) -> tuple[Tensor, ...]:
    return votes.annotator, votes.sign, votes.delta, votes.weight, votes.margin


class AdamSteps:
    """The paper's way: theta takes steps of its own Adam, constant and unclipped, on the gradient of the loss."""

    takes_gradient = True

    def __init__(self, bias: BiasTerm, learning_rate: float):
        self.bias = bias
        self.optimizer = torch.optim.Adam(list(bias.parameters()), lr=learning_rate)

    def step(self, votes: JudgedVotes | None) -> None:
        """Take a step by the gradient that is there; None for a step that a gradient scaler skipped."""
        if votes is not None:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """The moments of Adam as named tensors."""
        return adam_tensors(self.optimizer)

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_dict` took out."""
        load_adam_tensors(self.optimizer, tensors)


def adam_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of an optimizer as named tensors, so that they need no pickle."""
    return {
        f"{index}.{name}": torch.as_tensor(value).clone()
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def load_adam_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `adam_tensors` took out."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


class AnchoredFit:
    r"""Theta is what the votes show beside the quality that the policy has learned, and never the policy's own tilt.

    .. math:: \theta_k(t) = \hat\theta_k + \hat\theta_W(u - D a) - \hat\theta_W(0)

    The first term is fitted to all votes before the first step, with everybody's deviations shrunk
    (`badpo.theory.bias_fit.fit_theta`). The rest is how much the shared level grows as the policy learns quality, read
    every few steps from the latest votes W, with their margins u less their projection D a on the attributes.

    Without ``votes``, as of a stream that nobody has read, theta starts at zero and is one level for everybody, fitted
    to the latest votes.
    """

    takes_gradient = False
    projects = True

    def __init__(self, bias: BiasTerm, losses: Losses, votes: JudgedVotes | None):
        self.bias, self.losses = bias, losses
        bias.requires_grad_(False)
        self._free = bias.mask.bool().cpu()
        self._n_steps = 0
        self.start = torch.zeros(self.bias.fixed.shape, dtype=torch.float64)
        self._window: JudgedVotes | None = None
        self._is_stream = votes is None
        if votes is not None:
            self.start = self._fitted(votes)
            bias.start_at(self.start)
        self._first = getattr(bias, bias.parts[0]).detach().clone()

    def step(self, votes: JudgedVotes | None) -> None:
        """Take in the votes of a step; every few steps move theta to its optimum. None for a step that was skipped."""
        if votes is None:
            return
        known = [self._window, votes] if self._window is not None else [votes]
        self._window = JudgedVotes.joined(known).last(WINDOW)
        self._n_steps += 1
        if self._n_steps % STEPS_BETWEEN_FITS == 0:
            self._move(self._growth(self._window))

    @torch.no_grad()
    def _move(self, growth: Tensor) -> None:
        parameter = getattr(self.bias, self.bias.parts[0])
        parameter.copy_(self._first + growth.to(parameter))

    def _design(self, votes: JudgedVotes) -> Tensor:
        """Columns of the level; with gold annotators also those of the merit that their votes give the attributes."""
        if self._free.all():
            return votes.delta
        is_free = torch.cat([self._free, torch.ones(1, dtype=torch.bool)])[votes.annotator]
        return torch.cat([votes.delta * is_free[:, None], votes.delta], dim=1)

    def _growth(self, votes: JudgedVotes) -> Tensor:
        q = self.start.shape[1]
        deviation = (self.start - self.start[self._free].mean(dim=0)) * self._free[:, None]
        # nobody's deviation stands last, where the index -1 points
        deviation = torch.cat([deviation, torch.zeros(1, q, dtype=torch.float64)])
        beside = (deviation[votes.annotator] * votes.delta).sum(dim=1)
        quality = votes.margin
        if self.projects:
            quality = quality - votes.delta @ project_on(votes.delta, votes.margin, votes.weight)
        slopes, design = loss_slopes(self.losses, votes.sign), self._design(votes)
        if self._is_stream:
            return fit_level(slopes, design, quality, votes.weight)[:q]
        return level_growth(slopes, design, beside, votes.weight, quality)[:q]

    def _fitted(self, votes: JudgedVotes) -> Tensor:
        """Theta of everybody before the first step, (n_annotators, n_attributes)."""
        n, q = self.start.shape
        division = {"class_offset": self.bias._class_index, "deviation": torch.arange(n)}
        kept = [
            division[part].cpu() for part in ("class_offset", "deviation") if part in self.bias.parts
        ]
        is_free = (votes.annotator >= 0) & self._free[votes.annotator]
        groups = [torch.where(is_free, of[votes.annotator], -1) for of in kept]
        slopes = loss_slopes(self.losses, votes.sign)
        level, offsets = fit_theta(slopes, self._design(votes), votes.delta, votes.weight, groups)
        theta = level[:q].expand(n, q)
        for of, found in zip(kept, offsets, strict=True):
            size = int(of.max()) + 1
            padded = torch.cat([found, torch.zeros(size - len(found), q, dtype=found.dtype)])
            theta = theta + padded[of]
        return theta

    def state_dict(self) -> dict[str, Tensor]:
        """The latest votes, the number of steps, and where theta started."""
        state = {"n_steps": torch.tensor(self._n_steps), "start": self.start, "first": self._first}
        if self._window is not None:
            names = ("annotator", "sign", "delta", "weight", "margin")
            state |= dict(zip(names, _fields(self._window), strict=True))
        return {name: value.cpu().contiguous().clone() for name, value in state.items()}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `state_dict` took out."""
        tensors = dict(tensors)
        self._n_steps = int(tensors.pop("n_steps"))
        self.start = tensors.pop("start")
        self._first = tensors.pop("first").to(self._first)
        self._window = JudgedVotes(**tensors) if tensors else None


ThetaRule = AdamSteps | AnchoredFit
