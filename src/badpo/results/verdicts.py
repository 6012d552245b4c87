"""What the readings say, in sentences: what DPO moved, how much of it an arm removed, where it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from badpo.data.privacy import rounded_count
from badpo.results.run_files import MeasuredRuns, Run, is_continuous
from badpo.results.words import (
    DPO,
    REFERENCE,
    Verdict,
    attribute_label,
    built_in_of,
    count_text,
    decimal,
    interval_text,
    percent,
    signed,
)

Anchor = Literal["none", "reference", "warm", "gold"]


def anchor_of_run(run: Run) -> Anchor:
    """What fixes the level that the votes leave open: nothing, the reference, the votes' level, or gold annotators."""
    if not run.bias.parts:
        return "none"
    if run.bias.gold_annotators:
        return "gold"
    return "reference" if run.recipe_bias.get("warm_start", "zero") == "zero" else "warm"


def anchor_sentences(suite: MeasuredRuns) -> list[str]:
    """What anchors the arms of a suite; nothing for the reference alone."""
    runs = [run for run in suite.runs if run.arm != REFERENCE]
    trained = [suite.of(arm)[0] for arm in suite.arms if arm != REFERENCE]
    return [*_not_at_reference(runs), *_anchors(trained)]


def gold_sentence(run: Run) -> str:
    """What the level of a run with gold annotators rests on; they are counted, to the nearest ten, and not named."""
    n_gold = count_text(rounded_count(len(run.bias.gold_annotators)))
    votes = ", ".join(
        f"{attribute_label(name, run.configs.get(name, {}))} {count_text(rounded_count(n))}"
        for name, n in run.bias.extra.gold_votes.items()
    )
    return (
        f"theta of {n_gold} gold annotators, declared to lean nowhere, is held at zero. "
        "The level of the other annotators\u2019 theta, and with it the policy\u2019s rate, rests on their judgments "
        f"of responses that differ ({votes or 'number not recorded'}), not on the reference\u2019s rate; it stands and "
        "falls with that declaration"
    )


def _not_at_reference(runs: Sequence[Run]) -> list[str]:
    found = [first for run in runs if (first := run.bias.extra.first_margin)]
    off = [first.mean for first in found if first.difference > first.tolerance]
    if not off:
        return []
    return [
        f"{len(off)} of {len(runs)} runs do not start at the reference: their first log-probabilities are not its own, "
        f"and the mean margin of the first step, which is 0 there, is up to {signed(max(off, key=abs))}. For them "
        "theta = 0 does not mean the reference\u2019s rate."
    ]


_ANCHORS: dict[Anchor, str] = {
    "reference": "Anchored at the reference: {}. Theta takes up the bias that the votes show, so the policy is "
    "meant to keep the reference\u2019s own rate.",
    "warm": "Anchored at the reference with a warm start: {}. Theta starts at the log-odds of the votes, so all that "
    "they say about an attribute counts as lean, also what quality explains.",
    "gold": "Anchored by gold annotators: {}. There {}.",
    "none": "Without an anchor: {}. What the annotators lean toward enters the policy.",
}


def _anchors(trained: Sequence[Run]) -> list[str]:
    found = []
    for kind, sentence in _ANCHORS.items():
        runs = [run for run in trained if anchor_of_run(run) == kind]
        if kind == "gold":
            found += [sentence.format(run.title, gold_sentence(run)) for run in runs]
        elif runs:
            *titles, last = (run.title for run in runs)
            found.append(sentence.format(f"{', '.join(titles)} and {last}" if titles else last))
    return found


@dataclass(frozen=True)
class Quantity:
    """Something that DPO may move: the rate of an attribute, or an amount such as the length of answers.

    ``label`` is the attribute as people read it, ``symbol`` how the quantity is written, ``place`` where the readouts
    have it.
    """

    attribute: str
    label: str
    symbol: str
    place: tuple[str, ...]
    is_rate: bool

    def number(self, value: float | None) -> str:
        """A value of this quantity, as text."""
        return decimal(value, 2 if self.is_rate else 1)

    def difference(self, value: float | None) -> str:
        """A difference of two values, in log-odds for a rate, as text."""
        return signed(value, 2 if self.is_rate else 1)


