"""Adam's moments without a pickle."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from badpo.training.checkpoints import adam_tensors, load_adam_tensors


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
