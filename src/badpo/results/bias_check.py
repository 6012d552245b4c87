"""Check whether policies learned the votes' bias, from tilts, paired differences and theta, and suggest remedies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from badpo.results.formatting import (
    DPO,
    PLACEBO,
    REFERENCE,
    Finding,
    arm_label,
    decimal_places,
    interval_text,
    percent,
    sentence,
    signed,
)
from badpo.results.run_files import Estimate, LearnedTheta, MeasuredRuns, Run
from badpo.theory.summaries import Interval

# Threshold for DPO's excess tilt, in log-odds. If the excess tilt is smaller, the removed share is mostly noise.
# Errors in theta that are smaller than this threshold are accepted.
SMALL = 0.1
TOLERATED = 0.1  # an arm may overshoot the target by this share of DPO's excess tilt
HALF = 0.5  # if an arm removes a smaller share, the outcome is "partly removed"
FEW_STEPS = 100  # for a run with fewer steps, the advice is also to train longer
SLOWER = 5  # factor by which the advice lowers the learning rate
MOST_TIMES = 300.0  # largest factor by which the advice raises the learning rate
LITTLE_KL = 0.001  # if the KL divergence is smaller, the policy has hardly changed
KL_OF_PAPER = 0.03  # KL divergence from the reference in the paper's runs, in nats per token

Outcome = Literal[
    "removed", "partly removed", "overshoot", "not nearer", "added", "nothing to remove", "not compared"
]
Reason = Literal["no bias", "few comparisons", "little training", "not learned"]
_sentence = partial(sentence, "run_sentences.jinja")


def outcome_of(dpo: Interval, arm: Interval, small: float = SMALL) -> Outcome:
    """Classify how much of DPO's excess tilt an arm has removed.

    ``dpo`` and ``arm`` are intervals for the tilt of the policy minus the tilt of the target. "overshoot" means that
    the arm's interval lies on the other side of the target, farther away than 10 % of DPO's excess. "not nearer" means
    that the arm's tilt is at least as far from the target as DPO's tilt. If DPO's interval is not entirely beyond
    ``small``, DPO has no excess, and the outcome is "nothing to remove" or "added". "added" means that the arm's
    interval is entirely beyond ``small``, and that the arm's tilt is farther from the target than DPO's tilt.

    Examples
    --------
    >>> dpo = Interval(0.9, 0.1, 0.7, 1.1, 50)
    >>> outcome_of(dpo, Interval(-0.3, 0.1, -0.5, -0.1, 50)), outcome_of(dpo, Interval(-0.06, 0.01, -0.08, -0.04, 50))
    ('overshoot', 'removed')
    >>> outcome_of(dpo, Interval(0.6, 0.1, 0.4, 0.8, 50)), outcome_of(dpo, Interval(1.0, 0.1, 0.8, 1.2, 50))
    ('partly removed', 'not nearer')
    """
    is_farther = abs(arm.estimate) >= abs(dpo.estimate)
    if not is_large(dpo, small):
        return "added" if is_farther and is_large(arm, small) else "nothing to remove"
    direction = math.copysign(1.0, dpo.estimate)
    nearest_end = max(direction * arm.low, direction * arm.high)  # NaN if the interval is not known
    if nearest_end < -TOLERATED * abs(dpo.estimate):
        return "overshoot"
    if is_farther:
        return "not nearer"
    return "removed" if abs(arm.estimate) <= HALF * abs(dpo.estimate) else "partly removed"


def is_large(difference: Interval, small: float = SMALL) -> bool:
    """Return whether the interval of a tilt difference is entirely above ``small`` or entirely below ``-small``."""
    return bool(difference.low > small or difference.high < -small)


@dataclass(frozen=True)
class ArmCheck:
    """The outcome of the bias check for an arm that learns theta.

    ``share`` is the share of DPO's distance to the target that the arm removed, or None if this distance is not large.
    ``problems`` are sentences that name the cause of a failure and the next command; there are none for a successful
    arm.
    """

    outcome: Outcome
    share: Estimate | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class BiasCheck:
    """Tilts of all arms toward one attribute, paired differences between the tilts, and the outcome of each BA-DPO arm.

    ``kind`` is "swap" for the tilt on swap pairs, else "tilt". The target is the tilt of the placebo. Without a
    placebo, the target is the tilt of the reference, which is zero. ``small`` is `SMALL` per unit of the attribute.
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
    def excess(self) -> Estimate | None:
        """DPO's tilt minus the target's tilt; None if DPO was not measured."""
        return self.differences.get((DPO, self.target))

    @property
    def target_label(self) -> str:
        """Display name of the target."""
        return arm_label(self.target)

    @property
    def subject(self) -> str:
        """Name of the attribute in a sentence, such as "length" or "woman-coded names"."""
        return f"{self.label} names" if self.label.endswith("-coded") else self.label

    @property
    def title(self) -> str:
        """Title of the bias check, with the attribute and the kind of comparisons."""
        return f"Tilt toward {self.label}" + (", swap pairs" if self.kind == "swap" else "")

    def number(self, value: float | None) -> str:
        """Format a tilt or a difference between tilts with three decimals, or more if all differences are small."""
        differences = (one.value for one in self.differences.values())
        return signed(value, decimal_places(differences, least=3))

    def with_interval(self, found: Estimate) -> str:
        """Format a tilt with its 95 % confidence interval."""
        return f"{self.number(found.value)} ({self.interval(found)})"

    def interval(self, found: Estimate) -> str:
        """Format the 95 % confidence interval of a tilt."""
        return interval_text(found.interval.low, found.interval.high, self.number)


