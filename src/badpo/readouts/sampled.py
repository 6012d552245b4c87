"""What is counted in sampled answers: signatures, endings, attributes, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.attributes import Attribute
from badpo.data.tables import numbered
from badpo.readouts.names import read_signature
from badpo.theory.summaries import Interval, cluster_mean, length_matched_mean, wilson_interval


def json_number(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no NaN, and null says that nothing is known."""
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class SampledRates:
    """How sampled answers end and whom they are signed by."""

    n: int
    signed: Interval
    ended: Interval
    attributes: dict[str, Interval]

    def to_json(self) -> dict:
        """{"n", "signed", "ended", attribute: {"rate", "low", "high", "n"}}; null where nothing was signed."""
        return {
            "n": self.n,
            "signed": self.signed.estimate,
            "ended": self.ended.estimate,
            **{
                name: {
                    "rate": json_number(found.estimate),
                    "low": json_number(found.low),
                    "high": json_number(found.high),
                    "n": found.n,
                }
                for name, found in self.attributes.items()
            },
        }


@dataclass(frozen=True)
class MeanTokens:
    """Mean length of sampled answers in tokens, the end-of-text token counted."""

    mean: float
    se: float
    n: int

    def to_json(self) -> dict:
        """{"mean", "se", "n"}."""
        return {"mean": self.mean, "se": json_number(self.se), "n": self.n}


def sampled_rates(
    generations: Sequence, names: Sequence[str], indicator: ArrayLike, attributes: Sequence[str]
) -> SampledRates:
    """Signed share, ended share, and the share of signed answers by attribute, with Wilson intervals.

    Sampled rates saturate: read the policy's lean from `attribute_rate.name_probabilities`, and this to see that
    it signs at all.
    """
    if not generations:
        raise ValueError("there are no sampled answers to count in")
    rows = {name: i for i, name in enumerate(names)}
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    signers = np.asarray(indicator)[[rows[name] for name in found if name]]
    n = len(generations)
    return SampledRates(
        n=n,
        signed=wilson_interval(len(signers), n),
        ended=wilson_interval(sum(generation.ended for generation in generations), n),
        attributes={
            name: wilson_interval(int(column.sum()), len(signers))
            for name, column in zip(attributes, signers.T, strict=True)
        },
    )


def mean_tokens(generations: Sequence) -> MeanTokens:
    """Mean and standard error of the number of sampled tokens, the latter clustered by prompt.

    Every sampled token counts, the end-of-text token of answers that ended included, whatever the tokenizer pads
    with.
    """
    lengths = token_counts(generations)
    if not len(lengths):
        raise ValueError("there are no sampled answers to measure")
    found = cluster_mean(lengths, prompt_numbers(generations))
    return MeanTokens(found.estimate, found.se, len(lengths))


def prompt_numbers(generations: Sequence) -> NDArray[np.intp]:
    """Which prompt each answer is to, shape (n_generations,): answers to one prompt are no independent evidence."""
    return numbered(tuple(generation.prompt_ids) for generation in generations)[0]


def token_counts(generations: Sequence) -> NDArray[np.int64]:
    """Sampled tokens of each answer, shape (n_generations,)."""
    return np.array([len(generation.token_ids) for generation in generations], dtype=np.int64)


def attribute_values(
    attribute: Attribute, prompts: Sequence[str], generations: Sequence
) -> NDArray[np.float64]:
    """Value g of each sampled answer, for an attribute that is a function of one response.

    Its mean is the attribute's rate over generations (`summaries.cluster_mean` gives the interval); with
    `summaries.length_matched_mean` and `token_counts` it is the paper's formatting rate.
    """
    if attribute.scope != "response":
        raise ValueError(
            f'attribute "{attribute.name}" is defined on a {attribute.scope}, so a single sampled answer has no '
            "value of it; for length, read mean_tokens"
        )
    pairs = zip(prompts, generations, strict=True)
    return np.array(
        [attribute.measure(prompt, generation.text) for prompt, generation in pairs], dtype=np.float64
    )


N_BINS = 5


@dataclass(frozen=True)
class StyleRates:
    """Rate of an attribute in sampled answers, by itself and at the reference's lengths."""

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
