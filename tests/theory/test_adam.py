"""The estimate of Adam's speed against Adam."""

from __future__ import annotations

import pytest
import torch

from badpo.theory.summaries import shared_speed


def travelled(probability: float, steps: int, copies: int, seed: int) -> float:
    """Mean distance per step and unit of rate of parameters that have a gradient of 1 in a share of the steps."""
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.zeros(copies))
    optimizer = torch.optim.Adam([parameter], lr=1e-2)
    start, warm = torch.zeros(copies), steps // 4
    for step in range(steps):
        parameter.grad = torch.bernoulli(torch.full((copies,), probability), generator=generator)
        optimizer.step()
        if step + 1 == warm:
            start = parameter.detach().clone()
    return float((start - parameter.detach()).mean()) / (1e-2 * (steps - warm))


@pytest.mark.parametrize(("n_annotators", "cross_per_step"), [(227, 18.9), (60, 11.6), (60, 60.0)])
def test_the_estimate_is_what_adam_does(n_annotators, cross_per_step):
    """800 steps of torch's Adam, the first quarter left out, on a thousand parameters."""
    free = travelled(min(1.0, cross_per_step / n_annotators), 800, 1000, seed=0)
    shared = travelled(1.0, 800, 1, seed=1)
    assert shared / free == pytest.approx(shared_speed(n_annotators, cross_per_step), rel=0.05)


def test_gradient_descent_would_be_slower_by_far():
    assert shared_speed(227, 0.59 * 32) < 227 / 10


def test_it_is_never_below_one():
    assert shared_speed(5, 32.0) == 1.0


@pytest.mark.parametrize(("n_annotators", "cross_per_step"), [(0, 3.0), (5, 0.0), (5, float("nan"))])
def test_nothing_to_move_is_an_error(n_annotators, cross_per_step):
    with pytest.raises(ValueError, match="cross-group"):
        shared_speed(n_annotators, cross_per_step)
