"""Generated inputs against one part of the program: how many, from which seed, and what broke."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

BATCH = 250


@dataclass(frozen=True)
class Target:
    """One part of the program, the inputs that it has to stand, and its share of all inputs."""

    inputs: SearchStrategy[Any]
    # whatever it raises is a crash: what the part may refuse, it catches itself
    check: Callable[[Any], None]
    share: int


@dataclass
class Attack:
    """What became of the inputs: how many, and crashes by error and place with the shortest input."""

    n_inputs: int = 0
    crashes: dict[str, str] = field(default_factory=dict)


def attack(target: Target, n_inputs: int, first_seed: int, budget_seconds: float) -> Attack:
    """Try inputs until there were enough or the time is over; a crash does not end it."""
    done, end = Attack(), time.monotonic() + budget_seconds

    def tried(value: Any) -> None:
        if time.monotonic() > end:
            return
        done.n_inputs += 1
        try:
            target.check(value)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {last.filename}:{last.lineno}"
            shown = f"{where}: {error!r} on {value!r}"[:1_500]
            done.crashes[where] = min(shown, done.crashes.get(where, shown), key=len)

    # Hypothesis never gives one input twice in a batch, so that a batch of a small strategy may end early
    before = -1
    while before < done.n_inputs < n_inputs and time.monotonic() < end:
        before = done.n_inputs
        batch = settings(
            max_examples=min(BATCH, n_inputs - before),
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        seed(first_seed)(batch(given(target.inputs)(lambda value: tried(value))))()
        first_seed += 1
    return done


def shares(targets: Mapping[str, Target], n_inputs: int) -> dict[str, int]:
    """How many of all inputs each target gets: at least one."""
    total = sum(target.share for target in targets.values())
    return {name: max(1, round(n_inputs * t.share / total)) for name, t in targets.items()}
