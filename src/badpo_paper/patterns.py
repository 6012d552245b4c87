"""Check the patterns that the paper reports: compare the readouts of a suite with bounds, and return a verdict on each.

``patterns.yaml`` contains the patterns and explains their bounds. ``docs/reproduce.md`` lists the rules that were added
after the first runs of `names`, and the effects of these rules.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, get_args

import pandas as pd

from badpo.data.yaml_files import read_yaml
from badpo.results.formatting import signed
from badpo.theory.summaries import t_interval
from badpo_paper.tables import PanelRuns

# The verdicts, by precedence. A pattern's verdict is the first verdict in this order that any check has.
Verdict = Literal["pattern not reproduced", "not measured", "undecided", "reproduced"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class PatternEntry(TypedDict):
    """Entry of a pattern in ``patterns.yaml``, which explains the keys."""

    place: str
    says: str
    suites: list[str]
    reads: dict[str, tuple[str, str]]


# Name of a pattern -> entry of the pattern in ``patterns.yaml``.
PATTERNS: dict[str, PatternEntry] = read_yaml(Path(__file__).with_name("patterns.yaml")).values


def select_patterns(suite: str) -> list[str]:
    """Select the names of the patterns that a suite evaluates."""
    return [name for name, pattern in PATTERNS.items() if suite in pattern["suites"]]


# -- bounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Bounds on the confidence interval of a figure over seeds or, with only one seed, on the figure itself.

    If the interval contains a bound, the verdict depends on ``may_be_open``: "undecided" if true, and "pattern not
    reproduced" if false. If ``of`` names a source, the bounds are multiples of the mean of this source. If
    ``must_contain`` is true, the interval must instead contain ``low``.
    """

    low: float = -inf
    high: float = inf
    may_be_open: bool = False
    of: str = ""
    must_contain: bool = False

    def judge(self, low: float, high: float) -> Verdict:
        """Return the verdict on a confidence interval with the ends ``low`` and ``high``."""
        if self.must_contain:
            return "reproduced" if low <= self.low <= high else "pattern not reproduced"
        if not self.may_be_open:
            return "reproduced" if self.low < low and high < self.high else "pattern not reproduced"
        if low > self.high or high < self.low:
            return "pattern not reproduced"
        return "reproduced" if self.low <= low and high <= self.high else "undecided"

    def describe(self, decimals: int) -> str:
        """Describe the bounds in words."""
        low, high = signed(self.low, decimals), signed(self.high, decimals)
        if self.must_contain:
            return f"an interval that contains {low}"
        if self.high == inf:
            return f"above {low}"
        if self.low == -inf:
            return f"not above {high}" if self.may_be_open else f"below {high}"
        return f"within {low} to {high}" if self.may_be_open else f"between {low} and {high}"


def parse_order(text: str) -> Order:
    """Parse an order as written in ``patterns.yaml``.

    "above", "below" and "between" require that the whole confidence interval lies on this side of the bound or between
    the bounds. With "not above" and "within", a pattern is undecided if the interval contains a bound.

    Examples
    --------
    >>> parse_order("between 0.5 and 1.1 times dpo tokens.mean")
    Order(low=0.5, high=1.1, may_be_open=False, of='dpo tokens.mean', must_contain=False)
    >>> parse_order("within 0.1 of 0.5") == Order(0.4, 0.6, may_be_open=True)
    True
    """
    bounds, _, of = text.partition(" times ")
    numbers = [float(word) for word in bounds.split() if word.lstrip("-")[0].isdigit()]
    match bounds.split():
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
    """One checked figure of a pattern: its text with the interval, its verdict, and whether any run of it exists."""

    figure: str
    verdict: Verdict
    is_begun: bool


class Reading(NamedTuple):
    """Values of a figure by planned seed (NaN if missing); if the figure is undefined, ``reason`` states why."""

    values: pd.Series
    reason: str


def read_source(runs: PanelRuns, source: str) -> Reading:
    """Read a source of a pattern.

    A source consists of the name of a condition, a space, and the place of a figure as in `badpo_paper.suites.Columns`,
    for example ``pooled tokens.mean``. A removed share is relative to DPO's shift. If the source ends with the name of
    another condition, the removed share is relative to the shift of that condition. If " - " separates two sources, the
    second source is subtracted from the first, seed by seed.
    """
    first, _, second = source.partition(" - ")
    if second:
        minuend, subtrahend = read_source(runs, first), read_source(runs, second)
        both = pd.concat([minuend.values, subtrahend.values], axis=1, join="inner")
        return Reading(both[0] - both[1], minuend.reason or subtrahend.reason)
    condition, column, against = (*source.split(), "dpo")[:3]
    seeds, reason = runs.planned_seeds(condition), ""
    if column.startswith("removed:"):
        seeds = tuple(seed for seed in seeds if seed in runs.planned_seeds(against))
        reason = runs.explain_missing_share(against, column)
    values = runs.values(condition, column, against)
    return Reading(pd.Series(values, dtype=float).reindex(seeds), reason)


