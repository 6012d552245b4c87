"""Weights of groups from their own definition."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from badpo.objective.objectives import GroupWeights, Step, VoteWeights


def step(annotator, weight=None) -> Step:
    n = len(annotator)
    return Step(
        sign=torch.ones(n),
        annotator=torch.tensor(annotator, dtype=torch.long),
        delta=torch.zeros(n, 1),
        vote_weight=torch.ones(n) if weight is None else torch.tensor(weight),
    )


def taught(objective: GroupWeights, annotator, losses, times: int = 1) -> GroupWeights:
    for _ in range(times):
        objective.learn(objective.sums(step(annotator), torch.tensor(losses)))
    return objective


def weight_of(objective: GroupWeights) -> torch.Tensor:
    return objective.state_dict()["group_weights"]


def test_before_anything_is_learned_it_is_dpo():
    rows = step([0, 1, 1, 2], [1.0, 0.5, 2.0, 1.0])
    for ours, theirs in zip(GroupWeights([0, 0, 1], 0.5)(rows), VoteWeights()(rows), strict=True):
        assert torch.equal(ours, theirs)


def test_the_worst_group_gains_weight():
    objective = taught(GroupWeights([0, 0, 1, 2], 0.5), [0, 1, 2, 3], [0.2, 0.4, 1.5, 0.6], times=3)
    weight = weight_of(objective)
    assert weight.argmax() == 1
    assert weight.mean() == pytest.approx(1.0)
    means = [0.3, 1.5, 0.6]
    assert weight[1] / weight[0] == pytest.approx(math.exp(3 * 0.5 * (means[1] - means[0])))
    # a weight of one annotator is told with two digits
    assert objective.metrics()["groups/weight_max"] == round(float(weight[1]), 2)
    assert objective.metrics()["groups/weight_sd"] > 0.4


def test_reliability_takes_weight_from_the_worst_group():
    weight = weight_of(taught(GroupWeights([0, 1], -0.5), [0, 1], [0.2, 1.5]))
    assert weight[1] / weight[0] == pytest.approx(math.exp(-0.5 * 1.3))


def test_a_group_without_a_judgment_keeps_its_weight_against_one_with_no_loss():
    weight = weight_of(taught(GroupWeights([0, 1, 2], 0.5), [0, 1], [0.0, 1.0]))
    assert weight[2] == pytest.approx(float(weight[0]))


def test_the_weights_of_a_group_do_not_depend_on_how_many_judgments_it_has():
    few = taught(GroupWeights([0, 1], 0.5), [0, 1], [0.3, 0.9])
    many = taught(GroupWeights([0, 1], 0.5), [0, 0, 0, 1], [0.1, 0.3, 0.5, 0.9])
    torch.testing.assert_close(weight_of(few), weight_of(many))


def test_no_weight_falls_to_nothing():
    weight = weight_of(taught(GroupWeights([0, 1], 0.5), [0, 1], [0.0, 5.0], times=40))
    # 1e-4 before the weights are divided by their mean, which the other group then makes about 12
    assert 5e-6 < weight.min() < 1e-4


def test_the_loss_is_the_weighted_mean_over_the_step():
    objective = taught(GroupWeights([0, 1], 0.5), [0, 1], [0.2, 1.5])
    rows = step([0, 0, 1], [1.0, 2.0, 1.0])
    weights, normaliser = objective(rows)
    q = weight_of(objective)
    torch.testing.assert_close(weights / normaliser, torch.stack([q[0], 2 * q[0], q[1]]) / (3 * q[0] + q[1]))


def test_shares_of_a_step_add_up_to_the_step():
    annotator, losses = [0, 1, 1, 0, 2], torch.tensor([0.1, 0.5, 0.9, 0.3, 2.0])
    whole, parts = (taught(GroupWeights([0, 1, 1], 0.5), [0, 1], [0.2, 1.5]) for _ in range(2))
    weights, normaliser = whole(step(annotator))
    pieces = [parts(step(annotator[:2])), parts(step([])), parts(step(annotator[2:]))]
    assert torch.equal(torch.cat([w for w, _ in pieces]), weights)
    assert sum(n for _, n in pieces) == pytest.approx(float(normaliser))
    whole.learn(whole.sums(step(annotator), losses))
    shares = [
        parts.sums(step(annotator[:2]), losses[:2]),
        parts.sums(step([]), losses[:0]),
        parts.sums(step(annotator[2:]), losses[2:]),
    ]
    parts.learn(sum(shares))
    torch.testing.assert_close(weight_of(whole), weight_of(parts))


def test_parts_of_two_bound_what_a_judgment_can_weigh():
    """The published figures' normalization: a judgment weighs at most twice its share, whatever its group's weight."""
    group = list(range(32))
    losses = [5.0] + [0.1] * 31
    whole, parts = (taught(GroupWeights(group, 0.5, chunk), group, losses, times=4) for chunk in (0, 2))
    rows = step(group)
    for objective, least, most in ((whole, 0.95, 1.0), (parts, 1.98 / 32, 2 / 32)):
        weights, normaliser = objective(rows)
        assert (weights / normaliser).sum() == pytest.approx(1.0)
        assert least <= float((weights / normaliser).max()) <= most


def test_an_unequal_last_part_counts_as_one():
    weights, normaliser = GroupWeights([0], 0.5, chunk=2)(step([0, 0, 0]))
    assert weights.tolist() == [0.5, 0.5, 1.0]
    assert normaliser == 2


def test_the_state_goes_on_where_it_was():
    first = taught(GroupWeights([0, 1], 0.5), [0, 1], [0.2, 1.5], times=2)
    second = GroupWeights([0, 1], 0.5)
    second.load_state_dict(first.state_dict())
    for objective in (first, second):
        taught(objective, [0, 1], [0.4, 0.8])
    assert torch.equal(weight_of(first), weight_of(second))


@pytest.mark.parametrize("state", [{}, {"group_weights": torch.ones(3)}, {"other": torch.ones(2)}])
def test_another_state_is_refused(state):
    with pytest.raises(ValueError, match="2 groups"):
        GroupWeights([0, 1], 0.5).load_state_dict(state)


def test_a_state_can_be_written(tmp_path):
    objective = GroupWeights([0, 1], 0.5)
    """A column of a table is not contiguous, which a file of tensors needs."""
    save_file(objective.state_dict(), tmp_path / "state.safetensors")
    objective.load_state_dict(load_file(tmp_path / "state.safetensors"))
