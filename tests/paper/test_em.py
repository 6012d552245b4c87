"""EM-DPO's E-step and MinMax-DPO's weights, where they can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from badpo.objective.objectives import Step
from badpo_paper.em_dpo import (
    AnnotatorWeights,
    minmax_weights,
    regret_matrix,
    type_log_likelihood,
    type_probabilities,
)


def step(annotator, weight=None) -> Step:
    n = len(annotator)
    return Step(
        sign=torch.ones(n),
        annotator=torch.tensor(annotator, dtype=torch.long),
        delta=torch.zeros(n, 1),
        vote_weight=torch.ones(n) if weight is None else torch.tensor(weight),
    )


def test_log_likelihoods_are_sums_over_an_annotators_votes():
    margins = np.array([[1.0, -1.0], [0.5, 2.0]])
    found = type_log_likelihood(margins, [0, 1, 1], [1, -1, 1], [0, 0, 2], 3)
    log_sigmoid = lambda x: -np.log1p(np.exp(-x))  # noqa: E731
    np.testing.assert_allclose(
        found,
        [
            [log_sigmoid(1.0) + log_sigmoid(-0.5), log_sigmoid(-1.0) + log_sigmoid(-2.0)],
            [0, 0],
            [log_sigmoid(0.5), log_sigmoid(2.0)],
        ],
    )


def test_the_e_step_is_bayes_rule():
    likelihood, share = np.array([[0.2, 0.1], [0.05, 0.4]]), np.array([0.3, 0.7])
    expected = share * likelihood / (share * likelihood).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(type_probabilities(np.log(likelihood), share), expected)


def test_no_type_is_lost_for_good():
    gamma = type_probabilities([[0.0, -5000.0, -5000.0]], [1.0, 0.0, 0.0])
    assert gamma.sum() == pytest.approx(1.0)
    assert gamma.min() == pytest.approx(1e-6, rel=1e-3)


def test_regret_is_zero_on_the_diagonal_and_of_the_rows_own_answers():
    regrets = regret_matrix([[5.0, 2.0], [1.0, 4.0]])
    assert regrets.tolist() == [[0.0, 3.0], [3.0, 0.0]]


@pytest.mark.parametrize(
    ("regrets", "expected"),
    [
        ([[0, 3], [1, 0]], [3 / 4, 1 / 4]),  # 3 (1 - w) = w
        ([[0, 1, 1], [1, 0, 1], [1, 1, 0]], [1 / 3, 1 / 3, 1 / 3]),
        # the first type is hurt by both others, which do not mind its answers
        ([[0, 2, 2], [0, 0, 2], [0, 2, 0]], [1, 0, 0]),
        # three types in a ring, each hurt by the next alone: a w2 = b w3 = c w1
        ([[0, 1, 0], [0, 0, 2], [4, 0, 0]], [1 / 7, 4 / 7, 2 / 7]),
        # nothing tells the types apart
        ([[0, 0], [0, 0]], [1 / 2, 1 / 2]),
        # every mixture is as good for everyone as the own policy, or better: the row of zeros decides nothing
        ([[0, -1], [-1, 0]], [1 / 2, 1 / 2]),
    ],
)
def test_games_solved_by_hand(regrets, expected):
    np.testing.assert_allclose(minmax_weights(regrets), expected, atol=1e-6)


def test_the_scale_of_the_regrets_does_not_matter():
    regrets = np.array([[0, 1, 0], [0, 0, 2], [4, 0, 0.0]])
    for scale in (1e-6, 1e6):
        np.testing.assert_allclose(minmax_weights(scale * regrets), [1 / 7, 4 / 7, 2 / 7], atol=1e-6)


def test_no_other_mixture_has_a_smaller_largest_regret():
    rng = np.random.default_rng(0)
    for _ in range(20):
        regrets = rng.exponential(size=(3, 3)) * (1 - np.eye(3))
        least = (regrets @ minmax_weights(regrets)).max()
        others = rng.dirichlet(np.ones(3), size=500) @ regrets.T
        assert least <= others.max(axis=1).min() + 1e-6


@pytest.mark.parametrize("regrets", [np.zeros((2, 3)), np.zeros(3), [[0.0, np.nan], [1.0, 0.0]]])
def test_regrets_that_are_no_game_are_refused(regrets):
    with pytest.raises(ValueError, match="square"):
        minmax_weights(regrets)


def test_annotator_weights_are_a_weighted_dpo():
    everyone = [0, 1, 2, 1]
    weights, normaliser = AnnotatorWeights([0.75, 0.5, 0.25], everyone)(step(everyone, [1.0, 1.0, 1.0, 2.0]))
    assert weights.tolist() == [1.5, 1.0, 0.5, 2.0]
    assert normaliser == 5


def test_a_step_without_anyone_of_the_type_moves_nothing():
    weights, normaliser = AnnotatorWeights([1.0, 0.0], [0, 1])(step([1, 1, 1]))
    assert (weights / normaliser == 0).all()
    assert AnnotatorWeights([1.0, 1.0], [0, 1])(step([]))[1] == 0


def test_weights_of_nobody_are_refused():
    with pytest.raises(ValueError, match="no vote has a weight"):
        AnnotatorWeights([1.0, 0.0], [1, 1])


def test_annotator_weights_of_another_type_are_refused():
    objective = AnnotatorWeights([0.75, 0.25], [0, 1])
    objective.load_state_dict(objective.state_dict())
    with pytest.raises(ValueError, match="other weights"):
        objective.load_state_dict(AnnotatorWeights([0.25, 0.75], [0, 1]).state_dict())
    with pytest.raises(ValueError, match="other weights"):
        objective.load_state_dict({})
