"""How well a policy together with the annotators' own bias predicts their held-out votes.

The arm predicts with its learned theta; the ceiling predicts with the planted theta and the same margins. Only
judgments whose responses differ on the attribute are read.
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
from badpo.readouts.heldout import judgment_margins, judgment_prompts
from badpo.readouts.json_number import json_number
from badpo.theory.summaries import Interval, cluster_mean

ALL = "all"


@dataclass(frozen=True)
class VoteAccuracy:
    """How well some votes are predicted.

    Attributes
    ----------
    accuracy : Interval
        Share of votes on the side that the bias-adjusted logit leans to.
    nll : Interval
        Mean negative log-likelihood of the votes, in nats; log 2 is a coin.
    n : int
        Votes. Intervals are clustered by prompt.
    """

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
    """Prediction by one theta minus prediction by another, on the same votes.

    Attributes
    ----------
    accuracy, nll : Interval
        Mean over votes of the difference, paired vote by vote and clustered by prompt. A lower nll is better.
    n : int
        Votes.
    """

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
    """A readout of every attribute, over all annotators and by annotator class.

    Attributes
    ----------
    cells : dict of attribute to dict of class to cell
        "all" stands beside the annotator classes, of which those are left out that are about few people
        (`badpo.data.privacy.withheld_classes`).
    """

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
