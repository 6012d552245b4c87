"""Values that are not finite stop a run: which comparison they came from, found only when there is one.

The Trainer itself goes on. A mean loss of a step does not tell which of its comparisons broke it, and a gradient
that is not finite shows in the loss only a step later, when a checkpoint of the broken weights may have been sealed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from badpo.data.judgments import Judgments
from badpo.data.problems import counted
from badpo.training.run_folder import MARKER, checkpoints

N_NAMED = 3
N_LISTED = 20
REMEDY = (
    "Lower the learning rate; check that the policy and its reference are finite in this precision (fp16 overflows "
    "where bf16 does not)"
)


class NotFiniteError(FloatingPointError):
    """A margin, a loss, theta or a gradient is NaN or infinite; the run cannot go on."""


class StepWatch:
    """What the judgments of a step (or of an evaluation) computed, kept until it is known that all is finite.

    Only counts are read off the device while all is well.

    Parameters
    ----------
    judgments : Judgments
        Those that the positions given to `see` count in.
    device : torch.device

    Examples
    --------
    >>> rows = [{"comparison_id": "c0", "prompt": "Why?", "response_a": "It is.", "response_b": "So.", "winner": "a"}]
    >>> watch = StepWatch(Judgments.read(rows), torch.device("cpu"))
    >>> bad, fine = torch.tensor([float("nan")]), torch.tensor([0.0])
    >>> watch.see(torch.tensor([0]), margins=bad, bias_logits=fine, losses=bad)
    >>> watch.count.item(), watch.findings()
    (1.0, ['the margin of comparison c0 (row 1 of the table) is nan'])
    """

    def __init__(self, judgments: Judgments, device: torch.device):
        self._judgments = judgments
        self._seen: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.count = torch.zeros((), dtype=torch.float64, device=device)

    def see(self, votes: Tensor, margins: Tensor, bias_logits: Tensor, losses: Tensor) -> None:
        """Add judgments: their positions, margins, bias logits and losses, each of shape (n_judgments,)."""
        values = {
            "margin": margins.detach(),
            "bias logit": bias_logits.detach(),
            "loss": losses.detach(),
        }
        finite = torch.stack([torch.isfinite(value) for value in values.values()]).all(dim=0)
        self.count = self.count + (~finite).sum()
        self._seen.append((votes, values))

    def findings(self) -> list[str]:
        """One phrase for each comparison with a value that is not finite, the cause before what follows from it."""
        found: dict[int, str] = {}
        comparison = self._judgments.votes["comparison"].to_numpy()
        for votes, values in self._seen:
            positions = votes.cpu().numpy()
            for name, value in values.items():
                numbers = value.double().cpu().numpy()
                for i in np.flatnonzero(~np.isfinite(numbers)):
                    judgment = int(positions[i])
                    found.setdefault(int(comparison[judgment]), self._phrase(name, judgment, numbers[i]))
        return list(found.values())

    def comparisons(self) -> list[str]:
        """Ids of the comparisons that were seen."""
        votes = (
            torch.cat([votes for votes, _ in self._seen]).cpu().numpy() if self._seen else np.zeros(0, int)
        )
        numbers = np.unique(self._judgments.votes["comparison"].to_numpy()[votes])
        return [str(name) for name in self._judgments.comparisons["comparison_id"].iloc[numbers]]

    def _phrase(self, name: str, judgment: int, value: float) -> str:
        vote = self._judgments.votes.iloc[judgment]
        comparison = self._judgments.comparisons["comparison_id"].iloc[int(vote["comparison"])]
        place = f"row {int(vote['row']) + 1:,} of the table"
        if name == "bias logit":
            place += f", annotator {self._judgments.annotators['pseudonym'].iloc[int(vote['annotator'])]}"
        return f"the {name} of comparison {comparison} ({place}) is {value:g}"


def gradients_not_finite(parameters: Iterable[torch.nn.Parameter], device: torch.device) -> Tensor:
    """How many gradients hold a NaN or an infinity, as a float64 scalar; of divided weights this process's part.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([0.0, float("inf")])
    >>> gradients_not_finite([weight], torch.device("cpu")).item()
    1.0
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    norms = torch._foreach_norm([g for g in local if g.numel()], float("inf"))
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    return (~torch.isfinite(torch.stack([norm.to(device) for norm in norms]))).double().sum()


