"""Readings of runs with their intervals: over seeds where there are several, within the run where there is one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from badpo.results.labels import DPO, REFERENCE
from badpo.results.run_files import Measured, MeasuredRuns, Run, normal_interval
from badpo.theory.summaries import (
    Interval,
    log_odds_distance,
    share_removed,
    shift,
    t_interval,
)

Read = Callable[[Run], Interval | None]


@dataclass(frozen=True)
class Estimate:
    """A reading of an arm: the mean over seeds, or the one run's own value, with its interval; each seed's value."""

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

    ``share`` is the share of the shift that the arm removed, per seed and averaged; None where DPO did not move by
    more than its interval, since the share would divide by noise. ``distance`` is to the reference: in log-odds for a
    rate, in the reading's own unit otherwise.
    """

    share: Estimate | None
    distance: Estimate | None


def estimate(suite: MeasuredRuns, arm: str, read: Read) -> Estimate | None:
    """A reading of an arm over its seeds; None when no run of the arm has it."""
    read_of = {run.seed: read(run) for run in suite.of(arm)}
    found = {seed: r for seed, r in read_of.items() if r is not None and math.isfinite(r.estimate)}
    if not found:
        return None
    values = tuple(reading.estimate for reading in found.values())
    interval = t_interval(values) if len(found) > 1 else next(iter(found.values()))
    return Estimate(interval, values, tuple(found))


def rate(attribute: str) -> Read:
    """Probability of the attribute at the place where it is measured, else its mean over sampled answers."""

    def read(run: Run) -> Interval | None:
        found = run.readouts
        cell = found.rates.get(attribute) or found.generated.get(attribute) or found.sampled.get(attribute)
        return cell.interval() if isinstance(cell, Measured) else None

    return read


def tokens(run: Run) -> Interval | None:
    """Mean length of sampled answers in tokens."""
    return _interval(run.readouts.tokens)


def gap(attribute: str) -> Read:
    """Held-out accuracy on judgments that differ on the attribute, minus that on the others; "any" for any."""
    return lambda run: _interval(run.readouts.heldout.get(attribute))


def kl(run: Run) -> Interval | None:
    """Distance from the reference in nats per token."""
    return _interval(run.readouts.kl)


def accuracy(kind: Literal["votes", "ceiling"], attribute: str, annotator_class: str) -> Read:
    """Share of held-out votes predicted: ``votes`` by the own theta, ``ceiling`` by the planted one."""

    def read(run: Run) -> Interval | None:
        cells = run.readouts.votes if kind == "votes" else run.readouts.ceiling
        return _interval(cells.get(attribute, {}).get(annotator_class))

    return read


def votes_minus_ceiling(attribute: str, annotator_class: str) -> Read:
    """Votes predicted by the own theta minus votes predicted by the planted one, on the same votes."""

    def read(run: Run) -> Interval | None:
        cell = run.readouts.votes_minus_ceiling.get(attribute, {}).get(annotator_class)
        own = accuracy("votes", attribute, annotator_class)(run)
        planted = accuracy("ceiling", attribute, annotator_class)(run)
        if cell is None and own and planted:
            return normal_interval(own.estimate - planted.estimate, math.nan)
        return _interval(cell)

    return read


def offline(attribute: str) -> Read:
    """Log-odds that the side with the attribute wins a training vote, before any model is trained."""
    return _theta(attribute, "offline")


def correlation(attribute: str) -> Read:
    """Correlation over annotators of learned and planted theta."""
    return _theta(attribute, "correlation")


def moved(suite: MeasuredRuns, read: Read) -> Interval | None:
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
    return normal_interval(dpo.value - reference.value, se)


def removal(suite: MeasuredRuns, arm: str, read: Read, is_rate: bool) -> Removal:
    """How much of DPO's shift an arm removed, and how far it ended from the reference (for a rate in log-odds)."""
    reference, dpo, own = (estimate(suite, name, read) for name in (REFERENCE, DPO, arm))
    if reference is None or own is None:
        return Removal(None, None)
    apart = log_odds_distance if is_rate else np.subtract
    distance = _over(apart(own.values, reference.value), own.seeds)
    shifted = moved(suite, read)
    if dpo is None or shifted is None or not shifted.excludes(0.0):
        return Removal(None, distance)
    of_dpo, of_arm = (dict(zip(found.seeds, found.values, strict=True)) for found in (dpo, own))
    common = sorted(of_dpo.keys() & of_arm.keys())
    if not common:
        return Removal(None, distance)
    pairs = [of_dpo[seed] for seed in common], [of_arm[seed] for seed in common]
    return Removal(_over(share_removed(*pairs, reference.value), common), distance)


def _over(values: ArrayLike, seeds: Sequence[int]) -> Estimate:
    return Estimate(t_interval(values), tuple(np.asarray(values, dtype=np.float64).tolist()), tuple(seeds))


def _interval(cell: Measured | None) -> Interval | None:
    return None if cell is None or cell.value is None else cell.interval()


def _theta(attribute: str, key: str) -> Read:
    def read(run: Run) -> Interval | None:
        value = getattr(run.readouts.theta.get(attribute), key, None)
        return None if value is None else normal_interval(value, math.nan)

    return read
