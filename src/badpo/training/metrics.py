"""Metrics of a step or an evaluation, and errors for non-finite values.

If a value is not finite, all processes of a run stop together, because a process that stopped alone would leave the
other processes waiting. The Trainer's checks are not sufficient: the mean loss of a step does not show which comparison
causes the error. A non-finite gradient changes the loss only in the next step, when a checkpoint may already exist.
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
from badpo.data.problems import Problem, counted
from badpo.objective.bias import BiasTerm
from badpo.training.batches import MicroBatch

THETA_METRIC = "bias/theta/"
# Prefixes of metrics that describe annotators.
_PERSONAL = (THETA_METRIC, "groups/")
_SIDES = ("chosen", "rejected")
# An error message describes at most N_DESCRIBED comparisons and lists at most N_LISTED comparisons by name.
N_DESCRIBED, N_LISTED = 3, 20
REMEDY = (
    "Lower the learning rate, or load the weights in bfloat16 or float32: in float16 large values overflow, and "
    "the epsilon of Adam, 1e-8, is 0"
)


# In a run of at least LEAST_STEPS steps, some logged mean margin should exceed LEAST_MARGIN, in log-odds.
# W153 suggests a learning rate that should lead to AIMED_MARGIN, but at most MOST_TIMES the current learning rate.
LEAST_STEPS, LEAST_MARGIN, AIMED_MARGIN, MOST_TIMES = 30, 0.02, 0.5, 300.0


class NotFiniteError(FloatingPointError):
    """A margin, a loss, theta or a gradient is NaN or infinite, so the run cannot continue."""


def require_finite_reference(logps: Sequence[np.ndarray], judgments: Judgments) -> None:
    """Raise `NotFiniteError` if any reference log-probability is not finite.

    If the reference were not checked, the run and every resumed run would stop at a later training step.
    """
    broken = sorted({i // 2 for i, values in enumerate(logps) if not np.isfinite(values).all()})
    if broken:
        names = judgments.comparisons["comparison_id"].iloc[broken[:N_DESCRIBED]]
        raise NotFiniteError(
            f"the reference gives {counted(len(broken), 'comparison')} of {len(logps) // 2:,} a log-probability that "
            f"is not finite (first: {', '.join(map(str, names))}). Inspect the texts of these comparisons, or load the "
            "reference in bfloat16 or float32"
        )


class Tally:
    """Sums of metrics over judgments, and a record of all non-finite values.

    Each row of ``sums`` contains the numerator and the denominator of one metric. `add_up` adds the sums of all
    processes.
    """

    def __init__(self, judgments: Judgments, device: torch.device):
        self._judgments = judgments
        self._device = device
        self._thresholds = torch.tensor([a.threshold for a in judgments.attributes], device=device)
        self._names = [
            *("loss", "rewards/margins", "rewards/accuracies", "votes/accuracy", "aux_loss"),
            *(f"{what}/{side}" for what in ("logps", "rewards") for side in _SIDES),
            *(
                f"rewards/accuracies_{kind}/{name}"
                for name in judgments.attribute_names
                for kind in ("same", "cross")
            ),
        ]
        self.sums = torch.zeros(len(self._names), 2, dtype=torch.float64, device=device)
        self._n_broken = torch.zeros((), dtype=torch.float64, device=device)
        # if all values are finite, only the number of non-finite values is copied from the device
        self._values: list[tuple[Tensor, Tensor]] = []

    def add(self, inputs: MicroBatch, margins: Tensor, bias_logits: Tensor, losses: Tensor) -> None:
        """Add a micro-batch's judgments with their margins, bias logits (response a minus b) and losses."""
        margins, bias_logits, losses = margins.detach(), bias_logits.detach(), losses.detach()
        sign, weight, delta = inputs["sign"], inputs["weight"], inputs["delta"]
        correct = (sign * margins > 0).double()
        ones, zero = torch.ones_like(correct), correct.new_zeros(())
        share = inputs["share"] if "router_load" in inputs else 0.0
        ratios = [
            (weight * losses, weight),
            (sign * margins, ones),
            (correct, ones),
            (sign * (margins + bias_logits) > 0, ones),
            # the shares of a step's micro-batches add up to 1, so the router loss is a mean over steps
            (zero + share * inputs.get("router_load", 0.0), zero + share),
        ]
        scores = inputs.get("response_scores")  # only if every token of the responses is scored
        if scores is None:
            ratios += [(zero, zero)] * 4
        else:
            sides = [2 * inputs["comparison"] + (side < 0) for side in (sign, -sign)]
            ratios += [(values[side], ones) for values in scores for side in sides]
        # thresholds are rounded like delta, so that a difference equal to its threshold does not exceed the threshold
        cross = delta.abs() > self._thresholds.to(delta)
        for column in cross.unbind(dim=1):
            ratios += [(correct * ~column, ~column), (correct * column, column)]
        self.sums += torch.stack(
            [part.detach().sum().double() for ratio in ratios for part in ratio]
        ).view(-1, 2)
        values = torch.stack([value.double() for value in (margins, bias_logits, losses)])
        self._n_broken += (~torch.isfinite(values).all(dim=0)).sum()
        self._values.append((inputs["vote_index"], values))

    def metrics(self, router_coefficient: float = 0.0) -> dict[str, float]:
        """Return the metrics under TRL's names; omit metrics without data.

        ``loss`` includes the routers' loss. ``rewards/margins`` is the policy's margin u without the bias, whereas
        ``votes/accuracy`` includes the bias.
        """
        sums = zip(self._names, self.sums.tolist(), strict=True)
        metrics = {name: above / below for name, (above, below) in sums if below}
        if {"loss", "aux_loss"} <= metrics.keys():
            metrics["loss"] += router_coefficient * metrics["aux_loss"]
        for name in self._judgments.attribute_names:
            same, cross = (
                metrics.get(f"rewards/accuracies_{kind}/{name}") for kind in ("same", "cross")
            )
            if same is not None and cross is not None:
                metrics[f"rewards/gap/{name}"] = cross - same
        return metrics

    @property
    def margins(self) -> Tensor:
        """Margins of this process's judgments, in the order in which the judgments were added."""
        return torch.cat([values[0] for _, values in self._values])

    @property
    def losses(self) -> Tensor:
        """Losses of this process's judgments, in the order in which the judgments were added."""
        return torch.cat([values[2] for _, values in self._values])

    @property
    def n_judgments(self) -> int:
        """Number of judgments added so far."""
        return round(float(self.sums[1, 1]))

    def add_up(self, accelerator: Accelerator, when: str, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """Sum the metrics and the tensors in ``more`` over all processes; return the summed tensors.

        If any process has a judgment with a non-finite value, raise `NotFiniteError` with a message that begins with
        ``when``.
        """
        parts = [self._n_broken, self.sums, *more]
        n_broken, self.sums, *added = accelerator.reduce(parts, reduction="sum")
        if n_broken <= 0:
            return list(added)
        descriptions = gather_object(self._describe_broken())
        what = "; ".join(descriptions[:N_DESCRIBED])
        if (n_more := len(descriptions) - N_DESCRIBED) > 0:
            what += f"; and {counted(n_more, 'comparison')} more"
        raise NotFiniteError(f"{when}: {what}. {REMEDY}")

    def add_up_step(
        self,
        accelerator: Accelerator,
        when: str,
        policy: Iterable[torch.nn.Parameter],
        theta: Sequence[torch.nn.Parameter],
    ) -> None:
        """Add up the metric sums of a step and the gradient of theta over all processes.

        The sum of theta's gradients over all processes replaces the gradient of this process. The gradients of
        ``policy`` are checked for non-finite values but not changed. If a gradient scaler skipped the step, ``policy``
        must be empty: the scaler has already found a non-finite gradient, and training continues with a smaller scale.
        """
        n_broken = _count_broken_gradients(policy, self._device)
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in theta]
        more = [part.double().to(self._device) for part in gradients]
        n_broken, *more = self.add_up(accelerator, when, [n_broken, *more])
        if n_broken or not all(torch.isfinite(part).all() for part in (self.sums, *more)):
            rows = pd.concat([self._rows(index) for index, _ in self._values])
            names = sorted({*gather_object([str(name) for name in rows["comparison_id"]])})
            raise NotFiniteError(
                f"{when}: a gradient is not finite, although every margin and loss is finite; the comparisons of the "
                f"step are {', '.join(names[:N_LISTED])}. {REMEDY}"
            )
        for parameter, gradient in zip(theta, more, strict=True):
            parameter.grad = gradient.to(parameter.dtype)

    def _rows(self, vote_index: Tensor) -> pd.DataFrame:
        """Judgments of a micro-batch, with their comparison ids and the pseudonyms of their annotators."""
        rows = self._judgments.votes.iloc[vote_index.tolist()]
        rows = rows.join(self._judgments.comparisons["comparison_id"], on="comparison")
        return rows.join(self._judgments.annotators["pseudonym"], on="annotator")

    def _describe_broken(self) -> list[str]:
        """Describe the first non-finite value of each comparison that has one."""
        descriptions: dict[str, str] = {}
        for index, values in self._values:
            rows = self._rows(index)
            for kind, i in (~torch.isfinite(values)).nonzero().tolist():
                name, row, annotator = rows[["comparison_id", "row", "pseudonym"]].iloc[i]
                place = f"row {row + 1:,} of the table"
                if kind == 1:
                    place += f", annotator {annotator}"
                what = f"{('margin', 'bias logit', 'loss')[kind]} of comparison {name} ({place})"
                descriptions.setdefault(name, f"the {what} is {values[kind, i]:g}")
        return list(descriptions.values())


