"""Numbers as JSON knows them."""

from __future__ import annotations

import numpy as np


def json_number(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no NaN, and null says that nothing is known."""
    return float(value) if np.isfinite(value) else None
