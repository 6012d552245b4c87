"""Patterns that the paper found, as bounds on the readouts of a suite, and the verdict on each pattern.

``patterns.yaml`` has the patterns and explains their bounds. ``docs/reproduce.md`` lists the rules that were added
after the first runs of `names`, and their effects.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from badpo.data.yaml_files import read_yaml
from badpo.results.formatting import signed
from badpo.theory.summaries import t_interval
from badpo_paper.tables import PanelRuns

# In order of precedence: a pattern gets the first of these verdicts that one of its checks has, so that one failed
# check is enough to reject the pattern.
Verdict = Literal["pattern not reproduced", "not measured", "undecided", "reproduced"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

# Name of a pattern -> its sentence, place, suites and readings. The file explains its keys.
PATTERNS: dict[str, Any] = read_yaml(Path(__file__).with_name("patterns.yaml")).values


def select_patterns(suite: str) -> list[str]:
    """Names of the patterns that the tables of a suite show."""
    return [name for name, pattern in PATTERNS.items() if suite in pattern["suites"]]


# -- bounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Bounds on the confidence interval of a reading over seeds, or on its value if there is only one seed.

    If an interval contains a bound, the verdict is "undecided" if ``may_be_open`` is true, and "pattern not reproduced"
    otherwise. If ``of`` names a source, the bounds are multiples of the mean of this source. ``must_contain`` inverts
    the order: the interval must contain ``low``.
    """

    low: float = -inf
    high: float = inf
    may_be_open: bool = False
    of: str = ""
    must_contain: bool = False

    def verdict(self, low: float, high: float) -> Verdict:
        """Verdict on an interval with the ends ``low`` and ``high``."""
        if self.must_contain:
            return "reproduced" if low <= self.low <= high else "pattern not reproduced"
        if not self.may_be_open:
            return "reproduced" if self.low < low and high < self.high else "pattern not reproduced"
        if low > self.high or high < self.low:
            return "pattern not reproduced"
        return "reproduced" if self.low <= low and high <= self.high else "undecided"

    def asked(self, places: int) -> str:
        """The bounds in words."""
        low, high = signed(self.low, places), signed(self.high, places)
        if self.must_contain:
            return f"an interval that contains {low}"
        if self.high == inf:
            return f"above {low}"
        if self.low == -inf:
            return f"not above {high}" if self.may_be_open else f"below {high}"
        return f"within {low} to {high}" if self.may_be_open else f"between {low} and {high}"


def parse_order(text: str) -> Order:
    """Read an order of ``patterns.yaml``.

    The whole interval must lie on the named side or between the bounds. "not above" and "within" allow an interval that
    contains a bound; the pattern is then undecided.

    Examples
    --------
    >>> parse_order("between 0.5 and 1.1 times dpo tokens.mean")
    Order(low=0.5, high=1.1, may_be_open=False, of='dpo tokens.mean', must_contain=False)
    >>> parse_order("within 0.1 of 0.5") == Order(0.4, 0.6, may_be_open=True)
    True
    """
    words, _, of = text.partition(" times ")
    numbers = [float(word) for word in words.split() if word.lstrip("-")[0].isdigit()]
    match words.split():
        case ["above", _]:
            return Order(low=numbers[0], of=of)
        case ["below", _]:
            return Order(high=numbers[0], of=of)
        case ["not", "above", _]:
            return Order(high=numbers[0], may_be_open=True, of=of)
        case ["between", _, "and", _]:
            return Order(numbers[0], numbers[1], of=of)
        case ["within", _, "of", _]:
            distance, center = numbers
            return Order(center - distance, center + distance, may_be_open=True, of=of)
        case ["containing", _]:
            return Order(low=numbers[0], of=of, must_contain=True)
    raise ValueError(f"unknown order: {text}")


# -- readings ---------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One reading of a pattern: its text with the interval, its verdict, and whether one of its runs exists."""

    figure: str
    verdict: Verdict
    is_begun: bool