def report_unmoved_policy(
    logs: Sequence[Mapping[str, float]], n_steps: int, learning_rate: float
) -> list[Problem]:
    """W153: the policy hardly changed during training.

    ``logs`` are the metrics of the run at all logged steps. For a policy that hardly changes, the margin is
    proportional to the learning rate.
    """
    margins = [abs(entry["rewards/margins"]) for entry in logs if "rewards/margins" in entry]
    largest = max(margins, default=0.0)
    if n_steps < LEAST_STEPS or not margins or largest > LEAST_MARGIN:
        return []
    times = min(MOST_TIMES, AIMED_MARGIN / max(largest, 1e-9))
    return [
        Problem(
            "W153",
            f"the policy hardly changed in {counted(n_steps, 'step')}: the mean implicit reward margin in the log was "
            f"never larger than {largest:.2g} log-odds in absolute value",
            f"learning_rate {learning_rate:g}",
            f"raise the learning rate, for example to --learning_rate {times * learning_rate:.1g}, or train for more "
            "steps; if the policy does not change, no method can show an effect",
        )
    ]


def theta_metrics(bias: BiasTerm) -> dict[str, float]:
    """Mean of theta over the annotators as ``bias/theta/<attribute>``, rounded to two decimal places.

    Without rounding, a removed annotator's theta could be computed from the mean and the thetas of all other
    annotators.
    """
    mean = bias.theta().detach().mean(dim=0).tolist()
    return {
        f"{THETA_METRIC}{name}": round(value, 2)
        for name, value in zip(bias.attributes, mean, strict=True)
    }


def select_publishable(
    metrics: Mapping[str, float], bias: BiasTerm, revealing: Iterable[str]
) -> dict[str, float]:
    """Return the metrics for an experiment tracker, without those that would describe too few people.

    ``revealing`` names the attributes whose theta depends on too few people.
    """
    if is_about_single_people(bias.learned_annotators):
        return {name: value for name, value in metrics.items() if not name.startswith(_PERSONAL)}
    omitted = {f"{THETA_METRIC}{name}" for name in revealing}
    return {name: value for name, value in metrics.items() if name not in omitted}


def _count_broken_gradients(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> Tensor:
    """Count the parameters with a non-finite gradient; each process sees only its own shards of the weights."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    norms = torch._foreach_norm([g for g in local if g.numel()], float("inf"))
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return (~torch.isfinite(torch.stack([zero, *(norm.to(zero) for norm in norms)]))).double().sum()
