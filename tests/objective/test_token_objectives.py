"""SamPO, LD-DPO and IPO from their own definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from badpo.objective.objectives import DiscountedTail, IdentityPreference, SampledTokens, VoteWeights
from badpo.theory.likelihood import ipo_loss

LENGTHS = np.array([[3, 7], [5, 5], [9, 2]])
PLACES = np.array([4, 0, 11])


def test_every_token_counts_in_dpo():
    assert all((side == 1).all() for both in VoteWeights().token_weights(LENGTHS, PLACES, 0) for side in both)


def test_sampo_with_equal_lengths_is_dpo():
    a, b = SampledTokens(3).token_weights(LENGTHS, PLACES, 5)[1]
    assert (a == 1).all() and (b == 1).all()


def test_sampo_counts_as_many_tokens_of_either_side():
    for (n_a, n_b), (a, b) in zip(LENGTHS, SampledTokens(3).token_weights(LENGTHS, PLACES, 5), strict=True):
        assert (len(a), len(b)) == (n_a, n_b)
        assert a.sum() == b.sum() == min(n_a, n_b)
        assert set(np.concatenate([a, b])) <= {0.0, 1.0}


def test_sampo_draws_anew_at_every_step_and_the_same_again():
    lengths, place = np.array([[4, 200]]), np.array([7])
    draws = [
        SampledTokens(seed).token_weights(lengths, place, step)[0][1]
        for seed, step in [(0, 0), (0, 0), (0, 1), (1, 0)]
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert not np.array_equal(draws[0], draws[3])
    elsewhere = SampledTokens(0).token_weights(lengths, place + 1, 0)[0][1]
    assert not np.array_equal(draws[0], elsewhere)


def test_sampo_does_not_depend_on_the_micro_batch():
    whole = SampledTokens(0).token_weights(LENGTHS, PLACES, 2)
    alone = SampledTokens(0).token_weights(LENGTHS[2:], PLACES[2:], 2)
    np.testing.assert_array_equal(whole[2][0], alone[0][0])


def test_sampo_draws_every_token_alike():
    times = np.sum(
        [
            SampledTokens(0).token_weights(np.array([[2, 8]]), np.array([1]), step)[0][1]
            for step in range(2000)
        ],
        axis=0,
    )
    # 2 of 8 tokens: 500 times each, with a standard error of 19
    assert np.abs(times - 500).max() < 80


def test_ld_dpo_with_alpha_one_is_dpo_and_with_zero_counts_the_common_length():
    for alpha, expected in ((1.0, LENGTHS.sum()), (0.0, 2 * LENGTHS.min(axis=1).sum())):
        weights = DiscountedTail(alpha).token_weights(LENGTHS, PLACES, 0)
        assert sum(side.sum() for both in weights for side in both) == expected


def test_ld_dpo_discounts_the_end_of_the_longer_response():
    a, b = DiscountedTail(0.3).token_weights(np.array([[3, 5]]), np.array([0]), 0)[0]
    assert a.tolist() == [1, 1, 1]
    assert b.tolist() == [1, 1, 1, 0.3, 0.3]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_that_is_no_share_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        DiscountedTail(alpha)


def test_ipo_takes_the_mean_over_the_tokens():
    for a, b in IdentityPreference(0.1).token_weights(LENGTHS, PLACES, 0):
        assert a.sum() == pytest.approx(1.0) and b.sum() == pytest.approx(1.0)


def test_ipo_is_the_squared_distance_of_the_log_ratio_from_its_target():
    beta, h = 0.2, torch.tensor([0.7, -0.4], dtype=torch.float64)
    sign = torch.tensor([1.0, -1.0])
    losses = IdentityPreference(beta).losses(beta * h, torch.zeros(2), sign)
    torch.testing.assert_close(losses, (sign * h - 1 / (2 * beta)) ** 2)


def test_the_bias_takes_the_margins_place_in_ipo():
    """A vote that the bias explains wholly pulls at the policy no more."""
    margins = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    ipo_loss(margins, torch.tensor([0.5]), torch.ones(1), 0.1).sum().backward()
    assert margins.grad.item() == 0
    pulls = []
    for bias in (0.0, 0.25):
        margins = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        ipo_loss(margins, torch.tensor([bias]), torch.ones(1), 0.1).sum().backward()
        pulls.append(margins.grad.item())
    assert pulls[1] == pytest.approx(pulls[0] / 2) and pulls[0] < 0


def test_ipo_is_in_another_unit_than_the_votes():
    assert VoteWeights().in_log_odds and not IdentityPreference(0.1).in_log_odds