def check_bias(suite: MeasuredRuns) -> list[BiasCheck]:
    """Return one check for each measured tilt, on cross-group comparisons and, if measured, on swap pairs."""
    checks = (_check_tilt(suite, name, kind) for name in suite.labels for kind in ("tilt", "swap"))
    return [check for check in checks if check.tilts]


def _check_tilt(suite: MeasuredRuns, name: str, kind: str) -> BiasCheck:
    key = f"{kind}/{name}"
    tilts = {arm: found for arm in suite.arms if (found := suite.difference(arm, REFERENCE, key))}
    target = PLACEBO if PLACEBO in tilts else REFERENCE
    learning = [arm for arm in tilts if suite.of(arm)[0].bias.parts]
    pairs = [(arm, target) for arm in (DPO, *learning)] + [(arm, DPO) for arm in learning]
    pairs += [(PLACEBO, REFERENCE)] if target == PLACEBO else []
    differences = {pair: found for pair in pairs if (found := suite.difference(*pair, key))}
    measured = [run.readouts.tilt[name] for run in suite.runs if name in run.readouts.tilt]
    typical, unit = (measured[0].typical, measured[0].unit) if measured else (1.0, "")
    label, small = suite.labels[name], SMALL / typical
    check = BiasCheck(name, label, kind, unit, small, target, tilts, differences, arms={})
    arms = {arm: _check_arm(suite, check, arm) for arm in learning if (arm, target) in differences}
    return replace(check, arms=arms)


def _check_arm(suite: MeasuredRuns, check: BiasCheck, arm: str) -> ArmCheck:
    """Check whether an arm that learns theta is nearer to the target than DPO is."""
    reports = (_theta_problem(run, check.name, check.small) for run in suite.of(arm))
    problems = [report for report in reports if report][:1]
    if check.excess is None:
        return ArmCheck("not compared", None, tuple(problems))
    left = check.differences[arm, check.target]
    outcome = outcome_of(check.excess.interval, left.interval, check.small)
    is_drifting = suite.is_drifting(arm)
    # a lower learning rate reduces DPO's excess tilt, which must stay large enough for a verdict
    can_slow_down = is_drifting or abs(check.excess.value) > SLOWER * check.small
    if outcome not in ("removed", "nothing to remove") and can_slow_down and not problems:
        command = _slower(suite.of(arm)[0])
        problems.append(_sentence("failure", is_drifting=is_drifting, command=command))
    share = None
    if is_large(check.excess.interval, check.small):
        share = suite.share_removed(arm, check.target, f"{check.kind}/{check.name}")
    return ArmCheck(outcome, share, tuple(problems))


def _theta_problem(run: Run, name: str, small: float) -> str:
    """Describe how far theta is from the value that the votes and the final policy imply; empty if theta is close."""
    theta = run.readouts.theta.get(name, LearnedTheta())
    values = theta.level, theta.implied, theta.low, theta.high
    level, implied, low, high = (math.nan if value is None else value for value in values)
    if not abs(level - implied) > max(high - implied, implied - low, small):
        return ""
    command = _again(run, "--bias_fit", "anchored") if run.uses_adam else _slower(run)
    return _sentence(
        "theta_problem", level=level, implied=implied, uses_adam=run.uses_adam, command=command
    )


# -- commands ----------------------------------------------------------------------------------------------------


