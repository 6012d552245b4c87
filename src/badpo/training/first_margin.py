"""The first margin of a run: whether the policy starts at its reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from badpo.data.problems import Problem

# What rounding alone leaves of the first step's mean margin: about 1e-6 in float32; in 16 bits some thousandths.
FIRST_MARGIN_TOLERANCE = 1e-3
FIRST_MARGIN_TOLERANCE_16_BIT = 2e-2


def first_margin_tolerance(args, model) -> float:
    """The largest mean margin of a first step that rounding explains, in the precision of the run."""
    in_float32 = (
        args.mixed_precision_name == "fp32"
        and next(model.parameters()).dtype.itemsize >= torch.float32.itemsize
    )
    return FIRST_MARGIN_TOLERANCE if in_float32 else FIRST_MARGIN_TOLERANCE_16_BIT


@dataclass(frozen=True)
class FirstMargin:
    """The mean reward margin of a run's first step, before anything has moved.

    Attributes
    ----------
    mean : float
        Of the step's judgments; 0 where the policy starts at its reference.
    tolerance : float
        The largest absolute mean that is taken for 0.
    """

    mean: float
    tolerance: float


def first_margin_problem(first: FirstMargin) -> Problem | None:
    """A warning (W152) when the policy does not start at its reference.

    Examples
    --------
    >>> first_margin_problem(FirstMargin(0.42, tolerance=1e-3)).what
    'the mean reward margin of the first step is 0.42, expected 0: the policy does not start at the reference'
    """
    if abs(first.mean) <= first.tolerance:
        return None
    return Problem(
        "W152",
        f"the mean reward margin of the first step is {first.mean:.2g}, expected 0: the policy does not start at the "
        "reference",
        "model and ref_model",
        "leave ref_model out, or start from its weights, and keep disable_dropout on: only where both are equal at "
        "the start does theta = 0 anchor the policy at the reference's attribute rate",
        "warning",
    )
