"""How long sampled answers are and how many carry an attribute, beside those of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.readouts.json_number import json_number
from badpo.readouts.sampled import prompt_numbers, token_counts
from badpo.theory.summaries import Interval, cluster_mean, length_matched_mean

N_BINS = 5


@dataclass(frozen=True)
class StyleRates:
    """Rate of an attribute in sampled answers, by itself and at the reference's lengths.

    Attributes
    ----------
    raw : Interval
        Mean over answers.
    matched : Interval
        Mean as if the answers' lengths were distributed like the reference's.
    tokens : Interval
        Mean sampled tokens, the end-of-text token counted.
    bin_rate : float64 array of shape (n_bins,)
        Mean of the answers in each bin of length, shortest first; NaN in a bin without any.
    bin_n : int array of shape (n_bins,)
        Answers in each bin.
    reference_share : float64 array of shape (n_bins,)
        The reference's share of each bin.
    """

    raw: Interval
    matched: Interval
    tokens: Interval
    bin_rate: NDArray[np.float64]
    bin_n: NDArray[np.int64]
    reference_share: NDArray[np.float64]

    def to_json(self) -> dict[str, Any]:
        """{"rate", "se", "matched", "matched_se", "tokens", "tokens_se", "n", "bins": [{"rate", "n", "share"}]}."""
        bins = zip(self.bin_rate, self.bin_n, self.reference_share, strict=True)
        return {
            "rate": self.raw.estimate,
            "se": json_number(self.raw.se),
            "matched": self.matched.estimate,
            "matched_se": json_number(self.matched.se),
            "tokens": self.tokens.estimate,
            "tokens_se": json_number(self.tokens.se),
            "n": int(self.bin_n.sum()),
            "bins": [
                {"rate": json_number(rate), "n": int(n), "share": float(share)} for rate, n, share in bins
            ],
        }


def style_rates(
    values: ArrayLike, generations: Sequence, reference: Sequence, n_bins: int = N_BINS
) -> StyleRates:
    """Rate of an attribute in a policy's answers, reweighted onto the lengths of the reference's answers.

    Intervals are clustered by prompt.

    A policy that merely writes shorter answers writes less Markdown too; the reweighted rate does not fall for that.
    """
    x = np.asarray(values, dtype=np.float64)
    lengths, reference_lengths = token_counts(generations), token_counts(reference)
    prompts = prompt_numbers(generations)
    matched = length_matched_mean(x, lengths, reference_lengths, n_bins, prompts)
    edges = np.quantile(reference_lengths, np.arange(1, n_bins) / n_bins)
    bins, reference_bins = (
        np.searchsorted(edges, each, side="right") for each in (lengths, reference_lengths)
    )
    counts = np.bincount(bins, minlength=n_bins)
    sums = np.bincount(bins, weights=x, minlength=n_bins)
    return StyleRates(
        raw=cluster_mean(x, prompts),
        matched=matched,
        tokens=cluster_mean(lengths, prompts),
        bin_rate=np.divide(sums, counts, out=np.full(n_bins, np.nan), where=counts > 0),
        bin_n=counts,
        reference_share=np.bincount(reference_bins, minlength=n_bins) / len(reference_lengths),
    )
