"""Learned theta beside the planted one: correlation, level, class means and class offsets.

The level of theta is fixed by the anchor and not by the votes; the offsets around it are what votes identify.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.readouts.json_number import json_number


@dataclass(frozen=True)
class ClassTheta:
    """Theta of one class of annotators on one attribute, learned and planted.

    Attributes
    ----------
    n : int
        Annotators.
    mean, planted_mean : float
        Over the annotators of the class, in log-odds.
    offset, planted_offset : float
        The same around the mean over all annotators.
    """

    n: int
    mean: float
    planted_mean: float
    offset: float
    planted_offset: float


@dataclass(frozen=True)
class ThetaAgreement:
    """Learned theta on one attribute beside the planted one.

    Attributes
    ----------
    level, planted_level : float
        Mean over annotators, in log-odds.
    correlation : float
        Over annotators; NaN where all learned, or all planted, values are equal.
    classes : dict of str to ClassTheta
        Empty where annotators have no class.
    """

    level: float
    planted_level: float
    correlation: float
    classes: dict[str, ClassTheta]

    def to_json(self) -> dict[str, Any]:
        """{"level", "planted_level", "correlation", "classes": {class: {...}}}; null where nothing is known."""
        return {
            "level": self.level,
            "planted_level": self.planted_level,
            "correlation": json_number(self.correlation),
            "classes": {name: dict(vars(found)) for name, found in self.classes.items()},
        }


def theta_agreement(
    theta: ArrayLike, planted: ArrayLike, attributes: Sequence[str], classes: Sequence[str | None]
) -> dict[str, ThetaAgreement]:
    """Agreement of the learned theta with the planted one, attribute by attribute."""
    learned, truth = np.asarray(theta, dtype=np.float64), np.asarray(planted, dtype=np.float64)
    if learned.shape != truth.shape or learned.shape != (len(classes), len(attributes)):
        raise ValueError(
            f"theta needs one row for each of {len(classes)} annotators and one column for each of {len(attributes)} "
            f"attributes; got {learned.shape} and {truth.shape}"
        )
    if not (np.isfinite(learned).all() and np.isfinite(truth).all()):
        raise ValueError("theta holds a number that is not finite")
    labels = np.array([name if isinstance(name, str) else "" for name in classes])
    return {
        name: _on_attribute(learned[:, column], truth[:, column], labels)
        for column, name in enumerate(attributes)
    }


def centered_offsets(offsets: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Class offsets around their mean over annotators: the raw parameters hold a part of the level too."""
    mean = sum(offsets[name] * sizes[name] for name in offsets) / sum(sizes[name] for name in offsets)
    return {name: float(offset - mean) for name, offset in offsets.items()}


def _on_attribute(
    learned: NDArray[np.float64], truth: NDArray[np.float64], labels: NDArray[np.str_]
) -> ThetaAgreement:
    level, planted_level = float(learned.mean()), float(truth.mean())
    # rounding leaves a spread of 1e-16 where every annotator has the one pooled value
    varies = min(learned.std(), truth.std()) > 1e-9
    classes = {}
    for name in sorted(set(labels.tolist()) - {""}):
        members = labels == name
        mean, planted_mean = float(learned[members].mean()), float(truth[members].mean())
        classes[name] = ClassTheta(
            int(members.sum()), mean, planted_mean, mean - level, planted_mean - planted_level
        )
    return ThetaAgreement(
        level=level,
        planted_level=planted_level,
        correlation=float(np.corrcoef(learned, truth)[0, 1]) if varies else float("nan"),
        classes=classes,
    )
