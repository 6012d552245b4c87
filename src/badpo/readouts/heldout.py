"""How well a policy's margin predicts held-out votes where the responses differ on an attribute, and elsewhere.

A policy that took in its annotators' lean predicts their votes better exactly where the attribute differs. The
difference of the two accuracies is the gap; it falls to zero when the lean stays out of the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from badpo.data.judgments import Judgments
from badpo.data.privacy import withheld_classes
from badpo.readouts.sampled import figures
from badpo.theory.summaries import cluster_difference, cluster_mean
from badpo.training.encoding import encode_comparisons
from badpo.training.logprobs import response_logps
from badpo.training.reference import ReferenceCache


def heldout_accuracy(margins: ArrayLike, judgments: Judgments) -> dict[str, dict[str, Any]]:
    """Accuracy of the policy's margin on votes, same-group and cross-group, with the gap.

    A vote is predicted where ``sign * u > 0``; a margin of exactly 0 predicts nobody and counts as wrong. Every
    vote counts once, whatever its training weight.

    Parameters
    ----------
    margins : array of shape (n_comparisons,)
        u of each comparison, response a over response b.
    judgments : Judgments
        Votes the policy was not trained on.

    Returns
    -------
    dict
        `group_accuracy` of every attribute, and under "any" of the votes whose responses differ on any.

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
    masks = {**dict(zip(judgments.attribute_names, cross.T, strict=True)), "any": cross.any(axis=1)}
    return {name: group_accuracy(correct, mask, prompts) for name, mask in masks.items()}


def group_accuracy(correct: ArrayLike, cross: ArrayLike, clusters: ArrayLike) -> dict[str, Any]:
    """{"same", "cross", "gap", "n_same", "n_cross", "gap_low", "gap_high"}; intervals are clustered by prompt."""
    correct, cross, clusters = np.asarray(correct), np.asarray(cross, dtype=bool), np.asarray(clusters)
    gap = cluster_difference(correct, cross, clusters)
    return figures(
        same=cluster_mean(correct[~cross]).estimate,
        cross=cluster_mean(correct[cross]).estimate,
        gap=gap.estimate,
        n_same=int((~cross).sum()),
        n_cross=int(cross.sum()),
        gap_low=gap.low,
        gap_high=gap.high,
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
    lengths = (max_length, max_prompt_length)
    encoded = encode_comparisons(judgments.comparisons, tokenizer, encoding, *lengths)
    ours = _sums(response_logps(policy, encoded.pairs))
    theirs = _sums(cache.logps(reference, encoded.pairs))
    return beta * ((ours[0::2] - theirs[0::2]) - (ours[1::2] - theirs[1::2]))


def _sums(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([v.sum(dtype=np.float64) for v in values])


ALL = "all"


def vote_accuracy(
    margins: ArrayLike, theta_rows: ArrayLike | None, judgments: Judgments
) -> dict[str, dict]:
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

    Returns
    -------
    dict
        {attribute: {"all" or an annotator class: {"accuracy", "n", "se", "nll"}}}.

    Raises
    ------
    ValueError
        A shape that does not fit, or a number that is not finite.

    References
    ----------
    BA-DPO, Appendix `app:readouts`, "Vote prediction with the arm's own bias parameters"; Table `tab:votes`.
    """
    return logit_accuracy(bias_adjusted_logits(margins, theta_rows, judgments), judgments)


def logit_accuracy(logits: ArrayLike, judgments: Judgments) -> dict[str, dict]:
    """`vote_accuracy` of any prediction."""
    logits = np.asarray(logits, dtype=np.float64)
    correct, nll = logits > 0, np.logaddexp(0.0, -logits)

    def cell(mask: NDArray, prompts: NDArray) -> dict[str, Any]:
        accuracy = cluster_mean(correct[mask], prompts)
        nats = cluster_mean(nll[mask]).estimate
        return figures(accuracy=accuracy.estimate, n=int(mask.sum()), se=accuracy.se, nll=nats)

    return _by_class(cell, judgments)


def vote_difference(
    margins: ArrayLike,
    theta_rows: ArrayLike | None,
    other_theta_rows: ArrayLike | None,
    judgments: Judgments,
) -> dict[str, dict]:
    """Vote prediction with one theta minus that with another, at the same margins: the arm minus its ceiling.

    Most votes are predicted alike by both, so the difference is known far better than either accuracy.
    """
    one, other = (
        bias_adjusted_logits(margins, rows, judgments) for rows in (theta_rows, other_theta_rows)
    )
    accuracy = (one > 0).astype(np.float64) - (other > 0)
    nll = np.logaddexp(0.0, -one) - np.logaddexp(0.0, -other)

    def cell(mask: NDArray, prompts: NDArray) -> dict[str, Any]:
        found = cluster_mean(accuracy[mask], prompts)
        return figures(
            difference=found.estimate,
            se=found.se,
            low=found.low,
            high=found.high,
            n=int(mask.sum()),
            nll_difference=cluster_mean(nll[mask]).estimate,
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


def theta_rows_for(
    judgments: Judgments, pseudonyms: Sequence[str], theta: ArrayLike
) -> NDArray[np.float64]:
    """Theta in the order of ``judgments.annotators``; an annotator that theta does not know gets the pool mean."""
    theta = np.asarray(theta, dtype=np.float64)
    if theta.ndim != 2 or len(theta) != len(pseudonyms):
        raise ValueError(
            f"one row of theta per pseudonym is needed: {len(pseudonyms)}; got shape {theta.shape}"
        )
    row = {pseudonym: i for i, pseudonym in enumerate(pseudonyms)}
    with_mean = np.vstack([theta, theta.mean(axis=0)])
    return with_mean[[row.get(pseudonym, -1) for pseudonym in judgments.annotators["pseudonym"]]]


def _by_class(cell: Callable[[NDArray, NDArray], dict], judgments: Judgments) -> dict[str, dict]:
    """A readout of every attribute, over all annotators and by annotator class."""
    prompts = judgment_prompts(judgments)
    annotator = judgments.votes["annotator"].to_numpy()
    # the last entry is what annotator -1 finds
    classes = np.array([*judgments.annotators["annotator_class"], None], dtype=object)[annotator]
    cross = np.asarray(judgments.cross_group(), dtype=bool)
    found = {}
    for attribute, column in zip(judgments.attribute_names, cross.T, strict=True):
        voters = pd.Series(annotator[column]).groupby(classes[column]).nunique()
        n_others = int(pd.unique(annotator[column]).size - voters.sum())
        withheld = withheld_classes(voters.to_dict(), n_others)
        masks = {
            name: column & (classes == name) for name in sorted(voters.index) if name not in withheld
        }
        found[attribute] = {
            name: cell(mask, prompts[mask]) for name, mask in {ALL: column, **masks}.items()
        }
    return found