def _again(run: Run, *options: str) -> str:
    """Return the command that trains a run and its baselines with other settings; empty if no command can be shown."""
    if not run.is_trainable:
        return ""
    folder = run.shown_folder.parent
    other = folder.with_name(f"{folder.name}-2") if folder.name else Path("runs-2")
    return run.train_command(*options, "--output_dir", str(other), "--compare")


def _slower(run: Run) -> str:
    """Return the command that trains with a fifth of the learning rate; empty if the learning rate is not recorded."""
    training = run.readouts.training
    rate = training and f"{training.learning_rate / SLOWER:.1g}"
    return _again(run, "--learning_rate", rate) if rate else ""


def train_more_command(run: Run, kl: float, excess_tilts: float = 0.0) -> str:
    """Return the command that trains with a higher learning rate or more steps, so that a verdict becomes possible.

    ``excess_tilts`` is DPO's excess tilt in units of `SMALL`. The command aims at the paper's KL divergence or at an
    excess tilt of three units, whichever needs the smaller change.
    """
    training = run.readouts.training
    if training is None:
        return ""
    if kl > KL_OF_PAPER:
        return _again(run, "--max_steps", f"{3 * training.steps}") if training.steps else ""
    # for small changes, the KL divergence is proportional to (learning rate * number of steps) squared
    steps = training.steps or FEW_STEPS
    more_steps = 5 if steps < FEW_STEPS else 1
    factor = math.sqrt(KL_OF_PAPER / max(kl, 1e-9)) / more_steps
    if excess_tilts:
        factor = min(factor, 3 / excess_tilts / more_steps)
    options = ["--learning_rate", f"{min(MOST_TIMES, max(2.0, factor)) * training.learning_rate:.1g}"]
    if more_steps > 1:
        options += ["--max_steps", f"{more_steps * steps}"]
    return _again(run, *options)


# -- in sentences ------------------------------------------------------------------------------------------------


def bias_verdicts(suite: MeasuredRuns) -> list[str]:
    """Return one sentence for each attribute and BA-DPO arm that says whether the arm removed the bias.

    The verdicts are about cross-group comparisons. Without DPO, there are no verdicts.
    """
    return [
        _verdict(suite, check, arm)
        for check in check_bias(suite)
        for arm in check.arms
        if check.kind == "tilt" and check.excess
    ]


def bias_findings(suite: MeasuredRuns) -> list[Finding]:
    """Return the findings of all bias checks: tilts, paired differences, remedies, and commands."""
    checks = [_bias_finding(suite, check) for check in check_bias(suite)]
    return [*checks, *_length_finding(suite), *_drift_finding(suite)]


def _bias_finding(suite: MeasuredRuns, check: BiasCheck) -> Finding:
    """Return the finding of a check: DPO's tilt, the tilt of each BA-DPO arm, and the commands to run next."""
    sentences: list[tuple[str, str]] = []
    for arm, found in check.arms.items():
        run = suite.of(arm)[0]
        left, minus_dpo = check.differences[arm, check.target], check.differences.get((arm, DPO))
        sentences.append(
            ("", _sentence("tilt", check=check, title=run.title, left=left, minus_dpo=minus_dpo))
        )
        if check.kind == "swap" and check.excess:
            sentences.append(("", _verdict(suite, check, arm)))
        if found.outcome in ("nothing to remove", "added"):
            beta = run.config.get("beta")
            sentences.append(("Threshold", _sentence("threshold", check=check, small=SMALL, beta=beta)))
        sentences += [("What to do", problem) for problem in found.problems]
        if found.outcome == "nothing to remove":
            sentences.append(("What to do", _next_step(suite, check, run)))
        if check.target == REFERENCE and found.share is not None:
            sentences.append(("Placebo", _sentence("no_placebo", command=suite.compare_command())))
    own = check.differences.get((PLACEBO, REFERENCE))
    if own and is_large(own.interval, check.small):
        sentences.append(("Placebo", _sentence("placebo_tilt", check=check, own=own)))
    return Finding(check.title, _sentence("excess", check=check), list(dict.fromkeys(sentences)))


