"""What the readings say, in sentences: what DPO moved, how much of it an arm removed, where it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from badpo.results.anchor_text import anchor_of_run
from badpo.results.labels import DPO, REFERENCE, arm_title, attribute_label, decimal, percent, signed
from badpo.results.readings import Estimate, Read, estimate, gap, moved, rate, removal, tokens
from badpo.results.run_files import MeasuredRuns, attribute_configs, is_continuous, read_planted


@dataclass(frozen=True)
class Quantity:
    """Something that DPO may move: the rate of an attribute, or an amount such as the length of answers.

    ``label`` is the attribute as people read it, ``symbol`` how the quantity is written.
    """

    attribute: str
    label: str
    symbol: str
    read: Read
    is_rate: bool

    def number(self, value: float | None) -> str:
        """A value of this quantity, as text."""
        return decimal(value, 2 if self.is_rate else 1)

    def difference(self, value: float | None) -> str:
        """A difference of two values, in log-odds for a rate, as text."""
        return signed(value, 2 if self.is_rate else 1)


@dataclass(frozen=True)
class RunVerdict:
    """The sentences on one quantity: what DPO did, then one sentence for each other arm."""

    title: str
    finding: str
    arms: list[str]


def quantities(suite: MeasuredRuns) -> list[Quantity]:
    """What the runs measured and DPO may move: attribute rates, and mean tokens where a length is declared."""
    configs, found = known_configs(suite), []
    labels = attribute_labels(suite)
    for name, label in labels.items():
        is_rate = not is_continuous(configs.get(name, {}))
        symbol = f"p({label})" if is_rate else f"mean {label}"
        found.append(Quantity(name, label, symbol, rate(name), is_rate))
    lengths = [name for name, config in configs.items() if str(config.get("type", "")).startswith("length")]
    if lengths:
        found.append(Quantity(lengths[0], labels[lengths[0]], "mean tokens", tokens, False))
    return [q for q in found if any(estimate(suite, arm, q.read) for arm in suite.arms)]


def known_configs(suite: MeasuredRuns) -> dict[str, Mapping[str, Any]]:
    """The JSON identity of every attribute that some run declares."""
    return {name: config for run in reversed(suite.runs) for name, config in attribute_configs(run).items()}


def attribute_labels(suite: MeasuredRuns) -> dict[str, str]:
    """Every attribute of a suite with its name for people."""
    configs = known_configs(suite)
    return {name: attribute_label(name, configs.get(name, {})) for name in suite.attributes}


def verdicts(suite: MeasuredRuns) -> list[RunVerdict]:
    """One verdict for each quantity that the runs measured."""
    return [_verdict(suite, quantity) for quantity in quantities(suite)]


def _verdict(suite: MeasuredRuns, quantity: Quantity) -> RunVerdict:
    shifted = moved(suite, quantity.read)
    reference, dpo = (estimate(suite, arm, quantity.read) for arm in (REFERENCE, DPO))
    told = [arm for arm in suite.arms if arm not in (REFERENCE, DPO) and estimate(suite, arm, quantity.read)]
    if reference is None or dpo is None or shifted is None:
        missing = "DPO" if dpo is None else "The reference"
        finding = f"{missing} was not measured, so no shift and no share removed can be given."
    else:
        ends = f"from {quantity.number(reference.value)} to {quantity.number(dpo.value)}"
        finding = f"DPO moved {quantity.symbol} {ends}."
        if not shifted.excludes(0.0):
            apart, low, high = map(quantity.difference, (shifted.estimate, shifted.low, shifted.high))
            finding += (
                f" The shift of {apart} is not larger than its 95 % interval ({low} to {high}), so no share removed is "
                "given; the held-out gap says more."
            )
            # the gap stands in for the share removed
            told = [DPO] * (estimate(suite, DPO, gap(quantity.attribute)) is not None) + told
    return RunVerdict(quantity.label, finding, [_arm_sentence(suite, quantity, arm) for arm in told])


def _arm_sentence(suite: MeasuredRuns, quantity: Quantity, arm: str) -> str:
    own, reference = (estimate(suite, name, quantity.read) for name in (arm, REFERENCE))
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    subject, end = arm_title(arm), quantity.number(own.value if own else None)
    distance = ""
    if found.distance is not None:
        unit = " in log-odds" if quantity.is_rate else ""
        distance = f"; distance to the reference{unit} {quantity.difference(found.distance.value)}"
    if found.share is None:
        return (
            f"{subject} ended at {end}{distance}{_gap_text(estimate(suite, arm, gap(quantity.attribute)))}."
        )
    if found.share.value < 0:
        return f"{subject} moved further than DPO, to {end}{distance}."
    share = f"{percent(found.share.value)} of that shift{_seeds_text(found.share)}"
    if found.share.value > 1 and own and reference:
        share += f", passing the reference by {quantity.number(abs(own.value - reference.value))}"
    return f"{subject} removed {share}{distance}."


def _seeds_text(share: Estimate) -> str:
    """The interval of a share over seeds, in parentheses; nothing for one seed."""
    if len(share.values) == 1:
        return ""
    ends = f"{decimal(100 * share.interval.low, 0)} to {percent(share.interval.high)}"
    return f" (95\u00a0% interval {ends}, {len(share.values)} seeds)"


def _gap_text(found: Estimate | None) -> str:
    if found is None:
        return ""
    value, low, high = (signed(end, 3) for end in (found.value, found.interval.low, found.interval.high))
    return f"; held-out gap {value} ({low} to {high})"


def _anchor(suite: MeasuredRuns) -> str:
    golden = [arm_title(arm) for arm in suite.arms if anchor_of_run(suite.of(arm)[0]) == "gold"]
    if not golden:
        return "The anchor is the reference."
    return f"The anchor is the reference, except for {', '.join(golden)}, whose level gold annotators fix."


def limits(suite: MeasuredRuns) -> list[str]:
    """What the numbers cannot say, given what the runs are."""
    found = [
        "The level that all annotators share on an attribute of the responses is not identified by their votes: "
        "raising every theta by c and taking c times the attribute difference out of the policy\u2019s reward explains "
        "every vote equally well. Votes tell how annotators differ from each other; where theta as a whole ends is "
        "set by where training starts.",
        f"{_anchor(suite)} \u201cRemoved\u201d means kept close to the reference\u2019s own rate; whether "
        "that rate is the right one is a decision for people, and no figure on this page makes it.",
        "A distance from the reference is not all lean: training on votes of people who do not lean can move a rate "
        "too, and no arm on this page shows by how much. Nor is a distance of zero proof that nothing was learned.",
        "Only declared attributes are held back. A lean toward something that was not declared enters the policy as "
        "under DPO.",
    ]
    if read_planted(suite) is not None:
        found.append(
            "The annotators are constructed: their leans were planted, so that the learned ones can be checked. The "
            "corpus does not measure what people prefer, and its attributes are codings of names, not of people."
        )
    if len(suite.seeds) == 1:
        found.append(
            f"There is one training seed ({suite.seeds[0]}). Intervals cover the prompts and votes that were measured, "
            "not how a second training would differ; with several seeds they cover that instead."
        )
    elif suite.seeds:
        found.append(
            f"Intervals are Student\u2019s t over {len(suite.seeds)} training seeds on the same data; they do not "
            "cover a second draw of the data. The reference is one model and counts as exact."
        )
    return found
