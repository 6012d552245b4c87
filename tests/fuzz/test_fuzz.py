"""Two thousand generated inputs, always the same; `make fuzz` tries a hundred thousand others."""

import math

import pytest
from hypothesis import strategies as st

from tests.fuzz.running import Target, attack, shares
from tests.fuzz.targets import TARGETS

SHARES = shares(TARGETS, 2_000)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_crashes(name):
    found = attack(TARGETS[name], SHARES[name], first_seed=0, budget_seconds=math.inf)
    assert not found.crashes, "\n\n".join(found.crashes.values())
    # a strategy of few inputs may run out of them
    assert found.n_inputs >= min(SHARES[name], 10)


def test_a_crash_is_seen_and_does_not_end_the_run():
    small = Target(st.integers(0, 100), lambda number: 1 // (number < 50), share=1)
    found = attack(small, 90, first_seed=3, budget_seconds=math.inf)
    (crash,) = found.crashes.values()
    assert crash.startswith("ZeroDivisionError") and found.n_inputs == 90