def check_reading(label: str, reading: Reading, order: Order, decimals: int = 3) -> Check:
    """Check a figure of a pattern; if a planned seed is missing or a value undefined, the verdict is "not measured"."""
    measured = reading.values.dropna().to_numpy()
    if reading.reason:
        return Check(f"{label}: {reading.reason}", "not measured", True)
    if not len(measured) or len(measured) < len(reading.values):
        figure = f"{label}: not measured, {len(measured)} of {len(reading.values)} seeds"
        return Check(figure, "not measured", len(measured) > 0)
    low = high = estimate = measured[0]
    spread = "one seed, no interval"
    if len(measured) > 1:
        interval = t_interval(measured)
        estimate, low, high = interval.estimate, interval.low, interval.high
        spread = f"95 % CI {signed(low, decimals)} to {signed(high, decimals)}, {len(measured)} seeds"
    requirement = order.describe(decimals)
    figure = f"{label}: {signed(estimate, decimals)} ({spread}; required: {requirement})"
    return Check(figure, order.judge(low, high), True)


# -- the patterns -----------------------------------------------------------------------------------------------------

# A pattern's label and source may contain a field such as {arm}; each value of the field gives one figure.
EACH = {"arm": ("pooled", "shared_mean"), "name": ("woman", "black"), "letter": ("A", "B", "C")}
# Prefix of the column's name in a source -> number of printed decimals; all other figures have three decimals.
DECIMALS = {"removed:": 2, "theta.": 2, "shift:tokens": 1, "tokens": 1, "kl": 4, "type:": 1}


@dataclass(frozen=True)
class Pattern:
    """A pattern of the paper, the verdict on it, and the figures that decide the verdict."""

    sentence: str
    place: str
    verdict: Verdict
    figures: tuple[str, ...]
    is_begun: bool

    @property
    def holds(self) -> bool | None:
        """Whether the pattern was reproduced; None if the verdict is "undecided" or "not measured"."""
        return {"reproduced": True, "pattern not reproduced": False}.get(self.verdict)


def evaluate_pattern(name: str, runs: PanelRuns) -> Pattern:
    """Evaluate a pattern on the runs of a panel."""
    entry = PATTERNS[name]
    checks = [
        check
        for label, (source, order) in entry["reads"].items()
        for check in _check_readings(runs, label, source, order)
    ]
    verdict = min((check.verdict for check in checks), key=VERDICTS.index)
    figures = tuple(check.figure for check in checks)
    is_begun = any(check.is_begun for check in checks)
    return Pattern(entry["says"], entry["place"], verdict, figures, is_begun)


def _check_readings(runs: PanelRuns, label: str, source: str, order_text: str) -> Iterator[Check]:
    """Check a figure of a pattern for every value of the fields (such as {arm}) in its label and source."""
    order, column = parse_order(order_text), source.split()[1]
    decimals = next((n for start, n in DECIMALS.items() if column.startswith(start)), 3)
    unit = read_source(runs, order.of).values if order.of else None
    if unit is not None:
        order = replace(order, low=order.low * unit.mean(), high=order.high * unit.mean())
    fields = [field for field in EACH if f"{{{field}}}" in label]
    for combination in product(*map(EACH.__getitem__, fields)):
        field_values = dict(zip(fields, combination, strict=True))
        values, reason = read_source(runs, source.format(**field_values))
        if unit is not None:  # seeds without a unit are not measured
            values = values.where(unit.reindex(values.index).notna())
        yield check_reading(label.format(**field_values), Reading(values, reason), order, decimals)


def evaluate_patterns(names: Iterable[str], panels: Sequence[PanelRuns]) -> list[Pattern]:
    """Evaluate each pattern on every panel that contains runs of the pattern, or else on the first panel."""
    patterns = []
    for name in names:
        results = [(runs, evaluate_pattern(name, runs)) for runs in panels]
        begun = [(runs, pattern) for runs, pattern in results if pattern.is_begun] or results[:1]
        for runs, pattern in begun:
            panel = f" ({runs.folder.name})" if len(begun) > 1 else ""
            patterns.append(replace(pattern, sentence=pattern.sentence + panel))
    return patterns