def _verdict(suite: MeasuredRuns, check: BiasCheck, arm: str) -> str:
    """Return the sentence that says whether an arm removed the bias that DPO learned."""
    found, share = check.arms[arm], check.arms[arm].share
    reason = _reason(suite, check) if found.outcome == "nothing to remove" else None
    return _sentence(
        "verdict",
        check=check,
        outcome=found.outcome,
        title=suite.of(arm)[0].title,
        share=share and percent(share.value),
        share_interval=share and _percent_interval(share.interval),
        left=check.differences[arm, check.target],
        reason=reason,
        votes=_bias_in_votes(suite, check.name),
        n_comparisons=_n_comparisons(suite, check),
        kl=suite.estimate(DPO, "kl"),
        training=next((run.readouts.training for run in suite.of(DPO)), None),
    )


def _percent_interval(share: Interval) -> str:
    """Format the confidence interval of a share, with a percent sign only at the upper end."""
    return interval_text(share.low, share.high, percent).replace("\u00a0%", "", 1)


def _reason(suite: MeasuredRuns, check: BiasCheck) -> Reason:
    """Return the reason why DPO has no large excess tilt, such as "few comparisons"."""
    votes, excess = _bias_in_votes(suite, check.name), check.excess
    if votes is not None and not is_large(votes):
        return "no bias"
    if excess is None or not abs(excess.value) < check.small:
        return "few comparisons"
    kl = suite.estimate(DPO, "kl")
    return "not learned" if kl and kl.value > KL_OF_PAPER else "little training"


def _bias_in_votes(suite: MeasuredRuns, name: str) -> Interval | None:
    """Return the log-odds that the response with the attribute wins a training vote."""
    thetas = (run.readouts.theta.get(name, LearnedTheta()) for run in suite.runs)
    return next((found for theta in thetas if (found := theta.bias_in_votes)), None)


def _n_comparisons(suite: MeasuredRuns, check: BiasCheck) -> int | None:
    tilts = (run.readouts.tilt.get(check.name) for run in suite.of(DPO))
    return next((tilt.n_comparisons for tilt in tilts if tilt and check.kind == "tilt"), None)


def _next_step(suite: MeasuredRuns, check: BiasCheck, run: Run) -> str:
    """Return the sentence about the next step if DPO has no large excess tilt."""
    reason, kl = _reason(suite, check), suite.estimate(DPO, "kl")
    command = ""
    if reason == "no bias" and run.shown_table:
        command = f"badpo audit {run.shown_table}"
    elif reason == "few comparisons":
        held_out = run.config.get("held_out")
        share = held_out if isinstance(held_out, float) else 0.1
        command = _again(run, "--held_out", f"{min(0.5, 3 * share):g}")
    elif kl is not None and reason != "no bias":
        excess = abs(check.excess.value) / check.small if check.excess else 0.0
        command = train_more_command(run, kl.value, excess)
    return _sentence("next_step", reason=reason, check=check, command=command)


def _length_finding(suite: MeasuredRuns) -> list[Finding]:
    """Describe how much the votes' bias changes the length of answers, and how much DPO's own drift does."""
    bias, drift = (
        suite.difference(DPO, PLACEBO, "tokens"),
        suite.difference(PLACEBO, REFERENCE, "tokens"),
    )
    is_length = any(map(suite.is_length, suite.labels))
    if not (bias and drift and is_length and (bias.interval.excludes(0) or drift.interval.excludes(0))):
        return []
    lengths = (check.excess for check in check_bias(suite) if suite.is_length(check.name))
    if not any(excess and is_large(excess.interval) for excess in lengths):
        bias = None  # without a bias toward length, the difference is due to randomness in training
    number = partial(signed, places=1)
    return [
        Finding("Length of the answers", _sentence("length", bias=bias, drift=drift, number=number), [])
    ]


def _drift_finding(suite: MeasuredRuns) -> list[Finding]:
    """Name the arms whose policies drifted far from the reference, and the next command."""
    drifting = [suite.name_of(arm) for arm in suite.arms if suite.is_drifting(arm)]
    if not drifting:
        return []
    command = next((_slower(run) for run in suite.runs if run.bias.parts), "")
    remedy = ("Against the drift", _sentence("slower", command=command))
    return [Finding("Drift from the reference", _sentence("drift", arms=drifting), [remedy])]


def tilt_table(suite: MeasuredRuns, check: BiasCheck) -> list[list[str]]:
    """Return table rows with the tilts of the arms and their paired differences, each with its interval."""
    rows = [(suite.name_of(arm), found) for arm, found in check.tilts.items() if arm != REFERENCE]
    rows += [
        (f"{suite.name_of(arm)} minus {suite.name_of(other)}", found)
        for (arm, other), found in check.differences.items()
        if other != REFERENCE
    ]
    return [[name, check.number(found.value), check.interval(found)] for name, found in rows]
