"""Where theta's level and the policy start: gold annotators, and whether the first step is at the reference.

Gold annotators are known to lean nowhere, so that their votes fix the level that the other votes leave open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from badpo.auditing.people import named_annotators
from badpo.data.judgments import Judgments
from badpo.data.problems import ConfigError, Problem, counted
from badpo.estimation.fit import fit_conditional
from badpo.estimation.shrinkage import shrink_normal

KEY = "gold_annotators"


def gold_annotators(judgments: Judgments, named: Sequence[object]) -> NDArray[np.bool_]:
    """Who of the annotators is ``named``, by id or by pseudonym, as a bool array of shape (n_annotators,)."""
    if not len(named):
        return np.zeros(judgments.n_annotators, dtype=bool)
    gold = named_annotators(judgments.annotators["pseudonym"].to_numpy(), named, KEY)
    if gold.all():
        raise ConfigError(
            f"{KEY}: all {counted(len(gold), 'annotator')} are named, so no bias is left to learn. If no one leans, "
            "train plain DPO with bias: none"
        )
    n_cross = gold_cross_votes(judgments, gold)
    without = [name for name, n in n_cross.items() if n == 0]
    if without:
        raise ConfigError(
            f"{KEY}: the {counted(int(gold.sum()), 'annotator')} named cast no vote on responses that differ on "
            f"{', '.join(without)}, so their votes do not fix its level. Name others, let them judge such "
            "comparisons, or leave the attribute to a run without gold annotators"
        )
    return gold


def gold_cross_votes(judgments: Judgments, gold: NDArray[np.bool_]) -> dict[str, int]:
    """Judgments of the gold annotators whose responses differ, by attribute: what the level rests on."""
    theirs = gold[judgments.votes["annotator"].to_numpy()]
    n_cross = judgments.cross_group()[theirs].sum(axis=0)
    return dict(zip(judgments.attribute_names, n_cross.tolist(), strict=True))


def leans_above_gold(judgments: Judgments, gold: NDArray[np.bool_]) -> NDArray[np.float64]:
    """How everyone leans when the gold annotators do not, in log-odds, (n_annotators, n_attributes): 0 for those.

    The leans of the conditional estimator with the gold annotators anchored
    (`badpo.estimation.fit.fit_conditional`), shrunk toward their mean as the audit does. A `ConfigError` says
    where the votes do not tie the gold annotators to the others.
    """
    sign, annotator = (judgments.votes[c].to_numpy() for c in ("sign", "annotator"))
    leans = fit_conditional(
        judgments.comparable_votes(), sign, annotator, judgments.delta, judgments.n_annotators, anchored=gold
    )
    found = np.zeros_like(leans.deviation)
    for i, name in enumerate(judgments.attribute_names):
        value = leans.deviation[~gold, i]
        if not leans.absolute[i] or not np.isfinite(value).any():
            raise ConfigError(
                f"{KEY}: on {name} no comparison ties them to the others, so warm_start: offline has no level to start "
                "at. Use warm_start: zero, or let them judge the same comparisons"
            )
        found[~gold, i] = shrink_normal(leans.finite_deviation[~gold, i], leans.finite_se[~gold, i]).shrunk
    return found


@dataclass(frozen=True)
class StartDifference:
    """How far a run's first step is from the reference, before anything has moved.

    Attributes
    ----------
    mean : float
        The mean reward margin of the step's judgments; 0 where the policy starts at its reference.
    difference : float
        Root mean square over the step's tokens of the policy's log-probability minus the reference's, relative to that
        of the reference's: unlike in a mean, differences cannot cancel.
    tolerance : float
        The largest difference that rounding explains, from the self-test.
    """

    mean: float
    difference: float
    tolerance: float

    @property
    def problem(self) -> Problem | None:
        """A warning (W152) when the policy does not start at its reference."""
        if self.difference <= self.tolerance:
            return None
        return Problem(
            "W152",
            f"the policy's first log-probabilities differ from the reference's by {100 * self.difference:.2g} % "
            f"(rounding explains {100 * self.tolerance:.2g} %)",
            f"model and reference, all tokens of the first step; mean margin {self.mean:.2g}",
            "leave ref_model out, or start from its weights, and keep disable_dropout on: only where both are equal "
            "at the start does theta = 0 anchor the policy at the reference's attribute rate",
            "warning",
        )
