"""Checks whether the bias of the votes entered the policies: tilts, paired differences, theta, and remedies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from badpo.results.formatting import (
    DPO,
    PLACEBO,
    REFERENCE,
    Finding,
    arm_label,
    interval_text,
    sentence,
    signed,
)
from badpo.results.run_files import Estimate, LearnedTheta, MeasuredRuns, Run
from badpo.theory.summaries import Interval

# Log-odds. Shares of a smaller excess tilt are mostly noise, and a smaller error of theta is accepted.
SMALL = 0.1

Outcome = Literal["removed", "overshoot", "not nearer", "nothing to remove"]
_sentence = partial(sentence, "run_sentences.jinja")


def outcome_of(dpo: Interval, arm: Interval, small: float = SMALL) -> Outcome:
    """Classify the tilt of an arm against DPO's excess tilt.

    Both intervals are for the tilt of a policy minus the tilt of the target. "overshoot" means that the arm is on the
    other side of the target and its interval excludes the target. "not nearer" means that the arm's tilt is at least
    as far from the target as DPO's tilt. "nothing to remove" means that DPO's interval does not lie beyond ``small``.

    Examples
    --------
    >>> dpo, arm = Interval(0.9, 0.1, 0.7, 1.1, 50), Interval(-0.3, 0.1, -0.5, -0.1, 50)
    >>> outcome_of(dpo, arm), outcome_of(arm, dpo)
    ('overshoot', 'overshoot')
    >>> outcome_of(dpo, Interval(0.1, 0.1, -0.1, 0.3, 50)), outcome_of(dpo, Interval(1.0, 0.1, 0.8, 1.2, 50))
    ('removed', 'not nearer')
    """
    is_other_side = arm.estimate * dpo.estimate < 0
    if is_large(arm, small) and abs(arm.estimate) >= abs(dpo.estimate) > 0:
        return "overshoot" if is_other_side else "not nearer"
    if not is_large(dpo, small):
        return "nothing to remove"
    if is_other_side and arm.excludes(0.0):
        return "overshoot"
    return "removed" if abs(arm.estimate) < abs(dpo.estimate) else "not nearer"


def is_large(difference: Interval, small: float = SMALL) -> bool:
    """Return whether an interval lies beyond ``small`` on one side of zero."""
    return bool(difference.low > small or difference.high < -small)


@dataclass(frozen=True)
class ArmCheck:
    """The outcome of an arm that learns theta.

    ``share`` is the removed share of DPO's distance to the target; it is None if that distance is not large.
    ``problems`` are sentences with remedies, and empty for a successful arm.
    """

    outcome: Outcome
    share: float | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class BiasCheck:
    """The tilts of all arms toward one attribute, paired differences, and the outcome of each BA-DPO arm.

    ``kind`` is "swap" for the tilt on swap pairs, else "tilt". The target is the tilt of the placebo if there is a
    placebo, else the tilt of the reference, which is zero. ``small`` is `SMALL` per unit of the attribute.
    """

    name: str
    label: str
    kind: str
    unit: str
    small: float
    target: str
    tilts: Mapping[str, Estimate]
    differences: Mapping[tuple[str, str], Estimate]
    arms: Mapping[str, ArmCheck]

    @property
    def target_label(self) -> str:
        """Display name of the target."""
        return arm_label(self.target)

    @property
    def title(self) -> str:
        """Title with the attribute and the kind of comparisons."""
        return f"Tilt toward {self.label}" + ", swap pairs" * (self.kind == "swap")

    def number(self, value: float | None) -> str:
        """Format a tilt or a difference of tilts; small units need more digits."""
        return signed(value, 2 if self.small >= SMALL else 4)

    def with_interval(self, found: Estimate) -> str:
        """Format a tilt with its 95 % confidence interval."""
        return f"{self.number(found.value)} ({self.interval(found)})"

    def interval(self, found: Estimate) -> str:
        """Format the 95 % confidence interval of a tilt."""
        return interval_text(found.interval.low, found.interval.high, self.number)


def check_bias(suite: MeasuredRuns) -> list[BiasCheck]:
    """Return one check for each measured tilt: on cross-group comparisons and, if measured, on swap pairs."""
    checks = (_check_tilt(suite, name, kind) for name in suite.labels for kind in ("tilt", "swap"))
    return [check for check in checks if check.tilts]


def _check_tilt(suite: MeasuredRuns, name: str, kind: str) -> BiasCheck:
    key = f"{kind}/{name}"
    tilts = {arm: found for arm in suite.arms if (found := suite.difference(arm, REFERENCE, key))}
    target = PLACEBO if PLACEBO in tilts else REFERENCE
    learning = [arm for arm in tilts if suite.of(arm)[0].bias.parts]
    pairs = [(arm, target) for arm in (*learning, DPO)] + [(arm, DPO) for arm in learning]
    pairs += [(PLACEBO, REFERENCE)] * (target == PLACEBO)
    differences = {pair: found for pair in pairs if (found := suite.difference(*pair, key))}
    measured = [run.readouts.tilt[name] for run in suite.runs if name in run.readouts.tilt]
    typical, unit = (measured[0].typical, measured[0].unit) if measured else (1.0, "")
    small, excess = SMALL / typical, differences.get((DPO, target))
    arms = {
        arm: _check_arm(suite, arm, name, small, excess, differences[arm, target])
        for arm in learning
        if (arm, target) in differences
    }
    return BiasCheck(name, suite.labels[name], kind, unit, small, target, tilts, differences, arms)


def _check_arm(
    suite: MeasuredRuns, arm: str, name: str, small: float, excess: Estimate | None, left: Estimate
) -> ArmCheck:
    """Check an arm from DPO's distance to the target (``excess``) and its own distance (``left``)."""
    problems = [told for run in suite.of(arm) if (told := _theta_problem(run, name, small))][:1]
    if excess is None:
        return ArmCheck("nothing to remove", None, tuple(problems))
    outcome = outcome_of(excess.interval, left.interval, small)
    if outcome in ("not nearer", "overshoot"):
        causes = {"has_theta_problem": bool(problems), "is_drifting": suite.is_drifting(arm)}
        problems.append(_sentence("failure", outcome=outcome, **causes))
    share = 1 - left.value / excess.value if is_large(excess.interval, small) else None
    return ArmCheck(outcome, share, tuple(problems))


