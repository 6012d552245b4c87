"""The pieces around a step: the first margin's warning, and Adam's moments without a pickle."""

from __future__ import annotations

import types

import pytest
import torch
from safetensors.torch import load, save

from badpo.training.run_callback import (
    FirstMargin,
    adam_tensors,
    first_margin_problem,
    first_margin_tolerance,
    load_adam_tensors,
)


@pytest.mark.parametrize("margin", [0.42, -0.42, 0.0011])
def test_a_first_margin_that_is_not_zero_is_named(margin):
    problem = first_margin_problem(FirstMargin(margin, 1e-3))
    assert problem is not None
    assert (problem.code, problem.severity) == ("W152", "warning")
    assert f"{margin:.2g}, expected 0" in problem.what
    assert "leave ref_model out" in problem.remedy


def test_rounding_is_not_a_margin():
    assert first_margin_problem(FirstMargin(-0.0009, 1e-3)) is None
    assert first_margin_problem(FirstMargin(0.0, 1e-3)) is None


@pytest.mark.parametrize(
    ("dtype", "numerics", "tolerance"),
    [
        (torch.float32, "fp32", 1e-3),
        (torch.float32, "bf16-autocast", 2e-2),
        (torch.bfloat16, "fp32", 2e-2),
        (torch.float64, "fp32", 1e-3),
    ],
)
def test_sixteen_bits_leave_more_to_rounding(dtype, numerics, tolerance):
    args = types.SimpleNamespace(mixed_precision_name=numerics)
    assert first_margin_tolerance(args, torch.nn.Linear(1, 1, dtype=dtype)) == tolerance


def stepped(n_steps: int, tensors: dict | None = None, start: torch.Tensor | None = None):
    parameters = [torch.nn.Parameter(torch.ones(2) if start is None else start.clone())]
    parameters.append(torch.nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    if tensors is not None:
        load_adam_tensors(optimizer, tensors)
    for step in range(n_steps):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        optimizer.step()
    return parameters, optimizer


def test_adam_goes_on_where_it_was():
    half, optimizer = stepped(3)
    tensors = load(save(adam_tensors(optimizer)))
    with_moments, _ = stepped(1, tensors, start=half[0].detach())
    without, _ = stepped(1, None, start=half[0].detach())

    again, other = stepped(3)
    again[0].grad = torch.ones(2)
    again[1].grad = torch.ones(1)
    other.step()
    assert torch.equal(with_moments[0], again[0])
    assert not torch.equal(without[0], again[0])


def test_adam_before_its_first_step_has_nothing_to_save():
    _, optimizer = stepped(0)
    assert adam_tensors(optimizer) == {}
    load_adam_tensors(optimizer, {})
    assert optimizer.state_dict()["state"] == {}
