"""The votes of an audit as arrays, which all its parts read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from badpo.data.judgments import Judgments
from badpo.theory.identifiability import informative_judgments


@dataclass(frozen=True, eq=False)
class Design:
    """Who judged what, with which difference on each attribute, and how they voted.

    Attributes
    ----------
    comparison, annotator : int arrays of shape (n_votes,)
    stratum : int array of shape (n_votes,)
        `Judgments.strata`: what is conditioned on in place of the comparison.
    sign : int array of shape (n_votes,)
        +1 chose a, -1 chose b.
    delta : float array of shape (n_votes, n_attributes)
        g(a) - g(b).
    cross : bool array of shape (n_votes, n_attributes)
        Judgments whose sides differ by more than the attribute's threshold.
    informative : bool array of shape (n_votes, n_attributes)
        Judgments that tell annotators apart when nothing is known of the comparison's quality.
    annotators : object array of shape (n_annotators,)
        Pseudonyms.
    classes : object array of shape (n_annotators,)
        Class labels, None where there is none.
    attributes : tuple of str
        Names.
    has_identities : bool
        False when nobody knows who voted; all votes then stand under one annotator.
    """

    comparison: NDArray[np.int64]
    stratum: NDArray[np.intp]
    annotator: NDArray[np.int64]
    sign: NDArray[np.int64]
    delta: NDArray[np.float64]
    cross: NDArray[np.bool_]
    informative: NDArray[np.bool_]
    annotators: NDArray[np.object_]
    classes: NDArray[np.object_]
    attributes: tuple[str, ...]
    has_identities: bool

    @property
    def n_annotators(self) -> int:
        """Number of annotators, with or without a vote."""
        return len(self.annotators)

    @property
    def votes(self) -> tuple[NDArray, NDArray, NDArray, NDArray, int]:
        """What every estimator takes first: stratum, sign, annotator, delta, number of annotators."""
        return self.stratum, self.sign, self.annotator, self.delta, self.n_annotators

    def per_annotator(self, votes: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of some votes each annotator cast, of shape (n_annotators,) or (n_annotators, n_attributes)."""
        columns = votes.reshape(len(votes), -1).T
        counts = [np.bincount(self.annotator[chosen], minlength=self.n_annotators) for chosen in columns]
        counted = np.stack(counts, axis=1) if counts else np.zeros((self.n_annotators, 0), dtype=np.int64)
        return counted[:, 0] if votes.ndim == 1 else counted

    def raw_rate(self) -> NDArray[np.float64]:
        """How often each annotator chose the side with more of an attribute, among their cross-group judgments.

        Shape (n_annotators, n_attributes); NaN without such a judgment.
        """
        chose_more = self.cross & (self.sign[:, None] * self.delta > 0)
        n_cross = self.per_annotator(self.cross)
        rate = np.full(n_cross.shape, np.nan)
        return np.divide(self.per_annotator(chose_more), n_cross, out=rate, where=n_cross > 0)


def design_of(judgments: Judgments) -> Design:
    """The arrays of a table of judgments."""
    comparison, annotator, sign = (
        judgments.votes[name].to_numpy(dtype=np.int64) for name in ("comparison", "annotator", "sign")
    )
    stratum = judgments.strata()
    return Design(
        comparison=comparison,
        stratum=stratum,
        annotator=annotator,
        sign=sign,
        delta=judgments.delta,
        cross=judgments.cross_group(),
        informative=informative_judgments(stratum, annotator, sign, judgments.delta),
        annotators=judgments.annotators["pseudonym"].to_numpy(),
        classes=judgments.annotators["annotator_class"].to_numpy(),
        attributes=judgments.attribute_names,
        has_identities=judgments.has_identities,
    )
