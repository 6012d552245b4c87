"""Define the arms: the training conditions that the paper compares. An arm is a set of settings without any code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# Parameters of an objective by name.
Settings = Mapping[str, float | str]


@dataclass(frozen=True)
class Arm:
    """Settings that distinguish one training condition from another.

    Attributes
    ----------
    bias : str or None
        Variant of the bias term, a key of `badpo.objective.bias.VARIANTS`. It selects the learned parts of theta.
        If None, nothing is trained, and the arm is the reference itself.
    warm_start : {"zero", "offline"}
        Start value of theta: 0, or the log-odds of the training votes.
    votes : {"given", "unbiased"}
        ``unbiased`` is the placebo: the simulated votes without any bias or, for votes of people, the given votes with
        weights that balance the votes for and against each attribute (`badpo.objective.objectives.PlaceboWeights`).
    identities : {"given", "shuffled"}
        ``shuffled`` assigns every vote to a random annotator, so that the ids have no information.
    declared : {"all", "first", "length_tokens"}
        Attributes that the bias term contains. The votes are biased toward all attributes of the corpus in every
        case. ``length_tokens`` is an additional attribute: the number of tokens of a response.
    objective : str
        Loss of a vote: a key of `badpo.objective.registry.OBJECTIVES`, or ``types`` for EM-DPO, which trains
        several policies (`badpo_paper.em_dpo`).
    settings : mapping
        Parameters of the objective.
    fixed : float
        Constant that is added to theta of every declared attribute and is not trained.
    """

    bias: str | None
    warm_start: Literal["zero", "offline"] = "zero"
    votes: Literal["given", "unbiased"] = "given"
    identities: Literal["given", "shuffled"] = "given"
    declared: Literal["all", "first", "length_tokens"] = "all"
    objective: str = "votes"
    settings: Settings = field(default_factory=dict, hash=False)
    fixed: float = 0.0


ARMS: dict[str, Arm] = {
    "reference": Arm(bias=None),
    "dpo": Arm(bias="none"),
    "dpo_placebo": Arm(bias="none", votes="unbiased"),
    "pooled": Arm(bias="pooled"),
    "per_annotator": Arm(bias="per_annotator"),
    "shared_mean": Arm(bias="shared_mean"),
    "class": Arm(bias="class"),
    "shuffled_ids": Arm(bias="per_annotator", identities="shuffled"),
    "pooled_warm": Arm(bias="pooled", warm_start="offline"),
    "shared_mean_warm": Arm(bias="shared_mean", warm_start="offline"),
    "declared_subset": Arm(bias="pooled", declared="first"),
    # Baselines. docs/arms.md describes each baseline and how it differs from the published code.
    "rdpo": Arm(bias="none", declared="length_tokens", fixed=0.005),
    "rdpo_strong": Arm(bias="none", declared="length_tokens", fixed=0.02),
    "sampo": Arm(bias="none", objective="sampled_tokens"),
    "group_dro": Arm(bias="none", objective="group_weights", settings={"groups": "class", "eta": 0.5}),
    "group_dro_annotators": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": 0.5}
    ),
    "reliability": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": -0.5}
    ),
    "em_dpo": Arm(
        bias="none", objective="types", settings={"n_types": 3, "n_rounds": 4, "round_share": 0.2}
    ),
}
