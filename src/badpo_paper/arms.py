"""The training conditions that runs are compared by. An arm is data; the trainer knows none by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple


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
    declared : {"all", "first", "length_tokens", "length_words"}
        Which attributes the bias term knows of; the votes lean on all of the corpus's in either case. The two
        lengths are attributes of their own, as numbers: tokens as the policy reads them, or white-space words.
    gold : tuple of str
        Annotators whose theta is held at zero, by id or pseudonym.
    objective : str
        What a vote costs: a key of `badpo.objective.objectives.OBJECTIVES`, or ``types`` for the several policies
        of EM-DPO (`badpo_paper.em_dpo`).
    settings : mapping
        Parameters of the objective.
    fixed : float
        Added to theta of every declared attribute and never trained.
    length_unit : float
        Tokens or words that are 1 in a declared length. A learned theta is per unit, and its learning rate is made for
        units in which sides differ by about 1.
    labels : {"votes", "spectral"}
        ``spectral`` replaces the votes on each comparison by one label, from the spectral meta-learner.
    """

    bias: str | None
    warm_start: Literal["zero", "offline"] = "zero"
    identities: Literal["given", "shuffled"] = "given"
    declared: Literal["all", "first", "length_tokens", "length_words"] = "all"
    gold: tuple[str, ...] = ()
    objective: str = "votes"
    settings: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    fixed: float = 0.0
    length_unit: float = 1.0
    labels: Literal["votes", "spectral"] = "votes"


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
    # baselines; docs/arms.md says for each what it computes and where it departs from published code
    "rdpo": Arm(bias="none", declared="length_tokens", fixed=0.005),
    "rdpo_strong": Arm(bias="none", declared="length_tokens", fixed=0.02),
    "rdpo_words": Arm(bias="none", declared="length_words", fixed=0.005),
    "length_pooled": Arm(bias="pooled", declared="length_words", length_unit=100.0),
    "sampo": Arm(bias="none", objective="sampled_tokens"),
    "ld_dpo": Arm(bias="none", objective="discounted_tail", settings={"alpha": 0.5}),
    "group_dro": Arm(bias="none", objective="group_weights", settings={"groups": "class", "eta": 0.5}),
    "group_dro_annotators": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": 0.5}
    ),
    "group_dro_parts": Arm(
        bias="none",
        objective="group_weights",
        settings={"groups": "annotator", "eta": 0.5, "chunk": 2},
    ),
    "reliability": Arm(
        bias="none", objective="group_weights", settings={"groups": "annotator", "eta": -0.5}
    ),
    "spectral": Arm(bias="none", labels="spectral"),
    "em_dpo": Arm(
        bias="none", objective="types", settings={"n_types": 3, "n_rounds": 4, "round_share": 0.2}
    ),
    # what the paper names as future work
    "ipo": Arm(bias="none", objective="identity_preference"),
    "ipo_pooled": Arm(bias="pooled", objective="identity_preference"),
}


class Shown(NamedTuple):
    """Where an arm stands that the paper has no row for: suite, the row's label, a footnote, whose shift is removed."""

    suite: str
    label: str
    note: str
    against: str = "dpo"


# They run at one seed.
BEYOND_THE_PAPER = {
    "ipo": Shown(
        "names-ablation",
        "IPO (extension)",
        "not in the paper: IPO's loss with DPO's beta and learning rate",
    ),
    "ipo_pooled": Shown(
        "names-ablation",
        "IPO with a pooled theta (extension)",
        "not in the paper, which names it as future work: what it removes is taken of IPO's own shift, and its theta "
        "is reward per token and no log-odds, so that votes are predicted with the policy alone",
        against="ipo",
    ),
    "ld_dpo": Shown(
        "multipref-ablation",
        "LD-DPO",
        "not in the paper: what is longer than the shorter response counts one half",
    ),
    "spectral": Shown(
        "multipref-ablation",
        "Reliability, spectral",
        "Crowd-PrefRL's own spectral meta-learner: one label for each comparison, no weights",
    ),
    "length_pooled": Shown(
        "multipref-ablation",
        "BA-DPO (pooled, length in words)",
        "not in the paper: the attribute is the length as a number and not the ratio; votes are predicted with theta "
        "on it",
    ),
    "rdpo_words": Shown(
        "multipref-ablation",
        "R-DPO (0.005 a word)",
        "white-space words, as the published code counts, where the paper's definition has tokens",
    ),
}
