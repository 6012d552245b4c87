"""Two thousand generated inputs, always the same; `make fuzz` tries a hundred thousand others."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st

from tests.fuzz.running import Target, attack, shares
from tests.fuzz.targets import TARGETS

N_INPUTS = 2_000
SHARES = shares(TARGETS, N_INPUTS)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_crashes(name):
    found = attack(TARGETS[name], SHARES[name], first_seed=0, budget_seconds=math.inf)
    assert not found.crashes, "\n\n".join(map(str, found.crashes.values()))
    # a strategy of few inputs may run out of them
    assert found.n_inputs >= min(SHARES[name], 10)


def test_there_are_two_thousand():
    assert sum(SHARES.values()) >= N_INPUTS - len(TARGETS)


def test_a_crash_is_seen_and_does_not_end_the_run():
    def check(number: int) -> None:
        if number > 50:
            raise KeyError("secret")

    found = attack(Target(st.integers(0, 100), check, 1), 90, first_seed=3, budget_seconds=math.inf)
    (crash,) = found.crashes.values()
    assert crash.error == "KeyError: 'secret'" and len(crash.shown_input) == 2
    assert found.n_inputs == 90 and found.seeds == [3]


def test_the_same_seed_gives_the_same_inputs():
    tried: list[list[int]] = [[], []]
    for inputs in tried:
        attack(Target(st.integers(), inputs.append, 1), 20, first_seed=5, budget_seconds=math.inf)
    assert tried[0] == tried[1]


def test_it_ends_when_the_time_is_over():
    assert attack(Target(st.integers(), lambda number: None, 1), 10_000, 0, budget_seconds=0).n_inputs == 0