def not_finite_message(when: str, findings: Sequence[str], n_broken: int, n_judgments: int) -> str:
    """What a run says when it stops at judgments whose values are not finite.

    Parameters
    ----------
    when : str
        Such as "step 3".
    findings : sequence of str
        Of all processes, from `StepWatch.findings`.
    n_broken, n_judgments : int
        Judgments with such a value, and all that were computed.

    Examples
    --------
    >>> print(not_finite_message("step 3", ["the margin of comparison c7 (row 9 of the table) is nan"], 1, 32))
    ... # doctest: +ELLIPSIS
    step 3: the margin of comparison c7 (row 9 of the table) is nan. Lower the learning rate; ...
    """
    if n_broken == n_judgments > 1:
        what = f"all {n_judgments} judgments have values that are not finite, so the policy's weights are broken; first"
        return f"{when}: {what}: {findings[0]}. {REMEDY}"
    more = len(findings) - N_NAMED
    rest = f"; and {counted(more, 'comparison')} more" if more > 0 else ""
    return f"{when}: {'; '.join(findings[:N_NAMED])}{rest}. {REMEDY}"


def gradient_message(when: str, comparisons: Sequence[str]) -> str:
    """What a run says when margins and losses are finite and a gradient, or theta's, is not.

    Examples
    --------
    >>> print(gradient_message("step 3", ["c1", "c7"]))  # doctest: +ELLIPSIS
    step 3: a gradient is not finite, though every margin and loss is; the step's comparisons are c1, c7. Lower ...
    """
    named = ", ".join(comparisons[:N_LISTED])
    more = len(comparisons) - N_LISTED
    rest = f" and {more} more" if more > 0 else ""
    return (
        f"{when}: a gradient is not finite, though every margin and loss is; the step's comparisons are {named}{rest}. "
        f"{REMEDY}"
    )


@contextlib.contextmanager
def telling_what_is_left(folder: Path) -> Iterator[None]:
    """Add to a `NotFiniteError` of a training which checkpoint is of before it, or that there is none.

    Parameters
    ----------
    folder : Path
        Where the run's checkpoints are written.

    Raises
    ------
    NotFiniteError

    Examples
    --------
    >>> with telling_what_is_left(Path("runs/a/checkpoints")):
    ...     raise NotFiniteError("step 1: a margin is nan")
    Traceback (most recent call last):
        ...
    badpo.training.finite.NotFiniteError: step 1: a margin is nan. No checkpoint was written before this
    """
    try:
        yield
    except NotFiniteError as error:
        sealed = [path for path in checkpoints(folder) if (path / MARKER).exists()]
        left = f"{sealed[0].name} was written" if sealed else "No checkpoint was written"
        raise NotFiniteError(f"{error}. {left} before this") from error


def require_finite_reference(logps: Sequence[tuple[np.ndarray, np.ndarray]], judgments: Judgments) -> None:
    """Raise `NotFiniteError` where the reference gives a response a log-probability that is not finite.

    Such a comparison would stop the first step that draws it; it is named before training instead.
    """
    broken = [c for c, sides in enumerate(logps) if not all(np.isfinite(side).all() for side in sides)]
    if not broken:
        return
    names = judgments.comparisons["comparison_id"].iloc[broken[:N_NAMED]].tolist()
    raise NotFiniteError(
        f"the reference gives {counted(len(broken), 'comparison')} of {len(logps):,} a log-probability that is not "
        f"finite (first: {', '.join(map(str, names))}). "
        + (
            "Its weights or its precision are broken: load it in bf16 or float32 and try again"
            if len(broken) == len(logps)
            else "Look at their texts, or compute in float32"
        )
    )
