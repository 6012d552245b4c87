"""How well a policy's margin predicts held-out votes where the responses differ on an attribute, and elsewhere.

A policy that took in its annotators' lean predicts their votes better exactly where the attribute differs. The
difference of the two accuracies is the gap; it falls to zero when the lean stays out of the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.judgments import Judgments
from badpo.readouts.json_number import json_number
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy on same-group and on cross-group judgments, and the gap.

    Attributes
    ----------
    same, cross : Interval
        Share of judgments predicted, where the responses agree and where they differ on the attribute.
    gap : Interval
        Cross minus same. All intervals are clustered by prompt; what has no judgment is NaN.
    n_same, n_cross : int
        Judgments.
    """

    same: Interval
    cross: Interval
    gap: Interval
    n_same: int
    n_cross: int

    def to_json(self) -> dict[str, float | int | None]:
        """{"same", "cross", "gap", "n_same", "n_cross", "gap_low", "gap_high"}; null where nothing is known."""
        return {
            "same": json_number(self.same.estimate),
            "cross": json_number(self.cross.estimate),
            "gap": json_number(self.gap.estimate),
            "n_same": self.n_same,
            "n_cross": self.n_cross,
            "gap_low": json_number(self.gap.low),
            "gap_high": json_number(self.gap.high),
        }


@dataclass(frozen=True)
class HeldoutAccuracy:
    """The accuracies of every attribute.

    Attributes
    ----------
    attributes : dict of str to GroupAccuracy
        Cross-group where this attribute differs, whatever the others do.
    any : GroupAccuracy
        Cross-group where at least one attribute differs: the paper's gap for several attributes.
    """

    attributes: dict[str, GroupAccuracy]
    any: GroupAccuracy

    def to_json(self) -> dict[str, dict]:
        """{attribute: {...}, "any": {...}} of `GroupAccuracy.to_json`."""
        return {
            **{name: found.to_json() for name, found in self.attributes.items()},
            "any": self.any.to_json(),
        }


def heldout_accuracy(margins: ArrayLike, judgments: Judgments) -> HeldoutAccuracy:
    """Accuracy of the policy's margin on votes, same-group and cross-group, with the gap.

    A vote is predicted where ``sign * u > 0``; a margin of exactly 0 predicts nobody and counts as wrong. Every
    vote counts once, whatever its training weight.

    Parameters
    ----------
    margins : array of shape (n_comparisons,)
        u of each comparison, response a over response b.
    judgments : Judgments
        Votes the policy was not trained on.

    Raises
    ------
    ValueError
        Another number of margins than comparisons, or a margin that is not finite.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Held-out accuracy and the gap".
    """
    correct = judgment_margins(margins, judgments) > 0
    prompts = judgment_prompts(judgments)
    cross = np.asarray(judgments.cross_group(), dtype=bool)
    return HeldoutAccuracy(
        attributes={
            name: group_accuracy(correct, column, prompts)
            for name, column in zip(judgments.attribute_names, cross.T, strict=True)
        },
        any=group_accuracy(correct, cross.any(axis=1), prompts),
    )


def group_accuracy(correct: ArrayLike, cross: ArrayLike, clusters: ArrayLike) -> GroupAccuracy:
    """Accuracy off and on a mask, and the difference, with intervals clustered by prompt."""
    correct, cross, clusters = np.asarray(correct), np.asarray(cross, dtype=bool), np.asarray(clusters)
    return GroupAccuracy(
        same=cluster_mean(correct[~cross], clusters[~cross]),
        cross=cluster_mean(correct[cross], clusters[cross]),
        gap=cluster_difference(correct, cross, clusters),
        n_same=int((~cross).sum()),
        n_cross=int(cross.sum()),
    )


def judgment_margins(margins: ArrayLike, judgments: Judgments) -> NDArray[np.float64]:
    """Margin in the direction of each vote, sign * u: positive where the two agree, shape (n_votes,)."""
    u = np.asarray(margins, dtype=np.float64)
    if u.shape != (judgments.n_comparisons,):
        raise ValueError(
            f"one margin per comparison is needed: {judgments.n_comparisons}; got shape {u.shape}"
        )
    if not np.isfinite(u).all():
        bad = np.flatnonzero(~np.isfinite(u))
        first = judgments.comparisons["comparison_id"].iloc[int(bad[0])]
        raise ValueError(
            f"the margins of {len(bad)} comparisons are not finite (first: comparison {first}); leave comparisons "
            "without a margin out with Judgments.take and report how many they are"
        )
    votes = judgments.votes
    return votes["sign"].to_numpy(dtype=np.float64) * u[votes["comparison"].to_numpy()]


def judgment_prompts(judgments: Judgments) -> NDArray:
    """Prompt id of every judgment, shape (n_votes,): what intervals are clustered by."""
    return judgments.comparisons["prompt_id"].to_numpy()[judgments.votes["comparison"].to_numpy()]
