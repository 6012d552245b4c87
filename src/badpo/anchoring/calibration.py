"""Ask, measure, fit a line, ask again: until a trained rate is where it was asked to be.

A stage follows the shift that it is asked for one for one after a deficit that its steps leave. Each round inverts the
line of the rounds before; lines are kept and give the first round of the next seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from badpo.anchoring.rates import RateTable
from badpo.data.problems import ConfigError
from badpo.theory.tilt import CalibrationLine, fit_calibration, shift_to_targets
from badpo.training.checkpoints import write_json

# Shift asked for, shift achieved, and the anchor that it was measured in.
Point = tuple[float, float, str]
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


@dataclass
class KeptLines:
    """Points (intended, achieved) of earlier anchors, by attribute and direction, and the lines through them.

    Attributes
    ----------
    points : dict of str to list of (intended, achieved, name of the anchor)
        Keys are from `line_key`.
    """

    points: dict[str, list[Point]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, stage: str) -> KeptLines:
        """The lines that a file holds for a stage; none where it has none or is not there."""
        return cls(_kept_in(path).get(stage, {}))

    def write_into(self, path: Path, stage: str) -> None:
        """Put the lines of a stage into a file, leaving those of other stages as they are."""
        write_json(path, {**_kept_in(path), stage: self.points})

    def line(self, attribute: str, exact: float) -> CalibrationLine | None:
        """The line through the points of an attribute in the direction of a shift; None without points."""
        points = [point[:2] for point in self.points.get(line_key(attribute, exact), [])]
        return _line(*np.array(points).T) if points else None

    def first_ask(self, attribute: str, exact: float) -> float:
        """What to ask for in the first round: the inverse of the kept line, or the exact shift."""
        line = self.line(attribute, exact)
        return exact if line is None else line.intended_for(exact)

    def add(self, attribute: str, intended: float, achieved: float, anchor: str = "") -> None:
        """Keep a point; one that is not finite, or stayed at nothing, is none."""
        if np.isfinite([intended, achieved]).all() and intended * achieved > 0:
            self.points.setdefault(line_key(attribute, intended), []).append((intended, achieved, anchor))

    def remove(self, anchor: str) -> None:
        """Let go of the points of an anchor, which is made again."""
        left = {key: [point for point in points if point[2] != anchor] for key, points in self.points.items()}
        self.points = {key: points for key, points in left.items() if points}


def _kept_in(path: Path) -> dict[str, dict[str, list[Point]]]:
    """The lines of all stages: stage, attribute and direction, points."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        return {
            stage: {key: [_point(*point) for point in points] for key, points in found.items()}
            for stage, found in content.items()
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged; remove it: what it keeps only makes the first guess better"
        ) from error


def _point(intended, achieved, anchor="") -> Point:
    # what was kept before anchors were named has no name
    return float(intended), float(achieved), str(anchor)


def line_key(attribute: str, shift: float) -> str:
    """Name of a line: the deficit has the sign of the shift, so both directions have their own."""
    return f"{attribute} {'up' if shift > 0 else 'down'}"


def calibrate(
    source: RateTable,
    targets: Sequence[float],
    attempt: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
    tolerance: float,
    n_rounds: int,
    kept: KeptLines,
) -> Calibration:
    """Train rounds of an offset stage until every rate is within a tolerance of its target.

    The first round asks for the inverse of the kept line, or for the exact tilt. Later rounds fit a line through the
    rounds of this anchor; after a single one, with the slope of the kept line if there is one and else 1.

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
    kept : KeptLines
        Of the same stage. They stay as they are.

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
    first = [kept.first_ask(name, value) for name, value in zip(names, exact.tolist(), strict=True)]
    slopes = [_slope(kept.line(name, value)) for name, value in zip(names, exact.tolist(), strict=True)]
    intended, rounds, reason = np.array(first), list[Round](), ""
    for number in range(n_rounds):
        rate = attempt(intended, number)
        rounds.append(Round(intended, achieved_shift(source, rate), rate))
        if np.abs(rate - wanted).max() <= tolerance:
            break
        following = np.array([_next_ask(rounds, i, exact[i], slopes[i]) for i in range(len(names))])
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


def _next_ask(rounds: Sequence[Round], i: int, exact: float, slope: float) -> float:
    points = np.array([(found.intended[i], found.achieved[i]) for found in rounds])
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        # nothing that was asked for can be told from the measured rates: ask for half of it
        return rounds[-1].intended[i] / 2
    if len(points) == 1:
        return CalibrationLine(slope, points[0, 1] - slope * points[0, 0]).intended_for(exact)
    return _line(*points.T).intended_for(exact)


def _line(intended: NDArray[np.float64], achieved: NDArray[np.float64]) -> CalibrationLine:
    try:
        line = fit_calibration(intended, achieved)
    except ValueError:
        line = CalibrationLine(0.0, 0.0)
    if SLOPES[0] <= line.slope <= SLOPES[1]:
        return line
    return CalibrationLine(1.0, float(np.mean(achieved - intended)))


def _slope(line: CalibrationLine | None) -> float:
    return 1.0 if line is None else line.slope


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
