"""The tilt of a choice found on some contexts, with the rates that it gives on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.anchoring.sampling import ChoiceScorer
from badpo.readouts.attribute_rate import SIGNATURE_LEAD
from badpo.readouts.json_number import json_number
from badpo.theory.summaries import Interval, cluster_mean
from badpo.theory.tilt import shift_to_targets, tilted_probabilities


@dataclass(frozen=True)
class SampledAnchor:
    """A tilt at sampling time: what it was asked for and what it gives on prompts that it was not found on.

    Attributes
    ----------
    attributes : tuple of str
    asked : tuple of float
        Target rates.
    shift, tilt : array of shape (n_attributes,)
        s in log-odds, and c = beta s in units of the margin.
    before, achieved : tuple of Interval
        Mean over the reporting contexts of the probability on choices that carry the attribute, renormalised over
        the choices. The interval is over these contexts; the shift is taken as it is.
    """

    attributes: tuple[str, ...]
    asked: tuple[float, ...]
    shift: NDArray[np.float64]
    tilt: NDArray[np.float64]
    before: tuple[Interval, ...]
    achieved: tuple[Interval, ...]

    def to_json(self) -> dict[str, dict[str, float | None]]:
        """{attribute: {"asked", "before", "achieved", "ci_low", "ci_high", "c", "shift"}}."""
        return {
            name: {
                "asked": self.asked[i],
                "before": self.before[i].estimate,
                "achieved": self.achieved[i].estimate,
                "ci_low": json_number(self.achieved[i].low),
                "ci_high": json_number(self.achieved[i].high),
                "c": float(self.tilt[i]),
                "shift": float(self.shift[i]),
            }
            for i, name in enumerate(self.attributes)
        }


def anchor_sampling(
    model,
    tokenizer,
    find_on: Sequence[Sequence[int]],
    report_on: Sequence[Sequence[int]],
    names: Sequence[str],
    carries: ArrayLike,
    attributes: Sequence[str],
    targets: Sequence[float],
    beta: float,
    lead: str = SIGNATURE_LEAD,
    boundary: str = "space",
) -> SampledAnchor:
    """Find the tilt that brings all rates to their targets on some contexts, and read the rates on others."""
    _check_separate(find_on, report_on)
    scorer = ChoiceScorer(model, tokenizer, names, lead, boundary)
    logps = scorer.name_logps([*find_on, *report_on])
    indicator = np.asarray(carries, dtype=np.float64).reshape(len(names), -1)
    found = shift_to_targets(logps[: len(find_on)], indicator, targets, attributes)
    rates = [
        tilted_probabilities(logps[len(find_on) :], indicator, shift) @ indicator
        for shift in (np.zeros_like(found.shift), found.shift)
    ]
    before, achieved = (tuple(cluster_mean(column) for column in rate.T) for rate in rates)
    return SampledAnchor(
        attributes=tuple(attributes),
        asked=tuple(map(float, targets)),
        shift=found.shift,
        tilt=found.in_margin(beta),
        before=before,
        achieved=achieved,
    )


def _check_separate(find_on: Sequence[Sequence[int]], report_on: Sequence[Sequence[int]]) -> None:
    if not len(find_on) or not len(report_on):
        raise ValueError(
            f"{len(find_on)} contexts to find the tilt on and {len(report_on)} to report on; give some of both"
        )
    both = set(map(tuple, find_on)) & set(map(tuple, report_on))
    if both:
        raise ValueError(
            f"{len(both)} contexts are there both to find the tilt on and to report on; a rate that was searched for "
            "is no evidence of itself: give contexts of different prompts"
        )
