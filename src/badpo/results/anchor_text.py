"""Whose rate the trained policies keep, in sentences: where they start, what fixes the level, the reference's rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from scipy.special import logit

from badpo.data.privacy import rounded_count
from badpo.results.labels import REFERENCE, arm_title, attribute_label, count_text, decimal, signed
from badpo.results.readings import estimate, rate
from badpo.results.run_files import MeasuredRuns, Run, attribute_configs, is_continuous

Anchor = Literal["none", "reference", "warm", "gold"]


def anchor_of_run(run: Run) -> Anchor:
    """What fixes the level that the votes leave open: nothing, the reference, the votes' level, or gold annotators."""
    if not run.bias.parts:
        return "none"
    if run.bias.gold_annotators:
        return "gold"
    return "warm" if run.arm.endswith(("_warm", "_audit")) else "reference"


def anchor_sentences(suite: MeasuredRuns) -> list[str]:
    """What anchors the arms of a suite; nothing for the reference alone."""
    trained = {arm: suite.of(arm)[0] for arm in suite.arms if arm != REFERENCE}
    if not trained:
        return []
    return [
        _start([run for run in suite.runs if run.arm != REFERENCE]),
        *_anchors(trained),
        *_separated(trained),
        *_reference_rates(suite),
    ]


def gold_sentence(run: Run) -> str:
    """What the level of a run with gold annotators rests on; they are counted, to the nearest ten, and not named."""
    votes = _counts(run, run.bias.extra.gold_votes, "")
    return (
        f"theta of {_rounded(run.bias.gold_annotators)} gold annotators, declared to lean nowhere, is held at zero. "
        "The level of the other annotators\u2019 theta, and with it the policy\u2019s rate, rests on their judgments "
        f"of responses that differ ({votes or 'number not recorded'}), not on the reference\u2019s rate; it stands and "
        "falls with that declaration"
    )


def _counts(run: Run, counts: Mapping[str, int], ending: str) -> str:
    """A count for each attribute, to the nearest ten."""
    configs = attribute_configs(run)
    return ", ".join(
        f"{attribute_label(name, configs.get(name, {}))} {count_text(rounded_count(n))}{ending}"
        for name, n in counts.items()
    )


def _rounded(people: Sequence[str]) -> str:
    return count_text(rounded_count(len(people)))


def _start(runs: Sequence[Run]) -> str:
    found = [first for run in runs if (first := run.bias.extra.first_margin)]
    if not found:
        return "Whether the runs start at their reference was not recorded."
    off = [first for first in found if first.difference > first.tolerance]
    largest = max((first.mean for first in found), key=abs)
    if off:
        return (
            f"{len(off)} of {len(found)} runs do not start at the reference: their first log-probabilities are not its "
            f"own, and the mean margin of the first step, which is 0 there, is up to {signed(largest)}. For them "
            "theta = 0 does not mean the reference\u2019s rate."
        )
    missing = f" It was not recorded for {len(runs) - len(found)} others." if len(found) < len(runs) else ""
    which = "The run starts" if len(found) == 1 else f"All {len(found)} runs start"
    return (
        f"{which} at the reference: the mean margin of the first step is 0 "
        f"(largest {abs(largest):.0e} in size, which is rounding).{missing}"
    )


_ANCHORS: dict[Anchor, str] = {
    "reference": "Anchored at the reference: {}. Theta starts at zero, so the policy is meant to keep the "
    "reference\u2019s own rate.",
    "warm": "Anchored at the reference with a warm start: {}. Theta starts at the log-odds of the votes, so all that "
    "they say about an attribute counts as lean, also what quality explains.",
    "gold": "Anchored by gold annotators: {}. There {}.",
    "none": "Without an anchor: {}. What the annotators lean toward enters the policy.",
}


def _anchors(trained: Mapping[str, Run]) -> list[str]:
    found = []
    for kind, sentence in _ANCHORS.items():
        runs = [run for run in trained.values() if anchor_of_run(run) == kind]
        if kind == "gold":
            found += [sentence.format(arm_title(run.arm), gold_sentence(run)) for run in runs]
        elif runs:
            *titles, last = (arm_title(run.arm) for run in runs)
            found.append(sentence.format(f"{', '.join(titles)} and {last}" if titles else last))
    return found


def _separated(trained: Mapping[str, Run]) -> list[str]:
    """The arms in which somebody's theta has no bounded estimate; people are counted and not named."""
    return [
        f"{arm_title(arm)}: annotators who always sided one way ({counts}). No theta fits their votes best, and "
        "training moves theirs for as long as it lasts: read it as a direction, not as a size. The audit gives a "
        "bounded lean with its interval."
        for arm, run in trained.items()
        if (counts := _counts(run, run.bias.extra.separated, f" of {_rounded(run.bias.annotators)}"))
    ]


def _reference_rates(suite: MeasuredRuns) -> list[str]:
    configs = {name: config for run in suite.runs for name, config in attribute_configs(run).items()}
    found, unmeasured = [], []
    for name in suite.attributes:
        label = attribute_label(name, configs.get(name, {}))
        own = estimate(suite, REFERENCE, rate(name))
        if own is None:
            unmeasured.append(label)
            continue
        low, high = own.interval.low, own.interval.high
        ends = f" (95\u00a0% interval {decimal(low)} to {decimal(high)})" if math.isfinite(low) else ""
        if is_continuous(configs.get(name, {})):
            found.append(f"The reference\u2019s own mean {label} is {decimal(own.value)}{ends}.")
        else:
            tilt = signed(float(logit(own.value)))
            told = f"{decimal(own.value)}{ends}: its tilt from one half is {tilt} in log-odds"
            found.append(f"The reference\u2019s own p({label}) is {told}.")
    if unmeasured:
        found.append(f"The reference\u2019s own rate was not measured: {', '.join(unmeasured)}.")
    return found
