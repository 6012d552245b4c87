"""Generated inputs against one part of the program: how many, from which seed, and what broke."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

import badpo

PACKAGE = Path(badpo.__file__).parent
BATCH = 250
_LONGEST_SHOWN = 1_500


@dataclass(frozen=True)
class Target:
    """One part of the program and the inputs that it has to stand.

    Attributes
    ----------
    inputs : SearchStrategy
    check : callable
        Takes one input. Whatever it raises is a crash: what the part may refuse, it catches itself.
    per_thousand : int
        Its inputs among every thousand.
    """

    inputs: SearchStrategy[Any]
    check: Callable[[Any], None]
    per_thousand: int


@dataclass(frozen=True)
class Crash:
    """What broke: the error, where in the package, and the shortest input that did it."""

    error: str
    where: str
    shown_input: str

    def __str__(self) -> str:
        return f"{self.error}\n    at {self.where}\n    on {self.shown_input[:_LONGEST_SHOWN]}"


@dataclass
class Attack:
    """What became of the inputs.

    Attributes
    ----------
    n_inputs : int
        That were generated and tried.
    seeds : list of int
        One for each batch of at most ``BATCH`` inputs: the same seed gives the same batch again.
    seconds : float
    crashes : dict of str to Crash
        By error and place.
    """

    n_inputs: int = 0
    seeds: list[int] = field(default_factory=list)
    seconds: float = 0.0
    crashes: dict[str, Crash] = field(default_factory=dict)


def attack(target: Target, n_inputs: int, first_seed: int, budget_seconds: float) -> Attack:
    """Try inputs until there were enough or the time is over; a crash does not end it.

    Parameters
    ----------
    target : Target
    n_inputs : int
    first_seed : int
        Of the first batch; later ones count on.
    budget_seconds : float
    """
    done, start = Attack(), time.monotonic()
    # Hypothesis never gives one input twice in a batch, so that a batch of a small strategy may end early
    while done.n_inputs < n_inputs and time.monotonic() - start < budget_seconds:
        before, batch_seed = done.n_inputs, first_seed + len(done.seeds)
        done.seeds.append(batch_seed)
        _batch(target, min(BATCH, n_inputs - before), batch_seed, start + budget_seconds, done)
        if done.n_inputs == before:
            break
    done.seconds = time.monotonic() - start
    return done


def _batch(target: Target, size: int, batch_seed: int, deadline: float, done: Attack) -> None:
    @seed(batch_seed)
    @settings(
        max_examples=size,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def tried(value: Any) -> None:
        if time.monotonic() > deadline:
            return
        done.n_inputs += 1
        try:
            target.check(value)
        except Exception as error:
            _note(error, value, done.crashes)

    tried()


def _note(error: Exception, value: Any, crashes: dict[str, Crash]) -> None:
    where = _place(error)
    key = f"{type(error).__name__} {where}"
    shown = repr(value)
    if key not in crashes or len(shown) < len(crashes[key].shown_input):
        message = str(error).encode("utf-8", "backslashreplace").decode()
        crashes[key] = Crash(f"{type(error).__name__}: {message[:_LONGEST_SHOWN]}", where, shown)


def _place(error: Exception) -> str:
    """The innermost line of the package that the error came through; of the check where it saw none."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno} ({last.name})"


def shares(targets: Mapping[str, Target], n_inputs: int) -> dict[str, int]:
    """How many of all inputs each target gets: at least one."""
    total = sum(target.per_thousand for target in targets.values())
    return {name: max(1, round(n_inputs * t.per_thousand / total)) for name, t in targets.items()}
