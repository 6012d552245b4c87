"""What the judgments of a step, or of an evaluation, computed, added up over micro-batches and processes.

A value that is not finite stops the run here, on all processes together: one that stopped alone would leave the
others waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.training.finite import (
    NotFiniteError,
    gradient_message,
    gradients_not_finite,
    not_finite_message,
)
from badpo.training.metrics import StepSums


class Tally:
    """The metrics' sums over some of the ``judgments``, their losses, and what is not finite among them.

    Attributes
    ----------
    sums : StepSums
    losses : list of Tensor
        Of every micro-batch of this process, detached.
    """

    def __init__(self, judgments: Judgments, device: torch.device):
        self.sums = new_sums(judgments)
        self.losses: list[Tensor] = []
        self._judgments = judgments
        self._device = device
        self._n_broken = torch.zeros((), dtype=torch.float64, device=device)
        # only counts are read off the device while all is well
        self._seen: list[tuple[Tensor, tuple[Tensor, ...]]] = []

    def add(self, inputs: Mapping[str, Tensor], margins: Tensor, bias_logits: Tensor, losses: Tensor) -> None:
        """Add the judgments of a micro-batch: u, b and the loss of each, in the a-minus-b orientation."""
        values = margins.detach(), bias_logits.detach(), losses.detach()
        self.losses.append(values[2])
        self.sums.add(margins, bias_logits, inputs["sign"], inputs["delta"], inputs["weight"], losses)
        finite = torch.stack([torch.isfinite(value) for value in values]).all(dim=0)
        self._n_broken = self._n_broken + (~finite).sum()
        self._seen.append((inputs["votes"], values))

    def add_up(self, accelerator: Accelerator, when: str, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """Add the sums up over the processes, and ``more`` tensors in the same message; return those in float64."""
        parts = [self._n_broken, self.sums.vector, *more]
        flat = torch.cat([part.flatten().double().to(self._device) for part in parts])
        flat = accelerator.reduce(flat, reduction="sum")
        split = flat.split([part.numel() for part in parts])
        found = [values.view_as(part) for values, part in zip(split, parts, strict=True)]
        self.sums.vector = found[1].cpu()
        if n_broken := int(found[0]):
            findings = gather_object(self._findings())
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
        """`add_up` with theta's gradient, which is put back added up, and what the objective learns from, returned.

        The gradients of ``policy`` are looked at only. None, where a gradient scaler skipped the step: it has seen
        what is not finite, and goes on with a smaller scale.
        """
        broken = gradients_not_finite(policy, self._device)
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in theta]
        more = self.add_up(accelerator, when, [broken, *gradients, learned])
        if more[0] or not all(torch.isfinite(part).all() for part in (self.sums.vector, *more)):
            votes = np.concatenate([votes.cpu().numpy() for votes, _ in self._seen])
            seen = np.unique(self._judgments.votes["comparison"].to_numpy()[votes])
            names = self._judgments.comparisons["comparison_id"].iloc[seen].astype(str).tolist()
            raise NotFiniteError(gradient_message(when, sorted(set(gather_object(names)))))
        for parameter, gradient in zip(theta, more[1:-1], strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        return more[-1].cpu()

    def _findings(self) -> list[str]:
        """One phrase for each comparison with a value that is not finite, the cause before what follows from it."""
        found: dict[int, str] = {}
        names = self._judgments.comparisons["comparison_id"]
        for positions, values in self._seen:
            votes = self._judgments.votes.iloc[positions.cpu().numpy()]
            for name, value in zip(("margin", "bias logit", "loss"), values, strict=True):
                for i in (~torch.isfinite(value)).nonzero()[:, 0].tolist():
                    comparison, row, annotator = votes[["comparison", "row", "annotator"]].iloc[i]
                    place = f"row {row + 1:,} of the table"
                    if name == "bias logit":
                        place += f", annotator {self._judgments.annotators['pseudonym'].iloc[annotator]}"
                    phrase = f"the {name} of comparison {names.iloc[comparison]} ({place}) is {value[i]:g}"
                    found.setdefault(comparison, phrase)
        return list(found.values())


def new_sums(judgments: Judgments) -> StepSums:
    """Sums over none of the judgments yet."""
    return StepSums(judgments.attribute_names, [a.threshold for a in judgments.attributes])
