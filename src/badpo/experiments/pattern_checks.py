"""Orders with intervals: whether a reading over seeds lies above, below or near a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from badpo.experiments.suite_tables import Found, place_of
from badpo.results.labels import signed
from badpo.theory.summaries import Interval, t_interval


@dataclass(frozen=True)
class Pattern:
    """Whether an order was found.

    Attributes
    ----------
    sentence : str
        What the paper found.
    holds : bool or None
        None where the runs that it needs are not there.
    figures : tuple of str
        What was measured, one line each.
    """

    sentence: str
    holds: bool | None
    figures: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """In two words or three."""
        return {True: "reproduced", False: "pattern not reproduced", None: "not measured"}[self.holds]


@dataclass(frozen=True)
class Check:
    """One reading of a pattern: in words with its interval, and whether it is as the paper has it."""

    figure: str
    holds: bool | None


def pattern(sentence: str, checks: Sequence[Check]) -> Pattern:
    """A pattern holds where all of its readings do; with one missing it is not measured, unless another fails."""
    found = [check.holds for check in checks]
    holds = False if False in found else None if None in found or not found else True
    return Pattern(sentence, holds, tuple(check.figure for check in checks))


def above(name: str, values: Sequence[float], bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies above a bound: its whole interval, or the value itself at a single seed."""
    return _check(name, values, places, lambda found: found.low > bound, lambda value: value > bound)


def below(name: str, values: Sequence[float], bound: float = 0.0, places: int = 3) -> Check:
    """Whether a reading lies below a bound, as `above`."""
    return _check(name, values, places, lambda found: found.high < bound, lambda value: value < bound)


def not_above(name: str, values: Sequence[float], bound: float = 0.0, places: int = 3) -> Check:
    """Whether nothing says that a reading lies above a bound: its interval is not all above it."""
    return _check(name, values, places, lambda found: found.low <= bound, lambda value: value <= bound)


def within(name: str, values: Sequence[float], center: float, distance: float, places: int = 3) -> Check:
    """Whether the mean of a reading is no further than this from a value."""
    return _check(
        name,
        values,
        places,
        lambda found: abs(found.estimate - center) <= distance,
        lambda value: abs(value - center) <= distance,
    )


def _check(
    name: str,
    values: Sequence[float],
    places: int,
    of_interval: Callable[[Interval], bool],
    of_value: Callable[[float], bool],
) -> Check:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return Check(f"{name}: not measured", None)
    if len(known) == 1:
        return Check(f"{name}: {signed(known[0], places)} (one seed, no interval)", of_value(known[0]))
    found = t_interval(known)
    ends = f"95 % interval {signed(found.low, places)} to {signed(found.high, places)}, {len(known)} seeds"
    return Check(f"{name}: {signed(found.estimate, places)} ({ends})", of_interval(found))


# -- readings ------------------------------------------------------------------------------------------------


def shifts(found: Found, condition: str, place: str) -> list[float]:
    """A condition's reading minus the reference's, at each seed."""
    base = place_of(found.readouts("reference"), place)
    return [] if base is None else [value - base for value in found.values(condition, place).values()]


def differences(found: Found, one: str, other: str, source: str, against: str = "dpo") -> list[float]:
    """One condition's reading minus another's, each seed against itself."""
    a, b = found.values(one, source, against), found.values(other, source, against)
    return [a[seed] - b[seed] for seed in a if seed in b]


def removed(found: Found, condition: str, place: str, against: str = "dpo") -> list[float]:
    """Share of DPO's shift that a condition does not make, at each seed."""
    return list(found.values(condition, f"removed:{place}", against).values())


def plain(found: Found, condition: str, place: str) -> list[float]:
    """A reading at each seed."""
    return list(found.values(condition, place).values())
