"""Orders with intervals: whether a reading over seeds lies above, below or near a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from badpo.experiments.suite_tables import Found, place_of
from badpo.results.labels import signed
from badpo.theory.summaries import t_interval

Verdict = Literal["reproduced", "pattern not reproduced", "undecided", "not measured"]
# Of several readings the pattern has the first of these that one of them has.
VERDICTS: tuple[Verdict, ...] = ("pattern not reproduced", "not measured", "undecided", "reproduced")
# What the interval from its low to its high end says of an order; None where it says neither.
Order = Callable[[float, float], bool | None]


@dataclass(frozen=True)
class Reading:
    """A number at each seed.

    Attributes
    ----------
    values : mapping of int to float
        At each seed that has it.
    planned : tuple of int
        The seeds that it takes to say something of it: those at which all runs that it is made of are planned.
    reason : str
        Why it is not defined, whatever was run; empty where it is.
    """

    values: Mapping[int, float]
    planned: tuple[int, ...]
    reason: str = ""

    def minus(self, other: Reading) -> Reading:
        """The difference from another reading, each seed against itself."""
        values = {
            seed: self.values[seed] - other.values[seed] for seed in self.values if seed in other.values
        }
        planned = tuple(seed for seed in self.planned if seed in other.planned)
        return Reading(values, planned, self.reason or other.reason)


@dataclass(frozen=True)
class Check:
    """One reading of a pattern in words with its interval, what it says, and whether any of its runs are there."""

    figure: str
    verdict: Verdict
    is_begun: bool


@dataclass(frozen=True)
class Pattern:
    """Whether an order was found.

    Attributes
    ----------
    sentence : str
        What the paper found.
    verdict : str
        ``undecided`` where it was measured and an interval reaches to both sides; ``not measured`` where runs are not
        there, or what it asks for is not defined.
    figures : tuple of str
        What was measured, one line each.
    is_begun : bool
        Whether any of its runs are there.
    """

    sentence: str
    verdict: Verdict
    figures: tuple[str, ...]
    is_begun: bool

    @property
    def holds(self) -> bool | None:
        """None where nothing was decided."""
        return {"reproduced": True, "pattern not reproduced": False}.get(self.verdict)


def pattern(sentence: str, checks: Sequence[Check]) -> Pattern:
    """A pattern holds where all of its readings do; one that fails fails it, whatever the others say."""
    verdict = min((check.verdict for check in checks), key=VERDICTS.index)
    figures = tuple(check.figure for check in checks)
    return Pattern(sentence, verdict, figures, any(check.is_begun for check in checks))


# -- orders --------------------------------------------------------------------------------------------------
# Each asks for the whole interval; where one seed is all that is planned, for the value itself.


def above(name: str, reading: Reading, bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies above a bound; not reproduced where its interval reaches down to it."""
    return _check(name, reading, places, f"above {signed(bound, places)}", lambda low, high: low > bound)


def below(name: str, reading: Reading, bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies below a bound, as `above`."""
    return _check(name, reading, places, f"below {signed(bound, places)}", lambda low, high: high < bound)


def not_above(name: str, reading: Reading, bound: float = 0.0, margin: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies no further above a bound than the margin; undecided where its interval reaches past."""
    limit = bound + margin
    return _check(name, reading, places, f"not above {signed(limit, places)}", _inside(-float("inf"), limit))


def within(name: str, reading: Reading, center: float, distance: float, places: int = 3) -> Check:
    """Whether a reading is no further than this from a value; undecided where its interval reaches past."""
    low, high = center - distance, center + distance
    words = f"within {signed(low, places)} to {signed(high, places)}"
    return _check(name, reading, places, words, _inside(low, high))


def _inside(least: float, most: float) -> Order:
    def order(low: float, high: float) -> bool | None:
        if low > most or high < least:
            return False
        return True if least <= low and high <= most else None

    return order


def _check(name: str, reading: Reading, places: int, asked: str, order: Order) -> Check:
    known = [reading.values[seed] for seed in reading.planned if seed in reading.values]
    if reading.reason:
        return Check(f"{name}: {reading.reason}", "not measured", True)
    if not known or len(known) < len(reading.planned):
        seeds = f"{len(known)} of {len(reading.planned)} seeds"
        return Check(f"{name}: not measured, {seeds}", "not measured", bool(known))
    if len(known) == 1:
        estimate = low = high = known[0]
        ends = "one seed, no interval"
    else:
        found = t_interval(known)
        estimate, low, high = found.estimate, found.low, found.high
        ends = f"95 % interval {signed(low, places)} to {signed(high, places)}, {len(known)} seeds"
    verdicts: dict[bool | None, Verdict] = {
        True: "reproduced",
        False: "pattern not reproduced",
        None: "undecided",
    }
    return Check(
        f"{name}: {signed(estimate, places)} ({ends}; asked: {asked})", verdicts[order(low, high)], True
    )


# -- readings ------------------------------------------------------------------------------------------------


def plain(found: Found, condition: str, place: str) -> Reading:
    """A reading as it stands in ``readouts.json``."""
    return Reading(found.values(condition, place), found.planned(condition))


def shifts(found: Found, condition: str, place: str) -> Reading:
    """A condition's reading minus the reference's."""
    base = place_of(found.readouts("reference"), place)
    values = {} if base is None else {s: v - base for s, v in found.values(condition, place).items()}
    return Reading(values, found.planned(condition))


def removed(found: Found, condition: str, place: str, against: str = "dpo") -> Reading:
    """Share of DPO's shift that a condition does not make; not defined where DPO made none."""
    planned = tuple(seed for seed in found.planned(condition) if seed in found.planned(against))
    values = found.values(condition, f"removed:{place}", against)
    return Reading(values, planned, found.no_share(against, place))
