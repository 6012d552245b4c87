"""What the judgments of a step, or of an evaluation, computed: what is logged of them, and whether all is finite.

A value that is not finite stops the run, on all processes together: one that stopped alone would leave the others
waiting. The Trainer itself goes on: a mean loss of a step does not tell which of its comparisons broke it, and a
gradient that is not finite shows in the loss only a step later, when a checkpoint may have been sealed.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.data.privacy import is_about_single_people
from badpo.data.problems import counted
from badpo.objective.bias import BiasTerm

THETA_METRIC = "bias/theta/"
_SIDES = ("chosen", "rejected")
_OF_PEOPLE = (THETA_METRIC, "groups/")
N_NAMED, N_LISTED = 3, 20
REMEDY = (
    "Lower the learning rate, or load the weights in bfloat16 or float32: in float16 large values overflow, and "
    "the epsilon of Adam, 1e-8, is 0"
)


class NotFiniteError(FloatingPointError):
    """A margin, a loss, theta or a gradient is NaN or infinite; the run cannot go on."""


def require_finite_reference(logps: Sequence[np.ndarray], judgments: Judgments) -> None:
    """Refuse a reference whose value of a response is not finite: a later step would stop, and again when resumed."""
    broken = sorted({i // 2 for i, values in enumerate(logps) if not np.isfinite(values).all()})
    if broken:
        names = judgments.comparisons["comparison_id"].iloc[broken[:N_NAMED]]
        raise NotFiniteError(
            f"the reference gives {counted(len(broken), 'comparison')} of {len(logps) // 2:,} a log-probability that "
            f"is not finite (first: {', '.join(map(str, names))}). Look at their texts, or load it in bf16 or float32"
        )


class Tally:
    """Additive sums over some of the ``judgments``, as one tensor that processes can add up, and what broke them."""

    def __init__(self, judgments: Judgments, device: torch.device):
        self._judgments = judgments
        self._device = device
        self._thresholds = torch.tensor([a.threshold for a in judgments.attributes], device=device)
        attributes = judgments.attribute_names
        self._names = [
            "loss",
            "rewards/margins",
            "rewards/accuracies",
            "votes/accuracy",
            "aux_loss",
        ]
        self._names += [f"{what}/{side}" for what in ("logps", "rewards") for side in _SIDES]
        self._names += [
            f"rewards/accuracies_{kind}/{a}" for a in attributes for kind in ("same", "cross")
        ]
        # of each metric the sum above and the sum below the line
        self.sums = torch.zeros(len(self._names), 2, dtype=torch.float64, device=device)
        self.losses: list[Tensor] = []
        self._n_broken = torch.zeros((), dtype=torch.float64, device=device)
        # only counts are read off the device while all is well
        self._seen: list[tuple[Tensor, Tensor]] = []

    def add(
        self, inputs: Mapping[str, Tensor], margins: Tensor, bias_logits: Tensor, losses: Tensor
    ) -> None:
        """Add the judgments of a micro-batch: u, b and the loss of each, in the a-minus-b orientation."""
        margins, bias_logits, losses = margins.detach(), bias_logits.detach(), losses.detach()
        sign, weight, delta = inputs["sign"], inputs["weight"], inputs["delta"]
        correct = (sign * margins > 0).double()
        each, nothing = torch.ones_like(correct), correct.new_zeros(())
        share = inputs["share"] if "router_load" in inputs else 0.0
        ratios = [
            (weight * losses, weight),
            (sign * margins, each),
            (correct, each),
            (sign * (margins + bias_logits) > 0, each),
            # of routers' loads the mean over steps: the shares of a step's micro-batches add up to 1
            (nothing + share * inputs.get("router_load", 0.0), nothing + share),
        ]
        scores = inputs.get("response_scores")  # only if every token of the responses is scored
        if scores is None:
            ratios += [(nothing, nothing)] * 4
        else:
            sides = [2 * inputs["comparison"] + (side < 0) for side in (sign, -sign)]
            ratios += [(of_responses[side], each) for of_responses in scores for side in sides]
        # in the precision of delta: a difference of exactly the threshold must not become more by rounding
        cross = delta.abs() > self._thresholds.to(delta)
        for column in cross.unbind(dim=1):
            ratios += [(correct * ~column, ~column), (correct * column, column)]
        self.sums += torch.stack(
            [part.detach().sum().double() for pair in ratios for part in pair]
        ).view(-1, 2)
        self.losses.append(losses)
        values = torch.stack([value.double() for value in (margins, bias_logits, losses)])
        self._n_broken += (~torch.isfinite(values).all(dim=0)).sum()
        self._seen.append((inputs["votes"], values))

    def metrics(self, router_coefficient: float = 0.0) -> dict[str, float]:
        """Ratios of the sums under TRL's metric names, the routers' loss in ``loss``; one over nothing is left out.

        ``rewards/margins`` is the policy's u, without the bias; ``votes/accuracy`` is with it.
        """
        sums = zip(self._names, self.sums.tolist(), strict=True)
        found = {name: above / below for name, (above, below) in sums if below}
        if {"loss", "aux_loss"} <= found.keys():
            found["loss"] += router_coefficient * found["aux_loss"]
        for a in self._judgments.attribute_names:
            same, cross = (found.get(f"rewards/accuracies_{kind}/{a}") for kind in ("same", "cross"))
            if same is not None and cross is not None:
                found[f"rewards/gap/{a}"] = cross - same
        return found

    @property
    def margins(self) -> Tensor:
        """Margins u of the judgments that were added on this process, in their order."""
        return torch.cat([values[0] for _, values in self._seen])

    @property
    def n_judgments(self) -> int:
        """Judgments added so far."""
        return round(self.sums[1, 1].item())

    def add_up(self, accelerator: Accelerator, when: str, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """Add the sums up over the processes, and ``more`` tensors, which are returned."""
        parts = [self._n_broken, self.sums, *more]
        n_broken, self.sums, *added = accelerator.reduce(parts, reduction="sum")
        if n_broken <= 0:
            return added
        findings = gather_object(self._findings())
        what = "; ".join(findings[:N_NAMED])
        if (n_more := len(findings) - N_NAMED) > 0:
            what += f"; and {counted(n_more, 'comparison')} more"
        raise NotFiniteError(f"{when}: {what}. {REMEDY}")

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
        more = [part.double().to(self._device) for part in (*gradients, learned)]
        n_broken, *more = self.add_up(accelerator, when, [broken, *more])
        if n_broken or not all(torch.isfinite(part).all() for part in (self.sums, *more)):
            names = [str(name) for votes, _ in self._seen for name in self._rows(votes)["comparison_id"]]
            named = ", ".join(sorted(set(gather_object(names)))[:N_LISTED])
            raise NotFiniteError(
                f"{when}: a gradient is not finite, though every margin and loss is; the step's comparisons are "
                f"{named}. {REMEDY}"
            )
        for parameter, gradient in zip(theta, more[:-1], strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        return more[-1].cpu()

    def _rows(self, votes: Tensor) -> pd.DataFrame:
        """The judgments of a micro-batch, with the names of their comparisons and annotators."""
        rows = self._judgments.votes.iloc[votes.tolist()]
        rows = rows.join(self._judgments.comparisons["comparison_id"], on="comparison")
        return rows.join(self._judgments.annotators["pseudonym"], on="annotator")

    def _findings(self) -> list[str]:
        """One phrase for each comparison with a value that is not finite, the cause before what follows from it."""
        found: dict[str, str] = {}
        for votes, values in self._seen:
            rows = self._rows(votes)
            for kind, i in (~torch.isfinite(values)).nonzero().tolist():
                name, row, annotator = rows[["comparison_id", "row", "pseudonym"]].iloc[i]
                place = f"row {row + 1:,} of the table"
                if kind == 1:
                    place += f", annotator {annotator}"
                what = f"{('margin', 'bias logit', 'loss')[kind]} of comparison {name} ({place})"
                found.setdefault(name, f"the {what} is {values[kind, i]:g}")
        return list(found.values())


def theta_metrics(bias: BiasTerm) -> dict[str, float]:
    """``bias/theta/<attribute>``: the mean over annotators of the composed theta, to two decimal places.

    With all digits, n times the mean less the theta of the others would be the theta of somebody who was forgotten.
    """
    mean = bias.theta().detach().mean(dim=0).tolist()
    return {
        f"{THETA_METRIC}{name}": round(value, 2)
        for name, value in zip(bias.attributes, mean, strict=True)
    }


def publishable(metrics: Mapping[str, float], bias: BiasTerm) -> dict[str, float]:
    """The metrics that a tracker may get: theta's mean over a few annotators, or their weights, are about those."""
    if not is_about_single_people(bias.learned_annotators):
        return dict(metrics)
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_PEOPLE)}


def gradients_not_finite(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> Tensor:
    """How many gradients hold a NaN or an infinity, as a float64 scalar; of divided weights this process's part."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    norms = torch._foreach_norm([g for g in local if g.numel()], float("inf"))
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return (~torch.isfinite(torch.stack([zero, *(norm.to(zero) for norm in norms)]))).double().sum()
