"""The calibration loop against stages whose line is known."""

import numpy as np
import pytest

from badpo.anchoring.attribute_rates import RateTable
from badpo.anchoring.offset_stage import achieved_shift, calibrate
from badpo.theory.tilt import tilted_probabilities

CARRIES = np.array([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=np.float64)
LOGS = np.log([[0.9, 0.06, 0.03, 0.01], [0.8, 0.05, 0.1, 0.05]])
SOURCE = RateTable(("woman", "black"), LOGS, CARRIES)
HALF = np.array([0.5, 0.5])


def tilted(shift):
    logs = np.log(tilted_probabilities(SOURCE.log_probs, CARRIES, shift))
    return RateTable(SOURCE.attributes, logs, CARRIES).rate


def stage(slope, deficit, asked=None, noise=0.0):
    """A stage that achieves slope * intended, less a deficit in the direction of the shift; its rates."""

    def attempt(intended, number):
        if asked is not None:
            asked.append(intended.copy())
        wobble = noise * np.array([1.0, -1.0]) * (-1) ** number
        return tilted(np.asarray(slope) * intended - np.sign(intended) * deficit + wobble)

    return attempt


PAPER = ([0.888, 0.98], [0.777, 1.285])


@pytest.mark.parametrize(
    ("targets", "line", "most"),
    [
        *(((0.5, 0.5), PAPER, 3), ((0.3, 0.7), PAPER, 3), ((0.95, 0.3), PAPER, 3)),
        ((0.5, 0.5), ([1.0, 1.0], [0.0, 0.0]), 1),
    ],
)
def test_the_papers_line_is_met_in_three_rounds_and_one_without_a_deficit_in_one(targets, line, most):
    rounds, best = calibrate(SOURCE, targets, stage(*line), 1e-3, 4)
    assert len(rounds) <= most and rounds[best].rate == pytest.approx(targets, abs=1e-3)


def test_a_rate_that_no_shift_gives_is_told_and_half_is_asked_for():
    shift, asked = np.array([-1.5, 0.8]), []
    assert achieved_shift(SOURCE, tilted(shift)) == pytest.approx(shift, abs=1e-6)
    rates = iter([np.array([0.5, 1.0]), np.array([np.nan, 0.5])])
    rounds, _ = calibrate(SOURCE, HALF, lambda ask, number: asked.append(ask) or next(rates), 0.01, 2)
    assert np.isnan(rounds[0].achieved).all() and asked[1] == pytest.approx(asked[0] / 2)
    assert [found.distance for found in rounds] == [0.5, np.inf]


def test_neither_noise_nor_a_flat_line_sends_the_next_round_away():
    asked = []
    calibrate(SOURCE, HALF, stage([1.0, 1.0], [0.3, 0.3], asked, noise=0.3), 1e-9, 30)
    assert len(asked) == 30 and np.abs(np.array(asked) - asked[0]).max() < 2.0
    # a stage that moves nothing of the first attribute
    asked = []
    calibrate(SOURCE, HALF, stage([0.0, 1.0], [0.0, 0.0], asked), 1e-9, 30)
    assert [ask[0] / asked[0][0] for ask in asked[:3]] == pytest.approx([1.0, 2.0, 2.5], rel=1e-3)
    assert len(asked) == 30 and np.abs(asked).max() < 10.0


@pytest.mark.parametrize(
    ("rates", "tolerance", "n_rounds", "n_best"),
    [
        # one rate outside of the tolerance is enough to go on
        ([HALF + [0.0, 0.015], HALF, SOURCE.rate], 0.01, 2, 1),
        # the best round is the nearest and not the last
        ([HALF + 0.1, HALF + 0.05, HALF - 0.2], 0.01, 3, 1),
    ],
)
def test_rounds_end_where_every_rate_is_near_enough(rates, tolerance, n_rounds, n_best):
    left = iter(rates)
    rounds, best = calibrate(SOURCE, HALF, lambda asked, number: next(left), tolerance, 3)
    assert (len(rounds), best) == (n_rounds, n_best)
    assert rounds[n_best].distance == pytest.approx(np.abs(rates[n_best] - 0.5).max())
