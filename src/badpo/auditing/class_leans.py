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
    """One attribute's classes.

    Attributes
    ----------
    rows : list of dict
        ``class``, ``n`` (annotators with an informative vote), ``offset`` from the mean over annotators with a class,
        ``ci_low``, ``ci_high``. Empty with fewer than two classes.
    p_value : float or None
        Of no difference between classes; None where it cannot be tested.
    """

    rows: list[dict[str, Any]]
    p_value: float | None


def class_leans(design: Design) -> tuple[ClassLeans, ...]:
    """The classes' leans relative to the pool, for each attribute.

    By the conditional likelihood, whatever estimator the annotators' own leans come from.

    Examples
    --------
    >>> from badpo.attributes import Length
    >>> from badpo.auditing.design import design_of
    >>> from badpo.data.judgments import Judgments
    >>> texts = {"response_a": "It just is so, always.", "response_b": "So."}
    >>> rows = [{"prompt": str(p), "annotator": who, "annotator_class": who, "winner": winner, **texts}
    ...     for p in range(30) for who, winner in (("crowd", "ab"[p % 3 == 0]), ("staff", "ab"[p % 2]))]
    >>> leans, = class_leans(design_of(Judgments.read(rows, attributes=[Length()])))
    >>> [(row["class"], round(row["offset"], 2)) for row in leans.rows]
    [('crowd', 0.35), ('staff', -0.35)]
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
    """The p-value of a test, None where there was nothing to test.

    Examples
    --------
    >>> p_value_or_none(float("nan")) is None
    True
    """
    return None if math.isnan(p_value) else float(p_value)
