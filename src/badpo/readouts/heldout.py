"""How well a policy's margin predicts held-out votes where the responses differ on an attribute, and elsewhere.

A policy that took in its annotators' lean predicts their votes better exactly where the attribute differs. The
difference of the two accuracies is the gap; it falls to zero when the lean stays out of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from badpo.data.judgments import Judgments
from badpo.data.privacy import withheld_classes
from badpo.readouts.generation import Generation
from badpo.readouts.kl import Divergence, kl_per_token
from badpo.readouts.sampled import json_number, prompt_numbers
from badpo.theory.summaries import Interval, cluster_difference, cluster_mean
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy on same-group and on cross-group judgments, and the gap."""

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
    """The accuracies of every attribute."""

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


def implicit_margins(
    policy,
    reference,
    cache: ReferenceCache,
    judgments: Judgments,
    tokenizer,
    encoding: str,
    max_length: int | None,
    max_prompt_length: int | None,
    beta: float,
) -> np.ndarray:
    """The policy's implicit reward margin u of every comparison, response a over b, beta included."""
    encoded = encode_comparisons(judgments, tokenizer, encoding, max_length, max_prompt_length)
    ours = _sums(response_logps(policy, encoded.pairs))
    theirs = _sums(cache.logps(reference, encoded.pairs))
    return beta * ((ours[0::2] - theirs[0::2]) - (ours[1::2] - theirs[1::2]))


def divergence(
    policy, reference, answers: Sequence[Generation], temperature: float, top_p: float
) -> Divergence:
    """KL of the policy from the reference per token, on the policy's own answers.

    Log-probabilities are those at temperature 1 of the very tokens that were sampled.
    """
    pairs = [(np.asarray(g.prompt_ids), np.asarray(g.token_ids)) for g in answers]
    return kl_per_token(
        response_logps(policy, pairs),
        response_logps(reference, pairs),
        temperature,
        top_p,
        prompt_numbers(answers),
    )


