"""The first margin's warning: not for rounding, and for everything that is more."""

from __future__ import annotations

import types

import pytest
import torch

from badpo.training.first_margin import FirstMargin, first_margin_problem, first_margin_tolerance


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
