"""Readings of runs with their intervals: over seeds where there are several, within the run where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from badpo.results.labels import DPO, REFERENCE
from badpo.results.run_files import Run, Suite
from badpo.theory.summaries import (
    Interval,
    log_odds_distance,
    share_removed,
    shift,
    t_interval,
    wilson_interval,
)

Read = Callable[[Run], Interval | None]
_Z = float(ndtri(0.975))


@dataclass(frozen=True)
class Estimate:
    """A reading of an arm.

    Attributes
    ----------
    interval : Interval
        The mean over seeds with Student's t interval, or the run's own interval when there is one seed.
    values : tuple of float
        One per seed, in the order of ``seeds``.
    seeds : tuple of int
    """

    interval: Interval
    values: tuple[float, ...]
    seeds: tuple[int, ...]

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return self.interval.estimate


@dataclass(frozen=True)
class Removal:
    """What an arm did with DPO's shift of one rate or length.

    Attributes
    ----------
    share : Estimate or None
        Share of DPO's shift that the arm removed, per seed and averaged. None where DPO did not move by more than
        its interval: the share would divide by noise.
    distance : Estimate or None
        Distance to the reference: in log-odds for a rate, in the reading's own unit otherwise.
    """

    share: Estimate | None
    distance: Estimate | None


def estimate(suite: Suite, arm: str, read: Read) -> Estimate | None:
    """A reading of an arm over its seeds; None when no run of the arm has it."""
    found = [(run.seed, reading) for run in suite.of(arm) if (reading := read(run)) is not None]
    found = [(seed, reading) for seed, reading in found if math.isfinite(reading.estimate)]
    if not found:
        return None
    values = tuple(reading.estimate for _, reading in found)
    interval = t_interval(values) if len(found) > 1 else found[0][1]
    return Estimate(interval, values, tuple(seed for seed, _ in found))


def rate(attribute: str) -> Read:
    """Probability of the attribute at the place where it is measured, else its mean over sampled answers."""

    def read(run: Run) -> Interval | None:
        for kind in ("rates", "generated"):
            cell = run.readouts.get(kind, {}).get(attribute)
            if cell is not None:
                return _normal(cell["rate"], cell.get("se"))
        cell = run.readouts.get("sampled", {}).get(attribute)
        return None if cell is None else _stated(cell["rate"], cell.get("low"), cell.get("high"))

    return read


def tokens(run: Run) -> Interval | None:
    """Mean length of sampled answers in tokens."""
    cell = run.readouts.get("tokens")
    return None if cell is None else _normal(cell["mean"], cell.get("se"))


def gap(attribute: str) -> Read:
    """Held-out accuracy on judgments that differ on the attribute, minus that on the others; "any" for any."""

    def read(run: Run) -> Interval | None:
        cell = run.readouts.get("heldout", {}).get(attribute)
        return None if cell is None else _stated(cell["gap"], cell.get("gap_low"), cell.get("gap_high"))

    return read


def kl(run: Run) -> Interval | None:
    """Distance from the reference in nats per token."""
    cell = run.readouts.get("kl")
    return None if cell is None else _normal(cell["per_token"], cell.get("se"))


def accuracy(kind: str, attribute: str, annotator_class: str) -> Read:
    """Share of held-out votes predicted; ``kind`` is "votes" (own theta) or "ceiling" (planted theta)."""

    def read(run: Run) -> Interval | None:
        cell = run.readouts.get(kind, {}).get(attribute, {}).get(annotator_class)
        if cell is None or cell["accuracy"] is None:
            return None
        if cell.get("se") is not None:
            return _normal(cell["accuracy"], cell["se"])
        interval = wilson_interval(round(cell["accuracy"] * cell["n"]), cell["n"])
        return replace(interval, estimate=cell["accuracy"])

    return read


def votes_minus_ceiling(attribute: str, annotator_class: str) -> Read:
    """Votes predicted by the own theta minus votes predicted by the planted one, on the same votes."""

    def read(run: Run) -> Interval | None:
        cell = run.readouts.get("votes_minus_ceiling", {}).get(attribute, {}).get(annotator_class)
        if cell is not None:
            return _stated(cell["difference"], cell.get("low"), cell.get("high"))
        own, planted = (accuracy(kind, attribute, annotator_class)(run) for kind in ("votes", "ceiling"))
        return (
            None if own is None or planted is None else _stated(own.estimate - planted.estimate, None, None)
        )

    return read


def offline(attribute: str) -> Read:
    """Log-odds that the side with the attribute wins a training vote, before any model is trained."""
    return _theta(attribute, "offline")


def correlation(attribute: str) -> Read:
    """Correlation over annotators of learned and planted theta."""
    return _theta(attribute, "correlation")


def moved(suite: Suite, read: Read) -> Interval | None:
    """How far DPO moved a reading from the reference; None when either was not measured.

    Over several seeds the reference counts as exact. With one seed both runs' own standard errors enter, as if
    they were independent: they are measured on the same prompts, so the interval is rather too wide.
    """
    reference, dpo = (estimate(suite, arm, read) for arm in (REFERENCE, DPO))
    if reference is None or dpo is None:
        return None
    if len(dpo.values) > 1:
        return shift(dpo.values, reference.value)
    se = math.hypot(dpo.interval.se, reference.interval.se)
    return _normal(dpo.value - reference.value, se)


def removal(suite: Suite, arm: str, read: Read, is_rate: bool) -> Removal:
    """How much of DPO's shift an arm removed, and how far it ended from the reference.

    Parameters
    ----------
    suite : Suite
    arm : str
    read : function of a run
        The reading that DPO shifts.
    is_rate : bool
        Whether the reading is a probability, so that its distance is in log-odds.
    """
    reference, dpo, own = (estimate(suite, name, read) for name in (REFERENCE, DPO, arm))
    if reference is None or own is None:
        return Removal(None, None)
    apart = log_odds_distance if is_rate else np.subtract
    distance = _over(apart(own.values, reference.value), own.seeds)
    shifted = moved(suite, read)
    if dpo is None or shifted is None or not shifted.excludes(0.0):
        return Removal(None, distance)
    common = sorted(set(dpo.seeds) & set(own.seeds))
    if not common:
        return Removal(None, distance)
    shares = share_removed(_at(dpo, common), _at(own, common), reference.value)
    return Removal(_over(shares, common), distance)


def _over(values: ArrayLike, seeds: Sequence[int]) -> Estimate:
    return Estimate(t_interval(values), tuple(np.asarray(values, dtype=np.float64).tolist()), tuple(seeds))


def _at(found: Estimate, seeds: Sequence[int]) -> list[float]:
    values = dict(zip(found.seeds, found.values, strict=True))
    return [values[seed] for seed in seeds]


def _theta(attribute: str, key: str) -> Read:
    def read(run: Run) -> Interval | None:
        cell: Mapping[str, Any] = run.readouts.get("theta", {}).get(attribute, {})
        return None if cell.get(key) is None else _stated(cell[key], None, None)

    return read


def _normal(value: float | None, se: float | None) -> Interval:
    value, se = (math.nan if number is None else number for number in (value, se))
    return Interval(value, se, value - _Z * se, value + _Z * se, 1)


def _stated(value: float | None, low: float | None, high: float | None) -> Interval:
    ends = [math.nan if end is None else end for end in (value, low, high)]
    return Interval(ends[0], (ends[2] - ends[1]) / (2 * _Z), ends[1], ends[2], 1)
