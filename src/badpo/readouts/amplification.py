"""How far plain DPO moves an attribute beyond the reference, in units of its own spread over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from badpo.readouts.json_number import json_number
from badpo.theory.summaries import Interval, shift


@dataclass(frozen=True)
class Amplification:
    """DPO's shift of a rate, a mean token count or another reading.

    Attributes
    ----------
    shift : Interval
        DPO minus reference, over seeds; in the unit of the reading.
    seed_sd : float
        Standard deviation of DPO's readings over seeds; NaN for a single seed.
    in_seed_sds : float
        The shift divided by it; NaN for a single seed, infinite where the seeds agree exactly.
    """

    shift: Interval
    seed_sd: float
    in_seed_sds: float

    def to_json(self) -> dict[str, float | int | None]:
        """{"shift", "low", "high", "seed_sd", "in_seed_sds", "n"}; null where it is not known."""
        return {
            "shift": self.shift.estimate,
            "low": json_number(self.shift.low),
            "high": json_number(self.shift.high),
            "seed_sd": json_number(self.seed_sd),
            "in_seed_sds": json_number(self.in_seed_sds),
            "n": self.shift.n,
        }


def amplification(dpo: ArrayLike, reference: float) -> Amplification:
    r"""DPO's amplification of an attribute.

    .. math:: \frac{\bar{x}_{DPO} - x_{ref}}{\mathrm{sd}(x_{DPO})}
    """
    x = np.asarray(dpo, dtype=np.float64)
    moved = shift(x, reference)
    sd = float(x.std(ddof=1)) if len(x) > 1 else float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):
        in_sds = float(np.float64(moved.estimate) / sd)
    return Amplification(moved, sd, in_sds)
