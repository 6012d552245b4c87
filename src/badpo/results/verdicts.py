"""What the readings say, in sentences: what DPO moved, how much of it an arm removed, where it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from badpo.results.labels import DPO, REFERENCE, arm_title, decimal, percent, rate_symbol, shown, signed
from badpo.results.readings import Estimate, Read, Removal, estimate, gap, moved, rate, removal, tokens
from badpo.results.run_files import Suite, attribute_configs, read_planted


@dataclass(frozen=True)
class Quantity:
    """Something that DPO may move: the rate of an attribute, or the length of answers.

    Attributes
    ----------
    attribute : str
        The declared attribute that it belongs to.
    symbol : str
        How it is written.
    read : function of a run
    is_rate : bool
        A probability; otherwise a number with a unit.
    """

    attribute: str
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
    configs = known_configs(suite)
    found = [
        Quantity(name, rate_symbol(name, configs.get(name, {})), rate(name), True)
        for name in suite.attributes
        if any(estimate(suite, arm, rate(name)) for arm in suite.arms)
    ]
    lengths = [name for name, config in configs.items() if str(config.get("type", "")).startswith("length")]
    if lengths and any(estimate(suite, arm, tokens) for arm in suite.arms):
        found.append(Quantity(lengths[0], "mean tokens", tokens, False))
    return found


def known_configs(suite: Suite) -> dict[str, Mapping[str, Any]]:
    """The JSON identity of every attribute that some run declares."""
    return {name: config for run in reversed(suite.runs) for name, config in attribute_configs(run).items()}


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
    sentences = tuple(_arm_sentence(suite, quantity, arm) for arm in [DPO, *others] if _has_sentence(suite, quantity, arm))
    return Verdict(shown(quantity.attribute), finding[0].upper() + finding[1:], sentences)


def _has_sentence(suite: Suite, quantity: Quantity, arm: str) -> bool:
    """DPO gets a sentence of its own only where the gap stands in for the share removed."""
    if arm != DPO:
        return estimate(suite, arm, quantity.read) is not None
    shifted = moved(suite, quantity.read)
    return shifted is not None and not shifted.excludes(0.0) and estimate(suite, DPO, gap(quantity.attribute)) is not None


def _arm_sentence(suite: Suite, quantity: Quantity, arm: str) -> str:
    own = estimate(suite, arm, quantity.read)
    reference = estimate(suite, REFERENCE, quantity.read)
    found = removal(suite, arm, quantity.read, quantity.is_rate)
    subject = arm_title(arm)
    if own is None:
        return f"{subject} was not measured."
    if found.share is None:
        held_out = estimate(suite, arm, gap(quantity.attribute))
        ending = f"; held-out gap {_gap_text(held_out)}" if held_out else ""
        return f"{subject} ended at {quantity.number(own.value)}{_distance_text(quantity, found)}{ending}."
    past = found.share.value > 1 and reference is not None
    passed = f", passing the reference by {quantity.number(abs(own.value - reference.value))}" if past else ""
    if found.share.value < 0:
        return f"{subject} moved further than DPO, to {quantity.number(own.value)}{_distance_text(quantity, found)}."
    return f"{subject} removed {share_text(found.share)} of that shift{passed}{_distance_text(quantity, found)}."


def share_text(share: Estimate) -> str:
    """A share removed, with its interval over seeds where there are several.

    Examples
    --------
    >>> from badpo.theory.summaries import t_interval
    >>> share_text(Estimate(t_interval([0.89]), (0.89,), (42,))).replace("\\u00a0", " ")
    '89 %'
    """
    interval = share.interval
    if len(share.values) == 1:
        return percent(share.value)
    return (
        f"{percent(share.value)} (95\u00a0% interval {decimal(100 * interval.low, 0)} to "
        f"{percent(interval.high)} over {len(share.values)} seeds)"
    )


def _distance_text(quantity: Quantity, found: Removal) -> str:
    if found.distance is None:
        return ""
    unit = " in log-odds" if quantity.is_rate else " in tokens"
    return f"; distance to the reference{unit} {_difference(quantity, found.distance.value)}"


def _difference(quantity: Quantity, value: float) -> str:
    return signed(value, 2 if quantity.is_rate else 1)


def _gap_text(held_out: Estimate) -> str:
    interval = held_out.interval
    return f"{signed(held_out.value, 3)} ({signed(interval.low, 3)} to {signed(interval.high, 3)})"


def _interval_text(quantity: Quantity, interval) -> str:
    return f" ({_difference(quantity, interval.low)} to {_difference(quantity, interval.high)})"


def limits(suite: Suite) -> list[str]:
    """What the numbers cannot say, given what the runs are."""
    found = [
        "The level that all annotators share is not identified by their votes: raising every theta by c and taking c "
        "times the attribute difference out of the policy's reward explains every vote equally well. Votes tell how "
        "annotators differ from each other; where theta as a whole ends is set by where training starts, at zero.",
        "The anchor is the reference. \u201cRemoved\u201d means kept close to the reference\u2019s own rate; whether "
        "that rate is the right one is a decision for people, and no figure on this page makes it.",
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
