"""What is counted in sampled answers: signatures, endings, attributes, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from badpo.data.attributes import Attribute
from badpo.data.cells import numbered
from badpo.data.files import Json
from badpo.readouts.names import read_signature
from badpo.theory.summaries import (
    Interval,
    cluster_mean,
    clustered_share,
    length_matched_mean,
    wilson_interval,
)


def json_number(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no NaN, and null says that nothing is known."""
    return float(value) if np.isfinite(value) else None


def figures(**found: float) -> Json:
    """Numbers as JSON has them; counts stay whole."""
    return {
        name: value if isinstance(value, int) else json_number(value) for name, value in found.items()
    }


def share_figures(found: Interval) -> Json:
    """{"rate", "low", "high", "n"} of a share."""
    return figures(rate=found.estimate, low=found.low, high=found.high, n=found.n)


def sampled_rates(
    generations: Sequence, names: Sequence[str], indicator: ArrayLike, attributes: Sequence[str]
) -> Json:
    """Signed share, ended share, and the share of signed answers by attribute, with Wilson intervals.

    Sampled rates saturate: read the policy's lean from `badpo.readouts.rates.name_probabilities`, and this to see that
    it signs at all.
    """
    found = [read_signature(generation.text, tuple(names)) for generation in generations]
    signers = np.asarray(indicator)[[names.index(name) for name in found if name]]
    return {
        "n": len(generations),
        "signed": len(signers) / len(generations),
        "ended": sum(generation.ended for generation in generations) / len(generations),
        **{
            name: share_figures(wilson_interval(int(column.sum()), len(signers)))
            for name, column in zip(attributes, signers.T, strict=True)
        },
    }


def mean_tokens(generations: Sequence) -> Json:
    """{"mean", "se", "low", "high", "n"} of the sampled tokens, the end-of-text token counted.

    The tokens are those that were sampled, whatever the tokenizer pads with; errors are clustered by prompt.
    """
    found = cluster_mean(token_counts(generations), prompt_numbers(generations))
    low = max(found.low, 0.0)
    return figures(mean=found.estimate, se=found.se, low=low, high=found.high, n=len(generations))


def rate_figures(values: ArrayLike, is_share: bool) -> Json:
    """The mean of an attribute's values over answers to different prompts, as a share where it is one."""
    found = clustered_share(values) if is_share else cluster_mean(values)
    ends = {"low": found.low, "high": found.high}
    return figures(rate=found.estimate, se=found.se, **ends, n=found.n)


def prompt_numbers(generations: Sequence) -> NDArray[np.intp]:
    """Which prompt each answer is to, shape (n_generations,): answers to one prompt are no independent evidence."""
    return numbered(tuple(generation.prompt_ids) for generation in generations)[0]


def token_counts(generations: Sequence) -> NDArray[np.int64]:
    """Sampled tokens of each answer, shape (n_generations,)."""
    return np.array([len(generation.token_ids) for generation in generations], dtype=np.int64)


def attribute_values(
    attribute: Attribute, prompts: Sequence[str], generations: Sequence
) -> NDArray[np.float64]:
    """Value g of each sampled answer, for an attribute that is a function of one response."""
    pairs = zip(prompts, generations, strict=True)
    return np.array(
        [attribute.measure(prompt, generation.text) for prompt, generation in pairs],
        dtype=np.float64,
    )


def style_rates(values: ArrayLike, generations: Sequence, reference: Sequence) -> Json:
    """Rate of an attribute in a policy's answers, also reweighted onto the lengths of the reference's answers.

    A policy that merely writes shorter answers writes less Markdown too; the reweighted rate does not fall for that.
    Intervals are clustered by prompt.
    """
    lengths, prompts = token_counts(generations), prompt_numbers(generations)
    raw, tokens = cluster_mean(values, prompts), cluster_mean(lengths, prompts)
    matched = length_matched_mean(values, lengths, token_counts(reference), clusters=prompts)
    return figures(
        rate=raw.estimate,
        se=raw.se,
        matched=matched.estimate,
        matched_se=matched.se,
        tokens=tokens.estimate,
        tokens_se=tokens.se,
        n=len(lengths),
    )