def _sums(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([v.sum(dtype=np.float64) for v in values])


ALL = "all"


@dataclass(frozen=True)
class VoteAccuracy:
    """How well some votes are predicted."""

    accuracy: Interval
    nll: Interval
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """{"accuracy", "n", "se", "nll"}; null where nothing is known."""
        return {
            "accuracy": json_number(self.accuracy.estimate),
            "n": self.n,
            "se": json_number(self.accuracy.se),
            "nll": json_number(self.nll.estimate),
        }


@dataclass(frozen=True)
class VoteDifference:
    """Prediction by one theta minus prediction by another, on the same votes."""

    accuracy: Interval
    nll: Interval
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """{"difference", "se", "low", "high", "n", "nll_difference"}; null where nothing is known."""
        return {
            "difference": json_number(self.accuracy.estimate),
            "se": json_number(self.accuracy.se),
            "low": json_number(self.accuracy.low),
            "high": json_number(self.accuracy.high),
            "n": self.n,
            "nll_difference": json_number(self.nll.estimate),
        }


Cell = TypeVar("Cell", VoteAccuracy, VoteDifference)


@dataclass(frozen=True)
class ByClass(Generic[Cell]):
    """A readout of every attribute, over all annotators and by annotator class."""

    cells: dict[str, dict[str, Cell]]

    def __getitem__(self, attribute: str) -> dict[str, Cell]:
        return self.cells[attribute]

    def to_json(self) -> dict[str, dict[str, dict]]:
        """{attribute: {"all": {...}, class: {...}}}."""
        return {
            attribute: {name: cell.to_json() for name, cell in row.items()}
            for attribute, row in self.cells.items()
        }


def vote_accuracy(
    margins: ArrayLike, theta_rows: ArrayLike | None, judgments: Judgments
) -> ByClass[VoteAccuracy]:
    r"""Accuracy of the bias-adjusted logit on votes whose responses differ on the attribute.

    .. math:: \operatorname{logit}_j = s_j\,(u_{c_j} + \theta_{k_j}^\top d_j)

    A vote is predicted where its logit is positive; a logit of exactly 0 counts as wrong. All attributes enter
    the logit, also those that the row of the result is not about. With the planted theta this is the ceiling.

    Parameters
    ----------
    margins : array of shape (n_comparisons,)
        u of each comparison, response a over response b.
    theta_rows : array of shape (n_annotators, n_attributes), or None
        Row k belongs to ``judgments.annotators`` row k (`theta_rows_for` brings them in order). None: no bias
        term. A vote with annotator -1 is predicted with the pool mean.
    judgments : Judgments

    Raises
    ------
    ValueError
        A shape that does not fit, or a number that is not finite.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Vote prediction with the arm's own bias parameters"; Table `tab:votes`.
    """
    return logit_accuracy(bias_adjusted_logits(margins, theta_rows, judgments), judgments)


def logit_accuracy(logits: ArrayLike, judgments: Judgments) -> ByClass[VoteAccuracy]:
    """`vote_accuracy` of any prediction."""
    logits = np.asarray(logits, dtype=np.float64)
    correct, nll = logits > 0, np.logaddexp(0.0, -logits)

    def cell(mask, prompts):
        return VoteAccuracy(
            cluster_mean(correct[mask], prompts), cluster_mean(nll[mask], prompts), int(mask.sum())
        )

    return _by_class(cell, judgments)


def vote_difference(
    margins: ArrayLike, theta_rows: ArrayLike | None, other_theta_rows: ArrayLike | None, judgments: Judgments
) -> ByClass[VoteDifference]:
    """Vote prediction with one theta minus that with another, at the same margins: the arm minus its ceiling.

    Most votes are predicted alike by both, so the difference is known far better than either accuracy.
    """
    one, other = (bias_adjusted_logits(margins, rows, judgments) for rows in (theta_rows, other_theta_rows))
    accuracy = (one > 0).astype(np.float64) - (other > 0)
    nll = np.logaddexp(0.0, -one) - np.logaddexp(0.0, -other)

    def cell(mask, prompts):
        return VoteDifference(
            cluster_mean(accuracy[mask], prompts), cluster_mean(nll[mask], prompts), int(mask.sum())
        )

    return _by_class(cell, judgments)


def bias_adjusted_logits(
    margins: ArrayLike, theta_rows: ArrayLike | None, judgments: Judgments
) -> NDArray[np.float64]:
    """Logit of each vote, sign * (u + theta . delta), shape (n_votes,); arguments as in `vote_accuracy`."""
    side = judgment_margins(margins, judgments)
    if theta_rows is None:
        return side
    theta = np.asarray(theta_rows, dtype=np.float64)
    expected = (judgments.n_annotators, judgments.n_attributes)
    if theta.shape != expected:
        raise ValueError(
            f"theta needs one row per annotator and one column per attribute, {expected}; got {theta.shape}"
        )
    if not np.isfinite(theta).all():
        raise ValueError("theta holds a number that is not finite")
    # the last row is what annotator -1 finds
    rows = np.vstack([theta, theta.mean(axis=0)])[judgments.votes["annotator"].to_numpy()]
    return side + judgments.votes["sign"].to_numpy() * (rows * judgments.delta).sum(axis=1)


def theta_rows_for(judgments: Judgments, pseudonyms: Sequence[str], theta: ArrayLike) -> NDArray[np.float64]:
    """Theta in the order of ``judgments.annotators``; an annotator that theta does not know gets the pool mean."""
    theta = np.asarray(theta, dtype=np.float64)
    if theta.ndim != 2 or len(theta) != len(pseudonyms):
        raise ValueError(
            f"one row of theta per pseudonym is needed: {len(pseudonyms)}; got shape {theta.shape}"
        )
    row = {pseudonym: i for i, pseudonym in enumerate(pseudonyms)}
    with_mean = np.vstack([theta, theta.mean(axis=0)])
    return with_mean[[row.get(pseudonym, -1) for pseudonym in judgments.annotators["pseudonym"]]]


def _by_class(cell: Callable[[NDArray, NDArray], Cell], judgments: Judgments) -> ByClass[Cell]:
    prompts = judgment_prompts(judgments)
    annotator = judgments.votes["annotator"].to_numpy()
    # the last entry is what annotator -1 finds
    classes = np.array([*judgments.annotators["annotator_class"], None], dtype=object)[annotator]
    cross = np.asarray(judgments.cross_group(), dtype=bool)
    cells = {}
    for attribute, column in zip(judgments.attribute_names, cross.T, strict=True):
        voters = pd.Series(annotator[column]).groupby(classes[column]).nunique()
        n_others = int(pd.unique(annotator[column]).size - voters.sum())
        withheld = withheld_classes(voters.to_dict(), n_others)
        masks = {name: column & (classes == name) for name in sorted(voters.index) if name not in withheld}
        cells[attribute] = {name: cell(mask, prompts[mask]) for name, mask in {ALL: column, **masks}.items()}
    return ByClass(cells)
