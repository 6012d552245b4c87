"""What processes add up: the sums, theta's gradient and what the objective learns from, each in its own place."""

from __future__ import annotations

import types

import torch

from badpo.attributes import Length
from badpo.data.judgments import Judgments
from badpo.training.metrics import Tally
from tests import tiny

TWICE = types.SimpleNamespace(reduce=lambda values, reduction: 2 * values)  # two processes that hold the same


def tally_of(n: int) -> Tally:
    judgments = Judgments.read(tiny.votes(), attributes=[Length(ratio=1.5)])
    inputs = {
        "sign": torch.ones(n),
        "delta": torch.zeros(n, 1),
        "weight": torch.ones(n),
        "votes": torch.arange(n),
    }
    tally = Tally(judgments, torch.device("cpu"))
    tally.add(inputs, torch.ones(n), torch.zeros(n), torch.full((n,), 0.25))
    return tally


def test_a_step_adds_up_each_in_its_place():
    tally = tally_of(3)
    theta = [torch.nn.Parameter(torch.zeros(2, 1)), torch.nn.Parameter(torch.zeros(1))]
    theta[0].grad = torch.tensor([[1.0], [2.0]])
    policy = torch.nn.Parameter(torch.zeros(2))
    policy.grad = torch.ones(2)
    learned = tally.add_up_step(TWICE, "step 1", [policy], theta, torch.tensor([5.0, 7.0]))
    assert learned.tolist() == [10.0, 14.0]
    assert theta[0].grad.tolist() == [[2.0], [4.0]]
    assert theta[1].grad.tolist() == [0.0]  # a part of theta that no vote touched
    assert theta[0].grad.dtype == theta[0].dtype
    assert policy.grad.tolist() == [1.0, 1.0]  # DDP has done it
    assert tally.sums.n_judgments == 6
    assert tally.sums.metrics()["loss"] == 0.25


def test_an_evaluation_adds_up_the_sums_alone():
    tally = tally_of(2)
    assert tally.add_up(TWICE, "evaluation at step 0") == []
    assert tally.sums.n_judgments == 4
