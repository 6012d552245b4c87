"""Whether a shift of the signatures is more than the accident of which names stand in which group.

Everything here reads a *mass* for each first name of the pool: its share of all answers (`signature_mass`), or its mean
probability (the mean over contexts of `badpo.readouts.attribute_rate.name_probabilities`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.corpora.signatures import read_signature
from badpo.readouts.json_number import json_number


@dataclass(frozen=True)
class RelabellingNull:
    """A shift beside those that random labels of the same names give.

    Attributes
    ----------
    shift : float
        Mass on the carriers, arm minus reference.
    sd, low, high : float
        Standard deviation and central 95 % range of the shift over random labels.
    p_greater : float
        Share of random labels, the true ones counted among them, with a shift at least as large.
    n : int
        Random labels.
    """

    shift: float
    sd: float
    low: float
    high: float
    p_greater: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        """{"shift", "sd", "low", "high", "p_greater", "n"}."""
        return dict(vars(self))


@dataclass(frozen=True)
class Concentration:
    """How few names carry an arm's signatures.

    Attributes
    ----------
    top : tuple of str
        The names with the most mass, heaviest first.
    top_share : float
        Their share of the arm's mass on the pool; NaN when it has none.
    effective_names : float
        1 / sum of squared shares: 89 when all names are equal, 1 when one has everything.
    shift_without_top : float
        The shift toward the carriers when the top names count as carriers no more.
    """

    top: tuple[str, ...]
    top_share: float
    effective_names: float
    shift_without_top: float

    def to_json(self) -> dict[str, object]:
        """{"top", "top_share", "effective_names", "shift_without_top"}; null where nothing is signed."""
        return {
            "top": list(self.top),
            "top_share": json_number(self.top_share),
            "effective_names": json_number(self.effective_names),
            "shift_without_top": self.shift_without_top,
        }


def signature_mass(generations: Sequence, names: Sequence[str]) -> NDArray[np.float64]:
    """Share of all answers that each first name signs; unsigned answers belong to no name."""
    if not generations:
        raise ValueError("there are no sampled answers to count in")
    row = {name: i for i, name in enumerate(names)}
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    counts = np.bincount([row[name] for name in found if name], minlength=len(names))
    return counts / len(generations)


def relabelling_null(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike, n: int = 1_000, seed: int = 0
) -> RelabellingNull:
    r"""The shift toward an attribute's names beside those toward random sets of as many names.

    .. math:: \sum_i c_{\pi(i)} (m^{arm}_i - m^{ref}_i)

    with c the carriers and :math:`\pi` a random permutation of the pool.
    """
    moved, carriers = _moved(arm_mass, reference_mass, carries)
    generator = np.random.default_rng(seed)
    shifts = np.array([generator.permutation(carriers) @ moved for _ in range(n)])
    shift = float(carriers @ moved)
    # equal sums differ in the last digit by the order of adding
    n_as_large = int((shifts >= shift - 1e-12).sum())
    low, high = np.quantile(shifts, [0.025, 0.975])
    return RelabellingNull(
        shift, float(shifts.std(ddof=1)), float(low), float(high), (1 + n_as_large) / (1 + n), n
    )


def concentration(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike, names: Sequence[str], n_top: int = 3
) -> Concentration:
    """How much of a shift hangs on the few names that an arm signs with most."""
    moved, carriers = _moved(arm_mass, reference_mass, carries)
    mass = np.asarray(arm_mass, dtype=np.float64)
    total = mass.sum()
    top = np.argsort(-mass, kind="stable")[:n_top]
    without = carriers.copy()
    without[top] = 0.0
    return Concentration(
        top=tuple(names[i] for i in top),
        top_share=float(mass[top].sum() / total) if total else float("nan"),
        effective_names=float(total**2 / (mass**2).sum()) if total else float("nan"),
        shift_without_top=float(without @ moved),
    )


def _moved(
    arm_mass: ArrayLike, reference_mass: ArrayLike, carries: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mass that each name gained, and the carriers as zeros and ones."""
    arm, reference, carriers = (np.asarray(x, dtype=np.float64) for x in (arm_mass, reference_mass, carries))
    if not arm.shape == reference.shape == carriers.shape or arm.ndim != 1:
        raise ValueError(
            f"one mass and one label for each name are needed; got {arm.shape}, {reference.shape}, {carriers.shape}"
        )
    return arm - reference, carriers
