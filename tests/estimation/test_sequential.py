"""Evidence that may be looked at after every comparison."""

import numpy as np
import pytest

from badpo.estimation import significance


@pytest.mark.parametrize("share", [0.2, 0.5, 0.75, 1.0])
def test_equal_care_gains_nothing_and_voting_against_most_is_evidence_of_less(share):
    won, lost = np.exp(significance.log_reliability_ratios([True, False], share))
    np.testing.assert_allclose(share * won + (1 - share) * lost, 1)
    assert ((won > 1) == (share < 0.5)).all()


@pytest.mark.parametrize(("wins", "size", "delta"), [(0, 0, 1.0), (3, 3, -1.0), (1, 5, 0.0)])
def test_clicking_at_random_gains_nothing_and_following_the_others_does(wins, size, delta):
    won, lost = np.exp(significance.log_random_ratios([True, False], [wins + 1, wins], size + 1, delta))
    np.testing.assert_allclose((won + lost) / 2, 1)
    assert delta or ((won > lost) == (2 * wins > size)).all()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.75])
@pytest.mark.parametrize("delta", [-1.0, 0.0, 0.3, 40.0])
def test_a_ratio_is_that_of_the_conditional_likelihood(share, delta):
    won, lost = (np.exp(significance.log_tilt_ratios(x, share, delta)) for x in (True, False))
    odds = np.exp(np.multiply(significance.GRID, delta))
    np.testing.assert_allclose([won, lost], [odds, 1 + 0 * odds] / (1 - share + share * odds))


def test_unanimous_votes_and_equal_sides_are_nothing_and_other_orders_are_not_alike():
    assert not significance.log_tilt_ratios([True, False], [1.0, 0.0], 1.0).any()
    assert not significance.log_tilt_ratios([True, False], 0.5, 0.0).any()
    shares = significance.winner_shares([1, -1, 1, 1, -1], [[1.0], [1.0], [-1.0], [-1.0], [0.0]])
    assert shares.tolist() == [0.5, 0.5, 1.0, 1.0, 0.0]


def test_e_bh_against_its_definition():
    random = np.random.default_rng(4)
    for _ in range(50):
        e = np.exp(random.normal(1, 3, random.integers(1, 12)))
        ranks = [i for i in range(1, len(e) + 1) if np.sort(e)[-i] >= len(e) / (0.1 * i)]
        expected = e >= np.sort(e)[-max(ranks)] if ranks else np.zeros(len(e), dtype=bool)
        np.testing.assert_array_equal(significance.e_bh(np.log(e), 0.1), expected)
