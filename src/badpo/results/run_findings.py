"""Write findings about trained runs as sentences: anchors, attribute rates, and the length of each arm's answers.

The template `run_sentences.jinja` contains the sentences. This module decides which sentences apply to the runs.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from badpo.data.privacy import rounded_count
from badpo.results.formatting import (
    DPO,
    PLACEBO,
    REFERENCE,
    Finding,
    attribute_label,
    count_text,
    decimal,
    decimal_places,
    sentence,
    signed,
)
from badpo.results.run_files import MeasuredRuns, Run, is_continuous

Anchor = Literal["reference", "warm", "gold", "none"]
ANCHORS: tuple[Anchor, ...] = ("reference", "warm", "gold", "none")
_sentence = partial(sentence, "run_sentences.jinja")


def anchor_of_run(run: Run) -> Anchor:
    """Return the anchor of a run. Anchors fix the shared bias, which votes do not identify."""
    if not run.bias.parts:
        return "none"
    if run.bias.gold_annotators:
        return "gold"
    return "reference" if run.recipe_bias.get("warm_start", "zero") == "zero" else "warm"


def gold_sentence(run: Run) -> str:
    """Describe the anchor of a run with gold annotators without naming them; counts are rounded to the nearest ten."""
    votes = ", ".join(
        f"{attribute_label(name, run.configs.get(name, {}))} {count_text(rounded_count(n))}"
        for name, n in run.bias.extra.gold_votes.items()
    )
    n_gold = count_text(rounded_count(len(run.bias.gold_annotators)))
    return _sentence("gold", n_gold=n_gold, votes=votes)


def anchor_sentences(suite: MeasuredRuns) -> list[str]:
    """Describe what anchors each arm of a suite; empty if the suite contains only the reference."""
    runs, sentences = [run for run in suite.runs if run.arm != REFERENCE], []
    margins = [first for run in runs if (first := run.bias.extra.first_margin)]
    off = [first.mean for first in margins if first.difference > first.tolerance]
    if off:
        margin = max(off, key=abs)
        sentences.append(_sentence("not_at_reference", n_off=len(off), n_runs=len(runs), margin=margin))
    trained = [suite.of(arm)[0] for arm in suite.arms if arm not in (REFERENCE, PLACEBO)]
    for kind in ANCHORS:
        found = [run for run in trained if anchor_of_run(run) == kind]
        if kind == "gold":
            sentences += [
                _sentence("anchor", kind=kind, titles=run.title, gold=gold_sentence(run))
                for run in found
            ]
        elif found:
            *titles, last = (run.title for run in found)
            names = f"{', '.join(titles)} and {last}" if titles else last
            sentences.append(_sentence("anchor", kind=kind, titles=names))
    return sentences


@dataclass(frozen=True)
class Quantity:
    """A quantity that DPO may change: the rate of an attribute, or an amount such as the length of answers.

    ``symbol`` is the notation of the quantity, ``noun`` is its name in a sentence, and ``place`` is its path in the
    readouts. ``places`` is the number of decimal places needed to show the differences between the arms.
    """

    attribute: str
    symbol: str
    noun: str
    place: tuple[str, ...]
    is_rate: bool
    places: int

    def number(self, value: float | None) -> str:
        """Format a value of this quantity."""
        return decimal(value, self.places)

    def difference(self, value: float | None) -> str:
        """Format a difference between two values of this quantity; differences between rates are in log-odds."""
        return signed(value, self.places)


def quantities(suite: MeasuredRuns) -> list[Quantity]:
    """Return all measured quantities: attribute rates and, if a length is declared, the mean number of tokens."""
    configs, labels, found = suite.configs, suite.labels, []
    for name, label in labels.items():
        is_rate = not is_continuous(configs[name])
        symbol = f"p({label})" if is_rate else f"mean {label}"
        noun = f"rate {symbol}" if is_rate else f"mean of {label}"
        found.append(_quantity(suite, name, symbol, noun, ("best_rates", name), is_rate))
    if name := next(filter(suite.is_length, labels), ""):
        found.append(_quantity(suite, name, "mean tokens", "mean number of tokens", ("tokens",), False))
    return [q for q in found if any(suite.estimate(arm, *q.place) for arm in suite.arms)]


def _quantity(
    suite: MeasuredRuns, name: str, symbol: str, noun: str, place: tuple[str, ...], is_rate: bool
) -> Quantity:
    """Return a quantity with enough decimal places to show how far each arm is from the first arm."""
    known = [found.value for arm in suite.arms if (found := suite.estimate(arm, *place))]
    distances = [value - known[0] for value in known]
    return Quantity(
        name, symbol, noun, place, is_rate, decimal_places(distances, least=2 if is_rate else 1)
    )


def quantity_findings(suite: MeasuredRuns) -> list[Finding]:
    """Return a finding for each measured quantity, with DPO's shift and the share of the shift that each arm removed.

    The finding only lists the values if DPO or the reference was not measured, or if the tilt of a placebo was
    measured. In a report with a placebo, other findings compare the arms with the placebo.
    """
    has_placebo = any(run.readouts.tilt for run in suite.of(PLACEBO))
    return [
        _values_finding(suite, quantity)
        if has_placebo or suite.moved(*quantity.place) is None
        else _shift_finding(suite, quantity)
        for quantity in quantities(suite)
    ]


def _title(quantity: Quantity) -> str:
    return f"Answers: {quantity.symbol}"


def _values_finding(suite: MeasuredRuns, quantity: Quantity) -> Finding:
    entries = [
        (suite.of(arm)[0].title, found.value)
        for arm in suite.arms
        if (found := suite.estimate(arm, *quantity.place))
    ]
    return Finding(_title(quantity), _sentence("values", quantity=quantity, entries=entries), [])


def _shift_finding(suite: MeasuredRuns, quantity: Quantity) -> Finding:
    found = {arm: one for arm in suite.arms if (one := suite.estimate(arm, *quantity.place))}
    gaps = {arm: suite.estimate(arm, "heldout", quantity.attribute) for arm in suite.arms}
    reference, dpo, shifted = found.get(REFERENCE), found.get(DPO), suite.moved(*quantity.place)
    has_gap = gaps.get(DPO) is not None
    text = _sentence(
        "quantity", quantity=quantity, reference=reference, dpo=dpo, shifted=shifted, has_gap=has_gap
    )
    arms = [arm for arm in found if arm not in (REFERENCE, DPO)]
    if has_gap and shifted and not shifted.excludes(0.0):
        arms.insert(0, DPO)  # without a removed share, the finding compares held-out gaps
    sentences = [
        _sentence(
            "arm",
            quantity=quantity,
            title=suite.of(arm)[0].title,
            own=found[arm],
            reference=reference,
            removal=suite.removal(arm, quantity.is_rate, *quantity.place),
            gap=gaps[arm],
            number=partial(signed, places=3),
        )
        for arm in arms
    ]
    return Finding(_title(quantity), text, [("", sentence) for sentence in sentences])
