"""What the readings say, in sentences: what DPO moved, how much of it an arm removed, where it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from badpo.results.anchor_text import anchor_of_run
from badpo.results.labels import DPO, REFERENCE, arm_title, attribute_label, decimal, percent, signed
from badpo.results.readings import Estimate, Read, Removal, estimate, gap, moved, rate, removal, tokens
from badpo.results.run_files import Suite, attribute_configs, is_continuous, read_planted


@dataclass(frozen=True)
class Quantity:
    """Something that DPO may move: the rate of an attribute, or the length of answers.

    Attributes
    ----------
    attribute : str
        The declared attribute that it belongs to.
    label : str
        The attribute as people read it.
    symbol : str
        How it is written.
    read : function of a run
    is_rate : bool
        A probability; otherwise a number with a unit.
    """

    attribute: str
    label: str
    symbol: str
    read: Read
    is_rate: bool

    def number(self, value: float | None) -> str:
        """A value of this quantity, as text."""
        return decimal(value, 2 if self.is_rate else 1)


@dataclass(frozen=True)
class Verdict:
    """The sentences on one quantity: what DPO did, then one sentence for each other arm."""

    title: str
    finding: str
    arms: tuple[str, ...]


def quantities(suite: Suite) -> list[Quantity]:
    """What the runs measured and DPO may move: attribute rates, and mean tokens where a length is declared."""
    configs, labels = known_configs(suite), attribute_labels(suite)
    found = [
        _quantity(name, labels[name], is_continuous(configs.get(name, {})))
        for name in suite.attributes
        if any(estimate(suite, arm, rate(name)) for arm in suite.arms)
    ]
    lengths = [name for name, config in configs.items() if str(config.get("type", "")).startswith("length")]
    if lengths and any(estimate(suite, arm, tokens) for arm in suite.arms):
        found.append(Quantity(lengths[0], labels[lengths[0]], "mean tokens", tokens, False))
    return found


def _quantity(attribute: str, label: str, continuous: bool) -> Quantity:
    symbol = f"mean {label}" if continuous else f"p({label})"
    return Quantity(attribute, label, symbol, rate(attribute), not continuous)


def known_configs(suite: Suite) -> dict[str, Mapping[str, Any]]:
    """The JSON identity of every attribute that some run declares."""
    return {name: config for run in reversed(suite.runs) for name, config in attribute_configs(run).items()}


def attribute_labels(suite: Suite) -> dict[str, str]:
    """Every attribute of a suite with its name for people."""
    configs = known_configs(suite)
    return {name: attribute_label(name, configs.get(name, {})) for name in suite.attributes}


def verdicts(suite: Suite) -> list[Verdict]:
    """One verdict for each quantity that the runs measured."""
    return [_verdict(suite, quantity) for quantity in quantities(suite)]


def _verdict(suite: Suite, quantity: Quantity) -> Verdict:
    shifted = moved(suite, quantity.read)
    reference, dpo = (estimate(suite, arm, quantity.read) for arm in (REFERENCE, DPO))
    others = [arm for arm in suite.arms if arm not in (REFERENCE, DPO)]
    if reference is None or dpo is None or shifted is None:
        missing = "DPO" if dpo is None else "the reference"
        finding = f"{missing} was not measured, so no shift and no share removed can be given."
    else:
        ends = f"from {quantity.number(reference.value)} to {quantity.number(dpo.value)}"
        finding = f"DPO moved {quantity.symbol} {ends}."
        if not shifted.excludes(0.0):
            finding += (
                f" The shift of {_difference(quantity, shifted.estimate)} is not larger than its 95 % interval"
                f"{_interval_text(quantity, shifted)}, so no share removed is given; the held-out gap says more."
            )
    told = [arm for arm in (DPO, *others) if _has_sentence(suite, quantity, arm)]
    sentences = tuple(_arm_sentence(suite, quantity, arm) for arm in told)
    return Verdict(quantity.label, finding[0].upper() + finding[1:], sentences)


def _has_sentence(suite: Suite, quantity: Quantity, arm: str) -> bool:
    """DPO gets a sentence of its own only where the gap stands in for the share removed."""
    if arm != DPO:
        return estimate(suite, arm, quantity.read) is not None
    shifted = moved(suite, quantity.read)
    stands_in = shifted is not None and not shifted.excludes(0.0)
    return stands_in and estimate(suite, DPO, gap(quantity.attribute)) is not None


def _arm_sentence(suite: Suite, quantity: Quantity, arm: str) -> str:
    own, reference = (estimate(suite, name, quantity.read) for name in (arm, REFERENCE))
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    subject = arm_title(arm)
    end = quantity.number(own.value if own else None)
    if found.share is None:
        held_out = estimate(suite, arm, gap(quantity.attribute))
        ending = f"; held-out gap {_gap_text(held_out)}" if held_out else ""
        return f"{subject} ended at {end}{_distance_text(quantity, found)}{ending}."
    if found.share.value < 0:
        return f"{subject} moved further than DPO, to {end}{_distance_text(quantity, found)}."
    share = f"{percent(found.share.value)} of that shift{_seeds_text(found.share)}"
    if found.share.value > 1 and own and reference:
        share += f", passing the reference by {quantity.number(abs(own.value - reference.value))}"
    return f"{subject} removed {share}{_distance_text(quantity, found)}."


def _seeds_text(share: Estimate) -> str:
    """The interval of a share over seeds, in parentheses; nothing for one seed."""
    if len(share.values) == 1:
        return ""
    ends = f"{decimal(100 * share.interval.low, 0)} to {percent(share.interval.high)}"
    return f" (95\u00a0% interval {ends}, {len(share.values)} seeds)"


def _distance_text(quantity: Quantity, found: Removal) -> str:
    if found.distance is None:
        return ""
    unit = " in log-odds" if quantity.is_rate else ""
    return f"; distance to the reference{unit} {_difference(quantity, found.distance.value)}"


def _difference(quantity: Quantity, value: float) -> str:
    return signed(value, 2 if quantity.is_rate else 1)


def _gap_text(held_out: Estimate) -> str:
    interval = held_out.interval
    return f"{signed(held_out.value, 3)} ({signed(interval.low, 3)} to {signed(interval.high, 3)})"


def _interval_text(quantity: Quantity, interval) -> str:
    return f" ({_difference(quantity, interval.low)} to {_difference(quantity, interval.high)})"


def _anchor(suite: Suite) -> str:
    golden = [arm_title(arm) for arm in suite.arms if anchor_of_run(suite.of(arm)[0]) == "gold"]
    if not golden:
        return "The anchor is the reference."
    return f"The anchor is the reference, except for {', '.join(golden)}, whose level gold annotators fix."


def limits(suite: Suite) -> list[str]:
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