def _theta_problem(run: Run, name: str, small: float) -> str:
    """Say how far theta is from the value that the votes imply given the final policy; empty if it is near."""
    theta = run.readouts.theta.get(name, LearnedTheta())
    values = theta.level, theta.implied, theta.low, theta.high
    level, implied, low, high = (math.nan if value is None else value for value in values)
    if not abs(level - implied) > max(high - implied, implied - low, small):
        return ""
    return _sentence("theta_problem", level=level, implied=implied, uses_adam=run.uses_adam)


# -- in sentences ------------------------------------------------------------------------------------------------


def bias_findings(suite: MeasuredRuns) -> list[Finding]:
    """Return the checks as sentences: DPO's excess tilt, the result of each BA-DPO arm, and remedies."""
    found = [_bias_finding(suite, check) for check in check_bias(suite)]
    return [*found, *_length_finding(suite)]


def _bias_finding(suite: MeasuredRuns, check: BiasCheck) -> Finding:
    excess, sentences = check.differences.get((DPO, check.target)), []
    is_beyond = excess is not None and is_large(excess.interval, check.small)
    text = _sentence("excess", check=check, excess=excess, is_large=is_beyond)
    for arm, found in check.arms.items():
        left, minus_dpo = check.differences[arm, check.target], check.differences.get((arm, DPO))
        title = suite.of(arm)[0].title
        told = _sentence("tilt", check=check, title=title, found=found, left=left, minus_dpo=minus_dpo)
        sentences.append(("", told))
        sentences += [("BA-DPO did not remove the bias", problem) for problem in found.problems]
    return Finding(check.title, text, sentences)


def _length_finding(suite: MeasuredRuns) -> list[Finding]:
    """Describe how much the votes' bias and how much DPO's own drift lengthen the answers."""
    bias, drift = (
        suite.difference(DPO, PLACEBO, "tokens"),
        suite.difference(PLACEBO, REFERENCE, "tokens"),
    )
    if not (bias and drift and any(map(suite.is_length, suite.labels))):
        return []
    text = _sentence("length", bias=bias, drift=drift, number=partial(signed, places=1))
    remedy = "The policies\u2019 log-probabilities fell far below the reference\u2019s: lower the learning rate first."
    is_drifting = any(map(suite.is_drifting, suite.arms))
    return [Finding("Length: bias and drift", text, [("Against the drift", remedy)] * is_drifting)]


def tilt_table(check: BiasCheck) -> list[list[str]]:
    """Return table rows with the tilt of each arm and the paired differences, each with its interval."""
    rows = [(arm_label(arm), found) for arm, found in check.tilts.items() if arm != REFERENCE]
    rows += [
        (f"{arm_label(arm)} minus {arm_label(other)}", found)
        for (arm, other), found in check.differences.items()
        if other != REFERENCE
    ]
    return [[name, check.number(found.value), check.interval(found)] for name, found in rows]
