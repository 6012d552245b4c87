"""Ask, measure, fit a line, ask again: until a trained rate is where it was asked to be.

A stage follows the shift that it is asked for one for one after a deficit that its steps leave. Each round inverts the
line of the rounds before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from badpo.anchoring.rates import RateTable
from badpo.theory.tilt import CalibrationLine, fit_calibration, shift_to_targets

# A fitted slope outside of this is noise of rounds that asked for nearly the same; the steps follow one for one.
SLOPES = (0.4, 2.5)


@dataclass(frozen=True)
class Round:
    """One offset stage.

    Attributes
    ----------
    intended, achieved : array of shape (n_attributes,)
        Shift that was asked for, and the shift of the source that gives the rates which were measured, in log-odds;
        ``achieved`` is NaN where no shift does.
    rate : array of shape (n_attributes,)
        On the prompts that the calibration measures on.
    """

    intended: NDArray[np.float64]
    achieved: NDArray[np.float64]
    rate: NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """The rounds of one anchor.

    Attributes
    ----------
    attributes : tuple of str
    targets, exact : array of shape (n_attributes,)
        The rates asked for, and the shift that reaches them in closed form.
    rounds : tuple of Round
    best : int
        The round whose largest distance from a target is the smallest.
    reason : str
        Why it did not end within the tolerance; empty when it did.
    """

    attributes: tuple[str, ...]
    targets: NDArray[np.float64]
    exact: NDArray[np.float64]
    rounds: tuple[Round, ...]
    best: int
    reason: str

    @property
    def converged(self) -> bool:
        """Whether every rate is within the tolerance of its target."""
        return not self.reason


def calibrate(
    source: RateTable,
    targets: Sequence[float],
    attempt: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    tolerance: float,
    n_rounds: int,
) -> Calibration:
    """Train rounds of an offset stage until every rate is within a tolerance of its target.

    The first round asks for the exact tilt. Later rounds fit a line through the rounds before, of slope 1 after a
    single one.

    Parameters
    ----------
    source : RateTable
        Of the policy that every round starts from.
    targets : sequence of float
        In the order of ``source.attributes``.
    attempt : function of (shift, round number) to array of shape (n_attributes,)
        Trains a stage that asks for the shift, and measures its rates on the prompts that ``source`` was measured on.
    tolerance : float
        Largest distance of a rate from its target.
    n_rounds : int
        Most rounds.

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        What `badpo.theory.tilt.shift_to_targets` refuses: an attribute that is never produced, targets that cannot
        hold together.

    References
    ----------
    BA-DPO, Appendix `app:anchor_experiment`, paragraph "Calibration", where the line was fitted by hand.
    """
    names, wanted = source.attributes, np.asarray(targets, dtype=np.float64)
    exact = shift_to_targets(source.log_probs, source.carries, wanted, names).shift
    intended, rounds, reason = exact, list[Round](), ""
    for number in range(n_rounds):
        rate = attempt(intended, number)
        rounds.append(Round(intended, achieved_shift(source, rate), rate))
        if np.abs(rate - wanted).max() <= tolerance:
            break
        following = np.array([_next_ask(rounds, i, exact[i]) for i in range(len(names))])
        reason = _why_stop(rounds, names, following)
        if reason:
            break
        intended = following
    distance = [float(np.nan_to_num(np.abs(found.rate - wanted), nan=np.inf).max()) for found in rounds]
    best = int(np.argmin(distance))
    if distance[best] <= tolerance:
        reason = ""
    elif not reason:
        reason = _out_of_rounds(rounds[best], names, wanted, tolerance, n_rounds)
    return Calibration(names, wanted, exact, tuple(rounds), best, reason)


def achieved_shift(source: RateTable, rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """The shift of a source that gives some rates, shape (n_attributes,)."""
    shift = _shift_or_nan(source, rate)
    if np.isnan(shift).any():
        alone = [_shift_or_nan(source.of([name]), rate[[i]]) for i, name in enumerate(source.attributes)]
        known = [i for i, found in enumerate(alone) if np.isfinite(found).all()]
        if known:
            shift[known] = _shift_or_nan(source.of([source.attributes[i] for i in known]), rate[known])
    return shift


def _shift_or_nan(source: RateTable, rate: NDArray[np.float64]) -> NDArray[np.float64]:
    try:
        return shift_to_targets(source.log_probs, source.carries, rate, source.attributes).shift
    except ValueError:
        return np.full(len(rate), np.nan)


def _next_ask(rounds: Sequence[Round], i: int, exact: float) -> float:
    points = np.array([(found.intended[i], found.achieved[i]) for found in rounds])
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        # nothing that was asked for can be told from the measured rates: ask for half of it
        return rounds[-1].intended[i] / 2
    return _line(*points.T).intended_for(exact)


def _line(intended: NDArray[np.float64], achieved: NDArray[np.float64]) -> CalibrationLine:
    try:
        line = fit_calibration(intended, achieved)
    except ValueError:
        line = CalibrationLine(0.0, 0.0)
    if SLOPES[0] <= line.slope <= SLOPES[1]:
        return line
    return CalibrationLine(1.0, float(np.mean(achieved - intended)))


def _why_stop(rounds: Sequence[Round], names: Sequence[str], following: NDArray[np.float64]) -> str:
    last = rounds[-1]
    stuck = [
        name
        for name, asked, got in zip(names, last.intended, last.achieved, strict=True)
        if abs(asked) > 0.5 and abs(got) < 0.05 * abs(asked)
    ]
    if stuck:
        return (
            f"{', '.join(stuck)}: the stage moved the policy by less than a twentieth of the shift that it was asked "
            "for; give it more steps or a higher learning rate"
        )
    if np.abs(following).max() > 25:
        return (
            f"the line asks for a shift of {np.abs(following).max():.0f} log-odds, more than a stage can teach; give "
            "it more steps, or ask for a target nearer to the source's rate"
        )
    return ""


def _out_of_rounds(
    best: Round,
    names: Sequence[str],
    targets: NDArray[np.float64],
    tolerance: float,
    n_rounds: int,
) -> str:
    missed = [
        f"{name} {rate:.3f} for {target:g}"
        for name, rate, target in zip(names, best.rate, targets, strict=True)
        if not abs(rate - target) <= tolerance
    ]
    return (
        f"after {n_rounds} round{'s' * (n_rounds != 1)} the nearest is {', '.join(missed)}, outside the tolerance of "
        f"{tolerance:g}; allow more rounds, give the stage more steps, or accept a wider tolerance"
    )