def read(found: PanelRuns, source: str) -> tuple[pd.Series, str]:
    """Value of a source at each planned seed (NaN if missing), and the reason if the value is not defined.

    A source consists of a condition and a column's source (`badpo_paper.suites.Columns`), for example ``pooled
    tokens.mean``. A removed share refers to DPO's shift, or to the shift of a condition that is named at the end. Two
    sources separated by " - " are subtracted seed by seed.
    """
    one, _, other = source.partition(" - ")
    if other:
        (values, reason), (others, other_reason) = read(found, one), read(found, other)
        both = pd.concat([values, others], axis=1, join="inner")
        return both[0] - both[1], reason or other_reason
    condition, column, against = (*source.split(), "dpo")[:3]
    planned, reason = found.planned(condition), ""
    if column.startswith("removed:"):
        planned = tuple(seed for seed in planned if seed in found.planned(against))
        reason = found.explain_missing_share(against, column)
    values = found.values(condition, column, against)
    return pd.Series(values, dtype=float).reindex(planned), reason


def check(name: str, values: pd.Series, order: Order, places: int = 3, reason: str = "") -> Check:
    """Check a reading. The verdict is "not measured" if a planned seed is missing or a reason is given."""
    known = values.dropna().to_numpy()
    if reason:
        return Check(f"{name}: {reason}", "not measured", True)
    if not len(known) or len(known) < len(values):
        seeds = f"{len(known)} of {len(values)} seeds"
        return Check(f"{name}: not measured, {seeds}", "not measured", len(known) > 0)
    low = high = estimate = known[0]
    ends = "one seed, no interval"
    if len(known) > 1:
        found = t_interval(known)
        estimate, low, high = found.estimate, found.low, found.high
        ends = f"95 % CI {signed(low, places)} to {signed(high, places)}, {len(known)} seeds"
    told = f"{name}: {signed(estimate, places)} ({ends}; required: {order.asked(places)})"
    return Check(told, order.verdict(low, high), True)


# -- the patterns -----------------------------------------------------------------------------------------------------

# Values that replace a field of a label and of a source. Each value gives one reading.
EACH = {"arm": ("pooled", "shared_mean"), "name": ("woman", "black"), "letter": ("A", "B", "C")}
# Beginning of a column's source -> number of decimals. Other columns have three decimals.
PLACES = {"removed:": 2, "theta.": 2, "shift:tokens": 1, "tokens": 1, "kl": 4, "type:": 1}


@dataclass(frozen=True)
class Pattern:
    """A pattern of the paper, its verdict and the figures that decide it."""

    sentence: str
    place: str
    verdict: Verdict
    figures: tuple[str, ...]
    is_begun: bool

    @property
    def holds(self) -> bool | None:
        """Whether the pattern was reproduced; None if the verdict is "undecided" or "not measured"."""
        return {"reproduced": True, "pattern not reproduced": False}.get(self.verdict)


def evaluate_pattern(name: str, found: PanelRuns) -> Pattern:
    """Evaluate one pattern on the runs of a panel."""
    asked = PATTERNS[name]
    checks = [
        one
        for label, (source, order) in asked["reads"].items()
        for one in _checks(found, label, source, order)
    ]
    verdict = min((one.verdict for one in checks), key=VERDICTS.index)
    figures = tuple(one.figure for one in checks)
    return Pattern(asked["says"], asked["place"], verdict, figures, any(one.is_begun for one in checks))


def _checks(found: PanelRuns, label: str, source: str, asked: str) -> Iterator[Check]:
    """Check the readings of a label and a source for all values of their fields."""
    order, column = parse_order(asked), source.split()[1]
    places = next((n for start, n in PLACES.items() if column.startswith(start)), 3)
    unit = read(found, order.of)[0] if order.of else None
    if unit is not None:
        order = replace(order, low=order.low * unit.mean(), high=order.high * unit.mean())
    fields = [field for field in EACH if f"{{{field}}}" in label]
    for values in product(*map(EACH.__getitem__, fields)):
        given = dict(zip(fields, values, strict=True))
        reading, reason = read(found, source.format(**given))
        if unit is not None:  # a seed without the unit is not measured
            reading = reading.where(unit.reindex(reading.index).notna())
        yield check(label.format(**given), reading, order, places, reason)


def evaluate_patterns(names: Iterable[str], panels: Sequence[PanelRuns]) -> list[Pattern]:
    """Evaluate every pattern on every panel with some of its runs, or on the first panel if no panel has runs."""
    results = []
    for name in names:
        each = [(found, evaluate_pattern(name, found)) for found in panels]
        begun = [(found, one) for found, one in each if one.is_begun] or each[:1]
        for found, one in begun:
            where = f" ({found.folder.name})" if len(begun) > 1 else ""
            results.append(replace(one, sentence=one.sentence + where))
    return results
