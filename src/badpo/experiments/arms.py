"""The training conditions that runs are compared by. An arm is data; the trainer knows none by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Arm:
    """What distinguishes one training condition from another.

    Attributes
    ----------
    bias : str or None
        The parts of theta that are learned, a key of `badpo.objective.bias.VARIANTS`. None: nothing is
        trained, the arm is the reference itself.
    warm_start : {"zero", "offline"}
        Where theta starts: at 0, or at the log-odds of the training votes.
    identities : {"given", "shuffled"}
        ``shuffled`` gives every vote to an annotator drawn at random, which destroys what identities tell.
    declared : {"all", "first"}
        Which attributes the bias term knows of; the votes lean on all of them in either case.
    gold : tuple of str
        Annotators whose theta is held at zero, by id or pseudonym.
    """

    bias: str | None
    warm_start: Literal["zero", "offline"] = "zero"
    identities: Literal["given", "shuffled"] = "given"
    declared: Literal["all", "first"] = "all"
    gold: tuple[str, ...] = ()


ARMS: dict[str, Arm] = {
    "reference": Arm(bias=None),
    "dpo": Arm(bias="none"),
    "pooled": Arm(bias="pooled"),
    "per_annotator": Arm(bias="per_annotator"),
    "shared_mean": Arm(bias="shared_mean"),
    "class": Arm(bias="class"),
    "shuffled_ids": Arm(bias="per_annotator", identities="shuffled"),
    "pooled_warm": Arm(bias="pooled", warm_start="offline"),
    "shared_mean_warm": Arm(bias="shared_mean", warm_start="offline"),
    "declared_subset": Arm(bias="pooled", declared="first"),
}
