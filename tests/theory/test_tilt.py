import numpy as np
import pytest
from scipy.special import logsumexp

from badpo.theory.summaries import log_odds_distance
from badpo.theory.tilt import fit_calibration, shift_to_targets, tilted_probabilities, tilted_rates

# woman, black: the four cells, as in the pool of names
CELLS = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
BETA = 0.1


def prompts(n: int, lean=(2.5, 3.0), spread: float = 1.0, seed: int = 0):
    """Log-probabilities of twelve names in four cells whose lean varies over prompts, and what the names carry."""
    rng = np.random.default_rng(seed)
    carries = np.repeat(CELLS, 3, axis=0)
    leans = np.asarray(lean) + rng.normal(0, spread, (n, 2))
    logs = leans @ carries.T + rng.normal(0, 0.5, (n, len(carries)))
    return logs - logsumexp(logs, axis=1, keepdims=True), carries


def test_the_papers_worked_example_and_calibration_line():
    nearly_balanced, leaning = BETA * log_odds_distance(0.5, [0.465, 0.967])
    assert round(nearly_balanced, 3) == 0.014
    assert round(leaning, 2) == -0.34
    # from a prompt with two choices: the same number, found by the search
    (shift,) = shift_to_targets(np.log([[0.967, 0.033]]), [1, 0], 0.5)
    assert round(BETA * shift, 2) == -0.34
    gender = fit_calibration([3.39, 4.42, 5.13], [2.24, 3.13, 3.79])
    race = fit_calibration([5.06, 6.18, 6.92], [3.68, 4.76, 5.51])
    assert (gender.slope, gender.intercept) == pytest.approx((0.888, -0.777), abs=0.01)
    assert (race.slope, race.intercept) == pytest.approx((0.980, -1.285), abs=0.02)
    assert gender.slope * gender.intended_for(3.39) + gender.intercept == pytest.approx(3.39)
    for achieved in ([-3.0, -2.5], [-3.0, -3.0]):
        with pytest.raises(ValueError, match="do not increase"):
            fit_calibration([-3.0, -4.0], achieved)


def test_log_odds_of_every_pair_move_by_exactly_c_over_beta():
    logs, carries = prompts(5)
    c = np.array([-0.34, 0.21])
    moved = np.log(tilted_probabilities(logs, carries, c / BETA))
    for y, other in [(0, 3), (1, 6), (2, 9), (4, 11)]:
        expected = (carries[y] - carries[other]) @ c / BETA
        change = (moved[:, y] - moved[:, other]) - (logs[:, y] - logs[:, other])
        np.testing.assert_allclose(change, expected, atol=1e-12)


@pytest.mark.parametrize("lean", [(2.5, 3.0), (5.0, -6.0)])
def test_attributes_reach_their_targets_alone_and_together(lean):
    logs, carries = prompts(150, lean, spread=2.0)
    for targets in ((0.5, 0.5), (0.3, 0.7), (0.7, 0.3), (0.02, 0.98)):
        shift = shift_to_targets(logs, carries, targets)
        np.testing.assert_allclose(tilted_rates(logs, carries, shift), targets, atol=1e-9)
        alone = shift_to_targets(logs, carries[:, 0], targets[0])
        assert tilted_rates(logs, carries[:, 0], alone)[0] == pytest.approx(targets[0], abs=1e-12)
        # an attribute that is given twice takes half of the shift each time
        twice = shift_to_targets(logs, carries[:, [0, 0]], [targets[0]] * 2)
        assert twice.sum() == pytest.approx(alone[0], abs=1e-7)


def test_prompts_may_offer_different_choices():
    logs = np.log([[0.9, 0.1, 1.0], [0.8, 0.2, 1.0], [0.6, 0.4, 1.0]])
    logs[:, 2] = -np.inf
    found = shift_to_targets(logs, [1, 0, 0], 0.5)
    assert tilted_probabilities(logs, [1, 0, 0], found)[:, 2].tolist() == [0, 0, 0]
    assert tilted_rates(logs, [1, 0, 0], found)[0] == pytest.approx(0.5, abs=1e-12)
    logs[0, 0] = -np.inf
    logs[0, 2] = 0.0
    with pytest.raises(ValueError, match=r"target 0\.7 .*between 0 and 0\.667"):
        shift_to_targets(logs, [1, 0, 0], 0.7)


LOGS, CARRIES = prompts(3)
WOMAN = CARRIES[:, 0]
NAMES = ["woman", "other"]
NOBODY, EVERYBODY, NO_WOMAN = (np.stack([WOMAN, x], 1) for x in (0 * WOMAN, 0 * WOMAN + 1, 1 - WOMAN))
BROKEN = np.where(LOGS[1, 2] == LOGS, np.nan, LOGS)
OUTSIDE = [(LOGS, CARRIES, [x, 0.5], NAMES) for x in (0, 1, -0.1, 1.5, np.nan)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((given, "woman: the target .* strictly between") for given in OUTSIDE),
        ((LOGS, NOBODY, [0.5, 0.5], NAMES), "other: the policy never produces"),
        ((LOGS, EVERYBODY, [0.5, 0.5], NAMES), "other: the policy always produces"),
        ((np.where(WOMAN == 1, -np.inf, LOGS), WOMAN, 0.5), "attribute 0: the policy never produces"),
        ((np.where(WOMAN == 0, -800.0, LOGS), WOMAN, 0.5), "attribute 0: the policy always produces"),
        ((LOGS, NO_WOMAN, [0.5, 0.6], NAMES), "woman, other cannot be reached together"),
        # nobody is both, so the two rates cannot add up to more than one
        ((np.log([[0.6, 0.3, 0.1]]), np.eye(3)[:, :2], [0.7, 0.7]), "cannot be reached together"),
        ((BROKEN, CARRIES, [0.5, 0.5]), "prompt 1 has a log-probability that is NaN"),
    ],
)
def test_targets_out_of_reach_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        shift_to_targets(*arguments)
