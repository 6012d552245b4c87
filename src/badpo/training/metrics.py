"""What a run logs: ratios of sums over an optimizer step's judgments, and theta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from badpo.data.privacy import is_about_single_people
from badpo.objective.bias import BiasTerm

THETA_METRIC = "bias/theta/"
_OF_PEOPLE = (THETA_METRIC, "groups/")
_PLAIN = ("loss", "weight", "judgments", "margin", "correct", "votes_correct")
_PER_ATTRIBUTE = ("same", "same_correct", "cross", "cross_correct")


class StepSums:
    """Additive sums of one or more optimizer steps, as one vector that processes can add up."""

    def __init__(self, attributes: Sequence[str], thresholds: Sequence[float]):
        self._attributes = tuple(attributes)
        self._thresholds = torch.tensor(thresholds)
        self._names = [*_PLAIN, *(f"{name}/{a}" for a in self._attributes for name in _PER_ATTRIBUTE)]
        self.vector = torch.zeros(len(self._names), dtype=torch.float64)

    def add(self, margins, bias_logits, sign, delta, weight, losses) -> None:
        """Add judgments: margins u and bias logits b in the a-minus-b orientation, sign +1 where a was chosen."""
        # everything stays on the device: asking for a value would hold the backward pass up
        correct = (sign * margins > 0).double()
        values = [
            (weight * losses).sum(),
            weight.sum(),
            torch.ones_like(correct).sum(),
            (sign * margins).sum(),
            correct.sum(),
            (sign * (margins + bias_logits) > 0).sum(),
        ]
        # in the precision of delta: a difference of exactly the threshold must not become more by rounding
        cross = delta.abs() > self._thresholds.to(delta)
        for column in cross.unbind(dim=1):
            values += [(~column).sum(), (correct * ~column).sum(), column.sum(), (correct * column).sum()]
        self.vector = self.vector.to(correct.device) + torch.stack([v.detach().double() for v in values])

    def metrics(self) -> dict[str, float]:
        """Ratios of the sums under TRL's metric names; a ratio over no judgment is left out.

        ``rewards/margins`` is the policy's u, without the bias; ``votes/accuracy`` is with it.
        """
        total = dict(zip(self._names, self.vector.tolist(), strict=True))
        found = {
            "loss": _ratio(total["loss"], total["weight"]),
            "rewards/margins": _ratio(total["margin"], total["judgments"]),
            "rewards/accuracies": _ratio(total["correct"], total["judgments"]),
            "votes/accuracy": _ratio(total["votes_correct"], total["judgments"]),
        }
        for a in self._attributes:
            same = _ratio(total[f"same_correct/{a}"], total[f"same/{a}"])
            cross = _ratio(total[f"cross_correct/{a}"], total[f"cross/{a}"])
            found[f"rewards/accuracies_same/{a}"] = same
            found[f"rewards/accuracies_cross/{a}"] = cross
            found[f"rewards/gap/{a}"] = None if same is None or cross is None else cross - same
        return {name: value for name, value in found.items() if value is not None}

    @property
    def n_judgments(self) -> int:
        """Judgments added so far."""
        return round(float(self.vector[_PLAIN.index("judgments")]))


def theta_metrics(bias: BiasTerm) -> dict[str, float]:
    """``bias/theta/<attribute>``: the mean over annotators of the composed theta, to two decimal places.

    With all digits, n times the mean less the theta of the others would be the theta of somebody who was forgotten.
    """
    mean = bias.theta().detach().mean(dim=0).tolist()
    return {
        f"{THETA_METRIC}{name}": round(value, 2) for name, value in zip(bias.attributes, mean, strict=True)
    }


def publishable(metrics: Mapping[str, float], bias: BiasTerm) -> dict[str, float]:
    """The metrics that a tracker may get: theta's mean over a few annotators, or their weights, are about those."""
    if not is_about_single_people(bias.learned_annotators):
        return dict(metrics)
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_PEOPLE)}


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
