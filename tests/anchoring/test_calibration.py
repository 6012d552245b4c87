"""The calibration loop against stages whose line is known."""

from __future__ import annotations

import numpy as np
import pytest

from badpo.anchoring.calibration import achieved_shift, calibrate
from badpo.anchoring.rates import RateTable
from badpo.theory.tilt import tilted_probabilities

CARRIES = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=np.float64)
SOURCE = RateTable(("woman", "black"), np.log([[0.9, 0.06, 0.03, 0.01], [0.8, 0.05, 0.1, 0.05]]), CARRIES)


def tilted(table: RateTable, shift) -> RateTable:
    logs = np.log(tilted_probabilities(table.log_probs, table.carries, shift))
    return RateTable(table.attributes, logs, table.carries)


def stage(slope, deficit, asked=None, noise=0.0):
    """A stage that achieves slope * intended, less a deficit in the direction of the shift; its rates."""

    def attempt(intended, number):
        if asked is not None:
            asked.append(intended.copy())
        wobble = noise * np.array([1.0, -1.0]) * (-1) ** number
        return tilted(SOURCE, np.asarray(slope) * intended - np.sign(intended) * deficit + wobble).rate

    return attempt


@pytest.mark.parametrize("targets", [(0.5, 0.5), (0.3, 0.7), (0.95, 0.3)])
def test_the_papers_line_is_met_in_three_rounds(targets):
    found = calibrate(SOURCE, targets, stage([0.888, 0.98], [0.777, 1.285]), 1e-3, 4)
    assert found.converged and len(found.rounds) <= 3
    assert found.rounds[found.best].rate == pytest.approx(targets, abs=1e-3)


def test_without_a_deficit_one_round_is_enough():
    found = calibrate(SOURCE, (0.5, 0.5), stage([1.0, 1.0], [0.0, 0.0]), 1e-6, 4)
    assert len(found.rounds) == 1
    assert found.rounds[0].intended == pytest.approx(found.exact)
    assert found.rounds[0].achieved == pytest.approx(found.exact, abs=1e-6)


def test_an_attribute_that_is_out_of_reach_takes_the_shift_from_itself_alone():
    shift = np.array([-1.5, 0.8])
    rate = tilted(SOURCE, shift).rate
    assert achieved_shift(SOURCE, rate) == pytest.approx(shift, abs=1e-6)
    found = achieved_shift(SOURCE, np.array([rate[0], 1.0]))
    assert np.isnan(found[1]) and np.isfinite(found[0])
    assert tilted(SOURCE, [found[0], 0.0]).rate[0] == pytest.approx(rate[0])


def test_noise_does_not_send_the_next_round_away():
    asked = []
    calibrate(SOURCE, (0.5, 0.5), stage([1.0, 1.0], [0.3, 0.3], asked, noise=0.3), 1e-9, 5)
    assert len(asked) == 5
    assert np.abs(np.array(asked) - asked[0]).max() < 2.0


def test_a_stage_that_moves_nothing_is_told_and_not_repeated():
    found = calibrate(SOURCE, (0.5, 0.5), stage([0.0, 1.0], [0.0, 0.0]), 0.01, 4)
    assert len(found.rounds) == 1 and not found.converged
    assert found.reason.startswith("woman: the stage moved the policy by less than a twentieth")


def test_a_budget_that_runs_out_says_what_is_nearest():
    found = calibrate(SOURCE, (0.5, 0.5), stage([0.7, 0.7], [1.0, 1.0]), 1e-9, 2)
    assert not found.converged
    assert found.reason.startswith("after 2 rounds the nearest is woman")
    largest = [np.abs(r.rate - 0.5).max() for r in found.rounds]
    assert found.best == int(np.argmin(largest))


def test_an_attribute_that_is_never_produced_is_refused():
    never = RateTable(("woman",), np.array([[0.0, -np.inf]]), np.array([[0.0], [1.0]]))
    with pytest.raises(ValueError, match="woman"):
        calibrate(never, (0.5,), stage([1.0], [0.0]), 0.01, 2)


def test_one_rate_outside_of_the_tolerance_is_enough_to_go_on():
    source, wanted = SOURCE.rate, np.array([0.5, 0.5])
    rounds = iter([wanted + [0.0, 0.015], wanted, source])
    found = calibrate(SOURCE, wanted, lambda asked, number: next(rounds), 0.01, 4)
    assert len(found.rounds) == 2 and found.converged


def test_the_best_round_is_the_nearest_and_not_the_last():
    wanted = np.array([0.5, 0.5])
    rounds = iter([wanted + 0.1, wanted + 0.05, wanted - 0.2])
    found = calibrate(SOURCE, wanted, lambda asked, number: next(rounds), 0.01, 3)
    assert (len(found.rounds), found.best, found.converged) == (3, 1, False)
