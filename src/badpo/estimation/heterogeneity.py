"""Do annotators differ, and from that: how many bias numbers a training run should have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from badpo.estimation.shrinkage import Shrunk

BiasVariant = Literal["pooled", "shared_mean", "class"]


@dataclass(frozen=True)
class Recommendation:
    """Which bias term the votes call for.

    Attributes
    ----------
    variant : "pooled", "shared_mean" or "class"
        One number for all; one plus a deviation per annotator; or one plus an offset per class and a deviation per
        annotator. The names are those of the training config's ``bias``.
    reason : str
        One or two sentences with the evidence.
    """

    variant: BiasVariant
    reason: str


def recommend(
    shrunk: Shrunk, equal_leans_p: float, class_test_p: float | None = None, *, alpha: float = 0.05
) -> Recommendation:
    """Choose the bias term from the evidence that annotators, and their classes, differ.

    Classes that differ call for ``class``; else annotators that differ call for ``shared_mean``; else one number is
    enough. Whether annotators differ is read from the test that one shared lean suffices, and from the interval of
    tau where that test could not be made.

    Parameters
    ----------
    shrunk : Shrunk
        Of one attribute.
    equal_leans_p : float
        p-value of the test that one shared lean suffices; NaN where it could not be made.
    class_test_p : float or None
        p-value of the test that classes do not differ; None without classes, NaN where it could not be made.
    alpha : float
        Level of both tests.

    Returns
    -------
    Recommendation

    Examples
    --------
    >>> from badpo.estimation.shrinkage import shrink_normal
    >>> advice = recommend(shrink_normal([0.8, -0.7, 0.1, -0.2], [0.1] * 4), equal_leans_p=1e-9)
    >>> print(advice.variant, "-", advice.reason)
    shared_mean - Annotators differ (test of one shared lean: p < 0.001; spread tau 0.62, 95 % interval 0.32 to 1.85).
    """
    if class_test_p is not None and class_test_p < alpha:
        return Recommendation(
            "class",
            f"Classes of annotators differ (test of no class difference: {_p(class_test_p)}; {_spread(shrunk)}).",
        )
    differ = shrunk.tau_low > 0 if np.isnan(equal_leans_p) else equal_leans_p < alpha
    if differ:
        return Recommendation("shared_mean", f"Annotators differ ({_evidence(shrunk, equal_leans_p)}).")
    if np.isnan(shrunk.tau):
        return Recommendation(
            "pooled",
            "The votes cannot tell annotators apart: too few of them judged contested comparisons together.",
        )
    return Recommendation(
        "pooled",
        f"The votes do not show that annotators differ ({_evidence(shrunk, equal_leans_p)}). "
        f"A spread of up to {shrunk.tau_high:.2f} log-odds remains possible.",
    )


def _evidence(shrunk: Shrunk, equal_leans_p: float) -> str:
    if np.isnan(equal_leans_p):
        return _spread(shrunk)
    return f"test of one shared lean: {_p(equal_leans_p)}; {_spread(shrunk)}"


def _spread(shrunk: Shrunk) -> str:
    if np.isnan(shrunk.tau):
        return "spread not known"
    return f"spread tau {shrunk.tau:.2f}, 95 % interval {shrunk.tau_low:.2f} to {shrunk.tau_high:.2f}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
