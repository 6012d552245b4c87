"""What the judgments of a step, or of an evaluation, computed, added up over micro-batches and processes.

A value that is not finite stops the run here, on all processes together: one that stopped alone would leave the
others waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.training.finite import (
    NotFiniteError,
    StepWatch,
    gradient_message,
    gradients_not_finite,
    not_finite_message,
)
from badpo.training.metrics import StepSums


class Tally:
    """The metrics' sums over some judgments, their losses, and a watch over values that are not finite.

    Parameters
    ----------
    judgments : Judgments
        Those that ``votes`` of a micro-batch counts in.
    device : torch.device
        Where processes add up.

    Attributes
    ----------
    sums : StepSums
    losses : list of Tensor
        Of every micro-batch of this process, detached.
    """

    def __init__(self, judgments: Judgments, device: torch.device):
        self.sums = new_sums(judgments)
        self.losses: list[Tensor] = []
        self._watch = StepWatch(judgments, device)
        self._device = device

    def add(self, inputs: Mapping[str, Tensor], margins: Tensor, bias_logits: Tensor, losses: Tensor) -> None:
        """Add the judgments of a micro-batch: u, b and the loss of each, in the a-minus-b orientation."""
        self.losses.append(losses.detach())
        self.sums.add(margins, bias_logits, inputs["sign"], inputs["delta"], inputs["weight"], losses)
        self._watch.see(inputs["votes"], margins, bias_logits, losses)

    def add_up(self, accelerator: Accelerator, when: str, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """Add the sums up over the processes, and other tensors with them in the same message.

        Parameters
        ----------
        accelerator : Accelerator
        when : str
            Such as "step 3".
        more : sequence of Tensor

        Returns
        -------
        list of Tensor
            ``more``, added up, in float64.

        Raises
        ------
        NotFiniteError
            A margin, a bias logit or a loss is not finite, on any process; raised by all of them.
        """
        parts = [self._watch.count, self.sums.vector, *more]
        flat = torch.cat([part.flatten().double().to(self._device) for part in parts])
        flat = accelerator.reduce(flat, reduction="sum")
        found = [
            values.view_as(part)
            for values, part in zip(flat.split([p.numel() for p in parts]), parts, strict=True)
        ]
        self.sums.vector = found[1].cpu()
        if n_broken := int(found[0]):
            findings = gather_object(self._watch.findings())
            raise NotFiniteError(not_finite_message(when, findings, n_broken, self.sums.n_judgments))
        return found[2:]

    def add_up_step(
        self,
        accelerator: Accelerator,
        when: str,
        policy: Iterable[torch.nn.Parameter],
        theta: Sequence[torch.nn.Parameter],
        learned: Tensor,
    ) -> Tensor:
        """`add_up` with the gradient of theta, which is put back added up, and what the objective learns from.

        Parameters
        ----------
        accelerator : Accelerator
        when : str
        policy : parameters
            Whose gradients are looked at only. None, where a gradient scaler skipped the step: it has seen what is not
            finite, and goes on with a smaller scale.
        theta : sequence of Parameter
        learned : Tensor
            From `badpo.objective.objectives.Objective.sums`, of this process's share of the step.

        Returns
        -------
        Tensor
            ``learned``, added up, on the CPU.

        Raises
        ------
        NotFiniteError
            As `add_up`; or a gradient is not finite.
        """
        broken = gradients_not_finite(policy, self._device)
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in theta]
        more = self.add_up(accelerator, when, [broken, *gradients, learned])
        if more[0] or not all(torch.isfinite(part).all() for part in (self.sums.vector, *more)):
            names = sorted(set(gather_object(self._watch.comparisons())))
            raise NotFiniteError(gradient_message(when, names))
        for parameter, gradient in zip(theta, more[1:-1], strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        return more[-1].cpu()


def new_sums(judgments: Judgments) -> StepSums:
    """Sums over none of the judgments yet."""
    return StepSums(judgments.attribute_names, [a.threshold for a in judgments.attributes])