def quantities(suite: MeasuredRuns) -> list[Quantity]:
    """What the runs measured and DPO may move: attribute rates, and mean tokens where a length is declared."""
    configs, labels, found = suite.configs, suite.labels, []
    for name, label in labels.items():
        is_rate = not is_continuous(configs[name])
        symbol = f"p({label})" if is_rate else f"mean {label}"
        found.append(Quantity(name, label, symbol, ("best_rates", name), is_rate))
    lengths = (name for name in labels if built_in_of(configs[name]).is_length)
    if name := next(lengths, ""):
        found.append(Quantity(name, labels[name], "mean tokens", ("tokens",), False))
    return [q for q in found if any(suite.estimate(arm, *q.place) for arm in suite.arms)]


def verdicts(suite: MeasuredRuns) -> list[Verdict]:
    """One verdict for each quantity that the runs measured."""
    return [_verdict(suite, quantity) for quantity in quantities(suite)]


def _verdict(suite: MeasuredRuns, quantity: Quantity) -> Verdict:
    shifted, number = suite.moved(*quantity.place), quantity.number
    reference, dpo = (suite.estimate(arm, *quantity.place) for arm in (REFERENCE, DPO))
    others = (arm for arm in suite.arms if arm not in (REFERENCE, DPO))
    told = [arm for arm in others if suite.estimate(arm, *quantity.place)]
    if reference is None or dpo is None or shifted is None:
        missing = "DPO" if dpo is None else "The reference"
        finding = f"{missing} was not measured, so no shift and no share removed can be given."
    else:
        ends = f"from {number(reference.value)} to {number(dpo.value)}"
        finding = f"DPO moved {quantity.symbol} {ends}."
        if not shifted.excludes(0.0):
            ends = interval_text(shifted.low, shifted.high, quantity.difference)
            # the gap stands in for the share removed
            has_gap = suite.estimate(DPO, "heldout", quantity.attribute) is not None
            finding += (
                f" The shift of {quantity.difference(shifted.estimate)} is not larger than its 95 % interval ({ends}), "
                f"so no share removed is given{'; the held-out gap says more' * has_gap}."
            )
            told[:0] = [DPO] * has_gap
    sentences = [("", _arm_sentence(suite, quantity, arm)) for arm in told]
    return Verdict(quantity.label, finding, sentences)


def _arm_sentence(suite: MeasuredRuns, quantity: Quantity, arm: str) -> str:
    place, subject = quantity.place, suite.of(arm)[0].title
    own, reference = suite.estimate(arm, *place), suite.estimate(REFERENCE, *place)
    found = suite.removal(arm, quantity.is_rate, *place)
    end = quantity.number(own.value if own else None)
    distance = ""
    if found.distance is not None:
        unit = " in log-odds" if quantity.is_rate else ""
        distance = f"; distance to the reference{unit} {quantity.difference(found.distance.value)}"
    if found.share is None:
        if gap := suite.estimate(arm, "heldout", quantity.attribute):
            number = partial(signed, places=3)
            ends = interval_text(gap.interval.low, gap.interval.high, number)
            distance += f"; held-out gap {number(gap.value)} ({ends})"
        return f"{subject} ended at {end}{distance}."
    share, over = found.share.value, found.share.interval
    if share < 0:
        return f"{subject} moved further than DPO, to {end}{distance}."
    told = f"{percent(share)} of that shift"
    if (n_seeds := len(found.share.values)) > 1:
        ends = f"{decimal(100 * over.low, 0)} to {percent(over.high)}"
        told += f" (95\u00a0% interval {ends}, {n_seeds} seeds)"
    if share > 1 and own and reference:
        further = abs(own.value - reference.value)
        told += f", passing the reference by {quantity.number(further)}"
    return f"{subject} removed {told}{distance}."
