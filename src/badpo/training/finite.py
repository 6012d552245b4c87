"""Values that are not finite stop a run: which comparison they came from, found only when there is one.

The Trainer itself goes on. A mean loss of a step does not tell which of its comparisons broke it, and a gradient
that is not finite shows in the loss only a step later, when a checkpoint of the broken weights may have been sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.data.problems import counted

N_NAMED = 3
N_LISTED = 20
REMEDY = (
    "Lower the learning rate; check that the policy and its reference are finite in this precision (fp16 overflows "
    "where bf16 does not)"
)


class NotFiniteError(FloatingPointError):
    """A margin, a loss, theta or a gradient is NaN or infinite; the run cannot go on."""


def gradients_not_finite(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> Tensor:
    """How many gradients hold a NaN or an infinity, as a float64 scalar; of divided weights this process's part."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    norms = torch._foreach_norm([g for g in local if g.numel()], float("inf"))
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    return (~torch.isfinite(torch.stack([norm.to(device) for norm in norms]))).double().sum()


def not_finite_message(when: str, findings: Sequence[str], n_broken: int, n_judgments: int) -> str:
    """What a run says when it stops at ``n_broken`` of its judgments, whose values are not finite."""
    if n_broken == n_judgments > 1:
        what = f"all {n_judgments} judgments have values that are not finite, so the policy's weights are broken; first"
        return f"{when}: {what}: {findings[0]}. {REMEDY}"
    more = len(findings) - N_NAMED
    rest = f"; and {counted(more, 'comparison')} more" if more > 0 else ""
    return f"{when}: {'; '.join(findings[:N_NAMED])}{rest}. {REMEDY}"


def gradient_message(when: str, comparisons: Sequence[str]) -> str:
    """What a run says when margins and losses are finite and a gradient, or theta's, is not."""
    named = ", ".join(comparisons[:N_LISTED]) + (", ..." if len(comparisons) > N_LISTED else "")
    what = "a gradient is not finite, though every margin and loss is; the step's comparisons are"
    return f"{when}: {what} {named}. {REMEDY}"


def require_finite_reference(logps: Sequence[tuple[np.ndarray, np.ndarray]], judgments: Judgments) -> None:
    """Raise `NotFiniteError` where the reference gives a response a log-probability that is not finite.

    Such a comparison would stop the first step that draws it; it is named before training instead.
    """
    broken = [c for c, sides in enumerate(logps) if not all(np.isfinite(side).all() for side in sides)]
    if not broken:
        return
    names = judgments.comparisons["comparison_id"].iloc[broken[:N_NAMED]]
    remedy = "Look at their texts, or compute in float32"
    if len(broken) == len(logps):
        remedy = "Its weights or its precision are broken: load it in bf16 or float32 and try again"
    raise NotFiniteError(
        f"the reference gives {counted(len(broken), 'comparison')} of {len(logps):,} a log-probability that is not "
        f"finite (first: {', '.join(map(str, names))}). {remedy}"
    )
