"""Which arm removes more than the paper's at no cost, over training seeds and over data seeds: a rule, not a judgment.

An arm is compared with the paper's arm of its kind: one scalar with `pooled`, a theta for each annotator with
`shared_mean`. It removes more where its distance to the reference, in log-odds without its sign and averaged over the
attributes, is smaller: the whole 95 % interval of the paired differences lies below zero, over training seeds and over
data seeds alike. It does so at no cost where no interval shows a loss: distance on one attribute, KL, same-group
accuracy or votes predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from badpo.experiments.suite_parts import Condition, Row
from badpo.experiments.suite_tables import Found
from badpo.theory.summaries import Interval, t_interval

KIND = {"pooled": "pooled", "shared_mean": "shared_mean", "class": "shared_mean"}
GAIN = "distance"
# What is read: its sources, of which the mean is taken, and whether more of it is worse. Distances count by their size.
READINGS: dict[str, tuple[tuple[str, ...], bool]] = {
    GAIN: (("distance:rates.woman.rate", "distance:rates.black.rate"), True),
    "distance, woman": (("distance:rates.woman.rate",), True),
    "distance, black": (("distance:rates.black.rate",), True),
    "KL": (("kl.per_token",), True),
    "same-group": (("heldout.any.same",), False),
    "votes, woman": (("votes.woman.all.accuracy",), False),
    "votes, black": (("votes.black.all.accuracy",), False),
}
Cells = Sequence[tuple[Found, int]]


@dataclass(frozen=True)
class Gain:
    """An arm beside another, each run against the one of the same data and seed.

    Attributes
    ----------
    condition : Condition
    against : str
        The other's name.
    over : str
        What the runs differ in: training seeds or data seeds.
    differences : dict of str to Interval
        The arm's reading minus the other's, for each of `READINGS` that two runs or more have.
    """

    condition: Condition
    against: str
    over: str
    differences: dict[str, Interval]

    @property
    def removes_more(self) -> bool | None:
        """Whether the distance is smaller with its whole interval; None where it was not measured."""
        found = self.differences.get(GAIN)
        return None if found is None else found.high < 0

    @property
    def costs(self) -> list[str]:
        """Readings whose whole interval lies on the worse side."""
        return [
            name
            for name, found in self.differences.items()
            if (found.low > 0 if READINGS[name][1] else found.high < 0)
        ]


@dataclass(frozen=True)
class Verdict:
    """What the rule says of an arm.

    Attributes
    ----------
    row : Row
    earns : bool
        It removes more at no cost.
    reason : str
    """

    row: Row
    earns: bool
    reason: str


def gain(condition: Condition, against: str, over: str, cells: Cells) -> Gain:
    """Paired differences of an arm from another over the runs that both have.

    Parameters
    ----------
    condition : Condition
    against : str
        Name of the other condition.
    over : str
    cells : sequence of (Found, int)
        A corpus's runs and a training seed: where the two are compared.
    """
    differences = {}
    for name in READINGS:
        pairs = [(_reading(name, condition.name, *at), _reading(name, against, *at)) for at in cells]
        values = [own - other for own, other in pairs if own is not None and other is not None]
        if len(values) > 1:
            differences[name] = t_interval(values)
    return Gain(condition, against, over, differences)


def _reading(name: str, condition: str, found: Found, seed: int) -> float | None:
    sources, _ = READINGS[name]
    values = [found.value(condition, seed, source) for source in sources]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return fmean(map(abs, known)) if name.startswith(GAIN) else fmean(known)


def gains(rows: Sequence[Row], founds: Sequence[Found]) -> list[Gain]:
    """Every arm beside pooled and beside shared mean, over training seeds and over data seeds.

    Parameters
    ----------
    rows : sequence of Row
        Arms to compare.
    founds : sequence of Found
        One for each data seed. Training seeds are compared at the first of them, data seeds at the first training seed.
    """
    first = founds[0]
    training = [(first, seed) for seed in first.seeds]
    data = [(found, first.seeds[0]) for found in founds]
    return [
        gain(row.condition, against, over, cells)
        for row in rows
        for against in ("pooled", "shared_mean")
        if row.condition.name != against
        for over, cells in (("training seeds", training), ("data seeds", data))
    ]


def verdict(row: Row, found: Sequence[Gain]) -> Verdict:
    """What the rule says of an arm, from its gains over the paper's arm of its kind."""
    kind = KIND[row.condition.arm]
    own = [gain for gain in found if gain.condition == row.condition and gain.against == kind]
    missing = [gain.over for gain in own if gain.removes_more is None]
    not_more = [gain.over for gain in own if gain.removes_more is False]
    costs = [f"{', '.join(gain.costs)} over {gain.over}" for gain in own if gain.costs]
    reasons = [
        *([f"not shown to be nearer to the reference over {' and '.join(not_more)}"] if not_more else []),
        *([f"worse in {'; '.join(costs)}"] if costs else []),
        # what is not nearer over training seeds is not run at other data seeds
        *([f"not run at enough {' and '.join(missing)}"] if missing and not not_more else []),
    ]
    return Verdict(row, not reasons, "; ".join(reasons) or f"nearer to the reference than {kind}, at no cost")


def starts_at_the_audit(condition: Condition) -> bool:
    """Whether the arm is what ``warm_start: audit`` would be: theta starts at the audit's level and is then trained."""
    return condition.start == "swap" and "bias.learning_rate" not in dict(condition.overrides)


def recommendation(verdicts: Sequence[Verdict]) -> str:
    """Which arms earn it, and whether ``warm_start: audit`` is among them."""
    earned = [found.row for found in verdicts if found.earns]
    names = ", ".join(row.label for row in earned)
    first = f"Removes more at no cost: {names}." if earned else "No arm is shown to remove more at no cost."
    is_audit = any(starts_at_the_audit(row.condition) for row in earned)
    return f"{first} `warm_start: audit` is {'recommended' if is_audit else 'not recommended'} by this rule."
