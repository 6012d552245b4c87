"""How classes of annotators differ, and whether annotators differ at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from badpo.auditing.design import Design
from badpo.estimation.group_tests import class_offsets


@dataclass(frozen=True)
class ClassLeans:
    """One attribute's classes."""

    rows: list[dict[str, Any]]
    p_value: float | None


def class_leans(design: Design) -> tuple[ClassLeans, ...]:
    """The classes' leans relative to the pool, for each attribute.

    By the conditional likelihood, whatever estimator the annotators' own leans come from.
    """
    labels = sorted({label for label in design.classes if label is not None})
    if len(labels) < 2:
        return (ClassLeans([], None),) * len(design.attributes)
    number = {label: i for i, label in enumerate(labels)}
    of = np.array([number.get(label, -1) for label in design.classes], dtype=np.int64)
    found = class_offsets(*design.votes[:4], of)
    return tuple(
        ClassLeans(
            [
                {
                    "class": label,
                    "n": int(found.n[i, j]),
                    "offset": float(found.offset[i, j]),
                    "ci_low": float(found.ci_low[i, j]),
                    "ci_high": float(found.ci_high[i, j]),
                }
                for i, label in enumerate(labels)
            ],
            p_value_or_none(found.tests[j].p_value),
        )
        for j in range(len(design.attributes))
    )


def p_value_or_none(p_value: float) -> float | None:
    """The p-value of a test, None where there was nothing to test."""
    return None if math.isnan(p_value) else float(p_value)
